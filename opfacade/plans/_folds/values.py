"""The results of a fold and their error bounds, computed on tensors stage by stage."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from opfacade.core.descriptor import Args
from opfacade.plans._programs.values import values_of
from opfacade.programs.ball import Ball
from opfacade.programs.bound import Bounds, Machine
from opfacade.programs.evaluate import Evaluation, Values
from opfacade.programs.fields import FoldOutput
from opfacade.programs.program import Fold
from opfacade.programs.reduce import reduced
from opfacade.programs.reduce_bound import Joining, joined
from opfacade.programs.stages import Stage, is_exact

if TYPE_CHECKING:
    import torch
    from torch import Tensor


def evaluation(program: Fold, args: Args, real: torch.dtype | None) -> Evaluation:
    """An evaluation with the results of all stages. real: as in Evaluation."""
    leaves, device = _leaves(program, args)
    found = Evaluation(Values(leaves, device), real)
    for index, (stage, value) in enumerate(zip(program.stages, program.resolved[0], strict=True)):
        parts = reduced(stage.reducer, value.type, _rows(program, stage, found(value)))
        leaves |= {("stage", (index, part)): _kept(program, stage, result) for part, result in parts.items()}
    return found


def bounds(program: Fold, args: Args, machine: Machine, steps: Callable[[int], float]) -> Bounds:
    """Error bounds with the results of all stages. steps: the number of roundings of a term of a sum, as a function of the
    number of terms."""
    import torch

    leaves, device = _leaves(program, args)
    balls: dict[Any, Ball] = {}
    found = Bounds(Values(leaves, device), machine, balls)
    for index, (stage, value) in enumerate(zip(program.stages, program.resolved[0], strict=True)):
        ball, count = found(value), math.prod(program.shape[axis] for axis in program.joined(stage))
        rows = Ball(*(_rows(program, stage, one.double()) for one in torch.broadcast_tensors(*ball)))  # type: ignore[no-untyped-call]
        parts = joined(stage.reducer, rows, Joining(machine, value.type, steps(count)))
        balls |= {(index, part): Ball(*(_kept(program, stage, one) for one in ball)) for part, ball in parts.items()}
        exact = [part for part in parts if is_exact(stage.reducer, part, value)]
        if exact:
            own = reduced(stage.reducer, value.type, _rows(program, stage, found.exact.own(value)))
            leaves |= {("stage", (index, part)): _kept(program, stage, own[part]) for part in exact}
    return found


def _leaves(program: Fold, args: Args) -> tuple[dict[Any, Tensor], Any]:
    values = values_of(program, args)
    return dict(values.leaves), values.device


def _rows(program: Fold, stage: Stage, value: Tensor) -> Tensor:
    """A value with all axes; the axes that the stage reduces are flattened to the last axis. Other axes along which the value
    is constant have size 1."""
    axes, rank = program.joined(stage), len(program.shape)
    others = [axis for axis in range(rank) if axis not in axes]
    value = value.reshape((1,) * (rank - value.ndim) + tuple(value.shape))
    wide = value.expand([program.shape[axis] if axis in axes else value.shape[axis] for axis in range(rank)])
    return wide.permute(*others, *axes).reshape(
        *(value.shape[axis] for axis in others), math.prod(wide.shape[axis] for axis in axes)
    )


def _kept(program: Fold, stage: Stage, result: Tensor) -> Tensor:
    """A result of a stage with all axes; reduced axes have size 1."""
    sizes = iter(result.shape)
    return result.reshape([1 if axis in program.joined(stage) else next(sizes) for axis in range(len(program.shape))])


def over(program: Fold, output: FoldOutput, value: Tensor) -> Tensor:
    """A value over the axes of an output, in order."""
    axes = program.axes_of(output)
    missing = [axis for axis in range(len(program.shape)) if axis not in axes]
    wide = value.expand([1 if axis in missing else size for axis, size in enumerate(program.shape)])
    permuted = wide.permute(*axes, *missing)
    return permuted.reshape([program.shape[axis] for axis in axes])
