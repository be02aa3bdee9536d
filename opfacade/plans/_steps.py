"""A plan of plans as data: problems that run one behind the other, and the tensors that they hand on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from opfacade.core.descriptor import Descriptor, operands_of
from opfacade.core.operands import TensorSpec, nbytes
from opfacade.select import registry

ALIGNMENT = 256


class Last(NamedTuple):
    """The last entry of a tensor of one axis, as a tensor."""

    name: str


class Step(NamedTuple):
    """One problem of a plan of plans.

    name: in the constants of its error model. tensors: of each operand of the problem, an operand of the whole or, by another
    name, a tensor that an earlier step wrote.
    """

    name: str
    problem: Descriptor[Any]
    tensors: Mapping[str, str | Last]


class Held(NamedTuple):
    """A tensor between steps: its form, and the steps that write it first and read it last."""

    spec: TensorSpec
    first: int
    last: int


class Place(NamedTuple):
    """Where a tensor between steps lies in the workspace."""

    spec: TensorSpec
    offset: int


def problem(op: str, **fields: object) -> Descriptor[Any]:
    """A problem of another family, by the name of its op: families do not import each other."""
    made: Descriptor[Any] = registry.descriptor_types()[op](**fields)
    return made


def places(operands: Mapping[str, TensorSpec], steps: Sequence[Step]) -> tuple[dict[str, Place], int]:
    """Where each tensor between steps lies, and how many bytes they take together.

    Tensors that are needed at the same time do not overlap; the largest are placed first, each as low as it can lie.
    """
    held = _held(operands, steps)
    found: dict[str, Place] = {}
    for name in sorted(held, key=lambda name: (-_bytes(held[name].spec), name)):
        others = sorted(_span(found[other]) for other in found if _meet(held[name], held[other]))
        found[name] = Place(held[name].spec, _lowest(others, _bytes(held[name].spec)))
    return found, max((_span(place)[1] for place in found.values()), default=0)


def _held(operands: Mapping[str, TensorSpec], steps: Sequence[Step]) -> dict[str, Held]:
    held: dict[str, Held] = {}
    for at, step in enumerate(steps):
        specs = operands_of(step.problem)
        for operand, given in step.tensors.items():
            name = given.name if isinstance(given, Last) else given
            if name not in operands:
                held[name] = held[name]._replace(last=at) if name in held else Held(specs[operand], at, at)
    return held


def _bytes(spec: TensorSpec) -> int:
    whole = nbytes([spec])
    return whole + -whole % ALIGNMENT


def _span(place: Place) -> tuple[int, int]:
    return place.offset, place.offset + _bytes(place.spec)


def _meet(one: Held, other: Held) -> bool:
    return one.first <= other.last and other.first <= one.last


def _lowest(taken: Sequence[tuple[int, int]], size: int) -> int:
    """The lowest offset at which `size` bytes lie beside spans that are sorted."""
    at = 0
    for first, stop in taken:
        if at + size <= first:
            break
        at = max(at, stop)
    return at
