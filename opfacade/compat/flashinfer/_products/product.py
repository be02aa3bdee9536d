"""One FlashInfer product as a plan: sizes, layouts derived from strides, scales and the result."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from opfacade.compat.dtypes import FLOATS, NAMES
from opfacade.compat.flashinfer._rows import require_out
from opfacade.compat.refusals import (
    refuse_gradients,
    require_dense,
    require_tensor,
    unlike_plan,
    unmapped,
    wrong_dtype,
    wrong_shape,
)
from opfacade.compat.selecting import plan_for
from opfacade.plans.matmul import MatmulArgs, MatmulDescriptor, Scaling

_BLOCK = 128
_SCALINGS = {
    "tensor": Scaling(kind="tensor"),
    "block": Scaling(kind="block"),
    "block columns": Scaling(kind="block", x_scale_layout="column"),
}


class Sizes(NamedTuple):
    """batch: None for matrices."""

    batch: int | None
    m: int
    n: int
    k: int

    @property
    def out(self) -> tuple[int, ...]:
        return (self.m, self.n) if self.batch is None else (self.batch, self.m, self.n)


class Factors(NamedTuple):
    """a [.., m, k] and b [.., k, n] with their options. scaling: a key of `_SCALINGS`; used with scales."""

    op: str
    a: Tensor
    b: Tensor
    sizes: Sizes
    bias: Tensor | None = None
    scales: tuple[Tensor, Tensor] | None = None
    scaling: str | None = None


def require_matrices(
    op: str, given: Mapping[str, Tensor], dims: tuple[str, str], dtypes: tuple[torch.dtype, ...], transposed: bool = False
) -> Sizes:
    """The sizes of two factors with the same dtype. transposed: the second is [n, k]."""
    (first, a), (second, b) = given.items()
    of_a, of_b = require_tensor(op, first, a, dims[0]), require_tensor(op, second, b, dims[1])
    for name, factor in given.items():
        if factor.dtype not in dtypes:
            raise unmapped(op, name, " or ".join(map(str, dtypes)), factor.dtype)
    if a.dtype != b.dtype:
        raise unmapped(op, second, f"{a.dtype}, the dtype of {first}", b.dtype)
    refuse_gradients(op, given)
    k, n = (of_b[-1], of_b[-2]) if transposed else of_b[-2:]
    if of_a[:-2] != of_b[:-2] or of_a[-1] != k:
        raise wrong_shape(op, second, f"[{dims[1]}] beside {list(of_a)}", list(of_b))
    return Sizes(of_a[0] if len(of_a) > 2 else None, of_a[-2], n, k)


def scale_of(op: str, argument: str, scale: Tensor) -> Tensor:
    """A scale with one element as a tensor [1]."""
    _require_f32(op, argument, require_dense(op, argument, scale, "1"))
    if scale.numel() != 1 or scale.dim() > 3:
        raise wrong_shape(op, argument, "one element", list(scale.shape))
    return scale.reshape(1)


def scales_of_blocks(
    op: str, given: Mapping[str, Tensor | None], sizes: Sizes, columns: bool
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Scales in the layout of a plan. columns: in both scale tensors, the k axis comes first, which is also the layout of x's
    scales in the plan."""
    parts = -(-sizes.k // _BLOCK)
    shapes = ((sizes.m, parts), (-(-sizes.n // _BLOCK), parts))
    found = []
    for (argument, given_scale), shape in zip(given.items(), shapes, strict=True):
        scale = require_dense(op, argument, given_scale, "rows, k / 128")
        _require_f32(op, argument, scale)
        wanted = shape[::-1] if columns else shape
        if tuple(scale.shape) != wanted:
            raise wrong_shape(op, argument, str(list(wanted)), list(scale.shape))
        found.append(scale)
    return found[0], found[1].mT if columns else found[1]


def _require_f32(op: str, argument: str, scale: Tensor) -> None:
    if scale.dtype != torch.float32:
        raise wrong_dtype(op, argument, torch.float32, scale.dtype)


def multiplied(factors: Factors, out: Tensor | None, dtype: object) -> Tensor:
    """The product in dtype, the dtype of out."""
    op, a, sizes = factors.op, factors.a, factors.sizes
    if not isinstance(dtype, torch.dtype) or dtype not in FLOATS:
        raise unmapped(op, "out_dtype" if op != "bmm_fp8" else "dtype", " or ".join(map(str, FLOATS)), dtype)
    if out is None:
        out = torch.empty(sizes.out, dtype=dtype, device=a.device)
    require_out(op, out, sizes.out)
    if out.dtype != dtype:
        raise unlike_plan(op, "out", dtype, out.dtype, "out must have the dtype of the result.")
    if sizes.batch != 0:
        _run(factors, out)
    return out


def _run(factors: Factors, out: Tensor) -> None:
    op, sizes, bias = factors.op, factors.sizes, factors.bias
    if bias is not None and require_tensor(op, "bias", bias, "n") != (sizes.n,):
        raise wrong_shape(op, "bias", f"[{sizes.n}]", list(bias.shape))
    if bias is not None and bias.dtype not in FLOATS:
        raise unmapped(op, "bias", " or ".join(map(str, FLOATS)), bias.dtype)
    x, turned = _oriented(factors.a)
    weight, straight = _oriented(factors.b.mT)
    layouts = ("km" if turned else "mk", "kn" if straight else "nk")
    dtypes = (NAMES[x.dtype], NAMES[out.dtype], None if bias is None else NAMES[bias.dtype])
    plan = plan_for(_descriptor, (sizes, layouts, dtypes, factors.scaling), x.device)
    of_x, of_weight = factors.scales or (None, None)
    if sizes.batch == 1:
        x, weight, out = x[0], weight[0], out[0]
    own = None if bias is None else bias.contiguous()
    plan.run(MatmulArgs(x=x, weight=weight, bias=own, out=out, x_scale=of_x, weight_scale=of_weight))


def _oriented(rows: Tensor) -> tuple[Tensor, bool]:
    """The matrix or its transpose, whichever has contiguous rows, and whether it is the transpose. A copy if neither has
    contiguous rows."""
    if rows.stride(-1) == 1 or rows.shape[-1] < 2:
        return rows, False
    if rows.stride(-2) == 1 or rows.shape[-2] < 2:
        return rows.mT, True
    return rows.contiguous(), False


def _descriptor(facts: Any) -> MatmulDescriptor:
    sizes, (x_layout, weight_layout), (dtype, out_dtype, bias_dtype), scaling = facts
    return MatmulDescriptor(
        total_num_rows=sizes.m, n=sizes.n, k=sizes.k, batch=sizes.batch or 1, dtype=dtype, out_dtype=out_dtype,
        x_layout=x_layout, weight_layout=weight_layout, bias=bias_dtype is not None, bias_dtype=bias_dtype,
        scaling=None if scaling is None else _SCALINGS[scaling],
    )  # fmt: skip
