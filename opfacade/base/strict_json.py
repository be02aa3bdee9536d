"""Strict JSON: unique names in an object, bounded depth, finite numbers of bounded length, valid Unicode text.

A repeated name in an object is refused; the json module would silently use the last value. Every failure is a ValueError, even
where json raises RecursionError.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any, NoReturn

MAX_DEPTH = 100  # nested objects and arrays; the deepest expression in a workload has about 40
MAX_DIGITS = 40  # digits of an integer; 64 bits need 20


def loads(text: str | bytes | bytearray) -> Any:
    """The value of a JSON text; bytes are read as UTF-8. ValueError if it is not strict JSON, TypeError if it is neither str
    nor bytes."""
    if isinstance(text, (bytes, bytearray)):
        text = text.decode()
    try:
        value = json.loads(text, object_pairs_hook=_object, parse_int=_integer, parse_float=_real, parse_constant=_no_constant)
    except RecursionError:
        raise ValueError(f"objects and arrays nested more than {MAX_DEPTH} deep") from None
    _require_plain(value)
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for i, name in enumerate(names) if name in names[:i])
        raise ValueError(f"the duplicate name {twice[:40]!r} in an object")
    return found


def _integer(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"an integer with more than {MAX_DIGITS} digits")
    return int(digits)


def _real(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise ValueError(f"the number {digits[:40]}, which exceeds float64")
    return value


def _no_constant(word: str) -> NoReturn:
    raise ValueError(f"{word}, which is not a JSON number")


def _require_plain(value: object) -> None:
    """Raises ValueError if a value is nested too deeply or contains text that is not Unicode. Works level by level, without
    recursion."""
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        for item in level:
            if isinstance(item, str) and not item.isascii():
                item.encode()
        level = [inner for item in level for inner in _inside(item)]
        if not level:
            return
    raise ValueError(f"objects and arrays nested more than {MAX_DEPTH} deep")


def _inside(value: object) -> Iterable[Any]:
    if isinstance(value, dict):
        return (*value, *value.values())
    return value if isinstance(value, list) else ()
