"""CUDA decode: one query row per request, keys partitioned by the lengths on the device; grid and workspace in closed form."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from opfacade.backends.cuda import support
from opfacade.backends.cuda.attention import facts as facts_of
from opfacade.backends.cuda.attention.decode_block import (
    DEFAULT,
    SM_BYTES,
    SYSTEM_BYTES,
    Block,
    DecodeConfig,
    default_shape,
    head_blocks,
    rows_of,
)
from opfacade.core.candidate import Launcher, Reason
from opfacade.core.descriptor import cached_by_specialization, memoize_last
from opfacade.core.dtypes import ITEMSIZE
from opfacade.core.sku import KernelSku
from opfacade.core.target import Target
from opfacade.plans._attention.paging import FP8
from opfacade.plans.attention import BatchPagedDecodeDescriptor

REVISION = 1  # incremented with each change of output bits; tests/data/fingerprints.json
_SHORT_TOKENS = 8192
_TEAM_TOKENS = 16384
# Break-even: bytes of K, a request and kv head, that one cluster reads in the time in which several clusters combine partials.
_ONE_CLUSTER_BYTES = 2048 * 256
# (maximum work units, CTAs per cluster, clusters per unit); fastest on 132 SMs, see docs/notebook/decode.md.
_CLUSTER_CONFIGS = ((3, 8, 4), (8, 2, 8))
_MAX_PARTIALS = 2**16 - 1  # capacity of an arrival counter
_TILE_TOKENS = 64
# Every CTA scans all lengths to determine its split; above 256 requests the scan costs more than balanced splits save.
_MAX_SCANNED_REQUESTS = 256
_CHUNKS = (512, 1024)
_SMALL_CHUNK = 512 * 128  # elements of K: one CTA reads them in 6 us


class Rules(NamedTuple):
    """Size-independent inputs of the partition. heads: head blocks per request. dim, row: elements and bytes of a row of K.

    requested_split: the mode that kv_split sets, or None. short_units: the maximum number of work units with which short
    contexts run on clusters; -1: never. sms: SMs of the device. concurrent_ctas: CTAs that run concurrently, if the bounds may
    select a simpler partition; otherwise 0. single_cta, cluster: the CTA of a launch without and with clusters.
    """

    heads: int
    dim: int
    row: int
    requested_split: tuple[str, int] | None
    short_units: int
    sms: int
    concurrent_ctas: int
    single_cta: Block
    cluster: Block


@cached_by_specialization
def rules_of(descriptor: BatchPagedDecodeDescriptor, target: Target, config: DecodeConfig) -> Rules:
    """The rules for a descriptor that only its sizes may cause to be declined."""
    split, heads = descriptor.kv_split, head_blocks(descriptor)
    requested_split = ("fixed", split) if isinstance(split, int) else ("off", 0) if split == "off" else None
    able = target.sm_version >= 90 and target.max_shared_memory >= SM_BYTES - SYSTEM_BYTES and descriptor.kv_dtype != "f32"
    # A cluster of 8 must fit into one GPC, which leaves some SMs idle: the batch must fit the clusters that run concurrently.
    short_units = target.sm_count * 85 // 100 // DEFAULT.cluster if able and requested_split is None else -1
    # The bounds were measured only for these dtypes and dims.
    measured = config == DEFAULT and descriptor.kv_dtype in ("f16", "bf16") and descriptor.dim >= 128
    slots = target.sm_count * default_shape(descriptor, False).blocks if measured else 0
    single_cta = Block.of(descriptor, target, config, False)
    cluster = single_cta if short_units < 0 else Block.of(descriptor, target, config, True)
    row = descriptor.dim * ITEMSIZE[descriptor.kv_dtype]
    return Rules(heads, descriptor.dim, row, requested_split, short_units, target.sm_count, slots, single_cta, cluster)


def is_short(descriptor: BatchPagedDecodeDescriptor, target: Target) -> bool:
    """True if each request's heads run on clusters: the bounds promise a small batch of short contexts, where latency
    dominates."""
    return _split(descriptor, DEFAULT, rules_of(descriptor, target, DEFAULT), descriptor.kv_token_bound).mode == "cluster"


class Split(NamedTuple):
    """Partition of requests. chunk: tokens per fixed chunk; cluster: CTAs per cluster; clusters: clusters per work unit."""

    mode: str
    chunk: int = 0
    cluster: int = 1
    clusters: int = 1


_BY_LENGTHS = {mode: Split(mode) for mode in ("pieces", "auto")}  # splits whose parts depend on the lengths on the device


def _several_clusters(descriptor: BatchPagedDecodeDescriptor, config: DecodeConfig, rules: Rules, tokens: int) -> Split | None:
    """Several clusters per work unit, if contexts are short but too long for one cluster, and all clusters run concurrently."""
    if rules.short_units < 0 or tokens > _TEAM_TOKENS:
        return None
    units = descriptor.batch_size * rules.heads
    configs: tuple[tuple[int, int, int], ...] = ((units, config.cluster, config.clusters),) if config.clusters > 1 else ()
    if not config.clusters and tokens <= _SHORT_TOKENS and tokens * rules.row > _ONE_CLUSTER_BYTES * descriptor.batch_size:
        configs = _CLUSTER_CONFIGS
    for most, cluster, clusters in configs:
        if units <= most and units * cluster * clusters <= clusterable_sms(rules.sms, cluster):
            return Split("cluster", 0, cluster, clusters)
    return None


def clusterable_sms(sms: int, cluster: int) -> int:
    """SMs that clusters of this size can occupy. A cluster must fit into one GPC: on 132 SMs, 15 clusters of eight or 30 of
    four ran concurrently, and nearly all SMs with clusters of two."""
    return sms * (97 if cluster <= 2 else 90) // 100


def split_of(descriptor: BatchPagedDecodeDescriptor, target: Target, config: DecodeConfig = DEFAULT) -> tuple[str, int]:
    """(mode, chunk in tokens)."""
    return _split(descriptor, config, rules_of(descriptor, target, config), descriptor.kv_token_bound)[:2]


def _split(descriptor: BatchPagedDecodeDescriptor, config: DecodeConfig, rules: Rules, tokens: int) -> Split:
    """tokens: the bound of all requests."""
    if rules.requested_split is not None:
        return Split(*rules.requested_split)
    if (shared := _several_clusters(descriptor, config, rules, tokens)) is not None:
        return shared
    if config.cluster > 1 and descriptor.batch_size * rules.heads <= rules.short_units and tokens <= _SHORT_TOKENS:
        return Split("cluster", cluster=config.cluster)
    bounds = tokens, descriptor.batch_size, rules.heads
    simple = (
        _partition_by_bounds(*bounds, rules.dim, descriptor.window_left, rules.concurrent_ctas)
        if rules.concurrent_ctas
        else None
    )
    return simple or _BY_LENGTHS[config.auto or ("pieces" if descriptor.batch_size <= _MAX_SCANNED_REQUESTS else "auto")]


def _partition_by_bounds(tokens: int, batch: int, heads: int, dim: int, window: int, slots: int) -> Split | None:
    """The partition of "auto" if the bounds promise that a simple one keeps all CTAs busy, so that no scan of lengths is
    needed.

    Full windows are units of equal length, which are not split; if all chunks run concurrently, none waits. None: the lengths
    on the device determine the partition.
    """
    if tokens <= _SHORT_TOKENS:
        return None
    if window >= 0:
        units = batch * heads
        fills = tokens >= batch * (window + 1) and 8 * units >= 7 * -(-units // slots) * slots
        return Split("off") if fills else None
    for chunk in _CHUNKS:
        # The bound counts a partial chunk for every request; some requests have none.
        at_once = 5 * heads * (tokens // chunk + batch) <= 6 * slots
        # Chunks are small, or equal shares would be hardly smaller.
        if at_once and (chunk * dim <= _SMALL_CHUNK or 2 * tokens * heads >= chunk * slots):
            return Split("fixed", chunk)
    return None


class DecodePartition(NamedTuple):
    """Launch sizes derived from a descriptor's sizes. slots, counters: workspace of partial results."""

    split: Split
    blocks: int
    slots: int
    counters: int
    block: Block


@memoize_last
def partition_of(descriptor: BatchPagedDecodeDescriptor, target: Target, config: DecodeConfig = DEFAULT) -> DecodePartition:
    """Valid for any lengths within the bounds."""
    return partition_at(descriptor, config, rules_of(descriptor, target, config), descriptor.kv_token_bound)


def partition_at(descriptor: BatchPagedDecodeDescriptor, config: DecodeConfig, rules: Rules, tokens: int) -> DecodePartition:
    """tokens: the bound of all requests."""
    split = _split(descriptor, config, rules, tokens)
    least = descriptor.batch_size * rules.heads
    if split.mode == "cluster":
        return _cluster_partition(descriptor, split, least, rules.cluster)
    if split.mode == "off":
        return DecodePartition(split, least, 0, 0, rules.single_cta)
    if split.mode == "fixed":
        items = rules.heads * facts_of.chunks_bound(descriptor, split.chunk)
        return DecodePartition(split, items, items, items, rules.single_cta)
    tiles = rules.heads * (tokens // _TILE_TOKENS) + least
    resident = min(tiles, rules.sms * rules.single_cta.resident)
    if split.mode == "pieces":
        # decode/schedule/cut.cuh creates at most 1.4 * resident more splits than units, and at most 2.8 * resident splits
        # precede the last split with a slot.
        return DecodePartition(split, least + 3 * resident // 2, 3 * resident, 3 * resident, rules.single_cta)
    return DecodePartition(split, min(2 * resident, max(resident, least)), 2 * resident, 2 * resident, rules.single_cta)


def _cluster_partition(descriptor: BatchPagedDecodeDescriptor, split: Split, units: int, block: Block) -> DecodePartition:
    """One cluster needs no workspace; several clusters store partials and synchronise once per 128 columns of a work unit."""
    if split.clusters == 1:
        return DecodePartition(split, units * split.cluster, 0, 0, block)
    slots, counters = units * split.clusters, units * -(-rows_of(descriptor) * descriptor.dim // 128)
    return DecodePartition(split, slots * split.cluster, slots, counters, block)


def grid_of(descriptor: BatchPagedDecodeDescriptor, target: Target, config: DecodeConfig = DEFAULT) -> tuple[int, int]:
    """(CTAs, workspace slots)."""
    partition = partition_of(descriptor, target, config)
    return partition.blocks, partition.slots


@cached_by_specialization
def unfit(descriptor: BatchPagedDecodeDescriptor, target: Target) -> tuple[Reason, ...]:
    return tuple(facts_of.declines(descriptor, target, ("f16", "bf16", "f32", *FP8)))


def declines(descriptor: BatchPagedDecodeDescriptor, target: Target, config: DecodeConfig = DEFAULT) -> Sequence[Reason]:
    return unfit(descriptor, target) or [*excess(descriptor, target, partition_of(descriptor, target, config))]


def excess(descriptor: BatchPagedDecodeDescriptor, target: Target, partition: DecodePartition) -> Iterator[Reason]:
    yield from support.shared_memory_reason(partition.block.shared_memory, target)
    yield from support.limit_reason("OPF-S006", "work items", partition.blocks, 2**31 - 1, facts_of.SPLIT_HINT)
    if partition.split.mode == "fixed":
        splits = descriptor.request_token_bound // partition.split.chunk + 1
        yield from support.limit_reason("OPF-S006", "splits", splits, _MAX_PARTIALS, facts_of.SPLIT_HINT)


def facts(descriptor: BatchPagedDecodeDescriptor, config: DecodeConfig, split: Split) -> support.SpecPairs:
    other = config.facts()
    # A chunk chosen here is part of the identity, because a request's bits depend on it.
    other |= {"chunk": split.chunk} if split.chunk and descriptor.kv_split == "auto" else {}
    other |= {"teams": split.clusters} if split.clusters > 1 else {}
    other |= {"cluster": split.cluster} if split.cluster not in (1, DEFAULT.cluster) else {}
    return support.pairs(**facts_of.common_facts(descriptor), split=split.mode, **other)


def jit_spec(descriptor: BatchPagedDecodeDescriptor, target: Target, config: DecodeConfig = DEFAULT) -> Any:
    partition = partition_of(descriptor, target, config)
    shape = partition.block.shape
    tuned = {"warps": shape.warps, "stages": shape.stages, "tile_kv": shape.keys}
    tuned |= {"cluster": partition.split.cluster, "blocks_per_sm": shape.blocks}
    tuned["shared_bytes"] = partition.block.shared_memory
    constants = facts_of.default_constants(descriptor) | dict(facts(descriptor, config, partition.split)) | tuned
    for name in ("blocks", "chunk"):
        constants.pop(name, None)
    return support.spec_of("attention/decode/paged_decode", support.pairs(**constants), target)


def sku(descriptor: BatchPagedDecodeDescriptor, target: Target, config: DecodeConfig = DEFAULT) -> KernelSku:
    return sku_of(descriptor, target, config, partition_of(descriptor, target, config).split)


@cached_by_specialization
def sku_of(descriptor: BatchPagedDecodeDescriptor, target: Target, config: DecodeConfig, split: Split) -> KernelSku:
    block, known = _block(descriptor, target, config, split.mode), facts(descriptor, config, split)
    tile, default = block.shape.keys, _block(descriptor, Target.parse(target.arch), config, split.mode)
    if block.shape.stages != default.shape.stages:  # the binary depends on the shared memory of the target
        known = support.pairs(**dict(known), stages=block.shape.stages)
    merges = True  # the warps of a CTA merge in every mode
    return facts_of.make_sku(facts_of.Identity(descriptor.op, target.arch, "split_kv", REVISION, known, tile, merges))


def _block(descriptor: BatchPagedDecodeDescriptor, target: Target, config: DecodeConfig, mode: str) -> Block:
    rules = rules_of(descriptor, target, config)
    return rules.cluster if mode == "cluster" else rules.single_cta


def workspace(descriptor: BatchPagedDecodeDescriptor, target: Target, config: DecodeConfig = DEFAULT) -> int:
    """Partial o and lse of every slot in f32, and the counters, in bytes."""
    partition = partition_of(descriptor, target, config)
    return slot_bytes(descriptor) * partition.slots + 8 * partition.counters


def slot_bytes(descriptor: BatchPagedDecodeDescriptor) -> int:
    return 4 * rows_of(descriptor) * (descriptor.dim + 1)


def launcher(
    descriptor: BatchPagedDecodeDescriptor,
    target: Target,
    identity: KernelSku,
    allow_build: bool,
    config: DecodeConfig = DEFAULT,
) -> Launcher:
    if descriptor.batch_size == 0:
        return support.nothing_to_do
    partition = partition_of(descriptor, target, config)
    scalars = (
        *facts_of.token_axis(descriptor),
        *facts_of.scalars(descriptor),
        partition.blocks,
        partition.slots,
        partition.split.chunk,
    )
    return support.launcher(
        jit_spec(descriptor, target, config), descriptor, identity, allow_build, partition.slots > 0, scalars
    )
