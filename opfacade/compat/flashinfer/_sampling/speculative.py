"""FlashInfer's verification of chains of drafts."""

from __future__ import annotations

from typing import Any

import torch

from opfacade.compat.dtypes import require_integers, require_reals
from opfacade.compat.flashinfer._sampling.seeds import Noise, Value, noise_of
from opfacade.compat.refusals import require_tensor, shared, unmapped, wrong, wrong_shape
from opfacade.compat.selecting import plan_for
from opfacade.plans.sampling import VerifyDraftsArgs, VerifyDraftsDescriptor

OP = "chain_speculative_sampling"
_MOST = 128  # maximum number of drafts per request
Counts = torch.Tensor | None


def chain_speculative_sampling(
    draft_probs: torch.Tensor,
    draft_token_ids: torch.Tensor,
    target_probs: torch.Tensor,
    maybe_output_accepted_token_num: Counts = None,
    maybe_output_emitted_draft_token_num: Counts = None,
    deterministic: bool = True,
    generator: torch.Generator | None = None,
    seed: Value = None,
    offset: Value = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Tokens `[batch, n + 1]` i32, -1 after the last one, and two counts `[batch]`, which are added to the given tensors. The
    first count includes all accepted drafts, even after a rejected one; the second stops at the first rejected draft."""
    sizes = _sizes(draft_probs, draft_token_ids, target_probs)
    counts = {
        "maybe_output_accepted_token_num": maybe_output_accepted_token_num,
        "maybe_output_emitted_draft_token_num": maybe_output_emitted_draft_token_num,
    }
    for name, given in counts.items():
        _check_count(name, given, draft_token_ids)
    first, second = counts.values()
    if first is not None and second is not None and _overlap(first, second):
        raise shared(OP, *reversed(counts))
    # An id that does not fit in 32 bits must stay outside the vocabulary.
    drafts = draft_token_ids.long().clamp(-1, sizes[2]).to(torch.int32).contiguous()
    q, p = draft_probs.float(), target_probs.float()
    noise = noise_of(OP, Noise(generator, seed, offset), sizes[0], drafts.device)
    tokens, emitted = _verified(sizes, (drafts, q, p), noise)
    accepted = _each_alone(sizes, (drafts, q, p), noise)
    return tokens, _added(maybe_output_accepted_token_num, accepted), _added(maybe_output_emitted_draft_token_num, emitted)


def _check_count(name: str, given: Counts, drafts: torch.Tensor) -> None:
    if given is None:
        return
    if require_tensor(OP, name, given, "batch") != (drafts.shape[0],):
        raise wrong_shape(OP, name, f"[batch={drafts.shape[0]}]", list(given.shape))
    if given.dtype not in (torch.int32, torch.int64):
        raise wrong(OP, name, "dtype int32 or int64", given.dtype)
    if given.device != drafts.device:
        raise wrong(OP, name, f"the device of draft_token_ids, {drafts.device}", given.device)
    if given.shape[0] > 1 and given.stride(0) == 0:
        raise wrong(OP, name, "separate memory for each request", "a stride of 0")


def _overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two count tensors may share an element: a tensor that is passed twice would get both sums."""
    if not a.numel() or a.device.type == "meta" or not type(a) is type(b) is torch.Tensor:
        return False
    low, high = sorted((a, b), key=torch.Tensor.data_ptr)
    apart, step = high.data_ptr() - low.data_ptr(), low.stride(0) * low.element_size()
    if apart >= step * (low.shape[0] - 1) + low.element_size():
        return False
    between = (
        step > 0
        and step == high.stride(0) * high.element_size()
        and low.element_size() <= apart % step <= step - high.element_size()
    )
    return not between  # columns of one buffer


def _added(given: Counts, count: torch.Tensor) -> torch.Tensor:
    return count if given is None else given.add_(count.to(given.dtype))


def _sizes(draft_probs: torch.Tensor, drafts: torch.Tensor, target_probs: torch.Tensor) -> tuple[int, int, int]:
    """batch, n and vocab; refuses tensors whose shapes do not match."""
    batch, n, vocab = require_tensor(OP, "draft_probs", draft_probs, "batch, n, vocab")
    if require_tensor(OP, "draft_token_ids", drafts, "batch, n") != (batch, n):
        raise wrong_shape(OP, "draft_token_ids", f"[{batch}, {n}]", list(drafts.shape))
    if require_tensor(OP, "target_probs", target_probs, "batch, n + 1, vocab") != (batch, n + 1, vocab):
        raise wrong_shape(OP, "target_probs", f"[{batch}, {n + 1}, {vocab}]", list(target_probs.shape))
    require_integers(OP, "draft_token_ids", drafts)
    for name, probs in (("draft_probs", draft_probs), ("target_probs", target_probs)):
        require_reals(OP, name, probs)
        if probs.device != drafts.device:
            raise wrong(OP, name, f"the device of draft_token_ids, {drafts.device}", probs.device)
    if not 1 <= n <= _MOST:
        raise unmapped(OP, "draft_token_ids", f"1 to {_MOST} drafts per request", n)
    return batch, n, vocab


def _verified(
    sizes: tuple[int, int, int], tensors: tuple[torch.Tensor, ...], noise: tuple[torch.Tensor, torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """The tokens, and the number of accepted drafts."""
    (batch, n, _), (drafts, q, p) = sizes, tensors
    tokens = torch.empty(batch, n + 1, dtype=torch.int32, device=drafts.device)
    accepted, emitted = (torch.empty(batch, dtype=torch.int32, device=drafts.device) for _ in range(2))
    args = VerifyDraftsArgs(
        draft_tokens=drafts, draft_probs=q, target_probs=p, seed=noise[0], offset=noise[1], tokens=tokens, accepted=accepted,
        emitted=emitted,
    )  # fmt: skip
    plan_for(_descriptor, sizes, drafts.device).run(args)
    return tokens, accepted


def _each_alone(
    sizes: tuple[int, int, int], tensors: tuple[torch.Tensor, ...], noise: tuple[torch.Tensor, torch.Tensor]
) -> torch.Tensor:
    """Verifies each draft alone, as a request with a one-token vocabulary. This is valid because a draft's random number
    depends only on seed and position."""
    (batch, n, vocab), (drafts, q, p) = sizes, tensors
    inside = (drafts >= 0) & (drafts < vocab)
    at = drafts.clamp(0, vocab - 1).long()[..., None]
    own = torch.where(inside[..., None], p[:, :n].gather(2, at), 0.0)
    pair = own.view(-1, 1, 1).expand(-1, 2, 1).contiguous()
    positions = noise[1][:, None] + torch.arange(n, device=drafts.device)
    alone = noise[0].repeat_interleave(n), positions.flatten()
    only = torch.zeros(batch * n, 1, dtype=torch.int32, device=drafts.device)
    _, accepted = _verified((batch * n, 1, 1), (only, q.gather(2, at).view(-1, 1, 1), pair), alone)
    return accepted.view(batch, n).sum(1, dtype=torch.int32)


def _descriptor(facts: Any) -> VerifyDraftsDescriptor:
    batch, n, vocab = facts
    return VerifyDraftsDescriptor(kind="chain", batch_size=batch, num_drafts=n, vocab=vocab)
