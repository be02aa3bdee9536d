"""route, moe_sort, moe_gather and moe_combine, from docs/ops/moe.md. A layer of them is in fused_moe.py."""

import torch

from tests.oracles.near import Near, f32, over, valid, wide


def scores_of(problem, z):
    """(score, size) of z in f64. softmax_chosen: the scores of all experts only order the choice."""
    if problem.score in ("softmax", "softmax_chosen"):
        value = z.softmax(-1)
        return value, value * (z.abs() + z.abs().amax(-1, keepdim=True) + 1)
    if problem.score == "sigmoid":
        return torch.sigmoid(z), torch.sigmoid(z) * (1 + z.abs())
    value = torch.nn.functional.softplus(z, threshold=1e9).sqrt()
    return value, value * (1 + z.abs())


def ordered(keys):
    """Ids by descending key; the lower id first, NaN last."""
    return torch.argsort(keys.nan_to_num(-torch.inf, torch.inf, -torch.inf), dim=-1, descending=True, stable=True)


def routed(problem, logits, bias, correction, given=None):
    """(ids, weights as Near) of rows of logits."""
    z = wide(logits)
    z = f32(z + wide(bias)) if problem.bias else z
    score, size = scores_of(problem, z)
    if given is None:
        keys = score + wide(correction) if problem.correction else z
        if problem.groups > 1:
            key = score + wide(correction) if problem.correction else score if problem.group_score == "top2" else z
            parts = key.unflatten(-1, (problem.groups, -1))
            best = parts.amax(-1) if problem.group_score == "max" else parts.topk(2).values.sum(-1)
            kept = torch.zeros_like(best, dtype=torch.bool).scatter(1, ordered(best)[:, : problem.top_groups], True)
            keys = keys.masked_fill(~kept.repeat_interleave(parts.shape[-1], 1), -torch.inf)
        given = ordered(keys)[:, : problem.top_k]
    usable = (given >= 0) & (given < problem.experts)
    at = given.clamp(0, problem.experts - 1).long()
    if problem.score == "softmax_chosen":
        own = z.gather(1, at).masked_fill(~usable, -torch.inf)
        value = own.softmax(-1)
        spread = value * (z.gather(1, at).abs() + z.abs().amax(-1, keepdim=True) + 1)
    else:
        value, spread = score.gather(1, at) * usable, size.gather(1, at) * usable
    if problem.renormalise:
        total = value.sum(-1, keepdim=True)
        spread = (spread + value * spread.sum(-1, keepdim=True) / total) / total
        value = value / total
    return given.int(), Near(value * problem.scale, spread * abs(problem.scale))


def _route(problem, args):
    n = valid(problem, args)
    ids, weights = routed(
        problem, args.logits[:n], args.bias, args.correction, args.given_ids[:n] if problem.ids_given else None
    )
    found = {"weights": over(args.weights, slice(n), weights)}
    if not problem.ids_given:
        found["ids"] = args.ids.clone()
        found["ids"][:n] = ids
    if problem.loads:
        found["loads"] = torch.bincount(ids.flatten(), minlength=problem.experts).int()
    if problem.most_replicas:
        row = torch.arange(n)[:, None]
        found["physical_ids"] = args.physical_ids.clone()
        found["physical_ids"][:n] = args.replicas[ids.long(), row % args.num_replicas[ids.long()]]
    return found


def sorted_choices(ids, first, count):
    """(indptr, order, x_rows, places) of the choices of the local experts."""
    flat, top_k = ids.flatten().tolist(), ids.shape[1]
    order = sorted((c for c, e in enumerate(flat) if first <= e < first + count), key=lambda c: (flat[c], c))
    indptr = [sum(flat[c] < first + e for c in order) for e in range(count + 1)]
    places = torch.full((len(flat),), -1, dtype=torch.int32)
    for place, choice in enumerate(order):
        places[choice] = place
    tail = [0] * (len(flat) - len(order))
    rows = [c // top_k for c in order]
    return (*(torch.tensor(own, dtype=torch.int32) for own in (indptr, order + tail, rows + tail)), places.reshape(ids.shape))


def local_experts(problem):
    return problem.experts - problem.first_expert if problem.num_local is None else problem.num_local


def _gather(problem, args):
    total = problem.total_num_rows * problem.top_k
    n = int(args.num_valid[0]) if problem.num_valid else total
    order = args.order[:n].long()
    value = wide(args.x)[order // problem.top_k]
    if problem.weighted:
        value = value * wide(args.weights).flatten()[order][:, None]
    return {"out": over(args.out, slice(n), Near(value, value.abs()))}


def combined(y, size, places, weights, scale=1.0):
    """The sum over slots of weighted rows of y, as (value, size); rows without a place are not read."""
    there = ((places >= 0) & (places < len(y)))[..., None]
    at = places.clamp(0, max(len(y) - 1, 0)).long()
    factor = torch.where(there, weights[..., None] * scale, 0.0)
    rows, sizes = torch.where(there, y[at], 0.0), torch.where(there, size[at], 0.0)
    return (factor * rows).sum(1), (factor.abs() * sizes).sum(1)


def _combine(problem, args):
    y = wide(args.y)
    weights = wide(args.weights) if problem.weighted else torch.ones(args.places.shape, dtype=torch.float64)
    value, size = combined(y, y.abs(), args.places, weights, problem.scale)
    if problem.add:
        value, size = value + wide(args.add), size + wide(args.add).abs()
    return {"out": Near(value, size)}


def expected(problem, args):
    if problem.op == "route":
        return _route(problem, args)
    if problem.op == "moe_sort":
        names = ("indptr", "order", "x_rows", "places")
        return dict(zip(names, sorted_choices(args.ids, problem.first_expert, local_experts(problem)), strict=True))
    return _gather(problem, args) if problem.op == "moe_gather" else _combine(problem, args)
