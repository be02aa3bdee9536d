"""FlashInfer's prefill over contiguous rows: BatchPrefillWithRaggedKVCacheWrapper."""

from __future__ import annotations

from functools import partialmethod
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from opfacade.compat.attending import Rows, over_rows
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
from opfacade.compat.flashinfer._attention.masks import mask_of
from opfacade.compat.flashinfer._attention.paged_call import Mask, Wanted, ask_of
from opfacade.compat.flashinfer._attention.results import LseForm, finished
from opfacade.compat.flashinfer._attention.scales import Given, Scale, Shape, factors_given, factors_of
from opfacade.compat.flashinfer._attention.wrapper import Wrapper
from opfacade.compat.refusals import number, refuse_unless, require_integer, require_tensor, unplanned, wrong_shape

if TYPE_CHECKING:
    from torch import Tensor

    from opfacade.core.descriptor import Args


class _Planned(NamedTuple):
    how: How
    q_indptr: torch.Tensor
    kv_indptr: torch.Tensor
    mask: Mask | None
    heads: int
    kv_heads: int
    dim: int
    dim_vo: int


class BatchPrefillWithRaggedKVCacheWrapper(Wrapper):
    """Attention of the rows of each request over K and V, which are stored one request after the other. FlashInfer's
    arguments."""

    def __init__(
        self,
        float_workspace_buffer: torch.Tensor,
        kv_layout: str = "NHD",
        use_cuda_graph: bool = False,
        qo_indptr_buf: torch.Tensor | None = None,
        kv_indptr_buf: torch.Tensor | None = None,
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
        self._buffers = (qo_indptr_buf, kv_indptr_buf)
        self._require_buffers(list(zip(("qo_indptr_buf", "kv_indptr_buf"), self._buffers, strict=True)))
        self._mask_buffers = (custom_mask_buf, mask_indptr_buf) if use_cuda_graph else (None, None)
        self._planned: _Planned | None = None

    def plan(
        self,
        qo_indptr: torch.Tensor,
        kv_indptr: torch.Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        head_dim_vo: int | None = None,
        custom_mask: torch.Tensor | None = None,
        packed_custom_mask: torch.Tensor | None = None,
        causal: bool = False,
        pos_encoding_mode: str = "NONE",
        use_fp16_qk_reduction: bool = False,
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        sm_scale: float | None = None,
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
        fixed_split_size: int | None = None,
        disable_split_kv: bool = False,
        seq_lens: torch.Tensor | None = None,
        seq_lens_q: torch.Tensor | None = None,
        max_token_per_sequence: int | None = None,
        max_sequence_kv: int | None = None,
        v_indptr: torch.Tensor | None = None,
        o_indptr: torch.Tensor | None = None,
        uniform_q_len: int | None = None,
    ) -> None:
        """qo_indptr, kv_indptr `[batch + 1]` i32, on any device; kv_indptr may be longer."""
        require_sizes(self._op, locals(), "num_qo_heads", "num_kv_heads", "head_dim_qk")
        how = how_of(self._op, locals())
        given = (qo_indptr, kv_indptr)
        read = q_rows, kv_rows = [*map(self._index, ("qo_indptr", "kv_indptr"), given, self._buffers)]
        batch = qo_indptr.shape[0] - 1
        if self._use_cuda_graph and self._buffers[0] is not None:
            self._fixed_batch(batch, self._buffers[0].shape[0] - 1)
        dim_vo = head_dim_qk if head_dim_vo is None else require_integer(self._op, "head_dim_vo", head_dim_vo)
        kv_rows, mask = kv_rows[: batch + 1], None
        if custom_mask is not None or packed_custom_mask is not None:
            q_starts, kv_starts = self._values(given, read)
            lens = q_starts.diff(), kv_starts[: batch + 1].diff()
            mask = mask_of(self._op, (custom_mask, packed_custom_mask), *lens, self._mask_buffers)
        self._fill(given, self._buffers)
        self._planned = _Planned(how, q_rows, kv_rows, mask, num_qo_heads, num_kv_heads, head_dim_qk, dim_vo)

    begin_forward = plan

    def run(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *args: Args,
        q_scale: Scale = None,
        k_scale: Scale = None,
        v_scale: Scale = None,
        o_scale: float | None = None,
        out: torch.Tensor | None = None,
        lse: torch.Tensor | None = None,
        return_lse: bool = False,
        lse_base: str = "log2",
        lse_layout: str = "NH",
        enable_pdl: bool | None = None,
        kv_cache_sf: Tensor | None = None,
        sinks: torch.Tensor | None = None,
    ) -> Any:
        """q `[rows, num_qo_heads, head_dim]`, k and v `[kv_rows, num_kv_heads, *]`. Returns o, and with return_lse lse."""
        planned = self._told()
        given, args = factors_given(q, Given(q_scale, k_scale, v_scale), args)
        refuse_run_arguments(self._op, args, locals())
        require_dtype(self._op, "q", planned.how.q_dtype, q)
        require_query(self._op, q, planned.heads, planned.dim)
        for name, x, dim in (("k", k, planned.dim), ("v", v, planned.dim_vo)):
            require_dtype(self._op, name, planned.how.kv_dtype, x)
            if require_tensor(self._op, name, x, "rows, num_kv_heads, head_dim")[1:] != (planned.kv_heads, dim):
                expected = f"[rows, num_kv_heads={planned.kv_heads}, {dim}], as passed to plan()"
                raise wrong_shape(self._op, name, expected, list(x.shape))
        form = LseForm(return_lse, lse_base, lse_layout, lse).checked(self._op, q.shape[0], q.shape[1])
        scale = planned.dim**-0.5 if planned.how.sm_scale is None else planned.how.sm_scale
        shape = Shape(q.dtype, k.dtype, planned.heads, planned.kv_heads, q.device, paged=False)
        factors = factors_of(self._op, scale, given, shape)
        ask = ask_of(self._op, planned.how, factors, Wanted(given, form, out, sinks, planned.mask), q)
        call = over_rows(ask, q, planned.q_indptr, Rows(k, v, planned.kv_indptr))
        self._run(call)
        return finished(*call.result, form, factors.after)

    run_return_lse = partialmethod(run, return_lse=True)

    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        causal: bool = False,
        pos_encoding_mode: str = "NONE",
        use_fp16_qk_reduction: bool = False,
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        sm_scale: float | None = None,
        rope_scale: float | None = None,
        rope_theta: float | None = None,
    ) -> Any:
        """The older form of run(), which takes the score arguments of plan() again."""
        self._tell_again(locals())
        return self.run(q, k, v)

    def forward_return_lse(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        causal: bool = False,
        pos_encoding_mode: str = "NONE",
        use_fp16_qk_reduction: bool = False,
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        sm_scale: float | None = None,
        rope_scale: float | None = None,
        rope_theta: float | None = None,
    ) -> Any:
        self._tell_again(locals())
        return self.run(q, k, v, return_lse=True)

    def _told(self) -> _Planned:
        if self._planned is None:
            raise unplanned(self._op)
        return self._planned

    def _tell_again(self, arguments: dict[str, Any]) -> None:
        planned, scale = self._told(), arguments["sm_scale"]
        scale = None if scale is None else number(self._op, "sm_scale", scale)
        how = planned.how._replace(scores=scores_of(self._op, arguments), sm_scale=scale)
        self._planned = planned._replace(how=how)
