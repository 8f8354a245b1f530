// reference_batch.c: see reference_batch.h. Lengths and ids are clamped as the layouts' contract says, so that
// nothing outside a tensor is read whatever they hold.
#include "frontend/reference_batch.h"
#include "frontend/reference_eval.h"

#include <assert.h>
#include <string.h>

static int64_t clamp(int64_t x, int64_t least, int64_t most) {
    return x < least ? least : x > most ? most : x;
}

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

// ---- where a sequence's rows are

static int32_t between(const int32_t *start, int32_t b, int64_t rows, int64_t *first) {
    *first = clamp(start[b], 0, rows);
    return (int32_t)least(clamp(start[b + 1], *first, rows) - *first, SIZE_LIMIT);
}

int32_t ref_queries(const RefBatch *x, int32_t b, int64_t *first) {
    if (x->q_start) return between(x->q_start, b, x->Tq, first);
    int64_t each = x->Tq / x->B;
    *first = b * each;
    return (int32_t)least(each, SIZE_LIMIT);
}

int32_t ref_keys(const RefBatch *x, int32_t b) {
    int64_t first;
    if (!x->paged) return between(x->kv_start, b, x->Tk, &first);
    if (x->pages == 0) return 0;
    return (int32_t)clamp(x->kv_len[b], 0, least(x->table * x->page, SIZE_LIMIT));
}

int32_t ref_first_position(const RefBatch *x, int32_t b) {
    int64_t first;
    int32_t Sq = ref_queries(x, b, &first), Sk = ref_keys(x, b);
    if (!x->q_offset) return Sk > Sq ? Sk - Sq : 0;
    return (int32_t)clamp(x->q_offset[b], -SIZE_LIMIT, SIZE_LIMIT - Sq);
}

int64_t ref_key_row(const RefBatch *x, int32_t b, int32_t j) {
    if (!x->paged) return clamp(x->kv_start[b], 0, x->Tk) + j;
    int64_t id = x->page_table[b * x->table + j / x->page];
    return clamp(id, 0, x->pages - 1) * x->page + j % x->page;
}

int32_t ref_slot(const RefBatch *x, int32_t b) {
    return x->state_index ? (int32_t)clamp(x->state_index[b], 0, x->slots - 1) : b;
}

// ---- inputs

static bool counts_rows(int size, bool recurrence) {
    return recurrence ? size == RSIZE_S : size == SIZE_SQ || size == SIZE_SK;
}

static bool recurs(const RefRun *r) { return r->variant->kind == VARIANT_RECURRENCE; }

RefMoved ref_moved(const TxInput *in, bool recurrence) {
    RefMoved m = {-1, -1};
    for (int d = in->rank - 1; d >= 0; d--) {
        if (in->extent[d].size == SIZE_B) m.lost = d;
        if (counts_rows(in->extent[d].size, recurrence)) m.moved = d;
    }
    return m.lost < 0 || m.moved < 0 ? (RefMoved){-1, -1} : m;
}

static int64_t rows_of(const RefBatch *x, int size, int32_t b) {
    int64_t first;
    return size == SIZE_SK ? ref_keys(x, b) : ref_queries(x, b, &first);
}

int64_t ref_batch_extent(const RefRun *r, int input, int d, const TxValue *index) {
    const TxInput *in = &r->variant->inputs.data[input];
    const RefBatch *x = r->sequence->batch;
    RefMoved m = ref_moved(in, recurs(r));
    int size = in->extent[d].size;
    if (size < 0) return in->extent[d].value;
    if (d != m.moved) return r->sizes[size];
    return x->B ? rows_of(x, size, (int32_t)clamp(index[m.lost].i, 0, x->B - 1)) : 0;
}

// The row, of the dimensions that came in front, that holds element j of sequence b.
static int64_t front(const RefBatch *x, int size, int32_t b, int32_t j) {
    int64_t first;
    if (size == SIZE_SK) return ref_key_row(x, b, j);
    (void)ref_queries(x, b, &first);
    return first + j;
}

int64_t ref_batch_row(const RefBatch *x, RowSide side, int32_t b, int32_t i) {
    return front(x, side == ROW_KEYS ? SIZE_SK : SIZE_SQ, b, i);
}

int64_t ref_batch_place(const RefRun *r, int input, const TxValue *index) {
    const TxInput *in = &r->variant->inputs.data[input];
    const RefBatch *x = r->sequence->batch;
    RefMoved m = ref_moved(in, recurs(r));
    int64_t at = 0;
    if (m.moved >= 0) {
        int64_t n = ref_batch_extent(r, input, m.moved, index);
        if (n <= 0) return -1;
        int32_t b = (int32_t)clamp(index[m.lost].i, 0, x->B - 1);
        at = front(x, in->extent[m.moved].size, b, (int32_t)clamp(index[m.moved].i, 0, n - 1));
    }
    for (int d = 0; d < in->rank; d++) {
        int size = in->extent[d].size;
        int64_t n = ref_batch_extent(r, input, d, index), k = index[d].i;
        if (d == m.lost || d == m.moved) continue;
        if (counts_rows(size, recurs(r))) { // the tensor may be longer than the sequence
            k = clamp(k, 0, n > 0 ? n - 1 : 0);
            n = x->extent[input][d];
        }
        if (n <= 0) return -1;
        at = at * n + clamp(k, 0, n - 1);
    }
    return at;
}

// ---- one sequence

typedef struct Rows { // of a sequence: [heads, n, width] there, [all, heads, width] in the launch
    const RefBatch *x;
    int32_t b, n, heads;
    bool keys;
} Rows;

static int64_t launch_row(const Rows *s, int32_t i) {
    return front(s->x, s->keys ? SIZE_SK : SIZE_SQ, s->b, i);
}

static void *gathered(Arena *a, const Rows *s, const void *from, size_t bytes) {
    if (!from) return NULL;
    char *own = arena_alloc(a, (size_t)s->n * (size_t)s->heads * bytes + 1);
    for (int32_t i = 0; i < s->n; i++)
        for (int32_t h = 0; h < s->heads; h++) {
            size_t at = ((size_t)launch_row(s, i) * (size_t)s->heads + (size_t)h) * bytes;
            memcpy(own + ((size_t)h * (size_t)s->n + (size_t)i) * bytes, (const char *)from + at,
                   bytes);
        }
    return own;
}

static void scatter(const Rows *s, void *to, const void *own, size_t bytes) {
    if (!to) return;
    for (int32_t i = 0; i < s->n; i++)
        for (int32_t h = 0; h < s->heads; h++) {
            size_t at = ((size_t)launch_row(s, i) * (size_t)s->heads + (size_t)h) * bytes;
            memcpy((char *)to + at,
                   (const char *)own + ((size_t)h * (size_t)s->n + (size_t)i) * bytes, bytes);
        }
}

static double *room(Arena *a, const Rows *s, const void *wanted, int columns) {
    return wanted ? ARENA_ARRAY(a, double, (size_t)s->n *(size_t)s->heads *(size_t)columns + 1)
                  : NULL;
}

static double **rooms(Arena *a, const Rows *s, double *const *wanted, int n) {
    double **own = ARENA_ARRAY(a, double *, n + 1);
    for (int i = 0; wanted && i < n; i++) own[i] = room(a, s, wanted[i], 1);
    return own;
}

static int32_t *own_sizes(Arena *a, const RefRun *r, const RefBatch *x, int32_t b) {
    int64_t first;
    int32_t *n = ARENA_ARRAY(a, int32_t, r->variant->sizes.n);
    memcpy(n, r->sizes, sizeof *n * (size_t)r->variant->sizes.n);
    n[SIZE_B] = x->B;
    if (recurs(r)) {
        n[RSIZE_S] = ref_queries(x, b, &first);
        return n;
    }
    n[SIZE_SQ] = ref_queries(x, b, &first);
    n[SIZE_SK] = ref_keys(x, b);
    n[SIZE_Q_OFFSET] = ref_first_position(x, b);
    return n;
}

static RefOpen *own_open(Arena *a, const RefRun *r, const Rows *s) {
    if (!r->open) return NULL;
    RefOpen *open = ARENA_NEW(a, RefOpen);
    size_t rows = (size_t)s->n * (size_t)s->heads;
    open->row = arena_alloc(a, rows + 1);
    open->o = arena_alloc(a, rows * (size_t)r->variant->Dv + 1);
    return open;
}

static void put(const RefRun *r, const RefRun *own, const Rows *s) {
    size_t row = sizeof(double), o = row * (size_t)r->variant->Dv;
    scatter(s, r->o, own->o, o);
    scatter(s, r->o_written, own->o_written, o);
    scatter(s, r->o_size, own->o_size, o);
    for (int i = 0; i < r->variant->emits.n; i++) {
        if (r->emits) scatter(s, r->emits[i], own->emits[i], row);
        if (r->emits_written) scatter(s, r->emits_written[i], own->emits_written[i], row);
    }
    if (!r->open) return;
    scatter(s, r->open->row, own->open->row, 1);
    scatter(s, r->open->o, own->open->o, (size_t)r->variant->Dv);
    r->open->decisions += own->open->decisions;
    r->open->rows += own->open->rows;
}

typedef struct One { // a sequence of a batch
    RefSequence sequence;
    RefRun run; // what goes in
    Rows q, k;
} One;

static One *one_of(Arena *a, const RefBatch *x, const RefRun *r, int32_t b) {
    One *one = ARENA_NEW(a, One);
    const Variant *v = r->variant;
    RefRun *own = &one->run;
    *one = (One){.sequence = {x, b}, .run = *r};
    own->sizes = own_sizes(a, r, x, b);
    one->q = (Rows){x, b, own->sizes[SIZE_SQ], own->sizes[SIZE_HQ], false};
    one->k = (Rows){x, b, own->sizes[SIZE_SK], own->sizes[SIZE_HKV], true};
    own->sequence = &one->sequence;
    own->q = gathered(a, &one->q, r->q, sizeof(double) * (size_t)v->D);
    own->k = gathered(a, &one->k, r->k, sizeof(double) * (size_t)v->D);
    own->v = gathered(a, &one->k, r->v, sizeof(double) * (size_t)v->Dv);
    own->rows = gathered(a, &one->q, r->rows, 1);
    return one;
}

static void run_one(const RefBatch *x, const RefRun *r, int32_t b) {
    Arena *a = arena_new();
    const Variant *v = r->variant;
    One *one = one_of(a, x, r, b);
    RefRun own = one->run;
    Rows q = one->q;
    own.o = room(a, &q, r->o, v->Dv);
    own.o_written = room(a, &q, r->o_written, v->Dv);
    own.o_size = room(a, &q, r->o_size, v->Dv);
    own.emits = rooms(a, &q, r->emits, v->emits.n);
    own.emits_written = rooms(a, &q, r->emits_written, v->emits.n);
    own.open = own_open(a, r, &q);
    ref_run(&own);
    put(r, &own, &q);
    arena_free(a);
}

static void grad_one(const RefBatch *x, const RefGrad *g, int32_t b) {
    Arena *a = arena_new();
    const Variant *v = g->run->variant;
    One *one = one_of(a, x, g->run, b);
    const Rows *q = &one->q, *k = &one->k;
    size_t d = sizeof(double) * (size_t)v->D, dv = sizeof(double) * (size_t)v->Dv;
    const double **demits = ARENA_ARRAY(a, const double *, v->emits.n + 1);
    for (int i = 0; g->demits && i < v->emits.n; i++)
        demits[i] = gathered(a, q, g->demits[i], sizeof(double));
    RefGrad own = *g;
    own.run = &one->run;
    own.d_o = gathered(a, q, g->d_o, dv);
    own.demits = demits;
    own.dq = room(a, q, g->dq, v->D);
    own.dk = room(a, k, g->dk, v->D);
    own.dv = room(a, k, g->dv, v->Dv);
    own.lost = gathered(a, q, g->lost, 1);
    ref_grad(&own);
    scatter(q, g->lost, own.lost, 1);
    scatter(q, g->dq, own.dq, d);
    scatter(k, g->dk, own.dk, d);
    scatter(k, g->dv, own.dv, dv);
    arena_free(a);
}

static void recur_one(const RefBatch *x, const RefRun *r, int32_t b) {
    Arena *a = arena_new();
    const Variant *v = r->variant;
    RefSequence sequence = {x, b};
    RefRun own = *r;
    const int32_t *n = own.sizes = own_sizes(a, r, x, b);
    Rows rows = {x, b, n[RSIZE_S], n[RSIZE_HQ], false};
    size_t row = sizeof(double) * (size_t)v->D, o = sizeof(double) * (size_t)v->Dv;
    size_t state = (size_t)n[RSIZE_H] * (size_t)v->D * (size_t)v->Dv,
           at = (size_t)ref_slot(x, b) * state;
    own.sequence = &sequence;
    own.q = gathered(a, &rows, r->q, row);
    rows.heads = n[RSIZE_HK];
    own.k = gathered(a, &rows, r->k, row);
    rows.heads = n[RSIZE_HV];
    own.v = gathered(a, &rows, r->v, o);
    rows.heads = n[RSIZE_H];
    own.o = room(a, &rows, r->o, v->Dv);
    if (r->state0) own.state0 = r->state0 + at;
    if (r->state) own.state = r->state + at;
    own.open = own_open(a, r, &rows);
    if (own.open) own.open->state = r->open->state + at;
    ref_run(&own);
    scatter(&rows, r->o, own.o, o);
    if (own.open) {
        scatter(&rows, r->open->o, own.open->o, (size_t)v->Dv);
        r->open->beyond += own.open->beyond;
        r->open->negative += own.open->negative;
    }
    arena_free(a);
}

void ref_batch_run(const RefBatch *x, const RefRun *r, int32_t *owners) {
    assert(!r->scores && !r->weights && !r->taking_part);
    for (int32_t b = 0; b < x->B; b++) {
        int64_t first;
        int32_t n = ref_queries(x, b, &first);
        for (int32_t i = 0; i < n; i++) owners[first + i]++;
        if (n && recurs(r)) owners[x->Tq + ref_slot(x, b)]++;
        if (n) (recurs(r) ? recur_one : run_one)(x, r, b);
    }
}

void ref_batch_grad(const RefBatch *x, const RefGrad *g) {
    assert(!recurs(g->run));
    for (int32_t b = 0; b < x->B; b++) {
        int64_t first;
        if (ref_queries(x, b, &first)) grad_one(x, g, b);
    }
}

// ---- counting

typedef struct Mask { // of a sequence and head
    Arena *arena;
    RefSequence sequence;
    RefRun run;
    RefEnv env;
    const RefProgram *program;
    int64_t Sq, Sk;
} Mask;

static Mask *mask_of(const RefBatch *x, const RefRun *r, int32_t b, int h) {
    Arena *a = arena_new();
    Mask *m = ARENA_NEW(a, Mask);
    *m = (Mask){.arena = a, .sequence = {x, b}, .run = *r, .env = {.b = b, .h = h}};
    m->run.sizes = own_sizes(a, r, x, b);
    m->run.sequence = &m->sequence;
    m->env.run = &m->run;
    m->program = ref_program(a, &r->variant->clause[CLAUSE_MASK], 1, 0, 0, false);
    m->Sq = m->run.sizes[SIZE_SQ];
    m->Sk = m->run.sizes[SIZE_SK];
    return m;
}

static bool sees(Mask *m, int64_t i, int64_t j) {
    m->env.q_idx = m->run.sizes[SIZE_Q_OFFSET] + (int32_t)i;
    m->env.kv_idx = (int32_t)j;
    return !m->program || ref_evaluate(m->program, &m->env, 0).i;
}

double ref_batch_pairs(const RefBatch *x, const RefRun *r, int h, int64_t most) {
    double all = 0, pairs = 0, of = 0;
    int64_t first, at = 0;
    for (int32_t b = 0; b < x->B; b++) all += (double)ref_queries(x, b, &first) * ref_keys(x, b);
    int64_t step = (int64_t)(all / (double)most) | 1; // odd: it meets all keys of a power of two
    for (int32_t b = 0; b < x->B; b++) {
        Mask *m = mask_of(x, r, b, h);
        for (; at < m->Sq * m->Sk; at += step, of++) pairs += sees(m, at / m->Sk, at % m->Sk);
        at -= m->Sq * m->Sk;
        arena_free(m->arena);
    }
    return of > 0 ? pairs / of * all : 0;
}

// From the last query on: masks are causal more often than not.
static bool is_touched(Mask *m, int64_t j, int64_t step) {
    for (int64_t i = m->Sq - 1; i >= 0; i -= step)
        if (sees(m, i, j)) return true;
    return false;
}

double ref_batch_touched(const RefBatch *x, const RefRun *r, int h, int64_t most) {
    enum { EACH = 64 }; // keys of a sequence that are looked at
    double all = 0, touched = 0;
    for (int32_t b = 0; b < x->B; b++) {
        Mask *m = mask_of(x, r, b, h);
        int64_t keys = least(m->Sk, EACH), step = m->Sq * keys * x->B / most + 1, found = 0;
        for (int64_t k = 0; k < keys; k++)
            found += is_touched(m, (2 * k + 1) * m->Sk / (2 * keys), step);
        all += (double)m->Sk;
        touched += keys ? (double)found / (double)keys * (double)m->Sk : 0;
        arena_free(m->arena);
    }
    return all > 0 ? touched / all : 1;
}
