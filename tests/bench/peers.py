"""Our GPU kernels beside torch's, in one process on the same inputs: `python3 tests/bench/peers.py DIR [case ...]`.

DIR holds the compiled artifacts (`make bench` fills it): CASE.ptx for every case below. For each case: correctness first (a sample
of rows against float64, ours and the peer's), then medians of CUDA-event timings with the L2 flushed before each, interleaved
between the candidates. TFLOP/s counts 2*B*H*Sq*Sk*(D+Dv) times the share of pairs inside the mask.
"""

import argparse
import json
import math
import os
import sys

import torch
import torch.nn.functional as F

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "python"))
import attn  # noqa: E402

DEV = "cuda"


def positions(s):
    i = torch.arange(s, device=DEV)
    return i[:, None], i[None, :]


def causal(qi, ki):
    return ki <= qi


def window(qi, ki):
    return (ki <= qi) & (qi - ki < 1024)


MASKS = {"full": None, "causal": causal, "window": window}

# name: (mask, formula, b, h, hkv, s, d, dv, peers)
CASES = {
    "softmax_full_d64": ("full", "softmax", 2, 32, 32, 8192, 64, 64, ["flash", "cudnn", "flex"]),
    "softmax_causal_d64": ("causal", "softmax", 2, 32, 32, 8192, 64, 64, ["flash", "cudnn", "flex"]),
    "softmax_full_d128": ("full", "softmax", 2, 16, 16, 8192, 128, 128, ["flash", "cudnn", "flex"]),
    "softmax_causal_d128": ("causal", "softmax", 2, 16, 16, 8192, 128, 128, ["flash", "cudnn", "flex"]),
    "window_d128": ("window", "softmax", 2, 16, 16, 8192, 128, 128, ["flex"]),
    "softmax_full_d256": ("full", "softmax", 2, 8, 8, 8192, 256, 256, ["flash", "cudnn"]),
    "relu_d64": ("full", "relu", 64, 6, 6, 2048, 64, 64, ["compile"]),
    "relu_d128": ("full", "relu", 4, 16, 16, 4096, 128, 128, ["compile"]),
    "sigmoid_d128": ("full", "sigmoid", 1, 24, 24, 4096, 128, 128, ["compile"]),
    "sigmoid_causal_d128": ("causal", "sigmoid", 1, 24, 24, 4096, 128, 128, ["compile"]),
}


def weights(formula, s):
    if formula == "softmax":
        return torch.softmax(s, -1)
    if formula == "relu":
        return torch.relu(s)
    return torch.sigmoid(s)


def formula_eager(name, mask, d):
    fn = MASKS[mask]

    def f(q, k, v):
        s = (q @ k.transpose(-1, -2)) / math.sqrt(d)
        if fn is not None:
            keep = fn(*positions(q.shape[-2]))
            s = s.masked_fill(~keep, float("-inf"))
        w = weights(name, s.float()).to(v.dtype)
        return w @ v

    return f


def sample_error(out, q, k, v, mask, formula, rows=64):
    """Relative error, in the Euclidean norm, of some rows of two heads against float64."""
    num = den = 0.0
    s = q.shape[2]
    for b, h in ((0, 0), (q.shape[0] - 1, q.shape[1] - 1)):
        hk = h * k.shape[1] // q.shape[1]
        idx = torch.cat([torch.tensor([0, s - 1], device=DEV), torch.randint(0, s, (rows,), device=DEV)])
        sc = q[b, h, idx].double() @ k[b, hk].double().T / math.sqrt(q.shape[3])
        if MASKS[mask] is not None:
            keep = MASKS[mask](idx[:, None], torch.arange(s, device=DEV)[None, :])
            sc = sc.masked_fill(~keep, float("-inf"))
        ref = weights(formula, sc) @ v[b, hk].double()
        num += (out[b, h, idx].double() - ref).pow(2).sum().item()
        den += ref.pow(2).sum().item()
    return math.sqrt(num / den)


def peers_of(names, mask, formula, q, k, v):
    from torch.nn.attention import SDPBackend, sdpa_kernel

    out = {}
    for n in names:
        if n in ("flash", "cudnn"):
            backend = SDPBackend.FLASH_ATTENTION if n == "flash" else SDPBackend.CUDNN_ATTENTION

            def run(backend=backend):
                with sdpa_kernel(backend):
                    return F.scaled_dot_product_attention(q, k, v, is_causal=mask == "causal")

            out[n] = run
        elif n == "flex":
            from torch.nn.attention.flex_attention import create_block_mask, flex_attention

            fn = MASKS[mask]
            bm = None
            if fn is not None:
                bm = create_block_mask(lambda b, h, i, j: fn(i, j), None, None, q.shape[2], k.shape[2], device=DEV)
            c = torch.compile(flex_attention, dynamic=False)
            out[n] = lambda c=c, bm=bm: c(q, k, v, block_mask=bm)
        elif n == "compile":
            c = torch.compile(formula_eager(formula, mask, q.shape[3]), dynamic=False)
            out[n] = lambda c=c: c(q, k, v)
    return out


def medians(fns, rounds):
    flush = torch.empty(128 << 20, dtype=torch.int8, device=DEV)
    times = {n: [] for n in fns}
    for n, f in fns.items():
        for _ in range(3):
            f()
    for _ in range(rounds):
        for n, f in fns.items():
            flush.zero_()
            a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            a.record()
            f()
            b.record()
            torch.cuda.synchronize()
            times[n].append(a.elapsed_time(b))
    return {n: sorted(t)[len(t) // 2] for n, t in times.items()}


def ceilings():
    a = torch.randn(8192, 8192, device=DEV, dtype=torch.bfloat16)
    b = torch.randn(8192, 8192, device=DEV, dtype=torch.bfloat16)
    src = torch.empty(1 << 30, dtype=torch.int8, device=DEV)
    dst = torch.empty_like(src)
    t = medians({"mm": lambda: a @ b, "copy": lambda: dst.copy_(src)}, 10)
    return {"matrix_tflops": 2 * 8192**3 / t["mm"] / 1e9, "copy_tbs": 2 * (1 << 30) / t["copy"] / 1e9}


def run_case(name, directory, rounds):
    mask, formula, b, h, hkv, s, d, dv, peer_names = CASES[name]
    path = os.path.join(directory, name + ".ptx")
    g = torch.Generator(device=DEV).manual_seed(hash(name) & 0xFFFF)
    q = torch.randn(b, h, s, d, device=DEV, generator=g).bfloat16()
    k = torch.randn(b, hkv, s, d, device=DEV, generator=g).bfloat16()
    v = torch.randn(b, hkv, s, dv, device=DEV, generator=g).bfloat16()
    ours = attn.load(path)
    o = torch.full((b, h, s, dv), float("nan"), device=DEV, dtype=torch.bfloat16)
    fns = {"ours": lambda: ours(q, k, v, out=o)}
    fns.update(peers_of(peer_names, mask, formula, q, k, v))
    share = 1.0
    if MASKS[mask] is not None:
        share = MASKS[mask](*positions(s)).float().mean().item()
    flop = 2 * b * h * s * s * (d + dv) * share
    row = {"case": name, "tflops": {}, "error": {}}
    for n in list(fns):
        try:
            out = fns[n]()
            torch.cuda.synchronize()
            row["error"][n] = sample_error(out if n != "ours" else o, q, k, v, mask, formula)
        except Exception as e:  # a peer that cannot take the case is left out of the table, with its reason
            row["error"][n] = str(e).splitlines()[0][:120]
            del fns[n]
    t = medians(fns, rounds)
    row["tflops"] = {n: flop / x / 1e9 for n, x in t.items()}
    return row


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("dir")
    ap.add_argument("cases", nargs="*")
    ap.add_argument("--rounds", type=int, default=20)
    ap.add_argument("--json")
    a = ap.parse_args()
    rows = []
    c = ceilings()
    for name in a.cases or CASES:
        if os.path.exists(os.path.join(a.dir, name + ".ptx")):
            rows.append(run_case(name, a.dir, a.rounds))
            print(json.dumps(rows[-1]), flush=True)
            torch.cuda.empty_cache()
    print(f"\nmatrix product {c['matrix_tflops']:.0f} TFLOP/s, copy {c['copy_tbs']:.2f} TB/s")
    print(f"{'case':22} {'ours':>7} {'error':>9}   peers: TFLOP/s (ours/peer, error)")
    for r in rows:
        t, e = r["tflops"], r["error"]
        if "ours" not in t:
            print(f"{r['case']:22} failed: {e['ours']}")
            continue
        p = "  ".join(f"{n} {t[n]:.0f} ({t['ours'] / t[n]:.2f}, {e[n]:.1e})" for n in t if n != "ours")
        p += "  ".join(f" {n}: {m}" for n, m in e.items() if isinstance(m, str))
        print(f"{r['case']:22} {t['ours']:7.0f} {e['ours']:9.1e}   {p}")
    if a.json:
        with open(a.json, "w") as f:
            json.dump({"ceilings": c, "rows": rows}, f, indent=1)


if __name__ == "__main__":
    main()
