// warn.c: what compiles and is hardly meant.
//
// In: a clause, or a variant without mistakes, typed. Out: warnings, each with what to write instead
// and with a way to say that it is meant. Holds: the library gets none, and nothing is told twice.
// (Divisions of i32 that become f32 are told in elab.c, where they do.)
#include "frontend/sema.h"

#include <math.h>
#include <string.h>

// ---- parameters in places of others

static int place_of(const TxSym *params, int n, const char *name) {
    for (int i = 0; i < n; i++)
        if (!strcmp(tx_sym_name(params[i]), name)) return i;
    return -1;
}

static void note_places(Sema *s, Diag *g, const AstItem *item, const TxSym *params, int n) {
    Text t = text_new(s->arena);
    for (int k = 0; k < n; k++) text_printf(&t, "%s%s", k ? ", " : "", tx_sym_name(params[k]));
    diag_note(s->diags, g, item->name.span,
              "parameters are told by their places: %s(%s); trailing ones may be left out",
              item->name.s, t.s);
}

// Parameters are told by their places, and may have any names; but one that has the name of another
// place was hardly meant so.
bool warn_places(Sema *s, const AstItem *item, const char *clause, const TxSym *params, int n) {
    for (int i = 0; i < item->params.n && i < n; i++) {
        const AstName *p = &item->params.data[i];
        const char *meant = tx_sym_name(params[i]);
        bool position = !strcmp(p->s, "q_idx") || !strcmp(p->s, "kv_idx");
        int place = place_of(params, n, p->s);
        if (!strcmp(p->s, meant) || (place < 0 && !position)) continue;
        if (place >= 0 && place < i && !strcmp(item->params.data[place].s, p->s))
            continue; // given twice, which was reported
        Diag *g = diag_warning(s->diags, p->span, "'%s' stands where '%s' gets its '%s'", p->s,
                               clause, meant);
        note_places(s, g, item, params, n);
        return true;
    }
    return false;
}

// mask(i, j) = j <= i compares the batch entry with the head. Of a mask that depends on these alone
// one parameter has a name that begins otherwise; of a modify, which a bias for each of them is
// right for, both are used and neither name tells.
void warn_pair(Sema *s, const AstItem *item, ClauseId id, const Tx *result, const TxSym *params,
               int n) {
    const AstName *b = NULL, *h = NULL, *odd = NULL; // the parameters that are used
    const char *meant = NULL;
    int first = id == CLAUSE_MODIFY ? 1 : 0, tell = 0;
    if ((id != CLAUSE_MASK && id != CLAUSE_MODIFY) || item->params.n > first + 2) return;
    TxNodes nodes = tx_nodes(s->arena, &result, 1);
    for (int i = 0; i < nodes.n; i++) {
        if (tx_is_sym(nodes.data[i], TS_B)) b = &item->params.data[first];
        if (tx_is_sym(nodes.data[i], TS_H)) h = &item->params.data[first + 1];
    }
    for (int i = 1; i >= 0; i--) {
        const AstName *p = i ? h : b;
        if (p && p->s[0] == (i ? 'h' : 'b')) tell++;
        if (p && p->s[0] != (i ? 'h' : 'b')) odd = p, meant = i ? "h" : "b";
    }
    if (!odd || (id == CLAUSE_MODIFY && (!b || !h || tell))) return;
    Diag *g = diag_warning(s->diags, odd->span,
                           "%s does not depend on the query or the key%s: '%s' is its '%s'",
                           id == CLAUSE_MASK ? "the mask" : "'modify'",
                           id == CLAUSE_MASK ? "" : " but by its score", odd->s, meant);
    note_places(s, g, item, params, n);
}

// ---- scores that stand for a mask

enum { LOW = 10000 }; // a score below -LOW is no score

typedef struct Warn {
    Sema *s;
    const Variant *v;
    const AstItem *item;
    const bool *scored; // by the id of a node: whether it depends on the score
} Warn;

static const AstItem *clause_item(const AstItem *variant, const char *name) {
    for (int i = 0; i < variant->items.n; i++) {
        const AstItem *item = variant->items.data[i];
        if (item->kind == AST_CLAUSE && !strcmp(item->name.s, name)) return item;
    }
    return NULL;
}

static const char *quoted(const Warn *w, const Tx *e, const char *otherwise) {
    const char *text = diag_quote(w->s->diags, e->span);
    return text ? text : otherwise;
}

// 'mask(b, h, i, j) = j <= i;' with the clause's own names.
static const char *as_mask(const Warn *w, const Tx *condition, bool negated) {
    static const char *const names[] = {"s", "b", "h", "q_idx", "kv_idx"};
    const AstItem *item = clause_item(w->item, "modify");
    Span at = condition->span;
    bool inside =
        at.file == item->span.file && at.start >= item->span.start && at.end <= item->span.end;
    Text t = text_new(w->s->arena);
    text_puts(&t, "mask(");
    for (int i = 1; i < 5; i++)
        text_printf(&t, "%s%s", i > 1 ? ", " : "",
                    i < item->params.n ? item->params.data[i].s : names[i]);
    const char *text = inside && condition->op != EX_SYM ? quoted(w, condition, "...") : "...";
    text_printf(&t, negated && strcmp(text, "...") ? ") = !(%s);" : ") = %s;", text);
    return t.s;
}

static void warn_low_score(const Warn *w, const Tx *e, const Tx *low, const Tx *condition,
                           bool negated) {
    Diags *d = w->s->diags;
    const char *text = quoted(w, low, "this"), *mask = as_mask(w, condition, negated);
    const char *message = arena_printf(
        w->s->arena,
        isinf(low->value.f)
            ? "a score of -inf leaves a key out, but only a mask lets whole tiles be skipped: "
              "write '%s' "
              "('s - inf' rather than '%s' says that the score is meant)"
            : "a low score is no mask: no tile is skipped, and a query that sees no key gives the "
              "mean of "
              "all values: write '%s' ('s - 1e9' rather than '%s' says that the score is meant)",
        mask, text);
    if (!sema_said(d, e->span, message)) diag_warning(d, e->span, "%s", message);
}

// The branch of `condition ? s : -1e9` that stands for a mask: 1 or 2; else 0. sign: -1 where it is
// subtracted.
static int low_branch(const Warn *w, const Tx *e, int sign) {
    if (e->op != EX_SELECT || e->type != TX_F32 || w->scored[e->args[0]->id]) return 0;
    for (int i = 1; i <= 2; i++)
        if (e->args[i]->known && sign * e->args[i]->value.f <= -LOW) return i;
    return 0;
}

// f32(j > i) * -1e9
static const Tx *low_factor(const Warn *w, const Tx *e, int sign, const Tx **condition) {
    if (e->op != EX_MUL) return NULL;
    for (int i = 0; i < 2; i++) {
        const Tx *c = e->args[i], *f = e->args[!i];
        if (!c->known || sign * c->value.f > -LOW || f->op != EX_CONV ||
            f->args[0]->type != TX_BOOL)
            continue;
        *condition = f->args[0];
        return w->scored[f->id] ? NULL : c;
    }
    return NULL;
}

static void warn_added(const Warn *w, const Tx *e, int sign) {
    const Tx *condition, *factor = low_factor(w, e, sign, &condition);
    int low = low_branch(w, e, sign);
    if (low) warn_low_score(w, e, e->args[low], e->args[0], low == 1);
    if (factor) warn_low_score(w, e, factor, condition, true);
}

static void warn_masked_scores(Warn *w) {
    TxNodes nodes = tx_nodes(w->s->arena, &w->v->clause[CLAUSE_MODIFY], 1);
    bool *scored = ARENA_ARRAY(w->s->arena, bool, nodes.n ? nodes.data[nodes.n - 1]->id + 1 : 0);
    w->scored = scored;
    for (int i = 0; i < nodes.n; i++) {
        const Tx *e = nodes.data[i], *a = e->nargs ? e->args[0] : NULL,
                 *b = e->nargs > 1 ? e->args[1] : NULL;
        scored[e->id] = tx_is_sym(e, TS_S);
        for (int k = 0; k < e->nargs; k++) scored[e->id] |= scored[e->args[k]->id];
        int low = low_branch(w, e, 1);
        if (low && scored[e->args[3 - low]->id])
            warn_low_score(w, e, e->args[low], e->args[0], low == 1);
        if (e->type != TX_F32 || (e->op != EX_ADD && e->op != EX_SUB)) continue;
        if (scored[a->id]) warn_added(w, b, e->op == EX_ADD ? 1 : -1);
        if (scored[b->id] && e->op == EX_ADD) warn_added(w, a, 1);
    }
}

// ---- sums of exponentials that overflow

// What scores as large as they like make of an expression: whether it may grow up and down without
// bound. scored: a score is in it. shifted: so is a reduction, or an input is subtracted, which bounds
// it for all that can be told. over: an exponential in it that may overflow and is not harmless.
typedef struct Reach {
    bool up, down, scored, shifted;
    const Tx *over;
} Reach;

static bool negated(const Tx *a, const Tx *b) { return a->op == EX_NEG && a->args[0] == b; }

static Reach reach_of_product(const Tx *e, Reach a, Reach b) {
    const Tx *x = e->args[0], *y = e->args[1];
    Reach any = {.up = a.up || a.down || b.up || b.down};
    any.down = any.up;
    if (x == y) return (Reach){.up = any.up};
    if (negated(x, y) || negated(y, x)) return (Reach){.down = any.up};
    double factor = y->known ? y->value.f : x->known ? x->value.f : 0;
    Reach of = y->known ? a : b;
    return factor > 0   ? (Reach){.up = of.up, .down = of.down}
           : factor < 0 ? (Reach){.up = of.down, .down = of.up}
                        : any;
}

static Reach reach_by_op(const Tx *e, const Reach *a) {
    Reach none = {false};
    switch ((int)e->op) {
    case EX_ADD: return (Reach){.up = a[0].up || a[1].up, .down = a[0].down || a[1].down};
    case EX_SUB: return (Reach){.up = a[0].up || a[1].down, .down = a[0].down || a[1].up};
    case EX_NEG: return (Reach){.up = a[0].down, .down = a[0].up};
    case EX_ABS: return (Reach){.up = a[0].up || a[0].down};
    case EX_MUL: return reach_of_product(e, a[0], a[1]);
    case EX_DIV:
        return e->args[1]->known
                   ? reach_of_product(e, a[0], none)
                   : (Reach){.up = a[0].up || a[0].down, .down = a[0].up || a[0].down};
    case EX_MIN: return (Reach){.up = a[0].up && a[1].up, .down = a[0].down || a[1].down};
    case EX_MAX: return (Reach){.up = a[0].up || a[1].up, .down = a[0].down && a[1].down};
    case EX_SELECT: return (Reach){.up = a[1].up || a[2].up, .down = a[1].down || a[2].down};
    case EX_FLOOR:
    case EX_CONV: return (Reach){.up = a[0].up, .down = a[0].down};
    case EX_EXP:
    case EX_EXP2:
    case EX_LOG:
    case EX_LOG2:
    case EX_SQRT: return (Reach){.up = a[0].up};
    case EX_POW: return (Reach){.up = a[0].up || a[0].down || a[1].up};
    default: return none;
    }
}

// An overflow is harmless in a denominator, in what bounds it, and where a condition on the score may
// choose something else.
static const Tx *overflow(const Tx *e, const Reach *a) {
    const Tx *first = a[0].over ? a[0].over : a[1].over;
    switch ((int)e->op) {
    case EX_EXP:
    case EX_EXP2: return a[0].up && !a[0].shifted ? e : NULL;
    case EX_ADD:
    case EX_SUB:
    case EX_MUL:
    case EX_NEG:
    case EX_ABS:
    case EX_MAX: return first;
    case EX_DIV: return a[0].over && !a[1].over ? a[0].over : NULL;
    case EX_MIN: return a[0].over && a[1].over ? a[0].over : NULL;
    case EX_SELECT: return a[0].scored ? NULL : a[1].over ? a[1].over : a[2].over;
    default: return NULL;
    }
}

static Reach reach_of_node(const Tx *e, const Reach *a, Reach score) {
    if (tx_is_sym(e, TS_S) || tx_is_sym(e, TS_ROW_S)) return score;
    if (tx_is_sym(e, TS_DOT)) return (Reach){.up = true, .down = true, .scored = true};
    Reach r = reach_by_op(e, a);
    r.over = overflow(e, a);
    r.shifted =
        e->op == EX_ROWMAX || e->op == EX_ROWMIN || e->op == EX_ROWSUM ||
        (e->op == EX_SUB && (e->args[1]->op == EX_LOAD || tx_is_sym(e->args[1], TS_SCALAR)));
    for (int i = 0; i < e->nargs && i < 3; i++) {
        r.scored |= a[i].scored;
        r.shifted |= a[i].shifted;
    }
    return r;
}

static void warn_overflow(const Warn *w, const Tx *e) {
    const AstItem *modify = clause_item(w->item, "modify");
    bool in_modify = modify && e->span.file == modify->span.file &&
                     e->span.start >= modify->span.start && e->span.end <= modify->span.end;
    const char *name = e->op == EX_EXP ? "exp" : "exp2", *x = quoted(w, e->args[0], "x");
    const char *shifted =
        in_modify ? "leave the score as it is, and write '%s(s - rowmax(s))' in 'normalize'"
                  : "subtract the row's maximum, '%s(%s - rowmax(%s))', and add it to a logarithm "
                    "of the sum";
    const char *instead = arena_printf(w->s->arena, shifted, name, x, x);
    const char *message = arena_printf(
        w->s->arena,
        "%s of a large score overflows f32, and the sum of the row with it: %s ('%s(min(%s, %d))' "
        "says that large ones do not come)",
        name, instead, name, x, e->op == EX_EXP ? 80 : 120);
    if (!sema_said(w->s->diags, e->span, message))
        diag_warning(w->s->diags, e->span, "%s", message);
}

// What the clause makes of a score: of the last root.
static Reach warn_reach(const Warn *w, const Tx *const *roots, int n, Reach score) {
    TxNodes nodes = tx_nodes(w->s->arena, roots, n);
    Reach *reach = ARENA_ARRAY(w->s->arena, Reach, nodes.n ? nodes.data[nodes.n - 1]->id + 1 : 0);
    bool norms = false; // a score with squared norms in it: a cosine, a distance
    for (int i = 0; i < nodes.n; i++) {
        const Tx *e = nodes.data[i];
        Reach a[3] = {{false}};
        for (int k = 0; k < e->nargs && k < 3; k++) a[k] = reach[e->args[k]->id];
        if (e->op == EX_ROWSUM && a[0].over) warn_overflow(w, a[0].over);
        norms |= tx_is_sym(e, TS_SQQ) || tx_is_sym(e, TS_SQK);
        reach[e->id] = reach_of_node(e, a, score);
    }
    const Tx *last = roots[n - 1];
    return norms || !last ? (Reach){.scored = true} : reach[last->id];
}

static void warn_overflows(const Warn *w) {
    const Variant *v = w->v;
    Reach score = warn_reach(w, &v->clause[CLAUSE_SCORE], 1, (Reach){.scored = true});
    if (v->clause[CLAUSE_MODIFY]) score = warn_reach(w, &v->clause[CLAUSE_MODIFY], 1, score);
    const Tx **roots = ARENA_ARRAY(w->s->arena, const Tx *, v->emits.n + 1);
    for (int i = 0; i < v->emits.n; i++) roots[i] = v->emits.data[i].value;
    roots[v->emits.n] = v->clause[CLAUSE_NORMALIZE];
    warn_reach(w, roots, v->emits.n + 1, score);
}

// ---- inputs that nothing reads

// An input may be there for a size that only it gives.
static bool gives_size(const Variant *v, const TxInput *in, const Scope *scope) {
    int fixed = v->kind == VARIANT_ATTENTION ? (int)SIZE_FREE : (int)RSIZE_FREE;
    for (int i = 0; i < in->rank; i++) {
        int size = in->extent[i].size;
        const Decl *d = size >= fixed ? scope_find(scope, v->sizes.data[size]) : NULL;
        if (d && d->used) return true;
    }
    return false;
}

static void warn_inputs(const Warn *w, const Scope *scope) {
    for (int i = 0; i < w->v->inputs.n; i++) {
        const TxInput *in = &w->v->inputs.data[i];
        if (in->name[0] == '_' || scope_find(scope, in->name)->used || gives_size(w->v, in, scope))
            continue;
        diag_warning(
            w->s->diags, in->span,
            "no clause reads the input '%s': remove it, or begin its name with '_' where it is "
            "meant to be passed and not read",
            in->name);
    }
}

void warn_lets(Sema *s, const Body *b) {
    for (int i = b->nparams; i < b->nslots && !s->diags->errors; i++) {
        const Decl *d = b->slots.data[i];
        if (!d->used && d->name[0] != '_')
            diag_warning(s->diags, d->span,
                         "nothing reads '%s': remove it, or begin its name with '_'", d->name);
    }
}

// ---- sizes of the other kind of variant

// Sq of a recurrence, Hq of an attention: nothing ties such an extent to q, k and v.
void warn_size_of_others(Sema *s, const Variant *v, const AstName *name) {
    static const struct {
        VariantKind of;
        const char *name, *instead;
    } sizes[] = {{VARIANT_ATTENTION, "Hkv", "heads of k and v are Hk and Hv"},
                 {VARIANT_ATTENTION, "Sq", "positions are S"},
                 {VARIANT_ATTENTION, "Sk", "positions are S"},
                 {VARIANT_RECURRENCE, "S", "queries are Sq, keys are Sk"},
                 {VARIANT_RECURRENCE, "Hq", "heads of q are H"},
                 {VARIANT_RECURRENCE, "Hk", "heads of k and v are Hkv"},
                 {VARIANT_RECURRENCE, "Hv", "heads of k and v are Hkv"}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (sizes[i].of != v->kind && !strcmp(sizes[i].name, name->s))
            diag_warning(s->diags, name->span,
                         "'%s' is a size of %s: here it is a free one, that the array gives; %s",
                         name->s, v->kind == VARIANT_RECURRENCE ? "attentions" : "recurrences",
                         sizes[i].instead);
}

// ---- indices of other extents

// What the symbol counts in the clause, and what else an attention counts, which an index by it mistakes.
static int counted(const Tx *index, ClauseId clause) {
    bool keys = clause == CLAUSE_A_KEY || clause == CLAUSE_A_VALUE;
    return tx_is_sym(index, TS_B)   ? (int)SIZE_B
           : tx_is_sym(index, TS_H) ? keys ? (int)SIZE_HKV : (int)SIZE_HQ
                                    : -1;
}

static void warn_index(const Warn *w, const Tx *load, int d, int counts) {
    const Tx *index = load->args[d];
    const TxInput *in = &w->v->inputs.data[load->index];
    int extent = in->extent[d].size;
    Arena *a = w->s->arena;
    const char *name = quoted(w, index, tx_sym_name(index->sym));
    const char *is = w->v->sizes.data[extent], *of = w->v->sizes.data[counts];
    const char *instead = counts == SIZE_HQ && extent == SIZE_HKV
                              ? arena_printf(a, "write '%s * Hkv / H'", name)
                          : counts == SIZE_HKV && extent == SIZE_HQ ? "give the input an extent Hkv"
                          : extent == SIZE_B                        ? "the batch entry is 'b'"
                                                                    : "the head is 'h'";
    const char *message = arena_printf(a,
                                       "'%s' counts to %s here, and this extent of '%s' is %s: %s "
                                       "('%s + 0' says that it is meant)",
                                       name, of, in->name, is, instead, name);
    if (!sema_said(w->s->diags, load->span, message))
        diag_warning(w->s->diags, load->span, "%s", message);
}

static void warn_indices(const Warn *w) {
    for (int c = 0; c < CLAUSE_COUNT; c++) {
        TxNodes nodes = tx_nodes(w->s->arena, &w->v->clause[c], 1);
        for (int i = 0; i < nodes.n; i++) {
            const Tx *e = nodes.data[i];
            const TxInput *in = e->op == EX_LOAD ? &w->v->inputs.data[e->index] : NULL;
            for (int d = 0; in && d < in->rank; d++) {
                int counts = counted(e->args[d], (ClauseId)c), size = in->extent[d].size;
                bool other = size == SIZE_B || size == SIZE_HQ || size == SIZE_HKV;
                if (counts >= 0 && other && size != counts) warn_index(w, e, d, counts);
            }
        }
    }
}

static void warn_empty_mask(const Warn *w) {
    const Tx *mask = w->v->clause[CLAUSE_MASK];
    if (mask && mask->known && !mask->value.i)
        diag_warning(w->s->diags, mask->span, "no pair passes this mask: every row is empty");
}

static void warn_negative_decay(const Warn *w) {
    const Tx *decay = w->v->clause[CLAUSE_DECAY];
    if (decay && decay->known && decay->value.f < 0)
        diag_warning(w->s->diags, decay->span,
                     "a decay is at least 0: this one makes every output NaN");
}

void warn_variant(Sema *s, const Variant *v, const AstItem *item, const Scope *scope) {
    Warn w = {.s = s, .v = v, .item = item};
    warn_inputs(&w, scope);
    warn_negative_decay(&w);
    if (v->kind != VARIANT_ATTENTION) return;
    if (v->clause[CLAUSE_MODIFY]) warn_masked_scores(&w);
    warn_overflows(&w);
    warn_indices(&w);
    warn_empty_mask(&w);
}
