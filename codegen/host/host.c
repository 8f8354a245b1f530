// host.c: the host target: the function's frame, the grid, where values lie, and what loops carry
// in memory.
//
// In: a kernel scheduled for the host (host.h tells the layout). Out: a function that runs the
// grid's tiles [first, last); one 8-byte slot for each argument:
//
//     void kernel(const uint64_t *args, int64_t first, int64_t last)
#include "codegen/host/host.h"
#include "codegen/lanes.h"

#include <assert.h>
#include <string.h>

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

static bool feature(const char *features, const char *name) { // the last word on it counts
    size_t n = strlen(name);
    bool has = false;
    for (const char *s = strstr(features, name); s; s = strstr(s + 1, name))
        if (s > features && (s[n] == ',' || !s[n]) && (s[-1] == '+' || s[-1] == '-'))
            has = s[-1] == '+';
    return has;
}

// ---- values in memory

static bool is_one(Val v) { return LLVMIsAConstantInt(v) && LLVMConstIntGetSExtValue(v) == 1; }

int host_stride1(Cg *cg, const TileValue *v) {
    int lane = host_axis_at(v, host_of(cg)->lane_axis);
    if (lane >= 0) return v->axis[lane];
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
    int lane = host_of(cg)->lane_axis;
    int64_t stride = tile_has_axis(v, lane) ? host_extent(cg, lane) : 1;
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
        Val x = LLVMBuildMul(cg->b, index[v->axis[i]], p->stride[i], "");
        at = at ? LLVMBuildAdd(cg->b, at, x, "") : x;
    }
    return at ? LLVMBuildInBoundsGEP2(cg->b, cg->f32, p->mem, &at, 1, "") : p->mem;
}

// A vector where v is contiguous along the axis, gathered where it is not.
Val host_load(Cg *cg, const TileValue *v, Val *index, int lanes, int along) {
    Ty t = element_type(cg, v);
    int at = lanes > 1 ? host_axis_at(v, along) : -1;
    Val p = host_element(cg, v, index), x;
    if (at < 0) {
        x = LLVMBuildLoad2(cg->b, t, p, "");
    } else if (host_stride1(cg, v) == along) {
        x = LLVMBuildLoad2(cg->b, cg_vector(t, lanes), p, "");
        LLVMSetAlignment(x, 4);
    } else {
        Val step[64];
        for (int i = 0; i < lanes; i++) step[i] = cg_i64(cg, i);
        Val offset = LLVMBuildMul(cg->b, LLVMConstVector(step, (unsigned)lanes),
                                  cg_splat(cg, host_place(cg, v)->stride[at], lanes), "");
        Val ptrs = LLVMBuildGEP2(cg->b, t, p, &offset, 1, "");
        Ty types[] = {cg_vector(t, lanes), LLVMTypeOf(ptrs)};
        Val args[] = {ptrs, cg_i32(cg, 4), LLVMConstAllOnes(cg_vector(cg->i1, lanes)),
                      LLVMGetPoison(types[0])};
        x = cg_intrinsic(cg, "llvm.masked.gather", types, 2, args, 4);
    }
    if (dtype_reads(v->dtype) != EX_BOOL) return x;
    return LLVMBuildICmp(cg->b, LLVMIntNE, x, LLVMConstNull(LLVMTypeOf(x)), "");
}

void host_store(Cg *cg, const TileValue *v, Val *index, Val x) {
    ExType t = dtype_reads(v->dtype);
    if (t == EX_F32) x = cg_round(cg, x, v->dtype);
    if (t == EX_BOOL) x = LLVMBuildZExt(cg->b, x, cg_vector(cg->i32, cg_lanes(x)), "");
    LLVMSetAlignment(LLVMBuildStore(cg->b, x, host_element(cg, v, index)), 4);
}

// ---- counted loops

HostLoop host_loop(Cg *cg, int64_t count, int64_t step) {
    assert(count > 0);
    HostLoop l = {.pre = LLVMGetInsertBlock(cg->b),
                  .body = cg_block(cg, "each"),
                  .count = count,
                  .step = step};
    LLVMBuildBr(cg->b, l.body);
    LLVMPositionBuilderAtEnd(cg->b, l.body);
    Val zero = cg_i64(cg, 0);
    l.i = LLVMBuildPhi(cg->b, cg->i64, "i");
    LLVMAddIncoming(l.i, &zero, &l.pre, 1);
    return l;
}

Val host_loop_phi(Cg *cg, const HostLoop *l, Val init) {
    Val phi = LLVMBuildPhi(cg->b, LLVMTypeOf(init), "");
    Blk pre = l->pre;
    LLVMAddIncoming(phi, &init, &pre, 1);
    return phi;
}

void host_loop_next(Cg *cg, const HostLoop *l, Val phi, Val next) {
    (void)l;
    Blk here = LLVMGetInsertBlock(cg->b);
    LLVMAddIncoming(phi, &next, &here, 1);
}

void host_loop_end(Cg *cg, const HostLoop *l) {
    Val next = LLVMBuildNUWAdd(cg->b, l->i, cg_i64(cg, l->step), "");
    host_loop_next(cg, l, l->i, next);
    Val more = LLVMBuildICmp(cg->b, LLVMIntULT, next, cg_i64(cg, l->count), "");
    Blk after = cg_block(cg, "after");
    LLVMBuildCondBr(cg->b, more, l->body, after);
    LLVMPositionBuilderAtEnd(cg->b, after);
}

// ---- the frame

// The machine's features, less those for vectors wider than the target's (an object for other
// machines, a test).
static const char *features_of(Cg *cg) {
    char *all = LLVMGetHostCPUFeatures();
    const char *less = "";
    if (feature(all, "sse2") && cg->target->lanes < 16) less = ",-avx512f";
    if (feature(all, "sse2") && cg->target->lanes < 8) less = ",-avx512f,-avx2,-avx,-fma";
    const char *features = arena_printf(cg->arena, "%s%s", all, less);
    LLVMDisposeMessage(all);
    return features;
}

static LLVMTargetMachineRef machine(Cg *cg) {
    char *error = NULL, *triple = LLVMGetDefaultTargetTriple(), *cpu = LLVMGetHostCPUName();
    LLVMTargetRef t;
    LLVMTargetMachineRef tm = NULL;
    LLVMInitializeNativeTarget();
    LLVMInitializeNativeAsmPrinter();
    if (!LLVMGetTargetFromTriple(triple, &t, &error))
        tm = LLVMCreateTargetMachine(t, triple, cpu, features_of(cg), LLVMCodeGenLevelDefault,
                                     LLVMRelocPIC, LLVMCodeModelDefault);
    else
        diag_error(cg->diags, (Span){0}, "this LLVM has no code for the host: %s", error);
    LLVMDisposeMessage(error);
    LLVMDisposeMessage(triple);
    LLVMDisposeMessage(cpu);
    return tm;
}

// The code is built as it should be run: what is left is to share address arithmetic and to move
// what is invariant out of loops. The combiner and the -O3 pipeline take longer and change no inner
// loop.
static const char *passes(const Cg *cg) {
    return cg->opt->opt == 0 ? "function(early-cse)"
                             : "function(early-cse,loop-mssa(licm),early-cse,simplifycfg)";
}

static void function_attributes(Cg *cg, Val fn) {
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
    function_attributes(cg, f->fn);
    cg_attribute(cg, f->fn, "noinline", NULL);
    for (int i = 0; i < n; i++) {
        if (params[i] != cg->ptr) continue;
        cg_param_attribute(cg, f->fn, i, "noalias", 0);
        cg_param_attribute(cg, f->fn, i, "nocapture", 0);
    }
    f->outer = cg->fn;
    f->outer_entry = cg->entry;
    f->outer_block = LLVMGetInsertBlock(cg->b);
    cg->fn = f->fn;
    cg->entry = cg_block(cg, "entry");
    LLVMPositionBuilderAtEnd(cg->b, cg->entry);
    return true;
}

void host_function_end(Cg *cg, HostFunction *f) {
    LLVMBuildRetVoid(cg->b);
    cg->fn = f->outer;
    cg->entry = f->outer_entry;
    LLVMPositionBuilderAtEnd(cg->b, f->outer_block);
}

void host_call(Cg *cg, const HostFunction *f, Val *args, int n) {
    LLVMBuildCall2(cg->b, f->type, f->fn, args, (unsigned)n, "");
}

// Operands and results below the normal range count as 0 while a kernel runs, as they do on GPUs; to
// make one costs a hundred cycles on many processors. The caller's mode is put back.
static void flush_to_zero(Cg *cg) {
    Host *h = host_of(cg);
    if (!h->sse) return;
    h->mode = LLVMBuildAlloca(cg->b, cg->i32, "mode");
    Val flush = LLVMBuildAlloca(cg->b, cg->i32, "flush");
    cg_intrinsic(cg, "llvm.x86.sse.stmxcsr", NULL, 0, &h->mode, 1);
    Val now = LLVMBuildLoad2(cg->b, cg->i32, h->mode, "");
    LLVMBuildStore(cg->b, LLVMBuildOr(cg->b, now, cg_i32(cg, 0x8040), ""), flush);
    cg_intrinsic(cg, "llvm.x86.sse.ldmxcsr", NULL, 0, &flush, 1);
}

void host_features(Cg *cg, Host *h) {
    char *features = LLVMGetTargetMachineFeatureString(cg->tm);
    h->avx512 = cg->target->lanes == 16 && feature(features, "avx512dq");
    h->fma = feature(features, "fma") || feature(features, "neon");
    h->sse = feature(features, "sse");
    h->narrow_masks = cg->target->lanes == 16 && feature(features, "avx512bw");
    LLVMDisposeMessage(features);
}

static void begin_kernel(Cg *cg) {
    Host *h = ARENA_NEW(cg->arena, Host);
    cg->state = h;
    h->lane_axis = cg->k->schedule.lane_axis;
    host_features(cg, h);
    h->registers = cg->target->registers;
    if (!tile_has_lanes(cg->k)) host_plan(cg, h);
    int64_t bytes = 0;
    for (int i = 0; i < h->nslots; i++) bytes += h->slots[i].bytes;
    if (bytes > HOST_MAX_SCRATCH) {
        const char *knobs = cg->k->schedule.knobs; // NULL: of a tile program's text
        diag_error(cg->diags, (Span){0},
                   "kernel '%s' needs %lld bytes of scratch memory for a tile%s%s; the host has "
                   "%d: its tiles or the head dimensions are too large",
                   cg->symbol, (long long)bytes, knobs ? " of the schedule " : "",
                   knobs ? knobs : "", HOST_MAX_SCRATCH);
        return;
    }
    Ty params[] = {cg->ptr, cg->i64, cg->i64};
    cg->fn = LLVMAddFunction(cg->m, cg->symbol, LLVMFunctionType(cg->void_, params, 3, false));
    function_attributes(cg, cg->fn);
    cg->entry = cg_block(cg, "entry");
    Blk start = cg_block(cg, "start");
    LLVMPositionBuilderAtEnd(cg->b, cg->entry);
    for (int i = 0; i < h->nslots; i++) {
        Ty t = LLVMArrayType2(cg->i8, (uint64_t)h->slots[i].bytes);
        h->slots[i].mem = LLVMBuildAlloca(cg->b, t, "slot");
        LLVMSetAlignment(h->slots[i].mem, 64);
    }
    flush_to_zero(cg);
    LLVMBuildBr(cg->b, start);
    LLVMPositionBuilderAtEnd(cg->b, start);
}

static void end_kernel(Cg *cg) {
    Host *h = host_of(cg);
    if (h->sse) cg_intrinsic(cg, "llvm.x86.sse.ldmxcsr", NULL, 0, &h->mode, 1);
    LLVMBuildRetVoid(cg->b);
}

static Val argument(Cg *cg, int slot, Ty type) {
    Val at = cg_i64(cg, slot);
    Val p = LLVMBuildInBoundsGEP2(cg->b, cg->i64, LLVMGetParam(cg->fn, 0), &at, 1, "");
    return LLVMBuildLoad2(cg->b, type, p,
                          ""); // little-endian: a 4-byte value stands at the slot's beginning
}

static void grid(Cg *cg, void (*body)(Cg *cg, Val index)) {
    Blk head = cg_block(cg, "grid"), work = cg_block(cg, "tile"), end = cg_block(cg, "end"),
        pre = LLVMGetInsertBlock(cg->b);
    LLVMBuildBr(cg->b, head);
    LLVMPositionBuilderAtEnd(cg->b, head);
    Val index = LLVMBuildPhi(cg->b, cg->i64, "tile"), first = LLVMGetParam(cg->fn, 1);
    LLVMAddIncoming(index, &first, &pre, 1);
    Val more = LLVMBuildICmp(cg->b, LLVMIntSLT, index, LLVMGetParam(cg->fn, 2), "");
    LLVMBuildCondBr(cg->b, more, work, end);
    LLVMPositionBuilderAtEnd(cg->b, work);
    body(cg, index);
    Val next = LLVMBuildAdd(cg->b, index, cg_i64(cg, 1), "");
    Blk last = LLVMGetInsertBlock(cg->b);
    LLVMAddIncoming(index, &next, &last, 1);
    LLVMBuildBr(cg->b, head);
    LLVMMoveBasicBlockAfter(end, last);
    LLVMPositionBuilderAtEnd(cg->b, end);
}

// ---- what loops carry

static void copy_slot(Cg *cg, Val to, Val from, int64_t bytes) {
    LLVMBuildMemCpy(cg->b, to, 64, from, 64, cg_i64(cg, bytes));
}

static void loop_begin(Cg *cg, CgLoop *l) {
    if (tile_has_lanes(cg->k)) return;
    for (int i = 0; i < l->op->carried.n; i++) {
        const TileValue *c = l->op->carried.data[i], *init = l->op->args.data[i];
        host_bind(cg, c);
        if (host_place(cg, c)->slot == host_place(cg, init)->slot) continue;
        copy_slot(cg, host_place(cg, c)->mem, host_place(cg, init)->mem, host_bytes(cg, c));
    }
}

// All at once: a value that lies where another one goes is put aside first.
static void loop_yield(Cg *cg, CgLoop *l, const TileOp *yield) {
    if (tile_has_lanes(cg->k)) return;
    int n = l->op->carried.n;
    Val *from = ARENA_ARRAY(cg->arena, Val, n + 1);
    for (int i = 0; i < n; i++) {
        const TileValue *y = yield->args.data[i], *c = l->op->carried.data[i];
        int slot = host_place(cg, y)->slot;
        if (slot == host_place(cg, c)->slot) continue;
        from[i] = host_place(cg, y)->mem;
        for (int j = 0; j < n; j++) {
            if (j == i || host_place(cg, l->op->carried.data[j])->slot != slot) continue;
            Val aside = cg_alloca(cg, LLVMArrayType2(cg->i8, (uint64_t)host_bytes(cg, c)), "aside");
            LLVMSetAlignment(aside, 64);
            copy_slot(cg, aside, from[i], host_bytes(cg, c));
            from[i] = aside;
            break;
        }
    }
    for (int i = 0; i < n; i++) {
        const TileValue *c = l->op->carried.data[i];
        if (from[i]) copy_slot(cg, host_place(cg, c)->mem, from[i], host_bytes(cg, c));
    }
}

static void loop_end(Cg *cg, CgLoop *l) {
    if (tile_has_lanes(cg->k)) return;
    for (int i = 0; i < l->op->results.n; i++) host_bind(cg, l->op->results.data[i]);
}

static void host_op(Cg *cg, const TileOp *op) {
    CgLanes one = {1, cg_i32(cg, 0), NULL, NULL};
    if (tile_has_lanes(cg->k)) {
        cg_lanes_op(cg, &one, op);
        return;
    }
    switch (op->kind) {
    case TILE_LOAD: host_tensor_load(cg, op); return;
    case TILE_STORE: host_tensor_store(cg, op); return;
    case TILE_MAP: host_map(cg, op); return;
    case TILE_MMA: host_mma(cg, op); return;
    case TILE_LOOP: // lower.c's
    case TILE_YIELD:
    case TILE_ALLOC: // asynchronous copies are for targets that have them; the host's schedule
                     // makes none
    case TILE_COPY:
    case TILE_COMMIT:
    case TILE_WAIT:
    case TILE_VIEW:
    case TILE_BARRIER:
    case TILE_PIPE: // roles: sm_90a's
    case TILE_ROLE:
    case TILE_FILL:
    case TILE_TAKE:
    case TILE_DROP:
    case TILE_NEXT:
    case TILE_TILES:
    case TILE_AT:
    case TILE_MMA_WAIT:
    case TILE_APPEND:
    case TILE_TURN:
    case TILE_REDO:
    case TILE_BOUND:
    case TILE_KIND_COUNT: break;
    }
    diag_error(cg->diags, op->span, "the host has no '%s'", tile_kind_name(op->kind));
}

const CgHooks cg_host_hooks = {
    .machine = machine,
    .passes = passes,
    .begin_kernel = begin_kernel,
    .end_kernel = end_kernel,
    .argument = argument,
    .grid = grid,
    .op = host_op,
    .loop_begin = loop_begin,
    .loop_yield = loop_yield,
    .loop_end = loop_end,
    .math = host_math,
};
