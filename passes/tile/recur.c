// recur.c: a recurrence's chunked form as a tile program (ir/chunk.h has the mathematics).
//
// In: a chunked form. Out: a program of one kernel, algorithm level; with `few` of one more, for so many positions at most (decoding),
// whose chunks have the fewest places that the target can take. A point of the grid has a head and some columns of v;
// it goes from chunk to chunk (axis T) and carries the state, f32[D, E]. Reads lie along T, writes along U, the same
// positions again:
//
//     %L, %z = prefix sums of the decays' exponents, and where the last decay of 0 was
//     %p[T, U] = (q k) * exp2(L - L_j) where j is at or before t and no zero is between        scores of the query
//     %y[T, E] = value v + erased u0, u0 = what erase reads of the state before the chunk
//     %x[U, E] = (I - N)^-1 y, N the scores of erase                                           without erase x = v
//     o = (q S0) * exp2(L) + p x;   S = S * exp2(L_end) + k' (x * exp2(L_end - L_j))
//
// Positions from S on have exponent 0, and write nothing: their numbers and elements are 0. A decay for each channel goes
// into the elements: scores are then sums of three factors, made element by element.
#include "passes/derive/chunk.h"
#include "passes/passes.h"
#include "passes/tile/rewrite.h"

#include <string.h>

typedef struct Number { // of a row; neither: 1
    TileValue *v;
    const Ex *constant;
} Number;

// A sum of exponents, of one decay in two parts: of their nearest whole numbers, which is exact, and
// of the rest, which is small. So the difference of two sums is as exact as what lies between them,
// however strong the decays before are.
typedef struct Sum {
    TileValue *rest, *whole; // NULL: all is in the rest
} Sum;

// Over T, or over T and D: of the positions up to this one; `before`: up to the one before it.
typedef struct Decays {
    Sum sum, sum_before;
    TileValue *zero, *zero_before; // the last position with decay 0, or below 0
    Sum to_write;                  // along U
    Sum end;                       // of the whole chunk
    TileValue *zero_end;
} Decays;

typedef struct Recur {
    Arena *arena;
    ExPool *x;
    const Chunk *c;
    const RecProgram *rec;
    TileProgram *p;
    TileKernel *k;
    TileBlock *block;
    int T, U, D, E;                  // axes
    int q, key, v, o, state0, state; // tensors
    TileValue *raw_q, *raw_k[2],
        *raw_v[2]; // of the chunk; k and v along T, along U; NULL: not needed
    TileValue *norm_q, *norm_k[2], *norm_v[2];
    Decays decay;
} Recur;

enum { ALONG_T, ALONG_U };

static int rows_axis(const Recur *r, int along) { return along == ALONG_T ? r->T : r->U; }

// ---- building

static AxisSet set(int a, int b, int c) {
    return (a < 0 ? 0 : 1u << a) | (b < 0 ? 0 : 1u << b) | (c < 0 ? 0 : 1u << c);
}

static TileOp *open(Recur *r, int a, int b, int c) {
    return pass_map(r->p, r->k, r->block, set(a, b, c), r->rec->span);
}

static const Ex *in(Recur *r, TileOp *map, TileValue *v) { return pass_operand(r->p, map, v); }

static TileValue *out(Recur *r, TileOp *map, const char *name, const Ex *e) {
    return pass_out(r->p, r->k, map, name, DT_F32, e, EX_CONST, 0);
}

// As an operand of products, in the element type.
static TileValue *narrow(Recur *r, TileOp *map, const char *name, const Ex *e) {
    return pass_out(r->p, r->k, map, name, r->p->dtype, e, EX_CONST, 0);
}

static TileValue *reduce(Recur *r, TileOp *map, const char *name, ExOp op, int over, const Ex *e) {
    return pass_out(r->p, r->k, map, name, DT_F32, e, op, over);
}

// A prefix along T.
static TileValue *scan(Recur *r, TileOp *map, const char *name, ExOp op, bool strict, const Ex *e) {
    TileValue *v = out(r, map, name, e);
    TileResult *to = &map->outs.data[map->outs.n - 1];
    to->reduce = op;
    to->reduce_axis = r->T;
    to->scan = SCAN_PREFIX;
    to->strict = strict;
    return v;
}

static TileValue *product(Recur *r, const char *name, TileValue *a, TileValue *b, TileValue *c,
                          int rows, int columns) {
    TileOp *op = tile_op(r->p, r->k, r->block, TILE_MMA, r->rec->span);
    uint8_t axes[2] = {(uint8_t)rows, (uint8_t)columns};
    tile_arg(r->p, op, a);
    tile_arg(r->p, op, b);
    if (c) tile_arg(r->p, op, c);
    return tile_result(r->p, r->k, op, name, DT_F32, axes, 2);
}

// A product's result as an operand of the next.
static TileValue *operand(Recur *r, const char *name, TileValue *v) {
    if (v->dtype == r->p->dtype) return v;
    TileOp *map = pass_map(r->p, r->k, r->block, pass_axes_of(v), r->rec->span);
    return narrow(r, map, name, pass_operand(r->p, map, v));
}

static TileValue *inverse(Recur *r, TileValue *n) {
    TileOp *op = tile_op(r->p, r->k, r->block, TILE_INVERT, r->rec->span);
    uint8_t axes[2] = {(uint8_t)r->T, (uint8_t)r->U};
    tile_arg(r->p, op, n);
    return tile_result(r->p, r->k, op, "W", r->p->dtype, axes, 2);
}

// The same along the other of T and U.
static TileValue *beside(Recur *r, const char *name, TileValue *v, int from, int to) {
    uint8_t axes[TILE_MAX_RANK];
    TileOp *op = tile_op(r->p, r->k, r->block, TILE_BESIDE, r->rec->span);
    tile_arg(r->p, op, v);
    for (int i = 0; i < v->rank; i++) axes[i] = v->axis[i] == from ? (uint8_t)to : v->axis[i];
    return tile_result(r->p, r->k, op, name, v->dtype, axes, v->rank);
}

static const Ex *size(Recur *r, int index) { return ex_sym(r->x, SYM_SIZE, index, EX_I32); }
static const Ex *pos(Recur *r, int axis) { return ex_sym(r->x, SYM_POS, axis, EX_I32); }
static const Ex *number(Recur *r, double v) { return ex_f32(r->x, (float)v); }

static const Ex *times(Recur *r, const Ex *a, const Ex *b) {
    return !a ? b : !b ? a : ex_2(r->x, EX_MUL, a, b);
}

static const Ex *where(Recur *r, const Ex *c, const Ex *e) {
    return c ? ex_select(r->x, c, e, number(r, 0)) : e;
}

static const Ex *both(Recur *r, const Ex *a, const Ex *b) {
    return !a ? b : !b ? a : ex_2(r->x, EX_AND, a, b);
}

// Is the position one of the sequence?
static const Ex *exists(Recur *r, int axis) {
    return ex_2(r->x, EX_LT, pos(r, axis), size(r, RSIZE_S));
}

// The tile at hand.
static const Ex *tile_of(Recur *r, int axis) {
    return r->k->axes[axis].whole ? ex_i32(r->x, 0)
                                  : ex_sym(r->x, SYM_TILE, tile_root_axis(r->k, axis), EX_I32);
}

static void set_coords(Recur *r, TileOp *op, int tensor, const Ex *head, int rows, int columns) {
    int axes[] = {rows, columns};
    op->tensor = tensor;
    op->coord[0] = (TileCoord){-1, ex_symbol(r->x, SYM_B)};
    op->coord[1] = (TileCoord){-1, head};
    for (int i = 0; i < 2; i++) op->coord[2 + i] = (TileCoord){axes[i], tile_of(r, axes[i])};
}

static TileValue *load(Recur *r, const char *name, int tensor, int heads, int rows, int columns) {
    TileOp *op = tile_op(r->p, r->k, r->block, TILE_LOAD, r->rec->span);
    uint8_t axes[2] = {(uint8_t)rows, (uint8_t)columns};
    const Ex *head = ex_symbol(r->x, SYM_H);
    if (heads != RSIZE_H)
        head = ex_2(r->x, EX_DIV, ex_2(r->x, EX_MUL, head, size(r, heads)), size(r, RSIZE_H));
    set_coords(r, op, tensor, head, rows, columns);
    return tile_result(r->p, r->k, op, name, r->p->tensors.data[tensor].dtype, axes, 2);
}

static void store(Recur *r, int tensor, TileValue *v, int rows) {
    TileOp *op = tile_op(r->p, r->k, r->block, TILE_STORE, r->rec->span);
    set_coords(r, op, tensor, ex_symbol(r->x, SYM_H), rows, r->E);
    tile_arg(r->p, op, v);
}

// ---- clauses

typedef struct Clause { // what its symbols stand for in a map
    Recur *r;
    TileOp *map;
    int along;
    TileValue *o, *norm_o;
} Clause;

static const Ex *clause_one(void *ctx, ExPool *x, const Ex *e) {
    const Clause *c = ctx;
    Recur *r = c->r;
    if (e->op == EX_LOAD)
        return ex_load(x, e->input, e->type, e->args, e->nargs,
                       e->inside && !ex_uses(e, SYM_POS, -1));
    if (e->op != EX_SYM) return e;
    switch ((int)e->sym) {
    case SYM_T_IDX: return pos(r, rows_axis(r, c->along));
    case SYM_D_IDX: return pos(r, r->D);
    case SYM_E_IDX: return pos(r, r->E);
    case SYM_Q: return in(r, c->map, r->raw_q);
    case SYM_K: return in(r, c->map, r->raw_k[c->along]);
    case SYM_V: return in(r, c->map, r->raw_v[c->along]);
    case SYM_SQQ: return in(r, c->map, r->norm_q);
    case SYM_SQK: return in(r, c->map, r->norm_k[c->along]);
    case SYM_SQV: return in(r, c->map, r->norm_v[c->along]);
    case SYM_O: return in(r, c->map, c->o);
    case SYM_SQO: return in(r, c->map, c->norm_o);
    default: return e;
    }
}

static const Ex *clause(Recur *r, TileOp *map, int along, const Ex *e) {
    Clause c = {.r = r, .map = map, .along = along};
    return ex_map(r->x, e, clause_one, &c);
}

// A number of each row; 0 behind the sequence. A constant stays one: elements are 0 there.
static Number row_number(Recur *r, const char *name, const Ex *e, int along) {
    if (!e || e->op == EX_CONST) return (Number){NULL, e && ex_is_f32(e, 1) ? NULL : e};
    int rows = rows_axis(r, along);
    TileOp *map = open(r, rows, -1, -1);
    return (Number){out(r, map, name, where(r, exists(r, rows), clause(r, map, along, e))), NULL};
}

// As a factor in a map; NULL: 1.
static const Ex *factor(Recur *r, TileOp *map, Number n) {
    return n.v ? in(r, map, n.v) : n.constant;
}

// Elements along a row; as they are in memory where the clause says no more.
static TileValue *elements(Recur *r, const char *name, const Ex *e, int along, int columns) {
    if (e->op == EX_SYM && e->sym == SYM_Q) return r->raw_q;
    if (e->op == EX_SYM && e->sym == SYM_K) return r->raw_k[along];
    if (e->op == EX_SYM && e->sym == SYM_V) return r->raw_v[along];
    int rows = rows_axis(r, along);
    TileOp *map = open(r, rows, columns, -1);
    int size = columns == r->E ? r->rec->Dv : r->rec->D; // tiles may have more
    const Ex *there =
        both(r, exists(r, rows), ex_2(r->x, EX_LT, pos(r, columns), ex_i32(r->x, size)));
    return narrow(r, map, name, where(r, there, clause(r, map, along, e)));
}

// ---- what is loaded

static bool uses(const Ex *e, ExSym sym) { return e && ex_uses(e, sym, 0); }

static TileValue *norm(Recur *r, const char *name, TileValue *v, int along, int columns) {
    TileOp *map = open(r, rows_axis(r, along), columns, -1);
    const Ex *e = in(r, map, v);
    return reduce(r, map, name, EX_ROWSUM, columns, ex_2(r->x, EX_MUL, e, e));
}

// Where v is read: along T by what is solved and by a bonus, along U by what is not.
static void load_values(Recur *r) {
    const Chunk *c = r->c;
    bool solved = c->erase.elem && c->nwrites == 1;
    if (solved || c->bonus) r->raw_v[ALONG_T] = load(r, "vt", r->v, RSIZE_HV, r->T, r->E);
    if (!solved) r->raw_v[ALONG_U] = load(r, "v", r->v, RSIZE_HV, r->U, r->E);
    for (int i = 0; i < 2; i++)
        if (r->raw_v[i] && (uses(c->value, SYM_SQV) || uses(c->write[0].value, SYM_SQV)))
            r->norm_v[i] = norm(r, i ? "nv" : "nvt", r->raw_v[i], i, r->E);
}

static void load_rows(Recur *r) {
    const Chunk *c = r->c;
    bool keys = false;
    const Ex *of_k[] = {c->erase.elem,      c->erase.number,  c->write[0].elem,  c->write[0].value,
                        c->write[0].erased, c->write[1].elem, c->write[1].erased};
    for (size_t i = 0; i < sizeof of_k / sizeof *of_k; i++) keys |= uses(of_k[i], SYM_SQK);
    r->raw_q = load(r, "q", r->q, RSIZE_HQ, r->T, r->D);
    r->raw_k[ALONG_U] = load(r, "k", r->key, RSIZE_HK, r->U, r->D);
    if (c->erase.elem || c->bonus)
        r->raw_k[ALONG_T] = beside(r, "kt", r->raw_k[ALONG_U], r->U, r->T);
    if (uses(c->query.elem, SYM_SQQ) || uses(c->query.number, SYM_SQQ))
        r->norm_q = norm(r, "nq", r->raw_q, ALONG_T, r->D);
    if (keys) r->norm_k[ALONG_U] = norm(r, "nk", r->raw_k[ALONG_U], ALONG_U, r->D);
    if (keys && r->raw_k[ALONG_T])
        r->norm_k[ALONG_T] = beside(r, "nkt", r->norm_k[ALONG_U], r->U, r->T);
    load_values(r);
}

// ---- decays

// The exponents' whole numbers and the rest; of channels, which have short chunks, there is no whole.
typedef struct Parts {
    const Ex *rest, *whole;
} Parts;

static Parts parts_of(Recur *r, const Ex *e) {
    if (r->c->channel) return (Parts){e, NULL};
    const Ex *whole = ex_1(r->x, EX_FLOOR, ex_2(r->x, EX_ADD, e, number(r, 0.5)));
    return (Parts){ex_2(r->x, EX_SUB, e, whole), whole};
}

static Sum prefix(Recur *r, TileOp *map, const char *name, bool strict, Parts e) {
    TileValue *rest = scan(r, map, name, EX_ROWSUM, strict, e.rest);
    return (Sum){rest, e.whole ? scan(r, map, "Lw", EX_ROWSUM, strict, e.whole) : NULL};
}

static void make_decays(Recur *r) {
    const Chunk *c = r->c;
    Decays *d = &r->decay;
    if (!c->decay) return;
    int channel = c->channel ? r->D : -1;
    TileOp *map = open(r, r->T, channel, -1);
    TileValue *l = out(r, map, "l", where(r, exists(r, r->T), clause(r, map, ALONG_T, c->decay)));
    map = open(r, r->T, channel, -1);
    const Ex *e = in(r, map, l), *gone = ex_2(r->x, EX_LT, e, number(r, CHUNK_ZERO));
    const Ex *at = ex_select(r->x, gone, ex_conv(r->x, EX_F32, pos(r, r->T)), number(r, -1));
    Parts parts = parts_of(r, ex_select(r->x, gone, number(r, 0), e));
    bool before = c->query.before || (c->erase.elem && !c->erase.decayed);
    bool up_to = !c->query.before || c->erase.decayed;
    d->sum = prefix(r, map, "L", false, parts);
    if (up_to) d->zero = scan(r, map, "z", EX_ROWMAX, false, at);
    if (before) d->sum_before = prefix(r, map, "Lb", true, parts);
    if (before) d->zero_before = scan(r, map, "zb", EX_ROWMAX, true, at);
    d->end.rest = reduce(r, map, "Le", EX_ROWSUM, r->T, parts.rest);
    if (parts.whole) d->end.whole = reduce(r, map, "Lew", EX_ROWSUM, r->T, parts.whole);
    d->zero_end = reduce(r, map, "ze", EX_ROWMAX, r->T, at);
    d->to_write.rest = beside(r, "Lu", d->sum.rest, r->T, r->U);
    if (parts.whole) d->to_write.whole = beside(r, "Luw", d->sum.whole, r->T, r->U);
}

static Sum sum_of(const Recur *r, const ChunkRead *read) {
    return read->before && !read->decayed ? r->decay.sum_before : r->decay.sum;
}

static TileValue *zero_of(const Recur *r, const ChunkRead *read) {
    return read->before && !read->decayed ? r->decay.zero_before : r->decay.zero;
}

static const Ex *difference(Recur *r, TileOp *map, TileValue *a, TileValue *b) {
    return ex_2(r->x, EX_SUB, in(r, map, a), in(r, map, b));
}

// exp2(sum - sum of u) where no zero lies behind u. NULL: there are no decays.
static const Ex *from_write(Recur *r, TileOp *map, Sum sum, TileValue *zero) {
    if (!r->c->decay) return NULL;
    Sum u = r->decay.to_write;
    const Ex *fall = difference(r, map, sum.rest, u.rest);
    if (sum.whole) fall = ex_2(r->x, EX_ADD, difference(r, map, sum.whole, u.whole), fall);
    const Ex *kept = ex_2(r->x, EX_LE, in(r, map, zero), ex_conv(r->x, EX_F32, pos(r, r->U)));
    return where(r, kept, ex_1(r->x, EX_EXP2, fall));
}

// e times what is left of the state before the chunk.
static const Ex *from_start(Recur *r, TileOp *map, Sum sum, TileValue *zero, const Ex *e) {
    if (!r->c->decay) return e;
    const Ex *kept = ex_2(r->x, EX_LT, in(r, map, zero), number(r, 0)),
             *fall = in(r, map, sum.rest);
    if (sum.whole) fall = ex_2(r->x, EX_ADD, in(r, map, sum.whole), fall);
    return where(r, kept, times(r, e, ex_1(r->x, EX_EXP2, fall)));
}

// ---- scores and states

typedef struct Read {
    const ChunkRead *is;
    TileValue *elem; // [T, D]
    Number number;   // along T
} Read;

typedef struct Write {
    TileValue *elem; // [U, D]
    TileValue *x;    // [U, E]
    Number number;   // of x, along U
} Write;

// <read, write>(t, u) without numbers, where channels have their own decays.
static TileValue *channel_scores(Recur *r, const Read *read, const Write *write) {
    TileOp *map = open(r, r->T, r->U, r->D);
    const Ex *pair = times(r, in(r, map, read->elem), in(r, map, write->elem));
    const Ex *e = times(r, pair, from_write(r, map, sum_of(r, read->is), zero_of(r, read->is)));
    return reduce(r, map, "a", EX_ROWSUM, r->D, e);
}

static TileValue *scores(Recur *r, const char *name, Dtype t, const Read *read, const Write *write,
                         Number of_row) {
    bool channel = r->c->channel;
    TileValue *a = channel ? channel_scores(r, read, write)
                           : product(r, "a", read->elem, write->elem, NULL, r->T, r->U);
    TileOp *map = open(r, r->T, r->U, -1);
    const Ex *e =
        times(r, times(r, in(r, map, a), factor(r, map, of_row)), factor(r, map, write->number));
    if (!channel) e = times(r, e, from_write(r, map, sum_of(r, read->is), zero_of(r, read->is)));
    const Ex *earlier = ex_2(r->x, read->is->before ? EX_LT : EX_LE, pos(r, r->U), pos(r, r->T));
    return pass_out(r->p, r->k, map, name, t, where(r, earlier, e), EX_CONST, 0);
}

// What a read gets of the state before the chunk, without its number.
static TileValue *of_state(Recur *r, const char *name, const Read *read, TileValue *state) {
    Sum sum = sum_of(r, read->is);
    TileValue *zero = zero_of(r, read->is), *elem = read->elem;
    if (r->c->channel) {
        TileOp *map = open(r, r->T, r->D, -1);
        elem = narrow(r, map, "rd", from_start(r, map, sum, zero, in(r, map, elem)));
    }
    TileValue *i = product(r, name, elem, state, NULL, r->T, r->E);
    if (r->c->channel || !r->c->decay) return i;
    TileOp *map = open(r, r->T, r->E, -1);
    return out(r, map, name, from_start(r, map, sum, zero, in(r, map, i)));
}

// S1 += write, decayed to the end of the chunk.
static TileValue *add_write(Recur *r, const Write *w, TileValue *state) {
    Sum end = r->decay.end;
    TileValue *elem = w->elem, *x = w->x, *zero = r->decay.zero_end;
    if (r->c->channel) {
        TileOp *map = open(r, r->U, r->D, -1);
        elem = narrow(r, map, "wd", times(r, in(r, map, elem), from_write(r, map, end, zero)));
    }
    bool decays = r->c->decay && !r->c->channel;
    if (decays || w->number.v || w->number.constant) {
        TileOp *map = open(r, r->U, r->E, -1);
        const Ex *e = times(r, in(r, map, x), factor(r, map, w->number));
        x = narrow(r, map, "xs", decays ? times(r, e, from_write(r, map, end, zero)) : e);
    }
    return product(r, "S", elem, operand(r, "xs", x), state, r->D, r->E);
}

static TileValue *new_state(Recur *r, const Write *w, TileValue *state) {
    if (r->c->decay) {
        TileOp *map = open(r, r->D, r->E, -1);
        state = out(r, map, "d",
                    from_start(r, map, r->decay.end, r->decay.zero_end, in(r, map, state)));
    }
    for (int i = 0; i < r->c->nwrites; i++) state = add_write(r, &w[i], state);
    return state;
}

// ---- what is erased

// x = (I - N)^-1 (value v + erased u0), of one write.
static void solve(Recur *r, const Read *erase, Write *w, TileValue *state) {
    const Chunk *c = r->c;
    Number value = row_number(r, "nv", c->write[0].value, ALONG_T),
           erased = row_number(r, "nu", c->write[0].erased, ALONG_T);
    TileValue *v = elements(r, "ve", c->value, ALONG_T, r->E), *u = of_state(r, "u", erase, state);
    TileOp *map = open(r, r->T, -1, -1); // both numbers of what is erased
    const Ex *number = times(r, factor(r, map, erased), factor(r, map, erase->number));
    Number both = number && number->op != EX_CONST ? (Number){out(r, map, "ne", number), NULL}
                                                   : (Number){NULL, number};
    if (!both.v) tile_unlink(map);
    TileValue *n = scores(r, "N", DT_F32, erase, w, both);
    map = open(r, r->T, r->E, -1);
    const Ex *own = times(r, in(r, map, v), factor(r, map, value));
    const Ex *read = times(r, in(r, map, u), factor(r, map, both));
    TileValue *y = narrow(r, map, "y", ex_2(r->x, EX_ADD, own, read));
    w->x = product(r, "x", inverse(r, n), y, NULL, r->U, r->E);
}

// u = (I - N)^-1 (u0 + M v), of two: w[1] writes it.
static void solve_erased(Recur *r, const Read *erase, Write *w, TileValue *state) {
    TileValue *u = of_state(r, "u", erase, state);
    if (erase->number.v || erase->number.constant) {
        TileOp *map = open(r, r->T, r->E, -1);
        u = out(r, map, "u", times(r, in(r, map, u), factor(r, map, erase->number)));
    }
    TileValue *m = scores(r, "M", r->p->dtype, erase, &w[0], erase->number),
              *n = scores(r, "N", DT_F32, erase, &w[1], erase->number);
    TileValue *y = operand(r, "y", product(r, "y", m, operand(r, "xm", w[0].x), u, r->T, r->E));
    w[1].x = product(r, "x", inverse(r, n), y, NULL, r->U, r->E);
}

static void make_writes(Recur *r, Write *w, TileValue *state) {
    const Chunk *c = r->c;
    bool solved = c->erase.elem && c->nwrites == 1;
    for (int i = 0; i < c->nwrites; i++) {
        w[i] = (Write){.elem = elements(r, i ? "w" : "ke", c->write[i].elem, ALONG_U, r->D)};
        if (!solved)
            w[i].number =
                row_number(r, i ? "nu" : "nw", i ? c->write[i].erased : c->write[i].value, ALONG_U);
    }
    if (!solved) w[0].x = elements(r, "ve", c->value, ALONG_U, r->E);
    if (!c->erase.elem) return;
    Read erase = {&c->erase, elements(r, "e", c->erase.elem, ALONG_T, r->D),
                  row_number(r, "ner", c->erase.number, ALONG_T)};
    (solved ? solve : solve_erased)(r, &erase, w, state);
}

// ---- the output

// The sum of query bonus key, times the value's number: of v at the position itself.
static TileValue *bonus(Recur *r, const Read *query) {
    const Chunk *c = r->c;
    Number value = row_number(r, "nb", c->write[0].value, ALONG_T);
    TileValue *key = elements(r, "kb", c->write[0].elem, ALONG_T, r->D);
    TileOp *map = open(r, r->T, r->D, -1);
    const Ex *pair = times(r, in(r, map, query->elem), in(r, map, key));
    TileValue *sum =
        reduce(r, map, "bq", EX_ROWSUM, r->D, times(r, pair, clause(r, map, ALONG_T, c->bonus)));
    if (!value.v && !value.constant) return sum;
    map = open(r, r->T, -1, -1);
    return out(r, map, "b", times(r, in(r, map, sum), factor(r, map, value)));
}

static TileValue *finish(Recur *r, const Read *query, TileValue *o) {
    const Ex *clause_o = r->rec->output;
    Number n = query->number;
    if (r->c->bonus) {
        TileValue *b = bonus(r, query), *v = elements(r, "vb", r->c->value, ALONG_T, r->E);
        TileOp *map = open(r, r->T, r->E, -1);
        o = out(r, map, "o",
                ex_2(r->x, EX_ADD, in(r, map, o), times(r, in(r, map, v), in(r, map, b))));
    }
    if (n.v || n.constant) {
        TileOp *map = open(r, r->T, r->E, -1);
        o = out(r, map, "o", times(r, in(r, map, o), factor(r, map, n)));
    }
    if (clause_o->op == EX_SYM && clause_o->sym == SYM_O) return o;
    Clause c = {.r = r, .along = ALONG_T, .o = o};
    if (uses(clause_o, SYM_SQO)) c.norm_o = norm(r, "no", o, ALONG_T, r->E);
    c.map = open(r, r->T, r->E, -1);
    return out(r, c.map, "o", ex_map(r->x, clause_o, clause_one, &c));
}

static TileValue *chunk(Recur *r, TileValue *state) {
    const Chunk *c = r->c;
    Write w[2];
    make_decays(r);
    load_rows(r);
    TileValue *s = operand(r, "s", state);
    make_writes(r, w, s);
    Read query = {&c->query, elements(r, "qe", c->query.elem, ALONG_T, r->D),
                  row_number(r, "nq", c->query.number, ALONG_T)};
    TileValue *o = of_state(r, "i", &query, s);
    for (int i = 0; i < c->nwrites; i++) {
        TileValue *a = scores(r, "p", r->p->dtype, &query, &w[i], (Number){NULL, NULL});
        o = product(r, "o", a, operand(r, "xp", w[i].x), o, r->T, r->E);
    }
    store(r, r->o, finish(r, &query, o), r->T);
    return new_state(r, w, state);
}

// ---- the program

static int tensor(Recur *r, const char *name, TensorRole role, Dtype t, int heads, const Ex *rows,
                  int columns) {
    TileTensor x = {.name = name,
                    .role = role,
                    .dtype = t,
                    .rank = 4,
                    .extent = {size(r, RSIZE_B), size(r, heads), rows, ex_i32(r->x, columns)}};
    VEC_PUSH(r->arena, &r->p->tensors, x);
    return r->p->tensors.n - 1;
}

static void add_tensors(Recur *r, Dtype t) {
    const RecProgram *rec = r->rec;
    const Ex *S = size(r, RSIZE_S), *D = ex_i32(r->x, rec->D);
    r->q = tensor(r, "q", TENSOR_Q, t, RSIZE_HQ, S, rec->D);
    r->key = tensor(r, "k", TENSOR_K, t, RSIZE_HK, S, rec->D);
    r->v = tensor(r, "v", TENSOR_V, t, RSIZE_HV, S, rec->Dv);
    for (int i = 0; i < rec->inputs.n; i++) {
        const RowInput *from = &rec->inputs.data[i];
        TileTensor x = {.name = from->name,
                        .role = TENSOR_INPUT,
                        .index = i,
                        .dtype = from->dtype,
                        .rank = from->rank};
        for (int d = 0; d < from->rank; d++) x.extent[d] = from->extent[d];
        VEC_PUSH(r->arena, &r->p->inputs, r->p->tensors.n);
        VEC_PUSH(r->arena, &r->p->tensors, x);
    }
    r->state0 = tensor(r, "state0", TENSOR_STATE0, DT_F32, RSIZE_H, D, rec->Dv);
    r->o = tensor(r, "o", TENSOR_O, t, RSIZE_H, S, rec->Dv);
    r->state = tensor(r, "state", TENSOR_STATE, DT_F32, RSIZE_H, D, rec->Dv);
}

static void build_kernel(Recur *r, const char *name, TilePurpose purpose) {
    const Ex *one = ex_i32(r->x, 1);
    TileKernel *k = r->k =
        tile_kernel(r->p, arena_printf(r->arena, "%s_%s", r->rec->name, name), purpose);
    memset(r->raw_k, 0, sizeof r->raw_k);
    memset(r->raw_v, 0, sizeof r->raw_v);
    r->T = tile_axis(k, "T", size(r, RSIZE_S), false);
    r->U = tile_axis(k, "U", size(r, RSIZE_S), false);
    r->D = tile_axis(k, "D", ex_i32(r->x, r->rec->D), true);
    r->E = tile_axis(k, "E", ex_i32(r->x, r->rec->Dv), false);
    k->axes[r->U].beside = r->T;
    k->ngrid = 3;
    k->grid[0] = (TileGrid){.sym = SYM_B, .count = size(r, RSIZE_B)};
    k->grid[1] = (TileGrid){.sym = SYM_H, .count = size(r, RSIZE_H)};
    k->grid[2] = (TileGrid){.sym = SYM_TILE, .axis = r->E, .count = one};
    k->mask = ex_bool(r->x, true);
    r->block = &k->body;
    TileValue *first = load(r, "S0", r->state0, RSIZE_H, r->D, r->E);
    TileOp *loop = tile_op(r->p, k, r->block, TILE_LOOP, r->rec->span);
    loop->axis = r->T;
    loop->from = ex_i32(r->x, 0), loop->to = one, loop->index = ex_symbol(r->x, SYM_STEP);
    loop->body.owner = loop;
    tile_arg(r->p, loop, first);
    TileValue *state = tile_value(r->p, k, "S", DT_F32, first->axis, 2);
    state->def = loop;
    VEC_PUSH(r->arena, &loop->carried, state);
    TileValue *last = tile_result(r->p, k, loop, "Sn", DT_F32, first->axis, 2);
    r->block = &loop->body;
    TileValue *next = chunk(r, state);
    tile_arg(r->p, tile_op(r->p, k, r->block, TILE_YIELD, r->rec->span), next);
    r->block = &k->body;
    store(r, r->state, last, r->D);
}

static void add_plan(Recur *r, const Ex *when, int kernel) {
    TilePlan plan = {.when = when};
    VEC_PUSH(r->arena, &plan.kernels, kernel);
    VEC_PUSH(r->arena, &r->p->plans, plan);
}

TileProgram *pass_build_recurrence(Arena *a, const Chunk *c, const PassOptions *o, int few) {
    const RecProgram *rec = c->rec;
    Recur r = {.arena = a, .x = rec->pool, .c = c, .rec = rec};
    TileProgram *p = r.p = tile_program(a, rec->pool, rec->name);
    p->recurrence = true;
    p->target = o->target.id;
    p->dtype = o->dtype;
    p->D = rec->D;
    p->Dv = rec->Dv;
    tile_sizes(p, &rec->sizes);
    add_tensors(&r, o->dtype);
    build_kernel(&r, "fwd", PURPOSE_CHUNK);
    if (few) build_kernel(&r, "steps", PURPOSE_STEPS);
    if (few) add_plan(&r, ex_2(r.x, EX_LE, size(&r, RSIZE_S), ex_i32(r.x, few)), 1);
    add_plan(&r, NULL, 0);
    return p;
}
