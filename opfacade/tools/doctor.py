"""Facts of this machine that matter to opfacade, and its incompatibilities, each with a fix."""

from __future__ import annotations

import ctypes
import platform
import pwd
import re
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opfacade import __version__, env
from opfacade.base.installation import install_cuda
from opfacade.core.target import of_device
from opfacade.errors import CacheError, SettingError, ToolchainError
from opfacade.jit import cache, findings, toolchain
from opfacade.jit.cache.store import read_meta

if TYPE_CHECKING:
    from collections.abc import Iterable

LEAST_PTXAS = (13, 3)
_SHOWN = 3  # how many kernels with slow code are listed by name
_READERS = (
    env.jit_jobs, env.jit_timeout, env.log, env.crosscheck, env.validate, env.telemetry_sample, env.nvtx, env.jit_disabled,
    env.jit_verbose, env.jit_debug, env.jit_lineinfo, env.jit_reload, env.jit_strict, env.allow_shared_cache,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem and its fix. severity: "error" if something will not work, "note" if something is missing."""

    severity: str
    what: str
    cure: str


@dataclass(frozen=True, slots=True)
class Diagnosis:
    versions: dict[str, str]
    compiler: dict[str, Any]
    devices: tuple[dict[str, Any], ...]
    cache: dict[str, Any]
    problems: tuple[Problem, ...]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def healthy(self) -> bool:
        return not any(problem.severity == "error" for problem in self.problems)


def diagnose() -> Diagnosis:
    """Runs all checks once. Builds nothing, writes at most the digests of compilers, and raises no OpfacadeError."""
    import torch

    versions = _versions()
    compiler, store, driver = _compiler(), _cache(), driver_cuda()
    problems = (*compiler_problems(compiler, driver), *_cache_problems(), *_torch_problems(torch.version.cuda), *_settings())
    problems += tuple(_slow_code(store.get("slow", [])))
    return Diagnosis(versions, compiler, _devices(), store, problems)


def driver_cuda() -> int:
    """The CUDA version of the driver, for example 13000 for 13.0; 0 without a driver."""
    try:
        library, found = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(0)
        library.cuDriverGetVersion(ctypes.byref(found))
    except (OSError, AttributeError):
        return 0
    return found.value


def compiler_problems(compiler: dict[str, Any], driver: int) -> Iterator[Problem]:
    """Problems of a compiler, alone and with this driver (its CUDA version; 0 without a driver)."""
    if "error" in compiler:
        cure = f"{install_cuda()}. Cached kernels and the reference still run."
        yield Problem("error", f"no compiler: {compiler['error']}", cure)
        return
    ptxas, headers, nvcc = compiler["ptxas"], compiler["headers"], compiler["nvcc_release"]
    if tuple(ptxas) < LEAST_PTXAS:
        what = f"ptxas {_dotted(ptxas)} miscompiles wgmma with A in registers; kernels that use it are refused"
        yield Problem("error", what, f"{install_cuda()}, or set OPFACADE_NVCC to an nvcc of 13.3 or later")
    if headers[0] and nvcc[0] and headers[0] != nvcc[0]:
        what = f"nvcc {_dotted(nvcc)} uses CUDA headers of {_dotted(headers)} ({compiler['include']})"
        yield Problem("error", what, "install a toolkit whose parts are of one major release")
    if driver and ptxas[0] > driver // 1000:
        what = f"the driver knows CUDA {driver // 1000}, the compiler is of CUDA {ptxas[0]}: its kernels will not load"
        yield Problem("error", what, f"update the driver, or set OPFACADE_NVCC to a CUDA {driver // 1000} compiler")


def unknown_names() -> tuple[str, ...]:
    """A sentence for each OPFACADE_* variable that is set but not read."""
    return tuple(
        f"{name} is set, and nothing reads it." + (f" Did you mean {nearest}?" if nearest else "")
        for name, nearest in env.unknown().items()
    )


def _versions() -> dict[str, str]:
    import torch
    import tvm_ffi

    found = {"opfacade": __version__, "python": platform.python_version(), "torch": str(torch.__version__)}
    found |= {"torch CUDA": torch.version.cuda or "none", "tvm-ffi": tvm_ffi.__version__, "driver": _driver()}
    return {**found, "platform": platform.platform(), "executable": sys.executable}


def _driver() -> str:
    try:
        text = Path("/proc/driver/nvidia/version").read_text()
    except OSError:
        return "none"
    match = re.search(r"\b\d+\.\d+(?:\.\d+)?\b", text)
    return match[0] if match else text.strip()


def _compiler() -> dict[str, Any]:
    try:
        tools = toolchain.find(cache.root() / "toolchain.json")  # may be unsafe: reported separately
        found = {"nvcc": str(tools.nvcc), "origin": tools.origin, "include": str(tools.cuda_include), "host": str(tools.cxx)}
        releases = {"nvcc_release": tools.nvcc_release, "ptxas": tools.ptxas_release, "headers": _headers(tools.cuda_include)}
    except (ToolchainError, OSError) as error:
        return {"error": str(error)}
    disassembler = toolchain.find_disassembler(tools)
    return {**found, **releases, "host_version": _host(tools.cxx), "disassembler": str(disassembler) if disassembler else None}


def _headers(include: Path) -> tuple[int, int]:
    match = re.search(r"#define CUDA_VERSION (\d+)", (include / "cuda.h").read_text(errors="replace"))
    number = int(match[1]) if match else 0
    return number // 1000, number % 1000 // 10


def _host(cxx: Path) -> str:
    try:
        told = subprocess.run([cxx, "--version"], capture_output=True, text=True, timeout=20, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return "does not run"
    return (told.splitlines() or ["says nothing"])[0]


def _devices() -> tuple[dict[str, Any], ...]:
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    targets = ((index, of_device(index)) for index in range(count))
    return tuple({"name": torch.cuda.get_device_name(i), "arch": t.arch, "sm_count": t.sm_count} for i, t in targets)


def _cache() -> dict[str, Any]:
    place = cache.root()
    facts: dict[str, Any] = {"directory": str(place), "exists": place.is_dir()}
    if not place.is_dir():
        return facts
    info = place.stat()
    files = [path.lstat().st_size for path in place.rglob("*") if path.is_file()]
    entries = list((place / "obj").glob("*/*/meta.json"))
    return {
        **facts,
        "owner": _owner(info.st_uid),
        "mode": f"{stat.S_IMODE(info.st_mode):04o}",
        "bytes": sum(files),
        "entries": len(entries),
        "slow": sorted(filter(None, map(_slow_entry, entries))),
    }


def _slow_entry(meta: Path) -> str:
    """The kernel of an entry and the reason why its code is slow; "" if it is not slow."""
    found = findings.of_library(meta)
    return f"{read_meta(meta.parent).get('sku') or meta.parent.name}: {'; '.join(map(str, found))}" if found else ""


def _slow_code(slow: list[str]) -> Iterator[Problem]:
    if slow:
        more = f", and {len(slow) - _SHOWN} more" if len(slow) > _SHOWN else ""
        what = f"{len(slow)} kernels of the cache are right and slower than they could be: {', '.join(slow[:_SHOWN])}{more}"
        yield Problem("note", what, "none is needed; a newer ptxas may do better, and `opfacade cache ls --resources` has all")


def _owner(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _cache_problems() -> Iterator[Problem]:
    try:
        cache.shared().require_private()
    except CacheError as error:
        yield Problem("error", f"the cache is not private: {error}", "as the message says, or set OPFACADE_CACHE_DIR")


def _torch_problems(cuda: str | None) -> Iterator[Problem]:
    if cuda is None:
        cure = "install a CUDA build of torch to run kernels; building them for other machines works"
        yield Problem("note", "torch is a build without CUDA, so only the reference backend runs", cure)


def _settings() -> Iterator[Problem]:
    for line in unknown_names():
        yield Problem("note", line, "unset it; `opfacade env` lists what is read")
    for reader in _READERS:
        try:
            reader()
        except SettingError as error:
            yield Problem("error", str(error), "unset it, or give it such a value")


def _dotted(release: Iterable[object]) -> str:
    return ".".join(map(str, release))
