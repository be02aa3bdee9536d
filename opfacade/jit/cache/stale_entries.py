"""Stale entries: staging directories of killed builders, and entries that failed their check."""

from __future__ import annotations

import fcntl
import os
import shutil
import time
import uuid
from contextlib import suppress
from pathlib import Path

from opfacade.jit.cache.files import make_private

_UNLOCKED_GRACE_SECONDS = 60.0
_MAX_QUARANTINED = 20


def discard(path: Path) -> None:
    """Remove a file, a link or a tree."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


def set_aside(entry: Path, quarantine: Path) -> None:
    """Move a broken entry to the quarantine, which keeps the last few."""
    make_private(quarantine)
    for old in sorted(quarantine.iterdir(), key=lambda path: path.lstat().st_ctime)[: -_MAX_QUARANTINED + 1]:
        discard(old)
    with suppress(FileNotFoundError):
        entry.rename(quarantine / f"{entry.name}.{uuid.uuid4().hex}")


def sweep(tmp: Path) -> int:
    """Remove staging directories without an owner; returns their number."""
    swept = 0
    with suppress(OSError):
        for path in list(tmp.iterdir()):
            if _abandoned(path):
                discard(path)
                swept += 1
    return swept


def _abandoned(path: Path) -> bool:
    """Whether no process uses a staging directory. A directory younger than a minute counts as used, because it may not be
    locked yet."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return time.time() - os.fstat(fd).st_ctime > _UNLOCKED_GRACE_SECONDS
    except OSError:
        return False
    finally:
        os.close(fd)
