// sequence.c: sizes that sequences have of their own, in layouts whose lengths kernels read.
//
// In: the grid's point (cg->grid_b). Out: cg->own, by size. A size over several sequences (TileSize.over) is made by the lanes of each
// warp, which take one sequence each at a time. So is the sequence found that a tile of the grid is of, where tiles of all sequences are
// numbered together.
#include "codegen/lanes.h"

static Val all_lanes(Cg *cg, const CgLanes *l, ExOp reduce, Val v) {
    return l->one ? l->one(cg, reduce, v) : v;
}

// The sizes that are not the same for all sequences.
static void meet(Cg *cg) {
    for (int s = 0; s < cg->p->sizes.n; s++) {
        const TileSize *z = &cg->p->sizes.data[s];
        if (cg->asked[s] && z->own && !tile_is_common(cg->p, s))
            cg->own[s] = cg_uniform(cg, z->def);
    }
}

// What sequence i, each lane's own, has of e; 0 where i is not below n.
static Val of_sequence(Cg *cg, const Ex *e, Val i, Val n) {
    Val here = cg->grid_b, in = cg_less(cg, i, n);
    cg->grid_b = cg_select(cg, in, i, cg_plus(cg, n, -1));
    if (tile_is_own(cg->p, e)) meet(cg);
    Val one = cg_or_zero(cg, in, cg_uniform(cg, e));
    cg->grid_b = here;
    return one;
}

// Sizes over the same sequences: lengths are read once for all of them. `size` are asked for and not made yet.
static void over_sequences(Cg *cg, const int *size, int many) {
    const TileSize *z = cg->p->sizes.data;
    CgLanes l = cg->hooks->lanes(cg);
    Val zero = cg_i32(cg, 0), n = cg_uniform(cg, z[size[0]].among);
    Val none = LLVMConstNull(LLVMVectorType(cg->i32, (unsigned)many));
    CgCount turns = cg_count(cg, zero, n, none);
    Val i = cg_add(cg, turns.i, l.lane), all = turns.sum;
    for (int s = 0; s < many; s++) {
        Val at = cg_i32(cg, s), one = of_sequence(cg, z[size[s]].def, i, n);
        one = cg_lanes_merge(cg, z[size[s]].over, cg_extract(cg, turns.sum, at), one);
        all = cg_insert(cg, all, one, at);
    }
    all = cg_end_count(cg, &turns, cg_i32(cg, l.n), all);
    for (int s = 0; s < many; s++)
        cg->own[size[s]] = all_lanes(cg, &l, z[size[s]].over, cg_extract(cg, all, cg_i32(cg, s)));
}

// Those that are.
static void meet_all(Cg *cg) {
    const TileProgram *p = cg->p;
    int *size = ARENA_ARRAY(cg->arena, int, p->sizes.n + 1);
    bool *met = ARENA_ARRAY(cg->arena, bool, p->sizes.n + 1);
    for (int s = 0; s < p->sizes.n; s++) {
        const TileSize *z = &p->sizes.data[s];
        if (!cg->asked[s] || met[s] || !tile_is_common(p, s)) continue;
        int many = 0;
        for (int i = s; i < p->sizes.n; i++)
            if (cg->asked[i] && p->sizes.data[i].over && p->sizes.data[i].among == z->among)
                met[i] = true, size[many++] = i;
        if (z->over)
            over_sequences(cg, size, many);
        else
            cg->own[s] = cg_uniform(cg, z->def);
    }
}

void cg_meet_sequence(Cg *cg) {
    meet_all(cg);
    meet(cg);
}

Val cg_meet_once(Cg *cg, const Ex *e) {
    meet_all(cg);
    for (int s = 0; s < cg->p->sizes.n; s++)
        if (cg->p->sizes.data[s].own && tile_is_common(cg->p, s)) cg->asked[s] = false;
    return cg_uniform(cg, e);
}

// Of a number of each lane the sum of those of the lanes before it; *all: the sum of all of them.
static Val before(Cg *cg, const CgLanes *l, Val v, Val *all) {
    Val sum = cg_i32(cg, 0);
    for (int mask = 1; mask < l->n; mask *= 2) {
        Val other = l->shuffle(cg, v, mask), bit = cg_and(cg, l->lane, cg_i32(cg, mask));
        sum = cg_add(cg, sum, cg_or_zero(cg, cg_icmp(cg, LLVMIntNE, bit, cg_i32(cg, 0)), other));
        v = cg_add(cg, v, other);
    }
    *all = v;
    return sum;
}

typedef struct Found {  // the tile of a number
    Val sequence, tile; // none: below 0
    Val end;            // no number from here on has a tile of those that this block may be given
} Found;

// Where tiles are numbered one sequence after the other.
static Found find_together(Cg *cg, const Ex *each, Val n, Val number) {
    CgLanes l = cg->hooks->lanes(cg);
    Val none = cg_i32(cg, -1), all;
    Val carried[] = {
        number, none,
        none}; // of the tiles from the first of these lanes on; which sequence, and its tile
    CgTurns t = cg_turns(cg, cg_i32(cg, 0), carried, 3);
    Val i = cg_add(cg, t.i, l.lane), own = of_sequence(cg, each, i, n);
    Val tile = cg_sub(cg, t.phi[0], before(cg, &l, own, &all));
    Val is = cg_and(cg, cg_icmp(cg, LLVMIntSGE, tile, cg_i32(cg, 0)), cg_less(cg, tile, own));
    Val now[] = {cg_sub(cg, t.phi[0], all_lanes(cg, &l, EX_ROWMAX, all)),
                 all_lanes(cg, &l, EX_ROWMAX, cg_select(cg, is, i, none)),
                 all_lanes(cg, &l, EX_ROWMAX, cg_select(cg, is, tile, none))};
    Val next = cg_plus(cg, t.i, l.n);
    Val more = cg_and(cg, cg_less(cg, next, n), cg_below(cg, now[1], 0));
    cg_end_turns(cg, &t, next, more, now);
    Val to = cg_sub(cg, number, now[0]); // of all sequences, if these lanes had the last ones
    Val end = cg_select(cg, cg_less(cg, next, n), cg_i32(cg, INT32_MAX), to);
    return (Found){now[1], now[2], end};
}

// Tiles of one sequence have numbers that are `batch` apart.
static Val end_of_sequence(Cg *cg, Val tiles, Val batch) {
    Val end = cg_mul(cg, cg_zext(cg, tiles, cg->i64), cg_zext(cg, batch, cg->i64));
    Val args[] = {end, cg_i64(cg, INT32_MAX)};
    return cg_trunc(cg, cg_intrinsic(cg, "llvm.umin", &cg->i64, 1, args, 2), cg->i32);
}

Val cg_find_tile(Cg *cg, const TileGrid *g, Val number, Val *end) {
    meet_all(cg);
    Val batch = cg_uniform(cg, g->batch), one_by_one = cg_is(cg, cg_uniform(cg, g->together), 0);
    Val inverse = cg_inverse(cg, g->batch);
    Val tile = inverse ? cg_times_inverse(cg, number, inverse) : cg_udiv(cg, number, batch),
        sequence = cg_sub(cg, number, cg_mul(cg, tile, batch));
    Blk here = cg_here(cg), look = cg_block(cg, "look"), on = cg_block(cg, "found");
    cg_branch(cg, one_by_one, on, look);
    cg_at(cg, look);
    Found found = find_together(cg, g->shared, batch, number);
    Blk from = cg_here(cg);
    cg_enter(cg, on);
    cg->grid_b = cg_join(cg, found.sequence, from, sequence, here);
    cg->tile[g->axis] = cg_join(cg, found.tile, from, tile, here);
    Val all = cg_join(cg, found.end, from, cg_i32(cg, 0), here);
    Val none = cg_below(cg, cg->grid_b, 0);
    cg->grid_b = cg_or_zero(cg, cg_not(cg, none), cg->grid_b);
    meet(cg);
    Val tiles = cg_uniform(cg, g->shared);
    *end = cg_select(cg, one_by_one, end_of_sequence(cg, tiles, batch), all);
    return cg_and(cg, cg_not(cg, none), cg_less(cg, cg->tile[g->axis], tiles));
}

void cg_find_own(Cg *cg, const Ex *each, Val n, Val number, Val *sequence, Val *tile) {
    Found found = find_together(cg, each, n, number);
    *sequence = found.sequence, *tile = found.tile;
}

Val cg_count_own(Cg *cg, const Ex *each, Val n) {
    return find_together(cg, each, n, cg_i32(cg, INT32_MAX)).end; // which none has
}
