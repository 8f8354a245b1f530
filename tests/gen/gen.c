// gen.c: draws a variant from rules.def and prints it. See gen.h.
#include "gen.h"
#include "ir/target.h"
#include <string.h>

static const struct Rule {
    char what;
    bool leaf, step;
    const char *text;
} rules[] = {
#define RULE(what, leaf, text) {what, leaf, false, text},
#define STEP(what, leaf, text) {what, leaf, true, text},
#include "rules.def"
#undef RULE
#undef STEP
};

static const struct {
    const char *name, *decl, *in; // in: of --in; NULL: drawn from a standard normal, or put_hard's
} inputs[] = {
    {"ends", "i32[NT]", NULL},      {"hard", "f32[NT]", NULL},
    {"slope", "f32[H]", NULL},      {"table", "bf16[NT]", NULL},
    {"order", "i32[Sk]", "0..20"},  {"bias", "f16[B, H, Sq, Sk]", NULL},
    {"rel", "f32[H, 17]", NULL},    {"doc", "i32[B, Sk]", "0..4"},
    {"qdoc", "i32[B, Sq]", "0..4"}, {"keep", "bool[B, Sk]", "0.67"},
    {"cap", "f32", NULL},           {"n", "i32", NULL},
};

enum { MAX_WORK = 1 << 20 };

typedef struct Gen {
    Arena *a;
    uint64_t state;
    const GenProgram *p; // for the rows that @W may name
    bool step;           // a rule that decides was taken
} Gen;

static uint32_t draw(Gen *g, uint32_t n) { // 0..n-1
    g->state ^= g->state << 13;
    g->state ^= g->state >> 7;
    g->state ^= g->state << 17;
    return (uint32_t)((g->state >> 20) % n);
}

#define PICK(g, list) (list)[draw(g, sizeof(list) / sizeof *(list))]

// An earlier let of the kind asked for; NULL when there is none or the die says otherwise.
static const char *earlier(Gen *g, char what) {
    const char *found[GEN_MAX_LETS];
    uint32_t n = 0;
    for (int i = 0; i < g->p->nlets; i++)
        if (!g->p->let[i].emit && g->p->let[i].value->what == what) found[n++] = g->p->let[i].name;
    return n && draw(g, 3) ? found[draw(g, n)] : NULL;
}

static const struct Rule *choose(Gen *g, char what, bool leaf) {
    uint32_t n = 0, k;
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        n += rules[i].what == what && (!leaf || rules[i].leaf);
    k = draw(g, n);
    for (size_t i = 0;; i++)
        if (rules[i].what == what && (!leaf || rules[i].leaf) && k-- == 0) return &rules[i];
}

static GenNode *node(Gen *g, char what, int depth) {
    GenNode *e = ARENA_NEW(g->a, GenNode);
    const char *row = what == 'W' || what == 'R' ? earlier(g, what) : NULL;
    e->what = what;
    if (row && (depth == 0 || draw(g, 3) == 0)) {
        e->text = row;
        return e;
    }
    Text t = text_new(g->a);
    row = earlier(g, 'W');
    const struct Rule *rule = choose(g, what, depth == 0);
    g->step |= rule->step;
    for (const char *c = rule->text; *c; c++) {
        if (c[0] == '@')
            text_puts(&t, row ? row : "s"), c++;
        else if (c[0] == '$') {
            e->kid[e->nkids++] = node(g, c[1], depth > 0 ? depth - 1 : 0);
            text_puts(&t, "$"), c++;
        } else
            text_putn(&t, c, 1);
    }
    e->text = t.s;
    return e;
}

static void small_shape(Gen *g, GenShape *s) {
    static const int dims[] = {8, 16, 24, 40, 64}, lengths[] = {1, 5, 16, 17, 33, 64, 71, 97};
    s->D = dims[draw(g, 5)];
    s->Dv = draw(g, 3) ? s->D : dims[draw(g, 5)];
    s->B = 1 + (int)draw(g, 2);
    s->Hkv = 1 + (int)draw(g, 2);
    s->H = s->Hkv * (1 + (int)draw(g, 3));
    s->Sq = lengths[draw(g, 8)];
    s->Sk = draw(g, 2) ? s->Sq : lengths[draw(g, 8)];
    while ((int64_t)s->B * s->H * s->Sq * s->Sk * (s->D + s->Dv) > MAX_WORK) {
        if (s->B > 1)
            s->B = 1;
        else if (s->H > s->Hkv)
            s->H = s->Hkv;
        else if (s->Sq > 33)
            s->Sq = 33;
        else
            s->D = s->Dv = 16, s->H = s->Hkv = 1;
    }
}

static void device_shape(Gen *g, GenShape *s) {
    static const int dims[] = {8, 16, 24, 32, 40, 64, 64, 64, 96, 128, 128, 256},
                     around[] = {1,   2,   15,  16,  17,  63,  64,  65,  97,
                                 127, 128, 129, 191, 192, 193, 255, 256, 257},
                     several[] = {384, 385, 400, 513, 640, 777, 1024},
                     few[] = {1, 2, 3, 16, 64, 70}, rows[] = {128, 129, 257, 300};
    s->D = PICK(g, dims);
    s->Dv = draw(g, 4) ? s->D : PICK(g, dims);
    s->B = 1 + (int)draw(g, 2);
    s->Hkv = 1 + (int)draw(g, 2);
    s->H = s->Hkv * (1 + (int)draw(g, 3));
    switch (draw(g, 6)) {
    case 0: // few tiles of queries: their keys are split
        s->Sq = PICK(g, few), s->Sk = PICK(g, several) * (1 + 3 * (int)draw(g, 2));
        break;
    case 1: // more tiles than a GPU has multiprocessors, each with three tiles of keys and more
        s->Sq = PICK(g, rows), s->Sk = PICK(g, several);
        s->Hkv = 10 + (int)draw(g, 5), s->H = s->Hkv * (8 / s->B);
        break;
    default: s->Sq = PICK(g, around); s->Sk = draw(g, 2) ? s->Sq : PICK(g, around);
    }
}

static void shape(Gen *g, GenShape *s, GenScale scale) {
    if (scale == GEN_DEVICE)
        device_shape(g, s);
    else
        small_shape(g, s);
    s->NT = 1 + (int)draw(g, 9);
    static const int offsets[] = {0, 3, 17, 29, -5, -50, 9000000, 10000000, -9999999};
    s->q_offset = draw(g, 3) ? (s->Sk > s->Sq ? s->Sk - s->Sq : 0) : PICK(g, offsets);
}

static void add_let(Gen *g, GenProgram *p, bool emit, char what) {
    GenLet *l = &p->let[p->nlets];
    l->name = arena_printf(g->a, "%s%d", emit ? "extra" : "x", p->nlets);
    l->emit = emit;
    l->value = node(g, what, 2);
    p->nlets++;
}

// Scores that are masked by a large number, for normalizations that bear it.
static void add_large(Gen *g, GenProgram *p) {
    static const char *const large[] = {"-1e30", "-3.4028235e38", "-1e10", "-65504.0", "2e9"};
    uint32_t which = draw(g, 5);
    p->least = large[which];
    p->added = which < 2 && draw(g, 2); // the score must vanish in float64 too
    p->unless = node(g, 'C', 1);
    if (!p->modify) p->modify = node(g, 'M', 0);
    p->nlets = 0;
    p->result = node(g, 'X', 2);
}

void gen_program(GenProgram *p, Arena *a, uint64_t seed, GenScale scale) {
    Gen g = {.a = a, .state = seed * 0x9e3779b97f4a7c15u + 0x1234567u, .p = p};
    for (int i = 0; i < 8; i++) draw(&g, 2);
    memset(p, 0, sizeof *p);
    shape(&g, &p->shape, scale);
    p->score = node(&g, 'S', (int)draw(&g, 3));
    if (draw(&g, 4)) p->modify = node(&g, 'M', (int)draw(&g, 4));
    if (p->modify && draw(&g, 8) == 0) p->unless = node(&g, 'C', 1);
    if (draw(&g, 3)) p->mask = node(&g, 'C', (int)draw(&g, 4));
    for (uint32_t n = draw(&g, 4); n > 0; n--) add_let(&g, p, false, draw(&g, 2) ? 'W' : 'R');
    p->result = node(&g, 'Z', 2);
    for (uint32_t n = draw(&g, 3); n > 0 && p->nlets < GEN_MAX_LETS; n--) add_let(&g, p, true, 'R');
    if (draw(&g, 3) == 0) p->output = node(&g, 'O', 1 + (int)draw(&g, 2));
    p->least = "-inf";
    if (draw(&g, 6) == 0) add_large(&g, p);
    p->whole = g.step || draw(&g, 2);
}

static void print_node(Text *out, const GenNode *e) {
    int k = 0;
    for (const char *c = e->text; *c; c++) {
        if (*c == '$')
            print_node(out, e->kid[k++]);
        else
            text_putn(out, c, 1);
    }
}

static void clause(Text *out, const char *head, const GenNode *e) {
    if (!e) return;
    text_printf(out, "    %s = ", head);
    print_node(out, e);
    text_puts(out, ";\n");
}

bool gen_uses(const char *body, const char *word) {
    size_t n = strlen(word);
    for (const char *at = body; (at = strstr(at, word)) != NULL; at += n) {
        char before = at == body ? ' ' : at[-1], after = at[n];
        if (!strchr("abcdefghijklmnopqrstuvwxyz_0123456789", before) &&
            !strchr("abcdefghijklmnopqrstuvwxyz_0123456789", after ? after : ' '))
            return true;
    }
    return false;
}

static void name_value(GenCase *c, Arena *a, const char *name, const char *value) {
    NameValue in = {name, value};
    VEC_PUSH(a, &c->options.in, in);
}

static const char *const ends[] = {"2147483647", "-2147483648", "2147483646", "-2147483647",
                                   "1073741824", "65536",       "46341",      "-1",
                                   "0",          "1",           "9",          "-30"};
static const char *const hard[] = {"-inf",  "3.4028235e38", "-3.4028235e38", "-1e30", "1e30",
                                   "1e-30", "1e-40",        "-1e-45",        "0",     "-0.0",
                                   "0.3",   "16777216",     "-95",           "1",     "1.2e-38"};
static const char *const counts[] = {"12", "0", "-1", "40", "2147483647", "-2147483648", "1000000"};
static const char *const caps[] = {"1.5", "30", "0.001", "0", "1e30", "-2.5"};

// NT numbers, comma by comma.
static const char *list_of(Gen *g, const char *const *from, uint32_t n) {
    Text t = text_new(g->a);
    for (int i = 0; i < g->p->shape.NT; i++)
        text_printf(&t, "%s%s", i ? "," : "", from[draw(g, n)]);
    return t.s;
}

// What --in says of the inputs that are not drawn by ranges: drawn whether they are used or not, so
// that a reduced variant has the same.
static void put_hard(GenCase *c, Gen *g) {
    const char *values[][2] = {
        {"ends", list_of(g, ends, sizeof ends / sizeof *ends)},
        {"hard", list_of(g, hard, sizeof hard / sizeof *hard)},
        {"n", PICK(g, counts)},
        {"cap", draw(g, 2) ? "1.5" : PICK(g, caps)},
    };
    for (int i = 0; i < 4; i++)
        if (gen_uses(c->source, values[i][0])) name_value(c, g->a, values[i][0], values[i][1]);
}

void gen_case(GenCase *c, Arena *a, const GenProgram *p, uint64_t seed, const TargetId *targets,
              int ntargets) {
    static const Dtype dtypes[] = {DT_F32, DT_BF16, DT_F16};
    const GenShape *s = &p->shape;
    Gen g = {.a = a, .state = seed * 0xd1342543de82ef95u + 0x7654321u, .p = p};
    for (int i = 0; i < 8; i++) draw(&g, 2);
    Text t = text_new(a);
    gen_print(&t, p);
    *c = (GenCase){.source = t.s,
                   .options = {.seed = seed},
                   .dtype = dtypes[draw(&g, 3)],
                   .target = targets[draw(&g, (uint32_t)ntargets)],
                   .level = draw(&g, 8) ? 2 : (int)draw(&g, 4),
                   .by_rows = draw(&g, 4) == 0};
    c->shape = arena_printf(a, "B=%d,H=%d,Hkv=%d,Sq=%d,Sk=%d%s", s->B, s->H, s->Hkv, s->Sq, s->Sk,
                            gen_uses(t.s, "NT") ? arena_printf(a, ",NT=%d", s->NT) : "");
    name_value(c, a, "q_offset", arena_printf(a, "%d", s->q_offset));
    if (p->whole) {
        name_value(c, a, "q", "-3..3");
        name_value(c, a, "k", "-3..3");
    }
    put_hard(c, &g);
    for (size_t i = 0; i < sizeof inputs / sizeof *inputs; i++)
        if (inputs[i].in && gen_uses(t.s, inputs[i].name))
            name_value(c, a, inputs[i].name, inputs[i].in);
}

void gen_print_case(Text *out, const GenCase *c) {
    const Target *t = target_get(c->target);
    text_printf(out, "// attnc check FILE --shape=%s --dtype=%s -O%d --seed=%llu", c->shape,
                dtype_name(c->dtype), c->level, (unsigned long long)c->options.seed);
    if (t->kind != KIND_HOST)
        text_printf(out, " --device=%s --target=%s", t->kind == KIND_NVPTX ? "cuda" : "hip",
                    t->name);
    for (int i = 0; i < c->options.in.n; i++)
        text_printf(out, " --in %s=%s", c->options.in.data[i].name, c->options.in.data[i].value);
    text_printf(out, "%s\n%s", c->by_rows ? " (rows in memory as [B, S, H, D])" : "", c->source);
}

void gen_print(Text *out, const GenProgram *p) {
    Text body = text_new(out->arena);
    clause(&body, "score(q, k)", p->score);
    if (p->modify) {
        text_puts(&body, "    modify(s, b, h, q_idx, kv_idx) = ");
        if (p->unless) {
            text_puts(&body, "(");
            print_node(&body, p->unless);
            text_printf(&body, " ? %s : %s", p->least, p->added ? "0.0) + " : "");
        }
        print_node(&body, p->modify);
        if (p->unless && !p->added) text_puts(&body, ")");
        text_puts(&body, ";\n");
    }
    clause(&body, "mask(b, h, q_idx, kv_idx)", p->mask);
    text_puts(&body, "    normalize(s, b, h, q_idx) {\n");
    for (int i = 0; i < p->nlets; i++) {
        if (!p->let[i].value) continue;
        text_printf(&body, "        %s %s = ", p->let[i].emit ? "emit" : "let", p->let[i].name);
        print_node(&body, p->let[i].value);
        text_puts(&body, ";\n");
    }
    text_puts(&body, "        return ");
    print_node(&body, p->result);
    text_puts(&body, ";\n    }\n");
    clause(&body, "output(o, b, h, q_idx, d)", p->output);
    text_printf(out, "import std.normalization;\nattention random {\n    dim D = %d, Dv = %d;\n",
                p->shape.D, p->shape.Dv);
    for (size_t i = 0; i < sizeof inputs / sizeof *inputs; i++)
        if (gen_uses(body.s, inputs[i].name))
            text_printf(out, "    input %s: %s%s;\n", inputs[i].name, inputs[i].decl,
                        strncmp(inputs[i].decl, "f32", 3) == 0 ? " grad" : "");
    text_printf(out, "%s}\n", body.s);
}
