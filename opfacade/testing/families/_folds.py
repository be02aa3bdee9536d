"""The harness of ops that are folds: the value of each output in fp64 with the bound of the program."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from opfacade.core.descriptor import operands_of
from opfacade.core.operands import valid_count
from opfacade.plans._folds import values as _fold_values
from opfacade.plans._folds.ragged import ranges_of, rows_of
from opfacade.programs import bound
from opfacade.programs.evaluate import stored
from opfacade.testing.bits import same_bits
from opfacade.testing.bounds import Bounded, Report, compare, constants, join
from opfacade.testing.families.elementwise import differs
from opfacade.testing.harness import Harness, Ran, Sample
from opfacade.testing.inputs import Draw

if TYPE_CHECKING:
    from torch import Tensor

    from opfacade.plans._folds.program import FoldArgs, FoldOutput, FoldProgram
    from opfacade.plans._quantize.quant import Quant
    from opfacade.programs.expression import Node


class FoldHarness(Harness):
    """Uses the program descriptor.folded() and its call descriptor.fold_args(args)."""

    def judge(self, ran: Ran, sample: Sample) -> Report:
        """Exact outputs must have equal bits, an infinite bound accepts any value, and invalid rows must be unchanged."""
        problem, counts = ran.descriptor, constants(ran.sku)
        program, before = problem.folded(), problem.fold_args(replace(ran.args, **ran.before))
        after = problem.fold_args(ran.args)
        report = _kept(ran, program, _valid(program, after))
        chosen = _chosen(program, sample)
        for (row, given), (_, made) in zip(rows_of(program, before, chosen), rows_of(program, after, chosen), strict=True):
            report = join(report, self._judged(row, (given, made), counts))
        return report

    def inputs(self, draw: Draw) -> None:
        if draw.descriptor.folded().ragged:
            draw.values["indptr"] = draw.values["indptr"].sort().values

    def unowned(self, descriptor: Any, args: Any, name: str) -> Tensor | None:
        """The elements between ragged rows, and the padding of columns of scales."""
        program, got = descriptor.folded(), getattr(args, name)
        if getattr(descriptor, "quant", None) is not None and name == "scale":
            return padding_of(got, descriptor.quant, descriptor.total_num_rows)
        return gaps_of(program, got, name, args.indptr) if program.ragged else None

    def _judged(self, program: Any, calls: tuple[Any, Any], counts: dict[str, float]) -> Report:
        """Judges a fold whose rows have equal lengths. `calls` contains the arguments before and after the run."""
        before, after = calls
        machine, valid, report = bound.machine_of(counts), _valid(program, after), Report(0.0, 0.0, "", 0)
        bounds = _fold_values.bounds(program, before, machine, _steps(counts))
        for output, node, got in zip(program.outputs, program.resolved[1], program.written(after), strict=True):
            axis = program.axes_of(output).index(0) if valid is not None else 0
            report = join(report, _compared(program, output, node, got, bounds, (axis, valid)))
        return report

    def label(self, descriptor: Any, lengths: Any) -> str:
        program = descriptor.folded()
        dtypes = [one.dtype for one in (*program.inputs, *program.outputs)]
        return " ".join([descriptor.op, "x".join(map(str, program.shape)), *dtypes])


def _chosen(program: FoldProgram, sample: Sample) -> list[int] | None:
    """The ragged rows of a sample, or None for all rows. Rows of equal length are judged together."""
    if not program.ragged or sample.rows is None or sample.rows >= program.shape[0]:
        return None
    return sorted(random.Random(sample.seed).sample(range(program.shape[0]), sample.rows))


def _steps(counts: dict[str, float]) -> Any:
    """The number of roundings of a term: those in its lane (within its chunk, if any), and those of the combination
    of lanes."""
    lanes, tree, chunk = counts.get("lanes", 1.0), counts.get("tree", 0.0), counts.get("chunk", math.inf)
    return lambda n: math.ceil(min(n, chunk) / lanes) + tree


def _valid(program: FoldProgram, call: FoldArgs) -> int | None:
    return None if call.num_valid is None else valid_count(call.num_valid, program.shape[0])


def _kept(ran: Ran, program: object, valid: int | None) -> Report:
    for name, was in ran.before.items():
        if (
            valid is not None
            and operands_of(ran.descriptor)[name].valid_rows
            and not same_bits(getattr(ran.args, name)[valid:], was[valid:])
        ):
            return Report(math.inf, math.inf, f"{name} past its {valid} valid rows was written", was[valid:].numel())
    return Report(0.0, 0.0, "", 0)


def _compared(
    program: FoldProgram, output: FoldOutput, node: Node, got: Tensor, bounds: bound.Bounds, rows: tuple[int, int | None]
) -> Report:
    import torch

    def cut(x: Tensor) -> Tensor:
        axis, valid = rows
        return x if valid is None else x.narrow(axis, 0, valid)

    got = cut(got)
    if got.numel() == 0:
        return Report(0.0, 0.0, "", 0)
    if node.exact:
        want = cut(stored(_fold_values.over(program, output, bounds.exact.own(node)), output.dtype))
        wrong, none = differs(got, want).double(), torch.zeros(got.shape, dtype=torch.float64, device=got.device)
        return compare([Bounded(output.name, none, none, none)], {output.name: wrong}, "1 is a wrong bit pattern:")
    ball = bounds(node)
    ball = bound.stored(ball, output.dtype) if got.is_floating_point() else ball
    v, r = (cut(_fold_values.over(program, output, one)) for one in ball)
    r, value = 1.02 * r, got.double()
    return compare([Bounded(output.name, torch.where(r.isinf(), value, v), r, r)], {output.name: value})


class WithQuant(Protocol):
    @property
    def quant(self) -> Quant | None: ...


def least_rows(problem: WithQuant) -> int:
    """The minimum number of rows of a problem: 1 with one scale for all rows."""
    return int(problem.quant is not None and problem.quant.scale == "tensor")


def padding_of(scale: Tensor, quant: Quant | None, rows: int) -> Tensor | None:
    """A mask of the padding at the end of columns of scales."""
    import torch

    if quant is None or quant.scale_layout != "column_padded4":
        return None
    free = torch.zeros(scale.shape, dtype=torch.bool, device=scale.device)
    free[:, rows:] = True
    return free


def gaps_of(program: FoldProgram, got: Tensor, name: str, indptr: Tensor) -> Tensor | None:
    """A mask of an output's elements that belong to no ragged row."""
    import torch

    axes = program.axes_of(program.outputs[int(name.removeprefix("out_"))])
    if 1 not in axes:
        return None
    free = torch.ones(program.shape[1], dtype=torch.bool, device=got.device)
    for first, stop in ranges_of(indptr, program.shape[1]):
        free[first:stop] = False
    at = axes.index(1)
    return free.view(-1, *[1] * (got.ndim - at - 1)).expand(got.shape)
