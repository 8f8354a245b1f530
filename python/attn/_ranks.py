"""Attention over ranks: this rank's rows of q, k, v in, this rank's rows of o out.

Two methods. `keys`: keys and values come to the queries. A call of the kernel (kernel.piece) takes some of a rank's rows and the keys that they see:
first the rows that see keys of their own piece only, while the keys of the others travel. Where those have no room, the keys of one rank
after the other come, and leave states (kernel.part). `heads`: a rank gets all positions of some heads
(all-to-all), and calls the kernel as one GPU would; so it fits variants whose formulas do not read h itself, but only arrays at [h].
A Spread of two dimensions does the second inside of a row of ranks, and the first between the rows."""

import functools
import itertools
from typing import Any, Callable, ContextManager, Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import torch

from . import _compiler, _torch
from ._kernel import Kernel
from ._needed import METHODS, _Kernel, _reads, _Reads, _seen, _Tiles, _tiles, _tiles_with, _variant, needed
from ._spread import Interval, Spread, _common, _cuts, _length, _Line, _merged, _Message, _Move, _Moved, _packed, _places, _Travel, _unpack, numbered

LEAST_BYTES = 64 << 20  # of keys and values that travel at a time: fewer launches, of which each ends with idle multiprocessors
BUFFER = 512 << 20  # bytes that they always have room for
RATE, LINK, MEMORY = 775e12, 345e9, 2.4e12  # products and bytes in a second, for the choice of a method: of an H100, its NVLink, copies in its memory


# ---- launches: some rows of a rank, and the keys that they see


class _Run(NamedTuple):
    """A launch for rows that follow each other."""

    before: int  # of the rank's rows
    at: Interval  # the positions
    keys: Interval  # all that they see
    own: bool  # they lie in the rank's own rows, one after the other; otherwise in what comes
    first: int  # where


class _Runs(NamedTuple):
    """Of each rank."""

    runs: List[List[_Run]]
    wanted: List[List[Interval]]  # keys that come, those of its own that go with them too
    held: List[List[Interval]]  # what it has room for, of these keys
    once: bool  # no rank sees a key that comes in two launches: gradients travel as they are
    move: _Move  # this rank's rows -> the keys that are held, 0 where none is wanted


MOST_RUNS = 4  # of a piece


def _cut(tiles: Optional[_Tiles], own: Sequence[Interval], before: int, at: Interval, Sk: int) -> List[_Run]:
    """Of a piece: rows whose keys all lie in one piece of `own`, and the others."""

    def whole() -> List[_Run]:
        seen = _seen(tiles, at, Sk)
        return [_Run(before, at, (seen[0][0], seen[-1][1]) if seen else (0, 0), not seen, 0)]

    if tiles is None:
        return whole()
    runs: List[_Run] = []
    places = list(itertools.accumulate((b - a for a, b in own), initial=0))
    for r in range(at[0] // tiles.rows, -(-at[1] // tiles.rows)):
        rows = max(at[0], r * tiles.rows), min(at[1], (r + 1) * tiles.rows)
        seen = tiles.keys[r]
        keys = (seen[0][0], min(seen[-1][1], Sk)) if seen else (0, 0)
        place = next((p - a for (a, b), p in zip(own, places) if a <= keys[0] and keys[1] <= b), None) if seen else 0
        run = _Run(before + rows[0] - at[0], rows, keys, place is not None, keys[0] + (place or 0))
        last = runs[-1] if runs else None
        if last and last.own == run.own and (not run.own or (seen and last.keys[1] and last.first - last.keys[0] == place)):
            keys = min(last.keys[0], keys[0]), max(last.keys[1], keys[1])
            runs[-1] = last._replace(at=(last.at[0], rows[1]), keys=keys, first=keys[0] + (place or 0))
        else:
            runs.append(run)
    return runs if len(runs) <= MOST_RUNS else whole()


@functools.lru_cache(maxsize=256)
def _runs(tiles: Optional[_Tiles], line: _Line, kv_line: _Line, apart: bool) -> _Runs:
    """apart: kernels take some keys; otherwise the whole length."""
    of_ranks: List[List[_Run]] = []
    wanted, held, once = [], [], True
    for pieces, own in zip(line.pieces, kv_line.pieces):
        runs: List[_Run] = []
        before = 0
        for at in pieces:
            if apart:
                runs += _cut(tiles, own, before, at, kv_line.S)
            elif at[0] < at[1]:
                runs.append(_Run(before, at, (0, kv_line.S), False, 0))
            before += at[1] - at[0]
        others = [run for run in runs if not run.own]
        held.append(_merged([run.keys for run in others]))
        once = once and _length(held[-1]) == sum(run.keys[1] - run.keys[0] for run in others)
        of_ranks.append([run if run.own else run._replace(first=_places([run.keys], held[-1])[0][0]) for run in runs])
        wanted.append(_merged([i for run in others for i in _seen(tiles, run.at, kv_line.S)]))
    me = kv_line.rank
    cut = [_places(w, kv_line.pieces[me]) for w in wanted]
    put = [_places(_common(wanted[me], p), held[me]) for p in kv_line.pieces]
    return _Runs(of_ranks, wanted, held, once, _Move(kv_line, 2, cut, kv_line.rows, 2, put, _length(held[me])))


class Plan:
    """Keeps which keys each rank needs where the mask reads inputs (documents, block lists): of them only these travel.

    The first call with module(..., spread=sp, plan=p) makes it of the inputs that the mask reads, on the host, and keeps the whole of those that are integers. Later
    calls with the same sizes find it, of all layers and both phases, as long as these inputs hold the same values: make a new one for a new batch, on all ranks."""

    def __init__(self) -> None:
        self._kept: Dict[Any, Any] = {}
        self.handle = numbered(self, object())


# ---- attention where the keys come to the queries


class _Call(NamedTuple):
    line: _Line
    kv_line: _Line
    needed: List[List[Interval]]
    q_offset: int
    tiles: Optional[_Tiles]
    groups: int  # of heads of k and v, which travel one after the other
    parts: Optional[Kernel]  # where the keys of one rank after the other come
    pieces_of: Optional[Kernel]  # where they come at once; None: a kernel takes the whole length
    along: List[Optional[Tuple[_Line, int]]]  # of each array input, how it is spread, and its dimension
    scalars: List[float]
    names: str
    spec: str
    queries: bool = False  # they go out, and states come back
    reduce: Optional[torch.dtype] = None  # in which gradients of keys travel

    def pieces(self) -> List[Tuple[int, Interval]]:
        """Of the rows at hand: how many come before, and the positions."""
        own = [(0, self.line.S)] if self.queries else self.line.pieces[self.line.rank]
        return [(_length(own[:i]), at) for i, at in enumerate(own)]

    def of_group(self, x: torch.Tensor, g: int) -> torch.Tensor:
        n = x.shape[1] // self.groups
        return x.narrow(1, g * n, n)

    def runs(self) -> _Runs:
        return _runs(self.tiles, self.line, self.kv_line, self.pieces_of is not None)

    def kernel(self, tensors: Sequence[torch.Tensor], wants: bool) -> Kernel:
        return self.pieces_of or _torch._of_tensors(self.spec, tensors, self.names, "fwd,bwd" if wants else "fwd")

    def split(self, own: bool) -> List[_Run]:
        """Launches of this rank. own: those that need no other's keys; of a rank without queries one that makes nothing."""
        runs = self.runs().runs[self.line.rank]
        return [run for run in runs if run.own == own] + [_Run(0, (0, 0), (0, 0), True, 0)] * (own and not runs)

    def gathers(self, k: torch.Tensor, v: torch.Tensor, meanwhile: Callable[[], None]) -> Iterator[Tuple[int, List[torch.Tensor]]]:
        """Keys and values of each group that come, of which the next one travels while one is in use. meanwhile: what is done while the first travels."""

        def begin(g: int) -> _Travel:
            return _Travel([self.of_group(x, g) for x in (k, v)], [self.runs().move] * 2)

        coming = begin(0)
        meanwhile()
        for g in range(self.groups):
            here = coming
            if g + 1 < self.groups:
                coming = begin(g + 1)
            yield g, here.come()

    def chunk(self, step: int) -> _Move:
        """Keys that the rank `step` further on needs go there, and those needed here come from the one `step` before."""
        line = self.kv_line
        to, source = ((line.rank + i) % line.ranks for i in (step, -step))
        size = _length(_common(self.needed[line.rank], line.pieces[source]))
        cut = [_places(self.needed[to], line.pieces[line.rank]) if r == to else [] for r in range(line.ranks)]
        return _Move(line, 2, cut, line.rows, 2, [[(0, size)] if r == source else [] for r in range(line.ranks)], size)

    def chunks(self, k: torch.Tensor, v: torch.Tensor) -> Iterator["_Chunk"]:
        """This rank's own, then those of the others, of which the next one travels while one is in use."""
        line = self.kv_line

        def begin(step: int) -> Optional[_Travel]:
            return _Travel([k, v], [self.chunk(step)] * 2, False) if step < line.ranks else None

        coming = None if self.queries else begin(1)
        yield _Chunk(0, line.pieces[line.rank], [k, v])
        if self.queries:
            return
        for step in range(1, line.ranks):
            assert coming is not None
            source = (line.rank - step) % line.ranks
            coming, keys = None, coming.arrived()[source]
            coming = begin(step + 1)
            yield _Chunk(step, _common(self.needed[line.rank], line.pieces[source]), keys)

    def launches(self, chunk: "_Chunk", at: Interval) -> Iterator[Tuple[int, int, int]]:
        """Of a piece of rows, the keys of a chunk: their place in it, the first position, and how many."""
        seen = _seen(self.tiles, at, self.kv_line.S)
        before = 0
        for a, b in chunk.positions:
            yield from ((before + i - a, i, j - i) for i, j in _common(seen, [(a, b)]))
            before += b - a

    def alone(self, at: Interval) -> bool:
        """No launch of these rows begins at position 0, and this rank makes what a row alone adds to the gradients of inputs."""
        seen = _seen(self.tiles, at, self.kv_line.S)
        owner = next((r for r, own in enumerate(self.kv_line.pieces) if any(a == 0 < b for a, b in own)), 0)
        return not (seen and seen[0][0] == 0 < seen[0][1]) and (not self.queries or owner == self.kv_line.rank)

    def phase(self, name: str) -> Kernel:
        """Of parts: "part", "combine" or "backward"."""
        kernel: Kernel = getattr(self.parts, name)
        return kernel

    def sizes(self, kernel: Kernel, at: Interval, kv_first: int = 0) -> Dict[str, int]:
        q_offset, line = self.q_offset + at[0], self.line
        sizes = {"q_offset": q_offset, "q_first": at[0], "kv_first": kv_first, "Sq_all": line.S, "Sk_all": self.kv_line.S}
        return {n: x for n, x in sizes.items() if n in kernel.sizes}

    def whole_inputs(self, arrays: Sequence[torch.Tensor]) -> List[torch.Tensor]:
        return [x if at is None else _Travel([x], [at[0].gather_all(at[1])]).come()[0] for x, at in zip(arrays, self.along)]

    def narrowed(self, x: torch.Tensor) -> torch.Tensor:
        """A sum in f32 as it travels."""
        return x.to(self.reduce) if self.reduce and x.dtype == torch.float32 else x

    def all_rows(self, xs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Of tensors with this rank's rows."""
        return xs if self.line.everywhere or not xs else _Travel(xs, [self.line.gather_all(2)] * len(xs)).come()

    def sum_of_rows(self, x: torch.Tensor) -> torch.Tensor:
        """This rank's rows, of what each rank has found for all: added up in f32, in the order of ranks."""
        if not self.line.everywhere:
            return _Travel([x], [self.line.gather_all(2).back()]).come()[0]
        message = _Message(self.line, x.device)
        message.room({"x": x.shape})["x"].copy_(x)
        return functools.reduce(torch.add, message.arrived()["x"])

    def piece(self, x: torch.Tensor, before: int, at: Interval) -> torch.Tensor:
        return x.narrow(2, before, at[1] - at[0])


NOTHING = 0, 0, 0  # of launches


class _Chunk(NamedTuple):
    step: int
    positions: List[Interval]
    keys: List[torch.Tensor]  # and values: their rows are these positions one after the other


def _sum_into(total: torch.Tensor, parts: Sequence[Tuple[Interval, torch.Tensor]]) -> None:
    """The sum of what there is for each of its rows, in this order; what is part of `total` is there already."""
    ends = sorted({0, total.shape[2], *(at for (a, b), _ in parts for at in (a, b))})
    for a, b in zip(ends, ends[1:]):
        place = total.narrow(2, a, b - a)
        here = [x.narrow(2, a - first, b - a) for (first, last), x in parts if first <= a and b <= last]
        if not here:
            place.zero_()
        elif len(here) > 1:
            one = here[0].to(torch.float32, copy=True)
            for x in here[1:]:
                one += x
            place.copy_(one)
        elif here[0].data_ptr() != place.data_ptr():
            place.copy_(here[0])


def _join(parts: List[List[torch.Tensor]], dim: int) -> List[torch.Tensor]:
    return [xs[0] if len(xs) == 1 else torch.cat(xs, dim) for xs in zip(*parts)]


def _forward(call: _Call, tensors: Sequence[torch.Tensor], wants: bool) -> List[torch.Tensor]:
    """o, emits, and what the backward wants where there is one."""
    q, k, v, *arrays = tensors
    arrays = call.whole_inputs(arrays)
    kernel = call.kernel(tensors, wants)
    names = _torch._kept(call.spec, kernel) if wants else ["o", *_torch._emits(call.spec)]
    made = _torch._rows_of(kernel, tensors, len(names) - 1)

    def launch(run: _Run, keys: Sequence[torch.Tensor], of: Callable[[torch.Tensor], torch.Tensor]) -> None:
        rows = [call.piece(of(x), run.before, run.at) for x in (q, *made)]
        seen = [x.narrow(2, run.first, run.keys[1] - run.keys[0]) for x in keys]
        given = {**_torch._given([rows[0], *seen, *arrays], call.scalars, call.names, None), **call.sizes(kernel, run.at, run.keys[0])}
        into = {n: _torch._for(x) for n, x in zip(names, rows[1:])}
        for x, y in zip(rows[1:], _torch._launch(kernel, names, given, into)):
            if x is not y:
                x.copy_(y)

    def alone() -> None:
        for run in call.split(own=True):
            launch(run, (k, v), lambda x: x)

    for g, keys in call.gathers(k, v, alone):
        for run in call.split(own=False):
            launch(run, keys, lambda x: call.of_group(x, g))  # noqa: B023
    return made


def _forward_by_chunks(call: _Call, tensors: Sequence[torch.Tensor], made: Sequence[str]) -> List[torch.Tensor]:
    """The outputs `made`, of states that go on with each chunk of keys."""
    q, k, v, *arrays = tensors
    arrays = call.whole_inputs(arrays)
    pieces = call.pieces() or [(0, (0, 0))]
    states: List[Dict[str, torch.Tensor]] = [{} for _ in pieces]
    for chunk in call.chunks(k, v):
        for state, (before, at) in zip(states, pieces):
            _go_on(call, state, [call.piece(q, before, at), *arrays], chunk.keys, at, call.launches(chunk, at))
        del chunk  # before the next one but one comes
    by_piece = []
    for state, (before, at) in zip(states, pieces):
        rows = call.piece(q, before, at)
        if not state:
            _go_on(call, state, [rows, *arrays], [k, v], at, [NOTHING])
        by_piece.append(_combined(call, {n: x[None] for n, x in state.items()}, [rows, k, v, *arrays], at, made))
    return _join(by_piece, 2)


def _go_on(call: _Call, state: Dict[str, torch.Tensor], tensors: Sequence[torch.Tensor], keys: Sequence[torch.Tensor], at: Interval,
           launches: Iterable[Tuple[int, int, int]], room: Any = None) -> None:  # fmt: skip
    """The state of these rows goes on with keys and values, in its place. {}: no keys so far, and the place is what `room` gives."""
    q, *arrays = tensors
    part = call.phase("part")
    for first, position, count in launches:
        given = _torch._given([q, *[x.narrow(2, first, count) for x in keys], *arrays], call.scalars, call.names, None)
        given = {n: x for n, x in given.items() if n in part.inputs}
        out = state or room or {"state": _torch._room(q.new_empty(0, dtype=torch.float32), (*q.shape[:3], part.Dv))}
        found = part(**given, **{n + "0": x for n, x in state.items()}, out=out, **call.sizes(part, at, position))
        state.update(zip(part.outputs, found if isinstance(found, tuple) else (found,)))


def _combined(call: _Call, states: Dict[str, torch.Tensor], tensors: Sequence[torch.Tensor], at: Interval, made: Sequence[str]) -> List[torch.Tensor]:
    """Of states with one more dimension in front."""
    combine = call.phase("combine")
    given = _torch._given(tensors, call.scalars, call.names, None)
    given = {n: x for n, x in given.items() if n in combine.inputs}
    sizes = {**call.sizes(combine, at), **({"Hkv": tensors[1].shape[1]} if "Hkv" in combine.sizes else {})}
    o = _torch._out(combine, tensors)
    found = _torch._launch(combine, made, {**given, **states, **sizes}, {"o": _torch._for(o)})
    return [o if found[0] is o else o.copy_(found[0]), *found[1:]]


def _by_queries(call: _Call, tensors: Sequence[torch.Tensor], made: Sequence[str]) -> List[torch.Tensor]:
    """Queries go out and states come back: each rank finds what all rows see of its own keys."""
    q, k, v, *arrays = tensors
    arrays, line = call.whole_inputs(arrays), call.line
    (rows,) = call.all_rows([q])
    at, own, state = (0, line.S), _Chunk(0, call.kv_line.pieces[call.kv_line.rank], [k, v]), {}
    message = _Message(line, q.device) if line.everywhere else None
    _go_on(call, state, [rows, *arrays], own.keys, at, list(call.launches(own, at)) or [NOTHING], message and message.room)
    if message:
        return _combined(call, message.arrived(), [q, k, v, *arrays], at, made)
    moves = {"state": line.part(2), "rows": line.part(3)}
    travel = _Travel(list(state.values()), [moves[n] for n in state], False)
    came = travel.arrived()
    came[line.rank] = [_packed(x, m.cut_dim, m.cut[line.rank]) for x, m in zip(travel.xs, travel.moves)]
    of_own = {n: torch.stack([came[r][i] for r in range(line.ranks)]) for i, n in enumerate(state)}
    by_piece = []
    for before, at in call._replace(queries=False).pieces() or [(0, (0, 0))]:
        states = {n: x.narrow(3 if n == "state" else 4, before, at[1] - at[0]) for n, x in of_own.items()}
        by_piece.append(_combined(call, states, [call.piece(q, before, at), k, v, *arrays], at, made))
    return _join(by_piece, 2)


def _made(call: _Call, tensors: Sequence[torch.Tensor], wants: bool) -> List[torch.Tensor]:
    """o, emits, and what the backward wants where there is one."""
    if not call.parts:
        return _forward(call, tensors, wants)
    made = _torch._kept(call.spec, call.parts) if wants else ["o", *_torch._emits(call.spec)]
    return (_by_queries if call.queries else _forward_by_chunks)(call, tensors, made)


class _Attend(torch.autograd.Function):
    """Keys come to the queries, in the backward again; gradients of keys go home and are added up in f32, in the order of ranks. Or queries go out in both,
    and their gradients come home."""

    @staticmethod
    def forward(ctx, call, count, *tensors):
        found = _made(call, tensors, True)
        ctx.call, ctx.operands = call, len(tensors)
        ctx.save_for_backward(*tensors, *found)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*found[count:])
        return tuple(found)

    @staticmethod
    def backward(ctx, *come):
        if torch.is_grad_enabled():  # create_graph=True
            raise RuntimeError("attention has first derivatives only")
        call = ctx.call
        saved = ctx.saved_tensors
        tensors, kept = saved[: ctx.operands], saved[ctx.operands :]
        there = [(n, d) for n, d in zip(["o", *_torch._emits(call.spec)], come) if d is not None]
        backward = _backward_by_chunks if call.parts else _backward
        found = backward(call, tensors, kept, ",".join(n for n, _ in there), [d for _, d in there])
        return (None, None, *found)


def _backward(call: _Call, tensors: Sequence[torch.Tensor], kept: Sequence[torch.Tensor], which: str,
              come: Sequence[torch.Tensor]) -> List[Optional[torch.Tensor]]:  # fmt: skip
    q, k, v, *arrays = tensors
    kernel = call.kernel(tensors, True)
    learned = list(_torch._learned(kernel, tensors, call.names))
    whole, runs, back = call.whole_inputs(arrays), call.runs(), call.runs().move.back()
    dq, total = torch.empty_like(q), [torch.empty_like(x) for x in (k, v)]
    others: Dict[str, torch.Tensor] = {}
    parts: List[Tuple[Interval, List[torch.Tensor]]] = []  # of the gradients of this rank's keys, of all heads
    of_all = call._replace(groups=1)

    def launch(run: _Run, of: _Call, g: int, keys: Sequence[torch.Tensor], into: Sequence[torch.Tensor]) -> List[torch.Tensor]:
        def own(x: torch.Tensor) -> torch.Tensor:
            return call.piece(of.of_group(x, g), run.before, run.at)

        given = [own(q), *[x.narrow(2, run.first, run.keys[1] - run.keys[0]) for x in keys], *whole]
        out = {"dq": own(dq), **{n: x.narrow(2, run.first, run.keys[1] - run.keys[0]) for n, x in zip(("dk", "dv"), into)}}
        made = _torch._gradients_by(kernel, given, [own(x) for x in kept], [own(x) for x in come], which, call.scalars, call.names, call.spec,
                                    call.sizes(_torch._back(kernel), run.at, run.keys[0]), out)  # fmt: skip
        found = dict(zip(learned, made))
        for name in learned[3:]:
            others[name] = others[name] + found[name] if name in others else found[name].float()
        return [found["dk"], found["dv"]]

    def alone() -> None:
        for run in call.split(own=True):
            at = run.first, run.first + run.keys[1] - run.keys[0]
            first = not _common([at], _merged([i for i, _ in parts]))
            parts.append((at, launch(run, of_all, 0, (k, v), total if first else ())))

    def of_group(g: int, sums: Sequence[torch.Tensor], home: _Travel) -> None:
        """The gradients of this rank's keys: of its own launches, of those with keys that came, and what came from the others."""
        came = home.arrived()
        of_others = [(back.put[r], came[r]) for r in came]
        mine = [_packed(x, 2, back.cut[call.kv_line.rank]) for x in sums]
        for i, x in enumerate(total):
            here = [(at, call.of_group(xs[i], g)) for at, xs in parts]
            for intervals, xs in [(back.put[call.kv_line.rank], mine), *of_others]:
                before = 0
                for a, b in intervals:
                    here.append(((a, b), xs[i].narrow(2, before, b - a)))
                    before += b - a
            _sum_into(call.of_group(x, g), here)

    homes: List[Tuple[int, Sequence[torch.Tensor], _Travel]] = []
    for g, keys in call.gathers(k, v, alone):
        sums = [torch.empty_like(x) if runs.once else torch.zeros_like(x, dtype=torch.float32) for x in keys]
        for run in call.split(own=False):
            for x, y in zip(sums, launch(run, call, g, keys, sums if runs.once else ())):
                if not runs.once:
                    x.narrow(2, run.first, y.shape[2]).add_(y)
        homes.append((g, sums, _Travel([call.narrowed(x) for x in sums], [back] * 2, False)))
        for home in homes[:-1]:  # while the last one travels
            of_group(*home)
        del homes[:-1]
    for home in homes:
        of_group(*home)
    return [dq, *total, *_of_inputs(call, arrays, whole, learned, others)]


def _backward_by_chunks(call: _Call, tensors: Sequence[torch.Tensor], kept: Sequence[torch.Tensor], which: str,
                        come: Sequence[torch.Tensor]) -> List[Optional[torch.Tensor]]:  # fmt: skip
    q, k, v, *arrays = tensors
    assert call.parts is not None
    learned = list(_torch._learned(call.parts, tensors, call.names))
    whole = call.whole_inputs(arrays)
    if call.queries:
        q, *of_rows = call.all_rows([q, *kept, *come])
        kept, come = of_rows[: len(kept)], of_rows[len(kept) :]
    dq, dk, dv = (torch.zeros_like(x, dtype=torch.float32) for x in (q, k, v))
    others: Dict[str, torch.Tensor] = {}

    def add_what_came(home: Optional[Tuple[_Move, _Travel]]) -> None:
        if home:
            for r, came in home[1].arrived().items():
                for x, total in zip(came, (dk, dv)):
                    _unpack(x, total, 2, home[0].put[r], True)

    def add(chunk: _Chunk, sums: Sequence[torch.Tensor], before: int, at: Interval) -> None:
        rows, into, *of_rows = (call.piece(x, before, at) for x in (q, dq, *kept, *come))
        launches = list(call.launches(chunk, at))
        if chunk.step == 0 and call.alone(at):
            launches.append(NOTHING)
        for first, position, count in launches:
            keys, totals = ([x.narrow(2, first, count) for x in xs] for xs in (chunk.keys, sums))
            sizes = call.sizes(call.phase("backward"), at, position)
            made = _torch._gradients_by(call.parts, [rows, *keys, *whole], of_rows[: len(kept)], of_rows[len(kept) :], which, call.scalars, call.names,
                                        call.spec, sizes)  # fmt: skip
            found = dict(zip(learned, made))
            for name, total in zip(("dq", "dk", "dv"), (into, *totals)):
                total += found.pop(name)
            for name, x in found.items():
                others[name] = others[name] + x if name in others else x.float()

    home = None
    for chunk in call.chunks(k, v):
        sums = [torch.zeros_like(x, dtype=torch.float32) for x in chunk.keys] if chunk.step else [dk, dv]
        for before, at in call.pieces():
            add(chunk, sums, before, at)
        add_what_came(home)  # what has traveled while this chunk was in use
        if chunk.step:
            move = call.chunk(chunk.step).back()
            home = move, _Travel([call.narrowed(x) for x in sums], [move] * 2, False)
        del chunk, sums
    add_what_came(home)
    dq = call.sum_of_rows(dq) if call.queries else dq
    return [dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), *_of_inputs(call, arrays, whole, learned, others)]


def _of_inputs(call: _Call, arrays: Sequence[torch.Tensor], whole: Sequence[torch.Tensor], learned: Sequence[str],
               made: Dict[str, torch.Tensor]) -> List[Optional[torch.Tensor]]:  # fmt: skip
    """Gradients of inputs, of what this rank has made of their whole: complete where they are spread as k is."""
    gradients: List[Optional[torch.Tensor]] = []
    for name, x, all_of_it, at in zip(call.names.split(",")[3:], arrays, whole, call.along):
        if "d" + name not in learned:
            gradients.append(None)
            continue
        own_share = made.get("d" + name, torch.zeros_like(all_of_it, dtype=torch.float32))
        if at is not None:
            own_share = _Travel([own_share], [at[0].gather_all(at[1]).back()]).come()[0]
        gradients.append(own_share.to(x.dtype))
    return gradients


# ---- attention where heads are exchanged for positions


def _parts(heads: Interval, group: int) -> List[Tuple[Interval, Interval]]:
    """Heads of queries and of keys that a call of the kernel takes: as many to each head of keys."""
    a, b = heads
    first, last = -(-a // group), b // group
    if first > last:  # inside of one group
        return [((a, b), (last, last + 1))]
    cut = [((a, first * group), (first - 1, first)), ((first * group, last * group), (first, last)), ((last * group, b), (last, last + 1))]
    return [(q, k) for q, k in cut if q[0] < q[1]]


class _Local(NamedTuple):
    """A call on all positions of a line's group, or on all of the sequence: by one kernel, or where there are rows of ranks, by keys."""

    spec: str
    scalars: Dict[str, float]
    q_offset: Optional[int]
    wants: bool
    between: Optional[Tuple[_Line, _Line]]  # of queries and of keys
    tiles: Optional[_Tiles]
    apart: bool
    buffer: Optional[int]
    method: str = "heads"
    reduce: Optional[torch.dtype] = None

    def names(self, given: Dict[str, torch.Tensor]) -> str:
        return ",".join([*given, *self.scalars])

    def call(self, given: Dict[str, torch.Tensor], along: Dict[str, str]) -> List[torch.Tensor]:
        """o and the emits. along: the arrays that are spread, as q ("Sq") or as k ("Sk")."""
        tensors, count = list(given.values()), _torch._count(self.spec)
        if self.between is None:
            operator = _torch._forward_operator if self.wants else _torch._operator
            return list(operator(tensors, list(self.scalars.values()), self.names(given), self.spec, self.q_offset))[:count]
        call = self.exchanged(given, along)
        return list(_Attend.apply(call, count, *tensors) if self.wants else _made(call, tensors, False))[:count]

    def forward(self, given: Dict[str, torch.Tensor], along: Dict[str, str]) -> List[torch.Tensor]:
        """Also what the backward wants of it, where there is one; without a graph."""
        if self.between is not None:
            return _made(self.exchanged(given, along), list(given.values()), self.wants)
        made = (_torch._forward if self.wants else _torch._run)(list(given.values()), list(self.scalars.values()), self.names(given), self.spec, self.q_offset)
        return made

    def backward(self, given: Dict[str, torch.Tensor], along: Dict[str, str], kept: Sequence[torch.Tensor], which: str,
                 come: Sequence[torch.Tensor]) -> List[Optional[torch.Tensor]]:  # fmt: skip
        """Of operands, from what `forward` gave and the gradients of the outputs `which`."""
        tensors = list(given.values())
        if self.between is not None:
            call = self.exchanged(given, along)
            return (_backward_by_chunks if call.parts else _backward)(call, tensors, kept, which, come)
        kernel = _torch._of_tensors(self.spec, tensors, self.names(given), "fwd,bwd")
        made = _torch._backward(tensors, list(kept), list(come), which, list(self.scalars.values()), self.names(given), self.spec, self.q_offset)
        found = dict(zip(_torch._learned(kernel, tensors, self.names(given)), made))
        return [found.get("d" + n) for n in given]

    def exchanged(self, given: Dict[str, torch.Tensor], along: Dict[str, str]) -> _Call:
        """What travels, where keys do."""
        assert self.between is not None
        names, tensors = self.names(given), list(given.values())
        line, kv_line = self.between
        offset = max(kv_line.S - line.S, 0) if self.q_offset is None else self.q_offset
        reads = _reads(self.spec)
        lines = {"Sq": line, "Sk": kv_line}
        spread = [(lines[along[n]], reads.extents[n].index(along[n])) if n in along and not lines[along[n]].everywhere else None for n in list(given)[3:]]
        wanted = needed(self.tiles, line, kv_line.S)
        pieces = _pieced(tensors, self.spec, self.wants) if self.method != "queries" else None
        runs = _runs(self.tiles, line, kv_line, pieces is not None)
        groups = _groups(tensors[1], tensors[2], _foreign(wanted, kv_line)) if self.apart else 1
        row = sum(x.shape[0] * x.shape[1] * x.shape[3] * x.element_size() for x in tensors[1:3])
        room = max(2 * row * max(map(_length, kv_line.pieces)), BUFFER) if self.buffer is None else self.buffer
        fits = self.method != "queries" and (pieces is not None or not reads.unfit["keys"])
        small = fits and min(2, groups) * row * max(map(_length, runs.held)) // groups <= room
        parts = None if small else _parted(tensors, self.spec, self.wants)
        queries = self.method == "queries"
        return _Call(line, kv_line, wanted, offset, self.tiles, groups, parts, pieces, spread, list(self.scalars.values()), names, self.spec, queries, self.reduce)


def _pieced(tensors: Sequence[torch.Tensor], spec: str, wants: bool) -> Optional[Kernel]:
    q, _, v = tensors[:3]
    return _apart(spec, int(q.shape[-1]), int(v.shape[-1]), _torch._ELEMENTS[q.dtype], _torch._target(q.device), "piece", wants)


def _parted(tensors: Sequence[torch.Tensor], spec: str, wants: bool) -> Optional[Kernel]:
    q, _, v = tensors[:3]
    return _apart(spec, int(q.shape[-1]), int(v.shape[-1]), _torch._ELEMENTS[q.dtype], _torch._target(q.device), "part", wants)


@functools.lru_cache(maxsize=None)
def _apart(spec: str, D: int, Dv: int, elements: str, target: str, phase: str, wants: bool) -> Optional[Kernel]:
    """None where the variant has no parts, for its keys are seen more than once, or no pieces."""
    try:
        return _torch._kernel(spec, D, Dv, elements, target, phase + ",bwd" * wants)
    except _compiler.CompileError as e:
        if "no parts" in str(e):
            return None
        raise


class _Turned:
    """A call whose heads are exchanged for positions: of each operand all positions of some heads."""

    def __init__(self, local: _Local, given: Dict[str, torch.Tensor], spread: Spread, kv_spread: Spread, along: Dict[str, str]) -> None:
        self.local, self.line, self.along, self.inner = local, spread.within, along, along if local.between else {}
        H, Hkv = given["q"].shape[1], given["k"].shape[1]
        self.group, self.H = H // Hkv, H
        self.heads = _cuts(H, self.line.ranks)
        self.kv_heads = [(a // self.group, -(-b // self.group)) if a < b else (0, 0) for a, b in self.heads]
        kv_line = kv_spread.within
        self.turns = [self.line.turn(self.heads, H), kv_line.turn(self.kv_heads, Hkv), kv_line.turn(self.kv_heads, Hkv)]
        self.extents, self.lines = _reads(local.spec).extents, {"Sq": self.line, "Sk": kv_line}
        self.q, self.k, self.v = _Moved.apply(self.turns, given["q"], given["k"], given["v"])
        arrays = {n: x for n, x in given.items() if n not in ("q", "k", "v")}
        self.arrays = {n: self.lines[along[n]].whole(x, self.dim(n)) if n in along else x for n, x in arrays.items()}

    def dim(self, name: str) -> int:
        """Along which an array is spread."""
        return self.extents[name].index(self.along[name])

    def of_heads(self, name: str, x: torch.Tensor, at: Interval) -> torch.Tensor:
        """Of an array, that of some heads."""
        dims = [d for d, e in enumerate(self.extents[name]) if e == "H"]
        return functools.reduce(lambda x, d: x.narrow(d, at[0], at[1] - at[0]), dims, x)

    def parts(self) -> Iterator[Tuple[Interval, Interval, Interval, Dict[str, torch.Tensor]]]:
        """What a call of the kernel takes: heads of all, and among this rank's those of q and of k."""
        (a, b), (c, _) = self.heads[self.line.rank], self.kv_heads[self.line.rank]
        for (i, j), (m, n) in _parts((a, b), self.group) if a < b else []:
            part = {"q": self.q[:, i - a : j - a], "k": self.k[:, m - c : n - c], "v": self.v[:, m - c : n - c]}
            part.update((name, self.of_heads(name, x, (i, j)).contiguous()) for name, x in self.arrays.items())
            yield (i, j), (i - a, j - a), (m - c, n - c), part

    def there(self, xs: Sequence[torch.Tensor]) -> List[torch.Tensor]:
        return _Travel(xs, [self.line.turn(self.heads, self.H)] * len(xs)).come()

    def forward(self, count: int, run: Any) -> List[torch.Tensor]:
        """`count` outputs of this rank's rows."""
        found = [run(part, self.inner) for _, _, _, part in self.parts()]
        if found:
            made = _join(found, 1)
        else:  # more ranks than heads: it takes part in what travels, there and back
            nothing = self.q.sum(3) + sum(x.flatten()[:0].sum().to(self.q.dtype) for x in (self.k, self.v, *self.arrays.values()))
            made = [nothing[..., None].expand(*nothing.shape, self.v.shape[3]), *[nothing.float()] * (count - 1)]
        return list(_Moved.apply([self.line.turn(self.heads, self.H).back()] * len(made), *made))

    def backward(self, kept: Sequence[torch.Tensor], which: str, come: Sequence[torch.Tensor]) -> List[Optional[torch.Tensor]]:
        """Of operands, from this rank's rows of what the forward gave and of the gradients that come."""
        kept, come = self.there(kept), self.there(come)
        found = {n: torch.zeros_like(x, dtype=torch.float32) for n, x in {"q": self.q, "k": self.k, "v": self.v, **self.arrays}.items() if x.is_floating_point()}
        none = set(self.arrays) if not list(_parts(self.heads[self.line.rank], self.group)) else set()
        for at, (i, j), (m, n), part in self.parts():
            made = self.local.backward(part, self.inner, [x[:, i:j] for x in kept], which, [x[:, i:j] for x in come])
            for (name, x), total in zip(zip(part, made), [found.get(name) for name in part]):
                if x is None or total is None:
                    none.add(name)
                else:
                    into = total[:, i:j] if name == "q" else total[:, m:n] if name in ("k", "v") else self.of_heads(name, total, at)
                    into += x
        home = _Travel([found[n].to(x.dtype) for n, x in (("q", self.q), ("k", self.k), ("v", self.v))], [t.back() for t in self.turns]).come()
        gradients: List[Optional[torch.Tensor]] = list(home)
        for name, x in self.arrays.items():
            total = found.get(name)
            if total is not None and name in self.along:
                total = _Travel([total], [self.lines[self.along[name]].gather_all(self.dim(name)).back()]).come()[0]
            gradients.append(None if total is None else total.to(x.dtype))
        return gradients


# ---- a call


def _error(given: Dict[str, torch.Tensor], spread: Spread, kv_spread: Spread, whole: Sequence[str], reads: _Reads) -> None:
    for name, x, sp in (("q", given["q"], spread), ("k", given["k"], kv_spread)):
        if x.shape[2] != sp.rows:
            raise ValueError(f"{name}: has {x.shape[2]} rows, and the spread gives this rank {sp.rows}")
    arrays = {n: x for n, x in given.items() if n not in ("q", "k", "v")}
    for name in whole:
        if name not in arrays:
            raise ValueError(f"whole: {name} is no array of this call")
    for name, x in arrays.items():
        for extent, sp in (("Sq", spread), ("Sk", kv_spread)):
            at = reads.extents[name].index(extent) if extent in reads.extents[name] else x.dim()
            lies_whole = name in whole or (extent == "Sk" and "Sq" in reads.extents[name])
            expected = sp.S if lies_whole else sp.rows
            if at < x.dim() and x.shape[at] != expected:
                raise ValueError(f"{name}: dimension {at} is {x.shape[at]}, expected {expected}")


def _foreign(wanted: Sequence[Sequence[Interval]], line: _Line) -> int:
    """How many keys come to the rank that gets most."""
    return max(_length(w) - _length(_common(w, p)) for w, p in zip(wanted, line.pieces))


def _groups(k: torch.Tensor, v: torch.Tensor, foreign: int) -> int:
    """How many groups of heads: as many as have LEAST_BYTES each that travel. The same on all ranks."""
    row = k.shape[0] * k.shape[1] * (k.shape[3] + v.shape[3]) * k.element_size()
    most = foreign * row // LEAST_BYTES
    return max(n for n in range(1, k.shape[1] + 1) if k.shape[1] % n == 0 and n <= max(most, 1))


def _choice(spec: str, method: Optional[str], wants: bool, given: Dict[str, torch.Tensor], spread: Spread, kv_spread: Spread, reads: _Reads,
            tiles: Optional[_Tiles]) -> str:  # fmt: skip
    """The method that takes less time, by numbers that all ranks share."""
    if method not in (None, *METHODS):
        raise ValueError(f"method: is {method!r}, none of {', '.join(METHODS)}")
    two, everywhere = spread.within is not spread.between, spread.within.everywhere
    if two and method:
        raise ValueError(f"method: a spread of two dimensions has keys and heads, and not {method!r} alone")
    if kv_spread.within.everywhere:
        raise ValueError("kv_spread: is replicated, and only queries may be")
    if everywhere and (two or method not in (None, "queries")):
        raise ValueError("spread: is replicated, which goes with method 'queries', over one dimension")
    unfit = dict(reads.unfit)
    if unfit["keys"] and not everywhere and method != "queries" and _pieced(list(given.values()), spec, wants):
        unfit["keys"] = None
    elif unfit["keys"] or everywhere or method == "queries":
        if _parted(list(given.values()), spec, wants):
            unfit["keys"] = None
        else:
            unfit["queries"] = "the variant has no parts, as its keys are seen more than once"
            if wants and _parted(list(given.values()), spec, False):
                unfit["queries"] = "the gradient of an emit needs all keys of a row"
    reasons = {m: f"{unfit[m]} (method {m})" for m in METHODS if unfit[m]}
    if two:
        fit = [m for m in ("keys", "heads") if not unfit[m]]
        if len(fit) < 2:
            raise ValueError(f"{next(iter(reasons.values()))}: such a variant does not run on a spread sequence of two dimensions")
        return "both"
    asked = [method] if method else ["queries"] if everywhere else ["keys", "heads"]
    fit = [m for m in asked if not unfit[m]]
    if not fit:
        other = [f"method={m!r} fits" for m in ("keys", "heads") if m not in reasons and not everywhere]
        end = " or ".join(other) or "such a variant does not run on a spread sequence"
        raise ValueError(f"{'; '.join(reasons[m] for m in asked)}: {end}")
    if len(fit) == 1 or spread.ranks == 1:
        return fit[0]
    q, k, v = given["q"], given["k"], given["v"]
    columns, size, n = k.shape[3] + v.shape[3], q.shape[0] * k.element_size(), spread.ranks
    line, kv_line = spread.between, kv_spread.between
    a_pair = 2 * q.shape[0] * q.shape[1] * columns / RATE

    def load(pieces: Sequence[Interval]) -> float:
        return a_pair * sum((b - a) * kv_spread.S if tiles is None else tiles.load((a, b)) for a, b in pieces)

    runs = _runs(tiles, line, kv_line, True)
    products = max(map(load, line.pieces))
    own = min(load([run.at for run in of_rank if run.own]) for of_rank in runs.runs)  # while the first keys travel
    foreign = _foreign(needed(tiles, line, kv_spread.S), kv_line)
    keys = foreign * k.shape[1] * columns * size / LINK
    first = keys / (_groups(k, v, foreign) if reads.apart else 1)
    heads = sum(2 * (b - a) * columns for a, b in ((0, q.shape[1]), (0, max(n, k.shape[1])))) / 2 * size * spread.S * (n - 1) / n / n / LINK
    whole_heads = n * -(-q.shape[1] // n) / q.shape[1]  # a rank that has no head has no work
    by_keys, by_heads = max(products + 0.1 * keys, keys) + max(first - own, 0), load([(0, spread.S)]) / n * whole_heads + heads
    if wants:  # gradients of keys travel home, of which the last group does alone, and are added up
        more = 2.5 * (products - load([(0, spread.S)]) / n), 2.5 * load([(0, spread.S)]) / n * (whole_heads - 1)
        by_keys += max(first - own, 0) + first + 8 * foreign * k.shape[1] * columns * size / MEMORY + more[0]
        by_heads += heads + more[1]
    return "keys" if by_keys <= by_heads else "heads"


class _Settled(NamedTuple):
    """How a call goes."""

    local: _Local
    spread: Spread
    kv_spread: Spread
    along: Dict[str, str]
    turned: bool  # heads are exchanged for positions
    whole: Dict[str, torch.Tensor]  # inputs that a plan keeps

    def call(self, given: Dict[str, torch.Tensor]) -> List[torch.Tensor]:
        """o and the emits, with a graph."""
        given = {**given, **self.whole}
        return _Turned(self.local, given, *self[1:4]).forward(_torch._count(self.local.spec), self.local.call) if self.turned else self.local.call(given, self.along)

    def forward(self, given: Dict[str, torch.Tensor], count: int) -> List[torch.Tensor]:
        """And what the backward wants, `count` tensors in all, without a graph."""
        given = {**given, **self.whole}
        return _Turned(self.local, given, *self[1:4]).forward(count, self.local.forward) if self.turned else self.local.forward(given, self.along)

    def backward(self, given: Dict[str, torch.Tensor], kept: Sequence[torch.Tensor], which: str, come: Sequence[torch.Tensor]) -> List[Optional[torch.Tensor]]:
        given = {**given, **self.whole}
        if self.turned:
            return _Turned(self.local, given, *self[1:4]).backward(kept, which, come)
        return self.local.backward(given, self.along, kept, which, come)


def settle(spec: str, given: Dict[str, torch.Tensor], scalars: Dict[str, float], q_offset: Optional[int], wants: bool, spread: Spread,
           kv_spread: Optional[Spread], whole: Sequence[str], method: Optional[str], plan: Optional[Plan], agree: bool = True) -> _Settled:  # fmt: skip
    """Of this rank's rows: q, k, v and the arrays are `given`. agree: the ranks compare the call, if it is new."""
    if "v" not in given:
        raise TypeError("v: is in k, and such a variant does not run on a spread sequence")
    kv_spread = kv_spread or spread
    reads = _reads(spec)
    if kv_spread.board.ranks != spread.board.ranks or (kv_spread.within is kv_spread.between) != (spread.within is spread.between):
        raise ValueError("kv_spread: is over other ranks than spread")
    _error(given, spread, kv_spread, whole, reads)
    q = given["q"]
    kernel = None  # whose tiles each launch has, where calls are to have the same bits on any number of ranks
    if _torch._wants_order(spec):
        kernel = _Kernel(_torch._target(q.device), _torch._ELEMENTS[q.dtype], int(q.shape[3]), int(given["v"].shape[3]))
    sizes = {n: (*x.shape[:2], *x.shape[3:]) if n in ("q", "k", "v") else tuple(x.shape) if n in whole else x.dim() for n, x in given.items()}
    call = [("the variant", _variant(spec)), ("elements", q.dtype), ("device", _torch._target(q.device)), ("q_offset", None if kv_spread.grows else q_offset), ("method", method)]
    call += [("whole", sorted(whole)), ("gradients", [n for n, x in given.items() if wants and x.requires_grad]), ("spread", spread.told), ("kv_spread", kv_spread.told)]
    call += [*sizes.items(), *scalars.items(), ("plan", plan is not None), ("deterministic", kernel is not None)]
    if agree:
        spread.board.agree(call, spread.always)
    offset = max(kv_spread.S - spread.S, 0) if q_offset is None else q_offset
    along = {n: e for n in given if n not in ("q", "k", "v") and n not in whole for e in ("Sk", "Sq") if e in reads.extents[n]}  # of both: by rows
    tiles, kept = None, {}
    if spread.ranks > 1 and method != "queries" and not spread.within.everywhere and not reads.head and not reads.batch and not reads.of_mask:
        tiles = _tiles(spec, spread.S, kv_spread.S, offset, *(q.shape[:2] if kernel else (1, 1)), kernel)
    elif spread.ranks > 1 and plan is not None:
        tiles, kept = _planned(plan, spec, given, scalars, spread, kv_spread, offset, along, kernel)
    chosen = _choice(spec, method, wants, given, spread, kv_spread, reads, tiles)
    if spread.pieces == [[(0, spread.S)]] and kv_spread.pieces == [[(0, kv_spread.S)]]:  # one rank
        return _Settled(_Local(spec, scalars, q_offset, wants, None, None, False, None), spread, kv_spread, {}, False, {})
    between = None if chosen == "heads" else (spread.between, kv_spread.between)
    local = _Local(spec, scalars, q_offset, wants, between, tiles, reads.apart, kv_spread.buffer, chosen, kv_spread.reduce_dtype)
    along = {n: e for n, e in along.items() if n not in kept}
    return _Settled(local, spread, kv_spread, along, chosen not in ("keys", "queries"), kept)


def _planned(plan: Plan, spec: str, given: Dict[str, torch.Tensor], scalars: Dict[str, float], spread: Spread, kv_spread: Spread,
             offset: int, along: Dict[str, str], kernel: Optional[_Kernel]) -> Tuple[_Tiles, Dict[str, torch.Tensor]]:  # fmt: skip
    """And the inputs that need not travel again: integers have no gradient."""
    reads = _reads(spec)
    (B, H), sps = given["q"].shape[:2], {"Sq": spread, "Sk": kv_spread}
    key = (spec, spread.S, kv_spread.S, offset, B, H if reads.head else 0, kernel)
    if key not in plan._kept:
        arrays = {n: x.detach() for n, x in given.items() if n in reads.of_mask}
        arrays = {n: sps[along[n]].unshard(x, reads.extents[n].index(along[n])) if n in along else x for n, x in arrays.items()}
        tiles = _tiles_with(spec, spread.S, kv_spread.S, offset, B, H, arrays, scalars, kernel)
        plan._kept[key] = tiles, {n: x for n, x in arrays.items() if n in along and not x.is_floating_point()}
    found: Tuple[_Tiles, Dict[str, torch.Tensor]] = plan._kept[key]
    return found


def told(spread: Any) -> ContextManager[None]:
    """In this context what one rank raises all raise: of what a caller gives as spread=."""
    if not isinstance(spread, Spread):
        raise TypeError(f"spread: takes an attn.Spread, not a {type(spread).__name__}")
    return spread.board.told()


# ---- equal work


def _loads(spec: str, S: int, blocks: Sequence[Interval], inputs: Dict[str, Any]) -> List[int]:
    """Pairs of visited tiles, of each block of queries."""
    reads = _reads(spec)
    arrays = {name: x for name, x in inputs.items() if isinstance(x, torch.Tensor)}
    sizes = {e: x.shape[i] for name, x in arrays.items() for i, e in enumerate(reads.extents.get(name, ())) if e in ("B", "H")}
    for name in reads.of_mask:
        if name not in inputs:
            raise TypeError(f"{name}: the mask reads this input")
    scalars = {n: float(x) for n, x in inputs.items() if n not in arrays}
    tiles = _tiles_with(spec, S, S, 0, sizes.get("B", 1), sizes.get("H", 1), arrays, scalars)
    return [tiles.load(b) for b in blocks]


def balance(S: int, modules: "Dict[_torch.Attention, float]", block: int = 512, mesh: Any = None, **inputs: Any) -> Spread:
    """A Spread of S positions whose ranks have equal work in all layers of a model: modules, and how many layers each has, or what else they weigh
    against each other, for each visited tile. mesh: by default that of the first module. inputs: those that the masks read, whole and the same on every rank."""
    from ._spread import size_of

    mesh = next((m.mesh for m in modules), None) if mesh is None else mesh
    n = size_of(mesh)
    blocks = [(a, min(a + block, S)) for a in range(0, S, block)]
    load = [0.0] * len(blocks)
    for module, weight in modules.items():
        load = [x + weight * y for x, y in zip(load, _loads(module.spec, S, blocks, inputs))]
    held = _swapped(load, n)
    pieces = [_merged([blocks[i] for i in own]) for own in held]
    order = torch.cat([torch.arange(a, b) for own in pieces for a, b in own] or [torch.zeros(0, dtype=torch.int64)])
    return Spread(mesh, S, order, [_length(own) for own in pieces])


def _windows(load: Sequence[float], n: int) -> List[List[int]]:
    """Which blocks each of n ranks has, as many as the others (or one less). Of the blocks that are left, as a ring, a rank takes consecutive ones
    whose load is the mean: such places take the mean on average, so one of them comes near it. Of those within 2% one that cuts fewest runs."""
    left, held, mean = list(range(len(load))), [], sum(load) / n
    for r in range(n):
        size = len(left)
        count = size // (n - r)
        sums = list(itertools.accumulate((load[i] for i in left + left[:count]), initial=0))
        off = [abs(sums[at + count] - sums[at] - mean) for at in range(max(size, 1))]
        cuts = [left[at] == left[at - 1] + 1 for at in range(size)] or [False]
        at = min(range(len(off)), key=lambda at: (max(off[at], 0.02 * mean), cuts[at] + cuts[(at + count) % len(cuts)], off[at]))
        own = set((left + left[:count])[at : at + count])
        held.append(sorted(own))
        left = [i for i in left if i not in own]
    return held


def _swapped(load: Sequence[float], n: int) -> List[List[int]]:
    """Which blocks each of n ranks has: windows, of which blocks of the fullest and of the emptiest rank
    change places until the fullest has at most 4% above the mean. Where that does not come, the heaviest go first to the emptiest."""
    count, mean = len(load), sum(load) / n
    held = _windows(load, n)
    sums = [sum(load[i] for i in own) for own in held]
    for _ in range(4 * count):
        full, empty = (f(range(n), key=sums.__getitem__) for f in (max, min))
        if sums[full] <= 1.04 * mean:
            return held
        wanted = (sums[full] - sums[empty]) / 2
        pairs = [(abs(load[i] - load[j] - wanted), i, j) for i in held[full] for j in held[empty] if 0 < load[i] - load[j] < 2 * wanted]
        if not pairs:
            break
        _, i, j = min(pairs)
        held[full][held[full].index(i)], held[empty][held[empty].index(j)] = j, i
        sums[full], sums[empty] = sums[full] - load[i] + load[j], sums[empty] + load[i] - load[j]
    greedy: List[List[int]] = [[] for _ in range(n)]
    loads, room = [0] * n, [len(own) for own in held]
    for i in sorted(range(count), key=lambda i: -load[i]):
        r = min((r for r in range(n) if len(greedy[r]) < room[r]), key=loads.__getitem__)
        greedy[r].append(i)
        loads[r] += load[i]
    return min((held, sums), (greedy, loads), key=lambda x: max(x[1]))[0]
