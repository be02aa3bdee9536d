"""The facts of one attention call that do not depend on how keys and values are stored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from opfacade.integrations.pass_memo import PassMemo
from opfacade.integrations.refusal import refuse
from opfacade.integrations.transformers.releases import WAY
from opfacade.plans.mask import pack_mask

_masks: PassMemo[dict[str, Tensor]] = PassMemo()


@dataclass(frozen=True, slots=True)
class Scores:
    """Score parameters: scale, soft cap, sinks [heads] and window. window: keys that a row sees, its own included; 0 is all."""

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

    def window_left(self, kv_len: int) -> int:
        """-1 where kv_len tokens fit in the window."""
        return self.window - 1 if 0 < self.window < kv_len else -1


def scores(scaling: float | None, softcap: float | None, s_aux: Tensor | None, sliding_window: int | None) -> Scores:
    """Scores from the arguments as transformers names them; sinks are read in f32."""
    sinks = None if s_aux is None else s_aux.detach().reshape(-1).float().contiguous()
    return Scores(scaling, softcap or 0.0, sinks, sliding_window or 0)


def check_batch(query: Tensor, key: Tensor, value: Tensor) -> None:
    """Raise ShapeError where keys or values do not match the requests of the query."""
    if key.shape[0] != query.shape[0] or key.shape[:3] != value.shape[:3]:
        expected = f"[{query.shape[0]}, kv_heads, kv_len, dim] both"
        refuse(WAY, "OPF-I002", "key, value", expected=expected, got=f"{list(key.shape)}, {list(value.shape)}")


def packed_mask(module: Any, mask: Tensor, q_len: int, kv_len: int, batch: int) -> dict[str, Tensor]:
    """The operands of a mask [batch or 1, 1, q_len or 1, at least kv_len]; layers of a pass that share the mask share them."""
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
