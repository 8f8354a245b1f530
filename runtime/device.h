// device.h: memory and time on a device, for tools (run, bench, check) and tests. No part of
// launching, not installed. Everything is on the default stream and has finished when it returns,
// but for attn_mark and attn_copy_within.
#ifndef RUNTIME_DEVICE_H
#define RUNTIME_DEVICE_H

#include "attn.h"

attn_status attn_memory_alloc(attn_context *c, attn_device d, size_t n, void **out,
                              attn_error *error); // 256-byte aligned
void attn_memory_free(attn_context *c, attn_device d, void *p);
attn_status attn_copy_to(attn_context *c, attn_device d, void *to, const void *host, size_t n,
                         attn_error *error);
attn_status attn_copy_from(attn_context *c, attn_device d, void *host, const void *from, size_t n,
                           attn_error *error);
// On the device; queued, as a launch is.
attn_status attn_copy_within(attn_context *c, attn_device d, void *to, const void *from, size_t n,
                             attn_error *error);
attn_status attn_memory_fill(attn_context *c, attn_device d, void *p, int byte, size_t n,
                             attn_error *error);
attn_status attn_synchronize(attn_context *c, attn_device d, attn_error *error);

// A point in the default stream's time. *mark: NULL at first; reused afterwards.
typedef struct attn_mark attn_mark;
attn_status attn_mark_now(attn_context *c, attn_device d, attn_mark **mark, attn_error *error);
attn_status attn_elapsed_ms(attn_context *c, attn_device d, attn_mark *from, attn_mark *to,
                            float *ms, attn_error *error);
void attn_mark_free(attn_context *c, attn_device d, attn_mark *mark);

// "NVIDIA H200"; how many devices of a kind there are (0 without a driver); which of attnc's
// targets suits it best ("sm_90a").
attn_status attn_device_name(attn_context *c, attn_device d, char *name, size_t n,
                             attn_error *error);
int attn_device_count(attn_context *c, attn_device_kind kind);
// The last for the machine's NVIDIA GPUs, without opening one; NULL: ask attn_device_target.
const char *attn_peek_target(void);
attn_status attn_device_target(attn_context *c, attn_device d, const char **target,
                               attn_error *error);

#endif
