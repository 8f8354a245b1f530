// inside.c: marks loads of inputs whose indices cannot leave the tensor, so that they are not
// clamped.
//
// In: a kernel whose loops are split by class. Out: the same with LOADs marked `inside`. What is
// proved: constants, the batch, the head and its key head, columns, positions along the loop's axis
// in loops over full tiles, tiles of one element. A position along an axis that the tensor has as its extent is clamped
// here, from above, if the tile may go past the end: one minimum, the same for a whole row or column.
// Any other index along an axis' extent is clamped from both sides, unless a position along a full
// loop's axis is in it. (The axis has an element wherever there is a tile.) An index that is inside may
// still differ for each element, such as one made of scores. Tests whether a column is there are gone where tiles have no others.
#include "passes/mask/mask.h"

#include "passes/simplify/rules.h"

typedef struct Inside {
    const TileProgram *p;
    const TileKernel *k;
    int full_axis; // whose positions all exist, or -1
} Inside;

static bool is_sym(const Ex *e, ExSym sym, int index) {
    return e->op == EX_SYM && e->sym == sym && e->index == index;
}

// h * Hkv / H: a key head. The runtime refuses a launch where the product leaves i32; of another extent
// it may.
static bool is_key_head(const Ex *e, const Ex *extent) {
    if (e->op != EX_DIV || !is_sym(e->args[1], SYM_SIZE, SIZE_HQ)) return false;
    const Ex *m = e->args[0];
    if (m->op != EX_MUL || !is_sym(extent, SYM_SIZE, SIZE_HKV)) return false;
    return (is_sym(m->args[0], SYM_H, 0) && m->args[1] == extent) ||
           (is_sym(m->args[1], SYM_H, 0) && m->args[0] == extent);
}

static bool position_inside(const Inside *in, const Ex *e, const Ex *extent) {
    if (e->op != EX_SYM || (e->sym != SYM_POS && e->sym != SYM_TILE)) return false;
    const TileAxis *a = &in->k->axes[e->index];
    if (e->sym == SYM_TILE) return a->extent == 1 && a->size == extent;
    if (extent->op == EX_CONST && a->whole) return a->extent <= extent->i;
    return a->size == extent && e->index == in->full_axis;
}

static bool index_inside(const Inside *in, const Ex *e, const Ex *extent) {
    if (e->op == EX_CONST) return extent->op == EX_CONST && e->i >= 0 && e->i < extent->i;
    if (is_sym(e, SYM_B, 0)) return is_sym(extent, SYM_SIZE, SIZE_B);
    if (is_sym(e, SYM_H, 0)) return is_sym(extent, SYM_SIZE, SIZE_HQ);
    return is_key_head(e, extent) || position_inside(in, e, extent);
}

bool pass_is_inside(const TileProgram *p, const TileKernel *k, const Ex *e, const Ex *extent) {
    return index_inside(&(Inside){p, k, -1}, e, extent);
}

static bool is_axis_size(const Inside *in, const Ex *extent) {
    for (int a = 0; a < in->k->naxes; a++)
        if (in->k->axes[a].size == extent) return true;
    return false;
}

// An index that is inside, or NULL.
static const Ex *clamped(const Inside *in, ExPool *x, const Ex *e, const Ex *extent) {
    const Ex *last = simp_2(x, EX_SUB, extent, ex_i32(x, 1));
    bool position = e->op == EX_SYM && e->sym == SYM_POS;
    if (position && in->k->axes[e->index].size == extent) return simp_2(x, EX_MIN, e, last);
    if (in->full_axis < 0 || ex_uses(e, SYM_POS, in->full_axis) || !is_axis_size(in, extent))
        return NULL;
    return simp_2(x, EX_MAX, simp_2(x, EX_MIN, e, last), ex_i32(x, 0));
}

// Whether a column is one of all that there are, where a tile has no more.
static bool always_holds(const Inside *in, const Ex *e) {
    if (e->op != EX_LT || e->args[0]->op != EX_SYM || e->args[0]->sym != SYM_POS) return false;
    const TileAxis *a = &in->k->axes[e->args[0]->index];
    return a->whole && e->args[1]->op == EX_CONST && a->extent <= e->args[1]->i;
}

static const Ex *prove_one(void *ctx, ExPool *x, const Ex *e) {
    const Inside *in = ctx;
    if (always_holds(in, e)) return ex_bool(x, true);
    if (e->op != EX_LOAD || e->inside) return e;
    const TileTensor *t = &in->p->tensors.data[in->p->inputs.data[e->input]];
    const Ex *index[EX_MAX_RANK];
    for (int i = 0; i < e->nargs; i++) {
        index[i] = e->args[i];
        if (index_inside(in, index[i], t->extent[i])) continue;
        index[i] = clamped(in, x, index[i], t->extent[i]);
        if (!index[i]) return e;
    }
    return ex_load(x, e->input, e->type, index, e->nargs, true);
}

static const Ex *prove(void *ctx, const Ex *e) {
    return ex_map(((Inside *)ctx)->p->pool, e, prove_one, ctx);
}

static int full_axis_of(const TileOp *op) {
    const TileOp *loop = op->block->owner;
    return loop && loop->tiles == CLASS_FULL ? loop->axis : -1;
}

void pass_prove_inside(TileProgram *p, TileKernel *k) {
    for (TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op)) {
        Inside in = {p, k, full_axis_of(op)};
        tile_map_exprs(op, prove, &in);
    }
}
