// compile.c: see compile.h.
#include "compile.h"
#include "cache.h"
#include "frontend/ast.h"
#include "ir/read.h"
#include "library.h"
#include "passes/derive/backward.h"
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

const char compile_stdin[] = "<stdin>";

bool compile_read_dtype(const char *text, Dtype *dtype, bool *tf32) {
    static const Dtype types[] = {DT_F32, DT_F16, DT_BF16};
    *tf32 = strcmp(text, "tf32") == 0;
    for (int i = 0; i < 3; i++)
        if (strcmp(text, *tf32 ? "tf32" : dtype_name(types[i])) == 0)
            return *dtype = types[i], true;
    return false;
}

bool compile_read_kv(const char *text, Dtype *kv) {
    for (int t = 0; t < DT_COUNT; t++)
        if (dtype_reads((Dtype)t) == EX_F32 && strcmp(text, dtype_name((Dtype)t)) == 0)
            return *kv = (Dtype)t, true;
    return false;
}

bool compile_read_layout(const char *text, BatchLayout *batch, int *page) {
    size_t n = strcspn(text, ":");
    *page = 0;
    for (*batch = BATCH_DENSE; *batch < BATCH_COUNT; (*batch)++)
        if (strlen(batch_name(*batch)) == n && !strncmp(text, batch_name(*batch), n)) break;
    if (!text[n] || *batch != BATCH_PAGED) return !text[n] && *batch < BATCH_COUNT;
    char *end;
    errno = 0;
    unsigned long long keys = strtoull(text + n + 1, &end, 10);
    *page = (int)keys;
    return isdigit((unsigned char)text[n + 1]) && !*end && !errno && keys && keys <= SIZE_LIMIT;
}

bool compile_read_phases(const char *text, unsigned *phases) {
    static const char *const names[] = {"fwd", "bwd", "part", "piece"};
    for (*phases = 0;; text++) {
        size_t n = strcspn(text, ",");
        int i = 0;
        while (i < 4 && (strlen(names[i]) != n || strncmp(text, names[i], n) != 0)) i++;
        if (i == 4) return false;
        *phases |= 1u << i;
        text += n;
        if (!*text) return true;
    }
}

// FeRead: std modules from inside the compiler, everything else from the file system.
static bool read_source(void *ctx, Arena *a, const char *path, const char **text, size_t *n,
                        const char **why) {
    (void)ctx;
    const LibraryFile *module = library_find(path);
    if (module) {
        *text = module->text;
        *n = module->n;
        return true;
    }
    void *bytes;
    *why = strcmp(path, compile_stdin) == 0 ? read_stream(stdin, AST_MAX_BYTES, &bytes, n)
                                            : read_file(path, AST_MAX_BYTES, &bytes, n);
    if (*why) return false;
    *text = arena_strndup(a, bytes, *n);
    free(bytes);
    return true;
}

// Nobody asks about the other variants of the file.
static void forget_others(Compile *c, const char *entry) {
    const AstItems *items = &c->module->ast->items;
    for (int i = 0; i < items->n; i++) {
        const AstItem *item = items->data[i];
        bool variant = item->kind == AST_ATTENTION || item->kind == AST_RECURRENCE;
        if (variant && strcmp(item->name.s, entry) != 0) diag_forget(&c->diags, item->span);
    }
}

FeStatus compile_open(Compile *c, const CompileOptions *o) {
    FeStatus status;
    *c = (Compile){.arena = arena_new(), .options = *o};
    c->diags = diag_list(c->arena);
    c->options.source.stdlib = library_folder;
    c->options.source.read = read_source;
    c->module = fe_load(c->arena, &c->diags, &c->options.source, &status);
    if (!c->module) return status;
    for (int i = 0; i < c->module->variants.n; i++) {
        Variant *v = c->module->variants.data[i];
        if (!o->entry || strcmp(v->name, o->entry) == 0) VEC_PUSH(c->arena, &c->variants, v);
    }
    if (o->entry) forget_others(c, o->entry);
    if (c->variants.n) return FE_OK;
    const char *all = "";
    for (int i = 0; i < c->module->variants.n; i++)
        all =
            arena_printf(c->arena, "%s%s%s", all, i ? ", " : "", c->module->variants.data[i]->name);
    diag_error(&c->diags, (Span){0}, "%s holds no attention or recurrence named %s; it holds %s",
               o->source.path, o->entry, all);
    return FE_USAGE;
}

void compile_close(Compile *c) {
    arena_free(c->arena);
    *c = (Compile){0};
}

static bool derive_recurrence(Compile *c, const Variant *v) {
    RecProgram *rec = fe_lower_recurrence(c->arena, v);
    VEC_PUSH(c->arena, &c->recurrences, rec);
    VEC_PUSH(c->arena, &c->chunks, pass_chunk(rec));
    return true;
}

// Weights become f16 where tensor cores multiply them.
static bool narrows(const Compile *c) {
    return c->options.dtype == DT_F16 && cg_target(c->options.target).kind != KIND_HOST;
}

static bool derive_attention(Compile *c, const Variant *v) {
    RowProgram *row = fe_lower(c->arena, &c->diags, v);
    if (!row) return false;
    row->bf16 = c->options.dtype == DT_BF16;
    VEC_PUSH(c->arena, &c->rows, row);
    Stream *s = narrows(c) ? pass_derive_half(c->arena, row, &c->diags)
                           : pass_derive(c->arena, row, &c->diags);
    VEC_PUSH(c->arena, &c->streams, s);
    return true;
}

bool compile_streams(Compile *c) {
    for (; c->derived < c->variants.n; c->derived++) {
        const Variant *v = c->variants.data[c->derived];
        bool good =
            v->kind == VARIANT_RECURRENCE ? derive_recurrence(c, v) : derive_attention(c, v);
        if (!good) return false;
    }
    return c->diags.errors == 0;
}

// Whether there are kernels for where rows lie.
static bool has_layout(Compile *c) {
    const char *layout = batch_name(c->options.batch);
    if (c->options.invariant && (!c->options.batch || c->recurrences.n))
        diag_error(&c->diags, c->variants.data[0]->span,
                   "--invariant is for attentions in layouts ragged and paged");
    if (!c->options.batch) return true;
    bool back = c->options.phases & COMPILE_BWD;
    if (back && c->options.batch == BATCH_PAGED)
        diag_error(&c->diags, c->variants.data[0]->span, "no backward in layout %s", layout);
    else if (back && c->recurrences.n)
        diag_error(&c->diags, c->recurrences.data[0]->span,
                   "no backward of recurrences in layout %s", layout);
    for (int i = 0; i < c->recurrences.n; i++)
        pass_accepts_recurrence_layout(c->recurrences.data[i], c->options.batch, &c->diags);
    for (int i = 0; i < c->rows.n; i++)
        pass_accepts_layout(c->rows.data[i], c->options.batch, &c->diags);
    return c->diags.errors == 0;
}

// Whether there are kernels for what k and v hold.
static bool has_kv(Compile *c) {
    const CompileOptions *o = &c->options;
    const char *kv = dtype_name(o->kv), *q = dtype_name(o->dtype);
    if (!o->has_kv || o->kv == o->dtype) {
        c->options.kv = DT_F32;
        return true;
    }
    if (o->phases & COMPILE_BWD && dtype_byte(o->kv))
        diag_error(&c->diags, c->variants.data[0]->span,
                   "no backward with --kv-dtype=%s: numbers of 8 bits have no gradients", kv);
    else if (o->phases & COMPILE_BWD)
        diag_error(&c->diags, c->variants.data[0]->span,
                   "no backward with --kv-dtype=%s beside --dtype=%s: gradients have the type of q",
                   kv, q);
    if (!dtype_byte(o->kv) && (o->target != TARGET_HOST || o->kv == DT_F32))
        diag_error(&c->diags, c->variants.data[0]->span,
                   "no kernel of %s has k and v in %s beside q in %s: --kv-dtype is the type of q, "
                   "e4m3, e5m2 or i8%s",
                   cg_target(o->target).name, kv, q,
                   o->kv == DT_F32 ? "" : "; on host also f16 or bf16");
    if (c->options.tf32)
        diag_error(&c->diags, c->variants.data[0]->span,
                   "--kv-dtype=%s goes with --dtype=f32, f16 or bf16, not with tf32", kv);
    for (int i = 0; i < c->recurrences.n; i++)
        diag_error(&c->diags, c->recurrences.data[i]->span,
                   "recurrence '%s' keeps a state and no keys: --kv-dtype=%s is for attentions",
                   c->recurrences.data[i]->name, kv);
    return c->diags.errors == 0;
}

// Whether there are kernels that leave states, or that take some rows and keys of a whole.
static bool has_parts(Compile *c) {
    bool states = c->options.phases & COMPILE_PART, pieces = c->options.phases & COMPILE_PIECE;
    if (!states && !pieces) return true;
    if (c->recurrences.n && pieces)
        diag_error(&c->diags, c->recurrences.data[0]->span,
                   "recurrence '%s' has no pieces: its state goes on from state0",
                   c->recurrences.data[0]->name);
    if (c->recurrences.n && c->options.batch)
        diag_error(&c->diags, c->recurrences.data[0]->span, "no parts of recurrences in layout %s",
                   batch_name(c->options.batch));
    if (c->rows.n && c->options.batch && pieces)
        diag_error(&c->diags, c->rows.data[0]->span, "no pieces in layout %s: they are dense",
                   batch_name(c->options.batch));
    for (int i = 0; i < c->streams.n; i++)
        if (pass_accepts_parts(c->streams.data[i], states, &c->diags) && states)
            pass_accepts_parts_of_layout(c->rows.data[i], c->options.batch, &c->diags);
    return c->diags.errors == 0;
}

// Sums of gradients that are the same in any order have a dimension more than the input.
static void refuse_wide_sums(Compile *c, const RowProgram *row) {
    for (int i = 0; i < row->inputs.n; i++) {
        const RowInput *in = &row->inputs.data[i];
        if (in->grad && in->rank == EX_MAX_RANK)
            diag_error(&c->diags, in->span,
                       "--deterministic: an input with a gradient has at most %d dimensions in "
                       "this version",
                       EX_MAX_RANK - 1);
    }
}

// Streams, and where the backward is one of the phases what is derived of it.
static bool can_run(Compile *c) {
    if (!compile_streams(c)) return false;
    if (!has_layout(c) || !has_kv(c) || !has_parts(c)) return false;
    if (!(c->options.phases & COMPILE_BWD)) return true;
    for (int i = c->chunk_backs.n; i < c->chunks.n; i++) {
        VEC_PUSH(c->arena, &c->chunk_backs, pass_chunk_back(c->chunks.data[i]));
        if (c->options.deterministic) // heads that share q, k or v add to them as they come
            diag_error(&c->diags, c->recurrences.data[i]->span,
                       "--deterministic: gradients of recurrences are added up in any order in "
                       "this version");
    }
    for (int i = c->backwards.n; i < c->rows.n; i++) {
        const RowProgram *row = c->rows.data[i];
        Backward *back = narrows(c) ? pass_backward_narrow(c->arena, row, &c->diags)
                                    : pass_backward(c->arena, row, &c->diags);
        VEC_PUSH(c->arena, &c->backwards, back);
        if (c->options.deterministic) refuse_wide_sums(c, row);
    }
    return c->diags.errors == 0;
}

static PassOptions pass_options(const Compile *c) {
    const CompileOptions *o = &c->options;
    return (PassOptions){.target = cg_target(o->target),
                         .dtype = o->dtype,
                         .tf32 = o->tf32,
                         .kv = o->kv,
                         .batch = o->batch,
                         .page = o->page,
                         .split = o->level > 0,
                         .deterministic = o->deterministic,
                         .invariant = o->invariant,
                         .schedule = o->schedule};
}

static bool has_phase(const Compile *c, unsigned phase) {
    return (c->options.phases ? c->options.phases : COMPILE_FWD) & phase;
}

// The forward of variant i: one that has a backward leaves what that needs.
static const Stream *forward(const Compile *c, int i, PassOptions *o) {
    o->saves = i < c->backwards.n ? c->backwards.data[i] : NULL;
    return o->saves ? o->saves->s : c->streams.data[i];
}

// NULL after a mistake.
static bool add_tiles(Compile *c, TileProgram *p) {
    if (p) VEC_PUSH(c->arena, &c->tiles, p);
    return p != NULL;
}

// A program of parts or pieces: as the target runs it, or before the passes.
static bool add_phase(Compile *c, const Stream *s, const PassOptions *o, TilePhase phase,
                      bool scheduled) {
    PassOptions own = *o;
    own.phase = phase;
    TileProgram *p;
    if (phase == PHASE_PART_BWD || phase == PHASE_PIECE_BWD)
        p = scheduled ? pass_backward_program(c->arena, o->saves, &own, &c->diags)
                      : pass_backward_algorithm(c->arena, o->saves, &own, &c->diags);
    else
        p = scheduled ? pass_program(c->arena, s, &own, NULL, &c->diags)
                      : pass_algorithm(c->arena, s, &own, &c->diags);
    return add_tiles(c, p);
}

static bool add_parts(Compile *c, const Stream *s, const PassOptions *o, bool scheduled) {
    bool parts = has_phase(c, COMPILE_PART), pieces = has_phase(c, COMPILE_PIECE);
    for (TilePhase phase = PHASE_PART; phase < PHASE_COUNT; phase++) {
        bool back = phase == PHASE_PART_BWD || phase == PHASE_PIECE_BWD;
        if (phase < PHASE_PIECE ? !parts : !pieces) continue;
        if (back && !o->saves) continue;
        if (!add_phase(c, s, o, phase, scheduled)) return false;
    }
    return true;
}

// The backward of whole rows, unless pieces alone have one.
static bool has_backward(const Compile *c, const PassOptions *o) {
    bool pieces = has_phase(c, COMPILE_PIECE);
    return o->saves && (!pieces || has_phase(c, COMPILE_FWD | COMPILE_PART));
}

static bool add_recurrence_phase(Compile *c, int i, const PassOptions *o, TilePhase phase,
                                 bool scheduled) {
    PassOptions own = *o;
    own.phase = phase;
    const Chunk *chunk = c->chunks.data[i];
    if (phase == PHASE_FWD || phase == PHASE_PART)
        return add_tiles(c, scheduled
                                ? pass_recurrence(c->arena, chunk, &own, &c->diags)
                                : pass_recurrence_algorithm(c->arena, chunk, &own, &c->diags));
    const ChunkBack *back = c->chunk_backs.data[i];
    return add_tiles(c, scheduled
                            ? pass_recurrence_backward(c->arena, back, &own, &c->diags)
                            : pass_recurrence_backward_algorithm(c->arena, back, &own, &c->diags));
}

// Parts alone have a backward of their own.
static bool add_recurrence(Compile *c, int i, const PassOptions *o, bool scheduled) {
    bool parts = has_phase(c, COMPILE_PART), whole = has_phase(c, COMPILE_FWD) || !parts;
    bool back = i < c->chunk_backs.n;
    return (!has_phase(c, COMPILE_FWD) || add_recurrence_phase(c, i, o, PHASE_FWD, scheduled)) &&
           (!parts || add_recurrence_phase(c, i, o, PHASE_PART, scheduled)) &&
           (!parts || !back || add_recurrence_phase(c, i, o, PHASE_PART_BWD, scheduled)) &&
           (!whole || !back || add_recurrence_phase(c, i, o, PHASE_BWD, scheduled));
}

bool compile_algorithm(Compile *c) {
    if (!can_run(c)) return false;
    PassOptions o = pass_options(c);
    for (int i = 0; i < c->streams.n; i++) {
        if (!pass_accepts(c->rows.data[i], &c->diags)) return false;
        const Stream *s = forward(c, i, &o);
        if (has_phase(c, COMPILE_FWD) && !add_tiles(c, pass_algorithm(c->arena, s, &o, &c->diags)))
            return false;
        if (!add_parts(c, s, &o, false)) return false;
        if (has_backward(c, &o) &&
            !add_tiles(c, pass_backward_algorithm(c->arena, o.saves, &o, &c->diags)))
            return false;
    }
    for (int i = 0; i < c->chunks.n; i++)
        if (!add_recurrence(c, i, &o, false)) return false;
    return true;
}

// With the schedules that were tuned for it; NULL where there are none, or where this compiler, which
// may be another one, does not take them.
static TileProgram *tuned(Compile *c, const Stream *s, const PassOptions *o) {
    // -O0 has no kernels for parts of a row: choices of theirs (few_keys), which what was tuned may
    // hold, would be refused there, and all else with them.
    if (!c->options.cache || o->schedule.said || !o->split || o->batch) return NULL;
    CacheKey key = cache_key(c->arena, s->row, o);
    CacheEntry e = cache_read(c->arena, c->options.cache, &key, &c->diags);
    bool any = false;
    Diags trial = diag_list(c->arena);
    for (int i = 0; i < SHAPE_COUNT; i++) any |= e.knobs[i].said != 0;
    TileProgram *p = any ? pass_program(c->arena, s, o, e.knobs, &trial) : NULL;
    if (any && !p)
        diag_warning(&c->diags, (Span){0}, "the tuned schedules of %s are ignored: %s",
                     s->row->name, trial.first ? trial.first->message : "they do not fit");
    return p;
}

bool compile_tiles(Compile *c) {
    if (!can_run(c)) return false;
    PassOptions o = pass_options(c);
    for (int i = 0; i < c->streams.n; i++) {
        const Stream *s = forward(c, i, &o);
        TileProgram *p = has_phase(c, COMPILE_FWD) ? tuned(c, s, &o) : NULL;
        if (!p && has_phase(c, COMPILE_FWD)) p = pass_program(c->arena, s, &o, NULL, &c->diags);
        if (has_phase(c, COMPILE_FWD) && !add_tiles(c, p)) return false;
        if (!add_parts(c, s, &o, true)) return false;
        if (has_backward(c, &o) &&
            !add_tiles(c, pass_backward_program(c->arena, o.saves, &o, &c->diags)))
            return false;
    }
    for (int i = 0; i < c->chunks.n; i++)
        if (!add_recurrence(c, i, &o, true)) return false;
    return c->diags.errors == 0;
}

static CgOptions cg_options(const Compile *c) {
    return (CgOptions){.opt = c->options.level, .checks = c->options.checks};
}

bool compile_emit(Compile *c, CgForm form, void **out, size_t *n) {
    CgOptions o = cg_options(c);
    if (!c->tiles.n && !compile_tiles(c)) return false;
    return cg_emit((const TileProgram *const *)c->tiles.data, c->tiles.n, &o, form, &c->diags, out,
                   n);
}

CgForm compile_artifact(TargetId t) {
    return target_get(t)->kind == KIND_NVPTX ? CG_ASM : CG_OBJECT;
}

CgJit *compile_jit(Compile *c) {
    CgOptions o = cg_options(c);
    if (!c->tiles.n && !compile_tiles(c)) return NULL;
    return cg_jit((const TileProgram *const *)c->tiles.data, c->tiles.n, &o, &c->diags);
}
