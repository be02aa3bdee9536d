"""The attributes of SGLang's objects that the adapter reads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class ForwardMode(Protocol):
    def is_decode(self) -> bool: ...
    def is_decode_or_idle(self) -> bool: ...
    def is_extend_without_speculative(self) -> bool: ...
    def is_idle(self) -> bool: ...


class Batch(Protocol):
    """A ForwardBatch."""

    batch_size: int
    forward_mode: ForwardMode
    req_pool_indices: Tensor
    seq_lens: Tensor
    extend_seq_lens: Tensor | None


class AttentionType(Protocol):
    """A member of the enumeration of the same name."""

    DECODER: object


class AttentionLayer(Protocol):
    """A RadixAttention."""

    layer_id: int
    tp_q_head_num: int
    qk_head_dim: int
    v_head_dim: int
    scaling: float
    logit_cap: float | None
    logit_capping_method: str
    sliding_window_size: int | None
    is_cross_attention: bool
    attn_type: AttentionType
    k_scale: Tensor | None
    v_scale: Tensor


class ModelConfig(Protocol):
    context_len: int
    head_dim: int


class Speculation(Protocol):
    def is_none(self) -> bool: ...


class RequestPool(Protocol):
    req_to_token: Tensor


class KvPool(Protocol):
    def get_kv_buffer(self, layer: int) -> tuple[Tensor, Tensor]: ...
    def set_kv_buffer(self, layer: AttentionLayer, where: object, k: Tensor, v: Tensor, *scales: Tensor) -> None: ...


class Model(Protocol):
    def modules(self) -> Iterator[torch.nn.Module]: ...


class Runner(Protocol):
    """A ModelRunner."""

    device: str
    dtype: torch.dtype
    kv_cache_dtype: torch.dtype
    model: Model
    model_config: ModelConfig
    page_size: int | None
    req_to_token_pool: RequestPool
    spec_algorithm: Speculation
    token_to_kv_pool: KvPool
    use_mla_backend: bool


class Logits(Protocol):
    """A LogitsProcessorOutput."""

    next_token_logits: Tensor


class SamplingInfo(Protocol):
    """A SamplingBatchInfo."""

    temperatures: Tensor
    top_ks: Tensor
    top_ps: Tensor
    min_ps: Tensor
    need_top_k_sampling: bool
    need_top_p_sampling: bool
    need_min_p_sampling: bool
    sampling_seed: Tensor | None
    sampling_mask_batch_indices: object
