"""The doctor's findings; each mismatch is named with its fix."""

import json

import pytest
from click.testing import CliRunner

from opfacade.base.installation import install_cuda
from opfacade.cli.main import main
from opfacade.tools import doctor

SOUND = {"nvcc_release": (13, 5), "ptxas": (13, 5), "headers": (13, 5), "include": "/cuda/include"}


def told(compiler, driver=13000):
    return [(p.severity, p.what, p.cure) for p in doctor.compiler_problems(SOUND | compiler, driver)]


def test_a_sound_compiler_and_driver_are_no_problem():
    assert told({}) == []
    assert told({}, driver=0) == []


@pytest.mark.parametrize(
    ("compiler", "driver", "what", "cure"),
    [
        ({"ptxas": (13, 0)}, 13000, "ptxas 13.0 miscompiles", install_cuda()),
        ({}, 12090, "the driver knows CUDA 12, the compiler is of CUDA 13", "update the driver"),
        ({"headers": (12, 8)}, 13000, "nvcc 13.5 uses CUDA headers of 12.8", "one major release"),
        ({"error": "none found"}, 13000, "no compiler: none found", install_cuda()),
    ],
)
def test_a_mismatch_is_named_with_its_cure(compiler, driver, what, cure):
    ((severity, said, advice),) = told(compiler, driver)
    assert severity == "error"
    assert what in said
    assert cure in advice


def test_torch_without_cuda_is_a_note():
    (problem,) = doctor._torch_problems(None)
    assert (problem.severity, list(doctor._torch_problems("13.0"))) == ("note", [])


def test_a_cache_that_others_may_write_is_a_problem(monkeypatch, tmp_path):
    (tmp_path / "v1").mkdir()
    (tmp_path / "v1").chmod(0o777)
    monkeypatch.setenv("OPFACADE_CACHE_DIR", str(tmp_path))
    (problem,) = (p for p in doctor.diagnose().problems if "cache" in p.what)
    assert problem.severity == "error"
    assert "chmod go-w" in problem.what


def test_unknown_and_bad_variables_are_told(monkeypatch):
    monkeypatch.setenv("OPFACADE_CASH_DIR", "/x")
    monkeypatch.setenv("OPFACADE_JIT_JOBS", "x")
    said = [p.what for p in doctor.diagnose().problems]
    assert "OPFACADE_CASH_DIR is set, and nothing reads it. Did you mean OPFACADE_CACHE_DIR?" in said
    assert any("OPFACADE_JIT_JOBS expected a whole number" in what for what in said)


def test_no_compiler_is_a_finding_and_no_failure(monkeypatch):
    monkeypatch.setenv("OPFACADE_NVCC", "/no/nvcc")
    found = doctor.diagnose()
    assert not found.healthy
    assert "OPFACADE_NVCC is /no/nvcc" in found.compiler["error"]


def test_the_command_prints_all_as_json(monkeypatch, tmp_path):
    (tmp_path / "v1").mkdir(mode=0o700)
    monkeypatch.setenv("OPFACADE_CACHE_DIR", str(tmp_path))
    result = CliRunner().invoke(main, ["doctor", "--json"])
    answer = json.loads(result.output)
    assert set(answer) == {"versions", "compiler", "devices", "cache", "problems"}
    assert {"opfacade", "torch", "tvm-ffi", "python", "driver"} <= set(answer["versions"])
    assert {"directory", "owner", "mode", "bytes", "entries"} <= set(answer["cache"])
    assert {"nvcc", "origin", "nvcc_release", "ptxas", "host"} <= set(answer["compiler"])
    assert result.exit_code == any(p["severity"] == "error" for p in answer["problems"])


def test_the_command_prints_problems_with_cures(monkeypatch):
    monkeypatch.setenv("OPFACADE_NVCC", "/no/nvcc")
    result = CliRunner().invoke(main, ["doctor"])
    assert result.exit_code == 1
    assert "error: no compiler: " in result.output
    assert f"\n  fix: {install_cuda()}" in result.output


@pytest.mark.parametrize(
    "name", ["OPFACADE_VALIDATE", "OPFACADE_DISABLE_JIT", "OPFACADE_TELEMETRY_SAMPLE", "OPFACADE_JIT_JOBS"]
)
def test_a_setting_that_means_nothing_is_a_problem(monkeypatch, name):
    monkeypatch.setenv(name, "zzz")
    assert [p.what for p in doctor._settings() if name in p.what and p.severity == "error"]
