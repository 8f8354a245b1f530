// extrema.c: where an extremum meets the elements that it is taken over, both are the same rounded
// numbers.
//
// In: a row program. Out: one where what such an extremum reduces stands as `rounded(..)`, in the
// reduction and wherever else: no scale is taken out of it, and no product in it is rounded together
// with a difference. A key that is the extremum is then found again, s - rowmin(s) is 0 there and
// never negative.
//
//     s = dot * 0.125;  sqrt(s - rowmin(s))         ->  s = rounded(dot * 0.125)
//     s >= rowmax(s),  floor(exp(s - rowmax(s)))    ->  the same
//     floor(rowmax(s))                              ->  the same: it is one of the scores
//     exp(s - rowmax(s)) / l                        ->  as it was: what a rounding leaves is
//                                                       harmless in an exponent
//
// Harmless where scores are tame (tame.h), and where the power is only added and multiplied.
// (What a row is made of besides is not looked at: the mean of a row is rounded as it comes.)
#include "passes/extrema.h"

#include "passes/tame.h"

enum { MOST_EXTREMA = 64 }; // told apart; the last stands for all beyond

typedef uint64_t Extrema;

typedef struct Meeting {
    bool elem;         // depends on the element
    Extrema in;        // that it depends on
    Extrema linear;    // that met an element in sums, products and clamps
    Extrema otherwise; // ... in anything else
    Extrema power;     // linear ones in an exponent
} Meeting;

typedef struct Search {
    const RowProgram *row;
    Arena *scratch;
    ExMemo known; // Meeting * by expression
    Extrema met;
} Search;

static Extrema bit_of(int reduction) {
    return (Extrema)1 << (reduction < MOST_EXTREMA ? reduction : MOST_EXTREMA - 1);
}

static bool is_linear(const Ex *e) {
    switch ((int)e->op) {
    case EX_ADD:
    case EX_SUB:
    case EX_MUL:
    case EX_DIV:
    case EX_NEG:
    case EX_FMA:
    case EX_MIN:
    case EX_MAX:
    case EX_SELECT:
    case EX_ROUNDED: return true;
    default: return false;
    }
}

// Whether a small relative error of an argument is one of the result.
static bool is_smooth(const Ex *e, int argument) {
    if (e->op == EX_DIV || e->op == EX_SELECT) return (argument == 0) == (e->op == EX_DIV);
    return is_linear(e) || e->op == EX_ABS;
}

// Whether an argument that is rounded differently can make a result that is altogether different.
static bool jumps(const Ex *e) {
    if (e->op == EX_CONV) return e->type != EX_F32;
    return e->op == EX_FLOOR || e->op == EX_MOD || (e->op >= EX_EQ && e->op <= EX_LE);
}

static Meeting of_symbol(const Search *s, const Ex *e) {
    if (e->sym == SYM_S || e->sym == SYM_KV_IDX) return (Meeting){.elem = true};
    if (e->sym != SYM_R || s->row->reduces.data[e->index].op == EX_ROWSUM) return (Meeting){0};
    return (Meeting){.in = bit_of(e->index)};
}

static Meeting of_node(Search *s, const Ex *e) {
    Meeting m = {0};
    if (e->op == EX_SYM) return of_symbol(s, e);
    for (int k = 0; k < e->nargs; k++) {
        const void *known = NULL;
        ex_memo_has(&s->known, e->args[k], &known);
        const Meeting *a = known;
        m.elem |= a->elem;
        m.in |= a->in;
        m.linear |= a->linear;
        m.otherwise |= a->otherwise;
        m.power |= a->power;
        if (!is_smooth(e, k)) s->met |= a->power;
    }
    if (jumps(e)) s->met |= m.in;
    bool power = e->op == EX_EXP || e->op == EX_EXP2,
         scales = e->op == EX_MUL || e->op == EX_DIV || e->op == EX_NEG;
    if (m.elem && !power && !scales) *(is_linear(e) ? &m.linear : &m.otherwise) |= m.in;
    if (power && m.linear && row_tame(s->row, e->args[0])) {
        m.power |= m.linear;
        m.in = m.linear = 0;
    }
    return m;
}

// Extrema that meet elements in e.
static void search(Search *s, const Ex *e) {
    const Ex **order;
    const void *root = NULL;
    int n = ex_order_beyond(s->scratch, &s->known, e, &order);
    for (int i = 0; i < n; i++) {
        Meeting *m = ARENA_NEW(s->scratch, Meeting);
        *m = of_node(s, order[i]);
        ex_memo_put(s->scratch, &s->known, order[i], m);
    }
    ex_memo_has(&s->known, e, &root);
    const Meeting *m = root;
    s->met |= m->linear | m->otherwise;
}

static Extrema met_in(const RowProgram *row) {
    Search s = {.row = row, .scratch = arena_new()};
    for (int k = 0; k < row->reduces.n; k++) search(&s, row->reduces.data[k].f);
    search(&s, row->weight);
    for (int i = 0; i < row->emits.n; i++) search(&s, row->emits.data[i].value);
    arena_free(s.scratch);
    return s.met;
}

// ---- rounded

static const Ex *round_one(void *ctx, ExPool *p, const Ex *e) {
    return e == ctx ? ex_1(p, EX_ROUNDED, e) : e;
}

static void round_everywhere(RowProgram *row, const Ex *e) {
    for (int k = 0; k < row->reduces.n; k++)
        row->reduces.data[k].f = ex_map(row->pool, row->reduces.data[k].f, round_one, (void *)e);
    row->weight = ex_map(row->pool, row->weight, round_one, (void *)e);
}

static RowProgram *copy_of(Arena *a, const RowProgram *row) {
    RowProgram *out = ARENA_NEW(a, RowProgram);
    *out = *row;
    out->reduces.data = ARENA_ARRAY(a, RowReduce, row->reduces.n + 1);
    out->reduces.cap = row->reduces.n + 1;
    for (int k = 0; k < row->reduces.n; k++) out->reduces.data[k] = row->reduces.data[k];
    return out;
}

const RowProgram *row_with_exact_extrema(Arena *a, const RowProgram *row) {
    Extrema met = met_in(row);
    if (!met) return row;
    RowProgram *out = copy_of(a, row);
    for (int k = 0; k < row->reduces.n; k++) {
        const Ex *f = out->reduces.data[k].f;
        if (!(met & bit_of(k)) || f->op == EX_ROUNDED || f->op == EX_CONST) continue;
        if (out->reduces.data[k].op == EX_ROWSUM) continue;
        if (f->op != EX_SYM)
            round_everywhere(out, f);
        else if (f->sym == SYM_S && out->modified->op != EX_ROUNDED)
            out->modified = ex_1(out->pool, EX_ROUNDED, out->modified);
    }
    return out;
}
