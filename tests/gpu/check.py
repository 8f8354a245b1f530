"""Runs compiled variants on the GPU at hand against float64: python3 tests/gpu/check.py [--seed=N] FOLDER [NAME...]

FOLDER holds what cases.py compiled. Every shape has odd lengths; outputs are poisoned before the launch; k and v also come
with strides that are not their own. Prints one line a case and exits 1 when one is over its bound."""

import argparse
import os
import re
import sys

import attn
import cases
import torch

SHAPES = [(2, 4, 2, 200, 200), (1, 3, 3, 129, 257), (1, 2, 1, 1, 77), (2, 2, 2, 64, 1), (1, 2, 1, 300, 130), (1, 1, 1, 513, 640)]
TABLE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tools", "tolerance.def")
with open(TABLE) as table:
    BOUND = {t.lower(): float(x) / 2 for t, x in re.findall(r"^TOLERANCE\((\w+), (\S+)\)", table.read(), re.M)}
TYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}


def inputs(source, B, H, Sq, Sk, dev):
    make = {
        "bias": lambda: {"bias": torch.randn(H, Sq, Sk, device=dev)},
        "prefix": lambda: {"length": torch.randint(0, Sk + 1, (B,), device=dev, dtype=torch.int32)},
        "document": lambda: {"doc": torch.sort(torch.randint(0, 4, (B, Sk), device=dev), -1)[0].to(torch.int32)},
        "blocks": lambda: {"keep": torch.rand(H, 14, 9, device=dev) < 0.4},
        "lengths": lambda: {
            "long": torch.sort(torch.randint(0, Sk + 1, (B, 700), device=dev), -1)[0].to(torch.int32),
            "ok": torch.rand(Sk, device=dev) < (0.9 if B > 1 else 0.02),
        },
        "sink": lambda: {"sink": torch.randn(H, device=dev)},
        "table": lambda: {"table": torch.randn(H, 700, device=dev)},
        "vectors": lambda: {
            "key": torch.randn(B, Sk, device=dev),
            "query": torch.randn(B, Sq, device=dev),
            "kind": torch.randint(0, 4, (Sk,), device=dev, dtype=torch.int32),
        },
        "cosine": lambda: {"tau": torch.rand(H, device=dev) * 0.2},
    }
    return make.get(source, dict)()


def error(a, b):
    a = a.double()
    if bool((torch.isinf(a) != torch.isinf(b)).any()) or bool(torch.isnan(a).any()):
        return float("inf")
    a, b = torch.nan_to_num(a, posinf=0, neginf=0), torch.nan_to_num(b, posinf=0, neginf=0)
    return float((a - b).norm() / b.norm().clamp(min=1e-30))


def tensors(shape, D, Dv, dtype, turned, dev):
    B, H, Hkv, Sq, Sk = shape
    q, k, v = torch.randn(B, H, Sq, D), torch.randn(B, Hkv, Sk, D), torch.randn(B, Hkv, Sk, Dv)
    out = [x.to(dev, TYPES[dtype]) for x in (2 * q, k, v)]
    return [x.transpose(1, 2).contiguous().transpose(1, 2) for x in out] if turned else out


def run(kernel, source, shape, D, Dv, dtype, turned, dev="cuda"):
    B, H, _, Sq, Sk = shape
    q, k, v = tensors(shape, D, Dv, dtype, turned, dev)
    given = inputs(source, B, H, Sq, Sk, dev)
    want = cases.reference(source, torch, q, k, v, given, max(Sk - Sq, 0))
    want = want if isinstance(want, tuple) else (want,)
    names = kernel.outputs[: len(want)] if len(kernel.outputs) >= len(want) else kernel.outputs
    types = [q.dtype] + [torch.float32] * (len(names) - 1)
    out = {n: torch.empty(tuple(w.shape), device=dev, dtype=t) for n, w, t in zip(names, want, types)}
    worst, tiles = 0.0, attn.TileMap()
    for _ in range(2):  # the second with the first one's map of tiles
        for x in out.values():
            x.fill_(float("nan"))
        kernel(q, k, v, **given, out=out, tile_map=tiles)
        torch.cuda.synchronize()
        e = max(error(out[n], w) for n, w in zip(names, want))
        worst = worst if e <= worst else e
    return worst, q, k, v, want[0]


OVERLAPPING = ("causal_64_64", "causal_192_128", "causal_f16")


def overlapping(kernel, D, Dv, dtype, dev="cuda"):
    """Launches of several sizes on four streams at once, and in graphs that run at once, twice each: how many outputs are not those
    of the same launches alone. What blocks ask for their next tile lies where no other launch asks."""
    shapes = [(1, 1, 1, 77, 77), (2, 4, 2, 640, 640), (1, 8, 8, 1024, 1024), (3, 5, 5, 129, 2000), (1, 3, 3, 4500, 4500)]
    runs = [tensors(s, D, Dv, dtype, False, dev) for s in shapes]
    runs = [(x, kernel(*x)) for x in runs]
    streams, out, graphs = [torch.cuda.Stream() for _ in range(4)], [], []
    torch.cuda.synchronize()

    def launch(i, stream):
        x, want = runs[i % len(runs)]
        out.append((torch.full_like(want, float("nan")), want))
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            kernel(*x, out={kernel.outputs[0]: out[-1][0]})

    for i in range(80):
        launch(i * i, streams[i % 4])
    torch.cuda.synchronize()
    for i in range(4):
        outs = [torch.full_like(want, float("nan")) for _, want in runs]
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for (x, _), o in zip(runs, outs):
                kernel(*x, out={kernel.outputs[0]: o})
        graphs.append(graph)
        out += [(o, want) for o, (_, want) in zip(outs, runs)]
    for graph, stream in zip(2 * graphs, 2 * streams):
        with torch.cuda.stream(stream):
            graph.replay()
    torch.cuda.synchronize()
    return sum(not torch.equal(a, b) for a, b in out)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4), "little"), help="of all inputs; default: another each time")
    parser.add_argument("folder")
    parser.add_argument("names", nargs="*")
    given = parser.parse_args()
    folder, only = given.folder, given.names
    print(f"seed {given.seed}", flush=True)
    torch.manual_seed(given.seed)
    failed = 0
    for name, source, D, Dv, dtype in cases.CASES:
        if only and name not in only:
            continue
        kernel = attn.load(os.path.join(folder, name + ".ptx")).kernels[0]
        worst, where = 0.0, None
        for n, shape in enumerate(SHAPES):
            if source == "document" and shape[4] < shape[3]:
                continue
            e = run(kernel, source, shape, D, Dv, dtype, n % 2 == 1)[0]
            if not e <= worst:
                worst, where = e, shape
        bad = not worst <= BOUND[dtype]
        failed += bad
        print(f"{'FAIL' if bad else 'ok  '} {name:20} {worst:.2e} {where}", flush=True)
        if name in OVERLAPPING:
            wrong = overlapping(kernel, D, Dv, dtype)
            failed += wrong > 0
            print(f"{'FAIL' if wrong else 'ok  '} {name:20} {wrong} of overlapping launches", flush=True)
    print(f"{failed} failed")
    sys.exit(failed != 0)


if __name__ == "__main__":
    main()
