"""Statistics in chunks: correct for any chunk size, over the tokens that the table names, and with bounded memory."""

import pytest
import torch

from opfacade.observe import call_pages, call_statistics
from opfacade.observe.call_statistics import of_call, statistics
from opfacade.plans.attention import BatchPagedDecodeArgs, BatchPagedDecodeDescriptor, PagedKvCacheDescriptor
from tests.observe.test_call_pages import tensors_of
from tests.support.problems import append, decode, i32, mla, prefill


def test_nan_is_counted_and_left_out():
    assert statistics([torch.tensor([1.0, float("nan"), 3.0])]) == {"nan": 1, "min": 1.0, "max": 3.0, "mean": 2.0}
    assert statistics([torch.tensor([float("nan")])]) == {"nan": 1}
    assert statistics([torch.empty(0)]) == {}
    assert statistics([torch.tensor(2.5)]) == {"nan": 0, "min": 2.5, "max": 2.5, "mean": 2.5}


@pytest.mark.parametrize("chunk", [1, 7, 64, 10**6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int32, torch.float8_e4m3fn])
def test_chunks_of_any_size_give_the_same_and_change_nothing(monkeypatch, chunk, dtype):
    monkeypatch.setattr(call_pages, "CHUNK", chunk)
    tensor = (torch.randn(9, 5, 16) * 50).to(dtype)[:, ::2].transpose(0, 1)
    if dtype.is_floating_point:
        tensor.view(torch.uint8 if tensor.itemsize == 1 else dtype)[1, 2, 3] = 127 if tensor.itemsize == 1 else float("nan")
    before, values = tensor.double(), tensor.double()[~tensor.double().isnan()]
    found = statistics([tensor])
    assert found["nan"] == int(before.isnan().sum()) == tensor.dtype.is_floating_point
    assert (found["min"], found["max"]) == (float(values.min()), float(values.max()))
    assert found["mean"] == pytest.approx(float(values.mean()))
    assert torch.equal(tensor.double().nan_to_num(1e9), before.nan_to_num(1e9))


def test_the_pieces_make_up_a_tensor_and_copy_nothing(monkeypatch):
    monkeypatch.setattr(call_pages, "CHUNK", 10)
    tensor = torch.zeros(3, 40, 7).transpose(0, 1)
    parts = list(call_statistics.pieces(tensor))
    assert max(part.numel() for part in parts) <= 10
    for part in parts:
        assert part.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr()
        part += 1
    assert bool((tensor == 1).all())


@pytest.mark.parametrize("chunk", [1, 100, 10**6])
@pytest.mark.parametrize(
    "problem", [decode([9, 0, 30]), prefill([3, 5], [9, 45], page_table="block"), append([2, 3], [9, 6]), mla([5, 9])]
)
def test_of_a_pool_only_what_requests_have_counts(monkeypatch, problem, chunk):
    """Elements of no request are NaN in these problems, except rows that append is about to write."""
    monkeypatch.setattr(call_pages, "CHUNK", chunk)
    descriptor, args = problem
    tensors = tensors_of(args)
    found = of_call(descriptor, tensors, call_pages.pages(descriptor, tensors))
    tokens = int(call_pages.pages(descriptor, tensors).tokens.sum())
    for name in call_pages.axes(descriptor):
        pool = tensors[name]
        values = pool.double()[~pool.double().isnan()]
        assert found[name]["min"] == float(values.min())
        assert found[name]["mean"] == pytest.approx(float(values.mean()))
        per_token = pool.numel() // (pool.shape[0] * descriptor.paged_kv.page_size)
        assert values.numel() + found[name]["nan"] == tokens * per_token


def largest_allocation(make):
    """Bytes of the largest block that torch allocates on the CPU during `make`, and the peak of allocated bytes."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        make()
    held = most = 0
    for event in seen.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            most = max(most, held)
    return most


def test_statistics_of_a_large_pool_take_some_chunks_of_memory():
    pages, tokens = 4096, 16
    kv = PagedKvCacheDescriptor(
        num_total_pages=pages, page_size=tokens, num_kv_heads=4, head_dim=128, dtype="f16", layout="NHD"
    )
    descriptor = BatchPagedDecodeDescriptor(batch_size=1, num_qo_heads=4, paged_kv=kv)
    shape, heads = (pages, tokens, 4, 128), (1, 4, 128)
    pools = [torch.ones(shape, dtype=torch.float16) for _ in range(2)]
    args = BatchPagedDecodeArgs(
        q=torch.ones(heads, dtype=torch.float16), k_data=pools[0], v_data=pools[1], kv_indptr=i32([0, pages]),
        kv_indices=i32(range(pages)), last_page_len=i32([tokens]), o=torch.ones(heads, dtype=torch.float16),
        lse=torch.ones(1, 4),
    )  # fmt: skip
    tensors = tensors_of(args)
    pool = pools[0].nbytes
    assert pool == 67_108_864
    most = largest_allocation(lambda: of_call(descriptor, tensors, call_pages.pages(descriptor, tensors)))
    assert 0 < most < 40 * call_pages.CHUNK < pool  # a float64 copy of one pool is 4 pools
