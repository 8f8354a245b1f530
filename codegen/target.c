// target.c: targets with what only this machine knows: the host's vectors and caches.
#include "codegen/cg.h"

#include <string.h>
#include <unistd.h>

static int cache(int name, int otherwise) {
    long n = sysconf(name);
    return n > 0 && n < 1 << 30 ? (int)n : otherwise;
}

Target cg_target(TargetId id) {
    Target t = *target_get(id);
    if (id != TARGET_HOST) return t;
    char *features = LLVMGetHostCPUFeatures();
    if (strstr(features, "+avx512f")) {
        t.lanes = 16;
        t.registers = 32;
    } else if (strstr(features, "+avx2") && strstr(features, "+fma")) {
        t.lanes = 8;
        t.registers = 16;
    } else { // SSE2, NEON
        t.lanes = 4;
        t.registers = strstr(features, "+neon") ? 32 : 16;
    }
    LLVMDisposeMessage(features);
#ifdef _SC_LEVEL1_DCACHE_SIZE
    t.shared_bytes = cache(_SC_LEVEL1_DCACHE_SIZE, t.shared_bytes);
    t.l2_bytes = cache(_SC_LEVEL2_CACHE_SIZE, t.l2_bytes);
#endif
    return t;
}
