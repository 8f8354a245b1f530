// Arena, text, diagnostics as printed, the name table, and sources that come from memory.
#include "frontend/frontend.h"
#include "frontend/names.h"
#include "tests/unit/test.h"

TEST(arena_is_zeroed_and_aligned) {
    Arena *a = arena_new();
    for (size_t n = 0; n < 100000; n = n * 3 + 1) {
        char *p = arena_alloc(a, n);
        ck_assert_uint_eq((uintptr_t)p % 16, 0);
        for (size_t i = 0; i < n; i++) ck_assert_int_eq(p[i], 0);
        memset(p, 0xff, n);
    }
    arena_free(a);
    arena_free(NULL);
}

static const char *f32_text(Arena *a, float x) {
    Text t = text_new(a);
    text_f32(&t, x);
    return t.s;
}

ARENA_TEST(f32_reads_back) {
    ck_assert_str_eq(f32_text(a, 0.1f), "0.1");
    ck_assert_str_eq(f32_text(a, 50), "50.0");
    ck_assert_str_eq(f32_text(a, -0.0f), "-0.0");
    ck_assert_str_eq(f32_text(a, INFINITY), "inf");
    ck_assert_str_eq(f32_text(a, -INFINITY), "-inf");
    ck_assert_str_eq(f32_text(a, NAN), "nan");
    uint32_t bits = 1;
    for (int i = 0; i < 20000; i++) {
        bits = bits * 1664525u + 1013904223u;
        float x, y;
        memcpy(&x, &bits, sizeof x);
        if (isnan(x)) continue;
        const char *s = f32_text(a, x);
        y = strtof(s, NULL);
        ck_assert_msg(memcmp(&x, &y, sizeof x) == 0, "%s", s);
        ck_assert_msg(strpbrk(s, ".einf") != NULL, "%s", s);
    }
}

ARENA_TEST(diagnostics_as_printed) {
    Diags d = diag_list(a);
    static const char text[] = "fn f(x) = \xc3\xa9y +\tz;\nlast \x1b[2J";
    uint16_t f = diag_add_file(&d, "t.attn", text, sizeof text - 1);
    diag_error(&d, (Span){f, 19, 23}, "second");
    Diag *g = diag_error(&d, (Span){f, 16, 17}, "no '%s' here", "z");
    diag_note(&d, g, (Span){f, 3, 4}, "see");
    diag_warning(&d, (Span){0}, "no place");
    char *out = NULL;
    size_t n = 0;
    FILE *stream = open_memstream(&out, &n);
    diag_print(&d, stream);
    fclose(stream);
    ck_assert_str_eq(out, "t.attn:1:16: error: no 'z' here\n"
                          "    fn f(x) = \xc3\xa9y + z;\n"
                          "                   ^\n"
                          "t.attn:1:4: note: see\n"
                          "    fn f(x) = \xc3\xa9y + z;\n"
                          "       ^\n"
                          "t.attn:2:1: error: second\n"
                          "    last ?[2J\n"
                          "    ^~~~\n"
                          "attnc: warning: no place\n");
    free(out);
}

ARENA_TEST(names) {
    NameMap m = {0};
    ck_assert_ptr_null(names_get(&m, "a"));
    for (int i = 0; i < 1000; i++) names_put(a, &m, arena_printf(a, "name%d", i), &m);
    ck_assert_ptr_eq(names_get(&m, "name999"), &m);
    ck_assert_ptr_null(names_get(&m, "name1000"));
    NameGuess g;
    names_guess_init(&g, "sotfmax");
    names_guess(&g, "rowmax");
    names_guess(&g, "softmax");
    ck_assert_str_eq(g.best, "softmax");
    names_guess_init(&g, "x");
    names_guess(&g, "y");
    ck_assert_ptr_null(g.best);
}

static bool read_memory(void *ctx, Arena *a, const char *path, const char **text, size_t *n,
                        const char **why) {
    (void)a;
    (void)ctx;
    static const char *const files[][2] = {
        {"<std>/one.attn", "const ONE = 1;"},
        {"here/main.attn", "import std.one; import two; attention m { dim D = ONE + TWO;"
                           "score(q, k) = dot(q, k); normalize(s) = s; }"},
        {"dir/two.attn", "const TWO = 2;"},
    };
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        if (!strcmp(files[i][0], path)) {
            *text = files[i][1];
            *n = strlen(*text);
            return true;
        }
    *why = "not there";
    return false;
}

ARENA_TEST(sources_from_memory) {
    Diags d = diag_list(a);
    FeStatus status;
    const char *dirs[] = {"nowhere", "dir"};
    FeOptions o = {
        .path = "here/main.attn", .stdlib = "<std>", .dirs = dirs, .ndirs = 2, .read = read_memory};
    Module *m = fe_load(a, &d, &o, &status);
    ck_assert_msg(status == FE_OK, "%s", d.first ? d.first->message : "");
    ck_assert_int_eq(fe_find(m, NULL)->D, 3);
    ck_assert_ptr_null(fe_find(m, "n"));
    o.path = "missing.attn";
    ck_assert_ptr_null(fe_load(a, &d, &o, &status));
    ck_assert_int_eq(status, FE_SYSTEM);
}

ARENA_TEST(recurrences_are_lowered) {
    Diags d = diag_list(a);
    FeStatus status;
    static const char text[] =
        "recurrence r { dim D = 2; input x: f32[H, S]; key(k, b, h, t) = k * x[h, t] * x[b, b]; }";
    FeOptions o = {.path = "r.attn", .text = text, .text_bytes = sizeof text - 1};
    Module *m = fe_load(a, &d, &o, &status);
    ck_assert_int_eq(status, FE_OK);
    RecProgram *p = fe_lower_recurrence(a, m->variants.data[0]);
    const char *name[REC_CLAUSES];
    ck_assert_int_eq(rec_clauses(p, name, NULL), 5);
    ck_assert_ptr_null(p->erase);
    Text t = text_new(a);
    rec_print(&t, p);
    ck_assert_str_eq(
        t.s, "recurrence r D=2 Dv=2\n  input x: f32[H, S]\n  query = q\n"
             "  key = ((k * x![h, t]) * x[b, b])\n  value = v\n  decay = 1.0\n  output = o\n");
}
