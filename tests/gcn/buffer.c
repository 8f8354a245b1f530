// buffer.c: memory that is reached through something else than an address: buffers, by a resource of
// four scalars, and scratch, of which each lane has its own bytes.
//
// What lies outside a buffer's records reads as 0 and is not written. gfx90a reaches scratch through
// a buffer that the wave is given (GCN_SCRATCH); what was never written may be saved there. Of its
// bytes those of 64 lanes lie together, and the scalar offset, a stack's, counts all of them.
#include "tests/gcn/memory.h"

typedef struct Resource {
    uint64_t base;
    uint32_t records;
    bool scratch;
} Resource;

typedef struct Access {
    Resource r;
    uint64_t in; // lanes within the records
    uint64_t at[GCN_LANES];
} Access;

static uint8_t *scratch_at(Wave *w, const Op *op, int lane, int64_t at, int bytes) {
    uint32_t most = w->group->launch->kernel->scratch;
    if (at >= 0 && at + bytes <= (int64_t)most) return w->scratch + (size_t)lane * most + at;
    gcn_fault(w, op, "is at byte %lld of %u of scratch, in lane %d", (long long)at, most, lane);
    return NULL;
}

static bool resource(Wave *w, const Op *op, int k, Resource *out) {
    const uint32_t *s = &w->s[op->src[k].reg];
    for (int i = 0; i < 4; i++)
        if (!gcn_whole(w, op->src[k].reg + i)) w->defined = 0;
    gcn_need(w, op, 1);
    *out = (Resource){(uint64_t)(s[1] & 0xffff) << 32 | s[0], s[2], false};
    out->scratch = out->base == GCN_SCRATCH;
    if (s[1] >> 16 & 0x3fff) gcn_fault(w, op, "uses a buffer with a stride, which is not modelled");
    return !gcn_failed(w);
}

// Sources from k on: the vector offset, the resource, the scalar offset.
static bool access_of(Wave *w, const Op *op, int k, uint32_t bytes, Access *a) {
    uint32_t buf[GCN_LANES];
    const uint32_t *voffset = NULL;
    if (!resource(w, op, k + 1, &a->r)) return false;
    if (op->idxen) gcn_fault(w, op, "indexes a buffer, which is not modelled");
    if (op->offen) voffset = gcn_source(w, op, k, 0, buf);
    uint64_t soffset = (uint32_t)gcn_scalar(w, op, k + 2), checked = w->code->gfx11 ? 0 : soffset;
    a->in = gcn_exec(w);
    gcn_need(w, op, a->in);
    for (int i = 0; i < w->lanes; i++) {
        uint64_t offset = (voffset ? voffset[i] : 0) + (uint64_t)op->offset;
        a->at[i] = a->r.base + offset + (a->r.scratch ? soffset / GCN_LANES : soffset);
        if (!a->r.scratch && offset + checked + bytes > a->r.records) a->in &= ~(1ull << i);
    }
    return true;
}

static uint8_t *place(Wave *w, const Op *op, const Access *a, int lane, int bytes, bool write) {
    if (a->r.scratch) return scratch_at(w, op, lane, (int64_t)(a->at[lane] - a->r.base), bytes);
    return gcn_reach(w, op, lane, a->at[lane], (uint32_t)bytes, write);
}

static void buffer_load(Wave *w, const Op *op) {
    static const uint8_t zero[16];
    int bytes = op->row->arg;
    Access a;
    Loaded x;
    if (!access_of(w, op, 0, (uint32_t)bytes, &a)) return;
    for (int i = 0; i < w->lanes; i++) {
        const uint8_t *p = a.in >> i & 1 ? place(w, op, &a, i, bytes, false) : zero;
        if (!p) return;
        gcn_fill(w, &x, i, p, bytes, (Fill)op->row->arg2, op->dst[0].reg);
    }
    gcn_loaded(w, op, &x, bytes);
}

static void buffer_store(Wave *w, const Op *op) {
    uint32_t buf[GCN_PARTS][GCN_LANES];
    const uint32_t *data[GCN_PARTS];
    int bytes = op->row->arg;
    Access a;
    if (!access_of(w, op, 1, (uint32_t)bytes, &a)) return;
    gcn_data(w, op, 0, bytes, buf, data);
    if (!a.r.scratch) gcn_need(w, op, a.in);
    for (int i = 0; i < w->lanes; i++) {
        uint8_t *p = a.in >> i & 1 ? place(w, op, &a, i, bytes, true) : NULL;
        if (p) gcn_stored(data, i, bytes, op->row->arg2, p);
    }
    gcn_issue(w, gcn_store_counter(w), NULL, false);
}

// ---- scratch by its own instructions; source k the vector address, `scalar` the scalar one

static uint8_t *scratch(Wave *w, const Op *op, int k, int scalar, int lane) {
    int64_t at = op->offset;
    if (op->src[k].kind == OPERAND_V) at += (int32_t)w->v[op->src[k].reg][lane];
    if (op->src[scalar].kind == OPERAND_S) at += (int32_t)gcn_scalar(w, op, scalar);
    return scratch_at(w, op, lane, at, op->row->arg);
}

static void scratch_load(Wave *w, const Op *op) {
    uint64_t exec = gcn_exec(w);
    Loaded x;
    for (int i = 0; i < w->lanes; i++) {
        const uint8_t *p = exec >> i & 1 ? scratch(w, op, 0, 1, i) : NULL;
        if (p) gcn_fill(w, &x, i, p, op->row->arg, (Fill)op->row->arg2, op->dst[0].reg);
    }
    gcn_loaded(w, op, &x, op->row->arg);
}

static void scratch_store(Wave *w, const Op *op) {
    uint64_t exec = gcn_exec(w);
    uint32_t buf[GCN_PARTS][GCN_LANES];
    const uint32_t *data[GCN_PARTS];
    gcn_data(w, op, 1, op->row->arg, buf, data);
    for (int i = 0; i < w->lanes; i++) {
        uint8_t *p = exec >> i & 1 ? scratch(w, op, 0, 2, i) : NULL;
        if (p) gcn_stored(data, i, op->row->arg, op->row->arg2, p);
    }
    gcn_issue(w, gcn_store_counter(w), NULL, false);
}

static const Row rows[] = {
    GCN_LOADS("buffer", buffer_load, "n=nnu"),
    GCN_STORES("buffer", buffer_store, "=nnnu"),
    GCN_LOADS("scratch", scratch_load, "n=nn"),
    GCN_STORES("scratch", scratch_store, "=nnn"),
};

GcnRows gcn_rows_buffer(void) { return (GcnRows){rows, sizeof rows / sizeof *rows}; }
