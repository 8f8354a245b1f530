// recur_steps.c: a recurrence position after position, as decoding asks for, as a kernel without products.
//
// In: a chunked form. Out: a kernel in which a point of the grid has a head and some columns of v. It carries its part of the
// state in registers, from position to position (axis T, which no value has), and goes over it twice (ir/chunk.h):
//
//     %u[E] = sum over D of erase S       x_i[E] = value_i v + erased_i u      only with erase
//     %S1[D, E] = decay S + sum of write_i x_i,  o[E] = sum over D of query S1
//
// All is f32: recur.c makes clauses, numbers and elements so where T and U are no axes. A read of S_{t-1} (a query with a
// bonus, what is erased) is of S, or of decay S where the read is decayed.
#include "passes/tile/recur.h"

typedef struct Step {
    Recur *r;
    TileValue *state, *decay; // decay: of channels, or one number; NULL: it is 1
} Step;

// What all channels share, or each has. A decay that counts as 0 is 0.
static TileValue *decay_of(Recur *r) {
    if (!r->c->decay) return NULL;
    TileOp *map = recur_open(r, r->c->channel ? r->D : -1, -1, -1);
    const Ex *l = recur_clause(r, map, ALONG_T, r->c->decay);
    const Ex *gone = ex_2(r->x, EX_LT, l, recur_number(r, CHUNK_ZERO));
    return recur_out(r, map, "g",
                     ex_select(r->x, gone, recur_number(r, 0), ex_1(r->x, EX_EXP2, l)));
}

// An element of the state, as it comes to the position, or decayed. A decay of 0 forgets also what is infinite.
static const Ex *state_in(const Step *s, TileOp *map, bool decayed) {
    Recur *r = s->r;
    const Ex *e = recur_in(r, map, s->state);
    if (!decayed || !s->decay) return e;
    const Ex *g = recur_in(r, map, s->decay), *none = recur_number(r, 0);
    return ex_select(r->x, ex_2(r->x, EX_EQ, g, none), none, ex_2(r->x, EX_MUL, e, g));
}

static bool reads_decayed(const ChunkRead *read) { return !read->before || read->decayed; }

// u: what erase reads, times its number.
static TileValue *erased(const Step *s) {
    Recur *r = s->r;
    const ChunkRead *read = &r->c->erase;
    TileValue *elem = recur_elements(r, "e", read->elem, ALONG_T, r->D);
    Number number = recur_row_number(r, "ner", read->number, ALONG_T);
    TileOp *map = recur_open(r, r->D, r->E, -1);
    const Ex *pair = recur_times(r, recur_in(r, map, elem), state_in(s, map, reads_decayed(read)));
    TileValue *u = recur_reduce(r, map, "u", EX_ROWSUM, r->D, pair);
    if (!number.v && !number.constant) return u;
    map = recur_open(r, r->E, -1, -1);
    return recur_out(r, map, "u",
                     recur_times(r, recur_in(r, map, u), recur_factor(r, map, number)));
}

// x of each write: numbers times v and u. A write alone has both.
static void make_writes(const Step *s, Write *w) {
    Recur *r = s->r;
    const Chunk *c = r->c;
    bool one = c->nwrites == 1;
    TileValue *v = recur_elements(r, "ve", c->value, ALONG_T, r->E);
    TileValue *u = c->erase.elem ? erased(s) : NULL;
    for (int i = 0; i < c->nwrites; i++) {
        bool of_v = !i, of_u = u && (i || one);
        w[i] = (Write){.elem = recur_elements(r, i ? "w" : "ke", c->write[i].elem, ALONG_T, r->D)};
        Number value = {NULL, NULL}, erase = {NULL, NULL};
        if (of_v) value = recur_row_number(r, "nv", c->write[i].value, ALONG_T);
        if (of_u) erase = recur_row_number(r, "nu", c->write[i].erased, ALONG_T);
        TileOp *map = recur_open(r, r->E, -1, -1);
        const Ex *from_v =
            of_v ? recur_times(r, recur_in(r, map, v), recur_factor(r, map, value)) : NULL;
        const Ex *from_u =
            of_u ? recur_times(r, recur_in(r, map, u), recur_factor(r, map, erase)) : NULL;
        w[i].x = recur_out(r, map, "x",
                           !from_u   ? from_v
                           : !from_v ? from_u
                                     : ex_2(r->x, EX_ADD, from_v, from_u));
    }
}

// The state behind the position, and what the query reads.
static TileValue *update(const Step *s, const Write *w, const Read *query, TileValue **o) {
    Recur *r = s->r;
    TileOp *map = recur_open(r, r->D, r->E, -1);
    const Ex *after = state_in(s, map, true);
    for (int i = 0; i < r->c->nwrites; i++)
        after = ex_2(r->x, EX_ADD, after,
                     recur_times(r, recur_in(r, map, w[i].elem), recur_in(r, map, w[i].x)));
    const Ex *read = query->is->before ? state_in(s, map, reads_decayed(query->is)) : after;
    TileValue *state = recur_out(r, map, "S", after);
    *o = recur_reduce(r, map, "o", EX_ROWSUM, r->D,
                      recur_times(r, recur_in(r, map, query->elem), read));
    return state;
}

static TileValue *step(void *ctx, TileValue *state) {
    Recur *r = ctx;
    Write w[2];
    TileValue *o;
    Step s = {.r = r, .state = state};
    recur_load_rows(r);
    r->raw_k[ALONG_T] = r->raw_k[ALONG_U], r->norm_k[ALONG_T] = r->norm_k[ALONG_U];
    s.decay = decay_of(r);
    make_writes(&s, w);
    Read query = {&r->c->query, recur_elements(r, "qe", r->c->query.elem, ALONG_T, r->D),
                  recur_row_number(r, "nq", r->c->query.number, ALONG_T)};
    TileValue *after = update(&s, w, &query, &o);
    recur_store(r, r->o, recur_finish(r, recur_aggregate(r, &query, o)), r->T);
    return after;
}

void recur_steps(Recur *r) {
    recur_kernel(r, "steps", PURPOSE_STEPS);
    int T = r->T;
    r->k->axes[T].extent = r->k->axes[r->U].extent = 1;
    TileValue *first = recur_first(r, "S", r->state0);
    r->position = ex_sym(r->x, SYM_TILE, T, EX_I32);
    r->T = r->U = -1;
    const Ex *all = recur_size(r, RSIZE_S), *index = ex_symbol(r->x, SYM_STEP);
    recur_store(r, r->state, recur_loop(r, "S", T, first, all, index, step, r), r->D);
}
