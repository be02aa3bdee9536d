"""The record of samples: bench/results/operators.json, for each group of files its newest sample with seed, commit and rows."""

from __future__ import annotations

import hashlib
import json
import platform
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from bench import records
from opfacade.tools import kernel_digests
from tests.mutation import run
from tests.mutation.operators.population import group_of
from tests.mutation.operators.trial import CAUGHT, SURVIVED, Row

KIND = "operators"


def words(rows: Iterable[Row]) -> str:
    """caught of those that a test could see."""
    counts = Counter(row.outcome for row in rows)
    judged = counts[CAUGHT] + counts[SURVIVED]
    others = ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items()) if outcome not in (CAUGHT, SURVIVED))
    return f"{counts[CAUGHT]} of {judged} caught{f'; {others}' if others else ''}"


def known(place: Path | None = None) -> dict[str, dict]:
    path = place or records.RESULTS / f"{KIND}.json"
    return json.loads(path.read_text()) if path.exists() else {}


def record(rows: list[Row], seed: int, place: Path, commit: str | None, device: str = "host") -> None:
    """Put the sample of each group in the place of its older one."""
    own = run.machine("gpu") if device == "gpu" else {"device": platform.machine()}
    machine = own | {"python": platform.python_version(), "date": time.strftime("%Y-%m-%d")}
    groups = sorted({group_of(row.fault.file) for row in rows})
    parts = {name: [row for row in rows if group_of(row.fault.file) == name] for name in groups}
    new = {
        name: {
            "seed": seed,
            "machine": machine | {"commit": records.commit(commit)},
            "kernels": kernel_digests.stamp(),
            "score": words(some),
            "mutants": [row.told() for row in some],
        }
        for name, some in parts.items()
    }
    place.write_text(json.dumps(dict(sorted((known(place) | new).items())), indent=1) + "\n")


def caught(seed: int) -> list[dict]:
    """The recorded rows of faults that a test caught, in an order of the seed."""
    rows = [row for group in known().values() for row in group["mutants"] if "::" in row["caught_by"]]
    return sorted(rows, key=lambda row: hashlib.sha256(f"{seed} {row['digest']}".encode()).hexdigest())
