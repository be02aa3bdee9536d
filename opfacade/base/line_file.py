"""Appends lines to a file that other processes may write too: one system call a line, unbuffered, without waiting.

A FIFO without a reader, or with a slow one, accepts no line; neither does a full disk. Both are an OSError.
"""

from __future__ import annotations

import errno
import os
import sys
from typing import Any

_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


class LineFile:
    """A file, made at the first line for its user alone; in its name %p is the process id."""

    def __init__(self, path: str) -> None:
        self.path = path.replace("%p", str(os.getpid()))
        self._torn = False

    def append(self, line: str) -> None:
        """Append a line that ends in a newline. OSError where it does not fit, in whole or in part."""
        handle = os.open(self.path, _FLAGS, 0o600)
        try:
            self._put(handle, line.encode())
        finally:
            os.close(handle)

    def _put(self, handle: int, line: bytes) -> None:
        # Ends a torn earlier line first, so that this one is not lost with it.
        line = b"\n" + line if self._torn else line
        written = os.write(handle, line)
        self._torn = 0 < written < len(line)
        if written < len(line):
            raise OSError(errno.ENOSPC, "no space for a whole line", self.path)


class Stream(LineFile):
    """stderr or stdout, the one that sys has when a line is written. OSError or ValueError where it is closed."""

    def append(self, line: str) -> None:
        stream: Any = getattr(sys, self.path)
        if stream is None:
            raise OSError(errno.EBADF, f"{self.path} is closed")
        if stream is not getattr(sys, f"__{self.path}__"):  # one that a test or a notebook put in its place
            stream.write(line)
            stream.flush()
            return
        # A buffer would keep what a full disk refuses, and fail again when the process ends.
        stream.flush()
        self._put(stream.fileno(), line.encode())
