// sm90_add.c: sums to global memory, which several blocks add to.
//
// In: a TILE_STORE that adds, whose tensor lies in blocks (ir/tile_blocks.h). Out: through a buffer, of which each warp has a part, which the
// copy engine adds: a warp of the producer hands it over, where it has registers for that (tile_hands_over), and nobody who computes waits for
// the engine; otherwise each warp its own. Where there is no room for a buffer each thread adds its own.
//
// Where parts are handed over each warp says in a note where its part goes to, before its sums have landed. Two named barriers for a warpgroup: its parts are free; they, and
// the notes, are written. At the end of a tile parts serve other stores (sm90_store.c), and the note is what is told of the tile's sums (sm90_finish.c).
#include "codegen/nvptx/sm90.h"

#include "ir/tile_blocks.h"

#include <assert.h>

enum {
    NOTES = 2, // of a warp, by turns: the one before may not be read yet
    WARPS = 4, // of a warpgroup
    WARP_LANES = 32,
    NOTHING = 0, // instead of a number of bytes
    SUMMED = -1, // and where that is told
    END = -2,    // no more tiles
};

typedef struct Blocks { // of a warp, in a tensor that lies in blocks
    Val to;             // i64: address
    Val rows, columns;  // i32: the first of each, within the tensor, or the sequence
    Val nrows;
} Blocks;

// A warp's rows and columns are whole blocks: what its lanes say of them falls away.
static Val first_block(Cg *cg, const TileOp *op, int d, int unit) {
    const TileCoord *at = &op->coord[d];
    Val own = cg_thread_part(cg, op->args.data[0]->layout, at->axis);
    Val tile = op->each[d] ? cg_element_begin(cg, op, at->axis)
                           : cg_times(cg, cg_uniform(cg, at->at), cg->k->axes[at->axis].extent);
    return cg_add(cg, tile, cg_and(cg, own, cg_i32(cg, -unit)));
}

static Blocks blocks_of(Cg *cg, const TileOp *op) {
    enum { ELEM = 4 };
    int rank = cg->p->tensors.data[op->tensor].rank;
    Blocks b = {.to = cg_ptrtoint(cg, cg_pointer(cg, op->tensor), cg->i64)};
    const Ex *from = tile_run_from(cg->p->pool, op, rank - 2);
    b.rows = first_block(cg, op, rank - 2, TILE_BLOCK_ROWS);
    b.nrows =
        from ? cg_axis_size(cg, op->coord[rank - 2].axis) : cg_extent(cg, op->tensor, rank - 2);
    b.columns = first_block(cg, op, rank - 1, TILE_BLOCK_COLUMNS);
    for (int d = 0; d < rank; d++) {
        bool last = d == rank - 1;
        Val at = last ? b.columns : d == rank - 2 ? b.rows : cg_uniform(cg, op->coord[d].at);
        if (d == rank - 2 && from) at = cg_add(cg, at, cg_uniform(cg, from));
        Val by = cg_mul(cg, cg_stride(cg, op->tensor, d),
                        cg_i64(cg, last ? ELEM * TILE_BLOCK_ROWS : ELEM));
        at = cg_sext(cg, at, cg->i64);
        b.to = cg_add(cg, b.to, cg_mul(cg, at, by));
    }
    return b;
}

// A thread's four of the block that begins with column n.
static void block_part(Cg *cg, const TileValue *v, int n, Val x[4]) {
    const CgFragment *f = cg_fragment(cg, v);
    for (int i = 0; i < 4; i++) x[i] = cg->value[v->id].e[cg_register(f, 8 * (i / 2), n + i % 2)];
}

static void write_blocks(Cg *cg, const TileValue *v, int columns, Val to) {
    for (int n = 0; n < columns; n += TILE_BLOCK_COLUMNS) {
        Val x[4];
        block_part(cg, v, n, x);
        for (int i = 0; i < 4; i++) x[i] = cg_bitcast(cg, x[i], cg->i32);
        nv90_store_words(cg, cg_plus(cg, to, n * TILE_BLOCK_ROWS * 4), x);
    }
}

// Where there is no room for a buffer each thread adds its own.
void nv90_add_blocks(Cg *cg, const TileOp *op) {
    const TileValue *v = op->args.data[0];
    const TileTensor *t = &cg->p->tensors.data[op->tensor];
    const CgFragment *f = cg_fragment(cg, v);
    int columns = cg_share(f, f->columns) * layout_share(&f->is, LAYOUT_LANE, f->columns);
    assert(t->blocked && cg_share(f, f->rows) == 2 && "a warp has 16 rows");
    Blocks b = blocks_of(cg, op);
    Val own = cg_zext(cg, cg_times(cg, nv_state(cg)->gpu.lane, HOME_PIECE), cg->i64);
    Val to = cg_add(cg, b.to, own);
    Val in = cg_less(cg, b.rows, b.nrows);
    int all = (int)t->extent[t->rank - 1]->i;
    for (int n = 0; n < columns; n += TILE_BLOCK_COLUMNS) {
        Val x[4], there = in;
        block_part(cg, v, n, x);
        if (all % cg->k->axes[f->columns].extent)
            there = cg_and(cg, in, cg_less(cg, cg_plus(cg, b.columns, n), cg_i32(cg, all)));
        nv90_add_words(cg, cg_add(cg, to, cg_i64(cg, n * TILE_BLOCK_ROWS * 4)), x, there);
    }
}

// ---- notes

static const TileOp *adds_through(const TileOp *role) {
    for (const TileOp *op = tile_next(&role->body, NULL); op; op = tile_next(&role->body, op))
        if (op->kind == TILE_STORE && op->add && op->args.n > 1) return op;
    return NULL;
}

static const TileOp *adder(const Cg *cg) { // the role that does; NULL: none
    for (const TileOp *op = cg->k->body.first; op; op = op->next)
        if (op->kind == TILE_ROLE && adds_through(op)) return op;
    return NULL;
}

// What a barrier of a warpgroup's parts is waited for by: it, and the warp that hands over.
static void meet(Cg *cg, Val group, bool written, bool waits) {
    enum { BOTH = NV90_GROUP + WARP_LANES };
    int first = 1 + 3 * nv90_state(cg)->warpgroups + written * adder(cg)->warpgroups;
    Val id = cg_plus(cg, group, first);
    if (waits)
        nv90_bar_sync(cg, id, BOTH);
    else
        nv90_bar_arrive(cg, id, BOTH);
}

static Val note_at(Cg *cg, Val turn, Val warp) {
    int warps = WARPS * adder(cg)->warpgroups;
    Val i = cg_add(cg, cg_times(cg, turn, warps), warp);
    return cg_add(cg, nv90_shared(cg, nv90_state(cg)->notes), cg_times(cg, i, HOME_PIECE));
}

static void write_note(Cg *cg, Val to, Val bytes) {
    Val turn = cg_load(cg, cg->i32, nv90_state(cg)->note), high = cg_lshr(cg, to, cg_i64(cg, 32));
    Val words[] = {cg_trunc(cg, to, cg->i32), cg_trunc(cg, high, cg->i32), bytes, cg_i32(cg, 0)};
    nv90_store_words_if(cg, note_at(cg, turn, nv_state(cg)->warp), words,
                        cg_is(cg, nv_state(cg)->gpu.lane, 0));
}

static void take_parts(Cg *cg) { meet(cg, nv90_state(cg)->group, false, true); }

static void give_parts(Cg *cg) {
    Val note = nv90_state(cg)->note;
    meet(cg, nv90_state(cg)->group, true, false);
    cg_store(cg, cg_xor(cg, cg_load(cg, cg->i32, note), cg_i32(cg, 1)), note);
}

void nv90_begin_notes(Cg *cg) {
    Nv90 *h = nv90_state(cg);
    bool notes = adds_through(h->role) && tile_hands_over(cg->p, cg->k);
    h->note = notes ? cg_alloca(cg, cg->i32, "note") : NULL;
    if (h->note) cg_store(cg, cg_i32(cg, 0), h->note);
}

static int bytes_of_part(const Cg *cg, const TileOp *add) {
    return tile_shared(cg->p, cg->k, add->args.data[1]).bytes / (WARPS * adder(cg)->warpgroups);
}

static int part_columns(Cg *cg, const TileOp *op) {
    const CgFragment *f = cg_fragment(cg, op->args.data[0]);
    return cg_share(f, f->columns) * layout_share(&f->is, LAYOUT_LANE, f->columns);
}

// Of a warp's part: 16 rows of its columns, which are blocks that follow each other, in the buffer and in the tensor. i32: so many bytes
// are columns of the tensor; *in: some are, and its rows are.
static Val part_bytes(Cg *cg, const TileOp *op, const Blocks *b, Val *in) {
    const TileTensor *t = &cg->p->tensors.data[op->tensor];
    const CgFragment *f = cg_fragment(cg, op->args.data[0]);
    int columns = part_columns(cg, op), all = (int)t->extent[t->rank - 1]->i;
    assert(t->blocked && cg_share(f, f->rows) == 2 && "a warp has 16 rows");
    Val most = cg_i32(cg, columns), there = most;
    *in = cg_less(cg, b->rows, b->nrows);
    if (all % cg->k->axes[f->columns].extent) { // some columns of a tile are behind the tensor's
        Val left = cg_sub(cg, cg_i32(cg, all), b->columns);
        there = cg_select(cg, cg_less(cg, left, most), left, most);
        *in = cg_and(cg, *in, cg_icmp(cg, LLVMIntSGT, left, cg_i32(cg, 0)));
    }
    return cg_times(cg, there, TILE_BLOCK_ROWS * 4);
}

void nv90_announce(Cg *cg, const TileOp *op) {
    Nv90 *h = nv90_state(cg);
    if (!h->note) return;
    Blocks b = blocks_of(cg, op);
    Val in, bytes = part_bytes(cg, op, &b, &in);
    write_note(cg, b.to, cg_select(cg, in, bytes, cg_i32(cg, 0)));
    h->announced = op;
}

static void write_part(Cg *cg, const TileOp *op, Val base) {
    Val own = cg_times(cg, nv_state(cg)->gpu.lane, HOME_PIECE);
    write_blocks(cg, op->args.data[0], part_columns(cg, op), cg_add(cg, base, own));
    nv90_proxy_fence(cg);
}

// Where to is worked out before the columns are written: behind that the next products wait for it.
static void add_own(Cg *cg, const TileOp *op, Val base) {
    Blocks b = blocks_of(cg, op);
    Val lead = cg_is(cg, nv_state(cg)->gpu.lane, 0), in, bytes = part_bytes(cg, op, &b, &in);
    in = cg_and(cg, in, lead);
    nv90_bulk_wait_read(cg, 0);
    nv90_warp_sync(cg);
    write_part(cg, op, base);
    nv90_warp_sync(cg);
    nv90_bulk_add(cg, b.to, base, bytes, in);
    nv90_bulk_commit(cg);
}

void nv90_add_through(Cg *cg, const TileOp *op) {
    Nv90 *h = nv90_state(cg);
    int bytes = part_columns(cg, op) * TILE_BLOCK_ROWS * 4;
    assert(!h->note || bytes == bytes_of_part(cg, op));
    Val own = cg_times(cg, nv_state(cg)->warp, bytes);
    Val base = cg_add(cg, cg->value[op->args.data[1]->id].mem, own);
    if (!h->note) {
        add_own(cg, op, base);
        return;
    }
    if (h->announced != op) nv90_announce(cg, op);
    h->announced = NULL;
    take_parts(cg);
    write_part(cg, op, base);
    give_parts(cg);
}

// What stands instead of a place for sums: nothing, or where it is told that the tile's are there. As every note before the parts are taken: that barrier, too, stands between who writes
// it and who reads it.
static void end_of_tile(Cg *cg) {
    bool tells = cg->k->schedule.finish;
    write_note(cg, tells ? nv90_told(cg) : cg_i64(cg, 0), cg_i32(cg, tells ? SUMMED : NOTHING));
    take_parts(cg);
}

void nv90_own_buffer(Cg *cg) {
    if (nv90_state(cg)->note) end_of_tile(cg);
}

static bool stores_behind(const TileOp *role, const TileValue *buffer) {
    for (const TileOp *op = tile_next(&role->body, NULL); op; op = tile_next(&role->body, op))
        if (op->kind == TILE_STORE && !op->add && op->args.n > 1 && op->args.data[1] == buffer)
            return true;
    return false;
}

// At the end of a tile.
void nv90_tile_is_summed(Cg *cg) {
    const TileOp *role = nv90_state(cg)->role, *add = adds_through(role);
    bool own = add && stores_behind(role, add->args.data[1]);
    if (!nv90_state(cg)->note || (!own && !cg->k->schedule.finish)) return;
    if (own)
        nv90_bulk_wait_read(cg, 0);
    else
        end_of_tile(cg);
    give_parts(cg);
}

void nv90_sums_end(Cg *cg) {
    if (!nv90_state(cg)->note) return;
    write_note(cg, cg_i64(cg, 0), cg_i32(cg, END));
    take_parts(cg);
    give_parts(cg);
}

// ---- the warp that hands over

static Val lane_in_four(Cg *cg) {
    return cg_and(cg, nv_state(cg)->gpu.lane, cg_i32(cg, WARPS - 1));
}

// The parts of a warpgroup, one for each of four lanes. What the last note says: *bytes and *to.
static void hand_group(Cg *cg, const TileOp *add, Val turn, int group, Val *bytes, Val *to) {
    const TileValue *buffer = add->args.data[1];
    int part = bytes_of_part(cg, add);
    Val warp = cg_plus(cg, lane_in_four(cg), WARPS * group), words[4];
    meet(cg, cg_i32(cg, group), true, true);
    nv90_load_words(cg, note_at(cg, turn, warp), words);
    Val low = cg_zext(cg, words[0], cg->i64), high = cg_zext(cg, words[1], cg->i64);
    *to = cg_or(cg, low, cg_shl(cg, high, cg_i64(cg, 32)));
    *bytes = words[2];
    Val in = cg_and(cg, cg_icmp(cg, LLVMIntSGT, *bytes, cg_i32(cg, 0)),
                    cg_below(cg, nv_state(cg)->gpu.lane, WARPS));
    Val from = cg_add(cg, cg->value[buffer->id].mem, cg_times(cg, warp, part));
    nv90_bulk_add(cg, *to, from, *bytes, in);
    nv90_bulk_commit(cg);
}

void nv90_hand_over(Cg *cg) {
    const TileOp *role = adder(cg), *add = adds_through(role);
    Val turn = cg_alloca(cg, cg->i32, "turn"), bytes = NULL, to = NULL;
    cg_store(cg, cg_i32(cg, 0), turn);
    Blk again = cg_block(cg, "hand_over"), end = cg_block(cg, "handed_over");
    cg_enter(cg, again);
    Val now = cg_load(cg, cg->i32, turn);
    for (int g = 0; g < role->warpgroups; g++) meet(cg, cg_i32(cg, g), false, false);
    for (int g = 0; g < role->warpgroups; g++) hand_group(cg, add, now, g, &bytes, &to);
    cg_store(cg, cg_xor(cg, now, cg_i32(cg, 1)), turn);
    nv90_bulk_wait_read(cg, 0);
    Val said = nv_shuffle_from(cg, bytes, cg_i32(cg, 0));
    if (cg->k->schedule.finish) {
        Blk told = cg_if(cg, cg_is(cg, said, SUMMED), "tile");
        nv90_bulk_wait(cg, 0);
        nv90_warp_sync(cg);
        Blk done = cg_if(cg, cg_is(cg, nv_state(cg)->gpu.lane, 0), "summed");
        nv90_tell(cg, to);
        cg_enter(cg, done);
        cg_enter(cg, told);
    }
    cg_fork(cg, cg_is(cg, said, END), end, again);
    cg_at(cg, end);
}
