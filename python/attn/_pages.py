"""Decoding with a paged cache whose keys are spread over ranks of torch.distributed.

    kernel = attn.compile("gemma.attn", target="sm_90a", layout="paged:16", phase="part")
    pages = attn.SpreadPages(mesh["cp"], block=16)    # once; blocks of 16 positions in turn
    o = pages(kernel, q, k_pages, v_pages, page_table=own, kv_len=lens, sink=sink)

Each rank has some positions of every sequence in its own pages. All ranks have the same queries. A rank finds the state that its own keys leave,
all ranks get all states in one message, and combine them. What follows from lengths is found on the device: a call can be in a CUDA graph."""

from typing import Any, Dict, Optional, Sequence, Union

import torch

from . import _torch
from ._kernel import INDEX, Artifact, Kernel
from ._spread import _Board, _groups_of, _Line, _Message

_OPERANDS = "q", "k", "v", "kv_len", "page_table"
_OF_PARTS = "Sq_all", "Sk_all", "q_first", "kv_first", "kv_block", "kv_stride", "state0", "rows0", "state", "rows"


class SpreadPages:
    """Which positions of a paged cache each rank has: blocks of `block` positions in turn. Making one is collective.

    Position t is that of rank t // block % ranks, and there row t // (block * ranks) * block + t % block of the sequence. Page tables and pages
    are a rank's own; kv_len says how many keys the whole sequences have."""

    def __init__(self, mesh: Any, block: int = 16, check: str = "new") -> None:
        groups = _groups_of(mesh)
        self.board, self.block, self.always = _Board.of(groups), block, check == "always"
        self.rank, self.ranks = self.board.me, len(self.board.ranks)
        with self.board.told():
            if len(groups) != 1:
                raise ValueError(f"mesh: has {len(groups)} dimensions, and pages are spread over one")
            if not isinstance(block, int) or isinstance(block, bool) or block < 1:
                raise ValueError(f"block: is {block!r}, and takes a number of positions")
            if check not in ("new", "always"):
                raise ValueError(f"check: is {check!r}, neither 'new' nor 'always'")
            self.board.agree([("pages of blocks", block), ("check", check)], True)
        self._line = _Line(groups[0], self.rank, 0, [[] for _ in range(self.ranks)], self.board)
        self._first: Dict[Any, torch.Tensor] = {}

    def __repr__(self) -> str:
        return f"<attn.SpreadPages of blocks of {self.block} over {self.ranks}; this is rank {self.rank}>"

    def own(self, kv_len: "Union[int, torch.Tensor]") -> Any:
        """How many of so many keys this rank has: of a number, or of a tensor of them, on its device."""
        turn = self.block * self.ranks
        left = kv_len % turn - self.rank * self.block
        left = left.clamp(0, self.block) if isinstance(left, torch.Tensor) else min(max(left, 0), self.block)
        return kv_len // turn * self.block + left

    def owner(self, position: int) -> int:
        """The rank that has it."""
        return position // self.block % self.ranks

    def __call__(self, kernel: "Union[Artifact, Kernel]", q: torch.Tensor, k: torch.Tensor, v: Any = None, *, kv_len: torch.Tensor, own_len: Optional[torch.Tensor] = None,
                 emit: Union[str, Sequence[str]] = (), out: Any = None, **named: Any) -> Any:  # fmt: skip
        """What kernel(q, k, v, ...) gives of a cache in one place, the same on all ranks. kernel: compiled with layout="paged" and phase="part".
        q, q_start, q_offset, inputs without an extent Sk: the same on all ranks. k, v, page_table, inputs that lie as k does: this rank's.
        kv_len: keys of the whole sequences; own_len: what `own` gives of it, found once for all layers."""
        with self.board.told():
            kernel = kernel._only() if isinstance(kernel, Artifact) else kernel
            given = self._given(kernel, q, k, v, kv_len, named)
            part, combine = kernel.part, kernel.combine
            emits = [emit] if isinstance(emit, str) else list(emit)
            sizes = {n: tuple(x.shape) if isinstance(x, torch.Tensor) else x for n, x in given.items() if n not in _OPERANDS[1:]}
            call = [("the variant", kernel.name), ("elements", q.dtype), ("device", _torch._target(q.device)), ("block", self.block)]
            call += [("k", tuple(k.shape[1:])), ("sequences", len(kv_len))]
            self.board.agree([*call, ("emit", emits), *sizes.items()], self.always)
            own = {**given, "kv_len": self.own(kv_len) if own_len is None else own_len, "Sk_all": kv_len, "kv_first": self._first_of(kv_len)}
            states = _Message(self._line, q.device)
            part(**own, kv_block=self.block, kv_stride=self.block * self.ranks, out=states.room)
            rows = {n: x for n, x in given.items() if n in combine.inputs and n not in _OPERANDS}
            return combine(**rows, **states.arrived(), Sk_all=kv_len, emit=emit, out=out)

    def _given(self, kernel: Kernel, q: Any, k: Any, v: Any, kv_len: Any, named: Dict[str, Any]) -> Dict[str, Any]:
        if not isinstance(kernel, Kernel) or kernel.layout != "paged" or kernel.part is None or kernel.combine is None:
            raise TypeError('kernel: takes one that attn.compile(..., layout="paged", phase="part") made')
        operands = {"q": q, "k": k, **({} if v is None else {"v": v}), "kv_len": kv_len}
        for name, x in operands.items():
            if not isinstance(x, torch.Tensor):
                raise TypeError(f"{name}: takes a tensor of PyTorch, not a {type(x).__name__}")
        if k.dim() != 4 or q.dim() != 3:
            raise ValueError(f"{'q' if q.dim() != 3 else 'k'}: is no [Tq, H, D], or no [pages, page, Hkv, D]")
        if kv_len.dtype != torch.int32 or kv_len.dim() != 1:
            raise TypeError("kv_len: takes i32 [B]")
        for name in named:
            if name in _OF_PARTS or name not in (*kernel.part.inputs, *INDEX):
                raise TypeError(f"{name}: {kernel.name} has no such input")
        missing = [n for n in kernel.part.inputs if n not in operands and n not in named and not kernel.part._tensors[n][3]]
        if missing:
            raise TypeError(f"{missing[0]}: {kernel.name} needs this input")
        for name, x in named.items():
            if isinstance(x, torch.Tensor) and _torch._wants_gradient(x):
                raise RuntimeError(f"{name}: requires grad, and pages have no gradients")
        return {**operands, **{n: x for n, x in named.items() if x is not None}}

    def _first_of(self, kv_len: torch.Tensor) -> torch.Tensor:
        """The position of the first key that a rank may have, of each sequence."""
        key = (kv_len.device, len(kv_len))
        if key not in self._first:
            self._first[key] = torch.full_like(kv_len, self.rank * self.block)
        return self._first[key]
