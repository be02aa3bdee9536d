"""SGLang's sampler on opfacade: one launch normalises and filters each row of logits and draws a token."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from sglang.srt.layers.sampler import Sampler
from torch import Tensor

from opfacade.integrations.drawing import draw, new_seeds
from opfacade.integrations.refusal import refuse_draw

if TYPE_CHECKING:
    from opfacade.integrations.sglang.parts import Logits, SamplingInfo

WAY = "sglang"


class OpfacadeSampler(Sampler):  # type: ignore[misc]
    """Draws from logits to which SGLang has already applied penalties, biases and grammar masks.

    Filters are joint, as in SGLang: top_p and min_p refer to the whole distribution.
    """

    def forward(
        self, logits_output: Logits, sampling_info: SamplingInfo, return_logprob: bool, top_logprobs_nums: list[int],
        token_ids_logprobs: list[list[int]], positions: Tensor | None, *, logprob_logits: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """i32 [batch]. With return_logprob, SGLang computes and reports the probabilities, and this class draws from them.

        Raises UnsupportedError for sampling masks and for an on-policy target, ArgumentError for seeds without positions.
        """
        self._refuse(sampling_info, positions)
        if return_logprob:
            report = (top_logprobs_nums, token_ids_logprobs, positions)
            found: Tensor = super().forward(logits_output, sampling_info, True, *report, logprob_logits=logprob_logits)
            return found
        logits = self._preprocess_logits(logits_output.next_token_logits, sampling_info)
        token = _drawn(logits, sampling_info, positions, temperature=sampling_info.temperatures)
        self._sync_token_ids_across_tp(token, sampling_info)
        return token

    def _sample_from_probs(
        self, probs: Tensor, sampling_info: SamplingInfo, positions: Tensor | None, simple_sampling_case: bool
    ) -> tuple[Tensor, None]:
        """probs [batch, vocab], computed with the temperature."""
        return _drawn(probs.float().log(), sampling_info, positions), None

    def _refuse(self, sampling_info: SamplingInfo, positions: Tensor | None) -> None:
        hint = "Choose another --sampling-backend for it."
        if sampling_info.sampling_mask_batch_indices is not None:
            refuse_draw(WAY, "OPF-I001", "return_sampling_mask", expected="False", got=True, hint=hint)
        if self.rl_on_policy_target is not None:
            refuse_draw(WAY, "OPF-I001", "rl_on_policy_target", expected="None", got=self.rl_on_policy_target, hint=hint)
        if sampling_info.sampling_seed is not None and positions is None:
            refuse_draw(WAY, "OPF-I004", "positions", expected="a tensor beside sampling_seed", got=None)


def _drawn(logits: Tensor, info: SamplingInfo, positions: Tensor | None, temperature: Tensor | None = None) -> Tensor:
    operands = {
        "temperature": None if temperature is None else temperature.view(-1).float(),
        "top_k": info.top_ks.int() if info.need_top_k_sampling else None,
        "top_p": info.top_ps.float() if info.need_top_p_sampling else None,
        "min_p": info.min_ps.float() if info.need_min_p_sampling else None,
    }
    if info.sampling_seed is None or positions is None:
        seed = new_seeds(logits)
        noise = {"seed": seed, "offset": torch.zeros_like(seed)}
    else:
        noise = {"seed": info.sampling_seed.long(), "offset": positions.long()}
    return draw(WAY, logits, operands | noise, order="joint").token.clamp_(min=0)
