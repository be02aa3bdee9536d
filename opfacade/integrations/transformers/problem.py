"""The parameters of one attention call that do not depend on how keys and values are stored."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from opfacade.core.model import INT32_MAX
from opfacade.integrations.pass_memo import PassMemo
from opfacade.integrations.refusal import refuse
from opfacade.integrations.transformers.releases import WAY
from opfacade.plans.mask import pack_mask

_masks: PassMemo[dict[str, Tensor]] = PassMemo()


@dataclass(frozen=True, slots=True)
class Scores:
    """Score parameters: scale, soft cap, sinks [heads] and window. window: the number of keys that a row sees, including its
    own; 0: all."""

    scale: float | None
    cap: float
    sinks: Tensor | None
    window: int

    @property
    def fields(self) -> dict[str, Any]:
        """Fields of a descriptor; the caller sets window_left, because it knows the alignment of rows and keys."""
        return {
            "sm_scale": self.scale, "logits_soft_cap": self.cap, "sinks": self.sinks is not None, "return_lse": False,
        }  # fmt: skip

    @property
    def window_left(self) -> int:
        """Keeps the window even if all tokens of a call fit in it; otherwise another kernel would be built when a sequence
        grows beyond the window."""
        return min(self.window - 1, INT32_MAX) if self.window > 0 else -1


def scores(scaling: float | None, softcap: float | None, s_aux: Tensor | None, sliding_window: int | None) -> Scores:
    """Converts transformers' arguments to Scores; sinks are converted to f32.

    Raises DTypeError for sinks that are not a tensor, UnsupportedError for a window that is not an integer; the descriptor
    refuses scales and caps that are not numbers.
    """
    if sliding_window is not None and not _is_integer(sliding_window):
        got = repr(sliding_window) if isinstance(sliding_window, str) else type(sliding_window).__name__
        refuse(WAY, "OPF-I001", "sliding_window", expected="None or an integer", got=got)
    sinks = None if s_aux is None else _require_tensor("s_aux", s_aux).detach().reshape(-1).float().contiguous()
    return Scores(scaling, 0.0 if softcap is None else softcap, sinks, sliding_window or 0)


def check_batch(query: Tensor, key: Tensor, value: Tensor) -> None:
    """Raises the errors of `check_tensors`, and ShapeError if keys or values do not match the requests of the query."""
    check_tensors(query, key, value)
    if key.shape[0] != query.shape[0] or key.shape[:3] != value.shape[:3]:
        expected = f"[{query.shape[0]}, kv_heads, kv_len, dim] both"
        refuse(WAY, "OPF-I002", "key, value", expected=expected, got=f"{list(key.shape)}, {list(value.shape)}")


def check_tensors(query: object, key: object, value: object) -> None:
    """Raises DTypeError for a value that is not a tensor, and ShapeError for a tensor that is not [batch, heads, length,
    dim]."""
    for name, given in (("query", query), ("key", key), ("value", value)):
        tensor = _require_tensor(name, given)
        if tensor.ndim != 4:
            refuse(WAY, "OPF-I002", name, expected="[batch, heads, length, dim]", got=list(tensor.shape))


def _require_tensor(name: str, value: object) -> Tensor:
    if not isinstance(value, Tensor):
        refuse(WAY, "OPF-I003", name, expected="a tensor", got=type(value).__name__)
    return value


def _is_integer(value: object) -> bool:
    return isinstance(value, Integral) or (isinstance(value, Tensor) and value.numel() == 1)


def packed_mask(module: object, mask: Tensor, q_len: int, kv_len: int, batch: int) -> dict[str, Tensor]:
    """The operands for a mask [batch or 1, 1, q_len or 1, at least kv_len]. Layers of a pass that share the mask share the
    operands."""
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        got = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        refuse(WAY, "OPF-I003", "attention_mask", expected="torch.bool", got=got, hint="True is a key that a row sees.")
    fits = mask.ndim == 4 and mask.shape[0] in (1, batch) and mask.shape[1] == 1 and mask.shape[2] in (1, q_len)
    if not fits or mask.shape[3] < kv_len:
        expected = f"[{batch}, 1, {q_len}, {kv_len} or more], one mask for all heads"
        refuse(WAY, "OPF-I002", "attention_mask", expected=expected, got=list(mask.shape))

    def make() -> dict[str, Tensor]:
        bits, indptr = pack_mask(mask[..., :kv_len].expand(batch, 1, q_len, kv_len).squeeze(1).contiguous())
        return {"packed_mask": bits, "mask_indptr": indptr}

    return _masks.get(module, (mask,), (id(mask), q_len, kv_len, batch), make)
