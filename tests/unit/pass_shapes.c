// What the passes leave of a program: how many operations of which kind, what stands in the loops,
// what moved out of them.
#include "pass_util.h"

typedef struct Count {
    int maps, maps_mn, loads, mmas, loops, full, masks, where;
} Count;

static void count_op(Count *c, const TileOp *op) {
    c->maps += op->kind == TILE_MAP;
    c->maps_mn += op->kind == TILE_MAP && op->naxes == 2 && op->axes[0] == 0 && op->axes[1] == 1;
    c->loads += op->kind == TILE_LOAD;
    c->mmas += op->kind == TILE_MMA;
    c->loops += op->kind == TILE_LOOP;
    c->full += op->kind == TILE_LOOP && op->tiles == CLASS_FULL;
    c->where += op->kind == TILE_LOOP && op->where;
    for (int i = 0; i < op->outs.n; i++) c->masks += ex_uses(op->outs.data[i].body, SYM_MASK, 0);
}

static Count count(const TileBlock *b) {
    Count c = {0};
    for (const TileOp *op = tile_next(b, NULL); op; op = tile_next(b, op)) count_op(&c, op);
    return c;
}

static TileProgram *program(Arena *a, const char *clauses, PuStage stage) {
    const char *text = arena_printf(a, "attention t { dim D = 8; %s }", clauses);
    return pu_program(a, pu_stream(a, "t.attn", text, 8, NULL), DT_BF16, stage, (PuTiles){8, 8});
}

static const TileOp *loop_of(const TileProgram *p, TileClass class) {
    for (const TileOp *op = p->kernels.data[0]->body.first; op; op = op->next)
        if (op->kind == TILE_LOOP && op->tiles == class) return op;
    return NULL;
}

static const char softmax[] = "score(q, k) = dot(q, k) * 0.125; normalize(s) { let m = rowmax(s); "
                              "let e = exp(s - m); return e / rowsum(e); }";
static const char causal[] = "mask(b, h, q, k) = k <= q; score(q, k) = dot(q, k) * 0.125; "
                             "normalize(s) { let m = rowmax(s); let e = exp(s - m);"
                             " return e / rowsum(e); }";

// One map for the scores and their maximum, one for the weights and their sum; a full tile needs
// the maximum of the products only.
ARENA_TEST(softmax_is_two_maps) {
    const TileProgram *p = program(a, causal, PU_SHAPED);
    Count partial = count(&loop_of(p, CLASS_PARTIAL)->body),
          full = count(&loop_of(p, CLASS_FULL)->body);
    ck_assert_int_eq(partial.maps_mn, 2);
    ck_assert_int_eq(full.maps_mn, 2);
    ck_assert_int_eq(full.maps, 5); // and: states, sum, rescaled accumulator
    ck_assert_int_eq(full.mmas, 2);
    ck_assert_int_eq(full.loads, 2);
    for (const TileOp *op = loop_of(p, CLASS_FULL)->body.first; op; op = op->next) {
        if (op->kind != TILE_MAP || op->naxes != 2 || op->axes[1] != 1) continue;
        for (int i = 0; i < op->outs.n; i++) {
            bool plain = op->outs.data[i].reduce == EX_ROWMAX;
            if (plain) ck_assert_int_eq(op->outs.data[i].body->op, EX_SYM);
        }
    }
}

ARENA_TEST(masks_are_expanded) {
    const TileProgram *fused = program(a, causal, PU_FUSED), *p = program(a, causal, PU_SHAPED);
    ck_assert_int_gt(count(&fused->kernels.data[0]->body).masks, 0);
    Count c = count(&p->kernels.data[0]->body);
    ck_assert_int_eq(c.masks, 0);
    ck_assert_int_eq(c.loops, 2);
    ck_assert_int_eq(c.full, 1);
    ck_assert_int_eq(c.where, 0);
    const TileOp *partial = loop_of(p, CLASS_PARTIAL), *full = loop_of(p, CLASS_FULL);
    ck_assert_ptr_eq(partial->to, full->from); // one sequence of tiles
    ck_assert_ptr_eq(partial->next, full);
    for (int i = 0; i < full->args.n; i++)
        ck_assert_ptr_eq(full->args.data[i], partial->results.data[i]);
}

static void find_select(void *ctx, const Ex *e) { *(int *)ctx += e->op == EX_SELECT; }

static int selects(const TileOp *loop) {
    int n = 0;
    for (const TileOp *op = loop->body.first; op; op = op->next)
        for (int i = 0; op->kind == TILE_MAP && i < op->outs.n; i++)
            ex_visit(op->outs.data[i].body, find_select, &n);
    return n;
}

// A score that is finite by itself asks the mask alone; one that may be -inf is looked at.
ARENA_TEST(full_tiles_test_no_finite_score) {
    static const char text[] = "score(q, k) = dot(q, k); "
                               "mask(b, h, q, k) = k <= q; modify(s, b, h, q, k) = %s; "
                               "normalize(s) = s / max(rowsum(abs(s)), 1);";
    const TileProgram *p = program(a, arena_printf(a, text, "s * exp2((k - q) * 0.1)"), PU_SHAPED);
    ck_assert_int_eq(selects(loop_of(p, CLASS_FULL)), 0);
    ck_assert_int_eq(selects(loop_of(p, CLASS_PARTIAL)), 2);
    p = program(a, arena_printf(a, text, "k == 3 ? -inf : s"), PU_SHAPED);
    ck_assert_int_gt(selects(loop_of(p, CLASS_FULL)), 1);
}

ARENA_TEST(no_full_tiles_no_full_loop) {
    const TileProgram *p =
        program(a,
                "input t: i32[Sk]; mask(b, h, q, k) = t[q * k] == 1; score(q, k) = "
                "dot(q, k); normalize(s) = s;",
                PU_SHAPED);
    ck_assert_ptr_null(loop_of(p, CLASS_FULL));
    ck_assert_ptr_nonnull(loop_of(p, CLASS_PARTIAL));
}

// Operations of the first sweep's body and of what stands before it.
static Count before_loops(const TileKernel *k) {
    Count c = {0};
    for (const TileOp *op = k->body.first; op && op->kind != TILE_LOOP; op = op->next)
        count_op(&c, op);
    return c;
}

static const char *const per_row[] = {
    "input x: f32[B, Sq]; modify(s, b, h, q, k) = s + x[b, q - q_offset];",
    "input x: f32[H]; modify(s, b, h, q, k) = s * exp(x[h]);",
    "modify(s, b, h, q, k) = s * rsqrt(f32(q + 1));"};
ARENA_TEST_EACH(invariants_leave_the_loop, 0, sizeof per_row / sizeof *per_row) {
    const char *rest = "score(q, k) = dot(q, k); normalize(s) = s;";
    const TileProgram *plain = program(a, rest, PU_SHAPED);
    const TileProgram *p = program(a, arena_printf(a, "%s %s", per_row[_i], rest), PU_SHAPED);
    ck_assert_int_eq(before_loops(p->kernels.data[0]).maps,
                     before_loops(plain->kernels.data[0]).maps + 1);
    ck_assert_int_eq(count(&loop_of(p, CLASS_FULL)->body).maps,
                     count(&loop_of(plain, CLASS_FULL)->body).maps);
}

// What is the same down a column is computed once a column, in the loop.
ARENA_TEST(columns_leave_the_map) {
    const TileProgram *p = program(a,
                                   "input x: f32[B, Sk]; modify(s, b, h, q, k) = s * exp(x[b, k]); "
                                   "score(q, k) = dot(q, k); normalize(s) = s;",
                                   PU_SHAPED);
    const TileOp *loop = loop_of(p, CLASS_FULL), *column = NULL;
    for (const TileOp *op = loop->body.first; op; op = op->next)
        if (op->kind == TILE_MAP && op->naxes == 1 && op->axes[0] == 1) column = op;
    ck_assert_ptr_nonnull(column);
    const Ex *load = column->outs.data[0].body->args[0];
    while (load->op != EX_LOAD) load = load->args[0];
    ck_assert(load->inside); // of a full tile every key exists
}

// A map's operands are registers: what does not fit among them stays where it is.
ARENA_TEST(operands_are_few) {
    Text t = text_new(a);
    for (int i = 0; i < 100; i++) text_printf(&t, " + sin(f32(k) * %d.5)", i);
    const TileProgram *p = program(
        a,
        arena_printf(a, "modify(s, b, h, q, k) = s%s; score(q, k) = dot(q, k); normalize(s) = s;",
                     t.s),
        PU_SHAPED);
    for (const TileOp *op = tile_next(&p->kernels.data[0]->body, NULL); op;
         op = tile_next(&p->kernels.data[0]->body, op))
        if (op->kind == TILE_MAP) ck_assert_int_le(op->args.n, PASS_MAX_OPERANDS);
}

// The passes are at rest: running them again changes nothing.
static const char *const cases[] = {
    softmax, causal,
    "score(q, k) = dot(q, k); normalize(s) { let n = rowsum(1.0); return s - rowsum(s) / n; }"};

ARENA_TEST_EACH(passes_are_idempotent, 0, sizeof cases / sizeof *cases) {
    TileProgram *p = program(a, cases[_i], PU_SHAPED);
    Text before = text_new(a), after = text_new(a);
    tile_print(&before, p);
    pass_tidy(p);
    pass_hoist(p);
    pass_fuse(p);
    tile_print(&after, p);
    ck_assert_str_eq(before.s, after.s);
}

ARENA_TEST(extents) {
    TileProgram *p = program(a, softmax, PU_FUSED);
    TileKernel *k = p->kernels.data[0];
    pass_bind(p, k, 0, 16);
    pass_bind(p, k, 1, 32);
    int32_t size[SIZE_FREE] = {1, 1, 1, 33, 65, 0};
    ck_assert_int_eq(tile_eval_launch(k->grid[2].count, size, 1), 3);
    const TileOp *loop = loop_of(p, CLASS_ANY);
    ck_assert_int_eq(tile_eval_launch(loop->to, size, 1), 3);
}
