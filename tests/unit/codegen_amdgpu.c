// Code of the AMD targets: it holds the instructions it is meant to, no scratch memory, no calls;
// its file is linked, sealed, and says how to launch it; tiles lie in LDS so that what is read or
// written at once is in different banks. That kernels are right is tests/gcn's affair.
#include "codegen/amdgpu/amdgpu.h"
#include "codegen/codegen.h"
#include "pass_util.h"
#include "runtime/abi.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static const TargetId ids[] = {TARGET_GFX90A, TARGET_GFX942, TARGET_GFX1100};

static const char softmax[] =
    "import std.normalization; attention t { dim D = 64; score(q, k) = dot(q, k) * rsqrt(D); "
    "mask(b, h, q, k) = k <= q; normalize(s) = softmax(s); }";

static bool emit(Arena *a, TargetId id, Dtype t, CgForm form, Diags *diags, void **out, size_t *n) {
    Stream *s = pu_stream(a, "t.attn", softmax, 0, NULL);
    PassOptions o = {.target = cg_target(id), .dtype = t};
    *diags = diag_list(a);
    const TileProgram *p = pass_pipeline(a, s, &o, diags);
    CgOptions co = {.opt = 3};
    return p && cg_emit(&p, 1, &co, form, diags, out, n);
}

static char *compile(Arena *a, TargetId id, Dtype t, CgForm form, size_t *n) {
    Diags diags;
    void *out = NULL;
    test_good(emit(a, id, t, form, &diags, &out, n), &diags);
    return out;
}

// ---- instructions

static void holds(const char *text, const char *what, bool wanted) {
    ck_assert_msg((strstr(text, what) != NULL) == wanted, "%s", what);
}

TEST(instructions) {
    static const struct {
        TargetId id;
        Dtype dtype;
        const char *product, *exp;
    } cases[] = {
        {TARGET_GFX90A, DT_BF16, "v_mfma_f32_32x32x8bf16_1k", "v_exp_f32"},
        {TARGET_GFX90A, DT_F16, "v_mfma_f32_32x32x8f16", "v_exp_f32"},
        {TARGET_GFX90A, DT_F32, "v_mfma_f32_32x32x2f32", "v_exp_f32"},
        {TARGET_GFX942, DT_BF16, "v_mfma_f32_32x32x8_bf16", "v_exp_f32"},
        {TARGET_GFX942, DT_F16, "v_mfma_f32_32x32x8_f16", "v_exp_f32"},
        {TARGET_GFX942, DT_F32, "v_mfma_f32_32x32x2_f32", "v_exp_f32"},
        {TARGET_GFX1100, DT_BF16, "v_wmma_f32_16x16x16_bf16", "v_exp_f32"},
        {TARGET_GFX1100, DT_F16, "v_wmma_f32_16x16x16_f16", "v_exp_f32"},
        {TARGET_GFX1100, DT_F32, "v_fmac_f32", "v_exp_f32"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Arena *a = arena_new();
        size_t n;
        char *text = compile(a, cases[i].id, cases[i].dtype, CG_ASM, &n);
        holds(text, cases[i].product, true);
        holds(text, cases[i].exp, true);
        holds(text, "s_barrier", true);
        holds(text, "scratch_load", false);
        holds(text, "scratch_store", false);
        holds(text, "s_swappc", false);
        holds(text, ".vgpr_spill_count: 0", true);
        holds(text, ".private_segment_fixed_size: 0", true);
        holds(text, "hidden_", false); // arguments that the driver would have to add
        holds(text, ".amdhsa_code_object_version 5", true);
        free(text);
        arena_free(a);
    }
}

// ---- the file

static const char *find(const void *file, size_t n, AbiMeta *m) {
    const void *code;
    size_t code_n;
    return abi_find(m, file, n, &code, &code_n);
}

TEST(artifact) {
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) {
        Arena *a = arena_new();
        AbiMeta m;
        size_t n;
        char *file = compile(a, ids[i], DT_BF16, CG_OBJECT, &n);
        ck_assert_ptr_null(find(file, n, &m));
        ck_assert_int_eq(m.code, ABI_CODE_HSACO);
        ck_assert_str_eq(m.target, target_get(ids[i])->name);
        ck_assert_int_eq(m.code_bytes, n);
        const AbiKernel *k = &m.variants[0].kernels[0];
        ck_assert_str_eq(k->symbol, "t_fwd");
        ck_assert_int_eq(k->threads % (uint32_t)target_get(ids[i])->lanes, 0);
        ck_assert_int_eq(k->shared, 0);
        abi_free(&m);
        for (size_t at = 0; at < n; at += 97) {
            file[at] ^= 16;
            ck_assert_msg(find(file, n, &m) != NULL, "byte %zu", at);
            file[at] ^= 16;
            ck_assert_msg(find(file, at, &m) != NULL, "length %zu", at);
        }
        free(file);
        arena_free(a);
    }
}

// The error that is left where no linker is but those in this folder. LLVM's own folder comes first,
// then the PATH.
static const char *refused(Arena *a, const char *own, const char *folder) {
    Diags diags;
    void *out = NULL;
    size_t n;
    char *path = arena_strdup(a, getenv("PATH"));
    setenv("PATH", folder, 1);
    setenv("ATTNC_LLVM_BIN", own, 1);
    bool made = emit(a, TARGET_GFX942, DT_BF16, CG_OBJECT, &diags, &out, &n);
    unsetenv("ATTNC_LLVM_BIN");
    setenv("PATH", path, 1);
    ck_assert(!made && !out && diags.errors == 1);
    return diags.first->message;
}

ARENA_TEST(no_linker) {
    const char *error = refused(a, "/nowhere", "/nowhere");
    holds(error, "ld.lld", true);
    holds(error, "package lld-", true);
    holds(error, "no version", false);
}

// It says that it is of `version`, links nothing, and reads nothing.
static void install_linker(const char *path, const char *version) {
    FILE *f = fopen(path, "w");
    ck_assert_ptr_nonnull(f);
    fprintf(f,
            "#!/bin/sh\n[ \"$1\" = --version ] && echo \"%s\" && exit\n"
            "echo \"not today\" >&2\nexit 3\n",
            version);
    ck_assert(fclose(f) == 0 && chmod(path, 0700) == 0);
}

// Wherever it is, by either name.
ARENA_TEST(linker_refuses) {
    char folder[] = "/tmp/attnc-linker-XXXXXX";
    ck_assert_ptr_nonnull(mkdtemp(folder));
    const struct {
        const char *own, *path, *name;
    } c[] = {{folder, "/nowhere", "ld.lld"},
             {"/nowhere", folder, "ld.lld"},
             {"/nowhere", folder, arena_printf(a, "ld.lld-%d", LLVM_VERSION_MAJOR)}};
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        char *linker = arena_printf(a, "%s/%s", folder, c[i].name);
        install_linker(linker, arena_printf(a, "Debian LLD %d.1.7 (compatible with GNU linkers)",
                                            LLVM_VERSION_MAJOR));
        holds(refused(a, c[i].own, c[i].path), "ld.lld", true);
        holds(refused(a, c[i].own, c[i].path), "failed: not today", true);
        ck_assert(unlink(linker) == 0);
    }
    ck_assert(rmdir(folder) == 0);
}

// A linker of another LLVM is not used; the error has its version and ours.
ARENA_TEST(other_linker) {
    static const struct {
        const char *says, *told;
    } c[] = {{"Debian LLD 14.0.6 (compatible with GNU linkers)", "/ld.lld is of LLVM 14.0.6"},
             {"LLD 99.1", "/ld.lld is of LLVM 99.1"},
             {"a linker", "/ld.lld is of no version"}};
    char folder[] = "/tmp/attnc-linker-XXXXXX";
    ck_assert_ptr_nonnull(mkdtemp(folder));
    char *linker = arena_printf(a, "%s/ld.lld", folder);
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        install_linker(linker, c[i].says);
        for (int own = 0; own < 2; own++) {
            const char *error = refused(a, own ? folder : "/nowhere", own ? "/nowhere" : folder);
            holds(error, arena_printf(a, "ld.lld of LLVM %d", LLVM_VERSION_MAJOR), true);
            holds(error, own ? c[i].told : c[i].told + 1, true);
            holds(error, "not today", false);
        }
    }
    ck_assert(unlink(linker) == 0 && rmdir(folder) == 0);
}

// A caller that lets the system take its children's ends: the linker's status cannot be had.
ARENA_TEST(ends_ignored) {
    size_t n;
    void (*before)(int) = signal(SIGCHLD, SIG_IGN);
    char *made = compile(a, TARGET_GFX942, DT_BF16, CG_OBJECT, &n);
    signal(SIGCHLD, before);
    free(made);
}

typedef struct {
    atomic_bool end;
    pid_t children[64];
    int n;
} Forks;

// Children that live for long and exec nothing, so that they hold whatever descriptors they got.
static void *fork_often(void *arg) {
    Forks *f = arg;
    while (!f->end && f->n < 64) {
        pid_t child = fork();
        if (child == 0)
            for (;;) pause();
        if (child > 0) f->children[f->n++] = child;
        usleep(3000);
    }
    return NULL;
}

ARENA_TEST(forks_meanwhile) {
    Forks forks = {0};
    pthread_t thread;
    size_t n;
    ck_assert(pthread_create(&thread, NULL, fork_often, &forks) == 0);
    char *made = compile(a, TARGET_GFX942, DT_BF16, CG_OBJECT, &n); // comes to its end
    forks.end = true;
    pthread_join(thread, NULL);
    for (int i = 0; i < forks.n; i++) {
        kill(forks.children[i], SIGKILL);
        waitpid(forks.children[i], NULL, 0);
    }
    ck_assert_int_gt(forks.n, 0);
    free(made);
}

// Nothing is written where files have names: what ends halfway leaves nothing behind.
ARENA_TEST(no_files) {
    size_t n;
    const char *tmp = getenv("TMPDIR");
    char *before = tmp ? arena_strdup(a, tmp) : NULL;
    setenv("TMPDIR", "/nowhere", 1);
    free(compile(a, TARGET_GFX942, DT_BF16, CG_OBJECT, &n));
    if (before)
        setenv("TMPDIR", before, 1);
    else
        unsetenv("TMPDIR");
}

// ---- LDS

// Enough of a Cg for what is made of constants alone.
static Cg constants(void) {
    Cg cg = {.c = LLVMContextCreate()};
    cg.b = LLVMCreateBuilderInContext(cg.c);
    cg.i32 = LLVMInt32TypeInContext(cg.c);
    return cg;
}

static int chunk_at(Cg *cg, int chunks, int row, int row_more, int chunk, int chunk_more) {
    TileShared t = {.pitch = chunks * HOME_PIECE};
    Val v = am_chunk(cg, &t, (AmPlace){cg_i32(cg, row), row_more},
                     (AmPlace){cg_i32(cg, chunk), chunk_more});
    ck_assert(LLVMIsConstant(v));
    return (int)LLVMConstIntGetSExtValue(v);
}

enum { ROWS = 64, LINE = 8 }; // chunks of all banks

// Eight rows, `step` apart, at one chunk: eight different groups of four banks.
static void in_different_banks(Cg *cg, int chunks, int first, int step, int chunk) {
    unsigned seen = 0;
    for (int i = 0; i < LINE; i++)
        seen |= 1u << chunk_at(cg, chunks, first + i * step, 0, chunk, 0) / HOME_PIECE % LINE;
    ck_assert_msg(seen == 255, "%d chunks a row, from row %d by %d", chunks, first, step);
}

TEST(banks) {
    static const int widths[] = {1, 2, 4, 8, 16, 24, 64};
    Cg cg = constants();
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
        for (int chunk = 0; chunk < widths[i]; chunk++) {
            for (int row = 0; row < ROWS; row += LINE)
                in_different_banks(&cg, widths[i], row, 1, chunk);
            for (int row = 0; row < ROWS; row += 4 * LINE)
                for (int k = 0; k < 4; k++) in_different_banks(&cg, widths[i], row + k, 4, chunk);
        }
    LLVMDisposeBuilder(cg.b);
    LLVMContextDispose(cg.c);
}

// Every chunk has a place of its own within the tile, whichever part of where it is is known.
TEST(places) {
    static const int widths[] = {1, 2, 4, 8, 16, 24};
    Cg cg = constants();
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
        bool taken[ROWS * 24] = {false};
        for (int row = 0; row < ROWS; row++)
            for (int chunk = 0; chunk < widths[i]; chunk++) {
                int at = chunk_at(&cg, widths[i], row, 0, chunk, 0);
                ck_assert(at >= 0 && at % HOME_PIECE == 0 && at / HOME_PIECE < ROWS * widths[i]);
                ck_assert(!taken[at / HOME_PIECE]);
                taken[at / HOME_PIECE] = true;
                for (int known = 1; known < ROWS; known *= 2)
                    ck_assert_int_eq(chunk_at(&cg, widths[i], row & ~known, row & known,
                                              chunk & ~known, chunk & known),
                                     at);
            }
    }
    LLVMDisposeBuilder(cg.b);
    LLVMContextDispose(cg.c);
}
