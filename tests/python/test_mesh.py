"""Attention of DTensors, and beside FSDP and DDP, by processes of this machine over gloo. Needs a PyTorch that has them (2.6), cc, libattnrt.so
and attnc.

    ATTNRT_LIBRARY=build/libattnrt.so ATTNC=build/attnc build/tools/pytorch/python3 -m unittest tests/python/test_mesh.py
"""

import os
import sys
import unittest
import unittest.mock

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "..", "python")]

import attn  # noqa: E402
import test_spread  # noqa: E402
from test_spread import Processes, alone, cases, close, library, raises, run  # noqa: E402


def compare(mesh, name, placements, H=4, Hkv=2, S=150, of=None):
    """of: other placements of operands and inputs, by name; those of q if they are not named, of inputs: Replicate."""
    source, inputs, _, emits, _ = cases(S)[name]
    whole, gw, weights, expected = alone(name, S, H, Hkv)
    of = of or {}

    def placed(x, n):
        by = of.get(n, placements if n in "qkv" else [Replicate()] * mesh.ndim)
        return distribute_tensor(x.detach(), mesh, by).requires_grad_(x.requires_grad) if isinstance(x, torch.Tensor) else x

    own = [placed(x, n) for x, n in zip(whole, "qkv")]
    gi = {n: placed(x, n) for n, x in gw.items()}
    at = [distribute_tensor(weights[d], mesh, placements) for d in (3, 4)]
    found = run(attn.Attention(source, emit=emits), own, gi, emits, lambda x: at[x.dim() - 3])
    name = f"{name} {placements} {of} heads {H}/{Hkv}"
    for x, wanted in zip(found, expected):
        assert list(x.placements) == list(placements) and x.shape == wanted.shape, (name, x.placements)
        close(x.full_tensor(), wanted, f"{name}: output")
    for x, wanted, n in [*zip(own, whole, "qkv"), *[(gi[n], x, n) for n, x in gw.items() if isinstance(x, torch.Tensor)]]:
        if wanted.grad is not None:
            close(x.grad.full_tensor(), wanted.grad, f"{name}: d{n}")


def work_of_dtensors(rank, ranks, group):
    line, square = init_device_mesh("cpu", (4,)), init_device_mesh("cpu", (2, 2))
    batch, heads, sequence, all_of_it = Shard(0), Shard(1), Shard(2), Replicate()
    compare(square, "learned", [batch, all_of_it])
    compare(square, "document", [batch, sequence], of={"doc": [batch, all_of_it]})
    compare(square, "sink", [heads, sequence])
    compare(square, "rows", [batch, heads])
    compare(square, "rows", [batch, sequence])
    compare(square, "causal", [sequence, sequence])  # heads in a row, keys between the rows
    compare(line, "causal", [heads], of={"k": [sequence], "v": [all_of_it]})  # ranks share heads of k, which come from all positions
    compare(line, "sigmoid", [sequence], of={"k": [all_of_it]})
    mesh = square
    q, k, v = (distribute_tensor(x, mesh, [batch, sequence]) for x in alone("causal", 150, 4, 2)[0])
    partial = DTensor.from_local(q.redistribute(mesh, [batch, all_of_it]).to_local() / 2, mesh, [batch, Partial()])
    module = attn.Attention(library("causal"))
    close(module(partial, k, v).full_tensor(), module(q, k, v).full_tensor(), "partial")
    raises(ValueError, "q: has the placement", lambda: module(q.redistribute(mesh, [batch, Shard(3)]), k, v))
    odd = [distribute_tensor(torch.zeros(2, n, 8, 16), mesh, [heads, batch]) for n in (3, 1, 1)]
    raises(ValueError, "q: its 3 heads", lambda: module(*odd))
    by_head = [x.redistribute(mesh, [heads, batch]) for x in (q, k, v)]
    raises(ValueError, "the formulas read h", lambda: attn.attention(library("alibi"), *by_head))
    raises(TypeError, "say by their placements", lambda: module(q, k, v, spread=attn.Spread(group, 150)))
    raises(TypeError, "k: is no DTensor", lambda: module(q, k.full_tensor(), v))
    raises(TypeError, "method and plan go with", lambda: module(*by_head, method="keys"))


def work_of_recurrences(rank, ranks, group):
    """Batch, heads and sequence of a recurrence by the placements of DTensors; the state is whole along the sequence."""
    S, B, H, D = 70, 2, 4, 16
    q, k, v, decay, state0, do, dstate = test_spread.drawn(2, (B, H, S, D), (B, 2, S, D), (B, 2, S, D), (B, H, S), (B, H, D, D), (B, H, S, D), (B, H, D, D))
    given = {"q": q, "k": k, "v": v, "log_decay": -0.1 * decay.abs(), "beta": decay.sigmoid(), "state0": state0}
    module = attn.Recurrence(library("gated_deltanet"), emit="state", defines={"D": D, "Dv": D})
    whole = dict(zip(given, test_spread.leaves(given.values())))
    expected = module(**whole)
    torch.autograd.backward(expected, [do, dstate])
    mesh, batch, heads, sequence, all_of_it = init_device_mesh("cpu", (2, 2)), Shard(0), Shard(1), Shard(2), Replicate()
    for placements in [batch, sequence], [heads, sequence], [sequence, heads], [batch, heads], [all_of_it, sequence]:
        states = [all_of_it if p == sequence else p for p in placements]
        lies = {n: states if n == "state0" else placements for n in whole}
        lies["beta"] = [all_of_it, all_of_it]  # and is moved
        own = {n: distribute_tensor(x.detach(), mesh, lies[n]).requires_grad_() for n, x in whole.items()}
        found = module(**own)
        torch.autograd.backward(found, [distribute_tensor(x, mesh, p) for x, p in ((do, placements), (dstate, states))])
        for x, wanted, p, name in zip(found, expected, (placements, states), ("o", "state")):
            assert list(x.placements) == list(p) and x.shape == wanted.shape, (name, x.placements)
            close(x.full_tensor(), wanted, f"recurrence {placements}: {name}")
        for n, x in own.items():
            close(x.grad.full_tensor(), whole[n].grad, f"recurrence {placements}: d{n}")
    raises(ValueError, "its sequence is cut by 2 dimensions", lambda: module(**{n: distribute_tensor(x.detach(), mesh, [sequence] * 2 if n in "qkv" else [all_of_it] * 2) for n, x in whole.items()}))
    by_head = {n: distribute_tensor(x.detach(), init_device_mesh("cpu", (4,)), [heads]) for n, x in list(whole.items())[:5]}
    raises(ValueError, "k: its 2 heads are not cut evenly by 4 ranks", lambda: module(**by_head))
    reads = "recurrence reads { dim D = 16; decay(b, h, t) = exp(-0.01 * f32(h)); }"
    raises(ValueError, "the formulas read h or H", lambda: attn.recurrence(reads, *[distribute_tensor(q, mesh, [heads, all_of_it])] * 3))


def compiled(backend):
    """As `run` of test_spread does it, in one graph where the call is over ranks."""

    def call(module, tensors, inputs, emits, weigh, **spread):
        def attended(tensors, inputs):
            found = module(*[x * 1 for x in tensors], **inputs, **spread)
            return tuple(x + 0 for x in found) if isinstance(found, tuple) else (found + 0,)

        torch._dynamo.reset()
        found = (torch.compile(attended, backend=backend, fullgraph=True) if spread else attended)(tensors, inputs)
        torch.autograd.backward(found, [weigh(x) for x in found])
        return [x.detach() for x in found]

    return call


def work_of_compiled(rank, ranks, group):
    """torch.compile(fullgraph=True) takes a call with spread=, forward and backward, by every method; a new Spread makes no new graph each time."""
    with unittest.mock.patch.object(test_spread, "run", compiled("aot_eager")):
        for name, method in (("learned", "keys"), ("sink", "heads")):
            test_spread.compare(group, name, 150, "zigzag", method=method)
        test_spread.compare(group, "causal", 150, H=1, Hkv=1, method="heads")  # a rank without a head
        test_spread.compare(group, "alibi", 150, sp=attn.Spread(group, 150, "zigzag", buffer=0), method="keys")  # in chunks
    q, k, v = (torch.randn(1, 2, 100, 16, generator=torch.Generator().manual_seed(1)) for _ in "qkv")
    graphs = []

    def counting(graph, inputs):
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    module = attn.Attention(library("causal"))
    call = torch.compile(lambda *x, spread: module(*x, spread=spread), backend=counting, fullgraph=True)
    for seed in range(5):
        order = torch.randperm(5, generator=torch.Generator().manual_seed(seed))[:, None] * 20 + torch.arange(20)
        sp = attn.Spread(group, 100, order.flatten())
        close(sp.unshard(call(*[sp.shard(x, 2) for x in (q, k, v)], spread=sp), 2), module(q, k, v), "a new order")
    assert len(graphs) <= 2, len(graphs)
    even = [x[:, :, rank * 50 : rank * 50 + 50] for x in (q, k, v)]
    of_mesh = attn.Attention(library("causal"), mesh=group)
    close(torch.compile(lambda *x: of_mesh(*x), backend="eager", fullgraph=True)(*even), of_mesh(*even), "of a mesh")
    rows, cache = attn.Spread(group, 100, "replicated"), attn.Spread(group, 100, "striped:16")
    own = [cache.shard(x, 2) for x in (k, v)]
    call = torch.compile(lambda q, k, v: module(q, k, v, spread=rows, kv_spread=cache), backend="eager", fullgraph=True)
    close(call(q, *own), module(q, k, v), "queries")
    raises(ValueError, "rank 1: q: has 1 rows", lambda: call(q[:, :, :1] if rank == 1 else q, *own))


class Layer(torch.nn.Module):
    """An attention between two products."""

    def __init__(self, mesh):
        super().__init__()
        torch.manual_seed(3)
        self.into, self.out = torch.nn.Linear(32, 3 * 32), torch.nn.Linear(32, 32)
        self.sink = torch.nn.Parameter(torch.zeros(2))
        self.attention = attn.Attention(SINK, mesh=mesh)

    def forward(self, x, **spread):
        q, k, v = (y.unflatten(-1, (2, 16)).transpose(1, 2) for y in self.into(x).chunk(3, -1))
        return self.out(self.attention(q, k, v, sink=self.sink, **spread).transpose(1, 2).flatten(2))


SINK = """
import std.mask;
attention learned_sink {
    dim D = 16;
    input sink: f32[H] grad;
    score(q, k) = dot(q, k) * rsqrt(D);
    mask(b, h, q_idx, kv_idx) = causal(q_idx, kv_idx);
    normalize(s, b, h) {
        let m = max(rowmax(s), sink[h]);
        let e = exp(s - m);
        return e / (rowsum(e) + exp(sink[h] - m));
    }
}
"""


def stream_of_cpus():
    stream = torch.cpu.Stream  # of which FSDP2 asks more than PyTorch 2.6 has on CPUs, where all is in order
    stream.record_event, stream.wait_event = lambda self, event=None: torch.cpu.Event(), lambda self, event: None


def work_of_fsdp(rank, ranks, group):
    """Two ranks have the batch, two the sequence; FSDP2 and DDP add up the gradients of both."""
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    stream_of_cpus()
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "cp"))
    x = torch.randn(2, 64, 32, generator=torch.Generator().manual_seed(1))
    alone = Layer(None)
    alone(x).square().mean().backward()
    own = x.chunk(2, 0)[mesh.get_local_rank("dp")].chunk(2, 1)[mesh.get_local_rank("cp")]
    # A mean over equal shares is the mean of all. FSDP2 of PyTorch 2.6 adds up over gloo, where over NCCL it takes the mean.
    for wrap, left, added in (
        (lambda m: fully_shard(m, mesh=init_device_mesh("cpu", (4,))), None, ranks),
        (lambda m: fully_shard(m, mesh=mesh["dp"]), mesh.get_group("cp"), ranks),  # where all parts of a sequence have all parameters
        (DistributedDataParallel, None, 1),
    ):
        model = wrap(Layer(mesh["cp"]))
        model(own).square().mean().backward()
        for (name, p), (_, wanted) in zip(model.named_parameters(), alone.named_parameters()):
            grad = p.grad.full_tensor() if isinstance(p.grad, DTensor) else p.grad
            if left:
                dist.all_reduce(grad, group=left)
            close(grad / added, wanted.grad, name)


def work_of_the_example(rank, ranks, group):
    """python/examples/train.py with FSDP2, over all processes or over the other dimension, has the losses of one process."""
    sys.path.insert(0, os.path.join(HERE, "..", "..", "python", "examples"))
    import train

    stream_of_cpus()
    with unittest.mock.patch.object(train.dist, "is_initialized", lambda: False):
        alone = train.train(5, "cpu")
    for over in "all", "batch":
        spread = train.train(5, "cpu", 2, over)
        assert max(abs(a - b) for a, b in zip(alone, spread)) < 1e-3 and alone[-1] < alone[0] / 2, (over, alone, spread)


class Mesh(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.processes = Processes(4)
        cls.addClassCleanup(cls.processes.end)

    def test_dtensors(self):
        self.processes.do(self, work_of_dtensors, 4)

    def test_recurrences(self):
        self.processes.do(self, work_of_recurrences, 4)

    def test_compiled(self):
        self.processes.do(self, work_of_compiled, 2)

    def test_the_example(self):
        self.processes.do(self, work_of_the_example, 4)

    def test_beside_fsdp_and_ddp(self):
        self.processes.do(self, work_of_fsdp, 4)


if __name__ == "__main__":
    unittest.main()
