"""CUDA decode: one query row a request, KV shared over the device; items and workspace in closed form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from opfacade.backends.cuda import attention_facts as facts_of
from opfacade.backends.cuda import support
from opfacade.plans.attention import BatchPagedDecodeDescriptor
from opfacade.registry import Launcher, Reason
from opfacade.sku import KernelSku
from opfacade.target import Target


@dataclass(frozen=True, slots=True)
class Shape:
    """Warps of a block, stages of each warp's pipeline, and keys of a stage."""

    warps: int
    stages: int
    keys: int


SHAPES = {64: Shape(4, 6, 16), 128: Shape(4, 3, 16), 256: Shape(2, 3, 16)}
F32_SHAPES = {64: Shape(4, 2, 32), 128: Shape(4, 2, 32), 256: Shape(4, 2, 16)}
_ROWS = 16
_MIN_CHUNK = 128


def shape_of(descriptor: BatchPagedDecodeDescriptor) -> Shape:
    return (F32_SHAPES if descriptor.kv_dtype == "f32" else SHAPES)[descriptor.dim]


def rows_of(descriptor: BatchPagedDecodeDescriptor) -> int:
    """Query heads of one block."""
    return min(descriptor.group_size, _ROWS)


def head_blocks(descriptor: BatchPagedDecodeDescriptor) -> int:
    return descriptor.kv_heads * -(-descriptor.group_size // _ROWS)


def shared_memory(descriptor: BatchPagedDecodeDescriptor) -> int:
    shape, dim, rows = shape_of(descriptor), descriptor.dim, rows_of(descriptor)
    if descriptor.kv_dtype == "f32":
        return 4 * ((2 * shape.stages * shape.keys + rows) * (dim + 4) + rows * (shape.keys + 4))
    return shape.warps * shape.stages * 64 * dim


def split_of(descriptor: BatchPagedDecodeDescriptor) -> tuple[str, int]:
    """(mode, chunk in tokens)."""
    if isinstance(descriptor.kv_split, str):
        return descriptor.kv_split, 0
    return "fixed", descriptor.kv_split


def blocks_per_sm(descriptor: BatchPagedDecodeDescriptor, target: Target) -> int:
    """Blocks that share an SM, at most two: two hide each other's ends, more would only cut the work finer."""
    return max(1, min(2, target.max_shared_memory // shared_memory(descriptor)))


def items_of(descriptor: BatchPagedDecodeDescriptor, target: Target) -> tuple[int, int]:
    """(blocks to aim at, bound on work items), whatever the lengths turn out to be."""
    mode, chunk = split_of(descriptor)
    least = descriptor.batch_size * head_blocks(descriptor)
    blocks = target.sm_count * blocks_per_sm(descriptor, target)
    if mode == "off":
        return blocks, least
    if mode == "fixed":
        return blocks, head_blocks(descriptor) * (descriptor.kv_token_bound // chunk) + least
    useful = head_blocks(descriptor) * -(-descriptor.kv_token_bound // _MIN_CHUNK)
    return blocks, min(blocks, useful) + least


def declines(descriptor: BatchPagedDecodeDescriptor, target: Target) -> list[Reason]:
    reasons = [*facts_of.declines(descriptor, target, ("f16", "bf16", "f32"))]
    if not reasons:
        reasons += support.shared_memory_reason(shared_memory(descriptor), target)
        hint = "Use a larger kv_split or a smaller max_kv_indices."
        reasons += support.limit_reason("OPF-S006", "work items", items_of(descriptor, target)[1], 2**31 - 1, hint)
        reasons += support.limit_reason("OPF-S005", "batch_size", descriptor.batch_size, support.MAX_GRID_YZ)
    return reasons


def facts(descriptor: BatchPagedDecodeDescriptor) -> support.SpecPairs:
    return support.pairs(**facts_of.common_facts(descriptor), split=split_of(descriptor)[0])


def jit_spec(descriptor: BatchPagedDecodeDescriptor, target: Target) -> Any:
    shape = shape_of(descriptor)
    constants = dict(facts(descriptor)) | {"warps": shape.warps, "stages": shape.stages, "tile_kv": shape.keys}
    return support.spec_of("attention/paged_decode", support.pairs(**constants), target)


def sku(descriptor: BatchPagedDecodeDescriptor, target: Target) -> KernelSku:
    tile = shape_of(descriptor).keys
    merges = True  # the warps of a block merge in any mode
    return facts_of.make_sku(facts_of.Identity(descriptor.op, target.arch, "split_kv", facts(descriptor), tile, merges))


def workspace(descriptor: BatchPagedDecodeDescriptor, target: Target) -> int:
    """Partial o and lse of every work item, f32, and two int32 a request."""
    if split_of(descriptor)[0] == "off":
        return 0
    _, items = items_of(descriptor, target)
    return 4 * items * rows_of(descriptor) * (descriptor.dim + 1) + 8 * descriptor.batch_size


def launcher(descriptor: BatchPagedDecodeDescriptor, target: Target, identity: KernelSku, allow_build: bool) -> Launcher:
    if descriptor.batch_size == 0:
        return support.nothing_to_do
    mode, chunk = split_of(descriptor)
    scalars = (*facts_of.token_axis(descriptor), *facts_of.scalars(descriptor), *items_of(descriptor, target), chunk)
    return support.launcher(jit_spec(descriptor, target), descriptor, identity, allow_build, mode != "off", scalars)
