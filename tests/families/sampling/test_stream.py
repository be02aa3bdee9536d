"""Unfiltered races over several rounds of loads, on the host: bounds of groups, and prefetched groups."""

import pytest
import torch

from opfacade.backends.cuda.sampling import split
from tests import emulator
from tests.families.sampling.calls import split_as
from tests.families.sampling.test_emulated import run
from tests.families.sampling.test_wide_sets import normal

pytestmark = emulator.needed
VOCAB, ROWS = 20012, 4
LATE = 13001  # a token of the second round
ADJUSTED = {
    "plain": {},
    "dense": {"bias": normal(8, ROWS, VOCAB)},
    "penalties": {"output_counts": (normal(9, ROWS, VOCAB) > 1).int(), "repetition": 1.3, "frequency": 0.5, "presence": -0.25},
    "lowered": {"output_counts": (normal(9, ROWS, VOCAB) > 1).int(), "repetition": 1.3, "frequency": 0.5, "presence": 0.25},
    "capped": {"soft_cap": 6.0},
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("adjusted", ADJUSTED)
def test_every_token_is_proven(adjusted, dtype):
    x = normal(3, ROWS, VOCAB)
    x[1], x[2, 5000:6000], x[3, ::2] = 4 * x[1], -torch.inf, torch.nan
    given = ADJUSTED[adjusted] | {"temperature": [1.0, 0.0, 0.7, 2.0]}
    first = run(x.to(dtype), **given).token
    for ctas in (1, 2):
        with split_as(ctas, 0):
            assert torch.equal(run(x.to(dtype), **given).token, first)


def test_rows_of_any_length_and_alignment_are_proven():
    wide = normal(4, 3, VOCAB + 7)
    for begin, vocab in ((0, 8192), (0, 8196), (1, 16390), (4, 16385), (0, 8191), (0, 3)):
        with split_as(1, 0):
            run(wide[:, begin : begin + vocab], temperature=[1.0, 0.0, 0.7])


@pytest.mark.parametrize("late", range(LATE, LATE + 8192, 2048))
def test_a_late_token_wins(late):
    """In each of the groups that are raced together."""
    late = min(late, VOCAB - 1)
    x = torch.zeros(1, VOCAB)
    x[0, late] = 80.0
    with split_as(1, 0):
        assert run(x).token[0] == late


@pytest.mark.parametrize("given", [{"repetition": 0.25}, {"frequency": -1.0}, {"presence": -1.0}])
def test_a_penalty_may_raise_a_late_token(given):
    x, counts = torch.full((1, VOCAB), 0.5), torch.zeros(1, VOCAB, dtype=torch.int32)
    x[0, 0], counts[0, LATE] = 1.0, 1
    with split_as(1, 0):
        assert run(x, output_counts=counts, temperature=0.0, **given).token[0] == LATE


def test_a_list_of_biases_raises_groups():
    """A repeated token, whose sum decides; ids whose groups share a flag; a value that is NaN."""
    bias_tokens = torch.tensor([[LATE, 5, LATE, LATE + 65536 * 4, LATE + 4, 9]], dtype=torch.int32)
    bias_values = torch.tensor([[30.0, -9.0, 30.0, 500.0, torch.nan, torch.inf]])
    for values, token in ((bias_values, 9), (bias_values.nan_to_num(0.0, posinf=0.0), LATE)):
        assert run(torch.zeros(1, VOCAB), bias_tokens=bias_tokens, bias_values=values).token[0] == token
    many = torch.arange(2100, dtype=torch.int32)[None] * 5
    given = {"bias_tokens": many, "bias_values": torch.where(many == 10000, 70.0, -1.0)}
    assert run(torch.zeros(1, VOCAB), **given).token[0] == 10000


def test_a_cap_bounds_what_is_near_it():
    """The error of the approximate tanh is many octaves for a large cap."""
    x = torch.full((1, VOCAB), 9e4)
    x[0, LATE] = 9.0036e4
    assert run(x, soft_cap=1e5).token[0] == LATE
    x = torch.full((1, VOCAB), -2.0)
    x[0, LATE] = 90.0
    for cap in (50.0, 3e38, 2.0**-126):
        run(x, soft_cap=cap)


def test_infinite_penalties_leave_candidates():
    x = torch.full((1, VOCAB), -torch.inf)
    x[0, LATE] = torch.inf
    x[0, LATE + 4] = 1.0
    counts = torch.ones(1, VOCAB, dtype=torch.int32)
    run(x, output_counts=counts, repetition=torch.inf)
    run(x, output_counts=counts, repetition=2.0)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("slope", [0.0, 1.0])
def test_a_list_without_room_is_made_again(slope, temperature):
    """Each group may win: equal numbers, and increasing ones. A chunk fits a list, which is first examined after two chunks."""
    x = slope * torch.arange(VOCAB, dtype=torch.float32)[None]
    last = 16337  # of a thread and a round that come late to the list
    x[0, last + 1 :] = -1.0
    with split_as(1, 0):
        token = run(x, temperature=[temperature]).token[0]
    assert temperature or token == (last if slope else 0)


def test_a_later_list_without_room_is_made_again():
    x = torch.arange(32768, dtype=torch.float32)[None] - 16384
    x[0, :16384] = -1.0
    with split_as(1, 0):
        assert run(x, temperature=[0.0]).token[0] == 32767


def test_all_clusters_run_at_once():
    """132 SMs have room for 30 clusters of 8 CTAs, 62 of 4 and 132 of 2."""

    def of(rows, most=8, name="sm_90a"):
        return split.ctas_of_stream(most, rows, split.Target.parse(name))

    assert [of(rows) for rows in (1, 30, 31, 61, 64, 132, 133, 256)] == [8, 8, 4, 4, 2, 2, 1, 1]
    assert [of(rows, 2) for rows in (1, 61, 132, 133)] == [2, 2, 2, 1]
    assert of(64, 1, "sm_80") == 1


def test_a_biased_token_that_a_list_has_no_room_for_wins():
    """All groups of a row with increasing logits are listed, followed by groups with biases."""
    bias_tokens, bias_values = torch.zeros(1, 500, dtype=torch.int32), torch.zeros(1, 500)
    bias_tokens[0, -1], bias_values[0, -1] = 9000, 1e5
    x = torch.arange(16384, dtype=torch.float32)[None]
    x[0, 9000:9004] = -1.0
    with split_as(1, 0):
        assert run(x, bias_tokens=bias_tokens, bias_values=bias_values).token[0] == 9000


@pytest.mark.parametrize("count", [1, 511, 512, 1300])
@pytest.mark.parametrize("vocab", [6144, 8192, 8188, 16384])
def test_a_list_that_is_full_of_groups_has_places_for_biases(count, vocab):
    """Equal numbers, so each group may win, and biases that make no token win."""
    tokens = (4 * torch.arange(count, dtype=torch.int32) % vocab)[None]
    with split_as(1, 0):
        given = {"bias_tokens": tokens, "bias_values": torch.full((1, count), -1.0)}
        assert run(torch.zeros(1, vocab), temperature=[0.0], **given).token[0] == 1


def test_copies_of_an_entry_and_padding_are_added_once_each():
    tokens = torch.tensor([[7, 7, 7, -1, -1, 9000, 9000, -1]], dtype=torch.int32)
    values = torch.tensor([[9.0, 9.0, 9.0, 99.0, 99.0, 14.0, 14.0, 99.0]])
    given = {"bias_tokens": tokens, "bias_values": values}
    assert run(torch.zeros(1, VOCAB), temperature=[0.0], **given).token[0] == 9000


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_negative_repetition_of_a_masked_token_makes_it_a_candidate(dtype):
    """-inf times a negative number: unusual, but equal in each path."""
    mask, counts = torch.full((1, 94), -1, dtype=torch.int32), torch.zeros(1, 3000, dtype=torch.int32)
    mask[0, 50], counts[0, 1605] = 0, 1
    given = {"bitmask": mask, "output_counts": counts, "repetition": -2.0}
    assert run(torch.zeros(1, 3000, dtype=dtype), temperature=0.0, **given).token[0] == 1605
