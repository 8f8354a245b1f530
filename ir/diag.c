// diag.c: the list of diagnostics, and its one printer.
//
// In: severities, spans, messages. Out: `file:line:col: error: message` with the source line and a
// caret. Holds afterwards: printing shows no byte of a source that a terminal could take for a
// command (control bytes and broken UTF-8 become '?').
#include "ir/diag.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum {
    LONGEST_MESSAGE = 500, // a name may be as long as its file
    SHOWN_COLUMNS = 160,   // of a source line; a longer one is cut around the caret
    BEFORE_CARET = 100,
    LONGEST_QUOTE = 60
};

Diags diag_list(Arena *a) {
    Diags d = {.arena = a};
    Source none = {.name = "", .text = "", .n = 0};
    VEC_PUSH(a, &d.files, none);
    return d;
}

uint16_t diag_add_file(Diags *d, const char *name, const char *text, size_t n) {
    if (d->files.n > UINT16_MAX) return 0; // spans in it have no place, and nothing else goes wrong
    Source s = {.name = arena_strdup(d->arena, name), .text = text, .n = n};
    VEC_PUSH(d->arena, &d->files, s);
    return (uint16_t)(d->files.n - 1);
}

static Diag *make(Diags *d, Severity severity, Span at, const char *fmt, va_list ap) {
    Text t = text_new(d->arena);
    text_vprintf(&t, fmt, ap);
    if (t.n > LONGEST_MESSAGE) strcpy(t.s + LONGEST_MESSAGE, "...");
    Diag *g = ARENA_NEW(d->arena, Diag);
    g->severity = severity;
    g->span = at;
    g->message = t.s;
    return g;
}

static Diag *append(Diags *d, Diag *g) {
    if (d->last)
        d->last->next = g;
    else
        d->first = g;
    d->last = g;
    return g;
}

Diag *diag_error(Diags *d, Span at, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    Diag *g = make(d, DIAG_ERROR, at, fmt, ap);
    va_end(ap);
    // The one over the limit is made all the same, so that the caller may add notes to it; nobody
    // sees it.
    if (++d->errors <= DIAG_MAX_ERRORS) append(d, g);
    return g;
}

Diag *diag_warning(Diags *d, Span at, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    Diag *g = append(d, make(d, DIAG_WARNING, at, fmt, ap));
    va_end(ap);
    return g;
}

void diag_forget(Diags *d, Span within) {
    Diag **at = &d->first;
    d->last = NULL;
    while (*at) {
        const Span *s = &(*at)->span;
        bool in = s->file == within.file && s->start >= within.start && s->end <= within.end;
        if (in && (*at)->severity == DIAG_WARNING) {
            *at = (*at)->next;
        } else {
            d->last = *at;
            at = &(*at)->next;
        }
    }
}

Diag *diag_note(Diags *d, Diag *to, Span at, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    Diag *g = make(d, DIAG_NOTE, at, fmt, ap);
    va_end(ap);
    if (!to) return append(d, g);
    Diag **end = &to->note;
    while (*end) end = &(*end)->note;
    return *end = g;
}

void diag_fix(Diags *d, Diag *g, Span at, const char *text) {
    g->fix_at = at;
    g->fix = text ? arena_strdup(d->arena, text) : NULL;
}

const char *diag_quote(const Diags *d, Span at) {
    if (at.file == 0 || at.file >= d->files.n || at.end <= at.start) return NULL;
    const Source *s = &d->files.data[at.file];
    if (at.end > s->n || at.end - at.start > LONGEST_QUOTE) return NULL;
    for (uint32_t i = at.start; i < at.end; i++)
        if (s->text[i] < ' ' || s->text[i] > '~') return NULL;
    return arena_printf(d->arena, "%.*s", (int)(at.end - at.start), s->text + at.start);
}

// ---- printing

typedef struct Place {
    const Source *source;
    size_t line_start, line_end, at;
    size_t line, column; // from 1; a column counts code points
} Place;

// Bytes of the well-formed UTF-8 sequence at s, 0 when there is none.
static size_t utf8_length(const char *s, size_t n) {
    unsigned char c = (unsigned char)s[0];
    size_t len = c < 0x80                ? 1
                 : c >= 0xc2 && c < 0xe0 ? 2
                 : c >= 0xe0 && c < 0xf0 ? 3
                 : c >= 0xf0 && c < 0xf5 ? 4
                                         : 0;
    if (!len || len > n) return 0;
    for (size_t i = 1; i < len; i++)
        if (((unsigned char)s[i] & 0xc0) != 0x80) return 0;
    return len;
}

static bool find_place(const Diags *d, Span span, Place *p) {
    if (span.file == 0 || span.file >= d->files.n) return false;
    const Source *s = &d->files.data[span.file];
    *p = (Place){.source = s, .line = 1, .column = 1, .at = span.start < s->n ? span.start : s->n};
    for (size_t i = 0; i < p->at; i++)
        if (s->text[i] == '\n') {
            p->line++;
            p->line_start = i + 1;
        }
    for (p->line_end = p->at; p->line_end < s->n && s->text[p->line_end] != '\n';) p->line_end++;
    for (size_t i = p->line_start; i < p->at; p->column++) {
        size_t len = utf8_length(s->text + i, s->n - i);
        i += len ? len : 1;
    }
    return true;
}

DiagPosition diag_position(const Diags *d, uint16_t file, uint32_t at) {
    Place p;
    DiagPosition pos = {0, 0};
    if (!find_place(d, (Span){file, at, at}, &p)) return pos;
    pos.line = (uint32_t)p.line - 1;
    for (size_t i = p.line_start, len; i < p.at; i += len) {
        len = utf8_length(p.source->text + i, p.source->n - i);
        pos.column += len == 4 ? 2 : 1;
        len = len ? len : 1;
    }
    return pos;
}

static void put_line(const Place *p, Span span, FILE *out) {
    const char *text = p->source->text;
    size_t from = p->line_start, to = p->line_end;
    if (p->at - from > SHOWN_COLUMNS - 20) from = p->at - BEFORE_CARET;
    while (from > p->line_start && from < p->at && ((unsigned char)text[from] & 0xc0) == 0x80)
        from++;
    if (to - from > SHOWN_COLUMNS) to = from + SHOWN_COLUMNS;
    size_t before = 0, under = 0;
    fputs("    ", out);
    for (size_t i = from, len; i < to; i += len) {
        len = utf8_length(text + i, to - i);
        unsigned char c = (unsigned char)text[i];
        if (len == 0 || (len == 1 && (c < 0x20 || c == 0x7f)) ||
            (len == 2 && c == 0xc2 && (unsigned char)text[i + 1] < 0xa0))
            fputc(c == '\t' || c == '\r' ? ' ' : '?', out);
        else
            fwrite(text + i, 1, len, out);
        len = len ? len : 1;
        before += i < p->at;
        under += i >= p->at && i < span.end;
    }
    fprintf(out, "\n    %*s^", (int)before, "");
    for (size_t i = 1; i < under; i++) fputc('~', out);
    fputc('\n', out);
}

static void print_one(const Diags *d, const Diag *g, FILE *out) {
    static const char *const names[] = {"error", "warning", "note"};
    Place p;
    if (find_place(d, g->span, &p)) {
        fprintf(out, "%s:%zu:%zu: %s: %s\n", p.source->name, p.line, p.column, names[g->severity],
                g->message);
        put_line(&p, g->span, out);
    } else {
        fprintf(out, "attnc: %s: %s\n", names[g->severity], g->message);
    }
}

typedef struct Entry {
    const Diag *diag;
    int order;
} Entry;

static int compare(const void *x, const void *y) {
    const Entry *a = x, *b = y;
    Span s = a->diag->span, t = b->diag->span;
    // What has no place comes last, in the order in which it was said.
    int fa = s.file ? s.file : UINT16_MAX + 1, fb = t.file ? t.file : UINT16_MAX + 1;
    if (fa != fb) return fa < fb ? -1 : 1;
    if (s.file && s.start != t.start) return s.start < t.start ? -1 : 1;
    return a->order < b->order ? -1 : a->order > b->order;
}

void diag_print(const Diags *d, FILE *out) {
    int n = 0;
    for (const Diag *g = d->first; g; g = g->next) n++;
    Arena *scratch = arena_new();
    Entry *all = ARENA_ARRAY(scratch, Entry, n);
    int i = 0;
    for (const Diag *g = d->first; g; g = g->next, i++) all[i] = (Entry){g, i};
    if (n) qsort(all, (size_t)n, sizeof *all, compare);
    for (i = 0; i < n; i++)
        for (const Diag *g = all[i].diag; g; g = g->note) print_one(d, g, out);
    arena_free(scratch);
    if (d->errors > DIAG_MAX_ERRORS)
        fprintf(out, "attnc: note: %d more errors are not shown\n", d->errors - DIAG_MAX_ERRORS);
}
