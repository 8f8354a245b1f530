// sm90_apart.c: scores apart from sums, where v has more columns than a warpgroup has registers for and lies in k.
//
// In: a kernel of an attention as sm90_wide.c has it, v beside k. Out: extents, choices and roles (sm90_roles.c). One warpgroup has the
// scores of 64 rows and all that is a number for each row; two have half of v's columns each:
//
//     producer   fill q, k
//     scores     take q, k   s   maps   give c, p                     at the end: give what the sums are scaled by
//     sums                   take k, c, p   acc * c + p v             take it   store
//
// The first columns of q stay in registers of the scores, as many as these have room for, and a product is two: a product of 48 keys reads
// 2 KB of q and 1.5 KB of keys, and the block's shared memory gives no more. With three stages scores are a step ahead: weights are made
// while the sums of the step before are added up, and a tile of keys is held until its sums are. With two, of 64 keys, scores and sums are
// multiplied at once, and nothing is while weights are made. A warpgroup has whole scores: with half of them it would read q from shared
// memory twice.
#include "passes/schedule/sm90.h"

#include "ir/tile_shared.h"
#include "passes/schedule/resources.h"

enum {
    ROWS = 64,
    KEYS = 48,
    STAGES = 3,
    COLUMNS = 512,
    PAD = 16,
    SUMS = 2, // warpgroups
    PRODUCER_REGISTERS = 32,
    SEEK_REGISTERS = 40,   // where it looks for pages
    REGISTERS = 160,       // of sums
    NUMBERS = 1024,        // of rows, that are handed over
    SLACK = 2048,          // barriers, the tile's number, alignment
    LEAST_REGISTERS = 104, // of scores
    MOST_REGISTERS = 240,
    PANEL = 64,
    PANEL_REGISTERS = 16, // of a thread, for a panel of q
    OTHER_REGISTERS = 28, // of a thread of the scores, beside q, scores and weights
};

// ---- whether

static Extents extents_of(Knobs s) { return (Extents){ROWS, s.keys, PAD, COLUMNS, COLUMNS}; }

static Knobs shape(const TileProgram *p) {
    return (Knobs){.said = knobs_of(FORM_SM90_APART),
                   .warpgroups = SUMS,
                   .registers = REGISTERS,
                   .producer_registers =
                       p->batch == BATCH_PAGED ? SEEK_REGISTERS : PRODUCER_REGISTERS,
                   .keys = KEYS,
                   .stages = STAGES,
                   .cluster = 2};
}

static bool is_sum(const TileProgram *p, const TileKernel *k, const TileValue *v) {
    return tile_has_axis(v, pass_value_axis(p, k));
}

// The load of q, by whose columns products of scores contract most.
static TileOp *load_of_queries(const TileKernel *k) {
    TileOp *widest = NULL;
    for (TileOp *op = k->body.first; op; op = op->next) {
        if (op->kind != TILE_LOAD) continue;
        const Ex *own = k->axes[op->results.data[0]->axis[1]].size;
        const Ex *most = widest ? k->axes[widest->results.data[0]->axis[1]].size : NULL;
        if (!most || own->i > most->i) widest = op;
    }
    return widest;
}

static int shared_bytes(const TileProgram *p, const TileKernel *k, Knobs s) {
    Extents e = extents_of(s);
    s.queries = s.share = 1; // weights go to the sums
    Block b = pass_block(p, k, &e, s, 4);
    return pass_shared(&b) + sm90_stages_of_numbers(s) * NUMBERS + SLACK;
}

static int registers_of_scores(Knobs s) {
    int rest = sm90_left_registers(s, SUMS);
    return rest < MOST_REGISTERS ? rest : MOST_REGISTERS;
}

// Columns of q that registers have room for, where some stay in shared memory.
static int held_columns(const TileKernel *k, Knobs s) {
    const TileOp *q = load_of_queries(k);
    if (!q || q->width) return 0;
    int columns = (int)k->axes[q->results.data[0]->axis[1]].size->i;
    int scores = s.keys / 2, weights = s.keys / 4;
    int room = registers_of_scores(s) - scores - weights - OTHER_REGISTERS;
    int panels = room > 0 ? room / PANEL_REGISTERS : 0, most = (columns - 1) / PANEL;
    return PANEL * (panels < most ? panels : most);
}

static bool fits(const TileProgram *p, const TileKernel *k, Knobs s) {
    int held = held_columns(k, s) * ROWS * dtype_bytes(p->dtype);
    return shared_bytes(p, k, s) - held <= target_get(p->target)->shared_bytes;
}

// Pieces of 16 bytes, of one panel or of whole ones: a copy takes all of them.
static bool has_whole_panels(const TileProgram *p, const TileOp *load) {
    const TileTensor *t = &p->tensors.data[load->tensor];
    int columns = tile_columns(p, load), piece = columns > PANEL ? PANEL : 8;
    return t->dtype == load->results.data[0]->dtype && t->extent[t->rank - 1]->i % piece == 0 &&
           columns % piece == 0 && load->from_column % piece == 0;
}

// Tiles are for products alone, and what the sums take of the scores are weights and numbers of rows.
static bool is_apart(const TileProgram *p, const TileKernel *k) {
    for (const TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op)) {
        if (op->kind == TILE_LOAD && !(sm90_piped(op) && has_whole_panels(p, op))) return false;
        for (int i = 0; op->kind == TILE_MAP && i < op->args.n; i++) {
            const TileValue *v = op->args.data[i];
            if (v->def && (v->def->kind == TILE_LOAD || v->def->kind == TILE_BESIDE)) return false;
            if (v->rank == 2 && is_sum(p, k, op->results.data[0]) && !is_sum(p, k, v)) return false;
        }
    }
    return true;
}

// Rows of pages come in bands, which lie in one page each.
static bool has_whole_bands(const TileProgram *p) {
    return p->batch != BATCH_PAGED || (p->page > 0 && p->page % HOME_ROWS == 0);
}

bool sm90_can_apart(const TileProgram *p, const TileKernel *k) {
    bool may = p->phase == PHASE_FWD && has_whole_bands(p) && !sm90_stays_alone(p, k);
    return may && !p->split.apart && is_apart(p, k) && fits(p, k, shape(p));
}

// ---- packed rows

// Rows of a batch's query, where they are whole tiles; elsewhere those of one tile.
static const Ex *of_a_query(TileProgram *p) {
    ExPool *x = p->pool;
    const Ex *group = ex_2(x, EX_DIV, ex_sym(x, SYM_SIZE, SIZE_HQ, EX_I32),
                           ex_sym(x, SYM_SIZE, SIZE_HKV, EX_I32));
    const Ex *whole = ex_2(x, EX_EQ, ex_2(x, EX_MOD, group, ex_i32(x, ROWS)), ex_i32(x, 0));
    return ex_select(x, whole, group, ex_i32(x, ROWS));
}

// A kernel of packed rows as it is stays for an odd number of tiles: half of the blocks would have none.
void sm90_add_pairs(TileProgram *p, int kernel) {
    const TileKernel *like = p->kernels.data[kernel];
    TileKernel *k = tile_copy_kernel(p, like);
    k->name = arena_printf(p->arena, "%s_pairs", like->name);
    k->schedule.cluster = 2;
    int number = p->kernels.n - 1;
    ExPool *x = p->pool;
    const Ex *rows = k->axes[tile_grid_axis(k)].size,
             *up = ex_2(x, EX_ADD, rows, ex_i32(x, ROWS - 1));
    const Ex *tiles = ex_2(x, EX_DIV, up, ex_i32(x, ROWS));
    if (p->batch) tiles = ex_2(x, EX_DIV, of_a_query(p), ex_i32(x, ROWS)); // those of each sequence
    const Ex *even = ex_2(x, EX_EQ, ex_2(x, EX_MOD, tiles, ex_i32(x, 2)), ex_i32(x, 0));
    VEC(TilePlan) plans = {0};
    for (int i = 0; i < p->plans.n; i++) {
        TilePlan plan = p->plans.data[i], pairs = {.when = even};
        bool has = false;
        if (plan.when) pairs.when = ex_2(x, EX_AND, even, plan.when);
        for (int j = 0; j < plan.kernels.n; j++) {
            bool same = plan.kernels.data[j] == kernel;
            VEC_PUSH(p->arena, &pairs.kernels, same ? number : plan.kernels.data[j]);
            has |= same;
        }
        if (has) VEC_PUSH(p->arena, &plans, pairs);
        VEC_PUSH(p->arena, &plans, plan);
    }
    p->plans.data = plans.data, p->plans.n = plans.n, p->plans.cap = plans.cap;
}

// ---- extents

bool sm90_bind_apart(TileProgram *p, TileKernel *k, const PassOptions *o, Diags *diags) {
    Knobs s = shape(p);
    if (!knobs_take(&s, FORM_SM90_APART, &o->schedule, diags)) return false;
    if (registers_of_scores(s) < LEAST_REGISTERS)
        return diag_refuse(
            diags, (Span){0},
            "schedule: it leaves %d registers for a thread of the scores' warpgroup; at "
            "least %d are needed",
            registers_of_scores(s), LEAST_REGISTERS);
    if (!fits(p, k, s))
        return diag_refuse(diags, (Span){0}, "schedule: it needs more shared memory than there is");
    Extents e = extents_of(s);
    k->schedule = (TileSchedule){.lane_axis = -1, .warps = 4, .min_blocks = 1, .knobs = s};
    pass_bind_all(p, k, &e);
    return true;
}

// ---- roles

void sm90_assign_apart(Sm90 *s) {
    s->gives = s->shape.queries = 1;
    s->nroles = 2;
    s->role[0] = (Sm90Role){"scores", 1, registers_of_scores(s->shape)};
    s->role[1] = (Sm90Role){"sums", SUMS, s->shape.registers};
    sm90_assign_roles(s, load_of_queries(s->k), held_columns(s->k, s->shape));
}
