"""CUDA decode: one query row a request, KV cut by the lengths on the device; grid and workspace in closed form."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from opfacade.backends.cuda import support
from opfacade.backends.cuda.attention import facts as facts_of
from opfacade.backends.cuda.attention.decode_block import (
    PLAIN,
    SM_BYTES,
    SYSTEM_BYTES,
    Block,
    Tuning,
    head_blocks,
    rows_of,
    usual_shape,
)
from opfacade.core.candidate import Launcher, Reason
from opfacade.core.descriptor import once_a_kind, once_in_a_row
from opfacade.core.dtypes import ITEMSIZE
from opfacade.core.sku import KernelSku
from opfacade.core.target import Target
from opfacade.plans._attention.paging import FP8
from opfacade.plans.attention import BatchPagedDecodeDescriptor

_SHORT_TOKENS = 8192
_TEAM_TOKENS = 16384
# Of a request and kv head: so much of K one team reads before several have met.
_ALONE_BYTES = 2048 * 256
# (runs at most, blocks of a cluster, clusters of a run): what was fastest on 132 SMs, see docs/notebook/decode.md.
_TEAMS = ((3, 8, 4), (8, 2, 8))
_MOST_PARTS = 2**16 - 1  # what a counter of parts holds
_SHARE_TOKENS = 64
# Each block looks at the lengths of all requests to find its piece: of more, that costs more than it brings.
_MOST_SURVEYED = 256
_CHUNKS = (512, 1024)
_SMALL_CHUNK = 512 * 128  # elements of K: one block reads them in 6 us


class Rules(NamedTuple):
    """What a cut is made by, besides sizes. heads: blocks of them; said: what the caller leaves no choice in.

    short_runs: of at most so many, each has a cluster or several where contexts are short; -1 where none ever has. sms: of the
    device. slots: blocks that run at once, where bounds may promise that a simpler cut keeps them busy; else 0. alone, team:
    blocks, and those of a cluster.
    """

    heads: int
    said: tuple[str, int] | None
    short_runs: int
    sms: int
    slots: int
    alone: Block
    team: Block


@once_a_kind
def rules_of(descriptor: BatchPagedDecodeDescriptor, target: Target, tuning: Tuning) -> Rules:
    """Of a descriptor that has no reason against it but its sizes."""
    split, heads = descriptor.kv_split, head_blocks(descriptor)
    said = ("fixed", split) if isinstance(split, int) else ("off", 0) if split == "off" else None
    able = target.sm_version >= 90 and target.max_shared_memory >= SM_BYTES - SYSTEM_BYTES and descriptor.kv_dtype != "f32"
    # A cluster of 8 stays inside a group of SMs and leaves some over, so the batch must fit the clusters that run at once.
    short_runs = target.sm_count * 85 // 100 // PLAIN.cluster if able and said is None else -1
    # Others were not measured.
    measured = tuning == PLAIN and descriptor.kv_dtype in ("f16", "bf16") and descriptor.dim >= 128
    slots = target.sm_count * usual_shape(descriptor, False).blocks if measured else 0
    alone = Block.of(descriptor, target, tuning, False)
    team = alone if short_runs < 0 else Block.of(descriptor, target, tuning, True)
    return Rules(heads, said, short_runs, target.sm_count, slots, alone, team)


def is_short(descriptor: BatchPagedDecodeDescriptor, target: Target) -> bool:
    """Whether a cluster takes each request's heads: bounds promise a small batch of short contexts, a matter of latency."""
    return _split(descriptor, PLAIN, rules_of(descriptor, target, PLAIN)).mode == "cluster"


def _is_short(descriptor: BatchPagedDecodeDescriptor, rules: Rules) -> bool:
    return descriptor.batch_size * rules.heads <= rules.short_runs and descriptor.kv_token_bound <= _SHORT_TOKENS


class Split(NamedTuple):
    """How requests are cut. chunk: tokens of a fixed one; cluster: blocks of one; teams: clusters that share a run."""

    mode: str
    chunk: int = 0
    cluster: int = 1
    teams: int = 1


def _teams(descriptor: BatchPagedDecodeDescriptor, tuning: Tuning, rules: Rules) -> Split | None:
    """Where several clusters share a run: contexts are short, but too long for one, and all clusters run at once."""
    runs, tokens = descriptor.batch_size * rules.heads, descriptor.kv_token_bound
    row = descriptor.dim * ITEMSIZE[descriptor.kv_dtype]
    ways: tuple[tuple[int, int, int], ...] = ((runs, tuning.cluster, tuning.teams),) if tuning.teams > 1 else ()
    if not tuning.teams and tokens <= _SHORT_TOKENS and tokens * row > _ALONE_BYTES * descriptor.batch_size:
        ways = _TEAMS
    if rules.short_runs < 0 or tokens > _TEAM_TOKENS:
        return None
    fitting = (Split("cluster", 0, cluster, teams) for most, cluster, teams in ways if runs <= most)
    return next(
        (split for split in fitting if runs * split.cluster * split.teams <= within_reach(rules.sms, split.cluster)), None
    )


def within_reach(sms: int, cluster: int) -> int:
    """SMs that clusters of this size fill together. They stay inside a group of SMs: of 132, 15 of eight or 30 of four ran at
    once, and nearly all of two."""
    return sms * (97 if cluster <= 2 else 90) // 100


def split_of(descriptor: BatchPagedDecodeDescriptor, target: Target, tuning: Tuning = PLAIN) -> tuple[str, int]:
    """(mode, chunk in tokens)."""
    return _split(descriptor, tuning, rules_of(descriptor, target, tuning))[:2]


def _split(descriptor: BatchPagedDecodeDescriptor, tuning: Tuning, rules: Rules) -> Split:
    if rules.said is not None:
        return Split(*rules.said)
    if (shared := _teams(descriptor, tuning, rules)) is not None:
        return shared
    if tuning.cluster > 1 and _is_short(descriptor, rules):
        return Split("cluster", cluster=tuning.cluster)
    bounds = descriptor.kv_token_bound, descriptor.batch_size, rules.heads
    simple = _cut_by_bounds(*bounds, descriptor.dim, descriptor.window_left, rules.slots) if rules.slots else None
    return simple or Split(tuning.auto or ("pieces" if descriptor.batch_size <= _MOST_SURVEYED else "auto"))


def _cut_by_bounds(tokens: int, batch: int, heads: int, dim: int, window: int, slots: int) -> Split | None:
    """What "auto" comes to where bounds promise that a simpler cut keeps all blocks busy: then nothing pays for a survey.

    Full windows are runs of one length, which stay whole; and where all chunks run at once no block waits for its turn.
    What is not promised is cut by the lengths on the device.
    """
    if tokens <= _SHORT_TOKENS:
        return None
    if window >= 0:
        runs = batch * heads
        fills = tokens >= batch * (window + 1) and 8 * runs >= 7 * -(-runs // slots) * slots
        return Split("off") if fills else None
    for chunk in _CHUNKS:
        # The bound counts a chunk that is not full for every request, and some fall together.
        at_once = 5 * heads * (tokens // chunk + batch) <= 6 * slots
        # Nobody waits long for a chunk: it is small, or an even share would hardly be smaller.
        if at_once and (chunk * dim <= _SMALL_CHUNK or 2 * tokens * heads >= chunk * slots):
            return Split("fixed", chunk)
    return None


class Cut(NamedTuple):
    """What comes of the sizes of a descriptor. slots, counters: for partial results."""

    split: Split
    blocks: int
    slots: int
    counters: int
    block: Block


@once_in_a_row
def cut_of(descriptor: BatchPagedDecodeDescriptor, target: Target, tuning: Tuning = PLAIN) -> Cut:
    """Whatever the lengths turn out to be."""
    rules = rules_of(descriptor, target, tuning)
    split = _split(descriptor, tuning, rules)
    least = descriptor.batch_size * rules.heads
    if split.mode == "cluster":
        return _over_clusters(descriptor, split, least, rules.team)
    if split.mode == "off":
        return Cut(split, least, 0, 0, rules.alone)
    if split.mode == "fixed":
        items = rules.heads * facts_of.chunks_bound(descriptor, split.chunk)
        return Cut(split, items, items, items, rules.alone)
    tiles = rules.heads * (descriptor.kv_token_bound // _SHARE_TOKENS) + least
    resident = min(tiles, target.sm_count * rules.alone.resident)
    if split.mode == "pieces":
        # decode/schedule/cut.cuh makes at most 1.4 times as many pieces more than runs, and 2.8 times as many come
        # before the last that has a slot.
        return Cut(split, least + 3 * resident // 2, 3 * resident, 3 * resident, rules.alone)
    return Cut(split, min(2 * resident, max(resident, least)), 2 * resident, 2 * resident, rules.alone)


def _over_clusters(descriptor: BatchPagedDecodeDescriptor, split: Split, runs: int, block: Block) -> Cut:
    """One team needs no workspace; several leave their parts there, and meet in 128 columns of a run at a time."""
    if split.teams == 1:
        return Cut(split, runs * split.cluster, 0, 0, block)
    slots, counters = runs * split.teams, runs * -(-rows_of(descriptor) * descriptor.dim // 128)
    return Cut(split, slots * split.cluster, slots, counters, block)


def grid_of(descriptor: BatchPagedDecodeDescriptor, target: Target, tuning: Tuning = PLAIN) -> tuple[int, int]:
    """(blocks, slots for partial results)."""
    cut = cut_of(descriptor, target, tuning)
    return cut.blocks, cut.slots


@once_a_kind
def _unfit(descriptor: BatchPagedDecodeDescriptor, target: Target) -> tuple[Reason, ...]:
    return tuple(facts_of.declines(descriptor, target, ("f16", "bf16", "f32", *FP8)))


def declines(descriptor: BatchPagedDecodeDescriptor, target: Target, tuning: Tuning = PLAIN) -> Sequence[Reason]:
    return _unfit(descriptor, target) or [*_excess(descriptor, target, cut_of(descriptor, target, tuning))]


def _excess(descriptor: BatchPagedDecodeDescriptor, target: Target, cut: Cut) -> Iterator[Reason]:
    yield from support.shared_memory_reason(cut.block.shared_memory, target)
    yield from support.limit_reason("OPF-S006", "work items", cut.blocks, 2**31 - 1, facts_of.SPLIT_HINT)
    if cut.split.mode == "fixed":
        splits = descriptor.request_token_bound // cut.split.chunk + 1
        yield from support.limit_reason("OPF-S006", "splits", splits, _MOST_PARTS, facts_of.SPLIT_HINT)


def facts(descriptor: BatchPagedDecodeDescriptor, tuning: Tuning, split: Split) -> support.SpecPairs:
    other = tuning.facts()
    # A chunk that is not the caller's is part of the identity: a request's bits depend on it.
    other |= {"chunk": split.chunk} if split.chunk and descriptor.kv_split == "auto" else {}
    other |= {"teams": split.teams} if split.teams > 1 else {}
    other |= {"cluster": split.cluster} if split.cluster not in (1, PLAIN.cluster) else {}
    return support.pairs(**facts_of.common_facts(descriptor), split=split.mode, **other)


def jit_spec(descriptor: BatchPagedDecodeDescriptor, target: Target, tuning: Tuning = PLAIN) -> Any:
    cut = cut_of(descriptor, target, tuning)
    shape = cut.block.shape
    tuned = {"warps": shape.warps, "stages": shape.stages, "tile_kv": shape.keys}
    tuned |= {"cluster": cut.split.cluster, "blocks_per_sm": shape.blocks}
    tuned["shared_bytes"] = cut.block.shared_memory
    constants = facts_of.unsaid(descriptor) | dict(facts(descriptor, tuning, cut.split)) | tuned
    for name in ("blocks", "chunk"):
        constants.pop(name, None)
    return support.spec_of("attention/paged_decode", support.pairs(**constants), target)


def sku(descriptor: BatchPagedDecodeDescriptor, target: Target, tuning: Tuning = PLAIN) -> KernelSku:
    return _sku(descriptor, target, tuning, cut_of(descriptor, target, tuning).split)


@once_a_kind
def _sku(descriptor: BatchPagedDecodeDescriptor, target: Target, tuning: Tuning, split: Split) -> KernelSku:
    block, known = _block(descriptor, target, tuning, split.mode), facts(descriptor, tuning, split)
    tile, usual = block.shape.keys, _block(descriptor, Target.parse(target.arch), tuning, split.mode)
    if block.shape.stages != usual.shape.stages:  # a part of its architecture with other shared memory has another binary
        known = support.pairs(**dict(known), stages=block.shape.stages)
    merges = True  # the warps of a block merge in any mode
    return facts_of.make_sku(facts_of.Identity(descriptor.op, target.arch, "split_kv", known, tile, merges))


def _block(descriptor: BatchPagedDecodeDescriptor, target: Target, tuning: Tuning, mode: str) -> Block:
    rules = rules_of(descriptor, target, tuning)
    return rules.team if mode == "cluster" else rules.alone


def workspace(descriptor: BatchPagedDecodeDescriptor, target: Target, tuning: Tuning = PLAIN) -> int:
    """Partial o and lse of every slot, f32, and the counters."""
    cut = cut_of(descriptor, target, tuning)
    return 4 * cut.slots * rows_of(descriptor) * (descriptor.dim + 1) + 8 * cut.counters


def launcher(
    descriptor: BatchPagedDecodeDescriptor, target: Target, identity: KernelSku, allow_build: bool, tuning: Tuning = PLAIN
) -> Launcher:
    if descriptor.batch_size == 0:
        return support.nothing_to_do
    cut = cut_of(descriptor, target, tuning)
    scalars = (*facts_of.token_axis(descriptor), *facts_of.scalars(descriptor), cut.blocks, cut.slots, cut.split.chunk)
    return support.launcher(jit_spec(descriptor, target, tuning), descriptor, identity, allow_build, cut.slots > 0, scalars)
