// note.c: see note.h.
#include "tests/gcn/note.h"
#include <string.h>

static uint64_t big(Note *at, int bytes) {
    uint64_t v = 0;
    if (at->end - at->p < bytes) {
        at->p = at->end;
        return 0;
    }
    for (int i = 0; i < bytes; i++) v = v << 8 | *at->p++;
    return v;
}

static NoteItem text(Note *at, size_t n) {
    NoteItem x = {.kind = NOTE_TEXT, .text = (const char *)at->p, .n = n};
    if ((size_t)(at->end - at->p) < n) return (NoteItem){.kind = NOTE_BAD};
    at->p += n;
    return x;
}

static NoteItem counted(NoteKind k, uint64_t n) {
    return (NoteItem){.kind = k, .value = (int64_t)n};
}

static NoteItem wide(Note *at, uint8_t c) {
    switch (c) {
    case 0xcc:
    case 0xcd:
    case 0xce:
    case 0xcf: return counted(NOTE_INT, big(at, 1 << (c - 0xcc)));
    case 0xd0: return counted(NOTE_INT, (uint64_t)(int8_t)big(at, 1));
    case 0xd1: return counted(NOTE_INT, (uint64_t)(int16_t)big(at, 2));
    case 0xd2: return counted(NOTE_INT, (uint64_t)(int32_t)big(at, 4));
    case 0xd3: return counted(NOTE_INT, big(at, 8));
    case 0xd9:
    case 0xda:
    case 0xdb: return text(at, big(at, 1 << (c - 0xd9)));
    case 0xdc:
    case 0xdd: return counted(NOTE_LIST, big(at, c == 0xdc ? 2 : 4));
    case 0xde:
    case 0xdf: return counted(NOTE_MAP, big(at, c == 0xde ? 2 : 4));
    case 0xc0:
    case 0xc2:
    case 0xc3: return (NoteItem){.kind = NOTE_OTHER, .value = c == 0xc3};
    default: return (NoteItem){.kind = NOTE_BAD};
    }
}

NoteItem note_next(Note *at) {
    if (at->p >= at->end) return (NoteItem){.kind = NOTE_BAD};
    uint8_t c = *at->p++;
    if (c < 0x80) return counted(NOTE_INT, c);
    if (c < 0x90) return counted(NOTE_MAP, c & 15);
    if (c < 0xa0) return counted(NOTE_LIST, c & 15);
    if (c < 0xc0) return text(at, c & 31);
    if (c >= 0xe0) return counted(NOTE_INT, (uint64_t)(int8_t)c);
    return wide(at, c);
}

void note_skip(Note *at) {
    for (int64_t left = 1; left > 0; left--) {
        NoteItem x = note_next(at);
        if (x.kind == NOTE_BAD) return;
        if (x.kind == NOTE_LIST) left += x.value;
        if (x.kind == NOTE_MAP) left += 2 * x.value;
    }
}

bool note_find(Note at, const char *key, Note *value) {
    NoteItem map = note_next(&at);
    if (map.kind != NOTE_MAP) return false;
    for (int64_t i = 0; i < map.value && at.p < at.end; i++) {
        NoteItem k = note_next(&at);
        if (k.kind == NOTE_TEXT && k.n == strlen(key) && memcmp(k.text, key, k.n) == 0) {
            *value = at;
            return true;
        }
        note_skip(&at);
    }
    return false;
}

int64_t note_int(Note map, const char *key, int64_t otherwise) {
    Note at;
    if (!note_find(map, key, &at)) return otherwise;
    NoteItem x = note_next(&at);
    return x.kind == NOTE_INT ? x.value : otherwise;
}
