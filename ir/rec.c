// rec.c: the recurrence program as text.
//
//     recurrence mamba2 D=128 Dv=64
//       input dt: f32[B, H, S]
//       query = q
//       key = (k * dt![b, h, t])
//       value = v
//       decay = exp((dt![b, h, t] * A![h]))
//       output = o
#include "ir/rec.h"

void rec_sizes(Arena *a, SizeNames *s) {
    static const char *const names[RSIZE_FREE] = {
        [RSIZE_B] = "B",   [RSIZE_H] = "H",   [RSIZE_HQ] = "Hq",
        [RSIZE_HK] = "Hk", [RSIZE_HV] = "Hv", [RSIZE_S] = "S"};
    *s = (SizeNames){0};
    for (int i = 0; i < RSIZE_FREE; i++) VEC_PUSH(a, s, names[i]);
}

static const char *name_of(void *ctx, ExSym sym, int index) {
    const RecProgram *p = ctx;
    if (sym == SYM_SIZE) return p->sizes.data[index];
    return sym == SYM_SCALAR ? p->inputs.data[index].name : NULL;
}

static const char *input_of(void *ctx, int input) {
    const RecProgram *p = ctx;
    return p->inputs.data[input].name;
}

ExNames rec_names(const RecProgram *p) {
    return (ExNames){.name = name_of, .input = input_of, .ctx = (void *)p};
}

int rec_clauses(const RecProgram *p, const char *name[REC_CLAUSES], const Ex *clause[REC_CLAUSES]) {
    const struct {
        const char *name;
        const Ex *e;
    } all[REC_CLAUSES] = {{"query", p->query}, {"key", p->key},      {"value", p->value},
                          {"decay", p->decay}, {"erase", p->erase},  {"write", p->write},
                          {"bonus", p->bonus}, {"output", p->output}};
    int n = 0;
    for (int i = 0; i < REC_CLAUSES; i++) {
        if (!all[i].e) continue;
        if (name) name[n] = all[i].name;
        if (clause) clause[n] = all[i].e;
        n++;
    }
    return n;
}

void rec_print(Text *out, const RecProgram *p) {
    ExNames names = rec_names(p);
    const char *name[REC_CLAUSES];
    const Ex *clause[REC_CLAUSES];
    int n = rec_clauses(p, name, clause);
    text_printf(out, "recurrence %s D=%d Dv=%d\n", p->name, p->D, p->Dv);
    for (int i = 0; i < p->inputs.n; i++) row_print_input(out, &p->inputs.data[i], &names);
    for (int i = 0; i < n; i++) {
        text_printf(out, "  %s = ", name[i]);
        ex_print(out, clause[i], &names);
        text_puts(out, "\n");
    }
}
