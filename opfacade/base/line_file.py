"""Appends lines to a file that other processes may also write: one system call per line, unbuffered, without waiting.

A FIFO without a reader or with a slow reader, or a full disk, does not accept a line: this raises OSError.
"""

from __future__ import annotations

import errno
import os
import sys
from typing import Any

_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


class LineFile:
    """A file that the first line creates, readable only by the user. In its name, %p is the process id."""

    def __init__(self, path: str) -> None:
        self.path = path.replace("%p", str(os.getpid()))
        self._torn = False

    def append(self, line: str) -> None:
        """Appends a line that ends in a newline. OSError if it cannot be written completely."""
        handle = os.open(self.path, _FLAGS, 0o600)
        try:
            self._put(handle, line.encode())
        finally:
            os.close(handle)

    def _put(self, handle: int, line: bytes) -> None:
        # First ends an earlier, partly written line, so that this line is valid.
        line = b"\n" + line if self._torn else line
        written = os.write(handle, line)
        self._torn = 0 < written < len(line)
        if written < len(line):
            raise OSError(errno.ENOSPC, "no space for a whole line", self.path)


class Stream(LineFile):
    """stderr or stdout, as `sys` has it when a line is written. OSError or ValueError if the stream is closed."""

    def append(self, line: str) -> None:
        stream: Any = getattr(sys, self.path)
        if stream is None:
            raise OSError(errno.EBADF, f"{self.path} is closed")
        if stream is not getattr(sys, f"__{self.path}__"):  # a replacement by a test or a notebook
            stream.write(line)
            stream.flush()
            return
        # Unbuffered: a buffer would keep a line that a full disk refused, and fail again when the process ends.
        stream.flush()
        self._put(stream.fileno(), line.encode())
