// sema.c: checks modules: imports, constants, functions, normalizations; variants go to variant.c.
//
// In: the main file. Out: its variants, typed. Holds afterwards: every name was defined once,
// before its use, and imports form no cycle; all mistakes that do not follow from another were
// reported in one run.
#include "frontend/sema.h"
#include "frontend/source.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct SourceFile {
    SourceText source;
    uint16_t file;
    AstModule *ast;
    bool loading;    // to find import cycles
    Scope scope;     // its own names and what it imports
    NameMap exports; // its own names
    Variants variants;
};

// ---- -DNAME=VALUE

bool sema_is_defined(const Sema *s, const char *name) {
    for (int i = 0; i < s->options->ndefines; i++)
        if (!strcmp(s->options->defines[i].name, name)) return true;
    return false;
}

static bool read_define(const char *text, TxType type, TxValue *v) {
    char *end = NULL;
    if (type == TX_BOOL) {
        v->i = !strcmp(text, "true");
        return v->i || !strcmp(text, "false");
    }
    if (type == TX_I32) {
        if (!*text || strspn(text, "+-0123456789") != strlen(text)) return false;
        long long i = strtoll(text, &end, 10);
        v->i = (int32_t)i;
        return !*end && i >= INT32_MIN && i <= INT32_MAX;
    }
    bool infinite = !strcmp(text, "inf") || !strcmp(text, "-inf");
    if (!infinite && (!*text || strspn(text, "+-0123456789.eE") != strlen(text))) return false;
    *v = tx_number(strtof(text, &end));
    return !*end && end != text && (infinite || !isinf(v->written));
}

Tx *sema_define(Sema *s, const char *name, TxType type, bool is_const, Span span) {
    const char *text = NULL;
    for (int i = 0; i < s->options->ndefines; i++)
        if (!strcmp(s->options->defines[i].name, name)) {
            text = s->options->defines[i].value; // the last one holds
            s->define_used[i] = true;
        }
    TxValue v = {.i = 0};
    if (type == TX_BAD) return tx_bad(&s->tx);
    if (read_define(text, type, &v)) return tx_value(&s->tx, type, v, span);
    if (is_const && type == TX_I32 && strpbrk(text, ".e") && read_define(text, TX_F32, &v))
        return tx_value(&s->tx, TX_F32, v, span); // `const SCALE = 1;` may be made 0.5
    Diag *g = diag_error(s->diags, (Span){0}, "-D%s=%s: '%s' is %s, and this value is none", name,
                         text, name, tx_type_name(type));
    diag_note(s->diags, g, span, "'%s' is defined here", name);
    s->status = FE_USAGE;
    return tx_bad(&s->tx);
}

// ": it has A, D", each once.
static const char *definable(Sema *s, const AstModule *m) {
    NameMap seen = {0};
    Text t = text_new(s->arena);
    for (int i = 0; i < m->items.n; i++) {
        const AstItem *item = m->items.data[i];
        bool constant = item->kind == AST_CONST;
        for (int k = 0; k < (constant ? 1 : item->items.n); k++) {
            const AstItem *x = constant ? item : item->items.data[k];
            if ((!constant && x->kind != AST_DIM) || names_get(&seen, x->name.s)) continue;
            names_put(s->arena, &seen, x->name.s, s);
            text_printf(&t, "%s%s", t.n ? ", " : ": it has ", x->name.s);
        }
    }
    return t.s;
}

static void check_defines(Sema *s, const AstModule *m) {
    for (int i = 0; i < s->options->ndefines; i++)
        if (!s->define_used[i]) {
            diag_error(s->diags, (Span){0}, "-D%s: '%s' has no dim and no const of this name%s",
                       s->options->defines[i].name, s->options->path, definable(s, m));
            s->status = FE_USAGE;
        }
}

// ---- the library

static const char *const modules[] = {"std.normalization", "std.mask", "std.modify", "std.math"};

const char *sema_library_module(Sema *s, const char *name) {
    for (size_t i = 0; i < sizeof modules / sizeof *modules; i++) {
        SourceText source;
        if (!source_import(s->arena, s->options, s->options->path, modules[i], &source)) continue;
        Diags quiet = diag_list(s->arena);
        uint16_t file = diag_add_file(&quiet, source.path, source.text, source.n);
        const AstModule *m = ast_parse(s->arena, &quiet, file, NULL);
        for (int k = 0; k < m->items.n; k++)
            if (m->items.data[k]->kind != AST_IMPORT && !strcmp(m->items.data[k]->name.s, name))
                return modules[i];
    }
    return NULL;
}

// ---- items

static void define_export(Sema *s, SourceFile *f, Decl *d) {
    if (scope_define(s, &f->scope, d)) names_put(s->arena, &f->exports, d->name, d);
}

static Decl *new_decl(Sema *s, DeclKind kind, const AstItem *item) {
    Decl *d = ARENA_NEW(s->arena, Decl);
    *d = (Decl){.kind = kind, .name = item->name.s, .span = item->name.span, .item = item};
    return d;
}

static void check_const(Sema *s, SourceFile *f, const AstItem *item, bool is_main) {
    Decl *d = new_decl(s, DECL_CONST, item);
    d->value = tx_bad(&s->tx);
    sema_begin_ops(s);
    if (!item->broken)
        d->value = elab_run(elab_new(s, NULL),
                            resolve_expr(s, &f->scope, BODY_CONST, item->value, d->name), NULL);
    if (is_main && sema_is_defined(s, d->name))
        d->value = sema_define(s, d->name, d->value->type, true, item->name.span);
    define_export(s, f, d);
}

static void check_function(Sema *s, SourceFile *f, const AstItem *item) {
    bool fn = item->kind == AST_FN;
    Decl *d = new_decl(s, fn ? DECL_FN : DECL_NORMALIZATION, item);
    d->body = item->broken ? resolve_broken(s, d->name)
                           : resolve_body(s, &f->scope, fn ? BODY_FN : BODY_NORMALIZATION, item, d);
    if (!item->broken) warn_lets(s, d->body);
    define_export(s, f, d);
}

static SourceFile *load(Sema *s, const SourceText *source, Span import);

static void use_module(Sema *s, const AstItem *item, uint16_t file) {
    Decl *d = new_decl(s, DECL_MODULE, item);
    d->span = (Span){file, 0, 0};
    sema_use(s, item->name.span, d, false);
}

static void import_names(Sema *s, SourceFile *f, const SourceFile *from, const AstItem *item) {
    for (int i = 0; i < from->exports.entries.n; i++) {
        Decl *d = from->exports.entries.data[i].value;
        const Decl *old = scope_find(&f->scope, d->name);
        if (old == d) // imported twice
            continue;
        if (!old) {
            names_put(s->arena, &f->scope.names, d->name, d);
            continue;
        }
        Diag *g = diag_error(s->diags, item->span, "'%s' of '%s' is already defined: it is %s",
                             d->name, item->name.s, decl_kind_name(old));
        if (old->span.file) diag_note(s->diags, g, old->span, "'%s' is defined here", d->name);
    }
}

static void unknown_module(Sema *s, const AstItem *item) {
    NameGuess g;
    names_guess_init(&g, item->name.s);
    for (size_t i = 0; i < sizeof modules / sizeof *modules; i++) {
        if (!strcmp(strchr(modules[i], '.') + 1, item->name.s)) g.best = modules[i]; // without std.
        names_guess(&g, modules[i]);
    }
    const char *meant = g.best ? arena_printf(s->arena, " (did you mean '%s'?)", g.best) : "";
    Diag *error =
        diag_error(s->diags, item->name.span, "there is no module '%s'%s", item->name.s, meant);
    diag_fix(s->diags, error, item->name.span, g.best);
}

static void check_import(Sema *s, SourceFile *f, const AstItem *item) {
    SourceText source;
    if (!source_import(s->arena, s->options, f->source.path, item->name.s, &source)) {
        unknown_module(s, item);
        return;
    }
    SourceFile *old = names_get(&s->files, source.key);
    if (old && old->loading) {
        diag_error(s->diags, item->name.span, "'%s' imports itself%s", item->name.s,
                   old == f ? "" : ", through what it imports");
        return;
    }
    if (!old && s->import_depth == SEMA_MAX_IMPORTS) {
        diag_error(s->diags, item->name.span, "imports more than %d deep", SEMA_MAX_IMPORTS);
        return;
    }
    SourceFile *from = old ? old : load(s, &source, item->name.span);
    use_module(s, item, from->file);
    import_names(s, f, from, item);
    if (!from->exports.entries.n && !s->diags->errors)
        diag_note(s->diags, NULL, item->name.span,
                  "'%s' brings no name: attentions and recurrences are not imported", item->name.s);
}

static void check_variant(Sema *s, SourceFile *f, const AstItem *item) {
    sema_use(s, item->name.span, new_decl(s, DECL_VARIANT, item), true);
    for (int i = 0; i < f->variants.n; i++) {
        const Variant *old = f->variants.data[i];
        if (strcmp(old->name, item->name.s)) continue;
        Diag *g =
            diag_error(s->diags, item->name.span, "there is already a variant '%s'", old->name);
        diag_note(s->diags, g, old->span, "it is defined here");
        return;
    }
    Variant *v = sema_variant(s, &f->scope, item);
    VEC_PUSH(s->arena, &f->variants, v);
}

static void check_item(Sema *s, SourceFile *f, const AstItem *item, bool is_main) {
    s->item = item;
    switch (item->kind) {
    case AST_IMPORT: check_import(s, f, item); return;
    case AST_CONST: check_const(s, f, item, is_main); return;
    case AST_FN:
    case AST_NORMALIZATION: check_function(s, f, item); return;
    case AST_ATTENTION:
    case AST_RECURRENCE:
        if (is_main) // those of an imported module are not part of the artifact
            check_variant(s, f, item);
        return;
    case AST_DIM:
    case AST_INPUT:
    case AST_SHARE:
    case AST_CLAUSE: return;
    }
}

// import: the path in the import that brings it; of no file: it is the main file.
static SourceFile *load(Sema *s, const SourceText *source, Span import) {
    bool is_main = !import.file;
    const AstModule *outer = s->ast;
    const AstItem *outer_item = s->item;
    SourceFile *f = ARENA_NEW(s->arena, SourceFile);
    f->source = *source;
    f->loading = true;
    f->scope.parent = &s->builtins;
    names_put(s->arena, &s->files, source->key, f);
    f->file = diag_add_file(s->diags, source->path, source->text, source->n);
    if (s->options->uses) {
        Uses *u = s->options->uses;
        while (u->imported.n <= f->file) VEC_PUSH(s->arena, &u->imported, import);
    }
    f->ast = ast_parse(s->arena, s->diags, f->file, NULL);
    s->ast = f->ast;
    s->import_depth++;
    for (int i = 0; i < f->ast->items.n; i++) check_item(s, f, f->ast->items.data[i], is_main);
    s->import_depth--;
    s->ast = outer;
    s->item = outer_item;
    f->loading = false;
    sema_scope(s, (Span){f->file, 0, (uint32_t)source->n}, &f->scope);
    return f;
}

// ---- the public face

Module *fe_load(Arena *a, Diags *d, const FeOptions *options, FeStatus *status) {
    Sema s = {.arena = a, .diags = d, .options = options, .tx = {.arena = a}};
    s.define_used = ARENA_ARRAY(a, bool, options->ndefines);
    int before = d->errors;
    sema_init_builtins(&s);
    SourceText source;
    const char *why = "";
    if (!source_main(a, options, &source, &why)) {
        diag_error(d, (Span){0}, "cannot read '%s': %s", options->path, why);
        *status = FE_SYSTEM;
        return NULL;
    }
    SourceFile *f = load(&s, &source, (Span){0});
    if (options->uses) options->uses->ast = f->ast;
    if (d->errors == before && !f->variants.n && !options->module)
        diag_error(d, (Span){f->file, 0, 0}, "'%s' holds no attention and no recurrence",
                   options->path);
    if (d->errors == before) // what could not be read may have held the name
        check_defines(&s, f->ast);
    *status = s.status ? s.status : d->errors > before ? FE_SOURCE : FE_OK;
    if (*status) return NULL;
    Module *m = ARENA_NEW(a, Module);
    *m = (Module){.path = options->path, .variants = f->variants, .ast = f->ast};
    return m;
}

Variant *fe_find(const Module *m, const char *name) {
    if (!name) return m->variants.n == 1 ? m->variants.data[0] : NULL;
    for (int i = 0; i < m->variants.n; i++)
        if (!strcmp(m->variants.data[i]->name, name)) return m->variants.data[i];
    return NULL;
}

void fe_print_ast(Text *out, const Module *m) { ast_print(out, m->ast); }
