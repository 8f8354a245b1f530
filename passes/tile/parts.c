// parts.c: marks sums of rows that may stay in parts (ir/tile_parts.h).
//
// In: a kernel whose values have homes. Out: of a kernel with roles as many values marked as possible. It begins with all
// candidates, and removes those that contradict a rule until none is left. Of others the sums that a loop carries, which
// are whole before and behind it.
#include "passes/schedule/schedule.h"
#include "passes/tile/rewrite.h"

#include "ir/tile_parts.h"

static void mark(const TileKernel *k, TileValue *v) {
    v->parts = v->rank == 1 && v->axis[0] == tile_grid_axis(k) && v->dtype == DT_F32 &&
               v->home == HOME_FRAGMENT;
}

static bool settle(const TileOp *op) {
    TileValue *pair[2];
    if (!tile_parts_conflict(op, pair)) return false;
    pair[0]->parts = pair[1]->parts = false;
    return true;
}

// What is loaded is whole, unless all that uses it takes parts.
static bool is_used_whole(const TileKernel *k, const TileOp *load) {
    for (const TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op))
        for (int i = 0; i < op->args.n; i++) {
            bool carries = op->kind == TILE_LOOP || op->kind == TILE_TILES;
            if (op->args.data[i] == load->results.data[0] && !carries && !tile_takes_parts(op))
                return true;
        }
    return false;
}

// And the copy of a whole number is whole.
static bool make_whole(const TileKernel *k, TileOp *op) {
    bool any = false;
    for (int i = 0; i < op->results.n; i++) {
        TileValue *v = op->results.data[i];
        bool load = op->kind == TILE_LOAD && is_used_whole(k, op),
             copy = op->kind == TILE_MAP && tile_first_has_all(op, i);
        if (!v->parts || (!load && !copy)) continue;
        v->parts = false, any = true;
    }
    return any;
}

void pass_mark_parts(TileKernel *k) {
    for (TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op)) {
        for (int i = 0; i < op->results.n; i++) mark(k, op->results.data[i]);
        for (int i = 0; i < op->carried.n; i++) mark(k, op->carried.data[i]);
    }
    for (bool changed = true; changed;) {
        changed = false;
        for (TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op))
            while (settle(op)) changed = true;
        for (TileOp *op = tile_next(&k->body, NULL); op && !changed; op = tile_next(&k->body, op))
            changed = make_whole(k, op);
    }
}

// ---- sums of one loop

static bool used_once(const TileBlock *b, const TileValue *v, const TileOp *by) {
    for (const TileOp *op = b->first; op; op = op->next)
        if (op != by && tile_uses(op, v)) return false;
    return true;
}

// A row sum of the loop, for this map alone.
static bool is_addend(const TileValue *v, const TileOp *map) {
    const TileOp *def = v->def;
    if (!def || def->kind != TILE_MAP || def->block != map->block) return false;
    for (int i = 0; i < def->results.n; i++)
        if (def->results.data[i] == v && def->outs.data[i].reduce != EX_ROWSUM) return false;
    return used_once(map->block, v, map);
}

static void set_parts(TileOp *loop, int i, bool parts) {
    TileValue *next = loop->body.last->args.data[i];
    TileOp *map = next->def;
    loop->carried.data[i]->parts = next->parts = parts;
    for (int a = 0; a < map->args.n; a++)
        if (is_addend(map->args.data[a], map)) map->args.data[a]->parts = parts;
}

// Only a map adds to it and scales it.
static bool mark_carried(TileOp *loop, int i) {
    TileValue *v = loop->carried.data[i], *next = loop->body.last->args.data[i], *pair[2];
    TileOp *map = next->def;
    if (v->rank != 1 || v->dtype != DT_F32 || v->home != HOME_FRAGMENT || !map ||
        map->kind != TILE_MAP || map->block != &loop->body || !used_once(&loop->body, v, map) ||
        !used_once(&loop->body, next, loop->body.last))
        return false;
    set_parts(loop, i, true);
    bool ok = !tile_parts_conflict(map, pair) && tile_takes_parts(map);
    if (!ok) set_parts(loop, i, false);
    return ok;
}

// Not where an accumulator is carried and nothing else goes from thread to thread at a step, such as a maximum: nothing
// then says that the sum must be ready, the assembler puts its additions off, and what is summed stays in registers,
// which the accumulator needs (a hundred words were spilled).
static bool sums_have_time(const TileOp *loop) {
    bool accumulates = false, crosses = false;
    for (int i = 0; i < loop->carried.n; i++) accumulates |= loop->carried.data[i]->rank == 2;
    for (const TileOp *op = loop->body.first; op; op = op->next)
        for (int i = 0; op->kind == TILE_MAP && i < op->outs.n; i++)
            crosses |= op->outs.data[i].reduce == EX_ROWMAX || op->outs.data[i].reduce == EX_ROWMIN;
    return accumulates && !crosses;
}

// The same number, before `at`: from whole to parts, or back.
static TileValue *converted(TileProgram *p, TileKernel *k, TileOp *at, TileValue *v) {
    TileValue *to = pass_same_before(p, k, at, v);
    to->home = v->home;
    return to;
}

static void part_sum(TileProgram *p, TileKernel *k, TileOp *loop, TileOp *behind, int i) {
    TileValue *sum = loop->results.data[i], *start = converted(p, k, loop, loop->args.data[i]);
    start->parts = sum->parts = true;
    loop->args.data[i] = start;
    TileValue *whole = converted(p, k, behind, sum);
    tile_replace(&k->body, sum, whole);
    whole->def->args.data[0] = sum;
}

void pass_part_sums(TileProgram *p, TileKernel *k) {
    for (TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op)) {
        TileOp *behind = op->next;
        for (int i = 0; op->kind == TILE_LOOP && !sums_have_time(op) && i < op->carried.n; i++)
            if (mark_carried(op, i)) part_sum(p, k, op, behind, i);
    }
}
