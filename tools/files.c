// files.c: see files.h. An output is written to a temporary beside it and renamed over it: readers
// see the old file or the new one, and an error leaves the old one untouched. Of several outputs all
// temporaries are there before the first rename.
#include "files.h"
#include "ir/read.h"
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

Status file_read(const char *path, void **out, size_t *n) {
    const char *why = read_file(path, SIZE_MAX, out, n);
    return why ? cmd_fail(STATUS_SYSTEM, "cannot read %s: %s", path, why) : STATUS_DONE;
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
// would give it, or those of the file that it replaces, and its owner.
static void usual_mode(int fd, const struct stat *old) {
    mode_t mask = umask(0);
    umask(mask);
    mode_t mode = old ? old->st_mode & 07777 : 0666 & ~mask;
    if (old && fchown(fd, old->st_uid, old->st_gid) != 0) mode &= 0777; // it is ours now
    if (fchmod(fd, mode) != 0) return; // readable by its owner at least
}

static Status cannot(const char *path, int error) {
    return cmd_fail(STATUS_SYSTEM, "cannot write %s: %s", path, strerror(error));
}

// What the file holds, beside it. The name that the temporary is to have is in f->real.
static Status write_beside(FileOut *f, const struct stat *old) {
    size_t len = strlen(f->real);
    f->temp = malloc(len + sizeof ".XXXXXX");
    if (!f->temp) return cannot(f->path, ENOMEM);
    memcpy(f->temp, f->real, len);
    memcpy(f->temp + len, ".XXXXXX", sizeof ".XXXXXX");
    int fd = mkstemp(f->temp);
    FILE *out = fd < 0 ? NULL : fdopen(fd, "wb");
    bool good = out && put(out, f->data, f->n) && (!f->durable || fsync(fd) == 0);
    int error = errno;
    if (out) usual_mode(fd, old);
    if (out && fclose(out) != 0 && good) good = false, error = errno;
    if (good) return STATUS_DONE;
    if (fd >= 0) unlink(f->temp);
    free(f->temp);
    f->temp = NULL;
    return cannot(f->path, error);
}

static Status stage(FileOut *f) {
    struct stat st;
    bool old = stat(f->path, &st) == 0;
    f->temp = f->real = NULL;
    if (strcmp(f->path, "-") == 0 || (old && !S_ISREG(st.st_mode))) return STATUS_DONE;
    if (!old && lstat(f->path, &st) == 0) return STATUS_DONE;  // a link to what is to be made
    f->real = old ? realpath(f->path, NULL) : strdup(f->path); // a link is followed
    if (!f->real || (old && access(f->path, W_OK) != 0)) return cannot(f->path, errno);
    return write_beside(f, old ? &st : NULL);
}

// A file is replaced by one beside it, so its folder is written too.
static Status folder_may_be_written(const char *path, const char *file) {
    const char *slash = strrchr(file, '/');
    char *folder = !slash          ? strdup(".")
                   : slash == file ? strdup("/")
                                   : strndup(file, (size_t)(slash - file));
    int error = !folder ? ENOMEM : access(folder, W_OK | X_OK) == 0 ? 0 : errno;
    free(folder);
    return error ? cannot(path, error) : STATUS_DONE;
}

Status file_may_be_written(const char *path) {
    struct stat st;
    if (strcmp(path, "-") == 0) return STATUS_DONE;
    if (stat(path, &st) != 0) // not there; a link to what is not there is written through
        return lstat(path, &st) == 0 ? STATUS_DONE : folder_may_be_written(path, path);
    if (S_ISDIR(st.st_mode)) return cannot(path, EISDIR);
    if (access(path, W_OK) != 0) return cannot(path, errno);
    if (!S_ISREG(st.st_mode)) return STATUS_DONE;
    char *real = realpath(path, NULL);
    Status s = real ? folder_may_be_written(path, real) : cannot(path, errno);
    free(real);
    return s;
}

static Status in_place(const FileOut *f) {
    if (strcmp(f->path, "-") != 0) return write_in_place(f->path, f->data, f->n);
    if (put(stdout, f->data, f->n)) return STATUS_DONE;
    return cmd_fail(STATUS_SYSTEM, "cannot write to stdout: %s", strerror(errno));
}

static Status rename_over(FileOut *f) {
    if (rename(f->temp, f->real) != 0) return cannot(f->path, errno);
    free(f->temp);
    f->temp = NULL;
    return STATUS_DONE;
}

Status files_write(FileOut *files, int n) {
    Status s = STATUS_DONE;
    for (int i = 0; i < n; i++) files[i].temp = files[i].real = NULL;
    for (int i = 0; i < n && s == STATUS_DONE; i++) s = stage(&files[i]);
    for (int i = 0; i < n && s == STATUS_DONE; i++)
        if (!files[i].temp) s = in_place(&files[i]);
    for (int i = 0; i < n && s == STATUS_DONE; i++)
        if (files[i].temp) s = rename_over(&files[i]);
    for (int i = 0; i < n; i++) {
        if (files[i].temp) unlink(files[i].temp);
        free(files[i].temp);
        free(files[i].real);
    }
    return s;
}

Status file_write(const char *path, const void *data, size_t n) {
    FileOut f = {.path = path, .data = data, .n = n};
    return files_write(&f, 1);
}

// The folder's real path and the name in it; NULL where the folder does not exist.
static char *full_name(const char *path) {
    const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;
    char *dir = slash ? strndup(path, (size_t)(slash - path) + 1) : strdup("."), *all = NULL;
    char *real = dir ? realpath(dir, NULL) : NULL;
    if (real && asprintf(&all, "%s/%s", real, base) < 0) all = NULL;
    free(dir);
    free(real);
    return all;
}

bool file_same(const char *a, const char *b) {
    struct stat s, t;
    bool olda = stat(a, &s) == 0, oldb = stat(b, &t) == 0;
    if (strcmp(a, "-") == 0 || strcmp(b, "-") == 0) return false;
    if (olda && oldb) return S_ISREG(s.st_mode) && s.st_dev == t.st_dev && s.st_ino == t.st_ino;
    if (olda || oldb) return false;
    char *x = full_name(a), *y = full_name(b);
    bool same = x && y && strcmp(x, y) == 0;
    free(x);
    free(y);
    return same;
}
