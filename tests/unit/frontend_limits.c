// The language's limits: met, and passed by one: a clear error, never a crash, and never work that
// doubles with each level.
#include "frontend/frontend.h"
#include "tests/unit/test.h"

typedef struct Load {
    Arena *a;
    Diags d;
    FeStatus status;
    Module *m;
} Load;

static Load load(const char *text, size_t n) {
    Load l = {.a = arena_new()};
    l.d = diag_list(l.a);
    FeOptions o = {.path = "limits.attn", .text = text, .text_bytes = n, .stdlib = "stdlib"};
    l.m = fe_load(l.a, &l.d, &o, &l.status);
    return l;
}

static void accepts(const Text *t) {
    Load l = load(t->s, t->n);
    ck_assert_msg(l.status == FE_OK, "%s", l.d.first ? l.d.first->message : "");
    ck_assert_ptr_nonnull(fe_lower(l.a, &l.d, l.m->variants.data[0]));
    arena_free(l.a);
}

static void refuses(const Text *t, const char *message) {
    Load l = load(t->s, t->n);
    ck_assert_int_eq(l.status, FE_SOURCE);
    ck_assert_msg(strstr(l.d.first->message, message) != NULL, "%s", l.d.first->message);
    ck_assert_int_eq(l.d.errors, 1);
    arena_free(l.a);
}

static void repeat(Text *t, const char *s, int n) {
    for (int i = 0; i < n; i++) text_puts(t, s);
}

static void attention(Text *t, const char *before, int n, const char *middle, const char *after) {
    text_puts(t, "attention a { dim D = 1; score(q, k) = dot(q, k); normalize(s) = ");
    repeat(t, before, n);
    text_puts(t, middle);
    repeat(t, after, n);
    text_puts(t, "; }\n");
}

ARENA_TEST(nesting) {
    static const struct {
        const char *before, *after;
    } kinds[] = {{"(", ")"},          {"-", ""},      {"abs(", ")"},
                 {"true ? s : ", ""}, {"s + (", ")"}, {"1 < 2 ? ", " : s"}};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        for (int n = 256; n <= 100000; n += n == 256 ? 1 : 99743) {
            Text t = text_new(a);
            attention(&t, kinds[i].before, n, "s", kinds[i].after);
            if (n == 256)
                accepts(&t);
            else
                refuses(&t, "nesting deeper than 256 levels");
        }
}

ARENA_TEST(calls) {
    for (int depth = 256; depth <= 257; depth++) {
        Text t = text_new(a);
        text_puts(&t, "fn g1(x) = x;\n");
        for (int i = 2; i <= depth; i++) text_printf(&t, "fn g%d(x) = g%d(x);\n", i, i - 1);
        attention(&t, "", 0, arena_printf(a, "g%d(s)", depth), "");
        if (depth == 256)
            accepts(&t);
        else
            refuses(&t, "calls more than 256 functions deep");
    }
}

ARENA_TEST(inputs) {
    for (int n = 64; n <= 65; n++) {
        Text t = text_new(a);
        text_puts(&t, "attention a { dim D = 1; score(q, k) = dot(q, k); normalize(s) = s;");
        for (int i = 0; i < n; i++) text_printf(&t, "input i%d: f32;", i);
        text_puts(&t, "}");
        if (n == 64)
            accepts(&t);
        else
            refuses(&t, "more than 64 inputs");
    }
}

ARENA_TEST(operations) {
    for (int n = 100000; n <= 100001; n++) {
        Text t = text_new(a);
        attention(&t, "s + ", n, "s", "");
        if (n == 100000)
            accepts(&t);
        else
            refuses(&t, "more than 100000 operations after inlining");
    }
}

// Each level doubles what the one below it comes to.
ARENA_TEST(doubling) {
    static const struct {
        const char *first, *next, *refused;
    } kinds[] = {
        {"x + x", "g%d(x) + g%d(x + 1)", "operations"},
        {"x + x", "g%d(g%d(x))", "operations"},
        {"x", "g%d(g%d(1))", NULL},
        {"x + x", "g%d(x) * 0.5 + sin(g%d(x))", NULL}, // shared: 4 operations a level
        {"x", "g%d(x) < g%d(x + 1) ? 1 : 0", "operations"},
    };
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        Text t = text_new(a);
        text_printf(&t, "fn g0(x) = %s;\n", kinds[k].first);
        for (int i = 1; i < 200; i++) {
            char body[100];
            snprintf(body, sizeof body, kinds[k].next, i - 1, i - 1);
            text_printf(&t, "fn g%d(x) = %s;\n", i, body);
        }
        attention(&t, "", 0, "g199(s)", "");
        if (kinds[k].refused)
            refuses(&t, kinds[k].refused);
        else
            accepts(&t);
    }
}

// Each is a number that rows carry: as many as a map may have operands.
ARENA_TEST(reductions) {
    for (int n = ROW_MAX_REDUCES; n <= ROW_MAX_REDUCES + 1; n++) {
        Text t = text_new(a), sum = text_new(a);
        for (int i = 1; i <= n; i++) text_printf(&sum, " + rowsum(tanh(s * %d.5))", i);
        attention(&t, "", 0, arena_printf(a, "s%s", sum.s), "");
        if (n == ROW_MAX_REDUCES) {
            accepts(&t);
            continue;
        }
        Load l = load(t.s, t.n);
        ck_assert_int_eq(l.status, FE_OK);
        ck_assert_ptr_null(fe_lower(l.a, &l.d, l.m->variants.data[0]));
        ck_assert_int_eq(l.d.errors, 1);
        ck_assert_ptr_nonnull(strstr(l.d.first->message, "65 different reductions"));
        arena_free(l.a);
    }
}

// A `let` that is used twice is counted once.
ARENA_TEST(shared) {
    for (int n = 50000; n <= 50001; n++) {
        Text t = text_new(a);
        text_puts(&t,
                  "attention a { dim D = 1; score(q, k) = dot(q, k); normalize(s) { let x0 = s;");
        for (int i = 0; i < n; i++) text_printf(&t, "let x%d = x%d + sin(x%d);", i + 1, i, i);
        text_printf(&t, "return x%d; } }\n", n);
        if (n == 50000)
            accepts(&t);
        else
            refuses(&t, "more than 100000 operations after inlining");
    }
}

TEST(any_bytes) {
    static char text[1 << 16];
    uint64_t state = 88172645463325252u;
    for (int round = 0; round < 200; round++) {
        int n = 1 + round * 200;
        for (int i = 0; i < n; i++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            text[i] =
                round % 2 ? (char)(state >> 33) : "(){}[];=,?:+-*/ aDs1\n"[(state >> 33) % 21];
        }
        Load l = load(text, (size_t)n);
        ck_assert_int_eq(l.status, FE_SOURCE);
        arena_free(l.a);
    }
}

ARENA_TEST(many_errors) {
    Text t = text_new(a);
    for (int i = 0; i < 1000; i++) text_printf(&t, "const c%d = x%d;\n", i, i);
    Load l = load(t.s, t.n);
    ck_assert_int_eq(l.d.errors, 1000);
    int kept = 0;
    for (const Diag *g = l.d.first; g; g = g->next) kept++;
    ck_assert_int_eq(kept, DIAG_MAX_ERRORS);
    arena_free(l.a);
}
