#!/usr/bin/env python3
"""bundle.py BUILD WASM OUT: makes the playground, one HTML file that needs nothing else.

In: the page's modules and styles (this folder), the language service as WebAssembly, the examples (stdlib/), CodeMirror, jsdiff and the font of formulas
as Debian has them. esbuild makes one script of the modules. The policy of the page lets only this script run, and nothing be loaded.
--worker=FILE takes another script for the worker.
"""

import argparse
import base64
import gzip
import hashlib
import json
import pathlib
import re
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
import esbuild  # noqa: E402

STDLIB = HERE.parent.parent / "stdlib"
CODEMIRROR = pathlib.Path("/usr/share/javascript/codemirror")
FONT = "/usr/share/fonts/opentype/stix-word/STIXMath-Regular.otf"
# What formulas are written with: ASCII, Latin with accents, Greek, arrows, operators, brackets that grow, italic letters of mathematics.
CHARACTERS = "U+0020-007E,U+00A0-00FF,U+0131,U+0237,U+0300-0338,U+0391-03F6,U+2010-2044,U+2061-2064,U+20D7,U+2100-214F,U+2190-21FF,U+2200-22FF,U+2308-230B,U+23B4-23B5,U+27E8-27E9,U+1D400-1D7FF"
LICENCES = {"CodeMirror": "libjs-codemirror", "jsdiff": "node-diff", "STIX fonts": "fonts-stix", "cJSON": "build/tools/cjson/cjson/LICENSE",
            "WASI libc": "wasi-libc", "LLVM's compiler-rt": "libclang-rt-*-dev-wasm32"}


def script(entry):
    return esbuild.bundle(entry, "--format=iife", "--target=chrome111,firefox114,safari16.4").replace("</script", "<\\/script")


def font(build):
    """The font as a data URL; made once."""
    woff = build / "stix-math.woff2"
    if not woff.exists():
        subprocess.run([sys.executable, "-m", "fontTools.subset", FONT, f"--unicodes={CHARACTERS}", "--layout-features=ssty", "--flavor=woff2", "--no-hinting", "--drop-tables+=FFTM", f"--output-file={woff}"], check=True)
    return "data:font/woff2;base64," + base64.b64encode(woff.read_bytes()).decode()


def style(build):
    sheets = [CODEMIRROR / "lib/codemirror.css", CODEMIRROR / "addon/hint/show-hint.css", *(HERE / f"{name}.css" for name in ("style", "editor", "panes"))]
    css = "\n".join(sheet.read_text(encoding="utf-8") for sheet in sheets).replace("@DARK@", (HERE / "dark.css").read_text(encoding="utf-8"))
    css = subprocess.run(["esbuild", "--loader=css", "--minify", "--log-level=error"], input=css, capture_output=True, text=True, check=True).stdout
    return css.replace("@FONT@", font(build))


def data():
    examples = json.loads((HERE / "examples.json").read_text(encoding="utf-8"))
    for example in examples:
        example["source"] = (STDLIB / f"{example['name']}.attn").read_text(encoding="utf-8")
    return json.dumps({"examples": examples, "licences": esbuild.licences(LICENCES)}, ensure_ascii=False).replace("</", "<\\/")


def page(build, wasm, worker):
    main = script(HERE / "main.js")
    digest = base64.b64encode(hashlib.sha256(main.encode()).digest()).decode()
    parts = {
        "POLICY": f"default-src 'none'; script-src 'sha256-{digest}' 'wasm-unsafe-eval'; worker-src blob:; style-src 'unsafe-inline'; font-src data:; img-src data: blob:; base-uri 'none'; form-action 'none'",
        "STYLE": style(build),
        "DATA": data(),
        "WASM": base64.b64encode(gzip.compress(wasm.read_bytes(), 9, mtime=0)).decode(),
        "WORKER": script(worker),
        "MAIN": main,
    }
    html = (HERE / "index.html").read_text(encoding="utf-8")
    return re.sub(r"@([A-Z]+)@", lambda match: parts[match[1]], html)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("wasm", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--worker", type=pathlib.Path, default=HERE / "worker.js")
    options = parser.parse_args()
    options.build.mkdir(parents=True, exist_ok=True)
    html = page(options.build, options.wasm, options.worker).encode()
    options.out.write_bytes(html)
    print(f"{options.out}: {len(html)} bytes, {len(gzip.compress(html, 9))} compressed")


if __name__ == "__main__":
    main()
