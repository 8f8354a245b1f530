// PTX of the sm_90a target: it holds the instructions it is meant to, no local memory, and its
// metadata says how to launch it. ptxas assembles it, nothing is spilled, and
// the products overlap with the rest.
#include "ir/tile_places.h"
#include "ptx_util.h"

#include <unistd.h>

// (Inlined, gcc takes what it gives for a pointer to the variable that it came in.)
static char *__attribute__((noinline)) compile(Arena *a, const char *text, Dtype t) {
    return ptx_of(a, TARGET_SM90A, text, t);
}

static const char *softmax(Arena *a, int d, const char *mask) {
    return arena_printf(a,
                        "import std.normalization; attention t { dim D = %d; "
                        "score(q, k) = dot(q, k) * rsqrt(D); %s normalize(s) = softmax(s); }",
                        d, mask);
}

static const char causal[] = "mask(b, h, q, k) = k <= q;";

ARENA_TEST(instructions) {
    char *ptx = compile(a, softmax(a, 128, causal), DT_BF16);
    static const char *const wanted[] = {".target sm_90a",
                                         "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16",
                                         "cp.async.bulk.tensor.4d.shared::cluster.global",
                                         "cp.async.bulk.tensor.4d.global.shared::cta",
                                         "setmaxnreg.inc.sync.aligned.u32",
                                         "setmaxnreg.dec.sync.aligned.u32",
                                         "stmatrix.sync.aligned.m8n8.x4",
                                         "atom.global.inc.u32",
                                         ".reqntid 384"};
    static const char *const unwanted[] = {"call", ".local", "mma.sync", "cp.async.cg"};
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        ck_assert_msg(strstr(ptx, wanted[i]) != NULL, "no %s", wanted[i]);
    for (size_t i = 0; i < sizeof unwanted / sizeof *unwanted; i++)
        ck_assert_msg(!strstr(ptx, unwanted[i]), "%s", unwanted[i]);
    ptx = compile(a, softmax(a, 128, causal), DT_F16);
    ck_assert(strstr(ptx, "k16.f32.f16.f16") != NULL);
}

// Both ways of a product in one piece of assembly, as often as the schedule says so.
ARENA_TEST(two_ways) {
    char *ptx = compile(a, softmax(a, 64, causal), DT_BF16);
    ck_assert_int_ge(count(ptx, "@all bra ALL"), 6);
    ck_assert_int_eq(count(ptx, "@all bra ALL"), count(ptx, "ALL:"));
    ptx = compile(a, softmax(a, 64, ""), DT_BF16);
    ck_assert_int_eq(count(ptx, "ALL:"), 0);
}

// Norms of keys are read in pieces of 16 bytes, in a loop, each element of a piece once.
ARENA_TEST(norms_in_pieces) {
    char *ptx =
        compile(a,
                "import std.normalization; attention t { dim D = 128; score(q, k) = dot(q, k) "
                "- sqnorm(k); normalize(s) = softmax(s); }",
                DT_BF16);
    ck_assert_ptr_null(strstr(ptx, "ld.shared.u16"));
    char *piece = strstr(ptx, "ld.shared.v4.b32"), *end = piece ? strstr(piece, "bra") : NULL;
    ck_assert_ptr_nonnull(end);
    *end = 0;
    ck_assert_int_eq(count(piece, "fma.rn"), 8);
}

// 64 keys of 256 columns leave shared memory for half of what is stored: two parts, one after the
// other, each of two panels.
ARENA_TEST(stores_by_parts) {
    char *ptx = compile(a, softmax(a, 256, causal), DT_BF16);
    ck_assert(strstr(ptx, "m64n64k16") != NULL);
    ck_assert_int_eq(count(ptx, "bulk_group ["), 4);
    ck_assert_int_eq(count(ptx, "stmatrix"), 16);
}

// Of a number for each query and key full tiles read two keys at once where rows are aligned, narrow ones all before
// scores are waited for if registers are left, and ask for the next tile's; nothing there is clamped.
TEST(dense_bias) {
    static const struct {
        const char *dtype, *pair, *schedule;
    } cases[] = {{"f32", "ld.global.nc.v2.b32", NULL},
                 {"bf16", "@p ld.global.nc.b32", NULL},
                 {"bf16", "\tld.global.nc.b32", "keys=112"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Arena *a = arena_new();
        const char *text = arena_printf(
            a,
            "import std.normalization; attention t { dim D = 64; input bias: %s[H, Sq, Sk]; "
            "score(q, k) = dot(q, k); modify(s, b, h, i, j) = s + bias[h, i, j]; "
            "normalize(s) = softmax(s); }",
            cases[i].dtype);
        char *ptx = ptx_scheduled(a, TARGET_SM90A, text, DT_BF16, cases[i].schedule);
        ck_assert_int_ge(count(ptx, cases[i].pair), 24);
        ck_assert_int_ge(count(ptx, "prefetch.global.L2"), 2);
        arena_free(a);
    }
}

// bf16 weights that are sigmoids are made two at a time, without reciprocals; f16 ones are not.
ARENA_TEST(sigmoids) {
    const char *text = "attention t { dim D = 64; score(q, k) = dot(q, k); "
                       "modify(s) = sigmoid(s); normalize(s) = s; }";
    char *pairs = compile(a, text, DT_BF16), *single = compile(a, text, DT_F16);
    ck_assert_int_ge(count(pairs, "max.NaN.bf16x2"), 24);
    ck_assert_int_eq(count(single, "max.NaN"), 0);
    ck_assert_int_lt(count(pairs, "rcp.approx"), count(single, "rcp.approx"));
}

// What tensor copies cannot take, and f32, run as on sm_80.
ARENA_TEST(without_roles) {
    char *ptx = compile(a, softmax(a, 20, causal), DT_BF16);
    ck_assert(!strstr(ptx, "wgmma") && strstr(ptx, "mma.sync") != NULL);
    // what LLVM does not do for them: wide products, known address spaces, one base of shared memory
    ck_assert(strstr(ptx, "mul.wide.") && !strstr(ptx, "\tld.u") && !strstr(ptx, "\tld.f"));
    const char *base = strstr(ptx, "attn_shared;");
    ck_assert(base && !strstr(base + 1, "attn_shared;"));
    ptx = compile(a, softmax(a, 64, causal), DT_F32);
    ck_assert(!strstr(ptx, "wgmma") && strstr(ptx, "fma.rn.ftz.f32") != NULL);
}

// A letter for each barrier, store and load of row numbers, wait for products, and arrival, of a kernel.
static const char *events(Arena *a, const char *ptx) {
    static const char *const what[] = {"bar.sync", "st.shared.f32", "ld.shared.f32", "wgmma.wait",
                                       "mbarrier.arrive.shared"};
    Text t = text_new(a);
    for (; *ptx; ptx++)
        for (int i = 0; i < 5; i++)
            if (!strncmp(ptx, what[i], strlen(what[i]))) text_printf(&t, "%c", "BSLWA"[i]);
    return t.s;
}

// With kernels of packed rows, which have no roles where tiles of rows are no pairs.
static char *packed(Arena *a, const char *text) {
    PassOptions o = {.target = *target_get(TARGET_SM90A), .dtype = DT_BF16, .split = true};
    return ptx_with(a, &o, text);
}

// Warpgroups add up their sums of rows behind each of two loops, in one place: behind a barrier, since the second loop may have had no step.
ARENA_TEST(sums_behind_two_loops) {
    char *ptx =
        packed(a, "import std.normalization; attention t { dim D = 576, Dv = 512; share v = k; "
                  "score(q, k) = dot(q, k) * rsqrt(D); normalize(s) = softmax(s); }");
    char *kernel = strstr(ptx, ".entry t_part("),
         *end = kernel ? strstr(kernel + 1, ".entry") : NULL;
    ck_assert_ptr_nonnull(kernel);
    if (end) *end = 0;
    const char *all = events(a, kernel);
    ck_assert_msg(count(all, "BSSBLLLL") == 2, "%s", all);
    ck_assert_int_eq(count(all, "SSBLLLL"), 4); // and maxima, behind products
}

// A tile of keys that no query meets is taken and dropped without a product: all warps have seen that it is there before it is dropped, or one
// that is late waits for a copy that the next one has overtaken. So are k and v, before the next tile is heard of.
ARENA_TEST(tiles_without_a_step) {
    char *ptx = ptx_backward(a, TARGET_SM90A, softmax(a, 64, causal), DT_BF16);
    const char *all = events(a, ptx);
    ck_assert_int_eq(count(ptx, "setmaxnreg.inc"), 2);
    ck_assert_msg(count(all, "WABABAA") == 2, "%s", all);
}

static int adds_behind(const char *from) { return count(from, "cp.reduce.async.bulk"); }

// Where the producer's warps have registers for it, one of them has the copy engine add the sums of both warpgroups: those who compute do not,
// but for a meeting with it. Otherwise each warp of theirs does.
ARENA_TEST(sums_are_handed_over) {
    const int dims[] = {128, 64};
    for (int i = 0; i < 2; i++) {
        char *ptx = ptx_backward(a, TARGET_SM90A, softmax(a, dims[i], causal), DT_BF16);
        char *kernel = strstr(ptx, "_tame(");
        const char *computes = kernel ? strstr(kernel, "setmaxnreg.inc") : NULL;
        ck_assert_ptr_nonnull(computes);
        ck_assert_int_eq(adds_behind(kernel) - adds_behind(computes), i ? 0 : 2);
        ck_assert((adds_behind(computes) > 0) == i);
    }
}

// Three roles have dq whole, or in parts of whole panels.
ARENA_TEST(parts_of_narrow_queries) {
    for (int d = 80; d <= 112; d += 16) {
        const char *text = arena_printf(
            a,
            "import std.normalization; attention t { dim D = %d, Dv = 256; score(q, k) "
            "= dot(q, k) * 0.1; modify(s) = 2 * tanh(s / 2); normalize(s) = softmax(s); }",
            d);
        ck_assert_ptr_nonnull(strstr(ptx_backward(a, TARGET_SM90A, text, DT_BF16), ".reqntid 512"));
    }
}

// With roles as well: one base of shared memory in a kernel, hardly a copy (500 of 17,000 lines; 7,000 of 23,000 where they are not
// joined). Where a product has steps enough (d = 128) a descriptor of rows changes with the stage.
ARENA_TEST(not_optimized) {
    for (int d = 64; d <= 128; d += 64) {
        char *ptx = compile(a, softmax(a, d, causal), DT_BF16);
        int kernels = count(ptx, ".entry");
        ck_assert_int_gt(count(ptx, "attn_shared;"), 0);
        ck_assert_int_le(count(ptx, "attn_shared;"), kernels);
        ck_assert_int_eq(count(ptx, "attn_shared+"), 0);
        ck_assert_int_gt(count(ptx, "mul.wide."), 0);
        ck_assert_int_lt(10 * count(ptx, "\tmov."), count(ptx, "\n"));
        ck_assert_int_eq(count(ptx, "mad.wide.u32 %rd") > 0, d == 128);
        ck_assert(!strstr(ptx, "\tld.u") && !strstr(ptx, "\tld.f"));
    }
}

ARENA_TEST(launch) {
    size_t code_n;
    char *ptx = compile(a, softmax(a, 128, causal), DT_BF16);
    AbiMeta meta;
    const void *code;
    ck_assert_ptr_null(abi_find(&meta, ptx, strlen(ptx), &code, &code_n));
    const AbiVariant *v = &meta.variants[0];
    const AbiKernel *k = &v->kernels[0];
    ck_assert_str_eq(meta.target, "sm_90a");
    ck_assert_uint_eq(k->threads, 384);
    ck_assert_uint_eq(k->nmaps, 4); // q, k, v and o
    for (uint32_t i = 0; i < k->nmaps; i++) ck_assert_uint_eq(k->maps[i].box[3], 64);
    int64_t sizes[ABI_SIZE_FREE] = {2, 3, 3, 1000, 1000, 0}, blocks;
    ck_assert_uint_eq(k->ngrid, 1);
    ck_assert(abi_eval(&k->grid[0], sizes, 132, &blocks));
    ck_assert_int_eq(blocks, 2 * 3 * 8); // all tiles of 128 rows at once
    ck_assert(abi_eval(&k->grid[0], sizes, 20, &blocks));
    ck_assert_int_eq(blocks, 20);
    sizes[ABI_SIZE_B] = 65535, sizes[ABI_SIZE_H] = 2047; // just below 2^30 tiles, then 2^32 of them
    ck_assert(abi_eval(&k->grid[0], sizes, 20, &blocks));
    ck_assert_int_eq(blocks, 20);
    sizes[ABI_SIZE_B] = 1 << 18;
    ck_assert(!abi_eval(&k->grid[0], sizes, 20, &blocks));
    const AbiTensor *counter = &v->tensors[v->ntensors - 1];
    ck_assert_uint_eq(counter->role, ABI_ROLE_WORK);
    ck_assert_uint_eq(counter->flags, ABI_ZEROED | ABI_RESTORED);
    ck_assert_ptr_nonnull(strstr(ptx, "\n.visible .global .align 4 .b8 attn_words[65536];\n"));
    abi_free(&meta);
}

// tests/tile/places.tile: two tiles that live together lie in two places, a third that comes when both have been
// read in one of them; without the wait before it in a third one.
static uint32_t shared_of(const TileProgram *p, Diags *diags) {
    CgOptions o = {.opt = 3};
    AbiMeta meta;
    const void *code;
    void *ptx;
    size_t n, code_n;
    ck_assert(cg_emit(&p, 1, &o, CG_ASM, diags, &ptx, &n));
    ck_assert_ptr_null(abi_find(&meta, ptx, n, &code, &code_n));
    uint32_t bytes = meta.variants[0].kernels[0].shared;
    abi_free(&meta);
    free(ptx);
    return bytes;
}

ARENA_TEST(places) {
    Diags diags = diag_list(a);
    char *text = tu_tile(a, "places");
    TileProgram *p = tu_parse(a, text);
    const TileKernel *k = p->kernels.data[0];
    int place[100], n = 0, at[3];
    ck_assert_int_le(k->nvalues, 100);
    ck_assert_int_eq(tile_places(k, place), 2);
    for (const TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op))
        if (op->kind == TILE_MAP && op->results.data[0]->home == HOME_SHARED)
            at[n++] = place[op->results.data[0]->id];
    ck_assert_int_eq(n, 3);
    ck_assert_int_ne(at[0], at[1]);
    uint32_t two = shared_of(p, &diags);
    char *wait = strstr(text, "mma_wait 0\n          %rest");
    ck_assert_ptr_nonnull(wait);
    memset(wait, ' ', strlen("mma_wait 0"));
    p = tu_parse(a, text);
    ck_assert_int_eq(tile_places(p->kernels.data[0], place), 3);
    ck_assert_uint_eq(shared_of(p, &diags), two + 64 * 128);
}

// Of the first kernel, two batches.
static int64_t blocks_of(const AbiMeta *meta, int H, int Hkv, int Sq, int64_t workers) {
    const AbiVariant *v = &meta->variants[0];
    int64_t sizes[64] = {2, H, Hkv, Sq, 1000, 0}, blocks;
    for (uint32_t i = ABI_SIZE_FREE; i < v->nsizes; i++)
        if (v->sizes[i].def.n) ck_assert(abi_eval(&v->sizes[i].def, sizes, workers, &sizes[i]));
    ck_assert(abi_eval(&v->kernels[0].grid[0], sizes, workers, &blocks));
    return blocks;
}

// Two blocks a tile: whole clusters are launched, keys and values are copied to both.
ARENA_TEST(clusters) {
    size_t code_n;
    char *ptx = ptx_scheduled(a, TARGET_SM90A, softmax(a, 128, causal), DT_BF16, "cluster=2");
    AbiMeta meta;
    const void *code;
    ck_assert_ptr_null(abi_find(&meta, ptx, strlen(ptx), &code, &code_n));
    const AbiKernel *k = &meta.variants[0].kernels[0];
    ck_assert_uint_eq(k->cluster, 2);
    ck_assert_int_eq(blocks_of(&meta, 3, 3, 1000, 132), 2 * 3 * 8); // tiles of 128 rows
    ck_assert_int_eq(blocks_of(&meta, 3, 3, 1000, 21), 20);
    ck_assert_int_eq(blocks_of(&meta, 3, 3, 100, 132), 2 * 3 * 2); // a cluster for each head's tile
    ck_assert_int_eq(blocks_of(&meta, 4, 1, 100, 132), 2 * 4);     // two heads of a group
    ck_assert(strstr(ptx, ".multicast::cluster") && strstr(ptx, "barrier.cluster.wait"));
    for (uint32_t i = 0; i < k->nmaps; i++) { // halves of k and v; q and o as ever
        uint32_t role = meta.variants[0].tensors[k->maps[i].tensor].role;
        if (role == ABI_ROLE_K || role == ABI_ROLE_V) ck_assert_uint_eq(k->maps[i].box[2], 64);
        if (role == ABI_ROLE_Q) ck_assert_uint_eq(k->maps[i].box[2], 128);
    }
    abi_free(&meta);
}

// Where shifts stay a warp looks at its sums at each step, and alone does what comes of it: no thread of
// another waits.
ARENA_TEST(redo) {
    static const char *const c[] = {"fixed_shift=0", "fixed_shift=1,cluster=1",
                                    "fixed_shift=1,cluster=2"};
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        char *out = ptx_scheduled(a, TARGET_SM90A, softmax(a, 128, causal), DT_BF16, c[i]);
        const char *ptx = arena_strdup(a, out), *vote = strstr(ptx, "vote.sync.any.pred");
        ck_assert_int_eq(vote != NULL, i > 0);
        if (!vote) continue;
        const char *most = strstr(vote, "max.ftz.f32"), *sync = strstr(vote, "bar.sync");
        ck_assert(most && sync && most < sync);
    }
}

// Where warpgroups take no turns six exponents of each of a thread's two rows are asked about in place of their weights: over 2^82, a
// sixteenth of the bound on sums.
ARENA_TEST(redo_early) {
    static const char *const c[] = {"fixed_shift=1,cluster=1,turns=1",
                                    "fixed_shift=1,cluster=1,turns=0"};
    for (int i = 0; i < 2; i++) {
        const char *ptx = ptx_scheduled(a, TARGET_SM90A, softmax(a, 256, causal), DT_BF16, c[i]);
        ck_assert_int_eq(count(ptx, "0f42A40000;"), 12 * i);
        ck_assert_int_eq(count(ptx, "vote.sync.any.pred"), 1);
    }
}

// A score over a temperature goes into an exponent that a shift is subtracted from: its quotient stays approximate.
ARENA_TEST(quotient_in_exponent) {
    const char *text = "import std.normalization; attention t { dim D = 128; input tau: f32[H]; "
                       "score(q, k) = dot(q, k) * rsqrt(max(sqnorm(q) * sqnorm(k), 1e-12)); "
                       "modify(s, b, h) = s / max(tau[h], 0.01); normalize(s) = softmax(s); }";
    const char *ptx = ptx_scheduled(a, TARGET_SM90A, text, DT_BF16, "fixed_shift=1");
    ck_assert(strstr(ptx, "div.full.ftz.f32") && !strstr(ptx, "div.rn"));
}

// ---- with ptxas

// What it says of the code, in the arena.
static const char *assembled(Arena *a, const char *ptx) {
    size_t n = strlen(ptx);
    char path[] = "/tmp/attnc-sm90-XXXXXX";
    int f = mkstemp(path);
    ck_assert(f >= 0 && write(f, ptx, n) == (ssize_t)n);
    close(f);
    const char *command = "$(tests/tools.sh ptxas) -v -arch=sm_90a %s -o /dev/null 2>&1";
    FILE *p = popen(arena_printf(a, command, path), "r");
    ck_assert_ptr_nonnull(p);
    Text t = text_new(a);
    char line[512];
    while (fgets(line, sizeof line, p)) text_puts(&t, line);
    int status = pclose(p);
    unlink(path);
    ck_assert_msg(status == 0, "%s", t.s);
    return t.s;
}

// Serialized products (C7510 to C7518) are half as fast; ptxas says so and succeeds.
static bool serialized(const char *report) {
    for (const char *s = report; (s = strstr(s, "C75")); s++)
        if (s[3] == '1' && s[4] != '9') return true;
    return false;
}

static const int assembles_widths[] = {64, 80, 128, 192, 256};
ARENA_TEST_EACH(assembles, 0, sizeof assembles_widths / sizeof *assembles_widths) {
    char *ptx = compile(a, softmax(a, assembles_widths[_i], _i % 2 ? "" : causal), DT_BF16);
    const char *report = assembled(a, ptx);
    ck_assert_msg(!serialized(report), "D = %d: %s", assembles_widths[_i], report);
    ck_assert_msg(strstr(report, " 0 bytes spill stores") != NULL, "D = %d: %s",
                  assembles_widths[_i], report);
}

// Gradients: warpgroups with keys of their own, or three roles with the same keys, whose dq is added by the copy engine where shared memory
// has room for a buffer, and by the threads otherwise. What is of a row alone is not computed for its pairs.
TEST(gradients) {
    static const int widths[] = {64, 128, 192, 256};
    for (int i = 0; i < 4; i++) {
        Arena *a = arena_new();
        const char *text = softmax(a, widths[i], i % 2 ? "" : causal);
        char *ptx = ptx_backward(a, TARGET_SM90A, text, DT_BF16);
        bool room = widths[i] < 256;
        ck_assert_int_eq(strstr(ptx, ".reqntid 512") != NULL, widths[i] > 128);
        ck_assert_int_eq(strstr(ptx, "cp.reduce.async.bulk") != NULL, room);
        ck_assert_int_eq(strstr(ptx, "add.v4.f32") != NULL, !room);
        ck_assert(!strstr(ptx, "mma.sync"));
        const char *report = assembled(a, ptx);
        ck_assert_msg(!serialized(report), "D = %d: %s", widths[i], report);
        const char *nest = strstr(ptx, ".entry t_gradients");
        ck_assert_msg(nest && strstr(ptx, "abs.ftz.f32") < nest && !strstr(nest, "abs.ftz.f32"),
                      "D = %d", widths[i]);
        arena_free(a);
    }
}

// Warpgroups that share scores add their sums up behind each loop. The second may have no step, so that one exchange is next to the other.
ARENA_TEST(sums_of_warps) {
    char *ptx = packed(
        a, "import std.normalization; attention t { dim D = 576, Dv = 512; share v = k; "
           "score(q, k) = dot(q, k); mask(b, h, i, j) = j <= i; normalize(s) = softmax(s); }");
    ptx = strstr(ptx, ".entry t_part(");
    *strstr(ptx + 1, ".entry") = 0;
    int behind = 0;
    for (char *block = strtok(ptx, "$"); block; block = strtok(NULL, "$")) {
        const char *barrier = strstr(block, "bar.sync"), *put = strstr(block, "st.shared.f32");
        if (!put || strstr(block, "wgmma")) continue;
        ck_assert(barrier && barrier < put);
        behind++;
    }
    ck_assert_int_ge(behind, 2);
}

// Where tiles of rows are pairs, scores have a role of their own: keys come to both blocks of a cluster, packed queries by threads, and a score of two
// products is one block of assembly, which waits for the second one's keys within.
ARENA_TEST(scores_apart) {
    char *ptx =
        packed(a, "import std.normalization; attention t { dim D = 512, Dv = 512; share v = k; "
                  "input q_pe: bf16[B, H, Sq, 64]; input k_pe: bf16[B, 1, Sk, 64];"
                  "score(q, k) = dot(q, k) + dot(q_pe, k_pe); normalize(s) = softmax(s); }");
    char *part = strstr(ptx, ".entry t_part("), *pairs = strstr(ptx, ".entry t_part_pairs(");
    ck_assert(part && pairs);
    char *end = strstr(pairs + 1, ".entry");
    if (end) *end = 0;
    ck_assert_int_gt(count(pairs, ".multicast::cluster"), 0);
    ck_assert_int_eq(count(pairs, "cp.async.mbarrier.arrive.noinc"), 2); // q and q_pe
    ck_assert_int_eq(count(pairs, "m64n48k16"), 3 * (512 + 64) / 16);
    ck_assert_int_eq(count(pairs, "cp.async.bulk.prefetch"),
                     2 * 48 / 2 / 8); // in loops, a band of all columns each
    ck_assert_int_eq(count(pairs, "vote.sync.any"),
                     3); // whether a shift has moved, and sums are multiplied
    int halves = count(pairs, "ld.global.u16") + count(pairs, "ld.global.b16");
    ck_assert_int_eq(halves, 0); // q comes in words
    int within = 0;
    for (char *at = pairs; (at = strstr(at, "wgmma.fence")); at++) {
        char *over = strstr(at, "end inline asm"), *wait = strstr(at, "mbarrier.try_wait");
        within += wait && wait < over;
    }
    ck_assert_int_ge(within, 2); // of partial tiles and of full ones
    // Of the threads that copy q one is elected for tensor copies. A tile of keys is dropped behind its product, also where that reads what lies beside.
    ck_assert_int_eq(count(pairs, "elect.sync"), 6);
    ck_assert_int_eq(count(pairs, "bar.sync"), 3);
}

// A shift of large scores is multiplied by a unit that its size chooses.
ARENA_TEST(large_scores_backward) {
    char *ptx = ptx_backward(a, TARGET_SM90A,
                             "import std.normalization; attention t { dim D = 64; "
                             "score(q, k) = dot(q, k) * 3e30; normalize(s) = softmax(s); }",
                             DT_BF16);
    const char *delta = strstr(ptx, "t_delta(");
    ck_assert_ptr_nonnull(delta);
    const char *end = strstr(delta, "\n}"), *unit = strstr(delta, "0f3F800000, 0f3FB8AA3B");
    ck_assert(unit && unit < end); // one of both
}

// In pages of known size each warp of the producer copies boxes. Pieces are behind the end of a sequence only; who writes them makes
// products see them. With pages of any size all is pieces, which whoever takes them sees.
TEST(boxes_of_pages) {
    static const char text[] = "import std.normalization;\n"
                               "attention a { dim D = 128; score(q, k) = dot(q, k); "
                               "normalize(s) = softmax(s); }";
    for (int page = 0; page <= 16; page += 16) {
        Arena *a = arena_new();
        PassOptions o = {.target = cg_target(TARGET_SM90A), .dtype = DT_BF16, .batch = BATCH_PAGED};
        o.page = page, o.split = true;
        const char *ptx = ptx_with(a, &o, text);
        int pieces = count(ptx, "cp.async.mbarrier.arrive.noinc"),
            written = count(ptx, "cp.async.wait_all;\n");
        ck_assert_int_eq(pieces > 0, !page);
        ck_assert_int_eq(written > 0, page > 0);
        ck_assert_int_eq(count(ptx, "elect.sync") > 3, page > 0);
        arena_free(a);
    }
}
