"""Layouts ragged and paged from Python, on the CPU: NumPy arrays and PyTorch's tensors, views of pools, messages, the engine of python/examples.

    ATTNC=build/attnc ATTNRT_LIBRARY=build/libattnrt.so python3 -m unittest tests/python/test_serving.py
"""

import os
import subprocess
import sys
import unittest

import numpy as np
import torch

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "python"))

import attn  # noqa: E402

SOURCE = """
import std.mask;
import std.normalization;
attention serve {
    dim D = 16, Dv = 8;
    input sink: f32[H];
    input bias: f32[B, H, Sk];
    score(q, k) = dot(q, k) * rsqrt(D);
    modify(s, b, h, i, j) = s + bias[b, h, j];
    mask(b, h, i, j) = causal(i, j);
    normalize(s, b, h) = softmax_with_sink(s, sink[h]);
}"""
H, HKV, D, DV, PAGE, PAGES, LAYERS = 4, 2, 16, 8, 5, 9, 3
LENS, STARTS = [12, 0, 7, 20], [0, 3, 4, 4, 9]  # of q: 3, 1, 0, 5; row 9 is nobody's
TQ = 10
TABLE = [[3, 1, 0, -1], [-1, -1, -1, -1], [8, 8, -7, 99], [2, 4, 5, 7]]


def i32(x):
    return torch.tensor(x, dtype=torch.int32)


class Serving(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.paged = attn.compile(SOURCE, layout="paged")
        cls.ragged = attn.compile(SOURCE, layout="ragged")
        cls.dense = attn.compile(SOURCE)
        g = torch.Generator().manual_seed(2)
        cls.q = torch.randn(TQ, H, D, generator=g)
        cls.sink = torch.randn(H, generator=g)
        cls.k, cls.v, cls.bias = (torch.randn(PAGES, PAGE, *s, generator=g) for s in ((HKV, D), (HKV, DV), (H,)))
        cls.rows = [[TABLE[b][j // PAGE] * PAGE + j % PAGE for j in range(n)] for b, n in enumerate(LENS)]
        live = {r for rows in cls.rows for r in rows}
        for x in (cls.k, cls.v, cls.bias):
            flat = x.flatten(0, 1)
            for r in set(range(PAGES * PAGE)) - live:
                flat[r] = float("nan")
        cls.index = {"page_table": i32(TABLE), "kv_len": i32(LENS), "q_start": i32(STARTS)}
        cls.expected = torch.full((TQ, H, DV), 7.0)
        for b, rows in enumerate(cls.rows):
            if STARTS[b] < STARTS[b + 1]:
                cls.expected[STARTS[b] : STARTS[b + 1]] = cls.dense_of(b, rows)

    @classmethod
    def dense_of(cls, b, rows, **given):
        k, v, bias = (x.flatten(0, 1)[rows].transpose(0, 1)[None].contiguous() for x in (cls.k, cls.v, cls.bias))
        q = cls.q[STARTS[b] : STARTS[b + 1]].transpose(0, 1)[None]
        return cls.dense(q, k, v, cls.sink, bias, **given)[0].transpose(0, 1)

    def check(self, k, v, kernel=None, **given):
        out = torch.full((TQ, H, DV), 7.0)
        given = {**self.index, "bias": self.bias, "sink": self.sink, "out": out, **given}
        self.assertIs((kernel or self.paged)(self.q, k, v, **given), out)
        torch.testing.assert_close(out, self.expected, rtol=1e-5, atol=1e-5)

    def test_layouts(self):
        self.assertEqual((self.dense.kernels[0].layout, self.ragged.kernels[0].layout, self.paged.kernels[0].layout), ("dense", "ragged", "paged"))
        self.assertEqual(self.paged.kernels[0].inputs[:5], ["q", "k", "v", "sink", "bias"])

    def test_paged(self):
        self.check(self.k, self.v)
        self.check(self.k, self.v, max_q=1)
        self.check(self.k, self.v, max_q=3000)
        self.check(self.k, self.v, q_offset=None)
        self.check(self.k, self.v, attn.compile(SOURCE, layout=f"paged:{PAGE}"))

    def test_ragged(self):
        rows = [r for rows in self.rows for r in rows]
        given = {"kv_start": i32(np.cumsum([0, *LENS])), "q_start": self.index["q_start"], "sink": self.sink}
        k, v, bias = (x.flatten(0, 1)[rows] for x in (self.k, self.v, self.bias))
        out = torch.full((TQ, H, DV), 7.0)
        self.ragged(self.q, k, v, bias=bias, out=out, **given)
        torch.testing.assert_close(out, self.expected, rtol=1e-5, atol=1e-5)

    def test_views_of_pools(self):
        hnd = [torch.empty(PAGES, HKV, PAGE, x.shape[-1]).transpose(1, 2) for x in (self.k, self.v)]
        hnd[0][:], hnd[1][:] = self.k, self.v
        self.check(*hnd)
        both = torch.full((LAYERS, PAGES, 2, PAGE, HKV, D), float("nan"))  # K and V of a page by turns, of all layers
        both[1, :, 0], both[1, :, 1, ..., :DV] = self.k, self.v
        k, v = both[1].unbind(1)
        self.check(k, v[..., :DV])
        rows = torch.full((PAGES, PAGE, HKV, D + DV), float("nan"))  # and of a row
        rows[..., :D], rows[..., D:] = self.k, self.v
        self.check(rows[..., :D], rows[..., D:])

    def test_a_contiguous_cache_is_a_pool(self):
        cache = [torch.full((4, 20, *x.shape[2:]), float("nan")) for x in (self.k, self.v, self.bias)]
        for b, rows in enumerate(self.rows):
            for to, x in zip(cache, (self.k, self.v, self.bias)):
                to[b, : len(rows)] = x.flatten(0, 1)[rows]
        self.check(cache[0], cache[1], bias=cache[2], page_table=i32([[0], [1], [2], [3]]))

    def test_numpy(self):
        given = {n: x.numpy() for n, x in {**self.index, "sink": self.sink, "bias": self.bias}.items()}
        o = self.paged(self.q.numpy(), self.k.numpy(), self.v.numpy(), **given)
        np.testing.assert_allclose(o[:9], self.expected[:9].numpy(), 1e-5, 1e-5)

    def test_positions(self):
        offset = i32([4, -1, 0, 100])
        o = self.paged(self.q, self.k, self.v, self.sink, self.bias, q_offset=offset, **self.index)
        for b in (0, 3):
            want = self.dense_of(b, self.rows[b], q_offset=int(offset[b]))
            torch.testing.assert_close(o[STARTS[b] : STARTS[b + 1]], want, rtol=1e-5, atol=1e-5)

    def test_decoding(self):
        index = {n: x for n, x in self.index.items() if n != "q_start"}
        o = self.paged(self.q[:4], self.k, self.v, self.sink, self.bias, **index)
        starts = i32([0, 1, 2, 3, 4])
        self.assertTrue(torch.equal(o, self.paged(self.q[:4], self.k, self.v, self.sink, self.bias, q_start=starts, **index)))
        with self.assertRaisesRegex(attn.Error, "q: 10 rows are no multiple of B = 4: pass q_start"):
            self.paged(self.q, self.k, self.v, self.sink, self.bias, **index)

    def test_invariant(self):
        """A sequence has the bits that it has alone, whatever max_q says; --invariant has no other layout."""
        kernel = attn.compile(SOURCE, layout="paged", invariant=True)
        given = dict(page_table=i32(TABLE), kv_len=i32(LENS), q_start=i32(STARTS), sink=self.sink, bias=self.bias)
        o = kernel(self.q, self.k, self.v, max_q=TQ, **given)
        for b in (0, 1, 3):
            rows = slice(STARTS[b], STARTS[b + 1])
            one = dict(page_table=i32(TABLE[b : b + 1]), kv_len=i32(LENS[b : b + 1]), sink=self.sink, bias=self.bias)
            alone = kernel(self.q[rows], self.k, self.v, max_q=1, **one)
            self.assertTrue(torch.equal(alone, o[rows]), b)
        with self.assertRaisesRegex(attn.CompileError, "--invariant is for attentions in layouts ragged and paged"):
            attn.compile(SOURCE, invariant=True)

    def test_a_bad_id_spoils_its_own_sequence_only(self):
        table = i32(TABLE)
        table[2, 0], table[3, 1] = 2**31 - 1, -(2**31)
        o = self.paged(self.q, self.k.nan_to_num(), self.v.nan_to_num(), self.sink, self.bias.nan_to_num(), **{**self.index, "page_table": table})
        self.assertTrue(torch.equal(o[:4], self.paged(self.q, self.k, self.v, self.sink, self.bias, **self.index)[:4]))
        table[3, 1] = 0
        other = self.paged(self.q, self.k.nan_to_num(), self.v.nan_to_num(), self.sink, self.bias.nan_to_num(), **{**self.index, "page_table": table})
        self.assertTrue(torch.equal(o[:9], other[:9]))

    def test_messages(self):
        call = lambda **given: self.paged(self.q, self.k, self.v, self.sink, self.bias, **{**self.index, **given})  # noqa: E731
        with self.assertRaisesRegex(attn.Error, r"kv_len: dimension 0 is 3, expected B = 4 \(from page_table\)"):
            call(kv_len=i32([1, 2, 3]))
        with self.assertRaisesRegex(attn.Error, r"q_start: dimension 0 is 4, expected B \+ 1 = 5"):
            call(q_start=i32([0, 1, 2, 3]))
        with self.assertRaisesRegex(TypeError, r"page_table: elements of type int64 are not supported; it takes int32: pass page_table.to\(torch.int32\)"):
            call(page_table=torch.tensor(TABLE))
        with self.assertRaisesRegex(attn.Error, "kv_len: has elements of type f32, expected i32"):
            call(kv_len=torch.ones(4))
        with self.assertRaisesRegex(TypeError, "kv_start: layout paged has no such tensor"):
            call(kv_start=i32(STARTS))
        shared = attn.compile(os.path.join(ROOT, "tests/run/share.attn"), layout="paged")
        q, k, named = torch.randn(4, 2, 64), torch.randn(PAGES, PAGE, 2, 64), "q_start, kv_len, page_table, q_offset"
        said = rf"^share takes 2 inputs \(q, k\); by name: {named}; v: share shares v with k, it is not passed"
        with self.assertRaisesRegex(TypeError, said):
            shared(q, k, k, page_table=i32(TABLE), kv_len=i32(LENS))
        with self.assertRaisesRegex(TypeError, "kv_len: layout dense has no such tensor"):
            self.dense(self.q[None], self.k, self.v, kv_len=i32(LENS))
        with self.assertRaisesRegex(TypeError, "max_q: is a size and takes an integer"):
            call(max_q=1.5)
        with self.assertRaisesRegex(TypeError, "kv_len: a list is no array"):
            call(kv_len=LENS)
        with self.assertRaisesRegex(attn.Error, r"q: has 4 dimensions, expected 3: \[Tq, H, D\] in layout paged"):
            self.paged(self.q[None], self.k, self.v, self.sink, self.bias, **self.index)
        with self.assertRaisesRegex(attn.Error, "page_table: this tensor is missing"):
            self.paged(self.q, self.k, self.v, self.sink, self.bias, kv_len=i32(LENS), q_start=i32(STARTS))
        with self.assertRaisesRegex(attn.Error, r"k: pages of 5 rows, this artifact is for pages of 16 \(--layout=paged:16\)"):
            attn.compile(SOURCE, layout="paged:16")(self.q, self.k, self.v, self.sink, self.bias, **self.index)
        for layout, text in (("pages", "it takes dense, ragged, paged"), ("paged:0", "bad value")):
            with self.assertRaisesRegex(ValueError, text):
                attn.compile(SOURCE, layout=layout)
        with self.assertRaisesRegex(attn.CompileError, "no backward in layout paged"):
            attn.compile(SOURCE, layout="paged", phase="fwd,bwd")

    def test_engine(self):
        for model, dtype in (("llama", "f32"), ("deepseek", "f32"), ("deepseek", "bf16")):
            with self.subTest(model=model, dtype=dtype):
                command = [sys.executable, os.path.join(ROOT, "python/examples/serving.py"), "--model=" + model, "--dtype=" + dtype]
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                self.assertIn("12 sequences", done.stdout)
                if dtype == "f32":
                    self.assertIn("sequences with other tokens than PyTorch's: none", done.stdout)


RECURRENCE = """
recurrence fade {
    dim D = 16, Dv = 8;
    input log_decay: f32[B, H, S];
    decay(b, h, t) = exp(log_decay[b, h, t]);
}"""


class Recurrences(unittest.TestCase):
    """Packed sequences with states in a pool, against dense calls of one sequence each."""

    @classmethod
    def setUpClass(cls):
        cls.dense, cls.packed = attn.compile(RECURRENCE), attn.compile(RECURRENCE, layout="ragged")
        g = torch.Generator().manual_seed(3)
        cls.q, cls.k, cls.v = (torch.randn(TQ, heads, d, generator=g) for heads, d in ((H, D), (HKV, D), (H, DV)))
        cls.log_decay = -torch.rand(TQ, H, generator=g)
        cls.pool = torch.randn(7, H, D, DV, generator=g)

    def one(self, first, last, state0):
        q, k, v = (x[first:last].transpose(0, 1)[None] for x in (self.q, self.k, self.v))
        o, state = self.dense(q, k, v, self.log_decay[first:last].T[None].contiguous(), state0=state0[None].contiguous(), emit="state")
        return o[0].transpose(0, 1), state[0]

    def check(self, starts, slots, named, pool):
        """named: what state_index holds."""
        out, before = torch.full((TQ, H, DV), 7.0), pool.clone()
        given = {} if starts is None else {"q_start": i32(starts)}
        starts = starts or [2 * b for b in range(len(slots) + 1)]
        expected, states = out.clone(), before.clone()
        for b, slot in enumerate(slots):
            if starts[b] < starts[b + 1]:
                expected[starts[b] : starts[b + 1]], states[slot] = self.one(starts[b], starts[b + 1], before[slot])
        if named is not None:
            given["state_index"] = i32(named)
        self.packed(self.q, self.k, self.v, self.log_decay, state0=pool, out={"o": out, "state": pool}, **given)
        torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(pool, states, rtol=1e-5, atol=1e-5, equal_nan=True)
        free = [i for i in range(len(pool)) if torch.equal(states[i].nan_to_num(99), before[i].nan_to_num(99))]
        self.assertTrue(all(torch.equal(pool[i].view(torch.int32), before[i].view(torch.int32)) for i in free))

    def test_without_sizes(self):
        with self.assertRaisesRegex(attn.Error, "^B: nothing gives this size: pass q_start, state_index or B$"):
            self.packed(self.q, self.k, self.v, self.log_decay)

    def test_overlapping_pool(self):
        pool = torch.zeros(5, self.v.shape[1], self.q.shape[2], self.v.shape[2])
        with self.assertRaisesRegex(ValueError, "^state: overlaps state0 in memory"):
            self.packed(self.q, self.k, self.v, self.log_decay, q_start=i32([0, 2, 3, 5, 7]), state0=pool[1:], out={"state": pool[:4]})

    def test_pool(self):
        self.assertEqual(self.packed.kernels[0].layout, "ragged")
        pool = self.pool.clone()
        pool[[1, 6]] = float("nan")  # nobody's
        self.check(STARTS, [3, 0, 4, 2], [3, -9, 4, 2], pool)  # an id below 0 is the first slot; an empty sequence writes nothing
        pool = self.pool.clone()
        pool[0] = float("nan")
        self.check(STARTS, [3, 6, 0, 2], [3, 99, -1, 2], pool)

    def test_even(self):
        self.check(None, [0, 1, 2, 3, 4], None, self.pool[:5].clone())
        self.check(None, [5, 1, 0, 3, 6], [5, 1, 0, 3, 6], self.pool.clone())

    def test_decoding_is_stepwise(self):
        pool, out = torch.zeros(7, H, D, DV), torch.empty(TQ, H, DV)
        for t in range(0, TQ, 2):  # two sequences of one position each
            rows = slice(t, t + 2)
            self.packed(self.q[rows], self.k[rows], self.v[rows], self.log_decay[rows], state_index=i32([6, 2]), state0=pool,
                        out={"o": out[rows], "state": pool})  # fmt: skip
        o = self.dense(*(x[1::2].transpose(0, 1)[None] for x in (self.q, self.k, self.v)), self.log_decay[1::2].T[None].contiguous())
        torch.testing.assert_close(out[1::2], o[0].transpose(0, 1), rtol=1e-5, atol=1e-5)
        self.assertFalse(pool[[0, 1, 3, 4, 5]].any())

    def test_messages(self):
        rows = self.q, self.k, self.v, self.log_decay
        with self.assertRaisesRegex(attn.Error, "state0: 7 slots for B = 4 sequences .from q_start.: pass state_index"):
            self.packed(*rows, q_start=i32(STARTS), state0=self.pool)
        with self.assertRaisesRegex(attn.Error, "10 rows are no multiple of B = 4: pass q_start"):
            self.packed(*rows, state0=self.pool, state_index=i32([0, 1, 2, 3]))
        with self.assertRaisesRegex(attn.Error, "state_index: dimension 0 is 3, expected B = 4 .from q_start."):
            self.packed(*rows, q_start=i32(STARTS), state0=self.pool, state_index=i32([0, 1, 2]))
        with self.assertRaisesRegex(TypeError, "kv_start: layout ragged has no such tensor"):
            self.packed(*rows, kv_start=i32(STARTS))
        with self.assertRaisesRegex(attn.CompileError, "no recurrences in layout paged: their states are slots of a pool in layout ragged"):
            attn.compile(RECURRENCE, layout="paged")
        with self.assertRaisesRegex(attn.CompileError, "no backward of recurrences in layout ragged"):
            attn.compile(RECURRENCE, layout="ragged", phase="fwd,bwd")


if __name__ == "__main__":
    unittest.main()
