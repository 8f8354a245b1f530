// read.c: see read.h.
#include "ir/read.h"
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

const char *read_stream(FILE *f, size_t most, void **out, size_t *n) {
    size_t room = 1 << 14, used = 0, got = 1;
    struct stat st;
    if (fstat(fileno(f), &st) == 0 && S_ISDIR(st.st_mode)) return strerror(EISDIR);
    if (fstat(fileno(f), &st) == 0 && S_ISREG(st.st_mode) && st.st_size > 0)
        room = (size_t)st.st_size + 2; // one for the 0, one so that the read sees the end
    char *bytes = malloc(room);
    while (bytes && got > 0 && used <= most) {
        got = fread(bytes + used, 1, room - 1 - used, f);
        used += got;
        if (used + 1 < room || got == 0) continue;
        char *more = room > SIZE_MAX / 2 ? NULL : realloc(bytes, room *= 2);
        if (!more) free(bytes);
        bytes = more;
    }
    const char *why = !bytes        ? strerror(ENOMEM)
                      : ferror(f)   ? strerror(errno)
                      : used > most ? "the file is too large"
                                    : NULL;
    if (why) {
        free(bytes);
        return why;
    }
    bytes[used] = 0;
    *out = bytes;
    *n = used;
    return NULL;
}

const char *read_file(const char *path, size_t most, void **out, size_t *n) {
    FILE *f = fopen(path, "rb");
    if (!f) return strerror(errno);
    const char *why = read_stream(f, most, out, n);
    fclose(f);
    return why;
}
