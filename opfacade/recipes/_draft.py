"""Draft: a map under construction. Tensors become inputs; scalars are stored in the plan and are not compiled into the
kernel."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from opfacade.core.dtypes import DType
from opfacade.plans.elementwise import MapDescriptor
from opfacade.programs.expression import Node, constant, coord, read, scalar, value
from opfacade.programs.fault import Fault
from opfacade.programs.fields import Input, Number, Output, as_number, used_names
from opfacade.programs.types import Type, storable
from opfacade.recipes._tensors import Refusal, Shape, Shaped, refuse


class Draft:
    """Collects the inputs and scalars of one descriptor. shape: the shape of its result."""

    def __init__(self, shape: Sequence[int]) -> None:
        self.shape: Shape = tuple(shape)
        self.inputs: list[Input] = []
        self.numbers: list[Number] = []

    def element(self, name: str, given: Shaped) -> Node:
        """The element of an input at the position of the result. An expanded input lacks the axes along which it is
        expanded."""
        first = len(self.shape) - given.rank
        if first < 0 or any(size not in (1, have) for size, have in zip(given.shape, self.shape[first:], strict=True)):
            refuse(name, f"a shape that broadcasts to {self.shape}", given.shape)
        over = tuple(first + i for i, size in enumerate(given.shape) if size == self.shape[first + i])
        self.inputs.append(Input(name=name, dtype=given.dtype, over=None if len(over) == len(self.shape) else over))
        return value(name, given.type)

    def along(self, name: str, given: Shaped, axes: Sequence[int]) -> Node:
        """The element of an input that has only the given axes of the result."""
        wanted = tuple(self.shape[axis] for axis in axes)
        if given.shape != wanted:
            refuse(name, f"a tensor of shape {wanted}", given.shape)
        self.inputs.append(Input(name=name, dtype=given.dtype, over=tuple(axes)))
        return value(name, given.type)

    def source(self, name: str, given: Shaped, outside: Any = None) -> Source:
        """An input that is read at computed positions. outside: as in `Source.at`; an input without elements is refused unless
        the result is empty or `outside` is a number."""
        if isinstance(outside, str) and 0 in given.shape and 0 not in self.shape:
            refuse(name, f"at least one element, because a result of shape {self.shape} reads elements", given.shape)
        self.inputs.append(Input(name=name, dtype=given.dtype, shape=given.shape or (1,)))
        return Source(name, given)

    def number(self, name: str, number: float, type: Type) -> Node:
        """A scalar of the plan. A non-finite number becomes a constant of the program, because plans store only finite
        numbers."""
        if not isinstance(number, (int, float)):
            refuse(name, "a number", number)
        number = as_number(number, type)
        try:
            fixed = constant(number, type)
            if isinstance(number, float) and not math.isfinite(number):
                return fixed
            made = Number(name=name, value=number, type=type)
        except Fault as fault:
            raise Refusal(name, f"a number of type {type}, the type of the computation", number, fault.hint_text) from None
        if made not in self.numbers:
            self.numbers.append(made)
        return scalar(name, type)

    def here(self, axes: Sequence[int] | None = None) -> list[Node]:
        """The coordinates of the result."""
        return [coord(axis) for axis in (range(len(self.shape)) if axes is None else axes)]

    def map(self, *values: Node, dtype: DType | None = None, names: Sequence[str] = ()) -> MapDescriptor:
        """The descriptor. dtype: the dtype of results whose type can be stored in it; other results keep their own type. names:
        the names of the results; default: out, or out0, out1 and so on."""
        told = list(names) or named(values)
        outputs = tuple(Output(name=name, dtype=kept(node, dtype), value=node) for name, node in zip(told, values, strict=True))
        used = used_names(dict(zip(told, values, strict=True)))
        numbers = tuple(number for number in self.numbers if number.name in used)
        if len(self.inputs) > 8:
            refuse("tensors", "at most 8, the number of inputs that a map can have", len(self.inputs))
        return MapDescriptor(shape=self.shape, inputs=tuple(self.inputs), scalars=numbers, outputs=outputs)


class Source:
    """An input that is read at computed positions."""

    def __init__(self, name: str, given: Shaped) -> None:
        self.name, self.given = name, given

    def at(self, places: Sequence[Node], outside: Any = "clamp") -> Node:
        """The element at the given coordinates, one for each axis."""
        return read(self.name, self.given.type, tuple(places) or (constant(0, "i64"),), outside)


def zero(type: Type) -> Node:
    return constant(False if type == "bool" else 0, type)


def one(type: Type) -> Node:
    return constant(True if type == "bool" else 1, type)


def named(values: Sequence[Node]) -> list[str]:
    """The names of the results: out, or out0, out1 and so on."""
    return ["out"] if len(values) == 1 else [f"out{i}" for i in range(len(values))]


def kept(node: Node, dtype: DType | None) -> DType:
    """The dtype of a result: `dtype` if it can store the value."""
    return dtype if dtype is not None and storable(dtype) == node.type else node.type
