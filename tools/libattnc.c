// libattnc.c: see libattnc.h: compile.h behind plain C types.
#include "libattnc.h"
#include "compile.h"
#include "jit.h"
#include "needed.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// NULL, or what is wrong.
static const char *read_options(const struct attnc_options *o, Arena *a, CompileOptions *out) {
    FeDefine *defines = ARENA_ARRAY(a, FeDefine, o->ndefines + 1);
    for (int i = 0; i < o->ndefines; i++) {
        const char *eq = strchr(o->defines[i], '=');
        if (!eq) return arena_printf(a, "a define is NAME=VALUE, not '%s'", o->defines[i]);
        defines[i] =
            (FeDefine){arena_strndup(a, o->defines[i], (size_t)(eq - o->defines[i])), eq + 1};
    }
    out->source.defines = defines;
    out->source.ndefines = o->ndefines;
    out->source.dirs = o->include;
    out->source.ndirs = o->ninclude;
    out->entry = o->entry;
    out->level = o->level;
    out->checks = o->checks;
    out->deterministic = o->deterministic;
    out->invariant = o->invariant;
    if (o->level < 0 || o->level > 3) return arena_printf(a, "no level %d", o->level);
    if (o->target && !target_find(o->target, &out->target))
        return arena_printf(a, "no target '%s'", o->target);
    out->dtype = out->target == TARGET_HOST ? DT_F32 : DT_BF16;
    if (o->dtype && !compile_read_dtype(o->dtype, &out->dtype, &out->tf32))
        return arena_printf(a, "no dtype '%s'", o->dtype);
    out->has_kv = o->kv_dtype != NULL;
    if (out->has_kv && !compile_read_kv(o->kv_dtype, &out->kv))
        return arena_printf(a, "no kv_dtype '%s'", o->kv_dtype);
    if (o->phase && !compile_read_phases(o->phase, &out->phases))
        return arena_printf(a, "no phase '%s'", o->phase);
    if (o->layout && !compile_read_layout(o->layout, &out->batch, &out->page))
        return arena_printf(a, "no layout '%s'", o->layout);
    return o->schedule ? knobs_parse(a, o->schedule, &out->schedule) : NULL;
}

static char *diagnostics_of(const Compile *c) {
    char *text = NULL;
    size_t n;
    FILE *f = open_memstream(&text, &n);
    if (!f) return NULL;
    diag_print(&c->diags, f);
    fclose(f);
    return text;
}

// The source, opened; the status of what went wrong.
static int open_source(Compile *c, Arena *a, const char *source, size_t n, const char *name,
                       const struct attnc_options *options) {
    static const struct attnc_options plain = {0};
    CompileOptions o = {.source = {.path = name, .text = source, .text_bytes = n},
                        .target = TARGET_HOST};
    const char *wrong = read_options(options ? options : &plain, a, &o);
    if (!wrong) return (int)compile_open(c, &o);
    *c = (Compile){.arena = arena_new()};
    c->diags = diag_list(c->arena);
    diag_error(&c->diags, (Span){0}, "option: %s", wrong);
    return FE_USAGE;
}

int attnc_compile(const char *source, size_t n, const char *name,
                  const struct attnc_options *options, void **out, size_t *out_n,
                  char **diagnostics) {
    Arena *a = arena_new();
    Compile c;
    *out = NULL;
    *out_n = 0;
    int status = open_source(&c, a, source, n, name, options);
    if (status == 0) {
        enum attnc_form form = options ? options->form : ATTNC_ARTIFACT;
        CgForm f = form == ATTNC_LLVM       ? CG_LLVM
                   : form == ATTNC_ARTIFACT ? compile_artifact(c.options.target)
                                            : CG_ASM;
        status = compile_emit(&c, f, out, out_n) ? 0 : 1;
    }
    *diagnostics = diagnostics_of(&c);
    compile_close(&c);
    arena_free(a);
    return status;
}

void attnc_free(void *p) { free(p); }

struct attnc_jit {
    Jit jit;
};

attnc_jit *attnc_jit_open(struct attn_context *context, const char *source, size_t n,
                          const char *name, const struct attnc_options *options,
                          char **diagnostics) {
    Arena *a = arena_new();
    Compile c;
    attn_error e = {.status = ATTN_OK};
    attnc_jit *j = calloc(1, sizeof *j);
    struct attnc_options host = options ? *options : (struct attnc_options){0};
    host.target = NULL; // the default element type is the host's too
    int status = open_source(&c, a, source, n, name, &host);
    bool good = j && status == 0 && jit_open(&j->jit, context, &c, &e);
    if (e.status) diag_error(&c.diags, (Span){0}, "%s", e.message);
    *diagnostics = diagnostics_of(&c);
    compile_close(&c);
    arena_free(a);
    if (good) return j;
    free(j);
    return NULL;
}

struct attn_artifact *attnc_jit_artifact(const attnc_jit *j) {
    return j->jit.artifact;
}

void attnc_jit_close(attnc_jit *j) {
    if (j) jit_close(&j->jit);
    free(j);
}

struct attnc_mask {
    Arena *arena;
    MaskMap map;
};

attnc_mask *attnc_mask_open(const char *source, size_t n, const char *name,
                            const struct attnc_options *options, const struct attn_call *call,
                            int batch, int head, char **diagnostics) {
    Arena *a = arena_new();
    Compile c;
    attnc_mask *m = calloc(1, sizeof *m);
    int status = open_source(&c, a, source, n, name, options);
    bool powers = !options || !options->target, good = m && status == 0 && compile_tiles(&c);
    const char *why = good ? needed_map(&m->map, a, &c, call, batch, head, powers) : NULL;
    if (why) diag_error(&c.diags, (Span){0}, "%s", why);
    good = good && !why;
    *diagnostics = diagnostics_of(&c);
    compile_close(&c);
    if (good) {
        m->arena = a;
        return m;
    }
    arena_free(a);
    free(m);
    return NULL;
}

int attnc_needed(const attnc_mask *m, int first, int end, int (*keys)[2], int room) {
    return needed_keys(&m->map, first, end, keys, room);
}

long long attnc_visited(const attnc_mask *m, int first, int end) {
    return needed_pairs(&m->map, first, end);
}

void attnc_mask_close(attnc_mask *m) {
    if (m) arena_free(m->arena);
    free(m);
}
