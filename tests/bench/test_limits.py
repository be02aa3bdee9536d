"""Large programs that miss their speed goal: their list, what limits them according to counters, and that all are counted."""

import pytest

from bench import bounds, limits, operators, program_pages, slower
from bench.limits import reason, short
from bench.program_pages import SHORT, UNCOUNTED, timed

MB = 10**6
BUSY = {"instructions": 40.0, "memory": 60.0, "L2": 70.0, "f32": 10.0}
WAITS = {"selected": 45.0, "long_scoreboard": 40.0, "barrier": 10.0, "of_a_new_kind": 5.0}
ROW = {"problem": "sum f32", "who": "opfacade", "clean_us": {"median": 10.0}}


def counters(busy=(), waits=WAITS, dram=None, **launch):
    found = {
        "busy_percent": BUSY | dict(busy),
        "waits_percent": waits,
        "launch": {"waves": 4.0, "warps_percent": 90.0} | launch,
    }
    return found | ({"dram_bytes": dram} if dram else {})


@pytest.mark.parametrize(
    ("figures", "is_short"),
    [
        ({"bytes": 65 * MB, "over_model": 1.051}, True),
        ({"bytes": 65 * MB, "over_model": 1.05, "of_copying": 0.9}, False),
        ({"bytes": 64 * MB, "over_model": 2.0}, False),
        ({"bytes": 2**28, "over_model": 1.0, "of_copying": 0.949}, True),
        ({"bytes": 2**28, "over_model": 1.0, "of_copying": 0.95}, False),
        ({"bytes": 65 * MB, "graph_us": {"median": 1.0}}, False),
    ],
)
def test_a_large_problem_is_short_of_its_goal_by_the_model_or_a_copy(figures, is_short):
    assert short(figures) == is_short


@pytest.mark.parametrize(
    ("found", "limit"),
    [
        (counters({"instructions": 80.0}), "issue slots limit it"),
        (counters({"instructions": 80.0, "memory": 91.0}), "memory limits it"),
        (counters({"memory": 89.0}), "warps wait 40 % of their time for memory, 10 % for other warps at a barrier"),
        (counters(waves=2.25), "after 2 full waves of CTAs the last fills 25 % of the GPU"),
        (counters(waves=1.5), "after 1 full wave of CTAs the last fills 50 % of the GPU"),
        (counters(waves=0.4), "CTAs fill 40 % of the GPU"),
        (counters(waits={"of_a_new_kind": 50.0}), "warps wait 50 % of their time for of a new kind"),
        (counters(warps_percent=48.0), "few warps, which wait 40 %"),
        (counters(warps_percent=48.0, room_percent=50.0), "few warps, since no more have room, which wait 40 %"),
        (counters(warps_percent=48.0, room_percent=100.0), "few warps, though more have room, which wait 40 %"),
        (counters({"L2": 90.0}, dram=150 * MB), "DRAM moves 1.50 x the bytes; L2 limits it"),
    ],
)
def test_the_limit_of_a_kernel_follows_from_its_counters(found, limit):
    assert reason(found, 100 * MB).startswith(limit)


def test_a_limit_is_beside_its_counters():
    told = reason(counters({"instructions": 85.0}, dram=101 * MB), 100 * MB)
    assert told == "issue slots limit it (issued 85 %, warps 90 %, memory 60 %, waves 4.0, DRAM 1.01 x)"
    assert reason(counters(), 100 * MB).endswith("(issued 40 %, warps 90 %, memory 60 %, waves 4.0)")


@pytest.mark.parametrize(
    ("ours", "reason"),
    [
        (counters(instructions=12.0), "more instructions"),
        (counters(instructions=12.0, warps_percent=60.0), "more instructions, fewer warps"),
        (counters(instructions=10.0, dram=106 * MB), "more bytes of DRAM"),
        (counters(instructions=10.0, waits=WAITS | {"barrier": 30.0}), "warps wait more often for other warps at a barrier"),
        (counters({"memory": 85.0}, instructions=99.0), "memory limits both"),
    ],
)
def test_counters_say_why_a_peer_is_faster(ours, reason):
    memory = ours["busy_percent"]["memory"]
    assert ", ".join(limits.compared(ours, counters({"memory": memory}, instructions=10.0, dram=100 * MB))) == reason


def test_waits_of_the_records_have_a_name():
    rows = operators.record("program_bounds")["rows"]
    assert {wait for row in rows for wait in row["waits_percent"]} - {"selected"} <= set(limits.WAITS)


def of_records(monkeypatch, found):
    """Writes one problem, at 1.2 of its model, to rows.json, and program_bounds.json with the given rows."""
    ours = ROW | {"bytes": 100 * MB, "over_model": 1.2}
    records = {"rows": {"rows": [ours]}, "maps": {"rows": []}, "program_bounds": {"rows": found}}
    monkeypatch.setattr(operators, "record", records.__getitem__)
    monkeypatch.setattr(program_pages, "counted", lambda: {row["work"]: row for row in found})


def test_a_problem_that_is_short_of_its_goal_needs_counters(monkeypatch):
    of_records(monkeypatch, [])
    [one] = timed(operators.record("rows"), ("",))
    assert one.why == SHORT + UNCOUNTED
    assert program_pages.uncounted() == ["sum f32"]
    of_records(monkeypatch, [{"work": "rows sum f32", **counters({"instructions": 85.0})}])
    assert one.why.startswith(f"{SHORT}issue slots limit it (issued 85 %")
    assert program_pages.uncounted() == []
    assert program_pages.line(one).startswith("| sum f32 | 10.0 |  | 1.20 |")


def test_it_is_work_for_ncu_once_and_without_a_peer(monkeypatch):
    problem = next(slower.rows.problems())
    of_records(monkeypatch, [])
    operators.record("rows")["rows"][0]["problem"] = problem.name
    assert [name for name, _ in slower.works() if not name.startswith("sample")] == [f"rows {problem.name}"]
    assert slower.asked()["works"] == [f"rows {problem.name}"]


def test_bytes_of_dram_are_those_of_all_kernels_of_a_call():
    kernel = {"dram__bytes.sum.per_second": "2,000,000,000,000", "gpu__time_duration.sum": "50,000"}
    other = {"dram__bytes.sum.per_second": "1e+12", "gpu__time_duration.sum": "1000.0"}
    assert bounds.dram_bytes([kernel, other]) == {"dram_bytes": 101 * MB}
    assert bounds.dram_bytes([kernel, {"gpu__time_duration.sum": "1"}]) == {}


def test_every_problem_that_is_short_of_its_goal_is_counted():
    record = operators.record("program_bounds")
    assert program_pages.uncounted() == []
    asked, now = record["asked"], slower.asked()
    assert {**asked, "works": now["works"]} == now, "a goal is newer than program_bounds.json"
    assert set(asked["works"]) <= {row["work"] for row in record["rows"]}
