"""What the formulas of a variant read, and which keys the tiles of its mask visit: so which keys a rank needs.

In: a variant's text as _torch.py has it (spec). Out: what attnc says of it (--emit=row, attnc mask), kept by variant and lengths."""

import functools
import hashlib
import json
import os
import re
import tempfile
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

import torch

from . import _compiler, _torch
from ._spread import Interval, _common, _length, _Line, _merged

METHODS = "keys", "heads", "queries"  # of _ranks.py


# ---- what a variant reads


class _Reads(NamedTuple):
    extents: Dict[str, Tuple[str, ...]]  # of each input; of a scalar none
    of_mask: Tuple[str, ...]  # the inputs that the mask reads
    head: bool  # the mask reads h or H
    batch: bool  # or b
    apart: bool  # groups of heads may be called one after the other: nothing reads h or H
    unfit: Dict[str, Optional[str]]  # why a method does not fit
    of_batch: Optional[str]  # why a batch cannot be cut
    sizes: Optional[str]  # why some rows of a sequence cannot be a sequence to a kernel


def _names(text: str, *names: str) -> bool:
    return any(re.search(rf"\b{n}\b", text) for n in names)


def _inputs(rows: str) -> Tuple[str, Dict[str, Tuple[str, ...]]]:
    """Of a row program: its formulas, and the extents of each input."""
    inputs = re.findall(r"^  input (\w+): \w+(?:\[([^\]\n]*)\])?", rows, re.M)
    formulas = "\n".join(line for line in rows.split("\n")[1:] if not line.startswith("  input"))
    return "\n" + formulas + "\n", {name: tuple(e.strip() for e in listed.split(",") if e) for name, listed in inputs}


def _beside(formulas: str, extents: Dict[str, Tuple[str, ...]], spread: Sequence[Tuple[str, str]]) -> str:
    """Formulas, their accesses of arrays without these indices where they are those of these extents."""

    def cut(access: "re.Match[str]") -> str:
        listed, at = extents.get(access[1], ()), access[2].split(",")
        return " ".join(i for i, e in zip(at, listed) if (i.strip(), e) not in spread) if len(listed) == len(at) else access[0]

    return re.sub(r"\b(\w+)!?\[([^\[\]]*)\]", cut, formulas)


def _of_sizes(formulas: str) -> Optional[str]:
    read = [size for size in ("Sq", "q_offset") if _names(formulas, size)]
    return f"the formulas read {read[-1]}, which is not known of a piece" if read else None


@functools.lru_cache(maxsize=None)
def _reads(spec: str) -> _Reads:
    rows, extents = _inputs(_torch._rows(spec)[0].split("\nstream ")[0])
    formulas, mask = rows, "".join(line for line in rows.split("\n") if line.startswith("  mask"))
    unfit: Dict[str, Optional[str]] = dict.fromkeys(METHODS)
    unfit["keys"] = _of_sizes(formulas)
    sizes = _of_sizes(formulas.replace("(q_idx - q_offset)", "row"))
    for name, listed in extents.items():
        if "Sq" in listed:
            unfit["keys"] = f"{name}: has an extent Sq, of which a piece has a part only"
        if "Hkv" in listed:
            unfit["heads"] = f"{name}: has an extent Hkv"
    beside = _beside(formulas, extents, (("h", "H"), ("b", "B")))
    if _names(beside, "h", "H", "Hkv"):
        unfit["heads"] = "the formulas read h, H or Hkv, of which a rank has a part only"
    of_batch = "the formulas read b or B, of which a rank has a part only" if _names(beside, "b", "B") else None
    of_mask = tuple(name for name in extents if _names(mask, name))
    apart = not _names(formulas + str(extents), "h", "H", "Hkv")
    return _Reads(extents, of_mask, _names(mask, "h", "H", "Hkv"), _names(mask, "b"), apart, unfit, of_batch, sizes)


@functools.lru_cache(maxsize=None)
def _variant(spec: str) -> str:
    """Short, and another one for another variant."""
    return f"{_torch._read_declared(spec).partition(' ')[0]} {hashlib.sha256(spec.encode()).hexdigest()[:12]}"


# ---- which keys the tiles of the mask visit


class _Tiles:
    """Compared by identity: what follows from it is kept."""

    def __init__(self, rows: int, keys: Tuple[Tuple[Interval, ...], ...]) -> None:
        self.rows = rows  # queries in a row of tiles
        self.keys = keys  # that each row of tiles visits

    @functools.lru_cache(maxsize=4096)  # noqa: B019
    def load(self, interval: Interval) -> int:
        """Pairs of visited tiles, of these queries."""
        first, last = interval[0] // self.rows, -(-interval[1] // self.rows)
        within = (_length(_common([interval], [(r * self.rows, (r + 1) * self.rows)])) * _length(self.keys[r]) for r in range(first, last))
        return sum(within)


class _Kernel(NamedTuple):
    """Whose tiles are wanted as they are, so that all launches have the same ones."""

    target: str
    elements: str
    D: int
    Dv: int


@functools.lru_cache(maxsize=64)
def _tiles(spec: str, Sq: int, Sk: int, q_offset: int, B: int = 1, H: int = 1, kernel: Optional[_Kernel] = None) -> _Tiles:
    return _mask_of(spec, Sq, Sk, q_offset, B, H, {}, (0, 0), kernel)


def _mask_of(spec: str, Sq: int, Sk: int, q_offset: int, B: int, H: int, inputs: Dict[str, str], at: Tuple[int, int],
             kernel: Optional[_Kernel] = None) -> _Tiles:  # fmt: skip
    given = json.loads(spec)
    if kernel:
        source = _torch._rows(spec, kernel.target, kernel.elements, D=kernel.D, Dv=kernel.Dv)[1]
    else:
        source = _compiler.Source(given["text"], entry=given["entry"], defines=given["defines"], include=given["include"], name=given["name"])
    options = [*([f"--target={kernel.target}"] if kernel else []), f"--shape=B={B},H={H},Sq={Sq},Sk={Sk}", f"--in=q_offset={q_offset}", f"--at={at[0]},{at[1]}"]
    options += [f"--in={n}={x}" for n, x in inputs.items()]
    out, _ = source.run(["mask"], "--format=json", "-o", "-", *options)
    found = json.loads(out)
    return _Tiles(found["tile"][0], tuple(tuple((a, b) for a, b in row) for row in found["needed"]))


def _tiles_with(spec: str, Sq: int, Sk: int, q_offset: int, B: int, H: int, arrays: Dict[str, torch.Tensor],
                scalars: Dict[str, float], kernel: Optional[_Kernel] = None) -> _Tiles:  # fmt: skip
    """With the data that the mask reads, whole: the union over batch entries, and over heads where it reads h."""
    reads = _reads(spec)
    data = any(n in arrays for n in reads.of_mask)
    places = [(b, h) for b in range(B if reads.batch or data else 1) for h in range(H if reads.head else 1)]
    with tempfile.TemporaryDirectory(prefix="attn-") as folder:
        inputs = {}
        for name in reads.of_mask:
            if name in arrays and arrays[name].dim():
                import numpy

                inputs[name] = os.path.join(folder, name + ".npy")
                numpy.save(inputs[name], arrays[name].detach().cpu().numpy())
            else:
                inputs[name] = repr(float(arrays[name] if name in arrays else scalars[name]))
        found = [_mask_of(spec, Sq, Sk, q_offset, B, H, inputs, at, kernel) for at in places]
    return _Tiles(found[0].rows, tuple(tuple(_merged([i for row in rows for i in row])) for rows in zip(*[t.keys for t in found])))


@functools.lru_cache(maxsize=256)
def needed(tiles: Optional[_Tiles], line: _Line, Sk: int) -> List[List[Interval]]:
    """Of each rank, the positions of keys that its rows may see."""
    return [_merged([i for at in pieces for i in _seen(tiles, at, Sk)]) for pieces in line.pieces]


@functools.lru_cache(maxsize=4096)
def _seen(tiles: Optional[_Tiles], at: Interval, Sk: int) -> List[Interval]:
    """The positions of keys that these queries may see."""
    if at[0] == at[1] or tiles is None:
        return [(0, Sk)] if at[0] < at[1] else []
    return _merged([i for row in tiles.keys[at[0] // tiles.rows : (at[1] - 1) // tiles.rows + 1] for i in row])
