"""Folds of rows with different lengths: their checks, and each row as a separate fold. Axis 0 counts the rows, and axis 1
counts the elements of all rows. A tensor has one of these two axes, because each element belongs to one row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from opfacade.programs.fault import Fault
from opfacade.programs.fields import paths
from opfacade.programs.program import Fold

if TYPE_CHECKING:
    from torch import Tensor

    from opfacade.core.descriptor import Args

_TENSORS = "either axis 0, of a row, or axis 1, of its elements, or neither"


def check_ragged(program: Fold) -> None:
    """Raises Fault for features that rows with different lengths do not support."""
    if program.fold[0] != 1:
        raise Fault(".fold", "axis 1, whose parts are the rows, and not axis 0", str(program.fold))
    for name, default in (("num_valid", False), ("split", "off"), ("in_place", ())):
        if getattr(program, name) != default:
            raise Fault(f".{name}", f"{default} with ragged rows", str(getattr(program, name)))
    for i, given in enumerate(program.inputs):
        if given.name == "indptr":
            raise Fault(f".inputs.{i}.name", "a name other than that of the operand of ragged rows", given.name)
        if given.shape is None and (given.over is None or {0, 1} <= set(given.over)):
            raise Fault(f".inputs.{i}.over", _TENSORS, str(given.over))
    for i, made in enumerate(program.outputs):
        if made.over is None or len({0, 1} & set(made.over)) != 1:
            raise Fault(f".outputs.{i}.over", "either axis 0 or axis 1", str(made.over))
    for i, stage in enumerate(program.stages):
        if stage.axes is not None and stage.axes != program.fold:
            raise Fault(f".stages.{i}.axes", "all folded axes, because rows are ragged", str(stage.axes))
        if stage.reducer in ("argmax", "argmin"):
            raise Fault(f".stages.{i}.reducer", "a reducer with a value for an empty row", stage.reducer)
    for path, node in paths(program.values()):
        if node.kind in ("coord", "extent") and node.data == 0:
            raise Fault(f".{path}.axis", "an axis other than the ragged axis", "0")


def rows_of(program: Fold, args: Any, chosen: Sequence[int] | None = None) -> Iterator[tuple[Fold, Any]]:
    """Each row as a separate fold, with its part of the tensors. A fold of rows with equal lengths is returned as a whole,
    without invalid rows if it folds the rows. chosen: the rows; None: all."""
    if args.num_valid is not None and 0 in program.fold:
        yield _valid_part(program, args)
    elif not program.ragged:
        yield program, args
    else:
        ranges = ranges_of(args.indptr, program.shape[1])
        for row in range(len(ranges)) if chosen is None else chosen:
            begin, end = ranges[row]
            yield _of_length(program, end - begin), _cut(program, args, row, (begin, end))


def ranges_of(indptr: Tensor, total: int) -> list[tuple[int, int]]:
    """(first, stop) of each row, clamped to the tensor. A row whose entries decrease is empty."""
    found = []
    bounds: list[int] = indptr.tolist()
    for first, stop in pairwise(bounds):
        begin = min(max(first, 0), total)
        found.append((begin, min(max(stop, begin), total)))
    return found


def _valid_part(program: Fold, args: Any) -> tuple[Fold, Any]:
    """The same fold of the valid rows; of no rows if the count is invalid."""
    count = int(args.num_valid[0])
    rows = count if 0 <= count <= program.shape[0] else 0
    every = tuple(range(len(program.shape)))

    def part(tensor: Tensor, axes: Sequence[int]) -> Tensor:
        return tensor.narrow(axes.index(0), 0, rows) if 0 in axes else tensor

    found = {}
    for i, given in enumerate(program.inputs):
        found[f"in_{i}"] = part(getattr(args, f"in_{i}"), every if given.over is None else given.over)
    for i, made in enumerate(program.outputs):
        if made.name not in program.overwritten:
            found[f"out_{i}"] = part(getattr(args, f"out_{i}"), program.axes_of(made))
    return program.model_copy(update={"shape": (rows, *program.shape[1:])}), type(args)(**found)


def _of_length(program: Fold, length: int) -> Fold:
    """The same fold of one row."""
    outputs = tuple(made.model_copy(update={"over": _with_rows(program.axes_of(made))}) for made in program.outputs)
    return program.model_copy(update={"shape": (1, length, *program.shape[2:]), "outputs": outputs, "ragged": None})


def _with_rows(axes: tuple[int, ...]) -> tuple[int, ...]:
    return axes if 0 in axes else (0, *axes)


def _cut(program: Fold, args: Args, row: int, range_: tuple[int, int]) -> Any:
    found: dict[str, Any] = {}
    for i, given in enumerate(program.inputs):
        tensor = getattr(args, f"in_{i}")
        found[f"in_{i}"] = tensor if given.shape is not None else _part(tensor, given.over or (), row, range_)
    for i, made in enumerate(program.outputs):
        axes = program.axes_of(made)
        part = _part(getattr(args, f"out_{i}"), axes, row, range_)
        found[f"out_{i}"] = part if 0 in axes else part.unsqueeze(0)
    return type(args)(**found)


def _part(tensor: Tensor, axes: Sequence[int], row: int, range_: tuple[int, int]) -> Tensor:
    if 0 in axes:
        return tensor.narrow(axes.index(0), row, 1)
    return tensor.narrow(axes.index(1), range_[0], range_[1] - range_[0]) if 1 in axes else tensor
