"""The rows of bench.py --serving: batches of sequences, each with queries and keys of its own, in the layouts that serving has.

Keys lie dense where all sequences are alike, ragged, or in pages of 16 or 256 (MLA: 64) in random order. A peer has the same layout: FlashAttention-3
as it is called for a cache, with pages or packed rows; cuDNN; FlashMLA, with its plan made before, where mla_dense can be imported. TB/s
counts each row of q, k, v and o once, TFLOP/s the pairs inside the causal mask. Before that, the last queries of the longest and of the
last sequence are compared with float64."""

import importlib.util
import itertools
import math
import os

CAUSAL = "mask(b, h, q, k) = causal(q, k); normalize(s) = softmax(s);"
# what is compiled: the body, D, Dv
SOURCES = {"causal": (CAUSAL, 128, 128), "mla": ("share v = k; " + CAUSAL, 576, 512)}
DECODE, HALVES = (1, 8192), [8192 >> n for n in range(8)]
# name: source, heads of q and of k, (queries, keys) of each sequence
BATCHES = {
    "decode, 1 of 4096": ("causal", 32, 8, [(1, 4096)]),
    "decode, 1 of 131072": ("causal", 32, 8, [(1, 131072)]),
    "decode, 8 of 32768": ("causal", 64, 8, [(1, 32768)] * 8),
    "decode, 64 of 8192": ("causal", 32, 8, [DECODE] * 64),
    "decode, 128 of 1024": ("causal", 32, 8, [(1, 1024)] * 128),
    "decode, 8 of 1024 to 32768": ("causal", 32, 8, [(1, n << 10) for n in (1, 2, 4, 8, 12, 16, 24, 32)]),
    "4 queries each, 16 of 16384": ("causal", 32, 8, [(4, 16384)] * 16),
    "a chunk of 2048 on 8192": ("causal", 32, 8, [(2048, 8192)]),
    "8 chunks of 512 on 32768": ("causal", 32, 8, [(512, 32768)] * 8),
    "prompts of 8192, 4096, .. 64": ("causal", 32, 8, [(n, n) for n in HALVES]),
    "a chunk of 2048 and 63 decodes, on 8192": ("causal", 32, 8, [(2048, 8192), *[DECODE] * 63]),
    "documents, 8 of 2048": ("causal", 16, 16, [(2048, 2048)] * 8),
    "documents, 64 of 256": ("causal", 16, 16, [(256, 256)] * 64),
    "MLA decode, 128 of 4096": ("mla", 128, 1, [(1, 4096)] * 128),
    "MLA, 2 queries each, 128 of 4096": ("mla", 128, 1, [(2, 4096)] * 128),
    "MLA decode, 64 of 16384": ("mla", 128, 1, [(1, 16384)] * 64),
    "MLA decode, 16 of 8192": ("mla", 128, 1, [(1, 8192)] * 16),
    "MLA decode, 16 heads, 128 of 8192": ("mla", 16, 1, [DECODE] * 128),
}


def layouts(batch):
    source, _, _, sequences = BATCHES[batch]
    pages = ["paged:64"] if source == "mla" else ["ragged"] if batch.startswith("documents") else ["ragged", "paged:16", "paged:256"]
    return ["dense"] * (len(set(sequences)) == 1) + pages


ROWS = [(batch, layout) for batch in BATCHES for layout in layouts(batch)]


def file_of(folder, source, layout):
    return os.path.join(folder, f"serving_{source}_" + layout.replace(":", "_"))


def compiled():
    """What the rows need: the file, the source and the options of each kernel."""
    for source, layout in sorted({(BATCHES[batch][0], layout) for batch, layout in ROWS}):
        text, D, Dv = SOURCES[source]
        yield file_of("", source, layout), text, [f"-DD={D}", f"-DDv={Dv}", f"--layout={layout}"]


class Batch:
    """Rows of q, k and v, and the same keys in pages."""

    def __init__(self, torch, batch, layout):
        self.torch, self.layout = torch, layout
        self.source, self.H, self.Hkv, self.sequences = BATCHES[batch]
        _, self.D, self.Dv = SOURCES[self.source]
        self.queries, self.keys = zip(*self.sequences)
        self.q_start, self.k_start = ([0, *itertools.accumulate(x)] for x in (self.queries, self.keys))
        self.alike = len(set(self.queries)) == 1
        self.q = self.randn(self.q_start[-1], self.H, self.D)
        self.k = self.randn(self.k_start[-1], self.Hkv, self.D)
        self.v = self.k[..., : self.Dv] if self.source == "mla" else self.randn(self.k_start[-1], self.Hkv, self.Dv)
        self.scale = self.D**-0.5
        if layout.startswith("paged"):
            self.fill(int(layout.partition(":")[2]))

    def randn(self, *shape):
        return self.torch.randn(*shape, device="cuda", dtype=self.torch.bfloat16)

    def i32(self, x):
        return self.torch.as_tensor(x, dtype=self.torch.int32, device="cuda")

    def fill(self, page):
        torch, used = self.torch, [-(-n // page) for n in self.keys]
        ids = torch.randperm(sum(used)).split(used)
        table = torch.full((len(used), max(used)), -1)
        rows = torch.cat([(own[:, None] * page + torch.arange(page)).flatten()[:n] for own, n in zip(ids, self.keys)]).cuda()
        for b, own in enumerate(ids):
            table[b, : len(own)] = own
        self.table, self.lens = self.i32(table), self.i32(self.keys)
        self.pages = []
        for x in (self.k, self.v)[: 1 if self.source == "mla" else 2]:
            pages = torch.zeros(sum(used) * page, *x.shape[1:], device="cuda", dtype=x.dtype)
            pages[rows] = x
            self.pages.append(pages.view(-1, page, *x.shape[1:]))

    def by_sequence(self, x):
        return x.view(len(self.sequences), -1, *x.shape[1:])

    # ---- launches; each gives rows [Tq, H, Dv]

    def ours(self, kernel):
        out = self.torch.full((len(self.q), self.H, self.Dv), math.nan, device="cuda", dtype=self.q.dtype)
        keys = {"k": self.k} if self.source == "mla" else {"k": self.k, "v": self.v}
        given, o = {"q": self.q}, out
        if self.layout == "dense":
            given = {n: self.by_sequence(x).transpose(1, 2) for n, x in {**given, **keys}.items()}
            o = self.by_sequence(out).transpose(1, 2)
        elif self.layout == "ragged":
            given.update(keys, q_start=self.i32(self.q_start), kv_start=self.i32(self.k_start), max_q=max(self.queries))
        else:
            given.update(zip(keys, self.pages), page_table=self.table, kv_len=self.lens, q_start=self.i32(self.q_start), max_q=max(self.queries))

        def run():
            kernel(**given, out=o)
            return out

        return run

    def cudnn(self):
        from torch.nn.attention import SDPBackend, sdpa_kernel

        q, k, v = (self.by_sequence(x).transpose(1, 2) for x in (self.q, self.k, self.v))
        same = {"is_causal": True} if self.queries == self.keys else {}

        def run():
            with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                o = self.torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=self.H != self.Hkv, **same)
            return o.transpose(1, 2).flatten(0, 1)

        return run

    def fa3(self):
        from flash_attn_interface import flash_attn_varlen_func, flash_attn_with_kvcache

        starts = {"cu_seqlens_q": self.i32(self.q_start), "max_seqlen_q": max(self.queries)}
        if self.layout == "ragged":
            starts.update(cu_seqlens_k=self.i32(self.k_start), max_seqlen_k=max(self.keys))
            return lambda: flash_attn_varlen_func(self.q, self.k, self.v, **starts, causal=True, num_splits=0)
        q, starts = (self.by_sequence(self.q), {}) if self.alike else (self.q, starts)
        if self.layout == "dense":
            k, v, lens = self.by_sequence(self.k), self.by_sequence(self.v), self.i32(self.keys)
            return lambda: flash_attn_with_kvcache(q, k, v, cache_seqlens=lens, causal=True, **starts).flatten(0, 1)
        k, v = self.pages
        shape = len(self.q), self.H, self.Dv
        return lambda: flash_attn_with_kvcache(q, k, v, cache_seqlens=self.lens, page_table=self.table, causal=True, **starts).reshape(shape)

    def flashmla(self):
        from mla_dense import dense

        q = self.by_sequence(self.q)
        *_, plan, splits = dense(q.clone(), self.pages[0], self.Dv, self.lens, self.table, self.scale, True, None, None)
        return lambda: dense(q, self.pages[0], self.Dv, self.lens, self.table, self.scale, True, plan, splits)[0].flatten(0, 1)

    def peers(self):
        if self.source == "mla":
            return ["flashmla"] * (self.layout != "dense" and importlib.util.find_spec("mla_dense") is not None)
        plain = self.layout == "dense" and (self.queries == self.keys or max(self.queries) == 1)  # what is_causal means there
        return ["cudnn"] * plain + ["fa3"] * (importlib.util.find_spec("flash_attn_interface") is not None)

    # ---- what is expected and counted

    def error(self, o):
        """Of up to 64 last queries and the first head of two sequences."""
        torch, found = self.torch, []
        for b in {self.keys.index(max(self.keys)), len(self.keys) - 1}:
            end, n = self.q_start[b + 1], min(64, self.queries[b])
            k, v = (x[self.k_start[b] : self.k_start[b + 1], 0].double() for x in (self.k, self.v))
            i, j = torch.arange(len(k) - n, len(k), device="cuda")[:, None], torch.arange(len(k), device="cuda")
            s = (self.q[end - n : end, 0].double() @ k.T * self.scale).masked_fill(j > i, -math.inf)
            want = torch.softmax(s, -1) @ v
            found.append(float((o[end - n : end, 0].double() - want).norm() / want.norm()))
        return max(found)

    def flop(self):
        pairs = sum(m * n - m * (m - 1) // 2 for m, n in self.sequences)
        return 2 * self.H * pairs * (self.D + self.Dv)

    def bytes(self):
        columns = self.D if self.source == "mla" else self.D + self.Dv
        return 2 * (len(self.k) * self.Hkv * columns + len(self.q) * self.H * (self.D + self.Dv))


def measure(torch, row, _, folder, options, bench):
    """A row, as bench.measure has it; None where the target has no kernel of it."""
    import attn

    name, layout = row
    path = file_of(folder, BATCHES[name][0], layout) + ".ptx"
    if not os.path.exists(path):
        return None
    batch, kernel = Batch(torch, name, layout), attn.load(path).kernels[0]
    runs, failed = bench.running({"ours": lambda: batch.ours(kernel), **{n: getattr(batch, n) for n in batch.peers()}})
    errors = {n: batch.error(f()) for n, f in runs.items()}
    t = bench.medians(torch, runs)
    times = {n: {"ms": t[n], "tflops": batch.flop() / t[n] * 1e-9, "tbps": batch.bytes() / t[n] * 1e-9, "error": errors[n]} for n in t}
    failed.update((n, "no graph holds it") for n in runs if n not in t)
    sizes = {"H": batch.H, "Hkv": batch.Hkv, "D": batch.D, "Dv": batch.Dv, "sequences": len(batch.sequences), "Tq": len(batch.q), "Tk": len(batch.k)}
    return {"source": name, "phase": "serving", "layout": layout, "sizes": sizes, "times": times, "failed": failed}
