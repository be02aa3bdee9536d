"""The workload of real models that is tuned and benchmarked: valid, varied, and the same for the same seed."""

import importlib.util
import json
from pathlib import Path

import pytest

from examples.demo.lengths import Length, drawn
from opfacade import Preference, Target
from opfacade.select.selection import considered
from opfacade.tools.workload import read

BENCH = Path(__file__).parents[2] / "bench"


def module(name):
    import sys

    spec = importlib.util.spec_from_file_location(name, BENCH / f"{name}.py")
    found = importlib.util.module_from_spec(spec)
    sys.modules[name] = found  # dataclasses look up their module by name
    spec.loader.exec_module(found)
    return found


workloads, tuner = module("workloads"), module("tune")


def test_every_model_gives_problems_that_read_back_with_their_lengths():
    found = list(workloads.works(drawn(200, 1), seed=1))
    assert {model.name for model, _ in found} == {model.name for model in workloads.MODELS}
    back = read("\n".join(workloads.line(work) for _, work in found))
    assert [(w.descriptor, w.lengths) for w in back] == [(w.descriptor, w.lengths) for _, w in found]
    for work in back:
        pages = sum(-(-n // workloads.PAGE) for n in work.lengths.kv)
        assert pages == work.descriptor.paged_kv.num_total_pages
        if work.lengths.q is not None:
            assert sum(work.lengths.q) == work.descriptor.total_num_rows
            assert all(q <= kv for q, kv in zip(work.lengths.q, work.lengths.kv, strict=True))


def test_the_same_seed_gives_the_same_problems():
    first, again, other = ([w for _, w in workloads.works(drawn(200, 1), seed)] for seed in (1, 1, 2))
    assert first == again != other


def test_lengths_are_those_of_the_trace():
    lengths = [Length(100, 7), Length(31, 1)]
    for _, work in workloads.works(lengths, seed=0):
        assert all(n in range(101, 108) or n == 32 or n in (100, 31) for n in work.lengths.kv)


def test_what_is_tuned_has_something_to_choose_from():
    """On its target GPU, every problem that has a kernel has variants."""
    choices = 0
    for _, work in workloads.works(drawn(200, 1), seed=1):
        options = [o for o in considered(work.descriptor, Preference(backend="cuda"), Target.parse("sm_90a")) if not o.reasons]
        choices += len(options) > 1
    assert choices >= 30


@pytest.mark.parametrize("trace", [False, True])
def test_the_script_writes_a_file(tmp_path, monkeypatch, capsys, trace):
    words = ["workloads.py", "--out", str(tmp_path / "w.jsonl")]
    if trace:
        (tmp_path / "t.csv").write_text("ContextTokens,GeneratedTokens\n100,7\n31,1\n")
        words += ["--trace", str(tmp_path / "t.csv")]
    monkeypatch.setattr("sys.argv", words)
    workloads.main()
    count = len((tmp_path / "w.jsonl").read_text().splitlines())
    assert f"{count} problems of {len(workloads.MODELS)} models" in capsys.readouterr().out
    assert count == len(read((tmp_path / "w.jsonl").read_text())) == 39


def test_two_tunings_are_compared(tmp_path, monkeypatch, capsys):
    from opfacade.tune.tune import TuneResult
    from tests.select.test_measurement_store import row

    problem = '{"op": "merge_states", "num_states": 2, "total_num_rows": 1, "num_heads": 1, "head_dim": 8, "dtype": "f16"}'
    (tmp_path / "w.jsonl").write_text(f"{problem}\n{problem}\n")
    (work, _) = read((tmp_path / "w.jsonl").read_text())
    facts = {"key": "k" * 8, "measured": row().measured}
    sku = "a/b/c/d/e@1/f/g/way=b/g2.1"
    measured = tuple(m.model_copy(update={"sku": sku if m.sku == "b" else m.sku}) for m in facts["measured"])
    chosen = row().model_copy(update={"winner": sku, "measured": measured})
    stays = row().model_copy(update={"winner": "a", "measured": measured})
    rounds = iter([(chosen, chosen), (chosen, stays)])
    monkeypatch.setattr(tuner, "once", lambda works, effort, say: [TuneResult(work.descriptor, "a", r) for r in next(rounds)])
    monkeypatch.setattr("sys.argv", ["tune.py", str(tmp_path / "w.jsonl"), "--out", str(tmp_path / "r.json")])
    tuner.main()
    record = json.loads((tmp_path / "r.json").read_text())
    assert (record["problems"], record["agreement"]) == (2, 0.5)
    assert record["mean_gain"] == pytest.approx(0.2)
    assert "+20.0% OTHER" in capsys.readouterr().out
