// names.h: tables by name, in the order of their entries; and which name was probably meant.
#ifndef FRONTEND_NAMES_H
#define FRONTEND_NAMES_H

#include "ir/arena.h"
#include <stdint.h>

typedef struct NameEntry {
    const char *name;
    uint64_t hash;
    void *value;
} NameEntry;

typedef struct NameMap {
    VEC(NameEntry) entries; // in the order in which they came
    int *slots;             // hash table of index + 1 into entries
    int nslots;             // a power of two
} NameMap;

void names_put(Arena *a, NameMap *m, const char *name, void *value); // the name must be new
void *names_get(const NameMap *m, const char *name);                 // NULL when there is none

// The nearest name so far to a misspelt one; distances count inserted, lost, changed and exchanged
// letters.
typedef struct NameGuess {
    const char *wanted;
    const char *best; // NULL: nothing is near
    int distance;
} NameGuess;
void names_guess_init(NameGuess *g, const char *wanted);
void names_guess(NameGuess *g, const char *candidate);

#endif
