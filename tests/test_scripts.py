"""Scripts first print what they do, and end with a verdict; here they run with stubs for the tools that they call."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def clone(tmp_path):
    """A clone with a .venv whose tools do nothing; `bin(name, body)` replaces one."""
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts")
    (tmp_path / ".venv/bin").mkdir(parents=True)
    for name in ("pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path / name)

    def tool(name, body="exit 0"):
        path = tmp_path / ".venv/bin" / name
        path.write_text(f"#!/usr/bin/env bash\n{body}\n")
        path.chmod(0o755)

    for name in ("ruff", "mypy", "python", "opfacade"):
        tool(name)
    tool.place = tmp_path
    return tool


def run(clone, script):
    return subprocess.run([clone.place / "scripts" / script], capture_output=True, text=True, timeout=60)


def test_a_first_run_says_what_is_installed_and_where(clone):
    clone("python", 'echo "$@"')
    done = run(clone, "env")
    first, second = done.stdout.splitlines()[:2]
    assert str(clone.place / ".venv") in first
    assert "minutes" in first
    assert " -q" not in second  # pip shows its own progress
    assert run(clone, "env").stdout == ""


def test_the_checks_name_their_steps_and_end_with_a_verdict(clone):
    lines = run(clone, "test").stdout.splitlines()
    steps = [line.split("scripts/check: ")[1] for line in lines if line.startswith("scripts/check: ")]
    assert [step.split(" ")[0] for step in steps] == ["format", "types", "tests", "planted"]
    assert "20 minutes" in steps[2]
    assert lines[-1].startswith("PASS: ")


def test_a_failed_step_is_named(clone):
    clone("mypy", "exit 3")
    done = run(clone, "test")
    assert done.returncode == 3
    assert done.stderr.splitlines()[-1].startswith("FAIL: types")
    assert "PASS" not in done.stdout


def test_what_a_gpu_adds_runs_to_the_end_and_names_what_failed(clone):
    clone("python", '[[ "$*" != *opfacade* ]]')
    (clone.place / "scripts/sanitize").write_text("#!/bin/sh\nexit 0\n")
    done = subprocess.run([clone.place / "scripts/gpu"], capture_output=True, text=True, timeout=60)
    ends = [line for line in done.stdout.splitlines() if " passed, " in line or " FAILED, " in line]
    assert [end.split()[1:3] for end in ends] == [
        ["suite", "passed,"],
        ["verify", "FAILED,"],
        ["sanitize", "passed,"],
        ["mutate", "passed,"],
        ["speeds", "passed,"],
        ["check", "passed,"],
    ]
    assert done.returncode == 1


def test_a_gpu_step_that_is_not_known_is_refused_before_any_runs(clone):
    done = subprocess.run([clone.place / "scripts/gpu", "suite", "speed"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "got speed" in done.stderr
    assert done.stdout == ""


def test_the_demo_says_how_long_it_takes(clone):
    assert "a minute" in run(clone, "demo").stdout
