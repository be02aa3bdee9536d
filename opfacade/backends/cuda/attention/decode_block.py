"""A block of CUDA decode: its warps and their pipelines, and what they need of shared memory. No size of a call is in it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from opfacade.core.dtypes import ITEMSIZE
from opfacade.core.target import Target
from opfacade.plans._attention.paging import FP8
from opfacade.plans.attention import BatchPagedDecodeDescriptor


@dataclass(frozen=True, slots=True)
class Shape:
    """Warps of a block, stages of each warp's pipeline, keys of a stage (of 16-bit elements), and blocks that share an SM."""

    warps: int
    stages: int
    keys: int
    blocks: int = 2  # hide each other's ends


@dataclass(frozen=True, slots=True)
class Tuning:
    """What a variant does otherwise. warps, blocks: of its Shape, 0 the usual; cluster: blocks of a cluster; teams: clusters
    that share a run, 0 as many as bounds promise to pay.

    auto: what kv_split="auto" always comes to, "auto" (even shares) or "pieces"; "" as bounds say. It is no fact of a SKU:
    `split` says it. Nor is `teams`: a cut says how many there are.
    """

    warps: int = 0
    blocks: int = 0
    cluster: int = 8  # the most that every GPU with clusters grants
    auto: str = ""
    teams: int = 0

    def facts(self) -> dict[str, bool | int | str]:
        """What is not as usual, in the words of templates and SKUs."""
        named = {"warps": self.warps, "blocks": self.blocks, "cluster": self.cluster}
        return {name: value for name, value in named.items() if value != getattr(PLAIN, name)}


PLAIN = Tuning()
SHAPES = {64: Shape(4, 6, 16), 128: Shape(4, 3, 16), 256: Shape(2, 3, 16)}
# By (dim, bytes of an element), of as many heads as are columns: they leave registers for more warps, which is what widening
# fp8 and small rows wait for.
COLUMN_SHAPES = {(64, 1): Shape(4, 6, 16, 4), (64, 2): Shape(4, 6, 16, 4), (128, 1): Shape(3, 3, 16, 4)}
TEAM_SHAPES = {64: Shape(8, 6, 16, 1), 128: Shape(8, 3, 16, 1), 256: Shape(4, 3, 16, 1)}
SM_BYTES = 233472  # shared memory of an SM on sm_90
SYSTEM_BYTES = 1024  # of it, what a block cannot use
F32_SHAPES = {64: Shape(4, 2, 32), 128: Shape(4, 2, 32), 256: Shape(4, 2, 16)}
_ROWS = 16
_COLUMNS = 8  # as many heads or fewer are the columns of a product
_MOST_STAGES = 6
_LEAST_STAGES = 2  # one is computed while another is on its way; where two do not fit, shared memory is a reason to decline


def usual_shape(descriptor: BatchPagedDecodeDescriptor, team: bool) -> Shape:
    """Before its stages are fitted into shared memory. team: the blocks of a cluster share a run.

    Of a head_dim without kernels, which only a model of costs asks for, that of the next one.
    """
    dim = next((dim for dim in SHAPES if dim >= descriptor.dim), max(SHAPES))
    if team:
        return TEAM_SHAPES[dim]
    of_columns = COLUMN_SHAPES.get((dim, ITEMSIZE[descriptor.kv_dtype])) if rows_of(descriptor) <= _COLUMNS else None
    return of_columns or SHAPES[dim]


@dataclass(frozen=True, slots=True)
class Block:
    """What sizes do not change. fits: as many as its Shape has share an SM of sm_90; resident: so many share one here, fewer
    where shared memory is short."""

    shape: Shape
    shared_memory: int
    fits: bool
    resident: int

    @classmethod
    def of(cls, descriptor: BatchPagedDecodeDescriptor, target: Target, tuning: Tuning, team: bool) -> Block:
        """team: the blocks of a cluster share a run."""
        shape = _shape(descriptor, target, tuning, team)
        needed = _shared_memory(shape, descriptor, team)
        fits = shape.blocks * (needed + SYSTEM_BYTES) <= SM_BYTES
        return cls(shape, needed, fits, max(1, min(shape.blocks, target.max_shared_memory // needed)))


def _shape(descriptor: BatchPagedDecodeDescriptor, target: Target, tuning: Tuning, team: bool) -> Shape:
    """The pipeline is as deep as shared memory allows, beside the results of the warps."""
    if descriptor.kv_dtype == "f32":
        return F32_SHAPES[descriptor.dim]
    usual = usual_shape(descriptor, team)
    most = _MOST_STAGES if tuning.warps or tuning.blocks else usual.stages
    keys = usual.keys * 2 // ITEMSIZE[descriptor.kv_dtype]
    best = Shape(tuning.warps or usual.warps, most, keys, tuning.blocks or usual.blocks)
    room = min(SM_BYTES // best.blocks - SYSTEM_BYTES, target.max_shared_memory) - results_bytes(best, descriptor, team)
    return replace(best, stages=max(_LEAST_STAGES, min(best.stages, room // stage_bytes(best, descriptor))))


def rows_of(descriptor: BatchPagedDecodeDescriptor) -> int:
    """Query heads of one block."""
    return min(descriptor.group_size, _ROWS)


def head_blocks(descriptor: BatchPagedDecodeDescriptor) -> int:
    return descriptor.kv_heads * -(-descriptor.group_size // _ROWS)


def stage_bytes(shape: Shape, descriptor: BatchPagedDecodeDescriptor) -> int:
    """K and V of one stage of every warp."""
    return shape.warps * shape.keys * 2 * descriptor.dim * ITEMSIZE[descriptor.kv_dtype]


def results_bytes(shape: Shape, descriptor: BatchPagedDecodeDescriptor, team: bool) -> int:
    """Behind the stages: what warps tell each other (WarpResults), rows of a team, and q where registers have no room."""
    rows, dim = rows_of(descriptor), descriptor.dim
    query = 32 * dim if descriptor.kv_dtype in FP8 and dim == 256 and rows > _COLUMNS else 0
    return shape.warps * (8 * rows + 20 + query) + 20 + (-(-4 * rows * (dim + 1) // 16) * 16 if team else 0)


def _shared_memory(shape: Shape, descriptor: BatchPagedDecodeDescriptor, team: bool) -> int:
    dim, rows = descriptor.dim, rows_of(descriptor)
    if descriptor.kv_dtype == "f32":
        return 4 * ((2 * shape.stages * shape.keys + rows) * (dim + 4) + rows * (shape.keys + 4))
    return shape.stages * stage_bytes(shape, descriptor) + results_bytes(shape, descriptor, team)
