// names.c: see names.h. The table is open addressing at most half full; nothing is ever removed
// from it.
#include "frontend/names.h"

#include <assert.h>
#include <string.h>

static uint64_t hash_of(const char *s) { // FNV-1a
    uint64_t h = 1469598103934665603u;
    for (; *s; s++) h = (h ^ (unsigned char)*s) * 1099511628211u;
    return h;
}

// The slot that holds the name, or the free one where it belongs.
static int *find_slot(const NameMap *m, const char *name, uint64_t hash) {
    for (uint64_t i = hash;; i++) {
        int *slot = &m->slots[i & (uint64_t)(m->nslots - 1)];
        if (!*slot) return slot;
        const NameEntry *e = &m->entries.data[*slot - 1];
        if (e->hash == hash && strcmp(e->name, name) == 0) return slot;
    }
}

static void rehash(Arena *a, NameMap *m) {
    m->nslots = m->nslots ? m->nslots * 2 : 16;
    m->slots = ARENA_ARRAY(a, int, m->nslots);
    for (int i = 0; i < m->entries.n; i++)
        *find_slot(m, m->entries.data[i].name, m->entries.data[i].hash) = i + 1;
}

void names_put(Arena *a, NameMap *m, const char *name, void *value) {
    assert(value && !names_get(m, name));
    if (m->entries.n * 2 >= m->nslots) rehash(a, m);
    NameEntry e = {name, hash_of(name), value};
    VEC_PUSH(a, &m->entries, e);
    *find_slot(m, name, e.hash) = m->entries.n;
}

void *names_get(const NameMap *m, const char *name) {
    if (!m->nslots) return NULL;
    int slot = *find_slot(m, name, hash_of(name));
    return slot ? m->entries.data[slot - 1].value : NULL;
}

enum { GUESS_LENGTH = 40 }; // longer names are not compared: nobody misspells them into each other

void names_guess_init(NameGuess *g, const char *wanted) {
    int n = (int)strnlen(wanted, GUESS_LENGTH);
    *g = (NameGuess){.wanted = wanted, .distance = n < 3 ? 1 : n / 3 + 1};
}

static int least(int a, int b, int c) {
    int m = a < b ? a : b;
    return m < c ? m : c;
}

void names_guess(NameGuess *g, const char *candidate) {
    int n = (int)strnlen(g->wanted, GUESS_LENGTH), m = (int)strnlen(candidate, GUESS_LENGTH);
    if (n == GUESS_LENGTH || m == GUESS_LENGTH || n - m >= g->distance || m - n >= g->distance)
        return;
    int rows[3][GUESS_LENGTH + 1];
    for (int j = 0; j <= m; j++) rows[0][j] = j;
    for (int i = 1; i <= n; i++) {
        int *now = rows[i % 3], *before = rows[(i + 2) % 3], *two = rows[(i + 1) % 3];
        now[0] = i;
        for (int j = 1; j <= m; j++) {
            const char *a = g->wanted + i - 1, *b = candidate + j - 1;
            now[j] = least(now[j - 1] + 1, before[j] + 1, before[j - 1] + (*a != *b));
            if (i > 1 && j > 1 && a[0] == b[-1] && a[-1] == b[0] && two[j - 2] + 1 < now[j])
                now[j] = two[j - 2] + 1;
        }
    }
    int distance = rows[n % 3][m];
    if (distance > 0 && distance < g->distance) {
        g->distance = distance;
        g->best = candidate;
    }
}
