import numpy as np


def weights(s):
    m = s.max(axis=-1, keepdims=True)
    m = np.where(np.isfinite(m), m, 0)  # a row without a key: -inf - -inf would be NaN
    e = np.exp(s - m)
    total = e.sum(axis=-1, keepdims=True)
    return e / np.where(total > 0, total, 1)
