"""The record of samples: bench/results/operators.json, for each group of files its newest sample with seed, commit and rows.

`python -m tests.mutation.operators.score ROWS... --seed N --commit C` makes one of rows that runs added to files (--rows); of
several rows of a fault the one that says most counts.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import records
from opfacade.tools import kernel_digests
from tests.mutation import run
from tests.mutation.operators.population import group_of
from tests.mutation.operators.trial import CAUGHT, REFUSED, SURVIVED, UNDECIDED

KIND = "operators"


Told = Mapping[str, Any]  # one recorded row
ENDS = (CAUGHT, REFUSED, SURVIVED, UNDECIDED)  # the most informative outcome first


def words(rows: Iterable[Told]) -> str:
    """the number caught, of those that a test could see."""
    counts = Counter(row["outcome"] for row in rows)
    judged = counts[CAUGHT] + counts[SURVIVED]
    others = ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items()) if outcome not in (CAUGHT, SURVIVED))
    return f"{counts[CAUGHT]} of {judged} caught{f'; {others}' if others else ''}"


def known(place: Path | None = None) -> dict[str, dict]:
    path = place or records.RESULTS / f"{KIND}.json"
    return json.loads(path.read_text()) if path.exists() else {}


def record(rows: Sequence[Told], seed: int, place: Path, commit: str | None, device: str = "host") -> None:
    """Replaces the older sample of each group."""
    own = run.machine("gpu") if device == "gpu" else {"device": platform.machine()}
    machine = own | {"python": platform.python_version(), "date": time.strftime("%Y-%m-%d")}
    groups = sorted({group_of(row["file"]) for row in rows})
    parts = {name: [row for row in rows if group_of(row["file"]) == name] for name in groups}
    new = {
        name: {
            "seed": seed,
            "machine": machine | {"commit": records.commit(commit)},
            "kernels": kernel_digests.stamp(),
            "score": words(some),
            "mutants": [dict(row) for row in some],
        }
        for name, some in parts.items()
    }
    place.write_text(json.dumps(dict(sorted((known(place) | new).items())), indent=1) + "\n")


def caught(seed: int) -> list[dict]:
    """The recorded rows of faults that a test caught, in an order that depends on the seed."""
    rows = [row for group in known().values() for row in group["mutants"] if "::" in row["caught_by"]]
    return sorted(rows, key=lambda row: hashlib.sha256(f"{seed} {row['digest']}".encode()).hexdigest())


def joined(places: Iterable[Path]) -> list[Told]:
    """The most informative row of each fault in all lines of these files; among equal rows the last."""
    found: dict[str, Told] = {}
    for row in (json.loads(line) for place in places for line in place.read_text().splitlines()):
        known = found.get(row["digest"])
        if known is None or ENDS.index(row["outcome"]) <= ENDS.index(known["outcome"]):
            found[row["digest"]] = row
    return list(found.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", type=Path, nargs="+")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--record", type=Path, default=records.RESULTS / f"{KIND}.json")
    records.add_commit(parser)
    given = parser.parse_args()
    rows = joined(given.rows)
    record(rows, given.seed, given.record, given.commit)
    print(words(rows))


if __name__ == "__main__":
    main()
