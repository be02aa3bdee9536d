"""A fault that an operator creates: a range of a file, and its replacement."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Change:
    """An operator puts `new` in the place of text[start:end]."""

    operator: str
    start: int
    end: int
    new: str


@dataclass(frozen=True)
class Fault:
    """A change of a file. digest: stays the same while its line and the name of the enclosing function stay, wherever they
    move.
    """

    file: str
    line: int
    change: Change
    old: str
    digest: str

    @property
    def name(self) -> str:
        old, new = (" ".join(words.split()) for words in (self.old, self.change.new))
        return f"{self.file}:{self.line} {self.change.operator}: {old[:60]!r} -> {new[:60]!r}"

    def planted(self, text: str) -> str:
        return text[: self.change.start] + self.change.new + text[self.change.end :]


def faults(file: str, text: str, changes: Iterable[Change]) -> list[Fault]:
    """Removes changes without effect and duplicates, and adds digests."""
    seen: dict[tuple[int, int, str], Change] = {}
    for change in changes:
        if text[change.start : change.end].split() != change.new.split():
            seen.setdefault((change.start, change.end, change.new), change)
    twice: dict[str, int] = {}
    return [_fault(file, text, change, twice) for change in sorted(seen.values(), key=lambda c: (c.start, c.end, c.new))]


def _fault(file: str, text: str, change: Change, twice: dict[str, int]) -> Fault:
    first, last = text.rfind("\n", 0, change.start) + 1, text.find("\n", change.end)
    around = text[first : last if last >= 0 else len(text)].strip()
    old = text[change.start : change.end]
    words = "\0".join((file, change.operator, around, old, str(change.start - first), change.new))
    times = twice[words] = twice.get(words, -1) + 1
    digest = hashlib.sha256(f"{words}\0{times}".encode()).hexdigest()[:16]
    return Fault(file, text.count("\n", 0, change.start) + 1, change, old, digest)
