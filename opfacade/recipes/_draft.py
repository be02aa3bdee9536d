"""Draft: a map in the making. Tensors become inputs, numbers become numbers of the plan, and so no part of a kernel."""

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
    """One descriptor. shape: extents of its result."""

    def __init__(self, shape: Sequence[int]) -> None:
        self.shape: Shape = tuple(shape)
        self.inputs: list[Input] = []
        self.numbers: list[Number] = []

    def element(self, name: str, given: Shaped) -> Node:
        """The element of an input at the place of the result. An input lacks the axes along which it is expanded."""
        first = len(self.shape) - given.rank
        over = tuple(first + i for i, size in enumerate(given.shape) if size == self.shape[first + i])
        self.inputs.append(Input(name=name, dtype=given.dtype, over=None if len(over) == len(self.shape) else over))
        return value(name, given.type)

    def along(self, name: str, given: Shaped, axes: Sequence[int]) -> Node:
        """The element of an input that has the named axes of the result and no others."""
        self.inputs.append(Input(name=name, dtype=given.dtype, over=tuple(axes)))
        return value(name, given.type)

    def source(self, name: str, given: Shaped, outside: Any = None) -> Source:
        """An input that is read at computed places. outside: as in `Source.at`, where the places are such as the caller wants:
        an input without elements is then refused, unless nothing is read or a number stands for what is outside."""
        if isinstance(outside, str) and 0 in given.shape and 0 not in self.shape:
            refuse(name, f"at least one element, for a result of shape {self.shape} reads some", given.shape)
        self.inputs.append(Input(name=name, dtype=given.dtype, shape=given.shape or (1,)))
        return Source(name, given)

    def number(self, name: str, number: float, type: Type) -> Node:
        """A number of the plan. One that is not finite is a constant: no plan carries it."""
        if not isinstance(number, (int, float)):
            refuse(name, "a number", number)
        number = as_number(number, type)
        try:
            fixed = constant(number, type)
            if isinstance(number, float) and not math.isfinite(number):
                return fixed
            made = Number(name=name, value=number, type=type)
        except Fault as fault:
            raise Refusal(name, f"{type}, as which the tensors are computed", number, fault.hint_text) from None
        if made not in self.numbers:
            self.numbers.append(made)
        return scalar(name, type)

    def here(self, axes: Sequence[int] | None = None) -> list[Node]:
        """The place of the result."""
        return [coord(axis) for axis in (range(len(self.shape)) if axes is None else axes)]

    def map(self, *values: Node, dtype: DType | None = None, names: Sequence[str] = ()) -> MapDescriptor:
        """The descriptor. dtype: of results that are computed in its type; others have their own type. names: of the results,
        else out, or out0, out1 and so on."""
        told = list(names) or named(values)
        outputs = tuple(Output(name=name, dtype=kept(node, dtype), value=node) for name, node in zip(told, values, strict=True))
        used = used_names(dict(zip(told, values, strict=True)))
        numbers = tuple(number for number in self.numbers if number.name in used)
        if len(self.inputs) > 8:
            refuse("tensors", "at most 8, as many as a map has", len(self.inputs))
        return MapDescriptor(shape=self.shape, inputs=tuple(self.inputs), scalars=numbers, outputs=outputs)


class Source:
    """An input that is read at computed places."""

    def __init__(self, name: str, given: Shaped) -> None:
        self.name, self.given = name, given

    def at(self, places: Sequence[Node], outside: Any = "clamp") -> Node:
        """Its element at a place for each of its axes."""
        return read(self.name, self.given.type, tuple(places) or (constant(0, "i64"),), outside)


def zero(type: Type) -> Node:
    return constant(False if type == "bool" else 0, type)


def one(type: Type) -> Node:
    return constant(True if type == "bool" else 1, type)


def named(values: Sequence[Node]) -> list[str]:
    """The names of results: out, or out0, out1 and so on."""
    return ["out"] if len(values) == 1 else [f"out{i}" for i in range(len(values))]


def kept(node: Node, dtype: DType | None) -> DType:
    """The dtype of a result: `dtype` where that holds its value."""
    return dtype if dtype is not None and storable(dtype) == node.type else node.type
