"""Gated activations whose scales are computed from their results: folds of gates and ups, which are parts of the rows of x."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast

from opfacade.plans._folds.named import Axes, viewed
from opfacade.plans._folds.program import FoldArgs, FoldOutput, FoldProgram
from opfacade.plans._folds.tensor_scale import with_most
from opfacade.plans._quantize.quant import Quant, scale_dims
from opfacade.programs.expression import Node, stage, value
from opfacade.programs.fields import Input, Number
from opfacade.programs.stages import Stage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


class GatedFields(Protocol):
    """Fields of a gated activation whose scales are computed."""

    @property
    def quant(self) -> Quant | None: ...
    @property
    def parts(self) -> tuple[str, ...]: ...
    @property
    def total_num_rows(self) -> int: ...
    @property
    def width(self) -> int: ...
    @property
    def dtype(self) -> Literal["f16", "bf16", "f32"]: ...
    @property
    def scalars(self) -> tuple[Number, ...]: ...
    @property
    def num_valid(self) -> bool: ...
    def folded(self) -> FoldProgram: ...
    def views(self, x: Tensor) -> dict[str, Tensor]: ...


class GatedCall(Protocol):
    """The tensors of a call."""

    @property
    def x(self) -> Tensor: ...
    @property
    def out(self) -> Tensor: ...
    @property
    def scale(self) -> Tensor: ...
    @property
    def num_valid(self) -> Tensor | None: ...


def quant_of(gated: GatedFields) -> Quant:
    """The field `quant`, which a fold always has, because it computes the scales."""
    return cast("Quant", gated.quant)


def dims_of(gated: GatedFields) -> Mapping[str, tuple[Axes, ...]]:
    """The axes of each dimension of the parts of x, of out and of scale."""
    quant = quant_of(gated)
    inner: Axes = (1, 2) if quant.scale == "group" else (1,)
    found = dict.fromkeys((*gated.parts, "out"), ((0,), inner))
    return found | {"scale": scale_dims(quant, inner[:-1])}


def lengths_of(gated: GatedFields) -> tuple[int, ...]:
    """The sizes of all axes of the whole fold."""
    quant = quant_of(gated)
    row = (gated.width // quant.group, quant.group) if quant.scale == "group" else (gated.width,)
    return (gated.total_num_rows, *row)


def fold_of(gated: GatedFields, result: Node) -> FoldProgram:
    """The whole fold. result: an element of the row before quantisation."""
    quant, dims = quant_of(gated), dims_of(gated)
    own = (1, 2) if quant.scale == "group" else (0, 1) if quant.scale == "tensor" else (1,)
    scale = quant.scale_of(stage(0, "f32"))
    return FoldProgram(
        shape=lengths_of(gated),
        fold=own,
        inputs=tuple(Input(name=name, dtype=gated.dtype) for name in gated.parts),
        scalars=gated.scalars,
        stages=(Stage(reducer="max", value=abs(result), axes=(2,) if quant.scale == "group" else own),),
        outputs=(
            FoldOutput(name="out", dtype=quant.dtype, value=quant.quotient(result, scale)),
            FoldOutput(
                name="scale", dtype=quant.scale_dtype, value=scale, over=tuple(axis for one in dims["scale"] for axis in one)
            ),
        ),
        num_valid=gated.num_valid and quant.scale != "tensor",
    )


def launched_of(gated: GatedFields, result: Node) -> FoldProgram:
    """The fold of rows with one scale for all rows."""
    quant = quant_of(gated)
    inputs = [Input(name=name, dtype=gated.dtype) for name in gated.parts]
    found = FoldProgram(
        shape=(gated.total_num_rows, gated.width),
        fold=(1,),
        inputs=(*inputs, Input(name="scale", dtype=quant.scale_dtype, over=())),
        scalars=gated.scalars,
        outputs=(FoldOutput(name="out", dtype=quant.dtype, value=quant.quotient(result, value("scale", "f32"))),),
        num_valid=gated.num_valid,
    )
    return with_most(found, result)


def call_of(gated: GatedFields, args: GatedCall) -> FoldArgs:
    """A call with views whose dimensions are the axes."""
    program, dims = gated.folded(), dims_of(gated)
    tensors = gated.views(args.x) | {"out": args.out, "scale": args.scale}

    def over(name: str, axes: Sequence[int]) -> Tensor:
        return viewed(tensors[name], dims[name], tuple(axes), program.shape)

    every = range(len(program.shape))
    found: dict[str, Any] = {f"in_{i}": over(one.name, every) for i, one in enumerate(program.inputs)}
    found |= {f"out_{i}": over(one.name, program.axes_of(one)) for i, one in enumerate(program.outputs)}
    return FoldArgs(**found, num_valid=args.num_valid)
