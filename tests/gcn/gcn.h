// gcn.h: AMD kernels on the CPU: an interpreter of the instructions that the compiler emits for
// gfx90a, gfx942 and gfx1100. A test tool: it is there to find wrong kernels, not to be fast.
//
// In: a linked code object (.hsaco), a launch, and every buffer that the launch may touch. Out: the
// buffers as the kernel leaves them, or the first thing that a kernel must not do, as text.
//
// What is reported, beside wrong results: an instruction, operand or modifier that is not modelled;
// an address outside every buffer, or a write to one that may only be read; the use of a register or
// of a byte of LDS that was never written; the use of a load's result, or a barrier, before an
// s_waitcnt covers it; two waves at the same byte of LDS, one of them writing, without a barrier
// between; a wave that does not end.
//
// What is not modelled: time; the software-visible pipeline hazards that LLVM fills with s_nop;
// caches and the order of two work-groups' accesses to global memory. Waves are interleaved by a
// seed, work-groups run one after the other in an order that the seed chooses.
#ifndef TESTS_GCN_H
#define TESTS_GCN_H

#include "ir/arena.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct GcnError {
    char text[512]; // empty: none
} GcnError;

struct Wave;
struct Op;
typedef struct GcnCode GcnCode;
typedef struct GcnKernel GcnKernel;

// Rewrites one instruction before it is decoded; NULL leaves it. `index` counts the instructions of
// the code object; `at` is the offset that a disassembly shows.
typedef struct GcnEdit {
    const char *(*edit)(void *ctx, int index, uint32_t at, const char *text);
    void *ctx;
} GcnEdit;

// Everything of a code object lives in the arena. An instruction that is not modelled is an error
// only when a wave comes to it. NULL with an error in *e.
GcnCode *gcn_open(Arena *a, const void *hsaco, size_t n, const GcnEdit *edit, GcnError *e);
const char *gcn_target(const GcnCode *c);                        // "gfx90a"
const GcnKernel *gcn_kernel(const GcnCode *c, const char *name); // NULL: there is none

// One argument as the code object's metadata lays it out; false: there is no k-th, or it is hidden.
typedef struct GcnArg {
    uint32_t offset, size;
} GcnArg;
bool gcn_arg(const GcnKernel *k, uint32_t index, GcnArg *out);
uint32_t gcn_kernarg_bytes(const GcnKernel *k);

typedef struct GcnBuffer {
    const void *base;
    size_t bytes;
    bool writable;
} GcnBuffer;

// Told after every instruction that a wave has run (wave.h).
typedef struct GcnWatch {
    void (*ran)(void *ctx, const struct Wave *w, const struct Op *op);
    void *ctx;
} GcnWatch;

typedef struct GcnLaunch {
    const GcnKernel *kernel;
    uint32_t grid[3]; // work-groups
    uint32_t threads; // of a work-group, in x
    uint32_t dynamic; // bytes of LDS beyond what the code object asks for
    const void *kernarg;
    size_t kernarg_bytes;
    const GcnBuffer *buffers;
    int nbuffers;
    uint64_t seed;
    GcnWatch watch;    // .ran NULL: nobody
    uint64_t most;     // instructions of one wave; 0: a limit that no test comes near
    uint64_t executed; // out: instructions of all waves
} GcnLaunch;
bool gcn_launch(GcnLaunch *l, GcnError *e);

#endif
