"""attn.Spread: sequences over ranks, by processes of this machine over gloo, against one process. Needs PyTorch, cc, libattnrt.so and attnc.

    ATTNRT_LIBRARY=build/libattnrt.so ATTNC=build/attnc python3 -m unittest tests/python/test_spread.py
"""

import datetime
import multiprocessing
import os
import sys
import tempfile
import traceback
import unittest

import torch
import torch.distributed as dist

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "python"))

import attn  # noqa: E402
from attn import _spread  # noqa: E402

LEARNED = """
import std.mask;
import std.normalization;
attention learned {
    dim D = 16;
    input slope: f32[H] grad;
    input bias: f32[B, H, Sk] grad;
    input cap: f32;
    score(q, k) = dot(q, k) * rsqrt(D);
    modify(s, b, h, i, j) = cap * tanh(s / cap) - slope[h] * f32(i - j) + bias[b, h, j];
    mask(b, h, i, j) = causal(i, j);
    normalize(s) { emit top = rowmax(s); return softmax(s); }
}
"""
PLAIN = "attention plain { dim D = 8; score(q, k) = dot(q, k); modify(s, b, h, i, j) = s / Sk; normalize(s) = s; }"


def library(name):
    return os.path.join(ROOT, "stdlib", name + ".attn")


def drawn(seed, *shapes):
    r = torch.Generator().manual_seed(seed)
    return [torch.randn(*s, generator=r, dtype=torch.float32) for s in shapes]


def cases(S):
    """A source, the inputs, which of them lie as k does, and the emits."""
    doc = (torch.arange(S) // 37).to(torch.int32)[None].expand(2, S).contiguous()
    slope, bias = drawn(5, (4,), (2, 4, S))
    yield library("causal"), {}, (), ()
    yield library("softmax"), {}, (), ("lse",)
    yield library("sliding_window"), {}, (), ()
    yield library("alibi"), {}, (), ()
    yield library("attention_sink"), {"sink": drawn(6, (4,))[0]}, (), ()
    yield library("document"), {"doc": doc}, ("doc",), ()
    yield library("sigmoid"), {}, (), ()
    yield library("retention"), {}, (), ()
    yield PLAIN, {}, (), ()
    yield LEARNED, {"slope": slope.abs() * 0.1, "bias": bias, "cap": 15.0}, ("bias",), ("top",)


def close(x, wanted, what):
    error = (x.double() - wanted.double()).norm() / max(wanted.double().norm(), 1e-30)
    assert torch.isfinite(x).all() and error < 2e-5, f"{what}: relative error {error:.1e}"


def leaves(tensors):
    return [x.detach().clone().requires_grad_(x.is_floating_point()) if isinstance(x, torch.Tensor) else x for x in tensors]


def run(module, tensors, inputs, emits, weigh, **spread):
    found = module(*tensors, **inputs, **spread)
    found = found if isinstance(found, tuple) else (found,)
    sum((weigh(x) * x).sum() for x in found if x.numel()).backward() if any(x.numel() for x in found) else found[0].sum().backward()
    return [x.detach() for x in found]


def compare(rank, ranks, source, inputs, along, emits, S, order, lengths=None):
    q, k, v = drawn(1, (2, 4, S, 16), (2, 2, S, 16), (2, 2, S, 16))
    if source is PLAIN:
        q, k = q[..., :8], k[..., :8]
    whole = leaves((q, k, v))
    gw = {n: leaves([x])[0] for n, x in inputs.items()}
    module = attn.Attention(source, emit=emits)
    weights = {d: drawn(9, s)[0] for d, s in ((4, (2, 4, S, 16)), (3, (2, 4, S)))}
    expected = run(module, whole, gw, emits, lambda x: weights[x.dim()])

    sp = attn.Spread(None, S, order, lengths)
    assert sp.positions.numel() == sp.rows
    own = leaves([sp.shard(x, 2) for x in (q, k, v)])
    gi = {n: leaves([sp.shard(x, x.dim() - 1) if n in along else x])[0] for n, x in inputs.items()}
    found = run(module, own, gi, emits, lambda x: sp.shard(weights[x.dim()], 2), spread=sp)
    name = f"{os.path.basename(source) if os.path.exists(source) else source.split()[1]} S {S} {order} {lengths}"
    for x, wanted in zip(found, expected):
        close(sp.unshard(x, 2), wanted, f"{name}: output")
    for x, wanted, n in zip(own, whole, "qkv"):
        close(sp.unshard(x.grad, 2), wanted.grad, f"{name}: d{n}")
    for n, x in gw.items():
        if isinstance(x, torch.Tensor) and x.grad is not None:
            share = gi[n].grad if gi[n].grad is not None else torch.zeros_like(gi[n])
            if n in along:
                share = sp.unshard(share, x.dim() - 1)
            else:
                dist.all_reduce(share)
            close(share, x.grad, f"{name}: d{n}")
    return sp


def work_of_variants(rank, ranks):
    _spread.LEAST_BYTES = 1 << (10 if ranks == 2 else 24)  # heads apart, and together
    for i, (source, inputs, along, emits) in enumerate(cases(150)):
        if ranks > 2 and i % 2 != ranks % 2:
            continue
        compare(rank, ranks, source, inputs, along, emits, 150, ("zigzag", "contiguous")[i // 2 % 2])
    S = 61 * ranks
    lengths = [0, *[61 + 61 // (ranks - 1)] * (ranks - 1)]
    lengths[-1] += S - sum(lengths)
    compare(rank, ranks, library("causal"), {}, (), (), S, "contiguous", lengths)
    compare(rank, ranks, library("causal"), {}, (), (), 5, "zigzag")


def work_of_one_step(rank, ranks):
    """Only needed keys travel; two launches give the same bits; without gradients nothing is kept."""
    S, sent = 4096, []
    sp = attn.Spread(None, S)
    spec = attn.Attention(library("sliding_window"), defines={"WINDOW": 100}).spec
    for r, keys in enumerate(_spread.needed(spec, sp, sp, 0)):
        (a, b), (first, last) = sp.pieces[r][0], keys[0]
        assert len(keys) == 1 and b <= last < b + 128 and max(0, a - 99 - 128) <= first <= max(0, a - 99), (r, keys)
    travel = _spread._Travel

    class Counted(travel):
        def __init__(self, group, send, into):
            sent.append(sum(x.shape[2] for x, _ in send.values()))
            super().__init__(group, send, into)

    _spread._Travel = Counted
    module = attn.Attention(library("sliding_window"), defines={"WINDOW": 100})
    q, k, v = (sp.shard(x, 2) for x in drawn(2, (1, 2, S, 16), (1, 2, S, 16), (1, 2, S, 16)))
    del sent[:]
    first, second = (module(q, k, v, spread=sp) for _ in range(2))
    assert torch.equal(first, second)
    assert all(n <= 300 for n in sent) and sum(sent) >= (rank + 1 < ranks), sent
    _spread._Travel = travel


def work_of_errors(rank, ranks):
    def raises(kind, message, call):
        try:
            call()
        except kind as e:
            assert message in str(e), f"{e!r} does not say {message!r}"
            return
        raise AssertionError(f"nothing raised: {message}")

    sp = attn.Spread(None, 100)
    module = attn.Attention(library("causal"))
    q, k, v = (sp.shard(x, 2) for x in drawn(3, (1, 2, 100, 16), (1, 2, 100, 16), (1, 2, 100, 16)))
    short = q[:, :, 1:] if rank == ranks - 1 else q  # one rank errs, all raise
    wrong = f"rank {ranks - 1}: q: has {_spread._length(sp.pieces[-1]) - 1} rows"
    raises(ValueError, wrong, lambda: module(short, k, v, spread=sp))
    raises(ValueError, "rank 1 calls", lambda: module(*[x.half() if rank else x for x in (q, k, v)], spread=sp))
    raises(ValueError, "order: is 'striped'", lambda: attn.Spread(None, 100, "striped"))
    raises(ValueError, "lengths:", lambda: attn.Spread(None, 100, lengths=[100] * ranks))
    mean = "attention mean { dim D = 16; score(q, k) = dot(q, k) / Sq; normalize(s) = s; }"
    raises(ValueError, "the formulas read Sq", lambda: attn.attention(mean, q, k, v, spread=sp))
    raises(ValueError, "whole: doc is no array", lambda: module(q, k, v, spread=sp, whole=["doc"]))
    raises(TypeError, "go with spread=", lambda: module(q, k, v, whole=["doc"]))
    close(sp.unshard(module(q, k, v, spread=sp), 2), sp.unshard(module(q, k, v, spread=sp), 2), "after errors")


def process(work, rank, ranks, store, told):
    try:
        torch.set_num_threads(1)
        dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=ranks, timeout=datetime.timedelta(seconds=120))
        work(rank, ranks)
        dist.barrier()
        told.put(None)
    except BaseException:
        told.put(f"rank {rank}:\n{traceback.format_exc()}")
        raise


class Ranks(unittest.TestCase):
    def each(self, work, ranks):
        spawn = multiprocessing.get_context("spawn")
        with tempfile.TemporaryDirectory() as folder:
            told = spawn.Queue()
            all_of_them = [spawn.Process(target=process, args=(work, r, ranks, os.path.join(folder, "store"), told)) for r in range(ranks)]
            for p in all_of_them:
                p.start()
            said = [told.get(timeout=300) for _ in range(ranks)]
            for p in all_of_them:
                p.join(60)
            self.assertEqual([], [s for s in said if s], "\n".join(s for s in said if s))

    def test_variants_over_two(self):
        self.each(work_of_variants, 2)

    def test_variants_over_three(self):
        self.each(work_of_variants, 3)

    def test_variants_over_four(self):
        self.each(work_of_variants, 4)

    def test_only_needed_keys_travel(self):
        self.each(work_of_one_step, 3)

    def test_all_ranks_raise(self):
        self.each(work_of_errors, 3)


if __name__ == "__main__":
    unittest.main()
