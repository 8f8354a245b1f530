// build.c: streaming form -> tile program, algorithm level.
//
// In: a Stream. Out: a program with one kernel that computes it: extents are not chosen (tiles of
// one element), nothing is fused or hoisted, every row scalar is a map of its own. It depends
// on the target in one way: whether the kernel for many queries may have parts (PassOptions.share).
// Afterwards tile_verify holds.
//
// Axes: M the queries of one head, or of the heads of a group (packed rows), N the keys, D and E the columns of q, k and of v, o. For
// softmax:
//
//     grid b, h, M
//     %q = load q[b, h, M, D]
//     loop N carry %m = -inf, %l = 0, %acc = 0
//       %k = load k[b, h * Hkv / H, N, D]
//       %dot = mma %q, %k                                  f32[M, N]
//       %s = map select(mask, dot, -inf)
//       %m_tile = map rowmax over N of s * 0.18            f32[M]
//       %m_new = map max(m, m_tile)
//       %a_new = map -m_new; %a = map safe(a_new); %c = map exp2(a - -m)
//       %l_tile = map rowsum over N of exp2(s * 0.18 + a); %l_new = map l * c + l_tile
//       %p = map exp2(s * 0.18 + a)                        v's dtype [M, N]
//       %v = load v; %acc_new = mma %p, %v, map(acc * c)
//     %o = map select(m == -inf, 0, acc * (1 / l)); store o
//
// A masked key reaches the reductions as s = -inf whatever modify made of it (select lets no NaN
// through).
#include "passes/tile/build.h"

#include "ir/tile_blocks.h"

#include <assert.h>
#include <math.h>
#include <string.h>

// ---- small expressions

const Ex *build_size(Build *b, int index) { return ex_sym(b->pool, SYM_SIZE, index, EX_I32); }

const Ex *build_pos(Build *b, AxisRole axis) {
    assert(b->axis[axis] >= 0);
    return ex_sym(b->pool, SYM_POS, b->axis[axis], EX_I32);
}

static const Ex *all_heads(Build *b) {
    return ex_2(b->pool, EX_MUL, build_size(b, SIZE_B), build_size(b, SIZE_HQ));
}

const Ex *build_parts(Build *b) {
    const TileSplit *s = &b->p->split;
    bool given = b->phase == PHASE_COMBINE;
    return build_size(b, given ? b->whole.parts : s->parts ? s->parts : s->few);
}

const Ex *build_own_parts(Build *b) {
    return b->own_parts ? build_size(b, b->own_parts) : build_parts(b);
}

// Whether a sequence in one part is finished by that: of a batch, unless what it gives has to be the same as in any other.
bool build_may_finish(const Build *b) { return b->own_parts && !b->phase && !b->p->split.apart; }

const Ex *build_split_heads(Build *b) {
    return ex_2(b->pool, EX_SUB, all_heads(b), build_size(b, b->p->split.whole));
}

// 0 for a whole axis.
static const Ex *tile_of(Build *b, AxisRole axis) {
    int a = b->axis[axis];
    return b->k->axes[a].whole ? ex_i32(b->pool, 0) : ex_sym(b->pool, SYM_TILE, a, EX_I32);
}

// ---- rows
//
// Row r of packed rows is query r / group of head h * group + r % group, and the grid's h goes over the heads of the keys. Otherwise
// it is query r of head h.

static const Ex *query_of_row(Build *b) {
    const Ex *row = build_pos(b, AX_M);
    return b->packed ? ex_2(b->pool, EX_DIV, row, build_size(b, b->group)) : row;
}

static const Ex *head_of_row(Build *b) {
    ExPool *x = b->pool;
    const Ex *h = ex_symbol(x, SYM_H), *group = build_size(b, b->group);
    if (!b->packed) return h;
    return ex_2(x, EX_ADD, ex_2(x, EX_MUL, h, group), ex_2(x, EX_MOD, build_pos(b, AX_M), group));
}

static const Ex *key_head(Build *b) {
    const Ex *h = ex_symbol(b->pool, SYM_H);
    if (b->packed) return h;
    const Ex *scaled = ex_2(b->pool, EX_MUL, h, build_size(b, SIZE_HKV));
    return ex_2(b->pool, EX_DIV, scaled, build_size(b, SIZE_HQ));
}

static const Ex *q_idx(Build *b) {
    return ex_2(b->pool, EX_ADD, build_size(b, SIZE_Q_OFFSET), query_of_row(b));
}

static const Ex *build_rows(Build *b) {
    const TileSplit *s = &b->p->split;
    bool many = b->k && b->k->purpose == PURPOSE_ATTENTION;
    int own = !many ? s->few_queries : b->packed ? s->many_queries : s->long_queries;
    const Ex *queries = build_size(b, own ? own : SIZE_SQ);
    return b->packed ? ex_2(b->pool, EX_MUL, queries, build_size(b, b->group)) : queries;
}

const Ex *build_identity(Build *b, ExOp reduce) {
    return ex_f32(b->pool, (float)ex_identity(reduce));
}

ExOp build_merge(ExOp reduce) {
    if (reduce == EX_ROWSUM) return EX_ADD;
    return reduce == EX_ROWMAX ? EX_MAX : EX_MIN;
}

// ---- what symbols stand for

const Ex *build_of(Build *b, TileValue *v) {
    build_bind(b, SYM_PARAM, v->id, v);
    return ex_sym(b->pool, SYM_PARAM, v->id, dtype_reads(v->dtype));
}

void build_bind(Build *b, ExSym sym, int index, TileValue *v) {
    Binding new = {sym, index, v};
    VEC_PUSH(b->arena, &b->env, new);
}

TileValue *build_bound(const Build *b, ExSym sym, int index) {
    for (int i = b->env.n; i-- > 0;)
        if (b->env.data[i].sym == sym && b->env.data[i].index == index) return b->env.data[i].value;
    return NULL;
}

static const Ex *placed_load(Build *b, const Ex *e) {
    if (e->input >= b->row->inputs.n) return e;
    const Ex *key = b->axis[AX_N] < 0 ? NULL : build_pos(b, AX_N);
    return places_load(&b->at, &b->row->inputs.data[e->input], e, query_of_row(b), key);
}

typedef struct Resolve {
    Build *b;
    TileOp *map;
} Resolve;

static const Ex *resolve_one(void *ctx, ExPool *pool, const Ex *e) {
    Resolve *r = ctx;
    // What is inside for every query and key need not be for a tile that goes past the last of them
    // (inside.c).
    if (e->op == EX_LOAD && e->inside)
        e = ex_load(pool, e->input, e->type, e->args, e->nargs, false);
    if (e->op == EX_LOAD) return r->b->p->batch ? placed_load(r->b, e) : e;
    if (e->op != EX_SYM) return e;
    if (e->sym == SYM_Q_IDX) return q_idx(r->b);
    if (e->sym == SYM_H) return head_of_row(r->b);
    if (e->sym == SYM_KV_IDX) return build_in_whole(r->b, build_pos(r->b, AX_N));
    if (e->sym == SYM_SIZE) return build_in_whole(r->b, e);
    if (e->sym == SYM_D_IDX) return build_pos(r->b, r->b->columns ? r->b->columns : AX_E);
    TileValue *v = r->map ? build_bound(r->b, e->sym, e->index) : NULL;
    return v ? pass_operand(r->b->p, r->map, v) : e;
}

const Ex *build_resolve(Build *b, TileOp *map, const Ex *e) {
    Resolve r = {b, map};
    return ex_map(b->pool, e, resolve_one, &r);
}

// ---- tensors

int build_tensor(Build *b, TileTensor t) { return tile_tensor(b->p, t); }

int build_input(Build *b, int tensor) {
    for (int i = 0; i < b->p->inputs.n; i++)
        if (b->p->inputs.data[i] == tensor) return i;
    VEC_PUSH(b->arena, &b->p->inputs, tensor);
    return b->p->inputs.n - 1;
}

// A backward's workspace with room for what rows are padded by.
static const Ex *padded_rows(Build *b, const Ex *rows) {
    ExPool *x = b->pool;
    const Ex *unit = ex_i32(x, TILE_BLOCK_ROWS), *one = ex_i32(x, 1);
    const Ex *blocks = ex_2(x, EX_ADD, ex_2(x, EX_DIV, rows, unit), build_size(b, SIZE_B));
    return ex_2(x, EX_MUL, ex_2(x, EX_ADD, blocks, one), unit);
}

TileTensor build_open_tensor(Build *b, const char *name, TensorRole role, int index, Dtype t,
                             int heads, int rows, int columns) {
    const Ex *of_heads = build_size(b, heads);
    TileTensor new = {.name = name,
                      .role = role,
                      .index = index,
                      .dtype = t,
                      .rank = 3,
                      .extent = {build_size(b, SIZE_B), of_heads, build_size(b, rows)}};
    if (b->p->batch) {
        places_rows(&b->at, &new, rows == SIZE_SK);
        new.extent[new.rank++] = of_heads;
    }
    if (b->p->batch && role == TENSOR_WORK)
        new.extent[1] = padded_rows(b, new.extent[0]), new.extent[0] = of_heads;
    if (columns) new.extent[new.rank++] = ex_i32(b->pool, columns);
    return new;
}

int build_main_tensor(Build *b, const char *name, TensorRole role, int index, Dtype t, int heads,
                      int rows, int columns) {
    return build_tensor(b, build_open_tensor(b, name, role, index, t, heads, rows, columns));
}

static void add_inputs(Build *b) {
    for (int i = 0; i < b->row->inputs.n; i++) {
        const RowInput *in = &b->row->inputs.data[i];
        TileTensor t = {.name = in->name,
                        .role = TENSOR_INPUT,
                        .index = i,
                        .dtype = in->dtype,
                        .rank = in->rank,
                        .bare_q = in->bare_q,
                        .rows = in->rows};
        for (int d = 0; d < in->rank; d++) t.extent[d] = build_in_whole(b, in->extent[d]);
        if (b->p->batch) places_input(&b->at, in, &t);
        int tensor = build_tensor(b, t);
        VEC_PUSH(b->arena, &b->p->inputs, tensor);
    }
}

static void add_saved(Build *b) {
    b->first_saved = b->p->tensors.n;
    for (int i = 0; b->saves && i < b->saves->nsaved && b->phase != PHASE_PART; i++)
        build_main_tensor(b, arena_printf(b->arena, "saved%d", i), TENSOR_SAVED, i, DT_F32, SIZE_HQ,
                          SIZE_SQ, 0);
}

void build_tensors(Build *b, Dtype t, Dtype kv, bool emits) {
    const RowProgram *row = b->row;
    if (b->phase != PHASE_COMBINE) {
        b->tensor_q = build_main_tensor(b, "q", TENSOR_Q, 0, t, SIZE_HQ, SIZE_SQ, row->D);
        b->tensor_k = build_main_tensor(b, "k", TENSOR_K, 0, kv, SIZE_HKV, SIZE_SK, row->D);
        b->tensor_v = row->v_in_k
                          ? b->tensor_k
                          : build_main_tensor(b, "v", TENSOR_V, 0, kv, SIZE_HKV, SIZE_SK, row->Dv);
    }
    if (b->phase != PHASE_PART)
        b->tensor_o = build_main_tensor(b, "o", TENSOR_O, 0, t, SIZE_HQ, SIZE_SQ, row->Dv);
    add_inputs(b);
    if (b->phase == PHASE_PART || b->phase == PHASE_COMBINE) build_state_tensors(b);
    if (b->p->batch) places_index_tensors(&b->at);
    build_own_whole_sizes(b);
    b->first_emit = b->p->tensors.n;
    for (int i = 0; i < row->emits.n && emits && b->phase != PHASE_PART; i++)
        build_main_tensor(b, row->emits.data[i].name, TENSOR_EMIT, i, DT_F32, SIZE_HQ, SIZE_SQ, 0);
}

// ---- kernels

static void add_axis(Build *b, AxisRole role) {
    static const char *const names[AX_COUNT] = {"M", "N", "D", "E", "S", "G", "W", "X", "Y"};
    const Ex *size = NULL;
    if (role == AX_M)
        size = build_rows(b);
    else if (role == AX_N)
        size = build_size(b, SIZE_SK);
    else if (role == AX_S)
        size = build_parts(b);
    else if (role == AX_G)
        size = build_split_heads(b);
    else
        size = ex_i32(b->pool, role == AX_D   ? b->row->D
                               : role == AX_E ? b->row->Dv
                                              : b->width[role - AX_W]);
    bool whole = role == AX_D || role == AX_E || role >= AX_W;
    b->axis[role] = tile_axis(b->k, names[role], size, whole);
    bool single = role == AX_S || role == AX_G; // parts and heads are never tiled
    if (single) b->k->axes[b->axis[role]].extent = 1;
}

bool pass_uses_row(const RowProgram *row, RowSide side, int of) {
    bool used = ex_uses(row->modified, side == ROW_QUERIES ? SYM_SQQ : SYM_SQK, of);
    for (int i = 0; i < row->dots.n; i++) {
        const RowDot *d = &row->dots.data[i];
        for (int k = 0; k < d->pairs.n && ex_uses(row->modified, SYM_DOT, i); k++)
            used |= d->pairs.data[k].row[side] == of;
    }
    return used;
}

// Widths of the rows that dots and norms are of, beside D.
int pass_widths(const RowProgram *row, int *width) {
    int n = 0;
    for (int side = 0; side < ROW_SIDES; side++)
        for (int i = 1; i < row->rows[side].n; i++) {
            int w = row->rows[side].data[i].width;
            bool known = w == row->D || !pass_uses_row(row, (RowSide)side, i);
            for (int k = 0; k < n && k < PASS_MAX_WIDTHS; k++) known |= width[k] == w;
            if (!known && n < PASS_MAX_WIDTHS) width[n] = w;
            n += !known;
        }
    return n;
}

// A grid over batches, heads and tiles of queries.
TileKernel *build_kernel(Build *b, TilePurpose purpose, const char *suffix, const AxisRole *axes,
                         int n) {
    const char *part = b->phase == PHASE_PART_BWD    ? "part_"
                       : b->phase == PHASE_PIECE_BWD ? "piece_"
                                                     : "";
    const char *name = arena_printf(b->arena, "%s_%s%s", b->row->name, part, suffix);
    TileKernel *k = b->k = tile_kernel(b->p, name, purpose);
    for (int i = 0; i < AX_COUNT; i++) b->axis[i] = AX_NONE;
    for (int i = 0; i < n; i++) add_axis(b, axes[i]);
    k->ngrid = 3;
    k->grid[0] = (TileGrid){.sym = SYM_B, .count = build_size(b, SIZE_B)};
    k->grid[1] = (TileGrid){.sym = SYM_H, .count = build_size(b, b->packed ? SIZE_HKV : SIZE_HQ)};
    k->grid[2] = (TileGrid){.sym = SYM_TILE, .axis = b->axis[AX_M], .count = ex_i32(b->pool, 1)};
    b->block = &k->body;
    b->env.n = 0;
    return k;
}

void build_width_axes(Build *b) {
    for (int i = 0; i < b->nwidths; i++) add_axis(b, (AxisRole)(AX_W + i));
}

static AxisSet axis_set(const Build *b, int x, int y) {
    AxisSet s = 0;
    if (x != AX_NONE) s |= 1u << b->axis[x];
    if (y != AX_NONE) s |= 1u << b->axis[y];
    return s;
}

// ---- operations

TileOp *build_open_map(Build *b, int x, int y, Span span) {
    return pass_map(b->p, b->k, b->block, axis_set(b, x, y), span);
}

TileValue *build_map(Build *b, const char *name, Dtype t, int x, int y, const Ex *e) {
    TileOp *map = build_open_map(b, x, y, e->span);
    return pass_out(b->p, b->k, map, name, t, build_resolve(b, map, e), EX_CONST, 0);
}

TileValue *build_row(Build *b, const char *name, const Ex *e) {
    return build_map(b, name, DT_F32, AX_M, AX_NONE, e);
}

TileValue *build_mma(Build *b, const char *name, TileValue *x, TileValue *y, TileValue *sum,
                     AxisRole rows, AxisRole columns, Span span) {
    TileOp *op = tile_op(b->p, b->k, b->block, TILE_MMA, span.file ? span : b->row->span);
    op->tf32 = b->tf32;
    tile_arg(b->p, op, x);
    tile_arg(b->p, op, y);
    if (sum) tile_arg(b->p, op, sum);
    uint8_t axes[] = {(uint8_t)b->axis[rows], (uint8_t)b->axis[columns]};
    return tile_result(b->p, b->k, op, name, DT_F32, axes, 2);
}

TileValue *build_reduce(Build *b, const char *name, ExOp op, AxisRole over, const Ex *e,
                        Span span) {
    TileOp *map = build_open_map(b, AX_M, (int)over, e->nargs && e->span.file ? e->span : span);
    return pass_out(b->p, b->k, map, name, DT_F32, build_resolve(b, map, e), op, b->axis[over]);
}

// Which of all batches' heads it is.
const Ex *build_head(Build *b) {
    ExPool *x = b->pool;
    const Ex *before = ex_2(x, EX_MUL, ex_symbol(x, SYM_B), build_size(b, SIZE_HQ));
    return ex_2(x, EX_ADD, before, head_of_row(b));
}

static void by_index(TileOp *op, int *n, const Ex *at) {
    op->coord[(*n)++] = (TileCoord){.axis = -1, .at = at};
}

static void by_tile(Build *b, TileOp *op, int *n, AxisRole axis) {
    op->coord[(*n)++] = (TileCoord){.axis = b->axis[axis], .at = tile_of(b, axis)};
}

// Says it for each row, where rows are packed.
static void by_row(Build *b, TileOp *op, int *n, const Ex *at) {
    op->each[*n] = b->packed;
    op->coord[(*n)++] = (TileCoord){.axis = b->packed ? b->axis[AX_M] : -1, .at = at};
}

// Numbers of rows that callers keep.
static bool is_numbers(const Build *b, int tensor) {
    bool kept = b->phase == PHASE_PART || b->phase == PHASE_COMBINE;
    return kept && (tensor == b->from.rows || tensor == b->to.rows);
}

// What a combination takes of several parts.
static bool is_of_parts(const Build *b, int tensor) {
    return b->phase == PHASE_COMBINE && (is_numbers(b, tensor) || tensor == b->from.sums);
}

const Ex *build_place_of_work(Build *b, AxisRole rows) {
    ExPool *x = b->pool;
    const Ex *first, *unit = ex_i32(x, TILE_BLOCK_ROWS);
    (rows == AX_M ? places_query : places_key)(&b->at, ex_i32(x, 0), &first);
    first = ex_2(x, EX_ADD, ex_2(x, EX_DIV, first, unit), ex_symbol(x, SYM_B));
    return ex_2(x, EX_ADD, ex_2(x, EX_MUL, first, unit), build_pos(b, rows));
}

// A workspace of a forward is of parts.
static bool is_work(const Build *b, int tensor, bool backward) {
    return b->p->tensors.data[tensor].role == TENSOR_WORK && tile_is_backward(b->p) == backward;
}

// [rows, head, columns]; a forward's workspace has the part before, keys the page. A backward's has the heads before.
static void set_places(Build *b, TileOp *op, int tensor, AxisRole rows, int columns,
                       const Ex *head) {
    const Ex *index[2];
    bool queries = rows == AX_M, sums = is_work(b, tensor, true), part = is_work(b, tensor, false);
    int n = 0, places = queries ? places_query(&b->at, query_of_row(b), index)
                                : places_key(&b->at, build_pos(b, rows), index);
    op->tensor = tensor;
    if (sums && b->p->tensors.data[tensor].dtype == DT_F32) index[0] = build_place_of_work(b, rows);
    if (sums) by_index(op, &n, head);
    if (part) by_index(op, &n, b->part ? b->part : tile_of(b, AX_S));
    if (part) index[0] = ex_2(b->pool, EX_ADD, build_size(b, b->p->split.first), query_of_row(b));
    if (is_of_parts(b, tensor)) by_index(op, &n, b->part);
    if (is_numbers(b, tensor)) by_index(op, &n, ex_i32(b->pool, b->number));
    for (int i = 0; i < places; i++) {
        op->each[n] = true;
        op->coord[n++] = (TileCoord){.axis = b->axis[rows], .at = index[i]};
    }
    if (queries && !sums)
        by_row(b, op, &n, head);
    else if (!sums)
        by_index(op, &n, head);
    if (columns != AX_NONE) by_tile(b, op, &n, (AxisRole)columns);
}

// [batch, head, rows, columns]; a workspace has the part before the rows, and where some heads have
// none all batches' heads that do.
static void set_coords(Build *b, TileOp *op, int tensor, AxisRole rows, int columns,
                       const Ex *head) {
    int n = 0;
    bool work = is_work(b, tensor, false);
    if (b->p->batch) return set_places(b, op, tensor, rows, columns, head);
    op->tensor = tensor;
    if (is_of_parts(b, tensor)) by_index(op, &n, b->part);
    if (is_numbers(b, tensor)) by_index(op, &n, ex_i32(b->pool, b->number));
    if (work && b->axis[AX_G] >= 0) {
        by_index(op, &n, tile_of(b, AX_G));
    } else if (work && b->p->split.whole) {
        by_row(b, op, &n, ex_2(b->pool, EX_SUB, build_head(b), build_size(b, b->p->split.whole)));
    } else {
        by_index(op, &n, ex_symbol(b->pool, SYM_B));
        if (rows == AX_M)
            by_row(b, op, &n, head);
        else
            by_index(op, &n, head);
    }
    if (work) by_index(op, &n, b->part ? b->part : tile_of(b, AX_S));
    if (rows == AX_M && b->packed)
        by_row(b, op, &n, query_of_row(b));
    else
        by_tile(b, op, &n, rows);
    if (columns != AX_NONE) by_tile(b, op, &n, (AxisRole)columns);
}

static const Ex *own_head(Build *b, AxisRole rows) {
    return rows == AX_M ? head_of_row(b) : key_head(b);
}

TileValue *build_load_of(Build *b, const char *name, int tensor, AxisRole rows, int columns,
                         const Ex *head) {
    TileOp *op = tile_op(b->p, b->k, b->block, TILE_LOAD, b->row->span);
    set_coords(b, op, tensor, rows, columns, head);
    uint8_t axes[2] = {(uint8_t)b->axis[rows]};
    if (columns != AX_NONE) axes[1] = (uint8_t)b->axis[columns];
    Dtype t = b->p->tensors.data[tensor].dtype;
    return tile_result(b->p, b->k, op, name, t, axes, columns == AX_NONE ? 1 : 2);
}

TileValue *build_load(Build *b, const char *name, int tensor, AxisRole rows, int columns) {
    return build_load_of(b, name, tensor, rows, columns, own_head(b, rows));
}

AxisRole build_row_columns(const Build *b, RowSide side, int row) {
    int width = b->row->rows[side].data[row].width;
    for (int i = 0; i < b->nwidths; i++)
        if (b->width[i] == width) return (AxisRole)(AX_W + i);
    return AX_D;
}

const Ex *build_head_among(Build *b, RowSide side, const RowOperand *r, const Ex *own,
                           const Ex *h) {
    ExPool *x = b->pool;
    if (r->input < 0) return own;
    const Ex *all = build_size(b, b->packed && side == ROW_KEYS ? SIZE_HKV : SIZE_HQ);
    const Ex *n = b->row->inputs.data[r->input].extent[1];
    if (ex_is_i32(n, 1)) return ex_i32(x, 0);
    return n == all ? h : ex_2(x, EX_DIV, ex_2(x, EX_MUL, h, n), all);
}

bool build_is_slice(const Build *b, const RowOperand *r) {
    const RowInput *in = r->input < 0 ? NULL : &b->row->inputs.data[r->input];
    return r->width < (in ? in->extent[in->rank - 1]->i : b->row->D);
}

TileValue *build_load_row(Build *b, RowSide side, int row, const Ex *own, const Ex *h) {
    const RowOperand *r = &b->row->rows[side].data[row];
    bool keys = side == ROW_KEYS, input = r->input >= 0;
    const char *name = input ? b->row->inputs.data[r->input].name : keys ? "k" : "q";
    int tensor = input ? b->p->inputs.data[r->input] : keys ? b->tensor_k : b->tensor_q;
    TileValue *v =
        build_load_of(b, name, tensor, keys ? AX_N : AX_M, build_row_columns(b, side, row),
                      build_head_among(b, side, r, own, h));
    v->def->from_column = r->from;
    v->def->width = build_is_slice(b, r) ? r->width : 0;
    return v;
}

TileValue *build_own_row(Build *b, RowSide side, int row) {
    bool keys = side == ROW_KEYS;
    return build_load_row(b, side, row, own_head(b, keys ? AX_N : AX_M),
                          keys ? ex_symbol(b->pool, SYM_H) : head_of_row(b));
}

TileOp *build_store_of(Build *b, int tensor, TileValue *v, AxisRole rows, int columns,
                       const Ex *head) {
    TileOp *op = tile_op(b->p, b->k, b->block, TILE_STORE, b->row->span);
    set_coords(b, op, tensor, rows, columns, head);
    op->when = b->when;
    tile_arg(b->p, op, v);
    return op;
}

void build_store(Build *b, int tensor, TileValue *v, int columns) {
    build_store_of(b, tensor, v, AX_M, columns, own_head(b, AX_M));
}

TileValue *build_carry(Build *b, TileOp *loop, const char *name, TileValue *start) {
    TileProgram *p = b->p;
    tile_arg(p, loop, start);
    TileValue *inside = tile_value(p, b->k, name, DT_F32, start->axis, start->rank);
    inside->def = loop;
    VEC_PUSH(b->arena, &loop->carried, inside);
    const char *after = arena_printf(b->arena, "%s_end", name);
    tile_result(p, b->k, loop, after, DT_F32, start->axis, start->rank);
    return inside;
}

TileOp *build_loop(Build *b, int axis, const Ex *to) {
    TileOp *loop = tile_op(b->p, b->k, b->block, TILE_LOOP, b->row->span);
    loop->axis = axis;
    loop->from = ex_i32(b->pool, 0);
    loop->to = to;
    loop->index = ex_symbol(b->pool, SYM_STEP);
    return loop;
}

void build_yield(Build *b, const TileOp *loop, TileValue *const *v, int n) {
    TileOp *yield = tile_op(b->p, b->k, b->block, TILE_YIELD, b->row->span);
    for (int i = 0; i < n; i++)
        if (v[i]) tile_arg(b->p, yield, v[i]);
    b->block = loop->block;
}

// ---- row scalars: shifts and finished reductions

TileValue *build_raw_shift(Build *b, int shift, const char *name) {
    return build_row(b, name, b->s->shifts.data[shift]);
}

TileValue *build_safe_shift(Build *b, TileValue *raw) {
    ExPool *x = b->pool;
    const Ex *r = build_of(b, raw), *none = ex_2(x, EX_EQ, r, ex_f32(x, INFINITY));
    return build_row(b, "a", ex_select(x, none, ex_f32(x, 0.0f), r));
}

static bool is_given(void *ctx, const Ex *e) {
    (void)ctx;
    return e->type == EX_F32 && (e->op == EX_LOAD || ex_is_sym(e, SYM_SCALAR, -1));
}

// A shift in the unit that its size chooses is rounded before others are subtracted from it. Shifts of two sizes are so far apart
// that nothing is left of what was summed before.
static const Ex *own_factor(ExPool *x, int shift, const Ex *unit, const Ex *new, const Ex *old,
                            bool half) {
    const Ex *in_new = ex_subst(x, unit, SYM_SHIFT, shift, new),
             *in_old = ex_subst(x, unit, SYM_SHIFT, shift, old);
    const Ex *step = ex_2(x, EX_SUB, ex_1(x, EX_ROUNDED, ex_2(x, EX_MUL, new, in_new)),
                          ex_1(x, EX_ROUNDED, ex_2(x, EX_MUL, old, in_old)));
    if (half) step = ex_2(x, EX_MUL, step, ex_f32(x, 0.5f));
    return ex_select(x, ex_2(x, EX_EQ, in_new, in_old), ex_1(x, EX_EXP2, step), ex_f32(x, 0.0f));
}

// The step is rounded before it is multiplied: 0 where nothing moved. A unit that is no constant may
// be negative: that nothing was summed before is asked then, not left to exp2(-inf). A shift made of
// an input, a sink, may be infinite; where it stays what it was, nothing moved. Half the way: the factor's root.
TileValue *build_rescale(Build *b, int shift, TileValue *now, TileValue *before, bool half) {
    ExPool *x = b->pool;
    const Ex *old = build_of(b, before), *new = build_of(b, now), *unit = b->s->units.data[shift];
    const Ex *step = ex_2(x, EX_SUB, new, old);
    if (unit) step = ex_2(x, EX_MUL, step, unit);
    if (half) step = ex_2(x, EX_MUL, step, ex_f32(x, 0.5f));
    const Ex *factor = ex_1(x, EX_EXP2, step);
    if (unit && ex_uses(unit, SYM_SHIFT, shift))
        factor = own_factor(x, shift, unit, new, old, half);
    else if (unit && unit->op != EX_CONST)
        factor = ex_select(x, ex_2(x, EX_EQ, old, ex_f32(x, INFINITY)), ex_f32(x, 0.0f), factor);
    if (ex_any(b->s->shifts.data[shift], is_given, NULL))
        factor = ex_select(x, ex_2(x, EX_EQ, new, old), ex_f32(x, 1.0f), factor);
    return build_row(b, "c", factor);
}

// ---- scales

static const Ex *resolve_with(Build *b, TileOp *map, const Ex *e, TileValue *const *states) {
    int mark = b->env.n;
    for (int i = 0; i < b->s->states.n; i++)
        if (states[i]) build_bind(b, SYM_STATE, i, states[i]);
    e = build_resolve(b, map, e);
    b->env.n = mark;
    return e;
}

// Exactly 1 where no base moved, and 0 where one has not begun.
TileValue *build_ratio(Build *b, int scale, TileValue *const *now, TileValue *const *before) {
    ExPool *x = b->pool;
    const StreamScale *sc = &b->s->scales.data[scale];
    TileOp *map = build_open_map(b, AX_M, AX_NONE, b->row->span);
    const Ex *zero = ex_f32(x, 0), *one = ex_f32(x, 1), *same = NULL, *begun = NULL,
             *ratio = sc->ratio;
    for (int i = 0; i < sc->n; i++) {
        const Ex *new = resolve_with(b, map, sc->base[i], now),
                 *old = resolve_with(b, map, sc->base[i], before);
        const Ex *is = ex_2(x, EX_EQ, new, old), *above = ex_2(x, EX_LT, zero, old);
        same = same ? ex_2(x, EX_AND, same, is) : is;
        begun = begun ? ex_2(x, EX_AND, begun, above) : above;
        ratio = ex_subst(x, ratio, SYM_RISE, i, ex_2(x, EX_DIV, new, old));
    }
    const Ex *e = ex_select(x, same, one, ex_select(x, begun, ratio, zero));
    return pass_out(b->p, b->k, map, "r", DT_F32, e, EX_CONST, 0);
}

TileValue *build_product(Build *b, TileValue *x, TileValue *y) {
    if (!x || !y) return x ? x : y;
    return build_row(b, "c", ex_2(b->pool, EX_MUL, build_of(b, x), build_of(b, y)));
}

static bool is_open(void *ctx, const Ex *e) {
    bool needed = ex_is_sym(e, SYM_STATE, -1) || ex_is_sym(e, SYM_R, -1);
    return needed && !build_bound(ctx, e->sym, e->index);
}

// Those that nothing reads are removed later (pass_tidy).
void build_finished(Build *b) {
    for (int i = 0; i < b->s->finished.n; i++) {
        const Ex *e = b->s->finished.data[i];
        if (!build_bound(b, SYM_R, i) && !ex_any(e, is_open, b))
            build_bind(b, SYM_R, i, build_row(b, b->row->reduces.data[i].name, e));
    }
}

// ---- the program

enum {
    LONG = 64,        // queries of a batch's sequence up to which it has tiles of packed rows,
    FEW = 32,         // and of one that has parts beside long ones
    SPLIT_KEYS = 512, // of all sequences, from which there may be parts
};

static void add_plan(Build *b, const Ex *when, const int *kernels, int count) {
    TilePlan plan = {.when = when};
    for (int i = 0; i < count; i++) VEC_PUSH(b->arena, &plan.kernels, kernels[i]);
    VEC_PUSH(b->arena, &b->p->plans, plan);
}

static const Ex *several(Build *b, int size) {
    return ex_2(b->pool, EX_LT, ex_i32(b->pool, 1), build_size(b, size));
}

// Heads of the queries for each of the keys; 0 where none are packed: there are too many rows for an i32, or the heads of the keys
// alone are too few for the workers, and no keys can be split.
static const Ex *heads_of_group(Build *b) {
    ExPool *x = b->pool;
    const Ex *groups = build_size(b, SIZE_HKV),
             *group = ex_2(x, EX_DIV, build_size(b, SIZE_HQ), groups);
    const Ex *most = ex_2(x, EX_DIV, ex_i32(x, SIZE_LIMIT), group);
    const Ex *fit = ex_2(x, EX_LE, build_size(b, SIZE_SQ), most);
    for (int i = 0; i < b->row->inputs.n; i++) { // whose heads are others in a group
        const RowInput *in = &b->row->inputs.data[i];
        bool keys = in->rows && ex_uses(in->extent[2], SYM_SIZE, SIZE_SK);
        if (!keys || ex_is_i32(in->extent[1], 1) || in->extent[1] == groups) continue;
        const Ex *over = ex_2(x, EX_MOD, groups, ex_2(x, EX_MAX, in->extent[1], ex_i32(x, 1)));
        fit = ex_2(x, EX_AND, fit, ex_2(x, EX_EQ, over, ex_i32(x, 0)));
    }
    const Ex *tiles = ex_2(x, EX_MUL, build_size(b, SIZE_B), groups);
    if (!b->split) fit = ex_2(x, EX_AND, fit, ex_2(x, EX_LE, ex_symbol(x, SYM_WORKERS), tiles));
    return ex_select(x, fit, group, ex_i32(x, 0));
}

// Whether launches of few queries take packed rows, in one part: where all rows are packed, those of few rows.
static const Ex *are_packed(Build *b) {
    ExPool *x = b->pool;
    if (b->p->batch) return pass_at_launch(b->p, ex_2(x, EX_LE, build_rows(b), ex_i32(x, b->few)));
    const Ex *few = ex_2(x, EX_LE, build_size(b, SIZE_SQ), ex_i32(x, b->few));
    return ex_2(x, EX_AND, few, ex_2(x, EX_LT, ex_i32(x, 0), build_size(b, b->group)));
}

// The second form, of packed rows: they are finished or left, or partial results for parts of the keys are combined (combine.c).
static void build_few(Build *b) {
    static const int few[] = {1, 2}, all[] = {0, 2}, apart[] = {0, 1, 2};
    build_part(b);
    if (b->split) build_combine(b);
    if (b->p->split.apart) {
        add_plan(b, NULL, apart, b->split ? 3 : 2);
        return;
    }
    if (b->split) add_plan(b, pass_few_are_split(b->p), few, 2);
    add_plan(b, are_packed(b), few, 1);
    if (b->share) add_plan(b, several(b, b->p->split.parts), all, 2);
}

// Which kernel a sequence has follows from its own queries, and each launch has both.
static void add_own_kernels(Build *b) {
    ExPool *x = b->pool;
    const Ex *queries = build_size(b, SIZE_SQ), *none = ex_i32(x, 0);
    const Ex *few = ex_2(x, EX_LE, queries, ex_i32(x, b->few));
    TileSplit *s = &b->p->split;
    s->apart = true;
    s->few_queries =
        pass_own_size(b->p, "few_queries", EX_CONST, NULL, ex_select(x, few, queries, none));
    s->many_queries =
        pass_own_size(b->p, "many_queries", EX_CONST, NULL, ex_select(x, few, none, queries));
}

// Whether a batch's sequences of many queries may have a kernel of roles, if nothing of the variant is against it.
static bool may_be_long(const Build *b, const PassOptions *o) {
    const RowProgram *row = b->row;
    bool narrow = dtype_half(o->dtype) && (!o->kv || o->kv == o->dtype);
    return o->batch && !o->phase && !o->invariant && o->target.id == TARGET_SM90A && narrow &&
           row->D % 8 == 0 && row->Dv % 8 == 0;
}

static const Ex *workers_of_tile(Build *b, const Ex *rows) {
    ExPool *x = b->pool;
    const Ex *up = ex_2(x, EX_ADD, rows, ex_i32(x, b->few - 1));
    const Ex *by[] = {build_size(b, SIZE_B), build_size(b, SIZE_HKV),
                      ex_2(x, EX_DIV, up, ex_i32(x, b->few))};
    const Ex *n = ex_symbol(x, SYM_WORKERS);
    for (int i = 0; i < 3; i++) n = ex_2(x, EX_DIV, n, by[i]);
    return n;
}

// Where a launch may have sequences of more than LONG queries, the long ones have a kernel whose tiles are of one head: the tensor copies of a
// tile are boxes then. The others have the kernel of packed rows; where keys can be split that of parts, which runs beside the first one. It has
// all of them where there are so few that parts keep all workers busy.
static void add_beside(Build *b) {
    ExPool *x = b->pool;
    TileProgram *p = b->p;
    const Ex *queries = build_size(b, SIZE_SQ), *one = ex_i32(x, 1);
    const Ex *some = ex_2(x, EX_LT, ex_i32(x, LONG), pass_at_launch(p, queries));
    if (b->split) {
        const Ex *each = workers_of_tile(b, pass_at_launch(p, build_rows(b)));
        const Ex *small = ex_2(x, EX_LT, pass_all_keys(p), ex_i32(x, SPLIT_KEYS));
        some = ex_2(x, EX_AND, some, ex_2(x, EX_OR, ex_2(x, EX_LT, each, one), small));
    }
    p->split.beside = pass_size(p, "beside", ex_select(x, some, one, ex_i32(x, 0)));
}

static void add_long_kernel(Build *b) {
    ExPool *x = b->pool;
    TileProgram *p = b->p;
    TileSplit *s = &p->split;
    const Ex *queries = build_size(b, SIZE_SQ), *none = ex_i32(x, 0);
    const Ex *most = ex_i32(x, b->split ? FEW : LONG);
    const Ex *is = ex_2(x, EX_AND, ex_2(x, EX_LT, none, build_size(b, s->beside)),
                        ex_2(x, EX_LT, most, queries));
    *(b->split ? &s->few_queries : &s->many_queries) =
        pass_own_size(p, "short_queries", EX_CONST, NULL, ex_select(x, is, none, queries));
    s->long_queries =
        pass_own_size(p, "long_queries", EX_CONST, NULL, ex_select(x, is, queries, none));
}

// Rows of parts have places of workspace. Sequences that may have parts have at most so many rows each, if a launch has others, too: by
// sequence that takes fewer places than all rows of the batch do. Where by the hint most sequences are long, few have parts: they get no
// more of them, whose points the others would have, too (64 documents of 256 rows: 121 us for 102).
static void add_places(Build *b, bool apart) {
    ExPool *x = b->pool;
    TileSplit *s = &b->p->split;
    const Ex *all = build_size(b, b->at.Tq), *first = build_size(b, b->at.q_first);
    s->rows = b->at.Tq, s->first = b->at.q_first;
    if (!apart && !s->beside) return;
    const Ex *most = ex_i32(x, apart ? b->few : FEW);
    const Ex *by = ex_2(x, EX_MUL, build_size(b, SIZE_B), most), *is = ex_2(x, EX_LT, by, all);
    const Ex *mean = ex_2(x, EX_DIV, all, ex_2(x, EX_MAX, build_size(b, SIZE_B), ex_i32(x, 1)));
    const Ex *uneven =
        ex_2(x, EX_LT, ex_2(x, EX_MUL, mean, ex_i32(x, 2)), build_size(b, b->at.max_q));
    uneven = ex_2(x, EX_AND, uneven, ex_2(x, EX_LT, ex_i32(x, 0), build_size(b, s->beside)));
    if (!apart) is = ex_2(x, EX_AND, is, uneven);
    s->rows = pass_size(b->p, "part_rows", ex_select(x, is, by, all));
    by = ex_2(x, EX_MUL, ex_symbol(x, SYM_B), most);
    s->first = pass_own_size(b->p, "part_first", EX_CONST, NULL, ex_select(x, is, by, first));
}

// Its plans go first.
static void build_long(Build *b) {
    ExPool *x = b->pool;
    TileProgram *p = b->p;
    const Ex *some = ex_2(x, EX_LT, ex_i32(x, 0), build_size(b, p->split.beside));
    b->packed = false;
    build_forward(b);
    b->packed = true;
    int n = p->plans.n, kernels[] = {p->kernels.n - 1, b->split ? 1 : 0, 2};
    if (b->split) add_plan(b, ex_2(x, EX_AND, some, several(b, p->split.few)), kernels, 3);
    add_plan(b, some, kernels, 2);
    for (int i = 0; i < n; i++) { // behind them
        TilePlan first = p->plans.data[0];
        memmove(&p->plans.data[0], &p->plans.data[1], (size_t)(p->plans.n - 1) * sizeof first);
        p->plans.data[p->plans.n - 1] = first;
    }
}

static int add_own_parts(Build *b) {
    TileSize size = {.name = "own_parts", .def = build_parts(b), .own = true};
    VEC_PUSH(b->arena, &b->p->sizes, size);
    return b->p->sizes.n - 1;
}

void build_batch(Build *b, const PassOptions *o) {
    b->p->batch = o->batch;
    if (!o->batch) return;
    places_sizes(&b->at, b->p, o->page);
    b->group = b->at.group = pass_size(
        b->p, "group", ex_2(b->pool, EX_DIV, build_size(b, SIZE_HQ), build_size(b, SIZE_HKV)));
}

// Whether kernels of few queries may leave out sums that nothing multiplies (passes/schedule/shifts.c); the others move shifts at once.
static bool may_vote(const Build *b) {
    enum { ONE_WARPGROUP = 256 }; // columns of its values
    return b->far && b->row->Dv > ONE_WARPGROUP;
}

TileProgram *pass_build(Arena *a, const Stream *s, const PassOptions *o) {
    const RowProgram *row = s->row;
    Build b = {.arena = a, .pool = row->pool, .s = s, .row = row, .saves = o->saves};
    TileProgram *p = b.p = tile_program(a, row->pool, row->name);
    p->target = o->target.id;
    p->dtype = o->dtype;
    b.tf32 = o->tf32;
    if (!pass_may_fix_shift(s, &b.fixed, &b.extremum) || o->dtype != DT_BF16) b.fixed = -1;
    b.weights = b.fixed;
    b.far = b.fixed >= 0 && p->target == TARGET_SM90A;
    p->D = row->D;
    p->Dv = row->Dv;
    tile_sizes(p, &row->sizes);
    p->phase = b.phase = o->phase;
    build_batch(&b, o);
    if (o->phase) build_whole_sizes(&b);
    b.nwidths = pass_widths(row, b.width);
    build_tensors(&b, o->dtype, o->kv ? o->kv : o->dtype, true);
    add_saved(&b);
    b.split = o->split && s->nsweeps == 1 && o->phase != PHASE_COMBINE;
    b.few = o->few;
    b.packed = o->batch != BATCH_DENSE;
    bool few = o->split && o->phase != PHASE_COMBINE;
    if (few && !o->batch) b.group = pass_size(p, "group", heads_of_group(&b));
    bool may = may_be_long(&b, o);
    if (may) add_beside(&b);
    if (b.split && o->batch) add_places(&b, few && o->invariant);
    if (b.split) pass_add_split(p, o->share);
    if (few && o->batch && o->invariant) add_own_kernels(&b);
    if (may) add_long_kernel(&b);
    if (b.split && o->batch) b.own_parts = add_own_parts(&b);
    b.share =
        b.split && o->share && o->shape == SHAPE_SHORT; // others are for many tiles, or few keys
    if (o->phase == PHASE_COMBINE)
        build_combine(&b);
    else
        build_forward(&b);
    int fixed = b.fixed;
    if (!may_vote(&b)) b.fixed = -1;
    if (few) build_few(&b);
    b.fixed = fixed;
    if (may) build_long(&b);
    if (!p->split.apart) add_plan(&b, NULL, &(const int){0}, 1);
    return p;
}
