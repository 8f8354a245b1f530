// function.c: functions of the kernel's module that the kernel calls.
//
// In: where the builder is. Out: the builder in a new function, and back again. Inside, the kernel's
// arguments come from memory (cg->arguments), and inputs are asked for anew.
#include "codegen/cg.h"

// Of a pointer that comes from memory nothing but the cast tells where it points.
static Val argument_in_memory(Cg *cg, int slot, Ty type) {
    Val i = cg_i64(cg, slot);
    Val p = LLVMBuildInBoundsGEP2(cg->b, cg->i64, cg->arguments, &i, 1, "");
    Val v = cg_load(cg, type, p);
    if (type != cg->ptr || !cg->hooks->tensors) return v;
    Val to =
        LLVMBuildAddrSpaceCast(cg->b, v, LLVMPointerTypeInContext(cg->c, cg->hooks->tensors), "");
    return LLVMBuildAddrSpaceCast(cg->b, to, cg->ptr, "");
}

Val cg_function_begin(Cg *cg, CgOutside *o, const char *name, Ty type) {
    *o = (CgOutside){cg->fn,    cg->arguments, cg->arg,   cg->input,
                     cg->entry, cg_here(cg),   cg->hooks, *cg->hooks};
    Val fn = cg_internal(cg, name, type);
    cg->fn = fn;
    cg->entry = cg_block(cg, "entry");
    Blk body = cg_block(cg, "body");
    cg_at(cg, cg->entry);
    cg_enter(cg, body);
    o->inside.argument = argument_in_memory;
    cg->hooks = &o->inside;
    cg->arg = NULL;
    cg->input = ARENA_ARRAY(cg->arena, Val, cg->p->tensors.n + 1);
    return fn;
}

void cg_function_end(Cg *cg, const CgOutside *o, Val result) {
    if (result)
        LLVMBuildRet(cg->b, result);
    else
        LLVMBuildRetVoid(cg->b);
    cg->fn = o->fn, cg->entry = o->entry, cg->hooks = o->hooks;
    cg->arguments = o->arguments, cg->arg = o->arg, cg->input = o->input;
    cg_at(cg, o->here);
}

// A call of a function of the module with this name, which `build` makes the first time.
Val cg_function(Cg *cg, const char *name, Val (*build)(Cg *cg, ExOp op, const Val *args), ExOp op,
                Val *args, int n) {
    Ty t = LLVMTypeOf(args[0]), types[] = {t, t, t},
       type = LLVMFunctionType(t, types, (unsigned)n, false);
    name = arena_printf(cg->arena, "%s_%s%d", name, dtype_name(cg->p->dtype), cg_lanes(args[0]));
    Val fn = LLVMGetNamedFunction(cg->m, name);
    if (!fn) {
        CgOutside o;
        fn = cg_function_begin(cg, &o, name, type);
        Val v[3] = {0};
        for (int i = 0; i < n; i++) v[i] = LLVMGetParam(fn, (unsigned)i);
        cg_function_end(cg, &o, build(cg, op, v));
    }
    return LLVMBuildCall2(cg->b, type, fn, args, (unsigned)n, "");
}
