// code.c: functions of vectors, each a loop around one operation of cg_math or cg_math_formula.
#include "tests/math/code.h"
#include "codegen/host/host.h"
#include "codegen/jit.h"
#include "ir/expr_ops.h"

#include <llvm-c/LLJIT.h>
#include <llvm-c/Orc.h>
#include <stdlib.h>

struct MathModule {
    LLVMOrcLLJITRef jit;
    Arena *arena;
};

static const char *name_of(Arena *a, ExOp op, bool shared) {
    return arena_printf(a, "%s_%s", shared ? "shared" : "own", ex_op_name(op));
}

static void must(bool good, const char *what) {
    if (good) return;
    fprintf(stderr, "%s\n", what);
    exit(3);
}

static Val place(Cg *cg, unsigned param, Val i) {
    return LLVMBuildGEP2(cg->b, cg->f32, LLVMGetParam(cg->fn, param), &i, 1, "");
}

static Val argument(Cg *cg, CgElem *at, int k) {
    (void)cg;
    return ((Val *)at->ctx)[k];
}

static const Ex *expression(Cg *cg, ExOp op) {
    ExPool *p = cg->p->pool;
    const Ex *args[] = {ex_sym(p, SYM_PARAM, 0, EX_F32), ex_sym(p, SYM_PARAM, 1, EX_F32)};
    return ex_op(p, op, args, ex_ops[op].arity);
}

static void build(Cg *cg, ExOp op, bool shared) {
    Ty params[] = {cg->ptr, cg->ptr, cg->ptr, cg->i64}, v = cg_vector(cg->f32, cg->target->lanes);
    cg->fn = LLVMAddFunction(cg->m, name_of(cg->arena, op, shared),
                             LLVMFunctionType(cg->void_, params, 4, false));
    cg->entry = cg_block(cg, "entry");
    Blk body = cg_block(cg, "body"), end = cg_block(cg, "end");
    LLVMPositionBuilderAtEnd(cg->b, cg->entry);
    LLVMBuildBr(cg->b, body);
    LLVMPositionBuilderAtEnd(cg->b, body);
    Val i = LLVMBuildPhi(cg->b, cg->i64, ""), x[3], zero = cg_i64(cg, 0);
    for (unsigned k = 0; k < 2; k++) {
        x[k] = LLVMBuildLoad2(cg->b, v, place(cg, k, i), "");
        LLVMSetAlignment(x[k], 4);
    }
    x[2] = x[1];
    const Ex *e = expression(cg, op);
    CgElem at = {.lanes = cg->target->lanes, .param = argument, .ctx = x};
    Val r = shared ? cg_math_formula(cg, op, x) : cg_expr(cg, e, &at);
    LLVMSetAlignment(LLVMBuildStore(cg->b, r, place(cg, 2, i)), 4);
    Val next = LLVMBuildAdd(cg->b, i, cg_i64(cg, cg->target->lanes), "");
    Val more = LLVMBuildICmp(cg->b, LLVMIntSLT, next, LLVMGetParam(cg->fn, 3), "");
    LLVMAddIncoming(i, (Val[]){zero, next}, (Blk[]){cg->entry, LLVMGetInsertBlock(cg->b)}, 2);
    LLVMBuildCondBr(cg->b, more, body, end);
    LLVMPositionBuilderAtEnd(cg->b, end);
    LLVMBuildRetVoid(cg->b);
}

static void load(Cg *cg, MathModule *m, LLVMOrcThreadSafeContextRef context) {
    LLVMOrcLLJITBuilderRef builder = LLVMOrcCreateLLJITBuilder();
    LLVMOrcLLJITBuilderSetJITTargetMachineBuilder(
        builder, LLVMOrcJITTargetMachineBuilderCreateFromTargetMachine(cg->tm));
    cg->tm = NULL;
    must(!LLVMOrcCreateLLJIT(&m->jit, builder), "no JIT");
    LLVMOrcDefinitionGeneratorRef process; // fmaf of a machine that has no such instruction
    LLVMOrcJITDylibRef lib = LLVMOrcLLJITGetMainJITDylib(m->jit);
    must(!LLVMOrcCreateDynamicLibrarySearchGeneratorForProcess(
             &process, LLVMOrcLLJITGetGlobalPrefix(m->jit), NULL, NULL),
         "no symbols of this process");
    LLVMOrcJITDylibAddGenerator(lib, process);
    LLVMOrcThreadSafeModuleRef module = LLVMOrcCreateNewThreadSafeModule(cg->m, context);
    cg->m = NULL;
    must(!LLVMOrcLLJITAddLLVMIRModule(m->jit, lib, module), "the module cannot be loaded");
}

MathModule *math_module(int lanes, bool *fused) {
    Target target = cg_target(TARGET_HOST);
    if (target.lanes < lanes) return NULL;
    target.lanes = lanes;
    MathModule *m = calloc(1, sizeof *m);
    must(m, "out of memory");
    m->arena = arena_new();
    Diags diags = diag_list(m->arena);
    CgOptions options = {.opt = 3};
    LLVMOrcThreadSafeContextRef context = LLVMOrcCreateNewThreadSafeContext();
    TileProgram *p = tile_program(m->arena, ex_pool(m->arena), "math");
    p->dtype = DT_F32;
    Cg cg = {.arena = m->arena, .diags = &diags, .opt = &options, .target = &target, .p = p};
    must(cg_open(&cg, p, LLVMOrcThreadSafeContextGetContext(context)), "no code for this machine");
    Host host = {.lane_axis = -1};
    host_features(&cg, &host);
    cg.state = &host;
    *fused = host.fma;
    for (int op = EX_DIV; op <= EX_POW; op++)
        if (ex_ops[op].arity < 3 && (op < EX_NEG || op >= EX_FLOOR)) build(&cg, (ExOp)op, false);
    build(&cg, EX_EXP, true);
    build(&cg, EX_POW, true);
    must(cg_finish(&cg), "the code is not sound");
    load(&cg, m, context);
    cg_close(&cg);
    LLVMOrcDisposeThreadSafeContext(context);
    return m;
}

MathCode math_code(MathModule *m, ExOp op, bool shared) {
    LLVMOrcExecutorAddress at = 0;
    must(!LLVMOrcLLJITLookup(m->jit, &at, name_of(m->arena, op, shared)), "a function is missing");
    return (MathCode)(uintptr_t)at;
}

void math_module_free(MathModule *m) {
    LLVMErrorRef error = LLVMOrcDisposeLLJIT(m->jit);
    if (error) LLVMConsumeError(error);
    arena_free(m->arena);
    free(m);
}
