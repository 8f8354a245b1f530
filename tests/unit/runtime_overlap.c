// Whether tensors overlap, against all pairs of their elements.
#include "runtime/rt.h"
#include "tests/unit/test.h"

enum { RANK = 3, BUFFER = 200 };

static int below(uint32_t *seed, int n) { return (int)((test_uniform(seed) + 1) / 2 * n) % n; }

static RtPlace place(uint32_t *seed, int64_t *extent, int64_t *stride) {
    static const int bytes[] = {1, 2, 4};
    RtPlace p = {(uint64_t)(1000 + below(seed, BUFFER)), bytes[below(seed, 3)], RANK, extent,
                 stride};
    for (int d = 0; d < RANK; d++) extent[d] = below(seed, 5), stride[d] = below(seed, 41) - 20;
    return p;
}

static int64_t element(const RtPlace *p, int64_t i) { // its first byte; -1: there is none
    int64_t at = (int64_t)p->address;
    for (int d = 0; d < p->rank; i /= p->extent[d], d++) {
        if (!p->extent[d]) return -1;
        at += i % p->extent[d] * p->stride[d] * p->bytes;
    }
    return i ? -1 : at;
}

static bool share(const RtPlace *a, const RtPlace *b) {
    for (int64_t i = 0, x; (x = element(a, i)) >= 0; i++)
        for (int64_t j = 0, y; (y = element(b, j)) >= 0; j++)
            if (x < y + b->bytes && y < x + a->bytes) return true;
    return false;
}

TEST(tells_what_overlaps) {
    uint32_t seed = 5;
    int told[2] = {0};
    for (int n = 0; n < 20000; n++) {
        int64_t extent[2][RANK], stride[2][RANK];
        RtPlace a = place(&seed, extent[0], stride[0]), b = place(&seed, extent[1], stride[1]);
        bool want = share(&a, &b);
        ck_assert_int_eq(rt_overlap(&a, &b), want);
        ck_assert_int_eq(rt_overlap(&b, &a), want);
        told[want]++;
    }
    ck_assert_int_gt(told[0], 2000);
    ck_assert_int_gt(told[1], 2000);
}

// Strides of any 64 bits, and sums of them beyond.
TEST(tells_of_far_strides) {
    int64_t one[] = {3, 2}, far[] = {INT64_MAX, INT64_MIN}, near[] = {2, 1};
    RtPlace a = {1 << 20, 8, 2, one, far}, b = {1 << 20, 8, 2, one, near},
            c = {9 << 20, 8, 2, one, near};
    ck_assert(rt_overlap(&a, &b));
    ck_assert(!rt_overlap(&a, &c));
    ck_assert(!rt_overlap(&b, &c));
}
