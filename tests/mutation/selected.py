"""`python -m tests.mutation.selected`: lists the faults whose files and words select no test, so that nothing
could catch them.
"""

import sys
from typing import NamedTuple

import pytest
from _pytest.mark.expression import Expression

from tests.mutation.mutants import CPU, GPU, HOST, Mutant


class Case(NamedTuple):
    """A test, and the markers without which it runs on any machine."""

    id: str
    gpu: bool = False
    heavy: bool = False


class Collected:
    """A pytest plugin that stores the collected tests."""

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        marked = lambda item, name: item.get_closest_marker(name) is not None  # noqa: E731
        self.tests = [Case(item.nodeid, marked(item, "gpu"), marked(item, "heavy")) for item in session.items]


def files_of(mutant: Mutant) -> list[str]:
    return [word for word in mutant.tests.partition(" -k ")[0].split() if word != "--heavy"]


def selects(mutant: Mutant, tests: list[Case], gpu: bool) -> bool:
    """Whether any of the tests runs for a fault. gpu: tests that need a GPU run too; heavy tests run only with --heavy."""
    expression = Expression.compile(mutant.tests.partition(" -k ")[2])
    heavy = "--heavy" in mutant.tests.split()

    def chosen(test: str) -> bool:
        path, _, name = test.lower().partition("::")
        words = f"{path.rpartition('/')[2]}::{name}"  # like pytest, which excludes folders
        return expression.evaluate(lambda word, **_: word.lower() in words)

    able = [test.id for test in tests if gpu >= test.gpu and heavy >= test.heavy]
    return any(test.startswith(tuple(files_of(mutant))) and chosen(test) for test in able)


def unselected() -> list[str]:
    by_words = {gpu: [m for m in faults if " -k " in m.tests] for gpu, faults in ((True, GPU), (False, (*CPU, *HOST)))}
    files = sorted({file for faults in by_words.values() for m in faults for file in files_of(m)})
    collected = Collected()
    pytest.main(
        ["--collect-only", "-qq", "-p", "no:cacheprovider", "-p", "no:warnings", "-o", "addopts=", *files], plugins=[collected]
    )
    return [m.name for gpu, faults in by_words.items() for m in faults if not selects(m, collected.tests, gpu)]


if __name__ == "__main__":
    names = unselected()
    print(f"{len(names)} select no test: {names}")
    sys.exit(bool(names))
