"""Converts vLLM's `SamplingMetadata` to operands of a draw. Tensors stay on the device; lists on the host are copied to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from opfacade.integrations.drawing import bitmask_of, counted, new_seeds
from opfacade.integrations.refusal import refuse_draw

if TYPE_CHECKING:
    from opfacade.integrations.vllm.parts import Processor, SamplingMetadata

WAY = "vllm"
_EPS = 1e-5  # in vLLM, a lower temperature means greedy
_PER_DRAW = 4  # the distance by which vLLM moves a generator's offset back when it discards a token
_PROCESSED = ("processed_logits", "processed_logprobs")
Operands = dict[str, Tensor | None]


def refuse_processed(mode: str) -> None:
    """Raises UnsupportedError for log probabilities of filtered logits, because a draw does not compute them."""
    if mode in _PROCESSED:
        refuse_draw(WAY, "OPF-I001", "logprobs_mode", expected="raw_logprobs or raw_logits", got=mode)


def plain_processors(metadata: SamplingMetadata, adjust: bool = False) -> bool:
    """Whether a draw supports all processors: min_p without top_p, and with `adjust` also logit biases.

    In vLLM, min_p comes before top_p, which then refers to the remaining mass; a draw cannot do this.
    """
    mapped = all(
        _has_no_effect(p) or (_is(p, "MinP") and metadata.top_p is None) for p in metadata.logitsprocs.argmax_invariant
    )
    rest = metadata.logitsprocs.non_argmax_invariant if adjust else ()
    return mapped and all(_has_no_effect(p) or _is(p, "LogitBias") for p in rest)


def _is(processor: object, name: str) -> bool:
    return type(processor).__name__ == f"{name}LogitsProcessor"


def _has_no_effect(processor: Processor) -> bool:
    """Whether this is one of vLLM's own processors that no request uses."""
    if _is(processor, "MinTokens"):
        return not processor.min_toks
    return not processor.biases if _is(processor, "LogitBias") else _is(processor, "MinP") and not processor.min_p_count


def filters(logits: Tensor, metadata: SamplingMetadata) -> Operands:
    """The operands temperature, top_k, top_p and min_p."""
    found: Operands = {"temperature": _temperature(logits, metadata)}
    found["top_k"] = None if metadata.top_k is None else metadata.top_k.to(torch.int32)
    found["top_p"] = None if metadata.top_p is None else metadata.top_p.float()
    own = [p for p in metadata.logitsprocs.argmax_invariant if _is(p, "MinP") and p.min_p_count]
    found["min_p"] = own[0].min_p.view(-1) if own else None
    return found


def _temperature(logits: Tensor, metadata: SamplingMetadata) -> Tensor:
    if metadata.all_greedy or metadata.temperature is None:
        return torch.zeros(len(logits), dtype=torch.float32, device=logits.device)
    given: Tensor = metadata.temperature.float()
    return given if metadata.all_random else torch.where(given < _EPS, 0.0, given)


def adjustments(logits: Tensor, metadata: SamplingMetadata, bias: SparseBias) -> Operands:
    """The operands for bitmask, biases and penalties, which a draw applies in vLLM's order."""
    found: Operands = {}
    if metadata.allowed_token_ids_mask is not None:  # True bans a token
        _check_banned(logits, metadata.allowed_token_ids_mask)
        found["bitmask"] = bitmask_of(~metadata.allowed_token_ids_mask)
    for processor in metadata.logitsprocs.non_argmax_invariant:
        if _is(processor, "LogitBias") and processor.biases:
            found |= bias.of(logits, processor)
    return found if metadata.no_penalties else found | _penalties(logits, metadata)


def _check_banned(logits: Tensor, banned: Tensor) -> None:
    """Refuses a mask for another vocabulary: its bitmask may have the same number of words, and the missing tokens would be
    banned."""
    if banned.dtype != torch.bool:
        refuse_draw(WAY, "OPF-I003", "allowed_token_ids_mask", expected="torch.bool", got=banned.dtype)
    if banned.shape != logits.shape:
        expected = f"{list(logits.shape)}, that of logits"
        refuse_draw(WAY, "OPF-I002", "allowed_token_ids_mask", expected=expected, got=list(banned.shape))


def _penalties(logits: Tensor, metadata: SamplingMetadata) -> Operands:
    vocab = logits.shape[1]
    if metadata.prompt_token_ids is None:
        refuse_draw(WAY, "OPF-I004", "prompt_token_ids", expected="a tensor where requests have penalties", got=None)
    return {
        "prompt_mask": counted(metadata.prompt_token_ids, vocab) > 0,
        "output_counts": counted(padded(metadata.output_token_ids, logits.device), vocab),
        "repetition": metadata.repetition_penalties.float(),
        "frequency": metadata.frequency_penalties.float(),
        "presence": metadata.presence_penalties.float(),
    }


def padded(rows: Sequence[Sequence[int]], device: torch.device) -> Tensor:
    """The lists as i64 [rows, longest], padded with -1, which is not a token."""
    longest = max(map(len, rows), default=0)
    found = torch.tensor([[*row, *[-1] * (longest - len(row))] for row in rows], dtype=torch.int64)
    return found.view(len(rows), longest).to(device)


class SparseBias:
    """Biases as lists of tokens and values, [rows, n]; rebuilt when vLLM's processor has rebuilt its tensors."""

    def __init__(self) -> None:
        self._source: tuple[Tensor, int] | None = None
        self._made: Operands = {}

    def of(self, logits: Tensor, processor: Processor) -> Operands:
        source = self._source
        if source is None or source[0] is not processor.bias_tensor or source[1] != len(logits):
            self._made = _listed(processor.biases, logits)  # may raise; then the cached lists stay unchanged
            self._source = (processor.bias_tensor, len(logits))
        return self._made


def _listed(biases: Mapping[int, Mapping[int, float]], logits: Tensor) -> Operands:
    longest = max(map(len, biases.values()))
    width = 1 << (longest - 1).bit_length()  # a power of two, so that lists of many lengths share a plan
    tokens = torch.full((len(logits), width), -1, dtype=torch.int32)
    values = torch.zeros(len(logits), width)
    for row, entries in biases.items():
        if not 0 <= row < len(logits):
            refuse_draw(WAY, "OPF-I002", "biases", expected=f"requests below {len(logits)}, the rows of logits", got=row)
        tokens[row, : len(entries)], values[row, : len(entries)] = _entries(entries)
    return {"bias_tokens": tokens.to(logits.device), "bias_values": values.to(logits.device)}


def _entries(entries: Mapping[int, float]) -> tuple[Tensor, Tensor]:
    """The biased tokens i32 [n] and biases f32 [n] of one request."""
    try:
        return torch.tensor(list(entries), dtype=torch.int32), torch.tensor(list(entries.values()), dtype=torch.float32)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        refuse_draw(WAY, "OPF-I003", "biases", expected="token ids of 32 bits, each with a number", got=error)


def noise(logits: Tensor, generators: Mapping[int, torch.Generator]) -> Operands:
    """One seed per row: from the request's generator if it has one, otherwise from torch's generator of the device."""
    seed = new_seeds(logits)
    offset = torch.zeros_like(seed)
    own = {row: _next(generator) for row, generator in generators.items() if row < len(logits)}
    if own:
        rows = torch.tensor(list(own), device=logits.device)
        numbers = torch.tensor(list(own.values()), dtype=torch.int64).to(logits.device)
        seed[rows], offset[rows] = numbers[:, 0], numbers[:, 1]
    return {"seed": seed, "offset": offset}


def _next(generator: torch.Generator) -> tuple[int, int]:
    """Seed and position for a request's next token. A CPU generator has no position, so it draws a new seed for each token."""
    if generator.device.type != "cuda":
        return int(torch.randint(-(2**63), 2**63 - 1, (1,), generator=generator, dtype=torch.int64)), 0
    position = generator.get_offset()
    generator.set_offset(position + _PER_DRAW)
    return (generator.initial_seed() + 2**63) % 2**64 - 2**63, position // _PER_DRAW
