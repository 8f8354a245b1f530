// rig.h: one variant on a device: compiled, launched twice between tensors of garbage, and every
// output held against the reference.
#ifndef TESTS_GEN_RIG_H
#define TESTS_GEN_RIG_H

#include "tests/gcn/device.h"
#include "tests/gen/gen.h"

typedef enum RigKind { RIG_HOST, RIG_CUDA, RIG_AMD } RigKind; // AMD: the interpreter of tests/gcn

typedef enum RigVerdict {
    RIG_GOOD,
    RIG_REFUSED, // it does not compile, or the runtime does not take it
    RIG_WRONG,   // numbers; or the second launch gave others
    RIG_OUTSIDE, // something was written beside the tensors
    RIG_FAULT,   // the device failed: the process can launch nothing more
} RigVerdict;

typedef struct Rig {
    RigKind kind;
    attn_context *context;
    attn_device device;
    GcnDevice *gcn; // RIG_AMD
    TargetId target[3];
    int ntargets;
    bool gradients; // the backward runs as well, where there are kernels
} Rig;

// False with a message: there is no such device.
bool rig_open(Rig *r, RigKind kind, char *message, size_t n);
void rig_close(Rig *r);
// rows: how many were compared is added; log: what is wrong, NULL: silent.
RigVerdict rig_run(Rig *r, const GenCase *c, int64_t *rows, FILE *log);

#endif
