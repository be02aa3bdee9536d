"""The attributes of vLLM's expert layers, and of their configuration, that the adapter reads."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor


class Activation(Protocol):
    """A member of vLLM's MoEActivation."""

    @property
    def value(self) -> str: ...


class ParallelConfig(Protocol):
    all2all_backend: str

    @property
    def use_all2all_kernels(self) -> bool: ...


class MoeConfig(Protocol):
    """vLLM's FusedMoEConfig."""

    activation: Activation
    moe_parallel_config: ParallelConfig
    in_dtype: torch.dtype
    device: torch.device | str
    experts_per_token: int
    moe_backend: str
    has_bias: bool
    is_lora_enabled: bool
    swiglu_limit: float | None
    swiglu_alpha: float | None
    swiglu_beta: float | None


class ExpertsLayer(Protocol):
    """vLLM's RoutedExperts. It has biases only if has_bias is true."""

    w13_weight: Tensor
    w2_weight: Tensor
    w13_bias: Tensor
    w2_bias: Tensor
    apply_router_weight_on_input: bool

    @property
    def expert_map(self) -> Tensor | None: ...
