"""FlashInfer's grouped products, on `GroupedMatmulDescriptor`; counts stay on the device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from opfacade.compat.dtypes import FLOATS, FP8, NAMES
from opfacade.compat.flashinfer._rows import require_out
from opfacade.compat.refusals import (
    refuse_gradients,
    require_tensor,
    unlike_plan,
    unmapped,
    wrong,
    wrong_dtype,
    wrong_shape,
)
from opfacade.compat.selecting import plan_for
from opfacade.plans.matmul import GroupedMatmulArgs, GroupedMatmulDescriptor, Scaling

# Sizes, layout, dtypes of rows and result, whether weight is [k, n], whether there are scales, and whether x's scales are
# columns.
_Facts = tuple[tuple[int, int, int, int], Literal["ragged", "masked"], tuple[Any, Any], bool, bool, bool]
_BLOCK = 128
_BLOCKS = (1, _BLOCK, _BLOCK)


class Grouped(NamedTuple):
    """x [.., rows, k], the weights [groups, n, k], and the assignment of rows to groups."""

    op: str
    x: Tensor
    weight: Tensor
    layout: Literal["ragged", "masked"]
    groups: Tensor
    scales: tuple[Tensor, Tensor] | None = None
    columns: bool = False


def multiplied(one: Grouped, out: Tensor | None, dtype: torch.dtype) -> Tensor:
    """The products in dtype, the dtype of out. Rows that belong to no group are not changed."""
    op, x, weight = one.op, one.x, one.weight
    shape = (*x.shape[:-1], weight.shape[1])
    if out is None:
        out = torch.empty(shape, dtype=dtype, device=x.device)
    require_out(op, out, shape)
    if out.dtype != dtype:
        raise unlike_plan(op, "out", dtype, out.dtype, "out has the dtype of the result.")
    if weight.shape[0] == 0:
        return out
    straight = weight.stride(-1) != 1 and weight.stride(-2) == 1
    sizes = (weight.shape[0], x.shape[-2], weight.shape[1], weight.shape[2])
    facts = (sizes, one.layout, (NAMES[x.dtype], NAMES[dtype]), straight, one.scales is not None, one.columns)
    of_x, of_weight = one.scales or (None, None)
    own = {"indptr": one.groups} if one.layout == "ragged" else {"counts": one.groups}
    args = GroupedMatmulArgs(
        x=x, weight=weight.mT if straight else weight, out=out, x_scale=of_x, weight_scale=of_weight, **own
    )
    plan_for(_descriptor, facts, x.device).run(args)
    return out


def result_dtype(op: str, out: object, dtype: object) -> torch.dtype:
    """The dtype of out, or the dtype that the caller names; default: bf16."""
    wanted = out.dtype if isinstance(out, Tensor) else torch.bfloat16 if dtype is None else dtype
    if not isinstance(wanted, torch.dtype) or wanted not in FLOATS:
        raise unmapped(op, "out_dtype", " or ".join(map(str, FLOATS)), wanted)
    return wanted


def require_groups(
    op: str, a: Tensor, b: Tensor, names: tuple[str, str], dims: tuple[str, str], dtypes: Sequence[torch.dtype]
) -> None:
    """Rows and weights [groups, n, k] with the same dtype and k."""
    of_a, of_b = require_tensor(op, names[0], a, dims[0]), require_tensor(op, names[1], b, dims[1])
    for name, factor in zip(names, (a, b), strict=True):
        if factor.dtype not in dtypes:
            raise unmapped(op, name, " or ".join(map(str, dtypes)), factor.dtype)
    if a.dtype != b.dtype:
        raise unmapped(op, names[1], f"{a.dtype}, the dtype of {names[0]}", b.dtype)
    refuse_gradients(op, dict(zip(names, (a, b), strict=True)))
    if of_a[-1] != of_b[-1] or (len(of_a) == 3 and of_a[0] != of_b[0]):
        raise wrong_shape(op, names[1], f"[{dims[1]}] beside {list(of_a)}", list(of_b))


def require_integers(op: str, argument: str, value: Tensor | None, count: int) -> Tensor:
    """Converts an int32 or int64 tensor to int32 [count]."""
    if require_tensor(op, argument, value, "groups") != (count,):
        raise wrong_shape(op, argument, f"[{count}]", list(value.shape))  # type: ignore[union-attr]
    if value.dtype not in (torch.int32, torch.int64):  # type: ignore[union-attr]
        raise wrong_dtype(op, argument, "torch.int32 or torch.int64", value.dtype)  # type: ignore[union-attr]
    return value.to(torch.int32)  # type: ignore[union-attr]


def require_scales(op: str, a_scale: Tensor, b_scale: Tensor, a: Tensor, b: Tensor, columns: bool) -> tuple[Tensor, Tensor]:
    """Block scales in the layout of a plan. columns: in both scale tensors, the k axis comes before the rows."""
    parts = -(-a.shape[-1] // _BLOCK)
    shapes = ((*a.shape[:-1], parts), (b.shape[0], -(-b.shape[1] // _BLOCK), parts))
    found = []
    for argument, scale, shape in (("a_scale", a_scale, shapes[0]), ("b_scale", b_scale, shapes[1])):
        wanted = (*shape[:-2], *shape[:-3:-1]) if columns else shape
        if require_tensor(op, argument, scale, ", ".join(map(str, wanted))) != wanted:
            raise wrong_shape(op, argument, str(list(wanted)), list(scale.shape))
        if scale.dtype != torch.float32:
            raise wrong_dtype(op, argument, torch.float32, scale.dtype)
        found.append(scale)
    return found[0], found[1].mT if columns else found[1]


def require_blocks(op: str, granularity: object) -> None:
    """The kind of scales: one per row of x and one per 128 columns of the weight, each over 128 elements of k."""
    if not isinstance(granularity, (tuple, list)) or tuple(granularity) != _BLOCKS:
        raise unmapped(op, "scale_granularity_mnk", str(_BLOCKS), granularity)


def require_mode(op: str, mode: object) -> bool:
    """Whether the blocks of k come before rows."""
    if not isinstance(mode, str) or mode not in ("K", "MN"):
        raise wrong(op, "scale_major_mode", "'K' or 'MN'", repr(mode))
    return mode == "MN"


def fp8(op: str, a: Tensor, b: Tensor, dims: str) -> None:
    require_groups(op, a, b, ("a", "b"), (dims, "groups, n, k"), FP8)


def sorted_rows(ids: Tensor, groups: int) -> tuple[Tensor, Tensor]:
    """The permutation that sorts rows by id, and its indptr [groups + 1]; negative ids come first."""
    ordered, order = ids.sort(stable=True)
    first = torch.searchsorted(ordered, torch.arange(groups + 1, dtype=ordered.dtype, device=ids.device))
    return order, first.to(torch.int32)


def _descriptor(facts: _Facts) -> GroupedMatmulDescriptor:
    (groups, rows, n, k), layout, (dtype, out_dtype), straight, scaled, columns = facts
    scaling = Scaling(kind="block", x_scale_layout="column" if columns else "row") if scaled else None
    return GroupedMatmulDescriptor(
        groups=groups, total_num_rows=rows, n=n, k=k, dtype=dtype, out_dtype=out_dtype, layout=layout, scaling=scaling,
        weight_layout="kn" if straight else "nk",
    )  # fmt: skip
