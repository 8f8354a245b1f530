"""A bar chart as SVG: what bench.py measured, one group of bars a row, ours first, with each peer's time over ours as its ratio.

python3 tests/gpu/chart.py BENCH.json BENCH.svg"""

import json
import sys
from xml.sax.saxutils import escape

COLOURS = {"ours": "#2563eb", "cudnn": "#9ca3af", "flash": "#d1d5db", "fa3": "#6b7280", "flex": "#d6b37a", "formula": "#c4b5d6"}
NAMES = {"ours": "attnc", "cudnn": "cuDNN", "fa3": "FlashAttention-3", "flash": "FlashAttention-2", "flex": "FlexAttention", "formula": "torch.compile",
         "flashmla": "FlashMLA", "fla": "fla"}  # fmt: skip
LEFT, WIDTH, BAR, GAP, TOP = 250, 620, 13, 12, 66


def text(x, y, s, size=12, anchor="start", fill="#111827"):
    return f'<text x="{x:.0f}" y="{y:.0f}" font-size="{size}" text-anchor="{anchor}" fill="{fill}">{escape(s)}</text>'


def label(row):
    n = row["sizes"]
    lengths = n["Sq"] if n["Sq"] == n["Sk"] else f'{n["Sq"]}x{n["Sk"]}'
    dims = n["D"] if n["D"] == n["Dv"] else f'{n["D"]}/{n["Dv"]}'
    heads = n["H"] if n["H"] == n["Hkv"] else f'{n["H"]}/{n["Hkv"]}'
    return f'{row["source"]} b{n["B"]} h{heads} s{lengths} d{dims}'


def legend(names):
    out, x = [], LEFT
    for n in names:
        out += [f'<rect x="{x}" y="30" width="11" height="11" fill="{COLOURS.get(n, "#9ca3af")}"/>', text(x + 15, 40, NAMES.get(n, n))]
        x += 30 + 8 * len(NAMES.get(n, n))
    return out


def group(row, y, scale):
    out = [text(LEFT - 8, y + BAR - 2, label(row), anchor="end")]
    ours = row["times"]["ours"]
    for i, (name, t) in enumerate(row["times"].items()):
        width, at = t["tflops"] * scale, y + i * BAR
        out.append(f'<rect x="{LEFT}" y="{at}" width="{width:.1f}" height="{BAR - 2}" fill="{COLOURS.get(name, "#9ca3af")}"/>')
        share = f'  {row["share"]:.0%} of the device' if "share" in row else ""
        words = f'{t["tflops"]:.0f}' + (share if name == "ours" else f'  ours {t["ms"] / ours["ms"]:.2f} times')
        out.append(text(LEFT + width + 5, at + BAR - 3, words, 10, fill="#374151"))
    return out


def chart(found):
    rows = found["rows"]
    names = list(dict.fromkeys(n for r in rows for n in r["times"]))
    lines = {"matrix_tflops": "matrix instructions alone", "product_tflops": "a large matrix product"}
    lines = {found[key]: name for key, name in lines.items() if found.get(key)}  # one where they are the same
    top = max([*lines, *(t["tflops"] for r in rows for t in r["times"].values())], default=1)
    body, y = [text(8, 18, f'{found["device"]}, bf16 forward, TFLOP/s inside the mask, medians', 14), *legend(names)], TOP
    for r in rows:
        body += group(r, y, WIDTH / top)
        y += len(r["times"]) * BAR + GAP
    for i, (rate, name) in enumerate(lines.items()):
        x, at = LEFT + WIDTH * rate / top, TOP - 10 - 11 * i
        body += [
            f'<line x1="{x:.0f}" y1="{at + 3}" x2="{x:.0f}" y2="{y}" stroke="#b91c1c" stroke-dasharray="4 3"/>',
            text(x, at, f"{name}: {rate:.0f}", 10, "middle", "#b91c1c"),
        ]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDTH + 130}" height="{y + 8}" font-family="sans-serif">'
    return "\n".join([head, '<rect width="100%" height="100%" fill="#ffffff"/>', *body, "</svg>\n"])


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as source, open(sys.argv[2], "w", encoding="utf-8") as out:
        out.write(chart(json.load(source)))
