"""A layer's forward in vLLM: new rows go to the engine's slots, then prefill or decode writes vLLM's output tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor
from vllm.v1.attention.backend import AttentionImpl, AttentionType

from opfacade.integrations.paged_layer import Layer, Pool
from opfacade.integrations.refusal import refuse
from opfacade.integrations.vllm.cache_dtypes import CACHE_DTYPES, fp8_of
from opfacade.integrations.vllm.metadata import WAY, OpfacadeMetadata

if TYPE_CHECKING:
    from opfacade.integrations.vllm.parts import CacheLayer


class OpfacadeImpl(AttentionImpl):  # type: ignore[misc]
    def __init__(
        self, num_heads: int, head_size: int, scale: float, num_kv_heads: int | None = None,
        alibi_slopes: list[float] | None = None, sliding_window: int | None = None, kv_cache_dtype: str = "auto",
        logits_soft_cap: float | None = None, attn_type: str = AttentionType.DECODER,
        kv_sharing_target_layer_name: str | None = None, sinks: Tensor | None = None, **unknown: object,
    ) -> None:  # fmt: skip
        """Raises UnsupportedError, naming the first argument that this adapter does not support."""
        for name, value in {"alibi_slopes": alibi_slopes, **unknown}.items():
            if value is not None and (isinstance(value, Tensor) or value):
                got = "a tensor" if isinstance(value, Tensor) else value
                refuse(WAY, "OPF-I001", name, expected="to be absent", got=got, hint="Choose another backend for it.")
        if attn_type != AttentionType.DECODER:
            refuse(WAY, "OPF-I001", "attn_type", expected="decoder", got=attn_type, hint="Choose another backend for it.")
        if kv_cache_dtype not in CACHE_DTYPES:
            refuse(WAY, "OPF-I001", "kv_cache_dtype", expected=" or ".join(CACHE_DTYPES), got=kv_cache_dtype)
        self.num_heads, self.head_size, self.scale = num_heads, head_size, float(scale)
        self.num_kv_heads = num_kv_heads or num_heads
        self.kv_cache_dtype = kv_cache_dtype
        self._writes = kv_sharing_target_layer_name is None
        self._cache_view = fp8_of(kv_cache_dtype)
        window = -1 if sliding_window is None else sliding_window - 1
        self._layer = Layer(num_heads, self.scale, window, logits_soft_cap or 0.0, sinks)

    def forward(
        self, layer: CacheLayer, query: Tensor, key: Tensor | None, value: Tensor | None, kv_cache: Tensor,
        attn_metadata: OpfacadeMetadata | None, output: Tensor, output_scale: Tensor | None = None,
        output_block_scale: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """query [tokens, heads, dim], key and value [tokens, kv_heads, dim], kv_cache [blocks, kv_heads, block_size, 2 * dim]
        of any strides. Writes output [tokens, heads, dim] and returns it.

        Raises UnsupportedError for scales of the output.
        """
        for name, scale in {"output_scale": output_scale, "output_block_scale": output_block_scale}.items():
            if scale is not None:
                refuse(WAY, "OPF-I001", name, expected="to be absent", got="a tensor", hint="No plan quantises its output so.")
        if attn_metadata is None:  # vLLM's run that measures memory
            return output.fill_(0)
        rows, pool = attn_metadata.rows, self._pool(layer, kv_cache)
        if self._writes and key is not None and value is not None:
            places = attn_metadata.places(self, pool.descriptor.page_size)
            self._layer.append(pool, places, self._rows(key, rows), self._rows(value, rows))
        self._layer.attend(pool, attn_metadata.requests, self._rows(query, rows), self._rows(output, rows))
        return output

    def _rows(self, x: Tensor, rows: int) -> Tensor:
        return x.view(x.shape[0], -1, self.head_size)[:rows]

    def _pool(self, layer: CacheLayer, kv_cache: Tensor) -> Pool:
        k, v = kv_cache[..., : self.head_size], kv_cache[..., self.head_size :]
        if self._cache_view is None:
            return Pool(WAY, k, v, "HND")
        scales = (layer._k_scale.reshape(1), layer._v_scale.reshape(1))
        return Pool(WAY, k.view(self._cache_view), v.view(self._cache_view), "HND", scales)
