// copy.c: asynchronous copies of tensor tiles into shared memory.
//
// In: a TILE_COPY. Out: cp.async instructions of 16 bytes, the threads side by side along a row;
// what lies past the tensor's ends is filled with zeros. A row whose bytes are no multiple of 16 is
// copied by elements, at once: the same to the program, only slower. So is a tensor of 8 bits whose tile holds wider numbers.
//
// Rows that are said one by one (in pages, or of packed queries): where rows follow each other, one place is asked for them all
// (cg_element_run). The lanes of a warp ask for the places of the warp's rows side by side, and tell each other. They ask
// before the wait that the copy stands behind, so that they wait for both at once.
#include "codegen/nvptx/nvptx.h"
#include "ir/tile_blocks.h"

#include <assert.h>

struct NvCopy {
    const TileOp *op;
    TileShared tile;
    int elem;             // bytes of the tensor's
    int row_dim, col_dim; // of the tensor
    int size;             // columns that every tile has
    Val cols;             // i32: columns that this one has; NULL: size
    Val dst;              // i32
    Val base;             // i64: address of the element (row 0 of the tile, column 0)
    Val stride;           // i64: bytes from row to row
    Val left;             // i32: rows from the tile's first to the tensor's end
    Val when;             // i1, or NULL for always
    int run;              // rows from a multiple of it on that are `stride` apart; 0: all are
    Val *place;           // i64, of a run: bytes from `base`; lane l of a warp has its run 32 i + l
};
typedef struct NvCopy Copy;

static Val times64(Cg *cg, Val a, int b) { return cg_mul(cg, a, cg_i64(cg, b)); }

// Which dimensions are the tile's rows and columns.
static void find_dims(const TileProgram *p, Copy *c, const TileTensor *t) {
    for (int d = 0; d < t->rank; d++) {
        if (c->op->coord[d].axis < 0) continue;
        if (c->op->coord[d].axis == c->tile.row_axis) c->row_dim = d;
        if (c->op->coord[d].axis == c->tile.col_axis) c->col_dim = d;
    }
    assert(c->row_dim >= 0 && c->col_dim == t->rank - 1 &&
           "rows along the tiled axis, columns contiguous");
    assert(t->extent[c->col_dim]->op == EX_CONST);
    c->size = tile_columns(p, c->op);
}

// Of columns that are tiled, the last tile may have fewer.
static void find_columns(Cg *cg, Copy *c) {
    int all = c->size, extent = c->tile.cols;
    if (cg->k->axes[c->tile.col_axis].whole) return;
    c->size = all % extent ? all % extent : extent;
    if (c->size == extent) return;
    Val left = cg_sub(cg, cg_i32(cg, all), cg_first_index(cg, &c->op->coord[c->col_dim]));
    Val v[] = {left, cg_i32(cg, extent)};
    c->cols = cg_intrinsic(cg, "llvm.smin", &cg->i32, 1, v, 2);
}

// Adds what is the same for all tiles of a loop first, so that it is one value outside of the loop.
static Copy copy_of(Cg *cg, const TileOp *op) {
    const TileTensor *t = &cg->p->tensors.data[op->tensor];
    const TileValue *buffer = op->args.data[0];
    Copy c = {.op = op, .tile = tile_shared(cg->p, cg->k, buffer), .row_dim = -1, .col_dim = -1};
    c.elem = dtype_bytes(t->dtype);
    find_dims(cg->p, &c, t);
    find_columns(cg, &c);
    c.base = cg_ptrtoint(cg, cg_origin(cg, op), cg->i64);
    for (int pass = 0; pass < 2; pass++)
        for (int d = 0; d < t->rank; d++) {
            if (pass != (d == c.row_dim) || op->each[d]) continue;
            Val i = cg_sext(cg, cg_first_index(cg, &op->coord[d]), cg->i64);
            Val bytes = times64(cg, cg_stride(cg, op->tensor, d), c.elem);
            c.base = cg_add(cg, c.base, cg_mul(cg, i, bytes));
        }
    int rows = op->coord[c.row_dim].axis;
    if (op->each[c.row_dim]) {
        Val begin = cg_element_begin(cg, op, rows);
        c.left = cg_sub(cg, cg_axis_size(cg, rows), begin);
        CgRun run = cg_element_run(cg, op, rows);
        c.stride = run.dim < 0 ? cg_i64(cg, 0) : cg_stride(cg, op->tensor, run.dim);
        c.stride = times64(cg, c.stride, c.elem);
        c.run = run.places < c.tile.rows ? run.places : 0;
        if (c.run) return c;
        Val first = times64(cg, cg_element_offset(cg, op, rows, begin), c.elem);
        c.base = cg_add(cg, c.base, first);
        return c;
    }
    c.left =
        cg_sub(cg, cg_extent(cg, op->tensor, c.row_dim), cg_first_index(cg, &op->coord[c.row_dim]));
    c.stride = times64(cg, cg_stride(cg, op->tensor, c.row_dim), c.elem);
    return c;
}

// i64: bytes from `base` to a row of the tile.
static Val row_offset(Cg *cg, const Copy *c, Val row) {
    if (!c->run) return cg_mul(cg, cg_zext(cg, row, cg->i64), c->stride);
    int axis = c->op->coord[c->row_dim].axis;
    Val pos = cg_add(cg, cg_element_begin(cg, c->op, axis), row);
    return times64(cg, cg_element_offset(cg, c->op, axis, pos), c->elem);
}

static int power_of_two_in(int n) { return n & -n; }

// One 16-byte piece; `bytes` of it are read, the rest is zeros. `bytes`: NULL for all; `when`: NULL for always.
static void piece(Cg *cg, Val dst, int offset, Val src, Val bytes, Val when) {
    Val v[4] = {dst, src};
    int n = 2;
    const char *text =
        arena_printf(cg->arena, "cp.async.cg.shared.global.L2::128B [$0+%d], [$1], 16%s;", offset,
                     bytes ? ", $2" : "");
    if (bytes) v[n++] = bytes;
    if (when) {
        text = arena_printf(cg->arena, "{\n\t.reg .pred p;\n\tsetp.ne.b32 p, $%d, 0;\n\t@p %s\n\t}",
                            n, text);
        v[n++] = cg_zext(cg, when, cg->i32);
    }
    static const char *const kinds[] = {"r,l,~{memory}", "r,l,r,~{memory}", "r,l,r,r,~{memory}"};
    cg_asm(cg, cg->void_, v, n, text, kinds[n - 2], false);
}

// How many pieces of a row threads copy side by side. Of panels eight at least, so that what permutes them is a
// thread's: its rows differ by a multiple of eight.
static int across_of(const TileShared *t) {
    int pieces = t->cols * t->elem / 16, across = power_of_two_in(pieces);
    if (t->order != ORDER_PANELS) return across > NV_WARP ? NV_WARP : across;
    return across < 16 ? 8 : 16;
}

// From the place of a thread's first piece of a row to that of its j-th.
static int piece_offset(const TileShared *t, int j) {
    return t->order == ORDER_PANELS ? j / 8 * t->rows * t->pitch : 16 * j;
}

// All pieces of one row that this thread copies: every `across`-th.
static void row_pieces(Cg *cg, const Copy *c, Val dst, int offset, Val src, Val ok, Val lane_col,
                       int across, Val when) {
    int real = c->size * c->tile.elem / 16, all = c->tile.cols * c->tile.elem / 16;
    Val end = c->cols ? cg_over(cg, c->cols, 16 / c->tile.elem) : cg_i32(cg, real);
    for (int j = 0; j < all; j += across) {
        Val in = ok;
        if (j + across > real) {
            in = cg_less(cg, cg_plus(cg, lane_col, j), end);
            if (ok) in = cg_and(cg, ok, in);
        }
        Val bytes = in ? cg_select(cg, in, cg_i32(cg, 16), cg_i32(cg, 0)) : NULL;
        piece(cg, dst, offset + piece_offset(&c->tile, j), cg_add(cg, src, cg_i64(cg, 16 * j)),
              bytes, when);
    }
}

// Which rows a warp copies: `across` threads side by side, so `rows` of them at a time, `down` in the block.
typedef struct Turn {
    int across, rows, down;
    int alike; // of them that lie in one run,
    int turns; // and so many times after each other
} Turn;

static Turn turn_of(Cg *cg, const Copy *c) {
    int across = across_of(&c->tile), rows = NV_WARP / across;
    Turn t = {across, rows, nv_state(cg)->gpu.threads / across, rows, 1};
    if (c->run && c->run < rows) t.alike = c->run;
    if (c->run && c->run % t.down == 0) t.turns = c->run / t.down;
    return t;
}

// Where the runs of a warp's rows begin. Behind the tile's end that is anywhere in the tensor.
static void find_places(Cg *cg, Copy *c) {
    Turn t = turn_of(cg, c);
    const NvState *s = nv_state(cg);
    int runs = t.rows / t.alike, each = t.down * t.turns;
    int all = (c->tile.rows + each - 1) / each * runs;
    c->place = ARENA_ARRAY(cg->arena, Val, (all + NV_WARP - 1) / NV_WARP);
    Val own = cg_times(cg, s->warp, t.rows);
    for (int i = 0; i < all; i += NV_WARP) {
        Val n = cg_plus(cg, s->gpu.lane, i), at = cg_urem(cg, n, cg_i32(cg, runs));
        Val row = cg_times(cg, cg_udiv(cg, n, cg_i32(cg, runs)), each);
        row = cg_add(cg, cg_add(cg, row, own), cg_times(cg, at, t.alike));
        c->place[i / NV_WARP] = row_offset(cg, c, row);
    }
}

static Val shuffle64(Cg *cg, Val v, Val lane) {
    Val low = nv_shuffle_from(cg, cg_trunc(cg, v, cg->i32), lane);
    Val high = cg_trunc(cg, cg_lshr(cg, v, cg_i64(cg, 32)), cg->i32);
    high = cg_zext(cg, nv_shuffle_from(cg, high, lane), cg->i64);
    return cg_or(cg, cg_shl(cg, high, cg_i64(cg, 32)), cg_zext(cg, low, cg->i64));
}

// i64: bytes from `base` to the n-th row that a thread copies, where its run begins anew; otherwise NULL.
static Val place_of(Cg *cg, const Copy *c, Turn t, int n, Val stride) {
    if (n % t.turns) return NULL;
    int runs = t.rows / t.alike, i = n / t.turns * runs;
    Val at = cg_udiv(cg, nv_state(cg)->gpu.lane, cg_i32(cg, t.across));
    Val from = cg_udiv(cg, at, cg_i32(cg, t.alike)), in = cg_urem(cg, at, cg_i32(cg, t.alike));
    Val place = shuffle64(cg, c->place[i / NV_WARP], cg_plus(cg, from, i % NV_WARP));
    return cg_add(cg, place, cg_mul(cg, cg_zext(cg, in, cg->i64), stride));
}

// Where none is behind the tensor's end, as of an axis with other rows than tiles have.
static bool has_all_rows(const Cg *cg, const Copy *c) {
    const Ex *size = cg->k->axes[c->tile.row_axis].size;
    return c->op->inside && (size->op != EX_CONST || size->i % c->tile.rows == 0);
}

// Where a thread's piece of row i of its own lies, less i rows: `first` is that of row 0, `at` bytes from the tile's. Panels permute the pieces
// of a row by its last three bits: threads that are too few for eight rows at once have several of these.
static Val at_row(Cg *cg, const Copy *c, const Turn *t, Val first, Val at, Val row, Val col,
                  int i) {
    enum { ROWS = 8 };
    if (c->tile.order != ORDER_PANELS || t->down % ROWS == 0) return first;
    Val there = cg_xor(cg, at, cg_i32(cg, i % ROWS * 16));
    if (ROWS % t->down) {
        Val column = cg_times(cg, col, 16 / c->tile.elem);
        there = nv_tile_offset(cg, &c->tile, cg_plus(cg, row, i), column);
        there = cg_plus(cg, there, -i * c->tile.pitch);
    }
    return cg_add(cg, c->dst, there);
}

// The row stride and the thread's number are hidden from LLVM each time: else it would compute
// every piece's addresses once for all tiles and keep them all in registers, which the accumulators
// need.
static void copy_pieces(Cg *cg, const Copy *c) {
    const NvState *s = nv_state(cg);
    Turn t = turn_of(cg, c);
    Val tid = nv_hidden(cg, s->gpu.tid), stride = nv_hidden(cg, c->stride);
    Val row = cg_udiv(cg, tid, cg_i32(cg, t.across));
    Val col = cg_urem(cg, tid, cg_i32(cg, t.across));
    Val own = times64(cg, cg_zext(cg, col, cg->i64), 16), src = NULL;
    if (!c->run) {
        Val offset = cg_mul(cg, cg_zext(cg, row, cg->i64), stride);
        src = cg_add(cg, c->base, cg_add(cg, offset, own));
    }
    Val step = times64(cg, stride, t.down);
    Val at = nv_tile_offset(cg, &c->tile, row, cg_times(cg, col, 16 / c->tile.elem));
    Val dst = cg_add(cg, c->dst, at), left = cg_sub(cg, c->left, row);
    Val begin = c->run ? cg_add(cg, c->base, own) : NULL;
    for (int i = 0; i < c->tile.rows; i += t.down) {
        Val ok = has_all_rows(cg, c) ? NULL : cg_icmp(cg, LLVMIntSGT, left, cg_i32(cg, i)),
            when = c->when;
        if (i + t.down > c->tile.rows) {
            Val in = cg_below(cg, row, c->tile.rows - i);
            when = when ? cg_and(cg, when, in) : in;
        }
        Val place = c->run ? place_of(cg, c, t, i / t.down, stride) : NULL;
        if (place) src = cg_add(cg, begin, place);
        Val to = at_row(cg, c, &t, dst, at, row, col, i);
        row_pieces(cg, c, to, i * c->tile.pitch, src, ok, col, t.across, when);
        src = cg_add(cg, src, step);
    }
}

// ---- numbers that follow each other

// One number; `has`: whether it is there, or zero.
static void number(Cg *cg, Val dst, Val src, Val has, Val when) {
    Val v[] = {dst, src, cg_select(cg, has, cg_i32(cg, 4), cg_i32(cg, 0)),
               cg_zext(cg, when, cg->i32)};
    cg_asm(cg, cg->void_, v, 4,
           "{\n\t.reg .pred p;\n\tsetp.ne.b32 p, $3, 0;\n\t"
           "@p cp.async.ca.shared.global [$0], [$1], 4, $2;\n\t}",
           "r,l,r,r,~{memory}", false);
}

// By pieces of 16 bytes where workspace has whole ones, otherwise one by one: rows of an input begin anywhere.
static void copy_vector(Cg *cg, const TileOp *op, Val dst) {
    const TileTensor *t = &cg->p->tensors.data[op->tensor];
    int last = t->rank - 1, elem = dtype_bytes(t->dtype);
    int whole = 16 / elem;
    bool pieces_of = t->role == TENSOR_WORK && tile_is_multiple(t->extent[last], whole);
    int each = pieces_of ? whole : 1;
    int pieces = tile_shared(cg->p, cg->k, op->args.data[0]).cols / each;
    Val base = cg_ptrtoint(cg, cg_origin(cg, op), cg->i64);
    Val apart = times64(cg, cg_stride(cg, op->tensor, last), each * elem);
    for (int d = 0; d < t->rank; d++) {
        Val i = cg_sext(cg, cg_first_index(cg, &op->coord[d]), cg->i64);
        base = cg_add(cg, base, cg_mul(cg, i, times64(cg, cg_stride(cg, op->tensor, d), elem)));
    }
    Val left = cg_sub(cg, cg_extent(cg, op->tensor, last), cg_first_index(cg, &op->coord[last]));
    Val when = op->when ? cg_uniform(cg, op->when) : NULL, tid = nv_state(cg)->gpu.tid;
    for (int i = 0; i < pieces; i += nv_state(cg)->gpu.threads) {
        Val n = cg_plus(cg, tid, i), in = cg_below(cg, n, pieces);
        Val has = cg_less(cg, cg_times(cg, n, each), left);
        Val src = cg_add(cg, base, cg_mul(cg, cg_zext(cg, n, cg->i64), apart));
        Val to = cg_add(cg, dst, cg_times(cg, n, each * elem));
        if (when) in = cg_and(cg, when, in);
        if (each == 1)
            number(cg, to, src, has, in);
        else
            piece(cg, to, 0, src, cg_select(cg, has, cg_i32(cg, 16), cg_i32(cg, 0)), in);
    }
}

// Rows of an input begin anywhere, as above: threads side by side have numbers that lie side by side.
static void copy_numbers(Cg *cg, const Copy *c) {
    int cols = c->tile.cols, threads = nv_state(cg)->gpu.threads, across = power_of_two_in(cols);
    if (across > threads) across = threads;
    int down = threads / across;
    Val tid = nv_hidden(cg, nv_state(cg)->gpu.tid), row = cg_over(cg, tid, across);
    Val col = cg_modulo(cg, tid, across), stride = nv_hidden(cg, c->stride);
    Val src = cg_add(cg, c->base, times64(cg, cg_zext(cg, col, cg->i64), 4));
    Val end = c->cols ? c->cols : cg_i32(cg, c->size);
    Val dst = cg_add(cg, c->dst, nv_tile_offset(cg, &c->tile, row, col));
    src = cg_add(cg, src, cg_mul(cg, cg_zext(cg, row, cg->i64), stride));
    for (int i = 0; i < c->tile.rows; i += down) {
        Val there = cg_less(cg, cg_plus(cg, row, i), c->left);
        Val when = c->when ? c->when : LLVMConstInt(cg->i1, 1, false);
        if (i + down > c->tile.rows) when = cg_and(cg, when, cg_below(cg, row, c->tile.rows - i));
        for (int j = 0; j < cols; j += across) {
            Val in = cg_and(cg, there, cg_less(cg, cg_plus(cg, col, j), end));
            number(cg, cg_plus(cg, dst, i * c->tile.pitch + 4 * j),
                   cg_add(cg, src, cg_i64(cg, 4 * j)), in, when);
        }
        src = cg_add(cg, src, times64(cg, stride, down));
    }
}

// ---- by elements

static void copy_element(Cg *cg, const Copy *c, Val i) {
    Val row = cg_udiv(cg, i, cg_i32(cg, c->tile.cols)),
        col = cg_urem(cg, i, cg_i32(cg, c->tile.cols));
    Val cols = c->cols ? c->cols : cg_i32(cg, c->size);
    Val in = cg_and(cg, cg_less(cg, row, c->left), cg_less(cg, col, cols));
    Dtype from = cg->p->tensors.data[c->op->tensor].dtype, to = c->op->args.data[0]->dtype;
    Ty t = c->elem == 4 ? cg->i32 : c->elem == 2 ? cg->i16 : cg->i8;
    Blk here = cg_here(cg), join = cg_if(cg, in, "element"), read = cg_here(cg);
    Val at = row_offset(cg, c, row);
    at = cg_add(cg, at, times64(cg, cg_zext(cg, col, cg->i64), c->elem));
    Val p = cg_inttoptr(cg, cg_add(cg, c->base, at), LLVMPointerTypeInContext(cg->c, 1));
    Val x = cg_load(cg, t, p);
    cg_enter(cg, join);
    Val v = cg_join(cg, LLVMConstNull(t), here, x, read);
    if (from != to) v = cg_write(cg, cg_read(cg, v, from), to);
    Val dst = nv_tile_offset(cg, &c->tile, row, col);
    cg_store(cg, v, nv_shared_ptr(cg, cg_add(cg, c->dst, dst)));
}

static void copy_elements(Cg *cg, const Copy *c) {
    const NvState *s = nv_state(cg);
    Val end = cg_i32(cg, c->tile.rows * c->tile.cols);
    CgCount l = cg_count(cg, s->gpu.tid, end, NULL);
    copy_element(cg, c, l.i);
    cg_end_count(cg, &l, cg_i32(cg, s->gpu.threads), NULL);
}

// ---- the operation

static bool in_pieces(const Copy *c) {
    return c->elem == c->tile.elem && c->size * c->tile.elem % 16 == 0 &&
           c->op->from_column * c->tile.elem % 16 == 0;
}

// Rows of which no product is made, of an input (passes/schedule/vectors.c).
static bool begins_anywhere(Cg *cg, const Copy *c) {
    const TileTensor *t = &cg->p->tensors.data[c->op->tensor];
    return t->role == TENSOR_INPUT && !t->rows && c->elem == 4 && c->tile.elem == 4 && !c->run;
}

static bool says_rows(const TileOp *op) {
    for (int d = 0; d < TILE_MAX_DIMS; d++)
        if (op->each[d]) return true;
    return false;
}

static Copy ready_copy(Cg *cg, const TileOp *op) {
    Copy c = copy_of(cg, op);
    if (c.run && in_pieces(&c)) find_places(cg, &c);
    return c;
}

void nv_copy_ahead(Cg *cg, const TileOp *wait) {
    const TileOp *op = wait->next;
    while (op && op->kind == TILE_BARRIER) op = op->next;
    if (op && op->kind == TILE_COPY && says_rows(op)) nv_find_rows(cg, op);
}

void nv_find_rows(Cg *cg, const TileOp *op) {
    Copy *c = ARENA_NEW(cg->arena, Copy);
    *c = ready_copy(cg, op);
    nv_state(cg)->ahead = c;
}

// A copy that is not to happen (`when`) reads nothing and changes nothing. Pieces are predicated,
// which costs no branch.
void nv_copy(Cg *cg, const TileOp *op) {
    const TileValue *buffer = op->args.data[0];
    int bytes = tile_shared(cg->p, cg->k, buffer).bytes;
    Val stage = cg_times(cg, cg_uniform(cg, op->stage), bytes);
    nv_copy_to(cg, op, cg_add(cg, cg->value[buffer->id].mem, stage));
}

void nv_copy_to(Cg *cg, const TileOp *op, Val dst) {
    if (op->args.data[0]->rank == 1) {
        copy_vector(cg, op, dst);
        return;
    }
    const Copy *ahead = nv_state(cg)->ahead;
    Copy c = ahead && ahead->op == op ? *ahead : ready_copy(cg, op);
    c.dst = dst;
    if (op->each[c.col_dim])
        diag_error(cg->diags, op->span, "%s copies rows; the places of columns are said one by one",
                   cg->target->name);
    c.when = op->when ? cg_uniform(cg, op->when) : NULL;
    if (begins_anywhere(cg, &c)) {
        copy_numbers(cg, &c);
        return;
    }
    if (in_pieces(&c)) {
        copy_pieces(cg, &c);
        return;
    }
    Blk done = cg_if(cg, c.when, "copy");
    copy_elements(cg, &c);
    if (done) cg_enter(cg, done);
}
