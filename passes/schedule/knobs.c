// knobs.c: the text form of a schedule's choices (knobs.h).
#include "passes/schedule/knobs.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_DIGITS = 6 };

static size_t word(const char *s) {
    size_t n = 0;
    while (islower((unsigned char)s[n]) || (n && isdigit((unsigned char)s[n])) || s[n] == '_') n++;
    return n;
}

bool knob_next(const char **text, KnobSetting *out) {
    const char *s = *text;
    size_t n = word(s);
    if (!n || s[n] != '=') return false;
    const char *digits = s + n + 1 + (s[n + 1] == '-');
    size_t m = strspn(digits, "0123456789");
    if (!m || m > MAX_DIGITS || (digits[m] && (digits[m] != ',' || !digits[m + 1]))) return false;
    *out = (KnobSetting){s, n, (int)strtol(s + n + 1, NULL, 10)};
    *text = digits + m + (digits[m] == ',');
    return true;
}

bool knob_has(const char *text, const char *name, size_t n) {
    KnobSetting k;
    while (knob_next(&text, &k))
        if (k.n == n && !memcmp(k.name, name, n)) return true;
    return false;
}

int knob_value(const char *text, const char *name, int otherwise) {
    KnobSetting k;
    while (knob_next(&text, &k))
        if (k.n == strlen(name) && !memcmp(k.name, name, k.n)) return k.value;
    return otherwise;
}

const char *knob_with(Arena *a, const char *text, const char *others) {
    Text out;
    KnobSetting k, o;
    text_init(&out, a);
    while (knob_next(&text, &k)) {
        for (const char *s = others; knob_next(&s, &o);)
            if (o.n == k.n && !memcmp(o.name, k.name, k.n)) k.value = o.value;
        text_printf(&out, "%s%.*s=%d", out.n ? "," : "", (int)k.n, k.name, k.value);
    }
    return out.s;
}

const char *knob_joined(Arena *a, const char *text, const char *others) {
    const char *joined = knob_with(a, text, others);
    KnobSetting o;
    while (knob_next(&others, &o))
        if (!knob_has(text, o.name, o.n))
            joined = arena_printf(a, "%s,%.*s=%d", joined, (int)o.n, o.name, o.value);
    return joined;
}

const char *knob_malformed(Arena *a, const char *text) {
    KnobSetting k;
    const char *s = text;
    while (knob_next(&s, &k))
        if (knob_has(s, k.name, k.n))
            return arena_printf(a, "'%.*s' stands twice", (int)k.n, k.name);
    if (*text && !*s) return NULL;
    return arena_printf(a, "'%s' is not of the form NAME=INTEGER,...", s);
}

static bool set(const Knob *k, void *choice, int value, Diags *diags) {
    bool good = value >= k->least && value <= k->most && (value - k->least) % k->step == 0;
    if (good) {
        memcpy((char *)choice + k->at, &value, sizeof value);
    } else if (k->step == 1) {
        diag_error(diags, (Span){0}, "schedule: %s (%s) is %d to %d, not %d", k->name, k->what,
                   k->least, k->most, value);
    } else {
        diag_error(diags, (Span){0}, "schedule: %s (%s) is %d to %d in steps of %d, not %d",
                   k->name, k->what, k->least, k->most, k->step, value);
    }
    return good;
}

bool knob_read(KnobTable t, void *choice, const char *text, Diags *diags) {
    KnobSetting s;
    while (knob_next(&text, &s))
        for (int i = 0; i < t.n; i++) {
            const Knob *k = &t.knobs[i];
            bool is = strlen(k->name) == s.n && !memcmp(k->name, s.name, s.n);
            if (is && !set(k, choice, s.value, diags)) return false;
        }
    return true;
}

const char *knob_text(KnobTable t, const void *choice, Arena *a) {
    Text out;
    text_init(&out, a);
    for (int i = 0; i < t.n; i++) {
        int value;
        memcpy(&value, (const char *)choice + t.knobs[i].at, sizeof value);
        text_printf(&out, "%s%s=%d", i ? "," : "", t.knobs[i].name, value);
    }
    return out.s;
}
