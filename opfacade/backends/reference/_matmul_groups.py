"""Runs each group of a grouped product as an ordinary product."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias, cast

from opfacade.plans._matmul.grouped import GroupedMatmulArgs, GroupedMatmulDescriptor
from opfacade.plans._matmul.groups import ranges

if TYPE_CHECKING:
    from torch import Tensor

    from opfacade.plans._matmul.groups import GroupedCall

Tensors: TypeAlias = "dict[str, Tensor | None]"
Run: TypeAlias = "Callable[[Tensors], None]"


def run_groups(d: GroupedMatmulDescriptor, args: GroupedMatmulArgs, run: Run) -> None:
    """run: computes the product of one group from its tensors, by operand name."""
    call = cast("GroupedCall", args)  # operands of the descriptor are tensors
    found = ranges(d, call)
    if d.zero_tail:
        _clear(d, args.out, found)
    for group, (first, stop) in enumerate(found):
        if d.layout == "k":
            run(_of_sums(d, call, group, slice(first, stop)))
        elif first < stop:
            _run_rows(d, call, group, slice(first, stop), run)


def _clear(d: GroupedMatmulDescriptor, out: Tensor | None, found: list[tuple[int, int]]) -> None:
    """Set rows of no group to 0."""
    import torch

    assert out is not None
    free = torch.ones(out.shape[:-1], dtype=torch.bool, device=out.device)
    for group, (first, stop) in enumerate(found):
        (free[group] if d.layout == "masked" else free)[first:stop] = False
    out.masked_fill_(free[..., None], 0)


def _of_sums(d: GroupedMatmulDescriptor, args: GroupedCall, group: int, part: slice) -> Tensors:
    """The group's part of the operands with layout k: a range of k."""
    x = args.x[:, part] if d.x_layout == "mk" else args.x[part]
    weight = args.weight[:, part] if d.weight_layout == "nk" else args.weight[part]
    own = {name: _at(getattr(args, name), group) for name in ("bias", "add", "out")}
    return {"x": x, "weight": weight, "x_scale": args.x_scale, "weight_scale": args.weight_scale, **own}


def _run_rows(d: GroupedMatmulDescriptor, args: GroupedCall, group: int, part: slice, run: Run) -> None:
    """The group's part of the operands if groups are ranges of rows. Gathered rows with invalid ids are skipped."""
    masked = d.layout == "masked"
    of_out = {name: None if t is None else (t[group] if masked else t)[part] for name, t in _outs(args)}
    shared = {name: _at(getattr(args, name), group) for name in ("weight", "bias", "weight_scale", "weight_zero")}
    shared["out_scale"] = args.out_scale
    shared["weight_global"] = None if args.weight_global is None else args.weight_global[group : group + 1]
    if not d.gather:
        x = (args.x[group] if masked else args.x)[part]
        run({"x": x, "x_scale": _rows_of_scale(d, args.x_scale, group, part), **shared, **of_out})
        return
    ids = (args.x_rows[group] if masked else args.x_rows)[part].long()
    known = ((ids >= 0) & (ids < d.rows_of_x)).nonzero().flatten()
    taken = {name: None if t is None else t[known] for name, t in of_out.items()}
    ids = ids[known]
    run({"x": _select(args.x, ids, 0), "x_scale": _gathered_scale(d, args.x_scale, ids), **shared, **taken})
    cast("Tensor", of_out["out"])[known] = cast("Tensor", taken["out"])


def _outs(args: GroupedCall) -> tuple[tuple[str, Tensor | None], ...]:
    return ("add", args.add), ("out", args.out)


def _at(tensor: Tensor | None, group: int) -> Tensor | None:
    return None if tensor is None else tensor[group]


def _rows_of_scale(d: GroupedMatmulDescriptor, scale: Tensor, group: int, part: slice) -> Tensor | None:
    if d.scaling is None or d.scaling.kind == "tensor":
        return scale
    own: Tensor = scale[group] if d.layout == "masked" else scale
    return own[:, part] if d.scaling.x_scale_layout != "row" else own[part]


def _gathered_scale(d: GroupedMatmulDescriptor, scale: Tensor, ids: Tensor) -> Tensor | None:
    if d.scaling is None or d.scaling.kind == "tensor":
        return scale
    return _select(scale, ids, 0 if d.scaling.x_scale_layout == "row" else 1)


def _select(tensor: Tensor, ids: Tensor, axis: int) -> Tensor:
    """index_select that also works for 8-bit floats."""
    import torch

    raw = tensor.view(torch.uint8) if tensor.itemsize == 1 else tensor
    return raw.index_select(axis, ids).view(tensor.dtype)
