"""Maps: each element of a result is computed by a program from the elements of the inputs at its position."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from opfacade.core.descriptor import Args
from opfacade.core.dtypes import ITEMSIZE
from opfacade.core.forms import Parts
from opfacade.core.in_place import in_place
from opfacade.core.model import Count
from opfacade.core.operands import Dim, TensorSpec, num_valid_spec
from opfacade.plan import Plan
from opfacade.plans._programs.args import IN, LISTS, MAX_INPUTS, MAX_OUTPUTS, MAX_SCALARS, OUT, by_operand, program_docs
from opfacade.plans._programs.map_checks import check
from opfacade.plans._programs.traced import Elementwise
from opfacade.programs import text
from opfacade.programs.activations import silu
from opfacade.programs.expression import MAX_AXES, Node, apply, coord, extent, read, scalar, value
from opfacade.programs.fault import Fault
from opfacade.programs.fields import Input, Name, Number, Output, ProgramDescriptor, nodes_in, refused

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["MapArgs", "MapDescriptor", "MapPlan", "elementwise"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MapArgs(Args):
    """The tensors of one map, in the order of the descriptor: `descriptor.args(x=..., y=...)` creates them from names. inputs,
    outputs: lists or tuples, which become the operands in_0, out_0 and so on; errors and dumps use these names. An output that
    is in place is not an operand. num_valid: i32 [1] on the device, with `num_valid`."""

    parts: ClassVar[Mapping[str, Parts]] = LISTS
    docs: ClassVar[Mapping[str, str]] = program_docs("the shape")

    inputs: Sequence[Tensor] | None = None
    outputs: Sequence[Tensor] | None = None
    num_valid: Tensor | None = None


class MapDescriptor(ProgramDescriptor[MapArgs]):
    """Each element of an output is the value of a program of the inputs, of numbers, and of the position in `shape`.

    shape: the shape of the result, at most 8 axes. inputs: up to 8, with any strides, also 0; outputs: up to 4, with positive
    strides and the full shape. An input may lack axes (`over`); it is then constant along these axes.
    scalars: numbers that the plan stores. in_place: (output, input) pairs; the output overwrites the input, which has the same
    dtype and all axes, and there is no separate operand. num_valid: rows of axis 0 from num_valid on are neither read nor
    written. Raises DescriptorError, with the path to the node, for an invalid program.
    """

    op: Literal["map"] = Field(default="map", description="The operator.")
    category: ClassVar[str] = "elementwise"
    error_models: ClassVar[tuple[str, ...]] = ("exact", "map-f64", "map-f32")
    sizes: ClassVar[frozenset[str]] = frozenset({"shape"})
    tuning_ignores: ClassVar[frozenset[str]] = frozenset({"scalars"})
    shape: Annotated[tuple[Count, ...], Field(max_length=MAX_AXES)] = Field(description="Shape of the result, at most 8 axes.")
    inputs: Annotated[tuple[Input, ...], Field(max_length=MAX_INPUTS)] = Field(
        default=(), description="Input tensors, at most 8."
    )
    scalars: Annotated[tuple[Number, ...], Field(max_length=MAX_SCALARS)] = Field(
        default=(), description="Numbers that the plan stores, at most 16; other values use the same kernel."
    )
    outputs: Annotated[tuple[Output, ...], Field(min_length=1, max_length=MAX_OUTPUTS)] = Field(
        description="Output tensors, 1 to 4, each with the program of its elements."
    )
    in_place: tuple[tuple[Name, Name], ...] = Field(
        default=(), description="Pairs of an output and the input that it overwrites."
    )
    num_valid: bool = Field(default=False, description="Whether the operand num_valid limits the rows of axis 0.")

    def values(self) -> dict[str, Node]:
        return {f"outputs.{i}.value": output.value for i, output in enumerate(self.outputs)}

    @classmethod
    def _nodes_in(cls, given: dict[str, Any], lets: Sequence[Node]) -> dict[str, Any]:
        return given | {"outputs": nodes_in(given.get("outputs"), lets, ".outputs")}

    def program(self) -> dict[str, Node]:
        """The value of each output, by its name."""
        return {output.name: output.value for output in self.outputs}

    @property
    def key(self) -> str:
        """The name of the program in a SKU."""
        return f"v{text.digest(self.program())[:24]}"

    @property
    def overwritten(self) -> dict[str, str]:
        """Outputs that are in place, with the inputs that they overwrite."""
        return dict(self.in_place)

    def args(self, num_valid: Tensor | None = None, **tensors: Tensor) -> MapArgs:
        """The args of a call, by the names of inputs and outputs. Raises ArgumentTypeError for an unknown name; a missing
        tensor is refused by the call."""
        return MapArgs(**by_operand(self, tensors, ("num_valid",) * self.num_valid), num_valid=num_valid)

    @model_validator(mode="before")
    @classmethod
    def _pairs(cls, raw: object) -> Any:
        if isinstance(raw, dict) and isinstance(raw.get("in_place"), dict):
            return raw | {"in_place": tuple(sorted(raw["in_place"].items()))}
        return raw

    @model_validator(mode="after")
    def _meaningful(self) -> MapDescriptor:
        try:
            text.check_limits(self.values())
            check(self)
        except Fault as fault:
            raise refused(fault) from None
        if self.num_valid and not self.shape:
            raise refused(Fault(".num_valid", "an axis of rows", "a result of rank 0"))
        return self

    def operands(self) -> dict[str, TensorSpec]:
        dims = [Dim(f"shape[{axis}]", size) for axis, size in enumerate(self.shape)]
        found: dict[str, TensorSpec] = {}
        place = {given.name: operand for operand, given in zip(IN, self.inputs, strict=False)}
        for operand, given in zip(IN, self.inputs, strict=False):
            over = range(len(dims)) if given.over is None else given.over
            own = None if given.shape is None else [Dim(f"{given.name}[{axis}]", size) for axis, size in enumerate(given.shape)]
            valid = "num_valid" if self.num_valid and own is None and 0 in over else ""
            shape = tuple(dims[axis] for axis in over if axis < len(dims)) if own is None else tuple(own)
            found[operand] = TensorSpec(shape, given.dtype, "in", "strided", ITEMSIZE[given.dtype], valid_rows=valid)
        for operand, made in zip(OUT, self.outputs, strict=False):
            valid, replaced = "num_valid" if self.num_valid else "", place.get(self.overwritten.get(made.name, ""), "")
            size = ITEMSIZE[made.dtype]
            found[operand] = TensorSpec(tuple(dims), made.dtype, "out", "strided", size, valid_rows=valid, replaces=replaced)
        if self.num_valid:
            found["num_valid"] = num_valid_spec(self.shape[0] if self.shape else 0)
        replaced_by = {operand for operand, spec in found.items() if spec.replaces}
        return in_place(found) if replaced_by else found

    def written(self, args: Args) -> list[Tensor]:
        """The tensors of the outputs, in order; with in_place, the overwritten input."""
        place = {given.name: operand for operand, given in zip(IN, self.inputs, strict=False)}
        names = (place.get(self.overwritten.get(made.name, ""), OUT[i]) for i, made in enumerate(self.outputs))
        return [getattr(args, name) for name in names]


class MapPlan(Plan[MapArgs]):
    """Elementwise programs."""


def elementwise(function: Callable[..., Any]) -> Elementwise:
    """Converts a function of expressions to an operator: `@elementwise`.

        @elementwise
        def silu_and_mul(x, y):
            return x / (1 + exp(-x)) * y  # exp of opfacade.programs.words

    The arguments are expressions with Python's operators; `if` is refused: use `select`."""
    return Elementwise(function, tuple(inspect.signature(function).parameters), MapPlan, MapDescriptor)


_X, _Y = value("x", "f32"), value("y", "f32")


def _silu_and_mul(rows: int, width: int, dtype: str, **more: object) -> MapDescriptor:
    inputs = (Input(name="x", dtype=dtype), Input(name="y", dtype=dtype))
    return MapDescriptor(
        shape=(rows, width), inputs=inputs, outputs=(Output(name="z", dtype=dtype, value=silu(_X) * _Y),), **more
    )


def _rolled(rows: int, width: int) -> MapDescriptor:
    """Rows rolled by two, and the source index of each row."""
    row = apply("mod", coord(0) - 2, extent(0))
    outputs = (
        Output(name="z", dtype="i16", value=read("x", "i16", (row, coord(1)))),
        Output(name="source", dtype="i64", value=row),
    )
    return MapDescriptor(shape=(rows, width), inputs=(Input(name="x", dtype="i16", shape=(rows, width)),), outputs=outputs)


def _scaled(rows: int, width: int) -> MapDescriptor:
    """Uses a factor per column, a scalar of the plan, and a comparison."""
    inputs = (Input(name="x", dtype="f32"), Input(name="y", dtype="bf16", over=(1,)))
    outputs = (
        Output(name="z", dtype="f32", value=_X * _Y + scalar("c")),
        Output(name="large", dtype="bool", value=apply("exp", _X) > _Y),
    )
    return MapDescriptor(shape=(rows, width), inputs=inputs, outputs=outputs, scalars=(Number(name="c", value=0.5),))


def _sums(shape: tuple[int, ...]) -> MapDescriptor:
    """Running sums, with the maximum number of inputs and outputs."""
    kinds: tuple[Any, ...] = ("f32", "f16", "bf16", "f32", "bf16", "f16", "f32", "f16")
    inputs = tuple(Input(name=f"x{i}", dtype=kind) for i, kind in enumerate(kinds))
    sums = [value("x0", "f32")]
    for one in inputs[1:]:
        sums.append(sums[-1] + value(one.name, "f32"))
    outputs = tuple(Output(name=f"y{i}", dtype=kinds[i], value=sums[2 * i + 1]) for i in range(MAX_OUTPUTS))
    return MapDescriptor(shape=shape, inputs=inputs, outputs=outputs)


EXAMPLES = (
    _silu_and_mul(64, 256, "bf16"),
    _silu_and_mul(7, 63, "f32", in_place=(("z", "x"),)),
    _silu_and_mul(13, 65, "f16", num_valid=True),
    _scaled(9, 33),
    _rolled(9, 21),
    _sums((3, 5, 7)),
)
