// launch_parts.c: a launch by parts of the keys, as ranks of a ring or a shared prefix would make it.
//
// In: a binding on a device. Out: steps of the launch. Rows are in two pieces. Each piece sees the parts of the keys in turn, the first
// piece beginning with the first part, the second one with the second. A part goes on from the state of the part before the last, so that
// two states are left, which a combination makes results of.
#include "launch.h"
#include "runtime/device.h"
#include <stdlib.h>
#include <string.h>

enum { STATES = 2, PIECES = 2 };

typedef struct Range {
    int64_t first, n;
} Range;

typedef struct Parts {
    Launch *l;
    const attn_tensor *placed;
    int states;               // of a piece
    int64_t shape[STATES][8]; // of sums and numbers, of all states of a piece
    int rank[STATES];         // 0: there are none
    void *memory[STATES];
} Parts;

static const char *const kept_names[STATES] = {"state", "rows"}, *const before[] = {"state0",
                                                                                    "rows0"};

// As torch.chunk cuts: the last ones may have fewer, or none.
static Range cut(int64_t all, int n, int i) {
    int64_t step = (all + n - 1) / n, first = i * step < all ? i * step : all;
    return (Range){first, first + step < all ? step : all - first};
}

// Rows of a tensor [B, heads, rows, columns] or [B, heads, rows].
static void narrow(Arena *a, attn_tensor *t, Range r) {
    int64_t *shape = ARENA_ARRAY(a, int64_t, t->rank), *strides = ARENA_ARRAY(a, int64_t, t->rank);
    int64_t stride = 1;
    for (int d = t->rank; d-- > 0; stride *= t->shape[d])
        shape[d] = t->shape[d], strides[d] = stride;
    t->data = (char *)t->data + r.first * strides[2] * dtype_bytes((Dtype)t->dtype);
    shape[2] = r.n;
    t->shape = shape;
    t->strides = strides;
}

static bool is_of_queries(const Signature *sig, const char *name) {
    int arg = sig_arg(sig, name);
    return arg >= 0 && (sig->args.data[arg].role == ARG_OUTPUT || !strcmp(name, "q"));
}

static bool is_of_keys(const char *name) { return !strcmp(name, "k") || !strcmp(name, "v"); }

// What is kept of state i of a piece, or of all (i < 0).
static attn_tensor kept(const Parts *p, int of, int i, const char *name, int64_t *shape) {
    int64_t n = 1;
    bool all = i < 0;
    for (int d = 1; d < p->rank[of]; d++) n *= p->shape[of][d];
    memcpy(shape, p->shape[of] + !all, sizeof(int64_t) * (size_t)(p->rank[of] - !all));
    return (attn_tensor){.name = name,
                         .data = (char *)p->memory[of] + (all ? 0 : i * n * (int64_t)sizeof(float)),
                         .dtype = ATTN_F32,
                         .rank = p->rank[of] - !all,
                         .shape = shape,
                         .device = p->l->device};
}

static void add_size(LaunchCall *c, const char *name, int64_t value) {
    c->sizes[c->call.nsizes++] = (attn_size){name, value};
}

// The whole's sizes, and where the rows stand; local ones come from tensors.
static void place_sizes(LaunchCall *c, const Binding *b, Range rows) {
    size_t n = c->call.nsizes;
    c->call.nsizes = 0;
    for (size_t i = 0; i < n; i++)
        if (i != SIZE_SQ && i != SIZE_SK && i != SIZE_Q_OFFSET)
            c->sizes[c->call.nsizes++] = c->sizes[i];
    add_size(c, "q_offset", b->size[SIZE_Q_OFFSET] + rows.first);
    add_size(c, "q_first", rows.first);
    add_size(c, "Sq_all", b->size[SIZE_SQ]);
    add_size(c, "Sk_all", b->size[SIZE_SK]);
}

static void remember(Launch *l, void *memory, attn_prepared *prepared) {
    LaunchStep step = {prepared, memory};
    VEC_PUSH(l->arena, &l->steps, step);
}

// keys: NULL of a combination. from: the state that it goes on from; -1: none.
static Status step(Parts *p, attn_phase phase, Range rows, const Range *keys, int from, int to) {
    Launch *l = p->l;
    LaunchCall c = {0};
    int64_t kept_shape[2 * STATES][8];
    Status s = launch_call(l, phase, p->placed, &c);
    if (s == STATUS_DONE) place_sizes(&c, l->binding, rows);
    if (s == STATUS_DONE && keys) add_size(&c, "kv_first", keys->first);
    for (size_t i = 0; i < c.call.ntensors && s == STATUS_DONE; i++) {
        attn_tensor *t = &c.tensors[i];
        bool queries = is_of_queries(l->sig, t->name);
        if (!queries && !is_of_keys(t->name)) continue;
        narrow(l->arena, t, queries ? rows : *keys);
    }
    for (int of = 0; of < STATES && s == STATUS_DONE; of++) {
        if (!p->rank[of]) continue;
        c.tensors[c.call.ntensors++] = kept(p, of, to, kept_names[of], kept_shape[of]);
        if (from >= 0)
            c.tensors[c.call.ntensors++] = kept(p, of, from, before[of], kept_shape[STATES + of]);
    }
    if (s == STATUS_DONE) s = launch_add_saved(l, &c);
    void *workspace = NULL;
    attn_prepared *prepared = NULL;
    if (s == STATUS_DONE) s = launch_prepare(l, &c, &workspace, &prepared, NULL);
    remember(l, workspace, prepared);
    launch_free_call(&c);
    return s;
}

// Shapes and memory of the states of a piece, by the combination.
static Status make_states(Parts *p, Range rows) {
    Launch *l = p->l;
    LaunchCall c = {0};
    attn_error e;
    Status s = launch_call(l, ATTN_COMBINE, p->placed, &c);
    if (s == STATUS_DONE) place_sizes(&c, l->binding, rows);
    if (s == STATUS_DONE) {
        c.call.ntensors = 0;
        add_size(&c, "Sq", rows.n);
        add_size(&c, "parts", p->states);
    }
    for (int of = 0; of < STATES && s == STATUS_DONE; of++) {
        int64_t bytes = sizeof(float);
        p->rank[of] = 0;
        if (attn_shape(l->artifact, &c.call, kept_names[of], p->shape[of], &p->rank[of], &e)) {
            if (!of) s = launch_failed(&e); // sums alone
            p->rank[of] = 0;
            continue;
        }
        for (int d = 0; d < p->rank[of]; d++) bytes *= p->shape[of][d];
        if (attn_memory_alloc(l->context, l->device, bytes ? (size_t)bytes : 1, &p->memory[of], &e))
            s = launch_failed(&e);
        else
            remember(l, p->memory[of], NULL);
    }
    launch_free_call(&c);
    return s;
}

static Status piece(Parts *p, Range rows, int first) {
    int parts = p->l->parts;
    Status s = make_states(p, rows);
    for (int i = 0; i < parts && s == STATUS_DONE; i++) {
        Range keys = cut(p->l->binding->size[SIZE_SK], parts, (i + first) % parts);
        s = step(p, ATTN_PART, rows, &keys, i < p->states ? -1 : i % p->states, i % p->states);
    }
    return s == STATUS_DONE ? step(p, ATTN_COMBINE, rows, NULL, -1, -1) : s;
}

Status launch_parts(Launch *l, const attn_tensor *placed) {
    Parts p = {.l = l, .placed = placed, .states = l->parts < STATES ? l->parts : STATES};
    int pieces = l->sig->backward ? 1 : PIECES; // what a backward needs is kept of all rows
    Status s = STATUS_DONE;
    for (int i = 0; i < pieces && s == STATUS_DONE; i++)
        s = piece(&p, cut(l->binding->size[SIZE_SQ], pieces, i), i);
    return s;
}
