// main.c: runs the unit tests: those of tests/unit/<name>.c are the suite <name>.
#include "tests/unit/test.h"

typedef struct Test {
    const char *file;
    const TTest *test;
    int from, to;
} Test;

static struct {
    Test *data;
    int n;
} tests;

void test_add(const char *file, const TTest *test, int from, int to) {
    if (tests.n % 64 == 0)
        tests.data = realloc(tests.data, ((size_t)tests.n + 64) * sizeof *tests.data);
    if (!tests.data) abort();
    tests.data[tests.n++] = (Test){file, test, from, to};
}

static bool is_of(const Test *t, const char *suite) {
    const char *name = strrchr(t->file, '/') + 1;
    size_t n = strlen(suite);
    return !strncmp(name, suite, n) && !strcmp(name + n, ".c");
}

static void add(SRunner *r, const Test *t, int n) {
    Suite *s = suite_create(t->file);
    TCase *c = tcase_create(t->file);
    for (int i = 0; i < n; i++) tcase_add_loop_test(c, t[i].test, t[i].from, t[i].to);
    suite_add_tcase(s, c);
    srunner_add_suite(r, s);
}

// Without an argument all suites, otherwise those named.
int main(int argc, char **argv) {
    setenv("CK_DEFAULT_TIMEOUT", "240", 0); // Check's own 4 seconds are too few on a busy machine
    SRunner *r = srunner_create(NULL);
    for (int i = 0, n; i < tests.n; i += n) {
        bool wanted = argc < 2;
        for (n = 1; i + n < tests.n && !strcmp(tests.data[i + n].file, tests.data[i].file);) n++;
        for (int k = 1; k < argc; k++) wanted |= is_of(&tests.data[i], argv[k]);
        if (wanted) add(r, &tests.data[i], n);
    }
    free(tests.data);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r), run = srunner_ntests_run(r);
    printf("%d passed, %d failed\n", run - failed, failed);
    srunner_free(r);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
