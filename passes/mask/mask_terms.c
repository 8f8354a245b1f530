// mask_terms.c: which terms of a mask keep tiles of keys from being skipped, for who writes the mask.
//
// In: a kernel with its tiles bound. Out: those comparisons of the mask of which nothing is known over a
// tile, whether by intervals (mask.c) or by what lists of tiles look up (tilemap.c).
#include "passes/mask/mask.h"
#include "passes/mask/tilemap.h"

enum { MAX_TERMS = 64 }; // that are looked at

typedef struct Terms {
    TileMapQuery q;
    VEC(const Ex *) blind;
    int asked;
} Terms;

static bool is_constant(const Ex *e, bool v) { return e->op == EX_CONST && (e->i != 0) == v; }

static bool is_blind(Terms *t, const Ex *e) {
    MaskParts parts;
    t->q.mask = e;
    pass_mask_parts(&t->q, &parts);
    return is_constant(parts.pairs.may, true) && is_constant(parts.pairs.must, false);
}

static bool is_branch(const Ex *e) {
    bool equality = e->op == EX_EQ || e->op == EX_NE;
    return e->op == EX_AND || e->op == EX_OR || e->op == EX_NOT || e->op == EX_SELECT ||
           (equality && e->args[0]->type == EX_BOOL);
}

// Terms from left to right, each once.
static void look_at(Terms *t, const Ex *e) {
    bool varies = ex_uses(e, SYM_POS, -1);
    if (!varies || t->asked >= MAX_TERMS) return;
    if (is_branch(e)) {
        for (int i = 0; i < e->nargs; i++) look_at(t, e->args[i]);
        return;
    }
    for (int i = 0; i < t->blind.n; i++)
        if (t->blind.data[i] == e) return;
    t->asked++;
    if (is_blind(t, e)) VEC_PUSH(t->q.p->arena, &t->blind, e);
}

TileMapQuery pass_mask_query(TileProgram *p, TileKernel *k, int q_axis, int k_axis) {
    ExPool *x = p->pool;
    const TileAxis *rows = &k->axes[q_axis];
    const Ex *tile = ex_sym(x, SYM_TILE, q_axis, EX_I32), *n = ex_i32(x, rows->extent);
    const Ex *first = ex_2(x, EX_MUL, tile, n), *end = ex_2(x, EX_ADD, first, n);
    const Ex *last = ex_2(x, EX_SUB, ex_2(x, EX_MIN, end, rows->size), ex_i32(x, 1));
    TileMapQuery q = {.p = p, .k = k, .mask = ex_simplify(x, k->mask), .q_axis = q_axis};
    q.k_axis = k_axis;
    q.q.lo = ex_simplify(x, first), q.q.hi = ex_simplify(x, last);
    return q;
}

static int axis_over(const TileKernel *k, int size) {
    for (int i = 0; i < k->naxes; i++) {
        const Ex *n = k->axes[i].size;
        if (n->op == EX_SYM && n->sym == SYM_SIZE && n->index == size) return i;
    }
    return -1;
}

static const Ex *without_rounding(void *ctx, ExPool *x, const Ex *e) {
    (void)ctx, (void)x;
    return e->op == EX_ROUNDED ? e->args[0] : e;
}

// As the source has it: over q_idx and kv_idx.
static const Ex *in_positions(const TileMapQuery *q, const Ex *e) {
    ExPool *x = q->p->pool;
    const Ex *offset = ex_sym(x, SYM_SIZE, SIZE_Q_OFFSET, EX_I32);
    const Ex *row = ex_2(x, EX_SUB, ex_symbol(x, SYM_Q_IDX), offset);
    e = ex_subst(x, e, SYM_POS, q->q_axis, row);
    e = ex_subst(x, e, SYM_POS, q->k_axis, ex_symbol(x, SYM_KV_IDX));
    return ex_map(x, ex_simplify(x, e), without_rounding, NULL);
}

MaskTerms pass_blind_terms(const Stream *s, int rows, int keys) {
    Arena *a = s->row->arena;
    PassOptions o = {.target = *target_get(TARGET_HOST), .dtype = DT_F32};
    MaskTerms blind = {0};
    Diags diags = diag_list(a);
    if (!pass_accepts(s->row, &diags)) return blind;
    TileProgram *p = pass_algorithm(a, s, &o, &diags);
    if (!p) return blind;
    TileKernel *k = p->kernels.data[0];
    int q_axis = axis_over(k, SIZE_SQ), k_axis = axis_over(k, SIZE_SK);
    if (q_axis < 0 || k_axis < 0) return blind;
    k->axes[q_axis].extent = rows, k->axes[k_axis].extent = keys;
    Terms t = {.q = pass_mask_query(p, k, q_axis, k_axis)};
    look_at(&t, t.q.mask);
    for (int i = 0; i < t.blind.n; i++) VEC_PUSH(a, &blind, in_positions(&t.q, t.blind.data[i]));
    return blind;
}
