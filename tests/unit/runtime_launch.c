// runtime_launch.c: calls on the host: results, plans, workspace, every check and its message, the
// thread pool.
#include "runtime/device.h"
#include "runtime/rt.h"
#include "runtime_fixture.h"
#include "tests/unit/test.h"
#include <stdatomic.h>
#include <unistd.h>

// A call of the fixture's "sum" with B=2, H=4, Hkv=2, N=3, that a test changes before it launches.
typedef struct World {
    attn_context *context;
    attn_artifact *artifact;
    attn_error error;
    float *q, *k, *v, *o, *rows, *bias;
    int64_t q_shape[4], k_shape[4], v_shape[4], o_shape[4], bias_shape[2], rows_shape[3];
    attn_tensor tensors[8];
    attn_scalar scalars[2];
    attn_size sizes[2];
    attn_call call;
    void *workspace;
} World;

enum { TQ, TK, TV, TO, TBIAS, TROWS };

static const attn_device CPU = {ATTN_CPU, 0};

static void open_fixture(World *w) {
    size_t n;
    uint8_t *meta = fixture_meta(ABI_CODE_HOST, &n);
    w->context = attn_create();
    ck_assert_int_eq(attn_set_threads(w->context, 3, &w->error), ATTN_OK);
    attn_status s =
        attn_open_host(w->context, meta, n, fixture_kernels, FIX_KERNELS, &w->artifact, &w->error);
    ck_assert_msg(s == ATTN_OK, "%s", w->error.message);
    free(meta);
}

static void *memory(World *w, int64_t floats) {
    void *p;
    ck_assert_int_eq(attn_memory_alloc(w->context, CPU, (size_t)floats * 4, &p, &w->error),
                     ATTN_OK);
    attn_memory_fill(w->context, CPU, p, 0xff, (size_t)floats * 4, NULL); // NaN
    return p;
}

static World world(int64_t sq, int64_t sk) {
    World w = {.q_shape = {2, 4, sq, FIX_D},
               .k_shape = {2, 2, sk, FIX_D},
               .v_shape = {2, 2, sk, FIX_DV},
               .o_shape = {2, 4, sq, FIX_DV},
               .bias_shape = {4, 3},
               .rows_shape = {2, 4, sq}};
    open_fixture(&w);
    w.q = memory(&w, 8 * sq * FIX_D);
    w.k = memory(&w, 4 * sk * FIX_D);
    w.v = memory(&w, 4 * sk * FIX_DV);
    w.o = memory(&w, 8 * sq * FIX_DV);
    w.rows = memory(&w, 8 * sq);
    w.bias = memory(&w, 12);
    w.workspace = memory(&w, 4096);
    for (int64_t i = 0; i < 4 * sk * FIX_DV; i++) w.v[i] = (float)(i % 7);
    for (int i = 0; i < 12; i++) w.bias[i] = (float)i;
    return w;
}

static void finish(World *w) { // after the World has its place: the call points into it
    w->tensors[TQ] = (attn_tensor){"q", w->q, ATTN_F32, 4, w->q_shape, NULL, CPU}; // never read
    w->tensors[TK] = (attn_tensor){"k", w->k, ATTN_F32, 4, w->k_shape, NULL, CPU};
    w->tensors[TV] = (attn_tensor){"v", w->v, ATTN_F32, 4, w->v_shape, NULL, CPU};
    w->tensors[TO] = (attn_tensor){"o", w->o, ATTN_F32, 4, w->o_shape, NULL, CPU};
    w->tensors[TBIAS] = (attn_tensor){"bias", w->bias, ATTN_F32, 2, w->bias_shape, NULL, CPU};
    w->tensors[TROWS] = (attn_tensor){"rows", w->rows, ATTN_F32, 3, w->rows_shape, NULL, CPU};
    w->scalars[0] = (attn_scalar){"scale", 0.5};
    w->sizes[0] = (attn_size){"q_offset", 0};
    w->call = (attn_call){.variant = "sum",
                          .tensors = w->tensors,
                          .ntensors = 6,
                          .scalars = w->scalars,
                          .nscalars = 1,
                          .sizes = w->sizes,
                          .nsizes = 1,
                          .workspace = w->workspace,
                          .workspace_bytes = 16384};
}

static void end(World *w) {
    attn_memory_free(w->context, CPU, w->q);
    attn_memory_free(w->context, CPU, w->k);
    attn_memory_free(w->context, CPU, w->v);
    attn_memory_free(w->context, CPU, w->o);
    attn_memory_free(w->context, CPU, w->rows);
    attn_memory_free(w->context, CPU, w->bias);
    attn_memory_free(w->context, CPU, w->workspace);
    attn_close(w->artifact);
    attn_destroy(w->context);
}

static void launch_ok(World *w) {
    attn_status s = attn_launch(w->artifact, &w->call, &w->error);
    ck_assert_msg(s == ATTN_OK, "%s", w->error.message);
}

static void check_o(const World *w, int64_t sq, int64_t sk) {
    for (int64_t r = 0; r < 8 * sq; r++)
        for (int64_t e = 0; e < FIX_DV; e++) {
            int64_t h = r / sq % 4, b = r / sq / 4;
            float s = 0;
            for (int64_t j = 0; j < sk; j++) s += w->v[((b * 2 + h / 2) * sk + j) * FIX_DV + e];
            ck_assert_float_eq(w->o[r * FIX_DV + e], w->bias[h * 3] + 0.5f * s);
        }
}

static void refused(World *w, const char *message) {
    ck_assert_int_eq(attn_launch(w->artifact, &w->call, &w->error), ATTN_ERROR_CALL);
    ck_assert_str_eq(w->error.message, message);
    ck_assert_int_eq(w->error.status, ATTN_ERROR_CALL);
    ck_assert_int_eq(attn_launch(w->artifact, &w->call, NULL),
                     ATTN_ERROR_CALL); // without a place for the message
}

// ---- results

TEST(one_kernel) {
    World w = world(5, 9);
    finish(&w);
    launch_ok(&w);
    check_o(&w, 5, 9);
    ck_assert_float_eq(w.rows[7], 9 + 2);
    end(&w);
}

TEST(split_plan_zeroes_its_workspace) {
    World w = world(3, 100);
    size_t n;
    finish(&w);
    ck_assert_int_eq(attn_workspace_bytes(w.artifact, &w.call, &n, &w.error), ATTN_OK);
    ck_assert_uint_eq(n, 256); // part: 2 * 2 * 4 splits * 2 floats = 128 bytes
    w.call.workspace_bytes = n;
    launch_ok(&w);
    check_o(&w, 3, 100);
    memset(w.o, 0xff, 8 * 3 * FIX_DV * 4);
    launch_ok(&w); // the workspace is dirty now
    check_o(&w, 3, 100);
    w.call.workspace_bytes = n - 1;
    refused(&w, "the launch takes a workspace of 256 bytes, and 255 were given");
    w.call.workspace_bytes = n;
    w.call.workspace = (char *)w.workspace + 16;
    refused(&w, "the workspace's address is no multiple of 256 bytes");
    w.call.workspace = NULL;
    refused(&w, "the launch takes a workspace of 256 bytes, and 0 were given");
    end(&w);
}

TEST(short_plan_needs_no_workspace) {
    World w = world(3, 63);
    size_t n = 1;
    finish(&w);
    w.call.workspace = NULL;
    ck_assert_int_eq(attn_workspace_bytes(w.artifact, &w.call, &n, &w.error), ATTN_OK);
    ck_assert_uint_eq(n, 0);
    launch_ok(&w);
    check_o(&w, 3, 63);
    end(&w);
}

TEST(optional_output_left_out) {
    World w = world(3, 4);
    finish(&w);
    w.call.ntensors = 5;
    launch_ok(&w);
    check_o(&w, 3, 4);
    ck_assert(w.rows[0] != w.rows[0]); // untouched
    end(&w);
}

TEST(strides) { // o stored [B, Sq, H, Dv], v with gaps between its rows
    World w = world(3, 4);
    finish(&w);
    float *v = memory(&w, 4 * 4 * 5);
    for (int r = 0; r < 16; r++) memcpy(v + r * 5, w.v + r * FIX_DV, 4 * FIX_DV);
    w.tensors[TV].data = v;
    w.tensors[TV].strides = (int64_t[]){40, 20, 5, 1};
    w.tensors[TO].strides = (int64_t[]){24, FIX_DV, 4 * FIX_DV, 1};
    launch_ok(&w);
    float sum = 0;
    for (int j = 0; j < 4; j++) sum += w.v[((1 * 2 + 1) * 4 + j) * FIX_DV + 1];
    ck_assert_float_eq(w.o[1 * 24 + 3 * FIX_DV + 2 * 4 * FIX_DV + 1],
                       w.bias[3 * 3] + 0.5f * sum); // b=1 h=3 i=2 e=1
    attn_memory_free(w.context, CPU, v);
    end(&w);
}

TEST(no_keys_still_writes_rows) {
    World w = world(3, 0);
    finish(&w);
    w.tensors[TK].data = w.tensors[TV].data = NULL; // nothing there to point to
    launch_ok(&w);
    check_o(&w, 3, 0);
    end(&w);
}

TEST(empty_launches) {
    World w = world(0, 4);
    finish(&w);
    launch_ok(&w);
    for (int i = 0; i < 2; i++)
        w.q_shape[i] = w.k_shape[i] = w.v_shape[i] = w.o_shape[i] = w.rows_shape[i] = 0;
    w.bias_shape[0] = 0;
    launch_ok(&w); // B = H = Hkv = 0
    end(&w);
}

TEST(other_variant_has_its_own_kernel) {
    World w = world(2, 3);
    finish(&w);
    w.call.variant = "copy";
    launch_ok(&w);
    ck_assert_float_eq(w.o[0], -1);
    end(&w);
}

TEST(prepared) {
    World w = world(3, 100);
    attn_prepared *p;
    finish(&w);
    ck_assert_int_eq(attn_prepare(w.artifact, &w.call, &p, &w.error), ATTN_OK);
    memset(w.q_shape, 0, sizeof w.q_shape); // shapes need not live on
    for (int i = 0; i < 3; i++) {
        memset(w.o, 0xff, 8 * 3 * FIX_DV * 4);
        ck_assert_int_eq(attn_launch_prepared(p, NULL, &w.error), ATTN_OK);
        check_o(&w, 3, 100);
    }
    attn_free_prepared(p);
    ck_assert_int_eq(attn_prepare(w.artifact, &w.call, &p, &w.error), ATTN_ERROR_CALL);
    ck_assert_ptr_null(p);
    end(&w);
}

TEST(shapes_and_info) {
    World w = world(3, 100);
    int64_t shape[8];
    int rank;
    attn_artifact_info info;
    attn_variant_info v;
    attn_tensor_info t;
    attn_size_info s;
    finish(&w);
    w.call.ntensors = 3; // q, k, v; no bias: N is open, so shapes are too
    ck_assert_int_eq(attn_shape(w.artifact, &w.call, "o", shape, &rank, &w.error), ATTN_ERROR_CALL);
    ck_assert_str_eq(w.error.message, "N: nothing gives this size");
    w.sizes[1] = (attn_size){"N", 3};
    w.call.nsizes = 2;
    ck_assert_int_eq(attn_shape(w.artifact, &w.call, "o", shape, &rank, &w.error), ATTN_OK);
    ck_assert_int_eq(rank, 4);
    ck_assert_mem_eq(shape, w.o_shape, sizeof w.o_shape);
    ck_assert_int_eq(attn_shape(w.artifact, &w.call, "nope", shape, &rank, &w.error),
                     ATTN_ERROR_CALL);
    attn_get_info(w.artifact, &info);
    ck_assert_int_eq(info.variants, 2);
    ck_assert_int_eq(info.workers, 3);
    ck_assert_int_eq(info.device.kind, ATTN_CPU);
    ck_assert_int_eq(attn_get_variant(w.artifact, 1, &v, &w.error), ATTN_OK);
    ck_assert_str_eq(v.name, "copy");
    ck_assert_int_eq(attn_get_variant(w.artifact, 2, &v, &w.error), ATTN_ERROR_CALL);
    ck_assert_int_eq(attn_get_tensor(w.artifact, 0, 6, &t, &w.error), ATTN_OK);
    ck_assert_str_eq(t.role, "emit");
    ck_assert(t.output && t.optional && t.rank == 3);
    ck_assert_int_eq(attn_get_tensor(w.artifact, 0, 8, &t, &w.error), ATTN_ERROR_CALL);
    ck_assert_int_eq(attn_get_size(w.artifact, 0, 7, &s, &w.error), ATTN_OK);
    ck_assert(!s.given);
    end(&w);
}

// ---- checks

TEST(refuses_names) {
    World w = world(3, 4);
    finish(&w);
    w.call.variant = NULL;
    refused(&w, "the artifact holds several variants (sum, copy ...): name one");
    w.call.variant = "nope";
    refused(&w, "the artifact holds no variant nope with a forward");
    w.call.variant = "sum";
    w.call.phase = ATTN_BWD;
    refused(&w, "the artifact holds no variant sum with a backward");
    w.call.phase = ATTN_COMBINE;
    refused(&w, "the artifact holds no variant sum with a combination");
    w.call.phase = (attn_phase)99;
    refused(&w, "the artifact holds no variant sum with a phase of this number");
    w.call.phase = ATTN_FWD;
    w.tensors[TROWS].name = "lse";
    refused(&w, "lse: the forward of sum has no such tensor");
    w.tensors[TROWS].name = "part"; // workspace is not given by name
    refused(&w, "part: the forward of sum has no such tensor");
    w.tensors[TROWS].name = NULL;
    refused(&w, "a name of NULL: the forward of sum has no such tensor");
    w.tensors[TROWS].name = "q";
    refused(&w, "q: given twice");
    w.tensors[TROWS].name = "scale";
    refused(&w, "scale: is a scalar input, and was given as a tensor");
    end(&w);
}

TEST(refuses_missing) {
    World w = world(3, 4);
    finish(&w);
    w.tensors[TK] = w.tensors[TROWS];
    w.call.ntensors = 5;
    refused(&w, "k: this tensor is missing");
    finish(&w);
    w.tensors[TO] = w.tensors[TROWS];
    w.call.ntensors = 5;
    refused(&w, "o: this output is missing");
    finish(&w);
    w.call.nscalars = 0;
    refused(&w, "scale: this scalar is missing");
    end(&w);
}

TEST(refuses_scalars) {
    World w = world(3, 4);
    finish(&w);
    w.scalars[0].name = "nope";
    refused(&w, "nope: sum has no such input");
    w.scalars[0].name = "bias";
    refused(&w, "bias: is a tensor, and was given as a scalar");
    w.scalars[0].name = "scale";
    w.scalars[0].value = 1e60;
    refused(&w, "scale: 1e+60 is more than f32 holds");
    w.scalars[0].value = 0.5;
    w.scalars[1] = w.scalars[0];
    w.call.nscalars = 2;
    refused(&w, "scale: given twice");
    end(&w);
}

TEST(refuses_sizes) {
    World w = world(3, 4);
    finish(&w);
    w.sizes[0].name = "nope";
    refused(&w, "nope: sum has no such size");
    w.sizes[0].name = "splits";
    refused(&w, "splits: this size is computed and cannot be given");
    w.sizes[0] = (attn_size){"Sk", 5};
    refused(&w, "k: dimension 2 is 4, expected Sk = 5 (from the call)");
    w.sizes[0] = (attn_size){"q_offset", 1LL << 31};
    refused(&w, "the call: q_offset is 2147483648, which is out of range");
    w.sizes[0] = (attn_size){"q_offset", -ABI_MAX_SIZE - 1};
    refused(&w, "the call: q_offset is -16777217, which is out of range");
    w.sizes[0] = (attn_size){"q_offset", ABI_MAX_SIZE - 2};
    refused(&w, "the call: q_offset is 16777214, and the last of Sq = 3 queries is beyond position "
                "16777215");
    w.sizes[0] = (attn_size){"q_offset", 0};
    w.sizes[1] = w.sizes[0];
    w.call.nsizes = 2;
    refused(&w, "q_offset: given twice");
    end(&w);
}

TEST(refuses_shapes) {
    World w = world(3, 4);
    finish(&w);
    w.tensors[TQ].rank = 3;
    refused(&w, "q: has 3 dimensions, expected 4");
    finish(&w);
    w.tensors[TQ].shape = NULL;
    refused(&w, "q: is given without a shape");
    finish(&w);
    w.q_shape[3] = 8;
    refused(&w, "q: dimension 3 is 8, expected 4");
    w.q_shape[3] = FIX_D;
    w.v_shape[2] = 5;
    refused(&w, "v: dimension 2 is 5, expected Sk = 4 (from k)");
    w.v_shape[2] = -1;
    refused(&w, "v: dimension 2 is -1");
    w.v_shape[2] = 4;
    w.q_shape[0] = 1LL << 32;
    refused(&w, "q: B is 4294967296, which is out of range");
    w.q_shape[0] = 2;
    w.q_shape[1] = w.o_shape[1] = w.bias_shape[0] = w.rows_shape[1] = 3;
    refused(&w, "q: H is 3, which is no multiple of Hkv = 2 (from k)");
    w.k_shape[1] = w.v_shape[1] = 0;
    refused(&w, "q: H is 3, which is no multiple of Hkv = 0 (from k)");
    end(&w);
}

TEST(refuses_memory) {
    World w = world(3, 4);
    finish(&w);
    w.tensors[TK].dtype = ATTN_BF16;
    refused(&w, "k: has elements of type bf16, expected f32");
    w.tensors[TK].dtype = (attn_dtype)77;
    refused(&w, "k: has elements of type unknown, expected f32");
    finish(&w);
    w.tensors[TV].device = (attn_device){ATTN_CUDA, 1};
    refused(&w, "v: is on cuda:1, the artifact on cpu");
    finish(&w);
    w.tensors[TV].data = NULL;
    refused(&w, "v: is a null pointer");
    w.tensors[TV].data = (char *)w.v + 2;
    refused(&w, "v: its address is no multiple of 4 bytes (it is off by 2)");
    finish(&w);
    w.tensors[TV].strides = (int64_t[]){16, 8, 1, 4};
    refused(&w, "v: the last dimension has stride 4, it must be contiguous");
    finish(&w);
    w.tensors[TO].strides = (int64_t[]){24, 6, 0, 1};
    refused(&w, "o: dimension 2 of an output has stride 0");
    finish(&w);
    w.tensors[TO].data = (char *)w.tensors[TQ].data + 4; // its last element is one of q's
    refused(&w, "o: overlaps q in memory: what is written needs memory of its own");
    end(&w);
}

TEST(refuses_bare_q) {
    World w = world(3, 4);
    finish(&w);
    w.call.nsizes = 0; // q_offset = Sk - Sq = 1
    refused(&w, "bias: is indexed by q_idx, which is right only where q_offset is 0, and here it "
                "is 1: index it by q_idx - "
                "q_offset, or pass q_offset = 0");
    end(&w);
    w = world(4, 3); // max(3 - 4, 0)
    finish(&w);
    w.call.nsizes = 0;
    launch_ok(&w);
    end(&w);
}

TEST(refuses_artifacts) {
    World w = world(3, 4);
    attn_artifact *a;
    size_t n;
    finish(&w);
    uint8_t *meta = fixture_meta(ABI_CODE_HOST, &n);
    ck_assert_int_eq(
        attn_open_host(w.context, meta, SIZE_MAX, fixture_kernels, FIX_KERNELS, &a, &w.error),
        ATTN_OK);
    attn_close(a);
    ck_assert_int_eq(attn_open_host(w.context, meta, n, fixture_kernels, 2, &a, &w.error),
                     ATTN_ERROR_ARTIFACT);
    ck_assert_str_eq(w.error.message, "2 kernels are given, the metadata has 4");
    ck_assert_int_eq(attn_open_host(w.context, meta, n - 1, fixture_kernels, 4, &a, &w.error),
                     ATTN_ERROR_ARTIFACT);
    ck_assert_int_eq(attn_open(w.context, meta, n, CPU, &a, &w.error), ATTN_ERROR_ARTIFACT);
    ck_assert_int_eq(attn_open(w.context, meta, n, (attn_device){ATTN_CUDA, 0}, &a, &w.error),
                     ATTN_ERROR_ARTIFACT);
    ck_assert_str_eq(w.error.message,
                     "the artifact is for host and runs on device cpu, not on cuda");
    ck_assert_int_eq(attn_open(w.context, meta, n, (attn_device){ATTN_NO_DEVICE, 0}, &a, &w.error),
                     ATTN_OK);
    ck_assert_int_eq(attn_launch(a, &w.call, &w.error), ATTN_ERROR_CALL);
    ck_assert_str_eq(w.error.message, "the artifact was opened without a device");
    attn_close(a);
    free(meta);
    ck_assert_int_eq(attn_open(w.context, "text", 4, CPU, &a, &w.error), ATTN_ERROR_ARTIFACT);
    ck_assert_ptr_null(a);
    ck_assert_int_eq(attn_open_file(w.context, "/nonexistent/x.ptx", CPU, &a, &w.error),
                     ATTN_ERROR_SYSTEM);
    ck_assert_str_eq(w.error.message, "/nonexistent/x.ptx: No such file or directory");
    ck_assert_int_eq(attn_open_file(w.context, "/", CPU, &a, &w.error), ATTN_ERROR_ARTIFACT);
    end(&w);
}

// ---- kept workspace: "listed" makes a list of the bias, then writes it to o

static void make_list(const uint64_t *args, int64_t first, int64_t last) {
    const float *bias = (const float *)(uintptr_t)args[0];
    int32_t *list = (int32_t *)(uintptr_t)args[1];
    for (int64_t h = first; h < last; h++) list[h] = (int32_t)bias[3 * h];
}

static void use_list(const uint64_t *args, int64_t first, int64_t last) {
    float *o = (float *)(uintptr_t)args[0];
    const int32_t *list = (const int32_t *)(uintptr_t)args[1];
    for (int64_t h = first; h < last; h++) o[h] = (float)list[h];
}

static uint8_t *listed_meta(AbiTensor *list_tensors, size_t *n, const char **why) {
    static AbiArg make[] = {{ABI_ARG_POINTER, 0, BIAS}, {ABI_ARG_POINTER, 0, PART}},
                  use[] = {{ABI_ARG_POINTER, 0, O}, {ABI_ARG_POINTER, 0, PART}};
    static AbiKernel both[] = {{"make_list", 1, 0, 1, 1, {E(H)}, 2, make, 0, NULL},
                               {"use_list", 1, 0, 1, 1, {E(H)}, 2, use, 0, NULL}};
    static AbiPlan plan[] = {{{0, NULL}, 2, split_plan}};
    AbiMeta m;
    uint8_t *bytes = NULL;
    fixture_fill(&m, ABI_CODE_HOST, false);
    AbiVariant v = {"sum",
                    ABI_ATTENTION,
                    ABI_FWD,
                    ABI_LAYOUT_DENSE,
                    0,
                    FIX_D,
                    FIX_DV,
                    SIZES,
                    TENSORS,
                    2,
                    1,
                    sizes,
                    list_tensors,
                    both,
                    plan};
    m.variants = &v;
    *why = abi_write(&m, &bytes, n);
    return bytes;
}

static void leave(const uint64_t *args, int64_t first, int64_t last) {
    (void)args, (void)first, (void)last;
}

// Of the caller's memory the elements of o are zero after a launch, wherever they lie, and nothing else is.
static void check_zeroed(const int64_t *strides, int64_t begin, int64_t all) {
    AbiTensor of[TENSORS];
    size_t n;
    const char *why;
    memcpy(of, tensors, sizeof of);
    of[O].flags |= ABI_ZEROED;
    World w = world(3, 4);
    finish(&w);
    attn_close(w.artifact);
    uint8_t *meta = listed_meta(of, &n, &why);
    ck_assert_msg(!why, "%s", why);
    static const attn_host_kernel functions[] = {leave, leave};
    ck_assert_int_eq(attn_open_host(w.context, meta, n, functions, 2, &w.artifact, &w.error),
                     ATTN_OK);
    float *o = memory(&w, all);
    w.tensors[TO].data = o + begin;
    w.tensors[TO].strides = strides;
    launch_ok(&w);
    int64_t zeros = 0, wrong = 0;
    for (int64_t i = 0; i < all; i++) zeros += o[i] == 0;
    for (int64_t i = 0; i < 2 * 4 * 3 * FIX_DV; i++) {
        int64_t at = begin + i % FIX_DV;
        at += i / FIX_DV % 3 * strides[2] + i / FIX_DV / 3 % 4 * strides[1] +
              i / FIX_DV / 12 * strides[0];
        wrong += o[at] != 0;
    }
    ck_assert_int_eq(wrong, 0);
    ck_assert_int_eq(zeros, 2 * 4 * 3 * FIX_DV);
    attn_memory_free(w.context, CPU, o);
    free(meta);
    end(&w);
}

TEST(outputs_are_zeroed) {
    const int64_t v = FIX_DV;
    check_zeroed((const int64_t[]){12 * v, 3 * v, v, 1}, 0, 30 * v);        // dense
    check_zeroed((const int64_t[]){12 * v, v, 4 * v, 1}, 0, 30 * v);        // heads within queries
    check_zeroed((const int64_t[]){36 * v, v, 12 * v, 1}, 2 * v, 90 * v);   // a third of each row
    check_zeroed((const int64_t[]){200 * v, 30 * v, 7 * v, 1}, v, 500 * v); // gaps everywhere
    check_zeroed((const int64_t[]){-12 * v, 3 * v, v, 1}, 12 * v, 30 * v);  // from the end
}

TEST(a_map_may_be_kept) {
    AbiTensor of[TENSORS];
    size_t n;
    const char *why;
    attn_variant_info v;
    memcpy(of, tensors, sizeof of);
    of[PART] = (AbiTensor){"list", ABI_ROLE_WORK, ABI_I32, ABI_KEPT, 1, 0, {E(H)}};
    World w = world(3, 4);
    finish(&w);
    attn_close(w.artifact);
    uint8_t *meta = listed_meta(of, &n, &why);
    ck_assert_msg(!why, "%s", why);
    static const attn_host_kernel functions[] = {make_list, use_list};
    ck_assert_int_eq(attn_open_host(w.context, meta, n, functions, 2, &w.artifact, &w.error),
                     ATTN_OK);
    ck_assert_int_eq(attn_get_variant(w.artifact, 0, &v, &w.error), ATTN_OK);
    ck_assert_int_eq(v.tile_map, 1);
    launch_ok(&w);
    ck_assert_float_eq(w.o[2], 6);
    w.bias[6] = 50;
    w.call.flags = ATTN_KEEP_MAP; // which is not true, so that it shows
    launch_ok(&w);
    ck_assert_float_eq(w.o[2], 6);
    w.call.flags = 0;
    launch_ok(&w);
    ck_assert_float_eq(w.o[2], 50);
    w.call.flags = 2;
    refused(&w, "the call has flags that do not exist");
    of[PART].flags |= ABI_ZEROED;
    ck_assert_ptr_null(listed_meta(of, &n, &why));
    ck_assert_str_eq(why, "a tensor that is no workspace, or is to be zeroed, cannot be kept");
    of[PART].flags = ABI_ZEROED | ABI_RESTORED; // one for each head
    ck_assert_ptr_null(listed_meta(of, &n, &why));
    ck_assert_str_eq(why, "a tensor that is to be left as it was is no word of zeros");
    free(meta);
    end(&w);
}

// ---- the pool

static void count(const uint64_t *args, int64_t first, int64_t last) {
    _Atomic int *seen = (_Atomic int *)(uintptr_t)args[0];
    for (int64_t i = first; i < last; i++) atomic_fetch_add(&seen[i], 1);
}

static void deep(const uint64_t *args, int64_t first, int64_t last) {
    volatile char stack[6 << 20];
    (void)first, (void)last;
    for (size_t i = 0; i < sizeof stack; i += 4096) stack[i] = 1;
    atomic_fetch_add((_Atomic int *)(uintptr_t)args[0], stack[4096]);
}

TEST(every_task_runs_once) {
    enum { MOST = 1000 };
    static const int64_t sizes[] = {0, 1, 2, 7, 64, 999, MOST};
    for (int threads = 1; threads < 6; threads++) {
        RtPool *p;
        ck_assert_int_eq(rt_pool(threads, &p, NULL), ATTN_OK);
        for (size_t k = 0; k < sizeof sizes / sizeof sizes[0]; k++) {
            _Atomic int seen[MOST] = {0};
            uint64_t args[] = {(uint64_t)(uintptr_t)seen};
            ck_assert_int_eq(rt_pool_run(p, count, args, sizes[k], NULL), ATTN_OK);
            for (int64_t i = 0; i < MOST; i++) ck_assert_int_eq(seen[i], i < sizes[k]);
        }
        rt_pool_free(p);
    }
}

static void *launches(void *arg) {
    for (int i = 0; i < 50; i++) {
        _Atomic int seen[20] = {0};
        uint64_t args[] = {(uint64_t)(uintptr_t)seen};
        rt_pool_run(arg, count, args, 20, NULL);
        for (int k = 0; k < 20; k++)
            if (seen[k] != 1) return arg;
    }
    return NULL;
}

TEST(calls_from_several_threads_take_turns) {
    RtPool *p;
    pthread_t t[4];
    ck_assert_int_eq(rt_pool(3, &p, NULL), ATTN_OK);
    for (int i = 0; i < 4; i++) ck_assert_int_eq(pthread_create(&t[i], NULL, launches, p), 0);
    for (int i = 0; i < 4; i++) {
        void *bad;
        pthread_join(t[i], &bad);
        ck_assert_ptr_null(bad);
    }
    rt_pool_free(p);
}

TEST(stacks_are_deep) {
    _Atomic int n = 0;
    uint64_t args[] = {(uint64_t)(uintptr_t)&n};
    RtPool *p;
    ck_assert_int_eq(rt_pool(2, &p, NULL), ATTN_OK);
    rt_pool_run(p, deep, args, 2, NULL);
    ck_assert_int_eq(n, 2);
    rt_pool_free(p);
}

TEST(threads) {
    World w = world(3, 4);
    attn_artifact_info info;
    finish(&w);
    ck_assert_int_eq(attn_set_threads(w.context, -1, &w.error), ATTN_ERROR_CALL);
    ck_assert_int_eq(attn_set_threads(w.context, 5, &w.error), ATTN_OK);
    attn_get_info(w.artifact, &info);
    ck_assert_int_eq(info.workers, 5);
    launch_ok(&w);
    ck_assert_int_eq(attn_set_threads(w.context, 0, &w.error), ATTN_OK);
    attn_get_info(w.artifact, &info);
    ck_assert_int_ge(info.workers, 1);
    end(&w);
}
