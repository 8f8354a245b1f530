// ptx.c: see ptx.h.
#include "ptx.h"
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static const char ENTRY[] = ".visible .entry ";
enum { ENTRY_N = sizeof ENTRY - 1 };

static bool is_entry(const char *line, size_t n) {
    return n > ENTRY_N && memcmp(line, ENTRY, ENTRY_N) == 0;
}

static bool is_of(const char *line, size_t n, const char *symbol) {
    const char *name = line + ENTRY_N;
    size_t len = strlen(symbol), room = n - ENTRY_N;
    return room > len && memcmp(name, symbol, len) == 0 && name[len] == '(';
}

char *rt_ptx_alone(const char *text, size_t n, const char *symbol) {
    char *out = malloc(n + 1), *to = out;
    bool skip = false;
    if (!out) return NULL;
    for (const char *line = text, *end = text + n; line < end;) {
        const char *eol = memchr(line, '\n', (size_t)(end - line));
        size_t bytes = (size_t)((eol ? eol + 1 : end) - line);
        if (!skip) skip = is_entry(line, bytes) && !is_of(line, bytes, symbol);
        if (!skip) {
            memcpy(to, line, bytes);
            to += bytes;
        } else if (*line == '}') {
            skip = false;
        }
        line += bytes;
    }
    *to = 0;
    return out;
}
