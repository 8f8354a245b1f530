// chunk.c: values that go from an axis to the one beside it, and the inverse of a triangle between the two.
//
// In: a beside or an invert. Out: loops over vectors along what the result is contiguous in.
#include "codegen/host/host.h"

// Loops over a value's axes, the innermost in vectors along what it is contiguous in.
typedef struct Each {
    int along, lanes, n;
    HostLoop loops[TILE_MAX_RANK];
    Val index[TILE_MAX_AXES];
} Each;

static Each each(Cg *cg, const TileValue *v) {
    Each e = {.along = host_stride1(cg, v)};
    e.lanes = host_width(cg, e.along);
    for (int a = 0; a < TILE_MAX_AXES; a++) e.index[a] = cg_i64(cg, 0);
    for (int i = 0; i < v->rank; i++) {
        int a = v->axis[i];
        e.loops[e.n] = host_loop(cg, host_extent(cg, a), a == e.along ? e.lanes : 1);
        e.index[a] = e.loops[e.n++].i;
    }
    return e;
}

static void each_end(Cg *cg, Each *e) {
    while (e->n > 0) host_loop_end(cg, &e->loops[--e->n]);
}

void host_beside(Cg *cg, const TileOp *op) {
    const TileValue *v = op->results.data[0];
    int from = tile_beside_from(op), to = tile_beside_to(op);
    host_bind(cg, v);
    Each e = each(cg, v);
    e.index[from] = e.index[to];
    int along = e.along == to ? from : e.along;
    host_store(cg, v, e.index, host_load(cg, op->args.data[0], e.index, e.lanes, along));
    each_end(cg, &e);
}

// 1 where the two positions are the same.
static Val diagonal(Cg *cg, Val row, Val col, int lanes) {
    Val lane[64];
    for (int i = 0; i < lanes; i++) lane[i] = cg_i64(cg, i);
    Val at = lanes == 1
                 ? col
                 : cg_add(cg, cg_splat(cg, col, lanes), LLVMConstVector(lane, (unsigned)lanes));
    Val same = cg_same(cg, at, cg_splat(cg, row, lanes));
    return cg_select(cg, same, cg_splat(cg, cg_f32(cg, 1), lanes),
                     cg_splat(cg, cg_f32(cg, 0), lanes));
}

// W = (I - N)^-1, its element at (t, u) being row u of column t, so that W(t, :) = e_t + the sum over j > t of
// N(j, t) W(j, :). From the last row up; rows that are not made yet are those of I, and count 0 times.
void host_invert(Cg *cg, const TileOp *op) {
    const TileValue *v = op->results.data[0], *x = op->args.data[0];
    TileValue w = *v; // sums are of f32
    int row = v->axis[0], col = v->axis[1], n = host_extent(cg, row);
    w.dtype = DT_F32;
    host_bind(cg, v);
    Each e = each(cg, v);
    host_store(cg, &w, e.index,
               diagonal(cg, e.index[row], e.index[col], e.along == col ? e.lanes : 1));
    each_end(cg, &e);
    int lanes = e.along == col ? e.lanes : 1;
    Val index[TILE_MAX_AXES];
    HostLoop rows = host_loop(cg, n, 1), cols = host_loop(cg, n, lanes);
    Val t = cg_sub(cg, cg_i64(cg, n - 1), rows.i);
    index[row] = t, index[col] = cols.i;
    Val start = host_load(cg, &w, index, lanes, col);
    HostLoop terms = host_loop(cg, n, 1);
    Val sum = host_loop_phi(cg, &terms, start), j = terms.i;
    index[row] = j, index[col] = t;
    Val below = cg_icmp(cg, LLVMIntSGT, j, t);
    Val factor = cg_select(cg, below, host_load(cg, x, index, 1, -1), cg_f32(cg, 0));
    index[col] = cols.i;
    Val next = host_fma(cg, cg_splat(cg, factor, lanes), host_load(cg, &w, index, lanes, col), sum);
    host_loop_next(cg, &terms, sum, next);
    host_loop_end(cg, &terms);
    index[row] = t;
    host_store(cg, &w, index, next);
    host_loop_end(cg, &cols);
    host_loop_end(cg, &rows);
}
