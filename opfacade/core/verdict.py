"""Verdict: the result of `can_implement` for a call."""

from __future__ import annotations

from dataclasses import dataclass

from opfacade.errors import Issue


@dataclass(frozen=True, slots=True)
class Verdict:
    """True if the call is valid; otherwise `issues` holds every issue."""

    issues: tuple[Issue, ...] = ()

    def __bool__(self) -> bool:
        return not self.issues

    def __str__(self) -> str:
        return "can be implemented" if self else "\n".join(map(str, self.issues))


SOUND = Verdict()
