"""Products on one GPU compared with torch, DeepGEMM and FlashInfer: `python -m bench.matmul [--out FILE] [--seed N] [--count
N]`.

Microseconds, L2 cold, all contenders of a problem alternately in one run: layers of models, then random sizes. Our outputs are
checked against their error bound before they are timed. If a peer raises, or its results differ from ours by more than its
types allow, its row has the reason instead of a time. Problems for which `--budget` leaves no time are listed by name, without
a row.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch

from bench import interleaved, records
from bench.matmul_peers import PEERS, REFUSALS, versions
from bench.matmul_problems import Problem, drawn, layers
from opfacade import Plan, Preference
from opfacade.plans.matmul import MatmulArgs
from opfacade.testing import numerics
from opfacade.tools.machine import machine

WORKERS = 16  # parallel compilers
CHECKED = 4  # rows that are compared with fp64
ALLOWED = {"bf16": 0.02, "fp8": 0.05}  # allowed difference of a peer, relative to the largest result of a row
COPIED = 2**30  # bytes
Timed = Callable[[Sequence[interleaved.Contender]], list[dict[str, Any]]]


@dataclass(frozen=True)
class Bench:
    """The device on which problems run, and the timer."""

    device: str = "cuda"
    backend: str = "cuda"
    timed: Timed = lambda contenders: interleaved.timed(contenders, interleaved.DIRTY)

    def plan(self, problem: Problem) -> Plan[Any]:
        return Plan.select(problem.descriptor, Preference(backend=self.backend))


def ours(problem: Problem, args: MatmulArgs, plan: Plan[Any]) -> interleaved.Contender:
    plan.run(args)
    report = numerics.check(problem.descriptor, args, plan.sku, rows=min(CHECKED, problem.descriptor.total_num_rows))
    if not report.worst <= 1:
        raise SystemExit(f"{problem.name}: wrong result, not timed: {report}")
    return interleaved.Contender({"impl": "opfacade", "sku": plan.sku.id}, lambda: plan.run(args))


def distance(problem: Problem, mine: torch.Tensor, theirs: torch.Tensor) -> float:
    """The difference of a peer's results from ours, relative to our largest result in the row."""
    if theirs.shape != mine.shape:
        return float("inf")
    largest = mine.float().abs().amax(-1, keepdim=True).clamp(min=1e-30)
    found = ((theirs.float() - mine.float()).abs() / largest).amax()
    return float(found.nan_to_num(float("inf")))


def peer(problem: Problem, args: MatmulArgs, name: str) -> interleaved.Contender | dict[str, str]:
    """The contender, or the reason why it cannot run."""
    try:
        call = PEERS[name](problem, args)
        far = distance(problem, args.out, call())  # type: ignore[arg-type]
    except REFUSALS as error:
        return {"declined": f"{type(error).__name__}: {error}"[:200]}
    allowed = ALLOWED["bf16" if problem.descriptor.dtype == "bf16" else "fp8"]
    if not far <= allowed:
        return {"wrong": f"{far:.3g} of the largest result of a row, {allowed} allowed"}
    return interleaved.Contender({"impl": name}, call)


def measured(problem: Problem, bench: Bench) -> dict[str, Any]:
    args = problem.args(bench.device)
    mine = ours(problem, args, bench.plan(problem))
    found = {name: peer(problem, args, name) for name in PEERS}
    peers = [one for one in found.values() if isinstance(one, interleaved.Contender)]
    own, *others = bench.timed([mine, *peers])
    d, us = problem.descriptor, own["us"]["median"]
    row: dict[str, Any] = {"table": problem.table, "layer": problem.layer, "kind": problem.kind}
    row |= {"rows": d.total_num_rows, "n": d.n, "k": d.k, "sku": own["sku"], "us": own["us"]}
    row |= {"TFLOPs": round(problem.flops / us * 1e-6, 1), "peers": {one["impl"]: one["us"] for one in others}}
    row["refused"] = {name: one for name, one in found.items() if isinstance(one, dict)}
    return row | {"of_best_peer": of_best_peer(row)}


def of_best_peer(row: dict[str, Any]) -> float | None:
    """The fastest peer's time divided by ours; None without peers."""
    times = [timing["median"] for timing in row["peers"].values()]
    return round(min(times) / row["us"]["median"], 3) if times else None


def copy_rate() -> float:
    """The terabytes per second that a copy reads and writes in this run."""
    x = torch.empty(COPIED, dtype=torch.int8, device="cuda")
    y = torch.empty_like(x)
    (found,) = interleaved.timed([interleaved.Contender({}, lambda: y.copy_(x))], interleaved.DIRTY)
    return float(round(2 * COPIED / found["us"]["median"] * 1e-6, 3))


def compile_all(problems: Sequence[Problem], bench: Bench) -> None:
    """Builds the kernels of all problems in parallel, so that no compiler runs during timing."""
    plans = {plan.sku.id: plan for plan in map(bench.plan, problems)}
    with ThreadPoolExecutor(WORKERS) as pool:
        list(pool.map(lambda plan: plan.compile(), plans.values()))


def run_all(problems: Sequence[Problem], bench: Bench, until: float, keep: Callable[[dict[str, Any]], None]) -> list[str]:
    """The rows of the problems until the deadline, and the names of the problems that were not reached."""
    for at, problem in enumerate(problems):
        if time.monotonic() > until:
            return [one.name for one in problems[at:]]
        keep(measured(problem, bench))
        if bench.device == "cuda":
            torch.cuda.empty_cache()
    return []


def shown(row: dict[str, Any]) -> str:
    sizes = f"{row['table']}, {row['layer']}: {row['rows']} x {row['n']} x {row['k']} {row['kind']}"
    others = ", ".join(f"{name} {timing['median']:.1f}" for name, timing in row["peers"].items()) or "no peer"
    return f"{sizes}: {row['us']['median']:.1f} us, {row['TFLOPs']} TFLOPs, {others}; {row['of_best_peer']}"


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The number of rows with a peer, the number that are slower than the best peer, and the three worst rows."""
    beside = sorted((row for row in rows if row["of_best_peer"] is not None), key=lambda row: row["of_best_peer"])
    slower = sum(row["of_best_peer"] < 1 for row in beside)
    return {"rows": len(rows), "beside_a_peer": len(beside), "slower": slower, "worst": [shown(row) for row in beside[:3]]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="of the random sizes")
    parser.add_argument("--count", type=int, default=200, help="random sizes")
    parser.add_argument("--budget", type=float, default=440.0, help="seconds after which no further problem begins")
    parser.add_argument("--only", default="", help="problems whose name has this text")
    records.add_commit(parser)
    records.add_out(parser, "matmul")
    options = parser.parse_args()
    until, bench = time.monotonic() + options.budget, Bench()
    problems = [one for one in (*layers(), *drawn(options.seed, options.count)) if options.only in one.name]
    out = records.place(options.out, "matmul", not options.only)
    facts = machine("cuda") | versions() | {"date": time.strftime("%Y-%m-%d"), "commit": records.commit(options.commit)}
    record: dict[str, Any] = {"machine": facts, "copy_TBs": copy_rate(), "seed": options.seed, "rows": [], "left": []}
    compile_all(problems, bench)

    def keep(row: dict[str, Any]) -> None:
        record["rows"].append(row)
        print(shown(row), flush=True)

    record["left"] = run_all(problems, bench, until, keep)
    record["summary"] = summary(record["rows"])
    print(f"copy {record['copy_TBs']} TB/s; {record['summary']}; {len(record['left'])} problems left")
    records.write(out, record)


if __name__ == "__main__":
    main()
