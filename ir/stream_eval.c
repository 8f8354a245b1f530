// stream_eval.c: see stream_eval.h and the head of stream.h, which it follows word by word.
#include "stream_eval.h"

#include <assert.h>
#include <math.h>
#include <string.h>

struct StreamEval {
    Arena *arena;
    const Stream *s;
    const ExEnv *row;
    int Dv;
    ExEnv env;
    ExMemo plans;
    double score, o, sqo, rise[STREAM_MAX_BASES];
    int32_t key, column;
    const double *state;
    double *shift, *r;
};

static ExValue symbol(void *ctx, const Ex *e) {
    const StreamEval *x = ctx;
    ExValue v = {.f = 0};
    switch ((int)e->sym) {
    case SYM_S: v.f = x->score; break;
    case SYM_STATE: v.f = x->state[e->index]; break;
    case SYM_SHIFT: v.f = x->shift[e->index]; break;
    case SYM_RISE: v.f = x->rise[e->index]; break;
    case SYM_R: v.f = x->r[e->index]; break;
    case SYM_O: v.f = x->o; break;
    case SYM_SQO: v.f = x->sqo; break;
    case SYM_KV_IDX: v.i = x->key; break;
    case SYM_D_IDX: v.i = x->column; break;
    default: return x->row->sym(x->row->ctx, e);
    }
    return v;
}

static ExValue element(void *ctx, const Ex *e, const int32_t *index) {
    const StreamEval *x = ctx;
    return x->row->load(x->row->ctx, e, index);
}

StreamEval *stream_eval(Arena *a, const Stream *s, const ExEnv *row, int Dv) {
    StreamEval *x = ARENA_NEW(a, StreamEval);
    *x = (StreamEval){.arena = a, .s = s, .row = row, .Dv = Dv};
    x->env = (ExEnv){.sym = symbol, .load = element, .ctx = x, .round = row->round};
    x->shift = ARENA_ARRAY(a, double, s->shifts.n + 1);
    x->r = ARENA_ARRAY(a, double, s->finished.n + 1);
    return x;
}

static ExValue value(StreamEval *x, const Ex *e) {
    return ex_run(ex_planned(x->arena, &x->plans, e), &x->env);
}

static double at_key(StreamEval *x, const Ex *e, const StreamKeys *keys, int j) {
    x->key = j;
    x->score = keys->s[j];
    return value(x, e).f;
}

static double reduce(ExOp op, double a, double b) {
    return op == EX_ROWMAX ? fmax(a, b) : op == EX_ROWMIN ? fmin(a, b) : a + b;
}

StreamPart stream_begin(const StreamEval *x) {
    StreamPart p = {ARENA_ARRAY(x->arena, double, x->s->states.n + 1),
                    ARENA_ARRAY(x->arena, double, x->Dv)};
    for (int i = 0; i < x->s->states.n; i++) p.state[i] = ex_identity(x->s->states.data[i].op);
    return p;
}

StreamPart stream_copy(const StreamEval *x, const StreamPart *p) {
    StreamPart q = stream_begin(x);
    memcpy(q.state, p->state, sizeof *q.state * (size_t)x->s->states.n);
    memcpy(q.acc, p->acc, sizeof *q.acc * (size_t)x->Dv);
    return q;
}

StreamMoves stream_moves(const StreamEval *x) {
    return (StreamMoves){ARENA_ARRAY(x->arena, double, x->s->states.n + 1), 1};
}

// ---- what carried sums are multiplied by when the states become `now`

static double shift_of(StreamEval *x, int shift, const double *state) {
    x->state = state;
    return value(x, x->s->shifts.data[shift]).f;
}

static double safe(double raw) { return raw == INFINITY ? 0 : raw; }

static double rescale(StreamEval *x, int shift, const double *was, const double *now) {
    if (shift < 0) return 1;
    double old = shift_of(x, shift, was), new = safe(shift_of(x, shift, now));
    x->shift[shift] = new;
    const Ex *unit = x->s->units.data[shift];
    if (old == INFINITY) return 0;
    if (unit && ex_uses(unit, SYM_SHIFT, shift)) {
        double now_in = value(x, unit).f;
        x->shift[shift] = old;
        double was_in = value(x, unit).f;
        x->shift[shift] = new;
        if (now_in != was_in) return 0;
        new *= now_in, old *= was_in;
        return x->env.round ? exp2((double)(float)new - (double)(float)old) : exp2(new - old);
    }
    return exp2((new - old) * (unit ? value(x, unit).f : 1));
}

static double ratio(StreamEval *x, int scale, const double *was, const double *now) {
    if (scale < 0) return 1;
    const StreamScale *c = &x->s->scales.data[scale];
    bool begun = true, same = true;
    for (int i = 0; i < c->n; i++) {
        x->state = was;
        double old = value(x, c->base[i]).f;
        x->state = now;
        double new = value(x, c->base[i]).f;
        x->rise[i] = new / old;
        begun &= old > 0;
        same &= old == new;
    }
    return same ? 1 : begun ? value(x, c->ratio).f : 0;
}

static double moved(StreamEval *x, int shift, int scale, const double *was, const double *now) {
    double by = ratio(x, scale, was, now);
    by *= rescale(x, shift, was, now);
    x->state = now;
    return by;
}

static bool is_sum(const StreamState *st) { return st->op == EX_ROWSUM; }

// ---- tiles

static void add_extrema(StreamEval *x, int sweep, const StreamKeys *keys, int from, int to,
                        StreamPart *p) {
    for (int i = 0; i < x->s->states.n; i++) {
        const StreamState *st = &x->s->states.data[i];
        for (int j = from; j < to && st->sweep == sweep && !is_sum(st); j++)
            p->state[i] = reduce(st->op, p->state[i], at_key(x, st->elem, keys, j));
    }
}

static void add_sums(StreamEval *x, int sweep, const StreamKeys *keys, int from, int to,
                     const double *was, StreamPart *p, StreamMoves *moves) {
    for (int i = 0; i < x->s->states.n; i++) {
        const StreamState *st = &x->s->states.data[i];
        if (moves) moves->state[i] = 1;
        if (st->sweep != sweep || !is_sum(st)) continue;
        double by = moved(x, st->shift, st->scale, was, p->state);
        if (moves) moves->state[i] = by;
        p->state[i] *= by;
        for (int j = from; j < to; j++) p->state[i] += at_key(x, st->elem, keys, j);
    }
}

void stream_add(StreamEval *x, int sweep, const StreamKeys *keys, int from, int to, StreamPart *p,
                StreamMoves *moves, double *elements) {
    const double *was = stream_copy(x, p).state;
    x->state = p->state;
    add_extrema(x, sweep, keys, from, to, p);
    add_sums(x, sweep, keys, from, to, was, p, moves);
    if (sweep < x->s->nsweeps - 1) return;
    double by = moved(x, x->s->shift, x->s->scale, was, p->state);
    if (moves) moves->acc = by;
    for (int d = 0; d < x->Dv; d++) p->acc[d] *= by;
    for (int j = from; j < to; j++) {
        double w = at_key(x, x->s->elem, keys, j);
        if (elements) elements[j - from] = w;
        if (keys->s[j] == -INFINITY) continue;
        for (int d = 0; d < x->Dv; d++)
            p->acc[d] += w * keys->v[(size_t)j * (size_t)x->Dv + (size_t)d];
    }
}

StreamPart stream_merge(StreamEval *x, int sweep, const StreamPart *p, const StreamPart *q,
                        StreamMoves *a, StreamMoves *b) {
    StreamPart now = stream_copy(x, p);
    for (int i = 0; i < x->s->states.n; i++) {
        const StreamState *st = &x->s->states.data[i];
        if (a) a->state[i] = b->state[i] = 1;
        if (st->sweep == sweep && !is_sum(st))
            now.state[i] = reduce(st->op, p->state[i], q->state[i]);
    }
    for (int i = 0; i < x->s->states.n; i++) {
        const StreamState *st = &x->s->states.data[i];
        if (st->sweep != sweep || !is_sum(st)) continue;
        double of_p = moved(x, st->shift, st->scale, p->state, now.state);
        double of_q = moved(x, st->shift, st->scale, q->state, now.state);
        if (a) a->state[i] = of_p, b->state[i] = of_q;
        now.state[i] = p->state[i] * of_p + q->state[i] * of_q;
    }
    double of_p = moved(x, x->s->shift, x->s->scale, p->state, now.state);
    double of_q = moved(x, x->s->shift, x->s->scale, q->state, now.state);
    if (a) a->acc = of_p, b->acc = of_q;
    for (int d = 0; d < x->Dv; d++) now.acc[d] = p->acc[d] * of_p + q->acc[d] * of_q;
    return now;
}

double stream_shift(StreamEval *x, int shift, const StreamPart *p) {
    return safe(shift_of(x, shift, p->state));
}

// ---- the end of the row

void stream_finish(StreamEval *x, const StreamPart *p) {
    x->state = p->state;
    for (int k = 0; k < x->s->finished.n; k++) x->r[k] = value(x, x->s->finished.data[k]).f;
}

double stream_reduction(const StreamEval *x, int k) { return x->r[k]; }

bool stream_is_empty(StreamEval *x, const StreamPart *p) {
    x->state = p->state;
    return x->s->empty && value(x, x->s->empty).i;
}

double stream_emitted(StreamEval *x, const StreamPart *p, int i) {
    x->state = p->state;
    double v = value(x, x->s->emits.data[i]).f;
    return isnan(v) && stream_is_empty(x, p) ? -INFINITY : v;
}

double stream_factor(StreamEval *x) { return x->s->factor ? value(x, x->s->factor).f : 1; }

double stream_scalar(StreamEval *x, const StreamPart *p, const Ex *scalar) {
    for (int i = 0; i < x->s->shifts.n; i++) x->shift[i] = stream_shift(x, i, p);
    x->state = p->state;
    return value(x, scalar).f;
}

void stream_aggregate(StreamEval *x, const StreamPart *p, double *o) {
    double by = stream_factor(x);
    bool empty = stream_is_empty(x, p);
    for (int d = 0; d < x->Dv; d++) o[d] = empty ? 0 : x->s->factor ? p->acc[d] * by : p->acc[d];
}

void stream_output(StreamEval *x, const StreamPart *p, double *o) {
    stream_aggregate(x, p, o);
    x->sqo = 0;
    for (int d = 0; d < x->Dv; d++) x->sqo += o[d] * o[d];
    for (x->column = 0; x->column < x->Dv; x->column++) {
        x->o = o[x->column];
        o[x->column] = value(x, x->s->row->output).f;
    }
}
