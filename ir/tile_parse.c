// tile_parse.c: the text form read back.
//
// In: any bytes. Out: the program that they say, or NULL with the first thing that is wrong in
// diags. Holds afterwards: a program that can be printed and verified, and prints as what was read;
// it need not be valid (tile_verify tells).
//
// Recursive descent over characters: a statement's first word says what it is, expressions are
// ex_parse's. Every count has a limit, so that no text makes it hang or need much more memory than
// itself.
#include "ir/expr_ops.h"
#include "ir/tile.h"
#include "ir/tile_let.h"

#include <ctype.h>
#include <stdarg.h>
#include <string.h>

enum {
    MAX_TEXT = 1 << 22,
    MAX_NEST = 64, // loops in loops
    MAX_SIZES = 256,
    MAX_TENSORS = 256,
    MAX_KERNELS = 64,
    MAX_PLANS = 64,
    MAX_LAYOUTS = 32,     // of a kernel
    MAX_VALUES = 1 << 14, // of a kernel
    MAX_OPS = 1 << 16,    // of a program
    MAX_INT = 1 << 30,
};

typedef struct Named { // the kernel's values by name
    TileValue *value;
    uint32_t hash;
} Named;

typedef struct Parse {
    Arena *arena, *scratch;
    Diags *diags;
    uint16_t file;
    const char *text, *s, *end; // without comments; ends with 0
    TileProgram *p;
    TileKernel *k;
    ExNames names;        // of the program, the kernel, or the current map
    Named *table;         // open addressing, twice MAX_VALUES
    VEC(const Ex *) lets; // the kernel's names for expressions
    int nest, ops;
    bool failed;
} Parse;

// ---- characters

static Span span_from(const Parse *P, const char *start) {
    return (Span){P->file, (uint32_t)(start - P->text), (uint32_t)(P->s - P->text)};
}

static bool __attribute__((format(printf, 2, 3))) fail(Parse *P, const char *fmt, ...) {
    if (P->failed) return false;
    P->failed = true;
    va_list ap;
    va_start(ap, fmt);
    Text t = text_new(P->scratch);
    text_vprintf(&t, fmt, ap);
    va_end(ap);
    Span at = {P->file, (uint32_t)(P->s - P->text), (uint32_t)(P->s - P->text) + 1};
    diag_error(P->diags, at, "%s", t.s);
    return false;
}

static void skip(Parse *P) {
    while (*P->s == ' ' || *P->s == '\t' || *P->s == '\n') P->s++;
}

static bool word_char(char c) { return isalnum((unsigned char)c) || c == '_'; }

// Takes `text` where it stands next, a word only as a whole.
static bool take(Parse *P, const char *text) {
    skip(P);
    size_t n = strlen(text);
    if (strncmp(P->s, text, n)) return false;
    if (word_char(text[n - 1]) && word_char(P->s[n])) return false;
    P->s += n;
    return true;
}

static bool expect(Parse *P, const char *text) {
    return take(P, text) || fail(P, "expected '%s'", text);
}

static const char *take_word(Parse *P, const char *what) {
    skip(P);
    const char *start = P->s;
    if (!isalpha((unsigned char)*start) && *start != '_') return fail(P, "expected %s", what), NULL;
    while (word_char(*P->s)) P->s++;
    return arena_strndup(P->arena, start, (size_t)(P->s - start));
}

static bool take_int(Parse *P, int *out) {
    skip(P);
    int64_t v = 0;
    if (!isdigit((unsigned char)*P->s)) return fail(P, "expected a number");
    while (isdigit((unsigned char)*P->s)) {
        v = v * 10 + (*P->s++ - '0');
        if (v > MAX_INT) return fail(P, "the number is too large");
    }
    *out = (int)v;
    return true;
}

static const char *take_percent(Parse *P) {
    skip(P);
    const char *start = P->s + 1;
    if (*P->s != '%') return fail(P, "expected a value"), NULL;
    for (P->s++; word_char(*P->s) || *P->s == '.' || *P->s == '~';) P->s++;
    if (P->s == start) return fail(P, "a value without a name"), NULL;
    return arena_strndup(P->arena, start, (size_t)(P->s - start));
}

static void set_names(Parse *P) { P->names = tile_names(P->scratch, P->p, P->k, NULL); }

// An expression's name: what it stands for.
static const Ex *expand_let(void *ctx, ExPool *pool, const Ex *e) {
    Parse *P = ctx;
    (void)pool;
    if (e->op != EX_SYM || e->sym != SYM_LET) return e;
    bool known = e->index < P->lets.n && P->lets.data[e->index]->type == e->type;
    if (!known) fail(P, "no expression e%d is known", e->index);
    return known ? P->lets.data[e->index] : e;
}

static const Ex *expr(Parse *P) {
    if (P->failed) return NULL;
    const char *error = NULL;
    skip(P);
    const Ex *e = ex_parse(P->p->pool, &P->s, &P->names, &error);
    if (!e) return fail(P, "%s", error ? error : "no expression"), NULL;
    if (ex_uses(e, SYM_LET, -1)) e = ex_map(P->p->pool, e, expand_let, P);
    return P->failed ? NULL : e;
}

static const Ex *typed_expr(Parse *P, ExType type) {
    const Ex *e = expr(P);
    if (!e || e->type == type) return e;
    fail(P, "the expression is %s, not %s", ex_type_name(e->type), ex_type_name(type));
    return NULL;
}

static bool take_dtype(Parse *P, Dtype *out) {
    for (int t = 0; t < DT_COUNT; t++)
        if (take(P, dtype_name((Dtype)t))) {
            *out = (Dtype)t;
            return true;
        }
    return fail(P, "expected an element type");
}

// ---- values

static Named *slot_of(Parse *P, const char *name) {
    uint32_t h = 2166136261u, mask = 2 * MAX_VALUES - 1;
    for (const char *s = name; *s; s++) h = (h ^ (unsigned char)*s) * 16777619u;
    uint32_t i = h & mask;
    while (P->table[i].value && (P->table[i].hash != h || strcmp(P->table[i].value->name, name)))
        i = (i + 1) & mask;
    P->table[i].hash = h;
    return &P->table[i];
}

static TileValue *take_value(Parse *P) {
    const char *name = take_percent(P);
    if (!name) return NULL;
    TileValue *v = slot_of(P, name)->value;
    if (!v) fail(P, "no value %%%s is known", name);
    return v;
}

static int find_axis(const TileKernel *k, const char *name) {
    for (int i = 0; i < k->naxes; i++)
        if (!strcmp(k->axes[i].name, name)) return i;
    return -1;
}

static bool take_axis(Parse *P, int *out) {
    const char *name = take_word(P, "an axis");
    if (!name) return false;
    *out = find_axis(P->k, name);
    return *out >= 0 || fail(P, "no axis %s is known", name);
}

// "[M, N]"
static bool take_axes(Parse *P, uint8_t *axes, int *n) {
    *n = 0;
    if (!expect(P, "[")) return false;
    if (take(P, "]")) return true;
    do {
        int axis;
        if (!take_axis(P, &axis)) return false;
        if (*n == TILE_MAX_RANK) return fail(P, "more than %d axes", TILE_MAX_RANK);
        if (*n && axis <= axes[*n - 1]) return fail(P, "axes stand in the kernel's order");
        axes[(*n)++] = (uint8_t)axis;
    } while (take(P, ","));
    return expect(P, "]");
}

static bool take_home(Parse *P, TileHome *out) {
    if (take(P, "fragment")) return *out = HOME_FRAGMENT, true;
    if (take(P, "shared")) return *out = HOME_SHARED, true;
    if (take(P, "scratch")) return *out = HOME_SCRATCH, true;
    if (take(P, "strip")) return *out = HOME_STRIP, true;
    return fail(P, "expected fragment, shared, scratch or strip");
}

static int find_layout(const TileKernel *k, const char *name) {
    for (int i = 0; i < k->layouts.n; i++)
        if (!strcmp(k->layouts.data[i].name, name)) return i;
    return -1;
}

static bool take_layout(Parse *P, TileValue *v) {
    const char *name = take_word(P, "a layout");
    if (!name) return false;
    v->home = HOME_FRAGMENT;
    v->layout = find_layout(P->k, name);
    return v->layout >= 0 || fail(P, "no layout %s is known", name);
}

// "%s: f32[M, N] in shared stages 2", "%s: f32[M, N] @n"
static TileValue *define(Parse *P, TileOp *def) {
    const char *name = take_percent(P);
    Dtype t = DT_F32;
    uint8_t axes[TILE_MAX_RANK];
    int n = 0;
    if (!name || !expect(P, ":") || !take_dtype(P, &t) || !take_axes(P, axes, &n)) return NULL;
    if (P->k->nvalues >= MAX_VALUES) return fail(P, "more than %d values", MAX_VALUES), NULL;
    Named *slot = slot_of(P, name);
    if (slot->value) return fail(P, "%%%s is there already", name), NULL;
    TileValue *v = tile_value(P->p, P->k, name, t, axes, n);
    v->def = def;
    slot->value = v;
    if (take(P, "@") && !take_layout(P, v)) return NULL;
    if (v->layout < 0 && take(P, "in") && !take_home(P, &v->home)) return NULL;
    if (take(P, "stages") && !take_int(P, &v->stages)) return NULL;
    v->parts = take(P, "parts");
    v->unguarded = take(P, "unguarded");
    return v;
}

// ---- operations

static bool take_arg(Parse *P, TileOp *op) {
    TileValue *v = take_value(P);
    if (v) tile_arg(P->p, op, v);
    return v != NULL;
}

static bool take_args(Parse *P, TileOp *op) {
    do
        if (!take_arg(P, op)) return false;
    while (take(P, ","));
    return true;
}

static bool take_tensor(Parse *P, int *out) {
    const char *name = take_word(P, "a tensor");
    if (!name) return false;
    for (*out = 0; *out < P->p->tensors.n; ++*out)
        if (!strcmp(P->p->tensors.data[*out].name, name)) return true;
    return fail(P, "no tensor %s is known", name);
}

// "N:", "N: (t + 1)", "N => (N.pos / 16)", "N: (t + 1) => (N.pos / 16)", "=> (M.pos - N.pos)" or an index.
static bool take_coord(Parse *P, TileCoord *c, bool *each) {
    skip(P);
    const char *start = P->s, *s = start;
    while (word_char(*s)) s++;
    c->axis = -1;
    if (take(P, "=>")) {
        *each = true;
    } else if (s > start && !strncmp(s + strspn(s, " "), "=>", 2)) {
        *each = true;
        if (!take_axis(P, &c->axis) || !expect(P, "=>")) return false;
    } else if (s > start && *s == ':') {
        if (!take_axis(P, &c->axis) || !expect(P, ":")) return false;
        skip(P);
        if (*P->s == ',' || *P->s == ']') {
            c->at = P->k->axes[c->axis].whole
                        ? ex_i32(P->p->pool, 0)
                        : ex_sym(P->p->pool, SYM_TILE, tile_root_axis(P->k, c->axis), EX_I32);
            return true;
        }
    }
    c->at = typed_expr(P, EX_I32);
    if (!c->at || *each || c->axis < 0 || !take(P, "=>")) return c->at != NULL;
    *each = true;
    c->tile = c->at;
    return (c->at = typed_expr(P, EX_I32)) != NULL;
}

static bool take_columns(Parse *P, TileOp *op) {
    if (!take(P, "columns")) return !P->failed;
    return take_int(P, &op->width) && expect(P, "from") && take_int(P, &op->from_column);
}

static bool take_access(Parse *P, TileOp *op) {
    if (!take_tensor(P, &op->tensor) || !expect(P, "[")) return false;
    int rank = P->p->tensors.data[op->tensor].rank;
    for (int d = 0; d < rank; d++)
        if ((d && !expect(P, ",")) || !take_coord(P, &op->coord[d], &op->each[d])) return false;
    return expect(P, "]") && take_columns(P, op);
}

static bool take_buffer(Parse *P, TileOp *op) {
    if (!take_arg(P, op) || !expect(P, "[")) return false;
    op->stage = typed_expr(P, EX_I32);
    return op->stage && expect(P, "]");
}

static bool take_when(Parse *P, TileOp *op) {
    return !take(P, "when") || (op->when = typed_expr(P, EX_BOOL)) != NULL;
}

static bool parse_copy(Parse *P, TileOp *op) {
    if (!take_access(P, op)) return false;
    op->inside = take(P, "inside");
    return expect(P, "->") && take_buffer(P, op) && take_when(P, op);
}

static void take_marks(Parse *P, TileOp *op) {
    for (int m = 0; m < TILE_MARK_COUNT; m++)
        if (take(P, tile_mark_name((TileMark)m))) op->marks |= 1u << m;
}

static bool parse_fill(Parse *P, TileOp *op) {
    if (!take_arg(P, op) || !expect(P, "=") || !take_access(P, op)) return false;
    take_marks(P, op);
    return take_when(P, op);
}

static bool parse_give(Parse *P, TileOp *op) {
    return take_arg(P, op) && expect(P, "=") && take_arg(P, op);
}

// A buffer's stage, or a pipe.
static bool parse_view(Parse *P, TileOp *op) {
    if (!take_arg(P, op)) return false;
    if (op->args.data[0]->def->kind == TILE_PIPE) return true;
    return expect(P, "[") && (op->stage = typed_expr(P, EX_I32)) && expect(P, "]");
}

static bool parse_turn(Parse *P, TileOp *op) {
    op->pass = take(P, "pass");
    return op->pass || expect(P, "take");
}

static bool parse_store(Parse *P, TileOp *op) {
    if (!take_access(P, op)) return false;
    op->add = take(P, "+=");
    if (!(op->add || expect(P, "=")) || !take_arg(P, op)) return false;
    if (take(P, "through") && !take_arg(P, op)) return false;
    take_marks(P, op);
    return take_when(P, op);
}

static bool parse_append(Parse *P, TileOp *op) {
    if (!take_arg(P, op) || !expect(P, "when") || !take_arg(P, op) || !expect(P, "after") ||
        !take_arg(P, op) || !expect(P, "->"))
        return false;
    P->names = tile_names(P->scratch, P->p, P->k, op);
    bool ok = take_access(P, op);
    set_names(P);
    return ok;
}

// "rowmax", or "max" of a scan, whose name is so much shorter.
static ExOp take_reduction(Parse *P, size_t shorter) {
    static const ExOp reductions[] = {EX_ROWMAX, EX_ROWMIN, EX_ROWSUM};
    for (size_t i = 0; i < sizeof reductions / sizeof *reductions; i++)
        if (take(P, ex_op_name(reductions[i]) + shorter)) return reductions[i];
    return EX_CONST;
}

// "rowmax over N of e", "prefix strict sum over T by 16 of e", or an expression alone
static bool parse_out(Parse *P, TileResult *r) {
    *r = (TileResult){.reduce = EX_CONST};
    r->scan = take(P, "prefix") ? SCAN_PREFIX : take(P, "suffix") ? SCAN_SUFFIX : SCAN_NONE;
    r->strict = r->scan && take(P, "strict");
    r->reduce = take_reduction(P, r->scan ? strlen("row") : 0);
    if (r->scan && r->reduce == EX_CONST) return fail(P, "expected sum, max or min");
    if (r->reduce != EX_CONST) {
        if (!expect(P, "over") || !take_axis(P, &r->reduce_axis)) return false;
        if (r->scan && take(P, "by") && !take_int(P, &r->by)) return false;
        if (!expect(P, "of")) return false;
    }
    r->body = expr(P);
    return r->body != NULL;
}

static bool parse_map(Parse *P, TileOp *op) {
    if (!take_axes(P, op->axes, &op->naxes) || !expect(P, "(")) return false;
    if (!take(P, ")") && (!take_args(P, op) || !expect(P, ")"))) return false;
    if (op->args.n > TILE_MAX_OPERANDS) return fail(P, "more than %d operands", TILE_MAX_OPERANDS);
    if (!expect(P, "{")) return false;
    P->names = tile_names(P->scratch, P->p, P->k, op);
    do {
        TileResult r;
        if (!parse_out(P, &r)) return false;
        VEC_PUSH(P->arena, &op->outs, r);
    } while (take(P, ";"));
    set_names(P);
    if (op->outs.n != op->results.n)
        return fail(P, "%d bodies for %d results", op->outs.n, op->results.n);
    if (!expect(P, "}")) return false;
    take_marks(P, op);
    op->waits = take(P, "waiting");
    op->after = -1;
    if (op->waits && !take_int(P, &op->pending)) return false;
    if (!op->waits || !take(P, "after")) return true;
    return take_int(P, &op->after);
}

static bool parse_block(Parse *P, TileBlock *b);

static bool parse_carry(Parse *P, TileOp *op) {
    if (!expect(P, "(")) return false;
    do {
        TileValue *v = define(P, op);
        if (!v || !expect(P, "=") || !take_arg(P, op)) return false;
        VEC_PUSH(P->arena, &op->carried, v);
    } while (take(P, ","));
    return expect(P, ")");
}

static bool parse_class(Parse *P, TileOp *op) {
    op->tiles = CLASS_FULL;
    if (take(P, "full")) return true;
    op->tiles = CLASS_PARTIAL;
    return expect(P, "partial");
}

static bool parse_body(Parse *P, TileOp *op) {
    if (P->nest == MAX_NEST) return fail(P, "loops are nested too deeply");
    P->nest++;
    bool ok = parse_block(P, &op->body);
    P->nest--;
    return ok;
}

static bool parse_role(Parse *P, TileOp *op) {
    op->warpgroups = 1;
    if (!(op->role = take_word(P, "the role's name"))) return false;
    if (take(P, "warpgroups") && !take_int(P, &op->warpgroups)) return false;
    if (take(P, "registers") && !take_int(P, &op->registers)) return false;
    return parse_body(P, op);
}

static bool parse_tiles(Parse *P, TileOp *op) {
    return (!take(P, "carry") || parse_carry(P, op)) && parse_body(P, op);
}

static bool parse_first(Parse *P, TileOp *op) {
    if (!take(P, "first")) return true;
    if (!take_int(P, &op->first)) return false;
    if (op->kind == TILE_MMA && (!expect(P, "of") || !take_axis(P, &op->axis))) return false;
    return take_when(P, op);
}

static bool parse_at(Parse *P, TileOp *op) {
    if (!take_axis(P, &op->axis) || !expect(P, ":")) return false;
    if (!(op->index = typed_expr(P, EX_I32))) return false;
    if (take(P, "class") && !parse_class(P, op)) return false;
    return parse_first(P, op) && parse_body(P, op);
}

static bool parse_redo(Parse *P, TileOp *op) {
    TileValue *shift = NULL;
    if (!take_arg(P, op) || !expect(P, "over") || !take_int(P, &op->bits)) return false;
    if (take(P, ",") && (!(shift = take_value(P)) || !expect(P, "over") ||
                         !take_int(P, &op->shift_bits) || !op->shift_bits))
        return shift && fail(P, "expected bits");
    if (!expect(P, "else") || !expect(P, "(") || !take_args(P, op) || !expect(P, ")")) return false;
    if (shift) tile_arg(P->p, op, shift);
    take_marks(P, op);
    return parse_body(P, op);
}

static bool parse_loop(Parse *P, TileOp *op) {
    if (!take_axis(P, &op->axis)) return false;
    if (!expect(P, "from") || !(op->from = typed_expr(P, EX_I32))) return false;
    if (!expect(P, "to") || !(op->to = typed_expr(P, EX_I32))) return false;
    op->index = take(P, "at") ? typed_expr(P, EX_I32) : ex_symbol(P->p->pool, SYM_STEP);
    if (!op->index) return false;
    if (take(P, "where") && !(op->where = typed_expr(P, EX_BOOL))) return false;
    if (take(P, "class") && !parse_class(P, op)) return false;
    if (take(P, "carry") && !parse_carry(P, op)) return false;
    return parse_body(P, op);
}

static bool parse_mma(Parse *P, TileOp *op) {
    op->async = take(P, "async");
    op->tf32 = take(P, "tf32");
    return take_args(P, op) && parse_first(P, op);
}

static bool parse_values(Parse *P, TileOp *op) {
    skip(P);
    return *P->s != '%' || take_args(P, op);
}

static bool parse_some(Parse *P, TileOp *op) { return take_arg(P, op) && take_columns(P, op); }

static bool parse_access(Parse *P, TileOp *op) { return take_access(P, op); }
static bool parse_pending(Parse *P, TileOp *op) { return take_int(P, &op->pending); }
static bool parse_held(Parse *P, TileOp *op) {
    if (!take_arg(P, op)) return false;
    take_marks(P, op);
    return take_when(P, op);
}
static bool parse_nothing(Parse *P, TileOp *op) { return (void)P, (void)op, true; }

static bool parse_bound(Parse *P, TileOp *op) {
    return take_arg(P, op) && expect(P, "over") && take_int(P, &op->bits);
}

static bool (*const parse_kind[TILE_KIND_COUNT])(Parse *P, TileOp *op) = {
#define TILE_OP(e, name, results, least, most, flags, homes, text, rule) parse_##text,
#include "ir/tile_ops.def"
#undef TILE_OP
};

// "0:3"
static bool parse_place(Parse *P, TilePlace *at) {
    return take_int(P, &at->stage) && expect(P, ":") && take_int(P, &at->order);
}

static bool parse_places(Parse *P, TileOp *op) {
    op->begins = take(P, "begins");
    if (!take(P, "@")) return true;
    if (!(op->role = take_word(P, "a role")) || !parse_place(P, &op->place)) return false;
    op->peels = take(P, "/");
    if (op->peels && !parse_place(P, &op->peeled)) return false;
    op->turn = take(P, "turn");
    op->holds = op->turn && op->kind == TILE_MMA && take(P, "holds");
    if (!take(P, "lands")) return true;
    op->after = -1;
    return take_int(P, &op->lands) && (!take(P, "after") || take_int(P, &op->after));
}

// They stand before the op, so their names are known in it already; tile_verify refuses such a use.
static bool parse_results(Parse *P, TileOp *op) {
    do {
        TileValue *v = define(P, op);
        if (!v) return false;
        VEC_PUSH(P->arena, &op->results, v);
    } while (take(P, ","));
    return expect(P, "=");
}

static bool parse_op(Parse *P, TileBlock *b) {
    skip(P);
    const char *start = P->s;
    if (++P->ops > MAX_OPS) return fail(P, "more than %d operations", MAX_OPS);
    TileOp *op = tile_op(P->p, P->k, NULL, TILE_LOAD, (Span){0});
    if (*P->s == '%' && !parse_results(P, op)) return false;
    op->behind = take(P, "behind");
    const char *word = take_word(P, "an operation");
    if (!word) return false;
    int kind = 0;
    while (kind < TILE_KIND_COUNT && strcmp(word, tile_kind_name((TileKind)kind))) kind++;
    if (kind == TILE_KIND_COUNT) return fail(P, "no operation is called '%s'", word);
    op->kind = (TileKind)kind;
    tile_append(b, op);
    op->span = span_from(P, start);
    bool ok = parse_kind[kind](P, op) && parse_places(P, op);
    if (!op->body.first) op->span = span_from(P, start);
    return ok;
}

static bool parse_block(Parse *P, TileBlock *b) {
    if (!expect(P, "{")) return false;
    while (!take(P, "}"))
        if (!parse_op(P, b)) return false;
    return true;
}

// ---- kernels

static bool parse_axis(Parse *P) {
    const char *name = take_word(P, "the axis' name");
    if (!name || !expect(P, ":")) return false;
    if (P->k->naxes == TILE_MAX_AXES) return fail(P, "more than %d axes", TILE_MAX_AXES);
    if (find_axis(P->k, name) >= 0) return fail(P, "axis %s is there already", name);
    const Ex *size = typed_expr(P, EX_I32);
    if (!size) return false;
    int axis = tile_axis(P->k, name, size, take(P, "whole"));
    TileAxis *a = &P->k->axes[axis];
    set_names(P);
    if (take(P, "beside") && !take_axis(P, &a->beside)) return false;
    if (a->beside >= 0) a->extent = P->k->axes[a->beside].extent;
    if (a->beside < 0 && take(P, "tile") && !take_int(P, &a->extent)) return false;
    P->k->axes[axis].wide = take(P, "wide");
    return true;
}

// "layout n: reg(N%2, M/8%2, N/8%8) lane(N/2%4, M%8) warp(M/16%4)"
static bool parse_layout(Parse *P) {
    TileLayout l = {.name = take_word(P, "the layout's name")};
    const char *names[TILE_MAX_AXES];
    if (!l.name || !expect(P, ":")) return false;
    if (find_layout(P->k, l.name) >= 0) return fail(P, "layout %s is there already", l.name);
    if (P->k->layouts.n == MAX_LAYOUTS) return fail(P, "more than %d layouts", MAX_LAYOUTS);
    for (int i = 0; i < P->k->naxes; i++) names[i] = P->k->axes[i].name;
    const char *wrong = layout_parse(&P->s, names, P->k->naxes, &l.is);
    if (wrong) return fail(P, "%s", wrong);
    VEC_PUSH(P->arena, &P->k->layouts, l);
    return true;
}

static bool parse_grid(Parse *P) {
    if (P->k->ngrid == TILE_MAX_GRID)
        return fail(P, "more than %d dimensions of the grid", TILE_MAX_GRID);
    TileGrid *g = &P->k->grid[P->k->ngrid];
    if (take(P, "b"))
        g->sym = SYM_B;
    else if (take(P, "h"))
        g->sym = SYM_H;
    else {
        g->sym = SYM_TILE;
        if (!take_axis(P, &g->axis)) return false;
    }
    if (!expect(P, ":") || !(g->count = typed_expr(P, EX_I32))) return false;
    if (take(P, "from") && !(g->from = typed_expr(P, EX_I32))) return false;
    if (take(P, "shared") && !(g->shared = typed_expr(P, EX_I32))) return false;
    if (take(P, "packed") && !(g->packed = typed_expr(P, EX_I32))) return false;
    if (take(P, "of")) {
        if (!(g->batch = typed_expr(P, EX_I32)) || !expect(P, "together")) return false;
        if (!(g->together = typed_expr(P, EX_I32)) || !expect(P, "ends")) return false;
        if (!(g->ends = typed_expr(P, EX_I32))) return false;
    }
    g->slow = take(P, "slow");
    g->reversed = take(P, "reversed");
    P->k->ngrid++;
    return true;
}

// "keys=128,after=-1"
static bool take_knobs(Parse *P, Knobs *out) {
    do {
        int value;
        const char *name = take_word(P, "a choice's name");
        if (!name || !expect(P, "=")) return false;
        bool negative = take(P, "-");
        if (!take_int(P, &value)) return false;
        const char *wrong =
            knobs_set(P->scratch, out, name, strlen(name), negative ? -value : value);
        if (wrong) return fail(P, "%s", wrong);
    } while (take(P, ","));
    return true;
}

static bool parse_schedule(Parse *P) {
    TileSchedule *s = &P->k->schedule;
    for (;;) {
        if (take(P, "lanes")) {
            if (!take_axis(P, &s->lane_axis)) return false;
        } else if (take(P, "warps")) {
            if (!take_int(P, &s->warps)) return false;
        } else if (take(P, "min_blocks")) {
            if (!take_int(P, &s->min_blocks)) return false;
        } else if (take(P, "matrix_rows")) {
            if (!take_int(P, &s->matrix_rows)) return false;
        } else if (take(P, "crowded")) {
            s->crowded = true;
        } else if (take(P, "persistent")) {
            s->persist = take(P, "dynamic") ? PERSIST_DYNAMIC : PERSIST_STATIC;
            if (s->persist == PERSIST_STATIC && !expect(P, "static")) return false;
        } else if (take(P, "section")) {
            if (!(s->section = expr(P)) || (take(P, "last") && !(s->last = expr(P)))) return false;
        } else if (take(P, "cluster")) {
            if (!take_int(P, &s->cluster)) return false;
            if (take(P, "rows") && !(s->cluster_rows = expr(P))) return false;
        } else if (take(P, "beside")) {
            if (!(s->beside = expr(P))) return false;
        } else if (take(P, "finish")) {
            if (!take_tensor(P, &s->finish)) return false;
            s->finish++;
        } else if (take(P, "next")) {
            if (!take_int(P, &s->next)) return false;
        } else if (take(P, "knobs")) {
            if (!take_knobs(P, &s->knobs)) return false;
        } else {
            return true;
        }
    }
}

// "e0 = ((M.tile * 64) + 63)", in order.
static bool parse_let(Parse *P) {
    const char *name = take_word(P, "the expression's name");
    if (!name) return false;
    if (strcmp(name, arena_printf(P->scratch, "%s%d", ex_syms[SYM_LET].name, P->lets.n)))
        return fail(P, "the next expression's name is e%d", P->lets.n);
    if (P->lets.n == MAX_OPS) return fail(P, "too many expressions with a name");
    const Ex *e = expect(P, "=") ? expr(P) : NULL;
    if (!e) return false;
    if (!tile_let_may(P->k, e)) return fail(P, "what has a name is the same in the whole tile");
    VEC_PUSH(P->scratch, &P->lets, e);
    return true;
}

static bool take_purpose(Parse *P) {
    for (int i = 0; i < PURPOSE_COUNT; i++) {
        P->k->purpose = (TilePurpose)i;
        if (take(P, tile_purpose_name(P->k->purpose))) return true;
    }
    return fail(P, "expected what the kernel is for");
}

static void list_inputs(Parse *P);

static bool parse_kernel(Parse *P) {
    list_inputs(P);
    if (P->p->kernels.n == MAX_KERNELS) return fail(P, "more than %d kernels", MAX_KERNELS);
    const char *name = take_word(P, "the kernel's name");
    if (!name) return false;
    P->k = tile_kernel(P->p, name, PURPOSE_ATTENTION);
    set_names(P);
    if (take(P, "purpose") && !take_purpose(P)) return false;
    memset(P->table, 0, sizeof *P->table * 2 * MAX_VALUES);
    P->lets.n = 0;
    bool ok = true;
    while (ok) {
        if (take(P, "let"))
            ok = parse_let(P);
        else if (take(P, "schedule"))
            ok = parse_schedule(P);
        else if (P->lets.n) // what stands before them is written without
            break;
        else if (take(P, "axis"))
            ok = parse_axis(P);
        else if (take(P, "grid"))
            ok = parse_grid(P);
        else if (take(P, "layout"))
            ok = parse_layout(P);
        else if (take(P, "mask"))
            ok = (P->k->mask = typed_expr(P, EX_BOOL)) != NULL;
        else if (take(P, "where"))
            ok = (P->k->where = typed_expr(P, EX_BOOL)) != NULL;
        else
            break;
    }
    ok = ok && parse_block(P, &P->k->body);
    P->k = NULL;
    P->lets.n = 0;
    set_names(P);
    return ok;
}

// ---- the program

static bool parse_size(Parse *P) {
    if (P->p->sizes.n == MAX_SIZES) return fail(P, "more than %d sizes", MAX_SIZES);
    TileSize z = {.name = take_word(P, "the size's name")};
    if (!z.name) return false;
    if (take(P, "=") && !(z.def = typed_expr(P, EX_I32))) return false;
    VEC_PUSH(P->arena, &P->p->sizes, z);
    return true;
}

// Behind the inputs, what else expressions may read.
static void list_inputs(Parse *P) {
    TileProgram *p = P->p;
    for (int t = 0; t < p->tensors.n; t++) {
        bool listed = !tile_may_index(p, &p->tensors.data[t]);
        for (int i = 0; i < p->inputs.n; i++) listed |= p->inputs.data[i] == t;
        if (!listed) VEC_PUSH(P->arena, &p->inputs, t);
    }
}

// "Sq = ..", which is a fixed one, or a new one: "all = rowsum of the first B of ..", of several sequences.
static bool parse_own(Parse *P) {
    TileProgram *p = P->p;
    const char *name = take_word(P, "the size's name");
    int i = SIZE_SQ;
    list_inputs(P);
    if (!name || !expect(P, "=")) return false;
    while (i < SIZE_FREE && strcmp(p->sizes.data[i].name, name)) i++;
    TileSize z = {.name = name, .own = true};
    if (take(P, "rowsum")) z.over = EX_ROWSUM;
    if (!z.over && take(P, "rowmax")) z.over = EX_ROWMAX;
    if (z.over) {
        if (!expect(P, "of") || !expect(P, "the") || !expect(P, "first")) return false;
        if (!(z.among = typed_expr(P, EX_I32)) || !expect(P, "of")) return false;
    }
    if (!(z.def = typed_expr(P, EX_I32))) return false;
    if (p->sizes.n == MAX_SIZES) return fail(P, "more than %d sizes", MAX_SIZES);
    if (i == SIZE_FREE)
        VEC_PUSH(P->arena, &p->sizes, z);
    else
        p->sizes.data[i] = z;
    return true;
}

static bool take_size(Parse *P, int *out) {
    const char *name = take_word(P, "a derived size");
    if (!name) return false;
    for (int i = SIZE_FREE; i < P->p->sizes.n; i++)
        if (P->p->sizes.data[i].def && !strcmp(P->p->sizes.data[i].name, name))
            return *out = i, true;
    return fail(P, "there is no derived size %s", name);
}

// "splits", or "splits longest wanted parts part_share whole_heads", or of a batch "splits part_keys"; of a recurrence "segment"
static bool parse_split(Parse *P) {
    TileSplit *s = &P->p->split;
    if (s->few || s->segment) return fail(P, "how rows are split is said already");
    if (P->p->recurrence) return take_size(P, &s->segment);
    if (!take_size(P, &s->few)) return false;
    if (!take(P, ",")) return true;
    if (P->p->batch) return take_size(P, &s->keys);
    return take_size(P, &s->longest) && take_size(P, &s->wanted) && take_size(P, &s->parts) &&
           take_size(P, &s->share) && take_size(P, &s->whole);
}

static bool take_role(Parse *P, TileTensor *t) {
    for (int r = 0; r < TENSOR_ROLE_COUNT; r++) {
        const TensorTraits *is = tensor_traits((TensorRole)r);
        if (!take(P, is->name)) continue;
        t->role = (TensorRole)r;
        return !is->indexed || take_int(P, &t->index);
    }
    return fail(P, "expected what the tensor is for");
}

static bool parse_tensor(Parse *P) {
    TileProgram *p = P->p;
    if (p->tensors.n == MAX_TENSORS) return fail(P, "more than %d tensors", MAX_TENSORS);
    TileTensor t = {.name = take_word(P, "the tensor's name")};
    if (!t.name || !expect(P, ":") || !take_dtype(P, &t.dtype) || !expect(P, "[")) return false;
    if (!take(P, "]")) {
        do {
            if (t.rank == TILE_MAX_DIMS) return fail(P, "more than %d dimensions", TILE_MAX_DIMS);
            if (!(t.extent[t.rank++] = typed_expr(P, EX_I32))) return false;
        } while (take(P, ","));
        if (!expect(P, "]")) return false;
    }
    if (!take_role(P, &t)) return false;
    t.blocked = take(P, "blocked");
    t.exact = take(P, "exact");
    t.bare_q = take(P, "bare_q");
    t.rows = take(P, "rows");
    if (t.role == TENSOR_INPUT) {
        if (t.index != p->inputs.n)
            return fail(P, "input %d stands where %d is due", t.index, p->inputs.n);
        VEC_PUSH(P->arena, &p->inputs, p->tensors.n);
    }
    VEC_PUSH(P->arena, &p->tensors, t);
    return true;
}

typedef struct PlanText { // kernels by name: they come after the plans
    const char *name, *at;
} PlanText;
typedef VEC(PlanText) PlanTexts;

static bool parse_plan(Parse *P, PlanTexts *texts) {
    TilePlan plan = {0};
    if (P->p->plans.n == MAX_PLANS) return fail(P, "more than %d plans", MAX_PLANS);
    do {
        skip(P);
        PlanText t = {.at = P->s, .name = take_word(P, "a kernel")};
        if (!t.name) return false;
        VEC_PUSH(P->scratch, texts, t);
        VEC_PUSH(P->arena, &plan.kernels, -1);
        if (plan.kernels.n > MAX_KERNELS) return fail(P, "more than %d kernels", MAX_KERNELS);
    } while (take(P, ","));
    if (take(P, "when") && !(plan.when = typed_expr(P, EX_BOOL))) return false;
    VEC_PUSH(P->arena, &P->p->plans, plan);
    return true;
}

static bool find_plan_kernels(Parse *P, const PlanTexts *texts) {
    int n = 0;
    for (int i = 0; i < P->p->plans.n; i++)
        for (int j = 0; j < P->p->plans.data[i].kernels.n; j++, n++) {
            int *k = &P->p->plans.data[i].kernels.data[j];
            for (*k = 0;
                 *k < P->p->kernels.n && strcmp(P->p->kernels.data[*k]->name, texts->data[n].name);
                 ++*k)
                ;
            if (*k < P->p->kernels.n) continue;
            P->s = texts->data[n].at;
            return fail(P, "there is no kernel %s", texts->data[n].name);
        }
    return true;
}

static bool parse_head(Parse *P) {
    if (!expect(P, "program")) return false;
    const char *name = take_word(P, "the program's name");
    if (!name) return false;
    P->p = tile_program(P->arena, ex_pool(P->arena), name);
    set_names(P);
    P->p->recurrence = take(P, "recurrence");
    if (P->p->recurrence) {
        SizeNames sizes;
        rec_sizes(P->arena, &sizes);
        tile_sizes(P->p, &sizes);
    }
    P->p->scheduled = take(P, "scheduled");
    if (!P->p->scheduled && !expect(P, "algorithm")) return false;
    if (take(P, "phase")) {
        TilePhase phase = PHASE_COUNT;
        while (--phase > PHASE_FWD && !take(P, tile_phase_name(phase))) {
        }
        P->p->phase = phase;
        if (phase == PHASE_FWD && !expect(P, "fwd")) return false;
    }
    if (!expect(P, "target")) return false;
    const char *target = take_word(P, "a target");
    if (!target) return false;
    if (!target_find(target, &P->p->target)) return fail(P, "no target is called %s", target);
    if (!expect(P, "dtype") || !take_dtype(P, &P->p->dtype) || !expect(P, "dims") ||
        !expect(P, "D") || !expect(P, "=") || !take_int(P, &P->p->D) || !expect(P, "Dv") ||
        !expect(P, "=") || !take_int(P, &P->p->Dv))
        return false;
    for (int i = BATCH_RAGGED; i < BATCH_COUNT; i++)
        if (take(P, batch_name((BatchLayout)i))) P->p->batch = (BatchLayout)i;
    bool number = P->p->batch == BATCH_PAGED && (skip(P), *P->s >= '0' && *P->s <= '9');
    return !number || take_int(P, &P->p->page);
}

static bool parse_program(Parse *P) {
    PlanTexts texts = {0};
    if (!parse_head(P)) return false;
    bool ok = true;
    while (ok && (skip(P), *P->s)) {
        if (take(P, "size"))
            ok = parse_size(P);
        else if (take(P, "own"))
            ok = parse_own(P);
        else if (take(P, "split"))
            ok = parse_split(P);
        else if (take(P, "tensor"))
            ok = parse_tensor(P);
        else if (take(P, "plan"))
            ok = parse_plan(P, &texts);
        else if (take(P, "kernel"))
            ok = parse_kernel(P);
        else
            ok = fail(P, "expected size, own, split, tensor, plan or kernel");
    }
    if (ok && P->s != P->end) ok = fail(P, "a NUL byte in the text");
    return ok && find_plan_kernels(P, &texts);
}

// The text with its comments blanked (places stay) and an end.
static char *without_comments(Arena *a, const char *text, size_t n) {
    char *s = arena_strndup(a, text, n);
    for (size_t i = 0; i + 1 < n; i++)
        if (s[i] == '/' && s[i + 1] == '/')
            while (i < n && s[i] != '\n') s[i++] = ' ';
    for (size_t i = 0; i < n; i++)
        if (s[i] == '\r') s[i] = ' ';
    return s;
}

// The file that spans name: the last one added to diags where it is this text, else one of our own.
static uint16_t file_of(Diags *diags, const char *text, size_t n) {
    int last = diags->files.n - 1;
    if (last > 0 && diags->files.data[last].text == text) return (uint16_t)last;
    return diag_add_file(diags, "tile program", arena_strndup(diags->arena, text, n), n);
}

TileProgram *tile_parse(Arena *a, const char *text, size_t n, Diags *diags) {
    if (n > MAX_TEXT) {
        diag_error(diags, (Span){0}, "a tile program of more than %d bytes", MAX_TEXT);
        return NULL;
    }
    Parse P = {.arena = a, .diags = diags, .file = file_of(diags, text, n)};
    P.scratch = arena_new();
    P.text = P.s = without_comments(P.scratch, text, n);
    P.end = P.text + n;
    P.table = ARENA_ARRAY(P.scratch, Named, 2 * MAX_VALUES);
    bool ok = parse_program(&P);
    arena_free(P.scratch);
    return ok ? P.p : NULL;
}
