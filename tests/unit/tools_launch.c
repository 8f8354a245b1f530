// A launch of two phases from an artifact: the forward leaves a number of each row, which the
// backward reads. Its gradients are the reference's.
#include "passes/tile/rewrite.h"
#include "tests/unit/test.h"
#include "tools/files.h"
#include "tools/launch.h"
#include "tools/oracle.h"

#include <unistd.h>

static const char source[] =
    "import std.normalization; import std.mask;"
    "attention softmax { dim D = 5, Dv = 3; score(q, k) = dot(q, k) * 0.30998486;"
    "mask(b, h, i, j) = causal(i, j); normalize(s) = softmax(s); }";

static const char *with(Arena *a, const char *text, const char *old, const char *new) {
    Text t = text_new(a);
    ck_assert_ptr_nonnull(strstr(text, old));
    for (const char *at; (at = strstr(text, old)); text = at + strlen(old))
        text_printf(&t, "%.*s%s", (int)(at - text), text, new);
    text_puts(&t, text);
    return t.s;
}

static TileProgram *program(Arena *a, const char *text) {
    Diags diags = diag_list(a);
    TileProgram *p = tile_parse(a, text, strlen(text), &diags);
    ck_assert_msg(p != NULL, "%s", diags.first ? diags.first->message : "");
    PassOptions o = {.target = cg_target(TARGET_HOST), .dtype = DT_F32};
    ck_assert(pass_finish(p, &o, &diags));
    return p;
}

static void open_source(Compile *c) {
    CompileOptions o = {.source = {.path = "t.attn", .text = source, .text_bytes = strlen(source)},
                        .target = TARGET_HOST,
                        .dtype = DT_F32};
    ck_assert_int_eq(compile_open(c, &o), FE_OK);
}

// Stores its lse for the backward, to base 2, and not as an emit.
static TileProgram *forward(Arena *a) {
    Compile c;
    open_source(&c);
    ck_assert(compile_algorithm(&c));
    Text t = text_new(a);
    tile_print(&t, c.tiles.data[0]);
    compile_close(&c);
    return program(a, with(a, with(a, t.s, "emit 0", "saved 0"), "0.6931472", "1.0"));
}

static TileProgram *backward(Arena *a) {
    void *bytes;
    size_t n;
    ck_assert_int_eq(file_read("tests/tile/backward.tile", &bytes, &n), STATUS_DONE);
    TileProgram *p = program(a, arena_strndup(a, bytes, n));
    free(bytes);
    return p;
}

// The object's path; the caller removes it.
static const char *object(Arena *a, const TileProgram *const *programs, int n) {
    void *code;
    size_t bytes;
    char *path =
        arena_printf(a, "%s/attnc-test-XXXXXX.o", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
    int fd = mkstemps(path, 2);
    Diags diags = diag_list(a);
    ck_assert(fd >= 0);
    ck_assert(cg_emit(programs, n, &(CgOptions){.opt = 1}, CG_OBJECT, &diags, &code, &bytes));
    ck_assert_int_eq(write(fd, code, bytes), (ssize_t)bytes);
    close(fd);
    free(code);
    return path;
}

static double distance(const Tensor *t, const double *ref) {
    double difference = 0, size = 0;
    for (int64_t i = 0; i < t->count; i++) {
        double x = tensor_get(t, i);
        difference += (x - ref[i]) * (x - ref[i]);
        size += ref[i] * ref[i];
    }
    return sqrt(difference / size);
}

// The same arguments, drawn by their names, by the source's signature: what the reference says.
static void compare(Arena *a, const Binding *b, const Options *o, const char *shape) {
    Compile c;
    Binding own = {0};
    Oracle x;
    open_source(&c);
    c.options.phases = COMPILE_FWD | COMPILE_BWD;
    const Signature *sig = launch_signature(a, &c);
    ck_assert_int_eq(bind_make(&own, a, sig, o, shape), STATUS_DONE);
    ck_assert_int_eq(oracle_run(&x, c.variants.data[0], &own, &(OracleAsk){0}), STATUS_DONE);
    ck_assert_int_eq(oracle_gradients(&x, c.variants.data[0], &own), STATUS_DONE);
    static const char *const names[] = {"o", "dq", "dk", "dv"};
    for (int i = 0; i < 4; i++) {
        double off = distance(&b->tensor[sig_arg(b->sig, names[i])], x.out[sig_arg(sig, names[i])]);
        ck_assert_msg(off < 2e-5, "%s is off by %g", names[i], off);
    }
    oracle_free(&x);
    bind_free(&own);
    compile_close(&c);
}

ARENA_TEST(two_phases) {
    static const char shape[] = "B=2,H=4,Hkv=2,Sq=70,Sk=133";
    const TileProgram *both[] = {forward(a), backward(a)};
    const char *path = object(a, both, 2);
    Options o = {.device = DEVICE_CPU, .seed = 5};
    NameValue out = {"dq", "dq.npy"};
    VEC_PUSH(a, &o.out, out);
    Launch l = {0};
    Binding b = {0};
    ck_assert_int_eq(launch_open_file(&l, a, path, &o), STATUS_DONE);
    ck_assert(l.sig->backward && sig_arg(l.sig, "lse") < 0);
    ck_assert_int_eq(bind_make(&b, a, l.sig, &o, shape), STATUS_DONE);
    ck_assert_int_eq(launch_bind(&l, &b), STATUS_DONE);
    for (int i = 0; i < 2; i++) { // sums begin at 0 each time
        ck_assert_int_eq(launch_run(&l), STATUS_DONE);
        ck_assert_int_eq(launch_fetch(&l), STATUS_DONE);
        compare(a, &b, &o, shape);
    }
    launch_close(&l);
    bind_free(&b);
    unlink(path);
}

// Without a gradient's name the forward alone runs; an artifact that lacks the phase is refused.
ARENA_TEST(one_phase) {
    const TileProgram *programs[] = {forward(a), backward(a)};
    for (int i = 0; i < 3; i++) { // both, the forward, the backward
        const char *path = object(a, programs + i / 2, i ? 1 : 2);
        for (int named = 0; named < 2; named++) {
            Options o = {.device = DEVICE_CPU};
            NameValue in = {"do", "do.npy"};
            Launch l = {0};
            if (named) VEC_PUSH(a, &o.in, in);
            bool good = i == 0 || (i == 1 && !named);
            ck_assert_int_eq(launch_open_file(&l, a, path, &o), good ? STATUS_DONE : STATUS_INPUT);
            if (good) ck_assert(l.sig->backward == (named == 1));
            launch_close(&l);
        }
        unlink(path);
    }
}
