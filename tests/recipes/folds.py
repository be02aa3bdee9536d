"""Bounds of folds in which exact operations have radii too: for results of another order of operations."""

import math

import torch

from opfacade.plans._folds.values import over as plain_over
from opfacade.plans._programs.values import values_of
from opfacade.programs import bound
from opfacade.programs.ball import Ball
from opfacade.programs.evaluate import Values
from opfacade.programs.reduce import reduced
from opfacade.programs.reduce_bound import Joining, joined
from opfacade.programs.types import FLOATS


def bounds(descriptor, args, machine, steps, amend):
    """Bounds that know the results of all stages. steps: roundings that a term of a sum passes, by the number of terms."""
    given = values_of(descriptor, args)
    leaves, balls = dict(given.leaves), {}
    found = bound.Bounds(Values(leaves, given.device), machine, balls, fused=True, amend=amend)
    for index, stage in enumerate(descriptor.stages):
        value, axes = stage.value, descriptor.joined(stage)
        count = math.prod(descriptor.shape[axis] for axis in axes)
        rows = Ball(*(_rows(descriptor, axes, one.double()) for one in torch.broadcast_tensors(*found(value))))
        parts = joined(stage.reducer, rows, Joining(machine, value.type, steps(count)))
        balls |= {(index, part): Ball(*(_kept(descriptor, axes, one) for one in ball)) for part, ball in parts.items()}
        whole = [part for part in parts if stage.part(part) not in FLOATS]
        if whole:
            exact = reduced(stage.reducer, value.type, _rows(descriptor, axes, found.exact.own(value)))
            leaves |= {("stage", (index, part)): _kept(descriptor, axes, exact[part]) for part in whole}
    return found


def over(descriptor, output, ball):
    return Ball(*(plain_over(descriptor, output, one) for one in ball))


def _rows(descriptor, axes, value):
    """Values that are reduced along the last axis; they vary along the other axes only where a result does."""
    while value.ndim < len(descriptor.shape):
        value = value.unsqueeze(0)
    for axis in axes:
        value = value.expand(*value.shape[:axis], descriptor.shape[axis], *value.shape[axis + 1 :])
    return value.movedim(axes, tuple(range(-len(axes), 0))).flatten(-len(axes))


def _kept(descriptor, axes, value):
    for axis in axes:
        value = value.unsqueeze(axis)
    return value
