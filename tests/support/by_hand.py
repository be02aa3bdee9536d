"""Named ops from their formulas in plain torch f64, each with an error bound that is derived here and not by the library.

u is the rounding of f32, 2^-24. steps: roundings that a term of a sum passes. Each gives (value, bound, own): own is how far an
evaluation in f64 may be, in which differences and squares of elements of f32 are f32, as they are on every machine.
"""

import torch

U = 2.0**-24


def softmax(x, log, steps, e, temperature=None, q=U):
    """Rows of f32, -inf where a mask hides. d is a score minus the largest, rounded once; e is the relative error of exp.

    exp(d) errs by |d| u from d, by as much from its own argument, and by e. A term of the sum is rescaled and rounded at most
    `steps` times. Then there is a quotient, or a logarithm, whose result errs by u and by what its argument has. Behind a
    temperature each score is a quotient that errs by q, and so does the largest one.
    """
    y = x.double() if temperature is None else x.double() / temperature
    most = y.amax(-1, keepdim=True)
    seen = y > -torch.inf
    d, size = torch.where(seen, y - most, 0.0), torch.where(seen, y.abs() + most.abs(), 0.0)
    scaled = 0.0 if temperature is None else 1.0
    of_d, own = U * d.abs() + scaled * q * size, U * d.abs() + scaled * U * size
    term = d.exp() * seen
    total = term.sum(-1, keepdim=True)
    moved = (term * (of_d + 2 * U * d.abs() + (steps + 1) * (e + 2 * U))).sum(-1, keepdim=True) / total
    far = 2 * own.amax(-1, keepdim=True)
    if log:
        value = torch.where(seen, d - total.log(), -torch.inf)
        return value, of_d + U * (d.abs() + value.abs()) + moved + 4 * U * total.log().abs(), far
    return term / total, term / total * (of_d + 2 * U * d.abs() + e + moved + 4 * U), term / total * far


def rms(x, weight, eps, steps, e):
    """Rows of f32; e is the relative error of the reciprocal root.

    A square and each of at most `steps` sums round by u, and so do the mean and the sum with eps: half of that reaches the
    reciprocal root, which adds e. Two products follow.
    """
    y = x.double()
    value = y / (y.square().mean(-1, keepdim=True) + eps).sqrt() * weight.double()
    return value, value.abs() * (((steps + 1) * U + 2 * U) / 2 + e + 2 * U), value.abs() * U
