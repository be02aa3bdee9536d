"""CUDA decode: one query row a request, KV shared evenly over the device; grid and workspace in closed form."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from opfacade.backends.cuda import attention_facts as facts_of
from opfacade.backends.cuda import support
from opfacade.backends.cuda.attention_decode_block import (
    PLAIN,
    SM_BYTES,
    SYSTEM_BYTES,
    Block,
    Tuning,
    head_blocks,
    rows_of,
    usual_shape,
)
from opfacade.descriptor import once_a_kind, once_in_a_row
from opfacade.paging import FP8
from opfacade.plans.attention import BatchPagedDecodeDescriptor
from opfacade.registry import Launcher, Reason
from opfacade.sku import KernelSku
from opfacade.target import Target

_SHORT_TOKENS = 8192
_MOST_PARTS = 2**16 - 1  # what a counter of parts holds
_SHARE_TOKENS = 64
_CHUNKS = (512, 1024)
_SMALL_CHUNK = 512 * 128  # elements of K: one block reads them in 6 us


class Rules(NamedTuple):
    """What a cut is made by, besides sizes. heads: blocks of them; said: what the caller leaves no choice in.

    short_runs: of at most so many, each has a cluster where contexts are short; -1 where none ever has. slots: blocks that run
    at once, where bounds may promise that a simpler cut keeps them busy; else 0. alone, team: blocks, and those of a cluster.
    """

    heads: int
    said: tuple[str, int] | None
    short_runs: int
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
    return Rules(heads, said, short_runs, slots, alone, team)


def is_short(descriptor: BatchPagedDecodeDescriptor, target: Target) -> bool:
    """Whether a cluster takes each request's heads: bounds promise a small batch of short contexts, a matter of latency."""
    return _is_short(descriptor, rules_of(descriptor, target, PLAIN))


def _is_short(descriptor: BatchPagedDecodeDescriptor, rules: Rules) -> bool:
    return descriptor.batch_size * rules.heads <= rules.short_runs and descriptor.kv_token_bound <= _SHORT_TOKENS


def split_of(descriptor: BatchPagedDecodeDescriptor, target: Target, tuning: Tuning = PLAIN) -> tuple[str, int]:
    """(mode, chunk in tokens)."""
    return _split(descriptor, tuning, rules_of(descriptor, target, tuning))


def _split(descriptor: BatchPagedDecodeDescriptor, tuning: Tuning, rules: Rules) -> tuple[str, int]:
    if rules.said is not None:
        return rules.said
    if tuning.cluster > 1 and _is_short(descriptor, rules):
        return "cluster", 0
    if not rules.slots:
        return "auto", 0
    bounds = descriptor.kv_token_bound, descriptor.batch_size, rules.heads
    return _cut_by_bounds(*bounds, descriptor.dim, descriptor.window_left, rules.slots)


def _cut_by_bounds(tokens: int, batch: int, heads: int, dim: int, window: int, slots: int) -> tuple[str, int]:
    """What "auto" comes to where bounds promise that a simpler cut keeps all blocks busy: then nothing pays for even shares.

    Full windows are runs of one length, which stay whole; and where all chunks run at once no block holds parts of two runs.
    What is not promised is shared evenly, by the lengths on the device.
    """
    if tokens <= _SHORT_TOKENS:
        return "auto", 0
    if window >= 0:
        runs = batch * heads
        fills = tokens >= batch * (window + 1) and 8 * runs >= 7 * -(-runs // slots) * slots
        return ("off" if fills else "auto"), 0
    for chunk in _CHUNKS:
        # The bound counts a chunk that is not full for every request, and some fall together.
        at_once = 5 * heads * (tokens // chunk + batch) <= 6 * slots
        # Nobody waits long for a chunk: it is small, or an even share would hardly be smaller.
        if at_once and (chunk * dim <= _SMALL_CHUNK or 2 * tokens * heads >= chunk * slots):
            return "fixed", chunk
    return "auto", 0


class Cut(NamedTuple):
    """What comes of the sizes of a descriptor. slots: for partial results."""

    mode: str
    chunk: int
    blocks: int
    slots: int
    block: Block


@once_in_a_row
def cut_of(descriptor: BatchPagedDecodeDescriptor, target: Target, tuning: Tuning = PLAIN) -> Cut:
    """Whatever the lengths turn out to be."""
    rules = rules_of(descriptor, target, tuning)
    mode, chunk = _split(descriptor, tuning, rules)
    least = descriptor.batch_size * rules.heads
    if mode == "cluster":
        return Cut(mode, chunk, least * tuning.cluster, 0, rules.team)
    if mode == "off":
        return Cut(mode, chunk, least, 0, rules.alone)
    if mode == "fixed":
        items = rules.heads * (descriptor.kv_token_bound // chunk) + least
        return Cut(mode, chunk, items, items, rules.alone)
    tiles = rules.heads * (descriptor.kv_token_bound // _SHARE_TOKENS) + least
    resident = min(tiles, target.sm_count * rules.alone.resident)
    return Cut(mode, chunk, min(2 * resident, max(resident, least)), 2 * resident, rules.alone)


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
    hint = "Use a larger kv_split or a smaller max_kv_indices."
    yield from support.limit_reason("OPF-S006", "work items", cut.blocks, 2**31 - 1, hint)
    if cut.mode == "fixed":
        yield from support.limit_reason("OPF-S006", "splits", descriptor.kv_token_bound // cut.chunk + 1, _MOST_PARTS, hint)


def facts(descriptor: BatchPagedDecodeDescriptor, tuning: Tuning, mode: str, chunk: int) -> support.SpecPairs:
    other = tuning.facts()
    # A chunk that is not the caller's is part of the identity: a request's bits depend on it.
    other |= {"chunk": chunk} if chunk and descriptor.kv_split == "auto" else {}
    return support.pairs(**facts_of.common_facts(descriptor), split=mode, **other)


def jit_spec(descriptor: BatchPagedDecodeDescriptor, target: Target, tuning: Tuning = PLAIN) -> Any:
    cut = cut_of(descriptor, target, tuning)
    shape = cut.block.shape
    tuned = {"warps": shape.warps, "stages": shape.stages, "tile_kv": shape.keys}
    tuned |= {"cluster": tuning.cluster if cut.mode == "cluster" else 1, "blocks_per_sm": shape.blocks}
    tuned["shared_bytes"] = cut.block.shared_memory
    constants = facts_of.unsaid(descriptor) | dict(facts(descriptor, tuning, cut.mode, cut.chunk)) | tuned
    for name in ("blocks", "chunk"):
        constants.pop(name, None)
    return support.spec_of("attention/paged_decode", support.pairs(**constants), target)


def sku(descriptor: BatchPagedDecodeDescriptor, target: Target, tuning: Tuning = PLAIN) -> KernelSku:
    cut = cut_of(descriptor, target, tuning)
    return _sku(descriptor, target, tuning, cut.mode, cut.chunk)


@once_a_kind
def _sku(descriptor: BatchPagedDecodeDescriptor, target: Target, tuning: Tuning, mode: str, chunk: int) -> KernelSku:
    block, known = _block(descriptor, target, tuning, mode), facts(descriptor, tuning, mode, chunk)
    tile, usual = block.shape.keys, _block(descriptor, Target.parse(target.arch), tuning, mode)
    if block.shape.stages != usual.shape.stages:  # a part of its architecture with other shared memory has another binary
        known = support.pairs(**dict(known), stages=block.shape.stages)
    merges = True  # the warps of a block merge in any mode
    return facts_of.make_sku(facts_of.Identity(descriptor.op, target.arch, "split_kv", known, tile, merges))


def _block(descriptor: BatchPagedDecodeDescriptor, target: Target, tuning: Tuning, mode: str) -> Block:
    rules = rules_of(descriptor, target, tuning)
    return rules.team if mode == "cluster" else rules.alone


def workspace(descriptor: BatchPagedDecodeDescriptor, target: Target, tuning: Tuning = PLAIN) -> int:
    """Partial o and lse of every slot, f32, and its counter."""
    return cut_of(descriptor, target, tuning).slots * (4 * rows_of(descriptor) * (descriptor.dim + 1) + 8)


def launcher(
    descriptor: BatchPagedDecodeDescriptor, target: Target, identity: KernelSku, allow_build: bool, tuning: Tuning = PLAIN
) -> Launcher:
    if descriptor.batch_size == 0:
        return support.nothing_to_do
    cut = cut_of(descriptor, target, tuning)
    scalars = (*facts_of.token_axis(descriptor), *facts_of.scalars(descriptor), cut.blocks, cut.slots, cut.chunk)
    return support.launcher(
        jit_spec(descriptor, target, tuning), descriptor, identity, allow_build, cut.mode in ("auto", "fixed"), scalars
    )
