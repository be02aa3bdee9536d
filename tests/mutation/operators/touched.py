"""Which test files start a function, or build a kernel of a source: tests/data/touched.json, from a run with recorder.py.

`python -m tests.mutation.operators.touched FOLDER` writes it. For each function it holds the MOST files that start few others
and end soon: they are about it. Names stand for lines, so an edit elsewhere changes nothing.
"""

from __future__ import annotations

import ast
import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests.mutation.operators.population import ROOT

PLACE = ROOT / "tests/data/touched.json"
MOST = 8
LONG = 20.0  # seconds that count as much as everything else a test file starts


class Run(NamedTuple):
    """The functions and sources that a run of tests touched; each is {test file: ...}."""

    started: Mapping[str, Iterable[tuple[str, str]]]
    built: Mapping[str, Iterable[str]]
    seconds: Mapping[str, float]


def joined(parts: Iterable[Mapping[str, Mapping]]) -> Run:
    started: dict[str, set[tuple[str, str]]] = defaultdict(set)
    built: dict[str, set[str]] = defaultdict(set)
    seconds: dict[str, float] = defaultdict(float)
    for part in parts:
        for test, own in part["started"].items():
            started[test] |= {(file, name) for file, name in own}
        for test, own in part["built"].items():
            built[test] |= set(own)
        for test, own in part["seconds"].items():
            seconds[test] += own
    return Run(started, built, seconds)


def ranked(run: Run) -> dict[str, dict[str, list[str]]]:
    """{source file: {function: its test files, best first}}; of a source of kernels the function is ""."""
    found: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for test in sorted(run.seconds, key=lambda test: (_breadth(run, test), test)):
        for file, name in sorted(run.started.get(test, ())):
            found[file][name].append(test)
        for file in sorted(run.built.get(test, ())):
            found[file][""].append(test)
    return {file: {name: tests[:MOST] for name, tests in sorted(own.items())} for file, own in sorted(found.items())}


def _breadth(run: Run, test: str) -> float:
    everything = max((len(list(own)) for own in run.started.values()), default=0) or 1
    return len(list(run.started.get(test, ()))) / everything + run.seconds[test] / LONG


def tests_of(file: str, line: int) -> list[str]:
    """The files that start the function of a line, best first; none where nothing is known of it."""
    own = _recorded().get(file, {})
    if not file.endswith(".py"):
        return own.get("", [])
    return next((own[name] for name in names_at((ROOT / file).read_text(), line) if name in own), [])


def names_at(text: str, line: int) -> list[str]:
    """Names of the functions around a line as Python qualifies them, innermost first."""
    found: list[str] = []
    inner: list[ast.stmt] = ast.parse(text).body
    above = ""
    while True:
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        todo = [node for one in inner for node in ast.walk(one) if isinstance(node, kinds)]
        node = next((one for one in todo if one.lineno <= line <= (one.end_lineno or 0)), None)
        if node is None:
            return found[::-1]
        name = f"{above}{node.name}"
        is_class = isinstance(node, ast.ClassDef)
        found += [] if is_class else [name]
        above, inner = f"{name}." if is_class else f"{name}.<locals>.", node.body


@cache
def _recorded() -> dict[str, dict[str, list[str]]]:
    if not PLACE.exists():
        return {}
    record = json.loads(PLACE.read_text())
    tests = record["tests"]
    return {
        file: {name: [tests[at] for at in places if (ROOT / tests[at]).exists()] for name, places in own.items()}
        for file, own in record["functions"].items()
    }


def written(found: Mapping[str, Mapping[str, list[str]]]) -> str:
    """A line a source file; numbers stand for test files."""
    tests = sorted({test for own in found.values() for some in own.values() for test in some})
    number = {test: at for at, test in enumerate(tests)}
    lines = [
        f"{json.dumps(file)}: {json.dumps({name: [number[test] for test in some] for name, some in own.items()})}"
        for file, own in found.items()
    ]
    return f'{{"tests": {json.dumps(tests, indent=0)},\n"functions": {{\n' + ",\n".join(lines) + "\n}}\n"


def main() -> None:
    parts = [json.loads(path.read_text()) for path in sorted(Path(sys.argv[1]).glob("*.json"))]
    PLACE.write_text(written(ranked(joined(parts))))


if __name__ == "__main__":
    main()
