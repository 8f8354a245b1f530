"""Artifacts and their variants as callables."""

import ctypes as c
import difflib
import functools
import operator
import os
import re
import reprlib
import tempfile
import threading
import weakref
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple, Union

from . import _arrays, _compiler, _show
from . import _runtime as rt

INDEX = ("q_start", "kv_start", "kv_len", "page_table", "q_offset", "state_index", "q_first", "kv_first", "Sq_all", "Sk_all")  # tensors that say where a layout's rows lie
_SAVED = re.compile(r"saved\d+")  # what the backward wants of the forward
MAX_CALLS = 256  # kept, of a kernel and a thread


def _integer(name, value):
    """A size: no rounding, and nothing that ctypes would cut to 64 bits."""
    try:
        n = operator.index(value)
    except TypeError:
        raise TypeError(f"{name}: is a size and takes an integer, not {reprlib.repr(value)}") from None
    if not -(2**63) <= n < 2**63:
        raise TypeError(f"{name}: {n} is out of range")
    return n


def _number(name, value):
    try:
        if not isinstance(value, (str, bytes, bytearray)):
            return float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # of whatever kind the value's library raises
        pass
    raise TypeError(f"{name}: is a scalar and takes a number, not {reprlib.repr(value)}")


class _Opened:
    """An artifact on one device."""

    def __init__(self, source, device):
        self.handle = c.c_void_p()
        where = rt.Device(*device)
        if isinstance(source, bytes):
            rt.check("attn_open", rt.lib.context, source, len(source), where, c.byref(self.handle))
        else:
            rt.check("attn_open_file", rt.lib.context, os.fsencode(source), where, c.byref(self.handle))
        if device[0] in (rt.NONE, rt.CPU):  # on a GPU launches may still be running: the code stays, as it does in other libraries
            weakref.finalize(self, rt.lib.attn_close, self.handle).atexit = False


class Artifact:
    """What attnc made: one or several variants. artifact["name"] is a Kernel."""

    def __init__(self, source, made_from=None, said=""):
        self._source, self._opened, self._lock = source, {}, threading.Lock()
        self.made_from, self.said = made_from, said
        plain = self._open((rt.NONE, 0))
        info = rt.ArtifactInfo()
        rt.lib.attn_get_info(plain.handle, c.byref(info))
        self.target: str = info.target.decode()
        self.dtype = rt.DTYPES[info.dtype]
        made = [Kernel(self, plain, i) for i in range(info.variants)]
        by = {(k.name, k.phase): k for k in made}
        self.kernels: List[Kernel] = []
        for k in made:
            k.backward = by.get((k.name, {"fwd": "bwd", "part": "part_bwd", "piece": "piece_bwd"}.get(k.phase, "")))
        for k in made:
            if k is by[next((k.name, phase) for phase in ("fwd", "part", "piece", "bwd") if (k.name, phase) in by)]:
                k.part, k.combine, k.piece = (by.get((k.name, phase)) for phase in ("part", "combine", "piece"))
                k.backward = k if k.phase == "bwd" else k.backward
                self.kernels.append(k)

    def _open(self, device):
        with self._lock:
            if device not in self._opened:
                if device[0] == rt.CPU and _compiler.is_object(self._source):
                    with _compiler.linked(self._source) as path:
                        self._opened[device] = _Opened(path, device)
                else:
                    self._opened[device] = _Opened(self._source, device)
            return self._opened[device]

    def __getitem__(self, name: str) -> "Kernel":
        for k in self.kernels:
            if k.name == name:
                return k
        raise KeyError(name)

    def __iter__(self) -> "Iterator[Kernel]":
        return iter(self.kernels)

    def _only(self):
        if len(self.kernels) != 1:
            names = ", ".join(k.name for k in self.kernels)
            raise TypeError(f"the artifact holds several variants: call one of artifact[...]: {names}")
        return self.kernels[0]

    def _with(self, phase, kernel):
        if kernel is None:
            raise TypeError(f'the artifact was compiled without {phase}: attn.compile(..., phase="{phase}") or several')
        return kernel

    def __call__(self, *args: Any, **named: Any) -> Any:
        kernel = self._only()
        return self._with("fwd", kernel if kernel.phase == "fwd" else None)(*args, **named)

    @property
    def part(self) -> "Kernel":
        return self._with("part", self._only().part)

    @property
    def combine(self) -> "Kernel":
        return self._with("part", self._only().combine)

    @property
    def piece(self) -> "Kernel":
        return self._with("piece", self._only().piece)

    @property
    def backward(self) -> "Kernel":
        return self._with("bwd", self._only().backward)

    def explain(self) -> _show.Explanation:
        return self._only().explain()

    def mask(self, **given: Any) -> _show.Mask:
        return self._only().mask(**given)

    def __repr__(self):
        return f"<attn.Artifact for {self.target}, {self.dtype}: {', '.join(k.name for k in self.kernels)}>"


class Kernel:
    """One variant. Positional arguments are q, k, v and the inputs, in the order of `inputs`; all may be named, and index tensors of a layout are.

    layout: "dense", "ragged" or "paged": the last two take tensors that say where the rows of each sequence lie (docs/serving.md).

    backward: of an artifact made with phase="fwd,bwd" the Kernel that makes dq, dk, dv and the gradients of `grad` inputs from do, the
    gradients of emits, o, and what the forward saves: its outputs saved0, saved1, .. [B, H, Sq], which are made if they are asked for.

    part, combine: of an artifact made with phase="part" (or "fwd,part") the Kernels that leave the state of a range of keys, and that
    make results of states; with phase="part,bwd" part.backward makes the gradients of such a range. Of a recurrence part makes the map of a range of positions, and there is
    no combine (docs/several-gpus.md).

    piece: of an artifact made with phase="piece" the Kernel whose rows are some of a whole sequence, and whose keys are all that these see."""

    def __init__(self, artifact, opened, number):
        v, t, s = rt.VariantInfo(), rt.TensorInfo(), rt.SizeInfo()
        rt.check("attn_get_variant", opened.handle, number, c.byref(v))
        self.artifact, self.name, self.D, self.Dv = artifact, v.name.decode(), v.D, v.Dv
        self._phase, self._made = v.phase, threading.local()
        self.backward: Optional[Kernel] = None
        self.part: Optional[Kernel] = None
        self.combine: Optional[Kernel] = None
        self.piece: Optional[Kernel] = None
        self.phase = ("fwd", "bwd", "part", "combine", "part_bwd", "piece", "piece_bwd")[v.phase]
        self.layout = "dense"
        self._tensors: Dict[str, Tuple[int, int, bool, bool]] = {}
        self.sizes: List[str] = []
        for i in range(v.tensors):
            rt.check("attn_get_tensor", opened.handle, number, i, c.byref(t))
            self.layout = {b"kv_start": "ragged", b"state_index": "ragged", b"page_table": "paged"}.get(t.role, self.layout)
            if t.role != b"work":
                self._tensors[t.name.decode()] = (t.dtype, t.rank, bool(t.output), bool(t.optional))
        for i in range(v.sizes):
            rt.check("attn_get_size", opened.handle, number, i, c.byref(s))
            if s.given:
                self.sizes.append(s.name.decode())
        self.inputs = [n for n, t in self._tensors.items() if not t[2]]
        self.outputs = [n for n, t in self._tensors.items() if t[2]]

    def __repr__(self):
        return f"<attn.Kernel {self.name}({', '.join(self.inputs)}) -> {', '.join(self.outputs)}>"

    def _ask(self, verb, *options):
        if self.artifact.made_from is None:
            raise TypeError(f"{self.name} was loaded, and an artifact does not hold its source: attn.compile it")
        return self.artifact.made_from.run([verb], *options, entry=self.name)

    def explain(self) -> _show.Explanation:
        """The formula and what was derived of it: text, in a notebook mathematics."""
        return _show.Explanation(self._ask("explain")[0], self._ask("explain", "--format=mathml")[0])

    def mask(self, at: Tuple[int, int] = (0, 0), **given: Any) -> _show.Mask:
        """The mask of a batch entry and head, with the tiles of the kernel's target: a picture in a notebook, and its counts as text.

        given: sizes (Sq=1000), and the inputs that the mask reads."""
        with tempfile.TemporaryDirectory(prefix="attn-") as folder:
            options = [f"--target={self.artifact.target}", f"--at={at[0]},{at[1]}", "-o", "-"]
            for name, value in given.items():
                if self._tensors.get(name, (0, 0))[1] and name != "q_offset":
                    options.append(f"--in={name}={_arrays.save(value, folder, name)}")
                elif name in self._tensors or name == "q_offset":
                    options.append(f"--in={name}={_number(name, value)!r}")
                else:
                    options.append(f"--shape={name}={_integer(name, value)}")
            return _show.Mask(*self._ask("mask", *options))

    def _sort(self, args, named):
        """Arguments by what they are: arrays, scalars, sizes; all by name."""
        index = INDEX if self.layout != "dense" else ()  # a dense variant may have an input of such a name
        places = [n for n in self.inputs if n not in index]
        if len(args) > len(places):
            shared = "" if "v" in self._tensors else f"; v: {self.name} shares v with k, it is not passed"
            named_only = "; by name: " + ", ".join(n for n in self.inputs if n in index) if len(places) < len(self.inputs) else ""
            raise TypeError(f"{self.name} takes {len(places)} inputs ({', '.join(places)}){named_only}{shared}")
        given = dict(zip(places, args))
        for name, value in named.items():
            if name in given:
                raise TypeError(f"{name}: given twice")
            given[name] = value
        arrays, scalars, sizes = {}, {}, {}
        for name, value in given.items():
            _arrays.refuse_grad(name, value)
            known = self._tensors.get(name)
            if known is not None and known[3] and value is None:
                continue
            if known is None and name in self.sizes:
                sizes[name] = _integer(name, value)
            elif known is None and name == "v":
                raise TypeError(f"v: {self.name} shares v with k, it is not passed")
            elif known is None and name in INDEX:
                raise TypeError(f"{name}: layout {self.layout} has no such tensor")
            elif known is None or known[2]:
                raise TypeError(f"{name}: {self.name} has no such input or size; an output is passed with out=" if known else self._unknown(name))
            elif known[1] == 0 and isinstance(value, bool) and known[0] != _arrays.BOOL:
                raise TypeError(f"{name}: is a scalar and takes a number, not {value}")
            elif known[1] == 0:
                scalars[name] = _number(name, value)
            else:
                arrays[name] = value
        if not arrays:
            raise TypeError(f"{self.name} takes {', '.join(self.inputs)}")
        return arrays, scalars, sizes

    def _unknown(self, name):
        known = [*self.inputs, *self.sizes]
        near = difflib.get_close_matches(name, known, 1)
        return f"{name}: {self.name} has no such input or size" + (f" (did you mean '{near[0]}'?)" if near else f"; it has {', '.join(known)}")

    def _wanted(self, emit, out):
        """The outputs to make, and those given."""
        emit = (emit,) if isinstance(emit, str) else emit
        if out is None or callable(out):
            out = {}
        elif not isinstance(out, dict):
            out = {self.outputs[0]: out}
        for name in [*emit, *out]:
            if name not in self.outputs:
                raise TypeError(f"{name}: {self.name} has no such output ({', '.join(n for n in self.outputs if not _SAVED.fullmatch(n))})")
        for name, x in out.items():
            _arrays.refuse_grad(name, x)
        always = [n for n in self.outputs if n not in emit and not self._tensors[n][3]]
        return [*always, *emit, *[n for n in out if n not in emit and n not in always]], out

    def __call__(self, *args: Any, emit: Union[str, Sequence[str]] = (), out: Any = None, stream: Optional[int] = None,
                 tile_map: "Optional[TileMap]" = None, **named: Any) -> Any:  # fmt: skip
        """Launches, and returns the outputs: one, or a tuple of those that every call makes, in the order of `outputs`, and then `emit`.

        emit: optional outputs to write too, a name or several, in the order in which they are returned. out: arrays to write into (one for
        the first output, or a dict; an optional one that `emit` does not name comes last), or a function of the shapes, by name, that gives such a dict.
        stream: a raw stream; by default the current one of q's library. tile_map: a TileMap. The call returns when the launch is queued (on the
        CPU: done). A CUDA graph that holds the call needs this kernel as long as it is replayed: its code goes with it.
        RuntimeError where a tensor of PyTorch requires grad and gradients are enabled, and under torch.jit.trace: attn.Attention is for both."""
        arrays, scalars, sizes = self._sort(args, named)
        room = out if callable(out) else None
        wanted, out = self._wanted(emit, out)
        if tile_map is not None and not isinstance(tile_map, TileMap):
            raise TypeError(f"tile_map takes an attn.TileMap, not {reprlib.repr(tile_map)}")
        like = next(iter(arrays.values()))
        _arrays.refuse_trace(like)
        stream = _arrays.current_stream(like) if stream is None else stream
        views = {n: _arrays.view(x, n, stream, self._tensors[n][0]) for n, x in arrays.items()}
        opened = self.artifact._open(next(iter(views.values())).device)
        if room or any(n not in out for n in wanted):  # whose shapes hang on those of the inputs
            given = self._call(opened, views, scalars, sizes)
            out = room({n: given.shape(n) for n in wanted}) if room else out
        results = {n: out[n] if n in out else _arrays.empty(like, self._tensors[n][0], given.shape(n)) for n in wanted}
        for n, x in results.items():
            views[n] = _arrays.view(x, n, stream, self._tensors[n][0])
            if views[n].readonly:
                raise TypeError(f"{n}: the array given with out= is read-only")
        self._call(opened, views, scalars, sizes).launch(views, stream, like, tile_map)
        return results[wanted[0]] if len(wanted) == 1 else tuple(results[n] for n in wanted)

    def _call(self, opened, views, scalars, sizes):
        """The call with these shapes, made once: to fill in its structures takes longer than a launch. One per thread."""
        made = self._made.__dict__
        key = (opened, *scalars.items(), *sizes.items(), *[(n, v.signature) for n, v in views.items()])
        if key not in made:
            if len(made) >= MAX_CALLS:
                made.clear()
            made[key] = _Call(self, opened, views, scalars, sizes)
        return made[key]


class TileMap:
    """Keeps the map of tiles that kernels make first where the mask reads inputs (documents, block lists).

    The first call with kernel(..., tile_map=m) makes the map, later ones with the same sizes find it: as long as the inputs that
    the mask reads hold the same values. m.clear() when they have changed. Not for calls that may run at the same
    time. A CUDA graph that holds such a call needs the TileMap as long as it is replayed."""

    def __init__(self):
        self.clear()

    def clear(self) -> None:
        self._key = self._memory = self._address = None

    def _place(self, call, like):
        """Where the call's workspace is, and the call's flags."""
        if self._key == call.key:
            return self._address, rt.KEEP_MAP
        self.clear()
        if call.workspace_bytes:
            self._memory, self._address = _arrays.scratch(like, call.workspace_bytes)
        return self._address, 0


class _Call:
    """An attn_call, and what it points to: all but addresses and stream."""

    def __init__(self, kernel, opened, views, scalars, sizes):
        self.opened, self.shapes = opened, {}
        for n, v in views.items():
            self._element(n, v, rt.DTYPES[kernel._tensors[n][0]])
            self._columns(n, v, kernel)
        inputs = [(n, v.shape) for n, v in views.items() if n in kernel.inputs]
        self.key = (opened, kernel.name, kernel.phase, *scalars.items(), *sizes.items(), *inputs)
        self.c = rt.Call(variant=kernel.name.encode(), phase=kernel._phase)
        self.tensors = (rt.Tensor * len(views))(*[self._tensor(n, v) for n, v in views.items()])
        self.scalars = (rt.Scalar * len(scalars))(*[rt.Scalar(n.encode(), v) for n, v in scalars.items()])
        self.sizes = (rt.Size * len(sizes))(*[rt.Size(n.encode(), v) for n, v in sizes.items()])
        self.c.tensors, self.c.ntensors = self.tensors, len(views)
        self.c.scalars, self.c.nscalars = self.scalars, len(scalars)
        self.c.sizes, self.c.nsizes = self.sizes, len(sizes)

    @staticmethod
    def _element(name, v, expected):
        """The runtime looks at element types too, but what to do about bf16 depends on where the array is from."""
        if rt.DTYPES[v.dtype] == expected:
            return
        said = f"{name}: has elements of type {rt.DTYPES[v.dtype]}, expected {expected}"
        if expected == "bf16" and _arrays.is_numpy(v.keep):
            other = 'compile with dtype="f32"' if name in ("q", "k", "v", "o") else "declare this input f32"
            said += f", which NumPy does not have: pass arrays of ml_dtypes.bfloat16 or tensors of PyTorch, or {other}"
        elif name in ("q", "k", "v", "o") and rt.DTYPES[v.dtype] in _compiler._DTYPES and expected in _compiler._DTYPES:
            said += f': attn.compile(..., dtype="{rt.DTYPES[v.dtype]}") takes these'
        raise rt.ElementError(said, rt.ERROR_CALL)

    @staticmethod
    def _columns(name, v, kernel):
        """The runtime looks at these too, and knows nothing of attn.compile."""
        dim = {"q": "D", "k": "D", "v": "Dv"}.get(name)
        if dim is None or len(v.shape) != kernel._tensors[name][1] or v.shape[-1] == getattr(kernel, dim):
            return
        n = v.shape[-1]
        said = f"{name}: dimension {len(v.shape) - 1} is {n}, expected {dim} = {getattr(kernel, dim)}"
        how = f'defines={{"{dim}": {n}}}'
        raise rt.CallError(f"{said}: attn.compile(..., {how}) takes these (attnc: -D{dim}={n})", rt.ERROR_CALL)

    @staticmethod
    def _tensor(name, v):
        numbers = c.c_int64 * max(len(v.shape), 1)
        strides = None if v.strides is None else numbers(*v.strides)
        return rt.Tensor(name.encode(), v.address, v.dtype, len(v.shape), numbers(*v.shape), strides, rt.Device(*v.device))

    def shape(self, name):
        if name not in self.shapes:
            shape, rank = (c.c_int64 * rt.MAX_RANK)(), c.c_int()
            rt.check("attn_shape", self.opened.handle, c.byref(self.c), name.encode(), shape, c.byref(rank))
            self.shapes[name] = tuple(shape[: rank.value])
        return self.shapes[name]

    @functools.cached_property
    def workspace_bytes(self):
        n = c.c_size_t()
        rt.check("attn_workspace_bytes", self.opened.handle, c.byref(self.c), c.byref(n))
        return n.value

    def launch(self, views, stream, like, tile_map=None):
        for to, v in zip(self.tensors, views.values()):
            to.data = v.address
        keeper = TileMap() if tile_map is None else tile_map
        self.c.workspace, self.c.flags = keeper._place(self, like)
        self.c.workspace_bytes, self.c.stream = self.workspace_bytes, stream
        rt.check("attn_launch", self.opened.handle, c.byref(self.c))
        keeper._key = self.key
        del keeper  # its memory: the library's allocator reuses it on this stream only, so after the launch


def load(source: "Union[str, bytes, os.PathLike[str]]") -> Artifact:
    """An artifact: the path of a .ptx, .hsaco, .o or .so, or the bytes of one."""
    return Artifact(source if isinstance(source, bytes) else os.fspath(source))
