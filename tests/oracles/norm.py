"""norm, from docs/ops/norm.md."""

import torch

from tests.oracles.near import SLACK, Near, over, rounded, stored, valid, wide
from tests.oracles.quantize import of_result


def normed(problem, kind, x, weight, bias, residual, gate=None, groups=1):
    """(the stored sum, the result before it is stored), each Near. x and residual are f64."""
    total = x if residual is None else x + residual
    kept = Near(total, total.abs())
    if residual is not None and problem.residual_sum == "rounded":
        total = wide(stored(total, problem.dtype))
    if kind == "none":
        return kept, kept
    parts = total.unflatten(-1, (groups, -1))
    mean = parts.mean(-1, keepdim=True) if kind == "layer" else torch.zeros(())
    size = parts.abs() + (parts.abs().mean(-1, keepdim=True) if kind == "layer" else 0)
    factor = (((parts - mean) ** 2).mean(-1, keepdim=True) + problem.eps) ** -0.5
    y, size = ((parts - mean) * factor).flatten(-2), (size * factor).flatten(-2)
    extra = torch.zeros_like(y)
    if problem.normed == "rounded":
        y, extra = rounded(y, SLACK * size, problem.dtype)
    if weight is not None:
        scale = wide(weight) + (1 if problem.weight == "one_plus" else 0)
        y, size, extra = y * scale, size * (wide(weight).abs() + 1), extra * scale.abs()
    if bias is not None:
        y, size = y + wide(bias), size + wide(bias).abs()
    if gate is not None:
        gate = wide(gate)
        by = torch.sigmoid(gate) * (gate if problem.gate == "silu" else 1)
        y, size, extra = y * by, size * by.abs() * (1 + gate.abs()), extra * by.abs()
    return kept, Near(y, size, extra)


def expected(problem, args):
    n = valid(problem, args)
    residual = wide(args.residual)[:n] if problem.residual else None
    gate = args.gate[:n] if problem.gate != "none" else None
    kept, y = normed(problem, problem.kind, wide(args.x)[:n], args.weight, args.bias, residual, gate, problem.groups)
    found = {"residual": over(args.residual, slice(n), kept)} if problem.residual else {}
    if problem.in_place:
        return found | {"x": over(args.x, slice(n), y)}
    if problem.quant is None:
        return found | {"out": over(args.out, slice(n), y)}
    if problem.full_out:
        found["full_out"] = over(args.full_out, slice(n), y)
    return found | of_result(problem.quant, y, n, args)
