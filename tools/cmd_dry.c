// cmd_dry.c: `attnc bench --dry`: what a GPU's kernels consist of where they spend their time, and
// how fast that can be by the chip's published rates. No device is opened.
#include "cmd.h"
#include "dry.h"
#include "maskmap.h"
#include <stdio.h>
#include <stdlib.h>

static void print_kernel(const DryKernel *k, const Compile *c) {
    static const char *const names[] = {"matrix products", "plain",  "special", "shared memory",
                                        "global memory",   "spills", "scalar"};
    TargetId t = c->options.target;
    int mhz;
    const char *chip = dry_chip(t, &mhz);
    printf("%s, %s, %s (%s, %d MHz): ", k->name, dtype_name(c->options.dtype), target_get(t)->name,
           chip, mhz);
    if (k->flop <= 0) {
        printf("no loop has matrix products\n");
        return;
    }
    printf("%d instructions in the loop over full tiles, %.1f%% matrix products\n   ",
           k->instructions, 100.0 * k->count[DRY_MATRIX] / k->instructions);
    for (int i = 0; i < DRY_FREE; i++)
        if (i != DRY_SPILL || target_get(t)->kind != KIND_NVPTX) // ptxas decides, after us
            printf(" %d %s%s", k->count[i], names[i], i + 1 < DRY_FREE ? "," : "\n");
    printf(
        "    cycles of a step: matrix %.0f, vector %.0f, shared memory %.0f; %.0f when all overlap "
        "(%.0f TFLOP/s, %.0f%% of the matrix rate), %.0f when nothing does (%.0f TFLOP/s, "
        "%.0f%%)\n",
        k->matrix, k->vector, k->shared, k->overlapped, dry_rate(k, t, k->overlapped) * 1e-12,
        100 * k->matrix / k->overlapped, k->alone, dry_rate(k, t, k->alone) * 1e-12,
        100 * k->matrix / k->alone);
}

static Status configuration(const DryKernels *all, const Signature *sig, const Compile *c,
                            const Options *o, const char *shape) {
    Binding b = {0};
    MaskMap m;
    char sizes[512];
    Arena *a = arena_new();
    Status s = bind_read(&b, a, sig, o, shape, mask_reads(a, c->tiles.data[0], sig));
    if (s == STATUS_DONE) {
        double inside = mask_map(&m, a, c->tiles.data[0], &b, 0, 0) ? 1 : mask_inside(&m);
        double flop = 2 * bind_pairs(&b) * (sig->D + sig->Dv) * inside;
        printf("%s:", bind_describe(&b, sizes, sizeof sizes));
        for (int i = 0; i < all->kernels.n; i++) {
            const DryKernel *k = &all->kernels.data[i];
            if (k->flop <= 0) continue;
            printf(" %s %.3g to %.3g ms", k->name,
                   flop / dry_rate(k, c->options.target, k->overlapped) * 1e3,
                   flop / dry_rate(k, c->options.target, k->alone) * 1e3);
        }
        printf("\n");
    }
    bind_free(&b);
    arena_free(a);
    return s;
}

static Status dry_file(const Options *o, const char *path) {
    Compile c;
    void *code = NULL;
    size_t n;
    Status s = cmd_open(&c, o, path, o->target, o->has_dtype ? o->dtype : DT_BF16);
    if (s == STATUS_DONE) s = cmd_only(&c, o);
    if (s == STATUS_DONE) {
        compile_emit(&c, CG_ASM, &code, &n);
        s = cmd_report(&c, STATUS_DONE);
    }
    if (s == STATUS_DONE) {
        DryKernels all = dry_count(c.arena, code, n, o->target);
        const Signature *sig = sig_of_variant(c.arena, c.variants.data[0], c.options.dtype);
        for (int i = 0; i < all.kernels.n; i++) print_kernel(&all.kernels.data[i], &c);
        for (int i = 0; i < o->shapes.n && s == STATUS_DONE; i++)
            s = configuration(&all, sig, &c, o, o->shapes.data[i]);
    }
    free(code);
    compile_close(&c);
    return s;
}

Status cmd_dry(const Options *o) {
    Status s = STATUS_DONE;
    if (o->json || o->repeat)
        return cmd_fail(STATUS_USAGE,
                        "--json and --repeat are for what is measured, not for --dry");
    if (o->layout) return cmd_fail(STATUS_USAGE, "--dry counts kernels of layout dense only");
    for (int i = 0; i < o->files.n && s == STATUS_DONE; i++) s = dry_file(o, o->files.data[i]);
    return s;
}
