// recur_segments.c: a sequence in segments that run beside each other, for few sequences and heads.
//
// In: a recurrence's program. Out: sizes, workspace and kernels. A segment maps the state S before it to Phi S + Psi (ir/chunk.h):
//
//     parts        grid b, h, E, G:  Psi, what a segment leaves that begins with no state
//     transitions  grid b, h, F, G:  Phi, what the recurrence without `value` leaves. Without erase it begins with ones, a factor for each
//                                    channel. With erase it begins with the identity, and is kept in two parts, rounded and the rest
//     starts       grid b, h, E:     from segment to segment: leaves the state before each, S = Phi S + Psi, and the last one
//     segments     grid b, h, E, G:  as without segments, from the state before its own
//
// A backward has states_parts and so on, and adjoint_parts, adjoint_starts and adjoint_segments, from the last segment to the first, by
// Phi transposed.
//
// Holds afterwards (pass_set_segments): the launch chooses how many there are, as many as all run at the same time; where they do not
// pay, one, and then a plan without segments is taken.
#include "passes/schedule/resources.h"
#include "passes/tile/recur.h"

#include <string.h>

enum {
    MOST = 64,   // segments of a sequence, which `starts` goes through one after the other
    LEAST = 256, // positions of a segment
};

static bool erases(const Recur *r) { return r->c->erase.elem != NULL; }

// ---- sizes and tensors

// Of all segments; what products read has all heads' segments in one dimension.
static int tensor_of_states(Segments *s, const char *name, Dtype t, bool operand, int rows,
                            int columns) {
    Recur *r = s->r;
    TileTensor x = {.name = name, .role = TENSOR_WORK, .index = s->works++, .dtype = t};
    x.extent[x.rank++] = recur_size(r, RSIZE_B);
    if (!operand) x.extent[x.rank++] = recur_size(r, RSIZE_H);
    x.extent[x.rank++] = recur_size(r, operand ? s->states : s->number);
    x.extent[x.rank++] = ex_i32(r->x, rows);
    x.extent[x.rank++] = ex_i32(r->x, columns);
    return tile_tensor(r->p, x);
}

Segments recur_segments(Recur *r, int works, int chunks) {
    Segments s = {.r = r, .works = works, .chunks = chunks, .transition = {-1, -1}};
    TileProgram *p = r->p;
    const Ex *H = recur_size(r, RSIZE_H), *one = ex_2(r->x, EX_MIN, H, ex_i32(r->x, 1));
    int wanted = pass_size(p, "wanted", one); // until more is known
    p->split.segment = pass_size(p, "segment", recur_size(r, RSIZE_S));
    s.number = pass_size(p, "segments", recur_size(r, wanted));
    if (chunks) p->split.steps = pass_size(p, "segment_chunks", recur_size(r, s.number));
    int D = r->rec->D, Dv = r->rec->Dv;
    Dtype t = r->p->dtype;
    s.part = tensor_of_states(&s, "parts", DT_F32, false, D, Dv);
    s.start = tensor_of_states(&s, "starts", DT_F32, false, D, Dv);
    if (erases(r)) {
        s.states = pass_size(p, "segment_states", ex_2(r->x, EX_MUL, H, recur_size(r, s.number)));
        s.transition[0] = tensor_of_states(&s, "transitions", t, true, D, D);
        if (t != DT_F32) s.transition[1] = tensor_of_states(&s, "transitions_rest", t, true, D, D);
    } else if (r->c->decay) {
        s.transition[0] = tensor_of_states(&s, "transitions", DT_F32, false, 1, D);
        s.factors = p->inputs.n;
        VEC_PUSH(r->arena, &p->inputs, s.transition[0]);
    }
    return s;
}

// ---- the state at a segment

static TileOp *at_segment(Segments *s, TileKind kind, int tensor, int rows, int columns) {
    Recur *r = s->r;
    TileOp *op = tile_op(r->p, r->k, r->block, kind, r->rec->span);
    const Ex *h = ex_symbol(r->x, SYM_H), *g = recur_tile_of(r, s->G);
    bool operand = r->p->tensors.data[tensor].rank == 4;
    const Ex *all = ex_2(r->x, EX_ADD, ex_2(r->x, EX_MUL, h, recur_size(r, s->number)), g);
    int n = 0, axes[2] = {rows, columns};
    op->tensor = tensor;
    op->coord[n++] = (TileCoord){.axis = -1, .at = ex_symbol(r->x, SYM_B)};
    if (!operand) op->coord[n++] = (TileCoord){.axis = -1, .at = h};
    op->coord[n++] = (TileCoord){.axis = -1, .at = operand ? all : g};
    for (int i = 0; i < 2; i++)
        op->coord[n++] = (TileCoord){.axis = axes[i], .at = recur_tile_of(r, axes[i])};
    return op;
}

static void leave(Segments *s, int tensor, TileValue *v) {
    tile_arg(s->r->p, at_segment(s, TILE_STORE, tensor, s->r->D, s->r->E), v);
}

static TileValue *left(Segments *s, const char *name, int tensor, int rows, int columns) {
    Recur *r = s->r;
    uint8_t axes[2] = {(uint8_t)rows, (uint8_t)columns};
    if (rows > columns) axes[0] = (uint8_t)columns, axes[1] = (uint8_t)rows;
    TileOp *op = at_segment(s, TILE_LOAD, tensor, rows, columns);
    return tile_result(r->p, r->k, op, name, r->p->tensors.data[tensor].dtype, axes, 2);
}

TileValue *recur_segment_first(Segments *s, const char *name) {
    return left(s, arena_printf(s->r->arena, "%s0", name), s->start, s->r->D, s->r->E);
}

// ---- kernels of a segment

static void add_axis(Segments *s) {
    Recur *r = s->r;
    s->G = tile_axis(r->k, "G", recur_size(r, s->number), false);
    r->k->axes[s->G].extent = 1;
}

void recur_segment_kernel(Segments *s, const char *name, TilePurpose purpose) {
    recur_kernel(s->r, name, purpose);
    add_axis(s);
    TileKernel *k = s->r->k;
    k->grid[k->ngrid++] =
        (TileGrid){.sym = SYM_TILE, .axis = s->G, .count = recur_size(s->r, s->number)};
}

// ---- what a piece makes of the state before it

static TileValue *begun(Recur *r, const Ex *e) {
    return recur_out(r, recur_open(r, r->D, r->E, -1), "S0", e);
}

static TileValue *next_state(void *ctx, TileValue *state) {
    Recur *r = ctx;
    Write w[2] = {{.elem = NULL}, {.elem = NULL}};
    recur_make_decays(r);
    if (!r->no_values || erases(r)) {
        recur_load_rows(r);
        recur_make_writes(r, w, recur_operand(r, "s", state));
    }
    return recur_new_state(r, w, state);
}

// A backward has kernels for its own chunks, beside the forward's.
static const char *named(const Segments *s, const char *name) {
    return s->chunks ? arena_printf(s->r->arena, "states_%s", name) : name;
}

TileValue *recur_part(Recur *r) {
    TileValue *none = begun(r, recur_number(r, 0));
    return recur_chunks(r, "S", none, ex_symbol(r->x, SYM_STEP), next_state, r);
}

TileValue *recur_transition(Recur *r) {
    r->k->axes[r->E].name = "F";
    r->k->axes[r->E].size = ex_i32(r->x, erases(r) ? r->rec->D : 1);
    const Ex *one = recur_number(r, 1),
             *same = ex_2(r->x, EX_EQ, recur_pos(r, r->D), recur_pos(r, r->E));
    TileValue *all = begun(r, erases(r) ? recur_where(r, same, one) : one);
    r->no_values = true;
    TileValue *phi = recur_chunks(r, "S", all, ex_symbol(r->x, SYM_STEP), next_state, r);
    r->no_values = false;
    return phi;
}

TileValue *recur_adjoint_part(Recur *r, const Ex *index,
                              TileValue *(*chunk)(void *ctx, TileValue *state), void *ctx) {
    return recur_chunks(r, "F", begun(r, recur_number(r, 0)), index, chunk, ctx);
}

static void build_parts(Segments *s) {
    recur_segment_kernel(s, named(s, "parts"), PURPOSE_CHUNK);
    leave(s, s->part, recur_part(s->r));
}

static void build_transitions(Segments *s) {
    Recur *r = s->r;
    recur_segment_kernel(s, named(s, "transitions"), PURPOSE_CHUNK);
    TileValue *phi = recur_transition(r);
    if (!erases(r)) {
        TileOp *op = at_segment(s, TILE_STORE, s->transition[0], r->E, r->D);
        tile_arg(r->p, op, phi);
        return;
    }
    leave(s, s->transition[0], phi);
    if (s->transition[1] < 0) return;
    TileValue *near = recur_operand(r, "near", phi);
    TileOp *map = recur_open(r, r->D, r->E, -1);
    const Ex *rest = ex_2(r->x, EX_SUB, recur_in(r, map, phi), recur_in(r, map, near));
    leave(s, s->transition[1], recur_narrow(r, map, "rest", rest));
}

// ---- from segment to segment

// Phi S + Psi, Phi a factor for each channel. 0 forgets all, also what is infinite.
static TileValue *scaled(Segments *s, TileValue *state, TileValue *part) {
    Recur *r = s->r;
    TileOp *map = recur_open(r, r->D, r->E, -1);
    const Ex *e = recur_in(r, map, state);
    if (s->transition[0] >= 0) {
        const Ex *at[] = {ex_symbol(r->x, SYM_B), ex_symbol(r->x, SYM_H), recur_tile_of(r, s->G),
                          ex_i32(r->x, 0), recur_pos(r, r->D)};
        const Ex *by = ex_load(r->x, s->factors, EX_F32, at, 5, false);
        e = recur_where(r, ex_2(r->x, EX_LT, recur_number(r, 0), by), recur_times(r, e, by));
    }
    return recur_out(r, map, "S", ex_2(r->x, EX_ADD, e, recur_in(r, map, part)));
}

// Phi a matrix, which `back` takes transposed. What is left out is the product of two rests.
static TileValue *multiplied(Segments *s, int F, bool back, TileValue *state, TileValue *part) {
    Recur *r = s->r;
    bool narrow = s->transition[1] >= 0;
    int rows = back ? F : r->D, columns = back ? r->D : F;
    TileValue *phi = left(s, "phi", s->transition[0], rows, columns),
              *near = recur_operand(r, "near", state);
    TileValue *at = recur_beside(r, "near", near, r->D, F);
    TileValue *sum = recur_product(r, "S", phi, at, part, r->D, r->E);
    if (!narrow) return sum;
    TileOp *map = recur_open(r, r->D, r->E, -1);
    const Ex *e = ex_2(r->x, EX_SUB, recur_in(r, map, state), recur_in(r, map, near));
    TileValue *rest = recur_beside(r, "rest", recur_narrow(r, map, "rest", e), r->D, F);
    sum = recur_product(r, "S", phi, rest, sum, r->D, r->E);
    phi = left(s, "phi_rest", s->transition[1], rows, columns);
    return recur_product(r, "S", phi, at, sum, r->D, r->E);
}

typedef struct Start {
    Segments *s;
    int F;
    bool back;
} Start;

static TileValue *next_start(void *ctx, TileValue *state) {
    Start *start = ctx;
    Segments *s = start->s;
    leave(s, s->start, state);
    TileValue *part = left(s, "part", s->part, s->r->D, s->r->E);
    return start->F < 0 ? scaled(s, state, part)
                        : multiplied(s, start->F, start->back, state, part);
}

static void build_starts(Segments *s, bool back, int first, int last) {
    Recur *r = s->r;
    const char *name = back ? "adjoint_starts" : named(s, "starts");
    TileKernel *k = r->k =
        tile_kernel(r->p, arena_printf(r->arena, "%s_%s", r->rec->name, name), PURPOSE_STARTS);
    Start start = {s, -1, back};
    add_axis(s);
    const Ex *D = ex_i32(r->x, r->rec->D), *step = ex_symbol(r->x, SYM_STEP);
    if (erases(r) && !back) start.F = tile_axis(k, "F", D, true); // the matrix's columns come first
    r->D = tile_axis(k, "D", D, true);
    if (erases(r) && back) start.F = tile_axis(k, "F", D, true);
    r->E = tile_axis(k, "E", ex_i32(r->x, r->rec->Dv), false);
    recur_grid(r);
    const Ex *n = recur_size(r, s->number), *end = ex_2(r->x, EX_SUB, n, ex_i32(r->x, 1));
    TileValue *state = recur_loop(r, "S", s->G, recur_first(r, "S", first), n,
                                  back ? ex_2(r->x, EX_SUB, end, step) : step, next_start, &start);
    if (last >= 0) recur_store(r, last, state, r->D);
}

void recur_segment_starts(Segments *s, int first, int last) {
    build_parts(s);
    if (s->transition[0] >= 0) build_transitions(s);
    build_starts(s, false, first, last);
}

// The last chunk of a segment first.
const Ex *recur_segment_index(Segments *s) {
    ExPool *x = s->r->x;
    const Ex *all = recur_size(s->r, s->chunks), *n = recur_size(s->r, s->r->p->split.steps),
             *from = ex_2(x, EX_MUL, recur_tile_of(s->r, s->G), n),
             *to = ex_2(x, EX_MIN, ex_2(x, EX_ADD, from, n), all);
    const Ex *both = ex_2(x, EX_ADD, ex_2(x, EX_MIN, from, all), to);
    return ex_2(x, EX_SUB, ex_2(x, EX_SUB, both, ex_i32(x, 1)), ex_symbol(x, SYM_STEP));
}

void recur_segment_adjoints(Segments *s, int first, int last,
                            TileValue *(*chunk)(void *ctx, TileValue *state), void *ctx) {
    Recur *r = s->r;
    recur_segment_kernel(s, "adjoint_parts", PURPOSE_ADJOINT);
    leave(s, s->part, recur_adjoint_part(r, recur_segment_index(s), chunk, ctx));
    build_starts(s, true, first, last);
}

// ---- how many

static int multiple_of(int a, int b) {
    int n = a;
    while (n % b) n += a;
    return n;
}

// What several kernels have as one: a multiple of all chunks.
static int unit_of(const TileProgram *p) {
    int unit = 1;
    for (int i = 0; i < p->kernels.n; i++) {
        const TileKernel *k = p->kernels.data[i];
        if (pass_split_axis(p, k) < 0) continue;
        for (int a = 0; a + 1 < k->naxes; a++)
            if (k->axes[a + 1].beside == a) unit = multiple_of(unit, k->axes[a].extent);
    }
    return unit;
}

static const Ex *over(ExPool *x, const Ex *n, const Ex *by) { // rounded up
    return ex_2(x, EX_DIV, ex_2(x, EX_SUB, ex_2(x, EX_ADD, n, by), ex_i32(x, 1)), by);
}

// Two matrices of a large state have no room: then there are no segments. Their kernels are the last ones.
static bool drop_large(TileProgram *p) {
    bool large = false;
    for (int i = 0; i < p->kernels.n; i++) {
        const TileKernel *k = p->kernels.data[i];
        Extents e = {0}; // it has all
        Block b = pass_block(p, k, &e, k->schedule.knobs, k->schedule.warps);
        large |= k->purpose == PURPOSE_STARTS && p->target != TARGET_HOST &&
                 pass_shared(&b) > target_get(p->target)->shared_bytes;
    }
    for (int i = p->plans.n; large && i-- > 0;) {
        const TilePlan *plan = &p->plans.data[i];
        int first = 0;
        while (first < plan->kernels.n &&
               pass_split_axis(p, p->kernels.data[plan->kernels.data[first]]) < 0)
            first++;
        if (first == plan->kernels.n) continue;
        p->kernels.n = plan->kernels.data[first];
        memmove(&p->plans.data[i], plan + 1, (size_t)(--p->plans.n - i) * sizeof *plan);
    }
    return large;
}

static bool erases_in(const TileKernel *k) {
    for (const TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op))
        if (op->kind == TILE_INVERT) return true;
    return false;
}

// As many as run at once, where most multiprocessors would be idle: each position is gone through twice, and with erase three times.
// Blocks that share a multiprocessor take longer for each.
static void set_number(TileProgram *p, const TileKernel *k) {
    ExPool *x = p->pool;
    const Ex *one = ex_i32(x, 1), *unit = ex_i32(x, unit_of(p)), *n = ex_symbol(x, SYM_WORKERS),
             *positions = ex_sym(x, SYM_SIZE, RSIZE_S, EX_I32),
             *size = ex_sym(x, SYM_SIZE, p->split.segment, EX_I32);
    int number = pass_split_size(p, k);
    int blocks = k->schedule.min_blocks > 1 ? k->schedule.min_blocks : 1;
    const Ex *least = ex_i32(x, erases_in(k) ? 3 : 2);
    if (blocks > 1) n = ex_2(x, EX_MUL, n, ex_i32(x, blocks));
    for (int i = 0; i < 3; i++) n = ex_2(x, EX_DIV, n, k->grid[i].count);
    if (blocks > 1) n = ex_select(x, ex_2(x, EX_LT, n, ex_i32(x, 2 * blocks)), one, n);
    n = ex_2(x, EX_MIN, n, ex_2(x, EX_DIV, positions, ex_i32(x, LEAST)));
    n = ex_2(x, EX_MIN, n, ex_i32(x, MOST));
    n = ex_select(x, ex_2(x, EX_LT, n, least), one, n);
    const Ex *wanted = p->sizes.data[number].def;
    p->sizes.data[wanted->index].def = ex_simplify(x, n);
    const Ex *units = over(x, over(x, positions, unit), wanted);
    p->sizes.data[p->split.segment].def =
        ex_simplify(x, ex_2(x, EX_MAX, ex_2(x, EX_MUL, units, unit), unit));
    p->sizes.data[number].def = ex_simplify(x, ex_2(x, EX_MAX, over(x, positions, size), one));
    if (p->split.steps) p->sizes.data[p->split.steps].def = ex_2(x, EX_DIV, size, unit);
}

void pass_set_segments(TileProgram *p) {
    if (!p->split.segment || drop_large(p)) return;
    set_number(p, p->kernels.data[p->kernels.n - 1]); // that goes through the segments
}
