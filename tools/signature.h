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
    ARG_QKV,     // read, of the kernel's own element type
    ARG_INDEX,   // read, and says where a layout's rows lie
    ARG_GRAD_IN, // of the backward: the gradient of an output, which comes
    ARG_GRAD_OUT // and that of q, k, v or an input, which goes out
} ArgRole;

typedef struct SigExtent {
    int size;      // index into the sizes; -1: the constant `value`
    int64_t value; // of a size: added to it
    int open; // SIZE_SQ, SIZE_SK: the size is this dimension's own, at least as long as the longest sequence; 0: it is not
} SigExtent;

typedef struct SigArg {
    const char *name;
    ArgRole role;
    Dtype dtype; // outputs: of the kernel; what is written to a file is f4
    int rank;    // 0: a scalar
    bool
        optional; // zeros when nothing names it (state0, the gradients of emits and of the state); ARG_INDEX: left out
    bool of_rows; // an attention's emit, or its gradient: a number of each row
    int of;       // a gradient: of which argument
    int sign;  // of an input, where nothing names it: what is drawn is 1: at least 0, -1: at most 0
    bool unit; // ... has rows with a norm of about 1
    SigExtent extent[TENSOR_MAX_RANK];
} SigArg;

typedef struct Signature {
    const char *name;
    bool recurrence;
    BatchLayout batch; // of a recurrence not paged
    int page;          // BATCH_PAGED: keys of a page; 0: any
    int D, Dv;
    SizeNames sizes; // the fixed ones of the layout (abi.h), then free ones
    // q, k, v (unless it is in k), the inputs in order, index tensors, then outputs: o, emits; then gradients, where there is a
    // backward
    VEC(SigArg) args;
    bool backward;
} Signature;

Signature *sig_of_variant(Arena *a, const Variant *v, Dtype dtype); // dense
// In another layout.
Signature *sig_of_batch(Arena *a, const Variant *v, Dtype dtype, BatchLayout batch, int page);
// The type of k and v; kv 0: as q.
void sig_set_kv(Signature *s, Dtype kv);
// Adds what the backward takes and gives: do, dNAME of each emit or of the state; dq, dk, dv, dNAME of each `grad` input,
// [1] of one without extents, and dstate0.
void sig_add_gradients(Arena *a, Signature *s, const Variant *v);
// Whether this is the name of a gradient of something in the signature, and of no argument.
bool sig_is_gradient(const Signature *s, const char *name);
// NULL when an extent is more than a size or a constant, which no artifact of this version has.
Signature *sig_of_artifact(Arena *a, const AbiVariant *v);
// Adds those of a backward; false as above.
bool sig_add_gradients_of(Arena *a, Signature *s, const AbiVariant *backward);
int sig_first_free(const Signature *s);             // the number of the first free size
int sig_operands(const Signature *s);               // of q, k, v: the inputs follow them
int sig_rows(const Signature *s);                   // of Tq, where there is one; max_q follows it
int sig_arg(const Signature *s, const char *name);  // -1: none
int sig_size(const Signature *s, const char *name); // -1: none
bool sig_is_whole(const SigArg *g);                 // its elements are no real numbers in formulas
bool sig_holds(const SigArg *g, double x);          // a whole number is one of its elements
bool sig_is_read(const SigArg *g);                  // it comes, and does not go out
// " (did you mean 'slope'?)", or "; it has q, k, v, slope": those that are read, or those that are not.
const char *sig_instead(Arena *a, const Signature *s, const char *name, bool read);

#endif
