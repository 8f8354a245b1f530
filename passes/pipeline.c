// pipeline.c: the passes, in order.
//
// In: a streaming form. Out: a program that a target can lower, or NULL with an error in diags.
// Holds between any two passes: tile_verify. What breaks that is a fault of the compiler, and an error, too.
#include "ir/tile_shared.h"
#include "passes/passes.h"
#include "passes/schedule/schedule.h"
#include "passes/tile/recur.h"
#include "passes/tile/rewrite.h"

#include <string.h>

// ---- one pass

static const Pass passes[] = {
#define PASS(name, wants, run, what) {#name, what, wants},
#include "passes/passes.def"
#undef PASS
};

const Pass *pass_get(PassId id) { return &passes[id]; }

bool pass_find(const char *name, PassId *out) {
    for (int i = 0; i < PASS_COUNT; i++)
        if (!strcmp(passes[i].name, name)) return *out = (PassId)i, true;
    return false;
}

// The extents, and with them the schedule.
static bool choose(TileProgram *p, const PassOptions *o, Diags *diags) {
    PassOptions own = *o;
    if (!own.schedule.said && !p->batch && !p->phase)
        own.schedule = pass_counted(p->arena, p, &own);
    if (!pass_tile(p, &own, diags)) return false;
    pass_set_splits(p);
    pass_set_segments(p);
    return true;
}

static bool run(TileProgram *p, PassId id, const PassOptions *o, Diags *diags) {
    switch (id) {
#define PASS(name, wants, run, what)                                                               \
    case PASS_##name:                                                                              \
        return run;
#include "passes/passes.def"
#undef PASS
    case PASS_COUNT: break;
    }
    return false;
}

bool pass_run(TileProgram *p, PassId id, const PassOptions *o, Diags *diags) {
    bool good = run(p, id, o, diags);
    if (good && o->seen) o->seen(o->seen_ctx, &passes[id], p);
    return good;
}

static bool verify(const TileProgram *p, PassId after, Diags *diags) {
    Arena *scratch = arena_new();
    Diags wrong = diag_list(scratch);
    bool ok = tile_verify(p, &wrong);
    if (!ok) {
        diags->internal = true;
        diag_error(diags, wrong.first->span,
                   "internal: after pass '%s', %s: this is a fault of attnc, not of the source",
                   passes[after].name, wrong.first->message);
    }
    arena_free(scratch);
    return ok;
}

// ---- all of them

// Out of maps and loops what need not be in them, then maps together; once more when masks are in the loops,
// and full tiles have none.
static const PassId order[] = {PASS_shifts, PASS_tidy,     PASS_hoist,    PASS_fuse,
                               PASS_tile,   PASS_shifts,   PASS_classify, PASS_settle,
                               PASS_tidy,   PASS_hoist,    PASS_fuse,     PASS_shifts,
                               PASS_plans,  PASS_schedule, PASS_sections, PASS_meanwhile};
enum { FUSED = 4, TILED = 5, CLASSED = 12, ALL = sizeof order / sizeof *order };

int pass_order(const PassId **out) { return *out = order, ALL; }

// The passes from one place in the order to another.
static bool steps(TileProgram *p, int from, int to, const PassOptions *o, Diags *diags) {
    for (int i = from; i < to; i++)
        if (!pass_run(p, order[i], o, diags) || !verify(p, order[i], diags)) return false;
    return true;
}

static bool accepts(Span span, int D, int Dv, Diags *diags) {
    if (D <= PASS_MAX_DIM && Dv <= PASS_MAX_DIM) return true;
    bool queries = D > PASS_MAX_DIM;
    return diag_refuse(diags, span, "%s is %d; head dimensions up to %d are supported",
                       queries ? "D" : "Dv", queries ? D : Dv, PASS_MAX_DIM);
}

static bool accepts_rows(const RowProgram *row, Diags *diags) {
    int width[PASS_MAX_WIDTHS], n = pass_widths(row, width);
    if (n > PASS_MAX_WIDTHS)
        diag_error(diags, row->span, "'%s' multiplies rows of %d widths beside D: at most %d",
                   row->name, n, PASS_MAX_WIDTHS);
    for (int i = 0; i < n && n <= PASS_MAX_WIDTHS; i++)
        if (width[i] > PASS_MAX_DIM)
            return diag_refuse(diags, row->span,
                               "'%s' multiplies rows of %d channels; up to %d are supported",
                               row->name, width[i], PASS_MAX_DIM);
    return n <= PASS_MAX_WIDTHS;
}

bool pass_accepts(const RowProgram *row, Diags *diags) {
    return accepts(row->span, row->D, row->Dv, diags) && accepts_rows(row, diags);
}

static TileProgram *algorithm(TileProgram *p, const PassOptions *o, Diags *diags) {
    if (!verify(p, PASS_build, diags)) return NULL;
    if (o->seen) o->seen(o->seen_ctx, &passes[PASS_build], p);
    return steps(p, 0, FUSED, o, diags) ? p : NULL;
}

// What a forward keeps is called saved0, saved1, .. in every call.
static bool accepts_names(const RowProgram *row, Diags *diags) {
    for (int i = 0; i < row->inputs.n; i++) {
        const RowInput *in = &row->inputs.data[i];
        const char *number = strncmp(in->name, "saved", 5) ? "" : in->name + 5;
        if (!*number || number[strspn(number, "0123456789")]) continue;
        return diag_refuse(diags, in->span, "input '%s' has the name of a tensor of the backward",
                           in->name);
    }
    return true;
}

TileProgram *pass_algorithm(Arena *a, const Stream *s, const PassOptions *o, Diags *diags) {
    PassOptions effective = *o;
    if (o->saves && !accepts_names(s->row, diags)) return NULL;
    effective.few = pass_few(o);
    effective.split = effective.few > 0;
    effective.share = !o->phase && pass_shares(o, s->row->D, s->row->Dv);
    return algorithm(pass_build(a, s, &effective), o, diags);
}

// Matrix instructions of GPUs multiply elements of one type.
static bool accepts_types(const RowProgram *row, const PassOptions *o, Diags *diags) {
    for (int side = 0; side < ROW_SIDES && o->target.kind != KIND_HOST; side++)
        for (int i = 1; i < row->rows[side].n; i++) {
            int input = row->rows[side].data[i].input;
            const RowInput *in = input < 0 ? NULL : &row->inputs.data[input];
            if (!in || in->dtype == o->dtype || !pass_uses_row(row, (RowSide)side, i)) continue;
            return diag_refuse(
                diags, in->span,
                "'%s' is %s, and on %s q and k are %s here: products are of one type, so "
                "declare it %s",
                in->name, dtype_name(in->dtype), o->target.name, dtype_name(o->dtype),
                dtype_name(o->dtype));
        }
    return true;
}

// With its extents, which is when the schedule is chosen.
static TileProgram *tiled(Arena *a, const Stream *s, const PassOptions *o, Diags *diags) {
    if (!pass_accepts(s->row, diags)) return NULL;
    if (o->tf32 && o->target.kind != KIND_NVPTX) {
        diag_error(diags, s->row->span,
                   "products by tf32 are for NVIDIA targets (sm_80, sm_90a), not for %s",
                   o->target.name);
        return NULL;
    }
    if (!accepts_types(s->row, o, diags)) return NULL;
    TileProgram *p = pass_algorithm(a, s, o, diags);
    return p && steps(p, FUSED, TILED, o, diags) ? p : NULL;
}

TileProgram *pass_pipeline(Arena *a, const Stream *s, const PassOptions *o, Diags *diags) {
    TileProgram *p = tiled(a, s, o, diags);
    return p && steps(p, TILED, ALL, o, diags) ? p : NULL;
}

bool pass_finish(TileProgram *p, const PassOptions *o, Diags *diags) {
    return steps(p, FUSED, ALL, o, diags);
}

// ---- recurrences

TileProgram *pass_recurrence_algorithm(Arena *a, const Chunk *c, const PassOptions *o,
                                       Diags *diags) {
    return algorithm(pass_build_recurrence(a, c, o, 0), o, diags);
}

// Up to how many positions have kernels of their own. On NVIDIA devices a short chunk has the 16 positions of a matrix instruction. Chunks
// of AMD and of the host are short anyhow, and one or two positions go one after the other.
static int few_positions(const Target *t) {
    enum { ALONE = 2 };
    return t->kind == KIND_NVPTX ? PASS_FEW_POSITIONS : ALONE;
}

// A sum over the columns of v, or in a backward of k, has all of them: a block has those of a tile.
static bool sums_all_columns(const TileProgram *p, const RecProgram *rec, Diags *diags) {
    for (int i = 0; i < p->kernels.n; i++) {
        const TileKernel *k = p->kernels.data[i];
        int columns = tile_grid_axis(k);
        if (columns < 0 || !tile_sums_over(k, columns)) continue;
        int all = k->axes[columns].size->i, some = k->axes[columns].extent;
        if (k->axes[columns].size->op != EX_CONST || some >= all) continue;
        return diag_refuse(diags, rec->span,
                           "recurrence '%s': a sum over %d columns; a tile has %d on '%s'",
                           rec->name, all, some, target_get(p->target)->name);
    }
    return true;
}

static bool accepts_norm(const RecProgram *rec, const PassOptions *o, Diags *diags) {
    if (o->target.kind == KIND_HOST || !ex_uses(rec->output, SYM_SQO, 0)) return true;
    return diag_refuse(diags, rec->span,
                       "recurrence '%s': sqnorm(o) has kernels for the CPU only in this version",
                       rec->name);
}

static TileProgram *forward(Arena *a, const Chunk *c, const PassOptions *o, Diags *diags) {
    TileProgram *p = algorithm(pass_build_recurrence(a, c, o, few_positions(&o->target)), o, diags);
    return p && pass_finish(p, o, diags) ? p : NULL;
}

static bool has_room(const TileProgram *p) {
    int most = 0;
    for (int i = 0; i < p->kernels.n; i++) {
        int bytes = tile_shared_layout(p, p->kernels.data[i], NULL, NULL);
        if (bytes > most) most = bytes;
    }
    return most <= target_get(p->target)->shared_bytes;
}

// Positions of a chunk that several kernels have in common: as many as all have room for. With 64 what is made before takes longer than
// the others gain (kda 2.98 ms instead of 2.23 on an H100).
static void choose_positions(Arena *a, const Chunk *c, PassOptions *o) {
    enum { MOST = 32, LEAST = 16 };
    if (!recur_prepares(c, o) || o->schedule.said) return;
    PassOptions own = *o;
    own.seen = NULL;
    o->schedule.said = own.schedule.said = 1u << KNOB_keys;
    for (own.schedule.keys = MOST; own.schedule.keys > LEAST; own.schedule.keys /= 2) {
        Diags quiet = diag_list(a);
        TileProgram *p = forward(a, c, &own, &quiet);
        if (p && has_room(p)) break;
    }
    o->schedule.keys = own.schedule.keys;
}

TileProgram *pass_recurrence(Arena *a, const Chunk *c, const PassOptions *o, Diags *diags) {
    const RecProgram *rec = c->rec;
    PassOptions own = *o;
    if (!accepts(rec->span, rec->D, rec->Dv, diags)) return NULL;
    if (!accepts_norm(rec, o, diags)) return NULL;
    choose_positions(a, c, &own);
    TileProgram *p = forward(a, c, &own, diags);
    return p && sums_all_columns(p, rec, diags) ? p : NULL;
}

TileProgram *pass_recurrence_backward_algorithm(Arena *a, const ChunkBack *back,
                                                const PassOptions *o, Diags *diags) {
    TileProgram *p = pass_build_recurrence_backward(a, back, o, diags);
    return p ? algorithm(p, o, diags) : NULL;
}

static bool has_kernels(Arena *a, const ChunkBack *back, const PassOptions *o) {
    Diags quiet = diag_list(a);
    PassOptions own = *o;
    own.seen = NULL;
    TileProgram *p = pass_recurrence_backward_algorithm(a, back, &own, &quiet);
    return p && pass_finish(p, &own, &quiet) && has_room(p);
}

// Positions of a chunk: as many as all kernels have room for, but few where channels have decays of their own: there several blocks an
// SM are worth more than long chunks (1.3 to 1.5 times at 64 channels).
static void choose_chunk(Arena *a, const ChunkBack *back, PassOptions *o) {
    enum { MOST = 64, MOST_F32 = 32, LEAST = 16 };
    int most =
        dtype_half(o->dtype) ? MOST : MOST_F32; // f32 products are in registers with their operands
    if (o->target.kind == KIND_HOST || o->schedule.said) return;
    o->schedule.said = 1u << KNOB_keys;
    o->schedule.keys = most;
    o->by_positions = dtype_half(o->dtype) && !back->c->channel;
    if (o->by_positions && has_kernels(a, back, o)) return;
    o->by_positions = false;
    if (back->c->channel) o->schedule.keys = LEAST;
    while (o->schedule.keys > LEAST && !has_kernels(a, back, o)) o->schedule.keys /= 2;
}

TileProgram *pass_recurrence_backward(Arena *a, const ChunkBack *back, const PassOptions *o,
                                      Diags *diags) {
    const RecProgram *rec = back->c->rec;
    if (!accepts(rec->span, rec->D, rec->Dv, diags) || !accepts_norm(rec, o, diags)) return NULL;
    if (o->target.kind == KIND_AMDGPU) {
        diag_error(diags, rec->span,
                   "recurrence '%s': the backward of recurrences has kernels for the CPU and "
                   "NVIDIA devices only in this version",
                   rec->name);
        return NULL;
    }
    PassOptions own = *o;
    choose_chunk(a, back, &own);
    TileProgram *p = pass_recurrence_backward_algorithm(a, back, &own, diags);
    return p && pass_finish(p, &own, diags) && sums_all_columns(p, rec, diags) ? p : NULL;
}

// ---- the backward

// In the form that the target runs fastest. On GPUs a nest is for those that it fits (passes/schedule/sm90_nest.c).
TileProgram *pass_backward_algorithm(Arena *a, const Backward *back, const PassOptions *o,
                                     Diags *diags) {
    bool host = o->target.kind == KIND_HOST, nest = host && o->dtype == DT_F32 && !o->deterministic;
    TileProgram *p = NULL;
    Diags quiet = diag_list(a);
    if (!host && !o->deterministic) p = pass_build_backward(a, back, o, true, &quiet);
    if (p && (!(p = algorithm(p, o, diags)) || pass_has_nest(p))) return p;
    p = pass_build_backward(a, back, o, nest, diags);
    return p ? algorithm(p, o, diags) : NULL;
}

TileProgram *pass_backward_program(Arena *a, const Backward *back, const PassOptions *o,
                                   Diags *diags) {
    TileProgram *p = pass_backward_algorithm(a, back, o, diags);
    return p && pass_finish(p, o, diags) ? p : NULL;
}

// ---- by class

static bool chosen_alike(const TileProgram *p, const TileProgram *q) {
    for (int i = 0; i < p->kernels.n; i++) {
        const Knobs *a = &p->kernels.data[i]->schedule.knobs;
        if (!a->said || !knobs_same(a, &q->kernels.data[i]->schedule.knobs)) return false;
    }
    return true;
}

// Of classes with the same choices one program does, of that which may have parts. A launch whose class has no kernels of its own takes those
// of the next class that it is in.
static bool stands_in(TileProgram *const by[SHAPE_COUNT], int c, int first) {
    if (c > SHAPE_SHORT) return c > first && chosen_alike(by[c], by[c - 1]);
    bool alike = false;
    for (int d = c + 1; d <= SHAPE_SHORT; d++) alike |= chosen_alike(by[c], by[d]);
    return alike;
}

static PassOptions of_class(const PassOptions *o, int c, const Knobs schedules[SHAPE_COUNT],
                            bool dense) {
    PassOptions own = *o;
    own.shape = (ShapeClass)c;
    own.dense = dense;
    if (schedules && schedules[c].said) own.schedule = schedules[c];
    return own;
}

static bool copies_apart(const TileProgram *p) {
    bool copies = false;
    for (int i = 0; i < p->kernels.n; i++) copies |= p->kernels.data[i]->schedule.knobs.dense;
    return copies;
}

static bool scheduled(TileProgram *p, const PassOptions *o, Diags *diags) {
    bool good = steps(p, TILED, CLASSED, o, diags) && pass_run(p, PASS_schedule, o, diags);
    return good && verify(p, PASS_schedule, diags);
}

// Launches of few tiles are as others but where that was measured, or chosen.
static bool has_few(const Stream *s, const PassOptions *o, const Knobs schedules[SHAPE_COUNT]) {
    if (schedules && schedules[SHAPE_FEW].said) return true;
    return pass_knows_few(o, s->row->D, s->row->Dv);
}

TileProgram *pass_program(Arena *a, const Stream *s, const PassOptions *o,
                          const Knobs schedules[SHAPE_COUNT], Diags *diags) {
    // launches of sequences are of all kinds; those of parts have one schedule
    bool one = o->batch || o->phase || !shape_matters(&o->target);
    int first = one ? SHAPE_COUNT - 1 : has_few(s, o, schedules) ? SHAPE_FEW : SHAPE_FEW + 1;
    TileProgram *by[SHAPE_COUNT] = {NULL}, *all = NULL;
    bool same[SHAPE_COUNT] = {false}, dense = false;
    for (int c = SHAPE_COUNT - 1; c >= first; c--) {
        PassOptions own = of_class(o, c, schedules, !one);
        if (!(by[c] = tiled(a, s, &own, diags))) return NULL;
        dense |= copies_apart(by[c]);
    }
    if (dense) {
        PassOptions own = of_class(o, SHAPE_COUNT - 1, schedules, false);
        own.schedule.dense = 0;
        all = tiled(a, s, &own, diags);
        if (!all || !scheduled(all, &own, diags)) return NULL;
    }
    for (int c = first; c < SHAPE_COUNT; c++) same[c] = stands_in(by, c, first);
    for (int c = SHAPE_COUNT - 1; c >= first; c--) {
        if (same[c]) continue;
        PassOptions own = of_class(o, c, schedules, !one);
        if (!scheduled(by[c], &own, diags)) return NULL;
        if (all && !shape_join(all, by[c], own.shape)) // rows split by other counts, as of few_keys
            diag_warning(diags, (Span){0},
                         "the schedule for %s launches has other sizes than that for the rest: "
                         "it is left out",
                         shape_name(own.shape));
        if (!all) all = by[c];
    }
    pass_name_rows(all); // once of all, which have sizes together
    pass_run(all, PASS_plans, o, diags);
    pass_run(all, PASS_sections, o, diags);
    return verify(all, PASS_sections, diags) ? all : NULL;
}
