"""One line with the progress of the demo: overwritten on a terminal, otherwise a new line every ten seconds."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TextIO

_EVERY = 10.0  # seconds


class Progress:
    """A line on a stream. terminal: whether the line can be overwritten."""

    def __init__(self, stream: TextIO, terminal: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._terminal, self._clock = stream, terminal, clock
        self._width, self._last = 0, clock()

    def show(self, text: str) -> None:
        if self._terminal:
            self._put("\r" + text.ljust(self._width))
            self._width = len(text)
        elif self._clock() - self._last >= _EVERY:
            self._put(text + "\n")
            self._last = self._clock()

    def clear(self) -> None:
        """Clears the line, before another line is printed."""
        if self._width:
            self._put("\r" + " " * self._width + "\r")
            self._width = 0

    def _put(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
