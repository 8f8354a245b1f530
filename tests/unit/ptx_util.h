// ptx_util.h: PTX of a variant given as text, for the tests that look at it.
#ifndef TESTS_UNIT_PTX_UTIL_H
#define TESTS_UNIT_PTX_UTIL_H

#include "codegen/codegen.h"
#include "pass_util.h"
#include "passes/derive/backward.h"
#include "runtime/abi.h"

static inline int count(const char *text, const char *what) {
    int n = 0;
    for (const char *s = text; (s = strstr(s, what)); s++) n++;
    return n;
}

static inline char *ptx_emitted(const TileProgram *p, Diags *diags) { // in its arena
    CgOptions co = {.opt = 3};
    void *out = NULL;
    size_t n;
    test_good(p && cg_emit(&p, 1, &co, CG_ASM, diags, &out, &n), diags);
    char *text = arena_strndup(p->arena, out, n);
    free(out);
    return text;
}

static inline char *ptx_with(Arena *a, const PassOptions *o, const char *text) {
    Stream *s = pu_stream(a, "t.attn", text, 0, NULL);
    Diags diags = diag_list(a);
    return ptx_emitted(pass_pipeline(a, s, o, &diags), &diags);
}

// Of its derived backward.
static inline char *ptx_backward(Arena *a, TargetId target, const char *text, Dtype t) {
    Diags diags = diag_list(a);
    const Backward *b = pass_backward(a, pu_stream(a, "t.attn", text, 0, NULL)->written, NULL);
    PassOptions o = {.target = cg_target(target), .dtype = t, .saves = b};
    return ptx_emitted(pass_backward_program(a, b, &o, &diags), &diags);
}

static inline char *ptx_scheduled(Arena *a, TargetId target, const char *text, Dtype t,
                                  const char *schedule) {
    PassOptions o = {.target = cg_target(target),
                     .dtype = t,
                     .shape = SHAPE_TINY,
                     .schedule = pu_knobs(schedule)};
    return ptx_with(a, &o, text);
}

static inline char *ptx_of(Arena *a, TargetId target, const char *text, Dtype t) {
    return ptx_scheduled(a, target, text, t, NULL);
}

#endif
