// llvm.c: small helpers over the LLVM builder: constants, splats, blocks, intrinsics, inline
// assembly, attributes.
//
// In: values of one function under construction. Out: a value at the builder's place. Nothing here
// knows the tile IR.
#include "codegen/cg.h"

#include <assert.h>
#include <string.h>

enum { MAX_LANES = 64 };

Val cg_i32(Cg *cg, int64_t v) { return LLVMConstInt(cg->i32, (uint64_t)v, true); }
Val cg_i64(Cg *cg, int64_t v) { return LLVMConstInt(cg->i64, (uint64_t)v, true); }
Val cg_f32(Cg *cg, double v) { return LLVMConstReal(cg->f32, v); }

int cg_lanes(Val v) {
    Ty t = LLVMTypeOf(v);
    return LLVMGetTypeKind(t) == LLVMVectorTypeKind ? (int)LLVMGetVectorSize(t) : 1;
}

Ty cg_vector(Ty t, int lanes) { return lanes == 1 ? t : LLVMVectorType(t, (unsigned)lanes); }

Val cg_splat(Cg *cg, Val scalar, int lanes) {
    if (lanes == 1) return scalar;
    assert(lanes <= MAX_LANES);
    if (LLVMIsConstant(scalar)) {
        Val all[MAX_LANES];
        for (int i = 0; i < lanes; i++) all[i] = scalar;
        return LLVMConstVector(all, (unsigned)lanes);
    }
    Val none = LLVMGetPoison(cg_vector(LLVMTypeOf(scalar), lanes));
    Val one = cg_insert(cg, none, scalar, cg_i32(cg, 0));
    return LLVMBuildShuffleVector(cg->b, one, none, LLVMConstNull(cg_vector(cg->i32, lanes)), "");
}

Val cg_widen(Cg *cg, Val v, int lanes) { return cg_lanes(v) == 1 ? cg_splat(cg, v, lanes) : v; }

Val cg_plus(Cg *cg, Val a, int64_t b) { return cg_add(cg, a, cg_i32(cg, b)); }
Val cg_times(Cg *cg, Val a, int64_t b) { return cg_mul(cg, a, cg_i32(cg, b)); }
Val cg_below(Cg *cg, Val a, int64_t b) { return cg_less(cg, a, cg_i32(cg, b)); }
Val cg_is(Cg *cg, Val a, int64_t b) { return cg_same(cg, a, cg_i32(cg, b)); }

Val cg_over(Cg *cg, Val v, int n) {
    int bits = 0;
    while (1 << bits < n) bits++;
    if (1 << bits == n) return cg_lshr(cg, v, cg_i32(cg, bits));
    return cg_udiv(cg, v, cg_i32(cg, n));
}

int cg_widest(const Val *v, int n) {
    int lanes = 1;
    for (int i = 0; i < n; i++)
        if (cg_lanes(v[i]) > lanes) lanes = cg_lanes(v[i]);
    return lanes;
}

int cg_widen_all(Cg *cg, Val *v, int n) {
    int lanes = cg_widest(v, n);
    for (int i = 0; i < n; i++) v[i] = cg_widen(cg, v[i], lanes);
    return lanes;
}

Val cg_modulo(Cg *cg, Val v, int n) {
    if (n & (n - 1)) return cg_urem(cg, v, cg_i32(cg, n));
    return cg_and(cg, v, cg_i32(cg, n - 1));
}

Blk cg_block(Cg *cg, const char *name) {
    return LLVMAppendBasicBlockInContext(cg->c, cg->fn, name);
}

void cg_enter(Cg *cg, Blk to) {
    LLVMBuildBr(cg->b, to);
    cg_at(cg, to);
}

void cg_go_on(Cg *cg, Blk at) {
    LLVMMoveBasicBlockAfter(at, cg_here(cg));
    cg_at(cg, at);
}

void cg_branch(Cg *cg, Val in, Blk then, Blk otherwise) {
    cg_fork(cg, in, then, otherwise);
    cg_at(cg, then);
}

Blk cg_if(Cg *cg, Val in, const char *name) {
    if (!in) return NULL;
    Blk work = cg_block(cg, name), done = cg_block(cg, "done");
    cg_branch(cg, in, work, done);
    return done;
}

void cg_end_if(Cg *cg, Blk done) {
    if (!done) return;
    LLVMMoveBasicBlockAfter(done, cg_here(cg));
    cg_enter(cg, done);
}

Val cg_join(Cg *cg, Val a, Blk of_a, Val b, Blk of_b) {
    Val v = cg_phi(cg, LLVMTypeOf(a));
    LLVMAddIncoming(v, (Val[]){a, b}, (Blk[]){of_a, of_b}, 2);
    return v;
}

static Val carry(Cg *cg, Val from, Blk pre) {
    Val v = cg_phi(cg, LLVMTypeOf(from));
    LLVMAddIncoming(v, &from, &pre, 1);
    return v;
}

CgTurns cg_turns(Cg *cg, Val first, Val *carried, int n) {
    CgTurns t = {.pre = cg_here(cg), .head = cg_block(cg, "turn"), .n = n};
    t.phi = ARENA_ARRAY(cg->arena, Val, n + 1);
    cg_enter(cg, t.head);
    t.i = carry(cg, first, t.pre);
    for (int i = 0; i < n; i++) carried[i] = t.phi[i] = carry(cg, carried[i], t.pre);
    return t;
}

void cg_end_turns(Cg *cg, CgTurns *t, Val next, Val more, const Val *carried) {
    Blk latch = cg_here(cg), done = cg_block(cg, "turns.done");
    LLVMAddIncoming(t->i, &next, &latch, 1);
    for (int i = 0; i < t->n; i++) LLVMAddIncoming(t->phi[i], (Val *)&carried[i], &latch, 1);
    cg_fork(cg, more, t->head, done);
    cg_at(cg, done);
}

CgCount cg_count(Cg *cg, Val from, Val to, Val start) {
    CgCount l = {.pre = cg_here(cg), .head = cg_block(cg, "count")};
    Blk body = cg_block(cg, "counted");
    l.done = cg_block(cg, "count.done");
    cg_enter(cg, l.head);
    l.i = carry(cg, from, l.pre);
    l.sum = start ? carry(cg, start, l.pre) : NULL;
    cg_branch(cg, cg_less(cg, l.i, to), body, l.done);
    return l;
}

// Says something of the loop whose latch a block is.
static void say_of_loop(Cg *cg, Blk latch, const char *what) {
    LLVMMetadataRef self = LLVMTemporaryMDNode(cg->c, NULL, 0);
    LLVMMetadataRef hint = LLVMMDStringInContext2(cg->c, what, strlen(what));
    LLVMMetadataRef loop[] = {self, LLVMMDNodeInContext2(cg->c, &hint, 1)};
    LLVMMetadataRef id = LLVMMDNodeInContext2(cg->c, loop, 2);
    LLVMMetadataReplaceAllUsesWith(self, id); // a loop's own node is one that names itself
    LLVMSetMetadata(LLVMGetBasicBlockTerminator(latch),
                    LLVMGetMDKindIDInContext(cg->c, "llvm.loop", 9),
                    LLVMMetadataAsValue(cg->c, id));
}

Val cg_end_count(Cg *cg, CgCount *l, Val step, Val sum) {
    Blk latch = cg_here(cg);
    Val next = cg_add(cg, l->i, step);
    LLVMAddIncoming(l->i, &next, &latch, 1);
    if (sum) LLVMAddIncoming(l->sum, &sum, &latch, 1);
    cg_br(cg, l->head);
    if (l->once) say_of_loop(cg, latch, "llvm.loop.unroll.disable");
    cg_go_on(cg, l->done);
    return l->sum;
}

void cg_hoist_nothing(Cg *cg) { say_of_loop(cg, cg_here(cg), "llvm.licm.disable"); }

Val cg_or_zero(Cg *cg, Val in, Val x) { return cg_select(cg, in, x, LLVMConstNull(LLVMTypeOf(x))); }

Val cg_alloca(Cg *cg, Ty t, const char *name) {
    Blk here = cg_here(cg);
    Val first = LLVMGetFirstInstruction(cg->entry);
    if (first)
        LLVMPositionBuilderBefore(cg->b, first);
    else
        cg_at(cg, cg->entry);
    Val v = LLVMBuildAlloca(cg->b, t, name);
    cg_at(cg, here);
    return v;
}

// LLVM looks an intrinsic up among thousands; one without overloads has the name that it is declared by.
Val cg_intrinsic(Cg *cg, const char *name, Ty *overload, int noverload, Val *args, int n) {
    Val known = noverload ? NULL : LLVMGetNamedFunction(cg->m, name);
    if (known)
        return LLVMBuildCall2(cg->b, LLVMGlobalGetValueType(known), known, args, (unsigned)n, "");
    unsigned id = LLVMLookupIntrinsicID(name, strlen(name));
    assert(id && "an intrinsic of this LLVM");
    Val fn = LLVMGetIntrinsicDeclaration(cg->m, id, overload, (size_t)noverload);
    Ty type = LLVMIntrinsicGetType(cg->c, id, overload, (size_t)noverload);
    return LLVMBuildCall2(cg->b, type, fn, args, (unsigned)n, "");
}

static unsigned attribute_kind(const char *name) {
    return LLVMGetEnumAttributeKindForName(name, strlen(name));
}

Val cg_internal(Cg *cg, const char *name, Ty type) {
    Val fn = LLVMAddFunction(cg->m, name, type);
    LLVMAttributeIndex own = (LLVMAttributeIndex)LLVMAttributeFunctionIndex;
    unsigned n = LLVMGetAttributeCountAtIndex(cg->fn, own);
    LLVMAttributeRef *list = ARENA_ARRAY(cg->arena, LLVMAttributeRef, n + 1);
    LLVMGetAttributesAtIndex(cg->fn, own, list);
    for (unsigned i = 0; i < n; i++) LLVMAddAttributeAtIndex(fn, own, list[i]);
    cg_attribute(cg, fn, "noinline", NULL);
    LLVMSetLinkage(fn, LLVMInternalLinkage);
    return fn;
}

void cg_attribute(Cg *cg, Val fn, const char *name, const char *value) {
    LLVMAttributeRef a = value ? LLVMCreateStringAttribute(cg->c, name, (unsigned)strlen(name),
                                                           value, (unsigned)strlen(value))
                               : LLVMCreateEnumAttribute(cg->c, attribute_kind(name), 0);
    LLVMAddAttributeAtIndex(fn, (LLVMAttributeIndex)LLVMAttributeFunctionIndex, a);
}

// A name that this LLVM does not have is left out: parameter attributes only help the optimizer.
void cg_param_attribute(Cg *cg, Val fn, int param, const char *name, uint64_t value) {
    unsigned kind = attribute_kind(name);
    if (!kind) return;
    LLVMAttributeRef a = LLVMCreateEnumAttribute(cg->c, kind, value);
    LLVMAddAttributeAtIndex(fn, (LLVMAttributeIndex)(param + 1), a);
}

Val cg_asm(Cg *cg, Ty result, Val *args, int n, const char *text, const char *constraints,
           bool convergent) {
    Ty *types = ARENA_ARRAY(cg->arena, Ty, n + 1);
    for (int i = 0; i < n; i++) types[i] = LLVMTypeOf(args[i]);
    Ty type = LLVMFunctionType(result, types, (unsigned)n, false);
    Val code =
        LLVMGetInlineAsm(type, text, strlen(text), constraints, strlen(constraints),
                         convergent || result == cg->void_, false, LLVMInlineAsmDialectATT, false);
    Val call = LLVMBuildCall2(cg->b, type, code, args, (unsigned)n, "");
    LLVMAttributeIndex on = (LLVMAttributeIndex)LLVMAttributeFunctionIndex;
    unsigned convergent_kind = attribute_kind("convergent"), nounwind = attribute_kind("nounwind");
    if (convergent)
        LLVMAddCallSiteAttribute(call, on, LLVMCreateEnumAttribute(cg->c, convergent_kind, 0));
    LLVMAddCallSiteAttribute(call, on, LLVMCreateEnumAttribute(cg->c, nounwind, 0));
    return call;
}

void cg_struct_asm(Cg *cg, Ty *results, int nresults, Val *args, int n, const char *text,
                   const char *constraints, Val *out) {
    Ty type = LLVMStructTypeInContext(cg->c, results, (unsigned)nresults, false);
    Val r = cg_asm(cg, nresults == 1 ? results[0] : type, args, n, text, constraints, true);
    for (int i = 0; i < nresults; i++)
        out[i] = nresults == 1 ? r : LLVMBuildExtractValue(cg->b, r, (unsigned)i, "");
}

Ty cg_dtype(Cg *cg, Dtype t) {
    switch (t) {
    case DT_F32: return cg->f32;
    case DT_F16: return cg->f16;
    case DT_BF16: return cg->i16; // converted in integers (convert.c)
    case DT_I32: return cg->i32;
    case DT_BOOL:
    case DT_E4M3: // converted in integers, too
    case DT_E5M2:
    case DT_I8: return cg->i8;
    case DT_COUNT: break;
    }
    assert(!"a dtype");
    return NULL;
}

Val cg_fast(Val v) {
    if (LLVMIsAInstruction(v) && LLVMCanValueUseFastMathFlags(v))
        LLVMSetFastMathFlags(v, LLVMFastMathAllowContract);
    return v;
}

void cg_invariant(Cg *cg, Val load) {
    unsigned kind = LLVMGetMDKindIDInContext(cg->c, "invariant.load", 14);
    LLVMMetadataRef none = LLVMMDNodeInContext2(cg->c, NULL, 0);
    LLVMSetMetadata(load, kind, LLVMMetadataAsValue(cg->c, none));
}
