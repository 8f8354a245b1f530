// device.h: the interpreter as a device of the runtime: what the runtime checks, lays out and
// launches for an AMD GPU runs on it unchanged.
#ifndef TESTS_GCN_DEVICE_H
#define TESTS_GCN_DEVICE_H

#include "runtime/attn.h"
#include "tests/gcn/gcn.h"

typedef struct GcnDevice GcnDevice;

// Puts the device into the context as {ATTN_HIP, 0}; the context disposes of it. NULL: out of memory.
GcnDevice *gcn_device(attn_context *c);
// What the launches from now on are interleaved by.
void gcn_device_seed(GcnDevice *d, uint64_t seed);
// Rewrites the code that is loaded from now on; NULL: as it is. Not copied.
void gcn_device_edit(GcnDevice *d, const GcnEdit *edit);
// Launches from now on are written into a folder, for emulators of others (keep.c); NULL: they are
// not. Not copied.
void gcn_device_keep(GcnDevice *d, const char *folder);
uint64_t gcn_device_executed(const GcnDevice *d); // instructions of all launches

#endif
