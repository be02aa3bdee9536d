"""Padding and repetition."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opfacade.plans.elementwise import MapDescriptor
from opfacade.programs import words as w
from opfacade.programs.expression import coord
from opfacade.recipes._draft import Draft
from opfacade.recipes._recipe import recipe
from opfacade.recipes._tensors import Shaped, axis_of, refuse, sizes
from opfacade.recipes.data_movement.indexing import moved, unraveled

if TYPE_CHECKING:
    from opfacade.recipes._tensors import Dims, Scalar


MODES = {"constant": None, "reflect": "reflect", "replicate": "clamp", "circular": "wrap"}


@recipe("nn.functional.pad", "circular does not accept negative sizes; reflect may mirror more than once")
def pad(input: Shaped, pad: Any, mode: str = "constant", value: Any = None) -> MapDescriptor:
    """pad: (before, after) for the last axis, then for the axis before it, and so on; a negative number crops."""
    around = sizes("pad", pad)
    if len(around) % 2 or len(around) // 2 > input.rank or mode not in MODES:
        refuse(
            "pad" if mode in MODES else "mode",
            f"pairs for at most {input.rank} axes, and one of the modes {list(MODES)}",
            (pad, mode),
        )
    before = [0] * (input.rank - len(around) // 2) + list(around[::2])[::-1]
    after = [0] * (input.rank - len(around) // 2) + list(around[1::2])[::-1]
    if mode == "circular" and min(around, default=0) < 0:
        refuse("pad", "non-negative sizes, because the input is repeated", pad)
    shape = [size + one + two for size, one, two in zip(input.shape, before, after, strict=True)]
    if min(shape, default=0) < 0:
        refuse("pad", "non-negative sizes", shape)
    draft = Draft(shape)
    fill = draft.number("value", 0 if value is None else value, input.type) if mode == "constant" else MODES[mode]
    places = [
        place - draft.number(f"before{i}", by, "i64") if by else place
        for i, (place, by) in enumerate(zip(draft.here(), before, strict=True))
    ]
    return draft.map(draft.source("input", input, fill).at(places, fill), dtype=input.dtype)


_padded = pad.make


@recipe("constant_pad_nd")
def constant_pad_nd(input: Shaped, pad: object, value: Scalar = 0) -> MapDescriptor:
    return _padded(input, pad, "constant", value)


@recipe("repeat tile", "repeat may have more axes than the input; tile may also have fewer")
def repeat(input: Shaped, *repeats: object) -> MapDescriptor:
    """The number of repetitions along each axis; additional axes are prepended."""
    times = sizes("repeats", repeats[0] if len(repeats) == 1 else repeats)
    times = (1,) * (input.rank - len(times)) + times
    new = len(times) - input.rank
    shape = [n * size for n, size in zip(times, (1,) * new + input.shape, strict=True)]
    return moved(input, shape, [coord(new + axis) for axis in range(input.rank)], "wrap" if input.rank else "clamp")


@recipe("repeat_interleave", "repeats must be a number; with a tensor, the size would be known only on the device")
def repeat_interleave(input: Shaped, repeats: int, dim: Dims = None, output_size: object = None) -> MapDescriptor:
    if not isinstance(repeats, int):
        refuse("repeats", "one number", repeats)
    shape = input.shape if dim is not None else (input.numel,)
    axis = 0 if dim is None else axis_of("dim", dim, input.rank)
    draft = Draft([size * repeats if i == axis else size for i, size in enumerate(shape or (1,))])
    places = draft.here()
    places[axis] = w.floordiv(places[axis], draft.number("repeats", max(repeats, 1), "i64"))
    if dim is None:
        places = unraveled(draft, places[0], input.shape)
    return draft.map(draft.source("input", input).at(places), dtype=input.dtype)
