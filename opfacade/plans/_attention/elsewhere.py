"""Other libraries' names for the fields of latent attention, for hints in messages, and the values that turn these fields
off."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from opfacade.core.elsewhere import FIELDS

# Fields that other libraries turn off with None.
OFF: Mapping[str, object] = MappingProxyType({"window_left": -1, "logits_soft_cap": 0.0})

# Latent rows have two widths and no heads, and latent attention has no fp8 scales, so similar names mean something else.
_WIDTHS = {"head_dim", "head_size", "head_dim_qk"}
_NONE = {name for name, meant in FIELDS.items() if "num_kv_heads" in meant or "layout" in meant or "kv_scale" in meant}
LATENT_FIELDS: Mapping[str, str] = MappingProxyType({
    **FIELDS, "kv_lora_rank": "latent_dim", "head_dim_ckv": "latent_dim", "head_dim_vo": "latent_dim",
    "qk_rope_head_dim": "rope_dim", "head_dim_kpe": "rope_dim", "head_dim": "latent_dim and rope_dim",
    "head_size": "latent_dim and rope_dim", "head_dim_qk": "latent_dim and rope_dim",
})  # fmt: skip
LATENT_ATTENTION: Mapping[str, str] = MappingProxyType(
    {
        **FIELDS,
        **dict.fromkeys(LATENT_FIELDS.keys() - FIELDS.keys() | _WIDTHS, "paged_kv"),
        **dict.fromkeys((*_NONE, "num_kv_heads", "kv_scale", "k_scale", "v_scale", "q_scale"), ""),
    }
)
