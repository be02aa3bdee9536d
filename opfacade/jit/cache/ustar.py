"""Reads tar files in the form that `bundle` writes: only regular files with short names.

tarfile supports all tar extensions and trusts the sizes and counts in them: an invalid header makes it raise ValueError,
OverflowError or MemoryError. Here a header is 512 bytes of fixed fields, which are checked before use.
"""

from __future__ import annotations

import re
from typing import BinaryIO, NamedTuple

BLOCK = 512
_OCTAL = re.compile(rb"[0-7]{1,11}[ \0]*")
_MAGIC = b"ustar\x0000"
_REGULAR = (b"0", b"\0")


class Member(NamedTuple):
    """A file in the archive: its name and its size in bytes."""

    name: str
    size: int


class Reader:
    """Yields the members of an open tar file in file order. Raises ValueError for an invalid member."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def next(self) -> Member | None:
        """The next member; None at the end. All bytes of the previous member must have been read."""
        header = self._file.read(BLOCK)
        if not any(header) and len(header) == BLOCK:
            return None
        if len(header) < BLOCK:
            raise ValueError("it ends within a header, or the end is missing")
        return _member(header)

    def read(self, member: Member) -> bytes:
        """The bytes of the member that `next` returned."""
        data = self._file.read(member.size)
        padding = -member.size % BLOCK
        if len(data) < member.size or len(self._file.read(padding)) < padding:
            raise ValueError(f"{member.name} is cut short")
        return data


def _member(header: bytes) -> Member:
    if header[257:265] != _MAGIC or _number(header[148:156]) != sum(header[:148] + b" " * 8 + header[156:]):
        raise ValueError("a header is damaged")
    prefix, name = _text(header[345:500]), _text(header[:100])
    whole = f"{prefix}/{name}" if prefix else name
    if header[156:157] not in _REGULAR:
        raise ValueError(f"{whole[:200]!r} is not a regular file")
    return Member(whole, _number(header[124:136]))


def _number(field: bytes) -> int:
    """An octal number of at most 8 GiB; the binary form of larger ones is refused."""
    if not _OCTAL.fullmatch(field):
        raise ValueError("a number in a header is invalid")
    return int(field.rstrip(b" \0"), 8)


def _text(field: bytes) -> str:
    return field.split(b"\0", 1)[0].decode("ascii")
