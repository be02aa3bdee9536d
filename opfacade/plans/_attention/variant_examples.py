"""Variants that models use."""

from __future__ import annotations

from opfacade.plans._attention.expression import rounded
from opfacade.plans._attention.variant import Variant, equal, f32, kv_pos, per_head, per_key, per_row, q_pos, score, tanh


def alibi(num_heads: int) -> Variant:
    """Attention with linear biases: score + slope * (kv_pos - q_pos), with one slope per query head.

    The call takes `head_params [1, num_heads]`, f32: usually `[alibi_slopes(num_heads)]`. num_heads is the number of slopes;
    the kernel does not depend on it."""
    if num_heads < 1:
        raise ValueError(f"num_heads expected at least 1, got {num_heads}")
    return Variant(logits=score + per_head("slopes") * f32(kv_pos - q_pos))


def alibi_slopes(num_heads: int) -> list[float]:
    """The slopes of the paper: 2^(-8 (h+1) / n) if n is a power of two; otherwise the slopes for the next lower power of two,
    followed by every other slope of the next higher one."""
    below = 1 << (num_heads.bit_length() - 1)
    first = [2.0 ** (-8.0 * (h + 1) / below) for h in range(below)]
    between = [2.0 ** (-4.0 * (2 * h + 1) / below) for h in range(num_heads - below)]
    return [rounded(slope) for slope in first + between]


def sliding_window(w: int) -> Variant:
    """Hides keys more than w positions before the row's own position. `window_left=w` does the same and also skips their
    tiles."""
    if w < 0:
        raise ValueError(f"w expected at least 0, got {w}")
    return Variant(mask=kv_pos >= q_pos - w)


def document_mask() -> Variant:
    """A row sees the keys of its own document: `row_params [1, rows]` and `key_params [1, ...]` hold document ids, i32."""
    return Variant(mask=equal(per_row("row_document"), per_key("key_document")))


def soft_cap(cap: float) -> Variant:
    """cap * tanh(score / cap), like `logits_soft_cap`, computed as a product with the f32 nearest to 1 / cap."""
    if not cap > 0:
        raise ValueError(f"cap expected a positive number, got {cap}")
    return Variant(logits=cap * tanh((1.0 / cap) * score))
