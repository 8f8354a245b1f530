// together.c: what all threads of a block make together in shared memory, for GPUs: values without the rows that lie over
// the warps, as the scores of a recurrence's chunk.
//
// In: a map, a product or an invert whose operands and results lie in shared memory. Out: loops in which each
// thread makes every so-many-th element of a result; readable behind the next barrier. (cooperative.c has vectors that are
// made of a tile's rows, with loads of many elements.)
#include "codegen/gpu/gpu.h"

#include <assert.h>
#include <string.h>

typedef struct Elem { // the element at hand
    const TileOp *op;
    Val index[TILE_MAX_AXES]; // i32, within the tile
    Val *piece;               // of each operand, from an element on; NULL: one at a time
    int in_piece;
} Elem;

static int extent(Cg *cg, int axis) { return tile_extent(&cg->k->axes[axis]); }

static Val pointer(Cg *cg, const Elem *e, const TileValue *v) {
    int axis = v->rank ? v->axis[0] : -1;
    assert(v->home == HOME_SHARED && v->rank <= 2);
    return cg_shared_pointer(cg, v, axis, v->rank ? e->index[axis] : NULL,
                             v->rank > 1 ? e->index[v->axis[1]] : NULL);
}

static Val get(Cg *cg, const Elem *e, const TileValue *v) {
    return cg_read(cg, cg_load(cg, cg_dtype(cg, v->dtype), pointer(cg, e, v)), v->dtype);
}

// Whether elements along an axis follow each other, each row from a whole piece of memory on.
static bool follow(Cg *cg, const TileValue *v, int axis) {
    TileShared t = tile_shared(cg->p, cg->k, v);
    return t.row_axis < 0 ||
           (t.order == ORDER_PADDED && t.col_axis == axis && t.pitch % HOME_PIECE == 0);
}

// Of rows of 16 bits, `n` elements from the one at hand on are one load; others the assembler puts together.
static void read_pieces(Cg *cg, Elem *e, int axis, int n) {
    e->piece = ARENA_ARRAY(cg->arena, Val, e->op->args.n);
    for (int k = 0; k < e->op->args.n; k++) {
        const TileValue *v = e->op->args.data[k];
        if (v->rank < 2 || !dtype_half(v->dtype) || !follow(cg, v, axis)) continue;
        e->piece[k] = cg_load(cg, cg_vector(cg_dtype(cg, v->dtype), n), pointer(cg, e, v));
        LLVMSetAlignment(e->piece[k], (unsigned)(n * dtype_bytes(v->dtype)));
    }
}

static void put(Cg *cg, const Elem *e, const TileValue *v, Val x) {
    cg_store(cg, cg_write(cg, x, v->dtype), pointer(cg, e, v));
}

static Val operand(Cg *cg, CgElem *at, int k) {
    const Elem *e = at->ctx;
    const TileValue *v = e->op->args.data[k];
    if (!e->piece || !e->piece[k]) return get(cg, e, v);
    return cg_read(cg, cg_extract(cg, e->piece[k], cg_i32(cg, e->in_piece)), v->dtype);
}

static Val position(Cg *cg, CgElem *at, int axis) {
    const Elem *e = at->ctx;
    return cg_add(cg, cg_tile_begin(cg, axis), e->index[axis]);
}

// ---- a thread's elements

// The numbers below `n` that are this thread's, if `n` is no multiple of the threads only where `inside` says so.
typedef struct Deal {
    CgCount loop;
    Val at;
    Blk done; // NULL: all threads have as many
} Deal;

static Deal deal_numbers(Cg *cg, int n) {
    int threads = cg_gpu(cg)->threads, turns = (n + threads - 1) / threads;
    Deal d = {.loop = cg_count(cg, cg_i32(cg, 0), cg_i32(cg, turns), NULL)};
    d.at = cg_add(cg, cg_times(cg, d.loop.i, threads), cg_gpu(cg)->tid);
    if (n % threads == 0) return d;
    d.done = cg_if(cg, cg_below(cg, d.at, n), "dealt");
    return d;
}

static void dealt(Cg *cg, Deal *d) {
    if (d->done) cg_end_if(cg, d->done);
    cg_end_count(cg, &d->loop, cg_i32(cg, 1), NULL);
}

// Sets the index of an element by its number, the last axis the fast one; `but` an axis that it lacks.
static int count_of(Cg *cg, const TileValue *v, int but) {
    int n = 1;
    for (int i = 0; i < v->rank; i++) n *= v->axis[i] == but ? 1 : extent(cg, v->axis[i]);
    return n;
}

static void at_number(Cg *cg, Elem *e, const TileValue *v, int but, Val number) {
    int left = count_of(cg, v, but);
    for (int i = v->rank - 1; i >= 0; i--) {
        int n = extent(cg, v->axis[i]);
        if (v->axis[i] == but) continue;
        left /= n;
        e->index[v->axis[i]] = left > 1 ? cg_modulo(cg, number, n) : number;
        if (left > 1) number = cg_over(cg, number, n);
    }
}

// The elements of a value that are this thread's, one after the other.
static Deal deal(Cg *cg, Elem *e, const TileValue *v) {
    Deal d = deal_numbers(cg, count_of(cg, v, -1));
    at_number(cg, e, v, -1, d.at);
    return d;
}

// ---- maps

// Registers for what is read of several elements; AMD's waves have none left beside the state.
static bool reads_ahead(Cg *cg) { return cg->target->kind == KIND_NVPTX; }

// Results that are reduced, or scans: lines along the axis.
enum {
    AT_ONCE = 8,
    MANY = 4
}; // places, whose sums do not wait for each other where nothing is scanned

typedef struct Line {
    Elem *e;
    CgElem *at;
    int first, count;  // results that are made together
    int axis, n, size; // places, and of those the ones that count
} Line;

static const TileResult *out_of(const Line *l, int i) { return &l->e->op->outs.data[l->first + i]; }

static const TileValue *value_of(const Line *l, int i) {
    return l->e->op->results.data[l->first + i];
}

static Val none_of(Cg *cg, const Line *l, int i) {
    return cg_f32(cg, ex_identity(out_of(l, i)->reduce));
}

static void at_place(Cg *cg, const Line *l, Val place) {
    l->e->index[l->axis] = place;
    cg_elem_begin(cg, l->at);
}

static Val body_here(Cg *cg, const Line *l, int i) {
    Val x = cg_expr(cg, out_of(l, i)->body, l->at), here = l->e->index[l->axis];
    if (l->size == l->n) return x;
    Val in = cg_below(cg, here, l->size);
    return cg_select(cg, in, x, none_of(cg, l, i));
}

static Val place_of(Cg *cg, const Line *l, Val number) {
    if (out_of(l, 0)->scan != SCAN_SUFFIX) return number;
    return cg_sub(cg, cg_i32(cg, l->n - 1), number);
}

// What a result has before place `number`: where it begins anew, nothing.
static Val before_of(Cg *cg, const Line *l, int i, Val sum, Val number) {
    if (!out_of(l, i)->by) return sum;
    Val new = cg_is(cg, cg_modulo(cg, number, out_of(l, i)->by), 0);
    return cg_select(cg, new, none_of(cg, l, i), sum);
}

// Of places that follow each other: what is read of them does not wait for sums.
static void walk_places(Cg *cg, const Line *l, Val first, Val *sum, int step) {
    Val *x = ARENA_ARRAY(cg->arena, Val, l->count * step);
    for (int j = 0; j < step; j++) {
        at_place(cg, l, place_of(cg, l, cg_plus(cg, first, j)));
        for (int i = 0; i < l->count; i++) x[i * step + j] = body_here(cg, l, i);
    }
    for (int j = 0; j < step; j++) {
        Val number = cg_plus(cg, first, j);
        l->e->index[l->axis] = place_of(cg, l, number);
        for (int i = 0; i < l->count; i++) {
            const TileResult *r = out_of(l, i);
            Val *to = &sum[i * step + (r->scan ? 0 : j)];
            Val before = before_of(cg, l, i, *to, number);
            *to = cg_merge(cg, r->reduce, before, x[i * step + j]);
            if (r->scan) put(cg, l->e, value_of(l, i), r->strict ? before : *to);
        }
    }
}

// By one thread, from place to place.
static void walk_line(Cg *cg, const Line *l, int step) {
    int n = l->count * step;
    Val *sum = ARENA_ARRAY(cg->arena, Val, n);
    for (int i = 0; i < n; i++) sum[i] = none_of(cg, l, i / step);
    CgTurns t = cg_turns(cg, cg_i32(cg, 0), sum, n);
    walk_places(cg, l, t.i, sum, step);
    Val next = cg_plus(cg, t.i, step);
    cg_end_turns(cg, &t, next, cg_below(cg, next, l->n), sum);
    for (int i = 0; i < l->count; i++) {
        ExOp op = out_of(l, i)->reduce;
        for (int j = 1; j < step; j++)
            sum[i * step] = cg_merge(cg, op, sum[i * step], sum[i * step + j]);
        if (!out_of(l, i)->scan) put(cg, l->e, value_of(l, i), sum[i * step]);
    }
}

static void store_scanned(Cg *cg, const Line *l, const Val *x, int each, Val first, Val before) {
    const TileResult *r = out_of(l, 0);
    for (int j = 0; j < each; j++) {
        Val sum = cg_merge(cg, r->reduce, before, x[j]);
        l->e->index[l->axis] = place_of(cg, l, cg_plus(cg, first, j));
        put(cg, l->e, value_of(l, 0), r->strict ? before : sum);
        before = sum;
    }
}

// The first scan that goes through what result i reduces, -1: none. The reduction is that scan's last result.
static int twin_of(const TileOp *map, int i) {
    const TileResult *b = &map->outs.data[i];
    for (int s = 0; s < i; s++) {
        const TileResult *a = &map->outs.data[s];
        if (a->scan && !a->by && !b->scan && b->reduce == a->reduce &&
            b->reduce_axis == a->reduce_axis && b->body == a->body)
            return s;
    }
    return -1;
}

// What a lane has of a line that a warp goes through together: some places that follow each other.
typedef struct Share {
    Val line;        // its number
    Val *x;          // of places
    Val all, before; // of the lanes so far; of the lower ones of those
} Share;

static int without(const Line *l, int i) { return out_of(l, i)->scan ? l->axis : -1; }

static void at_line(Cg *cg, const Line *l, Val number) {
    at_number(cg, l->e, value_of(l, 0), without(l, 0), number);
}

static void read_share(Cg *cg, const Line *l, Share *s, Val first, int each) {
    int lanes = cg->target->lanes;
    Val none = none_of(cg, l, 0);
    *s = (Share){s->line, ARENA_ARRAY(cg->arena, Val, each), NULL, none};
    at_line(cg, l, s->line);
    l->e->index[l->axis] = first;
    bool pieces = each == MANY && l->n % lanes == 0 && out_of(l, 0)->scan != SCAN_SUFFIX;
    if (pieces && reads_ahead(cg) && cg_recurs_back(cg)) read_pieces(cg, l->e, l->axis, each);
    for (int j = 0; j < each; j++) {
        l->e->in_piece = j;
        Val number = cg_plus(cg, first, j);
        Val in = cg_below(cg, number, l->n);
        Val there = l->n % lanes ? cg_select(cg, in, number, cg_i32(cg, 0)) : number;
        at_place(cg, l, place_of(cg, l, there));
        s->x[j] = body_here(cg, l, 0);
        if (l->n % lanes) s->x[j] = cg_select(cg, in, s->x[j], none);
        s->all = cg_merge(cg, out_of(l, 0)->reduce, s->all, s->x[j]);
    }
    l->e->piece = NULL;
}

static void join_lanes(Cg *cg, const Line *l, Share *s, int mask) {
    ExOp reduce = out_of(l, 0)->reduce;
    Val other = cg_gpu(cg)->hooks->exchange(cg, s->all, mask);
    Val high = cg_and(cg, cg_gpu(cg)->lane, cg_i32(cg, mask));
    high = cg_icmp(cg, LLVMIntNE, high, cg_i32(cg, 0));
    s->before = cg_select(cg, high, cg_merge(cg, reduce, other, s->before), s->before);
    s->all = cg_merge(cg, reduce, s->all, other);
}

static void put_share(Cg *cg, const Line *l, const Share *s, Val first, int each) {
    at_line(cg, l, s->line);
    if (out_of(l, 0)->scan)
        store_scanned(cg, l, s->x, each, first, s->before);
    else
        put(cg, l->e, value_of(l, 0), s->all);
    for (int i = l->first + 1; i < l->e->op->results.n; i++)
        if (twin_of(l->e->op, i) == l->first) put(cg, l->e, l->e->op->results.data[i], s->all);
}

// By a warp, several lines at the same time: their sums do not wait for each other.
static void share_line(Cg *cg, const Line *l, Share *share, int many) {
    int lanes = cg->target->lanes, each = (l->n + lanes - 1) / lanes;
    Val first = cg_times(cg, cg_gpu(cg)->lane, each);
    for (int i = 0; i < many; i++) read_share(cg, l, &share[i], first, each);
    for (int mask = 1; mask < lanes; mask *= 2)
        for (int i = 0; i < many; i++) join_lanes(cg, l, &share[i], mask);
    Val last = cg_i32(cg, out_of(l, 0)->scan ? (l->n + each - 1) / each : 1);
    Blk done = cg_if(cg, cg_less(cg, cg_gpu(cg)->lane, last), "line");
    for (int i = 0; i < many; i++) put_share(cg, l, &share[i], first, each);
    cg_enter(cg, done);
}

static int lines_of(Cg *cg, const Line *l, int i) {
    return count_of(cg, value_of(l, i), without(l, i));
}

// Few lines, or fewer long ones than there are threads.
static bool is_shared(Cg *cg, const Line *l, int i) {
    int lanes = cg->target->lanes, each = (l->n + lanes - 1) / lanes, lines = lines_of(cg, l, i);
    bool many = l->n <= lanes && lines > lanes; // short lines: threads have one each
    bool along =
        (cg->k->purpose == PURPOSE_ONE_CHUNK && l->e->op->args.n &&
         !many) ||                                      // of what lies in shared memory
        l->axis == l->e->op->axes[l->e->op->naxes - 1]; // places follow each other in memory
    bool few = 2 * lines <= lanes || (along && l->n >= lanes && lines < cg_gpu(cg)->threads);
    return few && !out_of(l, i)->by && l->n % each == 0;
}

// The next result goes the same way.
static bool goes_along(Cg *cg, const Line *l) {
    int i = l->count;
    if (l->first + i == l->e->op->results.n || is_shared(cg, l, 0) || is_shared(cg, l, i))
        return false;
    const TileResult *r = out_of(l, i);
    bool back = r->scan == SCAN_SUFFIX, first = out_of(l, 0)->scan == SCAN_SUFFIX;
    return r->reduce != EX_CONST && r->reduce_axis == l->axis && back == first &&
           lines_of(cg, l, i) == lines_of(cg, l, 0);
}

// No other block shares the registers of a multiprocessor.
static bool is_alone(Cg *cg) {
    enum { ALL = 256 }; // threads that may have 255 registers each
    return cg->k->schedule.min_blocks == 1 && cg_gpu(cg)->threads >= ALL;
}

static void walk_lines(Cg *cg, const Line *l) {
    int step = l->n % AT_ONCE ? 1 : AT_ONCE;
    bool long_line = (l->n > 2 * step || is_alone(cg)) && l->n % (2 * step) == 0;
    if (long_line && cg->k->purpose == PURPOSE_ONE_CHUNK && !l->e->op->args.n) step *= 2;
    for (int i = 0; i < l->count; i++)
        if (out_of(l, i)->scan && !reads_ahead(cg)) step = 1;
    Deal d = deal_numbers(cg, lines_of(cg, l, 0));
    at_number(cg, l->e, value_of(l, 0), without(l, 0), d.at);
    walk_line(cg, l, step);
    dealt(cg, &d);
}

// Few lines take a warp each, or every warp as many; those of result i from the i-th warp on.
static void share_lines(Cg *cg, const Line *l) {
    int lanes = cg->target->lanes, warps = cg_gpu(cg)->threads / lanes, lines = lines_of(cg, l, 0);
    Val warp = cg_over(cg, cg_gpu(cg)->tid, lanes);
    Val from = cg_modulo(cg, cg_plus(cg, warp, warps - l->first % warps), warps);
    Share share[MANY];
    int many = reads_ahead(cg) && cg_recurs_back(cg) ? MANY : 1;
    while (many > 1 && lines % (many * warps)) many /= 2;
    bool once = lines == many * warps;
    CgCount each = {.i = from};
    if (!once) each = cg_count(cg, from, cg_i32(cg, lines), NULL);
    each.once = lines < warps;
    for (int i = 0; i < many; i++) share[i].line = cg_plus(cg, each.i, i * warps);
    share_line(cg, l, share, many);
    if (!once) cg_end_count(cg, &each, cg_i32(cg, many * warps), NULL);
}

// What the next step of the loop reads of inputs with a number for each position: each thread asks for its own.
typedef struct Ahead {
    Cg *cg;
    CgElem at;
    VEC(const Ex *) asked;
} Ahead;

static void ask_ahead(void *ctx, const Ex *load) {
    Ahead *a = ctx;
    if (load->op != EX_LOAD || !load->inside || !ex_uses(load, SYM_POS, -1)) return;
    for (int i = 0; i < a->asked.n; i++)
        if (a->asked.data[i] == load) return;
    VEC_PUSH(a->cg->arena, &a->asked, load);
    Val x = cg_expr(a->cg, load, &a->at);
    while (!LLVMIsALoadInst(x) && LLVMIsACastInst(x)) x = LLVMGetOperand(x, 0);
    if (LLVMIsALoadInst(x)) cg_gpu(a->cg)->hooks->prefetch(a->cg, LLVMGetOperand(x, 0));
}

// From the first position of the loop's tile to that of the next step's; none lies before the first tile.
static Val to_next_tile(Cg *cg, const TileOp *loop) {
    Val step = cg->step, next;
    if (!loop->index) return cg_i32(cg, extent(cg, loop->axis));
    cg->step = cg_plus(cg, step, 1);
    next = cg_uniform(cg, loop->index);
    cg->step = step;
    next = cg_select(cg, cg_less(cg, next, cg_i32(cg, 0)), cg_i32(cg, 0), next);
    return cg_times(cg, cg_sub(cg, next, cg->tile[loop->axis]), extent(cg, loop->axis));
}

static void prefetch(Cg *cg, Elem *e) {
    enum { LINE = 32 }; // numbers of a row that come together
    const TileOp *op = e->op, *loop = op->block->owner;
    bool steps = loop && loop->kind == TILE_LOOP && op->naxes < 3 &&
                 tile_root_axis(cg->k, op->axes[0]) == loop->axis;
    if (!steps || !cg_gpu(cg)->hooks->prefetch) return;
    if (!tile_by_groups(cg->k) && !cg_recurs_back(cg)) return;
    int rows = extent(cg, op->axes[0]), columns = op->naxes > 1 ? extent(cg, op->axes[1]) : 0;
    int lines = (columns + LINE - 1) / LINE;
    Val number = cg_gpu(cg)->tid;
    Deal d;
    if (lines) {
        d = deal_numbers(cg, rows * lines);
        number = cg_over(cg, d.at, lines);
        e->index[op->axes[1]] = cg_times(cg, cg_sub(cg, d.at, cg_times(cg, number, lines)), LINE);
    }
    e->index[op->axes[0]] = cg_add(cg, number, to_next_tile(cg, loop));
    CgElem at = {.lanes = 1, .param = operand, .pos = position, .lane_axis = -1, .ctx = e};
    Ahead a = {.cg = cg, .at = at};
    for (int i = 0; i < op->outs.n; i++) ex_visit(op->outs.data[i].body, ask_ahead, &a);
    if (lines) dealt(cg, &d);
}

// Results that have the same elements, from one on.
static int alike(const TileOp *map, int first) {
    const TileValue *v = map->results.data[first];
    int n = 1;
    for (; first + n < map->results.n; n++) {
        const TileValue *w = map->results.data[first + n];
        if (map->outs.data[first + n].reduce != EX_CONST || w->rank != v->rank) break;
        if (memcmp(w->axis, v->axis, (size_t)v->rank * sizeof *v->axis)) break;
    }
    return n;
}

// Whether elements of these results that are one thread's follow each other.
static bool in_rows(Cg *cg, const TileOp *map, int first, int count, int each) {
    const TileValue *v = map->results.data[first];
    int last = v->rank ? v->axis[v->rank - 1] : -1;
    bool all = cg_recurs_back(cg) && each > 1 && last >= 0 && extent(cg, last) % each == 0;
    for (int i = 0; i < count && all; i++) all = follow(cg, map->results.data[first + i], last);
    for (int i = 0; i < map->args.n && all; i++) all = follow(cg, map->args.data[i], last);
    return all;
}

// The elements from the one at hand on, as one store.
static void put_row(Cg *cg, const Elem *e, const TileValue *v, const Val *x, int step, int n) {
    LLVMTypeRef type = cg_dtype(cg, v->dtype);
    Val all = LLVMGetPoison(cg_vector(type, n));
    for (int j = 0; j < n; j++)
        all = cg_insert(cg, all, cg_write(cg, x[j * step], v->dtype), cg_i32(cg, j));
    LLVMSetAlignment(cg_store(cg, all, pointer(cg, e, v)), (unsigned)(n * dtype_bytes(v->dtype)));
}

// Several elements of a thread are read before the first is stored.
static void make_elements(Cg *cg, Elem *e, int first, int count) {
    const TileValue *v = e->op->results.data[first];
    CgElem at = {.lanes = 1, .param = operand, .pos = position, .lane_axis = -1, .ctx = e};
    int threads = cg_gpu(cg)->threads, all = count_of(cg, v, -1), each = reads_ahead(cg) ? MANY : 1;
    while (each > 1 && all % (each * threads)) each /= 2;
    bool row = in_rows(cg, e->op, first, count, each);
    Val *x = ARENA_ARRAY(cg->arena, Val, each * count);
    Deal d = deal_numbers(cg, all / each);
    Val begin = row ? cg_times(cg, d.at, each) : d.at;
    at_number(cg, e, v, -1, begin);
    if (row) read_pieces(cg, e, v->axis[v->rank - 1], each);
    for (int pass = 0; pass < 2; pass++)
        for (int j = 0; j < each; j++) {
            at_number(cg, e, v, -1, cg_plus(cg, begin, row ? j : j * (all / each)));
            if (row && pass && j) continue;
            cg_elem_begin(cg, &at);
            e->in_piece = j;
            for (int i = 0; i < count; i++) {
                Val *to = &x[j * count + i];
                if (row && pass)
                    put_row(cg, e, e->op->results.data[first + i], to, count, each);
                else if (pass)
                    put(cg, e, e->op->results.data[first + i], *to);
                else
                    *to = cg_expr(cg, e->op->outs.data[first + i].body, &at);
            }
        }
    e->piece = NULL;
    dealt(cg, &d);
}

static void map(Cg *cg, Elem *e) {
    if (tile_is_marked(e->op, TILE_FACTORS)) {
        cg_gpu(cg)->hooks->decayed(cg, e->op);
        return;
    }
    prefetch(cg, e);
    for (int i = 0; i < e->op->results.n; i++) {
        const TileResult *r = &e->op->outs.data[i];
        CgElem at = {.lanes = 1, .param = operand, .pos = position, .lane_axis = -1, .ctx = e};
        if (cg_gpu(cg)->hooks->dots && cg_gpu(cg)->hooks->dots(cg, e->op, i)) continue;
        if (r->reduce != EX_CONST) {
            const TileAxis *a = &cg->k->axes[r->reduce_axis];
            Line l = {e, &at, i, 1, r->reduce_axis, a->extent, a->extent};
            if (a->size->op == EX_CONST && a->size->i < l.n) l.size = a->size->i;
            if (twin_of(e->op, i) >= 0 && is_shared(cg, &l, 0)) continue;
            while (goes_along(cg, &l)) l.count++;
            (is_shared(cg, &l, 0) ? share_lines : walk_lines)(cg, &l);
            i += l.count - 1;
            continue;
        }
        int n = alike(e->op, i);
        make_elements(cg, e, i, n);
        i += n - 1;
    }
}

// ---- the others

static void product(Cg *cg, Elem *e) {
    const TileValue *v = e->op->results.data[0];
    const TileValue *add = e->op->args.n > 2 ? e->op->args.data[2] : NULL;
    int inner = tile_contracted_axis(e->op);
    Deal d = deal(cg, e, v);
    Val start = add ? get(cg, e, add) : cg_f32(cg, 0);
    CgCount terms = cg_count(cg, cg_i32(cg, 0), cg_i32(cg, extent(cg, inner)), start);
    e->index[inner] = terms.i;
    Val f[] = {get(cg, e, e->op->args.data[0]), get(cg, e, e->op->args.data[1]), terms.sum};
    Val sum = cg_intrinsic(cg, "llvm.fma", &cg->f32, 1, f, 3);
    put(cg, e, v, cg_end_count(cg, &terms, cg_i32(cg, 1), sum));
    dealt(cg, &d);
}

// ---- to a tensor

// Of the tensor's dimension d; clears `in` where it has none there.
static Val number_at(Cg *cg, const Elem *e, int d, Val *in) {
    const TileCoord *at = &e->op->coord[d];
    Val i = cg_uniform(cg, at->at);
    if (at->axis < 0) return i;
    i = cg_add(cg, cg_times(cg, i, extent(cg, at->axis)), e->index[at->axis]);
    Val has = cg_less(cg, i, cg_extent(cg, e->op->tensor, d));
    *in = *in ? cg_and(cg, *in, has) : has;
    return i;
}

// Elements that are one access: those of a row follow each other here and there, and begin at whole pieces.
static int at_once(Cg *cg, const TileOp *op) {
    const TileTensor *t = &cg->p->tensors.data[op->tensor];
    const TileValue *v = op->args.data[0];
    int last = t->rank - 1, n = HOME_PIECE / dtype_bytes(t->dtype);
    bool same = v->dtype == t->dtype && dtype_half(t->dtype), rounds = v->dtype == DT_F32;
    if (op->add || v->rank != 2 || (!same && !rounds)) return 1;
    const Ex *columns = t->extent[last];
    bool whole = columns->op == EX_CONST && columns->i % n == 0 &&
                 extent(cg, v->axis[1]) % n == 0 && op->coord[last].axis == v->axis[1];
    return whole && tile_is_operand(cg->p, t) && follow(cg, v, v->axis[1]) ? n : 1;
}

// So many elements from `from` on, as the tensor has them.
static Val row_piece(Cg *cg, const TileValue *v, Dtype to, Val from, int n) {
    Val all = LLVMGetPoison(cg_vector(cg_dtype(cg, to), n));
    int each = HOME_PIECE / dtype_bytes(v->dtype) < n ? HOME_PIECE / dtype_bytes(v->dtype) : n;
    for (int i = 0; i < n; i += each) {
        Ty type = cg_vector(cg_dtype(cg, v->dtype), each);
        Val x =
            cg_load(cg, type, cg_element(cg, cg->i8, from, cg_i32(cg, i * dtype_bytes(v->dtype))));
        LLVMSetAlignment(x, (unsigned)(each * dtype_bytes(v->dtype)));
        if (v->dtype != to) x = cg_write(cg, x, to);
        if (each == n) return x;
        for (int j = 0; j < each; j++)
            all = cg_insert(cg, all, cg_extract(cg, x, cg_i32(cg, j)), cg_i32(cg, i + j));
    }
    return all;
}

// Whether a thread's elements lie in one column, whose rows follow each other at equal distances: how many rows.
static int rows_apart(Cg *cg, const TileValue *v, int n) {
    int threads = cg_gpu(cg)->threads, columns = v->rank == 2 ? extent(cg, v->axis[1]) / n : 0;
    bool all = columns && threads % columns == 0 && count_of(cg, v, -1) / n % threads == 0;
    return all ? threads / columns : 0;
}

static void store(Cg *cg, const TileOp *op) {
    const TileTensor *t = &cg->p->tensors.data[op->tensor];
    const TileValue *v = op->args.data[0];
    Elem e = {.op = op};
    int n = at_once(cg, op), apart = rows_apart(cg, v, n);
    Val at = cg_i64(cg, 0), in = NULL, base = cg_global(cg, cg_origin(cg, op));
    if (apart) at_number(cg, &e, v, -1, cg_times(cg, cg_gpu(cg)->tid, n));
    for (int i = 0; i < t->rank && apart; i++) {
        Val none = NULL, *to = op->coord[i].axis == v->axis[0] ? &none : &in;
        Val number = cg_sext(cg, number_at(cg, &e, i, to), cg->i64);
        at = cg_add(cg, at, cg_mul(cg, number, cg_stride(cg, op->tensor, i)));
    }
    Deal d = deal_numbers(cg, count_of(cg, v, -1) / n);
    if (!apart) at_number(cg, &e, v, -1, cg_times(cg, d.at, n));
    if (apart) e.index[v->axis[0]] = cg_add(cg, e.index[v->axis[0]], cg_times(cg, d.loop.i, apart));
    for (int i = 0; i < t->rank; i++) {
        bool row = op->coord[i].axis == v->axis[0];
        if (apart && !row) continue;
        Val number = number_at(cg, &e, i, &in);
        if (apart) number = cg_times(cg, d.loop.i, apart);
        number = cg_mul(cg, cg_sext(cg, number, cg->i64), cg_stride(cg, op->tensor, i));
        at = cg_add(cg, at, number);
    }
    Blk out = in ? cg_if(cg, in, "store") : NULL;
    Val p = cg_element(cg, cg_dtype(cg, t->dtype), base, at);
    if (n > 1)
        LLVMSetAlignment(cg_store(cg, row_piece(cg, v, t->dtype, pointer(cg, &e, v), n), p),
                         HOME_PIECE);
    else if (op->add)
        cg_add_to(cg, op->tensor, get(cg, &e, v), p);
    else
        cg_store(cg, cg_write(cg, get(cg, &e, v), t->dtype), p);
    if (out) cg_end_if(cg, out);
    dealt(cg, &d);
}

bool cg_is_together(Cg *cg, const TileOp *op) {
    bool map = op->kind == TILE_MAP;
    if (op->kind == TILE_STORE) return op->args.n == 1 && op->args.data[0]->home == HOME_SHARED;
    if (!tile_makes_shared(op) || cg_is_spread(op)) return false;
    bool more = !map || op->results.n > 1 || tile_scans(op) || op->outs.data[0].reduce == EX_CONST;
    for (int i = 0; i < op->results.n; i++) more |= op->results.data[i]->rank != 1;
    more |= cg->k->purpose == PURPOSE_ONE_CHUNK; // a tile's, not all positions
    return more;
}

void cg_together(Cg *cg, const TileOp *op) {
    Elem e = {.op = op};
    for (int i = 0; i < op->results.n; i++) cg_alloc(cg, op->results.data[i]);
    switch ((int)op->kind) {
    case TILE_MAP: map(cg, &e); return;
    case TILE_MMA: product(cg, &e); return;
    case TILE_STORE: store(cg, op); return;
    default: cg_invert(cg, op); return;
    }
}
