"""The README's table of operators: it has every op, the status agrees with selection, and figures refer to the fastest peer."""

from unittest.mock import patch

import pytest

from bench import operators
from opfacade.core.target import Target
from opfacade.select.explanation import explain
from opfacade.select.pins import NO_PINS
from opfacade.select.registry import descriptor_types, examples


def name_of(kind):
    return kind.__name__.replace("Descriptor", "Plan")


def on_two_ranks(example):
    """An op over ranks exchanges nothing if there is one rank, and then has no kernel."""
    if "world" not in type(example).model_fields:
        return example
    changes = {"world": 2} | ({"counts": example.counts * 2} if hasattr(example, "counts") else {})
    changes |= {"shard": -(-example.vocab // 2)} if hasattr(example, "shard") else {}
    changes |= {"num_heads": 2 * example.num_heads} if hasattr(example, "num_heads") else {}
    return example.model_copy(update=changes).revalidated()


def has_kernel(plan, arch):
    """Whether a CUDA kernel accepts an example of the plan's op on an architecture."""
    with patch("opfacade.backends.cuda.ptxas.release", return_value=None):
        some = [on_two_ranks(e) for e in examples() if name_of(type(e)) == plan]
        found = [explain(e, target=Target.parse(arch), pins=NO_PINS).chosen for e in some]
    assert found
    return any(option is not None and option.candidate.backend == "cuda" for option in found)


def test_every_operator_has_a_line():
    assert {line.plan for line in operators.LINES} == {name_of(kind) for kind in descriptor_types().values()}


@pytest.mark.parametrize(
    "line", [line for line in operators.LINES if "fp8" not in line.operator], ids=lambda line: line.operator
)
def test_status_is_what_selection_does(line):
    assert has_kernel(line.plan, "sm_90a")
    assert has_kernel(line.plan, "sm_80") == (line.status != operators.HOPPER)


def test_a_row_is_compared_with_the_fastest_peer_of_the_same_time():
    ours = {"impl": "opfacade", "clean_us": {"median": 4.0}, "dirty_us": {"median": 9.0}}
    peers = [
        {"impl": "slow", "clean_us": {"median": 8.0}},
        {"impl": "fast (dense)", "clean_us": {"median": 6.0}},
        {"impl": "of another time", "dirty_us": {"median": 1.0}},
        {"impl": "none", "failed": "no"},
    ]
    assert operators.beside([(ours, peers)]) == "1.50 (fast)"
    assert operators.beside([(ours, peers), (ours, peers[:1])]) == "1.50 to 2.00 (fast, slow)"
    assert operators.beside([(ours, peers[3:])]) == operators.beside(()) == "no peer was timed"


def test_peers_over_pages_and_of_contiguous_tensors_are_apart(monkeypatch):
    names = ["opfacade", "opfacade (dense)", "fa3 (dense)", "flashinfer-fa3", "sdpa (dense)"]
    table = [{"shape": shape, "impl": name, "us": {"median": 1.0}} for shape in "ab" for name in names]
    monkeypatch.setattr(operators, "record", lambda kind: {"table": table})
    paged, dense = operators.prefills(("table",), False), operators.prefills(("table",), True)
    assert [[row["impl"] for row in (ours, *peers)] for ours, peers in paged] == [["opfacade", "flashinfer-fa3"]] * 2
    assert [[row["impl"] for row in (ours, *peers)] for ours, peers in dense] == [[*names[1:3], "sdpa (dense)"]] * 2
