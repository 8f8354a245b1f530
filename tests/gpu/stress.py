#!/usr/bin/env python3
"""stress.py TARGET [SECONDS [FIRST]]: random batches of sequences against float64, one for each number from FIRST on, until the time is over.

Each number says a batch: variant, layout, heads, lengths of queries and keys, pages and their order, hints, offsets. What is behind the
sequences, in pools and results, is NaN. Rows of sequences are compared with PyTorch in float64, row by row; those of nobody have to stay as
they are; a second launch has to give the same bits. The last line says where the next run goes on: `next N`. A failure says its number."""

import os
import random
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import torch

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../python"))
import attn  # noqa: E402

TARGET, D = sys.argv[1], 128
HOST = TARGET == "host"
DEVICE, DTYPE = ("cpu", torch.float32) if HOST else ("cuda", torch.bfloat16)
BOUND = 2**-17 if HOST else 2**-7  # of what a row's weights and the magnitudes of its values sum to
HEAD = "import std.mask; import std.modify; import std.normalization; attention t { dim D = 128; score(q, k) = dot(q, k) * rsqrt(D); "
SOFTMAX, CAUSAL = "normalize(s) = softmax(s); }", "mask(b, h, i, j) = causal(i, j); "
SINK = "input sink: f32[H]; normalize(s, b, h) = softmax_with_sink(s, sink[h]); }"
SOURCES = {
    "full": HEAD + SOFTMAX,
    "causal": HEAD + CAUSAL + SOFTMAX,
    "window": HEAD + "mask(b, h, i, j) = window(i, j, 50); " + SINK,
    "cap": HEAD + "modify(s) = tanh_cap(s, 2.0); " + CAUSAL + SINK,
    "linear": HEAD + "modify(s, b, h, i, j) = s - 0.01 * (i - j); " + CAUSAL + SOFTMAX,
    "relu": HEAD + "modify(s) = max(s, 0) / Sk; " + CAUSAL + "normalize(s) = s; }",
}
KINDS = [(name, layout, False) for name in SOURCES for layout in ("ragged", "paged", "paged:16")]
KINDS += [("causal", "paged:1", False), ("window", "paged:64", False), ("causal", "ragged", True), ("cap", "paged:16", True)]
LENGTHS = (0, 1, 15, 16, 17, 63, 64, 65, 127, 128, 129, 255, 256, 257)


def compiled(kind):
    name, layout, invariant = kind
    kernel = attn.compile(SOURCES[name], target=TARGET, dtype="f32" if HOST else "bf16", layout=layout, invariant=invariant)
    if not HOST:  # the driver compiles each kernel for its first launch
        for queries in (1, 300):
            launch(Batch(random.Random(queries), layout, queries), kernel, name)
    return kernel


class Batch:
    def __init__(self, r, layout, queries=None):
        self.layout = layout
        self.page = int(layout[6:] or 0) or r.choice((1, 5, 16, 48, 64, 128, 1000)) if layout != "ragged" else 1
        self.HKV, group = r.choice(((1, 1), (2, 1), (1, 3), (2, 4), (4, 4), (1, 8), (2, 8), (1, 16), (1, 128)))
        self.H, self.B = self.HKV * group, r.choice((1, 1, 2, 3, 5, 8, 13, 40))
        longest = r.choice((64, 300, 300, 1000, 9000)) if self.B < 9 else 300
        decode = r.random()  # how many of the sequences have one query
        self.keys = [min(r.choice(LENGTHS), longest) if r.random() < 0.4 else r.randint(0, longest) for _ in range(self.B)]
        self.queries = [1 if r.random() < decode else r.choice((0, 1, 2, 4, 16, 17, 130, r.randint(0, 300))) for _ in range(self.B)]
        if queries:
            self.queries, self.keys = [queries] * self.B, [max(n, 300) for n in self.keys]
        self.hint = r.choice((max(self.queries), max(self.queries), 1, 5, 64, 4000))
        self.offsets = [r.randint(-20, 400) for _ in range(self.B)] if r.random() < 0.15 else None
        self.seed = r.randrange(1 << 30)

    def tensors(self):
        g = torch.Generator(DEVICE).manual_seed(self.seed)
        self.Tq = sum(self.queries) + 7
        randn = lambda *shape: torch.randn(*shape, generator=g, device=DEVICE).to(DTYPE)  # noqa: E731
        scale = 3.0 if self.seed % 3 == 0 else 1.0
        self.q, self.sink = randn(self.Tq, self.H, D) * scale, torch.randn(self.H, generator=g, device=DEVICE)
        k, v = (randn(sum(self.keys), self.HKV, D) for _ in range(2))
        rows = []  # of each sequence's keys in the pool
        if self.layout == "ragged":
            total, at = sum(self.keys) + 3, 0
            for n in self.keys:
                rows.append(torch.arange(at, at + n, device=DEVICE))
                at += n
            shape = (total,)
        else:
            used = [-(-n // self.page) for n in self.keys]
            pages = max(1, sum(used) + 2)
            order = torch.randperm(pages, generator=g, device=DEVICE)
            self.table = torch.full((self.B, max(1, max(used))), -1, dtype=torch.int32, device=DEVICE)
            total, at, shape = pages * self.page, 0, (pages, self.page)
            for b, n in enumerate(used):
                ids = order[at : at + n]
                self.table[b, :n], at = ids.int(), at + n
                rows.append((ids[:, None] * self.page + torch.arange(self.page, device=DEVICE)).flatten()[: self.keys[b]])
        self.flat = [torch.full((total, self.HKV, D), float("nan"), dtype=DTYPE, device=DEVICE) for _ in range(2)]
        every = torch.cat(rows)
        for pool, x in zip(self.flat, (k, v)):
            pool[every] = x
        self.k, self.v = (pool.view(*shape, self.HKV, D) for pool in self.flat)
        self.rows = rows


def starts(lengths):
    return torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32, device=DEVICE)


def launch(x, kernel, name):
    if not hasattr(x, "q"):
        x.tensors()
    given = {"q_start": starts(x.queries), "max_q": x.hint}
    if x.layout == "ragged":
        given["kv_start"] = starts(x.keys)
    else:
        given.update(page_table=x.table, kv_len=torch.tensor(x.keys, dtype=torch.int32, device=DEVICE))
    if name in ("window", "cap"):
        given["sink"] = x.sink
    if x.offsets:
        given["q_offset"] = torch.tensor(x.offsets, dtype=torch.int32, device=DEVICE)
    out = torch.full((x.Tq, x.H, D), float("nan"), dtype=DTYPE, device=DEVICE)
    kernel(x.q, x.k, x.v, out=out, **given)
    return out


def expected(x, name, b, first):
    """Of sequence b: its rows, and what the magnitudes of values sum to."""
    Sq, Sk = x.queries[b], x.keys[b]
    k, v = (pool[x.rows[b]].double().repeat_interleave(x.H // x.HKV, 1) for pool in x.flat)
    offset = x.offsets[b] if x.offsets else max(Sk - Sq, 0)
    i, j = torch.arange(Sq, device=DEVICE)[:, None] + offset, torch.arange(Sk, device=DEVICE)
    s = torch.einsum("ihd,jhd->hij", x.q[first : first + Sq].double(), k) * D**-0.5
    mask = torch.ones(Sq, Sk, dtype=torch.bool, device=DEVICE) if name == "full" else j <= i
    if name == "window":
        mask = mask & (i - j < 50)
    if name == "cap":
        s = 2.0 * torch.tanh(s / 2.0)
    if name == "linear":
        s = s - 0.01 * (i - j)
    if name == "relu":
        w = s.clamp(min=0).masked_fill(~mask, 0) / max(Sk, 1)
    else:
        sink = x.sink.double()[:, None, None].expand(-1, Sq, 1) if name in ("window", "cap") else torch.full_like(s[..., :1], float("-inf")) if Sk else s
        s = torch.cat([s.masked_fill(~mask, float("-inf")), sink[..., :1]], 2)
        w = s.softmax(-1).nan_to_num()[..., :Sk] * mask.any(1)[:, None]
    size = w
    if name == "relu":  # small weights are differences of what scores sum up
        terms = torch.einsum("ihd,jhd->hij", x.q[first : first + Sq].double().abs(), k.abs()) * D**-0.5
        size = w + terms.masked_fill(~mask, 0) / (8 * max(Sk, 1))
    return torch.einsum("hij,jhd->ihd", w, v), torch.einsum("hij,jhd->ihd", size, v.abs())


def check(number, kernels):
    r = random.Random(number)
    kind = KINDS[number % len(KINDS)]
    x = Batch(r, kind[1])
    what = f"{number}: {kind}, page {x.page}, heads {x.H}/{x.HKV}, max_q {x.hint}, queries {x.queries}, keys {x.keys}, offsets {x.offsets}"
    try:
        out = launch(x, kernels[kind], kind[0])
        again = launch(x, kernels[kind], kind[0])
    except attn.Error as e:
        return f"{what}: {e}"
    bits = torch.int32 if HOST else torch.int16
    if not torch.equal(out.view(bits), again.view(bits)):
        return f"{what}: a second launch gives other bits"
    first, worst = 0, 0.0
    for b, n in enumerate(x.queries):
        if n:
            want, most = expected(x, kind[0], b, first)
            got = out[first : first + n].double()
            if not bool(got.isfinite().all()):
                return f"{what}: sequence {b} has rows that are not finite"
            error = (got - want).norm(dim=-1) / most.norm(dim=-1).clamp(min=1e-30)
            worst = max(worst, float(error.max()))
            if worst > BOUND:
                return f"{what}: sequence {b} is off by {worst:.3g}"
        first += n
    if not bool(out[first:].isnan().all()):
        return f"{what}: rows of nobody were written"
    return None


def main():
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 60
    number = first = int(sys.argv[3]) if len(sys.argv) > 3 else 0
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        kernels = dict(zip(KINDS, pool.map(compiled, KINDS)))
    end, failed = time.monotonic() + seconds, 0
    with torch.no_grad():
        while time.monotonic() < end and failed < 10:
            why = check(number, kernels)
            if why:
                failed += 1
                print("FAIL", why, flush=True)
            number += 1
    print(f"{number - first - failed} passed, {failed} failed; next {number}")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
