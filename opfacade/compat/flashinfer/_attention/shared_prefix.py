"""FlashInfer's older cascade with two levels: contiguous rows that all requests share, and pages of each request."""

from __future__ import annotations

from typing import Any

import torch

from opfacade.compat.flashinfer._attention.caches import Cache
from opfacade.compat.flashinfer._attention.merging import merge_state
from opfacade.compat.flashinfer._attention.single import single_prefill_with_kv_cache
from opfacade.compat.flashinfer.decode import BatchDecodeWithPagedKVCacheWrapper
from opfacade.compat.flashinfer.prefill import BatchPrefillWithPagedKVCacheWrapper


class BatchDecodeWithSharedPrefixPagedKVCacheWrapper:
    """Attention of one row per request over a prefix that all requests share and its own pages."""

    def __init__(self, float_workspace_buffer: torch.Tensor, kv_layout: str = "NHD") -> None:
        self._own, self._layout = BatchDecodeWithPagedKVCacheWrapper(float_workspace_buffer, kv_layout), kv_layout

    def reset_workspace_buffer(
        self, float_workspace_buffer: torch.Tensor, int_workspace_buffer: torch.Tensor | None = None
    ) -> None:
        self._own.reset_workspace_buffer(float_workspace_buffer)

    def begin_forward(
        self,
        unique_kv_indptr: torch.Tensor,
        unique_kv_indices: torch.Tensor,
        unique_kv_last_page_len: torch.Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim: int,
        page_size: int,
        data_type: torch.dtype | str = "float16",
    ) -> None:
        tables = (unique_kv_indptr, unique_kv_indices, unique_kv_last_page_len)
        self._own.plan(*tables, num_qo_heads, num_kv_heads, head_dim, page_size, q_data_type=data_type)

    def forward(self, q: torch.Tensor, k_shared: torch.Tensor, v_shared: torch.Tensor, unique_kv_cache: Cache) -> Any:
        """k_shared, v_shared: rows in the layout of the wrapper. Returns o like q."""
        shared = single_prefill_with_kv_cache(q, k_shared, v_shared, kv_layout=self._layout, return_lse=True)
        return merge_state(*shared, *self._own.run(q, unique_kv_cache, return_lse=True))[0]

    def end_forward(self) -> None:
        """No effect, because begin_forward() keeps no memory."""


class BatchPrefillWithSharedPrefixPagedKVCacheWrapper:
    """Attention of the last rows of each request over a prefix that all requests share and its own pages."""

    def __init__(self, float_workspace_buffer: torch.Tensor, kv_layout: str = "NHD") -> None:
        self._own, self._layout = BatchPrefillWithPagedKVCacheWrapper(float_workspace_buffer, kv_layout), kv_layout
        self._told: dict[str, Any] = {}

    def reset_workspace_buffer(
        self, float_workspace_buffer: torch.Tensor, int_workspace_buffer: torch.Tensor | None = None
    ) -> None:
        self._own.reset_workspace_buffer(float_workspace_buffer)

    def begin_forward(
        self,
        qo_indptr: torch.Tensor,
        paged_kv_indptr: torch.Tensor,
        paged_kv_indices: torch.Tensor,
        paged_kv_last_page_len: torch.Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim: int,
        page_size: int,
    ) -> None:
        self._told = {
            "qo_indptr": qo_indptr,
            "paged_kv_indptr": paged_kv_indptr,
            "paged_kv_indices": paged_kv_indices,
            "paged_kv_last_page_len": paged_kv_last_page_len,
            "num_qo_heads": num_qo_heads,
            "num_kv_heads": num_kv_heads,
            "head_dim_qk": head_dim,
            "page_size": page_size,
        }

    def forward(
        self,
        q: torch.Tensor,
        k_shared: torch.Tensor,
        v_shared: torch.Tensor,
        unique_kv_cache: Cache,
        causal: bool = False,
        use_fp16_qk_reduction: bool = False,
        sm_scale: float | None = None,
        rope_scale: float | None = None,
        rope_theta: float | None = None,
    ) -> Any:
        """k_shared, v_shared: rows in the layout of the wrapper, which every row of q sees. Returns o like q."""
        told: dict[str, Any] = {"sm_scale": sm_scale, "kv_layout": self._layout, "return_lse": True}
        shared = single_prefill_with_kv_cache(q, k_shared, v_shared, **told)
        self._own.plan(**self._told, causal=causal, sm_scale=sm_scale, q_data_type=q.dtype)
        return merge_state(*shared, *self._own.run(q, unique_kv_cache, return_lse=True))[0]

    def end_forward(self) -> None:
        """No effect, because begin_forward() keeps no memory."""
