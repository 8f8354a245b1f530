// chunk_eval.c: see chunk_eval.h and the head of chunk.h, which it follows word by word.
#include "tests/support/chunk_eval.h"

#include <math.h>
#include <string.h>

struct ChunkEval {
    Arena *arena;
    const Chunk *c;
    const ExEnv *outer;
    int C, D, Dv;
    ExEnv env;
    ExMemo plans;
    // of the clause that is evaluated
    int32_t t, column;
    double elem, sqq, sqk, sqv, o, sqo;
    // of the chunk, [C, ..]
    double *read[2], *write[2], *decay; // [D]; query and erase; exponents, -inf where it is 0
    double *value[2], *erased[2];       // numbers: of v and u, by write
    double *v, *bonus;                  // [Dv]; the sum of query bonus key
    double *x[2], *u;                   // [width]
    // of a read at one position
    double *fall; // [D]: exponent of G(p, j)
};

static ExValue symbol(void *ctx, const Ex *e) {
    const ChunkEval *x = ctx;
    switch ((int)e->sym) {
    case SYM_T_IDX: return (ExValue){.i = x->t};
    case SYM_D_IDX:
    case SYM_E_IDX: return (ExValue){.i = x->column};
    case SYM_Q:
    case SYM_K:
    case SYM_V: return (ExValue){.f = x->elem};
    case SYM_SQQ: return (ExValue){.f = x->sqq};
    case SYM_SQK: return (ExValue){.f = x->sqk};
    case SYM_SQV: return (ExValue){.f = x->sqv};
    case SYM_O: return (ExValue){.f = x->o};
    case SYM_SQO: return (ExValue){.f = x->sqo};
    default: return x->outer->sym(x->outer->ctx, e);
    }
}

static ExValue load(void *ctx, const Ex *e, const int32_t *index) {
    const ChunkEval *x = ctx;
    return x->outer->load(x->outer->ctx, e, index);
}

ChunkEval *chunk_eval(Arena *a, const Chunk *c, const ExEnv *outer, int C) {
    ChunkEval *x = ARENA_NEW(a, ChunkEval);
    int D = c->rec->D, Dv = c->rec->Dv, width = D > Dv ? D : Dv;
    *x = (ChunkEval){.arena = a, .c = c, .outer = outer, .C = C, .D = D, .Dv = Dv};
    x->env = (ExEnv){.sym = symbol, .load = load, .ctx = x};
    for (int i = 0; i < 2; i++) {
        x->read[i] = ARENA_ARRAY(a, double, C *D);
        x->write[i] = ARENA_ARRAY(a, double, C *D);
        x->value[i] = ARENA_ARRAY(a, double, C);
        x->erased[i] = ARENA_ARRAY(a, double, C);
        x->x[i] = ARENA_ARRAY(a, double, C *width);
    }
    x->decay = ARENA_ARRAY(a, double, C *D);
    x->v = ARENA_ARRAY(a, double, C *Dv);
    x->bonus = ARENA_ARRAY(a, double, C);
    x->u = ARENA_ARRAY(a, double, width);
    x->fall = ARENA_ARRAY(a, double, D);
    return x;
}

static double value(ChunkEval *x, const Ex *e) {
    if (!e) return 0;
    return ex_run(ex_planned(x->arena, &x->plans, e), &x->env).f;
}

// ---- the chunk's own: nothing of it needs the state

static double squares(const double *row, int n) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += row[i] * row[i];
    return sum;
}

static void elements(ChunkEval *x, const Ex *e, const double *from, int n, double *to) {
    for (x->column = 0; x->column < n; x->column++) {
        x->elem = from[x->column];
        to[x->column] = value(x, e);
    }
}

static void scale(double *row, double by, int n) {
    for (int i = 0; i < n; i++) row[i] *= by;
}

static double exponent(ChunkEval *x) {
    double l = value(x, x->c->decay);
    return l < CHUNK_ZERO ? -INFINITY : l;
}

// Row i of the chunk, at position t.
static void make_row(ChunkEval *x, const ChunkHead *head, int i) {
    const Chunk *c = x->c;
    int D = x->D, Dv = x->Dv;
    const double *q = head->q + (size_t)x->t * (size_t)D, *k = head->k + (size_t)x->t * (size_t)D;
    const double *v = head->v + (size_t)x->t * (size_t)Dv;
    x->sqq = squares(q, D), x->sqk = squares(k, D), x->sqv = squares(v, Dv);
    elements(x, c->query.elem, q, D, x->read[0] + i * D);
    scale(x->read[0] + i * D, value(x, c->query.number), D);
    if (c->erase.elem) {
        elements(x, c->erase.elem, k, D, x->read[1] + i * D);
        scale(x->read[1] + i * D, value(x, c->erase.number), D);
    }
    for (int w = 0; w < c->nwrites; w++) {
        elements(x, c->write[w].elem, k, D, x->write[w] + i * D);
        x->value[w][i] = value(x, c->write[w].value);
        x->erased[w][i] = value(x, c->write[w].erased);
    }
    elements(x, c->value, v, Dv, x->v + i * Dv);
    x->bonus[i] = 0;
    for (x->column = 0; x->column < D; x->column++) {
        int at = i * D + x->column;
        x->decay[at] = c->decay ? exponent(x) : 0;
        x->bonus[i] += x->read[0][at] * value(x, c->bonus) * x->write[0][at];
    }
}

// ---- scores

static bool all_gone(const ChunkEval *x) {
    for (int d = 0; d < x->D; d++)
        if (x->fall[d] != -INFINITY) return false;
    return true;
}

static void pass(ChunkEval *x, int j) {
    for (int d = 0; d < x->D; d++) x->fall[d] += x->decay[j * x->D + d];
}

// to += <read of row t, what was written before the chunk and in it>. `rows` of it are there.
static void read_state(ChunkEval *x, const ChunkRead *r, const double *read, int t,
                       const double *state, double *to, int width) {
    const double *row = read + t * x->D;
    memset(x->fall, 0, sizeof *x->fall * (size_t)x->D);
    if (r->decayed) pass(x, t);
    for (int j = r->before ? t - 1 : t; j >= 0 && !all_gone(x); pass(x, j--))
        for (int w = 0; w < x->c->nwrites; w++) {
            double score = 0;
            for (int d = 0; d < x->D; d++)
                if (x->fall[d] != -INFINITY)
                    score += row[d] * exp2(x->fall[d]) * x->write[w][j * x->D + d];
            for (int e = 0; e < width; e++) to[e] += score * x->x[w][j * width + e];
        }
    for (int d = 0; d < x->D; d++)
        for (int e = 0; e < width && x->fall[d] != -INFINITY; e++)
            to[e] += row[d] * exp2(x->fall[d]) * state[d * width + e];
}

// The state behind n rows.
static void move_state(ChunkEval *x, int n, double *state, int width) {
    memset(x->fall, 0, sizeof *x->fall * (size_t)x->D);
    double *next = ARENA_ARRAY(x->arena, double, x->D *width);
    for (int j = n - 1; j >= 0; pass(x, j--))
        for (int w = 0; w < x->c->nwrites; w++)
            for (int d = 0; d < x->D; d++)
                for (int e = 0; e < width && x->fall[d] != -INFINITY; e++)
                    next[d * width + e] +=
                        x->write[w][j * x->D + d] * exp2(x->fall[d]) * x->x[w][j * width + e];
    for (int d = 0; d < x->D; d++)
        for (int e = 0; e < width; e++) {
            double *s = &state[d * width + e];
            *s = next[d * width + e] + (x->fall[d] == -INFINITY ? 0 : exp2(x->fall[d]) * *s);
        }
}

// ---- a chunk

static void put_output(ChunkEval *x, double *o) {
    x->sqo = squares(o, x->Dv);
    for (x->column = 0; x->column < x->Dv; x->column++) {
        x->o = o[x->column];
        o[x->column] = value(x, x->c->rec->output);
    }
}

// Position t, row i: what it writes, and reads into o. Without values: those are 0.
static void step(ChunkEval *x, int i, bool values, const double *state, double *o, int width) {
    const Chunk *c = x->c;
    memset(x->u, 0, sizeof *x->u * (size_t)width);
    if (c->erase.elem) read_state(x, &c->erase, x->read[1], i, state, x->u, width);
    for (int w = 0; w < c->nwrites; w++)
        for (int e = 0; e < width; e++) {
            double *to = &x->x[w][i * width + e];
            *to = c->write[w].erased ? x->erased[w][i] * x->u[e] : 0;
            if (values && c->write[w].value) *to += x->value[w][i] * x->v[i * x->Dv + e];
        }
    if (!o) return;
    memset(o, 0, sizeof *o * (size_t)width);
    read_state(x, &c->query, x->read[0], i, state, o, width);
    for (int e = 0; c->bonus && e < width; e++)
        o[e] += x->bonus[i] * x->value[0][i] * x->v[i * x->Dv + e];
    put_output(x, o);
}

static void run(ChunkEval *x, const ChunkHead *head, int from, int to, bool values, double *state,
                int width) {
    for (int begin = from; begin < to; begin += x->C) {
        int n = to - begin < x->C ? to - begin : x->C;
        for (int i = 0; i < n; i++) {
            x->t = begin + i;
            make_row(x, head, i);
            double *o = values && head->o ? head->o + (size_t)x->t * (size_t)x->Dv : NULL;
            step(x, i, values, state, o, width);
        }
        move_state(x, n, state, width);
    }
}

void chunk_run(ChunkEval *x, const ChunkHead *head, int from, int to, double *state) {
    run(x, head, from, to, true, state, x->Dv);
}

// ---- parts of the positions

ChunkPart chunk_part(ChunkEval *x, const ChunkHead *head, int from, int to) {
    ChunkPart p = {ARENA_ARRAY(x->arena, double, x->D * x->D),
                   ARENA_ARRAY(x->arena, double, x->D * x->Dv)};
    ChunkHead silent = *head;
    silent.o = NULL;
    for (int d = 0; d < x->D; d++) p.phi[d * x->D + d] = 1;
    run(x, &silent, from, to, true, p.psi, x->Dv);
    run(x, &silent, from, to, false, p.phi, x->D);
    return p;
}

// a b + c; 0 in a forgets what is infinite in b.
static double *moved(const ChunkEval *x, const double *a, const double *b, const double *c,
                     int width) {
    double *r = ARENA_ARRAY(x->arena, double, x->D *width);
    for (int i = 0; i < x->D; i++)
        for (int e = 0; e < width; e++) {
            double sum = c ? c[i * width + e] : 0;
            for (int d = 0; d < x->D; d++)
                if (a[i * x->D + d] != 0) sum += a[i * x->D + d] * b[d * width + e];
            r[i * width + e] = sum;
        }
    return r;
}

ChunkPart chunk_merge(ChunkEval *x, const ChunkPart *p, const ChunkPart *q) {
    return (ChunkPart){moved(x, q->phi, p->phi, NULL, x->D),
                       moved(x, q->phi, p->psi, q->psi, x->Dv)};
}

void chunk_apply(ChunkEval *x, const ChunkPart *p, double *state) {
    double *next = moved(x, p->phi, state, p->psi, x->Dv);
    memcpy(state, next, sizeof *state * (size_t)x->D * (size_t)x->Dv);
}
