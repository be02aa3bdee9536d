"""`python -m tests.mutation.operators --seed N --count K [--gpu] [--group G | --changed BASE | --left ROWS | --known]`

Faults of operators: each is planted in a copy of the sources, and the tests that judge its line run on it. --changed: on the
lines that differ from a commit, in two minutes. --left: those that an earlier run let pass. --known: some of those that the
record names as caught, by the test that caught them. --gpu: faults of kernels and bindings alone, each judged by tests on a
GPU, eight at a time. The exit status is 1 where a fault survives that is not known to change nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from math import inf
from pathlib import Path

from bench import records
from tests.mutation import run
from tests.mutation.operators import changed, equivalent, on_gpu, population, score, touched
from tests.mutation.operators.aimed_trial import AimedTrial
from tests.mutation.operators.fault import Fault
from tests.mutation.operators.trial import SURVIVED, UNDECIDED, Row, Trial, selected

LIMIT = {"host": 100.0, "gpu": 400.0}  # seconds for one fault
JOBS = {"host": 2, "gpu": 8}
AGAIN = {"more": 150.0, "files": 40.0}  # seconds for one that the first tests of a recording let pass
OF_A_CHANGE = 120.0  # seconds for the lines of a change
Judged = tuple[Fault, str]  # and the tests that judge it; "" where they are derived


def main() -> int:
    words, started = _words(), time.monotonic()
    chosen = _chosen(words)
    if words.list:
        for fault, tests in chosen:
            print(f"{fault.digest} {fault.name}: {tests or _trial(words, Path()).judges(fault)}")
        return 0
    until = started + (words.seconds or (OF_A_CHANGE if words.changed else inf))
    rows = _tried(chosen, words, until)
    if words.record:
        score.record([row.told() for row in rows], words.seed, words.record, words.commit, _device(words))
    survivors = [row.fault for row in rows if row.outcome == SURVIVED]
    for fault in survivors:
        print(f"survived: {fault.digest} {fault.name}")
    late = f"; {len(chosen) - len(rows)} not tried in the time" if len(rows) < len(chosen) else ""
    print(f"seed {words.seed}: {score.words(row.told() for row in rows)}{late}; {time.monotonic() - started:.0f} s")
    return int(bool(survivors))


def _words() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--count", type=int, default=20, help="faults, each of another line")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--group", default="", help="a package or a family of kernels: opfacade/jit, kernels/sampling")
    which.add_argument("--changed", metavar="BASE", help="only lines that differ from this commit")
    which.add_argument("--left", type=Path, metavar="ROWS", help="only faults that the rows of an earlier run (--rows) left")
    which.add_argument("--known", action="store_true", help="only faults that the record names as caught")
    parser.add_argument("--gpu", action="store_true", help="faults of kernels alone, judged by the tests that need a GPU")
    parser.add_argument("--jobs", type=int, default=0, help="faults at a time; default 2, on a GPU 8")
    parser.add_argument("--seconds", type=float, default=0, help="for all faults; those that are left then are not tried")
    parser.add_argument(
        "--touched", type=Path, metavar="FILE", help="a recording (touched.py): its tests judge each line first"
    )
    parser.add_argument("--rows", type=Path, metavar="FILE", help="add a line of JSON for each fault as it ends")
    parser.add_argument("--list", action="store_true", help="print the faults and the tests that judge them; nothing is run")
    parser.add_argument(
        "--record",
        type=Path,
        metavar="FILE",
        help="put the sample of each group into bench/results/operators.json, or another file",
    )
    records.add_commit(parser)
    words = parser.parse_args()
    if words.gpu and words.known:
        parser.error("--known: expected without --gpu; its record is that of tests without one")
    return words


def _chosen(words: argparse.Namespace) -> list[Judged]:
    if words.known:
        return _known(words.seed, words.count)
    if words.left:
        left = {row["digest"]: row["file"] for row in score.joined([words.left]) if row["outcome"] in (SURVIVED, UNDECIDED)}
        found = [fault for file in sorted(set(left.values())) for fault in population.faults_of(file) if fault.digest in left]
        return [(fault, "") for fault in found if fault.digest not in equivalent.reasons()]
    lines = changed.lines(words.changed) if words.changed else None
    known = on_gpu.judged_there() if words.gpu else population.files()
    files = known if lines is None else sorted({file for file, _ in lines} & set(known))
    among = [file for file in files if words.group in ("", population.group_of(file))]
    if not among and lines is None:
        raise SystemExit(f"--group: expected one of {sorted(set(map(population.group_of, files)))}, got {words.group!r}")
    found = population.drawn(words.seed, 4 * words.count, among, lines)
    return [(fault, "") for fault in found if fault.digest not in equivalent.reasons()][: words.count]


def _known(seed: int, count: int) -> list[Judged]:
    """Recorded faults whose line is unchanged. There must be enough of them: an empty sample shows nothing."""
    rows = score.caught(seed)
    found: list[Judged] = []
    for row in rows:
        own = population.faults_of(row["file"]) if (population.ROOT / row["file"]).exists() else []
        found += [(fault, selected(row["caught_by"])) for fault in own if fault.digest == row["digest"]]
        if len(found) == count:
            return found
    raise SystemExit(
        f"--known: expected {count} recorded faults whose lines are as they were, got {len(found)}: record a new sample"
    )


def _device(words: argparse.Namespace) -> str:
    return "gpu" if words.gpu else "host"


def _trial(words: argparse.Namespace, folder: Path) -> Trial:
    device = _device(words)
    return Trial(run.Place(folder, device), LIMIT[device])


def _tried(chosen: list[Judged], words: argparse.Namespace, until: float) -> list[Row]:
    """Rows of the faults that fit the time."""
    jobs = words.jobs or JOBS[_device(words)]
    with tempfile.TemporaryDirectory(prefix="operators-") as folder, ThreadPoolExecutor(jobs) as pool:
        trial = _trial(words, Path(folder))
        if not words.touched:
            return _ended(pool, trial, chosen, words.rows, until)
        best, place = touched.read(words.touched), run.Place(Path(folder), "host")
        trials = AimedTrial(place, LIMIT["host"], best), AimedTrial(place, AGAIN["more"], best, wide=True), trial
        rows: dict[Fault, Row] = {}
        for one, most in zip(trials, (inf, AGAIN["more"], AGAIN["files"]), strict=True):
            left = [(fault, "") for fault, _ in chosen if fault not in rows or rows[fault].outcome in (SURVIVED, UNDECIDED)]
            for row in _ended(pool, one, left, words.rows, until, most):
                if row.outcome != UNDECIDED or row.fault not in rows:
                    rows[row.fault] = row
        return list(rows.values())


def _ended(
    pool: ThreadPoolExecutor, trial: Trial, chosen: list[Judged], into: Path | None, until: float, most: float = inf
) -> list[Row]:
    rows = pool.map(lambda one: _row(trial, *one, into, until, most), chosen)
    return [row for row in rows if row is not None]


def _row(trial: Trial, fault: Fault, tests: str, into: Path | None, until: float, most: float) -> Row | None:
    """most: seconds for this fault."""
    left = min(most, until - time.monotonic())
    row = trial.row(fault, tests, left) if left > 0 else None
    if row is not None and into is not None:
        with into.open("a") as file:
            file.write(json.dumps(row.told()) + "\n")
    return row


if __name__ == "__main__":
    sys.exit(main())
