// header.c: see header.h. The header declares what the object defines (kernels and metadata) and
// one function that opens them with the runtime, so that a C program needs `#include "relu.h"` and
// `cc main.c relu.o -lattnrt`.
#include "header.h"
#include "runtime/abi.h"
#include <ctype.h>
#include <string.h>

static const char *c_name(Arena *a, const char *path) {
    const char *slash = strrchr(path, '/');
    char *s = arena_strdup(a, slash ? slash + 1 : path);
    s[strcspn(s, ".")] = 0;
    for (char *c = s; *c; c++)
        if (!isalnum((unsigned char)*c)) *c = '_';
    return isdigit((unsigned char)*s) || !*s ? arena_printf(a, "_%s", s) : s;
}

// Of its name: a backward follows its forward under the same one.
static bool is_first(const AbiMeta *m, uint32_t v) {
    for (uint32_t i = 0; i < v; i++)
        if (!strcmp(m->variants[i].name, m->variants[v].name)) return false;
    return true;
}

static void text_of(Text *t, const char *name, const AbiMeta *m) {
    text_printf(t, "// %s.h: made by attnc with %s.o, which holds", name, name);
    for (uint32_t v = 0; v < m->nvariants; v++)
        if (is_first(m, v)) text_printf(t, "%s %s", v ? "," : "", m->variants[v].name);
    text_printf(
        t, ". Link with -lattnrt -lpthread -ldl -lm.\n#ifndef ATTNC_%s_H\n#define ATTNC_%s_H\n\n",
        name, name);
    text_puts(t, "#include <attn.h>\n\n#ifdef __cplusplus\nextern \"C\" {\n#endif\n");
    text_printf(t, "extern const unsigned char %s_attn_meta[];\n", m->variants[0].name);
    for (uint32_t v = 0; v < m->nvariants; v++)
        for (uint32_t k = 0; k < m->variants[v].nkernels; k++)
            text_printf(t, "void %s(const uint64_t *args, int64_t first, int64_t last);\n",
                        m->variants[v].kernels[k].symbol);
    text_printf(
        t,
        "#ifdef __cplusplus\n}\n#endif\n\n// Then attn_launch runs it; attn_close gives it back.\n"
        "static inline attn_status %s_open(attn_context *c, attn_artifact **out, attn_error "
        "*error) {\n"
        "    static const attn_host_kernel kernels[] = {",
        name);
    uint32_t n = 0;
    for (uint32_t v = 0; v < m->nvariants; v++)
        for (uint32_t k = 0; k < m->variants[v].nkernels; k++)
            text_printf(t, "%s%s", n++ ? ", " : "", m->variants[v].kernels[k].symbol);
    text_printf(t,
                "};\n    return attn_open_host(c, %s_attn_meta, SIZE_MAX, kernels, %u, out, "
                "error);\n}\n\n#endif\n",
                m->variants[0].name, n);
}

const char *header_path(Arena *a, const char *path) {
    return arena_printf(a, "%.*s.h", (int)(strlen(path) - strlen(".o")), path);
}

Status header_text(Arena *a, const char *path, const void *object, size_t n, Text *t) {
    AbiMeta m;
    const void *code;
    size_t code_n;
    const char *bad = abi_find(&m, object, n, &code, &code_n);
    if (bad) return cmd_fail(STATUS_SYSTEM, "the object's own metadata: %s", bad);
    *t = text_new(a);
    text_of(t, c_name(a, path), &m);
    abi_free(&m);
    return STATUS_DONE;
}
