// tile_shared.c: see tile_shared.h.
#include "tile_shared.h"
#include "tile_decayed.h"
#include "tile_places.h"

#include <assert.h>

enum { GROUP_WARPS = 4, WMMA_LANES = 32, LINE = 128 };

bool tile_has_roles(const TileKernel *k) {
    for (const TileOp *op = k->body.first; op; op = op->next)
        if (op->kind == TILE_ROLE) return true;
    return false;
}

static int up(int n, int to) { return (n + to - 1) / to * to; }

// ---- how one lies

// What is stored through a buffer, or added; NULL: it is another one.
static const TileOp *goes_through(const TileKernel *k, const TileValue *buffer, bool adds) {
    for (const TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op)) {
        bool through = op->kind == TILE_STORE && op->args.n > 1 && op->args.data[1] == buffer;
        if (through && op->add == adds) return op;
    }
    return NULL;
}

static bool in_blocks(const TileKernel *k, const TileValue *v) {
    return goes_through(k, v, true) != NULL;
}

bool tile_by_groups(const TileKernel *k) { return k->schedule.knobs.groups; }

static bool is_piped(const TileValue *v) { return v->def->kind == TILE_PIPE || tile_pipe_of(v); }

// The tile that a value is, or lies in: a view's buffer, what stands beside another.
static const TileValue *holder_of(const TileValue *v) {
    const TileOp *def = v->def;
    bool in = def && v->home == HOME_SHARED && (def->kind == TILE_VIEW || def->kind == TILE_BESIDE);
    return in ? holder_of(def->args.data[0]) : v;
}

// Which operand a product reads from panels: rows of two bytes beside such, or of one, whose columns are the result's or meet rows of queries.
static bool reads_panels(const TileKernel *k, const TileOp *mma, int i) {
    if (i > 1 || !dtype_half(mma->args.data[1 - i]->dtype)) return false;
    bool across = k->axes[tile_contracted_axis(mma)].whole;
    return dtype_half(mma->args.data[i]->dtype) || !across ||
           mma->args.data[1 - i]->home == HOME_SHARED;
}

// What `cp.async` writes 16 bytes beside where it read it, as padded rows do, it reads twice, and in more requests (docs/experiments.md). Here that is
// all that is read: few rows, by each block all keys of its part.
static bool is_copied(const TileKernel *k, const TileValue *v) {
    bool copied = false;
    int bytes = dtype_bytes(v->dtype);
    if (v->def->kind != TILE_ALLOC || v->rank != 2 || bytes > 2 ||
        !knobs_say(&k->schedule.knobs, KNOB_few_rows))
        return false;
    for (int i = 0; i < 2; i++) {
        const TileAxis *a = &k->axes[v->axis[i]];
        if (a->whole && a->extent * bytes % HOME_PITCH) return false;
    }
    for (const TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op))
        for (int i = 0; i < op->args.n; i++) {
            const TileValue *of = op->args.data[i];
            bool moves = op->kind == TILE_COPY || op->kind == TILE_VIEW;
            copied |= of == v && op->kind == TILE_COPY;
            if (holder_of(of) != v) continue;
            if (of == v ? !moves : op->kind != TILE_MMA || !reads_panels(k, op, i)) return false;
        }
    return copied;
}

// Pipes are filled by tensor copies; so is a tensor from a buffer that a store goes through; what a
// map of a role makes is on its way to a product. Without roles, narrow tiles are where products are a warpgroup's.
static bool in_panels(const TileKernel *k, const TileValue *v) {
    if (!v->def) return false;
    if (tile_by_groups(k)) return v->rank == 2 && dtype_half(v->dtype);
    bool roles = knobs_say(&k->schedule.knobs, KNOB_warpgroups); // it has them, or will
    if (v->def->kind == TILE_LOAD) return v->rank == 2 && roles; // a pipe
    if (is_piped(v)) return v->rank == 2 && dtype_half(v->dtype);
    if (v->def->kind == TILE_MAP)
        return (roles || tile_has_roles(k)) && v->rank == 2 && v->home == HOME_SHARED;
    if (is_copied(k, v)) return true;
    return goes_through(k, v, false) && !in_blocks(k, v);
}

int tile_panel_columns(const TileShared *t) { return HOME_PITCH / t->elem; }

int tile_panel_bytes(const TileShared *t) { return t->band * t->pitch; }

int tile_rows_bytes(const TileShared *t) {
    return t->band < t->rows ? up(t->cols * t->elem, t->pitch) * t->band : HOME_ROWS * t->pitch;
}

static TileShared with_axes(const TileKernel *k, TileShared t, int row, int col) {
    t.row_axis = row, t.col_axis = col;
    if (row >= 0) t.rows = k->axes[row].extent;
    if (col >= 0) t.cols = k->axes[col].extent;
    return t;
}

// Gradients of scores by tiles of keys, whose pairs in registers lie along the queries.
static bool is_turned(const TileKernel *k, const TileValue *v) {
    return k->purpose == PURPOSE_GRADIENTS && v->def && v->def->kind == TILE_MAP &&
           v->axis[1] == tile_grid_axis(k) && !tile_has_roles(k);
}

// Columns are what is contiguous in the tensor, which is the axis that is not tiled.
static TileShared in_rows(const TileKernel *k, const TileValue *v, TileShared t) {
    if (v->rank == 2 && (k->axes[v->axis[0]].whole || is_turned(k, v)))
        t = with_axes(k, t, v->axis[1], v->axis[0]);
    if (in_panels(k, v)) {
        t.order = ORDER_PANELS;
        t.pitch = HOME_PITCH;
        t.band = tile_in_bands(k, v) ? HOME_ROWS : t.rows;
        t.bytes = up(t.cols * t.elem, t.pitch) * t.rows;
        return t;
    }
    if (v->def && is_piped(v) && v->rank == 2) {
        t.order = ORDER_THREADS;
        t.bytes = t.rows * t.cols * t.elem;
        return t;
    }
    if (in_blocks(k, v)) {
        t.order = ORDER_BLOCKS;
        t.bytes = t.rows * t.cols * t.elem;
        return t;
    }
    t.pitch = t.cols * t.elem + (v->rank == 2 ? HOME_PIECE : 0);
    t.bytes = up(t.rows * t.pitch, HOME_PIECE);
    return t;
}

// What products contract of a buffer; -1: they do not use it, or not in one way.
static int contracted_of(const TileKernel *k, const TileValue *buffer) {
    int axis = -1;
    for (const TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op)) {
        if (op->kind != TILE_MMA) continue;
        for (int i = 0; i < 2; i++) {
            if (holder_of(op->args.data[i]) != buffer) continue;
            int a = tile_contracted_axis(op);
            if (axis >= 0 && axis != a) return -1;
            axis = a;
        }
    }
    return axis;
}

// The axis along which the tensor that is copied into a buffer is contiguous.
static int contiguous_of(const TileProgram *p, const TileKernel *k, const TileValue *buffer) {
    for (const TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op))
        if (op->kind == TILE_COPY && op->args.data[0] == buffer)
            return op->coord[p->tensors.data[op->tensor].rank - 1].axis;
    return buffer->axis[buffer->rank - 1];
}

// Powers of two, so that rows do not straddle lines, or whole lines.
static int chunks_for(int n) {
    int c = 1;
    if (n > 8) return up(n, 8);
    while (c < n) c *= 2;
    return c;
}

static TileShared in_chunks(const TileProgram *p, const TileKernel *k, const TileValue *v,
                            TileShared t) {
    int lanes = target_get(p->target)->lanes;
    t.order = ORDER_CHUNKS;
    if (v->rank == 2) {
        int along = contiguous_of(p, k, holder_of(v)), inner = contracted_of(k, holder_of(v));
        if (inner < 0) inner = along;
        t = with_axes(k, t, inner == v->axis[0] ? v->axis[1] : v->axis[0], inner);
        t.transposed = inner != along;
        t.paired = t.elem == 2 && lanes != WMMA_LANES && !k->axes[inner].wide &&
                   t.cols % (8 * lanes / k->schedule.matrix_rows) == 0;
    }
    int chunks = up(t.cols * t.elem, HOME_PIECE) / HOME_PIECE;
    t.pitch = (v->rank == 2 ? chunks_for(chunks) : chunks) * HOME_PIECE;
    t.bytes = up(t.rows * t.pitch, LINE);
    return t;
}

static int renamed(const TileValue *from, const TileValue *to, int axis) {
    for (int i = 0; i < from->rank; i++)
        if (from->axis[i] == axis) return to->axis[i];
    return axis;
}

TileShared tile_shared(const TileProgram *p, const TileKernel *k, const TileValue *v) {
    const TileValue *of = holder_of(v);
    TileShared t = {.rows = 1, .cols = 1, .elem = dtype_bytes(v->dtype)};
    assert(v->rank <= 2);
    t = with_axes(k, t, v->rank == 2 ? of->axis[0] : -1, v->rank ? of->axis[v->rank - 1] : -1);
    t = target_get(p->target)->kind == KIND_AMDGPU ? in_chunks(p, k, of, t) : in_rows(k, of, t);
    t.row_axis = renamed(of, v, t.row_axis);
    t.col_axis = renamed(of, v, t.col_axis);
    return t;
}

int tile_own_panels(const TileProgram *p, const TileKernel *k, const TileValue *buffer) {
    enum { PANEL_BYTES = 16 * HOME_PITCH };
    int warps = k->schedule.warps;
    TileShared t = tile_shared(p, k, buffer);
    return t.order == ORDER_BLOCKS && warps ? t.bytes / warps / PANEL_BYTES : 0;
}

// ---- strips

int tile_strip_warps(const TileKernel *k) { return tile_has_roles(k) ? GROUP_WARPS : 1; }

// At least one: a program that was read may say nothing of warps.
static int strip_groups(const TileKernel *k) {
    int n = k->schedule.warps / tile_strip_warps(k);
    return n > 1 ? n : 1;
}

int tile_strip_rows(const TileKernel *k, const TileValue *v) {
    return k->axes[v->axis[0]].extent / strip_groups(k);
}

bool tile_is_strip(const TileOp *op) {
    return op && op->kind == TILE_MAP && op->results.data[0]->home == HOME_STRIP;
}

int tile_strip_count(const TileKernel *k, const TileValue *v) {
    int columns = k->axes[v->axis[v->rank - 1]].extent;
    return columns + (v->rank == 2 ? tile_strip_rows(k, v) - 1 : 0);
}

int tile_strip_pitch(const TileKernel *k, const TileValue *v) {
    return up(tile_strip_count(k, v) * dtype_bytes(v->dtype), HOME_PIECE);
}

static int strip_bytes(const TileKernel *k, const TileOp *op) {
    if (!tile_is_strip(op)) return 0;
    return tile_strip_pitch(k, op->results.data[0]) * strip_groups(k);
}

// ---- numbers of rows that go from warp to warp

static int crossing_warps(const TileKernel *k, const TileOp *map) {
    if (map->kind != TILE_MAP || !k->layouts.n || map->results.data[0]->home != HOME_FRAGMENT)
        return 1;
    int layout = tile_common_layout(k, map, map->axes, map->naxes), most = 1;
    for (int i = 0; i < map->outs.n && layout >= 0; i++) {
        const TileResult *out = &map->outs.data[i];
        if (out->reduce == EX_CONST || out->scan != SCAN_NONE) continue;
        int warps = layout_share(&k->layouts.data[layout].is, LAYOUT_WARP, out->reduce_axis);
        if (warps > most) most = warps;
    }
    return most;
}

int tile_crossing_bytes(const TileKernel *k) {
    int most = 1, rows = tile_grid_axis(k);
    bool shares = tile_by_groups(k) && k->schedule.knobs.share;
    if (!shares && k->purpose != PURPOSE_ONE_CHUNK) return 0;
    for (const TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op)) {
        int warps = crossing_warps(k, op);
        if (warps > most) most = warps;
    }
    return most > 1 ? 2 * most * k->axes[rows].extent * 4 : 0;
}

// ---- places

typedef struct Space { // of a block
    const TileProgram *p;
    const TileKernel *k;
    int *offset, at;
    int *place,
        *begin; // of tiles of maps in roles (tile_places.h): which place; where it begins, or -1
} Space;

static int bytes_of(const Space *s, const TileValue *v) {
    return tile_shared(s->p, s->k, v).bytes * (v->stages > 1 ? v->stages : 1);
}

// Of all that lie in one place.
static int place_bytes(const Space *s, int place) {
    int bytes = 0;
    for (const TileOp *op = tile_next(&s->k->body, NULL); op; op = tile_next(&s->k->body, op))
        for (int i = 0; i < op->results.n; i++) {
            if (s->place[op->results.data[i]->id] != place) continue;
            int own = bytes_of(s, op->results.data[i]);
            if (own > bytes) bytes = own;
        }
    return bytes;
}

static void put(Space *s, const TileValue *v) {
    int place = s->place[v->id];
    bool first = place < 0 || s->begin[place] < 0;
    s->offset[v->id] = first ? s->at : s->begin[place];
    if (!first) return;
    if (place >= 0) s->begin[place] = s->at;
    s->at += place >= 0 ? place_bytes(s, place) : bytes_of(s, v);
}

static void put_strips(Space *s) {
    int first = s->at;
    for (const TileOp *op = tile_next(&s->k->body, NULL); op; op = tile_next(&s->k->body, op)) {
        if (!tile_is_strip(op)) continue;
        int mine = first;
        for (const TileOp *in = op->block->first; in != op; in = in->next)
            mine += strip_bytes(s->k, in);
        s->offset[op->results.data[0]->id] = mine;
        mine += strip_bytes(s->k, op);
        if (mine > s->at) s->at = mine;
    }
}

// Panels want to be aligned to 1024 bytes: pipes and buffers of them come first, and those of sums, through which panels may go.
static bool is_aligned(const Space *s, const TileValue *v) {
    TileOrder order = tile_shared(s->p, s->k, v).order;
    return order == ORDER_PANELS || order == ORDER_BLOCKS;
}

static void put_all(Space *s, TileKind kind, bool panels) {
    for (const TileOp *op = tile_next(&s->k->body, NULL); op; op = tile_next(&s->k->body, op)) {
        bool made = op->kind == kind || (kind == TILE_ALLOC && tile_makes_shared(op));
        for (int i = 0; made && i < op->results.n; i++) {
            const TileValue *v = op->results.data[i];
            if (v->home == HOME_SHARED && is_aligned(s, v) == panels) put(s, v);
        }
    }
}

// ---- a body without loops: places that are free again

typedef struct Life { // of a tile: between barriers, by number
    int made, read;   // read: for the last time
    int begin, end;   // bytes
} Life;

static bool is_straight(const TileKernel *k) {
    if (k->purpose != PURPOSE_ONE_CHUNK) return false;
    for (const TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op))
        if (op->body.first || op->async || op->kind == TILE_PIPE) return false;
    return true;
}

static void find_lives(const TileKernel *k, Life *life) {
    int now = 0;
    for (const TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op)) {
        now += op->kind == TILE_BARRIER;
        for (int i = 0; i < op->results.n; i++) life[op->results.data[i]->id].made = now;
        for (int i = 0; i < op->results.n; i++) life[op->results.data[i]->id].read = now;
        for (int i = 0; i < op->args.n; i++) life[holder_of(op->args.data[i])->id].read = now;
    }
}

// Where what a map makes first finds room among the tiles that a barrier does not part from it.
static void put_among(Space *s, Life *life, const TileValue *const *placed, int n,
                      const TileValue *v) {
    Life *own = &life[v->id];
    int bytes = bytes_of(s, v), at = 0;
    for (bool again = true; again;) {
        again = false;
        for (int i = 0; i < n; i++) {
            const Life *l = &life[placed[i]->id];
            if (l->read < own->made || l->end <= at || at + bytes <= l->begin) continue;
            at = up(l->end, HOME_PIECE);
            again = true;
        }
    }
    own->begin = s->offset[v->id] = at, own->end = at + bytes;
    if (own->end > s->at) s->at = own->end;
}

// Buffers come first, and their copies may begin at once.
static void put_straight(Space *s, Arena *a) {
    const TileKernel *k = s->k;
    Life *life = ARENA_ARRAY(a, Life, k->nvalues + 1);
    const TileValue **placed = ARENA_ARRAY(a, const TileValue *, k->nvalues + 1);
    int n = 0;
    find_lives(k, life);
    for (const TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op)) {
        const TileValue *v = op->results.n ? op->results.data[0] : NULL;
        if (op->kind != TILE_ALLOC) continue;
        put(s, v);
        life[v->id].begin = s->offset[v->id], life[v->id].end = s->at;
        life[v->id].made = 0;
        placed[n++] = v;
    }
    for (const TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op))
        for (int i = 0; i < op->results.n && tile_makes_shared(op); i++) {
            if (op->results.data[i]->home != HOME_SHARED) continue;
            put_among(s, life, placed, n, op->results.data[i]);
            placed[n++] = op->results.data[i];
        }
}

bool tile_tells_ends(const TileProgram *p, const TileKernel *k, const TileValue *pipe) {
    return p->batch && tile_in_bands(k, pipe);
}

static int barrier_bytes(const TileProgram *p, const TileKernel *k) {
    int stages = 0, words = k->schedule.cluster > 1 ? 12 * HOME_ANSWERS : 0;
    for (const TileOp *op = k->body.first; op; op = op->next) {
        if (op->kind != TILE_PIPE) continue;
        stages += op->results.data[0]->stages;
        if (tile_tells_ends(p, k, op->results.data[0])) words += 4 * op->results.data[0]->stages;
    }
    return 16 * stages + 24 + 16 * HOME_AHEAD + words;
}

bool tile_is_summed(const TileKernel *k, const TileValue *buffer) {
    for (const TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op))
        if (op->kind == TILE_STORE && op->add && op->args.n > 1 && op->args.data[1] == buffer)
            return true;
    return false;
}

static const TileOp *adder(const TileKernel *k) { // the role that adds through a buffer
    for (const TileOp *role = k->body.first; role; role = role->next)
        for (const TileOp *op = tile_next(&role->body, NULL); op; op = tile_next(&role->body, op))
            if (role->kind == TILE_ROLE && op->kind == TILE_STORE && op->add && op->args.n > 1)
                return role;
    return NULL;
}

bool tile_hands_over(const TileProgram *p, const TileKernel *k) {
    return adder(k) && !p->batch && k->schedule.knobs.producer_registers >= HOME_HANDING;
}

// Where warps say what becomes of their parts of a buffer of sums: two notes for each.
static int note_bytes(const TileProgram *p, const TileKernel *k) {
    enum { NOTES = 2, WARPS = 4 };
    return tile_hands_over(p, k) ? NOTES * WARPS * HOME_PIECE * adder(k)->warpgroups : 0;
}

int tile_shared_layout(const TileProgram *p, const TileKernel *k, int *offset, int *barriers) {
    Arena *scratch = arena_new();
    Space s = {p, k, offset ? offset : ARENA_ARRAY(scratch, int, k->nvalues + 1), 0, NULL, NULL};
    bool roles = tile_has_roles(k);
    for (int i = 0; i < k->nvalues; i++) s.offset[i] = -1;
    s.place = ARENA_ARRAY(scratch, int, k->nvalues + 1);
    int n = tile_places(k, s.place);
    s.begin = ARENA_ARRAY(scratch, int, n + 1);
    for (int i = 0; i < n; i++) s.begin[i] = -1;
    if (is_straight(k)) {
        put_straight(&s, scratch);
    } else {
        put_all(&s, TILE_PIPE, true);
        put_all(&s, TILE_ALLOC, true);
        put_all(&s, TILE_PIPE, false);
        put_all(&s, TILE_ALLOC, false);
    }
    put_strips(&s);
    s.at = up(s.at, HOME_PIECE) + tile_all_decayed_bytes(p, k) + tile_crossing_bytes(k);
    if (barriers) *barriers = up(s.at, 8);
    if (roles)
        s.at = up(up(s.at, 8) + barrier_bytes(p, k), 16) + 16 * HOME_AHEAD + note_bytes(p, k);
    arena_free(scratch);
    return s.at;
}
