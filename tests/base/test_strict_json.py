"""Strict JSON: accepted text has one meaning, and refused text is a ValueError."""

import json

import pytest

from opfacade.base.strict_json import MAX_DEPTH, MAX_DIGITS, loads


def nested(depth, text="0"):
    return "[" * depth + text + "]" * depth


@pytest.mark.parametrize("value", [None, True, 0, -3, 1.5, 1e308, "x", "é\U0001f600", [], {}, {"a": [1, {"b": {}}]}])
def test_a_plain_value_comes_back(value):
    assert loads(json.dumps(value)) == value
    assert loads(json.dumps(value, ensure_ascii=False).encode()) == value


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"a": 1, "a": 1}', "the duplicate name 'a'"),
        ('[{"b": {"a": 1, "c": 2, "a": 3}}]', "the duplicate name 'a'"),
        (nested(MAX_DEPTH + 1), "nested"),
        (nested(100_000), "nested"),
        ('{"a":' * 50_000 + "0" + "}" * 50_000, "nested"),
        ("[" * 100_000, "nested"),
        ("9" * (MAX_DIGITS + 1), "digits"),
        ("9" * 100_000, "digits"),
        ("1e999", "exceeds float64"),
        ("-1e999", "exceeds float64"),
        ("NaN", "not a JSON number"),
        ("[-Infinity]", "not a JSON number"),
        (r'"\ud800"', "surrogates"),
        (r'{"\udfff": 0}', "surrogates"),
        (b'"\xff"', "decode"),
        (b'"\xed\xa0\x80"', "decode"),
        ("{}".encode("utf-16"), "decode"),
        ("", "Expecting value"),
        ("{} {}", "Extra data"),
    ],
)
def test_what_is_not_strict_is_a_value_error(text, why):
    with pytest.raises(ValueError, match=why):
        loads(text)


def test_the_largest_depth_and_number_are_read():
    assert loads(nested(MAX_DEPTH)) is not None
    assert loads("9" * MAX_DIGITS) == 10**MAX_DIGITS - 1
    assert loads("0." + "1" * 1000) == pytest.approx(1 / 9)
