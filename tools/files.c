// files.c: see files.h. An output is written to a temporary beside it and renamed over it: readers
// see the old file or the new one, and an error leaves the old one untouched.
#include "files.h"
#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

Status cmd_fail(Status s, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    fputs("attnc: error: ", stderr);
    vfprintf(stderr, fmt, ap);
    fputc('\n', stderr);
    va_end(ap);
    return s;
}

void cmd_note(const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    fputs("attnc: note: ", stderr);
    vfprintf(stderr, fmt, ap);
    fputc('\n', stderr);
    va_end(ap);
}

static bool slurp(FILE *f, void **out, size_t *n) {
    size_t cap = 1 << 16, used = 0;
    struct stat st;
    if (fstat(fileno(f), &st) == 0 && S_ISREG(st.st_mode) && st.st_size > 0)
        cap = (size_t)st.st_size + 2; // one for the 0, one so that the read sees the end
    char *buf = malloc(cap);
    while (buf) {
        used += fread(buf + used, 1, cap - 1 - used, f);
        if (ferror(f)) break;
        if (feof(f)) {
            buf[used] = 0;
            *out = buf;
            *n = used;
            return true;
        }
        if (used + 1 < cap) continue;
        char *more = cap > SIZE_MAX / 2 ? NULL : realloc(buf, cap * 2);
        if (!more) {
            errno = ENOMEM;
            break;
        }
        buf = more;
        cap *= 2;
    }
    free(buf);
    return false;
}

Status file_read(const char *path, void **out, size_t *n) {
    struct stat st;
    FILE *f = fopen(path, "rb");
    if (!f) return cmd_fail(STATUS_SYSTEM, "cannot open %s: %s", path, strerror(errno));
    if (fstat(fileno(f), &st) == 0 && S_ISDIR(st.st_mode))
        errno = EISDIR;
    else if (slurp(f, out, n)) {
        fclose(f);
        return STATUS_DONE;
    }
    Status s = cmd_fail(STATUS_SYSTEM, "cannot read %s: %s", path, strerror(errno));
    fclose(f);
    return s;
}

static bool put(FILE *f, const void *data, size_t n) {
    bool good = fwrite(data, 1, n, f) == n;
    return fflush(f) == 0 && good;
}

static Status write_in_place(const char *path, const void *data, size_t n) {
    FILE *f = fopen(path, "wb");
    if (!f) return cmd_fail(STATUS_SYSTEM, "cannot write %s: %s", path, strerror(errno));
    bool good = put(f, data, n);
    int error = errno;
    if (fclose(f) == 0 && good) return STATUS_DONE;
    return cmd_fail(STATUS_SYSTEM, "cannot write %s: %s", path, strerror(good ? errno : error));
}

// mkstemp makes files that only their owner may read; an output has the mode that any other program
// would give it.
static void usual_mode(int fd, const struct stat *old) {
    mode_t mask = umask(0);
    umask(mask);
    if (fchmod(fd, old ? (old->st_mode & 07777) : (0666 & ~mask)) != 0)
        return; // readable by its owner at least
}

static Status replace(const char *path, const struct stat *old, const void *data, size_t n) {
    size_t len = strlen(path);
    char *temp = malloc(len + sizeof ".XXXXXX");
    if (!temp) return cmd_fail(STATUS_SYSTEM, "cannot write %s: out of memory", path);
    memcpy(temp, path, len);
    memcpy(temp + len, ".XXXXXX", sizeof ".XXXXXX");
    int fd = mkstemp(temp);
    FILE *f = fd < 0 ? NULL : fdopen(fd, "wb");
    bool good = f && put(f, data, n);
    int error = errno;
    if (f) usual_mode(fd, old);
    if (f && fclose(f) != 0 && good) good = false, error = errno;
    if (good && rename(temp, path) != 0) good = false, error = errno;
    if (!good && fd >= 0) unlink(temp);
    free(temp);
    return good ? STATUS_DONE
                : cmd_fail(STATUS_SYSTEM, "cannot write %s: %s", path, strerror(error));
}

Status file_write(const char *path, const void *data, size_t n) {
    if (strcmp(path, "-") == 0) {
        if (put(stdout, data, n)) return STATUS_DONE;
        return cmd_fail(STATUS_SYSTEM, "cannot write to stdout: %s", strerror(errno));
    }
    struct stat st;
    if (stat(path, &st) != 0) return replace(path, NULL, data, n);
    if (!S_ISREG(st.st_mode)) return write_in_place(path, data, n);
    char *real = realpath(path, NULL);
    if (access(path, W_OK) != 0 || !real) {
        free(real);
        return cmd_fail(STATUS_SYSTEM, "cannot write %s: %s", path, strerror(errno));
    }
    Status s = replace(real, &st, data, n);
    free(real);
    return s;
}
