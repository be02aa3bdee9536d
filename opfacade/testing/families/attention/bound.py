"""A per-element bound around an fp64 oracle of attention, with the constants that a SKU states.

For a row with scores s_j, weights p_j = softmax(s)_j and o = sum_j p_j v_j, the error of a flash-style kernel is at most
the sum of: the effect of score errors, sum_j p_j eta_j |v_j - o|; rounding P to the operand type of the second product;
accumulating it; summing the denominator; merging splits; and rounding the output. The `hard` form adds worst cases and
must never be exceeded; the `tight` form replaces rounding errors of independent sign by their probable size
(Hoeffding, 6 sigma). Derivation of such bounds: Higham, Accuracy and Stability of Numerical Algorithms, chapter 3.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from opfacade.core.dtypes import ROUNDOFF, UNDERFLOW
from opfacade.testing.bounds import Bounded
from opfacade.testing.families.attention.narrow_sums import largest_in_steps

if TYPE_CHECKING:
    from torch import Tensor

    Before = Mapping[str, Tensor] | Sequence[Tensor]


_SIGMA, _U, _LARGE = 6.0, 2.0**-24, 0.01  # _LARGE: for an eta above it, the spread of the values may be the smaller bound


@dataclass(frozen=True, slots=True)
class ErrorRow:
    """One batch of rows that share their keys, in fp64: q [g, rows, d], k [g, n, d], v [g, n, dv], seen [rows, n] or
    [g, rows, n]. sink [g, rows]: a logit of each row without a value. logits: (scores, their errors, constants) -> the softmax
    inputs that replace scores, and their errors."""

    q: Tensor
    k: Tensor
    v: Tensor
    seen: Tensor
    scale: float
    soft_cap: float
    sink: Tensor | None = None
    logits: Callable[[Tensor, Tensor, dict[str, float]], tuple[Tensor, Tensor]] | None = None


def attention_bounds(row: ErrorRow, c: dict[str, float], out_dtype: str) -> list[Bounded]:
    """Oracle o and lse of some rows, with bounds from the constants of the SKU's error model.

    u_acc, k_step: roundoff of the accumulator and products summed between two roundings. u_p, eta_p: roundoff and
    underflow of P in the second product. exp, tanh: errors of these functions, relative for exp, and relative to the cap for
    tanh. tile: keys
    between two rescalings. lanes: partial denominators per row. split: 1 if partial results may be merged; part: minimum keys
    of a part, if less than a tile. scaled: 1 if K and V are stored with scales. eta_q: underflow of an element of q relative to
    the largest. u_step, chain: error of a step with truncated products, relative to the largest of its sums and products, and
    the number of keys added in such steps before sums with u_acc. line: 1 for a ramp in exponents.
    """
    u = min(_U, c["u_acc"])  # roundoff of a single operation: f32, or f64 if the sums are f64
    row = row if row.seen.dim() == 3 else replace(row, seen=row.seen[None])
    blind = ~row.seen.any(-1, keepdim=True)
    row = _with_sink(row)
    raw = row.q @ row.k.transpose(1, 2) * row.scale
    weights = _softmax(row, raw)
    eta = _score_error(row, raw, weights, c, u)
    n = row.seen.sum(-1, keepdim=True).to(raw.dtype)
    o, first, sizes = _weighted_sums(row, weights.p, eta)
    tiles = n / c["tile"] + 1
    hard, tight = _product_error(c, u, _Counts(n, tiles), weights, o, sizes)
    m, parts = weights.top.abs(), n / min(c["tile"], c.get("part", math.inf)) + 5
    merge = c["split"] * (2.0**-21 + 4 * u * m + parts * u) * sizes["pv"]
    merge = merge + c.get("scaled", 0.0) * 3 * u * sizes["pv"]
    finish = _output_rounding(out_dtype, o, blind)
    lse = (weights.top + weights.total.log()).squeeze(-1)
    # The errors of lse: the largest common factor of the weights (its logarithm), the sum of the denominator, the logarithm,
    # and the rounding to f32.
    grown = (weights.p.log() + eta).nan_to_num(-math.inf, math.inf, -math.inf).logsumexp(-1).clamp(min=0.0)
    spread = grown + ((n / c["lanes"] + tiles + 8) * u).squeeze(-1) + 8 * u + (3 * u + _U) * lse.abs()
    spread = 1.02 * (spread + c["split"] * (2.0**-20 + 8 * u * m + parts * u).squeeze(-1))
    spread = spread.masked_fill(weights.empty.squeeze(-1), 0.0)
    return [
        Bounded("o", o, finish(first + hard + merge), finish(first + tight + merge)),
        Bounded("lse", lse, spread, spread),
    ]


@dataclass(frozen=True, slots=True)
class _Weights:
    """The softmax of rows: p, the maximum (0 without visible keys), the sum before normalising, and a mask of rows without
    keys."""

    p: Tensor
    top: Tensor
    total: Tensor
    empty: Tensor


@dataclass(frozen=True, slots=True)
class _Counts:
    """The number of keys that a row attends to, and the number of tiles that contain them."""

    n: Tensor
    tiles: Tensor


def _with_sink(row: ErrorRow) -> ErrorRow:
    """Adds the sink as a key with value 0 that all rows attend to; its score is set when the scores are computed."""
    import torch

    if row.sink is None:
        return row
    k, v = (torch.nn.functional.pad(x, (0, 0, 0, 1)) for x in (row.k, row.v))
    return replace(row, k=k, v=v, seen=torch.nn.functional.pad(row.seen, (0, 1), value=True))


def _softmax(row: ErrorRow, raw: Tensor) -> _Weights:
    import torch

    s = row.soft_cap * torch.tanh(raw / row.soft_cap) if row.soft_cap > 0 else _logits(row, raw, 0 * raw, {})[0]
    if row.sink is not None:
        s = torch.cat([s[..., :-1], row.sink[..., None]], -1)
    s = s.masked_fill(~row.seen, -math.inf)
    top = s.amax(-1, keepdim=True)
    empty = top == -math.inf
    top = torch.where(empty, torch.zeros_like(top), top)
    p = (s - top).exp()
    total = p.sum(-1, keepdim=True)
    return _Weights(p / torch.where(empty, torch.ones_like(total), total), top, total, empty)


def _logits(row: ErrorRow, raw: Tensor, eta: Tensor, c: dict[str, float]) -> tuple[Tensor, Tensor]:
    """Scores and their errors after the transform, if there is one; the last column is unchanged if it is a sink."""
    import torch

    if row.logits is None:
        return raw, eta
    keys = raw.shape[-1] - (row.sink is not None)
    made = zip(row.logits(raw[..., :keys], eta[..., :keys], c), (raw, eta), strict=True)
    s, off = (torch.cat([new, old[..., keys:]], -1) for new, old in made)
    return s, off


def _score_error(row: ErrorRow, raw: Tensor, weights: _Weights, c: dict[str, float], u: float) -> Tensor:
    """A bound on the error of the logarithm of a weight: dot product, cap or linear term, scaling, subtraction, exp."""
    import torch

    absolute = abs(row.scale) * (row.q.abs() @ row.k.abs().transpose(1, 2))
    eta = (row.q.shape[-1] / c["k_step"] + 4) * c["u_acc"] * absolute
    if "u_step" in c:
        eta = eta + c["u_step"] * abs(row.scale) * largest_in_steps(row.q, row.k, int(c["k_step"]))
    size = raw.abs()
    eta = eta + c.get("scaled", 0.0) * 2 * u * size
    if c.get("eta_q"):
        largest = row.q.abs().amax(-1, keepdim=True)
        eta = eta + c["eta_q"] * abs(row.scale) * largest * row.k.abs().sum(-1)[:, None]
    if row.soft_cap > 0:
        # The slope of tanh is largest at the point of the error interval nearest to 0. Its argument needs an additional
        # product.
        eta = eta + 2 * u * size
        nearest = (size - eta).clamp(min=0.0) / row.soft_cap
        eta = eta * (1 - torch.tanh(nearest) ** 2) + c["tanh"] * row.soft_cap
        size = size.clamp(max=row.soft_cap)
    if row.logits is not None:  # the argument needs an additional product
        raw, eta = _logits(row, raw, eta + 2 * u * size, c | {"u": u})
        size = raw.abs()
    if row.sink is not None:  # the sink is an input, so its score has no error
        eta[..., -1] = 0.0
        size[..., -1] = row.sink.abs().nan_to_num(posinf=0.0)
    return eta + u * (3 * size + (3 + 2 * c.get("line", 0.0)) * weights.top.abs()) + c["exp"]


def _weighted_sums(row: ErrorRow, p: Tensor, eta: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """o, the effect of score errors on it, and the sums that the bounds use. Processes one row at a time, with [n, dv] elements
    in memory.

    If weights are off by factors within exp(+-eta_j), o changes by at most sum_j p_j (exp(eta_j) - 1) |v_j - o| / sum_j p_j
    exp(-eta_j): for small eta about sum_j p_j eta_j |v_j - o|, and never by more than the distance to the farthest visible
    value.
    """
    import torch

    rows = p.shape[1]
    v_all = torch.where(row.v.isfinite(), row.v, torch.zeros_like(row.v))
    o, sizes = p @ v_all, v_all.abs()
    sums = {"pv": p @ sizes, "p2v2": (p * p) @ (v_all * v_all), "v": row.seen.to(p.dtype) @ sizes}
    first, running = torch.zeros_like(o), torch.zeros_like(o)
    moved = (p * eta.expm1()).nan_to_num(0.0, posinf=math.inf)
    left = (p * (-eta).exp()).nan_to_num(0.0).sum(-1)
    for i in range(rows if row.k.shape[1] else 0):
        away = (v_all - o[:, i, None]).abs_()
        shift = ((moved[:, i, None] @ away).squeeze(1) / left[:, i, None]).nan_to_num(math.inf)
        if bool((eta[:, i] > _LARGE).any()):
            shift = torch.minimum(shift, away.masked_fill_(~row.seen[:, i, :, None], 0.0).amax(1))
        first[:, i] = shift
        terms = p[:, i, :, None] * v_all
        running[:, i] = terms.cumsum(1).abs_().amax(1) + terms.abs_().amax(1)
    return _with_wild(row, p, o), first, sums | {"running": running}


def _with_wild(row: ErrorRow, p: Tensor, o: Tensor) -> Tensor:
    """A non-finite key makes exactly the rows non-finite that attend to it."""
    import torch

    for key in (~row.v.isfinite()).any(-1).any(0).nonzero().flatten().tolist():
        bad = ~row.v[:, key].isfinite()
        term = torch.where(bad[:, None], p[:, :, key, None] * row.v[:, key][:, None], torch.zeros_like(o))
        o = o + torch.where(row.seen[:, :, key, None], term, torch.zeros_like(o))
    return o


def _product_error(
    c: dict[str, float], u: float, counts: _Counts, weights: _Weights, o: Tensor, sums: dict[str, Tensor]
) -> tuple[Tensor, Tensor]:
    """The errors due to the rounding of P, its underflow, and the accumulation of the product and of the denominator, in hard
    and tight form."""
    import torch

    size, cut = o.abs(), c.get("u_step", 0.0) * c.get("chain", 0.0) / c["k_step"] * (1 + c["u_p"]) * sums["pv"]
    underflow = c["eta_p"] / torch.where(weights.total == 0, torch.ones_like(weights.total), weights.total) * sums["v"]
    steps = (counts.n / c["k_step"] + counts.tiles + 4) * c["u_acc"]
    per_lane = counts.n / c["lanes"]
    hard = c["u_p"] * sums["pv"] + steps * sums["pv"] + (per_lane + counts.tiles + 8) * u * size
    tight = _SIGMA * c["u_p"] * sums["p2v2"].sqrt() + c["u_p"] * size + steps * sums["running"]
    tight = tight + (_SIGMA * per_lane.sqrt() + counts.tiles + 8) * u * size
    return hard + cut + underflow, torch.minimum(tight, hard) + cut + underflow


def _output_rounding(dtype: str, o: Tensor, empty: Tensor) -> Any:
    """Adds the rounding of the output; a row without visible keys must be exactly 0."""
    u, eta = ROUNDOFF[dtype], UNDERFLOW[dtype]
    return lambda error: (1.02 * ((1 + 2 * u) * error + u * o.abs() + eta)).masked_fill(empty, 0.0)
