"""The least work of a problem, by hand."""

import pytest

from opfacade.plans.attention import (
    BatchPagedDecodeDescriptor,
    BatchPagedPrefillDescriptor,
    BatchRaggedPrefillDescriptor,
    PagedKvCacheDescriptor,
)
from opfacade.plans.cascade import MergeStatesDescriptor
from opfacade.plans.kv_cache import PagedKvAppendDescriptor
from opfacade.tools.amount import amount
from opfacade.tools.workload import Lengths


def pool(tokens, heads=8, dim=128, page=16):
    pages = -(-tokens // page)
    return PagedKvCacheDescriptor(
        num_total_pages=pages, page_size=page, num_kv_heads=heads, head_dim=dim, dtype="bf16", layout="HND"
    )


def decode(batch, kv, heads=32, **fields):
    return BatchPagedDecodeDescriptor(batch_size=batch, num_qo_heads=heads, paged_kv=pool(batch * kv), **fields)


def prefill(batch, q, kv, causal=True, **fields):
    pages = pool(batch * kv)
    return BatchPagedPrefillDescriptor(
        batch_size=batch, total_num_rows=batch * q, num_qo_heads=32, causal=causal, paged_kv=pages, **fields
    )


def test_decode_reads_k_and_v_once_and_multiplies_each_key_twice():
    found = amount(decode(4, 1000), Lengths(kv=(1000, 500, 0, 1)))
    q_o_lse = 4 * 32 * (2 * 128 * 2 + 4)
    index = 4 * (5 + 4)  # kv_indptr and last_page_len
    assert found.bytes == q_o_lse + index + 2 * 1501 * 8 * 128 * 2
    assert found.flops == 4 * 1501 * 32 * 128


@pytest.mark.parametrize(("q", "kv"), [(1, 1), (3, 3), (2, 7), (7, 7), (5, 100)])
def test_a_causal_mask_leaves_out_what_it_hides(q, kv):
    pairs = sum(row + kv - q + 1 for row in range(q))
    assert amount(prefill(1, q, kv), Lengths(q=(q,), kv=(kv,))).flops == 4 * pairs * 32 * 128
    assert amount(prefill(1, q, kv, causal=False), Lengths(q=(q,), kv=(kv,))).flops == 4 * q * kv * 32 * 128


def test_a_window_hides_keys_and_saves_their_bytes():
    wide, narrow = (amount(decode(1, 4096, window_left=w), Lengths(kv=(4096,))) for w in (-1, 99))
    assert narrow.flops == 4 * 100 * 32 * 128
    assert wide.bytes - narrow.bytes == 2 * 3996 * 8 * 128 * 2


def test_a_value_may_be_narrower_than_a_key():
    wide = {"batch_size": 1, "total_num_rows": 3, "total_kv_rows": 7, "num_qo_heads": 4, "num_kv_heads": 2, "dtype": "bf16"}
    found = amount(BatchRaggedPrefillDescriptor(**wide, causal=False, head_dim=192, head_dim_vo=128), Lengths(q=(3,), kv=(7,)))
    assert found.flops == 2 * 3 * 7 * 4 * (192 + 128)
    assert found.bytes == 3 * 4 * (192 * 2 + 128 * 2 + 4) + 4 * (2 + 2) + 7 * 2 * (192 + 128) * 2


def test_append_and_merge_move_their_rows():
    append = PagedKvAppendDescriptor(batch_size=2, total_num_rows=10, paged_kv=pool(64))
    assert amount(append).bytes == 2 * 2 * 10 * 8 * 128 * 2
    merge = MergeStatesDescriptor(num_states=3, total_num_rows=5, num_heads=2, head_dim=64, dtype="bf16")
    assert amount(merge).bytes == 4 * (5 * 2) * (64 * 2 + 4)
    for states in ("stacked", "list"):
        in_place = type(merge).model_validate(merge.model_dump() | {"states": states, "in_place": True})
        assert amount(in_place).bytes == amount(merge).bytes
