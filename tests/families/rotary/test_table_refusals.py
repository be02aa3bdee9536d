"""Invalid parameters of a table are refused by name."""

import math
from fractions import Fraction

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
def test_parameters_that_are_not_numbers_are_refused(name, value):
    with pytest.raises(ArgumentError, match=f"{name} expected a"):
        table(**{name: value})


def test_ntk_is_refused_for_a_single_pair():
    with pytest.raises(ArgumentError, match="rotary_dim expected 4 or more with kind ntk, got 2"):
        table("ntk", rotary_dim=2, max_position_embeddings=16)


KNOWN = {"original_max_position_embeddings": 16}


@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [
        ("llama3", KNOWN | {"low_freq_factor": 4.0}, "high_freq_factor expected another number than low_freq_factor"),
        ("yarn", KNOWN | {"base": 1.0}, "base expected a number other than 1"),
        ("yarn", KNOWN | {"beta_fast": 0}, "beta_fast expected a finite number above 0"),
        ("longrope", KNOWN | {"short_factor": "x"}, "short_factor expected numbers"),
        ("longrope", {"original_max_position_embeddings": 1, "seq_len": 1, "short_factor": [1.0] * 4}, "expected 2 or more"),
    ],
)
def test_parameters_by_which_a_formula_divides_must_not_be_zero(kind, fields, message):
    with pytest.raises(ArgumentError, match=message):
        table(kind, **fields)


TRAINED = {"original_max_position_embeddings": 4096}


@pytest.mark.parametrize(
    ("kind", "fields", "argument", "word"),
    [
        ("longrope", KNOWN | {"short_factor": [1.0, 0.0, 1.0, 1.0]}, "short_factor", "finite numbers above 0"),
        ("longrope", KNOWN | {"short_factor": [1.0, math.nan, 1.0, 1.0]}, "short_factor", "finite numbers above 0"),
        ("longrope", KNOWN | {"seq_len": 17, "long_factor": [1.0, 1.0, 1.0, -1.0]}, "long_factor", "finite numbers above 0"),
        (
            "longrope",
            KNOWN | {"short_factor": [1.0] * 4, "short_mscale": 1.0},
            "long_mscale",
            "a value, because this kind requires it",
        ),
        (
            "longrope",
            KNOWN | {"short_factor": [1.0] * 4, "short_mscale": 1.0, "long_mscale": 1.0, "attention_factor": 2.0},
            "attention_factor",
            "None with short_mscale and long_mscale",
        ),
        ("yarn", TRAINED | {"factor": 2.0, "short_mscale": 1.0}, "short_mscale", "that of another kind"),
        ("linear", {"factor": 1e-320}, "scaling", "whose frequencies are finite"),
        ("linear", {"base": 1e-320, "rotary_dim": 64, "factor": 1e-10}, "scaling", "whose frequencies are finite"),
        ("linear", {"factor": 6e-309}, "scaling", "whose cosines and sines are finite in f32"),
        ("yarn", TRAINED | {"factor": math.e**10, "mscale": 1.0, "mscale_all_dim": -1.0}, "mscale_all_dim", "another number"),
        ("yarn", TRAINED | {"attention_factor": 1e300}, "scaling", "are finite in f32"),
        ("yarn", TRAINED | {"attention_factor": 1e5, "dtype": "f16"}, "scaling", "are finite in f16"),
        ("yarn", TRAINED | {"mscale": 1e308, "mscale_all_dim": -1e308, "factor": 1e308}, "scaling", "finite"),
        ("yarn", {"original_max_position_embeddings": 5e-324}, "scaling", "that the formula of yarn takes"),
        ("yarn", TRAINED | {"truncate": "no"}, "truncate", "True or False, got 'no'"),
        ("yarn", TRAINED | {"truncate": None}, "truncate", "True or False"),
        ("ntk", {"rotary_dim": 4, "factor": 1e200, "max_position_embeddings": 2}, "scaling", "that the formula of ntk takes"),
        ("linear", {"beta_fast": 3.0}, "beta_fast", r"a parameter of linear \(factor, seq_len\), got that of another kind"),
        ("linear", {"beta_quick": 3.0}, "beta_quick", "got no parameter of this name"),
        ("default", {}, "factor", "a parameter of default"),
        ("linear", {"max_positions": 2**60}, "max_positions", "at most 2147483647"),
        ("linear", {"rotary_dim": 2**60}, "rotary_dim", "at most 2147483647"),
        ("linear", {"dtype": "i32"}, "dtype", "'f32', 'bf16' or 'f16', got 'i32'"),
        ("linear", {"dtype": "f99"}, "dtype", "got 'f99'"),
        ("linear", {"dtype": torch.float32}, "dtype", r"got torch.float32\. Use 'f32'"),
        ("linear", {"dtype": "bfloat16"}, "dtype", "Use 'bf16'"),
        ("linear", {"device": "nowhere"}, "device", "a device that torch supports on this machine"),
        ("linear", {"device": torch.float16}, "device", "a device that torch supports on this machine"),
        (["linear"], {}, "kind", "one of default"),
    ],
)
def test_parameters_that_give_infinite_or_nan_entries_are_refused(kind, fields, argument, word):
    with pytest.raises(ArgumentError, match=word) as caught:
        table(kind, **fields)
    assert caught.value.code == "OPF-A047"
    assert caught.value.issues[0].argument == argument


def test_a_table_that_exceeds_the_memory_is_refused(monkeypatch):
    """The test raises the message of torch's allocator, so that it does not exhaust the memory of the host."""

    def full(*_args, **_options):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr(torch, "cat", full)
    with pytest.raises(ArgumentError, match="max_positions expected a number of rows that fits in the host's memory"):
        table()


def test_none_is_treated_as_a_missing_parameter():
    given = TRAINED | {"beta_fast": None, "mscale": None, "short_factor": None}
    assert torch.equal(table("yarn", **given), table("yarn", **TRAINED))


def test_a_fraction_is_accepted_as_a_number():
    assert torch.equal(table(factor=Fraction(5, 2)), table(factor=2.5))


def test_numpy_numbers_are_accepted():
    assert torch.equal(table(rotary_dim=np.int64(8), max_positions=np.int32(4), factor=np.float32(2.0)), table())
