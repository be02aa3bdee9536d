"""The tests that run a line of Python, or emulate a kernel with a line of C++, as recorder.py saw them in a run.

`python -m tests.mutation.operators.touched FOLDER FILE` joins what the processes of that run wrote. The numbers of lines are
those of the sources that ran, so a record is of one commit.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

KEPT = 16  # tests per line, in each process
JOINED = 40  # and in total

Line = tuple[str, int]


class Timed(NamedTuple):
    """A test that passed. cost: its seconds, plus a part for the lines it runs: a test that runs few lines is
    specific to them.
    """

    cost: float
    seconds: float
    id: str

    @property
    def function(self) -> str:
        return self.id.partition("[")[0]


class Best:
    """For each line the `most` cheapest tests, one per test function."""

    def __init__(self, most: int):
        self.of: dict[Line, dict[str, Timed]] = {}
        self._most, self._worst = most, dict[Line, float]()

    def add(self, line: Line, test: Timed) -> None:
        if test.cost >= self._worst.get(line, float("inf")):
            return
        own, name = self.of.setdefault(line, {}), test.function
        if name in own and own[name].cost <= test.cost:
            return
        own[name] = test
        if len(own) > self._most:
            del own[max(own, key=lambda one: own[one].cost)]
        if len(own) == self._most:
            self._worst[line] = max(one.cost for one in own.values())

    def tests(self, file: str, line: int) -> list[Timed]:
        return sorted(self.of.get((file, line), {}).values())

    def as_json(self) -> dict[str, object]:
        """Each test once, and for each line of a file the numbers of its tests, cheapest first."""
        numbers: dict[Timed, int] = {}
        lines: dict[str, dict[int, list[int]]] = defaultdict(dict)
        for file, line in sorted(self.of):
            lines[file][line] = [numbers.setdefault(test, len(numbers)) for test in self.tests(file, line)]
        return {"tests": [[round(test.cost, 4), round(test.seconds, 4), test.id] for test in numbers], "lines": lines}


def joined(parts: Iterable[Mapping], most: int = JOINED) -> Best:
    found = Best(most)
    for part in parts:
        tests = [Timed(*test) for test in part["tests"]]
        for file, lines in part["lines"].items():
            for line, own in lines.items():
                for number in own:
                    found.add((file, int(line)), tests[number])
    return found


def read(place: Path) -> Best:
    return joined([json.loads(gzip.decompress(place.read_bytes()))])


def write(found: Best, place: Path) -> None:
    place.write_bytes(gzip.compress(json.dumps(found.as_json()).encode(), 3))


def main() -> None:
    folder, place = map(Path, sys.argv[1:])
    found = joined(json.loads(path.read_text()) for path in sorted(folder.glob("*.json")))
    write(found, place)
    print(f"{len(found.of)} lines of {len({file for file, _ in found.of})} files, {place.stat().st_size >> 10} KiB")


if __name__ == "__main__":
    main()
