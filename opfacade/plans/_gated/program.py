"""Gated activations as programs of `gate` and `up`, with error bounds in terms of the gate, like those of activations of one
input."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from opfacade.programs.activations import gelu, gelu_tanh, relu2, sigmoid, silu
from opfacade.programs.expression import Node, apply, scalar, value
from opfacade.programs.fields import Number

GATE, UP, SCALE = value("gate", "f32"), value("up", "f32"), value("scale", "f32")
_SLOPED = ("silu", "swiglu_oai")
_PLAIN: Mapping[str, Callable[[Node], Node]] = MappingProxyType(
    {"silu": silu, "gelu": gelu, "gelu_tanh": gelu_tanh, "relu2": relu2, "identity": lambda x: x}
)


def takes_alpha(activation: str) -> bool:
    """Whether the sigmoid may have a slope."""
    return activation in _SLOPED


def numbers(limit: float | None, alpha: float | None) -> tuple[Number, ...]:
    """The scalars of a plan. `least`: any gate below it gives 0 in f32."""
    found = [] if limit is None else [Number(name="limit", value=limit)]
    if alpha is not None:
        found += [Number(name="alpha", value=alpha), Number(name="least", value=-200.0 / alpha)]
    return tuple(found)


def gated(activation: str, gated: bool, limited: bool, sloped: bool) -> Node:
    """activation(gate) * up; swiglu_oai multiplies by up + 1.

    limited: the gate is clamped to at most `limit`, and up to [-limit, limit]. sloped: the sigmoid has the slope `alpha`."""
    gate, up = (_within(GATE, False), _within(UP, True)) if limited else (GATE, UP)
    made = _sloped(gate) if sloped else _PLAIN[activation](gate)
    if not gated:
        return made
    return made * (up + 1.0 if activation == "swiglu_oai" else up)


def _within(x: Node, both: bool) -> Node:
    limit = scalar("limit")
    above = apply("minimum", x, limit)
    return apply("maximum", above, -limit) if both else above


def _sloped(gate: Node) -> Node:
    """gate * sigmoid(alpha * gate); the limit -0 for -inf."""
    return apply("maximum", gate, scalar("least")) * sigmoid(scalar("alpha") * gate)
