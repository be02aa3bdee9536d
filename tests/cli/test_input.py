"""Input of commands, and the message for a file without anything to do."""

import io
import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from opfacade import errors
from opfacade.base import regular_files
from opfacade.cli import input as cli_input
from opfacade.cli.main import main
from opfacade.select.manifest import SkuManifest
from opfacade.select.registry import examples
from opfacade.tools import verify

COMMANDS = {
    "warmup": ["warmup", "-"],
    "verify": ["verify", "--quick", "-"],
    "freeze": ["manifest", "freeze", "-"],
    "check": ["manifest", "check", "{manifest}", "-"],
    "tune": ["tune", "-"],
    "bench": ["bench", "-"],
}


@pytest.mark.parametrize("text", ["", "\n \n", "[]"], ids=["nothing", "blank", "array"])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_file_without_problems_is_no_success(command, text, tmp_path):
    SkuManifest(skus=()).save(tmp_path / "m.json")
    words = [word.format(manifest=tmp_path / "m.json") for word in COMMANDS[command]]
    result = CliRunner().invoke(main, words, input=text)
    assert result.exit_code == 1
    assert "contains no problems; nothing was done" in result.stderr
    assert result.stdout == ""


def test_nothing_is_written_of_nothing(tmp_path):
    result = CliRunner().invoke(main, ["manifest", "freeze", "-", "--out", str(tmp_path / "m.json")], input="")
    assert result.exit_code == 1
    assert list(tmp_path.iterdir()) == []


def test_problems_of_which_none_runs_are_told_of():
    with pytest.raises(errors.UnsupportedError, match="OPF-V004"):
        verify.verify(quick=True, descriptors=[])
    wide = next(e for e in examples() if e.op == "paged_decode")
    with pytest.raises(errors.UnsupportedError, match="1 that it does not run"):
        verify.verify(quick=True, backend="cuda", descriptors=[wide])


@pytest.mark.parametrize("command", [["explain", "-"], ["compile", "-"], *COMMANDS.values()], ids=" ".join)
def test_a_file_without_end_is_refused(command, monkeypatch, tmp_path):
    SkuManifest(skus=()).save(tmp_path / "m.json")
    words = [word.format(manifest=tmp_path / "m.json") for word in command]
    monkeypatch.setattr(regular_files.read_bounded, "__defaults__", (100, ""))
    result = CliRunner().invoke(main, words, input="x" * 1000)
    assert result.exit_code == 2
    assert "larger than 100 bytes" in result.stderr


def test_a_pipe_is_read_to_its_end():
    pipe = io.BytesIO(b"text")
    pipe.name = "<stdin>"
    assert cli_input.content(pipe) == b"text"


BY_FILE = {
    "diff": ["manifest", "diff", "FILE", "FILE"],
    "check": ["manifest", "check", "FILE", "FILE"],
    "freeze": ["manifest", "freeze", "FILE"],
    "warmup": ["warmup", "FILE"],
    "verify": ["verify", "FILE"],
    "bench": ["bench", "FILE"],
    "report of bench": ["report", "--bench", "FILE"],
    "report of verify": ["report", "--verify", "FILE"],
    "report of telemetry": ["report", "--telemetry", "FILE"],
    "telemetry": ["telemetry", "FILE"],
}


@pytest.mark.parametrize("words", BY_FILE.values(), ids=BY_FILE)
def test_an_error_names_its_file(words, tmp_path):
    path = tmp_path / "work.json"
    path.write_text('{"op": "paged_decode", "batch_size": -1}')
    done = CliRunner().invoke(main, [str(path) if word == "FILE" else word for word in words])
    assert done.exit_code == 2, done.output
    assert f"{path}: " in done.output
    assert "Traceback" not in done.output


def test_a_warning_is_a_line_without_a_place_in_the_sources(tmp_path):
    path = tmp_path / "work.json"
    cache = {"num_total_pages": 4, "page_size": 16, "num_kv_heads": 2, "head_dim": 64, "dtype": "bf16", "layout": "NHD"}
    path.write_text(json.dumps({"op": "paged_decode", "batch_size": 2, "num_qo_heads": 4, "paged_kv": cache}))
    command = [sys.executable, "-m", "opfacade", "explain", str(path), "--target", "sm_90"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stderr.splitlines()[0].startswith('warning: Target.parse("sm_90"): did you mean sm_90a?')
    assert ".py:" not in done.stderr
