"""The program of a norm, derived from its fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from opfacade.plans._folds.program import FoldOutput, FoldProgram
from opfacade.plans._folds.tensor_scale import with_most
from opfacade.plans._quantize.quant import scale_dims
from opfacade.programs.activations import sigmoid, silu
from opfacade.programs.expression import Node, apply, extent, scalar, stage, value
from opfacade.programs.fields import Input, Number
from opfacade.programs.stages import Stage

FloatDType = Literal["f16", "bf16", "f32"]
Axes = tuple[int, ...]


class Layout(NamedTuple):
    """shape: rows, then axes of a row. inner, normed, scaled: axes of a row, of a norm, of elements with one scale."""

    shape: tuple[int, ...]
    inner: Axes
    normed: Axes
    scaled: Axes
    dims: Mapping[str, tuple[Axes, ...]]


def lengths_of(norm: Any) -> tuple[int, ...]:
    """Rows, the groups of a row, the groups of a norm with separate scales, and the elements of such a group; axes of size 1
    are omitted."""
    quant, width = norm.quant, norm.hidden // norm.groups
    group = quant.group if quant is not None and quant.scale == "group" else width
    return (norm.total_num_rows, *((norm.groups,) if norm.groups > 1 else ()), *((width // group,) * (group != width)), group)


def layout_of(norm: Any) -> Layout:
    quant, shape = norm.quant, lengths_of(norm)
    inner = tuple(range(1, len(shape)))
    normed = inner[int(norm.groups > 1) :]
    scaled = inner[-1:] if quant is not None and quant.scale == "group" else inner
    scaled = (0, *inner) if quant is not None and quant.scale == "tensor" else scaled
    dims: dict[str, tuple[Axes, ...]] = dict.fromkeys(("x", "residual", "gate", "out", "full_out"), ((0,), inner))
    dims |= dict.fromkeys(("weight", "bias"), (inner,))
    if quant is not None:
        dims["scale"] = scale_dims(quant, inner[:-1])
    return Layout(shape, inner, normed, scaled, dims)


def program_of(norm: Any) -> FoldProgram:
    layout = layout_of(norm)
    summed = _summed(norm)
    stages, normed = _normed(norm, layout, summed)
    result = _weighted(norm, normed)
    outputs = [FoldOutput(name="residual_out", dtype=norm.dtype, value=summed[0])] if norm.residual else []
    stages, quantised = _quantised(norm, layout, stages, result)
    outputs += quantised
    pairs = ((("out", "x"),) if norm.in_place else ()) + ((("residual_out", "residual"),) if norm.residual else ())
    whole = norm.quant is not None and norm.quant.scale in ("tensor", "token")
    return FoldProgram(
        shape=layout.shape,
        fold=layout.scaled if whole else layout.normed,
        inputs=tuple(_inputs(norm, layout)),
        scalars=(Number(name="eps", value=norm.eps),),
        stages=stages,
        outputs=tuple(outputs),
        in_place=pairs,
        num_valid=norm.num_valid and 0 not in layout.scaled,
    )


def launched_of(norm: Any) -> FoldProgram:
    """The fold of rows of a norm with one scale for all rows."""
    static = norm.model_copy(update={"quant": norm.quant.model_copy(update={"scale": "static"})})
    normed = _normed(static, layout_of(static), _summed(static))[1]
    return with_most(program_of(static), _weighted(static, normed))


def _inputs(norm: Any, layout: Layout) -> list[Input]:
    weights = norm.weight_dtype or norm.dtype
    found = [Input(name="x", dtype=norm.dtype)]
    found += [Input(name="weight", dtype=weights, over=layout.inner)] if norm.weight != "none" else []
    found += [Input(name="bias", dtype=weights, over=layout.inner)] if norm.bias else []
    found += [Input(name="residual", dtype=norm.dtype)] if norm.residual else []
    found += [Input(name="gate", dtype=norm.dtype)] if norm.gate != "none" else []
    return found + (
        [Input(name="scale", dtype=norm.quant.scale_dtype, over=())]
        if norm.quant is not None and norm.quant.scale == "static"
        else []
    )


def _rounded(x: Node, dtype: str) -> Node:
    return x if dtype == "f32" else apply(f"round_{dtype}", x)


def _summed(norm: Any) -> tuple[Node, Node]:
    """The sum that is written to residual, and the sum that is normalised."""
    x = value("x", "f32")
    if not norm.residual:
        return x, x
    total = x + value("residual", "f32")
    return total, _rounded(total, norm.dtype) if norm.residual_sum == "rounded" else total


def _normed(norm: Any, layout: Layout, summed: tuple[Node, Node]) -> tuple[tuple[Stage, ...], Node]:
    """The stages of the norm, and a normalised element before the weight."""
    x, count = summed[1], extent(layout.normed[0])
    for axis in layout.normed[1:]:
        count = count * extent(axis)
    elements, axes = apply("f32", count), layout.normed
    if norm.kind == "layer":
        x = x - stage(0, "f32") / elements
    stages = (Stage(reducer="sum", value=summed[1], axes=axes),) if norm.kind == "layer" else ()
    squares = stage(len(stages), "f32")
    stages = (*stages, Stage(reducer="sum", value=x * x, axes=axes))
    found = x * apply("rsqrt", squares / elements + scalar("eps"))
    return stages, _rounded(found, norm.dtype) if norm.normed == "rounded" else found


def _weighted(norm: Any, x: Node) -> Node:
    weight = value("weight", "f32")
    if norm.weight != "none":
        x = x * (weight if norm.weight == "scale" else 1.0 + weight)
    x = x + value("bias", "f32") if norm.bias else x
    gate = value("gate", "f32")
    return x if norm.gate == "none" else x * (silu(gate) if norm.gate == "silu" else sigmoid(gate))


def _quantised(norm: Any, layout: Layout, stages: tuple[Stage, ...], x: Node) -> tuple[tuple[Stage, ...], list[FoldOutput]]:
    """The stages including that of the scale, and the outputs of the result."""
    quant = norm.quant
    if quant is None:
        return stages, [FoldOutput(name="out", dtype=norm.dtype, value=x)]
    found = [FoldOutput(name="full_out", dtype=norm.dtype, value=x)] if norm.full_out else []
    if not quant.dynamic:
        scale = None if quant.scale == "none" else value("scale", "f32")
        return stages, [FoldOutput(name="out", dtype=quant.dtype, value=quant.quotient(x, scale)), *found]
    stages = (*stages, Stage(reducer="max", value=abs(x), axes=layout.scaled))
    scale = quant.scale_of(stage(len(stages) - 1, "f32"))
    over = tuple(axis for own in layout.dims["scale"] for axis in own)
    out = FoldOutput(name="out", dtype=quant.dtype, value=quant.quotient(x, scale))
    return stages, [out, *found, FoldOutput(name="scale", dtype=quant.scale_dtype, value=scale, over=over)]
