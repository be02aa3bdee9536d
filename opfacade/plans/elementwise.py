"""Maps: every element of the results is a program of the elements of the inputs at its place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from opfacade.core.descriptor import Args
from opfacade.core.dtypes import ITEMSIZE
from opfacade.core.in_place import in_place
from opfacade.core.model import Count
from opfacade.core.operands import Dim, TensorSpec, num_valid_spec
from opfacade.plan import Plan
from opfacade.programs import text
from opfacade.programs.activations import silu
from opfacade.programs.expression import MAX_AXES, Node, apply, coord, extent, read, scalar, value
from opfacade.programs.fault import Fault
from opfacade.programs.fields import Input, Name, Number, Output, ProgramDescriptor, paths, refused, stores, used_names

if TYPE_CHECKING:
    from torch import Tensor

MAX_INPUTS, MAX_OUTPUTS, MAX_SCALARS = 8, 4, 16
IN = tuple(f"in_{i}" for i in range(MAX_INPUTS))
OUT = tuple(f"out_{i}" for i in range(MAX_OUTPUTS))


@dataclass(frozen=True, slots=True, kw_only=True)
class MapArgs(Args):
    """The tensors of one map, in the order of the descriptor: `descriptor.args(x=..., y=...)` makes them of names.

    inputs, outputs: lists or tuples, which become the operands in_0, out_0 and so on, by which errors and dumps name them.
    An output that is in place is no operand. num_valid: i32 [1] on the device, with `num_valid`.
    """

    inputs: Sequence[Tensor] | None = None
    outputs: Sequence[Tensor] | None = None
    in_0: Tensor | None = None
    in_1: Tensor | None = None
    in_2: Tensor | None = None
    in_3: Tensor | None = None
    in_4: Tensor | None = None
    in_5: Tensor | None = None
    in_6: Tensor | None = None
    in_7: Tensor | None = None
    out_0: Tensor | None = None
    out_1: Tensor | None = None
    out_2: Tensor | None = None
    out_3: Tensor | None = None
    num_valid: Tensor | None = None

    def __post_init__(self) -> None:
        """A list is spread over its operands; one that is too long stays, and is refused with the call."""
        for name, operands in (("inputs", IN), ("outputs", OUT)):
            given = getattr(self, name)
            if isinstance(given, (list, tuple)) and len(given) <= len(operands):
                object.__setattr__(self, name, None)
                for operand, tensor in zip(operands, given, strict=False):
                    object.__setattr__(self, operand, tensor)


class MapDescriptor(ProgramDescriptor[MapArgs]):
    """Each output at each place of `shape` is its value there: a program of the inputs, of the numbers, and of the place.

    shape: the extents of the result, at most 8 axes. inputs: up to 8, of any strides, also 0; outputs: up to 4, of any
    positive strides, all of the shape. An input without an axis (`over`) is one and the same along it.
    scalars: numbers of the plan. in_place: (output, input) pairs; the output overwrites that input, which has its dtype and all
    axes, and is no operand. num_valid: rows of axis 0 at and past the operand num_valid are neither read nor written.
    Raises DescriptorError with the path to the node for a program that has no meaning.
    """

    op: Literal["map"] = "map"
    category: ClassVar[str] = "elementwise"
    error_models: ClassVar[tuple[str, ...]] = ("exact", "map-f64", "map-f32")
    args_type: ClassVar[type[Args]] = MapArgs
    sizes: ClassVar[frozenset[str]] = frozenset({"shape"})
    tuning_ignores: ClassVar[frozenset[str]] = frozenset({"scalars"})
    lists: ClassVar[Mapping[str, tuple[str, ...]]] = MappingProxyType({"inputs": IN, "outputs": OUT})
    shape: Annotated[tuple[Count, ...], Field(max_length=MAX_AXES)]
    inputs: Annotated[tuple[Input, ...], Field(max_length=MAX_INPUTS)] = ()
    scalars: Annotated[tuple[Number, ...], Field(max_length=MAX_SCALARS)] = ()
    outputs: Annotated[tuple[Output, ...], Field(min_length=1, max_length=MAX_OUTPUTS)]
    in_place: tuple[tuple[Name, Name], ...] = ()
    num_valid: bool = False

    def values(self) -> dict[str, Node]:
        return {f"outputs.{i}.value": output.value for i, output in enumerate(self.outputs)}

    def program(self) -> dict[str, Node]:
        """The value of each output, by its name."""
        return {output.name: output.value for output in self.outputs}

    @property
    def key(self) -> str:
        """What names the program in a SKU."""
        return f"v{text.digest(self.program())[:24]}"

    @property
    def overwritten(self) -> dict[str, str]:
        """Outputs that are in place, and the inputs that they overwrite."""
        return dict(self.in_place)

    def args(self, num_valid: Tensor | None = None, **tensors: Tensor) -> MapArgs:
        """The bundle of a call, by the names of inputs and outputs. A name that is missing or too much is refused with the
        call."""
        found: dict[str, Any] = {operand: tensors.get(one.name) for operand, one in zip(IN, self.inputs, strict=False)}
        found |= {operand: tensors.get(one.name) for operand, one in zip(OUT, self.outputs, strict=False)}
        return MapArgs(**found, num_valid=num_valid)

    @model_validator(mode="before")
    @classmethod
    def _pairs(cls, raw: Any) -> Any:
        if isinstance(raw, dict) and isinstance(raw.get("in_place"), dict):
            return raw | {"in_place": tuple(sorted(raw["in_place"].items()))}
        return raw

    @model_validator(mode="after")
    def _meaningful(self) -> MapDescriptor:
        try:
            text.text_of(list(self.values().values()))
            self._check_names()
            for i, given in enumerate(self.inputs):
                self._check_input(f".inputs.{i}", given)
            for path, node in paths(self.values()):
                self._check_node(f".{path}", node)
            for i, output in enumerate(self.outputs):
                stores(output, f".outputs.{i}")
            self._check_in_place()
        except Fault as fault:
            raise refused(fault) from None
        if self.num_valid and not self.shape:
            raise refused(Fault(".num_valid", "an axis of rows", "a result of rank 0"))
        return self

    def _check_names(self) -> None:
        names = [
            (f".{kind}.{i}.name", one.name)
            for kind in ("inputs", "scalars", "outputs")
            for i, one in enumerate(getattr(self, kind))
        ]
        seen: set[str] = set()
        for path, name in names:
            if name in seen:
                raise Fault(path, "a name of its own", name)
            seen.add(name)
        used = used_names(self.values())
        for path, name in names[: len(self.inputs) + len(self.scalars)]:
            if name not in used:
                raise Fault(path, "a name that an output uses", name)

    def _check_input(self, path: str, given: Input) -> None:
        if given.shape is not None:
            if given.over is not None:
                raise Fault(f"{path}.over", "nothing beside a shape of its own", str(given.over))
            return
        over = given.over or ()
        if list(over) != sorted(set(over)) or any(axis >= len(self.shape) for axis in over):
            raise Fault(f"{path}.over", f"axes of the {len(self.shape)} of shape, rising", str(over))

    def _check_node(self, path: str, node: Node) -> None:
        known = {given.name: given for given in self.inputs}
        if node.kind in ("input", "read"):
            name = node.data[0] if node.kind == "read" else node.data
            self._check_use(path, node, known.get(name), name)
        elif node.kind == "scalar":
            types = {number.name: number.type for number in self.scalars}
            if types.get(node.data) != node.type:
                raise Fault(path, f"a scalar {node.data} of type {node.type} among scalars", types.get(node.data, "none"))
        elif node.kind in ("coord", "extent") and node.data >= len(self.shape):
            raise Fault(f"{path}.axis", f"an axis of the {len(self.shape)} of shape", node.data)
        elif node.kind == "stage":
            raise Fault(path, "no stage: a map folds nothing", "a stage")

    @staticmethod
    def _check_use(path: str, node: Node, given: Input | None, name: str) -> None:
        if given is None:
            raise Fault(f"{path}.name", "an input of inputs", name)
        if given.type != node.type:
            raise Fault(f"{path}.type", f"{given.type}, as which {given.dtype} is read", node.type)
        if node.kind == "input" and given.shape is not None:
            raise Fault(path, f"{name} read at computed places: it has a shape of its own", "its element at the place")
        if node.kind == "read":
            if given.shape is None:
                raise Fault(
                    path, f"a shape of its own for {name}, which is read at computed places", "none", "Give inputs a shape."
                )
            places = len(node.args) - (node.data[1] == "fill")
            if places != len(given.shape):
                raise Fault(f"{path}.at", f"{len(given.shape)} places, one for each axis of {name}", f"{places}")

    def _check_in_place(self) -> None:
        inputs, outputs = {one.name: one for one in self.inputs}, {one.name: one for one in self.outputs}
        if len(set(self.overwritten.values())) < len(self.in_place) or len(self.overwritten) < len(self.in_place):
            raise Fault(".in_place", "each output and each input once", str(self.in_place))
        for i, (output, given) in enumerate(self.in_place):
            known = inputs.get(given)
            if output not in outputs or known is None:
                raise Fault(f".in_place.{i}", "an output and the input that it overwrites", f"({output}, {given})")
            all_axes = known.over is None or len(known.over) == len(self.shape)
            if known.dtype != outputs[output].dtype or not all_axes or known.shape is not None:
                raise Fault(f".in_place.{i}", f"{given} of the dtype of {output}, over all axes", f"({output}, {given})")

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

    def written(self, args: Any) -> list[Tensor]:
        """The tensors of the outputs, in their order: with in_place the input that is overwritten."""
        place = {given.name: operand for operand, given in zip(IN, self.inputs, strict=False)}
        names = (place.get(self.overwritten.get(made.name, ""), OUT[i]) for i, made in enumerate(self.outputs))
        return [getattr(args, name) for name in names]


class MapPlan(Plan[MapArgs]): ...


_X, _Y = value("x", "f32"), value("y", "f32")


def _silu_and_mul(rows: int, width: int, dtype: Any, **more: Any) -> MapDescriptor:
    inputs = (Input(name="x", dtype=dtype), Input(name="y", dtype=dtype))
    return MapDescriptor(
        shape=(rows, width), inputs=inputs, outputs=(Output(name="z", dtype=dtype, value=silu(_X) * _Y),), **more
    )


def _rolled(rows: int, width: int) -> MapDescriptor:
    """Rows rolled by two, beside where each came from."""
    row = apply("mod", coord(0) - 2, extent(0))
    outputs = (
        Output(name="z", dtype="i16", value=read("x", "i16", (row, coord(1)))),
        Output(name="source", dtype="i64", value=row),
    )
    return MapDescriptor(shape=(rows, width), inputs=(Input(name="x", dtype="i16", shape=(rows, width)),), outputs=outputs)


def _scaled(rows: int, width: int) -> MapDescriptor:
    """A column of factors, a number of the plan, and a comparison."""
    inputs = (Input(name="x", dtype="f32"), Input(name="y", dtype="bf16", over=(1,)))
    outputs = (
        Output(name="z", dtype="f32", value=_X * _Y + scalar("c")),
        Output(name="large", dtype="bool", value=apply("exp", _X) > _Y),
    )
    return MapDescriptor(shape=(rows, width), inputs=inputs, outputs=outputs, scalars=(Number(name="c", value=0.5),))


def _sums(shape: tuple[int, ...]) -> MapDescriptor:
    """As many inputs and outputs as there may be: running sums."""
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
