"""Answers of the default candidates to a new size: what no size changes is computed before (`Candidate.sized`)."""

from __future__ import annotations

from collections.abc import Callable

from opfacade.backends.cuda import ptxas, support
from opfacade.backends.cuda.attention import decode
from opfacade.backends.cuda.attention import prefill as first
from opfacade.backends.cuda.attention import prefill_pieces as pieces
from opfacade.backends.cuda.attention import prefill_sm90 as wgmma
from opfacade.backends.cuda.attention.decode_block import DEFAULT
from opfacade.backends.cuda.attention.prefill import Prefill
from opfacade.core.candidate import Offer
from opfacade.core.sku import KernelSku
from opfacade.core.target import Target
from opfacade.plans.attention import BatchPagedDecodeDescriptor


def of_whole_tiles(problem: Prefill, target: Target) -> Callable[[Prefill], Offer] | None:
    """The split by the bounds, with its SKU and workspace."""
    if any(wgmma.unfit(problem, target)):
        return None
    units, sms, skus = first.units_of(problem), target.sm_count, dict[str, KernelSku]()

    def answer(one: Prefill) -> Offer:
        split = mode, splits, _ = first.split_at(one, one.request_token_bound, units, sms)
        reasons = ptxas.reasons()
        if reasons or splits > support.MAX_GRID_YZ:
            return tuple(wgmma.declines(one, target)), None, None
        if mode not in skus:
            skus[mode] = wgmma.sku_of(one, target, mode)
        return (), skus[mode], first.bytes_of(one, split)

    return answer


def of_pieces(problem: Prefill, target: Target) -> Callable[[Prefill], Offer] | None:
    """Whether the bounds of a request are long enough."""
    if problem.kv_split != "auto" or any(wgmma.unfit(problem, target)):
        return None

    def answer(one: Prefill) -> Offer:
        reasons = ptxas.reasons()
        if not pieces.may_cut(one, target):
            return (*reasons, pieces.too_short(one)), None, None
        return (reasons, None, None) if reasons else ((), pieces.WGMMA.sku(one, target), pieces.WGMMA.workspace(one, target))

    return answer


def of_decode(problem: BatchPagedDecodeDescriptor, target: Target) -> Callable[[BatchPagedDecodeDescriptor], Offer] | None:
    """The partition by the bounds, with its SKU and workspace."""
    if decode.unfit(problem, target):
        return None
    rules, slot, skus = decode.rules_of(problem, target, DEFAULT), decode.slot_bytes(problem), dict[decode.Split, KernelSku]()

    def answer(one: BatchPagedDecodeDescriptor) -> Offer:
        partition = split, _, slots, counters, _ = decode.partition_at(one, DEFAULT, rules, one.kv_token_bound)
        if reasons := tuple(decode.excess(one, target, partition)):
            return reasons, None, None
        if split not in skus:
            skus[split] = decode.sku_of(one, target, DEFAULT, split)
        return (), skus[split], slot * slots + 8 * counters

    return answer
