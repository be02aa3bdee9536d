"""Environment variables: defaults, values, and a documentation entry for each."""

import contextlib
import inspect
import os
import random
import re
from pathlib import Path

import pytest

from opfacade import Plan, Preference, Target, env, explain
from opfacade.errors import OpfacadeError, SettingError
from opfacade.select.measurements import store_here
from opfacade.select.registry import examples
from opfacade.telemetry import file as telemetry_file
from opfacade.tools.catalogue import environment

FUNCTIONS = [
    f for name, f in inspect.getmembers(env, inspect.isfunction)
    if f.__module__ == env.__name__ and not name.startswith("_") and name not in ("is_set", "unknown", "of_plan")
]  # fmt: skip


@pytest.fixture(autouse=True)
def _bare(monkeypatch):
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
    ("progress", "OPFACADE_PROGRESS", "1", True),
    ("progress", "OPFACADE_PROGRESS", "0", False),
    ("progress", "OPFACADE_PROGRESS", "", None),
    ("jit_debug", "OPFACADE_JIT_DEBUG", "1", True),
    ("jit_lineinfo", "OPFACADE_JIT_LINEINFO", "1", True),
    ("jit_reload", "OPFACADE_JIT_RELOAD", "1", True),
    ("jit_strict", "OPFACADE_JIT_STRICT", "1", True),
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
    ("dump_max_mb", "OPFACADE_DUMP_MAX_MB", "0", 0),
    ("dump_max_count", "OPFACADE_DUMP_MAX_COUNT", "7", 7),
    ("dump_include", "OPFACADE_DUMP_INCLUDE", "paged_decode  attention/*/cuda/*", ("paged_decode", "attention/*/cuda/*")),
    ("dump_exclude", "OPFACADE_DUMP_EXCLUDE", "mla_*", ("mla_*",)),
]
DEFAULTS = {
    "allow_shared_cache": False, "nvcc": None, "cuda_home": None, "cxx": "c++",
    "jit_disabled": False, "jit_verbose": False, "progress": None, "jit_jobs": None,
    "jit_debug": False, "jit_lineinfo": False, "jit_reload": False, "jit_strict": False, "log": None, "log_dest": "stderr",
    "jit_timeout": 600.0, "source_root": None, "validate": "metadata", "crosscheck": 0.0,
    "dump_max_mb": 4096, "dump_max_count": 1000, "dump_include": ("*",), "dump_exclude": (),
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
        read = set(re.findall(r'(?:environ\.get|_given)\("(\w+)"', inspect.getsource(function)))
        assert read
        assert read <= set(re.findall(r"\w+", function.__doc__)), function.__name__


def test_every_function_has_a_case():
    assert {f.__name__ for f in FUNCTIONS} == {function for function, *_ in CASES}


@pytest.mark.parametrize(
    ("function", "variable", "value", "allowed"),
    [
        ("jit_jobs", "OPFACADE_JIT_JOBS", "x", "a whole number from 1 to 4096"),
        ("jit_jobs", "OPFACADE_JIT_JOBS", "0", "a whole number from 1 to 4096"),
        ("jit_timeout", "OPFACADE_JIT_TIMEOUT", "y", "seconds above 0, at most 10^6"),
        ("jit_jobs", "OPFACADE_JIT_JOBS", "1" * 30, "a whole number from 1 to 4096"),
        ("jit_timeout", "OPFACADE_JIT_TIMEOUT", "inf", "seconds above 0, at most 10^6"),
        ("jit_timeout", "OPFACADE_JIT_TIMEOUT", "1e300", "seconds above 0, at most 10^6"),
        ("crosscheck", "OPFACADE_CROSSCHECK", "1e-310", "0 or a share from 1e-9 to 1"),
        ("telemetry_sample", "OPFACADE_TELEMETRY_SAMPLE", "1e-310", "0 or a share from 1e-9 to 1"),
        ("jit_timeout", "OPFACADE_JIT_TIMEOUT", "nan", "seconds above 0, at most 10^6"),
        ("crosscheck", "OPFACADE_CROSSCHECK", "some", "0 or a share from 1e-9 to 1"),
        ("crosscheck", "OPFACADE_CROSSCHECK", "7", "0 or a share from 1e-9 to 1"),
        ("jit_disabled", "OPFACADE_DISABLE_JIT", "maybe", "1 or 0"),
        ("validate", "OPFACADE_VALIDATE", "paranoid", "one of off, metadata, indices, full"),
        ("dump_max_mb", "OPFACADE_DUMP_MAX_MB", "1.5", "a whole number from 0 up"),
        ("dump_max_count", "OPFACADE_DUMP_MAX_COUNT", "-1", "a whole number from 0 up"),
        ("log", "OPFACADE_LOG", "all", "api, stats or dump"),
        ("telemetry_sample", "OPFACADE_TELEMETRY_SAMPLE", "2", "0 or a share from 1e-9 to 1"),
        ("telemetry_sample", "OPFACADE_TELEMETRY_SAMPLE", "nan", "0 or a share from 1e-9 to 1"),
    ],
)
def test_a_value_that_means_nothing_is_refused_by_name(monkeypatch, function, variable, value, allowed):
    monkeypatch.setenv(variable, value)
    with pytest.raises(SettingError) as caught:
        getattr(env, function)()
    assert str(caught.value) == f"{variable} expected {allowed}, got {value!r}. [OPF-E001]"


def test_a_bogus_level_of_validation_is_refused_at_select(monkeypatch):
    monkeypatch.setenv("OPFACADE_VALIDATE", "bogus")
    with pytest.raises(ValueError, match=r"OPFACADE_VALIDATE expected one of .*metadata.*, got 'bogus'"):
        Plan._select(examples()[0], None, Target.cpu())


def test_names_that_nothing_reads_are_told_with_the_nearest(monkeypatch):
    monkeypatch.setenv("OPFACADE_JIT_VERBOS", "1")
    monkeypatch.setenv("OPFACADE_QQQQQQQQ", "1")
    monkeypatch.setenv("OPFACADE_JIT_JOBS", "1")
    assert env.unknown() == {"OPFACADE_JIT_VERBOS": "OPFACADE_JIT_VERBOSE", "OPFACADE_QQQQQQQQ": ""}


KINDS = {
    "fifo": lambda path: os.mkfifo(path) or path,
    "full": lambda path: "/dev/full",
    "endless": lambda path: "/dev/zero",
    "directory": lambda path: path.mkdir() or path,
    "sparse": lambda path: path.touch() or os.truncate(path, 1 << 40) or path,
    "no text": lambda path: path.write_bytes(b"\xff\x00" * 99) and path,
    "deep": lambda path: path.write_text("[" * 100_000) and path,
}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("kind", KINDS)
def test_a_lock_that_is_no_manifest_is_refused_at_once(monkeypatch, tmp_path, kind):
    """Whatever file is at the path, no reader waits for a writer, reads forever or allocates memory by a size from the file."""
    monkeypatch.setenv("OPFACADE_REQUIRE_SKU", str(KINDS[kind](tmp_path / "it")))
    for ask in (lambda: Plan._select(examples()[0], None, Target.cpu()), lambda: explain(examples()[0], None, Target.cpu())):
        with pytest.raises(SettingError, match=r"OPFACADE_REQUIRE_SKU.*OPF-E001"):
            ask()


WORDS = (
    "",
    "0",
    "1",
    "-1",
    "1e-310",
    "1e999",
    "nan",
    "inf",
    "-inf",
    "1_0",
    "0x10",
    "full",
    "indices",
    "api",
    "stats",
    "off",
    "\udcff",
)
PLACES = (
    "/dev/full",
    "/dev/null",
    "/dev/zero",
    "/",
    "/proc/self/mem",
    "~",
    "~nobody/x",
    "x" * 5000,
    "a/b/c/d/e@1/f/g/h/g2.0",
    "%p%s",
)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_no_value_of_a_variable_leaves_anything_but_a_typed_error(function, monkeypatch, tmp_path):
    """Random values: each is read by its function, and by what selects, explains, loads and looks for kernels."""
    rng = random.Random(function.__name__)
    monkeypatch.chdir(tmp_path)  # paths in which a cache with an invalid name could be created
    monkeypatch.setattr(telemetry_file, "start", lambda: None)  # a thread that would write to such paths until the end
    variables = {variable for name, variable, *_ in CASES if name == function.__name__}
    os.mkfifo(tmp_path / "fifo")
    words = ("".join(rng.choices(TEXT, k=rng.randrange(1, 30))).lstrip("/") for _ in range(6))
    places = [place for place in PLACES if place != "/" or function is not env.cache_dir]  # root could create one there
    values = [*WORDS, *places, str(tmp_path / "fifo"), "9" * 5000, *words]
    for variable in sorted(variables - {"PATH"}):
        for place, value in enumerate(values):
            with monkeypatch.context() as patch:
                patch.setenv("OPFACADE_CACHE_DIR", str(tmp_path / "cache"))
                patch.setenv(variable, value)
                for ask in (function, ASKED[place % len(ASKED)]):  # each of ASKED takes some milliseconds
                    with contextlib.suppress(OpfacadeError):
                        ask()


TEXT = "01.e-+naif_ xX/\\%~é\udc80"
DESCRIPTOR = next(e for e in examples() if e.op == "merge_states")
ASKED = (
    lambda: Plan._select(DESCRIPTOR, None, Target.cpu()),
    lambda: Plan._select(DESCRIPTOR, None, Target.cpu())._load(),
    lambda: explain(DESCRIPTOR, Preference(autotune="use"), Target.parse("sm_90a")),
    lambda: Plan._select(DESCRIPTOR, None, Target.parse("sm_90a")).cache_state,
    lambda: store_here().rows(),
    environment,
)
