"""Tables of programs on the pages of ops: the fastest peer, and the reason if it is faster."""

import re

import pytest

from bench import operators, program_pages
from bench.program_pages import CAUSES, NEAR, UNEXPLAINED, line, reasons, timed

OURS = {
    "problem": "softmax f32 65536 x 8",
    "who": "opfacade",
    "clean_us": {"median": 10.0},
    "of_copying": 0.5,
    "over_model": 1.2,
}
PEERS = [("torch eager", 12.0), ("torch.compile", 9.0)]


def record(*peers):
    rows = [OURS, *({"problem": OURS["problem"], "who": name, "clean_us": {"median": us}} for name, us in peers)]
    return {"rows": [*rows, {"problem": "sum", "who": "opfacade", "graph_us": {"median": 1.0}}]}


def counters(instructions, warps):
    busy = {"instructions": 40.0, "memory": 60.0}
    launch = {"instructions": instructions, "warps_percent": warps}
    return {"busy_percent": busy, "waits_percent": {"barrier": 9.0}, "launch": launch}


def with_counters(monkeypatch, ours, theirs):
    work = f"rows {OURS['problem']}"
    monkeypatch.setattr(program_pages, "counted", lambda: {work: ours, f"{work} by torch.compile": theirs})


def test_a_row_is_beside_its_fastest_peer_and_says_why_that_is_faster(monkeypatch):
    with_counters(monkeypatch, counters(30.0, 90.0), counters(20.0, 90.0))
    [one] = timed(record(*PEERS), ("softmax",))
    why = "more instructions: two exponentials an element, each within the promised error"
    figures = "(instructions 1.5 x, warps 90 and 90 %, memory 60 and 60 %)"
    assert line(one) == "| softmax f32 65536 x 8 | 10.0 | 0.50 | 1.20 | torch.compile 9.0 | 0.90 |"
    assert list(reasons(record(*PEERS))) == [f"| softmax f32 65536 x 8 | 10.0 | {why} {figures} |"]
    [near] = timed(record(("torch.compile", 9.81)), ("softmax",))
    assert line(near).endswith("| 0.98 |")
    assert near.why == ""


def test_a_cause_is_told_where_counters_show_it_alone(monkeypatch):
    [one] = timed(record(*PEERS), ("softmax",))
    with_counters(monkeypatch, counters(20.0, 45.0), counters(20.0, 90.0))
    assert one.why.startswith("fewer warps (instructions")
    one.ours["sku"] = "norm/rows@1/pieces=4,span=128,vector=8"
    assert one.why.startswith("fewer warps, since a thread holds 32 elements (instructions")
    with_counters(monkeypatch, counters(20.0, 90.0), counters(20.0, 90.0))
    assert one.why.startswith("warps wait more often for other warps at a barrier (instructions")


def test_a_row_without_a_peer_or_a_reason_says_so():
    [alone] = timed(record(), ("sum",))
    assert line(alone) == "| sum, in a graph | 1.0 |  |  |  |  |"
    assert list(reasons(record())) == []
    [unknown] = timed({"rows": [row | {"problem": "other"} for row in record(*PEERS)["rows"][:3]]}, ("other",))
    assert unknown.why == UNEXPLAINED
    assert UNEXPLAINED in "".join(reasons({"rows": [row | {"problem": "other"} for row in record(*PEERS)["rows"][:3]]}))


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: cause.pattern)
def test_a_cause_is_of_problems_of_the_records(cause):
    every = [one for kind in ("maps", "rows") for one in timed(operators.record(kind), ("",))]
    assert any(re.search(cause.pattern, one.ours["problem"]) for one in every)
    assert program_pages.HEAD[0].count("|") == line(every[0]).count("|")


def test_a_row_with_a_faster_peer_has_the_counters_of_both():
    """bench/slower.py selects the slower problems of the newest records."""
    slow = [one for kind in ("maps", "rows") for one in timed(operators.record(kind), ("",)) if one.ratio < NEAR]
    for one in slow:
        assert UNEXPLAINED not in one.why, one.ours["problem"]
        assert program_pages.beside(one.ours["problem"], one.peer[1]) in one.why
    assert all(" (instructions " in one.why for one in slow)
