"""attn.Spread: sequences over ranks, by processes of this machine over gloo, against one process. Needs PyTorch, cc, libattnrt.so and attnc.

    ATTNRT_LIBRARY=build/libattnrt.so ATTNC=build/attnc python3 -m unittest tests/python/test_spread.py
"""

import contextlib
import datetime
import functools
import importlib.util
import itertools
import multiprocessing
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
import traceback
import unittest
import unittest.mock
import weakref

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "python"))

import attn  # noqa: E402
from attn import _needed, _packed_ranks, _ranks, _recur_ranks, _spread  # noqa: E402

LEARNED = """
import std.mask;
import std.normalization;
attention learned {
    dim D = 16;
    input slope: f32[H] grad;
    input bias: f32[B, H, Sk] grad;
    input cap: f32 grad;
    score(q, k) = dot(q, k) * rsqrt(D);
    modify(s, b, h, i, j) = cap * tanh(s / cap) - slope[h] * f32(i - j) + bias[b, h, j];
    mask(b, h, i, j) = causal(i, j);
    normalize(s) { emit top = rowmax(s); return softmax(s); }
}
"""
ROWS = """
import std.mask;
import std.normalization;
attention rows {
    dim D = 16;
    input row: f32[B, H, Sq] grad;
    input table: f32[Sq, Sk] grad;
    input cap: f32;
    score(q, k) = dot(q, k) * rsqrt(D) * Sq / 150;
    modify(s, b, h, i, j) = cap * tanh(s * row[b, h, i] / cap) + table[i, j];
    mask(b, h, i, j) = causal(i, j);
    normalize(s) = softmax(s);
}
"""
TWICE = """
attention twice {
    dim D = 16;
    score(q, k) = dot(q, k) / Sq;
    modify(s, b, h, i, j) = s * f32(h + 1);
    normalize(s) { let m = rowsum(s) / rowsum(1); return exp(-(s - m) * (s - m)); }
}
"""
PLAIN = "attention plain { dim D = 8; score(q, k) = dot(q, k); modify(s, b, h, i, j) = s / Sk; normalize(s) = s; }"


def library(name):
    return os.path.join(ROOT, "stdlib", name + ".attn")


def drawn(seed, *shapes):
    r = torch.Generator().manual_seed(seed)
    return [torch.randn(*s, generator=r, dtype=torch.float32) for s in shapes]


def cases(S):
    """By name: a source, the inputs, which of them lie as q or k do, the emits, and the methods that fit."""
    doc = (torch.arange(S) // 37).to(torch.int32)[None].expand(2, S).contiguous()
    slope, bias, row, table = drawn(5, (4,), (2, 4, S), (2, 4, S), (S, S))
    both = "keys", "heads"
    return {
        "causal": (library("causal"), {}, (), (), both),
        "softmax": (library("softmax"), {}, (), ("lse",), both),
        "window": (library("sliding_window"), {}, (), (), both),
        "alibi": (library("alibi"), {}, (), (), ("keys",)),
        "sink": (library("attention_sink"), {"sink": drawn(6, (4,))[0]}, (), (), both),
        "document": (library("document"), {"doc": doc}, ("doc",), (), both),
        "sigmoid": (library("sigmoid"), {}, (), (), both),
        "retention": (library("retention"), {}, (), (), ("keys",)),
        "plain": (PLAIN, {}, (), (), both),
        "twice": (TWICE, {}, (), (), ("keys",)),
        "learned": (LEARNED, {"slope": slope.abs() * 0.1, "bias": bias, "cap": torch.tensor(15.0)}, ("bias",), ("top",), ("keys",)),
        "rows": (ROWS, {"row": row, "table": table, "cap": 15.0}, ("row",), (), both),
        "rows of a table": (ROWS, {"row": row, "table": table, "cap": 15.0}, ("row", "table"), (), both),
    }


def cut(name, x):
    """Along which dimension an input is spread."""
    return 0 if name == "table" else x.dim() - 1


def close(x, wanted, what):
    error = (x.double() - wanted.double()).norm() / max(wanted.double().norm(), 1e-30)
    assert torch.isfinite(x).all() and error < 2e-5, f"{what}: relative error {error:.1e}"


def raises(kind, message, call):
    try:
        call()
    except kind as e:
        assert message in str(e), f"{e!r} does not say {message!r}"
        return str(e)
    raise AssertionError(f"nothing raised: {message}")


def leaves(tensors):
    return [x.detach().clone().requires_grad_(x.is_floating_point()) if isinstance(x, torch.Tensor) else x for x in tensors]


def run(module, tensors, inputs, emits, weigh, **spread):
    found = module(*tensors, **inputs, **spread)
    found = found if isinstance(found, tuple) else (found,)
    torch.autograd.backward(found, [weigh(x) for x in found])
    return [x.detach() for x in found]


@functools.lru_cache(maxsize=None)
def alone(name, S, H, Hkv):
    """The operands and inputs, and what one process finds."""
    source, inputs, _, emits, _ = cases(S)[name]
    D = 8 if name == "plain" else 16
    whole = leaves(drawn(1, (2, H, S, D), (2, Hkv, S, D), (2, Hkv, S, 16)))
    given = {n: leaves([x])[0] for n, x in inputs.items()}
    weights = {d: drawn(9, s)[0] for d, s in ((4, (2, H, S, 16)), (3, (2, H, S)))}
    return whole, given, weights, run(attn.Attention(source, emit=emits), whole, given, emits, lambda x: weights[x.dim()])


def compare(group, name, S, order="contiguous", lengths=None, H=4, Hkv=2, sp=None, total=None, **call):
    source, inputs, along, emits, _ = cases(S)[name]
    whole, gw, weights, expected = alone(name, S, H, Hkv)
    sp = sp or attn.Spread(group, S, order, lengths)
    assert sp.positions.numel() == sp.rows
    own = leaves([sp.shard(x, 2) for x in whole])
    gi = {n: leaves([sp.shard(x, cut(n, x)) if n in along else x])[0] for n, x in inputs.items()}
    listed = [n for n, x in inputs.items() if n not in along and isinstance(x, torch.Tensor) and x.shape[-1:] == (S,)]
    found = run(attn.Attention(source, emit=emits), own, gi, emits, lambda x: sp.shard(weights[x.dim()], 2), spread=sp, whole=listed, **call)
    name = f"{name} S {S} {sp.order} {lengths} {call} heads {H}/{Hkv}"
    for x, wanted in zip(found, expected):
        close(sp.unshard(x, 2), wanted, f"{name}: output")
    for x, wanted, n in zip(own, whole, "qkv"):
        close(sp.unshard(x.grad, 2), wanted.grad, f"{name}: d{n}")
    for n, x in gw.items():
        if isinstance(x, torch.Tensor) and x.grad is not None:
            share = gi[n].grad if gi[n].grad is not None else torch.zeros_like(gi[n])
            if n in along:
                share = sp.unshard(share, cut(n, x))
            else:
                dist.all_reduce(share, group=total or group)
            close(share, x.grad, f"{name}: d{n}")
    return sp


# ---- random variants over random spreads: RANDOM=N of them, from seed FIRST on


def random_variant(r, S):
    """A source, its inputs, and which of them lie as k or q do."""
    inputs, along, terms = {}, {}, ["s"]
    if r.random() < 0.4:
        inputs["bias"], along["bias"] = ("f32[B, H, Sk] grad", (2, 4, S)), "k"
        terms.append("bias[b, h, j]")
    if r.random() < 0.3:
        inputs["slope"] = ("f32[H] grad", (4,))
        terms.append("slope[h] * 0.02 * f32(j - i)")
    if r.random() < 0.3:
        inputs["row"], along["row"] = ("f32[B, H, Sq] grad", (2, 4, S)), "q"
        terms.append("row[b, h, i - q_offset]")
    if r.random() < 0.2:
        terms.append("0.01 * f32(h) * f32(j) / Sk")
    score = " + ".join(terms)
    score = r.choice([score, f"7.0 * tanh(({score}) / 7.0)", f"({score}) * 0.5"])
    masks = ["true", "causal(i, j)", "causal(i, j)", f"i >= j && i - j < {r.randint(1, S)}", f"causal(i, j) && (j < {r.randint(1, 9)} || i - j < {r.randint(1, 40)})",
             f"(i + j) % {r.randint(2, 5)} != 0", f"abs(i - j) <= {r.randint(0, S)}", f"j < {r.randint(0, S)} || j <= i", "causal(i, j) && doc[b, i] == doc[b, j]"]  # fmt: skip
    mask = r.choice(masks)
    if "doc" in mask:
        inputs["doc"], along["doc"] = ("i32[B, Sk]", (2, S)), "k"
    weights = r.choice(["softmax(s)", "softmax(s)", "softmax_with_sink(s, sink[h])", "max(s, 0.0)", "sigmoid(s)", "s / (rowsum(abs(s)) + 1.0)", "exp(s - rowmax(s)) / (rowsum(exp(s - rowmax(s))) + 1.0)",
                        "let m = rowsum(s) / (rowsum(1) + 1.0); return exp(-(s - m) * (s - m))"])  # fmt: skip
    if "sink" in weights:
        inputs["sink"] = ("f32[H] grad", (4,))
    normalize = f"{{ {weights}; }}" if "let" in weights else f"{{ return {weights}; }}"
    lines = [f"input {n}: {declared};" for n, (declared, _) in inputs.items()]
    source = "import std.mask;\nimport std.normalization;\nattention random {\n    dim D = 16;\n    " + "\n    ".join(
        [*lines, "score(q, k) = dot(q, k) * rsqrt(D);", f"modify(s, b, h, i, j) = {score};", f"mask(b, h, i, j) = {mask};", f"normalize(s, b, h) {normalize}"]) + "\n}\n"  # fmt: skip
    return source, {n: shape for n, (_, shape) in inputs.items()}, along


def random_spread(r, group, ranks, S):
    order = r.choice(["contiguous", "zigzag", f"striped:{r.randint(1, 40)}", "lengths", "permutation"])
    more = {"buffer": r.choice([None, 0]), "reduce_dtype": r.choice([None, torch.float32])}
    if order in ("lengths", "permutation"):
        cuts = sorted(r.randint(0, S) for _ in range(ranks - 1))
        lengths = [b - a for a, b in zip([0, *cuts], [*cuts, S])]
        block = r.randint(5, 40)
        blocks = [list(range(a, min(a + block, S))) for a in range(0, S, block)]
        if order == "permutation":
            r.shuffle(blocks)
        return attn.Spread(group, S, torch.tensor([i for b in blocks for i in b]), lengths, **more)
    return attn.Spread(group, S, order, **more)


def random_case(seed, ranks, group):
    """A random variant over a random Spread, by each method, against one process. How many methods fit."""
    r = random.Random(seed)
    S = r.randint(3, 140)
    source, shapes, along = random_variant(r, S)
    Hkv = r.choice([1, 2, 4])
    given = dict(zip([*"qkv", *shapes], drawn(seed, (2, 4, S, 16), (2, Hkv, S, 16), (2, Hkv, S, 16), *shapes.values())))
    if "doc" in given:
        given["doc"] = (given["doc"] * 3).cumsum(1).abs().div(9, rounding_mode="floor").to(torch.int32)
    weight = drawn(seed + 1, (2, 4, S, 16))[0]
    module = attn.Attention(source)
    whole = dict(zip(given, leaves(given.values())))
    expected = module(**whole)
    expected.backward(weight)
    sp = random_spread(r, group, ranks, S)
    plan = attn.Plan() if r.random() < 0.5 else None
    fit = 0
    for method in None, "keys", "heads", "queries":
        own = {n: leaves([sp.shard(x.detach(), 2 if n in "qkv" else x.dim() - 1) if n in "qkv" or n in along else x])[0] for n, x in whole.items()}
        try:
            found = module(**own, spread=sp, method=method, plan=plan)
        except ValueError as e:
            assert "method" in str(e), e
            continue
        found.backward(sp.shard(weight, 2))
        fit += method is not None
        what = f"seed {seed}, {ranks} ranks, {method}, {sp}, heads 4/{Hkv}\n{source}"
        close(sp.unshard(found, 2), expected, what)
        for n, x in own.items():
            if whole[n].grad is not None:
                share = x.grad.clone() if x.grad is not None else torch.zeros_like(x)
                if n in "qkv" or n in along:
                    share = sp.unshard(share, 2 if n in "qkv" else x.dim() - 1)
                else:
                    dist.all_reduce(share, group=group)
                near(share, whole[n].grad, f"{what}d{n}")
    return fit


def near(x, wanted, what):
    """Where terms cancel (of gradients of 0), the error is that of the terms."""
    error = (x.double() - wanted.double()).norm() / max(wanted.double().norm(), 0.05)
    assert torch.isfinite(x).all() and error < 1e-4, f"{what}: relative error {error:.1e}"


RANDOM = range(int(os.environ.get("FIRST", 1)), int(os.environ.get("FIRST", 1)) + int(os.environ.get("RANDOM", 4)))


def work_of_random(rank, ranks, group):
    fits = [random_case(seed, ranks, group) for seed in RANDOM]
    assert len(RANDOM) < 4 or sum(fits) > len(fits), fits


# ---- what each process does


def work_of_variants(rank, ranks, group):
    with unittest.mock.patch.object(_ranks, "LEAST_BYTES", 1 << (10 if ranks == 2 else 24)):  # heads apart, and together
        compare_variants(ranks, group)


def compare_variants(ranks, group):
    orders = "zigzag", "contiguous", "striped:20"
    for i, (name, case) in enumerate(cases(150).items()):
        for method in case[-1]:
            if ranks == 2 or (i + (method == "heads")) % 2 == ranks % 2:
                compare(group, name, 150, orders[i % 3], method=method)
        if "keys" in case[-1] and (ranks == 2 or i % 2 == ranks % 2):  # the keys of one rank after the other
            compare(group, name, 150, sp=attn.Spread(group, 150, orders[i % 3], buffer=0), method="keys")
    S = 61 * ranks
    lengths = [0, *[61 + 61 // (ranks - 1)] * (ranks - 1)]
    lengths[-1] += S - sum(lengths)
    mixed = torch.randperm(S // 10 + 1, generator=torch.Generator().manual_seed(3))[:, None] * 10 + torch.arange(10)
    mixed = mixed.reshape(-1)
    for method in "keys", "heads":
        compare(group, "causal", S, lengths=lengths, method=method)
        compare(group, "causal", 5, "zigzag", method=method)
        compare(group, "causal", S, order=mixed[mixed < S], lengths=lengths, method=method)
    decode(ranks, group)
    q, k, v = drawn(1, (2, 4, S, 16), (2, 2, S - 30, 16), (2, 2, S - 30, 16))  # fewer keys than queries: the first query is at 0
    sp, kv = attn.Spread(group, S, "zigzag"), attn.Spread(group, S - 30)
    for method in "keys", "heads", "queries":
        found = attn.attention(library("causal"), sp.shard(q, 2), kv.shard(k, 2), kv.shard(v, 2), spread=sp, kv_spread=kv, method=method)
        close(sp.unshard(found, 2), attn.attention(library("causal"), q, k, v), f"fewer keys, {method}")
    for H, Hkv in ((6, 1), (6, 6), (6, 3), (2, 2)):  # heads of keys that several ranks have, and ranks without a head
        compare(group, "causal", 150, H=H, Hkv=Hkv, method="heads")


def queried(module, given, wants, weigh, **spread):
    found = module(**given, **spread)
    found = found if isinstance(found, tuple) else (found,)
    if wants:
        torch.autograd.backward(found, [weigh(x) for x in found])
    return [x.detach() for x in found]


def decode(ranks, group):
    """A few queries come to the keys, which are spread: queries that all ranks have, or that are spread too."""
    S, rows = 150, 5
    lengths = [0, *[S // (ranks - 1)] * (ranks - 1)]
    lengths[-1] += S - sum(lengths)
    spreads = attn.Spread(group, S, "striped:16"), attn.Spread(group, S, lengths=lengths), attn.Spread(group, S, "zigzag")
    of_rows = attn.Spread(group, rows, "replicated"), attn.Spread(group, rows, "replicated"), attn.Spread(group, rows, "zigzag")
    for i, (name, case) in enumerate(cases(S).items()):
        if name in ("rows", "rows of a table", "twice") or i % 3 != ranks % 3:
            continue
        source, inputs, along, emits, _ = case
        if name == "learned":  # the gradient of a maximum needs all keys of a row
            source, emits = LEARNED.replace("emit top = rowmax(s); ", ""), ()
        module = attn.Attention(source, emit=emits)
        q, k, v = drawn(1, (2, 4, rows, 16), (2, 2, S, 16), (2, 2, S, 16))
        if name == "plain":
            q, k = q[..., :8], k[..., :8]
        for wants in False, True:
            all_of_them = {"q": q, "k": k, "v": v, **inputs}
            all_of_them = {n: leaves([x])[0] if wants else x.detach() if isinstance(x, torch.Tensor) else x for n, x in all_of_them.items()}
            weights = {4: drawn(9, (2, 4, rows, 16))[0], 3: drawn(9, (2, 4, rows))[0]}
            expected = queried(module, all_of_them, wants, lambda x: weights[x.dim()])  # noqa: B023
            for sp, kv in zip(of_rows, spreads):
                lies = {"q": sp, "k": kv, "v": kv, **dict.fromkeys(along, kv)}

                def own(n, x):
                    return lies[n].shard(x.detach(), 2 if n in "qkv" else x.dim() - 1).requires_grad_(x.requires_grad) if n in lies else leaves([x])[0] if wants else x  # noqa: B023

                given = {n: own(n, x) for n, x in all_of_them.items()}
                whole = [n for n, x in inputs.items() if n not in along and isinstance(x, torch.Tensor) and x.shape[-1:] == (S,)]
                found = queried(module, given, wants, lambda x: sp.shard(weights[x.dim()], 2), spread=sp, kv_spread=kv, whole=whole, method="queries")  # noqa: B023
                for x, wanted in zip(found, expected):
                    close(sp.unshard(x, 2), wanted, f"{name}: queries to keys {kv}")
                for n, x in all_of_them.items() if wants else ():
                    if isinstance(x, torch.Tensor) and x.grad is not None:
                        share = given[n].grad if given[n].grad is not None else torch.zeros_like(given[n])
                        if n in lies:
                            share = lies[n].unshard(share, 2 if n in "qkv" else x.dim() - 1)
                        else:
                            dist.all_reduce(share, group=group)
                        close(share, x.grad, f"{name}: d{n} of queries {sp} to keys {kv}")


    module, kv = attn.Attention(library("causal"), defines={"D": 16, "Dv": 16}), attn.Spread(group, 140, "striped:16")
    q, k, v = drawn(1, (2, 4, 1, 16), (2, 2, 150, 16), (2, 2, 150, 16))
    calls = set()
    for n in range(141, 150):  # a token a time: the first call of it compares, and no other
        kv = kv.grown(n)
        own = [kv.shard(x[:, :, :n], 2) for x in (k, v)]
        close(module(q, *own, spread=of_rows[0].grown(1), kv_spread=kv), module(q, *[x[:, :, :n] for x in (k, v)]), f"grown to {n}")
        calls.add(len(kv.board.known))
    assert len(calls) == 1, calls
    with Held() as held:  # the kernel writes its state where it travels from; nothing waits for numbers, so that CUDA graphs take it
        module(q, *own, spread=of_rows[0].grown(1), kv_spread=kv)
    assert not {"cat", "copy_", "clone", "zero_", "_local_scalar_dense"} & held.called, held.called
    raises(ValueError, "lengths and permutations are of one S", lambda: spreads[1].grown(S + 1))


PAGED = """
import std.mask;
import std.normalization;
attention paged {
    dim D = 16;
    input sink: f32[H];
    input bias: f32[B, H, Sk];
    input shift: f32[Sk];
    score(q, k) = dot(q, k) * rsqrt(D);
    modify(s, b, h, i, j) = s + bias[b, h, j] + shift[j] - 0.01 * f32(i - j) * f32(Sk) / 64;
    mask(b, h, i, j) = causal(i, j) && (i - j < 90 || j < 3);
    normalize(s, b, h) = softmax_with_sink(s, sink[h]);
}
"""


def laid_in_pages(whole, lens, table, page, pages, has):
    """Rows of sequences, of the positions that a rank has, in a pool whose other rows are NaN."""
    pool = torch.full((pages, page, *whole.shape[2:]), float("nan"))
    for b, n in enumerate(lens):
        own = [t for t in range(n) if has(t)]
        for i, t in enumerate(own):
            pool[table[b, i // page], i % page] = whole[b, t]
    return pool


def work_of_pages(rank, ranks, group):
    """A paged cache over ranks: a token a time and several, what each sequence has of its own, other blocks than pages."""
    H, Hkv, D, page, longest = 4, 2, 16, 4, 150
    lens, starts = [150, 0, 37, 5, 16], [0, 3, 3, 4, 9, 10]
    q, k, v, bias, sink, shift = drawn(4, (10, H, D), (5, longest, Hkv, D), (5, longest, Hkv, D), (5, longest, H), (H,), (longest,))
    for source, inputs in ((PAGED, {"sink": sink, "bias": bias, "shift": shift}), (library("relu"), {}), (library("causal"), {})):
        emits = ("lse",) if source == library("causal") else ()
        kernel = attn.compile(source, layout="paged", phase="fwd,part", opt=1, defines={"D": D} if inputs else {"D": D, "Dv": D})
        for decoding in False, True:
            rows = q[[0, 3, 5, 7, 9]].contiguous() if decoding else q
            index = {} if decoding else {"q_start": torch.tensor(starts, dtype=torch.int32)}
            kv_len = torch.tensor([n + decoding * (n > 0) - (n == 150) * decoding for n in lens], dtype=torch.int32)

            def made(has, n_pages, call):
                width = -(-longest // page)
                table = torch.randperm(n_pages, generator=torch.Generator().manual_seed(rank))[: 5 * width].reshape(5, width).to(torch.int32)
                laid = [laid_in_pages(x, kv_len.tolist(), table, page, n_pages, has) for x in (k, v, bias)]
                given = {n: laid[2] if n == "bias" else x for n, x in inputs.items()}
                out = torch.full((len(rows), H, D), 7.0)
                found = call(rows, *laid[:2], page_table=table, kv_len=kv_len, **index, **given, out=out, emit=emits)
                return found if isinstance(found, tuple) else (found,)

            expected = made(lambda t: True, 200, kernel)
            for block in 4, 6, 1, 64:
                pages = attn.SpreadPages(group, block)
                own_len = pages.own(kv_len) if block == 6 else None
                found = made(lambda t: pages.owner(t) == rank, 200, lambda *x, **given: pages(kernel, *x, **given, own_len=own_len))  # noqa: B023
                for x, wanted in zip(found, expected):  # an lse is -inf where a sequence has no key
                    x, wanted = (y.nan_to_num(nan=1e9, neginf=-99.0) for y in (x, wanted))
                    close(x, wanted, f"{kernel.kernels[0].name}, blocks of {block}, decoding {decoding}")
    assert pages.own(torch.tensor([777]))[0] == pages.own(777) == sum(pages.owner(t) == rank for t in range(777))
    last = rank == ranks - 1
    pages = attn.SpreadPages(group, 64, check="always")
    few = [x[0, :8].reshape(2, 4, Hkv, D) for x in (k, v)]

    def good(q=rows, **more):
        return pages(kernel, q, *few, page_table=torch.zeros(5, 1, dtype=torch.int32), kv_len=kv_len.clamp(0, 4), **more)

    good()
    with Held() as held:
        good()
    assert not {"cat", "copy_", "clone", "_local_scalar_dense"} & held.called, held.called
    raises(ValueError, "q: is no [Tq, H, D]" if ranks == 1 else f"rank {ranks - 1}: q: is no [Tq, H, D]", lambda: good(rows[0] if last else rows))
    raises(TypeError, "nothing: causal has no such input", lambda: good(nothing=1, emit="lse"))
    raises(TypeError, "kernel: takes one that attn.compile", lambda: pages(attn.compile(library("causal")), rows, k, v, kv_len=kv_len))
    raises(ValueError, "block: is 0", lambda: attn.SpreadPages(group, 0))
    good()


def work_of_packed(rank, ranks, group):
    """Sequences one behind the other, cut anywhere: rows and keys of other lengths, rows that no sequence has, one sequence in two pieces of a rank."""
    starts, kv_starts = torch.tensor([2, 40, 40, 57, 150, 171]), torch.tensor([0, 45, 60, 77, 170, 180])
    T, Tk, H, D = 175, 184, 4, 16
    bias, sink, of_rows, of_sequences = drawn(8, (Tk, H), (H,), (T, H), (H, 5))
    tone = torch.arange(Tk, dtype=torch.int8) % 3
    source = """
import std.mask;
import std.normalization;
attention packed {
    dim D = 16;
    input bias: f32[B, H, Sk] grad;
    input sink: f32[H] grad;
    input row: f32[B, H, Sq] grad;
    input heat: f32[H, B] grad;
    input tone: i8[B, Sk];
    score(q, k) = dot(q, k) * rsqrt(D);
    modify(s, b, h, i, j) = (s + bias[b, h, j] + row[b, h, i - q_offset] + 0.1 * tone[b, j]) * heat[h, b] - 0.01 * f32(i - j) * f32(Sk) / 64;
    mask(b, h, i, j) = causal(i, j) && i - j < 60;
    normalize(s, b, h) = softmax_with_sink(s, sink[h]);
}
"""
    cases = (
        (source, {"bias": bias, "sink": sink, "row": of_rows, "heat": of_sequences, "tone": tone}, kv_starts, Tk),
        (library("causal"), {}, None, T),
        (library("alibi"), {}, None, T),
        (library("softmax"), {}, kv_starts, Tk),
    )
    for i, (source, inputs, of_keys, rows_of_keys) in enumerate(cases):
        q, k, v, do = drawn(4, (T, H, D), (rows_of_keys, 2, D), (rows_of_keys, 2, D), (T, H, D))
        module = attn.Attention(source)
        lies = {"q": "q", "row": "q", "k": "k", "v": "k", "bias": "k", "tone": "k"}
        whole = {n: leaves([x])[0] for n, x in {"q": q, "k": k, "v": v, **inputs}.items()}
        expected = module(**whole, q_start=starts, kv_start=of_keys)
        expected.backward(do)
        for order in ("zigzag", "contiguous", "striped:20")[i % 3 :][:2]:
            sp = attn.Spread(group, T, order)
            kv = sp if of_keys is None else attn.Spread(group, Tk, "contiguous", lengths=[0, *[Tk // (ranks - 1)] * (ranks - 2), Tk - Tk // (ranks - 1) * (ranks - 2)])
            spreads, plan = {"q": sp, "k": kv}, attn.Plan()
            for with_plan in (None, plan, plan) if i == 0 else (plan,):
                own = {n: leaves([spreads[lies[n]].shard(x, 0) if n in lies else x])[0] for n, x in whole.items()}
                o = module(**own, q_start=starts, kv_start=of_keys, spread=sp, kv_spread=None if kv is sp else kv, plan=with_plan)
                o.backward(sp.shard(do, 0))
                close(sp.unshard(o, 0), expected, f"{source} {sp}: o")
                for n, x in ((n, x) for n, x in own.items() if n != "tone"):
                    share = x.grad.clone() if x.grad is not None else torch.zeros_like(x)
                    if n in lies:
                        share = spreads[lies[n]].unshard(share, 0)
                    else:
                        dist.all_reduce(share, group=group)
                    close(share, whole[n].grad, f"{source} {sp}: d{n}")
    plan = attn.Plan()  # tells two lines of keys apart
    for of_keys in (kv_starts, torch.tensor([0, 30, 61, 80, 150, 184])):
        o = module(**{n: x.detach() for n, x in own.items()}, q_start=starts, kv_start=of_keys, spread=sp, kv_spread=kv, plan=plan)
        close(sp.unshard(o, 0), module(**{n: x.detach() for n, x in whole.items()}, q_start=starts, kv_start=of_keys), f"{of_keys}: o")
    # The last rows are no sequence's, all those of some ranks among them, which have keys of the others.
    sp, kv, some = attn.Spread(group, T), attn.Spread(group, T, "striped:20"), torch.tensor([0, 30, 55])
    module, whole = attn.Attention(library("causal")), leaves([q, q[:, :2] + 1, q[:, 2:] - 1])
    expected = module(*whole, q_start=some)
    expected.backward(do)
    own = [s.shard(x.detach(), 0).requires_grad_() for s, x in zip((sp, kv, kv), whole)]
    o = module(*own, q_start=some, kv_start=some, spread=sp, kv_spread=kv)
    o.backward(sp.shard(do, 0))
    close(sp.unshard(o, 0), expected, "few sequences: o")
    for s, x, y in zip((sp, kv, kv), own, whole):
        close(s.unshard(x.grad, 0), y.grad, "few sequences: a gradient")
    named = dict(zip("qkv", (sp.shard(x, 0) for x in (q, q[:, :2], q[:, :2]))))
    heat = "attention heat { dim D = 16; input heat: f32[H, B]; score(q, k) = dot(q, k); modify(s, b, h) = s * heat[h, b]; normalize(s) = s; }"
    raises(ValueError, "heat: dimension 1 is 4, and q_start is of 5 sequences", lambda: attn.attention(heat, **named, heat=torch.ones(H, 4), q_start=starts, spread=sp))
    raises(ValueError, "the formulas read Sq", lambda: attn.attention(TWICE, **named, q_start=starts, spread=sp))
    raises(ValueError, "row: has an extent Sq without B", lambda: attn.attention(SQUARE, **named, row=torch.zeros(T), q_start=starts, spread=sp))
    raises(ValueError, "rank 0: q: has", lambda: module(named["q"][rank == 0 :], named["k"], named["v"], q_start=starts, spread=sp))
    raises(ValueError, "q_start: is no ascending list", lambda: module(**named, q_start=starts + 100, spread=sp))
    raises(ValueError, "method: is 'heads'", lambda: module(**named, q_start=starts, spread=sp, method="heads"))
    raises(TypeError, "kv_start: keys have a spread of their own", lambda: module(**named, q_start=starts, spread=sp, kv_spread=attn.Spread(group, T)))
    raises(TypeError, "method: goes with spread=", lambda: module(**named, q_start=starts, method="keys"))


SQUARE = "attention square { dim D = 16; input row: f32[Sq]; score(q, k) = dot(q, k); modify(s, b, h, i, j) = s + row[i]; normalize(s) = s; }"


def work_of_recurrences(rank, ranks, group):
    """The state before each piece comes from the piece before, or by the maps of all; the state after all is the same on all ranks."""
    with unittest.mock.patch.multiple(_recur_ranks, LEAST=1, TURNS=True):  # heads in groups
        compare_recurrences(ranks, group, 130)
    with unittest.mock.patch.multiple(_recur_ranks, TURNS=False, SEGMENT=64):
        compare_recurrences(ranks, group, 130)
        compare_recurrences(ranks, group, 1400, slice(1, None, 2))  # several segments a piece


def compare_recurrences(ranks, group, S, cases=slice(None)):
    B, H, D = 2, 4, 16
    q, k, v, log_decay = drawn(2, (B, H, S, D), (B, H, S, D), (B, 2, S, D), (B, H, S, D))
    state0, do, dstate = drawn(3, (B, H, D, D), (B, H, S, D), (B, H, D, D))
    decays = -0.1 * log_decay.abs()
    for name, inputs, order, begun in (
        ("gla", {"log_decay": decays}, "zigzag", True),
        ("gated_deltanet", {"log_decay": decays[..., 0], "beta": log_decay[..., 1].sigmoid()}, "contiguous", True),
        ("gated_deltanet", {"log_decay": decays[..., 0], "beta": log_decay[..., 1].sigmoid()}, "zigzag", False),
        ("retnet", {}, "lengths", False),
    )[cases]:
        module = attn.Recurrence(library(name), emit="state", defines={"D": D, "Dv": D})
        given = {"q": q, "k": k, "v": v, **inputs, **({"state0": state0} if begun else {})}
        whole = dict(zip(given, leaves(given.values())))
        o, state = module(**whole)
        torch.autograd.backward([o, state], [do, dstate])
        sp = attn.Spread(group, S, lengths=[0, S - 30, 30] if ranks == 3 else [S - 30, 30]) if order == "lengths" else attn.Spread(group, S, order)
        own = {n: leaves([x if n == "state0" else sp.shard(x, 2)])[0] for n, x in given.items()}
        found, after = module(**own, spread=sp)
        torch.autograd.backward([found, after], [sp.shard(do, 2), dstate / ranks])
        close(sp.unshard(found, 2), o, f"{name} {sp}: o")
        close(after, state, f"{name} {sp}: the state")
        for n, x in own.items():
            share = x.grad.clone()
            if n == "state0":
                dist.all_reduce(share, group=group)
            close(share if n == "state0" else sp.unshard(share, 2), whole[n].grad, f"{name} {sp}: d{n}")
    even = S // ranks * ranks
    given = [x[:, :, :even] for x in (q, k, v, decays)]
    of_mesh = attn.Recurrence(library("gla"), mesh=group, defines={"D": D, "Dv": D})
    of_one = attn.Recurrence(library("gla"), defines={"D": D, "Dv": D})(*given)
    sp = attn.Spread(group, even)
    close(of_mesh(*[sp.shard(x, 2) for x in given]), sp.shard(of_one, 2), "by a mesh: o")
    sp = attn.Spread(group, S)
    own = [sp.shard(x, 2) for x in (q, k, v, log_decay)]
    raises(ValueError, "the order striped", lambda: module(*own[:3], spread=attn.Spread(group, S, "striped")))
    late = "recurrence late { dim D = 16; decay(b, h, t) = exp(-f32(t)); }"
    raises(ValueError, "the formulas read t or S", lambda: attn.recurrence(late, *own[:3], spread=sp))
    raises(ValueError, "q: has 20 rows, and the spread gives this rank", lambda: module(*[x[:, :, :20] for x in own[:3]], spread=sp))


def work_of_two_dimensions(rank, ranks, group):
    """Heads in a row of ranks, keys between the rows."""
    rows, columns = [dist.new_group([0, 1]), dist.new_group([2, 3])], [dist.new_group([0, 2]), dist.new_group([1, 3])]
    mesh = columns[rank % 2], rows[rank // 2]
    for name, order in (("causal", "zigzag"), ("document", "contiguous"), ("sink", "striped:20"), ("window", "zigzag")):
        compare(group, name, 150, sp=attn.Spread(mesh, 150, order))
    compare(group, "causal", 150, sp=attn.Spread(mesh, 150, lengths=[0, 0, 100, 50]), H=1, Hkv=1)
    sp = attn.Spread(mesh, 150)
    q, k, v = (sp.shard(x, 2) for x in drawn(3, (1, 2, 150, 16), (1, 2, 150, 16), (1, 2, 150, 16)))
    raises(ValueError, "a spread of two dimensions has keys and heads", lambda: attn.attention(library("causal"), q, k, v, spread=sp, method="keys"))
    raises(ValueError, "read h, H or Hkv", lambda: attn.attention(library("alibi"), q, k, v, spread=sp))
    x = drawn(4, (2, 150, 3))[0]
    close(sp.unshard(sp.shard(x)), x, "there and back")


def work_of_one_rank(rank, ranks, group):
    """One rank calls nothing of torch.distributed, and has the bits of no mesh."""
    q, k, v = drawn(3, (1, 2, 100, 16), (1, 2, 100, 16), (1, 2, 100, 16))
    for name, order in (("causal", "zigzag"), ("alibi", "contiguous")):
        for method in cases(100)[name][-1]:
            found = attn.attention(library(name), q, k, v, spread=attn.Spread(group, 100, order), method=method)
            assert torch.equal(found, attn.attention(library(name), q, k, v))
    raises(ValueError, "q: has 100 rows", lambda: attn.attention(library("causal"), q, k, v, spread=attn.Spread(group, 99)))


@contextlib.contextmanager
def counted(sent):
    """How many rows go to others, of each tensor that travels."""
    travel = _spread._Travel

    class Counted(travel):
        def __init__(self, xs, moves, *how):
            super().__init__(xs, moves, *how)
            sent.append(sum(x.shape[2] for parts in self.keep.values() for x in parts[:1] if x.dim() == 4))

    _spread._Travel = _ranks._Travel = _recur_ranks._Travel = Counted
    yield
    _spread._Travel = _ranks._Travel = _recur_ranks._Travel = travel


def work_of_one_step(rank, ranks, group):
    """Only needed keys travel; two launches give the same bits; without gradients nothing is kept."""
    S, sent = 4096, []
    sp = attn.Spread(group, S)
    module = attn.Attention(library("sliding_window"), defines={"WINDOW": 100}, mesh=group)
    for r, keys in enumerate(_needed.needed(_needed._tiles(module.spec, S, S, 0), sp.between, S)):
        (a, b), (first, last) = sp.pieces[r][0], keys[0]
        assert len(keys) == 1 and b <= last < b + 128 and max(0, a - 99 - 128) <= first <= max(0, a - 99), (r, keys)
    if rank == 0:  # by larger tiles
        long = _needed._tiles(module.spec, 1 << 17, 1 << 17, 0)
        assert max(b - a for a, b in _needed._seen(long, (70000, 80000), 1 << 17)) < 11000
    q, k, v = (sp.shard(x, 2) for x in drawn(2, (1, 2, S, 16), (1, 2, S, 16), (1, 2, S, 16)))
    with counted(sent):
        first, second = (module(q, k, v, spread=sp, method="keys") for _ in range(2))
    assert torch.equal(first, second)
    assert all(n <= 300 for n in sent) and sum(sent) >= (rank + 1 < ranks), sent
    even = [x[:, :, :1024].contiguous() for x in (q, k, v)]
    close(module(*even, method="heads"), module(*even, method="keys"), "of the mesh, without a spread")


class Held(TorchDispatchMode):
    """`most`: the bytes of new tensors that were there at a time. `called`: the operators."""

    def __init__(self):
        super().__init__()
        self.most, self.made, self.called = 0, [], set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.called.add(getattr(function, "__name__", "").partition(".")[0])
        found = function(*args, **(kwargs or {}))
        self.made += [weakref.ref(x) for x in (found if isinstance(found, (tuple, list)) else [found]) if isinstance(x, torch.Tensor)]
        self.made = [x for x in self.made if x() is not None]
        storages = [x().storage() for x in self.made]
        self.most = max(self.most, sum({x.data_ptr(): x.nbytes() for x in storages}.values()))
        return found


def work_of_memory(rank, ranks, group):
    """A rank has room for the keys and values of two others beside its rows and their state, and not for those of all."""
    S = 1024 * ranks
    for buffer, fits in ((0, True), (None, False))[: ranks // 2]:
        sp = attn.Spread(group, S, "zigzag", buffer=buffer)
        own = leaves(sp.shard(x, 2) for x in drawn(2, *[(1, 2, S, 16)] * 4))
        with Held() as forward:
            o = attn.attention(library("alibi"), *own[:3], spread=sp, method="keys")
        with Held() as backward:
            torch.autograd.grad(o, own[:3], own[3])
        most = [x.most / own[1].numel() / own[1].element_size() for x in (forward, backward)]  # of the bytes of its own keys
        assert (most[0] <= 10 and most[1] <= 24) == fits, (most, buffer)


def work_of_plans(rank, ranks, group):
    """Where the mask reads documents, a plan tells which keys travel; balanced ranks have equal work."""
    S = 4096
    lengths = torch.tensor([1500, 300, 200, 96, 1000, 1000])
    doc = torch.repeat_interleave(torch.arange(6), lengths).to(torch.int32)[None].contiguous()
    module = attn.Attention(library("document"), mesh=group)
    q, k, v = drawn(2, (1, 2, S, 16), (1, 2, S, 16), (1, 2, S, 16))
    expected = attn.attention(library("document"), q, k, v, doc=doc)
    contiguous, balanced = attn.Spread(group, S), module.balance(S, block=128, doc=doc)
    for sp in contiguous, balanced:
        plan = attn.Plan()
        own, sent = [sp.shard(x, 2) for x in (q, k, v)], {}
        for with_plan in plan, plan, None:
            with counted(sent.setdefault(with_plan, [])):
                found = module(*own, doc=sp.shard(doc), spread=sp, plan=with_plan, method="keys")
            close(sp.unshard(found, 2), expected, "with a plan")
        assert sum(sent[plan]) / 2 < sum(sent[None]), sent
        assert (len(sent[plan]), len(sent[None])) == (3, 2), sent  # documents travel once in a plan
    tiles = _needed._tiles_with(module.spec, S, S, 0, 1, 1, {"doc": doc}, {})
    assert [x.keys for x, _ in plan._kept.values()] == [tiles.keys]

    def load(sp):
        loads = [sum(tiles.load(p) for p in pieces) for pieces in sp.pieces]
        return max(loads) * ranks / sum(loads)

    assert {sum(b - a for a, b in p) for p in balanced.pieces} == {S // ranks}
    assert load(balanced) < 1.1 < load(contiguous), (load(balanced), load(contiguous))
    assert sum(map(len, balanced.pieces)) <= 3 * ranks, balanced.pieces  # 6 to 12, by the tiles that this machine's kernels have
    needed = _needed.needed(tiles, contiguous.between, S)
    assert needed[0][0][0] == 0 and needed[2][-1][0] >= 1500 - 512, needed  # the second document and on
    raises(TypeError, "doc: the mask reads this input", lambda: module.balance(S))
    window, full = attn.Attention(library("sliding_window"), defines={"WINDOW": 256}), attn.Attention(library("causal"))
    mixed, of_window = attn.balance(S, {full: 1, window: 5}, 128, group), attn.balance(S, {window: 1}, 128, group)
    by = [_needed._tiles(m.spec, S, S, 0) for m in (full, window, window, window, window, window)]
    loads = [[sum(t.load(p) for t in by for p in pieces) for pieces in sp.pieces] for sp in (mixed, of_window)]
    assert [max(x) * ranks / sum(x) < 1.1 for x in loads] == [True, False], loads


def work_of_errors(rank, ranks, group):
    sp = attn.Spread(group, 100)
    module = attn.Attention(library("causal"))
    q, k, v = (sp.shard(x, 2) for x in drawn(3, (1, 2, 100, 16), (1, 2, 100, 16), (1, 2, 100, 16)))
    last = rank == ranks - 1
    short = q[:, :, 1:] if last else q  # one rank errs, all raise
    wrong = f"rank {ranks - 1}: q: has {_spread._length(sp.pieces[-1]) - 1} rows"
    raises(ValueError, wrong, lambda: module(short, k, v, spread=sp))
    raises(TypeError, f"rank {ranks - 1}: q: takes a tensor", lambda: module(7 if last else q, k, v, spread=sp))
    raises(ValueError, "rank 1: elements: is torch.float16", lambda: module(*[x.half() if rank else x for x in (q, k, v)], spread=sp))
    raises(ValueError, "rank 2: the variant: is softmax", lambda: attn.attention(library("softmax" if last else "causal"), q, k, v, spread=sp))
    for mesh in "cp", 3, ["cp"]:
        raises(TypeError, "mesh: a DeviceMesh", lambda: attn.Spread(mesh, 100))
    raises(ValueError, "S: is -1", lambda: attn.Spread(group, -1, "zigzag"))
    raises(ValueError, "order: is 'zagzig'", lambda: attn.Spread(group, 100, "zagzig"))
    raises(ValueError, "rank 2: order: is zigzag, and contiguous of rank 0", lambda: attn.Spread(group, 100, "zigzag" if last else "contiguous"))
    raises(ValueError, "reduce_dtype: is torch.int8", lambda: attn.Spread(group, 100, reduce_dtype=torch.int8))
    raises(ValueError, "order: is no permutation", lambda: attn.Spread(group, 4, torch.tensor([0, 1, 1, 2])))
    raises(ValueError, "lengths:", lambda: attn.Spread(group, 100, lengths=[100] * ranks))
    tables = """attention tables { dim D = 16; input pe: f32[B, 1, Sk, 16]; score(q, k) = (dot(q, k) + dot(q, pe)) / Sq;
        modify(s, b, h, i, j) = s * f32(h); normalize(s) = s; }"""
    pe = sp.shard(torch.zeros(1, 1, 100, 16), 2)
    raises(ValueError, "the formulas read Sq", lambda: attn.attention(tables, q, k, v, pe=pe, spread=sp))
    raises(ValueError, "read h, H or Hkv", lambda: attn.attention(library("alibi"), q, k, v, spread=sp, method="heads"))
    of_rows = """attention of_rows { dim D = 16; input x: f32[B, 1, Sq, 16]; score(q, k) = dot(q, k) + dot(x, k); normalize(s) = s; }"""
    raises(ValueError, "x: has an extent Sq, of which a piece has a part only (method keys): method='heads' fits",
           lambda: attn.attention(of_rows, q, k, v, x=sp.shard(torch.zeros(1, 1, 100, 16), 2), spread=sp, method="keys"))  # fmt: skip
    same = attn.Spread(group, 100, "replicated")
    raises(ValueError, "the variant has no parts", lambda: attn.attention(TWICE, q, k, v, spread=sp, method="queries"))
    k.requires_grad_()
    raises(ValueError, "the gradient of an emit needs all keys of a row (method queries)",
           lambda: attn.attention(LEARNED, q, k, v, emit="top", slope=torch.ones(2), bias=torch.zeros(1, 2, len(k[0, 0])), cap=9.0, spread=sp, method="queries"))  # fmt: skip
    k.requires_grad_(False)
    raises(ValueError, "spread: is replicated, which goes with", lambda: module(sp.unshard(q, 2), k, v, spread=same, kv_spread=sp, method="keys"))
    raises(ValueError, "kv_spread: is replicated", lambda: module(q, *[sp.unshard(x, 2) for x in (k, v)], spread=sp, kv_spread=same))
    raises(ValueError, "method: is 'ring'", lambda: module(q, k, v, spread=sp, method="ring"))
    raises(ValueError, "whole: doc is no array", lambda: module(q, k, v, spread=sp, whole=["doc"]))
    raises(TypeError, "goes with spread=", lambda: module(q, k, v, whole=["doc"]))
    close(sp.unshard(module(q, k, v, spread=sp), 2), sp.unshard(module(q, k, v, spread=sp, method="heads"), 2), "after errors")


def work_of_failures(rank, ranks, group):
    """Every wait ends in the time of the group, with a message."""
    module, limit = attn.Attention(library("causal")), 5

    def spread(**given):
        dist.barrier()
        own = dist.new_group(range(ranks), timeout=datetime.timedelta(seconds=limit))
        return attn.Spread(own, 100, **given)

    def ends(kind, message, call):
        began = time.monotonic()
        raises(kind, message, call)
        assert time.monotonic() - began < limit + 20

    whole = drawn(3, (1, 2, 100, 16), (1, 2, 100, 16), (1, 2, 100, 16))
    last = rank == ranks - 1
    sp = spread()
    q, k, v = (sp.shard(x, 2) for x in whole)
    module(q, k, v, spread=sp)
    wrong = "rank 3: q: has 24 rows"  # one errs in a call that the others know, and do not compare
    ends(ValueError, wrong, lambda: module(q[:, :, 1:] if last else q, k, v, spread=sp))
    sp = spread(check="always")
    module(q, k, v, spread=sp)
    ends(ValueError, wrong, lambda: module(q[:, :, 1:] if last else q, k, v, spread=sp))
    module(q, k, v, spread=sp)
    sp = spread()
    if last:  # it does not come
        return
    ends(RuntimeError, "rank 3: did not make this call within 5 s", lambda: module(q, k, v, spread=sp))


def work_of_a_death(rank, ranks, group):
    sp = attn.Spread(group, 100)
    q, k, v = (sp.shard(x, 2) for x in drawn(3, (1, 2, 100, 16), (1, 2, 100, 16), (1, 2, 100, 16)))
    module = attn.Attention(library("causal"))
    module(q, k, v, spread=sp)
    store = dist.distributed_c10d._get_default_store()
    if rank == 0:
        store.wait(["rank 1 has made the first call"])
        os._exit(1)
    store.set("rank 1 has made the first call", "yes")
    raises(RuntimeError, "rank 0: nothing travels between it and rank 1", lambda: module(q, k, v, spread=sp))


# ---- processes of this machine


def process(rank, all_of_them, store, asked, told):
    """Does what it is asked for, in a group of the first ranks."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=all_of_them, timeout=datetime.timedelta(seconds=60))
    limit = datetime.timedelta(seconds=60)
    groups = {n: dist.new_group(range(n), timeout=limit) for n in range(1, all_of_them + 1)}
    for module, work, ranks in iter(asked.get, None):
        try:
            getattr(sys.modules.get(module) or importlib.import_module(module), work)(rank, ranks, groups[ranks])
            told.put(None)
        except BaseException:
            told.put(f"rank {rank}:\n{traceback.format_exc()}")
    dist.destroy_process_group()


def work_of_bits(rank, ranks, group):
    """deterministic=True: o and dq have the bits of one process where pieces begin with tiles, and dk and dv by heads."""
    S = 768
    q, k, v, do = drawn(7, (2, 4, S, 16), (2, 2, S, 16), (2, 2, S, 16), (2, 4, S, 16))
    doc = (torch.arange(S) // 150).to(torch.int32)[None].expand(2, S).contiguous()
    for name, inputs, methods in (("causal", {}, "keys heads"), ("softmax", {}, "keys heads"), ("sliding_window", {}, "keys heads"), ("alibi", {}, "keys"), ("document", {"doc": doc}, "keys")):
        module = attn.Attention(library(name), defines={"WINDOW": 100} if name == "sliding_window" else None, deterministic=True)
        of_one = leaves((q, k, v))
        o = module(*of_one, **inputs)
        wanted = [o, *torch.autograd.grad(o, of_one, do)]
        for order, method in itertools.product(("contiguous", "zigzag"), methods.split()):
            sp = attn.Spread(group, S, order)
            own = leaves(sp.shard(x, 2) for x in (q, k, v))
            plan = {"plan": attn.Plan()} if inputs else {}
            o = module(*own, **{n: sp.shard(x) for n, x in inputs.items()}, spread=sp, method=method, **plan)
            found = [sp.unshard(x.detach(), 2) for x in (o, *torch.autograd.grad(o, own, sp.shard(do, 2)))]
            for what, x, y in list(zip(("o", "dq", "dk", "dv"), found, wanted))[: 4 if method == "heads" else 2]:
                assert torch.equal(x, y.detach()), f"{name} {order} {method}: {what} has other bits: {(x - y).abs().max():.1e}"


class Processes:
    """Up to `count` of them, started once."""

    def __init__(self, count):
        spawn = multiprocessing.get_context("spawn")
        self.folder = tempfile.TemporaryDirectory()
        self.told, self.asked = spawn.Queue(), [spawn.Queue() for _ in range(count)]
        self.each = [
            spawn.Process(target=process, args=(r, count, os.path.join(self.folder.name, "store"), self.asked[r], self.told), daemon=True)
            for r in range(count)
        ]
        for p in self.each:
            p.start()

    def do(self, test, work, ranks, living=None):
        for queue in self.asked[:ranks]:
            queue.put((work.__module__, work.__name__, ranks))
        said = [self.told.get(timeout=290) for _ in range(living or ranks)]
        test.assertEqual([], [s for s in said if s], "\n".join(s for s in said if s))

    def end(self):
        for queue in self.asked:
            queue.put(None)
        for p in self.each:
            p.join(60)
            p.kill()
        self.folder.cleanup()


class NoRanks(unittest.TestCase):
    def test_no_group(self):
        raises(RuntimeError, "mesh: this process is no rank yet: call torch.distributed.init_process_group", lambda: attn.Spread(None, 64))


class Ranks(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.processes = Processes(4)
        cls.addClassCleanup(cls.processes.end)

    def test_variants_over_two(self):
        self.processes.do(self, work_of_variants, 2)

    def test_variants_over_three(self):
        self.processes.do(self, work_of_variants, 3)

    def test_variants_over_four(self):
        self.processes.do(self, work_of_variants, 4)

    def test_random(self):
        for ranks in 2, 3:
            self.processes.do(self, work_of_random, ranks)

    def test_pages(self):
        for ranks in 1, 2, 3:
            self.processes.do(self, work_of_pages, ranks)

    def test_sequences_one_behind_the_other(self):
        for ranks in 2, 3:
            self.processes.do(self, work_of_packed, ranks)

    def test_recurrences(self):
        for ranks in 2, 3:
            self.processes.do(self, work_of_recurrences, ranks)

    def test_two_dimensions(self):
        self.processes.do(self, work_of_two_dimensions, 4)

    def test_the_same_bits_on_any_number_of_ranks(self):
        for ranks in 2, 3:
            self.processes.do(self, work_of_bits, ranks)

    def test_one_rank(self):
        self.processes.do(self, work_of_one_rank, 1)

    def test_only_needed_keys_travel(self):
        self.processes.do(self, work_of_one_step, 3)

    def test_memory_is_that_of_a_rank(self):
        for ranks in 2, 4:
            self.processes.do(self, work_of_memory, ranks)

    def test_a_plan_knows_starts_again(self):
        """Those of a device whose values are not read: as many of the same memory, that nobody has written since."""
        known, x = _packed_ranks._identity, torch.empty(5, dtype=torch.int32, device="meta")
        self.assertEqual(known(x), known(x[:]))
        self.assertNotEqual(known(x), known(x[:3]))
        before = known(x)
        self.assertNotEqual(before, known(x.zero_()))
        with torch.inference_mode():
            self.assertEqual((0, 3), known(torch.tensor([0, 3])))
        several = [torch.tensor(at, dtype=t) for at in ([0, 3], [0, 1, 3]) for t in (torch.int32, torch.int64)]
        self.assertEqual([(0, 3), (0, 3), (0, 1, 3), (0, 1, 3)], [known(at) for at in several])

    def test_plans_and_balance(self):
        self.processes.do(self, work_of_plans, 4)

    def test_all_ranks_raise(self):
        self.processes.do(self, work_of_errors, 3)

    def test_the_example_has_the_losses_of_one_process(self):
        """Started with the variables that torchrun sets: torchrun itself runs neither in Debian 12 (Python 3.11) nor 13 (no libuv)."""
        example = [sys.executable, os.path.join(ROOT, "python", "examples", "train.py"), "--steps=6"]
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        of_all = {**os.environ, "WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "USE_LIBUV": "0"}
        started = [subprocess.Popen(example, stdout=subprocess.PIPE)]
        for r in range(4):
            given = {**of_all, "RANK": str(r), "LOCAL_RANK": str(r)}
            started.append(subprocess.Popen([*example, "--sequence=2"], stdout=subprocess.PIPE, env=given))
        said = [p.communicate(timeout=200)[0].decode() for p in started]
        self.assertEqual([0] * 5, [p.returncode for p in started])
        alone, spread = ([float(line.split()[-1]) for line in text.splitlines()] for text in said[:2])
        self.assertEqual(6, len(alone))
        self.assertLess(alone[-1], alone[0] / 4)
        self.assertLess(max(abs(a - b) for a, b in zip(alone, spread)), 1e-3, (alone, spread))

    def test_a_dead_rank_is_named(self):
        processes = Processes(2)
        self.addCleanup(processes.end)
        processes.do(self, work_of_a_death, 2, 1)

    def test_failures_end_in_time(self):
        self.processes.do(self, work_of_failures, 4)


class Played(unittest.TestCase):
    """tools/ranks_sim.py"""

    def test_is_near_what_two_and_four_gpus_took_and_the_chart_is_its_own(self):
        path = os.path.join(ROOT, "tools", "ranks_sim.py")
        spec = importlib.util.spec_from_file_location("ranks_sim", path)
        played = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(played)
        for case, measured, found in played.against_measured():
            self.assertLess(abs(found / measured - 1), 0.1, case)
        with open(os.path.join(ROOT, "docs", "img", "ranks.svg"), encoding="utf-8") as chart:
            self.assertEqual(chart.read(), played.chart())


if __name__ == "__main__":
    unittest.main()
