"""Times compiled variants beside what PyTorch has for each: python3 tests/gpu/bench.py FOLDER [NAME...]

python3 tests/gpu/bench.py --compile ATTNC FOLDER TARGET    compiles them first (needs no GPU)
TFLOP/s counts 4 D for every pair inside the mask. Medians of interleaved rounds; the peer's time over ours is the last number."""

import math
import os
import statistics
import subprocess
import sys

STD = "import std.mask; import std.modify; import std.normalization;\n"
SCORE = "dim D = 128, Dv = D; score(q, k) = dot(q, k) * rsqrt(D); "
CAUSAL = "mask(b, h, q, k) = causal(q, k); "
SOFTMAX = "normalize(s) = softmax(s);"
SOURCES = {
    "softmax": SOFTMAX,
    "causal": CAUSAL + SOFTMAX,
    "window": "mask(b, h, q, k) = window(q, k, 1024); " + SOFTMAX,
    "softcap": "modify(s) = tanh_cap(s, 20.0); " + CAUSAL + SOFTMAX,
    "alibi": "modify(s, b, h, q, k) = s + alibi_bias(h, H, q, k); " + CAUSAL + SOFTMAX,
    "prefix": "input length: i32[B]; mask(b, h, q, k) = prefix(q, k, length[b]); " + SOFTMAX,
    "document": "input doc: i32[B, Sk]; mask(b, h, q, k) = causal(q, k) && doc[b, q] == doc[b, k]; " + SOFTMAX,
    "relu": "modify(s) = max(s, 0) / Sk; normalize(s) = s;",
    "sigmoid": "modify(s) = sigmoid(s - log(Sk)); normalize(s) = s;",
    "sigmoid_causal": "modify(s) = sigmoid(s - log(Sk)); " + CAUSAL + "normalize(s) = s;",
}
DOCUMENTS = (700, 1500, 2300, 92, 1900, 1700)
# source, (B, H, Sq, Sk, D), peer
ROWS = [
    ("softmax", (2, 16, 8192, 8192, 128), "flash"),
    ("causal", (2, 16, 8192, 8192, 128), "flash"),
    ("softmax", (2, 32, 8192, 8192, 64), "flash"),
    ("causal", (2, 32, 8192, 8192, 64), "flash"),
    ("softmax", (2, 8, 8192, 8192, 256), "flash"),
    ("causal", (2, 8, 8192, 8192, 256), "flash"),
    ("causal", (8, 16, 2048, 2048, 128), "flash"),
    ("softmax", (64, 32, 1, 8192, 128), "flash"),
    ("softmax", (1, 32, 1, 32768, 128), "flash"),
    ("window", (2, 16, 8192, 8192, 128), "flex"),
    ("softcap", (2, 16, 8192, 8192, 128), "flex"),
    ("alibi", (2, 16, 8192, 8192, 128), "flex"),
    ("prefix", (2, 16, 8192, 8192, 128), "flex"),
    ("document", (2, 16, 8192, 8192, 128), "flex"),
    ("relu", (4, 16, 4096, 4096, 128), "formula"),
    ("relu", (64, 6, 2048, 2048, 64), "formula"),
    ("sigmoid", (1, 24, 4096, 4096, 128), "formula"),
    ("sigmoid_causal", (1, 24, 4096, 4096, 128), "formula"),
]


def compile_all(attnc, folder, target):
    os.makedirs(folder, exist_ok=True)
    for source, D in sorted({(r[0], r[1][4]) for r in ROWS}):
        path = os.path.join(folder, f"{source}_{D}")
        with open(path + ".attn", "w", encoding="utf-8") as f:
            f.write(STD + f"attention t {{ {SCORE}{SOURCES[source]} }}\n")
        subprocess.run([attnc, "-O3", path + ".attn", f"-DD={D}", f"--target={target}", "--dtype=bf16", "-o", path + ".ptx"], check=True)


def pairs(source, Sq, Sk):
    causal = Sq * (Sq + 1) // 2
    if source == "window":
        return sum(min(i + 1, 1024) for i in range(Sq))
    if source == "prefix":
        return causal + 2048 * 2047 // 2
    if source == "document":
        return sum(n * (n + 1) // 2 for n in DOCUMENTS)
    return Sq * Sk if source in ("softmax", "relu", "sigmoid") else causal


class Peers:
    def __init__(self, torch):
        self.torch = torch
        self.owner = torch.repeat_interleave(torch.arange(len(DOCUMENTS)), torch.tensor(DOCUMENTS)).to("cuda", torch.int32)

    def inputs(self, source, B):
        if source == "prefix":
            return {"length": self.torch.full((B,), 2048, device="cuda", dtype=self.torch.int32)}
        return {"doc": self.owner[None].repeat(B, 1).contiguous()} if source == "document" else {}

    def flash(self, source, q, k, v):
        from torch.nn.attention import SDPBackend, sdpa_kernel

        def run():
            with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
                return self.torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=source == "causal")

        return run

    def flex(self, source, q, k, v):
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        torch, H, own = self.torch, q.shape[1], self.owner
        masks = {"window": lambda b, h, i, j: (i >= j) & (i - j < 1024), "prefix": lambda b, h, i, j: (j < 2048) | (i >= j)}
        masks["document"] = lambda b, h, i, j: (i >= j) & (own[i] == own[j])
        mods = {"softcap": lambda s, b, h, i, j: 20 * torch.tanh(s / 20)}
        mods["alibi"] = lambda s, b, h, i, j: s + torch.exp2(-8.0 * (h + 1) / H) * (j - i)
        mask = create_block_mask(masks.get(source, lambda b, h, i, j: i >= j), None, None, q.shape[2], k.shape[2], device="cuda")
        run = torch.compile(flex_attention)
        return lambda: run(q, k, v, score_mod=mods.get(source), block_mask=mask)

    def formula(self, source, q, k, v):
        torch = self.torch

        def weights(q, k):
            s, n = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5, k.shape[-2]
            if source == "relu":
                return torch.relu(s) / n
            w = torch.sigmoid(s - math.log(n))
            if source == "sigmoid":
                return w
            return torch.where(torch.ones(n, n, device=q.device, dtype=torch.bool).tril(), w, 0)

        run = torch.compile(lambda q, k, v: weights(q, k) @ v)
        return lambda: run(q, k, v)


def medians(torch, runs, rounds=4, calls=6):
    times = {n: [] for n in runs}
    for f in runs.values():
        f(), f()
    for _ in range(rounds):
        for n, f in runs.items():
            marks = [torch.cuda.Event(enable_timing=True) for _ in range(calls + 1)]
            marks[0].record()
            for m in marks[1:]:
                f()
                m.record()
            torch.cuda.synchronize()
            times[n] += [a.elapsed_time(b) for a, b in zip(marks, marks[1:])]
    return {n: statistics.median(t) for n, t in times.items()}


def main():
    import attn
    import torch

    torch.manual_seed(0)
    peers, folder, only = Peers(torch), sys.argv[1], sys.argv[2:]
    for source, (B, H, Sq, Sk, D), peer in ROWS:
        if only and source not in only:
            continue
        q = torch.randn(B, H, Sq, D, device="cuda", dtype=torch.bfloat16)
        k, v = (torch.randn(B, H, Sk, D, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        kernel, out, given = attn.load(f"{folder}/{source}_{D}.ptx").kernels[0], torch.empty_like(q), peers.inputs(source, B)

        def ours(kernel=kernel, q=q, k=k, v=v, out=out, given=given):
            kernel(q, k, v, **given, out={"o": out})

        theirs = getattr(peers, peer)(source, q, k, v)
        want = theirs()
        ours()
        off = float((out.float() - want.float()).norm() / want.float().norm())
        t = medians(torch, {"ours": ours, "theirs": theirs})
        rate = 4 * B * H * pairs(source, Sq, Sk) * D * 1e-9
        print(f"{source:15} b{B} h{H} {Sq}x{Sk} d{D:4}  {t['ours']:8.3f} ms {rate / t['ours']:6.1f} TF   {peer:8}"
              f"{t['theirs']:8.3f} ms {rate / t['theirs']:6.1f} TF   x{t['theirs'] / t['ours']:.3f}   apart {off:.1e}", flush=True)
        torch._dynamo.reset()


if __name__ == "__main__":
    compile_all(*sys.argv[2:5]) if sys.argv[1] == "--compile" else main()
