// sm90_finish.c: sums of a nest of gradients are converted while it runs (passes/schedule/meanwhile.c).
//
// In: a nest whose schedule says so. Out: the warp that hands sums over (sm90_add.c) says at the end of a tile that the copy engine has added
// all; and the producer's warps that have nothing else to do convert tiles of heads that are summed, each warp its own ones, in the order in
// which heads are taken, until the block has no more tiles. The kernel behind the nest converts what is left, and asks of each tile first.
#include "codegen/nvptx/sm90.h"

#include "ir/tile_blocks.h"

enum {
    FIRST = 2,  // behind the warps that load and that hand over
    IDLE = 2,   // warps of the producer's warpgroup
    BLOCKS = 4, // side by side, that a warp converts at a time
    BLOCK_BYTES = TILE_BLOCK_ROWS * TILE_BLOCK_COLUMNS * 4,
    REST = 2000, // ns, before a warp asks again
};

typedef struct Finish {
    const TileKernel *to; // the kernel that converts
    int sums, dq, told;   // tensors
    int axis, rows;       // of its tiles
} Finish;

static Finish finish_of(Cg *cg) {
    Finish f = {.to = cg_finishes(cg->p), .told = cg->k->schedule.finish - 1};
    for (const TileOp *op = f.to->body.first; op; op = op->next) {
        if (op->kind == TILE_LOAD) f.sums = op->tensor;
        if (op->kind == TILE_STORE) f.dq = op->tensor, f.axis = op->coord[2].axis;
    }
    f.rows = f.to->axes[f.axis].extent;
    return f;
}

// The address of an element: i64.
static Val address(Cg *cg, int tensor, int bytes, Val b, Val h, Val row) {
    Val at[] = {b, h, row}, to = cg_ptrtoint(cg, cg_pointer(cg, tensor), cg->i64);
    for (int d = 0; d < 3; d++) {
        int rest = cg->p->tensors.data[tensor].rank - 1;
        Val i = cg_sext(cg, at[d], cg->i64), by = cg_i64(cg, bytes);
        if (d < rest) by = cg_mul(cg, cg_stride(cg, tensor, d), by);
        to = cg_add(cg, to, cg_mul(cg, i, by));
    }
    return to;
}

static Val global(Cg *cg, Val address) {
    return LLVMBuildIntToPtr(cg->b, address, LLVMPointerTypeInContext(cg->c, 1), "");
}

// Heads of queries whose sums tiles of one head of keys add to.
static Val group(Cg *cg, const Finish *f) {
    Val keys = cg_size(cg, SIZE_HKV), one = cg_i32(cg, 1), v[] = {keys, one};
    return cg_udiv(cg, cg_extent(cg, f->dq, 1), cg_intrinsic(cg, "llvm.smax", &cg->i32, 1, v, 2));
}

// Where a tile's sums are told of.
Val nv90_told(Cg *cg) {
    Finish f = finish_of(cg);
    Val first = cg_mul(cg, cg->grid_h, group(cg, &f));
    return address(cg, f.told, 4, cg->grid_b, first, cg_i32(cg, 0));
}

// ---- converting

typedef struct Place { // of a tile of the kernel that converts
    Val b, h, tile;
} Place;

// Four numbers a lane of each of four blocks: rows r and r + 8, columns 2 q and 2 q + 1 of block n. Then lane q of the four that have a row
// has block q whole, of both rows.
static void turn(Cg *cg, Val x[4]) {
    Val lane = nv_state(cg)->gpu.lane;
    for (int bit = 1; bit < 4; bit *= 2) {
        Val upper = cg_not(cg, cg_is(cg, cg_and(cg, lane, cg_i32(cg, bit)), 0));
        for (int i = 0; i < 4; i++) {
            if (i & bit) continue;
            Val given = cg_select(cg, upper, x[i], x[i + bit]);
            Val got = nv_shuffle(cg, given, bit);
            Val low = cg_select(cg, upper, got, x[i]), high = cg_select(cg, upper, x[i + bit], got);
            x[i] = low, x[i + bit] = high;
        }
    }
}

static Val four(Cg *cg, const Val x[4]) {
    Val v = LLVMGetUndef(cg_vector(cg->i32, 4));
    for (int i = 0; i < 4; i++) v = cg_insert(cg, v, x[i], cg_i32(cg, i));
    return v;
}

// 16 rows and the columns of `n` blocks.
static void convert_blocks(Cg *cg, Val from, Val to, Val pitch, Val rows, int n, Dtype t) {
    Val lane = nv_state(cg)->gpu.lane, x[2][BLOCKS];
    Ty type = cg_vector(cg->f32, 4);
    Val all[BLOCKS];
    for (int i = 0; i < n; i++) {
        Val p = global(cg, cg_add(cg, from, cg_i64(cg, i * BLOCK_BYTES)));
        all[i] = cg_load(cg, type, p);
        LLVMSetAlignment(all[i], 16);
    }
    for (int i = 0; i < BLOCKS; i++)
        for (int r = 0; r < 2; r++) {
            Val v[2] = {cg_f32(cg, 0), cg_f32(cg, 0)};
            for (int c = 0; c < 2 && i < n; c++)
                v[c] = cg_extract(cg, all[i], cg_i32(cg, 2 * r + c));
            x[r][i] = nv_pack(cg, t, v[0], v[1]);
        }
    Val own = cg_and(cg, lane, cg_i32(cg, 3)), row = cg_lshr(cg, lane, cg_i32(cg, 2));
    for (int r = 0; r < 2; r++) {
        turn(cg, x[r]);
        Val at = cg_plus(cg, row, 8 * r), in = cg_less(cg, at, rows);
        if (n < BLOCKS) in = cg_and(cg, in, cg_less(cg, own, cg_i32(cg, n)));
        Blk done = cg_if(cg, in, "row");
        Val p = cg_add(cg, to, cg_mul(cg, cg_sext(cg, at, cg->i64), pitch));
        p = cg_add(cg, p, cg_zext(cg, cg_times(cg, own, 2 * TILE_BLOCK_COLUMNS), cg->i64));
        LLVMSetAlignment(cg_store(cg, four(cg, x[r]), global(cg, p)), 16);
        cg_enter(cg, done);
    }
}

static void convert(Cg *cg, const Finish *f, const Place *at) {
    const TileTensor *dq = &cg->p->tensors.data[f->dq];
    int columns = (int)dq->extent[3]->i, blocks = columns / TILE_BLOCK_COLUMNS;
    Val first = cg_times(cg, at->tile, f->rows), lane = nv_state(cg)->gpu.lane;
    Val left = cg_sub(cg, cg_extent(cg, f->dq, 2), first);
    Val rows = cg_select(cg, cg_below(cg, left, f->rows), left, cg_i32(cg, f->rows));
    Val from = address(cg, f->sums, 4, at->b, at->h, first);
    Val to = address(cg, f->dq, dtype_bytes(dq->dtype), at->b, at->h, first);
    Val down = cg_mul(cg, cg_stride(cg, f->sums, 2), cg_i64(cg, 4)),
        pitch = cg_mul(cg, cg_stride(cg, f->dq, 2), cg_i64(cg, dtype_bytes(dq->dtype)));
    from = cg_add(cg, from, cg_zext(cg, cg_times(cg, lane, HOME_PIECE), cg->i64));
    CgTurns t = cg_turns(cg, cg_i32(cg, 0), NULL, 0);
    Val skip = cg_sext(cg, t.i, cg->i64);
    Val x = cg_add(cg, from, cg_mul(cg, down, skip)), y = cg_add(cg, to, cg_mul(cg, pitch, skip));
    for (int n = 0; n < blocks; n += BLOCKS) {
        int few = blocks - n < BLOCKS ? blocks - n : BLOCKS;
        Val columns_to = cg_add(cg, y, cg_i64(cg, n * TILE_BLOCK_COLUMNS * dtype_bytes(dq->dtype)));
        convert_blocks(cg, cg_add(cg, x, cg_i64(cg, n * BLOCK_BYTES)), columns_to, pitch,
                       cg_sub(cg, rows, t.i), few, dq->dtype);
    }
    Val next = cg_plus(cg, t.i, TILE_BLOCK_ROWS);
    cg_end_turns(cg, &t, next, cg_less(cg, next, rows), NULL);
}

static Place place_of(Cg *cg, const Finish *f, Val number, Val tiles) {
    Val heads = cg_extent(cg, f->dq, 1), head = cg_udiv(cg, number, tiles),
        tile = cg_urem(cg, number, tiles);
    return (Place){cg_udiv(cg, head, heads), cg_urem(cg, head, heads), tile};
}

void nv90_finish(Cg *cg) {
    Finish f = finish_of(cg);
    CgGrid g = cg_grid(cg);
    NvState *s = nv_state(cg);
    Val tiles = cg_over(cg, cg_plus(cg, cg_extent(cg, f.dq, 2), f.rows - 1), f.rows);
    Val heads = cg_mul(cg, cg_extent(cg, f.dq, 0), cg_extent(cg, f.dq, 1));
    Val total = cg_mul(cg, heads, tiles), shared = group(cg, &f);
    Val all = LLVMBuildUIToFP(cg->b, g.count[g.rows], cg->f32, "");
    Val first =
        cg_add(cg, cg_times(cg, nv_special(cg, "ctaid.x"), IDLE), cg_plus(cg, s->warp, -FIRST));
    Val step = cg_times(cg, nv_special(cg, "nctaid.x"), IDLE);
    Val variable = cg_alloca(cg, cg->i32, "number");
    cg_store(cg, first, variable);
    Blk head = cg_block(cg, "finish"), look = cg_block(cg, "look"), ask = cg_block(cg, "ask"),
        summed = cg_block(cg, "summed"), rest = cg_block(cg, "rest"),
        end = cg_block(cg, "finished");
    Blk again = cg_block(cg, "again");
    cg_enter(cg, head);
    Val number = cg_load(cg, cg->i32, variable);
    cg_fork(cg, cg_less(cg, number, total), look, end);
    cg_at(cg, look);
    Place at = place_of(cg, &f, number, tiles);
    Val lead = cg_mul(cg, cg_udiv(cg, at.h, shared), shared);
    Val told = address(cg, f.told, 4, at.b, lead, cg_i32(cg, 0));
    cg_enter(cg, again);
    Val over = nv90_barrier_test(cg, nv90_shared(cg, nv90_state(cg)->over), cg_i32(cg, 0));
    cg_fork(cg, nv_every(cg, over), end, ask); // all lanes go on together
    cg_at(cg, ask);
    Val is_summed = cg_fcmp(cg, LLVMRealOEQ, nv90_hear(cg, told), all);
    cg_fork(cg, nv_every(cg, is_summed), summed, rest);
    cg_at(cg, rest);
    nv90_rest(cg, REST);
    cg_br(cg, again);
    cg_at(cg, summed);
    nv90_heard(cg);
    convert(cg, &f, &at);
    Blk done = cg_if(cg, cg_is(cg, s->gpu.lane, 0), "say");
    Val flag = address(cg, f.told, 4, at.b, at.h, cg_plus(cg, at.tile, 1));
    cg_store(cg, cg_f32(cg, 1), global(cg, flag));
    cg_enter(cg, done);
    cg_store(cg, cg_add(cg, number, step), variable);
    cg_br(cg, head);
    cg_at(cg, end);
}

Val nv90_is_left_over(Cg *cg) {
    Finish f = finish_of(cg);
    Val flag = address(cg, f.told, 4, cg->grid_b, cg->grid_h, cg_plus(cg, cg->tile[f.axis], 1));
    return cg_fcmp(cg, LLVMRealOEQ, cg_load(cg, cg->f32, global(cg, flag)), cg_f32(cg, 0));
}
