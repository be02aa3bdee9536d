"""FlashInfer's cascade: levels of pages that requests share, and merges of states."""

from __future__ import annotations

from typing import Any

import torch

from opfacade.compat.flashinfer._attention.caches import Cache
from opfacade.compat.flashinfer._attention.merging import merge_state as merge_state
from opfacade.compat.flashinfer._attention.merging import merge_state_in_place as merge_state_in_place
from opfacade.compat.flashinfer._attention.merging import merge_states as merge_states
from opfacade.compat.flashinfer._attention.merging import merged
from opfacade.compat.flashinfer._attention.shared_prefix import (
    BatchDecodeWithSharedPrefixPagedKVCacheWrapper as BatchDecodeWithSharedPrefixPagedKVCacheWrapper,
)
from opfacade.compat.flashinfer._attention.shared_prefix import (
    BatchPrefillWithSharedPrefixPagedKVCacheWrapper as BatchPrefillWithSharedPrefixPagedKVCacheWrapper,
)
from opfacade.compat.flashinfer.prefill import BatchPrefillWithPagedKVCacheWrapper
from opfacade.compat.refusals import require_integer, truth, wrong

Buffers = list[torch.Tensor] | None
_BUFFERS: tuple[Any, ...] = (
    "qo_indptr_buf", "paged_kv_indptr_buf", "paged_kv_indices_buf", "paged_kv_last_page_len_buf",
)  # fmt: skip
_TABLES = ("qo_indptr", "paged_kv_indptr", "paged_kv_indices", "paged_kv_last_page_len")
_TOLD = ("pos_encoding_mode", "sm_scale", "window_left", "logits_soft_cap", "q_data_type", "kv_data_type")


class MultiLevelCascadeAttentionWrapper:
    """Attention over pages in several levels, each shared by groups of rows; requests do not share pages of the last level."""

    def __init__(
        self,
        num_levels: int,
        float_workspace_buffer: torch.Tensor,
        kv_layout: str = "NHD",
        use_cuda_graph: bool = False,
        qo_indptr_buf_arr: Buffers = None,
        paged_kv_indptr_buf_arr: Buffers = None,
        paged_kv_indices_buf_arr: Buffers = None,
        paged_kv_last_page_len_buf_arr: Buffers = None,
    ) -> None:
        arrays = (qo_indptr_buf_arr, paged_kv_indptr_buf_arr, paged_kv_indices_buf_arr, paged_kv_last_page_len_buf_arr)
        op, levels = type(self).__name__, require_integer(type(self).__name__, "num_levels", num_levels)
        for name, array in zip(_BUFFERS, arrays, strict=True):
            if array is not None and (not isinstance(array, (list, tuple)) or len(array) < levels):
                raise wrong(op, f"{name}_arr", f"None, or a list of {levels} tensors", type(array).__name__)
        self._use_cuda_graph = truth(op, "use_cuda_graph", use_cuda_graph)
        self._levels = []
        for i in range(levels):
            own = dict(zip(_BUFFERS, (None if array is None else array[i] for array in arrays), strict=True))
            self._levels.append(BatchPrefillWithPagedKVCacheWrapper(float_workspace_buffer, kv_layout, use_cuda_graph, **own))

    @property
    def is_cuda_graph_enabled(self) -> bool:
        return self._use_cuda_graph

    def reset_workspace_buffer(
        self, float_workspace_buffer: torch.Tensor, int_workspace_buffers: list[torch.Tensor] | None = None
    ) -> None:
        for level in self._levels:
            level.reset_workspace_buffer(float_workspace_buffer)

    def plan(
        self,
        qo_indptr_arr: list[torch.Tensor],
        paged_kv_indptr_arr: list[torch.Tensor],
        paged_kv_indices_arr: list[torch.Tensor],
        paged_kv_last_page_len: list[torch.Tensor],
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim: int,
        page_size: int,
        causal: bool = False,
        pos_encoding_mode: str = "NONE",
        use_fp16_qk_reduction: bool = False,
        sm_scale: float | None = None,
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        rope_scale: float | None = None,
        rope_theta: float | None = None,
        q_data_type: torch.dtype | str = "float16",
        kv_data_type: torch.dtype | str | None = None,
    ) -> None:
        """The arguments of a prefill's plan(), as a list with one entry per level; only the last level is causal."""
        arguments = locals()
        tables = (qo_indptr_arr, paged_kv_indptr_arr, paged_kv_indices_arr, paged_kv_last_page_len)
        counts = [len(table) if isinstance(table, (list, tuple)) else type(table).__name__ for table in tables]
        if set(counts) != {len(self._levels)}:
            raise wrong(type(self).__name__, "qo_indptr_arr", f"{len(self._levels)} levels in each list", counts)
        shared = {"num_qo_heads": num_qo_heads, "num_kv_heads": num_kv_heads, "head_dim_qk": head_dim, "page_size": page_size}
        told: dict[str, Any] = {**shared, **{name: arguments[name] for name in _TOLD}}
        for i, level in enumerate(self._levels):
            own: dict[str, Any] = {name: table[i] for name, table in zip(_TABLES, tables, strict=True)}
            level.plan(**own, **told, causal=causal and i == len(self._levels) - 1)

    begin_forward = plan

    def run(self, q: torch.Tensor, paged_kv_cache: Cache) -> Any:
        """q `[rows, num_qo_heads, head_dim]`. Returns o like q."""
        states = [level.run(q, paged_kv_cache, return_lse=True, lse_base="ln") for level in self._levels]
        if len(states) == 1:
            return states[0][0]
        return merged(type(self).__name__, [o for o, _ in states], [lse for _, lse in states])[0]

    forward = run

    def end_forward(self) -> None:
        """No effect, because plan() keeps no memory."""
