// pane_kernel.c: `attn/kernel`: the tile program after every pass, and where in the source each line of it comes from.
#include "pane.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_TEXT = 1 << 18, MOST_PLACES = 12 }; // of a stage; of a line

typedef struct Stage {
    const Pass *pass;
    const char *text;
    bool cut;
    cJSON *lines;
} Stage;

typedef struct Kernel {
    Pane *p;
    Target target;
    Dtype dtype;
    VEC(Stage) stages;
    VEC(Span) places; // of all stages
    VEC(Span) line;   // of the line at hand
} Kernel;

// ---- where a line comes from

static bool same(Span a, Span b) {
    return a.file == b.file && a.start == b.start && a.end == b.end;
}

static void add_place(Kernel *k, Span span) {
    if (!span.file) return;
    for (int i = 0; i < k->line.n; i++)
        if (same(k->line.data[i], span)) return;
    VEC_PUSH(k->p->arena, &k->line, span);
}

// Names and numbers are shared by all formulas; what is made of them has a place of its own.
static void add_node(void *ctx, const Ex *e) {
    if (e->nargs) add_place(ctx, e->span);
}

static const Ex *add_expression(void *ctx, const Ex *e) {
    ex_visit(e, add_node, ctx);
    return e;
}

// A derived form has the place of its formula alone. What the formula is made of, as its lets, belongs to it.
static void add_formula(Kernel *k, const Ex *formula, Span at) {
    for (int i = 0, n = k->line.n; i < n; i++)
        if (same(k->line.data[i], at)) {
            ex_visit(formula, add_node, k);
            return;
        }
}

static void add_formulas(Kernel *k) {
    const RowProgram *row = k->p->row;
    for (int r = 0; r < row->reduces.n; r++) {
        const RowReduce *reduce = &row->reduces.data[r];
        add_formula(k, reduce->f, reduce->f->span.file ? reduce->f->span : reduce->span);
    }
    add_formula(k, row->weight, row->weight->span);
}

// Of a normalization in another file: also its call in the document.
static void add_calls(Kernel *k) {
    const RowProgram *row = k->p->row;
    for (int i = 0, n = k->line.n; i < n; i++)
        for (int r = 0; r < row->reduces.n; r++) {
            const RowReduce *reduce = &row->reduces.data[r];
            if (k->line.data[i].file != 1 && reduce->span.file == k->line.data[i].file &&
                reduce->call.file == 1)
                add_place(k, reduce->call);
        }
}

static int by_length(const void *x, const void *y) {
    const Span *a = x, *b = y;
    uint32_t m = a->end - a->start, n = b->end - b->start;
    if (m != n) return m < n ? -1 : 1;
    return a->start < b->start ? -1 : a->start > b->start;
}

static int place_number(Kernel *k, Span span) {
    int i = 0;
    while (i < k->places.n && !same(k->places.data[i], span)) i++;
    if (i == k->places.n) VEC_PUSH(k->p->arena, &k->places, span);
    return i;
}

static cJSON *line(Kernel *k, const TileLine *l) {
    k->line.n = 0;
    bool several =
        l->op && l->op->kind == TILE_MAP && l->op->outs.n > 1; // they have lines of their own
    if (l->e) add_expression(k, l->e);
    if (l->op && !several) tile_map_exprs((TileOp *)l->op, add_expression, k);
    if (l->op) add_place(k, l->op->span);
    add_formulas(k);
    add_calls(k);
    if (k->line.n) qsort(k->line.data, (size_t)k->line.n, sizeof *k->line.data, by_length);
    int numbers[MOST_PLACES], n = k->line.n < MOST_PLACES ? k->line.n : MOST_PLACES;
    for (int i = 0; i < n; i++) numbers[i] = place_number(k, k->line.data[i]);
    const char *op = l->op ? tile_kind_name(l->op->kind) : NULL;
    return json_pair("places", cJSON_CreateIntArray(numbers, n), "op",
                     op ? cJSON_CreateString(op) : cJSON_CreateNull());
}

// ---- stages

// The program changes under us: what is told of it is made now.
static void see(void *ctx, const Pass *pass, const TileProgram *program) {
    Kernel *k = ctx;
    TileLines lines = {0};
    Text t = text_new(k->p->arena);
    tile_print_lines(&t, program, MOST_TEXT, &lines);
    Stage stage = {.pass = pass, .text = t.s, .cut = t.n > MOST_TEXT, .lines = cJSON_CreateArray()};
    if (stage.cut) {
        while (t.n > MOST_TEXT || (t.n && t.s[t.n - 1] != '\n')) t.n--;
        t.s[t.n] = 0;
    }
    size_t at = 0;
    for (int i = 0; i < lines.n && at < t.n; i++) {
        cJSON_AddItemToArray(stage.lines, line(k, &lines.data[i]));
        at += strcspn(t.s + at, "\n") + 1;
    }
    VEC_PUSH(k->p->arena, &k->stages, stage);
}

static cJSON *result(Kernel *k) {
    cJSON *o = json_pair("variant", cJSON_CreateString(k->p->variant->name), "target",
                         cJSON_CreateString(k->target.name));
    cJSON_AddStringToObject(o, "dtype", dtype_name(k->dtype));
    cJSON *places = cJSON_AddArrayToObject(o, "places"),
          *stages = cJSON_AddArrayToObject(o, "stages");
    for (int i = 0; i < k->places.n; i++)
        cJSON_AddItemToArray(places, pane_span(k->p, k->places.data[i]));
    for (int i = 0; i < k->stages.n; i++) {
        const Stage *s = &k->stages.data[i];
        cJSON *one = json_pair("name", cJSON_CreateString(s->pass->name), "title",
                               cJSON_CreateString(s->pass->what));
        cJSON_AddBoolToObject(one, "changed", !i || strcmp(s->text, s[-1].text) != 0);
        cJSON_AddBoolToObject(one, "cut", s->cut);
        cJSON_AddStringToObject(one, "text", s->text);
        cJSON_AddItemToObject(one, "lines", s->lines);
        cJSON_AddItemToArray(stages, one);
    }
    k->stages.n = 0;
    return o;
}

// ---- the request

static bool read_request(Kernel *k, PassOptions *o) {
    Pane *p = k->p;
    static const Dtype dtypes[] = {DT_F32, DT_F16, DT_BF16};
    const char *dtype = json_string(p->params, "dtype"), *shape = json_string(p->params, "shape");
    if (!pane_target(p, &k->target)) return false;
    bool known = !dtype;
    k->dtype = k->target.kind == KIND_HOST ? DT_F32 : DT_BF16;
    for (int i = 0; i < 3 && dtype; i++)
        if (!strcmp(dtype_name(dtypes[i]), dtype)) k->dtype = dtypes[i], known = true;
    if (!known) return pane_wrong(p, "'dtype' is f32, f16 or bf16");
    *o = (PassOptions){.target = k->target, .dtype = k->dtype, .split = true, .shape = SHAPE_LONG};
    if (shape && !shape_find(shape, &o->shape))
        return pane_wrong(p, "there is no 'shape' %.50s", shape);
    const char *asked = json_string(p->params, "schedule");
    const char *wrong = asked ? knobs_parse(p->arena, asked, &o->schedule) : NULL;
    return !wrong || pane_wrong(p, "'schedule': %s", wrong);
}

cJSON *pane_kernel(Service *s, const cJSON *params) {
    Pane p;
    Kernel k = {.p = &p};
    PassOptions o;
    cJSON *r = NULL;
    if (pane_open(&p, s, params, PANE_DERIVED) && read_request(&k, &o)) {
        Stream *stream = p.stream;
        bool narrows = k.dtype == DT_F16 && k.target.kind != KIND_HOST;
        p.row->bf16 = k.dtype == DT_BF16;
        if (narrows || p.row->bf16)
            stream = (narrows ? pass_derive_half : pass_derive)(p.arena, p.row, NULL);
        o.seen = see;
        o.seen_ctx = &k;
        r = pass_pipeline(p.arena, stream, &o, &p.source.diags) ? result(&k) : pane_refused(&p);
    }
    for (int i = 0; i < k.stages.n; i++) cJSON_Delete(k.stages.data[i].lines); // of a failure
    return pane_close(&p, r);
}
