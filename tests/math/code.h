// code.h: what the host's code generator makes of f32 functions, as functions of this process.
#ifndef TESTS_MATH_CODE_H
#define TESTS_MATH_CODE_H

#include "ir/expr.h"

// out[i] = f(a[i], b[i]) for i below n, a multiple of 16.
typedef void (*MathCode)(const float *a, const float *b, float *out, int64_t n);

typedef struct MathModule MathModule;
// With vectors of this many lanes; NULL: this machine has no such vectors. *fused: it multiplies and
// adds in one instruction.
MathModule *math_module(int lanes, bool *fused);
// shared: by the formula that all targets share, whether the host has its own or not.
MathCode math_code(MathModule *m, ExOp op, bool shared);
void math_module_free(MathModule *m);

#endif
