"""Tables of programs on the pages of ops: the fastest peer, and why it is faster where it is."""

import pytest

from bench import operators, program_pages
from bench.program_pages import NEAR, REASONS, UNEXPLAINED, line, timed

OURS = {"problem": "softmax f32 65536 x 8", "who": "opfacade", "clean_us": {"median": 10.0}, "of_copying": 0.5}
PEERS = [("torch eager", 12.0), ("torch.compile", 9.0)]


def record(*peers):
    rows = [OURS, *({"problem": OURS["problem"], "who": name, "clean_us": {"median": us}} for name, us in peers)]
    return {"rows": [*rows, {"problem": "sum", "who": "opfacade", "graph_us": {"median": 1.0}}]}


def test_a_row_is_beside_its_fastest_peer_and_says_why_that_is_faster():
    [one] = timed(record(*PEERS), ("softmax",))
    why = next(reason.text for reason in REASONS if reason.pattern.startswith("^softmax"))
    assert line(one) == f"| softmax f32 65536 x 8 | 10.0 | 0.50 | torch.compile 9.0 | 0.90 | {why} |"
    [near] = timed(record(("torch.compile", 9.81)), ("softmax",))
    assert line(near).endswith("| 0.98 |  |")


def test_a_row_without_a_peer_or_a_reason_says_so():
    [alone] = timed(record(), ("sum",))
    assert line(alone) == "| sum, in a graph | 1.0 |  |  |  |  |"
    [unknown] = timed({"rows": [row | {"problem": "other"} for row in record(*PEERS)["rows"][:3]]}, ("other",))
    assert unknown.why == UNEXPLAINED


@pytest.mark.parametrize("reason", REASONS, ids=lambda reason: reason.pattern)
def test_a_reason_is_of_a_row_in_which_a_peer_is_faster(reason):
    every = [one for kind in ("maps", "rows") for one in timed(operators.record(kind), ("",))]
    assert any(one.ratio < NEAR and one.why.startswith(reason.text) for one in every)
    assert program_pages.HEAD[0].count("|") == line(every[0]).count("|")


def test_a_row_with_a_faster_peer_has_the_counters_of_both():
    """bench/slower.py takes the slower problems of the newest records."""
    slow = [one for kind in ("maps", "rows") for one in timed(operators.record(kind), ("",)) if one.ratio < NEAR]
    for one in slow:
        assert UNEXPLAINED not in one.why, one.ours["problem"]
        assert program_pages.beside(one.ours["problem"], one.peer[1]) in one.why
    assert all(" (instructions " in one.why for one in slow)
