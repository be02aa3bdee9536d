"""FlashInfer's quantisation of groups of a row to 8 bits."""

from __future__ import annotations

from typing import Any

import torch

from opfacade.compat.dtypes import float_name
from opfacade.compat.flashinfer._rows import flat_rows
from opfacade.compat.refusals import refuse_unless, unmapped, wrong
from opfacade.compat.selecting import plan_for
from opfacade.plans.quantize import Quant, QuantizeArgs, QuantizeDescriptor

_MADE = {torch.float8_e4m3fn: "f8_e4m3", torch.float8_e5m2: "f8_e5m2", torch.int8: "i8"}


def per_token_group_quant_8bit(
    x: torch.Tensor,
    group_size: int,
    eps: float = 1e-10,
    dst_dtype: torch.dtype | None = None,
    column_major_scales: bool = False,
    scale_tma_aligned: bool = False,
    scale_ue8m0: bool = False,
    backend: str = "cutile",
) -> tuple[torch.Tensor, torch.Tensor]:
    """x `[..., hidden]` as 8 bits, and the f32 scale of each group, `[..., hidden / group_size]`: the largest |x| of the group,
    at least eps, divided by the largest number of dst_dtype (e4m3, e5m2 or int8).

    column_major_scales: x is `[rows, hidden]`, and the scales of a column are contiguous; scale_tma_aligned: columns are a
    multiple of 4 elements apart. scale_ue8m0: scales are powers of two, rounded up. For int8, ties are rounded to even.
    """
    op = "per_token_group_quant_8bit"
    if backend != "cuda":  # FlashInfer has two, with the same results
        refuse_unless(op, {"backend": (backend, "cutile")})
    if scale_tma_aligned and not column_major_scales:
        raise wrong(op, "scale_tma_aligned", "False without column_major_scales", True)
    if column_major_scales and x.dim() != 2:
        raise unmapped(op, "column_major_scales", "False for an x that is not [rows, hidden]", True)
    quant = _quant(op, dst_dtype or torch.float8_e4m3fn, group_size, float(eps), scale_ue8m0)
    layout = ("column_padded4" if scale_tma_aligned else "column") if column_major_scales else "row"
    rows = flat_rows(x)
    facts = (*rows.shape, float_name(op, "x", x), tuple((quant | {"scale_layout": layout}).items()))
    plan = plan_for(_descriptor, facts, x.device)
    out = torch.empty(x.shape, dtype=dst_dtype or torch.float8_e4m3fn, device=x.device)
    scale = _scales(rows.shape[0], rows.shape[1] // group_size, layout, scale_ue8m0, x.device)
    plan.run(QuantizeArgs(x=rows, out=flat_rows(out), scale=scale))
    found = scale.float() if layout == "row" else scale.float()[:, : rows.shape[0]].t()
    return out, found.view(*x.shape[:-1], found.shape[1]) if layout == "row" else found


def _quant(op: str, dtype: torch.dtype, group: int, least: float, powers: bool) -> dict[str, Any]:
    if dtype not in _MADE:
        raise unmapped(op, "dst_dtype", " or ".join(map(str, _MADE)), dtype)
    scales = "f8_e8m0" if powers else "f32"
    return {"dtype": _MADE[dtype], "scale": "group", "group": group, "least": least, "scale_dtype": scales}


def _scales(rows: int, groups: int, layout: str, powers: bool, device: torch.device) -> torch.Tensor:
    padded = rows + -rows % 4 if layout == "column_padded4" else rows
    shape = (rows, groups) if layout == "row" else (groups, padded)
    return torch.empty(shape, dtype=torch.float8_e8m0fnu if powers else torch.float32, device=device)


def _descriptor(facts: Any) -> QuantizeDescriptor:
    rows, hidden, dtype, quant = facts
    return QuantizeDescriptor(total_num_rows=rows, hidden=hidden, dtype=dtype, quant=Quant(**dict(quant)))
