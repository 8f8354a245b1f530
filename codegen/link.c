// link.c: an object file to a shared object, by LLVM's linker: what AMD's loaders take.
//
// In: an object in memory. Out: the linked file in memory, or an error that says what is missing or
// what the linker said. The linker reads and writes files; these are in memory, without a name:
// nothing is left behind, however the process ends. It takes the object as its input /dev/stdin.
//
// To start the linker takes 15 ms, to link 2. It could be started before there is an object and made
// to wait, but whatever it waited for, a process that the caller forks meanwhile could hold back.
#include "codegen/cg.h"
#include "ir/read.h"

#include <errno.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

enum { IN, OUT, SAID, STREAMS }; // the linker's stdin, stdout and stderr

static bool failed(Cg *cg, const char *what, const char *why) {
    diag_error(cg->diags, (Span){0}, "linking: %s: %s", what, why);
    return false;
}

// Without a buffer, which the end of a process forked meanwhile would write out a second time.
static FILE *memory_file(void) {
    int fd = memfd_create("attnc", MFD_CLOEXEC);
    FILE *f = fd < 0 ? NULL : fdopen(fd, "w+b");
    if (f) setvbuf(f, NULL, _IONBF, 0);
    if (fd >= 0 && !f) close(fd);
    return f;
}

// 0, or why it could not be started. The caller may have closed its own 0 to 2: as the files were
// opened in this order, none of them lies where one before it goes.
static int start(const char *name, FILE *const *files, pid_t *child) {
    const char *argv[] = {name, "-shared", "--threads=1", "-o", "-", "/dev/stdin", NULL};
    posix_spawn_file_actions_t to;
    int error = posix_spawn_file_actions_init(&to);
    if (error) return error;
    for (int i = 0; i < STREAMS && !error; i++)
        error = posix_spawn_file_actions_adddup2(&to, fileno(files[i]), i);
    if (!error) error = posix_spawnp(child, name, &to, NULL, (char **)(uintptr_t)argv, environ);
    posix_spawn_file_actions_destroy(&to);
    return error;
}

static bool started(Cg *cg, FILE *const *files, pid_t *child) {
    const char *names[] = {arena_printf(cg->arena, "ld.lld-%d", LLVM_VERSION_MAJOR), "ld.lld"};
    int error = ENOENT;
    for (int i = 0; i < 2 && error == ENOENT; i++) error = start(names[i], files, child);
    if (error == ENOENT)
        diag_error(cg->diags, (Span){0},
                   "code for %s is linked by ld.lld, which is not on the PATH (package lld-%d); "
                   "-o FILE.s needs no linker",
                   cg->target->name, LLVM_VERSION_MAJOR);
    else if (error)
        failed(cg, "ld.lld cannot be started", strerror(error));
    return !error;
}

// A caller that ignores SIGCHLD, or waits for whatever ends, takes the status away: then what was
// written tells, which the linker does last.
static bool ended_well(pid_t child) {
    int status;
    pid_t got;
    while ((got = waitpid(child, &status, 0)) < 0 && errno == EINTR) continue;
    return got < 0 || (WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

enum { MOST_SAID = 1 << 20 };

static bool linked(Cg *cg, FILE *const *files, void **out, size_t *out_n) {
    pid_t child;
    if (!started(cg, files, &child)) return false;
    if (ended_well(child) && fseek(files[OUT], 0, SEEK_END) == 0 && ftell(files[OUT]) > 0) {
        rewind(files[OUT]);
        const char *why = read_stream(files[OUT], SIZE_MAX, out, out_n);
        return !why || failed(cg, "what ld.lld wrote", why);
    }
    size_t n = 0;
    void *said = NULL;
    rewind(files[SAID]);
    read_stream(files[SAID], MOST_SAID, &said, &n);
    diag_error(cg->diags, (Span){0}, "ld.lld failed: %s",
               n ? (const char *)said : "it said nothing");
    free(said);
    return false;
}

bool cg_link(Cg *cg, const void *object, size_t n, void **out, size_t *out_n) {
    FILE *files[STREAMS] = {0};
    bool good = true;
    for (int i = 0; i < STREAMS && good; i++) good = (files[i] = memory_file()) != NULL;
    if (good) good = fwrite(object, 1, n, files[IN]) == n;
    good = good ? linked(cg, files, out, out_n) : failed(cg, "a file in memory", strerror(errno));
    for (int i = 0; i < STREAMS; i++)
        if (files[i]) fclose(files[i]);
    return good;
}
