"""The rows of bench.py --backward: gradients of q, k, v, and of the bias table, from those of o. Forwards are not timed.

TFLOP/s counts the five products, 2 (3 D + 2 Dv) for every pair inside the mask. Before that, dq of some rows, and in short rows all of the
first head's dk and dv, are compared with PyTorch's derivative in float64. "deviation" scales q and k so that scores have that one."""

import math
import os

LONG, SHORT = 16384, 2048
FLEX = (2, 16, 8192, 8192, 128)
# source, (B, H or (H, Hkv), Sq, Sk, D or (D, Dv)), peers, deviation of scores
ROWS = [
    *[(s, (1, 2048 // d, LONG, LONG, d), "cudnn", 1) for d in (64, 128, 256) for s in ("softmax", "causal")],
    *[(s, (8, 2048 // d, SHORT, SHORT, d), "cudnn", 1) for d in (64, 128, 256) for s in ("softmax", "causal")],
    ("causal", (4, (32, 8), 8192, 8192, 128), "cudnn", 1),
    ("causal", (4, 16, 4096, 4096, (192, 128)), "cudnn", 1),
    *[("causal", (1, 2048 // d, 8192, 8192, d), "fa3", n) for d in (64, 128) for n in (1, 9, 64)],
    *[(s, FLEX, "flex", 1) for s in ("softmax", "causal", "window", "prefix", "document", "alibi", "softcap", "table")],
    ("relu", (64, 6, 2048, 2048, 64), "formula", 1),
    ("relu", (4, 16, 4096, 4096, 128), "formula", 1),
    ("sigmoid", (1, 24, 4096, 4096, 128), "formula", 1),
    ("sigmoid_causal", (1, 24, 4096, 4096, 128), "formula", 1),
    ("retention", (1, 32, 4096, 4096, 64), "formula", 1),
    ("retention", (1, 32, 4096, 4096, 128), "formula", 1),
    ("retention", (1, 32, 4096, 4096, (256, 512)), "formula", 1),
]


def learned(source, text):
    """The source with gradients of what is learned in it."""
    return text.replace("table: f32[H, SPAN];", "table: f32[H, SPAN] grad;") if source == "table" else text


def operands(torch, row, pair):
    _, (B, heads, Sq, Sk, size), _, deviation = row
    (H, Hkv), (D, Dv) = pair(heads), pair(size)
    shapes = (B, H, Sq, D), (B, Hkv, Sk, D), (B, Hkv, Sk, Dv)
    q, k, v = (torch.randn(s, device="cuda", dtype=torch.bfloat16) for s in shapes)
    return q * math.sqrt(deviation), k * math.sqrt(deviation), v, torch.randn(B, H, Sq, Dv, device="cuda", dtype=torch.bfloat16)


def ours(torch, kernel, q, k, v, do, given):
    """dq, dk, dv, and what else the source learns, into tensors that are made once."""
    back = kernel.backward
    kept = ["o", *[n for n in back.inputs if n in kernel.outputs and n != "o"]]
    made = dict(zip(kept, kernel(q, k, v, **given, emit=kept))) if len(kept) > 1 else {"o": kernel(q, k, v, **given)}
    said = {"q": q, "k": k, "v": v, "do": do, **given, **made}
    rows = torch.zeros(q.shape[:3], device="cuda")  # of what the variant emits besides o nothing comes
    said = {n: said.get(n, rows) for n in back.inputs}
    out = {n: torch.full_like(said[n[1:]], math.nan) for n in back.outputs}

    def run():
        back(**said, out=out, emit=list(out))
        return out

    return run


def leaf(x):
    return x.detach().requires_grad_()


def turned(x):
    """A leaf that lies as FlashAttention-3 wants it, and its view as the others have it."""
    own = leaf(x.transpose(1, 2).contiguous())
    return own, own.transpose(1, 2)


def peer(torch, peers, name, source, q, k, v, do):
    """Gradients of a peer, of a forward that ran once, on the stream where they are captured: all that autograd knows of is made there."""
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        own = [turned(x) if name == "fa3" else (leaf(x),) * 2 for x in (q, k, v)]
        leaves = [a for a, _ in own]
        if source == "table":
            peers.table = leaf(peers.table)
            leaves.append(peers.table)
        o = getattr(peers, name)(source, *[b for _, b in own])()
    torch.cuda.synchronize()
    names = ["dq", "dk", "dv", "dtable"][: len(leaves)]

    def gradients():
        found = dict(zip(names, torch.autograd.grad(o, leaves, do, retain_graph=True)))
        return {n: x.transpose(1, 2) if name == "fa3" and n != "dtable" else x for n, x in found.items()}

    return gradients, stream


def wanted(torch, peers, reference, source, q, k, v, do, rows):
    """dq of the first head's rows in float64; all of its dk and dv too, where that is short."""
    whole = q.shape[1] == k.shape[1] and q.shape[2] <= SHORT
    parts = torch.arange(q.shape[2], device="cuda").split(1024) if whole else [rows]
    leaves = [x[:1].double().requires_grad_() for x in (q, k, v)]
    sums = [torch.zeros_like(x[0, 0]) for x in leaves]
    for part in parts:
        o = reference(torch, peers, source, *leaves, part)
        for total, x in zip(sums, torch.autograd.grad(o, leaves, do[0, 0, part].double())):
            total += x[0, 0]
    found = {"dq": sums[0][rows]}
    return {**found, "dk": sums[1], "dv": sums[2]} if whole else found


def error(found, want, rows):
    """The largest of the gradients' relative errors."""
    own = {n: found[n][0, 0][rows] if n == "dq" else found[n][0, 0] for n in want}
    return max(float((own[n].double() - x).norm() / x.norm()) for n, x in want.items())


def measure(torch, row, peers, folder, options, bench):
    """A row, as bench.measure has it; None where the target has no backward of it."""
    import attn

    source, (B, heads, Sq, Sk, size), names, deviation = row
    path = bench.file_of(folder, source, size) + "_bwd.ptx"
    if not os.path.exists(path):
        return None
    (H, Hkv), (D, Dv) = bench.pair(heads), bench.pair(size)
    q, k, v, do = operands(torch, row, bench.pair)
    given = peers.inputs(source, B, H, Sk)
    runs, streams = {"ours": ours(torch, attn.load(path).kernels[0], q, k, v, do, given)}, {}
    failed = {}
    for name in bench.peers_of(names):
        try:
            runs[name], streams[name] = peer(torch, peers, name, source, q, k, v, do)
            runs[name]()
        except (RuntimeError, torch._dynamo.exc.BackendCompilerFailed) as e:  # no such backward, or no room for it
            runs.pop(name, None)
            failed[name] = str(e).strip().split("\n", maxsplit=1)[0]
    rows = torch.randperm(Sq, device="cuda")[:64]  # each once: gradients of a row that is asked for twice would be added up
    want = wanted(torch, peers, bench.reference, source, q, k, v, do, rows)
    errors = {n: error(f(), want, rows) for n, f in runs.items()}
    t = bench.medians(torch, runs, streams=streams)
    rate = 2 * B * H * bench.pairs(source, Sq, Sk) * (3 * D + 2 * Dv) * 1e-9
    times = {n: {"ms": t[n], "tflops": rate / t[n], "error": errors[n]} for n in t}
    failed.update((n, "no graph holds it") for n in runs if n not in t)
    for n, f in runs.items() if options.sustained else ():
        ms, clock, watts = bench.sustained(torch, f, t[n])
        times[n].update(sustained_ms=ms, sustained_tflops=rate / ms, mhz=clock, watts=watts)
    sizes = {"B": B, "H": H, "Hkv": Hkv, "Sq": Sq, "Sk": Sk, "D": D, "Dv": Dv}
    return {"source": source, "phase": "bwd", "deviation": deviation, "sizes": sizes, "times": times, "failed": failed}
