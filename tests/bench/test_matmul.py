"""The benchmark of products: its problems, the refusal to time a wrong result, and the contents of a record."""

from types import SimpleNamespace

import pytest
import torch

from bench import matmul, matmul_peers, matmul_problems
from bench.matmul import Bench, measured, of_best_peer, run_all, summary
from bench.matmul_problems import Problem, drawn, layers
from opfacade.plans.matmul import MatmulDescriptor
from tests.families.matmul import cublaslt_here


def timing(us):
    return {"median": us, "p10": us, "p90": us, "samples": 1}


def by_turns(contenders):
    """Each contender is called, and takes as many microseconds as its index."""
    for one in contenders:
        one.call()
    return [one.row | {"us": timing(float(place))} for place, one in enumerate(contenders, 2)]


CPU = Bench(device="cpu", backend="reference", timed=by_turns)
SMALL = Problem("bf16", "small", MatmulDescriptor(total_num_rows=3, n=16, k=32, dtype="bf16"))


def fake(*results):
    return {str(number): lambda problem, args, add=add: lambda: args.out + add for number, add in enumerate(results)}


def test_layers_are_those_of_models_for_few_and_many_rows():
    found = list(layers())
    assert len({one.name for one in found}) == len(found)
    assert {one.kind for one in found} == {"bf16", "W4A16", "block", "token", "tensor"}
    for table, rows in (
        ("bf16", matmul_problems.ROWS),
        ("fp8", matmul_problems.ROWS_OF_BYTES),
        ("codes", matmul_problems.ROWS_OF_CODES),
    ):
        assert {one.descriptor.total_num_rows for one in found if one.table == table} == set(rows)


def test_random_sizes_repeat_by_their_seed_and_are_odd_too():
    assert drawn(1, 30) == drawn(1, 30)[:30] == drawn(1, 60)[:30]
    assert drawn(1, 30) != drawn(2, 30)
    found = [one.descriptor for one in drawn(3, 200)]
    assert min(one.total_num_rows for one in found) < 8
    assert max(one.n for one in found) > 8192
    assert 20 < sum(one.k % 2 for one in found) < 180
    assert sum(one.scaling is not None for one in found) == 66


@pytest.mark.parametrize("kind", ["block", "token", "tensor", "bf16"])
def test_inputs_fit_their_descriptor_and_a_run_keeps_its_bound(kind, monkeypatch):
    monkeypatch.setattr(matmul, "PEERS", {})
    sizes = (5, 140, 130)
    problem = matmul_problems.halves("t", "l", *sizes) if kind == "bf16" else matmul_problems.in_bytes("t", "l", sizes, kind)
    row = measured(problem, CPU)
    assert (row["rows"], row["n"], row["k"], row["kind"]) == (*sizes, kind)
    assert row["us"]["median"] == 2.0
    assert row["TFLOPs"] == round(2 * 5 * 140 * 130 / 2e6, 1)
    assert row["of_best_peer"] is None


def test_a_peer_of_codes_multiplies_the_numbers_that_they_stand_for(monkeypatch):
    """Its results are close to ours, so it is timed."""
    monkeypatch.setattr(matmul, "PEERS", {"torch": lambda problem, args: matmul_peers._torch_halves(problem, args)})
    row = measured(matmul_problems._coded("l", 5, 40, 256), CPU)
    assert (row["kind"], row["peers"], row["refused"]) == ("W4A16", {"torch": timing(3.0)}, {})


def test_a_peer_is_timed_beside_ours_and_a_wrong_one_is_not(monkeypatch):
    monkeypatch.setattr(matmul, "PEERS", fake(0.0, 100.0, float("nan")))
    row = measured(SMALL, CPU)
    assert row["peers"] == {"0": timing(3.0)}
    assert row["of_best_peer"] == 1.5
    assert all("0.02 allowed" in row["refused"][name]["wrong"] for name in ("1", "2"))


def test_the_best_algorithm_of_cublaslt_is_the_fastest_of_all_that_are_allowed(monkeypatch):
    """Two algorithms of the fake library are allowed."""
    problem = Problem("bf16", "small", MatmulDescriptor(total_num_rows=16, n=16, k=32, dtype="bf16"))
    for wanted in (1, 2):
        times = iter([SimpleNamespace(median=3.0), SimpleNamespace(median=5.0 - 2 * wanted)])
        monkeypatch.setattr(matmul_peers, "time_gpu", lambda call, samples, warmup, times=times: (call(), next(times))[1])
        with cublaslt_here.here():
            args = problem.args("cpu")
            found = matmul_peers._best_algorithm(problem, args)()
            used = [line.split()[2] for line in cublaslt_here.log() if line.startswith("matmul")]
        want = args.x.double() @ args.weight.double().T
        assert torch.allclose(found.double(), want, rtol=0.01, atol=0.05)
        assert used[-1] == used[wanted - 1]
        assert len(set(used)) == 2


def test_the_best_algorithm_of_cublaslt_multiplies_16_bit_types_alone():
    problem = matmul_problems.in_bytes("t", "l", (5, 140, 130), "token")
    with pytest.raises(NotImplementedError, match="token"):
        matmul_peers._best_algorithm(problem, problem.args("cpu"))


def test_a_peer_that_raises_has_its_reason(monkeypatch):
    monkeypatch.setattr(matmul, "PEERS", {"DeepGEMM": matmul_peers._deep_gemm})
    monkeypatch.setattr(matmul_peers, "import_module", lambda name: (_ for _ in ()).throw(ImportError(name)))
    assert measured(SMALL, CPU)["refused"] == {"DeepGEMM": {"declined": "ImportError: deep_gemm"}}


def test_a_wrong_result_of_ours_ends_the_run(monkeypatch):
    monkeypatch.setattr("opfacade.plan.Plan.run", lambda plan, args: args.out.fill_(1e6))
    with pytest.raises(SystemExit, match="wrong result, not timed"):
        measured(SMALL, CPU)


def test_torch_multiplies_what_we_do():
    args = SMALL.args("cpu")
    want = args.x.double() @ args.weight.double().T
    assert torch.allclose(matmul_peers._torch_halves(SMALL, args)().double(), want, rtol=0.01, atol=0.05)


def test_problems_without_time_are_named(monkeypatch):
    monkeypatch.setattr(matmul, "PEERS", {})
    monkeypatch.setattr(matmul.time, "monotonic", iter([0.0, 2.0]).__next__)
    rows = []
    assert run_all([SMALL, SMALL, SMALL], CPU, 1.0, rows.append) == [SMALL.name] * 2
    assert len(rows) == 1


def test_a_summary_has_the_worst_rows():
    def row(us, *peers):
        found = {"table": "t", "layer": "l", "rows": 1, "n": 2, "k": 3, "kind": "bf16", "us": timing(us), "TFLOPs": 1.0}
        found["peers"] = {str(at): timing(one) for at, one in enumerate(peers)}
        return found | {"of_best_peer": of_best_peer(found)}

    rows = [row(4.0, 5.0, 2.0), row(1.0), row(1.0, 1.5)]
    found = summary(rows)
    assert (found["rows"], found["beside_a_peer"], found["slower"]) == (3, 2, 1)
    assert found["worst"][0].endswith("0 5.0, 1 2.0; 0.5")
