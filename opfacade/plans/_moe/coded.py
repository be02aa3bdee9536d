"""Experts whose weights are codes of few bits: the operands of both products."""

from __future__ import annotations

from collections.abc import Mapping

from opfacade.core.operands import Dim, TensorSpec
from opfacade.plans._weights import weight as _weight
from opfacade.plans._weights.weight import Weight


def operands(weight: Weight, name: str, experts: Dim, n: Dim, k: int) -> dict[str, TensorSpec]:
    """The operands of one weight of all experts, with their names in the layer."""
    found = _weight.operands(weight, (experts,), n, k)
    if weight.global_scale:
        found["weight_global"] = found["weight_global"]._replace(shape=(experts,))
    return {part.replace("weight", name): spec for part, spec in found.items()}


def named(weight: Weight, name: str, tensors: Mapping[str, str]) -> dict[str, str]:
    """Operands of a product, including the scales and zero points of its codes."""
    more = {"weight_scale": f"{name}_scale"}
    more |= {"weight_zero": f"{name}_zero"} if weight.zero != "none" else {}
    more |= {"weight_global": f"{name}_global"} if weight.global_scale else {}
    return {**tensors, **more}
