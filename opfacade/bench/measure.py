"""Times the contenders of each problem against each other."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from opfacade.bench import ceilings, peers, timers
from opfacade.core.preference import Preference
from opfacade.core.target import Target
from opfacade.errors import OpfacadeError, UnsupportedError
from opfacade.plan import Plan
from opfacade.select.decision import summary
from opfacade.testing import inputs
from opfacade.testing.harness import Amount, harness_of
from opfacade.tools.amount import amount
from opfacade.tools.machine import machine
from opfacade.tools.workload import Work, lengths_of
from opfacade.tune.measure import MeasureEffort, Timer, race
from opfacade.tune.tune import eligible, proven

if TYPE_CHECKING:
    from opfacade.core.descriptor import Args

Say = Callable[[dict[str, Any]], None]
Row = dict[str, Any]


@dataclass(frozen=True)
class Options:
    """backends: our backends, each with its default candidate. variants: also time all other eligible candidates. peers: the
    names of the peers to time; None: all installed ones. timer: None: the best available one."""

    backends: tuple[str, ...] = ()
    variants: bool = False
    peers: tuple[str, ...] | None = ()
    effort: MeasureEffort = field(default_factory=lambda: MeasureEffort(hopeless=1e9, early=False))
    timer: Timer | None = None


def measure(works: Iterable[Work], options: Options | None = None, say: Say | None = None) -> dict[str, Any]:
    """The record of a benchmark: the machine, its ceilings, and a row for each contender of each problem."""
    options, target = options or Options(), Target.current()
    device = "cpu" if target.is_cpu else "cuda"
    name, timer = ("given", options.timer) if options.timer else timers.best(device)
    record: dict[str, Any] = {
        "schema": 1,
        "machine": machine(device) | {"date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())},
        "timer": name,
        "how": "contenders alternated, each call cold, outputs held to their bound first",
        "ceilings": ceilings.of(device),
        "rows": [],
    }
    for number, work in enumerate(works):
        for row in _problem(work, options, target, timer):
            record["rows"].append({"problem": number, **_facts(work), **row})
            if say is not None:
                say(record["rows"][-1])
    record["ok"] = not any("wrong" in row for row in record["rows"])
    return record


def _facts(work: Work) -> Row:
    d: Any = work.descriptor
    least = amount(d, lengths_of(work))
    return {
        "op": d.op,
        "name": described(work),
        "descriptor": d.model_dump(mode="json"),
        "bytes": least.bytes,
        "flops": least.flops,
        "runs": work.runs,
    }


def described(work: Work) -> str:
    """A problem in a few words: the number of requests, their lengths, the heads."""
    return harness_of(work.descriptor).label(work.descriptor, lengths_of(work))


def _problem(work: Work, options: Options, target: Target, timer: Timer) -> list[Row]:
    """One row per contender, ours first. If a contender is wrong or does not support the problem, its row has the reason."""
    found = lengths_of(work)
    device = "cpu" if target.is_cpu else "cuda"
    args = inputs.make_args(work.descriptor, seed=1, device=device, lengths=inputs.DrawnLengths(q=found.q, kv=found.kv))
    rows, calls = [], {}
    for name, make in _contenders(work, options, target, args):
        row: Row = {"impl": name}
        try:
            calls[name], facts = make()
            row |= facts
        except UnsupportedError as error:
            row["declined"] = str(error).splitlines()[0]
        except OpfacadeError as error:
            row["wrong"] = str(error).splitlines()[0]
        rows.append(row)
    samples = race(calls, timer, options.effort) if calls else {}
    least = amount(work.descriptor, found)
    return [row | _timed(samples[row["impl"]], least) if row["impl"] in samples else row for row in rows]


Contender = tuple[str, Callable[[], tuple[Callable[[], None], Row]]]


def _contenders(work: Work, options: Options, target: Target, args: Args) -> Iterable[Contender]:
    for backend in options.backends or (("reference",) if target.is_cpu else ("cuda",)):
        prefer = Preference.model_validate({"backend": backend})
        try:
            found = eligible(work.descriptor, prefer, target)
        except UnsupportedError:
            # Not handled here: `select` later raises the reason why no candidate of this backend fits.
            yield f"opfacade {backend}", partial(_ours, work, prefer, target, args)
            continue
        for option in found if options.variants else found[:1]:
            pinned = prefer.model_copy(update={"pin": option.sku.id if option.sku else None}).revalidated()
            yield f"opfacade {option.name}", partial(_ours, work, pinned, target, args)
    for peer in peers.PEERS:
        if options.peers is None or peer.name in options.peers:
            yield peer.name, partial(peers.call, peer, work, args, target)


def _ours(work: Work, prefer: Preference, target: Target, args: Args) -> tuple[Callable[[], None], Row]:
    plan: Plan[Any] = Plan.select(work.descriptor, prefer, target)
    call, worst = proven(plan, args)
    return call, {"sku": plan.sku.id, "error_over_bound": worst, "workspace_bytes": plan.workspace_size}


def _timed(samples: list[float], least: Amount) -> Row:
    us, noise = summary(samples)
    rates = {"TBs": least.bytes / us * 1e-6, "TFLOPs": least.flops / us * 1e-6}
    return {"us": us, "noise": noise, "samples": len(samples), **rates}
