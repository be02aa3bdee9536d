"""bench.sweep without a GPU: problems follow from the seed, our results agree with eager torch, and unreached problems are
counted.
"""

import json
import math
from types import SimpleNamespace

import pytest
import torch

from bench import maps, rows, sweep
from bench.sweeps import contest, shapes
from bench.sweeps import sampling as samplers
from opfacade import Plan, Preference, Target

SM_90A = Target.parse("sm_90a")
KINDS = ("rows", "softmax")  # peers of maps; "sampling" has separate peers
SMALL = 2**16  # number of elements that a CPU folds quickly


def few(kind, count=200):
    """One small problem of each name."""
    found = [one for one in sweep.drawn(kind, 1, count) if elements(one.descriptor) < SMALL]
    return list({one.name.split()[0]: one for one in found}.values())


def elements(descriptor):
    return sum(math.prod(dim.size for dim in spec.shape) for spec in descriptor.operands().values())


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_draws_the_same_problems_and_another_seed_others(kind):
    names = [[one.name for one in sweep.drawn(kind, seed, 40)] for seed in (3, 3, 4)]
    assert names[0] == names[1] != names[2]


@pytest.mark.parametrize("kind", KINDS)
def test_shapes_are_one_row_a_million_rows_odd_and_long_and_fit_in_memory(kind):
    every = [one.descriptor.shape for one in sweep.drawn(kind, 1, 200) if hasattr(one.descriptor, "shape")]
    counts, widths = zip(*every, strict=True)
    assert {1, shapes.MOST_ROWS} <= set(counts)
    assert max(widths) > 500_000
    assert sum(width % 2 for width in widths) > len(widths) // 2
    assert max(math.prod(shape) for shape in every) <= shapes.ELEMENTS


@pytest.mark.parametrize("kind", KINDS)
def test_every_problem_has_a_kernel(kind):
    for problem in sweep.drawn(kind, 2, 60):
        assert Plan.select(problem.descriptor, Preference(backend="cuda"), SM_90A).sku.backend == "cuda"


@pytest.mark.parametrize("problem", [one for kind in KINDS for one in few(kind)], ids=lambda one: one.name)
def test_ours_is_held_to_its_bound_and_eager_agrees(problem):
    args = maps.fresh(problem, "cpu")
    maps.checked(problem, args, None)
    wanted = [tensor.clone() for tensor in maps.results(problem.descriptor, args)]
    assert rows.agrees(problem, lambda given: lambda: problem.eager(given), wanted, "cpu")


def test_samplers_are_of_every_filter_and_their_peers_keep_what_is_kept():
    """Rows of a size for CPUs; peers of a GPU are compared on the same set."""
    drawn = sweep.drawn("sampling", 1, 120)
    assert len({tuple(one.values) for one in drawn}) == len(samplers.FILTERS)
    assert {one.descriptor.dtype for one in drawn} == {"f32", "f16", "bf16"}
    assert max(one.descriptor.total_num_rows for one in drawn) > 500
    for problem in [one for one in drawn if elements(one.descriptor) < SMALL and one.descriptor.top_k]:
        args = problem.args("cpu")
        kept = samplers.floors(problem, args)
        assert len(kept) == problem.checked
        assert samplers.outside(kept, args, samplers.by_torch(args)) == 0
        assert samplers.outside([math.inf] * len(kept), args, samplers.by_torch(args)) == len(kept)


def test_kinds_are_the_modules_that_have_problems():
    assert set(KINDS) <= set(sweep.kinds())
    assert not set(sweep.kinds()) & set(sweep.HELPERS)


def test_the_worst_are_those_with_the_least_ratio_and_rows_without_a_peer_are_none():
    found = [{"problem": name, "ratio": ratio} for name, ratio in (("a", 2.0), ("b", 0.5), ("c", 1.0), ("d", 0.9))]
    assert [row["problem"] for row in sweep.worst([*found, {"problem": "e"}])] == ["b", "d", "c"]


def test_a_run_ends_at_its_limit_and_counts_what_it_did_not_reach(monkeypatch, tmp_path):
    clock = iter([0.0, 1.0, 2.0])
    monkeypatch.setattr(sweep.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(
        contest, "measured", lambda problem, index: {"problem": problem.name, "us": {"opfacade": 1.0, "t": 2.0}, "ratio": 2.0}
    )
    record = {"rows": [], "kernels": {}}
    sweep.run("softmax", sweep.drawn("softmax", 1, 9), record, 1.5, tmp_path / "x.json")
    assert len(json.loads((tmp_path / "x.json").read_text())["rows"]) == 2
    assert record["not_reached"] == 7


def test_a_run_that_is_broken_off_has_left_a_whole_record_of_what_it_reached(monkeypatch, tmp_path):
    def measured(problem, index):
        if index == 22:
            raise KeyboardInterrupt
        return {"problem": str(index), "us": {"opfacade": 1.0, "t": 30.0 - index}, "ratio": 30.0 - index}

    monkeypatch.setattr(contest, "measured", measured)
    with pytest.raises(KeyboardInterrupt):
        sweep.run("softmax", sweep.drawn("softmax", 1, 25), {"rows": []}, math.inf, tmp_path / "x.json")
    record = json.loads((tmp_path / "x.json").read_text())
    assert (len(record["rows"]), record["not_reached"]) == (20, 5)
    assert [row["problem"] for row in record["worst"]] == ["19", "18", "17"]


def test_a_peer_that_cannot_run_or_whose_result_is_another_has_no_time(monkeypatch):
    problem = few("softmax")[0]
    args = maps.fresh(problem, "cpu")
    maps.checked(problem, args, None)
    wanted = [tensor.clone() for tensor in maps.results(problem.descriptor, args)]

    def broken(given):
        raise RuntimeError("no kernel")

    peers = [
        ("right", lambda given: lambda: problem.eager(given)),
        ("wrong", lambda given: lambda: problem.eager(given) + 1),
        ("broken", broken),
    ]
    monkeypatch.setattr(contest, "peers", lambda problem, index: iter(peers))
    agrees = rows.agrees
    monkeypatch.setattr(rows, "agrees", lambda problem, call_of, wanted, device: agrees(problem, call_of, wanted, "cpu"))
    found = dict(contest.joined(problem, args, wanted, 0))
    assert callable(found["right"])
    assert found["wrong"] == "its result is not ours"
    assert "no kernel" in found["broken"]


@pytest.mark.parametrize(("us", "again"), [(999.0, {}), (1001.0, {"samples": 5, "warmup": 1})])
def test_a_slow_peer_of_a_sampler_is_timed_a_few_times(us, again, monkeypatch):
    """Sorts of long rows take milliseconds, and a run has a time limit."""
    asked = []

    def timed(call, **how):
        asked.append(how)
        return SimpleNamespace(median=us)

    monkeypatch.setattr(samplers, "time_gpu", timed)
    monkeypatch.setattr(samplers, "outside", lambda problem, args, tokens: 0)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    assert samplers.peer(few("softmax")[0], None, lambda args: torch.zeros(1)) == us
    assert asked == [{"samples": 1, "warmup": 0}, again]


def test_a_run_tells_what_took_its_time(monkeypatch):
    monkeypatch.setattr(contest, "SPENT", {})
    clock = iter([1.0, 3.5, 10.0, 11.0])
    monkeypatch.setattr(contest.time, "monotonic", lambda: next(clock))
    for _ in range(2):
        with contest.spending("check"):
            pass
    assert contest.SPENT == {"check": 3.5}
