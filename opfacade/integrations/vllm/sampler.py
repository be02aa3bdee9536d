"""The sampler of vLLM's first runner on opfacade: adjustments, filters and the draw in a single launch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from vllm.v1.outputs import SamplerOutput
from vllm.v1.sample.sampler import Sampler

from opfacade.integrations.drawing import draw
from opfacade.integrations.vllm.sampling_operands import (
    WAY,
    SparseBias,
    adjustments,
    filters,
    noise,
    plain_processors,
    refuse_processed,
)

if TYPE_CHECKING:
    from opfacade.integrations.vllm.parts import SamplingMetadata


class OpfacadeSampler(Sampler):  # type: ignore[misc]
    """The sampler for the runner `gpu_model_runner`. If a step needs log-probabilities or processors that `sample` does not
    support, vLLM computes them, and only the token is drawn here."""

    def __init__(self, logprobs_mode: str = "raw_logprobs", use_fp64_gumbel: bool = False) -> None:
        """Raises UnsupportedError for log probabilities of processed logits."""
        refuse_processed(logprobs_mode)
        super().__init__(logprobs_mode, use_fp64_gumbel)
        self._bias = SparseBias()

    def forward(
        self, logits: Tensor, sampling_metadata: SamplingMetadata, predict_bonus_token: bool = False,
        logprobs_mode_override: str | None = None,
    ) -> Any:  # fmt: skip
        """logits [requests, vocab]; the output's tokens are i32 [requests, 1]."""
        if logprobs_mode_override is not None:
            refuse_processed(logprobs_mode_override)
        if predict_bonus_token or not self._is_one_draw(sampling_metadata):
            return super().forward(logits, sampling_metadata, predict_bonus_token, logprobs_mode_override)
        operands = adjustments(logits, sampling_metadata, self._bias) | filters(logits, sampling_metadata)
        token = self._token(logits, sampling_metadata, operands)
        return SamplerOutput(sampled_token_ids=token[:, None], logprobs_tensors=None)

    def sample(
        self, logits: Tensor, sampling_metadata: SamplingMetadata, logprobs_mode_override: str | None = None
    ) -> tuple[Tensor, None]:
        """Tokens i32 [requests] from adjusted logits: vLLM calls this after it has adjusted the logits itself."""
        operands = filters(logits, sampling_metadata)
        if not plain_processors(sampling_metadata):
            logits, operands = self._filtered_before(logits, sampling_metadata, operands)
        return self._token(logits, sampling_metadata, operands), None

    def _token(self, logits: Tensor, metadata: SamplingMetadata, operands: dict[str, Tensor | None]) -> Tensor:
        drawn = draw(WAY, logits, operands | noise(logits, metadata.generators))
        return drawn.token.clamp_(min=0)

    def _filtered_before(
        self, logits: Tensor, metadata: SamplingMetadata, operands: dict[str, Tensor | None]
    ) -> tuple[Tensor, dict[str, Tensor | None]]:
        """Applies vLLM's processors to logits divided by the temperature; top_p then refers to the remaining mass."""
        if metadata.all_greedy:
            return logits, operands
        logits = self.apply_temperature(logits, metadata.temperature, metadata.all_random)
        for processor in metadata.logitsprocs.argmax_invariant:
            logits = processor.apply(logits)
        temperature = operands["temperature"]
        if temperature is not None:  # temperature 0 stays greedy
            temperature = torch.where(temperature > 0, 1.0, 0.0)
        return logits, operands | {"temperature": temperature, "min_p": None}

    @staticmethod
    def _is_one_draw(metadata: SamplingMetadata) -> bool:
        """Whether the step needs only tokens, and a draw supports every adjustment."""
        holder = metadata.thinking_budget_state_holder
        reports = metadata.max_num_logprobs is not None or bool(metadata.logprob_token_ids)
        others = bool(metadata.bad_words_token_ids) or (holder is not None and holder.has_tracked_requests())
        return not reports and not others and plain_processors(metadata, adjust=True)
