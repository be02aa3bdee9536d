"""The score parameters of a call, and the descriptor fields with the same meaning."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Literal, NamedTuple

from opfacade.variant import Variant, f32, kv_len, kv_pos, per_head, per_row, q_len, q_pos, score, tanh

Bias = Literal["none", "causal", "distance", "from_row"]


class Scores(NamedTuple):
    """The map from q.k to a weight, and the keys that a row sees.

    window_left, window_right: the number of keys that a row sees before and after its own position; -1 means unbounded. bias: a
    slope per query head times kv_pos - q_pos if a row sees no later key ("causal"), times -|kv_pos - q_pos| ("distance"), or
    times (the key's position minus the row's index in its request) ("from_row"). capped_first: the soft cap applies before the
    bias. left_padding: each row has a first visible key. head_factor: each query head has a factor.
    """

    causal: bool = False
    window_left: int = -1
    window_right: int = -1
    soft_cap: float = 0.0
    bias: Bias = "none"
    capped_first: bool = False
    left_padding: bool = False
    head_factor: bool = False

    @property
    def varies(self) -> bool:
        """Whether the scores need a variant, which only prefill supports."""
        return self.bias != "none" or self.left_padding or self.head_factor or self._sees_ahead

    @property
    def _sees_ahead(self) -> bool:
        return self.window_right > 0 and not self.causal

    def of_last_row(self) -> Scores:
        """The parameters for the last row of each request. No key follows that row, so nothing has to be masked."""
        return self._replace(causal=False, window_right=-1)

    def fields(self) -> dict[str, Any]:
        """The fields of a prefill descriptor; `for_decode` omits fields that decode does not have."""
        found: dict[str, Any] = {"causal": self.causal or self.window_right == 0, "window_left": max(-1, self.window_left)}
        if self.varies:
            found["variant"] = _variant(self)
        if not self._transforms:
            found["logits_soft_cap"] = self.soft_cap
        return found

    def for_decode(self) -> dict[str, Any]:
        return {"window_left": max(-1, self.window_left), "logits_soft_cap": self.soft_cap}

    @property
    def _transforms(self) -> bool:
        return self.bias != "none" or self.head_factor


@lru_cache(maxsize=256)
def _variant(scores: Scores) -> Variant:
    logits: Any = score * per_head("factor") if scores.head_factor else score
    if scores.soft_cap and scores.capped_first:
        logits = _capped(logits, scores.soft_cap)
    logits = _biased(logits, scores.bias)
    if scores.soft_cap and not scores.capped_first:
        logits = _capped(logits, scores.soft_cap)
    return Variant(logits=logits if scores._transforms else None, mask=_mask(scores))


def _capped(logits: Any, cap: float) -> Any:
    return cap * tanh((1.0 / cap) * logits)


def _biased(logits: Any, bias: Bias) -> Any:
    slope = per_head("slopes")
    if bias == "causal":
        return logits + slope * f32(kv_pos - q_pos)
    if bias == "distance":
        return logits - slope * abs(f32(kv_pos - q_pos))
    if bias == "from_row":
        return logits + slope * f32(kv_pos - (q_pos - kv_len + q_len))
    return logits


def _mask(scores: Scores) -> Any:
    mask: Any = kv_pos >= per_row("first_key") if scores.left_padding else None
    if scores._sees_ahead:
        ahead = kv_pos <= q_pos + scores.window_right
        mask = ahead if mask is None else mask & ahead
    return mask
