// signature.c: see signature.h.
#include "signature.h"
#include "decay.h"
#include "frontend/names.h"
#include "frontend/reference_batch.h"
#include <math.h>
#include <string.h>

static SigExtent sized(int size) { return (SigExtent){size, 0, 0}; }
static SigExtent fixed(int64_t value) { return (SigExtent){-1, value, 0}; }

static void add(Arena *a, Signature *s, const char *name, ArgRole role, Dtype t, int rank,
                const SigExtent *extent) {
    SigArg g = {.name = name, .role = role, .dtype = t, .rank = rank};
    for (int i = 0; i < rank; i++) g.extent[i] = extent[i];
    VEC_PUSH(a, &s->args, g);
}

// B + 1, of index tensors.
static SigExtent starts(void) { return (SigExtent){ABI_SIZE_B, 1, 0}; }

static void add4(Arena *a, Signature *s, const char *name, ArgRole role, Dtype t, int heads,
                 int rows, int columns) {
    SigExtent e[] = {sized(SIZE_B), sized(heads), sized(rows), fixed(columns)};
    add(a, s, name, role, t, 4, e);
}

static SigExtent declared(const TxExtent *e) {
    return e->size < 0 ? fixed(e->value) : sized(e->size);
}

static void add_inputs(Arena *a, Signature *s, const Variant *v) {
    for (int i = 0; i < v->inputs.n; i++) {
        const TxInput *in = &v->inputs.data[i];
        SigExtent e[TENSOR_MAX_RANK];
        for (int d = 0; d < in->rank; d++) e[d] = declared(&in->extent[d]);
        add(a, s, in->name, ARG_INPUT, in->dtype, in->rank, e);
    }
}

static void add_state(Arena *a, Signature *s, const Variant *v, const char *name, ArgRole role) {
    SigExtent e[] = {sized(s->batch ? (int)ABI_RSIZE_SLOTS : (int)RSIZE_B), sized(RSIZE_H),
                     fixed(v->D), fixed(v->Dv)};
    add(a, s, name, role, DT_F32, 4, e);
}

static void recurrence(Arena *a, Signature *s, const Variant *v, Dtype t) {
    add4(a, s, "q", ARG_QKV, t, RSIZE_HQ, RSIZE_S, v->D);
    add4(a, s, "k", ARG_QKV, t, RSIZE_HK, RSIZE_S, v->D);
    add4(a, s, "v", ARG_QKV, t, RSIZE_HV, RSIZE_S, v->Dv);
    add_inputs(a, s, v);
    add_state(a, s, v, "state0", ARG_INPUT);
    s->args.data[s->args.n - 1].optional = true;
    add4(a, s, "o", ARG_OUTPUT, t, RSIZE_H, RSIZE_S, v->Dv);
    add_state(a, s, v, "state", ARG_OUTPUT);
}

static void attention(Arena *a, Signature *s, const Variant *v, Dtype t) {
    SigExtent row[] = {sized(SIZE_B), sized(SIZE_HQ), sized(SIZE_SQ)};
    add4(a, s, "q", ARG_QKV, t, SIZE_HQ, SIZE_SQ, v->D);
    add4(a, s, "k", ARG_QKV, t, SIZE_HKV, SIZE_SK, v->D);
    if (!v->v_in_k) add4(a, s, "v", ARG_QKV, t, SIZE_HKV, SIZE_SK, v->Dv);
    add_inputs(a, s, v);
    add4(a, s, "o", ARG_OUTPUT, t, SIZE_HQ, SIZE_SQ, v->Dv);
    for (int i = 0; i < v->emits.n; i++) {
        add(a, s, v->emits.data[i].name, ARG_OUTPUT, DT_F32, 3, row);
        s->args.data[s->args.n - 1].of_rows = true;
    }
}

static void set_draws(Arena *a, Signature *s, const Variant *v) {
    int *sign = ARENA_ARRAY(a, int, v->inputs.n);
    decay_signs(a, v, sign);
    for (int i = -1; i < v->inputs.n; i++) {
        SigArg *g = &s->args.data[i < 0 ? sig_arg(s, "k") : sig_operands(s) + i];
        if (i >= 0) g->sign = sign[i];
        g->unit = decay_takes_unit(a, v, i);
    }
}

// ---- other layouts

// Tq, Tk, or pages and page: what comes in front.
static int front(const Signature *s, bool keys, SigExtent *e) {
    e[0] = sized(keys ? ABI_SIZE_TK : sig_rows(s));
    if (!keys || s->batch != BATCH_PAGED) return 1;
    e[1] = sized(ABI_SIZE_PAGE);
    return 2;
}

static void add_rows(Arena *a, Signature *s, const char *name, ArgRole role, Dtype t, int heads,
                     int columns) {
    SigExtent e[4];
    int n = front(s, !s->recurrence && heads == SIZE_HKV, e);
    e[n++] = sized(heads);
    if (columns) e[n++] = fixed(columns);
    add(a, s, name, role, t, n, e);
    s->args.data[s->args.n - 1].of_rows = !columns;
}

// A size of its own: nothing but this tensor's shape gives it.
static SigExtent open_extent(Arena *a, Signature *s, const char *input, int d, int size) {
    const char *name = arena_printf(a, "%s_%d", input, d);
    while (sig_size(s, name) >= 0) name = arena_printf(a, "%s_", name);
    VEC_PUSH(a, &s->sizes, name);
    return (SigExtent){s->sizes.n - 1, 0, size};
}

static void add_batch_input(Arena *a, Signature *s, const TxInput *in) {
    RefMoved m = ref_moved(in, s->recurrence);
    SigExtent e[TENSOR_MAX_RANK + 1];
    int keys = s->recurrence ? -2 : SIZE_SK, queries = s->recurrence ? RSIZE_S : SIZE_SQ;
    int n = m.moved < 0 ? 0 : front(s, in->extent[m.moved].size == keys, e);
    for (int d = 0; d < in->rank; d++) {
        int size = in->extent[d].size;
        if (d == m.lost || d == m.moved) continue;
        if (size == queries || size == keys)
            e[n++] = open_extent(a, s, in->name, d, size == queries ? SIZE_SQ : SIZE_SK);
        else if (size >= SIZE_FREE)
            e[n++] = sized(size - SIZE_FREE + sig_first_free(s));
        else
            e[n++] = declared(&in->extent[d]);
    }
    add(a, s, in->name, ARG_INPUT, in->dtype, n, e);
}

static void add_index(Arena *a, Signature *s, const char *name, bool optional, int rank,
                      const SigExtent *e) {
    add(a, s, name, ARG_INDEX, DT_I32, rank, e);
    s->args.data[s->args.n - 1].optional = optional;
}

static void add_indices(Arena *a, Signature *s) {
    SigExtent begin[] = {starts()}, each[] = {sized(ABI_SIZE_B)},
              pages[] = {sized(ABI_SIZE_B), sized(ABI_SIZE_TABLE)};
    add_index(a, s, "q_start", s->recurrence || s->batch == BATCH_PAGED, 1, begin);
    if (s->recurrence) {
        add_index(a, s, "state_index", true, 1, each);
        return;
    }
    if (s->batch == BATCH_RAGGED) add_index(a, s, "kv_start", false, 1, begin);
    if (s->batch == BATCH_PAGED) {
        add_index(a, s, "kv_len", false, 1, each);
        add_index(a, s, "page_table", false, 2, pages);
    }
    add_index(a, s, "q_offset", true, 1, each);
}

static AbiFamily family_of(const Signature *s) {
    return s->recurrence ? ABI_RECURRENCE : ABI_ATTENTION;
}

static void batch_sizes(Arena *a, Signature *s, const Variant *v) {
    AbiSize sizes[ABI_MOST_FIXED];
    abi_fixed_sizes(family_of(s), (AbiLayout)s->batch, sizes);
    for (int i = 0; i < sig_first_free(s); i++) VEC_PUSH(a, &s->sizes, sizes[i].name);
    for (int i = SIZE_FREE; i < v->sizes.n; i++) VEC_PUSH(a, &s->sizes, v->sizes.data[i]);
}

static void batch_recurrence(Arena *a, Signature *s, const Variant *v, Dtype t) {
    add_rows(a, s, "q", ARG_QKV, t, RSIZE_HQ, v->D);
    add_rows(a, s, "k", ARG_QKV, t, RSIZE_HK, v->D);
    add_rows(a, s, "v", ARG_QKV, t, RSIZE_HV, v->Dv);
    for (int i = 0; i < v->inputs.n; i++) add_batch_input(a, s, &v->inputs.data[i]);
    add_indices(a, s);
    add_state(a, s, v, "state0", ARG_INPUT);
    s->args.data[s->args.n - 1].optional = true;
    add_rows(a, s, "o", ARG_OUTPUT, t, RSIZE_H, v->Dv);
    add_state(a, s, v, "state", ARG_OUTPUT);
}

Signature *sig_of_batch(Arena *a, const Variant *v, Dtype dtype, BatchLayout batch, int page) {
    if (batch == BATCH_DENSE) return sig_of_variant(a, v, dtype);
    Signature *s = ARENA_NEW(a, Signature);
    *s = (Signature){.name = v->name, .batch = batch, .page = page, .D = v->D, .Dv = v->Dv};
    s->recurrence = v->kind == VARIANT_RECURRENCE;
    batch_sizes(a, s, v);
    if (s->recurrence) {
        batch_recurrence(a, s, v, dtype);
        set_draws(a, s, v);
        return s;
    }
    add_rows(a, s, "q", ARG_QKV, dtype, SIZE_HQ, v->D);
    add_rows(a, s, "k", ARG_QKV, dtype, SIZE_HKV, v->D);
    if (!v->v_in_k) add_rows(a, s, "v", ARG_QKV, dtype, SIZE_HKV, v->Dv);
    for (int i = 0; i < v->inputs.n; i++) add_batch_input(a, s, &v->inputs.data[i]);
    add_indices(a, s);
    add_rows(a, s, "o", ARG_OUTPUT, dtype, SIZE_HQ, v->Dv);
    for (int i = 0; i < v->emits.n; i++)
        add_rows(a, s, v->emits.data[i].name, ARG_OUTPUT, DT_F32, SIZE_HQ, 0);
    return s;
}

// ---- both

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
    set_draws(a, s, v);
    return s;
}

void sig_set_kv(Signature *s, Dtype kv) {
    for (int i = 1; kv && i < s->args.n && s->args.data[i].role == ARG_QKV; i++)
        s->args.data[i].dtype = kv;
}

static void add_gradient(Arena *a, Signature *s, int of, ArgRole role) {
    SigArg g = s->args.data[of];
    g.name = arena_printf(a, "d%s", g.name);
    g.optional = role == ARG_GRAD_IN && strcmp(g.name, "do") != 0;
    g.role = role;
    g.of = of;
    if (role == ARG_GRAD_OUT && s->args.data[of].role == ARG_INPUT)
        g.dtype = DT_F32; // of sums over pairs, whatever the input is stored in
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

// Its size is then the tensor's own, by which kernels know whether it is there.
static bool may_lack(const AbiTensor *t) { return abi_is_index(t) && t->flags & ABI_OPTIONAL; }

static bool extents(const Signature *s, const AbiVariant *v, const AbiTensor *t, SigExtent *e) {
    if (may_lack(t)) {
        e[0] = t->role == ABI_ROLE_Q_START ? starts() : sized(ABI_SIZE_B);
        return t->rank == 1;
    }
    for (int d = 0; d < t->rank; d++) {
        const AbiInsn *c = t->extent[d].code;
        bool more = t->extent[d].n == 3 && c[0].op == ABI_OP_SIZE && c[1].op == ABI_OP_CONST &&
                    c[2].op == ABI_OP_ADD;
        if (!more && t->extent[d].n != 1) return false;
        if (c->op != ABI_OP_SIZE && c->op != ABI_OP_CONST) return false;
        e[d] = c->op == ABI_OP_CONST ? fixed(c->arg) : sized(sig_size(s, v->sizes[c->arg].name));
        if (more) e[d].value = c[1].arg;
        if (c->op == ABI_OP_SIZE && e[d].size < 0) return false;
    }
    return true;
}

static ArgRole role_of(const AbiVariant *v, const AbiTensor *t) {
    if (v->phase == ABI_BWD) return abi_output(v, t) ? ARG_GRAD_OUT : ARG_GRAD_IN;
    if (abi_is_index(t)) return ARG_INDEX;
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
        if (!extents(s, v, t, e)) return false;
        add(a, s, t->name, role_of(v, t), (Dtype)t->dtype, t->rank, e);
        SigArg *g = &s->args.data[s->args.n - 1];
        g->of_rows = t->role == ABI_ROLE_EMIT || t->role == ABI_ROLE_DEMIT;
        g->optional = t->role == ABI_ROLE_STATE0 ||
                      (g->role == ARG_INDEX && t->flags & ABI_OPTIONAL) ||
                      (g->role == ARG_GRAD_IN && t->role != ABI_ROLE_DO);
    }
    return true;
}

static bool is_own_size(const AbiVariant *v, uint32_t size) {
    for (uint32_t i = 0; i < v->ntensors; i++) {
        const AbiExpr *e = &v->tensors[i].extent[0];
        if (may_lack(&v->tensors[i]) && e->n == 1 && e->code->op == ABI_OP_SIZE &&
            e->code->arg == size)
            return true;
    }
    return false;
}

Signature *sig_of_artifact(Arena *a, const AbiVariant *v) {
    Signature *s = ARENA_NEW(a, Signature);
    s->name = v->name;
    s->recurrence = v->family == ABI_RECURRENCE;
    s->batch = (BatchLayout)v->layout;
    s->page = (int)v->page;
    s->D = (int)v->D;
    s->Dv = (int)v->Dv;
    for (uint32_t i = 0; i < v->nsizes; i++) {
        if (v->sizes[i].def.n) break; // derived sizes come last, and are the runtime's affair
        if (!is_own_size(v, i)) VEC_PUSH(a, &s->sizes, v->sizes[i].name);
    }
    return add_tensors(a, s, v) ? s : NULL;
}

bool sig_add_gradients_of(Arena *a, Signature *s, const AbiVariant *backward) {
    s->backward = true;
    return add_tensors(a, s, backward);
}

int sig_first_free(const Signature *s) {
    return (int)abi_fixed_count(family_of(s), (AbiLayout)s->batch);
}

int sig_rows(const Signature *s) { return s->recurrence ? (int)ABI_RSIZE_TQ : (int)ABI_SIZE_TQ; }

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

bool sig_is_whole(const SigArg *g) {
    return dtype_reads(g->dtype) != EX_F32 || (g->dtype == DT_I8 && g->role == ARG_INPUT);
}

bool sig_holds(const SigArg *g, double x) {
    if (!sig_is_whole(g)) return true;
    double least = g->dtype == DT_BOOL ? 0 : g->dtype == DT_I8 ? INT8_MIN : INT32_MIN;
    double most = g->dtype == DT_BOOL ? 1 : g->dtype == DT_I8 ? INT8_MAX : INT32_MAX;
    return x >= least && x <= most && x == floor(x);
}

bool sig_is_read(const SigArg *g) { return g->role != ARG_OUTPUT && g->role != ARG_GRAD_OUT; }

const char *sig_instead(Arena *a, const Signature *s, const char *name, bool read) {
    NameGuess g;
    Text t = text_new(a);
    names_guess_init(&g, name);
    for (int i = 0; i < s->args.n; i++) {
        const SigArg *x = &s->args.data[i];
        if (sig_is_read(x) != read) continue;
        names_guess(&g, x->name);
        text_printf(&t, "%s%s", t.n ? ", " : "; it has ", x->name);
    }
    return g.best ? arena_printf(a, " (did you mean '%s'?)", g.best) : t.s;
}
