// fragment.c: see fragment.h.
#include "codegen/fragment.h"

#include <assert.h>

// ---- values

const CgFragment *cg_fragment(Cg *cg, const TileValue *v) {
    CgFragment **f = &cg->fragment[v->id];
    if (*f) return *f;
    int layout = v->layout;
    if (layout < 0) layout = tile_common_layout(cg->k, v->def, v->axis, v->rank); // of a map
    assert(layout >= 0 && "a value in registers has a layout");
    *f = ARENA_NEW(cg->arena, CgFragment);
    (*f)->is = layout_restrict(&cg->k->layouts.data[layout].is, v->axis, v->rank);
    const LayoutDigit *first = &(*f)->is.digit[0];
    bool pairs = first->count && first->place == LAYOUT_REG && first->step == 1;
    (*f)->each = pairs && dtype_half(v->dtype) ? 2 : 1;
    (*f)->registers = layout_count(&(*f)->is, LAYOUT_REG) / (*f)->each;
    return *f;
}

int cg_slot(const CgFragment *f, const int *part) {
    return layout_number(&f->is, LAYOUT_REG, part) / f->each;
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
    return p.step > 1 ? LLVMBuildMul(cg->b, p.number, cg_i32(cg, p.step), "") : p.number;
}

static void add_digits(Cg *cg, const Layout *l, LayoutPlace place, Val number, CgPart *sum) {
    for (int i = 0, stride = 1; i < l->n; i++) {
        const LayoutDigit *d = &l->digit[i];
        if (d->place != place) continue;
        bool last = i + 1 == l->n || l->digit[i + 1].place != place;
        if (d->axis >= 0) {
            Val before = sum->number ? scaled(cg, *sum) : NULL;
            *sum = (CgPart){digit_of(cg, number, stride, d, last), d->step};
            if (before) *sum = (CgPart){LLVMBuildAdd(cg->b, before, scaled(cg, *sum), ""), 1};
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

// ---- maps

// The digit of an axis beyond those in lanes: over the tiles of an instruction. -1: none.
static int beyond_lanes(const Layout *l, int axis) {
    int at = -1, step = 0;
    for (int i = 0; i < l->n; i++) {
        const LayoutDigit *d = &l->digit[i];
        if (d->axis != axis || d->place > LAYOUT_LANE || d->step < step) continue;
        step = d->step;
        at = d->place == LAYOUT_REG ? i : -1;
    }
    return at;
}

// Registers in the order of their digits, but that one digit is the slowest.
static const int *order_of(Cg *cg, const Layout *l, int n, int slow) {
    int *order = ARENA_ARRAY(cg->arena, int, n), stride = 1;
    int count = 1;
    for (int i = 0; i < l->n && l->digit[i].place == LAYOUT_REG; i++) {
        if (i == slow) count = l->digit[i].count;
        if (i < slow) stride *= l->digit[i].count;
    }
    for (int i = 0; i < n; i++) {
        int low = i % stride, rest = i / stride, above = n / stride / count;
        order[i] = low + (rest / above + rest % above * count) * stride;
    }
    return order;
}

CgSpace cg_space(Cg *cg, const TileOp *map, int slow) {
    CgSpace s = {.op = map};
    s.layout = tile_common_layout(cg->k, map, map->axes, map->naxes);
    assert(s.layout >= 0 && "a map's values lie in one layout");
    s.is = layout_restrict(&cg->k->layouts.data[s.layout].is, map->axes, map->naxes);
    s.n = layout_count(&s.is, LAYOUT_REG);
    s.order = order_of(cg, &s.is, s.n, beyond_lanes(&s.is, slow));
    return s;
}

void cg_space_at(CgSpace *s, int i) {
    for (int a = 0; a < s->op->naxes; a++)
        s->part[s->op->axes[a]] = layout_part(&s->is, LAYOUT_REG, s->op->axes[a], s->order[i]);
}

bool cg_is_made(const CgSpace *s, int result) {
    const TileResult *out = &s->op->outs.data[result];
    const TileValue *v = s->op->results.data[result];
    for (int a = 0; a < s->op->naxes; a++) {
        int axis = s->op->axes[a];
        bool reduced = out->reduce != EX_CONST && axis == out->reduce_axis;
        if (s->part[axis] && !reduced && !tile_has_axis(v, axis)) return true;
    }
    return false;
}

Val cg_space_position(Cg *cg, const CgSpace *s, int axis) {
    Val base =
        LLVMBuildAdd(cg->b, cg_tile_begin(cg, axis), cg_thread_part(cg, s->layout, axis), "");
    return LLVMBuildAdd(cg->b, base, cg_i32(cg, s->part[axis]), "");
}

Val cg_masked(Cg *cg, const CgSpace *s, const TileResult *out, Val v) {
    int axis = out->reduce_axis, most = s->part[axis];
    const TileAxis *a = &cg->k->axes[axis];
    for (int i = 0; i < s->is.n; i++) {
        const LayoutDigit *d = &s->is.digit[i];
        if (d->axis == axis && d->place != LAYOUT_REG) most += (d->count - 1) * d->step;
    }
    if (!a->whole || a->size->op != EX_CONST || most < a->size->i) return v;
    Val at =
        LLVMBuildAdd(cg->b, cg_thread_part(cg, s->layout, axis), cg_i32(cg, s->part[axis]), "");
    Val in = LLVMBuildICmp(cg->b, LLVMIntSLT, at, cg_i32(cg, a->size->i), "");
    return LLVMBuildSelect(cg->b, in, v, cg_f32(cg, ex_identity(out->reduce)), "");
}

Val cg_across(Cg *cg, const Layout *l, int axis, ExOp reduce, Val v,
              Val (*exchange)(Cg *cg, Val v, int mask)) {
    for (int i = 0, stride = 1; i < l->n; i++) {
        const LayoutDigit *d = &l->digit[i];
        if (d->place == LAYOUT_REG) continue;
        assert((d->axis != axis || d->place == LAYOUT_LANE) && "reductions stay in a warp");
        for (int mask = stride; d->axis == axis && mask < stride * d->count; mask *= 2)
            v = cg_merge(cg, reduce, v, exchange(cg, v, mask));
        stride *= d->count;
    }
    return v;
}
