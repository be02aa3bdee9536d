"""Derives shapes and dtypes of outputs from the inputs alone: a traced graph serves any plan, so it cannot read a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from opfacade.core.dtypes import torch_dtype
from opfacade.errors import Issue
from opfacade.torch_ops.forms import Form, Problem

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Place = tuple[str, int]  # the name of an input, and the index of one of its axes


class Unmade(Exception):
    """The shape or dtype of an output cannot be derived, because an input is missing or has too few dimensions."""

    def __init__(self, issue: Issue) -> None:
        super().__init__(str(issue))
        self.issue = issue


@dataclass(frozen=True)
class Output:
    """One output. axes: for each dimension, the input axes that have the same size; the first one whose input is present is
    used. If empty, the caller must pass the shape. dtype: the dtype in all problems; None if it varies: then the output gets
    the dtype of the first present input in `like`, which begins with the inputs that most often have the output's dtype. For an
    output in a list, the caller passes shape and dtype. optional: some problems do not have this output. says_dtype: false if
    the caller must pass the dtype, because no input has it in all problems."""

    name: str
    axes: tuple[tuple[Place, ...], ...]
    dtype: str | None
    like: tuple[str, ...]
    optional: bool = False
    says_dtype: bool = True

    @property
    def says_shape(self) -> bool:
        return all(self.axes)

    def make(
        self, given: Mapping[str, Any], shape: Any, dtype: torch.dtype | None, device: torch.device | None = None
    ) -> Tensor:
        """Creates the output on `device`, or by default on the device of the first input."""
        import torch

        if self.says_shape:
            shape = [self._size(given, places) for places in self.axes]
        dtype = dtype or self._dtype(given)
        first: Tensor | None = next((t for t in given.values() if t is not None), None)
        if first is not None:  # in a trace, new_empty also works on subclasses and symbolic sizes
            return first.new_empty(shape, dtype=dtype, device=device)
        if device is None:
            raise Unmade(
                Issue("OPF-A002", "device", "a torch.device, because there is no input", "None", kind="ArgumentTypeError")
            )
        return torch.empty(shape, dtype=dtype, device=device)

    def _size(self, given: Mapping[str, Any], places: Sequence[Place]) -> Any:
        name, axis = next((place for place in places if given.get(place[0]) is not None), places[0])
        tensor = _tensor(given, name)
        if axis >= tensor.dim():
            shape = str(list(tensor.shape))
            raise Unmade(Issue("OPF-A011", name, f"at least {axis + 1} dimensions", shape, kind="ShapeError"))
        return tensor.shape[axis]

    def _dtype(self, given: Mapping[str, Any]) -> torch.dtype:
        if self.dtype is not None:
            return torch_dtype(self.dtype)
        name = next((n for n in self.like if given.get(n) is not None), self.like[0])
        if not self.says_dtype and given.get(name) is None:
            raise Unmade(Issue("OPF-A002", f"{self.name}_dtype", "a torch.dtype", "None", kind="ArgumentTypeError"))
        found: torch.dtype = _tensor(given, name).dtype
        return found


def _tensor(given: Mapping[str, Any], name: str) -> Tensor:
    found: Tensor | None = given.get(name)
    if found is None:
        raise Unmade(Issue("OPF-A002", name, "a torch.Tensor", "None", kind="ArgumentTypeError"))
    return found


def output_of(form: Form, name: str) -> Output:
    problems = [p for p in form.problems if name in p]
    if name in form.listed:
        return Output(name, ((),), None, form.inputs, optional=len(problems) < len(form.problems), says_dtype=False)
    sources = [n for n in form.inputs if any(n in p and p[n].role != "index" for p in problems)]
    ranks = {len(p[name].shape) for p in problems}
    axes = (
        tuple(
            tuple(place for source in sources for place in _places(problems, name, axis, source)) for axis in range(max(ranks))
        )
        if len(ranks) == 1
        else ((),)
    )
    dtypes = {p[name].dtype for p in problems}
    unlike = {n: sum(p[n].dtype != p[name].dtype for p in problems if n in p) for n in sources}
    like = tuple(sorted(sources, key=lambda n: (n not in form.required, unlike[n])))
    without = [p for p in form.problems if name not in p]
    absent = name not in form.flags and any(all(_is_in_every([p], places) for places in axes if places) for p in without)
    known = not absent and all(_is_in_every(problems, places) for places in axes)
    same = [n for n, count in unlike.items() if count == 0]
    alike = len(dtypes) == 1 or all(any(n in p for n in same) for p in problems)
    dtype = dtypes.pop() if len(dtypes) == 1 else None
    return Output(name, axes if known else ((),), dtype, like, optional=absent, says_dtype=alike)


def _places(problems: Sequence[Problem], name: str, axis: int, source: str) -> list[Place]:
    """The axes of an input that equal the output's axis in every problem that has both: equal name and size, otherwise equal
    size."""
    pairs = [(p[source].shape, p[name].shape[axis]) for p in problems if source in p]
    if len({len(shape) for shape, _ in pairs}) != 1:
        return []
    axes = range(len(pairs[0][0]))
    same = [i for i in axes if all(shape[i] == wanted for shape, wanted in pairs)]
    sized = [i for i in axes if all(wanted.size is not None and shape[i].size == wanted.size for shape, wanted in pairs)]
    return [(source, i) for i in same or sized]


def _is_in_every(problems: Sequence[Problem], places: Sequence[Place]) -> bool:
    """Whether every problem has at least one of the inputs."""
    return all(any(source in p for source, _ in places) for p in problems)
