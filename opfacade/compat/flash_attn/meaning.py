"""Converts flash-attn's arguments to scores, operands and a split."""

from __future__ import annotations

from numbers import Integral
from typing import Any, NamedTuple

import torch

from opfacade.compat.refusals import number, refuse_unless, require_integer, require_tensor, wrong, wrong_dtype, wrong_shape
from opfacade.compat.scores import Scores

# Hints that affect speed only; opfacade ignores them.
_HINTS = frozenset({"pack_gqa", "sm_margin", "scheduler_metadata", "deterministic", "fa_version"})


class Meaning(NamedTuple):
    """slopes: [heads] f32, or [batch, heads], which needs one call per request."""

    op: str
    scores: Scores
    sm_scale: float | None
    slopes: torch.Tensor | None
    sinks: torch.Tensor | None

    def operands(self) -> dict[str, torch.Tensor]:
        """The slopes of a call in which all requests have the same slopes."""
        found = {} if self.sinks is None else {"sinks": self.sinks.float()}
        if self.slopes is not None:
            found["head_params"] = self.slopes.float().reshape(1, -1)
        return found

    def of_request(self, request: int) -> Meaning:
        return self if self.slopes is None else self._replace(slopes=self.slopes[request])

    @property
    def is_of_each_request(self) -> bool:
        return self.slopes is not None and self.slopes.dim() == 2


def meaning_of(op: str, heads: int, batch: int, arguments: dict[str, Any]) -> Meaning:
    """The meaning of a function's arguments, by name. Raises an error that names the first argument without an equivalent."""
    refuse_unless(op, {"dropout_p": (arguments.get("dropout_p"), 0.0)}, "There is no dropout: set it to 0.0 for inference.")
    refuse_unless(op, {"attention_chunk": (arguments.get("attention_chunk"), 0), "qv": (arguments.get("qv"), None)})
    left, right = _window(op, arguments["window_size"])
    softcap, slopes = number(op, "softcap", arguments["softcap"]), _slopes(op, arguments["alibi_slopes"], heads, batch)
    causal = truth(op, "causal", arguments["causal"]) or right == 0
    scores = Scores(
        causal=causal,
        window_left=left,
        window_right=-1 if causal else right,
        soft_cap=softcap,
        bias="none" if slopes is None else "causal" if causal else "distance",
        capped_first=True,
    )
    scale = arguments["softmax_scale"]
    scale = None if scale is None else number(op, "softmax_scale", scale)
    return Meaning(op, scores, scale, slopes, _sinks(op, arguments.get("s_aux"), heads))


def truth(op: str, argument: str, value: object) -> bool:
    """A bool of Python or numpy, or 0 or 1. Tensors and strings are refused, because "no" would count as true."""
    kind = type(value)
    if (isinstance(value, Integral) and value in (0, 1)) or (kind.__module__ == "numpy" and kind.__name__ in ("bool", "bool_")):
        return bool(value)
    raise wrong(op, argument, "True or False", repr(value) if isinstance(value, str) else kind.__name__)


def require_dense(op: str, argument: str, value: object, dims: str) -> None:
    """Raises unless `value` is a dense, real tensor. Any rank is accepted; `dims` appears in the error message alone."""
    if not isinstance(value, torch.Tensor) or value.is_nested or value.layout != torch.strided:
        require_tensor(op, argument, value, dims)
    elif value.is_complex():
        raise wrong_dtype(op, argument, "a real dtype", value.dtype)


def _window(op: str, window: object) -> tuple[int, int]:
    """(left, right) of a pair or of a tensor of two, where None, negative numbers and more keys than a request can have mean
    unbounded. A right side of 2^30 or more counts as unbounded, because a row's position plus its right side must fit in an
    i32."""
    if window is None:
        return -1, -1
    if isinstance(window, torch.Tensor) and window.dim() == 1:
        window = tuple(window)
    if not isinstance(window, (tuple, list)) or len(window) != 2:
        raise wrong(op, "window_size", "a pair (left, right)", repr(window))
    left, right = (-1 if side is None else max(-1, require_integer(op, "window_size", _scalar(side))) for side in window)
    return left if left < 2**31 - 1 else -1, right if right < 2**30 else -1


def _scalar(side: object) -> Any:
    """The number of a tensor without dimensions, as flash-attn's C++ takes one; a value that is not an integer is refused
    unchanged."""
    return side.item() if isinstance(side, torch.Tensor) and side.dim() == 0 else side


def _slopes(op: str, slopes: torch.Tensor | None, heads: int, batch: int) -> torch.Tensor | None:
    """[heads], or [batch, heads] if requests have different slopes."""
    if slopes is None:
        return None
    require_dense(op, "alibi_slopes", slopes, "nheads")
    if tuple(slopes.shape) not in ((heads,), (batch, heads)):
        raise wrong_shape(op, "alibi_slopes", f"[nheads={heads}] or [batch_size={batch}, nheads={heads}]", list(slopes.shape))
    if slopes.dim() == 2 and batch == 0:
        return slopes.new_zeros(heads)  # without requests, any row of slopes is valid
    same = slopes.dim() == 2 and (batch == 1 or slopes.stride(0) == 0)
    return slopes[0] if same else slopes


def _sinks(op: str, sinks: torch.Tensor | None, heads: int) -> torch.Tensor | None:
    if sinks is not None:
        if require_tensor(op, "s_aux", sinks, "nheads") != (heads,):
            raise wrong_shape(op, "s_aux", f"[nheads={heads}]", list(sinks.shape))
        require_dense(op, "s_aux", sinks, "nheads")
    return sinks


def kv_split(op: str, num_splits: int | None, capacity: int) -> str | int:
    """0 lets the library choose the split, 1 never splits, and n splits `capacity` keys into at most n chunks."""
    if num_splits is None or require_integer(op, "num_splits", num_splits) == 0:
        return "auto"
    if num_splits < 0:
        raise wrong(op, "num_splits", "0 or more", num_splits)
    return "off" if num_splits == 1 else max(1, -(-capacity // num_splits))


def lse_of_rows(lse: torch.Tensor | None, batch: int, rows: int) -> torch.Tensor:
    """[batch, heads, rows] from lse [batch * rows, heads]."""
    assert lse is not None
    return lse.view(batch, rows, lse.shape[1]).transpose(1, 2).contiguous()
