// bind.c: matches a call with what the artifact says, and checks it.
//
// In: a call as the user wrote it. Out: an RtBound: every size has its value, every tensor its
// address and strides, and for them everything the metadata asks holds. Kernels are only ever
// launched with an RtBound.
//
// Order: names; presence; sizes, from the call, then from shapes; q_offset; derived sizes; then
// each tensor against the sizes. A size comes from the first tensor that has it as an extent, and
// messages name that tensor.
#include "rt.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct Binder {
    const attn_artifact *a;
    const AbiVariant *v;
    const attn_call *call;
    RtNeed need;
    RtBound *b;
    attn_error *error;
    const attn_tensor *tensor[ABI_MAX_TENSORS]; // what was given, or NULL
    bool scalar[ABI_MAX_TENSORS];               // was given
    const char *by[ABI_MAX_SIZES];              // who gave the size, or NULL
} Binder;

#define FAIL(...) return rt_fail(x->error, ATTN_ERROR_CALL, __VA_ARGS__)

// ---- names

static const char *phase_name(unsigned phase) {
    static const char *const names[] = {
        "forward", "backward",           "part", "combination", "backward of a part",
        "piece",   "backward of a piece"};
    return phase < ABI_PHASE_COUNT ? names[phase] : "phase of this number";
}

static attn_status find_variant(Binder *x) {
    const AbiMeta *m = &x->a->meta;
    const char *name = x->call->variant;
    x->b->first = 0;
    for (uint32_t i = 0; i < m->nvariants; i++) {
        const AbiVariant *v = &m->variants[i];
        if (v->phase == x->call->phase && (!name || strcmp(v->name, name) == 0)) {
            if (x->v)
                FAIL("the artifact holds several variants (%s, %s ...): name one", x->v->name,
                     v->name);
            x->v = v;
        }
        if (!x->v) x->b->first += v->nkernels;
    }
    x->b->variant = x->v;
    const char *phase = phase_name(x->call->phase);
    if (!x->v && name) FAIL("the artifact holds no variant %s with a %s", name, phase);
    if (!x->v) FAIL("the artifact holds no variant with a %s", phase);
    return ATTN_OK;
}

static int find_tensor(const AbiVariant *v, const char *name) {
    for (uint32_t i = 0; name && i < v->ntensors; i++)
        if (v->tensors[i].role != ABI_ROLE_WORK && strcmp(v->tensors[i].name, name) == 0)
            return (int)i;
    return -1;
}

static bool is_part(const AbiVariant *v) { // of an attention
    return v->phase >= ABI_PART && v->family == ABI_ATTENTION;
}

static bool is_dense(const AbiVariant *v) { return v->layout == ABI_LAYOUT_DENSE; }

static attn_status no_tensor(Binder *x, const char *name) {
    static const char *const index[] = {"q_start",  "kv_start",    "kv_len", "page_table",
                                        "q_offset", "state_index", "Sq_all", "Sk_all"};
    for (int i = 0; name && i < 8; i++)
        if (strcmp(name, index[i]) == 0)
            FAIL("%s: layout %s has no such tensor", name,
                 abi_layout_name((AbiLayout)x->v->layout));
    if (name && strcmp(name, "v") == 0) FAIL("v: %s shares v with k, it is not passed", x->v->name);
    FAIL("%s: the %s of %s has no such tensor", name ? name : "a name of NULL",
         phase_name(x->v->phase), x->v->name);
}

static attn_status match_tensors(Binder *x) {
    for (size_t k = 0; k < x->call->ntensors; k++) {
        const attn_tensor *t = &x->call->tensors[k];
        int i = find_tensor(x->v, t->name);
        if (i < 0) return no_tensor(x, t->name);
        if (x->v->tensors[i].rank == 0)
            FAIL("%s: is a scalar input, and was given as a tensor", t->name);
        if (x->tensor[i]) FAIL("%s: given twice", t->name);
        x->tensor[i] = t;
    }
    return ATTN_OK;
}

// To the nearest number with so many bits, even on a tie: what an element of that type would hold.
static double narrowed(double v, int bits, int least_exponent, double most) {
    int e;
    if (v == 0 || !isfinite(v)) return v;
    (void)frexp(v, &e);
    e = e - bits > least_exponent ? e - bits : least_exponent;
    double r = ldexp(nearbyint(ldexp(v, -e)), e);
    return fabs(r) > most ? copysign(INFINITY, v) : r;
}

static double scalar_value(AbiDtype t, double v) {
    if (t == ABI_F16) return narrowed(v, 11, -24, 65504);
    if (t == ABI_BF16) return narrowed(v, 8, -133, 0x1.fep127);
    if (t == ABI_E4M3) return narrowed(v, 4, -9, 448);
    if (t == ABI_E5M2) return narrowed(v, 3, -16, 57344);
    return v;
}

static attn_status scalar_bits(Binder *x, const AbiTensor *t, double value, uint64_t *bits) {
    if (abi_dtype_float((AbiDtype)t->dtype)) {
        float f = (float)scalar_value((AbiDtype)t->dtype, value);
        uint32_t u;
        if (isfinite(value) && !isfinite(f))
            FAIL("%s: %g is more than %s holds", t->name, value,
                 abi_dtype_name((AbiDtype)t->dtype));
        memcpy(&u, &f, sizeof u);
        *bits = u;
        return ATTN_OK;
    }
    bool truth = t->dtype == ABI_BOOL, byte = t->dtype == ABI_I8;
    double least = truth ? 0 : byte ? -128 : INT32_MIN, most = truth ? 1 : byte ? 127 : INT32_MAX;
    if (!(value >= least && value <= most) || value != (double)(int32_t)value)
        FAIL("%s: %g is no %s", t->name, value, abi_dtype_name((AbiDtype)t->dtype));
    uint32_t u = (uint32_t)(int32_t)value;
    float f = (float)value;
    if (byte) memcpy(&u, &f, sizeof u); // which programs read as an f32
    *bits = u;
    return ATTN_OK;
}

static attn_status match_scalars(Binder *x) {
    for (size_t k = 0; k < x->call->nscalars; k++) {
        const attn_scalar *s = &x->call->scalars[k];
        int i = find_tensor(x->v, s->name);
        if (i < 0)
            FAIL("%s: %s has no such input", s->name ? s->name : "a name of NULL", x->v->name);
        if (x->v->tensors[i].rank) FAIL("%s: is a tensor, and was given as a scalar", s->name);
        if (x->scalar[i]) FAIL("%s: given twice", s->name);
        x->scalar[i] = true;
        attn_status status = scalar_bits(x, &x->v->tensors[i], s->value, &x->b->value[i]);
        if (status) return status;
    }
    return ATTN_OK;
}

static attn_status check_presence(Binder *x) {
    for (uint32_t i = 0; i < x->v->ntensors; i++) {
        const AbiTensor *t = &x->v->tensors[i];
        if (t->role == ABI_ROLE_WORK || (t->flags & ABI_OPTIONAL) || x->tensor[i] || x->scalar[i])
            continue;
        const char *what = t->rank == 0 ? "scalar" : abi_output(x->v, t) ? "output" : "tensor";
        FAIL("%s: this %s is missing", t->name, what);
    }
    return ATTN_OK;
}

// ---- sizes

// Rows of several sequences, and what is computed of them, are more than positions.
static bool is_of_rows(const AbiVariant *v, uint32_t k) {
    return !is_dense(v) && (k == ABI_SIZE_TQ || k == ABI_SIZE_TK || v->sizes[k].def.n);
}

static attn_status set_size(Binder *x, uint32_t k, int64_t value, const char *by) {
    const char *name = x->v->sizes[k].name;
    bool attention = x->v->family == ABI_ATTENTION;
    bool offset = attention && is_dense(x->v) && k == ABI_SIZE_Q_OFFSET;
    int64_t most = attention && !is_of_rows(x->v, k) ? ABI_MAX_SIZE : INT32_MAX;
    if (value > most || value < (offset ? -most : 0))
        FAIL("%s: %s is %lld, which is out of range", by, name, (long long)value);
    x->b->size[k] = value;
    x->by[k] = by;
    return ATTN_OK;
}

static attn_status sizes_of_call(Binder *x) {
    for (size_t i = 0; i < x->call->nsizes; i++) {
        const attn_size *s = &x->call->sizes[i];
        uint32_t k = 0;
        while (k < x->v->nsizes && (!s->name || strcmp(x->v->sizes[k].name, s->name) != 0)) k++;
        if (k == x->v->nsizes)
            FAIL("%s: %s has no such size", s->name ? s->name : "a name of NULL", x->v->name);
        if (x->v->sizes[k].def.n) FAIL("%s: this size is computed and cannot be given", s->name);
        if (x->by[k]) FAIL("%s: given twice", s->name);
        attn_status status = set_size(x, k, s->value, "the call");
        if (status) return status;
    }
    return ATTN_OK;
}

// The size that an extent is, when it is a given size, or one and *more; otherwise -1.
static int lone_size(const AbiVariant *v, const AbiExpr *e, int64_t *more) {
    bool sum = e->n == 3 && e->code[1].op == ABI_OP_CONST && e->code[2].op == ABI_OP_ADD;
    *more = sum ? e->code[1].arg : 0;
    if ((e->n != 1 && !sum) || e->code[0].op != ABI_OP_SIZE) return -1;
    return v->sizes[e->code[0].arg].def.n ? -1 : (int)e->code[0].arg;
}

// "[Tq, H, D]" into buf.
static const char *shape_text(const AbiVariant *v, const AbiTensor *t, char *buf, size_t n) {
    bool key = t->role == ABI_ROLE_Q || t->role == ABI_ROLE_K;
    bool value = t->role == ABI_ROLE_V || t->role == ABI_ROLE_O;
    size_t used = (size_t)snprintf(buf, n, "[");
    for (int d = 0; d < t->rank && used < n; d++) {
        const AbiExpr *e = &t->extent[d];
        const char *between = d ? ", " : "";
        int64_t more;
        int k = lone_size(v, e, &more);
        if (k >= 0 && more)
            used += (size_t)snprintf(buf + used, n - used, "%s%s + %lld", between, v->sizes[k].name,
                                     (long long)more);
        else if (k < 0 && d == t->rank - 1 && (key || value))
            used += (size_t)snprintf(buf + used, n - used, "%s%s", between, key ? "D" : "Dv");
        else if (k < 0 && e->n == 1)
            used += (size_t)snprintf(buf + used, n - used, "%s%lld", between,
                                     (long long)e->code[0].arg);
        else
            used += (size_t)snprintf(buf + used, n - used, "%s%s", between,
                                     k < 0 ? "..." : v->sizes[k].name);
    }
    if (used < n) snprintf(buf + used, n - used, "]");
    return buf;
}

static attn_status sizes_of_tensor(Binder *x, uint32_t i) {
    const AbiTensor *t = &x->v->tensors[i];
    const attn_tensor *g = x->tensor[i];
    char expected[160];
    if (g->rank != t->rank && !is_dense(x->v))
        FAIL("%s: has %d dimensions, expected %d: %s in layout %s", t->name, g->rank, t->rank,
             shape_text(x->v, t, expected, sizeof expected),
             abi_layout_name((AbiLayout)x->v->layout));
    if (g->rank != t->rank) FAIL("%s: has %d dimensions, expected %d", t->name, g->rank, t->rank);
    if (!g->shape) FAIL("%s: is given without a shape", t->name);
    for (int d = 0; d < t->rank; d++) {
        int64_t more, n = g->shape[d];
        int k = lone_size(x->v, &t->extent[d], &more);
        if (n < 0) FAIL("%s: dimension %d is %lld", t->name, d, (long long)n);
        if (k < 0) continue;
        const char *name = x->v->sizes[k].name;
        if (n < more)
            FAIL("%s: dimension %d is %lld, expected %s + %lld", t->name, d, (long long)n, name,
                 (long long)more);
        if (!x->by[k]) {
            attn_status status = set_size(x, (uint32_t)k, n - more, t->name);
            if (status) return status;
        } else if (x->b->size[k] != n - more) {
            char sum[32] = "";
            if (more) snprintf(sum, sizeof sum, " + %lld", (long long)more);
            FAIL("%s: dimension %d is %lld, expected %s%s = %lld (from %s)", t->name, d,
                 (long long)n, name, sum, (long long)(x->b->size[k] + more), x->by[k]);
        }
    }
    return ATTN_OK;
}

attn_status rt_eval(const RtBound *b, const AbiExpr *e, const char *what, int64_t *out,
                    attn_error *error) {
    if (abi_eval(e, b->size, b->artifact->device ? b->artifact->device->workers : 1, out))
        return ATTN_OK;
    return rt_fail(error, ATTN_ERROR_CALL, "%s: is too large at these sizes", what);
}

// Nothing gives a size: the tensor that would is missing, or the call has to.
static attn_status open_size(Binder *x, uint32_t k) {
    for (uint32_t i = 0; i < x->v->ntensors; i++) {
        const AbiTensor *t = &x->v->tensors[i];
        int64_t more;
        for (int d = 0; d < t->rank && abi_is_index(t) && !x->tensor[i]; d++)
            if (lone_size(x->v, &t->extent[d], &more) == (int)k)
                FAIL("%s: this tensor is missing", t->name);
    }
    bool ragged = false;
    for (uint32_t i = 0; i < x->v->ntensors; i++)
        ragged |= x->v->tensors[i].role == ABI_ROLE_STATE_INDEX;
    FAIL("%s: nothing gives this size%s", x->v->sizes[k].name,
         ragged ? ": pass q_start, state_index or B" : "");
}

static attn_status derived_sizes(Binder *x) {
    for (uint32_t k = 0; k < x->v->nsizes; k++) {
        const AbiSize *s = &x->v->sizes[k];
        if (s->def.n == 0) {
            if (!x->by[k]) return open_size(x, k);
            continue;
        }
        int64_t value;
        attn_status status = rt_eval(x->b, &s->def, s->name, &value, x->error);
        if (!status) status = set_size(x, k, value, "this launch");
        if (status) return status;
    }
    return ATTN_OK;
}

static attn_status check_groups(Binder *x) {
    const int64_t *s = x->b->size;
    if (!x->by[ABI_SIZE_H] || !x->by[ABI_SIZE_HKV]) return ATTN_OK;
    if (s[ABI_SIZE_H] * s[ABI_SIZE_HKV] > INT32_MAX)
        FAIL("%s: H is %lld, too many heads with Hkv = %lld", x->by[ABI_SIZE_H],
             (long long)s[ABI_SIZE_H], (long long)s[ABI_SIZE_HKV]);
    if (s[ABI_SIZE_HKV] == 0 ? s[ABI_SIZE_H] != 0 : s[ABI_SIZE_H] % s[ABI_SIZE_HKV] != 0)
        FAIL("%s: H is %lld, which is no multiple of Hkv = %lld (from %s)", x->by[ABI_SIZE_H],
             (long long)s[ABI_SIZE_H], (long long)s[ABI_SIZE_HKV], x->by[ABI_SIZE_HKV]);
    return ATTN_OK;
}

// Row inputs have heads of their own, each for as many of the queries' (or keys').
static attn_status check_row_inputs(Binder *x) {
    const int64_t *s = x->b->size;
    for (uint32_t i = 0; i < x->v->ntensors; i++) {
        const AbiTensor *t = &x->v->tensors[i];
        if (!(t->flags & ABI_ROWS) || !x->tensor[i]) continue;
        int64_t ignored, n = x->tensor[i]->shape[is_dense(x->v) ? 1 : t->rank - 2];
        int first = lone_size(x->v, &t->extent[0], &ignored);
        bool keys = !is_dense(x->v) && first != ABI_SIZE_TQ;
        int of = keys ? ABI_SIZE_HKV : ABI_SIZE_H;
        if (x->by[of] && (n == 0 ? s[of] != 0 : s[of] % n != 0))
            FAIL("%s: %lld heads do not divide %s = %lld", t->name, (long long)n,
                 keys ? "Hkv" : "H", (long long)s[of]);
        if (x->by[of] && n * s[ABI_SIZE_H] > INT32_MAX)
            FAIL("%s: %lld heads are too many", t->name, (long long)n);
    }
    return ATTN_OK;
}

// Kernels take positions for numbers that f32 has, and products of heads for i32.
static attn_status check_positions(Binder *x, int64_t offset, int64_t queries) {
    if (offset + queries <= ABI_MAX_SIZE) return check_groups(x);
    FAIL("%s: q_offset is %lld, and the last of Sq = %lld queries is beyond position %d",
         x->by[ABI_SIZE_Q_OFFSET], (long long)offset, (long long)queries, ABI_MAX_SIZE - 1);
}

static attn_status dense_sizes(Binder *x) {
    int64_t *s = x->b->size;
    if (!x->by[ABI_SIZE_Q_OFFSET]) {
        s[ABI_SIZE_Q_OFFSET] =
            s[ABI_SIZE_SK] > s[ABI_SIZE_SQ] ? s[ABI_SIZE_SK] - s[ABI_SIZE_SQ] : 0;
        x->by[ABI_SIZE_Q_OFFSET] = "Sk - Sq";
    }
    return check_positions(x, s[ABI_SIZE_Q_OFFSET], s[ABI_SIZE_SQ]);
}

static int tensor_of_role(const Binder *x, AbiRole role) {
    for (uint32_t i = 0; i < x->v->ntensors; i++)
        if (x->v->tensors[i].role == role) return (int)i;
    return -1;
}

// ---- sizes of parts: some rows and keys of a whole sequence

static int size_named(const Binder *x, const char *name) {
    for (uint32_t k = 0; k < x->v->nsizes; k++)
        if (strcmp(x->v->sizes[k].name, name) == 0) return (int)k;
    return -1;
}

static bool is_asked(const Binder *x, int size) { // by some kernel
    for (uint32_t k = 0; k < x->v->nkernels; k++) {
        const AbiKernel *kernel = &x->v->kernels[k];
        for (uint32_t i = 0; i < kernel->nargs; i++)
            if (kernel->args[i].kind == ABI_ARG_SIZE && kernel->args[i].index == size) return true;
    }
    return false;
}

// A size that nobody gave, where there is a value for it or no kernel asks. It stays open otherwise.
static void default_size(Binder *x, int k, bool known, int64_t value) {
    if (k < 0 || x->by[k] || (!known && is_asked(x, k))) return;
    x->b->size[k] = value;
    x->by[k] = "this launch";
}

static attn_status check_within(Binder *x, int all, int first, int64_t n, const char *rows) {
    int64_t from = first < 0 ? 0 : x->b->size[first];
    if (from + n > ABI_MAX_SIZE)
        FAIL("%s: the part ends with %s %lld, which is beyond position %d", x->v->name, rows,
             (long long)(from + n), ABI_MAX_SIZE - 1);
    if (all < 0 || !x->by[all] || from + n <= x->b->size[all]) return ATTN_OK;
    FAIL("%s: is %lld, but the part ends with %s %lld", x->v->sizes[all].name,
         (long long)x->b->size[all], rows, (long long)(from + n));
}

// Sums and numbers of rows are one state.
static attn_status check_state(Binder *x) {
    int sums = tensor_of_role(x, ABI_ROLE_STATE0), rows = tensor_of_role(x, ABI_ROLE_ROWS0);
    if (sums < 0 || rows < 0 || !x->tensor[sums] == !x->tensor[rows]) return ATTN_OK;
    const char *missing = x->v->tensors[x->tensor[sums] ? rows : sums].name;
    FAIL("%s: this tensor is missing: %s and %s are one state", missing, x->v->tensors[sums].name,
         x->v->tensors[rows].name);
}

// Of a combination, which has no keys: nothing gives sizes of theirs, or of inputs that are left out.
static void free_sizes(Binder *x, int but) {
    if (x->v->phase != ABI_COMBINE) return;
    default_size(x, ABI_SIZE_HKV, !is_dense(x->v), x->b->size[ABI_SIZE_H]);
    for (uint32_t k = 0; k < x->v->nsizes; k++)
        if (!x->v->sizes[k].def.n && (int)k != but) default_size(x, (int)k, false, 0);
}

static attn_status part_sizes(Binder *x) {
    int64_t *s = x->b->size;
    int q_first = size_named(x, "q_first"), kv_first = size_named(x, "kv_first");
    int Sq = size_named(x, "Sq_all"), Sk = size_named(x, "Sk_all");
    if (q_first < 0 || Sq < 0 || Sk < 0) FAIL("%s: has no sizes of a whole", x->v->name);
    default_size(x, q_first, true, 0);
    default_size(x, kv_first, true, 0);
    default_size(x, Sq, x->by[ABI_SIZE_SQ] != NULL, s[q_first] + s[ABI_SIZE_SQ]);
    default_size(x, ABI_SIZE_Q_OFFSET, x->by[Sk] != NULL,
                 s[q_first] + (s[Sk] > s[Sq] ? s[Sk] - s[Sq] : 0));
    if (!x->by[ABI_SIZE_Q_OFFSET])
        FAIL(
            "q_offset: the position of the first query is not known: pass q_offset, or Sk_all, the "
            "number of keys of the whole sequence");
    free_sizes(x, Sk);
    default_size(x, Sk, false, (kv_first < 0 ? 0 : s[kv_first]) + s[ABI_SIZE_SK]);
    attn_status status = check_state(x);
    if (!status) status = check_within(x, Sq, q_first, s[ABI_SIZE_SQ], "query");
    if (!status) status = check_within(x, Sk, kv_first, s[ABI_SIZE_SK], "key");
    return status ? status : check_positions(x, s[ABI_SIZE_Q_OFFSET] - s[q_first], s[Sq]);
}

// ---- sizes of ragged and paged attentions

// An index tensor that may be left out has a size of its own, by which kernels know: then it is 0.
static attn_status optional_index(Binder *x, AbiRole role, int64_t more) {
    int i = tensor_of_role(x, role);
    const AbiTensor *t = i < 0 ? NULL : &x->v->tensors[i];
    int64_t ignored, n;
    int k = t && t->flags & ABI_OPTIONAL ? lone_size(x->v, &t->extent[0], &ignored) : -1;
    if (k < 0 || k == ABI_SIZE_B) return ATTN_OK;
    if (!x->tensor[i]) {
        x->b->size[k] = 0;
        x->by[k] = "its absence";
        return ATTN_OK;
    }
    n = x->tensor[i]->shape[0];
    if (!x->by[ABI_SIZE_B]) return set_size(x, ABI_SIZE_B, n - more, t->name);
    if (n != x->b->size[ABI_SIZE_B] + more)
        FAIL("%s: dimension 0 is %lld, expected B%s = %lld (from %s)", t->name, (long long)n,
             more ? " + 1" : "", (long long)(x->b->size[ABI_SIZE_B] + more), x->by[ABI_SIZE_B]);
    return ATTN_OK;
}

static attn_status check_pages(Binder *x) {
    const int64_t *s = x->b->size;
    int64_t page = x->v->page;
    if (page && !x->by[ABI_SIZE_PAGE]) {
        attn_status status = set_size(x, ABI_SIZE_PAGE, page, "the artifact");
        if (status) return status;
    }
    if (page && s[ABI_SIZE_PAGE] != page)
        FAIL("%s: pages of %lld rows, this artifact is for pages of %lld (--layout=paged:%lld)",
             x->by[ABI_SIZE_PAGE], (long long)s[ABI_SIZE_PAGE], (long long)page, (long long)page);
    if (x->by[ABI_SIZE_PAGES] && s[ABI_SIZE_PAGES] * s[ABI_SIZE_PAGE] > INT32_MAX)
        FAIL("%s: %lld pages of %lld rows are too many: at most %d rows", x->by[ABI_SIZE_PAGES],
             (long long)s[ABI_SIZE_PAGES], (long long)s[ABI_SIZE_PAGE], INT32_MAX);
    return ATTN_OK;
}

// Of Tq, and max_q behind it, where B and Tq are known.
static attn_status batch_rows(Binder *x, int at) {
    int64_t *s = x->b->size, *max_q = &s[at + 1], B = s[ABI_SIZE_B], Tq = s[at];
    int starts = tensor_of_role(x, ABI_ROLE_Q_START);
    bool even = starts < 0 || (!x->tensor[starts] && x->v->tensors[starts].flags & ABI_OPTIONAL);
    if (!x->by[at] || !x->by[ABI_SIZE_B]) return ATTN_OK;
    if (even && (B ? Tq % B : Tq) != 0)
        FAIL("%s: %lld rows are no multiple of B = %lld: pass q_start", x->by[at], (long long)Tq,
             (long long)B);
    if (!x->by[at + 1]) {
        *max_q = !even ? Tq : B ? Tq / B : 0;
        x->by[at + 1] = x->by[at];
    }
    // A hint: no sequence has more queries than there are, and kernels never see 0.
    int64_t most = Tq < 1 ? 1 : Tq < ABI_MAX_SIZE ? Tq : ABI_MAX_SIZE;
    if (*max_q > most) *max_q = most;
    if (*max_q < 1) *max_q = 1;
    return ATTN_OK;
}

static bool is_given(const Binder *x, AbiRole role) {
    int i = tensor_of_role(x, role);
    return i >= 0 && x->tensor[i];
}

// Sequences of which some rows and keys are at hand: tensors say where they stand.
static attn_status batch_parts(Binder *x) {
    attn_status status = ATTN_OK;
    for (int role = ABI_ROLE_Q_FIRST; role <= ABI_ROLE_SK_ALL && !status; role++)
        status = optional_index(x, (AbiRole)role, 0);
    if (status) return status;
    if (!is_given(x, ABI_ROLE_Q_OFFSET) && !is_given(x, ABI_ROLE_SK_ALL))
        FAIL("q_offset: the positions of the first queries are not known: pass q_offset, or "
             "Sk_all, the numbers of keys of the whole sequences");
    default_size(x, size_named(x, "kv_block"), true, 0);
    default_size(x, size_named(x, "kv_stride"), true, 0);
    status = check_state(x);
    if (!status && x->v->layout == ABI_LAYOUT_PAGED) status = check_pages(x);
    if (!status) status = batch_rows(x, ABI_SIZE_TQ); // what it knows is not freed
    free_sizes(x, -1);
    return status;
}

static attn_status batch_sizes(Binder *x) {
    attn_status status = optional_index(x, ABI_ROLE_Q_START, 1);
    if (!status) status = optional_index(x, ABI_ROLE_Q_OFFSET, 0);
    if (!status && is_part(x->v)) status = batch_parts(x);
    if (!status && x->v->layout == ABI_LAYOUT_PAGED) status = check_pages(x);
    if (!status) status = batch_rows(x, ABI_SIZE_TQ);
    return status ? status : check_groups(x);
}

static attn_status attention_sizes(Binder *x) {
    attn_status status = !is_dense(x->v) ? batch_sizes(x)
                         : is_part(x->v) ? part_sizes(x)
                                         : dense_sizes(x);
    return status ? status : check_row_inputs(x);
}

// ---- those of recurrences

// Heads of q, k and v serve equal numbers of the recurrence's, which nothing needs to give.
static attn_status check_heads(Binder *x, int H, const char *name) {
    int k = size_named(x, name);
    int64_t heads = x->b->size[H], n = k < 0 ? 1 : x->b->size[k];
    if (k < 0 || !x->by[k]) return ATTN_OK;
    if (n == 0 ? heads != 0 : heads % n != 0)
        FAIL("%s: H is %lld, which is no multiple of %s = %lld (from %s)", x->by[H],
             (long long)heads, name, (long long)n, x->by[k]);
    if (heads * n > INT32_MAX)
        FAIL("%s: H is %lld, too many heads with %s = %lld", x->by[H], (long long)heads, name,
             (long long)n);
    return ATTN_OK;
}

// Of a ragged one: as many slots as sequences, unless state_index tells which are theirs.
static attn_status state_slots(Binder *x) {
    int64_t *s = x->b->size;
    attn_status status = optional_index(x, ABI_ROLE_Q_START, 1);
    if (!status) status = optional_index(x, ABI_ROLE_STATE_INDEX, 0);
    if (status) return status;
    int index = tensor_of_role(x, ABI_ROLE_STATE_INDEX);
    bool pool = index >= 0 && x->tensor[index];
    if (!pool && x->by[ABI_RSIZE_SLOTS] && !x->by[ABI_SIZE_B]) {
        s[ABI_SIZE_B] = s[ABI_RSIZE_SLOTS];
        x->by[ABI_SIZE_B] = x->by[ABI_RSIZE_SLOTS];
    }
    if (!x->by[ABI_SIZE_B]) return ATTN_OK;
    if (!x->by[ABI_RSIZE_SLOTS]) {
        s[ABI_RSIZE_SLOTS] = s[ABI_SIZE_B];
        x->by[ABI_RSIZE_SLOTS] = x->by[ABI_SIZE_B];
    }
    if (pool ? s[ABI_SIZE_B] && !s[ABI_RSIZE_SLOTS] : s[ABI_SIZE_B] != s[ABI_RSIZE_SLOTS])
        FAIL("%s: %lld slots for B = %lld sequences (from %s)%s", x->by[ABI_RSIZE_SLOTS],
             (long long)s[ABI_RSIZE_SLOTS], (long long)s[ABI_SIZE_B], x->by[ABI_SIZE_B],
             pool ? "" : ": pass state_index");
    return batch_rows(x, ABI_RSIZE_TQ);
}

static attn_status recurrence_sizes(Binder *x) {
    static const char *const heads[] = {"Hq", "Hk", "Hv"};
    int H = size_named(x, "H"), S = size_named(x, "S");
    attn_status status = ATTN_OK;
    if (S >= 0 && x->by[S] && x->b->size[S] > ABI_MAX_SIZE) // positions are numbers that f32 has
        FAIL("%s: S is %lld, which is more than %d positions", x->by[S], (long long)x->b->size[S],
             ABI_MAX_SIZE);
    for (int i = 0; i < 3 && H >= 0 && !x->by[H]; i++) {
        int k = size_named(x, heads[i]);
        if (k >= 0 && x->by[k] && x->b->size[k] > x->b->size[H]) x->b->size[H] = x->b->size[k];
    }
    if (H >= 0 && !x->by[H] && x->b->size[H]) x->by[H] = "the heads of q, k and v";
    for (int i = 0; i < 3 && !status && H >= 0 && x->by[H]; i++)
        status = check_heads(x, H, heads[i]);
    return status || is_dense(x->v) ? status : state_slots(x);
}

static attn_status bind_sizes(Binder *x) {
    attn_status status = sizes_of_call(x);
    int table = tensor_of_role(x, ABI_ROLE_PAGE_TABLE); // first: others are held against it
    if (!status && table >= 0 && x->tensor[table]) status = sizes_of_tensor(x, (uint32_t)table);
    for (uint32_t i = 0; !status && i < x->v->ntensors; i++)
        if (x->tensor[i]) status = sizes_of_tensor(x, i);
    bool attention = x->v->family == ABI_ATTENTION;
    if (!status) status = attention ? attention_sizes(x) : recurrence_sizes(x);
    return status ? status : derived_sizes(x);
}

// ---- tensors against the sizes

static const char *device_text(attn_device d, char *out, size_t n) {
    const char *kind = d.kind == ATTN_CPU    ? "cpu"
                       : d.kind == ATTN_CUDA ? "cuda"
                       : d.kind == ATTN_HIP  ? "hip"
                                             : NULL;
    if (!kind)
        snprintf(out, n, "device kind %d", (int)d.kind);
    else if (d.kind == ATTN_CPU)
        snprintf(out, n, "cpu");
    else
        snprintf(out, n, "%s:%d", kind, d.number);
    return out;
}

static attn_status check_extents(Binder *x, const AbiTensor *t, const attn_tensor *g) {
    for (int d = 0; d < t->rank; d++) {
        const AbiExpr *e = &t->extent[d];
        int64_t expected;
        attn_status status = rt_eval(x->b, e, t->name, &expected, x->error);
        if (status) return status;
        if (g->shape[d] == expected) continue;
        const char *name =
            e->n == 1 && e->code[0].op == ABI_OP_SIZE ? x->v->sizes[e->code[0].arg].name : NULL;
        FAIL("%s: dimension %d is %lld, expected %s%s%lld", t->name, d, (long long)g->shape[d],
             name ? name : "", name ? " = " : "", (long long)expected);
    }
    return ATTN_OK;
}

static attn_status bind_strides(Binder *x, const AbiTensor *t, const attn_tensor *g,
                                int64_t *stride) {
    int64_t dense = 1;
    bool empty = false; // then strides say nothing, and some libraries have zeros there
    for (int d = 0; d < t->rank; d++) empty |= g->shape[d] == 0;
    for (int d = t->rank - 1; d >= 0; d--) {
        stride[d] = g->strides && !empty ? g->strides[d] : dense;
        if (__builtin_mul_overflow(dense, g->shape[d] ? g->shape[d] : 1, &dense))
            FAIL("%s: is too large", t->name);
        if (g->shape[d] < 2) {
            stride[d] = 0; // never multiplied by anything but 0: what it was given as says nothing
            continue;
        }
        if (d == t->rank - 1 && stride[d] != 1)
            FAIL("%s: the last dimension has stride %lld, it must be contiguous", t->name,
                 (long long)stride[d]);
        if (stride[d] == 0 && abi_output(x->v, t))
            FAIL("%s: dimension %d of an output has stride 0", t->name, d);
    }
    return ATTN_OK;
}

static attn_status check_memory(Binder *x, const AbiTensor *t, const attn_tensor *g,
                                const int64_t *stride) {
    int align = abi_tensor_align(&x->a->meta, t), bytes = abi_dtype_bytes((AbiDtype)t->dtype);
    char given[32], ours[32];
    bool empty = false;
    for (int d = 0; d < t->rank; d++) empty |= g->shape[d] == 0;
    if (x->a->device->id.kind != g->device.kind || x->a->device->id.number != g->device.number)
        FAIL("%s: is on %s, the artifact on %s", t->name,
             device_text(g->device, given, sizeof given),
             device_text(x->a->device->id, ours, sizeof ours));
    if (empty) return ATTN_OK;
    if (!g->data) FAIL("%s: is a null pointer", t->name);
    if ((uintptr_t)g->data % (unsigned)align)
        FAIL("%s: its address is no multiple of %d bytes (it is off by %d)", t->name, align,
             (int)((uintptr_t)g->data % (unsigned)align));
    for (int d = 0; d + 1 < t->rank; d++)
        if (stride[d] % (align / bytes))
            FAIL("%s: dimension %d has stride %lld, which is no multiple of %d elements (%d bytes)",
                 t->name, d, (long long)stride[d], align / bytes, align);
    return ATTN_OK;
}

static attn_status bind_tensor(Binder *x, uint32_t i) {
    const AbiTensor *t = &x->v->tensors[i];
    const attn_tensor *g = x->tensor[i];
    attn_status status = check_extents(x, t, g);
    if (status) return status;
    if (x->need == RT_SIZES) return ATTN_OK;
    if ((int)g->dtype != t->dtype)
        FAIL("%s: has elements of type %s, expected %s", t->name,
             (unsigned)g->dtype < ABI_DTYPE_COUNT ? abi_dtype_name((AbiDtype)g->dtype) : "unknown",
             abi_dtype_name((AbiDtype)t->dtype));
    int64_t offset = is_part(x->v) && is_dense(x->v)
                         ? x->b->size[ABI_SIZE_Q_OFFSET] - x->b->size[size_named(x, "q_first")]
                         : x->b->size[ABI_SIZE_Q_OFFSET];
    if ((t->flags & ABI_BARE_Q) && offset != 0)
        FAIL("%s: is indexed by q_idx, which is right only where q_offset is 0, and here it is "
             "%lld: index it by q_idx - "
             "q_offset, or pass q_offset = 0",
             t->name, (long long)offset);
    status = bind_strides(x, t, g, x->b->stride[i]);
    if (!status) status = check_memory(x, t, g, x->b->stride[i]);
    memcpy(x->b->extent[i], g->shape, (size_t)t->rank * sizeof g->shape[0]);
    x->b->value[i] = (uint64_t)(uintptr_t)g->data;
    return status;
}

static RtPlace place_of(const Binder *x, uint32_t i) {
    const AbiTensor *t = &x->v->tensors[i];
    return (RtPlace){x->b->value[i], abi_dtype_bytes((AbiDtype)t->dtype), t->rank, x->b->extent[i],
                     x->b->stride[i]};
}

// A state may go on in the place of state0, rows of a part in that of rows0: each program has read its part when it writes it.
static bool goes_on(const Binder *x, uint32_t out, uint32_t in) {
    const AbiTensor *t = &x->v->tensors[out], *from = &x->v->tensors[in];
    size_t n = (size_t)t->rank * sizeof(int64_t);
    bool next = (t->role == ABI_ROLE_STATE && from->role == ABI_ROLE_STATE0) ||
                (t->role == ABI_ROLE_ROWS && from->role == ABI_ROLE_ROWS0);
    return next && t->rank == from->rank && x->b->value[out] == x->b->value[in] &&
           !memcmp(x->b->extent[out], x->b->extent[in], n) &&
           !memcmp(x->b->stride[out], x->b->stride[in], n);
}

// What kernels write, they do not read.
static attn_status check_apart(Binder *x) {
    for (uint32_t i = 0; i < x->v->ntensors; i++)
        for (uint32_t j = 0; j < x->v->ntensors && x->tensor[i]; j++) {
            const AbiTensor *t = &x->v->tensors[i], *other = &x->v->tensors[j];
            if (i == j || !x->tensor[j] || !abi_output(x->v, t)) continue;
            if (j > i && abi_output(x->v, other)) continue;
            RtPlace a = place_of(x, i), b = place_of(x, j);
            if (rt_overlap(&a, &b) && !goes_on(x, i, j))
                FAIL("%s: overlaps %s in memory: what is written needs memory of its own", t->name,
                     other->name);
        }
    return ATTN_OK;
}

// ---- plan and workspace

// Tensor copies take rows that begin at multiples of 16 bytes.
static bool is_copied(const Binder *x, uint32_t i) {
    enum { ALIGN = 16 };
    const AbiTensor *t = &x->v->tensors[i];
    int64_t bytes = abi_dtype_bytes((AbiDtype)t->dtype);
    bool is = x->b->value[i] % ALIGN == 0;
    for (int d = 0; d + 1 < t->rank; d++) is &= x->b->stride[i][d] * bytes % ALIGN == 0;
    return is;
}

// Whether the kernels of a plan can take the inputs where they lie. What else they copy lies so (bind_tensor).
static bool takes_inputs(const Binder *x, const AbiPlan *p) {
    for (uint32_t k = 0; k < p->nkernels; k++) {
        const AbiKernel *kernel = &x->v->kernels[p->kernels[k]];
        for (uint32_t i = 0; i < kernel->nmaps; i++) {
            uint16_t t = kernel->maps[i].tensor;
            if (x->v->tensors[t].role == ABI_ROLE_INPUT && !is_copied(x, t)) return false;
        }
    }
    return true;
}

static attn_status choose_plan(Binder *x) {
    for (uint32_t i = 0; i < x->v->nplans; i++) {
        const AbiPlan *p = &x->v->plans[i];
        int64_t holds = 1;
        attn_status status =
            p->when.n ? rt_eval(x->b, &p->when, "the choice of a plan", &holds, x->error) : ATTN_OK;
        if (status) return status;
        x->b->plan = p;
        if (holds && takes_inputs(x, p)) break;
    }
    return ATTN_OK;
}

static attn_status work_tensor(Binder *x, uint32_t i) {
    enum { ALIGN = 256 };
    const AbiTensor *t = &x->v->tensors[i];
    RtBound *b = x->b;
    int64_t n = 1, bytes = abi_dtype_bytes((AbiDtype)t->dtype), total;
    for (int d = t->rank - 1; d >= 0; d--) {
        int64_t extent;
        attn_status status = rt_eval(b, &t->extent[d], t->name, &extent, x->error);
        if (status) return status;
        b->extent[i][d] = extent;
        b->stride[i][d] = n;
        if (extent < 0 || __builtin_mul_overflow(n, extent, &n))
            FAIL("%s: has an impossible size here", t->name);
    }
    if (__builtin_mul_overflow(n, bytes, &bytes) ||
        __builtin_add_overflow(bytes, ALIGN - 1, &bytes) ||
        __builtin_add_overflow((int64_t)b->workspace, bytes / ALIGN * ALIGN, &total))
        FAIL("%s: has an impossible size here", t->name);
    b->value[i] = b->workspace;
    b->work_bytes[i] = (size_t)(bytes / ALIGN * ALIGN);
    b->workspace = (size_t)total;
    return ATTN_OK;
}

// Lays out the workspace tensors that the plan's kernels take.
static attn_status lay_out(Binder *x) {
    bool used[ABI_MAX_TENSORS] = {false};
    for (uint32_t k = 0; k < x->b->plan->nkernels; k++) {
        const AbiKernel *kernel = &x->v->kernels[x->b->plan->kernels[k]];
        for (uint32_t i = 0; i < kernel->nargs; i++)
            if (kernel->args[i].kind == ABI_ARG_POINTER) used[kernel->args[i].index] = true;
        for (uint32_t i = 0; i < kernel->nmaps; i++) used[kernel->maps[i].tensor] = true;
    }
    for (uint32_t i = 0; i < x->v->ntensors; i++) {
        if (!used[i] || x->v->tensors[i].role != ABI_ROLE_WORK) continue;
        attn_status status = work_tensor(x, i);
        if (status) return status;
    }
    return ATTN_OK;
}

attn_status rt_bind(const attn_artifact *a, const attn_call *call, RtNeed need, RtBound *out,
                    attn_error *error) {
    memset(out, 0, sizeof *out);
    out->artifact = a;
    Binder x = {.a = a, .call = call, .need = need, .b = out, .error = error};
    if (need == RT_ALL && !a->device)
        return rt_fail(error, ATTN_ERROR_CALL, "the artifact was opened without a device");
    attn_status status = find_variant(&x);
    if (!status) status = match_tensors(&x);
    if (!status) status = match_scalars(&x);
    if (!status && need == RT_ALL) status = check_presence(&x);
    if (!status) status = bind_sizes(&x);
    for (uint32_t i = 0; !status && i < x.v->ntensors; i++)
        if (x.tensor[i]) status = bind_tensor(&x, i);
    if (!status && need == RT_ALL) status = check_apart(&x);
    if (!status) status = choose_plan(&x);
    if (!status && call->flags & ~(unsigned)ATTN_KEEP_MAP)
        status = rt_fail(error, ATTN_ERROR_CALL, "the call has flags that do not exist");
    out->keep_map = call->flags & ATTN_KEEP_MAP;
    return status ? status : lay_out(&x);
}
