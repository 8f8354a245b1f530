// sm90_pipes.c: the operations that hand tiles from one role to the other.
//
// In: FILL, GIVE, TAKE, DROP and views. Out: copies and waits. A pipe is a ring of stages with two barriers
// each: `full`, completed by the bytes of a copy, and `empty`, by an arrival of every warpgroup that
// reads. Where a role gives what it has computed, each of its threads arrives at `full`, and each thread that reads
// at `empty`: nobody waits for the others of a warpgroup. Whoever waits counts stages and parities for itself, in variables that mem2reg makes
// registers. A vector that is filled behind a tile has that one's stages and barriers (sm90_frame.c).
#include "codegen/nvptx/sm90.h"

#include <assert.h>

static Val get(Cg *cg, Val variable) { return cg_load(cg, cg->i32, variable); }

static Val barrier_at(Cg *cg, int ring, Val stage) {
    return cg_plus(cg, cg_add(cg, nv90_shared(cg, 0), cg_times(cg, stage, 8)), ring);
}

static Val stage_of(Cg *cg, const Nv90Pipe *p, Val variable) {
    return p->ring->stages == 1 ? cg_i32(cg, 0) : get(cg, variable);
}

// The stage after this one, and whether the ring begins again (i32), which turns the parity.
static Val next_stage(Cg *cg, const Nv90Pipe *p, Val stage, Val *turns) {
    int n = p->ring->stages;
    *turns = n == 1 ? cg_i32(cg, 1) : stage;
    if (n == 1) return stage;
    if (n == 2) return cg_xor(cg, stage, cg_i32(cg, 1));
    Val next = cg_plus(cg, stage, 1), wraps = cg_is(cg, next, n);
    *turns = nv90_if(cg, wraps);
    return cg_select(cg, wraps, cg_i32(cg, 0), next);
}

static void advance(Cg *cg, const Nv90Pipe *p, const Nv90Walk *w, Val when) { // when: i1 or NULL
    Val stage = stage_of(cg, p, w->stage), parity = get(cg, w->parity), turns;
    Val next = next_stage(cg, p, stage, &turns);
    Val turned = cg_xor(cg, parity, turns);
    if (when) {
        next = cg_select(cg, when, next, stage);
        turned = cg_select(cg, when, turned, parity);
    }
    cg_store(cg, next, w->stage);
    cg_store(cg, turned, w->parity);
}

// The pipe whose stages and barriers it has.
static const Nv90Pipe *leader_of(Cg *cg, const Nv90Pipe *p) {
    return p->leader < 0 ? p : &nv90_state(cg)->pipes.data[p->leader];
}

static Val stage_address(Cg *cg, const Nv90Pipe *p, Val stage) {
    return cg_add(cg, nv90_shared(cg, p->data), cg_times(cg, stage, p->tile.bytes));
}

static void wait_for_room(Cg *cg, const Nv90Pipe *p) {
    Val empty = barrier_at(cg, p->empty, stage_of(cg, p, p->fills.stage));
    nv90_barrier_wait(cg, empty, get(cg, p->fills.parity));
}

typedef struct Copy { // of a tile, all that it takes
    Val to, full, at[CG_MAP_RANK], map;
    Val column; // i32: the tile's first
    Val there;  // i1: the tensor has elements; NULL: it has
    int rank;
    bool everywhere; // each block of the cluster copies a part, to all
    int row;         // where the next tile lies elsewhere, at `next`; -1: it is not asked for
    Val next;
} Copy;

static const Ex *next_tile(Cg *cg, const Ex *at, const TileOp *loop) {
    ExPool *x = cg->p->pool;
    const Ex *step = ex_2(x, EX_ADD, ex_symbol(x, SYM_STEP), ex_i32(x, 1));
    return ex_subst(x, at, SYM_TILE, loop->axis, ex_subst(x, loop->index, SYM_STEP, 0, step));
}

static Copy copy_of(Cg *cg, const TileOp *op, const Nv90Pipe *p, Val stage) {
    const TileTensor *t = &cg->p->tensors.data[op->tensor];
    Val rank = nv90_state(cg)->rank;
    int rows = nv90_copied_rows(cg, &p->tile);
    const TileOp *loop = op->block->owner;
    Val end = NULL;
    Copy c = {.to = stage_address(cg, p, stage),
              .full = barrier_at(cg, leader_of(cg, p)->full, stage),
              .row = -1};
    c.rank = t->rank;
    c.everywhere = nv90_goes_everywhere(cg, &p->tile);
    int mine = rows / HOME_ROWS * tile_rows_bytes(&p->tile);
    if (c.everywhere) c.to = cg_add(cg, c.to, cg_times(cg, rank, mine));
    for (int d = 0; d < t->rank; d++) {
        int axis = op->coord[d].axis;
        if (op->each[d]) {
            c.at[d] = p->by_threads ? NULL : nv90_run(cg, op, d, &end); // each box has its own
            continue;
        }
        c.at[d] = cg_uniform(cg, op->coord[d].at);
        if (axis < 0 || axis == p->tile.col_axis) continue;
        c.at[d] = cg_times(cg, c.at[d], cg->k->axes[axis].extent);
        if (c.everywhere) c.at[d] = cg_add(cg, c.at[d], cg_times(cg, rank, rows));
        if (!tile_is_marked(op, TILE_AHEAD) || axis != loop->axis) continue;
        c.row = d;
        c.next = cg_times(cg, cg_uniform(cg, next_tile(cg, op->coord[d].at, loop)),
                          cg->k->axes[axis].extent);
        if (c.everywhere) c.next = cg_add(cg, c.next, cg_times(cg, rank, rows));
    }
    assert(op->coord[t->rank - 1].axis == p->tile.col_axis);
    c.column = c.at[t->rank - 1];
    if (!op->each[t->rank - 1]) c.column = cg_times(cg, c.column, p->tile.cols);
    if (op->width) c.column = cg_plus(cg, c.column, op->from_column);
    if (end) c.rank = nv90_cut(cg, c.at, c.rank, end);
    c.map = nv90_map_param(cg, op->tensor, p->by_threads ? nv90_box_rows(cg, op) : rows);
    // Over tiles there are elements.
    if (t->role != TENSOR_Q && loop->kind != TILE_LOOP) c.there = nv90_has_elements(cg, t);
    return c;
}

static int columns_of(const Nv90Pipe *p) { // of a copy
    return p->tile.order == ORDER_PANELS ? HOME_PANEL : p->tile.cols;
}

static void copy_panels(Cg *cg, const Nv90Pipe *p, Copy *c) {
    for (int i = 0; i * columns_of(p) < p->tile.cols; i++) {
        c->at[c->rank - 1] = cg_plus(cg, c->column, i * HOME_PANEL);
        Val to = cg_plus(cg, c->to, i * tile_panel_bytes(&p->tile));
        nv90_bulk_load(cg, to, c->map, c->full, c->at, c->rank, c->there, c->everywhere);
    }
}

// ---- bands: a copy takes 8 rows, in all panels, and lies in one page

// Coordinates in the tensor's order; where there are several panels, behind that of the first.
typedef struct Band {
    Val at[CG_MAP_RANK];
} Band;

typedef struct Bands { // of a stage, this block's
    Band *band;
    int n;
} Bands;

static bool in_bands(const Nv90Pipe *p) {
    return p->tile.order == ORDER_PANELS && p->tile.band < p->tile.rows;
}

static bool has_panels(const Nv90Pipe *p) { return p->tile.cols > HOME_PANEL; }

static Band band_at(Cg *cg, const TileOp *op, const Nv90Pipe *p, Val row) {
    int columns = cg->p->tensors.data[op->tensor].rank - 1, more = has_panels(p);
    int first = op->width ? op->from_column : 0;
    Band b = {{cg_i32(cg, first / HOME_PANEL)}};
    Val *at = b.at + more;
    for (int d = 0; d < columns; d++)
        if (!op->each[d])
            at[d] = op->coord[d].axis == p->tile.row_axis ? row : cg_uniform(cg, op->coord[d].at);
    cg_element_indices(cg, op, p->tile.row_axis, row, at);
    at[columns] = cg_i32(cg, more ? 0 : first);
    return b;
}

// Of a sequence's tile, no other rows are looked for than its own: bands behind its end are its last one.
static Val own_row(Cg *cg, const Nv90Pipe *p, Val row) {
    Val last = cg_plus(cg, cg_axis_size(cg, p->tile.row_axis), -1);
    Val v[] = {row, cg_and(cg, last, cg_i32(cg, -HOME_ROWS))}, zero = cg_i32(cg, 0);
    Val least[] = {cg_intrinsic(cg, "llvm.smin", &cg->i32, 1, v, 2), zero};
    return cg_intrinsic(cg, "llvm.smax", &cg->i32, 1, least, 2);
}

// Of the tile whose first row is `begin`.
static Bands bands_at(Cg *cg, const TileOp *op, const Nv90Pipe *p, Val begin) {
    int rows = nv90_copied_rows(cg, &p->tile);
    Bands all = {ARENA_ARRAY(cg->arena, Band, rows / HOME_ROWS), rows / HOME_ROWS};
    if (nv90_goes_everywhere(cg, &p->tile))
        begin = cg_add(cg, begin, cg_times(cg, nv90_state(cg)->rank, rows));
    for (int i = 0; i < all.n; i++) {
        Val row = cg_plus(cg, begin, HOME_ROWS * i);
        all.band[i] = band_at(cg, op, p, p->ends ? own_row(cg, p, row) : row);
    }
    return all;
}

static Bands next_bands(Cg *cg, const TileOp *op, const Nv90Pipe *p) {
    int axis = p->tile.row_axis;
    if (!tile_is_marked(op, TILE_AHEAD)) return (Bands){NULL, 0};
    const Ex *tile = ex_sym(cg->p->pool, SYM_TILE, axis, EX_I32);
    Val next = cg_uniform(cg, next_tile(cg, tile, op->block->owner));
    return bands_at(cg, op, p, cg_times(cg, next, cg->k->axes[axis].extent));
}

static Val first_row(Cg *cg, const TileOp *op, const Nv90Pipe *p) {
    int axis = p->tile.row_axis;
    for (int d = 0; d < cg->p->tensors.data[op->tensor].rank; d++)
        if (!op->each[d] && op->coord[d].axis == axis)
            return cg_times(cg, cg_uniform(cg, op->coord[d].at), cg->k->axes[axis].extent);
    return cg_element_begin(cg, op, axis);
}

static Val end_of_stage(Cg *cg, const Nv90Pipe *p, Val stage) {
    return nv_shared_ptr(cg, cg_add(cg, nv90_shared(cg, p->ends), cg_times(cg, stage, 4)));
}

// How many of a tile's rows are its sequence's: whoever adds rows up reads it, and clears the others.
static void tell_end(Cg *cg, const Nv90Pipe *p, Val begin) {
    Val own = cg_sub(cg, cg_axis_size(cg, p->tile.row_axis), begin);
    Val stage = stage_of(cg, p, p->fills.stage);
    LLVMSetVolatile(cg_store(cg, own, end_of_stage(cg, p, stage)), true);
}

// Where rows lie is asked for before the wait. there: i1; NULL: there are rows.
static void copy_bands(Cg *cg, const TileOp *op, const Nv90Pipe *p, Val begin, Val there) {
    int rank = cg->p->tensors.data[op->tensor].rank + has_panels(p);
    int bytes = tile_rows_bytes(&p->tile);
    bool everywhere = nv90_goes_everywhere(cg, &p->tile);
    Val stage = stage_of(cg, p, p->fills.stage), full = barrier_at(cg, p->full, stage);
    Val to = stage_address(cg, p, stage), map = nv90_map_param(cg, op->tensor, HOME_ROWS);
    Bands own = bands_at(cg, op, p, begin), next = next_bands(cg, op, p);
    if (everywhere) to = cg_add(cg, to, cg_times(cg, nv90_state(cg)->rank, own.n * bytes));
    Val all = cg_i32(cg, p->bytes);
    if (there) all = cg_select(cg, there, all, cg_i32(cg, 0));
    wait_for_room(cg, p);
    if (p->ends) tell_end(cg, p, begin);
    nv90_barrier_expect(cg, full, all);
    for (int i = 0; i < own.n; i++)
        nv90_bulk_load(cg, cg_plus(cg, to, i * bytes), map, full, own.band[i].at, rank, there,
                       everywhere);
    for (int i = 0; i < next.n; i++) nv90_bulk_prefetch(cg, map, next.band[i].at, rank);
}

// Of a tile without a row of its sequence nothing is copied.
static void copy_own_bands(Cg *cg, const TileOp *op, const Nv90Pipe *p, Val begin) {
    Blk some = cg_block(cg, "rows"), none = cg_block(cg, "none"), on = cg_block(cg, "copied");
    cg_branch(cg, cg_less(cg, begin, cg_axis_size(cg, p->tile.row_axis)), some, none);
    copy_bands(cg, op, p, begin, NULL);
    cg_br(cg, on);
    cg_go_on(cg, none);
    wait_for_room(cg, p);
    tell_end(cg, p, begin);
    nv90_barrier_arrive(cg, barrier_at(cg, p->full, stage_of(cg, p, p->fills.stage)), NULL);
    cg_enter(cg, on);
}

static void fill_bands(Cg *cg, const TileOp *op, const Nv90Pipe *p) {
    const TileTensor *t = &cg->p->tensors.data[op->tensor];
    Blk done = cg_if(cg, op->when ? cg_uniform(cg, op->when) : NULL, "when");
    Val begin = first_row(cg, op, p), there = NULL;
    if (!p->ends && op->block->owner->kind != TILE_LOOP) there = nv90_has_elements(cg, t);
    Blk rest = nv90_state(cg)->all_produce ? nv90_one(cg) : NULL;
    if (p->ends)
        copy_own_bands(cg, op, p, begin);
    else
        copy_bands(cg, op, p, begin, there);
    if (rest) cg_enter(cg, rest);
    advance(cg, p, &p->fills, NULL);
    if (done) cg_enter(cg, done);
}

static const TileValue *tile_of(const TileValue *v) { // what it lies beside, or it
    return v->def && v->def->kind == TILE_BESIDE ? v->def->args.data[0] : v;
}

// Whether some product adds up rows of what is taken.
static bool adds_rows(Cg *cg, const TileOp *take, const Nv90Pipe *p) {
    const TileValue *v = take->results.data[0];
    const TileBlock *body = &cg->k->body;
    for (const TileOp *op = tile_next(body, NULL); op; op = tile_next(body, op))
        for (int i = 0; op->kind == TILE_MMA && i < 2; i++)
            if (tile_of(op->args.data[i]) == v && tile_contracted_axis(op) == p->tile.row_axis)
                return true;
    return false;
}

// Each warpgroup clears them for itself, and finds them cleared where another was first.
static void clear_behind(Cg *cg, const Nv90Pipe *p, Val stage) {
    const TileShared *t = &p->tile;
    int pieces = tile_rows_bytes(t) / HOME_ROWS / HOME_PIECE, in_panel = HOME_PITCH / HOME_PIECE;
    Val own = cg_load(cg, cg->i32, end_of_stage(cg, p, stage)), zero = cg_i32(cg, 0);
    LLVMSetVolatile(own, true);
    Blk on = cg_if(cg, cg_below(cg, own, t->rows), "clear");
    Val tid = cg_and(cg, nv_state(cg)->gpu.tid, cg_i32(cg, NV90_GROUP - 1));
    Val from = cg_intrinsic(cg, "llvm.smax", &cg->i32, 1, (Val[]){own, zero}, 2);
    Val none[] = {zero, zero, zero, zero}, base = stage_address(cg, p, stage);
    assert(pieces <= NV90_GROUP);
    CgCount row = cg_count(cg, from, cg_i32(cg, t->rows), NULL);
    Val band = cg_lshr(cg, row.i, cg_i32(cg, 3)), in = cg_and(cg, row.i, cg_i32(cg, HOME_ROWS - 1));
    Val at = cg_add(cg, cg_times(cg, band, tile_rows_bytes(t)), cg_times(cg, in, HOME_PITCH));
    Val panel = cg_times(cg, cg_udiv(cg, tid, cg_i32(cg, in_panel)), tile_panel_bytes(t));
    Val piece = cg_times(cg, cg_and(cg, tid, cg_i32(cg, in_panel - 1)), HOME_PIECE);
    Blk mine = cg_if(cg, cg_below(cg, tid, pieces), "piece");
    nv90_store_words(cg, cg_add(cg, base, cg_add(cg, at, cg_add(cg, panel, piece))), none);
    cg_enter(cg, mine);
    cg_end_count(cg, &row, cg_i32(cg, 1), NULL);
    nv90_proxy_fence(cg);
    nv90_group_sync(cg);
    cg_enter(cg, on);
}

// Nothing is copied of an empty tensor, whose map says nothing; its stages are zeros from the start.
static void start_copy(Cg *cg, const Nv90Pipe *p, Copy *c) {
    Val bytes = cg_i32(cg, p->bytes);
    if (c->there) bytes = cg_select(cg, c->there, bytes, cg_i32(cg, 0));
    if (p->leader < 0) nv90_barrier_expect(cg, c->full, bytes);
    copy_panels(cg, p, c);
    if (c->row < 0) return;
    c->at[c->row] = c->next; // which may lie outside: then nothing happens
    for (int i = 0; i * columns_of(p) < p->tile.cols; i++) {
        c->at[c->rank - 1] = cg_plus(cg, c->column, i * HOME_PANEL);
        nv90_bulk_prefetch(cg, c->map, c->at, c->rank);
    }
}

// ---- rows that are said one by one
//
// The producer's threads copy them, and the barrier counts each, once its pieces are there. In pages rows follow each other for a while: where a
// tile's are all inside, a thread of each warp copies some of its boxes, and counts for the warp. Pieces are seldom then, and whoever
// writes them makes them seen by products; elsewhere whoever takes them does.

static Val is_inside(Cg *cg, const TileOp *op, const Nv90Pipe *p) {
    Val end = cg_plus(cg, cg_element_begin(cg, op, p->tile.row_axis), p->tile.rows);
    return cg_icmp(cg, LLVMIntSLE, end, cg_axis_size(cg, p->tile.row_axis));
}

static int boxes_of(const Nv90Pipe *p, int rows) {
    return p->tile.rows / rows * ((p->tile.cols + columns_of(p) - 1) / columns_of(p));
}

// A box of one panel, the n-th of a tile.
static Copy box_of(Cg *cg, const TileOp *op, const Nv90Pipe *p, const Copy *all, int rows, Val n) {
    int down = p->tile.rows / rows;
    Val panel = cg_over(cg, n, down), row = cg_sub(cg, n, cg_times(cg, panel, down));
    Val begin = cg_element_begin(cg, op, p->tile.row_axis);
    Copy c = *all;
    c.to = cg_add(cg, c.to, cg_times(cg, row, rows * HOME_PITCH));
    c.to = cg_add(cg, c.to, cg_times(cg, panel, tile_panel_bytes(&p->tile)));
    cg_element_indices(cg, op, p->tile.row_axis, cg_add(cg, begin, cg_times(cg, row, rows)), c.at);
    c.at[c.rank - 1] = cg_add(cg, c.column, cg_times(cg, panel, HOME_PANEL));
    return c;
}

// By one thread of a warp. Where rows lie is asked for before the wait.
static void copy_boxes(Cg *cg, const TileOp *op, const Nv90Pipe *p, int rows) {
    enum { WARPS = NV90_GROUP / NV_WARP };
    int n = boxes_of(p, rows), each = (n + WARPS - 1) / WARPS, bytes = p->tile.bytes / n;
    Copy *box = ARENA_ARRAY(cg->arena, Copy, each),
         all = copy_of(cg, op, p, stage_of(cg, p, p->fills.stage));
    Val warp = nv_state(cg)->warp, own = cg_i32(cg, each * bytes);
    assert(p->bytes == p->tile.bytes);
    all.there = NULL; // rows that are inside are of some page
    for (int i = 0; i < each; i++)
        box[i] = box_of(cg, op, p, &all, rows, cg_plus(cg, warp, WARPS * i));
    Val last = n % WARPS ? cg_below(cg, warp, n % WARPS) : NULL; // some have one less
    if (last) own = cg_select(cg, last, own, cg_i32(cg, (each - 1) * bytes));
    wait_for_room(cg, p);
    nv90_barrier_arrive_for(cg, all.full, NV_WARP - 1);
    nv90_barrier_expect(cg, all.full, own);
    for (int i = 0; i < each; i++)
        nv90_bulk_load(cg, box[i].to, box[i].map, box[i].full, box[i].at, box[i].rank,
                       i == each - 1 ? last : NULL, false);
}

static void copy_pieces(Cg *cg, const TileOp *op, const Nv90Pipe *p) {
    Val stage = stage_of(cg, p, p->fills.stage), full = barrier_at(cg, p->full, stage);
    nv_find_rows(cg, op);
    wait_for_room(cg, p);
    nv_copy_to(cg, op, stage_address(cg, p, stage));
    if (!p->boxes) {
        nv90_barrier_copied(cg, full);
        return;
    }
    nv90_wait_copied(cg);
    nv90_proxy_fence(cg);
    nv90_barrier_arrive(cg, full, NULL);
}

static void fill_by_boxes(Cg *cg, const TileOp *op, const Nv90Pipe *p, int rows) {
    Blk boxes = cg_block(cg, "boxes"), pieces = cg_block(cg, "pieces"), on = cg_block(cg, "filled");
    cg_branch(cg, is_inside(cg, op, p), boxes, pieces);
    Blk one = cg_block(cg, "one"), rest = cg_block(cg, "rest");
    cg_fork(cg, nv90_elect(cg), one, rest);
    cg_at(cg, one);
    copy_boxes(cg, op, p, rows);
    cg_br(cg, on);
    cg_at(cg, rest);
    wait_for_room(cg, p);
    cg_br(cg, on);
    cg_go_on(cg, pieces);
    copy_pieces(cg, op, p);
    cg_enter(cg, on);
}

static void fill_by_threads(Cg *cg, const TileOp *op, const Nv90Pipe *p) {
    Blk done = cg_if(cg, op->when ? cg_uniform(cg, op->when) : NULL, "when");
    int rows = nv90_box_rows(cg, op);
    if (rows)
        fill_by_boxes(cg, op, p, rows);
    else
        copy_pieces(cg, op, p);
    advance(cg, p, &p->fills, NULL);
    if (done) cg_enter(cg, done);
}

// Everything is there when the stage is free: from then on the consumers wait for the copy.
void nv90_fill(Cg *cg, const TileOp *op) {
    const Nv90Pipe *p = nv90_pipe(cg, op->args.data[0]);
    if (p->leader >= 0) {
        Copy with = copy_of(cg, op, p, stage_of(cg, p, leader_of(cg, p)->last.stage));
        start_copy(cg, p, &with);
        return;
    }
    if (in_bands(p)) {
        fill_bands(cg, op, p);
        return;
    }
    if (p->by_threads) {
        fill_by_threads(cg, op, p);
        return;
    }
    Blk done = cg_if(cg, op->when ? cg_uniform(cg, op->when) : NULL, "when");
    Val stage = stage_of(cg, p, p->fills.stage);
    if (p->bytes > p->tile.bytes) cg_store(cg, stage, p->last.stage);
    Copy c = copy_of(cg, op, p, stage);
    nv90_barrier_wait(cg, barrier_at(cg, p->empty, stage), get(cg, p->fills.parity));
    Blk rest = nv90_state(cg)->all_produce ? nv90_one(cg) : NULL;
    start_copy(cg, p, &c);
    if (rest) cg_enter(cg, rest);
    advance(cg, p, &p->fills, NULL);
    if (done) cg_enter(cg, done);
}

void nv90_give(Cg *cg, const TileOp *op) {
    const Nv90Pipe *p = nv90_pipe(cg, op->args.data[0]);
    const TileValue *v = op->args.data[1];
    Val stage = stage_of(cg, p, p->fills.stage), to = stage_address(cg, p, stage);
    nv90_pack(cg);
    nv90_barrier_wait(cg, barrier_at(cg, p->empty, stage), get(cg, p->fills.parity));
    if (p->tile.order == ORDER_PANELS) {
        nv90_write_matrix(cg, v, &p->tile, to);
        nv90_proxy_fence(cg);
    } else if (v->rank == 1) {
        nv90_write_rows(cg, v, to);
    } else {
        nv90_write_threads(cg, v, to);
    }
    nv90_barrier_arrive(cg, barrier_at(cg, p->full, stage), NULL);
    advance(cg, p, &p->fills, NULL);
}

static void bind_view(Cg *cg, const TileValue *v, const Nv90Pipe *p, Val stage) {
    nv90_state(cg)->stage[v->id] = stage;
    cg->value[v->id] = (CgValue){.mem = stage_address(cg, p, stage)};
    nv90_state(cg)->rows[v->id] = nv90_is_left(cg, v) ? nv90_left(cg, v) : NULL;
}

// Of a pipe: stages that the blocks' operations before `end` give and do not take. A loop's body leaves as many as it found.
static int left_by(const TileBlock *b, const TileOp *end, const TileValue *pipe) {
    int n = 0;
    for (const TileOp *op = b->first; op != end; op = op->next) {
        bool its = op->args.n && op->args.data[0] == pipe;
        n += its && op->kind == TILE_GIVE;
        n -= its && op->kind == TILE_TAKE;
        if (op->kind == TILE_AT) n += left_by(&op->body, NULL, pipe);
    }
    return n;
}

static int left_before(const TileOp *take) {
    int n = 0;
    for (const TileOp *op = take; op; op = op->block->owner)
        n += left_by(op->block, op, take->args.data[0]);
    return n;
}

// What a role takes of its own lies so many stages behind the one that it gives next: one or two, of two.
static void find_own(Cg *cg, const TileOp *op, const Nv90Pipe *p, Val *stage, Val *parity) {
    bool both = left_before(op) == p->ring->stages;
    Val next = get(cg, p->fills.stage), turned = get(cg, p->fills.parity);
    *stage = both ? next : cg_xor(cg, next, cg_i32(cg, 1));
    *parity = both ? turned : cg_xor(cg, turned, next);
}

// Where `when` is false the wait is for a barrier that is always complete: a branch would let no
// product be in flight across it.
void nv90_take(Cg *cg, const TileOp *op) {
    Nv90 *h = nv90_state(cg);
    const Nv90Pipe *p = nv90_pipe(cg, op->args.data[0]);
    if (p->leader >= 0) {
        bind_view(cg, op->results.data[0], p, stage_of(cg, p, leader_of(cg, p)->last.stage));
        return;
    }
    bool own = p->giver == h->role && p->ring->stages == 2;
    const Nv90Walk *walk = p->with < 0 ? &p->takes : &h->pipes.data[p->with].last;
    Val stage = stage_of(cg, p, walk->stage), parity = get(cg, walk->parity);
    if (own) find_own(cg, op, p, &stage, &parity);
    Val full = barrier_at(cg, p->full, stage), when = op->when ? cg_uniform(cg, op->when) : NULL;
    if (when) {
        full = cg_select(cg, when, full, nv90_shared(cg, h->done));
        parity = cg_select(cg, when, parity, cg_i32(cg, 1));
    }
    bool pieces = p->by_threads && !p->boxes;
    if (h->chain && !pieces)
        h->chain_full = full, h->chain_parity = parity;
    else
        nv90_barrier_wait(cg, full, parity);
    if (pieces) nv90_proxy_fence(cg); // products read what threads wrote
    if (p->ends && adds_rows(cg, op, p)) clear_behind(cg, p, stage);
    cg_store(cg, stage, p->last.stage);
    cg_store(cg, parity, p->last.parity);
    if (!own && p->with < 0) advance(cg, p, &p->takes, when);
    bind_view(cg, op->results.data[0], p, stage);
}

static bool read_by_map(const TileKernel *k, const TileValue *v) {
    for (const TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op))
        for (int i = 0; op->kind == TILE_MAP && i < op->args.n; i++)
            if (op->args.data[i] == v) return true;
    return false;
}

// Whether each way from where it was taken to where it is dropped has a product of it: a loop may have no step.
static bool is_multiplied(const TileOp *drop) {
    const TileValue *v = drop->args.data[0];
    const TileOp *op = drop->prev;
    for (; op && op != v->def; op = op->prev)
        for (int i = 0; op->kind == TILE_MMA && i < op->args.n; i++)
            if (tile_of(op->args.data[i]) == v) return true;
    return !op || op->kind != TILE_TAKE; // taken elsewhere, for products that stand there
}

// Products are of the whole warpgroup: when one has landed, all of its warps have seen that the tile was there. Elsewhere they are waited
// for: a warp that is late would look for a phase of `full` that the next two copies had ended, and wait forever. So is what single threads
// read, but for vectors, which such a product or a barrier stands behind (passes/schedule/waits.c). Where `when` is
// false the arrival is at a barrier that nobody waits for: ptxas puts off what has a predicate of its
// own until the weights are done, and the producer waits.
void nv90_drop(Cg *cg, const TileOp *op) {
    const Nv90 *h = nv90_state(cg);
    const TileValue *v = op->args.data[0];
    const Nv90Pipe *p = nv90_pipe(cg, v);
    if (p->leader >= 0) return;
    if (p->giver) {
        nv90_barrier_arrive(cg, barrier_at(cg, p->empty, h->stage[v->id]), NULL);
        return;
    }
    Val when = h->lead, empty = barrier_at(cg, p->empty, h->stage[v->id]);
    Val yes = op->when ? cg_uniform(cg, op->when) : NULL;
    if (yes && !nv90_goes_everywhere(cg, &p->tile))
        empty = cg_select(cg, yes, empty, nv90_shared(cg, h->nobody));
    else if (yes)
        when = cg_and(cg, when, yes);
    if (v->rank > 1 && (read_by_map(cg->k, v) || !is_multiplied(op))) nv90_group_sync(cg);
    nv90_barrier_arrive(cg, empty, when);
    if (!nv90_goes_everywhere(cg, &p->tile)) return;
    Val other = cg_xor(cg, h->rank, cg_i32(cg, 1));
    nv90_remote_arrive(cg, nv90_remote(cg, empty, other), when);
}

void nv90_view(Cg *cg, const TileOp *op) {
    const Nv90Pipe *p = nv90_pipe(cg, op->args.data[0]);
    bind_view(cg, op->results.data[0], p, stage_of(cg, p, p->last.stage));
}

void nv90_beside(Cg *cg, const TileOp *op) {
    const TileValue *from = op->args.data[0], *v = op->results.data[0];
    nv90_state(cg)->stage[v->id] = nv90_state(cg)->stage[from->id];
    cg->value[v->id] = (CgValue){.mem = cg->value[from->id].mem};
}
