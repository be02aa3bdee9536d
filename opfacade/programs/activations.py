"""Activations as programs of one f32 or f64, each written so that its relative error is bounded wherever its value is a normal
number.

That rules out the textbook forms of some: 1 + erf(x) loses all digits in its negative tail, log(1 + exp(x)) near its end, and
x - tanh(x) near 0. `tests/programs/test_shipped.py` checks this for each activation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import MappingProxyType

from opfacade.programs.expression import Node, apply, constant, value

X = value("x", "f32")


def _of(op: str) -> Callable[..., Node]:
    return lambda *args: apply(op, *args)


_exp, _expm1, _log1p, _tanh, _erfc = (_of(op) for op in ("exp", "expm1", "log1p", "tanh", "erfc"))
_select, _maximum, _minimum = _of("select"), _of("maximum"), _of("minimum")


def relu(x: Node) -> Node:
    """relu: NaN stays NaN, and -0 becomes 0."""
    return _maximum(x, 0.0)


def relu2(x: Node) -> Node:
    return relu(x) * relu(x)


def _share(x: Node) -> Node:
    """1 / (1 + exp(-x)), computed by the form whose exponential does not overflow."""
    small = _exp(-abs(x))
    return _select(x < 0.0, small, constant(1.0, x.type)) / (1.0 + small)


def _bounded(x: Node) -> Node:
    """x clamped to at least -200 (f64: -1600), for a product whose other factor is 0 there: so -inf gives the limit, not
    NaN."""
    return _maximum(x, -200.0 if x.type == "f32" else -1600.0)


def sigmoid(x: Node) -> Node:
    return _share(x)


def silu(x: Node) -> Node:
    """x * sigmoid(x); the limit -0 for -inf."""
    return _bounded(x) * _share(x)


def gelu(x: Node) -> Node:
    """gelu by erfc, which keeps the digits of the negative tail."""
    return 0.5 * _bounded(x) * _erfc(x * -math.sqrt(0.5))


def gelu_tanh(x: Node) -> Node:
    """x * sigmoid(2 y), which equals the usual 0.5 x (1 + tanh(y)) but keeps the digits of the negative tail."""
    return _bounded(x) * _share(x * (1.0 + 0.044715 * (x * x)) * (2 * math.sqrt(2 / math.pi)))


def softplus(x: Node) -> Node:
    """log(1 + exp(x)), computed by the form that does not overflow."""
    return _maximum(x, 0.0) + _log1p(_exp(-abs(x)))


def mish(x: Node) -> Node:
    """x * tanh(softplus(x)): with e = exp(x), x * e (e + 2) / (e (e + 2) + 2); x itself where e would overflow."""
    most = 20.0 if x.type == "f32" else 40.0
    grown = _exp(_minimum(x, most))
    part = grown * (grown + 2.0)
    return _select(x > most, x, _bounded(x) * (part / (part + 2.0)))


def elu(x: Node) -> Node:
    return _select(x > 0.0, x, _expm1(x))


def hard_swish(x: Node) -> Node:
    return x * (_minimum(_maximum(x + 3.0, 0.0), 6.0) / 6.0)


ACTIVATIONS: Mapping[str, Callable[[Node], Node]] = MappingProxyType(
    {
        "relu": relu,
        "relu2": relu2,
        "sigmoid": sigmoid,
        "silu": silu,
        "gelu": gelu,
        "gelu_tanh": gelu_tanh,
        "softplus": softplus,
        "mish": mish,
        "elu": elu,
        "hard_swish": hard_swish,
        "tanh": _tanh,
    }
)


@lru_cache(maxsize=64)
def activation(name: str) -> Node:
    """The activation of the input x. Raises KeyError for a name that is not in ACTIVATIONS."""
    return ACTIVATIONS[name](X)
