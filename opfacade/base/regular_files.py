"""Reads and replaces files that a user, a variable or a cache names: regular files alone, and no more bytes than a bound.

A FIFO without a writer would hang, a device may have no end, and opening either may have side effects. Therefore a path is
checked before it is opened, and the open file is checked again.
"""

from __future__ import annotations

import errno
import os
import stat
import uuid
from pathlib import Path
from typing import BinaryIO

MOST = 64 << 20  # bytes of a file of JSON


def open_regular(path: str | os.PathLike[str], most: int = MOST, follow: bool = True) -> BinaryIO:
    """A regular file of at most `most` bytes, open for reading. OSError for anything else; waits for no writer.

    follow: False refuses a symbolic link as the last part of the path.
    """
    try:
        _judge(os.stat(path, follow_symlinks=follow), path, most)
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY | (0 if follow else os.O_NOFOLLOW)
        fd = os.open(path, flags)
    except ValueError as error:  # a NUL, or half a surrogate pair: the name of no file
        raise _nameless(path, error) from error
    try:
        _judge(os.fstat(fd), path, most)
        return open(fd, "rb")
    except BaseException:
        os.close(fd)
        raise


def read(path: str | os.PathLike[str], most: int = MOST) -> bytes:
    """The bytes of a regular file, at most `most` of them. OSError otherwise."""
    with open_regular(path, most) as file:
        return read_bounded(file, most, path)


def read_bounded(file: BinaryIO, most: int = MOST, path: str | os.PathLike[str] = "") -> bytes:
    """The rest of a stream, at most `most` bytes: a file may grow after its size was read, a pipe has none."""
    data = file.read(most + 1)
    if len(data) > most:
        raise _too_large(path, most)
    return data


def require_regular(path: str | os.PathLike[str], most: int = MOST) -> None:
    """Raise OSError for what `open_regular` would refuse by its kind or size: for who opens it by other means."""
    try:
        _judge(os.stat(path), path, most)
    except ValueError as error:
        raise _nameless(path, error) from error


def is_regular(path: str | os.PathLike[str]) -> bool:
    """Whether a path names a regular file, also behind links."""
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except (OSError, ValueError):
        return False


def replace(path: str | os.PathLike[str], text: str) -> None:
    """Give a file this text at once: a reader sees the old text or the new one. A pipe or a device is written to.
    OSError where that cannot be done; then nothing has changed."""
    place = Path(os.path.realpath(path))
    if place.exists() and not place.is_file():
        place.write_text(text)
        return
    name = place.with_name(f".{place.name}.{uuid.uuid4().hex}")
    handle = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)  # less the mask, as any new file
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
