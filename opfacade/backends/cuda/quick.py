"""What csrc/common/quick.h is told of Python: where its functions are, and where bundles keep their fields.

A binding that knows reads the tensors of a bundle itself. Everything that is told is tried out first, so an interpreter that
lays out its objects otherwise has the short way of direct.py and no quick one.
"""

from __future__ import annotations

import ctypes
import platform
import struct
import sysconfig
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from opfacade.registry import NO_SHORT_WAYS

_WORD = struct.calcsize("P")
# Of CPython's stable interface, in the order of bundle.h.
_FUNCTIONS = ("PyObject_Vectorcall", "PyErr_Clear", "Py_DecRef", "PyEval_SaveThread", "PyEval_RestoreThread")


@lru_cache(maxsize=1)
def interpreter() -> tuple[int, ...] | None:
    """Addresses of what bundle.h calls and compares with; None where a quick way cannot be."""
    import torch

    api = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    if api is None or not _is_known(object(), platform.python_implementation()):
        return None
    functions = [ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value or 0 for name in _FUNCTIONS]
    return (*functions, id(True), id(None), id(torch.Tensor), id(torch.nn.Parameter), _pointer_in(api))


@lru_cache(maxsize=64)
def slots_of(kind: type, fields: tuple[str, ...]) -> tuple[int, ...] | None:
    """How far behind an object of this type its fields are; None where they are not found."""
    probe: Any = object.__new__(kind)
    marks = [object() for _ in fields]
    for name, mark in zip(fields, marks, strict=True):
        object.__setattr__(probe, name, mark)
    places = range(2 * _WORD, kind.__basicsize__ - _WORD + 1, _WORD)
    found = {_word_at(id(probe) + place): place for place in places}
    return tuple(found[id(mark)] for mark in marks) if all(id(mark) in found for mark in marks) else None


def make(
    module: Any, kind: type, fields: tuple[str, ...], guarded: list[bool], contract: tuple[Any, ...]
) -> Callable[..., Any]:
    """The quick way of bundles of a type, the first fields of which are tensors, guarded or not; with (id(a guard)) it is told
    the next to ask."""
    python = interpreter()
    slots = slots_of(kind, fields) if python is not None else None
    if python is None or slots is None:
        return NO_SHORT_WAYS.quick
    try:
        bits = sum(1 << i for i, yes in enumerate(guarded) if yes)
        quick = module.quick(*python, id(kind), len(guarded), len(fields), bits, *slots, *contract)
    except ValueError:  # torch's tensors cannot be lent
        return NO_SHORT_WAYS.quick
    quick.release_gil = False  # it lets go of it for the launch alone
    return quick  # type: ignore[no-any-return]


def _is_known(probe: object, implementation: str) -> bool:
    """Objects begin with a count and their type, and one thread at a time runs Python."""
    free_threaded = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
    return implementation == "CPython" and _WORD == 8 and not free_threaded and _word_at(id(probe) + _WORD) == id(type(probe))


def _pointer_in(capsule: Any) -> int:
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    return int(get(capsule, b"dlpack_exchange_api") or 0)


def _word_at(address: int) -> int:
    return ctypes.c_void_p.from_address(address).value or 0
