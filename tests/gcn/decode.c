// decode.c: the text of a code object's instructions, by LLVM's disassembler, to ops.
#include "tests/gcn/wave.h"
#include <llvm-c/Disassembler.h>
#include <llvm-c/Target.h>
#include <stdio.h>

static LLVMDisasmContextRef disassembler(const GcnCode *c) {
    LLVMInitializeAMDGPUTargetInfo();
    LLVMInitializeAMDGPUTargetMC();
    LLVMInitializeAMDGPUDisassembler();
    return LLVMCreateDisasmCPUFeatures("amdgcn-amd-amdhsa", c->target, "", NULL, 0, NULL, NULL);
}

typedef struct Decoding {
    GcnCode *c;
    GcnTable *table;
    const GcnEdit *edit;
    VEC(Op) ops;
    int lines;
} Decoding;

static void push(Decoding *d, const Op *from, int n, uint32_t at, uint32_t bytes) {
    d->c->op_at[(at - d->c->text) / 4] = d->ops.n;
    for (int i = 0; i < n; i++) {
        Op op = from[i];
        op.at = at;
        op.next = at + bytes;
        VEC_PUSH(d->c->arena, &d->ops, op);
    }
}

static void instruction(Decoding *d, char *text, uint32_t at, uint32_t bytes) {
    Op op[2];
    while (*text == '\t' || *text == ' ') text++;
    for (char *s = text; *s; s++) // tabs and comments are not the parser's concern
        if (*s == '\t') *s = ' ';
    char *comment = strstr(text, "//");
    if (comment) *comment = 0;
    const char *kept = NULL;
    if (d->edit) kept = d->edit->edit(d->edit->ctx, d->lines, at, text);
    kept = arena_strdup(d->c->arena, kept ? kept : text);
    d->lines++;
    push(d, op, gcn_read(d->table, d->c, kept, op), at, bytes);
}

// Where branches go. The distance counts words from the next instruction.
static void link_branches(Decoding *d) {
    for (int i = 0; i < d->ops.n; i++) {
        Op *op = &d->ops.data[i];
        if (op->problem || !(op->row->flags & ROW_BRANCH)) continue;
        int64_t to = (int64_t)op->next + 4 * (int16_t)op->src[0].value - d->c->text;
        bool good = to >= 0 && to < d->c->text_bytes && d->c->op_at[to / 4] >= 0;
        op->target = good ? d->c->op_at[to / 4] : 0;
        if (!good) op->problem = "branches to where no instruction starts";
    }
}

bool gcn_decode(GcnCode *c, const GcnEdit *edit, GcnError *e) {
    Decoding d = {.c = c, .table = gcn_table(c->arena), .edit = edit};
    LLVMDisasmContextRef dis = disassembler(c);
    char text[512];
    if (!dis) {
        snprintf(e->text, sizeof e->text, "this LLVM has no disassembler for %s", c->target);
        return false;
    }
    c->op_at = ARENA_ARRAY(c->arena, int, c->text_bytes / 4 + 1);
    for (uint32_t i = 0; i <= c->text_bytes / 4; i++) c->op_at[i] = -1;
    for (uint32_t at = c->text, end = c->text + c->text_bytes; at + 4 <= end;) {
        size_t n = LLVMDisasmInstruction(dis, c->image + at, end - at, at, text, sizeof text);
        if (!n) snprintf(text, sizeof text, ".undecodable");
        instruction(&d, text, at, n ? (uint32_t)n : 4);
        at += n ? (uint32_t)n : 4;
    }
    LLVMDisasmDispose(dis);
    Op beyond = {.text = "the end of the code", .problem = "runs past the end of the code"};
    beyond.at = beyond.next = c->text + c->text_bytes;
    VEC_PUSH(c->arena, &d.ops, beyond);
    link_branches(&d);
    c->op = d.ops.data;
    c->nops = d.ops.n;
    return true;
}

GcnCode *gcn_open(Arena *a, const void *hsaco, size_t n, const GcnEdit *edit, GcnError *e) {
    GcnCode *c = ARENA_NEW(a, GcnCode);
    c->arena = a;
    e->text[0] = 0;
    return gcn_object(c, hsaco, n, e) && gcn_decode(c, edit, e) ? c : NULL;
}

const char *gcn_target(const GcnCode *c) { return c->target; }

const GcnKernel *gcn_kernel(const GcnCode *c, const char *name) {
    for (int i = 0; i < c->nkernels; i++)
        if (strcmp(c->kernels[i].name, name) == 0) return &c->kernels[i];
    return NULL;
}

bool gcn_arg(const GcnKernel *k, uint32_t index, GcnArg *out) {
    if (index >= k->nargs) return false;
    *out = k->arg[index];
    return true;
}

uint32_t gcn_kernarg_bytes(const GcnKernel *k) { return k->kernarg; }
