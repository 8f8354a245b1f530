// signature.h: what a variant takes and gives, told the same way whether it comes from source (the
// typed AST) or from an artifact's metadata: names, element types, and extents as sizes or
// constants. Kernels' own workspace is not in it.
#ifndef TOOLS_SIGNATURE_H
#define TOOLS_SIGNATURE_H

#include "frontend/typed.h"
#include "runtime/abi.h"
#include "tensor.h"

typedef enum ArgRole {
    ARG_INPUT,
    ARG_OUTPUT,
    ARG_QKV
} ArgRole; // QKV: read, of the kernel's own element type

typedef struct SigExtent {
    int size; // index into the sizes; -1: the constant `value`
    int64_t value;
} SigExtent;

typedef struct SigArg {
    const char *name;
    ArgRole role;
    Dtype dtype;   // outputs: of the kernel; what is written to a file is f4
    int rank;      // 0: a scalar
    bool optional; // zeros when nothing names it (state0)
    SigExtent extent[TENSOR_MAX_RANK];
} SigArg;

typedef struct Signature {
    const char *name;
    bool recurrence;
    int D, Dv;
    SizeNames sizes;
    VEC(SigArg) args; // q, k, v, the inputs in order, then outputs: o, emits
} Signature;

Signature *sig_of_variant(Arena *a, const Variant *v, Dtype dtype);
// NULL when an extent is more than a size or a constant, which no artifact of this version has.
Signature *sig_of_artifact(Arena *a, const AbiVariant *v);
int sig_arg(const Signature *s, const char *name);  // -1: none
int sig_size(const Signature *s, const char *name); // -1: none

#endif
