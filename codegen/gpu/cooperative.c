// cooperative.c: maps whose results lie in the memory that a block shares, for GPUs: vectors along
// one axis. Each element is made by one of the block's threads, which walks the axis that is
// reduced, if any, or by some neighbours, which take pieces of it in turn.
//
// In: a TILE_MAP whose operands lie in shared memory. Out: its results there, readable behind the
// next barrier.
#include "codegen/gpu/gpu.h"

#include <assert.h>

enum {
    PIECE = 16,
    SUMS = 4,
    PIECES = 8
}; // bytes of a load; parts of a reduction that do not wait for each other; pieces of a step, whose loads do not either

typedef struct At { // the current element
    const TileOp *op;
    int axis;        // the vector's
    Val own, walked; // along it; along the other axis
    Val *piece;      // of each operand of two axes, from `walked` on; NULL: one at a time
    int in_piece;
    int shares; // threads that reduce the element together
} At;

static Val load(Cg *cg, const At *at, const TileValue *v, int n) {
    Val walked = cg_plus(cg, at->walked, at->in_piece);
    Val p = cg_shared_pointer(cg, v, at->axis, at->own, walked);
    Val x = cg_load(cg, cg_vector(cg_dtype(cg, v->dtype), n), p);
    if (n > 1) LLVMSetAlignment(x, PIECE);
    return x;
}

static Val operand(Cg *cg, CgElem *elem, int k) {
    const At *at = elem->ctx;
    const TileValue *v = at->op->args.data[k];
    assert(v->home == HOME_SHARED);
    Val x = at->piece && at->piece[k] ? cg_extract(cg, at->piece[k], cg_i32(cg, at->in_piece))
                                      : load(cg, at, v, 1);
    return cg_read(cg, x, v->dtype);
}

static Val position(Cg *cg, CgElem *elem, int axis) {
    const At *at = elem->ctx;
    Val in = axis == at->axis ? at->own : cg_plus(cg, at->walked, at->in_piece);
    return cg_add(cg, cg_tile_begin(cg, axis), in);
}

// How many elements of each operand are one load: rows of whole pieces, of one type.
static int piece_of(Cg *cg, const At *at, const TileResult *out) {
    const TileAxis *axis = &cg->k->axes[out->reduce_axis];
    int bytes = 0;
    for (int i = 0; i < at->op->args.n; i++) {
        const TileValue *v = at->op->args.data[i];
        if (v->rank < 2) continue;
        if (bytes && bytes != dtype_bytes(v->dtype)) return 1;
        bytes = dtype_bytes(v->dtype);
    }
    if (!cg_gpu(cg)->hooks->pieces || !bytes || !axis->whole || axis->size->op != EX_CONST)
        return 1;
    return axis->size->i % (PIECE / bytes) ? 1 : PIECE / bytes;
}

// As many as there are threads for. Widths are multiples of 16, so that whole warps have elements.
static int shares_of(Cg *cg, const At *at, const TileResult *out, int width) {
    int n = out->reduce == EX_CONST ? 1 : piece_of(cg, at, out), shares = 1;
    if (n == 1 || width % 16) return 1;
    int pieces = cg->k->axes[out->reduce_axis].size->i / n;
    while (2 * shares * width <= cg_gpu(cg)->threads && pieces % (2 * shares) == 0) shares *= 2;
    return shares;
}

// The elements from `walked` on into the sums, in turn.
static void add_piece(Cg *cg, CgElem *elem, const TileResult *out, int n, Val *sum) {
    At *at = elem->ctx;
    if (n > 1) at->piece = ARENA_ARRAY(cg->arena, Val, at->op->args.n);
    for (int i = 0; n > 1 && i < at->op->args.n; i++)
        if (at->op->args.data[i]->rank > 1) at->piece[i] = load(cg, at, at->op->args.data[i], n);
    for (int i = 0; i < n; i++) {
        at->in_piece = i;
        elem->memo = (ExMemo){0};
        sum[i % SUMS] = cg_merge(cg, out->reduce, sum[i % SUMS], cg_expr(cg, out->body, elem));
    }
    at->piece = NULL;
    at->in_piece = 0;
}

// Pieces that a step of the loop takes, where little else keeps the block busy: those of a constant size that divide it.
static int pieces_of(Cg *cg, const At *at, const TileResult *out, int n) {
    const TileAxis *axis = &cg->k->axes[out->reduce_axis];
    int pieces = PIECES;
    if (n == 1 || axis->size->op != EX_CONST) return 1;
    if (!tile_by_groups(cg->k) && !cg_recurs_back(cg)) return 1;
    while (axis->size->i % (n * at->shares * pieces)) pieces /= 2;
    return pieces;
}

// Of the current element: the body, or its reduction in a loop.
static Val made(Cg *cg, CgElem *elem, const TileResult *out) {
    At *at = elem->ctx;
    Val sum[SUMS], none = cg_f32(cg, ex_identity(out->reduce));
    if (out->reduce == EX_CONST) return cg_expr(cg, out->body, elem);
    int n = piece_of(cg, at, out), sums = n < SUMS ? n : SUMS;
    Val first = cg_times(cg, cg_and(cg, cg_gpu(cg)->tid, cg_i32(cg, at->shares - 1)), n);
    for (int i = 0; i < sums; i++) sum[i] = none;
    CgTurns t = cg_turns(cg, first, sum, sums);
    at->walked = t.i;
    for (int i = pieces_of(cg, at, out, n); i > 0; i--) {
        add_piece(cg, elem, out, n, sum);
        at->walked = cg_plus(cg, at->walked, n * at->shares);
    }
    const Ex *size = cg->k->axes[out->reduce_axis].size;
    cg_end_turns(cg, &t, at->walked, cg_less(cg, at->walked, cg_uniform(cg, size)), sum);
    for (int i = 1; i < sums; i++) sum[0] = cg_merge(cg, out->reduce, sum[0], sum[i]);
    for (int other = 1; other < at->shares; other *= 2)
        sum[0] = cg_merge(cg, out->reduce, sum[0], cg_gpu(cg)->hooks->exchange(cg, sum[0], other));
    return sum[0];
}

// The elements from `first` on, each by as many threads as share it.
static void chunk(Cg *cg, At *at, int i, int first, int width) {
    const TileValue *v = at->op->results.data[i];
    at->own = cg_plus(cg, cg_udiv(cg, cg_gpu(cg)->tid, cg_i32(cg, at->shares)), first);
    CgElem elem = {.lanes = 1, .param = operand, .pos = position, .lane_axis = -1, .ctx = at};
    Blk done = cg_if(cg, cg_below(cg, at->own, width), "vector");
    Val x = made(cg, &elem, &at->op->outs.data[i]);
    Val p = cg_shared_pointer(cg, v, at->axis, at->own, NULL);
    cg_store(cg, cg_write(cg, x, v->dtype), p); // the same by all that share it
    cg_enter(cg, done);
}

void cg_cooperative_map(Cg *cg, const TileOp *op) {
    for (int i = 0; i < op->results.n; i++) {
        const TileValue *v = op->results.data[i];
        assert(v->home == HOME_SHARED && v->rank == 1);
        int width = cg->k->axes[v->axis[0]].extent;
        At at = {.op = op, .axis = op->results.data[0]->axis[0]};
        at.shares = shares_of(cg, &at, &op->outs.data[i], width);
        cg_alloc(cg, v);
        if (cg_gpu(cg)->hooks->dots && cg_gpu(cg)->hooks->dots(cg, op, i)) continue;
        for (int first = 0; first < width; first += cg_gpu(cg)->threads / at.shares)
            chunk(cg, &at, i, first, width);
    }
}
