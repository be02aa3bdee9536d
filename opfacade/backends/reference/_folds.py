"""Folds in torch: exact parts to the bit, the rest in f64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from opfacade.backends.reference.declared import reference
from opfacade.core.answer_cache import cached_by
from opfacade.core.candidate import Candidate
from opfacade.core.descriptor import Args, Descriptor
from opfacade.core.guarantee import EXACT, ErrorModel, PrecisionGuarantee
from opfacade.core.operands import valid_count
from opfacade.plans._folds.op import FoldOp
from opfacade.plans._folds.program import FoldArgs
from opfacade.plans._folds.ragged import rows_of
from opfacade.plans._folds.values import evaluation, over
from opfacade.programs.evaluate import stored
from opfacade.programs.guarantees import in_f64
from opfacade.programs.program import Fold


def run(descriptor: FoldOp, args: Args) -> None:
    for program, call in rows_of(descriptor.folded(), descriptor.fold_args(args)):
        _run_rows(program, call)


def _run_rows(program: Fold, call: FoldArgs) -> None:
    found = evaluation(program, call, torch.float64)
    rows = None if call.num_valid is None else valid_count(call.num_valid, program.shape[0])
    made = [
        stored(over(program, out, found(node)), out.dtype)
        for out, node in zip(program.outputs, program.resolved[1], strict=True)
    ]
    for output, tensor, result in zip(program.outputs, program.written(call), made, strict=True):
        axis = program.axes_of(output).index(0) if rows is not None else 0
        (tensor if rows is None else tensor.narrow(axis, 0, rows)).copy_(
            result if rows is None else result.narrow(axis, 0, rows)
        )


def promise(descriptor: FoldOp) -> PrecisionGuarantee:
    inner, outer = descriptor.folded().resolved
    model = in_f64((*inner, *outer), "fold")
    if model.id == EXACT:
        return PrecisionGuarantee(math_precision="f64", accumulator="none", error_model=model)
    constants = dict(model.constants) | {"lanes": 1.0, "tree": 2.0}
    model = ErrorModel(id=model.id, constants=tuple(sorted(constants.items())))
    return PrecisionGuarantee(math_precision="f64", accumulator="f64", error_model=model)


def sku_dtypes(descriptor: FoldOp) -> tuple[tuple[str, str], ...]:
    """The tensors of the program by name."""
    program = descriptor.folded()
    pairs = [(f"in.{given.name}", given.dtype) for given in program.inputs]
    pairs += [("indptr", program.ragged)] if program.ragged else []
    return tuple(sorted(pairs + [(f"out.{made.name}", made.dtype) for made in program.outputs]))


def fold_reference(descriptor: type[Descriptor[Any]]) -> Candidate:
    """The reference of an op that is a fold."""
    plain = reference(descriptor, promise, sku_dtypes, run, lambda problem: (("expr", problem.folded().key),))
    return replace(plain, sku=cached_by(lambda problem, target: (problem.form, target), plain.sku))
