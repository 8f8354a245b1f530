// place.c: see place.h.
#include "tests/gen/place.h"
#include <stdlib.h>
#include <string.h>

enum { ALIGN = 256, GAP = 2048 };

static size_t room(size_t n) { return (n + ALIGN - 1) / ALIGN * ALIGN; }

static size_t bytes_of(const Tensor *t) { return (size_t)t->count * (size_t)dtype_bytes(t->dtype); }

bool place_make(Place *p, Arena *a, const Binding *b, bool by_rows) {
    int n = b->sig->args.n;
    *p = (Place){.b = b, .by_rows = by_rows, .at = ARENA_ARRAY(a, size_t, n + 1)};
    p->stride = ARENA_ARRAY(a, PlaceStride, n + 1);
    p->bytes = GAP;
    for (int i = 0; i < n; i++) {
        const Tensor *t = &b->tensor[i];
        int64_t step = 1;
        if (!t->rank) continue;
        p->at[i] = p->bytes;
        p->bytes = room(p->bytes + bytes_of(t)) + GAP;
        for (int d = t->rank - 1; d >= 0; d--) {
            p->stride[i].of[d] = step;
            step *= t->dim[d];
        }
        bool qkvo =
            b->sig->args.data[i].role == ARG_QKV || strcmp(b->sig->args.data[i].name, "o") == 0;
        if (!by_rows || !qkvo) continue;
        p->stride[i].of[1] = t->dim[3];
        p->stride[i].of[2] = t->dim[3] * t->dim[1];
    }
    p->work_at = p->bytes;
    return true;
}

void place_workspace(Place *p, size_t n) { p->bytes = room(p->work_at + n) + GAP; }

// Row after row of a tensor: its place in memory and in the tensor.
static void copy(const Place *p, int arg, uint8_t *memory, bool out) {
    const Tensor *t = &p->b->tensor[arg];
    size_t item = (size_t)dtype_bytes(t->dtype);
    int64_t width = t->rank ? t->dim[t->rank - 1] : 1, rows = width ? t->count / width : 0;
    for (int64_t row = 0; row < rows; row++) {
        int64_t at = 0, left = row;
        for (int d = t->rank - 2; d >= 0; d--) {
            at += left % t->dim[d] * p->stride[arg].of[d];
            left /= t->dim[d];
        }
        uint8_t *there = memory + p->at[arg] + (size_t)at * item;
        uint8_t *here = (uint8_t *)t->data + (size_t)(row * width) * item;
        memcpy(out ? here : there, out ? there : here, (size_t)width * item);
    }
}

bool place_fill(Place *p, int garbage) {
    if (!p->host) p->host = malloc(p->bytes);
    if (!p->host) return false;
    memset(p->host, garbage, p->bytes);
    for (int i = 0; i < p->b->sig->args.n; i++)
        if (p->b->tensor[i].rank && p->b->sig->args.data[i].role != ARG_OUTPUT)
            copy(p, i, p->host, false);
    return true;
}

void place_fetch(const Place *p, const uint8_t *memory, int arg) {
    copy(p, arg, (uint8_t *)memory, true);
}

int64_t place_spoilt(const Place *p, const uint8_t *memory, int garbage) {
    size_t from = 0;
    for (int i = 0; i <= p->b->sig->args.n; i++) {
        bool last = i == p->b->sig->args.n;
        if (!last && !p->b->tensor[i].rank) continue;
        size_t to = last ? p->work_at : p->at[i];
        for (size_t k = from; k < to; k++)
            if (memory[k] != garbage) return (int64_t)k;
        if (!last) from = to + bytes_of(&p->b->tensor[i]);
    }
    for (size_t k = p->bytes - GAP; k < p->bytes; k++)
        if (memory[k] != garbage) return (int64_t)k;
    return -1;
}

void place_free(Place *p) {
    free(p->host);
    p->host = NULL;
}
