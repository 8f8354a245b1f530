// shape.c: where the elements of a tile lie: registers of a fragment, bytes of shared memory.
#include "codegen/nvptx/sm90.h"

#include <assert.h>

bool nv_narrow(Dtype t) { return t == DT_F16 || t == DT_BF16; }

int nv_blocks(const TileKernel *k) { return k->schedule.cluster > 1 ? k->schedule.cluster : 1; }

Val nv_first_row(Cg *cg) { return nv_state(cg)->row0; }

NvShape nv_shape(Cg *cg, const TileValue *v) {
    const NvState *s = nv_state(cg);
    NvShape r = {.col_axis = -1, .mt = 1, .nt = 1};
    for (int i = 0; i < v->rank; i++) {
        if (v->axis[i] == s->row_axis) {
            r.rows = true;
            r.mt = s->mt;
        } else {
            assert(r.col_axis < 0 && "a fragment has one axis along its columns");
            r.col_axis = v->axis[i];
            r.nt = cg->k->axes[v->axis[i]].extent / 8;
        }
    }
    r.packed = r.col_axis >= 0 && nv_narrow(v->dtype);
    return r;
}

int nv_count(NvShape s) {
    int n = (s.rows ? 2 * s.mt : 1) * (s.col_axis >= 0 ? 2 * s.nt : 1);
    return s.packed ? n / 2 : n;
}

int nv_index(NvShape s, int m, int n, int r, int c) {
    if (s.col_axis < 0) return s.rows ? 2 * m + r : 0;
    int i = s.rows ? 4 * (m * s.nt + n) + 2 * r + c : 2 * n + c;
    return s.packed ? i / 2 : i;
}

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
        .row_axis = -1, .col_axis = v->axis[v->rank - 1], .rows = 1, .elem = dtype_bytes(v->dtype)};
    assert(v->rank == 1 || v->rank == 2);
    if (v->rank == 2) {
        t.row_axis = v->axis[0];
        if (k->axes[t.row_axis].whole) t.row_axis = v->axis[1], t.col_axis = v->axis[0];
        t.rows = k->axes[t.row_axis].extent;
    }
    t.cols = k->axes[t.col_axis].extent;
    t.panels = in_panels(k, v);
    if (t.panels) {
        t.pitch = NV90_PITCH;
        t.bytes = (t.cols + NV90_PANEL - 1) / NV90_PANEL * t.rows * t.pitch;
        assert(t.rows % 8 == 0 && nv_narrow(v->dtype));
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
        if (op->kind != TILE_ALLOC && op->kind != TILE_MAP) continue;
        for (int i = 0; i < op->results.n; i++)
            if (op->results.data[i]->home == HOME_SHARED)
                at = place(k, op->results.data[i], at, offset);
    }
    return at;
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
    Val at = LLVMBuildMul(cg->b, col, cg_i32(cg, t->elem), "");
    if (!row) return at;
    return LLVMBuildAdd(cg->b, at, LLVMBuildMul(cg->b, row, cg_i32(cg, t->pitch), ""), "");
}

static Val shared_element(Cg *cg, const TileValue *v, int m, int n, int r, int c) {
    const NvState *s = nv_state(cg);
    NvTile t = nv_tile(cg->k, v);
    Val col = LLVMBuildAdd(cg->b, s->col0, cg_i32(cg, 8 * n + c), "");
    Val row = NULL;
    if (t.row_axis >= 0) {
        assert(t.row_axis == s->row_axis &&
               "a shared operand of a fragment has its rows or is a vector");
        row = LLVMBuildAdd(cg->b, s->row0, cg_i32(cg, 16 * m + 8 * r), "");
    }
    Val at = LLVMBuildAdd(cg->b, cg->value[v->id].mem, nv_tile_offset(cg, &t, row, col), "");
    Val x = LLVMBuildLoad2(cg->b, cg_dtype(cg, v->dtype), nv_shared_ptr(cg, at), "");
    return cg_read(cg, x, v->dtype);
}

Val nv_element(Cg *cg, const TileValue *v, int m, int n, int r, int c) {
    if (v->home == HOME_SHARED) return shared_element(cg, v, m, n, r, c);
    if (v->home == HOME_STRIP) return nv_strip_element(cg, v, m, n, r, c);
    NvShape s = nv_shape(cg, v);
    Val e = cg->value[v->id].e[nv_index(s, m, n, r, c)];
    return s.packed ? nv_unpack(cg, v->dtype, e, c) : e;
}
