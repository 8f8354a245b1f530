// Choices in loops over full tiles: gone where scores are finite, kept where an input may be -inf.
// (That the library computes what it computed, pass_programs and pass_sm90 tell.)
#include "pass_util.h"

static bool is_constant(const Ex *e) { return e->op == EX_CONST; }

// Of numbers; a row's choice of its unit is one of constants.
static void count_choices(void *ctx, const Ex *e) {
    *(int *)ctx += e->op == EX_SELECT && !(is_constant(e->args[1]) && is_constant(e->args[2]));
}

static int choices_in_full_tiles(const char *score) {
    Arena *a = arena_new();
    int n = 0;
    const char *text = arena_printf(a,
                                    "import std.mask; import std.normalization; "
                                    "attention t { dim D = 8; input bias: f32[Sk]; "
                                    "score(q, k) = dot(q, k); modify(s, b, h, q, k) = %s; "
                                    "mask(b, h, q, k) = causal(q, k); "
                                    "normalize(s) = softmax(s); }",
                                    score);
    const Stream *s = pu_stream(a, "t.attn", text, 0, NULL);
    TileProgram *p = pu_program(a, s, DT_F32, PU_SHAPED, (PuTiles){8, 8});
    const TileBlock *body = &p->kernels.data[0]->body;
    for (const TileOp *op = tile_next(body, NULL); op; op = tile_next(body, op))
        if (op->kind == TILE_MAP && op->block->owner && op->block->owner->tiles == CLASS_FULL)
            for (int i = 0; i < op->outs.n; i++) ex_visit(op->outs.data[i].body, count_choices, &n);
    arena_free(a);
    return n;
}

TEST(full_tiles_choose_only_where_they_must) {
    ck_assert_int_eq(choices_in_full_tiles("s"), 0);
    ck_assert_int_eq(choices_in_full_tiles("tanh(s * 0.05) * 20 + abs(k - q)"), 0);
    ck_assert_int_gt(choices_in_full_tiles("s + bias[k]"), 0); // a bias of -inf masks a key
}
