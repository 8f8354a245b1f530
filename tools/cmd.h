// cmd.h: what the verbs share. Each cmd_<verb> is one file; main calls it with parsed options.
#ifndef TOOLS_CMD_H
#define TOOLS_CMD_H

#include "launch.h"

#define VERB(e, name, fn, synopsis, what) Status fn(const Options *o);
#include "verbs.def"
#undef VERB

// What compiling a file that ends in .tile is (cmd_tile.c), and bench --dry (cmd_dry.c).
Status cmd_tile(const Options *o);
Status cmd_dry(const Options *o);

// Opens the main file, prints what there is to say. compile_close is due whatever comes back.
Status cmd_open(Compile *c, const Options *o, const char *path, TargetId target, Dtype dtype);
// Prints the diagnostics so far; STATUS_DONE without errors.
Status cmd_report(const Compile *c, Status otherwise);
// The one variant to run; STATUS_USAGE when there are several and no --entry.
Status cmd_only(const Compile *c, const Options *o);
// Settles which phases c is compiled for: --phase, and both where --in or --out names a gradient.
void cmd_phases(Compile *c, const Options *o);
// What the GPU with this number takes of what this version writes; without one, what every NVIDIA GPU
// takes, or the largest of AMD's. The context may be NULL.
TargetId cmd_gpu_target(attn_context *context, DeviceKind kind, int ordinal);
// What a run from source compiles for: --target, or the best that the device takes.
TargetId cmd_device_target(const Options *o, attn_context *context);
Dtype cmd_device_dtype(const Options *o);
const char *cmd_shape(const Options *o, Arena *a); // all --shape options in one text, or NULL
// Compiles every file once and gives `each` the kernel with every --shape (NULL: there is none), all
// in one context. What is wrong with one file or configuration does not keep the others from their
// turn; a device or system that fails does, but for a file that cannot be read. The first status that is not DONE.
Status cmd_configurations(const Options *o,
                          Status (*each)(void *ctx, Launch *l, Compile *c, const char *shape),
                          void *ctx);
bool cmd_has_extension(const char *path, const char *extension);
// By its extension, or because it is an ELF file.
bool cmd_is_artifact(const char *path);

// How far one output is from another: relative is ||x - ref|| / ||ref||, but for what is emitted
// (lse), whose logarithms may be about 0 and whose norm counts as 1 each at least. Where both are
// infinite alike or NaN they agree. Differences that tensor_step allows are no error.
typedef struct Error {
    double relative, largest; // the largest difference of one element
    int64_t wrong;            // elements where one is finite and the other is not
    int64_t beyond;           // elements that the type does not hold, infinite alike
    bool nothing;             // there are elements, and every one is left out
} Error;
// open: an element is left out where it is not 0; NULL: none is.
Error cmd_error(const Tensor *x, const double *ref, const unsigned char *open, bool emit);

#endif
