"""FlashInfer's prefill over pages; the other prefills are in separate modules, and their names are also available here."""

from __future__ import annotations

from functools import partialmethod
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from opfacade.compat.attending import Table
from opfacade.compat.flashinfer._arguments import (
    How,
    how_of,
    layout_of,
    refuse_run_arguments,
    require_dtype,
    require_query,
    require_sizes,
    scores_of,
)
from opfacade.compat.flashinfer._attention.caches import Cache, pools_of, require_pages
from opfacade.compat.flashinfer._attention.masks import mask_of
from opfacade.compat.flashinfer._attention.paged_call import Mask, Wanted, call_of, csr
from opfacade.compat.flashinfer._attention.ragged import (
    BatchPrefillWithRaggedKVCacheWrapper as BatchPrefillWithRaggedKVCacheWrapper,
)
from opfacade.compat.flashinfer._attention.results import LseForm, finished
from opfacade.compat.flashinfer._attention.scales import Given, Scale, factors_given
from opfacade.compat.flashinfer._attention.single import single_prefill_with_kv_cache as single_prefill_with_kv_cache
from opfacade.compat.flashinfer._attention.single import (
    single_prefill_with_kv_cache_return_lse as single_prefill_with_kv_cache_return_lse,
)
from opfacade.compat.flashinfer._attention.wrapper import Wrapper
from opfacade.compat.flashinfer.page import get_seq_lens
from opfacade.compat.refusals import refuse_unless, require_integer, unmapped, unplanned

if TYPE_CHECKING:
    from torch import Tensor

    from opfacade.core.descriptor import Args


class _Planned(NamedTuple):
    how: How
    table: Table
    q_indptr: torch.Tensor
    mask: Mask | None
    heads: int
    kv_heads: int
    dim: int
    page_size: int


class BatchPrefillWithPagedKVCacheWrapper(Wrapper):
    """Attention of the last rows of each request over its pages. FlashInfer's arguments; see docs/migrating.md.

    plan() computes nothing on the host; a mask is packed on the device. A mask replaces causal.
    """

    def __init__(
        self,
        float_workspace_buffer: torch.Tensor,
        kv_layout: str = "NHD",
        use_cuda_graph: bool = False,
        qo_indptr_buf: torch.Tensor | None = None,
        paged_kv_indptr_buf: torch.Tensor | None = None,
        paged_kv_indices_buf: torch.Tensor | None = None,
        paged_kv_last_page_len_buf: torch.Tensor | None = None,
        custom_mask_buf: torch.Tensor | None = None,
        mask_indptr_buf: torch.Tensor | None = None,
        backend: str = "auto",
        jit_args: list[Any] | None = None,
        jit_kwargs: dict[str, Any] | None = None,
        variant_owns_mask: bool = False,
    ) -> None:
        super().__init__(float_workspace_buffer, use_cuda_graph)
        own = {"jit_args": (jit_args, None), "variant_owns_mask": (variant_owns_mask, False)}
        refuse_unless(self._op, own, "Use a variant instead of your own kernel.")
        self._layout = layout_of(self._op, kv_layout)
        self._buffers = (qo_indptr_buf, paged_kv_indptr_buf, paged_kv_indices_buf, paged_kv_last_page_len_buf)
        names = ("qo_indptr_buf", "paged_kv_indptr_buf", "paged_kv_indices_buf", "paged_kv_last_page_len_buf")
        self._require_buffers(list(zip(names, self._buffers, strict=True)))
        self._mask_buffers = (custom_mask_buf, mask_indptr_buf) if use_cuda_graph else (None, None)
        self._planned: _Planned | None = None

    def plan(
        self,
        qo_indptr: torch.Tensor,
        paged_kv_indptr: torch.Tensor,
        paged_kv_indices: torch.Tensor,
        paged_kv_last_page_len: torch.Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        page_size: int,
        head_dim_vo: int | None = None,
        custom_mask: torch.Tensor | None = None,
        packed_custom_mask: torch.Tensor | None = None,
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
        o_data_type: torch.dtype | str | None = None,
        non_blocking: bool = True,
        prefix_len_ptr: torch.Tensor | None = None,
        token_pos_in_items_ptr: torch.Tensor | None = None,
        token_pos_in_items_len: int = 0,
        max_item_len_ptr: torch.Tensor | None = None,
        seq_lens: torch.Tensor | None = None,
        seq_lens_q: torch.Tensor | None = None,
        block_tables: torch.Tensor | None = None,
        max_token_per_sequence: int | None = None,
        max_sequence_kv: int | None = None,
        fixed_split_size: int | None = None,
        disable_split_kv: bool = False,
        uniform_q_len: int | None = None,
    ) -> None:
        """Index tensors i32, on any device. qo_indptr determines the batch size; the other tensors may be longer.

        custom_mask: `[sum of q_len * kv_len]`, true where a row sees a key. Hints about lengths are ignored.
        """
        require_sizes(self._op, locals(), "num_qo_heads", "num_kv_heads", "head_dim_qk", "page_size")
        if head_dim_vo is not None and require_integer(self._op, "head_dim_vo", head_dim_vo) != head_dim_qk:
            raise unmapped(self._op, "head_dim_vo", f"{head_dim_qk}, the size of K in the pages", head_dim_vo)
        how = how_of(self._op, locals(), page_size)
        given = (qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len)
        names = ("qo_indptr", "paged_kv_indptr", "paged_kv_indices", "paged_kv_last_page_len")
        read = q_indptr, indptr, indices, last = [*map(self._index, names, given, self._buffers)]
        batch = qo_indptr.shape[0] - 1
        if self._use_cuda_graph and self._buffers[0] is not None:
            self._fixed_batch(batch, self._buffers[0].shape[0] - 1)
        table = csr(indptr, indices, last, batch, exact=self._use_cuda_graph)
        mask = None
        if custom_mask is not None or packed_custom_mask is not None:
            q_rows, kv_pages, _, ends = self._values(given, read)
            kv_lens = get_seq_lens(kv_pages[: batch + 1], ends[:batch], page_size)
            mask = mask_of(self._op, (custom_mask, packed_custom_mask), q_rows.diff(), kv_lens, self._mask_buffers)
        self._fill(given, self._buffers)
        self._planned = _Planned(how, table, q_indptr, mask, num_qo_heads, num_kv_heads, head_dim_qk, page_size)

    begin_forward = plan

    def run(
        self,
        q: torch.Tensor,
        paged_kv_cache: Cache,
        *args: Args,
        q_scale: Scale = None,
        k_scale: Scale = None,
        v_scale: Scale = None,
        out: torch.Tensor | None = None,
        lse: torch.Tensor | None = None,
        return_lse: bool = False,
        lse_base: str = "log2",
        lse_layout: str = "NH",
        enable_pdl: bool | None = None,
        window_left: int | None = None,
        sinks: torch.Tensor | None = None,
        kv_cache_sf: Tensor | None = None,
        skip_softmax_threshold_scale_factor: float | None = None,
        use_fp16_softmax: bool | None = None,
        uses_spcompress: bool | None = None,
    ) -> Any:
        """q `[rows, num_qo_heads, head_dim]`. Returns o like q, and with return_lse the lse, f32 in base 2 unless lse_base is
        "ln". Positional arguments with an fp8 q: the scales per head of Q, K and V. sinks `[num_qo_heads]`."""
        planned = self._told()
        given, args = factors_given(q, Given(q_scale, k_scale, v_scale), args)
        refuse_run_arguments(self._op, args, locals())
        require_dtype(self._op, "q", planned.how.q_dtype, q)
        require_query(self._op, q, planned.heads, planned.dim)
        pools = pools_of(self._op, paged_kv_cache, self._layout)
        require_dtype(self._op, "paged_kv_cache", planned.how.kv_dtype, pools.k)
        require_pages(self._op, pools, planned.page_size, planned.kv_heads)
        how = planned.how
        if window_left is not None:
            window_left = require_integer(self._op, "window_left", window_left)
            how = how._replace(scores=how.scores._replace(window_left=window_left))
        form = LseForm(return_lse, lse_base, lse_layout, lse).checked(self._op, q.shape[0], q.shape[1])
        wanted = Wanted(given, form, out, sinks, planned.mask)
        call, factors = call_of(self._op, how, q, pools, planned.table, wanted, planned.q_indptr)
        self._run(call)
        return finished(*call.result, form, factors.after)

    run_return_lse = partialmethod(run, return_lse=True)

    def forward(
        self,
        q: torch.Tensor,
        paged_kv_cache: Cache,
        causal: bool = False,
        pos_encoding_mode: str = "NONE",
        use_fp16_qk_reduction: bool = False,
        k_scale: Scale = None,
        v_scale: Scale = None,
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        sm_scale: float | None = None,
        rope_scale: float | None = None,
        rope_theta: float | None = None,
    ) -> Any:
        """The older form of run(), which takes the score arguments of plan() again."""
        self._tell_again(locals())
        return self.run(q, paged_kv_cache, k_scale=k_scale, v_scale=v_scale)

    def forward_return_lse(
        self,
        q: torch.Tensor,
        paged_kv_cache: Cache,
        causal: bool = False,
        pos_encoding_mode: str = "NONE",
        use_fp16_qk_reduction: bool = False,
        k_scale: Scale = None,
        v_scale: Scale = None,
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        sm_scale: float | None = None,
        rope_scale: float | None = None,
        rope_theta: float | None = None,
    ) -> Any:
        self._tell_again(locals())
        return self.run(q, paged_kv_cache, k_scale=k_scale, v_scale=v_scale, return_lse=True)

    def _told(self) -> _Planned:
        if self._planned is None:
            raise unplanned(self._op)
        return self._planned

    def _tell_again(self, arguments: dict[str, Any]) -> None:
        planned = self._told()
        how = planned.how._replace(scores=scores_of(self._op, arguments), sm_scale=arguments["sm_scale"])
        self._planned = planned._replace(how=how)
