"""Norms from their formulas in plain torch f64, with error bounds derived here and not by the library.

u is the rounding of f32. Each bound is of first order: terms in u squared are left out, so a test leaves a little room.
"""

from dataclasses import dataclass

import torch

U = 2.0**-24


@dataclass(frozen=True)
class Rounding:
    """A machine. u: of a sum, a difference or a product; q, e: relative errors of a quotient and of the reciprocal root; steps:
    roundings that a term of a sum of so many passes; square: of the square of an element of f32, which is f32 everywhere."""

    u: float
    q: float
    e: float
    steps: float
    square: float = U


# An evaluation in f64, in which only what is exact in f32 rounds.
REAL = Rounding(0.0, 0.0, 0.0, 0.0)


def normed(s, error, kind, eps, by):
    """(value, bound) of (s - mean) / sqrt(variance + eps) along the last axis. error: of s, absolute.

    mean: its terms pass `steps` sums and one quotient, and have the errors of s. d = s - mean rounds once. variance: the mean
    of d^2, each of which errs by 2 |d| times the error of d and rounds, then the sums and the quotient. eps is added, rounded.
    Half of the relative error of that sum reaches the reciprocal root, which adds e; the product rounds.
    """
    average = lambda x: x.mean(-1, keepdim=True)  # noqa: E731
    if kind == "layer":
        mean = average(s)
        of_mean = average(error) + by.steps * by.u * average(s.abs()) + by.q * mean.abs()
        d = s - mean
        of_d = error + of_mean + by.u * d.abs()
    else:
        d, of_d = s, error
    square = max(by.u, by.square if kind == "rms" else 0.0)
    variance = average(d.square())
    of_variance = average(2 * d.abs() * of_d) + (by.steps * by.u + square + by.q) * variance
    under = variance + eps
    of_under = of_variance + by.u * under
    root = under.rsqrt()
    value = d * root
    return value, value.abs() * (of_under / (2 * under) + by.e + by.u) + of_d * root


def weighted(value, bound, weight, bias, by):
    """Times the weight, plus the bias: each rounds once."""
    if weight is not None:
        value, bound = value * weight, bound * weight.abs() + by.u * (value * weight).abs()
    if bias is not None:
        value = value + bias
        bound = bound + by.u * value.abs()
    return value, bound


def summed(x, residual, how):
    """(s, what residual holds, error of s in f64) of x + residual: in f32, or rounded to their dtype by torch's own sum."""
    exact = x.double() + residual.double()
    if how == "rounded":
        rounded = x + residual
        return rounded.double(), rounded, torch.zeros_like(exact)
    return exact, (x.float() + residual.float()).to(x.dtype), U * exact.abs()


def one_plus(weight):
    """1 + weight is rounded in f32, whatever multiplies by it."""
    return (1.0 + weight.float()).double()


def certain(value, own, dtype):
    """The value as dtype, and where it is certain: everything within `own` rounds to the same number."""
    low, high = ((value + sign * own).to(torch.float32).to(dtype) for sign in (-1, 1))
    return low, low == high
