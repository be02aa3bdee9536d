"""Expected contents after an append: bit-equal if rows are copied, otherwise within one rounding of the exact value.

A rotated or quantised element is correct if it is the rounding of a number within the f32 error of the exact value: except near
a tie, only one number of the cache's format qualifies.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from opfacade.core.dtypes import torch_dtype
from opfacade.testing import numerics
from opfacade.testing.bits import bits
from opfacade.testing.families.attention import oracle

if TYPE_CHECKING:
    from torch import Tensor

    from opfacade.plans.kv_cache import PagedKvAppendArgs, PagedKvAppendDescriptor

_U = 2.0**-24


def check(descriptor: PagedKvAppendDescriptor, args: PagedKvAppendArgs, before: Mapping[str, Tensor]) -> numerics.Report:
    """Checks every new row and, if the previous pools are given, that nothing else has changed."""
    import torch

    report = numerics.Report(0.0, 0.0, "", 0)
    for name in ("k_data", "v_data"):
        old = before.get(name)
        got = oracle.by_token(getattr(args, name), descriptor)
        stored = got.view(bits(got[:0]).dtype)
        want = None if old is None else oracle.by_token(old, descriptor).view(stored.dtype).clone()
        for request in range(descriptor.batch_size):
            rows, at = _new_rows(descriptor, args, request)
            found = _exact if descriptor.copies or (name == "v_data" and not descriptor.quantises) else _near
            report = numerics.join(report, found(descriptor, args, name, request, rows, stored[at]))
            if want is not None:
                want[at] = stored[at]
        if want is not None and not torch.equal(stored, want):
            return numerics.Report(math.inf, math.inf, f"{name}: a slot that is not new changed", report.elements)
    return report


def _new_rows(
    descriptor: PagedKvAppendDescriptor, args: PagedKvAppendArgs, request: int
) -> tuple[slice, tuple[Tensor, Tensor]]:
    """The new rows of a request, and the (page, slot) of each row."""
    first, stop = args.append_indptr[request : request + 2].tolist()
    page, slot = oracle.token_places(descriptor, args, request)
    start = page.numel() - (stop - first)
    return slice(first, stop), (page[start:], slot[start:])


def _exact(
    descriptor: PagedKvAppendDescriptor, args: PagedKvAppendArgs, name: str, request: int, rows: slice, got: Tensor
) -> numerics.Report:
    import torch

    new = bits(getattr(args, f"{name[0]}_new")[rows])
    wrong = 0.0 if torch.equal(got, new) else math.inf
    return numerics.Report(wrong, wrong, f"{name} of request {request}", new.numel())


def _near(
    descriptor: PagedKvAppendDescriptor, args: PagedKvAppendArgs, name: str, request: int, rows: slice, got: Tensor
) -> numerics.Report:
    import torch

    dtype = torch_dtype(descriptor.paged_kv.dtype)
    want, slack = _values(descriptor, args, name, request, rows)
    if dtype.itemsize == 1:  # conversion to fp8 saturates
        most = torch.finfo(dtype).max
        want = want.clamp(-most, most)
    ends = [
        (want + off).clamp(-torch.finfo(dtype).max, torch.finfo(dtype).max) if dtype.itemsize == 1 else want + off
        for off in (-slack, slack)
    ]
    low, high = (end.to(dtype).double() for end in ends)
    want = torch.where(low.isinf() | high.isinf(), high, want)
    bound = torch.maximum((low - want).abs(), (high - want).abs()).nan_to_num(0.0)
    value = numerics.Bounded(name, want, bound, bound)
    return numerics.compare([value], {name: got.view(dtype)}, f"request {request}")


def _values(descriptor: PagedKvAppendDescriptor, args: Any, name: str, request: int, rows: slice) -> tuple[Tensor, Tensor]:
    """The exact numbers in fp64, and bounds on the error of f32 arithmetic."""
    import torch

    x = getattr(args, f"{name[0]}_new")[rows].double()
    slack = torch.zeros_like(x)
    if name == "k_data" and descriptor.rotated:
        length = oracle.token_places(descriptor, args, request)[0].numel()
        x, slack = _rotated(x, args.cos_sin_cache[length - x.shape[0] : length].double(), descriptor.rope)
    scale = getattr(args, f"{name[0]}_scale")
    if scale is not None:
        x, slack = x / scale.double()[:, None], slack / scale.double()[:, None]
        slack = slack + 3 * _U * x.abs()
    return x, slack.nan_to_num(0.0, posinf=0.0)


def _rotated(x: Tensor, angles: Tensor, rope: str) -> tuple[Tensor, Tensor]:
    """Rotates pair by pair, by complex multiplication as in the definition."""
    import torch

    count = angles.shape[-1] // 2
    out, slack = x.clone(), torch.zeros_like(x)
    for i in range(count):
        a, b = (2 * i, 2 * i + 1) if rope == "interleaved" else (i, i + count)
        cos, sin = angles[:, None, i], angles[:, None, count + i]
        out[..., a], out[..., b] = x[..., a] * cos - x[..., b] * sin, x[..., b] * cos + x[..., a] * sin
        slack[..., a] = 4 * _U * ((x[..., a] * cos).abs() + (x[..., b] * sin).abs())
        slack[..., b] = 4 * _U * ((x[..., b] * cos).abs() + (x[..., a] * sin).abs())
    return out, slack
