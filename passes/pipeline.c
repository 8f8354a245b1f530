// pipeline.c: the passes, in order.
//
// In: a streaming form. Out: a program that a target can lower, or NULL with an error in diags.
// Holds between any two passes: tile_verify.
#include "passes.h"
#include "rewrite.h"
#include "schedule.h"

#include <assert.h>

static void verify(const TileProgram *p) {
#ifndef NDEBUG
    Arena *scratch = arena_new();
    Diags diags;
    diag_init(&diags, scratch);
    bool ok = tile_verify(p, &diags);
    if (!ok) diag_print(&diags, stderr); // on the way to the assertion only
    assert(ok);
    arena_free(scratch);
#else
    (void)p;
#endif
}

// Out of maps and loops what need not be in them, then maps together.
static void shape(TileProgram *p) {
    pass_tidy(p);
    pass_hoist(p);
    pass_fuse(p);
    verify(p);
}

bool pass_accepts(const RowProgram *row, Diags *diags) {
    if (row->D <= PASS_MAX_DIM && row->Dv <= PASS_MAX_DIM) return true;
    bool queries = row->D > PASS_MAX_DIM;
    diag_error(diags, row->span, "%s is %d; head dimensions up to %d are supported",
               queries ? "D" : "Dv", queries ? row->D : row->Dv, PASS_MAX_DIM);
    return false;
}

TileProgram *pass_algorithm(Arena *a, const Stream *s, const PassOptions *o) {
    PassOptions effective = *o;
    effective.split = pass_splits(o);
    TileProgram *p = pass_build(a, s, &effective);
    verify(p);
    shape(p);
    return p;
}

TileProgram *pass_pipeline(Arena *a, const Stream *s, const PassOptions *o, Diags *diags) {
    if (!pass_accepts(s->row, diags)) return NULL;
    TileProgram *p = pass_algorithm(a, s, o);
    if (!pass_tile(p, o, diags)) return NULL;
    pass_set_splits(p);
    verify(p);
    pass_classify(p);
    verify(p);
    pass_settle(p);
    shape(p); // masks are in the loops now, and full tiles have none
    if (!pass_schedule(p, o, diags)) return NULL;
    verify(p);
    return p;
}
