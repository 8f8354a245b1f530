// target.c: what is known of each target, as data.
//
// From the vendors' tuning guides: sm_80 is an A100 (later devices without a row of their own run
// its code), sm_90a an H100 or H200, gfx90a one die of an MI250, gfx942 one of an MI300X, gfx1100
// an RX 7900. The host's row holds portable defaults.
#include "ir/target.h"

#include <string.h>

enum { KB = 1024, MB = 1024 * 1024 };

//                    lanes, registers, shared_bytes, l2_bytes
#define FACTS_HOST 8, 16, 32 * KB, 1 * MB
#define FACTS_SM80 32, 255, 163 * KB, 40 * MB
#define FACTS_SM90A 32, 255, 227 * KB, 50 * MB
#define FACTS_GFX90A 64, 512, 64 * KB, 8 * MB
#define FACTS_GFX942 64, 512, 64 * KB, 4 * MB
#define FACTS_GFX1100 32, 256, 64 * KB, 6 * MB

static const Target targets[TARGET_COUNT] = {
#define TARGET(e, name, ext, kind) [TARGET_##e] = {TARGET_##e, name, ext, kind, FACTS_##e},
#include "targets.def"
#undef TARGET
};

static const TargetRates rates[TARGET_COUNT] = {
    //                  units, matrix, special, plain, shared, l2
    [TARGET_SM80] = {108, 2048, 16, 64, 128, 32},   [TARGET_SM90A] = {132, 4096, 16, 128, 128, 30},
    [TARGET_GFX90A] = {104, 1024, 16, 64, 128, 64}, [TARGET_GFX942] = {304, 2048, 16, 128, 128, 64},
    [TARGET_GFX1100] = {96, 512, 16, 128, 128, 64},
};

const TargetRates *target_rates(TargetId id) { return &rates[id]; }

const Target *target_get(TargetId id) { return &targets[id]; }

bool target_find(const char *name, TargetId *out) {
    for (int i = 0; i < TARGET_COUNT; i++)
        if (!strcmp(targets[i].name, name)) {
            *out = targets[i].id;
            return true;
        }
    return false;
}

enum {
    NVIDIA = 1 << TARGET_SM80 | 1 << TARGET_SM90A,
    HOPPER = 1 << TARGET_SM90A,
    CDNA = 1 << TARGET_GFX90A | 1 << TARGET_GFX942,
    RDNA = 1 << TARGET_GFX1100
};

bool target_has_mma(const Target *t, MmaKind kind, int bytes) {
    static const struct {
        int targets, bytes;
    } has[] = {
#define MMA(e, name, targets, bytes, a, b, c) {targets, bytes},
#include "mma.def"
#undef MMA
    };
    return has[kind].targets >> t->id & 1 && has[kind].bytes == bytes;
}

int target_block_registers(int threads) {
    enum { OF_SM = 65536, MOST = 256 };
    int each = OF_SM / threads & ~7;
    return threads * (each < MOST ? each : MOST);
}
