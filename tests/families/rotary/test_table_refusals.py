"""Parameters that no table has: refused by their names."""

import math

import numpy as np
import pytest
import torch

from opfacade.errors import ArgumentError
from opfacade.plans.rotary import rotary_table

WRONG = [None, "x", True, math.nan, math.inf, 10**400, np.zeros(2), torch.zeros(2)]


def table(kind="linear", **fields):
    return rotary_table(kind, **({"rotary_dim": 8, "max_positions": 4, "factor": 2.0} | fields))


@pytest.mark.parametrize("value", [*WRONG, 4.5, -2], ids=lambda v: type(v).__name__)
@pytest.mark.parametrize("name", ["rotary_dim", "max_positions"])
def test_sizes(name, value):
    with pytest.raises(ArgumentError, match=rf"{name} expected .* or more"):
        table(**{name: value})


@pytest.mark.parametrize("value", [*WRONG, 0, -2.0], ids=lambda v: type(v).__name__)
@pytest.mark.parametrize("name", ["base", "factor"])
def test_numbers(name, value):
    with pytest.raises(ArgumentError, match=f"{name} expected a"):
        table(**{name: value})


def test_a_base_cannot_grow_for_one_pair():
    with pytest.raises(ArgumentError, match="rotary_dim expected 4 or more with kind ntk, got 2"):
        table("ntk", rotary_dim=2, max_position_embeddings=16)


KNOWN = {"original_max_position_embeddings": 16}


@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [
        ("llama3", KNOWN | {"low_freq_factor": 4.0}, "high_freq_factor expected another number than low_freq_factor"),
        ("yarn", KNOWN | {"base": 1.0}, "base expected another number than 1"),
        ("yarn", KNOWN | {"beta_fast": 0}, "beta_fast expected a finite number above 0"),
        ("longrope", KNOWN | {"short_factor": "x"}, "short_factor expected numbers"),
        ("longrope", {"original_max_position_embeddings": 1, "seq_len": 1, "short_factor": [1.0] * 4}, "expected 2 or more"),
    ],
)
def test_numbers_that_a_formula_divides_by(kind, fields, message):
    with pytest.raises(ArgumentError, match=message):
        table(kind, **fields)


def test_numbers_of_numpy():
    assert torch.equal(table(rotary_dim=np.int64(8), max_positions=np.int32(4), factor=np.float32(2.0)), table())
