#!/usr/bin/env python3
"""check.py EXERCISE FILE [OPTION...]: tells whether FILE solves an exercise of the course.

    python3 check.py 3a mine.attn
    python3 check.py 3a mine.attn --device=cuda --dtype=f32     # options go to `attnc run`

A variant (.attn) runs on arrays that are drawn here, and its output is compared with a naive NumPy version of what the exercise asks for. A Python
file is run, and its functions are called. The answer is `right`, or `not yet` with the first thing that differs; the status is 0 or 1.
The command `attnc` must be on the PATH.
"""

import os
import runpy
import shutil
import subprocess
import sys
import tempfile

import numpy as np

EXERCISES = {}  # the name of an exercise: what tests a file
OPTIONS = []  # for `attnc run`
H, SIZE, D = 3, 300, 64


class NotYet(Exception):
    pass


def exercise(name):
    def add(test):
        EXERCISES[name] = test
        return test

    return add


# ---- attention as its formula says: for all heads, one array of scores


def softmax(s):
    m = s.max(-1, keepdims=True)
    e = np.exp(s - np.where(np.isfinite(m), m, 0))
    total = e.sum(-1, keepdims=True)
    return e / np.where(total > 0, total, 1)


def scores(q, k):
    return q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])


def positions():
    return np.arange(SIZE)[:, None], np.arange(SIZE)[None, :]


def draw(factor):
    """q, k, v of one batch entry. Scores grow with the factor."""
    q, k, v = np.random.default_rng(7).standard_normal((3, 1, H, SIZE, D))
    return np.float32(q * factor), np.float32(k), np.float32(v)


# ---- comparing


def close(got, expected, what, bound=1e-4):
    got = np.asarray(got)
    if got.shape != expected.shape:
        raise NotYet(f"{what} has shape {got.shape}, expected {expected.shape}")
    if not np.isfinite(got).all():
        at = tuple(map(int, np.argwhere(~np.isfinite(got))[0]))
        raise NotYet(f"{what}{list(at)} is {got[at]}, expected {expected[at]:.4g}")
    error = np.linalg.norm(got - expected) / max(np.linalg.norm(expected), 1e-30)
    if error > bound:
        at = tuple(map(int, np.unravel_index(np.abs(got - expected).argmax(), got.shape)))
        raise NotYet(f"{what}{list(at)} is {got[at]:.4g}, expected {expected[at]:.4g}; the relative error is {error:.2g}")


def attnc(*arguments):
    done = subprocess.run(["attnc", *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    text = done.stdout.decode(errors="replace")
    if done.returncode:
        raise NotYet("attnc says\n" + text)
    return text


def variant(path, expected, what, factor=1.0, **inputs):
    """Runs the variant on arrays, and compares o with what `expected` makes of the same arrays."""
    q, k, v = draw(factor)
    arrays = {"q": q, "k": k, "v": v, **{n: np.float32(x) for n, x in inputs.items()}}
    with tempfile.TemporaryDirectory(prefix="course-") as folder:
        given = []
        for name, x in arrays.items():
            np.save(f"{folder}/{name}.npy", x)
            given.append(f"--in={name}={folder}/{name}.npy")
        attnc("run", path, *given, f"--out=o={folder}/o.npy", *OPTIONS)
        o = np.load(f"{folder}/o.npy")
    wide = [x.astype(float) for x in (q, k, v)]
    close(o, expected(*wide, **inputs), f"{what}: o")


def masked_softmax(keep, bias=0.0):
    def o(q, k, v):
        return softmax(np.where(keep, scores(q, k) + bias, -np.inf)) @ v

    return o


def skips(path, least):
    """The mask leaves out at least this share of the tiles."""
    said = attnc("mask", path, f"--shape=H={H},Sq=1024", "-o", os.devnull).strip().splitlines()[-1]
    words = said.replace(",", " ").replace(";", " ").split()
    skipped, partial, full = (int(words[words.index(w) - 1]) for w in ("skipped", "partial", "full"))
    if skipped < least * (skipped + partial + full):
        raise NotYet(f"the numbers are right, but only {skipped} of {skipped + partial + full} tiles are skipped")


def one_sweep(path):
    if "one sweep over the keys" not in attnc("explain", path):
        raise NotYet("the numbers are right, but `attnc explain` tells of more than one sweep")


def function(path, name):
    try:
        names = runpy.run_path(path)
    except Exception as e:
        raise NotYet(f"{path} does not run: {type(e).__name__}: {e}") from None
    if name not in names:
        raise NotYet(f"{path} defines no {name}")
    return names[name]


# ---- the exercises


@exercise("1a")
def rows_of_weights(path):
    weights = function(path, "weights")
    with np.errstate(all="ignore"):
        for what, row in {
            "small scores": np.array([[0.5, -1.0, 2.0]]),
            "scores of 1000": np.array([[1000.0, 999.0, 0.0]]),
            "a masked key": np.array([[3.0, -np.inf, 1.0]]),
            "no key at all": np.array([[-np.inf, -np.inf]]),
        }.items():
            close(weights(row.copy()), softmax(row), f"{what}: w")


@exercise("1b")
def base_two(path):
    for scale in (1, 300):
        variant(path, lambda q, k, v: softmax(scores(q, k) * np.log(2)) @ v, f"scores times {scale}", scale)


@exercise("2a")
def online(path):
    attend = function(path, "online")
    rng = np.random.default_rng(3)
    k, v = rng.standard_normal((2, 50, 8))
    for what, q in {"a query": rng.standard_normal(8), "scores that grow to 1000": 1000 * k[40]}.items():
        expected = softmax((k @ q)[None])[0] @ v
        for tile in (1, 7, 50):
            close(attend(q, k, v, tile), expected, f"{what}, tiles of {tile}: o")


@exercise("2b")
def softmax_plus_one(path):
    def expected(q, k, v):
        s = scores(q, k)
        m = np.maximum(s.max(-1, keepdims=True), 0)
        e = np.exp(s - m)
        return e / (np.exp(-m) + e.sum(-1, keepdims=True)) @ v

    for scale in (0.1, 1, 300):
        variant(path, expected, f"scores times {scale}", scale)
    one_sweep(path)


@exercise("3a")
def chunks(path):
    i, j = positions()
    variant(path, masked_softmax((j <= i) & (i // 128 == j // 128)), "chunks of 128")


@exercise("3b")
def mask_by_a_number(path):
    i, j = positions()
    variant(path, masked_softmax((j <= i) & (i - j < 100)), "a window of 100")
    skips(path, 0.5)


@exercise("4a")
def squares(path):
    def expected(q, k, v):
        e = np.maximum(scores(q, k), 0) ** 2
        return e / (e.sum(-1, keepdims=True) + 1e-6) @ v

    for factor in (0.01, 1):
        variant(path, expected, f"scores times {factor}", factor)


@exercise("4b")
def mean_subtracted(path):
    for scale in (1, 300):
        variant(path, lambda q, k, v: softmax(scores(q, k)) @ v, f"scores times {scale}", scale)
    one_sweep(path)


@exercise("5a")
def elements_read(path):
    reads = function(path, "reads")
    for S, size, rows, keys in ((4096, 64, 128, 128), (1000, 64, 128, 48), (500, 128, 16, 128), (1, 64, 16, 16)):
        expected = 0
        for first in range(0, S, rows):
            last = min(first + rows, S) - 1
            expected += sum(min(keys, S - key) * 2 * size for key in range(0, S, keys) if key <= last)
        if reads(S, size, rows, keys) != expected:
            raise NotYet(f"reads({S}, {size}, {rows}, {keys}) is {reads(S, size, rows, keys)}, expected {expected}")


@exercise("5b")
def schedule(path):
    choices = function(path, "SCHEDULE")
    rows = dict(x.split("=") for x in choices.split(",")).get("rows", "0")
    if int(rows) < 128:
        raise NotYet(f"a tile has {rows} queries, and 128 are asked for")
    with tempfile.TemporaryDirectory(prefix="course-") as folder:
        with open(f"{folder}/wide.attn", "w", encoding="utf-8") as f:
            f.write("import std.normalization;\n")
            f.write("attention wide { dim D = 256; score(q, k) = dot(q, k) * rsqrt(D); normalize(s) = softmax(s); }\n")
        attnc(f"{folder}/wide.attn", "--target=sm_80", f"--schedule={choices}", "-o", f"{folder}/wide.ptx")


def tile_program(path):
    """Without its first line and the names of its kernels, which have the variant's name in them."""
    program = attnc(path, "--emit=tile", "--target=sm_80")
    name = program.split()[1]
    return program.replace(name + "_", "variant_").splitlines()[1:]


@exercise("6a")
def same_program(path):
    here = os.path.dirname(os.path.abspath(__file__))
    wanted = tile_program(os.path.join(here, "solutions/6a.attn"))
    for got, expected in zip(tile_program(path) + [""], wanted + [""]):
        if got != expected:
            raise NotYet(f"the tile program has the line\n    {got.strip()}\nin the place of\n    {expected.strip()}")


@exercise("6b")
def no_norm_of_q(path):
    def expected(q, k, v):
        distance = ((q[..., :, None, :] - k[..., None, :, :]) ** 2).sum(-1)
        return softmax(-distance / 16) @ v

    variant(path, expected, "weights by distance")
    if "(%q * %q)" in attnc(path, "--emit=tile", "--target=sm_80"):
        raise NotYet("the numbers are right, but the kernel still computes the squared length of q")


def state(s, v):
    """m, l and acc of a part of the keys."""
    m = s.max() if len(s) else -np.inf
    e = np.exp(s - m) if len(s) else s
    return m, e.sum(), e @ v


@exercise("7a")
def merge(path):
    merged = function(path, "merge")
    rng = np.random.default_rng(5)
    s, v = 200 * rng.standard_normal(40), rng.standard_normal((40, 8))
    expected = softmax(s[None])[0] @ v
    with np.errstate(invalid="ignore"):
        for first, second in ((10, 30), (0, 40), (40, 40), (20, 20)):
            parts = [state(s[a:b], v[a:b]) for a, b in ((0, first), (first, second), (second, 40))]
            for m, l, acc in (merged(merged(*parts[:2]), parts[2]), merged(parts[0], merged(*parts[1:]))):
                close(acc / l, expected, f"keys cut at {first} and {second}: acc / l")


@exercise("7b")
def merge_outputs(path):
    merged = function(path, "merge_outputs")
    rng = np.random.default_rng(6)
    s, v = 200 * rng.standard_normal((3, 40)), rng.standard_normal((40, 8))
    s[1, :25] = -np.inf  # the second query sees no key of the first part, the third none at all
    s[2, :] = -np.inf

    def part(a, b):
        m = s[:, a:b].max(-1)
        with np.errstate(divide="ignore"):
            lse = np.where(np.isfinite(m), m, 0) + np.log(np.exp(s[:, a:b] - np.where(np.isfinite(m), m, 0)[:, None]).sum(-1))
        return softmax(s[:, a:b]) @ v[a:b], lse

    with np.errstate(all="ignore"):
        o, lse = merged(*part(0, 25), *part(25, 40))
    close(o, softmax(s) @ v, "o")
    close(lse[:2], part(0, 40)[1][:2], "lse")
    if lse[2] != -np.inf:
        raise NotYet(f"lse of a query without keys is {lse[2]}, expected -inf")


@exercise("8a")
def alibi_window(path):
    i, j = positions()
    slope = 2.0 ** (-8 * np.arange(1, H + 1) / H)
    keep = (j <= i) & (i - j < 128)
    variant(path, masked_softmax(keep, -slope[:, None, None] * (i - j)), "ALiBi with a window of 128")
    skips(path, 0.5)


@exercise("8b")
def scalable_softmax(path):
    i, j = positions()

    def expected(q, k, v, scale):
        s = scores(q, k) * scale[:, None, None] * np.log(i + 1)
        return softmax(np.where(j <= i, s, -np.inf)) @ v

    variant(path, expected, "scalable softmax", scale=np.array([0.3, 1.5, 0.8]))


def main():
    if len(sys.argv) < 3 or sys.argv[1] not in EXERCISES:
        print(f"usage: check.py EXERCISE FILE, where EXERCISE is one of {' '.join(EXERCISES)}", file=sys.stderr)
        return 2
    if not shutil.which("attnc"):
        print("check.py: attnc is not on the PATH; README.md says how to set the shell up", file=sys.stderr)
        return 2
    name, path, *OPTIONS[:] = sys.argv[1:]
    try:
        EXERCISES[name](path)
    except NotYet as why:
        print(f"{name}: not yet: {why}")
        return 1
    print(f"{name}: right")
    return 0


if __name__ == "__main__":
    sys.exit(main())
