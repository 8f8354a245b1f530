// lds.c: LDS: loads, stores and atomics, with what makes a race known for every byte; and the
// instructions that exchange values between lanes through LDS's network.
#include "tests/gcn/memory.h"

// ---- bytes

static void race(Wave *w, const Op *op, uint32_t at, int lane, int other, const char *did) {
    gcn_fault(w, op, "races at byte %u of LDS, in lane %d: wave %d %s it since the last barrier",
              at, lane, other, did);
}

static int first_other(uint16_t waves, int own) {
    return __builtin_ctz((unsigned)waves & ~(1u << own));
}

static bool may_read(Wave *w, const Op *op, uint32_t at, int lane) {
    LdsByte *b = &w->group->shadow[at];
    if (!b->written) {
        gcn_fault(w, op, "reads byte %u of LDS, which was never written, in lane %d", at, lane);
        return false;
    }
    if (b->write_epoch == w->epoch && b->writer != w->index) {
        race(w, op, at, lane, b->writer, "wrote");
        return false;
    }
    if (b->read_epoch != w->epoch) b->readers = 0;
    b->read_epoch = w->epoch;
    b->readers |= (uint16_t)(1u << w->index);
    return true;
}

static bool may_write(Wave *w, const Op *op, uint32_t at, int lane) {
    LdsByte *b = &w->group->shadow[at];
    if (b->written && b->write_epoch == w->epoch && b->writer != w->index) {
        race(w, op, at, lane, b->writer, "wrote");
        return false;
    }
    if (b->read_epoch == w->epoch && (b->readers & ~(1u << w->index))) {
        race(w, op, at, lane, first_other(b->readers, w->index), "read");
        return false;
    }
    b->written = 1;
    b->writer = (uint8_t)w->index;
    b->write_epoch = w->epoch;
    return true;
}

// The place of an access, or NULL after a fault.
static uint8_t *reach(Wave *w, const Op *op, int lane, uint32_t at, int bytes, bool write) {
    Group *g = w->group;
    if (gcn_failed(w)) return NULL;
    if (at > g->lds_bytes || (uint32_t)bytes > g->lds_bytes - at) {
        gcn_fault(w, op, "is at byte %u of %u of LDS, in lane %d", at, g->lds_bytes, lane);
        return NULL;
    }
    for (int i = 0; i < bytes; i++)
        if (!(write ? may_write(w, op, at + (uint32_t)i, lane)
                    : may_read(w, op, at + (uint32_t)i, lane)))
            return NULL;
    return g->lds + at;
}

// ---- loads and stores

static void finish(Wave *w, const Op *op, Loaded *x, int parts) {
    w->defined = ~0ull;
    for (int p = 0; p < parts; p++) gcn_put(w, op, p, x->r[p]);
    gcn_issue(w, GCN_LGKM, &op->dst[0], true);
}

static void ds_read(Wave *w, const Op *op) {
    uint32_t buf[GCN_LANES];
    uint64_t exec = gcn_exec(w);
    int bytes = op->row->arg;
    Loaded x;
    const uint32_t *address = gcn_source(w, op, 0, 0, buf);
    gcn_need(w, op, exec);
    for (int i = 0; i < w->lanes; i++) {
        if (!(exec >> i & 1)) continue;
        const uint8_t *p = reach(w, op, i, address[i] + (uint32_t)op->offset, bytes, false);
        if (!p) return;
        gcn_fill(w, &x, i, p, bytes, (Fill)op->row->arg2, op->dst[0].reg);
    }
    finish(w, op, &x, (bytes + 3) / 4);
}

// row->arg2: from the upper half
static void ds_write(Wave *w, const Op *op) {
    uint32_t buf[GCN_LANES], more[GCN_PARTS][GCN_LANES];
    const uint32_t *data[GCN_PARTS];
    uint64_t exec = gcn_exec(w);
    int bytes = op->row->arg;
    const uint32_t *address = gcn_source(w, op, 0, 0, buf);
    for (int p = 0; p < (bytes + 3) / 4; p++) data[p] = gcn_source(w, op, 1, p, more[p]);
    gcn_need(w, op, exec);
    for (int i = 0; i < w->lanes; i++) {
        if (!(exec >> i & 1)) continue;
        uint8_t *p = reach(w, op, i, address[i] + (uint32_t)op->offset, bytes, true);
        if (!p) return;
        gcn_stored(data, i, bytes, op->row->arg2, p);
    }
    gcn_issue(w, GCN_LGKM, NULL, true);
}

// Two at once: row->arg the bytes of each, row->arg2 what an offset counts.
static void ds_read2(Wave *w, const Op *op) {
    uint32_t buf[GCN_LANES];
    uint64_t exec = gcn_exec(w);
    int bytes = op->row->arg, offset[] = {op->offset, op->offset1};
    Loaded x;
    const uint32_t *address = gcn_source(w, op, 0, 0, buf);
    gcn_need(w, op, exec);
    for (int i = 0; i < w->lanes * 2; i++) {
        int lane = i / 2;
        uint32_t u[2];
        if (!(exec >> lane & 1)) continue;
        uint32_t at = address[lane] + (uint32_t)(offset[i % 2] * op->row->arg2);
        const uint8_t *p = reach(w, op, lane, at, bytes, false);
        if (!p) return;
        memcpy(u, p, (size_t)bytes);
        for (int k = 0; k < bytes / 4; k++) x.r[i % 2 * bytes / 4 + k][lane] = u[k];
    }
    finish(w, op, &x, bytes / 2);
}

static void ds_write2(Wave *w, const Op *op) {
    uint32_t buf[GCN_LANES], more[GCN_PARTS][GCN_LANES];
    const uint32_t *data[2][2];
    uint64_t exec = gcn_exec(w);
    int bytes = op->row->arg, offset[] = {op->offset, op->offset1};
    const uint32_t *address = gcn_source(w, op, 0, 0, buf);
    for (int k = 0; k < 2; k++)
        for (int p = 0; p < bytes / 4; p++)
            data[k][p] = gcn_source(w, op, 1 + k, p, more[2 * k + p]);
    gcn_need(w, op, exec);
    for (int i = 0; i < w->lanes * 2; i++) {
        int lane = i / 2;
        if (!(exec >> lane & 1)) continue;
        uint32_t at = address[lane] + (uint32_t)(offset[i % 2] * op->row->arg2);
        uint8_t *p = reach(w, op, lane, at, bytes, true);
        if (!p) return;
        gcn_stored(data[i % 2], lane, bytes, false, p);
    }
    gcn_issue(w, GCN_LGKM, NULL, true);
}

// ---- between lanes

static void exchange(Wave *w, const Op *op, int data, const int *from) {
    uint32_t buf[GCN_LANES], r[GCN_LANES];
    uint64_t exec = gcn_exec(w), defined = 0;
    w->defined = ~0ull;
    const uint32_t *p = gcn_source(w, op, data, 0, buf);
    for (int i = 0; i < w->lanes; i++) {
        bool active = exec >> from[i] & 1; // an inactive lane gives 0
        r[i] = active ? p[from[i]] : 0;
        defined |= (uint64_t)(!active || (w->defined >> from[i] & 1)) << i;
    }
    w->defined = defined;
    gcn_put(w, op, 0, r);
    gcn_issue(w, GCN_LGKM, &op->dst[0], false);
}

static void ds_bpermute(Wave *w, const Op *op) {
    uint32_t buf[GCN_LANES];
    int from[GCN_LANES];
    const uint32_t *address = gcn_source(w, op, 0, 0, buf);
    gcn_need(w, op, gcn_exec(w));
    for (int i = 0; i < w->lanes; i++)
        from[i] = (int)((address[i] + (uint32_t)op->offset) / 4) & (w->lanes - 1);
    exchange(w, op, 1, from);
}

static void ds_permute(Wave *w, const Op *op) {
    uint32_t buf[2][GCN_LANES], r[GCN_LANES] = {0};
    uint64_t exec = gcn_exec(w);
    const uint32_t *address = gcn_source(w, op, 0, 0, buf[0]);
    const uint32_t *p = gcn_source(w, op, 1, 0, buf[1]);
    gcn_need(w, op, exec);
    for (int i = 0; i < w->lanes; i++)
        if (exec >> i & 1)
            r[(address[i] + (uint32_t)op->offset) / 4 & (uint32_t)(w->lanes - 1)] = p[i];
    gcn_put(w, op, 0, r);
    gcn_issue(w, GCN_LGKM, &op->dst[0], false);
}

static void ds_swizzle(Wave *w, const Op *op) {
    int from[GCN_LANES], o = op->offset;
    for (int i = 0; i < w->lanes; i++) {
        if (o & 0x8000)
            from[i] = (i & ~3) + (o >> 2 * (i & 3) & 3);
        else
            from[i] = (i & ~31) + ((((i & 31 & o) | (o >> 5 & 31)) ^ (o >> 10 & 31)) & 31);
    }
    if ((o & 0xc000) == 0xc000) gcn_fault(w, op, "rotates, which is not modelled");
    exchange(w, op, 0, from);
}

static const Row rows[] = {
    {"ds_read_u8", ds_read, "n=u", ROW_LDS, 1, FILL_ZERO},
    {"ds_read_i8", ds_read, "n=u", ROW_LDS, 1, FILL_SIGN},
    {"ds_read_u16", ds_read, "n=u", ROW_LDS, 2, FILL_ZERO},
    {"ds_read_i16", ds_read, "n=u", ROW_LDS, 2, FILL_SIGN},
    {"ds_read_b32", ds_read, "n=u", ROW_LDS, 4, FILL_ALL},
    {"ds_read_b64", ds_read, "n=u", ROW_LDS, 8, FILL_ALL},
    {"ds_read_b96", ds_read, "n=u", ROW_LDS, 12, FILL_ALL},
    {"ds_read_b128", ds_read, "n=u", ROW_LDS, 16, FILL_ALL},
    {"ds_read_u16_d16", ds_read, "n=u", ROW_LDS, 2, FILL_LOW},
    {"ds_read_u16_d16_hi", ds_read, "n=u", ROW_LDS, 2, FILL_HIGH},
    {"ds_read_u8_d16", ds_read, "n=u", ROW_LDS, 1, FILL_LOW},
    {"ds_read_u8_d16_hi", ds_read, "n=u", ROW_LDS, 1, FILL_HIGH},
    {"ds_read2_b32", ds_read2, "n=u", ROW_LDS, 4, 4},
    {"ds_read2_b64", ds_read2, "n=u", ROW_LDS, 8, 8},
    {"ds_read2st64_b32", ds_read2, "n=u", ROW_LDS, 4, 4 * 64},
    {"ds_read2st64_b64", ds_read2, "n=u", ROW_LDS, 8, 8 * 64},
    {"ds_write_b8", ds_write, "=un", ROW_LDS, 1, 0},
    {"ds_write_b16", ds_write, "=un", ROW_LDS, 2, 0},
    {"ds_write_b32", ds_write, "=un", ROW_LDS, 4, 0},
    {"ds_write_b64", ds_write, "=un", ROW_LDS, 8, 0},
    {"ds_write_b96", ds_write, "=un", ROW_LDS, 12, 0},
    {"ds_write_b128", ds_write, "=un", ROW_LDS, 16, 0},
    {"ds_write_b16_d16_hi", ds_write, "=un", ROW_LDS, 2, 1},
    {"ds_write_b8_d16_hi", ds_write, "=un", ROW_LDS, 1, 1},
    {"ds_write2_b32", ds_write2, "=unn", ROW_LDS, 4, 4},
    {"ds_write2_b64", ds_write2, "=unn", ROW_LDS, 8, 8},
    {"ds_write2st64_b32", ds_write2, "=unn", ROW_LDS, 4, 4 * 64},
    {"ds_write2st64_b64", ds_write2, "=unn", ROW_LDS, 8, 8 * 64},
    {"ds_bpermute_b32", ds_bpermute, "u=uu", ROW_LDS, 0, 0},
    {"ds_permute_b32", ds_permute, "u=uu", ROW_LDS, 0, 0},
    {"ds_swizzle_b32", ds_swizzle, "u=u", ROW_LDS, 0, 0},
};

GcnRows gcn_rows_lds(void) { return (GcnRows){rows, sizeof rows / sizeof *rows}; }
