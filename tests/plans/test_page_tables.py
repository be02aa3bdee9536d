"""Index tensors that are built on the device equal those of loops on the host, in both forms of page tables. Refusals are
typed."""

import itertools
import random

import pytest
import torch

from opfacade.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError
from opfacade.plans.attention import BatchPagedDecodeArgs, BatchPagedDecodeDescriptor, PagedKvCacheDescriptor
from opfacade.plans.kv_cache import block_of_csr, even_indptr, even_page_table, indptr, page_table
from tests.support.problems import on_reference

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def i32(values, device="cpu"):
    return torch.tensor(values, dtype=torch.int32, device=device)


def pages_of(table, page_size):
    """The pages and the length of each request of a csr table, read by loops."""
    starts = table["kv_indptr"].tolist()
    lists = [table["kv_indices"].tolist()[a:b] for a, b in itertools.pairwise(starts)]
    last = table["last_page_len"].tolist()
    return lists, [(len(p) - 1) * page_size + n if p else 0 for p, n in zip(lists, last, strict=True)]


@pytest.mark.parametrize("device", DEVICES)
def test_indptr_is_the_prefix_sum_of_lengths(device):
    assert torch.equal(indptr(i32([3, 0, 5], device)), i32([0, 3, 3, 8], device))
    assert torch.equal(indptr(i32([], device)), i32([0], device))
    assert torch.equal(even_indptr(3, 4, device=device), i32([0, 4, 8, 12], device))
    assert torch.equal(even_indptr(0, 4, device=device), i32([0], device))


@pytest.mark.parametrize("device", DEVICES)
def test_an_even_batch_has_consecutive_pages(device):
    block = even_page_table(2, 7, 3, device=device)
    assert torch.equal(block["block_table"], i32([[0, 1, 2], [3, 4, 5]], device))
    assert torch.equal(block["kv_lens"], i32([7, 7], device))
    csr = even_page_table(2, 7, 3, form="csr", device=device)
    assert torch.equal(csr["kv_indptr"], i32([0, 3, 6], device))
    assert torch.equal(csr["kv_indices"], i32([0, 1, 2, 3, 4, 5], device))
    assert torch.equal(csr["last_page_len"], i32([1, 1], device))
    assert even_page_table(3, 0, 4, form="csr", device=device)["kv_indptr"].tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("seed", range(8))
def test_both_forms_of_page_tables_have_the_same_pages_and_lengths(seed, device):
    rng = random.Random(seed)
    page, width, batch = rng.choice((1, 3, 16)), rng.randint(1, 6), rng.randint(1, 7)
    lens = [rng.choice((0, 1, page, page * width, rng.randint(0, page * width))) for _ in range(batch)]
    ids = [[rng.randrange(100) for _ in range(width)] for _ in range(batch)]
    wanted = [row[: -(-n // page)] for row, n in zip(ids, lens, strict=True)]
    csr = page_table(i32(lens, device), page, form="csr", block_table=i32(ids, device))
    assert pages_of(csr, page) == (wanted, lens)
    assert csr["kv_indices"].shape == (batch * width,)
    assert (csr["kv_indices"][sum(map(len, wanted)) :] == -1).all()
    assert all(t.dtype == torch.int32 and t.is_contiguous() and t.device.type == device for t in csr.values())
    block = block_of_csr(**csr, page_size=page, max_pages=width)
    assert block["kv_lens"].tolist() == lens
    assert block["block_table"].tolist() == [p + [-1] * (width - len(p)) for p in wanted]
    assert block["kv_lens"].dtype == block["block_table"].dtype == torch.int32


def test_a_dense_cache_needs_only_lengths():
    block = page_table(i32([5, 0, 8]), 4, max_pages=2)
    assert block["block_table"].tolist() == [[0, 1], [2, 3], [4, 5]]
    csr = page_table(i32([5, 0, 8]), 4, max_pages=2, form="csr")
    assert pages_of(csr, 4) == ([[0, 1], [], [4, 5]], [5, 0, 8])


def test_lengths_and_pages_beyond_a_row_are_truncated():
    csr = page_table(i32([9, 3]), 4, max_pages=2, form="csr")
    assert pages_of(csr, 4) == ([[0, 1], [2]], [8, 3])
    block = block_of_csr(i32([0, 3, 4]), i32([7, 8, 9, 5]), i32([1, 2]), 4, max_pages=2)
    assert (block["block_table"].tolist(), block["kv_lens"].tolist()) == ([[7, 8], [5, -1]], [8, 2])


def test_a_request_without_pages_has_length_zero():
    block = block_of_csr(i32([0, 0, 1, 1]), i32([5]), i32([3, 2, 0]), 4, max_pages=1)
    assert (block["block_table"].tolist(), block["kv_lens"].tolist()) == ([[-1], [5], [-1]], [0, 2, 0])
    none = block_of_csr(i32([0, 0]), i32([]), i32([1]), 4, max_pages=2)
    assert (none["block_table"].tolist(), none["kv_lens"].tolist()) == ([[-1, -1]], [0])


def test_a_decode_accepts_both_forms():
    torch.manual_seed(1)
    cache = PagedKvCacheDescriptor(num_total_pages=6, page_size=4, num_kv_heads=2, head_dim=8, dtype="f32", layout="NHD")
    k, v, q = (torch.randn(*s) for s in ((6, 4, 2, 8), (6, 4, 2, 8), (3, 4, 8)))
    outputs = []
    for form in ("block", "csr"):
        d = BatchPagedDecodeDescriptor(batch_size=3, num_qo_heads=4, paged_kv=cache, page_table=form, return_lse=False)
        args = BatchPagedDecodeArgs(
            q=q, k_data=k, v_data=v, o=torch.empty_like(q), **page_table(i32([5, 0, 8]), 4, max_pages=2, form=form)
        )
        on_reference(d).run(args)
        outputs.append(args.o)
    dense = torch.nn.functional.scaled_dot_product_attention(
        q[2][:, None], k.view(3, 8, 2, 8)[2].transpose(0, 1), v.view(3, 8, 2, 8)[2].transpose(0, 1), enable_gqa=True
    )
    assert torch.equal(*outputs)
    assert torch.allclose(outputs[0][2], dense[:, 0], atol=1e-6)
    assert torch.equal(outputs[0][1], torch.zeros(4, 8))


def test_invalid_input_raises_typed_errors():
    with pytest.raises(DTypeError, match=r"indptr.indices: lens expected torch.int32, got torch.int64\. Use lens.to"):
        indptr(torch.tensor([1]))
    with pytest.raises(ArgumentTypeError, match=r"kv_lens expected a torch\.Tensor, got list"):
        page_table([1], 4, max_pages=1)
    with pytest.raises(ShapeError, match=r"block_table expected shape \[2, max_pages\], got \[1, 3\]"):
        page_table(i32([1, 2]), 4, block_table=i32([[1, 2, 3]]))
    with pytest.raises(ShapeError, match=r"kv_indptr expected shape \[2\], got \[3\]"):
        block_of_csr(i32([0, 1, 2]), i32([0, 1]), i32([1]), 4, max_pages=1)
    with pytest.raises(ArgumentTypeError, match=r"max_pages expected an int, got None.*OPF-A065"):
        page_table(i32([1]), 4)
    with pytest.raises(ArgumentError, match=r"form expected 'block' or 'csr', got 'CSR'.*OPF-A064"):
        page_table(i32([1]), 4, max_pages=1, form="CSR")
    with pytest.raises(ArgumentError, match="page_size expected at least 1, got 0"):
        even_page_table(1, 4, 0, device="cpu")
    with pytest.raises(ArgumentError, match="batch_size expected at least 0, got -1"):
        even_indptr(-1, 4, device="cpu")


@pytest.mark.parametrize(
    ("make", "sizes", "named"),
    [
        (even_page_table, (2, 2**40, 4), "kv_len expected at most 2147483647, got 1099511627776"),
        (even_page_table, (2**31, 1, 1), "batch_size expected at most 2147483647, got 2147483648"),
        (
            even_page_table,
            (2**20, 2**16, 4),
            "kv_len expected at most 2147483647 pages in all requests, got 17179869184 of",
        ),
        (even_indptr, (2**16, 2**16), "length expected at most 2147483647 rows in all requests, got 4294967296 of 65536"),
    ],
)
def test_sizes_that_exceed_int32_are_refused(make, sizes, named):
    with pytest.raises(ArgumentError, match=rf"{make.__name__}\.indices: {named}.*OPF-A065"):
        make(*sizes, device="cpu")


def test_a_dense_cache_with_too_many_pages_for_int32_is_refused():
    with pytest.raises(ArgumentError, match=r"max_pages expected at most 2147483647 pages in all requests, got 4294967294"):
        page_table(i32([1, 2]), 4, max_pages=2**31 - 1)


@pytest.mark.parametrize("device", ["x", 1.5, [1]])
def test_a_device_that_torch_does_not_know_is_refused(device):
    for make, sizes in ((even_page_table, (2, 13, 4)), (even_indptr, (2, 13))):
        with pytest.raises(ArgumentTypeError, match=r"device expected a torch device or its name, got .*OPF-A066"):
            make(*sizes, device=device)
