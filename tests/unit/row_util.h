// row_util.h: row programs from short texts, for the tests of the derivations:
//     "m = rowmax s; w = exp((s - m)); emit lse = m"
#ifndef TESTS_UNIT_ROW_UTIL_H
#define TESTS_UNIT_ROW_UTIL_H

#include "ir/expr_ops.h"
#include "ir/row.h"
#include "tests/unit/test.h"

static inline const Ex *read(RowProgram *p, const char *s) {
    ExNames names = row_names(p);
    const char *error = NULL;
    const Ex *e = ex_parse(p->pool, &s, &names, &error);
    ck_assert_msg(e && !*s, "%s: %s", s, error ? error : "more text");
    return e;
}

static inline RowProgram *row_new(Arena *a) {
    RowProgram *p = ARENA_NEW(a, RowProgram);
    p->arena = a;
    p->pool = ex_pool(a);
    p->name = "test";
    p->D = p->Dv = 4;
    sizes_init(a, &p->sizes);
    static const char *const scalars[] = {"sink", "temp"};
    for (int i = 0; i < 2; i++) {
        RowInput in = {.name = scalars[i], .dtype = DT_F32, .grad = true};
        VEC_PUSH(a, &p->inputs, in);
    }
    row_whole(p);
    p->score = p->modified = ex_symbol(p->pool, SYM_DOT);
    p->mask = ex_bool(p->pool, true);
    p->output = ex_symbol(p->pool, SYM_O);
    return p;
}

static inline void add_reduce(RowProgram *p, const char *name, ExOp op, const Ex *f) {
    RowReduce r = {.op = op, .f = f, .name = name, .written = name};
    VEC_PUSH(p->arena, &p->reduces, r);
}

static inline void read_statement(RowProgram *p, char *text) {
    char *value = strstr(text, " = ") + 3;
    value[-3] = 0;
    if (!strncmp(text, "emit ", 5)) {
        RowEmit e = {text + 5, read(p, value), {0, 0, 0}};
        VEC_PUSH(p->arena, &p->emits, e);
        return;
    }
    for (int op = EX_ROWMAX; op <= EX_ROWSUM; op++) {
        size_t n = strlen(ex_op_name((ExOp)op));
        if (strncmp(value, ex_op_name((ExOp)op), n)) continue;
        add_reduce(p, text, (ExOp)op, read(p, value + n + 1));
        return;
    }
    const Ex **to = !strcmp(text, "output")     ? &p->output
                    : !strcmp(text, "modified") ? &p->modified
                                                : &p->weight;
    *to = read(p, value);
}

static inline RowProgram *row_of(Arena *a, const char *text) {
    RowProgram *p = row_new(a);
    char *s = arena_strdup(a, text);
    for (char *end; s; s = end) {
        end = strstr(s, "; ");
        if (end) *end = 0, end += 2;
        read_statement(p, s);
    }
    return p;
}

#endif
