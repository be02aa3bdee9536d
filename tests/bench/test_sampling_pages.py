"""The tables of sampling state what limits each draw that misses its goal and each adjustment above its cost limit."""

import pytest

from bench import operators, sampling_pages


def record_of(monkeypatch, rows, counters=()):
    found = {"sampling": {"rows": rows}, "program_bounds": {"rows": list(counters)}}
    monkeypatch.setattr(operators, "record", found.__getitem__)
    return found["sampling"]


def row(problem, us, **peers):
    return {"problem": problem, "us": {"median": us}, "peers": {name: {"median": time} for name, time in peers.items()}}


def test_the_newest_record_has_counters_of_whatever_is_short():
    of = operators.record("sampling")
    lines = list(sampling_pages.reasons(of))
    assert len(lines) > 4
    assert not [line for line in lines if sampling_pages.UNCOUNTED in line]


def test_every_goal_is_of_a_row():
    assert set(sampling_pages.GOALS) <= {one["problem"] for one in operators.record("sampling")["rows"]}


@pytest.mark.parametrize(("us", "why"), [(19.0, ""), (21.0, sampling_pages.UNCOUNTED)])
def test_a_draw_beyond_its_goal_has_a_reason(monkeypatch, us, why):
    of = record_of(monkeypatch, [row("64 x 128256 f32 peaked, filters k and p", us, torch=90.0, flashinfer=42.0)])
    (line,) = sampling_pages.draws(of)
    assert line == f"| 64 x 128256 f32, filters k and p | {us} | flashinfer 42.0 | {42 / us:.2f} | 20 |"
    late = [f"| sample 64 x 128256 f32 peaked, filters k and p | {us} | {why} |"] if why else []
    assert list(sampling_pages.reasons(of)) == late


def test_an_adjustment_is_compared_with_the_same_rows_without_it(monkeypatch):
    rows = [row(f"64 x 128256 f32 peaked, {what}", us) for what, us in (("filters none", 20.0), ("with a bias", 20.8))]
    (line,) = sampling_pages.costs(record_of(monkeypatch, rows))
    assert line == "| a bias | 20.8 | 1.04 |"
    assert list(sampling_pages.reasons(record_of(monkeypatch, rows))) == []
    slow = [*rows, row("64 x 128256 f32 peaked, with penalties", 22.0)]
    (line,) = sampling_pages.reasons(record_of(monkeypatch, slow))
    assert line == f"| sample 64 x 128256 f32 peaked, with penalties | 22.0 | {sampling_pages.UNCOUNTED} |"


def test_bytes_are_counted_by_the_dtype():
    assert sampling_pages.logits_bytes("2 x 100 f32 peaked, filters none") == 800
    assert sampling_pages.logits_bytes("2 x 100 bf16 peaked, with bitmask") == 400
