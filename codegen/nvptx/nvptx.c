// nvptx.c: the NVIDIA target's hooks: the kernel's frame, and each tile operation to what builds it.
//
// In: a scheduled kernel, one block of `warps` warps for each point of its grid. Out: a PTX kernel function that runs on sm_80 and every
// later device. Shared memory is one dynamic array; tile_shared_layout says what lies where, and how much a launch must ask for.
#include "codegen/lanes.h"
#include "codegen/nvptx/sm90.h"
#include "ir/tile_decayed.h"

#include <assert.h>
#include <llvm-c/Support.h>
#include <pthread.h>
#include <string.h>

// ---- the machine

// LLVM's own part need not optimize a module with one kernel for sm_90a that has roles, or that makes parts of rows: that takes it half as
// long again, and of what it does such kernels need nothing but what nv_passes, join_copies and nv_widen do instead. Other kernels spill
// without it.
static bool is_plain(const Cg *cg) {
    const TileKernel *k = cg->only;
    if (cg->target->id != TARGET_SM90A || !k || tile_has_lanes(k)) return false;
    return tile_has_roles(k) || k->purpose == PURPOSE_PART || k->purpose == PURPOSE_COMBINE;
}

// Copies are joined all the same: else they are half of what ptxas reads, and it counts those of the accumulators when it says how many
// exponentials come before a wait. LLVM has its options for the whole process; code that is optimized at all has this one anyhow.
static void join_copies(void) {
    const char *const args[] = {"attnc", "-optimize-regalloc"};
    LLVMParseCommandLineOptions(2, args, NULL);
}

static LLVMTargetMachineRef nv_machine(Cg *cg) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, join_copies);
    LLVMInitializeNVPTXTargetInfo();
    LLVMInitializeNVPTXTarget();
    LLVMInitializeNVPTXTargetMC();
    LLVMInitializeNVPTXAsmPrinter();
    LLVMTargetRef t;
    char *error = NULL;
    if (LLVMGetTargetFromTriple("nvptx64-nvidia-cuda", &t, &error)) {
        diag_error(cg->diags, (Span){0}, "this LLVM cannot make code for NVIDIA devices: %s",
                   error);
        LLVMDisposeMessage(error);
        return NULL;
    }
    // PTX 7.4 is what CUDA 11.4 reads: every driver of the last years. sm_90a needs that of CUDA 12, and 8.1 has sums of
    // four numbers at once.
    bool hopper = cg->target->id == TARGET_SM90A;
    return LLVMCreateTargetMachine(t, "nvptx64-nvidia-cuda", hopper ? "sm_90a" : "sm_80",
                                   hopper ? "+ptx81" : "+ptx74",
                                   is_plain(cg) ? LLVMCodeGenLevelNone : LLVMCodeGenLevelDefault,
                                   LLVMRelocDefault, LLVMCodeModelDefault);
}

// ptxas optimizes again; what it cannot do is see equal addresses and conditions across a kernel's unrolled elements. The whole -O3
// pipeline takes ten times as long and gives the same registers. What instcombine leaves twice LLVM's own
// part finds: it has three early-cse of its own.
static const char *nv_passes(const Cg *cg) {
    // The roles' variables become registers. Blocks are merged before instcombine, which would sink what a
    // loop carries to the loop's last block: behind the exponentials that it is to run beside. What a loop
    // does not change leaves it where no role needs the registers.
    if (is_plain(cg))
        return tile_has_roles(cg->only)
                   ? "function(mem2reg,simplifycfg,early-cse,infer-address-spaces,"
                     "instcombine<no-verify-fixpoint>,simplifycfg)"
                   : "function(simplifycfg,early-cse,infer-address-spaces,loop-mssa(licm),"
                     "instcombine<no-verify-fixpoint>,simplifycfg)";
    if (cg->target->id == TARGET_SM90A)
        return "function(mem2reg,simplifycfg,early-cse,instcombine<no-verify-fixpoint>,"
               "simplifycfg)";
    return cg->opt->opt == 0 ? "function(early-cse)"
                             : "function(early-cse,instcombine<no-verify-fixpoint>,simplifycfg)";
}

static void nv_polish(Cg *cg) {
    nv_replace_abs(cg);
    if (is_plain(cg)) nv_widen(cg);
}

// ---- the frame

static void annotate(Cg *cg, const char *key, int value) {
    LLVMMetadataRef v[] = {LLVMValueAsMetadata(cg->fn),
                           LLVMMDStringInContext2(cg->c, key, strlen(key)),
                           LLVMValueAsMetadata(cg_i32(cg, value))};
    LLVMMetadataRef node = LLVMMDNodeInContext2(cg->c, v, 3);
    LLVMAddNamedMetadataOperand(cg->m, "nvvm.annotations", LLVMMetadataAsValue(cg->c, node));
}

static Ty argument_type(Cg *cg, const CgArg *a) {
    switch (a->kind) {
    case CG_ARG_POINTER: return LLVMPointerTypeInContext(cg->c, 1);
    case CG_ARG_STRIDE:
    case CG_ARG_INVERSE: return cg->i64;
    case CG_ARG_SIZE: return cg->i32;
    case CG_ARG_SCALAR: {
        Dtype d = cg->p->tensors.data[cg->p->inputs.data[a->index]].dtype;
        return dtype_reads(d) == EX_F32 ? cg->f32 : cg->i32;
    }
    case CG_ARG_TENSOR_MAP: return cg->ptr;
    case CG_ARG_COUNTER: return LLVMPointerTypeInContext(cg->c, 1);
    }
    assert(!"an argument of this target");
    return NULL;
}

// A tensor map is 128 bytes of the parameters, read where they lie: without the annotation it would be copied to the stack.
static void map_attributes(Cg *cg) {
    VEC(LLVMMetadataRef) params = {0};
    for (int i = 0; i < cg->args.n; i++) {
        if (cg->args.data[i].kind != CG_ARG_TENSOR_MAP) continue;
        unsigned kind = LLVMGetEnumAttributeKindForName("byval", 5);
        LLVMAttributeRef a = LLVMCreateTypeAttribute(cg->c, kind, LLVMArrayType2(cg->i8, 128));
        LLVMAddAttributeAtIndex(cg->fn, (LLVMAttributeIndex)(i + 1), a);
        cg_param_attribute(cg, cg->fn, i, "align", 64);
        LLVMMetadataRef index = LLVMValueAsMetadata(cg_i32(cg, i + 1));
        VEC_PUSH(cg->arena, &params, index);
    }
    if (!params.n) return;
    LLVMMetadataRef v[] = {LLVMValueAsMetadata(cg->fn),
                           LLVMMDStringInContext2(cg->c, "grid_constant", 13),
                           LLVMMDNodeInContext2(cg->c, params.data, (size_t)params.n)};
    LLVMMetadataRef node = LLVMMDNodeInContext2(cg->c, v, 3);
    LLVMAddNamedMetadataOperand(cg->m, "nvvm.annotations", LLVMMetadataAsValue(cg->c, node));
}

// ---- early launch
//
// A kernel that combines parts of sequences is started while the last of them are made (the runtime asks for that where a kernel's text has
// the wait): it reads lengths meanwhile, and nothing of the workspace before the wait. Where it has no lengths to read nothing is gained.
//
// Beside a kernel of a batch's long sequences, of which some blocks leave, that of the parts of the others begins at once. It reads
// nothing of the first one's, but ends behind it: its last block waits when it is done. Every kernel behind it then follows both.

static void statement(Cg *cg, const char *text) {
    cg_asm(cg, cg->void_, NULL, 0, text, "~{memory}", true);
}

static bool is_early(const Cg *cg, TilePurpose purpose) {
    bool reads = cg->p->batch && !cg->p->phase;
    return cg->target->id == TARGET_SM90A && reads && cg->k->purpose == purpose;
}

// What others still write is neither constant nor apart from all else.
static bool is_awaited(const Cg *cg, int tensor) {
    return is_early(cg, PURPOSE_COMBINE) && cg->p->tensors.data[tensor].role == TENSOR_WORK;
}

static void make_function(Cg *cg) {
    Ty *types = ARENA_ARRAY(cg->arena, Ty, cg->args.n + 1);
    for (int i = 0; i < cg->args.n; i++) types[i] = argument_type(cg, &cg->args.data[i]);
    cg->fn = LLVMAddFunction(cg->m, cg->symbol,
                             LLVMFunctionType(cg->void_, types, (unsigned)cg->args.n, false));
    LLVMSetFunctionCallConv(cg->fn, NV_PTX_KERNEL);
    cg_attribute(cg, cg->fn, "nounwind", NULL);
    cg_attribute(cg, cg->fn, "convergent", NULL);
    cg_attribute(cg, cg->fn, "denormal-fp-math-f32", "preserve-sign,preserve-sign");
    for (int i = 0; i < cg->args.n; i++) {
        if (cg->args.data[i].kind != CG_ARG_POINTER || is_awaited(cg, cg->args.data[i].index))
            continue;
        cg_param_attribute(cg, cg->fn, i, "noalias", 0);
        if (!cg->stored[cg->args.data[i].index]) cg_param_attribute(cg, cg->fn, i, "readonly", 0);
    }
    map_attributes(cg);
    annotate(cg, "reqntidx", cg->launch.threads);
    if (cg->k->schedule.min_blocks > 0) annotate(cg, "minctasm", cg->k->schedule.min_blocks);
}

static Val shared_memory(Cg *cg) {
    Val g = LLVMGetNamedGlobal(cg->m, "attn_shared");
    if (!g) {
        g = LLVMAddGlobalInAddressSpace(cg->m, LLVMArrayType2(cg->i8, 0), "attn_shared", 3);
        LLVMSetAlignment(g, cg->target->id == TARGET_SM90A ? 1024 : 128); // panels of tensor copies
        LLVMSetLinkage(g, LLVMExternalLinkage);
    }
    if (!is_plain(cg)) return cg_ptrtoint(cg, g, cg->i32);
    // A constant would be made again in every block.
    return cg_asm(cg, cg->i32, NULL, 0, "mov.u32 $0, attn_shared;", "=r", false);
}

static void special_registers(Cg *cg) {
    NvState *s = nv_state(cg);
    s->shared = shared_memory(cg);
    s->gpu.tid = nv_special(cg, "tid.x");
    s->gpu.lane = cg_and(cg, s->gpu.tid, cg_i32(cg, NV_WARP - 1));
    s->warp = cg_lshr(cg, s->gpu.tid, cg_i32(cg, 5));
    cg_place_thread(cg, s->gpu.lane, s->warp, false);
}

static bool has_beside(const Cg *cg) {
    bool beside = false;
    for (int i = 0; i < cg->p->kernels.n; i++)
        beside |= cg->p->kernels.data[i]->schedule.beside != NULL;
    return beside;
}

static void leave_unless(Cg *cg, Val runs) {
    Blk on = cg_block(cg, "runs"), off = cg_block(cg, "rests");
    cg_branch(cg, runs, on, off);
    cg_at(cg, off);
    LLVMBuildRetVoid(cg->b);
    cg_at(cg, on);
}

static void nv_met(Cg *cg) {
    if (cg->k->schedule.finish && cg->k->purpose == PURPOSE_CONVERT)
        leave_unless(cg, nv90_is_left_over(cg));
    if (is_early(cg, PURPOSE_COMBINE)) statement(cg, "griddepcontrol.wait;");
}

static void nv_begin(Cg *cg) {
    NvState *s = cg->state = ARENA_NEW(cg->arena, NvState);
    for (int i = 0; i < cg->p->tensors.n; i++) cg->stored[i] |= is_awaited(cg, i);
    bool lanes = tile_has_lanes(cg->k);
    int warps = lanes ? 1 : cg->k->schedule.warps;
    assert(warps > 0 && "scheduled for this target");
    s->gpu.hooks = &nv_gpu_hooks;
    s->gpu.threads = warps * NV_WARP;
    s->gpu.offset = ARENA_ARRAY(cg->arena, int, cg->k->nvalues + 1);
    int barriers;
    cg->launch.threads = s->gpu.threads;
    cg->launch.shared = tile_shared_layout(cg->p, cg->k, s->gpu.offset, &barriers);
    if (tile_has_roles(cg->k)) nv90_prepare(cg, barriers);
    if (cg->launch.shared > cg->target->shared_bytes) {
        diag_error(cg->diags, (Span){0}, "kernel '%s' needs %d bytes of shared memory; %s has %d",
                   cg->k->name, cg->launch.shared, cg->target->name, cg->target->shared_bytes);
        return;
    }
    make_function(cg);
    cg->entry = cg_block(cg, "entry");
    Blk body = cg_block(cg, "body");
    cg_at(cg, cg->entry);
    special_registers(cg);
    cg_enter(cg, body);
    if (cg->k->where) leave_unless(cg, cg_uniform(cg, cg->k->where));
    bool fills =
        s->roles; // a multiprocessor: blocks of the combination would all wait for the first ones that are free
    if ((is_early(cg, PURPOSE_PART) && !fills) || cg->k->schedule.beside)
        statement(cg, "griddepcontrol.launch_dependents;");
    if (cg->k->schedule.beside) {
        s->roles->takers = cg_meet_once(cg, cg->k->schedule.beside);
        leave_unless(cg, cg_less(cg, nv_special(cg, "ctaid.x"), s->roles->takers));
    }
    if (s->roles && tile_counts_own(cg->k)) cg_meet_once(cg, ex_i32(cg->p->pool, 0));
    if (s->roles) nv90_enter(cg);
}

static void nv_end(Cg *cg) {
    if (is_early(cg, PURPOSE_PART) && has_beside(cg)) {
        Val last = cg_plus(cg, nv_special(cg, "nctaid.x"), -1);
        Blk done = cg_if(cg, cg_icmp(cg, LLVMIntEQ, nv_special(cg, "ctaid.x"), last), "last");
        statement(cg, "griddepcontrol.wait;");
        cg_end_if(cg, done);
    }
    LLVMBuildRetVoid(cg->b);
}

static Val nv_argument(Cg *cg, int slot, Ty type) {
    Val v = LLVMGetParam(cg->fn, (unsigned)slot);
    return type == cg->ptr ? LLVMBuildAddrSpaceCast(cg->b, v, cg->ptr, "") : v;
}

static void nv_grid(Cg *cg, void (*body)(Cg *cg, Val index)) {
    body(cg, cg_zext(cg, nv_special(cg, "ctaid.x"), cg->i64));
}

// ---- operations

static void alone(Cg *cg, const TileOp *op) {
    switch ((int)op->kind) {
    case TILE_LOAD: nv_load(cg, op); return;
    case TILE_STORE: nv_with_sums(cg, op, nv_store); return;
    case TILE_MAP: nv_with_sums(cg, op, nv_map); return;
    case TILE_MMA: (tile_by_groups(cg->k) ? nv90_group_mma : nv_mma)(cg, op); return;
    case TILE_MMA_WAIT: nv90_group_wait(cg); return;
    case TILE_ALLOC: cg_alloc(cg, op->results.data[0]); return;
    case TILE_COPY: nv_copy(cg, op); return;
    case TILE_COMMIT: statement(cg, "cp.async.commit_group;"); return;
    case TILE_WAIT:
        nv_copy_ahead(cg, op);
        statement(cg, arena_printf(cg->arena, "cp.async.wait_group %d;", op->pending));
        return;
    case TILE_VIEW: cg_view(cg, op); return;
    case TILE_BESIDE: cg_beside(cg, op); return;
    case TILE_BARRIER: cg_gpu(cg)->hooks->barrier(cg); return;
    }
    assert(!"an operation of the scheduled level");
}

// Whether it leaves the position of the chunk's last decay of 0, for a map that asks for it.
static void find_last_zero(Cg *cg, const TileOp *map) {
    NvState *s = nv_state(cg);
    for (const TileOp *op = map->next; op; op = op->next) {
        if (op->kind != TILE_MAP || !tile_is_marked(op, TILE_ZEROS)) continue;
        const TileValue *last = tile_last_zero(op);
        if (last->def == map) s->last_zero = last, s->no_zeros = NULL;
    }
}

// Whether it leaves in shared memory what products of warpgroups may read.
static bool leaves_operands(Cg *cg, const TileOp *op) {
    bool leaves = op->kind == TILE_WAIT;
    for (int i = 0; i < op->results.n && tile_makes_shared(op); i++)
        leaves |= tile_shared(cg->p, cg->k, op->results.data[i]).order == ORDER_PANELS;
    return leaves;
}

static void nv_op(Cg *cg, const TileOp *op) {
    if (nv_state(cg)->roles) {
        nv90_op(cg, op);
        return;
    }
    (cg_is_together(cg, op) ? cg_together : alone)(cg, op);
    nv_state(cg)->unfenced |= leaves_operands(cg, op);
    if (op->kind == TILE_MAP && !nv_state(cg)->last_zero) find_last_zero(cg, op);
}

static Val vote(Cg *cg, Val bit) {
    Val args[] = {cg_i32(cg, -1), bit};
    return cg_intrinsic(cg, "llvm.nvvm.vote.ballot.sync", NULL, 0, args, 2);
}

static Val redux(Cg *cg, ExOp reduce, Val v) {
    Val args[] = {v, cg_i32(cg, -1)};
    const char *name =
        reduce == EX_ROWSUM ? "llvm.nvvm.redux.sync.add" : "llvm.nvvm.redux.sync.max";
    return cg_intrinsic(cg, name, NULL, 0, args, 2);
}

static CgLanes lanes(Cg *cg) {
    return (CgLanes){NV_WARP, nv_state(cg)->gpu.lane, nv_shuffle, vote, redux};
}

static void loop_begin(Cg *cg, CgLoop *loop) {
    nv_state(cg)->unfenced = true; // by the step before
    nv_state(cg)->last_zero = NULL;
    if (!nv_state(cg)->roles) return;
    nv90_pack(cg);
    nv90_ask_before(cg, loop->op);
}

static void nv_loop_yield(Cg *cg, CgLoop *loop, const TileOp *yield) {
    (void)loop, (void)yield;
    nv_state(cg)->unfenced = true; // a loop of no step leaves what was stored before
    nv_state(cg)->last_zero = NULL;
    if (nv_state(cg)->roles) nv90_pack(cg); // of every block that a role has
}

const CgHooks cg_nvptx_hooks = {
    .machine = nv_machine,
    .passes = nv_passes,
    .polish = nv_polish,
    .begin_kernel = nv_begin,
    .end_kernel = nv_end,
    .argument = nv_argument,
    .grid = nv_grid,
    .op = nv_op,
    .lanes = lanes,
    .met = nv_met,
    .loop_begin = loop_begin,
    .loop_yield = nv_loop_yield,
    .math = nv_math,
    .bf16 = nv_bf16,
};
