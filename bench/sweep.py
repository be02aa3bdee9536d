"""Random problems compared with their peers on one GPU: `python -m bench.sweep KIND --seed N [--count 200] [--limit SECONDS]`.

A kind is a module of bench/sweeps. A seed gives the same problems everywhere. Our result is checked against its error bound in
fp64 before it is timed, and a wrong result ends the run. Peers: torch eager, FlashInfer (for norms, if it can be imported) and,
for one problem in three, torch.compile, because it compiles for seconds. `--limit` bounds the total time. The record, which is
written every 20 problems, contains the number of problems that were not reached, and the seconds of compiling, checking, peers
and timing. A sampler's peer that takes more than a millisecond is timed with 5 samples, others with 30. The three worst ratios
are printed last.
"""

from __future__ import annotations

import argparse
import importlib
import json
import time
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any

import torch

from bench import records
from bench.attention import machine
from bench.maps import Problem
from bench.sweeps import contest, prepare

WHOLE, WORST = 200, 3
HELPERS = ("contest", "prepare", "shapes")
COMPILING = 0.5  # of the time limit, at most


def kinds() -> list[str]:
    """The modules that define problems."""
    found = (path.stem for path in (Path(__file__).parent / "sweeps").glob("[a-z]*.py"))
    return sorted(name for name in found if name not in HELPERS)


def drawn(kind: str, seed: int, count: int) -> list[Problem]:
    return list(islice(module_of(kind).problems(Random(seed)), count))


def module_of(kind: str) -> ModuleType:
    return importlib.import_module(f"bench.sweeps.{kind}")


def worst(rows: Sequence[dict[str, Any]], count: int = WORST) -> list[dict[str, Any]]:
    """The rows with the smallest ratio of the fastest peer's time to ours."""
    return sorted((row for row in rows if "ratio" in row), key=lambda row: float(row["ratio"]))[:count]


def told(row: dict[str, Any]) -> str:
    peers = ", ".join(f"{name} {us:.1f}" for name, us in row["us"].items() if name != "opfacade")
    return f"{row.get('ratio', 0):.2f}  {row['us']['opfacade']:.1f} us  {row['problem']}: {peers}"


def measure_of(kind: str) -> Callable[[Any, int], dict[str, Any]]:
    """(problem, index) -> its row; by the module's `measured` if it has its own peers."""
    found: Callable[[Any, int], dict[str, Any]] = getattr(module_of(kind), "measured", contest.measured)
    return found


def run(kind: str, problems: Sequence[Problem], record: dict[str, Any], ends: float, out: Path | None) -> None:
    for index, problem in enumerate(problems):
        record["not_reached"] = len(problems) - index
        if time.monotonic() > ends:
            break
        record["rows"].append(measure_of(kind)(problem, index))
        print(told(record["rows"][-1]), flush=True)
        torch.cuda.empty_cache()
        torch.compiler.reset()
        if index % 20 == 19:
            records.write(out, record | {"not_reached": len(problems) - index - 1} | summary(record))
    else:
        record.pop("not_reached", None)
    record |= summary(record)
    records.write(out, record)


def summary(record: dict[str, Any]) -> dict[str, Any]:
    """Prints the worst rows so far, and the seconds of each phase."""
    rows = [{name: row[name] for name in ("problem", "us", "ratio")} for row in worst(record["rows"])]
    return {"worst": rows, "spent_s": {name: round(seconds, 1) for name, seconds in contest.SPENT.items()}}


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=kinds())
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--count", type=int, default=WHOLE)
    parser.add_argument("--limit", type=float, default=600.0, help="seconds")
    parser.add_argument("--part", type=int, help=argparse.SUPPRESS)
    records.add_commit(parser)
    records.add_out(parser, "sweep_KIND")
    return parser.parse_args()


def contest_of(problems: Sequence[Problem], options: argparse.Namespace) -> None:
    """Compiles, times, writes and reports."""
    started, out = time.monotonic(), records.place(options.out, f"sweep_{options.kind}", whole=options.count >= WHOLE)
    words = [options.kind, "--seed", str(options.seed), "--count", str(options.count)]
    prepare.by_processes(words, COMPILING * options.limit)
    record: dict[str, Any] = {"machine": machine(), "seed": options.seed, "compiled_every": contest.COMPILED_EVERY, "rows": []}
    record["machine"]["commit"] = records.commit(options.commit) or record["machine"]["commit"]
    record["compile_s"] = round(time.monotonic() - started, 1)
    run(options.kind, problems, record, started + options.limit, out)
    below = sum(row.get("ratio", 1) < 1 for row in record["rows"])
    told_all = {name: record[name] for name in ("compile_s", "spent_s")}
    print(json.dumps({"rows": len(record["rows"]), "below_1": below, "not_reached": record.get("not_reached", 0)} | told_all))
    for row in worst(record["rows"]):
        print(told(row))


def main() -> None:
    options = parsed()
    problems = drawn(options.kind, options.seed, options.count)
    if options.part is None:
        contest_of(problems, options)
    else:
        prepare.share(problems, options.part, peers=not hasattr(module_of(options.kind), "measured"))


if __name__ == "__main__":
    main()
