// squares.c: sums of squares of rows.
//
// A kernel adds them up in an order of its own, by where its tile lies. Where weights hang on their last bits (Backward.same_dots), the
// forward and the backward have to find the same sums. There each square x is taken apart by c, of the largest square of its row:
//
//     high = (x + c) - c,  x - high is exact;   the rest likewise, by a smaller c
//
// The high parts are multiples of one power of two, and so few of it that their sum is exact in every order; so are the middle ones. What is
// left is too small to change the result but for ties of 2^-26 (Rump, Ogita, Oishi, Accurate floating-point summation, 2008).
#include "passes/tile/build.h"
#include "passes/tile/rewrite.h"

#include <math.h>

enum {
    ROOM = 2048,    // a sum of that many halves of a part is exact: more than a row has columns
    NEXT = 1 << 13, // so much smaller is the next part's largest
};
static const float most = 0x1p115f; // of c, before it is multiplied

static const Ex *op(Build *b, ExOp kind, const Ex *x, const Ex *y) {
    return ex_2(b->pool, kind, x, y);
}

static const Ex *num(Build *b, float v) { return ex_f32(b->pool, v); }

static const Ex *rounded(Build *b, const Ex *e) { return ex_1(b->pool, EX_ROUNDED, e); }

static const Ex *square(Build *b, TileOp *map, TileValue *v) {
    const Ex *e = pass_operand(b->p, map, v);
    return op(b, EX_MUL, e, e);
}

static TileValue *reduced(Build *b, const char *name, TileValue *v, AxisRole rows, AxisRole columns,
                          ExOp reduce) {
    TileOp *map = build_open_map(b, rows, columns, b->row->span);
    return pass_out(b->p, b->k, map, name, DT_F32, square(b, map, v), reduce, b->axis[columns]);
}

// The part of x that is a multiple of what c's last bit is.
static const Ex *part(Build *b, const Ex *x, const Ex *c) {
    return rounded(b, op(b, EX_SUB, rounded(b, op(b, EX_ADD, x, c)), c));
}

TileValue *build_squares(Build *b, const char *name, TileValue *v, AxisRole rows, AxisRole columns,
                         bool alike) {
    if (!alike) return reduced(b, name, v, rows, columns, EX_ROWSUM);
    TileValue *top = reduced(b, "top", v, rows, columns, EX_ROWMAX), *sum[3];
    TileOp *map = build_open_map(b, rows, columns, b->row->span);
    const Ex *x = rounded(b, square(b, map, v)), *largest = pass_operand(b->p, map, top);
    const Ex *c = op(b, EX_MUL, op(b, EX_MIN, largest, num(b, most)), num(b, ROOM));
    const Ex *high = part(b, x, c), *rest = rounded(b, op(b, EX_SUB, x, high));
    const Ex *middle = part(b, rest, op(b, EX_MUL, c, num(b, 1.0f / NEXT)));
    const Ex *parts[] = {high, middle, rounded(b, op(b, EX_SUB, rest, middle))};
    static const char *const names[] = {"high", "middle", "low"};
    for (int i = 0; i < 3; i++)
        sum[i] = pass_out(b->p, b->k, map, names[i], DT_F32, parts[i], EX_ROWSUM, b->axis[columns]);
    TileOp *all = build_open_map(b, rows, AX_NONE, b->row->span);
    const Ex *s[3];
    for (int i = 0; i < 3; i++) s[i] = pass_operand(b->p, all, sum[i]);
    const Ex *total = rounded(b, op(b, EX_ADD, rounded(b, op(b, EX_ADD, s[0], s[1])), s[2]));
    const Ex *first = pass_operand(b->p, all, top); // infinite: so is the sum
    total = ex_select(b->pool, op(b, EX_EQ, first, num(b, INFINITY)), first, total);
    return pass_out(b->p, b->k, all, name, DT_F32, total, EX_CONST, 0);
}
