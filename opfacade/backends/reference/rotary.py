"""Rotation in torch: f32 products and sums, each rounded, as every backend computes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from opfacade.backends.reference.declared import READS_INDICES, reference
from opfacade.backends.reference.page_table import by_token, checked, token_index
from opfacade.core.guarantee import EXACT, ErrorModel, PrecisionGuarantee
from opfacade.core.operands import valid_count
from opfacade.plans.rotary import QkvPrepareDescriptor, RotaryDescriptor
from opfacade.programs.evaluate import stored as rounded_to

if TYPE_CHECKING:
    from torch import Tensor

    from opfacade.core.descriptor import Args
    from opfacade.plans._rotary.call import RotaryCall
    from opfacade.plans.rotary import RotaryArgs

_PROMISE = PrecisionGuarantee(math_precision="f32_rounded_once", accumulator="none", error_model=ErrorModel(id=EXACT))


def _run(descriptor: RotaryDescriptor, args: RotaryArgs) -> None:
    at, rows = _positions(descriptor, cast("RotaryCall", args))
    cos, sin = _angles(descriptor, args.cos_sin_cache, at)
    for name, out in descriptor.written(args).items():
        given = getattr(args, name)[rows]
        out[rows] = _rotated(descriptor, given, cos, sin)


def _positions(descriptor: RotaryDescriptor, args: RotaryCall) -> tuple[Tensor, Tensor]:
    """(positions [groups, n], the n rows that are rotated)."""
    import torch

    positions = args.positions.reshape(descriptor.groups, descriptor.total_num_rows).long()
    chosen = (positions >= 0).all(0) & (args.cos_sin_cache.shape[0] > 0)
    if args.num_valid is not None:
        valid = valid_count(args.num_valid, descriptor.total_num_rows)
        chosen &= torch.arange(descriptor.total_num_rows, device=positions.device) < valid
    rows = chosen.nonzero()[:, 0]
    return positions[:, rows].clamp(max=args.cos_sin_cache.shape[0] - 1), rows


def _angles(descriptor: RotaryDescriptor | QkvPrepareDescriptor, table: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines [n, 1, rotary_dim / 2], f32."""
    import torch

    half = descriptor.rotary_dim // 2
    group = torch.tensor([descriptor.section_of(pair) for pair in range(half)], device=table.device)
    row, pair = at[group].T, torch.arange(half, device=table.device)
    cos, sin = (table[row, pair + column].float()[:, None] for column in (0, half))
    return cos, -sin if getattr(descriptor, "inverse", False) else sin


def _rotated(descriptor: RotaryDescriptor | QkvPrepareDescriptor, given: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The rotated heads in the dtype of `given`, computed in the dtype of the angles."""
    first, last = descriptor.rotary_offset, descriptor.rotary_offset + descriptor.rotary_dim
    out, half = given.clone(), descriptor.rotary_dim // 2
    x = out[..., first:last]
    a, b = (x[..., 0::2], x[..., 1::2]) if descriptor.interleaved else (x[..., :half], x[..., half:])
    wide_a, wide_b = a.to(cos.dtype), b.to(cos.dtype)
    made = wide_a * cos - wide_b * sin, wide_b * cos + wide_a * sin
    for view, value in zip((a, b), made, strict=True):
        view.copy_(value)
    return out


def _prepare(descriptor: QkvPrepareDescriptor, args: RotaryCall) -> None:
    """The normalised heads, computed in f64 and rounded once."""
    rows, stored, place = _destinations(descriptor, args)
    cache, pools = descriptor.paged_kv, {"k": args.k_data, "v": args.v_data}
    made = {name: _prepared(descriptor, args, name, rows) for name in ("q", "k", "v")}
    for name, pool in pools.items():
        scale = getattr(args, f"{name}_scale")
        found = made[name][stored]
        found = found if scale is None else found / scale.double()[:, None]
        view = by_token(pool, cache)
        view[place] = rounded_to(found, cache.dtype)
    out = args.q if descriptor.in_place else args.q_out
    out[rows] = rounded_to(made["q"], descriptor.dtype)


def _prepared(descriptor: QkvPrepareDescriptor, args: RotaryCall, name: str, rows: Tensor) -> Tensor:
    x: Tensor = getattr(args, name)[rows].double()
    if name == "v":
        return x
    if descriptor.norm != "none":
        weight = getattr(args, f"{name}_weight").double() + (descriptor.norm == "rms_one_plus")
        x = x * (x.square().mean(-1, keepdim=True) + descriptor.eps).rsqrt() * weight
    at = args.positions.reshape(descriptor.groups, -1).long()[:, rows].clamp(max=args.cos_sin_cache.shape[0] - 1)
    cos, sin = _angles(descriptor, args.cos_sin_cache, at)
    return _rotated(descriptor, x, cos.double(), sin.double())


def _destinations(descriptor: QkvPrepareDescriptor, args: RotaryCall) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
    """(prepared rows, a mask of those that are stored, their (page, token))."""
    import torch

    cache, count = descriptor.paged_kv, descriptor.total_num_rows
    alone = (args.positions.reshape(descriptor.groups, -1) < 0).any(0) | (args.cos_sin_cache.shape[0] == 0)
    page = torch.full((count,), -1, dtype=torch.int64, device=args.q.device)
    token, owned = torch.zeros_like(page), torch.ones_like(alone)
    if args.slots is not None:
        fits = (args.slots >= 0) & (args.slots < cache.num_total_pages * cache.page_size)
        page = torch.where(fits, args.slots // cache.page_size, -1)
        token = args.slots % cache.page_size
    else:
        owned[:], indptr = False, args.append_indptr.tolist()
        for request, (pages, length) in enumerate(checked(descriptor, cast("Args", args))):
            first, stop = indptr[request], indptr[request + 1]
            page[first:stop], token[first:stop] = token_index(cache, pages, length - (stop - first), length)
            owned[first:stop] = True
    if args.num_valid is not None:
        owned[valid_count(args.num_valid, count) :] = False
    rows = (owned & ~alone).nonzero()[:, 0]
    kept = (page[rows] >= 0).nonzero()[:, 0]
    return rows, kept, (page[rows][kept], token[rows][kept])


def _promise(descriptor: QkvPrepareDescriptor) -> PrecisionGuarantee:
    conditions = () if descriptor.page_table == "slots" else (READS_INDICES,)
    model = ErrorModel(id="qkv-f32")
    return PrecisionGuarantee(math_precision="f64", accumulator="f64", error_model=model, conditions=conditions)


CANDIDATES = (
    reference(RotaryDescriptor, lambda descriptor: _PROMISE, lambda descriptor: (("x", descriptor.dtype),), _run),
    reference(
        QkvPrepareDescriptor,
        _promise,
        lambda descriptor: (("kv", descriptor.paged_kv.dtype), ("x", descriptor.dtype)),
        _prepare,
    ),
)
