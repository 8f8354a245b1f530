// recur_back.c: the backward of a recurrence's chunked form as a tile program (ir/chunk.h has the mathematics).
//
// In: the derived backward of a chunked form. Out: a program of phase bwd, algorithm level, of three kernels:
//
//     states      grid b, h, E:  goes through the chunks as the forward does, and leaves the state before each, what erase has solved,
//                                and, where there is an `output`, the gradient before it
//     adjoint     grid b, h, E:  from the last chunk to the first, with the gradient of the state, which it leaves for each chunk:
//         %dy[U, E] = p' do + w F1;  %dx[T, E] = (I - N')^-1 dy;  F = F * exp2(L_end) + q' (do * exp2(L)) + e' (c dx * exp2(L))
//     gradients   grid b, h, T:  of one chunk, all else: p = (do x') * exp2(L - L_j);  z[T, D] = p w + do S';  dw[U, D] = p' q + x F'
//
// Rows of the gradients' blocks are positions (PassOptions.by_positions), so that sums over channels are a warp's and its neighbour's, or
// channels, where the decays are channels' or products are not of 16 bits.
//
// States and gradients of states lie in workspace in the element type, one for each chunk. Heads that share q, k or v add up in
// sums of f32, which a last kernel converts; other launches have a plan without. The gradient of a decay is one of its exponent: what
// reads at or behind it, without what both wrote and read there. A decay of 0 has one of its own: of the pairs with that zero alone
// between them.
#include "passes/tile/recur_back.h"

static bool solves(const Back *b) { return b->r.c->erase.elem != NULL; }
static int last_write(const Back *b) { return b->r.c->nwrites - 1; }
static bool is_solved(const Back *b, int write) { return solves(b) && write == last_write(b); }

static bool has_output(const Back *b) {
    const Ex *o = b->r.rec->output;
    return !(o->op == EX_SYM && o->sym == SYM_O);
}

// ---- small things

static Number product_of(Recur *r, const char *name, Number a, Number b) {
    if (!a.v && !b.v) return (Number){NULL, recur_times(r, a.constant, b.constant)};
    TileOp *map = recur_open(r, r->T, -1, -1);
    const Ex *e = recur_times(r, recur_factor(r, map, a), recur_factor(r, map, b));
    return (Number){recur_out(r, map, name, e), NULL};
}

// v * n, as an operand of products.
static TileValue *scaled(Recur *r, const char *name, TileValue *v, Number n) {
    if (!n.v && !n.constant) return recur_operand(r, name, v);
    TileOp *map = recur_open(r, v->axis[0], v->axis[1], -1);
    return recur_narrow(r, map, name, recur_times(r, recur_in(r, map, v), recur_factor(r, map, n)));
}

// ---- tensors of chunks

static TileOp *at_chunk(Back *b, TileKind kind, int tensor) {
    Recur *r = &b->r;
    TileOp *op = tile_op(r->p, r->k, r->block, kind, r->rec->span);
    op->tensor = tensor;
    op->coord[0] = (TileCoord){.axis = -1, .at = ex_symbol(r->x, SYM_B)};
    const Ex *h = ex_symbol(r->x, SYM_H), *tile = recur_tile_of(r, r->T);
    int n = 1, axes[2] = {r->D, r->E};
    if (b->by_positions) { // as the products that read it want it: a matrix of its own, of rows of channels
        tile = ex_2(r->x, EX_ADD, ex_2(r->x, EX_MUL, h, recur_size(r, b->chunks)), tile);
        axes[0] = r->E, axes[1] = r->D;
    } else {
        op->coord[n++] = (TileCoord){.axis = -1, .at = h};
    }
    op->coord[n++] = (TileCoord){.axis = -1, .at = tile};
    for (int i = 0; i < 2; i++)
        op->coord[n++] = (TileCoord){.axis = axes[i], .at = recur_tile_of(r, axes[i])};
    return op;
}

static void leave(Back *b, int tensor, TileValue *v) {
    tile_arg(b->r.p, at_chunk(b, TILE_STORE, tensor), v);
}

static TileValue *left(Back *b, const char *name, int tensor) {
    Recur *r = &b->r;
    uint8_t axes[2] = {(uint8_t)r->D, (uint8_t)r->E};
    return tile_result(r->p, r->k, at_chunk(b, TILE_LOAD, tensor), name,
                       r->p->tensors.data[tensor].dtype, axes, 2);
}

// ---- kernel: the states

// The gradient of o before `output`, from the one that comes.
static void before_output(Back *b, TileValue *o) {
    Recur *r = &b->r;
    Pieces g = {.o = o};
    TileValue *squares = NULL;
    g.of[PIECE_OUTPUT] = recur_load(r, "do", b->grad_o, RSIZE_H, r->T, r->E);
    if (recur_uses(r->rec->output, SYM_SQO)) {
        g.norm_o = recur_norm(r, "no", o, ALONG_T, r->E);
        squares = recur_slopes(b, "sq", &g, r->E, ex_symbol(r->x, SYM_SQO));
    }
    if (squares) squares = recur_summed(r, squares, r->E);
    if (!b->part) recur_add_grads(b, &g);
    TileOp *map = recur_open(r, r->T, r->E, -1);
    const Ex *e = recur_sum_of_slopes(b, map, &g, r->E, ex_symbol(r->x, SYM_O));
    if (squares) {
        const Ex *twice = ex_2(r->x, EX_MUL, recur_in(r, map, squares), recur_number(r, 2));
        e = recur_add(r, e, recur_times(r, recur_in(r, map, o), twice));
    }
    if (!e) e = recur_number(r, 0);
    recur_store(r, b->dout, recur_narrow(r, map, "dout", e), r->T);
}

static TileValue *states_chunk(void *ctx, TileValue *state) {
    Back *b = ctx;
    Recur *r = &b->r;
    Write w[2];
    recur_make_decays(r);
    recur_load_rows(r);
    TileValue *s = recur_operand(r, "s", state);
    if (!b->part) leave(b, b->states, s);
    recur_make_writes(r, w, s);
    if (solves(b) && !b->part) recur_store(r, b->solved, w[last_write(b)].x, r->U);
    if (has_output(b)) before_output(b, recur_output(r, w, s));
    return recur_new_state(r, w, state);
}

// ---- what both directions share

// Numbers and elements of the reads and of the writes. all: k and v along both axes.
static Reads load_reads(Back *b, Write *w, bool all) {
    Recur *r = &b->r;
    const Chunk *c = r->c;
    Reads reads = {.query = {NULL, NULL, {NULL, NULL}}};
    recur_make_decays(r);
    r->raw_q = recur_load(r, "q", r->q, RSIZE_HQ, r->T, r->D);
    r->raw_k[ALONG_U] = recur_load(r, "k", r->key, RSIZE_HK, r->U, r->D);
    r->raw_k[ALONG_T] = recur_beside(r, "kt", r->raw_k[ALONG_U], r->U, r->T);
    r->norm_q = recur_norm(r, "nq", r->raw_q, ALONG_T, r->D);
    r->norm_k[ALONG_U] = recur_norm(r, "nk", r->raw_k[ALONG_U], ALONG_U, r->D);
    r->norm_k[ALONG_T] = recur_beside(r, "nkt", r->norm_k[ALONG_U], r->U, r->T);
    if (all && b->by_positions && is_solved(b, 0)) { // nothing is multiplied with it
        r->raw_v[ALONG_T] = recur_load(r, "v", r->v, RSIZE_HV, r->T, r->E);
        r->raw_v[ALONG_T]->home = HOME_FRAGMENT;
        r->norm_v[ALONG_T] = recur_norm(r, "nvt", r->raw_v[ALONG_T], ALONG_T, r->E);
    } else if (all) {
        r->raw_v[ALONG_U] = recur_load(r, "v", r->v, RSIZE_HV, r->U, r->E);
        r->raw_v[ALONG_T] = recur_beside(r, "vt", r->raw_v[ALONG_U], r->U, r->T);
        r->norm_v[ALONG_U] = recur_norm(r, "nv", r->raw_v[ALONG_U], ALONG_U, r->E);
        r->norm_v[ALONG_T] = recur_beside(r, "nvt", r->norm_v[ALONG_U], r->U, r->T);
    }
    reads.query = (Read){&c->query, recur_elements(r, "qe", c->query.elem, ALONG_T, r->D),
                         recur_row_number(r, "nq", c->query.number, ALONG_T)};
    for (int i = 0; i < c->nwrites; i++)
        w[i] = (Write){.elem = recur_elements(r, i ? "w" : "ke", c->write[i].elem, ALONG_U, r->D)};
    if (!solves(b)) return reads;
    reads.erase = (Read){&c->erase, recur_elements(r, "e", c->erase.elem, ALONG_T, r->D),
                         recur_row_number(r, "ner", c->erase.number, ALONG_T)};
    Number erased = recur_row_number(r, "nu", c->write[last_write(b)].erased, ALONG_T);
    reads.erased = product_of(r, "ne", reads.erase.number, erased);
    return reads;
}

// ---- kernel: the gradients of the states

// dy of a write, [U, E]: sum over what reads it of <read, write>' g, and what the state behind the chunk gives.
static TileValue *comes_to(Recur *r, const Write *w, TileValue *f) {
    Sum end = r->decay.end;
    TileValue *elem = w->elem, *zero = r->decay.zero_end;
    if (r->c->channel) {
        TileOp *map = recur_open(r, r->U, r->D, -1);
        elem = recur_narrow(
            r, map, "wd",
            recur_times(r, recur_in(r, map, elem), recur_from_write(r, map, end, zero)));
    }
    TileValue *y = recur_product(r, "dy", elem, f, NULL, r->U, r->E);
    if (r->c->channel || !r->c->decay) return y;
    TileOp *map = recur_open(r, r->U, r->E, -1);
    return recur_out(r, map, "dy",
                     recur_times(r, recur_in(r, map, y), recur_from_write(r, map, end, zero)));
}

static TileValue *read_by(Recur *r, const char *name, const Read *read, const Write *w,
                          TileValue *g, TileValue *sum) {
    Number none = {NULL, NULL};
    TileValue *a = recur_scores(r, name, read, w, none);
    return recur_product(r, "dy", a, g, sum, r->U, r->E);
}

// F += read' g, decayed from the chunk's start.
static TileValue *add_read(Recur *r, const Read *read, TileValue *g, TileValue *f) {
    Sum sum = recur_sum_of(r, read->is);
    TileValue *zero = recur_zero_of(r, read->is), *elem = read->elem;
    if (r->c->channel) {
        TileOp *map = recur_open(r, r->T, r->D, -1);
        elem =
            recur_narrow(r, map, "rd", recur_from_start(r, map, sum, zero, recur_in(r, map, elem)));
    } else if (r->c->decay) {
        TileOp *map = recur_open(r, r->T, r->E, -1);
        g = recur_narrow(r, map, "gd", recur_from_start(r, map, sum, zero, recur_in(r, map, g)));
    }
    return recur_product(r, "F", elem, recur_operand(r, "gd", g), f, r->D, r->E);
}

// parts: of the state alone.
static TileValue *adjoint(Back *b, TileValue *f1, bool parts) {
    Recur *r = &b->r;
    const Chunk *c = r->c;
    Write w[2];
    TileValue *dy[2] = {NULL, NULL};
    Reads reads = load_reads(b, w, false);
    TileValue *dout = recur_load(r, "do", b->dout, RSIZE_H, r->T, r->E);
    TileValue *f = recur_operand(r, "f", f1), *g = scaled(r, "g", dout, reads.query.number);
    if (!parts) leave(b, b->adjoints, f);
    for (int i = 0; i < c->nwrites; i++)
        dy[i] = read_by(r, "p", &reads.query, &w[i], g, comes_to(r, &w[i], f));
    TileValue *h = NULL;
    if (solves(b)) {
        int s = last_write(b);
        TileValue *inverse = recur_inverse(r, &reads.erase, &w[s], reads.erased);
        TileValue *dx =
            recur_product(r, "dx", inverse, recur_operand(r, "y", dy[s]), NULL, r->T, r->E);
        if (!parts) recur_store(r, b->dsolved, dx, r->T);
        h = scaled(r, "h", dx, reads.erased);
        if (s) dy[0] = read_by(r, "m", &reads.erase, &w[0], h, dy[0]);
    }
    if (!parts && !is_solved(b, 0)) recur_store(r, b->dx, dy[0], r->U);
    if (c->decay) f1 = recur_decayed_state(r, f1);
    f1 = add_read(r, &reads.query, g, f1);
    return h ? add_read(r, &reads.erase, h, f1) : f1;
}

static TileValue *adjoint_chunk(void *ctx, TileValue *f1) { return adjoint(ctx, f1, false); }

static TileValue *adjoint_part(void *ctx, TileValue *f1) { return adjoint(ctx, f1, true); }

// ---- kernel: the gradients

static const Ex *earlier(Recur *r, const ChunkRead *read) {
    return ex_2(r->x, read->before ? EX_LT : EX_LE, recur_pos(r, r->U), recur_pos(r, r->T));
}

// (g x') with the number of x; f32[T, U].
static TileValue *weights(Recur *r, const BackRead *read, const Write *w) {
    TileValue *a = recur_product(r, "da", read->g, w->x, NULL, r->T, r->U);
    TileOp *map = recur_open(r, r->T, r->U, -1);
    const Ex *e = recur_times(r, recur_in(r, map, a), recur_factor(r, map, w->number));
    return recur_out(r, map, "a", e);
}

// e by the decays between.
static const Ex *decayed(Recur *r, TileOp *map, const BackRead *read, const Ex *e) {
    const ChunkRead *is = read->is.is;
    return recur_times(r, e, recur_from_write(r, map, recur_sum_of(r, is), recur_zero_of(r, is)));
}

// A position with itself, which passes through no decay: f32[T, D], f32[U, D].
static void own_pairs(Recur *r, BackRead *read, const Write *w, TileValue *a, TileValue **dw) {
    TileOp *map = recur_open(r, r->T, r->U, -1);
    const Ex *own = ex_2(r->x, EX_EQ, recur_pos(r, r->T), recur_pos(r, r->U));
    TileValue *at = recur_reduce(r, map, "own", EX_ROWSUM, r->U,
                                 recur_where(r, own, recur_in(r, map, a))),
              *written = recur_beside(r, "wt", w->elem, r->U, r->T);
    map = recur_open(r, r->T, r->D, -1);
    const Ex *e = recur_times(r, recur_in(r, map, at), recur_in(r, map, written));
    read->z = recur_plus(r, "z", read->z, recur_out(r, map, "zo", e));
    map = recur_open(r, r->T, r->D, -1);
    e = recur_times(r, recur_in(r, map, at), recur_in(r, map, read->is.elem));
    e = recur_times(r, e, recur_factor(r, map, read->n));
    TileValue *to = recur_beside(r, "dwo", recur_out(r, map, "dwo", e), r->T, r->U);
    *dw = recur_plus(r, "dw", *dw, to);
}

// What a read and a write give each other's elements, where channels have decays of their own.
static void channel_pairs(Recur *r, BackRead *read, int i, const Write *w, TileValue *a,
                          TileValue **dw) {
    const Ex *before = ex_2(r->x, EX_LT, recur_pos(r, r->U), recur_pos(r, r->T));
    TileOp *map = recur_open(r, r->T, r->U, r->D);
    const Ex *e = recur_times(r, recur_in(r, map, a), recur_in(r, map, w->elem));
    e = recur_where(r, before, decayed(r, map, read, e));
    read->of_writes[i] = recur_reduce(r, map, "z", EX_ROWSUM, r->U, e);
    map = recur_open(r, r->T, r->U, r->D);
    e = recur_times(r, recur_in(r, map, a), recur_in(r, map, read->is.elem));
    e = decayed(r, map, read, recur_times(r, e, recur_factor(r, map, read->n)));
    read->to_writes[i] = recur_reduce(r, map, "dw", EX_ROWSUM, r->T, recur_where(r, before, e));
    read->z = recur_plus(r, "z", read->z, read->of_writes[i]);
    *dw = recur_plus(r, "dw", *dw, read->to_writes[i]);
    if (!read->is.is->before) own_pairs(r, read, w, a, dw);
}

static void row_pairs(Recur *r, BackRead *read, const Write *w, TileValue *a, TileValue **dw) {
    Number n = read->n;
    TileOp *map =
        recur_open(r, r->T, r->U, -1); // 0 where the write is behind, whose decays may be infinite
    const Ex *e = decayed(r, map, read, recur_in(r, map, a));
    e = recur_where(r, earlier(r, read->is.is), e);
    TileValue *p = recur_narrow(r, map, "p", e), *pn = p;
    if (n.v || n.constant)
        pn = recur_narrow(r, map, "pn", recur_times(r, e, recur_factor(r, map, n)));
    read->z = recur_product(r, "z", p, w->elem, read->z, r->T, r->D);
    *dw = recur_product(r, "dw", pn, read->is.elem, *dw, r->U, r->D);
}

// z of a read, from what comes to it.
static void back_read(Back *b, Chunked *x, BackRead *read) {
    Recur *r = &b->r;
    bool pairs = b->back->piece[PIECE_DECAY].n && !r->c->channel;
    for (int i = 0; i < r->c->nwrites; i++) {
        const Write *w = &x->w[i];
        read->a[i] = weights(r, read, w);
        if (pairs) read->pair[i] = recur_product(r, "rw", read->is.elem, w->elem, NULL, r->T, r->U);
        if (r->c->channel)
            channel_pairs(r, read, i, w, read->a[i], &x->dw[i]);
        else
            row_pairs(r, read, w, read->a[i], &x->dw[i]);
    }
    read->state = recur_product(r, "zs", read->g, x->s0, NULL, r->T, r->D);
    TileOp *map = recur_open(r, r->T, r->D, -1);
    const Ex *e = recur_from_start(r, map, recur_sum_of(r, read->is.is),
                                   recur_zero_of(r, read->is.is), recur_in(r, map, read->state));
    read->z = recur_out(r, map, "z", ex_2(r->x, EX_ADD, recur_in(r, map, read->z), e));
}

// What the state behind the chunk gives a write.
static void back_end(Recur *r, Chunked *x, int write) {
    const Write *w = &x->w[write];
    x->reach[write] = recur_product(r, "wf", w->x, x->f1, NULL, r->U, r->D);
    TileOp *map = recur_open(r, r->U, r->D, -1);
    const Ex *e =
        recur_times(r, recur_in(r, map, x->reach[write]), recur_factor(r, map, w->number));
    e = recur_times(r, e, recur_from_write(r, map, r->decay.end, r->decay.zero_end));
    x->dw[write] = recur_plus(r, "dw", x->dw[write], recur_out(r, map, "we", e));
}

// v * n, f32 along T.
static TileValue *with(Recur *r, const char *name, TileValue *v, Number n) {
    if (!n.v && !n.constant) return v;
    TileOp *map = recur_open(r, v->axis[0], v->rank > 1 ? v->axis[1] : -1, -1);
    return recur_out(r, map, name, recur_times(r, recur_in(r, map, v), recur_factor(r, map, n)));
}

// ---- all pieces

// What a bonus adds: o += (sum of query bonus key) value v, with the numbers of query and key outside.
static void back_bonus(Back *b, Chunked *x, Pieces *g, TileValue *v, Number value, Number query) {
    Recur *r = &b->r;
    const Chunk *c = r->c;
    Number none = {NULL, NULL}, both = product_of(r, "nqv", query, value);
    TileValue *key = recur_elements(r, "kb", c->write[0].elem, ALONG_T, r->D),
              *q = x->read[0].is.elem;
    TileValue *dov = recur_dot(r, "dov", x->read[0].g, v, none);
    TileOp *map = recur_open(r, r->T, r->D, -1);
    const Ex *clause = recur_clause(r, map, ALONG_T, c->bonus);
    const Ex *pair = recur_times(r, recur_in(r, map, q), recur_in(r, map, key));
    TileValue *sum = recur_reduce(r, map, "bq", EX_ROWSUM, r->D, recur_times(r, pair, clause));
    map = recur_open(r, r->T, -1, -1);
    const Ex *e = recur_times(r, recur_in(r, map, dov), recur_in(r, map, sum));
    TileValue *of_value = recur_out(r, map, "bv", recur_times(r, e, recur_factor(r, map, query)));
    g->of[PIECE_VALUE_N] = recur_plus(r, "dnv", g->of[PIECE_VALUE_N], of_value);
    TileValue *all = with(r, "bn", dov, both), *own = with(r, "bo", dov, value);
    map = recur_open(r, r->T, r->D, -1);
    clause = recur_clause(r, map, ALONG_T, c->bonus);
    const Ex *of_key = recur_times(r, recur_in(r, map, q), clause);
    TileValue *dk = recur_out(r, map, "bk", recur_times(r, recur_in(r, map, all), of_key));
    g->of[PIECE_WRITE] = recur_plus(r, "dke", g->of[PIECE_WRITE], dk);
    map = recur_open(r, r->T, r->D, -1);
    clause = recur_clause(r, map, ALONG_T, c->bonus);
    const Ex *of_query = recur_times(r, recur_in(r, map, key), clause);
    TileValue *dq = recur_out(r, map, "bq", recur_times(r, recur_in(r, map, own), of_query));
    x->read[0].z = recur_plus(r, "z", x->read[0].z, dq);
    map = recur_open(r, r->T, r->D, -1);
    pair = recur_times(r, recur_in(r, map, q), recur_in(r, map, key));
    g->of[PIECE_BONUS] = recur_out(r, map, "db", recur_times(r, pair, recur_in(r, map, all)));
    sum = with(r, "bs", sum, both);
    map = recur_open(r, r->T, r->E, -1);
    e = recur_times(r, recur_in(r, map, x->read[0].g), recur_in(r, map, sum));
    g->of[PIECE_VALUE] = recur_plus(r, "dv", g->of[PIECE_VALUE], recur_out(r, map, "dvb", e));
}

static Pieces pieces(Back *b, Chunked *x) {
    Recur *r = &b->r;
    const Chunk *c = r->c;
    Pieces g = {.o = NULL};
    Number none = {NULL, NULL}, value = recur_row_number(r, "nv", c->write[0].value, ALONG_T);
    TileValue *v = recur_elements(r, "vt", c->value, ALONG_T, r->E);
    TileValue *dx =
        is_solved(b, 0) ? x->read[1].g : recur_load(r, "dx", b->dx, RSIZE_H, r->T, r->E);
    if (b->back->piece[PIECE_DECAY].n) g.of[PIECE_DECAY] = recur_decay_piece(b, x);
    g.of[PIECE_VALUE_N] = recur_dot(r, "dnv", dx, v, none);
    g.of[PIECE_VALUE] = with(r, "dv", dx, value);
    for (int i = 0; i < c->nwrites; i++) g.of[PIECE_WRITE + i] = recur_along_t(r, x->dw[i]);
    if (c->bonus) back_bonus(b, x, &g, v, value, x->read[0].n);
    g.of[PIECE_QUERY] = with(r, "dqe", x->read[0].z, x->read[0].n);
    g.of[PIECE_QUERY_N] = recur_dot(r, "dnq", x->read[0].is.elem, x->read[0].z, none);
    if (!solves(b)) return g;
    Number erased = recur_row_number(r, "nu", c->write[last_write(b)].erased, ALONG_T);
    TileValue *e = recur_dot(r, "rze", x->read[1].is.elem, x->read[1].z, none);
    g.of[PIECE_ERASE] = with(r, "dee", x->read[1].z, x->read[1].n);
    g.of[PIECE_ERASE_N] = with(r, "dne", e, erased);
    g.of[PIECE_ERASED_N] = with(r, "dnu", e, x->read[1].is.number);
    return g;
}

// The gradient of q, k or v: what the pieces give its elements, and twice the element by that of its squared norm.
static void store_operand(Back *b, const Pieces *g, int which, ExSym element, ExSym square,
                          TileValue *raw, int columns) {
    Recur *r = &b->r;
    static const int heads[] = {RSIZE_HQ, RSIZE_HK, RSIZE_HV};
    const Ex *sq = ex_symbol(r->x, square);
    TileValue *of_row = recur_slopes(b, "sq", g, -1, sq),
              *of_columns = recur_slopes(b, "sq", g, columns, sq);
    if (of_columns) of_columns = recur_summed(r, of_columns, columns);
    TileValue *squares = recur_plus(r, "sq", of_row, of_columns);
    TileOp *map = recur_open(r, r->T, columns, -1);
    const Ex *e = recur_sum_of_slopes(b, map, g, columns, ex_symbol(r->x, element));
    if (squares) {
        const Ex *twice = ex_2(r->x, EX_MUL, recur_in(r, map, squares), recur_number(r, 2));
        e = recur_add(r, e, recur_times(r, recur_in(r, map, raw), twice));
    }
    TileValue *v = recur_out(r, map, "d", e ? e : recur_number(r, 0));
    TileOp *op = tile_op(r->p, r->k, r->block, TILE_STORE, r->rec->span);
    const Ex *h = ex_symbol(r->x, SYM_H);
    if (b->shared)
        h = ex_2(r->x, EX_DIV, ex_2(r->x, EX_MUL, h, recur_size(r, heads[which])),
                 recur_size(r, RSIZE_H));
    recur_set_coords(r, op, b->shared ? b->sums[which] : b->to[which], h, r->T, columns);
    op->add = b->shared;
    tile_arg(r->p, op, v);
}

static void load_written(Back *b, Chunked *x) {
    Recur *r = &b->r;
    for (int i = 0; i < r->c->nwrites; i++) {
        const ChunkWrite *w = &r->c->write[i];
        bool solved = is_solved(b, i);
        x->w[i].x = solved ? recur_load(r, "x", b->solved, RSIZE_H, r->U, r->E)
                           : recur_elements(r, "ve", r->c->value, ALONG_U, r->E);
        if (!solved || i)
            x->w[i].number =
                recur_row_number(r, i ? "nx" : "nw", i ? w->erased : w->value, ALONG_U);
    }
    x->s0 = left(b, "S0", b->states), x->f1 = left(b, "F1", b->adjoints);
}

static void build_gradients(Back *b, const char *name) {
    Recur *r = &b->r;
    Chunked x = {.s0 = NULL};
    recur_kernel(r, name, PURPOSE_ONE_CHUNK);
    TileKernel *k = r->k;
    k->axes[r->D].whole = b->by_positions, k->axes[r->E].whole = true;
    k->grid[2].axis = b->by_positions ? r->T : r->D;
    if (!b->by_positions)
        k->grid[k->ngrid++] = (TileGrid){.sym = SYM_TILE, .axis = r->T, .count = ex_i32(r->x, 1)};
    Reads reads = load_reads(b, x.w, true);
    load_written(b, &x);
    x.read[x.nreads++] = (BackRead){.is = reads.query, .n = reads.query.number};
    x.read[0].g = recur_load(r, "do", b->dout, RSIZE_H, r->T, r->E);
    if (solves(b)) {
        x.read[x.nreads++] = (BackRead){.is = reads.erase, .n = reads.erased};
        x.read[1].g = recur_load(r, "dx", b->dsolved, RSIZE_H, r->T, r->E);
    }
    for (int i = 0; i < x.nreads; i++) back_read(b, &x, &x.read[i]);
    for (int i = 0; i < r->c->nwrites; i++) back_end(r, &x, i);
    Pieces g = pieces(b, &x);
    store_operand(b, &g, 0, SYM_Q, SYM_SQQ, r->raw_q, r->D);
    store_operand(b, &g, 1, SYM_K, SYM_SQK, r->raw_k[ALONG_T], r->D);
    store_operand(b, &g, 2, SYM_V, SYM_SQV, r->raw_v[ALONG_T], r->E);
    recur_add_grads(b, &g);
    recur_load_first(k);
}

// ---- sums to the type of the result

static void build_convert(Back *b, int which) {
    static const char *const names[] = {"convert_q", "convert_k", "convert_v"};
    static const int heads[] = {RSIZE_HQ, RSIZE_HK, RSIZE_HV};
    Recur *r = &b->r;
    TileKernel *k = r->k = tile_kernel(
        r->p, arena_printf(r->arena, "%s_%s", r->rec->name, names[which]), PURPOSE_CONVERT);
    int columns = which < 2 ? r->rec->D : r->rec->Dv;
    r->T = tile_axis(k, "T", recur_size(r, RSIZE_S), false);
    r->D = tile_axis(k, which < 2 ? "D" : "E", ex_i32(r->x, columns), true);
    k->ngrid = 3;
    k->grid[0] = (TileGrid){.sym = SYM_B, .count = recur_size(r, RSIZE_B)};
    k->grid[1] = (TileGrid){.sym = SYM_H, .count = recur_size(r, heads[which])};
    k->grid[2] = (TileGrid){.sym = SYM_TILE, .axis = r->T, .count = ex_i32(r->x, 1)};
    k->mask = ex_bool(r->x, true);
    r->block = &k->body;
    TileValue *sum = recur_load(r, "sum", b->sums[which], RSIZE_H, r->T, r->D);
    TileOp *op = tile_op(r->p, k, r->block, TILE_STORE, r->rec->span);
    recur_set_coords(r, op, b->to[which], ex_symbol(r->x, SYM_H), r->T, r->D);
    tile_arg(r->p, op, sum);
}

// ---- the program

static int work(Back *b, const char *name, int index, Dtype t, int heads, int columns) {
    int i = recur_tensor(&b->r, name, TENSOR_WORK, t, heads, recur_size(&b->r, RSIZE_S), columns);
    b->r.p->tensors.data[i].index = index;
    return i;
}

static int work_of_chunks(Back *b, const char *name, int index) {
    Recur *r = &b->r;
    const Ex *D = ex_i32(r->x, r->rec->D), *Dv = ex_i32(r->x, r->rec->Dv);
    TileTensor t = {.name = name, .role = TENSOR_WORK, .index = index, .dtype = r->p->dtype};
    t.extent[t.rank++] = recur_size(r, RSIZE_B);
    if (!b->by_positions) t.extent[t.rank++] = recur_size(r, RSIZE_H);
    t.extent[t.rank++] = recur_size(r, b->by_positions ? b->all_chunks : b->chunks);
    t.extent[t.rank++] = b->by_positions ? Dv : D;
    t.extent[t.rank++] = b->by_positions ? D : Dv;
    return tile_tensor(r->p, t);
}

static void add_input_grads(Back *b) {
    Recur *r = &b->r;
    const RecProgram *rec = r->rec;
    b->grad = ARENA_ARRAY(r->arena, int, rec->inputs.n + 1);
    for (int i = 0; i < rec->inputs.n; i++) {
        const RowInput *in = &rec->inputs.data[i];
        TileTensor t = {.name = arena_printf(r->arena, "d%s", in->name),
                        .role = TENSOR_GRAD,
                        .index = i,
                        .dtype = DT_F32,
                        .rank = in->rank};
        for (int d = 0; d < in->rank; d++) t.extent[d] = in->extent[d];
        if (!in->rank) t.extent[t.rank++] = ex_i32(r->x, 1);
        b->grad[i] = in->grad ? tile_tensor(r->p, t) : -1;
    }
}

static void add_tensors(Back *b, Dtype t) {
    Recur *r = &b->r;
    const RecProgram *rec = r->rec;
    const Ex *S = recur_size(r, RSIZE_S), *D = ex_i32(r->x, rec->D);
    static const char *const names[] = {"dq", "dk", "dv"}, *const sums[] = {"sum_q", "sum_k",
                                                                            "sum_v"};
    static const TensorRole roles[] = {TENSOR_DQ, TENSOR_DK, TENSOR_DV};
    static const int heads[] = {RSIZE_HQ, RSIZE_HK, RSIZE_HV};
    int n = 0;
    recur_add_operands(r, t);
    recur_add_state0(r);
    b->grad_o = b->dout = recur_tensor(r, "do", TENSOR_DO, t, RSIZE_H, S, rec->Dv);
    b->dstate = recur_tensor(r, "dstate", TENSOR_DSTATE, DT_F32, RSIZE_H, D, rec->Dv);
    for (int i = 0; i < 3; i++)
        b->to[i] = b->sums[i] =
            recur_tensor(r, names[i], roles[i], t, heads[i], S, i < 2 ? rec->D : rec->Dv);
    add_input_grads(b);
    b->dstate0 = recur_tensor(r, "dstate0", TENSOR_DSTATE0, DT_F32, RSIZE_H, D, rec->Dv);
    if (has_output(b)) b->dout = work(b, "dout", n++, t, RSIZE_H, rec->Dv);
    b->states = work_of_chunks(b, "states", n++);
    b->adjoints = work_of_chunks(b, "adjoints", n++);
    if (solves(b)) b->solved = work(b, "solved", n++, t, RSIZE_H, rec->Dv);
    if (solves(b)) b->dsolved = work(b, "dsolved", n++, t, RSIZE_H, rec->Dv);
    if (!is_solved(b, 0)) b->dx = work(b, "dx", n++, t, RSIZE_H, rec->Dv);
    for (int i = 0; i < 3 && t != DT_F32; i++)
        b->sums[i] = work(b, sums[i], n++, DT_F32, heads[i], i < 2 ? rec->D : rec->Dv);
    b->works = n;
}

// Of a part: the gradient of o before `output` is the only workspace.
static void add_part_tensors(Back *b, Dtype t) {
    Recur *r = &b->r;
    const RecProgram *rec = r->rec;
    const Ex *S = recur_size(r, RSIZE_S), *D = ex_i32(r->x, rec->D);
    recur_add_operands(r, t);
    if (has_output(b)) recur_add_state0(r);
    b->grad_o = b->dout = recur_tensor(r, "do", TENSOR_DO, t, RSIZE_H, S, rec->Dv);
    b->dstate0 = recur_tensor(r, "dstate0", TENSOR_DSTATE0, DT_F32, RSIZE_H, D, rec->Dv);
    if (has_output(b)) b->dout = work(b, "dout", b->works++, t, RSIZE_H, rec->Dv);
}

static const Ex *same_heads(Recur *r) {
    static const int heads[] = {RSIZE_HQ, RSIZE_HK, RSIZE_HV};
    const Ex *e = NULL;
    for (int i = 0; i < 3; i++)
        e = recur_both(r, e, ex_2(r->x, EX_EQ, recur_size(r, heads[i]), recur_size(r, RSIZE_H)));
    return e;
}

typedef struct Run { // kernels that follow each other
    int from, to;
} Run;

// chains: those that go from chunk to chunk.
static void add_plan(Back *b, const Ex *when, Run before, Run chains, Run gradients, Run converts) {
    Recur *r = &b->r;
    TilePlan plan = {.when = when};
    Run runs[] = {before, chains, gradients, converts};
    for (int n = 0; n < 4; n++)
        for (int i = runs[n].from; i < runs[n].to; i++) VEC_PUSH(r->arena, &plan.kernels, i);
    VEC_PUSH(r->arena, &r->p->plans, plan);
}

static const Ex *from_last(Back *b) {
    Recur *r = &b->r;
    const Ex *last = ex_2(r->x, EX_SUB, recur_size(r, b->chunks), ex_i32(r->x, 1));
    return ex_2(r->x, EX_SUB, last, ex_symbol(r->x, SYM_STEP));
}

static void build_states(Back *b, const char *name) {
    Recur *r = &b->r;
    recur_kernel(r, name, PURPOSE_STATES);
    TileValue *first = recur_first(r, "S", r->state0);
    recur_chunks(r, "S", first, ex_symbol(r->x, SYM_STEP), states_chunk, b);
}

static Run build_chains(Back *b) {
    Recur *r = &b->r;
    Run run = {r->p->kernels.n, r->p->kernels.n + 2};
    build_states(b, "states");
    recur_kernel(r, "adjoint", PURPOSE_ADJOINT);
    TileValue *first = recur_first(r, "F", b->dstate);
    first = recur_chunks(r, "F", first, from_last(b), adjoint_chunk, b);
    recur_store(r, b->dstate0, first, r->D);
    return run;
}

// `dstate0`, what the gradient of o gives the state before the positions at hand, where none comes behind them.
static TileProgram *build_part(Back *b, const PassOptions *o) {
    Recur *r = &b->r;
    TileProgram *p = r->p;
    Run before = {0, 0}, none = {0, 0};
    Prepare prepare;
    p->phase = PHASE_PART_BWD;
    add_part_tensors(b, o->dtype);
    if (recur_prepares(r->c, o)) {
        recur_prepare(&prepare, r, "part_prepared", b->works, b->chunks);
        before = (Run){prepare.index, prepare.index + 1};
    }
    Run run = {p->kernels.n, 0};
    if (has_output(b)) build_states(b, "part_states");
    recur_kernel(r, "part_adjoint", PURPOSE_ADJOINT);
    recur_store(r, b->dstate0, recur_adjoint_part(r, from_last(b), adjoint_part, b), r->D);
    run.to = p->kernels.n;
    if (before.to) recur_cut(&prepare, prepare.index);
    add_plan(b, NULL, before, run, none, none);
    return p;
}

static Run build_segments(Back *b, Segments *s) {
    Recur *r = &b->r;
    Run run = {r->p->kernels.n, 0};
    recur_segment_starts(s, r->state0, -1);
    recur_segment_kernel(s, "states_segments", PURPOSE_STATES);
    recur_chunks(r, "S", recur_segment_first(s, "S"), ex_symbol(r->x, SYM_STEP), states_chunk, b);
    recur_segment_adjoints(s, b->dstate, b->dstate0, adjoint_part, b);
    recur_segment_kernel(s, "adjoint_segments", PURPOSE_ADJOINT);
    recur_chunks(r, "F", recur_segment_first(s, "F"), recur_segment_index(s), adjoint_chunk, b);
    run.to = r->p->kernels.n;
    return run;
}

TileProgram *pass_build_recurrence_backward(Arena *a, const ChunkBack *back, const PassOptions *o,
                                            Diags *diags) {
    const RecProgram *rec = back->c->rec;
    Back b = {.back = back, .diags = diags, .by_positions = o->by_positions, .good = true};
    Recur *r = &b.r;
    *r = (Recur){.arena = a, .x = rec->pool, .c = back->c, .rec = rec};
    TileProgram *p = r->p = recur_program(a, rec, o);
    p->phase = PHASE_BWD;
    b.chunks = p->chunks = pass_size(p, "chunks", ex_i32(r->x, 1));
    b.part = o->phase == PHASE_PART_BWD;
    if (b.part) return build_part(&b, o);
    if (b.by_positions)
        b.all_chunks =
            pass_size(p, "chunks_of_heads",
                      ex_2(r->x, EX_MUL, recur_size(r, RSIZE_H), recur_size(r, b.chunks)));
    add_tensors(&b, o->dtype);
    Run chains = build_chains(&b), gradients[2], converts = {0, 0};
    for (int i = 0; i < 2; i++) {
        b.shared = i;
        gradients[i].from = p->kernels.n;
        build_gradients(&b, i ? "shared_gradients" : "gradients");
        gradients[i].to = p->kernels.n;
    }
    converts.from = p->kernels.n;
    for (int i = 0; i < 3 && b.sums[0] != b.to[0]; i++) build_convert(&b, i);
    converts.to = p->kernels.n;
    Run before = {0, 0}, none = {0, 0};
    Prepare prepare;
    if (recur_prepares(back->c, o)) {
        recur_prepare(&prepare, r, "back_prepared", b.works, b.chunks);
        before = (Run){prepare.index, prepare.index + 1};
    }
    Segments s = recur_segments(r, b.works, b.chunks);
    Run segments = build_segments(&b, &s);
    if (before.to) {
        prepare.works = s.works;
        recur_cut(&prepare, prepare.index);
    }
    const Ex *several = ex_2(r->x, EX_LT, ex_i32(r->x, 1), recur_size(r, s.number));
    const Ex *same = same_heads(r);
    add_plan(&b, recur_both(r, several, same), before, segments, gradients[0], none);
    add_plan(&b, several, before, segments, gradients[1], converts);
    add_plan(&b, same, none, chains, gradients[0], none);
    add_plan(&b, NULL, none, chains, gradients[1], converts);
    return b.good ? p : NULL;
}
