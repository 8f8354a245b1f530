// sm90_map.c: maps in roles: beside products in flight, and in two ways where not all elements count.
//
// In: a TILE_MAP at work (codegen/gpu/map.c). Out: its elements, and the waits that the schedule puts
// between them; pairs of narrow results are made when nothing is in flight (nv90_pack).
#include "codegen/nvptx/sm90.h"

enum {
    PART = 64
}; // columns whose numbers are read at once: 192 bytes spilled otherwise (backward, 64 columns)

static void pack_wide(Cg *cg, const CgWalk *m) {
    Nv90 *h = nv90_state(cg);
    const TileOp *op = m->space.op;
    const NvMap *own = m->own;
    for (int i = 0; i < op->outs.n; i++) {
        const TileValue *v = op->results.data[i];
        Nv90Wide w = {&cg->value[v->id], v->dtype, own->wide[i], tile_is_marked(op, TILE_HALVES)};
        if (w.elements) VEC_PUSH(cg->arena, &h->wide, w);
    }
    if (!h->flight.n) nv90_pack(cg);
}

static void widen_packed(Cg *cg, const CgWalk *m) {
    NvMap *own = m->own;
    const TileOp *op = m->space.op;
    own->wide = ARENA_ARRAY(cg->arena, Val *, op->outs.n);
    for (int i = 0; i < op->outs.n; i++) {
        const TileValue *v = op->results.data[i];
        if (cg_fragment(cg, v)->each == 2)
            own->wide[i] = ARENA_ARRAY(cg->arena, Val, 2 * cg->value[v->id].n);
    }
}

// Elements that do not count are not made (nvptx/sm90_first.c): how many along `axis` are.
static int leave_out(Cg *cg, const CgWalk *m) {
    const Nv90 *h = nv90_state(cg);
    const TileOp *op = m->space.op;
    const NvMap *own = m->own;
    int axis = m->space.columns, all = axis < 0 ? 1 : cg->k->axes[axis].extent;
    if (!h->counted || axis != h->counted_axis) return all;
    for (int i = 0; i < op->results.n; i++) {
        const TileValue *v = op->results.data[i];
        CgValue *value = &cg->value[v->id];
        bool made = !tile_has_axis(v, axis);
        for (int e = 0; !made && e < value->n; e++) value->e[e] = LLVMGetUndef(cg->f32);
        for (int e = 0; own->wide[i] && e < 2 * value->n; e++) own->wide[i][e] = cg_f32(cg, 0);
    }
    return h->counted;
}

// Where the scores are needed once more (TILE_REDO) the weights do not take their registers, and the
// assembler would bring them all before the wait: then the rows' operands come from behind it.
static bool keeps_scores(const TileOp *map) {
    for (const TileOp *op = map->next; op; op = op->next)
        if (op->kind == TILE_REDO) return true;
    return false;
}

static bool is_of_rows(Cg *cg, const TileOp *map, int i) {
    const CgValue *v = &cg->value[map->args.data[i]->id];
    return map->args.data[i]->rank == 1 && v->n && LLVMTypeOf(v->e[0]) == cg->f32;
}

static void wait_within(Cg *cg, const TileOp *map) {
    VEC(Val) held = {0};
    for (int i = 0; i < map->args.n && keeps_scores(map); i++) {
        const CgValue *v = &cg->value[map->args.data[i]->id];
        for (int e = 0; is_of_rows(cg, map, i) && e < v->n; e++)
            VEC_PUSH(cg->arena, &held, v->e[e]);
    }
    nv90_pinned_wait(cg, map, held.data, held.n);
    for (int i = 0, n = 0; n < held.n; i++) {
        CgValue *v = &cg->value[map->args.data[i]->id];
        if (!is_of_rows(cg, map, i)) continue;
        v->e = &held.data[n];
        n += v->n;
    }
}

typedef struct Walk {
    CgWalk *m;
    int done; // elements
    int part; // columns after which others may be read; 0: whenever
} Walk;

// Numbers of columns come through a pipe. The assembler would read those of all columns first, and has no registers for them.
static bool reads_columns(const CgWalk *m) {
    const TileOp *op = m->space.op;
    for (int i = 0; i < op->args.n; i++) {
        const TileValue *v = op->args.data[i];
        if (v->rank == 1 && v->axis[0] == m->space.columns && tile_pipe_of(v)) return true;
    }
    return false;
}

// Nothing moves over a branch: a wait for a barrier that is always complete.
static void begin_part(Cg *cg, const Walk *w) {
    const CgSpace *s = &w->m->space;
    int column = w->part ? s->part[s->columns] : 0;
    if (!column || column % w->part || s->odd) return;
    for (int a = 0; a < s->op->naxes; a++)
        if (s->op->axes[a] != s->columns && s->part[s->op->axes[a]]) return;
    nv90_barrier_wait(cg, nv90_shared(cg, nv90_state(cg)->done), cg_i32(cg, 1));
}

static void walked(Cg *cg, Walk *w) {
    const TileOp *op = w->m->space.op;
    begin_part(cg, w);
    if (op->waits && w->done == op->after) wait_within(cg, op);
    w->done++;
    cg_walk_element(cg, w->m);
}

static void walk(Cg *cg, CgWalk *m) {
    const TileOp *op = m->space.op;
    const CgSpace *s = &m->space;
    widen_packed(cg, m);
    int columns = leave_out(cg, m);
    Walk w = {m, 0, reads_columns(m) ? PART : 0};
    for (int i = 0; i < s->n; i++) {
        cg_walk_at(m, i);
        if (s->columns < 0 || s->part[s->columns] < columns) walked(cg, &w);
    }
    if (op->waits && (op->after < 0 || w.done <= op->after)) {
        nv90_mma_wait(cg, op->pending);
        nv90_do_within(cg, op, TILE_DROP);
        nv90_do_within(cg, op, TILE_MAP);
    }
    if (tile_is_marked(op, TILE_LATE)) // no element moves behind it, and no sum before
        nv90_barrier_wait(cg, nv90_shared(cg, nv90_state(cg)->done), cg_i32(cg, 1));
    pack_wide(cg, m);
}

// From one address of the thread's: the columns are the instruction's own offsets.
static Val read_two(Cg *cg, const TileValue *v, int layout, int first) {
    Val own = cg_times(cg, cg_thread_part(cg, layout, v->axis[0]), dtype_bytes(v->dtype));
    Val by = cg_i32(cg, first * dtype_bytes(v->dtype)),
        p = nv_shared_ptr(cg, cg_add(cg, cg->value[v->id].mem, own));
    p = cg_element(cg, cg->i8, p, by);
    Val both = cg_load(cg, cg_vector(cg->f32, 2), p);
    LLVMSetAlignment(both, 8);
    return both;
}

// Two at once, and once for all rows.
Val nv90_number(Cg *cg, const TileValue *v, int layout, int column) {
    enum { RECENT = 16 };
    Nv90 *h = nv90_state(cg);
    Nv90Two two = {v, column & ~1, NULL, cg_here(cg)};
    for (int i = h->two.n - 1; i >= 0 && i >= h->two.n - RECENT && !two.both; i--) {
        const Nv90Two *t = &h->two.data[i];
        if (t->v == v && t->first == two.first && t->in == two.in) two.both = t->both;
    }
    if (!two.both) {
        two.both = read_two(cg, v, layout, two.first);
        VEC_PUSH(cg->arena, &h->two, two);
    }
    return cg_extract(cg, two.both, cg_i32(cg, column & 1));
}

// Operands that stand behind a wait are the map's own.
void nv90_map_walk(Cg *cg, CgWalk *m) {
    const TileOp *op = m->space.op;
    nv90_state(cg)->two.n = 0;
    CgValue *own = ARENA_ARRAY(cg->arena, CgValue, op->args.n + 1);
    for (int i = 0; i < op->args.n; i++) own[i] = cg->value[op->args.data[i]->id];
    walk(cg, m);
    for (int i = 0; i < op->args.n; i++) cg->value[op->args.data[i]->id] = own[i];
}

void nv90_keep_pair(Cg *cg, const CgWalk *m, int i, Val low, Val high) {
    const NvMap *own = m->own;
    const TileValue *v = m->space.op->results.data[i];
    Val *pair = own->wide[i] + 2 * cg_slot(cg_fragment(cg, v), m->space.part);
    pair[0] = low, pair[1] = high;
    if (tile_is_marked(m->space.op, TILE_HALVES)) nv_sigmoids_begin(cg, pair);
}
