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

// Vector memory, of any kind: the end of a load; the registers of source k; what a store counts in.
void gcn_loaded(Wave *w, const Op *op, Loaded *x, int bytes);
void gcn_data(Wave *w, const Op *op, int k, int bytes, uint32_t buf[][GCN_LANES],
              const uint32_t **data);
GcnCounter gcn_store_counter(const Wave *w);

// Rows of all loads and stores of a kind of memory. arg: bytes; arg2: Fill, or: from the upper half.
#define GCN_LOADS(prefix, run, form)                                                               \
    {prefix "_load_ubyte", run, form, ROW_MEMORY, 1, FILL_ZERO},                                   \
        {prefix "_load_sbyte", run, form, ROW_MEMORY, 1, FILL_SIGN},                               \
        {prefix "_load_ushort", run, form, ROW_MEMORY, 2, FILL_ZERO},                              \
        {prefix "_load_sshort", run, form, ROW_MEMORY, 2, FILL_SIGN},                              \
        {prefix "_load_dword", run, form, ROW_MEMORY, 4, FILL_ALL},                                \
        {prefix "_load_dwordx2", run, form, ROW_MEMORY, 8, FILL_ALL},                              \
        {prefix "_load_dwordx3", run, form, ROW_MEMORY, 12, FILL_ALL},                             \
        {prefix "_load_dwordx4", run, form, ROW_MEMORY, 16, FILL_ALL},                             \
        {prefix "_load_short_d16", run, form, ROW_MEMORY, 2, FILL_LOW},                            \
        {prefix "_load_short_d16_hi", run, form, ROW_MEMORY, 2, FILL_HIGH},                        \
        {prefix "_load_ubyte_d16", run, form, ROW_MEMORY, 1, FILL_LOW},                            \
        {prefix "_load_ubyte_d16_hi", run, form, ROW_MEMORY, 1, FILL_HIGH},                        \
        {prefix "_load_sbyte_d16", run, form, ROW_MEMORY, 1, FILL_LOW_S}, {                        \
        prefix "_load_sbyte_d16_hi", run, form, ROW_MEMORY, 1, FILL_HIGH_S                         \
    }
#define GCN_STORES(prefix, run, form)                                                              \
    {prefix "_store_byte", run, form, ROW_MEMORY, 1, 0},                                           \
        {prefix "_store_short", run, form, ROW_MEMORY, 2, 0},                                      \
        {prefix "_store_dword", run, form, ROW_MEMORY, 4, 0},                                      \
        {prefix "_store_dwordx2", run, form, ROW_MEMORY, 8, 0},                                    \
        {prefix "_store_dwordx3", run, form, ROW_MEMORY, 12, 0},                                   \
        {prefix "_store_dwordx4", run, form, ROW_MEMORY, 16, 0},                                   \
        {prefix "_store_short_d16_hi", run, form, ROW_MEMORY, 2, 1}, {                             \
        prefix "_store_byte_d16_hi", run, form, ROW_MEMORY, 1, 1                                   \
    }

#endif
