"""The attributes of transformers' objects that the adapter reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from torch import nn

if TYPE_CHECKING:
    from torch import Tensor


class WithLayer(nn.Module):
    """An attention module."""

    layer_idx: int


class RmsNorm(nn.Module):
    """A norm module; these classes are used only in annotations."""

    weight: nn.Parameter


class Mlp(nn.Module):
    """A LlamaMLP."""

    gate_proj: nn.Module
    up_proj: nn.Module
    down_proj: nn.Module
    act_fn: nn.Module


class FusedMlp(nn.Module):
    """A Phi3MLP."""

    gate_up_proj: nn.Module
    down_proj: nn.Module
    activation_fn: nn.Module


class PairsOfExperts(nn.Module):
    """Experts of gpt-oss."""

    limit: float
    alpha: float

    def _apply_gate(self, gate_up: Tensor) -> Tensor:
        raise NotImplementedError


class HalvesOfExperts(nn.Module):
    """Experts that apply the activation to one half of a row."""

    act_fn: nn.Module

    def _apply_gate(self, gate_up_out: Tensor) -> Tensor:
        raise NotImplementedError


class Config(Protocol):
    _attn_implementation: str
    is_encoder_decoder: bool


class Decoder(Protocol):
    config: Config

    def can_generate(self) -> bool: ...
    def set_attn_implementation(self, name: str) -> None: ...


class LogitsProcessor(Protocol):
    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor: ...


class GenerationConfig(Protocol):
    num_beams: int | None
    do_sample: bool


class Generating(Protocol):
    """A model with transformers' generation loop."""

    def _sample(
        self, input_ids: Tensor, processors: object, criteria: object, config: GenerationConfig, **model_kwargs: Any
    ) -> Any: ...


class Allocator(Protocol):
    supports_block_table: bool
    block_physical_stride: int


class PagedCache(Protocol):
    """A PagedAttentionCache: of 5.18, with an allocator for each layer, or of 5.17."""

    layer_to_allocator: Sequence[Allocator]
    sliding_windows: Sequence[int]
    layer_index_to_group_indices: Mapping[int, tuple[int, int]]
    block_size: int
    num_key_value_heads: int
    head_dim: int
    key_cache: Sequence[Tensor]
    value_cache: Sequence[Tensor]

    def get_cache_for_block_table(self, layer: int) -> tuple[int, Tensor, Tensor]: ...
