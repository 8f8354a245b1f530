// tensor.c: tiles of tensors into memory and back.
//
// In: a load or a store. Out: loops of vector moves; outside the tensor a load gives 0 and a store
// does nothing.
//
//     a view       f32 without the lane axis, wholly inside: the value is the tensor's own memory
//     transposed   the lane axis is a row of the tensor (q, o): turn.c
//     straight     everything else: vectors along what the value is contiguous in, gathered or
//                  scattered where the tensor is not
//
// What several tiles may add to is added under a lock: a whole tile at a time, in vectors.
//
// Where masked moves are slow (AVX-512 alone has quick ones), a tile that lies wholly inside goes without.
#include "codegen/host/host.h"

#include <assert.h>

typedef struct Access {
    const TileOp *op;
    const TileValue *v;
    Dtype dtype; // of the tensor
    int rank;
    int dim_of[TILE_MAX_AXES]; // which dimension an axis of the value is
    Val first[TILE_MAX_DIMS];  // i32: the tile's first position
    Val extent[TILE_MAX_DIMS]; // i32
    Val stride[TILE_MAX_DIMS]; // i64
    Val base;                  // of the tile's first element; may lie outside
    Val exists;                // the scalar coordinates are inside
    bool each;                 // some coordinate is said for each place along an axis
    bool exact;                // of sums (exact_sums.c)
    bool masked;
    Val index[TILE_MAX_AXES];
} Access;

// ---- addresses

static Access access(Cg *cg, const TileOp *op, const TileValue *v) {
    const TileTensor *t = &cg->p->tensors.data[op->tensor];
    Access a = {.op = op,
                .v = v,
                .dtype = t->dtype,
                .rank = t->rank,
                .exact = t->exact,
                .exists = LLVMConstInt(cg->i1, 1, false)};
    Val offset = cg_i64(cg, 0);
    if (tensor_may_be_absent(t->role)) // left out: all of it is outside
        a.exists = LLVMBuildIsNotNull(cg->b, cg_pointer(cg, op->tensor), "");
    for (int i = 0; i < TILE_MAX_AXES; i++) a.dim_of[i] = -1, a.index[i] = cg_i64(cg, 0);
    for (int d = 0; d < t->rank; d++) {
        const TileCoord *c = &op->coord[d];
        a.extent[d] =
            op->width && d == t->rank - 1 ? cg_i32(cg, op->width) : cg_extent(cg, op->tensor, d);
        a.stride[d] = cg_stride(cg, op->tensor, d);
        a.each |= op->each[d];
        if (op->each[d]) continue;
        a.first[d] = cg_uniform(cg, c->at);
        if (c->axis >= 0) {
            a.dim_of[c->axis] = d;
            a.first[d] = cg_times(cg, a.first[d], host_extent(cg, c->axis));
        } else {
            Val in = cg_icmp(cg, LLVMIntULT, a.first[d], a.extent[d]);
            a.exists = cg_and(cg, a.exists, in);
        }
        Val at = cg_sext(cg, a.first[d], cg->i64);
        offset = cg_add(cg, offset, cg_mul(cg, at, a.stride[d]));
    }
    a.base = cg_element(cg, cg_dtype(cg, t->dtype), cg_origin(cg, op), offset);
    return a;
}

// Whether the axis has all places of its tile.
static Val whole_tile(Cg *cg, int axis) {
    Val left = cg_sub(cg, cg_axis_size(cg, axis), cg_tile_begin(cg, axis));
    return cg_icmp(cg, LLVMIntSGE, left, cg_i32(cg, host_extent(cg, axis)));
}

// Whether the whole tile lies inside the tensor.
static Val inside(Cg *cg, const Access *a) {
    Val ok = a->exists;
    for (int i = 0; i < a->v->rank; i++)
        if (tile_goes_by_element(a->op, a->v->axis[i]))
            ok = cg_and(cg, ok, whole_tile(cg, a->v->axis[i]));
    for (int d = 0; d < a->rank; d++) {
        int axis = a->op->coord[d].axis;
        if (axis < 0 || a->op->each[d]) continue;
        Val low = cg_icmp(cg, LLVMIntSGE, a->first[d], cg_i32(cg, 0));
        Val last = cg_sub(cg, a->extent[d], cg_i32(cg, host_extent(cg, axis)));
        Val high = cg_icmp(cg, LLVMIntSLE, a->first[d], last);
        ok = cg_and(cg, ok, cg_and(cg, low, high));
    }
    return ok;
}

static Val position(Cg *cg, const Access *a, int axis) {
    Val i = cg_trunc(cg, a->index[axis], cg->i32);
    return cg_add(cg, cg_tile_begin(cg, axis), i);
}

static Val address(Cg *cg, const Access *a) {
    Val at = cg_i64(cg, 0);
    Val pos[TILE_MAX_AXES] = {NULL};
    for (int i = 0; i < a->v->rank && a->each; i++) {
        int axis = a->v->axis[i];
        pos[axis] = position(cg, a, axis);
        at = cg_add(cg, at, cg_element_offset(cg, a->op, axis, pos[axis]));
    }
    if (tile_scatters(a->op)) at = cg_add(cg, at, cg_scatter_offset(cg, a->op, pos));
    for (int d = 0; d < a->rank; d++) {
        int axis = a->op->coord[d].axis;
        if (axis >= 0 && !a->op->each[d])
            at = cg_add(cg, at, cg_mul(cg, a->index[axis], a->stride[d]));
    }
    return cg_element(cg, cg_dtype(cg, a->dtype), a->base, at);
}

static Val iota(Ty t, int lanes) {
    Val lane[64];
    for (int i = 0; i < lanes; i++) lane[i] = LLVMConstInt(t, (uint64_t)i, false);
    return lanes == 1 ? lane[0] : LLVMConstVector(lane, (unsigned)lanes);
}

// Whole axes that are not padded: nothing to ask at run time.
static bool always_inside(Cg *cg, const Access *a, int d) {
    const Ex *extent = cg->p->tensors.data[a->op->tensor].extent[d], *at = a->op->coord[d].at;
    return ex_is_i32(at, 0) && extent->op == EX_CONST &&
           (d == a->rank - 1 ? tile_columns(cg->p, a->op) : extent->i) >=
               host_extent(cg, a->op->coord[d].axis);
}

// Which of the elements along an axis (-1: the one) from a->index on are inside; NULL: all are
// known to be.
static Val mask(Cg *cg, const Access *a, int along, int lanes) {
    if (!a->masked) return NULL;
    Val ok = a->exists, lane = NULL;
    for (int i = 0; i < a->v->rank; i++) {
        int axis = a->v->axis[i];
        if (!tile_goes_by_element(a->op, axis)) continue;
        ok = cg_and(cg, ok, cg_less(cg, position(cg, a, axis), cg_axis_size(cg, axis)));
    }
    for (int d = 0; d < a->rank; d++) {
        int axis = a->op->coord[d].axis;
        if (axis < 0 || a->op->each[d] || always_inside(cg, a, d)) continue;
        Val at = cg_add(cg, a->first[d], cg_trunc(cg, a->index[axis], cg->i32));
        if (axis == along && lanes > 1) {
            at = cg_add(cg, cg_splat(cg, at, lanes), iota(cg->i32, lanes));
            lane = cg_icmp(cg, LLVMIntULT, at, cg_splat(cg, a->extent[d], lanes));
        } else {
            ok = cg_and(cg, ok, cg_icmp(cg, LLVMIntULT, at, a->extent[d]));
        }
    }
    ok = cg_splat(cg, ok, lanes);
    return lane ? cg_and(cg, ok, lane) : ok;
}

// ---- moves of one vector; ok: which elements (NULL: all); others read as 0

static Val all(Cg *cg, Val ok, int lanes) {
    return ok ? ok : LLVMConstAllOnes(cg_vector(cg->i1, lanes));
}

// One element, behind a branch: the address may be outside.
static Val load_one(Cg *cg, Ty t, Val p, Val ok) {
    Val zero = LLVMConstNull(t);
    if (!ok) return cg_load(cg, t, p);
    Blk from = cg_here(cg), join = cg_if(cg, ok, "in"), yes = cg_here(cg);
    Val v = cg_load(cg, t, p);
    cg_enter(cg, join);
    return cg_join(cg, v, yes, zero, from);
}

static Val load_row(Cg *cg, const Access *a, int lanes, Val ok) {
    Ty t = cg_dtype(cg, a->dtype), vt = cg_vector(t, lanes);
    Val p = address(cg, a), x;
    if (a->exact) {
        Blk from = cg_here(cg), join = cg_if(cg, ok, "in");
        Val v = cg_exact_read(cg, p);
        if (!join) return v;
        Blk yes = cg_here(cg);
        cg_enter(cg, join);
        return cg_join(cg, v, yes, LLVMConstNull(t), from);
    }
    if (lanes == 1) {
        x = load_one(cg, t, p, ok);
    } else if (!ok) {
        x = cg_load(cg, vt, p);
        LLVMSetAlignment(x, (unsigned)dtype_bytes(a->dtype));
    } else {
        Ty types[] = {vt, cg->ptr};
        Val args[] = {p, cg_i32(cg, dtype_bytes(a->dtype)), ok, LLVMConstNull(vt)};
        x = cg_intrinsic(cg, "llvm.masked.load", types, 2, args, 4);
    }
    return cg_read(cg, x, a->dtype);
}

static void store_row(Cg *cg, const Access *a, int lanes, Val ok, Val x) {
    Val p = address(cg, a);
    x = cg_write(cg, x, a->dtype);
    if (!ok) {
        LLVMSetAlignment(cg_store(cg, x, p), (unsigned)dtype_bytes(a->dtype));
        return;
    }
    Ty types[] = {LLVMTypeOf(x), cg->ptr};
    Val args[] = {x, p, cg_i32(cg, dtype_bytes(a->dtype)), ok};
    assert(lanes > 1);
    cg_intrinsic(cg, "llvm.masked.store", types, 2, args, 4);
}

static Val strided(Cg *cg, const Access *a, int along, int lanes) {
    Val step = cg_splat(cg, a->stride[a->dim_of[along]], lanes);
    Val at = cg_mul(cg, iota(cg->i64, lanes), step);
    return cg_element(cg, cg_dtype(cg, a->dtype), address(cg, a), at);
}

static Val load_strided(Cg *cg, const Access *a, int along, int lanes, Val ok) {
    Val p = strided(cg, a, along, lanes);
    Ty vt = cg_vector(cg_dtype(cg, a->dtype), lanes), types[] = {vt, LLVMTypeOf(p)};
    Val args[] = {p, cg_i32(cg, dtype_bytes(a->dtype)), all(cg, ok, lanes), LLVMConstNull(vt)};
    return cg_read(cg, cg_intrinsic(cg, "llvm.masked.gather", types, 2, args, 4), a->dtype);
}

static void store_strided(Cg *cg, const Access *a, int along, int lanes, Val ok, Val x) {
    Val p = strided(cg, a, along, lanes);
    x = cg_write(cg, x, a->dtype);
    Ty types[] = {LLVMTypeOf(x), LLVMTypeOf(p)};
    Val args[] = {x, p, cg_i32(cg, dtype_bytes(a->dtype)), all(cg, ok, lanes)};
    cg_intrinsic(cg, "llvm.masked.scatter", types, 2, args, 4);
}

// Into the value's memory: what comes from a tensor of its own dtype needs no rounding.
static void keep(Cg *cg, const Access *a, Val x) {
    TileValue v = *a->v;
    if (v.dtype == a->dtype && dtype_reads(v.dtype) == EX_F32) v.dtype = DT_F32;
    host_store(cg, &v, (Val *)a->index, x);
}

// ---- adding

// A store of one element where there is no vector.
static void put_one(Cg *cg, const Access *a, Val ok, Val x) {
    Blk after = cg_if(cg, ok, "in");
    if (a->exact) {
        cg_exact_add(cg, x, address(cg, a));
        if (after) cg_enter(cg, after);
        return;
    }
    if (a->op->add) x = cg_fadd(cg, load_row(cg, a, 1, NULL), x);
    store_row(cg, a, 1, NULL, x);
    if (after) cg_enter(cg, after);
}

static void put(Cg *cg, const Access *a, int along, int lanes, bool row, Val ok, Val x) {
    if (lanes == 1) {
        put_one(cg, a, ok, x);
    } else if (row) {
        if (a->op->add) x = cg_fadd(cg, load_row(cg, a, lanes, ok), x);
        store_row(cg, a, lanes, ok, x);
    } else {
        if (a->op->add) x = cg_fadd(cg, load_strided(cg, a, along, lanes, ok), x);
        store_strided(cg, a, along, lanes, ok, x);
    }
}

// Whether each point of the grid adds to elements of its own: every dimension of it is a coordinate as it is.
static bool adds_alone(Cg *cg, const TileOp *op) {
    const TileTensor *t = &cg->p->tensors.data[op->tensor];
    for (int i = 0; i < cg->k->ngrid; i++) {
        const TileGrid *g = &cg->k->grid[i];
        bool is = false;
        for (int d = 0; d < t->rank; d++) {
            const Ex *at = op->coord[d].at;
            is |= at->op == EX_SYM && at->sym == g->sym &&
                  (g->sym != SYM_TILE || at->index == g->axis);
        }
        if (!is) return false;
    }
    return true;
}

// Whether what is added to the tensor are tiles of one kind: they are the same or have nothing in common.
static bool adds_alike(Cg *cg, const TileOp *op) {
    const TileBlock *body = &cg->k->body;
    for (const TileOp *u = tile_next(body, NULL); u; u = tile_next(body, u)) {
        if (u->kind != TILE_STORE || u->tensor != op->tensor) continue;
        if (tile_goes_by_element(u, -1)) return false;
        for (int d = 0; d < TILE_MAX_DIMS; d++)
            if (u->coord[d].axis != op->coord[d].axis) return false;
    }
    return true;
}

// ---- straight: loops over the value's axes, the innermost in vectors

static void straight(Cg *cg, Access *a) {
    bool load = a->op->kind == TILE_LOAD;
    int along = host_stride1(cg, a->v);
    if (along >= 0 && (a->exact || tile_goes_by_element(a->op, along)))
        along = -1; // each has its own address
    int lanes = host_width(cg, along);
    if (lanes == 1 && along < 0 && a->v->rank) along = a->v->axis[a->v->rank - 1];
    bool row = along >= 0 && a->dim_of[along] == a->rank - 1;
    HostLoop loops[TILE_MAX_RANK];
    int n = 0;
    for (int i = 0; i < a->v->rank; i++) {
        int axis = a->v->axis[i];
        if (axis == along) continue;
        loops[n] = host_loop(cg, host_extent(cg, axis), 1);
        a->index[axis] = loops[n++].i;
    }
    if (along >= 0) {
        loops[n] = host_loop(cg, host_extent(cg, along), lanes);
        a->index[along] = loops[n++].i;
    }
    Val ok = mask(cg, a, along, lanes);
    if (load) {
        keep(cg, a,
             row || lanes == 1 ? load_row(cg, a, lanes, ok)
                               : load_strided(cg, a, along, lanes, ok));
    } else {
        put(cg, a, along, lanes, row, ok, host_load(cg, a->v, a->index, lanes, along));
    }
    while (n > 0) host_loop_end(cg, &loops[--n]);
}

// ---- transposed

// How many of an axis' positions in the tile are inside. A tile that begins before the tensor is
// outside altogether.
static Val inside_along(Cg *cg, const Access *a, int axis) {
    int d = a->dim_of[axis];
    Val none = cg_i32(cg, 0), all = cg_i32(cg, host_extent(cg, axis));
    Val left = cg_sub(cg, a->extent[d], a->first[d]);
    Val low[] = {left, all}, ok = cg_icmp(cg, LLVMIntSGE, a->first[d], none);
    low[0] = cg_intrinsic(cg, "llvm.smin", &cg->i32, 1, low, 2);
    low[1] = none;
    Val n = cg_intrinsic(cg, "llvm.smax", &cg->i32, 1, low, 2);
    return cg_select(cg, cg_and(cg, ok, a->exists), n, none);
}

static void transposed(Cg *cg, Access *a, int rows, int columns) {
    HostLoop loops[TILE_MAX_RANK];
    int n = 0;
    Val exists = a->exists;
    for (int i = 0; i < a->v->rank; i++) {
        int axis = a->v->axis[i];
        if (axis == rows || axis == columns) continue;
        loops[n] = host_loop(cg, host_extent(cg, axis), 1);
        a->index[axis] = loops[n++].i;
        Val at = cg_add(cg, a->first[a->dim_of[axis]], cg_trunc(cg, a->index[axis], cg->i32));
        a->exists = cg_and(cg, a->exists, cg_icmp(cg, LLVMIntULT, at, a->extent[a->dim_of[axis]]));
    }
    HostTurn t = {.dtype = a->dtype,
                  .rows = host_extent(cg, rows),
                  .columns = host_extent(cg, columns),
                  .lanes = host_width(cg, rows)};
    t.load = a->op->kind == TILE_LOAD;
    t.round = t.load && a->v->dtype != a->dtype ? a->v->dtype : DT_F32;
    t.tensor = address(cg, a);
    t.stride = a->stride[a->dim_of[rows]];
    t.inside_rows = inside_along(cg, a, rows);
    t.inside_columns = inside_along(cg, a, columns);
    t.memory = host_element(cg, a->v, a->index);
    t.pitch = host_place(cg, a->v)->stride[host_axis_at(a->v, columns)];
    host_turn(cg, &t);
    a->exists = exists;
    while (n > 0) host_loop_end(cg, &loops[--n]);
}

// Squares are turned where the processor cannot gather and scatter (f32 with AVX-512: no slower in
// sum, and a tenth of the code).
static bool turns(Cg *cg, const Access *a) {
    int lane = host_lane(cg, a->v), last = a->rank ? a->op->coord[a->rank - 1].axis : -1;
    return !a->each && lane >= 0 && last >= 0 && last != lane && host_width(cg, lane) > 1 &&
           !a->op->add && dtype_reads(a->dtype) == EX_F32 &&
           !(host_of(cg)->avx512 && a->dtype == DT_F32);
}

// ---- the two operations

// Runs what is built by `whole` where the tile is inside, by `edge` elsewhere.
typedef struct Fork {
    Blk whole, edge, join;
} Fork;

static Fork fork_inside(Cg *cg, const Access *a) {
    Fork f = {cg_block(cg, "whole"), cg_block(cg, "edge"), cg_block(cg, "moved")};
    cg_branch(cg, inside(cg, a), f.whole, f.edge);
    return f;
}

static void straight_masked(Cg *cg, Access *a, bool masked) {
    a->masked = masked;
    straight(cg, a);
}

static void move(Cg *cg, Access *a) {
    if (turns(cg, a)) {
        transposed(cg, a, host_of(cg)->lane_axis, a->op->coord[a->rank - 1].axis);
        return;
    }
    // A row of f32 alone is not worth two loops.
    bool quick = dtype_bytes(a->dtype) == 4 ? host_of(cg)->avx512 || a->v->rank < 2
                                            : host_of(cg)->narrow_masks;
    if (quick) {
        straight_masked(cg, a, true);
        return;
    }
    Fork f = fork_inside(cg, a);
    straight_masked(cg, a, false);
    cg_br(cg, f.join);
    cg_at(cg, f.edge);
    straight_masked(cg, a, true);
    cg_end_if(cg, f.join);
}

static Val either(Cg *cg, const Fork *f, Blk edge, Val whole, Val other) {
    if (whole == other) return whole;
    Val phi = cg_phi(cg, LLVMTypeOf(whole));
    LLVMAddIncoming(phi, (Val[]){whole, other}, (Blk[]){f->whole, edge}, 2);
    return phi;
}

static void load_view(Cg *cg, Access *a) {
    HostPlace *p = host_place(cg, a->v);
    Fork f = fork_inside(cg, a);
    cg_br(cg, f.join);
    cg_at(cg, f.edge);
    straight_masked(cg, a, true);
    Blk edge = cg_here(cg);
    cg_end_if(cg, f.join);
    p->mem = either(cg, &f, edge, a->base, p->mem);
    for (int i = 0; i < a->v->rank; i++)
        p->stride[i] = either(cg, &f, edge, a->stride[a->dim_of[a->v->axis[i]]], p->stride[i]);
}

void host_tensor_load(Cg *cg, const TileOp *op) {
    const TileValue *v = op->results.data[0];
    host_bind(cg, v);
    Access a = access(cg, op, v);
    if (host_place(cg, v)->view)
        load_view(cg, &a);
    else
        move(cg, &a);
}

void host_tensor_store(Cg *cg, const TileOp *op) {
    Access a = access(cg, op, op->args.data[0]);
    Val lock = NULL;
    if (tile_is_marked(op, TILE_DIAGONALS)) {
        host_add_diagonals(cg, op, a.base, a.exists);
        return;
    }
    if (op->add && !adds_alone(cg, op))
        lock = host_lock(cg, adds_alike(cg, op) ? a.base : cg_pointer(cg, op->tensor));
    if (lock) host_take_lock(cg, lock);
    move(cg, &a);
    if (lock) host_drop_lock(cg, lock);
}
