"""The CUDA engine of folds: constants of its templates, the SKU, the guarantee and refusals, for every op that is a fold."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from typing_extensions import TypeVar

from opfacade.backends.cuda import support
from opfacade.backends.cuda.declared import CudaKernel, plain
from opfacade.backends.cuda.folds import column_config
from opfacade.backends.cuda.folds import config as fold_config
from opfacade.backends.cuda.folds.kept import MAX_ROW, kept
from opfacade.backends.cuda.folds.layout import RowLayout
from opfacade.backends.cuda.folds.printer import Printer
from opfacade.backends.cuda.folds.strategies import spread
from opfacade.backends.cuda.programs import source
from opfacade.core.candidate import WORKSPACE_ALIGNMENT, Candidate, Launcher, Reason
from opfacade.core.descriptor import Descriptor
from opfacade.core.dtypes import ITEMSIZE
from opfacade.core.guarantee import EXACT, ErrorModel, PrecisionGuarantee
from opfacade.core.sku import KernelSku
from opfacade.core.target import Target
from opfacade.plans._folds.op import FoldOp
from opfacade.plans._folds.program import FoldProgram
from opfacade.programs.expression import Node, ordered
from opfacade.programs.guarantees import error_model
from opfacade.programs.stages import REDUCERS
from opfacade.programs.ulps import APPROXIMATE, documented

if TYPE_CHECKING:
    from opfacade.jit.spec import JitSpec

F = TypeVar("F", bound=FoldOp, default=FoldOp)
_HELD_WORDS = 32  # registers of a thread for elements that leave room for two CTAs of 512 threads


def values_of(program: FoldProgram) -> tuple[Node, ...]:
    """Every expression, those of stages first."""
    inner, outer = program.resolved
    return (*inner, *outer)


def is_placed(program: FoldProgram) -> bool:
    """Whether the program uses an element's coordinates."""
    return any(node.kind in ("coord", "read") for node in ordered(values_of(program)))


def constants(layout: RowLayout, program: FoldProgram, dims: Mapping[str, Any], target: Target) -> dict[str, Any]:
    """Constants that the templates print; the SKU has the program by its digest instead."""
    found = _tensors(layout, program, dims) | _axes(program) | _printed(layout, program)
    found |= layout.constants(program, target) | {"late": _late(layout, program, target), "dependent": target.sm_version >= 90}
    return found | ({"num_valid": True} if program.num_valid else {})


def _given(program: FoldProgram) -> list[Sequence[int]]:
    """The axes of each input."""
    return [range(len(program.shape)) if one.over is None else one.over for one in program.inputs]


def _levels(layout: RowLayout, program: FoldProgram) -> tuple[str, ...]:
    """For each output: whether it has a value per element, per group or per row."""
    return tuple(layout.level(program, program.axes_of(one)) for one in program.outputs)


def _tensors(layout: RowLayout, program: FoldProgram, dims: Mapping[str, Any]) -> dict[str, Any]:
    """Tensors in memory: the dtype, level and axes of each."""
    names = [given.name for given in program.inputs]
    given = list(zip(program.inputs, _given(program), strict=True))
    reads = tuple(_dims(dims, one.name, axes) for one, axes in given)
    writes = tuple(_dims(dims, program.overwritten.get(one.name, one.name), program.axes_of(one)) for one in program.outputs)
    return {
        "inputs": tuple(one.dtype for one in program.inputs),
        "outputs": tuple(one.dtype for one in program.outputs),
        "scalars": tuple(number.type for number in program.scalars),
        "kinds": tuple("own" if one.shape else layout.level(program, axes) for one, axes in given),
        "levels": _levels(layout, program),
        "dims": reads + writes,
        "own": tuple(one.shape is not None for one in program.inputs),
        "replaced": tuple(_index(names, program.overwritten.get(one.name)) for one in program.outputs),
        "sizes": tuple(ITEMSIZE[one.dtype] for one in program.tensors),
    }


def _late(layout: RowLayout, program: FoldProgram, target: Target) -> tuple[bool, ...]:
    """For each input, whether it is read only for the outputs instead of held: if all inputs would take too many registers,
    those that neither stages nor groups use and that all rows share."""
    given = list(zip(program.inputs, _given(program), strict=True))
    varying = [one.shape is None and bool(set(axes) & set(program.fold)) for one, axes in given]
    size = sum(ITEMSIZE[one.dtype] for (one, _), varies in zip(given, varying, strict=True) if varies)
    many = layout.held_elements(program, target) * size > 4 * _HELD_WORDS
    early = _used_early(layout, program)
    same = [not set(axes) & set(program.kept) and one.name not in early for one, axes in given]
    return tuple(many and varies and alike for varies, alike in zip(varying, same, strict=True))


def _used_early(layout: RowLayout, program: FoldProgram) -> set[Any]:
    """Names of the inputs that stages and outputs of groups use."""
    groups = [value for value, level in zip(program.resolved[1], _levels(layout, program), strict=True) if level == "group"]
    return {node.data for node in ordered((*program.resolved[0], *groups)) if node.kind == "input"}


def _axes(program: FoldProgram) -> dict[str, Any]:
    return {
        "order": (*program.kept, *program.fold),
        "rank": len(program.shape),
        "kept": len(program.kept),
        "placed": is_placed(program),
    }


def _printed(layout: RowLayout, program: FoldProgram) -> dict[str, Any]:
    """Statements of the stages and of the outputs."""
    precision = layout.math(program)
    printer = Printer.of(program, precision)
    values, outputs = program.resolved
    pairs = list(zip(outputs, _levels(layout, program), strict=True))
    made = {level: [node for node, own in pairs if own == level] for level in ("element", "group", "row")}
    folded = list(zip(program.stages, values, strict=True))
    return {
        "stages": tuple((one.reducer, node.type, *printer.told([node], printer.uniform([node]))) for one, node in folded),
        "parts": tuple(tuple((part, stage.part(part)) for part in REDUCERS[stage.reducer].parts) for stage in program.stages),
        "element_values": printer.told(made["element"], printer.uniform(made["element"])),
        "group_values": printer.told(made["group"]),
        "row_values": printer.told(made["row"]),
        "uniform": tuple(printer.hoisted(nodes) for nodes in (*([node] for node in values), made["element"])),
        "approx": precision == "approx",
    }


def _dims(known: Mapping[str, Any], name: str, axes: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """The axes of each dimension of a tensor."""
    return tuple(known.get(name, tuple((axis,) for axis in axes)))


def _index(names: list[str], name: str | None) -> int:
    return -1 if name is None else names.index(name)


def refusals(layout: RowLayout, program: FoldProgram, target: Target) -> Iterator[Reason]:
    yield from source.fp8_reasons(target, [one.dtype for one in program.tensors], values_of(program))
    row = 1
    for axis in program.fold:
        row *= program.shape[axis]
    yield from support.limit_reason("OPF-S004", "fold (elements of a row)", row, MAX_ROW)
    if bool(program.ragged) != layout.ragged:
        yield Reason("OPF-S003", "ragged", str(program.ragged), "i32, i64" if layout.ragged else "None")
        return
    yield from layout.declines(program, target)


def guarantee(layout: RowLayout, program: FoldProgram, target: Target) -> PrecisionGuarantee:
    """The bits of a row depend on its elements alone, unless the program uses coordinates."""
    values = values_of(program)
    placed = any(node.kind in ("coord", "read") for node in ordered(values))
    return PrecisionGuarantee(
        math_precision="f64" if any(node.type == "f64" for node in values) else "f32",
        accumulator="f64" if any(stage.value.type == "f64" for stage in program.stages) else "f32",
        deterministic=True,
        bit_stable_on_same_hardware=True,
        batch_invariant="none" if placed or 0 in program.fold or layout.cuts or layout.one_scale else "composition",
        error_model=_error_model(layout, program, target),
        evidence=layout.evidence,
    )


def _error_model(layout: RowLayout, program: FoldProgram, target: Target) -> ErrorModel:
    """The number of lanes that share the terms of a sum (or of a chunk of it), and of roundings when the lanes are joined."""
    precision = layout.math(program)
    model = error_model(values_of(program), precision, "fold", target.sm_version)
    if model.id == EXACT:
        return model
    found = dict(model.constants)
    summed = any(stage.reducer == "expsum" for stage in program.stages)
    shape = layout.config(program, target)
    found |= {"chunk": float(shape.chunk)} if "chunk" in shape.facts else {}
    lanes, tree = layout.steps(shape, summed)
    found |= {"lanes": float(lanes), "tree": float(tree)}
    if precision == "approx" and (summed or "ulp.exp" in found):
        found["ulp.exp"] = float(APPROXIMATE["exp"])
    elif summed:
        found.setdefault("ulp.exp", documented("exp", "f32"))
    return ErrorModel(id=model.id, constants=tuple(sorted(found.items())))


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldKernel(CudaKernel[F]):
    """A kernel of one op that is a fold. The whole program is printed; the SKU contains its digest."""

    layout: RowLayout

    def launched(self, descriptor: F) -> FoldProgram:
        """The program that is printed."""
        return descriptor.folded()

    def workspace(self, descriptor: F, target: Target) -> int:
        """Bytes for the states of warps, if all CTAs share each row."""
        program = self.launched(descriptor)
        shape = self.layout.spread(program, target)
        return 0 if shape is None else self.shared_bytes(program, shape)

    def shared_bytes(self, program: FoldProgram, shape: fold_config.Config) -> int:
        rows: int = math.prod(program.shape[axis] for axis in program.kept)
        warps = fold_config.parts_of(program, shape) * shape.threads // 32
        needed: int = 4 * column_config.state_words(program) * rows * warps
        return -(-needed // WORKSPACE_ALIGNMENT) * WORKSPACE_ALIGNMENT

    def declines(self, descriptor: F, target: Target) -> list[Reason]:
        return [*support.arch_reasons(target), *refusals(self.layout, self.launched(descriptor), target)]

    def row(self, descriptor: F) -> tuple[int, ...]:
        """The extents of a row: refusals and SKUs depend on no other extents."""
        program = self.launched(descriptor)
        shape = program.shape
        return tuple([shape[axis] for axis in program.fold])

    @property
    def candidate(self) -> Candidate:
        plain = super(FoldKernel, self).candidate  # a class with slots is made twice
        whole = type(self).launched is FoldKernel.launched
        return kept(replace(plain, workspace=self.workspace), self, whole)

    def jit_spec(self, descriptor: F, target: Target) -> JitSpec:
        program = self.launched(descriptor)
        found = constants(self.layout, program, descriptor.dims(), target) | self.layout.flat(program, target)
        if self.layout.spread(program, target) is None:
            return support.spec_of(self.layout.template, support.pairs(**found), target)
        return support.spec_of("reduction/fold_spread", support.pairs(**found, **spread.constants()), target)

    def launcher(self, descriptor: F, target: Target, sku: KernelSku, allow_build: bool) -> Launcher:
        if self.is_empty(descriptor) or self.layout.spread(self.launched(descriptor), target) is None:
            return super(FoldKernel, self).launcher(descriptor, target, sku, allow_build)
        scalars = source.arguments(self.launched(descriptor))
        return support.launcher(self.jit_spec(descriptor, target), plain(descriptor), sku, allow_build, True, scalars)

    def sku(self, descriptor: F, target: Target) -> KernelSku:
        program, launched = descriptor.folded(), self.launched(descriptor)
        told: dict[str, Any] = descriptor.facts() | {
            "expr": program.key,
            "math": self.layout.math(launched),
            **self.layout.config(launched, target).facts,
        }
        told |= {"in_place": True} if launched.in_place else {}
        told |= {"num_valid": True} if launched.num_valid else {}
        pairs = [(f"in.{given.name}", given.dtype) for given in program.inputs]
        pairs += [(f"out.{made.name}", made.dtype) for made in program.outputs]
        pairs += [("indptr", program.ragged)] if program.ragged else []
        return KernelSku(
            category=descriptor.category,
            op=descriptor.op,
            backend="cuda",
            arch=target.arch,
            impl=self.layout.impl,
            revision=self.layout.revision(launched),
            dtypes=tuple(sorted(pairs)),
            layout="strided",
            spec=support.pairs(**told),
            precision_guarantee=guarantee(self.layout, launched, target),
        )


def fold_kernel(
    descriptor: type[Descriptor[Any]], layout: RowLayout | None = None, kind: type[FoldKernel[Any]] = FoldKernel
) -> Candidate:
    """A kernel of an op that is a fold: its descriptor has `folded`, `dims` and `fold_args`."""
    layout = layout or RowLayout()
    kernel = kind(
        descriptor=descriptor,
        template=layout.template,
        impl=layout.impl,
        constants=(),
        dtypes={},
        guarantee=lambda problem, target: guarantee(layout, problem.folded(), target),
        scalars=lambda problem: source.arguments(problem.folded()),
        layout=layout,
    )
    return kernel.candidate
