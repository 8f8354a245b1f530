// artifact.c: what an artifact says about itself.
//
// In: tile programs and the launches of the kernels that were built from them. Out: an AbiMeta in
// the arena, for abi_write or abi_ptx. Holds afterwards: sizes, tensors, kernels and plans have the
// numbers they have in the programs, so that expressions carry over; expressions are postfix, over
// the sizes.
#include "codegen/cg.h"
#include "runtime/abi.h"

#include <assert.h>
#include <string.h>

#define DTYPE(e, name, bytes, reads)                                                               \
    _Static_assert((int)DT_##e == (int)ABI_##e, "the artifact's numbering");
#include "ir/dtypes.def"
#undef DTYPE
_Static_assert((int)SIZE_FREE == (int)ABI_SIZE_FREE, "the fixed sizes");
_Static_assert((int)SIZE_LIMIT == (int)ABI_MAX_SIZE,
               "what the passes count on is what launches may have");

// ---- expressions

typedef VEC(AbiInsn) Code;

static const uint8_t op_codes[EX_OP_COUNT] = {
    // 0: not an op of launch expressions (const and sizes apart)
    [EX_ADD] = ABI_OP_ADD,       [EX_SUB] = ABI_OP_SUB, [EX_MUL] = ABI_OP_MUL,
    [EX_DIV] = ABI_OP_DIV,       [EX_MOD] = ABI_OP_MOD, [EX_MIN] = ABI_OP_MIN,
    [EX_MAX] = ABI_OP_MAX,       [EX_NEG] = ABI_OP_NEG, [EX_EQ] = ABI_OP_EQ,
    [EX_NE] = ABI_OP_NE,         [EX_LT] = ABI_OP_LT,   [EX_LE] = ABI_OP_LE,
    [EX_AND] = ABI_OP_AND,       [EX_OR] = ABI_OP_OR,   [EX_NOT] = ABI_OP_NOT,
    [EX_SELECT] = ABI_OP_SELECT,
};

static void emit(Arena *a, Code *code, uint8_t op, int64_t arg) {
    AbiInsn i = {op, arg};
    VEC_PUSH(a, code, i);
}

// Arguments first. Launch expressions are small; one that is not is refused by abi_verify, so the
// walk may stop early.
static void postfix(Arena *a, Code *code, const Ex *e) {
    if (code->n > ABI_MAX_CODE) return;
    if (e->op == EX_CONST) return emit(a, code, ABI_OP_CONST, e->i);
    if (e->op == EX_SYM && e->sym == SYM_SIZE) return emit(a, code, ABI_OP_SIZE, e->index);
    if (e->op == EX_SYM && e->sym == SYM_WORKERS) return emit(a, code, ABI_OP_WORKERS, 0);
    for (int i = 0; i < e->nargs; i++) postfix(a, code, e->args[i]);
    if (e->op == EX_CONV) return; // between i32 and bool, which are both "not 0"
    assert(op_codes[e->op] && "an operation of launch expressions");
    emit(a, code, op_codes[e->op], 0);
}

static AbiExpr launch_expr(Arena *a, const Ex *e) {
    Code code = {0};
    if (e) postfix(a, &code, e);
    return (AbiExpr){(uint32_t)code.n, code.data};
}

// ---- tables

static const uint8_t abi_roles[TENSOR_ROLE_COUNT] = {
#define ROLE(e, ...) [TENSOR_##e] = ABI_ROLE_##e,
#include "ir/tile_roles.def"
#undef ROLE
};
_Static_assert((int)PHASE_BWD == (int)ABI_BWD && (int)PHASE_PIECE_BWD == (int)ABI_PIECE_BWD,
               "the artifact's numbering");
_Static_assert((int)BATCH_PAGED == (int)ABI_LAYOUT_PAGED, "the artifact's numbering");

static void sizes(Arena *a, const TileProgram *p, AbiVariant *v) {
    v->nsizes = (uint32_t)p->sizes.n;
    v->sizes = ARENA_ARRAY(a, AbiSize, p->sizes.n);
    for (int i = 0; i < p->sizes.n; i++)
        if (!p->sizes.data[i].own)
            v->sizes[i] = (AbiSize){p->sizes.data[i].name, launch_expr(a, p->sizes.data[i].def)};
}

// What a kernel of inputs alone stores: a map of tiles.
static bool reads_inputs_only(const TileProgram *p, const TileKernel *k) {
    for (const TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op)) {
        bool touches = op->kind == TILE_LOAD || op->kind == TILE_STORE || op->kind == TILE_COPY ||
                       op->kind == TILE_FILL || op->kind == TILE_APPEND;
        TensorRole role = touches ? p->tensors.data[op->tensor].role : TENSOR_INPUT;
        if (role != TENSOR_INPUT && role != TENSOR_WORK) return false;
    }
    return true;
}

static bool is_kept(const TileProgram *p, int tensor) {
    bool stored = false;
    for (int k = 0; k < p->kernels.n && !p->recurrence; k++) {
        if (!tile_stores_to(p->kernels.data[k], tensor)) continue;
        if (!reads_inputs_only(p, p->kernels.data[k])) return false;
        stored = true;
    }
    return stored;
}

static bool counts(const CgLaunch *l) {
    for (int i = 0; i < l->nargs; i++)
        if (l->args[i].kind == CG_ARG_COUNTER) return true;
    return false;
}

// One word for all kernels of the variant: each leaves it 0 (codegen/nvptx/sm90_frame.c: words). It stands behind
// the program's tensors.
static void add_counter(Arena *a, const TileProgram *p, const CgLaunch *made, AbiVariant *v) {
    AbiInsn one = {ABI_OP_CONST, 1};
    bool any = false;
    for (int i = 0; i < p->kernels.n; i++) any |= counts(&made[i]);
    if (!any) return;
    AbiTensor *t = &v->tensors[v->ntensors++];
    *t = (AbiTensor){.name = "tiles.done", .role = ABI_ROLE_WORK, .dtype = ABI_I32, .rank = 1};
    t->flags = ABI_ZEROED | ABI_RESTORED;
    t->extent[0] = (AbiExpr){1, ARENA_ARRAY(a, AbiInsn, 1)};
    t->extent[0].code[0] = one;
}

// Rows that are no multiple of 16 bytes are copied by elements, wherever they begin.
static bool by_elements(const TileTensor *t) {
    const Ex *columns = t->rank ? t->extent[t->rank - 1] : NULL;
    bool known = columns && columns->op == EX_CONST;
    return known && (int64_t)columns->i * dtype_bytes(t->dtype) % 16 != 0;
}

static void tensors(Arena *a, const TileProgram *p, AbiVariant *v) {
    v->ntensors = (uint32_t)p->tensors.n;
    v->tensors = ARENA_ARRAY(a, AbiTensor, p->tensors.n + 1);
    for (int i = 0; i < p->tensors.n; i++) {
        const TileTensor *t = &p->tensors.data[i];
        AbiTensor *to = &v->tensors[i];
        *to = (AbiTensor){.name = t->name,
                          .role = abi_roles[t->role],
                          .dtype = (uint8_t)t->dtype,
                          .rank = (uint8_t)t->rank};
        if (by_elements(t)) to->align = (uint8_t)dtype_bytes(t->dtype);
        if (t->bare_q) to->flags |= ABI_BARE_Q;
        if (t->rows) to->flags |= ABI_ROWS;
        if (t->rows && !to->align && target_get(p->target)->kind != KIND_HOST) to->align = 16;
        bool of_parts = t->role >= TENSOR_Q_FIRST && t->role <= TENSOR_SK_ALL;
        bool may_lack = t->role == TENSOR_Q_OFFSET || t->role == TENSOR_STATE_INDEX || of_parts ||
                        (t->role == TENSOR_Q_START && (p->recurrence || p->batch == BATCH_PAGED));
        if (may_lack) to->flags |= ABI_OPTIONAL;
        // A part leaves its state, and a combination takes one.
        bool result = tile_is_result(p, t) && p->phase != PHASE_PART;
        bool absent = tensor_may_be_absent(t->role) && p->phase != PHASE_COMBINE;
        if (tensor_traits(t->role)->optional && (result || absent)) to->flags |= ABI_OPTIONAL;
        if (tile_is_zeroed(p, i)) to->flags |= ABI_ZEROED;
        if (t->role == TENSOR_WORK && is_kept(p, i)) to->flags |= ABI_KEPT;
        for (int d = 0; d < t->rank; d++) to->extent[d] = launch_expr(a, t->extent[d]);
    }
}

static AbiArg arg_of(const TileProgram *p, const CgArg *g) {
    switch (g->kind) {
    case CG_ARG_POINTER: return (AbiArg){ABI_ARG_POINTER, 0, (uint16_t)g->index};
    case CG_ARG_STRIDE: return (AbiArg){ABI_ARG_STRIDE, (uint8_t)g->dim, (uint16_t)g->index};
    case CG_ARG_SIZE: return (AbiArg){ABI_ARG_SIZE, 0, (uint16_t)g->index};
    case CG_ARG_INVERSE: return (AbiArg){ABI_ARG_INVERSE, 0, (uint16_t)g->index};
    case CG_ARG_SCALAR: return (AbiArg){ABI_ARG_SCALAR, 0, (uint16_t)p->inputs.data[g->index]};
    case CG_ARG_TENSOR_MAP: return (AbiArg){ABI_ARG_MAP, 0, (uint16_t)g->index};
    case CG_ARG_COUNTER: return (AbiArg){ABI_ARG_POINTER, 0, (uint16_t)p->tensors.n};
    }
    assert(!"an argument");
    return (AbiArg){0, 0, 0};
}

// min(workers, tiles), for clusters so many times their blocks. The blocks count tiles in i32, up to one turn of all blocks past the last:
// the expression overflows, so that the launch is refused, where there are 2^30 tiles or more.
static AbiExpr persistent_grid(Arena *a, const TileProgram *p, const TileKernel *k, int cluster) {
    static const int64_t room = (int64_t)1 << 33;
    Code code = {0};
    emit(a, &code, ABI_OP_WORKERS, 0);
    if (cluster > 1) emit(a, &code, ABI_OP_CONST, cluster);
    if (cluster > 1) emit(a, &code, ABI_OP_DIV, 0);
    for (int d = 0; d < k->ngrid; d++) {
        postfix(a, &code, tile_points(p->pool, k, d));
        if (d > 0) emit(a, &code, ABI_OP_MUL, 0);
    }
    emit(a, &code, ABI_OP_CONST, room);
    emit(a, &code, ABI_OP_MUL, 0);
    emit(a, &code, ABI_OP_CONST, room);
    emit(a, &code, ABI_OP_DIV, 0);
    emit(a, &code, ABI_OP_MIN, 0);
    if (cluster > 1) emit(a, &code, ABI_OP_CONST, cluster);
    if (cluster > 1) emit(a, &code, ABI_OP_MUL, 0);
    return (AbiExpr){(uint32_t)code.n, code.data};
}

static void grid(Arena *a, const TileProgram *p, const TileKernel *k, const CgLaunch *l,
                 AbiKernel *to) {
    to->ngrid = (uint32_t)(l->persistent ? 1 : k->ngrid);
    if (l->persistent)
        to->grid[0] = persistent_grid(a, p, k, l->cluster);
    else
        for (int d = 0; d < k->ngrid; d++) to->grid[d] = launch_expr(a, k->grid[d].count);
}

static void maps(Arena *a, const TileProgram *p, const CgLaunch *l, AbiKernel *to) {
    to->nmaps = (uint32_t)l->nmaps;
    to->maps = ARENA_ARRAY(a, AbiMap, l->nmaps + 1);
    for (int i = 0; i < l->nmaps; i++) {
        const CgMap *m = &l->maps[i];
        to->maps[i] = (AbiMap){.tensor = (uint16_t)m->tensor,
                               .swizzle = (uint8_t)m->swizzle,
                               .ends = (uint8_t)m->ends};
        for (int d = 0; d < p->tensors.data[m->tensor].rank; d++)
            to->maps[i].box[d] = (uint16_t)m->box[d];
    }
}

static void kernels(Arena *a, const TileProgram *p, const CgLaunch *made, AbiVariant *v) {
    v->nkernels = (uint32_t)p->kernels.n;
    v->kernels = ARENA_ARRAY(a, AbiKernel, p->kernels.n);
    for (int i = 0; i < p->kernels.n; i++) {
        const TileKernel *k = p->kernels.data[i];
        const CgLaunch *l = &made[i];
        AbiKernel *to = &v->kernels[i];
        *to = (AbiKernel){.symbol = l->symbol,
                          .threads = (uint32_t)l->threads,
                          .shared = (uint32_t)l->shared,
                          .cluster = (uint32_t)l->cluster};
        grid(a, p, k, l, to);
        maps(a, p, l, to);
        to->nargs = (uint32_t)l->nargs;
        to->args = ARENA_ARRAY(a, AbiArg, l->nargs + 1);
        for (int d = 0; d < l->nargs; d++) to->args[d] = arg_of(p, &l->args[d]);
    }
}

// Inputs that no kernel reads may be left out: a combination reads few.
static void free_inputs(AbiVariant *v) {
    bool read[ABI_MAX_TENSORS] = {false};
    for (uint32_t k = 0; k < v->nkernels; k++)
        for (uint32_t i = 0; i < v->kernels[k].nargs; i++)
            if (!abi_is_of_size(&v->kernels[k].args[i]))
                read[v->kernels[k].args[i].index % ABI_MAX_TENSORS] = true;
    for (uint32_t i = 0; i < v->ntensors && i < ABI_MAX_TENSORS; i++)
        if (v->tensors[i].role == ABI_ROLE_INPUT && !read[i]) v->tensors[i].flags |= ABI_OPTIONAL;
}

static void plans(Arena *a, const TileProgram *p, AbiVariant *v) {
    v->nplans = (uint32_t)p->plans.n;
    v->plans = ARENA_ARRAY(a, AbiPlan, p->plans.n);
    for (int i = 0; i < p->plans.n; i++) {
        const TilePlan *plan = &p->plans.data[i];
        uint16_t *list = ARENA_ARRAY(a, uint16_t, plan->kernels.n + 1);
        for (int k = 0; k < plan->kernels.n; k++) list[k] = (uint16_t)plan->kernels.data[k];
        v->plans[i] = (AbiPlan){launch_expr(a, plan->when), (uint32_t)plan->kernels.n, list};
    }
}

// ---- layouts in which sequences have sizes of their own: those are no sizes of a launch

static void renumber_expr(const AbiExpr *e, const int *place) {
    for (uint32_t i = 0; i < e->n; i++)
        if (e->code[i].op == ABI_OP_SIZE) e->code[i].arg = place[e->code[i].arg];
}

static void renumber(AbiVariant *v, const int *place) {
    for (uint32_t i = 0; i < v->nsizes; i++) renumber_expr(&v->sizes[i].def, place);
    for (uint32_t i = 0; i < v->ntensors; i++)
        for (int d = 0; d < v->tensors[i].rank; d++) renumber_expr(&v->tensors[i].extent[d], place);
    for (uint32_t i = 0; i < v->nkernels; i++) {
        const AbiKernel *k = &v->kernels[i];
        for (uint32_t d = 0; d < k->ngrid; d++) renumber_expr(&k->grid[d], place);
        for (uint32_t a = 0; a < k->nargs; a++)
            if (abi_is_of_size(&k->args[a])) k->args[a].index = (uint16_t)place[k->args[a].index];
    }
    for (uint32_t i = 0; i < v->nplans; i++) renumber_expr(&v->plans[i].when, place);
}

// The layout's own first, then all that are given, then those that are computed.
static int rank_of(const TileProgram *p, int size) {
    AbiSize fixed[ABI_MOST_FIXED];
    AbiFamily family = p->recurrence ? ABI_RECURRENCE : ABI_ATTENTION;
    int n = (int)abi_fixed_count(family, (AbiLayout)p->batch);
    abi_fixed_sizes(family, (AbiLayout)p->batch, fixed);
    for (int i = 0; i < n; i++)
        if (!strcmp(fixed[i].name, p->sizes.data[size].name)) return i;
    return p->sizes.data[size].def ? n + 1 : n;
}

static void place_sizes(Arena *a, const TileProgram *p, AbiVariant *v) {
    int *place = ARENA_ARRAY(a, int, p->sizes.n + 1);
    AbiSize *sorted = ARENA_ARRAY(a, AbiSize, p->sizes.n + 1);
    uint32_t n = 0;
    for (int rank = 0; rank <= ABI_MOST_FIXED + 1; rank++)
        for (int i = 0; i < p->sizes.n; i++) {
            if (p->sizes.data[i].own || rank_of(p, i) != rank) continue;
            sorted[n] = v->sizes[i];
            place[i] = (int)n++;
        }
    v->nsizes = n;
    v->sizes = sorted;
    renumber(v, place);
}

bool cg_metadata(Cg *cg, const TileProgram *const *programs, int count, struct AbiMeta *out) {
    static const uint8_t codes[] = {
        [KIND_HOST] = ABI_CODE_HOST, [KIND_NVPTX] = ABI_CODE_PTX, [KIND_AMDGPU] = ABI_CODE_HSACO};
    *out = (AbiMeta){.code = codes[cg->target->kind],
                     .dtype = (uint8_t)programs[0]->dtype,
                     .target = cg->target->name};
    out->nvariants = (uint32_t)count;
    out->variants = ARENA_ARRAY(cg->arena, AbiVariant, count);
    const CgLaunch *made = cg->made.data;
    for (int i = 0; i < count; i++) {
        const TileProgram *p = programs[i];
        AbiVariant *v = &out->variants[i];
        *v = (AbiVariant){.name = p->name,
                          .family = p->recurrence ? ABI_RECURRENCE : ABI_ATTENTION,
                          .phase = (uint8_t)p->phase,
                          .layout = (uint8_t)p->batch,
                          .page = (uint32_t)p->page,
                          .D = (uint32_t)p->D,
                          .Dv = (uint32_t)p->Dv};
        sizes(cg->arena, p, v);
        tensors(cg->arena, p, v);
        add_counter(cg->arena, p, made, v);
        kernels(cg->arena, p, made, v);
        if (p->phase == PHASE_COMBINE) free_inputs(v);
        plans(cg->arena, p, v);
        if (p->batch) place_sizes(cg->arena, p, v);
        made += p->kernels.n;
    }
    const char *wrong = abi_verify(out);
    if (wrong)
        diag_error(cg->diags, (Span){0},
                   "what an artifact can say of itself does not hold this program: %s", wrong);
    return !wrong;
}
