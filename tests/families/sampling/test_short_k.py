"""Rows with a small k, on the host: lists of a team of CTAs, and rows that do not fit a list."""

from contextlib import nullcontext
from functools import cache

import pytest
import torch

from opfacade import Plan, Preference, Target
from opfacade.backends.cuda.sampling import sample
from opfacade.plan import forget_selections
from opfacade.plans.sampling import SampleDescriptor
from opfacade.testing.bits import same_bits
from tests import emulator
from tests.families.sampling.calls import split_as
from tests.families.sampling.test_emulated import run
from tests.families.sampling.test_wide_sets import VOCAB, normal

pytestmark = emulator.needed
KS = [0, 1, 2, 17, 50, 128, 129, 3000, -1]


def rows_of(seed, vocab=VOCAB):
    """Peaked, flat, with ties, all values equal, few candidates, and in increasing order."""
    x = normal(seed, 9, vocab)
    x[0], x[2], x[3], x[4, 60:], x[5] = 5 * x[0], (4 * x[2]).round() / 4, 0.5, -torch.inf, x[5].sort().values
    x[6, ::3], x[7, 5], x[8] = torch.nan, torch.inf, -torch.inf
    return x


@pytest.mark.parametrize("given", [{}, {"top_p": 0.9}, {"top_p": 0.6, "min_p": 0.05}], ids=str)
def test_every_token_is_proven(given):
    for k in KS:
        run(rows_of(k % 7), top_k=k, **given)


def test_ctas_of_half_the_threads_draw_the_same_tokens(monkeypatch):
    """More rows with small k than run concurrently, and some that do not fit a list."""
    given = {"top_k": KS, "top_p": [0.9, 1.0, 0.6] * 3, "seed": list(range(9))}
    want = run(rows_of(2, 900), **given)
    monkeypatch.setattr(sample, "threads_of", lambda *_: 256)
    forget_selections()
    got = run(rows_of(2, 900), **given)
    forget_selections()
    assert same_bits(got.token, want.token)
    assert same_bits(got.valid, want.valid)


@pytest.mark.parametrize(("rows", "vocab", "threads"), [(264, 4096, 512), (265, 4096, 256), (265, 4097, 512)])
def test_sizes_choose_the_threads(rows, vocab, threads):
    described = SampleDescriptor(total_num_rows=rows, vocab=vocab, top_k=True)
    plan = Plan.select(described, Preference(backend="cuda"), Target.parse("sm_90a"))
    assert dict(plan.jit_spec.params).get("threads", 512) == threads
    assert ("threads=256" in plan.sku.id) is (threads == 256)


TEAMS = [(1, 9), (2, 9), (4, 9), (4, 5), (8, 9), (8, 6), (8, 4), (8, 2), (8, 18)]
# The element size does not affect how a team shares rows: each sharing is tested with one type; the other is heavy.
SHARED = [
    pytest.param(dtype, *team, marks=() if due == turn % 2 else pytest.mark.heavy)
    for turn, team in enumerate(TEAMS)
    for due, dtype in enumerate((torch.float32, torch.bfloat16))
]


@pytest.mark.parametrize(("dtype", "ctas", "rows"), SHARED)
def test_no_team_changes_a_token(dtype, ctas, rows):
    """Two clusters at a time. Their rows need lists of several lengths, and some rows are held: k is large, or tokens are
    equal.
    """
    got, want = tokens_of(dtype, ctas, rows), tokens_of(dtype, None, 9)
    for i in range(rows):
        assert same_bits(got.token[i], want.token[i % 9]), i
        assert same_bits(got.valid[i], want.valid[i % 9]), i


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_not_held_changes_no_token(dtype):
    """A CTA has 64 tokens of a row in shared memory; the lists of its team need more space."""
    got, want = tokens_of(dtype, 4, 9, 256), tokens_of(dtype, None, 9)
    assert same_bits(got.token, want.token)
    assert same_bits(got.valid, want.valid)


def test_what_is_not_held_has_its_temperature():
    for given in ({"top_k": 300, "top_p": 0.9}, {"top_k": 0, "top_p": 0.5}, {"top_k": 0, "top_p": 0.9, "min_p": 0.05}):
        given |= {"rows": 40, "indices": [i % 6 for i in range(40)], "temperature": 3.0, "seed": list(range(40))}
        want = run(rows_of(1), **given)
        with split_as(4, 256):
            assert same_bits(run(rows_of(1), **given).token, want.token)


@cache
def tokens_of(dtype, ctas, rows, held=10**5):
    of = list(range(9)) * 2
    given = {
        "top_k": KS,
        "top_p": [0.9, 1.0, 0.0] * 3,
        "temperature": [1.0, 0.7, 0.0, 1.0, 2.0, 1.0, 1e-38, 1.0, 1.0],
        "seed": of,
    }
    given = {name: [values[i] for i in of[:rows]] for name, values in given.items()}
    with split_as(ctas, held) if ctas else nullcontext():
        return run(rows_of(1).to(dtype), rows=rows, indices=of[:rows], **given)


def test_rows_past_the_valid_ones_stay():
    x = normal(4, 9, 600)
    for ctas in (2, 4):
        with split_as(ctas, 10**5):
            args = run(x, top_k=KS, num_valid=[6])
        assert args.token[6:].tolist() == [77] * 3


def test_what_ties_after_the_temperature_is_cut_by_id():
    """Numbers that differ when loaded, but not after the division. A row with a report is held."""
    for temperature, low, high in (
        (1e-38, 3.0, 9.0),
        (3e38, 1.0, 1.5),
        (2.0**20, 1e-40, 2e-40),
        (1.0, 2e38, 3e38),
        (0.3, 1.0, 1.0 + 2e-7),
    ):
        x = torch.full((1, 4096), low)
        x[0, 4::8] = high
        given = {"rows": 6, "indices": [0] * 6, "seed": list(range(6)), "top_k": 60, "temperature": temperature}
        assert torch.equal(run(x, **given).token, run(x, report="logprob", **given).token)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_that_no_filter_cuts_are_drawn_beside_others(dtype):
    """By teams of one CTA: k is large or absent, and rows whose only filters are p and min_p are held."""
    x, inf = rows_of(2).to(dtype), float("inf")
    given = {"rows": 18, "indices": [i % 9 for i in range(18)], "seed": list(range(18)), "top_k": 3 * [0, 5, -1, 0, VOCAB, 200]}
    given |= {"temperature": 2 * [1.0, 0.7, 0.0, inf, 2.0, 1e-3, 1.0, 1.0, 1.0]}
    for more in ({}, {"top_p": 6 * [1.0, 0.5, 1.0], "min_p": 9 * [0.0, 0.0]}, {"min_p": 6 * [0.0, 0.1, -1.0]}):
        want = run(x, **given, **more).token
        with split_as(2, 10**5):
            assert torch.equal(run(x, **given, **more).token, want)
