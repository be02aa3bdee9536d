"""`compare` and `join`: ratios of errors to bounds by hand, special values, and the report of several outputs."""

import math

import pytest
import torch

from opfacade.testing.bounds import Bounded, Report, compare, join


def bounded(name, want, hard, tight=None):
    want, hard = (torch.tensor(values, dtype=torch.float64) for values in (want, hard))
    return Bounded(name, want, hard, hard if tight is None else torch.tensor(tight, dtype=torch.float64))


def worst_of(want, got, hard):
    return compare([bounded("o", want, hard)], {"o": torch.tensor(got, dtype=torch.float64)}).worst


def test_the_worst_element_is_told_with_its_place_and_both_ratios():
    item = bounded("o", [[1.0, 2.0], [3.0, 4.0]], [[1.0, 1.0], [1.0, 0.5]], [[0.5, 0.5], [0.5, 0.25]])
    report = compare([item], {"o": torch.tensor([[1.25, 2.0], [3.0, 4.375]])}, "request 3")
    assert report == Report(0.75, 1.5, "request 3 o[1, 1] got 4.375 want 4", 4)


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
def test_the_worst_output_counts_in_any_order(order):
    """a is worse over its hard bound, b over its tight one."""
    items = {"a": bounded("a", [1.0, 2.0], [0.5, 0.5], [0.5, 0.5]), "b": bounded("b", [1.0], [1.0], [0.01])}
    got = {"a": torch.tensor([1.0, 3.0]), "b": torch.tensor([1.25])}
    report = compare([items[name] for name in order], got)
    assert (report.worst, report.worst_tight, report.elements) == (2.0, 25.0, 3)
    assert report.where.strip().startswith("a[1]")


def test_reports_are_joined_by_their_worst():
    one, two = Report(0.5, 3.0, "one", 10), Report(2.0, 2.5, "two", 5)
    assert join(one, two) == join(two, one) == Report(2.0, 3.0, "two", 15)


@pytest.mark.parametrize("nonfinite", [math.nan, math.inf, -math.inf])
def test_a_special_value_must_be_the_one_that_is_wanted(nonfinite):
    assert worst_of([nonfinite], [nonfinite], [1.0]) == 0
    assert worst_of([nonfinite], [1.0], [1.0]) == math.inf
    assert worst_of([1.0], [nonfinite], [1.0]) == math.inf
    assert worst_of([1.0, 1.0], [nonfinite, 1.0], [math.inf, 1.0]) == math.inf
    assert worst_of([math.inf], [-math.inf], [1.0]) == math.inf


def test_a_bound_of_zero_asks_for_the_value_itself():
    assert worst_of([0.0, 1.0], [0.0, 1.0], [0.0, 0.0]) == 0
    assert worst_of([0.0, 1.0], [0.0, 1.0 + 2.0**-40], [0.0, 0.0]) == math.inf


def test_an_output_without_elements_is_right():
    assert compare([bounded("o", [], [])], {"o": torch.empty(0)}) == Report(0.0, 0.0, "", 0)
