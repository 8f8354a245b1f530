"""Recurrences over ranks: each piece of a sequence maps the state S before it to Phi S + Psi.

In: this rank's rows of q, k, v and of the inputs; out: its rows of o, and the state after the last position. With few ranks and many heads a piece waits for the
state behind the one before, which comes by groups of heads; else all ranks find Phi and Psi at once, and exchange them."""

import functools
import json
import math
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import torch

from . import _torch
from ._needed import _beside, _inputs, _names, _variant
from ._spread import Interval, Spread, _length, _Line, _Message, _Move, _Travel


GROUPS = 8  # of heads, at most: while one rank computes the second group, the next one begins with the state of the first
LEAST = 1 << 19  # positions of heads in a group: 1 ms of an H100, which is more than the host takes for a call, and fills it
TURNS: Optional[bool] = None  # True, False: always, never; None: where that takes less time
SEGMENT, SEGMENTS = 256, 64  # positions of a segment at least, segments of a piece at most
COLUMNS = 128  # of v, that a block of a GPU has
CPU = 16  # segments of a CPU that run at once


class _Formulas(NamedTuple):
    extents: Dict[str, Tuple[str, ...]]  # of each array
    unfit: Dict[int, Optional[str]]  # why a batch (0) and heads (1) cannot be cut


@functools.lru_cache(maxsize=None)
def formulas_of(spec: str) -> _Formulas:
    rows, extents = _inputs(_torch._rows(spec)[0].partition("\nchunk")[0])
    unfit: Dict[int, Optional[str]] = {}
    for dim, index, extent, sizes in ((0, "b", "B", ("B",)), (1, "h", "H", ("H", "Hq", "Hk", "Hv"))):
        read = _names(_beside(rows, extents, ((index, extent),)), index, *sizes)
        unfit[dim] = f"the formulas read {index} or {extent}, of which a rank has a part only" if read else None
        other = next((n for n, listed in extents.items() if set(listed) & set(sizes[1:])), None)
        unfit[dim] = unfit[dim] or (f"{other}: has an extent of heads of q, k or v" if other else None)
    return _Formulas(extents, unfit)


class _Map(NamedTuple):
    extents: Dict[str, Tuple[str, ...]]  # of each array
    erase: bool  # Phi is a matrix, and otherwise a factor for each channel
    apart: bool  # groups of heads may be called one after the other
    entries: bool  # segments may be entries of a batch


@functools.lru_cache(maxsize=None)
def _map_of(spec: str) -> _Map:
    rows, extents = _inputs(_torch._rows(spec)[0].partition("\nchunk")[0])
    if _names(_beside(rows, extents, (("t", "S"),)), "t", "S"):
        raise ValueError("the formulas read t or S, which are those of a piece: such a recurrence does not run on a spread sequence")
    entries = not _names(_beside(rows, extents, (("b", "B"),)), "b", "B") and all("B" in e for e in extents.values() if "S" in e)
    return _Map(extents, "\n  erase = " in rows, not _names(_beside(rows, extents, (("h", "H"),)), "h", "H"), entries)


def recur(spec: str, given: Dict[str, torch.Tensor], scalars: Dict[str, float], spread: Spread) -> List[torch.Tensor]:
    """o of this rank's rows, and the state after the last position where it is asked for, the same on all ranks."""
    found, line = _map_of(spec), spread.within
    if line is not spread.between:
        raise ValueError("spread: has two dimensions, and a recurrence is spread over one")
    if spread.order not in ("contiguous", "zigzag"):
        raise ValueError(f"spread: has the order {spread.order}, and a recurrence takes contiguous and zigzag")
    along = {n: 2 if n in ("q", "k", "v") else found.extents[n].index("S") for n in given if n in ("q", "k", "v") or "S" in found.extents.get(n, ())}
    for n, dim in along.items():
        if given[n].shape[dim] != spread.rows:
            raise ValueError(f"{n}: has {given[n].shape[dim]} rows, and the spread gives this rank {spread.rows}")
    sizes = {n: [m for d, m in enumerate(x.shape) if d != along.get(n)] for n, x in given.items()}
    call = [("the variant", _variant(spec)), ("elements", given["q"].dtype), ("device", _torch._target(given["q"].device)), ("spread", spread.told)]
    call += [("gradients", [n for n, x in given.items() if _torch._wants_gradient(x)]), *sizes.items(), *scalars.items()]
    spread.board.agree(call, spread.always)

    q, k, v = (given[n] for n in ("q", "k", "v"))
    B, H, blocks = q.shape[0], max(x.shape[1] for x in (q, k, v)), -(-v.shape[3] // COLUMNS)
    state = given["state0"] if "state0" in given else q.new_zeros((B, H, q.shape[3], v.shape[3]), dtype=torch.float32)
    heads = functools.reduce(math.gcd, (x.shape[1] for x in (q, k, v)))
    most = min(B * H * spread.S // line.ranks // LEAST, GROUPS) if found.apart and line.ranks > 1 else 1
    groups = max(g for g in range(1, max(most, 1) + 1) if heads % g == 0)
    calls = 3 if found.erase else 2  # for each position, where all ranks work at once; also on one GPU that few heads do not fill
    turns = groups + line.ranks - 1 <= calls * groups and (2 * B * H * blocks > _at_once(q.device) or line.ranks == 1)
    arrays = {**{n: x for n, x in given.items() if n != "state0"}, "state0": state}
    asked = json.dumps({**json.loads(spec), "emit": ["state"]}, sort_keys=True)
    pieces = _Pieces(line, along, found, groups, list(arrays), scalars, asked, _torch._count(spec) > 1)
    way: Any = _ByTurns if (turns if TURNS is None else TURNS) else _ByMaps
    return list(way.apply(pieces, *arrays.values()))[: _torch._count(spec)]


def _at_once(device: torch.device) -> int:
    """Blocks of a launch."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else CPU


class _Segments(NamedTuple):
    first: int  # of this rank's rows
    count: int
    rows: int  # of each


class _Pieces(NamedTuple):
    """A call: the tensors of this rank's pieces."""

    line: _Line
    along: Dict[str, int]  # which dimension of a tensor is spread
    of: _Map
    groups: int
    names: List[str]  # of tensors, the last of which is state0
    scalars: Dict[str, float]
    spec: str  # which gives the state
    emits: bool  # whether the caller wants it

    @property
    def call(self) -> Tuple[List[float], str, str]:
        return list(self.scalars.values()), ",".join([*self.names, *self.scalars]), self.spec

    # ---- groups of heads

    def of_group(self, name: str, x: torch.Tensor, g: int) -> torch.Tensor:
        heads = [1] if name in ("q", "k", "v", "state0", "o") else [d for d, e in enumerate(self.of.extents[name]) if e == "H"]
        for d in heads:
            x = x.narrow(d, g * (x.shape[d] // self.groups), x.shape[d] // self.groups)
        return x

    def part(self, name: str, x: torch.Tensor, g: int, before: int, at: Interval) -> torch.Tensor:
        dim = 2 if name == "o" else self.along.get(name)
        return self.of_group(name, x if dim is None else x.narrow(dim, before, at[1] - at[0]), g)

    def operands(self, tensors: Sequence[torch.Tensor], start: torch.Tensor, g: int, before: int, at: Interval) -> List[torch.Tensor]:
        cut = [self.part(n, x, g, before, at) for n, x in zip(self.names[:-1], tensors)]
        return [*[x if n in ("q", "k", "v") else x.contiguous() for n, x in zip(self.names, cut)], start]

    def pieces(self) -> List[Tuple[int, Interval, int, int]]:
        """Of this rank, in the order of positions: its rows before, the positions, and who has the piece before and behind; itself at the ends."""
        owner = {at: r for r, pieces in enumerate(self.line.pieces) for at in pieces}
        ends, me, own = sorted(owner), self.line.rank, self.line.pieces[self.line.rank]
        around = [me, *[owner[at] for at in ends], me]
        return [(_length(own[: own.index(at)]), at, around[i], around[i + 2]) for i, at in enumerate(ends) if owner[at] == me]

    def last(self) -> int:
        """Who has the last position."""
        return max(((at[-1][1], r) for r, at in enumerate(map(sorted, self.line.pieces)) if at), default=(0, 0))[1]

    def passes(self, source: int, to: Sequence[int]) -> _Move:
        """A state of one rank -> these ranks."""
        me, ranks = self.line.rank, range(self.line.ranks)
        cut = [[(0, 1)] if me == source and r in to else [] for r in ranks]
        return _Move(self.line, 0, cut, int(me == source), 0, [[(0, 1)] if me in to and r == source else [] for r in ranks], int(me in to))

    def send(self, x: torch.Tensor, to: int) -> _Travel:
        return _Travel([x[None]], [self.passes(self.line.rank, [to])], False)

    def receive(self, like: torch.Tensor, source: int) -> torch.Tensor:
        return _Travel([like[None][:0]], [self.passes(source, [self.line.rank])]).come()[0][0]


    # ---- segments

    def segments(self, blocks: int, before: int, at: Interval, device: torch.device) -> List[_Segments]:
        """Of a piece: as many as run at once, and what is left over behind them."""
        length = at[1] - at[0]
        most = min(length // SEGMENT, SEGMENTS, _at_once(device) // max(blocks, 1)) if self.of.entries else 1
        if most < 2:
            return [_Segments(before, 1, length)]
        rows = -(-length // most // 64) * 64
        all_ = length // rows * rows
        return [_Segments(before, all_ // rows, rows), *([_Segments(before + all_, 1, length - all_)] if all_ < length else [])]

    def segment(self, name: str, x: torch.Tensor, at: _Segments, b: Optional[int]) -> torch.Tensor:
        """Those of one entry of the batch, as if each were one; b is None: one of all entries."""
        extents = self.of.extents.get(name, ("B", "H", "S", "D"))
        sizes, strides, first = list(x.shape), list(x.stride()), x.storage_offset()
        along, batch = (extents.index(e) if e in extents else None for e in ("S", "B"))
        if along is not None:
            sizes[along], first = at.rows, first + at.first * strides[along]
        if b is not None and batch is not None:
            first += b * strides[batch]
            sizes[batch], strides[batch] = at.count, 0 if along is None else at.rows * strides[along]
        return x.as_strided(sizes, strides, first)  # one operation of the host, for each tensor of each call

    def add(self, name: str, to: torch.Tensor, made: torch.Tensor, at: _Segments, b: Optional[int]) -> None:
        """The gradient of an input, of segments."""
        extents = self.of.extents[name]
        if b is not None and "B" in extents and "S" not in extents:
            batch = extents.index("B")
            to.narrow(batch, b, 1).add_(made.sum(batch, keepdim=True))
        else:
            self.segment(name, to, at, b).add_(made)

    def given(self, tensors: Sequence[torch.Tensor], at: _Segments, b: Optional[int]) -> List[torch.Tensor]:
        return [self.segment(n, x, at, b) for n, x in zip(self.names[:-1], tensors)]

    def everywhere(self, own: Sequence[torch.Tensor], like: torch.Tensor, share: Optional[torch.Tensor] = None) -> Tuple[List[torch.Tensor], List[torch.Tensor]]:
        """A tensor of each piece, by position, and the share of each rank, on all ranks."""
        pieces, message = self.line.pieces, _Message(self.line, like.device)
        most = max(map(len, pieces))
        room = message.room({"state": (most + (share is not None), *like.shape)})["state"]
        for to, x in zip(room, own if share is None else [*own, *[share] * (most - len(own) + 1)]):
            to.copy_(x)
        come = message.arrived()["state"]
        ends = sorted((at, r, i) for r, listed in enumerate(pieces) for i, at in enumerate(listed))
        return [come[r, i] for _, r, i in ends], [come[r, most] for r in range(len(pieces)) if share is not None]



class _ByTurns(torch.autograd.Function):
    @staticmethod
    def forward(ctx, turns, *tensors):
        from . import _recurrence

        scalars, names, spec = turns.call
        q, v, state0 = tensors[0], tensors[2], tensors[-1]
        o = v.new_empty((q.shape[0], state0.shape[1], q.shape[2], v.shape[3]))
        now = [turns.of_group("state0", state0, g).contiguous() for g in range(turns.groups)]
        starts, sent = [], []
        for before, at, source, to in turns.pieces():
            for g in range(turns.groups):
                start = now[g] if source == turns.line.rank else turns.receive(now[g], source)
                starts.append(start)
                operands = turns.operands(tensors, start, g, before, at)
                now[g] = _recurrence.made(operands, scalars, names, spec, turns.part("o", o, g, before, at))[1]
                if to != turns.line.rank:
                    sent.append(turns.send(now[g], to))
        for travel in sent:
            travel.arrived()
        end, last = torch.cat(now, 1), turns.last()
        if turns.line.ranks > 1:
            end = _Travel([end[None] if turns.line.rank == last else end[None][:0]], [turns.passes(last, range(turns.line.ranks))]).come()[0][0]
        ctx.turns = turns
        ctx.save_for_backward(*tensors, *starts)
        return o, end

    @staticmethod
    def backward(ctx, do, dend):
        from . import _recurrence

        if torch.is_grad_enabled():  # create_graph=True
            raise RuntimeError("a recurrence has first derivatives only")
        turns, count = ctx.turns, len(ctx.turns.names)
        tensors, starts = ctx.saved_tensors[:count], list(ctx.saved_tensors[count:])
        (scalars, names, spec), me = turns.call, turns.line.rank
        found = {n: torch.empty_like(x) if n in ("q", "k", "v") else torch.zeros_like(x, dtype=torch.float32) for n, x in zip(turns.names, tensors)}
        last = turns.last()
        if turns.line.ranks > 1:  # every rank has given its share
            came = _Travel([dend[None].contiguous()], [turns.passes(last, range(turns.line.ranks)).back()]).come()[0]
            dend = came[0] if me == last else torch.zeros_like(dend)
        now = [turns.of_group("state0", dend, g).contiguous() for g in range(turns.groups)]
        sent = []
        for before, at, source, to in reversed(turns.pieces()):
            for g in reversed(range(turns.groups)):
                if to != me:
                    now[g] = turns.receive(now[g], to)
                operands = turns.operands(tensors, starts.pop(), g, before, at)
                into = {"d" + n: turns.part(n, found[n], g, before, at) for n in ("q", "k", "v")}
                of_rows = turns.part("o", do, g, before, at)
                learned = list(_recurrence._learned(spec, operands, names))
                made = dict(zip(learned, _recurrence.gradients(operands, [of_rows, now[g]], "o,state", scalars, names, spec, into)))
                now[g] = made.pop("dstate0")
                for n, x in made.items():
                    if n not in into:
                        turns.part(n[1:], found[n[1:]], g, before, at).add_(x)
                if source != me:
                    sent.append(turns.send(now[g], source))
        for travel in sent:
            travel.arrived()
        first = any(at[0] == 0 for at in turns.line.pieces[me])
        found["state0"] = torch.cat(now, 1) if first else torch.zeros_like(tensors[-1])
        return (None, *[found[n].to(x.dtype) if x.is_floating_point() else None for n, x in zip(turns.names, tensors)])


def _onto(psi: torch.Tensor, phi: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    """psi += Phi S, a matrix or a factor for each channel; 0 forgets all, also what is infinite."""
    return psi.baddbmm_(phi, state) if phi.shape[2] > 1 else psi.addcmul_(phi, state.masked_fill(phi == 0, 0))


def _chain(phi: torch.Tensor, psi: torch.Tensor) -> torch.Tensor:
    """[n, X, D, C] and [n, X, D, Dv] of n segments -> [n, X, D, C + Dv]: Phi and Psi of all up to each."""
    n, X, D, C = phi.shape
    found = psi.new_zeros((n, X, D, C + psi.shape[3]))
    found[..., C:] = psi
    found[0, ..., :C] = phi[0]
    maps, of_each = found.unbind(0), phi.unbind(0)
    for i in range(1, n):
        _onto(maps[i], of_each[i], maps[i - 1])
    return found


def _mapped(maps: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    """What a map [X, D, C + Dv] makes of a state [X, D, Dv]."""
    C = maps.shape[2] - state.shape[2]
    return _onto(maps[..., C:].clone(), maps[..., :C], state)


def _before(chain: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    """The state before each segment, from the one before all."""
    maps = chain[:-1]
    rest = _mapped(maps.flatten(0, 1), state.expand(len(maps), *state.shape).flatten(0, 1)) if len(maps) else state[:0]
    return torch.cat([state[None], rest.view(-1, *state.shape)])


class _ByMaps(torch.autograd.Function):
    """The kernels of a part leave Phi and Psi of each segment; all ranks get those of all pieces, and so the states before their own segments."""

    @staticmethod
    def forward(ctx, pieces, *tensors):
        from . import _recurrence

        (scalars, names, spec), of, state0 = pieces.call, ",".join([*pieces.names[:-1], *pieces.scalars]), tensors[-1]
        (B, H, D, Dv), q, v = state0.shape, tensors[0], tensors[2]
        erase, X = pieces.of.erase, B * H
        phase = "part,bwd" if any(ctx.needs_input_grad) else "part"
        o = v.new_empty((B, H, q.shape[2], Dv))
        segments, chains, phis = [], [], []
        for before, at, *_ in pieces.pieces():
            phi, psi = [], []
            cut = pieces.segments(H * -(-Dv // COLUMNS), before, at, q.device)
            segments.append([(run, [(b, pieces.given(tensors, run, b)) for b in (range(B) if run.count > 1 else [None])]) for run in cut])
            for run, listed in segments[-1]:
                made = []
                for _, given in listed:
                    kernel = _recurrence._of_tensors(spec, given, phase)
                    found = _torch._launch(kernel, kernel.outputs, _recurrence._given(given, scalars, of))
                    made.append(found if len(found) > 1 else [*found, v.new_ones((), dtype=torch.float32).expand(*found[0].shape[:2], 1, D)])
                for to, x in zip((psi, phi), zip(*made)):
                    to.append((torch.stack(x, 1) if run.count > 1 else x[0][None]).flatten(1, 2))
            psi, phi = (torch.cat(x) if len(x) > 1 else x[0] for x in (psi, phi))
            phis.append(phi if erase else phi.transpose(2, 3))
            chains.append(_chain(phis[-1], psi))
        C = D if erase else 1
        pairs, _ = pieces.everywhere([x[-1] for x in chains], state0.new_empty((), dtype=torch.float32).expand(X, D, C + Dv))
        ends, states = sorted(at for listed in pieces.line.pieces for at in listed), [state0.reshape(X, D, Dv)]
        for pair in pairs:
            states.append(_mapped(pair, states[-1]))
        starts = []
        for (_, at, *_), runs, chain in zip(pieces.pieces(), segments, chains):
            starts.append(_before(chain, states[ends.index(at)]).view(-1, B, H, D, Dv))
            first = 0
            for run, listed in runs:
                for b, given in listed:
                    start = starts[-1][first] if b is None else starts[-1][first : first + run.count, b].contiguous()
                    _recurrence.made([*given, start], scalars, names, spec, pieces.segment("o", o, run, b))
                first += run.count
        ctx.call = pieces, [[run for run, _ in runs] for runs in segments]
        ctx.save_for_backward(*tensors, *starts, *phis, *[x[..., :C] for x in pairs])
        state = states[-1].view(B, H, D, Dv)
        return o, state if pairs else state.clone()

    @staticmethod
    def backward(ctx, do, dend):
        from . import _recurrence

        if torch.is_grad_enabled():  # create_graph=True
            raise RuntimeError("a recurrence has first derivatives only")
        pieces, segments = ctx.call
        n, own = len(pieces.names), len(segments)
        saved = ctx.saved_tensors
        tensors, starts, phis, all_phis = saved[:n], saved[n : n + own], saved[n + own : n + 2 * own], saved[n + 2 * own :]
        (scalars, names, spec), (B, H, D, Dv) = pieces.call, tensors[-1].shape
        found = {m: torch.empty_like(x) if m in ("q", "k", "v") else torch.zeros_like(x, dtype=torch.float32) for m, x in zip(pieces.names, tensors)}

        def calls(i):
            """Of piece i: segments, the first one's number, and what their kernels take."""
            first = 0
            for run in segments[i]:
                for b in range(B) if run.count > 1 else [None]:
                    start = starts[i][first] if b is None else starts[i][first : first + run.count, b].contiguous()
                    yield run, b, first, [*pieces.given(tensors, run, b), start], pieces.segment("o", do, run, b)
                first += run.count

        def of_segments(x, run, b, first):
            return x[first] if b is None else x[first : first + run.count, b]

        chains = []
        for i in range(own):
            psi = torch.empty_like(starts[i])
            for run, b, first, given, of_rows in calls(i):
                kernel = _torch._back(_recurrence._of_tensors(spec, given, "part,bwd"))
                arrays = {**_recurrence._given(given, scalars, names), "do": _torch._placed(of_rows)}
                (made,) = _torch._launch(kernel, ["dstate0"], {m: x for m, x in arrays.items() if m in kernel.inputs})
                of_segments(psi, run, b, first).copy_(made)
            phi = phis[i] if not pieces.of.erase else phis[i].transpose(2, 3)
            chains.append(_chain(phi.flip(0), psi.flatten(1, 2).flip(0)))
        dend = dend.reshape(B * H, D, Dv)
        come, shares = pieces.everywhere([x[-1, ..., -Dv:] for x in chains], dend, dend if pieces.emits else None)
        ends = sorted(at for listed in pieces.line.pieces for at in listed)
        states = [sum(shares[1:], shares[0]) if shares else torch.zeros_like(dend)]  # behind the last piece
        for phi, psi in zip(reversed(all_phis), reversed(come)):
            states.append(_onto(psi.clone(), phi.transpose(1, 2) if pieces.of.erase else phi, states[-1]))
        for i, (_, at, *_) in enumerate(pieces.pieces()):
            behind = _before(chains[i], states[len(ends) - 1 - ends.index(at)]).flip(0).view_as(starts[i])
            for run, b, first, given, of_rows in calls(i):
                into = {"d" + m: pieces.segment(m, found[m], run, b) for m in ("q", "k", "v")}
                come = [of_rows, of_segments(behind, run, b, first)]
                made = dict(zip(_recurrence._learned(spec, given, names), _recurrence.gradients(given, come, "o,state", scalars, names, spec, into)))
                for m, x in made.items():
                    if m not in into and m != "dstate0":
                        pieces.add(m[1:], found[m[1:]], x, run, b)
        if any(at[0] == 0 for at in pieces.line.pieces[pieces.line.rank]):
            found["state0"] = states[-1].view(B, H, D, Dv)
        return (None, *[found[m].to(x.dtype) if x.is_floating_point() else None for m, x in zip(pieces.names, tensors)])
