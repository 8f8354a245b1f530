// memory.c: loads, stores and atomics of global memory, and scalar loads.
//
// Addresses are the host's own. Every access must lie in one buffer of the launch, in the code
// object, or in the kernel's arguments.
#include "tests/gcn/memory.h"

// ---- the buffers of a launch

static bool inside(const GcnBuffer *b, uint64_t address, uint32_t bytes, bool write) {
    uint64_t at = address - (uint64_t)(uintptr_t)b->base;
    return at <= b->bytes && bytes <= b->bytes - at && (b->writable || !write);
}

static const GcnBuffer *buffer_at(Group *g, uint64_t address, uint32_t bytes, bool write) {
    const GcnLaunch *l = g->launch;
    if (g->last && inside(g->last, address, bytes, write)) return g->last;
    for (int i = 0; i < l->nbuffers; i++)
        if (inside(&l->buffers[i], address, bytes, write)) return g->last = &l->buffers[i];
    for (int i = 0; i < 3; i++)
        if (inside(&g->own[i], address, bytes, write)) return &g->own[i];
    return NULL;
}

// The buffer before the address, to say how far off it is.
static void report(Wave *w, const Op *op, int lane, uint64_t address, uint32_t bytes, bool write) {
    const GcnLaunch *l = w->group->launch;
    const char *what = write ? "writes" : "reads";
    for (int i = 0; i < l->nbuffers; i++) {
        uint64_t base = (uint64_t)(uintptr_t)l->buffers[i].base;
        int64_t at = (int64_t)(address - base);
        if (at < -4096 || at >= (int64_t)l->buffers[i].bytes + 4096) continue;
        bool read_only = inside(&l->buffers[i], address, bytes, false);
        gcn_fault(w, op, "%s %u bytes at byte %lld of buffer %d, which %s %zu, in lane %d", what,
                  bytes, (long long)at, i, read_only ? "may only be read and has" : "has",
                  l->buffers[i].bytes, lane);
        return;
    }
    gcn_fault(w, op, "%s %u bytes at 0x%llx, outside every buffer, in lane %d", what, bytes,
              (unsigned long long)address, lane);
}

void *gcn_reach(Wave *w, const Op *op, int lane, uint64_t address, uint32_t bytes, bool write) {
    if (buffer_at(w->group, address, bytes, write)) return (void *)(uintptr_t)address;
    if (!gcn_failed(w)) report(w, op, lane, address, bytes, write);
    return NULL;
}

// ---- bytes to registers and back

void gcn_fill(const Wave *w, Loaded *x, int lane, const uint8_t *from, int bytes, Fill how,
              int reg) {
    uint32_t u[GCN_PARTS] = {0}, old = w->v[reg][lane];
    memcpy(u, from, (size_t)bytes);
    uint32_t sign = bytes == 1 ? (uint32_t)(int8_t)u[0] : (uint32_t)(int16_t)u[0];
    if (how == FILL_SIGN || how == FILL_LOW_S || how == FILL_HIGH_S) u[0] = sign;
    if (how == FILL_LOW || how == FILL_LOW_S) u[0] = (u[0] & 0xffff) | (old & 0xffff0000);
    if (how == FILL_HIGH || how == FILL_HIGH_S) u[0] = u[0] << 16 | (old & 0xffff);
    for (int p = 0; p < (bytes + 3) / 4; p++) x->r[p][lane] = u[p];
}

void gcn_stored(const uint32_t *const *data, int lane, int bytes, bool high, uint8_t *out) {
    uint32_t u[GCN_PARTS];
    for (int p = 0; p < (bytes + 3) / 4; p++) u[p] = data[p][lane];
    if (high) u[0] >>= 16;
    memcpy(out, u, (size_t)bytes);
}

// ---- global and flat

// A vector address alone; or a scalar base and a 32-bit vector offset.
static void addresses(Wave *w, const Op *op, int vector, int scalar, uint64_t *out) {
    uint64_t base = 0;
    bool offset = false;
    if (scalar < op->nsrc && op->src[scalar].kind == OPERAND_S) {
        base = gcn_scalar(w, op, scalar);
        offset = true;
    }
    gcn_source64(w, op, vector, out);
    for (int i = 0; i < w->lanes; i++)
        out[i] = (offset ? (uint32_t)out[i] : out[i]) + base + (uint64_t)(int64_t)op->offset;
}

void gcn_loaded(Wave *w, const Op *op, Loaded *x, int bytes) {
    w->defined = ~0ull;
    for (int p = 0; p < (bytes + 3) / 4; p++) gcn_put(w, op, p, x->r[p]);
    gcn_issue(w, GCN_VM, &op->dst[0], false);
}

static void load(Wave *w, const Op *op) {
    uint64_t address[GCN_LANES], exec = gcn_exec(w);
    int bytes = op->row->arg;
    Loaded x;
    addresses(w, op, 0, 1, address);
    gcn_need(w, op, exec);
    for (int i = 0; i < w->lanes; i++) {
        if (!(exec >> i & 1)) continue;
        const void *p = gcn_reach(w, op, i, address[i], (uint32_t)bytes, false);
        if (!p) return;
        gcn_fill(w, &x, i, p, bytes, (Fill)op->row->arg2, op->dst[0].reg);
    }
    gcn_loaded(w, op, &x, bytes);
}

void gcn_data(Wave *w, const Op *op, int k, int bytes, uint32_t buf[][GCN_LANES],
              const uint32_t **data) {
    for (int p = 0; p < (bytes + 3) / 4; p++) data[p] = gcn_source(w, op, k, p, buf[p]);
}

GcnCounter gcn_store_counter(const Wave *w) { return w->code->gfx11 ? GCN_VS : GCN_VM; }

// row->arg2: from the upper half
static void store(Wave *w, const Op *op) {
    uint64_t address[GCN_LANES], exec = gcn_exec(w);
    uint32_t buf[GCN_PARTS][GCN_LANES];
    const uint32_t *data[GCN_PARTS];
    int bytes = op->row->arg;
    addresses(w, op, 0, 2, address);
    gcn_data(w, op, 1, bytes, buf, data);
    gcn_need(w, op, exec);
    for (int i = 0; i < w->lanes; i++) {
        if (!(exec >> i & 1)) continue;
        void *p = gcn_reach(w, op, i, address[i], (uint32_t)bytes, true);
        if (!p) return;
        gcn_stored(data, i, bytes, op->row->arg2, p);
    }
    gcn_issue(w, gcn_store_counter(w), NULL, false);
}

// Adds 64 bits.
static void atomic_wide(Wave *w, const Op *op) {
    uint64_t address[GCN_LANES], exec = gcn_exec(w);
    uint32_t buf[2][GCN_LANES];
    const uint32_t *data[2];
    addresses(w, op, 0, 2, address);
    for (int i = 0; i < 2; i++) data[i] = gcn_source(w, op, 1, i, buf[i]);
    gcn_need(w, op, exec);
    for (int i = 0; i < w->lanes; i++) {
        if (!(exec >> i & 1)) continue;
        uint64_t u;
        void *p = gcn_reach(w, op, i, address[i], 8, true);
        if (!p) return;
        memcpy(&u, p, 8);
        u += (uint64_t)data[1][i] << 32 | data[0][i];
        memcpy(p, &u, 8);
    }
    gcn_issue(w, gcn_store_counter(w), NULL, false);
}

// row->arg: 0 f32 add, 1 u32 add, 2 u32 max, 3 i32 max; the old value when a result is named.
static void atomic(Wave *w, const Op *op) {
    uint64_t address[GCN_LANES], exec = gcn_exec(w);
    uint32_t buf[GCN_LANES], old[GCN_LANES];
    bool result = op->nsrc == 4;
    int at = result; // the listed result is the first source
    addresses(w, op, at, at + 2, address);
    const uint32_t *data = gcn_source(w, op, at + 1, 0, buf);
    gcn_need(w, op, exec);
    for (int i = 0; i < w->lanes; i++) {
        if (!(exec >> i & 1)) continue;
        uint32_t u, *p = gcn_reach(w, op, i, address[i], 4, true);
        if (!p) return;
        memcpy(&u, p, 4);
        old[i] = u;
        switch (op->row->arg) {
        case 0: u = gcn_bits(gcn_f32(u) + gcn_f32(data[i])); break;
        case 1: u += data[i]; break;
        case 2: u = u > data[i] ? u : data[i]; break;
        default: u = (int32_t)u > (int32_t)data[i] ? u : data[i]; break;
        }
        memcpy(p, &u, 4);
    }
    if (result) {
        Op returns = *op;
        returns.dst[0] = op->src[0];
        w->defined = ~0ull;
        gcn_put(w, &returns, 0, old);
        gcn_issue(w, GCN_VM, &op->src[0], false);
        return;
    }
    gcn_issue(w, gcn_store_counter(w), NULL, false);
}

// ---- scalar loads

static void s_load(Wave *w, const Op *op) {
    uint64_t address = gcn_scalar(w, op, 0) + (uint64_t)(int64_t)op->offset;
    if (op->nsrc > 1) address += gcn_scalar(w, op, 1);
    gcn_need(w, op, 1);
    uint32_t words = (uint32_t)op->row->arg;
    const uint8_t *p = gcn_reach(w, op, 0, address & ~3ull, 4 * words, false);
    for (uint32_t i = 0; p && i < words; i++) {
        memcpy(&w->s[op->dst[0].reg + i], p + 4 * i, 4);
        w->has_s[op->dst[0].reg + i] = ~0u;
    }
    gcn_issue(w, GCN_LGKM, &op->dst[0], false);
}

static const Row rows[] = {
    GCN_LOADS("global", load, "n=nn"),
    GCN_STORES("global", store, "=nnn"),
    GCN_LOADS("flat", load, "n=n"),
    GCN_STORES("flat", store, "=nn"),
    {"global_atomic_add_f32", atomic, "=nnnn", 0, 0, 0},
    {"global_atomic_add", atomic, "=nnnn", 0, 1, 0},
    {"global_atomic_add_u32", atomic, "=nnnn", 0, 1, 0},
    {"global_atomic_add_x2", atomic_wide, "=nnn", 0, 0, 0},
    {"global_atomic_add_u64", atomic_wide, "=nnn", 0, 0, 0},
    {"global_atomic_umax", atomic, "=nnnn", 0, 2, 0},
    {"global_atomic_max_u32", atomic, "=nnnn", 0, 2, 0},
    {"global_atomic_smax", atomic, "=nnnn", 0, 3, 0},
    {"global_atomic_max_i32", atomic, "=nnnn", 0, 3, 0},
    {"s_load_dword", s_load, "n=qu", 0, 1, 0},
    {"s_load_dwordx2", s_load, "n=qu", 0, 2, 0},
    {"s_load_dwordx4", s_load, "n=qu", 0, 4, 0},
    {"s_load_dwordx8", s_load, "n=qu", 0, 8, 0},
    {"s_load_dwordx16", s_load, "n=qu", 0, 16, 0},
};

GcnRows gcn_rows_memory(void) { return (GcnRows){rows, sizeof rows / sizeof *rows}; }
