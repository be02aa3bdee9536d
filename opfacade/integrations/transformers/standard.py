"""attn_implementation="opfacade": the calls of model.forward and model.generate, eager or as one op of a compiled graph."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from opfacade.integrations.refusal import refuse
from opfacade.integrations.transformers.arguments import flag, refuse_unknown
from opfacade.integrations.transformers.dense_call import How, Tensors, attend
from opfacade.integrations.transformers.releases import WAY

if TYPE_CHECKING:
    from opfacade.integrations.transformers.parts import WithLayer


def attention(
    module: WithLayer, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, dropout: float = 0.0,
    scaling: float | None = None, is_causal: bool | None = None, sliding_window: int | None = None,
    softcap: float | None = None, s_aux: Tensor | None = None, **kwargs: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """The attention function of transformers. query [batch, heads, q_len, dim], key and value [batch, kv_heads, kv_len, dim],
    attention_mask bool [batch, 1, q_len, kv_len] or None; returns o [batch, q_len, heads, dim of value] and no weights.

    Under torch.autocast, tensors are first cast to its dtype, as for sdpa, because f32 norm weights and angles give f32
    tensors. Raises UnsupportedError for an unsupported argument, ShapeError or DTypeError for an invalid mask.
    """
    refuse_unknown(kwargs, dropout)
    causal = flag("is_causal", getattr(module, "is_causal", True) if is_causal is None else is_causal)
    query, key, value = (autocast(x) for x in (query, key, value))
    how = (scaling, softcap, s_aux, sliding_window if attention_mask is None else None)
    if torch.compiler.is_compiling():
        return compiled(module, (query, key, value, attention_mask), how, causal), None
    return attend(module, (query, key, value, attention_mask), how, causal), None


def autocast(x: Tensor) -> Tensor:
    """x, cast as torch.autocast casts the arguments of sdpa on x's device."""
    if not isinstance(x, Tensor) or x.device.type not in ("cpu", "cuda") or not torch.is_autocast_enabled(x.device.type):
        return x
    return x.to(torch.get_autocast_dtype(x.device.type)) if x.is_floating_point() and x.dtype != torch.float64 else x


def compiled(module: object, tensors: Tensors, how: How, causal: bool) -> Tensor:
    """Attention as a single torch op in a graph. Gradients are refused here, because requires_grad is not visible inside an
    op."""
    if torch.is_grad_enabled() and any(x.requires_grad for x in tensors[:3]):
        hint = "Call the model under torch.no_grad()."
        refuse(WAY, "OPF-I007", "query, key, value", expected="tensors without gradients", got="requires_grad=True", hint=hint)
    scaling, softcap, s_aux, window = how
    layer = int(getattr(module, "layer_idx", None) or 0)
    o: Tensor = torch.ops.opfacade_transformers.attention(*tensors, scaling, softcap, s_aux, window, causal, layer)
    return o


_LIBRARY: Any = torch.library.Library("opfacade_transformers", "FRAGMENT")  # type: ignore[no-untyped-call]
_LIBRARY.define(
    "attention(Tensor query, Tensor key, Tensor value, Tensor? mask, float? scaling, float? softcap, Tensor? s_aux, "
    "SymInt? window, bool causal, int layer) -> Tensor"
)


def _run(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, *rest: Any) -> Tensor:
    *how, causal, layer = rest
    return attend(SimpleNamespace(layer_idx=layer), (query, key, value, mask), tuple(how), causal)


def _shape(query: Tensor, key: Tensor, value: Tensor, *rest: object) -> Tensor:
    return query.new_empty(query.shape[0], query.shape[2], query.shape[1], value.shape[3])


for _device in ("CPU", "CUDA"):
    _LIBRARY.impl("attention", _run, _device)
torch.library.register_fake("opfacade_transformers::attention", _shape, lib=_LIBRARY)
