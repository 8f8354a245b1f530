// The formatter: what must hold of every text (tests/support/reformat.h), on all sources of the tree
// and on mutated ones; and each rule of docs/format.md by example.
#include "frontend/frontend.h"
#include "tests/support/reformat.h"

#include <check.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const folders[] = {"stdlib", "tests/lang", "tests/lang/lib", "tests/regress"};

static Text read_file_text(Arena *a, const char *path) {
    Text t;
    char part[4096];
    text_init(&t, a);
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

START_TEST(sources) { ck_assert_int_gt(each_file(0), 100); }
END_TEST

START_TEST(mutations) { each_file(20); }
END_TEST

Suite *frontend_format_suite(void);
Suite *frontend_format_suite(void) {
    Suite *s = suite_create("frontend format");
    TCase *c = tcase_create("format");
    tcase_add_test(c, sources);
    tcase_add_test(c, mutations);
    suite_add_tcase(s, c);
    return s;
}
