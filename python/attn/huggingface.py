"""Hugging Face `transformers` with attentions of attnc: register(), then a model's attn_implementation="attn".

    import attn.huggingface
    attn.huggingface.register()
    model = AutoModelForCausalLM.from_pretrained(..., attn_implementation="attn")

What a layer is comes from the model: scale, soft cap, window, sinks, causal or not. Padding masks and position_ids of packed sequences become
numbers of documents, which the kernel's mask compares; nothing of [Sq, Sk] is made. (A model that hands no position_ids to its masks, as gpt-oss in
transformers 5.17, does not tell packed sequences apart, with eager attention neither: pass them as a batch, padded.) A query that sees no key gives 0. What has no kernel here
(masks of four dimensions, dropout, static caches, other masks of transformers) raises. Only register() imports transformers.
"""

import functools
from typing import Any, Dict, List, Optional, Tuple

import torch

from ._torch import _attend, _constant, _specify

_SOURCE = """
import std.mask;
import std.modify;
import std.normalization;

attention huggingface {{
    dim D = 64, Dv = D;
    {inputs}
    score(q, k) = dot(q, k) * {scale!r};
    {modify}
    mask(b, h, q_idx, kv_idx) = {mask};
    normalize(s, b, h) = {normalize};
}}
"""


@functools.lru_cache(maxsize=None)
def _written(scale: float, causal: bool, window: int, cap: float, sinks: bool, documents: bool) -> str:
    inputs: List[str] = []
    mask = [f"window(q_idx, kv_idx, {window})" if window else "causal(q_idx, kv_idx)"] if causal else []
    if documents:
        inputs += ["input of_query: i32[B, Sq];", "input of_key: i32[B, Sk];"]
        mask.append("document(of_query[b, q_idx - q_offset], of_key[b, kv_idx])")
    if sinks:
        inputs.append("input sinks: f32[H] grad;")
    text = _SOURCE.format(
        inputs=" ".join(inputs), scale=scale, modify=f"modify(s) = tanh_cap(s, {cap!r});" if cap else "", mask=" && ".join(mask) or "true",
        normalize="softmax_with_sink(s, sinks[h])" if sinks else "softmax(s)",
    )  # fmt: skip
    return _specify(text, None, None, (), (), 3, None)


@_constant
def _spec(*what: Any) -> str:
    return _written(*what)


# ---- masks: what transformers says of one, as a tensor of four dimensions, which models hand on as it is


class _Pattern:
    """What a mask function of transformers comes to."""

    causal, window, packed = False, 0, None

    def read(self, function: Any) -> "_Pattern":
        held: Dict[str, Any] = dict(zip(function.__code__.co_freevars, [c.cell_contents for c in function.__closure__ or ()]))
        name = function.__qualname__.partition(".")[0]
        if name == "and_masks":
            for part in held["mask_functions"]:
                self.read(part)
        elif name == "causal_mask_function":
            self.causal = True
        elif name == "sliding_window_overlay":
            self.window = int(held["sliding_window"])
        elif name == "packed_sequence_mask_function":
            self.packed = held["packed_sequence_mask"]
        elif name != "bidirectional_mask_function":
            raise NotImplementedError(f'attn_implementation="attn" has no kernel for the mask {name} of transformers')
        return self


def _of_keys(padding: Optional[torch.Tensor], first: int, length: int) -> Optional[torch.Tensor]:
    """The part of a padding mask that is about the keys; None where all take part."""
    if padding is None:
        return None
    padding = torch.nn.functional.pad(padding, (0, max(first + length - padding.shape[-1], 0)))[:, first : first + length]
    tracing = getattr(torch.compiler, "is_compiling", lambda: False)()
    return None if not tracing and bool(padding.all()) else padding


def _mask(batch_size: int, q_length: int, kv_length: int, q_offset: Any = 0, kv_offset: int = 0, mask_function: Any = None,
          attention_mask: Optional[torch.Tensor] = None, device: Any = "cpu", **_: Any) -> Optional[torch.Tensor]:  # fmt: skip
    """i32 [B, rows, window + 1, Sk], by expansion: rows is 1 or, with numbers of documents of queries and keys, 2; where not causal 2 more."""
    pattern = _Pattern().read(mask_function)
    if pattern.window and not pattern.causal:
        raise NotImplementedError('attn_implementation="attn" has no kernel for a window that is not causal')
    if pattern.causal and (isinstance(q_offset, torch.Tensor) or q_offset + q_length != kv_offset + kv_length):
        raise NotImplementedError('attn_implementation="attn" takes caches that hold what has been seen and no more (DynamicCache), no static ones')
    padding = _of_keys(attention_mask, kv_offset, kv_length)
    documents = pattern.packed is not None or padding is not None
    if pattern.causal and not pattern.window and not documents:
        return None
    rows = [torch.zeros((batch_size, kv_length), dtype=torch.int32, device=device)] * ((2 if documents else 1) + (0 if pattern.causal else 2))
    if pattern.packed is not None:
        rows[:2] = [pattern.packed.to(torch.int32)] * 2
    if padding is not None:
        rows[1] = rows[1].masked_fill(~padding, -1)
    return torch.stack(rows, 1)[:, :, None].expand(-1, -1, pattern.window + 1, -1)


def _pattern_of(mask: Optional[torch.Tensor], causal: bool, Sk: int) -> Tuple[bool, int, bool]:
    """Causal, the window, and whether there are documents."""
    if mask is None:
        return causal, 0, False
    if mask.dtype != torch.int32 or mask.dim() != 4 or mask.shape[3] != Sk:
        raise NotImplementedError('attention_mask: attn_implementation="attn" takes a padding mask [B, Sk], not one of four dimensions')
    rows, window = mask.shape[1], mask.shape[2] - 1
    return rows <= 2, window, rows % 2 == 0


def _attention(module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: Optional[torch.Tensor],
               scaling: Optional[float] = None, dropout: float = 0.0, softcap: Optional[float] = None, s_aux: Optional[torch.Tensor] = None,
               is_causal: Optional[bool] = None, **named: Any) -> Tuple[torch.Tensor, None]:  # fmt: skip
    if dropout > 0:
        raise NotImplementedError(f'dropout: attn_implementation="attn" has none, and this layer asks for {dropout}: set attention_dropout=0')
    for name in "output_attentions", "position_bias", "head_mask":
        if named.get(name) is not None and named[name] is not False:
            raise NotImplementedError(f'{name}: attn_implementation="attn" has none')
    causal, window, documents = _pattern_of(attention_mask, getattr(module, "is_causal", True) if is_causal is None else is_causal, key.shape[2])
    scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
    spec = _spec(scale, causal, window, float(softcap or 0.0), s_aux is not None, documents)
    inputs: List[torch.Tensor] = []
    if documents and attention_mask is not None:
        inputs += [attention_mask[:, 0, 0, : query.shape[2]], attention_mask[:, 1, 0]]
    if s_aux is not None:
        inputs.append(s_aux.float())
    o = _attend(spec, query, key, value, inputs, {}, None)
    assert isinstance(o, torch.Tensor)
    return o.transpose(1, 2), None


def register(name: str = "attn") -> None:
    """Makes `name` an attn_implementation of transformers (4.57 or later)."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(name, _attention)
    AttentionMaskInterface.register(name, _mask)
