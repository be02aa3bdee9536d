"""Random mutation faults: totals of the record by family, and what was done about each surviving fault.

A fault that does not compile or import shows nothing about the tests. A fault that changes no behaviour is reviewed by hand
once and listed with the reason (tests/mutation/operators/equivalent.json). A survivor that a later test catches is listed with
that test in mended.json, in the same directory.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PLACE = ROOT / "bench/results/operators.json"
KNOWN = ROOT / "tests/mutation/operators"
FAMILIES = {
    "attention and its caches": "attention cascade kv_cache mask mla paged rotary",
    "products and experts": "matmul moe quantize",
    "rows and maps": "activation elementwise reduction",
    "sampling": "sampling",
    "what kernels share": "common host pipeline probes ptx ranks tile validation",
    "plans, programs, recipes": "opfacade/plans opfacade/programs opfacade/recipes opfacade/models",
    "backends and selection": "opfacade/backends opfacade/jit opfacade/select opfacade/tune",
    "frameworks": "opfacade/compat opfacade/integrations opfacade/serving opfacade/torch_ops",
    "core": "opfacade opfacade/base opfacade/core opfacade/distributed opfacade/validation",
    "checks": "opfacade/testing",
    "tools": "opfacade/bench opfacade/cli opfacade/observe opfacade/report opfacade/telemetry opfacade/tools",
}
_FAMILY = {
    group if group.startswith("opfacade") else f"kernels/{group}": name
    for name, groups in FAMILIES.items()
    for group in groups.split()
}


def records() -> dict[str, dict[str, Any]]:
    return json.loads(PLACE.read_text()) if PLACE.exists() else {}


def known(name: str) -> dict[str, str]:
    """{digest: words}: equivalent or mended faults."""
    place = KNOWN / f"{name}.json"
    return json.loads(place.read_text()) if place.exists() else {}


def counted(rows: list[dict[str, Any]]) -> Counter[str]:
    """The number of rows by outcome; uncaught faults that change no behaviour are "equivalent"."""
    same = known("equivalent")
    return Counter("equivalent" if row["digest"] in same and row["outcome"] != "caught" else row["outcome"] for row in rows)


def score(rows: list[dict[str, Any]]) -> str:
    ends = counted(rows)
    return f"{ends['caught']} of {ends['caught'] + ends['survived']} caught"


def by_seed() -> dict[int, list[tuple[str, dict[str, Any]]]]:
    """{seed: the groups of the sample with this seed}."""
    found: dict[int, list[tuple[str, dict[str, Any]]]] = {}
    for group, record in records().items():
        found.setdefault(record["seed"], []).append((group, record))
    return dict(sorted(found.items()))


def sums() -> list[str]:
    """A line for each seed, with the commits of its sample."""
    lines = []
    for seed, groups in by_seed().items():
        rows = [row for _, record in groups for row in record["mutants"]]
        later = sum(row["digest"] in known("mended") and row["outcome"] != "caught" for row in rows)
        commits = ", ".join(sorted({str(record["machine"].get("commit") or "no commit") for _, record in groups}))
        since = f", {later} more in a trial of each survivor" if later else ""
        lines.append(f"random faults made by operators, seed {seed}: {score(rows)} ({commits}){since}")
    return lines


def section() -> list[str]:
    """The lines for docs on reliability."""
    if not records():
        return []
    lines = ["## Random faults made by operators", ""]
    for text in sums():
        lines += [f"{text[0].upper()}{text[1:]}, by tests that need no GPU.", ""]
    for groups in by_seed().values():
        lines += [*_table(groups), ""]
    return [*lines, *_survivors(), ""]


def _table(groups: list[tuple[str, dict[str, Any]]]) -> list[str]:
    """Refused: the fault does not compile or import. Undecided: no test finished in time, or only a test failed that also fails
    without the fault."""
    parts: dict[str, list[dict[str, Any]]] = {name: [] for name in FAMILIES}
    for group, record in groups:
        parts[_FAMILY[group]] += record["mutants"]
    lines = ["| family | caught | survived | changes nothing | refused | undecided |", "|---|---|---|---|---|---|"]
    for name, rows in (*parts.items(), ("all", [row for some in parts.values() for row in some])):
        ends = counted(rows)
        figures = (ends[end] for end in ("caught", "survived", "equivalent", "refused", "undecided"))
        lines.append(f"| {name} | {' | '.join(map(str, figures))} |")
    return lines


def _survivors() -> list[str]:
    same, mended = known("equivalent"), known("mended")
    lines = ["| survivor | what was done |", "|---|---|"]
    for record in records().values():
        for row in record["mutants"]:
            if row["outcome"] == "survived":
                reason = f"changes nothing: {same[row['digest']]}" if row["digest"] in same else ""
                done = reason or (f"`{mended[row['digest']]}` catches it" if row["digest"] in mended else "open")
                lines.append(f"| `{row['fault'].replace('|', '/')}` | {done.replace('|', '/')} |")
    return lines
