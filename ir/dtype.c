// dtype.c: the element types of tensors, and the sizes that every program has.
#include "ir/row.h"

static const struct {
    const char *name;
    int bytes;
    ExType reads;
} dtypes[DT_COUNT] = {
#define DTYPE(e, name, bytes, reads) {name, bytes, reads},
#include "dtypes.def"
#undef DTYPE
};

const char *dtype_name(Dtype t) { return dtypes[t].name; }
int dtype_bytes(Dtype t) { return dtypes[t].bytes; }
bool dtype_half(Dtype t) { return t == DT_F16 || t == DT_BF16; }
bool dtype_byte(Dtype t) { return t == DT_E4M3 || t == DT_E5M2 || t == DT_I8; }
ExType dtype_reads(Dtype t) { return dtypes[t].reads; }

const char *batch_name(BatchLayout batch) {
    static const char *const names[BATCH_COUNT] = {
        [BATCH_DENSE] = "dense", [BATCH_RAGGED] = "ragged", [BATCH_PAGED] = "paged"};
    return names[batch];
}

void sizes_init(Arena *a, SizeNames *s) {
    static const char *const names[SIZE_FREE] = {
        [SIZE_B] = "B",   [SIZE_HQ] = "H",  [SIZE_HKV] = "Hkv",
        [SIZE_SQ] = "Sq", [SIZE_SK] = "Sk", [SIZE_Q_OFFSET] = "q_offset",
    };
    *s = (SizeNames){0};
    for (int i = 0; i < SIZE_FREE; i++) VEC_PUSH(a, s, names[i]);
}
