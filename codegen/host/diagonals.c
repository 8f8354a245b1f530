// diagonals.c: a sum that is scattered by the distance of two positions.
//
// In: a store marked `diagonals` (ir/tile_marks.def). Out: the tile's diagonals are summed in a strip, in vectors; the places that they
// go to are found; and what is not 0 is added there under the tensor's lock.
#include "codegen/host/host.h"

typedef struct Strip {
    const TileOp *op;
    int along, other; // axes: the value is contiguous along the first
    int begin, n;     // number i is of places along - other == i - begin
    Val sums, places; // f32, i64
} Strip;

static Val element(Cg *cg, Ty t, Val strip, Val i) { return cg_element(cg, t, strip, i); }

static Val iota(Cg *cg, int lanes) {
    Val lane[64];
    for (int i = 0; i < lanes; i++) lane[i] = cg_i32(cg, i);
    return lanes == 1 ? lane[0] : LLVMConstVector(lane, (unsigned)lanes);
}

// How many places the axis has from one of the tile's on.
static Val left(Cg *cg, int axis, Val i) {
    Val at = cg_add(cg, cg_tile_begin(cg, axis), cg_trunc(cg, i, cg->i32));
    return cg_sub(cg, cg_axis_size(cg, axis), at);
}

static void sum_up(Cg *cg, const Strip *s) {
    int lanes = host_width(cg, s->along);
    HostLoop others = host_loop(cg, host_extent(cg, s->other), 1),
             vectors = host_loop(cg, host_extent(cg, s->along), lanes);
    Val index[TILE_MAX_AXES];
    index[s->other] = others.i, index[s->along] = vectors.i;
    Val x = host_load(cg, s->op->args.data[0], index, lanes, s->along);
    Val in = cg_less(cg, iota(cg, lanes), cg_splat(cg, left(cg, s->along, vectors.i), lanes));
    Val row = cg_icmp(cg, LLVMIntSGT, left(cg, s->other, others.i), cg_i32(cg, 0));
    in = cg_and(cg, in, cg_splat(cg, row, lanes));
    Val i = cg_sub(cg, vectors.i, others.i);
    Val p = element(cg, cg->f32, s->sums, cg_add(cg, i, cg_i64(cg, s->begin)));
    Val sum = cg_load(cg, cg_vector(cg->f32, lanes), p);
    LLVMSetAlignment(sum, 4);
    sum = cg_fadd(cg, sum, cg_or_zero(cg, in, x));
    LLVMSetAlignment(cg_store(cg, sum, p), 4);
    host_loop_end(cg, &vectors);
    host_loop_end(cg, &others);
}

static void find_places(Cg *cg, const Strip *s) {
    HostLoop all = host_loop(cg, s->n, 1);
    Val i = cg_trunc(cg, all.i, cg->i32), pos[TILE_MAX_AXES] = {NULL};
    i = cg_sub(cg, i, cg_i32(cg, s->begin));
    pos[s->along] = cg_add(cg, cg_tile_begin(cg, s->along), i);
    pos[s->other] = cg_tile_begin(cg, s->other);
    cg_store(cg, cg_scatter_offset(cg, s->op, pos), element(cg, cg->i64, s->places, all.i));
    host_loop_end(cg, &all);
}

static void add(Cg *cg, const Strip *s, Val base, Val exists) {
    HostLoop all = host_loop(cg, s->n, 1);
    Val x = cg_load(cg, cg->f32, element(cg, cg->f32, s->sums, all.i));
    Val some = cg_fcmp(cg, LLVMRealUNE, x, cg_f32(cg, 0));
    Blk done = cg_if(cg, cg_and(cg, exists, some), "diagonal");
    Val at = cg_load(cg, cg->i64, element(cg, cg->i64, s->places, all.i));
    Val p = element(cg, cg->f32, base, at);
    if (cg->p->tensors.data[s->op->tensor].exact)
        cg_exact_add(cg, x, p);
    else
        cg_store(cg, cg_fadd(cg, cg_load(cg, cg->f32, p), x), p);
    cg_end_if(cg, done);
    host_loop_end(cg, &all);
}

void host_add_diagonals(Cg *cg, const TileOp *op, Val base, Val exists) {
    const TileValue *v = op->args.data[0];
    Strip s = {.op = op, .along = host_stride1(cg, v)};
    s.other = v->axis[v->axis[0] == s.along];
    s.begin = host_extent(cg, s.other) - 1;
    s.n = s.begin + host_extent(cg, s.along);
    s.sums = cg_alloca(cg, LLVMArrayType2(cg->f32, (uint64_t)s.n), "sums");
    s.places = cg_alloca(cg, LLVMArrayType2(cg->i64, (uint64_t)s.n), "places");
    LLVMBuildMemSet(cg->b, s.sums, LLVMConstInt(cg->i8, 0, false), cg_i64(cg, 4 * (int64_t)s.n), 4);
    sum_up(cg, &s);
    find_places(cg, &s);
    Val lock = host_lock(cg, cg_pointer(cg, op->tensor));
    host_take_lock(cg, lock);
    add(cg, &s, base, exists);
    host_drop_lock(cg, lock);
}
