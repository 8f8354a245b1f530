// expr.c: scalar expressions to LLVM, with the language's exact meaning (ir/ops.def).
//
// In: an expression and the current element. Out: its value, a scalar where it does not vary along
// the element's lanes, so that what is uniform is computed once and splatted where it meets what is
// not. Holds afterwards: each distinct node is built once per element; nothing built here is
// undefined behaviour for any value (divisors and shift counts are guarded, conversions saturate,
// loads are clamped), because both sides of a select are computed.
#include "codegen/cg.h"
#include "ir/expr_ops.h"

#include <assert.h>

static Val intrinsic_of(Cg *cg, const char *name, Val *v, int n) {
    Ty t = LLVMTypeOf(v[0]);
    return cg_intrinsic(cg, name, &t, 1, v, n);
}

// ---- integers

// Floor division. In vectors by way of f64, which holds every i32 and whose quotient cannot round
// across an integer (the nearest miss is 1 part in 2^31); a vector sdiv would be taken apart into
// scalar ones.
static Val vector_floor_div(Cg *cg, Val a, Val b) {
    int n = cg_lanes(a);
    Ty d = cg_vector(LLVMDoubleTypeInContext(cg->c), n);
    Val q = cg_fdiv(cg, LLVMBuildSIToFP(cg->b, a, d, ""), LLVMBuildSIToFP(cg->b, b, d, ""));
    q = intrinsic_of(cg, "llvm.floor", &q, 1);
    return LLVMBuildFPToSI(cg->b, q, LLVMTypeOf(a), "");
}

static Val scalar_floor_div(Cg *cg, Val a, Val b) {
    Val zero = LLVMConstNull(LLVMTypeOf(a));
    Val q = LLVMBuildSDiv(cg->b, a, b, "");
    Val r = cg_sub(cg, a, cg_mul(cg, q, b));
    Val inexact = cg_icmp(cg, LLVMIntNE, r, zero);
    Val down = cg_and(cg, inexact, cg_less(cg, cg_xor(cg, r, b), zero));
    return cg_add(cg, q, cg_sext(cg, down, LLVMTypeOf(a)));
}

// Which power of two a constant is; below 0: none.
static int power_of(Val b) {
    if (!LLVMIsAConstantInt(b)) return -1;
    long long n = LLVMConstIntGetSExtValue(b);
    int power = 0;
    while (power < 31 && 1ll << power < n) power++;
    return n == 1ll << power ? power : -1;
}

// 0 by zero; by -1 a wrapping negation, which the division itself would trap on for the least
// integer.
static Val floor_div(Cg *cg, Val a, Val b) {
    int n = cg_lanes(a), power = power_of(b);
    if (power >= 0) return LLVMBuildAShr(cg->b, a, cg_i32(cg, power), "");
    Val one = cg_splat(cg, cg_i32(cg, 1), n), minus = cg_splat(cg, cg_i32(cg, -1), n);
    Val zero = LLVMConstNull(LLVMTypeOf(a));
    Val by0 = cg_same(cg, b, zero);
    Val byminus = cg_same(cg, b, minus);
    Val safe = cg_select(cg, cg_or(cg, by0, byminus), one, b);
    Val q =
        n > 1 && !LLVMIsConstant(b) ? vector_floor_div(cg, a, safe) : scalar_floor_div(cg, a, safe);
    q = cg_select(cg, byminus, cg_neg(cg, a), q);
    return cg_select(cg, by0, zero, q);
}

static Val floor_mod(Cg *cg, Val a, Val b) {
    Val zero = LLVMConstNull(LLVMTypeOf(a));
    int power = power_of(b);
    if (power >= 0) return cg_and(cg, a, cg_i32(cg, (1 << power) - 1));
    Val r = cg_sub(cg, a, cg_mul(cg, floor_div(cg, a, b), b));
    return cg_select(cg, cg_same(cg, b, zero), zero, r);
}

// Of 2 x, which has 32 bits, and both halves of the inverse: no sum leaves 64 bits.
Val cg_times_inverse(Cg *cg, Val x, Val inverse) {
    Val all = cg_i64(cg, 32), twice = cg_zext(cg, cg_shl(cg, x, cg_i32(cg, 1)), cg->i64);
    Val low = cg_mul(cg, twice, cg_and(cg, inverse, cg_i64(cg, UINT32_MAX)));
    Val high = cg_mul(cg, twice, cg_lshr(cg, inverse, all));
    return cg_trunc(cg, cg_lshr(cg, cg_add(cg, high, cg_lshr(cg, low, all)), all), cg->i32);
}

// By a size of the launch, which is not below 0: below 0 -1 - x is divided for x, which rounds down.
static Val over_size(Cg *cg, const Ex *e, Val *v) {
    bool divides = (e->op == EX_DIV || e->op == EX_MOD) && cg_lanes(v[0]) == 1;
    Val inverse = divides ? cg_inverse(cg, e->args[1]) : NULL;
    if (!inverse) return NULL;
    Val zero = cg_i32(cg, 0), by0 = cg_same(cg, v[1], zero);
    Val sign = LLVMBuildAShr(cg->b, v[0], cg_i32(cg, 31), "");
    Val q = cg_xor(cg, cg_times_inverse(cg, cg_xor(cg, v[0], sign), inverse), sign);
    if (e->op == EX_MOD) q = cg_sub(cg, v[0], cg_mul(cg, q, v[1]));
    return cg_select(cg, by0, zero, q);
}

static Val build_int(Cg *cg, ExOp op, Val *v) {
    LLVMBuilderRef b = cg->b;
    Val count = op == EX_SHL || op == EX_SHR
                    ? LLVMBuildAnd(b, v[1], cg_splat(cg, cg_i32(cg, 31), cg_lanes(v[1])), "")
                    : NULL;
    switch ((int)op) {
    case EX_ADD: return LLVMBuildAdd(b, v[0], v[1], "");
    case EX_SUB: return LLVMBuildSub(b, v[0], v[1], "");
    case EX_MUL: return LLVMBuildMul(b, v[0], v[1], "");
    case EX_DIV: return floor_div(cg, v[0], v[1]);
    case EX_MOD: return floor_mod(cg, v[0], v[1]);
    case EX_NEG: return LLVMBuildNeg(b, v[0], "");
    case EX_MIN: return intrinsic_of(cg, "llvm.smin", v, 2);
    case EX_MAX: return intrinsic_of(cg, "llvm.smax", v, 2);
    case EX_BAND: return LLVMBuildAnd(b, v[0], v[1], "");
    case EX_BOR: return LLVMBuildOr(b, v[0], v[1], "");
    case EX_BXOR: return LLVMBuildXor(b, v[0], v[1], "");
    case EX_BNOT: return LLVMBuildNot(b, v[0], "");
    case EX_SHL: return LLVMBuildShl(b, v[0], count, "");
    case EX_SHR: return LLVMBuildAShr(b, v[0], count, "");
    default: assert(!"an integer operation"); return NULL;
    }
}

static bool reads_integers(const Cg *cg) {
    for (int i = 0; i < cg->p->tensors.n; i++)
        if (cg->p->tensors.data[i].role == TENSOR_INPUT && cg->p->tensors.data[i].dtype == DT_I32)
            return true;
    return false;
}

// It may be the least i32. Positions and numbers of heads are small.
static bool is_any_number(void *ctx, const Ex *e) {
    enum { LARGE = 1 << 28 };
    if (e->op == EX_CONST) return e->type == EX_I32 && (e->i > LARGE || e->i < -LARGE);
    return e->op == EX_LOAD || e->op == EX_SHL || e->op == EX_MUL || e->op == EX_BXOR ||
           e->op == EX_BNOT || e->op == EX_CONV || ex_is_sym(e, SYM_SCALAR, -1) ||
           (ex_is_sym(e, SYM_PARAM, -1) && reads_integers(ctx));
}

// |x|. NVIDIA's assembler has an instruction for an x that is not the least i32 (nvptx/math.c).
static Val whole_abs(Cg *cg, const Ex *e, const Val *v) {
    bool small = cg->target->kind == KIND_NVPTX && !ex_any(e->args[0], is_any_number, cg);
    Ty type = LLVMTypeOf(v[0]);
    Val args[] = {v[0], LLVMConstInt(cg->i1, small, false)};
    return cg_intrinsic(cg, "llvm.abs", &type, 1, args, 2);
}

// ---- floats

// What stands under `rounded` is computed as written: no flag lets it go into an fma, and a quotient and a root are rounded
// correctly.
static Val build_exact(Cg *cg, ExOp op, const Val *v) {
    switch ((int)op) {
    case EX_ADD: return cg_fadd(cg, v[0], v[1]);
    case EX_SUB: return cg_fsub(cg, v[0], v[1]);
    case EX_MUL: return cg_fmul(cg, v[0], v[1]);
    case EX_DIV: return cg_divide_rounded(cg, v[0], v[1]);
    case EX_SQRT: return cg_sqrt_rounded(cg, v[0]);
    default: return NULL;
    }
}

static bool is_rounded_product(Val v) {
    return LLVMIsAInstruction(v) && LLVMGetInstructionOpcode(v) == LLVMFMul &&
           !LLVMGetFastMathFlags(v);
}

// Where LLVM moves the sign of a factor from a product to the sum that takes it, it gives the product the sum's flags. So a sum of a
// rounded product has none.
static Val sum(const Val *v, Val made) {
    return is_rounded_product(v[0]) || is_rounded_product(v[1]) ? made : cg_fast(made);
}

static Val build_float(Cg *cg, ExOp op, Val *v, int n) {
    LLVMBuilderRef b = cg->b;
    switch ((int)op) {
    case EX_ADD: return sum(v, LLVMBuildFAdd(b, v[0], v[1], ""));
    case EX_SUB: return sum(v, LLVMBuildFSub(b, v[0], v[1], ""));
    case EX_MUL: return cg_fast(LLVMBuildFMul(b, v[0], v[1], ""));
    case EX_NEG: return LLVMBuildFNeg(b, v[0], "");
    case EX_ROUNDED: return v[0];
    case EX_MOD: { // each operation rounded by itself: 0 for y = x
        Val f = cg_divide_rounded(cg, v[0], v[1]);
        f = cg_math(cg, EX_FLOOR, &f, 1);
        return LLVMBuildFSub(b, v[0], LLVMBuildFMul(b, v[1], f, ""), "");
    }
    default: return cg_math(cg, op, v, n);
    }
}

static bool is_exact(const Cg *cg, const Ex *e) { return ex_memo_get(&cg->exact, e); }

typedef struct Rounding {
    Cg *cg;
    Arena *arena;
    ExMemo within;    // what something rounded is made of
    const TileOp *op; // whose operands are meant; NULL: there are none
} Rounding;

// What another map made is rounded there.
static void mark_operand(Rounding *r, const Ex *e, bool exact) {
    const TileOp *op = r->op;
    while (op && e->op == EX_SYM && e->sym == SYM_PARAM) {
        const TileValue *v = op->args.data[e->index];
        op = v->def && v->def->kind == TILE_MAP ? v->def : NULL;
        for (int i = 0; op && i < op->results.n; i++)
            if (op->results.data[i] == v) e = op->outs.data[i].body;
    }
    ex_memo_put(r->arena, &r->within, e, e);
    if (exact || e->op == EX_SIGMOID) ex_memo_put(r->cg->arena, &r->cg->exact, e, e);
}

// What is rounded, or chosen to be, and sigmoids that it is made of, of which targets have several: other sweeps find the same bits.
static const Ex *look_for_rounded(void *ctx, const Ex *e) {
    Rounding *r = ctx;
    Arena *scratch = arena_new();
    const Ex **order;
    for (int i = ex_order(scratch, &e, 1, &order); i-- > 0;) { // users before their arguments
        const Ex *x = order[i];
        bool exact = x->op == EX_ROUNDED || (x->op == EX_SELECT && is_exact(r->cg, x));
        for (int k = 0; k < x->nargs && (exact || ex_memo_get(&r->within, x)); k++)
            if (x->args[k]->type == EX_F32) mark_operand(r, x->args[k], exact);
    }
    arena_free(scratch);
    return e;
}

void cg_find_exact(Cg *cg) {
    cg->exact = (ExMemo){0};
    Arena *scratch = arena_new();
    VEC(TileOp *) ops = {0};
    Rounding r = {.cg = cg, .arena = scratch};
    for (TileOp *op = tile_next(&cg->k->body, NULL); op; op = tile_next(&cg->k->body, op))
        VEC_PUSH(scratch, &ops, op);
    for (int i = ops.n; i-- > 0;) { // what another map made, after all that ask for it
        r.op = ops.data[i]->kind == TILE_MAP ? ops.data[i] : NULL;
        tile_map_exprs(ops.data[i], look_for_rounded, &r);
    }
    r.op = NULL;
    look_for_rounded(&r, cg->k->mask);
    arena_free(scratch);
}

// ---- comparisons, choices, conversions

static Val compare(Cg *cg, ExOp op, ExType of, Val a, Val b) {
    static const LLVMIntPredicate ints[] = {LLVMIntEQ, LLVMIntNE, LLVMIntSLT, LLVMIntSLE};
    static const LLVMRealPredicate reals[] = {LLVMRealOEQ, LLVMRealUNE, LLVMRealOLT, LLVMRealOLE};
    _Static_assert(EX_NE == EX_EQ + 1 && EX_LT == EX_EQ + 2 && EX_LE == EX_EQ + 3,
                   "order of ops.def");
    if (of == EX_F32) return cg_fcmp(cg, reals[op - EX_EQ], a, b);
    return cg_icmp(cg, ints[op - EX_EQ], a, b);
}

// Truncates and saturates, a NaN to 0. LLVM's own saturating conversion takes vectors apart.
static Val to_int(Cg *cg, Val v) {
    int n = cg_lanes(v);
    Ty i = cg_vector(cg->i32, n), types[] = {i, LLVMTypeOf(v)};
    if (n == 1) return cg_intrinsic(cg, "llvm.fptosi.sat", types, 2, &v, 1);
    Val low = cg_splat(cg, cg_f32(cg, -0x1p31), n), high = cg_splat(cg, cg_f32(cg, 0x1p31), n);
    Val above = cg_fcmp(cg, LLVMRealOGE, v, high);
    Val below = cg_fcmp(cg, LLVMRealOLT, v, low);
    Val nan = cg_fcmp(cg, LLVMRealUNO, v, v);
    Val out = cg_or(cg, cg_or(cg, above, below), nan);
    Val r = LLVMBuildFPToSI(cg->b, cg_select(cg, out, LLVMConstNull(types[1]), v), i, "");
    r = cg_select(cg, above, cg_splat(cg, cg_i32(cg, INT32_MAX), n), r);
    return cg_select(cg, below, cg_splat(cg, cg_i32(cg, INT32_MIN), n), r);
}

static Val convert(Cg *cg, ExType to, ExType from, Val v) {
    if (to == from) return v;
    int n = cg_lanes(v);
    Ty f = cg_vector(cg->f32, n), i = cg_vector(cg->i32, n);
    Val zero = LLVMConstNull(LLVMTypeOf(v));
    if (to == EX_BOOL)
        return from == EX_F32 ? cg_fcmp(cg, LLVMRealUNE, v, zero) : cg_icmp(cg, LLVMIntNE, v, zero);
    if (to == EX_F32)
        return from == EX_BOOL ? LLVMBuildUIToFP(cg->b, v, f, "")
                               : LLVMBuildSIToFP(cg->b, v, f, "");
    return from == EX_BOOL ? cg_zext(cg, v, i) : to_int(cg, v);
}

static Val select_of(Cg *cg, Val *v) {
    int lanes = cg_widest(v, 3);
    if (cg_lanes(v[0]) > 1 || lanes > 1) {
        v[1] = cg_widen(cg, v[1], lanes);
        v[2] = cg_widen(cg, v[2], lanes);
    }
    return cg_select(cg, v[0], v[1], v[2]);
}

// ---- inputs

Val cg_extent(Cg *cg, int tensor, int dim) {
    return cg_uniform(cg, cg->p->tensors.data[tensor].extent[dim]);
}

// Something to read where a tensor has no elements: its clamped index is 0 all the same.
static Val zero_element(Cg *cg) {
    unsigned space = cg->target->kind == KIND_HOST ? 0 : 1;
    Val g = LLVMGetNamedGlobal(cg->m, "attn_zero");
    if (!g) {
        g = LLVMAddGlobalInAddressSpace(cg->m, cg->i64, "attn_zero", space);
        LLVMSetInitializer(g, cg_i64(cg, 0));
        LLVMSetGlobalConstant(g, true);
        LLVMSetLinkage(g, LLVMInternalLinkage);
    }
    return space ? LLVMConstAddrSpaceCast(g, cg->ptr) : g;
}

static Val is_empty(Cg *cg, const TileTensor *t) {
    Val empty = NULL;
    for (int d = 0; d < t->rank; d++) {
        if (t->extent[d]->op == EX_CONST && t->extent[d]->i > 0) continue;
        Val none = cg_below(cg, cg_uniform(cg, t->extent[d]), 1);
        empty = empty ? cg_or(cg, empty, none) : none;
    }
    return empty;
}

// A pointer that index 0 of an input may be read at, even where it is empty.
static Val input_of(Cg *cg, int tensor) {
    if (cg->input[tensor]) return cg->input[tensor];
    const TileTensor *t = &cg->p->tensors.data[tensor];
    Val p = cg_pointer(cg, tensor);
    is_empty(cg, t); // asks for the sizes, which moves the builder; what it makes here is dead
    Blk here = cg_here(cg);
    LLVMPositionBuilderBefore(cg->b, LLVMGetBasicBlockTerminator(cg->entry));
    Val empty = is_empty(cg, t);
    if (empty) p = cg_select(cg, empty, zero_element(cg), p);
    cg_at(cg, here);
    return cg->input[tensor] = p;
}

// ---- loads: clamped, contiguous where the index runs along the lanes with step 1

typedef struct Affine { // of lane i: first + step * i
    Val first;
    int step;
} Affine;

static Val built(const CgElem *at, const Ex *e) {
    Val v = ex_memo_get(&at->memo, e);
    assert(v);
    return v;
}

// How an index that is already built varies along the lanes. Depth is bounded: a long chain is
// taken as irregular.
static bool lane_affine(Cg *cg, CgElem *at, const Ex *e, int depth, Affine *out) {
    Val v = ex_memo_get(&at->memo, e);
    if (!v) return false; // of another part (outline.c)
    if (cg_lanes(v) == 1) {
        *out = (Affine){v, 0};
        return true;
    }
    if (e->op == EX_SYM && e->sym == SYM_POS && e->index == at->lane_axis && at->lane_first) {
        *out = (Affine){at->lane_first, 1};
        return true;
    }
    if ((e->op != EX_ADD && e->op != EX_SUB) || depth == 0) return false;
    Affine a, b;
    if (!lane_affine(cg, at, e->args[0], depth - 1, &a)) return false;
    if (!lane_affine(cg, at, e->args[1], depth - 1, &b)) return false;
    bool add = e->op == EX_ADD;
    out->first = add ? cg_add(cg, a.first, b.first) : cg_sub(cg, a.first, b.first);
    out->step = add ? a.step + b.step : a.step - b.step;
    return true;
}

static Val clamp(Cg *cg, Val i, Val extent) {
    int n = cg_lanes(i);
    Val last = cg_sub(cg, extent, cg_i32(cg, 1));
    Val v[] = {i, cg_splat(cg, last, n)};
    v[0] = intrinsic_of(cg, "llvm.smin", v, 2);
    v[1] = LLVMConstNull(LLVMTypeOf(i));
    return intrinsic_of(cg, "llvm.smax", v, 2);
}

static Val offset_add(Cg *cg, Val sum, Val index, Val stride) {
    Ty wide = cg_vector(cg->i64, cg_lanes(index));
    Val i = cg_sext(cg, index, wide);
    Val v[] = {sum, cg_mul(cg, i, cg_splat(cg, stride, cg_lanes(i)))};
    if (!sum) return v[1];
    cg_widen_all(cg, v, 2);
    return cg_add(cg, v[0], v[1]);
}

static Val element_pointer(Cg *cg, int tensor, Val offset) {
    Ty t = cg_dtype(cg, cg->p->tensors.data[tensor].dtype);
    Val base = input_of(cg, tensor);
    return offset ? cg_element(cg, t, base, offset) : base;
}

// The element at `lead` plus, in the last dimension, `last` (NULL: none). A gather takes 32-bit indices from a scalar address as they
// are; with 64-bit ones it would be two of half the width.
static Val load_at(Cg *cg, int tensor, Val lead, Val last) {
    Dtype d = cg->p->tensors.data[tensor].dtype;
    Ty t = cg_dtype(cg, d);
    Val p = element_pointer(cg, tensor, lead), v;
    if (last) p = cg_element(cg, t, p, last);
    int n = lead && cg_lanes(lead) > 1 ? cg_lanes(lead) : last ? cg_lanes(last) : 1;
    if (n == 1) {
        v = cg_load(cg, t, p);
        if (!cg->stored[tensor] && cg->target->kind != KIND_HOST) cg_invariant(cg, v);
    } else {
        Ty types[] = {cg_vector(t, n), LLVMTypeOf(p)};
        Val ones = LLVMConstAllOnes(cg_vector(cg->i1, n));
        Val args[] = {p, cg_i32(cg, dtype_bytes(d)), ones, LLVMGetPoison(types[0])};
        v = cg_intrinsic(cg, "llvm.masked.gather", types, 2, args, 4);
    }
    return cg_read(cg, v, d);
}

static Val load_contiguous(Cg *cg, int tensor, Val offset, int lanes) {
    Dtype d = cg->p->tensors.data[tensor].dtype;
    Val p = element_pointer(cg, tensor, offset);
    Val v = cg_load(cg, cg_vector(cg_dtype(cg, d), lanes), p);
    LLVMSetAlignment(v, (unsigned)dtype_bytes(d));
    return cg_read(cg, v, d);
}

// The last index runs along the lanes with step 1: one vector load where all of it is inside, a
// clamped gather otherwise (the tile's edge).
static Val load_along(Cg *cg, int tensor, Val lead, Val first, Val gather, int lanes) {
    int rank = cg->p->tensors.data[tensor].rank;
    Val extent = cg_extent(cg, tensor, rank - 1);
    Val low = cg_icmp(cg, LLVMIntSGE, first, cg_i32(cg, 0));
    Val high = cg_icmp(cg, LLVMIntSLE, first, cg_sub(cg, extent, cg_i32(cg, lanes)));
    Blk fast = cg_block(cg, "load.row"), slow = cg_block(cg, "load.edge"),
        join = cg_block(cg, "load");
    cg_branch(cg, cg_and(cg, low, high), fast, slow);
    Val a = load_contiguous(cg, tensor, offset_add(cg, lead, first, cg_i64(cg, 1)), lanes);
    fast = cg_here(cg);
    cg_br(cg, join);
    cg_at(cg, slow);
    Val b = load_at(cg, tensor, lead, gather);
    slow = cg_here(cg);
    cg_enter(cg, join);
    return cg_join(cg, a, fast, b, slow);
}

// Where elements stand at known places along the last index: one address for all of a row. Else NULL.
static Val load_placed(Cg *cg, CgElem *at, const Ex *e, Val lead) {
    int tensor = cg->p->inputs.data[e->input], offset;
    const Ex *last = e->args[e->nargs - 1];
    Val first;
    if (!e->inside || !at->place || last->op != EX_SYM || last->sym != SYM_POS) return NULL;
    if (!at->place(cg, at, last->index, &first, &offset)) return NULL;
    Ty t = cg_dtype(cg, cg->p->tensors.data[tensor].dtype);
    Val p = element_pointer(cg, tensor, offset_add(cg, lead, first, cg_i64(cg, 1)));
    Val own = at->read ? at->read(cg, at, e, p, offset) : NULL;
    if (own) return own;
    Val beyond = cg_i64(cg, offset);
    Val v = cg_load(cg, t, cg_element(cg, t, p, beyond));
    if (!cg->stored[tensor]) cg_invariant(cg, v);
    return cg_read(cg, v, cg->p->tensors.data[tensor].dtype);
}

static Val load(Cg *cg, CgElem *at, const Ex *e) {
    int tensor = cg->p->inputs.data[e->input], n = e->nargs;
    Val lead = NULL, last = NULL, index[EX_MAX_RANK], placed;
    for (int i = 0; i < n; i++) {
        Val v = built(at, e->args[i]);
        index[i] = e->inside ? v : clamp(cg, v, cg_extent(cg, tensor, i));
        if (i + 1 < n)
            lead = offset_add(cg, lead, index[i], cg_stride(cg, tensor, i));
        else
            last = index[i];
    }
    if (n && (placed = load_placed(cg, at, e, lead))) return placed;
    Affine along;
    bool row = n && at->lanes > 1 && cg_lanes(last) == at->lanes &&
               (!lead || cg_lanes(lead) == 1) && lane_affine(cg, at, e->args[n - 1], 16, &along) &&
               along.step == 1;
    if (row) return load_along(cg, tensor, lead, along.first, last, at->lanes);
    return load_at(cg, tensor, lead, last);
}

// ---- the walk

static Val leaf(Cg *cg, CgElem *at, const Ex *e) {
    if (e->op == EX_CONST) {
        if (e->type == EX_F32) return cg_f32(cg, (double)e->f);
        return e->type == EX_I32 ? cg_i32(cg, e->i) : LLVMConstInt(cg->i1, (uint64_t)e->i, false);
    }
    switch ((int)e->sym) {
    case SYM_B: return cg->grid_b;
    case SYM_H: return cg->grid_h;
    case SYM_SIZE: return cg_size(cg, e->index);
    case SYM_SCALAR: return cg_scalar(cg, e->index);
    case SYM_STEP: return cg->step;
    case SYM_VALID: return cg->valid;
    case SYM_TILE: return cg->tile[e->index];
    case SYM_POS: return at->pos(cg, at, e->index);
    case SYM_PARAM: return at->param(cg, at, e->index);
    case SYM_MASK: return cg_expr(cg, cg->k->mask, at);
    default: assert(!"a symbol of a tile program"); return NULL;
    }
}

// ---- bounds of positions: `first + offset <= x` as `offset <= x - first`, whose right side is
// computed once for many elements, and `and`s of such as one comparison. The difference saturates,
// which no offset of a tile can tell from the true one.

typedef struct Range {   // low <= offset <= high, and `when`
    int axis, offset;    // axis -1: no bound yet
    Val low, high, when; // NULL: whatever
} Range;

static Val saturating(Cg *cg, const char *name, Val a, Val b) {
    Val v[] = {a, b};
    return intrinsic_of(cg, name, v, 2);
}

static Val both(Cg *cg, const char *name, Val a, Val b) {
    return !a ? b : !b ? a : saturating(cg, name, a, b);
}

static bool is_position(const Ex *e) { return e->op == EX_SYM && e->sym == SYM_POS; }

typedef struct Along {
    const CgElem *at;
    int axis;
} Along;

static bool moves(void *ctx, const Ex *e) {
    const Along *a = ctx;
    if (e->op != EX_SYM) return false;
    if (e->sym == SYM_PARAM) return a->at->varies(a->at, e->index, a->axis);
    return e->sym == SYM_MASK || (e->sym == SYM_POS && e->index == a->axis);
}

static bool moves_or_loads(void *ctx, const Ex *e) { return e->op == EX_LOAD || moves(ctx, e); }

// Of a position of the same tile along another axis: how far behind `first` it is. NULL: it is none.
static Val within_tile(Cg *cg, CgElem *at, const Ex *pos, const Ex *other, Val first) {
    int root = tile_root_axis(cg->k, pos->index), offset;
    if (!is_position(other) || tile_root_axis(cg->k, other->index) != root) return NULL;
    Val tile = cg->tile[root], in_tile, x = NULL;
    cg->tile[root] = NULL; // as if it began at 0
    at->place(cg, at, pos->index, &in_tile, &offset);
    if (in_tile != first) x = cg_sub(cg, at->pos(cg, at, other->index), in_tile);
    cg->tile[root] = tile;
    return x;
}

// Whether the side is such a position; x: the limit, from where positions are counted. One that moves with the position is none.
static bool is_place(Cg *cg, CgElem *at, const Ex *pos, const Ex *other, Range *r, Val *x) {
    Val first;
    if (!is_position(pos) || ex_any(other, moves, &(Along){at, pos->index})) return false;
    if (!at->place(cg, at, pos->index, &first, &r->offset)) return false;
    r->axis = pos->index;
    *x = within_tile(cg, at, pos, other, first);
    if (!*x) *x = saturating(cg, "llvm.ssub.sat", built(at, other), first);
    return true;
}

static bool compared(Cg *cg, CgElem *at, const Ex *e, Range *r) {
    const Ex *a = e->args[0], *b = e->args[1];
    Val one = cg_i32(cg, 1);
    bool high = is_place(cg, at, a, b, r, &r->high),
         low = !high && is_place(cg, at, b, a, r, &r->low);
    if (high && e->op == EX_LT) r->high = saturating(cg, "llvm.ssub.sat", r->high, one);
    if (low && e->op == EX_LT) r->low = saturating(cg, "llvm.sadd.sat", r->low, one);
    return high || low;
}

// abs(x - pos) <= c
static bool near(Cg *cg, CgElem *at, const Ex *e, Range *r) {
    const Ex *sum = e->args[0]->op == EX_ABS ? e->args[0]->args[0] : NULL, *c = e->args[1];
    if (!sum || sum->op != EX_SUB || c->op != EX_CONST || c->i < (e->op == EX_LT)) return false;
    Val x, by = cg_i32(cg, c->i - (e->op == EX_LT));
    for (int side = 0; side < 2 && r->axis < 0; side++)
        if (is_place(cg, at, sum->args[side], sum->args[1 - side], r, &x)) {
            r->low = saturating(cg, "llvm.ssub.sat", x, by);
            r->high = saturating(cg, "llvm.sadd.sat", x, by);
        }
    return r->axis >= 0;
}

static bool range_of(Cg *cg, CgElem *at, const Ex *e, Range *r, int depth) {
    *r = (Range){.axis = -1};
    bool compares = (e->op == EX_LE || e->op == EX_LT) && e->args[0]->type == EX_I32;
    if (compares && (compared(cg, at, e, r) || near(cg, at, e, r))) return true;
    if (e->op != EX_AND || depth == 0) return false;
    Range side[2];
    for (int i = 0; i < 2; i++) range_of(cg, at, e->args[i], &side[i], depth - 1);
    for (int i = 0; i < 2; i++) {
        if (side[i].axis >= 0) continue;
        Along along = {at, side[1 - i].axis};
        if (along.axis < 0 || ex_any(e->args[i], moves_or_loads, &along)) return false;
        side[i] = (Range){along.axis, side[1 - i].offset, NULL, NULL, built(at, e->args[i])};
    }
    if (side[0].axis != side[1].axis) return false;
    *r = side[0];
    r->low = both(cg, "llvm.smax", side[0].low, side[1].low);
    r->high = both(cg, "llvm.smin", side[0].high, side[1].high);
    r->when = side[0].when && side[1].when ? cg_and(cg, side[0].when, side[1].when)
              : side[0].when               ? side[0].when
                                           : side[1].when;
    return true;
}

static Val between(Cg *cg, Val v, int low, int high) {
    Val most[] = {v, cg_i32(cg, high)}, least[] = {NULL, cg_i32(cg, low)};
    least[0] = intrinsic_of(cg, "llvm.smin", most, 2);
    return intrinsic_of(cg, "llvm.smax", least, 2);
}

// Both sides at once, where an offset is in [0, FAR_OFFSET): offset - low, which wraps below, is
// less than the interval's length. Cut to where offsets are, bounds do not overflow.
static Val in_interval(Cg *cg, const Range *r) {
    enum { FAR_OFFSET = 1 << 20 };
    assert(r->offset >= 0 && r->offset < FAR_OFFSET);
    Val low = between(cg, r->low, 0, FAR_OFFSET), high = between(cg, r->high, -1, FAR_OFFSET);
    Val v[] = {cg_plus(cg, cg_sub(cg, high, low), 1), cg_i32(cg, 0)};
    Val in = cg_sub(cg, cg_i32(cg, r->offset), low);
    return cg_icmp(cg, LLVMIntULT, in, intrinsic_of(cg, "llvm.smax", v, 2));
}

static Val built_range(Cg *cg, CgElem *at, const Ex *e) {
    Range r;
    if (!at || !at->place || e->type != EX_BOOL || !range_of(cg, at, e, &r, 4)) return NULL;
    Val in = at->between ? at->between(cg, at, e, r.offset, r.low, r.high, r.when) : NULL;
    if (in) return in;
    Val offset = cg_i32(cg, r.offset);
    if (r.low && r.high)
        in = in_interval(cg, &r);
    else
        in = r.low ? cg_icmp(cg, LLVMIntSLE, r.low, offset)
                   : cg_icmp(cg, LLVMIntSLE, offset, r.high);
    return r.when ? cg_and(cg, r.when, in) : in;
}

// `u * (x + f32(first + offset))` as `u * (x + f32(first)) + u * offset`, whose first part is
// computed once for many elements, and whose second is an addition's other half.
static Val built_slope(Cg *cg, CgElem *at, const Ex *e) {
    if (!at || !at->place || e->op != EX_MUL || e->type != EX_F32 || is_exact(cg, e)) return NULL;
    for (int side = 0; side < 2; side++) {
        const Ex *u = e->args[side], *sum = e->args[1 - side];
        if (u->nargs || (sum->op != EX_ADD && sum->op != EX_SUB)) continue;
        const Ex *conv = sum->args[1], *pos = conv->nargs ? conv->args[0] : NULL;
        if (conv->op != EX_CONV || pos->op != EX_SYM || pos->sym != SYM_POS) continue;
        Val first;
        int offset;
        if (ex_uses(sum->args[0], SYM_POS, pos->index)) continue;
        if (!at->place(cg, at, pos->index, &first, &offset)) continue;
        bool add = sum->op == EX_ADD;
        Val v[] = {built(at, sum->args[0]), LLVMBuildSIToFP(cg->b, first, cg->f32, "")};
        Val here = build_float(cg, sum->op, v, 2), slope = built(at, u);
        Val base[] = {here, slope}, fma[] = {slope, cg_f32(cg, add ? offset : -offset), NULL};
        fma[2] = build_float(cg, EX_MUL, base, 2);
        return cg_math(cg, EX_FMA, fma, 3);
    }
    return NULL;
}

static Val build(Cg *cg, CgElem *at, const Ex *e) {
    Val v[3], bound;
    ExTyping typing = ex_ops[e->op].typing;
    if (typing == T_LEAF) return leaf(cg, at, e);
    if (typing == T_LOAD) return load(cg, at, e);
    if ((bound = built_range(cg, at, e)) || (bound = built_slope(cg, at, e))) return bound;
    for (int i = 0; i < e->nargs; i++) v[i] = built(at, e->args[i]);
    ExType of = e->args[0]->type;
    if (typing == T_SEL && at && at->holds && at->holds(at, e->args[0])) return v[1];
    if (typing == T_SEL) return select_of(cg, v);
    cg_widen_all(cg, v, e->nargs);
    switch (typing) {
    case T_CONV: return convert(cg, e->type, of, v[0]);
    case T_CMP: return compare(cg, e->op, of, v[0], v[1]);
    case T_BOOL:
        if (e->op == EX_NOT) return cg_not(cg, v[0]);
        return e->op == EX_AND ? cg_and(cg, v[0], v[1]) : cg_or(cg, v[0], v[1]);
    case T_NUM:
    case T_F32:
    case T_I32:
    case T_BITS:
        if (e->type == EX_I32 && e->op == EX_ABS) return whole_abs(cg, e, v);
        if (e->type == EX_I32 && (bound = over_size(cg, e, v))) return bound;
        if (e->type != EX_F32) return build_int(cg, e->op, v);
        cg->decides = is_exact(cg, e);
        bound = cg->decides ? build_exact(cg, e->op, v) : NULL;
        if (!bound) bound = build_float(cg, e->op, v, e->nargs);
        cg->decides = false;
        return bound;
    case T_SEL:
    case T_LEAF:
    case T_LOAD:
    case T_RED: break;
    }
    assert(!"an operation of a tile program");
    return NULL;
}

void cg_elem_begin(Cg *cg, CgElem *at) {
    (void)cg;
    at->memo = (ExMemo){0};
}

static Val no_param(Cg *cg, CgElem *at, int k) {
    (void)cg, (void)at, (void)k;
    assert(!"a uniform expression has no element");
    return NULL;
}

Val cg_uniform(Cg *cg, const Ex *e) {
    CgElem none = {.lanes = 1, .param = no_param, .pos = no_param, .lane_axis = -1};
    return cg_expr(cg, e, &none);
}

Val cg_expr(Cg *cg, const Ex *e, CgElem *at) {
    if (!at) return cg_uniform(cg, e);
    Val v = ex_memo_get(&at->memo, e);
    if (v) return v;
    const Ex **order;
    v = cg_outlined(cg, e, at, cg_expr);
    if (!v) {
        int n = ex_order_beyond(cg->arena, &at->memo, e, &order);
        if (cg_is_long(cg, order, n, at)) {
            v = cg_outline(cg, e, at, cg_expr, order, n);
        } else {
            for (int i = 0; i < n; i++)
                ex_memo_put(cg->arena, &at->memo, order[i], build(cg, at, order[i]));
            return built(at, e);
        }
    }
    ex_memo_put(cg->arena, &at->memo, e, v);
    return v;
}
