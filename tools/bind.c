// bind.c: see bind.h. Sizes are settled first and in the order of the contract, arrays before
// --shape before defaults; then every array is held against them; then what no one named is made.
#include "bind.h"
#include "batch.h"
#include "draw.h"
#include "ir/tile_eval.h"
#include "npy.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct Bind {
    Binding *b;
    Arena *arena;
    const Signature *sig;
    const Options *o;
    Npy *file;         // one per argument; data NULL: not given
    Draw *draw;        // likewise
    const char **from; // one per size: what settled it, NULL while it is open
    bool only_inputs;  // q, k, v and outputs get no memory
    const bool *read;  // by argument: whether it is needed; NULL: all are
} Bind;

static Status settle(Bind *c, int size, int64_t value, const char *from) {
    const char *name = c->sig->sizes.data[size];
    if (!c->from[size]) {
        bool rows = c->sig->batch && (size == sig_rows(c->sig) || size == ABI_SIZE_TK);
        int64_t most = c->sig->recurrence || rows ? INT32_MAX : SIZE_LIMIT;
        if (value < 0 || value > most)
            return cmd_fail(STATUS_INPUT, "%s = %lld (%s) is out of range: at most %lld", name,
                            (long long)value, from, (long long)most);
        c->from[size] = from;
        c->b->size[size] = (int32_t)value;
    } else if (c->b->size[size] != value)
        return cmd_fail(STATUS_INPUT, "%s is %d (%s) and %lld (%s)", name, c->b->size[size],
                        c->from[size], (long long)value, from);
    return STATUS_DONE;
}

// ---- arrays and scalars that --in names

// To what the input's type holds, as an array's elements are.
static double rounded(Dtype t, double v) {
    if (dtype_reads(t) != EX_F32 || dtype_byte(t)) return dtype_round(t, v);
    return t == DT_F16    ? half_to_f32(half_from_f32((float)v))
           : t == DT_BF16 ? bf16_to_f32(bf16_from_f32((float)v))
                          : (float)v;
}

static Status scalar(Bind *c, int arg, const char *text) {
    const SigArg *g = &c->sig->args.data[arg];
    double v = 0;
    size_t n = strlen(text);
    if (n > 4 && strcmp(text + n - 4, ".npy") == 0) {
        Npy file;
        Status s = npy_read(text, &file);
        if (s != STATUS_DONE) return s;
        bool one = file.count == 1;
        if (one) v = npy_get(&file, 0);
        npy_free(&file);
        if (!one) return cmd_fail(STATUS_INPUT, "%s is a scalar: %s holds an array", g->name, text);
    } else if (!draw_number(text, &v))
        return cmd_fail(STATUS_USAGE, "--in %s=%s: %s is a scalar and takes a number of type %s",
                        g->name, text, g->name, dtype_name(g->dtype));
    if (!sig_holds(g, v))
        return cmd_fail(STATUS_USAGE, "--in %s=%s: %s is %s and takes %s", g->name, text, g->name,
                        dtype_name(g->dtype),
                        g->dtype == DT_BOOL ? "0 or 1"
                        : g->dtype == DT_I8 ? "a whole number from -128 to 127"
                                            : "a whole number");
    c->b->scalar[arg] = rounded(g->dtype, v);
    // Of 8 bits the largest number is where larger ones are rounded to.
    double most = g->dtype == DT_E4M3 ? 464 : g->dtype == DT_E5M2 ? 61440 : INFINITY;
    if (isfinite(v) && (!isfinite(c->b->scalar[arg]) || fabs(v) > most))
        return cmd_fail(STATUS_USAGE, "--in %s=%s: %s is %s, which holds no number as large",
                        g->name, text, g->name, dtype_name(g->dtype));
    return STATUS_DONE;
}

static Status extent_is(Bind *c, const SigArg *g, int d, int64_t n) {
    if (g->extent[d].size >= 0 && n < g->extent[d].value)
        return cmd_fail(STATUS_INPUT, "%s: dimension %d is %lld, expected %s + %lld", g->name, d,
                        (long long)n, c->sig->sizes.data[g->extent[d].size],
                        (long long)g->extent[d].value);
    if (g->extent[d].size >= 0)
        return settle(c, g->extent[d].size, n - g->extent[d].value,
                      arena_printf(c->arena, "from %s", g->name));
    if (n == g->extent[d].value) return STATUS_DONE;
    return cmd_fail(STATUS_INPUT, "%s: dimension %d is %lld, expected %lld", g->name, d,
                    (long long)n, (long long)g->extent[d].value);
}

static Status array(Bind *c, int arg, const char *path) {
    const SigArg *g = &c->sig->args.data[arg];
    Npy *file = &c->file[arg];
    Draw *draw = &c->draw[arg];
    const char *why = draw_read(draw, c->arena, g, path);
    if (why) return cmd_fail(STATUS_USAGE, "--in %s=%s: %s", g->name, path, why);
    if (draw->kind > DRAW_LIST) return STATUS_DONE;
    if (draw->kind == DRAW_LIST) return extent_is(c, g, 0, draw->n);
    Status s = npy_read(path, file);
    if (s != STATUS_DONE) return s;
    if (file->rank != g->rank)
        return cmd_fail(STATUS_INPUT, "%s has %d dimensions, and %s has %d", path, file->rank,
                        g->name, g->rank);
    for (int d = 0; d < g->rank && s == STATUS_DONE; d++) s = extent_is(c, g, d, file->dim[d]);
    return s;
}

static Status position(Bind *c, const char *text) {
    double v;
    if (!draw_number(text, &v) || v != floor(v))
        return cmd_fail(STATUS_USAGE, "--in q_offset=%s: it takes a whole number", text);
    if (fabs(v) > SIZE_LIMIT)
        return cmd_fail(STATUS_INPUT, "q_offset = %s is out of range: from -%d to %d", text,
                        SIZE_LIMIT, SIZE_LIMIT);
    c->b->size[SIZE_Q_OFFSET] = (int32_t)v; // may be negative, as no size may
    c->from[SIZE_Q_OFFSET] = "from --in";
    return STATUS_DONE;
}

// What --in NAME may not name.
static Status not_an_input(const Bind *c, const char *name, int arg) {
    const char *instead = sig_instead(c->arena, c->sig, name, true);
    if (arg < 0 && sig_is_gradient(c->sig, name) && !c->sig->backward)
        return cmd_fail(STATUS_USAGE, "--in %s: it is a gradient, and no backward is asked for%s",
                        name, c->o->verb == VERB_BENCH ? ": --phase=bwd" : "");
    if (sig_is_gradient(c->sig, name))
        return cmd_fail(STATUS_USAGE, "--in %s: the backward takes the gradients of outputs: do%s",
                        name, c->sig->recurrence ? ", dstate" : " and dNAME of an emit");
    if (name[0] == 'd' && name[1] && !c->sig->recurrence)
        return cmd_fail(STATUS_USAGE, "--in %s: %s has no such input, and emits no %s%s", name,
                        c->sig->name, name + 1, instead);
    return cmd_fail(STATUS_USAGE, "--in %s: %s has no such input%s", name, c->sig->name, instead);
}

static Status named_inputs(Bind *c) {
    bool *seen = ARENA_ARRAY(c->arena, bool, c->sig->args.n);
    for (int i = 0; i < c->o->in.n; i++) {
        const NameValue *p = &c->o->in.data[i];
        int arg = sig_arg(c->sig, p->name);
        Status s;
        bool offset = arg < 0 && !c->sig->recurrence && !c->sig->batch;
        if (offset && strcmp(p->name, "q_offset") == 0)
            s = position(c, p->value);
        else if (arg < 0 || !sig_is_read(&c->sig->args.data[arg]))
            s = not_an_input(c, p->name, arg);
        else if (seen[arg])
            s = cmd_fail(STATUS_USAGE, "--in %s is given twice", p->name);
        else
            s = c->sig->args.data[arg].rank ? array(c, arg, p->value) : scalar(c, arg, p->value);
        if (s != STATUS_DONE) return s;
        if (arg >= 0) seen[arg] = true;
    }
    for (int i = 0; i < c->sig->args.n; i++) {
        const SigArg *g = &c->sig->args.data[i];
        bool needed = !c->read || c->read[i];
        if (g->rank == 0 && g->dtype != DT_BOOL && !seen[i] && needed)
            return cmd_fail(STATUS_USAGE, "%s is a scalar input and needs a number: --in %s=...",
                            g->name, g->name);
        if (g->rank > 0 && g->role == ARG_INPUT && !g->optional && !seen[i] && c->read &&
            c->read[i])
            return cmd_fail(STATUS_USAGE, "the mask reads %s: --in %s=...", g->name, g->name);
    }
    return STATUS_DONE;
}

// ---- sizes

// "B, H, Sq": those of the signature, without q_offset.
static const char *all_sizes(const Bind *c) {
    Text t = text_new(c->arena);
    for (int i = 0; i < c->sig->sizes.n; i++)
        if (strcmp(c->sig->sizes.data[i], "q_offset") != 0)
            text_printf(&t, "%s%s", t.n ? ", " : "", c->sig->sizes.data[i]);
    return t.s;
}

static Status shape_option(Bind *c, const char *text) {
    const char *name;
    int64_t value;
    bool good = true;
    while (text && (name = options_size(&text, c->arena, &value, &good))) {
        int size = sig_size(c->sig, name);
        bool dim = strcmp(name, "D") == 0 || strcmp(name, "Dv") == 0;
        if (dim && value == (name[1] ? c->sig->Dv : c->sig->D)) continue;
        if (dim)
            return cmd_fail(STATUS_USAGE, "--shape: %s is a dim of %s; -D%s=%lld changes it", name,
                            c->sig->name, name, (long long)value);
        bool own = c->sig->recurrence ? strcmp(name, "S") == 0
                                      : strcmp(name, "Sq") == 0 || strcmp(name, "Sk") == 0;
        if (c->sig->batch && own)
            return cmd_fail(
                STATUS_USAGE,
                "--shape: in layout %s each sequence has its own %s: --in %s=... says them",
                batch_name(c->sig->batch), name,
                name[1] != 'k'                 ? "q_start"
                : c->sig->batch == BATCH_PAGED ? "kv_len"
                                               : "kv_start");
        if (size < 0)
            return cmd_fail(STATUS_USAGE, "--shape: %s has no size %s; it has %s", c->sig->name,
                            name, all_sizes(c));
        Status s = settle(c, size, value, "from --shape");
        if (s != STATUS_DONE) return s;
    }
    return STATUS_DONE;
}

static void default_size(Bind *c, int size, int32_t value) {
    if (c->from[size]) return;
    c->from[size] = "by default";
    c->b->size[size] = value;
}

static void head_defaults(Bind *c) {
    int32_t *n = c->b->size;
    default_size(c, SIZE_B, 1);
    default_size(c, SIZE_HQ, c->from[SIZE_HKV] ? n[SIZE_HKV] : 1);
    default_size(c, SIZE_HKV, n[SIZE_HQ]);
}

static Status default_rows(Bind *c, int size, int64_t value) {
    return c->from[size] ? STATUS_DONE : settle(c, size, value, "by default");
}

static bool is_named(const Bind *c, int arg) { return c->draw[arg].kind || c->file[arg].data; }

// An extent that no sequence exceeds.
static void open_default(Bind *c, const SigExtent *e) {
    const int32_t *n = c->b->size;
    int64_t longest = n[e->open == SIZE_SK ? (int)ABI_SIZE_TK : sig_rows(c->sig)];
    if (e->open == SIZE_SK && c->sig->batch == BATCH_PAGED)
        longest = (int64_t)n[ABI_SIZE_PAGE] * n[ABI_SIZE_TABLE];
    if (e->open) default_size(c, e->size, (int32_t)(longest < SIZE_LIMIT ? longest : SIZE_LIMIT));
}

// What no sequence exceeds.
static void sequence_defaults(Bind *c) {
    const int32_t *n = c->b->size;
    int q_start = sig_arg(c->sig, "q_start"), Tq = sig_rows(c->sig);
    for (int i = 0; i < c->sig->args.n; i++)
        for (int d = 0; d < c->sig->args.data[i].rank; d++)
            open_default(c, &c->sig->args.data[i].extent[d]);
    bool starts = is_named(c, q_start) || batch_makes(c->sig, n, &c->sig->args.data[q_start]);
    int32_t longest = starts ? n[Tq] : n[SIZE_B] ? n[Tq] / n[SIZE_B] : 0;
    default_size(c, Tq + 1, longest < SIZE_LIMIT ? longest : SIZE_LIMIT);
}

// Decoding over pages, or prompts in ragged batches, of about as many rows as in dense ones.
enum { ROWS = 256 };
static Status batch_defaults(Bind *c) {
    enum { PAGE = 16 };
    int32_t *n = c->b->size;
    bool paged = c->sig->batch == BATCH_PAGED;
    head_defaults(c);
    Status s = default_rows(c, ABI_SIZE_TQ, (int64_t)n[SIZE_B] * (paged ? 1 : ROWS));
    if (paged) {
        default_size(c, ABI_SIZE_PAGE, c->sig->page ? c->sig->page : PAGE);
        default_size(c, ABI_SIZE_TABLE, n[ABI_SIZE_PAGE] ? (ROWS - 1) / n[ABI_SIZE_PAGE] + 1 : 1);
    }
    if (s == STATUS_DONE)
        s = default_rows(c, ABI_SIZE_TK,
                         paged ? (int64_t)n[SIZE_B] * n[ABI_SIZE_TABLE] : n[ABI_SIZE_TQ]);
    if (c->sig->page && n[ABI_SIZE_PAGE] != c->sig->page)
        return cmd_fail(STATUS_INPUT,
                        "page is %d (%s), this kernel is for pages of %d (--layout=paged:%d)",
                        n[ABI_SIZE_PAGE], c->from[ABI_SIZE_PAGE], c->sig->page, c->sig->page);
    sequence_defaults(c);
    return s;
}

static void attention_defaults(Bind *c) {
    int32_t *n = c->b->size;
    head_defaults(c);
    default_size(c, SIZE_SQ, ROWS);
    default_size(c, SIZE_SK, n[SIZE_SQ]);
    default_size(c, SIZE_Q_OFFSET, n[SIZE_SK] > n[SIZE_SQ] ? n[SIZE_SK] - n[SIZE_SQ] : 0);
}

static Status recurrence_defaults(Bind *c) {
    static const int heads[] = {RSIZE_HQ, RSIZE_HK, RSIZE_HV};
    int32_t *n = c->b->size, most = 1;
    for (int i = 0; i < 3; i++)
        if (c->from[heads[i]] && n[heads[i]] > most) most = n[heads[i]];
    default_size(c, RSIZE_B, 1);
    default_size(c, RSIZE_H, most);
    for (int i = 0; i < 3; i++) default_size(c, heads[i], n[RSIZE_H]);
    if (!c->sig->batch) {
        default_size(c, RSIZE_S, ROWS);
        return STATUS_DONE;
    }
    Status s = default_rows(c, ABI_RSIZE_TQ, (int64_t)n[RSIZE_B] * ROWS);
    default_size(c, ABI_RSIZE_SLOTS, n[RSIZE_B]);
    if (n[RSIZE_B] && !n[ABI_RSIZE_SLOTS])
        return cmd_fail(STATUS_INPUT, "slots = 0 (%s), and there are sequences",
                        c->from[ABI_RSIZE_SLOTS]);
    sequence_defaults(c);
    return s;
}

static Status heads_divide(Bind *c) {
    const int32_t *n = c->b->size;
    if (!c->sig->recurrence) {
        if (n[SIZE_HKV] && n[SIZE_HQ] % n[SIZE_HKV] == 0) return STATUS_DONE;
        if (n[SIZE_HQ] == 0) return STATUS_DONE;
        return cmd_fail(STATUS_INPUT, "H = %d is no multiple of Hkv = %d", n[SIZE_HQ], n[SIZE_HKV]);
    }
    int32_t most = 0;
    for (int i = RSIZE_HQ; i <= RSIZE_HV; i++) {
        if (n[i] == 0 || n[RSIZE_H] % n[i] != 0)
            return cmd_fail(STATUS_INPUT, "%s = %d does not divide H = %d", c->sig->sizes.data[i],
                            n[i], n[RSIZE_H]);
        if (n[i] > most) most = n[i];
    }
    return most == n[RSIZE_H]
               ? STATUS_DONE
               : cmd_fail(STATUS_INPUT, "H = %d, but none of Hq, Hk, Hv is as much", n[RSIZE_H]);
}

static Status sizes(Bind *c, const char *shape) {
    Status s = shape_option(c, shape);
    if (s != STATUS_DONE) return s;
    if (c->sig->recurrence)
        s = recurrence_defaults(c);
    else if (c->sig->batch)
        s = batch_defaults(c);
    else
        attention_defaults(c);
    if (s != STATUS_DONE) return s;
    for (int i = 0; i < c->sig->sizes.n; i++)
        if (!c->from[i])
            return cmd_fail(STATUS_USAGE,
                            "no array gives the size %s: --shape=%s=... does (each --shape is a "
                            "configuration of its own: sizes of one go together, --shape=A=1,B=2)",
                            c->sig->sizes.data[i], c->sig->sizes.data[i]);
    return heads_divide(c);
}

// ---- tensors

static bool has_memory(const Bind *c, const SigArg *g) {
    if (c->read && !c->read[g - c->sig->args.data]) return false;
    return g->rank > 0 && (!c->only_inputs || g->role == ARG_INPUT);
}

static int64_t extent(const Bind *c, const SigExtent *e) {
    return e->size >= 0 ? c->b->size[e->size] + e->value : e->value;
}

// Before anything is drawn: what is made here must fit the machine. In doubles, which nothing
// overflows.
static Status fits(const Bind *c) {
    double all = 0, most = 0,
           have = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    const char *largest = "";
    for (int i = 0; i < c->sig->args.n; i++) {
        const SigArg *g = &c->sig->args.data[i];
        if (!has_memory(c, g)) continue;
        double bytes = dtype_bytes(g->dtype);
        for (int d = 0; d < g->rank; d++) bytes *= (double)extent(c, &g->extent[d]);
        all += bytes;
        if (bytes > most) most = bytes, largest = g->name;
    }
    if (have <= 0 || all <= have) return STATUS_DONE;
    return cmd_fail(STATUS_INPUT,
                    "the tensors take %.4g GiB, of which %s %.4g; this machine has %.4g",
                    all / 0x1p30, largest, most / 0x1p30, have / 0x1p30);
}

// Scores are products of both.
static void spread(Tensor *t, double deviation) {
    for (int64_t i = 0; i < t->count; i++) tensor_set(t, i, tensor_get(t, i) * sqrt(deviation));
}

static Status make(Bind *c, int arg) {
    const SigArg *g = &c->sig->args.data[arg];
    Tensor *t = &c->b->tensor[arg];
    int64_t dim[TENSOR_MAX_RANK];
    if (!has_memory(c, g)) return STATUS_DONE;
    if (c->file[arg].data) return npy_to_tensor(&c->file[arg], g->dtype, g->name, t);
    for (int d = 0; d < g->rank; d++) dim[d] = extent(c, &g->extent[d]);
    if (g->role == ARG_INDEX && !is_named(c, arg) && !batch_makes(c->sig, c->b->size, g))
        return STATUS_DONE; // left out
    if (!tensor_alloc(t, g->dtype, g->rank, dim))
        return cmd_fail(STATUS_SYSTEM, "%s: out of memory", g->name);
    if (!sig_is_read(g))
        memset(t->data, 0xff,
               (size_t)t->count * (size_t)dtype_bytes(g->dtype)); // NaN in every float type
    else if (c->draw[arg].kind)
        draw_fill(&c->draw[arg], t, c->o->seed, g->name);
    else if (g->role == ARG_INDEX)
        batch_fill(c->sig, c->b->size, g, t, c->o->seed);
    else if (g->optional && (c->o->verb != VERB_CHECK || g->role != ARG_GRAD_IN))
        memset(t->data, 0, (size_t)t->count * (size_t)dtype_bytes(g->dtype));
    else
        draw_default(g, t, c->o->seed, c->o->verb == VERB_BENCH || c->o->verb == VERB_TUNE);
    bool scores = !strcmp(g->name, "q") || !strcmp(g->name, "k");
    if (c->o->deviation > 0 && scores && !c->draw[arg].kind) spread(t, c->o->deviation);
    c->b->unnamed[arg] = g->role == ARG_INPUT && !g->optional && !c->draw[arg].kind;
    return STATUS_DONE;
}

static Status bind(Binding *b, Arena *a, const Signature *sig, const Options *o, const char *shape,
                   bool only_inputs, const bool *read) {
    Bind c = {b,
              a,
              sig,
              o,
              ARENA_ARRAY(a, Npy, sig->args.n + 1),
              ARENA_ARRAY(a, Draw, sig->args.n + 1),
              ARENA_ARRAY(a, const char *, sig->sizes.n + 1),
              only_inputs,
              read};
    *b = (Binding){.sig = sig,
                   .size = ARENA_ARRAY(a, int32_t, sig->sizes.n + 1),
                   .tensor = ARENA_ARRAY(a, Tensor, sig->args.n + 1),
                   .scalar = ARENA_ARRAY(a, double, sig->args.n + 1),
                   .unnamed = ARENA_ARRAY(a, bool, sig->args.n + 1)};
    Status s = named_inputs(&c);
    if (s == STATUS_DONE) s = sizes(&c, shape);
    if (s == STATUS_DONE) s = fits(&c);
    for (int i = 0; i < sig->args.n && s == STATUS_DONE; i++) s = make(&c, i);
    for (int i = 0; i < sig->args.n && s == STATUS_DONE && o->verb == VERB_CHECK; i++)
        if (sig_is_read(&sig->args.data[i]) && !is_named(&c, i)) batch_poison(b, i);
    for (int i = 0; i < sig->args.n; i++) npy_free(&c.file[i]);
    if (s != STATUS_DONE) bind_free(b);
    return s;
}

Status bind_make(Binding *b, Arena *a, const Signature *sig, const Options *o, const char *shape) {
    return bind(b, a, sig, o, shape, false, NULL);
}

Status bind_inputs(Binding *b, Arena *a, const Signature *sig, const Options *o,
                   const char *shape) {
    return bind(b, a, sig, o, shape, true, NULL);
}

Status bind_read(Binding *b, Arena *a, const Signature *sig, const Options *o, const char *shape,
                 const bool *read) {
    return bind(b, a, sig, o, shape, true, read);
}

void bind_free(Binding *b) {
    for (int i = 0; b->sig && i < b->sig->args.n; i++) tensor_free(&b->tensor[i]);
}

const char *bind_describe(const Binding *b, char *buf, size_t n) {
    size_t used = 0;
    buf[0] = 0;
    const SigArg *k = &b->sig->args.data[1];
    if (dtype_byte(k->dtype))
        used += (size_t)snprintf(buf, n, "k and v %s, ", dtype_name(k->dtype));
    if (b->sig->batch)
        used += (size_t)snprintf(buf + used, n - used, "%s: ", batch_name(b->sig->batch));
    for (int i = 0; i < b->sig->sizes.n && used < n; i++)
        used += (size_t)snprintf(buf + used, n - used, "%s%s=%d", i ? " " : "",
                                 b->sig->sizes.data[i], b->size[i]);
    if (used < n) snprintf(buf + used, n - used, " D=%d Dv=%d", b->sig->D, b->sig->Dv);
    return buf;
}

double bind_pairs(const Binding *b) {
    const int32_t *n = b->size;
    if (b->sig->batch) return batch_pairs(b);
    return (double)n[SIZE_B] * n[SIZE_HQ] * n[SIZE_SQ] * n[SIZE_SK];
}

const char *bind_zeros(const Binding *b, Arena *a) {
    const char *names = NULL, *how = NULL;
    for (int i = 0; i < b->sig->args.n; i++) {
        const SigArg *g = &b->sig->args.data[i];
        if (!b->unnamed[i] || !sig_is_whole(g) || !b->tensor[i].count) continue;
        const char *draws = g->dtype == DT_BOOL ? "0.5" : "0..3";
        names = names ? arena_printf(a, "%s, %s", names, g->name) : g->name;
        how =
            arena_printf(a, "%s--in %s=%s", how ? arena_printf(a, "%s ", how) : "", g->name, draws);
    }
    return names ? arena_printf(a, "%s: all zeros, `%s` draws others", names, how) : NULL;
}
