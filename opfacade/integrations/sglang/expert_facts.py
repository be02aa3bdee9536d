"""The attributes of SGLang's expert layers and dispatcher results that the adapter reads."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor


class RunnerConfig(Protocol):
    """SGLang's MoeRunnerConfig."""

    activation: str
    is_gated: bool
    apply_router_weight_on_input: bool
    no_combine: bool
    routed_scaling_factor: float | None
    gemm1_alpha: float | None
    gemm1_clamp_limit: float | None
    swiglu_limit: float | None
    gate_up_interleaved: bool
    num_local_experts: int
    top_k: int
    hidden_size: int
    intermediate_size_per_partition: int
    params_dtype: torch.dtype
    layer: torch.nn.Module | None


class Chosen(Protocol):
    """SGLang's StandardTopKOutput."""

    topk_weights: Tensor
    topk_ids: Tensor


class Dispatched(Protocol):
    """SGLang's StandardDispatchOutput."""

    hidden_states: Tensor
    topk_output: Chosen


class WeightsInfo(Protocol):
    """SGLang's TritonMoeQuantInfo."""

    w13_weight: Tensor
    w2_weight: Tensor
    b13: Tensor | None
    b2: Tensor | None


class Method(Protocol):
    """SGLang's UnquantizedFusedMoEMethod."""

    moe_runner_config: RunnerConfig
    runner: object


class Create(Protocol):
    """UnquantizedFusedMoEMethod.create_moe_runner."""

    def __call__(self, method: Method, /, layer: torch.nn.Module, moe_runner_config: RunnerConfig) -> None: ...
