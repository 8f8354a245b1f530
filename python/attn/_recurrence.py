"""Recurrences as modules and functions of PyTorch: forward, and the derived backward where the target has its kernels."""

import os
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence, Tuple, Union

import torch

from . import _arrays, _torch
from ._kernel import Kernel
from ._torch import _ELEMENTS, Outputs

if TYPE_CHECKING:
    from ._spread import Spread

_SHAPES = {"q": "[B, Hq, S, D]", "k": "[B, Hk, S, D]", "v": "[B, Hv, S, Dv]", "state0": "[B, H, D, Dv]"}
_ROWS = "q", "k", "v"


# ---- the operators. A call is tensors, scalars, the names of both in this order, and the specification.


def _of_tensors(spec: str, tensors: Sequence[torch.Tensor], phase: str = "fwd") -> Kernel:
    q, _, v = tensors[:3]
    return _torch._kernel(spec, int(q.shape[-1]), int(v.shape[-1]), _ELEMENTS[q.dtype], _torch._target(q.device), phase)


def _given(tensors: Sequence[torch.Tensor], scalars: Sequence[float], names: str) -> Dict[str, Any]:
    given: Dict[str, Any] = dict(zip(names.split(","), [*(float(x) if x.dim() == 0 else x for x in tensors), *scalars]))
    given.update((n, _torch._placed(x) if n in _ROWS else _torch._with_rows(x)) for n, x in given.items() if isinstance(x, torch.Tensor))
    if "state0" in given:
        given["state0"] = given["state0"].contiguous()
    return given


def _shapes(tensors: List[torch.Tensor], scalars: List[float], names: str, spec: str) -> List[torch.Tensor]:
    q, k, v = tensors[:3]
    heads = max(x.shape[1] for x in (q, k, v))
    state = [v.new_empty((q.shape[0], heads, q.shape[3], v.shape[3]), dtype=torch.float32)] * len(_torch._emits(spec))
    return [v.new_empty((q.shape[0], heads, q.shape[2], v.shape[3])), *state]


def _run(tensors: List[torch.Tensor], scalars: List[float], names: str, spec: str) -> List[torch.Tensor]:
    return made(tensors, scalars, names, spec, _shapes(tensors, scalars, names, spec)[0])


def made(tensors: Sequence[torch.Tensor], scalars: Sequence[float], names: str, spec: str, o: torch.Tensor) -> List[torch.Tensor]:
    """o: where it goes."""
    found = _torch._launch(_of_tensors(spec, tensors), ["o", *_torch._emits(spec)], _given(tensors, scalars, names), {"o": _torch._for(o)})
    return [o if found[0] is o else o.copy_(found[0]), *found[1:]]


def _learned(spec: str, tensors: Sequence[torch.Tensor], names: str) -> Dict[str, torch.Tensor]:
    """The operands that have a gradient, by its name."""
    outputs = _torch._back(_of_tensors(spec, tensors, "fwd,bwd")).outputs
    return {"d" + n: x for n, x in zip(names.split(","), tensors) if "d" + n in outputs}


def _backward(tensors: List[torch.Tensor], come: List[torch.Tensor], which: str, scalars: List[float], names: str, spec: str) -> List[torch.Tensor]:
    return gradients(tensors, come, which, scalars, names, spec, {})


def gradients(tensors: Sequence[torch.Tensor], come: Sequence[torch.Tensor], which: str, scalars: Sequence[float], names: str, spec: str,
              into: Dict[str, torch.Tensor]) -> List[torch.Tensor]:  # fmt: skip
    """The gradients that the kernel has, from those of the outputs `which`; those of the others are 0. into: where those of q, k and v go; by default
    new tensors."""
    kernel = _torch._back(_of_tensors(spec, tensors, "fwd,bwd"))
    given = _given(tensors, scalars, names)
    given.update(("d" + n, _torch._placed(x) if n == "o" else x.contiguous()) for n, x in zip(which.split(","), come))
    if "do" not in given:
        given["do"] = _torch._placed(torch.zeros_like(_shapes(list(tensors), list(scalars), names, spec)[0]))
    learned = _learned(spec, tensors, names)
    new = {n: into[n] if n in into else torch.empty_like(x) for n, x in learned.items() if n[1:] in _ROWS}
    found = dict(zip(learned, _torch._launch(kernel, list(learned), given, {n: _torch._for(x) for n, x in new.items()})))
    found.update((n, x if found[n] is x else x.copy_(found[n])) for n, x in new.items())
    return [found[n].to(like.dtype).reshape(like.shape) for n, like in learned.items()]


def _backward_shapes(tensors: List[torch.Tensor], come: List[torch.Tensor], which: str, scalars: List[float], names: str,
                     spec: str) -> List[torch.Tensor]:  # fmt: skip
    return [torch.empty_like(x) if n[1:] in _ROWS else x.new_empty(x.shape) for n, x in _learned(spec, tensors, names).items()]


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    tensors, *ctx.call = inputs
    ctx.save_for_backward(*tensors)
    ctx.set_materialize_grads(False)


def _gradients(ctx: Any, come: Sequence[Optional[torch.Tensor]]) -> List[Optional[torch.Tensor]]:
    """By operand."""
    if torch.is_grad_enabled():  # create_graph=True
        raise RuntimeError("a recurrence has first derivatives only")
    scalars, names, spec = ctx.call
    tensors = list(ctx.saved_tensors)
    there = [(n, d) for n, d in zip(["o", *_torch._emits(spec)], come) if d is not None]
    learned = _learned(spec, tensors, names)
    made = _torch._through(_backward_operator, tensors, [d for _, d in there], ",".join(n for n, _ in there), scalars, names, spec)
    found = dict(zip(learned, made))
    return [found.get("d" + n) for n, _ in zip(names.split(","), tensors)]


class _Recur(torch.autograd.Function):
    """Where PyTorch has no operators that know their derivative."""

    @staticmethod
    def forward(ctx: Any, scalars: Any, names: Any, spec: Any, *tensors: Any) -> Any:
        _keep(ctx, (tensors, scalars, names, spec), None)
        return tuple(_run(list(tensors), scalars, names, spec))

    @staticmethod
    def backward(ctx: Any, *come: Any) -> Any:
        return (None, None, None, *_gradients(ctx, come))


def _list_gradients(ctx: Any, come: Any) -> Any:
    return _gradients(ctx, come), None if ctx.call[0] else [], None, None


_functions: Any = lambda tensors, *call: _Recur.apply(*call, *tensors), _backward
_operator, _backward_operator = _functions
if hasattr(torch.library, "custom_op"):  # PyTorch 2.4
    _operator = torch.library.custom_op("attn::recurrence", _torch._untraced(_run), mutates_args=())
    _backward_operator = torch.library.custom_op("attn::recurrence_backward", _torch._untraced(_backward), mutates_args=())
    _operator.register_fake(_shapes)
    _backward_operator.register_fake(_backward_shapes)
    _operator.register_autograd(_list_gradients, setup_context=_keep)
_torch._function_of.update(zip((_operator, _backward_operator), _functions))


# ---- arguments


def _check(given: Dict[str, Any], arrays: Sequence[str]) -> None:
    q, k, v = (given[n] for n in _ROWS)
    for name in arrays:
        x = given[name]
        if not isinstance(x, torch.Tensor):
            raise TypeError(f"{name}: takes a tensor of PyTorch, not a {type(x).__name__}")
        _arrays.refuse_layout(name, x)
        if x.device != q.device and x.dim():
            raise ValueError(f"{name}: is on {x.device}, and q on {q.device}")
        if name in _SHAPES and x.dim() != 4:
            raise ValueError(f"{name}: has {x.dim()} dimensions, expected {_SHAPES[name]}")
        if name in _ROWS and (x.dtype != q.dtype or x.dtype not in _ELEMENTS):
            raise TypeError(f"{name}: has elements of {x.dtype}; q, k and v are of one type: float32, float16 or bfloat16")
        if name in _ROWS and (x.shape[0] != q.shape[0] or x.shape[2] != q.shape[2]):
            raise ValueError(f"{name}: has a batch of {x.shape[0]} and {x.shape[2]} positions, and q {q.shape[0]} and {q.shape[2]}")
    if k.shape[3] != q.shape[3]:
        raise ValueError(f"k: has rows of {k.shape[3]}, and q of {q.shape[3]}")
    heads = max(x.shape[1] for x in (q, k, v))
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.shape[1] == 0 or heads % x.shape[1]:
            raise ValueError(f"{name}: has {x.shape[1]} heads, of which {heads} are no multiple")
    if "state0" in given and given["state0"].dtype != torch.float32:
        raise TypeError(f"state0: has elements of {given['state0'].dtype}, and a state is of float32")


@_torch._constant
def _has_backward(spec: str, D: int, Dv: int, elements: str, target: str) -> bool:
    _torch._kernel(spec, D, Dv, elements, target, "fwd,bwd")  # which raises where there is none
    return True


def _recur(spec: str, q: Any, k: Any, v: Any, inputs: Sequence[Any], state0: Optional[torch.Tensor], named: Dict[str, Any],
           spread: "Optional[Spread]" = None) -> Outputs:  # fmt: skip
    if hasattr(q, "placements"):
        if spread is not None:
            raise TypeError("spread: goes with plain tensors: DTensors say by their placements how they are spread")
        from . import _dtensor

        variant, *listed = _torch._declared(spec).split(" ")
        given = _torch._sort({i.strip("=+"): "=" not in i for i in listed}, variant, [q, k, v, *inputs], named)
        return _dtensor.recur(_recur, spec, {**given, **({} if state0 is None else {"state0": state0})})
    if spread is not None:
        from . import _ranks

        with _ranks.told(spread):
            return _recur_over(spec, q, k, v, inputs, state0, named, spread)
    return _recur_over(spec, q, k, v, inputs, state0, named, None)


def _recur_over(spec: str, q: Any, k: Any, v: Any, inputs: Sequence[Any], state0: Optional[torch.Tensor], named: Dict[str, Any],
                spread: "Optional[Spread]") -> Outputs:  # fmt: skip
    variant, *listed = _torch._declared(spec).split(" ")
    declared = {i.strip("=+"): "=" not in i for i in listed}  # whether it is an array
    device = q.device.type if isinstance(q, torch.Tensor) else ""
    rows = [_torch._cast(x, device) for x in (q, k, v)]
    given = _torch._sort(declared, variant, [*rows, *inputs], named)
    _torch._fit(spec, given, declared)
    scalars = {n: given.pop(n) for n in list(given) if isinstance(given[n], float)}
    if state0 is not None:
        given["state0"] = state0
    _check(given, list(given))
    learned = {"state0", *[i.strip("=+") for i in listed if i.endswith("+")]}
    for name, x in given.items():
        _torch._check_gradient(name, x, name in learned)
    if any(_torch._wants_gradient(x) for x in given.values()):
        spec = _torch._in_order(spec)
        first, _, last = given["q"], given["k"], given["v"]
        _has_backward(spec, int(first.shape[-1]), int(last.shape[-1]), _ELEMENTS[first.dtype], _torch._target(first.device))
    if spread is None:
        found = _torch._through(_operator, list(given.values()), list(scalars.values()), ",".join([*given, *scalars]), spec)
    else:
        from . import _recur_ranks

        found = _recur_ranks.recur(spec, given, scalars, spread)
    return found[0] if _torch._count(spec) == 1 else tuple(found)


class Recurrence(torch.nn.Module):
    """A recurrence of a .attn file, or of source text, as a module: recurrence(q, k, v, *inputs, state0=...).

    q [B, Hq, S, D], k [B, Hk, S, D], v [B, Hv, S, Dv] with any strides, of float32, float16 or bfloat16; state0 f32 [B, H, D, Dv], 0 where it is
    not given, H the largest of Hq, Hk and Hv. It gives o [B, H, S, Dv]; with emit="state" a tuple of o and the state after the last position. D, Dv,
    element type and target come from the tensors; lengths cause no new compile. Inputs are those of the source, in their order or by name.

    DTensors bring their mesh and placements. spread (an attn.Spread, contiguous or zigzag): q, k, v and inputs with an extent S are this rank's rows of a sequence over ranks; state0 and the
    state are whole, the same on all ranks. mesh: where a call has no spread=, each of its ranks has equally many rows, one after the other.

    q, k, v, state0 and inputs that the source marks `grad` have gradients (first derivatives), where the target has the backward's kernels: a
    call that wants them where it has not raises. Their last bits may differ from run to run: a call that wants them raises with deterministic=True, and
    where that is None (the default) and torch.use_deterministic_algorithms asks for more, or only warns where that flag is so set."""

    def __init__(self, source: "Union[str, os.PathLike[str]]", *, entry: Optional[str] = None, defines: Optional[Dict[str, Any]] = None,
                 include: Sequence[str] = (), emit: Union[str, Sequence[str]] = (), opt: int = 3, mesh: Any = None,
                 deterministic: Optional[bool] = None) -> None:  # fmt: skip
        super().__init__()
        self.spec = _torch._specify(source, entry, defines, include, emit, opt, deterministic, "recurrence")
        _torch._read_declared(self.spec)
        self.mesh = mesh
        self._spreads: "Dict[int, Spread]" = {}

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *inputs: Any, state0: Optional[torch.Tensor] = None,
                spread: "Optional[Spread]" = None, **named: Any) -> Outputs:  # fmt: skip
        if spread is None and self.mesh is not None and not hasattr(q, "placements"):
            spread = self._contiguous(q.shape[2])
        return _recur(self.spec, q, k, v, inputs, state0, named, spread)

    _contiguous = _torch.Attention._contiguous
    extra_repr = _torch.Attention.extra_repr


def recurrence(source: "Union[str, os.PathLike[str]]", q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *inputs: Any,
               state0: Optional[torch.Tensor] = None, entry: Optional[str] = None, defines: Optional[Dict[str, Any]] = None,
               include: Sequence[str] = (), emit: Union[str, Sequence[str]] = (), opt: int = 3, spread: "Optional[Spread]" = None,
               deterministic: Optional[bool] = None, **named: Any) -> Outputs:  # fmt: skip
    """Recurrence(source, ...)(q, k, v, ...), as a function."""
    return _recur(_torch._specify(source, entry, defines, include, emit, opt, deterministic, "recurrence"), q, k, v, inputs, state0, named, spread)
