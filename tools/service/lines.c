// lines.c: bytes of a text to positions of LSP, and back.
//
// In: any bytes. Out: lines and columns from 0; columns count UTF-16 code units, or bytes. Holds: an
// offset inside a character counts as its start, and a byte that is not UTF-8 as one unit.
#include "internal.h"

#include <string.h>

void lines_init(Lines *l, Arena *a, const char *text, size_t n) {
    *l = (Lines){.text = text, .n = n};
    VEC_PUSH(a, &l->starts, 0);
    for (size_t i = 0; i < n; i++) {
        bool pair = text[i] == '\r' && i + 1 < n && text[i + 1] == '\n';
        if ((text[i] == '\n' || text[i] == '\r') && !pair)
            VEC_PUSH(a, &l->starts, (uint32_t)(i + 1));
    }
}

// The end of a line, before what ends it.
static uint32_t line_end(const Lines *l, uint32_t line) {
    if (line + 1 >= (uint32_t)l->starts.n) return (uint32_t)l->n;
    uint32_t end = l->starts.data[line + 1] - 1; // its \n or \r
    bool pair = l->text[end] == '\n' && end > l->starts.data[line] && l->text[end - 1] == '\r';
    return pair ? end - 1 : end;
}

// Bytes of the character at i, and how many UTF-16 units it is.
static uint32_t character_at(const Lines *l, uint32_t i, uint32_t end, uint32_t *units) {
    unsigned char c = (unsigned char)l->text[i];
    uint32_t n = c < 0xc2 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : c < 0xf5 ? 4 : 1;
    *units = 1;
    if (n > end - i) return 1;
    for (uint32_t k = 1; k < n; k++)
        if (((unsigned char)l->text[i + k] & 0xc0) != 0x80) return 1;
    *units = n == 4 ? 2 : 1;
    return n;
}

uint32_t lines_offset(const Lines *l, bool utf8, uint32_t line, uint32_t character) {
    if (line >= (uint32_t)l->starts.n) return (uint32_t)l->n;
    uint32_t i = l->starts.data[line], end = line_end(l, line);
    while (i < end && character > 0) {
        uint32_t units, n = character_at(l, i, end, &units);
        uint32_t width = utf8 ? n : units;
        if (width > character) break;
        character -= width;
        i += n;
    }
    return i;
}

void lines_position(const Lines *l, bool utf8, uint32_t offset, uint32_t *line,
                    uint32_t *character) {
    uint32_t low = 0, high = (uint32_t)l->starts.n; // the line is in [low, high)
    if (offset > l->n) offset = (uint32_t)l->n;
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        if (l->starts.data[middle] <= offset)
            low = middle;
        else
            high = middle;
    }
    uint32_t column = 0, end = line_end(l, low);
    if (offset < end) end = offset;
    for (uint32_t i = l->starts.data[low]; i < end;) {
        uint32_t units, n = character_at(l, i, (uint32_t)l->n, &units);
        if (i + n > end) break;
        column += utf8 ? n : units;
        i += n;
    }
    *line = low;
    *character = column;
}

static cJSON *position(const Lines *l, bool utf8, uint32_t offset) {
    uint32_t line, character;
    lines_position(l, utf8, offset, &line, &character);
    return json_pair("line", cJSON_CreateNumber(line), "character", cJSON_CreateNumber(character));
}

cJSON *lines_range(const Lines *l, bool utf8, uint32_t start, uint32_t end) {
    return json_pair("start", position(l, utf8, start), "end", position(l, utf8, end));
}
