"""One line on stderr while the kernels of a warm-up compile: "compiling 3 of 17". On a terminal, the line is overwritten."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TextIO

from opfacade import env


class Progress:
    """Counts the kernels that a warm-up has begun and finished. Kernels that are already built are not counted."""

    def __init__(self, total: int, stream: TextIO, rewrite: bool) -> None:
        self._stream, self._rewrite = stream, rewrite
        self._total, self._begun, self._width = total, 0, 0

    def __call__(self, state: str, sku: str) -> None:
        """state: the state of a WarmupStep."""
        if state == "cached":
            self._total -= 1
        elif state == "build":
            self._begun += 1
            self._write(f"compiling {self._begun} of {max(self._total, self._begun)}: {sku}")
        elif state == "failed":
            self._write(f"failed: {sku}")

    def close(self) -> None:
        if self._rewrite and self._width:
            self._put("\r" + " " * self._width + "\r")

    def _write(self, text: str) -> None:
        shown = text[:120]
        if not self._rewrite:
            return self._put(shown + "\n")
        self._put("\r" + shown.ljust(self._width))
        self._width = len(shown)
        return None

    def _put(self, text: str) -> None:
        """Ignores a closed stream, so that it does not fail a build."""
        with suppress(OSError, ValueError):
            self._stream.write(text)
            self._stream.flush()


def begun(total: int) -> Progress | None:
    """The progress line of a warm-up; None if there is at most one kernel or progress is disabled."""
    asked, stream = env.progress(), sys.stderr
    with suppress(AttributeError, ValueError):  # stderr may be None, or closed
        terminal = stream.isatty()
        return Progress(total, stream, terminal) if total > 1 and (terminal if asked is None else asked) else None
    return None
