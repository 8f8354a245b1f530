// fragment.c: values in registers (gpu.h).
#include "codegen/gpu/gpu.h"

#include <assert.h>

// ---- values

int cg_columns(const Layout *l) {
    const LayoutDigit *first = &l->digit[0];
    if (!l->n || first->place != LAYOUT_REG) return -1;
    for (int i = 1; i < l->n; i++)
        if (l->digit[i].axis >= 0 && l->digit[i].axis != first->axis) return first->axis;
    return -1;
}

const CgFragment *cg_fragment(Cg *cg, const TileValue *v) {
    CgFragment **f = &cg->fragment[v->id];
    if (*f) return *f;
    int layout = v->layout;
    if (layout < 0) layout = tile_common_layout(cg->k, v->def, v->axis, v->rank); // of a map
    assert(layout >= 0 && "a value in registers has a layout");
    const Layout *all = &cg->k->layouts.data[layout].is;
    *f = ARENA_NEW(cg->arena, CgFragment);
    (*f)->is = layout_restrict(all, v->axis, v->rank);
    (*f)->rows = (*f)->columns = -1;
    for (int i = 0; i < v->rank; i++)
        *(v->axis[i] == cg_columns(all) ? &(*f)->columns : &(*f)->rows) = v->axis[i];
    const LayoutDigit *first = &(*f)->is.digit[0];
    bool pairs = first->count && first->place == LAYOUT_REG && first->step == 1;
    (*f)->each = pairs && dtype_half(v->dtype) ? 2 : 1;
    (*f)->registers = layout_count(&(*f)->is, LAYOUT_REG) / (*f)->each;
    return *f;
}

int cg_slot(const CgFragment *f, const int *part) {
    return layout_number(&f->is, LAYOUT_REG, part) / f->each;
}

int cg_register(const CgFragment *f, int row, int column) {
    int part[TILE_MAX_AXES] = {0};
    if (f->rows >= 0) part[f->rows] = row;
    if (f->columns >= 0) part[f->columns] = column;
    return cg_slot(f, part);
}

int cg_share(const CgFragment *f, int axis) {
    return axis < 0 ? 1 : layout_share(&f->is, LAYOUT_REG, axis);
}

CgValue *cg_make(Cg *cg, const TileValue *v) {
    CgValue *value = &cg->value[v->id];
    value->n = cg_fragment(cg, v)->registers;
    value->e = ARENA_ARRAY(cg->arena, Val, value->n);
    return value;
}

// ---- threads

typedef struct CgPart {
    Val number;
    int step;
} CgPart;

// What a digit says: number / stride % count. Nothing is beyond the last.
static Val digit_of(Cg *cg, Val number, int stride, const LayoutDigit *d, bool last) {
    Val v = number;
    if (stride > 1) v = cg_over(cg, v, stride);
    return last ? v : cg_modulo(cg, v, d->count);
}

static Val scaled(Cg *cg, CgPart p) {
    return p.step > 1 ? cg_times(cg, p.number, p.step) : p.number;
}

static void add_digits(Cg *cg, const Layout *l, LayoutPlace place, Val number, CgPart *sum) {
    for (int i = 0, stride = 1; i < l->n; i++) {
        const LayoutDigit *d = &l->digit[i];
        if (d->place != place) continue;
        bool last = i + 1 == l->n || l->digit[i + 1].place != place;
        if (d->axis >= 0) {
            Val before = sum->number ? scaled(cg, *sum) : NULL;
            *sum = (CgPart){digit_of(cg, number, stride, d, last), d->step};
            if (before) *sum = (CgPart){cg_add(cg, before, scaled(cg, *sum)), 1};
        }
        stride *= d->count;
    }
}

// The digits of an axis in lanes and warps, as if it were axis 0: the same for axes that lie alike.
static Layout in_threads(const Layout *l, int axis) {
    Layout r = {0};
    for (int i = 0; i < l->n; i++) {
        const LayoutDigit *d = &l->digit[i];
        bool own = d->axis == axis;
        if (d->place != LAYOUT_REG)
            layout_add(&r, d->place, own ? 0 : LAYOUT_COPIES, own ? d->step : 0, d->count);
    }
    return r;
}

static CgPart place_axis(Cg *cg, const Layout *in, Val lane, Val warp, bool late) {
    CgPart p = {NULL, 1};
    add_digits(cg, in, LAYOUT_WARP, warp, &p);
    add_digits(cg, in, LAYOUT_LANE, lane, &p);
    if (!p.number) p.number = cg_i32(cg, 0);
    return late ? p : (CgPart){scaled(cg, p), 1};
}

// What only the lane says stays as it was made first: a role has warps of its own, not lanes.
void cg_place_thread(Cg *cg, Val lane, Val warp, bool late) {
    const TileKernel *k = cg->k;
    int n = k->layouts.n * k->naxes, made = 0;
    Layout *in = ARENA_ARRAY(cg->arena, Layout, n);
    CgPart *v = ARENA_ARRAY(cg->arena, CgPart, n);
    bool first = !cg->thread_part;
    if (first) cg->thread_part = ARENA_ARRAY(cg->arena, CgPart, (k->layouts.n + 1) * TILE_MAX_AXES);
    for (int a = 0; a < k->naxes; a++)
        for (int i = 0; i < k->layouts.n; i++) {
            const Layout *l = &k->layouts.data[i].is;
            if (layout_covers(l, a) < k->axes[a].extent) continue;
            if (!first && layout_share(l, LAYOUT_WARP, a) == 1) continue;
            in[made] = in_threads(l, a);
            int same = 0;
            while (!layout_equal(&in[same], &in[made])) same++;
            if (same == made) v[made++] = place_axis(cg, &in[same], lane, warp, late);
            cg->thread_part[i * TILE_MAX_AXES + a] = v[same];
        }
}

Val cg_thread_part(Cg *cg, int layout, int axis) {
    CgPart p = cg->thread_part[layout * TILE_MAX_AXES + axis];
    assert(p.number && "the layout has the axis");
    return scaled(cg, p);
}

Val cg_warp_part(Cg *cg, int layout, int axis, int by) {
    const Layout *l = &cg->k->layouts.data[layout].is;
    CgPart p = {NULL, 1};
    if (layout_share(l, LAYOUT_WARP, axis) == 1) return NULL;
    Layout in = in_threads(l, axis);
    add_digits(cg, &in, LAYOUT_WARP, cg_udiv(cg, cg_gpu(cg)->tid, cg_i32(cg, cg->target->lanes)),
               &p);
    return cg_times(cg, p.number, p.step * by);
}

// ---- reductions and positions

Val cg_across(Cg *cg, const Layout *l, int axis, ExOp reduce, Val v) {
    for (int i = 0, stride = 1; i < l->n; i++) {
        const LayoutDigit *d = &l->digit[i];
        if (d->place != LAYOUT_LANE) continue;
        for (int mask = stride; d->axis == axis && mask < stride * d->count; mask *= 2)
            v = cg_merge(cg, reduce, v, cg_gpu(cg)->hooks->exchange(cg, v, mask));
        stride *= d->count;
    }
    return v;
}

// Warps put their numbers side by side, and take all. The halves are used by turns, and between two uses of one there is a barrier:
// that of the other, or that of the tile which a step waits for. Where the other's is in a loop that may have no step, there is one more.
void cg_across_warps(Cg *cg, int layout, int axis, ExOp reduce, const TileValue *v) {
    const Layout *l = &cg->k->layouts.data[layout].is;
    int warps = layout_share(l, LAYOUT_WARP, axis), bytes = tile_crossing_bytes(cg->k);
    if (warps == 1) return;
    CgGpu *g = cg_gpu(cg);
    CgValue *value = &cg->value[v->id];
    const CgFragment *f = cg_fragment(cg, v);
    int rows = cg->k->axes[f->rows].extent, columns = layout_covers(l, axis) / warps;
    assert(v->rank == 1);
    Val at = g->hooks->place(cg, NULL);
    at = cg_plus(cg, at, cg->launch.shared - bytes + (g->crossed ? bytes / 2 : 0));
    at = cg_add(cg, at, cg_times(cg, cg_thread_part(cg, layout, f->rows), 4));
    Val number = cg_over(cg, cg_warp_part(cg, layout, axis, 1), columns);
    Val own = cg_add(cg, at, cg_times(cg, number, 4 * rows));
    g->crossed = !g->crossed;
    if (cg->passed_by) g->hooks->barrier(cg);
    cg->passed_by = false, cg->crossings++;
    for (int r = 0; r < value->n; r++) {
        int row = layout_part(&f->is, LAYOUT_REG, f->rows, r);
        cg_store(cg, value->e[r], g->hooks->pointer(cg, cg_plus(cg, own, 4 * row)));
    }
    g->hooks->barrier(cg);
    for (int r = 0; r < value->n; r++) {
        Val all = NULL;
        for (int w = 0; w < warps; w++) {
            int row = layout_part(&f->is, LAYOUT_REG, f->rows, r);
            Val p = g->hooks->pointer(cg, cg_plus(cg, at, 4 * (row + w * rows)));
            all = cg_merge(cg, reduce, all, cg_load(cg, cg->f32, p));
        }
        value->e[r] = all;
    }
}

Val cg_is_first_copy(Cg *cg, const Layout *l) {
    int copies = 0;
    for (int i = 0, stride = 1; i < l->n; i++) {
        const LayoutDigit *d = &l->digit[i];
        if (d->place != LAYOUT_LANE) continue;
        if (d->axis == LAYOUT_COPIES) copies |= (d->count - 1) * stride;
        stride *= d->count;
    }
    return cg_is(cg, cg_and(cg, cg_gpu(cg)->lane, cg_i32(cg, copies)), 0);
}

Val cg_in_first_copy(Cg *cg, const Layout *l, Val v) {
    return cg_select(cg, cg_is_first_copy(cg, l), v, cg_f32(cg, 0));
}

Val cg_merge(Cg *cg, ExOp reduce, Val a, Val b) {
    if (!a) return b;
    Val v[] = {a, b};
    if (reduce == EX_ROWSUM) return cg_fast(cg_fadd(cg, a, b));
    return cg_math(cg, reduce == EX_ROWMAX ? EX_MAX : EX_MIN, v, 2);
}
