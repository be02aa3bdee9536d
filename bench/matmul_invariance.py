"""The cost of batch invariance of products: `python -m bench.matmul_invariance [--out FILE]`. One GPU, L2 cold.

The order of sums over k depends only on n and k. A free choice may also depend on the number of rows: it is the fastest of all
tiles, with k as one chain, or in four or eight segments, by one CTA or by the CTAs of a cluster. All are timed alternately, in
microseconds. `share` is the time of the free choice divided by the time of the selected kernel. If a result differs much from
the selected kernel's, the run ends.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from bench import interleaved, records
from bench.matmul import distance
from bench.matmul_problems import Problem, halves
from bench.matmul_tiles import tiles_of
from opfacade import Plan, Preference, Target
from opfacade.backends.cuda import matmul
from opfacade.backends.cuda.matmul.kernel import Shape, candidate
from opfacade.backends.cuda.matmul.segments import Segments, cut
from opfacade.backends.cuda.matmul.tiles import SPLIT
from opfacade.plans.matmul import MatmulDescriptor
from opfacade.select.selection import Option
from opfacade.tools.machine import machine

WEIGHTS = ((96, 7168), (256, 7168), (512, 4096), (1040, 4096), (2112, 7168), (4096, 4096), (4096, 14336), (10240, 8192))
ROWS = (1, 64, 256, 1024)
MOST = 132  # maximum number of clusters' CTAs that run concurrently
NEAR = 0.02  # of the largest result of a row


def problems() -> Iterator[Problem]:
    yield from (halves("invariance", "layer", rows, n, k) for n, k in WEIGHTS for rows in ROWS)


def shapes(d: MatmulDescriptor) -> list[Shape]:
    """All tiles that fit, with one chain and with segments."""
    one = d.model_copy(update={"order": "k"}).revalidated()
    found = [Shape(tile, None) for tile in tiles_of(one)]
    for many in (4, 8):
        segments = cut(d.k, many)
        found += [Shape(tile, segments) for tile in tiles_of(d) if tile.columns <= 128 and tile.cluster == 1 and d.n <= 2112]
        found += [Shape(tile._replace(split=segments.many), segments) for tile in SPLIT if _ctas(d, tile, segments) <= MOST]
    return list(dict.fromkeys(found))


def _ctas(d: MatmulDescriptor, tile: Any, segments: Segments) -> int:
    return int(-(-d.total_num_rows // tile.rows) * -(-d.n // tile.columns) * segments.many)


def plan_of(d: MatmulDescriptor, shape: Shape, target: Target) -> Plan[Any]:
    own = candidate(matmul._FORM, matmul._declines, lambda problem, on: shape)
    return Plan._make(d, Preference(backend="cuda"), target, Option(own, (), own.sku(d, target), own.workspace(d, target)))


def measured(problem: Problem, plans: dict[Shape, Plan[Any]], chosen: Shape) -> dict[str, Any]:
    args = problem.args("cuda")
    plans[chosen].run(args)
    want = args.out.clone()
    for shape, plan in plans.items():
        args.out.fill_(float("nan"))
        plan.run(args)
        if not distance(problem, want, args.out) <= NEAR:
            raise SystemExit(f"{problem.name}: wrong result of {shape}")
    calls = [interleaved.Contender({"shape": at}, lambda plan=plan: plan.run(args)) for at, plan in enumerate(plans.values())]  # type: ignore[misc]
    times = {row["shape"]: row["us"]["median"] for row in interleaved.timed(calls, interleaved.DIRTY)}
    return row_of(problem, list(plans), chosen, times)


def row_of(problem: Problem, all_shapes: Sequence[Shape], chosen: Shape, times: dict[int, float]) -> dict[str, Any]:
    best, own, d = min(times, key=lambda at: times[at]), times[all_shapes.index(chosen)], problem.descriptor
    row = {"rows": d.total_num_rows, "n": d.n, "k": d.k, "chosen": _shape_words(chosen), "us": own}
    return row | {"free": _shape_words(all_shapes[best]), "free_us": times[best], "share": round(times[best] / own, 4)}


def _shape_words(shape: Shape) -> list[Any]:
    """The tile, and the number and length of its segments."""
    return [list(shape.tile), None if shape.segments is None else list(shape.segments)]


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    shares = [row["share"] for row in rows]
    below = [f"{row['rows']} x {row['n']} x {row['k']}: {row['share']}" for row in rows if row["share"] < 0.97]
    return {"products": len(rows), "mean_share": round(statistics.mean(shares), 4), "worst_share": min(shares), "below": below}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="products whose name has this text")
    parser.add_argument("--budget", type=float, default=300.0, help="seconds after which no further product begins")
    records.add_commit(parser)
    records.add_out(parser, "matmul_invariance")
    options = parser.parse_args()
    until, target = time.monotonic() + options.budget, Target.current()
    some = [one for one in problems() if options.only in one.name]
    chosen = [matmul._shape(one.descriptor, target) for one in some]
    plans = [
        {shape: plan_of(one.descriptor, shape, target) for shape in dict.fromkeys([*shapes(one.descriptor), own])}
        for one, own in zip(some, chosen, strict=True)
    ]
    with ThreadPoolExecutor(16) as pool:
        distinct = {plan.sku.id: plan for of_one in plans for plan in of_one.values()}
        list(pool.map(lambda plan: plan.compile(), distinct.values()))
    rows: list[dict[str, Any]] = []
    for one, own, of_one in zip(some, chosen, plans, strict=True):
        if time.monotonic() < until:
            rows.append(row := measured(one, of_one, own))
            print(one.name, row["chosen"], row["us"], row["free"], row["free_us"], row["share"], flush=True)
            torch.cuda.empty_cache()
    facts = machine("cuda") | {"date": time.strftime("%Y-%m-%d"), "commit": records.commit(options.commit)}
    print(summary(rows), f"{len(some) - len(rows)} left")
    record = {"machine": facts, "summary": summary(rows), "left": len(some) - len(rows), "rows": rows}
    records.write(records.place(options.out, "matmul_invariance", not options.only), record)


if __name__ == "__main__":
    main()
