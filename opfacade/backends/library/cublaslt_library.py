"""torch's copy of cuBLASLt: its version from package metadata, and the loaded library with a handle for each device.

torch for CUDA depends on cuBLAS, so the library is in every process that has a GPU. A second copy is never opened.
"""

from __future__ import annotations

import ctypes
import os
import re
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, requires, version
from typing import TYPE_CHECKING, Any, TypeAlias

from opfacade.backends.library import cublaslt_abi as abi
from opfacade.base.fork_lock import ForkLock
from opfacade.core.candidate import Reason
from opfacade.errors import LibraryError

if TYPE_CHECKING:
    import torch

_PACKAGES = ("nvidia-cublas", "nvidia-cublas-cu13", "nvidia-cublas-cu12")
MISSING = "OPF-S025"  # reason code: the library is not installed
Number: TypeAlias = "ctypes._SimpleCData[Any]"
_RTLD_NOLOAD = getattr(os, "RTLD_NOLOAD", 0)


@lru_cache(maxsize=1)
def installed() -> str | None:
    """The version of torch's cuBLAS, such as "13.1.0.3"; None if its package is not installed. Opens no library."""
    found = {name: one for name in _PACKAGES if (one := _version(name)) is not None}
    wanted = [name for name in found if name in _needs_of_torch()]
    return found[wanted[0]] if wanted else next(iter(found.values()), None)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _needs_of_torch() -> set[str]:
    """The names of the packages that torch depends on."""
    try:
        lines = requires("torch") or []
    except PackageNotFoundError:
        return set()
    return {found[0] for line in lines if (found := re.match(r"[A-Za-z0-9._-]+", line))}


def reasons() -> tuple[Reason, ...]:
    """The reason to decline if the library is missing."""
    if installed() is not None:
        return ()
    hint = "Install torch for CUDA from PyPI."
    return (Reason(MISSING, "cublaslt", "not installed", "the package of cuBLAS that torch depends on", hint),)


def failed(code: str, what: str, status: int | None = None) -> LibraryError:
    name = "" if status is None else f": {abi.STATUSES.get(status, f'status {status}')}"
    error = LibraryError(f"cublaslt: {what}{name} [{code}]", code=code)
    error.library, error.status = "cublaslt", status
    return error


class Library:
    """The functions of one loaded library. A call that fails raises LibraryError."""

    def __init__(self, library: ctypes.CDLL) -> None:
        for name, (result, arguments) in abi.PROTOTYPES.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
        self.functions: Any = library
        self._handles: dict[int | None, int] = {}
        self._lock = ForkLock()

    def call(self, name: str, *arguments: object) -> None:
        status = getattr(self.functions, name)(*arguments)
        if status != abi.SUCCESS:
            raise failed("OPF-L004", f"{name} failed", status)

    def made(self, name: str, *arguments: object) -> int:
        """Call a function that creates an object, and return its address."""
        found = ctypes.c_void_p()
        self.call(name, ctypes.byref(found), *arguments)
        return found.value or 0

    def set(self, name: str, what: int, attribute: int, value: Number) -> None:
        """Set an attribute of a description, a layout or a preference."""
        self.call(f"cublasLt{name}SetAttribute", what, attribute, ctypes.byref(value), ctypes.sizeof(value))

    def asked(self, name: str, algo: abi.Algo, attribute: int, kind: type[Number]) -> int:
        """Get an attribute of an algorithm. kind: the type of the attribute."""
        value, written = kind(), ctypes.c_size_t()
        self.call(
            f"cublasLtMatmulAlgo{name}GetAttribute",
            ctypes.byref(algo),
            attribute,
            ctypes.byref(value),
            ctypes.sizeof(value),
            ctypes.byref(written),
        )
        return int(value.value)

    def handle(self, device: torch.device) -> int:
        """The handle of a device, which must be the current device."""
        with self._lock:
            if device.index not in self._handles:
                self._handles[device.index] = self.made("cublasLtCreate")
            return self._handles[device.index]


@lru_cache(maxsize=4)
def load(wanted: str) -> Library:
    """The library that torch has loaded. LibraryError if there is none, or if its version is not that of the SKU."""
    import torch  # noqa: F401  # brings the library into the process

    library = Library(_opened(wanted))
    _require_version(library.functions.cublasLtGetVersion(), wanted)
    return library


def _opened(wanted: str) -> ctypes.CDLL:
    name = f"libcublasLt.so.{wanted.partition('.')[0]}"
    try:
        return ctypes.CDLL(name, mode=os.RTLD_NOW | _RTLD_NOLOAD)
    except OSError:
        raise failed("OPF-L001", f"torch has not loaded {name}, of version {wanted}") from None


def _require_version(number: int, wanted: str) -> None:
    """number: 10000 * major + 100 * minor + patch."""
    parts = (*(int(part) for part in wanted.split(".")[:3]), 0, 0)[:3]
    if number != parts[0] * 10000 + parts[1] * 100 + parts[2]:
        raise failed("OPF-L002", f"the loaded library has version number {number}, its package says {wanted}")
