"""The attention reference against a float64 loop that shares no code with it."""

import random
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from opfacade.errors import IndexDataError
from tests.support import naive_attention as naive
from tests.support import problems
from tests.support.problems import bits, cache, cloned, decode, i32, poison, prefill, ragged, run


def assert_right(problem):
    descriptor, args = run(problem)
    o, lse = naive.ragged(descriptor, args) if hasattr(args, "k") else naive.paged(descriptor, args)
    # The reference computes in f64 if q is f32, otherwise in f32.
    arithmetic = 1e-14 if args.q.dtype == torch.float32 else 4e-6
    naive.assert_rounded(args.o, o, magnitude=4.0, arithmetic=arithmetic)
    if args.lse is not None:
        naive.assert_rounded(args.lse, lse, magnitude=8.0, arithmetic=arithmetic)


def random_lengths(rng, batch):
    kv_lens = [rng.choice([0, 1, rng.randint(1, 17)]) for _ in range(batch)]
    return [rng.choice([0, 1, rng.randint(0, 6)]) for _ in range(batch)], kv_lens


def random_fields(rng):
    return {
        "window_left": rng.choice([-1, -1, 0, 1, 5]),
        "logits_soft_cap": rng.choice([0.0, 0.0, 1.5]),
        "sm_scale": rng.choice([None, 0.3]),
        "return_lse": rng.random() < 0.8,
    }


def random_cache(rng):
    return cache(
        num_total_pages=60, page_size=rng.choice([1, 3, 4, 5]), num_kv_heads=rng.choice([1, 2]), head_dim=rng.choice([1, 3, 8]),
        dtype=rng.choice(["f16", "bf16", "f32", "f8_e4m3", "f8_e5m2"]), layout=rng.choice(["HND", "NHD"]),
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(40))
def test_a_random_paged_prefill_equals_the_loop(seed):
    rng = random.Random(seed)
    paged_kv = random_cache(rng)
    q_lens, kv_lens = random_lengths(rng, rng.randint(1, 4))
    q_dtype = rng.choice([None, "f16", "bf16", "f32"])
    more = {"causal": rng.random() < 0.5, "page_table": rng.choice(["csr", "block"]), "shared": rng.random() < 0.5}
    heads = paged_kv.num_kv_heads * rng.choice([1, 2, 7])
    more |= {"q_dtype": q_dtype, "strided": seed % 3 == 0, **random_fields(rng)}
    assert_right(prefill(q_lens, kv_lens, heads=heads, paged_kv=paged_kv, seed=seed, **more))


@pytest.mark.parametrize("seed", range(20))
def test_a_random_paged_decode_equals_the_loop(seed):
    rng = random.Random(seed)
    paged_kv = random_cache(rng)
    _, kv_lens = random_lengths(rng, rng.randint(1, 4))
    heads = paged_kv.num_kv_heads * rng.choice([1, 3, 7])
    form = rng.choice(["csr", "block"])
    assert_right(
        decode(kv_lens, heads=heads, paged_kv=paged_kv, seed=seed, page_table=form, strided=seed % 3 == 0, **random_fields(rng))
    )


@pytest.mark.parametrize("seed", range(20))
def test_a_random_ragged_prefill_equals_the_loop(seed):
    rng = random.Random(seed)
    q_lens, kv_lens = random_lengths(rng, rng.randint(1, 4))
    dtype, causal = rng.choice(["f16", "bf16", "f32", "f8_e4m3"]), rng.random() < 0.5
    kv_heads = rng.choice([1, 2])
    assert_right(
        ragged(
            q_lens, kv_lens, heads=7 * kv_heads, kv_heads=kv_heads, dtype=dtype, causal=causal, seed=seed, **random_fields(rng)
        )
    )


@pytest.mark.parametrize("widths", [(8, 3), (3, 8), (192, 128), (1, 65)])
@pytest.mark.parametrize("dtype", ["bf16", "f32", "f8_e4m3"])
def test_v_and_o_may_be_wider_or_narrower_than_q_and_k(widths, dtype):
    dim, dim_vo = widths
    q_dtype = "bf16" if dtype == "f8_e4m3" else None
    assert_right(ragged([3, 0, 2], [5, 2, 2], dim=dim, dim_vo=dim_vo, dtype=dtype, q_dtype=q_dtype))


def test_a_row_without_visible_keys_has_o_zero_and_lse_minus_infinity():
    _, args = run(prefill([5, 2, 3], [2, 0, 3]))
    assert (args.o[:3] == 0).all()
    assert (args.lse[:3] == -torch.inf).all()
    assert (args.o[5:7] == 0).all()
    assert (args.lse[5:7] == -torch.inf).all()
    assert torch.isfinite(args.lse[3:5]).all()
    assert torch.isfinite(args.lse[7:]).all()


def test_lse_is_the_natural_logarithm():
    descriptor, args = decode([3], sm_scale=1.0, paged_kv=cache(dtype="f32"))
    args.q.zero_()
    run((descriptor, args))
    torch.testing.assert_close(args.lse, torch.full_like(args.lse, 1.0986122886681098), rtol=1e-7, atol=0)


def test_causal_is_aligned_to_the_bottom_right():
    _, causal = run(prefill([2], [6], causal=True, seed=3))
    _, full = run(prefill([2], [6], causal=False, seed=3))
    assert torch.equal(causal.o[1], full.o[1])
    assert not torch.equal(causal.o[0], full.o[0])


def test_a_window_of_zero_sees_only_the_row_itself():
    descriptor, args = run(prefill([3], [7], window_left=0, heads=2))
    [tokens] = naive.locations(args, descriptor.paged_kv.page_size)
    for row, (page, token) in enumerate(tokens[4:]):
        assert torch.equal(args.o[row], args.v_data[page, token])


def test_a_window_without_causal_still_sees_the_keys_after_the_row():
    _, near = run(prefill([3], [7], window_left=7, causal=False))
    _, full = run(prefill([3], [7], window_left=-1, causal=False))
    assert torch.equal(near.o, full.o)
    _, cut = run(prefill([3], [7], window_left=1, causal=False))
    assert not torch.equal(cut.o, full.o)


@pytest.mark.parametrize("make", [prefill, ragged])
def test_an_empty_prefill_batch_is_valid(make):
    _, args = run(make([], []))
    assert args.o.shape[0] == 0


def test_an_empty_decode_batch_is_valid():
    _, args = run(decode([], page_table="block"))
    assert args.lse.shape == (0, 4)


@pytest.mark.parametrize("form", ["csr", "block"])
def test_the_content_of_unused_memory_does_not_change_the_bits(form):
    descriptor, args = prefill([3, 2], [6, 9], page_table=form)
    other = cloned(args)
    for name in ("k_data", "v_data"):
        pool = getattr(other, name)
        getattr(other, name).copy_(torch.where(torch.isnan(pool), torch.full_like(pool, 77.0), pool))
    other.o.fill_(5.0), other.lse.fill_(5.0)
    if form == "block":
        other.block_table.copy_(
            torch.where(args.block_table < 0, torch.full_like(args.block_table, 2**31 - 1), args.block_table)
        )
    run((descriptor, args)), run((descriptor, other))
    assert torch.equal(bits(args.o), bits(other.o))
    assert torch.equal(bits(args.lse), bits(other.lse))


@pytest.mark.parametrize("name", ["k_data", "v_data"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_nonfinite_key_changes_only_the_rows_that_attend_to_it(name, value):
    descriptor, args = prefill([4, 2], [6, 5], seed=1)
    nonfinite = cloned(args)
    page, token = naive.locations(args, 4)[0][4]  # rows 2 and 3 of the first request attend to this key
    getattr(nonfinite, name)[page, token, 1] = value
    run((descriptor, args)), run((descriptor, nonfinite))
    blind = [0, 1, 4, 5]
    assert torch.equal(bits(nonfinite.o[blind]), bits(args.o[blind]))
    assert torch.equal(bits(nonfinite.o[:, :2]), bits(args.o[:, :2]))  # these heads belong to the other KV head
    assert not torch.isfinite(nonfinite.o[2:4, 2:]).all(dim=-1).any()


def test_a_nonfinite_query_changes_only_its_own_row():
    descriptor, args = prefill([4], [6], seed=1)
    nonfinite = cloned(args)
    nonfinite.q[1, 2, 3] = torch.nan
    run((descriptor, args)), run((descriptor, nonfinite))
    assert torch.isnan(nonfinite.o[1, 2]).all()
    nonfinite.o[1, 2] = args.o[1, 2]
    assert torch.equal(bits(nonfinite.o), bits(args.o))


def test_both_page_tables_give_the_same_bits():
    _, csr = run(prefill([3, 0, 2], [6, 3, 9], seed=5))
    _, block = run(prefill([3, 0, 2], [6, 3, 9], seed=5, page_table="block"))
    assert torch.equal(bits(csr.o), bits(block.o))


def test_outputs_may_have_any_strides():
    descriptor, args = prefill([3, 2], [6, 9])
    dense = cloned(args)
    room = poison(4, 5, 24)
    strided = replace(args, o=room[:, :, :8].transpose(0, 1))
    run((descriptor, dense)), run((descriptor, strided))
    assert torch.equal(strided.o, dense.o)
    assert torch.isnan(room[:, :, 8:]).all()


def test_inputs_are_not_modified():
    descriptor, args = prefill([3, 2], [6, 9])
    before = cloned(args)
    run((descriptor, args))
    for name in ("q", "k_data", "v_data", "q_indptr", "kv_indptr", "kv_indices", "last_page_len"):
        assert torch.equal(bits(getattr(args, name)), bits(getattr(before, name)))


def test_return_lse_false_does_not_change_the_bits_of_o():
    _, with_lse = run(prefill([3], [6]))
    _, without = run(prefill([3], [6], return_lse=False))
    assert without.lse is None
    assert torch.equal(bits(with_lse.o), bits(without.o))


def test_an_f32_query_with_an_fp8_cache_is_computed_in_float64():
    descriptor, args = run(prefill([3], [6], q_dtype="f32", paged_kv=cache(dtype="f8_e4m3")))
    o, _ = naive.paged(descriptor, args)
    assert np.abs(naive.wide(args.o) - o).max() < 2.0**-24 * 4


@pytest.mark.parametrize(
    ("name", "values", "numbers"),
    [
        ("q_indptr", [1, 3, 5], ["q_indptr[0]", "got 1"]),
        ("q_indptr", [0, 6, 5], ["q_indptr[1]", "got 6", "[0, 5]"]),
        ("q_indptr", [0, 3, 2], ["q_indptr[2]", "got 2", "at least 3"]),
        ("q_indptr", [0, 3, 6], ["q_indptr[2]", "[0, 5]", "got 6"]),
        ("kv_indptr", [0, 2, 99], ["kv_indptr[2]", "got 99"]),
        ("kv_indptr", [0, -2, 5], ["kv_indptr[1]", "got -2"]),
        ("last_page_len", [0, 1], ["last_page_len[0]", "[1, 4]", "got 0"]),
        ("last_page_len", [2, 5], ["last_page_len[1]", "[1, 4]", "got 5"]),
    ],
)
def test_a_wrong_page_table_is_refused_before_anything_is_written(name, values, numbers):
    descriptor, args = prefill([3, 2], [6, 9])
    args = replace(args, **{name: i32(values)})
    with pytest.raises(IndexDataError) as caught:
        run((descriptor, args))
    assert caught.value.code == "OPF-V001"
    assert all(number in str(caught.value) for number in numbers)
    assert torch.isnan(args.o).all()


@pytest.mark.parametrize("page", [-1, 24, 2**31 - 1])
def test_a_page_outside_the_pool_is_refused(page):
    descriptor, args = prefill([3, 2], [6, 9])
    args.kv_indices[1] = page
    with pytest.raises(IndexDataError, match=rf"\[0, 24\).*got {page}"):
        run((descriptor, args))
    assert torch.isnan(args.o).all()


@pytest.mark.parametrize("length", [-1, 100])
def test_a_length_outside_the_block_table_is_refused(length):
    descriptor, args = prefill([3, 2], [6, 9], page_table="block")
    args.kv_lens[1] = length
    with pytest.raises(IndexDataError, match=rf"kv_lens\[1\].*\[0, 20\].*got {length}"):
        run((descriptor, args))
    assert torch.isnan(args.o).all()


def test_ragged_indptr_is_checked():
    descriptor, args = ragged([3, 2], [6, 9])
    with pytest.raises(IndexDataError, match=r"kv_indptr\[2\].*got 17"):
        run((descriptor, replace(args, kv_indptr=i32([0, 6, 17]))))
    assert torch.isnan(args.o).all()


_LONG = """
import resource, sys, torch
from opfacade import Plan, Target
from opfacade.plans.attention import BatchRaggedPrefillArgs, BatchRaggedPrefillDescriptor
torch.set_num_threads(2)
q_len, kv_len, heads, dim = int(sys.argv[1]), 32768, 32, 16
descriptor = BatchRaggedPrefillDescriptor(batch_size=1, total_num_rows=q_len, total_kv_rows=kv_len, num_qo_heads=heads,
                                          num_kv_heads=8, head_dim=dim, causal=True, dtype="bf16")
i32 = lambda *x: torch.tensor(x, dtype=torch.int32)
q, k, v = (torch.zeros(n, h, dim, dtype=torch.bfloat16) for n, h in ((q_len, heads), (kv_len, 8), (kv_len, 8)))
args = BatchRaggedPrefillArgs(q=q, q_indptr=i32(0, q_len), k=k, v=v, kv_indptr=i32(0, kv_len), o=torch.zeros_like(q),
                              lse=torch.zeros(q_len, heads))
torch.mm(torch.ones(64, 64), torch.ones(64, 64))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
Plan.select(descriptor, target=Target.cpu()).run(args)
extra = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
print(extra // 1024, float(args.lse[-1, 0]))
"""


@pytest.mark.parametrize("rows", [192, pytest.param(2048, marks=pytest.mark.heavy)])
def test_a_long_context_uses_less_than_one_gibibyte(rows):
    """The scores of 192 rows, 32768 keys and 32 heads take 768 MiB; without row blocks, several such arrays exist at once."""
    out = subprocess.run(
        [sys.executable, "-c", _LONG, str(rows)], capture_output=True, text=True, check=True, timeout=250
    ).stdout.split()
    assert int(out[0]) < 1024
    assert float(out[1]) == pytest.approx(np.log(32768), rel=1e-5)


def test_the_helpers_fill_unused_memory_with_nan():
    """Without NaN in unused memory, the tests above could not detect a read of it."""
    _, args = prefill([3], [6], strided=True)
    assert torch.isnan(args.k_data).any()
    assert args.k_data.stride() != args.k_data.contiguous().stride()
    assert (
        problems.page_lists(cache(), [9, 9], random.Random(0), shared=True)[0][:2]
        == problems.page_lists(cache(), [9, 9], random.Random(0), shared=True)[1][:2]
    )
