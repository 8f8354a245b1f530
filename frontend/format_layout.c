// format_layout.c: rows of pieces to text: which lines are broken, what is aligned, where empty
// lines stand.
//
// In: rows, in order. Out: text. A group is put on one line where all of it fits, with what follows
// up to the next place where a line may end; else each of its LINEs ends one. So the outermost group
// is broken first. All of it takes time in proportion to the text.
#include "frontend/format.h"

#include <string.h>

enum { WIDTH = 100, INDENT = 4, MOST_INDENT = 60 };

typedef struct Printed { // a line of the result
    size_t at, n;        // in the text of all lines
    const char *remark;  // after it, or NULL
} Printed;

typedef struct Printer {
    Layout *layout;
    Text text; // of all lines, one after the other
    size_t start;
    VEC(Printed) lines;
    VEC(bool) broken; // groups that are open
    int *width;       // of all pieces before each, on one line
    int *ends;        // how many END stand before each
    int *next;        // the first place at or after each where a line may end
    int *close;       // of each OPEN: its CLOSE
} Printer;

static int width_of(const char *s, size_t n) {
    int w = 0;
    for (size_t i = 0; i < n; i++) w += (s[i] & 0xc0) != 0x80;
    return w;
}

// ---- what fits

static void measure(Printer *p) {
    const Layout *l = p->layout;
    Arena *a = l->arena;
    int n = l->pieces.n;
    VEC(int) open = {0};
    p->width = ARENA_ARRAY(a, int, n + 1);
    p->ends = ARENA_ARRAY(a, int, n + 1);
    p->next = ARENA_ARRAY(a, int, n + 1);
    p->close = ARENA_ARRAY(a, int, n + 1);
    for (int i = 0; i < n; i++) {
        const Piece *x = &l->pieces.data[i];
        int w = x->s ? width_of(x->s, x->n) : (int)x->n;
        p->width[i + 1] = p->width[i] + w + (x->kind == PIECE_REMARK);
        p->ends[i + 1] = p->ends[i] + (x->kind == PIECE_END);
        if (x->kind == PIECE_OPEN) VEC_PUSH(a, &open, i);
        if (x->kind == PIECE_CLOSE) p->close[open.data[--open.n]] = i;
    }
    p->next[n] = n;
    for (int i = n - 1; i >= 0; i--) {
        PieceKind k = l->pieces.data[i].kind;
        bool here = k == PIECE_LINE || k == PIECE_END || k == PIECE_REMARK;
        p->next[i] = here ? i : p->next[i + 1];
    }
}

static int column_now(const Printer *p) {
    return width_of(p->text.s + p->start, p->text.n - p->start);
}

static bool fits(const Printer *p, const Row *r, int open) {
    int close = p->close[open], last = r->first + r->n;
    if (p->ends[close] != p->ends[open]) return false;
    int to = p->next[close] < last ? p->next[close] : last;
    return column_now(p) + p->width[to] - p->width[open] <= WIDTH;
}

// ---- lines

static void end_line(Printer *p, const char *remark) {
    while (p->text.n > p->start && p->text.s[p->text.n - 1] == ' ') p->text.n--;
    Printed x = {p->start, p->text.n - p->start, remark};
    VEC_PUSH(p->layout->arena, &p->lines, x);
    p->start = p->text.n;
}

// The further lines of a remark stay as they are.
static void end_with(Printer *p, const char *remark) {
    const char *eol = remark ? strchr(remark, '\n') : NULL;
    if (!eol) {
        end_line(p, remark);
        return;
    }
    end_line(p, arena_strndup(p->layout->arena, remark, (size_t)(eol - remark)));
    text_puts(&p->text, eol + 1);
    end_line(p, NULL);
}

static void put_blanks(Printer *p, int n) {
    static const char blanks[] = "                                                            "
                                 "                                                            ";
    int most = (int)sizeof blanks - 1;
    for (; n > 0; n -= most) text_putn(&p->text, blanks, (size_t)(n < most ? n : most));
}

static void indent(Printer *p, const Row *r, int more) {
    int n = r->depth * INDENT + more;
    put_blanks(p, n < MOST_INDENT ? n : MOST_INDENT);
}

static void put_row(Printer *p, const Row *r, int pad) {
    const char *remark = NULL;
    indent(p, r, 0);
    for (int i = r->first; i < r->first + r->n; i++) {
        const Piece *x = &p->layout->pieces.data[i];
        bool broken = p->broken.n && p->broken.data[p->broken.n - 1];
        if (x->kind == PIECE_OPEN) {
            bool may = pad == 0 && (broken || !p->broken.n); // what is aligned fits
            VEC_PUSH(p->layout->arena, &p->broken, may && !fits(p, r, i));
        } else if (x->kind == PIECE_CLOSE) {
            p->broken.n--;
        } else if (x->kind == PIECE_REMARK) {
            if (broken || x[1].kind == PIECE_END)
                remark = x->s;
            else
                text_printf(&p->text, " %s", x->s);
        } else if (x->kind == PIECE_END || (x->kind == PIECE_LINE && broken)) {
            end_with(p, remark);
            remark = NULL;
            indent(p, r, x->indent);
        } else {
            if (i == r->equals) put_blanks(p, pad);
            if (x->kind == PIECE_LINE)
                put_blanks(p, (int)x->n);
            else
                text_putn(&p->text, x->s, x->n);
        }
    }
    end_with(p, r->trail);
}

static void put_remark(Printer *p, const Row *r) {
    if (!r->below) {
        indent(p, r, 0);
        text_puts(&p->text, r->trail);
    }
    end_line(p, r->below ? r->trail : NULL);
}

// ---- alignment

static int head_width(const Printer *p, const Row *r) {
    return p->width[r->equals] - p->width[r->first];
}

// Its whole width, on one line; beyond any where it cannot be on one.
static int row_width(const Printer *p, const Row *r) {
    int last = r->first + r->n;
    if (p->ends[last] != p->ends[r->first]) return WIDTH + 1;
    return r->depth * INDENT + p->width[last] - p->width[r->first];
}

static bool aligns(const Printer *p, const Row *r) {
    return r->n && r->align != ALIGN_NONE && row_width(p, r) <= WIDTH;
}

static bool neighbours(const Row *above, const Row *r) {
    bool apart = r->blank || (above->trail && strchr(above->trail, '\n'));
    return !apart && r->align == above->align && r->depth == above->depth;
}

// The rows from `first` on whose `=` stand in one column: how many, and the width before it; 0 where
// a row would get too long, and none is aligned.
static int run_of(const Printer *p, int first, int *head) {
    const Layout *l = p->layout;
    int n = 0;
    *head = 0;
    for (int i = first; i < l->rows.n && aligns(p, &l->rows.data[i]); i++, n++) {
        const Row *r = &l->rows.data[i];
        if (n && !neighbours(&r[-1], r)) break;
        if (*head < head_width(p, r)) *head = head_width(p, r);
    }
    for (int i = first; i < first + n; i++) {
        const Row *r = &l->rows.data[i];
        if (row_width(p, r) + *head - head_width(p, r) > WIDTH) *head = 0;
    }
    return n;
}

// ---- empty lines

// An item with braces stands apart from its neighbours.
static void set_apart(Layout *l) {
    int after = 0; // the first row after the item before; 0: there is none
    bool large = false;
    for (int i = 0; i < l->rows.n; i++) {
        Row *r = &l->rows.data[i];
        if (i == 0 || r[-1].opens || r->closes) r->blank = false;
        if (r->item) {
            bool apart = !after || !(large || r->large);
            while (after < i && l->rows.data[after].below) after++;
            for (int k = after; k <= i; k++) apart |= l->rows.data[k].blank;
            if (!apart) l->rows.data[after].blank = true;
            large = r->large;
        }
        if (r->n && r->depth == 0 && !r->opens) after = i + 1;
    }
}

// ---- text

static void put_lines(Printer *p, Text *out) {
    const char *text = p->text.s;
    for (int i = 0; i < p->lines.n;) {
        int n = 0, column = 0;
        for (; i + n < p->lines.n && p->lines.data[i + n].remark; n++) {
            int w = width_of(text + p->lines.data[i + n].at, p->lines.data[i + n].n);
            if (column < w + 1) column = w + 1;
        }
        for (int k = i; k < i + n + (n == 0); k++) {
            const Printed *x = &p->lines.data[k];
            const char *s = text + x->at;
            text_putn(out, s, x->n);
            for (int c = width_of(s, x->n); x->remark && c < column; c++) text_puts(out, " ");
            if (x->remark) text_puts(out, x->remark);
            text_puts(out, "\n");
        }
        i += n + (n == 0);
    }
}

void format_layout(Layout *l, Text *out) {
    Printer p = {.layout = l};
    p.text = text_new(l->arena);
    set_apart(l);
    measure(&p);
    for (int i = 0; i < l->rows.n;) {
        int head = 0, n = run_of(&p, i, &head);
        for (int k = i; k < i + n + (n == 0); k++) {
            const Row *r = &l->rows.data[k];
            if (r->blank) end_line(&p, NULL);
            if (r->n)
                put_row(&p, r, n && head ? head - head_width(&p, r) : 0);
            else
                put_remark(&p, r);
        }
        i += n + (n == 0);
    }
    put_lines(&p, out);
}
