"""A composite plan as data: problems that run one after the other, and the tensors between them."""

from __future__ import annotations

from bisect import insort
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from opfacade.core.descriptor import Descriptor, operands_of
from opfacade.core.operands import TensorSpec
from opfacade.select import registry

ALIGNMENT = 256
Lifetime = tuple[int, int, int]  # first step, last step and bytes of a tensor between steps


class Last(NamedTuple):
    """The last entry of a one-dimensional tensor, as a tensor."""

    name: str


class Step(NamedTuple):
    """One problem of a composite plan.

    name: its name in the constants of the error model. tensors: for each operand of the problem, an operand of the whole plan,
    or the name of a tensor that an earlier step wrote.
    """

    name: str
    problem: Descriptor[Any]
    tensors: Mapping[str, str | Last]


class Held(NamedTuple):
    """A tensor between steps: its shape and dtype, the first step that writes it, and the last step that reads it."""

    spec: TensorSpec
    first: int
    last: int


class Place(NamedTuple):
    """The location of a tensor between steps in the workspace."""

    spec: TensorSpec
    offset: int


def problem(op: str, **fields: object) -> Descriptor[Any]:
    """A problem of another family, by the name of its op, because families do not import each other."""
    made: Descriptor[Any] = registry.descriptor_types()[op](**fields)
    return made


def places(operands: Mapping[str, TensorSpec], steps: Sequence[Step]) -> tuple[dict[str, Place], int]:
    """The location of each tensor between steps, and the total number of bytes.

    Tensors that are needed at the same time do not overlap; the largest are placed first, each at the lowest possible address.
    """
    held = held_by(operands, steps)
    offsets, total = packed({name: (one.first, one.last, _bytes(one.spec)) for name, one in held.items()})
    return {name: Place(held[name].spec, at) for name, at in offsets.items()}, total


def packed(held: Mapping[str, Lifetime]) -> tuple[dict[str, int], int]:
    """The offset of each tensor, and the total number of bytes."""
    names = sorted(held)
    lives = [held[name] for name in names]
    offsets, total = fitted([size for _, _, size in lives], together([(first, last) for first, last, _ in lives]))
    return dict(zip(names, offsets, strict=True)), total


def together(spans: Sequence[tuple[int, int]]) -> list[list[int]]:
    """For each span of steps, the other spans that overlap it."""
    return [
        [other for other, (first, last) in enumerate(spans) if other != at and first <= stop and begin <= last]
        for at, (begin, stop) in enumerate(spans)
    ]


def fitted(sizes: Sequence[int], others: Sequence[Sequence[int]]) -> tuple[list[int], int]:
    """The offset of each tensor, and the total number of bytes. others: for each tensor, the tensors that it must not overlap.
    The first of several equal sizes is placed first."""
    offsets, total = [-1] * len(sizes), 0
    placed: list[tuple[int, int, int]] = []  # first byte, end, and which tensor, by address
    for at in sorted(range(len(sizes)), key=sizes.__getitem__, reverse=True):  # equal sizes stay in their order
        begin, size, avoided = 0, sizes[at], others[at]
        for first, stop, other in placed:
            if stop > begin and other in avoided:
                if begin + size <= first:
                    break
                begin = stop
        offsets[at], end = begin, begin + size
        insort(placed, (begin, end, at))
        if end > total:
            total = end
    return offsets, total


def held_by(operands: Mapping[str, object], steps: Sequence[Step]) -> dict[str, Held]:
    """The tensors between steps. operands: names of the tensors of the whole plan."""
    held: dict[str, Held] = {}
    for at, step in enumerate(steps):
        specs = operands_of(step.problem)
        for operand, given in step.tensors.items():
            name = given.name if isinstance(given, Last) else given
            if name not in operands:
                held[name] = held[name]._replace(last=at) if name in held else Held(specs[operand], at, at)
    return held


def _bytes(spec: TensorSpec) -> int:
    size = spec.nbytes
    return size + -size % ALIGNMENT
