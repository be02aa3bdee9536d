"""Reads and replaces files that a user, a variable or a cache names: only regular files, and only up to a number of bytes.

Reading a FIFO without a writer would hang, a device may have no end, and opening either may have side effects. Therefore the
path is checked before it is opened, and the open file is checked again.
"""

from __future__ import annotations

import errno
import os
import stat
import uuid
from pathlib import Path
from typing import BinaryIO

MOST = 64 << 20  # maximum size of a JSON file, in bytes


def open_regular(path: str | os.PathLike[str], most: int = MOST, follow: bool = True) -> BinaryIO:
    """A regular file of at most `most` bytes, open for reading. OSError for anything else; waits for no writer.

    follow: False refuses a symbolic link as the last part of the path.
    """
    try:
        _judge(os.stat(path, follow_symlinks=follow), path, most)
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY | (0 if follow else os.O_NOFOLLOW)
        fd = os.open(path, flags)
    except ValueError as error:  # a NUL or half a surrogate pair, which no file name contains
        raise _nameless(path, error) from error
    try:
        _judge(os.fstat(fd), path, most)
        return open(fd, "rb")
    except BaseException:
        os.close(fd)
        raise


def read(path: str | os.PathLike[str], most: int = MOST) -> bytes:
    """The content of a regular file of at most `most` bytes. OSError for any other file."""
    with open_regular(path, most) as file:
        return read_bounded(file, most, path)


def read_bounded(file: BinaryIO, most: int = MOST, path: str | os.PathLike[str] = "") -> bytes:
    """The rest of a stream. OSError above `most` bytes: a file may grow after its size was checked, and a pipe has no size."""
    data = file.read(most + 1)
    if len(data) > most:
        raise _too_large(path, most)
    return data


def require_regular(path: str | os.PathLike[str], most: int = MOST) -> None:
    """Raises OSError if `open_regular` would refuse the file, for callers that open it in another way."""
    try:
        _judge(os.stat(path), path, most)
    except ValueError as error:
        raise _nameless(path, error) from error


def is_regular(path: str | os.PathLike[str]) -> bool:
    """Whether a path is a regular file, following symbolic links."""
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except (OSError, ValueError):
        return False


def replace(path: str | os.PathLike[str], text: str) -> None:
    """Replaces the content of a file atomically: a reader sees the old or the new text. A pipe or a device is written directly.
    After an OSError, the file is unchanged."""
    place = Path(os.path.realpath(path))
    if place.exists() and not place.is_file():
        place.write_text(text)
        return
    name = place.with_name(f".{place.name}.{uuid.uuid4().hex}")
    handle = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)  # minus the umask, as for any new file
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
            file.flush()
            if place.exists():
                os.fchmod(file.fileno(), stat.S_IMODE(place.stat().st_mode))
            os.fsync(file.fileno())
        os.replace(name, place)
    except BaseException:
        name.unlink(missing_ok=True)
        raise


def _judge(info: os.stat_result, path: str | os.PathLike[str], most: int) -> None:
    if stat.S_ISDIR(info.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    if not stat.S_ISREG(info.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", os.fspath(path))
    if info.st_size > most:
        raise _too_large(path, most)


def _nameless(path: str | os.PathLike[str], error: ValueError) -> OSError:
    return OSError(errno.EINVAL, str(error), os.fspath(path))


def _too_large(path: str | os.PathLike[str], most: int) -> OSError:
    return OSError(errno.EFBIG, f"larger than {most} bytes", os.fspath(path))
