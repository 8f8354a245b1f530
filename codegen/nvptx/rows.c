// rows.c: inputs with a number for each query and key (a dense bias), read beside the scores.
//
// In: loads of maps over rows and columns that are proved inside, end with the column's position and are
// otherwise the same for a whole row. Out: two neighbours at a time, by one load where the row's address allows it: rows begin anywhere, so each
// thread asks, once for each of its rows. And what the loop's next tile reads, asked for into L2 a step
// ahead, by lines: a thread of a quad has every fourth of its rows'.
#include "codegen/nvptx/nvptx.h"

#include <assert.h>

enum { LINE = 128 };

static const TileTensor *tensor_of(Cg *cg, const Ex *load) {
    return &cg->p->tensors.data[cg->p->inputs.data[load->input]];
}

// ---- pairs

static Val is_aligned(Cg *cg, Val p, int bytes) {
    Val bits = cg_trunc(cg, cg_ptrtoint(cg, p, cg->i64), cg->i32);
    Val is = cg_is(cg, cg_and(cg, bits, cg_i32(cg, bytes - 1)), 0);
    return cg_zext(cg, is, cg->i32);
}

// What either form loads into is 0 before: ptxas takes a register that is defined under a condition alone
// for one that holds something before, and then spills most of them.
static Val load_words(Cg *cg, Val p, int offset, Ty word) {
    Ty both[] = {word, word};
    bool real = word == cg->f32;
    const char *text = arena_printf(
        cg->arena,
        "{\n\t.reg .pred p;\n\tsetp.ne.b32 p, $3, 0;\n\tmov.b32 $0, 0;\n\tmov.b32 $1, 0;\n\t"
        "@p ld.global.nc.v2.b32 {$0,$1}, [$2+%d];\n\t@!p ld.global.nc.b32 $0, [$2+%d];\n\t"
        "@!p ld.global.nc.b32 $1, [$2+%d];\n\t}",
        4 * offset, 4 * offset, 4 * offset + 4);
    Val v[] = {p, is_aligned(cg, p, 8)};
    return cg_asm(cg, LLVMStructTypeInContext(cg->c, both, 2, false), v, 2, text,
                  real ? "=f,=f,l,r" : "=r,=r,l,r", false);
}

static Val load_halves(Cg *cg, Val p, int offset) {
    const char *text = arena_printf(
        cg->arena,
        "{\n\t.reg .pred p;\n\t.reg .b16 a, b;\n\tsetp.ne.b32 p, $2, 0;\n\tmov.b32 $0, 0;\n\t"
        "mov.b32 {a,b}, $0;\n\t@p ld.global.nc.b32 $0, [$1+%d];\n\t@!p ld.global.nc.b16 a, "
        "[$1+%d];\n\t"
        "@!p ld.global.nc.b16 b, [$1+%d];\n\t@!p mov.b32 $0, {a,b};\n\t}",
        2 * offset, 2 * offset, 2 * offset + 2);
    Val v[] = {p, is_aligned(cg, p, 4)};
    return cg_asm(cg, cg->i32, v, 2, text, "=r,l,r", false);
}

static Val half_of(Cg *cg, Dtype t, Val pair, int c) {
    if (dtype_half(t)) return nv_unpack(cg, t, pair, c);
    return LLVMBuildExtractValue(cg->b, pair, (unsigned)c, "");
}

Val nv_read_pair(Cg *cg, NvPairs *pairs, const TileOp *map, const Ex *load, Val first, int offset) {
    Dtype t = tensor_of(cg, load)->dtype;
    Val known = ex_memo_get(&pairs->loaded, load);
    int axis = load->args[load->nargs - 1]->index;
    if (!tile_is_marked(map, TILE_PAIRS) || !tile_reads_row(cg->p, cg->k, map, load, axis))
        return NULL;
    if (offset % 2) return known ? half_of(cg, t, known, 1) : NULL;
    Val pair = dtype_half(t) ? load_halves(cg, first, offset)
                             : load_words(cg, first, offset, cg_dtype(cg, t));
    ex_memo_put(cg->arena, &pairs->loaded, load, pair);
    return half_of(cg, t, pair, 0);
}

// ---- maps that do nothing else

bool nv_reads_rows(Cg *cg, const TileOp *map) {
    const TileValue *v = map->results.n == 1 ? map->results.data[0] : NULL;
    if (!v || !tile_is_marked(map, TILE_PAIRS) || map->outs.data[0].body->op != EX_LOAD)
        return false;
    return dtype_half(v->dtype) && v->dtype == tensor_of(cg, map->outs.data[0].body)->dtype &&
           cg_fragment(cg, v)->each == 2;
}

static Val note_word(Cg *cg, CgElem *elem, const Ex *load, Val first, int offset) {
    CgWalk *m = elem->ctx;
    NvMap *own = m->own;
    (void)load;
    VEC_PUSH(cg->arena, &own->words, ((NvWord){first, offset}));
    return cg_f32(cg, 0);
}

static Val load_word(Cg *cg, const NvWord *w, bool whole) {
    const char *text =
        arena_printf(cg->arena,
                     whole ? "ld.global.nc.b32 $0, [$1+%d];"
                           : "{\n\t.reg .b16 a, b;\n\tld.global.nc.b16 a, [$1+%d];\n\t"
                             "ld.global.nc.b16 b, [$1+%d];\n\tmov.b32 $0, {a,b};\n\t}",
                     2 * w->offset, 2 * w->offset + 2);
    return cg_asm(cg, cg->i32, (Val[]){w->row}, 1, text, "=r,l", false);
}

static Val all_aligned(Cg *cg, const NvWord *w, int n) {
    Val vote[] = {cg_i32(cg, -1), NULL};
    for (int i = 0; i < n; i++) {
        Val is = cg_trunc(cg, is_aligned(cg, w[i].row, 4), cg->i1);
        if (!w[i].offset) vote[1] = vote[1] ? cg_and(cg, vote[1], is) : is;
    }
    return cg_intrinsic(cg, "llvm.nvvm.vote.all.sync", NULL, 0, vote, 2);
}

// All words of the fragment at once, before any is waited for: a branch that a warp takes as one asks how.
void nv_read_rows(Cg *cg, CgWalk *m) {
    const TileOp *op = m->space.op;
    NvMap *own = m->own;
    VEC(Val *) to = {0};
    m->elem.read = note_word;
    m->elem.ctx = m;
    for (int i = 0; i < m->space.n; i++) {
        cg_walk_at(m, i);
        if (m->space.odd) continue;
        cg_elem_begin(cg, &m->elem);
        cg_expr(cg, op->outs.data[0].body, &m->elem);
        VEC_PUSH(cg->arena, &to, cg_walk_register(cg, m, 0));
    }
    assert(own->words.n == to.n);
    Val aligned = all_aligned(cg, own->words.data, to.n);
    Blk way[] = {cg_block(cg, "halves"), cg_block(cg, "words")}, done = cg_block(cg, "row");
    Val *word[2];
    cg_fork(cg, aligned, way[1], way[0]);
    for (int w = 0; w < 2; w++) {
        cg_at(cg, way[w]);
        word[w] = ARENA_ARRAY(cg->arena, Val, to.n);
        for (int i = 0; i < to.n; i++) word[w][i] = load_word(cg, &own->words.data[i], w);
        cg_br(cg, done);
    }
    cg_at(cg, done);
    for (int i = 0; i < to.n; i++)
        *to.data[i] = cg_join(cg, word[0][i], way[0], word[1][i], way[1]);
}

// ---- the next tile

typedef struct Rows {
    Cg *cg;
    const TileOp *map;
    int col_axis;
    VEC(const Ex *) loads;
} Rows;

static void find_rows(void *ctx, const Ex *e) {
    Rows *r = ctx;
    if (e->nargs < 2 || !tile_reads_row(r->cg->p, r->cg->k, r->map, e, r->col_axis)) return;
    for (int i = 0; i < r->loads.n; i++)
        if (r->loads.data[i] == e) return;
    VEC_PUSH(r->cg->arena, &r->loads, e);
}

// The last one again, where there is no other.
static Val next_tile(Cg *cg, const TileOp *loop) {
    Val step = cg->step, next = cg_plus(cg, step, 1);
    cg->step = cg_select(cg, cg_less(cg, next, cg_uniform(cg, loop->to)), next, step);
    Val tile = cg_uniform(cg, loop->index);
    cg->step = step;
    return tile;
}

// In place of the element that `first` is the address of.
static Val prefetch_row(Cg *cg, CgElem *elem, const Ex *load, Val first, int offset) {
    const TileTensor *t = tensor_of(cg, load);
    int axis = load->args[load->nargs - 1]->index;
    int bytes = dtype_bytes(t->dtype) * cg->k->axes[axis].extent;
    (void)elem, (void)offset;
    Val line = cg_times(cg, cg_and(cg, nv_state(cg)->gpu.lane, cg_i32(cg, 3)), LINE);
    for (int at = 0; at < bytes; at += 4 * LINE) {
        Val v[] = {cg_plus(cg, line, at), cg_i32(cg, bytes - 32)};
        Val in = cg_intrinsic(cg, "llvm.umin", &cg->i32, 1, v, 2);
        Val a[] = {cg_element(cg, cg->i8, first, in)};
        cg_asm(cg, cg->void_, a, 1, "prefetch.global.L2 [$0];", "l", false);
    }
    return cg_i32(cg, 0);
}

void nv_prefetch_rows(Cg *cg, const TileOp *map, int col_axis, CgElem row) {
    Rows rows = {.cg = cg, .map = map, .col_axis = col_axis};
    if (!tile_is_marked(map, TILE_AHEAD)) return;
    for (int i = 0; i < map->outs.n; i++) ex_visit(map->outs.data[i].body, find_rows, &rows);
    Val tile = cg->tile[col_axis];
    cg->tile[col_axis] = next_tile(cg, map->block->owner);
    row.read = prefetch_row;
    cg_elem_begin(cg, &row);
    for (int i = 0; i < rows.loads.n; i++) cg_expr(cg, rows.loads.data[i], &row);
    cg->tile[col_axis] = tile;
}
