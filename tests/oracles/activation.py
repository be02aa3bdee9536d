"""gated_activation, from docs/ops/activation.md, and the activations that other ops share with it."""

import math

import torch

from tests.oracles.near import Near, over, valid, wide
from tests.oracles.quantize import of_result


def activated(name, z, alpha=1.0):
    """(the activation, its size, a bound of its slope) at z in f64.

    A relative error of z reaches a sigmoid as |alpha z| times that error, and a gelu as z^2 times it.
    """
    if name in ("none", "identity"):
        value, factor, slope = z, 1.0, torch.ones_like(z)
    elif name == "silu":
        value, factor, slope = z * torch.sigmoid(alpha * z), 1 + (alpha * z).abs(), torch.full_like(z, 1.1)
    elif name == "gelu":
        value, factor, slope = z * torch.special.erfc(-z / math.sqrt(2)) / 2, 1 + z**2, torch.full_like(z, 1.13)
    elif name == "gelu_tanh":
        inner = math.sqrt(2 / math.pi) * (z + 0.044715 * z**3)
        value, factor, slope = z * torch.sigmoid(2 * inner), 1 + 2 * inner.abs() * 3, torch.full_like(z, 1.13)
    elif name == "relu":
        value, factor, slope = z.clamp(min=0), 1.0, torch.ones_like(z)
    elif name == "relu2":
        value, factor, slope = z.clamp(min=0) ** 2, 2.0, 2 * z.clamp(min=0) + 1e-3
    elif name == "sigmoid":
        value, factor, slope = torch.sigmoid(z), 1 + z.abs(), torch.full_like(z, 0.25)
    elif name == "tanh":
        value, factor, slope = torch.tanh(z), 2.0, torch.ones_like(z)
    else:
        raise AssertionError(f"the page does not define {name}")
    return value, value.abs() * factor, slope


def halves(x, width, gate_first, interleaved):
    first, second = (x[:, 0::2], x[:, 1::2]) if interleaved else (x[:, :width], x[:, width:])
    return (first, second) if gate_first else (second, first)


def evaluated(node, inputs):
    """(value, size) of an expression of gate and up in docs/programs.md, in its JSON form."""
    name = node.get("op", node["kind"])
    if name == "input":
        value = inputs[node["name"]]
        return value, value.abs()
    if name == "constant":
        value = torch.tensor(node["value"], dtype=torch.float64)
        return value, value.abs()
    (a, size), *rest = (evaluated(one, inputs) for one in node["args"])
    if name == "abs":
        return a.abs(), size
    ((b, other),) = rest
    if name == "add":
        return a + b, size + other
    if name == "mul":
        return a * b, size * other
    assert name == "div", name
    return a / b, size / b.abs() + (a / b**2).abs() * other


def expected(problem, args):
    n, x = valid(problem, args), wide(args.x)
    x = x[:n]
    gate, up = halves(x, problem.width, problem.gate_first, problem.interleaved) if problem.gated else (x, None)
    name, alpha, limit = problem.activation, problem.alpha, problem.limit
    if name == "swiglu_oai":
        alpha, limit = 1.702 if alpha is None else alpha, 7.0 if limit is None else limit
    if limit is not None:
        gate = gate.clamp(max=limit)
        up = None if up is None else up.clamp(-limit, limit)
    if problem.expression is not None:
        value, size = evaluated(problem.model_dump(mode="json")["expression"], {"gate": gate, "up": up})
    else:
        value, size, _ = activated("silu" if name == "swiglu_oai" else name, gate, 1.0 if alpha is None else alpha)
        if up is not None:
            one = 1 if name == "swiglu_oai" else 0
            value, size = value * (up + one), size * (up.abs() + one)
    y = Near(value, size)
    if problem.quant is not None:
        return of_result(problem.quant, y, n, args)
    if problem.in_place:
        return {"x": over(args.x, (slice(n), slice(problem.width)), y)}
    return {"out": over(args.out, slice(n), y)}
