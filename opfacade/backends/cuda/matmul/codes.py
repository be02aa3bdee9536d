"""Weight formats that the tile kernel supports. Threads decode the weight into its stages."""

from __future__ import annotations

from collections.abc import Iterator

from opfacade.backends.cuda import support
from opfacade.backends.cuda.matmul.decoding import way_of
from opfacade.backends.cuda.matmul.kernel import HALVES, Shape
from opfacade.backends.cuda.matmul.source import Product
from opfacade.backends.cuda.matmul.tiles import TILES, Sizes, Tile, nanoseconds, stages_of, whole_tile_of
from opfacade.core.candidate import Reason
from opfacade.plans._weights.weight import Weight

_CHUNK = 32  # codes that a thread decodes at a time
_PRODUCERS = 4  # warps, each of which fills a stage
_ROUND = 'Set dequantise="rounded".'


def shape_of(sizes: Sizes, sms: int, terms: int = 1) -> Shape:
    """Each CTA decodes the weight of its own tile, so CTAs share no weight, and k is one chain."""
    if terms == 1:
        return Shape(whole_tile_of(sizes, sms, True), None)
    return Shape(min(_with_terms(terms), key=lambda tile: nanoseconds(tile, sizes, sms)), None, terms=terms)


def _with_terms(terms: int) -> Iterator[Tile]:
    """Tiles with a stage per producer warp."""
    return (tile for tile in TILES if tile.cluster == 1 and stages_of(tile, terms) >= _PRODUCERS)


def lacks(problem: Product, weight: Weight, ordered: bool = False, sums: bool = False) -> Iterator[Reason]:
    """Reasons against a kernel that decodes codes. ordered: whether it supports activation order. sums: as in way_of."""
    yield from support.choice_reason("OPF-S002", "dtype", problem.dtype, HALVES)
    yield from support.choice_reason("OPF-S003", "x_layout", problem.x_layout, ("mk",))
    if not ordered:
        yield from support.choice_reason("OPF-S003", "weight_format.num_groups", weight.num_groups, (None,))
    inside = weight.group_offset % _CHUNK
    yield from support.choice_reason("OPF-S003", f"weight_format.group_offset % {_CHUNK}", inside, (0,))
    if problem.dtype in HALVES and way_of(weight, problem.dtype, sums) is None:
        yield from _inexact(problem, weight)


def _inexact(problem: Product, weight: Weight) -> Iterator[Reason]:
    """Reasons why numbers of this format are not exact operands."""
    field = "weight_format"
    if weight.zero not in ("none", "int"):
        yield from support.choice_reason("OPF-S003", f"{field}.zero", weight.zero, ("none", "int"), _ROUND)
    elif weight.scale_dtype == "f32":
        allowed = ("bf16", "f16", "f8_e4m3", "f8_e8m0")
        yield from support.choice_reason("OPF-S003", f"{field}.scale_dtype", weight.scale_dtype, allowed, _ROUND)
    else:
        hint = "Use bf16 for x, in which two terms represent a number exactly."
        yield from support.choice_reason("OPF-S002", "dtype", problem.dtype, ("bf16",), hint)
