"""esbuild.py: one script of many modules, for the playground and for the extension of VS Code, and the licences of what goes into it.

Modules that are not in the tree are those of Debian's packages, or sources that tests/deps.sh fetches. The same sources give the same bytes.
"""

import glob
import os
import pathlib
import subprocess
import sys

TOP = pathlib.Path(__file__).resolve().parent.parent


def bundle(entry, *options):
    env = {**os.environ, "NODE_PATH": "/usr/share/javascript:/usr/share/nodejs"}
    command = ["esbuild", str(entry), "--bundle", "--minify", "--log-level=warning", *options]
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode or done.stderr:
        sys.exit(done.stderr)
    return done.stdout.strip()


def licences(of):
    """Name and text of each: OF names a package of Debian, or a file from the root of the tree."""
    found = []
    for name, where in of.items():
        paths = glob.glob(str(TOP / where) if "/" in where else f"/usr/share/doc/{where}/copyright")
        if not paths:
            sys.exit(f"{where} is missing: {name} is not installed (tests/deps.sh)")
        found.append({"name": name, "text": pathlib.Path(paths[0]).read_text(encoding="utf-8")})
    return found
