// runtime_layouts.c: calls of ragged and paged attentions: where sizes come from, what is left out, every check and its message.
#include "runtime/attn.h"
#include "runtime/rt.h"
#include "tests/unit/test.h"

enum { FIX_D = 4, FIX_DV = 2 };
enum { TQ, TK, TV, TO, TQ_START, TFIRST, TSECOND, TQ_OFFSET, TENSORS };
enum { Q_START_0 = ABI_MOST_FIXED, Q_OFFSET_0, TILES, SIZES }; // paged

// ---- an artifact whose one kernel notes what it is launched with

typedef struct Seen { // of a test, which checks one call after the other
    int64_t tasks, tq, max_q, b, q_start_0, q_offset_0, k_stride;
    uint64_t q_start;
} Seen;

// x / n as kernels make it, of the inverse that they are given.
static void divides(int64_t n, uint64_t inverse) {
    static const uint32_t some[] = {0,  1,    2,    6,       7,          8,        55,
                                    56, 4095, 4096, 1 << 24, 2147483646, INT32_MAX};
    for (size_t i = 0; i < sizeof some / sizeof *some; i++) {
        uint64_t twice = 2 * (uint64_t)some[i], low = twice * (uint32_t)inverse;
        uint64_t q = (twice * (inverse >> 32) + (low >> 32)) >> 32;
        ck_assert_uint_eq(q, some[i] / (uint64_t)n);
    }
}

static void note(const uint64_t *a, int64_t first, int64_t last) {
    Seen *s = (Seen *)(uintptr_t)a[7];
    (void)first;
    *s = (Seen){.tq = (int32_t)a[0],
                .max_q = (int32_t)a[1],
                .b = (int32_t)a[2],
                .q_start_0 = (int32_t)a[3],
                .q_offset_0 = (int32_t)a[4],
                .k_stride = (int64_t)a[5],
                .q_start = a[6]};
    divides(s->max_q, a[8]);
    s->tasks = last;
}

#define E(a)                                                                                       \
    { sizeof a / sizeof a[0], a }

typedef struct World {
    attn_context *context;
    attn_artifact *artifact;
    attn_error error;
    Seen seen; // and the rest of o
    float o[8 * 4 * FIX_DV];
    float pool[4096];
    int32_t index[64];
    int64_t shape[TENSORS][4];
    attn_tensor tensor[TENSORS];
    attn_size size;
    attn_call call;
} World;

static const attn_device CPU = {ATTN_CPU, 0};

static AbiInsn B[] = {{ABI_OP_SIZE, ABI_SIZE_B}}, H[] = {{ABI_OP_SIZE, ABI_SIZE_H}},
               HKV[] = {{ABI_OP_SIZE, ABI_SIZE_HKV}}, ROWS[] = {{ABI_OP_SIZE, ABI_SIZE_TQ}},
               KEYS[] = {{ABI_OP_SIZE, ABI_SIZE_TK}}, PAGE[] = {{ABI_OP_SIZE, ABI_SIZE_PAGE}},
               TABLE[] = {{ABI_OP_SIZE, ABI_SIZE_TABLE}}, D[] = {{ABI_OP_CONST, FIX_D}},
               DV[] = {{ABI_OP_CONST, FIX_DV}},
               MORE[] = {{ABI_OP_SIZE, ABI_SIZE_B}, {ABI_OP_CONST, 1}, {ABI_OP_ADD, 0}},
               START_0[] = {{ABI_OP_SIZE, Q_START_0}}, OFFSET_0[] = {{ABI_OP_SIZE, Q_OFFSET_0}},
               R_OFFSET_0[] = {{ABI_OP_SIZE, ABI_SIZE_TK + 1}},
               TILE[] = {{ABI_OP_SIZE, ABI_SIZE_MAX_Q},
                         {ABI_OP_CONST, 15},
                         {ABI_OP_ADD, 0},
                         {ABI_OP_CONST, 16},
                         {ABI_OP_DIV, 0}},
               GRID[] = {{ABI_OP_CONST, 1}};

static void open_written(World *w, const AbiMeta *m) {
    static const attn_host_kernel kernels[] = {note};
    uint8_t *bytes;
    size_t n;
    const char *why = abi_write(m, &bytes, &n);
    ck_assert_msg(!why, "%s", why);
    w->context = attn_create();
    ck_assert_int_eq(attn_open_host(w->context, bytes, n, kernels, 1, &w->artifact, &w->error),
                     ATTN_OK);
    free(bytes);
}

static void open_artifact(World *w, AbiLayout layout, uint32_t page) {
    bool paged = layout == ABI_LAYOUT_PAGED;
    uint32_t fixed = abi_fixed_count(ABI_ATTENTION, layout);
    AbiSize sizes[SIZES] = {{0}};
    abi_fixed_sizes(ABI_ATTENTION, layout, sizes);
    if (paged) sizes[fixed++].name = "q_start_0";
    sizes[fixed++].name = "q_offset_0";
    sizes[fixed++] = (AbiSize){"tiles", E(TILE)};
    AbiTensor paged_tensors[TENSORS] = {
        {"q", ABI_ROLE_Q, ABI_F32, 0, 3, 0, {E(ROWS), E(H), E(D)}},
        {"k", ABI_ROLE_K, ABI_F32, 0, 4, 0, {E(KEYS), E(PAGE), E(HKV), E(D)}},
        {"v", ABI_ROLE_V, ABI_F32, 0, 4, 0, {E(KEYS), E(PAGE), E(HKV), E(DV)}},
        {"o", ABI_ROLE_O, ABI_F32, 0, 3, 0, {E(ROWS), E(H), E(DV)}},
        {"q_start", ABI_ROLE_Q_START, ABI_I32, ABI_OPTIONAL, 1, 0, {E(START_0)}},
        {"kv_len", ABI_ROLE_KV_LEN, ABI_I32, 0, 1, 0, {E(B)}},
        {"page_table", ABI_ROLE_PAGE_TABLE, ABI_I32, 0, 2, 0, {E(B), E(TABLE)}},
        {"q_offset", ABI_ROLE_Q_OFFSET, ABI_I32, ABI_OPTIONAL, 1, 0, {E(OFFSET_0)}}};
    AbiTensor ragged_tensors[TENSORS - 1] = {
        {"q", ABI_ROLE_Q, ABI_F32, 0, 3, 0, {E(ROWS), E(H), E(D)}},
        {"k", ABI_ROLE_K, ABI_F32, 0, 3, 0, {E(KEYS), E(HKV), E(D)}},
        {"v", ABI_ROLE_V, ABI_F32, 0, 3, 0, {E(KEYS), E(HKV), E(DV)}},
        {"o", ABI_ROLE_O, ABI_F32, 0, 3, 0, {E(ROWS), E(H), E(DV)}},
        {"q_start", ABI_ROLE_Q_START, ABI_I32, 0, 1, 0, {E(MORE)}},
        {"kv_start", ABI_ROLE_KV_START, ABI_I32, 0, 1, 0, {E(MORE)}},
        {"q_offset", ABI_ROLE_Q_OFFSET, ABI_I32, ABI_OPTIONAL, 1, 0, {E(R_OFFSET_0)}}};
    AbiArg args[] = {{ABI_ARG_SIZE, 0, ABI_SIZE_TQ},
                     {ABI_ARG_SIZE, 0, ABI_SIZE_MAX_Q},
                     {ABI_ARG_SIZE, 0, ABI_SIZE_B},
                     {ABI_ARG_SIZE, 0, paged ? Q_START_0 : ABI_SIZE_B},
                     {ABI_ARG_SIZE, 0, paged ? Q_OFFSET_0 : ABI_SIZE_TK + 1},
                     {ABI_ARG_STRIDE, 0, TK},
                     {ABI_ARG_POINTER, 0, TQ_START},
                     {ABI_ARG_POINTER, 0, TO},
                     {ABI_ARG_INVERSE, 0, ABI_SIZE_MAX_Q}};
    AbiKernel kernel = {"note", 1, 0, 1, 1, {E(GRID)}, 9, args, 0, NULL};
    uint16_t numbers[] = {0};
    AbiPlan plan = {{0, NULL}, 1, numbers};
    AbiVariant v = {.name = "serve",
                    .layout = (uint8_t)layout,
                    .page = page,
                    .D = FIX_D,
                    .Dv = FIX_DV,
                    .nsizes = fixed,
                    .ntensors = paged ? TENSORS : TENSORS - 1,
                    .nkernels = 1,
                    .nplans = 1,
                    .sizes = sizes,
                    .tensors = paged ? paged_tensors : ragged_tensors,
                    .kernels = &kernel,
                    .plans = &plan};
    AbiMeta m = {
        .code = ABI_CODE_HOST, .dtype = ABI_F32, .target = "host", .nvariants = 1, .variants = &v};
    open_written(w, &m);
}

static void put(World *w, int i, const char *name, void *data, attn_dtype type, int rank,
                const int64_t *shape) {
    memcpy(w->shape[i], shape, sizeof *shape * (size_t)rank);
    w->tensor[i] = (attn_tensor){name, data, type, rank, w->shape[i], NULL, CPU};
}

#define PUT(w, i, name, data, type, ...)                                                           \
    put(w, i, name, data, type, sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t),                \
        (int64_t[]){__VA_ARGS__})

// B=4 H=4 Hkv=2 Tq=8, pages=6 page=3 table=5; q_start and q_offset are behind the others, and left out.
static void paged(World *w, uint32_t page) {
    open_artifact(w, ABI_LAYOUT_PAGED, page);
    PUT(w, 0, "q", w->pool, ATTN_F32, 8, 4, FIX_D);
    PUT(w, 1, "k", w->pool, ATTN_F32, 6, 3, 2, FIX_D);
    PUT(w, 2, "v", w->pool, ATTN_F32, 6, 3, 2, FIX_DV);
    PUT(w, 3, "o", &w->seen, ATTN_F32, 8, 4, FIX_DV);
    PUT(w, 4, "kv_len", w->index, ATTN_I32, 4);
    PUT(w, 5, "page_table", w->index, ATTN_I32, 4, 5);
    PUT(w, 6, "q_start", w->index, ATTN_I32, 5);
    PUT(w, 7, "q_offset", w->index, ATTN_I32, 4);
    w->size = (attn_size){"max_q", 7};
    w->call = (attn_call){.tensors = w->tensor, .ntensors = 6, .sizes = &w->size};
}

static void ragged(World *w) {
    open_artifact(w, ABI_LAYOUT_RAGGED, 0);
    PUT(w, 0, "q", w->pool, ATTN_F32, 8, 4, FIX_D);
    PUT(w, 1, "k", w->pool, ATTN_F32, 20, 2, FIX_D);
    PUT(w, 2, "v", w->pool, ATTN_F32, 20, 2, FIX_DV);
    PUT(w, 3, "o", &w->seen, ATTN_F32, 8, 4, FIX_DV);
    PUT(w, 4, "q_start", w->index, ATTN_I32, 5);
    PUT(w, 5, "kv_start", w->index, ATTN_I32, 5);
    PUT(w, 6, "q_offset", w->index, ATTN_I32, 4);
    w->call = (attn_call){.tensors = w->tensor, .ntensors = 6};
}

static void end(World *w) {
    attn_close(w->artifact);
    attn_destroy(w->context);
    free(w);
}

static World *world(void) {
    World *w = calloc(1, sizeof *w);
    ck_assert_ptr_nonnull(w);
    return w;
}

static void launched(World *w) {
    w->seen.tasks = 0;
    attn_status s = attn_launch(w->artifact, &w->call, &w->error);
    ck_assert_msg(s == ATTN_OK, "%s", w->error.message);
    ck_assert_int_eq(w->seen.tasks, 1);
}

static void refused(World *w, const char *message) {
    ck_assert_int_eq(attn_launch(w->artifact, &w->call, &w->error), ATTN_ERROR_CALL);
    ck_assert_str_eq(w->error.message, message);
}

// ---- sizes

TEST(paged_sizes) {
    World *w = world();
    paged(w, 0);
    launched(w);
    ck_assert_int_eq(w->seen.b, 4);
    ck_assert_int_eq(w->seen.max_q, 2); // Tq / B
    ck_assert_int_eq(w->seen.q_start_0, 0);
    ck_assert_uint_eq(w->seen.q_start, 0);
    ck_assert_int_eq(w->seen.q_offset_0, 0);
    ck_assert_int_eq(w->seen.k_stride, 3 * 2 * FIX_D);
    w->call.ntensors = 8;
    launched(w);
    ck_assert_int_eq(w->seen.max_q, 8); // by q_start nothing is known of them
    ck_assert_int_eq(w->seen.q_start_0, 5);
    ck_assert_uint_eq(w->seen.q_start, (uintptr_t)w->index);
    ck_assert_int_eq(w->seen.q_offset_0, 4);
    w->call.nsizes = 1;
    launched(w);
    ck_assert_int_eq(w->seen.max_q, 7);
    w->size.value = 0;
    launched(w);
    ck_assert_int_eq(w->seen.max_q, 1);
    w->size.value = 1000;
    launched(w);
    ck_assert_int_eq(w->seen.max_q, 8);
    int64_t shape[8];
    int rank;
    w->call.ntensors = 3; // o by q alone: index tensors say nothing of it
    w->call.nsizes = 0;
    w->tensor[3] = w->tensor[5], w->call.ntensors = 4;
    ck_assert_int_eq(attn_shape(w->artifact, &w->call, "o", shape, &rank, &w->error), ATTN_OK);
    ck_assert(rank == 3 && shape[0] == 8 && shape[1] == 4 && shape[2] == FIX_DV);
    end(w);
}

TEST(ragged_sizes) {
    World *w = world();
    ragged(w);
    launched(w);
    ck_assert_int_eq(w->seen.b, 4);
    ck_assert_int_eq(w->seen.max_q, 8);
    ck_assert_int_eq(w->seen.q_offset_0, 0);
    w->call.ntensors = 7;
    launched(w);
    ck_assert_int_eq(w->seen.q_offset_0, 4);
    end(w);
}

// A pool in which keys and values lie by turns, and heads before rows: strides.
TEST(views_of_a_pool) {
    static const int64_t interleaved[] = {2 * 3 * 2 * FIX_D, FIX_D, 3 * FIX_D, 1};
    World *w = world();
    paged(w, 0);
    w->tensor[1].strides = interleaved;
    launched(w);
    ck_assert_int_eq(w->seen.k_stride, 48);
    w->shape[1][0] = 1 << 20; // billions of elements
    w->shape[2][0] = 1 << 20;
    static const int64_t far[] = {INT64_C(1) << 34, 2 * FIX_D, FIX_D, 1};
    w->tensor[1].strides = far;
    launched(w);
    ck_assert_int_eq(w->seen.k_stride, INT64_C(1) << 34);
    end(w);
}

// ---- messages

TEST(paged_messages) {
    World *w = world();
    paged(w, 0);
    w->tensor[0].rank = 4;
    refused(w, "q: has 4 dimensions, expected 3: [Tq, H, D] in layout paged");
    w->tensor[0].rank = 3, w->tensor[2].rank = 3;
    refused(w, "v: has 3 dimensions, expected 4: [pages, page, Hkv, Dv] in layout paged");
    w->tensor[2].rank = 4, w->shape[4][0] = 3;
    refused(w, "kv_len: dimension 0 is 3, expected B = 4 (from page_table)");
    w->shape[4][0] = 4, w->shape[0][0] = w->shape[3][0] = 7;
    refused(w, "q: 7 rows are no multiple of B = 4: pass q_start");
    w->call.ntensors = 7;
    launched(w);
    w->shape[6][0] = 4;
    refused(w, "q_start: dimension 0 is 4, expected B + 1 = 5 (from page_table)");
    w->call.ntensors = 8, w->shape[6][0] = 5, w->shape[7][0] = 5;
    refused(w, "q_offset: dimension 0 is 5, expected B = 4 (from page_table)");
    w->shape[7][0] = 4, w->tensor[7].name = "kv_start";
    refused(w, "kv_start: layout paged has no such tensor");
    w->call.ntensors = 5;
    refused(w, "page_table: this tensor is missing");
    size_t n;
    w->shape[0][0] = w->shape[3][0] = 8;
    ck_assert_int_eq(attn_workspace_bytes(w->artifact, &w->call, &n, &w->error), ATTN_ERROR_CALL);
    ck_assert_str_eq(w->error.message, "page_table: this tensor is missing");
    w->call.ntensors = 7, w->shape[2][1] = 4;
    refused(w, "v: dimension 1 is 4, expected page = 3 (from k)");
    w->shape[1][0] = w->shape[2][0] = 1 << 30, w->shape[2][1] = 3;
    refused(w, "k: 1073741824 pages of 3 rows are too many: at most 2147483647 rows");
    w->shape[1][0] = w->shape[2][0] = 6, w->tensor[5].dtype = ATTN_F32;
    refused(w, "page_table: has elements of type f32, expected i32");
    w->tensor[5].dtype = ATTN_I32, w->shape[1][2] = w->shape[2][2] = 3;
    refused(w, "q: H is 4, which is no multiple of Hkv = 3 (from k)");
    end(w);
}

TEST(pages_of_the_artifact) {
    World *w = world();
    paged(w, 64);
    refused(w, "k: pages of 3 rows, this artifact is for pages of 64 (--layout=paged:64)");
    end(w);
}

TEST(ragged_messages) {
    World *w = world();
    ragged(w);
    w->shape[5][0] = 4;
    refused(w, "kv_start: dimension 0 is 4, expected B + 1 = 5 (from q_start)");
    w->shape[5][0] = 0;
    refused(w, "kv_start: dimension 0 is 0, expected B + 1");
    w->tensor[5].rank = 2;
    refused(w, "kv_start: has 2 dimensions, expected 1: [B + 1] in layout ragged");
    w->tensor[5].rank = 1, w->tensor[5].name = "page_table";
    refused(w, "page_table: layout ragged has no such tensor");
    end(w);
}
