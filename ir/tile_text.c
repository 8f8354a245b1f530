// tile_text.c: a tile program as text. The form is told in docs/tile-ir.md; tile_parse reads it
// back.
//
// In: a program, at any level, valid or not (a pass that went wrong must be printable). Out: text
// without addresses or hash order. Holds afterwards: tile_print of what tile_parse makes of it is
// the same text.
#include "ir/expr_ops.h"
#include "ir/tile.h"
#include "ir/tile_let.h"

#include <string.h>

// ---- names

typedef struct Names {
    Arena *arena;
    const TileProgram *p;
    const TileKernel *k;
    const TileOp *op;
    const char *pos[TILE_MAX_AXES], *tile[TILE_MAX_AXES], *param[TILE_MAX_OPERANDS];
} Names;

// A name that the text form gives a meaning of its own ("t", "mask", "size3"): a user's input of
// that name is written "@t".
static bool reserved(const char *name) {
    static const char *const words[] = {"true", "false", "inf", "nan"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (!strcmp(name, words[i])) return true;
    for (int s = 0; s < SYM_COUNT; s++) {
        size_t n = strlen(ex_syms[s].name);
        if (strncmp(name, ex_syms[s].name, n)) continue;
        size_t digits = strspn(name + n, "0123456789");
        if (!name[n + digits] && (digits > 0 ? ex_syms[s].indexed > 0 : ex_syms[s].indexed != 1))
            return true;
    }
    return false;
}

static const char *user_name(const Names *n, const char *name) {
    return reserved(name) ? arena_printf(n->arena, "@%s", name) : name;
}

static const TileTensor *input_tensor(const TileProgram *p, int input) {
    if (input < 0 || input >= p->inputs.n) return NULL;
    int t = p->inputs.data[input];
    return t >= 0 && t < p->tensors.n ? &p->tensors.data[t] : NULL;
}

static const char *name_of(void *ctx, ExSym sym, int i) {
    const Names *n = ctx;
    const TileTensor *t;
    switch ((int)sym) {
    case SYM_SIZE:
        return i >= 0 && i < n->p->sizes.n ? user_name(n, n->p->sizes.data[i].name) : NULL;
    case SYM_SCALAR: return (t = input_tensor(n->p, i)) ? user_name(n, t->name) : NULL;
    case SYM_POS: return n->k && i >= 0 && i < n->k->naxes ? n->pos[i] : NULL;
    case SYM_TILE: return n->k && i >= 0 && i < n->k->naxes ? n->tile[i] : NULL;
    case SYM_PARAM: return i >= 0 && i < TILE_MAX_OPERANDS ? n->param[i] : NULL;
    default: return NULL;
    }
}

static const char *input_of(void *ctx, int input) {
    const Names *n = ctx;
    const TileTensor *t = input_tensor(n->p, input);
    return t ? t->name : NULL;
}

static int find_input(void *ctx, const char *name, ExType *type) {
    const Names *n = ctx;
    for (int i = 0; i < n->p->inputs.n; i++) {
        const TileTensor *t = input_tensor(n->p, i);
        if (!t || strcmp(t->name, name)) continue;
        *type = dtype_reads(t->dtype);
        return i;
    }
    return -1;
}

static bool found(ExSym s, int i, ExType t, ExSym *sym, int *index, ExType *type) {
    *sym = s;
    *index = i;
    *type = t;
    return true;
}

static bool find(void *ctx, const char *name, ExSym *sym, int *index, ExType *type) {
    const Names *n = ctx;
    for (int i = 0; n->k && i < n->k->naxes; i++) {
        if (!strcmp(name, n->pos[i])) return found(SYM_POS, i, EX_I32, sym, index, type);
        bool own = tile_root_axis(n->k, i) == i; // else its tile is that axis'
        if (own && !strcmp(name, n->tile[i])) return found(SYM_TILE, i, EX_I32, sym, index, type);
    }
    for (int i = 0; n->op && i < n->op->args.n && i < TILE_MAX_OPERANDS; i++)
        if (!strcmp(name, n->param[i]))
            return found(SYM_PARAM, i, dtype_reads(n->op->args.data[i]->dtype), sym, index, type);
    if (name[0] == '@')
        name++;
    else if (reserved(name))
        return false;
    for (int i = 0; i < n->p->sizes.n; i++)
        if (!strcmp(name, n->p->sizes.data[i].name))
            return found(SYM_SIZE, i, EX_I32, sym, index, type);
    ExType reads;
    int i = find_input(ctx, name, &reads);
    if (i < 0 || input_tensor(n->p, i)->rank) return false;
    return found(SYM_SCALAR, i, reads, sym, index, type);
}

ExNames tile_names(Arena *a, const TileProgram *p, const TileKernel *k, const TileOp *op) {
    Names *n = ARENA_NEW(a, Names);
    *n = (Names){.arena = a, .p = p, .k = k, .op = op};
    for (int i = 0; k && i < k->naxes; i++) {
        n->pos[i] = arena_printf(a, "%s.pos", k->axes[i].name);
        n->tile[i] = arena_printf(a, "%s.tile", k->axes[i].name);
    }
    for (int i = 0; op && i < op->args.n && i < TILE_MAX_OPERANDS; i++)
        n->param[i] = arena_printf(a, "%%%s", op->args.data[i]->name);
    return (ExNames){name_of, input_of, find, find_input, n};
}

// ---- printing

typedef struct Out {
    Text *text;
    Arena *scratch;
    const TileProgram *p;
    const TileKernel *k;
    TileLets *lets; // of the kernel's body; NULL elsewhere
    ExNames names;  // of the program, then of the kernel, then of the current map
    int depth;
    size_t most;      // bytes, beyond which operations are left out; 0: all are there
    TileLines *lines; // NULL: nobody asks
    size_t counted;   // of the text: so far its lines are in `lines`
} Out;

// The line that begins here says this.
static void says(Out *o, const TileOp *op, const Ex *e) {
    TileLine none = {NULL, NULL};
    if (!o->lines) return;
    for (; o->counted < o->text->n; o->counted++)
        if (o->text->s[o->counted] == '\n') VEC_PUSH(o->text->arena, o->lines, none);
    if (o->lines->n) o->lines->data[o->lines->n - 1] = (TileLine){op, e};
}

static void ex(Out *o, const char *before, const Ex *e) {
    const Ex *written = o->lets ? tile_lets_text(o->lets, e) : e;
    text_puts(o->text, before);
    if (o->most)
        ex_print_most(o->text, written, &o->names, (int)o->most / 16);
    else
        ex_print(o->text, written, &o->names);
}

static void indent(Out *o) { text_printf(o->text, "%*s", 2 * o->depth, ""); }

static const char *axis_name(const Out *o, int axis) {
    return axis >= 0 && axis < o->k->naxes ? o->k->axes[axis].name : "?";
}

static void axes(Out *o, const uint8_t *axis, int n) {
    text_puts(o->text, "[");
    for (int i = 0; i < n; i++) text_printf(o->text, "%s%s", i ? ", " : "", axis_name(o, axis[i]));
    text_puts(o->text, "]");
}

static const char *home_name(TileHome h) {
    static const char *const names[] = {[HOME_ANY] = "any",
                                        [HOME_FRAGMENT] = "fragment",
                                        [HOME_SHARED] = "shared",
                                        [HOME_SCRATCH] = "scratch",
                                        [HOME_STRIP] = "strip"};
    return names[h];
}

// "%kb: bf16[N, D] in shared stages 2"
static void define(Out *o, const TileValue *v) {
    text_printf(o->text, "%%%s: %s", v->name, dtype_name(v->dtype));
    axes(o, v->axis, v->rank);
    if (v->layout >= 0)
        text_printf(o->text, " @%s",
                    v->layout < o->k->layouts.n ? o->k->layouts.data[v->layout].name : "?");
    else if (v->home != HOME_ANY)
        text_printf(o->text, " in %s", home_name(v->home));
    if (v->stages != 1) text_printf(o->text, " stages %d", v->stages);
    if (v->parts) text_puts(o->text, " parts");
    if (v->unguarded) text_puts(o->text, " unguarded");
}

static void use(Out *o, const char *before, const TileValue *v) {
    text_printf(o->text, "%s%%%s", before, v->name);
}

static void uses(Out *o, const TileOp *op, int from) {
    for (int i = from; i < op->args.n; i++) use(o, i > from ? ", " : " ", op->args.data[i]);
}

// The tile that is at hand: what an axis' coordinate is when nothing else is written.
static bool own_tile(const TileKernel *k, const TileCoord *c) {
    if (c->axis < k->naxes && k->axes[c->axis].whole) return ex_is_i32(c->at, 0);
    return c->at->op == EX_SYM && c->at->sym == SYM_TILE &&
           c->at->index == tile_root_axis(k, c->axis);
}

static void when(Out *o, const TileOp *op) {
    if (op->when) ex(o, " when ", op->when);
}

// "k[b, h, N:, D: (t + 1)]"
static void columns(Out *o, const TileOp *op) {
    if (op->width) text_printf(o->text, " columns %d from %d", op->width, op->from_column);
}

static void print_access(Out *o, const TileOp *op) {
    bool known = op->tensor >= 0 && op->tensor < o->p->tensors.n;
    const TileTensor *t = known ? &o->p->tensors.data[op->tensor] : NULL;
    text_printf(o->text, " %s[", known ? t->name : "?");
    for (int i = 0; known && i < t->rank; i++) {
        const TileCoord *c = &op->coord[i];
        if (i) text_puts(o->text, ", ");
        if (c->axis < 0) {
            ex(o, op->each[i] ? "=> " : "", c->at);
            continue;
        }
        text_puts(o->text, axis_name(o, c->axis));
        if (op->each[i]) {
            if (c->tile) ex(o, ": ", c->tile);
            ex(o, " => ", c->at);
            continue;
        }
        text_puts(o->text, ":");
        if (!own_tile(o->k, c)) ex(o, " ", c->at);
    }
    text_puts(o->text, "]");
    columns(o, op);
}

// "rowmax over N of ", "prefix strict sum over T by 16 of "
static void out(Out *o, const TileResult *r) {
    static const char *const scans[] = {
        [SCAN_NONE] = "", [SCAN_PREFIX] = "prefix ", [SCAN_SUFFIX] = "suffix "};
    if (r->reduce != EX_CONST) {
        text_printf(o->text, "%s%s%s over %s", scans[r->scan], r->strict ? "strict " : "",
                    ex_op_name(r->reduce) + (r->scan ? strlen("row") : 0),
                    axis_name(o, r->reduce_axis));
        if (r->by) text_printf(o->text, " by %d", r->by);
        text_puts(o->text, " of ");
    }
    ex(o, "", r->body);
}

static void print_marks(Out *o, const TileOp *op) {
    for (int m = 0; m < TILE_MARK_COUNT; m++)
        if (tile_is_marked(op, (TileMark)m))
            text_printf(o->text, " %s", tile_mark_name((TileMark)m));
}

static void print_map(Out *o, const TileOp *op) {
    text_puts(o->text, " ");
    axes(o, op->axes, op->naxes);
    text_puts(o->text, " (");
    for (int i = 0; i < op->args.n; i++) use(o, i ? ", " : "", op->args.data[i]);
    text_puts(o->text, ") {");
    ExNames outer = o->names;
    o->names = tile_names(o->scratch, o->p, o->k, op);
    if (op->outs.n == 1) {
        text_puts(o->text, " ");
        out(o, &op->outs.data[0]);
        text_puts(o->text, " }");
    } else {
        o->depth++;
        for (int i = 0; i < op->outs.n; i++) {
            text_puts(o->text, "\n");
            says(o, NULL, op->outs.data[i].body);
            indent(o);
            out(o, &op->outs.data[i]);
            text_puts(o->text, i + 1 < op->outs.n ? ";" : "\n");
        }
        o->depth--;
        indent(o);
        text_puts(o->text, "}");
    }
    print_marks(o, op);
    if (op->waits) text_printf(o->text, " waiting %d", op->pending);
    if (op->waits && op->after >= 0) text_printf(o->text, " after %d", op->after);
    o->names = outer;
}

static void block(Out *o, const TileBlock *b);

static void carry(Out *o, const TileOp *op) {
    for (int i = 0; i < op->carried.n; i++) {
        text_puts(o->text, i ? ", " : " carry (");
        define(o, op->carried.data[i]);
        if (i < op->args.n) use(o, " = ", op->args.data[i]);
    }
    text_puts(o->text, op->carried.n ? ") " : " ");
    block(o, &op->body);
}

static const char *class_name(TileClass c) {
    static const char *const classes[] = {
        [CLASS_ANY] = "", [CLASS_PARTIAL] = " class partial", [CLASS_FULL] = " class full"};
    return classes[c];
}

static void print_loop(Out *o, const TileOp *op) {
    text_printf(o->text, " %s", axis_name(o, op->axis));
    ex(o, " from ", op->from);
    ex(o, " to ", op->to);
    bool plain = op->index->op == EX_SYM && op->index->sym == SYM_STEP;
    if (!plain) ex(o, " at ", op->index);
    if (op->where) ex(o, " where ", op->where);
    text_puts(o->text, class_name(op->tiles));
    carry(o, op);
}

static void print_first(Out *o, const TileOp *op) {
    if (!op->first) return;
    text_printf(o->text, " first %d", op->first);
    if (op->kind == TILE_MMA) text_printf(o->text, " of %s", axis_name(o, op->axis));
    when(o, op);
}

static void print_at(Out *o, const TileOp *op) {
    text_printf(o->text, " %s:", axis_name(o, op->axis));
    ex(o, " ", op->index);
    text_puts(o->text, class_name(op->tiles));
    print_first(o, op);
    text_puts(o->text, " ");
    block(o, &op->body);
}

// "%l1, %p1 = redo %x over 90, %a over 30 else (%l, %p) { .. yield %l2, %p2 }"
static void print_redo(Out *o, const TileOp *op) {
    int stand = op->args.n - (op->shift_bits > 0);
    if (op->args.n) use(o, " ", op->args.data[0]);
    text_printf(o->text, " over %d", op->bits);
    if (op->shift_bits) {
        use(o, ", ", op->args.data[stand]);
        text_printf(o->text, " over %d", op->shift_bits);
    }
    text_puts(o->text, " else (");
    for (int i = 1; i < stand; i++) use(o, i > 1 ? ", " : "", op->args.data[i]);
    text_puts(o->text, ")");
    print_marks(o, op);
    text_puts(o->text, " ");
    block(o, &op->body);
}

static void print_role(Out *o, const TileOp *op) {
    text_printf(o->text, " %s", op->role ? op->role : "?");
    if (op->warpgroups != 1) text_printf(o->text, " warpgroups %d", op->warpgroups);
    if (op->registers) text_printf(o->text, " registers %d", op->registers);
    text_puts(o->text, " ");
    block(o, &op->body);
}

static void print_store(Out *o, const TileOp *op) {
    print_access(o, op);
    text_puts(o->text, op->add ? " +=" : " =");
    if (op->args.n) use(o, " ", op->args.data[0]);
    if (op->args.n > 1) use(o, " through ", op->args.data[1]);
    print_marks(o, op);
    when(o, op);
}

// "fill %kp = k[b, h, N:, D:] when valid"
static void print_fill(Out *o, const TileOp *op) {
    uses(o, op, 0);
    text_puts(o->text, " =");
    print_access(o, op);
    print_marks(o, op);
    when(o, op);
}

// "give %dsp = %ds"
static void print_give(Out *o, const TileOp *op) {
    use(o, " ", op->args.data[0]);
    use(o, " = ", op->args.data[1]);
}

// "append %x when %c after %n -> list[b, (2 + %n)]"
static void print_append(Out *o, const TileOp *op) {
    static const char *const words[] = {" ", " when ", " after "};
    for (int i = 0; i < op->args.n; i++) use(o, i < 3 ? words[i] : " ", op->args.data[i]);
    text_puts(o->text, " ->");
    ExNames outer = o->names;
    o->names = tile_names(o->scratch, o->p, o->k, op);
    print_access(o, op);
    o->names = outer;
}

static void buffer(Out *o, const TileOp *op) {
    if (op->args.n) use(o, " ", op->args.data[0]);
    ex(o, "[", op->stage);
    text_puts(o->text, "]");
}

// "@consumer 0:1 / 0:5 turn lands 9 after 40 half 16"
static void place(Out *o, const TileOp *op) {
    if (op->begins) text_puts(o->text, " begins");
    if (!op->role || op->kind == TILE_ROLE) return;
    text_printf(o->text, " @%s %d:%d", op->role, op->place.stage, op->place.order);
    if (op->peels) text_printf(o->text, " / %d:%d", op->peeled.stage, op->peeled.order);
    if (op->turn) text_puts(o->text, op->holds ? " turn holds" : " turn");
    if (!op->lands) return;
    text_printf(o->text, " lands %d", op->lands);
    if (op->after >= 0) text_printf(o->text, " after %d", op->after);
}

static void print_mma(Out *o, const TileOp *op) {
    uses(o, op, 0);
    print_first(o, op);
}

static void print_copy(Out *o, const TileOp *op) {
    print_access(o, op);
    text_puts(o->text, op->inside ? " inside ->" : " ->");
    buffer(o, op);
    when(o, op);
}

static void print_held(Out *o, const TileOp *op) {
    uses(o, op, 0);
    print_marks(o, op);
    when(o, op);
}

static void print_bound(Out *o, const TileOp *op) {
    uses(o, op, 0);
    text_printf(o->text, " over %d", op->bits);
}

static void print_values(Out *o, const TileOp *op) { uses(o, op, 0); }
static void print_some(Out *o, const TileOp *op) {
    uses(o, op, 0);
    columns(o, op);
}

static void print_view(Out *o, const TileOp *op) { op->stage ? buffer(o, op) : uses(o, op, 0); }
static void print_pending(Out *o, const TileOp *op) { text_printf(o->text, " %d", op->pending); }
static void print_tiles(Out *o, const TileOp *op) { carry(o, op); }
static void print_turn(Out *o, const TileOp *op) {
    text_puts(o->text, op->pass ? " pass" : " take");
}
static void print_nothing(Out *o, const TileOp *op) { (void)o, (void)op; }

static void (*const print_kind[TILE_KIND_COUNT])(Out *o, const TileOp *op) = {
#define TILE_OP(e, name, results, least, most, flags, homes, text, rule) print_##text,
#include "ir/tile_ops.def"
#undef TILE_OP
};

static void operation(Out *o, const TileOp *op) {
    if (o->most && o->text->n > o->most) return;
    says(o, op, NULL);
    indent(o);
    for (int i = 0; i < op->results.n; i++) {
        if (i) text_puts(o->text, ", ");
        define(o, op->results.data[i]);
    }
    text_printf(o->text, "%s%s%s%s", op->results.n ? " = " : "", op->behind ? "behind " : "",
                tile_kind_name(op->kind), op->async ? " async" : "");
    if (op->tf32) text_puts(o->text, " tf32");
    print_kind[op->kind](o, op);
    place(o, op);
    text_puts(o->text, "\n");
}

static void block(Out *o, const TileBlock *b) {
    text_puts(o->text, "{\n");
    o->depth++;
    for (const TileOp *op = b->first; op; op = op->next) operation(o, op);
    o->depth--;
    indent(o);
    text_puts(o->text, "}");
}

static void axis(Out *o, const TileAxis *a) {
    text_printf(o->text, "  axis %s:", a->name);
    ex(o, " ", a->size);
    if (a->whole) text_puts(o->text, " whole");
    if (a->beside >= 0) text_printf(o->text, " beside %s", axis_name(o, a->beside));
    if (a->extent && a->beside < 0) text_printf(o->text, " tile %d", a->extent);
    if (a->wide) text_puts(o->text, " wide");
    text_puts(o->text, "\n");
}

static void layouts(Out *o, const TileKernel *k) {
    const char *names[TILE_MAX_AXES];
    for (int i = 0; i < k->naxes; i++) names[i] = k->axes[i].name;
    for (int i = 0; i < k->layouts.n; i++) {
        text_printf(o->text, "  layout %s: ", k->layouts.data[i].name);
        layout_print(o->text, &k->layouts.data[i].is, names, k->naxes);
        text_puts(o->text, "\n");
    }
}

static void grid(Out *o, const TileGrid *g) {
    text_printf(o->text,
                "  grid %s:", g->sym == SYM_TILE ? axis_name(o, g->axis) : ex_syms[g->sym].name);
    ex(o, " ", g->count);
    if (g->from) ex(o, " from ", g->from);
    if (g->shared) ex(o, " shared ", g->shared);
    if (g->packed) ex(o, " packed ", g->packed);
    if (g->batch) {
        ex(o, " of ", g->batch);
        ex(o, " together ", g->together);
        ex(o, " ends ", g->ends);
    }
    if (g->slow) text_puts(o->text, " slow");
    text_puts(o->text, g->reversed ? " reversed\n" : "\n");
}

static void kernel(Out *o, const TileKernel *k) {
    o->k = k;
    o->names = tile_names(o->scratch, o->p, k, NULL);
    text_printf(o->text, "\nkernel %s", k->name);
    if (k->purpose) text_printf(o->text, " purpose %s", tile_purpose_name(k->purpose));
    text_puts(o->text, "\n");
    for (int i = 0; i < k->naxes; i++) axis(o, &k->axes[i]);
    for (int i = 0; i < k->ngrid; i++) grid(o, &k->grid[i]);
    layouts(o, k);
    says(o, NULL, k->mask);
    ex(o, "  mask ", k->mask);
    text_puts(o->text, "\n");
    if (k->where) ex(o, "  where ", k->where), text_puts(o->text, "\n");
    TileLets *lets = tile_lets(o->scratch, k);
    for (int i = 0; i < lets->defs.n; i++) {
        text_printf(o->text, "  let %s%d", ex_syms[SYM_LET].name, i);
        ex(o, " = ", lets->defs.data[i]);
        text_puts(o->text, "\n");
    }
    const TileSchedule *s = &k->schedule;
    static const char *const persists[] = {
        [PERSIST_NONE] = "", [PERSIST_STATIC] = "static", [PERSIST_DYNAMIC] = "dynamic"};
    if (s->warps || s->min_blocks || s->lane_axis >= 0 || s->persist || s->section || s->cluster ||
        s->matrix_rows || s->crowded || s->beside || s->finish || s->next || s->knobs.said) {
        text_puts(o->text, "  schedule");
        if (s->lane_axis >= 0) text_printf(o->text, " lanes %s", axis_name(o, s->lane_axis));
        if (s->warps) text_printf(o->text, " warps %d", s->warps);
        if (s->min_blocks) text_printf(o->text, " min_blocks %d", s->min_blocks);
        if (s->matrix_rows) text_printf(o->text, " matrix_rows %d", s->matrix_rows);
        if (s->crowded) text_puts(o->text, " crowded");
        if (s->persist) text_printf(o->text, " persistent %s", persists[s->persist]);
        if (s->section) ex(o, " section ", s->section);
        if (s->last) ex(o, " last ", s->last);
        if (s->cluster) text_printf(o->text, " cluster %d", s->cluster);
        if (s->cluster_rows) ex(o, " rows ", s->cluster_rows);
        if (s->beside) ex(o, " beside ", s->beside);
        if (s->finish) text_printf(o->text, " finish %s", o->p->tensors.data[s->finish - 1].name);
        if (s->next) text_printf(o->text, " next %d", s->next);
        if (s->knobs.said) text_printf(o->text, " knobs %s", knobs_text(o->scratch, &s->knobs));
        text_puts(o->text, "\n");
    }
    o->lets = lets;
    text_puts(o->text, "  ");
    o->depth = 1;
    block(o, &k->body);
    text_puts(o->text, "\n");
    o->lets = NULL;
    o->k = NULL;
}

static void split(Out *o, const TileSplit *s) {
    const int given[] = {s->few, s->longest, s->wanted, s->parts, s->share, s->whole},
              batch[] = {s->few, s->keys};
    const int *sizes = s->keys ? batch : given;
    for (int i = 0; i < (s->keys ? 2 : 6) && sizes[i]; i++)
        text_printf(o->text,
                    i == 1 ? ", %s"
                    : i    ? " %s"
                           : "split %s",
                    o->p->sizes.data[sizes[i]].name);
    if (s->segment) text_printf(o->text, "split %s", o->p->sizes.data[s->segment].name);
    if (s->few || s->segment) text_puts(o->text, "\n");
}

static void tensor(Out *o, const TileTensor *t) {
    const TensorTraits *is = tensor_traits(t->role);
    text_printf(o->text, "tensor %s: %s[", t->name, dtype_name(t->dtype));
    for (int i = 0; i < t->rank; i++) ex(o, i ? ", " : "", t->extent[i]);
    text_printf(o->text, "] %s", is->name);
    if (is->indexed) text_printf(o->text, " %d", t->index);
    if (t->blocked) text_puts(o->text, " blocked");
    if (t->exact) text_puts(o->text, " exact");
    if (t->bare_q) text_puts(o->text, " bare_q");
    text_puts(o->text, t->rows ? " rows\n" : "\n");
}

static void plan(Out *o, const TilePlan *plan) {
    text_puts(o->text, "plan");
    for (int i = 0; i < plan->kernels.n; i++) {
        int k = plan->kernels.data[i];
        text_printf(o->text, "%s %s", i ? "," : "",
                    k >= 0 && k < o->p->kernels.n ? o->p->kernels.data[k]->name : "?");
    }
    if (plan->when) ex(o, " when ", plan->when);
    text_puts(o->text, "\n");
}

// Those that all sequences have in common come first: others are made of them.
static void own_sizes(Out *o, const TileProgram *p, bool common) {
    for (int i = 0; i < p->sizes.n; i++) {
        const TileSize *z = &p->sizes.data[i];
        if (!z->own || tile_is_common(p, i) != common) continue;
        text_printf(o->text, "own %s", z->name);
        if (z->over) text_printf(o->text, " = %s", ex_ops[z->over].name);
        if (z->over) ex(o, " of the first ", z->among);
        ex(o, z->over ? " of " : " = ", z->def);
        text_puts(o->text, "\n");
    }
}

void tile_print_lines(Text *text, const TileProgram *p, size_t most, TileLines *lines) {
    Out o = {.text = text,
             .scratch = arena_new(),
             .p = p,
             .most = most,
             .lines = lines,
             .counted = text->n};
    TileLine none = {NULL, NULL};
    if (lines) VEC_PUSH(text->arena, lines, none);
    o.names = tile_names(o.scratch, p, NULL, NULL);
    text_printf(text, "program %s %s%s", p->name, p->recurrence ? "recurrence " : "",
                p->scheduled ? "scheduled" : "algorithm");
    if (p->phase) text_printf(text, " phase %s", tile_phase_name(p->phase));
    text_printf(text, " target %s dtype %s dims D=%d Dv=%d", target_get(p->target)->name,
                dtype_name(p->dtype), p->D, p->Dv);
    if (p->batch) text_printf(text, " %s", batch_name(p->batch));
    if (p->page) text_printf(text, " %d", p->page);
    text_puts(text, "\n");
    for (int i = SIZE_FREE; i < p->sizes.n; i++) {
        if (p->sizes.data[i].own) continue;
        text_printf(text, "size %s", p->sizes.data[i].name);
        if (p->sizes.data[i].def) ex(&o, " = ", p->sizes.data[i].def);
        text_puts(text, "\n");
    }
    split(&o, &p->split);
    for (int i = 0; i < p->tensors.n; i++) tensor(&o, &p->tensors.data[i]);
    own_sizes(&o, p, true);
    own_sizes(&o, p, false);
    for (int i = 0; i < p->plans.n; i++) plan(&o, &p->plans.data[i]);
    for (int i = 0; i < p->kernels.n; i++) kernel(&o, p->kernels.data[i]);
    says(&o, NULL, NULL);
    if (lines) lines->n--; // behind the last newline
    arena_free(o.scratch);
}

void tile_print(Text *text, const TileProgram *p) { tile_print_lines(text, p, 0, NULL); }
