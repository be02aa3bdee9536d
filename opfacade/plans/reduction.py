"""Folds: programs of stages that reduce the elements of rows, and of outputs that use the results."""

from __future__ import annotations

from typing import Any

from opfacade.plan import Plan
from opfacade.plans._folds.program import FoldArgs, FoldOutput, FoldProgram
from opfacade.programs.expression import apply, coord, extent, scalar, stage, value
from opfacade.programs.fields import Input, Number
from opfacade.programs.stages import Stage

__all__ = ["FoldArgs", "FoldDescriptor", "FoldOutput", "FoldPlan", "Stage"]


class FoldDescriptor(FoldProgram):
    """Stages reduce values along the axes `fold`, in order; outputs are programs of elements and of the stages' results.

    shape: the sizes of all axes, at most 8 axes. fold: the folded axes, in increasing order. inputs, scalars, in_place,
    num_valid: as in a map. stages: up to 8; each reduces the values of one expression along all folded axes or some of them.
    outputs: up to 4; an output over all axes has one value per element, an output without the last folded axes one value per
    row. Raises DescriptorError, with the path to the node, for an invalid program: an axis out of range, an output whose value
    varies along an axis that it lacks, a maximum of zero elements. Order the axes as in memory: a kernel reads adjacent
    elements along the last axis. split="auto": many CTAs may share a row, if stages do not use each other and outputs lack all
    folded axes; this needs a workspace.
    ragged: rows have different lengths. shape is (rows, elements of all rows, ...), and row i consists of indptr[i] to indptr[i
    + 1] - 1 of axis 1, which is folded; indptr is [rows + 1]. `over` of each tensor has axis 0, axis 1 or neither; coord(1) and
    extent(1) are those within the row. Entries are clamped to the tensor, a row whose entries decrease is empty, and elements
    of no row are neither read nor written. An empty row gives the identity of the reducer: for a maximum, -inf or the smallest
    integer; argmax and argmin are refused.
    """


class FoldPlan(Plan[FoldArgs]):
    """Programs over rows."""


_X, _W = value("x", "f32"), value("w", "f32")


def _count(axis: int) -> Any:
    return apply("f32", extent(axis))


def _rms_norm(rows: int, width: int, dtype: str, **more: object) -> FoldDescriptor:
    scale = apply("rsqrt", stage(0, "f32") / _count(1) + scalar("eps"))
    return FoldDescriptor(
        shape=(rows, width), fold=(1,), inputs=(Input(name="x", dtype=dtype), Input(name="w", dtype=dtype, over=(1,))),
        scalars=(Number(name="eps", value=1e-6),), stages=(Stage(reducer="sum", value=_X * _X),),
        outputs=(FoldOutput(name="y", dtype=dtype, value=_X * scale * _W),), **more,
    )  # fmt: skip


def _softmax(rows: int, width: int, dtype: str) -> FoldDescriptor:
    y = apply("exp", _X - stage(0, "f32", "max")) / stage(0, "f32", "sum")
    return FoldDescriptor(
        shape=(rows, width), fold=(1,), inputs=(Input(name="x", dtype=dtype),),
        stages=(Stage(reducer="expsum", value=_X),), outputs=(FoldOutput(name="y", dtype=dtype, value=y),),
    )  # fmt: skip


def _moments(shape: tuple[int, ...], fold: tuple[int, ...], **more: object) -> FoldDescriptor:
    """The sum, the sum of squared deviations and the argmax, over any axes."""
    kept = tuple(axis for axis in range(len(shape)) if axis not in fold)
    stages = (Stage(reducer="sum", value=_X), Stage(reducer="welford", value=_X), Stage(reducer="argmax", value=_X))
    found = (
        ("total", "f32", stage(0, "f32")),
        ("spread", "f32", stage(1, "f32", "m2")),
        ("place", "i64", stage(2, "i64", "index")),
    )
    outputs = tuple(FoldOutput(name=name, dtype=dtype, value=made, over=kept) for name, dtype, made in found)
    inputs = (Input(name="x", dtype="f32"),)
    return FoldDescriptor(shape=shape, fold=fold, inputs=inputs, stages=stages, outputs=outputs, **more)


def _segment_softmax(rows: int, total: int, ragged: str | None) -> FoldDescriptor:
    """Softmax of each row's part of a flat tensor."""
    y = apply("exp", _X - stage(0, "f32", "max")) / stage(0, "f32", "sum")
    return FoldDescriptor(
        shape=(rows, total), fold=(1,), inputs=(Input(name="x", dtype="bf16", over=(1,)),), ragged=ragged,
        stages=(Stage(reducer="expsum", value=_X),), outputs=(FoldOutput(name="y", dtype="bf16", value=y, over=(1,)),),
    )  # fmt: skip


def _segments(rows: int, total: int, width: int) -> FoldDescriptor:
    """Mean and maximum of each column over the vectors of a row."""
    stages = (Stage(reducer="sum", value=_X), Stage(reducer="max", value=_X))
    outputs = (
        FoldOutput(name="mean", dtype="f32", value=stage(0, "f32") / _count(1), over=(0, 2)),
        FoldOutput(name="most", dtype="f32", value=stage(1, "f32"), over=(0, 2)),
    )
    inputs = (Input(name="x", dtype="f16", over=(1, 2)),)
    return FoldDescriptor(shape=(rows, total, width), fold=(1,), inputs=inputs, stages=stages, outputs=outputs, ragged="i64")


def _grouped(rows: int, groups: int, width: int) -> FoldDescriptor:
    """Rows normalised as a whole, then divided by the maximum of each group."""
    y = _X * apply("rsqrt", stage(0, "f32"))
    stages = (Stage(reducer="sum", value=_X * _X), Stage(reducer="max", value=abs(y), axes=(2,)))
    outputs = (
        FoldOutput(name="y", dtype="f8_e4m3", value=y / stage(1, "f32")),
        FoldOutput(name="most", dtype="f32", value=stage(1, "f32"), over=(1, 0)),
    )
    inputs = (Input(name="x", dtype="bf16"),)
    return FoldDescriptor(shape=(rows, groups, width), fold=(1, 2), inputs=inputs, stages=stages, outputs=outputs)


def _mean_entropy(batch: int, rows: int, width: int) -> FoldDescriptor:
    """The weighted mean of log sum exp over the rows of a batch."""
    entropy = apply("log", stage(0, "f32", "sum")) + stage(0, "f32", "max")
    stages = (
        Stage(reducer="expsum", value=_X, axes=(2,)),
        Stage(reducer="sum", value=entropy * _W, axes=(1,)),
        Stage(reducer="sum", value=_W, axes=(1,)),
    )
    inputs = (Input(name="x", dtype="bf16"), Input(name="w", dtype="f32", over=(0, 1)))
    outputs = (FoldOutput(name="mean", dtype="f32", value=stage(1, "f32") / stage(2, "f32"), over=(0,)),)
    return FoldDescriptor(shape=(batch, rows, width), fold=(1, 2), inputs=inputs, stages=stages, outputs=outputs)


def _row_after_groups(rows: int, groups: int, width: int) -> FoldDescriptor:
    """Elements divided by the maximum of their group, and their sum over the row."""
    most = apply("maximum", stage(0, "f32"), 1e-10)
    stages = (Stage(reducer="max", value=abs(_X), axes=(2,)), Stage(reducer="sum", value=_X / most))
    outputs = (
        FoldOutput(name="y", dtype="bf16", value=_X / most + stage(1, "f32")),
        FoldOutput(name="total", dtype="f32", value=stage(1, "f32"), over=(0,)),
        FoldOutput(name="most", dtype="f32", value=most, over=(1, 0)),
    )
    inputs = (Input(name="x", dtype="bf16"),)
    return FoldDescriptor(
        shape=(rows, groups, width), fold=(1, 2), inputs=inputs, stages=stages, outputs=outputs, in_place=(("y", "x"),)
    )


def _counted(rows: int, width: int) -> FoldDescriptor:
    """Exact results: the number of positive elements below the diagonal, and whether all elements are positive."""
    x = value("x", "i16")
    below = apply("and", x > 0, coord(1) < coord(0))
    stages = (Stage(reducer="sum", value=apply("i64", below)), Stage(reducer="all", value=x > 0))
    outputs = (
        FoldOutput(name="count", dtype="i64", value=stage(0, "i64"), over=(0,)),
        FoldOutput(name="every", dtype="bool", value=stage(1, "bool"), over=(0,)),
    )
    return FoldDescriptor(
        shape=(rows, width), fold=(1,), inputs=(Input(name="x", dtype="i16"),), stages=stages, outputs=outputs
    )


def _many(rows: int, width: int) -> FoldDescriptor:
    """The maximum number of inputs and outputs."""
    kinds: tuple[Any, ...] = ("f32", "f16", "bf16", "f32", "bf16", "f16", "f32", "f16")
    overs: tuple[Any, ...] = (None, None, (1,), (0,), None, (0,), (1,), None)
    inputs = tuple(Input(name=f"x{i}", dtype=kind, over=over) for i, (kind, over) in enumerate(zip(kinds, overs, strict=True)))
    parts = [value(one.name, "f32") for one in inputs]
    total = parts[0]
    for one in parts[1:]:
        total = total + one
    stages = (Stage(reducer="sum", value=total), Stage(reducer="max", value=parts[0] * parts[4]))
    made = (parts[0] * stage(0, "f32"), parts[1] + stage(1, "f32"), stage(0, "f32"), stage(1, "f32") + parts[3])
    overs = (None, None, (0,), (0,))
    outputs = tuple(FoldOutput(name=f"y{i}", dtype="f32", value=node, over=overs[i]) for i, node in enumerate(made))
    return FoldDescriptor(shape=(rows, width), fold=(1,), inputs=inputs, stages=stages, outputs=outputs)


EXAMPLES = (
    _rms_norm(64, 4096, "bf16"),
    _rms_norm(7, 63, "f32", in_place=(("y", "x"),)),
    _rms_norm(13, 1000, "f16", num_valid=True),
    _softmax(33, 257, "bf16"),
    _moments((5, 7, 96), (0, 2)),
    _grouped(9, 3, 128),
    _counted(9, 63),
    _many(5, 70),
    _moments((3, 70, 24), (1,)),
    _moments((1, 70000), (1,), split="auto"),
    _moments((3000, 6), (0,), split="auto"),
    _segment_softmax(9, 1700, "i32"),
    _segments(7, 90, 24),
    _mean_entropy(4, 9, 70),
    _row_after_groups(9, 5, 70),
)
