"""Directories and files of dumps: readable only by the user, with unpredictable names, and limited in number and size.

All dumps of a process, from any feature, count against OPFACADE_DUMP_MAX_MB and OPFACADE_DUMP_MAX_COUNT. Failures are an
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
# All errors that torch.load raises for a damaged or forged file; it has no error class for this.
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
MOST = 1 << 42  # maximum size of a file of tensors, in bytes

_guard = ForkLock()
_used = [0, 0]  # number of dumps, and bytes of their tensors


@dataclass(frozen=True, slots=True)
class Limits:
    """The maximum number and size of all dumps of a process."""

    count: int
    megabytes: int

    @classmethod
    def current(cls) -> Limits:
        """The limits from the environment; SettingError if a variable is invalid."""
        return cls(env.dump_max_count(), env.dump_max_mb())

    def take(self, size: int) -> None:
        """Counts one dump of `size` bytes. Raises OSError, naming the variable, if the dump would exceed a limit."""
        with _guard:
            if _used[0] >= self.count:
                raise OSError(errno.EDQUOT, f"OPFACADE_DUMP_MAX_COUNT={self.count} is used up")
            if _used[1] + size > self.megabytes * 10**6:
                raise OSError(errno.EDQUOT, f"OPFACADE_DUMP_MAX_MB={self.megabytes} does not permit {size} more bytes")
            _used[0], _used[1] = _used[0] + 1, _used[1] + size

    def give_back(self, size: int) -> None:
        """Subtracts a dump of `size` bytes that was not completed."""
        with _guard:
            _used[0], _used[1] = _used[0] - 1, _used[1] - size


@contextmanager
def new_directory(prefix: str, limits: Limits, size: int) -> Iterator[Path]:
    """Creates a directory with mode 0700 in OPFACADE_DUMP_DIR, for `size` bytes. It is removed if the block raises."""
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
            shutil.rmtree(place, ignore_errors=True)  # an incomplete dump on a full disk would only waste space
        raise


def write(path: Path, data: bytes) -> None:
    """Writes a new file with mode 0600, completely or not at all."""
    with _whole(path) as file:
        file.write(data)


def save(path: Path, tensors: object) -> None:
    """The same for tensors, by torch.save."""
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
    """Loads a file that `save` wrote, with tensors on `device`, or by default on their original devices. Raises one of
    UNREADABLE if the file is damaged."""
    import torch

    with regular_files.open_regular(path, MOST) as file:
        return torch.load(file, weights_only=True, map_location=device)
