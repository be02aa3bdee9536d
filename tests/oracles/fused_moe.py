"""fused_moe, from docs/ops/moe.md: every rounding that the page names, with the error that can cross it.

A step gives (value, absolute error); `rounded` says which error passes a rounding.
"""

from types import SimpleNamespace

import torch

from tests.oracles.activation import activated
from tests.oracles.matmul import decoded
from tests.oracles.moe import local_experts, routed
from tests.oracles.near import LARGEST, SLACK, Near, f32, half_unit, rounded, wide


def quantised(value, error, each):
    """Rows in f8_e4m3 with one f32 scale for `each` elements of a row, times that scale."""
    parts, error = value.unflatten(-1, (-1, each)), error.unflatten(-1, (-1, each))
    ends = [
        f32((end.amax(-1, keepdim=True)).clamp(min=1e-10) / LARGEST["f8_e4m3"])
        for end in ((parts.abs() - error).clamp(min=0), parts.abs(), parts.abs() + error)
    ]
    low, scale, high = ends
    size = parts.abs() / scale
    spread = (error / low + size * (high / low - 1)) * (1 + SLACK) + size * 2.0**-23 * (high > low)
    code, off = rounded(parts / scale, spread, "f8_e4m3")
    return (code * scale).flatten(-2), (off * high + code.abs() * (high - low)).flatten(-2)


def product(x, error, weight, size=None, lost=None):
    """(value, error) of rows x and weight [n, k], whose numbers have terms of `size` and an error `lost`."""
    size = weight.abs() if size is None else size
    whole = error @ weight.abs().T + SLACK * (x.abs() @ size.T)
    return x @ weight.T, whole if lost is None else whole + (x.abs() + error) @ lost.T


def act(problem, value, error, gated):
    """The function between the products."""
    if not gated:
        own, size, slope = activated(problem.activation, value)
        return own, slope * error + SLACK * size
    width = value.shape[-1] // 2
    halves = (slice(0, None, 2), slice(1, None, 2)) if problem.halves == "interleaved" else (slice(width), slice(width, None))
    first, second = halves[::-1] if problem.halves == "up_gate" else halves
    gate, up, of_gate, of_up = value[..., first], value[..., second], error[..., first], error[..., second]
    if problem.limit is not None:
        gate, up = gate.clamp(max=problem.limit), up.clamp(-problem.limit, problem.limit)
    up = up + problem.beta
    own, size, slope = activated(problem.activation, gate, 1.0 if problem.alpha is None else problem.alpha)
    off = (slope * of_gate + SLACK * size) * (up.abs() + of_up) + own.abs() * (of_up + SLACK * (up.abs() + abs(problem.beta)))
    return own * up, off


def applied_at_once(problem):
    """Whether the first product applies the activation without an intermediate rounding."""
    plain = problem.limit is None and problem.alpha is None and problem.beta == 0
    return not problem.gated or (problem.halves == "interleaved" and plain)


def hidden_of(problem, value, error):
    """The results of `up`, and of the activation, before it is stored, or quantised in the same step.

    With `scaling`, a product that applies the activation stores it in dtype, and a further step (`quantize_h` of `steps()`)
    quantises it. The page does not say so.
    """
    if not applied_at_once(problem):
        return act(problem, *rounded(value, error, problem.dtype), problem.gated)
    value, error = act(problem, value, error, problem.gated)
    return (value, error) if problem.scaling is None else rounded(value, error, problem.dtype)


def weight_of(problem, args, name, e):
    """(numbers [n, k], their terms, their error) of the weight of an expert."""
    tensor, k = getattr(args, name)[e], problem.hidden if name == "up" else problem.width
    if problem.weight_format is not None:
        own = SimpleNamespace(weight_format=problem.weight_format, k=k, dtype=problem.dtype)
        scale, zero, whole = (getattr(args, f"{name}_{part}") for part in ("scale", "zero", "global"))
        pick = [None if one is None else one[e] for one in (scale, zero, whole)]
        return decoded(own, tensor, pick[0], pick[1], pick[2])
    numbers = wide(tensor.T if problem.weight_layout == "kn" else tensor)
    if problem.scaling is not None:
        scale = wide(getattr(args, f"{name}_scale")[e])
        row, column = torch.arange(len(numbers)), torch.arange(k)
        numbers = numbers * (scale[:, None] if problem.scaling == "token" else scale[row // 128][:, column // 128])
    return numbers, numbers.abs(), torch.zeros_like(numbers)


def expert(problem, args, e, x, error):
    """down @ act(up @ x + bias) + bias of one row, in dtype."""
    if problem.scaling is not None:
        x, error = quantised(x, error, problem.hidden if problem.scaling == "token" else 128)
    value, error = product(x, error, *weight_of(problem, args, "up", e))
    if problem.bias:
        bias = wide(args.up_bias[e])
        value, error = value + bias, error + SLACK * bias.abs()
    value, error = hidden_of(problem, value, error)
    if problem.scaling is not None:
        value, error = quantised(value, error, problem.width if problem.scaling == "token" else 128)
    else:
        value, error = rounded(value, error, problem.dtype)
    value, error = product(value, error, *weight_of(problem, args, "down", e))
    if problem.bias:
        bias = wide(args.down_bias[e])
        value, error = value + bias, error + SLACK * bias.abs()
    return rounded(value, error, problem.dtype)


def shared(problem, args, x):
    """The shared expert plus `add`; this sum may be rounded before the results of the other experts are added."""
    value, error = product(x, torch.zeros_like(x), wide(args.shared_up))
    value, error = rounded(*hidden_of(problem, value, error), problem.dtype)
    value, error = product(value, error, wide(args.shared_down))
    if problem.add:
        value, error = value + wide(args.add), error + SLACK * wide(args.add).abs()
    return value, error + half_unit(value.abs() + error, args.out.dtype)


def expected(problem, args):
    x, found = wide(args.x), {}
    if problem.router is None:
        ids, weights, of_weight = args.ids, wide(args.weights), torch.zeros(args.weights.shape, dtype=torch.float64)
    else:
        fields = {name: getattr(problem.router, name) for name in type(problem.router).model_fields}
        route = SimpleNamespace(**fields, experts=problem.experts, top_k=problem.top_k)
        ids, near = routed(route, args.logits, args.router_bias, args.correction)
        found = {"chosen_ids": ids, "chosen_weights": near}
        weights, of_weight = near.value, near.tolerance(torch.float32)
    value, size, extra = torch.zeros_like(x), torch.zeros_like(x), torch.zeros_like(x)
    for row, own in enumerate(ids.tolist()):
        for slot, e in enumerate(own):
            local = e - problem.first_expert
            if not 0 <= local < local_experts(problem):
                continue
            one, off, by, of_by = x[row : row + 1], torch.zeros_like(x[:1]), weights[row, slot], of_weight[row, slot]
            if problem.weights_at == "input":
                one, off = rounded(one * by, one.abs() * of_by + SLACK * one.abs() * by.abs(), problem.dtype)
                by, of_by = torch.ones(()), torch.zeros(())
            y, off = expert(problem, args, local, one, off)
            value[row] += by * y[0]
            size[row] += by.abs() * y[0].abs()
            extra[row] += (by.abs() + of_by) * off[0] + of_by * y[0].abs()
    if problem.shared_width:
        own, off = shared(problem, args, x)
        value, size, extra = value + own, size + own.abs(), extra + off
    elif problem.add:
        value, size = value + wide(args.add), size + wide(args.add).abs()
    return found | {"out": Near(value, size, extra)}
