// scalar.c: scalar arithmetic (scalar.def), and the instructions that narrow exec.
#include "tests/gcn/wave.h"

static uint64_t field(uint64_t a, uint32_t at, uint32_t width, uint32_t bits) {
    if (width == 0) return 0;
    uint64_t u = a >> at;
    return width >= bits ? u : u & ((1ull << width) - 1);
}

static uint64_t signed_field(uint64_t a, uint32_t at, uint32_t width, uint32_t bits) {
    uint64_t u = field(a, at, width, bits);
    if (width == 0 || width >= bits) return u;
    return (uint64_t)((int64_t)(u << (64 - width)) >> (64 - width));
}

static uint64_t reversed(uint64_t a) {
    uint64_t r = 0;
    for (int i = 0; i < 64; i++) r |= (a >> i & 1) << (63 - i);
    return r;
}

static void condition(Wave *w, bool scc) {
    w->scc = scc;
    w->has_s[GCN_SCC] = w->defined ? ~0u : 0;
}

// Which bits of a source were ever written.
static uint64_t known_of(const Wave *w, const Op *op, int k) {
    const Operand *o = &op->src[k];
    if (k >= op->nsrc || o->kind != OPERAND_S || o->reg == GCN_NULL) return ~0ull;
    return (uint64_t)w->has_s[o->reg + (o->count > 1)] << 32 | w->has_s[o->reg];
}

// The result of an instruction that works bit by bit: of a mask, the bits of lanes that are not here
// may be left unwritten, and go out again before all are used.
static void put_bits(Wave *w, const Op *op, uint64_t r, uint64_t known, uint64_t all, bool scc) {
    bool whole = !(all & ~known);
    w->defined = whole || (known & r) ? ~0ull : 0;
    if (scc) condition(w, r != 0);
    w->defined = whole ? ~0ull : 0;
    gcn_put_scalar(w, op, 0, r);
    for (int i = 0; i < op->dst[0].count && op->dst[0].reg != GCN_NULL; i++)
        w->has_s[op->dst[0].reg + i] = (uint32_t)(known >> 32 * (i & 1));
}

#define BOTH (ka & kb)
#define KNOWN_MOVE ka
#define KNOWN_AND (BOTH | (ka & ~a) | (kb & ~b))
#define KNOWN_OR (BOTH | (ka & a) | (kb & b))
#define KNOWN_XOR BOTH
#define KNOWN_ANDN2 (BOTH | (ka & ~a) | (kb & b))
#define KNOWN_ORN2 (BOTH | (ka & a) | (kb & ~b))
#define TYPE_u uint32_t
#define TYPE_q uint64_t
#define SIGNED_u int32_t
#define SIGNED_q int64_t
#define KEEP scc

#define S(name, form, T, value, becomes)                                                           \
    static void name(Wave *w, const Op *op) {                                                      \
        uint32_t scc = w->scc;                                                                     \
        TYPE_##T a = (TYPE_##T)gcn_scalar(w, op, 0);                                               \
        TYPE_##T b = op->nsrc > 1 ? (TYPE_##T)gcn_scalar(w, op, 1) : 0;                            \
        SIGNED_##T x = (SIGNED_##T)a, y = (SIGNED_##T)b;                                           \
        TYPE_##T old = (TYPE_##T)gcn_pair(w, op->dst[0].reg);                                      \
        TYPE_##T r = (TYPE_##T)(value);                                                            \
        (void)x, (void)y, (void)old, (void)scc;                                                    \
        if (#becomes[0] != 'K') condition(w, (becomes) != 0);                                      \
        gcn_put_scalar(w, op, 0, r);                                                               \
    }
#define C(name, form, T, becomes)                                                                  \
    static void name(Wave *w, const Op *op) {                                                      \
        TYPE_##T a = (TYPE_##T)gcn_scalar(w, op, 0), b = (TYPE_##T)gcn_scalar(w, op, 1);           \
        SIGNED_##T x = (SIGNED_##T)a, y = (SIGNED_##T)b;                                           \
        (void)x, (void)y;                                                                          \
        condition(w, (becomes) != 0);                                                              \
    }
#define L(name, form, T, value, kind, scc)                                                         \
    static void name(Wave *w, const Op *op) {                                                      \
        TYPE_##T ka = (TYPE_##T)known_of(w, op, 0), kb = (TYPE_##T)known_of(w, op, 1);             \
        TYPE_##T a = (TYPE_##T)gcn_scalar(w, op, 0);                                               \
        TYPE_##T b = op->nsrc > 1 ? (TYPE_##T)gcn_scalar(w, op, 1) : 0;                            \
        (void)b, (void)kb;                                                                         \
        put_bits(w, op, (TYPE_##T)(value), (TYPE_##T)(KNOWN_##kind), (TYPE_##T) ~0ull, scc);       \
    }
#include "tests/gcn/scalar.def"
#undef S
#undef C
#undef L

// exec saved, then combined with the source; row->arg: 0 and, 1 or, 2 xor, 3 source and not exec
// (andn2), 4 source or not exec, 5 not source and exec (andn1).
static void saveexec(Wave *w, const Op *op) {
    uint64_t s = gcn_scalar(w, op, 0) & w->all, exec = gcn_exec(w);
    uint64_t to[] = {s & exec, s | exec, s ^ exec, s & ~exec, s | ~exec, ~s & exec};
    uint64_t known[] = {~exec, exec, 0, exec, ~exec, ~exec}; // whatever the source is
    uint64_t now = to[op->row->arg] & w->all;
    w->defined = w->all & ~(known_of(w, op, 0) | known[op->row->arg]) ? 0 : ~0ull;
    gcn_need(w, op, 1);
    gcn_put_scalar(w, op, 0, exec);
    w->s[GCN_EXEC] = (uint32_t)now;
    w->s[GCN_EXEC + 1] = (uint32_t)(now >> 32);
    condition(w, now != 0);
}

// Only the source that is chosen counts.
static void select(Wave *w, const Op *op) {
    int k = w->scc ? 0 : 1;
    bool wide = op->dst[0].count > 1;
    uint64_t known = gcn_whole(w, GCN_SCC) ? known_of(w, op, k) : 0;
    put_bits(w, op, gcn_scalar(w, op, k), known, wide ? ~0ull : ~0u, false);
}

static const Row rows[] = {
#define S(name, form, T, value, becomes) {#name, name, form, 0, 0, 0},
#define C(name, form, T, becomes) {#name, name, form, 0, 0, 0},
#define L(name, form, T, value, kind, scc) {#name, name, form, 0, 0, 0},
#include "tests/gcn/scalar.def"
#undef S
#undef C
#undef L
#define SAVE(name, k)                                                                              \
    {"s_" name "_saveexec_b64", saveexec, "q=q", 0, k, 0}, {                                       \
        "s_" name "_saveexec_b32", saveexec, "u=u", 0, k, 0                                        \
    }
    SAVE("and", 0),
    SAVE("or", 1),
    SAVE("xor", 2),
    SAVE("andn2", 3),
    SAVE("orn2", 4),
    SAVE("andn1", 5),
    {"s_cselect_b32", select, "u=uu", 0, 0, 0},
    {"s_cselect_b64", select, "q=qq", 0, 0, 0},
};

GcnRows gcn_rows_scalar(void) { return (GcnRows){rows, sizeof rows / sizeof *rows}; }
