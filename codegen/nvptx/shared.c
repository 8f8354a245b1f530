// shared.c: where the elements of a tile lie: registers of a fragment, bytes of shared memory.
#include "codegen/nvptx/sm90.h"

#include <assert.h>

bool nv90_has_roles(const TileKernel *k) {
    for (const TileOp *op = k->body.first; op; op = op->next)
        if (op->kind == TILE_ROLE) return true;
    return false;
}

int nv_blocks(const TileKernel *k) { return k->schedule.cluster > 1 ? k->schedule.cluster : 1; }

// ---- shared memory

// Pipes are filled by tensor copies; so is a tensor from a buffer that a store goes through.
static bool in_panels(const TileKernel *k, const TileValue *v) {
    if (!v->def) return false;
    if (v->def->kind == TILE_PIPE || tile_pipe_of(v)) return true;
    if (v->def->kind == TILE_MAP) // weights on their way to a product
        return nv90_has_roles(k) && v->rank == 2 && v->home == HOME_SHARED;
    if (v->def->kind != TILE_ALLOC) return false;
    for (const TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op))
        if (op->kind == TILE_STORE && op->args.n > 1 && op->args.data[1] == v) return true;
    return false;
}

// Columns are what is contiguous in the tensor, which is the axis that is not tiled; of a vector
// its only axis.
NvTile nv_tile(const TileKernel *k, const TileValue *v) {
    NvTile t = {
        .row_axis = -1, .col_axis = -1, .rows = 1, .cols = 1, .elem = dtype_bytes(v->dtype)};
    assert(v->rank <= 2);
    if (v->rank) t.col_axis = v->axis[v->rank - 1];
    if (v->rank == 2) {
        t.row_axis = v->axis[0];
        if (k->axes[t.row_axis].whole) t.row_axis = v->axis[1], t.col_axis = v->axis[0];
        t.rows = k->axes[t.row_axis].extent;
    }
    if (v->rank) t.cols = k->axes[t.col_axis].extent;
    t.panels = in_panels(k, v);
    if (t.panels) {
        t.pitch = NV90_PITCH;
        t.bytes = (t.cols + NV90_PANEL - 1) / NV90_PANEL * t.rows * t.pitch;
        assert(t.rows % 8 == 0 && dtype_half(v->dtype));
        return t;
    }
    t.pitch = t.cols * t.elem + (v->rank == 2 ? 16 : 0);
    t.bytes = (t.rows * t.pitch + 15) & ~15;
    return t;
}

static int place(const TileKernel *k, const TileValue *v, int at, int *offset) {
    if (offset) offset[v->id] = at;
    return at + nv_tile(k, v).bytes * (v->stages > 1 ? v->stages : 1);
}

static int place_block(const TileKernel *k, const TileBlock *b, int at, int *offset) {
    for (const TileOp *op = b->first; op; op = op->next) {
        if (op->kind == TILE_LOOP) at = place_block(k, &op->body, at, offset);
        if (op->kind != TILE_ALLOC && !tile_makes_shared(op)) continue;
        for (int i = 0; i < op->results.n; i++)
            if (op->results.data[i]->home == HOME_SHARED)
                at = place(k, op->results.data[i], at, offset);
    }
    return at;
}

// ---- strips: numbers of keys or diagonals that a group of threads shares (strip.c)

int nv_strip_warps(const TileKernel *k) { return nv90_has_roles(k) ? NV90_GROUP / NV_WARP : 1; }

int nv_strip_rows(const TileKernel *k, const TileValue *v) {
    return k->axes[v->axis[0]].extent / k->schedule.warps * nv_strip_warps(k);
}

bool nv_is_strip(const TileOp *op) {
    return op && op->kind == TILE_MAP && op->results.data[0]->home == HOME_STRIP;
}

int nv_strip_columns(const TileKernel *k, const TileValue *v) {
    return k->axes[v->axis[v->rank - 1]].extent;
}

int nv_strip_count(const TileKernel *k, const TileValue *v) {
    return nv_strip_columns(k, v) + (v->rank == 2 ? nv_strip_rows(k, v) - 1 : 0);
}

int nv_strip_pitch(const TileKernel *k, const TileValue *v) { // of a group's
    return (nv_strip_count(k, v) * dtype_bytes(v->dtype) + 15) & ~15;
}

static int bytes_of(const TileKernel *k, const TileValue *v) {
    return nv_strip_pitch(k, v) * (k->schedule.warps / nv_strip_warps(k));
}

int nv_place_strips(const TileKernel *k, int at, int *offset) {
    int end = at;
    for (const TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op)) {
        if (!nv_is_strip(op)) continue;
        int mine = at;
        for (const TileOp *in = op->block->first; in != op; in = in->next)
            if (nv_is_strip(in)) mine += bytes_of(k, in->results.data[0]);
        if (offset) offset[op->results.data[0]->id] = mine;
        mine += bytes_of(k, op->results.data[0]);
        if (mine > end) end = mine;
    }
    return end;
}

int nv_shared_layout(const TileKernel *k, int *offset) {
    if (offset)
        for (int i = 0; i < k->nvalues; i++) offset[i] = -1;
    return nv_place_strips(k, place_block(k, &k->body, 0, offset), offset);
}

// ---- elements

static Val panel_offset(Cg *cg, const NvTile *t, Val row, Val col) {
    Val panel = LLVMBuildLShr(cg->b, col, cg_i32(cg, 6), "");
    Val at = LLVMBuildMul(cg->b, panel, cg_i32(cg, t->rows * t->pitch), "");
    at = LLVMBuildAdd(cg->b, at, LLVMBuildMul(cg->b, row, cg_i32(cg, t->pitch), ""), "");
    Val in =
        LLVMBuildMul(cg->b, LLVMBuildAnd(cg->b, col, cg_i32(cg, 63), ""), cg_i32(cg, t->elem), "");
    Val key = LLVMBuildMul(cg->b, LLVMBuildAnd(cg->b, row, cg_i32(cg, 7), ""), cg_i32(cg, 16), "");
    return LLVMBuildAdd(cg->b, at, LLVMBuildXor(cg->b, in, key, ""), "");
}

Val nv_tile_offset(Cg *cg, const NvTile *t, Val row, Val col) {
    if (t->panels) return panel_offset(cg, t, row, col);
    if (t->col_axis < 0) return cg_i32(cg, 0);
    Val at = LLVMBuildMul(cg->b, col, cg_i32(cg, t->elem), "");
    if (!row) return at;
    return LLVMBuildAdd(cg->b, at, LLVMBuildMul(cg->b, row, cg_i32(cg, t->pitch), ""), "");
}

static Val shared_element(Cg *cg, const TileValue *v, int layout, const int *part) {
    NvTile t = nv_tile(cg->k, v);
    Val at[2] = {NULL, NULL};
    for (int i = 0; i < 2; i++) {
        int axis = i ? t.row_axis : t.col_axis;
        if (axis < 0) continue;
        at[i] = LLVMBuildAdd(cg->b, cg_thread_part(cg, layout, axis), cg_i32(cg, part[axis]), "");
    }
    Val place = LLVMBuildAdd(cg->b, cg->value[v->id].mem, nv_tile_offset(cg, &t, at[1], at[0]), "");
    Val x = LLVMBuildLoad2(cg->b, cg_dtype(cg, v->dtype), nv_shared_ptr(cg, place), "");
    return cg_read(cg, x, v->dtype);
}

static Val load_at(Cg *cg, const TileValue *v, Ty type, int offset, unsigned align) {
    Val by = cg_i32(cg, offset * dtype_bytes(v->dtype));
    Val p = LLVMBuildGEP2(cg->b, cg->i8, cg->value[v->id].mem, &by, 1, "");
    Val x = LLVMBuildLoad2(cg->b, type, p, "");
    LLVMSetAlignment(x, align);
    return x;
}

// Columns come in pairs: one load for both.
static Val strip_element(Cg *cg, const TileValue *v, const int *part) {
    unsigned elem = (unsigned)dtype_bytes(v->dtype);
    Ty t = cg_dtype(cg, v->dtype);
    int col = part[v->axis[v->rank - 1]];
    if (v->rank == 2) return cg_read(cg, load_at(cg, v, t, part[v->axis[0]] - col, elem), v->dtype);
    Val both = load_at(cg, v, cg_vector(t, 2), col & ~1, 2 * elem);
    return cg_read(cg, LLVMBuildExtractElement(cg->b, both, cg_i32(cg, col & 1), ""), v->dtype);
}

Val nv_element(Cg *cg, const TileValue *v, int layout, const int *part) {
    if (v->home == HOME_SHARED) return shared_element(cg, v, layout, part);
    if (v->home == HOME_STRIP) return strip_element(cg, v, part);
    const CgFragment *f = cg_fragment(cg, v);
    Val e = cg->value[v->id].e[cg_slot(f, part)];
    if (f->each == 1) return e;
    return nv_unpack(cg, v->dtype, e, layout_number(&f->is, LAYOUT_REG, part) % 2);
}
