"""FlashInfer's calls for a single request, without plan() and without a workspace of the caller."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from opfacade.compat.attending import Pools, Rows, over_rows
from opfacade.compat.constants import even_indptr, filled, numbered
from opfacade.compat.dtypes import as_dtype
from opfacade.compat.flashinfer._arguments import How, layout_of, scores_of
from opfacade.compat.flashinfer._attention.masks import bits_of, entries_of
from opfacade.compat.flashinfer._attention.paged_call import Mask, Wanted, ask_of, call_of, csr
from opfacade.compat.flashinfer._attention.results import LseForm, finished
from opfacade.compat.flashinfer._attention.scales import Given, Scale, Shape, factors_of
from opfacade.compat.refusals import number, refuse_unless, require_tensor, wrong_shape
from opfacade.plans.mask import segment_packbits

if TYPE_CHECKING:
    from torch import Tensor


def single_decode_with_kv_cache(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    kv_layout: str = "NHD",
    pos_encoding_mode: str = "NONE",
    use_tensor_cores: bool = False,
    q_scale: Scale = None,
    k_scale: Scale = None,
    v_scale: Scale = None,
    window_left: int = -1,
    logits_soft_cap: float | None = None,
    sm_scale: float | None = None,
    rope_scale: float | None = None,
    rope_theta: float | None = None,
    return_lse: bool = False,
) -> Any:
    """q `[heads, head_dim]` over k, v `[n, kv_heads, head_dim]` (NHD) or `[kv_heads, n, head_dim]`. o is like q; lse has base
    2."""
    op = "single_decode_with_kv_cache"
    require_tensor(op, "q", q, "num_qo_heads, head_dim")
    k, v = _by_token(op, k, v, kv_layout)
    how = How(scores_of(op, locals()), sm_scale, "auto", None, None, None)
    count, device = k.shape[0], q.device
    # Each token is a page: the cache may have any strides, and growing lengths need no new kernel.
    table = csr(even_indptr(1, count, device), numbered(count, device), filled(1, 1, device), 1, exact=False)
    form = LseForm(return_lse).checked(op, 1, q.shape[0])
    wanted = Wanted(Given(q_scale, k_scale, v_scale), form)
    call, factors = call_of(op, how, q[None], Pools(k[:, None], v[:, None], "NHD"), table, wanted)
    call.plan.run(call.args)
    found = finished(*call.result, form, factors.after)
    return (found[0][0], found[1][0]) if form.returned else found[0]


def single_prefill_with_kv_cache(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scale_q: Scale = None,
    scale_k: Scale = None,
    scale_v: Scale = None,
    o_dtype: torch.dtype | None = None,
    custom_mask: torch.Tensor | None = None,
    packed_custom_mask: torch.Tensor | None = None,
    causal: bool = False,
    kv_layout: str = "NHD",
    pos_encoding_mode: str = "NONE",
    use_fp16_qk_reduction: bool = False,
    sm_scale: float | None = None,
    window_left: int = -1,
    logits_soft_cap: float | None = None,
    rope_scale: float | None = None,
    rope_theta: float | None = None,
    backend: str = "auto",
    return_lse: bool = False,
    kv_cache_sf: Tensor | None = None,
    k_scale: Scale = None,
    v_scale: Scale = None,
) -> Any:
    """q `[rows, heads, head_dim]` over k, v `[n, kv_heads, head_dim]` (NHD) or `[kv_heads, n, head_dim]`. lse has base 2.
    custom_mask `[rows, n]`, or its bits, with the lowest bit of a byte first. scale_q, scale_k, scale_v: scales per head."""
    op = "single_prefill_with_kv_cache"
    rows, heads, dim = require_tensor(op, "q", q, "rows, num_qo_heads, head_dim")
    refuse_unless(op, {"kv_cache_sf": (kv_cache_sf, None)})
    k, v = _by_token(op, k, v, kv_layout)
    mask = _mask(op, custom_mask, packed_custom_mask, (rows, k.shape[0]))
    how = How(scores_of(op, locals()), sm_scale, "auto", None, None, as_dtype(op, "o_dtype", o_dtype) or q.dtype)
    given = Given(scale_q, scale_k if k_scale is None else k_scale, scale_v if v_scale is None else v_scale)
    scale = dim**-0.5 if sm_scale is None else number(op, "sm_scale", sm_scale)
    factors = factors_of(op, scale, given, Shape(q.dtype, k.dtype, heads, k.shape[1], q.device, paged=False))
    form = LseForm(return_lse).checked(op, rows, heads)
    ask = ask_of(op, how, factors, Wanted(given, form, mask=mask), q)
    call = over_rows(ask, q, even_indptr(1, rows, q.device), Rows(k, v, even_indptr(1, k.shape[0], q.device)))
    call.plan.run(call.args)
    return finished(*call.result, form, factors.after)


single_prefill_with_kv_cache_return_lse = partial(single_prefill_with_kv_cache, return_lse=True)


def _by_token(op: str, k: torch.Tensor, v: torch.Tensor, kv_layout: str) -> tuple[torch.Tensor, torch.Tensor]:
    hnd = layout_of(op, kv_layout) == "HND"
    for name, x in (("k", k), ("v", v)):
        require_tensor(op, name, x, "num_kv_heads, n, head_dim" if hnd else "n, num_kv_heads, head_dim")
    return (k.transpose(0, 1), v.transpose(0, 1)) if hnd else (k, v)


def _mask(op: str, custom: torch.Tensor | None, packed: torch.Tensor | None, shape: tuple[int, int]) -> Mask | None:
    count = shape[0] * shape[1]
    if packed is not None:
        if bits_of(op, packed).shape[0] < (count + 7) // 8:
            raise wrong_shape(op, "packed_custom_mask", f"[{(count + 7) // 8}]", list(packed.shape))
        return Mask(packed, even_indptr(1, packed.shape[0], packed.device))
    if custom is None:
        return None
    entries = entries_of(op, custom)
    if tuple(custom.shape) not in (shape, (count,)):
        raise wrong_shape(op, "custom_mask", f"{list(shape)} or [{count}]", list(custom.shape))
    return Mask(*segment_packbits(entries, even_indptr(1, count, custom.device)))
