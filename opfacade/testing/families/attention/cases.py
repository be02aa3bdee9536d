"""A small problem for every kind of SKU of attention over K and V."""

from __future__ import annotations

from typing import Any

from opfacade.core.descriptor import Descriptor
from opfacade.plans._attention.paging import PagedKvCacheDescriptor
from opfacade.plans._attention.variant_examples import alibi, document_mask
from opfacade.plans.attention import (
    BatchPagedDecodeDescriptor,
    BatchPagedPrefillDescriptor,
    BatchRaggedPrefillDescriptor,
)
from opfacade.testing.families._problems import case_cache as _cache
from opfacade.testing.families.attention.problems import VARIANTS

_MANY = 60_000  # number of pages of 16 tokens
_LONG = 200_000  # a bound that guarantees neither short requests nor that all chunks are resident at once


def _decode(group: int, cache: PagedKvCacheDescriptor, batch: int = 6, **more: object) -> BatchPagedDecodeDescriptor:
    heads = group * cache.num_kv_heads
    return BatchPagedDecodeDescriptor(batch_size=batch, num_qo_heads=heads, paged_kv=cache, **more)


def _prefill(group: int, cache: PagedKvCacheDescriptor, rows: int, **more: object) -> BatchPagedPrefillDescriptor:
    heads = group * cache.num_kv_heads
    return BatchPagedPrefillDescriptor(batch_size=4, total_num_rows=rows, num_qo_heads=heads, paged_kv=cache, **more)


def _ragged(group: int, dim: int, dtype: str, **more: object) -> BatchRaggedPrefillDescriptor:
    shape = {"batch_size": 4, "total_num_rows": 150, "total_kv_rows": 1500, "num_kv_heads": 2, "num_qo_heads": 2 * group}
    return BatchRaggedPrefillDescriptor.model_validate(shape | {"head_dim": dim, "dtype": dtype} | more)


def cases() -> dict[str, Descriptor[Any]]:
    """{name: descriptor}. The name states the op, the split and special features."""
    plain, odd = _cache(128, "bf16", 16, "HND"), _cache(64, "f16", 5, "NHD")
    return {
        "decode-auto": _decode(4, plain, max_kv_indices=_LONG // 16),
        "decode-cluster": _decode(4, plain),
        "decode-cluster-d256-window-cap": _decode(16, _cache(256, "bf16", 7, "NHD"), window_left=900, logits_soft_cap=20.0),
        "decode-teams": _decode(4, _cache(128, "bf16", 16, "HND", tokens=7000), batch=3),
        "decode-teams-d256-window-sinks": _decode(
            12, _cache(256, "f16", 8, "NHD", 3, tokens=1600), batch=1, window_left=900, sinks=True
        ),
        "decode-fixed-wide-group-block": _decode(20, _cache(128, "bf16", 64, "NHD", 1), kv_split=96, page_table="block"),
        "decode-off-odd-window-cap": _decode(7, odd, kv_split="off", window_left=300, logits_soft_cap=30.0),
        "decode-fixed-odd-window-block": _decode(3, odd, kv_split=100, window_left=777, page_table="block"),
        "decode-auto-d256": _decode(8, _cache(256, "f16", 1, "HND"), max_kv_indices=_LONG),
        "decode-auto-wide-fp8-d256-cap": _decode(
            12,
            _cache(256, "f8_e4m3", 16, "NHD"),
            q_dtype="bf16",
            kv_scale="head",
            max_kv_indices=_LONG // 16,
            logits_soft_cap=25.0,
        ),
        "decode-auto-many": _decode(3, _cache(64, "f16", 16, "NHD", tokens=9000), batch=150, window_left=2000),
        # More requests than a CTA scans for its split, so all CTAs get equal shares.
        "decode-even": _decode(4, _cache(128, "bf16", 16, "HND", 1), batch=270),
        "decode-even-wide-d256-block": _decode(
            12, _cache(256, "f16", 8, "NHD", 1), batch=270, page_table="block", logits_soft_cap=25.0
        ),
        "decode-even-fp8-head": _decode(4, _cache(128, "f8_e4m3", 16, "HND", 1), batch=270, q_dtype="bf16", kv_scale="head"),
        "decode-even-f32-window-sinks": _decode(5, _cache(64, "f32", 16, "NHD", 1), batch=270, window_left=60, sinks=True),
        "decode-auto-f32": _decode(5, _cache(64, "f32", 16, "HND")),
        "decode-fixed-f32": _decode(2, _cache(128, "f32", 3, "NHD"), kv_split=64),
        "decode-auto-fp8-head": _decode(
            4, _cache(128, "f8_e4m3", 16, "HND"), q_dtype="bf16", kv_scale="head", max_kv_indices=_LONG // 16
        ),
        "decode-fixed-fp8-d256-sinks": _decode(
            5, _cache(256, "f8_e5m2", 5, "NHD"), q_dtype="f16", kv_split=160, sinks=True, window_left=1500
        ),
        "decode-cluster-fp8-d64-sinks": _decode(
            8, _cache(64, "f8_e4m3", 64, "NHD"), q_dtype="bf16", kv_scale="tensor", sinks=True
        ),
        "decode-auto-sinks": _decode(8, plain, sinks=True, max_kv_indices=_LONG // 16),
        "prefill-off-causal": _prefill(4, plain, 200, causal=True, kv_split="off"),
        "prefill-fixed-odd-window-cap-block": _prefill(
            7, odd, 90, causal=True, kv_split=200, window_left=400, logits_soft_cap=30.0, page_table="block"
        ),
        "prefill-auto-causal": _prefill(2, plain, 70, causal=True),
        "prefill-auto-full-d256": _prefill(1, _cache(256, "f16", 32, "HND"), 40, causal=False),
        "ragged-off-causal": _ragged(4, 128, "bf16", causal=True, kv_split="off"),
        "ragged-fixed-window": _ragged(3, 64, "f16", causal=False, kv_split=128, window_left=200),
        "ragged-off-uneven": _ragged(1, 192, "bf16", causal=True, kv_split="off", head_dim_vo=128),
        "ragged-fixed-uneven-window-cap-sinks": _ragged(
            3,
            192,
            "f16",
            causal=True,
            head_dim_vo=128,
            kv_split=200,
            window_left=400,
            logits_soft_cap=30.0,
            sinks=True,
            total_num_rows=60,
        ),
        "prefill-off-sinks": _prefill(8, plain, 90, causal=True, kv_split="off", sinks=True, window_left=127),
        "prefill-fixed-odd-sinks": _prefill(3, odd, 60, causal=True, kv_split=200, window_left=300, sinks=True),
        "ragged-auto-sinks": _ragged(2, 64, "bf16", causal=True, sinks=True, total_num_rows=60),
        "prefill-off-everything-varied": _prefill(
            3, odd, 60, causal=False, kv_split="off", window_left=700, page_table="block", variant=VARIANTS[4], custom_mask=True
        ),
        "prefill-auto-alibi": _prefill(4, plain, 50, causal=True, variant=alibi(8), sinks=True),
        "prefill-fixed-documents-d256": _prefill(
            2, _cache(256, "bf16", 16, "NHD"), 40, causal=True, kv_split=300, variant=document_mask()
        ),
        "ragged-off-documents-masked": _ragged(
            2, 128, "bf16", causal=True, kv_split="off", variant=document_mask(), custom_mask=True
        ),
        "ragged-fixed-mask": _ragged(5, 64, "f16", causal=False, kv_split=100, custom_mask=True),
        "prefill-off-fp8-head": _prefill(
            4, _cache(128, "f8_e4m3", 16, "HND"), 90, causal=True, kv_split="off", q_dtype="bf16", kv_scale="head"
        ),
        "prefill-fixed-fp8-d256-sinks-cap": _prefill(
            2,
            _cache(256, "f8_e5m2", 5, "NHD"),
            40,
            causal=True,
            kv_split=300,
            q_dtype="f16",
            kv_scale="tensor",
            sinks=True,
            logits_soft_cap=20.0,
        ),
        "ragged-auto-fp8": _ragged(3, 64, "f8_e4m3", causal=False, q_dtype="bf16", window_left=300, total_num_rows=60),
        "prefill-off-fp8-products": _prefill(
            4, _cache(128, "f8_e4m3", 16, "HND"), 90, causal=True, kv_split="off", kv_scale="head", q_scale="tensor"
        ),
        "prefill-fixed-fp8-products-window-sinks": _prefill(
            3,
            _cache(128, "f8_e4m3", 48, "NHD"),
            60,
            causal=True,
            kv_split=200,
            window_left=300,
            sinks=True,
            kv_scale="tensor",
            o_dtype="f16",
        ),
        "prefill-off-fp8-products-full": _prefill(
            2, _cache(128, "f8_e4m3", 16, "HND"), 50, causal=False, kv_split="off", o_dtype="bf16"
        ),
        "ragged-auto-fp8-products": _ragged(2, 128, "f8_e4m3", causal=False, q_scale="tensor", total_num_rows=60),
        "ragged-off-fp8-products-heads": _ragged(
            2, 128, "f8_e4m3", causal=True, kv_split="off", q_scale="head", total_num_rows=60
        ),
        # Pages may be shared, so one request may be long, and the lengths on the device determine the split of its tiles.
        "prefill-pieces-causal": _prefill(
            4, _cache(128, "bf16", 16, "HND", tokens=9000), 200, causal=True, max_kv_indices=_MANY
        ),
        "prefill-pieces-full-d256-block": _prefill(
            4, _cache(256, "f16", 16, "NHD", tokens=9000), 200, causal=False, max_kv_indices=_MANY, page_table="block"
        ),
        "prefill-pieces-fp8-products": _prefill(
            4,
            _cache(128, "f8_e4m3", 16, "HND", tokens=9000),
            200,
            causal=True,
            max_kv_indices=_MANY,
            kv_scale="head",
            o_dtype="bf16",
        ),
    }
