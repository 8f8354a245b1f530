// tile_verify_layout.c: the rules of layouts.
//
// In: a kernel whose operations keep the other rules. Out: whether
//
//   1. a layout has all digits of its axes, and lanes and warps as the target and the schedule do;
//   2. values in registers have a layout, with all of their axes, if the kernel has layouts;
//   3. a map's results, operands and axes lie in one of them, but that a narrow result may be what a
//      shuffle makes;
//   4. initial, carried and yielded values of a loop lie alike;
//   5. a product's result lies as a matrix instruction leaves it, with rows and columns either way
//      round, and an operand in registers as it wants it. A sum has any order: which element of the
//      contracted axis is where does not matter;
//   6. narrow values with columns fill 32-bit words;
//   7. addends (`parts`) are as tile_parts.c says, in layouts that have copies.
//
// Holds afterwards: a lowering finds what a thread needs of a value among what the thread has.
#include "ir/tile_verify.h"

#include <string.h>

// ---- the layouts

static const char *axis_name(const Verify *V, int axis) { return V->k->axes[axis].name; }

// Warps of the schedule, or of one of the roles.
static bool has_warps(const Verify *V, int warps) {
    if (V->k->schedule.warps == warps) return true;
    for (const TileOp *op = V->k->body.first; op; op = op->next)
        if (op->kind == TILE_ROLE && 4 * op->warpgroups == warps) return true;
    return false;
}

static bool check_layout(Verify *V, int i) {
    const TileLayout *l = &V->k->layouts.data[i];
    const Target *t = target_get(V->p->target);
    if (!verify_is_name(l->name)) return verify_fail(V, "layout %d has no name", i);
    for (int j = 0; j < i; j++)
        if (!strcmp(l->name, V->k->layouts.data[j].name))
            return verify_fail(V, "two layouts are called %s", l->name);
    for (int a = 0; a < V->k->naxes; a++)
        if (layout_covers(&l->is, a) > 1 && !layout_complete(&l->is, a, V->k->axes[a].extent))
            return verify_fail(V, "the digits of %s in layout %s are not those of %d elements",
                               axis_name(V, a), l->name, V->k->axes[a].extent);
    if (layout_count(&l->is, LAYOUT_LANE) != t->lanes)
        return verify_fail(V, "layout %s has %d lanes, '%s' has %d", l->name,
                           layout_count(&l->is, LAYOUT_LANE), t->name, t->lanes);
    int warps = layout_count(&l->is, LAYOUT_WARP);
    return has_warps(V, warps) || verify_fail(V, "layout %s has %d warps, the schedule has %d",
                                              l->name, warps, V->k->schedule.warps);
}

// ---- values

static bool check_value(Verify *V, const TileValue *v) {
    if (v->home != HOME_FRAGMENT) return true;
    if (v->layout < 0) return verify_fail(V, "%%%s has no layout", v->name);
    Layout own = tile_layout(V->k, v);
    for (int i = 0; i < v->rank; i++)
        if (layout_covers(&own, v->axis[i]) != V->k->axes[v->axis[i]].extent)
            return verify_fail(V, "%%%s lies in a layout without %s", v->name,
                               axis_name(V, v->axis[i]));
    const LayoutDigit *first = &own.digit[0];
    bool words =
        dtype_bytes(v->dtype) == 2 && own.n && first->place == LAYOUT_REG && first->step == 1;
    if (words && first->count % 2)
        return verify_fail(V, "%%%s does not fill registers of two elements", v->name);
    return !v->parts || layout_copies(&own) ||
           verify_fail(V, "%%%s is in parts, but each number in one thread", v->name);
}

static bool same(Verify *V, const TileValue *v, const TileValue *w) {
    if (v->layout < 0 || w->layout < 0) return true;
    Layout x = tile_layout(V->k, v), y = tile_layout(V->k, w);
    return layout_equal(&x, &y) ||
           verify_fail(V, "%%%s and %%%s lie in different layouts", v->name, w->name);
}

static bool check_carried(Verify *V) {
    const TileOp *op = V->op, *yield = op->body.last;
    for (int i = 0; i < op->results.n; i++) {
        const TileValue *v = op->results.data[i];
        if (op->carried.n &&
            (!same(V, op->carried.data[i], op->args.data[i]) || !same(V, op->carried.data[i], v)))
            return false;
        if (op->kind == TILE_REDO && !same(V, v, op->args.data[i + 1])) return false;
        if (!same(V, v, yield->args.data[i])) return false;
    }
    return true;
}

// ---- maps

static bool check_map(Verify *V) {
    const TileOp *op = V->op;
    bool registers = false;
    for (int i = 0; i < op->args.n; i++) registers |= op->args.data[i]->layout >= 0;
    for (int i = 0; i < op->results.n; i++) registers |= op->results.data[i]->layout >= 0;
    int axes = tile_has_lanes(V->k) ? 0 : op->naxes; // a lane walks others than the warp's
    return !registers || tile_common_layout(V->k, op, op->axes, axes) >= 0 ||
           verify_fail(V, "its values lie in no common layout");
}

// ---- products

// Digits of a fragment's lanes, warps and rows are a value's; those along the contracted axis are as
// many, with any steps. In registers a value may have more.
static bool feeds(const Layout *v, const Layout *fragment, int contracted) {
    int n = 0;
    for (int p = LAYOUT_LANE; p < LAYOUT_PLACES; p++) {
        int at = 0;
        while (at < v->n && v->digit[at].place < p) at++;
        for (int i = 0; i < fragment->n; i++) {
            const LayoutDigit *d = &fragment->digit[i], *own = &v->digit[at];
            if (d->place != p) continue;
            if (at == v->n || own->place != p || own->axis != d->axis) return false;
            if (own->step != d->step && d->axis != contracted) return false;
            if (own->count != d->count && (p == LAYOUT_LANE || own->count % d->count)) return false;
            at++, n++;
        }
    }
    for (int i = 0; i < fragment->n; i++) {
        const LayoutDigit *d = &fragment->digit[i];
        bool found = d->place != LAYOUT_REG || d->axis == contracted;
        for (int j = 0; j < v->n && !found; j++)
            found = v->digit[j].place == LAYOUT_REG && v->digit[j].axis == d->axis &&
                    v->digit[j].step == d->step && v->digit[j].count % d->count == 0;
        if (!found) return false;
    }
    return n > 0;
}

// An operand in registers is the instruction's A or B; so are the axes M and N of its result.
static bool operand_fits(const Verify *V, MmaKind kind, MmaPart part, const TileValue *v,
                         const int axis[3]) {
    Layout fragment, own;
    if (v->layout < 0) return true; // in shared memory
    if (!mma_fragment(kind, part, &fragment)) return false;
    own = tile_layout(V->k, v);
    fragment = layout_rename(&fragment, axis);
    return feeds(&own, &fragment, axis[2]);
}

static bool fits(const Verify *V, MmaKind kind, bool swapped) {
    const TileOp *op = V->op;
    const TileValue *v = op->results.data[0];
    int axis[] = {v->axis[swapped], v->axis[!swapped], tile_contracted_axis(op)};
    bool first = tile_has_axis(op->args.data[0], axis[0]);
    const TileValue *a = op->args.data[!first], *b = op->args.data[first];
    Layout c, own = tile_layout(V->k, v);
    if (!mma_fragment(kind, MMA_C, &c)) return false;
    c = layout_rename(&c, axis);
    return layout_begins(&own, &c) && operand_fits(V, kind, MMA_A, a, axis) &&
           operand_fits(V, kind, MMA_B, b, axis);
}

static bool check_mma(Verify *V) {
    const TileOp *op = V->op;
    const TileValue *v = op->results.data[0];
    if (v->layout < 0 || v->rank != 2) return true;
    if (op->args.n > 2 && !same(V, v, op->args.data[2])) return false;
    int bytes = dtype_bytes(op->args.data[0]->dtype), other = dtype_bytes(op->args.data[1]->dtype);
    if (other > bytes) bytes = other; // numbers of 8 bits become what they are multiplied with
    const Target *t = target_get(V->p->target);
    bool any = false; // otherwise it is made of multiply-adds
    for (int kind = 0; kind < MMA_KIND_COUNT; kind++) {
        if (!target_has_mma(t, (MmaKind)kind, bytes)) continue;
        if (kind == MMA_TF32 && !op->tf32) continue;
        any = true;
        if (fits(V, (MmaKind)kind, false) || fits(V, (MmaKind)kind, true)) return true;
    }
    return !any ||
           verify_fail(V, "no matrix instruction of '%s' leaves %%%s so, or takes such operands",
                       t->name, v->name);
}

bool verify_layouts(Verify *V) {
    const TileKernel *k = V->k;
    if (!k->layouts.n) return true;
    for (int i = 0; i < k->layouts.n; i++)
        if (!check_layout(V, i)) return false;
    for (const TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op)) {
        V->op = op;
        for (int i = 0; i < op->results.n; i++)
            if (!check_value(V, op->results.data[i])) return false;
        for (int i = 0; i < op->carried.n; i++)
            if (!check_value(V, op->carried.data[i])) return false;
        if (op->kind == TILE_MAP && !check_map(V)) return false;
        if (op->kind == TILE_MMA && !check_mma(V)) return false;
        if (op->body.last && op->body.last->kind == TILE_YIELD && !check_carried(V)) return false;
    }
    V->op = NULL;
    return true;
}
