"""Metadata of a step for vLLM's layers: the runner's own index tensors, which stay on the device."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor
from vllm.v1.attention.backend import AttentionCGSupport, AttentionMetadata, AttentionMetadataBuilder

from opfacade.integrations.paged_layer import EACH_ITS_OWN, Requests
from opfacade.integrations.refusal import refuse
from opfacade.integrations.slots import Places, places_of
from opfacade.integrations.step_memo import StepMemo
from opfacade.integrations.support import here, refusals
from opfacade.integrations.vllm.cache_dtypes import CACHE_DTYPES

if TYPE_CHECKING:
    from opfacade.integrations.vllm.parts import Config, Step

WAY = "vllm"


@dataclass(frozen=True)
class OpfacadeMetadata(AttentionMetadata):  # type: ignore[misc]
    """rows: the number of rows of the step, including padding of a captured graph. slots [rows] i64: the slot of each row; -1:
    the row is not stored, as for padding, for a draft beyond the maximum length, and for rejected rows of parallel drafting."""

    rows: int
    requests: Requests
    slots: Tensor

    def places(self, layer: object, page_size: int) -> Places:
        """The destinations of this step's rows, shared by its layers."""
        return self.requests.memo.get("places", layer, self.slots, lambda: places_of(self.slots, page_size))


class OpfacadeMetadataBuilder(AttentionMetadataBuilder):  # type: ignore[misc]
    """Copies nothing and does not synchronise: the device assigns work from the lengths in its memory."""

    # A captured graph is valid for any lengths within its shapes, also with prefill and decode mixed.
    _cudagraph_support: ClassVar[AttentionCGSupport] = AttentionCGSupport.ALWAYS
    supports_update_block_table: bool = True

    def __init__(self, kv_cache_spec: object, layer_names: list[str], vllm_config: Config, device: torch.device) -> None:
        """Raises UnsupportedError if requests have individual masks that no kernel supports (OPF-I001)."""
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        # The bound is not the longest request of the step: each step would then need its own plan, and a replay may be longer.
        self._max_kv_len = int(vllm_config.model_config.max_model_len)
        _refuse_masks(vllm_config)

    def build(self, common_prefix_len: int, common_attn_metadata: Step, fast_build: bool = False) -> OpfacadeMetadata:
        step = common_attn_metadata
        requests = Requests(
            q_indptr=step.query_start_loc,
            block_table=step.block_table_tensor,
            kv_lens=step.seq_lens,
            max_kv_len=max(self._max_kv_len, step.max_seq_len),
            decodes=_decodes(step),
            causal=step.causal,
        )
        return OpfacadeMetadata(step.num_actual_tokens, requests, step.slot_mapping[: step.num_actual_tokens])

    def update_block_table(self, metadata: OpfacadeMetadata, blk_table: Tensor, slot_mapping: Tensor) -> OpfacadeMetadata:
        requests = replace(metadata.requests, block_table=blk_table, memo=StepMemo())
        return replace(metadata, requests=requests, slots=slot_mapping[: metadata.rows])


def _decodes(step: Step) -> bool:
    """Whether row b is the only row of request b; padding requests of a graph come last. Reads the starts on the host."""
    if step.max_query_len != 1 or step.num_actual_tokens != step.num_reqs:
        return False
    starts = step.query_start_loc_cpu[: step.num_reqs + 1].tolist()
    return all(start == min(request, starts[-1]) for request, start in enumerate(starts))


def _refuse_masks(config: Config) -> None:
    """Whether each request of a step has its own mask, as in a diffusion model."""
    if not getattr(config.model_config, "is_diffusion", False):
        return
    kind = CACHE_DTYPES.get(config.cache_config.cache_dtype)
    found = refusals(here(), dtype="f16" if kind == "f16" else "bf16", kv_dtype=kind, causal=False, variant=EACH_ITS_OWN)
    if found:
        hint = "Choose another backend or --kv-cache-dtype."
        refuse(WAY, "OPF-I001", "causal", expected="what a kernel takes for each request", got=found[0], hint=hint)
