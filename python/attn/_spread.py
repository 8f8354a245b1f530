"""A sequence spread over ranks of torch.distributed: each rank holds some rows of q and some of k and v, and gets the keys that its rows need.

    sp = attn.Spread(mesh["cp"], S, order="zigzag")    # once a batch, for all layers
    x = sp.shard(x, dim=1)                             # this rank's rows; unshard is the reverse; both have gradients
    o = attn.Attention("gemma.attn")(q, k, v, spread=sp, sink=sink)

The rows of a rank are a few pieces of the sequence. A call of the kernel takes one piece as its queries, at its position, and the keys at
theirs; so any variant works whose formulas do not read Sq or q_offset. torch.distributed moves the bytes, from rank to rank."""

import functools
import json
import re
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import torch
import torch.distributed as dist

from . import _compiler, _torch

Interval = Tuple[int, int]  # positions: the first, and the one behind the last

ORDERS = "contiguous", "zigzag"
LEAST_BYTES = 16 << 20  # of keys and values that travel at a time


def _cuts(S: int, n: int) -> List[Interval]:
    """As torch.chunk cuts: equal pieces, and what is left in the last ones."""
    step = -(-S // n)
    return [(min(i * step, S), min((i + 1) * step, S)) for i in range(n)]


class Spread:
    """Which positions of a sequence of S each rank of a group holds. Making one is collective.

    mesh: a DeviceMesh of one dimension, a process group, or None: the default group.
    order: "contiguous" (cut as torch.chunk does) or "zigzag" (2n pieces, a rank has one from the front and one from the end: causal masks
    are balanced). lengths: of a contiguous order, how many rows each rank has; they may be 0."""

    def __init__(self, mesh: Any, S: int, order: str = "contiguous", lengths: Optional[Sequence[int]] = None) -> None:
        self.group = mesh.get_group() if hasattr(mesh, "get_group") else mesh
        self.rank, self.ranks, self.S, self.order = dist.get_rank(self.group), dist.get_world_size(self.group), int(S), order
        self._known: set = set()
        self.agree(("Spread", self.S, order, None if lengths is None else tuple(lengths)), self._wrong(lengths))
        if lengths is not None:
            ends = [sum(lengths[: i + 1]) for i in range(self.ranks)]
            self.pieces = [[(end - n, end)] for end, n in zip(ends, lengths)]
        elif order == "zigzag":
            cuts = _cuts(self.S, 2 * self.ranks)
            self.pieces = [[cuts[r], cuts[-1 - r]] for r in range(self.ranks)]
        else:
            self.pieces = [[cut] for cut in _cuts(self.S, self.ranks)]
        self.pieces = [[p for p in pieces if p[0] < p[1]] for pieces in self.pieces]

    def _wrong(self, lengths: Optional[Sequence[int]]) -> Optional[str]:
        if self.order not in ORDERS:
            return f"order: is {self.order!r}, not one of {', '.join(ORDERS)}"
        if lengths is not None and self.order != "contiguous":
            return f"lengths: an order {self.order!r} has its own"
        if lengths is not None and (len(lengths) != self.ranks or min(lengths, default=0) < 0 or sum(lengths) != self.S):
            return f"lengths: {list(lengths)} are no {self.ranks} numbers from 0 on whose sum is S = {self.S}"
        return None

    def __repr__(self) -> str:
        return f"<attn.Spread of {self.S} over {self.ranks}, {self.order}; rank {self.rank} has {self.pieces[self.rank]}>"

    @property
    def rows(self) -> int:
        """Of this rank."""
        return _length(self.pieces[self.rank])

    @property
    def positions(self) -> torch.Tensor:
        """i32: the position of each row of this rank, as RoPE wants them."""
        return torch.cat([torch.arange(a, b, dtype=torch.int32) for a, b in self.pieces[self.rank]] or [torch.zeros(0, dtype=torch.int32)])

    def shard(self, x: torch.Tensor, dim: int = 1) -> torch.Tensor:
        """This rank's rows of a whole tensor, which every rank has. The gradient is that of the whole, complete on every rank."""
        return _Shard.apply(x, dim % x.dim(), self)

    def unshard(self, x: torch.Tensor, dim: int = 1) -> torch.Tensor:
        """The whole tensor, on every rank. The gradient of a rank's rows is the sum of what the ranks give."""
        return _Unshard.apply(x, dim % x.dim(), self)

    def agree(self, call: Any, error: Optional[str]) -> None:
        """Where a call is new to this rank, ranks tell each other whether theirs is right and the same: all raise the same error, or none."""
        if self.ranks == 1 or (call in self._known and error is None):
            if error is not None:
                raise ValueError(error)
            return
        told: List[Any] = [None] * self.ranks
        dist.all_gather_object(told, (error, repr(call)), group=self.group)
        for rank, (wrong, _) in enumerate(told):
            if wrong is not None:
                raise ValueError(f"rank {rank}: {wrong}")
        for rank, (_, other) in enumerate(told):
            if other != told[0][1]:
                raise ValueError(f"rank {rank} calls {other}, and rank 0 {told[0][1]}")
        self._known.add(call)


def _length(intervals: Sequence[Interval]) -> int:
    return sum(b - a for a, b in intervals)


def _common(some: Sequence[Interval], others: Sequence[Interval]) -> List[Interval]:
    found = [(max(a, c), min(b, d)) for a, b in some for c, d in others]
    return sorted(i for i in found if i[0] < i[1])


def _merged(intervals: Sequence[Interval]) -> List[Interval]:
    found: List[Interval] = []
    for a, b in sorted(intervals):
        if found and a <= found[-1][1]:
            found[-1] = (found[-1][0], max(b, found[-1][1]))
        elif a < b:
            found.append((a, b))
    return found


def _places(intervals: Sequence[Interval], pieces: Sequence[Interval]) -> List[Interval]:
    """Where positions lie in a rank's rows, which are those of `pieces` one after the other."""
    found, before = [], 0
    for a, b in pieces:
        found += [(c - a + before, d - a + before) for c, d in _common(intervals, [(a, b)])]
        before += b - a
    return found


# ---- what travels


class _Travel:
    """Rows under way, several tensors to and from each rank: wait() brings them."""

    def __init__(self, group: Any, send: Dict[int, List[torch.Tensor]], into: Dict[int, List[torch.Tensor]]) -> None:
        self.into, self.keep = into, send
        peer = functools.partial(dist.distributed_c10d.get_global_rank, group or dist.group.WORLD)
        sends = [dist.P2POp(dist.isend, x, peer(r), group) for r, xs in sorted(send.items()) for x in xs if x.numel()]
        receives = [dist.P2POp(dist.irecv, x, peer(r), group) for r, xs in sorted(into.items()) for x in xs if x.numel()]
        self.works = dist.batch_isend_irecv(sends + receives) if sends or receives else []

    def wait(self) -> Dict[int, List[torch.Tensor]]:
        for work in self.works:
            work.wait()
        return self.into


def _packed(x: torch.Tensor, dim: int, intervals: Sequence[Interval]) -> torch.Tensor:
    return torch.cat([x.narrow(dim, a, b - a) for a, b in intervals] or [x.narrow(dim, 0, 0)], dim).contiguous()


def _unpack(rows: torch.Tensor, into: torch.Tensor, dim: int, intervals: Sequence[Interval], add: bool = False) -> None:
    before = 0
    for a, b in intervals:
        place, part = into.narrow(dim, a, b - a), rows.narrow(dim, before, b - a)
        place.add_(part) if add else place.copy_(part)
        before += b - a


def _sized(x: torch.Tensor, dim: int, n: int) -> List[int]:
    return [*x.shape[:dim], n, *x.shape[dim + 1 :]]


class _Gather:
    """Begins to bring this rank the rows of tensors at `needed[rank]`; whole() are tensors of all positions, 0 elsewhere."""

    def __init__(self, xs: Sequence[torch.Tensor], dim: int, spread: Spread, needed: Sequence[Sequence[Interval]]) -> None:
        self.xs, self.dim, self.spread, self.needed = xs, dim, spread, needed
        me, others = spread.rank, [r for r in range(spread.ranks) if r != spread.rank]
        send = {r: [_packed(x, dim, _places(needed[r], spread.pieces[me])) for x in xs] for r in others}
        sizes = {r: _length(_common(needed[me], spread.pieces[r])) for r in others}
        self.travel = _Travel(spread.group, send, {r: [x.new_empty(_sized(x, dim, n)) for x in xs] for r, n in sizes.items()})

    def whole(self) -> List[torch.Tensor]:
        spread, dim = self.spread, self.dim
        whole = [x.new_zeros(_sized(x, dim, spread.S)) for x in self.xs]
        for r, came in self.travel.wait().items():
            for rows, x in zip(came, whole):
                _unpack(rows, x, dim, _common(self.needed[spread.rank], spread.pieces[r]))
        for rows, x in zip(self.xs, whole):
            _unpack(rows, x, dim, spread.pieces[spread.rank])
        return whole


class _Home:
    """Begins to add up, for each rank, what all ranks have of its rows in tensors of all positions, which are 0 beyond needed[rank]: total()
    are this rank's rows in f32, added in the order of ranks."""

    def __init__(self, xs: Sequence[torch.Tensor], dim: int, spread: Spread, needed: Sequence[Sequence[Interval]]) -> None:
        self.dim, self.spread, self.needed = dim, spread, needed
        me, others = spread.rank, [r for r in range(spread.ranks) if r != spread.rank]
        self.mine = [_packed(x, dim, spread.pieces[me]) for x in xs]
        send = {r: [_packed(x, dim, _common(needed[me], spread.pieces[r])) for x in xs] for r in others}
        sizes = {r: _length(_common(needed[r], spread.pieces[me])) for r in others}
        self.travel = _Travel(spread.group, send, {r: [x.new_empty(_sized(x, dim, n)) for x in xs] for r, n in sizes.items()})

    def total(self) -> List[torch.Tensor]:
        spread, dim = self.spread, self.dim
        totals = [torch.zeros_like(x, dtype=torch.float32) for x in self.mine]
        came = {**self.travel.wait(), spread.rank: self.mine}
        for r in range(spread.ranks):
            places = [(0, spread.rows)] if r == spread.rank else _places(self.needed[r], spread.pieces[spread.rank])
            for rows, total in zip(came[r], totals):
                _unpack(rows, total, dim, places, add=True)
        return totals


def _everything(spread: Spread) -> List[List[Interval]]:
    return [[(0, spread.S)]] * spread.ranks


class _Shard(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, dim, spread):
        if x.shape[dim] != spread.S:
            raise ValueError(f"x: dimension {dim} is {x.shape[dim]}, and the spread is of {spread.S}")
        ctx.call = dim, spread
        return _packed(x, dim, spread.pieces[spread.rank])

    @staticmethod
    def backward(ctx, dx):
        dim, spread = ctx.call
        return _Gather([dx.contiguous()], dim, spread, _everything(spread)).whole()[0], None, None


class _Unshard(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, dim, spread):
        if x.shape[dim] != spread.rows:
            raise ValueError(f"x: dimension {dim} is {x.shape[dim]}, and this rank has {spread.rows} rows")
        ctx.call = dim, spread, x.dtype
        return _Gather([x.contiguous()], dim, spread, _everything(spread)).whole()[0]

    @staticmethod
    def backward(ctx, dx):
        dim, spread, dtype = ctx.call
        return _Home([dx.contiguous()], dim, spread, _everything(spread)).total()[0].to(dtype), None, None


# ---- what a variant reads


class _Reads(NamedTuple):
    extents: Dict[str, Tuple[str, ...]]  # of each array input
    unfit: Optional[str]  # why its kernel does not run on a piece
    heads: bool  # h or H: heads are not called apart
    data: bool  # the mask reads inputs, b or h


@functools.lru_cache(maxsize=None)
def _reads(spec: str) -> _Reads:
    rows, _ = _torch._rows(spec)
    rows = rows.split("\nstream ")[0]
    inputs = re.findall(r"^  input (\w+): \w+(?:\[([^\]\n]*)\])?", rows, re.M)
    extents = {name: tuple(e.strip() for e in listed.split(",")) for name, listed in inputs if listed}
    lines = [line for line in rows.split("\n")[1:] if not line.startswith("  input")]
    formulas = "\n".join(lines)
    mask = "".join(line for line in lines if line.startswith("  mask"))
    unfit = next((f"the formulas read {s}, which is not known of a piece" for s in ("Sq", "q_offset") if re.search(rf"\b{s}\b", formulas)), None)
    for name, listed in extents.items():
        if "Sq" in listed:
            unfit = f"{name}: has an extent Sq, of which a piece has a part only"
    data = bool(re.search(r"\bb\b|\bh\b|!?\[", mask)) or any(re.search(rf"\b{name}\b", mask) for name, _ in inputs)
    return _Reads(extents, unfit, bool(re.search(r"\bh\b|\bH\b", formulas + str(extents))), data)


@functools.lru_cache(maxsize=64)
def _rows_of_mask(spec: str, Sq: int, Sk: int, q_offset: int) -> Optional[Tuple[int, Tuple[Tuple[Interval, ...], ...]]]:
    """How many queries a row of tiles has, and which keys each visits; None: all, as far as is known."""
    given = json.loads(spec)
    source = _compiler.Source(given["text"], entry=given["entry"], defines=given["defines"], include=given["include"], name=given["name"])
    shape = f"--shape=B=1,H=1,Sq={Sq},Sk={Sk}"
    try:
        out, _ = source.run(["mask"], "--format=json", "-o", "-", shape, f"--in=q_offset={q_offset}")
    except _compiler.CompileError:  # more tiles than it draws
        return None
    found = json.loads(out)
    return found["tile"][0], tuple(tuple((a, b) for a, b in row) for row in found["needed"])


def needed(spec: str, spread: Spread, kv_spread: Spread, q_offset: int) -> List[List[Interval]]:
    """Of each rank, the positions of keys that its rows may see: by the tiles of the mask, where it reads no data."""
    tiles = None if _reads(spec).data else _rows_of_mask(spec, spread.S, kv_spread.S, q_offset)
    if tiles is None:
        return [[(0, kv_spread.S)] if _length(pieces) else [] for pieces in spread.pieces]
    rows, keys = tiles
    return [_merged([i for a, b in pieces for row in keys[a // rows : (b - 1) // rows + 1] for i in row]) for pieces in spread.pieces]


# ---- attention


class _Call(NamedTuple):
    spread: Spread
    kv_spread: Spread
    needed: List[List[Interval]]
    q_offset: int
    groups: int  # of heads of k and v, which travel one after the other
    along: List[Optional[int]]  # of each array input, the dimension that is spread as k is
    scalars: List[float]
    names: str
    spec: str

    def pieces(self) -> List[Tuple[int, Interval]]:
        """Of this rank: how many of its rows come before, and the positions."""
        own, before = self.spread.pieces[self.spread.rank], 0
        found = []
        for a, b in own:
            found.append((before, (a, b)))
            before += b - a
        return found

    def of_group(self, x: torch.Tensor, g: int) -> torch.Tensor:
        n = x.shape[1] // self.groups
        return x.narrow(1, g * n, n)

    def gathers(self, k: torch.Tensor, v: torch.Tensor) -> Any:
        """Whole keys and values of each group, of which the next one travels while one is in use."""

        def begin(g: int) -> _Gather:
            return _Gather([self.of_group(x, g) for x in (k, v)], 2, self.kv_spread, self.needed)

        coming = begin(0)
        for g in range(self.groups):
            here = coming
            if g + 1 < self.groups:
                coming = begin(g + 1)
            yield g, here.whole()

    def whole_inputs(self, arrays: Sequence[torch.Tensor]) -> List[torch.Tensor]:
        return [
            x if dim is None else _Gather([x.contiguous()], dim, self.kv_spread, _everything(self.kv_spread)).whole()[0]
            for x, dim in zip(arrays, self.along)
        ]

    def piece(self, x: torch.Tensor, before: int, at: Interval) -> torch.Tensor:
        return x.narrow(2, before, at[1] - at[0])


def _join(parts: List[List[torch.Tensor]], dim: int) -> List[torch.Tensor]:
    return [xs[0] if len(xs) == 1 else torch.cat(xs, dim) for xs in zip(*parts)]


def _forward(call: _Call, tensors: Sequence[torch.Tensor], run: Any) -> List[torch.Tensor]:
    q, k, v, *arrays = tensors
    arrays = call.whole_inputs(arrays)
    by_group = []
    for g, keys in call.gathers(k, v):
        rows = call.of_group(q, g)
        by_piece = [
            run([call.piece(rows, before, at), *keys, *arrays], call.scalars, call.names, call.spec, call.q_offset + at[0])
            for before, at in call.pieces()
        ]
        if not by_piece:  # a rank without queries takes part in what travels
            by_piece = [run([rows, *[x.narrow(2, 0, 0) for x in keys], *arrays], call.scalars, call.names, call.spec, 0)]
        by_group.append(_join(by_piece, 2))
    return _join(by_group, 1)


class _Attend(torch.autograd.Function):
    """Keys come to the queries, in the backward again; gradients of keys go home and are added up in f32, in the order of ranks."""

    @staticmethod
    def forward(ctx, call, count, *tensors):
        found = _forward(call, tensors, _torch._forward)
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
        found = _backward(call, tensors, kept, ",".join(n for n, _ in there), [d for _, d in there])
        return (None, None, *found)


def _backward(call: _Call, tensors: Sequence[torch.Tensor], kept: Sequence[torch.Tensor], which: str,
              come: Sequence[torch.Tensor]) -> List[Optional[torch.Tensor]]:  # fmt: skip
    q, k, v, *arrays = tensors
    names = call.names.split(",")[: len(tensors)]
    learned = list(_torch._learned(_torch._of_tensors(call.spec, tensors, call.names, "fwd,bwd"), tensors, call.names))
    whole = call.whole_inputs(arrays)
    dq, others = torch.zeros_like(q), {}
    homes: List[_Home] = []
    totals: List[List[torch.Tensor]] = []
    for g, gathered in call.gathers(k, v):
        sums: List[torch.Tensor] = []  # of the pieces, in f32
        for before, at in call.pieces():

            def own(x: torch.Tensor) -> torch.Tensor:
                return call.piece(call.of_group(x, g), before, at)

            given = [own(q), *gathered, *whole]
            made = _torch._backward(given, [own(x) for x in kept], [own(x) for x in come], which, call.scalars, call.names, call.spec, call.q_offset + at[0])
            found = dict(zip(learned, made))
            own(dq).copy_(found.pop("dq"))
            keys = [found.pop(name).float() for name in ("dk", "dv")]
            sums = [total.add_(x) for total, x in zip(sums, keys)] if sums else keys
            for name, x in found.items():
                others[name] = others[name] + x if name in others else x.float()
        sums = sums or [torch.zeros_like(x, dtype=torch.float32) for x in gathered]
        homes.append(_Home(sums, 2, call.kv_spread, call.needed))
        totals += [home.total() for home in homes[:-1]]  # while the last one travels
        del homes[:-1]
    totals += [home.total() for home in homes]
    dk, dv = _join(totals, 1)
    gradients: List[Optional[torch.Tensor]] = [dq, dk.to(k.dtype), dv.to(v.dtype)]
    for name, x, all_of_it, dim in zip(names[3:], arrays, whole, call.along):
        if "d" + name not in learned:
            gradients.append(None)
            continue
        own_share = others.get("d" + name, torch.zeros_like(all_of_it, dtype=torch.float32))
        if dim is not None:
            own_share = _Home([own_share], dim, call.kv_spread, _everything(call.kv_spread)).total()[0]
        gradients.append(own_share.to(x.dtype))
    return gradients


def _error(q: torch.Tensor, k: torch.Tensor, arrays: Dict[str, torch.Tensor], spread: Spread, kv_spread: Spread, whole: Sequence[str],
           reads: _Reads) -> Optional[str]:  # fmt: skip
    if reads.unfit:
        return f"{reads.unfit}: such a variant does not run on a spread sequence"
    for name, x, sp in (("q", q, spread), ("k", k, kv_spread)):
        if x.shape[2] != sp.rows:
            return f"{name}: has {x.shape[2]} rows, and the spread gives this rank {sp.rows}"
    for name in whole:
        if name not in arrays:
            return f"whole: {name} is no array of this call"
    for name, x in arrays.items():
        listed = reads.extents[name]
        if "Sk" in listed and listed.index("Sk") < x.dim():
            expected = kv_spread.S if name in whole else kv_spread.rows
            if x.shape[listed.index("Sk")] != expected:
                return f"{name}: dimension {listed.index('Sk')} is {x.shape[listed.index('Sk')]}, expected {expected}"
    return None


def _groups(k: torch.Tensor, v: torch.Tensor, wanted: Sequence[Sequence[Interval]]) -> int:
    """How many groups of heads: as many as have LEAST_BYTES each, on the rank that gets most. The same on all ranks."""
    row = k.shape[0] * k.shape[1] * (k.shape[3] + v.shape[3]) * k.element_size()
    most = max(_length(intervals) for intervals in wanted) * row // LEAST_BYTES
    return max(n for n in range(1, k.shape[1] + 1) if k.shape[1] % n == 0 and n <= max(most, 1))


def attend(spec: str, given: Dict[str, torch.Tensor], scalars: Dict[str, float], q_offset: Optional[int], wants: bool,
           spread: Spread, kv_spread: Optional[Spread], whole: Sequence[str]) -> List[torch.Tensor]:  # fmt: skip
    """What _torch's operators give, of this rank's rows. `given`: q, k, v and the arrays."""
    if "v" not in given:
        raise TypeError("v: is in k, and such a variant does not run on a spread sequence")
    tensors, arrays = list(given.values()), {n: x for n, x in given.items() if n not in ("q", "k", "v")}
    kv_spread = kv_spread or spread
    reads = _reads(spec)
    q, k = tensors[:2]
    shapes = [tuple(x.shape[:2]) + tuple(x.shape[3:]) for x in tensors[:3]]
    signature = (spec, shapes.__repr__(), str(q.dtype), q.device.type, q_offset, tuple(scalars.items()), tuple(sorted(whole)), wants, kv_spread.S)
    spread.agree(signature, _error(q, k, arrays, spread, kv_spread, whole, reads))
    offset = kv_spread.S - spread.S if q_offset is None else q_offset
    along = [None if n in whole or "Sk" not in reads.extents[n] else reads.extents[n].index("Sk") for n in arrays]
    wanted = needed(spec, spread, kv_spread, offset)
    groups = 1 if reads.heads else _groups(tensors[1], tensors[2], wanted)
    call = _Call(spread, kv_spread, wanted, offset, groups, along, list(scalars.values()), ",".join([*given, *scalars]), spec)
    if not wants:
        return _forward(call, tensors, _torch._run)
    return list(_Attend.apply(call, _torch._count(spec), *tensors))
