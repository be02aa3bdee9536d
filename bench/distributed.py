"""Calls over several GPUs of one host: `python -m bench.distributed [--out FILE] [--only NAMES] [--world N]`.

`--cpu` runs small problems on gloo, to try the script. It starts a process for each rank and probe, and kills it at the
deadline; then the record says "failed". P1, P4 and a short P2 measure torch's symmetric memory and NCCL on this machine,
without multicast. Others time our ops and these libraries, each in a graph, alternately, after the results were checked. With
--only: P2 with our own rounds; P3, packets that may be seen in parts; P6, the cost of a header; P5 and P8, graphs and bits; P7,
ranks that share a GPU; P10, a gather overlapped with prefill; nccl_windows, NCCL's kernels for symmetric memory. Each time is
the time of the slowest rank. If a result is wrong, no time is recorded, and the run fails.
"""

from __future__ import annotations

import argparse
import json
import os
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from bench import records
from bench.ranks import decode, faults, graphs, prefill, process, protocol, sums
from opfacade import Plan, jit
from opfacade.core.links import Links
from opfacade.core.target import Target
from opfacade.jit.spec import JitSpec
from opfacade.tools.machine import machine

LIMIT = 145.0  # seconds for the whole run
ON_REQUEST = (
    "p2_rounds",
    "p3_packets",
    "p5_graphs",
    "p6_header",
    "p7_one_gpu",
    "p8_bits",
    "p10_prefill",
    "nccl_windows",
)  # by --only

BUILDS = ("build", "build_prefill")
WITHOUT_KERNELS = ("p1_rendezvous", "p4_peer_memory", "p4_nccl", "p2_curves", "p7_one_gpu")  # of ours


class Probe(NamedTuple):
    """run: the function that each rank runs. seconds: its deadline. dead: the ranks that the probe kills."""

    run: Callable[[process.Ranks], dict[str, Any]]
    seconds: float
    dead: tuple[int, ...] = ()


def _build(ranks: process.Ranks) -> dict[str, Any]:
    """Compiles all kernels once, in parallel with the first probes. ranks: one process that compiles for the given number of
    ranks."""
    norms, draws = sums.descriptors(ranks.world, ranks.cpu).values(), decode.draws(ranks.world, ranks.cpu).values()
    merges = decode.merges(ranks.world, ranks.cpu).values()
    alone = [d.normed_rows(rows) for d in norms for rows in (d.total_num_rows, d.own_rows)]
    alone += [
        *map(decode.alone, draws),
        *map(decode.merged_alone, merges),
        *([] if ranks.cpu else prefill.problems(ranks.world)),
    ]
    here = Target.cpu() if ranks.cpu else Target.current()
    linked = here if ranks.cpu else replace(here, links=Links(kind="nvlink"))
    plans = [Plan.select(d, target=here) for d in {*alone, *norms, *draws, *merges}]
    plans += [Plan.select(d, target=linked) for d in {*norms, *merges}]
    more = set() if ranks.cpu else {*protocol.specs(), *decode.specs(ranks.world)}
    return _compiled({spec for plan in plans for spec in plan.jit_specs} | more)


def _build_prefill(ranks: process.Ranks) -> dict[str, Any]:
    """Compiles the attention kernels of P10."""
    plans = [] if ranks.cpu else [Plan.select(d) for d in prefill.problems(ranks.world)]
    return _compiled({spec for plan in plans for spec in plan.jit_specs})


def _compiled(specs: set[JitSpec]) -> dict[str, Any]:
    with ThreadPoolExecutor(12) as pool:  # nvcc runs in a separate process
        for future in [pool.submit(jit.build, spec) for spec in specs]:
            future.result()
    return {"compiled": len(specs)}


PROBES = {
    "p1_rendezvous": Probe(faults.rendezvous, 40),
    "p4_peer_memory": Probe(faults.peer_memory, 40, (1,)),
    "p4_nccl": Probe(faults.library, 45, (1,)),
    "p2_curves": Probe(sums.curves, 45),
    "all_reduce_norm": Probe(sums.norms, 60),
    "exchange": Probe(decode.exchange, 45),
    "sampling": Probe(decode.sampling, 60),
    "p2_rounds": Probe(protocol.rounds, 60),
    "p3_packets": Probe(protocol.packets, 60),
    "p6_header": Probe(protocol.header, 40),
    "p5_graphs": Probe(graphs.replays, 60),
    "p7_one_gpu": Probe(graphs.one_gpu, 40),
    "p8_bits": Probe(graphs.bits, 60),
    "p10_prefill": Probe(prefill.beside, 60),
    "nccl_windows": Probe(sums.windows, 60),
    "build": Probe(_build, 120),
    "build_prefill": Probe(_build_prefill, 120),
}


def measure(names: list[str], world: int, cpu: bool, seconds: float, keep: Callable[[dict[str, Any]], None]) -> None:
    """Runs the probes in order and calls keep(results so far) after each one. Meanwhile kernels are compiled, and the next
    ranks import their modules."""
    end, found = time.monotonic() + seconds, {}
    limit = min(seconds, PROBES["build"].seconds)

    def build(name: str) -> None:
        found[name] = process.run(name, world, cpu, limit, alone=True)

    builders = {name: threading.Thread(target=build, args=(name,)) for name in BUILDS}
    for builder in builders.values():
        builder.start()
    ahead = process.Started(names[0], world, cpu)
    for name, following in zip(names, [*names[1:], None], strict=True):
        probe, own = PROBES[name], ahead
        if name not in WITHOUT_KERNELS:
            builders["build_prefill" if name == "p10_prefill" else "build"].join(max(0.0, end - time.monotonic()))
        if following:
            ahead = process.Started(following, world, cpu)
        found[name] = own.run(min(probe.seconds, end - time.monotonic()), probe.dead)
        print(f"{name}: {json.dumps(found[name])}", flush=True)
        keep(dict(found))
    for builder in builders.values():
        builder.join()
    keep(found)


def one_rank(given: argparse.Namespace) -> None:
    """Runs one rank of a probe, and writes its result to the file that the parent reads."""
    ranks = process.Ranks(given.rank, given.world, given.folder, given.cpu)
    ranks.await_turn()
    try:
        found = PROBES[given.probe].run(ranks)
    except BaseException:
        found = {"error": traceback.format_exc()}
    path = given.folder / f"{given.rank}.tmp"
    path.write_text(json.dumps(found))
    path.rename(given.folder / f"{given.rank}.json")
    if given.probe not in BUILDS:
        _wait_for_others(ranks, PROBES[given.probe].dead)
    os._exit(0)  # threads that wait for dead ranks end with the process


def _wait_for_others(ranks: process.Ranks, dead: tuple[int, ...]) -> None:
    end = time.monotonic() + 5
    living = [r for r in range(ranks.world) if r not in dead]
    while time.monotonic() < end and not all((ranks.folder / f"{r}.json").exists() for r in living):
        time.sleep(0.01)


def wrong(found: Any, at: str = "") -> list[str]:
    """The probes with wrong results."""
    if not isinstance(found, dict):
        return []
    here = [at] if found.get("wrong") else []
    return here + [place for name, one in found.items() for place in wrong(one, f"{at}/{name}")]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    records.add_out(parser, "distributed")
    records.add_commit(parser)
    parser.add_argument("--only", help="names of probes, with commas: " + ", ".join(PROBES))
    parser.add_argument("--world", type=int, help="ranks; else one for each GPU, or 2 on CPUs")
    parser.add_argument("--seconds", type=float, default=LIMIT, help="that all probes may take; the last ones are left out")
    parser.add_argument("--cpu", action="store_true", help="small problems on gloo, to try the script")
    for name in ("--probe", "--folder"):
        parser.add_argument(name, type=Path if name == "--folder" else str, help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.probe:
        one_rank(given)
    import torch

    world = given.world or (2 if given.cpu else torch.cuda.device_count())
    if world < 2 or (not given.cpu and torch.cuda.device_count() < world):
        raise SystemExit(f"{world} ranks need so many GPUs, at least 2; here are {torch.cuda.device_count()}")
    names = given.only.split(",") if given.only else [name for name in PROBES if name not in (*BUILDS, *ON_REQUEST)]
    bad: list[str] = []
    facts = machine("cpu" if given.cpu else "cuda") | {"gpus": world, "multicast": "off"}
    facts |= {"date": time.strftime("%Y-%m-%d"), "commit": records.commit(given.commit)}
    started, place = time.time(), records.place(given.out, "distributed", whole=not given.only and not given.cpu)

    def keep(found: dict[str, Any]) -> None:
        bad[:] = wrong(found)
        record = {"machine": facts, "seconds": round(time.time() - started), "probes": found, "ok": not bad}
        records.write(place, record)

    measure(names, world, given.cpu, given.seconds, keep)
    print(f"wrong results: {bad}" if bad else "all results are right")
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
