// lower.c: one kernel to one LLVM function: the grid, the loops, and the walk over operations.
//
// In: a scheduled kernel and a target's hooks. Out: a function cg->fn and its argument list
// cg->args. Holds afterwards: every operation was lowered in program order by the target's hook; a
// loop has the shape
//
//     pre -> head [step < to?] -> test [where?] -> work ... -> latch -> head,     head -> exit
//
// and carried values in registers are phis of `head`, with what `where` skipped merged in `latch`.
#include "codegen/cg.h"
#include "codegen/lanes.h"

#include <assert.h>
#include <string.h>

// ---- loops

static void bind_phis(Cg *cg, CgLoop *l) {
    const TileOp *op = l->op;
    for (int i = 0; i < op->carried.n; i++) {
        const CgValue *init = &cg->value[op->args.data[i]->id];
        CgValue *to = &cg->value[op->carried.data[i]->id];
        if (!init->n) continue;
        *to = (CgValue){ARENA_ARRAY(cg->arena, Val, init->n), init->n, NULL};
        for (int e = 0; e < init->n; e++) {
            to->e[e] = cg_phi(cg, LLVMTypeOf(init->e[e]));
            LLVMAddIncoming(to->e[e], &init->e[e], &l->pre, 1);
        }
    }
}

// In `latch`: the next value of each element, from the body's end or, where the step was skipped,
// unchanged.
static void merge_phis(Cg *cg, CgLoop *l, const TileOp *yield) {
    const TileOp *op = l->op;
    for (int i = 0; i < op->carried.n; i++) {
        const CgValue *now = &cg->value[op->carried.data[i]->id];
        const CgValue *next = &cg->value[yield->args.data[i]->id];
        assert(now->n == next->n);
        for (int e = 0; e < now->n; e++) {
            Val v = next->e[e];
            if (op->where) {
                v = cg_phi(cg, LLVMTypeOf(v));
                LLVMAddIncoming(v, (Val[]){next->e[e], now->e[e]}, (Blk[]){l->work_end, l->test},
                                2);
            }
            LLVMAddIncoming(now->e[e], &v, &l->latch, 1);
        }
    }
}

static void loop_head(Cg *cg, CgLoop *l, Val from, Val to) {
    cg_at(cg, l->head);
    l->step = LLVMBuildPhi(cg->b, cg->i32, "step");
    LLVMAddIncoming(l->step, &from, &l->pre, 1);
    bind_phis(cg, l);
    cg_fork(cg, cg_less(cg, l->step, to), l->test, l->exit);
}

static void loop_test(Cg *cg, CgLoop *l) {
    cg_at(cg, l->test);
    cg->step = l->step;
    cg->tile[l->op->axis] = l->op->index ? cg_uniform(cg, l->op->index) : l->step;
    if (!l->op->where) return;
    Blk work = cg_block(cg, "loop.work");
    Val take = cg_uniform(cg, l->op->where);
    l->test = cg_here(cg);
    cg_branch(cg, take, work, l->latch);
}

static void loop_latch(Cg *cg, CgLoop *l, const TileOp *yield) {
    LLVMMoveBasicBlockAfter(l->latch, cg_here(cg));
    LLVMMoveBasicBlockAfter(l->exit, l->latch);
    cg_at(cg, l->latch);
    merge_phis(cg, l, yield);
    Val next = LLVMBuildNSWAdd(cg->b, l->step, cg_i32(cg, 1), "");
    LLVMAddIncoming(l->step, &next, &l->latch, 1);
    cg_br(cg, l->head);
}

static void lower_loop(Cg *cg, const TileOp *op) {
    int crossings = cg->crossings;
    bool passed_by = cg->passed_by;
    Val step = cg->step, tile = cg->tile[op->axis];
    Val from = cg_uniform(cg, op->from), to = cg_uniform(cg, op->to);
    CgLoop l = {.op = op, .head = cg_block(cg, "loop.head"), .test = cg_block(cg, "loop")};
    l.latch = cg_block(cg, "loop.latch"), l.exit = cg_block(cg, "loop.exit");
    if (cg->hooks->loop_begin) cg->hooks->loop_begin(cg, &l);
    l.pre = cg_here(cg);
    cg_br(cg, l.head);
    loop_head(cg, &l, from, to);
    loop_test(cg, &l);
    const TileOp *yield = op->body.last;
    assert(yield && yield->kind == TILE_YIELD);
    cg->passed_by = false;
    cg_lower_block(cg, &op->body, &l);
    cg->passed_by = passed_by || cg->crossings != crossings;
    l.work_end = cg_here(cg);
    cg_br(cg, l.latch);
    loop_latch(cg, &l, yield);
    cg_at(cg, l.exit);
    for (int i = 0; i < op->results.n; i++)
        cg->value[op->results.data[i]->id] = cg->value[op->carried.data[i]->id];
    if (cg->hooks->loop_end) cg->hooks->loop_end(cg, &l);
    cg->step = step;
    cg->tile[op->axis] = tile;
}

static void lower_op(Cg *cg, const TileOp *op) {
    if (!tile_has_lanes(cg->k)) {
        cg->hooks->op(cg, op);
        return;
    }
    CgLanes l = cg->hooks->lanes(cg);
    cg_lanes_op(cg, &l, op);
}

static bool may_be_absent(const Cg *cg, const TileOp *store) {
    return tensor_traits(cg->p->tensors.data[store->tensor].role)->optional;
}

static bool is_optional(const Cg *cg, const TileOp *store) {
    return store->when || may_be_absent(cg, store);
}

// An extra output that the caller left out comes as a null pointer and is not stored. What a store
// behind a `next` asks is about the previous tile (codegen/nvptx/sm90.c).
static void lower_optional_store(Cg *cg, const TileOp *op) {
    Val yes = LLVMConstInt(cg->i1, 1, false);
    if (may_be_absent(cg, op)) yes = LLVMBuildIsNotNull(cg->b, cg_pointer(cg, op->tensor), "");
    if (op->when && !op->behind) yes = cg_and(cg, yes, cg_uniform(cg, op->when));
    Blk after = cg_if(cg, yes, "store");
    lower_op(cg, op);
    cg_end_if(cg, after);
}

// What is absent is 0, in registers. (The host's kernels see it as a tensor without elements.)
static void lower_optional_load(Cg *cg, const TileOp *op) {
    Blk before = cg_here(cg);
    Blk done = cg_if(cg, LLVMBuildIsNotNull(cg->b, cg_pointer(cg, op->tensor), ""), "state0");
    lower_op(cg, op);
    Blk loaded = cg_here(cg);
    cg_end_if(cg, done);
    CgValue *value = &cg->value[op->results.data[0]->id];
    for (int i = 0; i < value->n; i++) {
        Val x = value->e[i], none = LLVMConstNull(LLVMTypeOf(x));
        value->e[i] = cg_phi(cg, LLVMTypeOf(x));
        LLVMAddIncoming(value->e[i], (Val[]){none, x}, (Blk[]){before, loaded}, 2);
    }
}

static bool load_is_optional(const Cg *cg, const TileOp *op) {
    bool parts = cg->p->phase == PHASE_COMBINE; // takes states, all of them
    return cg->target->kind != KIND_HOST && !parts &&
           tensor_may_be_absent(cg->p->tensors.data[op->tensor].role);
}

void cg_lower_block(Cg *cg, const TileBlock *b, CgLoop *loop) {
    for (const TileOp *op = b->first; op; op = op->next) {
        if (op->kind == TILE_STORE && is_optional(cg, op)) {
            lower_optional_store(cg, op);
        } else if (op->kind == TILE_LOAD && load_is_optional(cg, op)) {
            lower_optional_load(cg, op);
        } else if (op->kind == TILE_LOOP) {
            lower_loop(cg, op);
        } else if (op->kind == TILE_YIELD) {
            if (cg->hooks->loop_yield) cg->hooks->loop_yield(cg, loop, op);
        } else if (!tile_is_marked(op, TILE_WITHIN)) { // what is within another is lowered there
            cg->passed_by = cg->passed_by && op->kind != TILE_BARRIER;
            lower_op(cg, op);
        }
    }
}

// ---- the grid

// Copies have landed and are read when a block goes on with its next tile.
static void end_tile(Cg *cg) {
    const TileOp wait = {.kind = TILE_WAIT}, barrier = {.kind = TILE_BARRIER};
    if (cg->target->kind == KIND_NVPTX) cg->hooks->op(cg, &wait);
    if (cg->target->kind != KIND_HOST) cg->hooks->op(cg, &barrier);
}

static void tiles_from(Cg *cg, const CgGrid *grid, int d);

// Of a dimension that is shared: its first tile is `first`, and so on every count-th while there are any. In each of them those of the
// dimensions from `inner` on.
static void tiles_along(Cg *cg, const CgGrid *grid, int d, Val first, int inner) {
    const TileGrid *g = &cg->k->grid[d];
    Val end = g->batch ? NULL : cg_uniform(cg, g->shared);
    Blk pre = cg_here(cg), head = cg_block(cg, "tiles"), work = cg_block(cg, "tile"),
        done = cg_block(cg, "tiles.done");
    cg_enter(cg, head);
    Val tile = cg->tile[g->axis] = cg_phi(cg, cg->i32);
    Val is = g->batch ? cg_find_tile(cg, g, tile, &end) : cg_less(cg, tile, end);
    cg_branch(cg, is, work, done);
    tiles_from(cg, grid, inner);
    end_tile(cg);
    Val next = LLVMBuildNSWAdd(cg->b, tile, grid->count[d], "");
    LLVMAddIncoming(tile, (Val[]){first, next}, (Blk[]){pre, cg_here(cg)}, 2);
    if (g->batch) // which takes long to find
        cg_fork(cg, cg_less(cg, next, end), head, done);
    else
        cg_br(cg, head);
    // What is alike for all tiles would be held beside the accumulator. Of predicates there are seven: copies took turns with one of them,
    // and a step's instructions took 5070 cycles for 2579.
    if (cg->target->kind == KIND_NVPTX) cg_hoist_nothing(cg);
    cg_go_on(cg, done);
}

// All tiles of a sequence that the point has, of each dimension that is shared, the first of which is d or behind it.
static void tiles_from(Cg *cg, const CgGrid *grid, int d) {
    while (d < cg->k->ngrid && (!cg->k->grid[d].shared || cg->k->grid[d].batch)) d++;
    if (d == cg->k->ngrid)
        cg_lower_block(cg, &cg->k->body, NULL);
    else
        tiles_along(cg, grid, d, cg->tile[cg->k->grid[d].axis], d + 1);
}

// The point that is number `tile`, where points are numbered from both ends by turns.
static Val from_ends(Cg *cg, const TileGrid *g, Val count, Val tile) {
    Val one = cg_i32(cg, 1), half = cg_lshr(cg, tile, one), last = cg_sub(cg, count, one);
    Val back = cg_is(cg, cg_and(cg, tile, one), 1), ends = cg_is(cg, cg_uniform(cg, g->ends), 0);
    Val by_turns = cg_select(cg, back, cg_sub(cg, last, half), half);
    return cg_select(cg, ends, tile, by_turns);
}

// Those that the point has, of all sequences where a dimension goes over them.
static void tiles(Cg *cg, const CgGrid *grid) {
    int d = 0;
    while (d < cg->k->ngrid && !cg->k->grid[d].batch) d++;
    if (d == cg->k->ngrid) {
        cg_meet_sequence(cg);
        if (cg->hooks->met) cg->hooks->met(cg);
        tiles_from(cg, grid, 0);
        return;
    }
    const TileGrid *g = &cg->k->grid[d];
    tiles_along(cg, grid, d, from_ends(cg, g, grid->count[d], cg->tile[g->axis]), 0);
}

static void grid_point(Cg *cg, Val index) {
    CgGrid grid = cg_grid(cg);
    Val at[TILE_MAX_GRID];
    if (grid.each) { // its roles find theirs
        cg_lower_block(cg, &cg->k->body, NULL);
        return;
    }
    cg_grid_point(cg, &grid, index, at);
    cg_grid_stand(cg, at);
    tiles(cg, &grid);
}

// NULL with an error: another kernel of the module has it.
const char *cg_symbol(Cg *cg, const TileKernel *k) {
    char *s = arena_strdup(cg->arena, k->name);
    for (char *c = s; *c; c++)
        if (!((*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') || (*c >= '0' && *c <= '9')))
            *c = '_';
    for (int i = 0; i < cg->made.n; i++)
        if (!strcmp(cg->made.data[i].symbol, s)) {
            diag_error(cg->diags, (Span){0}, "two kernels are called '%s'", s);
            return NULL;
        }
    return s;
}

bool cg_kernel(Cg *cg, const TileProgram *p, const TileKernel *k, const char *symbol) {
    cg->p = p;
    cg->k = k;
    cg->symbol = symbol;
    cg->value = ARENA_ARRAY(cg->arena, CgValue, k->nvalues + 1);
    cg->fragment = ARENA_ARRAY(cg->arena, struct CgFragment *, k->nvalues + 1);
    cg->thread_part = NULL;
    cg->grid_b = cg->grid_h = cg->step = cg_i32(cg, 0);
    for (int i = 0; i < TILE_MAX_AXES; i++) cg->tile[i] = cg_i32(cg, 0);
    memset(&cg->maps, 0, sizeof cg->maps);
    cg->arguments = NULL;
    cg->outlines = (ExMemo){0};
    cg_find_exact(cg);
    cg_collect_args(cg);
    cg->launch = (CgLaunch){.symbol = symbol, .threads = 1, .cluster = 1};
    int errors = cg->diags->errors;
    cg->hooks->begin_kernel(cg);
    if (cg->diags->errors != errors) return false;
    cg->hooks->grid(cg, grid_point);
    cg->hooks->end_kernel(cg);
    cg->launch.args = cg->args.data;
    cg->launch.nargs = cg->args.n;
    cg->launch.maps = cg->maps.data;
    cg->launch.nmaps = cg->maps.n;
    VEC_PUSH(cg->arena, &cg->made, cg->launch);
    return cg->diags->errors == errors;
}
