// fixture.c: an artifact of the host without a compiler, for the tests of the Python package: the
// kernels of tests/unit/runtime_fixture.h as a shared object. Built twice: with -DGENERATE, a
// program that writes the metadata ("hsaco": of code for an AMD GPU); then, with that file as META,
// what is to be loaded.
#include "tests/unit/runtime_fixture.h"
#include <stdio.h>

#ifdef GENERATE
int main(int argc, char **argv) {
    size_t n;
    uint8_t *meta = fixture_meta(argc == 3 ? ABI_CODE_HSACO : ABI_CODE_HOST, &n);
    FILE *f = argc >= 2 ? fopen(argv[1], "wb") : NULL;
    return !f || fwrite(meta, 1, n, f) != n || fclose(f) != 0;
}
#else
__asm__(".section .attn,\"a\"\n.incbin \"" META "\"\n.text\n");

#define EXPORT(name, kernel)                                                                       \
    void name(const uint64_t *args, int64_t first, int64_t last);                                  \
    void name(const uint64_t *args, int64_t first, int64_t last) { kernel(args, first, last); }
EXPORT(sum_part, part)
EXPORT(sum_join, join)
EXPORT(sum_one, one)
EXPORT(copy_one, copy)
#endif
