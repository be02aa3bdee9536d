"""`python -m tests.mutation.selected`: the faults whose files and words select no test, so that nothing could catch them."""

import sys

import pytest
from _pytest.mark.expression import Expression

from tests.mutation.mutants import CPU, GPU, HOST, Mutant


class Collected:
    """A plugin of pytest: (id, whether it needs a GPU) of each test."""

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.tests = [(item.nodeid, item.get_closest_marker("gpu") is not None) for item in session.items]


def files_of(mutant: Mutant) -> list[str]:
    return [word for word in mutant.tests.partition(" -k ")[0].split() if word != "--heavy"]


def selects(mutant: Mutant, tests: list[tuple[str, bool]], gpu: bool) -> bool:
    """gpu: tests that need one run too."""
    expression = Expression.compile(mutant.tests.partition(" -k ")[2])

    def chosen(test: str) -> bool:
        path, _, name = test.lower().partition("::")
        words = f"{path.rpartition('/')[2]}::{name}"  # as pytest, which leaves out folders
        return expression.evaluate(lambda word, **_: word.lower() in words)

    return any(
        test.startswith(tuple(files_of(mutant))) and (gpu or not needs_gpu) and chosen(test) for test, needs_gpu in tests
    )


def unselected() -> list[str]:
    by_words = {gpu: [m for m in faults if " -k " in m.tests] for gpu, faults in ((True, GPU), (False, (*CPU, *HOST)))}
    files = sorted({file for faults in by_words.values() for m in faults for file in files_of(m)})
    collected = Collected()
    pytest.main(["--collect-only", "-qq", "-p", "no:cacheprovider", "-o", "addopts=", *files], plugins=[collected])
    return [m.name for gpu, faults in by_words.items() for m in faults if not selects(m, collected.tests, gpu)]


if __name__ == "__main__":
    names = unselected()
    print(f"{len(names)} select no test: {names}")
    sys.exit(bool(names))
