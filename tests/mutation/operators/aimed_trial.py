"""A fault is judged by the tests that a recording names for its line; if they pass, by test files that are selected by name."""

from __future__ import annotations

import time

from tests.mutation import run, warm
from tests.mutation.mutant import Mutant
from tests.mutation.operators import aimed
from tests.mutation.operators.fault import Fault
from tests.mutation.operators.population import ROOT
from tests.mutation.operators.touched import Best
from tests.mutation.operators.trial import CAUGHT, FAILED, NO_IMPORT, REFUSED, SURVIVED, UNDECIDED, Row, Trial

OF_A_TEST = {True: 12, False: 60}  # seconds; for Python, and for kernels, which are compiled
TRIES = 4  # runs per fault: a test that also fails without the fault is excluded from the next run
NOT_FOUND = 4  # the exit status of pytest
LEAST = 20.0  # seconds per fault, for imports


class AimedTrial(Trial):
    """A trial with a recording. wide: with more tests than the first trial."""

    def __init__(self, place: run.Place, limit: float, best: Best, wide: bool = False):
        super().__init__(place, limit)
        self._best, self._wide = best, wide

    def row(self, fault: Fault, tests: str, left: float) -> Row:
        started = time.monotonic()
        found = (aimed.more_of if self._wide else aimed.tests_of)(fault.file, fault.line, self._best)
        outcome, by = self._aimed(fault, [test.id for test in found], sum(test.seconds for test in found), left)
        row = Row(fault, outcome, by, time.monotonic() - started)
        print(f"{outcome:9} {row.seconds:5.1f} s {len(found):2} tests  {fault.name}{f': {by}' if by else ''}", flush=True)
        return row

    def _aimed(self, fault: Fault, tests: list[str], seconds: float, left: float) -> tuple[str, str]:
        if not tests:
            return UNDECIDED, "no test runs near the line"
        is_python = fault.file.endswith(".py")
        text = (ROOT / fault.file).read_text()
        subject = Mutant(fault.name, fault.file, ((text, fault.planted(text)),))
        limit = self._limit if self._wide else min(self._limit, LEAST + (4 if is_python else 3) * seconds)
        end = time.monotonic() + left
        for _ in range(TRIES):
            left = end - time.monotonic()
            status, output = self._of(subject, tests, min(left, limit), OF_A_TEST[is_python])
            if status is None:
                is_late = left >= limit and not self._wide and self._pass(tests, limit)
                return (CAUGHT, "no end within the time") if is_late else (UNDECIDED, "no end within the time")
            if run.REFUSED_BY_A_COMPILER.search(output) and not is_python:
                return REFUSED, ""
            failed = FAILED.search(output)
            if not failed and status == NOT_FOUND and not NO_IMPORT.search(output) and any("[" in test for test in tests):
                tests = list(dict.fromkeys(test.partition("[")[0] for test in tests))  # a fault may change names of parameters
                continue
            if not failed:
                return _without_a_test(status, output)
            if self._pass([failed[1]], min(left, self._limit)):
                return CAUGHT, failed[1]
            tests = [test for test in tests if test.partition("[")[0] != failed[1].partition("[")[0]]
            if not tests:
                break
        return UNDECIDED, failed[1] if failed else ""

    def _of(self, subject: Mutant, tests: list[str], limit: float, of_a_test: float) -> tuple[int | None, str]:
        with run.tree(subject, self._place, 0) as root:
            env = run.environment(subject, root, self._place, 0)
            quiet = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-o", "addopts=", "-m", "not gpu"]
            return warm.ended(["pytest", *quiet, f"--timeout={of_a_test}", *tests], root, env, limit)

    def _pass(self, tests: list[str], limit: float) -> bool:
        """Whether tests pass on the unchanged sources; the answer is cached."""
        key = " ".join(tests), ""
        with self._lock:
            known = self._sound.get(key)
        if known is None:
            status, _ = self._of(Mutant("the sources as they are", "", (), ""), tests, limit, 200)
            known = status == 0
            with self._lock:
                self._sound[key] = known
        return known


def _without_a_test(status: int, output: str) -> tuple[str, str]:
    if status > 0:
        return (REFUSED, "") if NO_IMPORT.search(output) else (UNDECIDED, f"exit {status}")
    return (CAUGHT, f"exit {status}") if status else (SURVIVED, "")
