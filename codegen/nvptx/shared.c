// shared.c: where the elements of a tile lie: registers of a fragment, bytes of shared memory.
#include "codegen/nvptx/sm90.h"

int nv_blocks(const TileKernel *k) { return k->schedule.cluster > 1 ? k->schedule.cluster : 1; }

// ---- elements

static Val panel_offset(Cg *cg, const TileShared *t, Val row, Val col) {
    int columns = tile_panel_columns(t);
    Val panel = cg_udiv(cg, col, cg_i32(cg, columns));
    Val at = cg_times(cg, panel, t->rows * t->pitch);
    at = cg_add(cg, at, cg_times(cg, row, t->pitch));
    Val in = cg_times(cg, cg_and(cg, col, cg_i32(cg, columns - 1)), t->elem);
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

// ---- strips (strip.c)

Val nv_strip_group(Cg *cg) {
    const NvState *s = nv_state(cg);
    return s->roles ? s->roles->group : s->warp;
}

Val nv_strip_base(Cg *cg, const TileValue *v) {
    const NvState *s = nv_state(cg);
    Val mine = cg_times(cg, nv_strip_group(cg), tile_strip_pitch(cg->k, v));
    return cg_add(cg, cg_plus(cg, s->shared, s->gpu.offset[v->id]), mine);
}

static Val load_at(Cg *cg, const TileValue *v, Val from, Ty type, int offset, unsigned align) {
    Val by = cg_i32(cg, offset * dtype_bytes(v->dtype));
    Val x = cg_load(cg, type, cg_element(cg, cg->i8, nv_shared_ptr(cg, from), by));
    LLVMSetAlignment(x, align);
    return x;
}

// Registers go by two neighbours along an axis.
static bool has_pairs(const Cg *cg, int layout, int axis) {
    const LayoutDigit *first = &cg->k->layouts.data[layout].is.digit[0];
    return first->place == LAYOUT_REG && first->axis == axis && first->step == 1 &&
           first->count == 2;
}

// As the layout of who reads it has its columns. Of those that come in pairs one load for both.
static Val strip_element(Cg *cg, const TileValue *v, int layout, const int *part) {
    int elem = dtype_bytes(v->dtype), column = v->axis[v->rank - 1], col = part[column];
    Ty t = cg_dtype(cg, v->dtype);
    Val here = cg_thread_part(cg, layout, column);
    if (v->rank == 2) {
        Val row = cg_thread_part(cg, layout, v->axis[0]);
        row = cg_sub(cg, row, cg_times(cg, nv_strip_group(cg), tile_strip_rows(cg->k, v)));
        here = cg_plus(cg, cg_sub(cg, row, here), cg->k->axes[column].extent - 1);
        col = part[v->axis[0]] - col;
    }
    Val from = cg_add(cg, nv_strip_base(cg, v), cg_times(cg, here, elem));
    if (v->rank == 2 || !has_pairs(cg, layout, column))
        return cg_read(cg, load_at(cg, v, from, t, col, (unsigned)elem), v->dtype);
    Val both = load_at(cg, v, from, cg_vector(t, 2), col & ~1, 2 * (unsigned)elem);
    return cg_read(cg, cg_extract(cg, both, cg_i32(cg, col & 1)), v->dtype);
}

// ---- any tile

// Of a tile in shared memory that a map has in registers (turned.c).
static Val fetched_element(Cg *cg, const TileValue *v, int layout, const int *part) {
    Layout is = layout_restrict(&cg->k->layouts.data[layout].is, v->axis, v->rank);
    int number = layout_number(&is, LAYOUT_REG, part);
    if (v->rank == 1) return cg->value[v->id].e[number];
    return nv_unpack(cg, v->dtype, cg->value[v->id].e[number / 2], number % 2);
}

static bool is_of_pairs(const Cg *cg, const TileValue *v, int layout) {
    return v->rank == 1 && v->dtype == DT_F32 && has_pairs(cg, layout, v->axis[0]);
}

Val nv_element(Cg *cg, const TileValue *v, int layout, const int *part) {
    bool piped = nv_state(cg)->roles && v->home == HOME_SHARED && tile_pipe_of(v);
    if (piped && tile_shared(cg->p, cg->k, v).order == ORDER_THREADS)
        return nv90_given(cg, v, layout, part);
    if (piped && is_of_pairs(cg, v, layout)) return nv90_number(cg, v, layout, part[v->axis[0]]);
    if (v->home == HOME_SHARED && cg->value[v->id].e) return fetched_element(cg, v, layout, part);
    if (v->home == HOME_SHARED) return cg_shared_element(cg, v, layout, part);
    if (v->home == HOME_STRIP) return strip_element(cg, v, layout, part);
    const CgFragment *f = cg_fragment(cg, v);
    Val e = cg->value[v->id].e[cg_slot(f, part)];
    if (f->each == 1) return e;
    return nv_unpack(cg, v->dtype, e, layout_number(&f->is, LAYOUT_REG, part) % 2);
}
