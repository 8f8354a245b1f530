// sequences_util.h: launches of ragged and paged programs, and what the float64 reference makes of them: lengths of 0, 1, around
// tiles and beyond what max_q says, with tensors that say nonsense, too.
#ifndef TESTS_UNIT_SEQUENCES_UTIL_H
#define TESTS_UNIT_SEQUENCES_UTIL_H

#include "frontend/reference_batch.h"
#include "pass_util.h"

typedef struct Launch {
    BatchLayout batch;
    int B, H, Hkv, Tq, max_q, Tk, pages, page, table;
    const int *q_start, *kv_start, *kv_len, *page_table,
        *q_offset;                                   // q_start, q_offset: NULL: left out
    int longest;                                     // extents of what has Sq or Sk and no B
    const int *q_first, *kv_first, *Sq_all, *Sk_all; // of parts; NULL: left out
} Launch;

// Five sequences: none of the batch's rows are theirs in between; no query, no key, one of each.
static const int starts[] = {0, 3, 3, 4, 21, 23}, key_starts[] = {2, 7, 12, 12, 40, 41};
static const int offsets[] = {2, 0, -1, 20, 7};
static const Launch ragged = {.batch = BATCH_RAGGED,
                              .B = 5,
                              .H = 4,
                              .Hkv = 2,
                              .Tq = 24,
                              .max_q = 17,
                              .Tk = 44,
                              .q_start = starts,
                              .kv_start = key_starts,
                              .longest = 30};
static const int table[] = {3, 1, 7, 0, 2, 5, 8, 6, 4, 9, 10, 11, 3, 3, -1, 12, 100, 1, 2, 4},
                 lens[] = {11, 0, 1, 12, 7};
static const Launch paged = {.batch = BATCH_PAGED,
                             .B = 5,
                             .H = 4,
                             .Hkv = 2,
                             .Tq = 24,
                             .max_q = 17,
                             .pages = 13,
                             .page = 3,
                             .table = 4,
                             .q_start = starts,
                             .kv_len = lens,
                             .page_table = table,
                             .longest = 30};
static const int wild[] = {5, -3, 90, 1000000000, 24, -7};
static const int wild_lens[] = {-4, 2000000000, 12, 5, 13};

static inline void set(const TileProgram *p, int32_t *size, const char *name, int value) {
    for (int i = 0; i < p->sizes.n; i++)
        if (!strcmp(p->sizes.data[i].name, name)) size[i] = value;
}

static inline void set_sizes(const TileProgram *p, const Launch *l, int32_t *size) {
    for (int i = 0; i < p->sizes.n; i++) size[i] = i < SIZE_FREE ? 0 : 5;
    for (int i = 0; i < p->tensors.n; i++) {
        const TileTensor *t = &p->tensors.data[i];
        for (int d = 0; t->role == TENSOR_INPUT && d < t->rank; d++) {
            char name[64];
            snprintf(name, sizeof name, "%s_%d", t->name, d);
            set(p, size, name, l->longest);
        }
    }
    size[SIZE_B] = l->B, size[SIZE_HQ] = l->H, size[SIZE_HKV] = l->Hkv;
    set(p, size, "Tq", l->Tq), set(p, size, "max_q", l->max_q), set(p, size, "Tk", l->Tk);
    set(p, size, "pages", l->pages), set(p, size, "page", l->page), set(p, size, "table", l->table);
    set(p, size, "q_start_0", l->q_start ? l->B + 1 : 0);
    set(p, size, "q_offset_0", l->q_offset ? l->B : 0);
    set(p, size, "q_first_0", l->q_first ? l->B : 0);
    set(p, size, "kv_first_0", l->kv_first ? l->B : 0);
    set(p, size, "Sq_all_0", l->Sq_all ? l->B : 0), set(p, size, "Sk_all_0", l->Sk_all ? l->B : 0);
}

static inline void put(const TileProgram *p, const TileData *x, TensorRole role, const int *from) {
    int t = pu_tensor(p, role, 0);
    int64_t n = t < 0 || !from ? 0 : tile_tensor_elements(&p->tensors.data[t], x->size);
    for (int64_t i = 0; i < n; i++) x->tensor[t][i] = from[i];
}

static inline double *written(Arena *a, const TileProgram *p, const TileData *x, int tensor) {
    int64_t n = tile_tensor_elements(&p->tensors.data[tensor], x->size);
    double *y = ARENA_ARRAY(a, double, n + 1);
    for (int64_t i = 0; i < n; i++) y[i] = x->tensor[tensor][i] = -12345; // what nobody has stays
    return y;
}

static inline RefBatch batch_of(const Launch *l) {
    return (RefBatch){.paged = l->batch == BATCH_PAGED,
                      .B = l->B,
                      .Tq = l->Tq,
                      .Tk = l->Tk,
                      .pages = l->pages,
                      .page = l->page,
                      .table = l->table,
                      .q_start = l->q_start,
                      .kv_start = l->kv_start,
                      .kv_len = l->kv_len,
                      .page_table = l->page_table,
                      .q_offset = l->q_offset};
}

static inline TileData *expected(Arena *a, const Variant *v, const TileProgram *p,
                                 const TileData *x, const Launch *l) {
    TileData *y = ARENA_NEW(a, TileData);
    *y = *x;
    y->tensor = ARENA_ARRAY(a, double *, p->tensors.n);
    memcpy(y->tensor, x->tensor, sizeof *y->tensor * (size_t)p->tensors.n);
    const void **inputs = ARENA_ARRAY(a, const void *, p->inputs.n + 1);
    int64_t(*extent)[EX_MAX_RANK] =
        (void *)ARENA_ARRAY(a, int64_t, (p->inputs.n + 1) * EX_MAX_RANK);
    for (int i = 0; i < v->inputs.n; i++) {
        inputs[i] = pu_input(a, p, x, i);
        for (int d = 0; d < EX_MAX_RANK; d++) extent[i][d] = l->longest;
    }
    double **emits = ARENA_ARRAY(a, double *, v->emits.n + 1);
    for (int i = 0; i < p->tensors.n; i++) {
        const TileTensor *t = &p->tensors.data[i];
        if (t->role == TENSOR_O || t->role == TENSOR_EMIT) y->tensor[i] = written(a, p, x, i);
        if (t->role == TENSOR_EMIT) emits[t->index] = y->tensor[i];
    }
    int value = pu_tensor(p, TENSOR_V, 0);
    RefBatch batch = batch_of(l);
    batch.extent = (const int64_t(*)[EX_MAX_RANK])extent;
    RefRun r = ref_of(v, x->size, x->tensor[pu_tensor(p, TENSOR_Q, 0)],
                      x->tensor[pu_tensor(p, TENSOR_K, 0)], value < 0 ? NULL : x->tensor[value],
                      inputs, y->tensor[pu_tensor(p, TENSOR_O, 0)]);
    r.emits = emits;
    ref_batch_run(&batch, &r, ARENA_ARRAY(a, int32_t, l->Tq + 1));
    return y;
}

static inline TileData *data_at(Arena *a, const TileProgram *p, const Launch *l,
                                const int32_t *size) {
    TileData *x = tile_data_random(a, p, size, 4, 3);
    put(p, x, TENSOR_Q_START, l->q_start), put(p, x, TENSOR_KV_START, l->kv_start);
    put(p, x, TENSOR_KV_LEN, l->kv_len), put(p, x, TENSOR_PAGE_TABLE, l->page_table);
    put(p, x, TENSOR_Q_OFFSET, l->q_offset);
    put(p, x, TENSOR_Q_FIRST, l->q_first), put(p, x, TENSOR_KV_FIRST, l->kv_first);
    put(p, x, TENSOR_SQ_ALL, l->Sq_all), put(p, x, TENSOR_SK_ALL, l->Sk_all);
    return x;
}

static inline TileData *data_of(Arena *a, const TileProgram *p, const Launch *l) {
    int32_t *size = ARENA_ARRAY(a, int32_t, p->sizes.n + 1);
    set_sizes(p, l, size);
    return data_at(a, p, l, size);
}

static inline int clamp(int x, int from, int to) { return x < from ? from : x > to ? to : x; }

// Of packed rows those from `at` on, n of them: where sequences begin there, and how many of each come before.
static inline void cut_line(Arena *a, int B, const int *start, int at, int n, const int **own,
                            const int **first) {
    int *s = ARENA_ARRAY(a, int, B + 2), *f = ARENA_ARRAY(a, int, B + 1);
    for (int b = 0; b <= B; b++) s[b] = clamp(start[b] - at, 0, n);
    for (int b = 0; b < B; b++) f[b] = clamp(at - start[b], 0, start[b + 1] - start[b]);
    *own = s, *first = f;
}

// How many rows sequences have.
static inline void set_whole(Arena *a, const Launch *whole, Launch *l) {
    int *keys = ARENA_ARRAY(a, int, l->B + 1), *queries = ARENA_ARRAY(a, int, l->B + 1);
    RefBatch batch = batch_of(whole);
    int64_t ignored;
    for (int b = 0; b < l->B; b++)
        keys[b] = ref_keys(&batch, b), queries[b] = ref_queries(&batch, b, &ignored);
    l->Sk_all = keys, l->Sq_all = queries;
}

static inline Launch with(Launch l, const int *q_start, const int *q_offset, int max_q) {
    l.q_start = q_start, l.q_offset = q_offset, l.max_q = max_q;
    return l;
}

static inline int launches(Launch *out) {
    int n = 0;
    out[n++] = ragged;
    out[n++] = with(ragged, starts, offsets, 0); // max_q is wrong
    out[n++] = with(ragged, starts, NULL, 24);
    out[n] = with(ragged, wild, offsets, 5);
    out[n++].kv_start = wild;
    out[n++] = paged;
    out[n++] = with(paged, starts, offsets, 1);
    out[n] = with(paged, NULL, NULL, 4); // four queries each
    out[n++].Tq = 20;
    out[n] = with(paged, NULL, NULL, 1); // decoding
    out[n++].Tq = 5;
    out[n] = with(paged, wild, offsets, 5);
    out[n++].kv_len = wild_lens;
    out[n] = with(paged, starts, NULL, 17);
    out[n].page = 1, out[n++].table = 4;
    out[n] = with(paged, starts, NULL, 17);
    out[n++].pages = 0;
    out[n] = with(paged, starts, NULL, 17);
    out[n++].table = 0;
    out[n] = with(paged, starts, offsets, 17);
    out[n++].B = 0;
    return n;
}

enum { LAUNCHES = 13 };

static inline bool has_layout(Arena *a, const Stream *s, BatchLayout batch) {
    Diags diags = diag_list(a);
    return pass_accepts_layout(s->row, batch, &diags);
}

// Clauses of every kind.
static const char *const texts[] = {
    "import std.normalization; import std.mask; attention t { dim D = 8; score(q, k) = dot(q, k); "
    "mask(b, h, i, j) = causal(i, j); normalize(s) = softmax(s); }",
    // inputs of every kind: of the batch's sequences, their queries and keys, their heads; of other sequences
    "import std.normalization; attention t { dim D = 8, Dv = 4; input bias: f32[B, H, Sk]; input "
    "gate: f32[B, "
    "Sq]; input slope: f32[H]; input scale: f32[B]; input shift: f32[Sk]; input far: f32[H, Sk, B];"
    "score(q, k) = dot(q, k); modify(s, b, h, i, j) = s * scale[b] + bias[b, h, j] + slope[h] * "
    "f32(i - j) "
    "+ shift[j] * f32(Sk - Sq) + far[h, j - 1, b + 1]; mask(b, h, i, j) = i - j < 6 && j <= i; "
    "normalize(s) = "
    "softmax(s); output(o, b, h, i, d) = o * gate[b, i - q_offset] + f32(q_offset) + bias[b, h, "
    "0]; }",
    // rows without a key, several sweeps, emits
    "attention t { dim D = 8; mask(b, h, i, j) = j < i - 3; score(q, k) = dot(q, k); normalize(s) "
    "{ let n "
    "= rowsum(1.0); let mean = rowsum(s) / n; emit mean = mean; return (s - mean) / f32(Sk); } }",
    // a mask that reads inputs
    "import std.normalization; attention t { dim D = 8; input doc: i32[B, Sk]; score(q, k) = "
    "dot(q, k); "
    "mask(b, h, i, j) = doc[b, j] == doc[b, i] && j <= i; normalize(s) = softmax(s); }",
};
enum { TEXTS = sizeof texts / sizeof *texts };

#endif
