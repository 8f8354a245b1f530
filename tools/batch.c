// batch.c: see batch.h.
#include "batch.h"
#include <stdlib.h>
#include <string.h>

static const int32_t *index_of(const Binding *b, const char *name) {
    int arg = sig_arg(b->sig, name);
    return arg < 0 ? NULL : b->tensor[arg].data; // NULL: left out
}

RefBatch batch_of(const Binding *b) {
    const int32_t *n = b->size;
    bool paged = b->sig->batch == BATCH_PAGED, recurs = b->sig->recurrence;
    return (RefBatch){.paged = paged,
                      .B = n[ABI_SIZE_B],
                      .Tq = n[sig_rows(b->sig)],
                      .Tk = paged || recurs ? 0 : n[ABI_SIZE_TK],
                      .pages = paged ? n[ABI_SIZE_PAGES] : 0,
                      .page = paged ? n[ABI_SIZE_PAGE] : 0,
                      .table = paged ? n[ABI_SIZE_TABLE] : 0,
                      .q_start = index_of(b, "q_start"),
                      .kv_start = index_of(b, "kv_start"),
                      .kv_len = index_of(b, "kv_len"),
                      .page_table = index_of(b, "page_table"),
                      .q_offset = index_of(b, "q_offset"),
                      .state_index = index_of(b, "state_index"),
                      .slots = recurs ? n[ABI_RSIZE_SLOTS] : 0};
}

bool batch_makes(const Signature *sig, const int32_t *size, const SigArg *g) {
    int32_t B = size[ABI_SIZE_B];
    bool uneven = strcmp(g->name, "q_start") == 0 && B && size[sig_rows(sig)] % B;
    bool pooled = strcmp(g->name, "state_index") == 0 && size[ABI_RSIZE_SLOTS] != B;
    return !g->optional || uneven || pooled;
}

// A permutation of the pages, again and again where the tables have more entries.
static void fill_table(Tensor *t, int64_t pages, uint64_t seed, const char *name) {
    int32_t *id = t->data;
    for (int64_t i = 0; i < t->count; i++) {
        int64_t from = pages ? i - i % pages : i, n = i - from;
        int64_t k = from + (int64_t)(tensor_uniform(seed, name, i) * (double)(n + 1));
        id[i] = id[k];
        id[k] = (int32_t)n;
    }
}

void batch_fill(const Signature *sig, const int32_t *size, const SigArg *g, Tensor *t,
                uint64_t seed) {
    const int32_t *n = size;
    bool keys = strcmp(g->name, "kv_start") == 0;
    if (strcmp(g->name, "page_table") == 0) {
        fill_table(t, n[ABI_SIZE_PAGES], seed, g->name);
        return;
    }
    bool states = strcmp(g->name, "state_index") == 0; // the last slots first
    int64_t whole = sig->batch == BATCH_PAGED ? (int64_t)n[ABI_SIZE_TABLE] * n[ABI_SIZE_PAGE] : 0;
    for (int64_t i = 0; i < t->count; i++) {
        int64_t rows = n[keys ? (int)ABI_SIZE_TK : sig_rows(sig)], B = t->count - 1;
        int64_t x = B ? rows * i / B : 0;
        if (states) x = n[ABI_RSIZE_SLOTS] * (B - i) / t->count;
        if (strcmp(g->name, "kv_len") == 0) x = whole < SIZE_LIMIT ? whole : SIZE_LIMIT;
        ((int32_t *)t->data)[i] = (int32_t)x;
    }
}

unsigned char *batch_owners(const Binding *b, int arg, int64_t *n) {
    const SigArg *g = &b->sig->args.data[arg];
    RefBatch x = batch_of(b);
    int size = b->sig->batch && g->rank && g->role != ARG_INDEX ? g->extent[0].size : -1;
    bool queries = size == sig_rows(b->sig), slots = b->sig->recurrence && size == ABI_RSIZE_SLOTS,
         keys = !b->sig->recurrence && size == ABI_SIZE_TK;
    int64_t first;
    if (!queries && !slots && !keys) return NULL;
    *n = b->tensor[arg].dim[0] * (keys && x.paged ? b->tensor[arg].dim[1] : 1);
    unsigned char *owners = calloc((size_t)*n + 1, 1);
    for (int32_t s = 0; owners && s < x.B; s++) {
        int32_t rows = keys ? ref_keys(&x, s) : ref_queries(&x, s, &first);
        for (int32_t i = 0; i < rows; i++) {
            int64_t at = keys ? ref_key_row(&x, s, i) : slots ? ref_slot(&x, s) : first + i;
            owners[at] += owners[at] < 2;
        }
    }
    return owners;
}

void batch_poison(const Binding *b, int arg) {
    Tensor *t = &b->tensor[arg];
    int64_t rows;
    if (dtype_reads(t->dtype) != EX_F32) return;
    unsigned char *live = batch_owners(b, arg, &rows);
    size_t bytes = rows && live ? (size_t)(t->count / rows) * (size_t)dtype_bytes(t->dtype) : 0;
    for (int64_t i = 0; live && i < rows; i++) // every bit set: NaN in every float type
        if (!live[i]) memset((char *)t->data + (size_t)i * bytes, 0xff, bytes);
    free(live);
}

double batch_pairs(const Binding *b) {
    RefBatch x = batch_of(b);
    double pairs = 0;
    int64_t first;
    for (int32_t s = 0; s < x.B; s++) pairs += (double)ref_queries(&x, s, &first) * ref_keys(&x, s);
    return pairs * b->size[ABI_SIZE_H];
}

double batch_live(const Binding *b, int arg) {
    int64_t rows, found = 0;
    unsigned char *live = batch_owners(b, arg, &rows);
    for (int64_t i = 0; live && i < rows; i++) found += live[i] > 0;
    double share = live && rows ? (double)found / (double)rows : 1;
    free(live);
    return share;
}
