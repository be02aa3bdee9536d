"""Variants that models have, ready to use."""

from __future__ import annotations

from opfacade.plans._attention.expression import rounded
from opfacade.plans._attention.variant import Variant, equal, f32, kv_pos, per_head, per_key, per_row, q_pos, score, tanh


def alibi(num_heads: int) -> Variant:
    """Attention with linear biases: score + slope * (kv_pos - q_pos), one slope a query head.

    The call takes `head_params [1, num_heads]`, f32: usually `[alibi_slopes(num_heads)]`. num_heads is what the slopes are for;
    it is no part of the kernel.
    """
    if num_heads < 1:
        raise ValueError(f"num_heads expected at least 1, got {num_heads}")
    return Variant(logits=score + per_head("slopes") * f32(kv_pos - q_pos))


def alibi_slopes(num_heads: int) -> list[float]:
    """The slopes of the paper: 2^(-8 (h+1) / n) for n a power of two; else those of the power of two below, and every
    other one of the next."""
    below = 1 << (num_heads.bit_length() - 1)
    first = [2.0 ** (-8.0 * (h + 1) / below) for h in range(below)]
    between = [2.0 ** (-4.0 * (2 * h + 1) / below) for h in range(num_heads - below)]
    return [rounded(slope) for slope in first + between]


def sliding_window(w: int) -> Variant:
    """Keys more than w positions before the row's own are hidden. `window_left=w` does the same and also skips their tiles."""
    if w < 0:
        raise ValueError(f"w expected at least 0, got {w}")
    return Variant(mask=kv_pos >= q_pos - w)


def document_mask() -> Variant:
    """A row sees the keys of its own document: `row_params [1, rows]` and `key_params [1, ...]` hold document ids, i32."""
    return Variant(mask=equal(per_row("row_document"), per_key("key_document")))


def soft_cap(cap: float) -> Variant:
    """cap * tanh(score / cap), as `logits_soft_cap` has it, by a product with the nearest f32 to 1 / cap."""
    if not cap > 0:
        raise ValueError(f"cap expected a positive number, got {cap}")
    return Variant(logits=cap * tanh((1.0 / cap) * score))
