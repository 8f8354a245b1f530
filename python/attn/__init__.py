"""Attention kernels compiled by attnc, on NumPy, PyTorch, CuPy and anything else that speaks DLPack.

    import attn, torch
    gemma = attn.compile("gemma.attn", target="sm_90a", dtype="bf16")
    o = gemma(q, k, v, sink=sink)                   # on q's device, on the current stream
    o, lse = gemma(q, k, v, sink=sink, emit=["lse"])

In PyTorch, attn.Attention("gemma.attn") is a module, and attn.attention("gemma.attn", q, k, v) a function: they compile for what the
tensors are, and keep artifacts on disk. attn.Recurrence and attn.recurrence are the same for recurrences.

Nothing is built: the package finds libattnrt.so, and the compiler as the command `attnc`. In a notebook, `%load_ext attn` brings the cell
magic `%%attn`; `%%attn?` tells its options.
"""

import importlib
from typing import TYPE_CHECKING, Any

from ._compiler import CompileError, CompileWarning, compile
from ._kernel import Artifact, Kernel, TileMap, load
from ._runtime import Error, set_threads, version

__all__ = ["Artifact", "CompileError", "CompileWarning", "Error", "Kernel", "TileMap", "compile", "load", "set_threads", "version"]

if TYPE_CHECKING:
    from ._pages import SpreadPages as SpreadPages
    from ._ranks import Plan as Plan, balance as balance
    from ._recurrence import Recurrence as Recurrence, recurrence as recurrence
    from ._spread import Spread as Spread
    from ._torch import Attention as Attention, attention as attention


_OF_TORCH = {"Attention": "_torch", "attention": "_torch", "Recurrence": "_recurrence", "recurrence": "_recurrence", "Spread": "_spread",
             "SpreadPages": "_pages", "Plan": "_ranks", "balance": "_ranks"}  # fmt: skip


def __getattr__(name: str) -> Any:
    """What needs PyTorch is there when it is asked for."""
    if name not in _OF_TORCH:
        raise AttributeError(f"module 'attn' has no attribute '{name}'")
    try:
        return getattr(importlib.import_module("." + _OF_TORCH[name], __name__), name)
    except ModuleNotFoundError as e:
        if e.name != "torch":
            raise
        raise ModuleNotFoundError(f"attn.{name} needs PyTorch; attn.compile works with NumPy and other arrays", name="torch") from e


def load_ipython_extension(shell):
    """`%load_ext attn`. IPython is needed for this only."""
    from ._magic import AttnMagics

    shell.register_magics(AttnMagics)
