// cmd_tile.c: `attnc FILE.tile`: a tile program in its text form, read and checked, then printed,
// taken through one pass alone (--pass), or, where it is scheduled, lowered (--emit=llvm|asm).
#include "cmd.h"
#include "files.h"
#include "passes/passes.h"
#include <stdlib.h>
#include <string.h>

typedef struct TileFile {
    Arena *arena;
    Diags diags;
    const Options *o;
    TileProgram *p;
} TileFile;

// ---- passes

static const char *unbound_axis(const TileProgram *p) {
    for (int i = 0; i < p->kernels.n; i++)
        for (int a = 0; a < p->kernels.data[i]->naxes; a++)
            if (!p->kernels.data[i]->axes[a].extent) return p->kernels.data[i]->axes[a].name;
    return NULL;
}

// What passes count on and the checks of a program do not say.
static Status may_run(const TileProgram *p, const Pass *pass) {
    const char *axis = pass->wants == PASS_TILED ? unbound_axis(p) : NULL;
    if (pass->wants != PASS_SCHEDULED && p->scheduled)
        return cmd_fail(STATUS_INPUT, "--pass=%s: the program is scheduled already", pass->name);
    if (axis)
        return cmd_fail(STATUS_INPUT,
                        "--pass=%s: axis %s has no tile extent yet; --pass=tile chooses them",
                        pass->name, axis);
    return STATUS_DONE;
}

static Status no_pass(Arena *a, const char *name) {
    Text t = text_new(a);
    for (int i = PASS_build + 1; i < PASS_COUNT; i++)
        text_printf(&t, "%s%s", t.n ? i + 1 < PASS_COUNT ? ", " : " or " : "",
                    pass_get((PassId)i)->name);
    return cmd_fail(STATUS_USAGE, "--pass: bad value '%s': it takes %s", name, t.s);
}

static Status run_pass(TileFile *f) {
    PassId id;
    if (!pass_find(f->o->pass, &id) || pass_get(id)->wants == PASS_STREAM)
        return no_pass(f->arena, f->o->pass);
    Status s = may_run(f->p, pass_get(id));
    if (s != STATUS_DONE) return s;
    PassOptions o = {.target = cg_target(f->p->target),
                     .dtype = f->p->dtype,
                     .shape = SHAPE_LONG,
                     .schedule = f->o->schedule};
    bool good = pass_run(f->p, id, &o, &f->diags) && tile_verify(f->p, &f->diags);
    return good ? STATUS_DONE : STATUS_INPUT;
}

// ---- in and out

static Status read_program(TileFile *f, const char *path) {
    void *bytes;
    size_t n;
    Status s = file_read(path, &bytes, &n);
    if (s != STATUS_DONE) return s;
    const char *text = arena_strndup(f->arena, bytes, n);
    free(bytes);
    diag_add_file(&f->diags, path, text, n);
    f->p = tile_parse(f->arena, text, n, &f->diags);
    return f->p && tile_verify(f->p, &f->diags) ? STATUS_DONE : STATUS_INPUT;
}

static Status print(TileFile *f) {
    Text t = text_new(f->arena);
    tile_print(&t, f->p);
    return file_write(f->o->output ? f->o->output : "-", t.s, t.n);
}

static int grid_rows(const TileKernel *k) {
    int axis = tile_grid_axis(k);
    return axis < 0 ? 0 : k->axes[axis].extent;
}

// Of a kernel of roles: the warpgroups of the one that computes; 0: it has none.
static int warpgroups(const TileKernel *k) {
    int n = 0;
    for (const TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op))
        if (op->kind == TILE_MMA && tile_role_of(op)) n = tile_role_of(op)->warpgroups;
    return n;
}

// Where nothing says which thread has what, a lowering cannot.
static Status has_layouts(const TileKernel *k) {
    if (k->layouts.n) return STATUS_DONE;
    for (const TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op))
        for (int i = 0; i < op->results.n; i++)
            if (op->results.data[i]->home == HOME_FRAGMENT)
                return cmd_fail(STATUS_INPUT, "kernel %s: %%%s lies in registers and has no layout",
                                k->name, op->results.data[i]->name);
    return STATUS_DONE;
}

static Status ptx_may_lower(const TileKernel *k, const Target *t) {
    (void)t;
    int warps = k->schedule.warps, rows = grid_rows(k), groups = warpgroups(k);
    if (warps < 1 || (tile_has(&k->body, TILE_MMA) && rows % (16 * warps) != 0))
        return cmd_fail(STATUS_INPUT,
                        "kernel %s: PTX takes tiles of 16 rows, or a multiple, for each warp; "
                        "here are %d rows and %d warps",
                        k->name, rows, warps);
    if (groups && (warps != 4 * groups || rows != 16 * warps))
        return cmd_fail(STATUS_INPUT,
                        "kernel %s: a role of %d warpgroups has 4 warps of each and 16 rows of "
                        "each warp; here are %d warps and %d rows",
                        k->name, groups, warps, rows);
    return STATUS_DONE;
}

// Copies are dealt to threads by bits (codegen/amdgpu/copy.c).
static Status amd_may_lower(const TileKernel *k, const Target *t) {
    enum { MAX_THREADS = 1024 }; // of a block
    int waves = k->schedule.warps, rows = grid_rows(k), unit = k->schedule.matrix_rows;
    if (!unit)
        return cmd_fail(STATUS_INPUT,
                        "kernel %s: its schedule does not say how many matrix_rows an instruction "
                        "has",
                        k->name);
    if (waves < 1 || (waves & (waves - 1)) != 0 || waves * t->lanes > MAX_THREADS ||
        rows % (unit * waves) != 0)
        return cmd_fail(STATUS_INPUT,
                        "kernel %s: AMD devices take a power of two of waves, up to %d, and tiles "
                        "of %d rows, or a multiple, for each; here are %d rows and %d waves",
                        k->name, MAX_THREADS / t->lanes, unit, rows, waves);
    for (int a = 0; a < k->naxes; a++) {
        int n = k->axes[a].extent;
        bool keys = !k->axes[a].whole && !tile_in_grid(k, a);
        if (n == 1 || (n % unit == 0 && (!keys || (n & (n - 1)) == 0))) continue;
        return cmd_fail(STATUS_INPUT,
                        "kernel %s: AMD devices take tiles of a multiple of %d, and of a power of "
                        "two of keys; here axis %s has %d",
                        k->name, unit, k->axes[a].name, n);
    }
    return STATUS_DONE;
}

// A program may be sound and run in the interpreter, and still not be as the schedules make it.
static Status may_lower(const TileProgram *p) {
    static Status (*const may[])(const TileKernel *k, const Target *t) = {
        [KIND_HOST] = NULL, [KIND_NVPTX] = ptx_may_lower, [KIND_AMDGPU] = amd_may_lower};
    const Target *t = target_get(p->target);
    Status s = STATUS_DONE;
    for (int i = 0; i < p->kernels.n && may[t->kind] && s == STATUS_DONE; i++) {
        s = may[t->kind](p->kernels.data[i], t);
        if (s == STATUS_DONE) s = has_layouts(p->kernels.data[i]);
    }
    return s;
}

static Status lower(TileFile *f) {
    Status may = may_lower(f->p);
    if (may != STATUS_DONE) return may;
    void *code = NULL;
    size_t n = 0;
    CgOptions o = {.opt = f->o->level, .checks = f->o->debug};
    const TileProgram *p = f->p;
    bool good =
        cg_emit(&p, 1, &o, f->o->emit == EMIT_LLVM ? CG_LLVM : CG_ASM, &f->diags, &code, &n);
    Status s = good ? file_write(f->o->output ? f->o->output : "-", code, n) : STATUS_INPUT;
    free(code);
    return s;
}

static Status suits(const Options *o) {
    if (o->emit == EMIT_AST || o->emit == EMIT_ROW)
        return cmd_fail(STATUS_USAGE, "a tile program has no ast and no row form");
    if (o->emit == EMIT_NONE && o->output && strcmp(o->output, "-") != 0 &&
        !cmd_has_extension(o->output, ".tile"))
        return cmd_fail(STATUS_USAGE,
                        "-o %s: a tile program is printed to a .tile file; --emit=llvm or "
                        "--emit=asm gives code",
                        o->output);
    if (o->has_target || o->has_dtype || o->entry || o->defines.n)
        return cmd_fail(STATUS_USAGE, "--target, --dtype, --entry and -D are for sources: a tile "
                                      "program says what it is for itself");
    return STATUS_DONE;
}

static Status transform(TileFile *f) {
    bool code = f->o->emit == EMIT_LLVM || f->o->emit == EMIT_ASM;
    Status s = f->o->pass ? run_pass(f) : STATUS_DONE;
    if (s != STATUS_DONE) return s;
    if ((code || f->o->emit == EMIT_SCHEDULE) && !f->p->scheduled)
        return cmd_fail(STATUS_INPUT,
                        "the program is not scheduled; --pass=schedule does it, where the tile "
                        "extents are chosen");
    return code ? lower(f) : print(f);
}

Status cmd_tile(const Options *o) {
    Status s = suits(o);
    if (s != STATUS_DONE) return s;
    TileFile f = {.arena = arena_new(), .o = o};
    f.diags = diag_list(f.arena);
    s = read_program(&f, o->files.data[0]);
    if (s == STATUS_DONE) s = transform(&f);
    diag_print(&f.diags, stderr);
    arena_free(f.arena);
    return s;
}
