// pane_list.c: `attn/list`: the variants of a document, its constants, sizes and inputs.
#include "pane.h"

#include <string.h>

// ---- variants

static cJSON *clauses_of(const Variant *v) {
    static const char *const names[] = {
#define CLAUSE(e, kind, name, ...) name,
#include "frontend/clauses.def"
#undef CLAUSE
    };
    cJSON *all = cJSON_CreateArray();
    for (int i = 0; i < CLAUSE_COUNT; i++)
        if (v->clause[i]) cJSON_AddItemToArray(all, cJSON_CreateString(names[i]));
    return all;
}

static cJSON *sizes_of(const Variant *v, const int32_t *size) {
    int first_free = v->kind == VARIANT_ATTENTION ? SIZE_FREE : RSIZE_FREE;
    cJSON *all = cJSON_CreateArray();
    for (int i = 0; i < v->sizes.n; i++) {
        cJSON *o = json_pair("name", cJSON_CreateString(v->sizes.data[i]), "value",
                             cJSON_CreateNumber(size[i]));
        cJSON_AddBoolToObject(o, "free", i >= first_free);
        cJSON_AddItemToArray(all, o);
    }
    return all;
}

static cJSON *input(Pane *p, const Variant *v, const TxInput *in, const int32_t *size) {
    cJSON *o = json_pair("name", cJSON_CreateString(in->name), "type",
                         cJSON_CreateString(dtype_name(in->dtype)));
    cJSON *shape = cJSON_AddArrayToObject(o, "shape"),
          *extents = cJSON_AddArrayToObject(o, "extents");
    for (int d = 0; d < in->rank; d++) {
        TxExtent e = in->extent[d];
        cJSON_AddItemToArray(shape, e.size >= 0 ? cJSON_CreateString(v->sizes.data[e.size])
                                                : cJSON_CreateNumber(e.value));
        cJSON_AddItemToArray(extents, cJSON_CreateNumber(e.size >= 0 ? size[e.size] : e.value));
    }
    cJSON_AddBoolToObject(o, "grad", in->grad);
    cJSON_AddItemToObject(o, "place", pane_span(p, in->span));
    return o;
}

static cJSON *variant(Pane *p, const Variant *v) {
    const Signature *sig = sig_of_variant(p->arena, v, DT_F32);
    int32_t *size = ARENA_ARRAY(p->arena, int32_t, sig->sizes.n + 1);
    if (!pane_sizes(p, sig, 16, size)) return NULL;
    cJSON *o =
        json_pair("name", cJSON_CreateString(v->name), "kind",
                  cJSON_CreateString(v->kind == VARIANT_ATTENTION ? "attention" : "recurrence"));
    cJSON_AddItemToObject(o, "place", pane_span(p, v->span));
    cJSON_AddNumberToObject(o, "D", v->D);
    cJSON_AddNumberToObject(o, "Dv", v->Dv);
    cJSON_AddItemToObject(o, "clauses", clauses_of(v));
    cJSON_AddItemToObject(o, "sizes", sizes_of(v, size));
    cJSON *inputs = cJSON_AddArrayToObject(o, "inputs"),
          *emits = cJSON_AddArrayToObject(o, "emits");
    for (int i = 0; i < v->inputs.n; i++)
        cJSON_AddItemToArray(inputs, input(p, v, &v->inputs.data[i], size));
    for (int i = 0; i < v->emits.n; i++)
        cJSON_AddItemToArray(emits, cJSON_CreateString(v->emits.data[i].name));
    return o;
}

// ---- constants

// The variant in whose braces a place is.
static cJSON *variant_around(const Pane *p, Span at) {
    const AstItems *items = &p->source.module->ast->items;
    for (int i = 0; i < items->n; i++) {
        const AstItem *item = items->data[i];
        bool holds = item->items.n && item->span.start <= at.start && at.end <= item->span.end;
        if (holds) return cJSON_CreateString(item->name.s);
    }
    return cJSON_CreateNull();
}

static cJSON *value_of(const Tx *e) {
    if (e->type == TX_BOOL) return cJSON_CreateBool(e->value.i);
    return e->type == TX_I32 ? cJSON_CreateNumber(e->value.i) : pane_number(e->value.f);
}

static cJSON *constants(Pane *p, const Uses *uses) {
    cJSON *all = cJSON_CreateArray();
    for (int i = 0; i < uses->all.n; i++) {
        const Use *u = &uses->all.data[i];
        const Decl *d = u->decl;
        bool constant = d->kind == DECL_CONST || d->kind == DECL_DIM;
        if (!u->defines || !constant || u->span.file != 1 || !d->value || !d->value->known)
            continue;
        cJSON *o = json_pair("name", cJSON_CreateString(d->name), "kind",
                             cJSON_CreateString(d->kind == DECL_CONST ? "const" : "dim"));
        cJSON_AddStringToObject(o, "type", tx_type_name(d->value->type));
        cJSON_AddItemToObject(o, "value", value_of(d->value));
        cJSON_AddItemToObject(o, "of", variant_around(p, u->span));
        cJSON_AddItemToObject(o, "place", pane_span(p, u->span));
        cJSON_AddItemToArray(all, o);
    }
    return all;
}

static cJSON *list(Pane *p, const Uses *uses) {
    const Variants *all = &p->source.module->variants;
    cJSON *o = cJSON_CreateObject(), *variants = cJSON_AddArrayToObject(o, "variants");
    for (int i = 0; i < all->n; i++) {
        cJSON *v = variant(p, all->data[i]);
        if (!v) {
            cJSON_Delete(o);
            return NULL;
        }
        cJSON_AddItemToArray(variants, v);
    }
    cJSON_AddItemToObject(o, "constants", constants(p, uses));
    cJSON *targets = cJSON_AddArrayToObject(o, "targets");
    for (int t = 0; t < TARGET_COUNT; t++)
        cJSON_AddItemToArray(targets, cJSON_CreateString(target_get((TargetId)t)->name));
    return o;
}

cJSON *pane_list(Service *s, const cJSON *params) {
    Pane p;
    Uses uses = {0};
    bool loaded = pane_load(&p, s, params, &uses);
    return pane_close(&p, loaded ? list(&p, &uses) : NULL);
}
