"""The tensors of one product as inputs of its epilogue."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from opfacade.core.descriptor import ArgsT, operands_of
from opfacade.plans._matmul.checks import EIGHT_BIT_RESULTS
from opfacade.plans._programs.values import numbers_of

if TYPE_CHECKING:
    from torch import Tensor

    from opfacade.core.descriptor import Descriptor
    from opfacade.plans._matmul.fields import ProductCall, ProductFields
    from opfacade.plans._matmul.scaling import Scaling


def cut(problem: Descriptor[Any], args: ArgsT, rows: int | None) -> ArgsT:
    """The call with only the first `rows` rows; None: all rows."""
    if rows is None:
        return args
    counted = {name: spec for name, spec in operands_of(problem).items() if spec.valid_rows}
    parts = {name: getattr(args, name).narrow(spec.valid_axis, 0, rows) for name, spec in counted.items()}
    return cast("ArgsT", replace(cast("Any", args), **parts))  # every bundle of tensors is a dataclass


def leaves_of(problem: ProductFields, args: ProductCall) -> dict[tuple[str, Any], Tensor]:
    """The inputs of the epilogue except the sums; each broadcasts to out."""
    leaves = dict(numbers_of(problem.scalars, args.out.device))
    for name, tensor in (("add", args.add), ("before", args.out if problem.accumulate else None)):
        if tensor is not None:
            leaves["input", name] = tensor
    for part, end in zip(range(problem.columns), ("", "_up"), strict=False):
        own = slice(part, None, problem.columns)
        if args.bias is not None:
            leaves["input", f"bias{end}"] = args.bias[own]
        if problem.scaling is not None and not problem.scaling.in_k and problem.weight_format is None:
            leaves["input", f"weight_scale{end}"] = weight_scales(problem, args)[..., own]
    if problem.result in EIGHT_BIT_RESULTS:
        leaves["input", "out_scale"] = args.out_scale
    if problem.scaling is not None and not problem.scaling.in_k:
        leaves["input", "x_scale"] = args.x_scale if problem.scaling.kind == "tensor" else args.x_scale[..., None]
    return leaves


def shift(kind: str, zero: Tensor, weight_sum: Tensor) -> Tensor:
    """The products of zero points and weight sums that are subtracted from the sums: f64, broadcasts to them."""
    rows = zero if kind == "tensor" else zero[..., None]
    return rows.double() * weight_sum.double()[..., None, :]


def weight_scales(problem: ProductFields, args: ProductCall) -> Tensor:
    """The scale of each column, [.., 1, n], for scales that do not vary along k."""
    import torch

    scaling, scale = cast("Scaling", problem.scaling), args.weight_scale
    if scaling.of_weight == "token":
        found: Tensor = scale[..., None, :]
        return found
    columns = torch.arange(problem.n * problem.columns, device=scale.device)
    places = torch.tensor(scaling.weight_starts, dtype=torch.int64, device=scale.device)
    picked: Tensor = (scale if scale.itemsize > 1 else scale.float())[torch.searchsorted(places, columns, right=True)]
    return picked
