"""Names that other libraries have for the fields and operands of attention, for the hints of messages."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from opfacade.plans._elsewhere import ROWS

FIELDS: Mapping[str, str] = MappingProxyType({
    **ROWS,
    "num_heads": "num_qo_heads", "num_q_heads": "num_qo_heads", "num_heads_q": "num_qo_heads", "num_heads_k": "num_kv_heads",
    "softmax_scale": "sm_scale", "scale": "sm_scale", "softcap": "logits_soft_cap", "window_size": "window_left",
    "is_causal": "causal", "kv_cache": "paged_kv", "dtype_q": "q_dtype", "q_data_type": "q_dtype",
    "block_size": "page_size", "num_blocks": "num_total_pages", "num_pages": "num_total_pages", "head_size": "head_dim",
    "kv_layout": "layout", "max_seqlen_k": "max_kv_len",
})  # fmt: skip

# Fields that other libraries turn off with None.
OFF: Mapping[str, object] = MappingProxyType({"window_left": -1, "logits_soft_cap": 0.0})

# A latent row has two widths and no heads, and latent attention no factors of fp8: names that are near mean something else.
LATENT_FIELDS: Mapping[str, str] = MappingProxyType({
    **FIELDS, "kv_lora_rank": "latent_dim", "head_dim_ckv": "latent_dim", "head_dim_vo": "latent_dim",
    "qk_rope_head_dim": "rope_dim", "head_dim_kpe": "rope_dim", "head_dim": "latent_dim and rope_dim",
    "head_size": "latent_dim and rope_dim", "head_dim_qk": "latent_dim and rope_dim",
})  # fmt: skip
LATENT_ATTENTION: Mapping[str, str] = MappingProxyType(
    {
        **FIELDS,
        **dict.fromkeys(LATENT_FIELDS.keys() - FIELDS.keys() | {"head_size"}, "paged_kv"),
        **dict.fromkeys(("num_kv_heads", "num_heads_k", "kv_scale", "k_scale", "v_scale", "q_scale"), ""),
    }
)

OPERANDS: Mapping[str, str] = MappingProxyType({
    "seq_lens": "kv_lens", "cache_seqlens": "kv_lens", "context_lens": "kv_lens", "seqlens_k": "kv_lens",
    "cu_seqlens_q": "q_indptr", "qo_indptr": "q_indptr", "cu_seqlens_k": "kv_indptr", "paged_kv_indptr": "kv_indptr",
    "paged_kv_indices": "kv_indices", "paged_kv_last_page_len": "last_page_len", "kv_last_page_len": "last_page_len",
    "page_table": "block_table", "block_tables": "block_table", "k_cache": "k_data", "v_cache": "v_data",
    "out": "o", "output": "o", "softmax_lse": "lse", "ckv_cache": "ckv", "kpe_cache": "kpe", "s_aux": "sinks",
})  # fmt: skip
