"""Rows of logits that are not aligned to groups, on an emulated device: an odd vocabulary, and views of wider tensors."""

import pytest
import torch

from tests import emulator
from tests.families.sampling.calls import split_as
from tests.families.sampling.test_emulated import run
from tests.families.sampling.test_wide_sets import normal

pytestmark = emulator.needed
VOCAB = 18001  # odd, and several rounds of loads
GIVEN = {"none": {}, "k": {"top_k": 50}, "min_p": {"min_p": 0.02}, "p": {"top_p": 0.8}, "mask": {}, "k and mask": {"top_k": 50}}


def logits(dtype, vocab=VOCAB, begin=0, rows=5):
    """Views in which no two rows have the same alignment."""
    wide = torch.zeros(rows, vocab + begin + 3, dtype=dtype)
    view = wide[:, begin : begin + vocab] if begin else torch.zeros(rows, vocab, dtype=dtype)
    return view.copy_(3 * normal(7, rows, vocab))


def operands(name, vocab):
    if not name.endswith("mask"):
        return GIVEN[name]
    return GIVEN[name] | {"bitmask": torch.randint(-(2**31), 2**31 - 1, (5, -(-vocab // 32)), dtype=torch.int32)}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", GIVEN)
def test_they_draw_what_an_aligned_row_draws(name, dtype):
    """A padded copy has aligned rows, whose groups are loaded whole. `run` also checks each token against fp64."""
    x = logits(dtype)
    padded = torch.zeros(5, VOCAB + 7, dtype=dtype)[:, :VOCAB].copy_(x)
    given = operands(name, VOCAB)
    with split_as(1, 0):
        want = run(padded, **given).token
        assert torch.equal(run(x, **given).token, want)
        assert torch.equal(run(logits(dtype, begin=1), **given).token, want)
        assert torch.equal(run(logits(dtype, begin=3), **given).token, want)


@pytest.mark.parametrize("late", [0, 3, 2047, 2048, VOCAB - 5, VOCAB - 4, VOCAB - 1])
def test_each_token_may_win(late):
    """Tokens at the ends of a row, and at the ends of groups."""
    x = torch.zeros(4, VOCAB, dtype=torch.bfloat16)
    x[:, late] = 80.0
    with split_as(1, 0):
        assert run(x).token.tolist() == [late] * 4
        assert run(x, top_k=3).token.tolist() == [late] * 4


def test_neighbours_of_a_row_are_not_its_tokens():
    """The first and the last word of a row also contain elements before and after the row, here large logits."""
    wide = torch.full((3, VOCAB + 2), 90.0, dtype=torch.bfloat16)
    wide[:, 1 : VOCAB + 1] = normal(9, 3, VOCAB).bfloat16()
    with split_as(1, 0):
        tokens = run(wide[:, 1 : VOCAB + 1]).token
    assert ((tokens >= 0) & (tokens < VOCAB)).all()
