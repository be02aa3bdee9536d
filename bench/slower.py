"""Problems for `bench.bounds`: rows and maps of the newest records whose times need an explanation, and samples that have a
goal.

An explanation is needed if a peer is faster, whose kernel is then also profiled, or if our kernel misses its goal.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from bench import limits, maps, operators, program_pages, rows, sampling
from opfacade import Plan, Preference

Call = Callable[[], Any]
Work = tuple[str, Callable[[], Call]]  # a name, and a function that creates the call


def slower(kind: str) -> dict[str, str]:
    """Problems of a record with the peer that is faster by more than the pages allow without a reason."""
    found = program_pages.timed(operators.record(kind), ("",))
    return {one.ours["problem"]: one.peer[1] for one in found if one.peer and one.ratio < program_pages.NEAR}


def short(kind: str) -> list[str]:
    """Problems of a record in which our kernel misses its goal."""
    return [ours["problem"] for ours, _ in operators.problems(operators.record(kind), ("",)) if limits.short(ours)]


def asked() -> dict[str, Any]:
    """The goals, and the problems of the newest records that miss them. A complete record of bench.bounds has counters of
    each."""
    works = [f"{kind} {name}" for kind in ("rows", "maps") for name in short(kind)]
    return {"over_model": limits.OVER_MODEL, "of_copying": limits.OF_COPYING, "bytes": limits.LEAST_BYTES, "works": works}


def works() -> Iterator[Work]:
    """Each problem with our kernel, and with its fastest peer if that is faster."""
    modules: dict[str, ModuleType] = {"rows": rows, "maps": maps}
    for kind, module in modules.items():
        peers, wanted = slower(kind), short(kind)
        for problem in module.problems():
            if problem.name in peers or problem.name in wanted:
                yield f"{kind} {problem.name}", _ours(problem)
            if problem.name in peers:
                yield f"{kind} {problem.name} by {peers[problem.name]}", _theirs(problem, peers[problem.name])
    for sample in sampling.problems((128256,), (1, 64, 256)):
        if re.search("f32 peaked, (?:filters (?:none|k and p)|with )", sample.name):
            yield f"sample {sample.name}", _sample(sample)


def _ours(problem: maps.Problem) -> Callable[[], Call]:
    def make() -> Call:
        args = maps.fresh(problem, "cuda")
        plan: Plan[Any] = Plan.select(problem.descriptor, Preference(backend="cuda"))
        return lambda: plan.run(args)

    return make


def _sample(problem: sampling.Problem) -> Callable[[], Call]:
    return lambda: sampling.ours(problem, problem.args())[1]


def _theirs(problem: maps.Problem, peer: str) -> Callable[[], Call]:
    return lambda: dict(maps.peers(problem, "cuda"))[peer](maps.fresh(problem, "cuda"))
