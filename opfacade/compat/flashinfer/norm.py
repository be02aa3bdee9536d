"""FlashInfer's norms: the residual sum and all later steps are computed in f32, and results are rounded once. `enable_pdl` has
no effect.

Rows may have any stride; weights may have another dtype than rows. With eps 0, a row of zeros gives NaN."""

from __future__ import annotations

import torch

from opfacade.compat.constants import factor
from opfacade.compat.dtypes import fp8_name
from opfacade.compat.flashinfer._norm_plans import Norm, normed, normed_silu, plan_of_rows, quantised
from opfacade.compat.refusals import number, refuse_unless, require_tensor, wrong_shape
from opfacade.plans.norm import NormArgs, Quant


def rmsnorm(
    input: torch.Tensor,
    weight: torch.Tensor,
    eps: float = 1e-6,
    out: torch.Tensor | None = None,
    enable_pdl: bool | None = None,
) -> torch.Tensor:
    """The RMS norm of each row of input `[rows, hidden]`, or of each head of `[batch, heads, hidden]`, times weight `[hidden]`.
    out: a tensor like input, or input itself."""
    return normed("rmsnorm", input, out, Norm(weight, eps))


def gemma_rmsnorm(
    input: torch.Tensor,
    weight: torch.Tensor,
    eps: float = 1e-6,
    out: torch.Tensor | None = None,
    enable_pdl: bool | None = None,
) -> torch.Tensor:
    """As rmsnorm, but multiplies by 1 + weight."""
    return normed("gemma_rmsnorm", input, out, Norm(weight, eps, "one_plus"))


def fused_add_rmsnorm(
    input: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float = 1e-6,
    enable_pdl: bool | None = None,
) -> None:
    """Overwrites residual with input + residual, and input with the RMS norm of that sum before rounding; both `[rows,
    hidden]`."""
    _added("fused_add_rmsnorm", input, residual, Norm(weight, eps))


def gemma_fused_add_rmsnorm(
    input: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float = 1e-6,
    enable_pdl: bool | None = None,
) -> None:
    """As fused_add_rmsnorm, but multiplies by 1 + weight."""
    _added("gemma_fused_add_rmsnorm", input, residual, Norm(weight, eps, "one_plus"))


def rmsnorm_quant(
    out: torch.Tensor,
    input: torch.Tensor,
    weight: torch.Tensor,
    scale: float | torch.Tensor,
    eps: float = 1e-6,
    enable_pdl: bool | None = None,
) -> None:
    """As rmsnorm, for rows; the result is divided by scale (a number, or one f32 element) and rounded to the fp8 type of out,
    saturating."""
    op, quant = "rmsnorm_quant", _static("rmsnorm_quant", out)
    plan = plan_of_rows(op, input, Norm(weight, eps), quant=quant)
    plan.run(NormArgs(x=input, weight=weight, out=out, scale=_scale(op, scale, input)))


def fused_add_rmsnorm_quant(
    out: torch.Tensor,
    input: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    scale: float | torch.Tensor,
    eps: float = 1e-6,
    enable_pdl: bool | None = None,
) -> None:
    """As fused_add_rmsnorm; the result is divided by scale and rounded to the fp8 type of out, saturating. input is only
    read."""
    op, quant = "fused_add_rmsnorm_quant", _static("fused_add_rmsnorm_quant", out)
    plan = plan_of_rows(op, input, Norm(weight, eps), quant=quant, residual=True)
    plan.run(NormArgs(x=input, residual=residual, weight=weight, out=out, scale=_scale(op, scale, input)))


def fused_rmsnorm_silu(
    input: torch.Tensor,
    weight: torch.Tensor,
    eps: float = 1e-6,
    out: torch.Tensor | None = None,
    block_scale: torch.Tensor | None = None,
) -> torch.Tensor:
    """silu of the rmsnorm of rows, rounded once and written to out, which has the dtype of input (and may be input) or is fp8,
    saturating."""
    op = "fused_rmsnorm_silu"
    refuse_unless(op, {"block_scale": (block_scale, None)})
    return normed_silu(op, input, torch.empty_like(input) if out is None else out, Norm(weight, eps))


def layernorm(input: torch.Tensor, gemma: torch.Tensor, beta: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    """The layer norm of each row of input `[rows, hidden]`, times gemma, plus beta, both `[hidden]` with the same dtype."""
    return _layer("layernorm", input, (gemma, beta), eps)


def layernorm_quant(
    out: torch.Tensor,
    input: torch.Tensor,
    gemma: torch.Tensor,
    beta: torch.Tensor,
    scale: float | torch.Tensor,
    eps: float = 1e-6,
) -> None:
    """As layernorm, rounded to the dtype of input, then divided by scale and rounded to the fp8 type of out, in two
    launches."""
    op = "layernorm_quant"
    quant, factors = _static(op, out), _scale(op, scale, input)
    quantised(op, _layer(op, input, (gemma, beta), eps), out, quant, factors)


def _layer(op: str, x: torch.Tensor, weights: tuple[torch.Tensor, torch.Tensor], eps: float) -> torch.Tensor:
    plan = plan_of_rows(op, x, Norm(weights[0], eps), kind="layer", bias=True)
    out = torch.empty_like(x)
    plan.run(NormArgs(x=x, weight=weights[0], bias=weights[1], out=out))
    return out


def _added(op: str, x: torch.Tensor, residual: torch.Tensor, norm: Norm) -> None:
    plan = plan_of_rows(op, x, norm, residual=True, in_place=True)
    plan.run(NormArgs(x=x, residual=residual, weight=norm.weight))


def _static(op: str, out: torch.Tensor) -> Quant:
    require_tensor(op, "out", out, "rows, hidden")
    return _QUANTS[fp8_name(op, "out", out)]


_QUANTS: dict[str, Quant] = {
    "f8_e4m3": Quant(dtype="f8_e4m3", scale="static"),
    "f8_e5m2": Quant(dtype="f8_e5m2", scale="static"),
}


def _scale(op: str, scale: object, x: torch.Tensor) -> torch.Tensor:
    """The scale as one f32 element on the device of x."""
    require_tensor(op, "input", x, "rows, hidden")
    if not isinstance(scale, torch.Tensor):
        return factor(number(op, "scale", scale), x.device)
    if scale.numel() != 1:
        raise wrong_shape(op, "scale", "a number, [] or [1]", list(scale.shape))
    return scale.to(x.device, torch.float32).reshape(1)
