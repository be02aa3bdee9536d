"""Evaluation of an expression in fp64 with a bound on its f32 error: the oracle's side of `Variant.logits`.

The bound is that of `opfacade.programs.bound`. The score has the radius of q.k. The bound covers the transformations that
kernels may make: they contract products and sums, and compute a linear term over the keys of a row from the first key of a
tile.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from opfacade.plans._attention.expression import Apply, Node
from opfacade.plans._attention.variant import RAMP_KEYS, added_ramp, ramp
from opfacade.plans._attention.variant_eval import Values, exact, leaves_of, node_of
from opfacade.programs import expression
from opfacade.programs.ball import Ball
from opfacade.programs.bound import Bounds, Machine

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Ball", "Roundoff", "bound"]

_TINY = 2.0**-149
_LARGEST = (2.0 - 2.0**-23) * 2.0**127


@dataclass(frozen=True, slots=True)
class Roundoff:
    """u: unit roundoff of one operation. function: relative error of exp2 and log2, absolute error of tanh. line: 1 if logits
    are the score plus a ramp, and the ramp is added in the exponents."""

    u: float
    function: float
    line: float = 0.0

    @property
    def machine(self) -> Machine:
        relative = {("exp2", "f32"): self.function, ("log2", "f32"): self.function, ("tanh", "f32"): 0.0}
        return Machine({"f32": self.u}, relative, {("tanh", "f32"): self.function})


def bound(node: Node, values: Values, score: Ball, unit: Roundoff) -> Ball:
    """The expression at `score`, with its error; `values` broadcast to the shape of `score`."""
    parts = {node_of(part): part for _, part in node.walk()}

    def amend(one: expression.Node, found: Ball) -> Ball:
        return _besides(parts[one], found, values, unit)

    found = Bounds(leaves_of(values), unit.machine, {"score": score}, fused=True, amend=amend)(node_of(node))
    if unit.line and (line := added_ramp(node)) is not None:
        # Products are in units of exponents, relative to a base: each has an additional rounding, and so has the converted
        # first one.
        found = Ball(found.v, found.r + 3 * unit.u * _first_product(line, values))
    return Ball(found.v.expand(score.v.shape), found.r.expand(score.v.shape))


def _besides(node: Node, found: Ball, values: Values, unit: Roundoff) -> Ball:
    """Adds the error of a conversion that is computed once for the first key, and of a linear term whose product is rounded
    before the sum."""
    if isinstance(node, Apply) and node.op == "f32":
        value = exact(node.args[0], values).double()
        return Ball(value, (unit.u * value.abs()).masked_fill(value.abs() <= 2.0**24, 0.0))
    if ramp(node) is None:
        return found
    start = _first_product(node, values)
    return Ball(found.v, (found.r + unit.u * start + _TINY).masked_fill(start > _LARGEST, float("inf")))


def _first_product(node: Node, values: Values) -> Tensor:
    """For a linear term: the largest value that a kernel may compute once per row and tile."""
    line = ramp(node)
    assert line is not None
    factor, distance = (exact(part, values).double().abs() for part in line)
    return factor * (distance + RAMP_KEYS)
