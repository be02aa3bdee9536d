"""Calls over several GPUs of one host: `python -m bench.distributed [--out FILE] [--only NAMES] [--world N]`.

`--cpu` tries it with small problems on gloo. It starts a process for each rank and probe, which is killed at its deadline: the
record has "failed" then. P1, P4 and a short P2 say what torch's symmetric memory and NCCL do here, without multicast; others
time our ops beside them, each in a graph, in turns, after results were checked. By --only: P2 by
rounds of our own, P3, packets that may be torn, P6, a header; P5 and P8, graphs and bits; P7, ranks that share a GPU; P10, a
gather beside prefill. A time is that of the slowest rank. Where a result is wrong no time is
recorded, and the run fails.
"""

from __future__ import annotations

import argparse
import json
import os
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from bench import records
from bench.ranks import decode, faults, graphs, prefill, process, protocol, sums
from opfacade import Plan
from opfacade.tools.machine import machine

LIMIT = 145.0  # s of the whole
ON_REQUEST = ("p2_rounds", "p3_packets", "p5_graphs", "p6_header", "p7_one_gpu", "p8_bits", "p10_prefill")  # by --only


class Probe(NamedTuple):
    """run: what a rank does. seconds: its deadline. dead: ranks that it kills."""

    run: Callable[[process.Ranks], dict[str, Any]]
    seconds: float
    dead: tuple[int, ...] = ()


def _build(ranks: process.Ranks) -> dict[str, Any]:
    """Compile all kernels once, beside the first probes."""
    norm = [d.normed_rows(d.total_num_rows) for d in sums.descriptors(ranks.world, ranks.cpu).values()]
    halves = [d.normed_rows(d.own_rows) for d in sums.descriptors(ranks.world, ranks.cpu).values()]
    draws = [decode.alone(d) for d in decode.draws(ranks.world, ranks.cpu).values()]
    merges = decode.merges(ranks.world, ranks.cpu).values()
    behind = [decode.merged_alone(d) for d in merges]
    for descriptor in {*norm, *halves, *draws, *behind}:
        Plan.select(descriptor).compile()
    return {"compiled": len({*norm, *halves, *draws, *behind})}


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
    "build": Probe(_build, 120),
}


def measure(names: list[str], world: int, cpu: bool, seconds: float) -> dict[str, Any]:
    """The results of all probes, in order; kernels are compiled meanwhile."""
    end, found = time.monotonic() + seconds, {}
    builder = threading.Thread(target=lambda: found.update(build=process.run("build", 1, cpu, PROBES["build"].seconds)))
    builder.start()
    for name in names:
        probe = PROBES[name]
        if name not in ("p1_rendezvous", "p4_peer_memory", "p4_nccl", "p2_curves"):
            builder.join(max(0.0, end - time.monotonic()))
        left = end - time.monotonic()
        found[name] = (
            process.run(name, world, cpu, min(probe.seconds, left), probe.dead) if left > 5 else {"failed": "no time was left"}
        )
        print(f"{name}: {json.dumps(found[name])}", flush=True)
    builder.join()
    return found


def one_rank(given: argparse.Namespace) -> None:
    """Run one rank of a probe, and leave its result where the parent looks."""
    ranks = process.Ranks(given.rank, given.world, given.folder, given.cpu)
    try:
        found = PROBES[given.probe].run(ranks)
    except BaseException:
        found = {"error": traceback.format_exc()}
    path = given.folder / f"{given.rank}.tmp"
    path.write_text(json.dumps(found))
    path.rename(given.folder / f"{given.rank}.json")
    _wait_for_others(ranks, PROBES[given.probe].dead)
    os._exit(0)  # threads that wait for ranks that are gone end with the process


def _wait_for_others(ranks: process.Ranks, dead: tuple[int, ...]) -> None:
    end = time.monotonic() + 5
    living = [r for r in range(ranks.world) if r not in dead]
    while time.monotonic() < end and not all((ranks.folder / f"{r}.json").exists() for r in living):
        time.sleep(0.01)


def wrong(found: Any, at: str = "") -> list[str]:
    """Where results were wrong."""
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
    names = given.only.split(",") if given.only else [name for name in PROBES if name not in ("build", *ON_REQUEST)]
    started = time.time()
    found = measure(names, world, given.cpu, given.seconds)
    facts = machine("cpu" if given.cpu else "cuda") | {"gpus": world, "multicast": "off"}
    facts |= {"date": time.strftime("%Y-%m-%d"), "commit": records.commit(given.commit)}
    bad = wrong(found)
    record = {"machine": facts, "seconds": round(time.time() - started), "probes": found, "ok": not bad}
    records.write(records.place(given.out, "distributed", whole=not given.only and not given.cpu), record)
    print(f"wrong results: {bad}" if bad else "all results are right")
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
