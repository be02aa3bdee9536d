"""The lines in which faults can be planted, their groups, and the sample of a seed, which stays the same if lines move."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator
from pathlib import Path

from tests.mutation.operators import cxx, python
from tests.mutation.operators.fault import Fault, faults

ROOT = Path(__file__).parents[3]
FOLDERS = ("opfacade", "kernels", "csrc")
DEVICE = (".cuh", ".h", ".cc", ".jinja", ".cu")

Line = tuple[str, int]  # file and number


def files(root: Path = ROOT) -> list[str]:
    found = (path for folder in FOLDERS for path in (root / folder).rglob("*") if path.suffix in (".py", *DEVICE))
    return sorted(str(path.relative_to(root)) for path in found)


def group_of(file: str) -> str:
    """A package of opfacade, or a family of kernels with its bindings."""
    parts = Path(file).parts
    if parts[0] == "opfacade":
        return f"opfacade/{parts[1]}" if len(parts) > 2 else "opfacade"
    return f"kernels/{parts[1]}"


def faults_of(file: str, root: Path = ROOT) -> list[Fault]:
    text = (root / file).read_text()
    return faults(file, text, python.changes(text) if file.endswith(".py") else cxx.changes(text))


def drawn(seed: int, count: int, among: Collection[str], lines: Collection[Line] | None = None) -> Iterator[Fault]:
    """One fault in each of `count` lines of these files. lines: the allowed lines; None: all."""
    found: dict[str, dict[int, list[Fault]]] = {}
    for file, number in _shuffled(seed, among, lines):
        if count == 0:
            return
        if file not in found:
            found[file] = {}
            for fault in faults_of(file):
                found[file].setdefault(fault.line, []).append(fault)
        if number in found[file]:
            count -= 1
            yield _one(seed, found[file][number])


def _shuffled(seed: int, among: Collection[str], lines: Collection[Line] | None) -> list[Line]:
    keyed: list[tuple[str, Line]] = []
    for file in among:
        seen: dict[str, int] = {}
        for number, words in enumerate((ROOT / file).read_text().splitlines(), 1):
            words = words.strip()
            seen[words] = seen.get(words, -1) + 1
            if words and (lines is None or (file, number) in lines):
                keyed.append((_hash(seed, file, words, seen[words]), (file, number)))
    return [line for _, line in sorted(keyed)]


def _one(seed: int, of_line: list[Fault]) -> Fault:
    """The seed selects an operator first, then one of its faults, so that operators with many faults are not
    drawn more often.
    """
    operator = min({fault.change.operator for fault in of_line}, key=lambda name: _hash(seed, name, of_line[0].digest))
    return min((fault for fault in of_line if fault.change.operator == operator), key=lambda one: _hash(seed, one.digest))


def _hash(*words: object) -> str:
    return hashlib.sha256("\0".join(map(str, words)).encode()).hexdigest()
