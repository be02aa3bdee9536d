"""Dumps on disk; that they run again is in tests/test_replay.py."""

import stat

import pytest
import torch

from opfacade import Plan, Target, dumps, errors
from opfacade.registry import examples


@pytest.fixture
def place(monkeypatch, tmp_path):
    monkeypatch.setenv("OPFACADE_DUMP_DIR", str(tmp_path / "dumps"))
    plan = Plan.select(examples()[0], target=Target.cpu())
    return dumps.begin(plan.descriptor, plan.sku, {"q": torch.arange(8.0).view(2, 4).t()}, 7)


def test_what_is_saved_is_read_back(place):
    dumps.finish(place, {"o": torch.ones(2)})
    found = dumps.load(place)
    assert torch.equal(found.inputs["q"], torch.arange(8.0).view(2, 4).t())
    assert torch.equal(found.outputs["o"], torch.ones(2))
    assert (found.device, dumps.find(place.parent), dumps.find(place)) == ("cpu", (place,), (place,))


def test_a_dump_belongs_to_its_user(place):
    assert stat.S_IMODE(place.stat().st_mode) == 0o700


def test_a_damaged_dump_is_an_error_of_ours(place):
    (place / "call.json").write_text("{")
    with pytest.raises(errors.ArgumentError, match="OPF-E010"):
        dumps.load(place)
