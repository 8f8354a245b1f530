// resolve.c: binds the names of a body and lays it out as postfix code.
//
// In: a body's AST and the scope around it. Out: code in which every name is a declaration or a
// slot. Holds afterwards: calls have as many arguments as their callee takes, reductions,
// normalizations and emits stand where they may, and no body calls more than SEMA_MAX_CALLS deep.
// For example `f(s, cap) = cap * tanh(s / cap)` becomes
//     slot 1; slot 0; slot 1; binary /; builtin tanh 1; binary *
#include "frontend/sema.h"

#include <assert.h>
#include <ctype.h>
#include <math.h>
#include <string.h>

static const struct {
    const char *name;
    int nargs;
    ExOp op;
} builtins[] = {
#define BUILTIN(name, n, typing, op, ...) {#name, n, op},
#include "builtins.def"
#undef BUILTIN
};
enum { NBUILTINS = sizeof builtins / sizeof *builtins };

// ---- scopes

Decl *scope_find(const Scope *s, const char *name) {
    for (; s; s = s->parent) {
        Decl *d = names_get(&s->names, name);
        if (d) return d;
    }
    return NULL;
}

const char *decl_kind_name(const Decl *d) {
    switch (d->kind) {
    case DECL_BUILTIN: return "a built-in function";
    case DECL_CONSTANT: return "a built-in constant";
    case DECL_CONST: return "a constant";
    case DECL_FN: return "a function";
    case DECL_NORMALIZATION: return "a normalization";
    case DECL_VARIANT: return "a variant";
    case DECL_MODULE: return "a module";
    case DECL_CLAUSE: return "a clause";
    case DECL_EMIT: return "an emit";
    case DECL_SIZE: return "a size";
    case DECL_DIM: return "a dim";
    case DECL_INPUT: return "an input";
    case DECL_PARAM: return "a parameter";
    case DECL_LET: return "a let";
    }
    return "";
}

void sema_use(Sema *s, Span at, Decl *d, bool defines) {
    Use u = {at, d, defines};
    if (s->options->uses && at.file && !s->unwritten) VEC_PUSH(s->arena, &s->options->uses->all, u);
}

void sema_scope(Sema *s, Span at, const Scope *scope) {
    if (!s->options->uses) return;
    Scope *copy = ARENA_NEW(s->arena, Scope);
    *copy = *scope;
    ScopeAt x = {at, copy};
    VEC_PUSH(s->arena, &s->options->uses->scopes, x);
}

// Type names are ordinary names (a `let f32`), and calls of the conversions f32(x), i32(x), bool(x)
// nevertheless.
static bool is_type_name(const char *s) {
    return !strcmp(s, "f32") || !strcmp(s, "i32") || !strcmp(s, "bool");
}

bool scope_define(Sema *s, Scope *scope, Decl *d) {
    const Decl *old = scope_find(scope, d->name);
    sema_use(s, d->span, d, true);
    if (old && old->refused && old == names_get(&scope->names, d->name)) return false; // reported
    bool is_call = d->kind == DECL_FN || d->kind == DECL_NORMALIZATION;
    if (!old || old->refused || (old->kind == DECL_BUILTIN && is_type_name(d->name) && !is_call)) {
        names_put(s->arena, &scope->names, d->name, d);
        return true;
    }
    bool imported = old->span.file && old->span.file != d->span.file;
    bool changed = d->kind == DECL_LET && (old->kind == DECL_PARAM || old->kind == DECL_LET);
    Diag *g = diag_error(
        s->diags, d->span, "'%s' is already defined: it is %s%s", d->name, decl_kind_name(old),
        old->kind == DECL_SIZE && !old->span.file ? " of every variant of this kind"
        : changed                                 ? "; a new value gets a new name"
        : imported ? " that an import brings; nothing shadows it, so this one gets another name"
                   : "");
    if (old->span.file) diag_note(s->diags, g, old->span, "'%s' is defined here", d->name);
    return false;
}

static void add_builtin(Sema *s, DeclKind kind, const char *name, int builtin, Tx *value) {
    Decl *d = ARENA_NEW(s->arena, Decl);
    *d = (Decl){.kind = kind, .name = name, .builtin = builtin, .value = value};
    names_put(s->arena, &s->builtins.names, name, d);
}

void sema_init_builtins(Sema *s) {
    for (int i = 0; i < NBUILTINS; i++) add_builtin(s, DECL_BUILTIN, builtins[i].name, i, NULL);
#define CONSTANT(name, value, doc) add_builtin(s, DECL_CONSTANT, #name, 0, value);
#include "predefined.def"
}

const char *sema_habit(const char *name) {
    static const struct {
        const char *name, *what;
    } habits[] = {
#define HABIT(name, what) {name, what},
#define HABIT_TOKEN(wanted, token, what)
#include "habits.def"
#undef HABIT_TOKEN
#undef HABIT
    };
    for (size_t i = 0; i < sizeof habits / sizeof *habits; i++)
        if (!strcmp(name, habits[i].name)) return habits[i].what;
    return NULL;
}

// What other languages call so, else " (did you mean 'x'?)" and x, or "" where nothing is near.
static const char *suggest(Sema *s, const Scope *scope, const char *name, const char **meant) {
    if (s->diags->errors > DIAG_MAX_ERRORS) return "";
    const char *habit = sema_habit(name);
    if (habit) return arena_printf(s->arena, " (%s)", habit);
    NameGuess g;
    names_guess_init(&g, name);
    for (; scope; scope = scope->parent)
        for (int i = 0; i < scope->names.entries.n; i++)
            names_guess(&g, scope->names.entries.data[i].name);
    *meant = g.best;
    return g.best ? arena_printf(s->arena, " (did you mean '%s'?)", g.best) : "";
}

// ---- the code

typedef struct Resolve {
    Sema *s;
    Scope scope;
    BodyKind kind;
    const AstItem *item; // whose body it is
    Body *body;
} Resolve;

static Instr *put(Resolve *r, InstrOp op, Span span) {
    Instr i = {.op = op, .span = span};
    VEC_PUSH(r->s->arena, &r->body->code, i);
    return &r->body->code.data[r->body->code.n - 1];
}

static void put_literal(Resolve *r, Tx *value) { put(r, I_VALUE, value->span)->value = value; }

// Stands for what was reported: takes n operands off and gives a value that no later check speaks
// of.
static void put_bad(Resolve *r, Span span, int n) { put(r, I_BAD, span)->n = n; }

// The item of the module, or of one of its variants, that defines the name somewhere out of reach.
static const AstItem *find_elsewhere(const AstItems *items, const char *name, const AstItem **in) {
    for (int i = 0; i < items->n; i++) {
        const AstItem *item = items->data[i];
        bool variant = item->kind == AST_ATTENTION || item->kind == AST_RECURRENCE;
        if (variant) {
            const AstItem *found = find_elsewhere(&item->items, name, in);
            *in = item;
            if (found) return found;
        } else if (item->kind != AST_IMPORT && item->kind != AST_CLAUSE &&
                   !strcmp(item->name.s, name)) {
            *in = NULL;
            return item;
        }
    }
    return NULL;
}

static bool is_size_name(const char *name) {
    static const char *const sizes[] = {
#define SIZE(of, name, doc) #name,
#include "predefined.def"
    };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (!strcmp(name, sizes[i])) return true;
    return false;
}

// The name is defined, but not where it could be seen. False: nothing of that kind.
static bool out_of_reach(Resolve *r, const char *what, AstName name) {
    Diags *d = r->s->diags;
    const AstItem *in = NULL, *other = find_elsewhere(&r->s->ast->items, name.s, &in);
    if (!other) return false;
    bool same = in == r->s->item;
    Diag *g;
    if (other == r->s->item && (r->kind == BODY_FN || r->kind == BODY_NORMALIZATION)) {
        diag_error(d, name.span, "'%s' calls itself: there is no recursion", name.s);
        return true;
    }
    if (!in)
        g = diag_error(d, name.span, "'%s' is used before its definition", name.s);
    else if (same && r->kind == BODY_DIM)
        g = diag_error(d, name.span, "a dim may not depend on %s '%s'",
                       other->kind == AST_INPUT ? "the input" : "the later dim", name.s);
    else if (same) // its definition was reported
        return true;
    else
        g = diag_error(d, name.span, "unknown %s '%s': what '%s' defines is not seen here", what,
                       name.s, in->name.s);
    diag_note(d, g, other->name.span, "'%s' is defined here%s", name.s,
              in && !same ? "; a function gets it as an argument" : "");
    return true;
}

// The import comes before the first item, which an import mostly is.
static void fix_import(Sema *s, Diag *g, const char *module) {
    Span first = s->ast->items.data[0]->span;
    diag_fix(s->diags, g, (Span){first.file, first.start, first.start},
             arena_printf(s->arena, "import %s;\n", module));
}

static bool in_score(const Resolve *r) {
    return r->kind == BODY_CLAUSE && !strcmp(r->body->name, "score");
}

// Its definition has no `let`, which was reported.
static bool is_without_let(const AstModule *ast, const char *name) {
    for (int i = 0; i < ast->without_let.n; i++)
        if (!strcmp(ast->without_let.data[i].s, name)) return true;
    return false;
}

// A dim that is seen, and has the same letter in the other case: `d` for D.
static const char *in_other_case(const Scope *scope, const char *name) {
    for (; scope && !name[1]; scope = scope->parent)
        for (int i = 0; i < scope->names.entries.n; i++) {
            const char *other = scope->names.entries.data[i].name;
            const Decl *d = scope->names.entries.data[i].value;
            if (d->kind == DECL_DIM && !other[1] && toupper((unsigned char)*name) == *other &&
                *name != *other)
                return other;
        }
    return NULL;
}

static bool in_clause(const Resolve *r) {
    return r->kind == BODY_CLAUSE || r->kind == BODY_NORMALIZE;
}

static const char *as_input(Sema *s, bool indexed, const char *name, bool in_score) {
    const char *row =
        in_score ? arena_printf(s->arena, ", a row for dot 'input %s: f32[B, H, Sk, E];'", name)
                 : "";
    return arena_printf(s->arena,
                        " (an input is declared before the clauses: 'input %s: f32%s;'%s)", name,
                        indexed ? "[H]" : "", row);
}

// What a name in a clause may be there, before others that are spelled like it. NULL: nothing. *meant: that other name.
static const char *hint_of_clause(Resolve *r, const char *name, const char **meant) {
    Sema *s = r->s;
    const char *clause = r->body->name, *other = in_other_case(&r->scope, name);
    bool value = !strcmp(name, "v");
    if (other && !variant_clause_takes(s, clause, name)) {
        *meant = other;
        return arena_printf(s->arena, " (did you mean '%s'?)", other);
    }
    bool seen = !value || s->item->kind != AST_ATTENTION;
    const char *hint = seen ? variant_name_hint(s, clause, name) : NULL;
    if (hint || !value) return hint;
    return " (values are not seen: they are summed by the weights, and 'output(o)' takes the sum)";
}

static const char *hint_of(Resolve *r, const char *what, const char *name, const char **meant) {
    const char *hint = in_clause(r) ? hint_of_clause(r, name, meant) : NULL;
    if (!hint) hint = suggest(r->s, &r->scope, name, meant);
    if (*hint || !in_clause(r) || !strcmp(what, "function")) return hint;
    return as_input(r->s, !strcmp(what, "input"), name, in_score(r));
}

static void unknown_name(Resolve *r, const char *what, AstName name) {
    Sema *s = r->s;
    if (is_without_let(s->ast, name.s)) return;
    if (s->diags->errors >= DIAG_MAX_ERRORS) { // counted, not shown
        diag_error(s->diags, name.span, "unknown %s '%s'", what, name.s);
        return;
    }
    if (out_of_reach(r, what, name)) return;
    if (is_size_name(name.s) && !in_clause(r)) {
        diag_error(s->diags, name.span,
                   "unknown %s '%s': sizes are seen in the clauses of a variant only; a function "
                   "gets them as arguments",
                   what, name.s);
        return;
    }
    const char *module = sema_library_module(s, name.s), *meant = NULL;
    const char *hint = module ? arena_printf(s->arena, " (it is in %s: import it)", module)
                              : hint_of(r, what, name.s, &meant);
    Diag *g = diag_error(s->diags, name.span, "unknown %s '%s'%s", what, name.s, hint);
    diag_fix(s->diags, g, name.span, meant);
    if (module) fix_import(s, g, module);
}

static void flatten(Resolve *r, const AstExpr *e);

// Of four extents, as those of q and k are: whether it is one, the elaborator asks.
static bool is_row_input(const Resolve *r, const Decl *d) {
    return in_score(r) && d->kind == DECL_INPUT && !d->value && d->item->extents.n == 4;
}

static void flatten_name(Resolve *r, const AstExpr *e) {
    Decl *d = scope_find(&r->scope, e->name.s);
    if (d) sema_use(r->s, e->name.span, d, false);
    if (!d)
        unknown_name(r, "name", e->name);
    else if (d->kind == DECL_BUILTIN || d->kind == DECL_FN || d->kind == DECL_NORMALIZATION)
        diag_error(r->s->diags, e->span, "'%s' is %s: call it, '%s(...)'", d->name,
                   decl_kind_name(d), d->name);
    else if (is_row_input(r, d)) {
        d->used = true;
        put(r, I_ROW, e->span)->decl = d;
        return;
    } else if (d->kind == DECL_INPUT && !d->value)
        diag_error(
            r->s->diags, e->span, "'%s' is an array: index it, '%s[...]'%s", d->name, d->name,
            in_score(r) && d->item->extents.n == 3
                ? "; a row input, for dot, has extents [B, heads, Sq or Sk, channels]"
            : in_score(r) ? "; elements of q and k are not seen in 'score': a factor of them "
                            "stands in a clause, 'query(q, b, h, q_idx, d) = q * x[d];' or 'key'"
                          : "");
    else {
        bool slot = d->kind == DECL_PARAM || d->kind == DECL_LET;
        d->used = true;
        Instr *i = put(r, slot ? I_SLOT : I_VALUE, e->span);
        i->n = d->slot;
        i->decl = d;
        return;
    }
    put_bad(r, e->span, 0);
}

static bool check_arguments(Resolve *r, const AstExpr *e, int takes, Span defined) {
    if (e->args.n == takes) return true;
    bool max = !strcmp(e->name.s, "max"), rowmax = !strcmp(e->name.s, "rowmax"),
         reduces = e->args.n == 1 && (max || !strcmp(e->name.s, "min")),
         pair = e->args.n == 2 && (rowmax || !strcmp(e->name.s, "rowmin"));
    Diag *g = diag_error(r->s->diags, e->span, "'%s' takes %d argument%s, not %d%s", e->name.s,
                         takes, takes == 1 ? "" : "s", e->args.n,
                         pair && rowmax ? ": the larger of two numbers is max(a, b)"
                         : pair         ? ": the smaller of two numbers is min(a, b)"
                         : !reduces     ? ""
                         : max          ? ": over the keys of a row it is rowmax(x)"
                                        : ": over the keys of a row it is rowmin(x)");
    if (defined.file) diag_note(r->s->diags, g, defined, "'%s' is defined here", e->name.s);
    return false;
}

// Reductions, normalizations and emits may stand in bodies over rows only.
static bool over_rows(const Resolve *r) {
    return r->kind == BODY_NORMALIZATION || r->kind == BODY_NORMALIZE;
}

static bool check_builtin(Resolve *r, const AstExpr *e, int builtin) {
    ExOp op = builtins[builtin].op;
    bool reduces = op == EX_ROWMAX || op == EX_ROWMIN || op == EX_ROWSUM;
    if (reduces && !over_rows(r)) {
        Diag *d = diag_error(
            r->s->diags, e->span,
            "'%s' reduces a row: it may stand in a normalization or a 'normalize' clause only",
            e->name.s);
        if (op == EX_ROWSUM)
            diag_note(r->s->diags, d, e->span,
                      "sums up to each key (CoPE, stick-breaking) have no form; of what depends on "
                      "the key alone they may be an input: docs/not-in-the-language.md, 'Prefix "
                      "sums along the row'");
    }
    return check_arguments(r, e, builtins[builtin].nargs, (Span){0}) && (!reduces || over_rows(r));
}

static bool check_function(Resolve *r, const AstExpr *e, const Decl *d) {
    bool placed = d->kind == DECL_FN || over_rows(r);
    if (!placed)
        diag_error(r->s->diags, e->span,
                   "'%s' is a normalization: it may be called in a normalization or a 'normalize' "
                   "clause only",
                   d->name);
    if (d->body->depth + 1 > r->body->depth) r->body->depth = d->body->depth + 1;
    if (d->body->nparams < 0) return false; // it was reported
    return check_arguments(r, e, d->body->nparams, d->span) && placed;
}

static bool check_call(Resolve *r, const AstExpr *e, const Decl *d) {
    if (!d)
        unknown_name(r, "function", e->name);
    else if (d->kind == DECL_BUILTIN)
        return check_builtin(r, e, d->builtin);
    else if (d->kind == DECL_FN || d->kind == DECL_NORMALIZATION)
        return check_function(r, e, d);
    else {
        bool array = d->kind == DECL_INPUT && !d->value;
        Diag *g =
            diag_error(r->s->diags, e->name.span, "'%s' is %s, not a function%s", d->name,
                       decl_kind_name(d), array ? ": an index stands in brackets, 'x[i, j]'" : "");
        if (d->span.file) diag_note(r->s->diags, g, d->span, "'%s' is defined here", d->name);
    }
    return false;
}

static bool check_index(Resolve *r, const AstExpr *e, Decl *d) {
    if (d) d->used = true;
    if (d && d->kind == DECL_INPUT && !d->value) return true;
    if (!d)
        unknown_name(r, "input", e->name);
    else if (!d->value || d->value->type != TX_BAD)
        diag_error(r->s->diags, e->name.span,
                   "'%s' is %s%s: only an input with extents can be indexed%s", d->name,
                   decl_kind_name(d), d->kind == DECL_INPUT ? " without extents" : "",
                   in_score(r) && d->kind == DECL_PARAM
                       ? "; q and k are whole rows here, for dot(q, k) and sqnorm"
                       : "");
    return false;
}

// Calls and indices: the operands, then what is done with them.
static void flatten_applied(Resolve *r, const AstExpr *e) {
    for (int i = 0; i < e->args.n; i++) flatten(r, e->args.data[i]);
    bool call = e->kind == AST_CALL;
    Decl *d = call && is_type_name(e->name.s) ? names_get(&r->s->builtins.names, e->name.s)
                                              : scope_find(&r->scope, e->name.s);
    if (d) sema_use(r->s, e->name.span, d, false);
    if (!(call ? check_call(r, e, d) : check_index(r, e, d))) {
        put_bad(r, e->span, e->args.n);
        return;
    }
    Instr *i = put(r, !call ? I_INDEX : d->kind == DECL_BUILTIN ? I_BUILTIN : I_CALL, e->span);
    i->n = e->args.n;
    i->decl = d;
}

// The row, then the bounds.
static void flatten_slice(Resolve *r, const AstExpr *e) {
    const AstExpr *begin = e->args.data[0], *end = e->args.data[1];
    Decl *d = scope_find(&r->scope, e->name.s);
    bool row = d && (is_row_input(r, d) || d->kind == DECL_PARAM || d->kind == DECL_LET);
    if (d && !row) {
        sema_use(r->s, e->name.span, d, false);
        diag_error(r->s->diags, e->name.span,
                   "'%s' is %s: a slice is of the q or k of 'score', or of a row input", d->name,
                   decl_kind_name(d));
        put_bad(r, e->span, 0);
        return;
    }
    AstExpr name = {.kind = AST_NAME, .span = e->name.span, .name = e->name};
    flatten_name(r, &name);
    if (begin)
        flatten(r, begin);
    else
        put_literal(r, tx_i32(&r->s->tx, 0, e->span));
    if (end) flatten(r, end);
    put(r, I_SLICE, e->span)->n = end ? 3 : 2;
}

static void flatten_binary(Resolve *r, const AstExpr *e) {
    Arena *scratch = arena_new();
    VEC(const AstExpr *) spine = {0};
    for (; e->kind == AST_BINARY; e = e->args.data[0]) VEC_PUSH(scratch, &spine, e);
    flatten(r, e);
    for (int i = spine.n - 1; i >= 0; i--) {
        const AstExpr *b = spine.data[i];
        if (b->op == AST_AND || b->op == AST_OR) put(r, I_SHORT, b->span)->oper = b->op;
        flatten(r, b->args.data[1]);
        put(r, I_BINARY, b->span)->oper = b->op;
    }
    arena_free(scratch);
}

static void flatten_unary(Resolve *r, const AstExpr *e) {
    const AstExpr *a = e->args.data[0];
    if (e->op == AST_NEG && a->kind == AST_INT && a->i == (uint32_t)INT32_MAX + 1) {
        put_literal(r, tx_i32(&r->s->tx, INT32_MIN, e->span));
        return;
    }
    flatten(r, a);
    put(r, I_UNARY, e->span)->oper = e->op;
}

static void flatten(Resolve *r, const AstExpr *e) {
    switch (e->kind) {
    case AST_INT:
        if (e->i <= INT32_MAX) {
            put_literal(r, tx_i32(&r->s->tx, (int32_t)e->i, e->span));
            return;
        }
        diag_error(r->s->diags, e->span, "this number does not fit an i32 (at most %d)", INT32_MAX);
        put_bad(r, e->span, 0);
        return;
    case AST_FLOAT: put_literal(r, tx_f32(&r->s->tx, e->f, e->span)); return;
    case AST_NAME: flatten_name(r, e); return;
    case AST_CALL:
    case AST_INDEX: flatten_applied(r, e); return;
    case AST_SLICE: flatten_slice(r, e); return;
    case AST_UNARY: flatten_unary(r, e); return;
    case AST_BINARY: flatten_binary(r, e); return;
    case AST_COND:
        flatten(r, e->args.data[0]);
        put(r, I_THEN, e->span);
        flatten(r, e->args.data[1]);
        put(r, I_ELSE, e->span);
        flatten(r, e->args.data[2]);
        put(r, I_COND, e->span);
        return;
    }
}

// ---- bodies

static Resolve begin(Sema *s, const Scope *outer, BodyKind kind, const char *name) {
    Resolve r = {
        .s = s, .scope = {.parent = outer}, .kind = kind, .body = ARENA_NEW(s->arena, Body)};
    r.body->name = name;
    return r;
}

static void define_slot(Resolve *r, DeclKind kind, AstName name) {
    Decl *d = ARENA_NEW(r->s->arena, Decl);
    *d = (Decl){.kind = kind,
                .name = name.s,
                .span = name.span,
                .item = r->item,
                .slot = r->body->nslots++};
    VEC_PUSH(r->s->arena, &r->body->slots, d);
    if (!scope_define(r->s, &r->scope, d) &&
        !names_get(&r->scope.names, d->name)) // in what follows it is what it was meant to be
        names_put(r->s->arena, &r->scope.names, d->name, d);
}

static Decl *define_emit(Resolve *r, AstName name) {
    Decl *d = ARENA_NEW(r->s->arena, Decl);
    *d = (Decl){.kind = DECL_EMIT, .name = name.s, .span = name.span, .item = r->item};
    sema_use(r->s, name.span, d, true);
    return d;
}

static bool emit_name_is_taken(const char *s) {
    static const char *const taken[] = {"o", "q", "k", "v"};
    for (size_t i = 0; i < sizeof taken / sizeof *taken; i++)
        if (!strcmp(s, taken[i])) return true;
    return s[0] == 'd' || !strncmp(s, "state", 5);
}

static bool check_emit(Resolve *r, const AstLets *lets, int at) {
    const AstName *name = &lets->data[at].name;
    Diags *d = r->s->diags;
    if (!over_rows(r)) {
        diag_error(d, name->span,
                   "'emit' may stand in a normalization or a 'normalize' clause only");
        return false;
    }
    if (emit_name_is_taken(name->s)) {
        diag_error(d, name->span,
                   "an emit may not be called '%s': o, q, k, v, d* and state* are taken by the "
                   "other outputs",
                   name->s);
        return false;
    }
    for (int i = 0; i < at; i++)
        if (lets->data[i].emit && !strcmp(lets->data[i].name.s, name->s)) {
            Diag *g = diag_error(d, name->span, "'%s' is already emitted", name->s);
            diag_note(d, g, lets->data[i].name.span, "it is emitted here");
            return false;
        }
    return true;
}

static void flatten_or_bad(Resolve *r, const AstExpr *e, Span at) {
    if (e)
        flatten(r, e);
    else
        put_bad(r, at, 0); // a syntax error was reported
}

static void resolve_lets(Resolve *r, const AstLets *lets) {
    for (int i = 0; i < lets->n; i++) {
        const AstLet *l = &lets->data[i];
        Span at = l->value ? l->value->span : l->name.span;
        flatten_or_bad(r, l->value, at);
        const char *name = l->name.s;
        if (l->emit && !check_emit(r, lets, i)) name = NULL;
        if (!l->emit) define_slot(r, DECL_LET, l->name);
        Decl *d = l->emit ? define_emit(r, l->name) : r->body->slots.data[r->body->nslots - 1];
        Instr *in = put(r, l->emit ? I_EMIT : I_LET, at);
        in->decl = d;
        in->n = r->body->nslots - 1;
        in->name = name;
    }
}

static void check_depth(Resolve *r, Span at) {
    if (r->body->depth <= SEMA_MAX_CALLS) return;
    diag_error(r->s->diags, at, "'%s' calls more than %d functions deep", r->body->name,
               SEMA_MAX_CALLS);
    r->body->bad = true;
    r->body->depth = 0; // said once; what calls this is bad, not deep
}

Body *resolve_body(Sema *s, const Scope *outer, BodyKind kind, const AstItem *item, Decl *d) {
    Resolve r = begin(s, outer, kind, item->name.s);
    r.item = item;
    r.body->decl = d;
    for (int i = 0; i < item->params.n; i++) define_slot(&r, DECL_PARAM, item->params.data[i]);
    r.body->nparams = item->params.n;
    resolve_lets(&r, &item->body.lets);
    flatten_or_bad(&r, item->body.result, item->name.span);
    check_depth(&r, item->name.span);
    sema_scope(s, item->span, &r.scope);
    return r.body;
}

Body *resolve_broken(Sema *s, const char *name) {
    Body *b = ARENA_NEW(s->arena, Body);
    *b = (Body){.name = name, .nparams = -1, .bad = true};
    return b;
}

Body *resolve_expr(Sema *s, const Scope *outer, BodyKind kind, const AstExpr *e, const char *name) {
    Resolve r = begin(s, outer, kind, name);
    flatten(&r, e);
    check_depth(&r, e->span);
    return r.body;
}
