"""The log of calls: it is written before the launch, survives a crash, and does nothing if it is off."""

import json
import os
import subprocess
import sys

import pytest
import torch

from opfacade import plan as plans
from opfacade import telemetry
from opfacade.base import notices
from opfacade.errors import DroppedWarning, SettingError
from opfacade.observe import apilog, call_pages, dump_files
from opfacade.select.registry import examples
from tests.support.problems import bits, decode, run

pytestmark = pytest.mark.usefixtures("fresh_telemetry")


@pytest.fixture(autouse=True)
def _untold(monkeypatch):
    monkeypatch.setattr(notices, "_told", {})
    monkeypatch.setattr(dump_files, "_used", [0, 0])
    apilog._place.cache_clear()


@pytest.fixture
def log(monkeypatch, tmp_path):
    """Sets OPFACADE_LOG to a mode and reads the lines of the following runs."""
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


def test_nothing_is_looked_at_during_capture(log, monkeypatch):
    monkeypatch.setattr(apilog, "capturing", lambda device: True)
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
from opfacade import Plan; from opfacade.observe import apilog
from tests.support.problems import decode
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


def logged(monkeypatch, tmp_path, mode, **variables):
    """A logged run, described by its outputs: their bits equal those of a run without a log."""
    descriptor, quiet = decode([6, 3])
    run((descriptor, quiet))
    plans._selected.clear()
    for name, value in {"OPFACADE_LOG": mode, "OPFACADE_LOG_DEST": str(tmp_path / "log"), **variables}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("OPFACADE_DUMP_DIR", variables.get("OPFACADE_DUMP_DIR", str(tmp_path / "dumps")))
    descriptor, args = decode([6, 3])
    for _ in range(2):
        run((descriptor, args))
    assert torch.equal(bits(args.o), bits(quiet.o))
    return descriptor, args


@pytest.mark.timeout(120)
@pytest.mark.parametrize("place", ["/dev/full", "fifo", "file/below", "."])
@pytest.mark.parametrize("mode", ["api", "stats", "dump"])
def test_lines_that_cannot_be_written_are_dropped_counted_and_told_once(monkeypatch, tmp_path, mode, place):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "file").write_text("")
    with pytest.warns(DroppedWarning, match=r"OPFACADE_LOG_DEST.*OPF-E002") as warned:
        logged(monkeypatch, tmp_path, mode, OPFACADE_LOG_DEST=str(tmp_path / place))
    assert len(warned) == 1
    assert telemetry.counts() == {"log_lines_dropped": 4 if mode == "stats" else 2}


@pytest.mark.filterwarnings("ignore::opfacade.errors.DroppedWarning")
@pytest.mark.parametrize("problem", ["closed", "absent"])
def test_a_stderr_that_is_closed_takes_no_line_and_breaks_no_run(monkeypatch, tmp_path, problem):
    import io

    closed = io.StringIO()
    closed.close()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", closed if problem == "closed" else None)
        logged(patch, tmp_path, "api", OPFACADE_LOG_DEST="stderr")
    assert telemetry.counts() == {"log_lines_dropped": 2}


@pytest.mark.parametrize("error", [RuntimeError("CUDA out of memory"), MemoryError()])
def test_statistics_that_need_too_much_are_dropped_and_the_line_stays(monkeypatch, tmp_path, error):
    def fail(*given):
        raise error

    monkeypatch.setattr(call_pages, "pages", fail)
    with pytest.warns(DroppedWarning, match="OPFACADE_LOG=stats"):
        logged(monkeypatch, tmp_path, "stats")
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert [line["event"] for line in lines] == ["launch", "outputs"] * 2
    assert "max" not in lines[0]["args"]["q"]
    assert telemetry.counts() == {"log_statistics_dropped": 4}


def no_constant(word):
    pytest.fail(f"{word} is no JSON")


def test_numbers_that_are_not_finite_are_strings_in_a_line(monkeypatch, tmp_path):
    monkeypatch.setenv("OPFACADE_LOG", "stats")
    monkeypatch.setenv("OPFACADE_LOG_DEST", str(tmp_path / "log"))
    run(decode([6, 0]))  # a request without keys has lse = -inf
    lines = [json.loads(line, parse_constant=no_constant) for line in (tmp_path / "log").read_text().splitlines()]
    assert lines[-1]["args"]["lse"]["min"] == "-Infinity"


FIRSTS = {descriptor.op: descriptor for descriptor in reversed(examples())}.values()


@pytest.mark.parametrize("descriptor", FIRSTS, ids=lambda d: d.op)
@pytest.mark.parametrize("mode", ["stats", "dump"])
def test_every_op_is_logged_without_a_drop(monkeypatch, tmp_path, descriptor, mode):
    from opfacade import Plan, Preference, Target
    from opfacade.testing.inputs import make_args

    monkeypatch.setenv("OPFACADE_LOG", mode)
    monkeypatch.setenv("OPFACADE_LOG_DEST", str(tmp_path / "log"))
    monkeypatch.setenv("OPFACADE_DUMP_DIR", str(tmp_path / "dumps"))
    Plan.select(descriptor, Preference(backend="reference"), Target.cpu()).run(make_args(descriptor))
    assert telemetry.counts() == {}
    (tmp_path / "log").read_text().splitlines()[0].index(descriptor.op)


ROOM = """
import resource, sys
from opfacade import telemetry
from tests.support.problems import decode, run
resource.setrlimit(resource.RLIMIT_FSIZE, (3000, resource.RLIM_INFINITY))
descriptor, args = run(decode([6, 3]))
assert not args.o.isnan().any()
print(telemetry.counts())
"""


def test_a_disk_that_fills_up_under_a_dump_breaks_no_run_and_keeps_no_half(tmp_path):
    """A limit on the size of files fails a write as a full disk does."""
    places = {"OPFACADE_LOG_DEST": "stdout", "OPFACADE_DUMP_DIR": str(tmp_path / "dumps")}
    env = {**os.environ, "OPFACADE_LOG": "dump", **places}
    done = subprocess.run([sys.executable, "-c", ROOM], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "{'dumps_dropped': 1}" in done.stdout
    assert "DroppedWarning: OPFACADE_DUMP_DIR" in done.stderr
    assert list((tmp_path / "dumps").iterdir()) == []


@pytest.mark.parametrize(
    ("variable", "value", "made"),
    [
        ("OPFACADE_DUMP_MAX_COUNT", "1", 1), ("OPFACADE_DUMP_MAX_COUNT", "0", 0), ("OPFACADE_DUMP_MAX_MB", "0", 0),
        ("OPFACADE_DUMP_INCLUDE", "paged_prefill mla_*", 0), ("OPFACADE_DUMP_INCLUDE", "x paged_decode", 2),
        ("OPFACADE_DUMP_INCLUDE", "attention/*/reference/*", 2), ("OPFACADE_DUMP_EXCLUDE", "*decode", 0),
        ("OPFACADE_DUMP_EXCLUDE", "paged_prefill", 2),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore::opfacade.errors.DroppedWarning")
def test_dumps_have_limits_and_are_chosen_by_op_or_sku(monkeypatch, tmp_path, variable, value, made):
    logged(monkeypatch, tmp_path, "dump", **{variable: value})
    assert len(list((tmp_path / "dumps").glob("*/call.json"))) == made
    assert telemetry.counts() == ({"dumps_dropped": 2 - made} if "MAX" in variable else {})


def test_a_limit_that_means_nothing_is_refused_when_a_plan_is_loaded(log, monkeypatch):
    monkeypatch.setenv("OPFACADE_DUMP_MAX_MB", "-1")
    with pytest.raises(SettingError, match="OPFACADE_DUMP_MAX_MB expected a whole number from 0 up"):
        log("dump")


def test_a_place_for_dumps_that_cannot_be_written_is_named(log, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("OPFACADE_DUMP_DIR", str(tmp_path / "file" / "below"))
    with pytest.warns(DroppedWarning, match=r"OPFACADE_DUMP_DIR: NotADirectoryError: .*OPF-E002"):
        _, (line,) = log("dump")
    assert "dump" not in line


def test_a_tensor_is_told_with_its_shape_strides_dtype_and_address():
    tensor = torch.zeros(4, 6, dtype=torch.float16)[1:, ::2]
    facts = {"shape": [3, 3], "stride": [6, 2], "dtype": "float16", "device": "cpu", "address": hex(tensor.data_ptr())}
    assert apilog._metadata(tensor) == facts
