// chunk_back.c: the derivatives of a recurrence's clauses, for the backward of its chunked form (ir/chunk.h).
//
// In: a chunked form. Out: of each piece of it, an element or a number of the row, its derivatives by the elements of q, k, v and
// o, by their squared norms, and by each place of an input that is marked `grad`. What adds up the pieces' gradients is
// passes/tile/recur_back.c.
//
//     write[0].value = dt![b, h, t]        ->  by dt![b, h, t]: 1
//     log2 decay = dt![b, h, t] * A![h]    ->  by dt![b, h, t]: A![h]; by A![h]: dt![b, h, t]
#include "passes/derive/chunk.h"
#include "passes/derive/differentiate.h"
#include "passes/simplify/simplify.h"

enum { DEEPEST = 50 };

typedef struct Slopes {
    const ChunkBack *back;
    ExPool *p;
    VEC(const Ex *) read; // of inputs, in the order in which they appear
} Slopes;

static const RecProgram *program(const Slopes *s) { return s->back->c->rec; }

static int grad_input(const RecProgram *rec, const Ex *e) {
    bool reads = e->op == EX_LOAD || (e->op == EX_SYM && e->sym == SYM_SCALAR);
    int input = !reads ? -1 : e->op == EX_LOAD ? e->input : e->index;
    return input >= 0 && rec->inputs.data[input].grad ? input : -1;
}

static void find_read(void *ctx, const Ex *e) {
    Slopes *s = ctx;
    if (grad_input(program(s), e) < 0) return;
    for (int i = 0; i < s->read.n; i++)
        if (s->read.data[i] == e) return;
    VEC_PUSH(program(s)->arena, &s->read, e);
}

static void add(Slopes *s, ChunkSlopes *to, const Ex *e, const Ex *of, int input) {
    const Ex *by = ex_derivative(s->p, e, of);
    if (!by) return;
    by = ex_simplify(s->p, by);
    if (ex_is_f32(by, 0)) return;
    ChunkSlope slope = {of, input, by};
    VEC_PUSH(program(s)->arena, to, slope);
}

static void differentiate(ChunkBack *back, ChunkPieceId id, const Ex *e) {
    static const ExSym symbols[] = {SYM_Q, SYM_SQQ, SYM_K, SYM_SQK, SYM_V, SYM_SQV, SYM_O, SYM_SQO};
    Slopes s = {.back = back, .p = back->c->rec->pool};
    if (!e) return;
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++)
        if (ex_uses(e, symbols[i], 0)) add(&s, &back->piece[id], e, ex_symbol(s.p, symbols[i]), -1);
    ex_visit(e, find_read, &s);
    for (int i = 0; i < s.read.n; i++)
        add(&s, &back->piece[id], e, s.read.data[i], grad_input(back->c->rec, s.read.data[i]));
}

static bool is_grad(void *ctx, const Ex *e) { return grad_input(ctx, e) >= 0; }

static bool has_gradient(const RecProgram *rec, const Ex *e) {
    return ex_any(e, is_grad, (void *)rec);
}

// Where e is 0, so is its derivative. `powers`: and it is a power, whose exponent has the derivative.
static bool vanishes(const RecProgram *rec, const Ex *e, bool powers, int depth) {
    if (!has_gradient(rec, e)) return true;
    if (depth == DEEPEST) return false;
    switch ((int)e->op) {
    case EX_EXP:
    case EX_EXP2: return true;
    case EX_SIGMOID: return !powers;
    case EX_MUL:
        return vanishes(rec, e->args[0], powers, depth + 1) &&
               vanishes(rec, e->args[1], powers, depth + 1);
    case EX_SELECT:
        return !powers && vanishes(rec, e->args[1], powers, depth + 1) &&
               vanishes(rec, e->args[2], powers, depth + 1);
    default: return false;
    }
}

ChunkBack *pass_chunk_back(const Chunk *c) {
    const RecProgram *rec = c->rec;
    ChunkBack *back = ARENA_NEW(rec->arena, ChunkBack);
    const ChunkWrite *last = &c->write[c->nwrites - 1];
    *back = (ChunkBack){.c = c};
    back->by_exponent = c->decay && vanishes(rec, rec->decay, true, 0);
    back->at_zero = c->decay && !vanishes(rec, rec->decay, false, 0);
    differentiate(back, PIECE_QUERY, c->query.elem);
    differentiate(back, PIECE_QUERY_N, c->query.number);
    differentiate(back, PIECE_ERASE, c->erase.elem);
    differentiate(back, PIECE_ERASE_N, c->erase.number);
    differentiate(back, PIECE_WRITE, c->write[0].elem);
    if (c->nwrites > 1) differentiate(back, PIECE_WRITE2, c->write[1].elem);
    differentiate(back, PIECE_VALUE_N, c->write[0].value);
    differentiate(back, PIECE_ERASED_N, last->erased);
    differentiate(back, PIECE_VALUE, c->value);
    differentiate(back, PIECE_BONUS, c->bonus);
    if (c->decay) differentiate(back, PIECE_DECAY, back->by_exponent ? c->decay : rec->decay);
    differentiate(back, PIECE_OUTPUT, rec->output);
    return back;
}
