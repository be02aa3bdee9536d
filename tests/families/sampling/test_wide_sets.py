"""Kept sets that fit no list, on the host: cuts by passes over the row, and the sample that predicts the buckets."""

import pytest
import torch

from opfacade.testing.bits import same_bits
from tests import emulator
from tests.families.sampling.calls import split_as
from tests.families.sampling.test_emulated import run

pytestmark = emulator.needed
VOCAB = 5003


def normal(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


FILTERS = [
    {"top_p": 0.9}, {"top_p": 0.02}, {"top_p": 0.999}, {"top_k": 3000}, {"top_k": 3000, "top_p": 0.5},
    {"top_k": 900, "top_p": 0.9}, {"top_k": 2500, "top_p": 0.4, "order": "joint"},
    {"top_k": 60, "top_p": 0.9, "order": "joint"}, {"top_k": 60, "top_p": 0.5}, {"top_p": 0.9, "min_p": 0.01},
]  # fmt: skip


@pytest.mark.parametrize("given", FILTERS, ids=str)
def test_kept_sets_are_exact(given):
    """The judge checks the kept set, the token and the probabilities of each row in fp64."""
    run(normal(1, 2, VOCAB), probs_out="filtered", report="logprob", **given)


def test_a_wide_set_is_raced_as_a_listed_one():
    """Rows of one launch take both paths."""
    logits = torch.cat((normal(2, 1, VOCAB), 6 * normal(3, 1, VOCAB)))
    args = run(logits, rows=8, indices=[0, 1] * 4, seed=list(range(8)), top_p=0.9)
    assert len(set(args.token[::2].tolist())) == 4


@pytest.mark.parametrize(("every", "others"), [(4, 3.0), (4, -40.0), (1, 0.0)])
def test_a_sample_that_misleads_is_found_out(every, others):
    """The sample consists of tokens whose ids are multiples of four: here they differ from the others, or all are equal."""
    logits = 0.1 * normal(4, 1, VOCAB) if every > 1 else torch.zeros(1, VOCAB)
    logits[:, ::every] += others
    for given in ({"top_p": 0.7}, {"top_k": 4000}, {"top_k": 2700, "top_p": 0.9}):
        run(logits, probs_out="filtered", **given)


@pytest.mark.parametrize("given", [{"top_p": 0.9}, {"top_k": 3000, "top_p": 0.8}, {"top_k": 40}])
def test_no_number_of_ctas_changes_a_bit(given):
    """Lists of one CTA overflow where those of four CTAs do not."""
    logits = normal(5, 3, VOCAB)
    want = run(logits, probs_out="filtered", **given)
    for ctas, held in ((2, 10**5), (4, 10**5), (4, 1024)):
        with split_as(ctas, held):
            got = run(logits, probs_out="filtered", **given)
        assert same_bits(got.token, want.token)
        assert same_bits(got.probs, want.probs)


def test_a_list_of_one_cta_overflows():
    """Its likely tokens are adjacent, so the other CTAs list none."""
    logits = torch.full((1, 20000), -30.0)
    logits[:, 6000:8000] = normal(6, 1, 2000)
    for given in ({"top_k": 480}, {"top_k": 480, "top_p": 0.9}, {"top_k": 1500}):
        run(logits, probs_out="filtered", **given)


def test_equal_tokens_of_a_list_are_cut_by_id():
    """Each thread's most likely token is one of these, so their mass reaches p and they are listed; half of them have half of
    the mass.
    """
    logits = torch.full((1, 2800), -50.0)
    logits[:, ::4] = 0.0
    args = run(logits, top_p=0.5, probs_out="filtered")
    assert args.probs[0].nonzero()[:, 0].tolist() == list(range(0, 1400, 4))


def test_a_k_above_the_candidates_keeps_all_of_them():
    logits = torch.full((1, VOCAB), -torch.inf)
    logits[:, ::700] = normal(7, 1, 8)
    for order in ("top_k_first", "joint"):
        args = run(logits, top_k=50, top_p=0.999999, order=order, probs_out="filtered")
        assert (args.probs > 0).sum() == 8


RACES = [{"top_p": 0.9}, {"top_p": 0.05}, {"top_p": 0.0}, {"min_p": 0.2}, {"top_p": 0.5, "min_p": 0.05}, {"top_k": 3000}]
# Held rows use the same filters as streamed ones: two kinds show the difference, and the others are heavy.
HELD = [
    pytest.param(given, {"soft_cap": 30.0}, id=f"held-{given}", marks=() if turn in (0, 4) else pytest.mark.heavy)
    for turn, given in enumerate(RACES)
]


@pytest.mark.parametrize(("given", "adjusted"), [*(pytest.param(given, {}, id=f"streamed-{given}") for given in RACES), *HELD])
def test_a_race_is_won_by_a_kept_token(given, adjusted):
    """Some races are won by tokens that the filters drop; with probs_out the kept set is known before a race begins."""
    given = given | adjusted
    logits = torch.cat((normal(8, 1, VOCAB), 3 * normal(9, 1, VOCAB)))
    rows = {"rows": 12, "indices": [0, 1] * 6, "seed": list(range(12))}
    known = run(logits, probs_out="filtered", **rows, **given)
    raced = run(logits, **rows, **given)
    assert torch.equal(raced.token, known.token)
    with split_as(4, 1024):
        assert torch.equal(run(logits, **rows, **given).token, known.token)
