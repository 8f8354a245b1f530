// variant.c: checks an attention or a recurrence: its dims, then its inputs, then its clauses, in
// whatever order they stand.
//
// In: the item and the scope of its module. Out: a Variant. Holds afterwards: (if nothing was
// reported) D and Dv are at least 1, all required clauses are there and typed, each clause's
// expression refers to its own parameters' symbols only.
#include "frontend/sema.h"

#include <string.h>

enum { MAX_PARAMS = 5 };

static const struct ClauseInfo {
    const char *name;
    VariantKind kind;
    TxType result;
    bool required;
    TxSym params[MAX_PARAMS];
    int nparams;
} clauses[] = {
#define PARAMS(...) {__VA_ARGS__}, (int)(sizeof((TxSym[]){__VA_ARGS__}) / sizeof(TxSym))
#define CLAUSE(e, kind, name, result, required, absent, params, doc)                               \
    {name, VARIANT_##kind, result, required, params},
#include "clauses.def"
#undef CLAUSE
#undef PARAMS
};

typedef struct Check {
    Sema *s;
    Variant *v;
    const AstItem *item;
    Scope scope; // the sizes, dims and inputs
    const AstItem *clause[CLAUSE_COUNT];
} Check;

// item: what it is of; NULL: nothing that is written.
static Decl *define(Check *c, DeclKind kind, const AstItem *item, const char *name, Span span,
                    Tx *value) {
    Decl *d = ARENA_NEW(c->s->arena, Decl);
    *d = (Decl){.kind = kind, .name = name, .span = span, .item = item, .value = value};
    return scope_define(c->s, &c->scope, d) ? d : NULL;
}

// ---- sizes and dims

// Whether it is defined already. That the module defines it is reported here, where no dim is of that name: that is reported there.
static bool is_taken(const Check *c, const char *name) {
    const Decl *old = scope_find(&c->scope, name);
    if (!old) return false;
    for (int i = 0; i < c->item->items.n; i++) {
        const AstItem *item = c->item->items.data[i];
        if (item->kind == AST_DIM && !strcmp(item->name.s, name)) return true;
    }
    Diag *d = diag_error(
        c->s->diags, old->span, "'%s' is a %s of every %s: it may not be redefined%s", name,
        *name == 'D' ? "dim" : "size", c->v->kind == VARIANT_ATTENTION ? "attention" : "recurrence",
        *name == 'D' ? "; 'dim' in the variant gives it" : "");
    diag_note(c->s->diags, d, c->v->span, "this is one");
    return true;
}

// Sizes are in scope of every variant; a constant or function of that name would be shadowed, which
// nothing may be.
static void add_sizes(Check *c) {
    static const char *const recurrence[RSIZE_FREE] = {
#define BOTH(name) #name,
#define RECURRENCE BOTH
#define ATTENTION(name)
#define DIM(name)
#define SIZE(of, name, doc) of(name)
#include "predefined.def"
#undef BOTH
#undef RECURRENCE
#undef ATTENTION
#undef DIM
    };
    Variant *v = c->v;
    if (v->kind == VARIANT_ATTENTION)
        sizes_init(c->s->arena, &v->sizes);
    else
        for (int i = 0; i < RSIZE_FREE; i++) VEC_PUSH(c->s->arena, &v->sizes, recurrence[i]);
    for (int i = 0; i < v->sizes.n; i++) {
        const char *name = v->sizes.data[i];
        if (!is_taken(c, name))
            define(c, DECL_SIZE, NULL, name, (Span){0}, tx_sym(&c->s->tx, TS_SIZE, i, (Span){0}));
    }
}

static Tx *dim_value(Check *c, const AstItem *item) {
    Sema *s = c->s;
    const char *name = item->name.s;
    bool given = sema_is_defined(s, name);
    Tx *v;
    if (item->broken) return tx_bad(&s->tx);
    if (given)
        v = sema_define(s, name, TX_I32, false, item->name.span);
    else
        v = elab_run(elab_new(s, NULL), resolve_expr(s, &c->scope, BODY_DIM, item->value, name),
                     NULL);
    if (v->type == TX_BAD) return v;
    Span at = given ? (Span){0} : item->value->span;
    if (v->type != TX_I32)
        diag_error(s->diags, at, "dim '%s' is i32, not %s", name, tx_type_name(v->type));
    else if (!v->known)
        diag_error(s->diags, at, "dim '%s' is a constant: sizes are known at launch only", name);
    else if (v->value.i < 1)
        diag_error(s->diags, at, "dim '%s' is at least 1, not %d", name, v->value.i);
    else
        return v;
    if (given) s->status = FE_USAGE;
    return tx_bad(&s->tx);
}

static int dim_named(Check *c, const char *name) { // 1 after a mistake in it, which was reported
    const Decl *d = names_get(&c->scope.names, name);
    return d && d->kind == DECL_DIM && d->value->known ? d->value->value.i : 1;
}

static void check_dims(Check *c) {
    Sema *s = c->s;
    for (int i = 0; i < c->item->items.n; i++) {
        const AstItem *item = c->item->items.data[i];
        if (item->kind == AST_DIM)
            define(c, DECL_DIM, item, item->name.s, item->name.span, dim_value(c, item));
    }
    Span at = c->item->name.span;
    s->unwritten = true;
    if (!is_taken(c, "D")) {
        if (!c->item->broken)
            diag_error(
                s->diags, at,
                "'%s' has no 'dim D': write 'dim D = 64;', the length of the rows of q and k",
                c->v->name);
        define(c, DECL_DIM, NULL, "D", at, tx_bad(&s->tx));
    }
    if (!is_taken(c, "Dv")) {
        AstExpr d = {.kind = AST_NAME, .span = at, .name = {"D", at}};
        AstItem dv = {.kind = AST_DIM, .name = {"Dv", at}, .value = &d};
        define(c, DECL_DIM, NULL, "Dv", at, dim_value(c, &dv));
    }
    s->unwritten = false;
    c->v->D = dim_named(c, "D");
    c->v->Dv = dim_named(c, "Dv");
}

// ---- rows

// All of q, all of k, and their product.
static void add_rows(Check *c) {
    TxRow all = {-1, 0, c->v->D};
    RowPair dot = {{0, 0}};
    for (int side = 0; side < ROW_SIDES; side++) VEC_PUSH(c->s->arena, &c->v->rows[side], all);
    VEC_PUSH(c->s->arena, &c->v->dots, dot);
}

// ---- share

static void check_share(Check *c, const AstItem *item) {
    Diags *d = c->s->diags;
    const Variant *v = c->v;
    if (v->kind == VARIANT_RECURRENCE)
        diag_error(d, item->name.span,
                   "a recurrence shares nothing: 'share v = k' is of attentions");
    else if (strcmp(item->name.s, "v") || strcmp(item->of.s, "k"))
        diag_error(d, item->name.span, "only 'share v = k' is known");
    else if (v->v_in_k)
        diag_error(d, item->name.span, "'%s' shares v with k already", v->name);
    else if (v->Dv > v->D)
        diag_error(d, item->name.span, "v is the first %d channels of k, which has D = %d", v->Dv,
                   v->D);
    else
        c->v->v_in_k = true;
}

// ---- inputs

static TxExtent named_extent(Check *c, const AstItem *item, const AstName *name) {
    Sema *s = c->s;
    const TxExtent unknown = {-1, INT32_MAX}; // no index is outside of it
    Decl *d = scope_find(&c->scope, name->s);
    if (d) sema_use(s, name->span, d, false);
    if (!d) {
        warn_size_of_others(s, c->v, name);
        VEC_PUSH(s->arena, &c->v->sizes, name->s);
        int i = c->v->sizes.n - 1;
        define(c, DECL_SIZE, item, name->s, name->span, tx_sym(&s->tx, TS_SIZE, i, (Span){0}));
        return (TxExtent){i, 0};
    }
    if (d->kind == DECL_SIZE) return (TxExtent){d->value->index, 0};
    if ((d->kind == DECL_DIM || d->kind == DECL_CONST) && d->value->type == TX_BAD) return unknown;
    bool integer = (d->kind == DECL_DIM || d->kind == DECL_CONST) && d->value->type == TX_I32;
    if (integer && d->value->value.i >= 1) return (TxExtent){-1, d->value->value.i};
    Diag *g = diag_error(s->diags, name->span,
                         integer ? "an extent is at least 1, and '%s' is not"
                                 : "'%s' is %s: it is no extent",
                         name->s, decl_kind_name(d));
    if (d->span.file) diag_note(s->diags, g, d->span, "'%s' is defined here", d->name);
    return unknown;
}

static void check_extents(Check *c, const AstItem *item, TxInput *in) {
    Diags *d = c->s->diags;
    for (int i = 0; i < item->extents.n; i++) {
        const AstExtent *x = &item->extents.data[i];
        TxExtent e = {-1, (int32_t)x->i};
        if (x->name.s)
            e = named_extent(c, item, &x->name);
        else if (x->i < 1 || x->i > INT32_MAX)
            diag_error(d, x->name.span, "an extent is at least 1 and at most %d", INT32_MAX);
        if (i < EX_MAX_RANK) in->extent[in->rank++] = e;
    }
    if (item->extents.n > EX_MAX_RANK)
        diag_error(d, item->name.span, "'%s' has %d extents: at most %d are supported", in->name,
                   item->extents.n, EX_MAX_RANK);
}

static bool input_dtype(const AstName *name, Dtype *type) {
    static const Dtype allowed[] = {
#define TYPE(dtype, doc) DT_##dtype,
#include "predefined.def"
    };
    for (size_t i = 0; i < sizeof allowed / sizeof *allowed; i++)
        if (!strcmp(name->s, dtype_name(allowed[i]))) {
            *type = allowed[i];
            return true;
        }
    return false;
}

static bool is_tensor_name(const Check *c, const char *s) {
    static const struct {
        VariantKind of;
        const char *name;
    } tensors[] = {
#define TENSOR(of, name, shape, doc) {VARIANT_##of, #name},
#include "predefined.def"
    };
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++)
        if (tensors[i].of == c->v->kind && !strcmp(s, tensors[i].name)) return true;
    return false;
}

static bool is_gradient_of(const char *name, const TxInput *x) {
    return x->grad && name[0] == 'd' && !strcmp(name + 1, x->name);
}

// The backward gives the gradient of a `grad` input by this name.
static void check_gradient_names(const Check *c, const TxInput *in) {
    for (int i = 0; i < c->v->inputs.n; i++) {
        const TxInput *x = &c->v->inputs.data[i];
        bool taken = is_gradient_of(in->name, x), takes = is_gradient_of(x->name, in);
        if (!taken && !takes) continue;
        Diag *d = diag_error(c->s->diags, in->span, "'%s' is the name of the gradient of '%s'",
                             taken ? in->name : x->name, taken ? x->name : in->name);
        diag_note(c->s->diags, d, x->span, taken ? "this input is marked `grad`" : "taken here");
    }
}

static void check_input(Check *c, const AstItem *item) {
    Sema *s = c->s;
    if (item->broken) {
        define(c, DECL_INPUT, item, item->name.s, item->name.span, tx_bad(&s->tx));
        return;
    }
    TxInput in = {.name = item->name.s, .span = item->name.span};
    if (is_tensor_name(c, in.name)) {
        diag_error(s->diags, in.span,
                   "an input may not be called '%s': that is a tensor of every variant", in.name);
        Decl *d = define(c, DECL_INPUT, item, in.name, in.span, tx_bad(&s->tx));
        if (d) d->refused = true;
        return;
    }
    if (!input_dtype(&item->type, &in.dtype))
        diag_error(s->diags, item->type.span,
                   "'%s' is no type: inputs are f32, f16, bf16, i32, bool, e4m3, e5m2 or i8",
                   item->type.s);
    check_extents(c, item, &in);
    if (item->grad.s && strcmp(item->grad.s, "grad"))
        diag_error(s->diags, item->grad.span, "unexpected '%s': 'grad' may stand here",
                   item->grad.s);
    in.grad = item->grad.s != NULL;
    if (in.grad && (dtype_reads(in.dtype) != EX_F32 || dtype_byte(in.dtype)))
        diag_error(s->diags, item->grad.span,
                   "'%s' is %s: only f32, f16 and bf16 inputs have a gradient", in.name,
                   dtype_name(in.dtype));
    Tx *value = NULL;
    if (!in.rank) {
        value = tx_sym(&s->tx, TS_SCALAR, c->v->inputs.n, (Span){0});
        value->type = (TxType)dtype_reads(in.dtype);
        value = tx_of_input(&s->tx, &in, value);
    }
    Decl *d = define(c, DECL_INPUT, item, in.name, in.span, value);
    if (!d) return;
    check_gradient_names(c, &in);
    d->input = c->v->inputs.n;
    VEC_PUSH(s->arena, &c->v->inputs, in);
    if (c->v->inputs.n == SEMA_MAX_INPUTS + 1)
        diag_error(s->diags, in.span, "'%s' has more than %d inputs", c->v->name, SEMA_MAX_INPUTS);
}

// ---- clauses

static bool is_of_item(const Sema *s, int i) {
    return s->item->kind == (clauses[i].kind == VARIANT_ATTENTION ? AST_ATTENTION : AST_RECURRENCE);
}

bool variant_clause_takes(const Sema *s, const char *clause, const char *name) {
    for (int i = 0; i < CLAUSE_COUNT && clause; i++)
        for (int k = 0; k < clauses[i].nparams && is_of_item(s, i); k++)
            if (!strcmp(clauses[i].name, clause) &&
                !strcmp(tx_sym_name(clauses[i].params[k]), name))
                return true;
    return false;
}

// Of a name that a clause does not know: as which parameter it is seen, or in which clauses.
const char *variant_name_hint(Sema *s, const char *clause, const char *name) {
    Text t = text_new(s->arena);
    if (s->item->kind == AST_RECURRENCE && clause && !strcmp(clause, "output") &&
        strchr("qkv", *name) && !name[1])
        return arena_printf(
            s->arena,
            " ('output' has o and no other row: what reads %s is added to o behind the call)",
            name);
    bool here = false;
    for (int i = 0; i < CLAUSE_COUNT; i++)
        for (int k = 0; k < clauses[i].nparams && is_of_item(s, i); k++)
            if (!strcmp(tx_sym_name(clauses[i].params[k]), name) && !here) {
                here = !strcmp(clauses[i].name, clause);
                if (here) t = text_new(s->arena);
                text_printf(&t, "%s%s(", t.n ? " or " : "", clauses[i].name);
                for (int j = 0; j <= k; j++)
                    text_printf(&t, "%s%s", j ? ", " : "", tx_sym_name(clauses[i].params[j]));
                text_puts(&t, ")");
            }
    return t.n ? arena_printf(s->arena, " (it is a parameter: %s)", t.s) : NULL;
}

static int find_clause(VariantKind kind, const char *name) {
    for (int i = 0; i < CLAUSE_COUNT; i++)
        if (clauses[i].kind == kind && !strcmp(clauses[i].name, name)) return i;
    return -1;
}

static void unknown_clause(Check *c, const AstItem *item) {
    static const char *const kinds[] = {
        [VARIANT_ATTENTION] = "an attention", [VARIANT_RECURRENCE] = "a recurrence"};
    const char *what = kinds[c->v->kind], *name = item->name.s;
    NameGuess g;
    names_guess_init(&g, name);
    for (int i = 0; i < CLAUSE_COUNT; i++) {
        if (clauses[i].kind == c->v->kind) names_guess(&g, clauses[i].name);
        if (clauses[i].kind == c->v->kind || strcmp(clauses[i].name, name) != 0) continue;
        diag_error(c->s->diags, item->name.span, "unknown clause '%s' in %s (%s has it)", name,
                   what, kinds[clauses[i].kind]);
        return;
    }
    const char *habit = sema_habit(name);
    if (habit) {
        diag_error(c->s->diags, item->name.span, "unknown clause '%s' (%s)", name, habit);
        return;
    }
    Diag *error =
        diag_error(c->s->diags, item->name.span, "unknown clause '%s' in %s%s%s%s", name, what,
                   g.best ? " (did you mean '" : "", g.best ? g.best : "", g.best ? "'?)" : "");
    diag_fix(c->s->diags, error, item->name.span, g.best);
}

static void emit_outputs(Check *c, ElabEmits *emits);

static void check_clause(Check *c, const AstItem *item) {
    Sema *s = c->s;
    int id = find_clause(c->v->kind, item->name.s);
    if (id < 0) {
        if (!item->broken) unknown_clause(c, item);
        return;
    }
    const struct ClauseInfo *info = &clauses[id];
    Decl *d = ARENA_NEW(s->arena, Decl);
    *d = (Decl){.kind = DECL_CLAUSE,
                .name = info->name,
                .span = item->name.span,
                .item = item,
                .builtin = id};
    sema_use(s, d->span, d, true);
    if (c->clause[id]) {
        Diag *g = diag_error(s->diags, item->name.span, "'%s' has a clause '%s' already",
                             c->v->name, info->name);
        diag_note(s->diags, g, c->clause[id]->name.span, "it is here");
        return;
    }
    c->clause[id] = item;
    if (item->broken) return;
    Body *b =
        resolve_body(s, &c->scope, id == CLAUSE_NORMALIZE ? BODY_NORMALIZE : BODY_CLAUSE, item, d);
    if (item->params.n > info->nparams) {
        diag_error(s->diags, item->params.data[info->nparams].span,
                   "'%s' has at most %d parameters%s", info->name, info->nparams,
                   id == CLAUSE_SCORE ? ": what depends on batch entry, head or position stands in "
                                        "'modify(s, b, h, q_idx, kv_idx)'"
                   : id == CLAUSE_NORMALIZE ? ": it takes the whole row; what depends on the key "
                                              "stands in 'modify(s, b, h, q_idx, kv_idx)'"
                   : id == CLAUSE_MASK ? ": it sees no score; what depends on the score stands in "
                                         "'modify(s, b, h, q_idx, kv_idx)'"
                                       : "");
        return;
    }
    bool misplaced = warn_places(s, item, info->name, info->params, info->nparams);
    Tx *args[MAX_PARAMS];
    for (int i = 0; i < item->params.n; i++)
        args[i] = tx_sym(&s->tx, info->params[i], 0, item->params.data[i].span);
    Elab *e = elab_new(s, c->v);
    Tx *result = elab_run(e, b, args);
    if (item->body.result)
        result = elab_coerce(e, info->result, result, item->body.result->span,
                             arena_printf(s->arena, "the result of '%s'", info->name));
    warn_lets(s, b);
    if (!misplaced) warn_pair(s, item, (ClauseId)id, result, info->params, info->nparams);
    c->v->clause[id] = result;
    c->v->per_channel_decay |= id == CLAUSE_DECAY && item->params.n == info->nparams;
    emit_outputs(c, elab_emits(e));
}

static bool emit_taken(const Check *c, const char *name) {
    for (int i = 0; i < c->v->emits.n; i++)
        if (!strcmp(c->v->emits.data[i].name, name)) return true;
    return false;
}

// Of one's own that takes the name of another's: who asks for that finds it under another name.
static void warn_emit(Check *c, const ElabEmits *emits, const ElabEmit *other, const char *base) {
    for (int i = 0; i < emits->n; i++)
        if (emits->data[i].own && !other->own && !strcmp(emits->data[i].emit.name, base))
            diag_warning(c->s->diags, emits->data[i].emit.span,
                         "'%s' emits '%s', too: that one is '%s' here", other->from, base,
                         other->emit.name);
}

// Two normalizations may emit the same name (softmax called twice): the clause's own comes first,
// then the first called keeps it, the next is name_2.
static void emit_outputs(Check *c, ElabEmits *emits) {
    for (int own = 1; own >= 0; own--)
        for (int i = 0; i < emits->n; i++) {
            ElabEmit *e = &emits->data[i];
            if (e->own != own) continue;
            const char *base = e->emit.name;
            for (int k = 2; emit_taken(c, e->emit.name); k++)
                e->emit.name = arena_printf(c->s->arena, "%s_%d", base, k);
            if (strcmp(e->emit.name, base) != 0) warn_emit(c, emits, e, base);
            const Decl *d = names_get(&c->scope.names, e->emit.name);
            if (d && d->kind == DECL_INPUT) {
                Diag *g = diag_error(c->s->diags, own ? e->emit.span : d->span,
                                     "'%s' is both an input and what '%s' emits", d->name, e->from);
                diag_note(c->s->diags, g, own ? d->span : e->emit.span,
                          own ? "the input is here" : "it is emitted here");
            }
            VEC_PUSH(c->s->arena, &c->v->emits, e->emit);
        }
}

static void check_complete(Check *c) {
    Diags *d = c->s->diags;
    Span at = c->item->name.span;
    for (int i = 0; i < CLAUSE_COUNT; i++)
        if (!c->item->broken && clauses[i].required && clauses[i].kind == c->v->kind &&
            !c->clause[i])
            diag_error(d, at, "'%s' has no '%s' clause%s", c->v->name, clauses[i].name,
                       i == CLAUSE_NORMALIZE ? "; write 'normalize(s) = s;' for none"
                       : i == CLAUSE_SCORE   ? "; write 'score(q, k) = dot(q, k) * rsqrt(D);'"
                                             : "");
    if (!c->item->broken && c->v->kind == VARIANT_RECURRENCE &&
        !c->clause[CLAUSE_ERASE] != !c->clause[CLAUSE_WRITE]) {
        const AstItem *one =
            c->clause[CLAUSE_ERASE] ? c->clause[CLAUSE_ERASE] : c->clause[CLAUSE_WRITE];
        diag_error(d, one->name.span, "'erase' and 'write' go together: there is no '%s'",
                   c->clause[CLAUSE_ERASE] ? "write" : "erase");
    }
}

Variant *sema_variant(Sema *s, const Scope *module, const AstItem *item) {
    Variant *v = ARENA_NEW(s->arena, Variant);
    v->kind = item->kind == AST_ATTENTION ? VARIANT_ATTENTION : VARIANT_RECURRENCE;
    v->name = item->name.s;
    v->span = item->name.span;
    sema_begin_ops(s);
    Check c = {.s = s, .v = v, .item = item, .scope = {.parent = module}};
    add_sizes(&c);
    check_dims(&c);
    if (v->kind == VARIANT_ATTENTION) add_rows(&c);
    for (int i = 0; i < item->items.n; i++)
        if (item->items.data[i]->kind == AST_SHARE) check_share(&c, item->items.data[i]);
    for (int i = 0; i < item->items.n; i++)
        if (item->items.data[i]->kind == AST_INPUT) check_input(&c, item->items.data[i]);
    for (int i = 0; i < item->items.n; i++)
        if (item->items.data[i]->kind == AST_CLAUSE) check_clause(&c, item->items.data[i]);
    check_complete(&c);
    sema_scope(s, item->span, &c.scope);
    if (!s->diags->errors && !item->broken) warn_variant(s, v, item, &c.scope);
    return v;
}
