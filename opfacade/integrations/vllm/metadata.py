"""Metadata of a step for the layers of vLLM: the runner's own index tensors, which stay on the device."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor
from vllm.v1.attention.backend import AttentionCGSupport, AttentionMetadata, AttentionMetadataBuilder

from opfacade.integrations.paged_layer import Requests
from opfacade.integrations.refusal import refuse

WAY = "vllm"


@dataclass(frozen=True)
class OpfacadeMetadata(AttentionMetadata):  # type: ignore[misc]
    """rows: number of rows of the step, padding of a captured graph included."""

    rows: int
    requests: Requests


class OpfacadeMetadataBuilder(AttentionMetadataBuilder):  # type: ignore[misc]
    """Copies nothing and reads nothing back: the device assigns work from the lengths in its memory."""

    # A captured graph is right for any lengths within its shapes, prefill and decode mixed.
    _cudagraph_support: ClassVar[AttentionCGSupport] = AttentionCGSupport.ALWAYS
    supports_update_block_table: bool = True

    def __init__(self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        # The longest request of a step would need another plan for each step, and could be too short for a graph's next replay.
        self._max_kv_len = int(vllm_config.model_config.max_model_len)

    def build(self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False) -> OpfacadeMetadata:
        """Raises UnsupportedError where each request has a mask of its own (`causal` is a tensor)."""
        step = common_attn_metadata
        if isinstance(step.causal, Tensor):
            refuse(WAY, "OPF-I001", "causal", expected="True or False", got="a tensor", hint="Choose another backend for it.")
        requests = Requests(
            q_indptr=step.query_start_loc,
            block_table=step.block_table_tensor,
            kv_lens=step.seq_lens,
            max_kv_len=max(self._max_kv_len, step.max_seq_len),
            decodes=step.max_query_len == 1 and step.num_actual_tokens == step.num_reqs,
            causal=step.causal,
        )
        return OpfacadeMetadata(step.num_actual_tokens, requests)

    def update_block_table(self, metadata: OpfacadeMetadata, blk_table: Tensor, slot_mapping: Tensor) -> OpfacadeMetadata:
        return replace(metadata, requests=replace(metadata.requests, block_table=blk_table))
