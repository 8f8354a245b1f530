// wave.h: what the interpreter's files share: decoded instructions, waves, how operands are read and
// results written.
//
// An instruction's handler reads its sources with gcn_source*, which also note in wave->defined the
// lanes in which all of them were ever written, and writes with gcn_put*, which pass that on. What
// needs a real value (an address, stored data, a comparison) calls gcn_need.
#ifndef TESTS_GCN_WAVE_H
#define TESTS_GCN_WAVE_H

#include "tests/gcn/gcn.h"
#include <math.h>
#include <string.h>

enum {
    GCN_LANES = 64,
    GCN_SGPRS = 128,
    GCN_VGPRS = 512, // from 256 on: the accumulation registers
    GCN_VCC = 106,
    GCN_TTMP = 108,
    GCN_M0 = 124,
    GCN_NULL = 125,
    GCN_EXEC = 126,
    GCN_SCC = 128, // operands only
    GCN_SOURCES = 5,
    GCN_MAX_WAVES = 16,
    GCN_LDS_BYTES = 64 * 1024,
};

// The address of the buffer through which gfx90a reaches scratch.
#define GCN_SCRATCH 0x700000000000ull

typedef enum GcnCounter { GCN_VM, GCN_LGKM, GCN_VS, GCN_COUNTERS } GcnCounter;

typedef enum OperandKind { OPERAND_NONE, OPERAND_V, OPERAND_S, OPERAND_CONST } OperandKind;
typedef enum Sel {
    SEL_DWORD,
    SEL_BYTE0,
    SEL_BYTE1,
    SEL_BYTE2,
    SEL_BYTE3,
    SEL_WORD0,
    SEL_WORD1
} Sel;

// How an operand's bits are meant; a letter of a row's form.
//   u 32 bits   f f32   h 16 bits (f16 or integer)   p two of 16   q 64 bits   d f64   P two f32
//   x f32 or f16 by op_sel_hi (v_fma_mix)   m a bit for each lane   n registers as many as named
typedef struct Operand {
    uint8_t kind; // OperandKind
    char type;
    uint8_t count; // registers
    uint16_t reg;
    bool neg, abs, sext;
    uint8_t sel; // Sel, of SDWA
    uint64_t value;
    const uint32_t *lanes; // CONST: the low half in every lane
} Operand;

typedef struct Dpp {
    uint8_t from[GCN_LANES];
    uint64_t valid; // lanes with a source in reach
    uint64_t write; // lanes that row_mask and bank_mask let through
    bool bound, fi; // out of reach reads 0; inactive lanes are read
} Dpp;

typedef struct Op Op;
typedef struct Wave Wave;
typedef void GcnRun(Wave *w, const Op *op);

typedef enum RowFlag {
    ROW_ACC = 1,       // the result is the last source, too
    ROW_KEEP = 2,      // a 16-bit result leaves the other half as it is on every target
    ROW_FLOAT = 4,     // clamp and omod apply
    ROW_CLAMP = 8,     // clamp saturates an integer
    ROW_MEMORY = 16,   // a vector load or store
    ROW_LDS = 32,      // of LDS, or through its network
    ROW_BRANCH = 64,   // the operand is a distance
    ROW_ANY = 128,     // operands are not looked at
    ROW_WAIT = 256,    // s_waitcnt
    ROW_CMPX = 512,    // gfx9 names a result, gfx11 does not
    ROW_UPWARD = 1024, // of 64 bits: the low half depends on low halves only
} RowFlag;

typedef struct Row {
    const char *name;
    GcnRun *run;
    const char *form; // "results=sources"
    int flags;        // RowFlag
    int arg, arg2;    // the handler's own
} Row;

struct Op {
    const Row *row;
    GcnRun *run;
    Operand dst[2], src[GCN_SOURCES];
    int ndst, nsrc;
    uint32_t at, next; // offsets in the code object's image
    int target;        // of a branch: index of an op
    int offset, offset1;
    uint8_t op_sel, op_sel_hi, neg_lo, neg_hi; // a bit for each operand
    bool clamp, offen, idxen, has_sdwa;
    int8_t omod;                 // 1: times 2, 2: times 4, 3: by 2
    uint8_t dst_sel, dst_unused; // SDWA; unused: 0 pad, 1 sext, 2 preserve
    int wait[GCN_COUNTERS];      // s_waitcnt: -1 is not named
    const Dpp *dpp;
    const char *text, *problem;
};

typedef struct GcnRows {
    const Row *row;
    int n;
} GcnRows;
GcnRows gcn_rows_valu(void), gcn_rows_half(void), gcn_rows_wide(void), gcn_rows_compare(void);
GcnRows gcn_rows_scalar(void), gcn_rows_control(void), gcn_rows_memory(void), gcn_rows_lds(void);
GcnRows gcn_rows_buffer(void), gcn_rows_lanes(void), gcn_rows_matrix(void);

struct GcnCode {
    Arena *arena;
    const char *target;
    bool gfx11, gfx90a;
    int lanes; // of a wave
    uint8_t *image;
    size_t image_bytes;
    uint32_t text, text_bytes; // offset in the image
    Op *op;
    int nops;
    int *op_at; // (offset - text) / 4 -> index of the op, -1: none starts there
    struct GcnKernel *kernels;
    int nkernels;
};

struct GcnKernel {
    const GcnCode *code;
    const char *name;
    uint32_t entry; // offset in the image
    uint32_t lds, scratch, kernarg, rsrc1, rsrc2;
    uint16_t props, preload;
    uint32_t vgprs, agprs, sgprs, threads;
    GcnArg *arg; // but the hidden ones
    uint32_t nargs;
};

// object.c, decode.c
bool gcn_object(GcnCode *c, const void *bytes, size_t n, GcnError *e);
bool gcn_decode(GcnCode *c, const GcnEdit *edit, GcnError *e);
// operand.c: text to an Op (two of them for v_dual_*). What it cannot read is op->problem.
typedef struct GcnTable GcnTable;
GcnTable *gcn_table(Arena *a);
int gcn_read(const GcnTable *t, GcnCode *c, const char *text, Op out[2]);
const Dpp *gcn_dpp(Arena *a, const char *control, int row_mask, int bank_mask, bool bound, bool fi);

// ---- running

typedef struct LdsByte {
    uint8_t written, writer;
    uint16_t readers; // waves since the barrier
    uint16_t write_epoch, read_epoch;
} LdsByte;

typedef struct Group {
    GcnLaunch *launch;
    GcnError *error;
    uint8_t *lds;
    LdsByte *shadow;
    uint32_t lds_bytes;
    uint32_t id[3];
    Wave *wave;
    int nwaves;
    GcnBuffer own[3]; // the code object, the arguments, the dispatch packet
    const GcnBuffer *last;
} Group;

typedef enum WaveState { WAVE_RUNS, WAVE_AT_BARRIER, WAVE_ENDED } WaveState;

enum { GCN_PENDING = 64 };
typedef struct Pending { // registers that a memory instruction will fill
    uint16_t reg;
    uint8_t count;
    bool scalar, lds;
} Pending;
typedef struct Waiting { // in order of issue
    Pending p[GCN_PENDING];
    int first, n;
} Waiting;

struct Wave {
    const GcnCode *code;
    Group *group;
    const Op *pc;
    int index, lanes;
    bool flush;           // f32 denormals are 0
    uint64_t all;         // a bit for each lane
    uint64_t defined;     // lanes in which the sources read so far were written
    uint64_t defined_low; // ... the low halves of those of 64 bits
    WaveState state;
    uint32_t scc;
    uint16_t epoch; // barriers passed
    uint64_t steps;
    int busy; // registers under way
    Waiting waiting[GCN_COUNTERS];
    uint8_t busy_v[GCN_VGPRS], busy_by[GCN_VGPRS], busy_s[GCN_SGPRS + 1]; // by: which counter
    uint32_t has_s[GCN_SGPRS + 1]; // bits that were ever written: a mask's, for some lanes
    uint32_t s[GCN_SGPRS + 1];
    uint64_t has_v[GCN_VGPRS];
    uint32_t v[GCN_VGPRS][GCN_LANES];
    uint8_t *scratch; // lanes * kernel->scratch bytes
};

static inline uint64_t gcn_pair(const Wave *w, int reg) {
    return (uint64_t)w->s[reg + 1] << 32 | w->s[reg];
}
static inline uint64_t gcn_exec(const Wave *w) { return gcn_pair(w, GCN_EXEC) & w->all; }
static inline bool gcn_whole(const Wave *w, int reg) { return w->has_s[reg] == ~0u; }
// A bit for each lane, in as many registers as the wave has halves.
static inline uint64_t gcn_mask(const Wave *w, int reg) {
    return w->lanes == 64 ? gcn_pair(w, reg) : w->s[reg];
}
// Which of them were ever written.
static inline uint64_t gcn_mask_known(const Wave *w, int reg) {
    return w->lanes == 64 ? (uint64_t)w->has_s[reg + 1] << 32 | w->has_s[reg] : w->has_s[reg];
}

// The first one is kept, with the place; the launch stops.
void gcn_fault(Wave *w, const Op *op, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static inline bool gcn_failed(const Wave *w) { return w->group->error->text[0] != 0; }
// Reports when an active lane's sources were never written.
void gcn_need(Wave *w, const Op *op, uint64_t lanes);

// values.c
// Source k, its part-th register, in every lane, with the modifiers applied; buf is used when the
// register itself cannot be.
const uint32_t *gcn_source(Wave *w, const Op *op, int k, int part, uint32_t *buf);
void gcn_source64(Wave *w, const Op *op, int k, uint64_t *out);
uint64_t gcn_scalar(Wave *w, const Op *op, int k); // SGPRs or a constant
uint64_t gcn_lanes_written(const Wave *w, const Op *op);
void gcn_put(Wave *w, const Op *op, int part, const uint32_t *r); // a part of dst[0]
void gcn_put_half(Wave *w, const Op *op, const uint32_t *r);      // 16 bits
void gcn_put64(Wave *w, const Op *op, const uint64_t *r);
void gcn_put_scalar(Wave *w, const Op *op, int k, uint64_t value);
void gcn_put_mask(Wave *w, const Op *op, int k, uint64_t value); // by the wave's width
void gcn_clamp(const Op *op, uint32_t *r, int lanes);            // f32: omod, clamp

// memory.c, waits.c
// Host memory for an access of `bytes` at an address, or NULL after a fault.
void *gcn_reach(Wave *w, const Op *op, int lane, uint64_t address, uint32_t bytes, bool write);
void gcn_issue(Wave *w, GcnCounter c, const Operand *result, bool lds);
bool gcn_ready(Wave *w, const Op *op); // no operand is under way
void gcn_wait(Wave *w, const int *counts);
bool gcn_outstanding_lds(const Wave *w);

static inline float gcn_f32(uint32_t u) {
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}
static inline uint32_t gcn_bits(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}
// f32 as the kernel's mode has it: a denormal is itself, or 0.
static inline uint32_t gcn_mode(const Wave *w, uint32_t u) {
    return w->flush && !(u & 0x7f800000) ? u & 0x80000000 : u;
}
static inline float gcn_in(const Wave *w, uint32_t u) { return gcn_f32(gcn_mode(w, u)); }
static inline uint32_t gcn_out(const Wave *w, float f) { return gcn_mode(w, gcn_bits(f)); }
static inline double gcn_f64(uint64_t u) {
    double f;
    memcpy(&f, &u, sizeof f);
    return f;
}
static inline uint64_t gcn_bits64(double f) {
    uint64_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

#endif
