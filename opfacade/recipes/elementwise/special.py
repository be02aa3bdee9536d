"""Special functions of CUDA, and functions composed of them."""

from __future__ import annotations

import math
from collections.abc import Callable

from opfacade.programs import words as w
from opfacade.programs.expression import Node, constant
from opfacade.recipes._pointwise import floats, unary
from opfacade.recipes._recipe import table


def log_ndtr(x: Node) -> Node:
    """Below -1, it is computed from the scaled tail, which does not underflow."""
    root = math.sqrt(0.5)
    tail = w.log(w.erfcx(x * -root) * 0.5) - x * x * 0.5
    return w.select(x < -1.0, tail, w.log1p(w.erfc(x * root) * -0.5))


def scaled(order: int) -> Callable[[Node], Node]:
    """exp(-|x|) * bessel_i(x): computed as this product where it does not overflow, and by the asymptotic series elsewhere."""
    function = (w.bessel_i0, w.bessel_i1)[order]

    def make(x: Node) -> Node:
        far, terms = (32.0, 6) if floats(x).type == "f32" else (600.0, 8)
        size = w.abs_(x)
        near = function(x) * w.exp(-size)
        inverse = 1.0 / w.maximum(size, far)
        series = constant(_series(order, terms)[-1], x.type)
        for factor in _series(order, terms)[-2::-1]:
            series = series * inverse + factor
        found = series * w.sqrt(inverse * (1 / (2 * math.pi)))
        return w.select(size < far, near, w.select(w.isnan(x), x, w.copysign(found, x) if order else found))

    return make


def _series(order: int, terms: int) -> list[float]:
    found = [1.0]
    for k in range(terms):
        found.append(found[-1] * ((2 * k + 1) ** 2 - 4 * order * order) / (8 * (k + 1)))
    return found


table(
    {
        "erfinv": w.erfinv,
        "special.erfcx": w.erfcx,
        "special.ndtri": w.ndtri,
        "special.log_ndtr": log_ndtr,
        "i0 special.modified_bessel_i0": w.bessel_i0,
        "special.i1 special.modified_bessel_i1": w.bessel_i1,
        "special.i0e": scaled(0),
        "special.i1e": scaled(1),
        "special.bessel_j0": w.bessel_j0,
        "special.bessel_j1": w.bessel_j1,
        "special.bessel_y0": w.bessel_y0,
        "special.bessel_y1": w.bessel_y1,
    },
    unary,
)
