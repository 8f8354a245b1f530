// test.h: unit tests. A test runs because it is written:
//
//     TEST(name) { ... }                  once
//     TEST_EACH(name, from, to) { ... }   for each number _i from `from` on, below `to`
//
// and with ARENA_ before it, it has an arena `a` of its own, which is freed behind it. The tests of a file are a suite.
// What a test needs of the standard library is here, too.
#ifndef TESTS_UNIT_TEST_H
#define TESTS_UNIT_TEST_H

#include "ir/diag.h"

#include <check.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void test_add(const char *file, const TTest *test, int from, int to); // main.c

#define TEST_ADDED(name, from, to)                                                                 \
    __attribute__((constructor)) static void name##_add(void) {                                    \
        test_add(__FILE__, name##_test, (int)(from), (int)(to));                                   \
    }
#define TEST_EACH(name, from, to)                                                                  \
    static void name(int);                                                                         \
    START_TEST(name##_test) { name(_i); }                                                          \
    END_TEST                                                                                       \
    TEST_ADDED(name, from, to)                                                                     \
    static void name(__attribute__((unused)) int _i)
#define ARENA_TEST_EACH(name, from, to)                                                            \
    static void name(Arena *, int);                                                                \
    START_TEST(name##_test) {                                                                      \
        Arena *a = arena_new();                                                                    \
        name(a, _i);                                                                               \
        arena_free(a);                                                                             \
    }                                                                                              \
    END_TEST                                                                                       \
    TEST_ADDED(name, from, to)                                                                     \
    static void name(Arena *a, __attribute__((unused)) int _i)
#define TEST(name) TEST_EACH(name, 0, 1)
#define ARENA_TEST(name) ARENA_TEST_EACH(name, 0, 1)

// It is there, or true; otherwise the test fails with what is in the list.
#define test_good(x, diags)                                                                        \
    ck_assert_msg((x), "%s", (diags)->first ? (diags)->first->message : "nothing is said")

// ---- random numbers
static inline uint32_t test_draw(uint32_t *seed, uint32_t n) { // below n
    *seed = *seed * 1664525u + 1013904223u;
    return (*seed >> 8) % n;
}

static inline double test_uniform(uint32_t *seed) { // from -1 to 1
    return test_draw(seed, 1 << 24) / (double)(1 << 23) - 1;
}

#endif
