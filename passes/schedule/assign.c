// assign.c: when what is done where all of a block's threads copy and compute (sm_80, AMD).
//
// In: a kernel whose extents are bound and whose loops are split by class. Out: places (TilePlace) and one
// role without a body, which fills the buffers that it reads (expand.c). Operands of products go through
// shared memory; anything else that is loaded is small and goes to registers.
//
// Tiles of k and v have room for one each in shared memory, and each is on its way while the other is
// computed with. The next k is copied once this one has been read:
//
//     v 1:0   s 1:1   k 0:2   maps 1:3 ..   o 1:9
//
// A loop with one such load has two stages of it instead; where a knob says one, the next tile is copied behind the last reader. Where a loop skips steps (`where`), or uses what it
// loads all at once, everything is of one time, what is loaded first.
#include "ir/tile_blocks.h"
#include "passes/schedule/expand.h"
#include "passes/schedule/schedule.h"

typedef VEC(TileOp *) Loads; // of a loop's body

// What it loads is what a loop carries first: in registers.
static bool begins_loop(const TileOp *load) {
    for (const TileOp *op = load->next; op; op = op->next)
        for (int i = 0; i < op->args.n && op->carried.n; i++)
            if (op->args.data[i] == load->results.data[0]) return true;
    return false;
}

// Numbers of a step's queries, which a nest of gradients has in workspace, in whole pieces of 16 bytes.
bool pass_is_vector(const TileProgram *p, const TileOp *op) {
    enum { PIECE = 4 };
    const TileOp *loop = op->block->owner;
    if (op->kind != TILE_LOAD || !loop) return false;
    const TileTensor *t = &p->tensors.data[op->tensor];
    const TileValue *v = op->results.data[0];
    return v->rank == 1 && loop->kind == TILE_LOOP && v->axis[0] == loop->axis &&
           t->role == TENSOR_WORK && t->dtype == DT_F32 &&
           tile_is_multiple(t->extent[t->rank - 1], PIECE);
}

// Numbers of a chunk's positions, or of their channels (vectors.c).
static bool is_of_positions(const TileProgram *p, const TileOp *op) {
    const TileTensor *t = &p->tensors.data[op->tensor];
    bool number = t->role == TENSOR_WORK && op->results.data[0]->rank == 1;
    return p->recurrence && (t->role == TENSOR_INPUT || number) &&
           target_get(p->target)->kind == KIND_NVPTX;
}

bool pass_is_operand(const TileProgram *p, const TileOp *op) {
    if (op->kind != TILE_LOAD || op->results.data[0]->home == HOME_FRAGMENT) return false;
    if (is_of_positions(p, op)) return true;
    if (p->target == TARGET_SM80 && pass_is_vector(p, op)) return true;
    return tile_is_operand(p, &p->tensors.data[op->tensor]) && !begins_loop(op);
}

static Loads loads_of(const TileProgram *p, const TileOp *loop) {
    Loads l = {0};
    for (TileOp *op = loop->body.first; op; op = op->next)
        if (pass_is_operand(p, op)) VEC_PUSH(p->arena, &l, op);
    return l;
}

// Behind which of its loop's operations nothing reads what it loads.
static int last_use(const TileOp *load) {
    int n = 0, last = 0;
    for (const TileOp *op = load->block->first; op; op = op->next, n++) {
        if (op == load) last = n;
        for (int i = 0; i < op->args.n; i++)
            if (tile_source(op->args.data[i]) == load->results.data[0]) last = n;
    }
    return last;
}

// As many tiles as the knob says have two stages, those first that are used last; vectors have.
static int stages_ahead(const TileKernel *k, const Loads *l, int load) {
    int later = 0, own = last_use(l->data[load]);
    if (l->data[load]->results.data[0]->rank == 1) return 2;
    for (int i = 0; i < l->n; i++) {
        if (l->data[i]->results.data[0]->rank == 1) continue;
        int other = last_use(l->data[i]);
        later += other > own || (other == own && i < load);
    }
    return later < k->schedule.knobs.ahead ? 2 : 1;
}

// Two where some loop loads nothing else, or, on NVIDIA devices, computes long with what it loads: makes much together, or gradients.
int pass_stages(const TileProgram *p, const TileKernel *k, int tensor) {
    bool ahead = pass_makes_together(p, k) || k->purpose == PURPOSE_GRADIENTS;
    ahead &= target_get(p->target)->kind == KIND_NVPTX;
    for (const TileOp *loop = tile_next(&k->body, NULL); loop; loop = tile_next(&k->body, loop)) {
        Loads l = loads_of(p, loop);
        if (loop->kind != TILE_LOOP || loop->where) continue;
        for (int i = 0; i < l.n && knobs_say(&k->schedule.knobs, KNOB_ahead); i++)
            if (l.data[i]->tensor == tensor) return stages_ahead(k, &l, i);
        for (int i = 0; i < l.n; i++)
            if ((l.n == 1 || ahead) && l.data[i]->tensor == tensor) return 2;
    }
    return 1;
}

// ---- a body

// Loops stand together: a map between two of them that needs neither goes before the first.
void pass_gather_loops(TileKernel *k) {
    TileOp *first = k->body.first;
    while (first && first->kind != TILE_LOOP) first = first->next;
    TileOp *last = k->body.last;
    while (last && last->kind != TILE_LOOP) last = last->prev;
    if (!first || first == last) return;
    for (TileOp *op = first->next, *next; op != last; op = next) {
        next = op->next;
        bool free = op->kind == TILE_MAP;
        for (TileOp *in = first; free && in != op; in = in->next) free = !pass_uses_result(op, in);
        if (free) pass_move_before(first, op);
    }
}

static bool has_ahead(const Loads *l) {
    bool ahead = false;
    for (int i = 0; i < l->n; i++) ahead |= l->data[i]->results.data[0]->stages > 1;
    return ahead;
}

static TileOp *behind_last_use(const TileOp *load) {
    TileOp *op = load->block->first;
    for (int n = last_use(load); n >= 0; n--) op = op->next;
    return op;
}

static TileOp *before_first_use(const TileOp *load) {
    TileOp *op = load->next;
    while (op->next && !tile_uses(op, load->results.data[0])) op = op->next;
    return op;
}

// Loads are used one after the other: no use of one after the first use of the next.
static bool in_turn(const Loads *l) {
    for (int i = 0; i + 1 < l->n; i++) {
        const TileOp *end = behind_last_use(l->data[i]);
        for (const TileOp *op = l->data[i]; op != end; op = op->next)
            if (tile_uses(op, l->data[i + 1]->results.data[0])) return false;
    }
    return true;
}

// A vector of this step that was copied a step ahead.
static bool is_vector_ahead(const TileProgram *p, const TileOp *op) {
    return pass_is_operand(p, op) && op->results.data[0]->rank == 1 &&
           op->results.data[0]->stages > 1;
}

static bool is_there(const TileProgram *p, const TileOp *loop, const TileValue *v) {
    return !v->def || v->def->block != &loop->body || is_vector_ahead(p, v->def);
}

// Numbers per key that need no tile of the step are made first: with them the mask can be looked at before anything is copied, and what
// others wait for does not stand behind the instructions of copies.
static TileOp *raise_columns(const TileProgram *p, TileOp *loop) {
    TileOp *begin = loop->body.first; // behind the vectors
    for (TileOp *op = begin, *next; op; op = next) {
        next = op->next;
        bool vector = is_vector_ahead(p, op);
        bool free = op->kind == TILE_MAP && op->naxes == 1 && op->axes[0] == loop->axis;
        for (int i = 0; i < op->args.n && free; i++) free = is_there(p, loop, op->args.data[i]);
        if (op == begin && vector)
            begin = next;
        else if (vector || (free && op != begin))
            pass_move_before(begin, op);
        if (free && !vector) begin = op;
    }
    while (begin->kind == TILE_MAP && begin->naxes == 1) begin = begin->next;
    return begin;
}

// Loads stand before `at`, each before its own; the first is of the step to come where others are of `stage` 1.
static void place_body(const TileProgram *p, const Loads *l, TileOp *const *at, TileOp *loop,
                       int stage, int later) {
    int order = 0;
    for (TileOp *op = loop->body.first; op; op = op->next) {
        for (int i = 0; i < l->n; i++)
            if (at[i] == op) pass_place(l->data[i], "all", i ? later : 0, order++);
        if (op->kind != TILE_YIELD && !pass_is_operand(p, op))
            pass_place(op, "all", stage, order++);
    }
}

static void place_loop(TileProgram *p, const TileKernel *k, TileOp *loop, bool late) {
    Loads l = loads_of(p, loop);
    bool chosen = knobs_say(&k->schedule.knobs, KNOB_ahead);
    TileOp **at = ARENA_ARRAY(p->arena, TileOp *, l.n);
    bool two = chosen && pass_is_chunk(k) && has_ahead(&l),
         alone = loop->where || two || !in_turn(&l),
         ahead = alone && !loop->where && l.n && (chosen || l.data[0]->results.data[0]->stages > 1);
    late &= loop->carried.n == 1;
    if (alone) {
        TileOp *first = raise_columns(p, loop);
        for (int i = 0; i < l.n; i++) {
            bool behind = chosen && !loop->where && l.data[i]->results.data[0]->stages == 1;
            at[i] = behind ? behind_last_use(l.data[i]) : first;
        }
    }
    for (int i = 0; i < l.n && !alone;
         i++) { // once the one before was read, the first one as the last
        TileOp **to = &at[(i + 1) % l.n];
        bool again =
            l.n == 1 && l.data[0]->results.data[0]->stages == 1; // where it was read itself
        *to = again  ? behind_last_use(l.data[0])
              : !i   ? loop->body.first
              : late ? before_first_use(l.data[i])
                     : behind_last_use(l.data[i - 1]);
        while (pass_is_operand(p, *to)) *to = (*to)->next;
    }
    place_body(p, &l, at, loop, l.n && (!alone || ahead), l.n && !alone);
}

static void place_block(TileProgram *p, TileKernel *k, TileBlock *b, bool late) {
    bool loops = false;
    for (TileOp *op = b->first; op; op = op->next) {
        if (op->body.first) place_block(p, k, &op->body, late);
        loops |= op->body.first != NULL;
        if (op->kind == TILE_MAP && pass_cooperative(k, op)) pass_to_shared(op);
        if (op->body.first || op->kind == TILE_YIELD) continue;
        pass_place(op, "all", 0, 0);
        if (!pass_is_operand(p, op)) continue;
        op->results.data[0]->home = HOME_SHARED;
        op->results.data[0]->stages = pass_stages(p, k, op->tensor);
    }
    if (b->owner && b->owner->kind == TILE_LOOP && !loops) place_loop(p, k, b->owner, late);
}

// Where nothing is copied ahead, tiles come in the order in which they are used: what is read first is not waited for with all others.
static void order_loads(const TileProgram *p, TileKernel *k) {
    TileOp *first = NULL;
    Loads l = {0};
    for (TileOp *op = k->body.first; op; op = op->next) {
        if (op->kind == TILE_LOAD && !first) first = op;
        if (pass_is_operand(p, op)) VEC_PUSH(p->arena, &l, op);
    }
    for (const TileOp *op = first; op; op = op->next)
        for (int a = 0; a < op->args.n; a++)
            for (int i = 0; i < l.n && op->kind != TILE_BESIDE; i++) {
                TileOp *load = l.data[i];
                if (!load || tile_source(op->args.data[a]) != load->results.data[0]) continue;
                l.data[i] = NULL;
                if (load == first)
                    first = first->next;
                else
                    pass_move_before(first, load);
            }
}

void pass_assign_all(TileProgram *p, TileKernel *k, bool late) {
    pass_gather_loops(k);
    pass_together(p, k);
    pass_put_through(p, k);
    if (k->purpose == PURPOSE_ONE_CHUNK) order_loads(p, k);
    place_block(p, k, &k->body, late);
    TileOp *op = tile_op(p, k, &k->body, TILE_ROLE, (Span){0});
    op->role = "all";
    op->warpgroups = 1;
}
