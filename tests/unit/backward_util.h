// backward_util.h: tile programs of a derived backward, interpreted, against the reference's derivative: with what the tile program of the
// forward saved.
#ifndef TESTS_BACKWARD_UTIL_H
#define TESTS_BACKWARD_UTIL_H

#include "pass_util.h"

#include "passes/derive/backward.h"

typedef struct Case {
    Arena *a;
    Variant *v;
    const Backward *b;
    TileProgram *forward, *backward;
} Case;

static inline TileProgram *shaped(Arena *a, TileProgram *p, PuTiles tiles, const char *what) {
    (void)a;
    pass_tidy(p);
    pass_hoist(p);
    pass_fuse(p);
    if (tiles.m) pu_bind(p, tiles);
    pu_verify(p, what, PU_FUSED);
    return p;
}

// For the host an algorithm, for GPUs as it is scheduled.
static inline Case make(Arena *a, const char *path, const char *text, bool deterministic,
                        PuTiles tiles, TargetId target, Dtype dtype, Knobs schedule) {
    Case c = {.a = a};
    PassOptions o = {
        .target = *target_get(TARGET_HOST), .dtype = DT_F32, .deterministic = deterministic};
    Diags diags = diag_list(a);
    int columns = target == TARGET_SM90A ? 16 : 8; // a nest is for whole steps of its products
    const Stream *s = pu_stream(a, path, text, text ? 0 : columns, &c.v);
    c.b = dtype == DT_F16 ? pass_backward_narrow(a, s->written, NULL)
                          : pass_backward(a, s->written, NULL);
    o.saves = c.b;
    o.dtype = target == TARGET_HOST ? DT_F32 : dtype;
    c.forward = shaped(a, pass_build(a, c.b->s, &o), tiles, path);
    if (target != TARGET_HOST) {
        o.target = *target_get(target);
        o.schedule = schedule;
        c.backward = pass_backward_program(a, c.b, &o, &diags);
        if (!c.backward) diag_print(&diags, stderr);
        return c;
    }
    TileProgram *p = pass_build_backward(a, c.b, &o, !deterministic, &diags);
    if (!p) return c;
    pu_verify(p, path, PU_BUILT);
    c.backward = shaped(a, p, tiles, path);
    return c;
}

static inline void check_one(const Case *c, const int32_t *launch, const char *what) {
    int32_t size[64] = {0};
    Diags diags = diag_list(c->a);
    pu_sizes(c->v, size, launch[0], launch[1], launch[2], launch[3], launch[4], launch[5]);
    TileData *x = tile_data_random(c->a, c->forward, size, 4, 5),
             *y = tile_data_random(c->a, c->backward, size, 4, 9);
    ck_assert_msg(tile_eval(c->forward, x, false, &diags), "%s: the forward does not run", what);
    for (int i = 0; i < c->forward->tensors.n; i++) {
        int to = pu_named(c->backward, c->forward->tensors.data[i].name);
        bool work = c->forward->tensors.data[i].role == TENSOR_WORK;
        if (to >= 0 && !work) y->tensor[to] = x->tensor[i];
    }
    y->scalar = x->scalar;
    bool ran = tile_eval(c->backward, y, false, &diags);
    if (!ran) diag_print(&diags, stderr);
    ck_assert_msg(ran, "%s does not run", what);
    const double **demits = ARENA_ARRAY(c->a, const double *, c->v->emits.n + 1);
    double **dinputs = ARENA_ARRAY(c->a, double *, c->v->inputs.n + 1), *want[3];
    static const char *const names[] = {"dq", "dk", "dv"};
    for (int i = 0; i < 3; i++) {
        int at = pu_named(c->backward, names[i]);
        const TileTensor *t = &c->backward->tensors.data[at];
        want[i] = at < 0 ? NULL : ARENA_ARRAY(c->a, double, tile_tensor_elements(t, y->size) + 1);
    }
    for (int i = 0; i < c->backward->tensors.n; i++) {
        const TileTensor *t = &c->backward->tensors.data[i];
        if (t->role == TENSOR_DEMIT) demits[t->index] = y->tensor[i];
        if (t->role == TENSOR_GRAD)
            dinputs[t->index] = ARENA_ARRAY(c->a, double, tile_tensor_elements(t, y->size) + 1);
    }
    RefRun run = pu_run(c->a, c->v, c->forward, x, NULL);
    RefGrad g = {.run = &run,
                 .d_o = y->tensor[pu_named(c->backward, "do")],
                 .demits = demits,
                 .dq = want[0],
                 .dk = want[1],
                 .dv = want[2],
                 .dinputs = dinputs};
    ref_grad(&g);
    for (int i = 0; i < c->backward->tensors.n; i++) {
        const TileTensor *t = &c->backward->tensors.data[i];
        const double *expected = t->role == TENSOR_GRAD ? dinputs[t->index] : NULL;
        for (int k = 0; k < 3; k++)
            if (!strcmp(t->name, names[k])) expected = want[k];
        double most = 0, size_of = 1e-3;
        for (int64_t e = 0; expected && e < tile_tensor_elements(t, y->size); e++) {
            most =
                fmax(most, isnan(y->tensor[i][e]) ? INFINITY : fabs(expected[e] - y->tensor[i][e]));
            size_of = fmax(size_of, fabs(expected[e]));
        }
        ck_assert_msg(most <= 1e-5 * size_of, "%s: %s is off by %g of %g", what, t->name, most,
                      size_of);
    }
}

static inline void check(const char *path, const char *text, Dtype dtype) {
    static const int32_t launches[][6] = {{1, 1, 1, 5, 7, 2},
                                          {2, 4, 2, 9, 10, 1},
                                          {1, 2, 2, 4, 1, 0},
                                          {1, 1, 1, 3, 0, 0},
                                          {1, 2, 1, 13, 5, 0}};
    static const PuTiles tiles[] = {{0, 0}, {4, 3}};
    for (int t = 0; t < 2; t++)
        for (int d = 0; d < 2; d++) {
            Arena *a = arena_new();
            Case c = make(a, path, text, d, tiles[t], TARGET_HOST, dtype, (Knobs){0});
            ck_assert_msg(c.backward, "%s", text ? text : path);
            for (size_t i = 0; i < sizeof launches / sizeof *launches; i++)
                check_one(&c, launches[i], path);
            arena_free(a);
        }
}

static inline void check_as(const char *path, const char *text, bool deterministic, TargetId target,
                            Dtype dtype, Knobs schedule) {
    static const int32_t launches[][6] = {{1, 4, 2, 70, 133, 2}, {1, 1, 1, 3, 0, 0}};
    Arena *a = arena_new();
    Case c = make(a, path, text, deterministic, (PuTiles){0, 0}, target, dtype, schedule);
    ck_assert_msg(c.backward, "%s", text ? text : path);
    for (size_t i = 0; i < sizeof launches / sizeof *launches; i++)
        check_one(&c, launches[i], path);
    arena_free(a);
}

static inline void check_chosen(const char *path, const char *text, TargetId target, Dtype dtype,
                                Knobs schedule) {
    check_as(path, text, false, target, dtype, schedule);
}

static inline void check_scheduled(const char *path, const char *text, TargetId target,
                                   Dtype dtype) {
    check_chosen(path, text, target, dtype, (Knobs){0});
}

#endif
