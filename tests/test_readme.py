"""The README is correct: its example runs and passes type checkers, and its commands and variables exist."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from opfacade.cli.main import main
from opfacade.testing import numerics
from opfacade.tools import catalogue
from tests.support.python_path import python_path

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
USING = (ROOT / "docs/using.md").read_text()


def blocks(language, text=README):
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def test_it_is_short():
    assert len(README.splitlines()) <= 125


def test_its_links_lead_to_files():
    links = re.findall(r"\]\(([^)#:]+)\)", README)
    assert links
    assert [link for link in links if not (ROOT / link).is_file()] == []


MYPY = ["mypy", "--strict", "--cache-dir", str(ROOT / ".mypy_cache")]
PYRIGHT = ["basedpyright", "--pythonpath", sys.executable, "--level", "error"]  # pyright with its own node: no download


@pytest.mark.parametrize("checker", [MYPY, PYRIGHT], ids=["mypy", "pyright"])
def test_the_example_passes_strict_type_checkers(checker, tmp_path):
    if importlib.util.find_spec(checker[0]) is None:
        pytest.skip(f"{checker[0]} is not installed; scripts/env installs it")
    example = tmp_path / "example.py"
    example.write_text(blocks("python")[1])
    (tmp_path / "pyrightconfig.json").write_text('{"typeCheckingMode": "standard"}')
    words = ["--project", str(tmp_path)] if checker is PYRIGHT else [str(example)]
    command = [sys.executable, "-m", *checker, *words]
    found = subprocess.run(
        command, capture_output=True, text=True, timeout=280, cwd=ROOT, env=os.environ | {"PYTHONPATH": python_path(ROOT)}
    )
    assert found.returncode == 0, found.stdout


def test_the_example_runs_and_its_result_is_within_the_bound(capsys):
    adapters, example = blocks("python")
    exec(compile(adapters, "README.md", "exec"), {})
    names = {}
    torch.manual_seed(0)
    exec(compile(example, "README.md", "exec"), names)
    plan = names["plan"]
    printed = capsys.readouterr().out
    assert plan.sku.id in printed
    assert "paged_decode on sm_90a" in printed
    assert numerics.check(plan.descriptor, names["args"], plan.sku, rows=8).worst <= 1


def test_every_command_and_script_exists():
    shell = "\n".join(blocks("sh") + blocks("text", USING))
    commands = set(re.findall(r"^opfacade (\w+)", shell, re.MULTILINE))
    assert commands == set(main.commands)
    scripts = re.findall(r"^(scripts/\w+)", shell, re.MULTILINE)
    assert scripts
    assert all((ROOT / script).stat().st_mode & 0o111 for script in scripts)


def test_every_option_exists():
    for command, words in re.findall(r"^opfacade (\w+)(.*?)#", "\n".join(blocks("text", USING)), re.MULTILINE):
        known = {option for parameter in main.commands[command].params for option in parameter.opts}
        assert set(re.findall(r"--[\w-]+", words)) <= known


def test_every_variable_exists():
    named = set(re.findall(r"OPFACADE_[A-Z_]+", README + USING))
    assert named <= {variable.name for variable in catalogue.environment()}


def test_ci_runs_the_test_command_and_nothing_else():
    lines = [line for line in (ROOT / ".ci/run").read_text().splitlines() if line and not line.startswith("#")]
    assert lines == ["set -euo pipefail", 'cd "$(dirname "$0")/.."', "exec bash scripts/test"]
