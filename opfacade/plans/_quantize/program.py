"""Quantisation and dequantisation of rows as folds: the axes are rows, groups of a row and elements of a group, or the axes of
blocks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Protocol

from opfacade.plans._folds.named import Axes
from opfacade.plans._folds.program import FoldOutput, FoldProgram
from opfacade.plans._quantize.quant import Quant
from opfacade.programs.expression import Node, apply, stage, value
from opfacade.programs.fields import Input
from opfacade.programs.stages import Stage


class Quantised(Protocol):
    """Common fields of both directions."""

    @property
    def dtype(self) -> Literal["f16", "bf16", "f32"]: ...
    @property
    def quant(self) -> Quant: ...
    @property
    def num_valid(self) -> bool: ...
    def lengths(self) -> tuple[int, ...]: ...
    def dims(self) -> Mapping[str, tuple[Axes, ...]]: ...


def quantised(problem: Quantised) -> FoldProgram:
    """out, and the scales and zero points if they are computed."""
    quant = problem.quant
    inputs, stages, outputs = _made(problem) if quant.dynamic else _given(problem)
    return FoldProgram(
        shape=problem.lengths(),
        fold=(0, 1, 2) if quant.scale == "tensor" else (1, 3) if quant.scale == "block" else (1, 2),
        inputs=inputs,
        stages=stages,
        outputs=outputs,
        num_valid=problem.num_valid and quant.scale not in ("tensor", "block"),
    )


_Parts = tuple[tuple[Input, ...], tuple[Stage, ...], tuple[FoldOutput, ...]]


def _given(problem: Quantised) -> _Parts:
    """Inputs, stages and outputs if scales are inputs, or 1."""
    quant, x = problem.quant, value("x", "f32")
    scale = None if quant.scale == "none" else value("scale", "f32")
    out = _stored(quant, x, scale, apply("f32", value("zero", "i32")))
    return (Input(name="x", dtype=problem.dtype), *_scales(quant, ())), (), (out,)


def _made(problem: Quantised) -> _Parts:
    """Inputs, stages and outputs if scales are results."""
    quant, x, over = problem.quant, value("x", "f32"), _axes(problem)
    own = (2,) if quant.scale == "group" else None
    stages = tuple(Stage(reducer=reducer, value=one, axes=own) for reducer, one in quant.extremes(x))
    scale, zero = quant.range_of(*(stage(place, "f32") for place in range(len(stages))))
    results = [FoldOutput(name="scale", dtype=quant.scale_dtype, value=scale, over=over)]
    if quant.zero:
        results.append(FoldOutput(name="zero", dtype="i32", value=apply("i32", zero), over=over))
    return (Input(name="x", dtype=problem.dtype),), stages, (_stored(quant, x, scale, zero), *results)


def _stored(quant: Quant, x: Node, scale: Node | None, zero: Node) -> FoldOutput:
    found = quant.shifted(x, scale, zero) if quant.zero and scale is not None else quant.quotient(x, scale)
    return FoldOutput(name="out", dtype=quant.dtype, value=found)


def dequantised(problem: Quantised) -> FoldProgram:
    quant = problem.quant
    x = value("x", "i8" if quant.dtype == "i8" else "f32")
    x = apply("i32", x) - value("zero", "i32") if quant.zero else x
    x = apply("f32", x) if quant.dtype == "i8" else x
    x = x if quant.scale == "none" else x * value("scale", "f32")
    return FoldProgram(
        shape=problem.lengths(),
        fold=(1, 3) if quant.scale == "block" else (1, 2),
        inputs=(Input(name="x", dtype=quant.dtype), *_scales(quant, tuple(sorted(_axes(problem))))),
        outputs=(FoldOutput(name="out", dtype=problem.dtype, value=x),),
        num_valid=problem.num_valid and quant.scale != "block",
    )


def _axes(problem: Quantised) -> Axes:
    """The axes of the scale tensor, in order."""
    return tuple(axis for own in problem.dims()["scale"] for axis in own)


def _scales(quant: Quant, over: Axes) -> tuple[Input, ...]:
    """The scales and zero points as inputs with those axes."""
    scales = () if quant.scale == "none" else (Input(name="scale", dtype=quant.scale_dtype, over=over),)
    return (*scales, Input(name="zero", dtype="i32", over=over)) if quant.zero else scales
