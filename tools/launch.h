// launch.h: a variant on a device: opened from source (compiled in memory) or from an artifact,
// given a binding, launched, its outputs brought back into the binding's tensors.
#ifndef TOOLS_LAUNCH_H
#define TOOLS_LAUNCH_H

#include "bind.h"
#include "jit.h"

typedef struct LaunchSaved { // what the forward keeps for the backward: of the launch alone
    const char *name;
    attn_dtype dtype;
    int rank;
    int64_t shape[TENSOR_MAX_RANK];
    void *data;
} LaunchSaved;

typedef struct LaunchStep { // of a launch by parts: a call, or memory that calls share
    attn_prepared *prepared;
    void *memory;
} LaunchStep;

typedef struct LaunchCall {
    attn_call call;
    attn_tensor *tensors;
    attn_scalar *scalars;
    attn_size *sizes;
    bool makes_map;
} LaunchCall;

typedef struct Launch {
    attn_context *context; // the caller's, where it is set before opening; else the launch's own
    bool own_context;
    attn_artifact *artifact;
    attn_device device;
    Jit jit;              // CPU, from source: holds the artifact
    AbiMeta meta;         // of an artifact's file; the signature's names are in it
    const Signature *sig; // NULL: several variants and no --entry
    Dtype dtype;
    bool tf32; // products of f32
    // of the current binding
    attn_prepared *prepared;
    attn_prepared *backward, *backward_kept; // NULL: the signature has no gradients
    VEC(LaunchSaved) saved;
    int parts;             // of the keys; 0: they are one
    VEC(LaunchStep) steps; // by parts, in place of `prepared`
    attn_prepared *kept;   // the same where its tile map stands; NULL: it makes none
    void **memory; // per argument: its place on a GPU; on the CPU the tensors themselves are used
    void *workspace;
    void *backward_workspace;
    Arena *arena;
    const Binding *binding;
    const struct Launch *lender; // whose memory for tensors is used; NULL: none, it has its own
} Launch;

// Both print what is wrong. launch_close is due whatever comes back. The signature is in arena a.
// Whether --in or --out names a gradient: the backward is wanted.
bool launch_names_gradient(const Signature *sig, const Options *o);
// With gradients, where the backward is one of the phases.
const Signature *launch_signature(Arena *a, const Compile *c);
Status launch_open_source(Launch *l, Arena *a, Compile *c, const Options *o);
Status launch_open_file(Launch *l, Arena *a, const char *path, const Options *o);
void launch_close(Launch *l);

// Checks the binding against the artifact and puts it on the device.
Status launch_bind(Launch *l, const Binding *b);
Status launch_run(Launch *l);   // once, the backward too; has run when it returns
Status launch_fetch(Launch *l); // outputs into the binding
void launch_unbind(Launch *l);

// ---- a call of a phase, from what is placed on the device

enum { LAUNCH_MORE_SIZES = 8 }; // that a caller may add to those of the signature
// launch_free_call is due whatever comes back.
Status launch_call(Launch *l, attn_phase phase, const attn_tensor *placed, LaunchCall *p);
Status launch_prepare(Launch *l, LaunchCall *p, void **workspace, attn_prepared **prepared,
                      attn_prepared **kept); // kept may be NULL
// Of a signature with gradients: what the forward keeps for the backward, where the call's phase has it.
Status launch_add_saved(Launch *l, LaunchCall *p);
void launch_free_call(LaunchCall *p);
// The forward in parts of the keys, and its rows in two pieces: steps of the launch.   launch_parts.c
Status launch_parts(Launch *l, const attn_tensor *placed);

Status launch_failed(const attn_error *e); // prints; the exit status for it

#endif
