"""The epilogue of a product as a program, which is applied to a sum before it is stored."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Literal

from opfacade.plans._matmul.checks import EIGHT_BIT_RESULTS
from opfacade.programs.activations import ACTIVATIONS
from opfacade.programs.expression import Node, apply, scalar, stage, value
from opfacade.programs.fields import Number

if TYPE_CHECKING:
    from opfacade.plans._matmul.fields import ProductFields

Activation = Literal["none", "relu", "relu2", "sigmoid", "silu", "gelu", "gelu_tanh", "tanh"]


def sums(kind: Literal["f32", "f64"], count: int) -> tuple[Node, ...]:
    """The sums over k for one result: a single sum, or those of gate and up."""
    return tuple(stage(i, kind) for i in range(count))


@lru_cache(maxsize=1024)
def epilogue(problem: ProductFields) -> Node:
    """The value of out as a program of the sums, the inputs bias, x_scale, weight_scale, add, before (the old out) and
    out_scale, and the scalars alpha and beta. If a result has two columns, names of the second end in _up."""
    kind = problem.math
    parts = [_linear(problem, one, end) for one, end in zip(sums(kind, problem.columns), ("", "_up"), strict=False)]
    found = parts[0] if problem.activation == "none" else ACTIVATIONS[problem.activation](parts[0])
    if problem.gated:
        found = found * parts[1]
    for name, there in (("add", problem.add), ("before", problem.accumulate)):
        if there:
            found = found + scalar("beta", kind) * value(name, kind)
    if problem.result not in EIGHT_BIT_RESULTS:
        return found
    quotient = found / value("out_scale", kind)
    return apply("i8", apply("rint", quotient)) if problem.result == "i8" else quotient


def _linear(problem: ProductFields, found: Node, end: str) -> Node:
    """alpha * sum + bias of one column."""
    kind = problem.math
    if problem.scaling is not None and not problem.scaling.in_k:
        found = found * value("x_scale", kind)
        found = found * value(f"weight_scale{end}", kind) if problem.weight_format is None else found
    found = found * scalar("alpha", kind)
    return found + value(f"bias{end}", kind) if problem.bias else found


def numbers(problem: ProductFields) -> tuple[Number, ...]:
    """The scalars of the epilogue."""
    names = ("alpha", "beta") if problem.add or problem.accumulate else ("alpha",)
    return tuple(Number(name=name, value=getattr(problem, name), type=problem.math) for name in names)
