// cmd_lsp.c: `attnc lsp`: the language service (service/service.h) over stdin and stdout, each message
// after a header with its length. One thread: input is also read while an answer is written and while
// the service works, so that neither waits for the other and a request can be cancelled. The
// library's modules are written into the cache's folder, where editors can open them.
#include "cache.h"
#include "cmd.h"
#include "files.h"
#include "frontend/ast.h"
#include "ir/read.h"
#include "library.h"
#include "service/service.h"
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    MOST_MESSAGE = 1 << 28, // bytes; the largest source, with every byte escaped, is smaller
    PIECE = 4096            // a pipe that is ready takes so much without blocking
};

typedef struct Session {
    Service *service;
    char *input; // what was read and not taken
    size_t n, cap;
    bool ended, broken; // nothing more comes; the client cannot be reached or speaks no LSP
} Session;

// ---- in

static void read_some(Session *c) {
    if (c->cap - c->n < (1 << 16)) {
        size_t cap = 2 * c->cap + (1 << 17);
        char *more = realloc(c->input, cap);
        if (!more) {
            c->broken = true;
            return;
        }
        c->input = more;
        c->cap = cap;
    }
    ssize_t got = read(STDIN_FILENO, c->input + c->n, 1 << 16);
    if (got > 0)
        c->n += (size_t)got;
    else if (got == 0 || (errno != EINTR && errno != EAGAIN))
        c->ended = true;
}

// Reads if there is anything within so many milliseconds (-1: however long it takes).
static void read_within(Session *c, int ms) {
    struct pollfd in = {.fd = STDIN_FILENO, .events = POLLIN};
    if (!c->ended && poll(&in, 1, ms) > 0) read_some(c);
}

// The header at the start of the input: its bytes, 0 where it is not complete.
static size_t read_header(const Session *c, size_t *length, bool *has_length) {
    static const char name[] = "Content-Length:";
    *has_length = false;
    for (size_t line = 0; line < c->n;) {
        const char *start = c->input + line, *end = memchr(start, '\n', c->n - line);
        if (!end) return 0;
        size_t n = (size_t)(end - start);
        line += n + 1;
        if (n == 0 || (n == 1 && *start == '\r')) return line;
        if (n < sizeof name || strncasecmp(start, name, sizeof name - 1) != 0) continue;
        char *digits_end;
        unsigned long long v = strtoull(start + sizeof name - 1, &digits_end, 10);
        *has_length = digits_end > start + sizeof name - 1;
        *length = v < MOST_MESSAGE ? (size_t)v : MOST_MESSAGE;
    }
    return 0;
}

// Hands the complete messages on.
static void take_messages(Session *c) {
    size_t length = 0, header;
    bool has_length;
    while (!c->broken && (header = read_header(c, &length, &has_length))) {
        if (!has_length || length >= MOST_MESSAGE) {
            c->broken = true; // where the next message begins is not known
            return;
        }
        if (c->n - header < length) return;
        service_receive(c->service, c->input + header, length);
        memmove(c->input, c->input + header + length, c->n - header - length);
        c->n -= header + length;
    }
}

static void take_waiting(void *ctx) {
    Session *c = ctx;
    read_within(c, 0);
    take_messages(c);
}

// ---- out

static void write_all(Session *c, const char *s, size_t n) {
    while (n && !c->broken) {
        struct pollfd both[] = {{.fd = STDOUT_FILENO, .events = POLLOUT},
                                {.fd = c->ended ? -1 : STDIN_FILENO, .events = POLLIN}};
        if (poll(both, 2, -1) < 0 && errno != EINTR) c->broken = true;
        if (both[1].revents) read_some(c);
        if (!both[0].revents) continue;
        ssize_t put = write(STDOUT_FILENO, s, n < PIECE ? n : PIECE);
        if (put < 0 && errno != EINTR && errno != EAGAIN) c->broken = true;
        if (put < 0) continue;
        s += put;
        n -= (size_t)put;
    }
}

static void send_message(void *ctx, const char *json, size_t n) {
    char header[40];
    int bytes = snprintf(header, sizeof header, "Content-Length: %zu\r\n\r\n", n);
    write_all(ctx, header, (size_t)bytes);
    write_all(ctx, json, n);
}

// ---- files

static bool read_import(void *ctx, Arena *a, const char *path, const char **text, size_t *n,
                        const char **why) {
    (void)ctx;
    void *bytes;
    *why = read_file(path, AST_MAX_BYTES, &bytes, n);
    if (*why) return false;
    *text = arena_strndup(a, bytes, *n);
    free(bytes);
    return true;
}

static bool same_file(const LibraryFile *f, const char *path) {
    void *bytes;
    size_t n;
    if (read_file(path, AST_MAX_BYTES, &bytes, &n)) return false;
    bool same = n == f->n && !memcmp(bytes, f->text, n);
    free(bytes);
    return same;
}

static bool make_folders(char *path) {
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        bool made = mkdir(path, 0777) == 0 || errno == EEXIST;
        *slash = '/';
        if (!made) return false;
    }
    return true;
}

// The library as files that are only to be read. NULL: they cannot be written.
static const char *write_library(Arena *a) {
    const char *cache = cache_folder(a);
    if (!cache || cache[0] != '/') return NULL;
    char *folder = arena_printf(a, "%s/std-%s/", cache, attn_version());
    if (!make_folders(folder)) return NULL;
    for (size_t i = 0; library_at(i); i++) {
        const LibraryFile *f = library_at(i);
        const char *path = arena_printf(a, "%s%s", folder, strrchr(f->path, '/') + 1);
        const char *temp = arena_printf(a, "%s.%d", path, (int)getpid());
        if (same_file(f, path)) continue;
        FILE *out = fopen(temp, "wb");
        bool good = out && fwrite(f->text, 1, f->n, out) == f->n;
        if (out) good &= fclose(out) == 0;
        if (!good || chmod(temp, 0444) || rename(temp, path)) return NULL;
    }
    return folder;
}

Status cmd_lsp(const Options *o) {
    Arena *a = arena_new();
    Session c = {0};
    const char *folder = write_library(a);
    ServiceHost host = {.ctx = &c,
                        .send = send_message,
                        .read = read_import,
                        .poll = take_waiting,
                        .dirs = o->include.data,
                        .ndirs = o->include.n,
                        .library = folder ? arena_printf(a, "file://%s", folder) : "attn-std:/",
                        .version = attn_version()};
    signal(SIGPIPE, SIG_IGN);
    c.service = service_open(&host);
    while (service_status(c.service) < 0 && !c.broken) {
        take_waiting(&c);
        if (service_step(c.service)) continue;
        if (c.ended || c.broken) break;
        read_within(&c, -1);
    }
    int status = service_status(c.service);
    service_close(c.service);
    free(c.input);
    arena_free(a);
    return status == 0 ? STATUS_DONE : STATUS_INPUT;
}
