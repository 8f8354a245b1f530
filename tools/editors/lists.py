#!/usr/bin/env python3
"""lists.py [--check]: writes the names of the language into the editors' files.

In: frontend/*.def. Out: in each file of FILES the line after a line with `list: NAME` holds that list, in
the form of the file (keywords, say, as `a|b|c`). --check writes nothing, prints the files that would change, and fails if there are any.
"""

import os
import re
import sys

TOP = os.path.abspath(os.path.join(os.path.dirname(__file__), "../.."))
FILES = [
    "tools/editors/tree-sitter-attn/keywords.js",
    "tools/editors/tree-sitter-attn/queries/highlights.scm",
    "tools/editors/vscode/syntaxes/attn.tmLanguage.json",
    "tools/editors/vim/syntax/attn.vim",
    "python/attn/_pygments.py",
]
# What stands before a list, between its names, and after it.
FORMS = {".js": ("['", "', '", "']"), ".scm": ("^(", "|", ")$"), ".json": ("(?:", "|", ")"), ".vim": (" = '", " ", "'"), ".py": ('"', " ", '"')}


def read(path):
    with open(os.path.join(TOP, path), encoding="utf-8") as f:
        return f.read()


def entries(path, macro):
    """The arguments of each line MACRO(...) of a .def file, as texts."""
    found = re.findall(rf"^{macro}\((.*)\)", read(path), re.M)
    return [[a.strip().strip('"') for a in line.split(",")] for line in found]


def lists():
    """Name of the list -> the names in it, in the order of the source."""
    builtins = entries("frontend/builtins.def", "BUILTIN")
    dtypes = {e: name for e, name, *_ in entries("ir/dtypes.def", "DTYPE")}
    return {
        "keywords": [word for _, word, *_ in entries("frontend/keywords.def", "KEYWORD")],
        "clauses": list(dict.fromkeys(name for _, _, name, *_ in entries("frontend/clauses.def", "CLAUSE"))),
        "builtins": [name for name, _, typing, *_ in builtins if typing != "BI_CONV"],
        "conversions": [name for name, _, typing, *_ in builtins if typing == "BI_CONV"],
        "types": [dtypes[e] for e, *_ in entries("frontend/predefined.def", "TYPE")],
        "constants": [name for name, *_ in entries("frontend/predefined.def", "CONSTANT")],
        "sizes": [name for _, name, *_ in entries("frontend/predefined.def", "SIZE")],
    }


def filled(path, text, names):
    """The text with its lists as they should be."""
    before, between, after = FORMS[os.path.splitext(path)[1]]
    lines = text.split("\n")
    for i, line in enumerate(lines[:-1]):
        mark = re.search(r"list: (\w+)", line)
        if not mark:
            continue
        start = lines[i + 1].index(before) + len(before)
        end = lines[i + 1].index(after, start)
        lines[i + 1] = lines[i + 1][:start] + between.join(names[mark.group(1)]) + lines[i + 1][end:]
    return "\n".join(lines)


def main():
    names, changed = lists(), []
    for path in FILES:
        old = read(path)
        new = filled(path, old, names)
        if new == old:
            continue
        changed.append(path)
        if "--check" not in sys.argv:
            with open(os.path.join(TOP, path), "w", encoding="utf-8") as f:
                f.write(new)
    print("".join(f"{path} {'lacks a name: run make editors' if '--check' in sys.argv else 'written'}\n" for path in changed), end="")
    return "--check" in sys.argv and bool(changed)


if __name__ == "__main__":
    sys.exit(main())
