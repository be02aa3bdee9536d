"""Compares the plans that all ranks reserve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from opfacade.distributed.judgement import named, odd_ones, told
from opfacade.plan import Plan

BY_PEERS = "peers"  # SKU.impl of candidates whose kernels write to the memory of peers


def texts(plans: Sequence[Plan[Any]]) -> list[str]:
    """A text that identifies each plan and is the same on all ranks."""
    return [f"{plan.descriptor.model_dump_json()} {plan.sku.id}" for plan in plans]


def refusal(plans: Sequence[Plan[Any]], own_world: int, max_bytes: int, link: object) -> str:
    """The first reason why this rank cannot reserve the plans, or ""."""
    for plan in plans:
        size, world = getattr(plan.descriptor, "symmetric_size", 0), getattr(plan.descriptor, "world", None)
        if world != own_world:
            return f"{plan.descriptor.op} is for {world or 1} ranks, this group has {own_world}"
        if size > max_bytes:
            return f"{plan.descriptor.op} exchanges {size} bytes, max_bytes is {max_bytes}"
        if plan.target.links.kind != "none" and plan.sku.impl == BY_PEERS and not hasattr(link, "round_of"):
            return (
                f"{plan.descriptor.op} writes to the memory of peers, which this group does not have: select for group.target"
            )
    return "" if len({p.descriptor for p in plans}) == len(plans) else "a descriptor occurs twice"


def compare(plans: Mapping[int, tuple[str, ...]], rank: int) -> None:
    """Raises OPF-N002 if the ranks have different plans."""
    if len(set(plans.values())) > 1:
        odd = odd_ones(plans)
        mine, theirs = plans[rank], plans[next((r for r in odd if r != rank), (rank + 1) % len(plans))]
        at = next((i for i, (a, b) in enumerate(zip(mine, theirs, strict=False)) if a != b), min(len(mine), len(theirs)))
        got = f"other plans on {named(odd)}: number {at} of {len(theirs)} is {theirs[at] if at < len(theirs) else 'none'}"
        raise told("group.reserve", "OPF-N002", "the same plans on all ranks", got, odd)


def vote(refusals: Mapping[int, str], code: str) -> None:
    """Raises an error on all ranks if any rank refused."""
    refused = {r: why for r, why in refusals.items() if why}
    if refused:
        first = min(refused)
        got = f"from rank {first}: {refused[first]}"
        raise told("group.reserve", code, "plans that every rank accepts", got, tuple(refused))
