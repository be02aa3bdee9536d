"""Segments of k that are summed apart, by n and k alone: products with few columns have too few tiles for all SMs."""

from __future__ import annotations

from typing import NamedTuple

from opfacade.plans.matmul import GroupedMatmulDescriptor, MatmulDescriptor

_WIDEST = 512  # columns: more have tiles enough. Another number would change bits
_LEAST_SPLIT, _MOST_SPLIT = 4, 8  # CTAs of a cluster; two are not worth their sum
_UNIT = 128  # elements: a segment is whole stages of every tile
_LEAST = 512  # elements of a segment


class Segments(NamedTuple):
    """many: how many there are; length: elements of k of each but the last."""

    many: int
    length: int


def segments_of(problem: MatmulDescriptor | GroupedMatmulDescriptor) -> Segments | None:
    """None: k is one chain."""
    if problem.order == "k" or problem.dtype not in ("f16", "bf16"):
        return None
    if isinstance(problem, GroupedMatmulDescriptor) and problem.layout == "k":  # only the device has the lengths
        return None
    if isinstance(problem, MatmulDescriptor) and problem.weight_format is not None:
        return None
    if problem.n * problem.columns > _WIDEST:
        return None
    most = min(_MOST_SPLIT, problem.k // _LEAST)
    return cut(problem.k, most) if most >= _LEAST_SPLIT else None


def cut(k: int, most: int) -> Segments:
    """A power of two of them, fewer where units do not divide."""
    units, wanted = -(-k // _UNIT), 8 if most >= 8 else 4
    each = -(-units // wanted)
    return Segments(-(-units // each), each * _UNIT)
