"""Kernels that are compiled at their first launch: the library of a binding requests each kernel from this module
(csrc/common/launch.h)."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

import tvm_ffi


class CompileError(Exception):
    """A compiler error. It is not an AssertionError, which a test with a planted fault expects for a wrong result."""


tvm_ffi.register_error("EmulatorRefused", CompileError)  # launch.h throws this type


class _Found(ctypes.Structure):
    _fields_ = (("kernel", ctypes.c_void_p), ("launch", ctypes.c_void_p), ("refused", ctypes.c_char * 960))


_FIND = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.POINTER(_Found))
_served: list[object] = []  # keeps the functions alive that libraries call


def serve(binding: Path, find: Callable[[str], Path]) -> None:
    """Gives the library of a binding the kernel `name` from the library find(name), which is called once."""
    known: dict[bytes, tuple[int, int]] = {}

    def answer(name: bytes, found) -> None:
        try:
            if name not in known:
                library = ctypes.CDLL(str(find(name.decode())))
                known[name] = _address(library, name.decode()), _address(library, "simt_launch")
            found[0].kernel, found[0].launch = known[name]
        except CompileError as error:
            errors_first = sorted(str(error).splitlines(), key=lambda line: "error: " not in line)
            found[0].refused = "\n".join(errors_first).encode()[:950]
        except AttributeError:  # the library does not contain this kernel
            found[0].kernel = None

    called = _FIND(answer)
    _served.append(called)
    ctypes.c_void_p.in_dll(ctypes.CDLL(str(binding)), "emulated_find").value = ctypes.cast(called, ctypes.c_void_p).value


def _address(library: ctypes.CDLL, name: str) -> int:
    return ctypes.cast(getattr(library, name), ctypes.c_void_p).value
