"""CUDA prefill, paged and ragged, with the same device code; tiles, splits and workspace in closed form."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from opfacade.backends.cuda import support
from opfacade.backends.cuda.attention import facts as facts_of
from opfacade.backends.cuda.attention import variant
from opfacade.core.candidate import Launcher, Reason
from opfacade.core.descriptor import cached_by_specialization, memoize_last
from opfacade.core.sku import KernelSku
from opfacade.core.target import Target
from opfacade.plans._attention.paging import FP8
from opfacade.plans._attention.scoring import transforms_scores
from opfacade.plans.attention import BatchPagedPrefillDescriptor, BatchRaggedPrefillDescriptor

if TYPE_CHECKING:
    from opfacade.jit.spec import JitSpec


@dataclass(frozen=True, slots=True)
class MmaTile:
    """Rows and keys of the tile of a CTA, and its warps."""

    rows: int
    keys: int
    warps: int


REVISION = 1  # incremented with each change of output bits; tests/data/fingerprints.json
TILES = {64: MmaTile(128, 64, 4), 128: MmaTile(128, 64, 4), 256: MmaTile(64, 64, 4)}
_MAX_AUTO_SPLITS = 32
_MIN_KEYS_A_SPLIT = 256

Prefill = BatchPagedPrefillDescriptor | BatchRaggedPrefillDescriptor
Split = tuple[str, int, int]  # mode, number of splits, chunk in tokens
Units = tuple[int, int, int]  # as `units_of` returns them
_WHOLE: Split = ("off", 1, 0)


@memoize_last
def splits_of(descriptor: Prefill, target: Target) -> Split:
    """The split of a prefill: (mode, number of splits, chunk in tokens), which depends only on bounds.

    "auto" splits only if there are fewer tiles than SMs; otherwise the mode is "off", which the SKU states.
    """
    return split_at(descriptor, descriptor.request_token_bound, units_of(descriptor), target.sm_count)


def split_at(descriptor: Prefill, tokens: int, units: Units, sms: int) -> Split:
    """tokens: the bound of a request. units: those of the descriptor."""
    if descriptor.kv_split == "off":
        return _WHOLE
    if descriptor.kv_split != "auto":
        return "fixed", max(1, -(-tokens // descriptor.kv_split)), descriptor.kv_split
    rows, (tile_rows, group, kv_heads) = descriptor.total_num_rows, units
    blocks = max(1, -(-rows * group // tile_rows), min(descriptor.batch_size, rows)) * kv_heads
    if blocks >= sms:
        return _WHOLE
    wanted = min(2 * sms // blocks, tokens // _MIN_KEYS_A_SPLIT, _MAX_AUTO_SPLITS)
    return ("auto", wanted, 0) if wanted > 1 else _WHOLE


@cached_by_specialization
def units_of(descriptor: Prefill) -> Units:
    """Rows of a tile, which the registers that hold o limit; query heads of one kv head; kv heads."""
    return TILES[descriptor.dim_vo].rows, descriptor.group_size, descriptor.kv_heads


def shared_memory(descriptor: Prefill) -> int:
    """Bytes: Q, K, V, the double-buffered tables of rows and key parameters, and the work; for fp8 also a tile in the stored
    format."""
    tile, dim = TILES[descriptor.dim], descriptor.dim
    raw = tile.keys * dim + tile.rows * 4 if descriptor.kv_dtype in FP8 else 0
    tables = variant.key_table_bytes(descriptor, tile.keys, 2)
    return (tile.rows + 2 * tile.keys) * dim * 2 + 4 * tile.keys * 8 + 1024 + raw + tables


def declines(descriptor: Prefill, target: Target) -> Sequence[Reason]:
    return _unfit(descriptor, target) or [*split_reasons(descriptor, target)] or _too_large(descriptor, target)


@cached_by_specialization
def _unfit(descriptor: Prefill, target: Target) -> tuple[Reason, ...]:
    return tuple(shared_reasons(descriptor, target, facts_of.HEAD_DIMS))


@cached_by_specialization
def _too_large(descriptor: Prefill, target: Target) -> tuple[Reason, ...]:
    return tuple(support.shared_memory_reason(shared_memory(descriptor), target))


def shared_reasons(descriptor: Prefill, target: Target, head_dims: Mapping[int, int]) -> Iterator[Reason]:
    """Reasons against any prefill kernel, except its splits and its shared memory."""
    yield from facts_of.declines(descriptor, target, ("f16", "bf16", *FP8), head_dims)
    yield from variant.narrow_reasons(descriptor)
    yield from support.limit_reason("OPF-S005", "num_kv_heads", descriptor.kv_heads, support.MAX_GRID_YZ)


def split_reasons(descriptor: Prefill, target: Target) -> Iterator[Reason]:
    _, splits, _ = splits_of(descriptor, target)
    if splits > support.MAX_GRID_YZ:
        yield Reason("OPF-S006", "splits", str(splits), f"at most {support.MAX_GRID_YZ}", facts_of.SPLIT_HINT)


def facts(descriptor: Prefill, mode: str) -> support.SpecPairs:
    return support.pairs(**facts_of.common_facts(descriptor), causal=descriptor.causal, split=mode)


def constants_of(descriptor: Prefill, mode: str) -> dict[str, bool | int | str]:
    """The facts, including the defaults that an id omits."""
    return facts_of.default_constants(descriptor) | dict(facts(descriptor, mode))


def jit_spec(descriptor: Prefill, target: Target) -> Any:
    tile = TILES[descriptor.dim]
    facts = {"tile_rows": tile.rows, "tile_kv": tile.keys, "warps": tile.warps}
    constants = constants_of(descriptor, splits_of(descriptor, target)[0]) | facts
    return variant.spec_of(f"attention/prefill/{descriptor.op}", constants, descriptor, target)


def sku(descriptor: Prefill, target: Target) -> KernelSku:
    return _sku(descriptor, target, splits_of(descriptor, target)[0])


@cached_by_specialization
def _sku(descriptor: Prefill, target: Target, mode: str) -> KernelSku:
    known, tile, transforms = facts(descriptor, mode), TILES[descriptor.dim].keys, transforms_scores(descriptor)
    made = facts_of.Identity(descriptor.op, target.arch, "mma_tile", REVISION, known, tile, mode != "off", transforms)
    return facts_of.make_sku(made)


def workspace(descriptor: Prefill, target: Target) -> int:
    """Partial o and lse of every split, f32: 4 * splits * total_num_rows * num_qo_heads * (head_dim_vo + 1) bytes."""
    return bytes_of(descriptor, splits_of(descriptor, target))


def bytes_of(descriptor: Prefill, split: Split) -> int:
    if split[0] == "off":
        return 0
    return 4 * split[1] * descriptor.total_num_rows * descriptor.num_qo_heads * (descriptor.dim_vo + 1)


def launcher(descriptor: Prefill, target: Target, identity: KernelSku, allow_build: bool) -> Launcher:
    return launcher_of(jit_spec(descriptor, target), descriptor, splits_of(descriptor, target), identity, allow_build)


def launcher_of(spec: JitSpec, descriptor: Prefill, split: Split, identity: KernelSku, allow_build: bool) -> Launcher:
    """split: the result of `splits_of`."""
    if descriptor.total_num_rows == 0 or descriptor.batch_size == 0:
        return support.nothing_to_do
    mode, splits, chunk = split
    scalars = (*facts_of.token_axis(descriptor), *facts_of.scalars(descriptor), splits, chunk)
    return support.launcher(spec, descriptor, identity, allow_build, mode != "off", scalars)
