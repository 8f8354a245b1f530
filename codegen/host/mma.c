// mma.c: matrix products as register blocks.
//
// In: an mma op. Out: loops around one block of accumulators. One operand, V, is contiguous along
// an axis X of the result; of the other, S, single elements are broadcast from where they lie:
//
//     scores    S^T[N][M] = K Q^T       X = M    V = q as [D][M]    S = k, rows N
//     output    O^T[E][M] += V^T P^T    X = M    V = p as [N][M]    S = v, rows E
//
//     for rows in blocks of 6: for X in blocks of 4 vectors:
//         for c: load 4 vectors of V; for each row: broadcast an element of S, 4 multiply-adds
//
// The block's size fills the register file: rows x vectors accumulators, the vectors of V and one
// broadcast. Where no operand is contiguous along the result (a contraction over the lanes),
// vectors run along the contracted axis and are summed at the end.
#include "codegen/host/host.h"

typedef struct Product {
    const TileOp *op;
    const TileValue *out, *sum; // sum: NULL to start from 0
    const TileValue *v, *s;     // the vectors' operand and the broadcast one
    int along, rows, inner;     // axes; rows may be -1
    int lanes;
    Val index[TILE_MAX_AXES];
} Product;

static Val shifted(Cg *cg, Val i, int64_t by) { return cg_add(cg, i, cg_i64(cg, by)); }

// ---- one block: nr rows x nv vectors of accumulators

enum { UNROLL = 2 }; // steps side by side: what counts the loop takes issue slots from the products

typedef struct Block {
    Product *p;
    int nr, nv;
    Val row, col; // first of each
    Val acc[HOST_MAX_ROWS][HOST_MAX_VECTORS];
} Block;

static void block_index(Cg *cg, Block *b, int r, int v) {
    Product *p = b->p;
    if (p->rows >= 0) p->index[p->rows] = shifted(cg, b->row, r);
    p->index[p->along] = shifted(cg, b->col, (int64_t)v * p->lanes);
}

static void block_start(Cg *cg, Block *b) {
    Product *p = b->p;
    for (int r = 0; r < b->nr; r++)
        for (int v = 0; v < b->nv; v++) {
            block_index(cg, b, r, v);
            b->acc[r][v] = p->sum ? host_load(cg, p->sum, p->index, p->lanes, p->along)
                                  : LLVMConstNull(cg_vector(cg->f32, p->lanes));
        }
}

// One step along the contracted axis: the vectors are loaded once, each row's element is broadcast.
static void block_step(Cg *cg, Block *b) {
    Product *p = b->p;
    Val vec[HOST_MAX_VECTORS];
    for (int v = 0; v < b->nv; v++) {
        block_index(cg, b, 0, v);
        vec[v] = host_load(cg, p->v, p->index, p->lanes, p->along);
    }
    for (int r = 0; r < b->nr; r++) {
        block_index(cg, b, r, 0);
        Val s = cg_splat(cg, host_load(cg, p->s, p->index, 1, -1), p->lanes);
        for (int v = 0; v < b->nv; v++) b->acc[r][v] = host_fma(cg, s, vec[v], b->acc[r][v]);
    }
}

static void block_loop(Cg *cg, Block *b) {
    Product *p = b->p;
    Val phi[HOST_MAX_ROWS][HOST_MAX_VECTORS];
    int steps = host_extent(cg, p->inner) % UNROLL ? 1 : UNROLL;
    HostLoop l = host_loop(cg, host_extent(cg, p->inner), steps);
    for (int r = 0; r < b->nr; r++)
        for (int v = 0; v < b->nv; v++)
            b->acc[r][v] = phi[r][v] = host_loop_phi(cg, &l, b->acc[r][v]);
    for (int i = 0; i < steps; i++) {
        p->index[p->inner] = shifted(cg, l.i, i);
        block_step(cg, b);
    }
    for (int r = 0; r < b->nr; r++)
        for (int v = 0; v < b->nv; v++) host_loop_next(cg, &l, phi[r][v], b->acc[r][v]);
    host_loop_end(cg, &l);
}

static void block(Cg *cg, Product *p, Val row, int nr, Val col, int nv) {
    Block b = {.p = p, .nr = nr, .nv = nv, .row = row, .col = col};
    block_start(cg, &b);
    block_loop(cg, &b);
    for (int r = 0; r < nr; r++)
        for (int v = 0; v < nv; v++) {
            block_index(cg, &b, r, v);
            host_store(cg, p->out, p->index, b.acc[r][v]);
        }
}

static void block_row(Cg *cg, Product *p, Val row, int nr, int nv) {
    HostLoop l = host_loop(cg, host_extent(cg, p->along), (int64_t)nv * p->lanes);
    block(cg, p, row, nr, l.i, nv);
    host_loop_end(cg, &l);
}

static void blocks(Cg *cg, Product *p) {
    int vectors = host_extent(cg, p->along) / p->lanes;
    int nv = host_of(cg)->registers >= 32 ? HOST_MAX_VECTORS : 2;
    while (vectors % nv) nv--;
    int most = (host_of(cg)->registers - nv - 1) / nv;
    if (most > HOST_MAX_ROWS) most = HOST_MAX_ROWS;
    int rows = p->rows >= 0 ? host_extent(cg, p->rows) : 1;
    int whole = rows / most * most;
    if (whole) {
        HostLoop l = host_loop(cg, whole, most);
        block_row(cg, p, l.i, most, nv);
        host_loop_end(cg, &l);
    }
    if (rows > whole) block_row(cg, p, cg_i64(cg, whole), rows - whole, nv);
}

// ---- anything else: some results along one axis at a time, in vectors along the contracted axis where both
// operands allow it

enum { MOST_ELEMENTS = 6 }; // as many sums as wait for no multiply-add of their own

// The results [from, from + n) along `across`; -1: the one.
static void elements(Cg *cg, Product *p, int across, Val from, int n) {
    const TileValue *x = p->op->args.data[0], *y = p->op->args.data[1];
    bool vectors = host_stride1(cg, x) == p->inner && host_stride1(cg, y) == p->inner;
    int lanes = vectors ? host_width(cg, p->inner) : 1;
    Val sum[MOST_ELEMENTS], next[MOST_ELEMENTS];
    HostLoop l = host_loop(cg, host_extent(cg, p->inner), lanes);
    for (int i = 0; i < n; i++)
        sum[i] = host_loop_phi(cg, &l, LLVMConstNull(cg_vector(cg->f32, lanes)));
    p->index[p->inner] = l.i;
    for (int i = 0; i < n; i++) {
        if (across >= 0) p->index[across] = shifted(cg, from, i);
        Val a = host_load(cg, x, p->index, lanes, p->inner),
            b = host_load(cg, y, p->index, lanes, p->inner);
        next[i] = host_fma(cg, a, b, sum[i]);
    }
    for (int i = 0; i < n; i++) host_loop_next(cg, &l, sum[i], next[i]);
    host_loop_end(cg, &l);
    for (int i = 0; i < n; i++) {
        if (across >= 0) p->index[across] = shifted(cg, from, i);
        Val all = host_sum(cg, next[i]);
        if (p->sum) all = cg_fadd(cg, all, host_load(cg, p->sum, p->index, 1, -1));
        host_store(cg, p->out, p->index, all);
    }
}

static void all_elements(Cg *cg, Product *p, int across) {
    int extent = across < 0 ? 1 : host_extent(cg, across), n = MOST_ELEMENTS;
    while (extent % n) n--;
    HostLoop l = host_loop(cg, extent, n);
    elements(cg, p, across, l.i, n);
    host_loop_end(cg, &l);
}

// ---- which is what

// The axis of vectors: contiguous in the result and in one operand, absent from the other.
static bool find_vectors(Cg *cg, Product *p) {
    const TileValue *x = p->op->args.data[0], *y = p->op->args.data[1];
    p->along = host_stride1(cg, p->out);
    if (p->along < 0 || (tile_has_axis(x, p->along) && tile_has_axis(y, p->along))) return false;
    p->v = tile_has_axis(x, p->along) ? x : y;
    p->s = p->v == x ? y : x;
    p->lanes = host_width(cg, p->along);
    if (p->lanes == 1 || host_stride1(cg, p->v) != p->along) return false;
    p->rows = -1;
    for (int i = 0; i < p->out->rank; i++) {
        int a = p->out->axis[i];
        if (a != p->along && tile_has_axis(p->s, a) && !tile_has_axis(p->v, a)) p->rows = a;
    }
    return true;
}

// ---- a function for each shape

// Binds the values to the function's parameters while its body is built; strides that are constants
// stay so.
typedef struct Rebound {
    const TileValue *v;
    HostPlace place;
} Rebound;

static Rebound rebind(Cg *cg, const TileValue *v, Val mem, Val *strides) {
    HostPlace *p = host_place(cg, v);
    Rebound r = {v, *p};
    p->mem = mem;
    for (int i = 0; i < v->rank; i++)
        if (!LLVMIsConstant(p->stride[i])) p->stride[i] = strides[i];
    return r;
}

static void name_strides(Cg *cg, Text *name, const TileValue *v) {
    const HostPlace *p = host_place(cg, v);
    for (int i = 0; i < v->rank; i++) {
        bool known = LLVMIsAConstantInt(p->stride[i]) != NULL;
        text_printf(name, "_%c%d", 'a' + v->axis[i], host_extent(cg, v->axis[i]));
        if (known) text_printf(name, "s%lld", LLVMConstIntGetSExtValue(p->stride[i]));
    }
}

// Out, sum (out again where it is made in place), the vectors' operand, the broadcast one and its
// strides; of a vectors' operand that is a view its strides, too.
enum { OUT, SUM, VECTORS, SINGLES, STRIDE0, STRIDE1, PARAMS, OF_VIEW = PARAMS + 2 };

static int params_of(Cg *cg, const Product *p) {
    return host_place(cg, p->v)->view ? OF_VIEW : PARAMS;
}

static void build_function(Cg *cg, Product *p, HostFunction *f, bool in_place) {
    Val arg[OF_VIEW], *strides = &arg[STRIDE0];
    for (int i = 0; i < params_of(cg, p); i++) arg[i] = LLVMGetParam(f->fn, (unsigned)i);
    Rebound r[4];
    int n = 0;
    r[n++] = rebind(cg, p->out, arg[OUT], NULL);
    if (p->sum && p->sum != p->out)
        r[n++] = rebind(cg, p->sum, in_place ? arg[OUT] : arg[SUM], NULL);
    r[n++] = rebind(cg, p->v, arg[VECTORS], &arg[PARAMS]);
    r[n++] = rebind(cg, p->s, arg[SINGLES], strides);
    blocks(cg, p);
    while (n-- > 0) *host_place(cg, r[n].v) = r[n].place;
    host_function_end(cg, f);
}

// Two operands of rank 2, and a sum that is no view: what attention is made of. Vectors of a view are taken over the lanes. The loops over partial and over full tiles then share one function.
static bool simple(Cg *cg, const Product *p) {
    if (p->out->rank > 2 || p->v->rank > 2 || p->s->rank > 2 || p->v == p->s) return false;
    if (host_place(cg, p->v)->view && p->inner != host_of(cg)->lane_axis) return false;
    return !p->sum || !host_place(cg, p->sum)->view;
}

static void call_blocks(Cg *cg, Product *p) {
    const HostPlace *out = host_place(cg, p->out), *s = host_place(cg, p->s);
    const HostPlace *sum = p->sum ? host_place(cg, p->sum) : NULL;
    bool in_place = sum && sum->slot == out->slot;
    Text name = text_new(cg->arena);
    text_printf(&name, "attn.mma%s", !sum ? "" : in_place ? "_in" : "_sum");
    name_strides(cg, &name, p->out);
    name_strides(cg, &name, p->v);
    name_strides(cg, &name, p->s);
    Ty params[OF_VIEW] = {cg->ptr, cg->ptr, cg->ptr, cg->ptr, cg->i64, cg->i64, cg->i64, cg->i64};
    HostFunction f;
    if (host_function(cg, &f, name.s, params, params_of(cg, p)))
        build_function(cg, p, &f, in_place);
    Val one = cg_i64(cg, 1), null = LLVMConstNull(cg->ptr);
    const HostPlace *v = host_place(cg, p->v);
    Val args[OF_VIEW] = {
        out->mem, sum && !in_place ? sum->mem : null, v->mem, s->mem, one, one, one, one};
    for (int i = 0; i < p->s->rank; i++) args[STRIDE0 + i] = s->stride[i];
    for (int i = 0; i < p->v->rank; i++) args[PARAMS + i] = v->stride[i];
    host_call(cg, &f, args, params_of(cg, p));
}

void host_mma(Cg *cg, const TileOp *op) {
    Product p = {
        .op = op, .out = op->results.data[0], .sum = op->args.n > 2 ? op->args.data[2] : NULL};
    const TileValue *x = op->args.data[0], *y = op->args.data[1];
    for (int i = 0; i < x->rank; i++)
        if (tile_has_axis(y, x->axis[i]) && !tile_has_axis(p.out, x->axis[i])) p.inner = x->axis[i];
    for (int a = 0; a < TILE_MAX_AXES; a++) p.index[a] = cg_i64(cg, 0);
    host_bind(cg, p.out);
    bool vectors = find_vectors(cg, &p);
    int across = p.out->rank ? p.out->axis[p.out->rank - 1] : -1;
    HostLoop loops[TILE_MAX_RANK];
    int n = 0;
    for (int i = 0; i < p.out->rank; i++) {
        int a = p.out->axis[i];
        if (vectors ? a == p.along || a == p.rows : a == across) continue;
        loops[n] = host_loop(cg, host_extent(cg, a), 1);
        p.index[a] = loops[n++].i;
    }
    if (vectors && simple(cg, &p))
        call_blocks(cg, &p);
    else if (vectors)
        blocks(cg, &p);
    else
        all_elements(cg, &p, across);
    while (n > 0) host_loop_end(cg, &loops[--n]);
}
