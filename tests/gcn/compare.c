// compare.c: v_cmp and v_cmpx: every condition of every type, and classes of f32.
//
// A row's arg is the condition, its arg2 the type. Inactive lanes give 0.
#include "tests/gcn/wave.h"
#include "tools/tensor.h"

// A condition is a set of orders, of bits: a < b, a == b, a > b, one is NaN.
enum { LT = 1, EQ = 2, GT = 4, UN = 8, NUMBERS = LT | EQ | GT };
typedef enum Kind { OF_F32, OF_F16, OF_F64, OF_I32, OF_U32, OF_I16, OF_U16, OF_I64, OF_U64 } Kind;

static int of_doubles(double a, double b) {
    return isnan(a) || isnan(b) ? UN : a < b ? LT : a > b ? GT : EQ;
}
static int of_signed(int64_t a, int64_t b) { return a < b ? LT : a > b ? GT : EQ; }
static int of_unsigned(uint64_t a, uint64_t b) { return a < b ? LT : a > b ? GT : EQ; }

static int order(Kind k, uint64_t a, uint64_t b) {
    switch (k) {
    case OF_F32: return of_doubles(gcn_f32((uint32_t)a), gcn_f32((uint32_t)b));
    case OF_F16: return of_doubles(half_to_f32((uint16_t)a), half_to_f32((uint16_t)b));
    case OF_F64: return of_doubles(gcn_f64(a), gcn_f64(b));
    case OF_I32: return of_signed((int32_t)a, (int32_t)b);
    case OF_U32: return of_unsigned((uint32_t)a, (uint32_t)b);
    case OF_I16: return of_signed((int16_t)a, (int16_t)b);
    case OF_U16: return of_unsigned((uint16_t)a, (uint16_t)b);
    case OF_I64: return of_signed((int64_t)a, (int64_t)b);
    case OF_U64: return of_unsigned(a, b);
    }
    return UN;
}

static void give(Wave *w, const Op *op, uint64_t mask) {
    mask &= gcn_exec(w);
    if (op->ndst) gcn_put_mask(w, op, 0, mask);
    if (!(op->row->flags & ROW_CMPX)) return;
    w->s[GCN_EXEC] = (uint32_t)mask;
    w->s[GCN_EXEC + 1] = (uint32_t)(mask >> 32);
}

static void compare(Wave *w, const Op *op) {
    uint64_t a[GCN_LANES], b[GCN_LANES], mask = 0;
    gcn_source64(w, op, 0, a);
    gcn_source64(w, op, 1, b);
    gcn_need(w, op, gcn_exec(w));
    for (int i = 0; i < w->lanes && op->row->arg2 == OF_F32; i++) {
        a[i] = gcn_mode(w, (uint32_t)a[i]);
        b[i] = gcn_mode(w, (uint32_t)b[i]);
    }
    for (int i = 0; i < w->lanes; i++) {
        int o = order((Kind)op->row->arg2, a[i], b[i]);
        mask |= (uint64_t)((op->row->arg & o) != 0) << i;
    }
    give(w, op, mask);
}

// Which of the ten classes a number is of, as a bit.
static uint32_t class_of(double x, bool denormal, bool quiet) {
    bool negative = signbit(x);
    if (isnan(x)) return quiet ? 2 : 1;
    if (isinf(x)) return negative ? 4 : 512;
    if (x == 0) return negative ? 32 : 64;
    if (denormal) return negative ? 16 : 128;
    return negative ? 8 : 256;
}

static void classes(Wave *w, const Op *op) {
    uint32_t buf[2][GCN_LANES];
    uint64_t mask = 0;
    const uint32_t *a = gcn_source(w, op, 0, 0, buf[0]), *b = gcn_source(w, op, 1, 0, buf[1]);
    bool f16 = op->row->arg2 == OF_F16;
    gcn_need(w, op, gcn_exec(w));
    for (int i = 0; i < w->lanes; i++) {
        double x = f16 ? half_to_f32((uint16_t)a[i]) : gcn_f32(a[i]);
        bool quiet = a[i] & (f16 ? 0x200u : 0x400000u);
        uint32_t c = class_of(x, fabs(x) < (f16 ? 0x1p-14 : 0x1p-126), quiet);
        mask |= (uint64_t)((c & b[i]) != 0) << i;
    }
    give(w, op, mask);
}

#define ROW2(cond, c, type, k, letter)                                                             \
    {"v_cmp_" cond "_" type, compare, "m=" letter letter, 0, c, k},                                \
        {"v_cmpx_" cond "_" type, compare, "=" letter letter, ROW_CMPX, c, k},
#define BOTH(type, k, letter)                                                                      \
    ROW2("f", 0, type, k, letter)                                                                  \
    ROW2("lt", LT, type, k, letter)                                                                \
    ROW2("eq", EQ, type, k, letter)                                                                \
    ROW2("le", LT | EQ, type, k, letter)                                                           \
    ROW2("gt", GT, type, k, letter)                                                                \
    ROW2("ge", EQ | GT, type, k, letter)
#define INTEGER(type, k, letter)                                                                   \
    BOTH(type, k, letter)                                                                          \
    ROW2("ne", LT | GT, type, k, letter)                                                           \
    ROW2("t", NUMBERS, type, k, letter)
#define FLOAT(type, k, letter)                                                                     \
    BOTH(type, k, letter)                                                                          \
    ROW2("o", NUMBERS, type, k, letter)                                                            \
    ROW2("u", UN, type, k, letter)                                                                 \
    ROW2("nge", LT | UN, type, k, letter)                                                          \
    ROW2("nlg", EQ | UN, type, k, letter)                                                          \
    ROW2("ngt", LT | EQ | UN, type, k, letter)                                                     \
    ROW2("nle", GT | UN, type, k, letter)                                                          \
    ROW2("neq", LT | GT | UN, type, k, letter)                                                     \
    ROW2("nlt", EQ | GT | UN, type, k, letter)                                                     \
    ROW2("lg", LT | GT, type, k, letter)                                                           \
    ROW2("tru", NUMBERS | UN, type, k, letter)

static const Row rows[] = {
    FLOAT("f32", OF_F32, "f") FLOAT("f16", OF_F16, "h") FLOAT("f64", OF_F64, "d")
        INTEGER("i32", OF_I32, "u") INTEGER("u32", OF_U32, "u") INTEGER("i16", OF_I16, "h")
            INTEGER("u16", OF_U16, "h") INTEGER("i64", OF_I64, "q")
                INTEGER("u64", OF_U64, "q"){"v_cmp_class_f32", classes, "m=fu", 0, 0, OF_F32},
    {"v_cmpx_class_f32", classes, "=fu", ROW_CMPX, 0, OF_F32},
    {"v_cmp_class_f16", classes, "m=hu", 0, 0, OF_F16},
    {"v_cmpx_class_f16", classes, "=hu", ROW_CMPX, 0, OF_F16},
};

GcnRows gcn_rows_compare(void) { return (GcnRows){rows, sizeof rows / sizeof *rows}; }
