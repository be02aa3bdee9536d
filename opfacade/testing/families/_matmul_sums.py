"""Sums of products in fp64, and error bounds for a machine that adds them in any order.

A machine adds `k_step` products at a time to an f32 sum, in chains of `segment` elements of k, which are then added. The error
of a step is at most `u_acc` times the previous sum plus the sizes of its products. The hard bound replaces the previous sum by
the sum of all sizes so far; the tight bound uses the sum itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from opfacade.testing.families import _matmul_factors as factors
from opfacade.testing.families._matmul_weights import weight_of

if TYPE_CHECKING:
    from torch import Tensor

    from opfacade.plans._matmul.fields import ProductCall
    from opfacade.plans.matmul import MatmulArgs, MatmulDescriptor

_PANEL = 64  # number of 16-bit elements that a kernel multiplies by one term of the weight before it takes the next term


@dataclass(frozen=True, slots=True)
class Sums:
    """Sums [.., rows, n] with radii, all fp64. lost: whether sums are infinite or NaN, with infinite radii; None: none is."""

    value: Tensor
    hard: Tensor
    tight: Tensor
    lost: Tensor | None = None


def sums_of(problem: MatmulDescriptor, args: ProductCall, c: dict[str, float]) -> Sums:
    """Scales that differ along k are part of the products. Constants: u_acc, k_step, segment: as above. u_step: error of a step
    over the largest of its sum and products, in chains of `chain` elements. unordered: parts of k may be added in any order, so
    that the tight bound is the hard one. u_part: of scaling and adding a part of k. convert: of the sum, once. u_operand,
    tiny_operand: roundoff of x and weight before they are multiplied, and its smallest size. u_sum, tiny_sum, max_sum: alpha
    times the sum may be stored with this roundoff, and an error of tiny_sum near 0, before a bias is added; it may become
    infinite above max_sum. terms: a weight is the sum of so many numbers of its type, whose products follow each other. chain
    without u_step: so many elements are summed on their own, and then a scale multiplies their sum when it is added."""
    import torch

    x, w, rest_of_parts, parts = _operands(problem, args)
    moved, infinite, given = torch.zeros((), dtype=torch.float64, device=x.device), factors.Factors(None), x
    if problem.weight_format is not None:
        codes, infinite = factors.apart(problem, cast("MatmulArgs", args))
        w, room = weight_of(problem, codes)
        moved = x.abs() @ room
    x, w = (x, w) if c.get("terms", 1.0) == 1.0 else _in_terms(x, w)
    value, absolute = x @ w, x.abs() @ w.abs()
    if problem.scaling is not None and problem.scaling.x_zero:
        zero = args.x_zero if problem.scaling.kind == "tensor" else args.x_zero.unsqueeze(-1)
        value = value - torch.einsum("...mi,...n->...mn", zero.expand(*x.shape[:-1], 1).double(), args.weight_sum.double())
    k, k_step, u_acc = x.shape[-1], c.get("k_step", 1.0), c.get("u_acc", 0.0)  # integers have no rounding
    segments = math.ceil(k / c.get("segment", math.inf))
    spread = (_steps(k, c) + segments + 4) * u_acc * absolute
    rest = c.get("convert", 0.0) * value.abs() + (parts + 3 if parts else 0) * c.get("u_part", u_acc) * absolute
    if "u_operand" in c:
        rest = rest + _of_operands(x, w, absolute, c)
    if "u_step" in c:
        rest = rest + c["u_step"] * _largest(x, w, c)
    near = (
        spread if k_step == 1 or "unordered" in c else spread.minimum(u_acc * (_running(x, w, c) + (segments + 5) * absolute))
    )
    spread, near = (_stored(value, radius + moved + rest, problem.alpha, c) for radius in (spread, near))
    unknown = torch.zeros_like(value, dtype=torch.bool)
    if rest_of_parts is not None:
        value, unknown = value + rest_of_parts.value, rest_of_parts.unknown
    if problem.weight_format is not None:
        value, unknown = factors.added(problem, codes, infinite, given, value)
        value, spread, near = infinite.of(value, spread, near)
    certain = ~value.isfinite() & ~spread.isinf()
    lost = None if infinite.lost is None else infinite.lost.expand(value.shape)
    unknown = unknown if lost is None else unknown | lost
    hard, tight = (one.masked_fill(certain, 0.0).masked_fill(unknown, math.inf) for one in (spread, near))
    return Sums(value, hard, tight, lost)


def _chain(c: dict[str, float]) -> float:
    """Elements whose sum is scaled when it is added."""
    return math.inf if "u_step" in c else c.get("chain", math.inf)


def _steps(k: int, c: dict[str, float]) -> float:
    """The roundings of a sum in units of u_acc: one per step of a chain, and half a unit where the sum of a chain is added."""
    step, chain = c.get("k_step", 1.0), _chain(c)
    return k / step if chain == math.inf else min(k, chain) / step + math.ceil(k / chain) / 2


def _of_operands(x: Tensor, w: Tensor, absolute: Tensor, c: dict[str, float]) -> Tensor:
    """The error of sums due to rounded operands."""
    u, tiny = c["u_operand"], c["tiny_operand"]
    small = tiny * (x.abs().sum(-1, keepdim=True) + w.abs().sum(-2, keepdim=True))
    return (2 + u) * u * absolute + (1 + u) * small + x.shape[-1] * tiny**2


def _stored(value: Tensor, radius: Tensor, alpha: float, c: dict[str, float]) -> Tensor:
    """The radius of sums that may be stored, times alpha, before a bias is added."""
    if "u_sum" not in c:
        return radius
    size = value.abs() + radius
    radius = radius + c["u_sum"] * size + c.get("tiny_sum", 0.0) / abs(alpha)
    return radius.masked_fill(size * abs(alpha) > c.get("max_sum", math.inf), math.inf)


def _operands(problem: MatmulDescriptor, args: ProductCall) -> tuple[Tensor, Tensor, factors.Parts | None, int]:
    """x [.., rows, k] and weight [.., k, n] multiplied by the scales that differ along k; the parts of k whose scales are not
    finite; and the number of parts of k."""
    x = args.x.double() if problem.x_layout == "mk" else args.x.double().mT
    w = args.weight.double() if problem.weight_layout == "kn" else args.weight.double().mT
    scaling = problem.scaling
    if scaling is None or not scaling.in_k:
        return x, w, None, 0
    k, n = w.shape[-2:]
    of_x, of_w = args.x_scale.double(), args.weight_scale.double()
    of_x = of_x if scaling.x_scale_layout == "row" else of_x.mT
    of_x = _spread(of_x[..., : x.shape[-2], :], k, scaling.part, 0)
    if scaling.kind == "mx32":
        of_w, parts = _spread(of_w, k, scaling.part, 0).mT, math.ceil(k / scaling.part)
    else:
        of_n, of_k = scaling.block_offset
        columns = _spread(of_w.mT, n, scaling.part, of_n)  # [.., blocks of k, n]
        of_w, parts = _spread(columns.mT, k, scaling.part, of_k).mT, 2 * math.ceil(k / scaling.part) + 1
    return *factors.scaled(x, w, of_x, of_w), parts


def _in_terms(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """Operands in which 64 weights rounded to bf16 are followed by their 64 rounding errors, with the same x for both."""
    import torch

    near = w.bfloat16().double()
    parts = [
        (x[..., k : k + _PANEL], one[..., k : k + _PANEL, :])
        for k in range(0, x.shape[-1], _PANEL)
        for one in (near, (w - near).masked_fill(~near.isfinite(), 0.0))
    ]
    return (torch.cat([one for one, _ in parts], -1), torch.cat([one for _, one in parts], -2)) if parts else (x, w)


def _spread(scale: Tensor, count: int, part: int, offset: int) -> Tensor:
    """Expands scales of parts to `count` elements of the last axis; the first is element `offset` of its part."""
    found: Tensor = scale.repeat_interleave(part, -1)[..., offset : offset + count]
    return found


def _running(x: Tensor, w: Tensor, c: dict[str, float]) -> Tensor:
    """The sum of |previous sum| over all steps, and half of |sum| where the sum of a chain is added."""
    k, step, segment, chain = x.shape[-1], int(c["k_step"]), c.get("segment", math.inf), _chain(c)
    before = whole = total = (x[..., :0] @ w[..., :0, :]).double()
    for first in range(0, k, step):
        whole = x.new_zeros(()) if first % segment == 0 else whole
        before = x.new_zeros(()) if first % segment == 0 or first % chain == 0 else before
        before = before + x[..., first : first + step] @ w[..., first : first + step, :]
        total = total + before.abs()
        if (first + step) % chain == 0 or (first + step >= k and chain < math.inf):
            whole = whole + before
            total = total + whole.abs() / 2
    return total


def _largest(x: Tensor, w: Tensor, c: dict[str, float]) -> Tensor:
    """The sum over all steps of an upper bound of the sums and products in the step."""
    step, chain = int(c["k_step"]), int(c["chain"])
    before = total = (x[..., :0] @ w[..., :0, :]).double()
    for first in range(0, x.shape[-1], step):
        before = before if first % chain else before * 0
        mine, theirs = x[..., first : first + step], w[..., first : first + step, :]
        after = before + mine @ theirs
        total = total + (mine.abs() @ theirs.abs()).maximum(before.abs()).maximum(after.abs())
        before = after
    return total
