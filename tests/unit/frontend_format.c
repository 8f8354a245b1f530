// The formatter: what must hold of every text (tests/support/reformat.h), on all sources of the tree
// and on mutated ones; and each rule of docs/format.md by example.
#include "frontend/frontend.h"
#include "tests/support/reformat.h"
#include "tests/unit/test.h"

#include <dirent.h>

static const char *const folders[] = {"stdlib", "tests/lang", "tests/lang/lib", "tests/regress"};

static Text read_file_text(Arena *a, const char *path) {
    char part[4096];
    Text t = text_new(a);
    text_puts(&t, "");
    FILE *f = fopen(path, "rb");
    ck_assert_ptr_nonnull(f);
    for (size_t n; (n = fread(part, 1, sizeof part, f)) > 0;) text_putn(&t, part, n);
    fclose(f);
    return t;
}

static void expect_good(Arena *a, const char *name, const char *text, size_t n) {
    const char *wrong = reformat_wrong(a, text, n);
    ck_assert_msg(!wrong, "%s: %s:\n%.*s", name, wrong, (int)n, text);
}

// Of each file: as it is, and so many mutations of it.
static int each_file(int mutations) {
    uint64_t state = 88172645463325253u;
    int files = 0;
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        DIR *d = opendir(folders[i]);
        ck_assert_ptr_nonnull(d);
        for (struct dirent *e; (e = readdir(d));) {
            if (!strstr(e->d_name, ".attn")) continue;
            Arena *a = arena_new();
            const char *path = arena_printf(a, "%s/%s", folders[i], e->d_name);
            Text t = read_file_text(a, path);
            expect_good(a, path, t.s, t.n);
            for (int k = 0; k < mutations && t.n < 20000; k++) {
                Arena *b = arena_new();
                Text m = reformat_shake(b, t.s, t.n, &state);
                expect_good(b, path, m.s, m.n);
                arena_free(b);
            }
            arena_free(a);
            files++;
        }
        closedir(d);
    }
    return files;
}

TEST(sources) { ck_assert_int_gt(each_file(0), 100); }

TEST(mutations) { each_file(20); }

// A text, and what becomes of it. An empty `want`: it stays.
static const struct {
    const char *text, *want;
} rules[] = {
    // statements and blanks
    {"const A=-1;const BC = 1 +2*A ;", "const A  = -1;\nconst BC = 1 + 2 * A;\n"},
    {"fn f ( x,y )=x [ 1 ] ? ! y:- - g ( ) ;", "fn f(x, y) = x[1] ? !y : --g();\n"},
    {"import  std . mask;", "import std.mask;\n"},
    {"attention a{dim D=1,E = 2;input x:f32[H,4]grad;input y : i32;}",
     "attention a {\n    dim D = 1, E = 2;\n    input x: f32[H, 4] grad;\n    input y: i32;\n}\n"},
    {"fn f(x){let y=x;return y;}", "fn f(x) {\n    let y = x;\n    return y;\n}\n"},
    {"const A = (((1.50e+3)));\n", ""}, // parentheses and digits are the author's
    {"attention a {\n}\n", ""},
    {"", ""},
    {"\n\n", "\n"}, // want: nothing; see below
    // aligned with the next line, or not
    {"attention a {\n    score(q, k) = 1;\n    mask(b) = true;\n\n    normalize(s) = s;\n}\n",
     "attention a {\n    score(q, k) = 1;\n    mask(b)     = true;\n\n    normalize(s) = s;\n}\n"},
    {"attention a {\n    score(q, k) = 1;\n    // now\n    mask(b) = true;\n    normalize(s) {\n"
     "        return s;\n    }\n    output(o) = o;\n}\n",
     ""},
    {"fn f(x) {\n    let a = 1;\n    let bcd = 1;\n    emit e = 1;\n    return a;\n}\n", ""},
    {"fn f(x) = 1;\nfn long(x) = 1;\n", ""},
    // empty lines
    {"\n\nconst A = 1;\n\n\n\nconst B = 1;\n\n", "const A = 1;\n\nconst B = 1;\n"},
    {"fn f() {\n\n    let x = 1;\n\n    return\n\n        x;\n\n}",
     "fn f() {\n    let x = 1;\n\n    return x;\n}\n"},
    {"import a;\n// f\nfn f() {\n    return 1;\n}\n// A\nconst A = 1;",
     "import a;\n\n// f\nfn f() {\n    return 1;\n}\n\n// A\nconst A = 1;\n"},
    {"import a;\n// of a\n\nfn f() {\n    return 1;\n}\n", ""},
    // comments
    {"const A = 1;// a\nconst BCD = 1;   // b\n", "const A   = 1; // a\nconst BCD = 1; // b\n"},
    {"const A = 1; // a\n             // more\n// other\n", ""},
    {"const A = 1 // a\n;", "const A = 1; // a\n"},
    {"fn f(x) = x // a\n + 1;", "fn f(x) =\n    x + // a\n    1;\n"},
    {"fn f(x) = g(x, /* y */ 1 /* z */);\n", ""},
    {"fn f(x) = g(\n// x\nx);", "fn f(x) =\n    g(\n        // x\n        x\n    );\n"},
    {"attention a { // a\n    // b\n\n    dim D = 1;\n    // c\n}\n// d\n", ""},
    {"/* a */ const A = 1; /* b\n   c */ const B = 1;",
     "/* a */ const A = 1; /* b\n   c */\nconst B = 1;\n"},
    {"// a  \n/* b \t\n  c */\n", "// a\n/* b\n  c */\n"},
    // bytes
    {"\xef\xbb\xbf// \xc3\xa9\r\nconst\tA = 1;\r\n", "// \xc3\xa9\nconst A = 1;\n"},
    {"const A = 1; /* a\r\n b */", "const A = 1; /* a\n b */\n"},
};

TEST(examples) {
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        Arena *a = arena_new();
        Diags d = diag_list(a);
        Text out = text_new(a);
        text_puts(&out, "");
        const char *text = rules[i].text, *want = *rules[i].want ? rules[i].want : text;
        if (!strcmp(text, "\n\n")) want = "";
        ck_assert_msg(fe_format(a, &d, "rule", text, strlen(text), &out), "%s", text);
        ck_assert_str_eq(out.s, want);
        arena_free(a);
    }
}

// One column less, and a line is broken: from the outside inwards.
ARENA_TEST(long_lines) {
    static const char form[] = "fn %s(x, y) = first(x, y) * 11111111 + second(y, x) - third(x) * "
                               "fourth(y, x) / 22222222;\n";
    static const char broken[] = "fn %s(x, y) =\n    first(x, y) * 11111111 + second(y, x) - "
                                 "third(x) * fourth(y, x) / 22222222;\n";
    char name[32];
    for (int n = 1; n < 30; n++) {
        memset(name, 'f', sizeof name);
        name[n] = '\0';
        const char *text = arena_printf(a, form, name);
        bool fits = strlen(text) - 1 <= 100;
        Diags d = diag_list(a);
        Text out = text_new(a);
        ck_assert(fe_format(a, &d, "long", text, strlen(text), &out));
        ck_assert_str_eq(out.s, fits ? text : arena_printf(a, broken, name));
    }
}

// What is too long at each step: the operators of least precedence, then brackets.
ARENA_TEST(inner_breaks) {
    static const char text[] =
        "attention a {\n"
        "    mask(b, h, q_idx, kv_idx) =\n"
        "        aaaaaaaaaaaaaaaaaaaa(q_idx, kv_idx) <= bbbbbbbbbbbbbbbbbbbbbbbbbbbbbb(q_idx, "
        "kv_idx) ||\n"
        "        ccccccccccccccccccccccccccccccccccc(\n"
        "                q_idx + 1111111111111111111111111111111111.0,\n"
        "                kv_idx + 2222222222222222222222222222222222222.0\n"
        "            ) >\n"
        "            0 ||\n"
        "        q_idx == kv_idx;\n"
        "    modify(s, b, h, q_idx, kv_idx) =\n"
        "        q_idx > 1111111111.0 ? s * 2222222222222222.0\n"
        "        : q_idx > 333333333333.0 ? s * 444444444444444.0\n"
        "        : s + 55555555555555555.0;\n"
        "    normalize(s) {\n"
        "        return ssssssssssssssssssssssssssssssssssssssss +\n"
        "            ssssssssssssssssssssssssssssssssssssssss *\n"
        "                (ssssssssssssssssssssssssssssssssssssssss + sssssssssssssssssssssssss) -\n"
        "            s;\n"
        "    }\n"
        "}\n";
    Diags d = diag_list(a);
    Text out = text_new(a);
    ck_assert(fe_format(a, &d, "inner", text, sizeof text - 1, &out));
    ck_assert_str_eq(out.s, text);
}

// Nothing but a diagnostic where the text does not parse.
static const char *const texts[] = {
    "const A = ;", "attention a {",     "/* a", "fn f(x) = x",
    "}",           "const A = 1; \xff", "#",    "fn f(x) { let y = 1; }"};

ARENA_TEST_EACH(mistakes, 0, sizeof texts / sizeof *texts) {
    Diags d = diag_list(a);
    Text out = text_new(a);
    ck_assert(!fe_format(a, &d, "mistake", texts[_i], strlen(texts[_i]), &out));
    ck_assert_uint_eq(out.n, 0);
    ck_assert_int_gt(d.errors, 0);
    ck_assert_str_eq(d.files.data[d.first->span.file].name, "mistake");
}
