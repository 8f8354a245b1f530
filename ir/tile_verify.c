// tile_verify.c: the rules of the tile IR, each with the sentence that tells how it was broken.
//
// In: any program (from a builder, a pass, or a text). Out: whether it keeps the rules of tile.h;
// an error for the first that it breaks. Holds afterwards: the interpreter and the lowerings need
// not check anything that stands here.
//
// What only a run shows (which stage a copy fills, whether a tile is truly full) is the
// interpreter's to find. Buffers are checked here as far as the order of the text tells: copy,
// wait, barrier, use.
#include "ir/tile_verify.h"

#include "ir/expr_ops.h"
#include "ir/tile_parts.h"
#include "ir/tile_shared.h"
#include "ir/tile_unguarded.h"
#include "ir/tile_wide.h"

#include <ctype.h>
#include <stdarg.h>
#include <string.h>

// Row and recurrence programs have more symbols than tile programs, whose last one is WORKERS.
_Static_assert(SYM_WORKERS < 32, "a set of symbols is an unsigned (Scope.syms)");

enum {
    MAX_EXTENT = 1 << 16, // of a tile along an axis
    MAX_STAGES = 64,
    MAX_DEPTH = 64, // of loops in loops
};

bool __attribute__((format(printf, 2, 3))) verify_fail(Verify *V, const char *fmt, ...) {
    va_list ap;
    Span none = {0};
    va_start(ap, fmt);
    Text t = text_new(V->scratch);
    text_vprintf(&t, fmt, ap);
    va_end(ap);
    if (V->op)
        diag_error(V->diags, V->op->span, "in %s, %s: %s", V->k->name, tile_kind_name(V->op->kind),
                   t.s);
    else if (V->k)
        diag_error(V->diags, none, "in %s: %s", V->k->name, t.s);
    else
        diag_error(V->diags, none, "%s", t.s);
    return false;
}

bool verify_is_name(const char *s) {
    if (!s || !(isalpha((unsigned char)*s) || *s == '_')) return false;
    while (isalnum((unsigned char)*s) || *s == '_') s++;
    return !*s;
}

// Of a value: also one that begins with a digit, or holds a '.' or '~'.
static bool is_value_name(const char *s) {
    if (!s || !*s) return false;
    while (isalnum((unsigned char)*s) || *s == '_' || *s == '.' || *s == '~') s++;
    return !*s;
}

bool verify_in(const uint8_t *axes, int n, int axis) {
    for (int i = 0; i < n; i++)
        if (axes[i] == axis) return true;
    return false;
}

// ---- expressions

typedef struct ExCheck {
    Verify *V;
    const Scope *scope;
    bool ok;
} ExCheck;

static bool check_pos(Verify *V, const Scope *s, int axis) {
    if (axis < 0 || axis >= V->k->naxes)
        return verify_fail(V, "%s uses the position on an axis that is not there", s->what);
    const TileAxis *a = &V->k->axes[axis];
    if (s->anywhere) return true;
    if (!verify_in(s->axes, s->naxes, axis))
        return verify_fail(V, "%s uses the position on %s, which it is not over", s->what, a->name);
    if (!a->whole && !V->bound[tile_root_axis(V->k, axis)] && s->tile != axis)
        return verify_fail(V, "%s uses the position on %s outside grid and loops over it", s->what,
                           a->name);
    return true;
}

static bool check_tile(Verify *V, const Scope *s, int axis) {
    if (axis < 0 || axis >= V->k->naxes)
        return verify_fail(V, "%s uses the tile of an axis that is not there", s->what);
    if (V->k->axes[axis].beside >= 0)
        return verify_fail(V, "%s uses the tile of %s, which lies beside another axis", s->what,
                           V->k->axes[axis].name);
    if (s->anywhere) // a mask is of positions; a head of a group is a tile of its own
        return V->k->axes[axis].extent == 1 ||
               verify_fail(V, "%s may not use '%s'", s->what, ex_syms[SYM_TILE].name);
    if (!V->k->axes[axis].whole && !V->bound[axis] && s->tile != axis)
        return verify_fail(V, "%s uses the tile of %s outside grid and loops over it", s->what,
                           V->k->axes[axis].name);
    return true;
}

static bool check_param(Verify *V, const Scope *s, const Ex *e) {
    if (e->index < 0 || e->index >= V->op->args.n)
        return verify_fail(V, "%s uses operand %d of %d", s->what, e->index, V->op->args.n);
    const TileValue *v = V->op->args.data[e->index];
    if (e->type != dtype_reads(v->dtype))
        return verify_fail(V, "%s reads %%%s as %s", s->what, v->name, ex_type_name(e->type));
    for (int i = 0; i < v->rank; i++)
        if (!verify_in(s->axes, s->naxes, v->axis[i]))
            return verify_fail(V, "%s uses %%%s, which has axis %s that it is not over", s->what,
                               v->name, V->k->axes[v->axis[i]].name);
    return true;
}

static void mask_place(void *ctx, const Ex *e) {
    ExCheck *c = ctx;
    if (!c->ok || e->op != EX_SYM) return;
    if (e->sym == SYM_POS) c->ok = check_pos(c->V, c->scope, e->index);
    if (e->sym == SYM_TILE) c->ok = check_tile(c->V, c->scope, e->index);
}

static bool check_mask_use(Verify *V, const Scope *s) {
    if (V->in_full) return verify_fail(V, "%s uses the mask in a loop over full tiles", s->what);
    if (V->p->scheduled)
        return verify_fail(V, "%s uses the mask, which a scheduled program has written out",
                           s->what);
    ExCheck c = {V, s, true};
    ex_visit(V->k->mask, mask_place, &c);
    return c.ok;
}

static bool check_kept_use(Verify *V, const Scope *s, const Ex *e) {
    if (V->in_class && e->sym == SYM_KEPT)
        return verify_fail(V, "%s uses 'kept' in a loop over tiles of a class", s->what);
    return !V->p->scheduled || verify_fail(V, "%s uses '%s', which a scheduled program has decided",
                                           s->what, ex_syms[e->sym].name);
}

static const TileTensor *input_of(const Verify *V, int input) {
    return input >= 0 && input < V->p->inputs.n ? &V->p->tensors.data[V->p->inputs.data[input]]
                                                : NULL;
}

static bool check_size_use(Verify *V, const Scope *s, const Ex *e) {
    if (e->index < 0 || e->index >= s->sizes)
        return verify_fail(V, "%s uses size %d, not known here", s->what, e->index);
    const TileSize *z = &V->p->sizes.data[e->index];
    return !z->own || s->own ||
           verify_fail(V, "%s uses %s, which each sequence has of its own", s->what, z->name);
}

static bool check_sym(Verify *V, const Scope *s, const Ex *e) {
    if (e->sym > SYM_WORKERS || !(s->syms & 1u << e->sym))
        return verify_fail(V, "%s may not use '%s'", s->what, ex_syms[e->sym].name);
    ExType type = e->sym == SYM_SCALAR || e->sym == SYM_PARAM ? e->type : ex_sym_type(e->sym);
    if (e->type != type)
        return verify_fail(V, "%s uses '%s' as %s", s->what, ex_syms[e->sym].name,
                           ex_type_name(e->type));
    switch ((int)e->sym) {
    case SYM_B:
        return V->grid_b || verify_fail(V, "%s uses b, over which there is no grid", s->what);
    case SYM_H:
        return V->grid_h || verify_fail(V, "%s uses h, over which there is no grid", s->what);
    case SYM_SIZE: return check_size_use(V, s, e);
    case SYM_STEP: return s->step || verify_fail(V, "%s uses t outside loops", s->what);
    case SYM_POS: return check_pos(V, s, e->index);
    case SYM_TILE: return check_tile(V, s, e->index);
    case SYM_PARAM: return check_param(V, s, e);
    case SYM_MASK: return check_mask_use(V, s);
    case SYM_STAY:
    case SYM_KEPT: return check_kept_use(V, s, e);
    case SYM_SCALAR: {
        const TileTensor *t = input_of(V, e->index);
        return (t && !t->rank && dtype_reads(t->dtype) == e->type) ||
               verify_fail(V, "%s uses a scalar input that is not there", s->what);
    }
    default: return true;
    }
}

static bool check_load_ex(Verify *V, const Scope *s, const Ex *e) {
    const TileTensor *t = s->loads ? input_of(V, e->input) : NULL;
    if (!s->loads) return verify_fail(V, "%s may not read tensors", s->what);
    if (!t) return verify_fail(V, "%s reads input %d, which is not there", s->what, e->input);
    if (t->rank != e->nargs)
        return verify_fail(V, "%s indexes '%s' with %d of %d indices", s->what, t->name, e->nargs,
                           t->rank);
    if (t->blocked)
        return verify_fail(V, "%s looks up '%s', which lies in blocks", s->what, t->name);
    if (t->exact) return verify_fail(V, "%s looks up '%s', of exact sums", s->what, t->name);
    return e->type == dtype_reads(t->dtype) ||
           verify_fail(V, "%s reads '%s' as %s", s->what, t->name, ex_type_name(e->type));
}

static void check_node(void *ctx, const Ex *e) {
    ExCheck *c = ctx;
    if (!c->ok) return;
    if (e->op == EX_SYM)
        c->ok = check_sym(c->V, c->scope, e);
    else if (e->op == EX_LOAD)
        c->ok = check_load_ex(c->V, c->scope, e);
    else if (ex_ops[e->op].typing == T_RED)
        c->ok = verify_fail(c->V, "%s reduces a row inside an expression", c->scope->what);
}

bool verify_ex(Verify *V, const Ex *e, ExType type, const Scope *s) {
    if (!e) return verify_fail(V, "%s is missing", s->what);
    if (e->type != type)
        return verify_fail(V, "%s is %s, not %s", s->what, ex_type_name(e->type),
                           ex_type_name(type));
    ExCheck c = {V, s, true};
    ex_visit(e, check_node, &c);
    return c.ok;
}

// Over sizes and constants.
static Scope launch_scope(const Verify *V, const char *what) {
    return (Scope){.what = what, .syms = 1u << SYM_SIZE, .sizes = V->p->sizes.n, .tile = -1};
}

// One value for the whole tile: coordinates, loop bounds, stages.
Scope verify_scope(const Verify *V, const char *what) {
    return (Scope){.what = what,
                   .syms = 1u << SYM_B | 1u << SYM_H | 1u << SYM_SIZE | 1u << SYM_SCALAR |
                           1u << SYM_STEP | 1u << SYM_TILE | (V->role ? 1u << SYM_VALID : 0),
                   .sizes = V->p->sizes.n,
                   .loads = true,
                   .own = true,
                   .step = V->steps > 0,
                   .tile = -1};
}

// ---- values

static bool is_buffer(const TileValue *v) { return v->def && v->def->kind == TILE_ALLOC; }
static bool is_pipe(const TileValue *v) { return v->def && v->def->kind == TILE_PIPE; }
static bool is_view(const TileValue *v) {
    return v->def && (v->def->kind == TILE_VIEW || v->def->kind == TILE_TAKE);
}

bool verify_same_type(const TileValue *v, const TileValue *w) {
    return v->dtype == w->dtype && v->rank == w->rank && !memcmp(v->axis, w->axis, (size_t)v->rank);
}

static bool check_value(Verify *V, const TileValue *v) {
    if (!is_value_name(v->name)) return verify_fail(V, "a value without a name");
    if ((unsigned)v->dtype >= DT_COUNT) return verify_fail(V, "%%%s has no element type", v->name);
    if (v->rank < 0 || v->rank > TILE_MAX_RANK)
        return verify_fail(V, "%%%s has %d axes", v->name, v->rank);
    for (int i = 0; i < v->rank; i++) {
        if (v->axis[i] >= V->k->naxes)
            return verify_fail(V, "%%%s has an axis that is not there", v->name);
        if (i && v->axis[i] <= v->axis[i - 1])
            return verify_fail(V, "%%%s has its axes out of order", v->name);
    }
    if (v->stages < 1 || v->stages > MAX_STAGES)
        return verify_fail(V, "%%%s has %d stages", v->name, v->stages);
    bool piped = v->def && v->def->kind == TILE_LOAD && v->def->role && v->home == HOME_SHARED;
    bool in_turns = v->def && v->def->kind == TILE_MAP && v->home == HOME_SHARED && v->stages == 2;
    if (v->stages > 1 && !is_buffer(v) && !is_pipe(v) && !piped && !in_turns)
        return verify_fail(V, "%%%s has stages, but is no buffer", v->name);
    bool may = v->rank == 1 && v->dtype == DT_F32 && v->home == HOME_FRAGMENT;
    if (v->layout >= V->k->layouts.n || (v->layout >= 0) > (v->home == HOME_FRAGMENT))
        return verify_fail(V, "%%%s has a layout that is not there", v->name);
    return !v->parts || may || verify_fail(V, "%%%s cannot be in parts", v->name);
}

static bool define(Verify *V, const TileValue *v, const TileOp *def) {
    if (v->def != def) return verify_fail(V, "%%%s is said to be made elsewhere", v->name);
    if (!check_value(V, v)) return false;
    if (v->id < 0 || v->id >= V->k->nvalues || V->defined[v->id])
        return verify_fail(V, "%%%s has not an id of its own", v->name);
    if (!(tile_op_info(def->kind)->homes >> v->home & 1))
        return verify_fail(V,
                           v->home == HOME_STRIP ? "%%%s is a strip that no map makes"
                                                 : "%%%s is not in shared memory",
                           v->name);
    V->defined[v->id] = true;
    V->value[v->id] = v;
    VEC_PUSH(V->scratch, &V->known, v->id);
    return true;
}

// What an operand must be.
typedef enum Want { WANT_VALUE, WANT_BUFFER, WANT_PIPE } Want;

static Want wanted(const TileOp *op, int i) {
    switch ((int)op->kind) {
    case TILE_VIEW: return op->stage ? WANT_BUFFER : WANT_PIPE;
    case TILE_COPY: return WANT_BUFFER;
    case TILE_GIVE: return i ? WANT_VALUE : WANT_PIPE;
    case TILE_FILL:
    case TILE_TAKE: return WANT_PIPE;
    case TILE_STORE: return i == 1 ? WANT_BUFFER : WANT_VALUE;
    default: return WANT_VALUE;
    }
}

static bool check_use(Verify *V, const TileValue *v, Want want) {
    if (v->id < 0 || v->id >= V->k->nvalues || V->value[v->id] != v)
        return verify_fail(V, "%%%s is used where it is not known", v->name);
    if (is_pipe(v) != (want == WANT_PIPE))
        return verify_fail(
            V, want == WANT_PIPE ? "%%%s is no pipe" : "%%%s is a pipe: take it first", v->name);
    if (is_buffer(v) != (want == WANT_BUFFER))
        return verify_fail(
            V, want == WANT_BUFFER ? "%%%s is no buffer" : "%%%s is a buffer: view it first",
            v->name);
    if (!is_view(v) || is_pipe(v->def->args.data[0])) return true;
    const TileValue *b = v->def->args.data[0];
    switch (V->arrival[b->id]) {
    case NOTHING:
        return verify_fail(V, "%%%s is used, but nothing is copied into %%%s before", v->name,
                           b->name);
    case COPIED:
        return verify_fail(V, "%%%s is used, but the copy into %%%s is not waited for", v->name,
                           b->name);
    case WAITED:
        return verify_fail(V, "%%%s is used without a barrier after the wait for %%%s", v->name,
                           b->name);
    case ARRIVED: break;
    }
    return true;
}

// ---- operations

// Of an index that is said for each place along an axis, or for each element of a value.
static Scope each_scope(const Scope *s, const TileCoord *c, const TileValue *v) {
    int axis = c->axis;
    Scope own = *s;
    if (c->tile) own.tile = axis;
    own.syms |= 1u << SYM_POS;
    if (axis >= 0) own.axes[own.naxes++] = (uint8_t)axis;
    for (int i = 0; axis < 0 && i < v->rank; i++) own.axes[own.naxes++] = v->axis[i];
    return own;
}

// Exact sums are added to, or read, at their first words.
static bool verify_exact(Verify *V, const TileTensor *t) {
    const TileCoord *last = &V->op->coord[t->rank - 1];
    if (!t->exact) return true;
    bool first = last->axis < 0 && !V->op->each[t->rank - 1] && ex_is_i32(last->at, 0);
    if (!first) return verify_fail(V, "'%s' is no sum there", t->name);
    return V->op->kind == TILE_LOAD || V->op->add ||
           verify_fail(V, "'%s' is stored, and not added to", t->name);
}

// The tensor and its coordinates; between them they have v's axes, each once.
bool verify_access(Verify *V, const TileValue *v) {
    const TileOp *op = V->op;
    if (op->tensor < 0 || op->tensor >= V->p->tensors.n)
        return verify_fail(V, "there is no tensor %d", op->tensor);
    const TileTensor *t = &V->p->tensors.data[op->tensor];
    Scope s = verify_scope(V, "a coordinate");
    bool seen[TILE_MAX_AXES] = {false}, each[TILE_MAX_AXES] = {false};
    int count = 0;
    bool scatters = tile_scatters(op);
    if (!t->rank) return verify_fail(V, "'%s' is a scalar", t->name);
    if (scatters && (op->kind != TILE_STORE || !op->add || op->args.n > 1 || v->rank < 2))
        return verify_fail(V, "only a sum of several axes has an index for each element");
    for (int d = 0; d < t->rank; d++) {
        const TileCoord *c = &op->coord[d];
        if (c->axis >= V->k->naxes)
            return verify_fail(V, "a coordinate along an axis that is not there");
        if (op->each[d] && c->tile && !verify_ex(V, c->tile, EX_I32, &s)) return false;
        Scope own = op->each[d] ? each_scope(&s, c, v) : s;
        if (!verify_ex(V, c->at, EX_I32, &own)) return false;
        if (c->axis < 0) continue;
        if (scatters) return verify_fail(V, "a coordinate along an axis of what is scattered");
        const char *name = V->k->axes[c->axis].name;
        if (seen[c->axis] && op->each[d] && each[c->axis]) continue;
        if (seen[c->axis]) return verify_fail(V, "two coordinates along %s", name);
        each[c->axis] = op->each[d];
        if (!tile_has_axis(v, c->axis))
            return verify_fail(V, "a coordinate along %s, which %%%s has not", name, v->name);
        seen[c->axis] = true;
        count++;
    }
    if (!scatters && count != v->rank)
        return verify_fail(V, "an axis of %%%s is no coordinate of '%s'", v->name, t->name);
    return verify_columns(V, t) && verify_blocks(V, v) && verify_exact(V, t);
}

// A tile may hold a tensor's numbers of 8 bits as wider ones, and those of 16 bits as f32.
static bool check_elements(Verify *V, const TileValue *v, const TileTensor *t) {
    bool wider =
        (dtype_byte(t->dtype) && dtype_half(v->dtype)) ||
        (dtype_bytes(t->dtype) < 4 && dtype_reads(t->dtype) == EX_F32 && v->dtype == DT_F32);
    return v->dtype == t->dtype || wider ||
           verify_fail(V, "%%%s is %s, '%s' is %s", v->name, dtype_name(v->dtype), t->name,
                       dtype_name(t->dtype));
}

static bool verify_load(Verify *V) {
    const TileValue *v = V->op->results.data[0];
    if (!verify_access(V, v)) return false;
    const TileTensor *t = &V->p->tensors.data[V->op->tensor];
    if (!tile_is_read(V->p, t)) return verify_fail(V, "'%s' is a result", t->name);
    return check_elements(V, v, t);
}

// Its columns may be some of the tile's: those go through it one part after the other.
static bool has_part_of(const TileKernel *k, const TileValue *b, const TileValue *v) {
    if (b->rank != v->rank || b->rank < 1 || memcmp(b->axis, v->axis, (size_t)b->rank - 1))
        return false;
    const TileAxis *own = &k->axes[b->axis[b->rank - 1]], *all = &k->axes[v->axis[v->rank - 1]];
    return own == all || (own->whole && own->extent && all->extent % own->extent == 0);
}

static bool only_stores_from(const TileOp *op, const TileOp *to) {
    while (op && op != to && op->kind == TILE_STORE) op = op->next;
    return op == to;
}

// A warp asks once a tile for its part of a buffer of sums, when all sums are made: with the first store through it.
static bool check_behind(Verify *V, const TileValue *b) {
    const TileOp *op = V->op, *after = op;
    bool last = op->block->owner && op->block->owner->kind != TILE_LOOP;
    for (const TileOp *in = tile_next(&V->k->body, NULL); in; in = tile_next(&V->k->body, in)) {
        if (in == op) after = NULL;
        if (in->kind != TILE_STORE || in->args.n < 2 || in->args.data[1] != b) continue;
        last &= in->add ? after && tile_role_of(in) == tile_role_of(op)
                        : only_stores_from(in, op) || only_stores_from(op, in);
    }
    return last ||
           verify_fail(V, "stores through %%%s, as sums, follow each other at the end of a tile",
                       b->name);
}

static bool check_through(Verify *V, const TileValue *v, const TileValue *b, const TileTensor *t) {
    bool behind = !V->op->add && v->rank == 2 && dtype_half(t->dtype) &&
                  tile_own_panels(V->p, V->k, b) > 0; // sums, whose buffer is free then
    if (behind && !check_behind(V, b)) return false;
    if (!behind && (b->dtype != t->dtype || !has_part_of(V->k, b, v)))
        return verify_fail(V, "%%%s has not the shape of what is stored", b->name);
    return !V->op->add || t->blocked || !V->p->scheduled ||
           verify_fail(V, "a sum goes through a buffer to what lies in blocks");
}

static bool verify_store(Verify *V) {
    const TileValue *v = V->op->args.data[0];
    if (!verify_access(V, v)) return false;
    const TileTensor *t = &V->p->tensors.data[V->op->tensor];
    if (V->op->args.n > 1 && !check_through(V, v, V->op->args.data[1], t)) return false;
    if (!tile_is_written(V->p, t)) return verify_fail(V, "'%s' is read only", t->name);
    if (V->op->add && (t->dtype != DT_F32 || v->dtype != DT_F32 || !tensor_traits(t->role)->sums))
        return verify_fail(V, "'%s' or %%%s is nothing to sum: f32 results and workspaces are",
                           t->name, v->name);
    Scope s = verify_scope(V, "the condition");
    if (V->op->when && !verify_ex(V, V->op->when, EX_BOOL, &s)) return false;
    return dtype_reads(v->dtype) == dtype_reads(t->dtype) ||
           verify_fail(V, "%%%s is %s, '%s' is %s", v->name, dtype_name(v->dtype), t->name,
                       dtype_name(t->dtype));
}

// Where an element goes is said for each: its number is operand 2.
static bool check_places(Verify *V) {
    const TileOp *op = V->op;
    if (op->tensor < 0 || op->tensor >= V->p->tensors.n)
        return verify_fail(V, "there is no tensor %d", op->tensor);
    const TileTensor *t = &V->p->tensors.data[op->tensor];
    Scope s = verify_scope(V, "a coordinate");
    s.syms |= 1u << SYM_PARAM;
    if (t->role != TENSOR_WORK || t->dtype != DT_I32)
        return verify_fail(V, "'%s' is no i32 workspace", t->name);
    for (int d = 0; d < t->rank; d++) {
        if (op->coord[d].axis >= 0) return verify_fail(V, "a coordinate along an axis");
        if (!verify_ex(V, op->coord[d].at, EX_I32, &s)) return false;
    }
    return true;
}

static bool verify_append(Verify *V) {
    const TileValue *x = V->op->args.data[0], *take = V->op->args.data[1], *n = V->op->args.data[2],
                    *v = V->op->results.data[0];
    if (x->dtype != DT_I32 || x->rank != 1)
        return verify_fail(V, "%%%s is not i32 along one axis", x->name);
    if (take->dtype != DT_BOOL || take->rank != 1 || take->axis[0] != x->axis[0])
        return verify_fail(V, "%%%s does not say of each of %%%s whether", take->name, x->name);
    if (n->dtype != DT_I32 || n->rank != 0 || !verify_same_type(n, v))
        return verify_fail(V, "%%%s or %%%s is no count", n->name, v->name);
    return check_places(V);
}

static bool verify_mma(Verify *V) {
    if (V->op->async && !V->role && !tile_by_groups(V->k))
        return verify_fail(V, "an asynchronous product outside roles");
    const TileValue *v = V->op->results.data[0], *x = V->op->args.data[0], *y = V->op->args.data[1];
    const TileValue *sum = V->op->args.n > 2 ? V->op->args.data[2] : NULL;
    if (dtype_reads(x->dtype) != dtype_reads(y->dtype) || dtype_reads(x->dtype) == EX_BOOL)
        return verify_fail(V, "a product of %s and %s", dtype_name(x->dtype), dtype_name(y->dtype));
    if (v->dtype != (dtype_reads(x->dtype) == EX_F32 ? DT_F32 : DT_I32))
        return verify_fail(V, "%%%s is no accumulator", v->name);
    if (sum && !verify_same_type(sum, v))
        return verify_fail(V, "%%%s is not of the result's type", sum->name);
    if (V->op->tf32 && (x->dtype != DT_F32 || y->dtype != DT_F32))
        return verify_fail(V, "a product by tf32 of what is not f32");
    int inner = 0;
    for (int a = 0; a < V->k->naxes; a++) {
        bool in_x = tile_has_axis(x, a), in_y = tile_has_axis(y, a), in_v = tile_has_axis(v, a);
        const char *name = V->k->axes[a].name;
        if (in_v && !in_x && !in_y)
            return verify_fail(V, "the result has %s, which no operand has", name);
        if (in_x != in_y && !in_v)
            return verify_fail(V, "%s is in one operand and not in the result", name);
        inner += in_x && in_y && !in_v;
    }
    if (inner != 1)
        return verify_fail(V, "%d axes are in both operands and not in the result, not one", inner);
    return verify_first(V);
}

static bool verify_alloc(Verify *V) { return !V->depth || verify_fail(V, "a buffer in a loop"); }

static bool check_stage(Verify *V) {
    Scope s = verify_scope(V, "the stage");
    const TileValue *b = V->op->args.data[0];
    if (!verify_ex(V, V->op->stage, EX_I32, &s)) return false;
    bool constant = V->op->stage->op == EX_CONST;
    return !constant || (V->op->stage->i >= 0 && V->op->stage->i < b->stages) ||
           verify_fail(V, "stage %d of %%%s, which has %d", V->op->stage->i, b->name, b->stages);
}

static bool verify_copy(Verify *V) {
    const TileValue *b = V->op->args.data[0];
    if (!verify_access(V, b) || !check_stage(V)) return false;
    const TileTensor *t = &V->p->tensors.data[V->op->tensor];
    if (!check_elements(V, b, t)) return false;
    Scope s = verify_scope(V, "the condition");
    if (V->op->when && !verify_ex(V, V->op->when, EX_BOOL, &s)) return false;
    if (V->arrival[b->id] == NOTHING) V->arrival[b->id] = COPIED;
    return true;
}

static bool verify_view(Verify *V) {
    const TileValue *b = V->op->args.data[0], *v = V->op->results.data[0];
    if (!verify_same_type(b, v))
        return verify_fail(V, "%%%s is not of %%%s's type", v->name, b->name);
    if (is_pipe(b)) return V->role || verify_fail(V, "a pipe's stage is viewed outside roles");
    return check_stage(V);
}

static void advance(Verify *V, Arrival from, Arrival to) {
    for (int id = 0; id < V->k->nvalues; id++)
        if (V->arrival[id] == from) V->arrival[id] = to;
}

// ---- loops

static bool check_block(Verify *V, const TileBlock *b);

static bool check_bounds(Verify *V) {
    const TileOp *op = V->op;
    Scope bounds = verify_scope(V, "a bound"), index = verify_scope(V, "the tile's index"),
          where = verify_scope(V, "the condition");
    index.step = where.step = true;
    where.tile = op->axis;
    return verify_ex(V, op->from, EX_I32, &bounds) && verify_ex(V, op->to, EX_I32, &bounds) &&
           verify_ex(V, op->index, EX_I32, &index) &&
           (!op->where || verify_ex(V, op->where, EX_BOOL, &where));
}

bool verify_carried(Verify *V, const TileValue *inside, const TileValue *other, const char *what) {
    if (is_view(other)) return verify_fail(V, "%%%s is a view and may not be carried", other->name);
    return verify_same_type(inside, other) ||
           verify_fail(V, "%%%s and %s, %%%s, differ in type", inside->name, what, other->name);
}

// The body, in which the axis is bound and the carried values are known; afterwards what it defined
// is not. What has arrived in buffers stays so: it only ever gets further.
bool verify_body(Verify *V, bool binds) {
    const TileOp *op = V->op;
    int known = V->known.n;
    bool full = V->in_full, in_class = V->in_class;
    if (op->body.owner != op) return verify_fail(V, "its body is another op's");
    if (V->depth >= MAX_DEPTH) return verify_fail(V, "loops are nested too deeply");
    if (binds) V->bound[op->axis] = true;
    V->in_full |= op->tiles == CLASS_FULL;
    V->in_class |= op->tiles != CLASS_ANY;
    V->depth++;
    V->steps += op->kind == TILE_LOOP;
    for (int i = 0; i < op->carried.n; i++)
        if (!define(V, op->carried.data[i], op)) return false;
    if (!check_block(V, &op->body)) return false;
    V->op = op;
    V->depth--;
    V->steps -= op->kind == TILE_LOOP;
    V->in_full = full;
    V->in_class = in_class;
    if (binds) V->bound[op->axis] = false;
    while (V->known.n > known) V->value[V->known.data[--V->known.n]] = NULL;
    return true;
}

// What is carried: as many initial values, names, yielded values and results, of one type each.
bool verify_carry(Verify *V) {
    const TileOp *op = V->op, *yield = op->body.last;
    if (!yield || yield->kind != TILE_YIELD)
        return verify_fail(V, "its body does not end with yield");
    if (yield->args.n != op->carried.n)
        return verify_fail(V, "%d values are yielded, %d carried", yield->args.n, op->carried.n);
    for (int i = 0; i < op->carried.n; i++) {
        const TileValue *in = op->carried.data[i];
        if (!verify_carried(V, in, op->args.data[i], "its initial value") ||
            !verify_carried(V, in, yield->args.data[i], "what is yielded") ||
            !verify_carried(V, in, op->results.data[i], "the result"))
            return false;
    }
    return true;
}

bool verify_carry_counts(Verify *V) {
    const TileOp *op = V->op;
    return (op->carried.n == op->args.n && op->results.n == op->args.n) ||
           verify_fail(V, "%d initial values, %d carried, %d results", op->args.n, op->carried.n,
                       op->results.n);
}

bool verify_axis(Verify *V) {
    const TileOp *op = V->op;
    if (op->axis < 0 || op->axis >= V->k->naxes)
        return verify_fail(V, "it is over an axis that is not there");
    const TileAxis *a = &V->k->axes[op->axis];
    if (a->beside >= 0) return verify_fail(V, "it is over %s, which lies beside another", a->name);
    if (a->whole) return verify_fail(V, "it is over %s, which has one tile", a->name);
    if (V->bound[op->axis])
        return verify_fail(V, "the grid or another loop is already over %s", a->name);
    return true;
}

static bool verify_loop(Verify *V) {
    return verify_carry_counts(V) && verify_axis(V) && check_bounds(V) && verify_body(V, true) &&
           verify_carry(V);
}

static bool verify_yield(Verify *V) {
    const TileOp *op = V->op;
    const TileOp *owner = op->block->owner;
    if (!owner || owner->kind == TILE_ROLE) return verify_fail(V, "a yield outside loops");
    if (op->next) return verify_fail(V, "a yield before the end of its loop");
    bool once = owner->kind == TILE_AT || owner->kind == TILE_REDO;
    int n = once ? owner->results.n : owner->carried.n;
    return op->args.n <= n || verify_fail(V, "it takes %d operands", op->args.n);
}

static bool verify_none(Verify *V) { return (void)V, true; }

static bool verify_pending(Verify *V) {
    return V->op->pending >= 0 || verify_fail(V, "it waits for less than nothing");
}

static bool verify_wait(Verify *V) {
    advance(V, COPIED, WAITED);
    return verify_pending(V);
}

static bool verify_barrier(Verify *V) {
    advance(V, WAITED, ARRIVED);
    return true;
}

static bool (*const rules[TILE_KIND_COUNT])(Verify *V) = {
#define TILE_OP(e, name, results, least, most, flags, homes, text, rule) verify_##rule,
#include "ir/tile_ops.def"
#undef TILE_OP
};

static bool check_kind(Verify *V) {
    const TileOp *op = V->op;
    const TileOpInfo *is = tile_op_info(op->kind);
    bool roles = is->flags & OP_ROLES && !(op->kind == TILE_MMA_WAIT && tile_by_groups(V->k));
    if (roles && !V->role) return verify_fail(V, "it stands outside roles");
    if (is->results != TILE_ANY && op->results.n != is->results)
        return verify_fail(V, "it makes %d values, not %d", op->results.n, is->results);
    if (op->args.n < is->least || (is->most != TILE_ANY && op->args.n > is->most))
        return verify_fail(V, "it takes %d operands", op->args.n);
    return rules[op->kind](V);
}

static bool check_parts(Verify *V) {
    TileValue *v[2];
    return !tile_parts_conflict(V->op, v) ||
           verify_fail(V, "%%%s and %%%s cannot be in parts, or not in parts, like this",
                       v[0]->name, v[1]->name);
}

static bool check_op(Verify *V, const TileOp *op, const TileBlock *b) {
    V->op = op;
    if ((unsigned)op->kind >= TILE_KIND_COUNT)
        return V->op = NULL, verify_fail(V, "no such operation");
    if (op->block != b || (op == b->first && op->prev) ||
        (op->next ? op->next->prev != op : b->last != op))
        return verify_fail(V, "it is not linked into its block");
    if (V->roles && !V->role && op->kind != TILE_ROLE)
        return verify_fail(V, "it stands behind roles, which are the last in a kernel");
    if (op->behind && !verify_behind(V)) return false;
    for (int i = 0; i < op->args.n; i++)
        if (!check_use(V, op->args.data[i], wanted(op, i))) return false;
    // The results are checked as values first: what the kinds check relies on it.
    for (int i = 0; i < op->results.n; i++)
        if (!check_value(V, op->results.data[i])) return false;
    if (!check_kind(V)) return false;
    V->op = op;
    if (!verify_place(V) || !verify_marks(V)) return false;
    if (!check_parts(V)) return false;
    for (int i = 0; i < op->results.n; i++)
        if (!define(V, op->results.data[i], op)) return false;
    return true;
}

static bool check_block(Verify *V, const TileBlock *b) {
    for (const TileOp *op = b->first; op; op = op->next)
        if (!check_op(V, op, b)) return false;
    V->op = NULL;
    return true;
}

// ---- kernels

// Its tiles are those of the axis that it lies beside.
static bool check_beside(Verify *V, int axis) {
    const TileAxis *a = &V->k->axes[axis];
    if (a->beside < 0) return true;
    const TileAxis *of = a->beside < axis ? &V->k->axes[a->beside] : a;
    bool good =
        of->beside < 0 && of->size == a->size && of->extent == a->extent && of->whole == a->whole;
    return good ||
           verify_fail(V, "%s lies beside what is not an axis before it of the same size", a->name);
}

static bool check_axes(Verify *V) {
    const TileKernel *k = V->k;
    if (k->naxes < 0 || k->naxes > TILE_MAX_AXES) return verify_fail(V, "%d axes", k->naxes);
    for (int i = 0; i < k->naxes; i++) {
        const TileAxis *a = &k->axes[i];
        Scope s = launch_scope(V, "the size of an axis");
        s.own = true;
        if (!verify_is_name(a->name) || !strcmp(a->name, "b") || !strcmp(a->name, "h"))
            return verify_fail(V, "axis %d has no name of its own", i);
        for (int j = 0; j < i; j++)
            if (!strcmp(a->name, k->axes[j].name))
                return verify_fail(V, "two axes are called %s", a->name);
        if (!verify_ex(V, a->size, EX_I32, &s)) return false;
        if (a->extent < 0 || a->extent > MAX_EXTENT)
            return verify_fail(V, "a tile has %d elements along %s", a->extent, a->name);
        bool constant = a->size->op == EX_CONST;
        if (constant && (a->size->i < 0 || a->size->i > MAX_EXTENT))
            return verify_fail(V, "%s has %d elements", a->name, a->size->i);
        if (a->whole && !constant)
            return verify_fail(V, "%s is whole, but its size is not constant", a->name);
        if (a->whole && a->extent && a->extent < a->size->i)
            return verify_fail(V, "%s is whole, but a tile has fewer elements than the axis",
                               a->name);
        if (V->p->scheduled && !a->extent)
            return verify_fail(V, "%s has no extent, in a scheduled program", a->name);
        if (!check_beside(V, i)) return false;
    }
    return true;
}

// Over b, sizes and the tensors that say where rows lie.
static bool verify_packed(Verify *V, int i) {
    const TileKernel *k = V->k;
    const TileGrid *g = &k->grid[i];
    Scope s = {.what = "where a sequence's rows begin",
               .syms = 1u << SYM_SIZE | 1u << SYM_B,
               .sizes = V->p->sizes.n,
               .loads = true,
               .tile = -1};
    bool fits = V->p->batch && i > 0 && k->grid[0].sym == SYM_B && g->sym == SYM_TILE && !g->shared;
    if (!fits) return verify_fail(V, "tiles of sequences that follow each other are not such");
    return verify_ex(V, g->packed, EX_I32, &s);
}

static bool check_grid(Verify *V) {
    const TileKernel *k = V->k;
    if (k->ngrid < 0 || k->ngrid > TILE_MAX_GRID)
        return verify_fail(V, "a grid of %d dimensions", k->ngrid);
    for (int i = 0; i < k->ngrid; i++) {
        const TileGrid *g = &k->grid[i];
        Scope s = launch_scope(V, "the grid");
        if (!verify_ex(V, g->count, EX_I32, &s)) return false;
        if (g->from && !verify_ex(V, g->from, EX_I32, &s)) return false;
        Scope of_one = s;
        of_one.own = true;
        if (g->shared && !verify_ex(V, g->shared, EX_I32, &of_one)) return false;
        bool own = tile_counts_own(k) && k->grid[0].sym == SYM_B && !g->batch;
        bool other = (k->schedule.persist || k->schedule.cluster > 1) && !own;
        if (g->shared && (g->sym != SYM_TILE || other))
            return verify_fail(V, "tiles are shared by points that take them in another way");
        if (g->packed && !verify_packed(V, i)) return false;
        if (g->batch && !verify_together(V, g, &s)) return false;
        if (g->from && (i != k->ngrid - 1 || i < 3 || g->sym != SYM_TILE || g->reversed))
            return verify_fail(V, "heads that have one point of a dimension which is not behind "
                                  "heads and rows");
        if (g->sym != SYM_B && g->sym != SYM_H && g->sym != SYM_TILE)
            return verify_fail(V, "a grid over '%s'", ex_syms[g->sym].name);
        if (g->sym == SYM_TILE && (g->axis < 0 || g->axis >= k->naxes || k->axes[g->axis].whole ||
                                   k->axes[g->axis].beside >= 0))
            return verify_fail(V, "a grid over an axis that has no tiles");
        bool *bound = g->sym == SYM_B   ? &V->grid_b
                      : g->sym == SYM_H ? &V->grid_h
                                        : &V->bound[g->axis];
        if (*bound) return verify_fail(V, "two dimensions of the grid are over one thing");
        *bound = true;
    }
    return true;
}

static bool check_mask(Verify *V) {
    Scope s = verify_scope(V, "the mask"), where = verify_scope(V, "what the kernel asks");
    s.syms = 1u << SYM_B | 1u << SYM_H | 1u << SYM_SIZE | 1u << SYM_SCALAR | 1u << SYM_POS |
             1u << SYM_TILE;
    s.anywhere = true;
    where.syms = 1u << SYM_SIZE | 1u << SYM_SCALAR;
    return verify_ex(V, V->k->mask, EX_BOOL, &s) &&
           (!V->k->where || verify_ex(V, V->k->where, EX_BOOL, &where));
}

static bool check_unguarded(Verify *V) {
    for (const TileOp *op = tile_next(&V->k->body, NULL); op; op = tile_next(&V->k->body, op))
        for (int i = 0; i < op->results.n + op->carried.n; i++) {
            const TileValue *v =
                i < op->results.n ? op->results.data[i] : op->carried.data[i - op->results.n];
            if (v->unguarded && !tile_may_be_unguarded(V->scratch, V->k, v))
                return verify_fail(V, "%%%s cannot be unguarded", v->name);
        }
    return true;
}

// Names of values, once more than all others: a name is what a value is known by in the text.
static bool check_names(Verify *V) {
    const TileBlock *b = &V->k->body;
    VEC(const char *) names = {0};
    for (const TileOp *op = tile_next(b, NULL); op; op = tile_next(b, op)) {
        for (int i = 0; i < op->results.n; i++)
            VEC_PUSH(V->scratch, &names, op->results.data[i]->name);
        for (int i = 0; i < op->carried.n; i++)
            VEC_PUSH(V->scratch, &names, op->carried.data[i]->name);
    }
    int cap = 16;
    while (cap < 2 * names.n) cap *= 2;
    const char **table = ARENA_ARRAY(V->scratch, const char *, cap);
    for (int i = 0; i < names.n; i++) {
        unsigned at = 0;
        for (const char *s = names.data[i]; *s; s++) at = at * 31 + (unsigned char)*s;
        for (at &= (unsigned)cap - 1; table[at]; at = (at + 1) & ((unsigned)cap - 1))
            if (!strcmp(table[at], names.data[i]))
                return verify_fail(V, "two values are called %%%s", names.data[i]);
        table[at] = names.data[i];
    }
    return true;
}

static bool check_kernel(Verify *V, const TileKernel *k) {
    V->k = k;
    V->value = ARENA_ARRAY(V->scratch, const TileValue *, k->nvalues);
    V->defined = ARENA_ARRAY(V->scratch, bool, k->nvalues);
    V->arrival = ARENA_ARRAY(V->scratch, Arrival, k->nvalues);
    V->known.n = 0;
    memset(V->bound, 0, sizeof V->bound);
    V->grid_b = V->grid_h = V->roles = false;
    V->role = NULL;
    if (!verify_is_name(k->name)) return verify_fail(V, "a kernel without a name");
    bool ok = check_axes(V) && check_grid(V) && check_mask(V) && verify_schedule(V) &&
              check_block(V, &k->body) && verify_layouts(V) && verify_matrix(V) &&
              check_unguarded(V) && check_names(V);
    V->k = NULL;
    return ok;
}

// ---- the program

static bool check_sizes(Verify *V) {
    const TileProgram *p = V->p;
    if (p->sizes.n < SIZE_FREE) return verify_fail(V, "the fixed sizes are missing");
    for (int i = 0; i < p->sizes.n; i++) {
        const TileSize *z = &p->sizes.data[i];
        Scope s = {.what = arena_printf(V->scratch, "size %d", i),
                   .syms = 1u << SYM_SIZE | 1u << SYM_WORKERS,
                   .sizes = i,
                   .tile = -1};
        if (!verify_is_name(z->name)) return verify_fail(V, "size %d has no name", i);
        for (int j = 0; j < i; j++)
            if (!strcmp(z->name, p->sizes.data[j].name))
                return verify_fail(V, "two sizes are called %s", z->name);
        if (z->own) continue; // verify_own
        if (z->def && i < SIZE_FREE)
            return verify_fail(V, "size %s is given, not computed", z->name);
        if (z->def && !verify_ex(V, z->def, EX_I32, &s)) return false;
    }
    const TileSplit *t = &p->split;
    const int sizes[] = {t->few, t->longest, t->wanted, t->parts, t->share, t->whole, t->keys};
    for (int i = 0; i < 7; i++) {
        bool derived = sizes[i] >= SIZE_FREE && sizes[i] < p->sizes.n &&
                       p->sizes.data[sizes[i]].def && !p->sizes.data[sizes[i]].own;
        if (sizes[i] && !derived) return verify_fail(V, "rows are split by a size that is given");
        if (!sizes[i] != !sizes[i == 6 ? 6 : i ? 1 : 0])
            return verify_fail(V, "rows are split by too few sizes");
    }
    return true;
}

static bool check_tensor(Verify *V, int i) {
    const TileTensor *t = &V->p->tensors.data[i];
    Scope s = launch_scope(V, arena_printf(V->scratch, "an extent of tensor %d", i));
    if (!verify_is_name(t->name)) return verify_fail(V, "tensor %d has no name", i);
    for (int j = 0; j < i; j++)
        if (!strcmp(t->name, V->p->tensors.data[j].name))
            return verify_fail(V, "two tensors are called %s", t->name);
    if ((unsigned)t->role >= TENSOR_ROLE_COUNT || (unsigned)t->dtype >= DT_COUNT)
        return verify_fail(V, "tensor '%s' is of no kind", t->name);
    if (!tile_use(V->p, t->role))
        return verify_fail(V, "tensor '%s' is none of a program of phase %s", t->name,
                           tile_phase_name(V->p->phase));
    if (t->rank < 0 || t->rank > TILE_MAX_DIMS)
        return verify_fail(V, "tensor '%s' has %d dimensions", t->name, t->rank);
    if (!t->rank && t->role != TENSOR_INPUT)
        return verify_fail(V, "tensor '%s' is a scalar and no input", t->name);
    for (int d = 0; d < t->rank; d++)
        if (!verify_ex(V, t->extent[d], EX_I32, &s)) return false;
    if (!verify_blocked(V, t)) return false;
    if (t->exact && (t->role != TENSOR_WORK || t->dtype != DT_F32 || !t->rank ||
                     !ex_is_i32(t->extent[t->rank - 1], TILE_EXACT_WORDS)))
        return verify_fail(V, "tensor '%s' has no room for exact sums", t->name);
    if (t->rows &&
        (t->role != TENSOR_INPUT || t->rank < 2 || t->extent[t->rank - 1]->op != EX_CONST))
        return verify_fail(V, "tensor '%s' has no rows for products", t->name);
    bool listed = t->index >= 0 && t->index < V->p->inputs.n && V->p->inputs.data[t->index] == i;
    if (tile_is_index(t) && (t->dtype != DT_I32 || V->p->batch == BATCH_DENSE))
        return verify_fail(V, "tensor '%s' does not say where rows lie", t->name);
    return t->role != TENSOR_INPUT || listed ||
           verify_fail(V, "tensor '%s' is input %d, but not in the list of inputs", t->name,
                       t->index);
}

static bool check_inputs(Verify *V) {
    for (int i = 0; i < V->p->inputs.n; i++) {
        int at = V->p->inputs.data[i];
        bool known = at >= 0 && at < V->p->tensors.n;
        const TileTensor *t = known ? &V->p->tensors.data[at] : NULL;
        bool input = known && t->role == TENSOR_INPUT && t->index == i;
        if (!input && !(known && t->role != TENSOR_INPUT && tile_may_index(V->p, t)))
            return verify_fail(V, "input %d is no tensor of that number", i);
    }
    return true;
}

static bool check_plans(Verify *V) {
    const TileProgram *p = V->p;
    if (!p->plans.n) return verify_fail(V, "there is no plan");
    for (int i = 0; i < p->plans.n; i++) {
        const TilePlan *plan = &p->plans.data[i];
        Scope s = launch_scope(V, "a plan's condition");
        if (plan->when && !verify_ex(V, plan->when, EX_BOOL, &s)) return false;
        if (!plan->when != (i == p->plans.n - 1))
            return verify_fail(V,
                               plan->when ? "the last plan has a condition"
                                          : "plan %d has no condition, but is not the last",
                               i);
        if (!plan->kernels.n) return verify_fail(V, "plan %d runs nothing", i);
        for (int j = 0; j < plan->kernels.n; j++)
            if (plan->kernels.data[j] < 0 || plan->kernels.data[j] >= p->kernels.n)
                return verify_fail(V, "plan %d runs a kernel that is not there", i);
    }
    return true;
}

static bool check_program(Verify *V) {
    const TileProgram *p = V->p;
    if (!verify_is_name(p->name)) return verify_fail(V, "a program without a name");
    if ((unsigned)p->target >= TARGET_COUNT || (unsigned)p->dtype >= DT_COUNT)
        return verify_fail(V, "a program for no target");
    if (p->D < 1 || p->Dv < 1) return verify_fail(V, "dims are D=%d Dv=%d", p->D, p->Dv);
    if (!check_sizes(V)) return false;
    for (int i = 0; i < p->tensors.n; i++)
        if (!check_tensor(V, i)) return false;
    if (!check_inputs(V) || !verify_own(V) || !check_plans(V)) return false;
    for (int i = 0; i < p->kernels.n; i++) {
        for (int j = 0; j < i; j++)
            if (!strcmp(p->kernels.data[i]->name, p->kernels.data[j]->name))
                return verify_fail(V, "two kernels are called %s", p->kernels.data[i]->name);
        if (!check_kernel(V, p->kernels.data[i])) return false;
    }
    return true;
}

bool tile_verify(const TileProgram *p, Diags *diags) {
    Verify V = {.p = p, .diags = diags, .scratch = arena_new()};
    bool ok = check_program(&V);
    arena_free(V.scratch);
    return ok;
}
