"""FoldProgram: the program of a fold as fields. `plans.reduction` accepts a user's program; named row ops generate theirs."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from opfacade.core.descriptor import Args
from opfacade.core.dtypes import ITEMSIZE
from opfacade.core.forms import Parts
from opfacade.core.in_place import in_place
from opfacade.core.model import Count, FromList
from opfacade.core.operands import Dim, TensorSpec, counted_by, index_spec, num_valid_spec
from opfacade.plans._folds.checks import check
from opfacade.plans._folds.form import Form, cached_by_form, form_of
from opfacade.plans._programs.args import IN, LISTS, MAX_INPUTS, MAX_OUTPUTS, MAX_SCALARS, OUT, by_operand, program_docs
from opfacade.programs import text
from opfacade.programs.expression import MAX_AXES, Node
from opfacade.programs.fault import Fault
from opfacade.programs.fields import Axis, FoldOutput, Input, Name, Number, ProgramDescriptor, nodes_in, refused
from opfacade.programs.stages import Stage, resolved

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["FoldArgs", "FoldOutput", "FoldProgram"]

MAX_STAGES = 8
Extents = Annotated[tuple[Count, ...], FromList, Field(min_length=1, max_length=MAX_AXES)]


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldArgs(Args):
    """The tensors of one fold, in the order of the descriptor: `descriptor.args(x=..., y=...)` creates them from names. inputs,
    outputs: lists or tuples, which become the operands in_0, out_0 and so on; errors and dumps use these names. An output that
    is in place is not an operand. num_valid: i32 [1] on the device, with `num_valid`. indptr: [shape[0] + 1] in the dtype of
    `ragged`, on the device: row i is indptr[i] .. indptr[i + 1] - 1 of axis 1."""

    parts: ClassVar[Mapping[str, Parts]] = LISTS
    docs: ClassVar[Mapping[str, str]] = program_docs("its axes")

    inputs: Sequence[Tensor] | None = None
    outputs: Sequence[Tensor] | None = None
    num_valid: Tensor | None = None
    indptr: Tensor | None = None


class FoldProgram(ProgramDescriptor[FoldArgs]):
    """Stages fold axes; an output has the kept axes, or all axes."""

    __slots__ = ("_form",)
    _form: ClassVar[Form]
    op: Literal["fold"] = Field(default="fold", description="The operator.")
    category: ClassVar[str] = "reduction"
    error_models: ClassVar[tuple[str, ...]] = ("exact", "fold-f64", "fold-f32")
    sizes: ClassVar[frozenset[str]] = frozenset()  # a kernel is compiled for a class of row lengths
    tuning_ignores: ClassVar[frozenset[str]] = frozenset({"scalars"})
    later: ClassVar[frozenset[str]] = frozenset({"split", "ragged"})
    workspace_hint: ClassVar[str] = 'split="off" needs no workspace.'
    invariance_hint: ClassVar[str] = 'split="off" keeps the bits of a row independent of other rows.'
    shape: Extents = Field(description="Sizes of all axes, at most 8 axes.")
    fold: Annotated[tuple[Axis, ...], Field(min_length=1, max_length=MAX_AXES)] = Field(
        description="Folded axes, in increasing order."
    )
    inputs: Annotated[tuple[Input, ...], Field(max_length=MAX_INPUTS)] = Field(
        default=(), description="Input tensors, at most 8."
    )
    scalars: Annotated[tuple[Number, ...], Field(max_length=MAX_SCALARS)] = Field(
        default=(), description="Numbers that the plan stores, at most 16; other values use the same kernel."
    )
    stages: Annotated[tuple[Stage, ...], Field(max_length=MAX_STAGES)] = Field(
        default=(), description="Reductions, at most 8, in order; each may use the results of earlier ones."
    )
    outputs: Annotated[tuple[FoldOutput, ...], Field(min_length=1, max_length=MAX_OUTPUTS)] = Field(
        description="Output tensors, 1 to 4, each with the program of its elements."
    )
    in_place: tuple[tuple[Name, Name], ...] = Field(
        default=(), description="Pairs of an output and the input that it overwrites."
    )
    num_valid: bool = Field(default=False, description="Whether the operand num_valid limits the rows of axis 0.")
    split: Literal["off", "auto"] = Field(
        default="off",
        description='"auto": if there are few long rows, many CTAs share a row; its bits then depend on the number of CTAs.',
    )
    ragged: Literal["i32", "i64"] | None = Field(
        default=None,
        description="Type of the operand indptr, the ranges of axis 1 for rows of axis 0; null: rows have the whole axis.",
    )

    def values(self) -> dict[str, Node]:
        found = {f"stages.{i}.value": stage.value for i, stage in enumerate(self.stages)}
        return found | {f"outputs.{i}.value": output.value for i, output in enumerate(self.outputs)}

    @classmethod
    def _nodes_in(cls, given: dict[str, Any], lets: Sequence[Node]) -> dict[str, Any]:
        return given | {name: nodes_in(given[name], lets, f".{name}") for name in ("stages", "outputs") if name in given}

    @property
    def key(self) -> str:
        """The name of the program in a SKU: values, reducers, and the axes of each."""
        return _key(self)

    @property
    def resolved(self) -> tuple[tuple[Node, ...], tuple[Node, ...]]:
        """The values of stages and outputs; the result of a stage is exact if the stage is exact."""
        return _resolved(self)

    @property
    def form(self) -> Form:
        """The program without its sizes, which kernels for all sizes share."""
        try:
            found: Form = object.__getattribute__(self, "_form")
        except AttributeError:  # not computed yet: slots are not fields, and copies do not have them
            found = form_of(self)
            object.__setattr__(self, "_form", found)
        return found

    @property
    def refused_alike(self) -> Hashable:
        """A row that is too long is refused."""
        shape = self.shape
        return self.form, *[shape[axis] for axis in self.fold]

    def on(self, shape: tuple[int, ...]) -> FoldProgram:
        """The same program with other sizes. Only empty axes are checked again; everything else is valid as before."""
        if any(shape[axis] == 0 for axis in self.fold):
            return type(self)(**(dict(self) | {"shape": shape}))
        found = self.model_copy(update={"shape": shape})
        object.__setattr__(found, "_form", self.form)
        return found

    @property
    def kept(self) -> tuple[int, ...]:
        return tuple(axis for axis in range(len(self.shape)) if axis not in self.fold)

    def joined(self, stage: Stage) -> tuple[int, ...]:
        """The axes that a stage folds."""
        return self.fold if stage.axes is None else stage.axes

    def axes_of(self, output: FoldOutput) -> tuple[int, ...]:
        return tuple(range(len(self.shape))) if output.over is None else output.over

    @property
    def tensors(self) -> tuple[Input | FoldOutput, ...]:
        return (*self.inputs, *self.outputs)

    @property
    def overwritten(self) -> dict[str, str]:
        """Outputs that are in place, with the inputs that they overwrite."""
        return dict(self.in_place)

    # How the tensors of a call map to axes: in a named op, a dimension may consist of several axes.
    def folded(self) -> FoldProgram:
        return self

    def facts(self) -> dict[str, Any]:
        return {}

    def dims(self) -> Mapping[str, tuple[tuple[int, ...], ...]]:
        """The axes of each dimension of each tensor, by name; tensors whose dimensions are single axes are omitted."""
        return {}

    def fold_args(self, args: Args) -> Any:
        """The call with tensors whose dimensions are the axes."""
        return args

    def args(self, num_valid: Tensor | None = None, **tensors: Tensor) -> FoldArgs:
        """The args of a call, by the names of inputs and outputs, and indptr for ragged rows. Raises ArgumentTypeError for an
        unknown name; a missing tensor is refused by the call."""
        indptr = tensors.pop("indptr", None) if self.ragged else None
        others = [*("num_valid",) * self.num_valid, *("indptr",) * bool(self.ragged)]
        return FoldArgs(**by_operand(self, tensors, others), num_valid=num_valid, indptr=indptr)

    @model_validator(mode="before")
    @classmethod
    def _pairs(cls, raw: object) -> Any:
        if isinstance(raw, dict) and isinstance(raw.get("in_place"), dict):
            return raw | {"in_place": tuple(sorted(raw["in_place"].items()))}
        return raw

    @model_validator(mode="after")
    def _meaningful(self) -> FoldProgram:
        try:
            text.check_limits(self.values())
            check(self)
            _ = self.resolved
        except Fault as fault:
            raise refused(fault) from None
        return self

    def operands(self) -> dict[str, TensorSpec]:
        dims = [Dim(f"shape[{axis}]", size) for axis, size in enumerate(self.shape)]
        found: dict[str, TensorSpec] = {}
        place = {given.name: operand for operand, given in zip(IN, self.inputs, strict=False)}
        for operand, given in zip(IN, self.inputs, strict=False):
            over = range(len(dims)) if given.over is None else given.over
            own = None if given.shape is None else [Dim(f"{given.name}[{axis}]", size) for axis, size in enumerate(given.shape)]
            shape = tuple(dims[axis] for axis in over if axis < len(dims)) if own is None else tuple(own)
            spec = TensorSpec(shape, given.dtype, "in", "strided", ITEMSIZE[given.dtype])
            counted = self.num_valid and own is None and 0 in over
            found[operand] = counted_by(spec, over.index(0) if counted else None, "num_valid")
        for operand, made in zip(OUT, self.outputs, strict=False):
            replaced, axes = place.get(self.overwritten.get(made.name, ""), ""), self.axes_of(made)
            shape, size = tuple(dims[axis] for axis in axes if axis < len(dims)), ITEMSIZE[made.dtype]
            spec = TensorSpec(shape, made.dtype, "out", "strided", size, replaces=replaced)
            found[operand] = counted_by(spec, axes.index(0) if self.num_valid and 0 in axes else None, "num_valid")
        if self.num_valid:
            found["num_valid"] = num_valid_spec(self.shape[0])
        if self.ragged:
            rows, total = self.shape[:2]
            found["indptr"] = index_spec(Dim("shape[0]+1", rows + 1), values=(0, total + 1), dtype=self.ragged)
        return in_place(found) if any(spec.replaces for spec in found.values()) else found

    def written(self, args: Args) -> list[Tensor]:
        """The tensors of the outputs, in order; with in_place, the overwritten input."""
        place = {given.name: operand for operand, given in zip(IN, self.inputs, strict=False)}
        names = (place.get(self.overwritten.get(made.name, ""), OUT[i]) for i, made in enumerate(self.outputs))
        return [getattr(args, name) for name in names]


@cached_by_form
def _resolved(program: FoldProgram) -> tuple[tuple[Node, ...], tuple[Node, ...]]:
    return resolved(program.stages, [output.value for output in program.outputs])


@cached_by_form
def _key(program: FoldProgram) -> str:
    named = {f"{i}.{stage.reducer}.{program.joined(stage)}": stage.value for i, stage in enumerate(program.stages)}
    named |= {f"{made.name}.{program.axes_of(made)}": made.value for made in program.outputs}
    return f"v{text.digest(named)[:24]}"
