// sequences.c: layouts in which each sequence has lengths of its own.
//
// In: a program of a ragged or paged layout. Out: sizes, tensors, and where rows are in them. The variant's sizes Sq, Sk and q_offset
// (a recurrence's S) are a sequence's own, made from the tensors that say where rows lie; a launch knows only what bounds them
// (pass_at_launch). Holds afterwards: whatever numbers those tensors hold, rows are inside of what they are rows of.
//
//     q [Tq, H, D]        row i of sequence b: q_first + i
//     k [Tk, Hkv, D]      key j: k_first + j
//     k [pages, page, Hkv, D]    key j: row j % page of page page_table[b, j / page]
//     state [Tq, H, Dv], rows [n, Tq, H]         of parts (state.c); combine has one more dimension in front
//     state0 [slots, H, D, Dv]   that of sequence b: slot state_index[b], or b
#include "passes/tile/sequences.h"

#include "passes/passes.h"
#include "passes/simplify/simplify.h"
#include "passes/tile/rewrite.h"

#include <string.h>

enum { NAMES = 6 };
enum { RECURRENCES = BATCH_COUNT }; // of ragged rows
static const char *const size_names[BATCH_COUNT + 1][NAMES] = {
    [BATCH_RAGGED] = {"Tq", "max_q", "Tk"},
    [BATCH_PAGED] = {"Tq", "max_q", "pages", "page", "table"},
    [RECURRENCES] = {"Tq", "max_q", "slots"}};
static const char *const tensor_names[BATCH_COUNT + 1][NAMES] = {
    [BATCH_RAGGED] = {"q_start", "kv_start"},
    [BATCH_PAGED] = {"q_start", "kv_len", "page_table"},
    [RECURRENCES] = {"q_start", "state_index"}};

static int kind_of(BatchLayout batch, bool recurrence) {
    return recurrence ? RECURRENCES : (int)batch;
}

// ---- sizes

static int add_size(Places *at, const char *name, const Ex *def, bool own) {
    TileProgram *p = at->p;
    for (int i = 0; i < p->sizes.n; i++)
        if (!strcmp(p->sizes.data[i].name, name))
            return add_size(at, arena_printf(at->p->arena, "%s_", name), def, own);
    TileSize size = {.name = name, .def = def, .own = own};
    VEC_PUSH(at->p->arena, &p->sizes, size);
    return p->sizes.n - 1;
}

static bool is_part(const Places *at) {
    TilePhase phase = at->p->phase;
    return phase == PHASE_PART || phase == PHASE_COMBINE || phase == PHASE_PART_BWD;
}

static const Ex *size(Places *at, int index) {
    return ex_sym(at->p->pool, SYM_SIZE, index, EX_I32);
}
static const Ex *num(Places *at, int n) { return ex_i32(at->p->pool, n); }
static const Ex *op2(Places *at, ExOp op, const Ex *x, const Ex *y) {
    return ex_2(at->p->pool, op, x, y);
}
static const Ex *within(Places *at, const Ex *e, const Ex *least, const Ex *most) {
    return op2(at, EX_MIN, op2(at, EX_MAX, e, least), most);
}

static int size_called(const TileProgram *p, const char *name) {
    for (int i = SIZE_FREE; i < p->sizes.n; i++)
        if (!strcmp(p->sizes.data[i].name, name)) return i;
    return -1;
}

static const Ex *launch_size(const TileProgram *p, const char *name) {
    return ex_sym(p->pool, SYM_SIZE, size_called(p, name), EX_I32);
}

const Ex *pass_at_launch(const TileProgram *p, const Ex *e) {
    ExPool *x = p->pool;
    if (!p->batch) return e;
    const Ex *queries = ex_2(x, EX_MAX, launch_size(p, "max_q"), ex_i32(x, 1)); // a hint
    if (p->recurrence) return ex_subst(x, e, SYM_SIZE, RSIZE_S, queries);
    const Ex *keys = p->batch == BATCH_RAGGED
                         ? launch_size(p, "Tk")
                         : ex_2(x, EX_MUL, launch_size(p, "table"), launch_size(p, "page"));
    if (tile_is_backward(
            p)) // documents that are packed have a key for each query: the hint is of both
        keys = ex_select(x, ex_2(x, EX_EQ, keys, launch_size(p, "Tq")), queries, keys);
    const TileSplit *s = &p->split; // points for one query: the others of a few are theirs, too
    const Ex *one = ex_i32(x, 1), *few = one;
    if (!s->apart && s->beside) {
        const Ex *beside = ex_sym(x, SYM_SIZE, s->beside, EX_I32);
        few = ex_select(x, ex_2(x, EX_LT, ex_i32(x, 0), beside), one, queries);
    }
    if (s->few_queries) e = ex_subst(x, e, SYM_SIZE, s->few_queries, few);
    if (s->many_queries) e = ex_subst(x, e, SYM_SIZE, s->many_queries, queries);
    if (s->long_queries) e = ex_subst(x, e, SYM_SIZE, s->long_queries, queries);
    e = ex_subst(x, e, SYM_SIZE, SIZE_SQ, queries);
    return ex_subst(x, e, SYM_SIZE, SIZE_SK, keys);
}

const Ex *pass_all_queries(const TileProgram *p) { return launch_size(p, "Tq"); }

const Ex *pass_all_keys(const TileProgram *p) {
    if (p->batch == BATCH_RAGGED) return launch_size(p, "Tk");
    return ex_2(p->pool, EX_MUL, launch_size(p, "pages"), launch_size(p, "page"));
}

// Local keys lie in runs of kv_block keys, whose first ones are kv_stride positions apart; 0: in one run.
static void add_runs(Places *at) {
    const Ex *none = num(at, 0), *most = num(at, SIZE_LIMIT);
    const Ex *block = size(at, add_size(at, "kv_block", NULL, false)),
             *stride = size(at, add_size(at, "kv_stride", NULL, false));
    const Ex *some = op2(at, EX_LT, none, block);
    const Ex *gap = within(at, op2(at, EX_SUB, stride, block), none, most);
    at->run = add_size(at, "kv_run", ex_select(at->p->pool, some, block, most), false);
    at->gap = add_size(at, "kv_gap", ex_select(at->p->pool, some, gap, none), false);
}

void places_sizes(Places *at, TileProgram *p, int page) {
    *at = (Places){.p = p, .queries = SIZE_SQ, .keys = SIZE_SK};
    if (p->recurrence) at->queries = RSIZE_S, at->keys = -1;
    int *to[BATCH_COUNT + 1][NAMES] = {
        [BATCH_RAGGED] = {&at->Tq, &at->max_q, &at->Tk},
        [BATCH_PAGED] = {&at->Tq, &at->max_q, &at->pages, &at->page, &at->table},
        [RECURRENCES] = {&at->Tq, &at->max_q, &at->slots}};
    int kind = kind_of(p->batch, p->recurrence);
    p->page = page;
    for (int i = 0; size_names[kind][i]; i++)
        *to[kind][i] = add_size(at, size_names[kind][i], NULL, false);
    if (p->phase == PHASE_PART && p->batch == BATCH_PAGED) add_runs(at);
}

// ---- tensors

static void push_extent(TileTensor *t, const Ex *e) { t->extent[t->rank++] = e; }

static void push_keys(Places *at, TileTensor *t) {
    bool paged = at->p->batch == BATCH_PAGED;
    push_extent(t, size(at, paged ? at->pages : at->Tk));
    if (paged) push_extent(t, size(at, at->page));
}

void places_rows(Places *at, TileTensor *t, bool keys) {
    t->rank = 0;
    if (keys)
        push_keys(at, t);
    else
        push_extent(t, size(at, at->Tq));
}

static bool is_size(const Ex *e, int size) {
    return e->op == EX_SYM && e->sym == SYM_SIZE && e->index == size;
}

static int dimension_of(const RowInput *in, int size) {
    for (int d = 0; d < in->rank; d++)
        if (is_size(in->extent[d], size)) return d;
    return -1;
}

// Its dimensions of the batch and of rows, which the layout replaces; false: it has not both.
static bool is_placed(const Places *at, const RowInput *in, int *batch, int *rows) {
    int keys = dimension_of(in, at->keys);
    *batch = dimension_of(in, SIZE_B);
    *rows = keys < 0 ? dimension_of(in, at->queries) : keys;
    return *batch >= 0 && *rows >= 0;
}

void places_input(Places *at, const RowInput *in, TileTensor *t) {
    int batch, rows;
    bool placed = is_placed(at, in, &batch, &rows);
    t->rank = 0;
    if (placed && is_size(in->extent[rows], at->keys)) push_keys(at, t);
    if (placed && is_size(in->extent[rows], at->queries)) push_extent(t, size(at, at->Tq));
    for (int d = 0; d < in->rank; d++) {
        if (placed && (d == batch || d == rows)) continue;
        const Ex *e = in->extent[d];
        if (is_size(e, at->queries) ||
            is_size(e, at->keys)) // any number, that of the longest sequence at least
            e = size(at,
                     add_size(at, arena_printf(at->p->arena, "%s_%d", in->name, d), NULL, false));
        push_extent(t, e);
    }
}

static int add_index(Places *at, TensorRole role, const Ex *first, const Ex *second) {
    TileTensor t = {.name = tensor_traits(role)->name, .role = role, .dtype = DT_I32};
    push_extent(&t, first);
    if (second) push_extent(&t, second);
    VEC_PUSH(at->p->arena, &at->p->inputs, at->p->tensors.n);
    tile_tensor(at->p, t);
    return at->p->inputs.n - 1;
}

// Of one that may be left out: 0 then.
static int open_extent(Places *at, TensorRole role) {
    return add_size(at, arena_printf(at->p->arena, "%s_0", tensor_traits(role)->name), NULL, false);
}

static const Ex *read(Places *at, int input, const Ex *i) {
    return ex_load(at->p->pool, input, EX_I32, &i, 1, false);
}

// ---- a sequence's sizes

typedef struct Rows { // of a sequence
    const Ex *first, *count;
} Rows;

// From starts to the next ones; what goes out of 0..total is empty.
static Rows between(Places *at, int starts, const Ex *total) {
    const Ex *i = ex_symbol(at->p->pool, SYM_B), *next = op2(at, EX_ADD, i, num(at, 1));
    const Ex *first = within(at, read(at, starts, i), num(at, 0), total);
    const Ex *end = within(at, read(at, starts, next), first, total);
    return (Rows){first, op2(at, EX_SUB, end, first)};
}

static Rows queries(Places *at) {
    const Ex *total = size(at, at->Tq), *i = ex_symbol(at->p->pool, SYM_B);
    Rows r = between(at, at->q_start, total);
    if (!at->starts) return r;
    const Ex *batch = op2(at, EX_MAX, size(at, SIZE_B), num(at, 1));
    const Ex *each = size(at, add_size(at, "each_q", op2(at, EX_DIV, total, batch), false));
    const Ex *given = op2(at, EX_LT, num(at, 0), size(at, at->starts));
    return (Rows){ex_select(at->p->pool, given, r.first, op2(at, EX_MUL, i, each)),
                  ex_select(at->p->pool, given, r.count, each)};
}

static Rows keys(Places *at) {
    if (at->p->phase == PHASE_COMBINE) return (Rows){NULL, num(at, 0)};
    if (at->p->batch == BATCH_RAGGED) return between(at, at->kv_start, size(at, at->Tk));
    const Ex *pages = size(at, at->pages), *none = num(at, 0);
    const Ex *all = op2(at, EX_MUL, size(at, at->table), size(at, at->page));
    const Ex *room = ex_select(at->p->pool, op2(at, EX_LT, none, pages),
                               op2(at, EX_MIN, all, num(at, SIZE_LIMIT)), none);
    room = size(at, add_size(at, "most_keys", room, false));
    return (Rows){NULL,
                  within(at, read(at, at->kv_len, ex_symbol(at->p->pool, SYM_B)), none, room)};
}

static void set_own(Places *at, int size, const Ex *def) {
    at->p->sizes.data[size].def = def;
    at->p->sizes.data[size].own = true;
}

// A part without a number of it begins with the first row, and ends with the last one.
static const Ex *of_part(Places *at, PlaceOfPart i, const Rows *q, const Rows *k) {
    const Ex *none = num(at, 0), *sequence = ex_symbol(at->p->pool, SYM_B), *other = none;
    if (i == PART_KV_FIRST && at->p->phase == PHASE_COMBINE) return none;
    if (i == PART_SQ_ALL) other = op2(at, EX_ADD, of_part(at, PART_Q_FIRST, q, k), q->count);
    if (i == PART_SK_ALL) other = op2(at, EX_ADD, of_part(at, PART_KV_FIRST, q, k), k->count);
    const Ex *is = op2(at, EX_LT, none, size(at, at->open[i]));
    return within(at, ex_select(at->p->pool, is, read(at, at->given[i], sequence), other), none,
                  num(at, SIZE_LIMIT));
}

static const Ex *offset(Places *at, const Rows *q, const Rows *k) {
    const Ex *given = op2(at, EX_LT, num(at, 0), size(at, at->offsets));
    bool part = is_part(at);
    const Ex *sq = size(at, SIZE_SQ), *sk = size(at, SIZE_SK);
    const Ex *most = op2(at, EX_SUB, num(at, SIZE_LIMIT), sq);
    const Ex *said = read(at, at->q_offset, ex_symbol(at->p->pool, SYM_B));
    if (part) sq = of_part(at, PART_SQ_ALL, q, k), sk = of_part(at, PART_SK_ALL, q, k);
    const Ex *other = op2(at, EX_MAX, op2(at, EX_SUB, sk, sq), num(at, 0));
    if (part)
        other = op2(at, EX_MIN, op2(at, EX_ADD, other, of_part(at, PART_Q_FIRST, q, k)), most);
    return ex_select(at->p->pool, given, within(at, said, num(at, -SIZE_LIMIT), most), other);
}

// Rows of an attention's tile are counted over all heads of a group.
static const Ex *most_queries(Places *at) {
    if (!at->group) return num(at, SIZE_LIMIT);
    const Ex *group = op2(at, EX_MAX, size(at, at->group), num(at, 1));
    return size(at, add_size(at, "most_q", op2(at, EX_DIV, num(at, SIZE_LIMIT), group), false));
}

// Of a recurrence's state: any index is one of a slot.
static const Ex *slot(Places *at) {
    const Ex *b = ex_symbol(at->p->pool, SYM_B),
             *given = op2(at, EX_LT, num(at, 0), size(at, at->indices));
    const Ex *last = op2(at, EX_SUB, size(at, at->slots), num(at, 1));
    return ex_select(at->p->pool, given, within(at, read(at, at->state_index, b), num(at, 0), last),
                     b);
}

static void add_keys(Places *at, const Ex *batch, const Ex *starts) {
    at->offsets = open_extent(at, TENSOR_Q_OFFSET);
    if (at->p->phase == PHASE_COMBINE) {
        at->q_offset = add_index(at, TENSOR_Q_OFFSET, size(at, at->offsets), NULL);
        return;
    }
    if (at->p->batch == BATCH_PAGED) {
        at->kv_len = add_index(at, TENSOR_KV_LEN, batch, NULL);
        at->page_table = add_index(at, TENSOR_PAGE_TABLE, batch, size(at, at->table));
    } else {
        at->kv_start = add_index(at, TENSOR_KV_START, starts, NULL);
    }
    at->q_offset = add_index(at, TENSOR_Q_OFFSET, size(at, at->offsets), NULL);
}

static const char *const part_names[PLACES_OF_PARTS] = {"q_before", "k_before", "all_q", "all_k"};

static void add_places_of_parts(Places *at) {
    static const TensorRole roles[] = {TENSOR_Q_FIRST, TENSOR_KV_FIRST, TENSOR_SQ_ALL,
                                       TENSOR_SK_ALL};
    for (int i = 0; i < PLACES_OF_PARTS; i++) {
        if (i == PART_KV_FIRST && at->p->phase == PHASE_COMBINE) continue;
        at->open[i] = open_extent(at, roles[i]);
        at->given[i] = add_index(at, roles[i], size(at, at->open[i]), NULL);
    }
}

void places_index_tensors(Places *at) {
    const Ex *batch = size(at, SIZE_B), *starts = op2(at, EX_ADD, batch, num(at, 1));
    bool recurs = at->p->recurrence;
    if (recurs || at->p->batch == BATCH_PAGED) at->starts = open_extent(at, TENSOR_Q_START);
    at->q_start = add_index(at, TENSOR_Q_START, at->starts ? size(at, at->starts) : starts, NULL);
    if (recurs) {
        at->indices = open_extent(at, TENSOR_STATE_INDEX);
        at->state_index = add_index(at, TENSOR_STATE_INDEX, size(at, at->indices), NULL);
        at->slot = add_size(at, "slot", slot(at), true);
    } else {
        add_keys(at, batch, starts);
    }
    bool part = is_part(at);
    if (part) add_places_of_parts(at);
    Rows q = queries(at), k = {NULL, NULL};
    if (!recurs) k = keys(at);
    set_own(at, at->queries, op2(at, EX_MIN, q.count, most_queries(at)));
    if (!recurs) {
        set_own(at, SIZE_SK, op2(at, EX_MIN, k.count, num(at, SIZE_LIMIT)));
        set_own(at, SIZE_Q_OFFSET, offset(at, &q, &k));
    }
    at->q_first = add_size(at, "q_first", q.first, true);
    if (k.first) at->k_first = add_size(at, "k_first", k.first, true);
    for (int i = 0; part && i < PLACES_OF_PARTS; i++)
        at->whole[i] = add_size(at, part_names[i], of_part(at, (PlaceOfPart)i, &q, &k), true);
}

// ---- places

// Indices of a row of sequence `of`, whose size may be replaced by what it is there.
static int place_of_key(Places *at, const Ex *of, const Ex *first, const Ex *key,
                        const Ex **index) {
    if (at->p->batch == BATCH_RAGGED) return index[0] = op2(at, EX_ADD, first, key), 1;
    const Ex *page = at->p->page ? num(at, at->p->page) : size(at, at->page);
    const Ex *entry[] = {of, op2(at, EX_DIV, key, page)};
    index[0] = ex_load(at->p->pool, at->page_table, EX_I32, entry, 2, false);
    index[1] = op2(at, EX_MOD, key, page);
    return 2;
}

static const Ex *first_key(Places *at) {
    return at->p->batch == BATCH_RAGGED ? size(at, at->k_first) : NULL;
}

int places_query(Places *at, const Ex *query, const Ex **index) {
    index[0] = op2(at, EX_ADD, size(at, at->q_first), query);
    return 1;
}

int places_key(Places *at, const Ex *key, const Ex **index) {
    return place_of_key(at, ex_symbol(at->p->pool, SYM_B), first_key(at), key, index);
}

const Ex *places_position(Places *at, const Ex *key) {
    const Ex *before = size(at, at->whole[PART_KV_FIRST]);
    if (!at->gap) return op2(at, EX_ADD, before, key);
    const Ex *runs = op2(at, EX_DIV, key, size(at, at->run));
    return op2(at, EX_ADD, before, op2(at, EX_ADD, key, op2(at, EX_MUL, runs, size(at, at->gap))));
}

// ---- elements of inputs

static const Ex *of_sequence(Places *at, int of, const Ex *sequence) {
    const Ex *e = size(at, of);
    if (sequence->op == EX_SYM && sequence->sym == SYM_B) return e;
    // of fixed sizes and tensors: what it is made of has no other size of a sequence
    return ex_subst(at->p->pool, at->p->sizes.data[of].def, SYM_B, 0, sequence);
}

typedef struct Place {
    const Ex *sequence, *row, *count;
    bool own;  // of the sequence at hand,
    bool here; // and the pair's own query or key
} Place;

// Of a part: an array of the whole sequence's rows.
static const Ex *in_whole(Places *at, const RowInput *in, int rows, const Ex *const *args) {
    bool key = is_size(in->extent[rows], at->keys);
    const Ex *last =
        op2(at, EX_SUB, size(at, at->whole[key ? PART_SK_ALL : PART_SQ_ALL]), num(at, 1));
    const Ex *row = ex_simplify(at->p->pool, args[rows]);
    return op2(at, EX_MAX, op2(at, EX_MIN, row, last), num(at, 0));
}

static Place place(Places *at, const RowInput *in, int batch, int rows, const Ex *const *args,
                   const Ex *same) {
    ExPool *x = at->p->pool;
    bool key = is_size(in->extent[rows], at->keys);
    const Ex *of = batch < 0 ? ex_symbol(x, SYM_B) : ex_simplify(x, args[batch]);
    Place p = {.row = ex_simplify(x, args[rows])};
    p.own = of->op == EX_SYM && of->sym == SYM_B;
    const Ex *last = op2(at, EX_SUB, size(at, SIZE_B), num(at, 1));
    p.sequence = p.own ? of : within(at, of, num(at, 0), last);
    p.count = of_sequence(at, key ? at->keys : at->queries, p.sequence);
    p.here = p.own && p.row == (same ? ex_simplify(x, same) : NULL);
    if (!p.here)
        p.row = op2(at, EX_MAX, op2(at, EX_MIN, p.row, op2(at, EX_SUB, p.count, num(at, 1))),
                    num(at, 0));
    return p;
}

// Rows that lie as k's or q's do; 0 of a sequence that has none.
static const Ex *placed_load(Places *at, const RowInput *in, const Ex *e, int batch, int rows,
                             const Ex *same) {
    bool key = is_size(in->extent[rows], at->keys);
    Place is = {ex_symbol(at->p->pool, SYM_B), same, NULL, true, true}; // of parts: accepts_rows
    if (!is_part(at)) is = place(at, in, batch, rows, e->args, same);
    const Ex *index[EX_MAX_RANK + 1];
    int n = 1;
    if (key)
        n = place_of_key(at, is.sequence,
                         at->p->batch == BATCH_RAGGED ? of_sequence(at, at->k_first, is.sequence)
                                                      : NULL,
                         is.row, index);
    else
        index[0] = op2(at, EX_ADD, of_sequence(at, at->q_first, is.sequence), is.row);
    for (int d = 0; d < in->rank; d++)
        if (d != batch && d != rows) index[n++] = e->args[d];
    const Ex *v = ex_load(at->p->pool, e->input, e->type, index, n, false);
    if (is.here || (is.own && !key)) return v; // a tile has a row
    const Ex *none = e->type == EX_F32   ? ex_f32(at->p->pool, 0)
                     : e->type == EX_I32 ? num(at, 0)
                                         : ex_bool(at->p->pool, false);
    return ex_select(at->p->pool, op2(at, EX_LT, num(at, 0), is.count), v, none);
}

const Ex *places_load(Places *at, const RowInput *in, const Ex *e, const Ex *query, const Ex *key) {
    const Ex *index[EX_MAX_RANK];
    int batch, rows;
    bool changed = false;
    if (is_placed(at, in, &batch, &rows))
        return placed_load(at, in, e, batch, rows,
                           is_size(in->extent[rows], at->keys) ? key : query);
    for (int d = 0; d < in->rank; d++) {
        bool keys = is_size(in->extent[d], at->keys),
             own = keys || is_size(in->extent[d], at->queries);
        index[d] = !own          ? e->args[d]
                   : is_part(at) ? in_whole(at, in, d, e->args)
                                 : place(at, in, -1, d, e->args, keys ? key : query).row;
        changed |= own;
    }
    return changed ? ex_load(at->p->pool, e->input, e->type, index, in->rank, false) : e;
}

// ---- what a layout has not

static bool is_among(const char *name, const char *const *names) {
    for (int i = 0; names[i]; i++)
        if (!strcmp(name, names[i])) return true;
    return false;
}

static bool check_input(const RowInput *in, int kind, const char *layout, Diags *diags) {
    bool recurs = kind == RECURRENCES;
    int rows = 0;
    for (int d = 0; d < in->rank; d++)
        rows += recurs ? is_size(in->extent[d], RSIZE_S)
                       : is_size(in->extent[d], SIZE_SQ) || is_size(in->extent[d], SIZE_SK);
    if (is_among(in->name, tensor_names[kind]))
        diag_error(diags, in->span, "input '%s' has the name of a tensor of layout %s", in->name,
                   layout);
    else if (in->bare_q)
        diag_error(diags, in->span, "'%s' is indexed by q_idx: in layout %s write q_idx - q_offset",
                   in->name, layout);
    else if (rows > 1 && dimension_of(in, SIZE_B) >= 0)
        diag_error(diags, in->span,
                   "'%s' has B and %d dimensions of rows: layout %s has no such tensor", in->name,
                   rows, layout);
    else
        return true;
    return false;
}

static bool accepts(const RowInput *inputs, int n, const SizeNames *sizes, int first, Span span,
                    int kind, BatchLayout batch, Diags *diags) {
    const char *layout = batch_name(batch);
    bool good = true;
    for (int i = 0; i < n; i++) good &= check_input(&inputs[i], kind, layout, diags);
    for (int i = first; i < sizes->n; i++) {
        if (!is_among(sizes->data[i], size_names[kind])) continue;
        diag_error(diags, span, "size '%s' has the name of a size of layout %s", sizes->data[i],
                   layout);
        good = false;
    }
    return good;
}

bool pass_accepts_layout(const RowProgram *row, BatchLayout batch, Diags *diags) {
    return !batch || accepts(row->inputs.data, row->inputs.n, &row->sizes, SIZE_FREE, row->span,
                             kind_of(batch, false), batch, diags);
}

// ---- what parts of a layout have not

typedef struct Foreign {
    const RowProgram *row;
    Places at;
    const Ex *query; // of the pair, as arrays have it
    int input;       // that is read elsewhere; -1: none
} Foreign;

// A part has the rows of its own queries and keys.
static void find_foreign(void *ctx, const Ex *e) {
    Foreign *f = ctx;
    int batch, rows;
    if (e->op != EX_LOAD || e->input >= f->row->inputs.n) return;
    const RowInput *in = &f->row->inputs.data[e->input];
    if (!is_placed(&f->at, in, &batch, &rows)) return;
    const Ex *at = ex_simplify(f->row->pool, e->args[rows]);
    bool key = is_size(in->extent[rows], SIZE_SK);
    bool own = e->args[batch]->op == EX_SYM && e->args[batch]->sym == SYM_B;
    own &= key ? at->op == EX_SYM && at->sym == SYM_KV_IDX : at == f->query;
    if (!own) f->input = e->input;
}

bool pass_accepts_parts_of_layout(const RowProgram *row, BatchLayout batch, Diags *diags) {
    ExPool *x = row->pool;
    const Ex *first = ex_sym(x, SYM_SIZE, SIZE_Q_OFFSET, EX_I32);
    const Ex *query = ex_simplify(x, ex_2(x, EX_SUB, ex_symbol(x, SYM_Q_IDX), first));
    Foreign f = {row, {.queries = SIZE_SQ, .keys = SIZE_SK}, query, -1};
    const Ex *const formulas[] = {
        row->modified,         row->mask, row->weight, row->output, row->channel[ROW_QUERIES],
        row->channel[ROW_KEYS]};
    if (!batch) return true;
    for (size_t i = 0; i < sizeof formulas / sizeof *formulas; i++)
        if (formulas[i]) ex_visit(formulas[i], find_foreign, &f);
    for (int i = 0; i < row->reduces.n; i++) ex_visit(row->reduces.data[i].f, find_foreign, &f);
    for (int i = 0; i < row->emits.n; i++) ex_visit(row->emits.data[i].value, find_foreign, &f);
    if (f.input >= 0)
        diag_error(diags, row->inputs.data[f.input].span,
                   "'%s' is read at another row than the pair's own: of a part in layout %s that "
                   "row may lie elsewhere",
                   row->inputs.data[f.input].name, batch_name(batch));
    return f.input < 0;
}

bool pass_accepts_recurrence_layout(const RecProgram *rec, BatchLayout batch, Diags *diags) {
    if (batch == BATCH_PAGED)
        diag_error(
            diags, rec->span,
            "no recurrences in layout paged: their states are slots of a pool in layout ragged");
    return !batch || (batch == BATCH_RAGGED &&
                      accepts(rec->inputs.data, rec->inputs.n, &rec->sizes, RSIZE_FREE, rec->span,
                              kind_of(batch, true), batch, diags));
}
