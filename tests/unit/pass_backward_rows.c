// The backward of products of other rows than q and k: row inputs, slices, v in k; and of elements that clauses change.
#include "backward_util.h"

#define ROWS                                                                                       \
    "import std.normalization; attention a { dim D = 24, Dv = 16; input q_pe: bf16[B, H, Sq, 16] " \
    "grad; input k_pe: bf16[B, 1, Sk, 16] grad; input k_in: bf16[B, Hkv, Sk, 24] grad; input "     \
    "q_in: bf16[B, 1, Sq, 8]; input gain: f32[D] grad; input far: f32[Hkv, D] grad; input scale: " \
    "f32[B, Hkv, Sk] grad; mask(b, h, i, j) = j < i + 3; normalize(s) = softmax(s); "
static const char *const of_rows[] = {
    ROWS "query(x, b, h, i, d) = x * rsqrt(sqnorm(x) / D + 0.1) * gain[d]; key(x, b, h, j, d) = x "
         "* scale[b, h, j] * (1 + far[h, d]); value(x, b, h, j, d) = x * scale[b, h, j] * gain[d]; "
         "score(q, k) = dot(q, k) * 0.3; }",
    ROWS "share v = k; query(x, b, h, i, d) = x * gain[d]; score(q, k) = (dot(q, k) + dot(q_pe, "
         "k_pe)) * 0.3 + tanh(dot(q, k_in)) - 0.1 * sqnorm(k_pe) + 0.2 * sqnorm(k); }",
    ROWS "key(x, b, h, j, d) = x * far[h, d]; score(q, k) = dot(q[8:24], k[:16]) * 0.2 + dot(q, "
         "k) * 0.3 + dot(q_pe[:8], k[2:10]) + dot(q_in, k_pe[8:]) * sqnorm(q_pe); }",
    ROWS "score(q, k) = dot(q, k) * 0.3 - 0.1 * sqnorm(q[3:11]) * sqnorm(k[16:]); }",
    ROWS "share v = k; score(q, k) = dot(q_pe, k_pe) + 0 * dot(q, k); }",
};

static const TargetId targets[] = {TARGET_SM80, TARGET_GFX942, TARGET_GFX1100, TARGET_SM90A};

TEST_EACH(rows, 0, sizeof of_rows / sizeof *of_rows) { check(of_rows[_i], of_rows[_i], DT_F32); }

TEST_EACH(scheduled_rows, 0, 4 * sizeof of_rows / sizeof *of_rows) {
    const char *text = of_rows[_i / 4];
    check_scheduled(text, text, targets[_i % 4], DT_BF16);
}
