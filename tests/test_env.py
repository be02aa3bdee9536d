"""Environment variables: defaults, values, and each one documented where it is read."""

import inspect
import re
from pathlib import Path

import pytest

from opfacade import env
from opfacade.errors import SettingError

FUNCTIONS = [
    f for name, f in inspect.getmembers(env, inspect.isfunction)
    if f.__module__ == env.__name__ and not name.startswith("_") and name not in ("is_set", "unknown")
]  # fmt: skip


@pytest.fixture(autouse=True)
def _bare(monkeypatch):
    import os

    for name in [n for n in os.environ if n.startswith(("OPFACADE_", "CUDA_"))]:
        monkeypatch.delenv(name)


CASES = [
    ("cache_dir", "OPFACADE_CACHE_DIR", "/x/y", Path("/x/y")),
    ("allow_shared_cache", "OPFACADE_ALLOW_SHARED_CACHE", "1", True),
    ("allow_shared_cache", "OPFACADE_ALLOW_SHARED_CACHE", "0", False),
    ("nvcc", "OPFACADE_NVCC", "/x/nvcc", "/x/nvcc"),
    ("nvcc", "OPFACADE_NVCC", "", None),
    ("cuda_home", "CUDA_HOME", "/cuda", "/cuda"),
    ("cuda_home", "CUDA_PATH", "/cuda", "/cuda"),
    ("cxx", "OPFACADE_CXX", "g++-13", "g++-13"),
    ("cxx", "OPFACADE_CXX", "", "c++"),
    ("search_path", "PATH", "/only", "/only"),
    ("jit_disabled", "OPFACADE_DISABLE_JIT", "1", True),
    ("jit_disabled", "OPFACADE_DISABLE_JIT", "0", False),
    ("jit_disabled", "OPFACADE_DISABLE_JIT", "False", False),
    ("jit_disabled", "OPFACADE_DISABLE_JIT", "on", True),
    ("jit_verbose", "OPFACADE_JIT_VERBOSE", "1", True),
    ("jit_verbose", "OPFACADE_JIT_VERBOSE", "", False),
    ("jit_debug", "OPFACADE_JIT_DEBUG", "1", True),
    ("jit_lineinfo", "OPFACADE_JIT_LINEINFO", "1", True),
    ("jit_reload", "OPFACADE_JIT_RELOAD", "1", True),
    ("jit_jobs", "OPFACADE_JIT_JOBS", "3", 3),
    ("log", "OPFACADE_LOG", "stats", "stats"),
    ("log_dest", "OPFACADE_LOG_DEST", "/tmp/log-%p", "/tmp/log-%p"),
    ("jit_timeout", "OPFACADE_JIT_TIMEOUT", "1.5", 1.5),
    ("source_root", "OPFACADE_SOURCE_ROOT", "/src", Path("/src")),
    ("validate", "OPFACADE_VALIDATE", "off", "off"),
    ("crosscheck", "OPFACADE_CROSSCHECK", "0.25", 0.25),
    ("crosscheck", "OPFACADE_CROSSCHECK", "1", 1.0),
    ("telemetry_sample", "OPFACADE_TELEMETRY_SAMPLE", "0.01", 0.01),
    ("telemetry_file", "OPFACADE_TELEMETRY_FILE", "/t/%p.jsonl", "/t/%p.jsonl"),
    ("nvtx", "OPFACADE_NVTX", "1", True),
    ("require_sku", "OPFACADE_REQUIRE_SKU", "/m.json", "/m.json"),
    ("dump_dir", "OPFACADE_DUMP_DIR", "/d", Path("/d")),
]
DEFAULTS = {
    "allow_shared_cache": False, "nvcc": None, "cuda_home": None, "cxx": "c++",
    "jit_disabled": False, "jit_verbose": False, "jit_jobs": None,
    "jit_debug": False, "jit_lineinfo": False, "jit_reload": False, "log": None, "log_dest": "stderr",
    "jit_timeout": 600.0, "source_root": None, "validate": "metadata", "crosscheck": 0.0,
    "require_sku": None, "telemetry_sample": 0.0, "telemetry_file": None, "nvtx": False,
}  # fmt: skip


@pytest.mark.parametrize(("function", "variable", "value", "wanted"), CASES)
def test_a_variable_has_its_effect(monkeypatch, function, variable, value, wanted):
    monkeypatch.setenv(variable, value)
    assert getattr(env, function)() == wanted


@pytest.mark.parametrize("function", DEFAULTS)
def test_defaults(function):
    assert getattr(env, function)() == DEFAULTS[function]


def test_cuda_home_wins_over_cuda_path(monkeypatch):
    monkeypatch.setenv("CUDA_HOME", "/home")
    monkeypatch.setenv("CUDA_PATH", "/path")
    assert env.cuda_home() == "/home"


def test_the_default_cache_is_the_users(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert env.cache_dir() == tmp_path / ".cache" / "opfacade"
    assert not (tmp_path / ".cache").exists()


def test_every_function_names_its_variable_in_its_docstring():
    for function in FUNCTIONS:
        read = set(re.findall(r'environ\.get\("(\w+)"', inspect.getsource(function)))
        assert read
        assert read <= set(re.findall(r"\w+", function.__doc__)), function.__name__


def test_every_function_has_a_case():
    assert {f.__name__ for f in FUNCTIONS} == {function for function, *_ in CASES}


@pytest.mark.parametrize(
    ("function", "variable", "value", "allowed"),
    [
        ("jit_jobs", "OPFACADE_JIT_JOBS", "x", "a whole number from 1 up"),
        ("jit_jobs", "OPFACADE_JIT_JOBS", "0", "a whole number from 1 up"),
        ("jit_timeout", "OPFACADE_JIT_TIMEOUT", "y", "seconds above 0"),
        ("jit_timeout", "OPFACADE_JIT_TIMEOUT", "nan", "seconds above 0"),
        ("crosscheck", "OPFACADE_CROSSCHECK", "some", "a share from 0 to 1"),
        ("crosscheck", "OPFACADE_CROSSCHECK", "7", "a share from 0 to 1"),
        ("jit_disabled", "OPFACADE_DISABLE_JIT", "maybe", "1 or 0"),
        ("validate", "OPFACADE_VALIDATE", "paranoid", "one of off, metadata, indices, full"),
        ("log", "OPFACADE_LOG", "all", "api, stats or dump"),
        ("telemetry_sample", "OPFACADE_TELEMETRY_SAMPLE", "2", "a share from 0 to 1"),
        ("telemetry_sample", "OPFACADE_TELEMETRY_SAMPLE", "nan", "a share from 0 to 1"),
    ],
)
def test_a_value_that_means_nothing_is_refused_by_name(monkeypatch, function, variable, value, allowed):
    monkeypatch.setenv(variable, value)
    with pytest.raises(SettingError) as caught:
        getattr(env, function)()
    assert str(caught.value) == f"{variable} expected {allowed}, got {value!r}. [OPF-E001]"


def test_a_bogus_level_of_validation_is_refused_at_select(monkeypatch):
    from opfacade import Plan, Target
    from opfacade.registry import examples

    monkeypatch.setenv("OPFACADE_VALIDATE", "bogus")
    with pytest.raises(ValueError, match=r"OPFACADE_VALIDATE expected one of .*metadata.*, got 'bogus'"):
        Plan._select(examples()[0], None, Target.cpu())


def test_names_that_nothing_reads_are_told_with_the_nearest(monkeypatch):
    monkeypatch.setenv("OPFACADE_JIT_VERBOS", "1")
    monkeypatch.setenv("OPFACADE_QQQQQQQQ", "1")
    monkeypatch.setenv("OPFACADE_JIT_JOBS", "1")
    assert env.unknown() == {"OPFACADE_JIT_VERBOS": "OPFACADE_JIT_VERBOSE", "OPFACADE_QQQQQQQQ": ""}
