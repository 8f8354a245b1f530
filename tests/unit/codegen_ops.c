// Every scalar operation in host code against its one definition (ex_apply), on edge values, in
// vectors of every width and as scalars; and the accuracy of the mathematical functions over their
// range.
#include "codegen_util.h"
#include "ir/expr_ops.h"

#include <limits.h>

typedef struct Case {
    ExOp op;
    ExType type, args[3];
    int n, tensor;
} Case;

typedef struct Bench {
    Arena *a;
    ExPool *x;
    TileProgram *p;
    TileKernel *k;
    int in[3][3]; // tensors by type and place
    TileValue *value[3][3];
    VEC(Case) cases;
    int32_t size[SIZE_FREE];
    TileData d;
    int lanes; // 4: without fused multiply-add
} Bench;

static const double f32_edges[] = {
    0.0,    -0.0,  1.0,    -1.0,    0.5,        -0.5,         2.0,      -2.5,      3.7f,  1e-6f,
    1e-40f, 0.25,  88.0,   -87.0,   100.0,      -100.0,       1e10f,    -1e10f,    3e38f, -3e38f,
    1.4f,   -0.1f, 127.9f, -126.5f, 16777215.0, 2147483648.0, INFINITY, -INFINITY, NAN};
static const int32_t i32_edges[] = {0,       1,       -1,          2,     -3,     7,
                                    31,      32,      33,          -32,   12345,  -12345,
                                    INT_MAX, INT_MIN, INT_MIN + 1, 65536, 1 << 30};
enum { NF = sizeof f32_edges / sizeof *f32_edges, NI = sizeof i32_edges / sizeof *i32_edges };

// ---- a program with a map for each case

static int tensor(Bench *b, const char *name, TensorRole role, int index, Dtype t) {
    TileTensor x = {.name = name, .role = role, .index = index, .dtype = t, .rank = 1};
    x.extent[0] = ex_sym(b->x, SYM_SIZE, SIZE_SQ, EX_I32);
    VEC_PUSH(b->a, &b->p->tensors, x);
    return b->p->tensors.n - 1;
}

static void coordinate(Bench *b, TileOp *op, int tensor_) {
    op->tensor = tensor_;
    op->coord[0] = (TileCoord){.axis = 0, .at = ex_sym(b->x, SYM_TILE, 0, EX_I32)};
}

static const Dtype dtype_of[] = {[EX_BOOL] = DT_BOOL, [EX_I32] = DT_I32, [EX_F32] = DT_F32};
static const uint8_t axis_m[] = {0};

static void open_bench(Bench *b, Arena *a, int n, int tile, bool lanes) {
    Span none = {0};
    *b = (Bench){.a = a, .x = ex_pool(a)};
    b->p = tile_program(a, b->x, "ops");
    b->p->dtype = DT_F32;
    b->p->D = b->p->Dv = 1;
    b->p->scheduled = true;
    b->k = tile_kernel(b->p, "ops", PURPOSE_ATTENTION);
    tile_axis(b->k, "M", ex_sym(b->x, SYM_SIZE, SIZE_SQ, EX_I32), false);
    b->k->axes[0].extent = tile;
    b->k->schedule.lane_axis = lanes ? 0 : -1;
    b->k->mask = ex_bool(b->x, true);
    b->k->ngrid = 1;
    b->k->grid[0] = (TileGrid){.sym = SYM_TILE, .count = ex_i32(b->x, (n + tile - 1) / tile)};
    for (int t = 0; t < 3; t++)
        for (int i = 0; i < 3; i++) {
            int index = t * 3 + i;
            b->in[t][i] =
                tensor(b, arena_printf(a, "in%d", index), TENSOR_INPUT, index, dtype_of[t]);
            VEC_PUSH(a, &b->p->inputs, b->in[t][i]);
            TileOp *load = tile_op(b->p, b->k, &b->k->body, TILE_LOAD, none);
            coordinate(b, load, b->in[t][i]);
            b->value[t][i] = tile_result(b->p, b->k, load, "v", dtype_of[t], axis_m, 1);
        }
    TilePlan plan = {0};
    VEC_PUSH(a, &plan.kernels, 0);
    VEC_PUSH(a, &b->p->plans, plan);
    b->size[SIZE_B] = b->size[SIZE_HQ] = b->size[SIZE_HKV] = b->size[SIZE_SK] = 1;
    b->size[SIZE_SQ] = n;
}

static void add_case(Bench *b, Case c) {
    Span none = {0};
    const Ex *args[3];
    TileOp *map = tile_op(b->p, b->k, &b->k->body, TILE_MAP, none);
    for (int i = 0; i < c.n; i++) {
        tile_arg(b->p, map, b->value[c.args[i]][i]);
        args[i] = ex_sym(b->x, SYM_PARAM, i, c.args[i]);
    }
    const Ex *e = c.op == EX_CONV ? ex_conv(b->x, c.type, args[0]) : ex_op(b->x, c.op, args, c.n);
    map->naxes = 1;
    TileResult r = {.body = e, .reduce = EX_CONST};
    VEC_PUSH(b->a, &map->outs, r);
    TileValue *v = tile_result(b->p, b->k, map, "r", dtype_of[c.type], axis_m, 1);
    int emit = b->cases.n;
    c.tensor = tensor(b, arena_printf(b->a, "out%d", emit), TENSOR_EMIT, emit, dtype_of[c.type]);
    TileOp *store = tile_op(b->p, b->k, &b->k->body, TILE_STORE, none);
    coordinate(b, store, c.tensor);
    tile_arg(b->p, store, v);
    VEC_PUSH(b->a, &b->cases, c);
}

// Every operation on every choice of argument types that it takes.
static void add_all(Bench *b) {
    for (int op = EX_ADD; op < EX_ROWMAX; op++) {
        int n = ex_ops[op].arity;
        for (int code = 0; code < 27 && op != EX_CONV; code++) {
            Case c = {.op = (ExOp)op, .n = n, .args = {code % 3, code / 3 % 3, code / 9}};
            bool repeated = (n < 2 && c.args[1]) || (n < 3 && c.args[2]);
            if (!repeated && ex_op_typed(c.op, c.args, n, &c.type)) add_case(b, c);
        }
    }
    for (int from = 0; from < 3; from++)
        for (int to = 0; to < 3; to++)
            if (from != to)
                add_case(b,
                         (Case){.op = EX_CONV, .type = (ExType)to, .args = {(ExType)from}, .n = 1});
}

static void make_data(Bench *b) {
    int n = b->size[SIZE_SQ];
    b->d = (TileData){
        .tensor = ARENA_ARRAY(b->a, double *, b->p->tensors.n), .size = b->size, .workers = 1};
    b->d.scalar = ARENA_ARRAY(b->a, double, b->p->inputs.n);
    for (int i = 0; i < b->p->tensors.n; i++) b->d.tensor[i] = ARENA_ARRAY(b->a, double, n);
}

static double *input(Bench *b, ExType t, int place) { return b->d.tensor[b->in[t][place]]; }

static void fill_edges(Bench *b) {
    for (int i = 0; i < b->size[SIZE_SQ]; i++)
        for (int place = 0; place < 3; place++) {
            int f = place == 0 ? i % NF : place == 1 ? i / NF % NF : (i * 7 + 3) % NF;
            int k = place == 0 ? i % NI : place == 1 ? i / NI % NI : (i * 5 + 2) % NI;
            input(b, EX_F32, place)[i] = f32_edges[f];
            input(b, EX_I32, place)[i] = i32_edges[k];
            input(b, EX_BOOL, place)[i] = i >> place & 1;
        }
}

// ---- what is right

static ExValue value_of(ExType t, double v) {
    ExValue x = {.f = 0};
    if (t == EX_F32)
        x.f = v;
    else
        x.i = (int32_t)v;
    return x;
}

static double expected(Bench *b, const Case *c, int i) {
    ExValue v[3];
    for (int k = 0; k < c->n; k++) v[k] = value_of(c->args[k], input(b, c->args[k], k)[i]);
    ExValue r = ex_apply(c->op, c->type, c->args, v, true);
    return c->type == EX_F32 ? r.f : r.i;
}

static bool is_math(ExOp op) { return (op >= EX_EXP && op <= EX_POW) || op == EX_FMA; }

static bool right(Bench *b, const Case *c, int i, double got, double want) {
    double x = input(b, EX_F32, 0)[i], y = input(b, EX_F32, 1)[i];
    if (c->op == EX_FMA && b->lanes == 4 && fabs(x * y) > 3e38)
        return true; // the product alone overflows
    if (isnan(want) || isnan(got)) return isnan(want) && isnan(got);
    if (got == want || c->type != EX_F32) return got == want;
    if (fabs(want) < 1.2e-38 && fabs(got) < 1.2e-38)
        return true; // below the normal range results are flushed
    if (c->op == EX_FMA) return fabs(got - want) <= 1e-6 * (fabs(x * y) + fabs(want));
    return is_math(c->op) && fabs(got - want) <= 3e-7 * fabs(want);
}

static void compare(Bench *b, const char *how) {
    for (int k = 0; k < b->cases.n; k++) {
        const Case *c = &b->cases.data[k];
        for (int i = 0; i < b->size[SIZE_SQ]; i++) {
            double got = b->d.tensor[c->tensor][i], want = expected(b, c, i);
            ck_assert_msg(right(b, c, i, got, want),
                          "%s %s of %s (%.9g, %.9g, %.9g) is %.9g, not %.9g", how,
                          ex_op_name(c->op), ex_type_name(c->args[0]), input(b, c->args[0], 0)[i],
                          input(b, c->args[1], 1)[i], input(b, c->args[2], 2)[i], got, want);
        }
    }
}

static void run_edges(int lanes, int tile, bool lane_axis) {
    Bench b;
    Target t;
    if (!cu_target(lanes, &t)) return;
    Arena *a = arena_new();
    open_bench(&b, a, NF * NF + 5, tile, lane_axis);
    add_all(&b);
    make_data(&b);
    fill_edges(&b);
    b.lanes = lanes;
    cu_run(a, b.p, &b.d, lanes, true);
    compare(&b, arena_printf(a, "lanes %d, tile %d:", lanes, tile));
    arena_free(a);
}

TEST(edges_in_16_lanes) { run_edges(16, 64, true); }
TEST(edges_in_8_lanes) { run_edges(8, 32, true); }
TEST(edges_in_4_lanes) { run_edges(4, 16, true); }
TEST(edges_one_by_one) { run_edges(4, 7, false); }

// ---- accuracy

static double uniform(void) { return rand() / (RAND_MAX + 1.0); }

// Half of them ordinary numbers, half of every magnitude.
static double sample(int i) {
    double v = (uniform() * 2 - 1) * 20;
    if (i % 2) v = (uniform() < 0.5 ? -1 : 1) * exp2(uniform() * 250 - 125);
    return (double)(float)v;
}

static void run_accuracy(int lanes) {
    Bench b;
    Target t;
    if (!cu_target(lanes, &t)) return;
    Arena *a = arena_new();
    srand(1);
    open_bench(&b, a, 20000, lanes * 4, true);
    for (int op = EX_EXP; op <= EX_POW; op++)
        add_case(&b, (Case){.op = (ExOp)op,
                            .type = EX_F32,
                            .args = {EX_F32, EX_F32},
                            .n = ex_ops[op].arity});
    make_data(&b);
    for (int i = 0; i < b.size[SIZE_SQ]; i++) {
        input(&b, EX_F32, 0)[i] = sample(i);
        input(&b, EX_F32, 1)[i] = (uniform() * 2 - 1) * 8;
        input(&b, EX_F32, 1)[i] = (double)(float)input(&b, EX_F32, 1)[i];
    }
    b.lanes = lanes;
    cu_run(a, b.p, &b.d, lanes, false);
    compare(&b, "accuracy:");
    arena_free(a);
}

TEST(functions_are_accurate) {
    run_accuracy(16);
    run_accuracy(8);
    run_accuracy(4);
}
