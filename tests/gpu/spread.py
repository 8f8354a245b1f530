"""How the rate of softmax depends on the data: python3 tests/gpu/spread.py [--short] FOLDER [FOLDER...]

python3 tests/gpu/spread.py --compile ATTNC FOLDER TARGET [OPTION...]    compiles what it runs (needs no GPU)
Scores are scaled to deviations 1 to 64; a late key outweighs all others; keys grow along the sequence; the tile that is taken first has one key.
For each: the rate as a share of that at deviation 1, in the same interleaved rounds, and FlashAttention-3's time over ours where
flash_attn_interface can be imported. The result is compared with float64, and two launches must give the same bits. With several folders
(of several compilers or schedules) each is measured; the exit status tells whether all results were right and alike."""

import importlib.util
import math
import os
import subprocess
import sys

import bench

SOURCES = ("softmax", "causal")
SIZES = (64, 128, 256)
LENGTHS = ((2048, 8), (16384, 1))  # and the batch
DEVIATIONS = (1, 4, 9, 16, 30, 64)


def file_of(folder, source, D):
    return os.path.join(folder, f"{source}_{D}")


def compile_all(attnc, folder, target, *options):
    os.makedirs(folder, exist_ok=True)
    for source in SOURCES:
        for D in SIZES:
            path = file_of(folder, source, D)
            with open(path + ".attn", "w", encoding="utf-8") as f:
                f.write(bench.STD + f"attention t {{ {bench.SCORE}{bench.SOURCES[source]} }}\n")
            subprocess.run([attnc, "-O3", path + ".attn", f"-DD={D}", f"--target={target}", "--dtype=bf16", *options, "-o", path + ".ptx"], check=True)


def rounded(*x):
    return tuple(t.bfloat16() for t in x)


def inputs(torch, B, H, S, D):
    """By name: q and k with the scores that are wanted."""
    q, k = (torch.randn(B, H, S, D, device="cuda") for _ in range(2))
    made = {str(d): rounded(q * math.sqrt(d), k * math.sqrt(d)) for d in DEVIATIONS}
    grows = torch.linspace(0, 1, S, device="cuda")[:, None]
    late = k.clone()
    one = torch.ones(D, device="cuda")
    late[:, :, S * 7 // 8] = one * 64  # with every query's sum made positive below
    made["late key"] = rounded(q.abs() * 2, late)
    made["growing"] = rounded(q * math.sqrt(30), k * math.sqrt(30) * grows)
    made["growing up"] = rounded(q.abs() * 4, k + 4 * grows)
    made["one first"] = rounded(q * 3, torch.cat([k * 3, k[:, :, :1] * 3], 2))
    return made


def reference(torch, source, q, k, v, rows):
    s = q[0, 0, rows].double() @ k[0, 0].double().T * q.shape[-1] ** -0.5
    if source == "causal":
        i, j = (rows + k.shape[2] - q.shape[2])[:, None], torch.arange(k.shape[2], device="cuda")[None]
        s = s.masked_fill(j > i, -math.inf)
    return torch.softmax(s, -1) @ v[0, 0].double()


def check(torch, run, out, want, rows, label):
    run()
    first = out.clone()
    out.fill_(math.nan)
    run()
    same = torch.equal(first.view(torch.int16), out.view(torch.int16))
    error = float((first[0, 0, rows].double() - want).norm() / want.norm())
    if not same or not error < 2e-2:
        print(f"WRONG {label}: error {error:.1e}{'' if same else ', two launches differ'}", flush=True)
    return same and error < 2e-2


def measure(torch, folders, source, D, S, B, rounds):
    import attn

    H = 2048 // D
    data = inputs(torch, B, H, S, D)
    v = torch.randn(B, H, S + 1, D, device="cuda", dtype=torch.bfloat16)
    fa3 = None
    if importlib.util.find_spec("flash_attn_interface") is not None:
        from flash_attn_interface import flash_attn_func as fa3
    runs, good = {}, True
    rows = torch.randint(0, S, (64,), device="cuda")
    for name, (q, k) in data.items():
        values = v[:, :, : k.shape[2]].contiguous()
        want = reference(torch, source, q, k, values, rows)
        for folder in folders:
            kernel = attn.load(file_of(folder, source, D) + ".ptx").kernels[0]
            out = torch.full_like(q, math.nan)
            runs[folder, name] = lambda kernel=kernel, q=q, k=k, values=values, out=out: kernel(q, k, values, out={"o": out})
            good &= check(torch, runs[folder, name], out, want, rows, f"{folder} {source} d{D} {S} {name}")
        if fa3:
            x = [t.transpose(1, 2).contiguous() for t in (q, k, values)]
            runs["fa3", name] = lambda x=x: fa3(*x, causal=source == "causal")
    t = bench.medians(torch, runs, rounds)
    for folder in folders:
        base = t[folder, "1"]
        print(f"{source:8} d{D} {S} {folder}: {base * 1e3:.0f} us; rate by deviation", end="")
        for name in data:
            peer = f" ({t['fa3', name] / t[folder, name]:.2f})" if fa3 else ""
            print(f", {name} {base / t[folder, name]:.3f}{peer}", end="")
        print(flush=True)
    return good


def main(arguments):
    import torch

    torch.manual_seed(0)
    rounds = 5 if "--short" in arguments else 12
    folders = [a for a in arguments if not a.startswith("--")]
    cases = [(source, D, S, B) for D in SIZES for source in SOURCES for S, B in LENGTHS]
    if not all([measure(torch, folders, *case, rounds) for case in cases]):
        sys.exit("a result is wrong, or differs from launch to launch")


if __name__ == "__main__":
    compile_all(*sys.argv[2:]) if sys.argv[1] == "--compile" else main(sys.argv[1:])
