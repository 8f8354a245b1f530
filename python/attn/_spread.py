"""A sequence spread over ranks of torch.distributed: which positions each rank holds, and how rows travel between ranks.

    sp = attn.Spread(mesh["cp"], S, order="zigzag")    # once a batch, for all layers
    x = sp.shard(x, dim=1)                             # this rank's rows; unshard is the reverse; both have gradients
    o = attn.Attention("gemma.attn")(q, k, v, spread=sp, sink=sink)

The rows of a rank are a few pieces of the sequence. What travels is told by a _Move: which part of a tensor goes to each rank, and where the
parts that come belong. Its reverse is its derivative. _ranks.py does attention with it."""

import contextlib
import copy
import datetime
import hashlib
import json
import math
import re
import weakref
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple, Union

import torch
import torch.distributed as dist

Interval = Tuple[int, int]  # positions: the first, and the one behind the last

ORDERS = "contiguous", "zigzag", "striped", "striped:N", "replicated"


# ---- numbers of objects, by which graphs of torch.compile know them (_graph.py)

_numbers: Dict[Any, int] = {}
_numbered: "weakref.WeakValueDictionary[int, Any]" = weakref.WeakValueDictionary()


def numbered(x: Any, content: Any) -> int:
    """The number of what has this content (hashable), by which x is now found, as long as it lives."""
    n = _numbers.setdefault(content, len(_numbers) + 1)
    _numbered[n] = x
    return n


def found(n: int, name: str) -> Any:
    """0: there is none."""
    x = _numbered.get(n)
    if n and x is None:
        raise RuntimeError(f"{name}: the one that this graph was made for is gone")
    return x


def _cuts(S: int, n: int) -> List[Interval]:
    """As torch.chunk cuts: equal pieces, and what is left in the last ones."""
    step = -(-S // n)
    return [(min(i * step, S), min((i + 1) * step, S)) for i in range(n)]


def _length(intervals: Sequence[Interval]) -> int:
    return sum(b - a for a, b in intervals)


def _common(some: Sequence[Interval], others: Sequence[Interval]) -> List[Interval]:
    """In ascending order; each side holds a position once."""
    some, others = sorted(some), sorted(others)
    found, i, j = [], 0, 0
    while i < len(some) and j < len(others):
        a, b = max(some[i][0], others[j][0]), min(some[i][1], others[j][1])
        if a < b:
            found.append((a, b))
        if some[i][1] < others[j][1]:
            i += 1
        else:
            j += 1
    return found


def _merged(intervals: Sequence[Interval]) -> List[Interval]:
    found: List[Interval] = []
    for a, b in sorted(intervals):
        if found and a <= found[-1][1]:
            found[-1] = (found[-1][0], max(b, found[-1][1]))
        elif a < b:
            found.append((a, b))
    return found


def _gaps(intervals: Sequence[Interval], size: int) -> List[Interval]:
    """The rest of 0 to size, of merged ones."""
    ends = [0, *[at for i in intervals for at in i], size]
    return [(a, b) for a, b in zip(ends[::2], ends[1::2]) if a < b]


def _places(intervals: Sequence[Interval], pieces: Sequence[Interval]) -> List[Interval]:
    """Where positions lie in rows that are those of `pieces` one after the other; in the order of positions."""
    found, before = [], 0
    for a, b in pieces:
        found += [(c, c - a + before, d - a + before) for c, d in _common(intervals, [(a, b)])]
        before += b - a
    places: List[Interval] = []
    for _, a, b in sorted(found):
        if places and places[-1][1] == a:
            a = places.pop()[0]
        places.append((a, b))
    return places


# ---- what ranks tell each other on the host


_ERRORS = {"TypeError": TypeError, "ValueError": ValueError, "Exception": RuntimeError}


class _Board:
    """Where the ranks of a group compare calls that are new, and tell their errors: keys of the store of torch.distributed. Every wait ends after
    the group's timeout. A group has one, so that each rank counts the same calls, and knows when its keys have been read."""

    boards: "Dict[Tuple[str, ...], _Board]" = {}
    made: Dict[str, int] = {}
    KNOWN = 4096  # calls, and all are forgotten

    def __init__(self, groups: Sequence[Any], ranks: List[int], store: Any) -> None:
        self.ranks, self.me, self.base = ranks, ranks.index(dist.get_rank()), store
        self.known: set = set()
        self.met: set = set()  # groups that NCCL has connected
        self.calls = 0  # the same on all ranks, and part of the keys
        self.written: List[str] = []
        self.raised: Optional[BaseException] = None  # what other ranks told
        name = "attn/" + ".".join(map(str, ranks))
        self.made[name] = self.made.get(name, 0) + 1
        self.store = dist.PrefixStore(f"{name}/{self.made[name]}", store)
        self.limit = _timeout(groups[-1]) or store.timeout

    @classmethod
    def of(cls, groups: Sequence[Any]) -> "_Board":
        c10d = dist.distributed_c10d
        store = c10d._get_default_store()
        names = getattr(c10d, "_pg_names", None) or c10d._world.pg_names
        key = tuple(str(names[g or c10d._get_default_group()]) for g in groups)
        if key not in cls.boards or cls.boards[key].base is not store:  # the groups of an earlier init_process_group are gone
            ranks = [_global(groups[-1], r) for r in range(dist.get_world_size(groups[-1]))]
            if len(groups) == 2:
                rows: List[Any] = [None] * dist.get_world_size(groups[0])
                dist.all_gather_object(rows, ranks, group=groups[0])
                ranks = [r for row in rows for r in row]
            cls.boards[key] = cls(groups, ranks, store)
        return cls.boards[key]

    def agree(self, call: Sequence[Tuple[str, Any]], always: bool) -> None:
        """Where a call, named values, is new to this rank: all ranks make the same one, or each raises the same error."""
        call = tuple((name, str(value)) for name, value in call)
        self.calls += 1
        if len(self.ranks) == 1 or (call in self.known and not always):
            return
        key = f"call/{self.calls}/{self.me}"
        self.written.append(key)
        named = [list(pair) for pair in call]
        self.store.set(key, json.dumps(named))
        told = [named if r == self.me else self._wait(r) for r in range(len(self.ranks))]
        for r, other in enumerate(told):
            if isinstance(other, dict):
                self._raise(_ERRORS[other["error"]](other["text"]))
            if other != told[0]:
                here, there = dict(other), dict(told[0])
                name = next((n for n in here if here[n] != there.get(n)), "call")
                self._raise(ValueError(f"rank {r}: {name}: is {_short(here.get(name, here))}, and {_short(there.get(name, there))} of rank 0"))
        if len(self.known) == self.KNOWN:
            self.known.clear()
        self.known.add(call)
        for old in self.written[:-1]:  # all ranks are here: they have read these
            with contextlib.suppress(RuntimeError):
                self.store.delete_key(old)
        del self.written[:-1]

    def _wait(self, rank: int) -> Any:
        key, limit = f"call/{self.calls}/{rank}", self.limit.total_seconds()
        for left in range(math.ceil(limit), 0, -5):  # others of this process want the store, too
            with contextlib.suppress(RuntimeError):
                self.store.wait([key], datetime.timedelta(seconds=min(left, 5)))
                return json.loads(self.store.get(key))
        self._raise(RuntimeError(f"rank {rank}: did not make this call within {limit:g} s, or took it for one it knows"))

    def _raise(self, error: BaseException) -> None:
        self.raised = error
        raise error

    @contextlib.contextmanager
    def told(self) -> Iterator[None]:
        """An error of this rank is told to the others before it is raised."""
        before = self.calls
        try:
            yield
        except Exception as e:
            if e is self.raised or len(self.ranks) == 1:
                raise
            self.calls = before + 1
            kind = next(k for k in (TypeError, ValueError, Exception) if isinstance(e, k)).__name__
            text = f"rank {self.me}: {e}"
            at = f"{self.calls}/{self.me}"
            late = f"call/{at}" in self.written  # others may be comparing this call still, and must find the same as this rank
            self.written.append(f"late/{at}" if late else f"call/{at}")
            with contextlib.suppress(RuntimeError):  # a store that is gone
                self.store.set(self.written[-1], json.dumps({"error": kind, "text": text}))
                self.store.add(f"error/{at}", 2 if late else 1)
            raise _ERRORS[kind](text) from e

    def explain(self, error: RuntimeError, peers: Sequence[int]) -> None:
        """Why nothing traveled from and to these processes: the error that a rank told, where there is one."""
        told: Any = {}
        with contextlib.suppress(RuntimeError):  # the process that has the store may be gone
            for call in self.calls, self.calls + 1:  # in a backward others may be on
                for r in range(len(self.ranks)):
                    errors = 0 if told else self.store.add(f"error/{call}/{r}", 0)
                    if errors:
                        told = json.loads(self.store.get(f"{'call' if errors == 1 else 'late'}/{call}/{r}"))
        if told:
            self._raise(_ERRORS[told["error"]](told["text"]))
        names = ", ".join(str(self.ranks.index(p)) for p in sorted(set(peers)))
        self._raise(RuntimeError(f"rank {names}: nothing travels between it and rank {self.me}: {error}"))


def _short(text: Any) -> str:
    return str(text) if len(str(text)) <= 200 else f"{str(text)[:200]} ..."


def _groups_of(mesh: Any) -> List[Any]:
    """Of a mesh, a group, a pair of groups."""
    if not dist.is_available() or not dist.is_initialized():
        raise RuntimeError("mesh: this process is no rank yet: call torch.distributed.init_process_group first (torchrun starts a process for each rank)")
    if isinstance(mesh, (tuple, list)):
        groups = list(mesh)
    elif hasattr(mesh, "get_group"):
        groups = [mesh.get_group(d) for d in range(mesh.ndim)]
    else:
        groups = [mesh]
    if len(groups) not in (1, 2):
        raise ValueError(f"mesh: has {len(groups)} dimensions, and a sequence is spread over one or two")
    if any(g is not None and not hasattr(g, "size") for g in groups):
        raise TypeError(f"mesh: a DeviceMesh, a process group, a pair of groups or None is expected, not {mesh!r}")
    return groups


def size_of(mesh: Any) -> int:
    """How many ranks it has."""
    return math.prod(dist.get_world_size(g) for g in _groups_of(mesh))


def _pieces(S: int, n: int, order: Any, lengths: Optional[Sequence[int]]) -> List[List[Interval]]:
    """Of each rank."""
    if S < 0:
        raise ValueError(f"S: is {S}, less than 0")
    if lengths is not None and (len(lengths) != n or min(lengths, default=0) < 0 or sum(lengths) != S):
        raise ValueError(f"lengths: {list(lengths)} are no {n} numbers from 0 on whose sum is S = {S}")
    cuts = _cuts(S, n) if lengths is None else [(sum(lengths[:r]), sum(lengths[: r + 1])) for r in range(n)]
    if not isinstance(order, str):
        place = torch.as_tensor(order).reshape(-1).long().cpu()
        if not torch.equal(place.sort().values, torch.arange(S)):
            raise ValueError(f"order: is no permutation of {S} positions")
        return [_runs(place[a:b]) for a, b in cuts]
    if order == "contiguous":
        return [[c] if c[0] < c[1] else [] for c in cuts]
    if lengths is not None:
        raise ValueError(f"lengths: an order {order!r} has its own")
    if order == "replicated":
        return [[(0, S)]] * n
    if order == "zigzag":
        cuts = _cuts(S, 2 * n)
        return [_merged([cuts[r], cuts[-1 - r]]) for r in range(n)]
    striped = re.fullmatch(r"striped(?::([1-9]\d*))?", order)
    if not striped:
        raise ValueError(f"order: is {order!r}, neither one of {', '.join(ORDERS)} nor a permutation")
    block = int(striped[1] or 1)
    return [[(a, min(a + block, S)) for a in range(r * block, S, n * block)] for r in range(n)]


def _runs(positions: torch.Tensor) -> List[Interval]:
    """Consecutive positions as intervals, in their order."""
    if not len(positions):
        return []
    ends = [0, *(torch.nonzero(positions[1:] != positions[:-1] + 1).reshape(-1) + 1).tolist(), len(positions)]
    return [(int(positions[a]), int(positions[b - 1]) + 1) for a, b in zip(ends, ends[1:])]


def _timeout(group: Any) -> Optional[datetime.timedelta]:
    group = group or dist.group.WORLD
    for device in ("cuda", "cpu"):
        with contextlib.suppress(Exception):
            return (group._get_backend(torch.device(device)) if hasattr(group, "_get_backend") else group).options._timeout
    return None


# ---- what travels


class _Line:
    """S positions over the ranks of a group: of each rank the pieces that it holds, in the order of its rows."""

    def __init__(self, group: Any, rank: int, S: int, pieces: List[List[Interval]], board: _Board) -> None:
        self.group, self.rank, self.ranks, self.S, self.pieces, self.board = group, rank, len(pieces), S, pieces, board

    @property
    def rows(self) -> int:
        return _length(self.pieces[self.rank])

    def gather(self, dim: int, needed: Sequence[Sequence[Interval]]) -> "_Move":
        """Rows of a rank -> all positions, 0 where rank r does not need them by needed[r]. The reverse adds up a rank's rows."""
        cut = [_places(wanted, self.pieces[self.rank]) for wanted in needed]
        return _Move(self, dim, cut, self.rows, dim, [_common(needed[self.rank], p) for p in self.pieces], self.S)

    def whole(self, x: torch.Tensor, dim: int) -> torch.Tensor:
        """All positions, of this rank's rows, with a gradient."""
        return _Moved.apply([self.gather_all(dim)], x)[0]

    def gather_all(self, dim: int) -> "_Move":
        return self.gather(dim, [[(0, self.S)]] * self.ranks)

    def meet(self, x: torch.Tensor) -> None:
        """NCCL wants all ranks of a group in its first exchange, and some may have nothing to send."""
        if x.is_cuda and self.ranks > 1 and self.group not in self.board.met:
            dist.all_reduce(x.new_zeros(1), group=self.group)
            self.board.met.add(self.group)

    def explain(self, error: RuntimeError, peers: Sequence[int]) -> None:
        everyone = [_global(self.group, r) for r in peers]
        self.board.explain(error, everyone)

    @property
    def everywhere(self) -> bool:
        """Each of several ranks has all positions."""
        return self.ranks > 1 and all(p == [(0, self.S)] for p in self.pieces) and self.S > 0

    def part(self, dim: int) -> "_Move":
        """All positions, which every rank has of its own -> a rank's rows of each."""
        return _Move(self, dim, self.pieces, self.S, dim, [[(0, self.rows)]] * self.ranks, self.rows)

    def turn(self, heads: Sequence[Interval], of: int) -> "_Move":
        """[B, `of` heads, rows of a rank, ..] -> [B, the heads of a rank, all positions, ..]. The reverse adds up heads that several ranks have."""
        return _Move(self, 1, [[h] for h in heads], of, 2, self.pieces, self.S)


class _Message:
    """f32 tensors that each rank gives to all, in one message. A kernel writes this rank's where they travel from (`room`)."""

    def __init__(self, line: _Line, device: torch.device) -> None:
        self.line, self.device = line, device

    def room(self, shapes: Dict[str, Sequence[int]]) -> Dict[str, torch.Tensor]:
        """For this rank's tensors, by name. Kernels read 16 bytes at a time: rows of a state begin at such places, and each tensor."""
        wide = {n: [*s[:-1], -(-s[-1] // 4) * 4] if n == "state" else list(s) for n, s in shapes.items()}
        sizes = [-(-math.prod(s) // 4) * 4 for s in wide.values()]
        self.bytes = torch.empty((self.line.ranks, sum(sizes)), dtype=torch.float32, device=self.device)
        self.tensors = {}
        for (n, s), part in zip(wide.items(), self.bytes.split(sizes, 1)):
            self.tensors[n] = part[:, : math.prod(s)].view(self.line.ranks, *s)[..., : shapes[n][-1]]
        return {n: x[self.line.rank] for n, x in self.tensors.items()}

    def arrived(self) -> Dict[str, torch.Tensor]:
        """[ranks, ..]: those of all ranks, the same on each."""
        line, own = self.line, self.bytes[self.line.rank]
        try:
            if own.is_cuda and line.ranks > 1:
                dist.all_gather_into_tensor(self.bytes, own, group=line.group)
            elif line.ranks > 1:
                dist.all_gather(list(self.bytes), own, group=line.group)
        except RuntimeError as e:
            line.explain(e, [r for r in range(line.ranks) if r != line.rank])
        return self.tensors


class _Move(NamedTuple):
    """To rank r goes cut[r] of a tensor, along cut_dim. What comes from rank r goes to put[r] of the new tensor, along put_dim; the rest is 0.
    The sizes are those of these dimensions, of the tensor and of the new one."""

    line: _Line
    cut_dim: int
    cut: List[List[Interval]]
    cut_size: int
    put_dim: int
    put: List[List[Interval]]
    put_size: int

    def back(self) -> "_Move":
        return _Move(self.line, self.put_dim, self.put, self.put_size, self.cut_dim, self.cut, self.cut_size)

    def empty(self, x: torch.Tensor, size: int) -> torch.Tensor:
        """As the new tensor is, with this size along put_dim."""
        shape = list(x.shape)
        shape[self.cut_dim] = _length(self.cut[self.line.rank])
        shape[self.put_dim] = size
        return x.new_empty(shape)

    def begun(self, x: torch.Tensor) -> torch.Tensor:
        """The new tensor, 0 where nothing comes; where parts are added, nothing but this rank's."""
        new, first = self.empty(x, self.put_size), self.put
        if self.adds:
            new, first = torch.empty_like(new, dtype=torch.float32), [self.put[self.line.rank]]
        gaps = _gaps(_merged([i for intervals in first for i in intervals]), self.put_size)
        for a, b in gaps if len(gaps) <= 4 else [(0, self.put_size)]:
            new.narrow(self.put_dim, a, b - a).zero_()
        return new

    def lands(self, new: torch.Tensor, r: int) -> bool:
        """What rank r sends comes to its place in the new tensor."""
        return not self.adds and len(self.put[r]) == 1 and new.narrow(self.put_dim, self.put[r][0][0], _length(self.put[r])).is_contiguous()

    def into(self, x: torch.Tensor, r: int, new: Optional[torch.Tensor]) -> torch.Tensor:
        if new is not None and self.lands(new, r):
            return new.narrow(self.put_dim, self.put[r][0][0], _length(self.put[r]))
        return self.empty(x, _length(self.put[r]))

    def carry(self, x: torch.Tensor, new: torch.Tensor) -> None:
        """What a rank sends itself, from interval to interval."""
        before = 0
        for a, b in self.cut[self.line.rank]:
            at = 0
            for c, d in self.put[self.line.rank]:
                part, place = x.narrow(self.cut_dim, a, b - a), new.narrow(self.put_dim, c, d - c)
                if self.cut_dim != self.put_dim:
                    part, place = part.narrow(self.put_dim, at, d - c), place.narrow(self.cut_dim, before, b - a)
                else:  # both say where the same rows are
                    first, last = max(before, at), min(before + b - a, at + d - c)
                    n = max(last - first, 0)
                    part, place = (y.narrow(self.cut_dim, first - y0 if n else 0, n) for y, y0 in ((part, before), (place, at)))
                if part.numel():
                    place.copy_(part)
                at += d - c
            before += b - a

    @property
    def adds(self) -> bool:
        return sum(map(_length, self.put)) > _length(_merged([i for intervals in self.put for i in intervals]))


class _Travel:
    """Tensors under way by their moves, all at once: come() are the new ones."""

    def __init__(self, xs: Sequence[torch.Tensor], moves: Sequence[_Move], whole: bool = True) -> None:
        """whole: the new tensors are made; otherwise `arrived` gives what came."""
        self.xs, self.moves, self.line = xs, moves, moves[0].line
        group, me = self.line.group, self.line.rank
        others = [r for r in range(self.line.ranks) if r != me]
        self.keep = {r: [_packed(x, m.cut_dim, m.cut[r]).contiguous() for x, m in zip(xs, moves)] for r in others}
        self.new = [m.begun(x) for x, m in zip(xs, moves)] if whole else []
        self.into = {r: [m.into(x, r, self.new[i] if whole else None) for i, (x, m) in enumerate(zip(xs, moves))] for r in others}
        self.works: List[Tuple[int, Any]] = []
        sends = [(r, dist.isend, x) for r in others for x in self.keep[r] if x.numel()]
        receives = [(r, dist.irecv, x) for r in others for x in self.into[r] if x.numel()]
        asked = [dist.P2POp(what, x, _global(group, r), group) for r, what, x in sends + receives]
        try:
            self.line.meet(xs[0])
            works = dist.batch_isend_irecv(asked) if asked else []
        except RuntimeError as e:
            self.line.explain(e, [r for r, _, _ in sends + receives])
        peers = [[r] for r, _, _ in sends + receives] if len(works) == len(asked) else [others] * len(works)  # NCCL gives one for all
        self.works = list(zip(peers, works))

    def arrived(self) -> Dict[int, List[torch.Tensor]]:
        """What has come from each other rank, as it was sent."""
        for peers, work in self.works:
            try:
                work.wait()
            except RuntimeError as e:
                self.line.explain(e, peers)
        self.works = []
        return self.into

    def come(self) -> List[torch.Tensor]:
        self.arrived()
        found = []
        for i, (x, m, new) in enumerate(zip(self.xs, self.moves, self.new)):
            m.carry(x, new)
            for r in self.into:  # sums are in f32, of this rank's and then in the order of ranks
                if not m.lands(new, r):
                    _unpack(self.into[r][i], new, m.put_dim, m.put[r], m.adds)
            found.append(new.to(x.dtype))
        return found


def _global(group: Any, rank: int) -> int:
    return dist.distributed_c10d.get_global_rank(group or dist.group.WORLD, rank)


def _packed(x: torch.Tensor, dim: int, intervals: Sequence[Interval]) -> torch.Tensor:
    """A view where it is one interval."""
    parts = [x.narrow(dim, a, b - a) for a, b in intervals] or [x.narrow(dim, 0, 0)]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim)


def _unpack(rows: torch.Tensor, into: torch.Tensor, dim: int, intervals: Sequence[Interval], add: bool) -> None:
    before = 0
    for a, b in intervals:
        place, part = into.narrow(dim, a, b - a), rows.narrow(dim, before, b - a)
        place.add_(part) if add else place.copy_(part)
        before += b - a


class _Moved(torch.autograd.Function):
    @staticmethod
    def forward(ctx, moves, *xs):
        ctx.moves = moves
        return tuple(_Travel(xs, moves).come())

    @staticmethod
    def backward(ctx, *come):
        return (None, *_Travel(come, [m.back() for m in ctx.moves]).come())


def moved(xs: Sequence[torch.Tensor], moves: Sequence[_Move]) -> List[torch.Tensor]:
    """With gradients."""
    return list(_Moved.apply(list(moves), *xs))


class _Shard(torch.autograd.Function):
    """This rank's rows of a tensor that all ranks have; the gradient is that of the whole on every rank."""

    @staticmethod
    def forward(ctx, x, dim, spread):
        ctx.call = dim, spread
        return _packed(x, dim, spread.pieces[spread.rank]).clone(memory_format=torch.contiguous_format)

    @staticmethod
    def backward(ctx, dx):
        dim, spread = ctx.call
        return spread._whole(dx, dim), None, None


# ---- who holds what


class Spread:
    """Which positions of a sequence of S each rank holds. Making one is collective.

    mesh: a DeviceMesh of one dimension, a process group, or None: the default group. Keys then come to the queries, or heads are exchanged
    for positions, whichever takes less time. A DeviceMesh of two dimensions, or a pair of groups: heads over the second, inside of a node,
    keys over the first.
    order: "contiguous" (cut as torch.chunk does), "zigzag" (2n pieces, a rank has one from the front and one from the end: causal masks
    are balanced), "striped:N" (blocks of N rows in turn; "striped": 1), "replicated" (each rank has all: queries, where keys are spread), or a permutation [S] of integers: place t has position order[t].
    lengths: how many rows each rank has, of a contiguous order or a permutation; they may be 0. Each piece is a launch: few are faster.
    check: "new": ranks compare calls that they have not made before; "always": each call.
    buffer: bytes of keys and values that come to a rank at a time. Where two groups of heads of the whole length are more, they come from one
    rank after the other. None: as many as twice its own keys and values, and at least 512 MB.
    reduce_dtype: in which gradients of keys travel where a rank has added them up, in f32; None: as they are. torch.bfloat16 takes half the bytes, for one
    rounding more."""

    def __init__(self, mesh: Any, S: int, order: "Union[str, torch.Tensor, Sequence[int]]" = "contiguous", lengths: Optional[Sequence[int]] = None,
                 check: str = "new", buffer: Optional[int] = None, reduce_dtype: Optional[torch.dtype] = None) -> None:  # fmt: skip
        self.groups, self.lengths = _groups_of(mesh), lengths and list(lengths)
        self.S, self.board, self.always = int(S), _Board.of(self.groups), check == "always"
        self.buffer, self.reduce_dtype, self.grows = buffer, reduce_dtype, False
        self.rank, self.ranks = self.board.me, len(self.board.ranks)
        self.order = order if isinstance(order, str) else "a permutation"
        with self.board.told():
            if check not in ("new", "always"):
                raise ValueError(f"check: is {check!r}, neither 'new' nor 'always'")
            self.pieces = _pieces(self.S, self.ranks, order, lengths)
            told = order if isinstance(order, str) else "permutation " + hashlib.sha256(str(self.pieces).encode()).hexdigest()[:16]
            if reduce_dtype not in (None, torch.float32, torch.bfloat16, torch.float16):
                raise ValueError(f"reduce_dtype: is {reduce_dtype!r}, and gradients travel as torch.float32, torch.bfloat16 or torch.float16")
            self.told = f"{self.S} {told} {self.lengths} {buffer} {reduce_dtype}"
            self.board.agree([("S", self.S), ("order", told), ("lengths", self.lengths), ("check", check), ("buffer", buffer), ("reduce_dtype", reduce_dtype)], True)
        self._lines()

    def grown(self, S: int) -> "Spread":
        """The same order of S positions, where its name alone says who has which. Nothing is compared: ranks that grow one alike call with it at
        once, however often it grows. A rank that grows it otherwise is found by what travels, or not at all."""
        if self.lengths or self.order == "a permutation":
            raise ValueError("S: lengths and permutations are of one S: make another Spread")
        new = copy.copy(self)
        new.grows = True
        new.S, new.pieces, new.told = int(S), _pieces(int(S), self.ranks, self.order, None), f"grown {self.order} {self.buffer} {self.reduce_dtype}"
        new._lines()
        return new

    def _lines(self) -> None:
        groups, inner = self.groups, self.groups[-1]
        self.handle = numbered(self, (id(self.board), self.S, self.told, self.always))
        if len(groups) == 1:
            self.within = self.between = _Line(inner, self.rank, self.S, self.pieces, self.board)
        else:
            n = dist.get_world_size(inner)
            row, column = divmod(self.rank, n)
            unions = [_merged([i for p in self.pieces[r : r + n] for i in p]) for r in range(0, self.ranks, n)]
            own = [[i for piece in p for i in _places([piece], unions[row])] for p in self.pieces[row * n : row * n + n]]
            self.within = _Line(inner, column, _length(unions[row]), own, self.board)
            self.between = _Line(groups[0], row, self.S, [list(u) for u in unions], self.board)

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
        if x.shape[dim] != self.S:
            raise ValueError(f"x: dimension {dim} is {x.shape[dim]}, and the spread is of {self.S}")
        return _Shard.apply(x, dim % x.dim(), self)

    def unshard(self, x: torch.Tensor, dim: int = 1) -> torch.Tensor:
        """The whole tensor, on every rank. The gradient of a rank's rows is the sum of what the ranks give."""
        if x.shape[dim] != self.rows:
            raise ValueError(f"x: dimension {dim} is {x.shape[dim]}, and this rank has {self.rows} rows")
        return self._whole(x, dim % x.dim())

    def _whole(self, x: torch.Tensor, dim: int) -> torch.Tensor:
        if self.order == "replicated":
            return x
        for line in dict.fromkeys((self.within, self.between)):
            x = line.whole(x, dim)
        return x
