"""attn.Attention on a GPU of NVIDIA: streams, graphs, memory, torch.compile with PyTorch's own compiler, more than one device.

    ATTNRT_LIBRARY=build/libattnrt.so ATTNC=build/attnc python3 -m unittest tests/python/test_torch_gpu.py
"""

import os
import sys
import threading
import unittest

import torch

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from test_torch import CAUSAL, ROOT, Case, attn, causal, eager  # noqa: E402


def softcap(s):
    return causal(50 * torch.tanh(s / 50))


def window(s):
    sq, sk = s.shape[2:]
    q, k = torch.arange(sq, device=s.device)[:, None] + max(sk - sq, 0), torch.arange(sk, device=s.device)
    return s.masked_fill((k > q) | (q - k >= 64), float("-inf"))


def operands(b=2, h=4, hkv=2, sq=257, sk=300, d=64, dv=64, dtype=torch.bfloat16, device="cuda"):
    torch.manual_seed(1)
    shapes = (b, h, sq, d), (b, hkv, sk, d), (b, hkv, sk, dv)
    return [torch.randn(s, device=device, dtype=dtype) for s in shapes]


TOLERANCES = {torch.float32: 1e-4, torch.float16: 4e-3, torch.bfloat16: 2.4e-2}


@unittest.skipUnless(torch.cuda.is_available(), "needs a GPU")
class Gpu(Case):
    def setUp(self):
        torch.set_default_device("cuda")
        self.addCleanup(torch.set_default_device, None)

    def agree(self, module, change, given, inputs=(), message=None):
        """Values and gradients, against float64."""
        given = [x.detach().requires_grad_() for x in given]
        exact = [x.detach().double().requires_grad_() for x in given]
        o, want = module(*given, *inputs), eager(*exact, change)[0]
        come = torch.randn_like(o)
        with self.subTest(message):
            self.close(o, want, TOLERANCES[o.dtype])
            for name, x, y in zip("qkv", torch.autograd.grad(o, given, come), torch.autograd.grad(want, exact, come.double())):
                self.assertEqual((name, x.stride() == given["qkv".index(name)].stride(), x.dtype), (name, True, o.dtype))
                self.close(x, y, TOLERANCES[o.dtype])

    def test_variants(self):
        sliding = attn.Attention(os.path.join(ROOT, "stdlib/sliding_window.attn"), defines={"WINDOW": 64})
        capped = attn.Attention(os.path.join(ROOT, "stdlib/softcap.attn"))
        for dtype in torch.bfloat16, torch.float16, torch.float32:
            self.agree(attn.Attention(CAUSAL), causal, operands(dtype=dtype), message=f"causal {dtype}")
            self.agree(sliding, window, operands(dtype=dtype, d=128, dv=128), message=f"window {dtype}")
        self.agree(capped, softcap, operands(d=128, dv=128), message="soft cap")
        self.agree(attn.Attention(CAUSAL), causal, operands(d=128, dv=64), message="Dv")
        self.agree(attn.Attention(CAUSAL), causal, operands(sq=1, sk=3), message="one query")

    def test_where_rows_lie(self):
        module = attn.Attention(CAUSAL)
        packed = torch.randn(2, 130, 3, 4, 64, dtype=torch.bfloat16)
        q, k, v = packed.permute(2, 0, 3, 1, 4)
        module(q, k, v)  # what is loaded once is loaded
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        o = module(q, k, v)
        made = torch.cuda.max_memory_allocated() - before
        self.assertLess(made, 2 * o.numel() * o.element_size())  # o, and a small workspace
        self.close(o, eager(q, k, v, causal)[0], 1.2e-2)
        expanded = [x[:, :1].expand(2, 4, 130, 64) for x in (k, v)]
        self.close(module(q, *expanded), eager(q, *expanded, causal)[0], 1.2e-2)
        odd = torch.randn(2 * 4 * 130 * 20 + 1, dtype=torch.float16)[1:].view(2, 4, 130, 20)  # neither address nor rows at 16 bytes
        self.agree(module, causal, [odd, odd + 1, odd - 1][:1] + [x.clone() for x in (odd, odd)], message="odd")
        given = [x.detach().requires_grad_() for x in operands()]
        exact = [x.detach().double().requires_grad_() for x in given]
        module(*given).sum().backward()  # what comes is expanded
        eager(*exact, causal)[0].sum().backward()
        for x, y in zip(given, exact):
            self.close(x.grad, y.grad, 2.4e-2)

    def test_graph(self):
        module = attn.Attention(CAUSAL)
        given = [x.requires_grad_() for x in operands(d=128, dv=128)]
        come = torch.randn_like(given[0])

        def step():
            for x in given:
                x.grad = None
            o = module(*given)
            o.backward(come)
            return o

        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            o = step()
        grads = [x.grad for x in given]
        with torch.no_grad():
            for x in given:
                x.copy_(torch.randn_like(x))
        graph.replay()
        torch.cuda.synchronize()
        exact = [x.detach().double().requires_grad_() for x in given]
        want = eager(*exact, causal)[0]
        self.close(o, want, 1.2e-2)
        for x, y in zip(grads, torch.autograd.grad(want, exact, come.double())):
            self.close(x, y, 2.4e-2)

    def compiles(self, **options):
        module = attn.Attention(CAUSAL)

        def loss(q, k, v):
            return (module(q * 2, k, v).float() ** 2).sum()

        compiled = torch.compile(loss, fullgraph=True, **options)
        given = [x.requires_grad_() for x in operands()]
        for _ in range(3):
            for x, y in zip(torch.autograd.grad(compiled(*given), given), torch.autograd.grad(loss(*given), given)):
                self.close(x, y.double(), 1e-2)

    def test_compile(self):
        self.compiles(backend="aot_eager")
        self.compiles()

    def test_compile_graphs(self):
        self.compiles(mode="reduce-overhead")

    def test_autocast(self):
        given = [x.requires_grad_() for x in operands(dtype=torch.float32)]
        with torch.autocast("cuda", torch.bfloat16):
            o = attn.attention(CAUSAL, *given)
        self.assertEqual(o.dtype, torch.bfloat16)
        o.sum().backward()
        self.assertEqual(given[0].grad.dtype, torch.float32)

    def test_opcheck(self):
        from attn import _torch

        tensors = [x.requires_grad_() for x in operands(dtype=torch.float32)]
        torch.library.opcheck(_torch._forward_operator, (tensors, [], "q,k,v", attn.Attention(CAUSAL).spec, None))

    def test_threads_and_streams(self):
        module, failed = attn.Attention(CAUSAL), []
        given = operands()
        want = module(*given)

        def work():
            try:
                with torch.cuda.stream(torch.cuda.Stream()):
                    mine = [x.clone().requires_grad_() for x in given]
                    for _ in range(20):
                        o = module(*mine)
                        o.sum().backward()
                    torch.cuda.current_stream().synchronize()
                    assert torch.equal(o, want)
            except BaseException as e:  # pylint: disable=broad-except
                failed.append(e)

        torch.cuda.synchronize()
        threads = [threading.Thread(target=work) for _ in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(failed, [])

    def test_two_devices(self):
        if torch.cuda.device_count() < 2:
            self.skipTest("needs two GPUs")
        module = attn.Attention(CAUSAL)
        for device in "cuda:1", "cuda:0", "cuda:1":
            given = [x.requires_grad_() for x in operands(device=device)]
            o = module(*given)
            o.sum().backward()
            with torch.device(device):
                self.close(o, eager(*given, causal)[0], 1.2e-2)

    def test_empty(self):
        for sizes in {"b": 0}, {"sq": 0}, {"sk": 0}:
            given = [x.requires_grad_() for x in operands(**sizes)]
            o = attn.attention(CAUSAL, *given)
            o.sum().backward()
            self.assertTrue((o == 0).all())
            self.assertTrue(all((x.grad == 0).all() for x in given))

    def test_beyond_31_bits(self):
        free, _ = torch.cuda.mem_get_info()
        if free < 24e9:
            self.skipTest("needs 24 GB")
        big = torch.randn(9, 16, 2**17, 128, dtype=torch.bfloat16)  # 2.4e9 elements
        q = big[:, :, :2]
        o = attn.attention(os.path.join(ROOT, "stdlib/softmax.attn"), q, big, big)
        for b, h in (0, 0), (8, 15), (7, 3):
            at = slice(b, b + 1), slice(h, h + 1)
            self.close(o[at], eager(q[at], big[at], big[at])[0], 1.2e-2)


if __name__ == "__main__":
    unittest.main()
