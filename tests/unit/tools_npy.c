// .npy files: what NumPy writes is read, what is damaged is refused, what is written reads back.
#include "tests/unit/test.h"
#include "tools/files.h"
#include "tools/npy.h"
#include <unistd.h>

// A file with this header text and these bytes of data.
static size_t file_of(uint8_t *out, int version, const char *dict, const void *data, size_t n) {
    size_t head = version == 1 ? 10 : 12, len = strlen(dict);
    memcpy(out, "\x93NUMPY", 6);
    out[6] = (uint8_t)version;
    out[7] = 0;
    out[8] = (uint8_t)len;
    out[9] = (uint8_t)(len >> 8);
    if (version > 1) out[10] = out[11] = 0;
    memcpy(out + head, dict, len);
    memcpy(out + head + len, data, n);
    return head + len + n;
}

static bool parses(const char *dict, const void *data, size_t n, Npy *a) {
    static uint8_t bytes[4096];
    const char *error;
    return npy_parse(bytes, file_of(bytes, 1, dict, data, n), a, &error);
}

TEST(reads_floats) {
    float x[] = {1, 2, 3, 4, 5, 6};
    Npy a;
    ck_assert(
        parses("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }  \n", x, sizeof x, &a));
    ck_assert_int_eq(a.rank, 2);
    ck_assert_int_eq(a.count, 6);
    ck_assert(npy_get(&a, 4) == 5);
}

TEST(reads_every_type) {
    static const struct {
        const char *dict;
        uint8_t data[8];
        double value;
    } cases[] = {
        {"{'shape': (), 'fortran_order': False, 'descr': '<f2'}", {0x00, 0xc1}, -2.5},
        {"{'descr': '<f2', 'fortran_order': False, 'shape': ()}", {0x01, 0x00}, 0x1p-24},
        {"{'descr': '>f4', 'fortran_order': False, 'shape': (1,)}", {0x3f, 0xc0, 0, 0}, 1.5},
        {"{\"descr\": \"<f8\", \"fortran_order\": False, \"shape\": (1L,)}",
         {0, 0, 0, 0, 0, 0, 0xf0, 0xbf},
         -1},
        {"{'descr': '<i4', 'fortran_order': False, 'shape': (1,)}", {0xfe, 0xff, 0xff, 0xff}, -2},
        {"{'descr': '>i8', 'fortran_order': False, 'shape': (1, 1)}",
         {0, 0, 0, 0, 0, 0, 1, 0},
         256},
        {"{'descr': '|b1', 'fortran_order': True, 'shape': (1,)}", {1}, 1},
        {"{'descr': '|i1', 'fortran_order': False, 'shape': (1,)}", {0xfe}, -2},
        {"{'descr': '|u1', 'fortran_order': False, 'shape': (1,)}", {0xfe}, 254},
        {"{'descr': '<f1', 'fortran_order': False, 'shape': (1,)}", {0x38}, 0x38},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Npy a;
        ck_assert_msg(parses(cases[i].dict, cases[i].data, 8, &a), "case %zu", i);
        ck_assert_msg(npy_get(&a, 0) == cases[i].value, "case %zu", i);
    }
}

TEST(fortran_order_is_transposed) {
    float x[] = {1, 4, 2, 5, 3, 6};
    Npy a;
    ck_assert(parses("{'descr': '<f4', 'fortran_order': True, 'shape': (2, 3)}", x, sizeof x, &a));
    for (int i = 0; i < 6; i++) ck_assert(npy_get(&a, i) == i + 1);
}

TEST(refuses_damage) {
    static const char *const dicts[] = {
        "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 3)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387905, 4)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1,1,1,1,1,1,1,1,1)}",
        "{'descr': '<f4', 'fortran_order': False}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), 'shape': (2,)}",
        "{'descr': '<f4', 'fortran_order': Maybe, 'shape': (2,)}",
        "{'descr': '<c8', 'fortran_order': False, 'shape': (1,)}",
        "{'descr': '', 'fortran_order': False, 'shape': (1,)}",
        "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2 3)}",
        "{'descr': '<f4', 'other': 1}",
        "{'descr': '<f4",
        "{",
        "",
    };
    float x[8] = {0};
    Npy a;
    for (size_t i = 0; i < sizeof dicts / sizeof *dicts; i++)
        ck_assert_msg(!parses(dicts[i], x, sizeof x, &a), "%s", dicts[i]);
    const char *error;
    ck_assert(!npy_parse("\x93NUMPY\x01\x00\xff\xff{}", 12, &a, &error));
    ck_assert(!npy_parse("\x93NUMPY\x07\x00\x02\x00{}", 12, &a, &error));
    ck_assert(!npy_parse("PK", 2, &a, &error));
}

TEST(version_two) {
    uint8_t bytes[256];
    double x = 2.5;
    const char *error;
    Npy a;
    size_t n =
        file_of(bytes, 2, "{'descr': '<f8', 'fortran_order': False, 'shape': ()}", &x, sizeof x);
    ck_assert(npy_parse(bytes, n, &a, &error));
    ck_assert(npy_get(&a, 0) == 2.5);
}

TEST(written_reads_back) {
    char path[] = "/tmp/attnc-npy-XXXXXX";
    size_t n;
    int64_t dim[] = {2, 1, 3};
    Tensor t, u;
    Npy a;
    close(mkstemp(path));
    ck_assert(tensor_alloc(&t, DT_BF16, 3, dim));
    for (int i = 0; i < 6; i++) tensor_set(&t, i, i * 0.5 - 1);
    void *bytes = npy_bytes(&t, &n);
    ck_assert_int_eq(file_write(path, bytes, n), STATUS_DONE);
    free(bytes);
    ck_assert_int_eq(npy_read(path, &a), STATUS_DONE);
    ck_assert_int_eq(a.type, NPY_F4);
    ck_assert_int_eq(npy_to_tensor(&a, DT_I32, "x", &u), STATUS_INPUT); // halves are no integers
    ck_assert_int_eq(npy_to_tensor(&a, DT_F16, "x", &u), STATUS_DONE);
    ck_assert_int_eq(u.dim[2], 3);
    for (int i = 0; i < 6; i++) ck_assert(tensor_get(&u, i) == i * 0.5 - 1);
    npy_free(&a);
    tensor_free(&t);
    tensor_free(&u);
    unlink(path);
}

// Every bf16 and f16 survives; halves go to even; what is too large becomes infinite.
TEST(narrow_floats) {
    for (uint32_t h = 0; h < 0x10000; h++) {
        float f = half_to_f32((uint16_t)h), b = bf16_to_f32((uint16_t)h);
        if (f == f)
            ck_assert_uint_eq(half_from_f32(f), h);
        else
            ck_assert(isnan(half_to_f32(half_from_f32(f))));
        if (b == b)
            ck_assert_uint_eq(bf16_from_f32(b), h);
        else
            ck_assert(isnan(bf16_to_f32(bf16_from_f32(b))));
    }
    ck_assert(half_to_f32(half_from_f32(65519.0f)) == 65504.0f);
    ck_assert(isinf(half_to_f32(half_from_f32(65520.0f))));
    ck_assert(half_to_f32(half_from_f32(1 + 0x1p-11f)) == 1.0f);
    ck_assert(half_to_f32(half_from_f32(1 + 3 * 0x1p-11f)) == 1 + 2 * 0x1p-10f);
    ck_assert(half_to_f32(half_from_f32(0x1p-25f)) == 0.0f);
    ck_assert(half_to_f32(half_from_f32(3 * 0x1p-26f)) == 0x1p-24f);
    ck_assert(bf16_to_f32(bf16_from_f32(1 + 0x1p-8f)) == 1.0f);
}

TEST(normal_is_normal) {
    int64_t n = 100001;
    Tensor t, u;
    double sum = 0, squares = 0;
    ck_assert(tensor_alloc(&t, DT_F32, 1, &n) && tensor_alloc(&u, DT_F32, 1, &n));
    tensor_normal(&t, 5, "q");
    tensor_normal(&u, 5, "k");
    for (int64_t i = 0; i < n; i++)
        sum += tensor_get(&t, i), squares += tensor_get(&t, i) * tensor_get(&t, i);
    ck_assert(fabs(sum / (double)n) < 0.02 && fabs(squares / (double)n - 1) < 0.02);
    ck_assert(memcmp(t.data, u.data, 64) != 0);
    tensor_normal(&u, 5, "q");
    ck_assert(memcmp(t.data, u.data, (size_t)n * 4) == 0);
    tensor_free(&t);
    tensor_free(&u);
}
