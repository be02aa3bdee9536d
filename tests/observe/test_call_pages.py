"""The pages that a call names, in any form of table, and a small pool that contains only these pages."""

import random

import pytest
import torch

from opfacade.core.preference import DEFAULT
from opfacade.core.target import Target
from opfacade.observe import call_pages, dumps
from opfacade.select.in_force import in_force
from opfacade.select.selection import survey
from opfacade.testing.inputs import make_args
from opfacade.testing.problems import random_descriptor, special_descriptor
from tests.support.problems import cache, decode, i32, ragged

PAGED = ("paged_prefill", "paged_decode", "paged_kv_append", "mla_decode")


def tensors_of(args):
    return {name: getattr(args, name) for name in args.__slots__ if getattr(args, name) is not None}


def by_hand(descriptor, args):
    """{page: tokens} as a loop over requests finds it."""
    size, found = descriptor.paged_kv.page_size, {}
    lists = []
    if descriptor.page_table == "block":
        lists = [(row.tolist(), n) for row, n in zip(args.block_table, args.kv_lens.tolist(), strict=True)]
    else:
        starts = args.kv_indptr.tolist()
        for r, last in enumerate(args.last_page_len.tolist()):
            own = args.kv_indices[starts[r] : starts[r + 1]].tolist()
            lists.append((own, (len(own) - 1) * size + last if own else 0))
    for own, length in lists:
        for i in range(-(-length // size)):
            found[own[i]] = max(found.get(own[i], 0), min(size, length - i * size))
    return found


@pytest.mark.parametrize("op", PAGED)
@pytest.mark.parametrize("seed", range(12))
def test_pages_and_tokens_are_those_of_a_loop_over_requests(op, seed):
    descriptor = random_descriptor(op, seed, tokens=600)
    args = make_args(descriptor, seed=seed)
    found, wanted = call_pages.pages(descriptor, tensors_of(args)), by_hand(descriptor, args)
    if wanted:
        assert dict(zip(found.ids.tolist(), found.tokens.tolist(), strict=True)) == dict(sorted(wanted.items()))
    assert found.ids.tolist() == sorted(set(found.ids.tolist()))


@pytest.mark.parametrize("page_table", ["csr", "block"])
def test_a_shared_page_counts_once_with_the_most_tokens(page_table):
    descriptor, args = decode([6, 8, 5], page_table=page_table, shared=True)
    found = call_pages.pages(descriptor, tensors_of(args))
    assert dict(zip(found.ids.tolist(), found.tokens.tolist(), strict=True)) == by_hand(descriptor, args)


@pytest.mark.parametrize("wrong", [-1, 24, 2**31 - 1])
@pytest.mark.parametrize("page_table", ["csr", "block"])
def test_an_id_that_is_no_page_keeps_page_0_and_stays_no_page(page_table, wrong):
    descriptor, args = decode([6, 8], page_table=page_table)
    tensors = tensors_of(args)
    name = call_pages.table_name(descriptor)
    tensors[name].view(-1)[0] = wrong
    found = call_pages.pages(descriptor, tensors)
    assert found.ids[0] == 0
    new = call_pages.renumbered(tensors[name], found)
    assert new.view(-1)[0] == wrong
    assert not 0 <= wrong < found.ids.numel()


TABLES = [
    {"kv_indptr": [0, 3, 1], "kv_indices": [3, 4, 5], "last_page_len": [1, 1]},
    {"kv_indptr": [-7, 1, 2], "kv_indices": [3, 4, 5], "last_page_len": [1, 1]},
    {"kv_indptr": [0, 1, 99], "kv_indices": [3, 4, 5], "last_page_len": [1, 1]},
]


@pytest.mark.parametrize("wrong", TABLES)
def test_of_a_table_that_contradicts_itself_every_entry_counts(wrong):
    starts, ids, last = (i32(values).long() for values in wrong.values())
    tokens = call_pages._flat_tokens(ids, starts, last, 4)
    assert tokens.tolist() == [4, 4, 4]


@pytest.mark.parametrize(("last", "wanted"), [([3, 2], [4, 3, 2]), ([0, 2], [4, 4, 2]), ([5, -1], [4, 4, 4])])
def test_a_last_page_outside_its_bounds_counts_as_full(last, wanted):
    tokens = call_pages._flat_tokens(i32([7, 8, 9]).long(), i32([0, 2, 3]).long(), i32(last).long(), 4)
    assert tokens.tolist() == wanted


def test_entries_that_no_request_reads_are_no_pages_of_the_small_pool():
    found = call_pages.Pages(torch.tensor([3, 7]), torch.tensor([4, 2]), torch.tensor([[True, True], [True, False]]))
    new = call_pages.renumbered(i32([7, 3, -9, 7]).view(2, 2), found)
    assert new.tolist() == [[1, 0], [-9, -1]]
    assert new.dtype == torch.int32


def test_lengths_beyond_a_row_of_the_table_name_the_row():
    tokens = call_pages._block_tokens(i32([1, 2, 3, 4]).view(2, 2).long(), i32([99, -5]).long(), 4)
    assert tokens.tolist() == [[4, 4], [0, 0]]


def test_a_call_without_tokens_keeps_a_page_so_that_the_pool_has_one():
    descriptor, args = decode([0, 0])
    assert call_pages.pages(descriptor, tensors_of(args)).ids.tolist() == [0]
    descriptor, args = ragged([2], [3])
    assert call_pages.pages(descriptor, tensors_of(args)) is None


@pytest.mark.parametrize("strided", [False, True])
@pytest.mark.parametrize("dtype", ["f16", "f8_e4m3"])
@pytest.mark.parametrize("layout", ["HND", "NHD"])
def test_gathered_pages_are_those_of_the_pool_bit_for_bit(monkeypatch, layout, dtype, strided):
    monkeypatch.setattr(call_pages, "CHUNK", 150)
    kv = cache(layout=layout, dtype=dtype)
    descriptor, args = decode([9, 30, 5], paged_kv=kv, strided=strided, q_dtype="f16")
    found = call_pages.pages(descriptor, tensors_of(args))
    kept = call_pages.gathered(args.k_data, 0, found)
    wanted = torch.stack([args.k_data[page] for page in found.ids.tolist()])
    assert torch.equal(kept.view(torch.uint8), wanted.view(torch.uint8))
    size = sum(n * 2 * 8 for n in found.tokens.tolist())
    for chunk in (1, 150, 10**6):
        monkeypatch.setattr(call_pages, "CHUNK", chunk)
        parts = list(call_pages.blocks(args.k_data, call_pages.axes(descriptor)["k_data"], found))
        assert sum(part.numel() for part in parts) == size
        assert not any(part.float().isnan().any() for part in parts)  # everything else in the pool is NaN here


@pytest.mark.parametrize("target", ["cpu", "sm_90a"])
@pytest.mark.parametrize("make", [random_descriptor, special_descriptor])
@pytest.mark.parametrize("op", PAGED)
def test_a_small_pool_changes_no_sku_and_no_workspace(op, make, target):
    """A replay selects the same plan, because every candidate accepts or declines the problem on fewer pages in
    the same way.
    """
    for seed in range(25):
        descriptor, rng = make(op, seed), random.Random(seed)
        kept = rng.randint(1, max(1, descriptor.paged_kv.num_total_pages))
        ids = torch.arange(kept)
        small = dumps.narrowed(descriptor, call_pages.Pages(ids, ids, ids))
        assert answers(descriptor, target) == answers(small, target)
        assert small.paged_kv.num_total_pages == kept


def answers(descriptor, target):
    where = Target.parse(target)
    found = survey(descriptor, DEFAULT, where, in_force(descriptor, DEFAULT, where))
    return [(o.candidate.backend, o.sku and o.sku.id, o.workspace_size, [r.code for r in o.reasons]) for o in found]
