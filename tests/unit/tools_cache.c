// What decides which tuned schedules a program gets: the cache's key and its classes. And two that
// tune at once.
#include "tests/unit/pass_util.h"
#include "tools/cache.h"

#include <sys/wait.h>
#include <unistd.h>

static const char SOURCE[] = "import std.normalization; attention t { dim D = 64; score(q, k) = "
                             "dot(q, k) * rsqrt(D); normalize(s) = softmax(s); }";

static const char *key_of(Arena *a, const char *text, int D, TargetId target, Dtype dtype,
                          bool tf32) {
    PassOptions o = {.target = *target_get(target), .dtype = dtype, .tf32 = tf32};
    return cache_key(a, pu_stream(a, "t.attn", text, D, NULL)->row, &o).name;
}

ARENA_TEST(keys) {
    static const char otherwise[] = "import std.normalization; // the same\n attention t { dim D = "
                                    "64;\n score(x, y) = dot(x, y) "
                                    "* rsqrt(D); normalize(x) = softmax(x); }";
    static const char scaled[] =
        "import std.normalization; attention t { dim D = 64; score(q, k) = "
        "dot(q, k); normalize(s) = softmax(s); }";
    const char *key = key_of(a, SOURCE, 64, TARGET_SM90A, DT_BF16, false);
    ck_assert_uint_eq(strlen(key), 32);
    ck_assert_str_eq(key, key_of(a, SOURCE, 64, TARGET_SM90A, DT_BF16, false));
    ck_assert_str_eq(key, key_of(a, otherwise, 64, TARGET_SM90A, DT_BF16, false)); // as derived
    ck_assert_str_ne(key, key_of(a, scaled, 64, TARGET_SM90A, DT_BF16, false));
    ck_assert_str_ne(key, key_of(a, SOURCE, 128, TARGET_SM90A, DT_BF16, false));
    ck_assert_str_ne(key, key_of(a, SOURCE, 64, TARGET_SM80, DT_BF16, false));
    ck_assert_str_ne(key, key_of(a, SOURCE, 64, TARGET_SM90A, DT_F16, false));
    ck_assert_str_ne(key_of(a, SOURCE, 64, TARGET_SM90A, DT_F32, false),
                     key_of(a, SOURCE, 64, TARGET_SM90A, DT_F32, true));
}

// Nothing is wrong with what is there.
static CacheEntry read_back(Arena *a, const char *folder, const CacheKey *key) {
    Diags diags = diag_list(a);
    CacheEntry e = cache_read(a, folder, key, &diags);
    ck_assert_ptr_null(diags.first);
    return e;
}

static void put(Arena *a, const char *folder, const CacheKey *key, ShapeClass c,
                const char *knobs) {
    int held = cache_hold(folder);
    CacheEntry e = read_back(a, folder, key);
    e.knobs[c] = pu_knobs(knobs);
    e.note[c] = "here";
    e.ms[c] = 1.5;
    usleep(20000); // in which another would read what is about to be replaced
    ck_assert_int_eq(cache_write(a, folder, key, &e), STATUS_DONE);
    cache_release(held);
}

ARENA_TEST(two_at_once) {
    char top[] = "/tmp/attnc-cache-XXXXXX";
    ck_assert_ptr_nonnull(mkdtemp(top));
    const char *folder = arena_printf(a, "%s/in/it", top);
    CacheKey key = {"00112233445566778899aabbccddeeff", "t sm_90a bf16 D=64 Dv=64"};
    ck_assert(!read_back(a, folder, &key).knobs[SHAPE_LONG].said); // there is no folder
    ck_assert_int_eq(cache_may_be_written(a, folder), STATUS_DONE);
    pid_t other = fork();
    if (!other) {
        put(a, folder, &key, SHAPE_SHORT, "keys=64");
        _exit(0);
    }
    int status;
    put(a, folder, &key, SHAPE_LONG, "keys=128");
    ck_assert(waitpid(other, &status, 0) == other && status == 0);
    CacheEntry e = read_back(a, folder, &key);
    ck_assert_int_eq(e.knobs[SHAPE_SHORT].keys, 64);
    ck_assert_int_eq(e.knobs[SHAPE_LONG].keys, 128);
    ck_assert_double_eq(e.ms[SHAPE_LONG], 1.5);
    ck_assert_int_eq(system(arena_printf(a, "test $(ls %s | wc -l) = 1 && rm -r %s", folder, top)),
                     0); // and nothing temporary
}
