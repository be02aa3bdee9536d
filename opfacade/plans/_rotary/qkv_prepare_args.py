"""The tensors of qkv_prepare."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar

from opfacade.core.descriptor import Args, Setting
from opfacade.plans._attention.operand_docs import OPERAND_DOCS, SETTINGS

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class QkvPrepareArgs(Args):
    settings: ClassVar[Mapping[str, Setting]] = MappingProxyType({
        **SETTINGS, "slots": Setting("page_table", ("slots",)), "q_out": Setting("in_place", (False,), (True,)),
    })  # fmt: skip
    docs: ClassVar[Mapping[str, str]] = MappingProxyType({
        **{name: OPERAND_DOCS[name] for name in (
            "k_data", "v_data", "append_indptr", "kv_indptr", "kv_indices", "last_page_len", "block_table", "kv_lens",
            "v_scale",
        )},
        "k_scale": "kv_scale='tensor': f32 [1]; 'head': f32 [num_kv_heads]. Positive and finite. K is k_scale * k_data",
        "q": "[total_num_rows, num_qo_heads, head_dim]; overwritten with in_place",
        "k": "[total_num_rows, num_kv_heads, head_dim]: new keys",
        "v": "new values, as k",
        "q_weight": "[head_dim] in weight_dtype: factors of the norm of q; with a norm",
        "k_weight": "as q_weight, of k",
        "q_out": "written: like q; absent with in_place",
        "positions": "[total_num_rows], or [sections, total_num_rows]: rows of cos_sin_cache; negative positions are skipped",
        "cos_sin_cache": "[max_positions, rotary_dim]: rotary_dim / 2 cosines and then rotary_dim / 2 sines per position",
        "slots": "int64 [total_num_rows]: page * page_size + token of each row, or -1 (not stored); with page_table='slots'",
        "num_valid": "int32 [1]: the number of valid rows; later ones are neither read nor written; with `num_valid`",
    })  # fmt: skip
    q: Tensor
    k: Tensor
    v: Tensor
    q_weight: Tensor | None = None
    k_weight: Tensor | None = None
    q_out: Tensor | None = None
    positions: Tensor
    cos_sin_cache: Tensor
    k_data: Tensor
    v_data: Tensor
    slots: Tensor | None = None
    append_indptr: Tensor | None = None
    kv_indptr: Tensor | None = None
    kv_indices: Tensor | None = None
    last_page_len: Tensor | None = None
    block_table: Tensor | None = None
    kv_lens: Tensor | None = None
    k_scale: Tensor | None = None
    v_scale: Tensor | None = None
    num_valid: Tensor | None = None
