"""The attributes of vLLM's objects that the adapter reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class Capability(Protocol):
    """A DeviceCapability."""

    major: int
    minor: int


class ModelConfig(Protocol):
    max_model_len: int


class CacheConfig(Protocol):
    cache_dtype: str


class Config(Protocol):
    """A VllmConfig."""

    model_config: ModelConfig
    cache_config: CacheConfig


class Step(Protocol):
    """A CommonAttentionMetadata."""

    query_start_loc: Tensor
    query_start_loc_cpu: Tensor
    block_table_tensor: Tensor
    seq_lens: Tensor
    slot_mapping: Tensor
    max_query_len: int
    max_seq_len: int
    num_actual_tokens: int
    num_reqs: int
    causal: bool


class CacheLayer(Protocol):
    """An attention layer, with the scales of its cache."""

    _k_scale: Tensor
    _v_scale: Tensor


class Processor(Protocol):
    """A LogitsProcessor. Each kind has some of the other fields."""

    biases: Mapping[int, Mapping[int, float]]
    bias_tensor: Tensor
    min_p: Tensor
    min_p_count: int
    min_toks: Mapping[int, object]

    def apply(self, logits: Tensor) -> Tensor: ...


class Processors(Protocol):
    argmax_invariant: Sequence[Processor]
    non_argmax_invariant: Sequence[Processor]


class Budget(Protocol):
    """A ThinkingBudgetStateHolder."""

    def has_tracked_requests(self) -> bool: ...


class SamplingMetadata(Protocol):
    all_greedy: bool
    all_random: bool
    temperature: Tensor | None
    top_k: Tensor | None
    top_p: Tensor | None
    generators: Mapping[int, torch.Generator]
    logitsprocs: Processors
    allowed_token_ids_mask: Tensor | None
    bad_words_token_ids: Mapping[int, object]
    logprob_token_ids: Mapping[int, object] | None
    max_num_logprobs: int | None
    no_penalties: bool
    prompt_token_ids: Tensor | None
    output_token_ids: Sequence[Sequence[int]]
    repetition_penalties: Tensor
    frequency_penalties: Tensor
    presence_penalties: Tensor
    thinking_budget_state_holder: Budget | None
