"""Calls whose operands hold NaN and infinities, or whose counts exceed the number of rows: one operand at a time."""

import math

import torch

from opfacade.core.descriptor import operands_of
from opfacade.testing import inputs

SPECIAL = (math.nan, math.inf, -math.inf)
COUNTS = (-1, 2**31 - 1)


def _places(count, seed, share=0.03):
    """A few places, at least the first and the last."""
    draw = torch.Generator().manual_seed(seed)
    found = torch.rand(count, generator=draw) < share
    found[0] = found[-1] = True
    return found


def _poisoned(tensor, seed):
    """The same with specials at some places; an 8-bit float that has no infinity holds NaN there."""
    flat = tensor.float().cpu().reshape(-1)
    at = _places(flat.numel(), seed)
    kinds = torch.tensor(SPECIAL).repeat(int(at.sum()) // 3 + 1)[: int(at.sum())]
    flat[at] = kinds.roll(seed)
    return flat.reshape(tensor.shape).to(tensor.dtype).to(tensor.device)


def specials(problem, seed, device="cpu"):
    """(operand, args): each float operand that is read holds NaN and infinities."""
    for name, spec in operands_of(problem).items():
        args = inputs.make_args(problem, seed, device)
        tensor = getattr(args, name)
        if spec.role in ("in", "inout") and tensor is not None and tensor.dtype.is_floating_point and tensor.numel():
            getattr(args, name).copy_(_poisoned(tensor, seed))
            yield name, args


def counted(problem):
    """Names of the counts of valid rows."""
    return sorted({spec.valid_rows for spec in operands_of(problem).values() if spec.valid_rows})


def left_alone(problem, name, args):
    """{operand: a copy of its content}: results of rows that this count includes; nothing is written if the count is wrong."""
    found = {}
    for operand, spec in operands_of(problem).items():
        tensor = getattr(args, operand)
        if spec.valid_rows == name and spec.role in ("out", "inout") and tensor is not None:
            if spec.role == "out":
                tensor.view(torch.uint8 if tensor.element_size() == 1 else tensor.dtype).fill_(7)
            found[operand] = tensor.clone()
    return found


def counts(problem, seed, device="cpu"):
    """(name and count, args): each count of valid rows exceeds the buffers."""
    for name in counted(problem):
        rows = operands_of(problem)[name].contents.values[1] - 1
        for count in (rows + 1, *COUNTS):
            args = inputs.make_args(problem, seed, device)
            getattr(args, name).fill_(count)
            yield f"{name}={count}", args
