"""Joins records of bench, tune, verify, telemetry and the cache on the SKU: plain values in, plain values out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from opfacade.bench.table import fastest, problems
from opfacade.errors import DescriptorError
from opfacade.jit.cache.upkeep import Entry
from opfacade.select.decision import TuningRow

Facts = dict[str, Any]


@dataclass(frozen=True)
class ReportSources:
    """Inputs of a report; each may be empty. bench, verify: records of `opfacade bench` and `verify`.
    counts: the sums of `opfacade.telemetry.file.read`."""

    bench: Sequence[Facts] = ()
    verify: Sequence[Facts] = ()
    tuned: Sequence[TuningRow] = ()
    cache: Sequence[Entry] = ()
    counts: Facts = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SkuLine:
    """All facts about one SKU. parts: its id in readable parts. noise: the noise of `share`. None: unknown."""

    sku: str
    op: str
    kernel: str
    facts: tuple[str, ...]
    promises: tuple[str, ...] | None
    held: bool | None
    worst: float | None
    problems: int
    share: float | None
    noise: float | None
    lead: float | None
    chosen: int
    built: float | None
    registers: int | None
    spills: int | None
    runs: int | None


def joined(sources: ReportSources) -> Facts:
    """The complete content of a page."""
    for name, records in (("bench", sources.bench), ("verify", sources.verify)):
        for record in records:
            require(name, record)
    try:
        lines = sorted((_line(sku, sources) for sku in _skus(sources)), key=lambda line: (line.op, line.kernel, line.facts))
        return {"lines": lines, "glance": glance(sources, lines), "sources": sources}
    except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError) as wrong:  # rows may have any content
        expected = "report: expected rows as `opfacade bench` and `opfacade verify` write them"
        message = f"{expected}, got one of another form: {type(wrong).__name__}: {wrong}. [OPF-P001]"
        raise DescriptorError(message, code="OPF-P001", op="report", stage="read") from wrong


def require(name: str, record: object) -> None:
    """Raises DescriptorError if this is not a record of the command `name` ("bench" or "verify"), or was changed after it was
    written."""
    needed = {"bench": ("rows", "ceilings"), "verify": ("skus", "ok")}[name]
    if not isinstance(record, dict) or any(key not in record for key in ("machine", *needed)):
        message = f"report: {name} expected a record that `opfacade {name}` wrote, got something else. [OPF-P001]"
        raise DescriptorError(message, code="OPF-P001", op="report", stage="read")
    if name == "verify":
        _require_seal(record)


def _require_seal(record: Facts) -> None:
    """A record of verify contains the digest of all its other fields."""
    from opfacade.tools.verify import seal

    got, wanted = record.get("sha256"), seal(record)
    if got != wanted:
        expected = f"expected a verify record with sha256 {wanted[:16]}, as its content gives, got {str(got)[:16]}"
        hint = "It was changed after it was written; run `opfacade verify` again."
        raise DescriptorError(f"report: {expected}. {hint} [OPF-P002]", code="OPF-P002", op="report", stage="read", hint=hint)


def _skus(sources: ReportSources) -> set[str]:
    found = {row["sku"] for record in sources.bench for row in record["rows"] if "sku" in row}
    found |= {row["sku"] for record in sources.verify for row in record["skus"]}
    found |= {m.sku for row in sources.tuned for m in row.measured}
    return found | set(sources.counts.get("skus", {}))


def _line(sku: str, sources: ReportSources) -> SkuLine:
    parts = (sku.split("/") + [""] * 9)[:9]
    proof = next((row for record in sources.verify for row in record["skus"] if row["sku"] == sku), None)
    entry = next((e for e in sources.cache if proof and proof.get("cache_key") == e.key), None)
    timed = list(_timed(sku, sources.bench))
    return SkuLine(
        sku=sku,
        op=parts[1],
        kernel=f"{parts[2]}/{parts[4]}",
        facts=tuple(_fact(name, value) for name, value in _pairs(f"{parts[5]},{parts[7]}") if value != "false"),
        promises=None if proof is None else _promises(proof["promise"]),
        held=None if proof is None else bool(proof["ok"]),
        worst=None if proof is None else max((c.get("worst_over_hard", 0.0) for c in proof["tried"].values()), default=0.0),
        problems=len(timed),
        share=max(timed, default=(None, None))[0],
        noise=max(timed, default=(None, None))[1],
        lead=max(_leads(sku, sources.bench), default=None),
        chosen=sum(row.winner == sku for row in sources.tuned),
        built=entry.seconds if entry else None,
        registers=_most(entry, "registers"),
        spills=_most(entry, "spill_stores"),
        runs=sources.counts.get("skus", {}).get(sku, {}).get("runs"),
    )


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    """The facts in a SKU id; an element type that all operands share appears once."""
    found = [tuple(pair.split("=", 1)) for pair in text.split(",") if "=" in pair]
    types = [value for name, value in found if name in ("kv", "o", "q")]
    if types and len(set(types)) == 1:
        yield "dtype", types[0]
        found = [(name, value) for name, value in found if name not in ("kv", "o", "q")]
    yield from ((name, value) for name, value in found)


def _fact(name: str, value: str) -> str:
    return name if value == "true" else f"{name} {value}"


def _promises(promise: Facts) -> tuple[str, ...]:
    names = {"bit_stable_on_same_hardware": "bit-stable", "deterministic": "deterministic"}
    words = [word for name, word in names.items() if promise.get(name)][:1]
    return tuple(words + (["batch-invariant"] if promise.get("batch_invariant") == "composition" else []))


def _timed(sku: str, records: Sequence[Facts]) -> Iterator[tuple[float, float]]:
    """For each problem on which it was timed: the fraction of the machine's ceiling, and the noise of this fraction."""
    for record in records:
        for row in (row for row in record["rows"] if row.get("sku") == sku and "us" in row):
            top = record["ceilings"]
            yield max(row["TBs"] / top["TBs"], row["TFLOPs"] / top["TFLOPs"]), row["noise"]


def _leads(sku: str, records: Sequence[Facts]) -> Iterator[float]:
    """Its speed relative to the best other kernel, for each problem that another kernel also ran."""
    for record in records:
        for rows in problems(record):
            for row in (row for row in rows if row.get("sku") == sku and "us" in row):
                rival = fastest([other for other in rows if other is not row])
                if rival:
                    yield rival["us"] / row["us"]


def _most(entry: Entry | None, name: str) -> int | None:
    return max((used.get(name, 0) for used in entry.resources.values()), default=None) if entry else None


def glance(sources: ReportSources, lines: Sequence[SkuLine]) -> list[tuple[str, str, str]]:
    """Triples (number, label, rating: "good", "bad" or "") for the head of the page."""
    held, proven = sum(line.held is True for line in lines), sum(line.held is not None for line in lines)
    rows = [row for record in sources.bench for row in record["rows"]]
    timed, wrong = sum("us" in row for row in rows), sum("wrong" in row for row in rows)
    first, rivals = _firsts(sources.bench)
    found = [(str(len(lines)), "SKUs seen", "")]
    found += [(f"{held} of {proven}", "held to their guarantee", "good" if held == proven else "bad")] if proven else []
    found += [(str(timed), "timings", "")] if timed else []
    found += [(f"{first} of {rivals}", "problems on which opfacade leads its peers", "")] if rivals else []
    found += [(str(wrong), "wrong outputs, not timed", "bad")] if wrong else []
    if sources.tuned:
        gains = [row.gain for row in sources.tuned]
        found.append((f"{sum(gains) / len(gains):.1%}", f"mean gain of {len(gains)} tuned choices", ""))
    if sources.cache:
        size = sum(entry.size for entry in sources.cache) / 2**20
        found.append((str(len(sources.cache)), f"kernels in the cache, {size:.1f} MiB", ""))
    return found


def _firsts(records: Sequence[Facts]) -> tuple[int, int]:
    """(problems on which we are the fastest, problems that a peer also ran)."""
    first = total = 0
    for record in records:
        for rows in problems(record):
            timed = [row for row in rows if "us" in row]
            if any("sku" in row for row in timed) and any("sku" not in row for row in timed):
                best = fastest(timed)
                total, first = total + 1, first + (best is not None and "sku" in best)
    return first, total
