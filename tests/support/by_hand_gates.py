"""Gated activations from their formulas in plain torch f64, with error bounds derived here and not by the library.

Each bound is relative to the value, also in the tails: a kernel whose relative error grows there exceeds the bound.
"""

import math

import torch

U = 2.0**-24


def share(y, relative, e, q):
    """(sigmoid(y), its relative error), if y has the relative error `relative`.

    d log sigmoid(y) = (1 - sigmoid(y)) dy. t = exp(-|y|) has the relative error e. It is the numerator if y < 0, and the
    fraction t / (1 + t) of the denominator, a sum with the rounding error u. The quotient has the error q.
    """
    value = torch.sigmoid(y)
    small = (-y.abs()).exp()
    of_exp = e * ((y < 0).double() + small / (1 + small))
    return value, (1 - value) * y.abs() * relative + of_exp + U + q


def silu(g, machine, alpha=None):
    """g * sigmoid(alpha g). The product alpha g, if there is an alpha, and the product with g round."""
    slope = 1.0 if alpha is None else alpha
    value, error = share(slope * g, 0.0 if alpha is None else U, machine["exp"], machine["div"])
    return g * value, error + U


def gelu(g, machine):
    """g Phi(g) = g erfc(z) / 2. The product z = -g / sqrt(2) rounds, and so does its constant.

    d log erfc(z) = -2 / sqrt(pi) exp(-z^2) / erfc(z) dz. erfc adds its own error. The product with 1/2 is exact; the product
    with g rounds.
    """
    z = -g * math.sqrt(0.5)
    slope = 2 / math.sqrt(math.pi) * (-z.square()).exp() / torch.special.erfc(z)
    return g * torch.special.erfc(z) / 2, slope * z.abs() * 2 * U + machine["erfc"] + 2 * U


def gelu_tanh(g, machine):
    """g / 2 (1 + tanh(y / 2)) = g sigmoid(y), y = 2 sqrt(2 / pi) (g + 0.044715 g^3): the form that keeps the tail in f64.

    The argument has a square, three products, a sum and two constants, each of which rounds.
    """
    y = 2 * math.sqrt(2 / math.pi) * (g + 0.044715 * g**3)
    value, error = share(y, 7 * U, machine["exp"], machine["div"])
    return g * value, error + U


def relu2(g, machine):
    return g.clamp(min=0).square(), U + 0 * g


def identity(g, machine):
    return g, 0 * g


PLAIN = {"silu": silu, "gelu": gelu, "gelu_tanh": gelu_tanh, "relu2": relu2, "identity": identity}


def gated(activation, gate, up, limit, alpha, machine):
    """(value, bound) of activation(gate) * up; swiglu_oai multiplies by up + 1, which rounds."""
    if limit is not None:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    if activation == "swiglu_oai" or alpha is not None:
        value, error = silu(gate, machine, 1.702 if alpha is None else alpha)
    else:
        value, error = PLAIN[activation](gate, machine)
    of_up = U if activation == "swiglu_oai" else 0.0
    up = up + 1 if activation == "swiglu_oai" else up
    value = value * up
    return value, value.abs() * (error + of_up + U)
