"""Tunes a workload twice, each time from an empty store, and measures the benefit: `python -m bench.tune work.jsonl [--out
FILE]`.

agreement: the share of problems on which both tunings chose the same SKU. gain: the time that the first tuning's choice saves
over the default for each shape, as measured by the second tuning.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from statistics import mean

from bench import records
from opfacade.bench.measure import described
from opfacade.core.target import Target
from opfacade.select.measurement_store import MeasurementStore, export
from opfacade.tools.verify import machine
from opfacade.tools.workload import read
from opfacade.tune.measure import MeasureEffort
from opfacade.tune.tune import Setup, tune


def once(works, effort: MeasureEffort, say):
    """One tuning with an empty store."""
    with tempfile.TemporaryDirectory() as place:
        return tune(works, setup=Setup(effort=effort, store=MeasurementStore(Path(place) / "tune.db")), report=say)


def compared(work, one, two) -> dict:
    """A problem with a choice: the results of both tunings."""
    times = {m.sku: m.median_us for m in two.row.measured}
    chosen, default = one.row.winner, one.default
    return {
        "problem": described(work),
        "default": default,
        "chosen": chosen,
        "same": chosen == two.row.winner,
        "default_us": times.get(default),
        "chosen_us": times.get(chosen),
        "gain": 1 - times[chosen] / times[default] if chosen in times and default in times else None,
        "measured": {m.sku: [round(m.median_us, 3), round(m.noise, 4), m.samples] for m in two.row.measured},
        "wrong": one.wrong | two.wrong,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--rounds", type=int, default=MeasureEffort().most)
    parser.add_argument("--top", type=int, help="only the first so many problems")
    parser.add_argument("--table", type=Path, help="also write the first tuning as a table to ship")
    parser.add_argument("--commit", help="recorded")
    records.add_out(parser, "tune")
    options = parser.parse_args()
    works, started = read(options.file.read_text())[: options.top], time.monotonic()
    effort = MeasureEffort(least=min(MeasureEffort().least, options.rounds), most=options.rounds)
    tunings = [once(works, effort, lambda t: print(".", end="", flush=True)) for _ in range(2)]
    print()
    rows = [compared(w, a, b) for w, a, b in zip(works, *tunings, strict=True) if a.row and b.row and not a.reused]
    gains = [row["gain"] for row in rows if row["gain"] is not None]
    record = {
        "machine": machine("cpu" if Target.current().is_cpu else "cuda")
        | {"date": time.strftime("%Y-%m-%d"), "commit": options.commit},
        "seconds": round(time.monotonic() - started, 1),
        "problems": len(rows),
        "agreement": mean(row["same"] for row in rows) if rows else None,
        "mean_gain": mean(gains) if gains else None,
        "rows": rows,
    }
    for row in sorted(rows, key=lambda row: -(row["gain"] or 0)):
        spec = row["chosen"].split("/")[7]
        print(f"{row['gain'] or 0:+7.1%} {'same' if row['same'] else 'OTHER':5} {row['problem']:60} {spec}")
    print({name: record[name] for name in ("problems", "agreement", "mean_gain", "seconds")})
    if options.table:
        options.table.write_text(export(t.row for t in tunings[0] if t.row and not t.reused))
    records.write(records.place(options.out, "tune", not options.top), record)


if __name__ == "__main__":
    main()
