"""FlashInfer's mixture-of-experts layer, on `FusedMoeDescriptor`, with 16-bit or f32 weights.

Quantised weights, all-to-all and per-expert constants of the activation are refused by name.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import torch

from opfacade.compat.dtypes import FLOATS, NAMES
from opfacade.compat.flashinfer._products.grouped import require_groups
from opfacade.compat.flashinfer._rows import require_out
from opfacade.compat.refusals import missing as _missing
from opfacade.compat.refusals import (
    refuse_unless,
    require_integer,
    require_tensor,
    unlike_plan,
    unmapped,
    wrong_dtype,
    wrong_shape,
)
from opfacade.compat.selecting import plan_for
from opfacade.plans.moe import FusedMoeArgs, FusedMoeDescriptor

# The facts that determine the descriptor: (sizes, dtype, (activation, is gated), bias dtype).
_Facts = tuple[tuple[int, int, int, int, int, int, int], Any, tuple[Any, bool], Any]
_NUMBERS = "FusedMoeDescriptor has alpha, beta and limit as numbers of all experts."


class ActivationType(IntEnum):
    """FlashInfer's numbers for activations."""

    Gelu = 0
    Relu = 1
    Silu = 2
    Swiglu = 3
    Geglu = 4
    SwigluBias = 5
    Relu2 = 6
    SwigluStep = 7
    GegluTanh = 8
    Identity = 9
    Situ = 10
    InvalidType = 11


# Our activation for each number, and whether ups precede gates in fc1.
_ACTIVATIONS = {
    ActivationType.Swiglu: ("silu", True),
    ActivationType.Geglu: ("gelu", True),
    ActivationType.GegluTanh: ("gelu_tanh", True),
    ActivationType.Silu: ("silu", False),
    ActivationType.Relu2: ("relu2", False),
    ActivationType.Identity: ("identity", False),
}


def cutlass_fused_moe(
    input: torch.Tensor,
    token_selected_experts: torch.Tensor,
    token_final_scales: torch.Tensor,
    fc1_expert_weights: torch.Tensor,
    fc2_expert_weights: torch.Tensor,
    output_dtype: torch.dtype,
    quant_scales: list[torch.Tensor],
    fc1_expert_biases: torch.Tensor | None = None,
    fc2_expert_biases: torch.Tensor | None = None,
    input_sf: torch.Tensor | None = None,
    swiglu_alpha: torch.Tensor | None = None,
    swiglu_beta: torch.Tensor | None = None,
    swiglu_limit: torch.Tensor | None = None,
    tp_size: int = 1,
    tp_rank: int = 0,
    ep_size: int = 1,
    ep_rank: int = 0,
    cluster_size: int = 1,
    cluster_rank: int = 0,
    output: torch.Tensor | None = None,
    enable_alltoall: bool = False,
    use_deepseek_fp8_block_scale: bool = False,
    use_w4_group_scaling: bool = False,
    use_mxfp8_act_scaling: bool = False,
    min_latency_mode: bool = False,
    use_packed_weights: bool = False,
    use_wfp4afp8_humming: bool = False,
    tune_max_num_tokens: int = 8192,
    enable_pdl: bool | None = None,
    activation_type: int = ActivationType.Swiglu,
    swizzled_input_sf: bool = True,
    use_fused_finalize: bool = True,
    profile_ids: list[int] | None = None,
    workspace_buffer: torch.Tensor | None = None,
    *,
    clamped_relu2_limit: torch.Tensor | None = None,
    situ_beta: torch.Tensor | None = None,
    situ_linear_beta: torch.Tensor | None = None,
    backend: str = "cutlass",
) -> torch.Tensor:
    """Applies the experts of each row to input `[rows, hidden]`: `[rows, hidden]` in the dtype of input.

    token_selected_experts: int32 `[rows, top_k]`; token_final_scales: f32 of that shape. fc1_expert_weights: `[local experts, 2
    * width, hidden]`, ups before gates, or `[.., width, hidden]` for an activation without gates; fc2_expert_weights: `[local
    experts, hidden, width]`; biases: `[local experts, 2 * width]` and `[local experts, hidden]`. ep_rank of ep_size: this rank
    has the experts from ep_rank * local on; others are skipped. tp_size, tp_rank, cluster_size, cluster_rank, workspace_buffer,
    profile_ids, tune_max_num_tokens, enable_pdl, swizzled_input_sf, use_fused_finalize and backend have no effect: the sum of a
    row is deterministic."""
    op = "cutlass_fused_moe"
    refuse_unless(op, {
        "input_sf": (input_sf, None), "enable_alltoall": (enable_alltoall, False),
        "use_deepseek_fp8_block_scale": (use_deepseek_fp8_block_scale, False),
        "use_w4_group_scaling": (use_w4_group_scaling, False), "use_mxfp8_act_scaling": (use_mxfp8_act_scaling, False),
        "min_latency_mode": (min_latency_mode, False), "use_packed_weights": (use_packed_weights, False),
        "use_wfp4afp8_humming": (use_wfp4afp8_humming, False), "clamped_relu2_limit": (clamped_relu2_limit, None),
        "situ_beta": (situ_beta, None), "situ_linear_beta": (situ_linear_beta, None),
    })  # fmt: skip
    constants = {"swiglu_alpha": (swiglu_alpha, None), "swiglu_beta": (swiglu_beta, None)}
    refuse_unless(op, constants | {"swiglu_limit": (swiglu_limit, None)}, _NUMBERS)
    if quant_scales is not None and not (isinstance(quant_scales, list) and not quant_scales):
        raise unmapped(
            op, "quant_scales", "an empty list or None, for weights that are not quantised", type(quant_scales).__name__
        )
    ep_size, ep_rank = require_integer(op, "ep_size", ep_size), require_integer(op, "ep_rank", ep_rank)
    activation, gated = _activation(op, activation_type)
    names = ("input", "fc1_expert_weights")
    require_groups(op, input, fc1_expert_weights, names, ("rows, hidden", "experts, outputs, hidden"), FLOATS)
    local, outputs, hidden = fc1_expert_weights.shape
    if gated and outputs % 2:
        raise wrong_shape(op, "fc1_expert_weights", "as many gates as ups", list(fc1_expert_weights.shape))
    width = outputs // 2 if gated else outputs
    _require(op, "fc2_expert_weights", fc2_expert_weights, (local, hidden, width), input.dtype)
    if not isinstance(output_dtype, torch.dtype) or output_dtype != input.dtype:
        raise unmapped(op, "output_dtype", f"{input.dtype}, the dtype of input", output_dtype)
    top_k = require_tensor(op, "token_selected_experts", token_selected_experts, "rows, top_k")[1]
    _require(op, "token_selected_experts", token_selected_experts, (len(input), top_k), torch.int32)
    _require(op, "token_final_scales", token_final_scales, (len(input), top_k), torch.float32)
    biases = _biases(op, fc1_expert_biases, fc2_expert_biases, (local, outputs), (local, hidden))
    if output is None:
        output = torch.empty_like(input, memory_format=torch.contiguous_format)
    require_out(op, output, input.shape)
    if output.dtype != output_dtype:
        raise unlike_plan(op, "output", output_dtype, output.dtype, "output must have the dtype of the result.")
    bias_dtype = None if biases[0] is None else NAMES[biases[0].dtype]
    sizes = (len(input), local * ep_size, local, ep_rank * local, top_k, hidden, width)
    plan = plan_for(_descriptor, (sizes, NAMES[input.dtype], (activation, gated), bias_dtype), input.device)
    own: Any = dict(zip(("up_bias", "down_bias"), biases, strict=True))
    plan.run(FusedMoeArgs(
        x=input, ids=token_selected_experts, weights=token_final_scales, up=fc1_expert_weights, down=fc2_expert_weights,
        out=output, **own,
    ))  # fmt: skip
    return output


def _activation(op: str, number: object) -> tuple[str, bool]:
    for known, found in _ACTIVATIONS.items():
        if isinstance(number, int) and number == known:
            return found
    raise unmapped(op, "activation_type", "one of " + ", ".join(one.name for one in _ACTIVATIONS), number)


def _require(op: str, argument: str, value: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    if require_tensor(op, argument, value, ", ".join(map(str, shape))) != shape:
        raise wrong_shape(op, argument, str(list(shape)), list(value.shape))
    if value.dtype != dtype:
        raise wrong_dtype(op, argument, dtype, value.dtype)


def _biases(
    op: str, up: torch.Tensor | None, down: torch.Tensor | None, of_up: tuple[int, int], of_down: tuple[int, int]
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Requires both biases or none, with the same dtype."""
    if up is None and down is None:
        return None, None
    if up is None or down is None:
        name = "fc1_expert_biases" if up is None else "fc2_expert_biases"
        raise unmapped(op, name, "a tensor, because the other product has one", None)
    if up.dtype not in FLOATS:
        raise unmapped(op, "fc1_expert_biases", " or ".join(map(str, FLOATS)), up.dtype)
    _require(op, "fc1_expert_biases", up, of_up, up.dtype)
    _require(op, "fc2_expert_biases", down, of_down, up.dtype)
    return up, down


def _descriptor(facts: _Facts) -> FusedMoeDescriptor:
    (rows, experts, local, first, top_k, hidden, width), dtype, (activation, gated), bias_dtype = facts
    return FusedMoeDescriptor(
        total_num_rows=rows, experts=experts, top_k=top_k, hidden=hidden, width=width, dtype=dtype, activation=activation,
        gated=gated, halves="up_gate" if gated else "gate_up", bias=bias_dtype is not None, bias_dtype=bias_dtype,
        first_expert=first, num_local=local,
    )  # fmt: skip


def __getattr__(name: str) -> Any:
    raise _missing(__name__, name, globals())
