"""FlashInfer's sampling functions: tokens against a slow race in Python, filters against explicit sets, and refusals."""

import math

import numpy as np
import pytest
import torch

import opfacade.compat.flashinfer as flashinfer
from opfacade.errors import AliasError, ArgumentError, ArgumentTypeError, OpfacadeError, ShapeError, UnsupportedError
from tests.families.sampling.calls import slow_token

SAMPLERS = {
    "sampling_from_probs": {}, "top_p_sampling_from_probs": {"top_p": 0.9}, "top_k_sampling_from_probs": {"top_k": 5},
    "min_p_sampling_from_probs": {"min_p": 0.1}, "top_k_top_p_sampling_from_probs": {"top_k": 5, "top_p": 0.9},
    "top_k_top_p_sampling_from_logits": {"top_k": 5, "top_p": 0.9}, "sampling_from_logits": {},
}  # fmt: skip
OF_PROBS = [name for name in SAMPLERS if name.endswith("probs")]
WIDE = torch.tensor([[0.4, 0.3, 0.2, 0.1]])


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(17)


def whole(*values):
    return torch.tensor(values, dtype=torch.int64)


def rows(count=6, vocab=103):
    return torch.randn(count, vocab).softmax(-1)


def tokens_of(name, probs, **given):
    x = probs.log() if name.endswith("logits") else probs
    return getattr(flashinfer.sampling, name)(x, **{**SAMPLERS[name], **given})


def ever(name, probs, draws=300, **given):
    """The set of tokens drawn from one row."""
    indices = torch.zeros(draws, dtype=torch.int32)
    return sorted(set(tokens_of(name, probs, indices=indices, seed=5, offset=0, **given).tolist()))


def test_tokens_are_those_of_a_slow_race():
    logits, seed, offset = torch.randn(5, 41), whole(3, 9, -1, 2**40, 3), whole(0, 7, 7, 1, 2**33)
    found = flashinfer.sampling_from_logits(logits, seed=seed, offset=offset)
    assert found.dtype == torch.int32
    numbers = zip(logits.tolist(), seed.tolist(), offset.tolist(), strict=True)
    assert found.tolist() == [slow_token(row, s, o) for row, s, o in numbers]


def test_one_seed_is_spread_over_the_rows():
    logits = torch.randn(1, 41).expand(8, -1)
    wanted = [slow_token(logits[0].tolist(), 11, 3 + b * 2**40) for b in range(8)]
    assert len(set(wanted)) > 3
    for seed, offset in ((11, 3), (whole(11), whole(3)), (11 - 2**64, 3)):
        assert flashinfer.sampling_from_logits(logits, seed=seed, offset=offset).tolist() == wanted
    unsigned = whole(11).view(torch.uint64), whole(3).view(torch.uint64)
    assert flashinfer.sampling_from_logits(logits, seed=unsigned[0], offset=unsigned[1]).tolist() == wanted


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_seed_belongs_to_its_row_wherever_the_row_lies(name):
    probs, order = rows(), torch.randperm(6)
    seed, offset = torch.randint(2**62, (6,)), torch.randint(2**20, (6,))
    found = tokens_of(name, probs, seed=seed, offset=offset)
    assert len(set(found.tolist())) > 2
    assert torch.equal(tokens_of(name, probs[order], seed=seed[order], offset=offset[order]), found[order])


@pytest.mark.parametrize("name", SAMPLERS)
def test_equal_generators_give_equal_tokens_and_advance(name):
    probs = rows(1).expand(64, -1).contiguous()
    first, second = torch.Generator().manual_seed(4), torch.Generator().manual_seed(4)
    calls = [[tokens_of(name, probs, generator=g) for _ in range(2)] for g in (first, second)]
    assert torch.equal(calls[0][0], calls[1][0])
    assert torch.equal(calls[0][1], calls[1][1])
    assert not torch.equal(calls[0][0], calls[0][1])
    assert len(set(calls[0][0].tolist())) > 1
    torch.manual_seed(4)
    assert torch.equal(tokens_of(name, probs), calls[0][0])


def test_filters_keep_exact_sets():
    assert ever("top_k_sampling_from_probs", WIDE, top_k=3) == [0, 1, 2]
    assert ever("top_p_sampling_from_probs", WIDE, top_p=0.69) == [0, 1]
    assert ever("top_p_sampling_from_probs", WIDE * 8, top_p=0.69) == [0, 1]
    assert ever("min_p_sampling_from_probs", WIDE, min_p=0.4) == [0, 1, 2]
    for name in ("top_k_top_p_sampling_from_probs", "top_k_top_p_sampling_from_logits"):
        assert ever(name, WIDE, top_k=2, top_p=0.5) == [0]
        assert ever(name, WIDE, top_k=2, top_p=0.5, filter_apply_order="joint") == [0, 1]


def test_filters_see_probabilities_and_not_their_logarithms():
    small = torch.tensor(1e-6)
    larger = small.nextafter(torch.tensor(1.0))
    probs = torch.stack([small, larger])[None]
    assert small.log() == larger.log()
    assert ever("top_k_sampling_from_probs", probs, top_k=1) == [1]
    assert ever("min_p_sampling_from_probs", probs, min_p=1.0) == [1]


def test_controls_belong_to_the_row_of_the_distribution():
    indices = torch.tensor([1, 0] * 100)
    for top_k in (torch.tensor([1, 4]), torch.tensor([1, 4], dtype=torch.int32), whole(1, 2**40)):
        for name in ("top_k_sampling_from_probs", "top_k_top_p_sampling_from_logits"):
            given = {"top_p": 1.0} if "top_p" in name else {}
            found = tokens_of(name, WIDE.expand(2, -1), top_k=top_k, indices=indices, seed=5, offset=0, **given)
            assert found.dtype == torch.int64
            assert set(found[1::2].tolist()) == {0}
            assert set(found[::2].tolist()) == {0, 1, 2, 3}


@pytest.mark.parametrize("name", OF_PROBS)
def test_a_row_without_candidates_is_token_0_and_not_valid(name):
    probs = rows(4)
    probs[1], probs[2] = math.nan, 0.0
    found, valid = tokens_of(name, probs, return_valid=True)
    assert valid.dtype == torch.bool
    assert valid.tolist() == [True, False, False, True]
    assert found[1:3].tolist() == [0, 0]
    with pytest.raises(ArgumentError, match="probs expected no NaN"):
        tokens_of(name, probs, check_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_distributions_are_those_of_torch(dtype):
    logits = torch.randn(5, 67).to(dtype)
    temperature = torch.tensor([0.5, 1.0, 2.0, 0.1, 3.0])
    for given, t in ((None, torch.ones(5)), (0.5, torch.full((5,), 0.5)), (temperature, temperature)):
        found = flashinfer.softmax(logits, given)
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, (logits.double() / t[:, None]).softmax(-1).float())
    # Values are distinct, so that the sets have no ties.
    probs = torch.stack([torch.randperm(67) + 1 for _ in range(5)]).to(dtype)
    keeps = probs >= probs.float().sort(-1, descending=True).values[:, 6:7]
    wanted = torch.where(keeps, probs.double(), 0.0)
    found = flashinfer.top_k_renorm_probs(probs, 7)
    assert found.dtype == dtype
    torch.testing.assert_close(found, (wanted / wanted.sum(-1, keepdim=True)).to(dtype))
    assert torch.equal(flashinfer.top_k_mask_logits(probs, 7), torch.where(keeps, probs, -math.inf))
    found = flashinfer.top_p_renorm_probs(probs, torch.tensor([0.1, 0.5, 0.9, 1.0, 0.0]))
    assert found.dtype == torch.float32
    for row, p, own in zip(probs.double(), (0.1, 0.5, 0.9, 1.0, 0.0), found, strict=True):
        falling = row.sort(descending=True)
        before = falling.values.cumsum(0) - falling.values
        kept = falling.indices[(before < p * row.sum()) | (torch.arange(67) == 0)]
        want = torch.zeros(67, dtype=torch.float64).index_copy(0, kept, row[kept])
        torch.testing.assert_close(own, (want / want.sum()).float())


def test_top_k_of_rows():
    x = torch.tensor([[1.0, 3.0, -math.inf, 3.0, 2.0], [math.nan, -math.inf, 0.0, -1.0, math.inf]])
    values, positions = flashinfer.top_k(x, 3)
    assert positions.tolist() == [[1, 3, 4], [4, 2, 3]]
    assert torch.equal(values, x.gather(1, positions))
    assert positions.dtype == torch.int64
    assert flashinfer.top_k(x, 5, tie_break=flashinfer.TopKTieBreak.SMALL)[1].tolist() == [[1, 3, 4, 0, -1], [4, 2, 3, -1, -1]]


def chain(p, q, drafts, **given):
    return flashinfer.chain_speculative_sampling(torch.tensor([q]), torch.tensor([drafts]), torch.tensor([p]), **given)


def test_a_chain_emits_a_prefix_and_counts_each_draft_alone():
    even, certain, other = [0.5, 0.5, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]
    # The first draft is rejected and replaced by token 1; the second alone would be accepted.
    tokens, accepted, emitted = chain([certain, certain, other], [even, even], [0, 1])
    assert tokens.tolist() == [[1, -1, -1]]
    assert (accepted.tolist(), emitted.tolist()) == ([1], [0])
    tokens, accepted, emitted = chain([certain, certain, other], [even, even], [1, 1])
    assert tokens.tolist() == [[1, 1, 2]]
    assert (accepted.tolist(), emitted.tolist()) == ([2], [2])
    before = torch.tensor([5]), torch.tensor([7])
    counts = dict(zip(("maybe_output_accepted_token_num", "maybe_output_emitted_draft_token_num"), before, strict=True))
    found = chain([certain, certain, other], [even, even], [0, 1], **counts)
    assert found[1] is before[0]
    assert (before[0].tolist(), before[1].tolist()) == ([6], [7])
    # A token outside the vocabulary is rejected, also if it is the only draft.
    assert chain([certain, certain, other], [even, even], [1, 3])[1].tolist() == [1]


def test_counts_of_a_chain_use_its_own_coins():
    batch, n, vocab = 64, 5, 11
    q, p = torch.rand(batch, n, vocab).softmax(-1), (torch.rand(batch, n + 1, vocab) * 3).softmax(-1)
    drafts, seed, offset = torch.randint(vocab, (batch, n)), torch.randint(2**60, (batch,)), torch.randint(2**30, (batch,))
    tokens, accepted, emitted = flashinfer.chain_speculative_sampling(q, drafts, p, seed=seed, offset=offset)
    assert torch.equal(emitted + 1, (tokens >= 0).sum(1, dtype=torch.int32))
    assert (accepted >= emitted).all()
    assert (accepted > emitted).any()
    # If nothing is rejected after the first rejection, both counts come from the same random numbers.
    for count in range(1, n + 1):
        part = flashinfer.chain_speculative_sampling(
            q[:, :count], drafts[:, :count], p[:, : count + 1], seed=seed, offset=offset
        )
        assert torch.equal(part[1] == count, part[2] == count)
    order = torch.randperm(batch)
    moved = flashinfer.chain_speculative_sampling(q[order], drafts[order], p[order], seed=seed[order], offset=offset[order])
    assert all(torch.equal(a, b[order]) for a, b in zip(moved, (tokens, accepted, emitted), strict=True))


REFUSED = {
    "a seed without an offset": ("sampling_from_probs", {"seed": 1}, ArgumentError, "offset expected a value"),
    "a number and a tensor": ("sampling_from_probs", {"seed": 1, "offset": whole(1)}, ArgumentError, "offset expected a"),
    "a generator beside a seed": (
        "sampling_from_logits", {"seed": 1, "offset": 1, "generator": torch.Generator()}, ArgumentError, "generator expected",
    ),
    "seeds of another batch": ("sampling_from_probs", {"seed": whole(1, 2), "offset": whole(1, 2)}, ShapeError, "seed"),
    "narrow seeds": (
        "sampling_from_probs", {"seed": whole(1).int(), "offset": whole(1)}, ArgumentError, "seed expected dtype int64",
    ),
    "narrow indices": ("sampling_from_probs", {"indices": whole(1).short()}, ArgumentError, "indices expected dtype int32"),
    "a matrix of top_p": ("top_p_sampling_from_probs", {"top_p": torch.ones(6, 1)}, ShapeError, "top_p expected a number"),
    "fractions of tokens": (
        "top_k_sampling_from_probs", {"top_k": torch.full((6,), 2.5)}, ArgumentError, "top_k expected an integer dtype, got",
    ),
    "no numbers of tokens": (
        "top_k_top_p_sampling_from_logits", {"top_k": torch.full((6,), math.nan)}, ArgumentError, "top_k expected an integer",
    ),
    "truths of tokens": (
        "top_k_sampling_from_probs", {"top_k": torch.ones(6).bool()}, ArgumentError, r"an integer dtype, got torch\.bool",
    ),
    "complex numbers": (
        "top_p_sampling_from_probs", {"top_p": torch.ones(6) * 1j}, ArgumentError, "top_p expected a float or integer",
    ),
    "truths": ("min_p_sampling_from_probs", {"min_p": torch.ones(6).bool()}, ArgumentError, "min_p expected a float or"),
    "a scalar tensor": ("top_k_sampling_from_probs", {"top_k": torch.tensor(3)}, ShapeError, "top_k expected a number"),
    "a fraction of tokens": ("top_k_sampling_from_probs", {"top_k": 1.5}, ArgumentError, "top_k expected an integer"),
    "no number of tokens": ("top_k_sampling_from_probs", {"top_k": None}, ArgumentError, "top_k expected an integer"),
    "text": ("top_p_sampling_from_probs", {"top_p": "0.5"}, ArgumentError, "top_p expected a number or \\[6\\], got '0.5'"),
    "a list": ("min_p_sampling_from_probs", {"min_p": [0.1]}, ArgumentError, "min_p expected a number"),
    "a truth": ("top_k_top_p_sampling_from_logits", {"top_p": True}, ArgumentError, "top_p expected a number"),
    "a seed as generator": ("sampling_from_logits", {"generator": 5}, ArgumentError, "generator expected a torch.Generator"),
    "a fraction of a seed": ("sampling_from_probs", {"seed": 1.5, "offset": 0}, ArgumentError, "seed expected an integer"),
    "an unknown order": (
        "top_k_top_p_sampling_from_probs", {"filter_apply_order": "top_p_first"}, ArgumentError, "filter_apply_order expected",
    ),
    "an unknown order of logits": (
        "top_k_top_p_sampling_from_logits", {"filter_apply_order": "top_p_first"}, ArgumentError, "filter_apply_order expected",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_mapped_is_refused_by_name(case):
    name, given, kind, message = REFUSED[case]
    with pytest.raises(kind, match=message):
        tokens_of(name, rows(), **given)


def test_other_refusals():
    with pytest.raises(UnsupportedError, match=r"probs expected torch\.float32"):
        flashinfer.sampling_from_probs(rows().double())
    with pytest.raises(UnsupportedError, match="temperature expected a number above 0"):
        flashinfer.softmax(rows(), 0.0)
    with pytest.raises(UnsupportedError, match="k expected at most 1048576"):
        flashinfer.top_k(torch.randn(1, 2**20 + 1), 2**20 + 1)
    with pytest.raises(ArgumentError, match="k expected 1 to 103"):
        flashinfer.top_k(rows(), 104)


def test_numbers_of_other_kinds_are_refused_where_there_is_no_sampler():
    with pytest.raises(ArgumentError, match=r"temperature expected a number or \[6\], got '1'"):
        flashinfer.softmax(rows(), "1")
    for k in (3.0, "3", None, True):
        with pytest.raises(ArgumentError, match="k expected an integer"):
            flashinfer.top_k(rows(), k)
    for tie_break in (torch.tensor([1, 2]), 1.0, True, None):
        with pytest.raises(ArgumentError, match="tie_break expected an integer"):
            flashinfer.top_k(rows(), 3, tie_break=tie_break)


def test_numbers_of_numpy_and_of_any_size_are_taken():
    x = rows()
    for top_k in (
        np.int32(103),
        2**70,
        -(2**70),
        0,
        torch.full((6,), -(2**32) + 1),
        torch.full((6,), 2**40),
        torch.full((6,), 127).byte(),
    ):
        torch.testing.assert_close(flashinfer.top_k_renorm_probs(x, top_k), x)
    for top_p in (np.float32(1), 1, 10**400, torch.ones(6, dtype=torch.int64), torch.ones(6).byte()):
        torch.testing.assert_close(flashinfer.top_p_renorm_probs(x, top_p), x)
    assert torch.equal(flashinfer.top_k(x, np.int64(2))[1], x.topk(2).indices)


@pytest.mark.parametrize("name", ["top_k_sampling_from_probs", "top_k_top_p_sampling_from_logits", "sampling_from_probs"])
def test_an_index_that_names_no_row_draws_from_the_first(name, monkeypatch):
    """On a GPU the host does not read the indices; indices on the host are refused."""
    x, given = rows(3), {"seed": whole(4, 4), "offset": whole(0, 1)}
    for at in (3, -1, 2**32 + 1):
        with pytest.raises(ArgumentError, match=f"indices expected rows 0 to 2, got {at}"):
            tokens_of(name, x, indices=whole(at, 2), **given)
    monkeypatch.setattr(flashinfer.sampling, "_require_rows", lambda *_: None)
    found = [tokens_of(name, x, indices=whole(at, 2), **given) for at in (0, 3, -1, 2**32 + 1)]
    assert all(torch.equal(one, found[0]) for one in found)


def test_a_draft_beyond_32_bits_is_outside_the_vocabulary():
    even, certain, other = [0.5, 0.5, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]
    for token in (2**32 + 1, -(2**32) + 1, 2**63 - 1, -(2**63)):
        tokens, accepted, emitted = chain([certain, certain, other], [even, even], [token, 1])
        assert (tokens.tolist(), accepted.tolist(), emitted.tolist()) == ([[1, -1, -1]], [1], [0])


FIRST, SECOND = "maybe_output_accepted_token_num", "maybe_output_emitted_draft_token_num"
UNFIT = {
    "float ids": ({"draft_token_ids": torch.full((2, 2), 0.9)}, ArgumentError, "draft_token_ids expected an integer dtype"),
    "truths as ids": ({"draft_token_ids": torch.ones(2, 2).bool()}, ArgumentError, "draft_token_ids expected an integer dtype"),
    "truths as probabilities": (
        {"draft_probs": torch.ones(2, 2, 5).bool()}, ArgumentError, "draft_probs expected a float or integer",
    ),
    "complex probabilities": (
        {"target_probs": torch.ones(2, 3, 5) * 1j}, ArgumentError, "target_probs expected a float or integer dtype, got",
    ),
    "another device": ({"target_probs": torch.ones(2, 3, 5, device="meta")}, ArgumentError, "target_probs expected the device"),
    "counts of another batch": ({SECOND: torch.zeros(5).int()}, ShapeError, rf"{SECOND} expected \[batch=2\], got \[5\]"),
    "a matrix of counts": ({SECOND: torch.zeros(3, 2).int()}, ShapeError, rf"{SECOND} expected \[batch\]"),
    "a list of counts": ({SECOND: [0, 0]}, ArgumentTypeError, rf"{SECOND} expected a tensor \[batch\], got list"),
    "float counts": ({SECOND: torch.zeros(2)}, ArgumentError, f"{SECOND} expected dtype int32 or int64"),
    "counts on another device": ({SECOND: torch.zeros(2, device="meta").int()}, ArgumentError, f"{SECOND} expected the device"),
    "one count for all": ({SECOND: torch.zeros(1).int().expand(2)}, ArgumentError, f"{SECOND} expected separate memory"),
    "a list as first counts": ({FIRST: [0, 0]}, ArgumentTypeError, f"{FIRST} expected a tensor"),
}  # fmt: skip


@pytest.mark.parametrize("case", UNFIT)
def test_a_chain_that_does_not_fit_is_refused_before_anything_is_drawn_or_written(case):
    changed, kind, message = UNFIT[case]
    counts = {name: torch.zeros(2, dtype=torch.int64) for name in (FIRST, SECOND)}
    given = {
        "draft_probs": torch.rand(2, 2, 5), "draft_token_ids": torch.zeros(2, 2, dtype=torch.int64),
        "target_probs": torch.rand(2, 3, 5), "generator": torch.Generator().manual_seed(3), **counts,
    }  # fmt: skip
    with pytest.raises(kind, match=message):
        flashinfer.chain_speculative_sampling(**(given | changed))
    assert all(count.tolist() == [0, 0] for count in counts.values())
    assert torch.equal(given["generator"].get_state(), torch.Generator().manual_seed(3).get_state())


def test_counts_of_a_chain_have_memory_of_their_own():
    certain, even, buffer = [1.0, 0.0], [0.5, 0.5], torch.zeros(3, 2, dtype=torch.int32)
    given = [certain, certain, certain], [even, even], [0, 0]
    with pytest.raises(AliasError, match=rf"{SECOND} expected memory separate from {FIRST}, got overlap\. \[OPF-A040\]"):
        chain(*given, **dict.fromkeys((FIRST, SECOND), buffer[0, :1]))
    assert not buffer.any()
    q, p, columns = (
        torch.tensor([[even] * 2] * 3),
        torch.tensor([[certain] * 3] * 3),
        {FIRST: buffer[:, 0], SECOND: buffer[:, 1]},
    )
    one = torch.zeros((), dtype=torch.int32).expand(1)
    with pytest.raises(AliasError):
        chain(*given, **{FIRST: one, SECOND: one})
    drafts, rows = torch.zeros(3, 2, dtype=torch.int64), buffer.view(-1)
    flashinfer.chain_speculative_sampling(q, drafts, p, **columns)
    assert (buffer == 2).all()
    for first, second in ((rows[:3], rows[2:5]), (rows[::2], rows[:3]), (buffer[:, 1], rows[1:4])):
        with pytest.raises(AliasError, match=f"{SECOND} expected memory separate from"):
            flashinfer.chain_speculative_sampling(q, drafts, p, first, second)
    assert (buffer == 2).all()
    flashinfer.chain_speculative_sampling(q, drafts, p, rows[3:], rows[:3])
    assert (buffer == 4).all()


def test_a_refused_chain_writes_nothing():
    counts = [torch.zeros(1, dtype=torch.int32) for _ in range(2)]
    q, drafts = torch.rand(1, 2, 5), torch.zeros(1, 2, dtype=torch.int64)
    with pytest.raises(ShapeError, match=r"target_probs expected \[1, 3, 5\]"):
        flashinfer.chain_speculative_sampling(q, drafts, torch.rand(1, 2, 5), *counts)
    with pytest.raises(UnsupportedError, match="draft_token_ids expected 1 to 128 drafts"):
        flashinfer.chain_speculative_sampling(
            torch.rand(1, 129, 5), torch.zeros(1, 129, dtype=torch.int64), torch.rand(1, 130, 5), *counts
        )
    with pytest.raises(OpfacadeError, match="offset expected a value"):
        flashinfer.chain_speculative_sampling(q, drafts, torch.rand(1, 3, 5), *counts, seed=1)
    assert [count.item() for count in counts] == [0, 0]
