"""Issue: one problem of a call, and the message for several issues."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MAX_TOLD = 10


@dataclass(frozen=True)
class Issue:
    """One problem of a call: a stable code, the argument, the expected value, the actual value, and one hint."""

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
    """The message for a non-empty list of issues: one per line, at most ten."""
    lines = [f"{place}: {issues[0]}", *(f"  {issue}" for issue in issues[1:MAX_TOLD])]
    return "\n".join([*lines, *([f"  (and {len(issues) - MAX_TOLD} more)"] if len(issues) > MAX_TOLD else [])])
