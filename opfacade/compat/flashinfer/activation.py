"""FlashInfer's gated activations, computed in f32 and rounded once. `enable_pdl` has no effect; a row may have any even
width."""

from __future__ import annotations

from typing import Any

import torch

from opfacade.compat.dtypes import float_name
from opfacade.compat.flashinfer._rows import flat_rows, require_out, same_memory, stored
from opfacade.compat.refusals import require_tensor, wrong_shape
from opfacade.compat.selecting import plan_for
from opfacade.plans.activation import GatedActivationArgs, GatedActivationDescriptor


def silu_and_mul(input: torch.Tensor, out: torch.Tensor | None = None, enable_pdl: bool | None = None) -> torch.Tensor:
    """silu of the first half of each row of input `[..., 2 * hidden]` times the second half: `[..., hidden]`.

    out: a tensor of that shape, or the first half of input itself.
    """
    return _gated("silu_and_mul", "silu", input, out)


def gelu_and_mul(input: torch.Tensor, out: torch.Tensor | None = None, enable_pdl: bool | None = None) -> torch.Tensor:
    """As silu_and_mul, with the exact gelu (erf)."""
    return _gated("gelu_and_mul", "gelu", input, out)


def gelu_tanh_and_mul(input: torch.Tensor, out: torch.Tensor | None = None, enable_pdl: bool | None = None) -> torch.Tensor:
    """As silu_and_mul, with the tanh approximation of gelu."""
    return _gated("gelu_tanh_and_mul", "gelu_tanh", input, out)


def _gated(op: str, activation: str, x: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
    if not isinstance(x, torch.Tensor) or x.layout != torch.strided or x.is_nested:
        require_tensor(op, "input", x, "..., 2 * hidden")
    if x.dim() < 1 or x.shape[-1] % 2:
        raise wrong_shape(op, "input", "[..., 2 * hidden]", list(x.shape))
    shape = (*x.shape[:-1], x.shape[-1] // 2)
    if out is None:
        out = x.new_empty(shape)
    else:
        require_out(op, out, shape)
    rows, made = flat_rows(x), flat_rows(out)
    in_place = same_memory(x[..., : shape[-1]], out) and rows.data_ptr() == x.data_ptr()
    facts = (rows.shape[0], shape[-1], float_name(op, "input", x), activation, in_place)
    plan = plan_for(_descriptor, facts, x.device)
    plan.run(GatedActivationArgs(x=rows) if in_place else GatedActivationArgs(x=rows, out=made))
    return out if in_place else stored(made, out)


def _descriptor(facts: Any) -> GatedActivationDescriptor:
    rows, width, dtype, activation, in_place = facts
    return GatedActivationDescriptor(total_num_rows=rows, width=width, dtype=dtype, activation=activation, in_place=in_place)
