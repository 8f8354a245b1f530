// layout.c: see layout.h.
#include "ir/layout.h"

#include <ctype.h>
#include <string.h>

// ---- making

static const char *const place_names[] = {"reg", "lane", "warp", "block"};

static bool joins(const LayoutDigit *d, LayoutPlace place, int axis, int step) {
    if (d->place != place || d->axis != axis) return false;
    return axis < 0 || d->step * d->count == step;
}

bool layout_add(Layout *l, LayoutPlace place, int axis, int step, int count) {
    if (count == 1) return true;
    int at = 0;
    while (at < l->n && l->digit[at].place <= place) at++;
    LayoutDigit *before = at ? &l->digit[at - 1] : NULL;
    if (before && joins(before, place, axis, step)) {
        before->count = (uint16_t)(before->count * count);
        return true;
    }
    if (l->n == LAYOUT_DIGITS) return false;
    memmove(&l->digit[at + 1], &l->digit[at], sizeof *l->digit * (size_t)(l->n - at));
    l->digit[at] = (LayoutDigit){(uint8_t)place, (int8_t)axis, (uint16_t)step, (uint16_t)count};
    l->n++;
    return true;
}

Layout layout_restrict(const Layout *l, const uint8_t *axis, int rank) {
    Layout r = {0};
    for (int i = 0; i < l->n; i++) {
        const LayoutDigit *d = &l->digit[i];
        if (d->axis >= 0 && !memchr(axis, d->axis, (size_t)rank)) {
            if (d->place != LAYOUT_REG) layout_add(&r, d->place, LAYOUT_COPIES, 0, d->count);
        } else {
            layout_add(&r, d->place, d->axis, d->step, d->count);
        }
    }
    return r;
}

Layout layout_rename(const Layout *l, const int *axis) {
    Layout r = {0};
    for (int i = 0; i < l->n; i++) {
        const LayoutDigit *d = &l->digit[i];
        layout_add(&r, d->place, d->axis < 0 ? d->axis : axis[d->axis], d->step, d->count);
    }
    return r;
}

// ---- asking

bool layout_equal(const Layout *a, const Layout *b) { return !memcmp(a, b, sizeof *a); }

int layout_count(const Layout *l, LayoutPlace place) {
    int n = 1;
    for (int i = 0; i < l->n; i++)
        if (l->digit[i].place == place) n *= l->digit[i].count;
    return n;
}

int layout_share(const Layout *l, LayoutPlace place, int axis) {
    int n = 1;
    for (int i = 0; i < l->n; i++)
        if (l->digit[i].place == place && l->digit[i].axis == axis) n *= l->digit[i].count;
    return n;
}

int layout_covers(const Layout *l, int axis) {
    int n = 1;
    for (int i = 0; i < l->n; i++)
        if (l->digit[i].axis == axis) n *= l->digit[i].count;
    return n;
}

bool layout_copies(const Layout *l) { return layout_covers(l, LAYOUT_COPIES) > 1; }

int layout_part(const Layout *l, LayoutPlace place, int axis, int number) {
    int sum = 0;
    for (int i = 0; i < l->n; i++) {
        const LayoutDigit *d = &l->digit[i];
        if (d->place != place) continue;
        if (d->axis == axis) sum += number % d->count * d->step;
        number /= d->count;
    }
    return sum;
}

int layout_number(const Layout *l, LayoutPlace place, const int *index) {
    int sum = 0, stride = 1;
    for (int i = 0; i < l->n; i++) {
        const LayoutDigit *d = &l->digit[i];
        if (d->place != place) continue;
        if (d->axis >= 0) sum += index[d->axis] / d->step % d->count * stride;
        stride *= d->count;
    }
    return sum;
}

bool layout_complete(const Layout *l, int axis, int extent) {
    int step = 1;
    bool odd = false;
    for (const LayoutDigit *next = l->digit; next;) {
        next = NULL;
        for (int i = 0; i < l->n && !next; i++)
            if (l->digit[i].axis == axis && l->digit[i].step == step) next = &l->digit[i];
        if (!next) break;
        step *= next->count;
        if (odd && next->place != LAYOUT_WARP) return false;
        odd |= next->count & (next->count - 1);
        if (odd && step != extent && next->place == LAYOUT_LANE) return false;
    }
    return step == extent && layout_covers(l, axis) == extent;
}

bool layout_begins(const Layout *l, const Layout *first) {
    for (int p = 0; p < LAYOUT_PLACES; p++) {
        int at = 0;
        while (at < l->n && l->digit[at].place < p) at++;
        for (int i = 0; i < first->n; i++) {
            const LayoutDigit *d = &first->digit[i], *own = &l->digit[at];
            if (d->place != p) continue;
            bool last = i + 1 == first->n || first->digit[i + 1].place != p;
            if (at == l->n || own->place != p || own->axis != d->axis || own->step != d->step)
                return false;
            if (own->count != d->count && (!last || own->count % d->count)) return false;
            at++;
        }
    }
    return layout_count(l, LAYOUT_LANE) == layout_count(first, LAYOUT_LANE);
}

// ---- from one to another

typedef struct Cut { // the digits of a layout, cut where another's begin
    int n;
    struct {
        LayoutDigit digit;
        int at; // what it counts in its place's number
    } part[4 * LAYOUT_DIGITS];
} Cut;

static int next_step(const Layout *l, const LayoutDigit *d) { // the first inside d; its end: none
    int end = d->step * d->count;
    for (int i = 0; i < l->n; i++) {
        const LayoutDigit *other = &l->digit[i];
        if (other->axis == d->axis && other->step > d->step && other->step < end) end = other->step;
    }
    return end;
}

// False: a digit of the one ends inside a digit of the other.
static bool cut(const Layout *l, const Layout *by, Cut *out) {
    int at[LAYOUT_PLACES] = {1, 1, 1, 1};
    out->n = 0;
    for (int i = 0; i < l->n; i++) {
        LayoutDigit d = l->digit[i];
        while (d.count > 1) {
            int end = d.axis < 0 ? 0 : next_step(by, &d), all = d.step * d.count;
            LayoutDigit first = d;
            if (d.axis >= 0 && (end % d.step || all % end)) return false;
            if (d.axis >= 0) first.count = (uint16_t)(end / d.step);
            out->part[out->n].digit = first;
            out->part[out->n++].at = at[d.place];
            at[d.place] *= first.count;
            d.step = (uint16_t)(d.step * first.count);
            d.count = (uint16_t)(d.count / first.count);
        }
    }
    return true;
}

static int find(const Cut *c, const LayoutDigit *d) {
    for (int i = 0; i < c->n; i++)
        if (c->part[i].digit.axis == d->axis && c->part[i].digit.step == d->step) return i;
    return -1;
}

// Whether a thread's own number at the place is that of every element it wants.
static bool stays(const Cut *from, const Cut *to, LayoutPlace place) {
    for (int i = 0; i < from->n; i++) {
        const LayoutDigit *d = &from->part[i].digit;
        if (d->place != place || d->axis < 0) continue;
        int j = find(to, d);
        if (j < 0 || to->part[j].digit.place != place || to->part[j].at != from->part[i].at)
            return false;
    }
    return true;
}

static LayoutMove in_registers(const Cut *from, const Cut *to, int word) {
    LayoutMove m = MOVE_NOTHING;
    for (int i = 0; i < from->n; i++) {
        const LayoutDigit *d = &from->part[i].digit;
        if (d->place != LAYOUT_REG) continue;
        int j = find(to, d);
        if (j < 0 || to->part[j].digit.place != LAYOUT_REG) return MOVE_SELECT;
        if (to->part[j].at == from->part[i].at) continue;
        bool within = to->part[j].at < word || from->part[i].at < word;
        if (m < MOVE_RENAME || within) m = within ? MOVE_HALVES : MOVE_RENAME;
    }
    return m;
}

LayoutMove layout_move(const Layout *from, const Layout *to, int bits) {
    Cut x, y;
    if (layout_equal(from, to)) return MOVE_NOTHING;
    if (!cut(from, to, &x) || !cut(to, from, &y)) {
        bool blocks = layout_count(from, LAYOUT_BLOCK) > 1;
        return blocks ? MOVE_CLUSTER : MOVE_SHARED;
    }
    if (!stays(&x, &y, LAYOUT_BLOCK)) return MOVE_CLUSTER;
    if (!stays(&x, &y, LAYOUT_WARP)) return MOVE_SHARED;
    if (!stays(&x, &y, LAYOUT_LANE)) return MOVE_SHUFFLE;
    return in_registers(&x, &y, bits < 32 ? 32 / bits : 1);
}

// ---- text

void layout_print(Text *out, const Layout *l, const char *const *names, int n) {
    for (int i = 0; i < l->n; i++) {
        const LayoutDigit *d = &l->digit[i];
        bool first = !i || l->digit[i - 1].place != d->place;
        bool last = i + 1 == l->n || l->digit[i + 1].place != d->place;
        if (first) text_printf(out, "%s%s(", i ? " " : "", place_names[d->place]);
        if (d->axis >= 0) text_puts(out, d->axis < n ? names[d->axis] : "?");
        if (d->axis >= 0 && d->step > 1) text_printf(out, "/%d", d->step);
        text_printf(out, d->axis < 0 ? "%d" : "%%%d", d->count);
        text_puts(out, last ? ")" : ", ");
    }
}

static void skip(const char **s) {
    while (isspace((unsigned char)**s)) ++*s;
}

static bool take(const char **s, char c) {
    skip(s);
    return **s == c ? ++*s, true : false;
}

static bool take_number(const char **s, int *out) {
    skip(s);
    if (!isdigit((unsigned char)**s)) return false;
    for (*out = 0; isdigit((unsigned char)**s); ++*s)
        if ((*out = *out * 10 + (**s - '0')) > LAYOUT_MAX_COUNT) return false;
    return *out > 0;
}

static bool word_is(const char *s, const char *word) {
    size_t n = strlen(word);
    return !strncmp(s, word, n) && !isalnum((unsigned char)s[n]) && s[n] != '_';
}

// "M/8%2" or "4"
static const char *take_digit(const char **s, const char *const *names, int n, LayoutPlace place,
                              Layout *out) {
    int axis = 0, step = 1, count;
    skip(s);
    while (axis < n && !word_is(*s, names[axis])) axis++;
    if (axis == n) {
        if (!take_number(s, &count)) return "expected an axis, or how many copies there are";
        if (place == LAYOUT_REG) return "registers hold no copies";
        axis = LAYOUT_COPIES;
        step = 0;
    } else {
        *s += strlen(names[axis]);
        if (take(s, '/') && !take_number(s, &step)) return "expected a digit's step";
        if (!take(s, '%') || !take_number(s, &count)) return "expected '%' and a digit's count";
    }
    if (step * count > LAYOUT_MAX_COUNT) return "a digit beyond 32768";
    return layout_add(out, place, axis, step, count) ? NULL : "more than 24 digits";
}

const char *layout_parse(const char **text, const char *const *names, int n, Layout *out) {
    memset(out, 0, sizeof *out);
    for (int least = 0;;) {
        int p = 0;
        skip(text);
        while (p < LAYOUT_PLACES && !word_is(*text, place_names[p])) p++;
        if (p == LAYOUT_PLACES) return least ? NULL : "expected reg, lane, warp or block";
        if (p < least) return "places come in the order reg, lane, warp, block";
        least = p + 1;
        *text += strlen(place_names[p]);
        if (!take(text, '(')) return "expected '('";
        do {
            const char *wrong = take_digit(text, names, n, (LayoutPlace)p, out);
            if (wrong) return wrong;
        } while (take(text, ','));
        if (!take(text, ')')) return "expected ')'";
    }
}

// ---- instructions

static const struct {
    const char *name, *part[3];
} instructions[] = {
#define MMA(e, name, targets, bytes, a, b, c) {name, {a, b, c}},
#include "ir/mma.def"
#undef MMA
};

const char *mma_name(MmaKind kind) { return instructions[kind].name; }

bool mma_fragment(MmaKind kind, MmaPart part, Layout *out) {
    static const char *const names[] = {"M", "N", "K"};
    const char *text = instructions[kind].part[part];
    return *text && !layout_parse(&text, names, 3, out);
}
