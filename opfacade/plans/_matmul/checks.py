"""Checks for fields of a product that contradict each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opfacade.core.dtypes import DType
from opfacade.core.model import contradiction
from opfacade.core.operands import Dim, TensorSpec
from opfacade.plans._matmul.scaling import Scaling

if TYPE_CHECKING:
    from opfacade.plans._matmul.fields import ProductFields


_EIGHT = ("f8_e4m3", "f8_e5m2", "i8")
EIGHT_BIT_RESULTS = ("f8_e4m3", "f8_e5m2", "i8")  # quantised with one scale for the tensor
OUT_SCALE = TensorSpec((Dim("1", 1),), "f32", "in", "strided", 4)  # their scale
_MAX_S32 = 131_071  # sums of more i8 products may exceed i32
_MAX_SHIFTED = 65_793  # the same limit for factors from -255 to 255


def default_out(dtype: DType, scaled: bool) -> DType:
    if dtype == "i8" and not scaled:
        return "i32"
    return "bf16" if dtype in _EIGHT else dtype


def refuse(problem: ProductFields) -> None:
    """Raises the first contradiction."""
    _refuse_types(problem)
    if problem.scaling is not None:
        _refuse_scaling(problem, problem.scaling)
    if problem.bias_dtype is not None and not problem.bias:
        raise contradiction("bias_dtype", "null without bias", problem.bias_dtype)
    if problem.beta != 1.0 and not (problem.add or problem.accumulate):
        raise contradiction("beta", "1 without add and accumulate", problem.beta)
    if problem.dtype == "i8" and problem.k > _MAX_S32:
        raise contradiction("k", f"at most {_MAX_S32} for i8, so that sums fit in i32", problem.k)


def _refuse_types(problem: ProductFields) -> None:
    out, whole = problem.result, problem.dtype == "i8" and problem.scaling is None
    if whole != (out == "i32"):
        raise contradiction("out_dtype", "i32 for i8 without scaling, and only then", out)
    if (problem.dtype == "f64") != (out == "f64"):
        raise contradiction("out_dtype", "f64 for f64, and only then", out)
    if problem.bias_dtype is not None and (problem.bias_dtype == "f64") != (problem.dtype == "f64"):
        raise contradiction("bias_dtype", "f64 for f64, and only then", problem.bias_dtype)
    if whole:
        _refuse_epilogue(problem)
    if out in EIGHT_BIT_RESULTS:
        _refuse_quantised(problem)


def _refuse_quantised(problem: ProductFields) -> None:
    """Refuses to add to old 8-bit results: out_scale is the scale of the new results only."""
    for field in ("add", "accumulate"):
        if getattr(problem, field):
            raise contradiction(field, "false with an 8-bit out_dtype", True)
    if problem.bias and problem.bias_dtype is None:
        raise contradiction("bias_dtype", "a type of 16 or 32 bits with an 8-bit out_dtype", None)
    if problem.weight_format is not None:
        raise contradiction("out_dtype", "a type of 16 or 32 bits with weight_format", problem.result)


def _refuse_epilogue(problem: ProductFields) -> None:
    """Refuses any epilogue of an i32 sum, which is stored unchanged."""
    plain = {
        "bias": False, "activation": "none", "gated": False, "add": False, "accumulate": False, "alpha": 1.0, "beta": 1.0,
    }  # fmt: skip
    for field, only in plain.items():
        if getattr(problem, field) != only:
            raise contradiction(
                field, f"{only} (the default), because a sum in i32 is stored unchanged", getattr(problem, field)
            )


def _refuse_scaling(problem: ProductFields, scaling: Scaling) -> None:
    if problem.dtype not in _EIGHT:
        raise contradiction("scaling", f"null for {problem.dtype}, because only 8-bit types have scales", scaling.kind)
    if scaling.x_zero and problem.dtype != "i8":
        raise contradiction("scaling.x_zero", f"False for {problem.dtype}, because only i8 has zero points", True)
    if scaling.x_zero and problem.k > _MAX_SHIFTED:
        raise contradiction("k", f"at most {_MAX_SHIFTED} with zero points, so that sums fit in i32", problem.k)
    if problem.dtype == "i8" and scaling.in_k:
        raise contradiction("scaling.kind", "tensor or token for i8", scaling.kind)
