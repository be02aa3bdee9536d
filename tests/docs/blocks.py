"""Code blocks of a page: they are collected, and run one after the other in one folder, like a reader would."""

import os
import re
import shlex
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import torch
from click.testing import CliRunner

from opfacade.cli.main import main
from opfacade.errors import OpfacadeError
from opfacade.jit import toolchain
from tests.support.python_path import python_path
from tests.support.transformers_here import missing as without_transformers

ROOT = Path(__file__).resolve().parents[2]
FENCE = re.compile(
    r"^(?:<!-- (needs [\w ]+|fails) -->\n)?```(\w*)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL
)


@dataclass(frozen=True)
class Block:
    """One block. mark: its requirement, or that its command fails; title: the file name under which a reader saves it."""

    page: str
    line: int
    mark: str
    language: str
    title: str
    text: str


def blocks(page):
    text = page.read_text()
    name = str(page.relative_to(ROOT))
    return [Block(name, text.count("\n", 0, m.start()) + 1, *(g or "" for g in m.groups())) for m in FENCE.finditer(text)]


def lacking(block):
    """Why a block cannot run here, or ""."""
    needs = {
        "needs a GPU": lambda: "" if torch.cuda.is_available() else "need a GPU",
        "needs transformers": without_transformers,
        "needs opentelemetry": lambda: "" if find_spec("opentelemetry") else "need opentelemetry-sdk",
        "needs a compiler": _without_compiler,
        "needs a newer compiler": lambda: _without_compiler((13, 3)),
        "needs minutes": lambda: "take minutes",
        "": lambda: "",
        "fails": lambda: "",
    }
    return needs[block.mark]()


def _without_compiler(release=(0, 0)):
    with tempfile.TemporaryDirectory() as folder:
        try:
            found = toolchain.find(Path(folder) / "toolchain.json")
        except OpfacadeError:
            return "need a CUDA compiler"
    return "" if found.ptxas_release >= release else f"need ptxas {release[0]}.{release[1]}"


def run(block, names, folder):
    if block.title:
        (folder / block.title).write_text(block.text)
    elif block.language == "python":
        exec(compile(block.text, f"{block.page}:{block.line}", "exec"), names)
    elif block.language == "console":
        _console(block, folder)


def _console(block, folder):
    """Lines that begin with `$ ` are commands; the lines after them are their output, where `...` matches any text."""
    for command, expected in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block.text, re.MULTILINE):
        ours = re.fullmatch(r"((?:\w+=\S+ )*)opfacade (.*)", command)
        code, output = _opfacade(folder, *ours.groups()) if ours else _shell(folder, command)
        assert (code != 0) == (block.mark == "fails"), f"{block.page}:{block.line}: {command}\n{output}"
        at = 0
        for part in (part.strip() for part in re.split(r"\.\.\.|\n", expected)):
            found = output.find(part, at)
            assert found >= 0, f"{block.page}:{block.line}: {command} does not print {part!r} but\n{output}"
            at = found + len(part)


def _opfacade(folder, variables, words):
    """Runs the command line in this process, which has imported torch already."""
    args = [found for word in shlex.split(words) for found in (sorted(map(str, folder.glob(word))) if "*" in word else [word])]
    env = dict(pair.split("=") for pair in variables.split())
    result = CliRunner().invoke(main, args, env=env)
    return result.exit_code, result.output


def _shell(folder, command):
    """Runs a command in a shell whose `python` is this interpreter."""
    place = folder / ".bin"
    if not place.is_dir():
        place.mkdir()
        (place / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
        (place / "python").chmod(0o755)
    env = os.environ | {"PATH": f"{place}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": python_path(ROOT)}
    done = subprocess.run(["bash", "-c", command], cwd=folder, env=env, capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout + done.stderr
