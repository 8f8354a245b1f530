// global.c: fragments from and to global memory.
//
// In: a TILE_STORE of a fragment, a TILE_LOAD into one. Out: guarded accesses: a load outside a
// tensor gives 0, a store outside stores nothing. Rows whose columns the tensor aligns are moved
// by what a lane has in one piece.
#include "codegen/amdgpu/amdgpu.h"

#include <assert.h>

typedef struct Access {
    const TileOp *op;
    const TileTensor *t;
    AmShape shape;
    Val base;   // ptr addrspace(1): the tensor's element at (0, 0) of the tile's axes
    Val row;    // i32: the lane's first row within the tensor
    Val nrows;  // i32
    Val stride; // i64: elements from row to row
    int cols;   // columns of the tile that the tensor may have, 0 without such an axis
    Val ncols;  // i32: that it has, where some tile has fewer than `cols`; else NULL
    bool whole; // columns come in eights, at addresses that are multiples of 16
} Access;

static Val wide_index(Cg *cg, Val i) { return LLVMBuildSExt(cg->b, i, cg->i64, ""); }

static Val step_by(Cg *cg, const Access *a, Val from, Val elements) {
    return LLVMBuildGEP2(cg->b, cg_dtype(cg, a->t->dtype), from, &elements, 1, "");
}

// The columns of a tile that begins at `first` of `all` in the tensor.
static void find_columns(Cg *cg, Access *a, int all, const TileAxis *axis, Val first) {
    a->cols = axis->whole ? all : axis->extent;
    if (!axis->whole && all % axis->extent)
        a->ncols = LLVMBuildSub(cg->b, cg_i32(cg, all), first, "");
}

static Access access_of(Cg *cg, const TileOp *op, const TileValue *v) {
    const AmState *s = am_state(cg);
    Access a = {.op = op, .t = &cg->p->tensors.data[op->tensor], .shape = am_shape(cg, v)};
    Val sum = cg_i64(cg, 0);
    for (int d = 0; d < a.t->rank; d++) {
        const TileCoord *at = &op->coord[d];
        if (op->each[d]) continue;
        Val i = cg_uniform(cg, at->at), stride = cg_stride(cg, op->tensor, d);
        if (at->axis >= 0 && cg->k->axes[at->axis].extent > 1) {
            const TileAxis *axis = &cg->k->axes[at->axis];
            if (at->axis == s->row_axis) {
                a.row = LLVMBuildAdd(cg->b, cg_times(cg, i, axis->extent), s->row0, "");
                a.nrows = cg_extent(cg, op->tensor, d);
                a.stride = stride;
            } else {
                assert(d == a.t->rank - 1 && a.t->extent[d]->op == EX_CONST);
                i = cg_times(cg, i, axis->extent);
                find_columns(cg, &a, a.t->extent[d]->i, axis, i);
                sum = LLVMBuildAdd(cg->b, sum, wide_index(cg, i), "");
            }
            continue;
        }
        sum = LLVMBuildAdd(cg->b, sum, LLVMBuildMul(cg->b, wide_index(cg, i), stride, ""), "");
    }
    if (tile_goes_by_element(op, s->row_axis)) {
        a.row = LLVMBuildAdd(cg->b, cg_tile_begin(cg, s->row_axis), s->row0, "");
        a.nrows = cg_axis_size(cg, s->row_axis);
    }
    Val p = LLVMBuildAddrSpaceCast(cg->b, cg_pointer(cg, op->tensor),
                                   LLVMPointerTypeInContext(cg->c, AM_GLOBAL), "");
    a.base = step_by(cg, &a, p, sum);
    a.whole = tensor_traits(a.t->role)->matrix && a.cols && a.t->extent[a.t->rank - 1]->i % 8 == 0;
    return a;
}

static Val row_of(Cg *cg, const Access *a, int m) {
    return cg_plus(cg, a->row, am_state(cg)->rows * m);
}

static Val row_begin(Cg *cg, const Access *a, Val row) {
    Val at = a->stride ? LLVMBuildMul(cg->b, wide_index(cg, row), a->stride, "")
                       : cg_element_offset(cg, a->op, am_state(cg)->row_axis, row);
    return step_by(cg, a, a->base, at);
}

static Val columns_of(Cg *cg, const Access *a) { return a->ncols ? a->ncols : cg_i32(cg, a->cols); }

// Where columns of the tile may be past the tensor's.
static Val column_inside(Cg *cg, const Access *a, Val col, int last) {
    if (last < a->cols && !a->ncols) return NULL;
    return LLVMBuildICmp(cg->b, LLVMIntSLT, col, columns_of(cg, a), "");
}

static int last_part(Cg *cg) { return am_state(cg)->parts - 1; }

// The greatest column that any lane's element e is.
static int greatest(Cg *cg, int axis, int e) {
    return am_column_base(cg, axis, e) + last_part(cg) * am_unit(cg, axis);
}

// ---- stores

static Val number(Cg *cg, const Access *a, const TileValue *v, int m, int e) { // as it reads
    int part[TILE_MAX_AXES];
    am_part(a->shape, m, e, part);
    return am_element(cg, v, v->layout, part);
}

static void store_words(Cg *cg, Val at, const Val *w, int n) {
    LLVMSetAlignment(LLVMBuildStore(cg->b, am_vector(cg, cg->i32, w, n), at), 4);
}

// Elements e and e + 1 of a row (WMMA: of both lanes' parts) in the tensor's type.
static Val two(Cg *cg, const Access *a, const TileValue *v, int m, int e) {
    if (a->shape.packed && v->dtype == a->t->dtype && a->shape.pair == 2)
        return am_register(cg, v, am_index(a->shape, m, e));
    return am_pack(cg, a->t->dtype, number(cg, a, v, m, e), number(cg, a, v, m, e + 1));
}

// MFMA: four or eight columns of a lane at once.
static void store_units(Cg *cg, const Access *a, const TileValue *v, int m, Val at) {
    int axis = a->shape.col_axis, unit = am_unit(cg, axis);
    bool narrow = dtype_half(a->t->dtype);
    for (int e = 0; e < a->shape.n; e += unit) {
        Val w[8], col = am_column(cg, axis, e);
        int n = narrow ? unit / 2 : unit;
        for (int i = 0; i < n; i++)
            w[i] = narrow ? two(cg, a, v, m, e + 2 * i)
                          : LLVMBuildBitCast(cg->b, number(cg, a, v, m, e + i), cg->i32, "");
        Val in = column_inside(cg, a, col, greatest(cg, axis, e + unit - 1));
        Blk done = in ? cg_if(cg, in, "row") : NULL;
        Val to = step_by(cg, a, at, wide_index(cg, col));
        for (int i = 0; i < n; i += 4) {
            store_words(cg, to, w + i, n - i < 4 ? n - i : 4);
            to = step_by(cg, a, to, cg_i64(cg, narrow ? 8 : 4));
        }
        if (done) cg_end_if(cg, done);
    }
}

// WMMA: of sixteen columns each of a row's two lanes stores eight.
static void store_halves(Cg *cg, const Access *a, const TileValue *v, int m, Val at) {
    Val part = am_state(cg)->part;
    Val first = LLVMBuildICmp(cg->b, LLVMIntEQ, part, cg_i32(cg, 0), "");
    for (int e = 0; e < a->shape.n; e += 8) {
        Val pair[8], w[4];
        for (int i = 0; i < 8; i += 2)
            if (a->shape.packed && v->dtype == a->t->dtype)
                for (int h = 0; h < 2; h++)
                    pair[i + h] = am_register(cg, v, am_index(a->shape, m, e + i + h));
            else
                am_share_pairs(cg, two(cg, a, v, m, e + i), &pair[i]);
        for (int i = 0; i < 4; i++) w[i] = LLVMBuildSelect(cg->b, first, pair[i], pair[i + 4], "");
        Val col = cg_plus(cg, cg_times(cg, part, 8), 2 * e);
        Val in = column_inside(cg, a, col, 2 * e + 15);
        Blk done = in ? cg_if(cg, in, "row") : NULL;
        store_words(cg, step_by(cg, a, at, wide_index(cg, col)), w, 4);
        if (done) cg_end_if(cg, done);
    }
}

static void store_elements(Cg *cg, const Access *a, const TileValue *v, int m, Val at) {
    int axis = a->shape.col_axis;
    for (int e = 0; e < a->shape.n; e++) {
        Val col = am_column(cg, axis, e), in = column_inside(cg, a, col, greatest(cg, axis, e));
        Val x = cg_write(cg, number(cg, a, v, m, e), a->t->dtype);
        Blk done = in ? cg_if(cg, in, "row") : NULL;
        LLVMBuildStore(cg->b, x, step_by(cg, a, at, wide_index(cg, col)));
        if (done) cg_end_if(cg, done);
    }
}

// Both lanes of a row take the branch or neither: what WMMA's exchange is between.
static void store_row(Cg *cg, const Access *a, const TileValue *v, int m) {
    Val row = row_of(cg, a, m), in = LLVMBuildICmp(cg->b, LLVMIntSLT, row, a->nrows, "");
    if (!a->cols) // one number per row: one lane of each row
        in = LLVMBuildAnd(
            cg->b, in, LLVMBuildICmp(cg->b, LLVMIntEQ, am_state(cg)->part, cg_i32(cg, 0), ""), "");
    Blk done = cg_if(cg, in, "row");
    Val at = row_begin(cg, a, row);
    bool narrow = dtype_half(a->t->dtype);
    if (!a->cols)
        LLVMBuildStore(cg->b, cg_write(cg, number(cg, a, v, m, 0), a->t->dtype), at);
    else if (!a->whole || (am_state(cg)->wmma && !narrow))
        store_elements(cg, a, v, m, at);
    else if (am_state(cg)->wmma)
        store_halves(cg, a, v, m, at);
    else
        store_units(cg, a, v, m, at);
    cg_end_if(cg, done);
}

void am_store(Cg *cg, const TileOp *op) {
    const TileValue *v = op->args.data[0];
    Access a = access_of(cg, op, v);
    assert(a.row && "a store has the row axis");
    if (op->add) {
        diag_error(cg->diags, op->span, "a store that adds is not supported on %s",
                   cg->target->name);
        return;
    }
    for (int m = 0; m < a.shape.mt; m++) store_row(cg, &a, v, m);
}

// ---- loads: from an address inside the tensor, whatever is outside made 0

static Val load_element(Cg *cg, const Access *a, int m, int e) {
    Val row = row_of(cg, a, m), zero = cg_i32(cg, 0), col = zero;
    Val in = LLVMBuildICmp(cg->b, LLVMIntSLT, row, a->nrows, "");
    if (a->cols) {
        col = am_column(cg, a->shape.col_axis, e);
        in = LLVMBuildAnd(cg->b, in, LLVMBuildICmp(cg->b, LLVMIntSLT, col, columns_of(cg, a), ""),
                          "");
    }
    Val at = row_begin(cg, a, LLVMBuildSelect(cg->b, in, row, zero, ""));
    at = step_by(cg, a, at, wide_index(cg, LLVMBuildSelect(cg->b, in, col, zero, "")));
    Val x = LLVMBuildLoad2(cg->b, cg_dtype(cg, a->t->dtype), at, "");
    return cg_or_zero(cg, in, cg_read(cg, x, a->t->dtype));
}

// `n` words of the row from a column on.
static Val load_words(Cg *cg, const Access *a, int m, Val col, int n) {
    Val row = row_of(cg, a, m), zero = cg_i32(cg, 0);
    Val in = LLVMBuildICmp(cg->b, LLVMIntSLT, row, a->nrows, "");
    in = LLVMBuildAnd(cg->b, in, LLVMBuildICmp(cg->b, LLVMIntSLT, col, columns_of(cg, a), ""), "");
    Val at = row_begin(cg, a, LLVMBuildSelect(cg->b, in, row, zero, ""));
    at = step_by(cg, a, at, wide_index(cg, LLVMBuildSelect(cg->b, in, col, zero, "")));
    Val x = LLVMBuildLoad2(cg->b, cg_vector(cg->i32, n), at, "");
    LLVMSetAlignment(x, (unsigned)(4 * n));
    return cg_or_zero(cg, in, x);
}

// A narrow row whose values are kept as they come: 4 words at a time.
static void load_packed_row(Cg *cg, const Access *a, CgValue *value, int m) {
    const AmState *s = am_state(cg);
    AmShape f = a->shape;
    int n = s->wmma ? 4 : am_unit(cg, f.col_axis) / 2;
    for (int r = 0; r < f.n / f.pair; r += n) {
        Val col = s->wmma ? cg_i32(cg, 2 * r) : am_column(cg, f.col_axis, r * f.pair);
        Val x = load_words(cg, a, m, col, n);
        for (int i = 0; i < n; i++) value->e[am_index(f, m, 0) + r + i] = am_at(cg, x, i);
    }
}

static void load_row(Cg *cg, const Access *a, const TileValue *v, CgValue *value, int m) {
    AmShape f = a->shape;
    for (int e = 0; e < f.n; e += f.packed ? 2 : 1) {
        Val x = load_element(cg, a, m, e);
        if (!f.packed) {
            value->e[am_index(f, m, e)] = x;
            continue;
        }
        Val pair = am_pack(cg, v->dtype, x, load_element(cg, a, m, e + 1));
        if (f.pair == 2)
            value->e[am_index(f, m, e)] = pair;
        else
            am_share_pairs(cg, pair, &value->e[am_index(f, m, e)]);
    }
}

void am_load(Cg *cg, const TileOp *op) {
    const TileValue *v = op->results.data[0];
    Access a = access_of(cg, op, v);
    assert(a.shape.row_axis >= 0 && "a fragment that is loaded has the row axis");
    CgValue *value = cg_make(cg, v);
    for (int m = 0; m < a.shape.mt; m++)
        if (a.whole && a.shape.packed && v->dtype == a.t->dtype)
            load_packed_row(cg, &a, value, m);
        else
            load_row(cg, &a, v, value, m);
}
