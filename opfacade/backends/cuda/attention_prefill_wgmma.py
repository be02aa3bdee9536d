"""CUDA prefill for sm_90a, paged and ragged: asynchronous products, loads by the copy engine, blocks that stay."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from opfacade.backends.cuda import attention_facts as facts_of
from opfacade.backends.cuda import attention_prefill as first
from opfacade.backends.cuda import attention_variant as variant
from opfacade.backends.cuda import ptxas, support
from opfacade.backends.cuda.attention_prefill import Prefill
from opfacade.paging import FP8
from opfacade.plans.attention import BatchRaggedPrefillDescriptor
from opfacade.registry import Launcher, Reason
from opfacade.scoring import transforms_scores
from opfacade.sku import KernelSku
from opfacade.target import Target

ARCH = "sm_90a"
TILE_ROWS = 128
TILE_KEYS = {64: 128, 128: 128, 192: 128, 256: 64}
# Stages in shared memory and bytes for barriers, work, lengths, addresses: kernels/attention/prefill_wgmma_params.h.
_STAGES = {64: 4, 128: 2, 192: 2, 256: 2}
_Q_STAGES = {64: 2, 128: 2, 192: 1, 256: 1}
_CONTROL = 8192


@dataclass(frozen=True, slots=True)
class Tuning:
    """What a measurement may choose otherwise. keys: of a tile (0: as many as usual; fewer make more stages). turns: whether
    the two computing warpgroups issue their products by turns."""

    keys: int = 0
    turns: bool = True

    def facts(self) -> dict[str, bool | int | str]:
        """What is not as usual, in the words of templates and SKUs."""
        said: dict[str, bool | int | str] = {"tile_keys": self.keys} if self.keys else {}
        return said if self.turns else said | {"turns": False}


PLAIN = Tuning()
# As latent attention has them before absorption, but a cache of pages or of fp8 has not.
_UNEVEN = {192: 128}


def shared_memory(descriptor: Prefill) -> int:
    """Q, K and V in stages, and control; of fp8 also three half tiles as they are stored, and a factor for each row."""
    dim = descriptor.dim
    q, kv = _Q_STAGES[dim] * TILE_ROWS * dim, _STAGES[dim] * TILE_KEYS[dim] * (dim + descriptor.dim_vo)
    raw = 3 * TILE_KEYS[dim] // 2 * dim + TILE_ROWS * 4 if descriptor.kv_dtype in FP8 else 0
    return (q + kv) * 2 + _CONTROL + raw


def head_dims(descriptor: Prefill) -> dict[int, int]:
    plain = isinstance(descriptor, BatchRaggedPrefillDescriptor) and descriptor.kv_dtype not in FP8
    return dict(sorted((facts_of.HEAD_DIMS | (_UNEVEN if plain else {})).items()))


def declines(descriptor: Prefill, target: Target) -> list[Reason]:
    reasons = [*support.choice_reason("OPF-S001", "target.arch", target.arch, (ARCH,))]
    reasons += first.shared_reasons(descriptor, target, head_dims(descriptor))
    reasons += variant.asynchronous_reasons(descriptor)
    reasons += support.limit_reason("OPF-S005", "query heads of one kv head", descriptor.group_size, TILE_ROWS)
    if not reasons:
        reasons += [*support.shared_memory_reason(shared_memory(descriptor), target), *ptxas.reasons()]
    return reasons


def jit_spec(descriptor: Prefill, target: Target, tuning: Tuning = PLAIN) -> Any:
    constants = first.constants_of(descriptor, target) | tuning.facts()
    return variant.spec_of(f"attention/{descriptor.op}_wgmma", constants, descriptor, target)


def sku(descriptor: Prefill, target: Target, tuning: Tuning = PLAIN) -> KernelSku:
    facts = support.pairs(**dict(first.facts(descriptor, target)), **tuning.facts())
    merges = first.splits_of(descriptor, target)[0] != "off"
    tile = tuning.keys or TILE_KEYS[descriptor.dim]
    made = facts_of.Identity(descriptor.op, target.arch, "wgmma_tile", facts, tile, merges, transforms_scores(descriptor))
    return facts_of.make_sku(made)


def launcher(descriptor: Prefill, target: Target, identity: KernelSku, allow_build: bool, tuning: Tuning = PLAIN) -> Launcher:
    return first.launcher_of(jit_spec(descriptor, target, tuning), descriptor, target, identity, allow_build)
