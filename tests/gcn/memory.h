// memory.h: what a load makes of bytes, the same for global memory and LDS.
#ifndef TESTS_GCN_MEMORY_H
#define TESTS_GCN_MEMORY_H

#include "tests/gcn/wave.h"

typedef enum Fill {
    FILL_ALL, // whole registers
    FILL_ZERO,
    FILL_SIGN, // one register from a byte or two, extended
    FILL_LOW,
    FILL_HIGH, // 16 bits of a register, the others kept
    FILL_LOW_S,
    FILL_HIGH_S, // the same, a byte extended by its sign
} Fill;

enum { GCN_PARTS = 4 };

typedef struct Loaded {
    uint32_t r[GCN_PARTS][GCN_LANES];
} Loaded;

// Places one lane's bytes. `reg`: the first register of the result, for what is kept.
void gcn_fill(const Wave *w, Loaded *x, int lane, const uint8_t *from, int bytes, Fill how,
              int reg);
// The bytes that one lane stores: data registers are source k; high: from the upper half.
void gcn_stored(const uint32_t *const *data, int lane, int bytes, bool high, uint8_t *out);

#endif
