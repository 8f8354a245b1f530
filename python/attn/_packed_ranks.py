"""Sequences one behind the other (q_start) over ranks: a Spread cuts the packed line anywhere.

In: this rank's rows of the line; q_start and kv_start are those of the whole. The keys of each sequence come to the ranks that have rows of it. What
a rank then has are sequences of its own, some of them the last rows of longer ones: one call of the kernel of packed rows."""

import hashlib
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import torch

from . import _torch
from ._needed import _reads, _Reads, _variant
from ._spread import Interval, Spread, _common, _length, _Line, _merged, _Move, _packed, _places, _Travel, moved

INDEX = "q_start", "kv_start", "q_offset"


class _Own(NamedTuple):
    """What a rank has of the sequences."""

    rows: List[Interval]  # of the rank's rows, those that sequences have
    keys: List[Interval]  # of what comes: of each sequence, in the order of its rows
    move: _Move  # the rows of keys -> those that sequences of this rank have, in the order of positions
    index: Dict[str, torch.Tensor]
    which: torch.Tensor  # of the sequences of the line
    longest: int


def _unfit(reads: _Reads, arrays: Dict[str, torch.Tensor]) -> Optional[str]:
    if reads.sizes or reads.of_batch:
        return reads.sizes or reads.of_batch
    for name in arrays:
        listed = reads.extents.get(name, ())
        if "Sq" in listed and ("B" not in listed or "Sk" in listed):
            return f"{name}: has an extent Sq without B, or beside Sk, of which a rank's rows have a part only"
    return None


def _starts(index: Dict[str, torch.Tensor], name: str, rows: int) -> List[int]:
    """On the host. Sequences lie one behind the other in the line."""
    starts: List[int] = index[name].tolist()
    if not starts or any(a > b for a, b in zip([0, *starts], [*starts, rows])):
        raise ValueError(f"{name}: is no ascending list of places in a line of {rows} rows")
    return starts


def _found(index: Dict[str, torch.Tensor], line: _Line, kv_line: _Line, device: torch.device) -> _Own:
    q_start, kv_start = _starts(index, "q_start", line.S), _starts(index, "kv_start", kv_line.S)
    if len(q_start) != len(kv_start):
        raise ValueError(f"kv_start: is of {len(kv_start) - 1} sequences, and q_start of {len(q_start) - 1}")
    offsets = index["q_offset"].tolist() if "q_offset" in index else [max(kb - ka - (b - a), 0) for a, b, ka, kb in zip(q_start, q_start[1:], kv_start, kv_start[1:])]
    if len(offsets) != len(q_start) - 1:
        raise ValueError(f"q_offset: is of {len(offsets)} sequences, and q_start of {len(q_start) - 1}")
    sequences = list(zip(q_start, q_start[1:], kv_start, kv_start[1:], offsets))

    def of(r: int) -> List[Tuple[Interval, int]]:
        """Of a rank, rows that follow each other in the line, and which sequence has them."""
        return [(at, b) for piece in line.pieces[r] for b, s in enumerate(sequences) for at in _common([piece], [(s[0], s[1])])]

    parts = [of(r) for r in range(line.ranks)]
    wanted = [_merged([(sequences[b][2], sequences[b][3]) for _, b in part]) for part in parts]
    me, own = line.rank, parts[line.rank]
    cut = [_places(w, kv_line.pieces[kv_line.rank]) for w in wanted]
    put = [_places(_common(wanted[me], p), wanted[me]) for p in kv_line.pieces]
    move = _Move(kv_line, 0, cut, kv_line.rows, 0, put, _length(wanted[me]))
    keys = [_places([(sequences[b][2], sequences[b][3])], wanted[me]) for _, b in own]
    counts = [at[1] - at[0] for at, _ in own], [_length(k) for k in keys]
    starts = {n: torch.tensor([0, *count]).cumsum(0) for n, count in zip(INDEX, counts)}
    starts["q_offset"] = torch.tensor([sequences[b][4] + at[0] - sequences[b][0] for at, b in own])
    rows, before = [], 0
    for piece in line.pieces[me]:
        rows += [(before + a - piece[0], before + b - piece[0]) for a, b in _common([piece], [(q_start[0], q_start[-1])])]
        before += piece[1] - piece[0]
    # The hint is of keys, too, where there are as many as rows.
    longest = max(counts[0] + (counts[1] if sum(counts[0]) == sum(counts[1]) else []), default=0)
    tensors = {n: x.to(torch.int32).to(device) for n, x in starts.items()}
    return _Own(_merged(rows), [at for k in keys for at in k], move, tensors, torch.tensor([b for _, b in own], dtype=torch.int64, device=device), longest)


def _whole_of(intervals: Sequence[Interval], size: int) -> bool:
    """They are 0 to size, one after the other."""
    ends = [0, *[b for _, b in intervals]]
    return [a for a, _ in intervals] == ends[:-1] and ends[-1] == size


def _cut(x: torch.Tensor, intervals: Sequence[Interval]) -> torch.Tensor:
    return x if _whole_of(intervals, x.shape[0]) else _packed(x, 0, intervals)


def _spaced(x: torch.Tensor, rows: Sequence[Interval], size: int) -> torch.Tensor:
    """Rows where they belong, and 0 where no sequence has one."""
    if _whole_of(rows, size):
        return x
    parts, at, before = [], 0, 0
    for a, b in rows:
        parts += [x.new_zeros((a - at, *x.shape[1:])), x[before : before + b - a]]
        at, before = b, before + b - a
    return torch.cat([*parts, x[before:], x.new_zeros((size - at, *x.shape[1:]))])  # x without rows is in the graph, too: other ranks wait for what is behind it


def _identity(x: torch.Tensor) -> Any:
    """Of a tensor of a GPU not its values, which a call would wait for, but where nothing else tells that they changed."""
    if x.device.type == "cpu" or x.is_inference():
        return tuple(x.tolist())
    return x.data_ptr(), x._version, x.dtype, x.shape, x.stride()  # views of one tensor begin at one place


def attend(spec: str, arrays: Dict[str, torch.Tensor], scalars: Dict[str, float], wants: bool, index: Dict[str, torch.Tensor], spread: Spread,
           kv_spread: Optional[Spread], whole: Sequence[str], method: Optional[str], plan: Any) -> List[torch.Tensor]:  # fmt: skip
    """o of this rank's rows, and emits."""
    kv_spread, reads = kv_spread or spread, _reads(spec)
    q, k = arrays["q"], arrays["k"]
    for sp in spread, kv_spread:
        if sp.within is not sp.between or sp.order == "replicated" or sp.board.ranks != spread.board.ranks:
            raise ValueError("spread: sequences one behind the other take a spread over one dimension, in which each rank has rows of its own")
    if method not in (None, "keys"):
        raise ValueError(f"method: is {method!r}, and of sequences one behind the other keys come to the queries")
    why = _unfit(reads, arrays)
    if why:
        raise ValueError(f"{why}: such a variant does not run on sequences one behind the other that are spread")
    along = {"q": spread, "k": kv_spread, "v": kv_spread}
    along.update((n, spread if "Sq" in reads.extents[n] else kv_spread) for n in arrays if n not in along and "B" in reads.extents[n] and {"Sq", "Sk"} & set(reads.extents[n]))
    for name in whole:
        if name not in arrays or name in "qkv":
            raise ValueError(f"whole: {name} is no array of this call")
    for name, sp in along.items():
        expected = sp.S if name in whole else sp.rows
        if name in arrays and arrays[name].shape[0] != expected:
            raise ValueError(f"{name}: has {arrays[name].shape[0]} rows, and the spread gives this rank {expected}")
    of_sequences = {n: reads.extents[n].index("B") for n in arrays if n not in along and "B" in reads.extents[n]}
    for name, dim in of_sequences.items():
        if arrays[name].shape[dim] != len(index["q_start"]) - 1:
            raise ValueError(f"{name}: dimension {dim} is {arrays[name].shape[dim]}, and q_start is of {len(index['q_start']) - 1} sequences")
    call = [("the variant", _variant(spec)), ("elements", q.dtype), ("device", _torch._target(q.device)), ("spread", spread.told), ("kv_spread", kv_spread.told)]
    call += [("gradients", [n for n, x in arrays.items() if wants and x.requires_grad]), ("whole", sorted(whole)), ("plan", plan is not None)]
    call += [*((n, tuple(x.shape[1:])) for n, x in arrays.items()), *scalars.items(), *((n, len(x)) for n, x in index.items())]
    if spread.always:
        call += [(n, hashlib.sha256(str(x.tolist()).encode()).hexdigest()[:12]) for n, x in index.items()]
    spread.board.agree(call, spread.always)
    key = ("packed", spread.told, kv_spread.told, *((n, _identity(x)) for n, x in index.items()), q.device)
    own, _ = plan._kept.get(key, (None, None)) if plan else (None, None)
    if own is None:
        own = _found(index, spread.within, kv_spread.within, q.device)
        if plan:
            plan._kept[key] = own, index  # whose memory no other tensor gets
    of_keys = [n for n in arrays if n in along and along[n] is kv_spread and n != "q" and "Sq" not in reads.extents.get(n, ())]
    there: Dict[str, torch.Tensor] = {}
    for learned in True, False:  # gradients of the others do not travel
        names = [n for n in of_keys if (wants and arrays[n].requires_grad) == learned]
        rows, moves = [_part(arrays[n], kv_spread) if n in whole else arrays[n] for n in names], [own.move] * len(names)
        there.update(zip(names, moved(rows, moves) if learned else _Travel(rows, moves).come()) if names else ())
    given = {}
    for name, x in arrays.items():
        if name in there:
            x = _cut(there[name], own.keys)
        elif name in along:
            x = _cut(_part(x, spread) if name in whole else x, own.rows)
        elif name in of_sequences:
            x = x.index_select(of_sequences[name], own.which)
        given[name] = x
    given.update(own.index)
    operator = _torch._forward_operator if wants else _torch._operator
    call = list(given.values()), list(scalars.values()), ",".join([*given, *scalars]), spec, own.longest
    found = _torch._through(operator, *call)[: _torch._count(spec)]
    return [_spaced(x, own.rows, q.shape[0]) for x in found]


def _part(x: torch.Tensor, spread: Spread) -> torch.Tensor:
    return _packed(x, 0, spread.pieces[spread.rank])
