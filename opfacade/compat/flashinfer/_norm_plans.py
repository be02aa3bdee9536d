"""Plans for FlashInfer's norms of rows, and of heads whose rows have no common stride."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from opfacade import Plan
from opfacade.compat.dtypes import float_name, fp8_name
from opfacade.compat.flashinfer._rows import require_out, same_memory
from opfacade.compat.refusals import number, require_tensor
from opfacade.compat.selecting import plan_for
from opfacade.plans.norm import NormArgs, NormDescriptor
from opfacade.plans.norm import flashinfer as rounded_once
from opfacade.plans.quantize import Quant, QuantizeArgs, QuantizeDescriptor
from opfacade.plans.reduction import FoldArgs, FoldDescriptor
from opfacade.programs.words import exp


class Norm(NamedTuple):
    """weight [hidden], eps, and the field `weight` of NormDescriptor."""

    weight: torch.Tensor
    eps: float
    form: str = "scale"

    def facts(self, op: str, x: torch.Tensor, **more: object) -> tuple[Any, ...]:
        """The shape of x, and the fields of NormDescriptor. more: further fields."""
        require_tensor(op, "weight", self.weight, "hidden")
        dtype = None if self.weight.dtype == x.dtype else float_name(op, "weight", self.weight)
        given = {
            "dtype": float_name(op, "input", x),
            "weight_dtype": dtype,
            "eps": number(op, "eps", self.eps),
            "weight": self.form,
        }
        return (tuple(x.shape), tuple((given | more).items()))


def normed(op: str, x: torch.Tensor, out: torch.Tensor | None, norm: Norm) -> torch.Tensor:
    """x `[rows, hidden]` or `[batch, heads, hidden]`, normalised along its last axis."""
    in_heads = isinstance(x, torch.Tensor) and x.dim() > 2
    require_tensor(op, "input", x, "batch, heads, hidden" if in_heads else "rows, hidden")
    y = torch.empty_like(x) if out is None else out
    require_out(op, y, x.shape)
    rows, made, in_place = _rows(x), _rows(y), same_memory(x, y)
    if rows is None or made is None:
        plan = plan_for(_of_heads, norm.facts(op, x, in_place=in_place), x.device)
        plan.run(FoldArgs(inputs=(x, norm.weight), outputs=() if in_place else (y,)))
    else:
        plan = plan_of_rows(op, rows, norm, in_place=in_place)
        plan.run(NormArgs(x=rows, weight=norm.weight, out=None if in_place else made))
    return y


def normed_silu(op: str, x: torch.Tensor, out: torch.Tensor, norm: Norm) -> torch.Tensor:
    """silu of the norm of x `[rows, hidden]`; out has the dtype of x, or fp8."""
    require_tensor(op, "input", x, "rows, hidden")
    require_out(op, out, x.shape)
    dtype = float_name(op, "input", x) if out.dtype == x.dtype else fp8_name(op, "out", out)
    in_place = same_memory(x, out)
    plan = plan_for(_of_silu, (dtype, norm.facts(op, x, in_place=in_place)), x.device)
    plan.run(FoldArgs(inputs=(x, norm.weight), outputs=() if in_place else (out,)))
    return out


def plan_of_rows(op: str, x: torch.Tensor, norm: Norm, **more: object) -> Plan[Any]:
    """The plan for rows `[rows, hidden]`. more: further fields of NormDescriptor."""
    require_tensor(op, "input", x, "rows, hidden")
    return plan_for(_of_rows, norm.facts(op, x, **more), x.device)


def quantised(op: str, x: torch.Tensor, out: torch.Tensor, quant: Quant, scale: torch.Tensor) -> None:
    plan = plan_for(_quantise, (*x.shape, float_name(op, "input", x), quant), x.device)
    plan.run(QuantizeArgs(x=x, out=out, scale=scale))


def _rows(x: torch.Tensor) -> torch.Tensor | None:
    """x as a view `[rows, hidden]`; None if its rows have no common stride."""
    if x.dim() == 2:
        return x
    if min(x.shape[:2]) < 2 or x.stride(0) == x.shape[1] * x.stride(1):
        return x.flatten(0, 1)
    return None


def _of_rows(facts: Any) -> NormDescriptor:
    (rows, hidden), fields = facts
    return rounded_once(total_num_rows=rows, hidden=hidden, **dict(fields))


def _of_heads(facts: Any) -> FoldDescriptor:
    """The same program over `[batch, heads, hidden]`, with one weight for all heads."""
    (batch, heads, hidden), fields = facts
    program = rounded_once(total_num_rows=batch, hidden=heads * hidden, groups=heads, **dict(fields)).program()
    shared = [one.model_copy(update={"over": (2,)}) if one.name == "weight" else one for one in program.inputs]
    return _changed(program, inputs=tuple(shared))


def _of_silu(facts: Any) -> FoldDescriptor:
    """The norm of rows and silu of it, in `dtype`."""
    dtype, of_rows = facts
    program = _of_rows(of_rows).program()
    (out,) = program.outputs
    value = out.value / (1.0 + exp(-out.value))
    return _changed(program, outputs=(out.model_copy(update={"dtype": dtype, "value": value}),))


def _changed(program: object, **fields: object) -> FoldDescriptor:
    found = {name: getattr(program, name) for name in FoldDescriptor.model_fields}
    return FoldDescriptor(**found | fields)


def _quantise(facts: Any) -> QuantizeDescriptor:
    rows, hidden, dtype, quant = facts
    return QuantizeDescriptor(total_num_rows=rows, hidden=hidden, dtype=dtype, quant=quant)
