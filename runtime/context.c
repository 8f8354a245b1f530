// context.c: contexts, errors, and the devices of a context.
//
// Devices are made when they are first asked for and live until attn_destroy, in a list that only
// grows; a lock guards it.
#include "device.h"
#include "rt.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

attn_status rt_fail(attn_error *error, attn_status status, const char *format, ...) {
    if (!error) return status;
    va_list args;
    va_start(args, format);
    error->status = status;
    vsnprintf(error->message, sizeof error->message, format, args);
    va_end(args);
    return status;
}

attn_status rt_ok(attn_error *error) {
    if (error) *error = (attn_error){.status = ATTN_OK};
    return ATTN_OK;
}

const char *attn_version(void) { return "0.1.0"; }

attn_context *attn_create(void) {
    attn_context *c = calloc(1, sizeof *c);
    if (c && pthread_mutex_init(&c->lock, NULL) != 0) {
        free(c);
        return NULL;
    }
    return c;
}

void attn_destroy(attn_context *c) {
    if (!c) return;
    for (RtDevice *d = c->devices, *next; d; d = next) {
        next = d->next;
        d->ops->dispose(d);
    }
    rt_pool_free(c->pool);
    rt_gpu_close(c->cuda);
    rt_gpu_close(c->hip);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

static attn_status open_device(attn_context *c, attn_device id, RtDevice **out, attn_error *error) {
    switch (id.kind) {
    case ATTN_CPU:
        if (id.number) return rt_fail(error, ATTN_ERROR_DEVICE, "there is one cpu, number 0");
        return rt_host_open(c, out, error);
    case ATTN_CUDA:
    case ATTN_HIP: return rt_gpu_open(c, id, out, error);
    case ATTN_NO_DEVICE: break;
    }
    return rt_fail(error, ATTN_ERROR_DEVICE, "there is no device of kind %d", (int)id.kind);
}

attn_status rt_device(attn_context *c, attn_device id, RtDevice **out, attn_error *error) {
    attn_status status = ATTN_OK;
    pthread_mutex_lock(&c->lock);
    RtDevice *d = c->devices;
    while (d && (d->id.kind != id.kind || d->id.number != id.number)) d = d->next;
    if (!d) {
        status = open_device(c, id, &d, error);
        if (!status) {
            d->id = id;
            d->next = c->devices;
            c->devices = d;
        }
    }
    *out = d;
    pthread_mutex_unlock(&c->lock);
    return status;
}

// ---- device.h

attn_status attn_memory_alloc(attn_context *c, attn_device id, size_t n, void **out,
                              attn_error *error) {
    RtDevice *d;
    attn_status status = rt_device(c, id, &d, error);
    return status ? status : d->ops->alloc(d, n, out, error);
}

void attn_memory_free(attn_context *c, attn_device id, void *p) {
    RtDevice *d;
    if (p && !rt_device(c, id, &d, NULL)) d->ops->release(d, p);
}

attn_status attn_copy_to(attn_context *c, attn_device id, void *to, const void *host, size_t n,
                         attn_error *error) {
    RtDevice *d;
    attn_status status = rt_device(c, id, &d, error);
    return status ? status : d->ops->copy_in(d, to, host, n, error);
}

attn_status attn_copy_from(attn_context *c, attn_device id, void *host, const void *from, size_t n,
                           attn_error *error) {
    RtDevice *d;
    attn_status status = rt_device(c, id, &d, error);
    return status ? status : d->ops->copy_out(d, host, from, n, error);
}

attn_status attn_copy_within(attn_context *c, attn_device id, void *to, const void *from, size_t n,
                             attn_error *error) {
    RtDevice *d;
    attn_status status = rt_device(c, id, &d, error);
    return status ? status : d->ops->copy_within(d, to, from, n, error);
}

attn_status attn_memory_fill(attn_context *c, attn_device id, void *p, int byte, size_t n,
                             attn_error *error) {
    RtDevice *d;
    attn_status status = rt_device(c, id, &d, error);
    return status ? status : d->ops->fill(d, p, byte, n, error);
}

attn_status attn_synchronize(attn_context *c, attn_device id, attn_error *error) {
    RtDevice *d;
    attn_status status = rt_device(c, id, &d, error);
    return status ? status : d->ops->sync(d, error);
}

attn_status attn_mark_now(attn_context *c, attn_device id, attn_mark **mark, attn_error *error) {
    RtDevice *d;
    attn_status status = rt_device(c, id, &d, error);
    return status ? status : d->ops->mark(d, (void **)mark, error);
}

attn_status attn_elapsed_ms(attn_context *c, attn_device id, attn_mark *from, attn_mark *to,
                            float *ms, attn_error *error) {
    RtDevice *d;
    attn_status status = rt_device(c, id, &d, error);
    return status ? status : d->ops->elapsed(d, from, to, ms, error);
}

void attn_mark_free(attn_context *c, attn_device id, attn_mark *mark) {
    RtDevice *d;
    if (mark && !rt_device(c, id, &d, NULL)) d->ops->drop(d, mark);
}

attn_status attn_device_name(attn_context *c, attn_device id, char *name, size_t n,
                             attn_error *error) {
    RtDevice *d;
    attn_status status = rt_device(c, id, &d, error);
    return status ? status : d->ops->describe(d, name, n, error);
}

attn_status attn_device_target(attn_context *c, attn_device id, const char **target,
                               attn_error *error) {
    RtDevice *d;
    attn_status status = rt_device(c, id, &d, error);
    if (!status) *target = d->target;
    return status;
}

int attn_device_count(attn_context *c, attn_device_kind kind) {
    if (kind == ATTN_CPU) return 1;
    return kind == ATTN_CUDA || kind == ATTN_HIP ? rt_gpu_count(c, kind) : 0;
}
