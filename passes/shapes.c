// shapes.c: see shapes.h.
#include "shapes.h"

#include <string.h>

static const struct {
    const char *name;
    int most, b, h, s;
} shapes[] = {
#define SHAPE(e, name, most, b, h, s) {name, most, b, h, s},
#include "shapes.def"
#undef SHAPE
};

const char *shape_name(ShapeClass c) { return shapes[c].name; }

bool shape_find(const char *name, ShapeClass *out) {
    for (int i = 0; i < SHAPE_COUNT; i++)
        if (!strcmp(name, shapes[i].name)) {
            *out = (ShapeClass)i;
            return true;
        }
    return false;
}

bool shape_matters(const Target *t) { return t->kind == KIND_NVPTX; }

ShapeClass shape_of(const Target *t, const int32_t *size) {
    int c = shape_matters(t) ? 0 : SHAPE_COUNT - 1;
    while (shapes[c].most && size[SIZE_SK] > shapes[c].most) c++;
    return (ShapeClass)c;
}

void shape_typical(ShapeClass c, int32_t *size) {
    memset(size, 0, SIZE_FREE * sizeof *size);
    size[SIZE_B] = shapes[c].b;
    size[SIZE_HQ] = size[SIZE_HKV] = shapes[c].h;
    size[SIZE_SQ] = size[SIZE_SK] = shapes[c].s;
}

const Ex *shape_condition(ExPool *x, ShapeClass c) {
    const Ex *keys = ex_sym(x, SYM_SIZE, SIZE_SK, EX_I32);
    if (!shapes[c].most) return ex_bool(x, true);
    return ex_2(x, EX_LE, keys, ex_i32(x, shapes[c].most));
}

// ---- joining

static bool alike(const TileProgram *p, const TileProgram *q) {
    if (p->pool != q->pool || p->tensors.n != q->tensors.n || p->sizes.n != q->sizes.n)
        return false;
    for (int i = 0; i < p->sizes.n; i++)
        if (p->sizes.data[i].def != q->sizes.data[i].def) return false;
    for (int i = 0; i < p->tensors.n; i++) {
        const TileTensor *t = &p->tensors.data[i], *u = &q->tensors.data[i];
        if (t->role != u->role || t->index != u->index || t->dtype != u->dtype ||
            t->rank != u->rank || memcmp(t->extent, u->extent, sizeof t->extent) != 0)
            return false;
    }
    return true;
}

bool shape_join(TileProgram *p, const TileProgram *other, ShapeClass c) {
    if (!alike(p, other)) return false;
    int first = p->kernels.n;
    const Ex *in = shape_condition(p->pool, c);
    VEC(TilePlan) plans = {0};
    for (int i = 0; i < other->kernels.n; i++) {
        TileKernel *k = other->kernels.data[i];
        k->name = arena_printf(p->arena, "%s_%s", k->name, shapes[c].name);
        VEC_PUSH(p->arena, &p->kernels, k);
    }
    for (int i = 0; i < other->plans.n; i++) {
        TilePlan plan = other->plans.data[i];
        plan.when = plan.when ? ex_2(p->pool, EX_AND, in, plan.when) : in;
        for (int j = 0; j < plan.kernels.n; j++) plan.kernels.data[j] += first;
        VEC_PUSH(p->arena, &plans, plan);
    }
    for (int i = 0; i < p->plans.n; i++) VEC_PUSH(p->arena, &plans, p->plans.data[i]);
    p->plans.data = plans.data;
    p->plans.n = plans.n;
    p->plans.cap = plans.cap;
    return true;
}
