// nvptx_skip.c: work that a mask leaves nothing of.
//
// In: the operations of a loop over tiles that are partly masked. A step whose keys are all masked
// for some rows leaves what the loop carries of these rows as it was: their scores are -inf, of
// which every state gets its identity (ir/stream.h). So the work of a step can be left out where
// nothing takes part:
//
//   * by warps, where the mask is an interval of keys for each row: a warp whose rows' intervals
//   miss the tile goes past the products and maps
//     that stand between two barriers. Of the tiles on a diagonal that is a quarter of the warps.
//   * by blocks, where the mask depends on data and the step fetches its own tiles: each thread
//   looks at the elements that are its own, the
//     barrier that begins the step says whether anyone found one, and if not, nothing is fetched.
#include "codegen/nvptx.h"

#include <assert.h>
#include <math.h>

struct NvSkip {
    const TileOp *loop; // whose step is at hand
    const TileOp *map;  // that masks
    const Ex *mask;     // NULL: nothing to test
    int key_axis;
    Val live;         // i1: this warp has work in the step
    Blk before, join; // of the open part; join NULL: none is open
    const TileOp *first;
    bool whole; // the part goes on to the end of the step
};

// ---- the mask of a step

typedef struct Find {
    const Ex *mask;
    int key_axis;
} Find;

static bool uses_key(const Ex *e, int axis) { return ex_uses(e, SYM_POS, axis); }

// `select(mask, score, -inf)` where the mask depends on the key.
static void find_mask(void *ctx, const Ex *e) {
    Find *f = ctx;
    if (f->mask || e->op != EX_SELECT || e->type != EX_F32 || !ex_is_f32(e->args[2], -INFINITY))
        return;
    if (uses_key(e->args[0], f->key_axis)) f->mask = e->args[0];
}

static const Ex *mask_of(const TileOp *loop, const TileOp **map) {
    Find f = {NULL, loop->axis};
    for (const TileOp *op = loop->body.first; op && !f.mask; op = op->next)
        for (int i = 0; op->kind == TILE_MAP && i < op->outs.n && !f.mask; i++) {
            ex_visit(op->outs.data[i].body, find_mask, &f);
            *map = op;
        }
    return f.mask;
}

// Every operand that an expression names is there already.
static void need_operand(void *ctx, const Ex *e) {
    const TileOp **map = ctx;
    if (e->op == EX_SYM && e->sym == SYM_PARAM && *map &&
        (*map)->args.data[e->index]->home == HOME_SHARED)
        *map = NULL;
}

static bool ready(Cg *cg, const TileOp *map, const Ex *e) {
    const TileOp *ok = map;
    ex_visit(e, need_operand, &ok);
    if (!ok) return false;
    for (int i = 0; i < map->args.n; i++)
        if (ex_uses(e, SYM_PARAM, i) && !cg->value[map->args.data[i]->id].e) return false;
    return true;
}

// ---- by rows: intervals

// The bound of the key that a comparison is, NULL where it is none; *upper: the key is at most it.
static const Ex *bound_of(const Ex *e, int axis, bool *upper) {
    if (e->op != EX_LE) return NULL;
    for (int i = 0; i < 2; i++) {
        const Ex *key = e->args[i], *other = e->args[1 - i];
        if (key->op != EX_SYM || key->sym != SYM_POS || key->index != axis || uses_key(other, axis))
            continue;
        *upper = i == 0;
        return other;
    }
    return NULL;
}

// For one row: no bound in the conjunction excludes the whole tile. Adds to *live (NULL: nothing
// was said yet).
static void row_may(Cg *cg, const NvSkip *k, const Ex *e, int m, int r, Val first, Val last,
                    Val *live) {
    if (e->op == EX_AND) {
        row_may(cg, k, e->args[0], m, r, first, last, live);
        row_may(cg, k, e->args[1], m, r, first, last, live);
        return;
    }
    bool upper;
    const Ex *bound = bound_of(e, k->key_axis, &upper);
    if (!bound || !ready(cg, k->map, bound)) return;
    Val b = nv_at(cg, k->map, bound, m, 0, r, 0);
    Val in = LLVMBuildICmp(cg->b, upper ? LLVMIntSGE : LLVMIntSLE, b, upper ? first : last, "");
    *live = *live ? LLVMBuildAnd(cg->b, *live, in, "") : in;
}

static Val vote(Cg *cg, Val any) {
    Val v[] = {cg_i32(cg, -1), any};
    return cg_intrinsic(cg, "llvm.nvvm.vote.any.sync", NULL, 0, v, 2);
}

// Some row of the thread; NULL: not known.
static Val rows_may(Cg *cg, const NvSkip *k) {
    int extent = cg->k->axes[k->key_axis].extent;
    Val first = LLVMBuildMul(cg->b, cg->tile[k->key_axis], cg_i32(cg, extent), ""), any = NULL;
    Val last = LLVMBuildAdd(cg->b, first, cg_i32(cg, extent - 1), "");
    for (int m = 0; m < nv_state(cg)->mt; m++)
        for (int r = 0; r < 2; r++) {
            Val live = NULL;
            row_may(cg, k, k->mask, m, r, first, last, &live);
            if (!live) return NULL;
            any = any ? LLVMBuildOr(cg->b, any, live, "") : live;
        }
    return any;
}

// ---- by elements

static Val elements_may(Cg *cg, const NvSkip *k) {
    Val any = NULL;
    for (int n = 0; n < cg->k->axes[k->key_axis].extent / 8; n++)
        for (int m = 0; m < nv_state(cg)->mt; m++)
            for (int i = 0; i < 4; i++) {
                Val in = nv_at(cg, k->map, k->mask, m, n, i / 2, i % 2);
                any = any ? LLVMBuildOr(cg->b, any, in, "") : in;
            }
    return any;
}

// ---- parts of a step

static bool is_work(const TileOp *op) {
    if (!op || (op->kind != TILE_MMA && op->kind != TILE_MAP)) return false;
    return op->results.data[0]->home == HOME_FRAGMENT;
}

static void open_part(Cg *cg, NvSkip *k, const TileOp *first, Val live, bool whole) {
    Blk work = cg_block(cg, "some");
    k->before = LLVMGetInsertBlock(cg->b);
    k->join = cg_block(cg, "none");
    k->first = first;
    k->whole = whole;
    LLVMBuildCondBr(cg->b, live, work, k->join);
    LLVMPositionBuilderAtEnd(cg->b, work);
}

static bool used_after(const TileOp *op, const TileValue *v) {
    for (op = op->next; op; op = op->next)
        for (int i = 0; i < op->args.n; i++)
            if (op->args.data[i] == v) return true;
    return false;
}

// What a value is where the part was left out: as carried, or nothing that matters.
static Val left_out(Cg *cg, const TileOp *loop, const TileValue *v, int e) {
    const TileOp *yield = loop->body.last;
    for (int i = 0; i < yield->args.n; i++)
        if (yield->args.data[i] == v) return cg->value[loop->carried.data[i]->id].e[e];
    return LLVMConstNull(LLVMTypeOf(
        cg->value[v->id].e[e])); // undefined, it would be live from the kernel's beginning to ptxas
}

static void close_part(Cg *cg, NvSkip *k, const TileOp *last) {
    Blk work = LLVMGetInsertBlock(cg->b);
    LLVMBuildBr(cg->b, k->join);
    LLVMMoveBasicBlockAfter(k->join, work);
    LLVMPositionBuilderAtEnd(cg->b, k->join);
    for (const TileOp *op = k->first; op != last->next; op = op->next)
        for (int i = 0; i < op->results.n; i++) {
            const TileValue *v = op->results.data[i];
            CgValue *value = &cg->value[v->id];
            if (!value->n || !used_after(last, v)) continue;
            for (int e = 0; e < value->n; e++) {
                Val phi = LLVMBuildPhi(cg->b, LLVMTypeOf(value->e[e]), "");
                Val in[] = {value->e[e], left_out(cg, k->loop, v, e)};
                LLVMAddIncoming(phi, in, (Blk[]){work, k->before}, 2);
                value->e[e] = phi;
            }
        }
    k->join = NULL;
}

// The barrier that a step begins with where it fetches its own tiles; what its mask needs stands
// before it.
static bool begins_step(const TileOp *op) {
    if (op->kind != TILE_BARRIER || !op->block->owner->where) return false;
    for (const TileOp *before = op->prev; before; before = before->prev)
        if (before->kind != TILE_MAP) return false;
    return true;
}

static NvSkip *step_of(Cg *cg, const TileOp *op) {
    NvState *s = nv_state(cg);
    const TileOp *loop = op->block->owner;
    if (!loop || loop->tiles != CLASS_PARTIAL) return NULL;
    if (!s->skip) s->skip = ARENA_NEW(cg->arena, NvSkip);
    if (s->skip->loop != loop) {
        *s->skip = (NvSkip){.loop = loop, .key_axis = loop->axis};
        s->skip->mask = mask_of(loop, &s->skip->map);
    }
    return s->skip->mask ? s->skip : NULL;
}

// True: the operation is done already.
bool nv_skip_before(Cg *cg, const TileOp *op) {
    NvSkip *k = step_of(cg, op);
    if (!k || k->join) return false;
    if (begins_step(op)) {
        if (!ready(cg, k->map, k->mask)) return false;
        Val any = LLVMBuildZExt(cg->b, elements_may(cg, k), cg->i32, "");
        any = cg_intrinsic(cg, "llvm.nvvm.barrier0.or", NULL, 0, &any, 1);
        open_part(cg, k, op->next, LLVMBuildICmp(cg->b, LLVMIntNE, any, cg_i32(cg, 0), ""), true);
        return true;
    }
    if (!is_work(op) || is_work(op->prev)) return false;
    if (!k->live) {
        Val any = rows_may(cg, k);
        k->live = any ? vote(cg, any) : NULL;
        if (!any) k->mask = NULL;
    }
    if (k->live) open_part(cg, k, op, k->live, false);
    return false;
}

void nv_skip_after(Cg *cg, const TileOp *op) {
    NvSkip *k = nv_state(cg)->skip;
    if (!k || !k->join || k->loop != op->block->owner) return;
    const TileOp *next = op->next;
    if (k->whole ? next->kind == TILE_YIELD : !is_work(next)) close_part(cg, k, op);
}
