// args.c: a kernel's argument list, and its values.
//
// In: a scheduled kernel. Out: cg->args, everything the kernel may ask for: the address and strides
// of every tensor it touches, the sizes and scalars its expressions name; in a fixed order
// (tensors, sizes, scalars), so that equal programs give equal code. Holds afterwards: cg_size,
// cg_pointer, cg_stride and cg_scalar give values that dominate the whole body.
#include "codegen/cg.h"

#include <assert.h>
#include <string.h>

typedef struct Used {
    Cg *cg;
    bool *tensor, *size, *divides, *scalar, *stored;
    ExMemo seen; // expressions that were walked already
    bool mask;
} Used;

static void use_expr(Used *u, const Ex *e);

static void use_tensor(Used *u, int t) {
    if (u->tensor[t]) return;
    u->tensor[t] = true;
    const TileTensor *tensor = &u->cg->p->tensors.data[t];
    for (int d = 0; d < tensor->rank; d++) use_expr(u, tensor->extent[d]);
}

static bool is_launch_size(const Cg *cg, const Ex *e) {
    return ex_is_sym(e, SYM_SIZE, -1) && !cg->p->sizes.data[e->index].own;
}

// On NVIDIA's GPUs a division is 30 instructions one after the other. An offset may be below 0, no other size is. Kernels of a recurrence
// divide: LLVM does not take addresses apart that stand on a division, and those of a state would spill 700 bytes.
static void use_divisor(Used *u, const Ex *e) {
    if (u->cg->target->kind != KIND_NVPTX || u->cg->p->recurrence || !is_launch_size(u->cg, e))
        return;
    u->divides[e->index] |= e->index != SIZE_Q_OFFSET;
}

static void use_node(void *ctx, const Ex *e) {
    Used *u = ctx;
    if ((e->op == EX_DIV || e->op == EX_MOD) && e->type == EX_I32) use_divisor(u, e->args[1]);
    if (e->op == EX_LOAD) use_tensor(u, u->cg->p->inputs.data[e->input]);
    if (e->op != EX_SYM) return;
    if (e->sym == SYM_SIZE && !u->size[e->index]) {
        u->size[e->index] = true;
        if (u->cg->p->sizes.data[e->index].own) use_expr(u, u->cg->p->sizes.data[e->index].def);
        use_expr(u, u->cg->p->sizes.data[e->index].among);
    }
    if (e->sym == SYM_SCALAR) u->scalar[e->index] = true;
    if (e->sym == SYM_MASK && !u->mask) {
        u->mask = true;
        use_expr(u, u->cg->k->mask);
    }
}

static void use_expr(Used *u, const Ex *e) {
    if (!e || ex_memo_has(&u->seen, e, NULL)) return;
    ex_memo_put(u->cg->arena, &u->seen, e, NULL);
    ex_visit(e, use_node, u);
}

static void use_coord(Used *u, const TileOp *op, int d) {
    use_expr(u, op->coord[d].at);
    use_expr(u, op->coord[d].tile);
    for (int a = 0; a < u->cg->k->naxes && op->each[d]; a++)
        if (op->coord[d].axis == a || (op->coord[d].axis < 0 && tile_has_axis(op->args.data[0], a)))
            use_expr(u, u->cg->k->axes[a].size);
}

static void use_block(Used *u, const TileBlock *b) {
    for (const TileOp *op = b->first; op; op = op->next) {
        bool fills = op->kind == TILE_FILL;
        bool copied = fills && !tile_fills_by_threads(u->cg->p, u->cg->k, op); // by its tensor map
        bool stores = op->kind == TILE_STORE || op->kind == TILE_APPEND;
        if (stores) u->stored[op->tensor] = true;
        if (op->kind == TILE_LOAD || op->kind == TILE_COPY || stores || fills) {
            const TileTensor *t = &u->cg->p->tensors.data[op->tensor];
            if (!copied) use_tensor(u, op->tensor);
            for (int d = 0; d < t->rank; d++) use_expr(u, t->extent[d]);
            for (int d = 0; d < u->cg->p->tensors.data[op->tensor].rank; d++) use_coord(u, op, d);
        }
        for (int i = 0; i < op->outs.n; i++) use_expr(u, op->outs.data[i].body);
        const Ex *own[] = {op->from, op->to, op->index, op->where, op->stage, op->when};
        for (int i = 0; i < 6; i++) use_expr(u, own[i]);
        use_block(u, &op->body);
    }
}

const TileKernel *cg_finishes(const TileProgram *p) {
    for (int i = 0; i < p->kernels.n; i++)
        if (p->kernels.data[i]->schedule.finish && p->kernels.data[i]->purpose == PURPOSE_CONVERT)
            return p->kernels.data[i];
    return NULL;
}

// What the kernel that converts reads and writes, and both tell each other.
static void use_finish(Used *u) {
    const TileKernel *to = cg_finishes(u->cg->p);
    u->size[SIZE_HKV] = true;
    use_tensor(u, u->cg->k->schedule.finish - 1);
    u->stored[u->cg->k->schedule.finish - 1] = true;
    for (const TileOp *op = to->body.first; op; op = op->next) {
        if (op->kind != TILE_LOAD && op->kind != TILE_STORE) continue;
        use_tensor(u, op->tensor);
        u->stored[op->tensor] |= op->kind == TILE_STORE;
    }
}

static void push(Cg *cg, CgArgKind kind, int index, int dim) {
    CgArg a = {kind, index, dim};
    VEC_PUSH(cg->arena, &cg->args, a);
}

void cg_collect_args(Cg *cg) {
    const TileProgram *p = cg->p;
    Used u = {.cg = cg};
    u.tensor = ARENA_ARRAY(cg->arena, bool, p->tensors.n + 1);
    u.stored = cg->stored = ARENA_ARRAY(cg->arena, bool, p->tensors.n + 1);
    u.size = cg->asked = ARENA_ARRAY(cg->arena, bool, p->sizes.n + 1);
    cg->own = ARENA_ARRAY(cg->arena, Val, p->sizes.n + 1);
    u.divides = ARENA_ARRAY(cg->arena, bool, p->sizes.n + 1);
    u.scalar = ARENA_ARRAY(cg->arena, bool, p->inputs.n + 1);
    for (int i = 0; i < cg->k->ngrid; i++) {
        use_expr(&u, cg->k->grid[i].count);
        use_divisor(&u, cg->k->grid[i].count);
        use_expr(&u, cg->k->grid[i].from);
        use_expr(&u, cg->k->grid[i].shared);
        use_expr(&u, cg->k->grid[i].packed);
        use_expr(&u, cg->k->grid[i].batch);
        if (cg->k->grid[i].batch) use_divisor(&u, cg->k->grid[i].batch);
        use_expr(&u, cg->k->grid[i].together);
        use_expr(&u, cg->k->grid[i].ends);
    }
    if (cg->k->where) use_expr(&u, cg->k->where);
    if (cg->k->schedule.section) use_expr(&u, cg->k->schedule.section);
    if (cg->k->schedule.last) use_expr(&u, cg->k->schedule.last);
    if (cg->k->schedule.cluster_rows) use_expr(&u, cg->k->schedule.cluster_rows);
    if (cg->k->schedule.beside) use_expr(&u, cg->k->schedule.beside);
    if (cg->k->schedule.finish) use_finish(&u);
    use_block(&u, &cg->k->body);
    memset(&cg->args, 0, sizeof cg->args);
    for (int t = 0; t < p->tensors.n; t++) {
        if (!u.tensor[t]) continue;
        push(cg, CG_ARG_POINTER, t, 0);
        for (int d = 0; d + 1 < p->tensors.data[t].rank; d++) push(cg, CG_ARG_STRIDE, t, d);
    }
    for (int s = 0; s < p->sizes.n; s++)
        if (u.size[s] && !p->sizes.data[s].own) push(cg, CG_ARG_SIZE, s, 0);
    for (int s = 0; s < p->sizes.n; s++)
        if (u.divides[s]) push(cg, CG_ARG_INVERSE, s, 0);
    for (int i = 0; i < p->inputs.n; i++)
        if (u.scalar[i]) push(cg, CG_ARG_SCALAR, i, 0);
    cg->input = ARENA_ARRAY(cg->arena, Val, p->tensors.n + 1);
    cg->arg = NULL; // the target may add to the list before the first is asked for
}

// An argument is read where the kernel begins, so that its value dominates every use.
static Val argument(Cg *cg, CgArgKind kind, int index, int dim, Ty type) {
    if (!cg->arg) cg->arg = ARENA_ARRAY(cg->arena, Val, cg->args.n);
    int slot = 0;
    for (; slot < cg->args.n; slot++) {
        const CgArg *a = &cg->args.data[slot];
        if (a->kind == kind && a->index == index && a->dim == dim) break;
    }
    assert(slot < cg->args.n && "collected before");
    if (cg->arg[slot]) return cg->arg[slot];
    Blk here = cg_here(cg);
    Val end = LLVMGetBasicBlockTerminator(cg->entry);
    assert(end);
    LLVMPositionBuilderBefore(cg->b, end);
    cg->arg[slot] = cg->hooks->argument(cg, slot, type);
    cg_at(cg, here);
    return cg->arg[slot];
}

Val cg_size(Cg *cg, int size) {
    if (!cg->p->sizes.data[size].own) return argument(cg, CG_ARG_SIZE, size, 0, cg->i32);
    assert(cg->own[size] && "of a sequence that is known");
    return cg->own[size];
}

Val cg_inverse(Cg *cg, const Ex *size) {
    if (!is_launch_size(cg, size)) return NULL;
    for (int slot = 0; slot < cg->args.n; slot++) {
        const CgArg *a = &cg->args.data[slot];
        if (a->kind == CG_ARG_INVERSE && a->index == size->index)
            return argument(cg, CG_ARG_INVERSE, size->index, 0, cg->i64);
    }
    return NULL;
}

Val cg_pointer(Cg *cg, int tensor) { return argument(cg, CG_ARG_POINTER, tensor, 0, cg->ptr); }

Val cg_origin(Cg *cg, const TileOp *op) {
    Val p = cg_pointer(cg, op->tensor), from = cg_i64(cg, op->from_column);
    Ty t = cg_dtype(cg, cg->p->tensors.data[op->tensor].dtype);
    return op->from_column ? cg_element(cg, t, p, from) : p;
}

Val cg_stride(Cg *cg, int tensor, int dim) {
    if (dim == cg->p->tensors.data[tensor].rank - 1) return cg_i64(cg, 1);
    return argument(cg, CG_ARG_STRIDE, tensor, dim, cg->i64);
}

static ExType scalar_type(const Cg *cg, int input) {
    return dtype_reads(cg->p->tensors.data[cg->p->inputs.data[input]].dtype);
}

// In memory: a bool is an i32.
static Val scalar_argument(Cg *cg, int input) {
    Ty t = scalar_type(cg, input) == EX_F32 ? cg->f32 : cg->i32;
    return argument(cg, CG_ARG_SCALAR, input, 0, t);
}

// Where the kernel begins, for functions that are called from it.
Val cg_arguments(Cg *cg) {
    if (cg->arguments) return cg->arguments;
    Val block = cg_alloca(cg, LLVMArrayType2(cg->i64, (uint64_t)cg->args.n), "arguments");
    for (int slot = 0; slot < cg->args.n; slot++) {
        const CgArg *a = &cg->args.data[slot];
        Val v = a->kind == CG_ARG_POINTER   ? cg_pointer(cg, a->index)
                : a->kind == CG_ARG_STRIDE  ? cg_stride(cg, a->index, a->dim)
                : a->kind == CG_ARG_SIZE    ? cg_size(cg, a->index)
                : a->kind == CG_ARG_SCALAR  ? scalar_argument(cg, a->index)
                : a->kind == CG_ARG_INVERSE ? argument(cg, CG_ARG_INVERSE, a->index, 0, cg->i64)
                                            : NULL;
        if (!v) continue;
        Blk here = cg_here(cg);
        LLVMPositionBuilderBefore(cg->b, LLVMGetBasicBlockTerminator(cg->entry));
        Val at = cg_i64(cg, slot);
        cg_store(cg, v, LLVMBuildInBoundsGEP2(cg->b, cg->i64, block, &at, 1, ""));
        cg_at(cg, here);
    }
    return cg->arguments = block;
}

Val cg_scalar(Cg *cg, int input) {
    Val v = scalar_argument(cg, input);
    if (scalar_type(cg, input) != EX_BOOL) return v;
    return cg_icmp(cg, LLVMIntNE, v, cg_i32(cg, 0));
}
