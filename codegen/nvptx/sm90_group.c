// sm90_group.c: products of warpgroups in kernels without roles.
//
// In: a TILE_MMA whose result has 64 rows for each warpgroup, or that many columns of the same 64 rows. The right operand
// lies in shared memory in panels; the left one does too, either way round, or is a fragment of pairs. What was stored
// there went through a proxy fence and a barrier. Out: wgmmas and the wait for them.
#include "codegen/nvptx/sm90.h"

#include <assert.h>
#include <string.h>

enum { K = 16 }; // contracted elements of an instruction

typedef struct Operand {
    const TileValue *v;
    TileShared tile;
    bool turned; // the contracted axis runs along its rows
} Operand;

static Operand operand(Cg *cg, const TileValue *v, int contracted) {
    Operand o = {.v = v};
    if (v->home != HOME_SHARED) return o;
    o.tile = tile_shared(cg->p, cg->k, v);
    o.turned = o.tile.row_axis == contracted;
    assert(o.tile.order == ORDER_PANELS);
    return o;
}

// What to add to a descriptor, in its units of 16 bytes, at each step.
static int *steps(Cg *cg, const Operand *o, int n) {
    int *s = ARENA_ARRAY(cg->arena, int, n);
    for (int k = 0; k < n; k++)
        s[k] = (o->turned ? k * K * HOME_PITCH
                          : k / 4 * o->tile.rows * HOME_PITCH + k % 4 * K * o->tile.elem) /
               16;
    return s;
}

// From the warpgroup's first row or column along an axis of the result on.
static Val descriptor(Cg *cg, const Operand *o, const TileValue *result, int axis) {
    const Layout *l = &cg->k->layouts.data[result->layout].is;
    int warps = layout_share(l, LAYOUT_WARP, axis), all = cg->k->axes[axis].extent;
    bool rows = axis == cg_fragment(cg, result)->rows;
    int groups = rows ? warps / 4 : warps; // that share the axis
    Val at = cg->value[o->v->id].mem;
    if (groups > 1) {
        int each = all / groups; // a group's share
        int bytes = !o->turned               ? each * HOME_PITCH
                    : each % HOME_PANEL == 0 ? each / HOME_PANEL * o->tile.rows * HOME_PITCH
                                             : -1;
        assert(bytes > 0 && each % 8 == 0 &&
               "a warpgroup has whole groups of rows, or whole panels");
        Val group = cg_lshr(cg, nv_state(cg)->warp, cg_i32(cg, 2));
        at = cg_add(cg, at, cg_times(cg, group, bytes));
    }
    return nv90_descriptor(cg, nv90_place(cg, at), o->turned ? o->tile.rows * HOME_PITCH : 16,
                           8 * HOME_PITCH);
}

static Val *left_registers(Cg *cg, const TileValue *v, int contracted, int n) {
    const CgFragment *f = cg_fragment(cg, v);
    Val *r = ARENA_ARRAY(cg->arena, Val, 4 * n);
    assert(f->each == 2 && f->columns == contracted && cg_share(f, f->rows) == 2);
    (void)contracted;
    for (int k = 0; k < n; k++)
        for (int i = 0; i < 4; i++)
            r[4 * k + i] = cg->value[v->id].e[cg_register(f, 8 * (i % 2), K * k + 8 * (i / 2))];
    return r;
}

void nv90_group_mma(Cg *cg, const TileOp *op) {
    const TileValue *v = op->results.data[0], *sum = op->args.n > 2 ? op->args.data[2] : NULL;
    const CgFragment *f = cg_fragment(cg, v);
    int contracted = tile_contracted_axis(op);
    bool swapped = !tile_has_axis(op->args.data[0], f->rows);
    Operand left = operand(cg, op->args.data[swapped], contracted),
            right = operand(cg, op->args.data[!swapped], contracted);
    CgValue *value = cg_make(cg, v);
    for (int i = 0; sum && i < value->n; i++) value->e[i] = cg->value[sum->id].e[i];
    assert(cg_share(f, f->rows) == 2 && right.v->home == HOME_SHARED);
    Nv90Product p = {.dtype = right.v->dtype,
                     .columns = 2 * value->n,
                     .steps = cg->k->axes[contracted].extent / K,
                     .transposed = right.turned,
                     .left_transposed = left.turned,
                     .accumulate = sum != NULL,
                     .acc = value->e};
    p.right = descriptor(cg, &right, v, f->columns);
    p.right_step = steps(cg, &right, p.steps);
    if (left.v->home == HOME_SHARED) {
        p.left = descriptor(cg, &left, v, f->rows);
        p.left_step = steps(cg, &left, p.steps);
    } else {
        p.registers = left_registers(cg, left.v, contracted, p.steps);
    }
    nv90_wgmma(cg, &p, 0, p.steps);
    if (op->async)
        VEC_PUSH(cg->arena, &nv_state(cg)->flies, value);
    else
        nv90_wgmma_wait(cg, 0, value->e, value->n);
}

// For all that are in flight.
void nv90_group_wait(Cg *cg) {
    NvState *s = nv_state(cg);
    int n = 0;
    for (int i = 0; i < s->flies.n; i++) n += s->flies.data[i]->n;
    Val *all = ARENA_ARRAY(cg->arena, Val, n), *at = all;
    for (int i = 0; i < s->flies.n; at += s->flies.data[i++]->n)
        memcpy(at, s->flies.data[i]->e, sizeof *at * (size_t)s->flies.data[i]->n);
    nv90_wgmma_wait(cg, 0, all, n);
    at = all;
    for (int i = 0; i < s->flies.n; at += s->flies.data[i++]->n)
        memcpy(s->flies.data[i]->e, at, sizeof *at * (size_t)s->flies.data[i]->n);
    s->flies.n = 0;
}
