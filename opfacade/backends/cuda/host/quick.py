"""Replay of calls in the host library (csrc/host/replay_path.h): the addresses in CPython that it needs to read a bundle
itself.

Each address and offset is tested first. An interpreter with another object layout uses only the fast path of direct.py.
"""

from __future__ import annotations

import ctypes
import platform
import struct
import sysconfig
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from opfacade.core.candidate import NO_FAST_PATHS

_WORD = struct.calcsize("P")
# Functions of CPython's stable ABI, in the order of bundle.h.
_FUNCTIONS = ("PyObject_Vectorcall", "PyErr_Clear", "Py_DecRef", "PyEval_SaveThread", "PyEval_RestoreThread")


@lru_cache(maxsize=1)
def interpreter() -> tuple[int, ...] | None:
    """The addresses that bundle.h calls or compares with; None if replay is not possible."""
    import torch

    api = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    if api is None or not _is_known(object(), platform.python_implementation()):
        return None
    functions = [ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value or 0 for name in _FUNCTIONS]
    return (*functions, id(True), id(None), id(torch.Tensor), id(torch.nn.Parameter), _pointer_in(api))


@lru_cache(maxsize=64)
def slots_of(kind: type, fields: tuple[str, ...]) -> tuple[int, ...] | None:
    """Offsets of the fields from the start of an object of this type; None if they cannot be determined."""
    probe: Any = object.__new__(kind)
    marks = [object() for _ in fields]
    for name, mark in zip(fields, marks, strict=True):
        object.__setattr__(probe, name, mark)
    places = range(2 * _WORD, kind.__basicsize__ - _WORD + 1, _WORD)
    found = {_word_at(id(probe) + place): place for place in places}
    return tuple(found[id(mark)] for mark in marks) if all(id(mark) in found for mark in marks) else None


def make(host: Any, kind: type, fields: tuple[str, ...], guarded: list[bool], signature: tuple[Any, ...]) -> Callable[..., Any]:
    """The replay function for bundles of type `kind`, whose first fields are tensors, guarded or not. Called with id(guard), it
    adds the guard."""
    python = interpreter()
    slots = slots_of(kind, fields) if python is not None else None
    if python is None or slots is None:
        return NO_FAST_PATHS.replay
    try:
        bits = sum(1 << i for i, yes in enumerate(guarded) if yes)
        replay = host.replay(*python, id(kind), len(guarded), len(fields), bits, *slots, *signature)
    except ValueError:  # DLPack cannot borrow torch's tensors
        return NO_FAST_PATHS.replay
    replay.release_gil = False  # it releases the GIL itself, around the launch
    return replay  # type: ignore[no-any-return]


def _is_known(probe: object, implementation: str) -> bool:
    """Whether objects begin with a reference count and their type, and the GIL exists."""
    free_threaded = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
    return implementation == "CPython" and _WORD == 8 and not free_threaded and _word_at(id(probe) + _WORD) == id(type(probe))


def _pointer_in(capsule: object) -> int:
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    return int(get(capsule, b"dlpack_exchange_api") or 0)


def _word_at(address: int) -> int:
    return ctypes.c_void_p.from_address(address).value or 0
