"""Segments of k that are summed separately, because products with few columns have too few tiles for all SMs. They depend only
on n and k."""

from __future__ import annotations

from typing import NamedTuple

from opfacade.plans.matmul import GroupedMatmulDescriptor, MatmulDescriptor

_WIDEST = 512  # maximum columns with segments: more columns have enough tiles. Another number would change bits
_LEAST_SPLIT, _MOST_SPLIT = 4, 8  # CTAs of a cluster; with two, their sum costs more than it saves
_UNIT = 128  # elements: segments are multiples of the stages of every tile
_LEAST = 512  # minimum elements per segment


class Segments(NamedTuple):
    """many: the number of segments. length: elements of k in each except the last."""

    many: int
    length: int


def segments_of(problem: MatmulDescriptor | GroupedMatmulDescriptor) -> Segments | None:
    """The segments of a problem; None: k is one chain."""
    if problem.order == "k" or problem.dtype not in ("f16", "bf16"):
        return None
    if isinstance(problem, GroupedMatmulDescriptor) and problem.layout == "k":  # the lengths are only on the device
        return None
    if isinstance(problem, MatmulDescriptor) and problem.weight_format is not None:
        return None
    if problem.n * problem.columns > _WIDEST:
        return None
    most = min(_MOST_SPLIT, problem.k // _LEAST)
    return cut(problem.k, most) if most >= _LEAST_SPLIT else None


def cut(k: int, most: int) -> Segments:
    """A power of two of segments, or fewer if the units are not divisible."""
    units, wanted = -(-k // _UNIT), 8 if most >= 8 else 4
    each = -(-units // wanted)
    return Segments(-(-units // each), each * _UNIT)
