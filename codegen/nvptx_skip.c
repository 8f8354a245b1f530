// nvptx_skip.c: steps that a mask leaves nothing of.
//
// In: the operations of a loop over tiles that are partly masked, where the mask depends on data and
// a step fetches its own tiles. A step whose keys are all masked leaves what the loop carries as it
// was: their scores are -inf, of which every state gets its identity (ir/stream.h). So each thread
// looks at the elements that are its own, the barrier that begins the step says whether anyone found
// one, and if not, nothing is fetched or computed.
//
// Where the mask is an interval for each row, tiles without a pair are not visited in the first
// place. That single warps leave out a tile that others of their block work on was measured to cost
// more registers and moves than it saves: the block waits for the others anyway.
#include "codegen/nvptx.h"

#include <assert.h>
#include <math.h>

struct NvSkip {
    const TileOp *loop; // whose step is at hand
    const TileOp *map;  // that masks
    const Ex *mask;     // NULL: nothing to test
    Blk before, join;   // of the open step; join NULL: none is open
    const TileOp *first;
};

// ---- the mask of a step

static bool uses_key(const Ex *e, int axis) { return ex_uses(e, SYM_POS, axis); }

// A weight that is 0 where it is masked, in a loop that carries nothing but the weighted sum.
static bool is_weight(const TileOp *map, const TileResult *out) {
    const Ex *e = out->body;
    const TileOp *loop = map->block->owner;
    if (map->outs.n != 1 || out->reduce != EX_CONST || loop->carried.n != 1) return false;
    if (e->op != EX_SELECT || !ex_is_f32(e->args[2], 0)) return false;
    const TileOp *next = loop->body.last->args.data[0]->def;
    const TileValue *v = map->results.data[0];
    return next && next->kind == TILE_MMA && next->args.n == 3 &&
           next->args.data[2] == loop->carried.data[0] &&
           (next->args.data[0] == v || next->args.data[1] == v);
}

// A whole body `select(mask, score, -inf)`, where the mask depends on the key. Not a selection within
// a score: that is the variant's own, and where it does not hold a key may count all the same.
static bool is_masked_score(const Ex *e, int key_axis) {
    return e->op == EX_SELECT && e->type == EX_F32 && ex_is_f32(e->args[2], -INFINITY) &&
           uses_key(e->args[0], key_axis);
}

static const Ex *mask_of(const TileOp *loop, const TileOp **map) {
    for (const TileOp *op = loop->body.first; op; op = op->next)
        for (int i = 0; op->kind == TILE_MAP && i < op->outs.n; i++) {
            const TileResult *out = &op->outs.data[i];
            const Ex *e = out->body;
            bool weight = is_weight(op, out) && uses_key(e->args[0], loop->axis);
            *map = op;
            if (weight || is_masked_score(e, loop->axis)) return e->args[0];
        }
    return NULL;
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

static Val elements_may(Cg *cg, const NvSkip *k) {
    Val any = NULL;
    for (int n = 0; n < cg->k->axes[k->loop->axis].extent / 8; n++)
        for (int m = 0; m < nv_state(cg)->mt; m++)
            for (int i = 0; i < 4; i++) {
                Val in = nv_at(cg, k->map, k->mask, m, n, i / 2, i % 2);
                any = any ? LLVMBuildOr(cg->b, any, in, "") : in;
            }
    return any;
}

// ---- the step

static void open_step(Cg *cg, NvSkip *k, const TileOp *first, Val live) {
    Blk work = cg_block(cg, "some");
    k->before = LLVMGetInsertBlock(cg->b);
    k->join = cg_block(cg, "none");
    k->first = first;
    LLVMBuildCondBr(cg->b, live, work, k->join);
    LLVMPositionBuilderAtEnd(cg->b, work);
}

static bool used_after(const TileOp *op, const TileValue *v) {
    for (op = op->next; op; op = op->next)
        for (int i = 0; i < op->args.n; i++)
            if (op->args.data[i] == v) return true;
    return false;
}

// What a value is where the step was left out: as carried, or nothing that matters.
static Val left_out(Cg *cg, const TileOp *loop, const TileValue *v, int e) {
    const TileOp *yield = loop->body.last;
    for (int i = 0; i < yield->args.n; i++)
        if (yield->args.data[i] == v) return cg->value[loop->carried.data[i]->id].e[e];
    return LLVMConstNull(LLVMTypeOf(
        cg->value[v->id].e[e])); // undefined, it would be live from the kernel's beginning to ptxas
}

static void close_step(Cg *cg, NvSkip *k, const TileOp *last) {
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
    if (!s->skip) s->skip = ARENA_NEW(cg->arena, NvSkip);
    *s->skip = (NvSkip){.loop = loop};
    s->skip->mask = mask_of(loop, &s->skip->map);
    return s->skip;
}

// True: the operation is done already.
bool nv_skip_before(Cg *cg, const TileOp *op) {
    const TileOp *loop = op->block->owner;
    if (!loop || loop->tiles != CLASS_PARTIAL || !begins_step(op)) return false;
    NvSkip *k = step_of(cg, op);
    if (!k->mask || !ready(cg, k->map, k->mask)) return false;
    Val any = LLVMBuildZExt(cg->b, elements_may(cg, k), cg->i32, "");
    any = cg_intrinsic(cg, "llvm.nvvm.barrier0.or", NULL, 0, &any, 1);
    open_step(cg, k, op->next, LLVMBuildICmp(cg->b, LLVMIntNE, any, cg_i32(cg, 0), ""));
    return true;
}

void nv_skip_after(Cg *cg, const TileOp *op) {
    NvSkip *k = nv_state(cg)->skip;
    if (k && k->join && k->loop == op->block->owner && op->next->kind == TILE_YIELD)
        close_step(cg, k, op);
}
