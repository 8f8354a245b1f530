// root.c: sums that are multiplied by less than f32's exponents can say.
//
// In: maps in which a number for each row, a power, is what sums are multiplied by. Out: the number is the
// power's root, and they are multiplied twice:
//
//     %c = map { exp2(e) }          %l = map { fma(%l_old, %c, %l_tile) }
//     %c = map { exp2(e * 0.5) }    %l = map { fma(%l_old * %c, %c, %l_tile) }
//
// A sum may be 2^86 and a power 2^-140: the power alone would be 0.
#include "passes/schedule/sm90.h"

static const Ex *root_of(ExPool *x, const Ex *e) { // NULL: not a power
    if (ex_is_f32(e, 0.0f) || ex_is_f32(e, 1.0f)) return e;
    if (e->op == EX_EXP2) return ex_1(x, EX_EXP2, ex_2(x, EX_MUL, e->args[0], ex_f32(x, 0.5f)));
    if (e->op != EX_SELECT) return NULL;
    const Ex *yes = root_of(x, e->args[1]), *no = root_of(x, e->args[2]);
    return yes && no ? ex_select(x, e->args[0], yes, no) : NULL;
}

typedef struct Use {
    const Ex *factor;
    bool other; // than to multiply with it
} Use;

static int multiplied(const Ex *e, const Ex *factor) { // which argument; -1: neither of two
    if (e->op != EX_MUL && e->op != EX_FMA) return -1;
    return e->args[0] == factor ? 1 : e->args[1] == factor ? 0 : -1;
}

static void look(void *ctx, const Ex *e) {
    Use *u = ctx;
    int with = multiplied(e, u->factor);
    for (int i = 0; i < e->nargs; i++)
        u->other |= e->args[i] == u->factor && (with < 0 || i != 1 - with);
}

static const Ex *twice(void *ctx, ExPool *x, const Ex *e) {
    const Use *u = ctx;
    int with = multiplied(e, u->factor);
    if (with < 0) return e;
    const Ex *once = ex_2(x, EX_MUL, e->args[with], u->factor);
    const Ex *args[] = {once, u->factor, e->op == EX_FMA ? e->args[2] : NULL};
    return ex_op(x, e->op, args, e->nargs);
}

static bool reads(const TileOp *op, const TileValue *v, Use *use, TileProgram *p) {
    for (int i = 0; i < op->args.n; i++)
        if (op->args.data[i] == v) return use->factor = ex_sym(p->pool, SYM_PARAM, i, EX_F32), true;
    return false;
}

static bool multiplies_only(TileProgram *p, const TileBlock *b, const TileValue *v) {
    Use use = {0};
    for (const TileOp *op = b->first; op; op = op->next) {
        if (!reads(op, v, &use, p)) continue;
        use.other |= op->kind != TILE_MAP;
        for (int i = 0; i < op->outs.n; i++) {
            use.other |= op->outs.data[i].body == use.factor;
            ex_visit(op->outs.data[i].body, look, &use);
        }
    }
    return use.factor && !use.other;
}

void sm90_root_factors(TileProgram *p, TileBlock *b) {
    Use use = {0};
    for (TileOp *op = b->first; op; op = op->next)
        for (int i = 0; i < op->outs.n; i++) {
            TileValue *v = op->results.data[i];
            const Ex *root = root_of(p->pool, op->outs.data[i].body);
            if (!root || op->outs.data[i].reduce != EX_CONST || v->rank != 1 ||
                !multiplies_only(p, b, v))
                continue;
            op->outs.data[i].body = root;
            for (TileOp *in = op->next; in; in = in->next)
                for (int r = 0; r < in->outs.n && reads(in, v, &use, p); r++)
                    in->outs.data[r].body = ex_map(p->pool, in->outs.data[r].body, twice, &use);
        }
}
