"""The results of a layer for given experts of its rows, computed step by step with bounds.

Each step is a ball: the value in real arithmetic, and a bound on the error of a machine as the radius. The radius of a product
of inexact rows is the product of their radii with the sizes of the weight, plus the error of the product's own sums for the
largest possible rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from opfacade.plans._matmul.values import leaves_of
from opfacade.plans._programs.values import numbers_of
from opfacade.plans.activation import GatedActivationDescriptor
from opfacade.plans.matmul import MatmulArgs, MatmulDescriptor
from opfacade.plans.moe import FusedMoeArgs, FusedMoeDescriptor
from opfacade.programs import bound
from opfacade.programs.ball import Ball
from opfacade.programs.evaluate import Values
from opfacade.programs.expression import Node, apply, stage
from opfacade.testing.families import _moe_quantised as quantised
from opfacade.testing.families._matmul_grouped import product_of
from opfacade.testing.families._matmul_sums import sums_of
from opfacade.testing.families._matmul_weights import weight_of
from opfacade.testing.families.matmul import behind

if TYPE_CHECKING:
    from torch import Tensor


def layer_of(d: FusedMoeDescriptor, args: FusedMoeArgs, constants: Mapping[str, float], rows: Sequence[int]) -> Ball:
    """The output of some rows, for the ids and weights in args."""
    import torch

    steps = {step.name: step.problem for step in d.steps()}
    given = d.router is None
    ids = (args.ids if given else args.chosen_ids)[list(rows)].tolist()
    of_rows = (args.weights if given else args.chosen_weights)[list(rows)].double()
    zero = torch.zeros(len(rows), d.hidden, dtype=torch.float64, device=args.x.device)
    total, sizes, radius = zero, zero.clone(), zero.clone()
    for expert in range(d.local):
        for slot in range(d.top_k):
            at = [i for i in range(len(rows)) if ids[i][slot] == d.first_expert + expert]
            if not at:
                continue
            factor = of_rows[at, slot, None]
            made = _expert(d, steps, args, constants, (expert, [rows[i] for i in at], factor))
            factor = factor if d.weights_at == "output" else torch.ones_like(factor)
            total[at] += factor * made.v
            sizes[at] += factor.abs() * (made.v.abs() + made.r)
            radius[at] += factor.abs() * made.r
    return _summed(d, steps, args, constants, (list(rows), total, sizes, radius))


def _summed(
    d: FusedMoeDescriptor,
    steps: Mapping[str, Any],
    args: FusedMoeArgs,
    constants: Mapping[str, float],
    of_slots: tuple[list[int], Tensor, Tensor, Tensor],
) -> Ball:
    """The sum over slots, the shared expert and the operand add, as the layer stores it."""
    rows, total, sizes, radius = of_slots
    added = _added(d, steps, args, constants, rows)
    if added is not None:
        total, sizes, radius = total + added.v, sizes + added.v.abs() + added.r, radius + added.r
    c = own(constants, "combine")
    return bound.stored(Ball(total, radius + (d.top_k + 3) * (c["u_acc"] * sizes + c.get("least", 2.0**-1000))), d.dtype)


def _added(
    d: FusedMoeDescriptor, steps: Mapping[str, Any], args: FusedMoeArgs, c: Mapping[str, float], rows: list[int]
) -> Ball | None:
    """The sum of the shared expert and the operand add, which is an input of the combination."""
    if not d.shared_width:
        return _exact(args.add[rows]) if d.add else None
    h = _product(steps["shared_up"], _exact(args.x[rows]), {"weight": args.shared_up}, own(c, "shared_up"))
    h = _activated(steps.get("shared_activation"), h, own(c, "shared_activation"))
    given = {"weight": args.shared_down} | ({"add": args.add[rows]} if d.add else {})
    return _product(steps["shared_down"], h, given, own(c, "shared_down"))


def _expert(
    d: FusedMoeDescriptor,
    steps: Mapping[str, Any],
    args: FusedMoeArgs,
    c: Mapping[str, float],
    choice: tuple[int, list[int], Tensor],
) -> Ball:
    """The results of one expert for the rows that chose it."""
    expert, rows, factor = choice
    x = _exact(args.x[rows])
    if d.weights_at == "input":
        v = x.v * factor
        of = own(c, "gather")
        x = bound.stored(Ball(v, 2 * of["u_acc"] * v.abs() + of.get("least", 2.0**-1000)), d.dtype)
    up, down = {"weight": args.up[expert]}, {"weight": args.down[expert]}
    first, second = product_of(steps["up"]), product_of(steps["down"])
    if d.scaling is not None:
        up = {"weight": quantised.weight_of(first, args.up[expert], args.up_scale[expert])}
        down = {"weight": quantised.weight_of(second, args.down[expert], args.down_scale[expert])}
        x = quantised.stored(x, d.scaling)
    if d.weight_format is not None:
        up, down = (coded_weight(one, args, name, expert) for one, name in ((first, "up"), (second, "down")))
        first, second = (one.model_copy(update={"weight_format": None}) for one in (first, second))
    if d.bias:
        up, down = up | {"bias": args.up_bias[expert]}, down | {"bias": args.down_bias[expert]}
    h = _product(first, x, up, own(c, "up"))
    h = _activated(steps.get("activation"), h, own(c, "activation"))
    h = h if d.scaling is None else quantised.stored(h, d.scaling)
    return _product(second, h, down, own(c, "down"))


def coded_weight(problem: MatmulDescriptor, args: FusedMoeArgs, name: str, expert: int) -> dict[str, Tensor]:
    """The numbers of one weight of an expert, and bounds on the errors of the rounded numbers."""
    whole = getattr(args, f"{name}_global")
    given = {part: getattr(args, f"{name}_{part}") for part in ("scale", "zero")}
    call = MatmulArgs(
        weight=getattr(args, name)[expert],
        weight_scale=given["scale"][expert],
        weight_zero=None if given["zero"] is None else given["zero"][expert],
        weight_global=None if whole is None else whole[expert : expert + 1],
    )
    numbers, room = weight_of(problem, call)
    return {"weight": numbers.mT, "room": room}


def own(constants: Mapping[str, float], step: str) -> dict[str, float]:
    """The error constants of one step."""
    found = (name.partition(".")[::2] for name in constants)
    return {name: constants[f"{first}.{name}"] for first, name in found if first == step}


def _exact(tensor: Tensor) -> Ball:
    return Ball(tensor.double(), tensor.double() * 0)


def _product(problem: MatmulDescriptor, x: Ball, given: Mapping[str, Tensor], c: dict[str, float]) -> Ball:
    weight = given["weight"]
    w = weight.double() if problem.weight_layout == "kn" else weight.double().mT
    value = x.v @ w
    most: Any = quantised.unscaled(problem, x.v.abs() + x.r, weight.abs())
    radius = sums_of(problem, most, c).hard + x.r @ w.abs()
    if "room" in given:
        radius = radius + (x.v.abs() + x.r) @ given["room"]
    rest = {name: one for name, one in given.items() if name not in ("weight", "room")}
    leaves = leaves_of(problem, replace(most, x=None, weight=None, **rest, out=value))
    return behind(problem, leaves, (value, radius), c)


def _activated(problem: GatedActivationDescriptor | None, x: Ball, c: dict[str, float]) -> Ball:
    """The activation of inexact gates and ups; the input is returned if the product already applied it."""
    if problem is None:
        return x
    values, radii = problem.views(x.v), problem.views(x.r)
    balls: Any = {(at, "value"): Ball(values[name], radii[name]) for at, name in enumerate(problem.parts)}
    leaves: Any = numbers_of(problem.scalars, x.v.device)
    bounds = bound.Bounds(Values(leaves, x.v.device), bound.machine_of(c), balls)
    found = bounds(_inexact(problem.program()["out"], problem.parts))
    return found if problem.quant is not None else bound.stored(found, problem.out_dtype)


def _inexact(node: Node, parts: Sequence[str]) -> Node:
    """The program with its inputs replaced by inexact results."""
    if node.kind == "input":
        return stage(parts.index(node.data), "f32")
    return apply(node.op, *(_inexact(arg, parts) for arg in node.args)) if node.kind == "apply" else node
