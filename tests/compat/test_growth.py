"""A sequence that grows needs no other kernel: the SKUs of functions of flash-attn and FlashInfer over lengths 1 to 4,100."""

import pytest
import torch

import opfacade.compat.flashinfer as flashinfer
from opfacade.compat import selecting
from opfacade.compat.flash_attn import flash_attn_func, flash_attn_varlen_func, flash_attn_with_kvcache
from tests.support.growing import LONGEST, POWERS, asking

HEADS, KV_HEADS, DIM, PAGE, LATENT, ROPE = 8, 2, 64, 16, 512, 64
SIZES = (HEADS, KV_HEADS, DIM)
BF16 = {"q_data_type": torch.bfloat16}
LENGTHS = sorted({*POWERS, *range(1, LONGEST + 1, 11), LONGEST})


@pytest.fixture
def asked(monkeypatch):
    monkeypatch.setattr(selecting, "_descriptors", {})
    with asking() as found:
        yield found


def x(*shape, dtype=torch.bfloat16):
    """Nothing is computed, so all elements share memory."""
    return torch.zeros(1, dtype=dtype).expand(shape)


def i32(*values):
    return torch.tensor(values, dtype=torch.int32)


def buffer():
    return torch.empty(256, dtype=torch.uint8)


def pages(length, requests=2):
    """A table in FlashInfer's form: indptr, indices, and rows of the last page; every request has `length` tokens."""
    count = -(-length // PAGE)
    return (
        torch.arange(requests + 1, dtype=torch.int32) * count, torch.zeros(requests * count, dtype=torch.int32),
        torch.full((requests,), (length - 1) % PAGE + 1, dtype=torch.int32),
    )  # fmt: skip


def pool(heads=KV_HEADS, dim=DIM):
    return x(64, PAGE, heads, dim)


def of_flash_attn(rows, batch=1):
    return lambda n: flash_attn_func(x(batch, rows, HEADS, DIM), *[x(batch, n + rows, KV_HEADS, DIM)] * 2, causal=True)


def of_varlen(rows, paged=False):
    def call(n):
        n += rows
        table = {"block_table": torch.zeros(2, -(-n // PAGE), dtype=torch.int32)} if paged else {}
        keys = pool() if paged else x(2 * n, KV_HEADS, DIM)
        ends = {"seqused_k": i32(n, n)} if paged else {}
        flash_attn_varlen_func(
            x(2 * rows, HEADS, DIM), keys, keys, i32(0, rows, 2 * rows), None if paged else i32(0, n, 2 * n), rows, n,
            causal=True, **table, **ends,
        )  # fmt: skip

    return call


def of_cache(rows, paged=False):
    def call(n):
        new, lens = x(2, rows, KV_HEADS, DIM), i32(n - 1, n - 1)
        cache = pool() if paged else torch.zeros(2, n + rows, KV_HEADS, DIM, dtype=torch.bfloat16)
        table = {"block_table": torch.zeros(2, -(-(n + rows) // PAGE), dtype=torch.int32)} if paged else {}
        flash_attn_with_kvcache(
            x(2, rows, HEADS, DIM), cache, cache.clone(), new, new, cache_seqlens=lens, causal=True, **table
        )

    return call


def decode(n):
    w = flashinfer.BatchDecodeWithPagedKVCacheWrapper(buffer())
    w.plan(*pages(n), *SIZES, PAGE, **BF16)
    w.run(x(2, HEADS, DIM), (pool(), pool()))


def over_pages(rows):
    def call(n):
        w = flashinfer.BatchPrefillWithPagedKVCacheWrapper(buffer())
        w.plan(i32(0, rows, 2 * rows), *pages(n), *SIZES, PAGE, causal=True, **BF16)
        w.run(x(2 * rows, HEADS, DIM), (pool(), pool()))

    return call


def ragged(rows):
    def call(n):
        n += rows
        w = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(buffer())
        w.plan(i32(0, rows, 2 * rows), i32(0, n, 2 * n), *SIZES, causal=True, **BF16)
        w.run(x(2 * rows, HEADS, DIM), *[x(2 * n, KV_HEADS, DIM)] * 2)

    return call


def mixed(n):
    w = flashinfer.BatchAttention("NHD", device="cpu")
    indptr, indices, _ = pages(n)
    w.plan(i32(0, 5, 6), indptr, indices, i32(n, n), HEADS, KV_HEADS, DIM, DIM, PAGE, causal=True)
    w.run(x(6, HEADS, DIM), (pool(), pool()))


def latent(rows):
    def call(n):
        w = flashinfer.BatchMLAPagedAttentionWrapper(buffer())
        indptr, indices, _ = pages(n)
        sizes = (HEADS, LATENT, ROPE, PAGE)
        w.plan(i32(0, rows, 2 * rows), indptr, indices, i32(n, n), *sizes, True, 0.1, torch.bfloat16, torch.bfloat16)
        w.run(x(2 * rows, HEADS, LATENT), x(2 * rows, HEADS, ROPE), x(64, PAGE, LATENT), x(64, PAGE, ROPE))

    return call


def older_latent(n):
    w = flashinfer.BatchDecodeMlaWithPagedKVCacheWrapper(buffer())
    w.plan(*pages(n), HEADS, LATENT, PAGE, 0.1, data_type=torch.bfloat16)
    w.run(x(2, HEADS, LATENT), x(2, HEADS, ROPE), x(64, PAGE, LATENT), x(64, PAGE, ROPE))


def cascade(n):
    w, (shared, own) = flashinfer.MultiLevelCascadeAttentionWrapper(2, buffer(), "NHD"), (pages(n, 1), pages(n))
    tables = [list(level) for level in zip(shared, own, strict=True)]
    w.plan([i32(0, 2), i32(0, 1, 2)], *tables, *SIZES, PAGE, causal=True, **BF16)
    w.run(x(2, HEADS, DIM), x(64, 2, PAGE, KV_HEADS, DIM))


def shared_prefix(n):
    w = flashinfer.BatchDecodeWithSharedPrefixPagedKVCacheWrapper(buffer())
    w.begin_forward(*pages(n), *SIZES, PAGE, data_type=torch.bfloat16)
    w.forward(x(2, HEADS, DIM), *[x(n + 2, KV_HEADS, DIM)] * 2, (pool(), pool()))


def append(n):
    where = torch.zeros(n, dtype=torch.int32), torch.arange(n, dtype=torch.int32)
    indptr, indices, last = pages(n, 1)
    flashinfer.append_paged_kv_cache(x(n, KV_HEADS, DIM), x(n, KV_HEADS, DIM), *where, (pool(), pool()), indices, indptr, last)


GROWING = {
    "flash_attn_func, one row": of_flash_attn(1),
    "flash_attn_func, one row of each request": of_flash_attn(1, batch=3),
    "flash_attn_func, five rows": of_flash_attn(5),
    "flash_attn_func, five rows of each request": of_flash_attn(5, batch=3),
    "flash_attn_varlen_func, one row": of_varlen(1),
    "flash_attn_varlen_func, five rows": of_varlen(5),
    "flash_attn_varlen_func, one row, pages": of_varlen(1, paged=True),
    "flash_attn_varlen_func, five rows, pages": of_varlen(5, paged=True),
    "flash_attn_with_kvcache, one row": of_cache(1),
    "flash_attn_with_kvcache, five rows": of_cache(5),
    "flash_attn_with_kvcache, one row, pages": of_cache(1, paged=True),
    "flash_attn_with_kvcache, five rows, pages": of_cache(5, paged=True),
    "single_decode": lambda n: flashinfer.single_decode_with_kv_cache(x(HEADS, DIM), *[x(n, KV_HEADS, DIM)] * 2),
    "single_prefill": lambda n: flashinfer.single_prefill_with_kv_cache(x(5, HEADS, DIM), *[x(n + 5, KV_HEADS, DIM)] * 2),
    "decode wrapper": decode,
    "paged wrapper, one row": over_pages(1),
    "paged wrapper, five rows": over_pages(5),
    "ragged wrapper": ragged(5),
    "BatchAttention": mixed,
    "latent wrapper, one row": latent(1),
    "latent wrapper, three rows": latent(3),
    "older latent wrapper": older_latent,
    "cascade": cascade,
    "shared prefix": shared_prefix,
    "append": append,
}  # fmt: skip


@pytest.mark.parametrize("name", GROWING)
def test_a_sequence_that_grows_has_one_kernel_of_each_op(asked, name):
    for length in LENGTHS:
        GROWING[name](length)
    assert asked
    levels = {"paged_prefill": 2} if name == "cascade" else {}  # only rows of the last level are causal
    assert {op: len(ids) for op, ids in asked.items()} == dict.fromkeys(asked, 1) | levels


PROMPTS = {
    "flash_attn_func": lambda n: flash_attn_func(x(1, n, HEADS, DIM), *[x(1, n, KV_HEADS, DIM)] * 2, causal=True),
    "flash_attn_varlen_func": lambda n: flash_attn_varlen_func(
        x(n, HEADS, DIM), *[x(n, KV_HEADS, DIM)] * 2, i32(0, n), i32(0, n), n, n, causal=True
    ),
    "single_prefill": lambda n: flashinfer.single_prefill_with_kv_cache(
        x(n, HEADS, DIM), *[x(n, KV_HEADS, DIM)] * 2, causal=True
    ),
}


@pytest.mark.parametrize("name", PROMPTS)
def test_prompts_have_a_kernel_for_one_row_one_for_few_and_one_for_many(asked, name):
    for length in LENGTHS:
        PROMPTS[name](length)
    assert sum(len(ids) for ids in asked.values()) <= 3


def rotated(n):
    flashinfer.apply_rope_with_cos_sin_cache_inplace(
        torch.zeros(n, dtype=torch.int32), torch.zeros(n, HEADS * DIM), torch.zeros(n, DIM), DIM, torch.zeros(64, DIM)
    )


def added(n):
    flashinfer.fused_add_rmsnorm(torch.zeros(n, 256), torch.zeros(n, 256), x(256, dtype=torch.float32))


ROWS = {
    "rmsnorm": lambda n: flashinfer.rmsnorm(x(n, 256), x(256)),
    "fused_add_rmsnorm": added,
    "layernorm": lambda n: flashinfer.layernorm(x(n, 256), x(256, dtype=torch.float32), x(256, dtype=torch.float32)),
    "silu_and_mul": lambda n: flashinfer.silu_and_mul(x(n, 512)),
    "rope": rotated,
    "softmax": lambda n: flashinfer.softmax(x(n, 1024, dtype=torch.float32)),
}


@pytest.mark.parametrize("name", ROWS)
def test_functions_of_rows_have_one_kernel_for_every_number_of_rows(asked, name):
    for rows in LENGTHS[::3]:
        ROWS[name](rows)
    assert [len(ids) for ids in asked.values()] == [1]
