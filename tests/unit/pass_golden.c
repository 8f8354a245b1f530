// The schedules of the library as they are now: each variant's choices on every target, and for a
// few the order of the operations. A change of tests/tile/schedules.golden is a change of what
// kernels do: look at it, measure, then take it over with
//
//     UPDATE=1 build/tests/check_unit pass_golden
#include "tests/unit/pass_util.h"

static const char golden[] = "tests/tile/schedules.golden";

static TileProgram *program(Arena *a, const char *path, int D, TargetId target) {
    Diags diags = diag_list(a);
    Stream *s = pu_stream(a, path, NULL, D, NULL);
    PassOptions o = {.target = *target_get(target), // not the current machine
                     .dtype = target == TARGET_HOST ? DT_F32 : DT_BF16,
                     .split = true};
    TileProgram *p = pass_program(a, s, &o, NULL, &diags);
    test_good(p, &diags);
    return p;
}

// Kernels with the same choices stand together.
typedef struct Choices {
    const char *what;
    Text kernels;
} Choices;

static VEC(Choices) all;

static void choices(Arena *a, const TileProgram *p) {
    for (int i = 0; i < p->kernels.n; i++) {
        const TileKernel *k = p->kernels.data[i];
        if (!k->schedule.knobs.said || strstr(k->name, "_combine")) continue;
        const char *what = arena_printf(a, "%s D=%d %s", target_get(p->target)->name, p->D,
                                        knobs_text(a, &k->schedule.knobs));
        int c = 0;
        while (c < all.n && strcmp(all.data[c].what, what)) c++;
        if (c == all.n) VEC_PUSH(a, &all, ((Choices){what, text_new(a)}));
        text_printf(&all.data[c].kernels, " %s", k->name);
    }
}

// ---- the order of operations

static void operation(Text *t, const TileProgram *p, const TileOp *op) {
    static const char *const classes[] = {[CLASS_ANY] = "", " partial", " full"};
    text_puts(t, tile_kind_name(op->kind));
    if (op->role) text_printf(t, " %s", op->role);
    if (op->kind == TILE_LOOP || op->kind == TILE_AT) text_puts(t, classes[op->tiles]);
    if (op->kind == TILE_LOAD || op->kind == TILE_STORE || op->kind == TILE_COPY ||
        op->kind == TILE_FILL)
        text_printf(t, " %s", p->tensors.data[op->tensor].name);
    if (op->kind == TILE_TAKE || op->kind == TILE_DROP || op->kind == TILE_VIEW)
        text_printf(t, " %s", op->args.data[0]->name);
    if (op->kind == TILE_PIPE) text_printf(t, " stages %d", op->results.data[0]->stages);
    if (op->async) text_puts(t, " async");
    if (op->kind == TILE_MMA_WAIT || op->kind == TILE_WAIT) text_printf(t, " %d", op->pending);
    if (op->waits) text_printf(t, " waits %d after %d", op->pending, op->after);
    if (op->pass) text_puts(t, " pass");
    if (op->behind) text_puts(t, " behind");
    if (op->where || op->when) text_puts(t, " when");
}

static void block(Text *t, const TileProgram *p, const TileBlock *b, int depth) {
    for (const TileOp *op = b->first; op; op = op->next) {
        text_printf(t, "%*s", 2 * depth, "");
        operation(t, p, op);
        text_puts(t, "\n");
        block(t, p, &op->body, depth + 1);
    }
}

static void order(Text *t, const char *path, int D, TargetId target, const char *kernel) {
    Arena *a = arena_new();
    TileProgram *p = program(a, path, D, target);
    int i = 0;
    while (i < p->kernels.n && strcmp(p->kernels.data[i]->name, kernel)) i++;
    ck_assert_msg(i < p->kernels.n, "%s has no kernel %s", path, kernel);
    text_printf(t, "\n%s %s D=%d\n", target_get(target)->name, kernel, p->D);
    block(t, p, &p->kernels.data[i]->body, 1);
    arena_free(a);
}

// ---- all of it

static Arena *lasting;

static void add_choices(const char *path, int D) {
    static const TargetId targets[] = {TARGET_HOST, TARGET_SM80, TARGET_SM90A};
    for (size_t i = 0; i < sizeof targets / sizeof *targets; i++) {
        Arena *a = arena_new();
        choices(lasting, program(a, path, D, targets[i]));
        arena_free(a);
    }
}

static void write_all(Text *t) {
    static const int dims[] = {64, 128, 256};
    static const struct {
        const char *path;
        int D;
        TargetId target;
        const char *kernel;
    } orders[] = {
        {"stdlib/causal.attn", 128, TARGET_SM90A, "causal_fwd"},
        {"stdlib/softmax.attn", 256, TARGET_SM90A, "softmax_fwd"},
        {"stdlib/relu.attn", 64, TARGET_SM90A, "relu_fwd"},
        {"stdlib/sliding_window.attn", 128, TARGET_SM90A, "sliding_window_fwd"},
        {"stdlib/document.attn", 128, TARGET_SM90A, "document_fwd"},
        {"stdlib/document.attn", 128, TARGET_SM90A, "document_fwd_map"},
        {"stdlib/cosine_similarity.attn", 64, TARGET_SM90A, "cosine_similarity_fwd"},
        {"stdlib/causal.attn", 128, TARGET_SM80, "causal_fwd"},
        {"stdlib/causal.attn", 128, TARGET_SM80, "causal_part"},
        {"stdlib/relu.attn", 64, TARGET_SM80, "relu_fwd"},
        {"stdlib/causal.attn", 64, TARGET_HOST, "causal_fwd"},
    };
    lasting = t->arena;
    for (size_t i = 0; i < sizeof dims / sizeof *dims; i++) pu_library(add_choices, dims[i]);
    for (int i = 0; i < all.n; i++)
        text_printf(t, "%s:\n   %s\n", all.data[i].what, all.data[i].kernels.s);
    for (size_t i = 0; i < sizeof orders / sizeof *orders; i++)
        order(t, orders[i].path, orders[i].D, orders[i].target, orders[i].kernel);
}

static void expect_line(const char *is, const char *want) {
    int line = 1;
    while (*is && *is == *want) {
        line += *is == '\n';
        is++;
        want++;
    }
    while (is[-1] != '\n') is--, want--;
    ck_assert_msg(!*is && !*want, "%s:%d: now: %.*s\n    it was: %.*s", golden, line,
                  (int)strcspn(is, "\n"), is, (int)strcspn(want, "\n"), want);
}

ARENA_TEST(library) {
    char part[4096];
    size_t n;
    Text t = text_new(a), want = text_new(a);
    write_all(&t);
    FILE *f = fopen(golden, getenv("UPDATE") ? "w+" : "r");
    ck_assert_msg(f != NULL, "%s", golden);
    if (getenv("UPDATE")) {
        ck_assert(fwrite(t.s, 1, t.n, f) == t.n);
        rewind(f);
    }
    text_puts(&want, "");
    while ((n = fread(part, 1, sizeof part, f)) > 0) text_putn(&want, part, n);
    fclose(f);
    if (strcmp(t.s, want.s)) expect_line(t.s, want.s);
}
