// amdgpu.c: the AMD targets' hooks: the kernel's frame, and each tile operation to what builds it.
//
// In: a scheduled kernel, one block of `warps` waves for each point of its grid. Out: an AMDGPU
// kernel of code object version 5.
//
// What a launch does: `threads` work-items a group in one dimension, the linear grid index along x;
// no dynamic LDS (a kernel's LDS is in its descriptor); kernel arguments are the artifact's list
// (runtime/abi.h), 8 bytes a slot in its order: an address, an i64 stride, or, in the low half, an
// i32 or f32. Nothing else is asked of the driver: of the descriptor's user registers only the
// kernel arguments' address is used, there are no hidden arguments and there is no scratch memory
// (but where a long expression became a function).
#include "codegen/amdgpu/amdgpu.h"
#include "codegen/lanes.h"

#include <assert.h>
#include <string.h>

// ---- the machine

// LLVM would print what it remarks on (such as how many waves fit), and end the program for errors.
static void take_diagnostic(LLVMDiagnosticInfoRef info, void *context) {
    Cg *cg = context;
    if (LLVMGetDiagInfoSeverity(info) != LLVMDSError) return;
    char *text = LLVMGetDiagInfoDescription(info);
    diag_error(cg->diags, (Span){0}, "LLVM: %s", text);
    LLVMDisposeMessage(text);
}

static LLVMTargetMachineRef am_machine(Cg *cg) {
    static const char triple[] = "amdgcn-amd-amdhsa";
    LLVMInitializeAMDGPUTargetInfo();
    LLVMInitializeAMDGPUTarget();
    LLVMInitializeAMDGPUTargetMC();
    LLVMInitializeAMDGPUAsmPrinter();
    LLVMTargetRef t;
    char *error = NULL;
    if (LLVMGetTargetFromTriple(triple, &t, &error)) {
        diag_error(cg->diags, (Span){0}, "this LLVM cannot make code for AMD devices: %s", error);
        LLVMDisposeMessage(error);
        return NULL;
    }
    LLVMContextSetDiagnosticHandler(cg->c, take_diagnostic, cg);
    // cumode: a block's LDS is that of its compute unit, not of a pair of them.
    const char *features = cg->target->lanes == 32 ? "+cumode" : "";
    return LLVMCreateTargetMachine(t, triple, cg->target->name, features, LLVMCodeGenLevelDefault,
                                   LLVMRelocPIC, LLVMCodeModelDefault);
}

// mem2reg: what is on its way (copy.c). Addresses are generic in the shared lowering. The
// vectorizer finds pairs of f32 for CDNA's packed instructions; RDNA has none.
// What instcombine leaves twice LLVM's own part finds, but not before pairs are sought. LLVM's count of
// registers crashes on a function that nothing calls any more (outline.c makes some): globaldce deletes it.
#define AM_PASSES                                                                                  \
    "mem2reg,infer-address-spaces,early-cse,instcombine<no-verify-fixpoint>,simplifycfg"

static const char *am_passes(const Cg *cg) {
    if (cg->target->lanes == 32) return "function(" AM_PASSES "),globaldce";
    return "function(" AM_PASSES
           ",early-cse,slp-vectorizer,instcombine<no-verify-fixpoint>),globaldce";
}

// ---- the frame

static void attributes(Cg *cg) {
    static const char *const unused[] = {
        "amdgpu-no-completion-action", "amdgpu-no-default-queue",  "amdgpu-no-dispatch-id",
        "amdgpu-no-dispatch-ptr",      "amdgpu-no-heap-ptr",       "amdgpu-no-hostcall-ptr",
        "amdgpu-no-implicitarg-ptr",   "amdgpu-no-lds-kernel-id",  "amdgpu-no-multigrid-sync-arg",
        "amdgpu-no-queue-ptr",         "amdgpu-no-workgroup-id-y", "amdgpu-no-workgroup-id-z",
        "amdgpu-no-workitem-id-y",     "amdgpu-no-workitem-id-z"};
    Val fn = cg->fn;
    int threads = cg->launch.threads;
    cg_attribute(cg, fn, "nounwind", NULL);
    cg_attribute(cg, fn, "convergent", NULL);
    cg_attribute(cg, fn, "denormal-fp-math-f32", "preserve-sign,preserve-sign");
    cg_attribute(cg, fn, "amdgpu-ieee", "false");
    cg_attribute(cg, fn, "uniform-work-group-size", "true");
    for (size_t i = 0; i < sizeof unused / sizeof *unused; i++) cg_attribute(cg, fn, unused[i], "");
    cg_attribute(cg, fn, "amdgpu-flat-work-group-size",
                 arena_printf(cg->arena, "%d,%d", threads, threads));
    int waves = threads / am_state(cg)->wave, blocks = cg->k->schedule.min_blocks;
    int simds = am_state(cg)->wmma ? 2 : 4; // of a compute unit
    int each = (waves * (blocks > 0 ? blocks : 1) + simds - 1) / simds;
    cg_attribute(cg, fn, "amdgpu-waves-per-eu", arena_printf(cg->arena, "%d", each));
    // With 256 registers a lane MFMA reads and leaves what other instructions use; beyond, products
    // have registers of their own.
    if (each > 1) cg_attribute(cg, fn, "amdgpu-no-agpr", "");
}

static void make_function(Cg *cg) {
    Ty *types = ARENA_ARRAY(cg->arena, Ty, cg->args.n + 1);
    Ty pointer = LLVMPointerTypeInContext(cg->c, AM_GLOBAL);
    for (int i = 0; i < cg->args.n; i++)
        types[i] = cg->args.data[i].kind == CG_ARG_POINTER ? pointer : cg->i64;
    cg->fn = LLVMAddFunction(cg->m, cg->symbol,
                             LLVMFunctionType(cg->void_, types, (unsigned)cg->args.n, false));
    LLVMSetFunctionCallConv(cg->fn, AM_KERNEL);
    attributes(cg);
    for (int i = 0; i < cg->args.n; i++) {
        if (cg->args.data[i].kind != CG_ARG_POINTER) continue;
        const TileTensor *t = &cg->p->tensors.data[cg->args.data[i].index];
        cg_param_attribute(cg, cg->fn, i, "noalias", 0);
        if (!tile_is_written(cg->p, t)) cg_param_attribute(cg, cg->fn, i, "readonly", 0);
    }
}

static void make_lds(Cg *cg, int bytes) {
    if (!bytes) return;
    Ty t = LLVMArrayType2(cg->i8, (uint64_t)bytes);
    const char *name = arena_printf(cg->arena, "%s_lds", cg->symbol);
    Val g = am_state(cg)->lds = LLVMAddGlobalInAddressSpace(cg->m, t, name, AM_LOCAL);
    LLVMSetInitializer(g, LLVMGetPoison(t));
    LLVMSetLinkage(g, LLVMInternalLinkage);
    LLVMSetAlignment(g, 128);
}

static void code_object_version(Cg *cg) {
    static const char key[] = "amdhsa_code_object_version";
    if (!LLVMGetModuleFlag(cg->m, key, strlen(key)))
        LLVMAddModuleFlag(cg->m, LLVMModuleFlagBehaviorError, key, strlen(key),
                          LLVMValueAsMetadata(cg_i32(cg, 500)));
}

// Which bits it may have tells LLVM which parts of an address are the same for all of a thread's.
static Val thread_number(Cg *cg) {
    int bits = 1;
    while (bits < cg->launch.threads) bits *= 2;
    Val v = cg_intrinsic(cg, "llvm.amdgcn.workitem.id.x", NULL, 0, NULL, 0);
    return cg_and(cg, v, cg_i32(cg, bits - 1));
}

// The wave's number is the same in all its lanes, which LLVM does not know by itself.
static Val wave_number(Cg *cg) {
    AmState *s = am_state(cg);
    Val w = cg_udiv(cg, s->gpu.tid, cg_i32(cg, s->wave));
    return cg_intrinsic(cg, "llvm.amdgcn.readfirstlane", &cg->i32, 1, &w, 1);
}

static void special_registers(Cg *cg) {
    AmState *s = am_state(cg);
    s->gpu.tid = thread_number(cg);
    s->gpu.lane = cg_urem(cg, s->gpu.tid, cg_i32(cg, s->wave));
    s->part = cg_over(cg, s->gpu.lane, s->rows);
    cg_place_thread(cg, s->gpu.lane, wave_number(cg), true);
    s->row = cg_modulo(cg, s->gpu.lane, s->rows);
}

static void am_begin(Cg *cg) {
    AmState *s = cg->state = ARENA_NEW(cg->arena, AmState);
    s->gpu.hooks = &am_gpu_hooks;
    am_prepare(cg);
    s->gpu.offset = ARENA_ARRAY(cg->arena, int, cg->k->nvalues + 1);
    int bytes = tile_shared_layout(cg->p, cg->k, s->gpu.offset, NULL);
    cg->launch.threads = s->gpu.threads;
    if (bytes > cg->target->shared_bytes) {
        diag_error(cg->diags, (Span){0},
                   "kernel '%s' needs %d bytes of LDS; %s has %d: fewer columns (D, Dv) take less",
                   cg->k->name, bytes, cg->target->name, cg->target->shared_bytes);
        return;
    }
    code_object_version(cg);
    make_function(cg);
    make_lds(cg, bytes);
    cg->entry = cg_block(cg, "entry");
    Blk body = cg_block(cg, "body");
    cg_at(cg, cg->entry);
    am_copies_begin(cg);
    special_registers(cg);
    cg_enter(cg, body);
}

static void am_end(Cg *cg) { LLVMBuildRetVoid(cg->b); }

static Val am_argument(Cg *cg, int slot, Ty type) {
    Val v = LLVMGetParam(cg->fn, (unsigned)slot);
    if (type == cg->ptr) return LLVMBuildAddrSpaceCast(cg->b, v, cg->ptr, "");
    if (type == cg->i64) return v;
    return cg_bitcast(cg, cg_trunc(cg, v, cg->i32), type);
}

static void am_grid(Cg *cg, void (*body)(Cg *cg, Val index)) {
    Val x = cg_intrinsic(cg, "llvm.amdgcn.workgroup.id.x", NULL, 0, NULL, 0);
    body(cg, cg_zext(cg, x, cg->i64));
}

// ---- operations

static CgLanes lanes(Cg *cg);

static Val one_number(Cg *cg, ExOp reduce, Val v) {
    CgLanes l = lanes(cg);
    v = cg_lanes_all(cg, &l, reduce, v);
    return cg_intrinsic(cg, "llvm.amdgcn.readfirstlane", &cg->i32, 1, &v, 1);
}

static CgLanes lanes(Cg *cg) {
    return (CgLanes){am_state(cg)->wave, am_state(cg)->gpu.lane, am_exchange, am_ballot,
                     one_number};
}

static void am_op(Cg *cg, const TileOp *op) {
    if (cg_is_together(cg, op)) {
        cg_together(cg, op);
        return;
    }
    switch ((int)op->kind) {
    case TILE_LOAD: am_load(cg, op); return;
    case TILE_STORE: am_store(cg, op); return;
    case TILE_MAP: am_map(cg, op); return;
    case TILE_MMA: am_mma(cg, op); return;
    case TILE_ALLOC: cg_alloc(cg, op->results.data[0]); return;
    case TILE_COPY: am_copy(cg, op); return;
    case TILE_COMMIT: am_state(cg)->groups++; return;
    case TILE_WAIT: am_land(cg, op); return;
    case TILE_VIEW: cg_view(cg, op); return;
    case TILE_BARRIER: am_barrier(cg); return;
    case TILE_BESIDE: cg_beside(cg, op); return;
    default: assert(!"an operation of this target's schedules");
    }
}

// ---- loops: what is carried of products' results goes as vectors

static CgValue in_vectors(Cg *cg, const TileValue *v) {
    const AmState *s = am_state(cg);
    CgValue value = cg->value[v->id];
    int each = s->rows * s->rows / s->wave;
    if (v->rank != 2 || v->dtype != DT_F32 || !value.n || value.n % each ||
        cg_lanes(value.e[0]) > 1)
        return value;
    CgValue r = {ARENA_ARRAY(cg->arena, Val, value.n / each), value.n / each, NULL};
    for (int i = 0; i < r.n; i++) r.e[i] = am_vector(cg, cg->f32, value.e + i * each, each);
    return r;
}

static void am_loop_begin(Cg *cg, CgLoop *loop) {
    const TileOp *op = loop->op;
    CgValue *before = loop->own = ARENA_ARRAY(cg->arena, CgValue, op->args.n + 1);
    for (int i = 0; i < op->args.n; i++) {
        CgValue *value = &cg->value[op->args.data[i]->id];
        before[i] = *value;
        *value = in_vectors(cg, op->args.data[i]);
    }
}

static void am_loop_yield(Cg *cg, CgLoop *loop, const TileOp *yield) {
    (void)loop;
    for (int i = 0; i < yield->args.n; i++)
        cg->value[yield->args.data[i]->id] = in_vectors(cg, yield->args.data[i]);
}

static void am_loop_end(Cg *cg, CgLoop *loop) {
    const CgValue *before = loop->own;
    for (int i = loop->op->args.n; i-- > 0;) cg->value[loop->op->args.data[i]->id] = before[i];
}

const CgHooks cg_amdgpu_hooks = {
    .machine = am_machine,
    .passes = am_passes,
    .begin_kernel = am_begin,
    .end_kernel = am_end,
    .argument = am_argument,
    .grid = am_grid,
    .op = am_op,
    .lanes = lanes,
    .loop_begin = am_loop_begin,
    .loop_yield = am_loop_yield,
    .loop_end = am_loop_end,
    .math = am_math,
    .stack = AM_PRIVATE,
    .tensors = AM_GLOBAL,
};
