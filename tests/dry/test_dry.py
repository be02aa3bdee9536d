"""The list of kernels that GPU tests build."""

import subprocess
import sys
from pathlib import Path

from opfacade import jit
from opfacade.errors import CompileError
from opfacade.jit import codegen
from tests.dry import __main__ as dry_main
from tests.dry import silent
from tests.dry.__main__ import ROOT, compile_all, files, spec_of

SMALL = "tests/families/cascade/test_cascade_gpu.py"
OURS = jit.JitSpec.of("good", "cascade/merge_states", "sm_90a").identity


def dry_run(found, *paths):
    command = [sys.executable, "-m", "tests.dry", str(found), "--only", *paths]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def test_a_dry_run_lists_what_is_asked_for_and_names_a_file_that_ends_badly(tmp_path):
    found = tmp_path / "list"
    done = dry_run(found, "tests/absent.py", SMALL)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "tests/absent.py" in done.stderr
    assert SMALL not in done.stderr
    specs = [spec_of(line) for line in found.read_text().splitlines()]
    assert f"{len(specs)} kernels" in done.stdout
    assert {spec.template for spec in specs} >= {"cascade/merge_states"}
    assert all(codegen.render(spec).device for spec in specs)


def test_a_kernel_that_does_not_compile_stops_no_other(monkeypatch):
    specs, asked = [jit.JitSpec.of(name, "cascade/merge_states", "sm_90a") for name in ("bad", "good")], []

    def build(spec):
        asked.append(spec.name)
        if spec.name == "bad":
            raise CompileError("a made-up error")

    monkeypatch.setattr(jit, "build", build)
    (told,) = compile_all(specs)
    assert sorted(asked) == ["bad", "good"]
    assert "a made-up error" in told


def test_what_is_compiled_has_the_host_library(monkeypatch, tmp_path):
    compiled = []
    monkeypatch.setattr(sys, "argv", ["dry", str(tmp_path / "list"), "--only", SMALL, "--compile"])
    monkeypatch.setattr(dry_main, "dry", lambda path, found, scratch: found.write_text(OURS + "\n") and "")
    monkeypatch.setattr(dry_main, "compile_all", lambda specs: compiled.extend(specs) or [])
    assert dry_main.main() == 0
    assert compiled == [jit.HOST, spec_of(OURS)]


def test_a_test_goes_on_behind_an_assert_that_fails():
    source = "def test():\n    assert call() == 1, 'told'\n    assert call() / 0\n    return call()\n"
    calls, place = [], {"call": lambda: calls.append(1) or len(calls)}
    exec(silent._to_code(None, source, Path(silent.TESTS / "made_up.py")), place)
    assert place["test"]() == 3


def test_every_file_with_gpu_tests_is_run():
    marked = {path.relative_to(ROOT) for path in (ROOT / "tests").rglob("test_*.py") if "mark.gpu" in path.read_text()}
    here, elsewhere = set(files()), {path for path in marked if path.parts[1] in ("jit", "dry")}
    assert marked - elsewhere <= here
    assert len(here) > 10
