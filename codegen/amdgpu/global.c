// global.c: fragments from and to global memory.
//
// In: a TILE_STORE of a fragment, a TILE_LOAD into one. Out: guarded accesses: a load outside a
// tensor gives 0, a store outside stores nothing. Rows whose columns the tensor aligns are moved
// by what a lane has in one piece.
#include "codegen/amdgpu/amdgpu.h"

#include <assert.h>

typedef struct Access {
    CgAccess is;
    int n;      // elements of a lane along the columns
    Val base;   // ptr addrspace(1): the tensor's element at (0, 0) of the tile's axes
    bool whole; // columns come in eights, at addresses that are multiples of 16
} Access;

static Val wide_index(Cg *cg, Val i) { return cg_sext(cg, i, cg->i64); }

static Val step_by(Cg *cg, const Access *a, Val from, Val elements) {
    return cg_element(cg, cg_dtype(cg, a->is.t->dtype), from, elements);
}

static Access access_of(Cg *cg, const TileOp *op, const TileValue *v) {
    Access a = {.is = cg_access(cg, op, v, cg_i64(cg, 0), 1, 1)};
    const TileTensor *t = a.is.t;
    a.n = am_elements(cg, a.is.f);
    Val p = cg_global(cg, cg_origin(cg, op));
    a.base = step_by(cg, &a, p, a.is.begin);
    a.whole = tile_is_matrix(t) && a.is.cols && tile_columns(cg->p, op) % 8 == 0 &&
              op->from_column % 8 == 0;
    return a;
}

static Val row_of(Cg *cg, const Access *a, int m) { return cg_plus(cg, a->is.row, am_row(cg, m)); }

static Val row_begin(Cg *cg, const Access *a, Val row) {
    return step_by(cg, a, a->base, cg_row_offset(cg, &a->is, row));
}

static Val columns_of(Cg *cg, const Access *a) {
    return a->is.ncols ? a->is.ncols : cg_i32(cg, a->is.cols);
}

// Where columns of the tile may be past the tensor's.
static Val column_inside(Cg *cg, const Access *a, Val col, int last) {
    if (last < a->is.cols && !a->is.ncols) return NULL;
    return cg_less(cg, col, columns_of(cg, a));
}

// Columns from a lane's part to the next one's. WMMA: in turn, also of what each lane has all of.
static int unit_of(Cg *cg, const Access *a) { return am_state(cg)->wmma ? 1 : am_unit(a->is.f); }

// This lane's element e.
static Val column_of(Cg *cg, const Access *a, int e) {
    Val mine = cg_times(cg, am_state(cg)->part, unit_of(cg, a));
    return cg_plus(cg, mine, am_column(cg, a->is.f, e));
}

// The greatest column that any lane's element e is.
static int greatest(Cg *cg, const Access *a, int e) {
    return am_column(cg, a->is.f, e) + (am_state(cg)->parts - 1) * unit_of(cg, a);
}

// ---- stores

static Val number(Cg *cg, const Access *a, int m, int e) { // as it reads
    return cg_number(cg, &a->is, am_row(cg, m), am_column(cg, a->is.f, e));
}

static void store_words(Cg *cg, Val at, const Val *w, int n) {
    LLVMSetAlignment(cg_store(cg, am_vector(cg, cg->i32, w, n), at), 4);
}

// Elements e and e + 1 of a row (WMMA: of both lanes' parts) in the tensor's type.
static Val two(Cg *cg, const Access *a, int m, int e) {
    if (am_pair(cg, a->is.f) == 2 && a->is.v->dtype == a->is.t->dtype)
        return am_held(cg, a->is.v, am_register(cg, a->is.f, m, e));
    return am_pack(cg, a->is.t->dtype, number(cg, a, m, e), number(cg, a, m, e + 1));
}

// MFMA: four or eight columns of a lane at once.
static void store_units(Cg *cg, const Access *a, int m, Val at) {
    int unit = am_unit(a->is.f);
    bool narrow = dtype_half(a->is.t->dtype);
    for (int e = 0; e < a->n; e += unit) {
        Val w[8], col = column_of(cg, a, e);
        int n = narrow ? unit / 2 : unit;
        for (int i = 0; i < n; i++)
            w[i] = narrow ? two(cg, a, m, e + 2 * i)
                          : cg_bitcast(cg, number(cg, a, m, e + i), cg->i32);
        Val in = column_inside(cg, a, col, greatest(cg, a, e + unit - 1));
        Blk done = cg_if(cg, in, "row");
        Val to = step_by(cg, a, at, wide_index(cg, col));
        for (int i = 0; i < n; i += 4) {
            store_words(cg, to, w + i, n - i < 4 ? n - i : 4);
            to = step_by(cg, a, to, cg_i64(cg, narrow ? 8 : 4));
        }
        cg_end_if(cg, done);
    }
}

// WMMA: of sixteen columns each of a row's two lanes stores eight.
static void store_halves(Cg *cg, const Access *a, int m, Val at) {
    Val part = am_state(cg)->part;
    Val first = cg_is(cg, part, 0);
    for (int e = 0; e < a->n; e += 8) {
        Val pair[8], w[4];
        for (int i = 0; i < 8; i += 2)
            if (a->is.f->each == 2 && a->is.v->dtype == a->is.t->dtype)
                for (int h = 0; h < 2; h++)
                    pair[i + h] = am_held(cg, a->is.v, am_register(cg, a->is.f, m, e + i + h));
            else
                am_share_pairs(cg, two(cg, a, m, e + i), &pair[i]);
        for (int i = 0; i < 4; i++) w[i] = cg_select(cg, first, pair[i], pair[i + 4]);
        Val col = cg_plus(cg, cg_times(cg, part, 8), 2 * e);
        Val in = column_inside(cg, a, col, 2 * e + 15);
        Blk done = cg_if(cg, in, "row");
        store_words(cg, step_by(cg, a, at, wide_index(cg, col)), w, 4);
        cg_end_if(cg, done);
    }
}

void am_add(Cg *cg, Val x, Val p) {
    Val args[] = {p, x};
    Ty types[] = {cg->f32, LLVMTypeOf(p), cg->f32};
    cg_intrinsic(cg, "llvm.amdgcn.global.atomic.fadd", types, 3, args, 2);
}

// One element, or what is added to it: of all that do so, in any order.
static void put(Cg *cg, const Access *a, Val x, Val at) {
    if (a->is.op->add)
        cg_add_to(cg, a->is.op->tensor, x, at);
    else
        cg_store(cg, x, at);
}

static void store_elements(Cg *cg, const Access *a, int m, Val at) {
    for (int e = 0; e < a->n; e++) {
        Val col = column_of(cg, a, e), in = column_inside(cg, a, col, greatest(cg, a, e));
        Val x = cg_write(cg, number(cg, a, m, e), a->is.t->dtype);
        Blk done = cg_if(cg, in, "row");
        put(cg, a, x, step_by(cg, a, at, wide_index(cg, col)));
        cg_end_if(cg, done);
    }
}

// Both lanes of a row take the branch or neither: what WMMA's exchange is between.
static void store_row(Cg *cg, const Access *a, int m) {
    Val row = row_of(cg, a, m), in = cg_less(cg, row, a->is.nrows);
    if (!a->is.cols) // one number per row: one lane of each row
        in = cg_and(cg, in, cg_is(cg, am_state(cg)->part, 0));
    Blk done = cg_if(cg, in, "row");
    Val at = row_begin(cg, a, row);
    bool narrow = dtype_half(a->is.t->dtype);
    if (!a->is.cols)
        put(cg, a, cg_write(cg, number(cg, a, m, 0), a->is.t->dtype), at);
    else if (!a->whole || a->is.op->add || (am_state(cg)->wmma && !narrow))
        store_elements(cg, a, m, at);
    else if (am_state(cg)->wmma)
        store_halves(cg, a, m, at);
    else
        store_units(cg, a, m, at);
    cg_end_if(cg, done);
}

void am_store(Cg *cg, const TileOp *op) {
    const TileValue *v = op->args.data[0];
    if (cg_goes_by_columns(cg, op, v)) {
        cg_store_elements(cg, op);
        return;
    }
    Access a = access_of(cg, op, v);
    assert(a.is.row && "a store has the row axis");
    for (int m = 0; m < cg_share(a.is.f, a.is.f->rows); m++) store_row(cg, &a, m);
}

// ---- loads: from an address inside the tensor, whatever is outside made 0

static Val load_element(Cg *cg, const Access *a, int m, int e) {
    Val row = row_of(cg, a, m), zero = cg_i32(cg, 0), col = zero;
    Val in = cg_less(cg, row, a->is.nrows);
    if (a->is.cols) {
        col = column_of(cg, a, e);
        in = cg_and(cg, in, cg_less(cg, col, columns_of(cg, a)));
    }
    Val at = row_begin(cg, a, cg_select(cg, in, row, zero));
    at = step_by(cg, a, at, wide_index(cg, cg_select(cg, in, col, zero)));
    if (a->is.t->exact) return cg_or_zero(cg, in, cg_exact_read(cg, at));
    Val x = cg_load(cg, cg_dtype(cg, a->is.t->dtype), at);
    return cg_or_zero(cg, in, cg_read(cg, x, a->is.t->dtype));
}

// `n` words of the row from a column on.
static Val load_words(Cg *cg, const Access *a, int m, Val col, int n) {
    Val row = row_of(cg, a, m), zero = cg_i32(cg, 0);
    Val in = cg_less(cg, row, a->is.nrows);
    in = cg_and(cg, in, cg_less(cg, col, columns_of(cg, a)));
    Val at = row_begin(cg, a, cg_select(cg, in, row, zero));
    at = step_by(cg, a, at, wide_index(cg, cg_select(cg, in, col, zero)));
    Val x = cg_load(cg, cg_vector(cg->i32, n), at);
    LLVMSetAlignment(x, (unsigned)(4 * n));
    return cg_or_zero(cg, in, x);
}

// A narrow row whose values are kept as they come: 4 words at a time.
static void load_packed_row(Cg *cg, const Access *a, CgValue *value, int m) {
    bool wmma = am_state(cg)->wmma;
    int n = wmma ? 4 : am_unit(a->is.f) / 2, pair = am_pair(cg, a->is.f);
    for (int r = 0; r < a->n / pair; r += n) {
        Val col = wmma ? cg_i32(cg, 2 * r) : column_of(cg, a, r * pair);
        Val x = load_words(cg, a, m, col, n);
        for (int i = 0; i < n; i++)
            value->e[am_register(cg, a->is.f, m, 0) + r + i] = am_at(cg, x, i);
    }
}

static void load_row(Cg *cg, const Access *a, CgValue *value, int m) {
    for (int e = 0; e < a->n; e += a->is.f->each) {
        Val x = load_element(cg, a, m, e), *to = &value->e[am_register(cg, a->is.f, m, e)];
        if (a->is.f->each == 1) {
            *to = x;
            continue;
        }
        Val pair = am_pack(cg, a->is.v->dtype, x, load_element(cg, a, m, e + 1));
        if (am_pair(cg, a->is.f) == 2)
            *to = pair;
        else
            am_share_pairs(cg, pair, to);
    }
}

void am_load(Cg *cg, const TileOp *op) {
    const TileValue *v = op->results.data[0];
    if (cg_goes_by_columns(cg, op, v)) {
        cg_load_elements(cg, op);
        return;
    }
    Access a = access_of(cg, op, v);
    assert(a.is.f->rows >= 0 && "a fragment that is loaded has the row axis");
    CgValue *value = cg_make(cg, v);
    for (int m = 0; m < cg_share(a.is.f, a.is.f->rows); m++)
        if (a.whole && a.is.f->each == 2 && v->dtype == a.is.t->dtype)
            load_packed_row(cg, &a, value, m);
        else
            load_row(cg, &a, value, m);
}
