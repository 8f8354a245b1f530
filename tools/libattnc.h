/* libattnc.h (installed as attnc.h): the compiler from C: source text in, an artifact in memory
 * out.
 *
 *     void *ptx;
 *     size_t n;
 *     char *text;
 *     struct attnc_options o = {.target = "sm_80", .dtype = "bf16"};
 *     if (attnc_compile(source, strlen(source), "relu.attn", &o, &ptx, &n, &text)) fputs(text,
 * stderr); else attn_open(context, ptx, n, device, &artifact, &error); attnc_free(ptx),
 * attnc_free(text);
 *
 * and for this machine's CPU, compiled straight into memory and run through the runtime (attn.h):
 *
 *     attnc_jit *jit = attnc_jit_open(context, source, strlen(source), "relu.attn", &o, &text);
 *     attn_launch(attnc_jit_artifact(jit), &call, &error);
 *     attnc_jit_close(jit);
 *
 * Link with -lattnc and the LLVM it was built with. Several threads may compile at once. Nothing
 * prints or exits; when memory runs out, the process aborts. */
#ifndef ATTNC_H
#define ATTNC_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ATTNC_API __attribute__((visibility("default")))

/* What attnc_compile makes. */
enum attnc_form {
    ATTNC_ARTIFACT, /* what attn_open takes: PTX with metadata; or a host object file */
    ATTNC_ASSEMBLY,
    ATTNC_LLVM /* text of the LLVM module */
};

/* All zero is: every variant, host, f32 (GPUs: bf16), -O0. */
struct attnc_options {
    const char *target; /* "host" (NULL too), "sm_80", "sm_90a", "gfx90a", "gfx942", "gfx1100" */
    const char *dtype;  /* of q, k, v, o: "f32", "f16", "bf16"; "tf32": f32, multiplied by tf32 */
    const char *entry;  /* only this variant of the source; NULL: all */
    int level;          /* 0 to 3 */
    int checks;         /* -g */
    enum attnc_form form;
    const char *const *include; /* folders for imports, ninclude of them */
    int ninclude;
    const char *const *defines; /* "NAME=VALUE", ndefines of them */
    int ndefines;
    const char *phase;    /* "fwd" (NULL too), "bwd", "part", "piece", or several: "fwd,bwd" */
    const char *kv_dtype; /* of k and v: "e4m3", "e5m2", "i8", or a type of q; NULL: as q */
    const char *layout;   /* "dense" (NULL too), "ragged", "paged", "paged:N" (pages of N keys) */
    const char *schedule; /* "NAME=N,...", in place of the compiler's own choices; NULL: none */
    int deterministic;    /* the backward adds up in one order */
    int invariant;        /* ragged, paged: a sequence has the same bits in any batch */
};

/* 0, or the command's exit status for what is wrong: 1 the source or what the target supports, 2
 * the options. *diagnostics is text for people, also when all went well (notes); "" when there is
 * nothing to say. It and *out are to be given back with attnc_free; *out is NULL after an error.
 * `name` is what diagnostics call the source, and imports are looked for beside it. options may be
 * NULL. */
ATTNC_API int attnc_compile(const char *source, size_t n, const char *name,
                            const struct attnc_options *options, void **out, size_t *out_n,
                            char **diagnostics);
ATTNC_API void attnc_free(void *p); /* NULL is allowed */

struct attn_context;  /* attn.h */
struct attn_artifact; /* attn.h */
typedef struct attnc_jit attnc_jit;

/* NULL after an error, told in *diagnostics. target and form are not looked at. */
ATTNC_API attnc_jit *attnc_jit_open(struct attn_context *context, const char *source, size_t n,
                                    const char *name, const struct attnc_options *options,
                                    char **diagnostics);
/* Lives as long as the jit. */
ATTNC_API struct attn_artifact *attnc_jit_artifact(const attnc_jit *jit);
ATTNC_API void attnc_jit_close(attnc_jit *jit); /* NULL is allowed */

/* Which keys the tiles of a variant's mask visit: only those must be where its queries are, when a
 * sequence is spread over GPUs (docs/several-gpus.md). For one batch entry and head.
 *
 *     attn_size sizes[] = {{"Sq", 65536}, {"Sk", 65536}};
 *     attn_call call = {.sizes = sizes, .nsizes = 2};
 *     attnc_mask *m = attnc_mask_open(source, strlen(source), "gemma.attn", NULL, &call, 0, 0, &text);
 *     int keys[8][2], n = attnc_needed(m, 32768, 65536, keys, 8);
 */
typedef struct attnc_mask attnc_mask;
struct attn_call; /* attn.h */

/* call: the sizes Sq and Sk, others that the mask reads (B and H are 1, Hkv is H, q_offset max(Sk - Sq, 0) where they
 * are left out), and the scalars and arrays that it reads, whole, row by row in the CPU's memory, which is not
 * looked at again. Tiles are those of options->target; where that is NULL the host's, with a power
 * of two of keys; larger where there are more than 2^18. NULL after an error, told in *diagnostics. */
ATTNC_API attnc_mask *attnc_mask_open(const char *source, size_t n, const char *name,
                                      const struct attnc_options *options,
                                      const struct attn_call *call, int batch, int head,
                                      char **diagnostics);
/* The keys that queries [first, end) may see: intervals, a first key and the one behind the last, in
 * ascending order. Returns how many there are; writes at most `room` of them. */
ATTNC_API int attnc_needed(const attnc_mask *m, int first, int end, int (*keys)[2], int room);
/* Pairs of these queries and the keys of the tiles that they visit: what a balance counts. */
ATTNC_API long long attnc_visited(const attnc_mask *m, int first, int end);
ATTNC_API void attnc_mask_close(attnc_mask *m); /* NULL is allowed */

#ifdef __cplusplus
}
#endif
#endif
