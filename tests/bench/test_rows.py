"""bench.rows without a GPU: small problems of each kind give the right results, and so do the peers."""

import pytest

from bench import maps, rows

SMALL = [
    rows.rms(3, 256),
    rows.add_rms(3, 256),
    rows.layer(3, 256),
    *rows.quantised(3, 256),
    rows.down("f32", 33, 24),
    rows.down("bf16", 33, 24),
    rows.one_row("f32", 70000),
    rows.segments("f32", 5, 30),
    rows.segments("bf16", 3, 40),
]


@pytest.mark.parametrize("problem", SMALL, ids=lambda one: one.name)
def test_ours_is_held_to_its_bound_and_eager_agrees(problem):
    args = maps.fresh(problem, "cpu")
    maps.checked(problem, args, None)
    wanted = [tensor.clone() for tensor in maps.results(problem.descriptor, args)]
    assert rows.agrees(problem, lambda given: lambda: problem.eager(given), wanted, "cpu")


def test_a_wrong_result_ends_the_run(monkeypatch):
    problem = rows.rms(3, 256)
    monkeypatch.setattr("opfacade.backends.reference._folds.stored", lambda value, dtype: (value * 1.1).bfloat16())
    with pytest.raises(SystemExit, match="wrong result"):
        maps.checked(problem, maps.fresh(problem, "cpu"), None)


def test_the_problems_are_those_of_the_goals():
    names = [problem.name for problem in rows.problems()]
    assert len(names) == len(set(names))
    assert "add + rmsnorm + fp8 1x128 8192 x 7168" in names
    assert "softmax f32 256 x 262144" in names
