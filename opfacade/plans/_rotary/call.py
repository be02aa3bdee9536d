"""RotaryCall: the tensors of a rotary call, without None: the reader knows which of them the descriptor has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor


class RotaryCall(Protocol):
    """Operands by name. An op has only some of them; these are tensors, or None if they are optional."""

    q: Tensor
    k: Tensor
    v: Tensor
    q_out: Tensor
    k_out: Tensor
    positions: Tensor
    cos_sin_cache: Tensor
    num_valid: Tensor | None
    k_data: Tensor
    v_data: Tensor
    slots: Tensor | None
    append_indptr: Tensor
    block_table: Tensor | None
    kv_lens: Tensor
    kv_indptr: Tensor
    kv_indices: Tensor
    last_page_len: Tensor
