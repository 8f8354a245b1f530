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

#include <assert.h>

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
        if (d->axis == axis) sum = LLVMBuildAdd(cg->b, sum, cg_times(cg, n, d->step), "");
        stride *= d->count;
    }
    return sum;
}

static void add(Cg *cg, Sums *to, int x, Val v) {
    Sum new = {x, cg_i32(cg, x), v};
    for (int i = 0; i < to->n; i++)
        if (to->data[i].x == x) {
            to->data[i].v = LLVMBuildFAdd(cg->b, to->data[i].v, v, "");
            return;
        }
    VEC_PUSH(cg->arena, to, new);
}

// Whether the axis has the place of a register's elements.
static Val exists(Cg *cg, const TileValue *v, int axis, int part) {
    Val at = LLVMBuildAdd(cg->b, cg_tile_begin(cg, axis), cg_thread_part(cg, v->layout, axis), "");
    return LLVMBuildICmp(cg->b, LLVMIntSLT, cg_plus(cg, at, part), cg_axis_size(cg, axis), "");
}

static Sums in_registers(Cg *cg, const TileValue *v, const CgFragment *f) {
    Sums sums = {0};
    for (int i = 0; i < f->registers * f->each; i++) {
        int part[TILE_MAX_AXES] = {0};
        for (int a = 0; a < v->rank; a++)
            part[v->axis[a]] = layout_part(&f->is, LAYOUT_REG, v->axis[a], i);
        int row = part[f->rows], column = part[f->columns];
        Val in =
            LLVMBuildAnd(cg->b, exists(cg, v, f->rows, row), exists(cg, v, f->columns, column), "");
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
    Val base = LLVMBuildSub(cg->b, cg_gpu(cg)->lane, cg_times(cg, row, l->stride), "");
    for (int i = 0; i < from->n; i++) {
        int above = ceil_to(from->data[i].x, l->rows), less = above - from->data[i].x;
        Val t = cg_plus(cg, LLVMBuildAdd(cg->b, row, column, ""), less);
        Val lane =
                LLVMBuildAdd(cg->b, base, cg_times(cg, cg_modulo(cg, t, l->rows), l->stride), ""),
            turn = cg_over(cg, t, l->rows);
        Val v = cg_gpu(cg)->hooks->from(cg, from->data[i].v, lane);
        int turns = (l->rows - 1 + less + l->most) / l->rows;
        for (int k = 0; k <= turns; k++) {
            Val here = LLVMBuildICmp(cg->b, LLVMIntEQ, turn, cg_i32(cg, k), "");
            add(cg, &sums, above - k * l->rows, cg_or_zero(cg, here, v));
        }
    }
    return sums;
}

// Over the lanes that differ in `mask`: each keeps every second of the sums.
static Sums halved(Cg *cg, const Sums *from, int mask) {
    Sums sums = {0};
    Val bit = LLVMBuildAnd(cg->b, cg_gpu(cg)->lane, cg_i32(cg, mask), "");
    Val odd = LLVMBuildICmp(cg->b, LLVMIntNE, bit, cg_i32(cg, 0), "");
    for (int i = 0; i < from->n; i += 2) {
        Sum a = from->data[i], b = {0, a.at, cg_f32(cg, 0)};
        if (i + 1 < from->n) b = from->data[i + 1];
        Val keep = LLVMBuildSelect(cg->b, odd, b.v, a.v, ""),
            give = LLVMBuildSelect(cg->b, odd, a.v, b.v, "");
        give = cg_gpu(cg)->hooks->exchange(cg, give, mask);
        Sum new = {0, LLVMBuildSelect(cg->b, odd, b.at, a.at, ""),
                   LLVMBuildFAdd(cg->b, keep, give, "")};
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
    Val column = LLVMBuildSub(cg->b, cg_thread_part(cg, layout, f->columns),
                              lane_part(cg, f, f->columns), "");
    Val row =
        LLVMBuildAdd(cg->b, cg_tile_begin(cg, f->rows), cg_thread_part(cg, layout, f->rows), "");
    pos[f->rows] = LLVMBuildAdd(cg->b, row, at, "");
    pos[f->columns] = LLVMBuildAdd(cg->b, cg_tile_begin(cg, f->columns), column, "");
    *in = LLVMConstInt(cg->i1, 1, false);
    for (int d = 0; d < cg->p->tensors.data[op->tensor].rank; d++) {
        if (op->each[d]) continue;
        Val i = cg_uniform(cg, op->coord[d].at);
        Val has = LLVMBuildICmp(cg->b, LLVMIntULT, i, cg_extent(cg, op->tensor, d), "");
        *in = LLVMBuildAnd(cg->b, *in, has, "");
        i = LLVMBuildMul(cg->b, LLVMBuildSExt(cg->b, i, cg->i64, ""), cg_stride(cg, op->tensor, d),
                         "");
        sum = LLVMBuildAdd(cg->b, sum, i, "");
    }
    return LLVMBuildAdd(cg->b, sum, cg_scatter_offset(cg, op, pos), "");
}

// Whether the number is the same in all lanes.
static Val is_uniform(Cg *cg, Val same, Val n) {
    Val part[] = {LLVMBuildTrunc(cg->b, n, cg->i32, ""),
                  LLVMBuildTrunc(cg->b, LLVMBuildLShr(cg->b, n, cg_i64(cg, 32), ""), cg->i32, "")};
    for (int i = 0; i < 2; i++) {
        Val first = cg_gpu(cg)->hooks->from(cg, part[i], cg_i32(cg, 0));
        Val is = LLVMBuildICmp(cg->b, LLVMIntEQ, first, part[i], "");
        same = LLVMBuildAnd(cg->b, same, is, "");
    }
    return same;
}

// x, if it counts, to an element of the tensor.
static void put(Cg *cg, const TileOp *op, Val offset, Val counts, Val x) {
    Val base = LLVMBuildAddrSpaceCast(cg->b, cg_pointer(cg, op->tensor),
                                      LLVMPointerTypeInContext(cg->c, 1), "");
    Blk done = cg_if(cg, counts, "diagonal");
    cg_gpu(cg)->hooks->add(cg, x, LLVMBuildGEP2(cg->b, cg->f32, base, &offset, 1, ""));
    cg_end_if(cg, done);
}

static Val is_something(Cg *cg, Val x, Val in) {
    return LLVMBuildAnd(cg->b, in, LLVMBuildFCmp(cg->b, LLVMRealUNE, x, cg_f32(cg, 0), ""), "");
}

static void put_one(Cg *cg, const TileOp *op, const Sums *sums, Val offset, Val in) {
    Val sum = sums->data[0].v;
    for (int i = 1; i < sums->n; i++) sum = LLVMBuildFAdd(cg->b, sum, sums->data[i].v, "");
    for (int mask = 1; mask < cg->target->lanes; mask *= 2)
        sum = LLVMBuildFAdd(cg->b, sum, cg_gpu(cg)->hooks->exchange(cg, sum, mask), "");
    Val first = LLVMBuildICmp(cg->b, LLVMIntEQ, cg_gpu(cg)->lane, cg_i32(cg, 0), "");
    put(cg, op, offset, LLVMBuildAnd(cg->b, first, in, ""), sum);
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
    for (int i = 1; i < sums.n; i++)
        same = LLVMBuildAnd(cg->b, same, LLVMBuildICmp(cg->b, LLVMIntEQ, offset[i], offset[0], ""),
                            "");
    Blk one = cg_block(cg, "one"), many = cg_block(cg, "many"), done = cg_block(cg, "added");
    LLVMBuildCondBr(cg->b, cg_gpu(cg)->hooks->every(cg, same), one, many);
    LLVMPositionBuilderAtEnd(cg->b, one);
    put_one(cg, op, &sums, offset[0], in);
    LLVMBuildBr(cg->b, done);
    LLVMMoveBasicBlockAfter(many, LLVMGetInsertBlock(cg->b));
    LLVMPositionBuilderAtEnd(cg->b, many);
    for (int i = 0; i < sums.n; i++)
        put(cg, op, offset[i], is_something(cg, sums.data[i].v, in), sums.data[i].v);
    LLVMBuildBr(cg->b, done);
    LLVMMoveBasicBlockAfter(done, LLVMGetInsertBlock(cg->b));
    LLVMPositionBuilderAtEnd(cg->b, done);
}
