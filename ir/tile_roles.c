// tile_roles.c: what tensors are for (tile_roles.def), and what follows from it for a program of a phase.
#include "ir/tile.h"

#define READ USE_READ
#define WRITTEN USE_WRITTEN
#define BOTH USE_BOTH
#define UNUSED USE_UNUSED
static const TensorTraits traits[TENSOR_ROLE_COUNT] = {
#define ROLE(e, name, indexed, side, fwd, bwd, matrix, sums, optional)                             \
    {name, indexed, SIDE_##side, {bwd, fwd}, matrix, sums, optional},
#include "tile_roles.def"
#undef ROLE
};

const TensorTraits *tensor_traits(TensorRole role) { return &traits[role]; }

bool tile_is_backward(const TileProgram *p) {
    return p->phase == PHASE_BWD || p->phase == PHASE_PART_BWD || p->phase == PHASE_PIECE_BWD;
}

unsigned tile_use(const TileProgram *p, TensorRole role) {
    return traits[role].use[!tile_is_backward(p)];
}

bool tile_is_read(const TileProgram *p, const TileTensor *t) {
    return tile_use(p, t->role) & USE_READ;
}

bool tile_is_written(const TileProgram *p, const TileTensor *t) {
    return tile_use(p, t->role) & USE_WRITTEN;
}

bool tile_is_result(const TileProgram *p, const TileTensor *t) {
    return tile_use(p, t->role) == USE_WRITTEN;
}

bool tensor_may_be_absent(TensorRole role) {
    return role == TENSOR_STATE0 || role == TENSOR_ROWS0 || role == TENSOR_DSTATE;
}

bool tile_is_matrix(const TileTensor *t) { return traits[t->role].matrix || t->rows; }

bool tile_is_operand(const TileProgram *p, const TileTensor *t) {
    bool products = p->phase != PHASE_COMBINE;     // which merges what is read element by element
    int rank = p->batch && !p->recurrence ? 3 : 4; // rows of sequences have no batch
    bool made = (p->chunks || p->split.segment || tile_is_backward(p)) && t->role == TENSOR_WORK &&
                t->rank == rank && t->dtype == p->dtype;
    bool sums = p->phase == PHASE_PART && t->role == TENSOR_STATE0; // a loop begins with them
    return products && !sums && !t->exact && (tile_is_matrix(t) || made) && tile_is_read(p, t);
}

bool tile_is_index(const TileTensor *t) {
    return t->role >= TENSOR_Q_START && t->role <= TENSOR_SK_ALL;
}

bool tile_may_index(const TileProgram *p, const TileTensor *t) {
    if (tile_is_index(t)) return true;
    if (t->role == TENSOR_INPUT || (t->role == TENSOR_WORK && t->dtype == DT_I32)) return true;
    bool row = traits[t->role].side == SIDE_QUERIES || t->role == TENSOR_WORK;
    return (p->split.segment || p->chunks || tile_is_backward(p)) && row &&
           !traits[t->role].matrix && tile_is_read(p, t);
}

bool tile_is_zeroed(const TileProgram *p, int tensor) {
    bool stored = false;
    for (int i = 0; i < p->kernels.n; i++) {
        if (p->kernels.data[i]->schedule.finish == 1 + tensor) return true;
        const TileBlock *b = &p->kernels.data[i]->body;
        for (const TileOp *op = tile_next(b, NULL); op; op = tile_next(b, op))
            if (op->kind == TILE_STORE && op->tensor == tensor) {
                if (op->add) return true;
                stored = true;
            }
    }
    return !stored && p->tensors.data[tensor].role == TENSOR_GRAD;
}
