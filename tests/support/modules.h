// modules.h: which files of stdlib/ are modules, which hold no variant: what imports them tests them.
#ifndef TESTS_SUPPORT_MODULES_H
#define TESTS_SUPPORT_MODULES_H

#include <stdbool.h>
#include <string.h>

static inline bool is_library_module(const char *path) {
    static const char *const modules[] = {"mask.attn", "math.attn", "modify.attn",
                                          "normalization.attn"};
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    for (size_t i = 0; i < sizeof modules / sizeof *modules; i++)
        if (!strcmp(name, modules[i])) return true;
    return false;
}

#endif
