// abi.c: metadata to bytes and back.
//
// In: an AbiMeta, or bytes from anywhere. Out: bytes, or a verified AbiMeta. One walk (x_meta and
// what it calls) describes the layout for both directions: it writes when the Codec has an output,
// and reads otherwise. Integers are little-endian and of fixed width.
//
//     magic "attnmeta" | u32 version | u32 bytes in all | u64 FNV-1a of all other bytes |
//     code_bytes, code_sum | ...
//
// Memory that a reader takes is bounded by the input's size: a count is refused unless that many of
// the smallest possible elements still fit in what is left.
#include "abi.h"
#include <stdlib.h>
#include <string.h>

typedef struct AbiBlock AbiBlock;
struct AbiBlock {
    AbiBlock *next;
    max_align_t data[];
};

typedef struct Codec {
    bool writing;
    const char *error; // the first one; everything after it does nothing
    const uint8_t *in;
    uint8_t *out;
    size_t at, n; // position; reading: size of the input; writing: room in out
    AbiBlock *blocks;
} Codec;

enum { MAGIC_BYTES = 8, SUM_AT = ABI_SUM_AT, HEADER_BYTES = 24 };
static const char MAGIC[MAGIC_BYTES + 1] = "attnmeta";
static const char *const FIXED[ABI_LAYOUT_COUNT][ABI_MOST_FIXED + 1] = {
    // each list ends with NULL
    [ABI_LAYOUT_DENSE] = {"B", "H", "Hkv", "Sq", "Sk", "q_offset"},
    [ABI_LAYOUT_RAGGED] = {"B", "H", "Hkv", "Tq", "max_q", "Tk"},
    [ABI_LAYOUT_PAGED] = {"B", "H", "Hkv", "Tq", "max_q", "pages", "page", "table"},
};
static const char *const NO_SIZES[] = {NULL}; // a recurrence's have no order where it is dense
static const char *const STATE_SIZES[] = {"B", "H", "Hq", "Hk", "Hv", "Tq", "max_q", "slots", NULL};

static const char *const *fixed_sizes(AbiFamily family, AbiLayout layout) {
    if (family == ABI_ATTENTION) return FIXED[layout];
    return layout == ABI_LAYOUT_DENSE ? NO_SIZES : STATE_SIZES;
}

static void fail(Codec *c, const char *why) {
    if (!c->error) c->error = why;
}

static void *take(Codec *c, size_t bytes) { // zeroed; lives as long as the meta
    AbiBlock *b = calloc(1, sizeof *b + bytes);
    if (!b) {
        fail(c, "out of memory");
        return NULL;
    }
    b->next = c->blocks;
    c->blocks = b;
    return b->data;
}

static bool room(Codec *c, size_t bytes) {
    if (c->error) return false;
    if (!c->writing) {
        if (bytes > c->n - c->at) fail(c, "the metadata is cut short");
        return !c->error;
    }
    if (bytes <= c->n - c->at) return true;
    size_t n = c->n * 2 + bytes + 256;
    uint8_t *p = realloc(c->out, n);
    if (!p) {
        fail(c, "out of memory");
        return false;
    }
    c->out = p;
    c->n = n;
    return true;
}

static uint64_t x_uint(Codec *c, uint64_t v, int bytes) { // returns what now holds
    if (!room(c, (size_t)bytes)) return 0;
    uint64_t r = 0;
    for (int i = 0; i < bytes; i++) {
        if (c->writing)
            c->out[c->at] = (uint8_t)(v >> (8 * i));
        else
            r |= (uint64_t)c->in[c->at] << (8 * i);
        c->at++;
    }
    return c->writing ? v : r;
}

#define X_FIELD(name, type)                                                                        \
    static void name(Codec *c, type *v) {                                                          \
        type r = (type)x_uint(c, *v, sizeof *v);                                                   \
        if (!c->writing) *v = r; /* a writer's tables may be constant */                           \
    }
X_FIELD(x_u8, uint8_t)
X_FIELD(x_u16, uint16_t)
X_FIELD(x_u32, uint32_t)
X_FIELD(x_u64, uint64_t)

static bool name_char(char ch) {
    return (ch >= 'a' && ch <= 'z') || (ch >= 'A' && ch <= 'Z') || (ch >= '0' && ch <= '9') ||
           ch == '_' || ch == '.' || ch == '$' || ch == '-';
}

static const char *check_name(const char *s) {
    size_t n = s ? strnlen(s, ABI_MAX_NAME + 1) : 0;
    if (n == 0 || n > ABI_MAX_NAME) return "a name is empty or too long";
    for (size_t i = 0; i < n; i++)
        if (!name_char(s[i])) return "a name holds an unexpected character";
    return NULL;
}

static void x_name(Codec *c, const char **s) {
    if (c->error) return;
    const char *why = c->writing ? check_name(*s) : NULL;
    if (why) {
        fail(c, why);
        return;
    }
    size_t n = x_uint(c, c->writing ? strlen(*s) : 0, 1);
    if (!room(c, n)) return;
    if (c->writing) {
        memcpy(c->out + c->at, *s, n);
    } else {
        char *p = take(c, n + 1);
        if (!p) return;
        memcpy(p, c->in + c->at, n);
        *s = p;
        if (strlen(p) != n) fail(c, "a name holds an unexpected character");
    }
    c->at += n;
}

// A counted array: passes the count, and when reading makes the elements. `least`: bytes of the
// smallest element.
static void x_array(Codec *c, uint32_t *n, void *elements, size_t size, size_t least,
                    uint32_t most) {
    x_u32(c, n);
    if (c->error) return;
    if (*n > most)
        fail(c, "a table has too many entries");
    else if (!c->writing && *n > (c->n - c->at) / least)
        fail(c, "the metadata is cut short");
    if (c->error) {
        if (!c->writing) *n = 0;
        return;
    }
    if (c->writing || *n == 0) return;
    void *p = take(c, *n * size);
    memcpy(elements, &p, sizeof p);
    if (!p) *n = 0;
}

static const uint8_t OPERAND[] = {
#define ABI_OP(e, name, pops, operand) operand,
#include "abi_ops.def"
#undef ABI_OP
};
static const uint8_t POPS[] = {
#define ABI_OP(e, name, pops, operand) pops,
#include "abi_ops.def"
#undef ABI_OP
};

static void x_expr(Codec *c, AbiExpr *e) {
    x_array(c, &e->n, &e->code, sizeof *e->code, 1, ABI_MAX_CODE);
    for (uint32_t i = 0; !c->error && i < e->n; i++) {
        AbiInsn *in = &e->code[i];
        x_u8(c, &in->op);
        if (in->op >= ABI_OP_COUNT)
            fail(c, "a launch expression has an unknown instruction");
        else if (OPERAND[in->op])
            in->arg = (int64_t)x_uint(c, (uint64_t)in->arg, OPERAND[in->op]);
    }
}

static void x_sizes(Codec *c, AbiVariant *v) {
    x_array(c, &v->nsizes, &v->sizes, sizeof *v->sizes, 6, ABI_MAX_SIZES);
    for (uint32_t i = 0; !c->error && i < v->nsizes; i++) {
        x_name(c, &v->sizes[i].name);
        x_expr(c, &v->sizes[i].def);
    }
}

static void x_tensors(Codec *c, AbiVariant *v) {
    x_array(c, &v->ntensors, &v->tensors, sizeof *v->tensors, 7, ABI_MAX_TENSORS);
    for (uint32_t i = 0; !c->error && i < v->ntensors; i++) {
        AbiTensor *t = &v->tensors[i];
        x_name(c, &t->name);
        x_u8(c, &t->role);
        x_u8(c, &t->dtype);
        x_u8(c, &t->flags);
        x_u8(c, &t->rank);
        x_u8(c, &t->align);
        if (t->rank > ABI_MAX_RANK) fail(c, "a tensor has too many dimensions");
        for (int d = 0; !c->error && d < t->rank; d++) x_expr(c, &t->extent[d]);
    }
}

// Each box has as many numbers as its tensor dimensions: tensors stand before kernels.
static void x_maps(Codec *c, const AbiVariant *v, AbiKernel *k) {
    x_array(c, &k->nmaps, &k->maps, sizeof *k->maps, 6, ABI_MAX_MAPS);
    for (uint32_t i = 0; !c->error && i < k->nmaps; i++) {
        AbiMap *m = &k->maps[i];
        x_u16(c, &m->tensor);
        x_u8(c, &m->swizzle);
        x_u8(c, &m->ends);
        if (m->tensor >= v->ntensors || v->tensors[m->tensor].rank > ABI_MAX_MAP_RANK)
            fail(c, "a tensor map names a tensor that it cannot be of");
        for (int d = 0; !c->error && d < v->tensors[m->tensor].rank; d++) x_u16(c, &m->box[d]);
    }
}

static void x_kernels(Codec *c, AbiVariant *v) {
    x_array(c, &v->nkernels, &v->kernels, sizeof *v->kernels, 26, ABI_MAX_KERNELS);
    for (uint32_t i = 0; !c->error && i < v->nkernels; i++) {
        AbiKernel *k = &v->kernels[i];
        x_name(c, &k->symbol);
        x_u32(c, &k->threads);
        x_u32(c, &k->shared);
        x_u32(c, &k->cluster);
        x_u32(c, &k->ngrid);
        if (k->ngrid > ABI_MAX_GRID) fail(c, "a grid has too many dimensions");
        for (uint32_t d = 0; !c->error && d < k->ngrid; d++) x_expr(c, &k->grid[d]);
        x_array(c, &k->nargs, &k->args, sizeof *k->args, 4, ABI_MAX_ARGS);
        for (uint32_t a = 0; !c->error && a < k->nargs; a++) {
            x_u8(c, &k->args[a].kind);
            x_u8(c, &k->args[a].dim);
            x_u16(c, &k->args[a].index);
        }
        x_maps(c, v, k);
    }
}

static void x_plans(Codec *c, AbiVariant *v) {
    x_array(c, &v->nplans, &v->plans, sizeof *v->plans, 8, ABI_MAX_PLANS);
    for (uint32_t i = 0; !c->error && i < v->nplans; i++) {
        AbiPlan *p = &v->plans[i];
        x_expr(c, &p->when);
        x_array(c, &p->nkernels, &p->kernels, sizeof *p->kernels, 2, ABI_MAX_KERNELS);
        for (uint32_t k = 0; !c->error && k < p->nkernels; k++) x_u16(c, &p->kernels[k]);
    }
}

static void x_meta(Codec *c, AbiMeta *m) {
    x_u64(c, &m->code_bytes);
    x_u64(c, &m->code_sum);
    x_u8(c, &m->code);
    x_u8(c, &m->dtype);
    x_name(c, &m->target);
    x_array(c, &m->nvariants, &m->variants, sizeof *m->variants, 31, ABI_MAX_VARIANTS);
    for (uint32_t i = 0; !c->error && i < m->nvariants; i++) {
        AbiVariant *v = &m->variants[i];
        x_name(c, &v->name);
        x_u8(c, &v->family);
        x_u8(c, &v->phase);
        x_u8(c, &v->layout);
        x_u32(c, &v->page);
        x_u32(c, &v->D);
        x_u32(c, &v->Dv);
        x_sizes(c, v);
        x_tensors(c, v);
        x_kernels(c, v);
        x_plans(c, v);
    }
}

// ---- verification

// `nsizes`: how many sizes it may speak of. An expression that passes needs no checks when it is
// evaluated.
static const char *verify_expr(const AbiExpr *e, uint32_t nsizes) {
    int depth = 0;
    if (e->n > ABI_MAX_CODE) return "a launch expression is too long";
    for (uint32_t i = 0; i < e->n; i++) {
        const AbiInsn *in = &e->code[i];
        if (in->op >= ABI_OP_COUNT) return "a launch expression has an unknown instruction";
        if (in->op == ABI_OP_SIZE && (in->arg < 0 || in->arg >= nsizes))
            return "a launch expression names a size that is not there";
        if (depth < POPS[in->op]) return "a launch expression is malformed";
        depth += 1 - POPS[in->op];
        if (depth > ABI_MAX_STACK) return "a launch expression is nested too deeply";
    }
    return depth == 1 ? NULL : "a launch expression is malformed";
}

static const char *verify_sizes(const AbiVariant *v) {
    if (v->nsizes > ABI_MAX_SIZES) return "a table has too many entries";
    uint32_t fixed = abi_fixed_count((AbiFamily)v->family, (AbiLayout)v->layout);
    const char *const *names = fixed_sizes((AbiFamily)v->family, (AbiLayout)v->layout);
    if (v->nsizes < fixed) return "the sizes of its layout are missing";
    for (uint32_t i = 0; i < v->nsizes; i++) {
        const AbiSize *s = &v->sizes[i];
        const char *why = check_name(s->name);
        if (!why && s->def.n) why = verify_expr(&s->def, i);
        if (why) return why;
        if (i < fixed && (s->def.n || strcmp(s->name, names[i]) != 0))
            return "the sizes of its layout are not in their order";
        for (uint32_t j = 0; j < i; j++)
            if (strcmp(v->sizes[j].name, s->name) == 0) return "two sizes have one name";
    }
    return NULL;
}

static bool is_word(const AbiTensor *t) {
    const AbiExpr *n = &t->extent[0];
    return (t->flags & ABI_ZEROED) && t->dtype == ABI_I32 && t->rank == 1 && n->n == 1 &&
           n->code[0].op == ABI_OP_CONST && n->code[0].arg == 1;
}

static const char *verify_tensor(const AbiVariant *v, const AbiTensor *t) {
    const char *why = check_name(t->name);
    if (why) return why;
    if (t->role >= ABI_ROLE_COUNT) return "a tensor has an unknown role";
    if (t->dtype >= ABI_DTYPE_COUNT) return "a tensor has an unknown element type";
    if (t->flags & ~ABI_TENSOR_FLAGS) return "a tensor has unknown flags";
    if (t->rank > ABI_MAX_RANK) return "a tensor has too many dimensions";
    if (t->align & (t->align - 1)) return "a tensor has an impossible alignment";
    if (t->rank == 0 && t->role != ABI_ROLE_INPUT)
        return "a tensor that is no input has no dimensions";
    if ((t->flags & ABI_BARE_Q) && (v->family != ABI_ATTENTION || v->layout != ABI_LAYOUT_DENSE))
        return "a tensor speaks of q_offset, which the variant does not have";
    if (abi_is_index(t) && (v->layout == ABI_LAYOUT_DENSE || t->dtype != ABI_I32))
        return "a tensor that says where rows lie is not one of the variant's layout";
    if ((t->flags & ABI_ZEROED) && !abi_output(v, t))
        return "a tensor that is neither output nor workspace is to be zeroed";
    if ((t->flags & ABI_KEPT) && (t->role != ABI_ROLE_WORK || (t->flags & ABI_ZEROED)))
        return "a tensor that is no workspace, or is to be zeroed, cannot be kept";
    if ((t->flags & ABI_RESTORED) && !is_word(t))
        return "a tensor that is to be left as it was is no word of zeros";
    if ((t->flags & ABI_OPTIONAL) && t->role == ABI_ROLE_WORK)
        return "a workspace cannot be optional";
    for (int d = 0; d < t->rank; d++)
        if ((why = verify_expr(&t->extent[d], v->nsizes))) return why;
    return NULL;
}

static const char *verify_tensors(const AbiVariant *v) {
    if (v->ntensors > ABI_MAX_TENSORS) return "a table has too many entries";
    for (uint32_t i = 0; i < v->ntensors; i++) {
        const char *why = verify_tensor(v, &v->tensors[i]);
        if (why) return why;
        for (uint32_t j = 0; j < i; j++)
            if (strcmp(v->tensors[j].name, v->tensors[i].name) == 0)
                return "two tensors have one name";
        for (uint32_t j = 0; j < i; j++)
            if (v->tensors[j].flags & v->tensors[i].flags & ABI_RESTORED)
                return "two tensors are one word";
    }
    return NULL;
}

static const char *verify_map(const AbiMeta *m, const AbiVariant *v, const AbiMap *map) {
    if (m->code != ABI_CODE_PTX) return "a kernel has a tensor map, which only PTX can have";
    if (map->tensor >= v->ntensors) return "a tensor map names a tensor that is not there";
    const AbiTensor *t = &v->tensors[map->tensor];
    if (t->rank < 1 || t->rank > ABI_MAX_MAP_RANK || (t->flags & ABI_OPTIONAL))
        return "a tensor map names a tensor that it cannot be of";
    if (map->swizzle > 3) return "a tensor map has an unknown swizzle";
    if (map->ends && (map->ends >= t->rank || t->rank + ABI_ENDS_RANK > ABI_MAX_MAP_RANK))
        return "a tensor map has rows that it cannot have";
    int panels = abi_map_panels(map, (AbiDtype)t->dtype, t->rank);
    if (panels > 1 && (map->ends || t->rank == ABI_MAX_MAP_RANK))
        return "a tensor map has panels that it cannot have";
    for (int d = 0; d < t->rank; d++) {
        int box = d == t->rank - 1 ? map->box[d] / panels : map->box[d];
        if (box < 1 || box > 256 || panels > 256) return "a tensor map has an impossible box";
    }
    return NULL;
}

static const char *verify_arg(const AbiVariant *v, const AbiKernel *k, const AbiArg *a) {
    if (a->kind >= ABI_ARG_COUNT) return "a kernel has an unknown kind of argument";
    if (a->kind != ABI_ARG_STRIDE && a->dim) return "a kernel's argument is malformed";
    if (abi_is_of_size(a))
        return a->index < v->nsizes ? NULL : "a kernel's argument names a size that is not there";
    if (a->kind == ABI_ARG_MAP)
        return a->index < k->nmaps ? NULL
                                   : "a kernel's argument names a tensor map that is not there";
    if (a->index >= v->ntensors) return "a kernel's argument names a tensor that is not there";
    const AbiTensor *t = &v->tensors[a->index];
    if ((t->rank == 0) != (a->kind == ABI_ARG_SCALAR))
        return "a kernel's argument does not fit its tensor";
    if (a->kind == ABI_ARG_STRIDE && a->dim + 1 >= t->rank)
        return "a kernel's argument names a stride that is not there";
    return NULL;
}

static const char *verify_kernel(const AbiMeta *m, const AbiVariant *v, const AbiKernel *k) {
    const char *why = check_name(k->symbol);
    if (why) return why;
    if (k->threads < 1 || k->threads > 1024)
        return "a kernel's block has an impossible number of threads";
    if (m->code == ABI_CODE_HOST && (k->threads != 1 || k->shared || k->cluster != 1))
        return "a host kernel asks for what only a GPU has";
    if (k->shared > 1 << 20) return "a kernel asks for too much shared memory";
    if (k->cluster < 1 || k->cluster > 16) return "a kernel has an impossible cluster";
    if (k->ngrid > ABI_MAX_GRID) return "a grid has too many dimensions";
    if (k->nargs > ABI_MAX_ARGS) return "a table has too many entries";
    if (k->nmaps > ABI_MAX_MAPS) return "a table has too many entries";
    for (uint32_t i = 0; i < k->nmaps; i++)
        if ((why = verify_map(m, v, &k->maps[i]))) return why;
    for (uint32_t d = 0; d < k->ngrid; d++)
        if ((why = verify_expr(&k->grid[d], v->nsizes))) return why;
    for (uint32_t a = 0; a < k->nargs; a++)
        if ((why = verify_arg(v, k, &k->args[a]))) return why;
    return NULL;
}

static const char *verify_plans(const AbiVariant *v) {
    if (v->nplans < 1 || v->nplans > ABI_MAX_PLANS) return "a variant has no plan, or too many";
    for (uint32_t i = 0; i < v->nplans; i++) {
        const AbiPlan *p = &v->plans[i];
        const char *why = p->when.n ? verify_expr(&p->when, v->nsizes) : NULL;
        if (why) return why;
        if (p->nkernels > ABI_MAX_KERNELS) return "a table has too many entries";
        for (uint32_t k = 0; k < p->nkernels; k++)
            if (p->kernels[k] >= v->nkernels) return "a plan names a kernel that is not there";
    }
    return v->plans[v->nplans - 1].when.n ? "the last plan has a condition" : NULL;
}

static const char *verify_variant(const AbiMeta *m, const AbiVariant *v) {
    const char *why = check_name(v->name);
    if (why) return why;
    if (v->family >= ABI_FAMILY_COUNT || v->phase >= ABI_PHASE_COUNT)
        return "a variant is of an unknown kind";
    bool of_rows = v->phase == ABI_COMBINE || v->phase >= ABI_PIECE;
    if (of_rows && v->family != ABI_ATTENTION) return "a variant is of an unknown kind";
    bool dense = v->layout == ABI_LAYOUT_DENSE, paged = v->layout == ABI_LAYOUT_PAGED;
    bool back = v->phase == ABI_BWD || v->phase == ABI_PART_BWD;
    back &= v->family == ABI_ATTENTION && !paged;
    bool forward = v->phase == ABI_FWD || v->phase == ABI_PART || v->phase == ABI_COMBINE;
    if (v->layout >= ABI_LAYOUT_COUNT || (paged && v->family != ABI_ATTENTION) ||
        (!dense && !forward && !back) || (!paged && v->page) || v->page > ABI_MAX_SIZE)
        return "a variant has a layout that it cannot have";
    if (v->D < 1 || v->Dv < 1 || v->D > 1 << 20 || v->Dv > 1 << 20)
        return "a variant's D or Dv is impossible";
    if (v->nkernels > ABI_MAX_KERNELS) return "a table has too many entries";
    if ((why = verify_sizes(v)) || (why = verify_tensors(v))) return why;
    for (uint32_t i = 0; i < v->nkernels; i++)
        if ((why = verify_kernel(m, v, &v->kernels[i]))) return why;
    return verify_plans(v);
}

const char *abi_verify(const AbiMeta *m) {
    const char *why = check_name(m->target);
    if (why) return why;
    if (m->code >= ABI_CODE_COUNT) return "the artifact holds an unknown kind of code";
    if (m->dtype >= ABI_DTYPE_COUNT) return "the artifact has an unknown element type";
    if (m->nvariants < 1 || m->nvariants > ABI_MAX_VARIANTS)
        return "the artifact holds no variant, or too many";
    for (uint32_t i = 0; i < m->nvariants; i++) {
        const AbiVariant *v = &m->variants[i];
        if ((why = verify_variant(m, v))) return why;
        for (uint32_t j = 0; j < i; j++)
            if (m->variants[j].phase == v->phase && strcmp(m->variants[j].name, v->name) == 0)
                return "two variants have one name";
    }
    return NULL;
}

// ---- both directions

uint64_t abi_fnv(const void *bytes, size_t n) {
    const uint8_t *p = bytes;
    uint64_t h = 14695981039346656037u;
    for (size_t i = 0; i < n; i++) h = (h ^ p[i]) * 1099511628211u;
    return h;
}

// Of the whole metadata but the sum itself. Each half goes through a bijection of what came before,
// so that any one damaged byte always shows.
static uint64_t meta_sum(const uint8_t *p, size_t n) {
    return abi_fnv(p, SUM_AT) * 1099511628211u + abi_fnv(p + HEADER_BYTES, n - HEADER_BYTES);
}

static void put_u64(uint8_t *p, uint64_t v) {
    for (int i = 0; i < 8; i++) p[i] = (uint8_t)(v >> (8 * i));
}

void abi_set_code(void *meta, size_t n, uint64_t code_bytes, uint64_t code_sum) {
    uint8_t *p = meta;
    put_u64(p + HEADER_BYTES, code_bytes);
    put_u64(p + HEADER_BYTES + 8, code_sum);
    put_u64(p + SUM_AT, meta_sum(p, n));
}

const char *abi_write(const AbiMeta *m, uint8_t **out, size_t *n) {
    const char *why = abi_verify(m);
    if (why) return why;
    Codec c = {.writing = true};
    AbiMeta copy = *m;
    uint32_t version = ABI_VERSION, bytes = 0;
    uint64_t sum = 0;
    if (room(&c, MAGIC_BYTES)) memcpy(c.out, MAGIC, MAGIC_BYTES);
    c.at = MAGIC_BYTES;
    x_u32(&c, &version);
    x_u32(&c, &bytes);
    x_u64(&c, &sum);
    x_meta(&c, &copy);
    if (!c.error && c.at > ABI_MAX_BYTES) fail(&c, "the metadata is too large");
    if (c.error) {
        free(c.out);
        return c.error;
    }
    *n = c.at;
    *out = c.out;
    c.at = MAGIC_BYTES + 4;
    x_uint(&c, *n, 4);
    x_uint(&c, meta_sum(c.out, *n), 8);
    return NULL;
}

static const char *check_header(const uint8_t *bytes, size_t n) {
    if (n < HEADER_BYTES || memcmp(bytes, MAGIC, MAGIC_BYTES) != 0)
        return "this is no metadata of attnc";
    Codec c = {.in = bytes, .n = n, .at = MAGIC_BYTES};
    uint64_t version = x_uint(&c, 0, 4), size = x_uint(&c, 0, 4), sum = x_uint(&c, 0, 8);
    if (version != ABI_VERSION) return "the metadata has another version than this runtime reads";
    if (size != n || n > ABI_MAX_BYTES) return "the metadata is cut short or too long";
    if (meta_sum(bytes, n) != sum) return "the checksum does not match: the artifact is damaged";
    return NULL;
}

size_t abi_bytes(const void *bytes) {
    Codec c = {.in = bytes, .n = SUM_AT, .at = MAGIC_BYTES + 4};
    return x_uint(&c, 0, 4);
}

const char *abi_read(AbiMeta *m, const void *bytes, size_t n) {
    *m = (AbiMeta){0};
    const char *why = check_header(bytes, n);
    if (why) return why;
    Codec c = {.in = bytes, .n = n, .at = HEADER_BYTES};
    x_meta(&c, m);
    if (!c.error && c.at != n) fail(&c, "the metadata is longer than what it says");
    if (!c.error) c.error = abi_verify(m);
    m->blocks = c.blocks;
    if (c.error) abi_free(m);
    return c.error;
}

void abi_free(AbiMeta *m) {
    for (AbiBlock *b = m->blocks, *next; b; b = next) {
        next = b->next;
        free(b);
    }
    *m = (AbiMeta){0};
}

// ---- launch expressions

static bool floor_div(int64_t a, int64_t b, int64_t *r) {
    *r = 0;
    if (b == 0) return true;
    if (a == INT64_MIN && b == -1) return false;
    *r = a / b - (a % b != 0 && (a < 0) != (b < 0));
    return true;
}

static int64_t floor_mod(int64_t a, int64_t b) {
    if (b == 0 || b == -1) return 0;
    int64_t r = a % b;
    return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}

static bool apply(AbiOp op, const int64_t *x, int64_t *r) { // x: the operands, the deepest first
    switch (op) {
    case ABI_OP_ADD: return !__builtin_add_overflow(x[0], x[1], r);
    case ABI_OP_SUB: return !__builtin_sub_overflow(x[0], x[1], r);
    case ABI_OP_MUL: return !__builtin_mul_overflow(x[0], x[1], r);
    case ABI_OP_DIV: return floor_div(x[0], x[1], r);
    case ABI_OP_MOD: *r = floor_mod(x[0], x[1]); return true;
    case ABI_OP_MIN: *r = x[0] < x[1] ? x[0] : x[1]; return true;
    case ABI_OP_MAX: *r = x[0] > x[1] ? x[0] : x[1]; return true;
    case ABI_OP_NEG: return !__builtin_sub_overflow((int64_t)0, x[0], r);
    case ABI_OP_EQ: *r = x[0] == x[1]; return true;
    case ABI_OP_NE: *r = x[0] != x[1]; return true;
    case ABI_OP_LT: *r = x[0] < x[1]; return true;
    case ABI_OP_LE: *r = x[0] <= x[1]; return true;
    case ABI_OP_AND: *r = x[0] && x[1]; return true;
    case ABI_OP_OR: *r = x[0] || x[1]; return true;
    case ABI_OP_NOT: *r = !x[0]; return true;
    case ABI_OP_SELECT: *r = x[0] ? x[1] : x[2]; return true;
    case ABI_OP_CONST:
    case ABI_OP_SIZE:
    case ABI_OP_WORKERS:
    case ABI_OP_COUNT: break;
    }
    return false;
}

bool abi_makes_kept(const AbiVariant *v, const AbiKernel *k) {
    bool any = false;
    if (k->nmaps) return false;
    for (uint32_t i = 0; i < k->nargs; i++) {
        if (k->args[i].kind != ABI_ARG_POINTER) continue;
        const AbiTensor *t = &v->tensors[k->args[i].index];
        if (t->role != ABI_ROLE_INPUT && !(t->flags & ABI_KEPT)) return false;
        any |= (t->flags & ABI_KEPT) != 0;
    }
    return any;
}

bool abi_eval(const AbiExpr *e, const int64_t *sizes, int64_t workers, int64_t *out) {
    int64_t stack[ABI_MAX_STACK] = {0};
    int depth = 0;
    for (uint32_t i = 0; i < e->n; i++) {
        const AbiInsn *in = &e->code[i];
        int64_t r;
        depth -= POPS[in->op];
        if (in->op == ABI_OP_CONST)
            r = in->arg;
        else if (in->op == ABI_OP_SIZE)
            r = sizes[in->arg];
        else if (in->op == ABI_OP_WORKERS)
            r = workers;
        else if (!apply((AbiOp)in->op, stack + depth, &r))
            return false;
        stack[depth++] = r;
    }
    *out = stack[0];
    return true;
}

// ---- tables

uint32_t abi_fixed_count(AbiFamily family, AbiLayout layout) {
    uint32_t n = 0;
    while (fixed_sizes(family, layout)[n]) n++;
    return n;
}

void abi_fixed_sizes(AbiFamily family, AbiLayout layout, AbiSize *s) {
    const char *const *names = fixed_sizes(family, layout);
    for (int i = 0; names[i]; i++) s[i] = (AbiSize){.name = names[i]};
}

bool abi_is_index(const AbiTensor *t) {
    return t->role == ABI_ROLE_STATE_INDEX ||
           (t->role >= ABI_ROLE_Q_START && t->role <= ABI_ROLE_Q_OFFSET) ||
           (t->role >= ABI_ROLE_Q_FIRST && t->role <= ABI_ROLE_SK_ALL);
}

#define ABI_DTYPE(e, name, bytes) {name, bytes},
static const struct {
    const char *name;
    int bytes;
} DTYPES[] = {
#include "dtypes.def"
};
#undef ABI_DTYPE
#define ABI_ROLE(e, name, fwd, bwd, aligned) {name, {fwd, bwd}, aligned},
static const struct {
    const char *name;
    bool output[ABI_PHASE_COUNT], aligned;
} ROLES[] = {
#include "abi_roles.def"
};
#undef ABI_ROLE

const char *abi_dtype_name(AbiDtype t) { return DTYPES[t].name; }
int abi_dtype_bytes(AbiDtype t) { return DTYPES[t].bytes; }

int abi_map_panels(const AbiMap *m, AbiDtype t, int rank) {
    int columns = (16 << m->swizzle) / abi_dtype_bytes(t), box = m->box[rank - 1];
    return m->swizzle && box > columns && box % columns == 0 ? box / columns : 1;
}
bool abi_dtype_float(AbiDtype t) { return t != ABI_I32 && t != ABI_BOOL && t != ABI_I8; }
const char *abi_layout_name(AbiLayout layout) {
    static const char *const names[ABI_LAYOUT_COUNT] = {"dense", "ragged", "paged"};
    return names[layout];
}

const char *abi_role_name(AbiRole r) { return ROLES[r].name; }
bool abi_output(const AbiVariant *v, const AbiTensor *t) {
    bool back = v->phase == ABI_BWD || v->phase == ABI_PART_BWD || v->phase == ABI_PIECE_BWD;
    return ROLES[t->role].output[back];
}
int abi_tensor_align(const AbiMeta *m, const AbiTensor *t) {
    int bytes = abi_dtype_bytes((AbiDtype)t->dtype);
    if (t->align) return t->align > bytes ? t->align : bytes;
    return m->code != ABI_CODE_HOST && ROLES[t->role].aligned ? 16 : bytes;
}
