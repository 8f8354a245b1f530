// note.h: the metadata note of a code object: MessagePack, read in place.
#ifndef TESTS_GCN_NOTE_H
#define TESTS_GCN_NOTE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct Note { // a place in the bytes
    const uint8_t *p, *end;
} Note;

typedef enum NoteKind { NOTE_BAD, NOTE_INT, NOTE_TEXT, NOTE_LIST, NOTE_MAP, NOTE_OTHER } NoteKind;

typedef struct NoteItem {
    NoteKind kind;
    int64_t value;    // INT; LIST: elements; MAP: pairs
    const char *text; // TEXT: not terminated
    size_t n;
} NoteItem;

// Reads one item; a list's or a map's elements follow it.
NoteItem note_next(Note *at);
void note_skip(Note *at); // one item with all that it holds
// Moves to the value of a key of the map that starts at `at`; false: there is none.
bool note_find(Note at, const char *key, Note *value);
int64_t note_int(Note map, const char *key, int64_t otherwise);

#endif
