// value.c: where values lie in memory, counted loops, and functions that kernels share.
//
// In: a value whose slot memory.c has chosen. Out: its elements, read and written as scalars or
// vectors.
#include "codegen/host/host.h"

#include <assert.h>

Host *host_of(Cg *cg) { return cg->state; }
HostPlace *host_place(Cg *cg, const TileValue *v) { return &host_of(cg)->place[v->id]; }
int host_extent(Cg *cg, int axis) { return tile_extent(&cg->k->axes[axis]); }

int host_axis_at(const TileValue *v, int axis) {
    for (int i = 0; i < v->rank; i++)
        if (v->axis[i] == axis) return i;
    return -1;
}

int64_t host_bytes(Cg *cg, const TileValue *v) {
    int64_t n = 4;
    for (int i = 0; i < v->rank; i++) n *= host_extent(cg, v->axis[i]);
    return n;
}

// ---- values in memory

static bool is_one(Val v) { return LLVMIsAConstantInt(v) && LLVMConstIntGetSExtValue(v) == 1; }

int host_lane(Cg *cg, const TileValue *v) {
    int lane = host_of(cg)->lane_axis;
    return tile_has_axis(v, lane) && !host_place(cg, v)->rows ? lane : -1;
}

int host_stride1(Cg *cg, const TileValue *v) {
    int lane = host_lane(cg, v);
    if (lane >= 0) return lane;
    return v->rank && is_one(host_place(cg, v)->stride[v->rank - 1]) ? v->axis[v->rank - 1] : -1;
}

int host_width(Cg *cg, int axis) {
    int n = cg->target->lanes;
    while (axis >= 0 && n > 1 && host_extent(cg, axis) % n) n /= 2;
    return axis < 0 ? 1 : n;
}

Val host_fma(Cg *cg, Val a, Val b, Val c) {
    Ty t = LLVMTypeOf(a);
    Val v[] = {a, b, c};
    return cg_intrinsic(cg, host_of(cg)->fma ? "llvm.fma" : "llvm.fmuladd", &t, 1, v, 3);
}

Val host_sum(Cg *cg, Val v) {
    Ty t = LLVMTypeOf(v);
    if (cg_lanes(v) == 1) return v;
    Val args[] = {cg_f32(cg, -0.0), v};
    Val r = cg_intrinsic(cg, "llvm.vector.reduce.fadd", &t, 1, args, 2);
    LLVMSetFastMathFlags(r, LLVMFastMathAllowReassoc); // a tree instead of one lane after the other
    return r;
}

void host_bind(Cg *cg, const TileValue *v) {
    HostPlace *p = host_place(cg, v);
    int lane = host_lane(cg, v);
    int64_t stride = lane >= 0 ? host_extent(cg, lane) : 1;
    for (int i = v->rank - 1; i >= 0; i--) {
        if (v->axis[i] == lane) {
            p->stride[i] = cg_i64(cg, 1);
            continue;
        }
        p->stride[i] = cg_i64(cg, stride);
        stride *= host_extent(cg, v->axis[i]);
    }
    p->mem = host_of(cg)->slots[p->slot].mem;
    cg->value[v->id].mem = p->mem;
}

static Ty element_type(Cg *cg, const TileValue *v) {
    return dtype_reads(v->dtype) == EX_F32 ? cg->f32 : cg->i32;
}

Val host_element(Cg *cg, const TileValue *v, Val *index) {
    const HostPlace *p = host_place(cg, v);
    Val at = NULL;
    for (int i = 0; i < v->rank; i++) {
        Val x = cg_mul(cg, index[v->axis[i]], p->stride[i]);
        at = at ? cg_add(cg, at, x) : x;
    }
    return at ? LLVMBuildInBoundsGEP2(cg->b, cg->f32, p->mem, &at, 1, "") : p->mem;
}

// A vector where v is contiguous along the axis, gathered where it is not.
Val host_load(Cg *cg, const TileValue *v, Val *index, int lanes, int along) {
    Ty t = element_type(cg, v);
    int at = lanes > 1 ? host_axis_at(v, along) : -1;
    Val p = host_element(cg, v, index), x;
    if (at < 0) {
        x = cg_load(cg, t, p);
    } else if (host_stride1(cg, v) == along) {
        x = cg_load(cg, cg_vector(t, lanes), p);
        LLVMSetAlignment(x, 4);
    } else {
        Val step[64];
        for (int i = 0; i < lanes; i++) step[i] = cg_i64(cg, i);
        Val offset = cg_mul(cg, LLVMConstVector(step, (unsigned)lanes),
                            cg_splat(cg, host_place(cg, v)->stride[at], lanes));
        Val ptrs = cg_element(cg, t, p, offset);
        Ty types[] = {cg_vector(t, lanes), LLVMTypeOf(ptrs)};
        Val args[] = {ptrs, cg_i32(cg, 4), LLVMConstAllOnes(cg_vector(cg->i1, lanes)),
                      LLVMGetPoison(types[0])};
        x = cg_intrinsic(cg, "llvm.masked.gather", types, 2, args, 4);
    }
    if (dtype_reads(v->dtype) != EX_BOOL) return x;
    return cg_icmp(cg, LLVMIntNE, x, LLVMConstNull(LLVMTypeOf(x)));
}

void host_store(Cg *cg, const TileValue *v, Val *index, Val x) {
    ExType t = dtype_reads(v->dtype);
    if (t == EX_F32) x = cg_round(cg, x, v->dtype);
    if (t == EX_BOOL) x = cg_zext(cg, x, cg_vector(cg->i32, cg_lanes(x)));
    LLVMSetAlignment(cg_store(cg, x, host_element(cg, v, index)), 4);
}

// ---- counted loops

HostLoop host_loop(Cg *cg, int64_t count, int64_t step) {
    assert(count > 0);
    HostLoop l = {.pre = cg_here(cg), .body = cg_block(cg, "each"), .count = count, .step = step};
    cg_enter(cg, l.body);
    Val zero = cg_i64(cg, 0);
    l.i = LLVMBuildPhi(cg->b, cg->i64, "i");
    LLVMAddIncoming(l.i, &zero, &l.pre, 1);
    return l;
}

Val host_loop_phi(Cg *cg, const HostLoop *l, Val init) {
    Val phi = cg_phi(cg, LLVMTypeOf(init));
    Blk pre = l->pre;
    LLVMAddIncoming(phi, &init, &pre, 1);
    return phi;
}

void host_loop_next(Cg *cg, const HostLoop *l, Val phi, Val next) {
    (void)l;
    Blk here = cg_here(cg);
    LLVMAddIncoming(phi, &next, &here, 1);
}

void host_loop_end(Cg *cg, const HostLoop *l) {
    Val next = LLVMBuildNUWAdd(cg->b, l->i, cg_i64(cg, l->step), "");
    host_loop_next(cg, l, l->i, next);
    Val more = cg_icmp(cg, LLVMIntULT, next, cg_i64(cg, l->count));
    Blk after = cg_block(cg, "after");
    cg_fork(cg, more, l->body, after);
    cg_at(cg, after);
}

// ---- functions

void host_attributes(Cg *cg, Val fn) {
    char *cpu = LLVMGetTargetMachineCPU(cg->tm),
         *features = LLVMGetTargetMachineFeatureString(cg->tm);
    const char *width = arena_printf(cg->arena, "%d", cg->target->lanes * 32);
    cg_attribute(cg, fn, "target-cpu", cpu);
    cg_attribute(cg, fn, "target-features", features);
    cg_attribute(cg, fn, "prefer-vector-width", width);
    cg_attribute(cg, fn, "min-legal-vector-width", width);
    cg_attribute(cg, fn, "nounwind", NULL);
    LLVMDisposeMessage(cpu);
    LLVMDisposeMessage(features);
}

bool host_function(Cg *cg, HostFunction *f, const char *name, Ty *params, int n) {
    f->type = LLVMFunctionType(cg->void_, params, (unsigned)n, false);
    f->fn = LLVMGetNamedFunction(cg->m, name);
    if (f->fn) return false;
    f->fn = LLVMAddFunction(cg->m, name, f->type);
    LLVMSetLinkage(f->fn, LLVMInternalLinkage);
    host_attributes(cg, f->fn);
    cg_attribute(cg, f->fn, "noinline", NULL);
    for (int i = 0; i < n; i++) {
        if (params[i] != cg->ptr) continue;
        cg_param_attribute(cg, f->fn, i, "noalias", 0);
        cg_param_attribute(cg, f->fn, i, "nocapture", 0);
    }
    f->outer = cg->fn;
    f->outer_entry = cg->entry;
    f->outer_block = cg_here(cg);
    cg->fn = f->fn;
    cg->entry = cg_block(cg, "entry");
    cg_at(cg, cg->entry);
    return true;
}

void host_function_end(Cg *cg, HostFunction *f) {
    LLVMBuildRetVoid(cg->b);
    cg->fn = f->outer;
    cg->entry = f->outer_entry;
    cg_at(cg, f->outer_block);
}

void host_call(Cg *cg, const HostFunction *f, Val *args, int n) {
    LLVMBuildCall2(cg->b, f->type, f->fn, args, (unsigned)n, "");
}
