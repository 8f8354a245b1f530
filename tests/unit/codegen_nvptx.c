// PTX of the sm_80 target: it holds the instructions it is meant to, no calls and no local memory,
// and its metadata says how to launch it.
#include "ptx_util.h"

#include <time.h>

static char *compile(Arena *a, const char *text, Dtype t) {
    return ptx_of(a, TARGET_SM80, text, t);
}

static const char softmax[] =
    "import std.normalization; attention t { dim D = 64; score(q, k) = dot(q, k) * rsqrt(D); "
    "mask(b, h, q, k) = k <= q; normalize(s) = softmax(s); }";

ARENA_TEST(instructions) {
    char *ptx = compile(a, softmax, DT_BF16);
    static const char *const wanted[] = {".target sm_80",
                                         "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32",
                                         "ldmatrix.sync.aligned.m8n8.x4.trans",
                                         "cp.async.cg.shared.global",
                                         "ex2.approx.ftz.f32",
                                         "shfl.sync.bfly",
                                         "st.global.v4",
                                         ".reqntid 128"};
    static const char *const unwanted[] = {"call", ".local", "ex2.approx.f32"};
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        ck_assert_msg(strstr(ptx, wanted[i]) != NULL, "no %s", wanted[i]);
    for (size_t i = 0; i < sizeof unwanted / sizeof *unwanted; i++)
        ck_assert_msg(!strstr(ptx, unwanted[i]), "%s", unwanted[i]);
    ptx = compile(a, softmax, DT_F16);
    ck_assert(strstr(ptx, "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32") != NULL);
    ptx = compile(a, softmax, DT_F32);
    ck_assert(!strstr(ptx, "mma.sync") && count(ptx, "fma.rn.ftz.f32") > 500);
}

// What a remainder decides needs the quotient as it is; what is only near it does for a weight.
ARENA_TEST(divisions) {
    static const char form[] =
        "attention t { dim D = 64; score(q, k) = dot(q, k); modify(s, b, h, i, j) = %s; "
        "normalize(s) = s; }";
    char *ptx = compile(a, arena_printf(a, form, "s % f32(j + 1)"), DT_F32);
    ck_assert(strstr(ptx, "div.rn.ftz.f32") && !strstr(ptx, "div.full"));
    ptx = compile(a, arena_printf(a, form, "s / f32(j + 1)"), DT_F32);
    ck_assert(!strstr(ptx, "div.rn"));
}

// ptxas takes abs.s32 for at least 0, which that of the least i32 is not. Distances are small.
ARENA_TEST(absolute_values) {
    static const char form[] = "import std.normalization; attention t { dim D = 64; input n: i32; "
                               "score(q, k) = dot(q, k); mask(b, h, i, j) = abs(%s) < n; "
                               "normalize(s) = softmax(s); }";
    static const char *const any[] = {"h % 2 == 0 ? -2147483647 - 1 : h", "(1 << 31) + j",
                                      "i - j * j", "n - j"};
    for (size_t i = 0; i < sizeof any / sizeof *any; i++)
        ck_assert_msg(!strstr(compile(a, arena_printf(a, form, any[i]), DT_BF16), "abs.s32"), "%s",
                      any[i]);
    ck_assert(strstr(compile(a, arena_printf(a, form, "i - j - 1"), DT_BF16), "abs.s32") != NULL);
    static const char *const other[] = {"max(n - j, j - n)", "(n < j ? j - n : n - j)",
                                        "-min(n * j, -(n * j))"};
    for (size_t i = 0; i < sizeof other / sizeof *other; i++) {
        char *text = arena_printf(a, form, "i");
        text = arena_printf(a, "%.*s%s < n; normalize(s) = softmax(s); }",
                            (int)(strstr(text, "abs(") - text), text, other[i]);
        ck_assert_msg(!strstr(compile(a, text, DT_BF16), "abs.s32"), "%s", other[i]);
    }
}

// A root that decides is rounded correctly; one of a weight is not.
ARENA_TEST(roots) {
    static const char form[] = "attention t { dim D = 64; score(q, k) = dot(q, k); "
                               "modify(s) = %s; normalize(s) = s; }";
    char *ptx = compile(a, arena_printf(a, form, "sqrt(abs(s)) >= 1.5 ? s : 0"), DT_F32);
    ck_assert(strstr(ptx, "sqrt.rn.ftz.f32") && !strstr(ptx, "sqrt.approx"));
    ptx = compile(a, arena_printf(a, form, "sqrt(abs(s))"), DT_F32);
    ck_assert(strstr(ptx, "sqrt.approx.ftz.f32") && !strstr(ptx, "sqrt.rn"));
}

// What two shifts are in the exponent's unit is rounded before it is subtracted: no product of the difference goes into an fma.
ARENA_TEST(rounded_shifts) {
    char *ptx = compile(a,
                        "import std.normalization; attention t { dim D = 64; "
                        "score(q, k) = dot(q, k); normalize(s) = softmax(exp(s)); }",
                        DT_F32);
    int n = 0;
    for (const char *at = ptx; (at = strstr(at, "\n\tex2.approx.ftz.f32")); at++) {
        const char *line = at;
        while (line[-1] != '\n') line--;
        n += !strncmp(line, "\tadd.rn", 7) || !strncmp(line, "\tsub.rn", 7);
    }
    ck_assert_int_ge(n, 2); // a thread's rows
}

// Bounds that are the same for all keys of a row make a word of bits. One that moves with the key is asked of each.
ARENA_TEST(moving_bounds) {
    static const char form[] = "import std.normalization; attention t { dim D = 64; "
                               "score(q, k) = dot(q, k); mask(b, h, i, j) = %s; "
                               "normalize(s) = softmax(s); }";
    int still = count(compile(a, arena_printf(a, form, "j < i"), DT_BF16), "setp.");
    static const char *const moving[] = {"j < i - j", "abs(i - j - j) < 9"};
    for (int i = 0; i < 2; i++)
        ck_assert_msg(count(compile(a, arena_printf(a, form, moving[i]), DT_BF16), "setp.") >
                          still + 16,
                      "%s", moving[i]);
}

// Rows of inputs that products read come in pieces from the places of their heads, also in f32; numbers one by one follow each other.
ARENA_TEST(rows_of_products) {
    char *ptx =
        compile(a,
                "import std.normalization; attention t { dim D = 64; input x: f32[B, H, Sq, 48];"
                "input y: f32[B, Hkv, Sk, 48]; score(q, k) = dot(q, k) + dot(x, y);"
                "normalize(s) = softmax(s); }",
                DT_F32);
    ck_assert_int_eq(count(ptx, "cp.async.ca"), 0);
    ck_assert_int_gt(count(ptx, "cp.async.cg"), 0);
}

// Of sigmoids that are weights every fourth is made of multiplications; of those that decide, none.
ARENA_TEST(sigmoids) {
    static const char form[] = "attention t { dim D = 64; score(q, k) = dot(q, k); "
                               "normalize(s) { let x = sigmoid(s); return %s; } }";
    static const char guess[] = "2129859011"; // 0x7ef311c3, of which a reciprocal is made
    char *ptx = compile(a, arena_printf(a, form, "x * x"), DT_BF16);
    ck_assert(strstr(ptx, guess) != NULL);
    ptx = compile(a, arena_printf(a, form, "x == rowmax(x) ? x * x : 0"), DT_BF16);
    ck_assert(!strstr(ptx, guess));
    ptx =
        compile(a, arena_printf(a, form, "x * exp(s - rowmax(s)) - rowmax(x * exp(s - rowmax(s)))"),
                DT_BF16);
    ck_assert(!strstr(ptx, guess));
}

// A mask that reads inputs: a warp makes each list by votes; the sweep has its bounds from there, and
// no step looks at whether it has anything to do.
ARENA_TEST(lists_of_tiles) {
    char *ptx =
        compile(a,
                "import std.normalization; attention t { dim D = 64; input doc: i32[B, Sk]; "
                "score(q, k) = dot(q, k); mask(b, h, q, k) = doc[b, q] == doc[b, k]; "
                "normalize(s) = softmax(s); }",
                DT_BF16);
    static const char *const kernels[] = {"t_fwd_bounds(", "t_fwd_map(", "t_fwd("};
    for (int i = 0; i < 3; i++) ck_assert_msg(strstr(ptx, kernels[i]) != NULL, "%s", kernels[i]);
    ck_assert_int_eq(count(ptx, "vote.sync.ballot"), 2); // partial tiles, full ones
    ck_assert_int_eq(count(ptx, "barrier.red"), 0);
    ck_assert(strstr(ptx, ".local") == NULL);
}

// Products of f32 by tf32, where that was asked for; its operands are rounded.
ARENA_TEST(tf32) {
    char *ptx =
        ptx_with(a, &(PassOptions){.target = cg_target(TARGET_SM80), .tf32 = true}, softmax);
    ck_assert(strstr(ptx, "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32") != NULL);
    ck_assert(strstr(ptx, "cvt.rna.tf32.f32") != NULL);
    ck_assert(!strstr(ptx, ".local"));
}

// Row sums are added across the quad once, after a loop: its body has the shuffles of the maximum
// only.
ARENA_TEST(sums_stay_in_threads) {
    char *with = compile(a, softmax, DT_BF16);
    char *without =
        compile(a,
                "attention t { dim D = 64; score(q, k) = dot(q, k); mask(b, h, q, k) = k <= q; "
                "normalize(s) = exp(s - rowmax(s)); }",
                DT_BF16);
    int loops = 2, rows = 4, steps = 2;
    ck_assert_int_eq(count(with, "shfl.sync.bfly.b32") - count(without, "shfl.sync.bfly.b32"),
                     loops * rows * steps);
}

static const char *entry_of(const char *ptx, const char *name) {
    char first[80];
    snprintf(first, sizeof first, ".visible .entry %s(", name);
    const char *at = strstr(ptx, first);
    ck_assert_msg(at, "no %s", name);
    return at;
}

static int count_within(const char *from, const char *to, const char *what) {
    int n = 0;
    for (const char *s = from; (s = strstr(s, what)) && s < to; s++) n++;
    return n;
}

// A block goes from tile to tile of sequences. What is alike for all of them is not compared before that loop: predicates are few, and
// they would be taken while steps run. Combinations begin early where they read lengths, and read no parts before they have waited.
ARENA_TEST(parts_of_sequences) {
    static const BatchLayout layouts[] = {BATCH_RAGGED, BATCH_PAGED, BATCH_DENSE};
    static const char text[] =
        "attention t { dim D = 128; score(q, k) = dot(q, k);\n"
        "normalize(s) { let e = exp(s - rowmax(s)); return e / rowsum(e); } }\n";
    for (int i = 0; i < 3; i++) {
        PassOptions o = {.target = cg_target(TARGET_SM90A),
                         .dtype = DT_BF16,
                         .split = true,
                         .batch = layouts[i]};
        const char *ptx = ptx_with(a, &o, text);
        const char *part = entry_of(ptx, "t_part"), *combine = entry_of(ptx, "t_combine");
        const char *loop = strstr(part, "\n$L"), *end = strstr(combine, "\n}");
        const char *wait = strstr(combine, "griddepcontrol.wait;");
        ck_assert_int_eq(wait && wait < end, layouts[i] != BATCH_DENSE);
        // the kernel of long sequences, too, behind whose end that of parts ends
        int early = layouts[i] == BATCH_DENSE ? 0 : 2;
        ck_assert_int_eq(count(ptx, "griddepcontrol.launch_dependents;"), early);
        ck_assert_int_eq(count(ptx, "griddepcontrol.wait;"), early);
        if (layouts[i] == BATCH_DENSE) continue;
        ck_assert_int_le(count_within(part, loop, "setp."), 4);
        ck_assert_int_eq(count_within(combine, wait, "ld.global.f32"), 0);
        ck_assert_int_eq(count_within(combine, end, "ld.global.nc.f32"), 0);
    }
    PassOptions o = {
        .target = cg_target(TARGET_SM80), .dtype = DT_BF16, .split = true, .batch = BATCH_RAGGED};
    ck_assert_int_eq(count(ptx_with(a, &o, text), "griddepcontrol"), 0);
}

// Whole tiles of long sequences come by boxes of a page's rows, one for each panel of columns, of k and of v: of 128 keys in pages of 32 these
// are 4, one for each of the producer's warps. The others, and all of smaller pages, come piece by piece.
ARENA_TEST(pages_come_by_boxes) {
    static const char text[] =
        "attention t { dim D = 128; score(q, k) = dot(q, k);\n"
        "normalize(s) { let e = exp(s - rowmax(s)); return e / rowsum(e); } }\n";
    for (int page = 4; page <= 32; page *= 8) {
        PassOptions o = {.target = cg_target(TARGET_SM90A),
                         .dtype = DT_BF16,
                         .split = true,
                         .batch = BATCH_PAGED,
                         .page = page};
        const char *ptx = ptx_with(a, &o, text);
        const char *from = entry_of(ptx, "t_long"), *end = strstr(from, "\n}");
        int boxes = count_within(from, end, "cp.async.bulk.tensor.4d.shared");
        ck_assert_int_gt(count_within(from, end, "cp.async.cg.shared.global"), 0);
        ck_assert_int_eq(boxes % 2, 0);
        ck_assert_int_eq(boxes > 0, page >= 8);
    }
}

static TileProgram *tile_file(Arena *a, const char *name, TargetId target, Diags *diags) {
    TileProgram *p = tu_parse(a, tu_tile(a, name));
    *diags = diag_list(a);
    p->target = target;
    return p;
}

// What several blocks add to: one addition for each element, and of a row's number by one thread.
TEST(additions) {
    static const TargetId targets[] = {TARGET_SM80, TARGET_SM90A};
    for (int i = 0; i < 2; i++) {
        Arena *a = arena_new();
        Diags diags;
        void *code;
        size_t n;
        TileProgram *p = tile_file(a, "sums", targets[i], &diags);
        PassOptions o = {.target = cg_target(targets[i]), .dtype = p->dtype};
        ck_assert(pass_tile(p, &o, &diags) && pass_schedule(p, &o, &diags));
        const TileProgram *all = p;
        CgOptions options = {.opt = 3};
        ck_assert(cg_emit(&all, 1, &options, CG_ASM, &diags, &code, &n));
        const TileKernel *k = p->kernels.data[0];
        int elements = k->axes[0].extent * 16 / k->schedule.warps / 32;
        ck_assert_int_eq(count(code, "red.relaxed.gpu.global.add.f32"), elements + elements / 4);
        ck_assert_int_eq(count(code, "st.global"), 0);
        free(code);
        arena_free(a);
    }
}

TEST(nests_are_refused) {
    static const TargetId targets[] = {TARGET_SM80, TARGET_SM90A, TARGET_GFX942};
    for (int i = 0; i < 3; i++) {
        Arena *a = arena_new();
        Diags diags;
        TileProgram *p = tile_file(a, "backward", targets[i], &diags);
        PassOptions o = {.target = cg_target(targets[i]), .dtype = p->dtype};
        ck_assert(pass_tile(p, &o, &diags));
        pass_classify(p);
        ck_assert(!pass_schedule(p, &o, &diags));
        ck_assert_ptr_nonnull(strstr(diags.first->message, "products in a loop within another"));
        arena_free(a);
    }
}

// A thread's elements of a vector lie at one base and constants beyond it.
ARENA_TEST(vectors) {
    static const char text[] = "import std.normalization; attention t { dim D = 64; score(q, k) = "
                               "2 * dot(q, k) - sqnorm(q) - sqnorm(k); "
                               "normalize(s) = softmax(s * rsqrt(D)); }";
    const char *at = strstr(compile(a, text, DT_BF16), "entry t_fwd(");
    int beyond = 0, columns = 96 / 4, loops = 2;
    const char *end = strstr(at, "\n}");
    while ((at = strstr(at, "ld.shared.f32")) && at < end) {
        const char *line = at;
        at = strchr(at, '\n');
        beyond += memchr(line, '+', (size_t)(at - line)) != NULL;
    }
    ck_assert_int_ge(beyond, loops * (columns - 1));
}

// A strip of columns, which lie in pairs in the first layout, and along the lanes of a warp in the one of who reads it.
ARENA_TEST(strips_by_layout) {
    static const char text[] =
        "program t scheduled target sm_80 dtype bf16 dims D=8 Dv=8\n"
        "tensor q: bf16[B, H, Sq, 8] q\ntensor k: bf16[B, Hkv, Sk, 8] k\n"
        "tensor w: f32[B, H, Sq, Sk] emit 0\nplan t\n"
        "kernel t\naxis M: Sq tile 16\naxis N: Sk tile 8\naxis D: 8 whole tile 8\n"
        "grid b: B\ngrid h: H\ngrid M: ((Sq + 15) / 16)\n"
        "layout a: reg(N%2, M/8%2) lane(N/2%4, M%8)\n"
        "layout b: reg(M%2, M/8%2) lane(M/2%4, N%8)\n"
        "mask (N.pos < Sk)\nschedule warps 1\n{\n"
        "loop N from 0 to ((Sk + 7) / 8) {\n"
        "%x: f32[N] in strip = map [N] () { sin(f32(N.pos)) }\n"
        "%y: f32[M, N] @b = map [M, N] (%x) { (%x * f32(M.pos)) }\n"
        "store w[b, h, M:, N:] = %y\nyield\n}\n}\n";
    Diags diags = diag_list(a);
    TileProgram *p = tile_parse(a, text, strlen(text), &diags);
    test_good(p && tile_verify(p, &diags), &diags);
    const char *ptx = ptx_emitted(p, &diags);
    ck_assert_int_eq(count(ptx, "ld.shared.f32"), 1);
    ck_assert_int_eq(count(ptx, "ld.shared.v2.f32"), 0);
}

// What masks and biases cost an element: a weight that cannot be -inf is not looked at, a sigmoid's
// scale goes into the sum before it, an interval of keys is a bit of a word for each row, and a bias linear in the
// key one multiply-add.
ARENA_TEST(elements) {
    static const char head[] = "attention t { dim D = 128; score(q, k) = dot(q, k) * rsqrt(D); ";
    char *ptx = compile(
        a, arena_printf(a, "%s modify(s) = sigmoid(s - 3); normalize(s) = s; }", head), DT_BF16);
    int loops = 2, elements = 64;
    ck_assert_int_eq(count(ptx, "0fFF800000"), 0);
    ck_assert_int_eq(count(ptx, "selp.f32"), elements + loops * elements / 4);
    ptx = compile(a,
                  arena_printf(a,
                               "import std.normalization; %s mask(b, h, q, k) = k <= q && q - k < "
                               "100; normalize(s) = softmax(s); }",
                               head),
                  DT_BF16);
    int rows = 4, sides = 2;
    ck_assert_int_eq(count(ptx, "shl.b32 %"), rows * sides);
    ck_assert_int_eq(count(ptx, ", 0fFF800000, %"), elements);
    ptx = compile(a,
                  arena_printf(a,
                               "import std.normalization; %s modify(s, b, h, q, k) = s + exp2(-h) "
                               "* (k - q); normalize(s) = softmax(s); }",
                               head),
                  DT_BF16);
    int each = 3; // the bias, its sum with the score, the exponent
    ck_assert_int_ge(count(ptx, "fma.rn.ftz.f32"), loops * elements * each);
    ck_assert_int_lt(count(ptx, "fma.rn.ftz.f32"), loops * elements * each + 64);
}

ARENA_TEST(launch) {
    size_t code_n;
    char *ptx = compile(a, softmax, DT_BF16);
    AbiMeta meta;
    const void *code;
    ck_assert_ptr_null(abi_find(&meta, ptx, strlen(ptx), &code, &code_n));
    const AbiKernel *k = &meta.variants[0].kernels[0];
    ck_assert_str_eq(meta.target, "sm_80");
    ck_assert_uint_eq(k->threads, 128);
    ck_assert_uint_eq(k->shared, 3 * 128 * (64 * 2 + 16)); // q, k and v, 16 bytes more a row
    abi_free(&meta);
}

// Every column count that a kernel may have, also those that are no multiple of 8.
static const int columns[] = {1, 7, 8, 16, 20, 40, 64, 72, 96, 128, 136, 192, 248, 256};

ARENA_TEST_EACH(widths, 0, sizeof columns / sizeof *columns) {
    const char *text = arena_printf(
        a, "attention t { dim D = %d; score(q, k) = dot(q, k); normalize(s) = s; }", columns[_i]);
    char *ptx = compile(a, text, _i % 2 ? DT_F16 : DT_F32);
    ck_assert(!strstr(ptx, ".local"));
}

// A body too long to stand there for each element is a function, and compiles in a time that grows
// with its length: this is a second or so, and was minutes.
ARENA_TEST(long_body) {
    clock_t start = clock();
    char *ptx = compile(a, pu_long_body(a, 500), DT_BF16);
    ck_assert_int_lt((int)((clock() - start) / CLOCKS_PER_SEC), 20);
    ck_assert(strstr(ptx, ".func"));
    ck_assert_int_lt((int)strlen(ptx), 1 << 21);
}

static const char *with_softmax(Arena *a, const char *rest) {
    return arena_printf(a,
                        "import std.normalization; attention t { dim D = 64; input g: f32[H, Sq, "
                        "Sk]; input e: f32[Sq, Sk, Sk]; input w: f32[Dv, Dv]; input p: i32[Sk]; "
                        "score(q, k) = dot(q, k); normalize(s) = softmax(s); %s }",
                        rest);
}

// Two columns are read at once where the row is the same for both, and only there.
ARENA_TEST(pairs) {
    static const char *const two[] = {
        "modify(s, b, h, i, j) = s + g[h, i - q_offset, j];",
        "modify(s, b, h, i, j) = s + e[i - q_offset, p[i], j];",
    };
    static const char *const single[] = {
        "output(o, b, h, i, d) = o * w[d, d];",
        "modify(s, b, h, i, j) = s + e[i - q_offset, j, j];",
        "modify(s, b, h, i, j) = s + e[i - q_offset, p[j], j];",
        "modify(s, b, h, i, j) = s + e[i - q_offset, i32(s + 4), j];",
        "modify(s, b, h, i, j) = s + e[0, i32(s + 4), j];",
    };
    static const TargetId targets[] = {TARGET_SM80, TARGET_SM90A};
    for (int t = 0; t < 2; t++) {
        for (size_t i = 0; i < sizeof two / sizeof *two; i++) {
            char *ptx = ptx_of(a, targets[t], with_softmax(a, two[i]), DT_BF16);
            ck_assert_msg(count(ptx, "ld.global.nc.v2.b32") >= 24, "%s", two[i]);
        }
        for (size_t i = 0; i < sizeof single / sizeof *single; i++) {
            char *ptx = ptx_of(a, targets[t], with_softmax(a, single[i]), DT_BF16);
            ck_assert_msg(!count(ptx, "ld.global.nc.v2.b32"), "%s", single[i]);
            ck_assert_msg(!count(ptx, "prefetch.global.L2 "), "%s", single[i]);
        }
    }
}

static char *compile_on(const TileProgram *p, int threads, Diags *diags, size_t *n) {
    CgOptions o = {.opt = 3, .threads = threads};
    void *out = NULL;
    ck_assert(cg_emit(&p, 1, &o, CG_ASM, diags, &out, n));
    return out;
}

// Kernels are made by several threads, and are one text as if of one module: one head, what they
// share declared once, no label twice.
ARENA_TEST(threads) {
    PassOptions o = {.target = cg_target(TARGET_SM80), .dtype = DT_BF16, .split = true};
    Diags diags = diag_list(a);
    const TileProgram *p = pass_pipeline(a, pu_stream(a, "t.attn", softmax, 0, NULL), &o, &diags);
    ck_assert_int_gt(p->kernels.n, 1);
    size_t n, n1;
    char *alone = compile_on(p, 1, &diags, &n1);
    for (int t = 0; t < 10; t += 3) {
        char *ptx = compile_on(p, t, &diags, &n);
        ck_assert_uint_eq(n, n1);
        ck_assert_int_eq(memcmp(ptx, alone, n), 0);
        free(ptx);
    }
    ck_assert_int_eq(count(alone, ".version"), 1);
    ck_assert_int_eq(count(alone, ".extern .shared"), 1);
    ck_assert_int_eq(count(alone, ".visible .entry"), p->kernels.n);
    ck_assert_int_eq(count(alone, "\n$L__BB0_1:"), 1);
    ck_assert_int_eq(count(alone, "\n$L__BB1_1:"), 1);
    free(alone);
}
