// map.c: maps over values in registers: each thread makes its elements, one after the other, reduces
// them in itself and then across the lanes of its warp.
//
// In: a TILE_MAP whose operands are fragments or lie in shared memory. Out: its results in registers.
#include "codegen/gpu/gpu.h"

#include <assert.h>

// ---- the elements of a thread

// The digit of an axis beyond those in lanes: over the tiles of an instruction. -1: none.
static int beyond_lanes(const Layout *l, int axis) {
    int at = -1, step = 0;
    for (int i = 0; i < l->n; i++) {
        const LayoutDigit *d = &l->digit[i];
        if (d->axis != axis || d->place > LAYOUT_LANE || d->step < step) continue;
        step = d->step;
        at = d->place == LAYOUT_REG ? i : -1;
    }
    return at;
}

// Registers in the order of their digits, but that one digit is the slowest.
static const int *order_of(Cg *cg, const Layout *l, int n, int slow) {
    int *order = ARENA_ARRAY(cg->arena, int, n), stride = 1;
    int count = 1;
    for (int i = 0; i < l->n && l->digit[i].place == LAYOUT_REG; i++) {
        if (i == slow) count = l->digit[i].count;
        if (i < slow) stride *= l->digit[i].count;
    }
    for (int i = 0; i < n; i++) {
        int low = i % stride, rest = i / stride, above = n / stride / count;
        order[i] = low + (rest / above + rest % above * count) * stride;
    }
    return order;
}

static CgSpace space_of(Cg *cg, const TileOp *map, CgOrder order) {
    CgSpace s = {.op = map, .rows = -1, .columns = -1};
    s.layout = tile_common_layout(cg->k, map, map->axes, map->naxes);
    assert(s.layout >= 0 && "a map's values lie in one layout");
    const Layout *all = &cg->k->layouts.data[s.layout].is;
    for (int i = 0; i < map->naxes; i++)
        *(map->axes[i] == cg_columns(all) ? &s.columns : &s.rows) = map->axes[i];
    s.is = layout_restrict(all, map->axes, map->naxes);
    s.n = layout_count(&s.is, LAYOUT_REG);
    int slow = order == CG_ROW_BY_ROW ? s.rows : order == CG_COLUMN_BY_COLUMN ? s.columns : -1;
    s.order = order_of(cg, &s.is, s.n, slow < 0 ? -1 : beyond_lanes(&s.is, slow));
    return s;
}

void cg_walk_at(CgWalk *m, int i) {
    CgSpace *s = &m->space;
    for (int a = 0; a < s->op->naxes; a++)
        s->part[s->op->axes[a]] = layout_part(&s->is, LAYOUT_REG, s->op->axes[a], s->order[i]);
    s->odd = s->columns >= 0 && s->order[i] % 2;
}

static bool is_made(const CgSpace *s, int result) {
    const TileResult *out = &s->op->outs.data[result];
    const TileValue *v = s->op->results.data[result];
    for (int a = 0; a < s->op->naxes; a++) {
        int axis = s->op->axes[a];
        bool reduced = out->reduce != EX_CONST && axis == out->reduce_axis;
        if (s->part[axis] && !reduced && !tile_has_axis(v, axis)) return true;
    }
    return false;
}

static Val masked(Cg *cg, const CgSpace *s, const TileResult *out, Val v) {
    int axis = out->reduce_axis, most = s->part[axis];
    const TileAxis *a = &cg->k->axes[axis];
    for (int i = 0; i < s->is.n; i++) {
        const LayoutDigit *d = &s->is.digit[i];
        if (d->axis == axis && d->place != LAYOUT_REG) most += (d->count - 1) * d->step;
    }
    if (!a->whole || a->size->op != EX_CONST || most < a->size->i) return v;
    Val at = cg_plus(cg, cg_thread_part(cg, s->layout, axis), s->part[axis]);
    Val in = cg_below(cg, at, a->size->i);
    return cg_select(cg, in, v, cg_f32(cg, ex_identity(out->reduce)));
}

// ---- operands and positions

static Val param(Cg *cg, CgElem *elem, int k) {
    const CgSpace *s = &((const CgWalk *)elem->ctx)->space;
    return cg_gpu(cg)->hooks->element(cg, s->op->args.data[k], s->layout, s->part);
}

Val cg_walk_first(Cg *cg, const CgWalk *m, int axis) {
    return cg_add(cg, cg_tile_begin(cg, axis), cg_thread_part(cg, m->space.layout, axis));
}

static bool place(Cg *cg, CgElem *elem, int axis, Val *first, int *offset) {
    const CgWalk *m = elem->ctx;
    if (axis != m->space.columns) return false;
    *first = m->first ? m->first : cg_walk_first(cg, m, axis);
    *offset = m->space.part[axis];
    return true;
}

static bool varies(const CgElem *elem, int k, int axis) {
    return tile_has_axis(((const CgWalk *)elem->ctx)->space.op->args.data[k], axis);
}

static Val position(Cg *cg, CgElem *elem, int axis) {
    const CgWalk *m = elem->ctx;
    bool kept = axis == m->space.columns && m->first;
    return cg_plus(cg, kept ? m->first : cg_walk_first(cg, m, axis), m->space.part[axis]);
}

// ---- the map

CgWalk cg_walk_begin(Cg *cg, const TileOp *op, CgOrder order) {
    CgWalk m = {.space = space_of(cg, op, order)};
    m.elem = (CgElem){.lanes = 1,
                      .param = param,
                      .pos = position,
                      .place = place,
                      .varies = varies,
                      .lane_axis = -1};
    m.elem.copies = m.space.n;
    m.low = ARENA_ARRAY(cg->arena, Val, op->outs.n);
    m.odd = ARENA_ARRAY(cg->arena, Val *, op->outs.n);
    for (int i = 0; i < op->results.n; i++)
        m.odd[i] = ARENA_ARRAY(cg->arena, Val, cg_make(cg, op->results.data[i])->n);
    return m;
}

Val *cg_walk_register(Cg *cg, const CgWalk *m, int result) {
    const TileValue *v = m->space.op->results.data[result];
    return &cg->value[v->id].e[cg_slot(cg_fragment(cg, v), m->space.part)];
}

static void set(Cg *cg, CgWalk *m, int i, Val x) {
    const TileValue *v = m->space.op->results.data[i];
    if (cg_fragment(cg, v)->each == 1)
        *cg_walk_register(cg, m, i) = dtype_half(v->dtype) ? cg_round(cg, x, v->dtype) : x;
    else if (!m->space.odd)
        m->low[i] = x;
    else
        cg_gpu(cg)->hooks->pair(cg, m, i, m->low[i], x);
}

static void add(Cg *cg, CgWalk *m, int i, Val x) {
    const TileResult *out = &m->space.op->outs.data[i];
    Val *acc = cg_walk_register(cg, m, i);
    if (m->space.odd && cg_gpu(cg)->hooks->two_chains)
        acc = &m->odd[i][acc - cg->value[m->space.op->results.data[i]->id].e];
    x = masked(cg, &m->space, out, x);
    if (tile_is_marked(m->space.op, TILE_LATE))
        VEC_PUSH(cg->arena, &m->late, ((CgTerm){i, acc, x}));
    else
        *acc = cg_merge(cg, out->reduce, *acc, x);
}

void cg_walk_element(Cg *cg, CgWalk *m) {
    const TileOp *op = m->space.op;
    m->elem.ctx = m;
    cg_elem_begin(cg, &m->elem);
    for (int i = 0; i < op->outs.n; i++) {
        const TileResult *out = &op->outs.data[i];
        if (is_made(&m->space, i)) continue;
        Val x = cg_gpu(cg)->hooks->body ? cg_gpu(cg)->hooks->body(cg, m, i) : NULL;
        if (!x) x = cg_expr(cg, out->body, &m->elem);
        if (out->reduce == EX_CONST)
            set(cg, m, i, x);
        else
            add(cg, m, i, x);
    }
}

void cg_walk_end(Cg *cg, CgWalk *m) {
    for (int i = 0; i < m->late.n; i++) {
        const CgTerm *t = &m->late.data[i];
        *t->acc = cg_merge(cg, m->space.op->outs.data[t->result].reduce, *t->acc, t->x);
    }
    for (int i = 0; i < m->space.op->results.n; i++) {
        const TileResult *out = &m->space.op->outs.data[i];
        const TileValue *v = m->space.op->results.data[i];
        CgValue *value = &cg->value[v->id];
        if (out->reduce == EX_CONST) continue;
        for (int j = 0; j < value->n; j++) {
            if (m->odd[i][j]) value->e[j] = cg_merge(cg, out->reduce, value->e[j], m->odd[i][j]);
            if (!v->parts)
                value->e[j] =
                    cg_across(cg, &m->space.is, out->reduce_axis, out->reduce, value->e[j]);
        }
        if (!v->parts) cg_across_warps(cg, m->space.layout, out->reduce_axis, out->reduce, v);
    }
}

// ---- from registers to shared memory

bool cg_is_spread(const TileOp *map) {
    if (map->kind != TILE_MAP || !tile_makes_shared(map)) return false;
    for (int i = 0; i < map->args.n; i++)
        if (map->args.data[i]->home == HOME_FRAGMENT &&
            map->args.data[i]->rank == map->results.data[0]->rank)
            return true;
    return false;
}

// Where warps have copies, the first ones put theirs.
static Blk first_copies(Cg *cg, const TileOp *map) {
    Layout own = layout_restrict(
        &cg->k->layouts.data[tile_common_layout(cg->k, map, map->axes, map->naxes)].is, map->axes,
        map->naxes);
    int copies = layout_share(&own, LAYOUT_WARP, LAYOUT_COPIES);
    if (copies == 1) return NULL;
    Val first = cg_i32(cg, cg_gpu(cg)->threads / copies);
    return cg_if(cg, cg_less(cg, cg_gpu(cg)->tid, first), "spread");
}

// Whether a register's element and the next one's lie side by side, and are stored at once.
static bool is_pair(Cg *cg, const TileValue *v, const CgFragment *f, int r) {
    TileShared t = tile_shared(cg->p, cg->k, v);
    int rows = t.row_axis, part[2];
    if (f->each > 1 || v->dtype != DT_F32 || t.order != ORDER_PADDED || r + 1 >= f->registers)
        return false;
    for (int i = 0; i < 2; i++) part[i] = layout_part(&f->is, LAYOUT_REG, t.col_axis, r + i);
    bool same_row = rows < 0 || layout_part(&f->is, LAYOUT_REG, rows, r) ==
                                    layout_part(&f->is, LAYOUT_REG, rows, r + 1);
    const LayoutDigit *first = &f->is.digit[0]; // so that all other steps are even
    return same_row && first->axis == t.col_axis && first->place == LAYOUT_REG &&
           first->step == 1 && part[0] % 2 == 0 && part[1] == part[0] + 1 &&
           (rows < 0 || t.pitch % 8 == 0);
}

static void spread(Cg *cg, const TileOp *map, const TileValue *v) {
    const CgFragment *f = cg_fragment(cg, v);
    int layout = tile_common_layout(cg->k, map, map->axes, map->naxes);
    Val *e = cg->value[v->id].e;
    for (int r = 0; r < f->registers; r++) {
        int part[TILE_MAX_AXES];
        for (int a = 0; a < v->rank; a++)
            part[v->axis[a]] = layout_part(&f->is, LAYOUT_REG, v->axis[a], r * f->each);
        Val p = cg_shared_at(cg, v, layout, part);
        if (is_pair(cg, v, f, r)) {
            Val both = LLVMGetPoison(cg_vector(cg->f32, 2));
            for (int c = 0; c < 2; c++) both = cg_insert(cg, both, e[r + c], cg_i32(cg, c));
            LLVMSetAlignment(cg_store(cg, both, p), 8);
            r++;
        } else {
            cg_store(cg, f->each == 1 ? cg_write(cg, e[r], v->dtype) : e[r], p);
        }
    }
    cg->value[v->id].e = NULL, cg->value[v->id].n = 0; // others read it there
}

void cg_spread(Cg *cg, const TileOp *map) {
    for (int i = 0; i < map->results.n; i++) cg_alloc(cg, map->results.data[i]); // all warps read
    Blk done = first_copies(cg, map);
    for (int i = 0; i < map->results.n; i++) spread(cg, map, map->results.data[i]);
    if (done) cg_enter(cg, done);
}
