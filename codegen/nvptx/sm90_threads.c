// sm90_threads.c: f32 that goes from one role to another: matrices, from each thread to the same thread, and numbers of rows.
//
// In: a fragment, and a pipe's stage of ORDER_THREADS. Out: its registers there, four at a time, and elements of it as maps of the other
// role read them: no thread reads what another one wrote. Of a vector one lane writes each number, and every role reads it.
#include "codegen/nvptx/sm90.h"

#include <assert.h>

// Where a thread has four registers of its own, from the e-th on: those of all threads lie side by side.
static Val thread_place(Cg *cg, Val stage, int e) {
    Val first = cg_add(cg, stage, cg_times(cg, nv_state(cg)->gpu.tid, HOME_PIECE));
    return cg_plus(cg, first, e / 4 * HOME_PIECE * nv_state(cg)->gpu.threads);
}

void nv90_write_threads(Cg *cg, const TileValue *v, Val stage) {
    const CgValue *value = &cg->value[v->id];
    assert(v->dtype == DT_F32 && value->n % 4 == 0);
    for (int e = 0; e < value->n; e += 4) {
        Val x[4];
        for (int i = 0; i < 4; i++) x[i] = cg_bitcast(cg, value->e[e + i], cg->i32);
        nv90_store_words(cg, thread_place(cg, stage, e), x);
    }
}

Val nv90_given(Cg *cg, const TileValue *v, int layout, const int *part) {
    Layout is = layout_restrict(&cg->k->layouts.data[layout].is, v->axis, v->rank);
    int e = layout_number(&is, LAYOUT_REG, part);
    CgValue *value = &cg->value[v->id];
    if (!value->e) value->e = ARENA_ARRAY(cg->arena, Val, layout_count(&is, LAYOUT_REG));
    if (!value->e[e]) {
        Val x[4], *four = &value->e[e / 4 * 4];
        nv90_load_words(cg, thread_place(cg, value->mem, e), x);
        for (int i = 0; i < 4; i++) four[i] = cg_bitcast(cg, x[i], cg->f32);
    }
    return value->e[e];
}

void nv90_write_rows(Cg *cg, const TileValue *v, Val stage) {
    const CgFragment *f = cg_fragment(cg, v);
    const CgValue *value = &cg->value[v->id];
    Blk done = cg_if(cg, cg_is_first_copy(cg, &f->is), "rows");
    for (int e = 0; e < value->n; e++) {
        int first = layout_part(&f->is, LAYOUT_REG, v->axis[0], e);
        Val row = cg_plus(cg, cg_thread_part(cg, v->layout, v->axis[0]), first);
        cg_store(cg, value->e[e], nv_shared_ptr(cg, cg_add(cg, stage, cg_times(cg, row, 4))));
    }
    cg_enter(cg, done);
}
