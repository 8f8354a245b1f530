// arena.h: memory that is released all at once.
//
// One arena lives as long as a compilation, a scratch arena as long as a pass; nothing is freed in
// between. An arena never returns NULL: when the system is out of memory the process aborts, which
// is the one case where a library of this project does (libattnc.h says so; the runtime has no
// arenas).
#ifndef IR_ARENA_H
#define IR_ARENA_H

#include <stdarg.h>
#include <stddef.h>

typedef struct Arena Arena;

Arena *arena_new(void);
void arena_free(Arena *a); // NULL is allowed

// Zeroed memory, aligned to 16 bytes.
void *arena_alloc(Arena *a, size_t bytes);
char *arena_strndup(Arena *a, const char *s, size_t n);
char *arena_strdup(Arena *a, const char *s);
char *arena_printf(Arena *a, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#define ARENA_NEW(a, T) ((T *)arena_alloc((a), sizeof(T)))
#define ARENA_ARRAY(a, T, n) ((T *)arena_alloc((a), sizeof(T) * (size_t)(n)))

// A vector that grows in an arena: `T *data; int n, cap;` in any struct, or VEC(T) v.
#define VEC(T)                                                                                     \
    struct {                                                                                       \
        T *data;                                                                                   \
        int n, cap;                                                                                \
    }
void *arena_grow(Arena *a, void *data, int *cap, size_t elem, int need);
#define VEC_PUSH(a, v, x)                                                                          \
    ((v)->data = (v)->n < (v)->cap                                                                 \
                     ? (v)->data                                                                   \
                     : arena_grow((a), (v)->data, &(v)->cap, sizeof *(v)->data, (v)->n + 1),       \
     (v)->data[(v)->n++] = (x))

// Text under construction, in an arena.
typedef struct Text {
    Arena *arena;
    char *s; // always terminated; NULL only before the first text_*
    size_t n, cap;
} Text;

Text text_new(Arena *a); // an empty one
void text_putn(Text *t, const char *s, size_t n);
void text_puts(Text *t, const char *s);
void text_printf(Text *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void text_vprintf(Text *t, const char *fmt, va_list ap);
// The shortest decimal that reads back as exactly this f32 ("0.12751740", "1e-3", "inf", "-inf",
// "nan"); always with a
// '.', an exponent or a letter in it, so that it reads back as a float and not as an integer.
void text_f32(Text *t, float x);

#endif
