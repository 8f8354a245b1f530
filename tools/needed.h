// needed.h: which keys queries need: of a mask map the tiles that are visited. For callers from C, who bring sizes and arrays
// as for a launch (runtime/attn.h).
#ifndef TOOLS_NEEDED_H
#define TOOLS_NEEDED_H

#include "compile.h"
#include "maskmap.h"
#include "runtime/attn.h"

// Of a compile's only variant, whose tiles are made. NULL, or why there is no map. Of the map only its classes are used later, which
// are in arena a.
const char *needed_map(MaskMap *m, Arena *a, Compile *c, const attn_call *call, int batch, int head,
                       bool powers);
// Of queries [first, end) the intervals of keys, a first one and the one behind the last; writes `room` of them at most. How many there are.
int needed_keys(const MaskMap *m, int first, int end, int (*keys)[2], int room);
// Their pairs with the keys of the tiles that they visit.
long long needed_pairs(const MaskMap *m, int first, int end);

#endif
