"""FlashInfer's older wrapper of latent attention: BatchDecodeMlaWithPagedKVCacheWrapper."""

from __future__ import annotations

from functools import partialmethod
from typing import Any, NamedTuple

import torch

from opfacade.compat.attending import Table
from opfacade.compat.flashinfer._arguments import require_sizes
from opfacade.compat.flashinfer._attention.latent_call import Latent, LatentScores, Told, latent_call
from opfacade.compat.flashinfer._attention.paged_call import csr
from opfacade.compat.flashinfer._attention.results import LseForm, finished
from opfacade.compat.flashinfer._attention.wrapper import Wrapper
from opfacade.compat.refusals import number, require_integer, require_tensor, unplanned, wrong_shape


class _Planned(NamedTuple):
    table: Table
    scores: LatentScores
    told: Told


class BatchDecodeMlaWithPagedKVCacheWrapper(Wrapper):
    """Latent attention (absorbed) of one row per request over its pages."""

    def __init__(
        self,
        float_workspace_buffer: torch.Tensor,
        use_cuda_graph: bool = False,
        use_tensor_cores: bool = False,
        paged_kv_indptr_buffer: torch.Tensor | None = None,
        paged_kv_indices_buffer: torch.Tensor | None = None,
        paged_kv_last_page_len_buffer: torch.Tensor | None = None,
    ) -> None:
        super().__init__(float_workspace_buffer, use_cuda_graph)
        self.use_tensor_cores = use_tensor_cores
        self._buffers = (paged_kv_indptr_buffer, paged_kv_indices_buffer, paged_kv_last_page_len_buffer)
        names = ("paged_kv_indptr_buffer", "paged_kv_indices_buffer", "paged_kv_last_page_len_buffer")
        self._require_buffers(list(zip(names, self._buffers, strict=True)))
        self._planned: _Planned | None = None

    def plan(
        self,
        indptr: torch.Tensor,
        indices: torch.Tensor,
        last_page_len: torch.Tensor,
        num_qo_heads: int,
        head_dim_compressed_kv: int,
        page_size: int,
        sm_scale: float,
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        data_type: torch.dtype | str = "float16",
        q_data_type: torch.dtype | str | None = None,
        rope_scale: float | None = None,
        rope_theta: float | None = None,
    ) -> None:
        """indptr `[batch + 1]`, indices `[n]`, last_page_len `[batch]`: i32, on any device."""
        require_sizes(self._op, locals(), "num_qo_heads", "head_dim_compressed_kv", "page_size")
        window = require_integer(self._op, "window_left", window_left)
        names, given = ("indptr", "indices", "last_page_len"), (indptr, indices, last_page_len)
        starts, pages, last = map(self._index, names, given, self._buffers)
        batch = last_page_len.shape[0]
        if self._use_cuda_graph and self._buffers[2] is not None:
            self._fixed_batch(batch, self._buffers[2].shape[0])
        table = csr(starts, pages, last, batch, exact=self._use_cuda_graph)
        scale, cap = (
            number(self._op, "sm_scale", sm_scale),
            number(self._op, "logits_soft_cap", 0.0 if logits_soft_cap is None else logits_soft_cap),
        )
        self._fill(given, self._buffers)
        self._planned = _Planned(table, LatentScores(scale, window, cap), Told(page_size, head_dim_compressed_kv, None))

    def run(
        self,
        q_nope: torch.Tensor,
        q_pe: torch.Tensor,
        paged_ckv_cache: torch.Tensor,
        paged_kpe_cache: torch.Tensor,
        q_scale: float | None = None,
        k_scale: float | None = None,
        v_scale: float | None = None,
        out: torch.Tensor | None = None,
        lse: torch.Tensor | None = None,
        return_lse: bool = False,
        enable_pdl: bool = False,
    ) -> Any:
        """q_nope, q_pe `[batch, heads, *]`. Returns o like q_nope, and with return_lse the lse in base 2."""
        if self._planned is None:
            raise unplanned(self._op)
        table, scores, told = self._planned
        if require_tensor(self._op, "q_nope", q_nope, "batch_size, num_qo_heads, head_dim_compressed_kv")[0] != table.batch:
            raise wrong_shape(self._op, "q_nope", f"[batch_size={table.batch}, ...]", list(q_nope.shape))
        for name, scale in (("q_scale", q_scale), ("k_scale", k_scale)):
            factor = 1.0 if scale is None else number(self._op, name, scale)
            scores = scores._replace(sm_scale=scores.sm_scale * factor)
        after = None if v_scale is None else number(self._op, "v_scale", v_scale)
        form = LseForm(return_lse, given=lse).checked(self._op, *q_nope.shape[:2])
        tensors = Latent(q_nope, q_pe, paged_ckv_cache, paged_kpe_cache)
        call = latent_call(self._op, tensors, table, scores, form, {"out": out}, told)
        self._run(call)
        return finished(*call.result, form, after)

    run_return_lse = partialmethod(run, return_lse=True)
