"""The CTA of a CUDA decode: warps, pipelines and shared memory, independent of the sizes of a call."""

from __future__ import annotations

from dataclasses import dataclass, replace

from opfacade.core.dtypes import ITEMSIZE
from opfacade.core.target import Target
from opfacade.plans._attention.paging import FP8
from opfacade.plans.attention import BatchPagedDecodeDescriptor


@dataclass(frozen=True, slots=True)
class Shape:
    """warps: per CTA; stages: per warp's pipeline; keys: per stage (for 16-bit elements); blocks: CTAs per SM."""

    warps: int
    stages: int
    keys: int
    blocks: int = 2  # CTAs per SM; with two, the tail of one overlaps the main loop of the other


@dataclass(frozen=True, slots=True)
class DecodeConfig:
    """A tuning configuration. warps, blocks: replace those of Shape; 0: the default.

    cluster: CTAs per cluster. clusters: clusters per work unit; 0: chosen by the bounds. auto: the mode of kv_split="auto":
    "auto" (equal shares) or "pieces"; "": chosen by the bounds. SKUs omit auto and clusters, because `split` and the partition
    state them.
    """

    warps: int = 0
    blocks: int = 0
    cluster: int = 8  # the largest size that every GPU with clusters supports
    auto: str = ""
    clusters: int = 0

    def facts(self) -> dict[str, bool | int | str]:
        """Values that differ from the default, with their names in templates and SKUs."""
        named = {"warps": self.warps, "blocks": self.blocks, "cluster": self.cluster}
        return {name: value for name, value in named.items() if value != getattr(DEFAULT, name)}


DEFAULT = DecodeConfig()
SHAPES = {64: Shape(4, 6, 16), 128: Shape(4, 3, 16), 256: Shape(2, 3, 16)}
# By (dim, bytes per element), if heads are mma columns. This needs fewer registers per warp, and more warps hide the latency of
# fp8 conversion and of small rows.
COLUMN_SHAPES = {(64, 1): Shape(4, 6, 16, 4), (64, 2): Shape(4, 6, 16, 4), (128, 1): Shape(3, 3, 16, 4)}
CLUSTER_SHAPES = {64: Shape(8, 6, 16, 1), 128: Shape(8, 3, 16, 1), 256: Shape(4, 3, 16, 1)}
SM_BYTES = 233472  # shared memory of an SM on sm_90
SYSTEM_BYTES = 1024  # shared memory of a CTA that the system reserves
F32_SHAPES = {64: Shape(4, 2, 32), 128: Shape(4, 2, 32), 256: Shape(4, 2, 16)}
_ROWS = 16
_COLUMNS = 8  # maximum number of heads that are mma columns
_MOST_STAGES = 6
_LEAST_STAGES = 2  # double buffering; the kernel declines if two stages do not fit


def default_shape(descriptor: BatchPagedDecodeDescriptor, cluster: bool) -> Shape:
    """The shape before stages are limited to shared memory. cluster: whether a cluster shares a work unit."""
    dim = descriptor.dim
    if cluster:
        return CLUSTER_SHAPES[dim]
    of_columns = COLUMN_SHAPES.get((dim, ITEMSIZE[descriptor.kv_dtype])) if rows_of(descriptor) <= _COLUMNS else None
    return of_columns or SHAPES[dim]


@dataclass(frozen=True, slots=True)
class Block:
    """Size-independent facts. fits: whether `shape.blocks` CTAs share an SM of sm_90. resident: CTAs per SM of this target,
    fewer if its shared memory is smaller."""

    shape: Shape
    shared_memory: int
    fits: bool
    resident: int

    @classmethod
    def of(cls, descriptor: BatchPagedDecodeDescriptor, target: Target, config: DecodeConfig, cluster: bool) -> Block:
        """cluster: a cluster shares a work unit."""
        shape = _shape(descriptor, target, config, cluster)
        needed = _shared_memory(shape, descriptor, cluster)
        fits = shape.blocks * (needed + SYSTEM_BYTES) <= SM_BYTES
        return cls(shape, needed, fits, max(1, min(shape.blocks, target.max_shared_memory // needed)))


def _shape(descriptor: BatchPagedDecodeDescriptor, target: Target, config: DecodeConfig, cluster: bool) -> Shape:
    """The maximum number of stages that fit in shared memory with the results of the warps."""
    if descriptor.kv_dtype == "f32":
        return F32_SHAPES[descriptor.dim]
    default = default_shape(descriptor, cluster)
    most = _MOST_STAGES if config.warps or config.blocks else default.stages
    keys = default.keys * 2 // ITEMSIZE[descriptor.kv_dtype]
    best = Shape(config.warps or default.warps, most, keys, config.blocks or default.blocks)
    free_bytes = min(SM_BYTES // best.blocks - SYSTEM_BYTES, target.max_shared_memory) - results_bytes(
        best, descriptor, cluster
    )
    return replace(best, stages=max(_LEAST_STAGES, min(best.stages, free_bytes // stage_bytes(best, descriptor))))


def rows_of(descriptor: BatchPagedDecodeDescriptor) -> int:
    """Query heads of one CTA."""
    return min(descriptor.group_size, _ROWS)


def head_blocks(descriptor: BatchPagedDecodeDescriptor) -> int:
    return descriptor.kv_heads * -(-descriptor.group_size // _ROWS)


def stage_bytes(shape: Shape, descriptor: BatchPagedDecodeDescriptor) -> int:
    """Bytes of K and V in one stage of every warp."""
    return shape.warps * shape.keys * 2 * descriptor.dim * ITEMSIZE[descriptor.kv_dtype]


def results_bytes(shape: Shape, descriptor: BatchPagedDecodeDescriptor, cluster: bool) -> int:
    """Bytes after the stages: WarpResults, the rows of a CTA in a cluster, and q if it does not fit in registers."""
    rows, dim = rows_of(descriptor), descriptor.dim
    query = 32 * dim if descriptor.kv_dtype in FP8 and dim == 256 and rows > _COLUMNS else 0
    return shape.warps * (8 * rows + 20 + query) + 20 + (-(-4 * rows * (dim + 1) // 16) * 16 if cluster else 0)


def _shared_memory(shape: Shape, descriptor: BatchPagedDecodeDescriptor, cluster: bool) -> int:
    dim, rows = descriptor.dim, rows_of(descriptor)
    if descriptor.kv_dtype == "f32":
        return 4 * ((2 * shape.stages * shape.keys + rows) * (dim + 4) + rows * (shape.keys + 4))
    return shape.stages * stage_bytes(shape, descriptor) + results_bytes(shape, descriptor, cluster)
