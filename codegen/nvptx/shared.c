// shared.c: where the elements of a tile lie: registers of a fragment, bytes of shared memory.
#include "codegen/nvptx/sm90.h"

int nv_blocks(const TileKernel *k) { return k->schedule.cluster > 1 ? k->schedule.cluster : 1; }

// ---- elements

static Val panel_offset(Cg *cg, const TileShared *t, Val row, Val col) {
    Val panel = cg_lshr(cg, col, cg_i32(cg, 6));
    Val at = cg_times(cg, panel, t->rows * t->pitch);
    at = cg_add(cg, at, cg_times(cg, row, t->pitch));
    Val in = cg_times(cg, cg_and(cg, col, cg_i32(cg, 63)), t->elem);
    Val key = cg_times(cg, cg_and(cg, row, cg_i32(cg, 7)), 16);
    return cg_add(cg, at, cg_xor(cg, in, key));
}

Val nv_tile_offset(Cg *cg, const TileShared *t, Val row, Val col) {
    if (t->order == ORDER_PANELS) return panel_offset(cg, t, row, col);
    if (t->col_axis < 0) return cg_i32(cg, 0);
    Val at = cg_times(cg, col, t->elem);
    if (!row) return at;
    return cg_add(cg, at, cg_times(cg, row, t->pitch));
}

static Val load_at(Cg *cg, const TileValue *v, Ty type, int offset, unsigned align) {
    Val by = cg_i32(cg, offset * dtype_bytes(v->dtype));
    Val x = cg_load(cg, type, cg_element(cg, cg->i8, cg->value[v->id].mem, by));
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
    return cg_read(cg, cg_extract(cg, both, cg_i32(cg, col & 1)), v->dtype);
}

// Of a tile in shared memory that a map has in registers (turned.c).
static Val fetched_element(Cg *cg, const TileValue *v, int layout, const int *part) {
    Layout is = layout_restrict(&cg->k->layouts.data[layout].is, v->axis, v->rank);
    int number = layout_number(&is, LAYOUT_REG, part);
    if (v->rank == 1) return cg->value[v->id].e[number];
    return nv_unpack(cg, v->dtype, cg->value[v->id].e[number / 2], number % 2);
}

// Registers go by two neighbours.
static bool is_of_pairs(const Cg *cg, const TileValue *v, int layout) {
    const LayoutDigit *first = &cg->k->layouts.data[layout].is.digit[0];
    return v->rank == 1 && v->dtype == DT_F32 && first->place == LAYOUT_REG &&
           first->axis == v->axis[0] && first->step == 1 && first->count == 2;
}

Val nv_element(Cg *cg, const TileValue *v, int layout, const int *part) {
    bool piped = nv_state(cg)->roles && v->home == HOME_SHARED && tile_pipe_of(v);
    if (piped && tile_shared(cg->p, cg->k, v).order == ORDER_THREADS)
        return nv90_given(cg, v, layout, part);
    if (piped && is_of_pairs(cg, v, layout)) return nv90_number(cg, v, layout, part[v->axis[0]]);
    if (v->home == HOME_SHARED && cg->value[v->id].e) return fetched_element(cg, v, layout, part);
    if (v->home == HOME_SHARED) return cg_shared_element(cg, v, layout, part);
    if (v->home == HOME_STRIP) return strip_element(cg, v, part);
    const CgFragment *f = cg_fragment(cg, v);
    Val e = cg->value[v->id].e[cg_slot(f, part)];
    if (f->each == 1) return e;
    return nv_unpack(cg, v->dtype, e, layout_number(&f->is, LAYOUT_REG, part) % 2);
}
