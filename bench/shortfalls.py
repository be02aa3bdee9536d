"""The reasons why a record of bench.reliability proves less than its claim: something failed, was omitted or did not finish."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any

from opfacade.testing import matrix

Record = dict[str, Any]
TOOLS = frozenset({"memcheck", "racecheck", "initcheck", "synccheck"})


def shortfalls(kind: str, record: Record) -> list[str]:
    """The shortfalls of a record of this kind, one line each; [] if it proves its claim."""
    found = list(BY_KIND[kind.partition(" ")[0]](kind, record))
    return found if (record.get("machine") or {}).get("commit") else [*found, "it does not name its commit"]


def _suite(_: str, record: Record) -> Iterator[str]:
    wrong = sum(record["counts"].get(kind, 0) for kind in ("failure", "error"))
    if wrong:
        yield f"{wrong} tests failed"
    if not record.get("ran_to_its_end", False):
        yield "the run was cut off"
    yield from _lacking("random problems of", {one.op for one in classes().values()}, record["random_problems"])


def _evidence(_: str, record: Record) -> Iterator[str]:
    parts = {"SKUs": record["skus"], "random problems": record["random_problems"], "functions": record.get("exhaustive", ())}
    for what, rows in parts.items():
        wrong = sum(row.get("ok") is not True for row in rows)
        if wrong:
            yield f"{wrong} of {len(rows)} {what} did not hold"
    if record.get("effort", {}).get("quick", True):
        yield "the proof is a quick one"


def _sanitize(_: str, record: Record) -> Iterator[str]:
    results = {row["tool"]: row["result"] for row in record["tools"]}
    yield from (f"{tool} said {said}" for tool, said in results.items() if said != "clean")
    yield from _lacking("a run of", TOOLS, results)
    yield from _lacking("classes of SKU:", classes(), record["kinds"])


def _invariance(_: str, record: Record) -> Iterator[str]:
    if not record["shapes"]:
        yield "no shape was timed"


def _mutation(kind: str, record: Record) -> Iterator[str]:
    rows = record["mutants"]
    unseen = sum(not row["caught_by"] and not row.get("blind") for row in rows)
    if unseen:
        yield f"{unseen} faults were not caught, without a reason"
    yield from _lacking("faults:", planted(kind.partition(" ")[2]), [row["fault"] for row in rows])


def _lacking(what: str, wanted: Collection[str], there: Collection[str]) -> Iterator[str]:
    missing = sorted(set(wanted) - set(there))
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        yield f"it lacks {what} {', '.join(missing[:3])}{more}"


def classes() -> dict[str, Any]:
    """The current classes of SKUs."""
    return matrix.matrix()


def planted(device: str) -> frozenset[str]:
    """The names of the current planted faults."""
    from tests.mutation.run import LISTS  # an installation does not include tests

    return frozenset(mutant.name for mutant in LISTS[device])


BY_KIND: dict[str, Callable[[str, Record], Iterator[str]]] = {
    "suite": _suite,
    "evidence": _evidence,
    "sanitize": _sanitize,
    "invariance": _invariance,
    "mutation": _mutation,
}
