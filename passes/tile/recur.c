// recur.c: a recurrence's chunked form as a tile program (ir/chunk.h has the mathematics).
//
// In: a chunked form. Out: a program of one kernel, algorithm level; with `few` of up to two more, for so many positions at most: one
// of short chunks, and one that goes position after position (decoding: recur_steps.c). A point of the grid has a head and some
// columns of v; it goes from chunk to chunk (axis T) and carries the state, f32[D, E]. Reads lie along T, writes along U, the same
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
//
// Position after position there is no chunk (recur_steps.c). T and U are then no axes: what lies along them is of the position at
// hand, a number of it has no axis, and nothing is rounded, because no product takes it.
#include "passes/tile/recur.h"

#include <string.h>

static int rows_axis(const Recur *r, int along) { return along == ALONG_T ? r->T : r->U; }

// ---- building

static AxisSet set(int a, int b, int c) {
    return (a < 0 ? 0 : 1u << a) | (b < 0 ? 0 : 1u << b) | (c < 0 ? 0 : 1u << c);
}

TileOp *recur_open(Recur *r, int a, int b, int c) {
    return pass_map(r->p, r->k, r->block, set(a, b, c), r->rec->span);
}

const Ex *recur_in(Recur *r, TileOp *map, TileValue *v) { return pass_operand(r->p, map, v); }

TileValue *recur_out(Recur *r, TileOp *map, const char *name, const Ex *e) {
    return pass_out(r->p, r->k, map, name, DT_F32, e, EX_CONST, 0);
}

// As an operand of products, in the element type.
TileValue *recur_narrow(Recur *r, TileOp *map, const char *name, const Ex *e) {
    return pass_out(r->p, r->k, map, name, r->p->dtype, e, EX_CONST, 0);
}

TileValue *recur_reduce(Recur *r, TileOp *map, const char *name, ExOp op, int over, const Ex *e) {
    return pass_out(r->p, r->k, map, name, DT_F32, e, op, over);
}

// A prefix along T.
TileValue *recur_scan(Recur *r, TileOp *map, const char *name, ExOp op, bool strict, const Ex *e) {
    TileValue *v = recur_out(r, map, name, e);
    TileResult *to = &map->outs.data[map->outs.n - 1];
    to->reduce = op;
    to->reduce_axis = r->T;
    to->scan = SCAN_PREFIX;
    to->strict = strict;
    return v;
}

TileValue *recur_product(Recur *r, const char *name, TileValue *a, TileValue *b, TileValue *c,
                         int rows, int columns) {
    TileOp *op = tile_op(r->p, r->k, r->block, TILE_MMA, r->rec->span);
    uint8_t axes[2] = {(uint8_t)rows, (uint8_t)columns};
    tile_arg(r->p, op, a);
    tile_arg(r->p, op, b);
    if (c) tile_arg(r->p, op, c);
    return tile_result(r->p, r->k, op, name, DT_F32, axes, 2);
}

// A product's result as an operand of the next.
TileValue *recur_operand(Recur *r, const char *name, TileValue *v) {
    if (v->dtype == r->p->dtype) return v;
    TileOp *map = pass_map(r->p, r->k, r->block, pass_axes_of(v), r->rec->span);
    return recur_narrow(r, map, name, pass_operand(r->p, map, v));
}

// The same along the other of T and U.
TileValue *recur_beside(Recur *r, const char *name, TileValue *v, int from, int to) {
    uint8_t axes[TILE_MAX_RANK];
    if (from < 0) return v;
    TileOp *op = tile_op(r->p, r->k, r->block, TILE_BESIDE, r->rec->span);
    tile_arg(r->p, op, v);
    for (int i = 0; i < v->rank; i++) axes[i] = v->axis[i] == from ? (uint8_t)to : v->axis[i];
    return tile_result(r->p, r->k, op, name, v->dtype, axes, v->rank);
}

const Ex *recur_size(Recur *r, int index) { return ex_sym(r->x, SYM_SIZE, index, EX_I32); }
const Ex *recur_pos(Recur *r, int axis) {
    return axis < 0 ? r->position : ex_sym(r->x, SYM_POS, axis, EX_I32);
}
const Ex *recur_number(Recur *r, double v) { return ex_f32(r->x, (float)v); }

const Ex *recur_times(Recur *r, const Ex *a, const Ex *b) {
    return !a ? b : !b ? a : ex_2(r->x, EX_MUL, a, b);
}

const Ex *recur_where(Recur *r, const Ex *c, const Ex *e) {
    return c ? ex_select(r->x, c, e, recur_number(r, 0)) : e;
}

const Ex *recur_both(Recur *r, const Ex *a, const Ex *b) {
    return !a ? b : !b ? a : ex_2(r->x, EX_AND, a, b);
}

// Is the position one of the sequence? NULL: it is.
const Ex *recur_exists(Recur *r, int axis) {
    if (axis < 0) return NULL;
    return ex_2(r->x, EX_LT, recur_pos(r, axis), recur_size(r, RSIZE_S));
}

// The tile at hand.
const Ex *recur_tile_of(Recur *r, int axis) {
    if (axis < 0) return r->position;
    return r->k->axes[axis].whole ? ex_i32(r->x, 0)
                                  : ex_sym(r->x, SYM_TILE, tile_root_axis(r->k, axis), EX_I32);
}

void recur_set_coords(Recur *r, TileOp *op, int tensor, const Ex *head, int rows, int columns) {
    int axes[] = {rows, columns};
    int n = 0;
    bool batch = r->p->batch, state = rows == r->D, by_row = batch && !state;
    const Ex *place = batch && state ? recur_size(r, r->at.slot) : ex_symbol(r->x, SYM_B);
    op->tensor = tensor;
    if (by_row) places_query(&r->at, recur_pos(r, rows), &place);
    op->each[0] = by_row && rows >= 0;
    op->coord[n++] = (TileCoord){.axis = op->each[0] ? rows : -1, .at = place};
    op->coord[n++] = (TileCoord){.axis = -1, .at = head};
    for (int i = by_row; i < 2; i++)
        op->coord[n++] = (TileCoord){.axis = axes[i], .at = recur_tile_of(r, axes[i])};
}

TileValue *recur_load(Recur *r, const char *name, int tensor, int heads, int rows, int columns) {
    TileOp *op = tile_op(r->p, r->k, r->block, TILE_LOAD, r->rec->span);
    uint8_t axes[2] = {(uint8_t)rows, (uint8_t)columns};
    int along = rows < 0; // axes that the value lacks
    const Ex *head = ex_symbol(r->x, SYM_H);
    if (heads != RSIZE_H)
        head = ex_2(r->x, EX_DIV, ex_2(r->x, EX_MUL, head, recur_size(r, heads)),
                    recur_size(r, RSIZE_H));
    recur_set_coords(r, op, tensor, head, rows, columns);
    return tile_result(r->p, r->k, op, name, along ? DT_F32 : r->p->tensors.data[tensor].dtype,
                       axes + along, 2 - along);
}

void recur_store(Recur *r, int tensor, TileValue *v, int rows) {
    TileOp *op = tile_op(r->p, r->k, r->block, TILE_STORE, r->rec->span);
    recur_set_coords(r, op, tensor, ex_symbol(r->x, SYM_H), rows, r->E);
    tile_arg(r->p, op, v);
    if (r->p->batch && rows == r->D) // a sequence without positions leaves its slot
        op->when = ex_2(r->x, EX_LT, ex_i32(r->x, 0), recur_size(r, RSIZE_S));
}

// ---- clauses

static const Ex *clause_one(void *ctx, ExPool *x, const Ex *e) {
    const Clause *c = ctx;
    Recur *r = c->r;
    if (e->op == EX_LOAD && r->p->batch)
        e = places_load(&r->at, &r->rec->inputs.data[e->input], e,
                        recur_pos(r, rows_axis(r, c->along)), NULL);
    if (e->op == EX_LOAD)
        return ex_load(x, e->input, e->type, e->args, e->nargs,
                       e->inside && !ex_uses(e, SYM_POS, -1));
    if (e->op != EX_SYM) return e;
    switch ((int)e->sym) {
    case SYM_T_IDX: return recur_pos(r, rows_axis(r, c->along));
    case SYM_D_IDX: return recur_pos(r, r->D);
    case SYM_E_IDX: return recur_pos(r, r->E);
    case SYM_Q: return recur_in(r, c->map, r->raw_q);
    case SYM_K: return recur_in(r, c->map, r->raw_k[c->along]);
    case SYM_V: return recur_in(r, c->map, r->raw_v[c->along]);
    case SYM_SQQ: return recur_in(r, c->map, r->norm_q);
    case SYM_SQK: return recur_in(r, c->map, r->norm_k[c->along]);
    case SYM_SQV: return recur_in(r, c->map, r->norm_v[c->along]);
    case SYM_O: return recur_in(r, c->map, c->o);
    case SYM_SQO: return recur_in(r, c->map, c->norm_o);
    default: return e;
    }
}

const Ex *recur_clause_of(Clause *c, const Ex *e) { return ex_map(c->r->x, e, clause_one, c); }

const Ex *recur_clause(Recur *r, TileOp *map, int along, const Ex *e) {
    Clause c = {.r = r, .map = map, .along = along};
    return recur_clause_of(&c, e);
}

// A number of each row; 0 behind the sequence. A constant stays one: elements are 0 there.
Number recur_row_number(Recur *r, const char *name, const Ex *e, int along) {
    if (!e || e->op == EX_CONST) return (Number){NULL, e && ex_is_f32(e, 1) ? NULL : e};
    int rows = rows_axis(r, along);
    TileOp *map = recur_open(r, rows, -1, -1);
    return (Number){
        recur_out(r, map, name,
                  recur_where(r, recur_exists(r, rows), recur_clause(r, map, along, e))),
        NULL};
}

// As a factor in a map; NULL: 1.
const Ex *recur_factor(Recur *r, TileOp *map, Number n) {
    return n.v ? recur_in(r, map, n.v) : n.constant;
}

// Elements along a row; as they are in memory where the clause says no more.
TileValue *recur_elements(Recur *r, const char *name, const Ex *e, int along, int columns) {
    if (e->op == EX_SYM && e->sym == SYM_Q) return r->raw_q;
    if (e->op == EX_SYM && e->sym == SYM_K) return r->raw_k[along];
    if (e->op == EX_SYM && e->sym == SYM_V) return r->raw_v[along];
    int rows = rows_axis(r, along);
    TileOp *map = recur_open(r, rows, columns, -1);
    int size = columns == r->E ? r->rec->Dv : r->rec->D; // tiles may have more
    const Ex *there = recur_both(r, recur_exists(r, rows),
                                 ex_2(r->x, EX_LT, recur_pos(r, columns), ex_i32(r->x, size)));
    return pass_out(r->p, r->k, map, name, rows < 0 ? DT_F32 : r->p->dtype,
                    recur_where(r, there, recur_clause(r, map, along, e)), EX_CONST, 0);
}

// ---- what is loaded

bool recur_uses(const Ex *e, ExSym sym) { return e && ex_uses(e, sym, 0); }

TileValue *recur_norm(Recur *r, const char *name, TileValue *v, int along, int columns) {
    TileOp *map = recur_open(r, rows_axis(r, along), columns, -1);
    const Ex *e = recur_in(r, map, v);
    return recur_reduce(r, map, name, EX_ROWSUM, columns, ex_2(r->x, EX_MUL, e, e));
}

static bool sums_columns(const Chunk *c) {
    return recur_uses(c->value, SYM_SQV) || recur_uses(c->write[0].value, SYM_SQV);
}

// Where v is read: along T by what is solved and by a bonus, along U by what is not.
static void load_values(Recur *r) {
    const Chunk *c = r->c;
    bool solved = c->erase.elem && c->nwrites == 1;
    bool one = r->T < 0;
    if (r->no_values) return;
    if (solved || c->bonus || one)
        r->raw_v[ALONG_T] = recur_load(r, "vt", r->v, RSIZE_HV, r->T, r->E);
    if (!solved && !one) r->raw_v[ALONG_U] = recur_load(r, "v", r->v, RSIZE_HV, r->U, r->E);
    for (int i = 0; i < 2; i++)
        if (r->raw_v[i] && sums_columns(c))
            r->norm_v[i] = recur_norm(r, i ? "nv" : "nvt", r->raw_v[i], i, r->E);
}

void recur_load_rows(Recur *r) {
    const Chunk *c = r->c;
    bool keys = false;
    const Ex *of_k[] = {c->erase.elem,      c->erase.number,  c->write[0].elem,  c->write[0].value,
                        c->write[0].erased, c->write[1].elem, c->write[1].erased};
    for (size_t i = 0; i < sizeof of_k / sizeof *of_k; i++) keys |= recur_uses(of_k[i], SYM_SQK);
    r->raw_q = recur_load(r, "q", r->q, RSIZE_HQ, r->T, r->D);
    r->raw_k[ALONG_U] = recur_load(r, "k", r->key, RSIZE_HK, r->U, r->D);
    if (c->erase.elem || c->bonus)
        r->raw_k[ALONG_T] = recur_beside(r, "kt", r->raw_k[ALONG_U], r->U, r->T);
    if (recur_uses(c->query.elem, SYM_SQQ) || recur_uses(c->query.number, SYM_SQQ))
        r->norm_q = recur_norm(r, "nq", r->raw_q, ALONG_T, r->D);
    if (keys) r->norm_k[ALONG_U] = recur_norm(r, "nk", r->raw_k[ALONG_U], ALONG_U, r->D);
    if (keys && r->raw_k[ALONG_T])
        r->norm_k[ALONG_T] = recur_beside(r, "nkt", r->norm_k[ALONG_U], r->U, r->T);
    load_values(r);
}

// ---- decays

// The exponents' whole numbers and the rest; of channels, which have short chunks, there is no whole.
typedef struct Parts {
    const Ex *rest, *whole;
} Parts;

static Parts parts_of(Recur *r, const Ex *e) {
    if (r->c->channel) return (Parts){e, NULL};
    const Ex *whole = ex_1(r->x, EX_FLOOR, ex_2(r->x, EX_ADD, e, recur_number(r, 0.5)));
    return (Parts){ex_2(r->x, EX_SUB, e, whole), whole};
}

static Sum prefix(Recur *r, TileOp *map, const char *name, bool strict, Parts e) {
    TileValue *rest = recur_scan(r, map, name, EX_ROWSUM, strict, e.rest);
    return (Sum){rest, e.whole ? recur_scan(r, map, "Lw", EX_ROWSUM, strict, e.whole) : NULL};
}

void recur_make_decays(Recur *r) {
    const Chunk *c = r->c;
    Decays *d = &r->decay;
    if (!c->decay) return;
    int channel = c->channel ? r->D : -1;
    TileOp *map = recur_open(r, r->T, channel, -1);
    TileValue *l =
        recur_out(r, map, "l",
                  recur_where(r, recur_exists(r, r->T), recur_clause(r, map, ALONG_T, c->decay)));
    map = recur_open(r, r->T, channel, -1);
    const Ex *e = recur_in(r, map, l), *gone = ex_2(r->x, EX_LT, e, recur_number(r, CHUNK_ZERO));
    const Ex *at =
        ex_select(r->x, gone, ex_conv(r->x, EX_F32, recur_pos(r, r->T)), recur_number(r, -1));
    Parts parts = parts_of(r, ex_select(r->x, gone, recur_number(r, 0), e));
    bool before = c->query.before || (c->erase.elem && !c->erase.decayed);
    bool up_to = !c->query.before || c->erase.decayed;
    d->sum = prefix(r, map, "L", false, parts);
    if (up_to) d->zero = recur_scan(r, map, "z", EX_ROWMAX, false, at);
    if (before) d->sum_before = prefix(r, map, "Lb", true, parts);
    if (before) d->zero_before = recur_scan(r, map, "zb", EX_ROWMAX, true, at);
    d->end.rest = recur_reduce(r, map, "Le", EX_ROWSUM, r->T, parts.rest);
    if (parts.whole) d->end.whole = recur_reduce(r, map, "Lew", EX_ROWSUM, r->T, parts.whole);
    d->zero_end = recur_reduce(r, map, "ze", EX_ROWMAX, r->T, at);
    d->to_write.rest = recur_beside(r, "Lu", d->sum.rest, r->T, r->U);
    if (parts.whole) d->to_write.whole = recur_beside(r, "Luw", d->sum.whole, r->T, r->U);
}

Sum recur_sum_of(const Recur *r, const ChunkRead *read) {
    return read->before && !read->decayed ? r->decay.sum_before : r->decay.sum;
}

TileValue *recur_zero_of(const Recur *r, const ChunkRead *read) {
    return read->before && !read->decayed ? r->decay.zero_before : r->decay.zero;
}

static const Ex *difference(Recur *r, TileOp *map, TileValue *a, TileValue *b) {
    return ex_2(r->x, EX_SUB, recur_in(r, map, a), recur_in(r, map, b));
}

// exp2(sum), less the sum of u where `write`.
const Ex *recur_fall(Recur *r, TileOp *map, Sum sum, bool write) {
    Sum u = r->decay.to_write;
    const Ex *rest = write ? difference(r, map, sum.rest, u.rest) : recur_in(r, map, sum.rest);
    if (!sum.whole) return ex_1(r->x, EX_EXP2, rest);
    const Ex *whole = write ? difference(r, map, sum.whole, u.whole) : recur_in(r, map, sum.whole);
    return ex_1(r->x, EX_EXP2, ex_2(r->x, EX_ADD, whole, rest));
}

// exp2(sum - sum of u) where no zero lies behind u. NULL: there are no decays.
const Ex *recur_from_write(Recur *r, TileOp *map, Sum sum, TileValue *zero) {
    if (!r->c->decay) return NULL;
    const Ex *at = ex_conv(r->x, EX_F32, recur_pos(r, r->U));
    const Ex *kept = ex_2(r->x, EX_LE, recur_in(r, map, zero), at);
    return recur_where(r, kept, recur_fall(r, map, sum, true));
}

// e times what is left of the state before the chunk.
const Ex *recur_from_start(Recur *r, TileOp *map, Sum sum, TileValue *zero, const Ex *e) {
    if (!r->c->decay) return e;
    const Ex *kept = ex_2(r->x, EX_LT, recur_in(r, map, zero), recur_number(r, 0));
    return recur_where(r, kept, recur_times(r, e, recur_fall(r, map, sum, false)));
}

// ---- scores and states

// <read, write>(t, u) without numbers, where channels have their own decays.
static TileValue *channel_scores(Recur *r, const Read *read, const Write *write) {
    TileOp *map = recur_open(r, r->T, r->U, r->D);
    const Ex *pair = recur_times(r, recur_in(r, map, read->elem), recur_in(r, map, write->elem));
    const Ex *e = recur_times(
        r, pair, recur_from_write(r, map, recur_sum_of(r, read->is), recur_zero_of(r, read->is)));
    return recur_reduce(r, map, "a", EX_ROWSUM, r->D, e);
}

// The scores of all pairs of positions, in a map of their own.
static const Ex *scores(Recur *r, TileOp **map, const Read *read, const Write *write,
                        Number of_row) {
    bool channel = r->c->channel;
    TileValue *a = channel ? channel_scores(r, read, write)
                           : recur_product(r, "a", read->elem, write->elem, NULL, r->T, r->U);
    *map = recur_open(r, r->T, r->U, -1);
    const Ex *e =
        recur_times(r, recur_times(r, recur_in(r, *map, a), recur_factor(r, *map, of_row)),
                    recur_factor(r, *map, write->number));
    if (channel) return e;
    return recur_times(
        r, e, recur_from_write(r, *map, recur_sum_of(r, read->is), recur_zero_of(r, read->is)));
}

TileValue *recur_scores(Recur *r, const char *name, const Read *read, const Write *write,
                        Number of_row) {
    TileOp *map;
    const Ex *e = scores(r, &map, read, write, of_row);
    const Ex *earlier =
        ex_2(r->x, read->is->before ? EX_LT : EX_LE, recur_pos(r, r->U), recur_pos(r, r->T));
    return pass_out(r->p, r->k, map, name, r->p->dtype, recur_where(r, earlier, e), EX_CONST, 0);
}

// (I - N)^-1 of their triangle N before the diagonal, which is all that an inverse reads.
TileValue *recur_inverse(Recur *r, const Read *erase, const Write *write, Number of_row) {
    TileOp *map;
    const Ex *e = scores(r, &map, erase, write, of_row);
    TileValue *n = pass_out(r->p, r->k, map, "N", DT_F32, e, EX_CONST, 0);
    TileOp *op = tile_op(r->p, r->k, r->block, TILE_INVERT, r->rec->span);
    uint8_t axes[2] = {(uint8_t)r->T, (uint8_t)r->U};
    tile_arg(r->p, op, n);
    return tile_result(r->p, r->k, op, "W", r->p->dtype, axes, 2);
}

// What a read gets of the state before the chunk, without its number.
static TileValue *of_state(Recur *r, const char *name, const Read *read, TileValue *state) {
    Sum sum = recur_sum_of(r, read->is);
    TileValue *zero = recur_zero_of(r, read->is), *elem = read->elem;
    if (r->c->channel) {
        TileOp *map = recur_open(r, r->T, r->D, -1);
        elem =
            recur_narrow(r, map, "rd", recur_from_start(r, map, sum, zero, recur_in(r, map, elem)));
    }
    TileValue *i = recur_product(r, name, elem, state, NULL, r->T, r->E);
    if (r->c->channel || !r->c->decay) return i;
    TileOp *map = recur_open(r, r->T, r->E, -1);
    return recur_out(r, map, name, recur_from_start(r, map, sum, zero, recur_in(r, map, i)));
}

// S1 += write, decayed to the end of the chunk.
static TileValue *add_write(Recur *r, const Write *w, TileValue *state) {
    Sum end = r->decay.end;
    TileValue *elem = w->elem, *x = w->x, *zero = r->decay.zero_end;
    if (r->c->channel) {
        TileOp *map = recur_open(r, r->U, r->D, -1);
        elem = recur_narrow(
            r, map, "wd",
            recur_times(r, recur_in(r, map, elem), recur_from_write(r, map, end, zero)));
    }
    bool decays = r->c->decay && !r->c->channel;
    if (decays || w->number.v || w->number.constant) {
        TileOp *map = recur_open(r, r->U, r->E, -1);
        const Ex *e = recur_times(r, recur_in(r, map, x), recur_factor(r, map, w->number));
        x = recur_narrow(r, map, "xs",
                         decays ? recur_times(r, e, recur_from_write(r, map, end, zero)) : e);
    }
    return recur_product(r, "S", elem, recur_operand(r, "xs", x), state, r->D, r->E);
}

// By the chunk's decays. A factor of 0 forgets what is infinite, too.
TileValue *recur_decayed_state(Recur *r, TileValue *state) {
    const Decays *d = &r->decay;
    TileOp *map = recur_open(r, r->D, r->c->channel ? -1 : r->E, -1);
    if (!r->c->channel)
        return recur_out(r, map, "d",
                         recur_from_start(r, map, d->end, d->zero_end, recur_in(r, map, state)));
    TileValue *left =
        recur_out(r, map, "le", recur_from_start(r, map, d->end, d->zero_end, recur_number(r, 1)));
    map = recur_open(r, r->D, r->E, -1);
    const Ex *by = recur_in(r, map, left), *none = recur_number(r, 0);
    return recur_out(r, map, "d",
                     ex_select(r->x, ex_2(r->x, EX_EQ, by, none), none,
                               recur_times(r, recur_in(r, map, state), by)));
}

TileValue *recur_new_state(Recur *r, const Write *w, TileValue *state) {
    if (r->c->decay) state = recur_decayed_state(r, state);
    for (int i = 0; i < r->c->nwrites; i++)
        if (w[i].x) state = add_write(r, &w[i], state);
    return state;
}

// ---- what is erased

// x = (I - N)^-1 (value v + erased u0), of one write.
static void solve(Recur *r, const Read *erase, Write *w, TileValue *state) {
    const Chunk *c = r->c;
    Number value = recur_row_number(r, "nv", c->write[0].value, ALONG_T),
           erased = recur_row_number(r, "nu", c->write[0].erased, ALONG_T);
    TileValue *v = r->no_values ? NULL : recur_elements(r, "ve", c->value, ALONG_T, r->E),
              *u = of_state(r, "u", erase, state);
    TileOp *map = recur_open(r, r->T, -1, -1); // both numbers of what is erased
    const Ex *number =
        recur_times(r, recur_factor(r, map, erased), recur_factor(r, map, erase->number));
    Number both = number && number->op != EX_CONST ? (Number){recur_out(r, map, "ne", number), NULL}
                                                   : (Number){NULL, number};
    if (!both.v) tile_unlink(map);
    TileValue *inverse = recur_inverse(r, erase, w, both);
    map = recur_open(r, r->T, r->E, -1);
    const Ex *e = recur_times(r, recur_in(r, map, u), recur_factor(r, map, both));
    if (v)
        e = ex_2(r->x, EX_ADD, recur_times(r, recur_in(r, map, v), recur_factor(r, map, value)), e);
    TileValue *y = recur_narrow(r, map, "y", e);
    w->x = recur_product(r, "x", inverse, y, NULL, r->U, r->E);
}

// u = (I - N)^-1 (u0 + M v), of two: w[1] writes it.
static void solve_erased(Recur *r, const Read *erase, Write *w, TileValue *state) {
    TileValue *u = of_state(r, "u", erase, state);
    if (erase->number.v || erase->number.constant) {
        TileOp *map = recur_open(r, r->T, r->E, -1);
        u = recur_out(r, map, "u",
                      recur_times(r, recur_in(r, map, u), recur_factor(r, map, erase->number)));
    }
    if (w[0].x) {
        TileValue *m = recur_scores(r, "M", erase, &w[0], erase->number);
        u = recur_product(r, "y", m, recur_operand(r, "xm", w[0].x), u, r->T, r->E);
    }
    TileValue *inverse = recur_inverse(r, erase, &w[1], erase->number);
    w[1].x = recur_product(r, "x", inverse, recur_operand(r, "y", u), NULL, r->U, r->E);
}

void recur_make_writes(Recur *r, Write *w, TileValue *state) {
    const Chunk *c = r->c;
    bool solved = c->erase.elem && c->nwrites == 1;
    for (int i = 0; i < c->nwrites; i++) {
        w[i] = (Write){.elem = recur_elements(r, i ? "w" : "ke", c->write[i].elem, ALONG_U, r->D)};
        if (!solved)
            w[i].number = recur_row_number(r, i ? "nu" : "nw",
                                           i ? c->write[i].erased : c->write[i].value, ALONG_U);
    }
    if (!solved && !r->no_values) w[0].x = recur_elements(r, "ve", c->value, ALONG_U, r->E);
    if (!c->erase.elem) return;
    Read erase = {&c->erase, recur_elements(r, "e", c->erase.elem, ALONG_T, r->D),
                  recur_row_number(r, "ner", c->erase.number, ALONG_T)};
    (solved ? solve : solve_erased)(r, &erase, w, state);
}

// ---- the output

// The sum of query bonus key, times the value's number: of v at the position itself.
static TileValue *bonus(Recur *r, const Read *query) {
    const Chunk *c = r->c;
    Number value = recur_row_number(r, "nb", c->write[0].value, ALONG_T);
    TileValue *key = recur_elements(r, "kb", c->write[0].elem, ALONG_T, r->D);
    TileOp *map = recur_open(r, r->T, r->D, -1);
    const Ex *pair = recur_times(r, recur_in(r, map, query->elem), recur_in(r, map, key));
    TileValue *sum = recur_reduce(r, map, "bq", EX_ROWSUM, r->D,
                                  recur_times(r, pair, recur_clause(r, map, ALONG_T, c->bonus)));
    if (!value.v && !value.constant) return sum;
    map = recur_open(r, r->T, -1, -1);
    return recur_out(r, map, "b",
                     recur_times(r, recur_in(r, map, sum), recur_factor(r, map, value)));
}

TileValue *recur_aggregate(Recur *r, const Read *query, TileValue *o) {
    Number n = query->number;
    if (r->c->bonus) {
        TileValue *b = bonus(r, query), *v = recur_elements(r, "vb", r->c->value, ALONG_T, r->E);
        TileOp *map = recur_open(r, r->T, r->E, -1);
        o = recur_out(r, map, "o",
                      ex_2(r->x, EX_ADD, recur_in(r, map, o),
                           recur_times(r, recur_in(r, map, v), recur_in(r, map, b))));
    }
    if (n.v || n.constant) {
        TileOp *map = recur_open(r, r->T, r->E, -1);
        o = recur_out(r, map, "o", recur_times(r, recur_in(r, map, o), recur_factor(r, map, n)));
    }
    return o;
}

TileValue *recur_finish(Recur *r, TileValue *o) {
    const Ex *clause_o = r->rec->output;
    if (clause_o->op == EX_SYM && clause_o->sym == SYM_O) return o;
    Clause c = {.r = r, .along = ALONG_T, .o = o};
    if (recur_uses(clause_o, SYM_SQO)) c.norm_o = recur_norm(r, "no", o, ALONG_T, r->E);
    c.map = recur_open(r, r->T, r->E, -1);
    return recur_out(r, c.map, "o", recur_clause_of(&c, clause_o));
}

// o of the chunk, as the query reads it, before `output`; w: what is written.
TileValue *recur_output(Recur *r, const Write *w, TileValue *state) {
    const Chunk *c = r->c;
    Read query = {&c->query, recur_elements(r, "qe", c->query.elem, ALONG_T, r->D),
                  recur_row_number(r, "nq", c->query.number, ALONG_T)};
    TileValue *o = of_state(r, "i", &query, state);
    for (int i = 0; i < c->nwrites; i++) {
        TileValue *a = recur_scores(r, "p", &query, &w[i], (Number){NULL, NULL});
        o = recur_product(r, "o", a, recur_operand(r, "xp", w[i].x), o, r->T, r->E);
    }
    return recur_aggregate(r, &query, o);
}

static TileValue *chunk(Recur *r, TileValue *state) {
    Write w[2];
    recur_make_decays(r);
    recur_load_rows(r);
    TileValue *s = recur_operand(r, "s", state);
    recur_make_writes(r, w, s);
    recur_store(r, r->o, recur_finish(r, recur_output(r, w, s)), r->T);
    return recur_new_state(r, w, state);
}

// ---- the program

int recur_tensor(Recur *r, const char *name, TensorRole role, Dtype t, int heads, const Ex *rows,
                 int columns) {
    TileTensor x = {
        .name = name,
        .role = role,
        .dtype = t,
        .rank = 4,
        .extent = {recur_size(r, RSIZE_B), recur_size(r, heads), rows, ex_i32(r->x, columns)}};
    bool of_rows = rows == recur_size(r, RSIZE_S);
    if (r->p->batch && of_rows) {
        places_rows(&r->at, &x, false);
        x.extent[x.rank++] = recur_size(r, heads);
        x.extent[x.rank++] = ex_i32(r->x, columns);
    } else if (r->p->batch) {
        x.extent[0] = recur_size(r, r->at.slots);
    }
    return tile_tensor(r->p, x);
}

// q, k, v and the inputs.
void recur_add_operands(Recur *r, Dtype t) {
    const RecProgram *rec = r->rec;
    const Ex *S = recur_size(r, RSIZE_S);
    r->q = recur_tensor(r, "q", TENSOR_Q, t, RSIZE_HQ, S, rec->D);
    r->key = recur_tensor(r, "k", TENSOR_K, t, RSIZE_HK, S, rec->D);
    r->v = recur_tensor(r, "v", TENSOR_V, t, RSIZE_HV, S, rec->Dv);
    for (int i = 0; i < rec->inputs.n; i++) {
        const RowInput *from = &rec->inputs.data[i];
        TileTensor x = {.name = from->name,
                        .role = TENSOR_INPUT,
                        .index = i,
                        .dtype = from->dtype,
                        .rank = from->rank};
        for (int d = 0; d < from->rank; d++) x.extent[d] = from->extent[d];
        if (r->p->batch) places_input(&r->at, from, &x);
        VEC_PUSH(r->arena, &r->p->inputs, r->p->tensors.n);
        tile_tensor(r->p, x);
    }
    if (r->p->batch) places_index_tensors(&r->at);
}

void recur_add_state0(Recur *r) {
    const Ex *D = ex_i32(r->x, r->rec->D);
    r->state0 = recur_tensor(r, "state0", TENSOR_STATE0, DT_F32, RSIZE_H, D, r->rec->Dv);
}

static void add_tensors(Recur *r, Dtype t) {
    const Ex *S = recur_size(r, RSIZE_S), *D = ex_i32(r->x, r->rec->D);
    recur_add_operands(r, t);
    recur_add_state0(r);
    r->o = recur_tensor(r, "o", TENSOR_O, t, RSIZE_H, S, r->rec->Dv);
    r->state = recur_tensor(r, "state", TENSOR_STATE, DT_F32, RSIZE_H, D, r->rec->Dv);
}

void recur_grid(Recur *r) {
    TileKernel *k = r->k;
    k->ngrid = 3;
    k->grid[0] = (TileGrid){.sym = SYM_B, .count = recur_size(r, RSIZE_B)};
    k->grid[1] = (TileGrid){.sym = SYM_H, .count = recur_size(r, RSIZE_H)};
    k->grid[2] = (TileGrid){.sym = SYM_TILE, .axis = r->E, .count = ex_i32(r->x, 1)};
    k->mask = ex_bool(r->x, true);
    r->block = &k->body;
}

void recur_kernel(Recur *r, const char *name, TilePurpose purpose) {
    TileKernel *k = r->k =
        tile_kernel(r->p, arena_printf(r->arena, "%s_%s", r->rec->name, name), purpose);
    memset(r->raw_k, 0, sizeof r->raw_k);
    memset(r->raw_v, 0, sizeof r->raw_v);
    r->T = tile_axis(k, "T", recur_size(r, RSIZE_S), false);
    r->U = tile_axis(k, "U", recur_size(r, RSIZE_S), false);
    r->D = tile_axis(k, "D", ex_i32(r->x, r->rec->D), true);
    r->E = tile_axis(k, "E", ex_i32(r->x, r->rec->Dv), false);
    k->axes[r->U].beside = r->T;
    recur_grid(r);
}

TileValue *recur_first(Recur *r, const char *name, int tensor) {
    return recur_load(r, arena_printf(r->arena, "%s0", name), tensor, RSIZE_H, r->D, r->E);
}

TileValue *recur_loop(Recur *r, const char *name, int axis, TileValue *first, const Ex *to,
                      const Ex *index, TileValue *(*step)(void *ctx, TileValue *state), void *ctx) {
    TileOp *loop = tile_op(r->p, r->k, r->block, TILE_LOOP, r->rec->span);
    loop->axis = axis;
    loop->from = ex_i32(r->x, 0), loop->to = to, loop->index = index;
    loop->body.owner = loop;
    tile_arg(r->p, loop, first);
    TileValue *state = tile_value(r->p, r->k, name, DT_F32, first->axis, 2);
    state->def = loop;
    VEC_PUSH(r->arena, &loop->carried, state);
    TileValue *last =
        tile_result(r->p, r->k, loop, arena_printf(r->arena, "%sn", name), DT_F32, first->axis, 2);
    r->block = &loop->body;
    TileValue *next = step(ctx, state);
    tile_arg(r->p, tile_op(r->p, r->k, r->block, TILE_YIELD, r->rec->span), next);
    r->block = &r->k->body;
    return last;
}

TileValue *recur_chunks(Recur *r, const char *name, TileValue *first, const Ex *index,
                        TileValue *(*chunk)(void *ctx, TileValue *state), void *ctx) {
    return recur_loop(r, name, r->T, first, ex_i32(r->x, 1), index, chunk, ctx);
}

static TileValue *forward_chunk(void *ctx, TileValue *state) { return chunk(ctx, state); }

static void build_chain(Recur *r, const char *name, TilePurpose purpose) {
    recur_kernel(r, name, purpose);
    TileValue *first = recur_first(r, "S", r->state0);
    recur_store(r, r->state,
                recur_chunks(r, "S", first, ex_symbol(r->x, SYM_STEP), forward_chunk, r), r->D);
}

// before: a kernel that stands before them; -1: none.
static void add_plan(Recur *r, const Ex *when, int before, int from, int to) {
    TilePlan plan = {.when = when};
    if (before >= 0) VEC_PUSH(r->arena, &plan.kernels, before);
    for (int i = from; i < to; i++) VEC_PUSH(r->arena, &plan.kernels, i);
    VEC_PUSH(r->arena, &r->p->plans, plan);
}

// Position after position as long as that is faster than the shortest chunk: longer where that has to solve what is erased. A sum over the
// columns of v, which lie over a GPU's warps there, has chunks.
enum { STEPS = 2, STEPS_ERASE = 4 };

static int most_steps(const Recur *r) {
    if (sums_columns(r->c) && target_get(r->p->target)->kind != KIND_HOST) return 0;
    return r->c->erase.elem ? STEPS_ERASE : STEPS;
}

static void add_few(Recur *r, int positions) {
    const Ex *all = pass_at_launch(r->p, recur_size(r, RSIZE_S));
    int last = r->p->kernels.n - 1;
    add_plan(r, ex_2(r->x, EX_LE, all, ex_i32(r->x, positions)), -1, last, last + 1);
}

static void build_few(Recur *r, int few) {
    int steps = most_steps(r) < few ? most_steps(r) : few;
    if (steps) {
        recur_steps(r);
        add_few(r, steps);
    }
    if (few <= STEPS_ERASE) return; // no chunk is shorter
    build_chain(r, "few", PURPOSE_FEW);
    add_few(r, few);
}

// What it returns is the workspace so far.
static int build_segments(Recur *r, int before) {
    Segments s = recur_segments(r, 0, 0);
    int from = r->p->kernels.n;
    recur_segment_starts(&s, r->state0, r->state);
    recur_segment_kernel(&s, "segments", PURPOSE_CHUNK);
    recur_chunks(r, "S", recur_segment_first(&s, "S"), ex_symbol(r->x, SYM_STEP), forward_chunk, r);
    const Ex *several = ex_2(r->x, EX_LT, ex_i32(r->x, 1), recur_size(r, s.number));
    add_plan(r, several, before, from, r->p->kernels.n);
    return s.works;
}

TileProgram *recur_program(Arena *a, const RecProgram *rec, const PassOptions *o) {
    TileProgram *p = tile_program(a, rec->pool, rec->name);
    p->recurrence = true;
    p->target = o->target.id;
    p->dtype = o->dtype;
    p->D = rec->D;
    p->Dv = rec->Dv;
    tile_sizes(p, &rec->sizes);
    p->batch = o->batch;
    return p;
}

// What is made before, in the kernels that stand behind it: -1: nothing.
static Prepare prepared(Recur *r, const PassOptions *o) {
    Prepare prepare = {.index = -1};
    if (!recur_prepares(r->c, o)) return prepare;
    r->p->chunks = pass_size(r->p, "chunks", ex_i32(r->x, 1));
    recur_prepare(&prepare, r, "prepared", 0, r->p->chunks);
    return prepare;
}

// Of the positions at hand: `state`, what they leave that begin with none, and `phi`, what they make of a state: a matrix with erase, a
// factor for each channel where there are decays, else 1.
static TileProgram *build_part(Recur *r, const PassOptions *o) {
    TileProgram *p = r->p;
    const Ex *D = ex_i32(r->x, r->rec->D);
    bool erases = r->c->erase.elem != NULL;
    p->phase = PHASE_PART;
    recur_add_operands(r, o->dtype);
    r->state = recur_tensor(r, "state", TENSOR_STATE, DT_F32, RSIZE_H, D, r->rec->Dv);
    Prepare prepare = prepared(r, o);
    int from = p->kernels.n;
    recur_kernel(r, "part", PURPOSE_CHUNK);
    recur_store(r, r->state, recur_part(r), r->D);
    if (erases || r->c->decay) {
        const Ex *rows = erases ? D : ex_i32(r->x, 1);
        int phi = recur_tensor(r, "phi", TENSOR_STATE, DT_F32, RSIZE_H, rows, r->rec->D);
        recur_kernel(r, "part_phi", PURPOSE_CHUNK);
        TileValue *made = recur_transition(r);
        TileOp *op = tile_op(p, r->k, r->block, TILE_STORE, r->rec->span);
        recur_set_coords(r, op, phi, ex_symbol(r->x, SYM_H), erases ? r->D : r->E,
                         erases ? r->E : r->D);
        tile_arg(p, op, made);
    }
    if (p->chunks) recur_cut(&prepare, 0);
    add_plan(r, NULL, prepare.index, from, p->kernels.n);
    return p;
}

TileProgram *pass_build_recurrence(Arena *a, const Chunk *c, const PassOptions *o, int few) {
    const RecProgram *rec = c->rec;
    Recur r = {.arena = a, .x = rec->pool, .c = c, .rec = rec};
    r.p = recur_program(a, rec, o);
    if (o->phase == PHASE_PART) return build_part(&r, o);
    if (o->batch) places_sizes(&r.at, r.p, 0);
    add_tensors(&r, o->dtype);
    build_chain(&r, "fwd", PURPOSE_CHUNK);
    if (few) build_few(&r, few);
    Prepare prepare = prepared(&r, o);
    if (!o->batch) prepare.works = build_segments(&r, prepare.index);
    if (r.p->chunks) recur_cut(&prepare, 0);
    add_plan(&r, NULL, prepare.index, 0, 1);
    return r.p;
}
