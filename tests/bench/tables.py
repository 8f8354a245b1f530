#!/usr/bin/env python3
"""Writes the tables and the chart of figures in the documents from docs/bench/*.json: python3 tests/bench/tables.py [--update]

In: docs/bench/NAME.json. A file DEVICE-PHASE.json is what `make bench` leaves as build/bench/PHASE.json; cpu.json is of what `attnc bench
--json=FILE` writes. Copy such files there, run this with --update, and commit them. Out: the text between `<!-- table: NAME -->` and
`<!-- end -->` in README.md and docs/*.md, and docs/img/bench.svg. Without --update it only says which of them differ, with status 1;
tests/docs.py does the same. python3 tests/bench/tables.py --count ATTNC FILE.json counts the kernels of AMD targets anew into FILE.json.
"""

import glob
import json
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests/gpu"))
import chart  # noqa: E402

LAYOUTS = {"dense": "dense", "ragged": "ragged", "paged:16": "pages of 16", "paged:64": "pages of 64", "paged:256": "pages of 256"}
CURRENT = {"bench": "h100", "backward": "h100", "serving": "h200", "recurrences": "h200"}  # of which device the README tells, by phase
WORDS = {"fwd": "forward", "bwd": "backward", "step": "one step"}
CASES = {"softmax": "softmax, full", "causal": "softmax, causal", "window": "sliding window of 1024", "softcap": "soft cap 20, causal",
         "table": "relative bias table, causal", "alibi": "ALiBi, causal", "prefix": "prefix of 2048", "document": "documents, with their map",
         "bias": "dense bias, bf16, full", "sink": "window of 128 with sinks", "neighborhood": "neighborhood of 13 x 13 on 64 columns",
         "relu": "ReLU, full", "sigmoid": "sigmoid, full", "sigmoid_causal": "sigmoid, causal", "retention": "retention, causal"}  # fmt: skip
BLOCK = re.compile(r"(<!-- table: (\S+) -->\n).*?(<!-- end -->)", re.S)


def load(name):
    with open(os.path.join(ROOT, "docs/bench", name + ".json"), encoding="utf-8") as f:
        return json.load(f)


def table(heads, rows):
    lines = ["| " + " | ".join(r) + " |" for r in (heads, ["---"] * len(heads), *rows)]
    return "\n".join(lines)


def shape(n):
    heads = f"h{n['H']}" + (f"/{n['Hkv']}" if n["Hkv"] != n["H"] else "")
    lengths = f"s{n['Sq']}" if n["Sq"] == n["Sk"] else f"{n['Sq']} query, {n['Sk']} keys"
    return f"d{n['D']}" + (f"/{n['Dv']}" if n["Dv"] != n["D"] else "") + f" b{n['B']} {heads} {lengths}"


def rate(tflops):
    return f"{tflops:.0f}" if tflops >= 10 else f"{tflops:.1f}"


def newest(times):
    return {n: t for n, t in times.items() if not (n == "flash" and "fa3" in times)}


def ratio(row, name, key="ms"):
    """A peer's time over ours; bold where it is faster."""
    x = row["times"][name][key] / row["times"]["ours"][key]
    return f"**{x:.2f}**" if x < 0.995 else f"{x:.2f}"


def peers(group, key="ms"):
    """Each peer's time over ours, in every row of the group."""
    names = [n for n, t in newest(group[0]["times"]).items() if n != "ours" and key in t]
    return ", ".join(chart.NAMES[n] + " " + " / ".join(ratio(r, n, key) for r in group) for n in names)


def groups(rows):
    """Lists of rows: one, or a full and a causal softmax of the same shape beside the same peers."""
    out = []
    for r in rows:
        last = out[-1][-1] if out else None
        alike = last and all(last.get(key) == r.get(key) for key in ("sizes", "deviation")) and list(last["times"]) == list(r["times"])
        if alike and (last["source"], r["source"]) == ("softmax", "causal"):
            out[-1].append(r)
        else:
            out.append([r])
    return out


def case(group):
    first = group[0]
    name = "softmax, full / causal" if len(group) > 1 else CASES.get(first["source"], first["source"])
    name += f", scores of deviation {first['deviation']}" if first.get("deviation", 1) != 1 else ""
    return name + (f" ({first['run']})" if "run" in first else "")


def about(found):
    """Where the figures are from: a sentence before a table."""
    versions = ", ".join(f"{k} {found[k]}" for k in ("torch", "cudnn") if k in found)
    text = f"{found['device']}, {found['target']}, {found.get('date', 'no date')}" + (f" ({versions})" if versions else "") + "."
    rates = [f"{words} {found[key]:.{digits}f} {unit}" for key, words, digits, unit in
             (("matrix_tflops", "matrix instructions alone", 0, "TFLOP/s"), ("product_tflops", "a large matrix product", 0, "TFLOP/s"),
              ("copy_tbps", "a copy", 2, "TB/s")) if found.get(key)]  # fmt: skip
    text += f" The device's own rates in that run: {', '.join(rates)}." if rates else ""
    return text + (" " + found["note"] if "note" in found else "")


def gpu(found):
    """Forward or backward of attention."""
    share = any("share" in r for r in found["rows"])
    phase = "backward" if any(r.get("phase") == "bwd" for r in found["rows"]) else "forward"
    heads = [f"case, bf16 {phase}", "shape", "TFLOP/s", *["of the device"] * share, "times as fast as", "for a second", "times as fast as"]
    rows = []
    for group in groups(found["rows"]):
        ours, first = [r["times"]["ours"] for r in group], group[0]
        second = "sustained_tflops" in ours[0]
        rows.append([case(group), shape(first["sizes"]), " / ".join(rate(t["tflops"]) for t in ours),
                     *[" / ".join(f"{r.get('share', 0):.0%}" for r in group)] * share, peers(group),
                     " / ".join(rate(t["sustained_tflops"]) for t in ours) if second else "", peers(group, "sustained_ms") if second else ""])  # fmt: skip
    if not any(r[-2] for r in rows):
        heads, rows = heads[:-2], [r[:-2] for r in rows]
    return about(found) + "\n\n" + table(heads, rows)


def time_of(ms):
    return f"{ms * 1e3:.0f} us" if ms < 1 else f"{ms:.2f} ms"


def slowest_resource(found, row):
    """The rate that is nearer to the device's."""
    ours = row["times"]["ours"]
    by_memory = ours["tbps"] / found["copy_tbps"] > ours["tflops"] / found["matrix_tflops"]
    return f"{ours['tbps']:.2f} TB/s" if by_memory else f"{ours['tflops']:.0f} TFLOP/s"


def heads_of(n):
    return f"h{n['H']}" + (f"/{n['Hkv']}" if n["Hkv"] != n["H"] else "")


def serving(found):
    """A line for each batch, with a column for each layout; behind a time the peer's over it."""
    columns = [("dense",), ("ragged",), ("paged:16",), ("paged:256", "paged:64")]
    batches = {}
    for r in found["rows"]:
        batches.setdefault(r["source"], {})[r["layout"]] = r

    def cell(row):
        peer = [n for n in ("fa3", "flashmla") if n in row["times"]]
        return time_of(row["times"]["ours"]["ms"]) + (f" ({ratio(row, peer[0])})" if peer else "")

    lines = []
    for name, by_layout in batches.items():
        cells = [" ".join(cell(by_layout[layout]) for layout in column if layout in by_layout) for column in columns]
        best = min(by_layout.values(), key=lambda r: r["times"]["ours"]["ms"])
        dense = by_layout.get("dense")
        cudnn = ratio(dense, "cudnn") if dense and "cudnn" in dense["times"] else ""
        lines.append([name, heads_of(best["sizes"]), *cells, slowest_resource(found, best), cudnn])
    heads = ["batch, bf16", "heads", "dense", "ragged", "pages of 16", "of 256 (MLA: 64)", "the best one's rate", "cuDNN / dense"]
    return about(found) + "\n\n" + table(heads, lines)


def recurrences(found):
    """A line for each shape: the forward and, where it was measured, the backward; or one step."""
    lines = {}
    for r in found["rows"]:
        lines.setdefault((r["source"].replace("_", " "), shape(r["sizes"])), []).append(r)
    rows = [[name, " / ".join(WORDS[r["phase"]] for r in group), where,
             " / ".join(time_of(r["times"]["ours"]["ms"]) for r in group), " / ".join(f"{r['share']:.0%}" for r in group),
             " / ".join(ratio(r, "fla") if "fla" in r["times"] else "-" for r in group)] for (name, where), group in lines.items()]  # fmt: skip
    return about(found) + "\n\n" + table(["recurrence, bf16", "phase", "shape", "time", "of the device", "fla"], rows)


def current():
    """The files of which the README tells, by phase."""
    return {phase: load(f"{device}-{phase}") for phase, device in CURRENT.items()}


def host(found):
    rows = [[r["variant"], r["dtype"], shape(r["sizes"]), f"{r['ms']:.3g}", f"{r['tflops'] * 1e3:.0f}", f"{r['roofline']:.0%}"] for r in found["rows"]]
    return about(found) + "\n\n" + table(["case", "type", "shape", "ms", "GFLOP/s", "of the roofline"], rows)


def counted(found):
    heads = ["target", "shape", "instructions", "matrix products", "cycles: matrix, vector, LDS", "all overlap: TFLOP/s", "nothing does"]
    rows = [[r["target"], f"d{r['D']}", r["instructions"], r["products"], r["cycles"], r["best"], r["worst"]] for r in found["rows"]]
    return f"Counted {found['date']}.\n\n" + table(heads, rows)


def first_of_each(found):
    """One row of each variant, the first with 128 columns, or else the first, without FlashAttention-2 beside its successor: for the README."""
    first = {}
    for r in sorted(found["rows"], key=lambda r: r["sizes"]["D"] != 128):
        if r["sizes"]["Sq"] > 1:
            first.setdefault(r["source"], r)
    rows = [first[s] for s in dict.fromkeys(r["source"] for r in found["rows"]) if s in first]
    return {**found, "rows": [{**r, "times": newest(r["times"])} for r in rows]}


PHASES = {"bench": gpu, "backward": gpu, "serving": serving, "recurrences": recurrences}
TABLES = {"h200-sm_90a": gpu, "h200-sm_80": gpu, "cpu": host, "amd": counted}


def readme():
    """One line of each kind."""
    files = current()
    bench, found = files["bench"], files["serving"]
    lines = [["forward, " + case(g), shape(g[0]["sizes"]), " / ".join(rate(r["times"]["ours"]["tflops"]) for r in g) + " TFLOP/s", peers(g)]
             for g in groups(first_of_each(bench)["rows"])]  # fmt: skip
    for g in groups(first_of_each(files["backward"])["rows"])[:1]:
        lines.append(["backward, " + case(g), shape(g[0]["sizes"]), " / ".join(rate(r["times"]["ours"]["tflops"]) for r in g) + " TFLOP/s", peers(g)])
    for r in found["rows"]:
        if (r["source"], r["layout"]) in SHOWN:
            lines.append([f"{r['source']}, {LAYOUTS[r['layout']]}", heads_of(r["sizes"]), slowest_resource(found, r), peers([r])])
    for r in files["recurrences"]["rows"]:
        if r["source"] == "gated_deltanet" and r["sizes"]["B"] > 1:
            lines.append([f"gated DeltaNet, {WORDS[r['phase']]}", shape(r["sizes"]), time_of(r["times"]["ours"]["ms"]), peers([r])])
    text = f"{about(bench)} Of serving and recurrences: {found['device']}, {found['target']}, {found['date']}."
    return text + "\n\n" + table(["case, bf16", "shape", "rate or time", "times as fast as"], lines)


SHOWN = {("decode, 64 of 8192", "dense"), ("decode, 64 of 8192", "paged:16"), ("prompts of 8192, 4096, .. 64", "ragged"), ("prompts of 8192, 4096, .. 64", "paged:16"),
         ("a chunk of 2048 and 63 decodes, on 8192", "ragged"), ("MLA decode, 128 of 4096", "paged:64")}  # fmt: skip


def shown_as(name):
    return TABLES.get(name) or PHASES[name.rpartition("-")[2]]


def text_of(name):
    if name == "readme":
        return readme()
    return shown_as(name)(load(name))


def wanted():
    """What each file should hold, by its path."""
    out = {}
    for path in [os.path.join(ROOT, "README.md"), *sorted(glob.glob(os.path.join(ROOT, "docs/*.md")))]:
        with open(path, encoding="utf-8") as f:
            text = f.read()
        if BLOCK.search(text):
            out[path] = BLOCK.sub(lambda m: m[1] + text_of(m[2]) + "\n" + m[3], text)
    out[os.path.join(ROOT, "docs/img/bench.svg")] = chart.chart(first_of_each(current()["bench"]))
    return out


def differing():
    """The files that do not hold what the figures say, and what they should."""
    def now(path):
        try:
            with open(path, encoding="utf-8") as f:
                return f.read()
        except FileNotFoundError:
            return None

    return {path: text for path, text in wanted().items() if now(path) != text}


def count(attnc, out):
    import time

    rows = []
    for target in ("gfx942", "gfx90a", "gfx1100"):
        for d in (64, 128):
            command = [attnc, "bench", "--dry", f"--target={target}", os.path.join(ROOT, "stdlib/softmax.attn"), f"-DD={d}", f"-DDv={d}", "-O3"]
            said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            m = re.search(r"bf16, (.*?), \d+ MHz\): (\d+) instructions.*?, ([\d.]+%) matrix.*?matrix (\d+), vector (\d+), shared memory (\d+); "
                          r"\d+ when all overlap \((\d+) TFLOP/s, (\d+%).*?\), \d+ when nothing does \((\d+) TFLOP/s, (\d+%)", said, re.S)  # fmt: skip
            rows.append({"target": m[1] + ")", "D": d, "instructions": m[2], "products": m[3], "cycles": f"{m[4]}, {m[5]}, {m[6]}",
                         "best": f"{m[7]} ({m[8]})", "worst": f"{m[9]} ({m[10]})"})  # fmt: skip
    with open(out, "w", encoding="utf-8") as f:
        json.dump({"date": time.strftime("%Y-%m-%d"), "rows": rows}, f, indent=1)


def main():
    if "--count" in sys.argv:
        count(*sys.argv[2:4])
        return 0
    found = differing()
    for path, text in found.items():
        print(("updated " if "--update" in sys.argv else "FAILED: not as docs/bench says: ") + os.path.relpath(path, ROOT))
        if "--update" in sys.argv:
            with open(path, "w", encoding="utf-8") as f:
                f.write(text)
    return bool(found) and "--update" not in sys.argv


if __name__ == "__main__":
    sys.exit(main())
