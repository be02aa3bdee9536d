"""Calls dumped by OPFACADE_LOG=dump, run again and judged."""

import json

import pytest
import torch
from click.testing import CliRunner

from opfacade import dumps, errors
from opfacade import plan as plans
from opfacade.cli import main
from opfacade.registry import examples
from opfacade.replay import replay
from opfacade.testing.inputs import make_args
from opfacade.testing.problems import random_descriptor

OPS = sorted({d.op for d in examples()})


@pytest.fixture
def dumped(monkeypatch, tmp_path):
    """Run one call of an op while it is dumped; the directory."""
    monkeypatch.setenv("OPFACADE_LOG", "dump")
    monkeypatch.setenv("OPFACADE_LOG_DEST", str(tmp_path / "log"))
    monkeypatch.setenv("OPFACADE_DUMP_DIR", str(tmp_path / "dumps"))
    monkeypatch.setattr(plans, "_selected", {})

    def make(op):
        descriptor = random_descriptor(op, 1, tokens=200)
        plans.Plan.select(descriptor).run(make_args(descriptor, seed=1))
        monkeypatch.delenv("OPFACADE_LOG")
        plans._selected.clear()
        return tmp_path / "dumps"

    return make


@pytest.mark.parametrize("op", OPS)
def test_a_dumped_call_runs_again_to_the_same_bits_within_the_bound(dumped, op):
    (call,) = replay(dumped(op))
    assert call.same
    assert call.sound
    assert call.dumped_worst == call.worst
    assert call.sku == call.dumped_sku


def test_a_wrong_output_in_a_dump_is_told(dumped):
    place = dumped("paged_decode")
    (path,) = place.glob("*/outputs.pt")
    outputs = torch.load(path, weights_only=True)
    outputs["o"] += 1
    torch.save(outputs, path)
    (call,) = replay(place)
    assert not call.same
    assert call.sound
    assert call.dumped_worst > 1


def test_a_dump_of_a_crash_has_no_outputs_and_still_runs(dumped):
    place = dumped("paged_decode")
    next(place.glob("*/outputs.pt")).unlink()
    (call,) = replay(place)
    assert (call.same, call.dumped_worst, call.sound) == (None, None, True)


def test_what_is_no_dump_is_refused(tmp_path):
    with pytest.raises(errors.ArgumentError, match=r"OPF-E010"):
        replay(tmp_path)
    (tmp_path / "call.json").write_text("{}")
    with pytest.raises(errors.ArgumentError, match=r"OPF-E010"):
        replay(tmp_path)


def test_the_command_prints_one_line_a_call(dumped):
    result = CliRunner().invoke(main, ["replay", str(dumped("merge_states")), "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.output)["same"] is True


def test_a_dump_saves_elements_and_not_the_storage_behind_a_view(dumped, tmp_path):
    dumps._save(tmp_path / "x.pt", {"x": torch.zeros(1 << 20)[:4]})
    assert (tmp_path / "x.pt").stat().st_size < 10_000


@pytest.mark.parametrize("device", ["bogus", "meta:x", "cuda:99"])
def test_a_device_that_is_not_here_is_an_error_of_ours(dumped, device):
    with pytest.raises(errors.ArgumentError, match="replay: device expected one of this machine"):
        replay(dumped(OPS[0]), device)


def test_a_damaged_dump_is_an_error_of_ours(dumped):
    place = dumped(OPS[0])
    (inputs,) = place.glob("*/inputs.pt")
    for damaged in (b"", b"x", inputs.read_bytes()[:-200]):
        inputs.write_bytes(damaged)
        with pytest.raises(errors.ArgumentError, match="expected a dump"):
            replay(place)
