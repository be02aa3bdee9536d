"""The reference append copies every row to its slot in the page table and changes no other bit."""

import random
from dataclasses import replace

import pytest
import torch

from opfacade.errors import IndexDataError
from tests.support import naive_attention as naive
from tests.support.problems import append, bits, cache, cloned, i32, run


def expected(descriptor, args):
    """The pools after the append, computed one token at a time, as integers."""
    layout, indptr = descriptor.paged_kv.layout, args.append_indptr.tolist()
    pools = [bits(pool).clone() for pool in (args.k_data, args.v_data)]
    for pool, new in zip(pools, (bits(args.k_new), bits(args.v_new)), strict=True):
        for b, tokens in enumerate(naive.locations(args, descriptor.paged_kv.page_size)):
            count = indptr[b + 1] - indptr[b]
            for i in range(count):
                naive.slot(pool, layout, *tokens[len(tokens) - count + i])[:] = new[indptr[b] + i]
    return pools


def assert_appended(problem):
    descriptor, args = problem
    k, v = expected(descriptor, args)
    run(problem)
    assert torch.equal(bits(args.k_data), k)
    assert torch.equal(bits(args.v_data), v)


@pytest.mark.parametrize("seed", range(24))
def test_a_random_append_copies_every_bit(seed):
    rng = random.Random(seed)
    kv_lens = [rng.choice([0, 1, rng.randint(1, 17)]) for _ in range(rng.randint(1, 4))]
    new_lens = [rng.randint(0, n) for n in kv_lens]
    paged_kv = cache(
        num_total_pages=80, page_size=rng.choice([1, 3, 4, 7]), head_dim=rng.choice([1, 5, 8]),
        layout=rng.choice(["HND", "NHD"]), dtype=rng.choice(["f16", "bf16", "f32", "f8_e4m3", "f8_e5m2"]),
    )  # fmt: skip
    form = rng.choice(["csr", "block"])
    assert_appended(append(new_lens, kv_lens, paged_kv=paged_kv, page_table=form, seed=seed, strided=seed % 2 == 0))


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "f8_e4m3", "f8_e5m2"])
def test_every_bit_pattern_is_copied_including_nan_payloads(dtype):
    descriptor, args = append([4, 5], [6, 9], paged_kv=cache(dtype=dtype))
    for new in (args.k_new, args.v_new):
        pattern = bits(new)
        pattern.random_(torch.iinfo(pattern.dtype).min, torch.iinfo(pattern.dtype).max)
        pattern.view(-1)[:2] = {1: 255, 2: -1, 4: -1}[new.element_size()]
    assert torch.isnan(args.k_new.float()).any()
    assert_appended((descriptor, args))


def test_an_append_without_new_rows_changes_nothing():
    descriptor, args = append([0, 0], [6, 0])
    before = cloned(args)
    run((descriptor, args))
    assert torch.equal(bits(args.k_data), bits(before.k_data))


def test_an_empty_batch_is_valid():
    _, args = run(append([], []))
    assert torch.isnan(args.k_data).all()


def test_padding_between_interleaved_pools_is_untouched():
    descriptor, args = append([4, 5], [6, 9], strided=True)
    raw = torch.empty(0, dtype=torch.int16).set_(args.k_data.untyped_storage())
    inside = torch.zeros_like(raw, dtype=torch.bool)
    for pool in (args.k_data, args.v_data):
        inside.as_strided(pool.shape, pool.stride(), pool.storage_offset()).fill_(True)
    before = raw.clone()
    run((descriptor, args))
    assert torch.equal(raw[~inside], before[~inside])
    assert not torch.equal(raw[inside], before[inside])


@pytest.mark.parametrize(
    ("name", "values", "numbers"),
    [
        ("append_indptr", [0, 7, 9], ["append_indptr[1]", "at most 6", "got 7"]),
        ("append_indptr", [0, 4, 10], ["append_indptr[2]", "[0, 9]", "got 10"]),
        ("append_indptr", [-1, 4, 9], ["append_indptr[0]", "got -1"]),
        ("last_page_len", [2, 9], ["last_page_len[1]", "[1, 4]", "got 9"]),
    ],
)
def test_an_invalid_page_table_is_refused_before_anything_is_written(name, values, numbers):
    descriptor, args = append([4, 5], [6, 9])
    before = cloned(args)
    with pytest.raises(IndexDataError) as caught:
        run((descriptor, replace(args, **{name: i32(values)})))
    assert all(number in str(caught.value) for number in numbers)
    assert torch.equal(bits(args.k_data), bits(before.k_data))
    assert torch.equal(bits(args.v_data), bits(before.v_data))


def test_no_request_is_written_if_a_later_request_has_too_many_new_rows():
    descriptor, args = append([4, 5], [6, 5])
    before = cloned(args)
    with pytest.raises(IndexDataError, match=r"append_indptr\[2\]"):
        run((descriptor, replace(args, append_indptr=i32([0, 3, 9]))))
    assert torch.equal(bits(args.k_data), bits(before.k_data))
