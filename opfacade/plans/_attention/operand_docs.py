"""Descriptions of the tensors of a call, for help and the reference. All tensors are on one device."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar

from opfacade.core.descriptor import Args, Setting

OPERAND_DOCS: Mapping[str, str] = MappingProxyType({
    "q": "queries [rows, num_qo_heads, head_dim]; rows are total_num_rows, or batch_size in decode",
    "q_indptr": "int32 [batch_size + 1]: rows of request b are q_indptr[b] to q_indptr[b + 1]",
    "k": "keys [total_kv_rows, num_kv_heads, head_dim]",
    "v": "values [total_kv_rows, num_kv_heads, head_dim_vo]",
    "k_data": "pool of keys, in the layout of paged_kv, with any page, token and head strides",
    "v_data": "pool of values, as k_data",
    "k_new": "new keys [total_num_rows, num_kv_heads, head_dim]",
    "v_new": "new values, as k_new",
    "append_indptr": "int32 [batch_size + 1]: new rows of request b are append_indptr[b] to append_indptr[b + 1]",
    "q_nope": "absorbed queries [batch_size * q_len, num_qo_heads, latent_dim]: row b * q_len + i is row i of request b",
    "q_pe": "rotated queries [batch_size * q_len, num_qo_heads, rope_dim], as q_nope",
    "ckv": "pool of latent rows [num_total_pages, page_size, latent_dim]: keys and values",
    "kpe": "pool of rotated keys [num_total_pages, page_size, rope_dim]",
    "kv_indptr": "int32 [batch_size + 1]: where requests begin in kv_indices (ragged: in k and v); with page_table='csr'",
    "kv_indices": "int32 [n]: page ids of all requests, and any padding; with page_table='csr'",
    "last_page_len": "int32 [batch_size]: tokens on the last page of each request, 1 to page_size; ignored for a request "
                     "without pages; with page_table='csr'",
    "block_table": "int32 [batch_size, max_pages]: page ids of each request, and any padding; with page_table='block'",
    "kv_lens": "int32 [batch_size]: tokens of each request; with page_table='block'",
    "k_scale": "kv_scale='tensor': f32 [1], or a number; 'head': f32 [num_kv_heads]. Must be positive and finite; tensors are "
               "checked only at OPFACADE_VALIDATE=full. K is k_scale * k_data",
    "v_scale": "as k_scale: V is v_scale * v_data",
    "q_scale": "q_scale='tensor': f32 [1], or a number; 'head': f32 [num_kv_heads]; positive and finite, as k_scale. Q is "
               "q_scale * q",
    "sinks": "f32 [num_qo_heads], finite or -inf: logits that are added to the denominators; with sinks=True",
    "head_params": "f32 [n, num_qo_heads]: parameters of the variant for each query head, in the order of their names",
    "row_params": "int32 [n, total_num_rows]: parameters of the variant for each row of q",
    "key_params": "int32 [n, num_total_pages, page_size] or [n, total_kv_rows]: parameters of the variant for each key",
    "packed_mask": "uint8 [n]: one bit per row and key; with custom_mask=True",
    "mask_indptr": "int32 [batch_size + 1]: the first byte of each request in packed_mask; with custom_mask=True",
    "cos_sin_cache": "[max_positions, rotary_dim] in rope_dtype: cosines, then sines, for each position; with rope",
    "o": "written: outputs, one row for each row of q, in o_dtype",
    "lse": "written: f32 [rows, num_qo_heads], the natural logarithm of the sum of exponentials; with return_lse",
})  # fmt: skip

_SCALED = Setting("kv_scale", ("tensor", "head"), ("none",))
_MASKED = Setting("custom_mask", (True,), (False,))

# No value omits a page table: the other form has other operands.
SETTINGS: Mapping[str, Setting] = MappingProxyType(
    {
        **dict.fromkeys(("kv_indptr", "kv_indices", "last_page_len"), Setting("page_table", ("csr",))),
        **dict.fromkeys(("block_table", "kv_lens"), Setting("page_table", ("block",))),
        "k_scale": _SCALED,
        "v_scale": _SCALED,
        "q_scale": Setting("q_scale", ("tensor", "head"), ("none",)),
        "sinks": Setting("sinks", (True,), (False,)),
        "packed_mask": _MASKED,
        "mask_indptr": _MASKED,
        "cos_sin_cache": Setting("rope", ("half", "interleaved"), ("none",)),
        "lse": Setting("return_lse", (True,), (False,)),
    }
)


class AttentionArgs(Args):
    """Base of the args classes of attention and its cache."""

    __slots__ = ()
    docs: ClassVar[Mapping[str, str]] = OPERAND_DOCS
    settings: ClassVar[Mapping[str, Setting]] = SETTINGS
