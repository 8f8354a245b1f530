// sm90_stores.c: what leaves a kernel in roles through shared memory, where there is room: tiles of outputs, and sums that are added to
// memory.
#include "ir/tile_blocks.h"
#include "ir/tile_shared.h"
#include "passes/schedule/sm90.h"

enum { PANEL = 64 }; // columns

static TileValue *buffer_for(Sm90 *s, const TileOp *store, Dtype t, const uint8_t *axes) {
    TileOp *op = tile_op(s->p, s->k, NULL, TILE_ALLOC, store->span), *roles = s->k->body.first;
    while (roles->kind != TILE_ROLE) roles = roles->next;
    tile_insert_before(roles, op);
    const char *name = arena_printf(s->p->arena, "%sb", s->p->tensors.data[store->tensor].name);
    TileValue *b = tile_result(s->p, s->k, op, name, t, axes, 2);
    b->home = HOME_SHARED;
    return b;
}

// ---- outputs

// Columns of a buffer for a tile of so many, all or an even part of them; 0: there is no room.
static int buffered_columns(const Sm90 *s, int stored) {
    int columns = sm90_value_columns(s->p, s->k);
    int room = target_get(s->p->target)->shared_bytes - tile_shared_layout(s->p, s->k, NULL, NULL);
    while (2 * 64 * s->shape.warpgroups * columns > room) {
        columns /= 2;
        if (columns % PANEL || stored % columns) return 0;
    }
    return columns;
}

// The axis of that many of a tile's columns.
static uint8_t columns_axis(Sm90 *s, int all, int columns) {
    if (s->k->axes[all].extent <= columns) return (uint8_t)all;
    int axis = tile_axis(s->k, arena_printf(s->p->arena, "%sb", s->k->axes[all].name),
                         ex_i32(s->x, columns), true);
    s->k->axes[axis].extent = columns;
    return (uint8_t)axis;
}

// A buffer for what is stored, where there is room.
static TileValue *store_buffer(Sm90 *s, const TileOp *store) {
    const TileTensor *t = &s->p->tensors.data[store->tensor];
    const TileValue *v = store->args.data[0];
    if (t->role != TENSOR_O || !dtype_half(t->dtype) || v->rank != 2 || store->add ||
        s->k->naxes == TILE_MAX_AXES)
        return NULL;
    int columns = buffered_columns(s, s->k->axes[v->axis[1]].extent);
    if (!columns) return NULL;
    uint8_t axes[] = {v->axis[0], columns_axis(s, v->axis[1], columns)};
    return buffer_for(s, store, t->dtype, axes);
}

void sm90_stores(Sm90 *s) {
    for (TileOp *op = tile_next(&s->k->body, NULL); op; op = tile_next(&s->k->body, op)) {
        if (op->kind != TILE_STORE || op->args.n != 1) continue;
        TileValue *b = store_buffer(s, op);
        if (b) tile_arg(s->p, op, b);
    }
}

// ---- sums

static bool buffer_fits(const Sm90 *s, const TileOp *store) {
    const TileValue *v = store->args.data[0];
    int bytes = s->k->axes[v->axis[0]].extent * s->k->axes[v->axis[1]].extent * 4;
    return tile_shared_layout(s->p, s->k, NULL, NULL) + bytes <=
           target_get(s->p->target)->shared_bytes;
}

// Gradients of keys leave through the same buffer, which is free when the loops are done, where a warp's part has room for a panel of its rows.
static bool goes_behind(const Sm90 *s, const TileOp *store) {
    const TileValue *v = store->args.data[0];
    return !store->add && v->rank == 2 && dtype_half(s->p->tensors.data[store->tensor].dtype);
}

// All through one, where there is room: each warp has its own part of it. A warp asks for that once behind the loops.
void sm90_sum_through(Sm90 *s) {
    TileOp *last = NULL;
    TileValue *buffer = NULL;
    for (TileOp *op = tile_next(&s->k->body, NULL); op; op = tile_next(&s->k->body, op)) {
        if (op->kind != TILE_STORE || op->args.n != 1) continue;
        if (op->add ? !tile_may_block(&s->p->tensors.data[op->tensor])
                    : !buffer || !goes_behind(s, op) || !tile_own_panels(s->p, s->k, buffer) ||
                          (last && op->prev != last))
            continue;
        if (!buffer && !buffer_fits(s, op)) return;
        if (!buffer) buffer = buffer_for(s, op, DT_F32, op->args.data[0]->axis);
        tile_arg(s->p, op, buffer);
        if (!op->add) last = op;
    }
}
