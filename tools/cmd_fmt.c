// cmd_fmt.c: `attnc fmt`: sources in their canonical form (fe_format). A file is replaced, all at
// once, only where that changes it; one that does not parse is left alone.
#include "cmd.h"
#include "files.h"
#include "frontend/ast.h"
#include "ir/read.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static bool is_stdin(const char *path) { return strcmp(path, "-") == 0; }

static Status read_text(const char *path, void **text, size_t *n) {
    struct stat st;
    if (!is_stdin(path) && stat(path, &st) == 0 && !S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode))
        return cmd_fail(STATUS_SYSTEM, "%s is no file that could be replaced; `-` formats stdin",
                        path);
    const char *why = is_stdin(path) ? read_stream(stdin, AST_MAX_BYTES, text, n)
                                     : read_file(path, AST_MAX_BYTES, text, n);
    return why ? cmd_fail(STATUS_SYSTEM, "cannot read %s: %s", path, why) : STATUS_DONE;
}

static Status put_text(const Options *o, const char *path, const Text *t, bool changed) {
    if (o->check) {
        if (changed) printf("%s\n", is_stdin(path) ? compile_stdin : path);
        return changed ? STATUS_INPUT : STATUS_DONE;
    }
    FileOut f = {.path = path, .data = t->s, .n = t->n, .durable = true};
    return changed || is_stdin(path) ? files_write(&f, 1) : STATUS_DONE;
}

static Status format_file(const Options *o, const char *path) {
    void *text = NULL;
    size_t n = 0;
    Status s = read_text(path, &text, &n);
    if (s != STATUS_DONE) return s;
    Arena *a = arena_new();
    Diags d = diag_list(a);
    Text t = text_new(a);
    text_puts(&t, "");
    bool good = fe_format(a, &d, is_stdin(path) ? compile_stdin : path, text, n, &t);
    if (!good) diag_print(&d, stderr); // warnings are for who compiles
    s = good ? put_text(o, path, &t, t.n != n || memcmp(t.s, text, n) != 0) : STATUS_INPUT;
    arena_free(a);
    free(text);
    return s;
}

Status cmd_fmt(const Options *o) {
    Status s = STATUS_DONE;
    for (int i = 0; i < o->files.n; i++) {
        Status now = format_file(o, o->files.data[i]);
        if (s == STATUS_DONE || now == STATUS_SYSTEM) s = now;
    }
    return s;
}
