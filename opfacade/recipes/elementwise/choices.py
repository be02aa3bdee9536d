"""Selection and clamping: where, clamp, masks, maxima, interpolation."""

from __future__ import annotations

from typing import Any

from opfacade.plans.elementwise import MapDescriptor
from opfacade.programs import words as w
from opfacade.programs.expression import Node, constant
from opfacade.programs.types import LARGEST
from opfacade.recipes._draft import Draft, zero
from opfacade.recipes._pointwise import floats, is_float, pointwise
from opfacade.recipes._recipe import recipe, table
from opfacade.recipes._tensors import Shaped, refuse


def _most(input: Node, other: Node) -> Node:
    return w.or_(input, other) if input.type == "bool" else w.maximum(input, other)


def _least(input: Node, other: Node) -> Node:
    return w.and_(input, other) if input.type == "bool" else w.minimum(input, other)


def clamp(input: Node, min: object = None, max: object = None) -> Node:
    """If min is above max, the result is max. A NaN in any argument gives NaN."""
    if min is None and max is None:
        refuse("min", "min, max, or both", "neither")
    found = input if min is None else w.maximum(input, min)
    return found if max is None else w.minimum(found, max)


def lerp(input: Node, end: Node, weight: Node) -> Node:
    """Interpolates from the nearer end, so weights 0 and 1 return the ends exactly."""
    apart = end - floats(input)
    return w.select(w.abs_(weight) < 0.5, input + weight * apart, end - apart * (1.0 - weight))


def where(condition: Node, input: Node, other: Node) -> Node:
    return w.select(condition, input, other)


table(
    {
        "where": where,
        "masked_fill": lambda input, mask, value: w.select(mask, value, input),
        "clamp clip": clamp,
        "clamp_min": lambda input, min: _most(input, min),
        "clamp_max": lambda input, max: _least(input, max),
        "maximum": _most,
        "minimum": _least,
        "fmax": lambda input, other: w.fmax(input, other) if is_float(input) else _most(input, other),
        "fmin": lambda input, other: w.fmin(input, other) if is_float(input) else _least(input, other),
        "lerp": lerp,
        "native_dropout_backward": lambda grad_output, mask, scale: w.select(
            mask, floats(grad_output) * scale, zero(grad_output.type)
        ),
    },
    pointwise,
)


@recipe("nan_to_num")
def nan_to_num(input: Shaped, nan: Any = 0.0, posinf: Any = None, neginf: Any = None) -> MapDescriptor:
    """By default, infinities become the largest finite numbers of the dtype."""
    draft = Draft(input.shape)
    x = draft.element("input", input)
    if not is_float(x):
        return draft.map(x, dtype=input.dtype)
    most, found = LARGEST[input.dtype], x
    ends = {"posinf": ("inf", most if posinf is None else posinf), "neginf": ("-inf", -most if neginf is None else neginf)}
    for name, (special, end) in ends.items():
        found = w.select(w.eq(x, constant(special, x.type)), draft.number(name, end, x.type), found)
    return draft.map(w.select(w.isnan(x), draft.number("nan", nan, x.type), found), dtype=input.dtype)
