// probe.h: what a GPU can do, measured: the roofline that bench compares with there. The kernels are
// PTX made here, of nothing but matrix products (wgmma with both operands in shared memory on
// sm_90, mma.sync from registers elsewhere) or f32 multiply-adds, on random numbers; the bandwidth
// is the driver's own copy. The best of a few launches, so no figure of a warm, power limited GPU.
#ifndef TOOLS_PROBE_H
#define TOOLS_PROBE_H

#include "ir/row.h"
#include "peak.h"
#include "runtime/attn.h"

// For kernels of this element type. What cannot be measured stays 0.
attn_status probe_gpu(attn_context *c, attn_device d, Dtype dtype, Peak *out, attn_error *error);

#endif
