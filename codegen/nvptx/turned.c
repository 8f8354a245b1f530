// turned.c: tiles that lie the other way round in registers: their rows are what a tensor, or a tile in shared memory, has
// side by side. A recurrence's state lies so, and what is added to it.
//
// In: a store of a narrow tensor; a map whose operands lie in shared memory. Out: blocks of 8 x 8 turned round between
// registers (movmatrix) and stored two elements at a time; operands of a map that come block by block (ldmatrix), and
// numbers of columns two at a time, as registers that nv_element reads.
#include "codegen/nvptx/nvptx.h"

// ---- stores

// As mma.m16n8k16 leaves its result: two columns side by side, eight rows over the lanes.
static bool in_blocks(const CgFragment *f) {
    const Layout *l = &f->is;
    int lanes = 0;
    for (int i = 0; i < l->n; i++) {
        const LayoutDigit *d = &l->digit[i];
        if (d->place != LAYOUT_LANE) continue;
        bool pairs = d->axis == f->columns && d->step == 2 && d->count == 4;
        bool rows = d->axis == f->rows && d->step == 1 && d->count == 8;
        if (!(lanes ? rows : pairs)) return false;
        lanes++;
    }
    const LayoutDigit *first = &l->digit[0];
    return lanes == 2 && first->place == LAYOUT_REG && first->axis == f->columns &&
           first->step == 1 && first->count == 2;
}

bool nv_is_turned_store(Cg *cg, const TileOp *op, const TileValue *v) {
    const TileTensor *t = &cg->p->tensors.data[op->tensor];
    const CgFragment *f = cg_fragment(cg, v);
    if (cg->target->id != TARGET_SM90A) return false; // movmatrix is younger than sm_80's PTX
    if (!dtype_half(t->dtype) || op->add || op->when || t->blocked || f->columns < 0) return false;
    for (int d = 0; d < t->rank; d++)
        if (op->each[d]) return false;
    const Ex *size = t->extent[t->rank - 1];
    return op->coord[t->rank - 1].axis == f->rows && size->op == EX_CONST && size->i % 8 == 0 &&
           in_blocks(f);
}

static Val turn_block(Cg *cg, Val pairs) {
    return cg_asm(cg, cg->i32, &pairs, 1, "movmatrix.sync.aligned.m8n8.trans.b16 $0, $1;", "=r,r",
                  true);
}

static void store_if(Cg *cg, Val at, Val x, Val in) {
    Val v[] = {at, x, cg_zext(cg, in, cg->i32)};
    cg_asm(cg, cg->void_, v, 3,
           "{\n\t.reg .pred p;\n\tsetp.ne.b32 p, $2, 0;\n\t@p st.global.b32 [$0], $1;\n\t}",
           "l,r,r,~{memory}", true);
}

typedef struct Along { // one axis of a store
    Val first;         // i32: this thread's first index, once blocks are turned
    Val size;          // i32: of the tensor
    Val stride;        // i64: bytes
    int step, count;   // of its blocks
    bool inside;       // all of them
} Along;

static Along along(Cg *cg, const TileOp *op, const TileValue *v, int d, Val lane) {
    const CgFragment *f = cg_fragment(cg, v);
    const TileTensor *t = &cg->p->tensors.data[op->tensor];
    int axis = op->coord[d].axis, extent = cg->k->axes[axis].extent;
    Val first = cg_times(cg, cg_uniform(cg, op->coord[d].at), extent);
    Val warp = cg_warp_part(cg, v->layout, axis, 1);
    if (warp) first = cg_add(cg, first, warp);
    Along a = {.first = cg_add(cg, first, lane),
               .size = cg_extent(cg, op->tensor, d),
               .stride = cg_mul(cg, cg_stride(cg, op->tensor, d), cg_i64(cg, 2)),
               .count = cg_share(f, axis) / 2};
    const Ex *size = t->extent[d];
    a.inside = size->op == EX_CONST && size->i % extent == 0;
    return a;
}

static Val begin_of(Cg *cg, const TileOp *op) {
    const TileTensor *t = &cg->p->tensors.data[op->tensor];
    Val at = cg_ptrtoint(cg, cg_pointer(cg, op->tensor), cg->i64);
    for (int d = 0; d < t->rank; d++) {
        if (op->coord[d].axis >= 0) continue;
        Val i = cg_sext(cg, cg_uniform(cg, op->coord[d].at), cg->i64);
        Val bytes = cg_mul(cg, cg_stride(cg, op->tensor, d), cg_i64(cg, 2));
        at = cg_add(cg, at, cg_mul(cg, i, bytes));
    }
    return at;
}

static Val index_in(Cg *cg, const Along *a, int offset, Val *in) {
    Val i = cg_plus(cg, a->first, offset);
    if (a->inside) return i;
    *in = cg_and(cg, *in, cg_less(cg, i, a->size));
    return i;
}

static Val pair_at(Cg *cg, const TileValue *v, Dtype t, int row, int column) {
    const CgFragment *f = cg_fragment(cg, v);
    int part[TILE_MAX_AXES] = {0};
    Val x[2];
    if (f->each == 2 && v->dtype == t) return cg->value[v->id].e[cg_register(f, row, column)];
    for (int c = 0; c < 2; c++) {
        part[f->rows] = row, part[f->columns] = column + c;
        x[c] = nv_element(cg, v, v->layout, part);
    }
    return nv_pack(cg, t, x[0], x[1]);
}

void nv_store_turned(Cg *cg, const TileOp *op) {
    const TileValue *v = op->args.data[0];
    const TileTensor *t = &cg->p->tensors.data[op->tensor];
    const CgFragment *f = cg_fragment(cg, v);
    Val lane = nv_state(cg)->gpu.lane;
    Val high = cg_lshr(cg, lane, cg_i32(cg, 2));
    Val low = cg_times(cg, cg_and(cg, lane, cg_i32(cg, 3)), 2);
    Along rows = along(cg, op, v, t->rank - 1, low), columns = {0};
    for (int d = 0; d < t->rank - 1; d++)
        if (op->coord[d].axis == f->columns) columns = along(cg, op, v, d, high);
    Val first = cg_sext(cg, columns.first, cg->i64);
    Val at = cg_add(cg, begin_of(cg, op), cg_mul(cg, first, columns.stride));
    first = cg_sext(cg, rows.first, cg->i64);
    at = cg_add(cg, at, cg_mul(cg, first, cg_i64(cg, 2)));
    Val always = LLVMConstInt(cg->i1, 1, false);
    for (int n = 0; n < f->registers * f->each; n += 2) {
        int row = layout_part(&f->is, LAYOUT_REG, f->rows, n),
            column = layout_part(&f->is, LAYOUT_REG, f->columns, n);
        Val in = always, x = turn_block(cg, pair_at(cg, v, t->dtype, row, column));
        index_in(cg, &columns, column, &in);
        index_in(cg, &rows, row, &in);
        Val down = cg_mul(cg, columns.stride, cg_i64(cg, column));
        store_if(cg, cg_add(cg, cg_add(cg, at, down), cg_i64(cg, 2 * row)), x, in);
    }
}

// ---- operands of maps

// Where in a tile's rows and columns a lane of ldmatrix begins to read: block b of four is the lane's upper two bits.
static Val block_address(Cg *cg, const TileValue *v, const TileShared *t, const Val at[4][2]) {
    Val lane = nv_state(cg)->gpu.lane, block = cg_lshr(cg, lane, cg_i32(cg, 3));
    Val in = cg_and(cg, lane, cg_i32(cg, 7)), place[2];
    for (int i = 0; i < 2; i++) {
        place[i] = at[0][i];
        for (int b = 1; b < 4; b++) {
            place[i] = cg_select(cg, cg_is(cg, block, b), at[b][i], place[i]);
        }
    }
    Val row = cg_add(cg, place[0], in);
    return cg_add(cg, cg->value[v->id].mem, nv_tile_offset(cg, t, row, place[1]));
}

// A matrix, four blocks at a time. Registers of a fragment come in pairs of blocks along its rows.
static bool fetch_matrix(Cg *cg, const TileValue *v, int layout) {
    CgFragment f = {.is = layout_restrict(&cg->k->layouts.data[layout].is, v->axis, v->rank)};
    TileShared t = tile_shared(cg->p, cg->k, v);
    f.columns = cg_columns(&cg->k->layouts.data[layout].is);
    f.rows = f.columns == v->axis[0] ? v->axis[1] : v->axis[0];
    if (f.columns != v->axis[0] && f.columns != v->axis[1]) return false;
    int n = layout_count(&f.is, LAYOUT_REG) / 2;
    if (!dtype_half(v->dtype) || !in_blocks(&f) || n % 4) return false;
    bool turned = t.row_axis == f.columns;
    Val *e = ARENA_ARRAY(cg->arena, Val, n);
    for (int i = 0; i < n; i += 4) {
        Val at[4][2];
        for (int b = 0; b < 4; b++)
            for (int j = 0; j < 2; j++) {
                int axis = j ? t.col_axis : t.row_axis;
                int part = layout_part(&f.is, LAYOUT_REG, axis, 2 * (i + b));
                Val warp = cg_warp_part(cg, layout, axis, 1);
                at[b][j] = warp ? cg_plus(cg, warp, part) : cg_i32(cg, part);
            }
        nv_ldmatrix(cg, block_address(cg, v, &t, at), turned, e + i);
    }
    cg->value[v->id].e = e;
    cg->value[v->id].n = n;
    return true;
}

// Numbers of columns.
static bool fetch_vector(Cg *cg, const TileValue *v, int layout) {
    Layout is = layout_restrict(&cg->k->layouts.data[layout].is, v->axis, 1);
    int n = layout_count(&is, LAYOUT_REG);
    const LayoutDigit *first = &is.digit[0];
    bool pairs = n && first->place == LAYOUT_REG && first->step == 1 && first->count % 2 == 0;
    if (v->dtype != DT_F32 || !pairs) return false;
    TileShared t = tile_shared(cg->p, cg->k, v);
    Val *e = ARENA_ARRAY(cg->arena, Val, n), own = cg_thread_part(cg, layout, v->axis[0]);
    for (int i = 0; i < n; i += 2) {
        Val at = cg_plus(cg, own, layout_part(&is, LAYOUT_REG, v->axis[0], i));
        at = cg_add(cg, cg->value[v->id].mem, nv_tile_offset(cg, &t, NULL, at));
        Val two = cg_load(cg, cg_vector(cg->f32, 2), nv_shared_ptr(cg, at));
        LLVMSetAlignment(two, 8);
        for (int c = 0; c < 2; c++) e[i + c] = cg_extract(cg, two, cg_i32(cg, c));
    }
    cg->value[v->id].e = e;
    cg->value[v->id].n = n;
    return true;
}

void nv_fetch_operands(Cg *cg, const TileOp *map, int layout) {
    for (int i = 0; i < map->args.n; i++) {
        const TileValue *v = map->args.data[i];
        if (v->home != HOME_SHARED || cg->value[v->id].e) continue;
        if (v->rank == 2) fetch_matrix(cg, v, layout);
        if (v->rank == 1 && !nv_state(cg)->roles) fetch_vector(cg, v, layout);
    }
}

void nv_forget_operands(Cg *cg, const TileOp *map) {
    for (int i = 0; i < map->args.n; i++) {
        const TileValue *v = map->args.data[i];
        if (v->home == HOME_SHARED) cg->value[v->id].e = NULL, cg->value[v->id].n = 0;
    }
}
