// explain_chunk.c: a recurrence's chunked form as mathematics (explain.h).
//
// In: a chunked form. Out: the clauses of a step; the chunk with its elements, numbers, decays and scores; the rule
// that combines two parts of the positions. A name ends with _j at position j of the chunk, others are of position t.
#include "passes/derive/explain_say.h"

#include <stdarg.h>

// ---- lines

static const Ex *own(Explain *x, const char *name) { return say_own(x, name); }

// The same of a name that is made as printf does.
__attribute__((format(printf, 2, 3))) static const Ex *named(Explain *x, const char *format, ...) {
    Text name = text_new(x->arena);
    va_list args;
    va_start(args, format);
    text_vprintf(&name, format, args);
    va_end(args);
    return own(x, name.s);
}

static void equation(Explain *x, const Ex *name, const Ex *e) {
    ExplainPart part = {NULL, name, e};
    say_line(x);
    VEC_PUSH(x->arena, &x->line->parts, part);
    x->line->note = false;
    x->line->defines = x->to->names.data[name->index].name;
    x->line->span = e->span;
}

static const Ex *times(Explain *x, const Ex *a, const Ex *b) {
    if (!a || !b) return a ? a : b;
    if (ex_is_f32(a, 1)) return b;
    return ex_is_f32(b, 1) ? a : ex_2(x->pool, EX_MUL, a, b);
}

static const Ex *plus(Explain *x, const Ex *a, const Ex *b) {
    return !a ? b : !b ? a : ex_2(x->pool, EX_ADD, a, b);
}

static const Ex *sum(Explain *x, const Ex *e) { return ex_1(x->pool, EX_ROWSUM, e); }

// ---- names

static const Ex *decays(Explain *x, const char *name) { return x->c->decay ? own(x, name) : NULL; }

// What is in front of _j or in a product: q, k and v where they are raw.
static const char *element(const Ex *e, const char *name) {
    if (e->op != EX_SYM) return name;
    return e->sym == SYM_Q ? "q" : e->sym == SYM_K ? "k" : "v";
}

static const char *write_name(const Explain *x, int w) {
    return element(x->c->write[w].elem, w ? "w~" : "k~");
}

static const char *outer(Explain *x, const char *a, const char *b) {
    return arena_printf(x->arena, "outer(%s, %s)", a, b);
}

static const char *written(Explain *x, int w, const char *at) {
    return arena_printf(x->arena, "x%s%s", x->c->nwrites > 1 ? (w ? "2" : "1") : "", at);
}

// An element that is not raw, and a number that is no constant, have a line and a name.
static void tell_element(Explain *x, const Ex *e, const char *name) {
    if (e && e->op != EX_SYM) equation(x, own(x, name), e);
}

static const Ex *number(Explain *x, const Ex *e, const char *name) {
    return !e || e->op == EX_CONST ? e : own(x, name);
}

static void tell_number(Explain *x, const Ex *e, const char *name) {
    if (e && e->op != EX_CONST) equation(x, own(x, name), e);
}

// ---- the parts

static void tell_step(Explain *x, const RecProgram *p) {
    const char *name[REC_CLAUSES];
    const Ex *clause[REC_CLAUSES], *s = own(x, "S"), *key = own(x, "outer(key, value)");
    int n = rec_clauses(p, name, clause);
    say_section(x, "step", arena_printf(x->arena, "recurrence %s, a step of a head", p->name));
    for (int i = 0; i < n - 1; i++) equation(x, own(x, name[i]), clause[i]);
    const Ex *next = x->c->decay ? ex_2(x->pool, EX_MUL, own(x, "decay"), s) : s;
    if (p->erase) next = plus(x, next, own(x, "outer(write, dot(erase, S))"));
    equation(x, own(x, "S'"), plus(x, next, key));
    equation(x, own(x, "o"),
             own(x, p->bonus ? "dot(query, S + outer(bonus * key, value))" : "dot(query, S')"));
    if (p->output->op == EX_SYM && p->output->sym == SYM_O) return;
    say_prose(x, ", then ");
    say_formula(x, NULL, p->output);
}

static void tell_decay(Explain *x) {
    enum { PLAIN = 16 }; // nodes of a logarithm that is worth reading
    const Chunk *c = x->c;
    if (!c->decay) return;
    equation(x, own(x, "l"),
             ex_count(c->decay) <= PLAIN ? c->decay : ex_1(x->pool, EX_LOG2, own(x, "decay")));
    if (c->fixed) say_prose(x, "    (the same at every position)");
    equation(x, own(x, "G(p, j)"), ex_1(x->pool, EX_EXP2, sum(x, own(x, "l"))));
    say_prose(x, arena_printf(x->arena,
                              "    (of the positions behind j up to p%s; 0 where an l is below %d: "
                              "what it decays is forgotten)",
                              c->channel ? ", by channel" : "", CHUNK_ZERO));
}

// number * <read, write_j>, by the decays between.
static const Ex *score(Explain *x, const ChunkRead *r, const char *read, const Ex *number, int w) {
    const char *between = r->before && !r->decayed ? "G(t-1, j)" : "G(t, j)",
               *write = write_name(x, w);
    if (!x->c->channel)
        return times(x, times(x, number, named(x, "dot(%s, %s_j)", read, write)),
                     decays(x, between));
    return times(x, number, named(x, "dot(%s * %s, %s_j)", read, between, write));
}

// What a read gets of the state before the chunk.
static const Ex *of_state(Explain *x, const ChunkRead *r, const char *read, const Ex *number) {
    const char *all = r->before && !r->decayed ? "G(t-1, 0)" : "G(t, 0)";
    if (x->c->channel) return times(x, number, named(x, "dot(%s * %s, S0)", read, all));
    return times(x, times(x, number, named(x, "dot(%s, S0)", read)), decays(x, all));
}

// name = what it gets of the state + the sums over what was written in the chunk + more.
static void tell_read(Explain *x, const char *name, const ChunkRead *r, const char *read,
                      const Ex *number, const char *const scores[2], const Ex *more) {
    const Ex *e = of_state(x, r, read, number);
    for (int w = 0; w < x->c->nwrites; w++) {
        equation(x, own(x, scores[w]), score(x, r, read, number, w));
        say_prose(x, r->before ? "    (j < t)" : "    (j <= t)");
        e = plus(x, e, sum(x, times(x, own(x, scores[w]), own(x, written(x, w, "_j")))));
    }
    equation(x, own(x, name), plus(x, e, more));
}

static void tell_writes(Explain *x) {
    static const char *const of_v[] = {"n_v", "n_v2"};
    for (int w = 0; w < x->c->nwrites; w++) {
        const ChunkWrite *to = &x->c->write[w];
        const Ex *value =
            to->value ? times(x, number(x, to->value, of_v[w]), own(x, element(x->c->value, "v~")))
                      : NULL;
        const Ex *erased = to->erased ? times(x, number(x, to->erased, "n_u"), own(x, "u")) : NULL;
        equation(x, own(x, written(x, w, "")), plus(x, value, erased));
    }
}

static void tell_new_state(Explain *x) {
    const Ex *s = times(x, decays(x, "G(C, 0)"), own(x, "S0"));
    for (int w = 0; w < x->c->nwrites; w++) {
        const char *at = arena_printf(x->arena, "%s_j", write_name(x, w));
        const Ex *pair = own(x, outer(x, at, written(x, w, "_j")));
        s = plus(x, s, sum(x, times(x, decays(x, "G(C, j)"), pair)));
    }
    equation(x, own(x, "S1"), s);
}

static const Ex *bonus(Explain *x) {
    if (!x->c->bonus) return NULL;
    const char *dot = arena_printf(x->arena, "dot(%s * bonus, %s)", element(x->c->query.elem, "q~"),
                                   write_name(x, 0));
    const Ex *n =
        times(x, number(x, x->c->query.number, "n_q"), number(x, x->c->write[0].value, "n_v"));
    return times(x, times(x, n, own(x, dot)), own(x, element(x->c->value, "v~")));
}

static void tell_chunk(Explain *x) {
    const Chunk *c = x->c;
    say_section(
        x, "chunk",
        c->erase.elem && c->nwrites == 1
            ? "in a chunk of C positions with the state S0 before it; key and write have the "
              "same elements: they are one write"
            : "in a chunk of C positions with the state S0 before it");
    tell_element(x, c->query.elem, "q~");
    tell_element(x, c->write[0].elem, "k~");
    tell_element(x, c->value, "v~");
    if (c->nwrites > 1) tell_element(x, c->write[1].elem, "w~");
    tell_element(x, c->erase.elem, "e~");
    tell_number(x, c->query.number, "n_q");
    tell_number(x, c->erase.number, "n_e");
    tell_number(x, c->write[0].value, "n_v");
    tell_number(x, c->write[c->nwrites - 1].erased, "n_u");
    tell_decay(x);
    if (c->erase.elem) {
        static const char *const scores[] = {"M", "N"};
        tell_read(x, "u", &c->erase, element(c->erase.elem, "e~"),
                  number(x, c->erase.number, "n_e"), scores, NULL);
    }
    tell_writes(x);
    static const char *const scores[] = {"A", "B"};
    tell_read(x, "o", &c->query, element(c->query.elem, "q~"), number(x, c->query.number, "n_q"),
              scores, bonus(x));
    tell_new_state(x);
}

static void tell_combine(Explain *x) {
    bool erases = x->c->erase.elem != NULL;
    const Ex *phi = own(x, "Phi_b");
    say_section(
        x, "combine",
        "combining two parts a, b of the positions, in any grouping: a part makes Phi S + Psi "
        "of S");
    equation(x, own(x, "Phi"), ex_2(x->pool, EX_MUL, phi, own(x, "Phi_a")));
    equation(x, own(x, "Psi"),
             plus(x, ex_2(x->pool, EX_MUL, phi, own(x, "Psi_a")), own(x, "Psi_b")));
    say_line(x);
    say_prose(x, "Psi is the part's state from 0; Phi ");
    say_prose(x, erases
                     ? "a matrix: the state of the same recurrence with values 0, from the identity"
                 : !x->c->decay  ? "1"
                 : x->c->channel ? "the product of its decays, by channel"
                                 : "the product of its decays");
    say_line(x);
    say_prose(x, "a part without a position is the identity: Phi 1, Psi 0");
}

// ---- the backward

// Sums over positions of the chunk: `t` runs behind j.
static const Ex *all(Explain *x, const char *text) { return sum(x, own(x, text)); }

static const char *dx_name(Explain *x, int w) {
    return arena_printf(x->arena, "d%s", written(x, w, ""));
}

// What comes to a write: of what reads it, and of the state behind the chunk.
static void tell_comes(Explain *x, int w) {
    const Chunk *c = x->c;
    const Ex *e = all(x, arena_printf(x->arena, "%s_t * do_t", w ? "B" : "A"));
    if (c->erase.elem) e = plus(x, e, all(x, arena_printf(x->arena, "%s_t * du_t", w ? "N" : "M")));
    const Ex *end =
        named(x, c->channel ? "dot(G(C, j) * %s_j, F1)" : "dot(%s_j, F1)", write_name(x, w));
    if (!c->channel) end = times(x, decays(x, "G(C, j)"), end);
    equation(x, named(x, "%s_j", dx_name(x, w)), plus(x, e, end));
    say_prose(x, "    (t from j on, as the scores have it)");
}

static const char *between_name(const ChunkRead *r) {
    return r->before && !r->decayed ? "G(t-1, j)" : "G(t, j)";
}

// The gradient of a read's elements, of what comes to it.
static void tell_read_back(Explain *x, const ChunkRead *r, const char *elem, const char *comes,
                           const Ex *number) {
    const char *between = between_name(r);
    const char *all = r->before && !r->decayed ? "G(t-1, 0)" : "G(t, 0)";
    const Ex *e = NULL;
    for (int w = 0; w < x->c->nwrites; w++) {
        const Ex *score = named(x, "dot(%s, %s)", comes, written(x, w, "_j"));
        const Ex *to = named(x, "%s_j", write_name(x, w));
        e = plus(x, e, sum(x, times(x, times(x, score, decays(x, between)), to)));
    }
    const Ex *state = times(x, decays(x, all), named(x, "dot(S0, %s)", comes));
    equation(x, own(x, elem), times(x, number, plus(x, e, state)));
}

static void tell_write_back(Explain *x, int w) {
    const Chunk *c = x->c;
    const char *query = element(c->query.elem, "q~"), *at = written(x, w, "_j");
    const Ex *e =
        sum(x, times(x, named(x, "dot(dO_t, %s)", at),
                     times(x, decays(x, between_name(&c->query)), named(x, "%s_t", query))));
    if (c->erase.elem) {
        const char *erase = element(c->erase.elem, "e~");
        const Ex *n = number(x, c->erase.number, "n_e");
        const Ex *score = named(x, "dot(du_t, %s)", at);
        const Ex *to = times(x, decays(x, between_name(&c->erase)), named(x, "%s_t", erase));
        e = plus(x, e, sum(x, times(x, times(x, n, score), to)));
    }
    const Ex *end = times(x, decays(x, "G(C, j)"), named(x, "dot(F1, %s)", at));
    equation(x, named(x, "d%s_j", write_name(x, w)), plus(x, e, end));
}

static void tell_state_back(Explain *x) {
    const Chunk *c = x->c;
    const char *query = element(c->query.elem, "q~");
    const char *of_q = c->query.before ? "G(t-1, 0)" : "G(t, 0)";
    const Ex *s = times(x, decays(x, "G(C, 0)"), own(x, "F1"));
    s = plus(x, s, sum(x, times(x, decays(x, of_q), own(x, outer(x, query, "dO")))));
    if (c->erase.elem) {
        const char *of_e = c->erase.decayed ? "G(t, 0)" : "G(t-1, 0)";
        const Ex *n = times(x, number(x, c->erase.number, "n_e"), decays(x, of_e));
        const Ex *pair = own(x, outer(x, element(c->erase.elem, "e~"), "du"));
        s = plus(x, s, sum(x, times(x, n, pair)));
    }
    equation(x, own(x, "F0"), s);
}

static void tell_backward(Explain *x) {
    const Chunk *c = x->c;
    say_section(x, "backward",
                "the backward, from the last chunk to the first, with F1 the gradient of the state "
                "behind the chunk: the same recurrence in reverse time");
    equation(x, own(x, "dO"), times(x, number(x, c->query.number, "n_q"), own(x, "do")));
    say_prose(x, "    (do: of o before output)");
    for (int w = c->nwrites - 1; w >= 0; w--) tell_comes(x, w);
    if (c->erase.elem) {
        const Ex *n = number(x, c->write[c->nwrites - 1].erased, "n_u");
        equation(x, own(x, "du"), times(x, n, own(x, dx_name(x, c->nwrites - 1))));
    }
    tell_state_back(x);
    tell_read_back(x, &c->query, c->query.elem->op == EX_SYM ? "dq" : "dq~", "do",
                   number(x, c->query.number, "n_q"));
    if (c->erase.elem) tell_read_back(x, &c->erase, "de~", "du", number(x, c->erase.number, "n_e"));
    for (int w = 0; w < c->nwrites; w++) tell_write_back(x, w);
    equation(x, named(x, "d%s", element(c->value, "v~")),
             times(x, number(x, c->write[0].value, "n_v"), own(x, dx_name(x, 0))));
    if (!c->decay) return;
    const Ex *l = plus(x, all(x, "pairs (t, j)"), all(x, "reads of S0"));
    l = plus(x, plus(x, l, all(x, "writes to F1")),
             times(x, decays(x, "G(C, 0)"), own(x, "dot(F1, S0)")));
    equation(x, own(x, "dl_s"), l);
    say_prose(x, "    (j < s <= t: what passes through the decay of s)");
}

Explanation *pass_explain_chunk(const RecProgram *written, const Chunk *c) {
    Explanation *to = ARENA_NEW(written->arena, Explanation);
    Explain x = {.to = to, .arena = written->arena, .pool = written->pool, .c = c};
    to->arena = written->arena;
    to->chunk = c;
    to->program = rec_names(written);
    tell_step(&x, written);
    tell_chunk(&x);
    tell_combine(&x);
    tell_backward(&x);
    return to;
}
