// signature.c: see signature.h.
#include "signature.h"
#include <string.h>

static SigExtent sized(int size) { return (SigExtent){size, 0}; }
static SigExtent fixed(int64_t value) { return (SigExtent){-1, value}; }

static void add(Arena *a, Signature *s, const char *name, ArgRole role, Dtype t, int rank,
                const SigExtent *extent) {
    SigArg g = {.name = name, .role = role, .dtype = t, .rank = rank};
    for (int i = 0; i < rank; i++) g.extent[i] = extent[i];
    VEC_PUSH(a, &s->args, g);
}

static void add4(Arena *a, Signature *s, const char *name, ArgRole role, Dtype t, int heads,
                 int rows, int columns) {
    SigExtent e[] = {sized(SIZE_B), sized(heads), sized(rows), fixed(columns)};
    add(a, s, name, role, t, 4, e);
}

static void add_inputs(Arena *a, Signature *s, const Variant *v) {
    for (int i = 0; i < v->inputs.n; i++) {
        const TxInput *in = &v->inputs.data[i];
        SigExtent e[TENSOR_MAX_RANK];
        for (int d = 0; d < in->rank; d++)
            e[d] = (SigExtent){in->extent[d].size, in->extent[d].value};
        add(a, s, in->name, ARG_INPUT, in->dtype, in->rank, e);
    }
}

static void recurrence(Arena *a, Signature *s, const Variant *v, Dtype t) {
    SigExtent state[] = {sized(RSIZE_B), sized(RSIZE_H), fixed(v->D), fixed(v->Dv)};
    add4(a, s, "q", ARG_QKV, t, RSIZE_HQ, RSIZE_S, v->D);
    add4(a, s, "k", ARG_QKV, t, RSIZE_HK, RSIZE_S, v->D);
    add4(a, s, "v", ARG_QKV, t, RSIZE_HV, RSIZE_S, v->Dv);
    add_inputs(a, s, v);
    add(a, s, "state0", ARG_INPUT, DT_F32, 4, state);
    s->args.data[s->args.n - 1].optional = true;
    add4(a, s, "o", ARG_OUTPUT, t, RSIZE_H, RSIZE_S, v->Dv);
    add(a, s, "state", ARG_OUTPUT, DT_F32, 4, state);
}

static void attention(Arena *a, Signature *s, const Variant *v, Dtype t) {
    SigExtent row[] = {sized(SIZE_B), sized(SIZE_HQ), sized(SIZE_SQ)};
    add4(a, s, "q", ARG_QKV, t, SIZE_HQ, SIZE_SQ, v->D);
    add4(a, s, "k", ARG_QKV, t, SIZE_HKV, SIZE_SK, v->D);
    if (!v->v_in_k) add4(a, s, "v", ARG_QKV, t, SIZE_HKV, SIZE_SK, v->Dv);
    add_inputs(a, s, v);
    add4(a, s, "o", ARG_OUTPUT, t, SIZE_HQ, SIZE_SQ, v->Dv);
    for (int i = 0; i < v->emits.n; i++)
        add(a, s, v->emits.data[i].name, ARG_OUTPUT, DT_F32, 3, row);
}

Signature *sig_of_variant(Arena *a, const Variant *v, Dtype dtype) {
    Signature *s = ARENA_NEW(a, Signature);
    s->name = v->name;
    s->recurrence = v->kind == VARIANT_RECURRENCE;
    s->D = v->D;
    s->Dv = v->Dv;
    s->sizes = v->sizes;
    if (s->recurrence)
        recurrence(a, s, v, dtype);
    else
        attention(a, s, v, dtype);
    return s;
}

static void add_gradient(Arena *a, Signature *s, int of, ArgRole role) {
    SigArg g = s->args.data[of];
    g.name = arena_printf(a, "d%s", g.name);
    g.optional = role == ARG_GRAD_IN && strcmp(g.name, "do") != 0;
    g.role = role;
    g.of = of;
    if (!g.rank) g.extent[g.rank++] = fixed(1);
    VEC_PUSH(a, &s->args, g);
}

void sig_add_gradients(Arena *a, Signature *s, const Variant *v) {
    int n = s->args.n, o = sig_arg(s, "o");
    for (int i = o; i < n; i++) add_gradient(a, s, i, ARG_GRAD_IN);
    int operands = sig_operands(s);
    for (int i = 0; i < operands; i++) add_gradient(a, s, i, ARG_GRAD_OUT);
    for (int i = 0; i < v->inputs.n; i++)
        if (v->inputs.data[i].grad) add_gradient(a, s, operands + i, ARG_GRAD_OUT);
    if (s->recurrence) add_gradient(a, s, o - 1, ARG_GRAD_OUT);
    s->backward = true;
}

bool sig_is_gradient(const Signature *s, const char *name) {
    int arg = sig_arg(s, name);
    if (arg >= 0) return s->args.data[arg].role >= ARG_GRAD_IN;
    return name[0] == 'd' && sig_arg(s, name + 1) >= 0;
}

static bool extents(const AbiTensor *t, SigExtent *e) {
    for (int d = 0; d < t->rank; d++) {
        const AbiInsn *c = t->extent[d].code;
        if (t->extent[d].n != 1 || (c->op != ABI_OP_SIZE && c->op != ABI_OP_CONST)) return false;
        e[d] = c->op == ABI_OP_SIZE ? sized((int)c->arg) : fixed(c->arg);
    }
    return true;
}

static ArgRole role_of(const AbiVariant *v, const AbiTensor *t) {
    if (v->phase == ABI_BWD) return abi_output(v, t) ? ARG_GRAD_OUT : ARG_GRAD_IN;
    if (t->role == ABI_ROLE_Q || t->role == ABI_ROLE_K || t->role == ABI_ROLE_V) return ARG_QKV;
    return abi_output(v, t) ? ARG_OUTPUT : ARG_INPUT;
}

// What callers know, and the signature does not hold yet.
static bool add_tensors(Arena *a, Signature *s, const AbiVariant *v) {
    for (uint32_t i = 0; i < v->ntensors; i++) {
        const AbiTensor *t = &v->tensors[i];
        SigExtent e[TENSOR_MAX_RANK];
        bool inner = t->role == ABI_ROLE_WORK || t->role == ABI_ROLE_SAVED;
        if (inner || sig_arg(s, t->name) >= 0) continue;
        if (!extents(t, e)) return false;
        add(a, s, t->name, role_of(v, t), (Dtype)t->dtype, t->rank, e);
        SigArg *g = &s->args.data[s->args.n - 1];
        g->optional =
            t->role == ABI_ROLE_STATE0 || (g->role == ARG_GRAD_IN && t->role != ABI_ROLE_DO);
    }
    return true;
}

Signature *sig_of_artifact(Arena *a, const AbiVariant *v) {
    Signature *s = ARENA_NEW(a, Signature);
    s->name = v->name;
    s->recurrence = v->family == ABI_RECURRENCE;
    s->D = (int)v->D;
    s->Dv = (int)v->Dv;
    for (uint32_t i = 0; i < v->nsizes; i++) {
        if (v->sizes[i].def.n) break; // derived sizes come last, and are the runtime's affair
        VEC_PUSH(a, &s->sizes, v->sizes[i].name);
    }
    return add_tensors(a, s, v) ? s : NULL;
}

bool sig_add_gradients_of(Arena *a, Signature *s, const AbiVariant *backward) {
    s->backward = true;
    return add_tensors(a, s, backward);
}

int sig_operands(const Signature *s) {
    int n = 0;
    while (n < s->args.n && s->args.data[n].role == ARG_QKV) n++;
    return n;
}

int sig_arg(const Signature *s, const char *name) {
    for (int i = 0; i < s->args.n; i++)
        if (strcmp(s->args.data[i].name, name) == 0) return i;
    return -1;
}

int sig_size(const Signature *s, const char *name) {
    for (int i = 0; i < s->sizes.n; i++)
        if (strcmp(s->sizes.data[i], name) == 0) return i;
    return -1;
}
