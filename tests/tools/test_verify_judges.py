"""The trials of `opfacade verify` for a SKU and an op; a failure of any single trial fails the record."""

import math

import pytest

from opfacade.plans.cascade import MergeStatesDescriptor
from opfacade.testing import numerics, problems
from opfacade.testing.numerics import Report
from opfacade.testing.subject import Subject
from opfacade.tools import verify
from tests.support.faulty_subjects import Faulty
from tests.support.problems import decode

MERGE = MergeStatesDescriptor(num_states=3, total_num_rows=5, num_heads=2, head_dim=64, dtype="f32")
HOW = verify.VerifyEffort(problems=4, rows=3, runs=2, campaign=verify.QUICK_CPU.campaign)
SOUND = Report(0.5, 0.5, "", 10)


def subject(descriptor=MERGE):
    return Subject(descriptor, "reference", "cpu")


def quietly(text):
    pass


def test_the_bound_is_tried_with_two_seeds_and_the_second_on_strided_tensors(monkeypatch):
    drawn, checked = [], []
    args, check = Subject.args, numerics.check
    monkeypatch.setattr(Subject, "args", lambda self, seed, **more: (drawn.append((seed, more)), args(self, seed, **more))[1])
    monkeypatch.setattr(numerics, "check", lambda *given, **more: (checked.append(more), check(*given, **more))[1])
    found = verify._bound(subject(decode([9, 4, 6])[0]), HOW)
    assert drawn == [(0, {"interleaved": False}), (1, {"interleaved": True})]
    assert [(more["rows"], more["seed"]) for more in checked] == [(3, 0), (3, 1)]
    assert found["wrong"] == []
    assert found["elements"] > 0


@pytest.mark.parametrize("worst", [1.5, math.inf, math.nan])
def test_a_ratio_above_1_or_of_nan_is_wrong(monkeypatch, worst):
    monkeypatch.setattr(numerics, "check", lambda *given, **more: Report(worst, worst, "o[3]", 1))
    _, wrong = verify._held(subject(), 7, 3)
    assert wrong == [f"seed 7: {worst:.3g} of the bound at o[3]"]


def test_canaries_stand_around_every_call():
    _, wrong = verify._held(Faulty(decode([9, 4, 6])[0], "reference", "cpu", "writes_an_input"), 0, 3)
    assert "q was written" in wrong


def seeds_of(monkeypatch, wrong_at):
    """The random problems of the trial, of which one seed fails."""
    tried = []

    def held(one, seed, rows):
        tried.append((one.descriptor, seed))
        return SOUND, ["too far"] if seed == wrong_at else []

    monkeypatch.setattr(verify, "_held", held)
    return tried, verify._random("merge_states", "reference", "cpu", HOW, quietly)


def test_as_many_random_problems_are_tried_as_are_told(monkeypatch):
    tried, row = seeds_of(monkeypatch, None)
    assert tried == [(problems.random_descriptor("merge_states", seed, tokens=600), seed) for seed in range(4)]
    assert (row["problems"], row["ok"], row["elements"]) == (4, True, 40)


@pytest.mark.parametrize("seed", [0, 3])
def test_one_random_problem_that_fails_fails_its_row(monkeypatch, seed):
    _, row = seeds_of(monkeypatch, seed)
    assert not row["ok"]
    assert row["wrong"] == [f"seed {seed}: too far"]


@pytest.mark.parametrize("place", ["_proven", "_random"])
def test_one_row_that_fails_fails_the_record(monkeypatch, place):
    ok = {name: name != place for name in ("_proven", "_random")}
    for name, value in ok.items():
        monkeypatch.setattr(verify, name, lambda *given, value=value: {"ok": value})
    record = verify.verify(op="merge_states", quick=True, backend="reference", say=quietly)
    assert record["ok"] is False


def test_one_claim_that_fails_fails_a_sku(monkeypatch):
    claims = {"bound": dict, "exact": dict}
    for name in claims:
        found = {other: lambda wrong=[other] * (other == name): {"wrong": wrong} for other in claims}
        monkeypatch.setattr(verify, "_claims", lambda one, how, found=found: found)
        assert not verify._proven(subject(), HOW, quietly)["ok"]


def test_runs_that_differ_are_wrong():
    shown = verify.determinism.Shown(10, 5, 1, "1 of 5 runs differ")
    assert verify._shown(shown) == {"compared": 10, "runs": 5, "different": 1, "wrong": ["1 of 5 runs differ"]}
    assert verify._shown(verify.determinism.Shown(10, 5, 0))["wrong"] == []


def test_quick_and_whole_efforts_are_those_of_their_device():
    asked = {(device, quick): verify.effort(device, quick) for device in ("cpu", "cuda") for quick in (True, False)}
    assert asked["cpu", True].problems < asked["cpu", False].problems < asked["cuda", False].problems
    assert asked["cpu", True].runs < asked["cpu", False].runs < asked["cuda", True].runs < asked["cuda", False].runs
    assert asked["cpu", True].campaign.needles < asked["cpu", False].campaign.needles


def test_a_smaller_problem_of_another_sku_does_not_stand_in(monkeypatch):
    large = subject(MERGE.model_copy(update={"total_num_rows": 500}).revalidated())
    assert verify._small(large).descriptor.total_num_rows == 24
    monkeypatch.setattr(verify, "_capped", lambda model: MERGE.model_copy(update={"dtype": "f16"}).revalidated())
    assert verify._small(large) == large


def test_a_sku_is_proven_once():
    found = list(verify._distinct([MERGE, MERGE, MERGE.model_copy(update={"dtype": "f16"}).revalidated()], "reference", "cpu"))
    assert [one.descriptor.dtype for one in found] == ["f32", "f16"]


def test_a_sku_that_stands_twice_in_the_problems_has_one_row():
    record = verify.verify(quick=True, backend="reference", say=quietly, descriptors=[MERGE, MERGE])
    assert len(record["skus"]) == 1
    assert record["random_problems"] == []
