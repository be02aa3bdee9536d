"""FlashInfer's decode: BatchDecodeWithPagedKVCacheWrapper and its form for CUDA graphs."""

from __future__ import annotations

from functools import partialmethod
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from opfacade.compat.attending import Table
from opfacade.compat.constants import even_indptr
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
from opfacade.compat.flashinfer._attention.mla_decode import (
    BatchDecodeMlaWithPagedKVCacheWrapper as BatchDecodeMlaWithPagedKVCacheWrapper,
)
from opfacade.compat.flashinfer._attention.paged_call import Wanted, call_of, csr
from opfacade.compat.flashinfer._attention.results import LseForm, finished
from opfacade.compat.flashinfer._attention.scales import Given, Scale, factors_given
from opfacade.compat.flashinfer._attention.single import single_decode_with_kv_cache as single_decode_with_kv_cache
from opfacade.compat.flashinfer._attention.wrapper import Wrapper
from opfacade.compat.refusals import refuse_unless, require_integer, unplanned, wrong, wrong_shape

if TYPE_CHECKING:
    from torch import Tensor

    from opfacade.core.descriptor import Args


class _Planned(NamedTuple):
    how: How
    table: Table
    heads: int
    kv_heads: int
    dim: int
    page_size: int
    rows: int  # rows per request


class BatchDecodeWithPagedKVCacheWrapper(Wrapper):
    """Attention of the last row of each request over its pages. FlashInfer's arguments; see docs/migrating.md.

    plan() computes nothing on the host: it keeps its arguments and copies index tensors to the device.
    backend, use_tensor_cores, enable_pdl and non_blocking are accepted and have no effect.
    """

    def __init__(
        self,
        float_workspace_buffer: torch.Tensor,
        kv_layout: str = "NHD",
        use_cuda_graph: bool = False,
        use_tensor_cores: bool = False,
        paged_kv_indptr_buffer: torch.Tensor | None = None,
        paged_kv_indices_buffer: torch.Tensor | None = None,
        paged_kv_last_page_len_buffer: torch.Tensor | None = None,
        backend: str = "auto",
        jit_args: list[Any] | None = None,
    ) -> None:
        super().__init__(float_workspace_buffer, use_cuda_graph)
        refuse_unless(self._op, {"jit_args": (jit_args, None)}, "Use a variant instead of your own kernel.")
        self._layout, self.use_tensor_cores = layout_of(self._op, kv_layout), use_tensor_cores
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
        num_kv_heads: int,
        head_dim: int,
        page_size: int,
        pos_encoding_mode: str = "NONE",
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        q_data_type: torch.dtype | str | None = "float16",
        kv_data_type: torch.dtype | str | None = None,
        o_data_type: torch.dtype | str | None = None,
        data_type: torch.dtype | str | None = None,
        sm_scale: float | None = None,
        rope_scale: float | None = None,
        rope_theta: float | None = None,
        non_blocking: bool = True,
        block_tables: torch.Tensor | None = None,
        seq_lens: torch.Tensor | None = None,
        fixed_split_size: int | None = None,
        disable_split_kv: bool = False,
        q_len_per_req: int | None = 1,
        *,
        window_right: int = 0,
        **unknown: object,
    ) -> None:
        """indptr `[batch + 1]`, indices `[n]`, last_page_len `[batch]`: i32, on any device; indptr may be longer.

        q_len_per_req: the number of (causal) rows per request, which are its last. fixed_split_size: pages per chunk.
        block_tables and seq_lens are ignored, because they repeat the other arguments."""
        refuse_unless(self._op, {name: (value, None) for name, value in unknown.items()})
        rows = 1 if q_len_per_req is None else require_integer(self._op, "q_len_per_req", q_len_per_req) or 1
        if rows < 0:
            raise wrong(self._op, "q_len_per_req", "0 or more", rows)
        if rows > 1 and window_right != 0:
            raise wrong(self._op, "window_right", "0 beside q_len_per_req", window_right)
        require_sizes(self._op, locals(), "num_qo_heads", "num_kv_heads", "head_dim", "page_size")
        how = how_of(self._op, locals(), page_size)
        names, given = ("indptr", "indices", "last_page_len"), (indptr, indices, last_page_len)
        starts, pages, last = map(self._index, names, given, self._buffers)
        batch = last_page_len.shape[0]
        if self._use_cuda_graph and self._buffers[2] is not None:
            self._fixed_batch(batch, self._buffers[2].shape[0])
        self._fill(given, self._buffers)
        table = csr(starts, pages, last, batch, exact=self._use_cuda_graph)
        self._planned = _Planned(how, table, num_qo_heads, num_kv_heads, head_dim, page_size, rows)

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
        enable_pdl: bool | None = None,
        window_left: int | None = None,
        sinks: torch.Tensor | None = None,
        q_len_per_req: int | None = None,
        skip_softmax_threshold_scale_factor: float | None = None,
        kv_cache_sf: Tensor | None = None,
    ) -> Any:
        """q `[batch * q_len_per_req, num_qo_heads, head_dim]`. Returns o like q, and with return_lse the lse in base 2, f32.
        q_scale, k_scale, v_scale: numbers, tensors `[1]`, or one per head. sinks `[num_qo_heads]`."""
        planned = self._told()
        given, args = factors_given(q, Given(q_scale, k_scale, v_scale), args)
        refuse_run_arguments(self._op, args, locals())
        require_dtype(self._op, "q", planned.how.q_dtype, q)
        require_query(self._op, q, planned.heads, planned.dim)
        rows = planned.rows
        if q_len_per_req is not None:
            rows = require_integer(self._op, "q_len_per_req", q_len_per_req) or rows
        if q.shape[0] != planned.table.batch * rows:
            expected = f"[batch_size={planned.table.batch} * q_len_per_req={rows}, ...]"
            raise wrong_shape(self._op, "q", expected, list(q.shape))
        pools = pools_of(self._op, paged_kv_cache, self._layout)
        require_dtype(self._op, "paged_kv_cache", planned.how.kv_dtype, pools.k)
        require_pages(self._op, pools, planned.page_size, planned.kv_heads)
        how, q_indptr = planned.how, None
        if window_left is not None:
            window_left = require_integer(self._op, "window_left", window_left)
            how = how._replace(scores=how.scores._replace(window_left=window_left))
        if rows > 1:
            how = how._replace(scores=how.scores._replace(causal=True))
            q_indptr = even_indptr(planned.table.batch, rows, q.device)
        form = LseForm(return_lse, given=lse).checked(self._op, q.shape[0], q.shape[1])
        wanted = Wanted(given, form, out, sinks)
        call, factors = call_of(self._op, how, q, pools, planned.table, wanted, q_indptr)
        self._run(call)
        return finished(*call.result, form, factors.after)

    run_return_lse = partialmethod(run, return_lse=True)

    def forward(
        self,
        q: torch.Tensor,
        paged_kv_cache: Cache,
        pos_encoding_mode: str = "NONE",
        q_scale: Scale = None,
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
        return self.run(q, paged_kv_cache, q_scale=q_scale, k_scale=k_scale, v_scale=v_scale)

    def forward_return_lse(
        self,
        q: torch.Tensor,
        paged_kv_cache: Cache,
        pos_encoding_mode: str = "NONE",
        q_scale: Scale = None,
        k_scale: Scale = None,
        v_scale: Scale = None,
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        sm_scale: float | None = None,
        rope_scale: float | None = None,
        rope_theta: float | None = None,
    ) -> Any:
        self._tell_again(locals())
        return self.run(q, paged_kv_cache, q_scale=q_scale, k_scale=k_scale, v_scale=v_scale, return_lse=True)

    def _told(self) -> _Planned:
        if self._planned is None:
            raise unplanned(self._op)
        return self._planned

    def _tell_again(self, arguments: dict[str, Any]) -> None:
        planned, scale = self._told(), arguments["sm_scale"]
        how = planned.how._replace(scores=scores_of(self._op, arguments), sm_scale=scale)
        self._planned = planned._replace(how=how)


class CUDAGraphBatchDecodeWithPagedKVCacheWrapper(BatchDecodeWithPagedKVCacheWrapper):
    """The same, for index tensors that a captured graph reads."""

    def __init__(
        self,
        workspace_buffer: torch.Tensor,
        indptr_buffer: torch.Tensor,
        indices_buffer: torch.Tensor,
        last_page_len_buffer: torch.Tensor,
        kv_layout: str = "NHD",
        use_tensor_cores: bool = False,
    ) -> None:
        buffers = (indptr_buffer, indices_buffer, last_page_len_buffer)
        super().__init__(workspace_buffer, kv_layout, True, use_tensor_cores, *buffers)


def fast_decode_plan(
    self: BatchDecodeWithPagedKVCacheWrapper,
    indptr: torch.Tensor,
    indices: torch.Tensor,
    last_page_len: torch.Tensor,
    num_qo_heads: int,
    num_kv_heads: int,
    head_dim: int,
    page_size: int,
    pos_encoding_mode: str = "NONE",
    window_left: int = -1,
    logits_soft_cap: float | None = None,
    q_data_type: torch.dtype | str | None = None,
    kv_data_type: torch.dtype | str | None = None,
    data_type: torch.dtype | str | None = None,
    sm_scale: float | None = None,
    rope_scale: float | None = None,
    rope_theta: float | None = None,
    non_blocking: bool = True,
    fixed_split_size: int | None = None,
    disable_split_kv: bool = False,
    q_len_per_req: int = 1,
    global_override_indptr_cpu: torch.Tensor | None = None,
) -> None:
    """FlashInfer's faster form of plan(), which a program may assign to a wrapper's plan(). Here it is not faster; indptr may
    be on the device."""
    given = {name: value for name, value in locals().items() if name not in ("self", "global_override_indptr_cpu")}
    if q_data_type is None:
        given["q_data_type"] = data_type or "float16"
    BatchDecodeWithPagedKVCacheWrapper.plan(self, **given)
