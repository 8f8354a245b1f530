// ref_util.h: runs of the float64 reference.
#ifndef TESTS_UNIT_REF_UTIL_H
#define TESTS_UNIT_REF_UTIL_H

#include "frontend/frontend.h"
#include "frontend/reference.h"
#include "tests/unit/test.h"

static inline Variant *ref_compile(Arena *a, const char *text) {
    Diags d = diag_list(a);
    FeStatus status;
    FeOptions o = {.path = "r.attn", .text = text, .text_bytes = strlen(text), .stdlib = "stdlib"};
    Module *m = fe_load(a, &d, &o, &status);
    ck_assert_msg(status == FE_OK, "%s\n%s", d.first ? d.first->message : "", text);
    return m->variants.data[0];
}

static inline double *ref_numbers(Arena *a, int64_t n, uint32_t seed) {
    double *x = ARENA_ARRAY(a, double, n + 1);
    for (int64_t i = 0; i < n; i++) x[i] = test_uniform(&seed);
    return x;
}

static inline RefRun ref_of(const Variant *v, const int32_t *sizes, const double *q,
                            const double *k, const double *values, const void *const *inputs,
                            double *o) {
    return (RefRun){
        .variant = v, .sizes = sizes, .q = q, .k = k, .v = values, .inputs = inputs, .o = o};
}

#endif
