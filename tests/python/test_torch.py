"""attn.Attention and attn.attention in PyTorch, on the CPU or on ATTN_DEVICE. Needs NumPy, PyTorch, cc, libattnrt.so and attnc.

    ATTNRT_LIBRARY=build/libattnrt.so ATTNC=build/attnc python3 -m unittest tests/python/test_torch.py
"""

import copy
import contextlib
import fcntl
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import unittest.mock
import warnings

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "python"))

import attn  # noqa: E402
from attn import _torch  # noqa: E402

DEVICE = os.environ.get("ATTN_DEVICE", "cpu")
if DEVICE != "cpu":
    torch.set_default_device(DEVICE)
CAUSAL = os.path.join(ROOT, "stdlib/causal.attn")
BIASED = """
import std.normalization;
attention biased {
    dim D = 8;
    input bias: f32[H, Sk];
    input cap: f32;
    input table: bf16[NT];
    score(q, k) = dot(q, k) * rsqrt(D);
    modify(s, b, h, i, j) = cap * tanh(s / cap) + bias[h, j] + table[j % NT];
    normalize(s) {
        emit top = rowmax(s);
        return softmax(s);
    }
}
attention plain { dim D = 8; score(q, k) = dot(q, k); normalize(s) = s; }
"""


def operands(b=2, h=4, hkv=2, sq=5, sk=7, d=16, dv=12, dtype=torch.float32):
    r = np.random.default_rng(3)
    shapes = (b, h, sq, d), (b, hkv, sk, d), (b, hkv, sk, dv)
    return [torch.from_numpy(r.standard_normal(s).astype(np.float32)).to(DEVICE, dtype) for s in shapes]


def eager(q, k, v, change=lambda s: s, scale=True):
    q, k, v = (x.double() for x in (q, k, v))
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    s = change(q @ k.transpose(2, 3) * (q.shape[3] ** -0.5 if scale else 1))
    return s.softmax(-1) @ v, s


def causal(s):
    sq, sk = s.shape[2:]
    return s.masked_fill(torch.arange(sk) > torch.arange(sq)[:, None] + max(sk - sq, 0), float("-inf"))


SHARE = "score(q, k) = dot(q, k) * rsqrt(D); mask(b, h, q_idx, kv_idx) = causal(q_idx, kv_idx); normalize(s) = softmax(s); }"

ONE_OF_MANY = """
import sys, torch
sys.path.insert(0, sys.argv[1])
import attn
torch.manual_seed(1)
q, k, v = torch.randn(3, 2, 4, 7, 16)
print(attn.Attention(sys.argv[2])(q, k, v).sum().item())
"""


def opened(pid):
    """The files that a process has open."""
    found = []
    with contextlib.suppress(OSError):
        for n in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                found.append(os.readlink(f"/proc/{pid}/fd/{n}"))
    return found


class Case(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        os.environ["ATTN_CACHE"] = cls.folder.name

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def close(self, x, want, tolerance=1e-5):
        self.assertEqual(x.shape, want.shape)
        self.assertLess((x.double() - want).norm().item(), tolerance * want.norm().item())


PACKED = """
import std.normalization;
import std.mask;
attention packed {
    dim D = 16;
    input bias: f32[B, H, Sk] grad;
    input gate: f32[B, Sq] grad;
    input slope: f32[H] grad;
    score(q, k) = dot(q, k) * rsqrt(D);
    modify(s, b, h, i, j) = s + bias[b, h, j] + slope[h] * f32(j - i);
    mask(b, h, i, j) = window(i, j, 9);
    normalize(s) = softmax(s);
    output(o, b, h, i, d) = o * gate[b, i - q_offset];
}
"""


class Packed(Case):
    """Sequences one behind the other against float64 autograd of the eager formula, document by document."""

    starts, keys = [0, 9, 9, 10, 41, 44], [2, 11, 15, 15, 60, 63]  # no query; no key; rows that no sequence has

    def rows(self, tq=46, tk=66, h=4, hkv=2, d=16, dv=12, dtype=torch.float32):
        r = np.random.default_rng(7)
        shapes = (tq, h, d), (tk, hkv, d), (tk, hkv, dv), (tq, h, dv)
        return [torch.from_numpy(r.standard_normal(s).astype(np.float32)).to(DEVICE, dtype) for s in shapes]

    def documents(self, starts, keys, q, k, v, change):
        """[Tq, H, Dv] in float64, and the log-sum-exps; 0 where no sequence is."""
        lse = torch.zeros(q.shape[:2], dtype=torch.float64) + 0 * (q.sum() + k.sum() + v.sum())
        o = lse[..., None].repeat(1, 1, v.shape[2])
        for b, (i, j) in enumerate(zip(zip(starts, starts[1:]), zip(keys, keys[1:]))):
            if i[0] == i[1] or j[0] == j[1]:
                continue
            own = [x[slice(*at)].transpose(0, 1)[None] for x, at in ((q, i), (k, j), (v, j))]
            found, s = eager(*own, lambda s: change(s, b, i, j))
            o = torch.cat([o[: i[0]], found[0].transpose(0, 1), o[i[1] :]])
            lse = torch.cat([lse[: i[0]], s.logsumexp(-1)[0].T, lse[i[1] :]])
        return o, lse

    def test_gradients(self):
        for dtype, tolerance in (torch.float32, 2e-5), (torch.float16, 4e-3), (torch.bfloat16, 2.4e-2):
            for starts, keys in ([0, 9, 9, 10, 41, 46],) * 2, (self.starts, self.keys), ([0, 0, 0],) * 2, ([0, 46],) * 2:
                for sizes in {}, {"h": 6, "hkv": 1, "d": 32, "dv": 32}:
                    given = self.rows(tk=46 if keys is starts or len(keys) < 4 else 66, dtype=dtype, **sizes)
                    (*x, do), to = given, torch.int64
                    x = [y.requires_grad_() for y in x]
                    double = [y.detach().double().requires_grad_() for y in x]
                    index = {} if keys is starts else {"kv_start": torch.tensor(keys, dtype=torch.int32)}
                    o, lse = attn.Attention(CAUSAL, emit="lse")(*x, q_start=torch.tensor(starts, dtype=to), max_q=3, **index)
                    want, most = self.documents(starts, keys, *double, lambda s, *_: causal(s))
                    live = torch.zeros(o.shape[0], dtype=torch.bool)
                    for i, j, first, end in zip(starts, starts[1:], keys, keys[1:]):
                        live[i:j] = end > first
                    self.assertFalse(o[~live].any())
                    self.assertEqual(o.dtype, dtype)
                    torch.autograd.backward([o, lse], [do, torch.where(live[:, None], torch.ones_like(lse), torch.zeros_like(lse))])
                    torch.autograd.backward([want, most], [do.double(), live[:, None].double().expand_as(most)])
                    self.assertLessEqual((o.double() - want).norm().item(), tolerance * want.norm().item())
                    for y, z in zip(x, double):
                        self.assertEqual(y.grad.dtype, dtype)
                        self.assertLessEqual((y.grad.double() - z.grad).norm().item(), tolerance * z.grad.norm().item())

    def test_inputs(self):
        q, k, v, do = self.rows()
        x = [q, k, v, torch.randn(66, 4), torch.randn(46), torch.randn(4) * 0.1]
        x = [y.requires_grad_() for y in x]
        double = [y.detach().double().requires_grad_() for y in x]
        bias, gate, slope = double[3:]

        def change(s, b, i, j):
            sq, sk = s.shape[2:]
            at = torch.arange(sk) - torch.arange(sq)[:, None] - max(sk - sq, 0)
            s = s + bias[slice(*j)].T[:, None] + slope[:, None, None] * at
            return s.masked_fill((at > 0) | (at <= -9), float("-inf"))

        index = {"q_start": torch.tensor(self.starts), "kv_start": torch.tensor(self.keys)}
        o = attn.attention(PACKED, *x, **index)
        want = self.documents(self.starts, self.keys, *double[:3], change)[0] * gate[:, None, None]
        self.close(o, want)
        o.backward(do)
        want.backward(do.double())
        for y, z in zip(x, double):
            self.close(y.grad, z.grad, 2e-5)

    def test_as_dense(self):
        """Equal lengths are a dense batch; positions may be given; views are not copied."""
        q, k, v, do = (x.requires_grad_() for x in self.rows(tq=40, tk=40))
        starts = torch.arange(0, 50, 10, dtype=torch.int32)
        packed = attn.attention(CAUSAL, q, k, v, q_start=starts)
        packed.backward(do.detach())
        found, q.grad = q.grad, None
        dense = attn.attention(CAUSAL, *(x.view(4, 10, *x.shape[1:]).transpose(1, 2) for x in (q, k, v)))
        dense.backward(do.detach().view(4, 10, *do.shape[1:]).transpose(1, 2))
        self.close(packed, dense.transpose(1, 2).reshape(packed.shape).double())
        self.close(found, q.grad.double())
        later = attn.attention(CAUSAL, q, k, v, q_start=starts, q_offset=torch.full((4,), 10))
        self.close(later, attn.attention(CAUSAL, *(x.view(4, 10, *x.shape[1:]).transpose(1, 2) for x in (q, k, v)), q_offset=10)
                   .transpose(1, 2).reshape(packed.shape).double())  # fmt: skip

    def test_messages(self):
        q, k, v, _ = self.rows()
        starts = torch.tensor(self.starts)
        for error, said, call in (
            (TypeError, "kv_start: k has 66 rows and q 46", {"q_start": starts}),
            (TypeError, "kv_start: goes with q_start=", {"kv_start": starts}),
            (TypeError, "max_q: goes with q_start=", {"max_q": 3}),
            (ValueError, r"q: has 3 dimensions, expected .B, H, Sq, D.; rows of sequences", {}),
            (TypeError, "q_start: takes a tensor of integers, one more than", {"q_start": starts.float(), "kv_start": starts}),
            (attn.Error, "kv_start: dimension 0 is 5, expected B . 1 = 6", {"q_start": starts, "kv_start": starts[:5]}),
        ):
            with self.assertRaisesRegex(error, said):
                attn.attention(CAUSAL, q, k, v, **call)
        with self.assertRaisesRegex(ValueError, r"q: has 4 dimensions, expected .Tq, H, D."):
            attn.attention(CAUSAL, q[None], k, v, q_start=starts)


class Values(Case):
    def test_lengths_and_types(self):
        attention = attn.Attention(CAUSAL)
        for dtype, tolerance in (torch.float32, 1e-5), (torch.float16, 2e-3), (torch.bfloat16, 1.2e-2):
            for sizes in {}, {"sq": 1, "sk": 33}, {"d": 64, "dv": 64, "hkv": 4}, {"b": 1, "sq": 70, "sk": 70}:
                q, k, v = operands(dtype=dtype, **sizes)
                o = attention(q, k, v)
                self.assertEqual(o.dtype, dtype)
                self.close(o, eager(q, k, v, causal)[0], tolerance)

    def test_inputs_and_emits(self):
        q, k, v = operands(d=8)
        bias, table = torch.randn(4, 7), torch.randn(3).bfloat16()
        want, s = eager(q, k, v, lambda s: 1.5 * torch.tanh(s / 1.5) + bias[:, None] + table.double().repeat(3)[:7])
        module = attn.Attention(BIASED, entry="biased", emit=["lse", "top"])
        o, lse, top = module(q, k, v, bias, 1.5, table)
        self.close(o, want)
        self.close(lse, s.logsumexp(-1))
        self.close(top, s.amax(-1))
        named = attn.attention(BIASED, q, k, v, table=table, cap=torch.tensor(1.5), bias=bias, entry="biased")
        self.assertTrue(torch.equal(named, o))
        self.close(attn.attention(BIASED, q, k, v, entry="plain"), (eager(q, k, v, scale=False)[1]) @ v.double().repeat_interleave(2, 1))

    def test_positions(self):
        q, k, v = operands(sq=7)
        o = attn.attention(CAUSAL, q, k, v, q_offset=-3)
        self.assertTrue((o[:, :, :3] == 0).all())
        self.close(o[:, :, 3:], eager(q[:, :, 3:], k[:, :, :4], v[:, :, :4], causal)[0])

    def test_views(self):
        b, s, h, d = 2, 9, 4, 16
        packed = torch.randn(b, s, 3, h, d)
        q, k, v = packed.permute(2, 0, 3, 1, 4)
        self.close(attn.attention(CAUSAL, q, k, v), eager(q, k, v, causal)[0])
        o = attn.attention(CAUSAL, *(x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)))  # [B, S, H, D], and so is o
        self.assertTrue(o.transpose(1, 2).is_contiguous())
        self.assertTrue(attn.attention(CAUSAL, q.contiguous(), k, v).is_contiguous())
        crossed = torch.randn(b, h, d, s).transpose(2, 3)  # whose rows are no rows in memory
        self.close(attn.attention(CAUSAL, crossed, k, v), eager(crossed, k, v, causal)[0])

    def test_no_copy(self):
        """A kernel gets views where they lie: [B, S, H, D] as [B, H, S, D], parts of a packed tensor, gradients that come."""
        seen = []

        def spy(kernel, **given):
            seen.append({n: x.data_ptr() for n, x in given.items() if n in ("q", "k", "v", "do")})
            return call(kernel, **given)

        call = _torch.Kernel.__call__
        packed, o = torch.randn(2, 9, 3, 4, 16, requires_grad=True), torch.randn(2, 9, 4, 16)
        views = dict(zip("qkv", packed.permute(2, 0, 3, 1, 4)), do=o.transpose(1, 2))
        with unittest.mock.patch.object(_torch.Kernel, "__call__", spy):
            attn.attention(CAUSAL, views["q"], views["k"], views["v"]).backward(views["do"])
        lie = {n: x.data_ptr() for n, x in views.items()}
        self.assertEqual(seen, [{n: lie[n] for n in "qkv"}, lie])

    def test_beyond_31_bits(self):
        room = torch.empty(2**32 + 2**22, dtype=torch.float16)  # 8 GB, of which pages are taken where they are touched
        places = (2, 2, 3, 64), (2**31 + 2**12, 2**30, 64, 1)
        far = [room.as_strided(*places, offset).copy_(torch.randn(2, 2, 3, 64)).detach().requires_grad_() for offset in (0, 2**20, 2**21)]
        near = [x.detach().clone().requires_grad_() for x in far]
        o, want = attn.attention(CAUSAL, *far), attn.attention(CAUSAL, *near)
        self.assertTrue(torch.equal(o, want))
        for x, y in zip(torch.autograd.grad(o.sum(), far), torch.autograd.grad(want.sum(), near)):
            self.assertTrue(torch.equal(x, y))

    def test_inputs_as_they_lie(self):
        """Transposed, expanded, sliced: with gradients, too; and tensors that no kernel reads."""
        source = """
            import std.normalization;
            attention a {
                dim D = 8;
                input g: f32[B, H, Sq] grad;
                input t: i32[Sk];
                score(q, k) = dot(q, k);
                modify(s, b, h, i, j) = s * g[b, h, i - q_offset] + t[j];
                normalize(s) = softmax(s);
            }"""
        q, k, v = torch.randn(2, 2, 3, 8), torch.randn(2, 2, 5, 8), torch.randn(2, 2, 5, 8)
        t = torch.randint(0, 3, (5, 2), dtype=torch.int32)
        for g in torch.randn(2, 3, 2).transpose(1, 2), torch.randn(2, 2, 1).expand(2, 2, 3), torch.randn(2, 2, 3, 2)[..., 1]:
            found = []
            for lay in (lambda x: x), (lambda x: x.contiguous()):
                leaf = lay(g).detach().requires_grad_()
                o = attn.attention(source, q, k, v, leaf, lay(t[:, 1]))
                found.append((o.detach(), *torch.autograd.grad(o.square().sum(), leaf)))
            for x, y in zip(*found):
                self.assertTrue(torch.equal(x, y))
        with self.assertRaisesRegex(TypeError, "spread: takes an attn.Spread, not a int"):
            attn.attention(CAUSAL, q, k, v, spread=3)
        negative = torch._neg_view(q)
        with self.assertRaisesRegex(TypeError, "q: its memory holds the numbers without their sign"):
            attn.compile(CAUSAL, defines={"D": 8})(negative, k, v)
        self.assertTrue(torch.equal(attn.attention(CAUSAL, negative, k, v), attn.attention(CAUSAL, -q, k, v)))
        with self.assertRaisesRegex(TypeError, "q: tensors of layout torch.sparse_coo"):
            attn.compile(CAUSAL, defines={"D": 8})(q.to_sparse(), k, v)

    def test_v_in_k(self):
        q, k = torch.randn(2, 4, 5, 64), torch.randn(2, 1, 7, 64)
        share = "import std.mask; import std.normalization; attention share { dim D = 64, Dv = 40; share v = k; " + SHARE
        self.close(attn.attention(share, q, k), eager(q, k.expand(2, 2, 7, 64), k[..., :40].expand(2, 2, 7, 40), causal)[0])
        with self.assertRaisesRegex(TypeError, "^v: share has it in k"):
            attn.attention(share, q, k, k)
        exact = [x.double().requires_grad_() for x in (q, k)]
        for x in q, k:
            x.requires_grad_()
        attn.attention(share, q, k).square().sum().backward()
        q1, k1 = exact
        eager(q1, k1.expand(2, 2, 7, 64), k1[..., :40].expand(2, 2, 7, 40), causal)[0].square().sum().backward()
        for x, want in zip((q, k), exact):
            self.close(x.grad, want.grad, 2e-5)

    def test_empty(self):
        for sizes in {"b": 0}, {"sq": 0}:
            q, k, v = operands(**sizes)
            self.assertEqual(attn.attention(CAUSAL, q, k, v).shape, (*q.shape[:3], v.shape[3]))
        q, k, v = operands(sk=0)
        self.assertTrue((attn.attention(CAUSAL, q, k, v) == 0).all())

    def test_module(self):
        module = attn.Attention(CAUSAL)
        q, k, v = operands()
        o = module(q, k, v)
        for again in copy.deepcopy(module), pickle.loads(pickle.dumps(module)):
            self.assertTrue(torch.equal(again(q, k, v), o))
        self.assertIn("causal.attn", repr(module))
        self.assertEqual(list(module.parameters()), [])

    def test_autocast(self):
        q, k, v = operands()
        with torch.autocast(DEVICE, torch.bfloat16):
            o = attn.attention(CAUSAL, q, k, v.bfloat16())
        self.assertEqual(o.dtype, torch.bfloat16)
        self.assertTrue(torch.equal(o, attn.attention(CAUSAL, q.bfloat16(), k.bfloat16(), v.bfloat16())))


class Gradients(Case):
    def agree(self, module, eager, operands, tolerance=2e-5):
        """The module's gradients for random ones that come, against those of the formula in float64."""
        given = [x.detach().clone().requires_grad_() for x in operands]
        exact = [x.detach().double().requires_grad_() for x in operands]
        outs, wants = module(*given), eager(*exact)
        outs = outs if isinstance(outs, tuple) else (outs,)
        come = [torch.randn_like(x) for x in outs]
        torch.autograd.backward(outs, come)
        torch.autograd.backward(wants[: len(outs)], [x.double() for x in come])
        for x, want in zip(given, exact):
            self.assertEqual((x.grad.dtype, x.grad.stride()), (x.dtype, x.stride()))
            self.close(x.grad, want.grad, tolerance)

    def test_types_and_emits(self):
        def formula(q, k, v):
            o, s = eager(q, k, v, causal)
            return o, s.logsumexp(-1)

        for dtype, tolerance in (torch.float32, 2e-5), (torch.float16, 4e-3), (torch.bfloat16, 2.4e-2):
            for sizes in {}, {"sq": 70, "sk": 90, "dv": 16}:
                self.agree(attn.Attention(CAUSAL), formula, operands(dtype=dtype, **sizes), tolerance)
        self.agree(attn.Attention(CAUSAL, emit="lse"), formula, operands(sq=33, sk=50))

    def test_emits_that_overflow(self):
        file = os.path.join(ROOT, "tests/regress/overflowing_emits.attn")
        q, k, v = operands(d=16, sq=12, sk=20)
        self.agree(attn.Attention(file), eager, [20 * q, 20 * k, v], 1e-3)  # scores of deviation 400: f32 itself is off by 1e-4

    def test_learned_input(self):
        def formula(q, k, v, sink):
            s = eager(q, k, v, causal)[1]
            s = torch.cat([s, sink[:, None, None].expand(*s.shape[:3], 1)], -1)
            return (s.softmax(-1)[..., :-1] @ v.repeat_interleave(2, 1),)

        sink = os.path.join(ROOT, "stdlib/attention_sink.attn")
        self.agree(attn.Attention(sink), formula, [*operands(sk=40), torch.randn(4)])

    def test_learned_scalar(self):
        text = "import std.normalization; attention a { dim D = 16; input width: f32 grad; score(q, k) = dot(q, k) * rsqrt(D) * width;"
        module = attn.Attention(text + " mask(b, h, i, j) = j <= i; normalize(s) = softmax(s); }")
        q, k, v = operands()
        for width in torch.tensor(1.3), torch.tensor([0.7]):
            exact = width.double().requires_grad_()
            s = eager(q * exact, k, v, causal)[1]
            (s.softmax(-1) @ v.double().repeat_interleave(2, 1)).square().sum().backward()
            module(q, k, v, width.requires_grad_()).square().sum().backward()
            self.assertEqual(width.grad.shape, width.shape)
            self.close(width.grad, exact.grad, 2e-5)
        for wrong in torch.ones(2), "wide", None:
            with self.assertRaisesRegex((TypeError, ValueError), "^width: takes"):
                module(q, k, v, wrong)

    def test_clauses(self):
        """Norms of queries and keys, with gains that are learned."""
        text = """import std.mask; import std.normalization;
            attention a {
                dim D = 16;
                input q_gain: f32[D] grad;
                input k_gain: f32[Hkv, D] grad;
                query(q, b, h, i, d) = q * rsqrt(sqnorm(q) / D + 0.01) * q_gain[d];
                key(k, b, h, j, d)   = k * rsqrt(sqnorm(k) / D + 0.01) * k_gain[h, d];
                value(v, b, h, j, d) = v * q_gain[d];
                score(q, k)          = dot(q, k) * rsqrt(D);
                mask(b, h, i, j)     = causal(i, j);
                normalize(s)         = softmax(s);
            }"""

        def formula(q, k, v, q_gain, k_gain):
            q, k = (x * (x.square().mean(-1, keepdim=True) + 0.01).rsqrt() for x in (q, k))
            return eager(q * q_gain, k * k_gain[:, None], v * q_gain, causal)

        q, k, v = operands(sq=33, sk=50, dv=16)
        self.agree(attn.Attention(text), formula, [q, k, v, torch.rand(16) + 0.5, torch.rand(k.shape[1], 16) + 0.5])

    def test_rows(self):
        """A part of the score has rows of its own, which are learned."""
        text = """import std.mask; import std.normalization;
            attention a {
                dim D = 16;
                input q_pe: f32[B, H, Sq, 8] grad;
                input k_pe: f32[B, 1, Sk, 8] grad;
                score(q, k)      = (dot(q, k) + dot(q_pe, k_pe)) * rsqrt(D);
                mask(b, h, i, j) = causal(i, j);
                normalize(s)     = softmax(s);
            }"""

        def formula(q, k, v, q_pe, k_pe):
            s = (q @ k.repeat_interleave(2, 1).transpose(-1, -2) + q_pe @ k_pe.transpose(-1, -2)) / 4
            s = s.masked_fill(~torch.ones(s.shape[-2:]).tril(s.shape[-1] - s.shape[-2]).bool(), float("-inf"))
            return (s.softmax(-1) @ v.repeat_interleave(2, 1),)

        q, k, v = operands(sq=33, sk=50)
        self.agree(attn.Attention(text), formula, [q, k, v, torch.randn(*q.shape[:3], 8), torch.randn(q.shape[0], 1, 50, 8)])

    def test_views(self):
        packed = torch.randn(2, 9, 3, 4, 16, requires_grad=True)
        exact = packed.detach().double().requires_grad_()
        attn.attention(CAUSAL, *packed.permute(2, 0, 3, 1, 4)).sum().backward()  # what comes is expanded
        eager(*exact.permute(2, 0, 3, 1, 4), causal)[0].sum().backward()
        self.close(packed.grad, exact.grad, 2e-5)

    def test_only_what_is_asked_for(self):
        q, k, v = operands()
        k.requires_grad_()
        attn.attention(CAUSAL, q, k, v).sum().backward()
        self.assertIsNone(q.grad)
        lse = attn.Attention(CAUSAL, emit="lse")(q, k, v)[1]
        lse.sum().backward()  # nothing comes for o
        self.assertTrue(k.grad.isfinite().all())

    def test_empty(self):
        for sizes in {"b": 0}, {"sq": 0}:
            operand = [x.requires_grad_() for x in operands(**sizes)]
            attn.attention(CAUSAL, *operand).sum().backward()
            for x in operand:
                self.assertTrue((x.grad == 0).all())

    def test_small_arguments(self):
        """std.math: values and derivatives, element by element."""
        text = "import std.math; attention f {{ dim D = 1; input x: f32[Sq] grad; score(q, k) = 0; modify(s, b, h, i, j) = {}(x[i]); normalize(s) = s; }}"
        size = 2.0 ** torch.arange(-60, 5, dtype=torch.float32)
        stable = lambda x: x.clamp(min=0) + torch.log1p(torch.exp(-x.abs()))  # noqa: E731
        cases = [
            ("log1p", torch.log1p, lambda x: 1 / (1 + x), lambda x: x > -1),
            ("expm1", torch.expm1, torch.exp, lambda x: x == x),
            ("softplus", stable, torch.sigmoid, lambda x: x == x),
            ("logsigmoid", lambda x: -stable(-x), lambda x: torch.sigmoid(-x), lambda x: x == x),
        ]
        for name, value, slope, has in cases:
            x = torch.cat([size, -size, torch.linspace(-3, 3, 61)])
            x = x[has(x)].requires_grad_()
            one = torch.ones(1, 1, 1, 1)
            o = attn.Attention(text.format(name))(one.expand(1, 1, len(x), 1), one, one, x).flatten()
            o.sum().backward()
            exact = x.detach().double()
            for got, want in (o.detach(), value(exact)), (x.grad, slope(exact)):
                self.assertLess(((got.double() - want).abs() / want.abs().clamp(min=1e-30)).max().item(), 6e-7, name)

    def test_in_one_order(self):
        """Equal bits in every run, by PyTorch's flag or deterministic=; what has none is refused, or by warn_only warned of."""
        learned = "import std.normalization; attention learned { dim D = 16; input b: f32[H] grad; score(q, k) = dot(q, k); modify(s, x, h) = s * b[h]; normalize(s) = softmax(s); }"
        b, small = torch.ones(4), operands()
        flagged, allowed = attn.Attention(learned), attn.Attention(learned, deterministic=False)
        recurrence = attn.Recurrence("recurrence r { dim D = 16; }")
        q, k, v = (x.requires_grad_() for x in operands(sq=1500, sk=1500, hkv=4, b=1))
        try:
            for flag, asked in (True, None), (False, True):
                torch.use_deterministic_algorithms(flag)
                module = attn.Attention(CAUSAL, deterministic=asked)
                first, *others = [torch.autograd.grad(module(q, k, v).sin().sum(), (q, k, v)) for _ in range(4)]
                self.assertTrue(all(torch.equal(x, y) for other in others for x, y in zip(first, other)))
            torch.use_deterministic_algorithms(True)
            flagged(*small, b)  # no gradients are wanted
            for x in small:
                x.requires_grad_()
            learns = b.requires_grad_()
            first, *others = [torch.autograd.grad(flagged(q, k, v, learns).sin().sum(), learns)[0] for _ in range(4)]
            self.assertTrue(all(torch.equal(first, x) for x in others))
            (want,) = torch.autograd.grad(allowed(q, k, v, learns).sin().sum(), learns)
            self.assertTrue(torch.allclose(first, want, rtol=1e-4, atol=1e-5))
            with self.assertRaisesRegex(RuntimeError, r"^r: gradients of a recurrence are .*; torch.use_deterministic_algorithms\(True\) refuses"):
                recurrence(q, k, v[..., :8])
            torch.use_deterministic_algorithms(True, warn_only=True)
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                recurrence(q, k, v[..., :8])
            self.assertRegex(str(told[0].message), "^r: gradients of a recurrence are added")
            torch.use_deterministic_algorithms(False)
            with self.assertRaisesRegex(RuntimeError, "; deterministic=True refuses"):
                attn.recurrence("recurrence r { dim D = 16; }", q, k, v[..., :8], deterministic=True)
        finally:
            torch.use_deterministic_algorithms(False)

    def test_threads(self):
        want = operands(sq=33, sk=50)
        module, failed = attn.Attention(CAUSAL), []

        def train(dtype):
            try:
                for _ in range(5):
                    given = [x.clone().to(dtype).requires_grad_() for x in want]
                    o = module(*given)
                    o.backward(o.detach())
                    self.close(given[2].grad, exact[2].grad, 3e-2)
            except BaseException as e:  # pylint: disable=broad-except
                failed.append(e)

        exact = [x.double().requires_grad_() for x in want]
        o = eager(*exact, causal)[0]
        o.backward(o.detach())
        threads = [threading.Thread(target=train, args=(d,)) for d in 2 * [torch.float32, torch.bfloat16]]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(failed, [])

    def test_second_derivatives(self):
        q, k, v = (x.requires_grad_() for x in operands())
        o = attn.attention(CAUSAL, q, k, v)
        with self.assertRaisesRegex(RuntimeError, "first derivatives only"):
            torch.autograd.grad(o.sum(), q, create_graph=True)

    def test_checkpoint(self):
        q, k, v = (x.requires_grad_() for x in operands())
        attention = attn.Attention(CAUSAL)
        checkpoint(attention, q, k, v, use_reentrant=False).sum().backward()
        again, q.grad = q.grad, None
        attention(q, k, v).sum().backward()
        self.close(again, q.grad.double())


class Mistakes(Case):
    def refused(self, error, text, *args, source=CAUSAL, **named):
        with self.assertRaisesRegex(error, text):
            attn.attention(source, *args, **named)

    def test_operands(self):
        q, k, v = operands()
        self.refused(TypeError, "^q: takes a tensor of PyTorch, not a ndarray", q.cpu().numpy(), k, v)
        self.refused(ValueError, r"^k: has 3 dimensions, expected \[B, Hkv, Sk, D\]", q, k[0], v)
        self.refused(TypeError, "^q: has elements of torch.float64", q.double(), k, v)
        self.refused(TypeError, "^v: has elements of torch.float16, and q of torch.float32", q, k, v.half())
        self.refused(TypeError, "^q: tensors of layout torch.sparse_coo", q.to_sparse(), k, v)
        self.refused(TypeError, "^k: nested tensors are not supported: .* q_start=", q, torch.nested.nested_tensor([k[0], k[1]]), v)
        with self.assertRaisesRegex(TypeError, "^bias: nested tensors are not supported"):
            attn.attention(BIASED, *operands(d=8, dv=8), torch.nested.nested_tensor([k[0, 0], k[0, 1]]), 1.5, torch.zeros(3), entry="biased")
        self.refused(ValueError, "^k: has rows of 15, and q of 16", q, k[..., :15], v)
        self.refused(ValueError, "^v: is .* heads and keys are the same", q, k, v[:, :, :6])
        self.refused(ValueError, "^k: has 3 heads, of which the 4", q, torch.randn(2, 3, 7, 16), torch.randn(2, 3, 7, 12))
        self.refused(ValueError, "^k: has a batch of 1, and q of 2", q, k[:1], v)
        self.refused(ValueError, f"^k: is on meta, and q on {DEVICE}", q, k.to("meta"), v)
        self.refused(TypeError, "^q_offset: takes an integer, not 1.5", q, k, v, q_offset=1.5)
        self.refused(ValueError, "^D: defines= says 8, and the tensors have 16", q, k, v, defines={"D": 8})
        self.refused(FileNotFoundError, "no such file: a source is", q, k, v, source="softmax")

    def test_inputs(self):
        q, k, v = operands(d=8)
        bias, table = torch.randn(4, 7), torch.randn(3).bfloat16()
        biased = {"source": BIASED, "entry": "biased"}
        self.refused(TypeError, "^bias: .* no such input", q, k, v, bias=bias)
        self.refused(TypeError, "^table: biased needs this input", q, k, v, bias, 1.0, **biased)
        self.refused(TypeError, "^bias: given twice", q, k, v, bias, 1.0, table, bias=bias, **biased)
        self.refused(TypeError, "^biased takes 3 inputs", q, k, v, bias, 1.0, table, table, **biased)
        self.refused(TypeError, "^bias: takes a tensor of PyTorch, not a list", q, k, v, [1.0], 1.0, table, **biased)
        self.refused(ValueError, "^bias: ", q, k, v, bias[:, :6], 1.0, table, **biased)
        self.refused((TypeError, ValueError), "^table: ", q, k, v, bias, 1.0, table.float(), **biased)
        self.refused(ValueError, "holds several attentions: name one with entry=", q, k, v, source=BIASED)
        self.refused(TypeError, "^cap: takes a number, not True", q, k, v, bias, True, table, **biased)
        self.refused(TypeError, "^nothing: ", q, k, v, bias, 1.0, table, emit="nothing", **biased)
        self.refused(attn.CompileError, "error: ", q, k, v, source="attention a { dim D = 8; score(q, k) = z; normalize(s) = s; }")

    def test_what_a_source_has_wrong_is_told_where_it_is_given(self):
        with self.assertRaisesRegex(attn.CompileError, "expected ';'"):
            attn.Attention("attention a { dim D = 8; score(q, k) = dot(q, k) normalize(s) = s; }")
        with self.assertRaisesRegex(TypeError, "^emit: goes to the constructor"):
            attn.Attention(CAUSAL)(*operands(), emit="lse")

    def test_inputs_in_f32_take_what_bfloat16_leaves_of_them(self):
        q, k, v = (x.bfloat16() for x in operands(d=8))
        module = attn.Attention("import std.normalization; attention a { dim D = 8; input b: f32[H] grad; score(q, k) = dot(q, k); modify(s, b2, h) = s * b[h]; normalize(s) = softmax(s); }")
        found = []
        for dtype in torch.float32, torch.bfloat16:
            b = torch.full((4,), 0.5, dtype=dtype, requires_grad=True)
            o = module(q, k, v, b)
            o.float().square().sum().backward()
            self.assertEqual(b.grad.dtype, dtype)
            found.append((o, b.grad))
        self.assertTrue(torch.equal(found[0][0], found[1][0]))
        self.assertTrue(torch.equal(found[0][1].bfloat16(), found[1][1]))

    def test_a_bool_is_true_or_false(self):
        q, k, v = operands(d=8)
        module = attn.Attention("import std.normalization; attention a { dim D = 8; input on: bool; score(q, k) = dot(q, k); modify(s) = on ? 0.0 : s; normalize(s) = softmax(s); }")
        self.close(module(q, k, v, True), v.double().mean(2, keepdim=True).repeat_interleave(2, 1).expand(-1, -1, q.shape[2], -1))
        self.assertTrue(torch.equal(module(q, k, v, False), module(q, k, v, 0)))

    def test_no_trace_is_of_nothing(self):
        """A graph of torch.jit.trace held the memory of a kernel's output as it was before the launch."""
        module, given = attn.Attention(CAUSAL), operands()
        kernel = _torch._of_tensors(module.spec, given, "q,k,v")
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            for traces in kernel, *([] if hasattr(torch.library, "custom_op") else [module]):
                with self.assertRaisesRegex(RuntimeError, "torch.jit.trace does not see"):
                    torch.jit.trace(lambda *x: traces(*x), tuple(given))  # noqa: B023
            if hasattr(torch.library, "custom_op"):
                traced = torch.jit.trace(module, tuple(given))
                for x in given, operands(sq=9):
                    self.assertTrue(torch.equal(traced(*x), module(*x)))

    def test_no_gradient_vanishes(self):
        q, k, v = operands(d=8)
        bias, table = torch.randn(4, 7), torch.randn(3).bfloat16()
        module = attn.Attention(BIASED, entry="biased")
        cap = torch.tensor(1.5)
        for x in bias, cap, table:
            x.requires_grad_()
            with self.assertRaisesRegex(RuntimeError, "requires grad, and only q, k, v and inputs that the source marks `grad`"):
                module(q, k, v, bias, cap, table)
            with torch.no_grad():
                module(q, k, v, bias, cap, table)
            x.requires_grad_(False)
        if hasattr(torch, "func"):
            plain = attn.Attention(BIASED, entry="plain")
            vmap = torch.func.vmap(plain)
            for change in torch.func.grad(lambda *x: plain(*x).sum()), vmap:
                with self.assertRaisesRegex(RuntimeError, "^q: is of torch.func"):
                    change(*[x[None] for x in (q, k, v)] if change is vmap else (q, k, v))
        with torch.autograd.forward_ad.dual_level(), self.assertRaisesRegex(RuntimeError, "^k: has a tangent"):
            module(q, torch.autograd.forward_ad.make_dual(k, k), v, bias, cap, table)


class Cache(Case):
    def test_content(self):
        with tempfile.TemporaryDirectory() as folder:
            os.environ["ATTN_CACHE"] = folder
            path, other = os.path.join(folder, "a.attn"), os.path.join(folder, "shift.attn")
            with open(path, "w") as f:
                f.write("import shift; attention a { dim D = 4; score(q, k) = dot(q, k) + shift(); normalize(s) = s; }")
            q, k, v = operands(d=4)
            results = []
            for shift in "1.0", "1.0 ", "2.0":
                with open(other, "w") as f:
                    f.write(f"fn shift() = {shift};")
                _torch._kernel.cache_clear()  # as another process
                results.append((attn.attention(path, q, k, v), sum(n.endswith(".artifact") for n in os.listdir(folder))))
            self.assertEqual([n for _, n in results], [1, 1, 2])
            self.assertTrue(torch.equal(results[0][0], results[1][0]))
            self.assertFalse(torch.allclose(results[0][0], results[2][0]))
            for name in os.listdir(folder):  # damaged ones are made anew
                if name.endswith(".artifact"):
                    with open(os.path.join(folder, name), "r+b") as f:
                        f.truncate(100)
            _torch._kernel.cache_clear()
            self.assertTrue(torch.equal(attn.attention(path, q, k, v), results[2][0]))
            os.environ["ATTN_CACHE"] = os.path.join(path, "no", "folder")  # none that can be made
            _torch._kernel.cache_clear()
            self.assertTrue(torch.equal(attn.attention(path, q, k, v), results[2][0]))
            os.environ["ATTN_CACHE"] = self.folder.name
            _torch._kernel.cache_clear()

    def test_imports(self):
        """An edit of an imported module is seen within a process, also of one that an imported one imports."""
        x = torch.ones(1, 1, 2, 4)
        with tempfile.TemporaryDirectory() as folder:
            os.mkdir(os.path.join(folder, "deep"))
            files = {"main": "import deep.mod;\nattention m { dim D = 4; score(q, k) = dot(q, k); modify(s) = f(s); normalize(s) = s; }"}
            files["deep/mod"] = "import low; // import mod\nfn f(s) = s * by();"
            main = os.path.join(folder, "main.attn")
            for by, plus in (1.0, 0.0), (2.0, 0.0), (2.0, 1.0):
                files.update({"deep/low": f"fn by() = {by};", "deep/mod": f"import low; // import mod\nfn f(s) = s * by() + {plus};"})
                for name, text in files.items():
                    with open(os.path.join(folder, name + ".attn"), "w") as f:
                        f.write(text)
                for o in attn.Attention(main)(x, x, x), attn.attention(main, x, x, x), attn.attention(files["main"], x, x, x, include=[folder]):
                    self.assertEqual(o[0, 0, 0, 0].item(), 8 * by + 2 * plus)

    def test_processes(self):
        with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as beside:
            command = os.path.join(beside, "attnc")
            with open(command, "w", encoding="utf-8") as script:
                script.write(f"""#!/bin/sh\ncase "$*" in *artifact*) echo "$*" >>{command}.made;; esac\nexec "{os.path.realpath(os.environ["ATTNC"])}" "$@"\n""")
            os.chmod(command, 0o755)
            argv, given = [sys.executable, "-c", ONE_OF_MANY, os.path.join(ROOT, "python"), CAUSAL], {**os.environ, "ATTN_CACHE": folder, "ATTNC": command}
            running = [subprocess.Popen(argv, env=given, stdout=subprocess.PIPE, text=True) for _ in range(3)]
            results = [p.communicate()[0] for p in running]
            self.assertTrue(results[0])
            self.assertEqual(len(set(results)), 1)
            self.assertEqual([n.endswith(".artifact") for n in os.listdir(folder)], [True])
            with open(command + ".made", encoding="utf-8") as made:
                self.assertEqual(len(made.readlines()), 1)  # one of them compiled

    def test_processes_of_a_kernel_that_does_not_compile(self):
        """One of them compiles, and all say what it was told."""
        with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as beside:
            command = os.path.join(beside, "attnc")
            with open(command, "w", encoding="utf-8") as script:
                refuse = f"echo once >>{command}.asked; while [ ! -e {command}.all ]; do sleep 0.1; done; echo no such kernel >&2; exit 1"
                script.write(f"""#!/bin/sh\ncase "$*" in *artifact*) {refuse};; esac\nexec "{os.path.realpath(os.environ["ATTNC"])}" "$@"\n""")
            os.chmod(command, 0o755)
            argv, given = [sys.executable, "-c", ONE_OF_MANY, os.path.join(ROOT, "python"), CAUSAL], {**os.environ, "ATTN_CACHE": folder, "ATTNC": command}
            running = [subprocess.Popen(argv, env=given, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(3)]
            while not all(p.poll() is not None or any(x.endswith(".lock") for x in opened(p.pid)) for p in running):
                time.sleep(0.1)
            open(command + ".all", "w").close()
            for p in running:
                self.assertIn("CompileError: no such kernel", p.communicate()[1])
            with open(command + ".asked", encoding="utf-8") as asked:
                self.assertEqual(len(asked.readlines()), 1)
            self.assertEqual(os.listdir(folder), [])

    def test_forked(self):  # while a kernel is made: what was forked then keeps nobody waiting
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "x")
            with _torch._alone(path):
                waiting = open(path + ".lock")
                child = os.fork()
                if not child:
                    time.sleep(60)
                    os._exit(0)
            try:
                fcntl.flock(waiting, fcntl.LOCK_EX | fcntl.LOCK_NB)
            finally:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                waiting.close()

    def test_without_torch(self):
        code = "import sys; sys.modules['torch'] = None; import attn; from attn import *; print(attn.version())"
        env = {**os.environ, "PYTHONPATH": os.path.join(ROOT, "python")}
        self.assertTrue(subprocess.check_output([sys.executable, "-c", code], env=env))
        said = subprocess.run([sys.executable, "-c", code + "; attn.Attention"], env=env, stderr=subprocess.PIPE, text=True, check=False).stderr
        self.assertRegex(said, "attn.Attention needs PyTorch")


@unittest.skipUnless(hasattr(torch.library, "custom_op"), "needs PyTorch 2.4")
class Operator(Case):
    def test_opcheck(self):
        q, k, v = operands(d=8)
        module = attn.Attention(BIASED, entry="biased", emit="lse")
        tensors = [q, k, v, torch.randn(4, 7), torch.randn(3).bfloat16()]
        torch.library.opcheck(_torch._operator, (tensors, [1.5], "q,k,v,bias,table,cap", module.spec, None))

    def test_watched(self):
        """Who looks sees the operators, who does not gets the same without them."""
        module, tensors, seen, made = attn.Attention(CAUSAL), operands(), set(), []

        class Mode(TorchDispatchMode):
            def __torch_dispatch__(self, function, types, args=(), kwargs=None):
                seen.add(str(function))
                return function(*args, **(kwargs or {}))

        def step():
            given = [x.clone().requires_grad_() for x in tensors]
            module(*given).square().sum().backward()
            made.append([module(*tensors), *[x.grad for x in given]])

        step()
        with Mode():
            step()
        with torch.autograd.profiler.profile() as profile:
            step()
        names = "attention", "forward", "backward"
        self.assertLessEqual({f"attn.{n}.default" for n in names}, seen)
        self.assertLessEqual({f"attn::{n}" for n in names}, {e.name for e in profile.function_events})
        for other in made[1:]:
            self.assertTrue(all(map(torch.equal, made[0], other)))

    def test_compile(self):
        module = attn.Attention(CAUSAL)
        compiled = torch.compile(lambda q, k, v: module(q * 2, k, v) + 1, fullgraph=True, backend="aot_eager", dynamic=True)
        for sq in 5, 6, 9:
            q, k, v = operands(sq=sq, sk=2 * sq)
            self.assertTrue(torch.equal(compiled(q, k, v), module(q * 2, k, v) + 1))

    def test_gradients_check(self):
        sink = attn.Attention(os.path.join(ROOT, "stdlib/attention_sink.attn"))
        tensors = [x.requires_grad_() for x in [*operands(sk=40), torch.randn(4)]]
        torch.library.opcheck(_torch._forward_operator, (tensors, [], "q,k,v,sink", sink.spec, None))

    def test_gradients_compile(self):
        module = attn.Attention(CAUSAL, emit="lse")

        def loss(q, k, v):
            o, lse = module(q * 2, k, v)
            return (o * o).sum() + lse.sum()

        compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
        for sq in 5, 6, 9:
            x = [x.requires_grad_() for x in operands(sq=sq, sk=2 * sq)]
            for one, other in zip(torch.autograd.grad(compiled(*x), x), torch.autograd.grad(loss(*x), x)):
                self.close(one, other.double())

    def test_export(self):
        q, k, v = operands()
        module = attn.Attention(CAUSAL)
        program = torch.export.export(module, (q, k, v))
        self.assertTrue(torch.equal(program.module()(q, k, v), module(q, k, v)))


if __name__ == "__main__":
    unittest.main()
