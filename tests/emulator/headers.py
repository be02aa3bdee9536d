"""The digest of a text and of each header that it includes, with the include rules of a compiler."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence
from functools import cache

_INCLUDE = re.compile(rb"^[ \t]*#[ \t]*include[ \t]*[\"<]([^\">\n]+)[\">]", re.MULTILINE)


def digest(text: str, folders: Sequence[str]) -> str:
    """Covers the text and each header that is found in `folders`; other headers belong to the compiler."""
    found, seen = hashlib.sha256(text.encode()), set[str]()
    waiting = [(name, "") for name in _included(text.encode())]
    while waiting:
        name, beside = waiting.pop()
        path = next(
            (one for folder in (beside, *folders) if folder and os.path.isfile(one := os.path.join(folder, name))), None
        )
        if path is None or path in seen:
            continue
        seen.add(path)
        facts = os.stat(path)
        own, names = _read(path, facts.st_mtime_ns, facts.st_size)
        found.update(name.encode() + own)
        waiting += [(one, os.path.dirname(path)) for one in names]
    return found.hexdigest()


@cache
def _read(path: str, changed: int, size: int) -> tuple[bytes, tuple[str, ...]]:
    with open(path, "rb") as file:
        text = file.read()
    return hashlib.sha256(text).digest(), _included(text)


def _included(text: bytes) -> tuple[str, ...]:
    return tuple(name.decode() for name in _INCLUDE.findall(text))
