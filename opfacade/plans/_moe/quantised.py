"""Experts in f8_e4m3: the scales of their weights, and the steps that quantise the rows they are multiplied by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opfacade.core.operands import Dim, TensorSpec
from opfacade.plans._composites.steps import Last, Step, problem
from opfacade.plans._matmul.scaling import BLOCK, Scaling
from opfacade.plans._moe.layer_fields import LayerFields
from opfacade.plans._quantize.quant import Quant

_DTYPE = "f8_e4m3"


def weights(found: Mapping[str, TensorSpec], axes: Mapping[str, tuple[Dim, Dim, Dim]], scaling: str) -> dict[str, TensorSpec]:
    """Weights in f8_e4m3, and their scales. axes: experts, rows and k of each weight."""
    made = {name: found[name]._replace(dtype=_DTYPE, alignment=1) for name in axes}
    for name, (experts, n, k) in axes.items():
        dims = (experts, n) if scaling == "token" else (experts, _blocks(n), _blocks(k))
        made[f"{name}_scale"] = TensorSpec(dims, "f32", "in", "strided", 4)
    return made


def _blocks(dim: Dim) -> Dim:
    return Dim(f"{dim.name} / {BLOCK}", -(-(dim.size or 0) // BLOCK))


def _quant(d: LayerFields) -> Quant:
    return Quant(dtype=_DTYPE, scale="token" if d.scaling == "token" else "group", group=BLOCK)


def products(d: LayerFields) -> dict[str, Any]:
    """Fields of both products."""
    return {"dtype": _DTYPE, "out_dtype": d.dtype, "scaling": Scaling(kind="token" if d.scaling == "token" else "block")}


def operands(x: str, weight: str) -> dict[str, str]:
    """Operands of a product with the quantised `x`."""
    return {"x": f"{x}_8", "x_scale": f"{x}_scale", "weight_scale": f"{weight}_scale"}


def rows(d: LayerFields, name: str, x: str, hidden: int, held: Last | None) -> Step:
    """The step that quantises x: total_num_rows rows, or with `held`, the number of choices, one row per choice."""
    many = d.total_num_rows * (1 if held is None else d.top_k)
    one = problem("quantize", total_num_rows=many, hidden=hidden, dtype=d.dtype, quant=_quant(d), num_valid=held is not None)
    tensors: dict[str, str | Last] = {"x": x, "out": f"{x}_8", "scale": f"{x}_scale"}
    return Step(name, one, tensors | ({} if held is None else {"num_valid": held}))


def results(d: LayerFields, first: tuple[Step, ...], held: Last) -> tuple[Step, ...]:
    """The steps of the first product, with quantised results: by the activation if that is a step, otherwise by an additional
    step."""
    *before, last = first
    if last.name != "activation":
        return (*first, rows(d, "quantize_h", "h", d.width, held))
    made = last.problem.model_copy(update={"quant": _quant(d)}).revalidated()
    return (*before, Step(last.name, made, {**last.tensors, "out": "h_8", "scale": "h_scale"}))
