// place.h: the tensors of a launch in one piece of memory, with garbage before, between and behind
// them, so that what is read or written beside a tensor shows.
#ifndef TESTS_GEN_PLACE_H
#define TESTS_GEN_PLACE_H

#include "runtime/device.h"
#include "tools/bind.h"

typedef struct PlaceStride {
    int64_t of[TENSOR_MAX_RANK]; // in elements
} PlaceStride;

typedef struct Place {
    const Binding *b;
    bool by_rows;   // q, k, v and o as [B, S, H, D] in memory
    size_t *at;     // per argument
    size_t work_at; // the workspace
    size_t bytes;
    uint8_t *host; // what the memory is to hold
    PlaceStride *stride;
} Place;

// In arena a, but for the memory (place_free). work: bytes of workspace.
bool place_make(Place *p, Arena *a, const Binding *b, bool by_rows);
void place_workspace(Place *p, size_t n);
// Garbage of this byte everywhere, outputs and workspace too; then the inputs.
bool place_fill(Place *p, int garbage);
// Brings an output from `memory`, which is like p->host, into the binding's tensor.
void place_fetch(const Place *p, const uint8_t *memory, int arg);
// The first byte beside tensors and workspace that is not garbage any more; -1: none.
int64_t place_spoilt(const Place *p, const uint8_t *memory, int garbage);
void place_free(Place *p);

#endif
