"""Operands that begin one element into their storage: one operand of a call at a time."""

import os
from dataclasses import replace

import torch

from opfacade.core.checks import check
from opfacade.core.descriptor import operands_of
from opfacade.core.overlap import extent
from opfacade.testing import inputs, numerics


def one_element_on(tensor):
    """The same values and strides, at an address that is aligned only to one element."""
    flat = torch.empty(extent(tensor.shape, tensor.stride()) + 1, dtype=tensor.dtype, device=tensor.device)
    return flat.as_strided(tensor.shape, tensor.stride(), 1).copy_(tensor)


def calls(problem, seed, device="cpu"):
    """(operand, args) with that operand moved; args is None if the call is then refused with the code for addresses."""
    operands = operands_of(problem)
    for name in operands:
        args = inputs.make_args(problem, seed, device)
        tensor = getattr(args, name)
        if tensor is None or tensor.numel() == 0:
            continue
        moved = replace(args, **{name: one_element_on(tensor)})
        codes = {issue.code for issue in check(operands, {one: getattr(moved, one) for one in operands}, None)}
        assert codes <= {"OPF-A025"}, (name, codes)
        assert not codes or operands[name].alignment > tensor.element_size(), name
        yield name, None if codes else moved


def worst(problem, run, sku, args):
    """The largest ratio of error to bound in a run."""
    before = numerics.snapshot(problem, args)
    run(args)
    return numerics.check(problem, args, sku, before=before).worst


def in_a_child(action):
    """How a forked process that evaluates it ends: 0 if it is true. A trap of the kernel kills only the child."""
    child = os.fork()
    if child == 0:
        try:
            torch.set_num_threads(1)  # threads of the parent are not here
            os._exit(0 if action() else 1)
        finally:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
