"""Attention and recurrences of DTensors. The placements of q say what each dimension of its mesh does: Shard(0) cuts the batch, Shard(1) heads, Shard(2) the
sequence, of which a mesh has at most two. The other operands are placed as that wants: DTensor moves them, and adds up their gradients. o is
placed as q."""

import math
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from . import _needed, _recur_ranks
from ._spread import Spread, _cuts

_EXTENTS = {"q": ("B", "H", "Sq", "D"), "k": ("B", "Hkv", "Sk", "D"), "v": ("B", "Hkv", "Sk", "Dv")}
_CUT = {0: ("B",), 1: ("H", "Hkv"), 2: ("Sq", "Sk", "S")}  # by the dimension of q


def _distributed(name: str, x: Any, mesh: Any) -> DTensor:
    if not isinstance(x, torch.Tensor):
        raise TypeError(f"{name}: takes a tensor of PyTorch, not a {type(x).__name__}")
    if isinstance(x, DTensor):
        if x.device_mesh != mesh:
            raise ValueError(f"{name}: is on another mesh than q")
        return x
    if x.requires_grad:
        raise TypeError(f"{name}: is no DTensor, as q is, and requires grad: distribute it, so that its gradient is added up")
    return DTensor.from_local(x, mesh, [Replicate()] * mesh.ndim, run_check=False)


def _rows(q: DTensor) -> List[Any]:
    """Placements of q that a call takes."""
    for d, p in enumerate(q.placements):
        if isinstance(p, Shard) and (type(p) is not Shard or p.dim not in _CUT):
            raise ValueError(f"q: has the placement {p} on dimension {d} of its mesh; attention takes Shard(0), Shard(1), Shard(2) and Replicate")
    return [Replicate() if p.is_partial() else p for p in q.placements]


def _spread(mesh: Any, dims: Sequence[int], S: int) -> Spread:
    """As DTensor cuts S over these dimensions; made once for a mesh."""
    made: Dict[Any, Spread] = mesh.__dict__.setdefault("_attn_spreads", {})
    key = (tuple(dims), S)
    if key not in made:
        cuts = [(0, S)]
        for d in dims:
            cuts = [(a + i, a + j) for a, b in cuts for i, j in _cuts(b - a, mesh.size(d))]
        made[key] = Spread([mesh.get_group(d) for d in dims], S, lengths=[b - a for a, b in cuts])
    return made[key]


def _local(x: DTensor, cut: Sequence[Any], extents: Sequence[str], one_head: bool) -> torch.Tensor:
    wanted, gradient = _placements(cut, extents, one_head)
    if not list(x.placements) == wanted == gradient:
        x = x.redistribute(x.device_mesh, wanted)
    return x.to_local(grad_placements=gradient)


def _whole(x: torch.Tensor, mesh: Any, placements: Sequence[Any], shape: Sequence[int]) -> DTensor:
    size = torch.Size(shape)
    return DTensor.from_local(x, mesh, placements, run_check=False, shape=size, stride=torch.empty(size, device="meta").stride())


def recur(again: Callable[..., Any], spec: str, given: Dict[str, Any]) -> Any:
    """A recurrence: operands, arrays, scalars and state0 by name. Its state is the same on all ranks that have parts of a sequence."""
    scalars = {n: x for n, x in given.items() if not isinstance(x, torch.Tensor)}
    mesh, found = given["q"].device_mesh, _recur_ranks.formulas_of(spec)
    placed = {n: _distributed(n, x, mesh) for n, x in given.items() if n not in scalars}
    cut = _rows(placed["q"])
    by = {dim: [d for d, p in enumerate(cut) if p == Shard(dim)] for dim in _CUT}
    ranks = {dim: math.prod(mesh.size(d) for d in by[dim]) for dim in _CUT}
    for dim in 0, 1:
        if by[dim] and found.unfit[dim]:
            raise ValueError(f"q: has the placement Shard({dim}), and {found.unfit[dim]}")
    if len(by[2]) > 1:
        raise ValueError(f"q: its sequence is cut by {len(by[2])} dimensions of the mesh, and that of a recurrence by one")
    extents = {"q": ("B", "H", "S", "D"), "k": ("B", "H", "S", "D"), "v": ("B", "H", "S", "Dv"), "state0": ("B", "H", "D", "Dv"), **found.extents}
    for name, x in placed.items():
        if x.dim() != len(extents[name]):
            raise ValueError(f"{name}: has {x.dim()} dimensions, expected [{', '.join(extents[name])}]")
        if name in ("q", "k", "v") and x.shape[1] % ranks[1]:
            raise ValueError(f"{name}: its {x.shape[1]} heads are not cut evenly by {ranks[1]} ranks")
    local = {n: _local(x, cut, extents[n], False).contiguous() for n, x in placed.items()}
    spread = _spread(mesh, by[2], placed["q"].shape[2]) if by[2] else None
    q, k, v, state0 = (local.pop(n, None) for n in ("q", "k", "v", "state0"))
    made = again(spec, q, k, v, (), state0, {**local, **scalars}, spread)
    o, *states = made if isinstance(made, tuple) else (made,)
    (B, _, S, D), heads, Dv = placed["q"].shape, max(placed[n].shape[1] for n in "qkv"), o.shape[3]
    whole = [_whole(o, mesh, cut, (B, heads, S, Dv))]
    for x in states:
        if x.requires_grad and ranks[2] > 1:
            x.register_hook(lambda d: d / ranks[2])  # each of these ranks gives the whole gradient, and they are added up
        whole.append(_whole(x, mesh, [Replicate() if p == Shard(2) else p for p in cut], (B, heads, D, Dv)))
    return tuple(whole) if len(whole) > 1 else whole[0]


def attend(again: Callable[..., Any], spec: str, given: Dict[str, Any], q_offset: Optional[int], **ranks: Any) -> Any:
    """given: operands, arrays and scalars by name."""
    if any(ranks.get(n) is not None for n in ("spread", "kv_spread")) or ranks.get("whole"):
        raise TypeError("spread, kv_spread and whole go with plain tensors: DTensors say by their placements how they are spread")
    scalars = {n: x for n, x in given.items() if not isinstance(x, torch.Tensor)}
    mesh, reads = given["q"].device_mesh, _needed._reads(spec)
    placed = {n: _distributed(n, x, mesh) for n, x in given.items() if n not in scalars}
    cut = _rows(placed["q"])
    by = {dim: [d for d, p in enumerate(cut) if p == Shard(dim)] for dim in _CUT}
    heads = math.prod(mesh.size(d) for d in by[1])
    H, Hkv = placed["q"].shape[1], placed["k"].shape[1]
    for dim, why in ((0, reads.of_batch), (1, reads.unfit["heads"])):
        if by[dim] and why:
            raise ValueError(f"q: has the placement Shard({dim}), and {why}")
    if heads > 1 and (H % heads or (Hkv % heads and heads % Hkv)):
        raise ValueError(f"q: its {H} heads, and the {Hkv} of k, are not cut evenly by {heads} ranks")
    if len(by[2]) > 2:
        raise ValueError(f"q: its sequence is cut by {len(by[2])} dimensions of the mesh, and at most two can be")
    one_head = heads > 1 and Hkv % heads != 0  # several ranks have the same head of k
    local = {}
    for name, x in placed.items():
        extents = _EXTENTS.get(name) or reads.extents[name]
        if x.dim() != len(extents):
            raise ValueError(f"{name}: has {x.dim()} dimensions, expected [{', '.join(extents)}]")
        local[name] = _local(x, cut, extents, one_head)
        if one_head and "Hkv" in extents:
            at = 0
            for d in by[1]:
                at = at * mesh.size(d) + mesh.get_local_rank(d)
            local[name] = local[name].narrow(extents.index("Hkv"), at * (H // heads) // (H // Hkv), 1)
    if by[2]:
        ranks["spread"], ranks["kv_spread"] = (_spread(mesh, by[2], placed[n].shape[2]) for n in ("q", "k"))
    elif ranks.get("method") or ranks.get("plan"):
        raise TypeError("method and plan go with a sequence that is spread: q has no placement Shard(2)")
    operands = [local.pop(n).contiguous() for n in ("q", "k")] + [local.pop("v").contiguous() if "v" in local else None]
    found = again(spec, *operands, (), {**local, **scalars}, q_offset, **ranks)
    shape = [*placed["q"].shape[:3], (found[0] if isinstance(found, tuple) else found).shape[3]]
    whole = [_whole(x, mesh, cut, shape[: x.dim()]) for x in (found if isinstance(found, tuple) else (found,))]
    return tuple(whole) if isinstance(found, tuple) else whole[0]


def _placements(cut: Sequence[Any], extents: Sequence[str], one_head: bool) -> Tuple[List[Any], List[Any]]:
    """Of an operand with these extents, and of its gradient: what only some ranks have used is added up."""
    wanted, gradient = [], []
    rows_first = sorted(enumerate(extents), key=lambda at: at[1] == "Sk")
    for p in cut:
        at = [i for i, e in rows_first if isinstance(p, Shard) and e in _CUT[p.dim] and not (one_head and e == "Hkv")]
        wanted.append(Shard(at[0]) if at else Replicate())
        gradient.append(Shard(at[0]) if at else Partial() if isinstance(p, Shard) else Replicate())
    return wanted, gradient
