"""Recurrences over ranks: each piece of a sequence maps the state S before it to Phi S + Psi.

In: this rank's rows of q, k, v and of the inputs; out: its rows of o, and the state after the last position. With few ranks a piece waits for the state
behind the one before, which comes by groups of heads; with more, all ranks find Phi and Psi at once, and exchange them."""

import functools
import json
import math
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import torch

from . import _torch
from ._needed import _beside, _inputs, _names, _variant
from ._spread import Interval, Spread, _length, _Line, _Move, _Travel


COLUMNS = 16  # of values that find a factor for each channel
GROUPS = 8  # of heads, at most: while one rank computes the second group, the next one begins with the state of the first
LEAST = 1 << 19  # positions of heads in a group: 1 ms of an H100, which is more than the host takes for a call, and fills it
MAPS = 2  # calls for each position where all ranks work at once


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


@functools.lru_cache(maxsize=None)
def _map_of(spec: str) -> _Map:
    rows, extents = _inputs(_torch._rows(spec)[0].partition("\nchunk")[0])
    if _names(_beside(rows, extents, (("t", "S"),)), "t", "S"):
        raise ValueError("the formulas read t or S, which are those of a piece: such a recurrence does not run on a spread sequence")
    if "\n  value = v\n" not in rows:
        raise ValueError("the value is another one than v: such a recurrence does not run on a spread sequence")
    return _Map(extents, "\n  erase = " in rows, not _names(_beside(rows, extents, (("h", "H"),)), "h", "H"))


@functools.lru_cache(maxsize=None)
def _with_columns(spec: str, D: int, Dv: int, more: int) -> Optional[str]:
    """The specification for more columns of v, where no formula or input hangs on how many there are."""
    given = json.loads(spec)
    given["defines"].pop("Dv", None)
    wide = json.dumps(given, sort_keys=True)
    # `!` stands behind an input whose indices are proved to be within it.
    (rows, extents), other = (_inputs(_torch._rows(wide, D=D, Dv=n)[0].partition("\nchunk")[0].replace("!", "")) for n in (Dv, Dv + more))
    return wide if (rows, extents) == other and not any("Dv" in e for e in extents.values()) else None


def recur(operator: Any, spec: str, given: Dict[str, torch.Tensor], scalars: Dict[str, float], spread: Spread) -> List[torch.Tensor]:
    """o of this rank's rows, and the state after the last position where it is asked for, the same on all ranks. Phi and Psi are what the kernel
    makes of the states 1 and 0."""
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

    def run(tensors: Dict[str, torch.Tensor], *emit: str, spec: str = spec) -> List[torch.Tensor]:
        asked = json.dumps({**json.loads(spec), "emit": emit}, sort_keys=True)
        made: List[torch.Tensor] = operator(list(tensors.values()), list(scalars.values()), ",".join([*tensors, *scalars]), asked)
        return made

    q, k, v = (given[n] for n in ("q", "k", "v"))
    B, H, D, Dv = q.shape[0], max(x.shape[1] for x in (q, k, v)), q.shape[3], v.shape[3]
    state = given["state0"] if "state0" in given else q.new_zeros((B, H, D, Dv), dtype=torch.float32)
    heads = functools.reduce(math.gcd, (x.shape[1] for x in (q, k, v)))
    most = min(B * H * spread.S // line.ranks // LEAST, GROUPS) if found.apart else 1
    groups = max(g for g in range(1, max(most, 1) + 1) if heads % g == 0)
    if groups + line.ranks - 1 <= MAPS * groups:
        arrays = {**{n: x for n, x in given.items() if n != "state0"}, "state0": state}
        turns = _Turns(line, along, found.extents, groups, list(arrays), scalars, json.dumps({**json.loads(spec), "emit": ["state"]}, sort_keys=True))
        return list(_ByTurns.apply(turns, *arrays.values()))[: _torch._count(spec)]
    own, before = [], 0
    for a, b in line.pieces[line.rank]:
        own.append({n: x.narrow(along[n], before, b - a) if n in along else x for n, x in given.items() if n != "state0"})
        before += b - a
    columns, more = (D, D) if found.erase else (1, COLUMNS)
    one = torch.eye(D, device=q.device) if found.erase else q.new_ones((), dtype=torch.float32)
    one, wide = one.expand(B, H, D, more), _with_columns(spec, D, Dv, more)
    made = []
    for piece in own:  # Phi is the state behind 1 and values of 0: more columns of the same call, where that fits
        none = piece["v"].new_zeros((*piece["v"].shape[:3], more))
        if wide is None:
            phi, psi = run({**piece, "v": none, "state0": one.contiguous()}, "state")[1], run(piece, "state")[1]
        else:
            start = torch.cat([one.new_zeros((B, H, D, Dv)), one], 3)
            psi, phi = run({**piece, "v": torch.cat([piece["v"], none], 3), "state0": start}, "state", spec=wide)[1].split([Dv, more], 3)
        made.append(torch.cat([phi[..., :columns].flatten(), psi.flatten()]))
    nothing = sum(x.flatten()[:0].sum().float() for x in given.values() if x.is_floating_point())  # a rank without rows has gradients, too
    pairs = torch.stack(made) if made else nothing * q.new_zeros((0, B * H * D * (columns + Dv)), dtype=torch.float32)
    ends = sorted(at for pieces in line.pieces for at in pieces)
    places = [[(i, i + 1) for i in (ends.index(at) for at in pieces)] for pieces in line.pieces]
    pairs = _Line(line.group, line.rank, len(ends), places, line.board).whole(pairs, 0) if line.ranks > 1 else pairs
    states = [state]
    for pair in pairs:
        phi, psi = (x.reshape(B, H, D, -1) for x in pair.split([B * H * D * columns, B * H * D * Dv]))
        states.append((phi @ states[-1] if found.erase else phi * states[-1]) + psi)
    rows = [run({**piece, "state0": states[i]})[0] for piece, (i, _) in zip(own, places[line.rank])]
    o = torch.cat(rows, 2) if rows else v.new_zeros((B, H, 0, Dv))
    o = o + pairs.flatten()[:0].sum().to(o.dtype)  # the gradient of pairs travels on every rank
    return [o, states[-1]][: _torch._count(spec)]


class _Turns(NamedTuple):
    """A piece begins with the state behind the one before, which comes by groups of heads."""

    line: _Line
    along: Dict[str, int]  # which dimension of a tensor is spread
    extents: Dict[str, Tuple[str, ...]]
    groups: int
    names: List[str]  # of tensors, the last of which is state0
    scalars: Dict[str, float]
    spec: str  # which gives the state

    def of_group(self, name: str, x: torch.Tensor, g: int) -> torch.Tensor:
        heads = [1] if name in ("q", "k", "v", "state0", "o") else [d for d, e in enumerate(self.extents[name]) if e == "H"]
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


class _ByTurns(torch.autograd.Function):
    @staticmethod
    def forward(ctx, turns, *tensors):
        from . import _recurrence

        names, scalars = ",".join([*turns.names, *turns.scalars]), list(turns.scalars.values())
        q, v, state0 = tensors[0], tensors[2], tensors[-1]
        o = v.new_empty((q.shape[0], state0.shape[1], q.shape[2], v.shape[3]))
        now = [turns.of_group("state0", state0, g).contiguous() for g in range(turns.groups)]
        starts, sent = [], []
        for before, at, source, to in turns.pieces():
            for g in range(turns.groups):
                start = now[g] if source == turns.line.rank else turns.receive(now[g], source)
                starts.append(start)
                operands = turns.operands(tensors, start, g, before, at)
                now[g] = _recurrence.made(operands, scalars, names, turns.spec, turns.part("o", o, g, before, at))[1]
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
        names, scalars, me = ",".join([*turns.names, *turns.scalars]), list(turns.scalars.values()), turns.line.rank
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
                learned = list(_recurrence._learned(turns.spec, operands, names))
                made = dict(zip(learned, _recurrence.gradients(operands, [of_rows, now[g]], "o,state", scalars, names, turns.spec, into)))
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
