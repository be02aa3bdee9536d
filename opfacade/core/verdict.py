"""Verdict: what `can_implement` says of a call."""

from __future__ import annotations

from dataclasses import dataclass

from opfacade.errors import Issue


@dataclass(frozen=True, slots=True)
class Verdict:
    """True when the call is sound; otherwise `issues` holds everything found."""

    issues: tuple[Issue, ...] = ()

    def __bool__(self) -> bool:
        return not self.issues

    def __str__(self) -> str:
        return "can be implemented" if self else "\n".join(map(str, self.issues))


SOUND = Verdict()
