// state.c: what is kept of a row whose keys are not all seen.
//
// In: a Build. Out: tensors that hold, for each row, the streaming form's states and the sums, and their loads and stores. A
// launch that splits keys between its blocks has workspaces, one for each (sweep.c, combine.c), in which all is the identity where a row has
// no key. Programs of their own, of the phases part
// and combine, have what callers keep:
//
//     state f32 [B, H, Sq, Dv]     sums: acc
//     rows  f32 [n, B, H, Sq]      states, then shifts that round, then 1: the row has begun
//     (of sequences with lengths of their own [Tq, H, Dv] and [n, Tq, H])
//
// A row of zeros is one without a key: where 0 is not the identity of each number, the last one says so. Combine takes them of several
// parts, which are the first dimension.
//
// A part has some rows and keys of a whole sequence. The program's q_offset is the position of its first query, and formulas mean the whole:
// Sq_all, Sk_all, and q_offset - q_first, the position of the whole's first query. Inputs are those of the whole.
#include "passes/derive/derive.h"
#include "passes/derive/exact_shift.h"
#include "passes/tile/build.h"

#include <string.h>

bool build_carries_shift(const Build *b, int number, int shift) {
    const Stream *s = b->s;
    if (pass_shift_is_exact(s->shifts.data[shift])) return false;
    bool used =
        number == s->nsweeps - 1 && (s->shift == shift || ex_uses(s->elem, SYM_SHIFT, shift));
    for (int i = 0; i < s->states.n; i++) {
        const StreamState *st = &s->states.data[i];
        used |= st->sweep == number && (st->shift == shift || ex_uses(st->elem, SYM_SHIFT, shift));
    }
    return used;
}

bool build_keeps_shift(const Build *b, int shift) {
    return build_carries_shift(b, b->s->nsweeps - 1, shift);
}

// ---- workspaces of a launch

static int work_tensor(Build *b, const char *name, int index, bool columns) {
    TileTensor t = {.name = name, .role = TENSOR_WORK, .index = index, .dtype = DT_F32};
    if (b->p->batch) {
        t.extent[t.rank++] = build_parts(b);
        t.extent[t.rank++] = build_size(b, b->p->split.rows);
        t.extent[t.rank++] = build_size(b, SIZE_HQ);
    } else {
        if (b->p->split.whole) {
            t.extent[t.rank++] = build_split_heads(b);
        } else {
            t.extent[t.rank++] = build_size(b, SIZE_B);
            t.extent[t.rank++] = build_size(b, SIZE_HQ);
        }
        t.extent[t.rank++] = build_parts(b);
        t.extent[t.rank++] = build_size(b, SIZE_SQ);
    }
    if (columns) t.extent[t.rank++] = ex_i32(b->pool, b->row->Dv);
    return build_tensor(b, t);
}

// One for all kernels that leave parts.
static void add_works(Build *b) {
    const Stream *s = b->s;
    int n = s->states.n;
    if (b->works) return;
    b->works = ARENA_ARRAY(b->arena, int, n + s->shifts.n + 1);
    for (int i = 0; i < n; i++) {
        const char *name = arena_printf(b->arena, "%s_part", s->states.data[i].name);
        b->works[i] = work_tensor(b, name, i, false);
    }
    b->works[build_sums(b)] = work_tensor(b, "acc_part", n, true);
    for (int i = 0; i < s->shifts.n; i++)
        if (build_keeps_shift(b, i)) b->works[n + i] = work_tensor(b, "a_part", n + 1 + i, false);
}

// ---- states of callers

static int given_size(Build *b, const char *name) {
    TileSize size = {.name = name};
    VEC_PUSH(b->arena, &b->p->sizes, size);
    return b->p->sizes.n - 1;
}

void build_whole_sizes(Build *b) {
    Whole *w = &b->whole;
    if (b->p->batch) {
        if (b->phase == PHASE_COMBINE) w->parts = given_size(b, "parts");
        return;
    }
    w->q_first = given_size(b, "q_first");
    if (b->phase != PHASE_COMBINE) w->kv_first = given_size(b, "kv_first");
    w->Sq = given_size(b, "Sq_all");
    w->Sk = given_size(b, "Sk_all");
    if (b->phase == PHASE_COMBINE) w->parts = given_size(b, "parts");
}

void build_own_whole_sizes(Build *b) {
    const int *whole = b->at.whole;
    if (!b->phase || !b->p->batch) return;
    b->whole.q_first = whole[PART_Q_FIRST];
    b->whole.kv_first = whole[PART_KV_FIRST];
    b->whole.Sq = whole[PART_SQ_ALL];
    b->whole.Sk = whole[PART_SK_ALL];
}

const Ex *build_in_whole(Build *b, const Ex *e) {
    ExPool *x = b->pool;
    const Whole *w = &b->whole;
    if (!b->phase || e->op != EX_SYM) return e;
    if (e->sym == SYM_POS && b->p->batch) return places_position(&b->at, e);
    if (e->sym == SYM_POS) return ex_2(x, EX_ADD, build_size(b, w->kv_first), e);
    if (e->sym != SYM_SIZE) return e;
    if (e->index == SIZE_SQ) return build_size(b, w->Sq);
    if (e->index == SIZE_SK) return build_size(b, w->Sk);
    return e->index == SIZE_Q_OFFSET ? ex_2(x, EX_SUB, e, build_size(b, w->q_first)) : e;
}

// A size of the part, which formulas do not see.
static const Ex *here(Build *b, int size, const char *name) {
    const Ex *is = build_size(b, size);
    if (!b->phase) return is;
    return build_size(b, b->p->batch ? pass_own_size(b->p, name, EX_CONST, NULL, is)
                                     : pass_size(b->p, name, is));
}

const Ex *build_has_row(Build *b) {
    return ex_2(b->pool, EX_LT, build_pos(b, AX_M), here(b, SIZE_SQ, "rows_here"));
}

const Ex *build_counts_row(Build *b) {
    ExPool *x = b->pool;
    const Ex *none = ex_i32(x, 0), *is = build_has_row(b);
    if (b->phase != PHASE_PART_BWD) return is;
    const Ex *first = ex_2(x, EX_EQ, build_size(b, b->whole.kv_first), none);
    const Ex *some = ex_2(x, EX_LT, none, here(b, SIZE_SK, "keys_here"));
    const Ex *empty = ex_2(x, EX_EQ, build_size(b, b->whole.Sk), none);
    return ex_2(x, EX_AND, is, ex_2(x, EX_AND, first, ex_2(x, EX_OR, some, empty)));
}

int build_sums(const Build *b) { return b->s->states.n + b->s->shifts.n; }
int build_begun(const Build *b) { return build_sums(b) + 1; }

bool build_asks_begun(const Build *b) {
    bool asks = false;
    for (int i = 0; i < b->s->states.n; i++) asks |= b->s->states.data[i].op != EX_ROWSUM;
    for (int i = 0; i < b->s->shifts.n; i++) asks |= build_keeps_shift(b, i);
    return asks;
}

// Where a number stands among those of a row.
static int place_of(const Build *b, int i) {
    int n = b->s->states.n, place = i < n ? i : n;
    for (int k = 0; k < b->s->shifts.n && k < i - n; k++) place += build_keeps_shift(b, k);
    return place;
}

static Kept kept_tensors(Build *b, TensorRole sums, TensorRole rows, const char *const names[2]) {
    const Ex *heads = build_size(b, SIZE_HQ);
    const Ex *row[] = {build_size(b, SIZE_B), heads, build_size(b, SIZE_SQ)};
    int nrow = b->p->batch ? 2 : 3;
    if (b->p->batch) row[0] = build_size(b, b->at.Tq);
    int n = place_of(b, build_begun(b)) + build_asks_begun(b);
    TileTensor t[2] = {{.name = names[0], .role = sums, .dtype = DT_F32},
                       {.name = names[1], .role = rows, .dtype = DT_F32}};
    for (int i = 0; i < 2; i++) {
        if (b->phase == PHASE_COMBINE) t[i].extent[t[i].rank++] = build_size(b, b->whole.parts);
        if (i) t[i].extent[t[i].rank++] = ex_i32(b->pool, n);
        for (int d = 0; d < nrow; d++) t[i].extent[t[i].rank++] = row[d];
    }
    t[0].extent[t[0].rank++] = ex_i32(b->pool, b->row->Dv);
    return (Kept){build_tensor(b, t[0]), n ? build_tensor(b, t[1]) : -1};
}

void build_state_tensors(Build *b) {
    static const char *const before[] = {"state0", "rows0"}, *const names[] = {"state", "rows"};
    bool part = b->phase == PHASE_PART;
    b->from = kept_tensors(b, TENSOR_STATE0, TENSOR_ROWS0, part ? before : names);
    b->to = part ? kept_tensors(b, TENSOR_STATE, TENSOR_ROWS, names) : (Kept){-1, -1};
}

// ---- what has no parts

static bool is_taken(const char *name) {
    static const char *const names[] = {"state",   "rows",     "state0",   "rows0",
                                        "q_first", "kv_first", "Sq_all",   "Sk_all",
                                        "parts",   "kv_block", "kv_stride"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(name, names[i])) return true;
    return false;
}

static bool is_free(const char *what, const char *name, Span span, Diags *diags) {
    if (is_taken(name))
        diag_error(diags, span, "%s '%s' has the name of a tensor or size of parts", what, name);
    return !is_taken(name);
}

bool pass_accepts_parts(const Stream *s, bool states, Diags *diags) {
    const RowProgram *row = s->row;
    bool good = !states || s->nsweeps == 1;
    if (!good)
        diag_error(
            diags, row->span,
            "attention '%s' has no parts: they are merged after one sweep over the keys, and "
            "this takes %d, for '%s' is needed before the keys are seen again",
            row->name, s->nsweeps, pass_reduce_written(&row->reduces.data[s->blocking], diags));
    for (int i = 0; i < row->inputs.n; i++) {
        if (row->inputs.data[i].rows)
            diag_error(diags, row->inputs.data[i].span,
                       "row input '%s': no parts in this version; q and k that hold its channels "
                       "behind their own have parts",
                       row->inputs.data[i].name);
        good &= !row->inputs.data[i].rows;
    }
    for (int i = 0; i < row->inputs.n; i++)
        good &= is_free("input", row->inputs.data[i].name, row->inputs.data[i].span, diags);
    for (int i = 0; i < row->emits.n; i++)
        good &= is_free("emit", row->emits.data[i].name, row->emits.data[i].span, diags);
    for (int i = SIZE_FREE; i < row->sizes.n; i++)
        good &= is_free("size", row->sizes.data[i], row->span, diags);
    return good;
}

// ---- loads and stores

TileValue *build_if_begun(Build *b, const char *name, TileValue *begun, TileValue *v,
                          const Ex *none) {
    if (!begun) return v;
    const Ex *is = ex_2(b->pool, EX_LT, ex_f32(b->pool, 0), build_of(b, begun));
    return build_row(b, name, ex_select(b->pool, is, build_of(b, v), none));
}

static int columns_of(const Build *b, int i) { return i == build_sums(b) ? AX_E : AX_NONE; }

static int kept_in(Build *b, Kept kept, int i) {
    if (b->within) return b->works[i];
    b->number = place_of(b, i);
    return columns_of(b, i) == AX_E ? kept.sums : kept.rows;
}

TileValue *build_load_kept(Build *b, const char *name, int i) {
    return build_load(b, name, kept_in(b, b->from, i), AX_M, columns_of(b, i));
}

static void store_kept(Build *b, int i, TileValue *v) {
    build_store(b, kept_in(b, b->to, i), v, columns_of(b, i));
}

void build_leave(Build *b, TileValue *acc) {
    int n = b->s->states.n;
    if (b->within) add_works(b);
    for (int i = 0; i < n; i++) store_kept(b, i, build_bound(b, SYM_STATE, i));
    store_kept(b, build_sums(b), acc);
    for (int i = 0; i < b->s->shifts.n; i++)
        if (build_keeps_shift(b, i)) store_kept(b, n + i, b->raw_shift[i]);
    if (!b->within && build_asks_begun(b))
        store_kept(b, build_begun(b), build_row(b, "begun", ex_f32(b->pool, 1)));
}
