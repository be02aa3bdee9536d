"""Activations. Those without parameters are in `programs.activations`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opfacade.plans.elementwise import MapDescriptor
from opfacade.programs import activations as known
from opfacade.programs import words as w
from opfacade.programs.expression import Node, constant
from opfacade.recipes._draft import Draft
from opfacade.recipes._pointwise import floats, pointwise, unary
from opfacade.recipes._recipe import recipe, table
from opfacade.recipes._tensors import Shaped, axis_of, refuse

if TYPE_CHECKING:
    from opfacade.recipes._tensors import Scalar


SELU_ALPHA, SELU_SCALE = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946
# x - tanh(x) = x^3 (1/3 - 2/15 x^2 + ...): the coefficients of the series, from the last.
SHRINK = (-1382 / 155925, 62 / 2835, -17 / 315, 2 / 15, -1 / 3)


def _zero(x: Node) -> Node:
    return constant(0.0, x.type)


def _limited(x: Node, low: Scalar, high: Scalar | None) -> Node:
    return w.minimum(w.maximum(x, low), high)


def elu(input: Node, alpha: Any = None, scale: Any = None, input_scale: Any = None) -> Node:
    inner = input if input_scale is None else input * input_scale
    below = w.expm1(inner) if alpha is None else w.expm1(inner) * alpha
    found = w.select(input > 0.0, input, below)
    return found if scale is None else found * scale


def celu(input: Node, alpha: Any = None) -> Node:
    below = w.expm1(input) if alpha is None else w.expm1(input / alpha) * alpha
    return w.select(input > 0.0, input, below)


def selu(x: Node) -> Node:
    return w.select(x > 0.0, x * SELU_SCALE, w.expm1(x) * (SELU_ALPHA * SELU_SCALE))


def gelu(input: Node, approximate: object = "none") -> Node:
    forms = {"none": known.gelu, "tanh": known.gelu_tanh}
    if approximate not in forms:
        refuse("approximate", '"none" or "tanh"', approximate)
    return forms[approximate](input)


def softplus(input: Node, beta: Any = None, threshold: Any = 20.0) -> Node:
    """x if it is above the threshold."""
    inner = input if beta is None else input * beta
    found = known.softplus(inner) if beta is None else known.softplus(inner) / beta
    return w.select(inner > threshold, input, found)


def tanhshrink(x: Node) -> Node:
    """x - tanh(x). Near 0, where the difference cancels, its series is used."""
    square, series = x * x, constant(21844 / 6081075, x.type)
    for coefficient in SHRINK:
        series = series * square + coefficient
    return w.select(w.abs_(x) < 0.3, series * square * -x, x - w.tanh(x))


def leaky_relu(input: Node, negative_slope: Any = 0.01) -> Node:
    return w.select(input > 0.0, input, input * negative_slope)


def threshold(input: Node, threshold: Scalar, value: Scalar) -> Node:
    return w.select(input <= threshold, value, input)


def softshrink(input: Node, lambd: Scalar = 0.5) -> Node:
    inner = w.select(input < -lambd, input + lambd, input * 0.0)
    return w.select(input > lambd, input - lambd, inner)


def hardshrink(input: Node, lambd: Scalar = 0.5) -> Node:
    inside = w.and_(input >= -lambd, input <= lambd)
    return w.select(inside, _zero(input), input)


def rrelu(input: Node, lower: Any = 1 / 8, upper: object = 1 / 3, training: Any = False) -> Node:
    if training:
        refuse("training", "False, because random slopes are not supported", training)
    return leaky_relu(input, (lower + upper) * 0.5)


table(
    {
        "nn.functional.relu": lambda x: w.maximum(x, 0),
        "nn.functional.relu6": lambda x: _limited(x, 0, 6),
        "sigmoid special.expit nn.functional.sigmoid": known.sigmoid,
        "nn.functional.silu": known.silu,
        "nn.functional.mish": known.mish,
        "nn.functional.selu": selu,
        "nn.functional.hardswish": known.hard_swish,
        "nn.functional.hardsigmoid": lambda x: _limited(x + 3.0, 0.0, 6.0) / 6.0,
        "nn.functional.logsigmoid": lambda x: -known.softplus(-x),
        "nn.functional.tanhshrink": tanhshrink,
        "nn.functional.softsign": lambda x: x / (w.abs_(floats(x)) + 1.0),
        "relu2": known.relu2,
    },
    unary,
)
table(
    {
        "nn.functional.elu": elu,
        "nn.functional.celu": celu,
        "nn.functional.gelu": gelu,
        "nn.functional.softplus": softplus,
        "nn.functional.leaky_relu": leaky_relu,
        "nn.functional.threshold": threshold,
        "nn.functional.softshrink": softshrink,
        "nn.functional.hardshrink": hardshrink,
        "nn.functional.hardtanh": lambda input, min_val=-1.0, max_val=1.0: _limited(input, min_val, max_val),
        "nn.functional.rrelu": rrelu,
    },
    pointwise,
)


@recipe("nn.functional.prelu")
def prelu(input: Shaped, weight: Shaped) -> MapDescriptor:
    """weight: one element, or one per channel (axis 1)."""
    draft = Draft(input.shape)
    x = draft.element("input", input)
    axes = (1,) if weight.numel > 1 and input.rank > 1 else ()
    if weight.numel not in (1, input.shape[axes[0]] if axes else 1):
        refuse("weight", "one element, or one per channel", weight.shape)
    slope = draft.along("weight", weight, axes if weight.numel > 1 else ())
    return draft.map(w.select(x > 0.0, x, x * slope), dtype=input.dtype)


@recipe("nn.functional.glu")
def glu(input: Shaped, dim: int = -1) -> MapDescriptor:
    """The first half of an axis times the sigmoid of the second half."""
    axis = axis_of("dim", dim, input.rank)
    if input.shape[axis] % 2:
        refuse("input", f"an even size along axis {axis}", input.shape)
    shape = list(input.shape)
    shape[axis] //= 2
    draft = Draft(shape)
    source, places = draft.source("input", input), draft.here()
    second = [place + w.extent(axis) if i == axis else place for i, place in enumerate(places)]
    return draft.map(source.at(places) * known.sigmoid(source.at(second)), dtype=input.dtype)
