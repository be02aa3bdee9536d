"""The benchmark of layers of experts: its problems, that wrong results are not timed, and the content of a row."""

import pytest
import torch

from bench import moe, moe_peers, moe_problems
from bench.moe import Bench, Rates, measured
from bench.moe_problems import Problem, counts_of, fill, layers, weights_of
from opfacade.testing.bounds import Report

SMALL = {"experts": 6, "top_k": 2, "hidden": 256, "width": 128}


def by_turns(contenders):
    """Each contender is called, and takes as many microseconds as its index."""
    for one in contenders:
        one.call()
    return [one.row | {"us": {"median": float(place)}} for place, one in enumerate(contenders, 2)]


RATES = Rates(2.0, {"bf16": 100.0, "fp8": 200.0})
CPU = Bench(RATES, device="cpu", backend="reference", timed=by_turns, captured=lambda call: call)


@pytest.fixture
def small(monkeypatch):
    oss = SMALL | {"halves": "interleaved", "limit": 7.0, "alpha": 1.702, "beta": 1.0, "bias": True, "weight_layout": "kn"}
    monkeypatch.setattr(moe_problems, "LAYERS", {"plain": SMALL, "oss": oss})


def test_layers_are_those_of_models_for_few_and_many_tokens_of_every_routing():
    found = [one for _, _, problems in layers() for one in problems]
    assert len({one.name for one in found}) == len(found)
    assert {one.layer for one in found} == {"gpt-oss-20b", "Qwen3-30B-A3B", "DeepSeek-V3"}
    assert {one.tokens for one in found} == {1, 16, 64, 256, 1024, 8192}
    assert {one.routing for one in found if one.tokens > 1} == {"uniform", "skewed", "one"}
    assert {one.kind for one in found if one.layer == "DeepSeek-V3"} == {"bf16", "fp8"}


@pytest.mark.parametrize("routing", ["uniform", "skewed", "one"])
def test_ids_are_distinct_and_follow_their_routing(routing):
    problem = Problem("Qwen3-30B-A3B", "bf16", 500, routing)
    ids = problem.ids(torch.Generator().manual_seed(1))
    assert all(len(set(row)) == 8 for row in ids.tolist())
    counts = counts_of(problem, ids)
    assert int(counts.sum()) == 4000
    share = float(counts.max() / counts.sum())
    assert {"uniform": share < 0.02, "skewed": 0.05 < share < 0.126, "one": share == 0.125}[routing]


def test_the_floor_counts_the_experts_that_are_drawn(small):
    problem = Problem("plain", "bf16", 3, "one")
    counts = torch.tensor([3, 3, 0, 0, 0, 0])
    size = 2 * 2 * (3 * 256 * 128) + 2 * 2 * 3 * 256 + 8 * 3 * 2
    assert problem.bytes(counts) == size
    assert problem.flops == 2 * 3 * 2 * 256 * 128 * 3
    want = {"memory": round(1.8 + size / 1.94e6, 2), "product": round(problem.flops / 1e8, 2)}
    assert RATES.floor_us(problem, counts) == want | {"floor": max(want.values())}
    eight = Problem("plain", "fp8", 3, "one")
    assert eight.bytes(counts) == 2 * (98304 + 6 * 4) + 3 * 256 * 4 + 48


def test_fill_counts_padding_to_sixteen():
    assert fill(torch.tensor([16, 0, 1, 31])) == round(48 / 64, 3)


@pytest.mark.parametrize(("layer", "kind"), [("plain", "bf16"), ("plain", "fp8"), ("oss", "bf16")])
def test_a_row_has_times_of_ours_and_of_peers_that_agree(small, monkeypatch, layer, kind):
    monkeypatch.setattr(moe, "PEERS", {"loop": moe_peers.PEERS["torch, loop"]})
    row = measured(Problem(layer, kind, 5, "uniform"), weights_of(layer, kind, "cpu"), CPU)
    assert row["us"]["median"] == 2.0
    assert row["of_floor"] == round(row["floor_us"]["floor"] / 2.0, 3)
    if kind == "bf16":
        assert (row["peers"], row["refused"], row["of_best_peer"]) == ({"loop": {"median": 3.0}}, {}, 1.5)
    else:
        assert "scaled blocks" in row["refused"]["loop"]["declined"]


def test_a_grouped_product_agrees_where_torch_has_one(small, monkeypatch):
    monkeypatch.setattr(moe, "PEERS", {"grouped": moe_peers.PEERS["torch, grouped_mm"]})
    row = measured(Problem("plain", "bf16", 40, "skewed"), weights_of("plain", "bf16", "cpu"), CPU)
    assert row["peers"] or "declined" in row["refused"]["grouped"]


def test_wrong_results_are_not_timed(small, monkeypatch):
    wrong = moe_peers.Peer(lambda problem, args: lambda: args.out + 1, captured=False)
    monkeypatch.setattr(moe, "PEERS", {"wrong": wrong})
    problem, weights = Problem("plain", "bf16", 5, "uniform"), weights_of("plain", "bf16", "cpu")
    row = measured(problem, weights, CPU)
    assert "0.04 allowed" in row["refused"]["wrong"]["wrong"]
    assert row["of_best_peer"] is None
    monkeypatch.setattr(moe.numerics, "check", lambda *args, **more: Report(2.0, 2.0, "out", 1))
    with pytest.raises(SystemExit, match="wrong result"):
        measured(problem, weights, CPU)
