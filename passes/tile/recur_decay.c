// recur_decay.c: the gradient of a recurrence's decay in the kernel of one chunk (recur_back.c).
//
// In: what comes to the reads of the chunk, its states. Out: the gradient of the decay's exponent, or of the decay. A pair is what a
// read gets of a write, times what comes to the read; all of it passes through each decay between the two:
//
//     dl_s = sum of the pairs (t, j) with j < s <= p_t + reads of S0 with p_t >= s + writes j < s that reach F1 + G <F1, S0>
//
// Pairs are summed up as such where one decay is all channels': a prefix over j, then the rows from s on. By channel they are sums
// over rows and columns, whose suffixes are subtracted; a pair of a position with itself is in neither. A decay of 0 has what passes
// through it when it is 1: the pairs that have this zero alone between them, which the position of their last zero names.
#include "passes/tile/recur_back.h"

typedef struct
    Zeros { // of the decays up to a read's: the positions of the last and the last but one; -1: none
    TileValue *last, *before;
} Zeros;

typedef struct Flow {
    const Back *b;
    Recur *r;
    const Chunked *x;
    int columns;           // D, or -1
    Zeros at, strict, end; // of reads of S_t, of S_{t-1}; of the whole chunk
    bool zeros;            // what passes through zeros alone
} Flow;

static const Ex *pos(const Flow *f, int axis) {
    return ex_conv(f->r->x, EX_F32, recur_pos(f->r, axis));
}

static bool of_before(const Read *read) { return read->is->before && !read->is->decayed; }

static TileValue *sum(const Flow *f, TileOp *map, const char *name, int over, const Ex *e) {
    return recur_reduce(f->r, map, name, EX_ROWSUM, over, e);
}

static TileValue *scan(const Flow *f, TileOp *map, const char *name, TileScan way, bool strict,
                       const Ex *e) {
    TileValue *v = recur_scan(f->r, map, name, EX_ROWSUM, strict, e);
    map->outs.data[map->outs.n - 1].scan = way;
    return v;
}

// ---- what is left between two: by the decays, or, of zeros, by those but the one zero

static const Ex *negative(const Flow *f, const Ex *e) {
    return ex_2(f->r->x, EX_LT, e, recur_number(f->r, 0));
}

// From the write along U.
static const Ex *between(const Flow *f, TileOp *map, Sum s, TileValue *zero, const Zeros *z) {
    Recur *r = f->r;
    if (!f->zeros) return recur_from_write(r, map, s, zero);
    const Ex *behind = ex_2(r->x, EX_LT, pos(f, r->U), recur_in(r, map, z->last)),
             *alone = ex_2(r->x, EX_LE, recur_in(r, map, z->before), pos(f, r->U));
    return recur_where(r, recur_both(r, behind, alone), recur_fall(r, map, s, true));
}

// e times that from before the chunk.
static const Ex *since(const Flow *f, TileOp *map, Sum s, TileValue *zero, const Zeros *z,
                       const Ex *e) {
    Recur *r = f->r;
    if (!f->zeros) return recur_from_start(r, map, s, zero, e);
    const Ex *some = ex_1(r->x, EX_NOT, negative(f, recur_in(r, map, z->last))),
             *alone = negative(f, recur_in(r, map, z->before));
    return recur_where(r, recur_both(r, some, alone),
                       recur_times(r, e, recur_fall(r, map, s, false)));
}

static const Zeros *zeros_of(const Flow *f, const Read *read) {
    return of_before(read) ? &f->strict : &f->at;
}

// ---- the four kinds of what passes

// Of pairs of a read and a write, in a map along T and U, and D by channel. A position with itself passes through nothing.
static const Ex *pair(const Flow *f, TileOp *map, const BackRead *read, int w) {
    Recur *r = f->r;
    const Write *to = &f->x->w[w];
    const Ex *e = recur_in(r, map, read->a[w]);
    if (r->c->channel) {
        const Ex *rw = recur_times(r, recur_in(r, map, read->is.elem), recur_in(r, map, to->elem));
        e = recur_times(r, e, rw);
    } else {
        e = recur_times(r, e, recur_in(r, map, read->pair[w]));
    }
    e = recur_times(r, recur_times(r, e, recur_factor(r, map, read->n)),
                    between(f, map, recur_sum_of(r, read->is.is), recur_zero_of(r, read->is.is),
                            zeros_of(f, &read->is)));
    return recur_where(r, ex_2(r->x, EX_LT, recur_pos(r, r->U), recur_pos(r, r->T)), e);
}

// a * b, by channel or summed over them.
static TileValue *product(const Flow *f, const char *name, TileValue *a, TileValue *b) {
    Recur *r = f->r;
    if (!r->c->channel) return recur_dot(r, name, a, b, (Number){NULL, NULL});
    TileOp *map = recur_open(r, a->axis[0], a->axis[1], -1);
    return recur_out(r, map, name, ex_2(r->x, EX_MUL, recur_in(r, map, a), recur_in(r, map, b)));
}

// Of a read from the state before the chunk, along T.
static TileValue *of_start(const Flow *f, const BackRead *read) {
    Recur *r = f->r;
    TileValue *v = product(f, "rs", read->is.elem, read->state);
    TileOp *map = recur_open(r, r->T, f->columns, -1);
    const Ex *e = recur_times(r, recur_in(r, map, v), recur_factor(r, map, read->n));
    return recur_out(r, map, "rs",
                     since(f, map, recur_sum_of(r, read->is.is), recur_zero_of(r, read->is.is),
                           zeros_of(f, &read->is), e));
}

// Of writes to the state behind the chunk, along U.
static TileValue *to_end(const Flow *f) {
    Recur *r = f->r;
    TileValue *all = NULL;
    for (int i = 0; i < r->c->nwrites; i++) {
        TileValue *v = product(f, "we", f->x->w[i].elem, f->x->reach[i]);
        TileOp *map = recur_open(r, r->U, f->columns, -1);
        const Ex *e = recur_times(r, recur_in(r, map, v), recur_factor(r, map, f->x->w[i].number));
        e = recur_times(r, e, between(f, map, r->decay.end, r->decay.zero_end, &f->end));
        all = recur_plus(r, "we", all, recur_out(r, map, "we", e));
    }
    return all;
}

// From the state before the chunk to the one behind it.
static TileValue *through(const Flow *f) {
    Recur *r = f->r;
    TileOp *map = recur_open(r, r->D, r->E, -1);
    const Ex *e = ex_2(r->x, EX_MUL, recur_in(r, map, f->x->f1), recur_in(r, map, f->x->s0));
    int first = f->b->by_positions ? r->D : r->E; // which lie side by side
    TileValue *v = sum(f, map, "fs", first, e);
    if (!r->c->channel) v = recur_summed(r, v, first == r->D ? r->E : r->D);
    map = recur_open(r, f->columns, -1, -1);
    return recur_out(r, map, "fs",
                     since(f, map, r->decay.end, r->decay.zero_end, &f->end, recur_in(r, map, v)));
}

// ---- of the exponents

// The pairs of a read that pass a position, along T; by channel.
static TileValue *channel_pass(const Flow *f, const BackRead *read) {
    Recur *r = f->r;
    TileValue *rows = NULL, *writes = NULL;
    for (int i = 0; i < r->c->nwrites; i++) {
        TileOp *map = recur_open(r, r->T, r->D, -1);
        const Ex *e =
            recur_times(r, recur_in(r, map, read->of_writes[i]), recur_in(r, map, read->is.elem));
        rows =
            recur_plus(r, "fr", rows,
                       recur_out(r, map, "fr", recur_times(r, e, recur_factor(r, map, read->n))));
        map = recur_open(r, r->U, r->D, -1);
        e = recur_times(r, recur_in(r, map, read->to_writes[i]), recur_in(r, map, f->x->w[i].elem));
        writes = recur_plus(r, "fw", writes, recur_out(r, map, "fw", e));
    }
    writes = recur_along_t(r, writes);
    bool before = of_before(&read->is);
    TileOp *map = recur_open(r, r->T, r->D, -1);
    const Ex *e = recur_in(r, map, rows), *w = recur_in(r, map, writes);
    if (!before) return scan(f, map, "fp", SCAN_SUFFIX, false, ex_2(r->x, EX_SUB, e, w));
    TileValue *a = scan(f, map, "fr", SCAN_SUFFIX, true, e),
              *b = scan(f, map, "fw", SCAN_SUFFIX, false, w);
    map = recur_open(r, r->T, r->D, -1);
    return recur_out(r, map, "fp", ex_2(r->x, EX_SUB, recur_in(r, map, a), recur_in(r, map, b)));
}

// Likewise of one decay for all channels, of all reads of S_t, or of S_{t-1}; NULL: there are none.
static TileValue *row_pass(const Flow *f, bool before) {
    Recur *r = f->r;
    TileValue *all = NULL;
    for (int i = 0; i < f->x->nreads * r->c->nwrites; i++) {
        const BackRead *read = &f->x->read[i / r->c->nwrites];
        if (of_before(&read->is) != before) continue;
        TileOp *map = recur_open(r, r->T, r->U, -1);
        const Ex *e = pair(f, map, read, i % r->c->nwrites);
        all = recur_plus(r, "fp", all, recur_out(r, map, "fp", e));
    }
    if (!all) return NULL;
    TileOp *map = recur_open(r, r->T, r->U, -1);
    TileValue *left = recur_out(r, map, "fl", recur_in(r, map, all)); // of the writes before
    TileResult *to = &map->outs.data[0];
    to->reduce = EX_ROWSUM, to->reduce_axis = r->U, to->scan = SCAN_PREFIX, to->strict = true;
    map = recur_open(r, r->T, r->U, -1);
    const Ex *reads = ex_2(r->x, before ? EX_LT : EX_LE, recur_pos(r, r->U), recur_pos(r, r->T));
    return recur_along_t(r, sum(f, map, "fp", r->T, recur_where(r, reads, recur_in(r, map, left))));
}

static TileValue *exponents(const Flow *f) {
    Recur *r = f->r;
    TileValue *all = NULL;
    for (int before = 0; before < 2; before++) {
        TileValue *start = NULL;
        if (!r->c->channel) all = recur_plus(r, "dl", all, row_pass(f, before));
        for (int i = 0; i < f->x->nreads; i++) {
            const BackRead *read = &f->x->read[i];
            if (of_before(&read->is) != before) continue;
            if (r->c->channel) all = recur_plus(r, "dl", all, channel_pass(f, read));
            start = recur_plus(r, "rs", start, of_start(f, read));
        }
        if (!start) continue;
        TileOp *map = recur_open(r, r->T, f->columns, -1);
        TileValue *later = scan(f, map, "rs", SCAN_SUFFIX, before, recur_in(r, map, start));
        all = recur_plus(r, "dl", all, later);
    }
    TileValue *end = recur_along_t(r, to_end(f)), *whole = through(f);
    TileOp *map = recur_open(r, r->T, f->columns, -1);
    end = scan(f, map, "we", SCAN_PREFIX, true, recur_in(r, map, end));
    map = recur_open(r, r->T, f->columns, -1);
    const Ex *e = recur_add(r, recur_in(r, map, all), recur_in(r, map, end));
    return recur_out(r, map, "dl", recur_add(r, e, recur_in(r, map, whole)));
}

// ---- of zeros

static void find_zeros(Flow *f) {
    Recur *r = f->r;
    TileOp *map = recur_open(r, r->T, f->columns, -1);
    const Ex *l = recur_where(r, recur_exists(r, r->T), recur_clause(r, map, ALONG_T, r->c->decay));
    const Ex *none = recur_number(r, -1);
    const Ex *gone = ex_2(r->x, EX_LT, l, recur_number(r, CHUNK_ZERO));
    const Ex *at = ex_select(r->x, gone, pos(f, r->T), none);
    f->at.last = recur_scan(r, map, "z", EX_ROWMAX, false, at);
    f->strict.last = recur_scan(r, map, "zb", EX_ROWMAX, true, at);
    f->end.last = recur_reduce(r, map, "ze", EX_ROWMAX, r->T, at);
    map = recur_open(r, r->T, f->columns, -1);
    l = recur_where(r, recur_exists(r, r->T), recur_clause(r, map, ALONG_T, r->c->decay));
    gone = ex_2(r->x, EX_LT, l, recur_number(r, CHUNK_ZERO));
    at = ex_select(r->x, gone, recur_in(r, map, f->strict.last), none);
    f->at.before = recur_scan(r, map, "zz", EX_ROWMAX, false, at);
    f->strict.before = recur_scan(r, map, "zzb", EX_ROWMAX, true, at);
    f->end.before = recur_reduce(r, map, "zze", EX_ROWMAX, r->T, at);
}

// Numbers along T to the positions of their zeros, along T.
static TileValue *to_zeros(const Flow *f, TileValue *v, const Zeros *z) {
    Recur *r = f->r;
    TileOp *map = recur_open(r, r->T, r->U, f->columns);
    const Ex *its = ex_2(r->x, EX_EQ, recur_in(r, map, z->last), pos(f, r->U));
    return recur_along_t(r, sum(f, map, "dz", r->T, recur_where(r, its, recur_in(r, map, v))));
}

static TileValue *at_zeros(Flow *f) {
    Recur *r = f->r;
    TileValue *all = NULL;
    find_zeros(f);
    for (int i = 0; i < f->x->nreads; i++) {
        const BackRead *read = &f->x->read[i];
        TileValue *row = of_start(f, read);
        for (int w = 0; w < r->c->nwrites; w++) {
            TileOp *map = recur_open(r, r->T, r->U, f->columns);
            row = recur_plus(r, "yz", row, sum(f, map, "yz", r->U, pair(f, map, read, w)));
        }
        all = recur_plus(r, "dz", all, to_zeros(f, row, zeros_of(f, &read->is)));
    }
    TileValue *end = recur_summed(r, to_end(f), r->U);
    end = recur_plus(r, "ez", end, through(f));
    TileOp *map = recur_open(r, r->T, f->columns, -1);
    const Ex *its = ex_2(r->x, EX_EQ, recur_in(r, map, f->end.last), pos(f, r->T));
    const Ex *e = recur_add(r, recur_in(r, map, all), recur_where(r, its, recur_in(r, map, end)));
    return recur_out(r, map, "dz", e);
}

// From the gradient of the exponent, without the factor of 2^x, to that of the piece.
TileValue *recur_decay_piece(Back *b, const Chunked *x) {
    Recur *r = &b->r;
    Flow f = {.b = b, .r = r, .x = x, .columns = r->c->channel ? r->D : -1};
    TileValue *dl = exponents(&f), *zero = NULL;
    f.zeros = b->back->at_zero;
    if (f.zeros) zero = at_zeros(&f);
    TileOp *map = recur_open(r, r->T, f.columns, -1);
    const Ex *l = recur_clause(r, map, ALONG_T, r->c->decay), *e = recur_in(r, map, dl);
    const Ex *gone = ex_2(r->x, EX_LT, l, recur_number(r, CHUNK_ZERO));
    e = b->back->by_exponent ? ex_2(r->x, EX_MUL, e, recur_number(r, 0.69314718055994531))
                             : ex_2(r->x, EX_DIV, e, recur_clause(r, map, ALONG_T, r->rec->decay));
    e = ex_select(r->x, gone, zero ? recur_in(r, map, zero) : recur_number(r, 0), e);
    return recur_out(r, map, "dg", recur_where(r, recur_inside(r, r->T, f.columns), e));
}
