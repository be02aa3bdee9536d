"""The sampler of vLLM's second runner (`vllm.v1.worker.gpu`) on opfacade: filters and the draw in one launch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor
from vllm.v1.worker.gpu.sample.sampler import Sampler

from opfacade.integrations.drawing import draw
from opfacade.integrations.refusal import refuse_draw
from opfacade.integrations.vllm.sampling_operands import WAY, refuse_processed

if TYPE_CHECKING:
    import torch


class OpfacadeRunnerSampler(Sampler):  # type: ignore[misc]
    """vLLM applies its processors, the temperature and min_p; one draw then applies top_k and top_p and samples the token.

    A token depends on its logits, the request's seed and its position. Drafts are verified by vLLM's own rejection sampler.
    """

    def __init__(
        self, vllm_config: object, max_num_reqs: int, vocab_size: int, device: torch.device | str, req_states: object,
        logprobs_mode: str = "raw_logprobs", num_speculative_tokens: int = 1, use_fp64_gumbel: bool = False,
        enable_trace_replay: bool = False, return_sampling_mask: bool = False, custom_logits_processors: object = (),
    ) -> None:  # fmt: skip
        """Raises UnsupportedError for options that need filtered logits: processed log probabilities and sampling masks."""
        refuse_processed(logprobs_mode)
        if return_sampling_mask:
            refuse_draw(WAY, "OPF-I001", "return_sampling_mask", expected="False", got=True)
        super().__init__(
            vllm_config, max_num_reqs, vocab_size, device, req_states, logprobs_mode, num_speculative_tokens, use_fp64_gumbel,
            enable_trace_replay, return_sampling_mask, custom_logits_processors,
        )  # fmt: skip

    def _sample_random(
        self, processed_logits: Tensor, expanded_idx_mapping: Tensor, idx_mapping_np: object, pos: Tensor, top_k: Tensor | None,
        top_p: Tensor | None, has_topp_only_rows: bool, use_fused_sampler: bool,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Tokens i64 [rows] from logits [rows, vocab] that vLLM has divided by the temperature, so the draw uses temperature 1,
        or 0 for greedy rows."""
        states, rows = self.sampling_states, expanded_idx_mapping
        operands = {
            "temperature": (states.temperature.gpu[rows] > 0).float(),
            "top_k": top_k,
            "top_p": top_p,
            "seed": states.seeds.gpu[rows],
            "offset": pos.long(),
        }
        return draw(WAY, processed_logits, operands).token.clamp_(min=0).long(), processed_logits
