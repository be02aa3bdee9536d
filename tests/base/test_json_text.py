"""JSON output contains no values that are not JSON."""

import json

import pytest

from opfacade.base.json_text import text


def no_constant(word):
    pytest.fail(word)


def test_numbers_that_are_not_finite_are_strings():
    inf = float("inf")
    value = {"a": [1.5, inf, (-inf, float("nan"))], "b": {"c": None, "d": True, "e": 10**20}}
    found = json.loads(text(value), parse_constant=no_constant)
    assert found == {"a": [1.5, "Infinity", ["-Infinity", "NaN"]], "b": {"c": None, "d": True, "e": 10**20}}
