"""Times compiled variants beside their peers: python3 tests/gpu/bench.py [--backward|--serving|--recurrences] [--sustained] FOLDER [NAME...]

python3 tests/gpu/bench.py --compile ATTNC FOLDER TARGET    compiles them first (needs no GPU)
FOLDER/bench.json and bench.svg hold the same afterwards. The other phases have rows of their own (backward.py, batches.py, recurrent.py) and
leave FOLDER/backward.json, serving.json or recurrences.json. NAME is a pattern for names of rows; of recurrences also "gla bwd". --sustained
runs attention for a second without a pause, too, with the clock and the power that nvidia-smi shows meanwhile. FlashAttention-3 is a peer where
flash_attn_interface can be imported.
TFLOP/s counts 2 (D + Dv) for every pair inside the mask. Medians of interleaved rounds, the L2 flushed before each launch; a peer's time
over ours is its ratio. Before that, some rows of ours and of each peer are compared with float64. The first line is the device's own
rates: of matrix instructions alone and of a copy, as `attnc bench` measures them (where the command is there), and of a large bf16
matrix product. "of the device" is the least time that the two first allow, as a share of ours."""

import argparse
import fnmatch
import importlib.util
import json
import math
import os
import re
import statistics
import subprocess
import sys
import time

import backward
import batches
import recurrent

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
STD = "import std.mask; import std.modify; import std.normalization;\n"
SCORE = "dim D = 128, Dv = D; score(q, k) = dot(q, k) * rsqrt(D); "
CAUSAL = "mask(b, h, q, k) = causal(q, k); "
SOFTMAX = "normalize(s) = softmax(s);"
SOURCES = {
    "softmax": SOFTMAX,
    "causal": CAUSAL + SOFTMAX,
    "window": "mask(b, h, q, k) = window(q, k, 1024); " + SOFTMAX,
    "softcap": "modify(s) = tanh_cap(s, 20.0); " + CAUSAL + SOFTMAX,
    "table": "input table: f32[H, SPAN]; modify(s, b, h, q, k) = s + table[h, q - k + Sk]; " + CAUSAL + SOFTMAX,
    "retention": "modify(s, b, h, q, k) = s * exp2((q - k) * retention_log2_decay(h)); " + CAUSAL + "normalize(s) = retention(s);",
    "alibi": "modify(s, b, h, q, k) = s + alibi_bias(h, H, q, k); " + CAUSAL + SOFTMAX,
    "prefix": "input length: i32[B]; mask(b, h, q, k) = prefix(q, k, length[b]); " + SOFTMAX,
    "document": "input doc: i32[B, Sk]; mask(b, h, q, k) = causal(q, k) && doc[b, q] == doc[b, k]; " + SOFTMAX,
    "bias": "input bias: bf16[B, H, Sq, Sk]; modify(s, b, h, q, k) = s + bias[b, h, q - q_offset, k]; " + SOFTMAX,
    "sink": "input sink: f32[H]; mask(b, h, q, k) = window(q, k, 128); normalize(s, b, h) = softmax_with_sink(s, sink[h]);",
    "neighborhood": "mask(b, h, q, k) = abs(min(max(q / 64, 6), Sk / 64 - 7) - k / 64) <= 6 && abs(min(max(q % 64, 6), 57) - k % 64) <= 6; " + SOFTMAX,
    "relu": "modify(s) = max(s, 0) / Sk; normalize(s) = s;",
    "sigmoid": "modify(s) = sigmoid(s - log(Sk)); normalize(s) = s;",
    "sigmoid_causal": "modify(s) = sigmoid(s - log(Sk)); " + CAUSAL + "normalize(s) = s;",
}
DOCUMENTS = (700, 1500, 2300, 92, 1900, 1700)
# source, (B, H or (H, Hkv), Sq, Sk, D or (D, Dv)), peers, deviation of scores where it is not 1
LONG, SHORT = 16384, 2048
ROWS = [
    *[(s, (1, 2048 // d, LONG, LONG, d), "cudnn flash") for d in (64, 128, 256) for s in ("softmax", "causal")],
    *[(s, (8, 2048 // d, SHORT, SHORT, d), "cudnn flash") for d in (64, 128, 256) for s in ("softmax", "causal")],
    ("causal", (4, (32, 8), 8192, 8192, 128), "cudnn flash"),
    ("causal", (4, 16, 4096, 4096, (192, 128)), "cudnn"),
    ("softmax", (2, 16, 8192, 8192, 128), "flash flex"),
    ("causal", (2, 16, 8192, 8192, 128), "flash flex"),
    ("softmax", (64, 32, 1, 8192, 128), "flash"),
    ("softmax", (1, 32, 1, 32768, 128), "flash"),
    ("window", (2, 16, 8192, 8192, 128), "flex"),
    ("softcap", (2, 16, 8192, 8192, 128), "flex"),
    ("alibi", (2, 16, 8192, 8192, 128), "flex"),
    ("table", (2, 16, 8192, 8192, 128), "flex"),
    ("prefix", (2, 16, 8192, 8192, 128), "flex"),
    ("document", (2, 16, 8192, 8192, 128), "flex"),
    ("bias", (2, 16, 4096, 4096, 128), "flex"),
    ("sink", (2, (64, 8), 8192, 8192, 64), "flex"),
    ("neighborhood", (2, 16, 8192, 8192, 64), "flex"),
    ("softmax", (32, 12, 197, 197, 64), "cudnn"),
    ("softmax", (1, 16, 197, 197, 64), "cudnn"),
    ("causal", (1, 8, 1024, 1024, 64), "cudnn flash"),
    ("relu", (4, 16, 4096, 4096, 128), "formula"),
    ("relu", (64, 6, 2048, 2048, 64), "formula"),
    ("sigmoid", (1, 24, 4096, 4096, 128), "formula"),
    ("sigmoid_causal", (1, 24, 4096, 4096, 128), "formula"),
    ("retention", (1, 32, 4096, 4096, (256, 512)), "formula"),
    *[(s, (1, 2048 // d, LONG, LONG, d), "fa3", n) for d in (64, 128) for n in (16, 64) for s in ("softmax", "causal")],
]


def pair(x):
    """D or (D, Dv), H or (H, Hkv): both."""
    return x if isinstance(x, tuple) else (x, x)


def peers_of(names):
    """Those of a row that are installed: FlashAttention-3 stands beside cuDNN, or is named."""
    found = names.split() + ["fa3"] * ("cudnn" in names)
    return [n for n in found if n != "fa3" or importlib.util.find_spec("flash_attn_interface") is not None]


def neighbors(b, h, i, j):
    """Neighborhood attention (NATTEN), 13 x 13 of a grid of 128 x 64; also of tensors of positions."""
    row, column = (i // 64).clamp(6, 121), (i % 64).clamp(6, 57)
    return ((row - j // 64).abs() <= 6) & ((column - j % 64).abs() <= 6)


def file_of(folder, source, D):
    return os.path.join(folder, f"{source}_" + "_".join(str(d) for d in dict.fromkeys(pair(D))))


def compile_all(attnc, folder, target):
    os.makedirs(folder, exist_ok=True)
    common = [f"--target={target}", "--dtype=bf16"]
    for name, text, sizes in batches.compiled():
        path = os.path.join(folder, name)
        with open(path + ".attn", "w", encoding="utf-8") as f:
            f.write(STD + f"attention t {{ {SCORE}{text} }}\n")
        subprocess.run([attnc, "-O3", path + ".attn", *sizes, *common, "-o", path + ".ptx"], check=False)
    for name, path, sizes in recurrent.compiled(os.path.join(ROOT, "stdlib")):
        subprocess.run([attnc, "-O3", path, *sizes, *common, "-o", os.path.join(folder, name + ".ptx")], check=False)
    compiled = sorted({(r[0], pair(r[1][4])) for r in ROWS}), sorted({(r[0], pair(r[1][4])) for r in backward.ROWS})
    for phase, rows in zip(("fwd", "fwd,bwd"), compiled):
        for source, (D, Dv) in rows:
            path, text = file_of(folder, source, (D, Dv)), SOURCES[source]
            if phase != "fwd":
                path, text = path + "_bwd", backward.learned(source, text)
            with open(path + ".attn", "w", encoding="utf-8") as f:
                f.write(STD + f"attention t {{ {SCORE}{text} }}\n")
            sizes = [f"-DD={D}", f"-DDv={Dv}", f"--phase={phase}"]
            subprocess.run([attnc, "-O3", path + ".attn", *sizes, *common, "-o", path + ".ptx"], check=phase == "fwd")


def pairs(source, Sq, Sk):
    causal = Sq * (Sq + 1) // 2
    if source == "window":
        return sum(min(i + 1, 1024) for i in range(Sq))
    if source == "sink":
        return sum(min(i + 1, 128) for i in range(Sq))
    if source == "neighborhood":
        return 169 * Sq
    if source == "prefix":
        return causal + 2048 * 2047 // 2
    if source == "document":
        return sum(n * (n + 1) // 2 for n in DOCUMENTS)
    return Sq * Sk if source in ("softmax", "bias", "relu", "sigmoid") else causal


class Peers:
    def __init__(self, torch):
        self.torch = torch
        self.table = torch.zeros(1, 2, device="cuda")
        self.bias = self.sink = self.table
        self.owner = torch.repeat_interleave(torch.arange(len(DOCUMENTS)), torch.tensor(DOCUMENTS)).to("cuda", torch.int32)

    def inputs(self, source, B, H, Sk):
        if source == "bias":
            self.bias = self.torch.randn(B, H, Sk, Sk, device="cuda", dtype=self.torch.bfloat16)
            return {"bias": self.bias}
        if source == "sink":
            self.sink = self.torch.randn(H, device="cuda")
            return {"sink": self.sink}
        if source == "table":
            self.table = self.torch.randn(H, 2 * Sk, device="cuda")
            return {"table": self.table}
        if source == "prefix":
            return {"length": self.torch.full((B,), 2048, device="cuda", dtype=self.torch.int32)}
        return {"doc": self.owner[None].repeat(B, 1).contiguous()} if source == "document" else {}

    def sdpa(self, backend, source, q, k, v):
        from torch.nn.attention import sdpa_kernel

        def run():
            with sdpa_kernel(backend):
                return self.torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=source == "causal", enable_gqa=q.shape[1] != k.shape[1])

        return run

    def flash(self, source, q, k, v):
        return self.sdpa(self.torch.nn.attention.SDPBackend.FLASH_ATTENTION, source, q, k, v)

    def cudnn(self, source, q, k, v):
        return self.sdpa(self.torch.nn.attention.SDPBackend.CUDNN_ATTENTION, source, q, k, v)

    def fa3(self, source, q, k, v):
        from flash_attn_interface import flash_attn_func

        q, k, v = (x.transpose(1, 2).contiguous() for x in (q, k, v))

        def run():
            out = flash_attn_func(q, k, v, causal=source == "causal")
            return (out[0] if isinstance(out, tuple) else out).transpose(1, 2)

        return run

    def flex(self, source, q, k, v):
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        torch, H, own = self.torch, q.shape[1], self.owner
        masks = {"window": lambda b, h, i, j: (i >= j) & (i - j < 1024), "prefix": lambda b, h, i, j: (j < 2048) | (i >= j)}
        masks["document"] = lambda b, h, i, j: (i >= j) & (own[i] == own[j])
        masks["sink"] = lambda b, h, i, j: (i >= j) & (i - j < 128)
        masks["neighborhood"] = neighbors
        mods = {"softcap": lambda s, b, h, i, j: 20 * torch.tanh(s / 20)}
        mods["alibi"] = lambda s, b, h, i, j: s + torch.exp2(-8.0 * (h + 1) / H) * (j - i)
        table, bias, sink = self.table, self.bias, self.sink[:, None]
        mods["bias"] = lambda s, b, h, i, j: s + bias[b, h, i, j]
        mods["table"] = lambda s, b, h, i, j: s + table[h, i - j + table.shape[1] // 2]
        keep = masks.get(source, lambda b, h, i, j: i >= j)
        mask = None if source in ("softmax", "bias") else create_block_mask(keep, None, None, q.shape[2], k.shape[2], device="cuda")
        options = {"score_mod": mods.get(source), "block_mask": mask, "enable_gqa": H != k.shape[1]}
        if source != "sink":
            run = torch.compile(flex_attention)
            return lambda: run(q, k, v, **options)

        def with_sink(q, k, v):
            o, lse = flex_attention(q, k, v, **options, return_lse=True)
            return o * torch.sigmoid(lse - sink)[..., None].to(o.dtype)

        run = torch.compile(with_sink)
        return lambda: run(q, k, v)

    def formula(self, source, q, k, v):
        torch = self.torch

        def weights(q, k):
            s, n = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5, k.shape[-2]
            if source == "relu":
                return torch.relu(s) / n
            if source == "retention":
                i = torch.arange(n, device=q.device)
                rate = torch.log2(1 - torch.exp2(-5.0 - torch.arange(q.shape[1], device=q.device)))[:, None, None]
                s = torch.where(i[:, None] >= i, s * torch.exp2((i[:, None] - i) * rate), 0).to(q.dtype)
                return s / s.abs().sum(-1, keepdim=True).clamp(min=1)
            w = torch.sigmoid(s - math.log(n))
            if source == "sigmoid":
                return w
            return torch.where(torch.ones(n, n, device=q.device, dtype=torch.bool).tril(), w, 0)

        run = torch.compile(lambda q, k, v: weights(q, k) @ v)
        return lambda: run(q, k, v)


def reference(torch, peers, source, q, k, v, rows):
    """float64 rows of the first head; positions are those of square shapes, or of the last queries."""
    n, i = k.shape[2], (rows + k.shape[2] - q.shape[2])[:, None]
    j = torch.arange(n, device="cuda")[None]
    s = q[0, 0, rows].double() @ k[0, 0].double().T * q.shape[-1] ** -0.5
    if source == "softcap":
        s = 20 * torch.tanh(s / 20)
    if source == "alibi":
        s = s + 2.0 ** (-8.0 / q.shape[1]) * (j - i)
    if source == "table":
        s = s + peers.table[0, (i - j + n).clamp(max=2 * n - 1)].double()
    if source == "retention":
        s = torch.where(i >= j, s * torch.exp2((i - j).double() * math.log2(1 - 2**-5)), 0)
        return s / s.abs().sum(-1, keepdim=True).clamp(min=1) @ v[0, 0].double()
    if source == "bias":
        s = s + peers.bias[0, 0, rows].double()
    if source == "sink":
        s = torch.cat([s.masked_fill((i < j) | (i - j >= 128), -math.inf), peers.sink[0].double().expand(len(rows), 1)], 1)
        return torch.softmax(s, -1)[:, :-1] @ v[0, 0].double()
    keep = {"neighborhood": neighbors(0, 0, i, j), "softmax": j >= 0, "bias": j >= 0, "relu": j >= 0, "sigmoid": j >= 0, "window": (i >= j) & (i - j < 1024), "prefix": (j < 2048) | (i >= j)}
    if source == "document":
        keep["document"] = (i >= j) & (peers.owner[i] == peers.owner[j])
    s = s.masked_fill(~keep.get(source, i >= j), -math.inf)
    if source == "relu":
        return torch.relu(s) / n @ v[0, 0].double()
    w = torch.sigmoid(s - math.log(n)) if source.startswith("sigmoid") else torch.softmax(s, -1)
    return w @ v[0, 0].double()


def running(makers):
    """What runs, by name, and why the others do not; ours has to."""
    runs, failed = {}, {}
    for name, make in makers.items():
        try:
            run = make()
            run()
            runs[name] = run
        except Exception as e:  # a peer may raise anything
            if name == "ours":
                raise
            failed[name] = str(e).strip().split("\n", maxsplit=1)[0]
    return runs, failed


def captured(torch, f, stream=None):
    """f as a CUDA graph: what is timed is the device's work, not Python's. stream: where a derivative's forward ran."""
    with torch.cuda.stream(stream):
        for _ in range(2):
            f()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        f()
    return graph.replay


def medians(torch, runs, rounds=12, streams=None):
    """Milliseconds by name, of all that a graph can hold; ours has to."""
    flush, graphs = torch.empty(128 << 20, dtype=torch.int8, device="cuda"), {}
    for n, f in runs.items():
        try:
            graphs[n] = captured(torch, f, (streams or {}).get(n))
        except RuntimeError:
            if n == "ours":
                raise
    times = {n: [] for n in graphs}
    for f in graphs.values():
        f()
    for _ in range(rounds):
        for n, f in graphs.items():
            flush.zero_()
            marks = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
            marks[0].record()
            f()
            marks[1].record()
            torch.cuda.synchronize()
            times[n].append(marks[0].elapsed_time(marks[1]))
    return {n: statistics.median(t) for n, t in times.items()}


def clock_and_power(torch):
    """In MHz and W, as nvidia-smi shows them now; None where it does not."""
    query = ["nvidia-smi", f"--id=GPU-{torch.cuda.get_device_properties(0).uuid}", "--query-gpu=clocks.sm,power.draw", "--format=csv,noheader,nounits"]
    try:
        clock, watts = subprocess.run(query, capture_output=True, text=True, check=True).stdout.split(",")
        return float(clock), float(watts)
    except (OSError, ValueError, subprocess.CalledProcessError):
        return None, None


def sustained(torch, f, ms):
    """A second of launches without a pause: ms of one, the clock and the power meanwhile."""
    n, marks = max(2, min(20000, int(1100 / ms))), [torch.cuda.Event(enable_timing=True) for _ in range(2)]
    began, seen = time.monotonic(), None
    marks[0].record()
    for _ in range(n):
        f()
        if seen is None and time.monotonic() - began > 0.7:
            seen = clock_and_power(torch)
    marks[1].record()
    if seen is None:  # all were queued at once, and run now
        time.sleep(max(0, 0.7 - (time.monotonic() - began)))
        seen = clock_and_power(torch)
    torch.cuda.synchronize()
    return marks[0].elapsed_time(marks[1]) / n, *seen


def roofline(folder):
    """TFLOP/s of matrix instructions and TB/s of a copy, as `attnc bench` finds them; None where it does not."""
    from attn import _compiler

    out = os.path.join(folder, "peak.json")
    sources = [n for n in os.listdir(folder) if n.startswith("causal_") and n.endswith(".attn")]
    try:
        command = [_compiler._command(), "bench", os.path.join(folder, sources[0]), "--device=cuda", "--dtype=bf16", "--repeat=3", f"--json={out}"]
        subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
        with open(out, encoding="utf-8") as f:
            peak = json.load(f)["peak"]
        return peak["tflops"], peak["gbps"] * 1e-3
    except (OSError, IndexError, subprocess.CalledProcessError):
        return None, None


def ceilings(torch, folder):
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    x = torch.empty(1 << 30, dtype=torch.int8, device="cuda")
    y = torch.empty_like(x)
    t = medians(torch, {"product": lambda: a @ b, "copy": lambda: y.copy_(x)})
    product, copy = 2 * 8192**3 / t["product"] * 1e-9, 2 * (1 << 30) / t["copy"] * 1e-9
    matrix, memory = roofline(folder)
    if matrix:
        print(f"matrix instructions {matrix:.0f} TFLOP/s, copy {memory:.2f} TB/s; a matrix product {product:.0f} TFLOP/s")
    else:
        print(f"a matrix product {product:.0f} TFLOP/s, copy {copy:.2f} TB/s")
    return {"product_tflops": product, "matrix_tflops": matrix or product, "copy_tbps": memory or copy}


def share_of(row, rates):
    """The least time that the device's rates allow, all FLOP or all bytes (of each tensor once), over ours."""
    n, ours = row["sizes"], row["times"]["ours"]
    if "tbps" in ours:
        return max(ours["tflops"] / rates["matrix_tflops"], ours["tbps"] / rates["copy_tbps"])
    q, k, v, o = (n["B"] * rows * columns for rows, columns in ((n["H"] * n["Sq"], n["D"]), (n["Hkv"] * n["Sk"], n["D"]), (n["Hkv"] * n["Sk"], n["Dv"]), (n["H"] * n["Sq"], n["Dv"])))
    moved = 2 * (2 * (q + k + v + o) if "phase" in row else q + k + v + o)
    return max(ours["tflops"] / rates["matrix_tflops"], moved * 1e-9 / ours["ms"] / rates["copy_tbps"])


def target_of(folder):
    """What the kernels of the folder were compiled for."""
    name = next(n for n in os.listdir(folder) if n.endswith(".ptx"))
    with open(os.path.join(folder, name), encoding="utf-8", errors="replace") as f:
        return re.search(r"^\.target (\w+)", f.read(), re.M)[1]


def write(folder, phase, found):
    import chart

    with open(os.path.join(folder, phase + ".json"), "w", encoding="utf-8") as f:
        json.dump(found, f, indent=1)
    if phase != "bench":
        return
    with open(os.path.join(folder, "bench.svg"), "w", encoding="utf-8") as f:
        f.write(chart.chart(found))


PHASES = {"bench": sys.modules[__name__], "backward": backward, "serving": batches, "recurrences": recurrent}


def arguments():
    parser = argparse.ArgumentParser()
    group = parser.add_mutually_exclusive_group()
    for phase in PHASES:
        group.add_argument("--" + phase, dest="phase", action="store_const", const=phase, default="bench", help=argparse.SUPPRESS)
    parser.add_argument("--sustained", action="store_true")
    parser.add_argument("folder")
    parser.add_argument("names", nargs="*")
    return parser.parse_args()


def measure(torch, row, peers, folder, options, _):
    """A row: what it is called, its sizes, and times by name, ours first."""
    source, (B, heads, Sq, Sk, size), names, deviation = *row, *[1] * (4 - len(row))
    import attn

    (H, Hkv), (D, Dv) = pair(heads), pair(size)
    q = torch.randn(B, H, Sq, D, device="cuda", dtype=torch.bfloat16) * deviation
    k, v = (torch.randn(B, Hkv, Sk, d, device="cuda", dtype=torch.bfloat16) for d in (D, Dv))
    kernel, given = attn.load(file_of(folder, source, size) + ".ptx").kernels[0], peers.inputs(source, B, H, Sk)
    out = torch.full((B, H, Sq, Dv), math.nan, device="cuda", dtype=q.dtype)

    def ours():
        kernel(q, k, v, **given, out={"o": out})
        return out

    runs, failed = running({"ours": lambda: ours, **{n: lambda n=n: getattr(peers, n)(source, q, k, v) for n in peers_of(names)}})
    rows = torch.randint(0, Sq, (64,), device="cuda")
    want = reference(torch, peers, source, q, k, v, rows)
    error = {n: float((f()[0, 0, rows].double() - want).norm() / want.norm()) for n, f in runs.items()}
    t = medians(torch, runs)
    rate = 2 * B * H * pairs(source, Sq, Sk) * (D + Dv) * 1e-9
    times = {n: {"ms": t[n], "tflops": rate / t[n], "error": error[n]} for n in t}
    failed.update((n, "no graph holds it") for n in runs if n not in t)
    for n, f in runs.items() if options.sustained else ():
        ms, clock, watts = sustained(torch, f, t[n])
        times[n].update(sustained_ms=ms, sustained_tflops=rate / ms, mhz=clock, watts=watts)
    sizes = {"B": B, "H": H, "Hkv": Hkv, "Sq": Sq, "Sk": Sk, "D": D, "Dv": Dv}
    return {"source": source, "deviation": deviation, "sizes": sizes, "times": times, "failed": failed}


def show(row):
    n, times = row["sizes"], row["times"]
    ours = times["ours"]
    shape = f"d{n['D']}" if n["D"] == n["Dv"] else f"d{n['D']}/{n['Dv']}"
    heads = f"h{n['H']}" if n["H"] == n["Hkv"] else f"h{n['H']}/{n['Hkv']}"
    what = row["source"] + (f" dev {row['deviation']}" if row.get("deviation", 1) != 1 else "") + (f" {row['phase']}" if row.get("phase") == "step" else "")
    lengths = f"{row['layout']:8}" if "layout" in row else f"b{n['B']} {n['Sq']}x{n['Sk']}"
    line = f"{what:15} {heads} {lengths} {shape:8}  {ours['ms']:8.3f} ms {ours['tflops']:6.1f} TF" + (f" {ours['tbps']:.2f} TB/s" if "tbps" in ours else "")
    line += f" {row['share']:4.0%} of the device error {ours['error']:.1e}"
    for name, t in times.items():
        if name != "ours":
            line += f"   {name} {t['tflops']:6.1f} TF error {t['error']:.1e} x{t['ms'] / ours['ms']:.3f}"
    print(line, *[f"  {name}: {why}" for name, why in row.get("failed", {}).items()], flush=True)
    for name, t in times.items():
        if "sustained_ms" in t:
            at = f" at {t['mhz']:.0f} MHz, {t['watts']:.0f} W" if t["mhz"] else ""
            print(f"{'':15} {name:8} for a second {t['sustained_tflops']:6.1f} TF{at}  x{t['sustained_ms'] / ours['sustained_ms']:.3f}", flush=True)


def main():
    import torch
    import torch.nn.attention

    torch.manual_seed(0)
    options = arguments()
    peers = Peers(torch)
    found = {"version": 1, "device": torch.cuda.get_device_name(), "target": target_of(options.folder), "date": time.strftime("%Y-%m-%d")}
    found |= {"torch": torch.__version__, "cudnn": torch.backends.cudnn.version(), "rows": []}
    found.update(ceilings(torch, options.folder))
    phase = PHASES[options.phase]
    for row in phase.ROWS:
        if options.names and not any(fnmatch.fnmatch(x, n) for x in (row[0], f"{row[0]} {row[1]}") for n in options.names):
            continue
        measured = phase.measure(torch, row, peers, options.folder, options, PHASES["bench"])
        if measured is None:
            print(f"{row[0]} {row[1]}: the target has no kernel of it", flush=True)
            continue
        found["rows"].append({**measured, "share": share_of(measured, found)})
        show(found["rows"][-1])
        torch._dynamo.reset()
        write(options.folder, options.phase, found)


if __name__ == "__main__":
    compile_all(*sys.argv[2:5]) if sys.argv[1] == "--compile" else main()
