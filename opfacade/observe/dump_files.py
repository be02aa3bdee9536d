"""Directories and files of dumps: for their user only, with unpredictable names, within two limits.

All dumps of a process count against OPFACADE_DUMP_MAX_MB and OPFACADE_DUMP_MAX_COUNT, from any feature. Failures are an
OSError, a RuntimeError of torch, or a MemoryError: `FAILURES`.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

from opfacade import env
from opfacade.base import regular_files
from opfacade.base.fork_lock import ForkLock

FAILURES = (OSError, RuntimeError, MemoryError)
# Beyond these, what torch.load makes of a file that was damaged or forged; it has no error of its own.
UNREADABLE = (
    *FAILURES,
    ValueError,
    EOFError,
    UnpicklingError,
    LookupError,
    TypeError,
    AttributeError,
    ArithmeticError,
    AssertionError,
)
MOST = 1 << 42  # bytes of a file of tensors

_guard = ForkLock()
_used = [0, 0]  # dumps, and bytes of their tensors


@dataclass(frozen=True, slots=True)
class Limits:
    """How much one process may dump in all."""

    count: int
    megabytes: int

    @classmethod
    def current(cls) -> Limits:
        """As the variables say; SettingError if they are invalid."""
        return cls(env.dump_max_count(), env.dump_max_mb())

    def take(self, size: int) -> None:
        """Count one dump of `size` bytes; OSError, which names the variable, where it would pass a limit."""
        with _guard:
            if _used[0] >= self.count:
                raise OSError(errno.EDQUOT, f"OPFACADE_DUMP_MAX_COUNT={self.count} is used up")
            if _used[1] + size > self.megabytes * 10**6:
                raise OSError(errno.EDQUOT, f"OPFACADE_DUMP_MAX_MB={self.megabytes} does not permit {size} more bytes")
            _used[0], _used[1] = _used[0] + 1, _used[1] + size

    def give_back(self, size: int) -> None:
        """A dump of `size` bytes came to nothing."""
        with _guard:
            _used[0], _used[1] = _used[0] - 1, _used[1] - size


@contextmanager
def new_directory(prefix: str, limits: Limits, size: int) -> Iterator[Path]:
    """A directory of mode 0700 in OPFACADE_DUMP_DIR, for `size` bytes; it is gone again if the block raises."""
    limits.take(size)
    place = None
    try:
        base = env.dump_dir()
        base.mkdir(parents=True, mode=0o700, exist_ok=True)
        place = Path(tempfile.mkdtemp(prefix=prefix, dir=base))
        yield place
    except BaseException:
        limits.give_back(size)
        if place is not None:
            shutil.rmtree(place, ignore_errors=True)  # half a dump on a full disk only takes room
        raise


def write(path: Path, data: bytes) -> None:
    """A new file of mode 0600; there in whole or not at all."""
    with _whole(path) as file:
        file.write(data)


def save(path: Path, tensors: object) -> None:
    """The same by torch.save."""
    import torch

    with _whole(path) as file:
        torch.save(tensors, file)


@contextmanager
def _whole(path: Path) -> Iterator[Any]:
    aside = path.with_name(f".{path.name}")
    try:
        handle = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(handle, "wb") as file:
            yield file
        os.rename(aside, path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise


def load(path: str | os.PathLike[str], device: str | None = None) -> Any:
    """Load a file of `save`, tensors on `device` or else on their original one. Raises one of UNREADABLE if the file is
    damaged."""
    import torch

    with regular_files.open_regular(path, MOST) as file:
        return torch.load(file, weights_only=True, map_location=device)
