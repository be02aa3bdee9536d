"""Every OPFACADE_* environment variable, one function each. Nothing else in the package reads os.environ."""

from __future__ import annotations

import os
from pathlib import Path


def cache_dir() -> Path:
    """OPFACADE_CACHE_DIR: where compiled kernels live. Default: the user's cache directory."""
    given = os.environ.get("OPFACADE_CACHE_DIR")
    if given:
        return Path(given)
    import platformdirs

    return Path(platformdirs.user_cache_dir("opfacade", appauthor=False))


def allow_shared_cache() -> bool:
    """OPFACADE_ALLOW_SHARED_CACHE=1: trust a cache that other users own or may write; whoever writes it runs code as you."""
    return os.environ.get("OPFACADE_ALLOW_SHARED_CACHE", "") not in ("", "0")


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
    return os.environ.get("OPFACADE_DISABLE_JIT", "") not in ("", "0")


def jit_verbose() -> bool:
    """OPFACADE_JIT_VERBOSE=1: print compile commands and the compiler's output."""
    return os.environ.get("OPFACADE_JIT_VERBOSE", "") not in ("", "0")


def jit_jobs() -> int | None:
    """OPFACADE_JIT_JOBS: parallel compile jobs of one build. Default: ninja's choice."""
    given = os.environ.get("OPFACADE_JIT_JOBS")
    return int(given) if given else None


def source_root() -> Path | None:
    """OPFACADE_SOURCE_ROOT: a checkout whose kernels/ and csrc/ are used in place of the installed ones."""
    given = os.environ.get("OPFACADE_SOURCE_ROOT")
    return Path(given) if given else None


def validate() -> str:
    """OPFACADE_VALIDATE: off | metadata | indices | full. How much a run checks; read when a plan is made. Default: metadata."""
    return os.environ.get("OPFACADE_VALIDATE") or "metadata"


def crosscheck() -> float:
    """OPFACADE_CROSSCHECK: the share of runs, 0 to 1, that is repeated on the reference; read when a plan is made. Default: 0."""
    given = os.environ.get("OPFACADE_CROSSCHECK")
    return min(1.0, max(0.0, float(given))) if given else 0.0


def dump_dir() -> Path:
    """OPFACADE_DUMP_DIR: where a failed cross-check leaves its inputs. Default: `dumps` in the cache directory."""
    given = os.environ.get("OPFACADE_DUMP_DIR")
    return Path(given) if given else cache_dir() / "dumps"


def jit_timeout() -> float:
    """OPFACADE_JIT_TIMEOUT: seconds that one build, or the wait for another process's build, may take. Default: 600."""
    return float(os.environ.get("OPFACADE_JIT_TIMEOUT") or 600)
