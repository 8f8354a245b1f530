"""Attentions as modules and functions of PyTorch: compiled for what the tensors are, kept on disk."""

import contextlib
import difflib
import functools
import hashlib
import json
import numbers
import os
import re
import tempfile
import warnings
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Optional, Sequence, Tuple, Union

import torch
from torch.autograd import forward_ad

from . import _arrays, _compiler
from . import _runtime as rt
from ._kernel import INDEX, Artifact, Kernel

if TYPE_CHECKING:
    from ._ranks import Plan
    from ._spread import Spread

Outputs = Union[torch.Tensor, Tuple[torch.Tensor, ...]]

_ELEMENTS = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}
_OPERANDS = {"q": "[B, H, Sq, D]", "k": "[B, Hkv, Sk, D]", "v": "[B, Hkv, Sk, Dv]"}
_PACKED = {"q": "[Tq, H, D]", "k": "[Tk, Hkv, D]", "v": "[Tk, Hkv, Dv]"}  # rows of sequences, one behind the other
_GPUS = "gfx90a", "gfx942", "gfx1100"


def _constant(function: Any) -> Any:
    """What torch.compile takes as a constant, and does not look into. torch.compiler.assume_constant_result does this, and imports the compiler for it: 3 s."""
    function._dynamo_marked_constant = True
    return function


# Whether torch.compile is at work.
_compiling = getattr(getattr(torch, "compiler", None), "is_compiling", lambda: False)
_functorch = getattr(getattr(torch._C, "_functorch", None), "is_functorch_wrapped_tensor", lambda x: False)


# ---- artifacts


def cache_folder() -> str:
    """Where artifacts are kept: ATTN_CACHE, or `attn` in the user's cache."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.environ.get("ATTN_CACHE") or os.path.join(home, "attn")


def _compiler_identity() -> str:
    path = _compiler._command()
    stat = os.stat(path)
    return f"{os.path.realpath(path)} {stat.st_size} {stat.st_mtime_ns}"


def _store(path: str, content: bytes) -> None:
    """Whole or not at all, whoever else writes it now. A cache that cannot be written is none."""
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        file, made = tempfile.mkstemp(dir=os.path.dirname(path))
        with os.fdopen(file, "wb") as f:
            f.write(content)
        os.replace(made, path)
    except OSError:
        pass


@contextlib.contextmanager
def _alone(path: str) -> Iterator[None]:
    """Of processes that want this file one makes it, while the others wait. What the compiler says against it, the lock tells them. Where files cannot be locked, each makes it."""
    lock, said = None, ""
    try:
        import fcntl

        os.makedirs(os.path.dirname(path), exist_ok=True)
        lock = open(path + ".lock", "a+", encoding="utf-8")  # noqa: SIM115
        fcntl.flock(lock, fcntl.LOCK_EX)
    except (ImportError, OSError):
        pass
    try:
        if lock:
            lock.seek(0)
            said = lock.read()
        if said:
            raise _compiler.CompileError(said)
        yield
    except _compiler.CompileError as e:
        if lock and not said:
            lock.write(str(e))
            lock.flush()
        raise
    finally:
        if lock:
            with contextlib.suppress(OSError):
                os.unlink(lock.name)  # those who wait have it open, and find what was made
            with contextlib.suppress(OSError):
                fcntl.flock(lock, fcntl.LOCK_UN)  # closing is not enough: a process that was forked meanwhile has it, too
            lock.close()


def _found(path: str, source: _compiler.Source) -> Optional[Artifact]:
    try:
        with open(path, "rb") as f:
            return Artifact(f.read(), source)
    except (OSError, rt.Error):  # there is none, or a damaged one
        return None


def _rows(spec: str, target: str = "host", elements: str = "f32", **dims: int) -> Tuple[str, _compiler.Source]:
    """The row program of a specification: what its source comes to, with all that it imports."""
    given = json.loads(spec)
    for name, size in dims.items():
        if given["defines"].get(name, size) != size:
            raise ValueError(f"{name}: defines= says {given['defines'][name]}, and the tensors have {size}: it comes from them, leave it out of defines=")
    defines = {**given["defines"], **dims}
    source = _compiler.Source(given["text"], dtype=elements, entry=given["entry"], defines=defines, include=given["include"], name=given["name"])
    rows, _ = source.run([], "--emit=row", f"--target={target}")
    kind = given["kind"]
    variants = len(re.findall(r"^row " if kind == "attention" else r"^recurrence ", rows, re.M))
    if variants != 1:
        other, takes = ("recurrence", "Recurrence") if kind == "attention" else ("row", "Attention")
        if not variants and re.search(rf"^{other} ", rows, re.M):
            raise ValueError(f"{given['name']} holds no {kind}: attn.{takes} is for what it holds")
        raise ValueError(f"{given['name']} holds " + (f"several {kind}s: name one with entry=" if variants else f"no {kind}"))
    return rows, source


@functools.lru_cache(maxsize=None)
def _kernel(spec: str, D: int, Dv: Optional[int], elements: str, target: str, phase: str = "fwd", layout: str = "dense") -> Kernel:
    """Dv: None where the source says it, because v is in k."""
    rows, source = _rows(spec, target, elements, D=D, **({} if Dv is None else {"Dv": Dv}))
    given = json.loads(spec)
    opt, deterministic = given["opt"], "bwd" in phase and bool(given.get("deterministic"))
    key = "\n".join((_compiler_identity(), target, elements, str(opt), phase + " in one order" * deterministic, layout, rows))
    path = os.path.join(cache_folder(), hashlib.sha256(key.encode()).hexdigest() + ".artifact")
    artifact = _found(path, source)
    if artifact is None:
        with _alone(path):
            artifact = _found(path, source)
            if artifact is None:
                artifact = _compiler.make(source, target, opt, phase=phase, layout=layout, deterministic=deterministic)
                _store(path, artifact._source)
    return artifact._only()


@functools.lru_cache(maxsize=None)
def _declarations(spec: str) -> str:
    """The row program, whose inputs are asked for in each call."""
    return _rows(spec)[0]


@functools.lru_cache(maxsize=None)
def _read_declared(spec: str) -> str:
    rows = _declarations(spec)
    name, shared = re.findall(r"^(?:row|recurrence) (\w+)[^\n]*?( v in k)?$", rows, re.M)[0]
    inputs = re.findall(r"^  input (\w+): \w+(\[?)[^\n]*?( grad)?(?: at bare [^\n]*)?$", rows, re.M)
    marked = [i + ("" if array else "=") + ("+" if grad else "") for i, array, grad in inputs]
    return " ".join([name, "q+", "k+", *([] if shared else ["v+"]), *marked])


@_constant
def _declared(spec: str) -> str:
    """The variant's name, and its operands and inputs, scalars and those with a gradient marked: "biased q+ k+ v+ bias cap= table+"."""
    return _read_declared(spec)


@_constant
def _in_f32(spec: str) -> str:
    """The arrays that the source has in f32, by their names."""
    return " ".join(re.findall(r"^  input (\w+): f32\[", _declarations(spec), re.M))


@_constant
def _bools(spec: str) -> str:
    """The scalars that are bools, by their names."""
    return " ".join(re.findall(r"^  input (\w+): bool\b(?!\[)", _declarations(spec), re.M))


@functools.lru_cache(maxsize=None)
def _asks_order(spec: str) -> Optional[bool]:
    asked: Optional[bool] = json.loads(spec).get("deterministic")
    return asked


def _wants_order(spec: str) -> bool:
    """`deterministic`, or PyTorch's flag, asks for equal bits in every run."""
    asked = _asks_order(spec)
    return torch.are_deterministic_algorithms_enabled() if asked is None else asked


@_constant
def _in_order(spec: str) -> str:
    """The specification of a call that wants gradients: where equal bits in every run are asked for, it says so."""
    asked = _asks_order(spec)
    if not _wants_order(spec):
        return spec
    given = json.loads(spec)
    if given["kind"] == "attention":
        return json.dumps({**given, "deterministic": True}, sort_keys=True)
    variant = _declared(spec).split(" ")[0]
    said = f"{variant}: gradients of a recurrence are added up in any order, and so differ in their last bits from run to run"
    if asked is None and torch.is_deterministic_algorithms_warn_only_enabled():
        warnings.warn(said, UserWarning, stacklevel=2)
        return spec
    by = "deterministic=True" if asked else "torch.use_deterministic_algorithms(True)"
    raise RuntimeError(f"{said}; {by} refuses this, and deterministic=False allows it")


@functools.lru_cache(maxsize=None)
def _target(device: torch.device) -> str:
    if device.type == "cpu":
        return "host"
    if device.type == "cuda" and torch.version.hip:
        name = torch.cuda.get_device_properties(device).gcnArchName.partition(":")[0]
        if name in _GPUS:
            return name
        raise RuntimeError(f"{name}: kernels are for {', '.join(_GPUS)}")
    if device.type == "cuda":
        capability = torch.cuda.get_device_capability(device)
        if capability >= (8, 0):
            return "sm_90a" if capability[0] == 9 else "sm_80"
        raise RuntimeError(f"{torch.cuda.get_device_name(device)}: kernels are for GPUs from sm_80 on")
    raise ValueError(f"q: is on {device.type}; kernels run on CPUs and on CUDA and ROCm devices")


# ---- the operators


def _launch(kernel: Kernel, made: Sequence[str], given: Dict[str, Any], out: Optional[Dict[str, torch.Tensor]] = None) -> List[torch.Tensor]:
    """The outputs `made`, in this order: all that the kernel always makes are among them."""
    found = kernel(emit=made, out=out or {}, **given)
    return list(found) if isinstance(found, tuple) else [found]


def _unit(x: torch.Tensor) -> int:
    """Rows begin at multiples of so many elements."""
    return 1 if x.is_cpu else 16 // x.element_size()


def _room(like: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """A new tensor whose rows begin where a kernel may find them: on GPUs at multiples of 16 bytes."""
    unit = _unit(like)
    wide = (shape[-1] + unit - 1) // unit * unit
    return like.new_empty((*shape[:-1], wide))[..., : shape[-1]] if wide != shape[-1] else like.new_empty(shape)


def _laid(x: torch.Tensor) -> bool:
    """Whether rows lie as a kernel wants them."""
    unit = _unit(x)
    return (x.shape[-1] <= 1 or x.stride(-1) == 1) and (unit == 1 or all(n <= 1 or s % unit == 0 for n, s in zip(x.shape[:-1], x.stride())))


def _placed(x: torch.Tensor) -> torch.Tensor:
    """x as it lies, or a copy where a kernel cannot take that."""
    x = x.resolve_neg()
    if _laid(x) and (x.is_cpu or x.data_ptr() % 16 == 0):
        return x
    return _room(x, x.shape).copy_(x)


def _with_rows(x: torch.Tensor) -> torch.Tensor:
    """An input as it lies, or a copy where the elements of a row are apart."""
    x = x.resolve_neg()
    return x if x.shape[-1] <= 1 or x.stride(-1) == 1 else x.contiguous()


def _for(x: torch.Tensor) -> torch.Tensor:
    """x, or where a kernel cannot write to it as it lies, a tensor to copy to x."""
    return x if _laid(x) else _room(x, x.shape).copy_(x)


def _is_packed(names: str) -> bool:
    return "q_start" in names.split(",")


def _given(tensors: Sequence[torch.Tensor], scalars: Sequence[float], names: str, size: Optional[int]) -> Dict[str, Any]:
    """size: q_offset, of packed rows max_q."""
    given: Dict[str, Any] = dict(zip(names.split(","), [*(float(x) if x.dim() == 0 else x for x in tensors), *scalars]))
    given.update((n, _placed(x) if n in _OPERANDS else _with_rows(x)) for n, x in given.items() if isinstance(x, torch.Tensor))
    if size is not None:
        given["max_q" if _is_packed(names) else "q_offset"] = size
    return given


def _of_tensors(spec: str, tensors: Sequence[torch.Tensor], names: str, phase: str = "fwd") -> Kernel:
    q, v = tensors[0], tensors[2].shape[-1] if names.startswith("q,k,v") else None
    layout = "ragged" if _is_packed(names) else "dense"
    return _kernel(spec, int(q.shape[-1]), None if v is None else int(v), _ELEMENTS[q.dtype], _target(q.device), phase, layout)


def _run(tensors: List[torch.Tensor], scalars: List[float], names: str, spec: str, size: Optional[int]) -> List[torch.Tensor]:
    kernel = _of_tensors(spec, tensors, names)
    return _attended(kernel, ["o", *_emits(spec)], tensors, scalars, names, size)


def _out(kernel: Kernel, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """A new o, [B, S, H, Dv] in memory where q is; of packed rows 0, which those stay that no sequence has."""
    q = tensors[0]
    if q.dim() == 3:
        return q.new_zeros((*q.shape[:2], kernel.Dv))
    (b, h, s), by_position = q.shape[:3], q.stride(1) < q.stride(2)
    return q.new_empty((b, s, h, kernel.Dv)).transpose(1, 2) if by_position else q.new_empty((b, h, s, kernel.Dv))


def _attended(kernel: Kernel, made: Sequence[str], tensors: Sequence[torch.Tensor], scalars: Sequence[float], names: str,
              size: Optional[int], o: Optional[torch.Tensor] = None) -> List[torch.Tensor]:  # fmt: skip
    """o: where it goes, of this shape; by default a new one."""
    o = _out(kernel, tensors) if o is None else o
    found = _launch(kernel, made, _given(tensors, scalars, names, size), {"o": _for(o)})
    return [o if found[0] is o else o.copy_(found[0]), *found[1:]]


def _rows_of(kernel: Kernel, tensors: Sequence[torch.Tensor], count: int) -> List[torch.Tensor]:
    """As o is, and as `count` numbers of each row are."""
    q = tensors[0]
    return [_out(kernel, tensors), *[q.new_empty(q.shape[:-1], dtype=torch.float32) for _ in range(count)]]


def _shapes(tensors: List[torch.Tensor], scalars: List[float], names: str, spec: str, size: Optional[int]) -> List[torch.Tensor]:
    return _rows_of(_of_tensors(spec, tensors, names), tensors, len(_emits(spec)))


@functools.lru_cache(maxsize=None)
def _emits(spec: str) -> Sequence[str]:
    return tuple(json.loads(spec)["emit"])


@_constant
def _count(spec: str) -> int:
    """Of the outputs that are given."""
    return 1 + len(_emits(spec))


def _back(kernel: Kernel) -> Kernel:
    assert kernel.backward is not None  # it was made with phase="fwd,bwd"
    return kernel.backward


def _kept(spec: str, kernel: Kernel) -> List[str]:
    """What the forward gives where there is a backward: o, the emits that are asked for, and the numbers of each row that the backward wants."""
    made = (kernel.combine or kernel).outputs
    saved = [n for n in _back(kernel).inputs if n in made]
    return list(dict.fromkeys(["o", *_emits(spec), *saved]))


def _learned(kernel: Kernel, tensors: Sequence[torch.Tensor], names: str) -> Dict[str, torch.Tensor]:
    """The operands that have a gradient, by its name."""
    return {"d" + n: x for n, x in zip(names.split(","), tensors) if "d" + n in _back(kernel).outputs}


def _forward(tensors: List[torch.Tensor], scalars: List[float], names: str, spec: str, size: Optional[int]) -> List[torch.Tensor]:
    kernel = _of_tensors(spec, tensors, names, "fwd,bwd")
    return _attended(kernel, _kept(spec, kernel), tensors, scalars, names, size)


def _forward_shapes(tensors: List[torch.Tensor], scalars: List[float], names: str, spec: str, size: Optional[int]) -> List[torch.Tensor]:
    kernel = _of_tensors(spec, tensors, names, "fwd,bwd")
    return _rows_of(kernel, tensors, len(_kept(spec, kernel)) - 1)


def _backward(tensors: List[torch.Tensor], kept: List[torch.Tensor], come: List[torch.Tensor], which: str, scalars: List[float],
              names: str, spec: str, size: Optional[int]) -> List[torch.Tensor]:  # fmt: skip
    kernel = _of_tensors(spec, tensors, names, "fwd,bwd")
    sizes = {} if size is None else {"max_q" if _is_packed(names) else "q_offset": size}
    return _gradients_by(kernel, tensors, kept, come, which, scalars, names, spec, sizes)


def _gradients_by(kernel: Kernel, tensors: Sequence[torch.Tensor], kept: Sequence[torch.Tensor], come: Sequence[torch.Tensor], which: str,
                  scalars: Sequence[float], names: str, spec: str, sizes: Dict[str, int],
                  into: Optional[Dict[str, torch.Tensor]] = None) -> List[torch.Tensor]:  # fmt: skip
    """The gradients that the kernel has, from those of the outputs `which`; those of the others are 0. into: where those of operands go; by default
    new tensors."""
    backward = _back(kernel)
    given = {**dict(zip(_kept(spec, kernel), [_placed(kept[0]), *kept[1:]])), **_given(tensors, scalars, names, None)}
    given.update(("d" + n, _placed(x) if n == "o" else x.contiguous()) for n, x in zip(which.split(","), come))
    if "do" not in given:
        given["do"] = torch.zeros_like(given["o"]) if _laid(kept[0]) else _room(kept[0], kept[0].shape).zero_()
    for name in backward.inputs:
        if name not in given and name not in INDEX:
            given[name] = given["o"].new_zeros(given["o"].shape[:-1], dtype=torch.float32)
    given = {**{n: x for n, x in given.items() if n in backward.inputs}, **sizes}
    learned = _learned(kernel, tensors, names)
    like = torch.zeros_like if _is_packed(names) else torch.empty_like  # with their operand's strides
    new = {n: into[n] if into and n in into else like(x) for n, x in learned.items() if n[1:] in _OPERANDS}
    found = dict(zip(learned, _launch(backward, list(learned), given, {n: _for(x) for n, x in new.items()})))
    found.update((n, x if found[n] is x else x.copy_(found[n])) for n, x in new.items())
    return [found[n].to(like.dtype).reshape(like.shape) for n, like in learned.items()]


def _backward_shapes(tensors: List[torch.Tensor], kept: List[torch.Tensor], come: List[torch.Tensor], which: str, scalars: List[float],
                     names: str, spec: str, size: Optional[int]) -> List[torch.Tensor]:  # fmt: skip
    learned = _learned(_of_tensors(spec, tensors, names, "fwd,bwd"), tensors, names)
    return [torch.empty_like(x) if n[1:] in _OPERANDS else x.new_empty(x.shape) for n, x in learned.items()]


def _keep(ctx, inputs, output) -> None:
    tensors, *ctx.call = inputs
    ctx.count = len(tensors)
    ctx.save_for_backward(*tensors, *output)
    ctx.set_materialize_grads(False)


def _gradients(ctx, come: Sequence[Optional[torch.Tensor]]) -> List[Optional[torch.Tensor]]:
    """By operand."""
    if torch.is_grad_enabled():  # create_graph=True
        raise RuntimeError("attention has first derivatives only")
    scalars, names, spec, size = ctx.call
    saved = ctx.saved_tensors  # looked at once: checkpoints compute them here
    tensors, kept = list(saved[: ctx.count]), list(saved[ctx.count :])
    there = [(n, d) for n, d in zip(["o", *_emits(spec)], come) if d is not None]
    learned = _learned(_of_tensors(spec, tensors, names, "fwd,bwd"), tensors, names)
    which = ",".join(n for n, _ in there)
    found = dict(zip(learned, _through(_backward_operator, tensors, kept, [d for _, d in there], which, scalars, names, spec, size)))
    return [found.get("d" + n) for n, _ in zip(names.split(","), tensors)]


class _Attend(torch.autograd.Function):
    """The forward, which saves numbers of each row, and the derived backward: where PyTorch has no operators that know theirs."""

    @staticmethod
    def forward(ctx, scalars, names, spec, size, *tensors):
        found = _forward(list(tensors), scalars, names, spec, size)
        _keep(ctx, (tensors, scalars, names, spec, size), found)
        ctx.mark_non_differentiable(*found[_count(spec) :])
        return tuple(found)

    @staticmethod
    def backward(ctx, *come):
        return (None, None, None, None, *_gradients(ctx, come))


def _list_gradients(ctx, come):
    return _gradients(ctx, come), None if ctx.call[0] else [], None, None, None


def _untraced(function):
    """What an operator is made of is not in a graph of torch.jit.trace: the operator is."""

    @functools.wraps(function)
    def run(*args, **named):
        state = torch._C._get_tracing_state()
        if state is None:
            return function(*args, **named)
        torch._C._set_tracing_state(None)
        try:
            return function(*args, **named)
        finally:
            torch._C._set_tracing_state(state)

    return run


def _operators(names, functions, shapes, gradients, keep):
    """What runs, the forward and the backward as operators, each one in graphs of torch.compile and torch.export; None before PyTorch 2.4.

    `shapes` are their fake kernels; `gradients` and `keep` the forward's backward and what it keeps for that."""
    if not hasattr(torch.library, "custom_op"):
        return None
    made = [torch.library.custom_op("attn::" + name, _untraced(function), mutates_args=()) for name, function in zip(names, functions)]
    for operator, fake in zip(made, shapes):
        operator.register_fake(fake)
    made[1].register_autograd(gradients, setup_context=keep)
    return made


_functions = _run, lambda tensors, *call: _Attend.apply(*call, *tensors), _backward
_operator, _forward_operator, _backward_operator = _operators(
    ["attention", "forward", "backward"],
    [_run, _forward, _backward],
    [_shapes, _forward_shapes, _backward_shapes],
    _list_gradients,
    _keep,
) or _functions
_function_of = dict(zip((_operator, _forward_operator, _backward_operator), _functions))

# Who sees operators: torch.jit.trace, modes, profilers.
_WATCHES = [getattr(torch._C, f, lambda: 0) for f in ("_get_tracing_state", "_len_torch_dispatch_stack", "_len_torch_function_stack")]
_WATCHES.append(getattr(torch.autograd, "_profiler_enabled", lambda: False))


def _through(operator: Any, tensors: List[torch.Tensor], *call: Any) -> List[torch.Tensor]:
    """The operator, or its function where nobody sees which: to dispatch an operator takes longer than a small kernel."""
    watched = _compiling() or any(f() for f in _WATCHES) or any(type(x) not in (torch.Tensor, torch.nn.Parameter) or x.is_meta for x in tensors)
    found: List[torch.Tensor] = (operator if watched else _function_of[operator])(tensors, *call)
    return found


# ---- arguments


def _check_operands(operands: Dict[str, Any], packed: bool) -> None:
    q, k, v = operands["q"], operands["k"], operands.get("v")
    shapes = _PACKED if packed else _OPERANDS
    for name, x in operands.items():
        if not isinstance(x, torch.Tensor):
            raise TypeError(f"{name}: takes a tensor of PyTorch, not a {type(x).__name__}")
        _arrays.refuse_layout(name, x)
        if x.dim() != (3 if packed else 4):
            hint = "; rows of sequences one behind the other go with q_start=" if x.dim() == 3 else ""
            raise ValueError(f"{name}: has {x.dim()} dimensions, expected {shapes[name]}{hint}")
        if x.dtype not in _ELEMENTS:
            raise TypeError(f"{name}: has elements of {x.dtype}; attention takes float32, float16 and bfloat16")
        if x.dtype != q.dtype:
            raise TypeError(f"{name}: has elements of {x.dtype}, and q of {q.dtype}")
        if x.device != q.device:
            raise ValueError(f"{name}: is on {x.device}, and q on {q.device}")
        if not packed and x.shape[0] != q.shape[0]:
            raise ValueError(f"{name}: has a batch of {x.shape[0]}, and q of {q.shape[0]}")
    if k.shape[-1] != q.shape[-1]:
        raise ValueError(f"k: has rows of {k.shape[-1]}, and q of {q.shape[-1]}")
    if v is not None and v.shape[:-1] != k.shape[:-1]:
        raise ValueError(f"v: is {list(v.shape)}, and k {list(k.shape)}: heads and keys are the same")
    if k.shape[1] == 0 or q.shape[1] % k.shape[1]:
        raise ValueError(f"k: has {k.shape[1]} heads, of which the {q.shape[1]} of q are no multiple")


def _wants_gradient(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.requires_grad and torch.is_grad_enabled()


def _check_gradient(name: str, x: Any, has: bool) -> None:
    """No gradient vanishes silently."""
    if not isinstance(x, torch.Tensor):
        return
    if _wants_gradient(x) and not has:
        raise RuntimeError(f"{name}: requires grad, and only q, k, v and inputs that the source marks `grad` have gradients: pass {name}.detach()")
    if not _compiling() and _functorch(x):
        raise RuntimeError(f"{name}: is of torch.func (vmap, grad, jvp, ..), which kernels do not know; torch.autograd takes first derivatives")
    if forward_ad._current_level >= 0 and forward_ad.unpack_dual(x).tangent is not None:
        raise RuntimeError(f"{name}: has a tangent, and kernels have no derivative in forward mode")


def _autocast(device: str) -> Optional[torch.dtype]:
    if hasattr(torch, "get_autocast_dtype"):  # PyTorch 2.4
        return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
    if device == "cpu":
        return torch.get_autocast_cpu_dtype() if torch.is_autocast_cpu_enabled() else None
    return torch.get_autocast_gpu_dtype() if torch.is_autocast_enabled() else None


def _cast(x: Any, device: str) -> Any:
    """As autocast does with operands of products."""
    if not isinstance(x, torch.Tensor) or x.dtype not in _ELEMENTS or x.device.type != device or device not in ("cpu", "cuda"):
        return x
    wanted = _autocast(device)
    return x if wanted is None else x.to(wanted)


_IMPORT = re.compile(r"\bimport\s+([\w.]+)")  # in a comment, too: a file too many does no harm


def _imported(text: str, folders: Sequence[str]) -> str:
    """A digest of the files that the text imports, and that these import: who changes one gets another specification. The library is the compiler's."""
    digest, seen, open_texts = hashlib.sha256(), set(), [(text, "")]
    while open_texts:
        text, own = open_texts.pop()
        for name in _IMPORT.findall(text):
            for folder in () if name.startswith("std.") else (own, *folders):
                path = os.path.join(folder, *name.split(".")) + ".attn"
                try:
                    with open(path, "rb") as f:
                        content = f.read()
                except OSError:
                    continue
                if path not in seen:
                    seen.add(path)
                    digest.update(b"%d %s " % (len(content), name.encode()) + content)
                    open_texts.append((content.decode(errors="replace"), os.path.dirname(path)))
                break
    return digest.hexdigest()[:16] if seen else ""


@_constant
def _specify(source: "Union[str, os.PathLike[str]]", entry: Optional[str], defines: Optional[Dict[str, Any]], include: Sequence[str],
             emit: Union[str, Sequence[str]], opt: int, deterministic: Optional[bool], kind: str = "attention") -> str:  # fmt: skip
    """All that a variant hangs on but the tensors, as a text: it goes with exported programs."""
    path, folders = os.fspath(source), [os.path.abspath(i) for i in _compiler.folders(include)]
    if "\n" in path or "{" in path:
        text, name = path, "source"
    else:
        _compiler.check_file(path)
        with open(path, encoding="utf-8") as f:
            text, name = f.read() + "\n", path
        folders.insert(0, os.path.dirname(os.path.abspath(path)))
    emit = [emit] if isinstance(emit, str) else list(emit)
    given = {"text": text, "name": name, "kind": kind, "entry": entry, "defines": _compiler.defined(defines), "include": folders, "emit": emit, "opt": opt,
             "deterministic": deterministic, "imported": _imported(text, folders)}  # fmt: skip
    return json.dumps(given, sort_keys=True)


def _sort(declared: Dict[str, bool], variant: str, listed: Sequence[Any], named: Dict[str, Any]) -> Dict[str, Any]:
    """Operands and inputs by name."""
    inputs = [n for n in declared if n not in _OPERANDS]
    if len(listed) > len(declared):
        raise TypeError(f"{variant} takes {len(inputs)} inputs ({', '.join(inputs)}), not {len(listed) - len(declared) + len(inputs)}")
    given = dict(zip(declared, listed))
    for name, x in named.items():
        if name == "emit" and name not in declared:
            raise TypeError(f"emit: goes to the constructor of the module, which is made once: emit={x!r} beside the source")
        if name not in declared:
            near = difflib.get_close_matches(name, inputs, 1)
            raise TypeError(f"{name}: {variant} has no such input" + (f" (did you mean '{near[0]}'?)" if near else f"; it has {', '.join(inputs) or 'none'}"))
        if name in given:
            raise TypeError(f"{name}: given twice")
        given[name] = x
    for name in declared:
        if name not in given:
            raise TypeError(f"{name}: {variant} needs this input")
    return given


def _starts(q: torch.Tensor, k: torch.Tensor, q_start: Any, kv_start: Any, q_offset: Any, spread: bool = False) -> Dict[str, torch.Tensor]:
    """The tensors that say where the rows of sequences lie. spread: they are read on the host, and may be there."""
    if kv_start is None and k.shape[0] != q.shape[0]:
        raise TypeError(f"kv_start: k has {k.shape[0]} rows and q {q.shape[0]}: where each sequence's keys begin is not known")
    index = {"q_start": q_start, "kv_start": q_start if kv_start is None else kv_start, "q_offset": q_offset}
    index = {n: x for n, x in index.items() if x is not None}
    for name, x in index.items():
        if not isinstance(x, torch.Tensor) or x.dim() != 1 or x.dtype not in (torch.int32, torch.int64):
            raise TypeError(f"{name}: takes a tensor of integers, {'one' if name == 'q_offset' else 'one more than there are'} of sequences")
        if x.device != q.device and not spread:
            raise ValueError(f"{name}: is on {x.device}, and q on {q.device}")
    return index if spread else {n: x.to(torch.int32) for n, x in index.items()}  # a plan knows the caller's tensors again


def _attend(spec: str, q: Any, k: Any, v: Any, inputs: Sequence[Any], named: Dict[str, Any], q_offset: Any,
            packed: Tuple[Any, Any, Optional[int]] = (None, None, None), **ranks: Any) -> Outputs:  # fmt: skip
    """packed: q_start, kv_start, max_q. ranks: spread, kv_spread, whole, method, plan."""
    for name, x in (("q_offset", None if packed[0] is not None else q_offset), ("max_q", packed[2])):
        if x is not None and not hasattr(x, "__index__"):  # of torch.compile, too, a size is what it was
            raise TypeError(f"{name}: takes an integer, not {x!r}")
    if any(x is not None for x in packed):
        if packed[0] is None:
            raise TypeError(f"{'kv_start' if packed[1] is not None else 'max_q'}: goes with q_start=")
        if hasattr(q, "placements"):
            raise TypeError("q: is a DTensor, and sequences one behind the other (q_start) take plain tensors, with spread=")
        if ranks.get("spread") is None and any(ranks.values()):
            raise TypeError(f"{', '.join(n for n, x in ranks.items() if x)}: goes with spread=")
        if ranks.get("spread") is not None:
            return _attend_packed(spec, q, k, v, inputs, named, q_offset, packed, **ranks)
        spec, arrays, scalars, wants = _prepared(spec, q, k, v, inputs, named, True)
        arrays.update(_starts(q, k, packed[0], packed[1], q_offset))
        return _called(spec, arrays, scalars, wants, packed[2])
    if hasattr(q, "placements"):
        try:
            from . import _dtensor
        except ImportError:
            raise TypeError(f"q: is a DTensor, and PyTorch {torch.__version__} has no torch.distributed.tensor: it comes with 2.5") from None

        variant, *listed = _declared(spec).split(" ")
        declared = {i.strip("=+"): "=" not in i for i in listed}
        operands = [x for n, x in (("q", q), ("k", k), ("v", v)) if n in declared]
        return _dtensor.attend(_attend, spec, _sort(declared, variant, [*operands, *inputs], named), q_offset, **ranks)
    if ranks.get("spread") is None:
        if any(ranks.values()):
            raise TypeError(f"{', '.join(n for n, x in ranks.items() if x)}: goes with spread=")
        spec, arrays, scalars, wants = _prepared(spec, q, k, v, inputs, named)
        return _called(spec, arrays, scalars, wants, q_offset)
    from . import _ranks

    if _compiling():
        from . import _graph

        spec, arrays, scalars, wants = _prepared(spec, q, k, v, inputs, named)
        return _asked(spec, _graph.called(spec, arrays, scalars, wants, q_offset, **ranks))
    with _ranks.told(ranks["spread"]):
        spec, arrays, scalars, wants = _prepared(spec, q, k, v, inputs, named)
        return _asked(spec, _ranks.settle(spec, arrays, scalars, q_offset, wants, **ranks).call(arrays))


def _attend_packed(spec: str, q: Any, k: Any, v: Any, inputs: Sequence[Any], named: Dict[str, Any], q_offset: Any, packed: Tuple[Any, Any, Optional[int]],
                   **ranks: Any) -> Outputs:  # fmt: skip
    from . import _packed_ranks, _ranks

    if _compiling():
        raise TypeError("q_start: sequences one behind the other that are spread stay outside of torch.compile")
    with _ranks.told(ranks["spread"]):
        spec, arrays, scalars, wants = _prepared(spec, q, k, v, inputs, named, True)
        if packed[1] is None and ranks["kv_spread"] not in (None, ranks["spread"]):
            raise TypeError("kv_start: keys have a spread of their own: where each sequence's keys begin is not known")
        index = _starts(q, k, packed[0], packed[0] if packed[1] is None else packed[1], q_offset, True)
        return _asked(spec, _packed_ranks.attend(spec, arrays, scalars, wants, index, **ranks))


def _called(spec: str, arrays: Dict[str, Any], scalars: Dict[str, float], wants: bool, size: Optional[int]) -> Outputs:
    call = list(arrays.values()), list(scalars.values()), ",".join([*arrays, *scalars]), spec, size
    return _asked(spec, _through(_forward_operator if wants else _operator, *call))


def _asked(spec: str, found: Sequence[torch.Tensor]) -> Outputs:
    count = _count(spec)
    return found[0] if count == 1 else tuple(found[:count])


def _number(spec: str, name: str, x: Any) -> Any:
    """A scalar input: a float, or a tensor without dimensions if its gradient is wanted. The call waits for the number where it is on a GPU."""
    if isinstance(x, bool) and name not in _bools(spec).split():
        raise TypeError(f"{name}: takes a number, not {x}")
    if isinstance(x, torch.Tensor):
        if x.numel() != 1:
            raise ValueError(f"{name}: takes one number, not a tensor {list(x.shape)}")
        return x.reshape(()) if _wants_gradient(x) else float(x)
    if not isinstance(x, numbers.Real) and not hasattr(x, "__float__"):
        raise TypeError(f"{name}: takes a number, not a {type(x).__name__}")
    return float(x)


def _fit(spec: str, given: Dict[str, Any], declared: Dict[str, bool]) -> None:
    """Scalars become numbers, and 16-bit floats become f32 where the source says f32: no bit is lost, and the gradient goes back."""
    given.update((n, _number(spec, n, given[n])) for n, array in declared.items() if not array)
    for name in _in_f32(spec).split():
        if isinstance(given[name], torch.Tensor) and given[name].dtype in (torch.bfloat16, torch.float16):
            given[name] = given[name].float()


def _prepared(spec: str, q: Any, k: Any, v: Any, inputs: Sequence[Any], named: Dict[str, Any],
              packed: bool = False) -> Tuple[str, Dict[str, Any], Dict[str, float], bool]:  # fmt: skip
    """A call's specification, its operands and arrays, its scalars, and whether it wants gradients: right, or an error."""
    variant, *listed = _declared(spec).split(" ")
    declared = {i.strip("=+"): "=" not in i for i in listed}  # whether it is an array
    if "v" not in declared and v is not None:
        raise TypeError(f"v: {variant} has it in k: pass None")
    device = q.device.type if isinstance(q, torch.Tensor) else ""
    operands = {n: _cast(x, device) for n, x in (("q", q), ("k", k), ("v", v)) if n in declared}
    _check_operands(operands, packed)
    given = _sort(declared, variant, [*operands.values(), *inputs], named)
    for i in listed:
        _check_gradient(i.strip("=+"), given[i.strip("=+")], i.endswith("+"))
    _fit(spec, given, declared)
    arrays = {n: x for n, x in given.items() if declared[n] or isinstance(x, torch.Tensor)}
    for name, x in arrays.items():
        if not isinstance(x, torch.Tensor):
            raise TypeError(f"{name}: takes a tensor of PyTorch, not a {type(x).__name__}")
        _arrays.refuse_layout(name, x)
        if x.device != operands["q"].device and x.dim():
            raise ValueError(f"{name}: is on {x.device}, and q on {operands['q'].device}")
    scalars = {n: x for n, x in given.items() if n not in arrays}
    wants = any(_wants_gradient(x) for x in arrays.values())
    return _in_order(spec) if wants else spec, arrays, scalars, wants


class Attention(torch.nn.Module):
    """An attention of a .attn file, or of source text, as a module: attention(q, k, v, *inputs).

    q [B, H, Sq, D], k [B, Hkv, Sk, D], v [B, Hkv, Sk, Dv] with any strides, of float32, float16 or bfloat16, on a CPU or GPU. D, Dv,
    element type and target come from them; lengths cause no new compile. Inputs are those of the source, in their order or by name.

    q_start (integers [B + 1]): sequences of their own lengths, one behind the other, without padding: q [Tq, H, D], k [Tk, Hkv, D], v [Tk,
    Hkv, Dv]; inputs with B and Sq or Sk likewise (docs/serving.md, layout ragged). kv_start: by default q_start. q_offset is then a
    tensor [B]; max_q, the longest sequence's queries, is a hint. With spread=, which cuts the packed line anywhere, these are of the whole line. Rows that no sequence has are 0, of gradients too.

    Of a source with `share v = k` v is None. Views are not copied, unless a GPU's kernel cannot take them: rows that are not whole, or do not
    begin at multiples of 16 bytes.

    entry: which variant of the file; defines: {"WINDOW": 128}; include: folders of imports; emit: outputs to give beside o, by
    their names: then a tuple comes back; opt: 0 to 3.

    q, k, v and inputs that the source marks `grad` have gradients (first derivatives). deterministic: whether they have the same bits in every
    run, at the cost of two more products of five; None: as torch.use_deterministic_algorithms says at the call.

    spread (an attn.Spread): q, k, v are this rank's rows of a sequence over ranks, and so are arrays with an extent Sk or Sq (with both: rows of all keys), unless `whole`
    names them. Gradients of q, k, v and of such arrays are complete; of an array that every rank has a rank gets its share. kv_spread: where
    keys lie otherwise than queries. method: "keys" come to the queries, or "heads" are exchanged for positions; None: what takes less time.
    plan (an attn.Plan): which keys travel where the mask reads inputs. mesh: where a call has no spread=, each of its ranks has equally many
    rows, one after the other."""

    def __init__(self, source: "Union[str, os.PathLike[str]]", *, entry: Optional[str] = None, defines: Optional[Dict[str, Any]] = None,
                 include: Sequence[str] = (), emit: Union[str, Sequence[str]] = (), opt: int = 3, mesh: Any = None,
                 deterministic: Optional[bool] = None) -> None:  # fmt: skip
        super().__init__()
        self.spec = _specify(source, entry, defines, include, emit, opt, deterministic)
        _read_declared(self.spec)  # what is wrong with the source is told here
        self.mesh = mesh
        self._spreads: "Dict[int, Spread]" = {}
        if mesh is not None:
            from ._spread import numbered

            self._handle = numbered(self, object())

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: Optional[torch.Tensor] = None, *inputs: Any,
                q_offset: "Optional[Union[int, torch.Tensor]]" = None, q_start: Optional[torch.Tensor] = None,
                kv_start: Optional[torch.Tensor] = None, max_q: Optional[int] = None, spread: "Optional[Spread]" = None, kv_spread: "Optional[Spread]" = None, whole: Sequence[str] = (), method: Optional[str] = None,
                plan: "Optional[Plan]" = None, **named: Any) -> Outputs:  # fmt: skip
        packed = q_start, kv_start, max_q
        if spread is None and self.mesh is not None and not hasattr(q, "placements") and q_start is None:
            spread, kv_spread = self._of_mesh(q), self._of_mesh(k)
        ranks = {"spread": spread, "kv_spread": kv_spread, "whole": whole, "method": method, "plan": plan}
        return _attend(self.spec, q, k, v, inputs, named, q_offset, packed, **ranks)

    def _of_mesh(self, x: torch.Tensor) -> Any:
        if not _compiling():
            return self._contiguous(x.shape[2])
        from . import _graph

        return _graph.of_mesh(self._handle, int(x.shape[2]))

    def _contiguous(self, rows: int) -> "Spread":
        """As many rows on each rank of the mesh."""
        from ._spread import Spread, size_of

        if rows not in self._spreads:
            self._spreads[rows] = Spread(self.mesh, rows * size_of(self.mesh))
        return self._spreads[rows]

    def balance(self, S: int, block: int = 512, mesh: Any = None, **inputs: Any) -> "Spread":
        """A Spread of S positions whose ranks have equal work, by the tiles that the mask visits, in few pieces. inputs:
        those that the mask reads, whole and the same on every rank."""
        from . import _ranks

        return _ranks.balance(S, {self: 1}, block, mesh, **inputs)

    def extra_repr(self) -> str:
        given = json.loads(self.spec)
        return given["name"] + (f", entry={given['entry']}" if given["entry"] else "")


def attention(source: "Union[str, os.PathLike[str]]", q: torch.Tensor, k: torch.Tensor, v: Optional[torch.Tensor] = None, *inputs: Any,
              q_offset: "Optional[Union[int, torch.Tensor]]" = None, q_start: Optional[torch.Tensor] = None,
              kv_start: Optional[torch.Tensor] = None, max_q: Optional[int] = None, entry: Optional[str] = None, defines: Optional[Dict[str, Any]] = None,
              include: Sequence[str] = (), emit: Union[str, Sequence[str]] = (), opt: int = 3, spread: "Optional[Spread]" = None,
              kv_spread: "Optional[Spread]" = None, whole: Sequence[str] = (), method: Optional[str] = None, plan: "Optional[Plan]" = None,
              deterministic: Optional[bool] = None, **named: Any) -> Outputs:  # fmt: skip
    """Attention(source, ...)(q, k, v, ...), as a function."""
    spec = _specify(source, entry, defines, include, emit, opt, deterministic)
    ranks = {"spread": spread, "kv_spread": kv_spread, "whole": whole, "method": method, "plan": plan}
    return _attend(spec, q, k, v, inputs, named, q_offset, (q_start, kv_start, max_q), **ranks)
