// sm90_wide.c: values with more columns than a warpgroup has registers for, on Hopper.
//
// In: a kernel of an attention whose v has more than 256 columns, up to 512, before its axes have extents. Out: a tile has 64
// rows and all columns of v. Two warpgroups have half of the keys' scores and half of v's columns each:
//
//     scores [M, N]       reg(..) lane(..) warp(M/16%4, N/32%2)
//     accumulator [M, E]  reg(..) lane(..) warp(M/16%4, E/256%2)
//
// What is reduced over keys goes from one to the other, and so do weights, through shared memory. There is no producer: all threads
// copy, as on sm_80 (assign.c), the next tile of keys while the scores are made. Where v is the first columns of what k loads
// (`share`), it is not loaded again, but lies beside it.
#include "passes/schedule/sm90.h"

#include "passes/schedule/resources.h"
#include "passes/schedule/sm80_few.h"

enum {
    ROWS = 64,
    WARPS = 8,
    GROUP_COLUMNS = 256, // of an accumulator: 128 registers of a thread
    COLUMNS = 2 * GROUP_COLUMNS,
    PAD = 16, // of other columns
    KEYS = 64,
    LEAST_KEYS = 32,
    MOST_LOADS = 4,
};

// ---- whether

static bool multiplies_narrow(const TileKernel *k) {
    bool any = false;
    for (const TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op)) {
        if (op->kind == TILE_MAP && op->naxes > 2) return false; // scores element by element
        if (op->kind != TILE_MMA) continue;
        const TileValue *left = op->args.data[0], *right = op->args.data[1];
        if (!dtype_half(left->dtype) || !dtype_half(right->dtype)) return false;
        if (!right->def || right->def->kind != TILE_LOAD)
            return false; // it was made of what is stored
        any = true;
    }
    return any;
}

static Extents extents_of(Knobs s) { return (Extents){ROWS, s.keys, PAD, COLUMNS, COLUMNS}; }

static bool fits(const TileProgram *p, const TileKernel *k, Knobs s) {
    Extents e = extents_of(s);
    Block b = pass_block(p, k, &e, s, WARPS);
    return pass_shared(&b) <= target_get(p->target)->shared_bytes;
}

static Knobs shape(int keys, int ahead) {
    return (Knobs){
        .said = knobs_of(FORM_SM90_WIDE), .keys = keys, .ahead = ahead, .groups = 1, .share = 1};
}

bool sm90_is_wide(const TileProgram *p, const TileKernel *k) {
    int axis = pass_value_axis(p, k);
    bool one = k->purpose == PURPOSE_ATTENTION || k->purpose == PURPOSE_PART;
    if (!one || axis < 0 || tile_grid_axis(k) < 0) return false;
    if (k->axes[axis].extent || !k->axes[axis].whole) return false;
    bool wide = p->Dv > GROUP_COLUMNS && p->Dv <= COLUMNS && dtype_half(p->dtype);
    return wide && !pass_makes_together(p, k) && !sm90_has_long_body(k) && multiplies_narrow(k) &&
           !sm80_changes_query(k) && fits(p, k, shape(LEAST_KEYS, 0));
}

// ---- v beside k

static bool same_place(const TileProgram *p, const TileOp *a, const TileOp *b) {
    int last = p->tensors.data[a->tensor].rank - 1;
    for (int d = 0; d < last; d++)
        if (a->coord[d].axis != b->coord[d].axis || a->coord[d].at != b->coord[d].at ||
            a->coord[d].tile != b->coord[d].tile || a->each[d] != b->each[d])
            return false;
    return a->coord[last].at == b->coord[last].at;
}

// A load of the same rows and no fewer columns, which stands before it.
static TileOp *wider(const TileProgram *p, const TileKernel *k, const TileOp *load) {
    const TileValue *v = load->results.data[0];
    for (TileOp *op = load->block->first; op != load; op = op->next) {
        if (op->kind != TILE_LOAD || op->tensor != load->tensor || v->rank != 2) continue;
        const TileValue *w = op->results.data[0];
        if (w->axis[0] != v->axis[0] || !same_place(p, op, load)) continue;
        const TileAxis *all = &k->axes[w->axis[1]], *few = &k->axes[v->axis[1]];
        bool begins = op->from_column == load->from_column && !op->width == !load->width;
        begins = begins && all->whole && few->whole && few->size->i <= all->size->i;
        if (begins && pass_padded(all->size->i, PAD) >= COLUMNS) return op;
    }
    return NULL;
}

void sm90_lay_beside(TileProgram *p, TileKernel *k) {
    for (TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op)) {
        TileOp *first = op->kind == TILE_LOAD ? wider(p, k, op) : NULL;
        if (!first) continue;
        const TileValue *v = op->results.data[0];
        TileOp *beside = pass_op_before(p, op, TILE_BESIDE);
        tile_arg(p, beside, first->results.data[0]);
        TileValue *same = tile_result(p, k, beside, v->name, v->dtype, v->axis, v->rank);
        tile_replace(&k->body, v, same);
        tile_unlink(op);
        op = beside;
    }
}

// ---- extents

bool sm90_bind_wide(TileProgram *p, TileKernel *k, const PassOptions *o, Diags *diags) {
    Knobs s = shape(KEYS, MOST_LOADS);
    while (!fits(p, k, s)) s = s.ahead ? shape(s.keys, s.ahead - 1) : shape(LEAST_KEYS, MOST_LOADS);
    if (!knobs_take(&s, FORM_SM90_WIDE, &o->schedule, diags)) return false;
    if (!fits(p, k, s))
        return diag_refuse(diags, (Span){0}, "schedule: it needs more shared memory than there is");
    Extents e = extents_of(s);
    pass_bind_all(p, k, &e);
    k->schedule = (TileSchedule){.lane_axis = -1, .warps = WARPS, .min_blocks = 1, .knobs = s};
    return true;
}

// ---- weights

// They go to their product through shared memory, where both warpgroups have theirs.
void sm90_share_wide(TileProgram *p, TileKernel *k) {
    for (TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op)) {
        TileValue *weights = op->kind == TILE_MMA ? op->args.data[0] : NULL;
        if (!weights || weights->def->kind != TILE_MAP) continue;
        op->args.data[0] = pass_put_shared(p, k, op, weights);
    }
}

// ---- copies beside a product

static bool copies(const TileOp *op) { return op->kind == TILE_COPY || op->kind == TILE_COMMIT; }

// Copies that stand right before a step's first products stand behind them: they are begun while the last of these runs.
static void fly_over(TileProgram *p, TileKernel *k, TileOp *first) {
    TileOp *op = first, *last = NULL;
    while (op && copies(op)) op = op->next;
    for (TileOp *in = op; in && (in->kind == TILE_VIEW || in->kind == TILE_MMA); in = in->next)
        if (in->kind == TILE_MMA) last = in;
    if (!last) return;
    const TileOp *end = last->next;
    for (TileOp *next; op != end; op = next) {
        next = op->next;
        pass_move_before(first, op);
    }
    while (first->next && copies(first->next)) first = first->next;
    last->async = true;
    tile_insert_before(first->next, tile_op(p, k, NULL, TILE_MMA_WAIT, last->span));
}

void sm90_fly_wide(TileProgram *p, TileKernel *k) {
    for (TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op))
        if (op->kind == TILE_COPY && op->block->owner && (!op->prev || !copies(op->prev)))
            fly_over(p, k, op);
}
