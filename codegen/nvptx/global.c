// global.c: fragments from and to global memory.
//
// In: a TILE_STORE of a fragment, a TILE_LOAD into one. Out: guarded accesses: a load outside a
// tensor gives 0, a store outside stores nothing. Rows of f16 and bf16 are first transposed within
// the quad, so that each thread stores 16 bytes.
#include "codegen/nvptx/nvptx.h"
#include "ir/tile_blocks.h"

#include <assert.h>

enum { BLOCK_BYTES = TILE_BLOCK_ROWS * TILE_BLOCK_COLUMNS * 4 };

static int elem_of(const CgAccess *a) { return dtype_bytes(a->t->dtype); }
static int m_tiles(const CgAccess *a) { return cg_share(a->f, a->f->rows) / 2; } // of a warp

static Val address(Cg *cg, Val base, Val index, int bytes) {
    Val i = cg_sext(cg, index, cg->i64);
    return cg_add(cg, base, cg_mul(cg, i, cg_i64(cg, bytes)));
}

static int warp_columns(const CgFragment *f) {
    return cg_share(f, f->columns) * layout_share(&f->is, LAYOUT_LANE, f->columns);
}

// The columns that lie before those of a warp, where warps share them.
static Val columns_before(Cg *cg, const CgAccess *a) {
    int own = warp_columns(a->f);
    Val at = cg_thread_part(cg, a->v->layout, a->f->columns);
    if (!(own & (own - 1))) return cg_and(cg, at, cg_i32(cg, -own));
    return cg_times(cg, cg_over(cg, at, own), own);
}

static CgAccess access_of(Cg *cg, const TileOp *op, const TileValue *v) {
    const TileTensor *t = &cg->p->tensors.data[op->tensor];
    int elem = dtype_bytes(t->dtype);
    Val from = cg_ptrtoint(cg, cg_origin(cg, op), cg->i64);
    CgAccess a =
        cg_access(cg, op, v, from, elem, t->blocked ? BLOCK_BYTES / TILE_BLOCK_COLUMNS : elem);
    int all = a.cols, own = all ? warp_columns(a.f) : 0;
    if (!own || layout_share(&a.f->is, LAYOUT_WARP, a.f->columns) == 1) return a;
    Val before = columns_before(cg, &a);
    a.begin = address(cg, a.begin, before, t->blocked ? BLOCK_BYTES / TILE_BLOCK_COLUMNS : elem);
    a.cols = own;
    if (all % own) a.ncols = cg_sub(cg, cg_i32(cg, all), before);
    return a;
}

static Val row_begin(Cg *cg, const CgAccess *a, Val row) {
    return cg_add(cg, a->begin, cg_row_offset(cg, a, row));
}

static Val row_of(Cg *cg, const CgAccess *a, int m, int r) {
    return cg_plus(cg, a->row, 16 * m + 8 * r);
}

// This thread's first column, of its warp's.
static Val column_at(Cg *cg, const CgAccess *a) {
    Val at = cg_thread_part(cg, a->v->layout, a->f->columns);
    if (layout_share(&a->f->is, LAYOUT_WARP, a->f->columns) == 1) return at;
    return cg_sub(cg, at, columns_before(cg, a));
}

static Val global_ptr(Cg *cg, Val at) {
    return cg_inttoptr(cg, at, LLVMPointerTypeInContext(cg->c, 1));
}

static void store_at(Cg *cg, Val v, Val base, int offset, unsigned align) {
    Val p = global_ptr(cg, cg_add(cg, base, cg_i64(cg, offset)));
    LLVMSetAlignment(cg_store(cg, v, p), align);
}

// What adds nothing costs nothing: so all rows may add to one number. (Two at once would need the PTX of CUDA 12.1.)
void nv_add(Cg *cg, Val x, Val p) {
    Val args[] = {cg_ptrtoint(cg, p, cg->i64), x};
    cg_asm(cg, cg->void_, args, 2,
           "{\n\t.reg .pred p;\n\tsetp.neu.f32 p, $1, 0f00000000;\n\t"
           "@p red.relaxed.gpu.global.add.f32 [$0], $1;\n\t}",
           "l,f", false);
}

// Adds to what is there, in any order.
static void add_at(Cg *cg, const CgAccess *a, Val v, Val base, int offset) {
    for (int i = 0; i < cg_lanes(v); i++) {
        Val at = cg_add(cg, base, cg_i64(cg, offset + 4 * i));
        Val x = cg_lanes(v) == 1 ? v : cg_extract(cg, v, cg_i32(cg, i));
        cg_add_to(cg, a->op->tensor, x, global_ptr(cg, at));
    }
}

static void add_one(Cg *cg, Val x, Val base, int offset) {
    Val args[] = {cg_add(cg, base, cg_i64(cg, offset)), x};
    cg_asm(cg, cg->void_, args, 2, "red.relaxed.gpu.global.add.f32 [$0], $1;", "l,f", false);
}

static void put_at(Cg *cg, const CgAccess *a, Val v, Val base, int offset, unsigned align) {
    if (a->op->add)
        add_at(cg, a, v, base, offset);
    else
        store_at(cg, v, base, offset, align);
}

// ---- rows of columns

// Among the quad's four threads, each with words x[0..4): afterwards thread t has word t of threads
// 0..3, in order.
static void transpose_quad(Cg *cg, Val x[4]) {
    Val lane = nv_state(cg)->gpu.lane;
    for (int bit = 1; bit <= 2; bit *= 2) {
        Val odd = cg_and(cg, lane, cg_i32(cg, bit));
        odd = cg_icmp(cg, LLVMIntNE, odd, cg_i32(cg, 0));
        for (int i = 0; i < 4; i++) {
            if (i & bit) continue;
            Val got = nv_shuffle(cg, cg_select(cg, odd, x[i], x[i | bit]), bit);
            x[i] = cg_select(cg, odd, got, x[i]);
            Val other = cg_select(cg, odd, x[i | bit], got);
            x[i | bit] = other;
        }
    }
}

// The pair of columns (n, m, r) as one word of the tensor's narrow type.
static Val word(Cg *cg, const CgAccess *a, int m, int n, int r) {
    if (a->f->each == 2 && a->v->dtype == a->t->dtype)
        return cg->value[a->v->id].e[cg_register(a->f, 16 * m + 8 * r, 8 * n)];
    return nv_pack(cg, a->t->dtype, cg_number(cg, a, 16 * m + 8 * r, 8 * n),
                   cg_number(cg, a, 16 * m + 8 * r, 8 * n + 1));
}

// One row of narrow elements whose count is a multiple of 8: four 8-column tiles at a time as 16
// bytes a thread, as far as the tensor has them, then single ones.
static void store_narrow_row(Cg *cg, const CgAccess *a, int m, int r) {
    int tiles = a->cols / 8, wide = tiles / 4 * 4;
    Val *x = ARENA_ARRAY(cg->arena, Val, tiles + 1);
    for (int n = 0; n < tiles; n++) x[n] = word(cg, a, m, n, r);
    for (int n = 0; n < wide; n += 4) transpose_quad(cg, x + n);
    Val row = row_of(cg, a, m, r), quad = cg_and(cg, nv_state(cg)->gpu.lane, cg_i32(cg, 3));
    Val first = a->ncols ? cg_times(cg, quad, 8) : NULL;
    quad = cg_zext(cg, quad, cg->i64);
    Blk done = cg_if(cg, cg_less(cg, row, a->nrows), "row");
    Val at = row_begin(cg, a, row);
    Val at16 = cg_add(cg, at, cg_mul(cg, quad, cg_i64(cg, 16)));
    Val at4 = cg_add(cg, at, cg_mul(cg, quad, cg_i64(cg, 4)));
    for (int n = 0; n < wide; n += 4) {
        Val four = LLVMGetPoison(cg_vector(cg->i32, 4));
        for (int i = 0; i < 4; i++) four = cg_insert(cg, four, x[n + i], cg_i32(cg, i));
        Blk next = a->ncols ? cg_if(cg, cg_less(cg, cg_plus(cg, first, 8 * n), a->ncols), "columns")
                            : NULL;
        store_at(cg, four, at16, 16 * n, 16);
        cg_end_if(cg, next);
    }
    for (int n = wide; n < tiles; n++) store_at(cg, x[n], at4, 16 * n, 4);
    cg_end_if(cg, done);
}

// One row by elements, pairs of f32 at once where columns come in eights.
static void store_plain_row(Cg *cg, const CgAccess *a, int m, int r) {
    Val row = row_of(cg, a, m, r), col0 = column_at(cg, a);
    Blk done = cg_if(cg, cg_less(cg, row, a->nrows), "row");
    Val at = row_begin(cg, a, row);
    at = address(cg, at, col0, elem_of(a));
    bool aligned = tile_is_matrix(a->t) || a->t->role == TENSOR_WORK;
    bool pairs = aligned && !a->ncols && a->cols % 8 == 0 && a->t->dtype == DT_F32;
    Val end = a->ncols ? a->ncols : cg_i32(cg, a->cols);
    for (int n = 0; 8 * n < a->cols; n++)
        if (pairs) {
            Val two = LLVMGetPoison(cg_vector(cg->f32, 2));
            for (int c = 0; c < 2; c++)
                two =
                    cg_insert(cg, two, cg_number(cg, a, 16 * m + 8 * r, 8 * n + c), cg_i32(cg, c));
            put_at(cg, a, two, at, 32 * n, 8);
        } else {
            for (int c = 0; c < 2; c++) {
                Val col = cg_plus(cg, col0, 8 * n + c);
                Blk next = cg_if(cg, cg_less(cg, col, end), "row");
                Val x = cg_write(cg, cg_number(cg, a, 16 * m + 8 * r, 8 * n + c), a->t->dtype);
                put_at(cg, a, x, at, (8 * n + c) * elem_of(a), (unsigned)elem_of(a));
                cg_end_if(cg, next);
            }
        }
    cg_end_if(cg, done);
}

// ---- blocks of 16 rows and 8 columns, four numbers of a thread in 16 bytes (ir/tile_blocks.h)

// Where threads add to blocks by themselves a thread's four numbers are 128 bytes apart: those that a warp adds at a time follow each other.
static bool lies_apart(Cg *cg, const CgAccess *a) {
    if (cg->target->id != TARGET_SM80) return false;
    for (int i = 0; i < cg->p->kernels.n; i++) {
        const TileBlock *b = &cg->p->kernels.data[i]->body;
        for (const TileOp *op = tile_next(b, NULL); op; op = tile_next(b, op))
            if (op->kind == TILE_STORE && op->add && op->tensor == a->op->tensor) return true;
    }
    return false;
}

// Whether the tensor's rows are whole tiles, which begin with the first one.
static bool has_tiles(Cg *cg, const CgAccess *a) {
    int d = a->t->rank - 2, axis = a->op->coord[d].axis;
    return !a->op->each[d] && tile_is_multiple(a->t->extent[d], cg->k->axes[axis].extent);
}

// Of a warp's rows and the current columns, this thread's part of the first block. in: the tensor has it; NULL: it has all.
static Val blocks_at(Cg *cg, const CgAccess *a, int m, Val *in) {
    Val block = LLVMBuildAShr(cg->b, a->row, cg_i32(cg, 4), "");
    block = cg_plus(cg, block, m);
    Val first = cg_shl(cg, block, cg_i32(cg, 4));
    *in = has_tiles(cg, a) ? NULL : cg_less(cg, first, a->nrows);
    if (*in) first = cg_select(cg, *in, first, cg_i32(cg, 0));
    Val lane = cg_times(cg, nv_state(cg)->gpu.lane, lies_apart(cg, a) ? 4 : 16);
    return address(cg, row_begin(cg, a, first), lane, 1);
}

// Of the tile's 8 columns from 8 * n on; NULL: they are.
static Val block_exists(Cg *cg, const CgAccess *a, int n) {
    return a->ncols ? cg_less(cg, cg_i32(cg, 8 * n), a->ncols) : NULL;
}

static void store_blocks(Cg *cg, const CgAccess *a, int m) {
    Val in, at = blocks_at(cg, a, m, &in);
    Blk done = cg_if(cg, in, "rows");
    bool apart = lies_apart(cg, a);
    for (int n = 0; 8 * n < a->cols; n++) {
        Val exists = block_exists(cg, a, n), four = LLVMGetPoison(cg_vector(cg->f32, 4));
        Blk next = cg_if(cg, exists, "columns");
        for (int i = 0; i < 4; i++) {
            Val x = cg_number(cg, a, 16 * m + 8 * (i / 2), 8 * n + i % 2);
            four = cg_insert(cg, four, x, cg_i32(cg, i));
            int offset = BLOCK_BYTES * n + BLOCK_BYTES / 4 * i;
            if (apart && a->op->add)
                add_one(cg, x, at, offset);
            else if (apart)
                store_at(cg, x, at, offset, 4);
        }
        if (!apart) put_at(cg, a, four, at, BLOCK_BYTES * n, 16);
        cg_end_if(cg, next);
    }
    cg_end_if(cg, done);
}

// One block; columns that the tensor has not are 0.
static void load_block(Cg *cg, const CgAccess *a, Val at, Val in, int n, Val four[4]) {
    Val exists = block_exists(cg, a, n), offset = cg_i64(cg, BLOCK_BYTES * n);
    for (int i = 0; i < 4; i++) four[i] = LLVMConstNull(cg->f32);
    if (8 * n >= a->cols) return;
    if (exists) in = in ? cg_and(cg, in, exists) : exists;
    if (exists) offset = cg_select(cg, exists, offset, cg_i64(cg, 0));
    at = cg_add(cg, at, offset);
    if (lies_apart(cg, a)) {
        for (int i = 0; i < 4; i++) {
            Val p = global_ptr(cg, cg_add(cg, at, cg_i64(cg, BLOCK_BYTES / 4 * i)));
            Val one = cg_load(cg, cg->f32, p);
            four[i] = in ? cg_or_zero(cg, in, one) : one;
        }
        return;
    }
    Val all = cg_load(cg, cg_vector(cg->f32, 4), global_ptr(cg, at));
    LLVMSetAlignment(all, 16);
    for (int i = 0; i < 4; i++) {
        four[i] = cg_extract(cg, all, cg_i32(cg, i));
        if (in) four[i] = cg_or_zero(cg, in, four[i]);
    }
}

static void load_blocks(Cg *cg, const CgAccess *a, int m, Val *e) {
    Val in, at = blocks_at(cg, a, m, &in), four[4];
    for (int n = 0; n < cg_share(a->f, a->f->columns) / 2; n++) {
        load_block(cg, a, at, in, n, four);
        for (int i = 0; i < 4; i++)
            e[cg_register(a->f, 16 * m + 8 * (i / 2), 8 * n + i % 2)] = four[i];
    }
}

// ---- one number per row: one thread of each quad

static void store_row_number(Cg *cg, const CgAccess *a, int m, int r) {
    Val lead = cg_and(cg, nv_state(cg)->gpu.lane, cg_i32(cg, 3));
    lead = cg_is(cg, lead, 0);
    Val row = row_of(cg, a, m, r), in = cg_less(cg, row, a->nrows);
    Blk done = cg_if(cg, cg_and(cg, lead, in), "row");
    Val x = cg_write(cg, cg_number(cg, a, 16 * m + 8 * r, 0), a->t->dtype);
    put_at(cg, a, x, row_begin(cg, a, row), 0, (unsigned)elem_of(a));
    cg_end_if(cg, done);
}

// Whether all rows add to one number.
static bool adds_to_one(const CgAccess *a) {
    bool one = a->op->add && !a->cols && tile_goes_by_element(a->op, a->f->rows);
    for (int d = 0; one && d < a->t->rank; d++) one = !ex_uses(a->op->coord[d].at, SYM_POS, -1);
    return one;
}

// The warp's rows: so few come to the number at a time.
static void add_rows(Cg *cg, const CgAccess *a) {
    Val sum = cg_f32(cg, 0), none = sum, lane = nv_state(cg)->gpu.lane;
    for (int m = 0; m < m_tiles(a); m++)
        for (int r = 0; r < 2; r++) {
            Val in = cg_less(cg, row_of(cg, a, m, r), a->nrows);
            sum = cg_fadd(cg, sum, cg_select(cg, in, cg_number(cg, a, 16 * m + 8 * r, 0), none));
        }
    for (int bit = 4; bit < NV_WARP; bit *= 2) sum = cg_fadd(cg, sum, nv_shuffle(cg, sum, bit));
    Blk done = cg_if(cg, cg_is(cg, lane, 0), "sum");
    add_at(cg, a, sum, row_begin(cg, a, cg_i32(cg, 0)), 0);
    cg_end_if(cg, done);
}

void nv_store(Cg *cg, const TileOp *op) {
    const TileValue *v = op->args.data[0];
    if (cg_goes_by_columns(cg, op, v)) {
        (nv_is_turned_store(cg, op, v) ? nv_store_turned : cg_store_elements)(cg, op);
        return;
    }
    CgAccess a = access_of(cg, op, v);
    assert(a.row && "a store has the row axis");
    if (adds_to_one(&a)) {
        add_rows(cg, &a);
        return;
    }
    int copies = op->add && a.cols ? layout_share(&a.f->is, LAYOUT_WARP, LAYOUT_COPIES) : 1;
    Val threads = cg_i32(cg, nv_state(cg)->gpu.threads / copies); // of which the first ones add
    Blk done = copies > 1 ? cg_if(cg, cg_less(cg, nv_state(cg)->gpu.tid, threads), "add") : NULL;
    bool shared =
        a.cols && layout_share(&a.f->is, LAYOUT_WARP, a.f->columns) > 1; // a.cols % 32 == 0
    bool narrow = dtype_half(a.t->dtype) && (!a.ncols || shared) && a.cols % 8 == 0;
    for (int m = 0; a.t->blocked && m < m_tiles(&a); m++) store_blocks(cg, &a, m);
    for (int m = 0; !a.t->blocked && m < m_tiles(&a); m++)
        for (int r = 0; r < 2; r++)
            if (!a.cols)
                store_row_number(cg, &a, m, r);
            else if (narrow)
                store_narrow_row(cg, &a, m, r);
            else
                store_plain_row(cg, &a, m, r);
    cg_end_if(cg, done);
}

// ---- loads: by elements, from an address inside the tensor, whatever is outside made 0

typedef struct Row {
    Val base; // i64: address of the row's first element, or of the tensor's first row
    Val in;   // i1: the tensor has it
} Row;

static Row row_at(Cg *cg, const CgAccess *a, int m, int r) {
    Val row = row_of(cg, a, m, r), in = cg_less(cg, row, a->nrows);
    Val inside = cg_select(cg, in, row, cg_i32(cg, 0));
    return (Row){row_begin(cg, a, inside), in};
}

static Val load_element(Cg *cg, const CgAccess *a, Row row, int n, int c) {
    Val in = row.in, col = cg_i32(cg, 0);
    if (a->cols) {
        col = cg_plus(cg, column_at(cg, a), 8 * n + c);
        if (a->ncols || 8 * n + 8 > a->cols) {
            Val end = a->ncols ? a->ncols : cg_i32(cg, a->cols);
            in = cg_and(cg, in, cg_less(cg, col, end));
            col = cg_select(cg, in, col, cg_i32(cg, 0));
        }
    }
    Val at = address(cg, row.base, col, elem_of(a));
    if (a->t->exact) return cg_or_zero(cg, in, cg_exact_read(cg, global_ptr(cg, at)));
    Val x = cg_load(cg, cg_dtype(cg, a->t->dtype), global_ptr(cg, at));
    return cg_or_zero(cg, in, cg_read(cg, x, a->t->dtype));
}

// Whether two columns lie in one word: of tensors of our own, and of those whose rows begin at multiples of 16 bytes.
static bool has_pairs(const CgAccess *a) {
    const Ex *columns = a->t->extent[a->t->rank - 1];
    if (a->t->role == TENSOR_WORK) return a->cols % 2 == 0;
    if (tile_is_matrix(a->t)) return a->cols % 2 == 0 && a->op->from_column % 2 == 0;
    return a->t->role == TENSOR_STATE0 && columns->i * elem_of(a) % 16 == 0;
}

static bool is_paired(const CgAccess *a, int n) {
    return a->cols && !a->ncols && has_pairs(a) && 8 * n + 8 <= a->cols;
}

static void load_pair(Cg *cg, const CgAccess *a, Row row, int n, Val x[2]) {
    Val first = address(cg, row.base, column_at(cg, a), elem_of(a));
    Val at = cg_add(cg, first, cg_i64(cg, 8 * n * elem_of(a)));
    Val both = cg_load(cg, cg_vector(cg_dtype(cg, a->t->dtype), 2), global_ptr(cg, at));
    LLVMSetAlignment(both, 2 * (unsigned)elem_of(a));
    for (int c = 0; c < 2; c++) {
        Val one = cg_read(cg, cg_extract(cg, both, cg_i32(cg, c)), a->t->dtype);
        x[c] = cg_or_zero(cg, row.in, one);
    }
}

// Two narrow columns, as they are kept.
static Val load_word(Cg *cg, const CgAccess *a, Row row, int n) {
    Val first = address(cg, row.base, column_at(cg, a), elem_of(a));
    Val at = cg_add(cg, first, cg_i64(cg, 8 * n * elem_of(a)));
    Val both = cg_load(cg, cg->i32, global_ptr(cg, at));
    LLVMSetAlignment(both, 4);
    return cg_select(cg, row.in, both, cg_i32(cg, 0));
}

static void load_columns(Cg *cg, const CgAccess *a, Row row, int n, Val x[2]) {
    int each = a->f->columns >= 0 ? 2 : 1;
    if (is_paired(a, n))
        load_pair(cg, a, row, n, x);
    else
        for (int c = 0; c < each; c++) x[c] = load_element(cg, a, row, n, c);
}

void nv_load(Cg *cg, const TileOp *op) {
    const TileValue *v = op->results.data[0];
    if (cg_goes_by_columns(cg, op, v)) {
        cg_load_elements(cg, op);
        return;
    }
    CgAccess a = access_of(cg, op, v);
    const CgFragment *f = a.f;
    assert(f->rows >= 0 && "a fragment that is loaded has the row axis");
    CgValue *value = cg_make(cg, v);
    int each = f->columns >= 0 ? 2 : 1, nt = (cg_share(f, f->columns) + 1) / 2;
    for (int m = 0; a.t->blocked && m < m_tiles(&a); m++) load_blocks(cg, &a, m, value->e);
    for (int m = 0; !a.t->blocked && m < m_tiles(&a); m++)
        for (int r = 0; r < 2; r++) {
            Row row = row_at(cg, &a, m, r);
            for (int n = 0; n < nt; n++) {
                Val x[2];
                if (f->each == 2 && v->dtype == a.t->dtype && is_paired(&a, n)) {
                    value->e[cg_register(f, 16 * m + 8 * r, 8 * n)] = load_word(cg, &a, row, n);
                    continue;
                }
                load_columns(cg, &a, row, n, x);
                for (int c = 0; c < each; c++)
                    value->e[cg_register(f, 16 * m + 8 * r, 8 * n + c)] =
                        f->each == 2 ? nv_pack(cg, v->dtype, x[0], x[1]) : x[c];
            }
        }
    for (int e = 0; v->parts && e < value->n; e++)
        value->e[e] = cg_in_first_copy(cg, &f->is, value->e[e]);
}
