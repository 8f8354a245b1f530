#!/usr/bin/env python3
"""serving.py TARGET [SEED]: paged and ragged kernels on a GPU, driven as an engine does: one CUDA graph that is replayed with other lengths, starts, ids and data;
pools full of NaN outside of what sequences have; views of pools; numbers that no engine should write. TARGET host tries the script, without graphs.

Prints `ok NAME` or `FAIL NAME: why` for each test, and `N passed, N failed`. Bits are compared with launches outside of graphs, and numbers with PyTorch in float64."""

import os
import sys

import torch

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../python"))
import attn  # noqa: E402

TARGET, SEED = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 0
DEVICE = "cpu" if TARGET == "host" else "cuda"
DTYPE = torch.float32 if TARGET == "host" else torch.bfloat16
D, WINDOW = 128, 50
INT_MAX, INT_MIN = 2**31 - 1, -(2**31)
G = torch.Generator().manual_seed(SEED)
HEAD = "import std.mask; import std.normalization; attention t { dim D = 128; input sink: f32[H]; score(q, k) = dot(q, k) * rsqrt(D); "
SOURCES = {
    "causal": HEAD + "mask(b, h, i, j) = causal(i, j); normalize(s, b, h) = softmax_with_sink(s, sink[h]); }",
    "window": HEAD + f"mask(b, h, i, j) = window(i, j, {WINDOW}); normalize(s, b, h) = softmax_with_sink(s, sink[h]); }}",
}


def compiled(name, layout):
    key = name, layout
    if key not in compiled.made:
        compiled.made[key] = attn.compile(SOURCES[name], target=TARGET, dtype="f32" if TARGET == "host" else "bf16", layout=layout)
    return compiled.made[key]


compiled.made = {}


def i32(x):
    return torch.as_tensor(x, dtype=torch.int32).to(DEVICE)


def randn(*shape):
    return torch.randn(*shape, generator=G).to(DEVICE, DTYPE)


def one(low, high):
    return int(torch.randint(low, high, (1,), generator=G))


class Batch:
    """A paged call: its tensors stay where they are, draw() fills them anew."""

    def __init__(self, B, H, HKV, page, table, pages, Tq):
        self.B, self.H, self.HKV, self.page, self.table, self.pages, self.Tq = B, H, HKV, page, table, pages, Tq
        self.base = [randn(pages, page, HKV, D) for _ in range(2)]
        self.k, self.v = (x.clone() for x in self.base)
        self.q, self.sink = randn(Tq, H, D), torch.randn(H, generator=G).to(DEVICE)
        self.out = torch.empty(Tq, H, D, dtype=DTYPE, device=DEVICE)
        self.lens, self.starts, self.ids = (torch.zeros(n, dtype=torch.int32, device=DEVICE) for n in ((B,), (B + 1,), (B, table)))

    def draw(self):
        """Sequences with and without keys and queries; rows of nobody behind; entries behind the end that are no pages."""
        lens = [one(0, 2) * one(0, self.table * self.page + 1) for _ in range(self.B)]
        starts = sorted(one(0, self.Tq + 1) for _ in range(self.B + 1))
        ids = torch.randint(self.pages, (self.B, self.table), generator=G)
        live = torch.zeros(self.pages * self.page, dtype=torch.bool)
        for b, n in enumerate(lens):
            used = -(-n // self.page)
            ids[b, used:] = torch.tensor([-1, INT_MAX, INT_MIN, self.pages])[torch.randint(4, (self.table - used,), generator=G)]
            j = torch.arange(n)
            live[ids[b, j // self.page] * self.page + j % self.page] = True
        self.lens.copy_(i32(lens)), self.starts.copy_(i32(starts)), self.ids.copy_(ids.to(torch.int32))
        self.q.copy_(randn(*self.q.shape))
        for x, base in zip((self.k, self.v), self.base):
            x.copy_(base)
            x.flatten(0, 1)[~live.to(DEVICE)] = float("nan")

    def launch(self, kernel, out=None, **other):
        given = {"page_table": self.ids, "kv_len": self.lens, "q_start": self.starts, "sink": self.sink, "max_q": 8, **other}
        return kernel(given.pop("q", self.q), given.pop("k", self.k), given.pop("v", self.v), out=self.out if out is None else out, **given)

    def expected(self, name):
        """PyTorch in float64, with clamped lengths and ids; NaN where nothing is written."""
        o = torch.full((self.Tq, self.H, D), float("nan"), dtype=torch.float64)
        k, v = (x.flatten(0, 1).cpu().double() for x in (self.k, self.v))
        lens, starts, ids = self.lens.tolist(), self.starts.tolist(), self.ids.cpu().long().clamp(0, self.pages - 1)
        for b in range(self.B):
            begin = min(max(starts[b], 0), self.Tq)
            end = min(max(starts[b + 1], begin), self.Tq)
            n, Sq = min(max(lens[b], 0), self.table * self.page), end - begin
            j = torch.arange(n)
            rows = ids[b, j // self.page] * self.page + j % self.page
            i = torch.arange(Sq)[:, None] + max(n - Sq, 0)
            mask = (j <= i) & (i - j < (WINDOW if name == "window" else INT_MAX))
            kb, vb = (x[rows].repeat_interleave(self.H // self.HKV, 1) for x in (k, v))
            s = torch.einsum("ihd,jhd->hij", self.q[begin:end].cpu().double(), kb) * D**-0.5
            s = torch.cat([s.masked_fill(~mask, float("-inf")), self.sink.cpu().double()[:, None, None].expand(-1, Sq, 1)], 2)
            o[begin:end] = torch.einsum("hij,jhd->ihd", s.softmax(-1)[..., :-1], vb) * mask.any(1)[:, None, None]
        return o


def bits(x):
    return x.view(torch.int16 if x.element_size() == 2 else torch.int32)


def same(x, y, what):
    assert torch.equal(bits(x), bits(y)), f"{what}: {int((bits(x) != bits(y)).sum())} elements have other bits"


def near(x, want, what):
    x = x.cpu().double()
    assert torch.equal(x.isnan(), want.isnan()), f"{what}: NaN where there should be none, or rows written that are nobody's"
    norm = want.nan_to_num().norm()
    error = float((x - want).nan_to_num().norm() / norm) if norm else float(x.nan_to_num().norm())
    assert error < (1e-5 if DTYPE == torch.float32 else 1.2e-2), f"{what}: relative error {error:.3g}"


def test_replays():
    for name, layout in (("causal", "paged"), ("window", "paged:16"), ("causal", "paged:16")):
        kernel, x = compiled(name, layout), Batch(6, 8, 2, 16, 7, 40, 24)
        x.draw()
        x.launch(kernel)
        if DEVICE == "cuda":
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                x.launch(kernel)
        for n in range(300 if DEVICE == "cuda" else 30):
            x.draw()
            x.out.fill_(float("nan"))
            graph.replay() if DEVICE == "cuda" else x.launch(kernel)
            eager = x.launch(kernel, out=torch.full_like(x.out, float("nan")))
            same(x.out, eager, f"{name}, {layout}, replay {n}")
            if n % 10 == 0:
                near(x.out, x.expected(name), f"{name}, {layout}, replay {n}")


def test_abuse():
    values = [-1, INT_MAX, INT_MIN, 0, 1, 39, 40, 41]
    for name in SOURCES:
        kernel, x = compiled(name, "paged"), Batch(8, 4, 4, 5, 6, 40, 30)
        for n in range(60):
            x.k.copy_(x.base[0]), x.v.copy_(x.base[1])
            pick = lambda *shape: torch.tensor(values)[torch.randint(len(values), shape, generator=G)].to(torch.int32)  # noqa: E731
            x.ids.copy_(pick(8, 6)), x.lens.copy_(pick(8)), x.starts.copy_(pick(9).clamp(max=50) if n % 2 else i32(range(0, 36, 4)))
            x.out.fill_(float("nan"))
            x.launch(kernel)
            owners = torch.zeros(x.Tq, dtype=torch.int32)
            for a, b in zip(x.starts[:-1].tolist(), x.starts[1:].tolist()):
                a = min(max(a, 0), x.Tq)
                owners[a : min(max(b, a), x.Tq)] += 1
            want, got = x.expected(name), x.out.clone()
            want[owners > 1], got[(owners > 1).to(DEVICE)] = 0, 0  # rows of several are written in any order
            near(got, want, f"{name}, round {n}")


def test_a_bad_id_spoils_its_own_sequence_only():
    kernel, x = compiled("causal", "paged"), Batch(4, 8, 1, 16, 5, 30, 16)
    x.k.copy_(x.base[0]), x.v.copy_(x.base[1])
    x.ids.copy_(torch.randint(30, (4, 5), generator=G).to(torch.int32)), x.lens.fill_(80), x.starts.copy_(i32([0, 4, 8, 12, 16]))
    good = x.launch(kernel).clone()
    for bad in (-1, INT_MAX, INT_MIN, 30):
        x.ids[2, 1] = bad
        o = x.launch(kernel)
        same(o[:8], good[:8], "sequences before it")
        same(o[12:], good[12:], "the sequence behind it")


def test_sizes():
    for B, H, HKV, page, table, pages, Tq in ((5, 4, 4, 1, 33, 50, 11), (3, 128, 1, 16, 9, 20, 5), (2, 8, 2, 1000, 1, 3, 70), (2, 2, 2, 64, 3, 4, 300),
                                              (4, 4, 2, 16, 0, 3, 9), (4, 4, 2, 16, 3, 0, 9), (0, 4, 2, 16, 3, 5, 9), (2, 4, 2, 16, 3, 5, 0), (5000, 2, 1, 4, 2, 30, 5000)):  # fmt: skip
        x = Batch(B, H, HKV, page, table, max(pages, 1), Tq)
        x.draw()
        if pages == 0:
            x.k, x.v = x.k[:0], x.v[:0]
        x.out.fill_(float("nan"))
        x.launch(compiled("causal", "paged"))
        if pages == 0:
            x.lens.zero_()
            x.k, x.v = x.base
        near(x.out, x.expected("causal"), f"B={B} H={H} Hkv={HKV} page={page} table={table} pages={pages} Tq={Tq}")


def test_views():
    x = Batch(6, 8, 2, 16, 7, 40, 24)
    for name in SOURCES:
        kernel = compiled(name, "paged")
        x.draw()
        x.out.fill_(float("nan"))
        x.launch(kernel)
        near(x.out, x.expected(name), name)
        pool = torch.full((3, 40, 2, 16, 2, D), float("nan"), dtype=DTYPE, device=DEVICE)  # layers, pages, K and V
        pool[1, :, 0], pool[1, :, 1] = x.k, x.v
        k, v = pool[1].unbind(1)
        hnd = [torch.empty(40, 2, 16, D, dtype=DTYPE, device=DEVICE).transpose(1, 2).copy_(y) for y in (x.k, x.v)]
        for k, v, what in ((k, v, "interleaved"), (*hnd, "HND")):
            same(x.launch(kernel, k=k, v=v, out=torch.full_like(x.out, float("nan"))), x.out, f"{name}, {what}")


def test_far_strides():
    """A pool of which pages lie gigabytes apart: beyond 2^31 elements."""
    if DEVICE == "cpu" or torch.cuda.mem_get_info()[0] < 24 << 30:
        return
    x, apart = Batch(3, 4, 2, 16, 3, 5, 12), 9 << 28
    x.draw()
    memory = torch.empty(4 * apart + 2 * 16 * 2 * D, dtype=DTYPE, device=DEVICE)
    k = memory.as_strided(x.k.shape, (apart, 2 * D, D, 1))
    v = memory.as_strided(x.k.shape, (apart, 2 * D, D, 1), 16 * 2 * D)
    k.copy_(x.k), v.copy_(x.v)
    x.out.fill_(float("nan"))
    same(x.launch(compiled("causal", "paged"), k=k, v=v, out=torch.full_like(x.out, float("nan"))), x.launch(compiled("causal", "paged")), "pages apart")


def test_ragged():
    for name in SOURCES:
        kernel, x = compiled(name, "ragged"), Batch(6, 8, 2, 1, 300, 900, 200)
        for n in range(10):
            x.draw()
            ends = torch.cat([torch.zeros(1, dtype=torch.int64), x.lens.cpu().long().cumsum(0)])
            row = [x.ids[b, : x.lens[b]].long() for b in range(6)]
            row = torch.cat(row)
            given = {"q_start": x.starts, "kv_start": i32(ends), "sink": x.sink}
            behind = torch.full((5, 2, D), float("nan"), dtype=DTYPE, device=DEVICE)
            k, v = (torch.cat([y.flatten(0, 1)[row], behind]) for y in (x.k, x.v))
            x.out.fill_(float("nan"))
            kernel(x.q, k, v, out=x.out, **given)
            near(x.out, x.expected(name), f"{name}, round {n}")


def test_parts():
    """States of three ranges of each sequence's keys, one after the other or side by side, and what they are combined to. A sequence may have no key in a range."""
    for name, layout in (("causal", "ragged"), ("window", "ragged"), ("causal", "paged"), ("window", "paged:16")):
        kernel = attn.compile(SOURCES[name], target=TARGET, dtype="f32" if TARGET == "host" else "bf16", layout=layout, phase="fwd,part")
        for n in range(6):
            x = Batch(6, 8, 2, 16, 20, 200, 24 if n % 2 else 400)
            x.draw()
            lens, starts = x.lens.cpu().long(), x.starts.cpu().long()
            cuts = [torch.zeros(6, dtype=torch.int64), *((lens * t // 3 // 16 * 16 for t in (1, 2))), lens]
            whole = {"q_start": x.starts, "q_offset": i32((lens - starts.diff()).clamp(min=0)), "q_first": i32([0] * 6)}
            whole.update(Sq_all=i32(starts.diff()), sink=x.sink, max_q=int(starts.diff().max()) if n < 4 else 1)
            sides, kept = [], None
            for low, high in zip(cuts, cuts[1:]):
                if layout == "ragged":
                    of, row = (torch.cat(y).to(DEVICE) for y in zip(*((torch.full((b - a,), s), torch.arange(a, b)) for s, (a, b) in enumerate(zip(low.tolist(), high.tolist())))))
                    rows = x.ids[of, row // 16].long() * 16 + row % 16
                    k, v = (torch.cat([y.flatten(0, 1)[rows], torch.full_like(y[0], float("nan"))]) for y in (x.k, x.v))
                    given = {"k": k, "v": v, "kv_start": i32([0, *(high - low).cumsum(0)])}
                else:
                    table = [torch.cat([ids[n:], ids[:n]]) for ids, n in zip(x.ids.cpu(), low // 16)]
                    given = {"k": x.k, "v": x.v, "kv_len": i32(high - low), "page_table": i32(torch.stack(table))}
                given.update(whole, kv_first=i32(low), Sk_all=i32(lens))
                sides.append(kernel.part(x.q, **given))
                before = {} if kept is None else dict(zip(("state0", "rows0"), kept))
                kept = kernel.part(x.q, **given, **before)
            for states in (sides, [kept]):
                state, rows = (torch.stack(y) for y in zip(*states))
                x.out.fill_(float("nan"))
                kernel.combine(state=state, rows=rows, out=x.out, Sk_all=i32(lens), **whole)
                near(x.out, x.expected(name), f"{name}, {layout}, round {n}, {len(states)} states")


GRADIENTS = {
    "full": "",
    "causal": "mask(b, h, i, j) = causal(i, j); ",
    "window": f"mask(b, h, i, j) = window(i, j, {WINDOW}); ",
    "slopes": "modify(s, b, h, i, j) = s - 0.02 * f32(h + 1) * abs(i - j); mask(b, h, i, j) = causal(i, j); ",
}


def packed_kernel(name, D):
    text = f"import std.mask; import std.normalization; attention t {{ dim D = {D}; score(q, k) = dot(q, k) * rsqrt(D); {GRADIENTS[name]}normalize(s) = softmax(s); }}"
    if (name, D) not in compiled.made:
        compiled.made[name, D] = attn.compile(text, target=TARGET, dtype="f32" if TARGET == "host" else "bf16", layout="ragged", phase="fwd,bwd")
    return compiled.made[name, D].kernels[0]


@torch.enable_grad()
def packed_derivative(name, q, k, v, do, starts, keys):
    """dq, dk, dv in float64, document by document; NaN where there is none."""
    found = [torch.full(x.shape, float("nan"), dtype=torch.float64) for x in (q, k, v)]
    for a, b, c, d in zip(starts, starts[1:], keys, keys[1:]):
        x = [t[r].cpu().double().transpose(0, 1).requires_grad_() for t, r in ((q, slice(a, b)), (k, slice(c, d)), (v, slice(c, d)))]
        group = q.shape[1] // k.shape[1]
        i, j = torch.arange(b - a)[:, None] + max(d - c - b + a, 0), torch.arange(d - c)
        s = x[0] @ x[1].repeat_interleave(group, 0).transpose(1, 2) * q.shape[2] ** -0.5
        if name == "slopes":
            s = s - 0.02 * (torch.arange(q.shape[1])[:, None, None] + 1) * (i - j).abs()
        mask = torch.ones_like(i - j, dtype=torch.bool) if name == "full" else (j <= i) & (i - j < (WINDOW if name == "window" else INT_MAX))
        w = s.masked_fill(~mask, float("-inf")).softmax(-1).masked_fill(~mask, 0) if d > c else s
        o = w @ x[2].repeat_interleave(group, 0)
        gradients = torch.autograd.grad((o * do[a:b].cpu().double().transpose(0, 1)).sum(), x)
        for y, g, r in zip(found, gradients, (slice(a, b), slice(c, d), slice(c, d))):
            y[r] = g.transpose(0, 1)
    return found


def test_gradients_of_packed_documents():
    """Rows of nobody before, between and behind the documents hold NaN, and nothing is written there."""
    lengths = [(1, 1), (0, 0), (63, 63), (64, 64), (65, 130), (0, 7), (5, 0), (200, 300), (129, 129), (2, 400), (511, 511), (0, 0)]
    for name in GRADIENTS:
        for D, H, HKV in ((64, 2, 2), (128, 4, 2), (256, 3, 1)):
            kernel = packed_kernel(name, D)
            for n in range(3):
                own = [lengths[i] for i in torch.randperm(len(lengths), generator=G).tolist()] if n else [(77, 77)] * 9
                starts, keys = ([3 + sum(x[side] for x in own[:b]) for b in range(len(own) + 1)] for side in (0, 1))
                rows = [torch.zeros(x[-1] + 10, dtype=torch.bool, device=DEVICE) for x in (starts, keys)]
                for x, own in zip(rows, (starts, keys)):
                    x[own[0] : own[-1]] = True
                q, do = (randn(len(rows[0]), H, D) for _ in range(2))
                k, v = (randn(len(rows[1]), HKV, D) for _ in range(2))
                for x, own in ((q, rows[0]), (do, rows[0]), (k, rows[1]), (v, rows[1])):
                    x[~own] = float("nan")
                given = {"q": q, "k": k, "v": v, "q_start": i32(starts), "kv_start": i32(keys), "max_q": (0, 100, 600)[n]}
                back = kernel.backward
                saved = [x for x in back.inputs if x in kernel.outputs and x != "o"]
                o = torch.full_like(do, float("nan"))
                kept = kernel(**given, emit=saved, out=o)
                given.update(zip(["o", *saved], kept if saved else [kept]))
                given["dlse"] = torch.where(rows[0][:, None], 0.0, float("nan")).repeat(1, H)  # nothing comes of the emit
                out = {"d" + x: torch.full_like(given[x], float("nan")) for x in ("q", "k", "v")}
                back(**{x: y for x, y in given.items() if x in back.inputs or x == "max_q"}, do=do, out=out, emit=list(out))
                for x, want in zip(out, packed_derivative(name, q, k, v, do, starts, keys)):
                    own = rows[x != "dq"]
                    assert bool((out[x][~own].isnan() | (out[x][~own] == 0)).all()), f"{name}, {x}: rows of nobody are written"
                    near(out[x][own], want[own.cpu()], f"{name}, {D} columns, {H} and {HKV} heads, round {n}: {x}")


def test_again_and_on_two_streams():
    kernel, x = compiled("causal", "paged"), Batch(16, 8, 2, 16, 40, 300, 64)
    x.draw()
    x.out.fill_(float("nan"))
    x.launch(kernel)
    outs = [torch.full_like(x.out, float("nan")) for _ in range(2)]
    streams = [torch.cuda.Stream() for _ in range(2)] if DEVICE == "cuda" else [None, None]
    for n in range(50):
        for stream, o in zip(streams, outs):
            o.fill_(float("nan"))
            if stream is None:
                x.launch(kernel, out=o)
                continue
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                x.launch(kernel, out=o)
        for stream in streams:
            if stream is not None:
                torch.cuda.current_stream().wait_stream(stream)
        for o in outs:
            same(o, x.out, f"round {n}")


def test_hints():
    """max_q, wrong both ways: other tiles, no other rows."""
    kernel, x = compiled("causal", "paged"), Batch(6, 8, 2, 16, 7, 40, 200)
    for n in range(10):
        x.draw()
        want = x.expected("causal")
        for max_q in (0, 1, 7, 64, 200, 100000):
            x.out.fill_(float("nan"))
            x.launch(kernel, max_q=max_q)
            near(x.out, want, f"max_q = {max_q}")


def main():
    passed = failed = 0
    print("seed", SEED)
    for name, test in sorted(globals().items()):
        if not name.startswith("test_"):
            continue
        try:
            with torch.no_grad():
                test()
            passed += 1
            print("ok", name[5:], flush=True)
        except (AssertionError, attn.Error, attn.CompileError, RuntimeError) as e:
            failed += 1
            print(f"FAIL {name[5:]}: {str(e).strip().splitlines()[0]}", flush=True)
    print(f"{passed} passed, {failed} failed")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
