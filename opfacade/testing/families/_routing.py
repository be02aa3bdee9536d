"""Checks that the chosen experts are admissible within the error bound, and computes their weights with bounds."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING

from opfacade.plans.moe import RouteArgs, RouteDescriptor
from opfacade.testing.bounds import Bounded, Report

if TYPE_CHECKING:
    from torch import Tensor


def choice_report(d: RouteDescriptor, call: RouteArgs, c: dict[str, float]) -> Report:
    """The error of the choices: infinite if a row has an inadmissible expert. If the keys are the logits, choices must be
    exact."""
    if d.ids_given:
        return Report(0.0, 0.0, "", 0)
    slack = 0.0 if d.by_logits else 1.0
    keys = _keys(d, call)
    for row, (key, got) in enumerate(zip(keys, call.ids.tolist(), strict=True)):
        wrong = _wrong(d, key, got, slack * c["score"])
        if wrong:
            return Report(math.inf, math.inf, f"ids[{row}] {wrong}", call.ids.numel())
    return Report(0.0, 0.0, "", call.ids.numel())


def _keys(d: RouteDescriptor, call: RouteArgs) -> list[list[float]]:
    """The keys in f64, computed from f32 logits."""
    z = _z(call)
    key = z if d.by_logits else _scores(d, z)
    found: list[list[float]] = (key if call.correction is None else key + call.correction.double()).tolist()
    return found


def _wrong(d: RouteDescriptor, key: list[float], got: list[int], eta: float) -> str:
    """Describes what is wrong with the experts of one row; "" if they are admissible. eta: the relative error of keys."""
    if len(set(got)) < len(got) or not all(0 <= one < d.experts for one in got):
        return f"{got} has an expert twice or one that does not exist"
    if eta == 0:
        want = _best(d, key)
        return "" if got == want else f"got {got} want {want}"
    return _inadmissible(d, key, got, 4 * eta * (2 + max((abs(k) for k in key if math.isfinite(k)), default=0.0)))


def _rank(key: list[float]) -> list[int]:
    """Indices by decreasing key; equal keys by index, NaN last."""
    return sorted(range(len(key)), key=lambda i: (math.isnan(key[i]), 0.0 if math.isnan(key[i]) else -key[i], i))


def _group_keys(d: RouteDescriptor, key: list[float]) -> list[float]:
    size = d.experts // d.groups
    found = []
    for g in range(d.groups):
        own = key[g * size : (g + 1) * size]
        found.append(sum(own[i] for i in _rank(own)[: 2 if d.group_score == "top2" else 1]))
    return found


def _best(d: RouteDescriptor, key: list[float]) -> list[int]:
    """The experts that exact keys choose."""
    size = d.experts // d.groups
    kept = set(_rank(_group_keys(d, key))[: d.top_groups]) if d.groups > 1 else {0}
    return [i for i in _rank(key) if i // size in kept][: d.top_k]


def _inadmissible(d: RouteDescriptor, key: list[float], got: list[int], slack: float) -> str:
    """Describes a choice that is impossible if the errors of keys are below slack / 2; "" if there is none."""
    size, groups = d.experts // d.groups, _group_keys(d, key)
    order = _rank(groups)
    first_out = groups[order[d.top_groups]] if d.top_groups < d.groups else -math.inf
    last_in = groups[order[d.top_groups - 1]]
    used = {i // size for i in got}
    bad = [g for g in used if not _at_least(groups[g], last_in, slack)]
    if bad or len(used) > d.top_groups:
        return f"{got} is of groups {sorted(used)}, which are not among the best"
    sure = {g for g in range(d.groups) if d.top_groups == d.groups or groups[g] > first_out + slack}
    least = key[got[-1]]
    missed = [i for i in range(d.experts) if i // size in sure | used and i not in got and not _at_least(least, key[i], slack)]
    unordered = [a for a, b in pairwise(got) if not _at_least(key[a], key[b], slack)]
    return f"{got} lacks {missed[:4]}" if missed else f"{got} is not in the order of keys" if unordered else ""


def _at_least(one: float, other: float, slack: float) -> bool:
    """True if one >= other - slack, where NaN is less than all numbers."""
    return math.isnan(other) or (not math.isnan(one) and one >= other - slack)


def _z(call: RouteArgs) -> Tensor:
    z = call.logits.float()
    found: Tensor = (z if call.bias is None else z + call.bias.float()).double()
    return found


def _scores(d: RouteDescriptor, z: Tensor) -> Tensor:
    if d.score == "sigmoid":
        return 1 / (1 + (-z).exp())
    if d.score == "sqrt_softplus":
        return (z.clamp(min=0) + (-z.abs()).exp().log1p()).sqrt()
    top = z.amax(-1, keepdim=True)
    parts = (z - top).exp()
    return parts / parts.sum(-1, keepdim=True)


def weights_of(d: RouteDescriptor, call: RouteArgs, c: dict[str, float]) -> Bounded:
    """The weights for the ids of a call; an id out of range has weight 0."""
    import torch

    ids = (call.given_ids if d.ids_given else call.ids).long()
    known = (ids >= 0) & (ids < d.experts)
    z, at = _z(call), ids.clamp(0, d.experts - 1)
    if d.score == "softmax_chosen":
        score = _scores(d, z.gather(1, at).masked_fill(~known, -math.inf))
    else:
        score = _scores(d, z).gather(1, at)
    score = score.masked_fill(~known, 0.0)
    least = torch.full_like(score[:, :1], c.get("least", 0.0))  # a score this small may have no correct digit
    if d.renormalise:
        total = score.sum(1, keepdim=True)
        total = torch.where(total == 0, 1.0, total)
        score, least = score / total, (d.top_k + 1) * least / total
    want = score * d.scale
    radius = (c["u"] + 8 * c["score"] * d.experts) * want.abs() + 2.0**-149 + least * abs(d.scale)
    return Bounded("weights", want, 1.02 * radius, 1.02 * radius)
