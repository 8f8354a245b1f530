// overlap.c: whether two tensors have a byte in common.
//
// Parts of one buffer may lie between each other, as q, k and v of one product do: spans say little. An element of a and one of b are as far
// apart as a sum of steps along the dimensions of both; the question is whether such a sum comes near enough to 0.
#include "rt.h"

typedef __int128 Wide; // strides may be any 64 bits

typedef struct Step {
    Wide length; // bytes
    int64_t count;
} Step;

typedef struct Ways {            // from the lowest element of a, and back from the highest of b
    Step step[2 * ABI_MAX_RANK]; // the longest first
    int n;
} Ways;

static void add_step(Ways *w, Wide length, int64_t count) {
    int i = 0;
    if (length < 0) length = -length;
    if (!length || count < 1) return;
    while (i < w->n && w->step[i].length > length) i++;
    for (int k = w->n++; k > i; k--) w->step[k] = w->step[k - 1];
    w->step[i] = (Step){length, count};
}

static bool reaches(const Step *s, int n, Wide least, Wide most) {
    if (!n) return least <= 0 && 0 <= most;
    Wide left = 0;
    for (int i = 1; i < n; i++) left += s[i].length * s[i].count;
    Wide i = least > left ? (least - left + s->length - 1) / s->length : 0;
    for (; i <= s->count && i * s->length <= most; i++)
        if (reaches(s + 1, n - 1, least - i * s->length, most - i * s->length)) return true;
    return false;
}

// Where elements begin, from the address on: the lowest and the highest. false: there are none.
static bool span(const RtPlace *p, Wide *low, Wide *high) {
    *low = *high = 0;
    for (int d = 0; d < p->rank; d++) {
        Wide way = (Wide)p->stride[d] * p->bytes * (p->extent[d] - 1);
        if (!p->extent[d]) return false;
        *(way < 0 ? low : high) += way;
    }
    return true;
}

bool rt_overlap(const RtPlace *a, const RtPlace *b) {
    Wide low[2], high[2], apart = (Wide)b->address - (Wide)a->address;
    Ways w = {.n = 0};
    if (!span(a, &low[0], &high[0]) || !span(b, &low[1], &high[1])) return false;
    if (apart + low[1] >= high[0] + a->bytes || low[0] >= apart + high[1] + b->bytes) return false;
    for (int d = 0; d < a->rank; d++) add_step(&w, (Wide)a->stride[d] * a->bytes, a->extent[d] - 1);
    for (int d = 0; d < b->rank; d++) add_step(&w, (Wide)b->stride[d] * b->bytes, b->extent[d] - 1);
    Wide last = apart + high[1] - low[0];
    return reaches(w.step, w.n, last - a->bytes + 1, last + b->bytes - 1);
}
