// Recurrences by chunks, tests/tile/mamba2.tile and gated_delta.tile, against the recurrence itself, step after step: as they
// stand, where one tile is the whole sequence, in chunks of several sizes, and as host code.
#include "codegen_util.h"
#include "passes/passes.h"
#include "tests/unit/tile_util.h"

typedef struct Rec { // of one head: what a step reads, and the state
    int t, D, Dv;
    const double *q, *k, *v;
    double first, second; // the two inputs with a number for each position
    double *S;
} Rec;

static double dot(const double *x, const double *y, int n) {
    double sum = 0;
    for (int d = 0; d < n; d++) sum += x[d] * y[d];
    return sum;
}

static void scale(Rec *r, double by) { // 0 forgets what is infinite, too
    for (int i = 0; i < r->D * r->Dv; i++) r->S[i] = by == 0 ? 0 : r->S[i] * by;
}

static double read_state(const Rec *r, const double *x, int e) {
    double sum = 0;
    for (int d = 0; d < r->D; d++) sum += x[d] * r->S[d * r->Dv + e];
    return sum;
}

static void write_state(Rec *r, const double *x, double by, int e) {
    for (int d = 0; d < r->D; d++) r->S[d * r->Dv + e] += x[d] * by;
}

static double mamba2(Rec *r) {
    scale(r, exp2(r->first * r->second * (double)1.442695f));
    for (int e = 0; e < r->Dv; e++) write_state(r, r->k, r->first * r->v[e], e);
    return 1;
}

static double norm(const Rec *r, const double *x) {
    return 1 / sqrt(dot(x, x, r->D) + (double)1e-6f);
}

static double gated_delta(Rec *r) {
    double n = norm(r, r->k);
    scale(r, exp2(r->first * (double)1.442695f));
    for (int e = 0; e < r->Dv; e++) {
        double u = n * read_state(r, r->k, e);
        write_state(r, r->k, n * r->second * (r->v[e] - u), e);
    }
    return norm(r, r->q) * 0.125;
}

typedef struct Case {
    const char *name;
    double (*step)(Rec *r); // gives what the read is multiplied with
    bool second_by_head;    // of the second input
} Case;
static const Case cases[] = {{"mamba2", mamba2, true}, {"gated_delta", gated_delta, false}};

enum { Q, K, V, FIRST, SECOND, STATE0, O, STATE };

// Decays up to 1 with zeros among them, steps and betas from 0 to 1.
static void tame(const Case *c, const TileProgram *p, const TileData *d) {
    for (int i = 0; i < tile_tensor_elements(&p->tensors.data[FIRST], d->size); i++) {
        double *x = &d->tensor[FIRST][i];
        *x = fmod(fabs(*x), 1);
        if (!c->second_by_head) *x = i % 13 == 5 ? -INFINITY : -*x;
        *x = (double)(float)*x;
    }
    for (int i = 0; i < tile_tensor_elements(&p->tensors.data[SECOND], d->size); i++) {
        double *x = &d->tensor[SECOND][i];
        *x = (double)(float)(fmod(fabs(*x), 1) * (c->second_by_head ? -1 : 1));
    }
}

static void near(double got, double want, double bound, const char *what, int at) {
    ck_assert_msg(fabs(got - want) <= bound * (1 + fabs(want)), "%s, %d: %g is not %g", what, at,
                  got, want);
}

static void check_head(const Case *c, const TileProgram *p, const TileData *d, int b, int h,
                       double bound, const char *what) {
    const int32_t *z = d->size;
    int64_t head = (int64_t)b * z[SIZE_HQ] + h, S = z[SIZE_SQ];
    int64_t shared = (int64_t)b * z[SIZE_HKV] + h * z[SIZE_HKV] / z[SIZE_HQ];
    Rec r = {.D = p->D, .Dv = p->Dv, .S = malloc(sizeof(double) * (size_t)(p->D * p->Dv))};
    memcpy(r.S, d->tensor[STATE0] + head * r.D * r.Dv, sizeof(double) * (size_t)(r.D * r.Dv));
    for (r.t = 0; r.t < S; r.t++) {
        r.q = d->tensor[Q] + (shared * S + r.t) * r.D;
        r.k = d->tensor[K] + (shared * S + r.t) * r.D;
        r.v = d->tensor[V] + (head * S + r.t) * r.Dv;
        r.first = d->tensor[FIRST][head * S + r.t];
        r.second = d->tensor[SECOND][c->second_by_head ? h : head * S + r.t];
        double by = c->step(&r);
        for (int e = 0; e < r.Dv; e++)
            near(d->tensor[O][(head * S + r.t) * r.Dv + e], by * read_state(&r, r.q, e), bound,
                 what, r.t);
    }
    for (int i = 0; i < r.D * r.Dv; i++)
        near(d->tensor[STATE][head * r.D * r.Dv + i], r.S[i], bound, what, i);
    free(r.S);
}

static void check(const Case *c, const TileProgram *p, const TileData *d, double bound,
                  const char *what) {
    for (int b = 0; b < d->size[SIZE_B]; b++)
        for (int h = 0; h < d->size[SIZE_HQ]; h++) check_head(c, p, d, b, h, bound, what);
}

static const int32_t sizes[][6] = {
    {2, 2, 1, 37, 37, 0}, {1, 2, 2, 64, 64, 0}, {1, 1, 1, 1, 1, 0}, {1, 1, 1, 0, 0, 0}};

static void interpret(Arena *a, const Case *c, const TileProgram *p, const char *what) {
    Diags diags = diag_list(a);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int round = 0; round < 2; round++) {
            if (!p->scheduled && round && !sizes[i][SIZE_SQ]) continue;
            TileData *d = tile_data_random(a, p, sizes[i], 4, 1);
            tame(c, p, d);
            test_good(tile_eval(p, d, round, &diags), &diags);
            check(c, p, d, round ? 5e-2 : 1e-9, what);
        }
}

TEST(the_algorithm_is_the_recurrence) {
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Arena *a = arena_new();
        interpret(a, &cases[i], tu_parse(a, tu_tile(a, cases[i].name)), cases[i].name);
        arena_free(a);
    }
}

static TileProgram *scheduled(Arena *a, const Case *c, PassOptions *o) {
    Diags diags;
    TileProgram *p = tu_parse(a, tu_tile(a, c->name));
    p->target = o->target.id;
    o->dtype = p->dtype;
    test_good(pass_finish(p, o, &diags), &diags);
    return p;
}

TEST(host_code_is_the_recurrence) {
    static const char *const schedules[] = {"rows=64,keys=16", "rows=32,keys=48",
                                            "rows=16,keys=24"};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int s = 0; s < 3; s++) {
            Arena *a = arena_new();
            PassOptions o = {0};
            ck_assert_ptr_null(knobs_parse(a, schedules[s], &o.schedule));
            int lanes = s == 2 ? 4 : 16;
            if (cu_target(lanes, &o.target)) {
                TileProgram *p = scheduled(a, &cases[i], &o);
                if (s == 0) interpret(a, &cases[i], p, schedules[s]);
                for (size_t j = 0; j < sizeof sizes / sizeof *sizes; j++) {
                    TileData *d = tile_data_random(a, p, sizes[j], 4, 1);
                    tame(&cases[i], p, d);
                    cu_run(a, p, d, lanes, j % 2);
                    check(&cases[i], p, d, 1e-2, cases[i].name);
                }
            }
            arena_free(a);
        }
}

// The barriers between what lies in shared memory check_gcn looks at (tests/gcn/tiles.h).
TEST(gpu_schedules_are_the_recurrence) {
    static const TargetId targets[] = {TARGET_SM80, TARGET_GFX90A, TARGET_GFX1100};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int t = 0; t < 3; t++) {
            Arena *a = arena_new();
            PassOptions o = {.target = cg_target(targets[t])};
            TileProgram *p = scheduled(a, &cases[i], &o);
            interpret(a, &cases[i], p, o.target.name);
            arena_free(a);
        }
}
