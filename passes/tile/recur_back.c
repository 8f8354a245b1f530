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
// States and gradients of states lie in workspace in the element type, one for each chunk. Heads that share q, k or v add up in
// sums of f32, which a last kernel converts; other launches have a plan without. The gradient of a decay is one of its exponent: what
// reads at or behind it, without what both wrote and read there. A decay of 0 has one of its own: of the pairs with that zero alone
// between them.
#include "passes/tile/recur.h"

#include <string.h>

typedef struct Back {
    Recur r;
    const ChunkBack *back;
    Diags *diags;
    bool shared;        // heads share q, k or v
    bool host;
    int chunks;         // the size
    int dout, dstate, dstate0; // tensors; dout: of o before `output`
    int grad_o;                // that of o, as it comes
    int states, adjoints;      // [B, H, chunks, D, Dv]
    int solved, dx, dsolved;   // what was solved; gradients of the values written, and of those solved
    int to[3], sums[3];        // dq, dk, dv; where they are added up
    int *grad;                 // by input: tensor; -1
    bool good;
} Back;

// Gradients of the pieces of a chunk, along T, T and D, or T and E; NULL: 0.
typedef struct Pieces {
    TileValue *of[PIECE_COUNT];
    TileValue *o, *norm_o; // of what `output` reads
} Pieces;

static bool solves(const Back *b) { return b->r.c->erase.elem != NULL; }
static int last_write(const Back *b) { return b->r.c->nwrites - 1; }
static bool is_solved(const Back *b, int write) { return solves(b) && write == last_write(b); }

static bool has_output(const Back *b) {
    const Ex *o = b->r.rec->output;
    return !(o->op == EX_SYM && o->sym == SYM_O);
}

// ---- small things

static const Ex *add(Recur *r, const Ex *a, const Ex *b) {
    return !a ? b : !b ? a : ex_2(r->x, EX_ADD, a, b);
}

// A scan along T.
static TileValue *scan(Recur *r, TileOp *map, const char *name, TileScan way, bool strict,
                       const Ex *e) {
    TileValue *v = recur_scan(r, map, name, EX_ROWSUM, strict, e);
    map->outs.data[map->outs.n - 1].scan = way;
    return v;
}

// Where the element is one of the sequence, and not of a tile's padding.
static const Ex *inside(Recur *r, int rows, int columns) {
    const Ex *e = rows < 0 ? NULL : recur_exists(r, rows);
    int size = columns == r->D ? r->rec->D : r->rec->Dv;
    if (columns < 0) return e;
    return recur_both(r, e, ex_2(r->x, EX_LT, recur_pos(r, columns), ex_i32(r->x, size)));
}

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
    op->coord[0] = (TileCoord){-1, ex_symbol(r->x, SYM_B)};
    op->coord[1] = (TileCoord){-1, ex_symbol(r->x, SYM_H)};
    op->coord[2] = (TileCoord){-1, recur_tile_of(r, r->T)};
    op->coord[3] = (TileCoord){r->D, recur_tile_of(r, r->D)};
    op->coord[4] = (TileCoord){r->E, recur_tile_of(r, r->E)};
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

// ---- gradients of inputs

static bool refuse(Back *b, const ChunkSlope *s, const char *why) {
    diag_error(b->diags, s->of->span, "the gradient of '%s' has no kernel yet: it is read at %s",
               b->r.rec->inputs.data[s->input].name, why);
    b->good = false;
    return false;
}

static int columns_of(const Recur *r, ChunkPieceId id) {
    switch ((int)id) {
    case PIECE_QUERY:
    case PIECE_ERASE:
    case PIECE_WRITE:
    case PIECE_WRITE2:
    case PIECE_BONUS: return r->D;
    case PIECE_VALUE:
    case PIECE_OUTPUT: return r->E;
    case PIECE_DECAY: return r->c->channel ? r->D : -1;
    default: return -1;
    }
}

// slope * gradient of the piece, in a map along T and `columns`.
static const Ex *through(Back *b, TileOp *map, const Pieces *g, ChunkPieceId id, const Ex *by) {
    Recur *r = &b->r;
    Clause c = {.r = r, .map = map, .along = ALONG_T, .o = g->o, .norm_o = g->norm_o};
    return recur_times(r, recur_in(r, map, g->of[id]), recur_clause_of(&c, by));
}

// The sum over pieces with such columns of slope * gradient; NULL: none has one.
static const Ex *sum_of_slopes(Back *b, TileOp *map, const Pieces *g, int columns, const Ex *of) {
    const Ex *sum = NULL;
    for (int id = 0; id < PIECE_COUNT; id++) {
        const ChunkSlopes *s = &b->back->piece[id];
        for (int i = 0; i < s->n && g->of[id] && columns_of(&b->r, id) == columns; i++)
            if (s->data[i].of == of)
                sum = add(&b->r, sum, through(b, map, g, id, s->data[i].by));
    }
    return sum ? recur_where(&b->r, inside(&b->r, b->r.T, columns), sum) : NULL;
}

// A map of the sum; NULL where there is none.
static TileValue *slopes(Back *b, const char *name, const Pieces *g, int columns, const Ex *of) {
    Recur *r = &b->r;
    TileOp *map = recur_open(r, r->T, columns, -1);
    const Ex *sum = sum_of_slopes(b, map, g, columns, of);
    if (sum) return recur_out(r, map, name, sum);
    tile_unlink(map);
    return NULL;
}

static const Ex *clamped(Recur *r, const Ex *at, const Ex *extent) {
    const Ex *last = ex_2(r->x, EX_SUB, extent, ex_i32(r->x, 1));
    return ex_2(r->x, EX_MAX, ex_2(r->x, EX_MIN, at, last), ex_i32(r->x, 0));
}

// Where a dimension of an input is read at.
typedef struct Dim {
    int axis;   // -1: neither the position nor the column
    bool plain; // the position or column itself
} Dim;

static Dim dim_of(const Recur *r, const Ex *at, int columns) {
    ExSym column = columns == r->E ? SYM_E_IDX : SYM_D_IDX;
    if (ex_uses(at, SYM_T_IDX, 0)) return (Dim){r->T, at->op == EX_SYM};
    if (columns >= 0 && ex_uses(at, column, 0)) return (Dim){columns, at->op == EX_SYM};
    return (Dim){-1, false};
}

static bool has_place(Back *b, const ChunkSlope *s, int columns) {
    const Recur *r = &b->r;
    for (int d = 0; s->of->op == EX_LOAD && d < s->of->nargs; d++) {
        const Ex *at = s->of->args[d];
        Dim dim = dim_of(r, at, columns);
        bool two = ex_uses(at, SYM_T_IDX, 0) &&
                   (ex_uses(at, SYM_D_IDX, 0) || ex_uses(at, SYM_E_IDX, 0));
        if (two || (dim.axis >= 0 && !dim.plain))
            return refuse(b, s, "an index made of the position or the column, not the one itself");
        for (int e = 0; e < d; e++)
            if (dim.axis >= 0 && dim_of(r, s->of->args[e], columns).axis == dim.axis)
                return refuse(b, s, "the same index twice");
    }
    return true;
}

static bool goes_along(const Recur *r, const ChunkSlope *s, int axis, int columns) {
    for (int d = 0; s->of->op == EX_LOAD && d < s->of->nargs; d++)
        if (dim_of(r, s->of->args[d], columns).axis == axis) return true;
    return false;
}

static void store_grad(Back *b, const ChunkSlope *s, int columns, TileValue *v) {
    Recur *r = &b->r;
    const TileTensor *t = &r->p->tensors.data[b->grad[s->input]];
    TileOp *op = tile_op(r->p, r->k, r->block, TILE_STORE, s->of->span);
    op->tensor = b->grad[s->input];
    op->add = true;
    tile_arg(r->p, op, v);
    for (int d = 0; d < t->rank; d++) {
        bool scalar = s->of->op != EX_LOAD;
        const Ex *at = scalar ? ex_i32(r->x, 0) : s->of->args[d];
        Dim dim = scalar ? (Dim){-1, false} : dim_of(r, at, columns);
        if (dim.axis < 0 && !scalar) at = clamped(r, at, t->extent[d]);
        op->coord[d] = (TileCoord){dim.axis, dim.axis < 0 ? ex_simplify(r->x, at)
                                                          : recur_tile_of(r, dim.axis)};
    }
}

static TileValue *summed(Recur *r, TileValue *v, int axis) {
    TileOp *map = recur_open(r, v->axis[0], v->rank > 1 ? v->axis[1] : -1, -1);
    return recur_reduce(r, map, "g", EX_ROWSUM, axis, recur_in(r, map, v));
}

// Of the place of an input that a slope is of, from the pieces with such columns.
static void add_grad(Back *b, const Pieces *g, const ChunkSlope *s, int columns) {
    Recur *r = &b->r;
    if (b->grad[s->input] < 0 || !has_place(b, s, columns)) return;
    TileValue *v = slopes(b, "g", g, columns, s->of);
    if (!v) return;
    if (columns >= 0 && !goes_along(r, s, columns, columns)) v = summed(r, v, columns);
    if (!goes_along(r, s, r->T, columns)) v = summed(r, v, r->T);
    store_grad(b, s, columns, v);
}

// Each place of an input once for all pieces with the same columns.
static void add_grads(Back *b, const Pieces *g) {
    for (int id = 0; id < PIECE_COUNT; id++) {
        const ChunkSlopes *s = &b->back->piece[id];
        int columns = columns_of(&b->r, id);
        for (int i = 0; i < s->n && g->of[id]; i++) {
            bool before = s->data[i].input < 0;
            for (int k = 0; k < id && !before; k++) {
                const ChunkSlopes *o = &b->back->piece[k];
                for (int j = 0; j < o->n && g->of[k] && columns_of(&b->r, k) == columns; j++)
                    before |= o->data[j].of == s->data[i].of;
            }
            if (!before) add_grad(b, g, &s->data[i], columns);
        }
    }
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
        squares = slopes(b, "sq", &g, r->E, ex_symbol(r->x, SYM_SQO));
    }
    if (squares) squares = summed(r, squares, r->E);
    add_grads(b, &g);
    TileOp *map = recur_open(r, r->T, r->E, -1);
    const Ex *e = sum_of_slopes(b, map, &g, r->E, ex_symbol(r->x, SYM_O));
    if (squares) {
        const Ex *twice = ex_2(r->x, EX_MUL, recur_in(r, map, squares), recur_number(r, 2));
        e = add(r, e, recur_times(r, recur_in(r, map, o), twice));
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
    leave(b, b->states, s);
    recur_make_writes(r, w, s);
    if (solves(b)) recur_store(r, b->solved, w[last_write(b)].x, r->U);
    if (has_output(b)) before_output(b, recur_output(r, w, s));
    return recur_new_state(r, w, state);
}

// ---- what both directions share

typedef struct Reads {
    Read query, erase;
    Number erased; // of what is erased, from x's solved: erase.number * erased
} Reads;

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
    if (all) {
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
            r, map, "wd", recur_times(r, recur_in(r, map, elem), recur_from_write(r, map, end, zero)));
    }
    TileValue *y = recur_product(r, "dy", elem, f, NULL, r->U, r->E);
    if (r->c->channel || !r->c->decay) return y;
    TileOp *map = recur_open(r, r->U, r->E, -1);
    return recur_out(r, map, "dy",
                     recur_times(r, recur_in(r, map, y), recur_from_write(r, map, end, zero)));
}

static TileValue *read_by(Recur *r, const char *name, const Read *read, const Write *w, TileValue *g,
                          TileValue *sum) {
    Number none = {NULL, NULL};
    TileValue *a = recur_scores(r, name, r->p->dtype, read, w, none);
    return recur_product(r, "dy", a, g, sum, r->U, r->E);
}

// F += read' g, decayed from the chunk's start.
static TileValue *add_read(Recur *r, const Read *read, TileValue *g, TileValue *f) {
    Sum sum = recur_sum_of(r, read->is);
    TileValue *zero = recur_zero_of(r, read->is), *elem = read->elem;
    if (r->c->channel) {
        TileOp *map = recur_open(r, r->T, r->D, -1);
        elem = recur_narrow(r, map, "rd", recur_from_start(r, map, sum, zero, recur_in(r, map, elem)));
    } else if (r->c->decay) {
        TileOp *map = recur_open(r, r->T, r->E, -1);
        g = recur_narrow(r, map, "gd", recur_from_start(r, map, sum, zero, recur_in(r, map, g)));
    }
    return recur_product(r, "F", elem, recur_operand(r, "gd", g), f, r->D, r->E);
}

static TileValue *adjoint_chunk(void *ctx, TileValue *f1) {
    Back *b = ctx;
    Recur *r = &b->r;
    const Chunk *c = r->c;
    Write w[2];
    TileValue *dy[2];
    Reads reads = load_reads(b, w, false);
    TileValue *dout = recur_load(r, "do", b->dout, RSIZE_H, r->T, r->E);
    TileValue *f = recur_operand(r, "f", f1), *g = scaled(r, "g", dout, reads.query.number);
    leave(b, b->adjoints, f);
    for (int i = 0; i < c->nwrites; i++)
        dy[i] = read_by(r, "p", &reads.query, &w[i], g, comes_to(r, &w[i], f));
    TileValue *h = NULL;
    if (solves(b)) {
        int s = last_write(b);
        TileValue *n = recur_scores(r, "N", DT_F32, &reads.erase, &w[s], reads.erased);
        TileValue *dx = recur_product(r, "dx", recur_inverse(r, n), recur_operand(r, "y", dy[s]),
                                      NULL, r->T, r->E);
        recur_store(r, b->dsolved, dx, r->T);
        h = scaled(r, "h", dx, reads.erased);
        if (s) dy[0] = read_by(r, "m", &reads.erase, &w[0], h, dy[0]);
    }
    if (!is_solved(b, 0)) recur_store(r, b->dx, dy[0], r->U);
    if (c->decay) {
        TileOp *map = recur_open(r, r->D, r->E, -1);
        f1 = recur_out(r, map, "d",
                       recur_from_start(r, map, r->decay.end, r->decay.zero_end, recur_in(r, map, f1)));
    }
    f1 = add_read(r, &reads.query, g, f1);
    return h ? add_read(r, &reads.erase, h, f1) : f1;
}

// ---- kernel: the gradients

typedef struct Chunked { // of the chunk at hand
    Reads reads;
    Write w[2];
    TileValue *s0, *f1;        // [D, E]
    TileValue *dout, *dsolved; // what comes to the reads, [T, E]
    TileValue *z_query, *z_erase; // gradients of their elements, of dout and dsolved, [T, D]
    TileValue *pairs[2], *end[2]; // of the writes': of pairs, and of the state behind the chunk, [U, D]
} Chunked;

// (g x') with the number of x, where the write is at or before the read; f32[T, U].
static TileValue *weights(Recur *r, const Read *read, TileValue *g, const Write *w) {
    TileValue *a = recur_product(r, "da", g, w->x, NULL, r->T, r->U);
    TileOp *map = recur_open(r, r->T, r->U, -1);
    const Ex *e = recur_times(r, recur_in(r, map, a), recur_factor(r, map, w->number));
    const Ex *earlier =
        ex_2(r->x, read->is->before ? EX_LT : EX_LE, recur_pos(r, r->U), recur_pos(r, r->T));
    return recur_out(r, map, "a", recur_where(r, earlier, e));
}

static TileValue *plus(Recur *r, const char *name, TileValue *a, TileValue *b) {
    if (!a || !b) return a ? a : b;
    TileOp *map = recur_open(r, a->axis[0], a->rank > 1 ? a->axis[1] : -1, -1);
    return recur_out(r, map, name, ex_2(r->x, EX_ADD, recur_in(r, map, a), recur_in(r, map, b)));
}

// What a read and a write give each other's elements, where channels have decays of their own.
static void channel_pairs(Recur *r, const Read *read, Number n, const Write *w, TileValue *a,
                          TileValue **z, TileValue **dw) {
    Sum sum = recur_sum_of(r, read->is);
    TileValue *zero = recur_zero_of(r, read->is);
    TileOp *map = recur_open(r, r->T, r->U, r->D);
    const Ex *e = recur_times(r, recur_in(r, map, a), recur_in(r, map, w->elem));
    e = recur_times(r, e, recur_from_write(r, map, sum, zero));
    *z = plus(r, "z", *z, recur_reduce(r, map, "z", EX_ROWSUM, r->U, e));
    map = recur_open(r, r->T, r->U, r->D);
    e = recur_times(r, recur_in(r, map, a), recur_in(r, map, read->elem));
    e = recur_times(r, recur_times(r, e, recur_factor(r, map, n)), recur_from_write(r, map, sum, zero));
    *dw = plus(r, "dw", *dw, recur_reduce(r, map, "dw", EX_ROWSUM, r->T, e));
}

static void row_pairs(Recur *r, const Read *read, Number n, const Write *w, TileValue *a,
                      TileValue **z, TileValue **dw) {
    TileOp *map = recur_open(r, r->T, r->U, -1);
    const Ex *e = recur_times(r, recur_in(r, map, a),
                              recur_from_write(r, map, recur_sum_of(r, read->is),
                                               recur_zero_of(r, read->is)));
    TileValue *p = recur_narrow(r, map, "p", e), *pn = p;
    if (n.v || n.constant) pn = recur_narrow(r, map, "pn", recur_times(r, e, recur_factor(r, map, n)));
    *z = recur_product(r, "z", p, w->elem, *z, r->T, r->D);
    *dw = recur_product(r, "dw", pn, read->elem, *dw, r->U, r->D);
}

// z of a read, from what comes to it; n: what comes to the writes is times that.
static TileValue *back_read(Recur *r, Chunked *x, const Read *read, Number n, TileValue *g) {
    TileValue *z = NULL;
    for (int i = 0; i < r->c->nwrites; i++) {
        TileValue *a = weights(r, read, g, &x->w[i]);
        (r->c->channel ? channel_pairs : row_pairs)(r, read, n, &x->w[i], a, &z, &x->pairs[i]);
    }
    TileValue *s = recur_product(r, "zs", g, x->s0, NULL, r->T, r->D);
    TileOp *map = recur_open(r, r->T, r->D, -1);
    const Ex *e = recur_from_start(r, map, recur_sum_of(r, read->is), recur_zero_of(r, read->is),
                                   recur_in(r, map, s));
    return recur_out(r, map, "z", ex_2(r->x, EX_ADD, recur_in(r, map, z), e));
}

static TileValue *back_end(Recur *r, const Chunked *x, const Write *w) {
    TileValue *e = recur_product(r, "wf", w->x, x->f1, NULL, r->U, r->D);
    TileOp *map = recur_open(r, r->U, r->D, -1);
    const Ex *decayed = recur_from_write(r, map, r->decay.end, r->decay.zero_end);
    return recur_out(
        r, map, "we",
        recur_times(r, recur_times(r, recur_in(r, map, e), recur_factor(r, map, w->number)), decayed));
}

static TileValue *along_t(Recur *r, TileValue *v) {
    return v ? recur_beside(r, arena_printf(r->arena, "%st", v->name), v, r->U, r->T) : NULL;
}

// a * b * number, summed over columns.
static TileValue *dot(Recur *r, const char *name, TileValue *a, TileValue *b, Number n) {
    int columns = a->axis[1] == r->T || a->axis[1] == r->U ? a->axis[0] : a->axis[1];
    int rows = columns == a->axis[1] ? a->axis[0] : a->axis[1];
    TileOp *map = recur_open(r, rows, columns, -1);
    const Ex *e = ex_2(r->x, EX_MUL, recur_in(r, map, a), recur_in(r, map, b));
    TileValue *v = recur_reduce(r, map, name, EX_ROWSUM, columns, e);
    if (!n.v && !n.constant) return v;
    map = recur_open(r, rows, -1, -1);
    return recur_out(r, map, name, recur_times(r, recur_in(r, map, v), recur_factor(r, map, n)));
}

// v * n, f32 along T.
static TileValue *with(Recur *r, const char *name, TileValue *v, Number n) {
    if (!n.v && !n.constant) return v;
    TileOp *map = recur_open(r, v->axis[0], v->rank > 1 ? v->axis[1] : -1, -1);
    return recur_out(r, map, name, recur_times(r, recur_in(r, map, v), recur_factor(r, map, n)));
}

// ---- decays

// a * b * number by channel, or summed over them.
static TileValue *flow(Recur *r, const char *name, TileValue *a, TileValue *b, Number n) {
    if (!r->c->channel) return dot(r, name, a, b, n);
    TileOp *map = recur_open(r, a->axis[0], a->axis[1], -1);
    const Ex *e = ex_2(r->x, EX_MUL, recur_in(r, map, a), recur_in(r, map, b));
    return recur_out(r, map, name, recur_times(r, e, recur_factor(r, map, n)));
}

// G(C, 0) <F1, S0>
static TileValue *flow_through(Recur *r, const Chunked *x) {
    TileOp *map = recur_open(r, r->D, r->E, -1);
    const Ex *e = ex_2(r->x, EX_MUL, recur_in(r, map, x->f1), recur_in(r, map, x->s0));
    TileValue *v = recur_reduce(r, map, "fs", EX_ROWSUM, r->E, e);
    if (!r->c->channel) v = summed(r, v, r->D);
    map = recur_open(r, r->c->channel ? r->D : -1, -1, -1);
    return recur_out(r, map, "fs",
                     recur_from_start(r, map, r->decay.end, r->decay.zero_end, recur_in(r, map, v)));
}

static bool at_before(const Read *read) { return read->is->before && !read->is->decayed; }

// The gradient of the exponents, without the factor of 2^x.
static TileValue *exponents(Back *b, const Chunked *x) {
    Recur *r = &b->r;
    int columns = r->c->channel ? r->D : -1;
    TileValue *at = NULL, *before = NULL, *pairs = NULL, *end = NULL;
    const Read *read[] = {&x->reads.query, solves(b) ? &x->reads.erase : NULL};
    for (int i = 0; i < 2 && read[i]; i++) {
        Number n = i ? x->reads.erased : read[i]->number;
        TileValue *v = flow(r, "rz", read[i]->elem, i ? x->z_erase : x->z_query, n);
        TileValue **to = at_before(read[i]) ? &before : &at;
        *to = plus(r, "rz", *to, v);
    }
    for (int i = 0; i < r->c->nwrites; i++) {
        Number none = {NULL, NULL};
        pairs = plus(r, "wp", pairs, flow(r, "wp", x->w[i].elem, x->pairs[i], none));
        end = plus(r, "wf", end, flow(r, "wf", x->w[i].elem, x->end[i], none));
    }
    pairs = along_t(r, pairs), end = along_t(r, end);
    TileValue *through = flow_through(r, x);
    TileOp *map = recur_open(r, r->T, columns, -1);
    const Ex *e = recur_in(r, map, pairs);
    e = at ? ex_2(r->x, EX_SUB, recur_in(r, map, at), e) : ex_1(r->x, EX_NEG, e);
    TileValue *sum[3] = {scan(r, map, "ds", SCAN_SUFFIX, false, e)};
    map = recur_open(r, r->T, columns, -1);
    sum[1] = scan(r, map, "de", SCAN_PREFIX, true, recur_in(r, map, end));
    if (before) {
        map = recur_open(r, r->T, columns, -1);
        sum[2] = scan(r, map, "db", SCAN_SUFFIX, true, recur_in(r, map, before));
    }
    map = recur_open(r, r->T, columns, -1);
    e = recur_in(r, map, through);
    for (int i = 0; i < 3; i++)
        if (sum[i]) e = add(r, e, recur_in(r, map, sum[i]));
    return recur_out(r, map, "dl", e);
}

// From the gradient of the exponent to that of the piece: of the exponent, or of the decay.
static TileValue *decay_piece(Back *b, const Chunked *x) {
    Recur *r = &b->r;
    int columns = r->c->channel ? r->D : -1;
    TileValue *dl = exponents(b, x);
    TileOp *map = recur_open(r, r->T, columns, -1);
    const Ex *l = recur_clause(r, map, ALONG_T, r->c->decay), *e = recur_in(r, map, dl);
    const Ex *gone = ex_2(r->x, EX_LT, l, recur_number(r, CHUNK_ZERO));
    const Ex *there = recur_both(r, ex_1(r->x, EX_NOT, gone), inside(r, r->T, columns));
    e = b->back->by_exponent ? ex_2(r->x, EX_MUL, e, recur_number(r, 0.69314718055994531))
                             : ex_2(r->x, EX_DIV, e, recur_clause(r, map, ALONG_T, r->rec->decay));
    return recur_out(r, map, "dg", recur_where(r, there, e));
}

// ---- all pieces

// What a bonus adds: o += (sum of query bonus key) value v, with the numbers of query and key outside.
static void back_bonus(Back *b, Chunked *x, Pieces *g, TileValue *v, Number value, Number query) {
    Recur *r = &b->r;
    const Chunk *c = r->c;
    Number none = {NULL, NULL}, both = product_of(r, "nqv", query, value);
    TileValue *key = recur_elements(r, "kb", c->write[0].elem, ALONG_T, r->D), *q = x->reads.query.elem;
    TileValue *dov = dot(r, "dov", x->dout, v, none);
    TileOp *map = recur_open(r, r->T, r->D, -1);
    const Ex *clause = recur_clause(r, map, ALONG_T, c->bonus);
    const Ex *pair = recur_times(r, recur_in(r, map, q), recur_in(r, map, key));
    TileValue *sum = recur_reduce(r, map, "bq", EX_ROWSUM, r->D, recur_times(r, pair, clause));
    map = recur_open(r, r->T, -1, -1);
    const Ex *e = recur_times(r, recur_in(r, map, dov), recur_in(r, map, sum));
    TileValue *of_value = recur_out(r, map, "bv", recur_times(r, e, recur_factor(r, map, query)));
    g->of[PIECE_VALUE_N] = plus(r, "dnv", g->of[PIECE_VALUE_N], of_value);
    TileValue *all = with(r, "bn", dov, both), *own = with(r, "bo", dov, value);
    map = recur_open(r, r->T, r->D, -1);
    clause = recur_clause(r, map, ALONG_T, c->bonus);
    const Ex *of_key = recur_times(r, recur_in(r, map, q), clause);
    TileValue *dk = recur_out(r, map, "bk", recur_times(r, recur_in(r, map, all), of_key));
    g->of[PIECE_WRITE] = plus(r, "dke", g->of[PIECE_WRITE], dk);
    map = recur_open(r, r->T, r->D, -1);
    clause = recur_clause(r, map, ALONG_T, c->bonus);
    const Ex *of_query = recur_times(r, recur_in(r, map, key), clause);
    TileValue *dq = recur_out(r, map, "bq", recur_times(r, recur_in(r, map, own), of_query));
    x->z_query = plus(r, "z", x->z_query, dq);
    map = recur_open(r, r->T, r->D, -1);
    pair = recur_times(r, recur_in(r, map, q), recur_in(r, map, key));
    g->of[PIECE_BONUS] = recur_out(r, map, "db", recur_times(r, pair, recur_in(r, map, all)));
    sum = with(r, "bs", sum, both);
    map = recur_open(r, r->T, r->E, -1);
    e = recur_times(r, recur_in(r, map, x->dout), recur_in(r, map, sum));
    g->of[PIECE_VALUE] = plus(r, "dv", g->of[PIECE_VALUE], recur_out(r, map, "dvb", e));
}

static Pieces pieces(Back *b, Chunked *x) {
    Recur *r = &b->r;
    const Chunk *c = r->c;
    Pieces g = {.o = NULL};
    Number none = {NULL, NULL}, value = recur_row_number(r, "nv", c->write[0].value, ALONG_T);
    TileValue *v = recur_elements(r, "vt", c->value, ALONG_T, r->E);
    TileValue *dx = is_solved(b, 0) ? x->dsolved : recur_load(r, "dx", b->dx, RSIZE_H, r->T, r->E);
    if (b->back->piece[PIECE_DECAY].n) g.of[PIECE_DECAY] = decay_piece(b, x);
    g.of[PIECE_VALUE_N] = dot(r, "dnv", dx, v, none);
    g.of[PIECE_VALUE] = with(r, "dv", dx, value);
    for (int i = 0; i < c->nwrites; i++)
        g.of[PIECE_WRITE + i] = along_t(r, plus(r, "dw", x->pairs[i], x->end[i]));
    if (c->bonus) back_bonus(b, x, &g, v, value, x->reads.query.number);
    g.of[PIECE_QUERY] = with(r, "dqe", x->z_query, x->reads.query.number);
    g.of[PIECE_QUERY_N] = dot(r, "dnq", x->reads.query.elem, x->z_query, none);
    if (!solves(b)) return g;
    Number erased = recur_row_number(r, "nu", c->write[last_write(b)].erased, ALONG_T);
    TileValue *e = dot(r, "rze", x->reads.erase.elem, x->z_erase, none);
    g.of[PIECE_ERASE] = with(r, "dee", x->z_erase, x->reads.erased);
    g.of[PIECE_ERASE_N] = with(r, "dne", e, erased);
    g.of[PIECE_ERASED_N] = with(r, "dnu", e, x->reads.erase.number);
    return g;
}

// The gradient of q, k or v: what the pieces give its elements, and twice the element by that of its squared norm.
static void store_operand(Back *b, const Pieces *g, int which, ExSym element, ExSym square,
                          TileValue *raw, int columns) {
    Recur *r = &b->r;
    static const int heads[] = {RSIZE_HQ, RSIZE_HK, RSIZE_HV};
    const Ex *sq = ex_symbol(r->x, square);
    TileValue *of_row = slopes(b, "sq", g, -1, sq), *of_columns = slopes(b, "sq", g, columns, sq);
    if (of_columns) of_columns = summed(r, of_columns, columns);
    TileValue *squares = plus(r, "sq", of_row, of_columns);
    TileOp *map = recur_open(r, r->T, columns, -1);
    const Ex *e = sum_of_slopes(b, map, g, columns, ex_symbol(r->x, element));
    if (squares) {
        const Ex *twice = ex_2(r->x, EX_MUL, recur_in(r, map, squares), recur_number(r, 2));
        e = add(r, e, recur_times(r, recur_in(r, map, raw), twice));
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

static void build_gradients(Back *b, const char *name) {
    Recur *r = &b->r;
    Chunked x = {.s0 = NULL};
    recur_kernel(r, name, PURPOSE_CHUNK_GRADIENTS);
    TileKernel *k = r->k;
    k->axes[r->D].whole = false, k->axes[r->E].whole = true;
    k->grid[2].axis = r->D;
    k->grid[k->ngrid++] = (TileGrid){.sym = SYM_TILE, .axis = r->T, .count = ex_i32(r->x, 1)};
    x.reads = load_reads(b, x.w, true);
    for (int i = 0; i < r->c->nwrites; i++) {
        const ChunkWrite *w = &r->c->write[i];
        bool solved = is_solved(b, i);
        x.w[i].x = solved ? recur_load(r, "x", b->solved, RSIZE_H, r->U, r->E)
                          : recur_elements(r, "ve", r->c->value, ALONG_U, r->E);
        if (!solved || i)
            x.w[i].number = recur_row_number(r, i ? "nx" : "nw", i ? w->erased : w->value, ALONG_U);
    }
    x.s0 = left(b, "S0", b->states), x.f1 = left(b, "F1", b->adjoints);
    x.dout = recur_load(r, "do", b->dout, RSIZE_H, r->T, r->E);
    x.z_query = back_read(r, &x, &x.reads.query, x.reads.query.number, x.dout);
    if (solves(b)) {
        x.dsolved = recur_load(r, "dx", b->dsolved, RSIZE_H, r->T, r->E);
        x.z_erase = back_read(r, &x, &x.reads.erase, x.reads.erased, x.dsolved);
    }
    for (int i = 0; i < r->c->nwrites; i++) x.end[i] = back_end(r, &x, &x.w[i]);
    Pieces g = pieces(b, &x);
    store_operand(b, &g, 0, SYM_Q, SYM_SQQ, r->raw_q, r->D);
    store_operand(b, &g, 1, SYM_K, SYM_SQK, r->raw_k[ALONG_T], r->D);
    store_operand(b, &g, 2, SYM_V, SYM_SQV, r->raw_v[ALONG_T], r->E);
    add_grads(b, &g);
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
    TileTensor t = {.name = name,
                    .role = TENSOR_WORK,
                    .index = index,
                    .dtype = r->p->dtype,
                    .rank = 5,
                    .extent = {recur_size(r, RSIZE_B), recur_size(r, RSIZE_H), recur_size(r, b->chunks),
                               ex_i32(r->x, r->rec->D), ex_i32(r->x, r->rec->Dv)}};
    VEC_PUSH(r->arena, &r->p->tensors, t);
    return r->p->tensors.n - 1;
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
        b->grad[i] = in->grad ? r->p->tensors.n : -1;
        if (in->grad) VEC_PUSH(r->arena, &r->p->tensors, t);
    }
}

static void add_tensors(Back *b, Dtype t) {
    Recur *r = &b->r;
    const RecProgram *rec = r->rec;
    const Ex *S = recur_size(r, RSIZE_S), *D = ex_i32(r->x, rec->D);
    static const char *const names[] = {"dq", "dk", "dv"}, *const sums[] = {"sum_q", "sum_k", "sum_v"};
    static const TensorRole roles[] = {TENSOR_DQ, TENSOR_DK, TENSOR_DV};
    static const int heads[] = {RSIZE_HQ, RSIZE_HK, RSIZE_HV};
    int n = 0;
    recur_add_operands(r, t);
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
}

// What nothing adds to is 0, too: the launch zeroes what kernels add to.
static void unused_grads(Back *b) {
    Recur *r = &b->r;
    for (int i = 0; i < r->rec->inputs.n; i++) {
        if (b->grad[i] < 0 || tile_is_summed(r->p, b->grad[i])) continue;
        TileOp *map = recur_open(r, -1, -1, -1);
        TileValue *v = recur_out(r, map, "none", recur_number(r, 0));
        TileOp *op = tile_op(r->p, r->k, r->block, TILE_STORE, r->rec->span);
        op->tensor = b->grad[i];
        op->add = true;
        tile_arg(r->p, op, v);
        for (int d = 0; d < r->p->tensors.data[op->tensor].rank; d++)
            op->coord[d] = (TileCoord){-1, ex_i32(r->x, 0)};
    }
}

static const Ex *same_heads(Recur *r) {
    static const int heads[] = {RSIZE_HQ, RSIZE_HK, RSIZE_HV};
    const Ex *e = NULL;
    for (int i = 0; i < 3; i++)
        e = recur_both(r, e, ex_2(r->x, EX_EQ, recur_size(r, heads[i]), recur_size(r, RSIZE_H)));
    return e;
}

static void add_plan(Back *b, const Ex *when, int gradients, int converts) {
    Recur *r = &b->r;
    TilePlan plan = {.when = when};
    for (int i = 0; i < 2; i++) VEC_PUSH(r->arena, &plan.kernels, i);
    VEC_PUSH(r->arena, &plan.kernels, gradients);
    for (int i = 0; i < converts; i++) VEC_PUSH(r->arena, &plan.kernels, gradients + 1 + i);
    VEC_PUSH(r->arena, &r->p->plans, plan);
}

TileProgram *pass_build_recurrence_backward(Arena *a, const ChunkBack *back, const PassOptions *o,
                                            Diags *diags) {
    const RecProgram *rec = back->c->rec;
    Back b = {.back = back, .diags = diags, .host = o->target.kind == KIND_HOST, .good = true};
    Recur *r = &b.r;
    *r = (Recur){.arena = a, .x = rec->pool, .c = back->c, .rec = rec};
    TileProgram *p = r->p = recur_program(a, rec, o);
    p->phase = PHASE_BWD;
    b.chunks = p->chunks = pass_size(p, "chunks", ex_i32(r->x, 1));
    add_tensors(&b, o->dtype);
    recur_kernel(r, "states", PURPOSE_STATES);
    recur_chunks(r, "S", r->state0, -1, ex_symbol(r->x, SYM_STEP), states_chunk, &b);
    recur_kernel(r, "adjoint", PURPOSE_ADJOINT);
    const Ex *last = ex_2(r->x, EX_SUB, recur_size(r, b.chunks), ex_i32(r->x, 1));
    recur_chunks(r, "F", b.dstate, b.dstate0,
                 ex_2(r->x, EX_SUB, last, ex_symbol(r->x, SYM_STEP)), adjoint_chunk, &b);
    build_gradients(&b, "gradients");
    unused_grads(&b);
    b.shared = true;
    build_gradients(&b, "shared_gradients");
    int converts = b.sums[0] == b.to[0] ? 0 : 3;
    for (int i = 0; i < converts; i++) build_convert(&b, i);
    add_plan(&b, same_heads(r), 2, 0);
    add_plan(&b, NULL, 3, converts);
    return b.good ? p : NULL;
}
