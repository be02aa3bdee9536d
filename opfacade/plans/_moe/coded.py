"""Experts whose weights are codes of few bits: the operands of a product in the layer."""

from __future__ import annotations

from collections.abc import Mapping

from opfacade.plans._weights.weight import Weight


def named(weight: Weight, name: str, tensors: Mapping[str, str]) -> dict[str, str]:
    """Operands of a product, including the scales and zero points of its codes."""
    more = {"weight_scale": f"{name}_scale"}
    more |= {"weight_zero": f"{name}_zero"} if weight.zero != "none" else {}
    more |= {"weight_global": f"{name}_global"} if weight.global_scale else {}
    return {**tensors, **more}
