"""attn.Recurrence and attn.recurrence in PyTorch, on the CPU or on ATTN_DEVICE, against the formula in float64.

    ATTNRT_LIBRARY=build/libattnrt.so ATTNC=build/attnc python3 -m unittest tests/python/test_recurrence.py
"""

import os
import subprocess
import sys
import unittest

import torch
from torch.utils.checkpoint import checkpoint

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from test_torch import DEVICE, ROOT, Case, attn  # noqa: E402

TOLERANCES = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 2.4e-2}


def library(name):
    return os.path.join(ROOT, "stdlib", name + ".attn")


def linear(q, k, v, state):
    """By positions: the state, and what a query reads of it."""
    heads, outs = max(x.shape[1] for x in (q, k, v)), []
    q, k, v = (x.repeat_interleave(heads // x.shape[1], 1) for x in (q, k, v))
    for t in range(q.shape[2]):
        state = state + k[:, :, t, :, None] * v[:, :, t, None, :]
        outs.append(((q[:, :, t] * q.shape[3] ** -0.5)[:, :, None] @ state)[:, :, 0])
    return torch.stack(outs, 2), state


def gla(q, k, v, log_decay, state):
    outs = []
    for t in range(q.shape[2]):
        state = state * log_decay[:, :, t, :, None].exp() + k[:, :, t, :, None] * v[:, :, t, None, :]
        outs.append(((q[:, :, t] * q.shape[3] ** -0.5)[:, :, None] @ state)[:, :, 0])
    return torch.stack(outs, 2), state


def operands(b=2, h=4, hk=4, s=70, d=32, dv=16, dtype=torch.float32):
    torch.manual_seed(2)
    given = [torch.randn(b, n, s, m, dtype=dtype) for n, m in ((h, d), (hk, d), (hk, dv))]
    return given, torch.rand(b, h, s, d) * -0.5, torch.randn(b, h, d, dv)


class Recurrences(Case):
    def test_values(self):
        for dtype, tolerance in TOLERANCES.items():
            for sizes in {}, {"s": 1}, {"hk": 2}, {"s": 130, "d": 64, "dv": 64}:
                given, _, state0 = operands(dtype=dtype, **sizes)
                o, state = attn.recurrence(library("linear_attention"), *given, state0=state0, emit="state", defines={"Dv": given[2].shape[3]})
                want, after = linear(*(x.double() for x in given), state0.double())
                self.assertEqual((o.dtype, state.dtype), (dtype, torch.float32))
                self.close(o, want, tolerance)
                self.close(state, after, tolerance)
        given, log_decay, state0 = operands()
        module = attn.Recurrence(library("gla"))
        self.close(module(*given, log_decay), gla(*(x.double() for x in (*given, log_decay)), torch.zeros_like(state0).double())[0])
        half = log_decay.bfloat16()
        self.assertTrue(torch.equal(module(*given, half), module(*given, half.float())))
        self.assertIn("gla.attn", repr(module))

    def test_parts(self):
        """A sequence in two parts, as a prompt and what follows; views."""
        given, log_decay, _ = operands()
        module = attn.Recurrence(library("gla"), emit="state")
        o, state = module(*given, log_decay)
        first, between = module(*(x[:, :, :33] for x in (*given, log_decay)))
        rest, last = module(*(x[:, :, 33:] for x in (*given, log_decay)), state0=between)
        self.close(torch.cat([first, rest], 2), o.double())
        self.close(last, state.double())
        by_position = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in given]
        self.assertTrue(torch.equal(module(*by_position, log_decay)[0], o))

    def test_empty(self):
        for sizes in {"b": 0}, {"s": 0}:
            given, log_decay, state0 = operands(**sizes)
            o, state = attn.recurrence(library("gla"), *given, log_decay, state0=state0, emit=["state"])
            self.assertEqual(o.shape, (*given[0].shape[:3], given[2].shape[3]))
            self.assertTrue(torch.equal(state, state0))

    def test_gradients(self):
        module = attn.Recurrence(library("gla"), emit="state")
        given, log_decay, state0 = operands()
        learned = [x.requires_grad_() for x in (*given, state0)]
        try:
            outs = module(*given, log_decay, state0=state0)
        except attn.CompileError as e:  # no gradient vanishes silently
            self.assertRegex(str(e), "no kernel|backward")
            return
        come = [torch.randn_like(x) for x in outs]
        exact = [x.detach().double().requires_grad_() for x in learned]
        want = torch.autograd.grad(gla(*exact[:3], log_decay.double(), exact[3]), exact, [x.double() for x in come])
        found = torch.autograd.grad(outs, learned, come)
        for x, y in zip(found, want):
            self.close(x, y, 2e-5)
        again = torch.autograd.grad(checkpoint(module, *given, log_decay, state0=state0, use_reentrant=False), learned, come)
        for x, y in zip(again, found):
            self.close(x, y.double())
        (alone,) = torch.autograd.grad(module(*given, log_decay)[1].sum(), learned[2:3])  # nothing comes for o, and there is no state0
        self.assertGreater(alone.norm().item(), 0)
        with self.assertRaisesRegex(RuntimeError, "first derivatives only"):
            torch.autograd.grad(module(*given, log_decay)[0].sum(), learned[0], create_graph=True)

    def test_training(self):
        example = os.path.join(ROOT, "python/examples/recurrent.py")
        done = subprocess.run([sys.executable, example, "--steps=3"], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual([line.split(":")[0] for line in done.stdout.splitlines()], ["mamba2", "gated_deltanet"])

    def test_spread_is_a_spread(self):
        x = torch.zeros(1, 1, 2, 8)
        with self.assertRaisesRegex(TypeError, "spread: takes an attn.Spread, not a int"):
            attn.recurrence("recurrence r { dim D = 8, Dv = 8; }", x, x, x, spread=3)

    def test_mistakes(self):
        (q, k, v), log_decay, state0 = operands()
        for error, text, args, named in [
            (TypeError, "^v: takes a tensor", (q, k, v.tolist(), log_decay), {}),
            (TypeError, "^log_decay: gla needs this input", (q, k, v), {}),
            (TypeError, "^k: has elements of torch.float16", (q, k.half(), v, log_decay), {}),
            (ValueError, "^v: has a batch of 2 and 69 positions", (q, k, v[:, :, :69], log_decay), {}),
            (ValueError, "^k: has rows of 31", (q, k[..., :31], v, log_decay), {}),
            (ValueError, "^k: has 3 heads", (q, k[:, :3], v, log_decay), {}),
            (ValueError, "^state0: has 3 dimensions", (q, k, v, log_decay), {"state0": state0[0]}),
            (TypeError, "^state0: has elements of torch.bfloat16", (q, k, v, log_decay), {"state0": state0.bfloat16()}),
            (ValueError, "^state0: ", (q, k, v, log_decay), {"state0": state0[:, :3]}),
            (ValueError, "^log_decay: ", (q, k, v, log_decay[:, :, :3]), {}),
        ]:
            with self.assertRaisesRegex(error, text):
                attn.recurrence(library("gla"), *args, **named)
        with self.assertRaisesRegex(ValueError, "holds no recurrence: attn.Attention is for"):
            attn.recurrence(library("causal"), q, k, v)
        with self.assertRaisesRegex(ValueError, "holds no attention: attn.Recurrence is for"):
            attn.attention(library("gla"), q, k, v)

    @unittest.skipUnless(hasattr(torch.library, "custom_op"), "needs PyTorch 2.4")
    def test_operator(self):
        from attn import _recurrence

        (q, k, v), log_decay, state0 = operands(s=20)
        module = attn.Recurrence(library("gla"), emit="state")
        torch.library.opcheck(_recurrence._operator, ([q, k, v, log_decay, state0], [], "q,k,v,log_decay,state0", module.spec))
        compiled = torch.compile(lambda *x: module(x[0] * 2, *x[1:])[0], fullgraph=True, backend="aot_eager")
        for s in 20, 5, 9:
            given = [x[:, :, :s] for x in (q, k, v, log_decay)]
            self.close(compiled(*given), module(given[0] * 2, *given[1:])[0].double())


if DEVICE != "cpu":
    torch.set_default_device(DEVICE)
if __name__ == "__main__":
    unittest.main()
