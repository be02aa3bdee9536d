"""Operands of a layer of experts, and the problems of its steps."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from opfacade.core.descriptor import when_forgotten
from opfacade.core.dtypes import ITEMSIZE
from opfacade.core.operands import Contents, Dim, TensorSpec, index_spec
from opfacade.plans._composites.steps import Last, Step, problem
from opfacade.plans._gated.program import GATE, UP
from opfacade.plans._moe import coded, quantised
from opfacade.plans._moe.layer_fields import LayerFields
from opfacade.plans._moe.route import RouteDescriptor
from opfacade.plans._moe.rows import MoeCombineDescriptor, MoeGatherDescriptor
from opfacade.plans._moe.sort import MoeSortDescriptor
from opfacade.plans._weights.form import WeightForm
from opfacade.programs.activations import ACTIVATIONS, sigmoid
from opfacade.programs.expression import Node, apply, constant

_HELD = Last("indptr")  # the number of choices with a position


def operands(d: LayerFields) -> dict[str, TensorSpec]:
    rows, hidden = Dim("total_num_rows", d.total_num_rows), Dim("hidden", d.hidden)
    size = ITEMSIZE[d.dtype]
    row = TensorSpec((rows, hidden), d.dtype, "in", "rows", size)
    found = {"x": row, **_choice(d, rows)}
    local, wide, width = Dim("local experts", d.local), _wide(d, "width", d.width), Dim("width", d.width)
    found |= _weight(d, "up", (local,), wide, hidden) | _weight(d, "down", (local,), hidden, width)
    if d.scaling is not None:
        found |= quantised.weights(found, {"up": (local, wide, hidden), "down": (local, hidden, width)}, d.scaling)
    if d.weight_format is not None:
        for name, rows_of, k in (("up", wide, d.hidden), ("down", hidden, d.width)):
            found |= WeightForm(d.weight_format, (local,), rows_of, k, factors=(local,)).tensors(name)
    if d.bias:
        dtype = d.bias_dtype or d.dtype
        for name, columns in (("up_bias", wide), ("down_bias", hidden)):
            found[name] = TensorSpec((local, columns), dtype, "in", "contiguous", ITEMSIZE[dtype])
    if d.shared_width:
        shared = Dim("shared_width", d.shared_width)
        found |= _weight(d, "shared_up", (), _wide(d, "shared_width", d.shared_width), hidden)
        found |= _weight(d, "shared_down", (), hidden, shared)
    return found | ({"add": row} if d.add else {}) | {"out": row._replace(role="out")}


def _choice(d: LayerFields, rows: Dim) -> dict[str, TensorSpec]:
    """ids and weights, and the operands that determine them."""
    given = index_spec(rows, Dim("top_k", d.top_k), values=(-1, d.experts))
    if d.router is None:
        return {"ids": given, "weights": given._replace(dtype="f32", role="in", contents=Contents())}
    experts, size = Dim("experts", d.experts), ITEMSIZE[d.router.dtype]
    found = {"logits": TensorSpec((rows, experts), d.router.dtype, "in", "rows", size)}
    each = TensorSpec((experts,), "f32", "in", "contiguous", 4)
    found |= {"router_bias": each} if d.router.bias else {}
    found |= {"correction": each} if d.router.correction else {}
    made = given._replace(role="out", contents=Contents())
    return found | {"chosen_ids": made, "chosen_weights": made._replace(dtype="f32")}


def _ids(d: LayerFields) -> str:
    """The operand with the experts of each row."""
    return "ids" if d.router is None else "chosen_ids"


def _weights(d: LayerFields) -> str:
    return "weights" if d.router is None else "chosen_weights"


def _wide(d: LayerFields, name: str, width: int) -> Dim:
    return Dim(f"2*{name}", 2 * width) if d.gated else Dim(name, width)


def _weight(d: LayerFields, name: str, lead: tuple[Dim, ...], n: Dim, k: Dim) -> dict[str, TensorSpec]:
    axes = (n, k) if d.weight_layout == "nk" else (k, n)
    return {name: TensorSpec((*lead, *axes), d.dtype, "in", "rows", ITEMSIZE[d.dtype])}


@lru_cache(maxsize=256)
def steps(d: LayerFields) -> tuple[Step, ...]:
    shared = _shared(d) if d.shared_width else ()
    return (*_routed(d), *_experts(d), *shared, _combined(d))


when_forgotten(steps.cache_clear)  # the problems of cached steps hold specialization keys


def _routed(d: LayerFields) -> tuple[Step, ...]:
    """Routing and sorting."""
    fields = {"total_num_rows": d.total_num_rows, "top_k": d.top_k, "experts": d.experts}
    of_sort = {"ids": _ids(d), "indptr": "indptr", "order": "order", "x_rows": "x_rows", "places": "places"}
    sort = MoeSortDescriptor(**fields, first_expert=d.first_expert, num_local=d.num_local)
    found = (Step("sort", sort, of_sort),)
    if d.router is None:
        return found
    route = RouteDescriptor(**fields, **{name: getattr(d.router, name) for name in type(d.router).routing()})
    named = {"logits": "logits", "ids": "chosen_ids", "weights": "chosen_weights"}
    named |= {"bias": "router_bias"} if d.router.bias else {}
    named |= {"correction": "correction"} if d.router.correction else {}
    return (Step("route", route, named), *found)


def _experts(d: LayerFields) -> tuple[Step, ...]:
    """The steps from rows of x to `y`, the results of the experts."""
    many: dict[str, Any] = {"groups": d.local, "total_num_rows": d.total_num_rows * d.top_k, "dtype": d.dtype}
    many |= {"weight_layout": d.weight_layout, "bias": d.bias} | ({"bias_dtype": d.bias_dtype} if d.bias else {})
    at_input = d.weights_at == "input"
    gather = {} if at_input else {"gather": True, "num_x_rows": d.total_num_rows}
    up = {"x": "gathered" if at_input else "x", "weight": "up", "indptr": "indptr"}
    up |= {} if at_input else {"x_rows": "x_rows"}
    up |= {"bias": "up_bias"} if d.bias else {}
    down = {"x": "h", "weight": "down", "indptr": "indptr", "out": "y"} | ({"bias": "down_bias"} if d.bias else {})
    before = _gathered(d) if at_input else ()
    if d.scaling is not None:
        before = (*before, quantised.rows(d, "quantize", up["x"], d.hidden, _HELD if at_input else None))
        many |= quantised.products(d)
        up |= quantised.operands(up["x"], "up")
        down |= quantised.operands("h", "down")
    if d.weight_format is not None:
        many |= {"weight_format": d.weight_format}
        up, down = coded.named(d.weight_format, "up", up), coded.named(d.weight_format, "down", down)
    first = _activated(d, "up", "grouped_matmul", many | gather | {"k": d.hidden}, d.width, up, "h")
    if d.scaling is not None:
        first = quantised.results(d, first, _HELD)
    second = problem("grouped_matmul", **many, n=d.hidden, k=d.width)
    return (*before, *first, Step("down", second, down))


def _gathered(d: LayerFields) -> tuple[Step, ...]:
    """The step that gathers rows of x and multiplies them by the weights of choices."""
    fields = {"total_num_rows": d.total_num_rows, "top_k": d.top_k, "hidden": d.hidden, "dtype": d.dtype}
    tensors: dict[str, str | Last] = {"x": "x", "order": "order", "weights": _weights(d), "out": "gathered", "num_valid": _HELD}
    return (Step("gather", MoeGatherDescriptor(**fields, weighted=True, num_valid=True), tensors),)


def _shared(d: LayerFields) -> tuple[Step, ...]:
    """The steps of the shared expert; `add` is added to its result."""
    one = {"total_num_rows": d.total_num_rows, "dtype": d.dtype, "weight_layout": d.weight_layout}
    up = {"x": "x", "weight": "shared_up"}
    first = _activated(d, "shared_up", "matmul", one | {"k": d.hidden}, d.shared_width, up, "shared_h")
    second = problem("matmul", **one, n=d.hidden, k=d.shared_width, add=d.add)
    down = {"x": "shared_h", "weight": "shared_down", "out": "shared_y"} | ({"add": "add"} if d.add else {})
    return (*first, Step("shared_down", second, down))


def _combined(d: LayerFields) -> Step:
    weighted, added = d.weights_at == "output", "shared_y" if d.shared_width else "add" if d.add else None
    fields = {"total_num_rows": d.total_num_rows, "top_k": d.top_k, "hidden": d.hidden, "dtype": d.dtype}
    tensors = {"y": "y", "places": "places", "out": "out"}
    tensors |= ({"weights": _weights(d)} if weighted else {}) | ({} if added is None else {"add": added})
    return Step("combine", MoeCombineDescriptor(**fields, weighted=weighted, add=added is not None), tensors)


def _activated(
    d: LayerFields, name: str, op: str, fields: dict[str, Any], width: int, tensors: dict[str, str], out: str
) -> tuple[Step, ...]:
    """The product with `up` and the activation: one step if the product can apply the activation, otherwise two."""
    if d.limit is None and d.alpha is None and d.beta == 0 and (not d.gated or d.halves == "interleaved"):
        activation = "none" if d.activation == "identity" else d.activation
        one = problem(op, **fields, n=width, activation=activation, gated=d.gated)
        return (Step(name, one, tensors | {"out": out}),)
    product = problem(op, **fields, n=d.columns * width)
    rows, counted = fields["total_num_rows"], op == "grouped_matmul"
    act = problem("gated_activation", total_num_rows=rows, width=width, dtype=d.dtype, num_valid=counted, **_function(d))
    between: dict[str, str | Last] = {"x": f"{name}_out", "out": out}
    between |= {"num_valid": _HELD} if counted else {}
    kind = "activation" if counted else "shared_activation"
    return Step(name, product, tensors | {"out": f"{name}_out"}), Step(kind, act, between)


def _function(d: LayerFields) -> dict[str, Any]:
    """Fields of the activation. A nonzero beta gives swiglu_oai if that fits, otherwise a program that contains the numbers."""
    found: dict[str, Any] = {"gated": d.gated}
    found |= {"gate_first": d.halves != "up_gate", "interleaved": d.halves == "interleaved"} if d.gated else {}
    if d.beta == 0:
        return found | {"activation": d.activation, "limit": d.limit, "alpha": d.alpha}
    if d.beta == 1 and d.activation == "silu" and d.limit is not None:
        return found | {"activation": "swiglu_oai", "limit": d.limit, "alpha": 1.0 if d.alpha is None else d.alpha}
    return found | {"expression": _shifted(d)}


def _shifted(d: LayerFields) -> Node:
    """activation(gate) * (up + beta), in f32."""
    gate, up = GATE, UP
    if d.limit is not None:
        limit = constant(d.limit, "f32")
        gate, up = apply("minimum", gate, limit), apply("maximum", apply("minimum", up, limit), -limit)
    if d.alpha is not None:  # any gate below -200 / alpha gives 0
        made = apply("maximum", gate, constant(-200.0 / d.alpha, "f32")) * sigmoid(constant(d.alpha, "f32") * gate)
    else:
        made = gate if d.activation == "identity" else ACTIVATIONS[d.activation](gate)
    return made * (up + constant(d.beta, "f32"))
