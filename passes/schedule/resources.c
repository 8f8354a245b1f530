// resources.c: see resources.h.
//
// Tiles of a tensor that are copied have one buffer, however many loops copy them, and so have weights that go through shared memory. What maps make
// together there, and numbers of a step, have places of their own in each of the loops that a sweep becomes.
//
// A value lives from the operation that makes it to the last that reads it, around all loops between the two. What is
// made takes the place of operands that are read for the last time.
#include "passes/schedule/resources.h"
#include "ir/tile_decayed.h"
#include "ir/tile_shared.h"
#include "passes/schedule/strips.h"
#include "passes/tile/rewrite.h"

enum {
    FEW_TESTS = 2,  // comparisons of positions in a mask: a causal one and the end of the keys
    MOST_LOADS = 8, // told apart
};

Block pass_block(const TileProgram *p, const TileKernel *k, const Extents *e, Knobs s, int warps) {
    Block b = {.p = p, .e = *e, .k = *k, .gives = 1};
    for (int a = 0; a < k->naxes; a++) b.k.axes[a].extent = pass_extent(p, k, a, e);
    b.k.schedule.knobs = s;
    b.k.schedule.warps = warps;
    b.k.schedule.matrix_rows = s.matrix_rows;
    return b;
}

// ---- where values live

// Stages of a tile that is copied to shared memory; 0: it is loaded into registers.
static int stages_of(const Block *b, const TileOp *load) {
    const TileValue *v = load->results.data[0];
    const Knobs *s = &b->k.schedule.knobs;
    bool once = !load->block->owner;
    if (knobs_say(s, KNOB_stages)) {
        bool piped = (v->rank == 2 && dtype_half(v->dtype)) || pass_is_vector(b->p, load);
        return !piped ? 0 : once ? s->queries : s->stages;
    }
    if (!pass_is_operand(b->p, load) || (once && s->keep)) return 0;
    return pass_stages(b->p, &b->k, load->tensor);
}

static bool is_of_columns(const TileKernel *k, const TileValue *v) {
    return v->rank == 1 && !tile_in_grid(k, v->axis[0]) && !k->axes[v->axis[0]].whole;
}

// Weights that go to their product through shared memory, as it may be chosen.
static bool goes_through(const Block *b, const TileValue *v) {
    return b->k.schedule.knobs.share && v->rank == 2 && dtype_half(v->dtype);
}

// What maps make for columns together; those of gradients' tiles each warp makes for itself.
static bool is_shared(const Block *b, const TileValue *v) {
    bool columns = v->def->kind == TILE_MAP && is_of_columns(&b->k, v);
    columns &= b->k.purpose != PURPOSE_GRADIENTS;
    return columns || v->home == HOME_SHARED || goes_through(b, v);
}

static bool is_put(const Block *b, const TileValue *v) {
    return b->k.purpose == PURPOSE_ONE_CHUNK && pass_goes_through(b->p, &b->k, v);
}

// Of what a map makes for a product that reads it there.
static int put_bytes(const Block *b, const TileValue *v) {
    TileValue shared = *v;
    shared.home = HOME_SHARED;
    return tile_shared(b->p, &b->k, &shared).bytes;
}

// Of gradients of scores that go to dq's product through shared memory: loops that follow each other have them in one place.
static int bytes_of_gradients(const Block *b) {
    int most = 0;
    for (const TileOp *op = tile_next(&b->k.body, NULL); op; op = tile_next(&b->k.body, op)) {
        if (b->k.purpose != PURPOSE_GRADIENTS || op->kind != TILE_MAP) continue;
        int sum = 0;
        for (const TileOp *in = op; in; in = in->next)
            for (int i = 0; i < in->results.n && in->kind == TILE_MAP; i++) {
                const TileValue *v = in->results.data[i];
                if (v->rank == 2 && pass_goes_through(b->p, &b->k, v)) sum += put_bytes(b, v);
            }
        if (sum > most) most = sum;
    }
    return most * b->gives;
}

// Loops that the one around an operation becomes, at most (passes/mask/classify.c).
static int classes_of(const TileKernel *k, const TileOp *op) {
    bool masked = false;
    const TileOp *loop = op->block->owner;
    for (const TileOp *in = loop ? loop->body.first : NULL; in; in = in->next)
        for (int i = 0; i < in->outs.n; i++) masked |= ex_uses(in->outs.data[i].body, SYM_MASK, -1);
    return !masked ? 1 : tile_has(&k->body, TILE_BOUND) ? 3 : 2;
}

static int copied(const Block *b, const TileOp *load) {
    return stages_of(b, load) * tile_shared(b->p, &b->k, load->results.data[0]).bytes;
}

static bool same_tiles(const TileOp *a, const TileOp *b) {
    return b->kind == TILE_LOAD && a->tensor == b->tensor && a->from_column == b->from_column &&
           a->width == b->width &&
           pass_axes_of(a->results.data[0]) == pass_axes_of(b->results.data[0]);
}

// Of the first load of those tiles of a tensor; 0: of another operation.
static int buffer_of(const Block *b, const TileOp *load) {
    const TileBlock *body = &b->k.body;
    if (load->kind != TILE_LOAD) return 0;
    int bytes = copied(b, load);
    for (const TileOp *op = tile_next(body, NULL); op != load; op = tile_next(body, op))
        if (same_tiles(load, op)) return 0;
    for (const TileOp *op = tile_next(body, load); op; op = tile_next(body, op))
        if (same_tiles(load, op) && copied(b, op) > bytes) bytes = copied(b, op);
    return bytes;
}

int pass_shared(const Block *b) {
    const TileKernel *k = &b->k;
    int sum = bytes_of_gradients(b);
    for (const TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op)) {
        bool makes = tile_op_info(op->kind)->flags & OP_MAKES && op->kind != TILE_BESIDE;
        for (int i = 0; makes && i < op->results.n; i++) {
            const TileValue *v = op->results.data[i];
            int places = goes_through(b, v) ? 1
                         : is_shared(b, v)  ? classes_of(k, op)
                                            : is_put(b, v);
            sum += places * put_bytes(b, v);
        }
        if (op->kind == TILE_MAP && is_shared(b, op->results.data[0]))
            sum += tile_decayed_bytes(b->p, k, op);
        sum += buffer_of(b, op);
    }
    if (tile_by_groups(k) && k->schedule.knobs.share) // rows' numbers, twice from each warpgroup
        sum += 2 * (k->schedule.warps / 4) * 4 * b->e.rows;
    return sum;
}

// ---- lives

typedef struct Life {
    int begin, end, words; // between operations by number
} Life;

typedef struct Lives {
    const Block *b;
    Life *of; // by TileValue.id
    int n, at;
} Lives;

// Only matrices are counted.
static int words_of(const Block *b, const TileValue *v) {
    bool away = v->rank < 2 || v->home == HOME_SHARED || v->home == HOME_STRIP;
    if (v->def && v->def->kind == TILE_LOAD) away |= stages_of(b, v->def) > 0;
    if (v->def && v->def->kind == TILE_MAP) away |= goes_through(b, v);
    return away ? 0 : pass_words(b->p, &b->k, v->axis, v->rank, v->dtype);
}

static void begin(Lives *l, const TileValue *v, int at) {
    l->of[v->id] = (Life){at, at, words_of(l->b, v)};
}

// What is read in a loop and made before it lives until the loop ends, and what a sum in flight reads all the time.
static void end_loop(Lives *l, const TileOp *loop, int from) {
    int to = l->at - 1;
    for (int i = 0; i < l->n; i++)
        if (l->of[i].words && l->of[i].begin < from && l->of[i].end > from) l->of[i].end = to;
    for (const TileOp *op = loop->body.first; op && l->b->flies; op = op->next)
        for (int i = 0; op->kind == TILE_MMA && op->args.n == 3 && i < 2; i++) {
            Life *of = &l->of[op->args.data[i]->id];
            if (of->begin > from) of->begin = from;
            of->end = to;
        }
    for (int i = 0; i < loop->results.n; i++) begin(l, loop->results.data[i], to);
}

static void live(Lives *l, const TileBlock *block) {
    for (const TileOp *op = block->first; op; op = op->next) {
        int at = l->at++;
        for (int i = 0; i < op->args.n; i++) l->of[op->args.data[i]->id].end = at;
        for (int i = 0; i < op->carried.n; i++) begin(l, op->carried.data[i], at);
        live(l, &op->body);
        if (op->body.first)
            end_loop(l, op, at);
        else
            for (int i = 0; i < op->results.n; i++) begin(l, op->results.data[i], at);
    }
}

static int words_at(const Lives *l, int at) {
    int through = 0, read = 0, made = 0;
    for (int i = 0; i < l->n; i++) {
        const Life *v = &l->of[i];
        if (v->begin == at && v->end >= at)
            made += v->words;
        else if (v->begin < at && v->end == at)
            read += v->words;
        else if (v->begin < at && v->end > at)
            through += v->words;
    }
    return through + (read > made ? read : made);
}

// ---- what maps take beside matrices

typedef struct Loads {
    const Ex *load[MOST_LOADS];
    int n;
} Loads;

// What is looked up for a row is a register, what is for a column or a distance a strip.
static void find_load(void *ctx, const Ex *e) {
    Loads *l = ctx;
    if (e->op != EX_LOAD || l->n == MOST_LOADS) return;
    for (int i = 0; i < l->n; i++)
        if (l->load[i] == e) return;
    l->load[l->n++] = e;
}

static Loads loads_of(const TileKernel *k) {
    Loads l = {.n = 0};
    for (TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op))
        for (int i = 0; op->kind == TILE_MAP && op->naxes > 1 && i < op->outs.n; i++)
            pass_visit_elements(k, op, op->outs.data[i].body, find_load, &l);
    return l;
}

int pass_column_registers(const Block *b) {
    const TileKernel *k = &b->k;
    int most = 0, column = 0;
    for (const TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op)) {
        if (op->kind != TILE_MAP || op->naxes < 2) continue;
        int words = 0;
        for (int i = 0; i < op->args.n; i++) {
            const TileValue *v = op->args.data[i];
            if (is_of_columns(k, v)) words += pass_words(b->p, k, v->axis, 1, v->dtype);
        }
        for (int i = 0; i < op->naxes; i++) {
            bool columns = !tile_in_grid(k, op->axes[i]) && !k->axes[op->axes[i]].whole;
            int one = columns ? pass_words(b->p, k, &op->axes[i], 1, DT_F32) : 0;
            if (one > column) column = one;
        }
        if (words > most) most = words;
    }
    int loads = loads_of(k).n;
    return most + (loads > 1 ? (loads - 1) * column : 0);
}

int pass_registers(const Block *b) {
    Arena *scratch = arena_new();
    Lives l = {.b = b, .of = ARENA_ARRAY(scratch, Life, b->k.nvalues + 1), .n = b->k.nvalues};
    int most = 0;
    live(&l, &b->k.body);
    for (int at = 0; at < l.at; at++) {
        int words = words_at(&l, at);
        if (words > most) most = words;
    }
    arena_free(scratch);
    return most;
}

// ---- what else bodies tell

typedef struct Tests {
    int comparisons, loads;
} Tests;

static void count_tests(void *ctx, const Ex *e) {
    Tests *t = ctx;
    bool compares = e->op == EX_LT || e->op == EX_LE || e->op == EX_EQ || e->op == EX_NE;
    if (compares && t->comparisons <= FEW_TESTS) t->comparisons += ex_uses(e, SYM_POS, -1);
    t->loads += e->op == EX_LOAD;
}

bool pass_many_tests(const TileKernel *k) {
    Tests t = {0, 0};
    ex_visit(k->mask, count_tests, &t);
    return t.comparisons > FEW_TESTS || t.loads > 0 || loads_of(k).n > 0;
}

bool pass_takes_key_numbers(const TileKernel *k) {
    for (const TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op))
        for (int i = 0; op->kind == TILE_MAP && op->naxes > 1 && i < op->args.n; i++)
            if (is_of_columns(k, op->args.data[i])) return true;
    return false;
}

bool pass_makes_norms(const TileKernel *k) {
    for (const TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op))
        for (int i = 0; op->kind == TILE_MAP && op->naxes > 1 && i < op->results.n; i++)
            if (is_of_columns(k, op->results.data[i])) return true;
    return false;
}
