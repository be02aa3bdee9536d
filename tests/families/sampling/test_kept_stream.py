"""Rows whose only filters are p and min_p, on the host: f32 sums judge a race, and exact masses if these are too inexact."""

import math

import pytest
import torch

from opfacade import Plan, Preference, Target
from opfacade.backends.cuda.sampling import sample
from opfacade.backends.cuda.sampling.split import Split
from opfacade.plan import forget_selections
from opfacade.plans.sampling import SampleDescriptor
from tests import emulator
from tests.families.sampling.calls import split_as
from tests.families.sampling.test_emulated import run
from tests.families.sampling.test_wide_sets import normal

pytestmark = emulator.needed


@pytest.fixture(autouse=True)
def _streamed(monkeypatch):
    """Rows with only p are streamed, however few and short they are."""
    monkeypatch.setattr(sample, "_FEW_ROWS", 0)
    forget_selections()
    yield
    forget_selections()


VOCAB = 20012  # several rounds of loads
BOTH = {"top_p": [0.9, 0.5, 0.999, 0.02, 1.0, 0.6], "min_p": [0.0, 0.02, 0.0001, 0.5, 0.1, math.nan]}


def rows(dtype=torch.float32):
    """Flat and peaked rows, one whose tokens are mostly equal, and one with few candidates."""
    x = normal(3, 6, VOCAB)
    x[1], x[2], x[3] = 4 * x[1], 2 * x[2].round(), (x[3] * 8).round() / 8
    x[4, 100:] = -torch.inf
    x[5, ::3] = torch.nan
    return x.to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_token_is_proven_whatever_the_split(dtype):
    x = rows(dtype)
    for seed in range(2):
        given = BOTH | {"temperature": [1.0, 0.7, 1.3, 1.0, 0.0, 2.0], "seed": [seed + i for i in range(6)]}
        first = run(x, **given).token
        for ctas in (1, 4):
            with split_as(ctas, 0):
                assert torch.equal(run(x, **given).token, first)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("ctas", [1, 2])
def test_every_token_of_rows_with_p_alone_is_proven(dtype, ctas):
    """16-bit rows list no groups; the most likely tokens come last, so that groups of all chunks may be on the front."""
    x = rows(dtype).sort(dim=-1).values
    given = {"top_p": BOTH["top_p"], "temperature": [1.0, 0.7, 1.3, 1.0, 0.0, 2.0], "seed": list(range(6))}
    with split_as(ctas, 0):
        token = run(x, **given).token
    assert len(set(token.tolist())) > 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_equal_tokens_of_p_alone_are_before_a_place_by_their_ids(dtype):
    """Half of the tokens are equal, so a share keeps the first of them."""
    x = normal(9, 1, 9000) - 12
    x[0, ::2] = 1.0
    shares = [i / 16 for i in range(1, 17)]
    token = run(x.to(dtype), rows=16, indices=[0] * 16, seed=list(range(16)), top_p=shares).token
    assert all(int(t) <= 9000 * share + 2 for t, share in zip(token, shares, strict=True))


def test_rows_of_any_alignment_are_proven():
    wide = torch.cat((normal(4, 1, 9000), 3 * normal(5, 2, 9000)))
    for begin, vocab in ((1, 8191), (3, 17), (0, 8196), (2, 1)):
        run(wide[:, begin : begin + vocab], **{name: values[:3] for name, values in BOTH.items()})


@pytest.mark.parametrize("temperature", [0.0, 2.0**-140, 1e-3, 1.0, 1e30, 3e38, math.inf])
def test_extreme_numbers_are_judged_by_masses(temperature):
    """Numbers that tie after clamping, and numbers whose octaves f32 cannot distinguish."""
    inf, nan = math.inf, math.nan
    x = torch.full((6, 700), -3e38)
    x[0, :4], x[1, :4], x[2] = torch.tensor([3e38, -3e38, 1.0, inf]), torch.tensor([2.5e38, 1.8e38, 3e38, nan]), -inf
    x[3], x[4, ::2], x[5] = 2e38 + 1e30 * torch.arange(700), 1e-45, normal(6, 700) * 1e30
    for top_p in (0.3, 0.9):
        run(x, temperature=temperature, top_p=top_p, min_p=[0.0, 0.5, 0.0, 1.0, 0.3, 0.0])


def test_a_share_that_ends_at_the_winner_is_decided_by_masses():
    """Equal tokens, of which a share of n/16 keeps n: the error margin of f32 sums includes these shares."""
    x = torch.zeros(64, 16)
    shares = [(i % 16 + 1) / 16 for i in range(64)]
    token = run(x, top_p=shares, min_p=0.0, seed=list(range(64))).token
    assert all(int(t) <= i % 16 for i, t in enumerate(token))
    assert any(int(t) == i % 16 for i, t in enumerate(token))


def test_a_floor_of_min_p_hides_no_kept_token():
    """The most likely tokens come late, as do those kept beside them in each group of a round."""
    x = torch.full((1, VOCAB), -9.0)
    x[0, 9000::700], x[0, 15000] = 1.0, 1.5
    given = {"rows": 40, "indices": [0] * 40, "seed": list(range(40)), "min_p": 0.5, "top_p": 1.0}
    with split_as(1, 0):
        token = run(x, **given).token
    assert len(set(token.tolist())) > 10
    assert (x[0, token.long()] > 0).all()


def test_a_winner_that_a_later_token_rules_out_is_not_kept():
    """No bound is known while the first half is raced, and its tokens win nearly always."""
    x = torch.full((1, VOCAB), -0.5)
    x[0, 15000::300] = 1.0
    token = run(x, rows=8, indices=[0] * 8, seed=list(range(8)), min_p=0.5, top_p=1.0).token
    assert (x[0, token.long()] == 1).all()


@pytest.mark.parametrize("ctas", [1, 4])
def test_rejected_winners_are_followed_by_kept_ones(ctas):
    """Flat rows and small shares, so that most winners are rejected, some of them several times."""
    x, shares = normal(7, 2, 5000), [0.02, 0.1, 0.3, 0.5]
    given = {"rows": 32, "indices": [i % 2 for i in range(32)], "seed": list(range(32)), "top_p": 8 * shares}
    with split_as(ctas, 0):
        token = run(x, temperature=1.0, **given).token
        assert torch.equal(run(x, temperature=1.0, min_p=32 * [1e-9], **given).token, token)
    assert len(set(token.tolist())) > 20


def test_held_rows_have_the_tokens_of_streamed_ones(monkeypatch):
    x = rows()
    given = {"top_p": BOTH["top_p"], "seed": list(range(6))}
    streamed = run(x, **given).token
    monkeypatch.undo()
    forget_selections()
    assert torch.equal(run(x, **given).token, streamed)


@pytest.mark.parametrize(
    ("sizes", "filters", "on_chip"),
    [
        ((1, 16384), ("top_p",), False),
        ((15, 16383), ("top_p",), True),
        ((16, 16383), ("top_p",), False),
        ((1, 100), ("top_p", "min_p"), False),
        ((1, 100), ("min_p",), False),
        ((1, 100), ("top_p", "top_k"), False),
    ],
)
def test_rows_that_p_alone_cuts_are_held_where_they_are_few(monkeypatch, sizes, filters, on_chip):
    monkeypatch.undo()
    forget_selections()
    described = SampleDescriptor(total_num_rows=sizes[0], vocab=sizes[1], dtype="f32", **dict.fromkeys(filters, True))
    plan = Plan.select(described, Preference(backend="cuda"), Target.parse("sm_90a"))
    assert ("on_chip=true" in plan.sku.id) is on_chip
    assert (("on_chip", True) in plan.jit_spec.params) is on_chip


@pytest.mark.parametrize(("threads", "ctas"), [(128, 1), (128, 8), (256, 4), (512, 2)])
def test_no_number_of_threads_changes_a_token(monkeypatch, threads, ctas):
    given = BOTH | {"temperature": [1.0, 0.7, 1.3, 1.0, 0.0, 2.0], "seed": list(range(6))}
    want = run(rows(), **given).token
    monkeypatch.setattr(sample, "kept_split", lambda *_: Split(threads, ctas))
    forget_selections()
    assert torch.equal(run(rows(), **given).token, want)


def test_a_token_far_above_all_others_closes_no_place_of_one_above_it():
    """Neither token is sampled from the row, and the less likely one comes first: min_p keeps both."""
    x = normal(8, 1, VOCAB)
    x[0, 5010], x[0, 15010] = 39.0, 40.0
    token = run(x, rows=24, indices=[0] * 24, seed=list(range(24)), min_p=0.2, top_p=1.0).token
    assert set(token.tolist()) == {5010, 15010}


def test_equal_tokens_of_whole_chunks_are_before_a_place_by_their_ids():
    """Half of the tokens are equal, and the share ends among them, in the middle of a chunk without other places."""
    x = normal(9, 1, 40000) - 12
    x[0, ::2] = 1.0
    shares = [i / 64 for i in range(1, 65)]
    token = run(x, rows=64, indices=[0] * 64, seed=list(range(64)), top_p=shares, min_p=0.0).token
    assert all(int(t) <= 40000 * share + 2 for t, share in zip(token, shares, strict=True))
    assert sum(int(t) > 8192 for t in token) > 20


def test_quotients_that_tie_are_cut_by_id():
    """Numbers that differ when loaded, but not after the division."""
    x = torch.full((1, 3000), 2.0 - 2.0**-22)
    x[0, 1::2] = 2.0 - 2.0**-23
    shares = [i / 32 for i in range(1, 33)]
    token = run(x, rows=32, indices=[0] * 32, seed=list(range(32)), top_p=shares, min_p=0.0, temperature=1.9).token
    assert all(int(t) <= 3000 * share for t, share in zip(token, shares, strict=True))


@pytest.mark.parametrize("ctas", [1, 2])
def test_rows_whose_front_overflows_are_drawn_by_passes_without_bounds(ctas):
    """More equal tokens than fit a front: the share decides how many of the first ones are kept."""
    x = torch.zeros(2, 6000)
    x[1, 4000:] = -30.0
    shares = [0.25, 0.5, 0.9, 1.0]
    given = {"rows": 16, "indices": [i % 2 for i in range(16)], "seed": list(range(16)), "top_p": 4 * shares}
    with split_as(ctas, 0):
        token = run(x, temperature=1.0, min_p=8 * [1e-6, 0.5], **given).token
    assert all(int(t) < [6000, 4000][i % 2] * shares[i % 4] for i, t in enumerate(token))
    assert len(set(token.tolist())) > 8


PATHS = {
    "stream": [{}, {"penalties": True, "soft_cap": 9.0}],
    "kept_stream": [{"min_p": True}, {"top_p": True, "min_p": True, "bitmask": True}],
    "short_k": [{"top_k": True}, {"top_k": True, "order": "joint"}, {"top_k": True, "top_p": True, "penalties": True}],
    "held": [
        {"min_p": True, "penalties": True},
        {"report": "logprob"},
        {"probs_out": "filtered"},
        {"top_p": True},
        {"top_k": True, "top_p": True, "order": "joint"},
        {"top_k": True, "report": "logprob"},
    ],
}


@pytest.mark.parametrize("path", PATHS)
def test_the_path_of_a_row_is_decided_by_its_fields(monkeypatch, path):
    monkeypatch.undo()
    for fields in PATHS[path]:
        described = SampleDescriptor(total_num_rows=3, vocab=900, dtype="f32", **fields)
        assert sample.path_of(described) == path, fields
        assert ("path", path) in sample.SAMPLE.jit_spec(described, Target.parse("sm_90a")).params
