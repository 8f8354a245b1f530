#!/usr/bin/env python3
"""gallery.py ATTNC OUT: writes the gallery, a page for each variant of the library.

In: stdlib/*.attn, what `attnc explain --format=tex` and `attnc mask` say of them, docs/bench/*.json. Out: OUT/NAME.md, OUT/NAME.svg where
there is a mask, OUT/README.md. Holds: pages are Markdown as GitHub shows it; every listing is whole, and tests/gallery.py runs it. What a
command prints is not known here: tests/gallery.py --update writes it into docs/gallery. PLAYGROUND is the address that links begin with.
"""

import glob
import os
import re
import struct
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path[:0] = [os.path.join(TOP, "tests/bench"), os.path.join(TOP, "tools/playground")]
import link  # noqa: E402
import tables  # noqa: E402

KEYS = 512  # of a mask's picture
DOC = [0] * 150 + [1] * 200 + [2] * 162  # the documents of those


@dataclass
class Shown:
    """How a variant is shown where the sizes of all the others do not fit it."""

    sizes: dict = field(default_factory=dict)  # of the listings
    mask: str = ""  # options of the picture
    keys: int = KEYS
    check: str = ""  # options of `attnc check`
    rows: str = ""  # the benchmark's case
    of: object = None  # which of its rows, by their sizes


def heads_differ(n):
    return n["Hkv"] != n["H"]


SHOWN = {
    "alibi": Shown(rows="alibi"),
    "attention_sink": Shown(rows="sink"),
    "causal": Shown(rows="causal", of=lambda n: not heads_differ(n) and n["D"] == n["Dv"]),
    "document": Shown(mask="--in doc=doc.npy", check="--in doc=0..2", rows="document"),
    "gqa": Shown(sizes={"H": 4, "Hkv": 2}, rows="causal", of=heads_differ),
    "mla": Shown(rows="causal", of=lambda n: n["D"] != n["Dv"]),
    "natten_2d": Shown(sizes={"Sq": 1024, "Sk": 1024}, keys=1024, rows="neighborhood"),
    "prefix_lm": Shown(mask="--in length=200", check="--in length=30", rows="prefix"),
    "relative_bias": Shown(rows="table"),
    "relu": Shown(rows="relu"),
    "retention": Shown(rows="retention"),
    "sigmoid": Shown(rows="sigmoid"),
    "sliding_window": Shown(mask="-DWINDOW=128", check="-DWINDOW=32", rows="window"),
    "softcap": Shown(rows="softcap"),
    "softmax": Shown(rows="softmax"),
}
# Integers that an input holds: in C and in Python, of the last index i.
WHOLE = {"doc": ("i / 40", "(torch.arange(Sk, dtype=torch.int32) // 40).expand(B, Sk).contiguous()"),
         "length": ("30", "torch.full((B,), 30, dtype=torch.int32)")}  # fmt: skip


class Variant:
    """A file of the library, read for what the page says of it."""

    def __init__(self, path):
        self.name = os.path.splitext(os.path.basename(path))[0]
        with open(path, encoding="utf-8") as f:
            self.source = f.read()
        self.shown = SHOWN.get(self.name, Shown())
        self.attention = bool(re.search(r"^attention\b", self.source, re.M))
        lines = self.source.split("\n")
        comment = lines[: next(i for i, line in enumerate(lines) if not line.startswith("//"))]
        self.about = re.sub(r"arXiv:([\d.]+\d)", r"[arXiv:\1](https://arxiv.org/abs/\1)", " ".join(line[2:].strip() for line in comment))
        given = dict(re.findall(r"(\w+)\s*=\s*(\w+)(?=[,;])", "\n".join(re.findall(r"^ *(?:dim|const) .*$", self.source, re.M))))
        self.dims = {name: int(given.get(value, value)) for name, value in given.items() if given.get(value, value).isdigit()}
        self.sizes = {"B": 1, "H": 2, "Hkv": 2, "Sq": 100, "Sk": 100, **self.shown.sizes, **self.dims}
        self.inputs = [(name, kind, [e.strip() for e in extents.split(",")])
                       for name, kind, extents in re.findall(r"^ *input (\w+): (\w+)\[([^\]]*)\]", self.source, re.M)]  # fmt: skip

    def clause(self, name):
        """The text of a clause after its name, or None."""
        found = re.search(rf"^    {name}(\(.*?)(?:;$|^    \}})", self.source, re.M | re.S)
        return re.sub(r"\s+", " ", found.group(1)) if found else None


def run(attnc, args, folder):
    done = subprocess.run([attnc, *args], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
    if done.returncode:
        sys.exit(f"attnc {' '.join(args)}:\n{done.stderr.decode()}")
    return done.stdout.decode()


def github(text):
    """TeX between dollars, as GitHub takes it without reading Markdown in it."""
    text = re.sub(r"^\$\$(.*)\$\$$", r"```math\n\1\n```", text, flags=re.M)
    return re.sub(r"(?<!\$)\$([^$\n`]+)\$(?!\$)", r"$`\1`$", text)


def explained(variant, attnc, folder):
    """The formula, and what is derived."""
    text = github(run(attnc, ["explain", f"{variant.name}.attn", "--format=tex"], folder)).strip()
    formula, derived = re.match(r"### [^\n]*\n\n(.*?)\n\n(### .*)", text, re.S).groups()
    return f"## Formula\n\nFor one query, over the keys:\n\n{formula}\n\n## What the compiler derives\n\n{derived}\n"


def write_npy(path, shape, values):
    head = f"{{'descr': '<i4', 'fortran_order': False, 'shape': {shape}, }}"
    head += " " * (-(len(head) + 11) % 64) + "\n"
    with open(path, "wb") as f:
        f.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head.encode() + struct.pack(f"<{len(values)}i", *values))


def mask(variant, attnc, folder, out):
    if variant.clause("mask") is None:
        return "## Mask\n\nThere is none: every key takes part.\n"
    keys, options = variant.shown.keys, variant.shown.mask
    args = ["mask", f"{variant.name}.attn", f"--shape=Sq={keys}", *options.split(), "--target=sm_80", "-o", f"{variant.name}.svg"]
    made = []
    if "doc.npy" in options:
        write_npy(os.path.join(folder, "doc.npy"), (1, len(DOC)), DOC)
        counts = ", ".join(str(DOC.count(i)) for i in range(3))
        made = [f'$ python3 -c "import numpy as np; np.save(\'doc.npy\', np.repeat([[0, 1, 2]], [{counts}], axis=1).astype(\'int32\'))"']
    run(attnc, args, folder)
    with open(os.path.join(folder, f"{variant.name}.svg"), encoding="utf-8") as f, open(os.path.join(out, f"{variant.name}.svg"), "w", encoding="utf-8") as g:
        g.write(f.read())
    picture = f'<img src="{variant.name}.svg" width="400" alt="The mask of {variant.name} over {keys} queries and keys, in tiles of sm_80">'
    text = "Grey tiles are skipped, blue ones run without a test, orange ones test each pair."
    return "\n".join(["## Mask", "", picture, "", text, "", "```console", *made, f"$ attnc {' '.join(args)}", "```", ""])


# ---- listings


def command(variant):
    n, name = variant.sizes, variant.name
    shape = ",".join(f"{k}={n[k]}" for k in ("H", *(["Hkv"] if n["Hkv"] != n["H"] else []), "Sq"))
    check = " ".join(f"attnc check {name}.attn --shape={shape} {variant.shown.check}".split())
    return "\n".join(["## From the command", "", "`check` compares the kernel with a naive evaluation in float64. The other line makes a kernel for NVIDIA GPUs.", "",
                      "```console", f"$ {check}", f"$ attnc -O3 {name}.attn --target=sm_80 --dtype=bf16 -o {name}.ptx", "```", ""])  # fmt: skip


def c_program(variant):
    n = {**variant.sizes}
    sizes = ", ".join(f"{k.upper()} = {v}" for k, v in n.items() if k in ("B", "H", "Hkv", "Sq", "Sk", "D", "Dv") or any(k in e for *_, e in variant.inputs))
    tensors = [("q", "f32", ["B", "H", "Sq", "D"]), ("k", "f32", ["B", "Hkv", "Sk", "D"]), ("v", "f32", ["B", "Hkv", "Sk", "Dv"]),
               ("o", "f32", ["B", "H", "Sq", "Dv"]), *variant.inputs]  # fmt: skip
    types = {"f32": "float", "i32": "int32_t"}
    arrays = [f"static {types[kind]} {name}{''.join(f'[{e.upper()}]' for e in extents)};" for name, kind, extents in tensors]
    fills = []
    for name, kind, extents in (tensors[0], tensors[1], *variant.inputs):
        count = " * ".join(e.upper() for e in extents)
        value = "sinf((float)i)" if name in "qk" else WHOLE[name][0] if kind == "i32" else "0.5f"
        fills.append(f"    for (int i = 0; i < {count}; i++) (({types[kind]} *){name})[i] = {value};")
    rows = [f'        {{"{name}", {name}, ATTN_{kind.upper()}, {len(extents)}, (int64_t[]){{{", ".join(e.upper() for e in extents)}}}, NULL, cpu}},'
            for name, kind, extents in tensors]  # fmt: skip
    name = variant.name
    return f"""#include "{name}.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum {{ {sizes} }};
{chr(10).join(arrays)}

int main(void) {{
    const attn_device cpu = {{ATTN_CPU, 0}};
    const attn_tensor tensors[] = {{
{chr(10).join(rows)}
    }};
    attn_call call = {{.tensors = tensors, .ntensors = {len(tensors)}}};
    attn_context *c = attn_create();
    attn_artifact *a;
    attn_error e;
{chr(10).join(fills)}
    for (int i = 0; i < HKV * SK; i++) v[0][i / SK][i % SK][0] = 1; // so o[..][0] is the sum of a row's weights
    if ({name}_open(c, &a, &e) || attn_workspace_bytes(a, &call, &call.workspace_bytes, &e)) goto failed;
    call.workspace = aligned_alloc(256, (call.workspace_bytes + 255) & ~(size_t)255);
    if (attn_launch(a, &call, &e)) goto failed;
    printf("the weights of the last query add up to %.4g\\n", o[0][0][SQ - 1][0]);
    free(call.workspace);
    attn_close(a);
    attn_destroy(c);
    return 0;
failed:
    fprintf(stderr, "%s\\n", e.message);
    return 1;
}}"""


def from_c(variant):
    name = variant.name
    return "\n".join(["## From C", "", "An object file comes with a header ([the artifact](../abi.md)).", "", f"<!-- file: {name}.c -->", "```c", c_program(variant), "```", "",
                      "```console", f"$ attnc -O3 {name}.attn -o {name}.o", f"$ cc {name}.c {name}.o -lattnrt -lpthread -ldl -lm -o {name}", f"$ ./{name}", "```", ""])  # fmt: skip


def from_torch(variant):
    n, name = variant.sizes, variant.name
    used = ["B", "H", *(["Hkv"] if n["Hkv"] != n["H"] else []), "Sk", *(e for _, kind, x in variant.inputs for e in x if e in variant.dims)]
    lines = [f"{', '.join(dict.fromkeys(used))} = {', '.join(str(n[k]) for k in dict.fromkeys(used))}"]
    kv = "Hkv" if "Hkv" in used else "H"
    lines += [f"q = torch.randn(B, H, Sk, {n['D']})", f"k = torch.randn(B, {kv}, Sk, {n['D']})", f"v = torch.randn(B, {kv}, Sk, {n['Dv']})"]
    for i, kind, extents in variant.inputs:
        shape = ", ".join(e for e in extents)
        lines.append(f"{i} = {WHOLE[i][1] if kind == 'i32' else f'torch.rand({shape})'}")
    call = ", ".join(["q, k, v", *(f"{i}={i}" for i, *_ in variant.inputs)])
    text = ["import attn, torch", "", f'{name} = attn.compile("{name}.attn")  # with target="sm_80", dtype="bf16" for CUDA tensors', *lines,
            f"o = {name}({call})", "print(tuple(o.shape), bool(o.isfinite().all()))"]  # fmt: skip
    return "\n".join(["## From PyTorch", "", f"<!-- file: {name}.py -->", "```python", *text, "```", "", "```console", f"$ python3 {name}.py", "```", ""])


# ---- figures


def figures(variant):
    """The rows of docs/bench that measured this variant, as tables.py shows them."""
    found = []
    shown = variant.shown
    files = [*((f"{device}-{phase}", "source") for phase, device in tables.CURRENT.items() if phase != "serving"), ("cpu", "variant")]
    for name, key in files:
        bench = tables.load(name)
        wanted = shown.rows or variant.name if key == "source" else variant.name
        rows = [r for r in bench["rows"] if r[key] == wanted and (key == "variant" or not shown.of or shown.of(r["sizes"]))]
        if rows:
            found.append(tables.shown_as(name)({**bench, "rows": rows}))
    if not found:
        return "## Figures\n\nThere are none: no benchmark in [docs/bench](../bench) has this variant.\n"
    text = "Rows of the benchmark, with its own sizes and constants. [performance.md](../performance.md) says how they were measured."
    return "\n\n".join(["## Figures", text, *found]) + "\n"


# ---- recurrences


def recurrence(variant):
    has = {c: variant.clause(c) for c in ("query", "key", "value", "decay", "erase", "write", "bonus", "output")}
    decay = (r"\operatorname{diag}(\lambda_t)" if has["decay"] and re.match(r"\([^)]*,[^)]*,[^)]*,", has["decay"]) else r"\lambda_t") if has["decay"] else ""
    state = rf"S_t = {decay} S_{{t-1}}" + (r" + w_t \left(e_t^{\top} S_{t-1}\right)" if has["erase"] else "") + r" + k_t v_t^{\top}"
    read = r"q_t^{\top} \left(S_{t-1} + (u_t \odot k_t) v_t^{\top}\right)" if has["bonus"] else r"q_t^{\top} S_t"
    names = {"query": "q_t", "key": "k_t", "value": "v_t", "decay": r"\lambda_t", "erase": "e_t", "write": "w_t", "bonus": "u_t", "output": "o_t"}
    rows = [f"| $`{names[c]}`$ | `{c}{text}` |" for c, text in has.items() if text]
    output = f"o_t = {read}" if not has["output"] else rf"o_t = \operatorname{{output}}\left({read}\right)"
    lines = ["## Formula", "", "A state $`S`$ of D x Dv numbers for each head goes from position to position:", "", "```math", state, "```", "```math", output, "```", "",
             "Clauses that are not written stand for q, k and v as they are.", "", "| | clause |", "| --- | --- |", *rows, ""]  # fmt: skip
    return "\n".join(lines)


def chunked(variant, attnc, folder):
    """What is derived of a recurrence, and how it is run."""
    text = github(run(attnc, ["explain", f"{variant.name}.attn", "--format=tex"], folder)).strip()
    derived, name = text[text.index("### in a chunk") :], variant.name
    return "\n".join(["## What the compiler derives", "", derived, "", "## From the command", "",
                      "`check` compares a kernel with the steps of the recurrence in float64. An object "
                      "file comes with a header ([the artifact](../abi.md)); from Python, `attn.compile` takes the source.", "",
                      "```console", f"$ attnc check {name}.attn --shape=H=2,S=8", f"$ attnc run {name}.attn --shape=H=2,S=8 --out o=o.npy --out state=state.npy",
                      f"$ attnc -O3 {name}.attn -o {name}.o", "```", ""])  # fmt: skip


# ---- pages


BUILT = "" if "PLAYGROUND" in os.environ else " (`make playground` builds it)"


def page(variant, attnc, out):
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, f"{variant.name}.attn"), "w", encoding="utf-8") as f:
            f.write(variant.source)
        play = f"[Open it in the playground]({link.link(variant.source)}){BUILT}. [All variants](README.md)."
        head = [f"# {variant.name}", "", variant.about, "", play, "", f"<!-- file: {variant.name}.attn -->", "```attn", variant.source.rstrip("\n"), "```", ""]
        if variant.attention:
            derived = explained(variant, attnc, folder)
            variant.sweeps = re.search(r"^### (\w+) sweeps? over the keys", derived, re.M).group(1)
            parts = [derived, mask(variant, attnc, folder, out), command(variant), from_c(variant), from_torch(variant), figures(variant)]
        else:
            parts = [recurrence(variant), chunked(variant, attnc, folder)]
    return "\n".join([*head, "\n".join(parts)])


def cell(text):
    return text.replace("|", "\\|")


def index(variants):
    lines = ["# The gallery", "",
             "A page for each variant of the [library](../../stdlib): its formula and paper, its mask, what the compiler derives, how it is called, its figures.",
             "`make gallery` makes the pages from the sources; `make check` runs every listing in them, and fails where a page is not what the sources give.",
             "Links into the playground open the page that `make playground` makes; `make gallery PLAYGROUND=ADDRESS` lets them open a published one.", ""]  # fmt: skip
    lines += ["## Attentions", "", "| variant | mask | sweeps over the keys | |", "| --- | --- | --- | --- |"]
    for v in (v for v in variants if v.attention):
        picture = f'<img src="{v.name}.svg" width="64" alt="">' if v.clause("mask") else "every key"
        lines.append(f"| [{v.name}]({v.name}.md) | {picture} | {v.sweeps} | {cell(v.about)} |")
    lines += ["", "## Recurrences, which have kernels for the CPU", "", "| variant | |", "| --- | --- |"]
    lines += [f"| [{v.name}]({v.name}.md) | {cell(v.about)} |" for v in variants if not v.attention]
    return "\n".join(lines) + "\n"


def main(attnc, out):
    variants = [Variant(path) for path in sorted(glob.glob(os.path.join(TOP, "stdlib/*.attn")))]
    variants = [v for v in variants if re.search(r"^(attention|recurrence)\b", v.source, re.M)]
    os.makedirs(out, exist_ok=True)
    for variant in variants:
        text = page(variant, os.path.abspath(attnc), out)
        with open(os.path.join(out, f"{variant.name}.md"), "w", encoding="utf-8") as f:
            f.write(text)
    with open(os.path.join(out, "README.md"), "w", encoding="utf-8") as f:
        f.write(index(variants))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
