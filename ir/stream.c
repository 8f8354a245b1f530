// stream.c: the streaming form as text. A running state is written @m, the finished reduction m, a
// shift A0.
//
//     stream sweeps=1
//       s = dot
//       sweep 0
//         @m = rowmax s
//         @l = rowsum exp2(fma(s, 1.442695, A0)) shift A0
//         A0 = (@m * -1.442695)
//         acc = exp2(fma(s, 1.442695, A0)) shift A0
//       m = @m
//       l = @l
//       factor = rcp(l)
//       empty = (@m == -inf)
#include "ir/stream.h"

typedef struct Names {
    const Stream *s;
    ExNames row;
} Names;

static const char *name_of(void *ctx, ExSym sym, int index) {
    const Names *n = ctx;
    Arena *a = n->s->row->arena;
    if (sym == SYM_STATE && index < n->s->states.n)
        return arena_printf(a, "@%s", n->s->states.data[index].name);
    if (sym == SYM_SHIFT) return arena_printf(a, "A%d", index);
    if (sym == SYM_RISE) return arena_printf(a, "rise%d", index);
    return n->row.name(n->row.ctx, sym, index);
}

static const char *input_of(void *ctx, int input) {
    const Names *n = ctx;
    return n->row.input(n->row.ctx, input);
}

static void line(Text *out, const char *what, const Ex *e, const ExNames *names) {
    text_printf(out, "%s = ", what);
    ex_print(out, e, names);
    text_puts(out, "\n");
}

// A scale where it first serves.
static void print_scale(Text *out, const Stream *s, int k, const ExNames *names) {
    const StreamScale *scale = &s->scales.data[k];
    for (int i = 0; i < scale->n; i++)
        line(out, arena_printf(out->arena, "    C%d has base", k), scale->base[i], names);
    line(out, arena_printf(out->arena, "    C%d", k), scale->ratio, names);
}

static bool scale_in(const Stream *s, int scale, int sweep) {
    bool here = sweep == s->nsweeps - 1 && s->scale == scale;
    for (int i = 0; i < s->states.n; i++)
        here |= s->states.data[i].scale == scale && s->states.data[i].sweep == sweep;
    return here;
}

// Shifts that first serve in this sweep; an earlier one may serve again.
static bool shift_in(const Stream *s, int shift, int sweep) {
    bool here = sweep == s->nsweeps - 1 && s->shift == shift;
    for (int i = 0; i < s->states.n; i++) {
        if (s->states.data[i].shift != shift) continue;
        if (s->states.data[i].sweep < sweep) return false;
        here |= s->states.data[i].sweep == sweep;
    }
    return here;
}

static void print_sum(Text *out, const Ex *elem, int shift, int scale, const ExNames *names) {
    ex_print(out, elem, names);
    if (shift >= 0) text_printf(out, " shift A%d", shift);
    if (scale >= 0) text_printf(out, " scale C%d", scale);
    text_puts(out, "\n");
}

static void print_sweep(Text *out, const Stream *s, int sweep, const ExNames *names) {
    text_printf(out, "  sweep %d\n", sweep);
    for (int i = 0; i < s->states.n; i++) {
        const StreamState *st = &s->states.data[i];
        if (st->sweep != sweep) continue;
        text_printf(out, "    @%s = %s ", st->name, ex_op_name(st->op));
        print_sum(out, st->elem, st->shift, st->scale, names);
    }
    for (int k = 0; k < s->shifts.n; k++)
        if (shift_in(s, k, sweep)) {
            line(out, arena_printf(out->arena, "    A%d", k), s->shifts.data[k], names);
            if (s->units.data[k])
                line(out, arena_printf(out->arena, "    A%d is in units of", k), s->units.data[k],
                     names);
        }
    for (int k = 0; k < s->scales.n; k++)
        if (scale_in(s, k, sweep)) print_scale(out, s, k, names);
    if (sweep < s->nsweeps - 1) return;
    text_puts(out, "    acc = ");
    print_sum(out, s->elem, s->shift, s->scale, names);
}

void stream_print(Text *out, const Stream *s) {
    Names n = {s, row_names(s->row)};
    ExNames names = {name_of, input_of, NULL, NULL, &n};
    text_printf(out, "stream %s sweeps=%d\n", s->row->name, s->nsweeps);
    line(out, "  s", s->row->modified, &names);
    for (int t = 0; t < s->nsweeps; t++) print_sweep(out, s, t, &names);
    for (int k = 0; k < s->finished.n; k++)
        line(out, arena_printf(out->arena, "  %s", s->row->reduces.data[k].name),
             s->finished.data[k], &names);
    if (s->factor) line(out, "  factor", s->factor, &names);
    if (s->empty) line(out, "  empty", s->empty, &names);
    for (int i = 0; i < s->emits.n; i++) {
        const RowEmit *e = &s->row->emits.data[i];
        if (s->emits.data[i] != e->value)
            line(out, arena_printf(out->arena, "  emit %s", e->name), s->emits.data[i], &names);
    }
}
