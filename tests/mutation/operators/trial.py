"""Runs the tests that judge a fault, on a copy of the sources with this fault, within time limits.

A test counts where it passes on the sources as they are. A fault that no compiler takes, or with which the test files cannot be
imported, shows nothing about the tests and is left out of the score.
"""

from __future__ import annotations

import re
import threading
import time
from dataclasses import dataclass
from itertools import count

from tests.mutation import run, warm
from tests.mutation.mutant import Mutant
from tests.mutation.operators import on_gpu
from tests.mutation.operators.fault import Fault
from tests.mutation.operators.judged import tests_of
from tests.mutation.operators.population import ROOT

CAUGHT, SURVIVED, REFUSED, UNDECIDED = "caught", "survived", "refused", "undecided"
FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+::.*?)(?: - .*)?$", re.MULTILINE)
NO_IMPORT = re.compile(r"^ERROR \S+(?: - .*)?$|^ImportError while loading conftest|INTERNALERROR", re.MULTILINE)


OF_A_TEST = {"host": 40, "gpu": 200}  # seconds; on a GPU a test builds its kernels


@dataclass(frozen=True)
class Row:
    """The result of a fault. seconds: time of its tests."""

    fault: Fault
    outcome: str
    by: str
    seconds: float

    def told(self) -> dict[str, object]:
        """The recorded form; the texts are for readers, the digest finds the fault again."""
        own = {"digest": self.fault.digest, "file": self.fault.file, "fault": self.fault.name}
        return own | {"outcome": self.outcome, "caught_by": self.by, "seconds": round(self.seconds, 1)}


class Trial:
    """limit: seconds per fault. Copies of the sources are in `place`."""

    def __init__(self, place: run.Place, limit: float):
        self._place, self._limit, self._lock = place, limit, threading.Lock()
        self._numbers = count()  # of runs, which use GPUs in turn
        self._sound: dict[tuple[str, str], bool] = {}

    def row(self, fault: Fault, tests: str, left: float) -> Row:
        """tests: those that judge, if known; "": they are derived. left: seconds until the end of the whole run."""
        started = time.monotonic()
        outcome, by = self._judged(fault, tests or self.judges(fault), min(left, self._limit))
        print(f"{outcome:9} {time.monotonic() - started:5.1f} s  {fault.name}{f': {by}' if by else ''}", flush=True)
        return Row(fault, outcome, by, time.monotonic() - started)

    def judges(self, fault: Fault) -> str:
        if self._place.device == "host":
            return " ".join(tests_of(fault.file, fault.line, gpu=False))
        found = tests_of(fault.file, fault.line, gpu=True)[: on_gpu.FILES]
        return " ".join([*([run.FOCUSED] if on_gpu.kinds_of(fault.file) else []), *found])

    def _judged(self, fault: Fault, tests: str, limit: float) -> tuple[str, str]:
        text, kinds = (ROOT / fault.file).read_text(), self._kinds(fault)
        subject = Mutant(fault.name, fault.file, ((text, fault.planted(text)),), kinds, tests)
        status, output = self._ended(subject, limit)
        if status is None and limit < self._limit:
            return UNDECIDED, ""
        if status is None:
            return (CAUGHT, "no end within the time") if self._is_sound(tests, kinds) else (UNDECIDED, "")
        if run.REFUSED_BY_A_COMPILER.search(output):
            return REFUSED, ""
        found = FAILED.search(output)
        if found:
            return (CAUGHT, found[1]) if self._is_sound(found[1], kinds) else (UNDECIDED, found[1])
        if status and status > 0:
            return (REFUSED, "") if NO_IMPORT.search(output) else (UNDECIDED, f"exit {status}")
        return (CAUGHT, f"exit {status}") if status else (SURVIVED, "")

    def _ended(self, subject: Mutant, limit: float) -> tuple[int | None, str]:
        device, number = self._place.device, next(self._numbers)
        with run.tree(subject, self._place, number) as root:
            words = run.command(subject, device, "gpu" if device == "gpu" else "")
            env = run.environment(subject, root, self._place, number)
            end = warm.ended if device == "host" else run.ended
            return end([*words, f"--timeout={OF_A_TEST[device]}"], root, env, limit)

    def _kinds(self, fault: Fault) -> str:
        return " ".join(on_gpu.kinds_of(fault.file)) if self._place.device == "gpu" else ""

    def _is_sound(self, tests: str, kinds: str) -> bool:
        """Whether tests pass on the unchanged sources; the answer is cached."""
        with self._lock:
            known = self._sound.get((tests, kinds))
        if known is None:
            status, _ = self._ended(Mutant("the sources as they are", "", (), kinds, selected(tests)), self._limit)
            known = status == 0
            with self._lock:
                self._sound[tests, kinds] = known
        return known


def selected(test: str) -> str:
    """The pytest arguments that select a test by its name, with any parameters; files stay unchanged."""
    file, _, name = test.partition("::")
    return f"{file} -k {name.partition('[')[0].rpartition('::')[2]}" if name else file
