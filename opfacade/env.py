"""Every OPFACADE_* environment variable, one function each. Nothing else in the package reads os.environ."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, TypeVar

from opfacade.errors import SettingError

LEVELS = ("off", "metadata", "indices", "full")  # of validation
_SET: Mapping[object, bytes] | None = getattr(os.environ, "_data", None)  # CPython's internal table
_T = TypeVar("_T")


def cache_dir() -> Path:
    """OPFACADE_CACHE_DIR: the directory of compiled kernels. Default: the user's cache directory."""
    given = os.environ.get("OPFACADE_CACHE_DIR")
    if given:
        return Path(given)
    import platformdirs

    return Path(platformdirs.user_cache_dir("opfacade", appauthor=False))


def allow_shared_cache() -> bool:
    """OPFACADE_ALLOW_SHARED_CACHE=1: trust a cache that other users own or can write; they can then run code as you."""
    return _flag("OPFACADE_ALLOW_SHARED_CACHE", os.environ.get("OPFACADE_ALLOW_SHARED_CACHE"))


def nvcc() -> str | None:
    """OPFACADE_NVCC: the nvcc to use, before any other."""
    return os.environ.get("OPFACADE_NVCC") or None


def cuda_home() -> str | None:
    """CUDA_HOME (or CUDA_PATH): a CUDA toolkit, used after OPFACADE_NVCC and the pip-installed compiler."""
    return os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH") or None


def cxx() -> str:
    """OPFACADE_CXX: the host C++ compiler. Default: c++."""
    return os.environ.get("OPFACADE_CXX") or "c++"


def search_path() -> str:
    """PATH, for finding compilers."""
    return os.environ.get("PATH", os.defpath)


def jit_disabled() -> bool:
    """OPFACADE_DISABLE_JIT=1: never compile; a kernel that is not in the cache raises JitDisabledError."""
    given = _given("OPFACADE_DISABLE_JIT")
    return _flag("OPFACADE_DISABLE_JIT", given) if given else False


def jit_verbose() -> bool:
    """OPFACADE_JIT_VERBOSE=1: print compile commands and the compiler's output."""
    return _flag("OPFACADE_JIT_VERBOSE", os.environ.get("OPFACADE_JIT_VERBOSE"))


def progress() -> bool | None:
    """OPFACADE_PROGRESS=1: print the progress of a warm-up to stderr, even if it is not a terminal; 0: never. Default: on a
    terminal."""
    given = os.environ.get("OPFACADE_PROGRESS")
    return _flag("OPFACADE_PROGRESS", given) if given else None


def jit_debug() -> bool:
    """OPFACADE_JIT_DEBUG=1: build kernels for a debugger (nvcc -G, host -g -O0), in separate cache entries. Slow kernels."""
    return _flag("OPFACADE_JIT_DEBUG", os.environ.get("OPFACADE_JIT_DEBUG"))


def jit_lineinfo() -> bool:
    """OPFACADE_JIT_LINEINFO=1: build kernels with line numbers for profilers (nvcc -lineinfo). The code does not change."""
    return _flag("OPFACADE_JIT_LINEINFO", os.environ.get("OPFACADE_JIT_LINEINFO"))


def jit_reload() -> bool:
    """OPFACADE_JIT_RELOAD=1: rebuild a kernel whose source has changed since the last call, even for an existing plan. For
    kernel writers."""
    return _flag("OPFACADE_JIT_RELOAD", os.environ.get("OPFACADE_JIT_RELOAD"))


def jit_strict() -> bool:
    """OPFACADE_JIT_STRICT=1: refuse a kernel that spills registers, uses local memory or serialises wgmma, unless its source
    accepts it. Such a kernel is correct but slow. For authors of kernels and their CI."""
    return _flag("OPFACADE_JIT_STRICT", os.environ.get("OPFACADE_JIT_STRICT"))


def jit_jobs() -> int | None:
    """OPFACADE_JIT_JOBS: parallel compile jobs of one build. Default: ninja's choice."""
    given = os.environ.get("OPFACADE_JIT_JOBS")
    return (
        _parsed("OPFACADE_JIT_JOBS", given, int, "a whole number from 1 to 4096", lambda n: 1 <= n <= 4096) if given else None
    )


def source_root() -> Path | None:
    """OPFACADE_SOURCE_ROOT: a checkout whose kernels/ and csrc/ replace the installed ones."""
    given = os.environ.get("OPFACADE_SOURCE_ROOT")
    return Path(given) if given else None


def validate() -> str:
    """OPFACADE_VALIDATE: off | metadata | indices | full: how much a run checks; read when a plan is created. Default:
    metadata."""
    given = _given("OPFACADE_VALIDATE")
    if not given:
        return "metadata"
    return _parsed("OPFACADE_VALIDATE", given, str, f"one of {', '.join(LEVELS)}", lambda level: level in LEVELS)


def crosscheck() -> float:
    """OPFACADE_CROSSCHECK: the fraction of runs, 0 or 1e-9 to 1, that are repeated on the reference; read when a plan is
    created. Default: 0."""
    given = _given("OPFACADE_CROSSCHECK")
    return _share("OPFACADE_CROSSCHECK", given) if given else 0.0


def dump_dir() -> Path:
    """OPFACADE_DUMP_DIR: where OPFACADE_LOG=dump and failed cross-checks write the tensors of a call, each to a separate
    directory that only its user may read. Default: `dumps` in the cache directory."""
    given = os.environ.get("OPFACADE_DUMP_DIR")
    return Path(given) if given else cache_dir() / "dumps"


def dump_max_mb() -> int:
    """OPFACADE_DUMP_MAX_MB: the total number of MB (10^6 bytes) of tensors that this process dumps; a call that would exceed it
    is not dumped. Read when a plan is loaded. Default: 4096."""
    return _whole("OPFACADE_DUMP_MAX_MB", os.environ.get("OPFACADE_DUMP_MAX_MB") or "4096")


def dump_max_count() -> int:
    """OPFACADE_DUMP_MAX_COUNT: the total number of calls that this process dumps; read when a plan is loaded. Default: 1000."""
    return _whole("OPFACADE_DUMP_MAX_COUNT", os.environ.get("OPFACADE_DUMP_MAX_COUNT") or "1000")


def dump_include() -> tuple[str, ...]:
    """OPFACADE_DUMP_INCLUDE: the ops or SKU ids that OPFACADE_LOG=dump dumps, with * and ?, separated by spaces; read when a
    plan is loaded. Default: all."""
    return tuple((os.environ.get("OPFACADE_DUMP_INCLUDE") or "*").split())


def dump_exclude() -> tuple[str, ...]:
    """OPFACADE_DUMP_EXCLUDE: the ops or SKU ids that are excluded from dumps, in the same form; read when a plan is loaded.
    Default: nothing."""
    return tuple((os.environ.get("OPFACADE_DUMP_EXCLUDE") or "").split())


def telemetry_sample() -> float:
    """OPFACADE_TELEMETRY_SAMPLE: the fraction of runs, 0 or 1e-9 to 1, that are timed, on a GPU by CUDA events without waiting;
    read when a plan is loaded. Default: 0."""
    given = os.environ.get("OPFACADE_TELEMETRY_SAMPLE") or "0"
    return _share("OPFACADE_TELEMETRY_SAMPLE", given)


def telemetry_file() -> str | None:
    """OPFACADE_TELEMETRY_FILE: a file to which a thread appends all counters as JSON lines, every 10 s and at exit; %p is the
    process id. Several processes may share a file. Read when a plan is loaded."""
    return os.environ.get("OPFACADE_TELEMETRY_FILE") or None


def nvtx() -> bool:
    """OPFACADE_NVTX=1: mark every launch as an NVTX range named by its SKU, for profilers; read when a plan is loaded."""
    return _flag("OPFACADE_NVTX", os.environ.get("OPFACADE_NVTX"))


def require_sku() -> str | None:
    """OPFACADE_REQUIRE_SKU: a manifest file (`opfacade manifest freeze`) or a single SKU id; other SKUs are never selected.
    Read when a plan is first selected."""
    return _given("OPFACADE_REQUIRE_SKU")


def jit_timeout() -> float:
    """OPFACADE_JIT_TIMEOUT: the time limit of a build, or of waiting for another process's build, in seconds. Default: 600."""
    given = os.environ.get("OPFACADE_JIT_TIMEOUT") or "600"
    return _parsed("OPFACADE_JIT_TIMEOUT", given, float, "seconds above 0, at most 10^6", lambda s: 0 < s <= 1e6)


def log() -> str | None:
    """OPFACADE_LOG: api | stats | dump. Write a line before each launch, with tensor statistics, or with the call's inputs to
    OPFACADE_DUMP_DIR for `opfacade replay`; read when a plan is loaded. If a write fails, the line or dump is dropped and
    counted. Default: nothing."""
    given = os.environ.get("OPFACADE_LOG") or None
    return given and _parsed("OPFACADE_LOG", given, str, "api, stats or dump", lambda mode: mode in ("api", "stats", "dump"))


def log_dest() -> str:
    """OPFACADE_LOG_DEST: stderr, stdout, or a file name, where %p is the process id; lines for a full FIFO are dropped.
    Default: stderr."""
    return os.environ.get("OPFACADE_LOG_DEST") or "stderr"


class PlanSettings(NamedTuple):
    """The variables that each new plan reads."""

    validate: str
    crosscheck: float


PLAIN = PlanSettings("metadata", 0.0)  # without these variables


def of_plan() -> PlanSettings:
    """`validate` and `crosscheck`."""
    plain = _SET is not None and _encoded("OPFACADE_VALIDATE") not in _SET and _encoded("OPFACADE_CROSSCHECK") not in _SET
    return PLAIN if plain else PlanSettings(validate(), crosscheck())


def _given(name: str) -> str | None:
    """For variables that each selection reads: `get` takes 1.3 us for a variable that is not set, this lookup 0.1."""
    if _SET is not None and _encoded(name) not in _SET:
        return None
    return os.environ.get(name) or None


@lru_cache(maxsize=64)
def _encoded(name: str) -> object:
    return os.environ.encodekey(name)


def _share(name: str, given: str) -> float:
    """A fraction: 0, or a number whose inverse is a possible number of runs."""
    return _parsed(name, given, float, "0 or a share from 1e-9 to 1", lambda share: share == 0 or 1e-9 <= share <= 1)


def _whole(name: str, given: str) -> int:
    return _parsed(name, given, int, "a whole number from 0 up", lambda number: number >= 0)


def _flag(name: str, given: str | None) -> bool:
    words = {"": False, "0": False, "false": False, "no": False, "off": False, "1": True, "true": True, "yes": True, "on": True}
    word = (given or "").lower()
    return words[_parsed(name, word, str, "1 or 0", lambda word: word in words)]


def _parsed(name: str, given: str, kind: Callable[[str], _T], expected: str, allowed: Callable[[_T], bool]) -> _T:
    try:
        value = kind(given)
    except ValueError:
        value = None
    if value is None or not allowed(value):
        raise SettingError(f"{name} expected {expected}, got {given[:40]!r}. [OPF-E001]", code="OPF-E001")
    return value


def is_set(name: str) -> bool:
    """Whether a variable is set to a non-empty value."""
    return bool(os.environ.get(name))


def unknown() -> dict[str, str]:
    """The OPFACADE_* names that are set but not known, each with the most similar known name, if there is one."""
    docs = (value.__doc__ or "" for name, value in globals().items() if callable(value) and not name.startswith("_"))
    known = sorted(doc.partition(":")[0].partition("=")[0] for doc in docs if doc.startswith("OPFACADE_"))
    strangers = sorted(name for name in os.environ if name.startswith("OPFACADE_") and name not in known)
    return {name: next(iter(get_close_matches(name, known, 1, 0.7)), "") for name in strangers}
