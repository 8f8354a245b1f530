// batch.h: a binding in a layout that is not dense: what its index tensors say, what they are where nothing names
// them, and how much of its tensors they reach.
#ifndef TOOLS_BATCH_H
#define TOOLS_BATCH_H

#include "bind.h"
#include "frontend/reference_batch.h"

// The sequences, in the binding's own memory; extents of inputs (RefBatch.extent) are left out.
RefBatch batch_of(const Binding *b);
// Whether an index tensor that nothing names is there: not those that are optional, but for a q_start without
// which Tq would be no multiple of B.
bool batch_makes(const Signature *sig, const int32_t *size, const SigArg *g);
// Queries and keys in equal parts, sequences as long as their pages, which are a permutation.
void batch_fill(const Signature *sig, const int32_t *size, const SigArg *g, Tensor *t,
                uint64_t seed);
// How many sequences have each row of a tensor, of a state's each slot, at most 2: one byte each, to be freed; NULL: it has none
// of theirs.
unsigned char *batch_owners(const Binding *b, int arg, int64_t *n);
// Makes NaN of the rows of a float tensor that no sequence has.
void batch_poison(const Binding *b, int arg);
// Pairs of all sequences, times H.
double batch_pairs(const Binding *b);
// Share of the tensor's rows that some sequence has; 1 where it has no rows of sequences.
double batch_live(const Binding *b, int arg);

#endif
