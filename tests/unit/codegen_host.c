// Whole host kernels against the interpreter: the programs under tests/tile, ready variants through
// the passes, products and moves in every orientation; with vectors of every width, at sizes that
// end in the middle of tiles.
#include "codegen_util.h"
#include "pass_util.h"

#include <time.h>

// What the host's code of p leaves against what the interpreter does of `of`: p itself, or what it was made from.
static void check_as(Arena *a, const TileProgram *of, const TileProgram *p, const int32_t *size,
                     int lanes, bool high, double bound, const char *what) {
    Target t;
    int32_t all[64] = {0}, given[64] = {0};
    if (!cu_target(lanes, &t)) return;
    Diags diags = diag_list(a);
    memcpy(all, size, sizeof *all * (size_t)p->sizes.n);
    memcpy(given, size, sizeof *given * (size_t)of->sizes.n);
    TileData *x = tile_data_random(a, of, given, 4, 7), *y = tile_data_random(a, p, all, 4, 7);
    bool ok = tile_eval(of, x, true, &diags);
    if (!ok) diag_print(&diags, stderr);
    ck_assert_msg(ok, "%s does not run in the interpreter", what);
    tile_eval_sizes(p, (int32_t *)(uintptr_t)y->size, y->workers);
    cu_run(a, p, y, lanes, high);
    double d = tile_data_distance(of, x, p, y);
    ck_assert_msg(d <= bound, "%s, %d lanes: %g apart", what, lanes, d);
}

static void check_run(Arena *a, const TileProgram *p, const int32_t *size, int lanes, bool high,
                      double bound, const char *what) {
    check_as(a, p, p, size, lanes, high, bound, what);
}

// ---- programs as text

static TileProgram *parse(Arena *a, const char *text) {
    Diags diags = diag_list(a);
    TileProgram *p = tile_parse(a, text, strlen(text), &diags);
    if (!p) diag_print(&diags, stderr);
    ck_assert(p != NULL && tile_verify(p, &diags));
    return p;
}

static void lay(TileProgram *p, int axis) {
    for (int i = 0; i < p->kernels.n; i++) p->kernels.data[i]->schedule.lane_axis = axis;
}

static void check_file(const char *name, const int32_t *size, double bound) {
    Arena *a = arena_new();
    const char *text = tu_tile(a, name);
    for (int axis = -1; axis < 4;
         axis++) { // whatever axis lies along the lanes, the result is the same
        TileProgram *p = parse(a, text);
        if (axis >= p->kernels.data[0]->naxes) break;
        lay(p, axis);
        check_run(a, p, size, 16, axis % 2, bound, name);
        check_run(a, p, size, 4, axis % 2, bound, name);
    }
    arena_free(a);
}

TEST(tile_files) {
    const int32_t sizes[][8] = {{2, 4, 2, 7, 7, 0, 5, 5},
                                {1, 2, 1, 3, 11, 8, 5, 5},
                                {1, 1, 1, 5, 2, -3, 5, 5},
                                {1, 1, 1, 4, 0, 0, 5, 5}};
    for (int i = 0; i < 4; i++) {
        check_file("softmax", sizes[i], 1e-5);
        check_file("two_sweep", sizes[i], 1e-5);
    }
}

// A program that loads x, y and maybe a sum, multiplies and stores. Values are named by their axes:
// "MD" is f32[M, D].
static int width(char axis) { return axis == 'M' ? 32 : axis == 'N' ? 23 : axis == 'D' ? 20 : 24; }

static void list(Text *t, const char *axes, const char *suffix, bool sizes) {
    for (int i = 0; axes[i]; i++) {
        if (i) text_puts(t, ", ");
        if (sizes)
            text_printf(t, "%d", width(axes[i]));
        else
            text_printf(t, "%c%s", axes[i], suffix);
    }
}

static void tensor_line(Text *t, const char *name, const char *axes, const char *role) {
    text_printf(t, "tensor %s: f32[", name);
    list(t, axes, "", true);
    text_printf(t, "] %s\n", role);
}

static void move_line(Text *t, const char *name, const char *axes, bool load) {
    if (load) {
        text_printf(t, "    %%%s: f32[", name);
        list(t, axes, "", false);
        text_printf(t, "] = load %s[", name);
    } else {
        text_printf(t, "    store %s[", name);
    }
    list(t, axes, ":", false);
    text_puts(t, load ? "]\n" : "] = %o\n");
}

static const char *product_text(Arena *a, const char *x, const char *y, const char *o, bool sum) {
    Text t = text_new(a);
    text_puts(&t, "program mul algorithm target host dtype f32 dims D=20 Dv=24\n");
    tensor_line(&t, "x", x, "input 0");
    tensor_line(&t, "y", y, "input 1");
    tensor_line(&t, "s", o, "input 2");
    tensor_line(&t, "o", o, "emit 0");
    text_puts(&t, "plan fwd\nkernel fwd\n");
    for (const char *c = "MNDE"; *c; c++)
        text_printf(&t, "  axis %c: %d whole tile %d\n", *c, width(*c), width(*c));
    text_puts(&t, "  grid b: B\n  mask true\n  {\n");
    move_line(&t, "x", x, true);
    move_line(&t, "y", y, true);
    if (sum) move_line(&t, "s", o, true);
    text_puts(&t, "    %o: f32[");
    list(&t, o, "", false);
    text_printf(&t, "] = mma %%x, %%y%s\n", sum ? ", %s" : "");
    move_line(&t, "o", o, false);
    text_puts(&t, "  }\n");
    return t.s;
}

// Which operand has the lanes, which axis is contracted, with and without a sum; extents that no
// block divides.
// ---- the nest of the backward

static TileProgram *scheduled(Arena *a, const char *text, const Target *target) {
    TileProgram *p = parse(a, text);
    PassOptions o = {.target = *target, .dtype = p->dtype};
    Diags diags = diag_list(a);
    ck_assert(pass_finish(p, &o, &diags));
    return p;
}

static const char *nest(Arena *a, int columns) {
    const char *n = arena_printf(a, "%d", columns), *text = tu_tile(a, "backward");
    if (!columns) return text;
    text = tu_with(a, text, ", 5]", arena_printf(a, ", %s]", n));
    text = tu_with(a, text, ", 3]", arena_printf(a, ", %s]", n));
    text = tu_with(a, text, ": 5 whole", arena_printf(a, ": %s whole", n));
    text = tu_with(a, text, ": 3 whole", arena_printf(a, ": %s whole", n));
    text = tu_with(a, text, "D=5 Dv=3", arena_printf(a, "D=%s Dv=%s", n, n));
    return tu_with(a, text, "0.4472136", arena_printf(a, "%.4f", 1 / sqrt(columns)));
}

static void check_nest(const char *(*text)(Arena *a, const void *of), const void *of,
                       const int32_t *size, int lanes, const char *what) {
    Arena *a = arena_new();
    Target t;
    const char *program = text(a, of);
    if (cu_target(lanes, &t))
        check_as(a, parse(a, program), scheduled(a, program, &t), size, lanes, lanes % 3 == 1, 5e-4,
                 what);
    arena_free(a);
}

static const char *of_columns(Arena *a, const void *columns) {
    return nest(a, *(const int *)columns);
}

// The mask in the place of the causal one, and an input that it may read.
static const char *of_mask(Arena *a, const void *mask) {
    const char *text = tu_with(a, nest(a, 0), "(N.pos <= (M.pos + q_offset))", mask);
    return tu_with(a, text, "\ntensor dq:", "\ntensor doc: i32[B, Sk] input 0\ntensor dq:");
}

TEST(backward) {
    static const int32_t sizes[][6] = {
        {2, 4, 2, 70, 133, 63}, {1, 2, 1, 130, 70, 0}, {1, 1, 1, 5, 0, 0}};
    static const int columns[] = {0, 64, 128, 256}, widths[] = {16, 8, 4};
    for (int c = 0; c < 4; c++)
        for (int i = 0; i < 3; i++)
            check_nest(of_columns, &columns[c], sizes[i], widths[i], "backward");
}

// The same in two kernels, whose numbers of rows are read by elements.
TEST(backward_apart) {
    static const int32_t sizes[][6] = {{2, 4, 2, 70, 133, 63}, {1, 2, 1, 130, 70, 0}};
    for (int i = 0; i < 2; i++) {
        Arena *a = arena_new();
        Target t;
        const char *text = tu_with(a, tu_tile(a, "backward_apart"), "bf16", "f32");
        if (cu_target(i ? 8 : 16, &t))
            check_as(a, parse(a, text), scheduled(a, text, &t), sizes[i], i ? 8 : 16, i, 5e-4,
                     "backward_apart");
        arena_free(a);
    }
}

// For a tile of keys, the tiles of queries that see it: by the ends of an interval, by lists, or all.
TEST(backward_masks) {
    static const int32_t sizes[][6] = {{2, 2, 1, 200, 263, 63}, {1, 2, 2, 230, 170, -20}};
    static const char *const masks[] = {
        "true",
        "(abs(((M.pos + q_offset) - N.pos)) < 40)",
        "((N.pos <= (M.pos + q_offset)) && (((M.pos + q_offset) - N.pos) < 70))",
        "(((M.pos + q_offset) / 50) == (N.pos / 50))",
        "((N.pos < 30) || (N.pos <= (M.pos + q_offset)))",
        "(doc[b, (M.pos + q_offset)] == doc[b, N.pos])",
        "((N.pos <= (M.pos + q_offset)) && (doc[b, (N.pos / 64)] < 2))",
        "(N.pos <= ((M.pos + q_offset) + (h + G.tile)))",
    };
    for (size_t m = 0; m < sizeof masks / sizeof *masks; m++)
        for (int i = 0; i < 2; i++) check_nest(of_mask, masks[m], sizes[i], i ? 8 : 16, masks[m]);
}

TEST(products) {
    static const char *const shapes[][3] = {
        {"MD", "ND", "MN"}, {"D", "ND", "N"},   {"MD", "D", "M"},   {"MD", "DE", "ME"},
        {"MN", "NE", "ME"}, {"MN", "MD", "ND"}, {"MN", "ME", "NE"}, {"ND", "MD", "MN"},
        {"MD", "MD", "M"},  {"ME", "NE", "MN"}};
    const int32_t size[8] = {1, 1, 1, 1, 1, 0};
    for (int i = 0; i < 10; i++)
        for (int sum = 0; sum < 2; sum++)
            for (int axis = -1; axis < 4; axis++) {
                Arena *a = arena_new();
                const char *text = product_text(a, shapes[i][0], shapes[i][1], shapes[i][2], sum);
                Diags diags = diag_list(a);
                TileProgram *p = tile_parse(a, text, strlen(text), &diags);
                if (p && tile_verify(p, &diags)) { // M of MD and MD is no product
                    lay(p, axis);
                    check_run(a, p, size, 16, true, 1e-5, text);
                    if (axis == 0) check_run(a, p, size, 8, true, 1e-5, text);
                } else {
                    ck_assert_int_eq(i, 8);
                }
                arena_free(a);
            }
}

// ---- ready variants, through the passes

typedef struct Ready {
    const char *name;
    int D;
} Ready;

static void check_ready(const char *name, Dtype dtype, int lanes, const int32_t *fixed) {
    Arena *a = arena_new();
    Variant *v;
    PassOptions o = {.dtype = dtype, .split = true}; // few queries take the split form
    if (cu_target(lanes, &o.target)) {
        Diags diags = diag_list(a);
        Stream *s = pu_stream(a, arena_printf(a, "stdlib/%s.attn", name), NULL, 0, &v);
        TileProgram *p = pass_pipeline(a, s, &o, &diags);
        ck_assert(p != NULL);
        int32_t size[64];
        pu_sizes(v, size, fixed[0], fixed[1], fixed[2], fixed[3], fixed[4], fixed[5]);
        bool narrow = dtype != DT_F32;
        check_run(a, p, size, lanes, lanes == 16, narrow ? 2e-2 : 2e-5,
                  arena_printf(a, "%s %s", name, dtype_name(dtype)));
    }
    arena_free(a);
}

TEST(ready_variants) {
    static const char *const names[] = {"softmax",       "causal",   "relu",      "softcap",
                                        "relative_bias", "document", "natten_2d", "retention"};
    const int32_t odd[] = {1, 2, 1, 70, 101, 31}, one[] = {2, 2, 2, 1, 50, 49},
                  none[] = {1, 1, 1, 5, 0, 0};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        check_ready(names[i], DT_F32, 16, odd);
        check_ready(names[i], DT_F32, 8, one);
        check_ready(names[i], DT_BF16, 16, one);
        check_ready(names[i], DT_F16, 4, one);
        check_ready(names[i], DT_F32, 16, none);
    }
    check_ready("causal", DT_BF16, 8, odd);
    check_ready("causal", DT_F16, 16, odd);
    check_ready("causal", DT_F32, 4, odd);
}

// A body of 2000 operations, in parts: the interpreter's result, and in a time that grows with its
// length.
// Tiles in sections of heads, the shortest of all heads last: each comes once. What does not come
// stays as it was, which the interpreter's result is not.
TEST(sections) {
    static const int32_t launches[][6] = {{1, 1, 1, 5, 7, 2},    {3, 5, 5, 33, 40, 7},
                                          {2, 6, 2, 161, 41, 0}, {1, 7, 1, 304, 300, 0},
                                          {2, 3, 3, 1, 40, 39},  {1, 8, 4, 20, 0, 0}};
    for (int i = 0; i < 36; i++) {
        Arena *a = arena_new();
        Variant *v;
        Diags diags = diag_list(a);
        const Stream *s = pu_stream(a, "stdlib/causal.attn", NULL, 32, &v);
        PassOptions o = {
            .target = cg_target(TARGET_HOST), .dtype = DT_F32, .schedule = pu_knobs("rows=16")};
        TileProgram *p = pass_pipeline(a, s, &o, &diags);
        ck_assert(p != NULL);
        static const int heads[] = {1, 2, 3, 5, 7, 65536}, last[] = {0, 1, 3};
        p->kernels.data[0]->schedule.section = ex_i32(p->pool, heads[i % 6]);
        const Ex *rows = p->kernels.data[0]->grid[2].count;
        p->kernels.data[0]->schedule.last =
            ex_2(p->pool, EX_MIN, rows, ex_i32(p->pool, last[i % 3]));
        p->kernels.data[0]->grid[2].reversed = i % 2 == 0;
        int32_t size[16] = {0};
        const int32_t *n = launches[i / 6];
        pu_sizes(v, size, n[0], n[1], n[2], n[3], n[4], n[5]);
        check_run(a, p, size, 4, false, 1e-5, "sections");
        arena_free(a);
    }
}

TEST(long_body) {
    const int32_t sizes[] = {1, 2, 1, 21, 37, 16};
    for (int lanes = 4; lanes <= 16; lanes *= 2) {
        Arena *a = arena_new();
        Variant *v;
        PassOptions o = {.dtype = DT_F32};
        clock_t start = clock();
        Diags diags = diag_list(a);
        if (cu_target(lanes, &o.target)) {
            Stream *s = pu_stream(a, "t.attn", pu_long_body(a, 500), 0, &v);
            TileProgram *p = pass_pipeline(a, s, &o, &diags);
            int32_t size[64];
            pu_sizes(v, size, sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], sizes[5]);
            check_run(a, p, size, lanes, lanes == 16, 2e-5, "a long body");
        }
        ck_assert_int_lt((int)((clock() - start) / CLOCKS_PER_SEC), 30);
        arena_free(a);
    }
}
