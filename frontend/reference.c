// reference.c: attentions as language.md writes them: what decides in f32, the rest in float64
// (reference_eval.h); and the face of the reference. Recurrences are in reference_recur.c.
//
// In: plain arrays. Out: o, emits, state. Holds afterwards: nothing outside an input was read
// (indices are clamped), a row without a key is 0 before `output`.
#include "frontend/reference_batch.h"
#include "frontend/reference_walk.h"

#include <assert.h>
#include <math.h>
#include <string.h>

TxValue ref_value_or(const RefProgram *p, const RefEnv *e, TxValue absent) {
    return p ? ref_evaluate(p, e, 0) : absent;
}

double ref_inner(const double *x, const double *y, int n) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += x[i] * y[i];
    return sum;
}

// ---- attention

static RefProgram *clause(Arena *a, const RefRun *r, ClauseId id, unsigned s_moves) {
    return ref_program(a, &r->variant->clause[id], 1, 0, s_moves, r->kinks);
}

static void programs(Arena *a, RefAttention *t) {
    const RefRun *r = t->run;
    const Variant *v = r->variant;
    t->score = clause(a, r, CLAUSE_SCORE, 0);
    unsigned moves = t->score->result_moves;
    t->modify = clause(a, r, CLAUSE_MODIFY, moves);
    if (t->modify) moves = t->modify->result_moves;
    t->mask = clause(a, r, CLAUSE_MASK, 0);
    t->output = clause(a, r, CLAUSE_OUTPUT, 0);
    const Tx **roots = ARENA_ARRAY(a, const Tx *, v->emits.n + 1);
    roots[0] = v->clause[CLAUSE_NORMALIZE];
    for (int i = 0; i < v->emits.n; i++) roots[i + 1] = v->emits.data[i].value;
    t->normalize = ref_program(a, roots, v->emits.n + 1, t->Sk, moves, r->kinks);
    t->on = t->score->on | t->normalize->on;
    if (t->modify) t->on |= t->modify->on;
    if (t->mask) t->on |= t->mask->on;
}

// The largest power of two that all elements are whole multiples of; f32s are of 2^-149.
static int grain_of(const double *x, int n) {
    int least = 1000;
    for (int i = 0; i < n; i++) {
        int exponent;
        if (x[i] == 0 || !isfinite(x[i])) continue;
        uint64_t whole = (uint64_t)ldexp(frexp(fabs(x[i]), &exponent), 53);
        exponent += __builtin_ctzll(whole) - 53;
        least = exponent < least ? exponent : least;
    }
    return least;
}

// Whether it is asked how far dots may be off.
static bool is_measured(const RefAttention *t) { return t->run->open || t->run->rounding; }

// Where all partial sums are whole multiples of 2^grain below 2^24 of it, every order of adding
// gives the same, and there is no error.
static RefDot dot_of(const RefAttention *t, const double *x, const double *y, int n, int grain) {
    RefDot d = {ref_inner(x, y, n), 0};
    double size = 0;
    if (!is_measured(t)) return d;
    for (int i = 0; i < n; i++) size += fabs(x[i] * y[i]);
    if (size > ldexp(1, 24 + (grain < 900 ? grain : 900))) d.error = t->run->dot_error * size;
    return d;
}

// ---- rows

static RefRows rows_of(const RefAttention *t, RowSide side, const TxRow *row) {
    const RefRun *r = t->run;
    bool keys = side == ROW_KEYS;
    RefRows x = {.data = keys ? t->k : t->q,
                 .side = side,
                 .heads = keys ? t->Hkv : t->H,
                 .n = keys ? t->Sk : t->Sq,
                 .from = row->from,
                 .width = row->width,
                 .stride = t->D};
    if (row->input < 0) return x;
    const TxExtent *extent = r->variant->inputs.data[row->input].extent;
    x.data = r->inputs[row->input];
    x.batch = r->sequence != NULL;
    x.heads = extent[1].size < 0 ? extent[1].value : r->sizes[extent[1].size];
    x.stride = extent[3].value;
    return x;
}

static size_t place_of(const RefAttention *t, const RefRows *x, int32_t b, int32_t head,
                       int32_t i) {
    int64_t at = ((int64_t)b * x->heads + head) * x->n + i;
    if (x->batch)
        at = ref_batch_row(t->run->sequence->batch, x->side, b + t->first, i) * x->heads + head;
    return (size_t)at * (size_t)x->stride + (size_t)x->from;
}

static int32_t head_of(const RefAttention *t, const RefEnv *e, const RefRows *x) {
    return (int32_t)((int64_t)e->h * x->heads / t->H);
}

size_t ref_row_place(const RefAttention *t, const RefEnv *e, const RefRows *x) {
    int32_t i = x->side == ROW_KEYS ? e->kv_idx : e->q_idx - t->q_offset;
    return place_of(t, x, e->b - t->first, head_of(t, e, x), i);
}

// Of its squares and grains.
static int64_t number_of(const RefAttention *t, const RefEnv *e, const RefRows *x) {
    if (x->side == ROW_QUERIES) return 0;
    return ((int64_t)(e->b - t->first) * x->heads + head_of(t, e, x)) * x->n + e->kv_idx;
}

static void measure(const RefAttention *t, const RefRows *x, int64_t number, size_t at) {
    const double *row = x->data + at;
    if (is_measured(t)) x->grain[number] = grain_of(row, x->width);
    x->square[number] = dot_of(t, row, row, x->width, 2 * x->grain[number]);
}

static void measure_keys(Arena *a, const RefAttention *t, RefRows *x) {
    int64_t n = x->side == ROW_KEYS ? (int64_t)t->B * x->heads * x->n : 1;
    x->square = ARENA_ARRAY(a, RefDot, n);
    x->grain = ARENA_ARRAY(a, int, n);
    for (int64_t i = 0; x->side == ROW_KEYS && i < n; i++) {
        int32_t head = (int32_t)(i / x->n);
        measure(t, x, i, place_of(t, x, head / x->heads, head % x->heads, (int32_t)(i % x->n)));
    }
}

// ---- clauses of elements

RefElements ref_elements(const RefAttention *t, ClauseId clause) {
    const RefRun *r = t->run;
    bool shares = r->variant->v_in_k;
    if (clause == CLAUSE_A_QUERY) return (RefElements){clause, r->q, t->H, t->Sq, t->D, t->D};
    if (clause == CLAUSE_A_KEY) return (RefElements){clause, r->k, t->Hkv, t->Sk, t->D, t->D};
    return (RefElements){clause, shares ? r->k : r->v, t->Hkv, t->Sk, shares ? t->D : t->Dv, t->Dv};
}

const double *ref_elements_row(const RefAttention *t, const RefElements *x, int64_t r, RefEnv *e) {
    const double *row = x->from + r * x->stride;
    int32_t at = (int32_t)(r % x->rows), head = (int32_t)(r / x->rows);
    *e = (RefEnv){.run = t->run,
                  .b = head / x->heads + t->first,
                  .h = head % x->heads,
                  .q_idx = at + t->q_offset,
                  .kv_idx = at};
    e->sqq = e->sqk = e->sqv = tx_number(ref_inner(row, row, x->width));
    return row;
}

TxValue ref_element(const RefProgram *p, RefEnv *e, double value) {
    e->q = e->k = e->v = tx_number(value);
    return ref_evaluate(p, e, 0);
}

static const double *changed(Arena *a, const RefAttention *t, ClauseId id, int *stride) {
    const RefElements x = ref_elements(t, id);
    const RefProgram *p = clause(a, t->run, id, 0);
    int64_t rows = (int64_t)t->B * x.heads * x.rows;
    *stride = p ? x.width : x.stride;
    if (!p) return x.from;
    double *to = ARENA_ARRAY(a, double, rows *x.width + 1);
    RefEnv e;
    for (int64_t r = 0; r < rows; r++) {
        const double *row = ref_elements_row(t, &x, r, &e);
        for (e.d = 0; e.d < x.width; e.d++) to[r * x.width + e.d] = ref_element(p, &e, row[e.d]).f;
    }
    return to;
}

static void change_elements(Arena *a, RefAttention *t) {
    int stride;
    t->q = changed(a, t, CLAUSE_A_QUERY, &stride);
    t->k = changed(a, t, CLAUSE_A_KEY, &stride);
    t->v = changed(a, t, CLAUSE_A_VALUE, &t->v_stride);
}

static void make_rows(Arena *a, RefAttention *t) {
    const Variant *v = t->run->variant;
    for (int side = 0; side < ROW_SIDES; side++) {
        t->rows[side] = ARENA_ARRAY(a, RefRows, v->rows[side].n);
        t->squares[side] = ARENA_ARRAY(a, TxValue, v->rows[side].n);
        for (int i = 0; i < v->rows[side].n; i++) {
            t->rows[side][i] = rows_of(t, (RowSide)side, &v->rows[side].data[i]);
            measure_keys(a, t, &t->rows[side][i]);
        }
    }
    t->dots = ARENA_ARRAY(a, TxValue, v->dots.n);
    t->dot = ARENA_ARRAY(a, RefDot, (size_t)t->Sk * (size_t)v->dots.n);
}

static void trials(Arena *a, RefAttention *t) {
    int64_t pair = 2, row = t->normalize->decisions;
    pair += t->score->decisions + (t->modify ? t->modify->decisions : 0);
    pair += t->mask ? t->mask->decisions : 0;
    int64_t most = t->Sk * (pair + row) + row;
    most += t->output ? (int64_t)t->output->decisions * t->Dv : 0;
    t->taken.value = ARENA_ARRAY(a, int32_t, most);
    t->taken.open = ARENA_ARRAY(a, bool, most);
}

static bool decides(const RefAttention *t) {
    const RefProgram *p[] = {t->score, t->modify, t->mask, t->normalize, t->output};
    for (int i = 0; i < 5; i++)
        if (p[i] && p[i]->decisions) return true;
    return false;
}

RefAttention ref_attention(Arena *a, const RefRun *r) {
    const Variant *v = r->variant;
    const int32_t *n = r->sizes;
    RefAttention t = {.run = r,
                      .B = r->sequence ? 1 : n[SIZE_B],
                      .first = r->sequence ? r->sequence->b : 0,
                      .H = n[SIZE_HQ],
                      .Hkv = n[SIZE_HKV],
                      .Sq = n[SIZE_SQ],
                      .Sk = n[SIZE_SK],
                      .q_offset = n[SIZE_Q_OFFSET],
                      .D = v->D,
                      .Dv = v->Dv};
    programs(a, &t);
    change_elements(a, &t);
    make_rows(a, &t);
    t.rounding =
        decides(&t) || !r->rounding ? 0 : r->rounding + 2; // the first two trials go one way alike
    t.key = ARENA_ARRAY(a, int, t.Sk);
    t.row = ARENA_ARRAY(a, TxValue, t.Sk);
    t.o = ARENA_ARRAY(a, TxValue, t.Dv);
    t.mass = ARENA_ARRAY(a, double, 3 * (size_t)t.Dv);
    trials(a, &t);
    return t;
}

size_t ref_kv_row(const RefAttention *t, const RefEnv *e, int j) {
    int kv_head = (int)((int64_t)e->h * t->Hkv / t->H);
    return ((size_t)(e->b - t->first) * (size_t)t->Hkv + (size_t)kv_head) * (size_t)t->Sk +
           (size_t)j;
}

static TxValue dot_value(const RefAttention *t, const RefEnv *e, const RefDot *d, uint64_t what) {
    TxValue v = tx_number(d->value);
    int trial = e->trial ? e->trial : t->rounding;
    if (trial && d->error > 0)
        v.written = tx_number(d->value + ref_direction(trial, what) * d->error).written;
    return v;
}

static void put_dots(RefAttention *t, RefEnv *e) {
    const Variant *v = t->run->variant;
    for (int i = 0; i < v->dots.n; i++) {
        const RefRows *q = &t->rows[ROW_QUERIES][v->dots.data[i].row[ROW_QUERIES]];
        const RefRows *k = &t->rows[ROW_KEYS][v->dots.data[i].row[ROW_KEYS]];
        RefDot *d = &t->dot[(size_t)i * (size_t)t->Sk + (size_t)e->kv_idx];
        if (!e->trial)
            *d = dot_of(t, q->data + ref_row_place(t, e, q), k->data + ref_row_place(t, e, k),
                        k->width, q->grain[0] + k->grain[number_of(t, e, k)]);
        t->dots[i] = dot_value(t, e, d, (uint64_t)e->kv_idx + ((uint64_t)i << 32));
        t->rough |= d->error > 0;
    }
    e->dots = t->dots;
}

static void put_squares(RefAttention *t, RefEnv *e, RowSide side) {
    uint64_t what =
        side == ROW_KEYS ? (uint64_t)e->kv_idx + (UINT64_C(1) << 40) : UINT64_C(1) << 41;
    for (int i = 0; i < t->run->variant->rows[side].n; i++) {
        const RefRows *x = &t->rows[side][i];
        if (side == ROW_QUERIES && !e->trial) measure(t, x, 0, ref_row_place(t, e, x));
        const RefDot *d = &x->square[number_of(t, e, x)];
        t->squares[side][i] = dot_value(t, e, d, what + ((uint64_t)i << 42));
        t->rough |= side == ROW_KEYS && d->error > 0;
    }
    e->squares[side] = t->squares[side];
}

TxValue ref_modified(RefAttention *t, RefEnv *e) {
    put_dots(t, e);
    put_squares(t, e, ROW_KEYS);
    e->s = ref_evaluate(t->score, e, 0);
    if (t->rounding) {
        uint64_t pair = (uint64_t)e->q_idx << 32 | (uint64_t)e->kv_idx;
        e->s.written *= 1 + (float)ref_direction(t->rounding, pair) * 0x1p-23f;
    }
    TxValue s = ref_value_or(t->modify, e, e->s);
    double size = fabs(s.written);
    t->near |= size > 1e37 && (isfinite(size) || isfinite(s.f));
    return s;
}

int ref_gather(RefAttention *t, RefEnv *e) {
    int n = 0;
    put_squares(t, e, ROW_QUERIES);
    for (int j = 0; j < t->Sk; j++) {
        e->kv_idx = j;
        bool in = !t->mask || ref_evaluate(t->mask, e, 0).i;
        if (!ref_decide(e, in)) return -1;
        if (!in && !t->run->scores) continue;
        TxValue s = ref_modified(t, e);
        if (t->run->scores) t->run->scores[t->at * (size_t)t->Sk + (size_t)j] = s.f;
        if (!in) continue;
        if (!ref_decide(e, s.written == -INFINITY)) return -1;
        if (s.written == -INFINITY) continue;
        t->key[n] = j;
        t->row[n++] = s;
    }
    return n;
}

const double *ref_v_row(const RefAttention *t, const RefEnv *e, int j) {
    size_t row = ref_kv_row(t, e, j);
    return t->v + row * (size_t)t->v_stride;
}

void ref_aggregate(const RefAttention *t, const RefEnv *e, int keys) {
    const RefProgram *p = t->normalize;
    memset(t->mass, 0, sizeof *t->mass * (size_t)t->Dv);
    double *f = t->mass + t->Dv, *w = f + t->Dv;
    memset(f, 0, 2 * sizeof *f * (size_t)t->Dv);
    for (int j = 0; j < keys; j++) {
        TxValue x = ref_row_value(p, p->result, j);
        size_t pair = t->at * (size_t)t->Sk + (size_t)t->key[j];
        if (t->run->weights) t->run->weights[pair] = x.f;
        if (t->run->taking_part) t->run->taking_part[pair] = 1;
        const double *v = ref_v_row(t, e, t->key[j]);
        for (int d = 0; d < t->Dv; d++) {
            double y = x.f * v[d];
            f[d] += y;
            t->mass[d] += y * y;
            w[d] += x.written * v[d];
        }
    }
    for (int d = 0; d < t->Dv; d++)
        t->o[d] = (TxValue){.f = f[d], .written = tx_number(w[d]).written};
}

// ---- what comes out of a row

static void put_output(const RefAttention *t, RefEnv *e, size_t at) {
    const RefRun *r = t->run;
    double squares = 0, written = 0;
    for (int d = 0; d < t->Dv; d++) {
        squares += t->o[d].f * t->o[d].f;
        written += (double)t->o[d].written * t->o[d].written;
    }
    double error = e->trial ? r->o_error : 0, step = error * sqrt(squares / t->Dv);
    written *= 1 + ref_direction(e->trial, 0) * error;
    e->sqo = (TxValue){.f = squares, .written = tx_number(written).written};
    for (e->d = 0; e->d < t->Dv; e->d++) {
        size_t i = at * (size_t)t->Dv + (size_t)e->d;
        e->o = t->o[e->d];
        double w = e->o.written + ref_direction(e->trial, (uint64_t)e->d) * step;
        e->o.written = tx_number(w).written;
        TxValue o = ref_value_or(t->output, e, e->o);
        if (e->trial) continue;
        if (r->o) r->o[i] = o.f;
        if (r->o_written) r->o_written[i] = o.written;
        if (r->o_size) r->o_size[i] = sqrt(t->mass[e->d] + o.f * o.f);
    }
}

static void put_emits(const RefAttention *t, int keys, size_t at) {
    const RefRun *r = t->run;
    for (int m = 0; m < r->variant->emits.n; m++) {
        int node = ref_index_of(&t->normalize->nodes, r->variant->emits.data[m].value);
        TxValue v = t->normalize->value[node];
        if (!keys && isnan(v.f)) v.f = -INFINITY; // a row without a key has no NaN
        if (!keys && isnan(v.written)) v.written = -INFINITY;
        if (r->emits && r->emits[m]) r->emits[m][at] = v.f;
        if (r->emits_written && r->emits_written[m]) r->emits_written[m][at] = v.written;
    }
}

// Evaluates a row once more with what moves moved.
static void try_again(RefAttention *t, RefEnv *e, size_t at) {
    bool row = (t->on & REF_ROUGH) || ((t->on & REF_DOTS) && t->rough) || (t->near && t->rough);
    t->taken.at = 0;
    if (row) {
        int keys = ref_gather(t, e);
        if (keys < 0) return; // other keys take part: what follows cannot be compared
        ref_evaluate(t->normalize, e, keys);
    }
    t->taken.at = t->taken.before_output;
    if (t->output && t->output->on) put_output(t, e, at);
}

static void count_open(const RefAttention *t, size_t at) {
    RefOpen *open = t->run->open;
    const RefTaken *k = &t->taken;
    int64_t each = t->output ? t->output->decisions : 0, found = 0;
    bool row = false;
    for (int64_t i = 0; i < k->n; i++) found += k->open[i];
    for (int64_t i = 0; i < k->before_output; i++) row |= k->open[i];
    open->decisions += found;
    open->rows += found > 0;
    if (!found) return;
    open->row[at] = row;
    for (int64_t i = 0; i < t->Dv; i++) {
        bool element = row;
        for (int64_t d = 0; d < each; d++) element |= k->open[k->before_output + i * each + d];
        open->o[at * (size_t)t->Dv + (size_t)i] = element;
    }
}

size_t ref_row(RefAttention *t, RefEnv *e, int b, int h, int i) {
    t->at = ((size_t)b * (size_t)t->H + (size_t)h) * (size_t)t->Sq + (size_t)i;
    *e = (RefEnv){.run = t->run,
                  .b = b + t->first,
                  .h = h,
                  .q_idx = i + t->q_offset,
                  .row = t->row,
                  .rounding = t->rounding};
    return t->at;
}

static void attend(RefAttention *t, int b, int h, int i) {
    const RefRun *r = t->run;
    RefEnv e;
    size_t at = ref_row(t, &e, b, h, i);
    if (r->rows && !r->rows[at]) return;
    if (r->open) e.taken = &t->taken;
    t->taken.n = 0;
    t->rough = t->near = false;
    int keys = ref_gather(t, &e);
    if (r->pairs) *r->pairs += keys;
    ref_evaluate(t->normalize, &e, keys);
    ref_aggregate(t, &e, keys);
    t->taken.before_output = t->taken.n;
    put_emits(t, keys, at);
    put_output(t, &e, at);
    for (e.trial = 1; r->open && e.trial <= REF_TRIALS; e.trial++) try_again(t, &e, at);
    if (r->open) count_open(t, at);
}

void ref_mask(const RefRun *r, int b, int h, unsigned char *out) {
    Arena *a = arena_new();
    const RefProgram *mask = clause(a, r, CLAUSE_MASK, 0);
    int32_t Sq = r->sizes[SIZE_SQ], Sk = r->sizes[SIZE_SK];
    RefEnv e = {.run = r, .b = b, .h = h};
    for (int32_t i = 0; i < Sq; i++)
        for (e.kv_idx = 0; e.kv_idx < Sk; e.kv_idx++) {
            e.q_idx = i + r->sizes[SIZE_Q_OFFSET];
            *out++ = mask ? ref_evaluate(mask, &e, 0).i != 0 : 1;
        }
    arena_free(a);
}

// ---- the public face

const char *ref_check(const RefRun *r) {
    const int32_t *n = r->sizes;
    bool attends = r->variant->kind == VARIANT_ATTENTION;
    for (int i = 0; i < r->variant->sizes.n; i++)
        if (n[i] < 0 && !(attends && i == SIZE_Q_OFFSET)) return "a size is negative";
    if (attends) {
        if (n[SIZE_HKV] < 1 || n[SIZE_HQ] % n[SIZE_HKV]) return "H is not a multiple of Hkv";
        return NULL;
    }
    for (int i = RSIZE_HQ; i <= RSIZE_HV; i++)
        if (n[i] < 1 || n[RSIZE_H] % n[i]) return "H is not a multiple of Hq, Hk and Hv";
    return NULL;
}

void ref_run(const RefRun *r) {
    assert(!ref_check(r));
    Arena *a = arena_new();
    if (r->variant->kind == VARIANT_ATTENTION) {
        RefAttention t = ref_attention(a, r);
        for (int b = 0; b < t.B; b++)
            for (int h = 0; h < t.H; h++)
                for (int i = 0; i < t.Sq; i++) attend(&t, b, h, i);
    } else {
        RefRecurrence t = ref_recurrence(a, r);
        double *state = ARENA_ARRAY(a, double, (size_t)t.D *(size_t)t.Dv);
        for (int b = 0; b < t.B; b++)
            for (int h = 0; h < t.H; h++) ref_recur(&t, state, b, h);
    }
    arena_free(a);
}
