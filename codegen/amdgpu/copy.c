// copy.c: copies of tensor tiles into LDS, by way of registers.
//
// In: TILE_COPY and TILE_WAIT. Out: a copy loads what this thread brings of the tile into registers
// and goes on; a wait writes them to LDS, where the stage has been free since the copy began. So a
// tile is loaded while the previous one is used. What lies past the tensor's ends is
// written as zeros. A tile that products contract along the axis that is not contiguous in the
// tensor is transposed on its way, four by four elements a thread. Of a tile that is more than a
// thread should hold only a part is on its way, the rest is there at once.
//
// What is on its way, if anything, is in variables of the function, one set per buffer: mem2reg
// makes registers of them, also across the turns of a loop. A row whose bytes are no multiple of 16
// is copied by elements, at once: the same to the program, only slower. Numbers of 8 bits become the tile's as they are loaded.
#include "codegen/amdgpu/amdgpu.h"

#include <assert.h>

enum { HELD = 32 }; // registers for what is on its way of a tile

typedef struct Copy {
    const TileTensor *t;
    TileShared tile;
    Dtype dtype;            // of the tile
    int tiled_dim, col_dim; // of the tensor: that the tile's axis is along; that is contiguous
    int tile_rows, size;    // along the former; columns the tensor has along the latter
    int cols;               // and the tile
    Val ncols;              // i32: columns the tensor has for this tile, NULL: all of it
    int from;               // the first of them
} Copy;

typedef struct AmPending {
    bool used;
    const TileOp *op; // one of the copies into the buffer, and
    Copy copy;        // what is the same of all
    Val flag, to;     // i1: on its way; i32: where the stage begins
    Val *slot;        // what was loaded: of piece i, load j at i * loads + j
    Ty type;          // of one
    int held;         // pieces that are on their way; others are written at once
    const TileBlock *block;
    int group; // of the newest copy
} AmPending;

// What one thread loads at once: `loads` rows, 16 bytes or 4 elements of each.
typedef struct Piece {
    AmPlace row, col; // within the tile
    Val in;           // i1, or NULL: always
} Piece;

// ---- what is copied

static Copy copy_of(Cg *cg, const TileOp *op) {
    Copy c = {.t = &cg->p->tensors.data[op->tensor],
              .tile = tile_shared(cg->p, cg->k, op->args.data[0]),
              .dtype = op->args.data[0]->dtype};
    c.col_dim = c.t->rank - 1;
    c.tiled_dim = c.col_dim - 1;
    while (c.tiled_dim >= 0 && op->coord[c.tiled_dim].axis < 0) c.tiled_dim--;
    assert(c.tiled_dim >= 0 && op->coord[c.col_dim].axis >= 0 &&
           c.t->extent[c.col_dim]->op == EX_CONST && "rows of contiguous columns");
    c.tile_rows = cg->k->axes[op->coord[c.tiled_dim].axis].extent;
    c.cols = cg->k->axes[op->coord[c.col_dim].axis].extent;
    c.size = tile_columns(cg->p, op);
    c.from = op->from_column;
    return c;
}

// Of the current tile: NULL unless some tile has fewer columns than its extent.
static Val columns_of(Cg *cg, const TileOp *op, const Copy *c) {
    if (c->size % c->cols == 0) return NULL;
    return cg_sub(cg, cg_i32(cg, c->size), cg_first_index(cg, &op->coord[c->col_dim]));
}

static bool by_elements(const Copy *c) {
    int elem = dtype_bytes(c->t->dtype);
    return c->size * elem % HOME_PIECE || c->from * elem % HOME_PIECE;
}
static int loads_of(const Copy *c) { return c->tile.transposed ? 4 : 1; }
static int load_columns(const Copy *c) {
    return c->tile.transposed ? 4 : HOME_PIECE / c->tile.elem;
}
static int threads_of(Cg *cg) { return am_state(cg)->gpu.threads; }

static int all_pieces(const Copy *c) {
    return c->tile_rows * c->cols / (loads_of(c) * load_columns(c));
}

static int pieces_of(Cg *cg, const Copy *c) { // of a thread
    return (all_pieces(c) + threads_of(cg) - 1) / threads_of(cg);
}

// A number whose last digits are taken off one by one: of powers of two, unless `more` is 0.
typedef struct Digits {
    Val x;
    int more; // no bits in common with x
} Digits;

static AmPlace digit(Cg *cg, Digits *d, int size) {
    AmPlace r = {cg_urem(cg, d->x, cg_i32(cg, size)), d->more % size};
    d->x = cg_udiv(cg, d->x, cg_i32(cg, size));
    d->more /= size;
    return r;
}

static AmPlace scaled(Cg *cg, AmPlace p, int by) {
    return (AmPlace){cg_times(cg, p.at, by), p.more * by};
}

static AmPlace joined(Cg *cg, AmPlace a, AmPlace b) {
    return (AmPlace){cg_add(cg, a.at, b.at), a.more + b.more};
}

// Of a tile that is transposed. Lanes next to each other go along the columns of a row, for the
// tensor's sake, and along the two halves of a chunk, for the banks'.
static void transposed_place(Cg *cg, const Copy *c, Digits *d, Piece *p) {
    int parts = am_state(cg)->parts, halves = HOME_PIECE / (4 * c->tile.elem);
    int along = c->cols % 32 == 0 ? 8 : 4, chunks = c->tile_rows / (4 * halves);
    AmPlace low = digit(cg, d, along), half = digit(cg, d, halves);
    if (c->tile.paired) {
        AmPlace part = digit(cg, d, parts), block = digit(cg, d, chunks / parts);
        p->row = joined(cg, scaled(cg, block, 8 * parts), scaled(cg, half, 4 * parts));
        p->row = joined(cg, p->row, scaled(cg, part, 4));
    } else {
        AmPlace chunk = digit(cg, d, chunks);
        p->row = joined(cg, scaled(cg, chunk, 4 * halves), scaled(cg, half, 4));
    }
    AmPlace high = {d->x, d->more};
    p->col = joined(cg, scaled(cg, high, 4 * along), scaled(cg, low, 4));
}

// Threads are a power of two, and so is what they are dealt to unless a row of whole chunks is not.
static Piece piece_at(Cg *cg, const Copy *c, Val tid, int i) {
    Piece p = {0};
    int threads = threads_of(cg), wide = load_columns(c), across = c->cols / wide;
    bool even = c->tile.transposed || (across & (across - 1)) == 0;
    assert((threads & (threads - 1)) == 0 && "scheduled for this target");
    assert((!c->tile.transposed || (c->tile_rows & (c->tile_rows - 1)) == 0) && "and so the keys");
    Val x = cg_plus(cg, tid, i * threads);
    if ((i + 1) * threads > all_pieces(c))
        p.in = cg_icmp(cg, LLVMIntULT, x, cg_i32(cg, all_pieces(c)));
    Digits d = {even ? tid : x, even ? i * threads : 0};
    if (c->tile.transposed) {
        transposed_place(cg, c, &d, &p);
    } else {
        p.col = scaled(cg, digit(cg, &d, across), wide);
        p.row = (AmPlace){d.x, d.more};
    }
    return p;
}

// The thread's number is hidden from LLVM each time: else it would compute every piece's addresses
// once for all tiles and keep them all in registers, which the accumulators need.
static Val hidden_tid(Cg *cg) {
    Val tid = am_hidden(cg, am_state(cg)->gpu.tid);
    return cg_and(cg, tid, cg_i32(cg, threads_of(cg) - 1));
}

// ---- loads

static Val tile_base(Cg *cg, const TileOp *op, const Copy *c) { // ptr addrspace(1)
    Val sum = cg_i64(cg, 0);
    for (int d = 0; d < c->t->rank; d++) {
        if (op->each[d]) continue;
        Val i = cg_sext(cg, cg_first_index(cg, &op->coord[d]), cg->i64);
        sum = cg_add(cg, sum, cg_mul(cg, i, cg_stride(cg, op->tensor, d)));
    }
    Val p = cg_global(cg, cg_origin(cg, op));
    return cg_element(cg, cg_dtype(cg, c->t->dtype), p, sum);
}

static Val rows_left(Cg *cg, const TileOp *op, const Copy *c) {
    int axis = op->coord[c->tiled_dim].axis;
    if (op->each[c->tiled_dim])
        return cg_sub(cg, cg_axis_size(cg, axis), cg_element_begin(cg, op, axis));
    return cg_sub(cg, cg_extent(cg, op->tensor, c->tiled_dim),
                  cg_first_index(cg, &op->coord[c->tiled_dim]));
}

typedef struct From { // where the pieces of a tile come from
    Val base;         // ptr addrspace(1): its first element
    Val stride;       // i64: elements from row to row; NULL: the copy says where each row is
    Val left;         // i32: rows from there to the tensor's end
    bool whole;       // which is known to have all of the tile's
    bool once;        // out of loops, where a way of its own for whole tiles is not worth its code
    const TileOp *op;
} From;

// i64: elements from the base to a row of the tile.
static Val row_offset(Cg *cg, const TileOp *op, const Copy *c, Val row, Val stride) {
    int axis = op->coord[c->tiled_dim].axis;
    if (stride) return cg_mul(cg, cg_zext(cg, row, cg->i64), stride);
    return cg_element_offset(cg, op, axis, cg_add(cg, cg_element_begin(cg, op, axis), row));
}

static Val row_stride(Cg *cg, const TileOp *op, const Copy *c) {
    return op->each[c->tiled_dim] ? NULL : cg_stride(cg, op->tensor, c->tiled_dim);
}

static Val element_at(Cg *cg, const Copy *c, Val base, Val at) {
    return cg_element(cg, cg_dtype(cg, c->t->dtype), base, at);
}

// Columns past the tensor's are read from the first ones.
static Val column_at(Cg *cg, const Copy *c, const Piece *p, Val col) {
    Val in = p->in;
    if (c->ncols) {
        Val has = cg_less(cg, cg_plus(cg, col, p->col.more), c->ncols);
        in = in ? cg_and(cg, in, has) : has;
    }
    if (!in) return col;
    return cg_select(cg, in, col, cg_i32(cg, -p->col.more));
}

// Elements of the tensor, as the tile holds them.
static Val converted(Cg *cg, const Copy *c, Val v) {
    return c->t->dtype == c->dtype ? v : cg_write(cg, cg_read(cg, v, c->t->dtype), c->dtype);
}

static Val load_row(Cg *cg, const Copy *c, Val at, Ty type) {
    int n = load_columns(c);
    bool same = c->t->dtype == c->dtype;
    Val v = cg_load(cg, same ? type : cg_vector(cg_dtype(cg, c->t->dtype), n), at);
    LLVMSetAlignment(v, (unsigned)(n * dtype_bytes(c->t->dtype)));
    return same ? v : cg_bitcast(cg, converted(cg, c, v), type);
}

// Of a tile whose rows the tensor all has: what is the same for all lanes first.
static Val whole_load(Cg *cg, const Copy *c, const From *f, const Piece *p, int j, Ty type) {
    Val fixed = cg_i64(cg, p->row.more + j);
    fixed = f->stride ? cg_mul(cg, fixed, f->stride) : cg_i64(cg, 0);
    fixed = cg_add(cg, fixed, cg_i64(cg, p->col.more));
    Val row = p->in ? cg_select(cg, p->in, p->row.at, cg_i32(cg, 0)) : p->row.at;
    if (!f->stride) row = cg_plus(cg, row, p->row.more + j);
    Val own = row_offset(cg, f->op, c, row, f->stride);
    Val col = cg_sext(cg, column_at(cg, c, p, p->col.at), cg->i64);
    Val at = element_at(cg, c, f->base, fixed);
    at = element_at(cg, c, at, cg_add(cg, own, col));
    return load_row(cg, c, at, type);
}

// Of the last tile: rows past the tensor's end are read from its last one, and made zeros.
static Val partial_load(Cg *cg, const Copy *c, const From *f, const Piece *p, int j, Ty type) {
    Val row = cg_plus(cg, p->row.at, p->row.more + j);
    Val v[] = {row, cg_plus(cg, f->left, -1)};
    Val own = row_offset(cg, f->op, c, cg_intrinsic(cg, "llvm.smin", &cg->i32, 1, v, 2), f->stride);
    Val col = cg_plus(cg, column_at(cg, c, p, p->col.at), p->col.more);
    col = cg_sext(cg, col, cg->i64);
    Val at = element_at(cg, c, f->base, cg_add(cg, own, col));
    Val x = load_row(cg, c, at, type);
    Val in = cg_less(cg, row, f->left);
    return cg_select(cg, in, x, LLVMConstNull(type));
}

typedef enum Rows { ALL_ROWS, SOME_ROWS, NO_ROWS } Rows; // of a tile that the tensor has

static void load_each(Cg *cg, const Copy *c, const From *f, const AmPending *p, int first, int end,
                      Rows rows) {
    Val tid = hidden_tid(cg);
    int loads = loads_of(c);
    for (int i = first; i < end; i++) {
        Piece at = piece_at(cg, c, tid, i);
        for (int j = 0; j < loads; j++) {
            Val v = rows == ALL_ROWS    ? whole_load(cg, c, f, &at, j, p->type)
                    : rows == SOME_ROWS ? partial_load(cg, c, f, &at, j, p->type)
                                        : LLVMConstNull(p->type);
            cg_store(cg, v, p->slot[i * loads + j]);
        }
    }
}

static void load_pieces(Cg *cg, const Copy *c, const From *f, const AmPending *p, int first,
                        int end) {
    if (f->whole) {
        load_each(cg, c, f, p, first, end, ALL_ROWS);
        return;
    }
    Blk whole = f->once ? NULL : cg_block(cg, "load"), rest = cg_block(cg, "load.rest"),
        some = cg_block(cg, "load.some"), none = cg_block(cg, "load.none"),
        done = cg_block(cg, "loaded");
    Val all = cg_icmp(cg, LLVMIntSGE, f->left, cg_i32(cg, c->tile_rows));
    if (whole)
        cg_fork(cg, all, whole, rest);
    else
        cg_br(cg, rest);
    cg_at(cg, rest);
    cg_fork(cg, cg_icmp(cg, LLVMIntSGT, f->left, cg_i32(cg, 0)), some, none);
    Blk way[] = {whole, some, none};
    for (int rows = whole ? ALL_ROWS : SOME_ROWS; rows <= NO_ROWS; rows++) {
        cg_at(cg, way[rows]);
        load_each(cg, c, f, p, first, end, (Rows)rows);
        cg_br(cg, done);
    }
    LLVMMoveBasicBlockAfter(done, none);
    cg_at(cg, done);
}

// ---- into LDS

static void write_at(Cg *cg, Val at, Val v, int bytes) {
    LLVMSetAlignment(cg_store(cg, v, am_lds(cg, at)), (unsigned)bytes);
}

// Word h of column i of four rows with two columns a word: a pair along the rows.
static Val turned(Cg *cg, const Val row[4], int i, int h) {
    Val v[] = {am_at(cg, row[2 * h + 1], i / 2), am_at(cg, row[2 * h], i / 2),
               cg_i32(cg, i % 2 ? 0x07060302 : 0x05040100)};
    return cg_intrinsic(cg, "llvm.amdgcn.perm", NULL, 0, v, 3);
}

// Of the element (outer, inner), which begins a chunk or a half of one.
static Val place_of(Cg *cg, const Copy *c, AmPlace outer, AmPlace inner) {
    int parts = am_state(cg)->parts, each = HOME_PIECE / c->tile.elem;
    AmPlace chunk = {cg_udiv(cg, inner.at, cg_i32(cg, each)), inner.more / each};
    Digits in = {cg_udiv(cg, inner.at, cg_i32(cg, 4)), inner.more / 4};
    AmPlace half = digit(cg, &in, each / 4);
    if (c->tile.paired) {
        in = (Digits){cg_udiv(cg, inner.at, cg_i32(cg, 4)), inner.more / 4};
        AmPlace part = digit(cg, &in, parts);
        half = digit(cg, &in, 2);
        chunk = joined(cg, scaled(cg, (AmPlace){in.x, in.more}, parts), part);
    }
    Val at = am_chunk(cg, &c->tile, outer, chunk);
    half = scaled(cg, half, 4 * c->tile.elem);
    return cg_plus(cg, cg_add(cg, at, half.at), half.more);
}

static void write_transposed(Cg *cg, const Copy *c, const Piece *at, Val to, const Val row[4]) {
    for (int i = 0; i < 4; i++) {
        int n = c->tile.elem;
        Val w[4];
        for (int h = 0; h < n; h++) w[h] = n == 2 ? turned(cg, row, i, h) : am_at(cg, row[h], i);
        AmPlace row_of = {at->col.at, at->col.more + i};
        Val p = place_of(cg, c, row_of, at->row);
        write_at(cg, cg_add(cg, to, p), am_vector(cg, cg->i32, w, n), 4 * n);
    }
}

static void write_plain(Cg *cg, const Copy *c, const Piece *at, Val to, Val v) {
    Val p = place_of(cg, c, at->row, at->col);
    if (!c->tile.paired) {
        write_at(cg, cg_add(cg, to, p), v, HOME_PIECE);
        return;
    }
    for (int h = 0; h < 2; h++) {
        Val w[] = {am_at(cg, v, 2 * h), am_at(cg, v, 2 * h + 1)};
        if (h) p = place_of(cg, c, at->row, (AmPlace){at->col.at, at->col.more + 4});
        write_at(cg, cg_add(cg, to, p), am_vector(cg, cg->i32, w, 2), 8);
    }
}

static void write_piece(Cg *cg, const Copy *c, const AmPending *p, Val tid, int i, Val to) {
    Piece at = piece_at(cg, c, tid, i);
    int loads = loads_of(c);
    Blk done = cg_if(cg, at.in, "piece");
    Val row[4];
    Val ok = c->ncols ? cg_less(cg, cg_plus(cg, at.col.at, at.col.more), c->ncols) : NULL;
    for (int j = 0; j < loads; j++) {
        row[j] = cg_load(cg, p->type, p->slot[i * loads + j]);
        if (ok) row[j] = cg_select(cg, ok, row[j], LLVMConstNull(p->type));
    }
    if (c->tile.transposed)
        write_transposed(cg, c, &at, to, row);
    else
        write_plain(cg, c, &at, to, row[0]);
    cg_end_if(cg, done);
}

// What was in them needs no registers any more.
static void forget(Cg *cg, const AmPending *p, int first, int end) {
    for (int i = first * loads_of(&p->copy); i < end * loads_of(&p->copy); i++)
        cg_store(cg, LLVMGetPoison(p->type), p->slot[i]);
}

static void write_pieces(Cg *cg, const AmPending *p, int first, int end, Val to) {
    Copy c = p->copy;
    c.ncols = columns_of(cg, p->op, &c); // the same for all tiles of a block
    Val tid = am_state(cg)->crowded ? hidden_tid(cg) : am_state(cg)->gpu.tid;
    for (int i = first; i < end; i++) write_piece(cg, &c, p, tid, i, to);
}

static void land(Cg *cg, const AmPending *p) {
    Blk done = cg_if(cg, cg_load(cg, cg->i1, p->flag), "land");
    write_pieces(cg, p, 0, p->held, cg_load(cg, cg->i32, p->to));
    cg_end_if(cg, done);
    cg_store(cg, LLVMConstNull(cg->i1), p->flag);
    forget(cg, p, 0, p->held);
}

// ---- by elements

static void copy_element(Cg *cg, const TileOp *op, const Copy *c, Val i, Val to) {
    Val row = cg_udiv(cg, i, cg_i32(cg, c->cols)), col = cg_urem(cg, i, cg_i32(cg, c->cols));
    Val in = cg_and(cg, cg_less(cg, row, rows_left(cg, op, c)),
                    cg_less(cg, col, c->ncols ? c->ncols : cg_i32(cg, c->cols)));
    Ty t = cg_dtype(cg, c->t->dtype);
    Blk here = cg_here(cg), join = cg_if(cg, in, "element"), read = cg_here(cg);
    Val at = row_offset(cg, op, c, row, row_stride(cg, op, c));
    at = cg_add(cg, at, cg_zext(cg, col, cg->i64));
    Val x = cg_load(cg, t, cg_element(cg, t, tile_base(cg, op, c), at));
    cg_enter(cg, join);
    Val v = converted(cg, c, cg_join(cg, LLVMConstNull(t), here, x, read));
    bool turned = c->tile.transposed;
    Val dst = am_tile_offset(cg, &c->tile, turned ? col : row, turned ? row : col);
    write_at(cg, cg_add(cg, to, dst), v, c->tile.elem);
}

static void copy_elements(Cg *cg, const TileOp *op, const Copy *c, Val to) {
    Val end = cg_i32(cg, c->tile_rows * c->cols);
    CgCount l = cg_count(cg, am_state(cg)->gpu.tid, end, NULL);
    copy_element(cg, op, c, l.i, to);
    cg_end_count(cg, &l, cg_i32(cg, threads_of(cg)), NULL);
}

// ---- operations

static Val variable(Cg *cg, Ty t) { return LLVMBuildAlloca(cg->b, t, ""); }

static void make_pending(Cg *cg, const TileOp *op, AmPending *p) {
    Copy c = copy_of(cg, op);
    if (p->used || by_elements(&c)) return;
    int all = pieces_of(cg, &c), n = all * loads_of(&c);
    p->held = HELD / (loads_of(&c) * load_columns(&c) * c.tile.elem / 4);
    if (p->held > all) p->held = all;
    p->used = true;
    p->copy = c;
    p->op = op;
    p->type = cg_vector(cg->i32, load_columns(&c) * c.tile.elem / 4);
    p->flag = variable(cg, cg->i1);
    p->to = variable(cg, cg->i32);
    p->slot = ARENA_ARRAY(cg->arena, Val, n);
    for (int i = 0; i < n; i++) p->slot[i] = variable(cg, p->type);
    cg_store(cg, LLVMConstNull(cg->i1), p->flag);
}

void am_copies_begin(Cg *cg) {
    AmState *s = am_state(cg);
    s->pending = ARENA_ARRAY(cg->arena, AmPending, cg->k->nvalues + 1);
    for (const TileOp *op = tile_next(&cg->k->body, NULL); op; op = tile_next(&cg->k->body, op))
        if (op->kind == TILE_COPY) make_pending(cg, op, &s->pending[op->args.data[0]->id]);
}

static Val stage_begin(Cg *cg, const TileOp *op, const Copy *c) {
    Val stage = cg_times(cg, cg_uniform(cg, op->stage), c->tile.bytes);
    return cg_add(cg, cg->value[op->args.data[0]->id].mem, stage);
}

// As many pieces as may be on their way are loaded last; the others come and go before.
static void bring(Cg *cg, const Copy *c, const From *f, const AmPending *p, Val to) {
    int all = pieces_of(cg, c);
    for (int first = (all - 1) / p->held * p->held; first >= 0; first -= p->held) {
        int end = first + p->held < all ? first + p->held : all;
        load_pieces(cg, c, f, p, first, end);
        if (first == 0) break;
        write_pieces(cg, p, first, end, to);
        forget(cg, p, first, end);
    }
}

// A copy that is not to happen (`when`) reads nothing and changes nothing.
void am_copy(Cg *cg, const TileOp *op) {
    AmState *s = am_state(cg);
    Copy c = copy_of(cg, op);
    if (op->each[c.col_dim])
        diag_error(cg->diags, op->span, "%s copies rows; the places of columns are said one by one",
                   cg->target->name);
    AmPending *p = &s->pending[op->args.data[0]->id];
    if (p->used) land(cg, p); // an earlier one into this buffer, where there may be one
    c.ncols = columns_of(cg, op, &c);
    Val to = stage_begin(cg, op, &c);
    Blk done = cg_if(cg, op->when ? cg_uniform(cg, op->when) : NULL, "copy");
    if (p->used) {
        cg_store(cg, LLVMConstInt(cg->i1, 1, false), p->flag);
        cg_store(cg, to, p->to);
        From from = {tile_base(cg, op, &c),     row_stride(cg, op, &c),
                     rows_left(cg, op, &c),     op->inside,
                     op->block == &cg->k->body, op};
        bring(cg, &c, &from, p, to);
        p->block = op->block;
        p->group = s->groups;
    } else {
        copy_elements(cg, op, &c, to);
    }
    cg_end_if(cg, done);
}

// More may land than the wait asks for: whatever is not known to be among the newest groups.
void am_land(Cg *cg, const TileOp *wait) {
    AmState *s = am_state(cg);
    for (const TileOp *op = cg->k->body.first; op; op = op->next) {
        if (op->kind != TILE_ALLOC) continue;
        const TileValue *v = op->results.data[0];
        AmPending *p = &s->pending[v->id];
        bool newer = p->block == wait->block && p->group >= s->groups - wait->pending;
        if (p->used && !newer) land(cg, p);
    }
}
