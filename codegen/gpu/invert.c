// invert.c: the inverse of a triangle, which all threads of a block make in shared memory, for GPUs.
//
// In: N, f32, of which the strict lower part is read. Out: the transpose of T = (I - N)^-1. Blocks of LEAF places on the
// diagonal are made by substitution, a column a thread; then pairs of blocks become one of twice the size:
//
//     T11                      M = N21 T11
//     T21  T22                 T21 = T22 M
//
// T lies transposed above N's diagonal, with the diagonal itself. M takes N21's place when all have read that, transposed
// too: so all that a thread reads follows each other in memory.
#include "codegen/gpu/gpu.h"

#include <assert.h>

enum { LEAF = 16, FOUR = 4 };

typedef struct Inverse {
    const TileValue *N;
    int n;
    Val *x; // what this thread makes
} Inverse;

static Val pointer(Cg *cg, const Inverse *w, Val row, Val col) {
    return cg_shared_pointer(cg, w->N, w->N->axis[0], row, col);
}

typedef struct Spot {
    Val row, col, p;
} Spot;

static Spot spot_of(Cg *cg, const Inverse *w, Val row, Val col) {
    return (Spot){row, col, pointer(cg, w, row, col)};
}

// So many rows and columns beyond: a constant of the instruction's own, where rows lie one behind the other.
static Val beyond(Cg *cg, const Inverse *w, const Spot *s, int rows, int cols) {
    TileShared t = tile_shared(cg->p, cg->k, w->N);
    if (t.order == ORDER_PADDED)
        return cg_element(cg, cg->i8, s->p, cg_i32(cg, rows * t.pitch + cols * t.elem));
    return pointer(cg, w, cg_plus(cg, s->row, rows), cg_plus(cg, s->col, cols));
}

static void put(Cg *cg, const Inverse *w, Val row, Val col, Val x) {
    cg_store(cg, x, pointer(cg, w, row, col));
}

// Four side by side, from a multiple of four on.
static void four_beyond(Cg *cg, const Inverse *w, const Spot *s, int rows, int cols, Val *to) {
    Ty type = cg_vector(cg->f32, FOUR);
    for (int i = 0; i < FOUR && !cg_gpu(cg)->hooks->pieces; i++)
        to[i] = cg_load(cg, cg->f32, beyond(cg, w, s, rows, cols + i));
    if (!cg_gpu(cg)->hooks->pieces) return;
    Val v = cg_load(cg, type, beyond(cg, w, s, rows, cols));
    LLVMSetAlignment(v, FOUR * sizeof(float));
    for (int i = 0; i < FOUR; i++) to[i] = cg_extract(cg, v, cg_i32(cg, i));
}

static void four(Cg *cg, const Inverse *w, Val row, Val col, Val *to) {
    Spot s = spot_of(cg, w, row, col);
    four_beyond(cg, w, &s, 0, 0, to);
}

static Val multiply_add(Cg *cg, Val a, Val b, Val c) {
    Val v[] = {a, b, c};
    return cg_intrinsic(cg, "llvm.fma", &cg->f32, 1, v, 3);
}

// What follows is for `in` alone, until cg_enter of the block behind it.
static Blk only(Cg *cg, Val in) {
    Blk done = cg_block(cg, "inverse.done");
    cg_branch(cg, in, cg_block(cg, "inverse"), done);
    return done;
}

// Thread t has column t % LEAF of block t / LEAF.
static void make_leaves(Cg *cg, const Inverse *w) {
    Val tid = cg_gpu(cg)->tid, own = cg_modulo(cg, tid, LEAF), x[LEAF];
    Val first = cg_sub(cg, tid, own);
    Blk g = only(cg, cg_below(cg, tid, w->n));
    Spot block = spot_of(cg, w, first, first), to = spot_of(cg, w, tid, first);
    for (int t = 0; t < LEAF; t++) {
        Val diagonal = cg_is(cg, own, t);
        x[t] = cg_select(cg, diagonal, cg_f32(cg, 1), cg_f32(cg, 0));
    }
    for (int t = 1; t < LEAF; t++)
        for (int s = 0; s < t; s += FOUR) {
            Val row[FOUR];
            four_beyond(cg, w, &block, t, s, row);
            for (int i = 0; i < FOUR && s + i < t; i++)
                x[t] = multiply_add(cg, row[i], x[s + i], x[t]);
        }
    for (int t = 0; t < LEAF; t++) { // below the diagonal lies N, which others read
        Val after = cg_icmp(cg, LLVMIntSLE, own, cg_i32(cg, t));
        Blk above = only(cg, after);
        cg_store(cg, x[t], beyond(cg, w, &to, 0, t));
        cg_enter(cg, above);
    }
    cg_enter(cg, g);
}

// ---- from blocks of `b` places to those of twice as many

typedef struct Share { // of a thread: `each` elements of a pair's block, along its rows; column l
    int b, each;
    Val in; // whether it has any
    Val lo, hi, row, l;
} Share;

static Share share_of(Cg *cg, const Inverse *w, int b) {
    int all = w->n * b / 2, threads = cg_gpu(cg)->threads;
    Share s = {.b = b, .each = (all + threads - 1) / threads};
    if (s.each < FOUR) s.each = FOUR;
    Val tid = cg_gpu(cg)->tid;
    s.in = cg_below(cg, tid, all / s.each);
    s.l = cg_modulo(cg, tid, b);
    Val rest = cg_over(cg, tid, b);
    s.row = cg_times(cg, cg_modulo(cg, rest, b / s.each), s.each);
    s.lo = cg_times(cg, cg_over(cg, rest, b / s.each), 2 * b);
    s.hi = cg_plus(cg, s.lo, b);
    return s;
}

// A loop over four of the contracted places at a time.
static CgTurns terms_begin(Cg *cg, const Inverse *w, const Share *s) {
    for (int i = 0; i < s->each; i++) w->x[i] = cg_f32(cg, 0);
    return cg_turns(cg, cg_i32(cg, 0), w->x, s->each);
}

static void terms_end(Cg *cg, const Inverse *w, const Share *s, CgTurns *t) {
    Val next = cg_plus(cg, t->i, FOUR);
    cg_end_turns(cg, t, next, cg_below(cg, next, s->b), w->x);
}

// M(h, l) = sum over k of N(hi + h, lo + k) T(lo + k, lo + l); T11 is 0 above its diagonal, where memory has N.
static void first_product(Cg *cg, const Inverse *w, const Share *s) {
    CgTurns t = terms_begin(cg, w, s);
    Val right[FOUR], left[FOUR], at = cg_add(cg, s->lo, t.i);
    four(cg, w, cg_add(cg, s->lo, s->l), at, right);
    for (int j = 0; j < FOUR; j++) {
        Val there = cg_icmp(cg, LLVMIntSGE, cg_plus(cg, t.i, j), s->l);
        right[j] = cg_select(cg, there, right[j], cg_f32(cg, 0));
    }
    for (int i = 0; i < s->each; i++) {
        four(cg, w, cg_add(cg, s->hi, cg_plus(cg, s->row, i)), at, left);
        for (int j = 0; j < FOUR; j++) w->x[i] = multiply_add(cg, left[j], right[j], w->x[i]);
    }
    terms_end(cg, w, s, &t);
}

// T(h, l) = sum over k <= h of T(hi + h, hi + k) M(k, l).
static void second_product(Cg *cg, const Inverse *w, const Share *s) {
    CgTurns t = terms_begin(cg, w, s);
    Val right[FOUR], left[FOUR];
    four(cg, w, cg_add(cg, s->hi, s->l), cg_add(cg, s->lo, t.i), right);
    for (int j = 0; j < FOUR; j++)
        for (int i = 0; i < s->each; i += FOUR) {
            Val k = cg_plus(cg, t.i, j), h = cg_plus(cg, s->row, i);
            four(cg, w, cg_add(cg, s->hi, k), cg_add(cg, s->hi, h), left);
            for (int c = 0; c < FOUR; c++) {
                Val there = cg_icmp(cg, LLVMIntSLE, k, cg_plus(cg, h, c));
                left[c] = cg_select(cg, there, left[c], cg_f32(cg, 0));
                w->x[i + c] = multiply_add(cg, left[c], right[j], w->x[i + c]);
            }
        }
    terms_end(cg, w, s, &t);
}

// The elements to where M or T21 lies transposed.
static void put_share(Cg *cg, const Inverse *w, const Share *s, Val row, Val col) {
    Blk g = only(cg, s->in);
    for (int i = 0; i < s->each; i++)
        put(cg, w, cg_add(cg, row, s->l), cg_add(cg, col, cg_plus(cg, s->row, i)), w->x[i]);
    cg_enter(cg, g);
}

static void merge_pairs(Cg *cg, const Inverse *w, int b) {
    Share s = share_of(cg, w, b);
    s.lo =
        cg_select(cg, s.in, s.lo, cg_i32(cg, 0)); // others do the work of the first, and keep none
    s.hi = cg_plus(cg, s.lo, b);
    first_product(cg, w, &s);
    cg_gpu(cg)->hooks->barrier(cg);
    put_share(cg, w, &s, s.hi, s.lo);
    cg_gpu(cg)->hooks->barrier(cg);
    second_product(cg, w, &s);
    put_share(cg, w, &s, s.lo, s.hi);
    cg_gpu(cg)->hooks->barrier(cg);
}

// Row t of the result has T's column t.
static void put_result(Cg *cg, const Inverse *w, const TileValue *v) {
    int threads = cg_gpu(cg)->threads, turns = (w->n * w->n + threads - 1) / threads;
    for (int i = 0; i < turns; i++) {
        Val at = cg_plus(cg, cg_gpu(cg)->tid, i * threads);
        Blk g = only(cg, cg_below(cg, at, w->n * w->n));
        Val row = cg_over(cg, at, w->n), col = cg_modulo(cg, at, w->n);
        Val there = cg_icmp(cg, LLVMIntSLE, row, col);
        Val x = cg_load(cg, cg->f32, pointer(cg, w, row, col));
        x = cg_select(cg, there, x, cg_f32(cg, 0));
        cg_store(cg, cg_write(cg, x, v->dtype), cg_shared_pointer(cg, v, v->axis[0], row, col));
        cg_enter(cg, g);
    }
}

void cg_invert(Cg *cg, const TileOp *op) {
    Inverse w = {.N = op->args.data[0]};
    w.n = tile_extent(&cg->k->axes[w.N->axis[0]]);
    assert(w.n % LEAF == 0 && (w.n & (w.n - 1)) == 0 && w.n <= cg_gpu(cg)->threads);
    w.x = ARENA_ARRAY(cg->arena, Val, w.n);
    make_leaves(cg, &w);
    cg_gpu(cg)->hooks->barrier(cg);
    if (cg_gpu(cg)->hooks->invert && cg_gpu(cg)->hooks->invert(cg, op)) return;
    for (int b = LEAF; b < w.n; b *= 2) merge_pairs(cg, &w, b);
    put_result(cg, &w, op->results.data[0]);
}
