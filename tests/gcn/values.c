// values.c: how an instruction's sources are read and its results written: constants, scalars,
// vector registers, through negation and absolute values, halves (op_sel), bytes and words (SDWA)
// and other lanes (DPP); and which lanes of a register were ever written.
#include "tests/gcn/wave.h"
#include "tools/tensor.h"
#include <stdio.h>

static const uint32_t zeros[GCN_LANES];

void gcn_need(Wave *w, const Op *op, uint64_t lanes) {
    uint64_t missing = lanes & ~w->defined;
    if (missing)
        gcn_fault(w, op, "uses a register that was never written, in lane %d",
                  __builtin_ctzll(missing));
}

// ---- other lanes

static bool permutation(Dpp *d, const char *control) {
    int a[8];
    if (sscanf(control, "quad_perm:[%d,%d,%d,%d]", a, a + 1, a + 2, a + 3) == 4) {
        for (int i = 0; i < GCN_LANES; i++) d->from[i] = (uint8_t)((i & ~3) + (a[i & 3] & 3));
        return true;
    }
    if (sscanf(control, "dpp8:[%d,%d,%d,%d,%d,%d,%d,%d]", a, a + 1, a + 2, a + 3, a + 4, a + 5,
               a + 6, a + 7) == 8) {
        for (int i = 0; i < GCN_LANES; i++) d->from[i] = (uint8_t)((i & ~7) + (a[i & 7] & 7));
        return true;
    }
    return false;
}

// The lane that lane i reads under a control with one number; -1: out of reach.
static int moved(const char *control, int n, int i) {
    int row = i & ~15, col = i & 15;
    if (strncmp(control, "row_shl:", 8) == 0) return col + n < 16 ? i + n : -1;
    if (strncmp(control, "row_shr:", 8) == 0) return col >= n ? i - n : -1;
    if (strncmp(control, "row_ror:", 8) == 0) return row + ((col - n) & 15);
    if (strncmp(control, "wave_shl:", 9) == 0) return i + 1 < GCN_LANES ? i + 1 : -1;
    if (strncmp(control, "wave_shr:", 9) == 0) return i - 1;
    if (strncmp(control, "wave_rol:", 9) == 0) return (i + 1) & 63;
    if (strncmp(control, "wave_ror:", 9) == 0) return (i - 1) & 63;
    if (strncmp(control, "row_bcast:", 10) == 0 && n == 15) return row ? row - 1 : -1;
    if (strncmp(control, "row_bcast:", 10) == 0) return i >= 32 ? 31 : -1;
    if (strncmp(control, "row_xmask:", 10) == 0) return row + (col ^ n);
    return row + n; // row_share, row_newbcast
}

const Dpp *gcn_dpp(Arena *a, const char *control, int row_mask, int bank_mask, bool bound,
                   bool fi) {
    Dpp *d = ARENA_NEW(a, Dpp);
    int n = 0;
    bool mirror = strcmp(control, "row_mirror") == 0;
    bool half = strcmp(control, "row_half_mirror") == 0, known = permutation(d, control);
    const char *colon = strchr(control, ':');
    d->bound = bound;
    d->fi = fi;
    if (!known && !mirror && !half && (!colon || sscanf(colon + 1, "%i", &n) != 1)) return NULL;
    for (int i = 0; i < GCN_LANES; i++) {
        int from = known ? d->from[i] : mirror ? i ^ 15 : half ? i ^ 7 : moved(control, n, i);
        d->from[i] = (uint8_t)(from < 0 ? 0 : from);
        d->valid |= (uint64_t)(from >= 0) << i;
        d->write |= (uint64_t)(row_mask >> (i / 16) & bank_mask >> (i / 4 % 4) & 1) << i;
    }
    return d;
}

// Lanes whose source DPP can read.
static uint64_t reachable(const Wave *w, const Dpp *d) {
    uint64_t exec = gcn_exec(w), lanes = 0;
    for (int i = 0; i < w->lanes; i++)
        if ((d->valid >> i & 1) && (d->fi || (exec >> d->from[i] & 1))) lanes |= 1ull << i;
    return lanes;
}

static const uint32_t *through_dpp(Wave *w, const Dpp *d, int reg, uint32_t *buf) {
    uint64_t lanes = reachable(w, d), has = w->has_v[reg], defined = 0;
    for (int i = 0; i < w->lanes; i++) {
        bool reach = lanes >> i & 1;
        buf[i] = reach ? w->v[reg][d->from[i]] : 0;
        defined |= (uint64_t)(!reach || (has >> d->from[i] & 1)) << i;
    }
    w->defined &= defined;
    return buf;
}

uint64_t gcn_lanes_written(const Wave *w, const Op *op) {
    uint64_t exec = gcn_exec(w);
    if (!op->dpp) return exec;
    return exec & op->dpp->write & (op->dpp->bound ? ~0ull : reachable(w, op->dpp));
}

// ---- sources

static uint32_t scalar_part(Wave *w, const Operand *o, int part) {
    if (o->reg == GCN_NULL) return 0;
    if (!gcn_whole(w, o->reg + part)) w->defined = 0;
    return o->reg == GCN_SCC ? w->scc : w->s[o->reg + part];
}

static void choose(const Operand *o, const uint32_t *from, uint32_t *to, int n) {
    int shift = o->sel == SEL_WORD1                          ? 16
                : o->sel >= SEL_BYTE0 && o->sel <= SEL_BYTE3 ? 8 * (o->sel - SEL_BYTE0)
                                                             : 0;
    int bits = o->sel == SEL_DWORD ? 32 : o->sel >= SEL_WORD0 ? 16 : 8;
    for (int i = 0; i < n; i++) {
        uint32_t u = from[i] >> shift;
        if (bits < 32) u &= (1u << bits) - 1;
        if (o->sext) u = (uint32_t)((int32_t)(u << (32 - bits)) >> (32 - bits));
        to[i] = u;
    }
}

static void signs(const Operand *o, uint32_t bit, const uint32_t *from, uint32_t *to, int n) {
    for (int i = 0; i < n; i++) {
        uint32_t u = from[i];
        if (o->abs) u &= ~bit;
        if (o->neg) u ^= bit;
        to[i] = u;
    }
}

const uint32_t *gcn_source(Wave *w, const Op *op, int k, int part, uint32_t *buf) {
    const Operand *o = &op->src[k];
    const uint32_t *p = o->lanes;
    if (o->kind == OPERAND_V) {
        int reg = o->reg + part;
        p = w->v[reg];
        if (op->dpp && k == 0)
            p = through_dpp(w, op->dpp, reg, buf);
        else
            w->defined &= w->has_v[reg];
    } else if (o->kind == OPERAND_S) {
        uint32_t u = scalar_part(w, o, part);
        for (int i = 0; i < w->lanes; i++) buf[i] = u;
        p = buf;
    } else if (o->kind == OPERAND_CONST && part) {
        for (int i = 0; i < w->lanes; i++) buf[i] = (uint32_t)(o->value >> 32);
        p = buf;
    } else if (o->kind == OPERAND_NONE) {
        p = zeros;
    }
    if (o->sel || o->sext) choose(o, p, buf, w->lanes), p = buf;
    if (o->type == 'h' && (op->op_sel >> k & 1)) {
        for (int i = 0; i < w->lanes; i++) buf[i] = p[i] >> 16;
        p = buf;
    }
    bool high = o->type == 'd' && part == 0; // the sign is in the other half
    if ((o->neg || o->abs) && !high && o->type != 'x')
        signs(o, o->type == 'h' ? 0x8000 : 0x80000000, p, buf, w->lanes), p = buf;
    return p;
}

void gcn_source64(Wave *w, const Op *op, int k, uint64_t *out) {
    uint32_t low[GCN_LANES], high[GCN_LANES];
    const Operand *o = &op->src[k];
    uint64_t others = w->defined;
    w->defined = ~0ull;
    const uint32_t *p = gcn_source(w, op, k, 0, low);
    w->defined_low &= w->defined;
    bool wide = o->count > 1 || o->kind == OPERAND_CONST;
    const uint32_t *q = wide ? gcn_source(w, op, k, 1, high) : zeros;
    w->defined &= others;
    for (int i = 0; i < w->lanes; i++) out[i] = (uint64_t)q[i] << 32 | p[i];
}

uint64_t gcn_scalar(Wave *w, const Op *op, int k) {
    const Operand *o = &op->src[k];
    if (o->kind == OPERAND_CONST) return o->value;
    if (o->kind != OPERAND_S) {
        if (o->kind == OPERAND_V) gcn_fault(w, op, "reads a vector register as a scalar");
        return 0;
    }
    uint64_t u = scalar_part(w, o, 0);
    if (o->count > 1 && o->reg != GCN_NULL) u |= (uint64_t)scalar_part(w, o, 1) << 32;
    return u;
}

// ---- results

static void blend(Wave *w, const Op *op, int reg, const uint32_t *r) {
    uint64_t lanes = gcn_lanes_written(w, op);
    uint32_t *to = w->v[reg];
    if (lanes == w->all)
        memcpy(to, r, sizeof *to * (size_t)w->lanes);
    else
        for (int i = 0; i < w->lanes; i++) to[i] = lanes >> i & 1 ? r[i] : to[i];
    w->has_v[reg] = (w->has_v[reg] & ~lanes) | (w->defined & lanes);
}

// A byte or a word of the register.
static void insert(const Wave *w, const Op *op, int reg, const uint32_t *r, uint32_t *out) {
    bool word = op->dst_sel >= SEL_WORD0;
    int shift = word ? 16 * (op->dst_sel - SEL_WORD0) : 8 * (op->dst_sel - SEL_BYTE0);
    uint32_t mask = (word ? 0xffffu : 0xffu) << shift;
    for (int i = 0; i < w->lanes; i++) {
        uint32_t u = r[i] << shift & mask, top = mask & ~(mask >> 1);
        if (op->dst_unused == 2) u |= w->v[reg][i] & ~mask;
        if (op->dst_unused == 1 && (u & top)) u |= ~(top | (top - 1));
        out[i] = u;
    }
}

void gcn_put(Wave *w, const Op *op, int part, const uint32_t *r) {
    int reg = op->dst[0].reg + part;
    uint32_t buf[GCN_LANES];
    if (op->dst[0].kind != OPERAND_V) {
        gcn_fault(w, op, "writes no vector register");
        return;
    }
    if (op->clamp || op->omod) {
        memcpy(buf, r, sizeof *buf * (size_t)w->lanes);
        gcn_clamp(op, buf, w->lanes);
        r = buf;
    }
    if (op->dst_sel) insert(w, op, reg, r, buf), r = buf;
    blend(w, op, reg, r);
}

// gfx9 clears the other half, but for the instructions that say KEEP; gfx11 leaves it.
void gcn_put_half(Wave *w, const Op *op, const uint32_t *r) {
    int reg = op->dst[0].reg;
    bool high = op->op_sel >> op->nsrc & 1;
    bool keep = w->code->gfx11 || (op->row->flags & ROW_KEEP) || high;
    uint32_t buf[GCN_LANES];
    if (op->has_sdwa) {
        gcn_put(w, op, 0, r);
        return;
    }
    for (int i = 0; i < w->lanes; i++) {
        uint32_t old = keep ? w->v[reg][i] : 0;
        buf[i] = high ? (old & 0xffff) | r[i] << 16 : (old & 0xffff0000) | (r[i] & 0xffff);
    }
    blend(w, op, reg, buf);
}

void gcn_put64(Wave *w, const Op *op, const uint64_t *r) {
    uint32_t half[GCN_LANES];
    uint64_t all = w->defined;
    for (int part = 0; part < 2; part++) {
        w->defined = part == 0 && (op->row->flags & ROW_UPWARD) ? w->defined_low : all;
        for (int i = 0; i < w->lanes; i++) half[i] = (uint32_t)(r[i] >> 32 * part);
        blend(w, op, op->dst[0].reg + part, half);
    }
}

void gcn_put_scalar(Wave *w, const Op *op, int k, uint64_t value) {
    const Operand *o = &op->dst[k];
    if (o->kind != OPERAND_S) {
        gcn_fault(w, op, "writes no scalar register");
        return;
    }
    if (o->reg == GCN_EXEC || o->reg == GCN_M0) gcn_need(w, op, 1);
    for (int i = 0; i < o->count && o->reg != GCN_NULL; i++) {
        w->s[o->reg + i] = (uint32_t)(value >> 32 * (i & 1));
        w->has_s[o->reg + i] = w->defined ? ~0u : 0;
    }
}

void gcn_put_mask(Wave *w, const Op *op, int k, uint64_t value) {
    w->defined = ~0ull; // what active lanes lack was reported, the others give 0
    gcn_put_scalar(w, op, k, value & w->all);
}

void gcn_clamp(const Op *op, uint32_t *r, int lanes) {
    static const float scale[] = {1, 2, 4, 0.5f};
    for (int i = 0; i < lanes; i++) {
        float f = gcn_f32(r[i]) * scale[(int)op->omod];
        if (op->clamp) f = f > 1 ? 1 : f > 0 ? f : 0;
        r[i] = gcn_bits(f);
    }
}
