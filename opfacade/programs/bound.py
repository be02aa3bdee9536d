"""An error bound for a computed program: for each node, the value of real arithmetic and a radius.

The computed value lies in [v - r, v + r]. An exact node is evaluated to the bit and has r = 0. A step widens the radii of its
arguments over their intervals and adds its own rounding. If an inexact argument is within its radius of a discontinuity, the
new radius covers all outcomes: such an element is *undecided*. r is infinite if there is no bound: overflow, division by an
interval that contains 0, a pole.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from opfacade.programs import integers, jumps
from opfacade.programs.ball import Ball, aligned
from opfacade.programs.evaluate import Evaluation, Values, applied, narrowed
from opfacade.programs.expression import Node
from opfacade.programs.operations import COMPARISONS, FUNCTIONS, OPERATIONS, ROUNDINGS
from opfacade.programs.propagation import ARITHMETIC, FUNCTION_RADIUS, unknown
from opfacade.programs.types import FLOATS, INTEGERS, LARGEST, SATURATING, range_of

if TYPE_CHECKING:
    from torch import Tensor

TINY = {"f32": 2.0**-149, "f64": 2.0**-1074}


@dataclass(frozen=True, slots=True)
class Machine:
    """The rounding of a machine. u: unit roundoff by type. functions: relative error of a function by (name, type), also of
    "div" and "sqrt" if they are not correctly rounded. absolute: absolute error by (name, type). least: results below it may be
    flushed to 0."""

    u: Mapping[str, float]
    functions: Mapping[tuple[str, str], float] = field(default_factory=dict)
    absolute: Mapping[tuple[str, str], float] = field(default_factory=dict)
    least: float = TINY["f32"]

    def relative(self, op: str, type: str) -> float:
        return self.functions.get((op, type), self.u[type])


def machine_of(constants: Mapping[str, float]) -> Machine:
    """The machine that the constants of a SKU describe. The oracle is f64 too, so errors of f64 count twice."""
    u = {"f32": constants.get("u", 0.0), "f64": 2 * constants.get("u64", 2.0**-53)}
    functions, absolute = {}, {}
    for name, ulps in constants.items():
        word, _, function = name.partition(".")
        if word in ("ulp", "ulp64"):
            functions[function, "f32" if word == "ulp" else "f64"] = ulps * (2.0**-23 if word == "ulp" else 2.0**-51)
        if word in ("abs", "abs64"):
            absolute[function, "f32" if word == "abs" else "f64"] = ulps * (1 if word == "abs" else 2)
    return Machine(u, functions, absolute, least=constants.get("least", TINY["f32"]))


@dataclass
class Bounds:
    """The bounds of one evaluation; each node is computed once. balls: balls of inexact leaves, by name."""

    values: Values
    machine: Machine
    balls: Mapping[str, Ball] = field(default_factory=dict)
    # fused: exact float operations may be contracted to FMAs, unless an integer or bool depends on them, so they have radii
    # too. amend: changes the ball of each node: (node, ball) -> ball.
    fused: bool = False
    amend: Callable[[Node, Ball], Ball] = lambda node, ball: ball
    _known: dict[Node, Ball] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.exact = Evaluation(self.values)

    def __call__(self, node: Node) -> Ball:
        if node not in self._known:
            self._known[node] = self.amend(node, self._made(node))
        return self._known[node]

    def _made(self, node: Node) -> Ball:
        import torch

        loose = self.fused and node.kind == "apply" and node.type in FLOATS and not OPERATIONS[node.op].jumps
        if node.exact and not loose:
            value = _real(self.exact.own(node), node.type)
            return Ball(value, torch.zeros_like(value))
        if node.kind != "apply":
            return self.balls[node.data]
        args = [self(arg) for arg in node.args]
        if node.op == "select":
            return jumps.selected(*args)
        if node.op in COMPARISONS:
            return jumps.compared(node.op, *args)
        if node.type == "bool" and node.args[0].type == "bool":
            return jumps.combined(node.op, *args)
        if node.op in FLOATS:
            return self._rounded(node, Ball(*args[0]))
        if node.op in jumps.STEPS:
            return self._rounded(node, jumps.STEPS[node.op](*args)) if node.type in FLOATS else jumps.STEPS[node.op](*args)
        if node.op in ("as_bits", "from_bits"):
            return self._reinterpreted(node, args[0])
        if node.op in INTEGERS or node.type in INTEGERS or node.op == "bool":
            return self._integer(node, args)
        return self._float(node, args)

    def _float(self, node: Node, args: list[Ball]) -> Ball:
        if node.op in ROUNDINGS:
            return stored(args[0], node.op.removeprefix("round_"))
        if node.op in FUNCTION_RADIUS:
            v = applied(node.op, node, [arg.v for arg in args], args[0].v.dtype)
            ball, lost = Ball(v, FUNCTION_RADIUS[node.op](v, *args)), unknown(node.op, node.type, args[0].v)
            ball = ball if lost is None else Ball(v, ball.r.masked_fill(lost, math.inf))
        else:
            ball = ARITHMETIC[node.op](*args)
        return self._rounded(node, _where_certain(ball, args))

    def _rounded(self, node: Node, ball: Ball) -> Ball:
        """The ball widened by the rounding of one step; infinite if the result may exceed the largest float of its type."""
        v, r = ball
        free = node.op in ("neg", "abs", "min", "max", "minimum", "maximum", "fmin", "fmax", *jumps.STEPS) and node.op != "mod"
        widening = node.op == "f64" and node.args[0].type == "f32"
        if not (free or widening):
            least = (
                TINY["f64"]
                if node.type == "f64"
                else self.machine.least
                if node.op in (*FUNCTIONS, "div", "sqrt")
                else TINY["f32"]
            )
            certain = ~v.isfinite() & (r == 0)
            r = (r + self.machine.relative(node.op, node.type) * (v.abs() + r) + least).masked_fill(certain, 0.0)
            r = r + self.machine.absolute.get((node.op, node.type), 0.0)
        r = r.nan_to_num(nan=math.inf, posinf=math.inf)
        return Ball(v, r.masked_fill(v.isfinite() & (v.abs() + r > LARGEST[node.type]), math.inf))

    def _reinterpreted(self, node: Node, arg: Ball) -> Ball:
        """The bit pattern of an inexact number has no bound."""
        whole = arg.v if node.args[0].type in FLOATS else arg.v.nan_to_num(0.0).long()
        v = _real(applied(node.op, node, [whole], None), node.type)
        return Ball(v, arg.r.new_zeros(v.shape).masked_fill(arg.r > 0, math.inf))

    def _integer(self, node: Node, args: list[Ball]) -> Ball:
        """Integer results: conversions are discontinuous, arithmetic propagates radii, and other operations have no bound
        unless arguments are exact."""
        import torch

        if node.op in ("add", "sub", "mul", "neg", "abs", "min", "max", "minimum", "maximum"):
            found = ARITHMETIC[node.op](*args)
        elif node.op in INTEGERS and node.args[0].type in FLOATS:
            return jumps.truncated(args[0], node.op)
        elif node.op in INTEGERS:
            found = args[0]
        elif node.op == "bool":
            zero, certain = args[0].v.abs() <= args[0].r, args[0].r == 0
            return Ball((args[0].v != 0).double(), (zero & ~certain).double())
        else:
            whole = [
                arg.v.nan_to_num(0.0).long() if one.type != "bool" else arg.v != 0
                for arg, one in zip(args, node.args, strict=True)
            ]
            v = _real(applied(node.op, node, whole, None), node.type)
            rough = torch.stack(aligned(*(arg.r for arg in args))).amax(0) > 0
            return Ball(v, torch.zeros_like(v).masked_fill(rough, math.inf))
        least, most = range_of(node.type)
        beyond = (found.v - found.r < least) | (found.v + found.r > most)
        return Ball(found.v, found.r.masked_fill(beyond, math.inf))


def _real(value: Tensor, type: str) -> Tensor:
    import torch

    return integers.as_float(value, torch.float64) if type == "u64" else value.double()


def _where_certain(ball: Ball, args: list[Ball]) -> Ball:
    """A non-finite value of exact arguments is exact."""
    certain = ~ball.v.isfinite()
    for arg in args:
        certain = certain & (arg.r == 0)
    return Ball(ball.v, ball.r.masked_fill(certain, 0.0))


def stored(ball: Ball, dtype: str) -> Ball:
    """The ball of a stored element: rounded once; beyond the largest number it saturates or has no bound."""
    from opfacade.core.dtypes import ROUNDOFF, UNDERFLOW

    v, r = ball
    if dtype == "f8_e8m0":
        return jumps.to_powers(ball)
    if dtype in SATURATING:
        v = v.clamp(-LARGEST[dtype], LARGEST[dtype])
    exact = r == 0
    wide = r + ROUNDOFF[dtype] * (v.abs() + r) + UNDERFLOW[dtype]
    beyond = v.isfinite() & (v.abs() + wide > LARGEST[dtype])
    wide = wide if dtype in SATURATING else wide.masked_fill(beyond, math.inf)
    near = narrowed(v, dtype)
    return Ball(near.where(exact, v), wide.masked_fill(exact, 0.0))
