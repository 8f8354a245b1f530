// differ.h: one program of one attention through every stage, each against the reference (agree.h).
#ifndef TESTS_DIFFER_H
#define TESTS_DIFFER_H

#include "tools/bind.h"
#include "tools/compile.h"
#include "tools/launch.h"

typedef enum Stage {
    STAGE_NONE,      // all agree
    STAGE_COMPILE,   // the source does not compile
    STAGE_BIND,      // sizes or arrays were refused
    STAGE_REFERENCE, // the reference's gradients, against its values
    STAGE_BACKWARD,  // the derived backward, evaluated directly
    STAGE_ALGORITHM, // the tile program before the passes, interpreted
    STAGE_PASSES,    // the scheduled tile program, interpreted
    STAGE_KERNEL,    // the host kernel
    STAGE_GRADIENTS, // the kernels of the backward
    STAGE_PARTS,     // the keys in parts, which are combined
} Stage;
const char *stage_name(Stage s);

typedef struct DifferKernels DifferKernels; // the host's, which several runs may share
DifferKernels *differ_kernels(void);
void differ_forget(DifferKernels *k);

typedef struct Differ {
    const char *source, *name;
    const char *shape;     // as --shape
    const char *offset;    // q_offset, or NULL
    const Options *inputs; // what --in and --seed say, q_offset among it; NULL: as differ_bind does
    const char *path;      // a file instead of source
    const FeDefine *defines;
    int ndefines;
    Dtype dtype, kv; // kv: of k and v in 8 bits; 0: as q
    int level;
    DifferKernels *
        kernels; // of this source, with these dims, types, level and parts; NULL: compiled for this run
    bool interpret;  // also run the interpreters (slow)
    bool gradients;  // and the host's kernels of the backward
    int parts;       // and those of the keys in so many parts, where one sweep sees them; 0: not
    TargetId target; // of the scheduled program that is interpreted; the host's is run, too
    attn_context
        *context; // of a device that gradients run on, by kernels of `target`; NULL: the host
    DeviceKind device;
    FILE *log; // diagnostics and distances; NULL: silent
} Differ;

// Where the first stage differs.
Stage differ_run(const Differ *d);

// ---- what it is made of, for tests that run kernels elsewhere

// The kernels of both phases are run, and gradients held against the reference's. True as well where the compiler says that it has no
// kernel.
bool differ_gradients(const Differ *d);
// Likewise the keys in d->parts parts, forward.
bool differ_parts(const Differ *d);

// Inputs by seed, with values for the scalars that variants have; offset: q_offset, or NULL.
bool differ_bind(Binding *b, Arena *a, const Signature *sig, const char *shape, const char *offset);

#endif
