// Kernels of few rows: what is copied to shared memory, and what products read of it. The addresses are taken from the PTX: its integer
// instructions are computed for each thread, one after the other. What depends on the launch is any number, the same for all threads.
#include "ptx_util.h"

#include "ir/tile_shared.h"

#include <ctype.h>

enum { NAME = 16, REGISTERS = 1 << 15, BASE = 1 << 20, PIECE = 16, LANES = 32, MANY = 1 << 12 };

typedef enum Kind { COPY, BLOCKS, BLOCKS_TURNED, BYTE } Kind;

typedef struct Access { // by one thread
    Kind kind;
    int at;       // piece of 16 bytes in shared memory; -1: this thread has none
    int group;    // between which barriers, or ends of copies
    int64_t from; // of a copy: address; of a byte: which of its piece
} Access;

typedef struct Walk {
    struct {
        char name[NAME];
        int64_t value;
    } reg[REGISTERS];
    Access *access;
    int n, thread, group;
    bool records, guard;
} Walk;

static int64_t *register_of(Walk *w, const char *name, int length) {
    uint32_t h = 5381;
    for (int i = 0; i < length; i++) h = h * 33 + (unsigned char)name[i];
    for (;; h++) {
        char *own = w->reg[h % REGISTERS].name;
        if (!*own) snprintf(own, NAME, "%.*s", length, name);
        if (strlen(own) == (size_t)length && !strncmp(own, name, (size_t)length))
            return &w->reg[h % REGISTERS].value;
    }
}

// The next operand, and `at` behind it.
static int64_t operand(Walk *w, const char **at) {
    const char *s = *at + strspn(*at, " \t,[");
    size_t n = strcspn(s, " \t,;+]\n");
    *at = s + n;
    if (*s == '%' && !strncmp(s, "%tid.x", n)) return w->thread;
    if (!strncmp(s, "attn_shared", n)) return BASE;
    return *s == '%' ? *register_of(w, s, (int)n) : strtoll(s, NULL, 0);
}

// A comparison that is not of a thread's row with a number is true.
static int64_t compute(const char *op, const int64_t v[3], int64_t otherwise) {
    static const char *const known[] = {
        "mov.",  "cvt.", "add.",  "sub.",    "mul.lo.",      "mad.lo.",     "shl.",     "shr.",
        "and.b", "or.b", "xor.b", "bfe.u32", "mul.wide.u32", "setp.lt.u32", "and.pred", "selp."};
    int i = 0, n = sizeof known / sizeof *known;
    while (i < n && strncmp(op, known[i], strlen(known[i])) != 0) i++;
    int64_t of[] = {v[0],
                    v[0],
                    v[0] + v[1],
                    v[0] - v[1],
                    v[0] * v[1],
                    v[0] * v[1] + v[2],
                    v[0] << (v[1] & 63),
                    (int64_t)((uint64_t)v[0] >> (v[1] & 63)),
                    v[0] & v[1],
                    v[0] | v[1],
                    v[0] ^ v[1],
                    v[0] >> (v[1] & 31) & ((INT64_C(1) << (v[2] & 31)) - 1),
                    (int64_t)(uint32_t)v[0] * (uint32_t)v[1],
                    v[0] < v[1],
                    v[0] && v[1],
                    v[2] ? v[0] : v[1]};
    return i < n ? of[i] : otherwise;
}

static void step(Walk *w, const char *line, int place) {
    bool guarded = strstr(line, "@p cp.async") != NULL;
    line += strspn(line, "\t @p");
    const char *at = strchr(line, '['), *op = line;
    Kind kind = !strncmp(op, "cp.async.cg.", 12) ? COPY : BYTE;
    if (!strncmp(op, "ldmatrix.", 9)) kind = strstr(op, ".trans.") ? BLOCKS_TURNED : BLOCKS;
    if (kind != BYTE || !strncmp(op, "ld.shared.u8", 12)) {
        if (!w->records) return;
        int to = (int)operand(w, &at) - BASE;
        if (*at == '+') at++, to += (int)operand(w, &at);
        at += *at == ']';
        int64_t from = kind == COPY ? operand(w, &at) : to % PIECE;
        ck_assert(kind == BYTE || to % PIECE == 0);
        ck_assert_int_lt(w->n, MANY);
        bool none = guarded && !w->guard;
        w->access[w->n++] = (Access){kind, none ? -1 : to / PIECE, w->group, from};
        return;
    }
    w->group += !strncmp(op, "cp.async.commit", 15) || !strncmp(op, "bar", 3);
    at = strchr(line, '%');
    if (!strncmp(op, "setp.ne.b32 p,", 14)) {
        w->guard = operand(w, &at) != 0;
        return;
    }
    if (!at || !islower(*line) || strchr(line, '{') || !strncmp(op, "st.", 3)) return;
    size_t length = strcspn(at, " \t,;\n|");
    int64_t *to = register_of(w, at, (int)length), v[3] = {0};
    const char *end = at + length;
    for (int i = 0; i < 3 && *end == ','; i++) v[i] = operand(w, &end);
    *to = compute(op, v, (1 + place % 61) * 4096);
    if (!strncmp(at, "%r", 2) && at[2] != 'd') *to = (uint32_t)*to;
}

// All accesses of one thread, in the order of the text. The second walk knows what the first one found further down.
static int walk(Arena *a, const char *from, const char *end, int thread, Access *access) {
    Walk *w = arena_alloc(a, sizeof(Walk));
    memset(w, 0, sizeof *w);
    w->access = access, w->thread = thread;
    for (int pass = 0; pass < 2; pass++) {
        int place = 0;
        w->records = pass;
        for (const char *s = from; s < end; s += strcspn(s, "\n") + 1, place++) {
            char line[200];
            snprintf(line, sizeof line, "%.*s", (int)strcspn(s, "\n"), s);
            step(w, line, place);
        }
    }
    return w->n;
}

// ---- a kernel

typedef struct Kernel {
    int threads, n; // accesses of each thread
    int pieces;     // of shared memory
    int across;     // pieces of a row of keys
    int elem;       // bytes of their elements
    int tile; // of a tile of keys; 0: keys have places of their own, as queries have, so that addresses do not tell which
    Access *of; // [threads][n]
    int *
        content; // of a piece: -1 nothing, 0 what addresses do not tell, or 1 + row * across + column
} Kernel;

typedef struct Copied {
    int64_t from;
    int at;
} Copied;

static int by_address(const void *a, const void *b) {
    const Copied *x = a, *y = b;
    return x->from < y->from ? -1 : x->from > y->from;
}

static int *nothing(Arena *a, int n) {
    int *v = arena_alloc(a, sizeof(int) * (size_t)n);
    for (int i = 0; i < n; i++) v[i] = -1;
    return v;
}

// A tile: its rows are as far apart as addresses say, each is whole, and what lay there before was the same piece of a tile.
static void check_tile(const Kernel *k, Copied *c, int n) {
    qsort(c, (size_t)n, sizeof *c, by_address);
    ck_assert_int_eq(n % k->across, 0);
    for (int i = 0; i < n; i++) {
        bool known = n == k->tile;
        if (known && i % k->across) ck_assert_int_eq(c[i].from - c[i - 1].from, PIECE);
        int *content = &k->content[c[i].at], now = known ? 1 + i : 0;
        ck_assert_msg(*content < 0 || *content == now, "piece %d: %d, %d", c[i].at, *content, now);
        *content = now;
    }
}

static void check_copies(Arena *a, const Kernel *k) {
    Copied *c = arena_alloc(a, sizeof(Copied) * (size_t)k->pieces);
    int *last = nothing(a, k->pieces);
    for (int i = 0, n = 0; i < k->n; i++) {
        int group = k->of[i].group;
        for (int t = 0; t < k->threads && k->of[i].kind == COPY; t++) {
            const Access *x = &k->of[t * k->n + i];
            if (x->at < 0) continue;
            ck_assert_msg(last[x->at] != group, "two copies to piece %d", x->at);
            last[x->at] = group;
            c[n++] = (Copied){x->from, x->at};
        }
        bool ends = i + 1 == k->n || k->of[i + 1].group != group;
        if (ends && n) check_tile(k, c, n), n = 0;
    }
}

// A warp's four blocks of 8 rows and 16 bytes: all were copied, rows of a block lie in different banks, and the blocks are neighbours as a product wants
// them. Returns how many pieces of keys or values they are.
static int check_blocks(const Kernel *k, const Access *first) {
    int known = 0, from = k->content[first->at] - 1;
    bool down = first->kind == BLOCKS_TURNED || k->elem == 1;
    for (int lane = 0, banks = 0; lane < LANES; lane++) {
        const Access *x = first + lane * k->n;
        int is = k->content[x->at] - 1, half = lane / 8 % 2, side = lane / 16;
        ck_assert_msg(is >= -1, "piece %d was not copied", x->at);
        banks = (lane % 8 ? banks : 0) | 1 << x->at % 8;
        if (lane % 8 == 7) ck_assert_int_eq(banks, 255);
        if (is < 0) continue;
        int row = lane % 8 + 8 * (down ? half : side);
        ck_assert_int_eq(is - from, row * k->across + (down ? side : half));
        known++;
    }
    return known;
}

// Numbers of 8 bits: a lane has a column, and pairs of rows.
static int check_bytes(const Kernel *k, const Access *first) {
    for (int lane = 0; lane < LANES; lane++) {
        const Access *x = first + lane * k->n;
        int is = k->content[x->at] - 1;
        ck_assert_msg(is >= 0, "piece %d has no values", x->at);
        ck_assert_int_eq(is / k->across / 2 % 4, lane % 4);
        ck_assert_int_eq(x->from % 8, lane / 4);
    }
    return LANES;
}

// Between two barriers a warp reads nothing twice, and of keys, or values, all.
static void check_reads(Arena *a, const Kernel *k) {
    int tiles = 0, *last = nothing(a, k->pieces * PIECE);
    for (int w = 0; w < k->threads; w += LANES)
        for (int i = 0, known = 0; i < k->n; i++) {
            const Access *x = &k->of[w * k->n + i];
            bool byte = x->kind == BYTE;
            for (int lane = 0; lane < LANES && x->kind != COPY; lane++) {
                const Access *y = &x[lane * k->n];
                int at = y->at * PIECE + (int)y->from, group = w << 16 | x->group;
                ck_assert_msg(last[at] != group, "piece %d is read twice", y->at);
                last[at] = group;
            }
            if (x->kind != COPY) known += byte ? check_bytes(k, x) : PIECE * check_blocks(k, x);
            if (i + 1 < k->n && x[1].group == x->group) continue;
            ck_assert(known == 0 || known == k->tile * PIECE);
            tiles += known > 0, known = 0;
        }
    ck_assert_int_ge(tiles, k->tile ? 2 * k->threads / LANES : 0);
}

static void check_kernel(Arena *a, const TileProgram *p, const TileKernel *t, const char *ptx) {
    const char *at = strstr(ptx, arena_printf(a, ".visible .entry %s(", t->name));
    const char *end = strstr(at, "\n}");
    Kernel k = {.threads = atoi(strstr(at, ".reqntid ") + 9)};
    k.pieces = tile_shared_layout(p, t, NULL, NULL) / PIECE;
    for (int i = 0; i < p->tensors.n; i++)
        if (!strcmp(p->tensors.data[i].name, "k")) k.elem = dtype_bytes(p->tensors.data[i].dtype);
    k.across = p->D * k.elem / PIECE;
    for (int i = 0; i < k.threads; i++) {
        Access *access = arena_alloc(a, sizeof(Access) * MANY);
        k.n = walk(a, at, end, i, access);
        if (!i) k.of = arena_alloc(a, sizeof(Access) * (size_t)(k.n * k.threads));
        memcpy(k.of + i * k.n, access, sizeof(Access) * (size_t)k.n);
    }
    for (int i = 0; i < k.n * k.threads; i++)
        ck_assert_msg(k.of[i].at >= -(k.of[i].kind == COPY) && k.of[i].at < k.pieces,
                      "piece %d of %d", k.of[i].at, k.pieces);
    for (int i = 0; i < t->naxes && p->batch != BATCH_PAGED; i++)
        if (t->axes[i].name[0] == 'N') k.tile = t->axes[i].extent * k.across;
    k.content = nothing(a, k.pieces);
    check_copies(a, &k);
    check_reads(a, &k);
}

typedef struct Case {
    TargetId target;
    BatchLayout batch;
    int page, width;
    const char *schedule;
    Dtype kv;
} Case;

static const Case cases[] = {
    {TARGET_SM90A, BATCH_DENSE, 0, 128, NULL, 0},
    {TARGET_SM90A, BATCH_DENSE, 0, 64, NULL, 0},
    {TARGET_SM90A, BATCH_DENSE, 0, 192, NULL, 0},
    {TARGET_SM90A, BATCH_DENSE, 0, 256, NULL, 0},
    {TARGET_SM90A, BATCH_DENSE, 0, 80, NULL, 0},
    {TARGET_SM90A, BATCH_DENSE, 0, 128, "few_keys=32", 0},
    {TARGET_SM90A, BATCH_DENSE, 0, 128, "few_rows=48", 0},
    {TARGET_SM90A, BATCH_RAGGED, 0, 128, NULL, 0},
    {TARGET_SM90A, BATCH_PAGED, 16, 128, NULL, 0},
    {TARGET_SM90A, BATCH_PAGED, 1, 128, NULL, 0},
    {TARGET_SM90A, BATCH_PAGED, 0, 64, NULL, 0},
    {TARGET_SM80, BATCH_DENSE, 0, 128, NULL, 0},
    {TARGET_SM90A, BATCH_DENSE, 0, 128, NULL, DT_E4M3},
    {TARGET_SM90A, BATCH_RAGGED, 0, 256, NULL, DT_I8},
};

ARENA_TEST_EACH(addresses, 0, sizeof cases / sizeof *cases) {
    const Case *c = &cases[_i];
    PassOptions o = {.target = cg_target(c->target),
                     .dtype = DT_BF16,
                     .kv = c->kv,
                     .split = true,
                     .batch = c->batch,
                     .page = c->page,
                     .schedule = pu_knobs(c->schedule)};
    const char *text =
        arena_printf(a,
                     "import std.normalization; attention t { dim D = %d; score(q, k) = "
                     "dot(q, k) * rsqrt(D); normalize(s) = softmax(s); }",
                     c->width);
    Stream *s = pu_stream(a, "t.attn", text, 0, NULL);
    Diags diags = diag_list(a);
    TileProgram *p = pass_pipeline(a, s, &o, &diags);
    const char *ptx = ptx_emitted(p, &diags);
    int n = 0;
    for (int i = 0; i < p->kernels.n; i++) {
        const TileKernel *k = p->kernels.data[i];
        if (k->purpose != PURPOSE_PART) continue;
        check_kernel(a, p, k, ptx);
        n++;
    }
    ck_assert_int_gt(n, 0);
}
