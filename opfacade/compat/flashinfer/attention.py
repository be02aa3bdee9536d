"""FlashInfer's BatchAttention: prefill and decode of a mixed batch in one call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from opfacade.compat.flashinfer._arguments import require_sizes
from opfacade.compat.flashinfer._attention.caches import Cache
from opfacade.compat.flashinfer._attention.scales import Scale
from opfacade.compat.flashinfer.prefill import BatchPrefillWithPagedKVCacheWrapper
from opfacade.compat.refusals import number, refuse_unless, require_tensor, unmapped, wrong

if TYPE_CHECKING:
    from torch import Tensor


class BatchAttention:
    """Attention of the last rows of each request (any number) over its pages. The wrapper allocates its workspace."""

    def __init__(self, kv_layout: str = "NHD", device: str | torch.device = "cuda") -> None:
        try:
            buffer = torch.empty(0, dtype=torch.uint8, device=device)
        except (AssertionError, RuntimeError, TypeError) as error:  # torch's error for a missing device
            raise wrong("BatchAttention", "device", "a device of this process", f"{device!r} ({error})") from error
        self._inner = BatchPrefillWithPagedKVCacheWrapper(buffer, kv_layout)

    def plan(
        self,
        qo_indptr: torch.Tensor,
        kv_indptr: torch.Tensor,
        kv_indices: torch.Tensor,
        kv_len_arr: torch.Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        head_dim_vo: int,
        page_size: int,
        causal: bool = False,
        sm_scale: float | None = None,
        logits_soft_cap: float | None = None,
        q_data_type: torch.dtype = torch.bfloat16,
        kv_data_type: torch.dtype = torch.bfloat16,
        use_profiler: bool = False,
    ) -> None:
        """kv_len_arr `[batch]` i32: tokens of each request."""
        refuse_unless("BatchAttention", {"use_profiler": (use_profiler, False)})
        require_tensor("BatchAttention", "kv_len_arr", kv_len_arr, "batch")
        require_sizes("BatchAttention", locals(), "page_size")
        last = torch.where(kv_len_arr > 0, (kv_len_arr - 1) % page_size + 1, 0).to(kv_len_arr.dtype)
        self._inner.plan(
            qo_indptr,
            kv_indptr,
            kv_indices,
            last,
            num_qo_heads,
            num_kv_heads,
            head_dim_qk,
            page_size,
            head_dim_vo,
            causal=causal,
            sm_scale=sm_scale,
            logits_soft_cap=logits_soft_cap,
            q_data_type=q_data_type,
            kv_data_type=kv_data_type,
        )

    def run(
        self,
        q: torch.Tensor,
        kv_cache: Cache,
        out: torch.Tensor | None = None,
        lse: torch.Tensor | None = None,
        k_scale: Scale = None,
        v_scale: Scale = None,
        logits_soft_cap: float = 0.0,
        profiler_buffer: torch.Tensor | None = None,
        kv_cache_sf: Tensor | None = None,
    ) -> Any:
        """Returns o like q, and lse in base 2. The soft cap must equal that of plan(), because it selects the kernel."""
        refuse_unless("BatchAttention", {"profiler_buffer": (profiler_buffer, None), "kv_cache_sf": (kv_cache_sf, None)})
        planned = self._inner._told().how.scores.soft_cap
        if number("BatchAttention", "logits_soft_cap", logits_soft_cap) not in (0.0, planned):
            raise unmapped("BatchAttention", "logits_soft_cap", f"{planned}, as passed to plan()", logits_soft_cap)
        return self._inner.run(q, kv_cache, k_scale=k_scale, v_scale=v_scale, out=out, lse=lse, return_lse=True)
