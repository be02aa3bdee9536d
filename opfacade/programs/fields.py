"""Fields of descriptors that hold programs: an expression, an input, an output, a number of the plan."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import (
    Field,
    GetCoreSchemaHandler,
    SerializationInfo,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)
from pydantic_core import core_schema

from opfacade.core.descriptor import ArgsT, Descriptor
from opfacade.core.dtypes import DType
from opfacade.core.model import Count, FromList, Written, contradiction
from opfacade.programs import text
from opfacade.programs.expression import MAX_AXES, Node, ordered
from opfacade.programs.fault import Fault
from opfacade.programs.types import FLOATS, Type, widened

Name = Annotated[str, Field(pattern=r"\A[A-Za-z][A-Za-z0-9_]{0,31}\z")]
Axis = Annotated[int, Field(ge=0, lt=MAX_AXES)]


class _AsNode:
    """Validates a node, or its text; JSON contains the text."""

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        def show(node: Node) -> Any:
            return text.text_of([node]).values[0]

        shown = core_schema.plain_serializer_function_ser_schema(show, when_used="json")
        return core_schema.no_info_plain_validator_function(_node, serialization=shown)

    def __get_pydantic_json_schema__(self, schema: object, handler: object) -> dict[str, Any]:
        return {"type": "object", "description": "an expression as docs/programs.md has it"}


def _node(given: object) -> Node:
    try:
        return text.node_from(given)
    except Fault as fault:
        raise refused(fault) from None


def refused(fault: Fault) -> ValueError:
    """Converts a fault to a contradiction of the field that contains the program."""
    return contradiction(fault.path.lstrip("."), fault.expected, fault.got, fault.hint_text)


if TYPE_CHECKING:
    Expression = Node
else:
    Expression = Annotated[Node, _AsNode()]


class Input(Written):
    """A tensor that a program reads.

    over: its axes, in increasing order; it is constant along all others. None: all axes. shape: the shape of a tensor that is
    read only at computed positions; it is independent of the result's shape.
    """

    name: Name = Field(description="Name in the program.")
    dtype: DType = Field(description="Element type in memory.")
    over: Annotated[tuple[Axis, ...], FromList] | None = Field(
        default=None, description="Axes of the result that the input has, in increasing order; null: all."
    )
    shape: Annotated[tuple[Count, ...], FromList, Field(min_length=1, max_length=MAX_AXES)] | None = Field(
        default=None, description="Its own shape, if it is read only at computed positions; null: the shape of the result."
    )

    @property
    def type(self) -> Type:
        return widened(self.dtype)


class Output(Written):
    """A tensor that a program writes, and the value of its elements, which has the type of the dtype, or f32 for narrower
    floats."""

    name: Name = Field(description="Its name.")
    dtype: DType = Field(description="Element type in memory.")
    value: Expression = Field(description="The value of an element: an expression (docs/programs.md).")


class FoldOutput(Output):
    """A tensor that a fold writes. over: its axes, in the order of its dimensions: all kept axes and the first folded axes.
    None: all axes of shape."""

    over: Annotated[tuple[Axis, ...], FromList] | None = Field(
        default=None, description="Axes of the output, in order; null: all axes of shape."
    )


class Number(Written):
    """A scalar of the plan, not part of a kernel's identity. 0.0 and -0.0 are different numbers and give different plans."""

    name: Name = Field(description="Name in the program.")
    value: bool | int | float = Field(description="A number in the range of the type.")
    type: Type = Field(default="f32", description="Type of the number in the program.")

    @model_validator(mode="before")
    @classmethod
    def _of_one_form(cls, raw: Any) -> Any:
        """Converts 1 to 1.0 for f32, so that equal numbers have equal JSON."""
        number = raw.get("value") if isinstance(raw, dict) else None
        if isinstance(number, float) and not math.isfinite(number):
            kind = raw.get("type", "f32")
            hint = f'A plan carries none: write constant("{number}", "{kind}") into the program.' if kind in FLOATS else ""
            raise contradiction("value", "a finite number", number, hint)
        return raw | {"value": as_number(number, "f64")} if type(number) is int and raw.get("type", "f32") in FLOATS else raw

    def __eq__(self, other: object) -> bool:
        """Also compares the signs of zeros: 0.0 == -0.0, but 1 / x differs."""
        if not isinstance(other, Number):
            return NotImplemented
        return super().__eq__(other) and (self.value != 0 or math.copysign(1, self.value) == math.copysign(1, other.value))

    __hash__ = Written.__hash__

    @model_validator(mode="after")
    def _of_its_type(self) -> Number:
        from opfacade.programs.expression import constant

        try:
            constant(self.value, self.type)
        except Fault as fault:
            raise refused(fault) from None
        return self


def as_number(number: float, type: str) -> float:
    """The number converted to a type: integral numbers to integers, 0 and 1 to bool; a number that the type cannot represent is
    returned unchanged."""
    if type in FLOATS:
        try:
            return float(number)
        except OverflowError:  # for an int; the type then refuses it
            return number
    if type == "bool":
        return bool(number) if number in (0, 1) else number
    return int(number) if isinstance(number, bool) or (isinstance(number, float) and number.is_integer()) else number


def tupled(given: object) -> Any:
    """Converts nested lists to tuples, which JSON does not have."""
    if isinstance(given, (list, tuple)):
        return tuple(tupled(item) for item in given)
    return {name: tupled(item) for name, item in given.items()} if isinstance(given, dict) else given


class ProgramDescriptor(Descriptor[ArgsT]):
    """Base of descriptors with a program; in JSON, its shared subexpressions are in `lets`."""

    def values(self) -> dict[str, Node]:
        """The expressions by the path of their field, such as `outputs.0.value`; absent if the field has no expression."""
        raise NotImplementedError

    @model_validator(mode="before")
    @classmethod
    def _with_lets(cls, raw: object) -> Any:
        """Converts texts to nodes with the help of the lets."""
        if not isinstance(raw, dict):
            return raw
        given = dict(raw)
        try:
            lets = text.lets_from(given.pop("lets")) if "lets" in given else []
            given = cls._nodes_in(given, lets)
        except Fault as fault:
            raise refused(fault) from None
        return {name: value if name in ("lets",) else tupled(value) for name, value in given.items()}

    @classmethod
    def _nodes_in(cls, given: dict[str, Any], lets: Sequence[Node]) -> dict[str, Any]:
        """The fields with nodes in place of texts."""
        raise NotImplementedError

    @model_serializer(mode="wrap")
    def _as_before(self, fields: SerializerFunctionWrapHandler, info: SerializationInfo) -> dict[str, Any]:
        at_default = {name for name in self.later if getattr(self, name) == type(self).model_fields[name].default}
        found = {name: value for name, value in fields(self).items() if name not in at_default}
        values = self.values()
        if info.mode == "json" and values:
            told = text.text_of(list(values.values()))
            for path, value in zip(values, told.values, strict=True):
                *above, last = path.split(".")
                holder: Any = found
                for step in above:
                    holder = holder[int(step) if step.isdigit() else step]
                holder[last] = value
            found["lets"] = told.lets
        return found


def nodes_in(given: object, lets: Sequence[Node], path: str) -> Any:
    """The items of a field, with `value` converted from text to a node."""
    if not isinstance(given, (list, tuple)):
        return given
    return tuple(
        {**item, "value": text.node_from(item["value"], lets, f"{path}.{index}.value")}
        if isinstance(item, Mapping) and "value" in item
        else item
        for index, item in enumerate(given)
    )


def paths(values: Mapping[str, Node]) -> Iterator[tuple[str, Node]]:
    """Each node of some expressions once, with the path of its first use."""
    seen: set[Node] = set()
    for root, value in values.items():
        stack = [(root, value)]
        while stack:
            path, node = stack.pop()
            if node not in seen:
                seen.add(node)
                yield path, node
                places = [f"{path}.{'at' if node.kind == 'read' else 'args'}.{i}" for i in range(len(node.args))]
                stack += list(zip(places, node.args, strict=True))[::-1]


def stores(output: Output, path: str) -> None:
    """Raises Fault if the type of an output's value does not match its dtype."""
    wanted = widened(output.dtype)
    if output.value.type != wanted:
        hint = f"Convert with {wanted}(x): a store converts nothing."
        raise Fault(f"{path}.value", f"a value of type {wanted} for {output.dtype}", output.value.type, hint)


def used_names(values: Mapping[str, Node]) -> set[str]:
    """The names of the inputs and scalars that some expressions use."""
    nodes = ordered(values.values())
    return {node.data[0] if node.kind == "read" else node.data for node in nodes if node.kind in ("input", "scalar", "read")}
