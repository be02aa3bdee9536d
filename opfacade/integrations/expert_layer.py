"""The experts of an engine's layer as one plan, with the ids and weights from the engine's router."""

from __future__ import annotations

from functools import lru_cache
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from opfacade import Preference, Target, explain
from opfacade.core.dtypes import FloatDType
from opfacade.core.target import of_device
from opfacade.integrations.refusal import refuse
from opfacade.integrations.support import first_reason
from opfacade.integrations.tensors import described, dtype_of, takes
from opfacade.plans.moe import FusedMoeArgs, FusedMoeDescriptor, FusedMoePlan

PART = "experts"
KEPT = 1024  # cached descriptors: the number of rows varies, but a model has few other sizes


class Form(NamedTuple):
    """The function between the two products of an expert, as fields of FusedMoeDescriptor."""

    activation: Literal["silu", "gelu", "gelu_tanh", "relu2"] = "silu"
    gated: bool = True
    interleaved: bool = False
    limit: float | None = None
    alpha: float | None = None
    beta: float = 0.0
    at_input: bool = False


class Sizes(NamedTuple):
    """local: the number of experts on this rank. bias_dtype: None without biases."""

    local: int
    top_k: int
    hidden: int
    width: int
    dtype: FloatDType
    bias_dtype: FloatDType | None = None


class Weights(NamedTuple):
    """up [local, 2 * width, hidden], or without gates [local, width, hidden]; down [local, hidden, width]; biases of both."""

    up: Tensor
    down: Tensor
    up_bias: Tensor | None = None
    down_bias: Tensor | None = None


@lru_cache(maxsize=KEPT)
def descriptor_of(rows: int, sizes: Sizes, form: Form) -> FusedMoeDescriptor:
    """The layer for `rows` rows of x. Raises DescriptorError if the sizes or the form are invalid."""
    return FusedMoeDescriptor(
        total_num_rows=rows, experts=sizes.local, top_k=sizes.top_k, hidden=sizes.hidden, width=sizes.width,
        dtype=sizes.dtype, bias=sizes.bias_dtype is not None, bias_dtype=sizes.bias_dtype,
        activation=form.activation, gated=form.gated, halves="interleaved" if form.interleaved else "gate_up",
        limit=form.limit, alpha=form.alpha, beta=form.beta, weights_at="input" if form.at_input else "output",
    )  # fmt: skip


def refuse_without_kernel(way: str, sizes: Sizes, form: Form, target: Target) -> None:
    """Raises UnsupportedError (OPF-I001) with the reason if no CUDA kernel runs such a layer on a GPU."""
    if target.is_cpu:
        return
    found = explain(descriptor_of(1, sizes, form), Preference(backend="cuda"), target)
    if found.chosen is None:
        hint = "Run this model with the engine's own experts."
        refuse(way, "OPF-I001", "layer", expected="what a kernel takes", got=first_reason(found), hint=hint, part=PART)


def local_ids(ids: Tensor, expert_map: Tensor | None) -> Tensor:
    """int32 [rows, top_k], the experts of this rank, -1 for those of other ranks and of padding.

    ids: global. expert_map: int32 [global experts], the local id of each or -1; None: all are local. Does not synchronise."""
    if expert_map is None:
        return ids.to(torch.int32)
    inside = (ids >= 0) & (ids < len(expert_map))
    found = expert_map.index_select(0, torch.where(inside, ids, 0).flatten()).view(ids.shape)
    return torch.where(inside, found, -1).to(torch.int32)


def run(way: str, form: Form, x: Tensor, ids: Tensor, weights: Tensor, of: Weights) -> Tensor:
    """x [rows, hidden]; local ids and weights [rows, top_k]: the weighted sum over each row's choices, in order, in the dtype
    of x.

    Raises DTypeError (OPF-I003) for tensors that no plan takes."""
    for name, tensor in (("hidden_states", x), ("w13_weight", of.up), ("w2_weight", of.down)):
        if not takes(tensor) or tensor.dtype != x.dtype:
            expected = f"a plain tensor of f16, bf16 or f32 on cpu or cuda, in one dtype: {x.dtype}"
            refuse(way, "OPF-I003", name, expected=expected, got=described(tensor), part=PART)
    bias_dtype = None if of.up_bias is None else dtype_of(way, "w13_bias", of.up_bias)
    sizes = Sizes(len(of.up), ids.shape[1], x.shape[1], of.down.shape[2], dtype_of(way, "hidden_states", x), bias_dtype)
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    biases = {} if of.up_bias is None else {"up_bias": of.up_bias, "down_bias": of.down_bias}
    args = FusedMoeArgs(
        x=x, ids=ids.contiguous(), weights=weights.float().contiguous(), up=of.up, down=of.down, out=out, **biases,  # type: ignore[arg-type]
    )  # fmt: skip
    FusedMoePlan.select(descriptor_of(len(x), sizes, form), target=_target(x.device)).run(args)
    return out


@lru_cache(maxsize=16)
def _target(device: torch.device) -> Target:
    return of_device(device.index or 0) if device.type == "cuda" else Target.cpu()
