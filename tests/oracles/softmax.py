"""softmax, from docs/ops/softmax.md."""

import torch

from tests.oracles.near import Near, over, valid, wide


def expected(problem, args):
    n, axis = valid(problem, args), problem.axis
    y = wide(args.x)[:n] / problem.temperature
    if problem.mask:
        y = y.masked_fill(~args.mask.expand(problem.shape)[:n], -torch.inf)
    most = y.amax(axis, keepdim=True)
    term = (y - most).exp()
    total = term.sum(axis, keepdim=True)
    # The exponent errs by the rounding of the quotients, its own, and that of the difference.
    far = (y.abs() + most.abs()).nan_to_num(0.0, 0.0, 0.0)
    if problem.log:
        value, size = y - most - total.log(), far + total.log().abs() + 1
    else:
        value = term / total
        size = value * (far + (far * value).sum(axis, keepdim=True) + 1)
    if problem.safe:
        value = torch.where(most == -torch.inf, -torch.inf if problem.log else 0.0, value)
    return {"out": over(args.out, slice(n), Near(value, size.nan_to_num(0.0)))}
