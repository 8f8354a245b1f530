// pane_row.c: see pane_row.h.
#include "pane_row.h"

#include <string.h>

size_t pane_q_row(const PaneRun *r, int query) {
    const int32_t *n = r->b.size;
    return ((size_t)r->batch * (size_t)n[SIZE_HQ] + (size_t)r->head) * (size_t)n[SIZE_SQ] +
           (size_t)query;
}

size_t pane_k_row(const PaneRun *r, int key) {
    const int32_t *n = r->b.size;
    size_t head = (size_t)((int64_t)r->head * n[SIZE_HKV] / n[SIZE_HQ]);
    return ((size_t)r->batch * (size_t)n[SIZE_HKV] + head) * (size_t)n[SIZE_SK] + (size_t)key;
}

// ---- tokens

static bool read_tokens(Pane *p, PaneRun *r, int32_t *size) {
    const cJSON *tokens = json_get(p->params, "tokens"), *item;
    if (!tokens || cJSON_IsNull(tokens)) return true;
    int n = cJSON_GetArraySize(tokens);
    if (!cJSON_IsArray(tokens) || n < 1 || n > PANE_MOST_TOKENS)
        return pane_wrong(p, "'tokens' are 1 to %d strings", PANE_MOST_TOKENS);
    cJSON_ArrayForEach(item, tokens) if (!cJSON_IsString(item)) return pane_wrong(
        p, "'tokens' are strings");
    r->tokens = tokens;
    size[SIZE_SQ] = size[SIZE_SK] = n;
    return true;
}

// A word's vector, by seed, argument, head and word.
static void embed(Pane *p, const PaneRun *r, int arg, Tensor *t) {
    const SigArg *g = &r->b.sig->args.data[arg];
    int64_t heads = t->dim[0] * t->dim[1], rows = t->dim[2], columns = t->dim[3];
    Tensor word = {.dtype = t->dtype, .rank = 1, .dim = {columns}, .count = columns};
    word.data = arena_alloc(p->arena, (size_t)columns * (size_t)dtype_bytes(t->dtype) + 16);
    for (int64_t h = 0; h < heads; h++)
        for (int64_t i = 0; i < rows; i++) {
            const char *text = cJSON_GetArrayItem(r->tokens, (int)i)->valuestring;
            const char *name = arena_printf(p->arena, "%s %lld %s", g->name, (long long)h, text);
            tensor_normal(&word, pane_seed(p), name);
            for (int64_t d = 0; d < columns; d++)
                tensor_set(t, (h * rows + i) * columns + d, tensor_get(&word, d));
        }
}

// ---- in the reference's form

static void *plain(Pane *p, const Binding *b, int arg) {
    const SigArg *g = &b->sig->args.data[arg];
    const Tensor *t = &b->tensor[arg];
    bool real = !sig_is_whole(g);
    double *x = ARENA_ARRAY(p->arena, double, t->count + 1);
    int32_t *n = real ? NULL : ARENA_ARRAY(p->arena, int32_t, t->count + 1);
    for (int64_t i = 0; i < t->count; i++) {
        x[i] = tensor_get(t, i);
        if (n) n[i] = (int32_t)x[i];
    }
    return real ? (void *)x : n;
}

// The first channels of k, where v is in it.
static double *in_k(Pane *p, const PaneRun *r) {
    int64_t rows = r->b.tensor[1].count / p->row->D;
    double *v = ARENA_ARRAY(p->arena, double, rows * p->row->Dv + 1);
    for (int64_t i = 0; i < rows; i++)
        memcpy(v + i * p->row->Dv, r->k + i * p->row->D, sizeof *v * (size_t)p->row->Dv);
    return v;
}

static bool is_outside_limits(Pane *p, const int32_t *size) {
    if (p->row->D > PANE_MOST_DIM || p->row->Dv > PANE_MOST_DIM)
        return !pane_wrong(
            p, "D = %d and Dv = %d: this shows heads of at most %d columns; set 'constants'",
            p->row->D, p->row->Dv, PANE_MOST_DIM);
    double pairs = (double)size[SIZE_B] * size[SIZE_HQ] * size[SIZE_SQ] * size[SIZE_SK];
    return pairs > 1 << 22 && !pane_wrong(p, "B * H * Sq * Sk is %.0f: at most %d", pairs, 1 << 22);
}

bool pane_run(Pane *p, PaneRun *r, int rows) {
    *r = (PaneRun){.read = NULL};
    const Signature *sig = sig_of_variant(p->arena, p->variant, DT_F32);
    int32_t *size = ARENA_ARRAY(p->arena, int32_t, sig->sizes.n + 1);
    bool *read = ARENA_ARRAY(p->arena, bool, sig->args.n + 1);
    for (int i = 0; i < sig->args.n; i++) read[i] = sig->args.data[i].role != ARG_OUTPUT;
    if (!pane_sizes(p, sig, rows, size) || !read_tokens(p, r, size) || is_outside_limits(p, size) ||
        !pane_place(p, size, &r->batch, &r->head) || !pane_bind(p, &r->b, sig, size, read))
        return false;
    r->read = read;
    for (int i = 0; i < 2 && r->tokens; i++)
        if (r->b.unnamed[i]) embed(p, r, i, &r->b.tensor[i]);
    void **in = ARENA_ARRAY(p->arena, void *, sig->args.n + 1);
    for (int i = 0; i < sig->args.n; i++)
        if (read[i]) in[i] = plain(p, &r->b, i);
    int operands = sig_operands(sig);
    r->q = in[0], r->k = in[1], r->v = operands > 2 ? in[2] : in_k(p, r);
    r->run = (RefRun){.variant = p->variant,
                      .sizes = r->b.size,
                      .q = r->q,
                      .k = r->k,
                      .v = r->v,
                      .inputs = (const void *const *)in + operands};
    return true;
}

void pane_evaluate(Pane *p, PaneRun *r, int first, int end) {
    const int32_t *n = r->b.size;
    size_t all = (size_t)n[SIZE_B] * (size_t)n[SIZE_HQ] * (size_t)n[SIZE_SQ];
    unsigned char *rows = arena_alloc(p->arena, all + 1);
    for (int i = first; i < end; i++) rows[pane_q_row(r, i)] = 1;
    int emits = p->variant->emits.n;
    double **emitted = ARENA_ARRAY(p->arena, double *, emits + 1);
    for (int i = 0; i < emits; i++) emitted[i] = ARENA_ARRAY(p->arena, double, all + 1);
    r->run.rows = rows;
    r->run.emits = emitted;
    ref_run(&r->run);
}
