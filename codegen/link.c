// link.c: an object file to a shared object, by LLVM's linker: what AMD's loaders take.
//
// In: an object in memory. Out: the linked file in memory, or an error that says what is missing or
// what the linker said. The linker reads and writes files: they are in a folder of their own, which
// is gone on every way out.
//
// To start the linker takes longer than to link. It is started before there is an object, and made
// to wait by an argument that is read from a pipe: nothing ever comes through it, its end is the sign.
#include "codegen/cg.h"
#include "ir/read.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

struct CgLink {
    const char *in, *out, *log, *folder;
    pid_t child; // 0: it could not be started,
    int error;   // for this reason
    int gate;    // the pipe's end that is ours
};

static bool failed(Cg *cg, const char *what, int error) {
    diag_error(cg->diags, (Span){0}, "linking: %s: %s", what, strerror(error));
    return false;
}

static bool make_folder(Cg *cg, CgLink *l) {
    const char *tmp = getenv("TMPDIR");
    char *name = arena_printf(cg->arena, "%s/attnc-XXXXXX", tmp && *tmp ? tmp : "/tmp");
    if (!mkdtemp(name)) return failed(cg, name, errno);
    l->folder = name;
    l->in = arena_printf(cg->arena, "%s/in.o", name);
    l->out = arena_printf(cg->arena, "%s/out", name);
    l->log = arena_printf(cg->arena, "%s/log", name);
    return true;
}

static void remove_folder(const CgLink *l) {
    unlink(l->in);
    unlink(l->out);
    unlink(l->log);
    rmdir(l->folder);
}

// 0, or why it could not be started.
static int start(CgLink *l, const char *name, int gate) {
    const char *argv[] = {name, "-shared", "--threads=1", "-o", l->out, l->in, "@/dev/stdin", NULL};
    posix_spawn_file_actions_t to;
    int error = posix_spawn_file_actions_init(&to);
    if (error) return error;
    error = posix_spawn_file_actions_adddup2(&to, gate, 0);
    for (int fd = 1; fd <= 2 && !error; fd++)
        error =
            posix_spawn_file_actions_addopen(&to, fd, l->log, O_WRONLY | O_CREAT | O_APPEND, 0600);
    if (!error) error = posix_spawnp(&l->child, name, &to, NULL, (char **)(uintptr_t)argv, environ);
    posix_spawn_file_actions_destroy(&to);
    return error;
}

CgLink *cg_link_start(Cg *cg) {
    CgLink *l = ARENA_NEW(cg->arena, CgLink);
    const char *names[] = {arena_printf(cg->arena, "ld.lld-%d", LLVM_VERSION_MAJOR), "ld.lld"};
    int ends[2];
    if (!make_folder(cg, l)) return NULL;
    if (pipe2(ends, O_CLOEXEC)) {
        l->error = errno;
        return l;
    }
    l->error = ENOENT;
    for (int i = 0; i < 2 && l->error == ENOENT; i++) l->error = start(l, names[i], ends[0]);
    close(ends[0]);
    l->gate = ends[1];
    if (l->error) l->child = 0, close(l->gate);
    return l;
}

static bool write_file(Cg *cg, const CgLink *l, const void *bytes, size_t n) {
    FILE *f = fopen(l->in, "wb");
    if (!f) return failed(cg, l->in, errno);
    bool good = fwrite(bytes, 1, n, f) == n;
    good = fclose(f) == 0 && good;
    return good || failed(cg, l->in, errno);
}

static bool started(Cg *cg, const CgLink *l) {
    if (l->error == ENOENT)
        diag_error(cg->diags, (Span){0},
                   "code for %s is linked by ld.lld, which is not on the PATH (package lld-%d); "
                   "-o FILE.s needs no linker",
                   cg->target->name, LLVM_VERSION_MAJOR);
    else if (l->error)
        failed(cg, "ld.lld cannot be started", l->error);
    return !l->error;
}

// False: it did not end as it should; errno is 0 when it is the linker that says so.
static bool wait_for(CgLink *l) {
    int status;
    pid_t child = l->child, got;
    l->child = 0;
    while ((got = waitpid(child, &status, 0)) < 0 && errno == EINTR) continue;
    if (got < 0) return false;
    errno = 0;
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

enum { MOST_SAID = 1 << 20 };

static bool run_linker(Cg *cg, CgLink *l) {
    close(l->gate);
    if (wait_for(l)) return true;
    if (errno) return failed(cg, "ld.lld", errno);
    size_t n;
    void *said = NULL;
    read_file(l->log, MOST_SAID, &said, &n);
    diag_error(cg->diags, (Span){0}, "ld.lld failed: %s",
               said ? (const char *)said : "it said nothing");
    free(said);
    return false;
}

bool cg_link(Cg *cg, CgLink *l, const void *object, size_t n, void **out, size_t *out_n) {
    bool good = started(cg, l) && write_file(cg, l, object, n) && run_linker(cg, l);
    if (good && read_file(l->out, SIZE_MAX, out, out_n)) good = failed(cg, l->out, errno);
    return good;
}

void cg_link_end(CgLink *l) {
    if (!l) return;
    if (l->child) {
        kill(l->child, SIGKILL);
        wait_for(l);
        close(l->gate);
    }
    remove_folder(l);
}
