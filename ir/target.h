// target.h: targets as data. Scheduling reads it, codegen keys its hooks on the id; nothing else knows what a target is.
#ifndef IR_TARGET_H
#define IR_TARGET_H

#include "layout.h"
#include "row.h"

typedef enum TargetId {
#define TARGET(e, name, ext, kind) TARGET_##e,
#include "targets.def"
#undef TARGET
    TARGET_COUNT
} TargetId;

typedef enum TargetKind { KIND_HOST, KIND_NVPTX, KIND_AMDGPU } TargetKind;

typedef struct Target {
    TargetId id;
    const char *name;      // "sm_80"
    const char *extension; // of what it writes: ".ptx"
    TargetKind kind;
    int lanes;        // f32 elements of a vector register (host), threads of a warp or wave (GPU)
    int registers;    // 32-bit registers a thread may have (GPU); vector registers (host)
    int shared_bytes; // shared memory a block may ask for; L1 data cache bytes (host)
    int l2_bytes;     // per core (host), whole (GPU)
} Target;

// What a multiprocessor (compute unit) does in a cycle: counting expects a kernel's time from it.
typedef struct TargetRates {
    int units;   // of the device
    int matrix;  // FLOP of products of 16-bit elements
    int special; // operations of the unit for special functions
    int plain;   // multiply-adds and the like
    int shared;  // bytes of shared memory
    int l2;      // bytes that reach it from L2
} TargetRates;

const TargetRates *target_rates(TargetId id); // all 0 for the host, which is not counted so

// The named target's data; for TARGET_HOST lanes and cache sizes are filled in by codegen/host for the current machine through
// target_host(), with portable defaults here.
const Target *target_get(TargetId id);
bool target_find(const char *name, TargetId *out);
// Whether it has a matrix instruction for elements of so many bytes.
bool target_has_mma(const Target *t, MmaKind kind, int bytes);
// Registers that an NVIDIA GPU gives a block of so many threads when it begins: as many for each, in steps
// of 8. Its roles pass them on to each other (setmaxnreg); one that asks for more than there are waits forever.
int target_block_registers(int threads);

#endif
