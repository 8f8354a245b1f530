// gen.c: draws a variant from rules.def and prints it. See gen.h.
#include "gen.h"
#include <string.h>

static const struct Rule {
    char what;
    bool leaf;
    const char *text;
} rules[] = {
#define RULE(what, leaf, text) {what, leaf, text},
#include "rules.def"
#undef RULE
};

static const struct {
    const char *name, *decl;
} inputs[] = {
    {"slope", "f32[H]"},    {"table", "bf16[NT]"},
    {"order", "i32[Sk]"},   {"bias", "f16[B, H, Sq, Sk]"},
    {"rel", "f32[H, 17]"},  {"doc", "i32[B, Sk]"},
    {"qdoc", "i32[B, Sq]"}, {"keep", "bool[B, Sk]"},
    {"cap", "f32"},         {"n", "i32"},
};

enum { MAX_WORK = 1 << 20 };

typedef struct Gen {
    Arena *a;
    uint64_t state;
    const GenProgram *p; // for the rows that @W may name
} Gen;

static uint32_t draw(Gen *g, uint32_t n) { // 0..n-1
    g->state ^= g->state << 13;
    g->state ^= g->state >> 7;
    g->state ^= g->state << 17;
    return (uint32_t)((g->state >> 20) % n);
}

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
    Text t;
    e->what = what;
    if (row && (depth == 0 || draw(g, 3) == 0)) {
        e->text = row;
        return e;
    }
    text_init(&t, g->a);
    row = earlier(g, 'W');
    for (const char *c = choose(g, what, depth == 0)->text; *c; c++) {
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

static void shape(Gen *g, GenShape *s) {
    static const int dims[] = {8, 16, 24, 40, 64}, lengths[] = {1, 5, 16, 17, 33, 64, 71, 97};
    s->D = dims[draw(g, 5)];
    s->Dv = draw(g, 3) ? s->D : dims[draw(g, 5)];
    s->B = 1 + (int)draw(g, 2);
    s->Hkv = 1 + (int)draw(g, 2);
    s->H = s->Hkv * (1 + (int)draw(g, 3));
    s->Sq = lengths[draw(g, 8)];
    s->Sk = draw(g, 2) ? s->Sq : lengths[draw(g, 8)];
    while ((int64_t)s->B * s->H * s->Sq * s->Sk * (s->D + s->Dv) >
           MAX_WORK) { // the interpreter is slow
        if (s->B > 1)
            s->B = 1;
        else if (s->H > s->Hkv)
            s->H = s->Hkv;
        else if (s->Sq > 33)
            s->Sq = 33;
        else
            s->D = s->Dv = 16, s->H = s->Hkv = 1;
    }
    s->NT = 1 + (int)draw(g, 9);
    s->q_offset = draw(g, 4) ? (s->Sk > s->Sq ? s->Sk - s->Sq : 0) : (int)draw(g, 30);
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

void gen_program(GenProgram *p, Arena *a, uint64_t seed) {
    Gen g = {a, seed * 0x9e3779b97f4a7c15u + 0x1234567u, p};
    for (int i = 0; i < 8; i++) draw(&g, 2);
    memset(p, 0, sizeof *p);
    shape(&g, &p->shape);
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

void gen_print(Text *out, const GenProgram *p) {
    Text body;
    text_init(&body, out->arena);
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
            text_printf(out, "    input %s: %s;\n", inputs[i].name, inputs[i].decl);
    text_printf(out, "%s}\n", body.s);
}
