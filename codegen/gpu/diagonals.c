// diagonals.c: a sum that is scattered by the distance of two positions.
//
// In: a store marked `diagonals` (ir/tile_marks.def) of a fragment. Out: what a thread has of a diagonal is added in its registers,
// then what the lanes have of it, and once for each diagonal of a warp's part of the tile to memory:
//
//     lane(M/2%4, N%8), M columns     a register's elements lie on the diagonals x + n - 2 m, x a constant, n = lane / 4, m = lane % 4
//     -> from lane (n' + 2 m) % 8     on x + n' and x + n' - 8: the same lanes n' for all m, which are added by halves
//
// Where all of them go to one element (a bucket of far distances), the warp adds once.
#include "codegen/gpu/gpu.h"

typedef struct Lanes { // the rows' digit, whose numbers are 0, 1, ..; the columns' digits
    int stride, rows;  // of the rows'
    int most;          // that columns say
} Lanes;

typedef struct Sum { // of a lane: of diagonal `at` + the row that the lane says
    int x;           // at, where it is a constant
    Val at, v;
} Sum;
typedef VEC(Sum) Sums;

// False: its lanes are no such digits.
static bool lanes_of(const CgFragment *f, Lanes *out) {
    *out = (Lanes){0};
    for (int i = 0, stride = 1; i < f->is.n; i++) {
        const LayoutDigit *d = &f->is.digit[i];
        if (d->place != LAYOUT_LANE) continue;
        bool row = d->axis == f->rows;
        if (d->count & (d->count - 1)) return false;
        if (row && (out->rows || d->step != 1)) return false;
        if (row) out->stride = stride, out->rows = d->count;
        if (d->axis == f->columns) out->most += (d->count - 1) * d->step;
        stride *= d->count;
    }
    return out->rows > 1;
}

bool cg_adds_diagonals(Cg *cg, const TileOp *op) {
    Lanes l;
    const CgFragment *f = cg_fragment(cg, op->args.data[0]);
    return tile_is_marked(op, TILE_DIAGONALS) && !layout_copies(&f->is) && lanes_of(f, &l);
}

// What the lane says of an element's number along an axis.
static Val lane_part(Cg *cg, const CgFragment *f, int axis) {
    Val sum = cg_i32(cg, 0);
    for (int i = 0, stride = 1; i < f->is.n; i++) {
        const LayoutDigit *d = &f->is.digit[i];
        if (d->place != LAYOUT_LANE) continue;
        Val n = cg_modulo(cg, cg_over(cg, cg_gpu(cg)->lane, stride), d->count);
        if (d->axis == axis) sum = cg_add(cg, sum, cg_times(cg, n, d->step));
        stride *= d->count;
    }
    return sum;
}

static void add(Cg *cg, Sums *to, int x, Val v) {
    Sum new = {x, cg_i32(cg, x), v};
    for (int i = 0; i < to->n; i++)
        if (to->data[i].x == x) {
            to->data[i].v = cg_fadd(cg, to->data[i].v, v);
            return;
        }
    VEC_PUSH(cg->arena, to, new);
}

// Whether the axis has the place of a register's elements.
static Val exists(Cg *cg, const TileValue *v, int axis, int part) {
    Val at = cg_add(cg, cg_tile_begin(cg, axis), cg_thread_part(cg, v->layout, axis));
    return cg_less(cg, cg_plus(cg, at, part), cg_axis_size(cg, axis));
}

static Sums in_registers(Cg *cg, const TileValue *v, const CgFragment *f) {
    Sums sums = {0};
    for (int i = 0; i < f->registers * f->each; i++) {
        int part[TILE_MAX_AXES] = {0};
        for (int a = 0; a < v->rank; a++)
            part[v->axis[a]] = layout_part(&f->is, LAYOUT_REG, v->axis[a], i);
        int row = part[f->rows], column = part[f->columns];
        Val in = cg_and(cg, exists(cg, v, f->rows, row), exists(cg, v, f->columns, column));
        Val x = cg_gpu(cg)->hooks->element(cg, v, v->layout, part);
        add(cg, &sums, row - column, cg_or_zero(cg, in, x));
    }
    return sums;
}

static int ceil_to(int x, int by) { return (x + (x < 0 ? 0 : by - 1)) / by * by; }

// Each to the lanes of its diagonals: of multiples of the rows' count, and of the row that the lane says.
static Sums in_their_lanes(Cg *cg, const CgFragment *f, const Lanes *l, const Sums *from) {
    Sums sums = {0};
    Val row = lane_part(cg, f, f->rows), column = lane_part(cg, f, f->columns);
    Val base = cg_sub(cg, cg_gpu(cg)->lane, cg_times(cg, row, l->stride));
    for (int i = 0; i < from->n; i++) {
        int above = ceil_to(from->data[i].x, l->rows), less = above - from->data[i].x;
        Val t = cg_plus(cg, cg_add(cg, row, column), less);
        Val lane = cg_add(cg, base, cg_times(cg, cg_modulo(cg, t, l->rows), l->stride)),
            turn = cg_over(cg, t, l->rows);
        Val v = cg_gpu(cg)->hooks->from(cg, from->data[i].v, lane);
        int turns = (l->rows - 1 + less + l->most) / l->rows;
        for (int k = 0; k <= turns; k++) {
            Val here = cg_is(cg, turn, k);
            add(cg, &sums, above - k * l->rows, cg_or_zero(cg, here, v));
        }
    }
    return sums;
}

// Over the lanes that differ in `mask`: each keeps every second of the sums.
static Sums halved(Cg *cg, const Sums *from, int mask) {
    Sums sums = {0};
    Val bit = cg_and(cg, cg_gpu(cg)->lane, cg_i32(cg, mask));
    Val odd = cg_icmp(cg, LLVMIntNE, bit, cg_i32(cg, 0));
    for (int i = 0; i < from->n; i += 2) {
        Sum a = from->data[i], b = {0, a.at, cg_f32(cg, 0)};
        if (i + 1 < from->n) b = from->data[i + 1];
        Val keep = cg_select(cg, odd, b.v, a.v), give = cg_select(cg, odd, a.v, b.v);
        give = cg_gpu(cg)->hooks->exchange(cg, give, mask);
        Sum new = {0, cg_select(cg, odd, b.at, a.at), cg_fadd(cg, keep, give)};
        VEC_PUSH(cg->arena, &sums, new);
    }
    return sums;
}

static Sums across_columns(Cg *cg, const CgFragment *f, Sums sums) {
    for (int i = 0, stride = 1; i < f->is.n; i++) {
        const LayoutDigit *d = &f->is.digit[i];
        if (d->place != LAYOUT_LANE) continue;
        for (int mask = stride; d->axis == f->columns && mask < stride * d->count; mask *= 2)
            sums = halved(cg, &sums, mask);
        stride *= d->count;
    }
    return sums;
}

// i64: of a diagonal that begins in the tile's first column; *in: the tensor has the indices that are none of the diagonals'.
static Val offset_of(Cg *cg, const TileOp *op, const CgFragment *f, Val at, Val *in) {
    int layout = op->args.data[0]->layout;
    Val pos[TILE_MAX_AXES] = {NULL}, sum = cg_i64(cg, 0);
    Val column = cg_sub(cg, cg_thread_part(cg, layout, f->columns), lane_part(cg, f, f->columns));
    Val row = cg_add(cg, cg_tile_begin(cg, f->rows), cg_thread_part(cg, layout, f->rows));
    pos[f->rows] = cg_add(cg, row, at);
    pos[f->columns] = cg_add(cg, cg_tile_begin(cg, f->columns), column);
    *in = LLVMConstInt(cg->i1, 1, false);
    for (int d = 0; d < cg->p->tensors.data[op->tensor].rank; d++) {
        if (op->each[d]) continue;
        Val i = cg_uniform(cg, op->coord[d].at);
        Val has = cg_icmp(cg, LLVMIntULT, i, cg_extent(cg, op->tensor, d));
        *in = cg_and(cg, *in, has);
        i = cg_mul(cg, cg_sext(cg, i, cg->i64), cg_stride(cg, op->tensor, d));
        sum = cg_add(cg, sum, i);
    }
    return cg_add(cg, sum, cg_scatter_offset(cg, op, pos));
}

// Whether the number is the same in all lanes.
static Val is_uniform(Cg *cg, Val same, Val n) {
    Val part[] = {cg_trunc(cg, n, cg->i32), cg_trunc(cg, cg_lshr(cg, n, cg_i64(cg, 32)), cg->i32)};
    for (int i = 0; i < 2; i++) {
        Val is = cg_same(cg, cg_gpu(cg)->hooks->from(cg, part[i], cg_i32(cg, 0)), part[i]);
        same = cg_and(cg, same, is);
    }
    return same;
}

// x, if it counts, to an element of the tensor.
static void put(Cg *cg, const TileOp *op, Val offset, Val counts, Val x) {
    Val base = cg_global(cg, cg_pointer(cg, op->tensor));
    Blk done = cg_if(cg, counts, "diagonal");
    cg_add_to(cg, op->tensor, x, cg_element(cg, cg->f32, base, offset));
    cg_end_if(cg, done);
}

static Val is_something(Cg *cg, Val x, Val in) {
    return cg_and(cg, in, cg_fcmp(cg, LLVMRealUNE, x, cg_f32(cg, 0)));
}

static void put_one(Cg *cg, const TileOp *op, const Sums *sums, Val offset, Val in) {
    Val sum = sums->data[0].v;
    for (int i = 1; i < sums->n; i++) sum = cg_fadd(cg, sum, sums->data[i].v);
    for (int mask = 1; mask < cg->target->lanes; mask *= 2)
        sum = cg_fadd(cg, sum, cg_gpu(cg)->hooks->exchange(cg, sum, mask));
    Val first = cg_is(cg, cg_gpu(cg)->lane, 0);
    put(cg, op, offset, cg_and(cg, first, in), sum);
}

void cg_add_diagonals(Cg *cg, const TileOp *op) {
    const TileValue *v = op->args.data[0];
    const CgFragment *f = cg_fragment(cg, v);
    Lanes l;
    lanes_of(f, &l);
    Sums sums = in_registers(cg, v, f);
    sums = in_their_lanes(cg, f, &l, &sums);
    sums = across_columns(cg, f, sums);
    Val *offset = ARENA_ARRAY(cg->arena, Val, sums.n), same = LLVMConstInt(cg->i1, 1, false),
        in = same;
    for (int i = 0; i < sums.n; i++) offset[i] = offset_of(cg, op, f, sums.data[i].at, &in);
    same = is_uniform(cg, same, offset[0]);
    for (int i = 1; i < sums.n; i++) same = cg_and(cg, same, cg_same(cg, offset[i], offset[0]));
    Blk one = cg_block(cg, "one"), many = cg_block(cg, "many"), done = cg_block(cg, "added");
    cg_branch(cg, cg_gpu(cg)->hooks->every(cg, same), one, many);
    put_one(cg, op, &sums, offset[0], in);
    cg_br(cg, done);
    cg_go_on(cg, many);
    for (int i = 0; i < sums.n; i++)
        put(cg, op, offset[i], is_something(cg, sums.data[i].v, in), sums.data[i].v);
    cg_end_if(cg, done);
}
