// tile_verify_own.c: the sizes that sequences have of their own.
//
// In: a program whose sizes, tensors and inputs are known to be there. Out: whether its `own` sizes are made of what they may be made
// of, the tensors that say where rows lie and sizes before them; and are there just where the layout has sequences.
#include "ir/tile_verify.h"

static bool is_foreign(void *ctx, const Ex *e) {
    const TileProgram *p = ctx;
    return e->op == EX_LOAD && !tile_is_index(&p->tensors.data[p->inputs.data[e->input]]);
}

// The sizes that sequences have of their own, over those before them and what launches know.
bool verify_own(Verify *V) {
    const TileProgram *p = V->p;
    bool any = false;
    for (int i = 0; i < p->sizes.n; i++) {
        const TileSize *z = &p->sizes.data[i];
        Scope s = {.what = z->name,
                   .syms = 1u << SYM_SIZE | 1u << SYM_B,
                   .sizes = p->sizes.n,
                   .loads = true,
                   .own = true,
                   .tile = -1};
        if (!z->own) continue;
        any = V->grid_b = true;
        bool good = verify_ex(V, z->def, EX_I32, &s);
        V->grid_b = false;
        if (!good) return false;
        if (z->over && tile_is_own(p, z->def))
            return verify_fail(V, "%s is of several sequences, and uses what one has of its own",
                               z->name);
        Scope launch = {.what = z->name, .syms = 1u << SYM_SIZE, .sizes = p->sizes.n, .tile = -1};
        if (z->over && z->over != EX_ROWSUM && z->over != EX_ROWMAX)
            return verify_fail(V, "%s is no sum and no maximum of sequences", z->name);
        if (z->over && !verify_ex(V, z->among, EX_I32, &launch)) return false;
        if (ex_any(z->def, is_foreign, (void *)p))
            return verify_fail(V, "%s reads what says nothing of rows", z->name);
        for (int j = i; j < p->sizes.n; j++)
            if (p->sizes.data[j].own && ex_uses(z->def, SYM_SIZE, j) &&
                (!tile_is_common(p, j) || tile_is_common(p, i)))
                return verify_fail(V, "%s uses %s, which comes later", z->name,
                                   p->sizes.data[j].name);
    }
    return any == (p->batch != BATCH_DENSE) ||
           verify_fail(V,
                       "sequences have sizes of their own, or rows have another layout, not both");
}

// A dimension over the tiles of all sequences.
bool verify_together(Verify *V, const TileGrid *g, const Scope *s) {
    const TileGrid *b = &V->k->grid[0];
    if (!verify_ex(V, g->batch, EX_I32, s) || !verify_ex(V, g->together, EX_I32, s) ||
        !verify_ex(V, g->ends, EX_I32, s))
        return false;
    return (g->shared && b->sym == SYM_B && ex_is_i32(b->count, 1)) ||
           verify_fail(V, "tiles of all sequences that are not shared, or beside a grid over b");
}
