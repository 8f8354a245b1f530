// link.c: an object file to a shared object, by LLVM's linker: what AMD's loaders take.
//
// In: an object in memory. Out: the linked file in memory, or an error that says what is missing or
// what the linker said. The linker reads and writes files: they are in a folder of their own, which
// is gone on every way out.
#include "codegen/cg.h"
#include "ir/read.h"

#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

typedef struct Link {
    Cg *cg;
    const char *folder, *in, *out, *log;
} Link;

static bool failed(Link *l, const char *what) {
    diag_error(l->cg->diags, (Span){0}, "linking: %s: %s", what, strerror(errno));
    return false;
}

static bool make_folder(Link *l) {
    const char *tmp = getenv("TMPDIR");
    char *name = arena_printf(l->cg->arena, "%s/attnc-XXXXXX", tmp && *tmp ? tmp : "/tmp");
    if (!mkdtemp(name)) return failed(l, name);
    l->folder = name;
    l->in = arena_printf(l->cg->arena, "%s/in.o", name);
    l->out = arena_printf(l->cg->arena, "%s/out", name);
    l->log = arena_printf(l->cg->arena, "%s/log", name);
    return true;
}

static void remove_folder(const Link *l) {
    unlink(l->in);
    unlink(l->out);
    unlink(l->log);
    rmdir(l->folder);
}

static bool write_file(Link *l, const void *bytes, size_t n) {
    FILE *f = fopen(l->in, "wb");
    if (!f) return failed(l, l->in);
    bool good = fwrite(bytes, 1, n, f) == n;
    good = fclose(f) == 0 && good;
    return good || failed(l, l->in);
}

// 0, or why it could not be started.
static int start(const Link *l, const char *name, pid_t *child) {
    const char *argv[] = {name, "-shared", "--threads=1", "-o", l->out, l->in, NULL};
    posix_spawn_file_actions_t to;
    int error = posix_spawn_file_actions_init(&to);
    if (error) return error;
    for (int fd = 1; fd <= 2 && !error; fd++)
        error =
            posix_spawn_file_actions_addopen(&to, fd, l->log, O_WRONLY | O_CREAT | O_APPEND, 0600);
    if (!error) error = posix_spawnp(child, name, &to, NULL, (char **)(uintptr_t)argv, environ);
    posix_spawn_file_actions_destroy(&to);
    return error;
}

enum { MOST_SAID = 1 << 20 };

static bool run_linker(Link *l) {
    Arena *a = l->cg->arena;
    const char *names[] = {arena_printf(a, "ld.lld-%d", LLVM_VERSION_MAJOR), "ld.lld"};
    pid_t child;
    int status, error = ENOENT;
    for (int i = 0; i < 2 && error == ENOENT; i++) error = start(l, names[i], &child);
    if (error == ENOENT) {
        diag_error(l->cg->diags, (Span){0},
                   "code for %s is linked by ld.lld, which is not on the PATH (package lld-%d); "
                   "-o FILE.s needs no linker",
                   l->cg->target->name, LLVM_VERSION_MAJOR);
        return false;
    }
    errno = error;
    if (error) return failed(l, "ld.lld cannot be started");
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR) return failed(l, "ld.lld");
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return true;
    size_t n;
    void *said = NULL;
    read_file(l->log, MOST_SAID, &said, &n);
    diag_error(l->cg->diags, (Span){0}, "ld.lld failed: %s",
               said ? (const char *)said : "it said nothing");
    free(said);
    return false;
}

bool cg_link(Cg *cg, const void *object, size_t n, void **out, size_t *out_n) {
    Link l = {.cg = cg};
    if (!make_folder(&l)) return false;
    bool good = write_file(&l, object, n) && run_linker(&l);
    if (good && read_file(l.out, SIZE_MAX, out, out_n)) good = failed(&l, l.out);
    remove_folder(&l);
    return good;
}
