// pane_steps.c: `attn/steps`: the derived online form run on one row (ir/stream_eval.h), tile by tile, beside the row as the reference
// has it; and the row's keys in parts, merged by the combine rule.
#include "pane_row.h"

#include "ir/stream_eval.h"
#include "passes/derive/explain.h"

#include <math.h>

enum { MOST_KEYS = 4096, MOST_STEPS = 256, MOST_PARTS = 16, MOST_COLUMNS = 8, LARGEST_TILE = 1024 };

typedef struct Steps {
    Pane *p;
    PaneRun r;
    const Stream *s;
    int row, tile, parts, keys, Dv, columns;
    double dot, sqq, sqk; // of the pair at hand
    int32_t key;
    ExEnv env;
    StreamEval *eval;
    double *score; // -inf: masked
    StreamKeys all;
    const double *full; // the row of the reference
    double *o;          // scratch
} Steps;

// ---- the row's scores, by the expressions that the stream has

static ExValue symbol(void *ctx, const Ex *e) {
    const Steps *t = ctx;
    ExValue v = {.f = 0};
    switch ((int)e->sym) {
    case SYM_DOT: v.f = t->dot; break;
    case SYM_SQQ: v.f = t->sqq; break;
    case SYM_SQK: v.f = t->sqk; break;
    case SYM_B: v.i = t->r.batch; break;
    case SYM_H: v.i = t->r.head; break;
    case SYM_Q_IDX: v.i = t->row + t->r.b.size[SIZE_Q_OFFSET]; break;
    case SYM_KV_IDX: v.i = t->key; break;
    case SYM_SIZE: v.i = t->r.b.size[e->index]; break;
    case SYM_SCALAR:
        if (e->type == EX_F32)
            v.f = t->r.b.scalar[sig_operands(t->r.b.sig) + e->index];
        else
            v.i = (int32_t)t->r.b.scalar[sig_operands(t->r.b.sig) + e->index];
        break;
    default: break;
    }
    return v;
}

static ExValue element(void *ctx, const Ex *e, const int32_t *index) {
    const Steps *t = ctx;
    const Tensor *x = &t->r.b.tensor[sig_operands(t->r.b.sig) + e->input];
    int64_t i = 0;
    ExValue v = {.i = 0};
    if (!x->count) return v;
    for (int d = 0; d < x->rank; d++) {
        int64_t k = index[d] < 0 ? 0 : index[d] >= x->dim[d] ? x->dim[d] - 1 : index[d];
        i = i * x->dim[d] + k;
    }
    if (e->type == EX_F32)
        v.f = tensor_get(x, i);
    else
        v.i = (int32_t)tensor_get(x, i);
    return v;
}

static double inner(const double *x, const double *y, int n) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += x[i] * y[i];
    return sum;
}

static void make_scores(Steps *t) {
    const RowProgram *row = t->s->row;
    ExPlan *score = ex_plan(t->p->arena, row->modified), *mask = ex_plan(t->p->arena, row->mask);
    const double *q = t->r.q + pane_q_row(&t->r, t->row) * (size_t)row->D;
    t->sqq = inner(q, q, row->D);
    for (t->key = 0; t->key < t->keys; t->key++) {
        const double *k = t->r.k + pane_k_row(&t->r, t->key) * (size_t)row->D;
        t->dot = inner(q, k, row->D);
        t->sqk = inner(k, k, row->D);
        t->score[t->key] = ex_run(mask, &t->env).i ? ex_run(score, &t->env).f : -INFINITY;
    }
}

// ---- what is told

static cJSON *numbers(const Steps *t, const double *v, int n) { return pane_numbers(t->p, v, n); }

static void add_output(Steps *t, cJSON *o, const StreamPart *part) {
    double error = 0;
    stream_finish(t->eval, part);
    stream_output(t->eval, part, t->o);
    for (int d = 0; d < t->Dv; d++) {
        double e = t->o[d] == t->full[d]
                       ? 0
                       : fabs(t->o[d] - t->full[d]); // two infinities of one sign are equal
        error = isnan(e) || isnan(error) ? NAN : fmax(error, e);
    }
    cJSON_AddItemToObject(o, "o", numbers(t, t->o, t->columns));
    cJSON_AddItemToObject(o, "error", pane_number(error));
}

static void add_shifts(Steps *t, cJSON *o, const StreamPart *part) {
    double *shift = ARENA_ARRAY(t->p->arena, double, t->s->shifts.n + 1);
    for (int i = 0; i < t->s->shifts.n; i++) shift[i] = stream_shift(t->eval, i, part);
    cJSON_AddItemToObject(o, "shifts", numbers(t, shift, t->s->shifts.n));
}

static cJSON *step(Steps *t, int sweep, int from, int to, StreamPart *part) {
    bool last = sweep == t->s->nsweeps - 1;
    StreamMoves moves = stream_moves(t->eval);
    double *elements = ARENA_ARRAY(t->p->arena, double, to - from + 1);
    unsigned char *mask = arena_alloc(t->p->arena, (size_t)(to - from) + 1);
    for (int j = from; j < to; j++) mask[j - from] = t->score[j] != -INFINITY;
    stream_add(t->eval, sweep, &t->all, from, to, part, &moves, elements);
    cJSON *o = json_pair("sweep", cJSON_CreateNumber(sweep), "from", cJSON_CreateNumber(from));
    cJSON_AddNumberToObject(o, "to", to);
    cJSON_AddItemToObject(o, "mask", pane_bits(t->p, mask, to - from));
    cJSON_AddItemToObject(o, "scores", numbers(t, t->score + from, to - from));
    cJSON_AddItemToObject(o, "elements",
                          last ? numbers(t, elements, to - from) : cJSON_CreateNull());
    cJSON_AddItemToObject(o, "states", numbers(t, part->state, t->s->states.n));
    cJSON_AddItemToObject(o, "rescale", numbers(t, moves.state, t->s->states.n));
    add_shifts(t, o, part);
    cJSON_AddItemToObject(o, "acc", last ? numbers(t, part->acc, t->columns) : cJSON_CreateNull());
    cJSON_AddItemToObject(o, "accRescale", last ? pane_number(moves.acc) : cJSON_CreateNull());
    if (last) {
        add_output(t, o, part);
    } else {
        cJSON_AddNullToObject(o, "o");
        cJSON_AddNullToObject(o, "error");
    }
    return o;
}

static cJSON *steps(Steps *t, StreamPart *part) {
    cJSON *all = cJSON_CreateArray();
    for (int sweep = 0; sweep < t->s->nsweeps; sweep++) {
        for (int from = 0; from < t->keys; from += t->tile) {
            int to = from + t->tile < t->keys ? from + t->tile : t->keys;
            cJSON_AddItemToArray(all, step(t, sweep, from, to, part));
        }
        stream_finish(t->eval, part);
    }
    return all;
}

static cJSON *end(Steps *t, const StreamPart *part) {
    const RowProgram *row = t->s->row;
    cJSON *o = cJSON_CreateObject();
    add_output(t, o, part);
    cJSON *reductions = cJSON_AddArrayToObject(o, "reductions"), *emits;
    for (int k = 0; k < row->reduces.n; k++) {
        const char *name = row->reduces.data[k].name;
        cJSON *one = json_pair("name", cJSON_CreateString(name), "mathml",
                               cJSON_CreateString(pane_name(t->p, name)));
        cJSON_AddItemToObject(one, "value", pane_number(stream_reduction(t->eval, k)));
        cJSON_AddItemToArray(reductions, one);
    }
    cJSON_AddItemToObject(o, "factor", pane_number(stream_factor(t->eval)));
    cJSON_AddBoolToObject(o, "empty", stream_is_empty(t->eval, part));
    emits = cJSON_AddArrayToObject(o, "emits");
    for (int i = 0; i < row->emits.n; i++)
        cJSON_AddItemToArray(emits,
                             json_pair("name", cJSON_CreateString(row->emits.data[i].name), "value",
                                       pane_number(stream_emitted(t->eval, part, i))));
    return o;
}

static cJSON *tables(Steps *t, cJSON *o) {
    static const char *const kinds[] = {"max", "min", "sum"};
    cJSON *states = cJSON_AddArrayToObject(o, "states"),
          *shifts = cJSON_AddArrayToObject(o, "shifts");
    for (int i = 0; i < t->s->states.n; i++) {
        const StreamState *st = &t->s->states.data[i];
        const char *name = pass_state_name(t->s, i);
        cJSON *one =
            json_pair("name", cJSON_CreateString(name), "of", cJSON_CreateString(st->name));
        cJSON_AddStringToObject(one, "mathml", pane_name(t->p, name));
        cJSON_AddStringToObject(one, "kind", kinds[st->op - EX_ROWMAX]);
        cJSON_AddNumberToObject(one, "sweep", st->sweep);
        cJSON_AddItemToObject(one, "place", pane_span(t->p, st->span));
        cJSON_AddItemToArray(states, one);
    }
    for (int i = 0; i < t->s->shifts.n; i++) {
        const char *name = pass_shift_name(t->s, i);
        cJSON_AddItemToArray(shifts, json_pair("name", cJSON_CreateString(name), "mathml",
                                               cJSON_CreateString(pane_name(t->p, name))));
    }
    return o;
}

static cJSON *start(Steps *t, const StreamPart *part) {
    cJSON *o = json_pair("states", numbers(t, part->state, t->s->states.n), "acc",
                         numbers(t, part->acc, t->columns));
    add_shifts(t, o, part);
    return o;
}

// ---- parts of the keys

typedef struct Cut {
    int from, to;
    StreamPart part;
} Cut;

static cJSON *cut_result(Steps *t, const Cut *c, const StreamPart *merged) {
    StreamMoves a = stream_moves(t->eval), b = stream_moves(t->eval);
    bool empty = true;
    for (int j = c->from; j < c->to; j++) empty &= t->score[j] == -INFINITY;
    stream_merge(t->eval, 0, &c->part, merged, &a, &b);
    cJSON *o = json_pair("from", cJSON_CreateNumber(c->from), "to", cJSON_CreateNumber(c->to));
    cJSON_AddItemToObject(o, "states", numbers(t, c->part.state, t->s->states.n));
    cJSON_AddItemToObject(o, "acc", numbers(t, c->part.acc, t->columns));
    cJSON_AddItemToObject(o, "rescale", numbers(t, a.state, t->s->states.n));
    cJSON_AddItemToObject(o, "accRescale", pane_number(a.acc));
    cJSON_AddBoolToObject(o, "empty", empty);
    return o;
}

static void add_parts(Steps *t, cJSON *o) {
    cJSON *parts = cJSON_AddArrayToObject(o, "parts");
    if (t->s->nsweeps > 1) {
        cJSON_AddNullToObject(o, "merged");
        return;
    }
    Cut *cut = ARENA_ARRAY(t->p->arena, Cut, t->parts);
    StreamPart merged = stream_begin(t->eval);
    for (int i = 0; i < t->parts; i++) {
        cut[i].from = (int)((int64_t)t->keys * i / t->parts);
        cut[i].to = (int)((int64_t)t->keys * (i + 1) / t->parts);
        cut[i].part = stream_begin(t->eval);
        for (int from = cut[i].from, to; from < cut[i].to; from = to) {
            to = from + t->tile < cut[i].to ? from + t->tile : cut[i].to;
            stream_add(t->eval, 0, &t->all, from, to, &cut[i].part, NULL, NULL);
        }
        merged = stream_merge(t->eval, 0, &merged, &cut[i].part, NULL, NULL);
    }
    for (int i = 0; i < t->parts; i++) cJSON_AddItemToArray(parts, cut_result(t, &cut[i], &merged));
    cJSON *m = json_pair("states", numbers(t, merged.state, t->s->states.n), "acc",
                         numbers(t, merged.acc, t->columns));
    add_output(t, m, &merged);
    cJSON_AddItemToObject(o, "merged", m);
}

static void add_full(Steps *t, cJSON *o) {
    int n = t->p->variant->emits.n;
    double *emits = ARENA_ARRAY(t->p->arena, double, n + 1);
    for (int i = 0; i < n; i++) emits[i] = t->r.run.emits[i][pane_q_row(&t->r, t->row)];
    cJSON_AddItemToObject(
        o, "full", json_pair("o", numbers(t, t->full, t->columns), "emits", numbers(t, emits, n)));
}

// ---- the request

static bool read_request(Steps *t) {
    Pane *p = t->p;
    if (!pane_run(p, &t->r, 16)) return false;
    const int32_t *n = t->r.b.size;
    t->s = p->stream;
    t->keys = n[SIZE_SK];
    t->Dv = p->row->Dv;
    t->columns = t->Dv < MOST_COLUMNS ? t->Dv : MOST_COLUMNS;
    if (!row_is_plain(p->row))
        return pane_wrong(p, "this shows no row inputs, slices or clauses of q, k and v");
    if (t->keys > MOST_KEYS) return pane_wrong(p, "Sk is at most %d", MOST_KEYS);
    if (!n[SIZE_SQ]) return pane_wrong(p, "there is no row: Sq is 0");
    if (!pane_int(p, "row", 0, n[SIZE_SQ] - 1, n[SIZE_SQ] - 1, &t->row) ||
        !pane_int(p, "keys", 1, LARGEST_TILE, 4, &t->tile) ||
        !pane_int(p, "parts", 1, MOST_PARTS, 2, &t->parts))
        return false;
    int many = (t->keys + t->tile - 1) / t->tile * t->s->nsweeps;
    return many <= MOST_STEPS ||
           pane_wrong(p, "these are %d steps: at most %d; choose larger tiles", many, MOST_STEPS);
}

static cJSON *run(Steps *t) {
    Pane *p = t->p;
    const int32_t *n = t->r.b.size;
    size_t rows = (size_t)n[SIZE_B] * (size_t)n[SIZE_HQ] * (size_t)n[SIZE_SQ];
    t->r.run.o = ARENA_ARRAY(p->arena, double, rows *(size_t)t->Dv + 1);
    pane_evaluate(p, &t->r, t->row, t->row + 1);
    t->full = t->r.run.o + pane_q_row(&t->r, t->row) * (size_t)t->Dv;
    t->env = (ExEnv){.sym = symbol, .load = element, .ctx = t, .round = true};
    t->eval = stream_eval(p->arena, t->s, &t->env, t->Dv);
    t->score = ARENA_ARRAY(p->arena, double, t->keys + 1);
    t->o = ARENA_ARRAY(p->arena, double, t->Dv + 1);
    t->all = (StreamKeys){t->score, t->r.v + pane_k_row(&t->r, 0) * (size_t)t->Dv};
    make_scores(t);
    StreamPart part = stream_begin(t->eval);
    cJSON *o = json_pair("variant", cJSON_CreateString(p->variant->name), "row",
                         cJSON_CreateNumber(t->row));
    cJSON_AddNumberToObject(o, "keys", t->tile);
    cJSON_AddNumberToObject(o, "sweeps", t->s->nsweeps);
    cJSON_AddNumberToObject(o, "columns", t->columns);
    tables(t, o);
    cJSON_AddItemToObject(o, "start", start(t, &part));
    cJSON_AddItemToObject(o, "steps", steps(t, &part));
    cJSON_AddItemToObject(o, "end", end(t, &part));
    add_full(t, o);
    add_parts(t, o);
    cJSON_AddItemToObject(o, "drawn", pane_drawn(p, &t->r.b, t->r.read));
    return o;
}

cJSON *pane_steps(Service *s, const cJSON *params) {
    Pane p;
    Steps t = {.p = &p};
    bool good = pane_open(&p, s, params, PANE_DERIVED) && read_request(&t);
    return pane_close(&p, good ? run(&t) : NULL);
}
