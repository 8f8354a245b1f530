// cmd_mask.c: `attnc mask`: the mask as a picture, one rectangle per run of tiles of a class, and
// inside partial tiles the pairs that take part. The tiles are those of --target. Queries go down, keys to the right. Counts go to
// stdout (to stderr when the picture does). --format=json: which keys each row of tiles visits, for programs.
#include "cmd.h"
#include "files.h"
#include "maskmap.h"
#include "needed.h"
#include <stdio.h>
#include <string.h>

enum { PICTURE = 640, MARGIN = 56, LEGEND = 120, MAX_CELLS = 320 };

static const struct {
    const char *name, *color;
} looks[] = {
    [MASK_SKIPPED] = {"skipped: never visited", "#eceff1"},
    [MASK_PARTIAL] = {"partial: every pair is tested", "#ffe0b2"},
    [MASK_FULL] = {"full: no test", "#1e88a8"},
};
static const char inside_color[] = "#ef8a17";

typedef struct Frame {
    const MaskMap *m;
    Text *t;
    double scale; // pixels per position
} Frame;

static void box(const Frame *f, double k0, double q0, double k1, double q1, const char *color) {
    text_printf(f->t, "<rect x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\" fill=\"%s\"/>\n",
                MARGIN + k0 * f->scale, MARGIN + q0 * f->scale, (k1 - k0) * f->scale,
                (q1 - q0) * f->scale, color);
}

static int upto(int a, int b) { return a < b ? a : b; }

static void tiles(const Frame *f) {
    const MaskMap *m = f->m;
    for (int r = 0; r < m->rows; r++)
        for (int c = 0, end; c < m->columns; c = end) {
            const uint8_t *row = m->cls + (int64_t)r * m->columns;
            for (end = c + 1; end < m->columns && row[end] == row[c]; end++) continue;
            box(f, c * m->tile_k, r * m->tile_q, upto(end * m->tile_k, m->keys),
                upto((r + 1) * m->tile_q, m->queries), looks[row[c]].color);
        }
}

// Cells of step x step positions, sampled at their corner; runs are one rectangle.
static void cells(const Frame *f) {
    const MaskMap *m = f->m;
    int longest = m->queries > m->keys ? m->queries : m->keys,
        step = (longest + MAX_CELLS - 1) / MAX_CELLS;
    for (int q = 0; q < m->queries; q += step)
        for (int k = 0, from = -1; k < m->keys + step; k += step) {
            bool partial =
                k < m->keys &&
                m->cls[(int64_t)(q / m->tile_q) * m->columns + k / m->tile_k] == MASK_PARTIAL;
            bool in = partial && mask_at(m, q, k);
            if (in && from < 0) from = k;
            if (!in && from >= 0) {
                box(f, from, q, upto(k, m->keys), upto(q + step, m->queries), inside_color);
                from = -1;
            }
        }
}

static void grid(const Frame *f) {
    const MaskMap *m = f->m;
    if (m->rows > 64 || m->columns > 64) return; // lines would hide what is between them
    text_puts(f->t, "<path stroke=\"#90a4ae\" stroke-width=\"0.5\" fill=\"none\" d=\"");
    for (int r = 0; r <= m->rows; r++)
        text_printf(f->t, "M%d %.2fh%.2f", MARGIN,
                    MARGIN + upto(r * m->tile_q, m->queries) * f->scale, m->keys * f->scale);
    for (int c = 0; c <= m->columns; c++)
        text_printf(f->t, "M%.2f %dv%.2f", MARGIN + upto(c * m->tile_k, m->keys) * f->scale, MARGIN,
                    m->queries * f->scale);
    text_puts(f->t, "\"/>\n");
}

static void label(const Frame *f, double x, double y, const char *anchor, const char *text) {
    text_printf(f->t, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">%s</text>\n", x, y, anchor,
                text);
}

static void legend(const Frame *f, Arena *a, double top, double inside) {
    const MaskMap *m = f->m;
    double all = (double)m->rows * m->columns;
    for (int k = 0; k < MASK_CLASSES; k++, top += 22) {
        text_printf(f->t,
                    "<rect x=\"%d\" y=\"%.1f\" width=\"14\" height=\"14\" fill=\"%s\" "
                    "stroke=\"#90a4ae\"/>\n",
                    MARGIN, top, looks[k].color);
        label(f, MARGIN + 22, top + 12, "start",
              arena_printf(a, "%s: %lld tiles (%.1f%%)", looks[k].name, (long long)m->count[k],
                           all > 0 ? 100 * (double)m->count[k] / all : 0));
    }
    text_printf(
        f->t,
        "<rect x=\"%d\" y=\"%.1f\" width=\"14\" height=\"14\" fill=\"%s\" stroke=\"#90a4ae\"/>\n",
        MARGIN, top, inside_color);
    label(f, MARGIN + 22, top + 12, "start",
          arena_printf(a, "pairs of partial tiles that take part (%.1f%% of all pairs do)",
                       100 * inside));
}

static void draw(Text *t, Arena *a, const MaskMap *m, const char *name, const char *whose,
                 double inside) {
    int longest = m->queries > m->keys ? m->queries : m->keys;
    Frame f = {m, t, (double)PICTURE / (longest ? longest : 1)};
    double w = m->keys * f.scale, h = m->queries * f.scale,
           width = 2 * MARGIN + (w > 420 ? w : 420);
    text_printf(t,
                "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" "
                "width=\"%.0f\" height=\"%.0f\" "
                "font-family=\"sans-serif\" font-size=\"13\" fill=\"#263238\">\n<rect "
                "width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n",
                width, h + 2 * MARGIN + LEGEND, width, h + 2 * MARGIN + LEGEND);
    text_printf(t,
                "<text x=\"%d\" y=\"20\" font-size=\"16\" font-weight=\"bold\">%s: %s tiles of %d "
                "queries x %d keys</text>\n",
                MARGIN, name, whose, m->tile_q, m->tile_k);
    tiles(&f);
    cells(&f);
    grid(&f);
    label(&f, MARGIN, MARGIN - 8, "start", "key 0");
    label(&f, MARGIN + w, MARGIN - 8, "end", arena_printf(a, "%d", m->keys - 1));
    label(&f, MARGIN - 6, MARGIN + 12, "end", "query 0");
    label(&f, MARGIN - 6, MARGIN + h, "end", arena_printf(a, "%d", m->queries - 1));
    legend(&f, a, MARGIN + h + 20, inside);
    text_puts(t, "</svg>\n");
}

// Which terms keep tiles from being skipped.
static void tell_terms(FILE *out, Arena *a, const Compile *c, const MaskMap *m) {
    const Stream *stream = c->streams.data[0];
    MaskTerms blind = pass_blind_terms(stream, m->tile_q, m->tile_k);
    ExNames names = row_names(stream->row);
    if (blind.n) fputs("terms of which nothing is known over a tile: they skip none\n", out);
    for (int i = 0; i < blind.n; i++) {
        Text term = text_new(a);
        ex_print_pretty(&term, blind.data[i], &names);
        fprintf(out, "    %s\n", term.s);
    }
}

// Of each row of tiles the intervals of keys, [first, behind the last], that its tiles visit.
static void list(Text *t, Arena *a, const MaskMap *m) {
    int(*keys)[2] = arena_alloc(a, sizeof *keys * ((size_t)m->columns + 1));
    text_printf(t, "{\"queries\": %d, \"keys\": %d, \"tile\": [%d, %d], \"needed\": [", m->queries,
                m->keys, m->tile_q, m->tile_k);
    for (int r = 0; r < m->rows; r++) {
        int n = needed_keys(m, r * m->tile_q, (r + 1) * m->tile_q, keys, m->columns);
        text_puts(t, r ? ",\n[" : "\n[");
        for (int i = 0; i < n; i++)
            text_printf(t, "%s[%d, %d]", i ? ", " : "", keys[i][0], keys[i][1]);
        text_puts(t, "]");
    }
    text_puts(t, "]}\n");
}

static Status show(Compile *c, const Options *o, const Binding *b, const MaskMap *m) {
    Arena *a = c->arena;
    FILE *out = strcmp(o->output, "-") == 0 ? stderr : stdout;
    TargetId target = c->options.target;
    const char *whose =
        target == TARGET_HOST ? "the CPU's" : arena_printf(a, "%s's", target_get(target)->name);
    const char *place =
        o->batch || o->head ? arena_printf(a, " (batch %d, head %d)", o->batch, o->head) : "";
    fprintf(out, "%s%s, %s tiles of %dx%d: %lld skipped, %lld partial, %lld full", b->sig->name,
            place, whose, m->tile_q, m->tile_k, (long long)m->count[MASK_SKIPPED],
            (long long)m->count[MASK_PARTIAL], (long long)m->count[MASK_FULL]);
    bool looks = o->format != FORMAT_JSON; // at pairs
    double inside = looks ? mask_inside(m) : 0;
    if (looks) fprintf(out, "; %.2f%% of the pairs take part", 100 * inside);
    fputs("\n", out);
    tell_terms(out, a, c, m);
    Text t = text_new(a);
    if (o->format == FORMAT_JSON)
        list(&t, a, m);
    else
        draw(&t, a, m, arena_printf(a, "%s%s", b->sig->name, place), whose, inside);
    return file_write(o->output, t.s, t.n);
}

static Status picture(Compile *c, const Options *o) {
    Arena *a = c->arena;
    MaskMap m;
    Binding b;
    const char *why;
    const Signature *sig = sig_of_variant(a, c->variants.data[0], c->options.dtype);
    if (sig->recurrence)
        return cmd_fail(STATUS_INPUT, "%s is a recurrence: it has no mask", sig->name);
    Status s = bind_read(&b, a, sig, o, cmd_shape(o, a), mask_reads(a, c->tiles.data[0], sig));
    if (s != STATUS_DONE) return s;
    TileProgram *p = c->tiles.data[0];
    TileKernel *k = mask_kernel(p, b.size, a);
    if (o->batch >= b.size[SIZE_B] || o->head >= b.size[SIZE_HQ])
        s = cmd_fail(STATUS_USAGE, "--at=%d,%d: there are B = %d batch entries and H = %d heads",
                     o->batch, o->head, b.size[SIZE_B], b.size[SIZE_HQ]);
    else if (k && o->format == FORMAT_JSON)
        mask_widen(k, &b, !o->has_target);
    if (s == STATUS_DONE && (why = mask_map(&m, a, p, &b, o->batch, o->head)))
        s = cmd_fail(STATUS_INPUT, "%s", why);
    if (s == STATUS_DONE) s = show(c, o, &b, &m);
    bind_free(&b);
    return s;
}

Status cmd_mask(const Options *o) {
    Compile c;
    if (!o->output) return cmd_fail(STATUS_USAGE, "nothing to write: give -o MASK.svg");
    if (o->format != FORMAT_TEXT && o->format != FORMAT_JSON)
        return cmd_fail(STATUS_USAGE, "--format of mask is json, or left out: a picture");
    if (o->format == FORMAT_TEXT && strcmp(o->output, "-") != 0 &&
        strncmp(o->output, "/dev/", 5) != 0 && !cmd_has_extension(o->output, ".svg"))
        return cmd_fail(STATUS_USAGE,
                        "-o %s: the picture is an SVG, written to a file that ends "
                        "in .svg",
                        o->output);
    TargetId target = o->has_target ? o->target : TARGET_HOST;
    Dtype dtype = target == TARGET_HOST ? DT_F32 : DT_BF16;
    Status s = cmd_open(&c, o, o->files.data[0], target, o->has_dtype ? o->dtype : dtype);
    if (s == STATUS_DONE) s = cmd_only(&c, o);
    if (s == STATUS_DONE) {
        bool good = compile_tiles(&c);
        s = cmd_report(&c, good ? STATUS_DONE : STATUS_INPUT);
    }
    if (s == STATUS_DONE) s = picture(&c, o);
    compile_close(&c);
    return s;
}
