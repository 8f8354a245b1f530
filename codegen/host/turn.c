// turn.c: tiles whose rows lie along the lanes (q, o): squares of vectors, turned by shuffles.
//
// In: a tile of a tensor, row by row, and memory, column by column. Out: a call of a function of
// the module that moves it, one for each shape. Rows and columns outside the tensor read as 0 and
// are not stored.
//
//     for rows in steps of 16: for columns in steps of 16:
//         load 16 rows; 64 shuffles; store 16 columns
#include "codegen/host/host.h"

#include <assert.h>

enum { TENSOR, STRIDE, ROWS, COLUMNS, MEMORY, PITCH, PARAMS };

typedef struct Square {
    const HostTurn *t;
    Val p[PARAMS];
    Val row, column; // first, i64
    int used;        // columns that exist in memory
} Square;

static Val iota(Cg *cg, int lanes) {
    Val lane[64];
    for (int i = 0; i < lanes; i++) lane[i] = cg_i32(cg, i);
    return LLVMConstVector(lane, (unsigned)lanes);
}

// Rows become columns: log2(n) rounds, each interleaving the first half of the vectors with the
// second.
static void transpose(Cg *cg, Val *x, int n) {
    Val low[64], high[64], next[64];
    for (int i = 0; i < n; i++) {
        low[i] = cg_i32(cg, i / 2 + i % 2 * n);
        high[i] = cg_i32(cg, n / 2 + i / 2 + i % 2 * n);
    }
    Val first = LLVMConstVector(low, (unsigned)n), second = LLVMConstVector(high, (unsigned)n);
    for (int round = 1; round < n; round *= 2) {
        for (int i = 0; i < n / 2; i++) {
            next[2 * i] = LLVMBuildShuffleVector(cg->b, x[i], x[i + n / 2], first, "");
            next[2 * i + 1] = LLVMBuildShuffleVector(cg->b, x[i], x[i + n / 2], second, "");
        }
        for (int i = 0; i < n; i++) x[i] = next[i];
    }
}

static Val plus(Cg *cg, Val i, int by) { return cg_add(cg, i, cg_i64(cg, by)); }

static Val at(Cg *cg, Ty t, Val base, Val major, Val stride, Val minor) {
    Val i = cg_add(cg, cg_mul(cg, major, stride), minor);
    return cg_element(cg, t, base, i);
}

// Which elements of the square's row i are inside.
static Val row_mask(Cg *cg, const Square *s, int i, Val columns) {
    Val row = cg_trunc(cg, plus(cg, s->row, i), cg->i32);
    Val ok = cg_less(cg, row, s->p[ROWS]);
    return cg_and(cg, cg_splat(cg, ok, s->t->lanes), columns);
}

static Val column_mask(Cg *cg, const Square *s) {
    int n = s->t->lanes;
    Val column = cg_splat(cg, cg_trunc(cg, s->column, cg->i32), n);
    column = cg_add(cg, column, iota(cg, n));
    return cg_less(cg, column, cg_splat(cg, s->p[COLUMNS], n));
}

static Val row_address(Cg *cg, const Square *s, int i) {
    return at(cg, cg_dtype(cg, s->t->dtype), s->p[TENSOR], plus(cg, s->row, i), s->p[STRIDE],
              s->column);
}

static Val column_address(Cg *cg, const Square *s, int i) {
    return at(cg, cg->f32, s->p[MEMORY], plus(cg, s->column, i), s->p[PITCH], s->row);
}

static void load_square(Cg *cg, const Square *s) {
    const HostTurn *t = s->t;
    Ty types[] = {cg_vector(cg_dtype(cg, t->dtype), t->lanes), cg->ptr};
    Val x[64], columns = column_mask(cg, s);
    for (int i = 0; i < t->lanes; i++) {
        Val args[] = {row_address(cg, s, i), cg_i32(cg, dtype_bytes(t->dtype)),
                      row_mask(cg, s, i, columns), LLVMConstNull(types[0])};
        x[i] = cg_read(cg, cg_intrinsic(cg, "llvm.masked.load", types, 2, args, 4), t->dtype);
    }
    transpose(cg, x, t->lanes);
    for (int i = 0; i < s->used; i++)
        LLVMSetAlignment(cg_store(cg, cg_round(cg, x[i], t->round), column_address(cg, s, i)), 4);
}

static void store_square(Cg *cg, const Square *s) {
    const HostTurn *t = s->t;
    Ty types[] = {cg_vector(cg_dtype(cg, t->dtype), t->lanes), cg->ptr};
    Val x[64], columns = column_mask(cg, s);
    for (int i = 0; i < t->lanes; i++) {
        x[i] = LLVMConstNull(cg_vector(cg->f32, t->lanes));
        if (i >= s->used) continue;
        x[i] = cg_load(cg, cg_vector(cg->f32, t->lanes), column_address(cg, s, i));
        LLVMSetAlignment(x[i], 4);
    }
    transpose(cg, x, t->lanes);
    for (int i = 0; i < t->lanes; i++) {
        Val args[] = {cg_write(cg, x[i], t->dtype), row_address(cg, s, i),
                      cg_i32(cg, dtype_bytes(t->dtype)), row_mask(cg, s, i, columns)};
        cg_intrinsic(cg, "llvm.masked.store", types, 2, args, 4);
    }
}

static void square(Cg *cg, const Square *s) {
    if (s->t->load)
        load_square(cg, s);
    else
        store_square(cg, s);
}

static void body(Cg *cg, const HostTurn *t, Val fn) {
    Square s = {.t = t};
    for (int i = 0; i < PARAMS; i++) s.p[i] = LLVMGetParam(fn, (unsigned)i);
    s.p[PITCH] = LLVMIsConstant(t->pitch) ? t->pitch : s.p[PITCH];
    HostLoop rows = host_loop(cg, t->rows, t->lanes);
    s.row = rows.i;
    int whole = t->columns / t->lanes * t->lanes;
    if (whole) {
        HostLoop columns = host_loop(cg, whole, t->lanes);
        s.column = columns.i;
        s.used = t->lanes;
        square(cg, &s);
        host_loop_end(cg, &columns);
    }
    if (t->columns > whole) {
        s.column = cg_i64(cg, whole);
        s.used = t->columns - whole;
        square(cg, &s);
    }
    host_loop_end(cg, &rows);
}

void host_turn(Cg *cg, const HostTurn *t) {
    Ty params[PARAMS] = {cg->ptr, cg->i64, cg->i32, cg->i32, cg->ptr, cg->i64};
    assert(t->rows % t->lanes == 0 && LLVMIsAConstantInt(t->pitch));
    const char *name = arena_printf(
        cg->arena, "attn.turn_%s_%s_%s_%dx%d_%lld", t->load ? "in" : "out", dtype_name(t->dtype),
        dtype_name(t->round), t->rows, t->columns, LLVMConstIntGetSExtValue(t->pitch));
    HostFunction f;
    if (host_function(cg, &f, name, params, PARAMS)) {
        body(cg, t, f.fn);
        host_function_end(cg, &f);
    }
    Val args[PARAMS] = {t->tensor,         t->stride, t->inside_rows,
                        t->inside_columns, t->memory, t->pitch};
    host_call(cg, &f, args, PARAMS);
}
