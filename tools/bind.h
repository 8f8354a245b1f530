// bind.h: gives every argument of a variant its tensor, and every size its value: from the arrays
// and numbers that --in names, from --shape, from the defaults of the command's contract. What is
// not named is drawn from a standard normal, or 0 where it holds integers.
#ifndef TOOLS_BIND_H
#define TOOLS_BIND_H

#include "options.h"
#include "signature.h"

typedef struct Binding {
    const Signature *sig;
    int32_t *size; // one per size of the signature
    Tensor
        *tensor; // one per argument; rank 0: no data. Outputs are allocated and poisoned with NaN.
    double *scalar; // one per argument; rank 0 only
    bool *unnamed;  // one per argument: an input that no --in names
} Binding;

// shape: what --shape says in one text, or NULL. The binding is in arena a but for the tensors'
// elements (bind_free).
Status bind_make(Binding *b, Arena *a, const Signature *sig, const Options *o, const char *shape);
// The same without memory for q, k, v and the outputs.
Status bind_inputs(Binding *b, Arena *a, const Signature *sig, const Options *o, const char *shape);
// The same for the arguments for which `read` holds: no other needs a number or has memory.
Status bind_read(Binding *b, Arena *a, const Signature *sig, const Options *o, const char *shape,
                 const bool *read);
void bind_free(Binding *b);
// "B=1 H=8 ... Sk=256" into buf: what ran.
const char *bind_describe(const Binding *b, char *buf, size_t n);
// Pairs (query, key) of one batch and head, times B and H.
double bind_pairs(const Binding *b);

// Which integer and bool tensors are zeros because no --in names them, and what would draw others;
// NULL: none.
const char *bind_zeros(const Binding *b, Arena *a);

#endif
