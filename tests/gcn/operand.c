// operand.c: the text of one instruction to a decoded Op.
//
// In: a line as LLVM's disassembler prints it. Out: one Op, or two for v_dual_*. Whatever is not
// understood, down to a modifier, becomes op->problem: nothing is skipped in silence.
#include "tests/gcn/wave.h"
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>

enum { MAX_OPERANDS = 8, BUCKETS = 4096 };

static const uint64_t shared_base = 0x8000000100000000, private_base = 0x8000000200000000;

// ---- the table of instructions

struct GcnTable {
    const Row *bucket[BUCKETS];
};

static uint32_t hash(const char *s, size_t n) {
    uint32_t h = 2166136261u;
    for (size_t i = 0; i < n; i++) h = (h ^ (uint8_t)s[i]) * 16777619u;
    return h;
}

static void add(GcnTable *t, const Row *row) {
    uint32_t at = hash(row->name, strlen(row->name)) % BUCKETS;
    while (t->bucket[at]) at = (at + 1) % BUCKETS;
    t->bucket[at] = row;
}

static const Row *find(const GcnTable *t, const char *s, size_t n) {
    for (uint32_t at = hash(s, n) % BUCKETS; t->bucket[at]; at = (at + 1) % BUCKETS)
        if (strlen(t->bucket[at]->name) == n && memcmp(t->bucket[at]->name, s, n) == 0)
            return t->bucket[at];
    return NULL;
}

static void add_name(GcnTable *t, Arena *a, const char *name, const char *like) {
    Row *row = ARENA_NEW(a, Row);
    const Row *known = find(t, like, strlen(like));
    if (!known) return;
    *row = *known;
    row->name = name;
    add(t, row);
}

GcnTable *gcn_table(Arena *a) {
    GcnTable *t = ARENA_NEW(a, GcnTable);
    GcnRows all[] = {gcn_rows_valu(),   gcn_rows_half(),    gcn_rows_wide(),   gcn_rows_compare(),
                     gcn_rows_scalar(), gcn_rows_control(), gcn_rows_memory(), gcn_rows_lds(),
                     gcn_rows_lanes(),  gcn_rows_buffer(),  gcn_rows_matrix()};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        for (int k = 0; k < all[i].n; k++) add(t, &all[i].row[k]);
#define SAME(name, like) add_name(t, a, #name, #like);
#include "tests/gcn/names.def"
#undef SAME
    return t;
}

// ---- operands

static bool starts(const char **s, const char *with) {
    size_t n = strlen(with);
    if (strncmp(*s, with, n) != 0) return false;
    *s += n;
    return true;
}

static bool named(const char *s, Operand *o) {
    static const struct {
        const char *name;
        int reg, count;
    } names[] = {{"vcc", GCN_VCC, 2},        {"vcc_lo", GCN_VCC, 1},   {"vcc_hi", GCN_VCC + 1, 1},
                 {"exec", GCN_EXEC, 2},      {"exec_lo", GCN_EXEC, 1}, {"exec_hi", GCN_EXEC + 1, 1},
                 {"m0", GCN_M0, 1},          {"null", GCN_NULL, 2},    {"src_scc", GCN_SCC, 1},
                 {"scc", GCN_SCC, 1},        {"flat_scratch", 102, 2}, {"flat_scratch_lo", 102, 1},
                 {"flat_scratch_hi", 103, 1}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strcmp(s, names[i].name) != 0) continue;
        o->kind = OPERAND_S;
        o->reg = (uint16_t)names[i].reg;
        o->count = (uint8_t)names[i].count;
        return true;
    }
    return false;
}

// v7, v[4:7], s3, a[0:15], ttmp4
static bool numbered(const char *s, Operand *o) {
    int base = 0, first, last;
    char *end;
    o->kind = OPERAND_V;
    if (starts(&s, "ttmp")) {
        o->kind = OPERAND_S;
        base = GCN_TTMP;
    } else if (*s == 's') {
        o->kind = OPERAND_S;
        s++;
    } else if (*s == 'a' || *s == 'v') {
        base = *s++ == 'a' ? 256 : 0;
    } else {
        return false;
    }
    bool range = *s == '[';
    s += range;
    if (!isdigit((unsigned char)*s)) return false;
    first = last = (int)strtol(s, &end, 10);
    if (range && *end == ':') last = (int)strtol(end + 1, &end, 10);
    end += range && *end == ']';
    int most = o->kind == OPERAND_S ? GCN_SGPRS : 256;
    if (*end || last < first || last >= most) return false;
    o->reg = (uint16_t)(base + first);
    o->count = (uint8_t)(last - first + 1);
    return true;
}

static uint64_t float_bits(double v, char type) {
    switch (type) {
    case 'h':
    case 'p': {
        _Static_assert(sizeof(float) == 4, "f32");
        uint32_t u = gcn_bits((float)v); // the constants of the encoding are exact in f16
        uint32_t sign = u >> 16 & 0x8000, exponent = u >> 23 & 255;
        if (exponent == 0) return sign;
        if (v == 0.15915494 || v == 0.1591796875) return 0x3118; // 1/(2 pi)
        return sign | (exponent - 112) << 10 | (u >> 13 & 0x3ff);
    }
    case 'd':
    case 'q': return gcn_bits64(v);
    default: return gcn_bits((float)v);
    }
}

static bool constant(const char *s, Operand *o) {
    char *end;
    bool hex = strncmp(s, "0x", 2) == 0 || strncmp(s, "-0x", 3) == 0;
    o->kind = OPERAND_CONST;
    o->count = 1;
    if (strcmp(s, "src_shared_base") == 0 || strcmp(s, "src_private_base") == 0) {
        o->value = s[4] == 's' ? shared_base : private_base;
        return true;
    }
    if (!hex && strpbrk(s, ".e")) {
        double v = strtod(s, &end);
        o->value = float_bits(v, o->type);
        return end != s && !*end;
    }
    o->value = (uint64_t)strtoll(s, &end, 0);
    if (hex && o->type == 'd') o->value <<= 32; // a literal is the high half
    return end != s && !*end;
}

static bool plain(const char *s, Operand *o) {
    if (strcmp(s, "off") == 0) return true; // OPERAND_NONE
    return named(s, o) || numbered(s, o) || constant(s, o);
}

// -|v1|, neg(v1), sext(v1), |v1| ...
static bool operand(char *s, Operand *o) {
    size_t n = strlen(s);
    if (n > 5 && strncmp(s, "neg(", 4) == 0 && s[n - 1] == ')') {
        s[n - 1] = 0;
        o->neg = true;
        return operand(s + 4, o);
    }
    if (n > 6 && strncmp(s, "sext(", 5) == 0 && s[n - 1] == ')') {
        s[n - 1] = 0;
        o->sext = true;
        return operand(s + 5, o);
    }
    if (s[0] == '-' && n > 1 && !isdigit((unsigned char)s[1])) {
        o->neg = true;
        return operand(s + 1, o);
    }
    if (s[0] == '|' && n > 2 && s[n - 1] == '|') {
        s[n - 1] = 0;
        o->abs = true;
        return operand(s + 1, o);
    }
    return plain(s, o);
}

static bool finish(GcnCode *c, Operand *o) {
    bool modified = o->neg || o->abs;
    if (modified && !strchr("fhdxP", o->type)) return false;
    if (o->kind != OPERAND_CONST) return true;
    uint32_t *lanes = ARENA_ARRAY(c->arena, uint32_t, GCN_LANES);
    for (int i = 0; i < GCN_LANES; i++) lanes[i] = (uint32_t)o->value;
    o->lanes = lanes;
    return true;
}

// ---- modifiers

typedef struct Reading {
    GcnCode *c;
    Op *op;
    const char *control; // of DPP, or NULL
    int row_mask, bank_mask;
    bool bound, fi, has_hi;
} Reading;

static bool bits(const char *s, uint8_t *out) { // [0,1,1]
    int k = 0;
    if (*s++ != '[') return false;
    for (*out = 0; *s && *s != ']'; s++) {
        if (*s == '1') *out |= (uint8_t)(1 << k);
        if (*s == ',') k++;
    }
    return *s == ']';
}

static bool sel(const char *s, uint8_t *out) {
    static const char *const names[] = {"DWORD",  "BYTE_0", "BYTE_1", "BYTE_2",
                                        "BYTE_3", "WORD_0", "WORD_1"};
    for (int i = 0; i < 7; i++)
        if (strcmp(s, names[i]) == 0) {
            *out = (uint8_t)i;
            return true;
        }
    return false;
}

// offset:swizzle(SWAP,16) and its relatives, as the 16 bits that they stand for.
static int swizzle(const char *s) {
    int a[4];
    char mask[8];
    if (sscanf(s, "swizzle(QUAD_PERM,%d,%d,%d,%d)", &a[0], &a[1], &a[2], &a[3]) == 4)
        return 0x8000 | a[0] | a[1] << 2 | a[2] << 4 | a[3] << 6;
    if (sscanf(s, "swizzle(SWAP,%d)", &a[0]) == 1) return a[0] << 10 | 0x1f;
    if (sscanf(s, "swizzle(REVERSE,%d)", &a[0]) == 1) return (a[0] - 1) << 10 | 0x1f;
    if (sscanf(s, "swizzle(BROADCAST,%d,%d)", &a[0], &a[1]) == 2) return a[1] << 5 | (32 - a[0]);
    if (sscanf(s, "swizzle(BITMASK_PERM,\"%5[01pi]\")", mask) == 1 && strlen(mask) == 5) {
        int and_ = 0, or_ = 0, xor_ = 0;
        for (int i = 0; i < 5; i++) {
            int bit = 1 << (4 - i);
            and_ |= mask[i] == 'p' || mask[i] == 'i' ? bit : 0;
            or_ |= mask[i] == '1' ? bit : 0;
            xor_ |= mask[i] == 'i' ? bit : 0;
        }
        return xor_ << 10 | or_ << 5 | and_;
    }
    return -1;
}

static bool is_control(const char *name) {
    static const char *const names[] = {
        "quad_perm",    "row_shl",   "row_shr",    "row_ror",         "wave_shl",
        "wave_shr",     "wave_ror",  "wave_rol",   "row_bcast",       "row_share",
        "row_newbcast", "row_xmask", "row_mirror", "row_half_mirror", "dpp8"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(name, names[i]) == 0) return true;
    return false;
}

static bool without_value(Reading *r, const char *s) {
    static const char *const nothing[] = {"glc", "slc", "dlc", "sc0", "sc1", "nt", "scc"};
    for (size_t i = 0; i < sizeof nothing / sizeof *nothing; i++) // caches
        if (strcmp(s, nothing[i]) == 0) return true;
    if (strcmp(s, "clamp") == 0) return r->op->clamp = true;
    if (strcmp(s, "offen") == 0) return r->op->offen = true;
    if (strcmp(s, "idxen") == 0) return r->op->idxen = true;
    if (!is_control(s)) return false;
    r->control = s;
    return true;
}

static bool number(Reading *r, const char *name, const char *value) {
    char *end;
    int n = (int)strtol(value, &end, 0);
    Op *op = r->op;
    if (*end) return false;
    if (strcmp(name, "offset") == 0 || strcmp(name, "offset0") == 0)
        op->offset = n;
    else if (strcmp(name, "offset1") == 0)
        op->offset1 = n;
    else if (strcmp(name, "mul") == 0 && (n == 2 || n == 4))
        op->omod = n == 2 ? 1 : 2;
    else if (strcmp(name, "div") == 0 && n == 2)
        op->omod = 3;
    else if (strcmp(name, "row_mask") == 0)
        r->row_mask = n;
    else if (strcmp(name, "bank_mask") == 0)
        r->bank_mask = n;
    else if (strcmp(name, "bound_ctrl") == 0)
        r->bound = true;
    else if (strcmp(name, "fi") == 0)
        r->fi = n == 1;
    else
        return false;
    return true;
}

static bool with_value(Reading *r, char *s) {
    Op *op = r->op;
    char *value = strchr(s, ':');
    if (!value) return without_value(r, s);
    *value++ = 0;
    if (is_control(s)) {
        r->control = arena_printf(r->c->arena, "%s:%s", s, value);
        return true;
    }
    if (strcmp(s, "op_sel") == 0) return bits(value, &op->op_sel);
    if (strcmp(s, "op_sel_hi") == 0) return (r->has_hi = bits(value, &op->op_sel_hi));
    if (strcmp(s, "neg_lo") == 0) return bits(value, &op->neg_lo);
    if (strcmp(s, "neg_hi") == 0) return bits(value, &op->neg_hi);
    if (strncmp(value, "swizzle(", 8) == 0) return (op->offset = swizzle(value)) >= 0;
    if (strcmp(s, "src0_sel") == 0) return op->has_sdwa = sel(value, &op->src[0].sel);
    if (strcmp(s, "src1_sel") == 0) return op->has_sdwa = sel(value, &op->src[1].sel);
    if (strcmp(s, "dst_sel") == 0) return op->has_sdwa = sel(value, &op->dst_sel);
    if (strcmp(s, "dst_unused") == 0) {
        op->dst_unused = strcmp(value, "UNUSED_SEXT") == 0       ? 1
                         : strcmp(value, "UNUSED_PRESERVE") == 0 ? 2
                                                                 : 0;
        return true;
    }
    return number(r, s, value);
}

// ---- an instruction

// Cuts text into operands and modifiers, in place.
static int split(char *s, char **operands, char **modifiers) {
    int n = 0, depth = 0;
    *modifiers = NULL;
    while (*s == ' ') s++;
    if (!*s) return 0;
    operands[n++] = s;
    for (; *s; s++) {
        depth += (*s == '[' || *s == '(') - (*s == ']' || *s == ')');
        if (depth) continue;
        if (*s == ',' && n < MAX_OPERANDS) {
            *s++ = 0;
            while (*s == ' ') s++;
            operands[n++] = s--;
        } else if (*s == ' ') {
            *s = 0;
            *modifiers = s + 1;
            return n;
        }
    }
    return n;
}

static char *next_word(char **s) {
    while (**s == ' ') (*s)++;
    char *word = *s;
    int depth = 0;
    if (!*word) return NULL;
    for (; **s && (depth || **s != ' '); (*s)++)
        depth += (**s == '[' || **s == '(') - (**s == ']' || **s == ')');
    if (**s) *(*s)++ = 0;
    return word;
}

static void problem(GcnCode *c, Op *op, const char *what, const char *which) {
    op->problem = arena_printf(c->arena, "%s `%s` is not modelled", what, which);
}

// vmcnt(0) lgkmcnt(2): each counter once.
static void waits(GcnCode *c, Op *op, char *s) {
    for (char *word; (word = next_word(&s));) {
        int n;
        if (sscanf(word, "vmcnt(%d)", &n) == 1)
            op->wait[GCN_VM] = n;
        else if (sscanf(word, "lgkmcnt(%d)", &n) == 1)
            op->wait[GCN_LGKM] = n;
        else if (sscanf(word, "expcnt(%d)", &n) != 1)
            problem(c, op, "the counter", word);
    }
}

static void accumulate(Op *op) { // the result is a source, too
    op->src[op->nsrc++] = op->dst[0];
}

static void operands(GcnCode *c, Op *op, char **text, int n) {
    const char *form = op->row->form, *equals = strchr(form, '=');
    int ndst = (int)(equals - form), listed = (int)strlen(equals + 1);
    if ((op->row->flags & ROW_CMPX) && n == listed + 1) ndst = 1;
    op->ndst = ndst;
    op->nsrc = n - ndst;
    if (op->nsrc < 0 || op->nsrc > listed) {
        problem(c, op, "the number of operands of", op->row->name);
        return;
    }
    for (int i = 0; i < n; i++) {
        Operand *o = i < ndst ? &op->dst[i] : &op->src[i - ndst];
        o->type = i < ndst ? (form < equals ? form[i] : 'm') : equals[1 + i - ndst];
        const char *copy = arena_strdup(c->arena, text[i]);
        if (!operand(text[i], o) || !finish(c, o)) problem(c, op, "the operand", copy);
    }
    if (op->row->flags & ROW_ACC) accumulate(op);
}

static void one(const GcnTable *t, GcnCode *c, const char *text, Op *op) {
    char *s = arena_strdup(c->arena, text), *text_of[MAX_OPERANDS], *modifiers, *word;
    size_t n = strcspn(s, " ");
    static const char *const suffixes[] = {"_e64_dpp", "_dpp", "_e32", "_e64", "_sdwa"};
    char *rest = s[n] ? s + n + 1 : s + n;
    s[n] = 0;
    Reading r = {c, op, NULL, 15, 15, false, false, false};
    *op = (Op){.text = text, .wait = {-1, -1, -1}};
    op->row = find(t, s, n);
    for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes && !op->row; i++) {
        size_t k = strlen(suffixes[i]);
        if (n > k && strcmp(s + n - k, suffixes[i]) == 0) op->row = find(t, s, n - k);
    }
    if (!op->row) {
        problem(c, op, "the instruction", s);
        return;
    }
    op->run = op->row->run;
    if (op->row->flags & ROW_ANY) return;
    if (op->row->flags & ROW_WAIT) {
        waits(c, op, rest);
        return;
    }
    int count = split(rest, text_of, &modifiers);
    operands(c, op, text_of, count);
    while (modifiers && (word = next_word(&modifiers))) {
        const char *copy = arena_strdup(c->arena, word);
        if (!with_value(&r, word)) problem(c, op, "the modifier", copy);
    }
    if (!r.has_hi && strpbrk(op->row->form, "pP")) op->op_sel_hi = 0xff;
    bool integer = op->row->flags & ROW_CLAMP, is_float = op->row->flags & ROW_FLOAT;
    if ((op->clamp && !integer && !is_float) || (op->omod && !is_float))
        problem(c, op, "a modifier of", op->row->name);
    if (r.control) {
        op->dpp = gcn_dpp(c->arena, r.control, r.row_mask, r.bank_mask, r.bound, r.fi);
        if (!op->dpp) problem(c, op, "the lane control", r.control);
    }
}

static bool reads(const Op *op, const Op *written) {
    for (int i = 0; i < op->nsrc; i++)
        if (op->src[i].kind == OPERAND_V && op->src[i].reg == written->dst[0].reg) return true;
    return false;
}

// Both halves read before either writes: the one that the other's result would disturb goes first.
static int dual(const GcnTable *t, GcnCode *c, const char *text, const char *second, Op out[2]) {
    const char *whole = text;
    Op x, y;
    char *first = arena_strndup(c->arena, text, (size_t)(second - text));
    one(t, c, arena_printf(c->arena, "v_%s", first + strlen("v_dual_")), &x);
    one(t, c, arena_printf(c->arena, "v_%s", second + strlen(" :: v_dual_")), &y);
    x.text = y.text = whole;
    bool swap = reads(&y, &x);
    if (swap && reads(&x, &y)) x.problem = "two halves that exchange registers are not modelled";
    out[swap] = x;
    out[!swap] = y;
    return 2;
}

int gcn_read(const GcnTable *t, GcnCode *c, const char *text, Op out[2]) {
    while (isspace((unsigned char)*text)) text++;
    const char *second = strncmp(text, "v_dual_", 7) == 0 ? strstr(text, " :: ") : NULL;
    if (second) return dual(t, c, text, second, out);
    one(t, c, text, &out[0]);
    return 1;
}
