"""CUDA prefill for sm_90a, paged and ragged: wgmma products, TMA loads, persistent CTAs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from opfacade.backends.cuda import ptxas, support
from opfacade.backends.cuda.attention import facts as facts_of
from opfacade.backends.cuda.attention import prefill as first
from opfacade.backends.cuda.attention import variant
from opfacade.backends.cuda.attention.prefill import Prefill
from opfacade.core.candidate import Launcher, Reason
from opfacade.core.descriptor import cached_by_specialization, memoize_last
from opfacade.core.sku import KernelSku
from opfacade.core.target import Target
from opfacade.plans._attention.paging import FP8
from opfacade.plans._attention.scoring import transforms_scores
from opfacade.plans.attention import BatchRaggedPrefillDescriptor

REVISION = 1  # incremented with each change of output bits; tests/data/fingerprints.json
ARCH = "sm_90a"
MAX_GROUP = 128  # rows of the smallest tile
# Stages in shared memory; bytes for barriers, work, lengths and addresses: kernels/attention/prefill_sm90/params.h.
_STAGES = {64: 4, 128: 2, 192: 2, 256: 2}
_Q_STAGES = {64: 2, 128: 2, 192: 1, 256: 1}
_CONTROL = 8192
_RAW_SLOTS = {64: 4, 128: 3, 256: 3}  # 8 KB each, for an fp8 cache


@dataclass(frozen=True, slots=True)
class PrefillConfig:
    """The tuning choices. keys: keys per tile (0: the default; fewer keys give more stages). ping_pong: consumer warpgroups
    issue products alternately."""

    keys: int = 0
    ping_pong: bool = True

    def facts(self) -> dict[str, bool | int | str]:
        """The choices that differ from the default, as template constants and facts of a SKU."""
        chosen: dict[str, bool | int | str] = {"tile_keys": self.keys} if self.keys else {}
        return chosen if self.ping_pong else chosen | {"turns": False}


DEFAULT = PrefillConfig()
# head_dim of q and k: head_dim of v and o, as in latent attention before absorption; only ragged and not fp8.
_UNEVEN = {192: 128}


class Tile(NamedTuple):
    rows: int
    keys: int


def tile_of(dim: int, kv_dtype: str) -> Tile:
    """Three consumer warpgroups of 64 rows if head_dim is 64 and the cache is not fp8, otherwise two."""
    if dim == 64 and kv_dtype not in FP8:
        return Tile(192, 96)
    return Tile(128, 64 if dim == 256 else 128)


def shared_memory(descriptor: Prefill) -> int:
    """Bytes: stages of Q, K and V, and control data; for an fp8 cache also raw parts of tiles and a factor per row."""
    dim, tile = descriptor.dim, tile_of(descriptor.dim, descriptor.kv_dtype)
    q, kv = _Q_STAGES[dim] * tile.rows * dim, _STAGES[dim] * tile.keys * (dim + descriptor.dim_vo)
    raw = _RAW_SLOTS[dim] * 8192 + tile.rows * 4 if descriptor.kv_dtype in FP8 else 0
    return (q + kv) * 2 + _CONTROL + raw


def head_dims(descriptor: Prefill) -> dict[int, int]:
    plain = isinstance(descriptor, BatchRaggedPrefillDescriptor) and descriptor.kv_dtype not in FP8
    return dict(sorted((facts_of.HEAD_DIMS | (_UNEVEN if plain else {})).items()))


class _Unfit(NamedTuple):
    """Reasons against a specialization key, in the order of report; reasons against the number of splits follow `shared`."""

    arch: tuple[Reason, ...]
    shared: tuple[Reason, ...]
    own: tuple[Reason, ...]
    too_large: tuple[Reason, ...]


@cached_by_specialization
def unfit(descriptor: Prefill, target: Target) -> _Unfit:
    arch = tuple(support.choice_reason("OPF-S001", "target.arch", target.arch, (ARCH,)))
    found = first.shared_reasons(descriptor, target, head_dims(descriptor))
    shared = tuple(reason for reason in found if reason.code != "OPF-S001")  # `arch` is stricter
    rows = support.limit_reason("OPF-S005", "query heads of one kv head", descriptor.group_size, MAX_GROUP)
    own = (*variant.asynchronous_reasons(descriptor), *rows)
    large = () if arch or shared or own else tuple(support.shared_memory_reason(shared_memory(descriptor), target))
    return _Unfit(arch, shared, own, large)


def declines(descriptor: Prefill, target: Target) -> tuple[Reason, ...]:
    return _own_reasons(descriptor, target) or (*unfit(descriptor, target).too_large, *ptxas.reasons())


@memoize_last
def _own_reasons(descriptor: Prefill, target: Target) -> tuple[Reason, ...]:
    found = unfit(descriptor, target)
    split = () if found.shared else first.split_reasons(descriptor, target)
    return (*found.arch, *found.shared, *split, *found.own)


def jit_spec(descriptor: Prefill, target: Target, config: PrefillConfig = DEFAULT) -> Any:
    return spec_of(descriptor, target, first.splits_of(descriptor, target)[0], config)


def spec_of(descriptor: Prefill, target: Target, mode: str, config: PrefillConfig = DEFAULT) -> Any:
    constants = first.constants_of(descriptor, mode) | config.facts()
    return variant.spec_of(f"attention/prefill_sm90/{descriptor.op}_sm90", constants, descriptor, target)


def sku(descriptor: Prefill, target: Target, config: PrefillConfig = DEFAULT) -> KernelSku:
    return sku_of(descriptor, target, first.splits_of(descriptor, target)[0], config)


@cached_by_specialization
def sku_of(descriptor: Prefill, target: Target, mode: str, config: PrefillConfig = DEFAULT) -> KernelSku:
    known = support.pairs(**dict(first.facts(descriptor, mode)), **config.facts())
    tile, transforms = config.keys or tile_of(descriptor.dim, descriptor.kv_dtype).keys, transforms_scores(descriptor)
    line = variant.line_of(descriptor) is not None
    made = facts_of.Identity(descriptor.op, target.arch, "wgmma_tile", REVISION, known, tile, mode != "off", transforms, line)
    return facts_of.make_sku(made)


def launcher(
    descriptor: Prefill, target: Target, identity: KernelSku, allow_build: bool, config: PrefillConfig = DEFAULT
) -> Launcher:
    split = first.splits_of(descriptor, target)
    return first.launcher_of(jit_spec(descriptor, target, config), descriptor, split, identity, allow_build)
