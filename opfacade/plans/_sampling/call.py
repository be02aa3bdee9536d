"""SamplingCall: the tensors of a sampling call, without None: the reader knows which of them the descriptor has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor


class SamplingCall(Protocol):
    """Operands by name. An op has only some of them; these are tensors, or None if they are optional."""

    logits: Tensor
    x: Tensor
    indices: Tensor
    temperature: Tensor | None
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    seed: Tensor
    offset: Tensor
    bitmask: Tensor
    bias: Tensor
    bias_tokens: Tensor
    bias_values: Tensor
    prompt_mask: Tensor
    output_counts: Tensor
    repetition: Tensor
    frequency: Tensor
    presence: Tensor
    num_valid: Tensor
    starts: Tensor
    ends: Tensor
    token: Tensor
    valid: Tensor
    logprob: Tensor
    rank: Tensor
    top_tokens: Tensor
    top_logprobs: Tensor
    probs: Tensor
    out: Tensor
    masked: Tensor
    values: Tensor
    positions: Tensor
    draft_tokens: Tensor
    draft_probs: Tensor
    target_probs: Tensor
    target_tokens: Tensor
    first_child: Tensor
    next_sibling: Tensor
    tokens: Tensor
    accepted: Tensor
    emitted: Tensor
    nodes: Tensor
