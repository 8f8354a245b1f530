// main.c: runs the unit tests: every tests/unit/<name>.c gives its suite as <name>_suite; the
// Makefile lists them in suites.def.
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SUITE(name) Suite *name##_suite(void);
#include "suites.def"
#undef SUITE

// Without an argument all suites, otherwise those named.
int main(int argc, char **argv) {
    static const struct {
        const char *name;
        Suite *(*make)(void);
    } suites[] = {
#define SUITE(name) {#name, name##_suite},
#include "suites.def"
#undef SUITE
    };
    setenv("CK_DEFAULT_TIMEOUT", "60", 0); // Check's own 4 seconds are too few on a busy machine
    SRunner *r = srunner_create(NULL);
    for (size_t i = 0; i < sizeof suites / sizeof *suites; i++) {
        int wanted = argc < 2;
        for (int k = 1; k < argc; k++) wanted = wanted || strcmp(argv[k], suites[i].name) == 0;
        if (wanted) srunner_add_suite(r, suites[i].make());
    }
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r), run = srunner_ntests_run(r);
    printf("%d passed, %d failed\n", run - failed, failed);
    srunner_free(r);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
