"""Notes on a target: the compiler of this machine is old, or the architecture is newer than the kernels.

`explain` prints these notes, and each is a TargetWarning once per process.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from opfacade.base import notices
from opfacade.core.candidate import COMPILER_TOO_OLD
from opfacade.core.target import NEWEST_TUNED, Target
from opfacade.errors import TargetWarning
from opfacade.select.selection import Option


def notes(op: str, target: Target, options: Sequence[Option]) -> Iterator[str]:
    """Notes for the caller on the choice among these options."""
    if target.sm_version > NEWEST_TUNED:
        yield f"not tuned for {target.arch}: no kernel was measured on an architecture after sm_{NEWEST_TUNED}a."
    for option in options:
        for reason in option.reasons:
            if reason.code != COMPILER_TOO_OLD:
                break
        else:
            if option.reasons:
                yield from _of_compiler(op, target, option)
            return


def _of_compiler(op: str, target: Target, option: Option) -> Iterator[str]:
    for reason in option.reasons:
        here = f"this machine's {reason.field} {reason.got} miscompiles it ({reason.allowed} does not)"
        yield f"{op} on {target.arch}: {option.name} would be chosen, but {here}. {reason.hint} [{reason.code}]"


def warn(op: str, target: Target, options: Sequence[Option]) -> None:
    """Warns of each note once per process."""
    for note in notes(op, target, options):
        notices.tell_once(note, note, TargetWarning)
