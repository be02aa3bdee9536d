"""Prints the page on reliability from the records in bench/results: `scripts/reliability [--check]`.

No part of that page is written by hand. Each claim has a record with counts, date, machine and the digest of its kernels, or is
listed under "not shown". A record of other kernels than the current ones is marked "older than the kernels", and a record with
failures or missing parts says so (bench/shortfalls.py); `--check` fails on both. The digests cover code without comments
(`opfacade.tools.kernel_digests`), so changed comments do not make a record old.
"""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from pathlib import Path
from typing import Any

from bench import random_faults
from bench.shortfalls import shortfalls
from opfacade.tools import kernel_digests
from opfacade.tools.verify import seal

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench/results"

MISSING = {
    "suite": "the GPU tests: `python -m bench.suite --heavy`",
    "evidence": "the proof of every SKU: `opfacade verify --out bench/results/evidence.json`",
    "sanitize": "compute-sanitizer over the SKU matrix: `scripts/sanitize`",
    "invariance": "the cost of batch invariance: `python -m bench.invariance`",
    "mutation gpu": "faults planted in kernels: `scripts/mutate --gpu`",
    "mutation cpu": "faults planted in Python: `scripts/mutate --cpu`",
    "mutation host": "faults planted in Python that decides or judges: `scripts/mutate --host`",
}
NEVER = (
    "Reads of the counters of a split decode by initcheck: they start from any memory, and it is shown memory that was filled.",
    "Architectures other than those named above: a promise of equal bits is for one GPU model and its SM count.",
    "Two different GPU models compared bit for bit: no SKU promises that.",
    "MIG slices and green contexts.",
    "Driver and compiler versions other than those in the records.",
    "Windows, and machines that are not x86-64.",
    "An eight-hour soak.",
)


def records() -> dict[str, tuple[str, dict[str, Any]]]:
    """The existing records: {kind: (file name, content)}."""
    files = {kind: RESULTS / f"{kind}.json" for kind in ("suite", "evidence", "sanitize", "invariance", "mutation")}
    read = {kind: json.loads(path.read_text()) for kind, path in files.items() if path.exists()}
    devices = read.pop("mutation", {})
    found = {kind: (f"{kind}.json", content) for kind, content in read.items()}
    return found | {f"mutation {device}": ("mutation.json", content) for device, content in devices.items()}


def date(record: dict[str, Any]) -> str:
    return str(record.get("date") or record.get("machine", {}).get("date") or "")


def stamp(name: str, record: dict[str, Any]) -> str:
    """Machine, date and file of a record."""
    machine = record.get("machine", {})
    words = [str(machine.get("device", "?"))]
    words += [f"{key} {machine[key]}" for key in ("torch", "cuda", "driver", "python") if machine.get(key)]
    words.append(f"commit {machine.get('commit') or 'not recorded'}")
    words += [f"compiler: {machine['compiler']}"] if machine.get("compiler") else []
    of = record.get("kernels") or {}
    words += [f"kernels {of['digest'][:12]}"] if of else []
    return filled(f"{', '.join(words)}; {date(record)[:10]}; [`{name}`](../bench/results/{name}).")


def outdated(kind: str, record: dict[str, Any]) -> str:
    """The reason why a record does not prove the current kernels; "" if it does."""
    if kind == "evidence":
        return outdated_evidence(record)
    if not record.get("kernels"):
        return "older than the kernels: it does not name those that it is of"
    return "" if kernel_digests.is_present(record["kernels"]) else "older than the kernels"


def outdated_evidence(record: dict[str, Any]) -> str:
    """As `outdated`, for each SKU separately."""
    if record.get("sha256") != seal(record):
        return "changed after it was written: its sha256 is that of other content"
    missing, older = unproven(record)
    words = ["SKUs that are selected now are not in it"] if missing else []
    words += ["SKUs in it have other code now"] if older else []
    return f"older than the kernels: {' and '.join(words)}" if words else ""


def unproven(record: dict[str, Any]) -> tuple[int, int]:
    """The number of currently selected SKUs without a proof, and the number whose proof has other code. Only `--check` prints
    these numbers, because each new kernel changes them."""
    proven = {row["sku"]: row.get("code") for row in record["skus"]}
    present = kernel_digests.present()
    missing = sum(sku not in proven for sku in present)
    return missing, sum(sku in proven and proven[sku] != code for sku, code in present.items())


def filled(text: str) -> str:
    return textwrap.fill(text, 128, break_long_words=False, break_on_hyphens=False)


def suite(record: dict[str, Any]) -> list[str]:
    counts = record["counts"]
    told = [f"{counts.get(kind, 0)} {kind}" for kind in ("passed", "skipped", "failure", "error")]
    whole = "" if record.get("ran_to_its_end", True) else ", when it was cut off"
    lines = [f"{', '.join(told)}, in {record['seconds']} s{whole}.", ""]
    lines += [filled(record["note"]), ""] if record.get("note") else []
    wrong = [name for name in record["not_passed"] if not name.endswith(": skipped")]
    lines += [*(f"- `{name}`" for name in wrong), ""] if wrong else []
    lines += ["| random problems of | problems | elements held | worst over hard | worst over tight |", "|---|---|---|---|---|"]
    for op, row in sorted(record["random_problems"].items()):
        worst = f"{row['worst_over_hard']:.3f} | {row['worst_over_tight']:.3f}"
        lines.append(f"| `{op}` | {row['problems']:.0f} | {row['elements']:,.0f} | {worst} |")
    shown = [*record.get("shown", ())]
    return lines + (
        ["", "Repeatability and batch invariance, comparisons of bits:", "", *[f"- `{s}`" for s in shown]] if shown else []
    )


def evidence(record: dict[str, Any]) -> list[str]:
    held = sum(row["ok"] for row in record["skus"])
    lines = [
        f"{held} of {len(record['skus'])} SKUs held. sha256 `{record.get('sha256', 'missing')}`.",
        "",
        "| SKU | tried | held | kernel |",
        "|---|---|---|---|",
    ]
    for row in record["skus"]:
        tried = "; ".join(f"{name} {count(claim)}" for name, claim in row["tried"].items())
        lines.append(f"| `{row['sku']}` | {tried} | {'yes' if row['ok'] else '**no**'} | {age(row)} |")
    return lines


def age(row: dict[str, Any]) -> str:
    """Whether the SKU of a proof is currently selected, with the proven code."""
    code = kernel_digests.present().get(row["sku"])
    return "**not selected now**" if code is None else row["code"][:12] if code == row.get("code") else "**older**"


def count(claim: dict[str, Any]) -> str:
    if "runs" in claim:
        return f"{claim['different']} of {claim['runs']} differ"
    if "elements" in claim:
        return f"{claim['worst_over_hard']:.3f} of the bound over {claim['elements']:,}"
    return f"{len(claim['checks'])} checks"


def sanitize(record: dict[str, Any]) -> list[str]:
    kinds = len(record["kinds"])
    lines = [f"{kinds} classes of SKU, {record['seeds']} calls each.", "", "| tool | result | seconds |", "|---|---|---|"]
    return lines + [f"| {row['tool']} | {row['result']} | {row['seconds']} |" for row in record["tools"]]


def invariance(record: dict[str, Any]) -> list[str]:
    lines = [
        'Time of the fastest batch-invariant SKU over that of `kv_split="auto"`.',
        "",
        "| shape | split | cost |",
        "|---|---|---|",
    ]
    return lines + [f"| {row['shape']} | {row['best_invariant']} | x{row['cost']:.3f} |" for row in record["shapes"]]


def untried(record: dict[str, Any]) -> int:
    """The number of listed planted faults without a row; 0 if the record does not state the number of listed faults."""
    return max(0, record.get("listed", 0) - len(record["mutants"]))


def mutation(record: dict[str, Any]) -> list[str]:
    rows = record["mutants"]
    missed = [row["fault"] for row in rows if not row["caught_by"]]
    left = f"; listed and not tried: {untried(record)}" if untried(record) else ""
    lines = [f"{len(rows) - len(missed)} of {len(rows)} planted faults caught{left}; the table is [mutation.md](mutation.md)."]
    return lines + [f"- missed: {fault}" for fault in missed]


SECTIONS = {
    "suite": ("GPU tests", suite),
    "evidence": ("Every SKU held to its guarantee", evidence),
    "sanitize": ("Memory, races, initialisation, barriers", sanitize),
    "invariance": ("What batch invariance costs", invariance),
    "mutation gpu": ("Faults planted in kernels", mutation),
    "mutation cpu": ("Faults planted in Python and schedules", mutation),
    "mutation host": ("Faults planted in Python that decides or judges", mutation),
}


def sums() -> list[str]:
    """The totals of the records, each with its commit, for the last row of the README's table of operators."""
    found = records()
    told = []
    if "suite" in found:
        record = found["suite"][1]
        counts = ", ".join(f"{record['counts'].get(kind, 0)} {kind}" for kind in ("passed", "skipped", "failure", "error"))
        told.append(f"GPU tests: {counts} ({_of(record)})")
    if "evidence" in found:
        record = found["evidence"][1]
        held = sum(row["ok"] for row in record["skus"])
        told.append(f"kernels that hold their guarantees: {held} of {len(record['skus'])} ({_of(record)})")
    for kind, (_, record) in found.items():
        if kind.startswith("mutation"):
            caught = sum(bool(row["caught_by"]) for row in record["mutants"])
            told.append(
                f"faults planted by hand, {kind.partition(' ')[2]}: {caught} of {len(record['mutants'])} caught ({_of(record)})"
            )
    return [f"| evidence for all of these | `scripts/reliability` | {'; '.join([*told, *random_faults.sums()])} | | |"]


def _of(record: dict[str, Any]) -> str:
    return str(record.get("machine", {}).get("commit") or "no commit")


def page() -> str:
    """The whole page."""
    found = records()
    lines = ["# Reliability", "", "Written by `scripts/docs` from the records in `bench/results`.", ""]
    for kind, (title, body) in SECTIONS.items():
        if kind in found:
            name, record = found[kind]
            why = outdated(kind, record)
            warning = [filled(f"**This record is {why}.**"), ""] if why else []
            short = shortfalls(kind, record)
            warning += [filled(f"**This record proves less than it should: {'; '.join(short)}.**"), ""] if short else []
            lines += [f"## {title}", "", stamp(name, record), "", *warning, *body(record), ""]
    lines += random_faults.section()
    unshown = [f"- No record yet of {MISSING[kind]}." for kind in SECTIONS if kind not in found]
    lines += ["## Not shown", "", *unshown, *(f"- {text}" for text in NEVER), ""]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    help_text = "status 1 if a record is missing, incomplete or older than the kernels"
    parser.add_argument("--check", action="store_true", help=help_text)
    if parser.parse_args().check:
        found = faults()
        print("\n".join(found) or f"every record is of the kernels of today, {kernel_digests.stamp()['digest'][:12]}")
        return int(bool(found))
    print(page(), end="")
    return 0


def faults() -> list[str]:
    """One line for each reason why `--check` fails."""
    found = records()
    lines = [f"no record of {MISSING[kind]}" for kind in SECTIONS if kind not in found]
    for kind, (name, record) in found.items():
        why = outdated(kind, record)
        if kind == "evidence" and why:
            missing, older = unproven(record)
            why += f" ({missing} of {len(kernel_digests.present())} missing, {older} of other code)"
        lines += [f"{name} ({kind}) is {why}; record again {MISSING[kind]}"] if why else []
        lines += [f"{name} ({kind}) proves less than it should: {short}" for short in shortfalls(kind, record)]
    return lines


if __name__ == "__main__":
    sys.exit(main())
