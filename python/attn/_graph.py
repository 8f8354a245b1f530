"""A call with spread= as operators of torch.library: torch.compile takes each as one, forward and backward, whatever travels inside.

Spreads and plans are numbers for it (handle): one of the same content has the same number, so that a graph made with one is right for the other,
and numbers that differ make no new graph."""

import json
from typing import Any, Dict, List, Optional, Sequence, Tuple

import torch

from . import _ranks, _torch
from ._spread import found as _found

def _settled(tensors: Sequence[torch.Tensor], scalars: Sequence[float], names: str, spec: str, size: Optional[int], handles: Sequence[int],
             how: str, wants: bool, agree: bool) -> Tuple[Dict[str, torch.Tensor], _ranks._Settled]:  # fmt: skip
    listed = names.split(",")
    given, numbers = dict(zip(listed, tensors)), dict(zip(listed[len(tensors) :], scalars))
    spread, kv_spread, plan = (_found(n, what) for n, what in zip(handles, ("spread", "kv_spread", "plan")))
    ranks = {"spread": spread, "kv_spread": kv_spread, "plan": plan, **json.loads(how)}
    if not agree:
        return given, _ranks.settle(spec, given, numbers, size, wants, agree=False, **ranks)
    with _ranks.told(spread):
        return given, _ranks.settle(spec, given, numbers, size, wants, **ranks)


def _dense(found: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> List[torch.Tensor]:
    """As the fake ones are, and none of them an operand."""
    return [y.clone() if any(y is x for x in inputs) else y for y in (x.contiguous() for x in found)]


def _run(tensors: List[torch.Tensor], scalars: List[float], names: str, spec: str, size: Optional[int], handles: List[int], how: str) -> List[torch.Tensor]:
    with torch.no_grad():
        given, settled = _settled(tensors, scalars, names, spec, size, handles, how, False, True)
        return _dense(settled.call(given), tensors)


def _shapes(tensors: List[torch.Tensor], scalars: List[float], names: str, spec: str, size: Optional[int], handles: List[int], how: str) -> List[torch.Tensor]:
    return [x.new_empty(x.shape) for x in _torch._shapes(tensors, scalars, names, spec, size)]


def _forward(tensors: List[torch.Tensor], scalars: List[float], names: str, spec: str, size: Optional[int], handles: List[int], how: str) -> List[torch.Tensor]:
    with torch.no_grad():
        count = len(_torch._kept(spec, _torch._of_tensors(spec, tensors, names, "fwd,bwd")))
        given, settled = _settled(tensors, scalars, names, spec, size, handles, how, True, True)
        return _dense(settled.forward(given, count), tensors)


def _forward_shapes(tensors: List[torch.Tensor], scalars: List[float], names: str, spec: str, size: Optional[int], handles: List[int],
                    how: str) -> List[torch.Tensor]:  # fmt: skip
    return [x.new_empty(x.shape) for x in _torch._forward_shapes(tensors, scalars, names, spec, size)]


def _backward(tensors: List[torch.Tensor], kept: List[torch.Tensor], come: List[torch.Tensor], which: str, scalars: List[float], names: str,
              spec: str, size: Optional[int], handles: List[int], how: str) -> List[torch.Tensor]:  # fmt: skip
    with torch.no_grad():
        given, settled = _settled(tensors, scalars, names, spec, size, handles, how, True, False)
        found = dict(zip(given, settled.backward(given, kept, which, come)))
    learned = _torch._learned(_torch._of_tensors(spec, tensors, names, "fwd,bwd"), tensors, names)
    made = [found[n[1:]] for n in learned]
    return _dense([torch.zeros_like(x) if d is None else d.reshape(x.shape) for d, x in zip(made, learned.values())], [*tensors, *kept, *come])


def _backward_shapes(tensors: List[torch.Tensor], kept: List[torch.Tensor], come: List[torch.Tensor], which: str, scalars: List[float], names: str,
                     spec: str, size: Optional[int], handles: List[int], how: str) -> List[torch.Tensor]:  # fmt: skip
    learned = _torch._learned(_torch._of_tensors(spec, tensors, names, "fwd,bwd"), tensors, names)
    return [x.new_empty(x.shape) for x in learned.values()]


def _keep(ctx, inputs, output) -> None:
    tensors, *ctx.call = inputs
    ctx.count = len(tensors)
    ctx.save_for_backward(*tensors, *output)
    ctx.set_materialize_grads(False)


def _gradients(ctx, come):
    scalars, names, spec, size, handles, how = ctx.call
    saved = ctx.saved_tensors
    tensors, kept = list(saved[: ctx.count]), list(saved[ctx.count :])
    there = [(n, d) for n, d in zip(["o", *_torch._emits(spec)], come) if d is not None]
    learned = _torch._learned(_torch._of_tensors(spec, tensors, names, "fwd,bwd"), tensors, names)
    made = _backward_operator(tensors, kept, [d for _, d in there], ",".join(n for n, _ in there), scalars, names, spec, size, handles, how)
    found = dict(zip(learned, made))
    return [found.get("d" + n) for n, _ in zip(names.split(","), tensors)], None if scalars else [], None, None, None, None, None


_operator, _forward_operator, _backward_operator = _torch._operators(
    ["spread", "spread_forward", "spread_backward"],
    [_run, _forward, _backward],
    [_shapes, _forward_shapes, _backward_shapes],
    _gradients,
    _keep,
) or (_run, _forward, _backward)


@_torch._constant
def _how(whole: Sequence[str], method: Optional[str]) -> str:
    return json.dumps({"whole": list(whole), "method": method})


@_torch._constant
def of_mesh(module: int, rows: int) -> int:
    """The number of a module's Spread of so many rows on each rank, made where the call is traced if there is none."""
    return int(_found(module, "mesh")._contiguous(rows).handle)


def called(spec: str, arrays: Dict[str, torch.Tensor], scalars: Dict[str, float], wants: bool, size: Optional[int], spread: Any, kv_spread: Any,
           whole: Sequence[str], method: Optional[str], plan: Any) -> List[torch.Tensor]:  # fmt: skip
    """What _ranks gives."""
    handles = [0 if x is None else x if isinstance(x, int) else x.handle for x in (spread, kv_spread, plan)]
    call = list(arrays.values()), list(scalars.values()), ",".join([*arrays, *scalars]), spec, size, handles, _how(tuple(whole), method)
    found: List[torch.Tensor] = (_forward_operator if wants else _operator)(*call)
    return found
