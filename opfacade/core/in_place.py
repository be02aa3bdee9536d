"""in_place: the operands of a call that overwrites inputs instead of writing outputs."""

from __future__ import annotations

from collections.abc import Mapping

from opfacade.core.operands import TensorSpec
from opfacade.core.strides import Layout


def in_place(operands: Mapping[str, TensorSpec]) -> dict[str, TensorSpec]:
    """Each output that `replaces` an input is absent, and that input has role inout.

    The input satisfies the layout and alignment of both. Equal addresses never mean in place: a call that passes the input as
    its output is refused, with or without in_place.
    """
    outputs = {spec.replaces: spec for spec in operands.values() if spec.replaces}
    kept = {name: spec for name, spec in operands.items() if not spec.replaces}
    return {name: _overwritten(spec, outputs[name]) if name in outputs else spec for name, spec in kept.items()}


def _overwritten(given: TensorSpec, out: TensorSpec) -> TensorSpec:
    layouts: tuple[Layout, ...] = ("contiguous", "rows", "strided")
    strictest = min(given.layout, out.layout, key=layouts.index)
    return given._replace(role="inout", layout=strictest, alignment=max(given.alignment, out.alignment), broadcast=None)
