// link.c: an object file to a shared object, by LLVM's linker: what AMD's loaders take.
//
// In: an object in memory. Out: the linked file in memory, or an error that says what is missing or
// what the linker said. The linker reads and writes files; these are in memory, without a name:
// nothing is left behind, however the process ends. It takes the object as its input /dev/stdin.
//
// Which linker: that of the LLVM the compiler was built with. Another one is asked for its version
// first, since an older one does not know our objects' ABI.
//
// To start the linker takes 15 ms, to link 2. It could be started before there is an object and made
// to wait, but whatever it waited for, a process that the caller forks meanwhile could hold back.
#include "codegen/cg.h"
#include "ir/read.h"
#include "llvm.inc" // LLVM_BINDIR

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
    return diag_refuse(cg->diags, (Span){0}, "linking: %s: %s", what, why);
}

// Without a buffer, which the end of a process forked meanwhile would write out a second time.
static FILE *memory_file(void) {
    int fd = memfd_create("attnc", MFD_CLOEXEC);
    FILE *f = fd < 0 ? NULL : fdopen(fd, "w+b");
    if (f) setvbuf(f, NULL, _IONBF, 0);
    if (fd >= 0 && !f) close(fd);
    return f;
}

static bool open_files(FILE **files) {
    for (int i = 0; i < STREAMS; i++)
        if (!(files[i] = memory_file())) return false;
    return true;
}

static void close_files(FILE **files) {
    for (int i = 0; i < STREAMS; i++)
        if (files[i]) fclose(files[i]);
}

// 0, or why it could not be started. The caller may have closed its own 0 to 2: as the files were
// opened in this order, none of them lies where one before it goes.
static int start(const char *const *argv, FILE *const *files, pid_t *child) {
    posix_spawn_file_actions_t to;
    int error = posix_spawn_file_actions_init(&to);
    if (error) return error;
    for (int i = 0; i < STREAMS && !error; i++)
        error = posix_spawn_file_actions_adddup2(&to, fileno(files[i]), i);
    if (!error) error = posix_spawnp(child, argv[0], &to, NULL, (char **)(uintptr_t)argv, environ);
    posix_spawn_file_actions_destroy(&to);
    return error;
}

// A caller that ignores SIGCHLD, or waits for whatever ends, takes the status away: then what was
// written tells, which the linker does last.
static bool ended_well(pid_t child) {
    int status;
    pid_t got;
    while ((got = waitpid(child, &status, 0)) < 0 && errno == EINTR) continue;
    return got < 0 || (WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

// What a linker says of its version, "19.1.7", in the arena; "" if nothing. NULL: there is none.
static const char *version(Cg *cg, const char *name) {
    const char *argv[] = {name, "--version", NULL}, *found = "";
    FILE *files[STREAMS] = {0};
    char line[256];
    pid_t child;
    int error = open_files(files) ? start(argv, files, &child) : errno;
    if (!error) {
        ended_well(child);
        rewind(files[OUT]);
        const char *lld = fgets(line, sizeof line, files[OUT]) ? strstr(line, "LLD ") : NULL;
        if (lld) found = arena_printf(cg->arena, "%.*s", (int)strcspn(lld + 4, " \n"), lld + 4);
    }
    close_files(files);
    return error == ENOENT ? NULL : found;
}

// NULL: there is none of this LLVM, which was said.
static const char *find_linker(Cg *cg) {
    const char *told = getenv("ATTNC_LLVM_BIN"), *folder = told ? told : LLVM_BINDIR, *others = "";
    const char *own = arena_printf(cg->arena, "%s/ld.lld", folder);
    if (!told && access(own, X_OK) == 0) return own;
    const char *names[] = {own, arena_printf(cg->arena, "ld.lld-%d", LLVM_VERSION_MAJOR), "ld.lld"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *v = version(cg, names[i]);
        if (v && atoi(v) == LLVM_VERSION_MAJOR) return names[i];
        if (v)
            others = arena_printf(cg->arena, "%s; %s is of %s%s", others, names[i],
                                  *v ? "LLVM " : "no version that it says", v);
    }
    diag_error(
        cg->diags, (Span){0},
        "code for %s is linked by ld.lld of LLVM %d (package lld-%d), which is neither in %s "
        "nor on the PATH%s; -o FILE.s needs no linker",
        cg->target->name, LLVM_VERSION_MAJOR, LLVM_VERSION_MAJOR, folder, others);
    return NULL;
}

enum { MOST_SAID = 1 << 20 };

static bool linked(Cg *cg, FILE *const *files, void **out, size_t *out_n) {
    pid_t child;
    const char *name = find_linker(cg);
    if (!name) return false;
    const char *argv[] = {name, "-shared", "--threads=1", "-o", "-", "/dev/stdin", NULL};
    int error = start(argv, files, &child);
    if (error) return failed(cg, name, strerror(error));
    if (ended_well(child) && fseek(files[OUT], 0, SEEK_END) == 0 && ftell(files[OUT]) > 0) {
        rewind(files[OUT]);
        const char *why = read_stream(files[OUT], SIZE_MAX, out, out_n);
        return !why || failed(cg, "what ld.lld wrote", why);
    }
    size_t n = 0;
    void *said = NULL;
    rewind(files[SAID]);
    read_stream(files[SAID], MOST_SAID, &said, &n);
    diag_error(cg->diags, (Span){0}, "%s failed: %s", name,
               n ? (const char *)said : "it said nothing");
    free(said);
    return false;
}

bool cg_link(Cg *cg, const void *object, size_t n, void **out, size_t *out_n) {
    FILE *files[STREAMS] = {0};
    bool good = open_files(files) && fwrite(object, 1, n, files[IN]) == n;
    good = good ? linked(cg, files, out, out_n) : failed(cg, "a file in memory", strerror(errno));
    close_files(files);
    return good;
}
