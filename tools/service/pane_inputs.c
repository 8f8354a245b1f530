// pane_inputs.c: the sizes, inputs and numbers of a request.
//
// In: parameters of any form. Out: a binding (tools/bind.h), as the command's verbs have one. Holds: what is made has at most
// MOST_ELEMENTS, and the same request draws the same numbers, which are those of `attnc run`.
#include "pane.h"
#include "tools/draw.h"

#include <math.h>
#include <string.h>

enum { MOST_ELEMENTS = 1 << 22, TOLD = 256 };

// ---- numbers

bool pane_int(Pane *p, const char *name, int least, int most, int otherwise, int *value) {
    const cJSON *item = json_get(p->params, name);
    *value = otherwise;
    if (!item || cJSON_IsNull(item)) return true;
    double v = cJSON_IsNumber(item) ? item->valuedouble : NAN;
    if (!(v >= least && v <= most && v == floor(v)))
        return pane_wrong(p, "'%s' is a whole number from %d to %d", name, least, most);
    *value = (int)v;
    return true;
}

uint64_t pane_seed(const Pane *p) {
    const cJSON *item = json_get(p->params, "seed");
    double v = cJSON_IsNumber(item) ? item->valuedouble : 0;
    return v >= 0 && v < 0x1p53 ? (uint64_t)v : 0;
}

bool pane_target(Pane *p, Target *t) {
    const char *name = json_string(p->params, "target");
    TargetId id = TARGET_HOST;
    if (name && !target_find(name, &id)) return pane_wrong(p, "there is no target '%.100s'", name);
    *t = *target_get(id);
    return true;
}

bool pane_place(Pane *p, const int32_t *size, int *batch, int *head) {
    return pane_int(p, "batch", 0, size[SIZE_B] - 1, 0, batch) &&
           pane_int(p, "head", 0, size[SIZE_HQ] - 1, 0, head);
}

// ---- sizes

static void attention_defaults(int32_t *n, const bool *given, int rows) {
    if (!given[SIZE_B]) n[SIZE_B] = 1;
    if (!given[SIZE_HQ]) n[SIZE_HQ] = given[SIZE_HKV] && n[SIZE_HKV] > 1 ? n[SIZE_HKV] : 2;
    if (!given[SIZE_HKV]) n[SIZE_HKV] = n[SIZE_HQ];
    if (!given[SIZE_SQ]) n[SIZE_SQ] = rows;
    if (!given[SIZE_SK]) n[SIZE_SK] = rows;
    if (!given[SIZE_Q_OFFSET]) n[SIZE_Q_OFFSET] = 0;
}

static bool read_sizes(Pane *p, const Signature *sig, int32_t *size, bool *given) {
    const cJSON *item;
    bool attends = !sig->recurrence;
    cJSON_ArrayForEach(item, json_get(p->params, "sizes")) {
        int i = item->string ? sig_size(sig, item->string) : -1;
        if (i < 0) continue; // of another variant of the document
        bool offset = attends && i == SIZE_Q_OFFSET;
        int least = offset ? -SIZE_LIMIT : attends && i > SIZE_HKV ? 0 : 1;
        double v = cJSON_IsNumber(item) ? item->valuedouble : NAN;
        if (!(v >= least && v <= SIZE_LIMIT && v == floor(v)))
            return pane_wrong(p, "the size '%.100s' is a whole number from %d to %d", item->string,
                              least, SIZE_LIMIT);
        size[i] = (int32_t)v;
        given[i] = true;
    }
    return true;
}

bool pane_sizes(Pane *p, const Signature *sig, int rows, int32_t *size) {
    bool *given = ARENA_ARRAY(p->arena, bool, sig->sizes.n + 1);
    if (!read_sizes(p, sig, size, given)) return false;
    int first_free = sig->recurrence ? RSIZE_FREE : SIZE_FREE;
    for (int i = first_free; i < sig->sizes.n; i++)
        if (!given[i]) size[i] = 8;
    if (sig->recurrence) {
        for (int i = 0; i < RSIZE_FREE; i++)
            if (!given[i]) size[i] = i == RSIZE_S ? rows : i == RSIZE_B ? 1 : 2;
        return true;
    }
    attention_defaults(size, given, rows);
    if (size[SIZE_HQ] % size[SIZE_HKV])
        return pane_wrong(p, "H = %d is no multiple of Hkv = %d", size[SIZE_HQ], size[SIZE_HKV]);
    return true;
}

// ---- tensors

static bool fill_array(Pane *p, const SigArg *g, Tensor *t, const cJSON *array) {
    const cJSON *item;
    int64_t i = 0;
    double v;
    if (cJSON_GetArraySize(array) != t->count)
        return pane_wrong(p, "input '%s': %d numbers are given, the tensor has %lld", g->name,
                          cJSON_GetArraySize(array), (long long)t->count);
    cJSON_ArrayForEach(item, array) {
        if (!pane_is_number(item, &v))
            return pane_wrong(p, "input '%s': not all that is given is a number", g->name);
        tensor_set(t, i++, v);
    }
    return true;
}

static bool fill(Pane *p, const SigArg *g, Tensor *t, const cJSON *item) {
    Draw d;
    double v;
    if (!item || cJSON_IsNull(item)) return draw_default(g, t, pane_seed(p), false), true;
    if (cJSON_IsArray(item)) return fill_array(p, g, t, item);
    if (pane_is_number(item, &v)) {
        for (int64_t i = 0; i < t->count; i++) tensor_set(t, i, v);
        return true;
    }
    const char *text = cJSON_GetStringValue(item);
    const char *why =
        text ? draw_read(&d, p->arena, g, text) : "this is no number, array or string";
    if (!why && (d.kind == DRAW_NOTHING || (d.kind == DRAW_LIST && d.n != t->count)))
        why = "this does not say the numbers of the tensor";
    if (why) return pane_wrong(p, "input '%s': %s", g->name, why);
    draw_fill(&d, t, pane_seed(p), g->name);
    return true;
}

// A tensor in the pane's arena; of a scalar one element.
static bool make(Pane *p, Binding *b, int arg, int64_t *room) {
    const SigArg *g = &b->sig->args.data[arg];
    Tensor *t = &b->tensor[arg];
    *t = (Tensor){.dtype = g->dtype, .rank = g->rank, .count = 1};
    for (int d = 0; d < g->rank; d++) {
        t->dim[d] = g->extent[d].size >= 0 ? b->size[g->extent[d].size] : g->extent[d].value;
        if (__builtin_mul_overflow(t->count, t->dim[d], &t->count) || t->count > *room)
            return pane_wrong(p,
                              "'%s' and the others are more than %d elements: choose smaller sizes",
                              g->name, MOST_ELEMENTS);
    }
    *room -= t->count;
    t->data = arena_alloc(p->arena, (size_t)t->count * (size_t)dtype_bytes(g->dtype) + 16);
    const cJSON *inputs = json_get(p->params, "inputs");
    const cJSON *item =
        cJSON_IsObject(inputs) ? cJSON_GetObjectItemCaseSensitive(inputs, g->name) : NULL;
    if (g->role == ARG_OUTPUT) return true;
    if (!fill(p, g, t, item)) return false;
    if (!g->rank) b->scalar[arg] = tensor_get(t, 0);
    b->unnamed[arg] = !item;
    return true;
}

bool pane_bind(Pane *p, Binding *b, const Signature *sig, const int32_t *size, const bool *read) {
    int64_t room = MOST_ELEMENTS;
    *b = (Binding){.sig = sig,
                   .size = ARENA_ARRAY(p->arena, int32_t, sig->sizes.n + 1),
                   .tensor = ARENA_ARRAY(p->arena, Tensor, sig->args.n + 1),
                   .scalar = ARENA_ARRAY(p->arena, double, sig->args.n + 1),
                   .unnamed = ARENA_ARRAY(p->arena, bool, sig->args.n + 1)};
    memcpy(b->size, size, sizeof *size * (size_t)sig->sizes.n);
    for (int i = 0; i < sig->args.n; i++)
        if (read[i] && !make(p, b, i, &room)) return false;
    return true;
}

cJSON *pane_drawn(Pane *p, const Binding *b, const bool *read) {
    cJSON *all = cJSON_CreateArray();
    for (int i = 0; i < b->sig->args.n; i++) {
        const SigArg *g = &b->sig->args.data[i];
        const Tensor *t = &b->tensor[i];
        if (!read[i] || g->role != ARG_INPUT) continue;
        bool zero = b->unnamed[i] && sig_is_whole(g);
        cJSON *o = json_pair("name", cJSON_CreateString(g->name), "type",
                             cJSON_CreateString(dtype_name(g->dtype)));
        cJSON *shape = cJSON_AddArrayToObject(o, "shape");
        for (int d = 0; d < t->rank; d++)
            cJSON_AddItemToArray(shape, cJSON_CreateNumber((double)t->dim[d]));
        cJSON_AddStringToObject(o, "from", zero ? "zero" : b->unnamed[i] ? "drawn" : "given");
        double values[TOLD];
        int n = t->count < TOLD ? (int)t->count : TOLD;
        tensor_read(t, 0, n, values);
        cJSON_AddItemToObject(o, "values", pane_numbers(p, values, n));
        cJSON_AddItemToArray(all, o);
    }
    return all;
}
