// The reference over ragged and paged batches, against dense runs of each sequence whose arrays are put
// together here, row by row; and what is clamped.
#include "frontend/reference_batch.h"
#include "tests/unit/ref_util.h"

enum { H = 4, HKV = 2, D = 5, DV = 3, MOST = 8 };
#define POISON (-12345.0)

// Everything that a sequence has of its own: its place in the batch, lengths, inputs of keys and of queries.
static const char all_kinds[] =
    "import std.normalization; import std.mask;\n"
    "attention a { dim D = 5, Dv = 3; input bias: f32[B, H, Sk]; input gate: f32[B, Sq]; input "
    "slope: f32[H];\n"
    "input doc: i32[B, Sk]; input scale: f32[B]; input shift: f32[Sk];\n"
    "score(q, k) = dot(q, k);\n"
    "modify(s, b, h, i, j) = s * scale[b] + bias[b, h, j] + slope[h] * f32(i - j) + shift[j] * "
    "f32(Sk - Sq);\n"
    "mask(b, h, i, j) = causal(i, j) && doc[b, j] != 1; normalize(s) = softmax(s);\n"
    "output(o, b, h, i, d) = o * gate[b, i - q_offset] + f32(q_offset); }";
enum { BIAS, GATE, SLOPE, DOC, SCALE, SHIFT, INPUTS };

typedef struct Case {
    RefBatch x;
    int keys, queries; // rows of the launch's tensors
    // What the layout is to mean, written down by hand.
    int Sq[MOST], Sk[MOST], offset[MOST], first[MOST];
    int row[MOST][64]; // of each key
} Case;

static const void *slice(Arena *a, const double *from, int rows, const int *row, int width) {
    double *x = ARENA_ARRAY(a, double, rows *width + 1);
    for (int i = 0; i < rows; i++)
        memcpy(x + i * width, from + row[i] * width, sizeof(double) * (size_t)width);
    return x;
}

// [rows, heads, width] to [heads, rows, width].
static double *turned(Arena *a, const double *x, int rows, int heads, int width) {
    double *y = ARENA_ARRAY(a, double, rows *heads *width + 1);
    for (int i = 0; i < rows; i++)
        for (int h = 0; h < heads; h++)
            for (int d = 0; d < width; d++)
                y[(h * rows + i) * width + d] = x[(i * heads + h) * width + d];
    return y;
}

static void same(const double *got, const double *want, int64_t n, const char *what) {
    for (int64_t i = 0; i < n; i++)
        ck_assert_msg(memcmp(got + i, want + i, sizeof *got) == 0, "%s[%lld]: %.17g is not %.17g",
                      what, (long long)i, got[i], want[i]);
}

// Rows of all sequences, and nothing else.
static void check_written(const Case *c, const int32_t *owners, const double *o,
                          const double *lse) {
    bool written[64] = {false};
    for (int b = 0; b < c->x.B; b++)
        for (int i = 0; i < c->Sq[b]; i++) written[c->first[b] + i] = true;
    for (int i = 0; i < c->queries; i++) {
        ck_assert_int_eq(owners[i], 0);
        for (int e = 0; e < H * DV && !written[i]; e++) ck_assert(o[i * H * DV + e] == POISON);
        for (int h = 0; h < H && !written[i]; h++) ck_assert(lse[i * H + h] == POISON);
    }
}

static void compare(const Case *c) {
    Arena *a = arena_new();
    const Variant *v = ref_compile(a, all_kinds);
    int B = c->x.B, Tq = c->queries, keys = c->keys;
    double *q = ref_numbers(a, Tq * H * D, 1), *k = ref_numbers(a, keys * HKV * D, 2),
           *val = ref_numbers(a, keys * HKV * DV, 3);
    double *in[INPUTS] = {[BIAS] = ref_numbers(a, keys * H, 4),
                          [GATE] = ref_numbers(a, Tq, 5),
                          [SLOPE] = ref_numbers(a, H, 6),
                          [SCALE] = ref_numbers(a, B, 7),
                          [SHIFT] = ref_numbers(a, 64, 8)};
    int32_t *doc = ARENA_ARRAY(a, int32_t, keys + 1), owners[64] = {0};
    for (int i = 0; i < keys; i++) doc[i] = i % 5;
    const void *inputs[INPUTS] = {in[BIAS], in[GATE], in[SLOPE], doc, in[SCALE], in[SHIFT]};
    const int64_t extent[INPUTS][EX_MAX_RANK] = {[SHIFT] = {64}};
    double *o = ARENA_ARRAY(a, double, Tq *H *DV + 1), *lse = ARENA_ARRAY(a, double, Tq *H + 1);
    for (int i = 0; i < Tq * H * DV; i++) o[i] = POISON;
    for (int i = 0; i < Tq * H; i++) lse[i] = POISON;
    double *emits[] = {lse};
    int32_t sizes[] = {B, H, HKV, -1, -1, -1};
    RefBatch x = c->x;
    x.extent = extent;
    int64_t pairs = 0, expected_pairs = 0;
    RefRun r = ref_of(v, sizes, q, k, val, inputs, o);
    r.emits = emits, r.pairs = &pairs;
    ref_batch_run(&x, &r, owners);
    for (int b = 0; b < B; b++) {
        int Sq = c->Sq[b], Sk = c->Sk[b], *row = ARENA_ARRAY(a, int, Sq + 1);
        for (int i = 0; i < Sq; i++) row[i] = c->first[b] + i;
        ck_assert_int_eq(ref_keys(&x, b), Sk);
        int32_t own_sizes[] = {1, H, HKV, Sq, Sk, c->offset[b]},
                *own_doc = ARENA_ARRAY(a, int32_t, Sk + 1);
        for (int j = 0; j < Sk; j++) own_doc[j] = doc[c->row[b][j]];
        const double *bias = slice(a, in[BIAS], Sk, c->row[b], H);
        const void *own_inputs[INPUTS] = {turned(a, bias, Sk, H, 1),
                                          slice(a, in[GATE], Sq, row, 1),
                                          in[SLOPE],
                                          own_doc,
                                          in[SCALE] + b,
                                          in[SHIFT]};
        double *want = ARENA_ARRAY(a, double, Sq *H *DV + 1),
               *want_lse = ARENA_ARRAY(a, double, Sq *H + 1);
        double *want_emits[] = {want_lse};
        RefRun dense = ref_of(v, own_sizes, turned(a, slice(a, q, Sq, row, H * D), Sq, H, D),
                              turned(a, slice(a, k, Sk, c->row[b], HKV * D), Sk, HKV, D),
                              turned(a, slice(a, val, Sk, c->row[b], HKV * DV), Sk, HKV, DV),
                              own_inputs, want);
        dense.emits = want_emits, dense.pairs = &expected_pairs;
        ref_run(&dense);
        double *got = turned(a, slice(a, o, Sq, row, H * DV), Sq, H, DV);
        same(got, want, Sq * H * DV, "o");
        same(turned(a, slice(a, lse, Sq, row, H), Sq, H, 1), want_lse, Sq * H, "lse");
        for (int i = 0; i < Sq; i++) owners[row[i]]--;
    }
    ck_assert_int_eq(pairs, expected_pairs);
    check_written(c, owners, o, lse);
    arena_free(a);
}

static void count_rows(Case *c, int b, int from) {
    for (int j = 0; j < c->Sk[b]; j++) c->row[b][j] = from + j;
}

TEST(ragged_lengths) {
    static const int32_t q_start[] = {0, 0, 1, 8, 9, 14}, kv_start[] = {2, 5, 5, 6, 13, 30};
    Case c = {.x = {.B = 5, .Tq = 16, .Tk = 31, .q_start = q_start, .kv_start = kv_start},
              .keys = 31,
              .queries = 16,
              .Sq = {0, 1, 7, 1, 5},
              .Sk = {3, 0, 1, 7, 17},
              .first = {0, 0, 1, 8, 9},
              .offset = {3, 0, 0, 6, 12}};
    static const int from[] = {2, 5, 5, 6, 13};
    for (int b = 0; b < 5; b++) count_rows(&c, b, from[b]);
    compare(&c);
}

TEST(ragged_starts_are_clamped) {
    static const int32_t q_start[] = {-5, 3, 3, INT32_MAX}, kv_start[] = {4, INT32_MIN, 20, -1};
    static const int32_t q_offset[] = {-2, 7, INT32_MIN};
    Case c = {.x = {.B = 3,
                    .Tq = 8,
                    .Tk = 9,
                    .q_start = q_start,
                    .kv_start = kv_start,
                    .q_offset = q_offset},
              .keys = 9,
              .queries = 8,
              .Sq = {3, 0, 5},
              .Sk = {0, 9, 0},
              .first = {0, 3, 3},
              .offset = {-2, 7, -SIZE_LIMIT}};
    count_rows(&c, 1, 0);
    compare(&c);
}

// Pages repeated, shared and of ids that there are none of; lengths beyond the table and below 0.
TEST(pages) {
    static const int32_t kv_len[] = {7, -3, 100, 1},
                         table[] = {5, 1, -1, 0, 0, 0, 2, 99, INT32_MIN, 5, 7, 7};
    static const int32_t id[4][3] = {{5, 1, 0}, {0, 0, 0}, {2, 5, 0}, {5, 5, 5}};
    Case c = {.x = {.paged = true,
                    .B = 4,
                    .Tq = 8,
                    .pages = 6,
                    .page = 3,
                    .table = 3,
                    .kv_len = kv_len,
                    .page_table = table},
              .keys = 18,
              .queries = 8,
              .Sq = {2, 2, 2, 2},
              .Sk = {7, 0, 9, 1},
              .first = {0, 2, 4, 6},
              .offset = {5, 0, 7, 0}};
    for (int b = 0; b < 4; b++)
        for (int j = 0; j < c.Sk[b]; j++) c.row[b][j] = id[b][j / 3] * 3 + j % 3;
    compare(&c);
    static const int32_t q_start[] = {1, 5, 5, 6, 6}; // the rows 0, 6 and 7 are nobody's
    c.x.q_start = q_start;
    static const int Sq[] = {4, 0, 1, 0}, first[] = {1, 5, 5, 6}, offset[] = {3, 0, 8, 1};
    memcpy(c.Sq, Sq, sizeof Sq), memcpy(c.first, first, sizeof first);
    memcpy(c.offset, offset, sizeof offset);
    compare(&c);
}

TEST(pages_of_one_row_and_no_pages) {
    static const int32_t kv_len[] = {4, 2}, table[] = {3, 0, 3, 1, 9, 2, 0, 0};
    Case c = {.x = {.paged = true,
                    .B = 2,
                    .Tq = 2,
                    .pages = 4,
                    .page = 1,
                    .table = 4,
                    .kv_len = kv_len,
                    .page_table = table},
              .keys = 4,
              .queries = 2,
              .Sq = {1, 1},
              .Sk = {4, 2},
              .first = {0, 1},
              .offset = {3, 1},
              .row = {{3, 0, 3, 1}, {3, 2}}};
    compare(&c);
    c.x.pages = 0;
    c.keys = c.Sk[0] = c.Sk[1] = c.offset[0] = c.offset[1] = 0;
    compare(&c);
}

// Another sequence's element goes by its own length and table; an empty one's is 0.
ARENA_TEST(elements_of_other_sequences) {
    const Variant *v =
        ref_compile(a, "attention a { dim D = 1, Dv = 1; input f: f32[H, B, Sk]; score(q, k) = 0;\n"
                       "modify(s, b, h, i, j) = f[h, b + 1, j + 1]; normalize(s) = s; }");
    static const int32_t kv_len[] = {3, 2, 0, 1}, table[] = {0, 1, 2, 0, 0, 0, 3, 0};
    RefBatch x = {.paged = true,
                  .B = 4,
                  .Tq = 4,
                  .pages = 4,
                  .page = 2,
                  .table = 2,
                  .kv_len = kv_len,
                  .page_table = table};
    double f[] = {0, 1, 2, 3, 4, 5, 60, 7}, one[8] = {1, 1, 1, 1, 1, 1, 1, 1}, o[4];
    const void *inputs[] = {f};
    int32_t sizes[] = {4, 1, 1, -1, -1, -1}, owners[4] = {0};
    RefOutside outside = {0};
    RefRun r = ref_of(v, sizes, one, one, one, inputs, o);
    r.outside = &outside;
    ref_batch_run(&x, &r, owners);
    ck_assert(o[0] == 5 + 5 + 5); // of sequence 1, whose page is 2: elements 1, and twice the last
    ck_assert(o[1] == 0);         // of sequence 2, which is empty
    ck_assert(o[2] == 0);         // it has no keys
    ck_assert(o[3] == 60);        // b2 is clamped to the last
    ck_assert(outside.load && outside.b == 0 && outside.dim == 2 && outside.index == 2 &&
              outside.extent == 2);
}

ARENA_TEST(pairs_of_the_mask) {
    const Variant *v = ref_compile(
        a, "import std.mask;\nattention a { dim D = 1, Dv = 1; score(q, k) = 0; normalize(s) = s;\n"
           "mask(b, h, i, j) = causal(i, j); }");
    static const int32_t q_start[] = {0, 4, 5, 200}, kv_start[] = {0, 6, 6, 500};
    RefBatch x = {.B = 3, .Tq = 200, .Tk = 500, .q_start = q_start, .kv_start = kv_start};
    int32_t sizes[] = {3, 1, 1, -1, -1, -1};
    RefRun r = {.variant = v, .sizes = sizes};
    double all = 3 + 4 + 5 + 6;
    for (int i = 0; i < 195; i++) all += 494 - 195 + i + 1;
    ck_assert(ref_batch_pairs(&x, &r, 0, 1 << 20) == all);
    ck_assert(fabs(ref_batch_pairs(&x, &r, 0, 4000) - all) < 0.02 * all);
    ck_assert(ref_batch_touched(&x, &r, 0, 1 << 20) == 1);
    r.variant = ref_compile(
        a, "import std.mask;\nattention a { dim D = 1, Dv = 1; score(q, k) = 0; normalize(s) = s;\n"
           "mask(b, h, i, j) = window(i, j, 5); }");
    // Of the last sequence 199 of 494 keys, of the first all 6, which have 4 queries.
    ck_assert(fabs(ref_batch_touched(&x, &r, 0, 1 << 20) - (6 + 199) / 500.0) < 0.02);
}
