"""SGLang's attention over SGLang's pool, with a page table that is computed on the device, also inside captured graphs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from sglang.srt.layers.attention.base_attn_backend import AttentionBackend
from sglang.srt.mem_cache.memory_pool import KVWriteLoc
from torch import Tensor

from opfacade.integrations.paged_layer import Layer, Pool, Requests
from opfacade.integrations.refusal import refuse
from opfacade.integrations.sglang.buffers import WAY
from opfacade.integrations.sglang.page_table import PageTable
from opfacade.integrations.sglang.refusals import refuse_arguments, refuse_layer, refuse_server

if TYPE_CHECKING:
    from opfacade.integrations.sglang.parts import AttentionLayer, Batch, Runner


class OpfacadeAttnBackend(AttentionBackend):  # type: ignore[misc]
    """Decode and extend of a decoder. Decode is captured in graphs; each replay computes the page table from the current
    lengths."""

    needs_cpu_seq_lens: bool = False

    def __init__(self, model_runner: Runner) -> None:
        """Raises UnsupportedError if `refuse_server` refuses the model, the pool or a layer."""
        super().__init__()
        refuse_server(model_runner)
        self.device = model_runner.device
        self.token_to_kv_pool = model_runner.token_to_kv_pool
        self._page_size = model_runner.page_size or 1
        self._max_kv_len = int(model_runner.model_config.context_len)
        tokens = model_runner.req_to_token_pool.req_to_token
        self._table = PageTable(tokens, self._page_size, min(self._max_kv_len, tokens.shape[1]))
        self.forward_metadata: Requests | None = None

    # -- what a step is -------------------------------------------------------------------------------------------

    def init_cuda_graph_state(self, max_bs: int, max_num_tokens: int) -> None:
        self._table.reserve(max_bs)

    def get_cuda_graph_seq_len_fill_value(self) -> int:
        return 1

    def init_forward_metadata_out_graph(self, forward_batch: Batch, in_capture: bool = False) -> None:
        """Which tensors a step uses; their contents are written by init_forward_metadata_in_graph."""
        mode = forward_batch.forward_mode
        if not (mode.is_decode_or_idle() or mode.is_extend_without_speculative()):
            refuse(WAY, "OPF-I001", "forward_mode", expected="DECODE, EXTEND, MIXED or IDLE", got=mode)
        self.forward_metadata = None if mode.is_idle() else self._requests(forward_batch)

    def _requests(self, batch: Batch) -> Requests:
        size, decodes = batch.batch_size, batch.forward_mode.is_decode()
        self._table.reserve(size)
        table, kv_lens, q_indptr = self._table.views(size)
        return Requests(q_indptr, table, kv_lens, self._max_kv_len, decodes)

    def init_forward_metadata_in_graph(self, forward_batch: Batch) -> None:
        """Writes page table, lengths and indptr to this backend's buffers on the device. Does not synchronise."""
        if self.forward_metadata is not None:
            extend = None if self.forward_metadata.decodes else forward_batch.extend_seq_lens
            self._table.write(forward_batch.req_pool_indices, forward_batch.seq_lens, extend)

    # -- a layer --------------------------------------------------------------------------------------------------

    def forward_decode(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        layer: AttentionLayer,
        forward_batch: Batch,
        save_kv_cache: bool = True,
        **kwargs: object,
    ) -> Tensor:
        """q [rows, heads * dim] and k, v [rows, kv_heads, dim]; returns [rows, heads * dim]."""
        return self._forward(q, (k, v) if save_kv_cache else None, layer, forward_batch, kwargs)

    forward_extend = forward_decode

    def _forward(
        self, q: Tensor, new: tuple[Tensor, Tensor] | None, layer: AttentionLayer, batch: Batch, kwargs: dict[str, Any]
    ) -> Tensor:
        sinks = kwargs.pop("sinks", None)
        refuse_layer(layer)
        refuse_arguments(kwargs)
        pool = self._pool(layer)
        if new is not None and new[0] is not None:
            self.token_to_kv_pool.set_kv_buffer(layer, KVWriteLoc.for_batch(batch), *new, *(pool.scales or ()))
        rows = q.reshape(-1, layer.tp_q_head_num, layer.qk_head_dim)
        o = torch.zeros_like(rows) if self._pads(rows) else torch.empty_like(rows)
        self._of(layer, sinks).attend(pool, self._current(), rows, o)
        return o.flatten(1)

    def _pool(self, layer: AttentionLayer) -> Pool:
        """The buffers of a layer: rows of tokens, or with SGLANG_USE_HND_KVCACHE pages in HND layout, which have 4 dimensions.

        An fp8 cache holds K / k_scale. A layer of a quantised model has scales even if its cache is not fp8; they are then
        ignored."""
        k, v = self.token_to_kv_pool.get_kv_buffer(layer.layer_id)
        scales = None
        if k.dtype.itemsize == 1 and layer.k_scale is not None:
            scales = (layer.k_scale.detach().reshape(1), layer.v_scale.detach().reshape(1))
        if k.ndim == 4:
            return Pool(WAY, k, v, "HND", scales)
        k, v = (buffer.view(-1, self._page_size, *buffer.shape[1:]) for buffer in (k, v))
        return Pool(WAY, k, v, "NHD", scales)

    def _pads(self, rows: Tensor) -> bool:
        """o for the rows. A prefill may have padding rows, which no request writes, so o is initialised; a decode writes all
        rows."""
        return not self._current().decodes

    def _current(self) -> Requests:
        if self.forward_metadata is None:
            refuse(WAY, "OPF-I004", "forward_metadata", expected="init_forward_metadata before forward", got=None)
        return self.forward_metadata

    @staticmethod
    def _of(layer: AttentionLayer, sinks: Tensor | None) -> Layer:
        # SGLang counts the keys before a row's own, as window_left does.
        window = -1 if layer.sliding_window_size is None else layer.sliding_window_size
        return Layer(layer.tp_q_head_num, layer.scaling, window, layer.logit_cap or 0.0, sinks)

    def support_triton(self) -> bool:
        return False
