// knobs.c: see knobs.h.
#include "knobs.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

typedef struct Row {
    const char *name;
    KnobName knob;
    uint32_t forms;
    int least, most, step; // what it may be: least + i * step
    const char *what;
} Row;

static const Row rows[] = {
#define KNOB(name, ...) {#name, KNOB_##name, __VA_ARGS__},
#define OTHERWISE(name, ...) {#name, KNOB_##name, __VA_ARGS__},
#include "knobs.def"
#undef KNOB
#undef OTHERWISE
};
enum { ROWS = sizeof rows / sizeof *rows };

uint32_t knobs_of(KnobForm form) {
    uint32_t said = 0;
    for (int i = 0; i < ROWS; i++)
        if (rows[i].forms & form) said |= 1u << rows[i].knob;
    return said;
}

bool knobs_same(const Knobs *a, const Knobs *b) { return knobs_order(a, b) == 0; }

int knobs_order(const Knobs *a, const Knobs *b) {
    if (a->said != b->said) return a->said < b->said ? -1 : 1;
    for (int i = 0; i < KNOB_COUNT; i++)
        if (a->value[i] != b->value[i]) return a->value[i] < b->value[i] ? -1 : 1;
    return 0;
}

bool knobs_hold(const Knobs *k, const Knobs *others) {
    for (int i = 0; i < KNOB_COUNT; i++)
        if (knobs_say(others, i) && (!knobs_say(k, i) || k->value[i] != others->value[i]))
            return false;
    return true;
}

// Of `which` knobs.
static Knobs taken(Knobs k, const Knobs *others, uint32_t which) {
    for (int i = 0; i < KNOB_COUNT; i++)
        if (which >> i & others->said >> i & 1) k.value[i] = others->value[i], k.said |= 1u << i;
    return k;
}

Knobs knobs_joined(Knobs k, const Knobs *others) { return taken(k, others, others->said); }

static bool may_be(const Row *r, int value) {
    return value >= r->least && value <= r->most && (value - r->least) % r->step == 0;
}

bool knobs_take(Knobs *own, KnobForm form, const Knobs *asked, Diags *diags) {
    for (int i = 0; i < ROWS; i++) {
        const Row *r = &rows[i];
        int value = asked->value[r->knob];
        if (!(r->forms & form) || !knobs_say(asked, r->knob) || may_be(r, value)) continue;
        const char *steps = "";
        if (r->step > 1) steps = arena_printf(diags->arena, " in steps of %d", r->step);
        diag_error(diags, (Span){0}, "schedule: %s (%s) is %d to %d%s, not %d", r->name, r->what,
                   r->least, r->most, steps, value);
        return false;
    }
    *own = taken(*own, asked, knobs_of(form));
    return true;
}

// ---- text

const char *knobs_text(Arena *a, const Knobs *k) {
    Text out = text_new(a);
    text_puts(&out, "");
    for (int i = 0, last = -1; i < ROWS; i++) {
        if (!knobs_say(k, rows[i].knob) || (int)rows[i].knob == last) continue;
        last = rows[i].knob;
        text_printf(&out, "%s%s=%d", out.n ? "," : "", rows[i].name, k->value[last]);
    }
    return out.s;
}

const char *knobs_first(const Knobs *k) {
    for (int i = 0; i < ROWS; i++)
        if (knobs_say(k, rows[i].knob)) return rows[i].name;
    return NULL;
}

const char *knobs_set(Arena *a, Knobs *k, const char *name, size_t n, int value) {
    for (int i = 0; i < ROWS; i++) {
        if (strlen(rows[i].name) != n || memcmp(rows[i].name, name, n) != 0) continue;
        if (knobs_say(k, rows[i].knob)) return arena_printf(a, "'%s' stands twice", rows[i].name);
        k->said |= 1u << rows[i].knob;
        k->value[rows[i].knob] = value;
        return NULL;
    }
    return arena_printf(a, "no kernel has a choice '%.*s'", (int)n, name);
}

static size_t word(const char *s) {
    size_t n = 0;
    while (islower((unsigned char)s[n]) || (n && isdigit((unsigned char)s[n])) || s[n] == '_') n++;
    return n;
}

const char *knobs_parse(Arena *a, const char *text, Knobs *out) {
    enum { MAX_DIGITS = 6 };
    *out = (Knobs){0};
    for (const char *s = text;;) {
        size_t n = word(s);
        const char *digits = s + n + (s[n] == '=') + (s[n] == '=' && s[n + 1] == '-');
        size_t m = strspn(digits, "0123456789");
        bool good = n && s[n] == '=' && m && m <= MAX_DIGITS;
        if (!good || (digits[m] && digits[m] != ','))
            return arena_printf(a, "'%s' is not of the form NAME=INTEGER,...", s);
        const char *wrong = knobs_set(a, out, s, n, (int)strtol(s + n + 1, NULL, 10));
        if (wrong || !digits[m]) return wrong;
        s = digits + m + 1;
    }
}

const char *knobs_wrong(Arena *a, const Knobs *k) {
    for (uint32_t form = 1; form <= FORM_SM90_APART; form <<= 1) {
        if (k->said != knobs_of((KnobForm)form)) continue;
        for (int i = 0; i < ROWS; i++)
            if (rows[i].forms & form && !may_be(&rows[i], k->value[rows[i].knob]))
                return arena_printf(a, "%s cannot be %d", rows[i].name, k->value[rows[i].knob]);
        return NULL;
    }
    return k->said ? "its knobs are not all of one form of kernels" : NULL;
}
