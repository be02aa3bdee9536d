"""The tensors of sampling calls and their descriptions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar

from opfacade.core.descriptor import Args

if TYPE_CHECKING:
    from torch import Tensor

ADJUSTMENT_DOCS: Mapping[str, str] = MappingProxyType({
    "bitmask": "i32 [rows, ceil(vocab / 32)]; token t is a candidate if bit t % 32 of word t // 32 is 1; with bitmask",
    "bias": 'f32 [rows, vocab], added to the logits; with bias="dense"',
    "bias_tokens": 'i32 [rows, num_biases]: ids; ids outside the vocabulary, such as -1, are ignored; with bias="sparse"',
    "bias_values": 'f32 [rows, num_biases], added in the order of the list; -inf bans a token; with bias="sparse"',
    "prompt_mask": "bool [rows, vocab], whether a token occurs in the prompt; with penalties",
    "output_counts": "i32 [rows, vocab], how often a token occurs in the output so far; with penalties",
    "repetition": "f32 [rows] above 0, 1 is off; with penalties",
    "frequency": "f32 [rows], 0 is off; with penalties",
    "presence": "f32 [rows], 0 is off; with penalties",
})  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleArgs(Args):
    """The tensors of one draw. rows: total_num_rows."""

    docs: ClassVar[Mapping[str, str]] = MappingProxyType({
        "logits": "[rows, vocab] in dtype, of any row stride; with indices [num_logits, vocab]",
        "indices": "i32 [rows], the row of logits that each row draws from; with indices",
        "temperature": "f32 [rows]; at most 0 is greedy; with temperature",
        "top_k": "i32 [rows]; at most 0, or at least vocab, is off; with top_k",
        "top_p": "f32 [rows]; at least 1 is off, at most 0 keeps the most likely token; with top_p",
        "min_p": "f32 [rows]; at most 0 is off; with min_p",
        "seed": "i64 [rows], the seed of each row's request",
        "offset": "i64 [rows], the position of the token in its request",
        **ADJUSTMENT_DOCS,
        "num_valid": "i32 [1] on the device: the number of valid rows; later ones are neither read nor written; with num_valid",
        "token": "written: i32 [rows]; -1 for a row without candidates",
        "valid": "written: u8 [rows], 1 if the row has a candidate, else 0",
        "logprob": "written: f32 [rows], log-probability of the token before filters; NaN without a token; with report",
        "rank": "written: i32 [rows], number of candidates before the token in the order; -1 without a token; with report",
        "top_tokens": 'written: i32 [rows, top_n], the most likely candidates, -1 past the last; with report="top_n"',
        "top_logprobs": 'written: f32 [rows, top_n], -inf past the last; with report="top_n"',
        "probs": 'written: f32 [rows, vocab], probabilities of the kept set, 0 elsewhere; with probs_out="filtered"',
    })  # fmt: skip
    logits: Tensor
    indices: Tensor | None = None
    temperature: Tensor | None = None
    top_k: Tensor | None = None
    top_p: Tensor | None = None
    min_p: Tensor | None = None
    seed: Tensor
    offset: Tensor
    bitmask: Tensor | None = None
    bias: Tensor | None = None
    bias_tokens: Tensor | None = None
    bias_values: Tensor | None = None
    prompt_mask: Tensor | None = None
    output_counts: Tensor | None = None
    repetition: Tensor | None = None
    frequency: Tensor | None = None
    presence: Tensor | None = None
    num_valid: Tensor | None = None
    token: Tensor
    valid: Tensor
    logprob: Tensor | None = None
    rank: Tensor | None = None
    top_tokens: Tensor | None = None
    top_logprobs: Tensor | None = None
    probs: Tensor | None = None
