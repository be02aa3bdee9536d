"""Layers of experts on one GPU compared with torch and Triton: `python -m bench.moe [--out FILE] [--only TEXT] [--budget
SECONDS]`.

Microseconds, L2 cold, all contenders of a problem alternately in one run; calls are CUDA graphs unless they need the host. Ids
and weights are inputs. Our outputs are checked against their error bound before they are timed. If a peer raises, or its
results differ from ours by more than its types allow, its row has the reason instead of a time. `floor_us` is the maximum of
1.8 us + bytes / (0.97 of the rate of a copy) and the time of the products at the rate of one large product, with both rates
measured in this run; bytes count only the chosen experts. Problems for which `--budget` leaves no time are listed by name,
without a row.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from bench import interleaved, records
from bench.matmul import copy_rate
from bench.matmul_problems import halves, in_bytes
from bench.moe_peers import PEERS, REFUSALS, Peer
from bench.moe_problems import Problem, counts_of, fill, layers, weights_of
from opfacade import Plan, Preference
from opfacade.plans.moe import FusedMoeArgs
from opfacade.serving.workspace import Workspace
from opfacade.testing import numerics
from opfacade.tools.machine import machine

CHECKED = 4  # rows that are compared with fp64
ALLOWED = 0.04  # allowed difference of a peer, relative to the largest result of a row
LAUNCH_US, OF_COPY = 1.8, 0.97
LARGE = (8192, 8192, 8192)
Call = Callable[[], object]
Timed = Callable[[Sequence[interleaved.Contender]], list[dict[str, Any]]]


@dataclass(frozen=True)
class Rates:
    """The rates of this run: bytes of a copy, and operations of a large product of each kind; 10^12 per second."""

    copy: float
    products: dict[str, float]

    def floor_us(self, problem: Problem, counts: torch.Tensor) -> dict[str, float]:
        memory = LAUNCH_US + problem.bytes(counts) / (OF_COPY * self.copy) * 1e-6
        product = problem.flops / self.products[problem.kind] * 1e-6
        return {"memory": round(memory, 2), "product": round(product, 2), "floor": round(max(memory, product), 2)}


@dataclass(frozen=True)
class Bench:
    """The device on which problems run, and the timer. captured: a call as a graph."""

    rates: Rates
    device: str = "cuda"
    backend: str = "cuda"
    timed: Timed = lambda contenders: interleaved.timed(contenders, interleaved.DIRTY)
    captured: Callable[[Call], Call] = lambda call: captured(call)

    def plan(self, problem: Problem) -> Plan[Any]:
        return Plan.select(problem.descriptor, Preference(backend=self.backend))


def captured(call: Call) -> Call:
    """A replay of the call. Keeps the call's tensors alive, because the graph contains only their addresses."""
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return partial(_replay, graph, call)


def _replay(graph: torch.cuda.CUDAGraph, kept: Call) -> None:
    graph.replay()


def ours(problem: Problem, args: FusedMoeArgs, bench: Bench) -> interleaved.Contender:
    plan = bench.plan(problem)
    workspace = Workspace(bench.device)
    call = bench.captured(lambda: plan.run(args, workspace.of(plan)))
    args.out.fill_(float("nan"))
    call()
    report = numerics.check(problem.descriptor, args, plan.sku, rows=min(CHECKED, problem.tokens))
    if not report.worst <= 1:
        raise SystemExit(f"{problem.name}: wrong result, not timed: {report}")
    return interleaved.Contender({"impl": "opfacade", "sku": plan.sku.id}, call)


def distance(mine: torch.Tensor, theirs: torch.Tensor) -> float:
    """The difference of a peer's results from ours, relative to our largest result in the row."""
    largest = mine.float().abs().amax(-1, keepdim=True).clamp(min=1e-30)
    return float(((theirs.float() - mine.float()).abs() / largest).amax().nan_to_num(float("inf")))


def peer(problem: Problem, args: FusedMoeArgs, one: Peer, bench: Bench) -> Call | dict[str, str]:
    """The peer's call, or the reason why it cannot run."""
    try:
        call = one.make(problem, args)
        far = distance(args.out, call())
        if not far <= ALLOWED:
            return {"wrong": f"{far:.3g} of the largest result of a row, {ALLOWED} allowed"}
        return bench.captured(call) if one.captured else call
    except REFUSALS as error:
        return {"declined": f"{type(error).__name__}: {error}"[:200]}


def measured(problem: Problem, weights: FusedMoeArgs, bench: Bench) -> dict[str, Any]:
    args = problem.args(weights)
    mine, counts = ours(problem, args, bench), counts_of(problem, args.ids)
    found = {name: peer(problem, args, one, bench) for name, one in PEERS.items()}
    peers = [interleaved.Contender({"impl": name}, one) for name, one in found.items() if not isinstance(one, dict)]
    own, *others = bench.timed([mine, *peers])
    us, floor = own["us"]["median"], bench.rates.floor_us(problem, counts)
    row: dict[str, Any] = {"layer": problem.layer, "kind": problem.kind, "tokens": problem.tokens, "routing": problem.routing}
    row |= {"experts_drawn": int((counts > 0).sum()), "fill_of_16": fill(counts), "sku": own["sku"], "us": own["us"]}
    row |= {"floor_us": floor, "of_floor": round(floor["floor"] / us, 3), "TFLOPs": round(problem.flops / us * 1e-6, 1)}
    row |= {"peers": {one["impl"]: one["us"] for one in others}}
    row["refused"] = {name: one for name, one in found.items() if isinstance(one, dict)}
    times = [timing["median"] for timing in row["peers"].values()]
    return row | {"of_best_peer": round(min(times) / us, 3) if times else None}


def shown(row: dict[str, Any]) -> str:
    name = f"{row['layer']} {row['kind']} T={row['tokens']} {row['routing']}"
    others = ", ".join(f"{peer} {timing['median']:.1f}" for peer, timing in row["peers"].items()) or "no peer"
    floor = row["floor_us"]["floor"]
    return f"{name}: {row['us']['median']:.1f} us, floor {floor:.1f} ({row['of_floor']}), {others}; {row['of_best_peer']}"


def rates() -> Rates:
    """The rate of the best product of each kind in this run; for bf16, torch's product counts too."""
    products = {}
    for kind, problem in (("bf16", halves("large", "square", *LARGE)), ("fp8", in_bytes("large", "square", LARGE, "block"))):
        args = problem.args("cuda")
        plan = Plan.select(problem.descriptor, Preference(backend="cuda"))
        contenders = [interleaved.Contender({}, lambda plan=plan, args=args: plan.run(args))]
        if kind == "bf16":
            contenders.append(interleaved.Contender({}, lambda args=args: torch.mm(args.x, args.weight.T)))
        best = min(row["us"]["median"] for row in interleaved.timed(contenders, interleaved.DIRTY))
        products[kind] = round(problem.flops / best * 1e-6, 1)
    return Rates(copy_rate(), products)


def chosen(text: str) -> Iterator[tuple[str, str, list[Problem]]]:
    for layer, kind, problems in layers():
        kept = [one for one in problems if text in one.name]
        if kept:
            yield layer, kind, kept


def compile_all(text: str) -> None:
    """Builds the kernels of all problems in parallel, so that no compiler runs during timing."""
    problems = [one for _, _, each in chosen(text) for one in each]
    plans = {plan.sku.id: plan for plan in (Plan.select(one.descriptor, Preference(backend="cuda")) for one in problems)}
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda plan: plan.compile(), plans.values()))


def run_all(text: str, bench: Bench, until: float, keep: Callable[[dict[str, Any]], None]) -> list[str]:
    """The rows of the problems until the deadline, and the names of the problems that were not reached."""
    left: list[str] = []
    for layer, kind, problems in chosen(text):
        if time.monotonic() > until:
            left += [one.name for one in problems]
            continue
        weights = weights_of(layer, kind, bench.device)
        for problem in problems:
            if time.monotonic() > until:
                left.append(problem.name)
            else:
                keep(measured(problem, weights, bench))
        del weights
        if bench.device == "cuda":
            torch.cuda.empty_cache()
    return left


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--budget", type=float, default=240.0, help="seconds after which no further problem begins")
    parser.add_argument("--only", default="", help="problems whose name has this text")
    records.add_commit(parser)
    records.add_out(parser, "moe")
    options = parser.parse_args()
    until = time.monotonic() + options.budget
    out = records.place(options.out, "moe", not options.only)
    compile_all(options.only)
    found = rates()
    facts = machine("cuda") | {"date": time.strftime("%Y-%m-%d"), "commit": records.commit(options.commit)}
    record: dict[str, Any] = {
        "machine": facts,
        "copy_TBs": found.copy,
        "product_TFLOPs": found.products,
        "rows": [],
        "left": [],
    }

    def keep(row: dict[str, Any]) -> None:
        record["rows"].append(row)
        print(shown(row), flush=True)

    record["left"] = run_all(options.only, Bench(found), until, keep)
    beside = [row["of_best_peer"] for row in record["rows"] if row["of_best_peer"] is not None]
    record["summary"] = {"rows": len(record["rows"]), "beside_a_peer": len(beside), "slower": sum(one < 1 for one in beside)}
    print(f"copy {found.copy} TB/s, products {found.products}; {record['summary']}; {len(record['left'])} problems left")
    records.write(out, record)


if __name__ == "__main__":
    main()
