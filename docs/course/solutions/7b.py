import numpy as np


def merge_outputs(o_a, lse_a, o_b, lse_b):
    lse = np.logaddexp(lse_a, lse_b)
    shift = np.where(np.isfinite(lse), lse, 0)  # -inf - -inf would be NaN; exp(-inf - 0) is 0
    w_a, w_b = np.exp(lse_a - shift), np.exp(lse_b - shift)
    return o_a * w_a[:, None] + o_b * w_b[:, None], lse
