"""One vocabulary: a word means the same in programs and in variants, also with NaN, and the page has a row for each."""

import math
import re
from pathlib import Path

import pytest
import torch

from opfacade import words
from opfacade.errors import DescriptorError
from opfacade.plans._attention.expression import SIGNATURES
from opfacade.plans._attention.variant_eval import exact
from opfacade.programs import words as programs
from opfacade.programs.evaluate import Evaluation, Values
from opfacade.programs.operations import OPERATIONS
from opfacade.tools import operation_table

NAN, INF = math.nan, math.inf
PAGE = Path(__file__).resolve().parents[2] / "docs/programs.md"
# By hand: a word of two numbers, what it gives of (NaN, 2) and of (2, NaN), and of (1, 2).
PAIRS = {
    "maximum": (NAN, NAN, 2.0), "minimum": (NAN, NAN, 1.0), "max_": (NAN, 2.0, 2.0), "min_": (NAN, 2.0, 1.0),
    "eq": (False, False, False), "equal": (False, False, False), "ne": (True, True, True), "not_equal": (True, True, True),
    "lt": (False, False, True), "less": (False, False, True), "le": (False, False, True), "less_equal": (False, False, True),
    "gt": (False, False, False), "greater": (False, False, False), "ge": (False, False, False),
    "greater_equal": (False, False, False), "add": (NAN, NAN, 3.0), "div": (NAN, NAN, 0.5),
}  # fmt: skip
MORE = {"fmax": (2.0, 2.0, 2.0), "fmin": (2.0, 2.0, 1.0), "pow": (NAN, NAN, 1.0), "copysign": (NAN, 2.0, 1.0)}


def of_programs(word, a, b):
    leaves = {("input", name): torch.tensor([number]) for name, number in (("a", a), ("b", b))}
    return Evaluation(Values(leaves)).own(getattr(words, word)(words.value("a", "f32"), words.value("b", "f32")))[0].item()


def of_variants(word, a, b):
    values = {"head a": torch.tensor([a]), "head b": torch.tensor([b]), "q_len": torch.tensor(1)}
    return exact(getattr(words, word)(words.per_head("a"), words.per_head("b")), values)[0].item()


def same(got, want):
    return (math.isnan(got) and math.isnan(want)) if isinstance(want, float) and math.isnan(want) else got == want


@pytest.mark.parametrize("word", PAIRS)
def test_a_word_means_the_same_in_programs_and_in_variants(word):
    for pair, want in zip(((NAN, 2.0), (2.0, NAN), (1.0, 2.0)), PAIRS[word], strict=True):
        assert same(of_programs(word, *pair), want), (word, pair)
        assert same(of_variants(word, *pair), want), (word, pair)


@pytest.mark.parametrize("word", MORE)
def test_words_of_programs_alone_are_refused_in_variants(word):
    for pair, want in zip(((NAN, 2.0), (2.0, NAN), (1.0, 2.0)), MORE[word], strict=True):
        assert same(of_programs(word, *pair), want), (word, pair)
    with pytest.raises(DescriptorError, match="op expected"):
        of_variants(word, 1.0, 2.0)


def test_every_operation_has_a_word_and_every_word_is_here():
    assert set(programs.OPERATION.values()) == set(OPERATIONS)
    assert {*programs.__all__} - {"Node", "apply"} <= {*words.__all__}
    assert all(hasattr(words, name) for name in words.__all__)
    assert len(words.__all__) == len(set(words.__all__))
    assert words.where(words.kv_pos < 3, words.score, 0.0).same(words.select(words.kv_pos < 3, words.score, 0.0))
    assert words.where is not words.select
    x = words.value("x", "f32")
    assert words.where(x > 0, x, 0.0) is words.select(x > 0, x, 0.0)


def row(word):
    (found,) = [line for line in operation_table.table(SIGNATURES) if re.match(rf"\| [^|]*`{word}`", line)]
    return [cell.strip() for cell in found.strip("|").split("|")][1:]


@pytest.mark.parametrize(
    ("word", "cells"),
    [
        ("maximum", ["two numbers", "their type", "i32, f32", "yes", "NaN"]),
        ("max_", ["two numbers", "their type", "i32, f32", "yes", "the first"]),
        ("fmax", ["two floats", "their type", "-", "yes", "the other"]),
        ("equal", ["two numbers", "bool", "i32, f32", "yes", "false"]),
        ("not_equal", ["two numbers", "bool", "i32, f32", "yes", "true"]),
        ("exp", ["floats", "their type", "-", "no", "NaN"]),
        ("exp2", ["floats", "their type", "f32", "no", "NaN"]),
        ("mod", ["two numbers", "their type", "i32", "yes", "NaN"]),
        ("u8", ["any other type", "the type of its name", "-", "yes", "0"]),
        ("bool", ["any other type", "the type of its name", "-", "yes", "true"]),
    ],
)
def test_a_row_says_types_exactness_and_nan(word, cells):
    assert row(word) == cells


def test_what_the_table_tells_by_hand_of_nan_is_so():
    assert [of_programs("pow", 1.0, NAN), of_programs("pow", NAN, 0.0)] == [1.0, 1.0]
    assert math.isnan(of_programs("pow", 2.0, NAN))
    assert [of_programs("hypot", INF, NAN), of_programs("hypot", NAN, -INF)] == [INF, INF]
    assert math.isnan(of_programs("hypot", 1.0, NAN))
    assert of_programs("copysign", 3.0, -NAN) == -3.0


def test_the_column_of_variants_has_the_types_that_a_variant_takes():
    for op, known in SIGNATURES.items():
        (word, *_) = (word for word, name in programs.OPERATION.items() if name == op)
        assert row(word)[2] == "any type" or set(row(word)[2].split(", ")) == {args[0] for args in known}


def test_the_page_tells_each_word_once():
    text = PAGE.read_text()
    table = text.partition("<!-- written by")[2].partition("<!-- end of")[0]
    assert sorted(re.findall(r"`(\w+)`", re.sub(r"\|[^|]*\|$", "|", table, flags=re.MULTILINE))) == sorted(programs.OPERATION)
