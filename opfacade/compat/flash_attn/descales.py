"""The scales of fp8 tensors, [batch, nheads_k] in flash-attn, as operands of a call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from opfacade.compat.attending import Ask
from opfacade.compat.constants import factor
from opfacade.compat.dtypes import FP8
from opfacade.compat.flash_attn.meaning import require_dense
from opfacade.compat.refusals import unmapped


def factors(ask: Ask, q: torch.Tensor, k: torch.Tensor, descales: Mapping[str, torch.Tensor | None]) -> Ask:
    """Returns `ask` with k_scale, v_scale and q_scale. A scale counts as equal for all requests only if it is expanded with
    stride 0.

    k: pages, [num_blocks, block_size, nheads_k, headdim].
    """
    kv_heads, found = k.shape[2], {name: value for name, value in descales.items() if value is not None}
    if not found:
        return ask
    for name, value in found.items():
        require_dense(ask.op, name, value, "batch_size, nheads_k")
    for name, tensor in (("q_descale", q), ("k_descale", k), ("v_descale", k)):
        if name in found and tensor.dtype not in FP8:
            raise unmapped(ask.op, name, f"None for {name[0]} of {tensor.dtype}", list(found[name].shape))
    own = {name: _of_heads(ask.op, name, value, kv_heads) for name, value in found.items()}
    operands = dict(ask.operands)
    if "k_descale" in own or "v_descale" in own:
        pair = [own.get(name, factor(1.0, q.device)) for name in ("k_descale", "v_descale")]
        most = max(x.shape[0] for x in pair)
        operands["k_scale"], operands["v_scale"] = (x.expand(most).contiguous() for x in pair)
    if "q_descale" in own:
        operands["q_scale"] = own["q_descale"].contiguous()
    return replace(ask, operands=operands)


def _of_heads(op: str, name: str, value: torch.Tensor, kv_heads: int) -> torch.Tensor:
    """[1] or [kv_heads] f32."""
    if value.dim() == 2 and (value.shape[0] == 1 or value.stride(0) == 0):
        value = value[0, :1] if value.stride(1) == 0 else value[0]
    if value.dim() == 0:
        value = value[None]
    if value.dim() != 1 or value.shape[0] not in (1, kv_heads):
        hint = "Expand one factor, or one for each KV head, over the batch."
        raise unmapped(op, name, "the same scales for all requests", f"a tensor {list(value.shape)}", hint)
    return value.float()
