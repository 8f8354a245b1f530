"""my_variant.attn against its formula in NumPy: python3 test_my_variant.py, or pytest.

It needs NumPy and attnc's Python package, which finds the command attnc on the PATH. If the package is
not installed, PYTHONPATH has to name it: the folder python/ of a checkout of attnc.
"""

import os
import unittest

import attn
import numpy as np

FILE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "my_variant.attn")
WINDOW = 128


def formula(q, k, v, slope):
    """The output, from the paper and not from the file: slow, in float64."""
    heads, queries, keys = q.shape[1], q.shape[2], k.shape[2]
    k, v = (np.repeat(x, heads // x.shape[1], axis=1).astype(float) for x in (k, v))
    i = np.arange(queries)[:, None] + keys - queries  # the queries are the last positions
    j = np.arange(keys)
    s = q.astype(float) @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    s = s - slope[:, None, None] * (i - j)
    s = np.where((j <= i) & (i - j < WINDOW), s, -np.inf)
    w = np.exp(s - s.max(-1, keepdims=True))
    return w / w.sum(-1, keepdims=True) @ v


class Test(unittest.TestCase):
    def test_formula(self):
        kernel = attn.compile(FILE)
        rng = np.random.default_rng(0)
        # batch entries, heads of queries, heads of keys, queries, keys: sizes that fit no tile, and a single query
        for B, H, Hkv, Sq, Sk in [(2, 4, 2, 200, 200), (1, 2, 1, 1, 333), (1, 1, 1, 77, 300)]:
            q = rng.standard_normal((B, H, Sq, 64), dtype=np.float32)
            k, v = rng.standard_normal((2, B, Hkv, Sk, 64), dtype=np.float32)
            slope = rng.random(H, dtype=np.float32)
            wanted = formula(q, k, v, slope)
            error = np.linalg.norm(kernel(q, k, v, slope=slope) - wanted) / np.linalg.norm(wanted)
            self.assertLess(error, 1e-5)


if __name__ == "__main__":
    unittest.main()
