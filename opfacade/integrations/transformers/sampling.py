"""`model.generate(..., custom_generate=sample, seed=[...])`: opfacade draws the tokens, with one seed per request."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from opfacade.base.short_repr import shown
from opfacade.core.model import as_index
from opfacade.integrations.drawing import draw, new_seeds
from opfacade.integrations.refusal import refuse_draw
from opfacade.integrations.transformers.releases import WAY

if TYPE_CHECKING:
    from opfacade.integrations.transformers.parts import Generating, GenerationConfig, LogitsProcessor

# The processors of transformers that a draw replaces, in the order in which the draw applies them.
_CONTROLS = {
    "TemperatureLogitsWarper": ("temperature", torch.float32),
    "TopKLogitsWarper": ("top_k", torch.int32),
    "TopPLogitsWarper": ("top_p", torch.float32),
    "MinPLogitsWarper": ("min_p", torch.float32),
}
_WITHOUT_EFFECT = ("LogitNormalization",)
_INTEGERS = "integers of 64 bits"
_WITHOUT = "Generate without custom_generate."


def sample(
    model: Generating,
    input_ids: Tensor,
    logits_processor: list[LogitsProcessor],
    stopping_criteria: object,
    generation_config: GenerationConfig,
    seed: int | Sequence[int] | Tensor | None = None,
    **model_kwargs: Any,
) -> Any:
    """`custom_generate` of `generate`: transformers' loop, with temperature, top_k, top_p and min_p in a single draw per step.
    seed: one per row of the batch; a single number s means s + b for row b; None: random seeds from torch's generator. A
    request gets the same tokens in any row and any batch, up to rounding of its logits. With do_sample=False decoding is
    greedy. Raises UnsupportedError for beams, for a processor that would come after the first filter, and for a filter with a
    non-default filter_value or min_tokens_to_keep. Raises ShapeError and DTypeError for seeds of another batch and for seeds
    that are not 64-bit integers."""
    if (generation_config.num_beams or 1) > 1:
        refuse_draw(WAY, "OPF-I001", "num_beams", expected="1", got=generation_config.num_beams)
    kept, controls = _split(logits_processor)
    if not generation_config.do_sample:
        controls["temperature"] = 0.0
    drawer = _Drawer(controls, _seeds(seed, input_ids), input_ids.shape[1])
    greedy = copy.copy(generation_config)
    greedy.do_sample = False  # the processor leaves only the drawn token, so greedy selection takes it
    processors = type(logits_processor)([*kept, drawer])
    return model._sample(input_ids, processors, stopping_criteria, greedy, **model_kwargs)


def _split(processors: list[LogitsProcessor]) -> tuple[list[Any], dict[str, float]]:
    """The processors that are still called, and the parameters of the processors that a draw replaces."""
    kept: list[Any] = []
    controls: dict[str, float] = {}
    order = list(_CONTROLS)
    last = -1
    for processor in processors:
        name = type(processor).__name__
        if name in _CONTROLS and order.index(name) > last:
            last = order.index(name)
            _check_filter(name, processor)
            controls[_CONTROLS[name][0]] = getattr(processor, _CONTROLS[name][0])
        elif last >= 0 and name not in _WITHOUT_EFFECT:
            hint = f"Filters of a draw come last: temperature, top_k, top_p, min_p. {_WITHOUT}"
            refuse_draw(WAY, "OPF-I001", "logits_processor", expected="none behind the first filter", got=name, hint=hint)
        elif name not in _WITHOUT_EFFECT:
            kept.append(processor)
    return kept, controls


def _check_filter(name: str, processor: object) -> None:
    """The filter's parameter. Refuses options that a draw does not have: it never draws a filtered token, and keeps at least
    one token. TopKLogitsWarper's top_k already includes min_tokens_to_keep."""
    kept, value = getattr(processor, "min_tokens_to_keep", 1), getattr(processor, "filter_value", -math.inf)
    if kept > 1 and name != "TopKLogitsWarper":
        refuse_draw(WAY, "OPF-I001", "min_tokens_to_keep", expected="1", got=f"{kept} of {name}", hint=_WITHOUT)
    if value != -math.inf:
        refuse_draw(WAY, "OPF-I001", "filter_value", expected="-inf", got=f"{value} of {name}", hint=_WITHOUT)


def _seeds(seed: int | Sequence[int] | Tensor | None, input_ids: Tensor) -> Tensor:
    rows = len(input_ids)
    if seed is None:
        return new_seeds(input_ids)
    found = _integers(seed).to(input_ids.device)
    if found.ndim == 0 and not isinstance(seed, Tensor):
        return torch.arange(rows, device=input_ids.device) + found
    if found.shape != (rows,):
        hint = "num_return_sequences makes a row of each sequence."
        refuse_draw(WAY, "OPF-I002", "seed", expected=f"a number or [{rows}]", got=list(found.shape), hint=hint)
    return found


def _integers(seed: object) -> Tensor:
    """The seeds as i64 with the shape of `seed`. Refuses fractions, which a conversion by torch would truncate."""
    if isinstance(seed, Tensor):
        if seed.is_floating_point() or seed.is_complex() or seed.dtype == torch.bool:
            refuse_draw(WAY, "OPF-I003", "seed", expected=_INTEGERS, got=seed.dtype)
        return seed.to(torch.int64)
    if isinstance(seed, Iterable):
        return torch.tensor([_integer(one) for one in seed], dtype=torch.int64)
    return torch.tensor(_integer(seed), dtype=torch.int64)


def _integer(seed: object) -> int:
    found = as_index(seed)
    if type(found) is not int or not -(2**63) <= found < 2**63:
        refuse_draw(WAY, "OPF-I003", "seed", expected=_INTEGERS, got=shown(seed))
    return found


class _Drawer(NamedTuple):
    """A logits processor that leaves only the drawn token: its score is 0, all others are -inf.

    start: the length of the prompts. Positions of tokens count from `start`, so padding on the left does not change them.
    """

    controls: dict[str, float]
    seed: Tensor
    start: int

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        columns = {name: self._column(scores, name) for name in self.controls}
        offset = torch.full_like(self.seed, input_ids.shape[1] - self.start)
        token = draw(WAY, scores, {"seed": self.seed, "offset": offset} | columns).token
        found = torch.full_like(scores, -torch.inf)
        return found.scatter_(1, token.clamp_(min=0).long()[:, None], 0.0)

    def _column(self, scores: Tensor, name: str) -> Tensor:
        dtype, value = dict(_CONTROLS.values())[name], self.controls[name]
        value = min(value, scores.shape[1]) if name == "top_k" else value
        return torch.full((len(scores),), value, dtype=dtype, device=scores.device)
