"""CUDA prefill for sm_90a, paged and ragged: asynchronous products, loads by the copy engine, blocks that stay."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from opfacade.backends.cuda import ptxas, support
from opfacade.backends.cuda.attention import facts as facts_of
from opfacade.backends.cuda.attention import prefill as first
from opfacade.backends.cuda.attention import variant
from opfacade.backends.cuda.attention.prefill import Prefill
from opfacade.core.candidate import Launcher, Reason
from opfacade.core.descriptor import once_a_kind
from opfacade.core.sku import KernelSku
from opfacade.core.target import Target
from opfacade.plans._attention.paging import FP8
from opfacade.plans._attention.scoring import transforms_scores
from opfacade.plans.attention import BatchRaggedPrefillDescriptor

ARCH = "sm_90a"
MAX_GROUP = 128  # a tile of the fewest rows
# Stages in shared memory and bytes for barriers, work, lengths, addresses: kernels/attention/prefill_sm90/params.h.
_STAGES = {64: 4, 128: 2, 192: 2, 256: 2}
_Q_STAGES = {64: 2, 128: 2, 192: 1, 256: 1}
_CONTROL = 8192
_RAW_SLOTS = {64: 4, 128: 3, 256: 3}  # of 8 KB each, of an fp8 cache


@dataclass(frozen=True, slots=True)
class Tuning:
    """What a measurement may choose otherwise. keys: of a tile (0: as many as usual; fewer make more stages). turns: whether
    the computing warpgroups issue their products by turns."""

    keys: int = 0
    turns: bool = True

    def facts(self) -> dict[str, bool | int | str]:
        """What is not as usual, in the words of templates and SKUs."""
        said: dict[str, bool | int | str] = {"tile_keys": self.keys} if self.keys else {}
        return said if self.turns else said | {"turns": False}


PLAIN = Tuning()
# As latent attention has them before absorption, but a cache of pages or of fp8 has not.
_UNEVEN = {192: 128}


class Tile(NamedTuple):
    rows: int
    keys: int


def tile_of(dim: int, kv_dtype: str) -> Tile:
    """Three warpgroups of 64 rows compute where head_dim is 64, unless keys are widened; else two."""
    if dim == 64 and kv_dtype not in FP8:
        return Tile(192, 96)
    return Tile(128, 64 if dim == 256 else 128)


def shared_memory(descriptor: Prefill) -> int:
    """Q, K and V in stages, and control; of fp8 also pieces of tiles as they are stored, and a factor for each row."""
    dim, tile = descriptor.dim, tile_of(descriptor.dim, descriptor.kv_dtype)
    q, kv = _Q_STAGES[dim] * tile.rows * dim, _STAGES[dim] * tile.keys * (dim + descriptor.dim_vo)
    raw = _RAW_SLOTS[dim] * 8192 + tile.rows * 4 if descriptor.kv_dtype in FP8 else 0
    return (q + kv) * 2 + _CONTROL + raw


def head_dims(descriptor: Prefill) -> dict[int, int]:
    plain = isinstance(descriptor, BatchRaggedPrefillDescriptor) and descriptor.kv_dtype not in FP8
    return dict(sorted((facts_of.HEAD_DIMS | (_UNEVEN if plain else {})).items()))


class _Unfit(NamedTuple):
    """What is against a kind, in the order in which it is told, the number of splits between `shared` and `own`."""

    arch: tuple[Reason, ...]
    shared: tuple[Reason, ...]
    own: tuple[Reason, ...]
    too_large: tuple[Reason, ...]


@once_a_kind
def _unfit(descriptor: Prefill, target: Target) -> _Unfit:
    arch = tuple(support.choice_reason("OPF-S001", "target.arch", target.arch, (ARCH,)))
    found = first.shared_reasons(descriptor, target, head_dims(descriptor))
    shared = tuple(reason for reason in found if reason.code != "OPF-S001")  # `arch` asks for more
    rows = support.limit_reason("OPF-S005", "query heads of one kv head", descriptor.group_size, MAX_GROUP)
    own = (*variant.asynchronous_reasons(descriptor), *rows)
    large = () if arch or shared or own else tuple(support.shared_memory_reason(shared_memory(descriptor), target))
    return _Unfit(arch, shared, own, large)


def declines(descriptor: Prefill, target: Target) -> list[Reason]:
    unfit = _unfit(descriptor, target)
    split = () if unfit.shared else first.split_reasons(descriptor, target)
    reasons = [*unfit.arch, *unfit.shared, *split, *unfit.own]
    return reasons or [*unfit.too_large, *ptxas.reasons()]


def jit_spec(descriptor: Prefill, target: Target, tuning: Tuning = PLAIN) -> Any:
    return spec_of(descriptor, target, first.splits_of(descriptor, target)[0], tuning)


def spec_of(descriptor: Prefill, target: Target, mode: str, tuning: Tuning = PLAIN) -> Any:
    constants = first.constants_of(descriptor, mode) | tuning.facts()
    return variant.spec_of(f"attention/{descriptor.op}_sm90", constants, descriptor, target)


def sku(descriptor: Prefill, target: Target, tuning: Tuning = PLAIN) -> KernelSku:
    return sku_of(descriptor, target, first.splits_of(descriptor, target)[0], tuning)


@once_a_kind
def sku_of(descriptor: Prefill, target: Target, mode: str, tuning: Tuning = PLAIN) -> KernelSku:
    known = support.pairs(**dict(first.facts(descriptor, mode)), **tuning.facts())
    tile, transforms = tuning.keys or tile_of(descriptor.dim, descriptor.kv_dtype).keys, transforms_scores(descriptor)
    line = variant.line_of(descriptor) is not None
    made = facts_of.Identity(descriptor.op, target.arch, "wgmma_tile", known, tile, mode != "off", transforms, line)
    return facts_of.make_sku(made)


def launcher(descriptor: Prefill, target: Target, identity: KernelSku, allow_build: bool, tuning: Tuning = PLAIN) -> Launcher:
    split = first.splits_of(descriptor, target)
    return first.launcher_of(jit_spec(descriptor, target, tuning), descriptor, split, identity, allow_build)
