// tile.c: any bytes as a tile program. What is read prints as something that reads back as itself.
//
//     clang -g -O1 -fsanitize=fuzzer,address,undefined -D_GNU_SOURCE -I. tests/fuzz/tile.c ir/*.c
//     -lm
//     ./a.out -max_len=8192 CORPUS tests/tile
#include "ir/tile_eval.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static const char *printed(Arena *a, const TileProgram *p) {
    Text t;
    text_init(&t, a);
    tile_print(&t, p);
    return t.s;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    Arena *a = arena_new();
    Diags diags;
    diag_init(&diags, a);
    TileProgram *p = tile_parse(a, (const char *)data, n, &diags);
    if (p) {
        const char *once = printed(a, p);
        TileProgram *q = tile_parse(a, once, strlen(once), &diags);
        if (!q || strcmp(printed(a, q), once) != 0) abort();
        q = tile_copy(a, p);
        if (strcmp(printed(a, q), once) != 0) abort();
        if (tile_verify(p, &diags) != tile_verify(q, &diags)) abort();
    }
    arena_free(a);
    return 0;
}
