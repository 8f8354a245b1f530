// What is said where one sweep over the keys is not enough: which reduction is in the way, by the
// name that whoever wrote it knows it by, and where it stands.
#include "pass_util.h"

// The first note about clauses `normalize(s) { body }` after some functions, at which text it points, and
// the note to it with its text (NULL: none; "": in another file).
static void expect_notes(const char *functions, const char *body, const char *says,
                         const char *points_at, const char *more, const char *more_at) {
    Arena *a = arena_new();
    const char *text = arena_printf(a,
                                    "%s attention t { dim D = 8; score(q, k) = dot(q, k); "
                                    "normalize(s) { %s } }",
                                    functions, body);
    Diags diags = diag_list(a);
    FeOptions o = {.path = "t.attn", .text = text, .text_bytes = strlen(text), .stdlib = "stdlib"};
    FeStatus status;
    Module *m = fe_load(a, &diags, &o, &status);
    ck_assert_ptr_nonnull(m);
    pass_derive(a, fe_lower(a, &diags, fe_find(m, NULL)), &diags);
    ck_assert_ptr_nonnull(diags.first);
    const char *message = diags.first->message;
    ck_assert_msg(!strncmp(message, says, strlen(says)), "%s", message);
    ck_assert_uint_eq(diags.first->span.file, 1);
    ck_assert_uint_eq(diags.first->span.start, (size_t)(strstr(text, points_at) - text));
    const Diag *note = diags.first->note;
    ck_assert_int_eq(note != NULL, more != NULL);
    if (note) ck_assert_str_eq(note->message, more);
    if (note) ck_assert_int_eq(note->span.file == 1, *more_at != '\0');
    if (note && *more_at)
        ck_assert_uint_eq(note->span.start, (size_t)(strstr(text, more_at) - text));
    arena_free(a);
}

static void expect_note(const char *body, const char *says, const char *points_at) {
    expect_notes("", body, says, points_at, NULL, NULL);
}

// Of clauses after `score`.
static void expect_sweeps(const char *clauses, int sweeps) {
    Arena *a = arena_new();
    const char *text = arena_printf(a,
                                    "import std.math; import std.normalization; attention t { "
                                    "dim D = 8; input g: f32[B, Hkv, Sk]; score(q, k) = dot(q, k) "
                                    "* rsqrt(D); %s }",
                                    clauses);
    Diags diags = diag_list(a);
    FeOptions o = {.path = "t.attn", .text = text, .text_bytes = strlen(text), .stdlib = "stdlib"};
    FeStatus status;
    Module *m = fe_load(a, &diags, &o, &status);
    ck_assert_msg(m != NULL, "%s", text);
    Stream *s = pass_derive(a, fe_lower(a, &diags, fe_find(m, NULL)), &diags);
    ck_assert_msg(s->nsweeps == sweeps, "%s", text);
    arena_free(a);
}

// A number that a formula holds in its bounds does so however it is written.
TEST(bounds_are_found_in_other_words) {
    static const struct {
        const char *clauses;
        int sweeps;
    } of[] = {
        {"value(v, b, h, j) = v * sigmoid(g[b, h, j]); normalize(s) = softmax(s);", 1},
        {"value(v, b, h, j) = v / (1 + exp(g[b, h, j])); normalize(s) = softmax(s);", 1},
        {"value(v, b, h, j) = v * exp(g[b, h, j]); normalize(s) = softmax(s);", 2},
        {"value(v, b, h, j) = v * softplus(g[b, h, j]); normalize(s) = softmax(s);", 1},
        {"modify(s) = softplus(s); normalize(s) = s / rowsum(s);", 1},
        {"modify(s) = !(s < 0 || s > 9) ? s * sqrt(s) : 0; normalize(s) = s / rowsum(s);", 1},
        {"modify(s) = max(s, 0) * max(s, 0); normalize(s) = s / max(rowsum(s), 1e-6);", 1},
        {"modify(s) = max(s, 0) * s; normalize(s) = s / max(rowsum(abs(s)), 1e-6);", 1},
    };
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) expect_sweeps(of[i].clauses, of[i].sweeps);
}

// Also by one that the compiler has a meaning of its own for, such as p.
TEST(a_reduction_is_named_by_its_let) {
    expect_note("let mean = rowsum(s); let p = rowsum((s - mean) * (s - mean)); return s / p;",
                "'p' needs the finished value of 'mean' before", "rowsum(s)");
}

TEST(a_reduction_without_a_let_is_quoted) {
    expect_note("let mean = rowsum(s) * 0.5; let p = rowsum((s - mean) * (s - mean)) * 2; return s "
                "/ p;",
                "'rowsum((s - mean) * (s - mean))' needs the finished value of 'rowsum(s)' before",
                "rowsum(s)");
}

TEST(sums_of_scores_are_named_before_counts) {
    expect_note("let n = rowsum(1.0); let t = rowsum(s); let mean = t / n; let p = rowsum((s - "
                "mean) * (s - mean)); return s / p;",
                "'p' needs the finished value of 't' before", "rowsum(s)");
}

TEST(a_reduction_of_the_library_is_told_at_its_call) {
    expect_notes("import std.normalization;", "let p = softmax(s); return p / rowsum(sin(p));",
                 "'rowsum(sin(p))' needs the finished value of", "softmax(s)", "it stands here",
                 "");
    expect_notes("import std.normalization; normalization mine(s) = sin(softmax(s));",
                 "let p = mine(s); return p / rowsum(p);",
                 "'rowsum(p)' needs the finished value of", "softmax(s)", "it stands here", "");
}

TEST(a_reduction_of_a_function_is_told_where_it_stands) {
    expect_notes("normalization mean(s) = rowsum(s) * 0.5;",
                 "let p = rowsum((s - mean(s)) * (s - mean(s))); return s / p;",
                 "'p' needs the finished value of 'rowsum(s)' before", "rowsum(s)", "in this call",
                 "mean(s)) * (s");
}

TEST(a_note_says_why) {
    static const char *const of[][2] = {
        {"let m = rowmax(s); return exp(s - m) * exp(s * s);", "an exponent has no bound"},
        {"return s * s * s / rowsum(1.0);", "what is summed may leave f32 before it is divided"},
        {"return s - rowsum(s);", "it is neither a factor of all of a key's part nor the shift"},
    };
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        Arena *a = arena_new();
        const char *text = arena_printf(
            a, "attention t { dim D = 8; score(q, k) = dot(q, k); normalize(s) { %s } }", of[i][0]);
        Diags diags = diag_list(a);
        FeOptions o = {
            .path = "t.attn", .text = text, .text_bytes = strlen(text), .stdlib = "stdlib"};
        FeStatus status;
        Module *m = fe_load(a, &diags, &o, &status);
        pass_derive(a, fe_lower(a, &diags, fe_find(m, NULL)), &diags);
        ck_assert_ptr_nonnull(diags.first);
        ck_assert_msg(strstr(diags.first->message, of[i][1]) != NULL, "%s", diags.first->message);
        arena_free(a);
    }
}
