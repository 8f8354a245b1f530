// arena.c: blocks of zeroed memory, handed out from the front; and text built in them.
//
// In: sizes. Out: memory that lives until arena_free. Holds afterwards: every pointer is aligned to
// 16 bytes, memory is zeroed, and no pointer ever moves (a block is never reallocated).
#include "ir/arena.h"

#include <assert.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct Block Block;
struct Block {
    Block *next;
    size_t used, size; // of the bytes after the header
};

struct Arena {
    Block *blocks; // the one being filled first
    size_t next_size;
};

enum {
    ALIGN = 16,
    HEADER = (sizeof(Block) + ALIGN - 1) / ALIGN * ALIGN,
    FIRST_BLOCK = 1 << 10, // of a walk over one expression, of which there are thousands
    LAST_BLOCK = 1 << 20   // beyond this larger blocks save nothing
};

static _Noreturn void out_of_memory(void) {
    fputs("attnc: out of memory\n", stderr);
    abort(); // as arena.h says: without memory there is nothing left to report to
}

static void *must(void *p) {
    if (!p) out_of_memory();
    return p;
}

Arena *arena_new(void) {
    Arena *a = must(calloc(1, sizeof *a));
    a->next_size = FIRST_BLOCK;
    return a;
}

void arena_free(Arena *a) {
    if (!a) return;
    for (Block *b = a->blocks, *next; b; b = next) {
        next = b->next;
        free(b);
    }
    free(a);
}

// A request larger than a block gets a block of its own behind the current one, which stays in use.
static Block *new_block(Arena *a, size_t bytes) {
    bool own = bytes > a->next_size / 2;
    size_t size = own ? bytes : a->next_size;
    Block *b = must(calloc(1, HEADER + size));
    b->size = size;
    if (own && a->blocks) {
        b->next = a->blocks->next;
        a->blocks->next = b;
        return b;
    }
    b->next = a->blocks;
    a->blocks = b;
    if (!own && a->next_size < LAST_BLOCK) a->next_size *= 2;
    return b;
}

void *arena_alloc(Arena *a, size_t bytes) {
    if (bytes > SIZE_MAX / 2) out_of_memory();
    bytes = bytes ? (bytes + ALIGN - 1) / ALIGN * ALIGN : ALIGN;
    Block *b = a->blocks;
    if (!b || b->size - b->used < bytes) b = new_block(a, bytes);
    void *p = (char *)b + HEADER + b->used;
    b->used += bytes;
    return p;
}

char *arena_strndup(Arena *a, const char *s, size_t n) {
    char *p = arena_alloc(a, n + 1);
    if (n) memcpy(p, s, n);
    return p;
}

char *arena_strdup(Arena *a, const char *s) { return arena_strndup(a, s, strlen(s)); }

char *arena_printf(Arena *a, const char *fmt, ...) {
    Text t = text_new(a);
    va_list ap;
    va_start(ap, fmt);
    text_vprintf(&t, fmt, ap);
    va_end(ap);
    return t.s;
}

void *arena_grow(Arena *a, void *data, int *cap, size_t elem, int need) {
    int old = *cap;
    int64_t want = old ? (int64_t)old * 2 : 8;
    if (want < need) want = need;
    if (want > INT32_MAX) out_of_memory();
    void *p = arena_alloc(a, elem * (size_t)want);
    if (old) memcpy(p, data, elem * (size_t)old);
    *cap = (int)want;
    return p;
}

Text text_new(Arena *a) { return (Text){.arena = a, .s = arena_alloc(a, 1), .cap = 1}; }

static void text_room(Text *t, size_t more) {
    if (t->s && t->cap - t->n > more) return;
    if (more > SIZE_MAX / 4) out_of_memory();
    size_t cap = t->cap * 2 > 64 ? t->cap * 2 : 64;
    while (cap - t->n <= more) cap *= 2;
    char *s = arena_alloc(t->arena, cap);
    if (t->n) memcpy(s, t->s, t->n);
    t->s = s;
    t->cap = cap;
}

void text_putn(Text *t, const char *s, size_t n) {
    text_room(t, n);
    if (n) memcpy(t->s + t->n, s, n);
    t->n += n;
    t->s[t->n] = '\0';
}

void text_puts(Text *t, const char *s) { text_putn(t, s, strlen(s)); }

void text_printf(Text *t, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    text_vprintf(t, fmt, ap);
    va_end(ap);
}

void text_vprintf(Text *t, const char *fmt, va_list ap) {
    va_list again;
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    assert(n >= 0);
    text_room(t, (size_t)n);
    vsnprintf(t->s + t->n, (size_t)n + 1, fmt, again);
    va_end(again);
    t->n += (size_t)n;
}

void text_f32(Text *t, float x) {
    if (isnan(x) || isinf(x)) {
        text_puts(t, isnan(x) ? "nan" : x > 0 ? "inf" : "-inf");
        return;
    }
    char buf[48];
    int digits = 1; // nine always suffice for an f32
    do snprintf(buf, sizeof buf, "%.*g", digits, (double)x);
    while (strtof(buf, NULL) != x && digits++ < 9);
    if (fabsf(x) >= 1 && fabsf(x) < 1e6f) // 50.0 rather than 5e+01
        while (strchr(buf, 'e')) snprintf(buf, sizeof buf, "%.*g", ++digits, (double)x);
    text_puts(t, buf);
    if (!strpbrk(buf, ".e")) text_puts(t, ".0");
}
