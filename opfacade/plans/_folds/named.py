"""Base of named ops that are folds: `program()` derives the program from the fields; a dimension of a tensor may consist of
several axes. A program is created once for all sizes; `folded` and the operands add the sizes of a descriptor."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from pydantic import model_validator

from opfacade.core.answer_cache import AnswerCache
from opfacade.core.descriptor import ArgsT, Descriptor, memoize_last
from opfacade.core.dtypes import ITEMSIZE
from opfacade.core.in_place import in_place
from opfacade.core.operands import Dim, TensorSpec, counted_by, num_valid_spec
from opfacade.plans._folds.program import FoldArgs, FoldProgram
from opfacade.plans._programs.args import IN, OUT

if TYPE_CHECKING:
    from torch import Tensor

    from opfacade.core.descriptor import Args

Axes = tuple[int, ...]


class _Tensor(NamedTuple):
    """A tensor for any sizes. spec: its spec with sizes 0. dims: the axes of each dimension. names: the names of the
    dimensions."""

    spec: TensorSpec
    dims: tuple[Axes, ...]
    names: tuple[str | None, ...]

    def on(self, sizes: Sequence[int]) -> TensorSpec:
        dims = [Dim(name or str(size), size) for name, size in zip(self.names, sizes, strict=True)]
        return self.spec._replace(shape=tuple(dims))


class NamedFold(Descriptor[ArgsT]):
    """Operands have the names of the program's tensors: inputs in order, then outputs, then num_valid.

    num_valid is a field of every subclass. A program that also folds the rows does not have it: its reference and its harness
    fold the valid rows (`rows_of`).

    A subclass defines `program`, a function of its fields; `lengths`, the sizes of its axes; `dims` for tensors whose
    dimensions are not single axes; the names of dimensions; and `refuse`, which raises for contradictory fields before the
    program is created. `program` is called once per `form`, so a new size is cheap."""

    __slots__ = ("_form",)
    _form: ClassVar[Hashable]

    error_models: ClassVar[tuple[str, ...]] = ("exact", "fold-f64", "fold-f32")
    if TYPE_CHECKING:
        num_valid: bool

    def program(self) -> FoldProgram:
        """The op as stages and outputs, which depends only on the fields."""
        raise NotImplementedError

    def lengths(self) -> tuple[int, ...]:
        """The sizes of all axes of the program; by default the field `shape`."""
        shape: tuple[int, ...] = self.shape  # type: ignore[attr-defined]
        return shape

    @property
    def form(self) -> Hashable:
        """Identifies the problems whose programs differ only in sizes, by the fields that are not sizes."""
        try:
            found: Hashable = object.__getattribute__(self, "_form")
        except AttributeError:  # not computed yet: slots are not fields, and copies do not have them
            found = self._form_of() if "shape" in self.__dict__ else self.specialization
            object.__setattr__(self, "_form", found)
        return found

    def _form_of(self) -> Hashable:
        shape, others = self.lengths(), [value for name, value in self.__dict__.items() if name != "shape"]
        return (type(self), len(shape), *others)

    @property
    def refused_alike(self) -> Hashable:
        """A row that is too long is refused."""
        program = self.folded()
        shape = program.shape
        return self.form, *[shape[axis] for axis in program.fold]

    def dims(self) -> Mapping[str, tuple[Axes, ...]]:
        """The axes of each dimension of a tensor, by name; absent if each dimension is a single axis."""
        return {}

    def dim_names(self) -> Mapping[Axes, str]:
        """Names of dimensions for messages, by their axes."""
        return {(axis,): f"shape[{axis}]" for axis in range(len(self.folded().shape))}

    def extents(self) -> Mapping[tuple[str, int], int]:
        """Sizes of dimensions that differ from those of their axes, by tensor and dimension: truncated, or padded and not
        written."""
        return {}

    def counted(self) -> tuple[Axes, int]:
        """The axes of the dimension to which num_valid refers, and its size."""
        return (0,), self.folded().shape[0]

    def refuse(self) -> None:
        """Raises if the fields contradict each other."""

    def facts(self) -> dict[str, Any]:
        """Additional fields of the SKU."""
        return {}

    def folds_rows(self) -> bool:
        """Whether rows are folded, so that their number determines the kernel."""
        return False

    def folded(self) -> FoldProgram:
        return _folded(self)

    @model_validator(mode="after")
    def _addressable(self) -> Any:
        self.refuse()
        return super()._addressable()  # type: ignore[operator]

    def _dims_of(self, name: str, axes: Sequence[int]) -> tuple[Axes, ...]:
        return self.dims().get(name, tuple((axis,) for axis in axes))

    def _spec(self, name: str, dtype: str, axes: Sequence[int], role: Any) -> TensorSpec:
        """The spec of a tensor with sizes 0."""
        shape = tuple(Dim("", 0) for _ in self._dims_of(name, axes))
        spec = TensorSpec(shape, dtype, role, "strided", ITEMSIZE[dtype])
        return counted_by(spec, self._counted_dim(name, axes), "num_valid")

    def _counted_dim(self, name: str, axes: Sequence[int]) -> int | None:
        """The dimension of a tensor that num_valid counts; None if there is none."""
        dims, (rows, _) = self._dims_of(name, axes), self.counted()
        return dims.index(rows) if self.num_valid and rows in dims else None

    def wrong_values(self, name: str, args: Args) -> tuple[Tensor, str] | None:
        """Accepts any value in padding."""
        found = super().wrong_values(name, args)
        if found is not None:
            for dim, own in enumerate(self.dims().get(name, ())):
                size, real = found[0].shape[dim], math.prod(self.folded().shape[axis] for axis in own)
                found[0].narrow(dim, min(real, size), max(0, size - real)).fill_(False)
        return found

    def operands(self) -> dict[str, TensorSpec]:
        shape, cut = self.folded().shape, self.extents()
        found: dict[str, TensorSpec] = {}
        for name, tensor in _tensors.get(self.form, self._tensors).items():
            whole = [math.prod([shape[axis] for axis in own]) for own in tensor.dims]
            found[name] = tensor.on([cut.get((name, index), size) for index, size in enumerate(whole)] if cut else whole)
        if self.num_valid:
            found["num_valid"] = num_valid_spec(self.counted()[1])
        return found

    def _tensors(self) -> dict[str, _Tensor]:
        """The operands for any sizes, except num_valid."""
        program, names = self.folded(), self.dim_names()
        every = tuple(range(len(program.shape)))
        axes = {given.name: every if given.over is None else given.over for given in program.inputs}
        found = {given.name: self._spec(given.name, given.dtype, axes[given.name], "in") for given in program.inputs}
        for made in program.outputs:
            replaced = program.overwritten.get(made.name, "")
            like = replaced or made.name  # an output in place has the layout of its input
            axes.setdefault(made.name, program.axes_of(made))
            found[made.name] = self._spec(like, made.dtype, axes[made.name], "out")._replace(replaces=replaced)
        kept = in_place(found) if program.in_place else found
        dims = {name: self._dims_of(name, axes[name]) for name in kept}
        return {name: _Tensor(spec, dims[name], tuple(names.get(own) for own in dims[name])) for name, spec in kept.items()}

    def fold_args(self, args: Any) -> FoldArgs:
        """The call with views whose dimensions are the axes."""
        program = self.folded()
        every = tuple(range(len(program.shape)))
        found: dict[str, Any] = {}
        for operand, given in zip(IN, program.inputs, strict=False):
            tensor = getattr(args, given.name)
            found[operand] = self._viewed(tensor, given.name, every if given.over is None else given.over)
        for operand, made in zip(OUT, program.outputs, strict=False):
            if made.name not in program.overwritten:
                found[operand] = self._viewed(getattr(args, made.name), made.name, program.axes_of(made))
        return FoldArgs(**found, num_valid=args.num_valid)

    def _viewed(self, tensor: Tensor, name: str, axes: Sequence[int]) -> Tensor:
        return viewed(tensor, self._dims_of(name, axes), axes, self.folded().shape)


def viewed(tensor: Tensor, dims: Sequence[Axes], axes: Sequence[int], shape: Sequence[int]) -> Tensor:
    """A view whose dimensions are `axes`, of a tensor whose dimensions are `dims`, without padding. shape: the sizes of all
    axes."""
    at = 0
    for own in dims:
        sizes = [shape[axis] for axis in own]
        if len(own) == 1:
            tensor = tensor.narrow(at, 0, sizes[0])
        else:
            tensor = tensor.unflatten(at, sizes) if own else tensor.select(at, 0)  # type: ignore[no-untyped-call]
        at += len(own)
    order = [axis for own in dims for axis in own]
    return tensor if order == list(axes) else tensor.permute([order.index(axis) for axis in axes])


_programs: AnswerCache[FoldProgram] = AnswerCache()
_launched: AnswerCache[FoldProgram] = AnswerCache()
_tensors: AnswerCache[dict[str, _Tensor]] = AnswerCache()


@memoize_last
def _folded(descriptor: NamedFold[Any]) -> FoldProgram:
    return _programs.get(descriptor.form, descriptor.program).on(descriptor.lengths())


def launched_on(descriptor: NamedFold[Any], make: Callable[[], FoldProgram]) -> FoldProgram:
    """The program that a kernel runs, if it differs from the whole program; `make` is called once for all sizes."""
    return _launched.get(descriptor.form, make).on(descriptor.lengths())
