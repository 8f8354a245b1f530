// jit.c: see jit.h. The runtime takes the kernels in the order of the metadata, so the metadata is
// read here too.
#include "jit.h"
#include "runtime/abi.h"
#include <stdlib.h>

static attn_host_kernel *kernels_of(CgJit *code, const AbiMeta *m, size_t *n) {
    size_t count = 0;
    for (uint32_t v = 0; v < m->nvariants; v++) count += m->variants[v].nkernels;
    attn_host_kernel *k = calloc(count + 1, sizeof *k);
    *n = 0;
    for (uint32_t v = 0; k && v < m->nvariants; v++)
        for (uint32_t i = 0; i < m->variants[v].nkernels; i++)
            k[(*n)++] = (attn_host_kernel)cg_jit_function(code, m->variants[v].kernels[i].symbol);
    return k;
}

bool jit_open(Jit *j, attn_context *context, Compile *c, attn_error *error) {
    size_t n, nkernels;
    AbiMeta meta;
    *j = (Jit){.code = compile_jit(c)};
    if (!j->code) return false;
    const void *bytes = cg_jit_metadata(j->code, &n);
    const char *bad = abi_read(&meta, bytes, n);
    if (bad) {
        diag_error(&c->diags, (Span){0}, "the compiled kernel's metadata: %s", bad);
    } else {
        attn_host_kernel *kernels = kernels_of(j->code, &meta, &nkernels);
        bool good = kernels && attn_open_host(context, bytes, n, kernels, nkernels, &j->artifact,
                                              error) == ATTN_OK;
        free(kernels);
        abi_free(&meta);
        if (good) return true;
    }
    cg_jit_free(j->code);
    *j = (Jit){0};
    return false;
}

void jit_close(Jit *j) {
    if (j->artifact) attn_close(j->artifact);
    if (j->code) cg_jit_free(j->code);
    *j = (Jit){0};
}
