"""Issue: one thing that is wrong, and the message that tells of several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MAX_TOLD = 10


@dataclass(frozen=True)
class Issue:
    """One thing wrong with a call: a stable code, the argument, what was expected, what came, and one hint."""

    code: str
    argument: str
    expected: str
    got: str
    hint: str = ""
    kind: str = "ArgumentError"

    def __str__(self) -> str:
        hint = f" {self.hint}" if self.hint else ""
        return f"{self.argument} expected {self.expected}, got {self.got}.{hint} [{self.code}]"


def told(place: str, issues: Sequence[Issue]) -> str:
    """The message for a non-empty list of issues found at one place: each on a line of its own, ten at most."""
    lines = [f"{place}: {issues[0]}", *(f"  {issue}" for issue in issues[1:MAX_TOLD])]
    return "\n".join([*lines, *([f"  (and {len(issues) - MAX_TOLD} more)"] if len(issues) > MAX_TOLD else [])])
