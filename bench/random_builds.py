"""Builds random problems: `python -m bench.random_builds --engine norm --count 2000 --seed 1 [--nvcc A B] [--out FILE]`.

Needs no GPU. The problems come from bench/strangers.py. Each distinct device source is compiled once, on all cores, engines in
turn, until the counts are reached or `--seconds` are over. A failure is a bug in opfacade, and the exit status is 1. Slow code
(see docs/using.md) is counted and named. `--arch all` selects every architecture from sm_80 on that nvcc supports, and
`--examples` adds the EXAMPLES of all families. `--nvcc` accepts several compilers, which build one after another.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import date
from typing import Any

from bench import records, strangers
from bench.device_builds import Built, DeviceBuilds, architectures
from opfacade import Plan, Preference, Target
from opfacade.errors import UnsupportedError
from opfacade.select.registry import examples

CUDA = Preference(backend="cuda")
NAMED = 40  # problems per engine


@dataclass
class Tally:
    """The outcome of the problems of one engine on one architecture."""

    drawn: int = 0
    without_kernel: int = 0
    sources: int = 0
    built: int = 0
    failures: list[dict[str, Any]] = field(default_factory=list)
    slow: list[dict[str, Any]] = field(default_factory=list)

    def count(self, problem: Any, built: Built) -> None:
        self.built += 1
        facts = {"problem": problem.model_dump_json() if problem is not None else ""}
        if built.failure:
            self.failures.append({**facts, "failure": built.failure})
        elif built.findings:
            self.slow.append({**facts, "findings": [str(finding) for finding in built.findings]})

    def as_dict(self) -> dict[str, Any]:
        counts = {name: getattr(self, name) for name in ("drawn", "without_kernel", "sources", "built")}
        lists = {"failed": len(self.failures), "slow_code": len(self.slow)}
        return {**counts, **lists, "failures": self.failures[:NAMED], "slow": self.slow[:NAMED]}


@dataclass(frozen=True)
class Problem:
    """One problem of an engine for one architecture."""

    engine: str
    arch: str
    descriptor: Any


def problems(options: argparse.Namespace, archs: Sequence[str]) -> Iterator[Problem]:
    """Problems of the engines in turn, so that an interrupted run has equally many of each."""
    if options.examples:
        yield from (Problem("examples", arch, example) for example in examples() for arch in archs)
    for number in range(options.count):
        for engine in options.engine:
            descriptor = strangers.draw(engine, options.seed * 10**6 + number)
            yield from (Problem(engine, arch, descriptor) for arch in archs)


@dataclass
class Run:
    """Problems that are being built, a few more in flight than there are cores."""

    builds: DeviceBuilds
    tallies: dict[tuple[str, str], Tally] = field(default_factory=dict)
    flying: list[tuple[Problem, Future[Built]]] = field(default_factory=list)

    def take(self, pool: ThreadPoolExecutor, problem: Problem, deadline: float) -> None:
        tally = self.tallies.setdefault((problem.engine, problem.arch), Tally())
        tally.drawn += 1
        try:
            specs = Plan.select(problem.descriptor, CUDA, Target.parse(problem.arch)).jit_specs
            fresh = [spec for spec in specs if self.builds.claim(spec)]
        except UnsupportedError:
            tally.without_kernel += 1
            return
        except Exception as error:  # any error of selection or rendering is a finding
            tally.count(problem.descriptor, Built(f"{type(error).__name__}: {error}"))
            return
        for spec in fresh:
            tally.sources += 1
            self.flying.append((problem, pool.submit(self.builds.build, spec, deadline)))

    def settle(self, most: int) -> None:
        """Waits until at most this many builds are in flight."""
        while len(self.flying) > most:
            problem, future = self.flying.pop(0)
            built = future.result()
            if built is not None:
                self.tallies[problem.engine, problem.arch].count(problem.descriptor, built)
                if built.failure:
                    print(f"FAILED {problem.engine} {problem.arch}: {built.failure}", file=sys.stderr, flush=True)


def run(options: argparse.Namespace, builds: DeviceBuilds, archs: Sequence[str]) -> Run:
    deadline, found = time.monotonic() + options.seconds, Run(builds)
    with ThreadPoolExecutor(options.jobs) as pool:
        for problem in problems(options, archs):
            if time.monotonic() > deadline:
                break
            found.take(pool, problem, deadline)
            found.settle(3 * options.jobs)
        found.settle(0)
    return found


def table(found: Run) -> str:
    lines = [
        "| engine | arch | drawn | no kernel | sources | built | failed | slow code |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for (engine, arch), tally in sorted(found.tallies.items()):
        counts = (tally.drawn, tally.without_kernel, tally.sources, tally.built, len(tally.failures), len(tally.slow))
        lines.append(f"| {engine} | {arch} | {' | '.join(map(str, counts))} |")
    return "\n".join(lines)


def of_toolkit(options: argparse.Namespace, nvcc: str | None) -> dict[str, Any]:
    """The record of the builds by one compiler; nvcc None: the default compiler."""
    builds = DeviceBuilds.by(nvcc)
    archs = architectures(builds.tools) if options.arch == ["all"] else options.arch
    started = time.monotonic()
    found = run(options, builds, archs)
    seconds = round(time.monotonic() - started, 1)
    tallies = {f"{engine} {arch}": tally.as_dict() for (engine, arch), tally in sorted(found.tallies.items())}
    print(f"nvcc {builds.release['nvcc']}, ptxas {builds.release['ptxas']}, {seconds} s on {options.jobs} cores")
    print(table(found), flush=True)
    return {"compiler": builds.release, "seconds": seconds, "engines": tallies}


def main(argv: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    facts = {name: getattr(options, name) for name in ("seed", "count")} | {"cores": options.jobs}
    facts |= {"date": date.today().isoformat(), "commit": records.commit(options.commit)}
    toolkits = [of_toolkit(options, nvcc) for nvcc in options.nvcc or [None]]
    records.write(records.place(options.out, "random_builds", whole=False), {**facts, "toolkits": toolkits})
    return 1 if any(tally["failed"] for kit in toolkits for tally in kit["engines"].values()) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", nargs="*", choices=tuple(strangers.ENGINES), default=list(strangers.ENGINES))
    parser.add_argument("--count", type=int, default=2000, help="problems of each engine")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=1e6, help="with each compiler no build begins later")
    parser.add_argument("--arch", nargs="*", default=["sm_90a"], help="architectures, or all")
    parser.add_argument("--examples", action="store_true", help="also the EXAMPLES of all families")
    parser.add_argument("--nvcc", nargs="*", help="the compilers; by default the one that builds take")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    records.add_out(parser, "random_builds")
    records.add_commit(parser)
    return parser


if __name__ == "__main__":
    sys.exit(main())
