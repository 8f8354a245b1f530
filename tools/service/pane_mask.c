// pane_mask.c: `attn/mask`: the mask as tiles, and which of its terms makes a tile what it is.
//
// The terms are the source's, over q_idx and kv_idx; what is known of one over a tile is what the compiler would know of a mask
// of this term alone (maskmap.h).
#include "pane.h"
#include "tools/maskmap.h"

#include <string.h>

enum {
    MOST_TILES = 1 << 16,
    MOST_BITS = 1 << 16,
    MOST_TERMS = 64,
    MOST_BRANCHES = 2000,
    LARGEST_TILE = 1024
};

typedef enum Truth { NONE, SOME, ALL } Truth; // of the pairs of a tile

typedef struct Term {
    const Ex *e; // as the source has it
    MaskJudge *judge;
    Truth truth;
    bool decides;
} Term;

typedef struct MaskPane {
    Pane *p;
    Target target;
    Dtype dtype;
    TileProgram *program;
    TileKernel *kernel;
    Binding b;
    const bool *read;
    int32_t *size;
    int batch, head;
    MaskMap map;
    int row, column; // of the tile that is asked about
    const Ex *mask;  // with the end of the keys, where it lies within a tile
    Term term[MOST_TERMS];
    int nterms;
} MaskPane;

// ---- the program

static PassOptions options(const MaskPane *m) {
    return (PassOptions){.target = m->target,
                         .dtype = m->dtype,
                         .split = true,
                         .shape = shape_of(&m->target, m->size),
                         .sizes = m->size};
}

// The algorithm, with tiles of the request.
static bool asked_tiles(MaskPane *m) {
    int queries, keys;
    PassOptions o = options(m);
    if (!pane_int(m->p, "tile.queries", 1, LARGEST_TILE, 16, &queries) ||
        !pane_int(m->p, "tile.keys", 1, LARGEST_TILE, 16, &keys))
        return false;
    m->program = pass_algorithm(m->p->arena, m->p->stream, &o, &m->p->source.diags);
    if (!m->program) return pane_refused(m->p);
    m->kernel = m->program->kernels.data[0];
    int q = mask_axis(m->kernel, SIZE_SQ), k = mask_axis(m->kernel, SIZE_SK);
    if (q < 0 || k < 0) return pane_wrong(m->p, "no kernel goes through the keys");
    m->kernel->axes[q].extent = queries;
    m->kernel->axes[k].extent = keys;
    return true;
}

static bool target_tiles(MaskPane *m) {
    PassOptions o = options(m);
    m->program = pass_pipeline(m->p->arena, m->p->stream, &o, &m->p->source.diags);
    if (!m->program) return pane_refused(m->p);
    m->kernel = mask_kernel(m->program, m->size, m->p->arena);
    return m->kernel || pane_wrong(m->p, "no kernel goes through the keys");
}

static bool make_map(MaskPane *m) {
    Pane *p = m->p;
    const Signature *sig = sig_of_variant(p->arena, p->variant, m->dtype);
    m->size = ARENA_ARRAY(p->arena, int32_t, sig->sizes.n + 1);
    if (!pane_sizes(p, sig, 128, m->size) || !pane_place(p, m->size, &m->batch, &m->head))
        return false;
    if (!pass_accepts(p->row, &p->source.diags)) return pane_refused(p);
    if (!(json_get(p->params, "tile") ? asked_tiles(m) : target_tiles(m))) return false;
    m->read = mask_reads(p->arena, m->program, sig);
    int64_t rows = m->kernel->axes[mask_axis(m->kernel, SIZE_SQ)].extent;
    int64_t columns = m->kernel->axes[mask_axis(m->kernel, SIZE_SK)].extent;
    if ((m->size[SIZE_SQ] / rows + 1) * (m->size[SIZE_SK] / columns + 1) > MOST_TILES)
        return pane_wrong(p, "these are more than %d tiles: choose smaller sizes or larger tiles",
                          MOST_TILES);
    if (!pane_bind(p, &m->b, sig, m->size, m->read)) return false;
    const char *why =
        mask_map_of(&m->map, p->arena, m->program, m->kernel, &m->b, m->batch, m->head);
    return !why || pane_wrong(p, "%s", why);
}

// ---- terms

static bool is_branch(const Ex *e) { return e->op == EX_AND || e->op == EX_OR || e->op == EX_NOT; }

static const Ex *without_rounding(void *ctx, ExPool *x, const Ex *e) {
    (void)ctx, (void)x;
    return e->op == EX_ROUNDED ? e->args[0] : e;
}

// Over the kernel's positions.
static const Ex *over_positions(const MaskPane *m, const Ex *e) {
    ExPool *x = m->program->pool;
    const Ex *row = ex_sym(x, SYM_POS, mask_axis(m->kernel, SIZE_SQ), EX_I32);
    const Ex *offset = ex_sym(x, SYM_SIZE, SIZE_Q_OFFSET, EX_I32);
    e = ex_subst(x, e, SYM_Q_IDX, 0, ex_2(x, EX_ADD, row, offset));
    return ex_subst(x, e, SYM_KV_IDX, 0, ex_sym(x, SYM_POS, mask_axis(m->kernel, SIZE_SK), EX_I32));
}

static Term *term_of(MaskPane *m, const Ex *e) {
    for (int i = 0; i < m->nterms; i++)
        if (m->term[i].e == e) return &m->term[i];
    return NULL;
}

// From left to right, each once. What is beyond MOST_TERMS decides nothing.
static void find_terms(MaskPane *m, const Ex *e) {
    if (is_branch(e)) {
        for (int i = 0; i < e->nargs; i++) find_terms(m, e->args[i]);
    } else if (m->nterms < MOST_TERMS && !term_of(m, e)) {
        m->term[m->nterms++] =
            (Term){.e = e, .judge = mask_judge(&m->map, m->p->arena, over_positions(m, e))};
    }
}

// A walk over all branches ends in so many steps; what is shared counts each time.
static bool is_small(const Ex *e, int *left) {
    if (--*left < 0) return false;
    for (int i = 0; is_branch(e) && i < e->nargs; i++)
        if (!is_small(e->args[i], left)) return false;
    return true;
}

static void read_terms(MaskPane *m) {
    ExPool *x = m->p->row->pool;
    m->mask = ex_map(x, m->p->row->mask, without_rounding, NULL);
    if (m->map.keys % m->map.tile_k) {
        const Ex *end =
            ex_2(x, EX_LT, ex_symbol(x, SYM_KV_IDX), ex_sym(x, SYM_SIZE, SIZE_SK, EX_I32));
        m->mask = m->mask->op == EX_CONST ? end : ex_2(x, EX_AND, m->mask, end);
    }
    int left = MOST_BRANCHES;
    if (m->mask->op != EX_CONST && is_small(m->mask, &left)) find_terms(m, m->mask);
}

static Truth truth(MaskPane *m, const Ex *e) {
    if (!is_branch(e)) return term_of(m, e) ? term_of(m, e)->truth : SOME;
    Truth a = truth(m, e->args[0]);
    if (e->op == EX_NOT) return a == SOME ? SOME : a == ALL ? NONE : ALL;
    Truth b = truth(m, e->args[1]);
    return e->op == EX_AND ? a < b ? a : b : a > b ? a : b;
}

// Marks what makes e the same for all pairs of the tile, `is`, or what leaves it open.
static void mark(MaskPane *m, const Ex *e, Truth is) {
    if (!is_branch(e)) {
        if (term_of(m, e)) term_of(m, e)->decides = true;
        return;
    }
    for (int i = 0; i < e->nargs; i++) {
        Truth want = e->op != EX_NOT || is == SOME ? is : is == ALL ? NONE : ALL;
        if (truth(m, e->args[i]) == want) mark(m, e->args[i], want);
    }
}

// False: no single term makes the tile what it is, they do together.
static bool decide(MaskPane *m, Truth is) {
    for (int i = 0; i < m->nterms; i++) {
        bool some, all;
        mask_judged(m->term[i].judge, m->row, m->column, &some, &all);
        m->term[i].truth = !some ? NONE : all ? ALL : SOME;
    }
    bool alone = truth(m, m->mask) == is;
    if (alone) mark(m, m->mask, is);
    for (int i = 0; i < m->nterms && !alone; i++) m->term[i].decides = m->term[i].truth == SOME;
    return alone;
}

// ---- results

static cJSON *sizes_of_tile(int queries, int keys) {
    return json_pair("queries", cJSON_CreateNumber(queries), "keys", cJSON_CreateNumber(keys));
}

static cJSON *classes(const MaskMap *m) {
    static const char digits[] = {[MASK_SKIPPED] = '0', [MASK_PARTIAL] = '1', [MASK_FULL] = '2'};
    cJSON *rows = cJSON_CreateArray();
    Arena *scratch = arena_new();
    char *row = arena_alloc(scratch, (size_t)m->columns + 1);
    for (int r = 0; r < m->rows; r++) {
        for (int c = 0; c < m->columns; c++) row[c] = digits[m->cls[(int64_t)r * m->columns + c]];
        cJSON_AddItemToArray(rows, cJSON_CreateString(row));
    }
    arena_free(scratch);
    return rows;
}

static cJSON *pairs(MaskPane *m) {
    int queries = m->map.queries, keys = m->map.keys;
    if ((int64_t)queries * keys > MOST_BITS) return cJSON_CreateNull();
    cJSON *rows = cJSON_CreateArray();
    unsigned char *bits = arena_alloc(m->p->arena, (size_t)keys + 1);
    for (int q = 0; q < queries; q++) {
        for (int k = 0; k < keys; k++) bits[k] = mask_at(&m->map, q, k);
        cJSON_AddItemToArray(rows, pane_bits(m->p, bits, keys));
    }
    return rows;
}

static cJSON *terms(MaskPane *m, const ExNames *names) {
    cJSON *all = cJSON_CreateArray();
    for (int i = 0; i < m->nterms; i++) {
        cJSON *o = cJSON_CreateObject();
        pane_formula(m->p, o, m->term[i].e, names);
        cJSON_AddItemToObject(o, "place", pane_span(m->p, m->term[i].e->span));
        cJSON_AddBoolToObject(o, "blind", mask_judge_is_blind(m->term[i].judge));
        cJSON_AddItemToArray(all, o);
    }
    return all;
}

// "kv_idx <= q_idx holds for no pair"
static const char *sentence(const MaskPane *m, const ExNames *names, Truth is, bool alone) {
    static const char *const ends[] = {"for no pair", "for some of the pairs", "for every pair"};
    int n = 0, all = 0;
    Text t = text_new(m->p->arena);
    for (int i = 0; i < m->nterms; i++) all += m->term[i].decides;
    if (!all)
        return is == ALL ? "every pair takes part" : "nothing is known of the mask over this tile";
    for (int i = 0; i < m->nterms; i++) {
        if (!m->term[i].decides) continue;
        text_puts(&t, !n++ ? "" : n == all ? " and " : ", ");
        ex_print_pretty(&t, m->term[i].e, names);
    }
    text_printf(&t, " %s%s %s", all == 1 ? "holds" : "hold", alone ? "" : " together", ends[is]);
    return t.s;
}

static cJSON *range(int from, int size, int end) {
    int pair[] = {from, from + size < end ? from + size : end};
    return cJSON_CreateIntArray(pair, 2);
}

static cJSON *tile(MaskPane *m, const ExNames *names) {
    static const char *const words[] = {
        [MASK_SKIPPED] = "skipped", [MASK_PARTIAL] = "partial", [MASK_FULL] = "full"};
    static const Truth truths[] = {[MASK_SKIPPED] = NONE, [MASK_PARTIAL] = SOME, [MASK_FULL] = ALL};
    const MaskMap *map = &m->map;
    MaskClass is = (MaskClass)map->cls[(int64_t)m->row * map->columns + m->column];
    bool alone = decide(m, truths[is]);
    int q0 = m->row * map->tile_q, k0 = m->column * map->tile_k, inside = 0;
    for (int q = q0; q < q0 + map->tile_q && q < map->queries; q++)
        for (int k = k0; k < k0 + map->tile_k && k < map->keys; k++) inside += mask_at(map, q, k);
    cJSON *o =
        json_pair("row", cJSON_CreateNumber(m->row), "column", cJSON_CreateNumber(m->column));
    cJSON_AddStringToObject(o, "class", words[is]);
    cJSON_AddItemToObject(o, "queries", range(q0, map->tile_q, map->queries));
    cJSON_AddItemToObject(o, "keys", range(k0, map->tile_k, map->keys));
    cJSON_AddNumberToObject(o, "pairs", inside);
    cJSON_AddStringToObject(o, "text", sentence(m, names, truths[is], alone));
    cJSON *all = cJSON_AddArrayToObject(o, "terms");
    for (int i = 0; i < m->nterms; i++) {
        cJSON *term = json_pair("term", cJSON_CreateNumber(i), "some",
                                cJSON_CreateBool(m->term[i].truth != NONE));
        cJSON_AddBoolToObject(term, "all", m->term[i].truth == ALL);
        cJSON_AddBoolToObject(term, "decides", m->term[i].decides);
        cJSON_AddItemToArray(all, term);
    }
    return o;
}

// The clause of the document; its terms may stand in a module.
static Span clause_place(const Pane *p) {
    const AstItems *items = &p->source.module->ast->items;
    for (int i = 0; i < items->n; i++) {
        const AstItem *v = items->data[i];
        if (v->kind != AST_ATTENTION || !v->name.s || strcmp(v->name.s, p->variant->name)) continue;
        for (int k = 0; k < v->items.n; k++) {
            const AstItem *c = v->items.data[k];
            bool mask = c->kind == AST_CLAUSE && c->name.s && !strcmp(c->name.s, "mask");
            if (mask && c->body.result) return c->body.result->span;
        }
    }
    return (Span){0};
}

static cJSON *result(MaskPane *m) {
    const MaskMap *map = &m->map;
    ExNames names = row_names(m->p->row);
    cJSON *o = cJSON_CreateObject(), *formula, *counts;
    cJSON_AddStringToObject(o, "target", m->target.name);
    cJSON_AddNumberToObject(o, "queries", map->queries);
    cJSON_AddNumberToObject(o, "keys", map->keys);
    cJSON_AddItemToObject(o, "tile", sizes_of_tile(map->tile_q, map->tile_k));
    cJSON_AddNumberToObject(o, "rows", map->rows);
    cJSON_AddNumberToObject(o, "columns", map->columns);
    cJSON_AddItemToObject(o, "classes", classes(map));
    counts = cJSON_AddObjectToObject(o, "counts");
    cJSON_AddNumberToObject(counts, "skipped", (double)map->count[MASK_SKIPPED]);
    cJSON_AddNumberToObject(counts, "partial", (double)map->count[MASK_PARTIAL]);
    cJSON_AddNumberToObject(counts, "full", (double)map->count[MASK_FULL]);
    cJSON_AddNumberToObject(o, "inside", mask_inside(map));
    cJSON_AddItemToObject(o, "pairs", pairs(m));
    formula = cJSON_AddObjectToObject(o, "mask");
    pane_formula(m->p, formula, m->p->row->mask, &names);
    cJSON_AddItemToObject(formula, "place", pane_span(m->p, clause_place(m->p)));
    cJSON_AddItemToObject(o, "terms", terms(m, &names));
    cJSON_AddItemToObject(o, "drawn", pane_drawn(m->p, &m->b, m->read));
    if (json_get(m->p->params, "at")) cJSON_AddItemToObject(o, "at", tile(m, &names));
    return o;
}

cJSON *pane_mask(Service *s, const cJSON *params) {
    Pane p;
    MaskPane m = {.p = &p};
    cJSON *o = NULL;
    bool good = pane_open(&p, s, params, PANE_DERIVED) && pane_target(&p, &m.target);
    m.dtype = m.target.kind == KIND_HOST ? DT_F32 : DT_BF16;
    if (good && make_map(&m) && pane_int(&p, "at.row", 0, m.map.rows - 1, 0, &m.row) &&
        pane_int(&p, "at.column", 0, m.map.columns - 1, 0, &m.column)) {
        read_terms(&m);
        o = result(&m);
    }
    return pane_close(&p, o);
}
