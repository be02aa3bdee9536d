"""FoldDraft: a fold under construction. Stages reduce values along the folded axes; a result has one value per row or per
element."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from opfacade.core.dtypes import DType
from opfacade.plans.reduction import FoldDescriptor, FoldOutput, Stage
from opfacade.programs import words as w
from opfacade.programs.expression import MAX_AXES, Node, apply, constant, extent, stage
from opfacade.programs.fields import Input, used_names
from opfacade.programs.stages import REDUCERS
from opfacade.programs.types import NARROW
from opfacade.recipes._draft import Draft, kept, named
from opfacade.recipes._tensors import Shape, Shaped, axes_of, dtype_of, refuse
from opfacade.recipes.elementwise.casts import converted


class FoldDraft(Draft):
    """shape: the shape of the elements. folded: the axes that are reduced; empty for a tensor of rank 0, which has one
    element."""

    def __init__(self, shape: Sequence[int], folded: Sequence[int]) -> None:
        super().__init__(shape)
        self.folded: Shape = tuple(sorted(folded))
        self.stages: list[Stage] = []

    def join(self, reducer: Any, value: Node, part: str = "value", axes: Sequence[int] | None = None) -> Node:
        """The result of a stage. Adds the stage unless an equal stage exists. axes: some of the folded axes; None: all."""
        over = self.folded if axes is None else tuple(axes)
        if not REDUCERS[reducer].of_empty:
            self.refuse_empty(reducer, over)
        made = Stage(reducer=reducer, value=value, axes=None if over == self.folded else over)
        if made not in self.stages:
            self.stages.append(made)
        return stage(self.stages.index(made), made.part(part), part)

    def refuse_empty(self, word: str, over: Shape) -> None:
        if 0 in [self.shape[axis] for axis in over]:
            expected = f"at least one element along the axes {over}, because {word} of zero elements is undefined"
            refuse("input", expected, self.shape)

    def count(self, axes: Sequence[int] | None = None) -> Node:
        """The number of reduced elements, as i64."""
        found = constant(1, "i64")
        for axis in self.folded if axes is None else axes:
            found = extent(axis) if found.kind == "constant" else found * extent(axis)
        return found

    def rows(self, *values: Node, dtype: DType | None = None, keepdim: Any = False) -> FoldDescriptor:
        """Results without the folded axes. keepdim: which folded axes stay with size 1: all, none, or some.

        dtype: as in `Draft.map`.
        """
        rank = len(self.shape)
        ones = self.folded if keepdim is True else tuple(keepdim or ())
        if rank + len(ones) > MAX_AXES:
            refuse(
                "keepdim", f"at most {MAX_AXES} axes, including an axis of size 1 for each folded axis", f"{rank} + {len(ones)}"
            )
        place = {axis: rank + i for i, axis in enumerate(ones)} | {axis: axis for axis in self._rest()}
        over = tuple(place[axis] for axis in range(rank) if axis in place)
        return self._made(list(values), [over] * len(values), dtype, len(ones))

    def elements(self, *values: Node, dtype: DType | None = None, rows: Sequence[Node] = ()) -> FoldDescriptor:
        """Results with the shape of the elements, followed by results with one value per row."""
        every = tuple(range(len(self.shape)))
        return self._made([*values, *rows], [every] * len(values) + [self._rest()] * len(rows), dtype)

    def _rest(self) -> Shape:
        return tuple(axis for axis in range(len(self.shape)) if axis not in self.folded)

    def _made(self, values: list[Node], overs: list[Shape], dtype: DType | None, ones: int = 0) -> FoldDescriptor:
        """ones: the number of axes of size 1 after all others. If no axis is folded, one more is added."""
        fold = self.folded or (len(self.shape) + ones,)
        shape = (*self.shape, *(1,) * (ones + (not self.folded)))
        every = tuple(range(len(self.shape)))
        pairs = zip(named(values), values, overs, strict=True)
        outputs = tuple(FoldOutput(name=n, dtype=kept(v, dtype), value=v, over=_over(over, shape)) for n, v, over in pairs)
        inputs = tuple(_over_own(one, every, shape) for one in self.inputs)
        used = used_names({str(i): node for i, node in enumerate([*values, *(one.value for one in self.stages)])})
        numbers = tuple(number for number in self.numbers if number.name in used)
        return FoldDescriptor(
            shape=shape, fold=fold, inputs=inputs, scalars=numbers, stages=tuple(self.stages), outputs=outputs
        )


def _over(axes: Shape, shape: Shape) -> Shape | None:
    return None if axes == tuple(range(len(shape))) else axes


def _over_own(given: Input, every: Shape, shape: Shape) -> Input:
    """An input over all axes of the elements, if the descriptor has additional axes."""
    if given.shape is not None or given.over is not None or len(every) == len(shape):
        return given
    return Input(name=given.name, dtype=given.dtype, over=every)


def begun(input: Shaped, dim: Any, argument: str = "dim") -> FoldDraft:
    """A fold along some axes of a tensor; without `dim`, along all axes."""
    none = dim is None or dim in ((), [])
    return FoldDraft(input.shape, range(input.rank) if none else axes_of(argument, dim, input.rank)[: input.rank])


def cast(node: Node, given: DType, dtype: Any) -> tuple[Node, DType]:
    """An element, converted to `dtype` if it is given, and the resulting dtype."""
    if dtype is None:
        return node, given
    wanted = dtype_of(dtype)
    made = converted(node, wanted)
    return (w.round_to(made, wanted) if wanted in NARROW and wanted != given else made), wanted


def as_float(count: Node, like: Node) -> Node:
    """A number of elements, converted to a float type."""
    return apply(like.type, count)
