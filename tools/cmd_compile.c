// cmd_compile.c: `attnc FILE.attn -o OUT` and --emit. Everything is made in memory; OUT is touched
// when all of it is there.
#include "cmd.h"
#include "files.h"
#include "header.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct Form {
    TargetId target;
    CgForm form;
    bool header; // OUT.h beside it
} Form;

static const char *extension_of(const char *path) {
    const char *slash = strrchr(path, '/'), *dot = strrchr(slash ? slash : path, '.');
    return dot ? dot : "";
}

static bool is_extension(const char *ext) {
    for (int t = 0; t < TARGET_COUNT; t++)
        if (strcmp(ext, target_get((TargetId)t)->extension) == 0) return true;
    return false;
}

static TargetId by_extension(const char *ext) {
    if (strcmp(ext, ".ptx") == 0) return cmd_gpu_target(NULL, DEVICE_CUDA, 0);
    return strcmp(ext, ".hsaco") == 0 ? cmd_gpu_target(NULL, DEVICE_HIP, 0) : TARGET_HOST;
}

// By the extension: a target whose files end so, or the kind of text that .s and .ll hold for any
// target.
static Status choose_form(const Options *o, Form *f) {
    const char *ext = o->output ? extension_of(o->output) : "";
    bool text = strcmp(ext, ".s") == 0 || strcmp(ext, ".ll") == 0;
    *f = (Form){o->has_target ? o->target : by_extension(ext), CG_OBJECT, false};
    if (o->emit != EMIT_NONE) {
        f->form = o->emit == EMIT_LLVM ? CG_LLVM : CG_ASM;
        return STATUS_DONE;
    }
    if (!o->output)
        return cmd_fail(STATUS_USAGE,
                        "nothing to write: give -o OUT.{ptx,hsaco,o,s,ll} or --emit=FORM");
    const Target *t = target_get(f->target);
    if (!text && !is_extension(ext))
        return cmd_fail(STATUS_USAGE,
                        "-o %s: its extension says what is written: .o (host), .ptx (sm_80, "
                        "sm_90a), .hsaco (gfx90a, gfx942, gfx1100), or .s and .ll (the text for "
                        "any --target)",
                        o->output);
    if (!text && strcmp(ext, t->extension) != 0)
        return cmd_fail(STATUS_USAGE, "-o %s: %s is written to a file that ends in %s, .s or .ll",
                        o->output, t->name, t->extension);
    if (strcmp(ext, ".ll") == 0)
        f->form = CG_LLVM;
    else
        f->form = text ? CG_ASM : compile_artifact(t->id);
    f->header = f->form == CG_OBJECT && t->kind == KIND_HOST;
    return STATUS_DONE;
}

static bool print_form(Compile *c, Emit emit, Text *t) {
    if (emit == EMIT_AST) return fe_print_ast(t, c->module), true;
    if (emit == EMIT_ROW) {
        if (!compile_streams(c)) return false;
        for (int i = 0; i < c->rows.n; i++) {
            row_print(t, c->rows.data[i]);
            stream_print(t, c->streams.data[i]);
        }
        for (int i = 0; i < c->chunks.n; i++) {
            rec_print(t, c->recurrences.data[i]);
            chunk_print(t, c->chunks.data[i]);
        }
        return true;
    }
    if (!(emit == EMIT_TILE ? compile_algorithm(c) : compile_tiles(c))) return false;
    for (int i = 0; i < c->tiles.n; i++) tile_print(t, c->tiles.data[i]);
    return true;
}

static Status write_text(Compile *c, const Options *o) {
    Text t = text_new(c->arena);
    text_puts(&t, "");
    bool good = print_form(c, o->emit, &t);
    Status s = cmd_report(c, good ? STATUS_DONE : STATUS_INPUT);
    return s != STATUS_DONE ? s : file_write(o->output ? o->output : "-", t.s, t.n);
}

static Status write_code(Compile *c, const Options *o, const Form *f) {
    void *code = NULL;
    size_t n = 0;
    bool good = compile_emit(c, f->form, &code, &n);
    Status s = cmd_report(c, good ? STATUS_DONE : STATUS_INPUT);
    FileOut files[2] = {{.path = o->output ? o->output : "-", .data = code, .n = n}};
    Text t;
    if (s == STATUS_DONE && f->header) {
        s = header_text(c->arena, o->output, code, n, &t);
        if (s == STATUS_DONE)
            files[1] = (FileOut){.path = header_path(c->arena, o->output), .data = t.s, .n = t.n};
    }
    if (s == STATUS_DONE) s = files_write(files, f->header ? 2 : 1);
    free(code);
    return s;
}

Status cmd_compile(const Options *o) {
    Form f;
    Compile c;
    if (cmd_has_extension(o->files.data[0], ".tile")) return cmd_tile(o);
    if (o->pass)
        return cmd_fail(STATUS_USAGE,
                        "--pass is for tile programs: --emit=tile -o FILE.tile makes one");
    Status s = choose_form(o, &f);
    if (s != STATUS_DONE) return s;
    s = cmd_open(&c, o, o->files.data[0], f.target,
                 o->has_dtype              ? o->dtype
                 : f.target == TARGET_HOST ? DT_F32
                                           : DT_BF16);
    if (s == STATUS_DONE)
        s = o->emit != EMIT_NONE && o->emit < EMIT_LLVM ? write_text(&c, o) : write_code(&c, o, &f);
    compile_close(&c);
    return s;
}
