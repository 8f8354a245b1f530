// sequences.c: layouts in which each sequence has lengths of its own.
//
// In: a Build of a ragged or paged layout. Out: sizes, tensors, and where rows are in them. The variant's sizes Sq, Sk and q_offset
// are a sequence's own, made from the tensors that say where rows lie; a launch knows only what bounds them (pass_at_launch). Holds
// afterwards: whatever numbers those tensors hold, rows are inside of what they are rows of.
//
//     q [Tq, H, D]        row i of sequence b: q_first + i
//     k [Tk, Hkv, D]      key j: k_first + j
//     k [pages, page, Hkv, D]    key j: row j % page of page page_table[b, j / page]
#include "passes/tile/build.h"

#include <string.h>

enum { NAMES = 6 };
static const char *const size_names[BATCH_COUNT][NAMES] = {
    [BATCH_RAGGED] = {"Tq", "max_q", "Tk"},
    [BATCH_PAGED] = {"Tq", "max_q", "pages", "page", "table"}};
static const char *const tensor_names[BATCH_COUNT][NAMES] = {
    [BATCH_RAGGED] = {"q_start", "kv_start"}, [BATCH_PAGED] = {"q_start", "kv_len", "page_table"}};

// ---- sizes

static int add_size(Build *b, const char *name, const Ex *def, bool own) {
    TileProgram *p = b->p;
    for (int i = 0; i < p->sizes.n; i++)
        if (!strcmp(p->sizes.data[i].name, name))
            return add_size(b, arena_printf(b->arena, "%s_", name), def, own);
    TileSize size = {name, def, own};
    VEC_PUSH(b->arena, &p->sizes, size);
    return p->sizes.n - 1;
}

static const Ex *num(Build *b, int n) { return ex_i32(b->pool, n); }
static const Ex *op2(Build *b, ExOp op, const Ex *x, const Ex *y) {
    return ex_2(b->pool, op, x, y);
}
static const Ex *within(Build *b, const Ex *e, const Ex *least, const Ex *most) {
    return op2(b, EX_MIN, op2(b, EX_MAX, e, least), most);
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
    const Ex *keys = p->batch == BATCH_RAGGED
                         ? launch_size(p, "Tk")
                         : ex_2(x, EX_MUL, launch_size(p, "table"), launch_size(p, "page"));
    const Ex *queries = ex_2(x, EX_MAX, launch_size(p, "max_q"), ex_i32(x, 1)); // a hint
    e = ex_subst(x, e, SYM_SIZE, SIZE_SQ, queries);
    return ex_subst(x, e, SYM_SIZE, SIZE_SK, keys);
}

void build_layout_sizes(Build *b, int page) {
    Places *at = &b->at;
    int *to[BATCH_COUNT][NAMES] = {
        [BATCH_RAGGED] = {&at->Tq, &at->max_q, &at->Tk},
        [BATCH_PAGED] = {&at->Tq, &at->max_q, &at->pages, &at->page, &at->table}};
    BatchLayout batch = b->p->batch;
    b->p->page = page;
    for (int i = 0; size_names[batch][i]; i++)
        *to[batch][i] = add_size(b, size_names[batch][i], NULL, false);
    b->group = add_size(b, "group", op2(b, EX_DIV, build_size(b, SIZE_HQ), build_size(b, SIZE_HKV)),
                        false);
}

// ---- tensors

static void push_extent(TileTensor *t, const Ex *e) { t->extent[t->rank++] = e; }

static void push_keys(Build *b, TileTensor *t) {
    bool paged = b->p->batch == BATCH_PAGED;
    push_extent(t, build_size(b, paged ? b->at.pages : b->at.Tk));
    if (paged) push_extent(t, build_size(b, b->at.page));
}

void build_place_rows(Build *b, TileTensor *t, bool keys) {
    t->rank = 0;
    if (keys)
        push_keys(b, t);
    else
        push_extent(t, build_size(b, b->at.Tq));
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
static bool is_placed(const RowInput *in, int *batch, int *rows) {
    int keys = dimension_of(in, SIZE_SK);
    *batch = dimension_of(in, SIZE_B);
    *rows = keys < 0 ? dimension_of(in, SIZE_SQ) : keys;
    return *batch >= 0 && *rows >= 0;
}

void build_place_input(Build *b, const RowInput *in, TileTensor *t) {
    int batch, rows;
    bool placed = is_placed(in, &batch, &rows);
    t->rank = 0;
    if (placed && is_size(in->extent[rows], SIZE_SK)) push_keys(b, t);
    if (placed && is_size(in->extent[rows], SIZE_SQ)) push_extent(t, build_size(b, b->at.Tq));
    for (int d = 0; d < in->rank; d++) {
        if (placed && (d == batch || d == rows)) continue;
        const Ex *e = in->extent[d];
        if (is_size(e, SIZE_SQ) ||
            is_size(e, SIZE_SK)) // any number, that of the longest sequence at least
            e = build_size(b,
                           add_size(b, arena_printf(b->arena, "%s_%d", in->name, d), NULL, false));
        push_extent(t, e);
    }
}

static int add_index(Build *b, TensorRole role, const Ex *first, const Ex *second) {
    TileTensor t = {.name = tensor_traits(role)->name, .role = role, .dtype = DT_I32};
    push_extent(&t, first);
    if (second) push_extent(&t, second);
    return build_input(b, build_tensor(b, t));
}

// Of one that may be left out: 0 then.
static int open_extent(Build *b, TensorRole role) {
    return add_size(b, arena_printf(b->arena, "%s_0", tensor_traits(role)->name), NULL, false);
}

static const Ex *read(Build *b, int input, const Ex *i) {
    return ex_load(b->pool, input, EX_I32, &i, 1, false);
}

// ---- a sequence's sizes

typedef struct Rows { // of a sequence
    const Ex *first, *count;
} Rows;

// From starts to the next ones; what goes out of 0..total is empty.
static Rows between(Build *b, int starts, const Ex *total) {
    const Ex *i = ex_symbol(b->pool, SYM_B), *next = op2(b, EX_ADD, i, num(b, 1));
    const Ex *first = within(b, read(b, starts, i), num(b, 0), total);
    const Ex *end = within(b, read(b, starts, next), first, total);
    return (Rows){first, op2(b, EX_SUB, end, first)};
}

static Rows queries(Build *b) {
    const Ex *total = build_size(b, b->at.Tq), *i = ex_symbol(b->pool, SYM_B);
    Rows r = between(b, b->at.q_start, total);
    if (b->p->batch == BATCH_RAGGED) return r;
    const Ex *batch = op2(b, EX_MAX, build_size(b, SIZE_B), num(b, 1));
    const Ex *each = build_size(b, add_size(b, "each_q", op2(b, EX_DIV, total, batch), false));
    const Ex *given = op2(b, EX_LT, num(b, 0), build_size(b, b->at.starts));
    return (Rows){ex_select(b->pool, given, r.first, op2(b, EX_MUL, i, each)),
                  ex_select(b->pool, given, r.count, each)};
}

static Rows keys(Build *b) {
    if (b->p->batch == BATCH_RAGGED) return between(b, b->at.kv_start, build_size(b, b->at.Tk));
    const Ex *pages = build_size(b, b->at.pages), *none = num(b, 0);
    const Ex *all = op2(b, EX_MUL, build_size(b, b->at.table), build_size(b, b->at.page));
    const Ex *room = ex_select(b->pool, op2(b, EX_LT, none, pages),
                               op2(b, EX_MIN, all, num(b, SIZE_LIMIT)), none);
    room = build_size(b, add_size(b, "most_keys", room, false));
    return (Rows){NULL, within(b, read(b, b->at.kv_len, ex_symbol(b->pool, SYM_B)), none, room)};
}

static void set_own(Build *b, int size, const Ex *def) {
    b->p->sizes.data[size].def = def;
    b->p->sizes.data[size].own = true;
}

static const Ex *offset(Build *b) {
    const Ex *given = op2(b, EX_LT, num(b, 0), build_size(b, b->at.offsets));
    const Ex *sq = build_size(b, SIZE_SQ), *sk = build_size(b, SIZE_SK);
    const Ex *most = op2(b, EX_SUB, num(b, SIZE_LIMIT), sq);
    const Ex *said = read(b, b->at.q_offset, ex_symbol(b->pool, SYM_B));
    return ex_select(b->pool, given, within(b, said, num(b, -SIZE_LIMIT), most),
                     op2(b, EX_MAX, op2(b, EX_SUB, sk, sq), num(b, 0)));
}

// Rows of a tile are counted over all heads of a group.
static const Ex *most_queries(Build *b) {
    const Ex *group = op2(b, EX_MAX, build_size(b, b->group), num(b, 1));
    return build_size(b, add_size(b, "most_q", op2(b, EX_DIV, num(b, SIZE_LIMIT), group), false));
}

void build_index_tensors(Build *b) {
    Places *at = &b->at;
    const Ex *batch = build_size(b, SIZE_B), *starts = op2(b, EX_ADD, batch, num(b, 1));
    bool paged = b->p->batch == BATCH_PAGED;
    if (paged) at->starts = open_extent(b, TENSOR_Q_START);
    at->offsets = open_extent(b, TENSOR_Q_OFFSET);
    at->q_start = add_index(b, TENSOR_Q_START, paged ? build_size(b, at->starts) : starts, NULL);
    if (paged) {
        at->kv_len = add_index(b, TENSOR_KV_LEN, batch, NULL);
        at->page_table = add_index(b, TENSOR_PAGE_TABLE, batch, build_size(b, at->table));
    } else {
        at->kv_start = add_index(b, TENSOR_KV_START, starts, NULL);
    }
    at->q_offset = add_index(b, TENSOR_Q_OFFSET, build_size(b, at->offsets), NULL);
    Rows q = queries(b), k = keys(b);
    set_own(b, SIZE_SQ, op2(b, EX_MIN, q.count, most_queries(b)));
    set_own(b, SIZE_SK, op2(b, EX_MIN, k.count, num(b, SIZE_LIMIT)));
    set_own(b, SIZE_Q_OFFSET, offset(b));
    at->q_first = add_size(b, "q_first", q.first, true);
    if (k.first) at->k_first = add_size(b, "k_first", k.first, true);
}

// ---- places

// Indices of a row of sequence `of`, whose size may be replaced by what it is there.
static int place_of_key(Build *b, const Ex *of, const Ex *first, const Ex *key, const Ex **index) {
    if (b->p->batch == BATCH_RAGGED) return index[0] = op2(b, EX_ADD, first, key), 1;
    const Ex *page = b->p->page ? num(b, b->p->page) : build_size(b, b->at.page);
    const Ex *entry[] = {of, op2(b, EX_DIV, key, page)};
    index[0] = ex_load(b->pool, b->at.page_table, EX_I32, entry, 2, false);
    index[1] = op2(b, EX_MOD, key, page);
    return 2;
}

static const Ex *first_key(Build *b) {
    return b->p->batch == BATCH_RAGGED ? build_size(b, b->at.k_first) : NULL;
}

int build_query_place(Build *b, const Ex *query, const Ex **index) {
    index[0] = op2(b, EX_ADD, build_size(b, b->at.q_first), query);
    return 1;
}

int build_key_place(Build *b, const Ex *key, const Ex **index) {
    return place_of_key(b, ex_symbol(b->pool, SYM_B), first_key(b), key, index);
}

// ---- elements of inputs

static const Ex *of_sequence(Build *b, int size, const Ex *sequence) {
    const Ex *e = build_size(b, size);
    if (sequence->op == EX_SYM && sequence->sym == SYM_B) return e;
    // of fixed sizes and tensors: what it is made of has no other size of a sequence
    return ex_subst(b->pool, b->p->sizes.data[size].def, SYM_B, 0, sequence);
}

typedef struct Place {
    const Ex *sequence, *row, *count;
    bool own;  // of the sequence at hand,
    bool here; // and the pair's own query or key
} Place;

static Place place(Build *b, const RowInput *in, int batch, int rows, const Ex *const *args) {
    ExPool *x = b->pool;
    bool key = is_size(in->extent[rows], SIZE_SK);
    const Ex *of = batch < 0 ? ex_symbol(x, SYM_B) : ex_simplify(x, args[batch]);
    Place p = {.row = ex_simplify(x, args[rows])};
    p.own = of->op == EX_SYM && of->sym == SYM_B;
    const Ex *last = op2(b, EX_SUB, build_size(b, SIZE_B), num(b, 1));
    p.sequence = p.own ? of : within(b, of, num(b, 0), last);
    p.count = of_sequence(b, key ? SIZE_SK : SIZE_SQ, p.sequence);
    const Ex *same = key ? (b->axis[AX_N] < 0 ? NULL : build_pos(b, AX_N)) : build_query(b);
    p.here = p.own && p.row == (same ? ex_simplify(x, same) : NULL);
    if (!p.here)
        p.row =
            op2(b, EX_MAX, op2(b, EX_MIN, p.row, op2(b, EX_SUB, p.count, num(b, 1))), num(b, 0));
    return p;
}

// Rows that lie as k's or q's do; 0 of a sequence that has none.
static const Ex *placed_load(Build *b, const RowInput *in, const Ex *e, int batch, int rows) {
    bool key = is_size(in->extent[rows], SIZE_SK);
    Place at = place(b, in, batch, rows, e->args);
    const Ex *index[EX_MAX_RANK + 1];
    int n = 1;
    if (key)
        n = place_of_key(b, at.sequence,
                         b->p->batch == BATCH_RAGGED ? of_sequence(b, b->at.k_first, at.sequence)
                                                     : NULL,
                         at.row, index);
    else
        index[0] = op2(b, EX_ADD, of_sequence(b, b->at.q_first, at.sequence), at.row);
    for (int d = 0; d < in->rank; d++)
        if (d != batch && d != rows) index[n++] = e->args[d];
    const Ex *v = ex_load(b->pool, e->input, e->type, index, n, false);
    if (at.here || (at.own && !key)) return v; // a tile has a row
    const Ex *none = e->type == EX_F32   ? ex_f32(b->pool, 0)
                     : e->type == EX_I32 ? num(b, 0)
                                         : ex_bool(b->pool, false);
    return ex_select(b->pool, op2(b, EX_LT, num(b, 0), at.count), v, none);
}

const Ex *build_placed_load(Build *b, const Ex *e) {
    if (e->input >= b->row->inputs.n) return e;
    const RowInput *in = &b->row->inputs.data[e->input];
    const Ex *index[EX_MAX_RANK];
    int batch, rows;
    bool changed = false;
    if (is_placed(in, &batch, &rows)) return placed_load(b, in, e, batch, rows);
    for (int d = 0; d < in->rank; d++) {
        bool own = is_size(in->extent[d], SIZE_SQ) || is_size(in->extent[d], SIZE_SK);
        index[d] = own ? place(b, in, -1, d, e->args).row : e->args[d];
        changed |= own;
    }
    return changed ? ex_load(b->pool, e->input, e->type, index, in->rank, false) : e;
}

// ---- what a layout has not

static bool is_among(const char *name, const char *const *names) {
    for (int i = 0; names[i]; i++)
        if (!strcmp(name, names[i])) return true;
    return false;
}

static bool check_input(const RowInput *in, BatchLayout batch, Diags *diags) {
    const char *layout = batch_name(batch);
    int rows = 0;
    for (int d = 0; d < in->rank; d++)
        rows += is_size(in->extent[d], SIZE_SQ) || is_size(in->extent[d], SIZE_SK);
    if (is_among(in->name, tensor_names[batch]))
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

bool pass_accepts_layout(const RowProgram *row, BatchLayout batch, Diags *diags) {
    if (!batch) return true;
    bool good = true;
    for (int i = 0; i < row->inputs.n; i++) good &= check_input(&row->inputs.data[i], batch, diags);
    for (int i = SIZE_FREE; i < row->sizes.n; i++) {
        if (!is_among(row->sizes.data[i], size_names[batch])) continue;
        diag_error(diags, row->span, "size '%s' has the name of a size of layout %s",
                   row->sizes.data[i], batch_name(batch));
        good = false;
    }
    return good;
}
