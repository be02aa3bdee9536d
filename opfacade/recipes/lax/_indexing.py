"""lax's data movement, conversions and constants."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from opfacade.core.dtypes import ITEMSIZE
from opfacade.plans.elementwise import MapDescriptor
from opfacade.programs import words as w
from opfacade.programs.expression import coord
from opfacade.programs.types import FLOATS
from opfacade.recipes._draft import Draft
from opfacade.recipes._pointwise import pointwise
from opfacade.recipes._tensors import Shaped, axes_of, axis_of, dtype_of, refuse, sizes
from opfacade.recipes.creation import positions
from opfacade.recipes.data_movement import concatenation, indexing
from opfacade.recipes.elementwise import casts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opfacade.recipes._tensors import AnyDType


def broadcast_in_dim(operand: Shaped, shape: Sequence[int], broadcast_dimensions: object) -> MapDescriptor:
    """Axis i of the operand becomes axis broadcast_dimensions[i] of the result; an axis of size 1 is expanded."""
    wide, axes = sizes("shape", shape), sizes("broadcast_dimensions", broadcast_dimensions)
    if len(axes) != operand.rank or list(axes) != sorted(set(axes)):
        refuse("broadcast_dimensions", f"{operand.rank} rising axes", broadcast_dimensions)
    draft, kept = Draft(wide), []
    for axis, size in zip(axes, operand.shape, strict=True):
        if size not in (1, wide[axis_of("broadcast_dimensions", axis, len(wide))]):
            refuse("shape", f"{size} along axis {axis}", wide)
        kept += [axis] if size == wide[axis] else []
    present = Shaped(tuple(wide[axis] for axis in kept), operand.dtype)
    return draft.map(draft.along("operand", present, kept), dtype=operand.dtype)


def broadcast(operand: Shaped, sizes: Any) -> MapDescriptor:
    new = len(sizes)
    return broadcast_in_dim(operand, (*sizes, *operand.shape), tuple(range(new, new + operand.rank)))


def bitcast_convert_type(operand: Shaped, new_dtype: object) -> MapDescriptor:
    """Reinterprets a float as a signed integer of the same size, or the reverse; all NaNs get the same bit pattern."""
    wanted, draft = dtype_of(new_dtype, "new_dtype"), Draft(operand.shape)
    x = draft.element("operand", operand)
    if wanted == operand.dtype:
        return draft.map(x, dtype=wanted)
    pairs = {("f32", "i32"), ("i32", "f32"), ("f64", "i64"), ("i64", "f64")}
    if (operand.dtype, wanted) not in pairs:
        refuse("new_dtype", f"the other {8 * ITEMSIZE[operand.dtype]}-bit type of f32, i32, f64 and i64", new_dtype)
    return draft.map(w.as_bits(x) if operand.dtype in FLOATS else w.from_bits(x))


def broadcasted_iota(dtype: AnyDType, shape: Sequence[int], dimension: int) -> MapDescriptor:
    wide, (wanted, type) = sizes("shape", shape), positions.type_of(dtype)
    draft, axis = Draft(wide), axis_of("dimension", dimension, len(wide))
    return draft.map(positions.as_type(coord(axis), type), dtype=wanted)


def pad(operand: Shaped, padding_value: float, padding_config: Any) -> MapDescriptor:
    """padding_config: (low, high, interior) for each axis; negative sizes crop."""
    config = [sizes("padding_config", one) for one in padding_config]
    if len(config) != operand.rank or any(len(one) != 3 or one[2] < 0 for one in config):
        refuse("padding_config", f"{operand.rank} times (low, high, interior)", padding_config)
    spread = [size + max(size - 1, 0) * one[2] for size, one in zip(operand.shape, config, strict=True)]
    draft = Draft([max(size + one[0] + one[1], 0) for size, one in zip(spread, config, strict=True)])
    fill, places, between = draft.number("padding_value", padding_value, operand.type), [], None
    for i, (low, _, inside) in enumerate(config):
        place, step = coord(i) - draft.number(f"low{i}", low, "i64"), draft.number(f"step{i}", inside + 1, "i64")
        on = w.eq(w.mod(place, step), 0)
        between = on if between is None else w.and_(between, on)
        places.append(w.floordiv(place, step))
    found = draft.source("operand", operand).at(places, fill)
    return draft.map(found if between is None else w.select(between, found, fill), dtype=operand.dtype)


def slice_of(operand: Shaped, start_indices: object, limit_indices: object, strides: object = None) -> MapDescriptor:
    first, last = sizes("start_indices", start_indices), sizes("limit_indices", limit_indices)
    step = (1,) * operand.rank if strides is None else sizes("strides", strides)
    if not len(first) == len(last) == len(step) == operand.rank:
        refuse("start_indices", f"{operand.rank} numbers", (first, last, step))
    if any(not 0 <= a <= b <= n or by < 1 for a, b, n, by in zip(first, last, operand.shape, step, strict=True)):
        refuse("limit_indices", f"0 <= start <= limit <= {operand.shape}, strides of at least 1", (first, last, step))
    draft = Draft([len(range(a, b, by)) for a, b, by in zip(first, last, step, strict=True)])
    numbers = [(draft.number(f"start{i}", first[i], "i64"), draft.number(f"step{i}", step[i], "i64")) for i in range(len(step))]
    places = [coord(i) * by + start for i, (start, by) in enumerate(numbers)]
    return draft.map(draft.source("operand", operand).at(places), dtype=operand.dtype)


def rev(operand: Shaped, dimensions: object) -> MapDescriptor:
    return indexing.flip.make(operand, axes_of("dimensions", dimensions, operand.rank))


MAKERS: Mapping[str, Callable[..., MapDescriptor]] = {
    "convert_element_type": lambda operand, new_dtype: casts.to.make(operand, new_dtype),
    "bitcast_convert_type": bitcast_convert_type,
    "broadcast": broadcast,
    "broadcast_in_dim": broadcast_in_dim,
    "broadcasted_iota": broadcasted_iota,
    "iota": lambda dtype, size: broadcasted_iota(dtype, (size,), 0),
    "full": lambda shape, fill_value, dtype="f32": positions.filled(sizes("shape", shape), fill_value, dtype),
    "full_like": lambda x, fill_value, dtype=None: positions.filled(x.shape, fill_value, dtype or x.dtype),
    "pad": pad,
    "rev": rev,
    "slice": slice_of,
    "concatenate": lambda operands, dimension: concatenation.cat.make(operands, dimension),
    "reshape": lambda operand, new_sizes: indexing.view_copy.make(operand, new_sizes),
    "transpose": lambda operand, permutation: indexing.permute_copy.make(operand, permutation),
    "expand_dims": lambda array, dimensions: indexing.view_copy.make(array, _expanded(array, dimensions)),
    "squeeze": lambda array, dimensions: indexing.squeeze_copy.make(array, dimensions),
    "select": pointwise(lambda condition, on_true, on_false: w.select(condition, on_true, on_false)),
    "select_n": pointwise(lambda condition, case0, case1: w.select(condition, case1, case0)),
}


def _expanded(array: Shaped, dimensions: Any) -> tuple[int, ...]:
    rank = array.rank + len(dimensions)
    axes, rest = axes_of("dimensions", dimensions, rank), iter(array.shape)
    return tuple(1 if axis in axes else next(rest) for axis in range(rank))
