// host.c: the host target: the function's frame, the grid, what loops carry in memory, and each operation
// to what builds it.
//
// In: a kernel scheduled for the host (host.h tells the layout). Out: a function that runs the
// grid's tiles [first, last); one 8-byte slot for each argument:
//
//     void kernel(const uint64_t *args, int64_t first, int64_t last)
#include "codegen/host/host.h"

#include <string.h>

// ---- the frame

static bool feature(const char *features, const char *name) { // the last word on it counts
    size_t n = strlen(name);
    bool has = false;
    for (const char *s = strstr(features, name); s; s = strstr(s + 1, name))
        if (s > features && (s[n] == ',' || !s[n]) && (s[-1] == '+' || s[-1] == '-'))
            has = s[-1] == '+';
    return has;
}

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

// Operands and results below the normal range count as 0 while a kernel runs, as they do on GPUs; to
// make one costs a hundred cycles on many processors. The caller's mode is put back.
static void flush_to_zero(Cg *cg) {
    Host *h = host_of(cg);
    if (!h->sse) return;
    h->mode = LLVMBuildAlloca(cg->b, cg->i32, "mode");
    Val flush = LLVMBuildAlloca(cg->b, cg->i32, "flush");
    cg_intrinsic(cg, "llvm.x86.sse.stmxcsr", NULL, 0, &h->mode, 1);
    Val now = cg_load(cg, cg->i32, h->mode);
    cg_store(cg, cg_or(cg, now, cg_i32(cg, 0x8040)), flush);
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
        const Knobs *knobs = &cg->k->schedule.knobs; // perhaps none, of a tile program's text
        diag_error(cg->diags, (Span){0},
                   "kernel '%s' needs %lld bytes of scratch memory for a tile%s%s; the host has "
                   "%d: its tiles or the head dimensions are too large",
                   cg->symbol, (long long)bytes, knobs->said ? " of the schedule " : "",
                   knobs_text(cg->arena, knobs), HOST_MAX_SCRATCH);
        return;
    }
    Ty params[] = {cg->ptr, cg->i64, cg->i64};
    cg->fn = LLVMAddFunction(cg->m, cg->symbol, LLVMFunctionType(cg->void_, params, 3, false));
    host_attributes(cg, cg->fn);
    cg->entry = cg_block(cg, "entry");
    Blk start = cg_block(cg, "start");
    cg_at(cg, cg->entry);
    for (int i = 0; i < h->nslots; i++) {
        Ty t = LLVMArrayType2(cg->i8, (uint64_t)h->slots[i].bytes);
        h->slots[i].mem = LLVMBuildAlloca(cg->b, t, "slot");
        LLVMSetAlignment(h->slots[i].mem, 64);
    }
    flush_to_zero(cg);
    cg_enter(cg, start);
}

static void end_kernel(Cg *cg) {
    Host *h = host_of(cg);
    if (h->sse) cg_intrinsic(cg, "llvm.x86.sse.ldmxcsr", NULL, 0, &h->mode, 1);
    LLVMBuildRetVoid(cg->b);
}

static Val argument(Cg *cg, int slot, Ty type) {
    Val at = cg_i64(cg, slot);
    Val p = LLVMBuildInBoundsGEP2(cg->b, cg->i64, LLVMGetParam(cg->fn, 0), &at, 1, "");
    return cg_load(cg, type, p); // little-endian: a 4-byte value stands at the slot's beginning
}

static void grid(Cg *cg, void (*body)(Cg *cg, Val index)) {
    Blk head = cg_block(cg, "grid"), work = cg_block(cg, "tile"), end = cg_block(cg, "end"),
        pre = cg_here(cg);
    cg_enter(cg, head);
    Val index = LLVMBuildPhi(cg->b, cg->i64, "tile"), first = LLVMGetParam(cg->fn, 1);
    LLVMAddIncoming(index, &first, &pre, 1);
    cg_branch(cg, cg_less(cg, index, LLVMGetParam(cg->fn, 2)), work, end);
    body(cg, index);
    Val next = cg_add(cg, index, cg_i64(cg, 1));
    Blk last = cg_here(cg);
    LLVMAddIncoming(index, &next, &last, 1);
    cg_br(cg, head);
    cg_go_on(cg, end);
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

static CgLanes lanes(Cg *cg) { return (CgLanes){1, cg_i32(cg, 0), NULL, NULL, NULL}; }

static void host_op(Cg *cg, const TileOp *op) {
    switch ((int)op->kind) {
    case TILE_LOAD: host_tensor_load(cg, op); return;
    case TILE_STORE: host_tensor_store(cg, op); return;
    case TILE_MAP: host_map(cg, op); return;
    case TILE_MMA: host_mma(cg, op); return;
    case TILE_BESIDE: host_beside(cg, op); return;
    case TILE_INVERT: host_invert(cg, op); return;
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
    .lanes = lanes,
    .loop_begin = loop_begin,
    .loop_yield = loop_yield,
    .loop_end = loop_end,
    .math = host_math,
};
