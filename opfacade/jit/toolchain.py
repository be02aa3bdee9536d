"""Finds and identifies the compilers.

A compiler is identified by the content of its programs, never by its path or its reported version. Hashing takes a second, so
digests are cached in the cache directory by (path, size, mtime, inode): a warm load calls `stat` four times and starts no
process.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from opfacade import env
from opfacade.base import regular_files, strict_json
from opfacade.base.installation import install_cuda
from opfacade.errors import ToolchainError
from opfacade.jit.supervisor import ENVIRONMENT

_DEFAULT = Path("/usr/local/cuda/bin/nvcc")
_PROGRAMS = ("bin/nvcc", "nvvm/bin/cicc", "bin/ptxas", "bin/cudafe++")
_RELEASE = re.compile(rb"V([0-9]+)\.([0-9]+)\.[0-9]+[\0\n]")
_NVCC_IN_SCRIPT = re.compile(r"(/[^\s\"']+/bin/nvcc)\b")


@dataclass(frozen=True)
class Toolchain:
    """The compilers of one build. `nvcc` is the real program, not a wrapper of it."""

    nvcc: Path
    cxx: Path
    memo: Path
    origin: str = ""  # how it was found: "OPFACADE_NVCC", "pip", "CUDA_HOME", "PATH" or "default"

    @property
    def home(self) -> Path:
        return self.nvcc.parent.parent

    @cached_property
    def cuda_include(self) -> Path:
        """The directory with cuda.h and cuda_runtime.h: that of the toolkit, or that of neighbouring pip packages."""
        roots = [self.home, self.home / "targets/x86_64-linux", self.home / "targets/sbsa-linux"]
        roots += [self.home.parent / "cuda_runtime"]
        for root in roots:
            if all(os.path.isfile(root / "include" / name) for name in ("cuda.h", "cuda_runtime.h")):
                return root / "include"
        looked = ", ".join(f"{root}/include" for root in roots)
        raise ToolchainError(
            f"expected cuda.h and cuda_runtime.h in {looked}, found in none of them. {install_cuda()} [OPF-J011]"
        )

    @cached_property
    def identity(self) -> dict[str, str]:
        """Digest by program: identity of the compilers and the CUDA headers, independent of their names."""
        programs = {Path(name).name: self.home / name for name in _PROGRAMS}
        programs |= {"c++": self.cxx, "cuda.h": self.cuda_include / "cuda.h"}
        memo = _Memo(self.memo)
        programs |= {path.name: path for path in memo.parts(self.cxx)}
        present = {label: path for label, path in programs.items() if path.is_file()}
        memo.learn(present.values())
        digests = {label: memo.facts(path)["sha256"] for label, path in present.items()}
        memo.save()
        return digests

    @cached_property
    def ptxas_release(self) -> tuple[int, int]:
        """(13, 3) for ptxas 13.3.x; (0, 0) if its release is unknown."""
        return self._release(self.home / "bin/ptxas")

    @cached_property
    def nvcc_release(self) -> tuple[int, int]:
        """(13, 5) for nvcc 13.5.x; (0, 0) if its release is unknown."""
        return self._release(self.nvcc)

    def _release(self, program: Path) -> tuple[int, int]:
        if not program.is_file():
            return 0, 0
        memo = _Memo(self.memo)
        major, minor = memo.facts(program)["release"]
        memo.save()
        return major, minor


def find(memo: Path) -> Toolchain:
    """The toolchain of this process, with digests cached in the file `memo`. Raises ToolchainError, which lists the probed
    locations."""
    probed: list[str] = []
    for origin, path in _candidates():
        probed.append(f"{origin}: {path}")
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return Toolchain(_real_nvcc(path.resolve(), _Memo(memo)), _find_cxx(), memo, origin)
        if origin == "OPFACADE_NVCC":  # an invalid explicit choice is an error
            raise ToolchainError(f"OPFACADE_NVCC is {path}, which is not a program. [OPF-J010]")
    raise ToolchainError(f"no CUDA compiler found. Probed: {'; '.join(probed)}. Install one: {install_cuda()} [OPF-J010]")


def tvm_ffi_paths() -> tuple[list[Path], Path]:
    """(include directories, library) of tvm-ffi."""
    from tvm_ffi import libinfo

    includes = {Path(libinfo.find_include_path()), Path(libinfo.find_dlpack_include_path())}
    return sorted(includes), Path(libinfo.find_libtvm_ffi())


def _candidates() -> Iterator[tuple[str, Path]]:
    if given := env.nvcc():
        yield "OPFACADE_NVCC", Path(given)
    for home in _pip_homes():
        yield "pip", home / "bin/nvcc"
    if given := env.cuda_home():
        yield "CUDA_HOME", Path(given) / "bin/nvcc"
    if on_path := shutil.which("nvcc", path=env.search_path()):
        yield "PATH", Path(on_path)
    else:
        yield "PATH", Path("nvcc")
    yield "default", _DEFAULT


def find_ninja() -> Path:
    """The ninja of its Python package, otherwise the one on PATH: in some environments, the package has no directory."""
    import ninja

    found = shutil.which("ninja", path=os.pathsep.join([*filter(None, [ninja.BIN_DIR]), env.search_path()]))
    if not found:
        raise ToolchainError("ninja is neither in its package nor on PATH. Install it: pip install ninja [OPF-J010]")
    return Path(found).absolute()


def find_disassembler(tools: Toolchain) -> Path | None:
    """nvdisasm or cuobjdump: from the compiler's directory, from pip (nvidia-cuda-nvdisasm), or on PATH; None if there is
    none."""
    folders = [tools.home / "bin", *(home / "bin" for home in _pip_homes())]
    path = os.pathsep.join([*map(str, folders), env.search_path()])
    found = shutil.which("nvdisasm", path=path) or shutil.which("cuobjdump", path=path)
    return Path(found) if found else None


def _pip_homes() -> list[Path]:
    """Toolkits in site-packages, newest major version first: nvidia/cu13 and so on, the layout since CUDA 13."""
    homes = []
    for site in _nvidia_packages():
        majors = sorted(site.glob("cu[0-9][0-9]"), reverse=True) or [site / "cu13"]
        homes += [*majors, site / "cuda_nvcc"]
    return homes


def _nvidia_packages() -> list[Path]:
    spec = importlib.util.find_spec("nvidia")
    return [Path(place) for place in (spec.submodule_search_locations or ())] if spec else []


def _find_cxx() -> Path:
    name = env.cxx()
    found = shutil.which(name, path=env.search_path())
    if not found:
        raise ToolchainError(f"no C++ compiler {name} on PATH. Install g++, or set OPFACADE_CXX. [OPF-J010]")
    return Path(found).absolute()  # not resolved, because a compiler may depend on the name by which it is called


def _real_nvcc(path: Path, memo: _Memo) -> Path:
    """The nvcc that `path` is or calls: next to a wrapper script, hashing would use the wrong toolkit."""
    with path.open("rb") as file:
        head = file.read(65536)
    if not head.startswith(b"#!"):
        return path
    text = head.decode(errors="replace")
    named = [Path(found) for found in _NVCC_IN_SCRIPT.findall(text)] or [Path(top) / "bin/nvcc" for top in memo.tops(path)]
    for target in named:
        if target.is_file() and target.resolve() != path:
            return _real_nvcc(target.resolve(), memo)
    raise ToolchainError(f"{path} is a script, and the nvcc that it calls was not found. Set OPFACADE_NVCC. [OPF-J012]")


def _asked(script: Path) -> list[str]:
    """The toolkit of a script that contains no path: the `TOP` of a dry run. Only this function starts a process."""
    try:
        told = subprocess.run(
            [script, "--dryrun", "-cubin", "-x", "cu", "/dev/null"], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return re.findall(r"^#\$ TOP=(.+)$", told.stderr, re.MULTILINE)


def _parts(cxx: Path) -> list[str]:
    """The compiler that a C++ driver calls. It is hashed too, because two releases may have identical drivers."""
    try:
        told = subprocess.run(
            [str(cxx), "-print-prog-name=cc1plus"],
            cwd="/proc",  # a directory without write permission, for any program configured as compiler
            env=ENVIRONMENT,
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        ).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [told] if os.path.isabs(told) else []  # a driver without a compiler of this name repeats the name


def _examine(program: Path) -> dict[str, Any]:
    data = program.read_bytes()
    release = _RELEASE.search(data)
    numbers = [int(release[1]), int(release[2])] if release else [0, 0]
    return {"sha256": hashlib.sha256(data).hexdigest(), "release": numbers}


class _Memo:
    """Cached facts about big files, valid while path, size, mtime and inode are unchanged. If the cache file is lost, hashing
    takes a second."""

    def __init__(self, path: Path) -> None:
        self.path, self.dirty = path, False
        try:
            loaded = strict_json.loads(regular_files.read(path))
        except (OSError, ValueError):
            loaded = {}
        self.known: dict[str, Any] = loaded if isinstance(loaded, dict) else {}

    def facts(self, program: Path) -> dict[str, Any]:
        """The `sha256` of a program, and its `release`."""
        return self._remembered(program, {"sha256", "release"}, _examine)

    def learn(self, programs: Iterable[Path]) -> None:
        """Identify programs in parallel threads, because hashing releases the GIL."""
        unknown = [path for path in programs if "sha256" not in self._known(path)]
        threads = [threading.Thread(target=self._try, args=(path,)) for path in unknown]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _try(self, program: Path) -> None:
        with suppress(OSError):  # the caller asks again and gets the error
            self.facts(program)

    def parts(self, cxx: Path) -> list[Path]:
        """Programs that a C++ driver calls, as it last reported."""
        found: list[str] = self._remembered(cxx, {"parts"}, lambda path: {"parts": _parts(path)})["parts"]
        return [Path(path) for path in found]

    def tops(self, script: Path) -> list[str]:
        """The toolkits that a wrapper script named when it was last run."""
        found: list[str] = self._remembered(script, {"tops"}, lambda path: {"tops": _asked(path)})["tops"]
        self.save()
        return found

    def _remembered(self, path: Path, wanted: set[str], find: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
        known = self._known(path)
        if not wanted <= known.keys():
            known = {**known, **find(path.resolve())}
            self.known[str(path.resolve())], self.dirty = known, True
        return known

    def _known(self, path: Path) -> dict[str, Any]:
        """Cached facts about the file at `path`, at least its stamp."""
        real = path.resolve()
        stat = real.stat()
        stamp = [stat.st_size, stat.st_mtime_ns, stat.st_ino]
        known = self.known.get(str(real))
        return known if isinstance(known, dict) and known.get("stamp") == stamp else {"stamp": stamp}

    def save(self) -> None:
        if not self.dirty:
            return
        aside = self.path.with_name(f".{self.path.name}.{uuid.uuid4().hex}")
        try:
            aside.write_text(json.dumps(self.known, indent=1))
            aside.replace(self.path)
        except OSError:
            return  # with a read-only cache, files are hashed again
        self.dirty = False
