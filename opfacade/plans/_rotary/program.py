"""Rotary embedding as a program: the expression for one output element, with the same arithmetic steps as the kernels."""

from __future__ import annotations

from typing import Protocol

from opfacade.programs.expression import Node, apply, coord, read


class Rotation(Protocol):
    """Fields of a rotation."""

    @property
    def rotary_dim(self) -> int: ...
    @property
    def rotary_offset(self) -> int: ...
    @property
    def interleaved(self) -> bool: ...
    @property
    def inverse(self) -> bool: ...
    @property
    def groups(self) -> int: ...
    @property
    def sections(self) -> tuple[int, ...] | None: ...
    @property
    def section_order(self) -> str: ...


def rotated_element(descriptor: Rotation) -> Node:
    """The element at coord (row, head, element). Inputs: x [rows, heads, head_dim], positions [groups, rows] of i64, table
    [max_positions, rotary_dim]."""
    half, at = descriptor.rotary_dim // 2, coord(2) - descriptor.rotary_offset
    inside = (coord(2) >= descriptor.rotary_offset) & (at < descriptor.rotary_dim)
    if descriptor.interleaved:
        pair, second = apply("floordiv", at, 2), apply("mod", at, 2) >= 1
        other = _select(second, coord(2) - 1, coord(2) + 1)
    else:
        pair, second = apply("mod", at, half), at >= half
        other = _select(second, coord(2) - half, coord(2) + half)
    position = _position(descriptor, pair)
    cos, sin = (read("table", "f32", (position, column)) for column in (pair, pair + half))
    sin = -sin if descriptor.inverse else sin
    x = read("x", "f32", (coord(0), coord(1), coord(2)))
    along, across = x * cos, read("x", "f32", (coord(0), coord(1), other)) * sin
    return _select(inside & (position >= 0), _select(second, along + across, along - across), x)


def _position(descriptor: Rotation, pair: Node) -> Node:
    """The position of a pair's group."""
    found = [read("positions", "i64", (group, coord(0))) for group in range(descriptor.groups)]
    position, first, sections = found[0], 0, descriptor.sections or ()
    for group in range(1, descriptor.groups):
        first += sections[group - 1]
        if descriptor.section_order == "interleaved":
            stop = descriptor.groups * sections[group]
            chosen = (apply("mod", pair, descriptor.groups) >= group) & (apply("mod", pair, descriptor.groups) <= group)
            position = _select(chosen & (pair < stop), found[group], position)
        else:
            position = _select(pair >= first, found[group], position)
    return position


def _select(condition: Node, a: Node, b: Node) -> Node:
    return apply("select", condition, a, b)
