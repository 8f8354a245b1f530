// main.c: runs the unit tests: those of tests/unit/<name>.c are the suite <name>.
#include "tests/support/workers.h"
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

// One test, with what failed of it.
static void run(void *context, int i, Tally *tally) {
    const Test *t = (const Test *)context + i;
    Suite *s = suite_create(t->file);
    TCase *c = tcase_create(t->file);
    tcase_add_loop_test(c, t->test, t->from, t->to);
    suite_add_tcase(s, c);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_SILENT);
    int failed = srunner_ntests_failed(r);
    TestResult **result = srunner_failures(r);
    for (int k = 0; k < failed; k++)
        printf("FAILED: %s:%d: %s: %s\n", tr_lfile(result[k]), tr_lno(result[k]), t->test->name,
               tr_msg(result[k]));
    free(result);
    tally->passed += srunner_ntests_run(r) - failed, tally->failed += failed;
    srunner_free(r);
}

// Without an argument all suites, otherwise those named.
int main(int argc, char **argv) {
    setenv("CK_DEFAULT_TIMEOUT", "240", 0); // Check's own 4 seconds are too few on a busy machine
    int n = 0;
    for (int i = 0; i < tests.n; i++) {
        bool wanted = argc < 2;
        for (int k = 1; k < argc; k++) wanted |= is_of(&tests.data[i], argv[k]);
        if (wanted) tests.data[n++] = tests.data[i];
    }
    Tally all = workers_run(argv[0], n, run, tests.data);
    if (!n) all.failed++, printf("FAILED: there is no such suite\n");
    free(tests.data);
    printf("%d passed, %d failed\n", all.passed, all.failed);
    return all.failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
