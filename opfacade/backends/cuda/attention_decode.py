"""CUDA decode: one query row a request, KV shared evenly over the device; grid and workspace in closed form."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any

from opfacade.backends.cuda import attention_facts as facts_of
from opfacade.backends.cuda import support
from opfacade.paging import FP8
from opfacade.plans.attention import BatchPagedDecodeDescriptor
from opfacade.registry import Launcher, Reason
from opfacade.sku import ITEMSIZE, KernelSku
from opfacade.target import Target


@dataclass(frozen=True, slots=True)
class Shape:
    """Warps of a block, stages of each warp's pipeline, keys of a stage (of 16-bit elements), and blocks that share an SM."""

    warps: int
    stages: int
    keys: int
    blocks: int = 2  # hide each other's ends


@dataclass(frozen=True, slots=True)
class Tuning:
    """What a variant does otherwise. warps, blocks: of its Shape, 0 the usual; cluster: blocks of a cluster.

    even: "auto" is always even shares. It is no fact of a SKU: `split` says it.
    """

    warps: int = 0
    blocks: int = 0
    cluster: int = 8  # the most that every GPU with clusters grants
    even: bool = False


PLAIN = Tuning()
SHAPES = {64: Shape(4, 6, 16), 128: Shape(4, 3, 16), 256: Shape(2, 3, 16)}
# By (dim, bytes of an element), of as many heads as are columns: they leave registers for more warps, which is what widening
# fp8 and small rows wait for.
COLUMN_SHAPES = {(64, 1): Shape(4, 6, 16, 4), (64, 2): Shape(4, 6, 16, 4), (128, 1): Shape(3, 3, 16, 4)}
TEAM_SHAPES = {64: Shape(8, 6, 16, 1), 128: Shape(8, 3, 16, 1), 256: Shape(4, 3, 16, 1)}
_SM_BYTES = 233472  # shared memory of an SM on sm_90
_SYSTEM_BYTES = 1024  # of it, what a block cannot use
F32_SHAPES = {64: Shape(4, 2, 32), 128: Shape(4, 2, 32), 256: Shape(4, 2, 16)}
_ROWS = 16
_COLUMNS = 8  # as many heads or fewer are the columns of a product
_SHORT_TOKENS = 8192
_MOST_STAGES = 6
_LEAST_STAGES = 2  # one is computed while another is on its way; where two do not fit, shared memory is a reason to decline
_MOST_PARTS = 2**16 - 1  # what a counter of parts holds
_SHARE_TOKENS = 64
_CHUNKS = (512, 1024)
_SMALL_CHUNK = 512 * 128  # elements of K: one block reads them in 6 us


def usual_shape(descriptor: BatchPagedDecodeDescriptor, team: bool) -> Shape:
    """Before its stages are fitted into shared memory. team: the blocks of a cluster share a run.

    Of a head_dim without kernels, which only a model of costs asks for, that of the next one.
    """
    dim = next((dim for dim in SHAPES if dim >= descriptor.dim), max(SHAPES))
    if team:
        return TEAM_SHAPES[dim]
    of_columns = COLUMN_SHAPES.get((dim, ITEMSIZE[descriptor.kv_dtype])) if rows_of(descriptor) <= _COLUMNS else None
    return of_columns or SHAPES[dim]


def shape_of(descriptor: BatchPagedDecodeDescriptor, target: Target, tuning: Tuning = PLAIN) -> Shape:
    """The pipeline is as deep as shared memory allows, beside the results of the warps."""
    if descriptor.kv_dtype == "f32":
        return F32_SHAPES[descriptor.dim]
    team = split_of(descriptor, target, tuning)[0] == "cluster"
    best = usual_shape(descriptor, team)
    if tuning.warps or tuning.blocks:
        best = replace(best, warps=tuning.warps or best.warps, blocks=tuning.blocks or best.blocks, stages=_MOST_STAGES)
    best = replace(best, keys=best.keys * 2 // ITEMSIZE[descriptor.kv_dtype])
    room = min(_SM_BYTES // best.blocks - _SYSTEM_BYTES, target.max_shared_memory) - results_bytes(best, descriptor, team)
    return replace(best, stages=max(_LEAST_STAGES, min(best.stages, room // stage_bytes(best, descriptor))))


def rows_of(descriptor: BatchPagedDecodeDescriptor) -> int:
    """Query heads of one block."""
    return min(descriptor.group_size, _ROWS)


def stage_bytes(shape: Shape, descriptor: BatchPagedDecodeDescriptor) -> int:
    """K and V of one stage of every warp."""
    return shape.warps * shape.keys * 2 * descriptor.dim * ITEMSIZE[descriptor.kv_dtype]


def results_bytes(shape: Shape, descriptor: BatchPagedDecodeDescriptor, team: bool) -> int:
    """Behind the stages: what warps tell each other (WarpResults), rows of a team, and q where registers have no room."""
    rows, dim = rows_of(descriptor), descriptor.dim
    query = 32 * dim if descriptor.kv_dtype in FP8 and dim == 256 and rows > _COLUMNS else 0
    return shape.warps * (8 * rows + 20 + query) + 20 + (-(-4 * rows * (dim + 1) // 16) * 16 if team else 0)


def head_blocks(descriptor: BatchPagedDecodeDescriptor) -> int:
    return descriptor.kv_heads * -(-descriptor.group_size // _ROWS)


def shared_memory(descriptor: BatchPagedDecodeDescriptor, target: Target, tuning: Tuning = PLAIN) -> int:
    shape, dim, rows = shape_of(descriptor, target, tuning), descriptor.dim, rows_of(descriptor)
    if descriptor.kv_dtype == "f32":
        return 4 * ((2 * shape.stages * shape.keys + rows) * (dim + 4) + rows * (shape.keys + 4))
    team = split_of(descriptor, target, tuning)[0] == "cluster"
    return shape.stages * stage_bytes(shape, descriptor) + results_bytes(shape, descriptor, team)


def fits_an_sm(descriptor: BatchPagedDecodeDescriptor, target: Target, tuning: Tuning = PLAIN) -> bool:
    """Whether as many blocks as its Shape has share an SM of sm_90."""
    blocks = shape_of(descriptor, target, tuning).blocks
    return blocks * (shared_memory(descriptor, target, tuning) + _SYSTEM_BYTES) <= _SM_BYTES


def is_short(descriptor: BatchPagedDecodeDescriptor, target: Target) -> bool:
    """Whether a cluster takes each request's heads: bounds promise a small batch of short contexts, a matter of latency.

    A cluster of 8 stays inside a group of SMs and leaves some over, so the batch must fit the clusters that run at once.
    """
    runs = descriptor.batch_size * head_blocks(descriptor)
    fits = runs * PLAIN.cluster <= target.sm_count * 85 // 100 and descriptor.kv_token_bound <= _SHORT_TOKENS
    able = target.sm_version >= 90 and target.max_shared_memory >= _SM_BYTES - _SYSTEM_BYTES
    return fits and able and descriptor.kv_split == "auto" and descriptor.kv_dtype != "f32"


def split_of(descriptor: BatchPagedDecodeDescriptor, target: Target, tuning: Tuning = PLAIN) -> tuple[str, int]:
    """(mode, chunk in tokens)."""
    if isinstance(descriptor.kv_split, int):
        return "fixed", descriptor.kv_split
    if descriptor.kv_split == "off":
        return "off", 0
    if tuning.cluster > 1 and is_short(descriptor, target):
        return "cluster", 0
    if tuning is not PLAIN or descriptor.kv_dtype not in ("f16", "bf16") or descriptor.dim < 128:  # others were not measured
        return "auto", 0
    bounds = descriptor.kv_token_bound, descriptor.batch_size, head_blocks(descriptor)
    return _cut_by_bounds(
        *bounds, descriptor.dim, descriptor.window_left, target.sm_count * usual_shape(descriptor, False).blocks
    )


@lru_cache(maxsize=1024)
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


def blocks_per_sm(descriptor: BatchPagedDecodeDescriptor, target: Target, tuning: Tuning = PLAIN) -> int:
    """Blocks that share an SM: as many as its Shape has, or fewer where shared memory is short."""
    most = shape_of(descriptor, target, tuning).blocks
    return max(1, min(most, target.max_shared_memory // shared_memory(descriptor, target, tuning)))


def grid_of(descriptor: BatchPagedDecodeDescriptor, target: Target, tuning: Tuning = PLAIN) -> tuple[int, int]:
    """(blocks, slots for partial results), whatever the lengths turn out to be."""
    mode, chunk = split_of(descriptor, target, tuning)
    least = descriptor.batch_size * head_blocks(descriptor)
    if mode in ("off", "cluster"):
        return least * (tuning.cluster if mode == "cluster" else 1), 0
    if mode == "fixed":
        items = head_blocks(descriptor) * (descriptor.kv_token_bound // chunk) + least
        return items, items
    tiles = head_blocks(descriptor) * (descriptor.kv_token_bound // _SHARE_TOKENS) + least
    resident = min(tiles, target.sm_count * blocks_per_sm(descriptor, target, tuning))
    return min(2 * resident, max(resident, least)), 2 * resident


def declines(descriptor: BatchPagedDecodeDescriptor, target: Target, tuning: Tuning = PLAIN) -> list[Reason]:
    reasons = [*facts_of.declines(descriptor, target, ("f16", "bf16", "f32", *FP8))]
    if not reasons:
        reasons += support.shared_memory_reason(shared_memory(descriptor, target, tuning), target)
        hint = "Use a larger kv_split or a smaller max_kv_indices."
        reasons += support.limit_reason("OPF-S006", "work items", grid_of(descriptor, target, tuning)[0], 2**31 - 1, hint)
        mode, chunk = split_of(descriptor, target, tuning)
        if mode == "fixed":
            reasons += support.limit_reason("OPF-S006", "splits", descriptor.kv_token_bound // chunk + 1, _MOST_PARTS, hint)
    return reasons


def facts(descriptor: BatchPagedDecodeDescriptor, target: Target, tuning: Tuning = PLAIN) -> support.SpecPairs:
    other = {name: value for name, value in asdict(tuning).items() if name != "even" and value != getattr(PLAIN, name)}
    mode, chunk = split_of(descriptor, target, tuning)
    # A chunk that is not the caller's is part of the identity: a request's bits depend on it.
    other |= {"chunk": chunk} if chunk and descriptor.kv_split == "auto" else {}
    return support.pairs(**facts_of.common_facts(descriptor), split=mode, **other)


def jit_spec(descriptor: BatchPagedDecodeDescriptor, target: Target, tuning: Tuning = PLAIN) -> Any:
    shape, team = shape_of(descriptor, target, tuning), split_of(descriptor, target, tuning)[0] == "cluster"
    tuned = {"warps": shape.warps, "stages": shape.stages, "tile_kv": shape.keys}
    tuned |= {"cluster": tuning.cluster if team else 1, "blocks_per_sm": shape.blocks}
    tuned["shared_bytes"] = shared_memory(descriptor, target, tuning)
    constants = facts_of.unsaid(descriptor) | dict(facts(descriptor, target, tuning)) | tuned
    for name in ("blocks", "chunk"):
        constants.pop(name, None)
    return support.spec_of("attention/paged_decode", support.pairs(**constants), target)


def sku(descriptor: BatchPagedDecodeDescriptor, target: Target, tuning: Tuning = PLAIN) -> KernelSku:
    tile = shape_of(descriptor, target, tuning).keys
    merges = True  # the warps of a block merge in any mode
    return facts_of.make_sku(
        facts_of.Identity(descriptor.op, target.arch, "split_kv", facts(descriptor, target, tuning), tile, merges)
    )


def workspace(descriptor: BatchPagedDecodeDescriptor, target: Target, tuning: Tuning = PLAIN) -> int:
    """Partial o and lse of every slot, f32, and its counter."""
    _, slots = grid_of(descriptor, target, tuning)
    return slots * (4 * rows_of(descriptor) * (descriptor.dim + 1) + 8)


def launcher(
    descriptor: BatchPagedDecodeDescriptor, target: Target, identity: KernelSku, allow_build: bool, tuning: Tuning = PLAIN
) -> Launcher:
    if descriptor.batch_size == 0:
        return support.nothing_to_do
    mode, chunk = split_of(descriptor, target, tuning)
    scalars = (*facts_of.token_axis(descriptor), *facts_of.scalars(descriptor), *grid_of(descriptor, target, tuning), chunk)
    return support.launcher(
        jit_spec(descriptor, target, tuning), descriptor, identity, allow_build, mode in ("auto", "fixed"), scalars
    )
