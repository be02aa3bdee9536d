"""Times every tile of some products, alternately: `python -m bench.matmul_tiles [--out FILE]`. One GPU, microseconds, L2 cold.

The model of opfacade/backends/cuda/matmul/tiles.py chooses the tile of a product. A row contains the times of all tiles, the
chosen tile, and its regret: its time divided by the fastest time, minus one. If two tiles give different bits, the run ends.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from bench import interleaved, records
from bench.matmul_problems import Problem, halves, in_bytes
from opfacade import Plan, Preference, Target
from opfacade.backends.cuda import matmul
from opfacade.backends.cuda.matmul.kernel import Shape, candidate
from opfacade.backends.cuda.matmul.segments import segments_of
from opfacade.backends.cuda.matmul.tiles import HALVES as MORE
from opfacade.backends.cuda.matmul.tiles import TILES, Tile
from opfacade.plans.matmul import MatmulDescriptor
from opfacade.select.selection import Option
from opfacade.tools.machine import machine

FEW = ((4096, 4096), (6144, 4096), (4096, 14336), (8192, 8192), (8192, 28672), (10240, 8192), (2112, 7168), (7168, 16384))
HALVES = (
    *((rows, n, k) for n, k in FEW for rows in (128, 256)),
    *((rows, n, k) for n, k in ((2112, 7168), (4096, 4096), (28672, 4096), (24576, 1536)) for rows in (1024, 4096)),
    *((rows, 1040, 4096) for rows in (1, 128, 1024, 4096)), (1024, 10240, 8192), (256, 57344, 8192), (64, 4096, 4096),
    (64, 6144, 4096), (1, 24576, 1536), (1, 2112, 7168), (4096, 1872, 96), (1000, 512, 512), (300, 3000, 304),
    (8192, 2112, 7168), (8192, 6144, 4096), (4096, 10240, 8192), (2048, 6144, 4096), (512, 6144, 4096),
)  # fmt: skip
BYTES = (
    *((rows, n, k) for n, k in ((4096, 4096), (7168, 16384), (24576, 1536), (2112, 7168)) for rows in (64, 128, 256)),
    (1, 4096, 4096), (1, 24576, 1536), (1024, 4096, 4096), (4096, 4096, 4096), (4096, 2112, 7168), (1024, 7168, 2048),
    (304, 3072, 512),
)  # fmt: skip


def problems() -> Iterator[Problem]:
    yield from (halves("tiles", "16 bits", *sizes) for sizes in HALVES)
    yield from (in_bytes("tiles", "8 bits", sizes, kind) for kind in ("block", "tensor") for sizes in BYTES)


def tiles_of(d: MatmulDescriptor, most: int = 2) -> list[Tile]:
    """The tiles that fit in registers, except tiles that are mostly outside the product."""
    columns = 256 if d.dtype == "bf16" and segments_of(d) is None else 128
    fit = [tile for tile in (*TILES, *(MORE if columns == 256 else ())) if tile.columns <= min(columns, max(64, most * d.n))]
    return [tile for tile in fit if tile.rows * tile.cluster <= max(64, most * d.total_num_rows)]


def plan_with(d: MatmulDescriptor, tile: Tile, target: Target) -> Plan[Any]:
    """The plan of a product with a given tile."""
    own = candidate(matmul._FORM, matmul._declines, lambda problem, on: Shape(tile, segments_of(problem)))
    return Plan._make(d, Preference(backend="cuda"), target, Option(own, (), own.sku(d, target), own.workspace(d, target)))


def measured(problem: Problem, plans: dict[Tile, Plan[Any]], chosen: Tile) -> dict[str, Any]:
    args = problem.args("cuda")
    assert args.out is not None
    outs = []
    for plan in plans.values():
        args.out.fill_(float("nan"))
        plan.run(args)
        outs.append(args.out.clone())
    if not all(torch.equal(one, outs[0]) for one in outs):
        raise SystemExit(f"{problem.name}: tiles have different bits")
    calls = [interleaved.Contender({"tile": list(tile)}, lambda plan=plan: plan.run(args)) for tile, plan in plans.items()]  # type: ignore[misc]
    times = {tuple(row["tile"]): row["us"]["median"] for row in interleaved.timed(calls, interleaved.DIRTY)}
    best, own = min(times, key=lambda tile: times[tile]), times[chosen]
    d, found = problem.descriptor, [[list(tile), us] for tile, us in times.items()]
    row = {"kind": problem.kind, "rows": d.total_num_rows, "n": d.n, "k": d.k, "chosen": list(chosen), "best": list(best)}
    return row | {"regret": round(own / times[best] - 1, 4), "us": found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="products whose name has this text")
    records.add_commit(parser)
    records.add_out(parser, "matmul_tiles")
    options = parser.parse_args()
    target = Target.current()
    some = [one for one in problems() if options.only in one.name]
    chosen = [matmul._shape(one.descriptor, target).tile for one in some]
    plans = [
        {tile: plan_with(one.descriptor, tile, target) for tile in dict.fromkeys([*tiles_of(one.descriptor), own])}
        for one, own in zip(some, chosen, strict=True)
    ]
    with ThreadPoolExecutor(8) as pool:
        distinct = {plan.sku.id: plan for of_one in plans for plan in of_one.values()}
        list(pool.map(lambda plan: plan.compile(), distinct.values()))
    rows = []
    for one, own, of_one in zip(some, chosen, plans, strict=True):
        rows.append(row := measured(one, of_one, own))
        print(one.name, f"chosen {row['chosen']}, best {row['best']}, regret {row['regret']}", flush=True)
        torch.cuda.empty_cache()
    regrets = [row["regret"] for row in rows]
    summary = {"products": len(rows), "mean_regret": round(statistics.mean(regrets), 4), "worst_regret": max(regrets)}
    facts = machine("cuda") | {"date": time.strftime("%Y-%m-%d"), "commit": records.commit(options.commit)}
    print(summary)
    record = {"machine": facts, "summary": summary, "rows": rows}
    records.write(records.place(options.out, "matmul_tiles", not options.only), record)


if __name__ == "__main__":
    main()
