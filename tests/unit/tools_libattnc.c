// libattnc: source to artifacts and to running code, from C.
#include "runtime/attn.h"
#include "tests/unit/test.h"
#include "tools/libattnc.h"

static const char source[] =
    "import std.normalization;\n"
    "attention mean { dim D = 8; score(q, k) = 0 * dot(q, k); normalize(s) = softmax(s); }\n";

static void made(const struct attnc_options *o, const char *holds) {
    void *out;
    size_t n;
    char *text;
    ck_assert_int_eq(attnc_compile(source, sizeof source - 1, "mean.attn", o, &out, &n, &text), 0);
    ck_assert_str_eq(text, "");
    ck_assert(n > 100 && memmem(out, n, holds, strlen(holds)));
    attnc_free(out);
    attnc_free(text);
}

static void compiles(const char *target, enum attnc_form form, const char *holds) {
    made(&(struct attnc_options){.target = target, .level = 2, .form = form}, holds);
}

TEST(every_form) {
    compiles("sm_80", ATTNC_ARTIFACT, ".target sm_80");
    compiles("sm_80", ATTNC_LLVM, "nvptx64");
    compiles("host", ATTNC_ARTIFACT, "ELF");
    compiles(NULL, ATTNC_ASSEMBLY, ".text");
    compiles(NULL, ATTNC_LLVM, "define");
}

TEST(phases_and_layouts) {
    made(&(struct attnc_options){.target = "sm_80", .phase = "fwd,bwd", .deterministic = 1},
         "mean_gradients");
    made(&(struct attnc_options){.target = "sm_80", .phase = "part"}, "mean_result");
    made(&(struct attnc_options){.target = "sm_80", .layout = "paged"}, "mean_fwd_param_30");
    made(&(struct attnc_options){.target = "sm_90a", .kv_dtype = "e4m3"}, "cvt.rn.f16x2.e4m3x2");
    made(&(struct attnc_options){.target = "sm_80", .dtype = "tf32"}, "tf32");
}

static void refused(const char *text, const struct attnc_options *o, int status, const char *says) {
    void *out;
    size_t n;
    char *diagnostics;
    ck_assert_int_eq(attnc_compile(text, strlen(text), "wrong.attn", o, &out, &n, &diagnostics),
                     status);
    ck_assert_ptr_null(out);
    ck_assert_msg(strstr(diagnostics, says) != NULL, "%s", diagnostics);
    attnc_free(diagnostics);
}

TEST(mistakes) {
    refused("attention x { dim D = 8; score(q, k) = nothing; normalize(s) = s; }", NULL, 1,
            "wrong.attn:1:");
    refused(source, &(struct attnc_options){.target = "vax"}, 2, "no target 'vax'");
    refused(source, &(struct attnc_options){.dtype = "f8"}, 2, "no dtype 'f8'");
    refused(source, &(struct attnc_options){.phase = "fwd,"}, 2, "no phase 'fwd,'");
    refused(source, &(struct attnc_options){.phase = "forward"}, 2, "no phase 'forward'");
    refused(source, &(struct attnc_options){.kv_dtype = "f8"}, 2, "no kv_dtype 'f8'");
    refused(source, &(struct attnc_options){.layout = "paged:0"}, 2, "no layout 'paged:0'");
    refused(source, &(struct attnc_options){.layout = "dense:16"}, 2, "no layout 'dense:16'");
    refused(source, &(struct attnc_options){.schedule = "speed=9"}, 2, "speed");
    refused(source, &(struct attnc_options){.level = 4}, 2, "no level 4");
    refused(source, &(struct attnc_options){.layout = "paged", .phase = "fwd,bwd"}, 1,
            "no backward in layout paged");
    refused(source, &(struct attnc_options){.entry = "median"}, 2, "median");
    refused(source, &(struct attnc_options){.defines = (const char *const[]){"E=4"}, .ndefines = 1},
            2, "E");
}

static attnc_mask *opened(const char *text, const attn_call *call, const char *target, int batch,
                          const char *says) {
    char *diagnostics;
    struct attnc_options o = {.target = target};
    attnc_mask *m =
        attnc_mask_open(text, strlen(text), "mask.attn", &o, call, batch, 0, &diagnostics);
    ck_assert_msg(says ? !m && strstr(diagnostics, says) : m && !*diagnostics, "%s", diagnostics);
    attnc_free(diagnostics);
    return m;
}

static const char window[] =
    "import std.normalization; attention window { dim D = 16; input reach: i32; score(q, k) = "
    "dot(q, k);"
    "mask(b, h, i, j) = j <= i && i - j < reach; normalize(s) = softmax(s); }";

// A rank has some queries of a window, and needs the keys of its tiles: never less than the window shows, and not much more.
TEST(needed_keys) {
    attn_size sizes[] = {{"Sq", 1000}, {"Sk", 1000}};
    attn_scalar reach = {"reach", 100};
    attn_call call = {.sizes = sizes, .nsizes = 2, .scalars = &reach, .nscalars = 1};
    const char *const targets[] = {NULL, "sm_90a"};
    for (int i = 0; i < 2; i++) {
        attnc_mask *m = opened(window, &call, targets[i], 0, NULL);
        int keys[2][2];
        ck_assert_int_eq(attnc_needed(m, 600, 800, keys, 2), 1);
        ck_assert(keys[0][0] <= 501 && keys[0][0] > 501 - 2 * 192 && keys[0][1] >= 800 &&
                  keys[0][1] <= 1000);
        ck_assert_int_eq(attnc_needed(m, 900, 5000, keys, 0), 1); // behind the last: up to there
        ck_assert_int_eq(attnc_needed(m, 700, 700, keys, 2), 0);
        long long parts = 0, all = attnc_visited(m, 0, 1000);
        for (int at = 0; at < 1000; at += 250) parts += attnc_visited(m, at, at + 250);
        ck_assert_int_eq(parts, all);
        ck_assert(all >= 1000 * 100 - 100 * 99 / 2 && all < 1000 * 1000 / 2);
        attnc_mask_close(m);
    }
}

TEST(needed_keys_by_inputs) {
    static const char documents[] =
        "import std.normalization; attention documents { dim D = 16; input doc: i32[B, Sk]; "
        "score(q, k) = dot(q, k);"
        "mask(b, h, i, j) = doc[b, i] == doc[b, j]; normalize(s) = softmax(s); }";
    static int32_t doc[2][512];
    for (int i = 0; i < 512; i++)
        doc[0][i] = i / 128 % 2, doc[1][i] = 7; // two documents, in two pieces each
    attn_size sizes[] = {{"Sq", 512}};
    int64_t shape[] = {2, 512};
    attn_tensor t = {"doc", doc, ATTN_I32, 2, shape, NULL, {ATTN_CPU, 0}};
    attn_call call = {.sizes = sizes, .nsizes = 1, .tensors = &t, .ntensors = 1};
    int keys[4][2];
    attnc_mask *m = opened(documents, &call, NULL, 0, NULL);
    ck_assert_int_eq(attnc_needed(m, 0, 128, keys, 4), 2);
    ck_assert(keys[0][0] == 0 && keys[0][1] == 128 && keys[1][0] == 256 && keys[1][1] == 384);
    attnc_mask_close(m);
    m = opened(documents, &call, NULL, 1, NULL);
    ck_assert_int_eq(attnc_needed(m, 0, 128, keys, 4), 1);
    ck_assert(keys[0][0] == 0 && keys[0][1] == 512);
    attnc_mask_close(m);
    opened(documents, &call, NULL, 2, "there are B = 2 batch entries");
    t.dtype = ATTN_F32;
    opened(documents, &call, NULL, 0, "doc: expected elements of type i32");
    t.dtype = ATTN_I32, shape[1] = 500, sizes[0] = (attn_size){"Sk", 512};
    opened(documents, &call, NULL, 0, "Sk is 512 and 500");
    t.shape = NULL;
    opened(documents, &call, NULL, 0, "doc: is given without a shape");
    t.name = NULL;
    opened(documents, &call, NULL, 0, "the mask reads doc");
    sizes[0].name = NULL;
    opened(documents, &call, NULL, 0, "a name of NULL: there is no such size");
    call.ntensors = 0, call.nsizes = 0;
    opened(documents, &call, NULL, 0, "the mask reads doc");
    call.scalars = &(attn_scalar){NULL, 3}, call.nscalars = 1;
    opened(window, &call, NULL, 0, "the mask reads reach");
    opened(window, &(attn_call){0}, NULL, 0, "the mask reads reach");
    static const char first[] =
        "import std.normalization; attention first { dim D = 16; input t: f32[N];"
        "score(q, k) = dot(q, k); modify(s, b, h, i, j) = s + t[j];"
        "mask(b, h, i, j) = j < N; normalize(s) = softmax(s); }";
    attn_size few[] = {{"Sq", 1 << 24}, {"Sk", 100}, {"N", 10}};
    call = (attn_call){.sizes = few, .nsizes = 2};
    opened(first, &call, NULL, 0, "the size N is not given");
    call.nsizes = 3;
    m = opened(first, &call, NULL, 0, NULL);
    ck_assert_int_eq(attnc_needed(m, 0, 1 << 24, keys, 4), 1);
    ck_assert(keys[0][0] == 0 && keys[0][1] >= 10 && keys[0][1] <= 100);
    attnc_mask_close(m);
    struct attnc_options ragged = {.layout = "ragged"};
    char *said;
    ck_assert(!attnc_mask_open(first, strlen(first), "first.attn", &ragged, &call, 0, 0, &said));
    ck_assert_msg(strstr(said, "only the dense layout has a map"), "%s", said);
    attnc_free(said);
    opened("recurrence sums { dim D = 1, Dv = 2; }", &(attn_call){0}, NULL, 0, "is a recurrence");
    opened("attention x {", &(attn_call){0}, NULL, 0, "mask.attn:1:");
}

TEST(runs) {
    float q[2 * 4], k[3 * 4] = {0}, v[3 * 4], o[2 * 4], lse[2];
    int64_t q_shape[] = {1, 1, 2, 4}, k_shape[] = {1, 1, 3, 4}, row[] = {1, 1, 2};
    attn_device cpu = {ATTN_CPU, 0};
    struct attnc_options options = {.defines = (const char *const[]){"D=4"}, .ndefines = 1};
    char *text;
    attn_error e;
    for (int i = 0; i < 8; i++) q[i] = (float)i;
    for (int i = 0; i < 12; i++) v[i] = (float)i;
    attn_context *c = attn_create();
    attnc_jit *j = attnc_jit_open(c, source, sizeof source - 1, "mean.attn", &options, &text);
    ck_assert_msg(j != NULL, "%s", text);
    attn_tensor t[] = {{"q", q, ATTN_F32, 4, q_shape, NULL, cpu},
                       {"k", k, ATTN_F32, 4, k_shape, NULL, cpu},
                       {"v", v, ATTN_F32, 4, k_shape, NULL, cpu},
                       {"o", o, ATTN_F32, 4, q_shape, NULL, cpu},
                       {"lse", lse, ATTN_F32, 3, row, NULL, cpu}};
    attn_call call = {.tensors = t, .ntensors = 5};
    ck_assert_msg(attn_launch(attnc_jit_artifact(j), &call, &e) == ATTN_OK, "%s", e.message);
    for (int i = 0; i < 8; i++)
        ck_assert(fabsf(o[i] - (float)(i % 4 + 4)) < 1e-5f); // the mean of three rows
    ck_assert(fabsf(lse[0] - logf(3)) < 1e-6f);
    attnc_jit_close(j);
    attn_destroy(c);
    attnc_free(text);
}

// o_t = the sum of v up to t, times q; H is that of v. state0 and state may be left out.
TEST(runs_a_recurrence) {
    static const char sums[] = "recurrence sums { dim D = 1, Dv = 2; }";
    float q[3] = {1, 2, 3}, k[3] = {1, 1, 1}, v[12], o[12], state0[4] = {1, 2, 3, 4}, state[4];
    int64_t shared[] = {1, 1, 3, 1}, heads[] = {1, 2, 3, 2}, states[] = {1, 2, 1, 2};
    attn_device cpu = {ATTN_CPU, 0};
    char *text;
    attn_error e;
    for (int i = 0; i < 12; i++) v[i] = (float)i;
    attn_context *c = attn_create();
    attnc_jit *j = attnc_jit_open(c, sums, sizeof sums - 1, "sums.attn", NULL, &text);
    ck_assert_msg(j != NULL, "%s", text);
    attn_tensor t[] = {{"q", q, ATTN_F32, 4, shared, NULL, cpu},
                       {"k", k, ATTN_F32, 4, shared, NULL, cpu},
                       {"v", v, ATTN_F32, 4, heads, NULL, cpu},
                       {"o", o, ATTN_F32, 4, heads, NULL, cpu},
                       {"state0", state0, ATTN_F32, 4, states, NULL, cpu},
                       {"state", state, ATTN_F32, 4, states, NULL, cpu}};
    for (int n = 4; n <= 6; n++) { // without states, without a last one, with both
        attn_call call = {.tensors = t, .ntensors = (size_t)n};
        ck_assert_msg(attn_launch(attnc_jit_artifact(j), &call, &e) == ATTN_OK, "%s", e.message);
        for (int h = 0; h < 2; h++)
            for (int i = 0; i < 2; i++) {
                float sum = n > 4 ? state0[h * 2 + i] : 0;
                for (int s = 0; s < 3; s++) {
                    sum += v[h * 6 + s * 2 + i];
                    ck_assert(o[h * 6 + s * 2 + i] == q[s] * sum);
                }
                if (n == 6) ck_assert(state[h * 2 + i] == sum);
            }
    }
    int64_t shape[8], wrong[] = {1, 3, 3, 1};
    int rank;
    attn_call call = {.tensors = t, .ntensors = 3};
    ck_assert_int_eq(attn_shape(attnc_jit_artifact(j), &call, "state", shape, &rank, &e), ATTN_OK);
    ck_assert(rank == 4 && shape[0] == 1 && shape[1] == 2 && shape[2] == 1 && shape[3] == 2);
    t[1].shape = wrong;
    call.ntensors = 4;
    ck_assert_int_eq(attn_launch(attnc_jit_artifact(j), &call, &e), ATTN_ERROR_CALL);
    ck_assert_msg(strstr(e.message, "no multiple of Hk = 3") != NULL, "%s", e.message);
    attnc_jit_close(j);
    attn_destroy(c);
    attnc_free(text);
}

TEST(jit_mistake) {
    char *text;
    attn_context *c = attn_create();
    ck_assert_ptr_null(attnc_jit_open(c, "attention", 9, "wrong.attn", NULL, &text));
    ck_assert(strstr(text, "error") != NULL);
    attnc_free(text);
    attn_destroy(c);
}
