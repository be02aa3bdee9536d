"""The log of calls: written before the launch, surviving a crash, and nothing at all where it is off."""

import json
import os
import subprocess
import sys

import pytest
import torch

from opfacade import apilog
from opfacade import plan as plans
from opfacade.errors import SettingError
from tests.problems import decode, run


@pytest.fixture
def log(monkeypatch, tmp_path):
    """Set OPFACADE_LOG to a mode and read the lines of what is run then."""
    monkeypatch.setenv("OPFACADE_LOG_DEST", str(tmp_path / "log-%p"))
    monkeypatch.setenv("OPFACADE_DUMP_DIR", str(tmp_path / "dumps"))
    monkeypatch.setattr(plans, "_selected", {})

    def lines(mode):
        monkeypatch.setenv("OPFACADE_LOG", mode)
        problem = run(decode([6, 3]))
        (path,) = tmp_path.glob("log-[0-9]*")
        return problem, [json.loads(line) for line in path.read_text().splitlines()]

    return lines


def test_a_line_has_descriptor_sku_and_every_tensor(log):
    (descriptor, args), (line,) = log("api")
    assert (line["event"], line["op"]) == ("launch", "paged_decode")
    assert line["descriptor"] == descriptor.model_dump(mode="json")
    assert line["sku"].startswith("attention/paged_decode/reference")
    assert set(line["args"]) == {name for name in args.__slots__ if getattr(args, name) is not None}
    assert line["args"]["q"]["shape"] == list(args.q.shape)
    assert line["args"]["q"]["address"] == hex(args.q.data_ptr())


def test_statistics_of_inputs_come_before_and_of_outputs_after(log):
    (_, args), (before, after) = log("stats")
    assert before["args"]["q"]["max"] == pytest.approx(float(args.q.double().max()))
    assert (after["event"], after["call"]) == ("outputs", before["call"])
    assert after["args"]["o"]["nan"] == 0


def test_statistics_count_nan_and_leave_it_out():
    found = apilog.statistics(torch.tensor([1.0, float("nan"), 3.0]))
    assert found == {"nan": 1, "min": 1.0, "max": 3.0, "mean": 2.0}
    assert apilog.statistics(torch.tensor([float("nan")])) == {"nan": 1}
    assert apilog.statistics(torch.empty(0)) == {}


def test_nothing_is_looked_at_during_capture(log, monkeypatch):
    monkeypatch.setattr(apilog, "_capturing", lambda: True)
    _, lines = log("stats")
    assert [line["event"] for line in lines] == ["launch"]
    assert "max" not in lines[0]["args"]["q"]


def test_off_leaves_the_launcher_alone(monkeypatch):
    monkeypatch.delenv("OPFACADE_LOG", raising=False)
    launch = object()
    assert apilog.wrap(launch, None, None) is launch


def test_two_calls_are_told_apart(log):
    log("api")
    _, lines = log("api")
    assert len({line["call"] for line in lines}) == 2


CRASH = """
import os
from opfacade import Plan, apilog
from tests.problems import decode
descriptor, args = decode([6])
plan = Plan.select(descriptor)
launch = apilog.wrap(lambda args, workspace: os.abort(), descriptor, plan.sku)
launch(args, None)
"""


@pytest.mark.parametrize("destination", ["stderr", "stdout", "file-%p"])
def test_a_crash_in_the_launch_leaves_the_line(destination, tmp_path):
    where = destination if destination in ("stderr", "stdout") else str(tmp_path / destination)
    env = {**os.environ, "OPFACADE_LOG": "api", "OPFACADE_LOG_DEST": where}
    done = subprocess.run([sys.executable, "-c", CRASH], env=env, capture_output=True, text=True)
    assert done.returncode == -6, done.stderr
    files = [path.read_text() for path in tmp_path.glob("file-[0-9]*")]
    text = {"stderr": done.stderr, "stdout": done.stdout}.get(destination) or files[0]
    assert json.loads(text.splitlines()[0])["op"] == "paged_decode"


@pytest.mark.parametrize(("name", "mode"), [("OPFACADE_LOG_DEST", "api"), ("OPFACADE_DUMP_DIR", "dump")])
def test_a_place_that_cannot_be_written_is_named(log, monkeypatch, tmp_path, name, mode):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(name, str(tmp_path / "file" / "below"))
    with pytest.raises(SettingError, match=rf"{name} expected a place that can be written, .*OPF-E002"):
        log(mode)
