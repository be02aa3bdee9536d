"""`opfacade verify`: the evidence it writes, that it can fail, and its command."""

import json
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from opfacade import Plan, Preference, Target, errors, explain, jit
from opfacade.cli.main import main
from opfacade.jit import toolchain
from opfacade.select.registry import examples
from opfacade.testing.subject import Subject
from opfacade.tools import verify
from tests.support.faulty_subjects import Faulty


def quietly(**words):
    return verify.verify(quick=True, backend="reference", say=lambda text: None, **words)


@pytest.fixture(scope="module")
def record():
    return quietly(op="merge_states")


def test_a_record_says_what_was_tried_where_and_how_often(record):
    assert record["ok"]
    assert {row["promise"]["math_precision"] for row in record["skus"]} == {"f64"}
    assert all(row["tried"]["bound"]["elements"] > 0 for row in record["skus"])
    assert record["machine"]["torch"]
    assert record["date"].endswith("Z")
    [random] = record["random_problems"]
    assert (random["op"], random["problems"]) == ("merge_states", verify.QUICK_CPU.problems)
    assert 0 < random["worst_over_hard"] <= 1


def test_the_seal_covers_every_word(record):
    assert record["sha256"] == verify.seal(record) == verify.seal(json.loads(json.dumps(record)))
    for name in set(record) - {"sha256"}:
        assert verify.seal(record | {name: "other"}) != record["sha256"], name


def test_one_sku_alone_is_proven(record):
    wanted = record["skus"][0]["sku"]
    again = quietly(sku=wanted)
    assert [row["sku"] for row in again["skus"]] == [wanted]
    assert again["random_problems"] == []


@pytest.mark.parametrize("words", [{"sku": "attention/none"}, {"op": "no_such_op"}, {"jobs": 0}])
def test_what_does_not_exist_is_refused(words):
    with pytest.raises(errors.OpfacadeError, match="OPF-V005"):
        quietly(**words)


def test_an_exact_fault_fails_and_is_named(monkeypatch):
    from tests.testing.test_determinism import DECODE

    said = []
    monkeypatch.setattr(verify, "_subjects", lambda name, device: [Faulty(DECODE, "reference", "cpu", "drops_a_key")])
    found = verify.verify(op="paged_decode", quick=True, backend="reference", say=said.append)
    [row] = found["skus"]
    assert not row["ok"]
    assert not found["ok"]
    assert any(text.startswith("every_key_is_visited_once") for text in row["tried"]["exact"]["wrong"])
    assert any("FAILED" in line for line in said)


def test_a_check_that_raises_fails_and_the_other_skus_are_proven(monkeypatch):
    from tests.testing.test_determinism import DECODE

    class Raises(Subject):
        def run(self, args, workspace=None):
            raise errors.UnsupportedError("no such scale", code="OPF-A011", op="paged_decode", stage="run")

    subjects = [kind(DECODE, "reference", "cpu") for kind in (Raises, Subject)]
    monkeypatch.setattr(verify, "_subjects", lambda name, device: subjects)
    monkeypatch.setattr(verify, "_random", lambda o, *_: {"op": o, "ok": True})
    found = verify.verify(op="paged_decode", quick=True, backend="reference", say=[].append)
    assert [row["ok"] for row in found["skus"]] == [False, True]
    assert "no such scale" in found["skus"][0]["tried"]["bound"]["wrong"][0]
    assert not found["ok"]


def test_random_problems_that_are_refused_fail(monkeypatch):
    def refuse(*_):
        raise errors.UnsupportedError("no such scale", code="OPF-A011", op="paged_decode", stage="run")

    monkeypatch.setattr(verify, "_held", refuse)
    row = verify._random("paged_decode", "reference", "cpu", verify.QUICK_CPU, [].append)
    assert not row["ok"]
    assert "no such scale" in row["wrong"][0]


def test_claims_that_a_sku_makes_are_tried(monkeypatch):
    """The reference claims neither property; a subject that does is tested for both."""
    from tests.testing.test_determinism import DECODE, RUNS

    plain = Subject(DECODE, "reference", "cpu")
    assert set(verify._claims(plain, verify.QUICK_CPU)) == {"bound", "exact"}
    plan = plain.plan
    promise = plan.precision_guarantee.model_copy(update={"deterministic": True, "batch_invariant": "composition"})
    monkeypatch.setattr(type(plan), "precision_guarantee", promise)
    assert set(verify._claims(plain, verify.QUICK_CPU)) == {"bound", "exact", "run_to_run", "batch_invariance"}
    RUNS.clear()
    for fault, claim in (("counts_runs", "run_to_run"), ("sees_the_batch", "batch_invariance")):
        subject = Faulty(DECODE, "reference", "cpu", fault)
        assert verify._claims(subject, verify.FULL_CPU)[claim]()["wrong"], claim


def test_a_kernel_from_a_bundle_is_named_where_no_compiler_is(monkeypatch):
    descriptor = next(d for d in examples() if d.op == "merge_states")
    plan = Plan.select(descriptor, Preference(backend="cuda"), Target.parse("sm_90a"))
    key = jit.build(plan.jit_spec).parent.name
    assert key == jit.key(plan.jit_spec)
    jit.forget()

    def no_compiler(*_):
        raise errors.ToolchainError("no CUDA compiler found")

    monkeypatch.setattr(toolchain, "find", no_compiler)
    code = jit.code_digest(plan.jit_spec)
    assert verify._binary(SimpleNamespace(plan=plan)) == {"code": code, "cache_key": key, "sass_sha256": None}


def test_the_command_writes_the_evidence_and_its_status(tmp_path, monkeypatch):
    out = tmp_path / "evidence.json"
    words = ["verify", "--quick", "--backend", "reference", "--op", "paged_kv_append", "--out", str(out)]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
    record = json.loads(out.read_text())
    assert verify.seal(record) == record["sha256"]
    assert f"{len(record['skus'])} of {len(record['skus'])} SKUs held" in done.output
    monkeypatch.setattr(verify, "_held", lambda *given: (verify.numerics.Report(2.0, 2.0, "x", 1), ["too far"]))
    failed = CliRunner().invoke(main, words)
    assert failed.exit_code == 1
    assert "too far" in failed.output


@pytest.mark.gpu
def test_verify_proves_the_cuda_skus_quickly():
    record = verify.verify(op="paged_decode", quick=True, backend="cuda")
    assert record["ok"]
    assert all(row["cache_key"] for row in record["skus"])


def test_a_request_alone_is_compared_with_the_same_sku():
    target, cuda = Target.parse("sm_90a"), Preference(backend="cuda")
    wanted_of = (d for d in examples() if hasattr(d, "kv_split") and explain(d, cuda, target).chosen is not None)
    for descriptor in wanted_of:
        wanted = Plan.select(descriptor, cuda, target)
        if wanted.precision_guarantee.batch_invariant == "composition":
            same = verify.in_any_batch(Subject(descriptor, "cuda", "cpu")).descriptor
            assert same.kv_split != "auto"
            assert Plan.select(same, cuda, target).sku == wanted.sku
