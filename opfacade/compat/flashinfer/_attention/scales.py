"""Converts FlashInfer's q_scale, k_scale and v_scale (numbers or tensors, common or per head) to opfacade's scales."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from opfacade.compat.constants import factor
from opfacade.compat.dtypes import FP8
from opfacade.compat.refusals import number, require_dense, unmapped, wrong_shape

Scale = float | torch.Tensor | None


class Given(NamedTuple):
    q: Scale = None
    k: Scale = None
    v: Scale = None


def factors_given(q: torch.Tensor, given: Given, args: tuple[Any, ...]) -> tuple[Given, tuple[Any, ...]]:
    """Splits positional arguments; for an fp8 q, three of them may be the scales."""
    if len(args) == 3 and isinstance(q, torch.Tensor) and q.dtype in FP8 and given == Given():
        return Given(*args), ()
    return given, args


class Factors(NamedTuple):
    """sm_scale: multiplied by all scales that are numbers. operands: scales that are tensors. after: a factor of o."""

    sm_scale: float
    operands: dict[str, torch.Tensor]
    head_factor: bool
    after: float | torch.Tensor | None


class Shape(NamedTuple):
    """The dtypes of q and the cache, and the numbers of query heads and KV heads."""

    q_dtype: torch.dtype
    kv_dtype: torch.dtype
    heads: int
    kv_heads: int
    device: torch.device
    paged: bool


def factors_of(op: str, sm_scale: float, given: Given, shape: Shape) -> Factors:
    """A paged fp8 cache has its scales as operands. Other scales of Q and K become part of sm_scale if they are numbers, and a
    factor per query head if they are tensors. The scale of V multiplies o."""
    given = Given(*(_plain(op, f"{name}_scale", scale) for name, scale in zip("qkv", given, strict=True)))
    operands: dict[str, torch.Tensor] = {}
    if shape.paged and shape.kv_dtype in FP8 and (given.k is not None or given.v is not None):
        operands |= _of_cache(op, given, shape)
        given = given._replace(k=None, v=None)
    if isinstance(given.q, torch.Tensor) and given.q.shape[0] in (1, shape.kv_heads) and shape.q_dtype in FP8:
        operands["q_scale"] = given.q.contiguous()
        given = given._replace(q=None)
    tensors = {name: scale for name, scale in (("q", given.q), ("k", given.k)) if isinstance(scale, torch.Tensor)}
    for scale in (given.q, given.k):
        sm_scale *= scale if isinstance(scale, float) else 1.0
    if tensors:
        operands["head_params"] = _of_query_heads(op, tensors, shape)[None]
    after = given.v
    if isinstance(after, torch.Tensor) and after.shape[0] > 1:
        after = _by_query_head(op, "v_scale", after, shape)[:, None]
    return Factors(sm_scale, operands, bool(tensors), after)


def _plain(op: str, name: str, scale: Scale) -> float | torch.Tensor | None:
    """The scale: None if it is 1, a number on the host, or a tensor [n] f32 on the device."""
    if scale is None or isinstance(scale, (float, int)):
        return None if scale is None or scale == 1.0 else number(op, name, scale)
    if not isinstance(scale, torch.Tensor):
        return number(op, name, scale)
    require_dense(op, name, scale, "1, or one for each head")
    if scale.dim() > 1 or not scale.numel():
        raise wrong_shape(op, name, "a number, [1], or one per head", list(scale.shape))
    return float(scale) if scale.numel() == 1 and scale.device.type == "cpu" else scale.float().reshape(-1)


def _of_cache(op: str, given: Given, shape: Shape) -> dict[str, torch.Tensor]:
    pair = []
    for name, scale in (("k_scale", given.k), ("v_scale", given.v)):
        own = scale if isinstance(scale, torch.Tensor) else factor(1.0 if scale is None else scale, shape.device)
        if own.shape[0] not in (1, shape.kv_heads):
            raise wrong_shape(op, name, f"[1] or [num_kv_heads={shape.kv_heads}]", list(own.shape))
        pair.append(own)
    most = max(own.shape[0] for own in pair)
    k_scale, v_scale = (own.expand(most).contiguous() for own in pair)
    return {"k_scale": k_scale, "v_scale": v_scale}


def _of_query_heads(op: str, tensors: dict[str, torch.Tensor], shape: Shape) -> torch.Tensor:
    """[heads]: the product of the factors of Q and K of each query head."""
    found = None
    for name, scale in tensors.items():
        own = _by_query_head(op, f"{name}_scale", scale, shape) if scale.shape[0] > 1 else scale.expand(shape.heads)
        found = own if found is None else found * own
    if found is None:
        raise unmapped(op, "q_scale", "a factor", "none")
    return found.contiguous()


def _by_query_head(op: str, name: str, scale: torch.Tensor, shape: Shape) -> torch.Tensor:
    """[heads], from one factor per query head or per KV head. The number of factors decides which; if both fit, the argument's
    name decides."""
    if name == "q_scale" and scale.shape[0] == shape.heads:
        return scale
    if scale.shape[0] == shape.kv_heads:
        return scale.repeat_interleave(shape.heads // shape.kv_heads, output_size=shape.heads)
    if scale.shape[0] == shape.heads:
        return scale
    raise wrong_shape(op, name, f"[1], [num_kv_heads={shape.kv_heads}] or [num_qo_heads={shape.heads}]", list(scale.shape))
