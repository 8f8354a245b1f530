// matrix.c: MFMA and WMMA (matrix.def). Products and sums are taken in f64 and rounded once: the
// device's order of summation is its own.
#include "tests/gcn/wave.h"
#include "tools/tensor.h"

enum { MOST = 32, DEPTH = 16 };

typedef enum Element { OF_F16, OF_BF16, OF_F32 } Element;

typedef struct Matrices {
    float a[MOST][DEPTH], b[MOST][DEPTH]; // b by columns
    float c[MOST][MOST];
} Matrices;

static float element(Wave *w, const uint32_t (*r)[GCN_LANES], int lane, int k, Element e) {
    if (e == OF_F32) return gcn_f32(r[k][lane]);
    uint16_t u = (uint16_t)(r[k / 2][lane] >> 16 * (k % 2));
    // the matrix cores of gfx90a take a denormal as 0
    uint16_t exponent = e == OF_F16 ? 0x7c00 : 0x7f80;
    if (w->code->gfx90a && !(u & exponent)) u &= 0x8000;
    return e == OF_F16 ? half_to_f32(u) : bf16_to_f32(u);
}

// The registers of source k. All lanes take part, whatever exec says.
static void registers(Wave *w, const Op *op, int k, int n, uint32_t (*out)[GCN_LANES]) {
    uint32_t buf[GCN_LANES];
    const Operand *o = &op->src[k];
    if (o->kind != OPERAND_CONST && o->count != n)
        gcn_fault(w, op, "has %d registers where the matrix takes %d", o->count, n);
    w->defined = ~0ull;
    for (int part = 0; part < n && !gcn_failed(w); part++) {
        const uint32_t *p = gcn_source(w, op, k, o->kind == OPERAND_CONST ? 0 : part, buf);
        memcpy(out[part], p, sizeof *p * (size_t)w->lanes);
    }
    gcn_need(w, op, w->all);
}

static void multiply(Matrices *m, int n, int depth) {
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++) {
            double sum = 0;
            for (int k = 0; k < depth; k++) sum += (double)m->a[i][k] * m->b[j][k];
            m->c[i][j] = (float)(sum + m->c[i][j]);
        }
}

static void put(Wave *w, const Op *op, int n, uint32_t (*r)[GCN_LANES]) {
    for (int part = 0; part < n; part++) {
        int reg = op->dst[0].reg + part;
        memcpy(w->v[reg], r[part], sizeof **r * (size_t)w->lanes);
        w->has_v[reg] = w->all;
    }
}

static int mfma_lane(int n, int i, int j) {
    return n == 16 ? 16 * (i / 4) + j : 32 * (i / 4 % 2) + j;
}
static int mfma_register(int n, int i) { return n == 16 ? i % 4 : 4 * (i / 8) + i % 4; }

static void mfma(Wave *w, const Op *op, int n, int depth, Element e) {
    uint32_t r[16][GCN_LANES];
    Matrices m;
    int each = n * depth / 64, regs = e == OF_F32 ? each : each / 2, results = n * n / 64;
    registers(w, op, 0, regs, r);
    for (int i = 0; i < n; i++)
        for (int k = 0; k < depth; k++) m.a[i][k] = element(w, r, n * (k / each) + i, k % each, e);
    registers(w, op, 1, regs, r);
    for (int j = 0; j < n; j++)
        for (int k = 0; k < depth; k++) m.b[j][k] = element(w, r, n * (k / each) + j, k % each, e);
    registers(w, op, 2, results, r);
    if (gcn_failed(w)) return;
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++) m.c[i][j] = gcn_f32(r[mfma_register(n, i)][mfma_lane(n, i, j)]);
    multiply(&m, n, depth);
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++)
            r[mfma_register(n, i)][mfma_lane(n, i, j)] = gcn_bits(m.c[i][j]);
    put(w, op, results, r);
}

// The two halves of the wave must hold the same rows of A and columns of B.
static bool same_halves(Wave *w, const Op *op, uint32_t (*r)[GCN_LANES]) {
    for (int part = 0; part < 8; part++)
        if (memcmp(r[part], r[part] + 16, 16 * sizeof **r) != 0) {
            gcn_fault(w, op, "has other values in lanes 16 to 31 than in lanes 0 to 15");
            return false;
        }
    return true;
}

static void wmma(Wave *w, const Op *op, Element e) {
    uint32_t r[8][GCN_LANES];
    Matrices m;
    if (gcn_exec(w) != w->all) gcn_fault(w, op, "runs with inactive lanes");
    registers(w, op, 0, 8, r);
    if (!same_halves(w, op, r)) return;
    for (int i = 0; i < 16; i++)
        for (int k = 0; k < 16; k++) m.a[i][k] = element(w, r, i, k, e);
    registers(w, op, 1, 8, r);
    if (!same_halves(w, op, r)) return;
    for (int j = 0; j < 16; j++)
        for (int k = 0; k < 16; k++) m.b[j][k] = element(w, r, j, k, e);
    registers(w, op, 2, 8, r);
    if (gcn_failed(w)) return;
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < 16; j++) m.c[i][j] = gcn_f32(r[i / 2][16 * (i % 2) + j]);
    multiply(&m, 16, 16);
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < 16; j++) r[i / 2][16 * (i % 2) + j] = gcn_bits(m.c[i][j]);
    put(w, op, 8, r);
}

#define MFMA(name, n, depth, e)                                                                    \
    static void name(Wave *w, const Op *op) { mfma(w, op, n, depth, e); }
#define WMMA(name, e)                                                                              \
    static void name(Wave *w, const Op *op) { wmma(w, op, e); }
#include "tests/gcn/matrix.def"
#undef MFMA
#undef WMMA

static const Row rows[] = {
#define MFMA(name, n, depth, e) {#name, name, "n=nnf", 0, 0, 0},
#define WMMA(name, e) {#name, name, "n=nnf", 0, 0, 0},
#include "tests/gcn/matrix.def"
#undef MFMA
#undef WMMA
};

GcnRows gcn_rows_matrix(void) { return (GcnRows){rows, sizeof rows / sizeof *rows}; }
