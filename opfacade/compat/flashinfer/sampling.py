"""FlashInfer's sampling functions on opfacade's plans, with the names, order and defaults of its arguments. Filters use the
given probabilities; the token is drawn from their logarithms in f32. For the same seed, tokens differ from FlashInfer's.
`deterministic` and `enable_pdl` have no effect: every call is deterministic."""

from __future__ import annotations

from typing import Any

import torch

from opfacade.compat.flashinfer._sampling.distributions import Controls, How, Number, checked_rows, drawn, formed, order_of
from opfacade.compat.flashinfer._sampling.seeds import Noise, Value
from opfacade.compat.flashinfer._sampling.speculative import chain_speculative_sampling as chain_speculative_sampling
from opfacade.compat.refusals import truth, unmapped, wrong


def softmax(logits: torch.Tensor, temperature: Number | None = None, enable_pdl: bool | None = None) -> torch.Tensor:
    """The f32 probabilities of logits `[rows, vocab]` divided by temperature: a number above 0, or `[rows]`, where 0 or less
    means 1."""
    op = "softmax"
    x = checked_rows(op, "logits", logits)
    if isinstance(temperature, (int, float)) and not temperature > 0:
        raise unmapped(op, "temperature", "a number above 0", temperature)
    return formed(op, x, "softmax", {} if temperature is None else {"temperature": temperature})


def sampling_from_logits(
    logits: torch.Tensor,
    indices: torch.Tensor | None = None,
    deterministic: bool = True,
    generator: torch.Generator | None = None,
    check_nan: bool = False,
    seed: Value = None,
    offset: Value = None,
) -> torch.Tensor:
    """Draws a token for each row of logits `[rows, vocab]`, or with indices for the rows to which they refer."""
    op = "sampling_from_logits"
    x = checked_rows(op, "logits", logits, truth(op, "check_nan", check_nan))
    _require_rows(op, indices, x)
    tokens: torch.Tensor = drawn(op, x, How(Noise(generator, seed, offset), indices), {})
    return tokens


def sampling_from_probs(
    probs: torch.Tensor,
    indices: torch.Tensor | None = None,
    deterministic: bool = True,
    generator: torch.Generator | None = None,
    check_nan: bool = False,
    seed: Value = None,
    offset: Value = None,
    return_valid: bool = False,
) -> Any:
    """Draws a token for each row of probabilities `[rows, vocab]`, which need not add up to 1. return_valid: also return
    whether the row has a candidate."""
    how = How(Noise(generator, seed, offset), indices, check_nan, return_valid)
    return _from_probs("sampling_from_probs", probs, how, {})


def top_p_sampling_from_probs(
    probs: torch.Tensor,
    top_p: torch.Tensor | float,
    indices: torch.Tensor | None = None,
    deterministic: bool = True,
    generator: torch.Generator | None = None,
    check_nan: bool = False,
    seed: Value = None,
    offset: Value = None,
    return_valid: bool = False,
) -> Any:
    """As sampling_from_probs, from the shortest prefix of the most likely tokens with at least top_p of the mass."""
    how = How(Noise(generator, seed, offset), indices, check_nan, return_valid)
    return _from_probs("top_p_sampling_from_probs", probs, how, {"top_p": top_p})


def top_k_sampling_from_probs(
    probs: torch.Tensor,
    top_k: torch.Tensor | int,
    indices: torch.Tensor | None = None,
    deterministic: bool = True,
    generator: torch.Generator | None = None,
    check_nan: bool = False,
    seed: Value = None,
    offset: Value = None,
    return_valid: bool = False,
) -> Any:
    """As sampling_from_probs, from exactly the top_k most likely tokens."""
    how = How(Noise(generator, seed, offset), indices, check_nan, return_valid)
    return _from_probs("top_k_sampling_from_probs", probs, how, {"top_k": top_k})


def min_p_sampling_from_probs(
    probs: torch.Tensor,
    min_p: torch.Tensor | float,
    indices: torch.Tensor | None = None,
    deterministic: bool = True,
    generator: torch.Generator | None = None,
    check_nan: bool = False,
    seed: Value = None,
    offset: Value = None,
    return_valid: bool = False,
) -> Any:
    """As sampling_from_probs, from the tokens with at least min_p times the largest probability."""
    how = How(Noise(generator, seed, offset), indices, check_nan, return_valid)
    return _from_probs("min_p_sampling_from_probs", probs, how, {"min_p": min_p})


def top_k_top_p_sampling_from_probs(
    probs: torch.Tensor,
    top_k: torch.Tensor | int,
    top_p: torch.Tensor | float,
    indices: torch.Tensor | None = None,
    filter_apply_order: str = "top_k_first",
    deterministic: bool = True,
    generator: torch.Generator | None = None,
    check_nan: bool = False,
    seed: Value = None,
    offset: Value = None,
    return_valid: bool = False,
) -> Any:
    """As sampling_from_probs, with both filters; top_p refers to the mass of the top_k tokens ("top_k_first") or of all tokens
    ("joint")."""
    how = How(Noise(generator, seed, offset), indices, check_nan, return_valid)
    controls = {"top_k": top_k, "top_p": top_p}
    return _from_probs("top_k_top_p_sampling_from_probs", probs, how, controls, filter_apply_order)


def top_k_top_p_sampling_from_logits(
    logits: torch.Tensor,
    top_k: torch.Tensor | int,
    top_p: torch.Tensor | float,
    indices: torch.Tensor | None = None,
    filter_apply_order: str = "top_k_first",
    deterministic: bool = True,
    generator: torch.Generator | None = None,
    check_nan: bool = False,
    seed: Value = None,
    offset: Value = None,
) -> torch.Tensor:
    """As top_k_top_p_sampling_from_probs, for logits, in one launch that reads them once."""
    op = "top_k_top_p_sampling_from_logits"
    x = checked_rows(op, "logits", logits, truth(op, "check_nan", check_nan))
    order = order_of(op, filter_apply_order)
    _require_rows(op, indices, x)
    how = How(Noise(generator, seed, offset), indices)
    tokens: torch.Tensor = drawn(op, x, how, {"top_k": top_k, "top_p": top_p}, order)
    return tokens


def _from_probs(op: str, probs: torch.Tensor, how: How, controls: Controls, order: str = "top_k_first") -> Any:
    how = how._replace(return_valid=truth(op, "return_valid", how.return_valid))
    x, order = checked_rows(op, "probs", probs, truth(op, "check_nan", how.check_nan)), order_of(op, order)
    _require_rows(op, how.indices, x)
    kept = formed(op, x, "renorm", controls, order).log_() if controls else x.float().log()
    return drawn(op, kept, how, {})


def _require_rows(op: str, indices: torch.Tensor | None, x: torch.Tensor) -> None:
    """Checks that indices on the host are rows of x. Indices on a GPU are checked by the plan, depending on
    OPFACADE_VALIDATE."""
    if not isinstance(indices, torch.Tensor) or indices.device.type != "cpu" or indices.is_nested or not x.shape[0]:
        return
    if indices.layout != torch.strided or indices.dtype not in (torch.int32, torch.int64) or not indices.numel():
        return  # empty, or refused later
    for found in map(int, indices.aminmax()):
        if not 0 <= found < x.shape[0]:
            raise wrong(op, "indices", f"rows 0 to {x.shape[0] - 1}", found)


def top_p_renorm_probs(probs: torch.Tensor, top_p: torch.Tensor | float, is_deterministic: bool = False) -> torch.Tensor:
    """The f32 probabilities of the shortest prefix with at least top_p of the mass, and 0 elsewhere."""
    op = "top_p_renorm_probs"
    return formed(op, checked_rows(op, "probs", probs), "renorm", {"top_p": top_p})


def top_k_renorm_probs(probs: torch.Tensor, top_k: torch.Tensor | int, is_deterministic: bool = False) -> torch.Tensor:
    """The probabilities of exactly the top_k most likely tokens in the dtype of probs, and 0 elsewhere."""
    op = "top_k_renorm_probs"
    return formed(op, checked_rows(op, "probs", probs), "renorm", {"top_k": top_k}).to(probs.dtype)


def top_k_mask_logits(logits: torch.Tensor, top_k: torch.Tensor | int) -> torch.Tensor:
    """The unchanged top_k largest logits, and -inf elsewhere."""
    op = "top_k_mask_logits"
    return formed(op, checked_rows(op, "logits", logits), "mask", {"top_k": top_k})


top_p_renorm_prob, top_k_renorm_prob = top_p_renorm_probs, top_k_renorm_probs
