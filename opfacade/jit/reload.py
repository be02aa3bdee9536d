"""Detects changed kernel sources, for kernel authors; enabled by OPFACADE_JIT_RELOAD."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from opfacade.jit.spec import source_root


def signature() -> int:
    """A number that changes with the size, time or name of any file under kernels/ and csrc/. Reads no content."""
    root = source_root()
    return hash(tuple(entry for folder in ("csrc", "kernels") for entry in _stamps(root / folder)))


def _stamps(folder: Path) -> Iterator[tuple[str, int, int, int]]:
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except FileNotFoundError:  # an editor may be replacing it; the next call sees the new file
        return
    for entry in entries:
        if entry.is_dir():
            yield from _stamps(folder / entry.name)
        else:
            stat = entry.stat()
            yield entry.name, stat.st_size, stat.st_mtime_ns, stat.st_ino
