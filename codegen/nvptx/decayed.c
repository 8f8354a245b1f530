// decayed.c: sums over pairs of positions whose channels have decays of their own (ir/tile_decayed.h), on tensor cores.
//
// In: a map marked `factors`, whose operands and results lie in shared memory. Out: the results; of scores those on and below the
// diagonal, and zeros in whole blocks above it. Blocks have 16 positions. A warp makes 8 columns of a block at a time, by mma.m16n8k16. Of few
// blocks of scores several warps have some of the channels each, and their sums are added up in the end. With
// r a row of the block, the factor from u to t is
//
//     exp2(sum[t] - sum[r])  times  exp2(sum[r] - at_write[u])
//
// of which each goes into what stands beside it: an operand, made in registers, or the result. r is the block's first row where u
// lies in a block before: both powers are at most 1 then, if no decay is above 1. In a block on the diagonal r is its middle, and the powers
// are tested: if one leaves its bound, or a channel forgets within the block, its pairs are made one by one.
#include "codegen/nvptx/nvptx.h"
#include "ir/tile_decayed.h"

#include <math.h>

enum { BLOCK = 16, HALF = 8, MOST = 8 }; // positions; columns at a time; results of a map

typedef struct Block {
    const TileOp *op;
    TileDecayed of[MOST];
    Val g, t2;          // lane / 4; 2 * (lane % 4)
    Val row, column;    // first position of the rows t, of the columns u
    Val from;           // r
    Val begin;          // position of row 0
    Val worst;          // of the powers' exponents the largest, or no number
    bool zeros;         // some decay of the chunk may be 0
    int channels, size; // of a tile, and of those the ones that count
    int halves;         // of 8 columns, that a warp makes at a time of scores
    int warps;          // that share a block of scores
    Val first;          // of the warp's channels there
    Val place[MOST];    // where its sums go
} Block;

// ---- elements

static Val address(Cg *cg, const TileValue *v, Val row, Val column) {
    TileShared t = tile_shared(cg->p, cg->k, v);
    Val offset = nv_tile_offset(cg, &t, v->rank > 1 ? row : NULL, v->rank > 1 ? column : row);
    return nv_shared_ptr(cg, cg_add(cg, cg->value[v->id].mem, offset));
}

static Val element(Cg *cg, const TileValue *v, Val row, Val column) {
    return cg_read(cg, cg_load(cg, cg_dtype(cg, v->dtype), address(cg, v, row, column)), v->dtype);
}

// One, or two side by side.
static void load(Cg *cg, const TileValue *v, Val row, Val column, int n, Val *x) {
    bool narrow = dtype_half(v->dtype);
    if (n == 1) {
        x[0] = element(cg, v, row, column);
        return;
    }
    Val both = cg_load(cg, narrow ? cg->i32 : cg_vector(cg->f32, 2), address(cg, v, row, column));
    LLVMSetAlignment(both, narrow ? 4 : 8);
    for (int c = 0; c < 2; c++)
        x[c] = narrow ? nv_unpack(cg, v->dtype, both, c) : cg_extract(cg, both, cg_i32(cg, c));
}

static Val at_most(Cg *cg, Val a, Val b) { return LLVMBuildFCmp(cg->b, LLVMRealOLE, a, b, ""); }
static Val minus(Cg *cg, Val a, Val b) { return LLVMBuildFSub(cg->b, a, b, ""); }
static Val times(Cg *cg, Val a, Val b) { return LLVMBuildFMul(cg->b, a, b, ""); }
static Val plus(Cg *cg, Val a, Val b) { return LLVMBuildFAdd(cg->b, a, b, ""); }
static Val zero_unless(Cg *cg, Val in, Val x) { return cg_select(cg, in, x, cg_f32(cg, 0)); }

static Val position(Cg *cg, const Block *b, Val row) {
    return LLVMBuildSIToFP(cg->b, cg_add(cg, b->begin, row), cg->f32, "");
}

// Of a channel that counts.
static Val counted(Cg *cg, const Block *b, Val channel, Val x) {
    return b->size == b->channels ? x : zero_unless(cg, cg_below(cg, channel, b->size), x);
}

// ---- the two factors

static void must_hold(Cg *cg, Block *b, Val in) {
    b->worst = cg_select(cg, in, b->worst, cg_f32(cg, INFINITY));
}

static Val power(Cg *cg, Block *b, Val channel, Val x) {
    Val size = counted(cg, b, channel, x);
    size = cg_intrinsic(cg, "llvm.fabs", &cg->f32, 1, &size, 1);
    Val both[] = {b->worst, size};
    b->worst = cg_intrinsic(cg, "llvm.maximum", &cg->f32, 1, both, 2);
    return nv_math(cg, EX_EXP2, &x);
}

// From r to t, of one channel or of two side by side.
static void row_factors(Cg *cg, Block *b, const TileDecayed *d, Val t, Val channel, int n, Val *f) {
    Val sum[2], zero[2], sum_r[2], zero_r[2];
    load(cg, d->sum, t, channel, n, sum);
    load(cg, d->sum, b->from, channel, n, sum_r);
    if (b->zeros) load(cg, d->zero, t, channel, n, zero);
    if (b->zeros) load(cg, d->zero, b->from, channel, n, zero_r);
    for (int c = 0; c < n; c++) {
        Val at = cg_plus(cg, channel, c);
        f[c] = counted(cg, b, at, power(cg, b, at, minus(cg, sum[c], sum_r[c])));
        if (!b->zeros) continue;
        must_hold(cg, b, at_most(cg, counted(cg, b, at, zero[c]), position(cg, b, b->row)));
        f[c] = zero_unless(cg, at_most(cg, zero[c], zero_r[c]), f[c]);
    }
}

// From u to r.
static void column_factors(Cg *cg, Block *b, const TileDecayed *d, Val u, Val channel, int n,
                           Val *f) {
    Val sum[2], sum_r[2], zero_r[2];
    load(cg, d->at_write, u, channel, n, sum);
    load(cg, d->sum, b->from, channel, n, sum_r);
    if (b->zeros) load(cg, d->zero, b->from, channel, n, zero_r);
    for (int c = 0; c < n; c++) {
        Val at = cg_plus(cg, channel, c);
        f[c] = counted(cg, b, at, power(cg, b, at, minus(cg, sum_r[c], sum[c])));
        if (b->zeros) f[c] = zero_unless(cg, at_most(cg, zero_r[c], position(cg, b, u)), f[c]);
    }
}

// Both, of a pair.
static Val whole_factor(Cg *cg, const Block *b, const TileDecayed *d, Val t, Val u, Val channel) {
    Val kept = at_most(cg, element(cg, d->zero, t, channel), position(cg, b, u));
    Val x = minus(cg, element(cg, d->sum, t, channel), element(cg, d->at_write, u, channel));
    return counted(cg, b, channel, zero_unless(cg, kept, nv_math(cg, EX_EXP2, &x)));
}

// Where a lane's elements of the instruction's result are: e = 0 .. 3.
static Val result_row(Cg *cg, const Block *b, Val first, int e) {
    return cg_plus(cg, cg_add(cg, first, b->g), HALF * (e / 2));
}
static Val result_column(Cg *cg, const Block *b, Val first, int e) {
    return cg_plus(cg, cg_add(cg, first, b->t2), e % 2);
}

static void on_diagonal(Cg *cg, Block *b, Val is) {
    Val middle = cg_select(cg, is, cg_i32(cg, HALF), cg_i32(cg, 0));
    b->from = cg_add(cg, b->row, middle);
    b->worst = cg_f32(cg, 0);
}

// What follows, until cg_end_if, is for blocks on the diagonal whose factor cannot be split.
static Blk unless_good(Cg *cg, const Block *b, Val diagonal) {
    int most = cg->p->dtype == DT_F16 ? 8 : 100;
    Val good = nv_every(cg, at_most(cg, b->worst, cg_f32(cg, most)));
    return cg_if(cg, cg_and(cg, diagonal, LLVMBuildNot(cg->b, good, "")), "pairs");
}

// ---- scores: the sum over channels of 8 columns u of a block

// Of half h and result i the elements 4 (h n + i) + e.
static int sums_of(const Block *b) { return 4 * b->op->outs.n * b->halves; }

static void put_scores(Cg *cg, const Block *b, Val column, const Val *acc) {
    int n = 4 * b->op->outs.n;
    for (int i = 0; i < sums_of(b); i++) {
        const TileValue *v = b->op->results.data[i % n / 4];
        TileShared t = tile_shared(cg->p, cg->k, v);
        Val at = nv_tile_offset(cg, &t, result_row(cg, b, b->row, i % 4),
                                result_column(cg, b, cg_plus(cg, column, HALF * (i / n)), i % 4));
        at = nv_shared_ptr(cg, cg_add(cg, b->place[i % n / 4], at));
        cg_store(cg, cg_write(cg, acc[i], v->dtype), at);
    }
}

// Where the sums of result i from a block's warp `number`, not the first one, lie.
static Val place_of(Cg *cg, const Block *b, int i, Val number) {
    const TileOp *at = tile_next(&cg->k->body, NULL);
    int ahead = tile_all_decayed_bytes(cg->p, cg->k) + tile_crossing_bytes(cg->k), all = 0;
    for (; at != b->op; at = tile_next(&cg->k->body, at))
        if (tile_is_marked(at, TILE_FACTORS)) ahead -= tile_decayed_bytes(cg->p, cg->k, at);
    for (int j = 0; j < b->op->results.n; j++) {
        int bytes = tile_shared(cg->p, cg->k, b->op->results.data[j]).bytes;
        if (j < i) ahead -= bytes;
        all += bytes;
    }
    Val from = cg_plus(cg, nv_state(cg)->shared, cg->launch.shared - ahead);
    return cg_add(cg, from, cg_times(cg, cg_plus(cg, number, -1), all));
}

static void choose_places(Cg *cg, Block *b, Val number) {
    for (int i = 0; i < b->op->results.n; i++) {
        Val result = cg->value[b->op->results.data[i]->id].mem;
        b->place[i] = b->warps == 1
                          ? result
                          : cg_select(cg, cg_is(cg, number, 0), result, place_of(cg, b, i, number));
    }
}

// The sums of a block's warps, added up: four side by side where each thread has as many.
static void add_up(Cg *cg, const Block *b) {
    int threads = nv_state(cg)->gpu.threads;
    nv_barrier(cg);
    for (int i = 0; i < b->op->results.n; i++) {
        const TileValue *v = b->op->results.data[i];
        TileShared t = tile_shared(cg->p, cg->k, v);
        int all = t.rows * t.cols, each = all % (4 * threads) ? 1 : 4;
        CgCount loop = cg_count(cg, nv_state(cg)->gpu.tid, cg_i32(cg, all / each), NULL);
        Val at = cg_times(cg, loop.i, each), row = cg_over(cg, at, t.cols);
        Ty type = cg_vector(cg->f32, each);
        at = nv_tile_offset(cg, &t, row, cg_modulo(cg, at, t.cols));
        Val to = nv_shared_ptr(cg, cg_add(cg, cg->value[v->id].mem, at)), sum = NULL;
        for (int w = 0; w < b->warps; w++) {
            Val from = w ? cg_add(cg, place_of(cg, b, i, cg_i32(cg, w)), at) : NULL;
            Val x = cg_load(cg, type, w ? nv_shared_ptr(cg, from) : to);
            LLVMSetAlignment(x, 4 * (unsigned)each);
            sum = sum ? plus(cg, sum, x) : x;
        }
        LLVMSetAlignment(cg_store(cg, sum, to), 4 * (unsigned)each);
        cg_end_count(cg, &loop, cg_i32(cg, threads), NULL);
    }
}

static Val word(Cg *cg, Block *b, const TileDecayed *d, bool left, Val row, Val channel) {
    const TileValue *v = left ? d->read : d->write;
    Val x[2], f[2];
    load(cg, v, row, channel, 2, x);
    (left ? row_factors : column_factors)(cg, b, d, row, channel, 2, f);
    for (int c = 0; c < 2; c++) x[c] = times(cg, x[c], f[c]);
    return nv_pack(cg, v->dtype, x[0], x[1]);
}

static void multiply_channels(Cg *cg, Block *b, Val column, Val channel, Val *acc) {
    for (int i = 0; i < b->op->outs.n; i++) {
        const TileDecayed *d = &b->of[i];
        Val left[4], right[2];
        for (int j = 0; j < 4; j++)
            left[j] = word(cg, b, d, true, result_row(cg, b, b->row, 2 * (j % 2)),
                           cg_plus(cg, channel, HALF * (j / 2)));
        for (int h = 0; h < b->halves; h++) {
            Val from = cg_plus(cg, cg_add(cg, column, b->g), HALF * h);
            for (int j = 0; j < 2; j++)
                right[j] = word(cg, b, d, false, from, cg_plus(cg, channel, HALF * j));
            nv_mma16(cg, d->read->dtype, &acc[4 * (h * b->op->outs.n + i)], left, right[0],
                     right[1]);
        }
    }
}

static void clear(Cg *cg, Val *acc, int n) {
    for (int i = 0; i < n; i++) acc[i] = cg_f32(cg, 0);
}

// Behind the last channel of the warp that counts.
static Val end_of(Cg *cg, const Block *b) {
    Val end = cg_plus(cg, b->first, b->channels / b->warps), size = cg_i32(cg, b->size);
    return cg_select(cg, cg_less(cg, end, size), end, size);
}

static void score_pairs(Cg *cg, const Block *b, Val column, Val *acc) {
    int n = sums_of(b), half = 4 * b->op->outs.n;
    clear(cg, acc, n);
    CgTurns turns = cg_turns(cg, b->first, acc, n);
    for (int i = 0; i < n; i++) {
        const TileDecayed *d = &b->of[i % half / 4];
        Val t = result_row(cg, b, b->row, i % 4),
            u = result_column(cg, b, cg_plus(cg, column, HALF * (i / half)), i % 4);
        Val x = times(cg, element(cg, d->read, t, turns.i), element(cg, d->write, u, turns.i));
        acc[i] = plus(cg, acc[i], times(cg, x, whole_factor(cg, b, d, t, u, turns.i)));
    }
    Val next = cg_plus(cg, turns.i, 1);
    cg_end_turns(cg, &turns, next, cg_less(cg, next, end_of(cg, b)), acc);
    put_scores(cg, b, column, acc);
}

static void make_scores(Cg *cg, Block *b, Val column, Val diagonal) {
    enum { AT_ONCE = 2 * BLOCK };
    int own = b->channels / b->warps, step = own % AT_ONCE ? BLOCK : AT_ONCE, n = sums_of(b);
    Val acc[8 * MOST + 1];
    on_diagonal(cg, b, diagonal);
    clear(cg, acc, n);
    acc[n] = b->worst;
    CgTurns turns = cg_turns(cg, b->first, acc, n + 1);
    b->worst = acc[n];
    for (int k = 0; k < step; k += BLOCK)
        multiply_channels(cg, b, column, cg_add(cg, cg_plus(cg, turns.i, k), b->t2), acc);
    acc[n] = b->worst;
    Val next = cg_plus(cg, turns.i, step);
    cg_end_turns(cg, &turns, next, cg_less(cg, next, cg_plus(cg, b->first, own)), acc);
    put_scores(cg, b, column, acc);
    Blk done = unless_good(cg, b, diagonal);
    score_pairs(cg, b, column, acc);
    cg_end_if(cg, done);
}

// Of several blocks, or of one that warps share, a warp makes a whole one: what is left of the product then serves both halves.
static void all_scores(Cg *cg, Block *b, int positions) {
    b->halves = positions > BLOCK || b->warps > 1 ? 2 : 1;
    int parts = positions / HALF / b->halves, n = positions / BLOCK * parts * b->warps;
    CgCount tasks = cg_count(cg, nv_state(cg)->warp, cg_i32(cg, n), NULL);
    Val number = cg_modulo(cg, tasks.i, b->warps), task = cg_over(cg, tasks.i, b->warps);
    Val row = cg_over(cg, task, parts), part = cg_modulo(cg, task, parts);
    Val column = cg_times(cg, part, HALF * b->halves), of_column = cg_over(cg, column, BLOCK),
        none[8 * MOST];
    b->row = cg_times(cg, row, BLOCK);
    b->first = cg_times(cg, number, b->channels / b->warps);
    choose_places(cg, b, number);
    clear(cg, none, sums_of(b));
    Blk done = cg_if(cg, cg_less(cg, row, of_column), "above");
    put_scores(cg, b, column, none);
    cg_end_if(cg, done);
    Val diagonal = cg_icmp(cg, LLVMIntEQ, of_column, row);
    done = cg_if(cg, cg_icmp(cg, LLVMIntSLE, of_column, row), "scores");
    make_scores(cg, b, column, diagonal);
    cg_end_if(cg, done);
    cg_end_count(cg, &tasks, cg_i32(cg, nv_state(cg)->gpu.threads / NV_WARP), NULL);
}

// ---- sums over positions: 8 channels of a block of results

// pair[t, u] times the numbers, where u < t.
static Val pair_at(Cg *cg, const TileDecayed *d, Val t, Val u) {
    Val x = element(cg, d->pair, t, u);
    if (d->number) x = times(cg, x, element(cg, d->number, t, NULL));
    if (d->constant) x = times(cg, x, cg_f32(cg, d->constant->f));
    return zero_unless(cg, cg_less(cg, u, t), x);
}

// A result's position m and a contracted one, as t and u.
static void sort(const TileDecayed *d, Val m, Val k, Val *t, Val *u) {
    *t = d->over == d->columns ? m : k;
    *u = d->over == d->columns ? k : m;
}

static Val elem_of(Cg *cg, const TileDecayed *d, Val k, Val channel) {
    return element(cg, d->write ? d->write : d->read, k, channel);
}

static void factors(Cg *cg, Block *b, const TileDecayed *d, bool row, Val at, Val channel, int n,
                    Val *f) {
    (row ? row_factors : column_factors)(cg, b, d, at, channel, n, f);
}

static bool of_rows(const TileDecayed *d) { return d->over == d->columns; } // results lie along t

// One block of pairs as the left operand; rows of it are results' positions.
static void load_pairs(Cg *cg, const Block *b, const TileDecayed *d, Val m, Val k, Val left[4]) {
    for (int j = 0; j < 4; j++) {
        Val x[2], t, u;
        for (int c = 0; c < 2; c++) {
            sort(d, result_row(cg, b, m, 2 * (j % 2)),
                 cg_plus(cg, cg_add(cg, k, b->t2), HALF * (j / 2) + c), &t, &u);
            x[c] = pair_at(cg, d, t, u);
        }
        left[j] = nv_pack(cg, (d->write ? d->write : d->read)->dtype, x[0], x[1]);
    }
}

// acc += the product of a block of pairs with what is contracted, from `k` on, decayed.
static void add_block(Cg *cg, Block *b, const TileDecayed *d, const Val left[4], Val m, Val k,
                      Val channel, Val *acc) {
    const Dtype type = (d->write ? d->write : d->read)->dtype;
    Val right[2], sum[4];
    for (int j = 0; j < 2; j++) {
        Val x[2], at = cg_add(cg, channel, b->g);
        for (int c = 0; c < 2; c++) {
            Val from = cg_plus(cg, cg_add(cg, k, b->t2), HALF * j + c);
            factors(cg, b, d, !of_rows(d), from, at, 1, &x[c]);
            x[c] = times(cg, elem_of(cg, d, from, at), x[c]);
        }
        right[j] = nv_pack(cg, type, x[0], x[1]);
    }
    clear(cg, sum, 4);
    nv_mma16(cg, type, sum, left, right[0], right[1]);
    for (int e = 0; e < 4; e += 2) {
        Val f[2];
        factors(cg, b, d, of_rows(d), result_row(cg, b, m, e), result_column(cg, b, channel, e), 2,
                f);
        for (int c = 0; c < 2; c++) acc[e + c] = plus(cg, acc[e + c], times(cg, sum[e + c], f[c]));
    }
}

// The same of a block on the diagonal, pair by pair.
static void add_pairs(Cg *cg, const Block *b, const TileDecayed *d, Val m, Val k, Val channel,
                      Val *acc) {
    CgTurns turns = cg_turns(cg, cg_i32(cg, 0), acc, 4);
    for (int e = 0; e < 4; e++) {
        Val from = cg_add(cg, k, turns.i), at = result_column(cg, b, channel, e), t, u;
        sort(d, result_row(cg, b, m, e), from, &t, &u);
        Val x = times(cg, pair_at(cg, d, t, u), elem_of(cg, d, from, at));
        x = times(cg, x, whole_factor(cg, b, d, t, u, at)); // behind t it may be infinite
        acc[e] = plus(cg, acc[e], zero_unless(cg, cg_less(cg, u, t), x));
    }
    Val next = cg_plus(cg, turns.i, 1);
    cg_end_turns(cg, &turns, next, cg_below(cg, next, BLOCK), acc);
}

// Two channels side by side at once.
static void put_sum(Cg *cg, const Block *b, const TileValue *v, Val first, Val channel,
                    const Val *acc) {
    for (int e = 0; e < 4; e += 2) {
        Val both = LLVMGetPoison(cg_vector(cg->f32, 2));
        for (int c = 0; c < 2; c++) both = cg_insert(cg, both, acc[e + c], cg_i32(cg, c));
        Val p = address(cg, v, result_row(cg, b, first, e), result_column(cg, b, channel, e));
        LLVMSetAlignment(cg_store(cg, cg_write(cg, both, v->dtype), p),
                         2 * (unsigned)dtype_bytes(v->dtype));
    }
}

// One result: 16 positions from `first` on, over the blocks before or behind them and the one on the diagonal, whose pairs `own` are.
static void make_sum(Cg *cg, Block *b, const TileDecayed *d, const TileValue *v, const Val own[4],
                     Val first, Val channel, int positions) {
    Val acc[4], exact[4], left[4], diagonal = LLVMConstInt(cg->i1, 1, false);
    clear(cg, acc, 4);
    for (int k = 0; k < positions && positions > BLOCK; k += BLOCK) {
        Val at = cg_i32(cg, k),
            before = of_rows(d) ? cg_less(cg, at, first) : cg_less(cg, first, at);
        Blk from = LLVMGetInsertBlock(cg->b), done = cg_if(cg, before, "block");
        Val old[4];
        for (int e = 0; e < 4; e++) old[e] = acc[e];
        b->row = of_rows(d) ? first : at;
        on_diagonal(cg, b, LLVMConstInt(cg->i1, 0, false));
        load_pairs(cg, b, d, first, at, left);
        add_block(cg, b, d, left, first, at, channel, acc);
        Blk made = LLVMGetInsertBlock(cg->b);
        cg_end_if(cg, done);
        for (int e = 0; e < 4; e++) acc[e] = cg_join(cg, acc[e], made, old[e], from);
    }
    b->row = first;
    on_diagonal(cg, b, diagonal);
    for (int e = 0; e < 4; e++) exact[e] = acc[e];
    add_block(cg, b, d, own, first, first, channel, acc);
    put_sum(cg, b, v, first, channel, acc);
    Blk done = unless_good(cg, b, diagonal);
    add_pairs(cg, b, d, first, first, channel, exact);
    put_sum(cg, b, v, first, channel, exact);
    cg_end_if(cg, done);
}

// Where there is one block its pairs are the same for all channels.
static void all_sums(Cg *cg, Block *b, int positions) {
    int parts = b->channels / HALF, blocks = positions / BLOCK;
    for (int i = 0; i < b->op->outs.n; i++) {
        const TileDecayed *d = &b->of[i];
        Val own[4], none = cg_i32(cg, 0);
        if (blocks == 1) load_pairs(cg, b, d, none, none, own);
        CgCount tasks = cg_count(cg, nv_state(cg)->warp, cg_i32(cg, parts * blocks), NULL);
        Val first = cg_times(cg, cg_over(cg, tasks.i, parts), BLOCK);
        Val part = cg_sub(cg, tasks.i, cg_times(cg, cg_over(cg, tasks.i, parts), parts));
        if (blocks == 1) first = none, part = tasks.i;
        if (blocks > 1) load_pairs(cg, b, d, first, first, own);
        make_sum(cg, b, d, b->op->results.data[i], own, first, cg_times(cg, part, HALF), positions);
        cg_end_count(cg, &tasks, cg_i32(cg, nv_state(cg)->gpu.threads / NV_WARP), NULL);
    }
}

// Whether no decay of the chunk is 0: the same for all lanes.
static Val has_no_zero(Cg *cg, const Block *b, int positions) {
    Val none = LLVMConstInt(cg->i1, 1, false), last = cg_i32(cg, positions - 1);
    for (int i = 0; i < b->op->outs.n; i++)
        for (int c = 0; c < b->channels; c += NV_WARP) {
            Val channel = cg_plus(cg, nv_state(cg)->gpu.lane, c);
            Val in = cg_below(cg, channel, b->channels);
            Val at = element(cg, b->of[i].zero, last, cg_select(cg, in, channel, cg_i32(cg, 0)));
            Val before = LLVMBuildFCmp(cg->b, LLVMRealOLT, at, position(cg, b, cg_i32(cg, 0)), "");
            none = cg_and(cg, none, before);
        }
    return nv_every(cg, none);
}

// Most chunks have no decay of 0, and are spared what asks for them.
static void some_scores(Cg *cg, Block *b, int positions) {
    if (positions <= BLOCK) {
        all_scores(cg, b, positions);
        return;
    }
    Val none = has_no_zero(cg, b, positions);
    Blk done = cg_if(cg, none, "no_zeros");
    b->zeros = false;
    all_scores(cg, b, positions);
    cg_end_if(cg, done);
    done = cg_if(cg, LLVMBuildNot(cg->b, none, ""), "zeros");
    b->zeros = true;
    all_scores(cg, b, positions);
    cg_end_if(cg, done);
}

static void scores(Cg *cg, Block *b, int positions) {
    b->warps = tile_decayed_warps(cg->p, cg->k, b->op);
    some_scores(cg, b, positions);
    if (b->warps > 1) add_up(cg, b);
}

void nv_decayed(Cg *cg, const TileOp *op) {
    Block b = {.op = op, .zeros = true};
    for (int i = 0; i < op->outs.n; i++) tile_is_decayed(op, i, &b.of[i]);
    const TileDecayed *d = &b.of[0];
    const TileAxis *channels = &cg->k->axes[d->channels];
    int positions = tile_extent(&cg->k->axes[d->rows]);
    b.channels = tile_extent(channels);
    b.size = channels->size->op == EX_CONST && channels->size->i < b.channels ? channels->size->i
                                                                              : b.channels;
    Val lane = nv_hidden(cg, nv_state(cg)->gpu.lane);
    b.g = cg_lshr(cg, lane, cg_i32(cg, 2));
    b.t2 = cg_times(cg, cg_and(cg, lane, cg_i32(cg, 3)), 2);
    b.begin = cg_tile_begin(cg, d->rows);
    (d->over == d->channels ? scores : all_sums)(cg, &b, positions);
}
