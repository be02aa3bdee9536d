"""FlashInfer's top-k of scores: ties, windows, page tables, offsets, and refusals, against sorted lists."""

import math

import pytest
import torch

import opfacade.compat.flashinfer as flashinfer
from opfacade.errors import ArgumentError, ArgumentTypeError, ShapeError, UnsupportedError
from opfacade.plans.sampling import TopKDescriptor

ROWS, WIDTH, K = 4, 23, 5
LENGTHS, STARTS = (23, 5, 9, 0), (0, 3, 11, 2)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(31)


def whole(*values):
    return torch.tensor(values, dtype=torch.int32)


def scores(distinct=1000):
    """Few distinct values, so that there are ties at the cut."""
    return torch.randint(0, distinct, (ROWS, WIDTH)).float()


def selected(row, length, start, large):
    """Positions in the window by decreasing score, ties by position."""
    window = row[start : start + length]
    if len(window) <= K:
        found = list(range(len(window)))
    else:
        kept = sorted(range(len(window)), key=lambda p: (-window[p], -p if large else p))[:K]
        found = sorted(kept, key=lambda p: (-window[p], p))
    return found + [-1] * (K - len(found))


def positions(x, lengths=LENGTHS, starts=(0,) * ROWS, large=False):
    facts = zip(x.tolist(), lengths, starts, strict=True)
    return [selected(row, length, start, large) for row, length, start in facts]


@pytest.mark.parametrize("tie_break", [0, 1, 2])
def test_ties_at_the_cut(tie_break):
    x = scores(4)
    values, found = flashinfer.top_k(x, K, tie_break=tie_break)
    assert found.dtype == torch.int64
    assert found.tolist() == positions(x, (WIDTH,) * ROWS, large=tie_break == 2)
    assert torch.equal(values, x.gather(1, found))


def test_past_the_candidates_there_is_no_position():
    x = torch.tensor([[math.nan, 1.0, -math.inf, 1.0]])
    values, found = flashinfer.top_k(x, 3, tie_break=2)
    assert values.tolist() == [[1.0, 1.0, -math.inf]]
    assert found.tolist() == [[1, 3, -1]]


@pytest.mark.parametrize("starts", [None, STARTS])
@pytest.mark.parametrize("tie_break", [0, 2])
def test_slots_by_a_page_table(tie_break, starts):
    x, table = scores(4), torch.randint(0, 10**6, (ROWS, WIDTH), dtype=torch.int32)
    given = {} if starts is None else {"row_starts": whole(*starts)}
    first = starts or (0,) * ROWS
    at = positions(x, starts=first, large=tie_break == 2)
    want = [[-1 if p < 0 else table[i, first[i] + p].item() for p in row] for i, row in enumerate(at)]
    raw = torch.full((ROWS, K), 77, dtype=torch.int32)
    found = flashinfer.top_k_page_table_transform(
        x, table, whole(*LENGTHS), K, tie_break=tie_break, out_raw_indices=raw, **given
    )
    assert found.dtype == torch.int32
    assert found.tolist() == want
    assert raw.tolist() == at


def test_slots_in_pages_of_other_requests():
    x, table = scores(), torch.randint(0, 1000, (2, 9), dtype=torch.int32)
    batch, first = (1, 0, 1, 1), (1, 0, 3, 2)
    out = torch.empty(ROWS, K, dtype=torch.int32)
    found = flashinfer.top_k_page_table_transform(
        x, table, whole(*LENGTHS), K, whole(*batch), row_starts=whole(*STARTS), page_table_row_starts=whole(*first),
        page_size=4, out=out,
    )  # fmt: skip
    assert found is out
    want = []
    for i, row in enumerate(positions(x, starts=STARTS)):
        want.append([-1 if p < 0 else table[batch[i], first[i] + p // 4].item() * 4 + p % 4 for p in row])
    assert found.tolist() == want


@pytest.mark.parametrize("starts", [None, STARTS])
def test_slots_by_an_offset(starts):
    x, offsets = scores().bfloat16(), (0, 100, -3, 5)
    given = {} if starts is None else {"row_starts": whole(*starts)}
    found = flashinfer.top_k_ragged_transform(x, whole(*offsets), whole(*LENGTHS), K, **given)
    at = positions(x.float(), starts=starts or (0,) * ROWS)
    assert found.tolist() == [[-1 if p < 0 else p + offsets[i] for p in row] for i, row in enumerate(at)]


def test_thousands_of_values():
    x = torch.randperm(5000).float()[None]
    values, positions = flashinfer.top_k(x, 4500)
    assert torch.equal(values, x.topk(4500).values)
    assert torch.equal(positions, x.topk(4500).indices)


def test_windows_of_at_most_k_scores_are_taken_whole():
    x = torch.full((2, 3), math.nan)
    found = flashinfer.top_k_ragged_transform(x, whole(10, 20), whole(3, 1), 5)
    assert found.tolist() == [[10, 11, 12, -1, -1], [20, -1, -1, -1, -1]]


@pytest.mark.parametrize(
    ("call", "kind", "match"),
    [
        (lambda x, t, n: flashinfer.top_k(x, K, tie_break=3), ArgumentError, "tie_break expected 0, 1 or 2"),
        (lambda x, t, n: flashinfer.top_k_page_table_transform(x, t, n, K, page_size=3), ArgumentError, "page_size"),
        (lambda x, t, n: flashinfer.top_k_page_table_transform(x, t, n, K, page_size=2, row_starts=n), ArgumentError,
         "page_table_row_starts"),
        (lambda x, t, n: flashinfer.top_k_page_table_transform(x, None, n, K), ArgumentTypeError, "src_page_table"),
        (lambda x, t, n: flashinfer.top_k_page_table_transform(x.int(), t, n, K), UnsupportedError, "input"),
        (lambda x, t, n: flashinfer.top_k_ragged_transform(x, n, n[1:], K), ShapeError, r"lengths expected \[rows=4\]"),
        (lambda x, t, n: flashinfer.top_k_ragged_transform(x, n, n, K, row_starts=n[1:]), ShapeError, "row_starts expected"),
        (lambda x, t, n: flashinfer.top_k_ragged_transform(x, n[None], n, K), ShapeError, "offsets"),
    ],
)  # fmt: skip
def test_refusals_name_the_argument(call, kind, match):
    with pytest.raises(kind, match=match):
        call(scores(), torch.zeros(ROWS, WIDTH, dtype=torch.int32), whole(*LENGTHS))


def test_the_largest_k_is_that_of_the_descriptor(monkeypatch):
    monkeypatch.setattr(TopKDescriptor, "most", 5)
    x = torch.arange(9.0)[None]
    assert flashinfer.top_k(x, 5)[1].tolist() == [[8, 7, 6, 5, 4]]
    with pytest.raises(UnsupportedError, match="k expected"):
        flashinfer.top_k(x, 6)
