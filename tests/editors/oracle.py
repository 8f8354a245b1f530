"""oracle.py: what the compiler says of sources, for the tests of the editors' grammars.

In: build/tests/editors/tokens, the compiler's lexer and parser. Out: for each text its tokens and its first syntax error.
sources() gives every .attn file and every ```attn block of the tree.
"""

import os
import random
import re
import subprocess
import tempfile
from typing import NamedTuple

TOP = os.path.abspath(os.path.join(os.path.dirname(__file__), "../.."))
BUILD = os.path.join(TOP, os.environ.get("BUILD", "build"))

# What the parser refuses though it is no mistake of syntax: limits.
LIMIT = re.compile(r"nesting deeper than|this name has \d+ characters|this number does not fit|this is not UTF-8|holds a zero byte|at most \d+ MiB")


class Token(NamedTuple):
    kind: str
    start: int
    end: int


class Said(NamedTuple):
    error: str  # the first message, "" where the text is right
    tokens: list

    @property
    def limited(self):
        return bool(LIMIT.search(self.error))


def ask(texts):
    """What the compiler says of each of the texts (bytes)."""
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for i, text in enumerate(texts):
            paths.append(os.path.join(folder, f"{i}.attn"))
            with open(paths[-1], "wb") as f:
                f.write(text)
        out = subprocess.run([os.path.join(BUILD, "tests/editors/tokens"), *paths], check=True, stdout=subprocess.PIPE).stdout
    said = []
    for line in out.decode(errors="replace").splitlines():
        kind, a, b = line.split(" ", 2)
        if kind == "file":
            said.append(Said(b if int(a) else "", []))
        else:
            said[-1].tokens.append(Token(kind, int(a), int(b)))
    assert len(said) == len(texts)
    return said


def read(path):
    with open(path, "rb") as f:
        return f.read()


def sources():
    """(name, bytes) of every .attn file and every ```attn block of the documents."""
    for folder, folders, files in os.walk(TOP):
        folders[:] = sorted(f for f in folders if not f.startswith((".", "build")))
        for name in sorted(files):
            path = os.path.join(folder, name)
            if name.endswith(".attn"):
                yield os.path.relpath(path, TOP), read(path)
            elif name.endswith(".md"):
                text = read(path)
                for i, block in enumerate(re.findall(rb"^```attn\n(.*?)^```$", text, re.M | re.S)):
                    yield f"{os.path.relpath(path, TOP)}, block {i + 1}", block


def mutants(count, seed=1):
    """Right sources with tokens lost, doubled, exchanged or replaced by those of other sources."""
    draw = random.Random(seed)
    texts = [text for _, text in sources() if b"\0" not in text]
    pool = [(text, said.tokens) for text, said in zip(texts, ask(texts)) if not said.error and said.tokens]
    for _ in range(count):
        text, tokens = draw.choice(pool)
        for _ in range(draw.choice((1, 1, 1, 2, 3))):
            a, b = draw.choice(tokens), draw.choice(tokens)
            other, others = draw.choice(pool)
            c = draw.choice(others)
            word = {"lose": b"", "double": text[a.start : a.end] * 2, "repeat": text[a.start : a.end] + b" " + text[a.start : a.end],
                    "here": text[b.start : b.end], "other": other[c.start : c.end]}[draw.choice(("lose", "double", "repeat", "here", "other"))]  # fmt: skip
            changed = text[: a.start] + word + text[a.end :]
            moved = len(word) - (a.end - a.start)
            tokens = [t if t.end <= a.start else Token(t.kind, t.start + moved, t.end + moved) for t in tokens if t.end <= a.start or t.start >= a.end]
            text = changed
            if not tokens:
                break
        yield text


def classes(text, tokens, lists):
    """What each token is, finer: of names clause, builtin, type, constant, size or name. Words of an import's path are names."""
    found, depth, path = [], 0, False
    texts = [text[t.start : t.end].decode(errors="replace") for t in tokens] + [""]
    for i, token in enumerate(tokens):
        word, before, after = texts[i], texts[i - 1] if i else "", texts[i + 1]
        depth += (word == "{") - (word == "}")
        path = path and word not in (";", "")
        kind = token.kind
        if kind == "keyword" and path:
            kind = "name"
        elif kind == "name" and not path and before not in ("fn", "normalization"):
            if depth == 1 and before in (";", "{", "}") and after == "(" and word in lists["clauses"]:
                kind = "clause"
            elif after == "(" and word in lists["builtins"]:
                kind = "builtin"
            elif (after == "(" and word in lists["conversions"]) or (before == ":" and depth == 1 and word in lists["types"] and after in (";", "[", "grad")):
                kind = "type"
            elif word in lists["constants"]:
                kind = "constant"
            elif word in lists["sizes"]:
                kind = "size"
        path = path or (token.kind == "keyword" and word == "import")
        found.append(kind)
    return found


def spans(text, said):
    """The tokens, and the words between them: those are of comments, or a byte order mark."""
    found, at = [], 0
    for start, end in [(t.start, t.end) for t in said.tokens] + [(len(text), len(text))]:
        found += [(at + g.start(), at + g.end()) for g in re.finditer(rb"\S+", text[at:start]) if g.group() != b"\xef\xbb\xbf"]
        found += [(start, end)] if start < end else []
        at = end
    return found


def differences(text, said, kind_at, lists):
    """Where a grammar says other than the compiler. kind_at(start, end): what it says of these bytes, None where it says several things.
    Names of a text with a syntax error are names only; between tokens stand blanks and comments."""
    fine = said.error == ""
    wanted = {(t.start, t.end): kind for t, kind in zip(said.tokens, classes(text, said.tokens, lists) if fine else [t.kind for t in said.tokens])}
    for start, end in spans(text, said):
        kind, want = kind_at(start, end), wanted.get((start, end), "comment")
        if not fine and kind in NAMES and want in ("name", "keyword"):
            kind = want
        if kind != want:
            yield f"byte {start}: {text[start:end]!r} is {want}, not {kind}"


NAMES = ("name", "clause", "builtin", "type", "constant", "size")
