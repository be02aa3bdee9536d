"""Measures candidates and stores which is fastest: `tune` writes the rows that `Preference(autotune="use")` applies.

A candidate is measured only if it is eligible, has the required guarantee, and has computed a result within its error bound on
this machine. Selection stays pure: it receives a row (`opfacade.select.pins`) and never measures.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from opfacade import telemetry
from opfacade.core.descriptor import Descriptor, operands_of
from opfacade.core.preference import Preference, Require
from opfacade.core.target import Target
from opfacade.errors import Issue, OpfacadeError, UnsupportedDeviceError, UnsupportedError, from_issues
from opfacade.plan import Plan
from opfacade.select import hardware_stamp as autotune_stamp
from opfacade.select.decision import Measured, TuningRow, decide, tuning_key
from opfacade.select.measurement_store import MeasurementStore
from opfacade.select.measurements import store_here
from opfacade.select.selection import Option, choose, considered
from opfacade.testing import inputs, numerics
from opfacade.testing.bits import fill
from opfacade.tools.warmup import warm
from opfacade.tools.workload import Work, lengths_of
from opfacade.tune.measure import MeasureEffort, Timer, device_timer, host_timer, measure, race
from opfacade.tune.refresh import refresh

if TYPE_CHECKING:
    from opfacade.core.descriptor import Args

_ROWS_CHECKED = 8


@dataclass(frozen=True, slots=True)
class TuneResult:
    """Result of tuning one problem.

    row: None if there was nothing to choose. wrong: candidates that failed or exceeded their bound, with the reason; they are
    not timed. The key "select" means that there is no candidate, and therefore no default. reused: the row comes from an
    earlier problem of this run with the same tuning key.
    """

    descriptor: Descriptor[Any]
    default: str
    row: TuningRow | None
    wrong: dict[str, str] = field(default_factory=dict)
    reused: bool = False

    @property
    def gain(self) -> float:
        """The fraction of the default's time that the chosen candidate saves."""
        if self.row is None:
            return 0.0
        times = {m.sku: m.median_us for m in self.row.measured}
        return 1 - times[self.row.winner] / times[self.default] if self.default in times else 0.0


@dataclass(frozen=True)
class Setup:
    """How to measure, and where to store the results. Defaults: this machine's timer and cache directory."""

    timer: Timer | None = None
    effort: MeasureEffort = field(default_factory=MeasureEffort)
    store: MeasurementStore | None = None


Report = Callable[[TuneResult], None]


def tune(
    problems: Iterable[Descriptor[Any] | Work],
    target: Target | None = None,
    require: Require | str | None = None,
    setup: Setup | None = None,
    report: Report | None = None,
) -> tuple[TuneResult, ...]:
    """Measures every candidate for each problem on this machine, and stores the choices for `Preference(autotune="use")`.

    require: the guarantee that a candidate must have at least; by default, the preference in the workload. target: must be this
    machine. Problems with the same tuning key are measured once.
    """
    setup, here = setup or Setup(), target or Target.current()
    if here != Target.current():
        message = f"tune: target expected {Target.current().arch}, which is here to be measured, got {here.arch}. [OPF-T001]"
        raise UnsupportedDeviceError(message, code="OPF-T001", op="tune", stage="tune")
    store, seen, found = setup.store or store_here(), dict[tuple[str, str], TuneResult](), []
    before = {_place(row): row for row in store.rows()}
    works = [problem if isinstance(problem, Work) else Work(problem) for problem in problems]
    _learn(works, require, here)
    warm(_plans(works, require, here))
    for work in works:
        prefer = _preference(work, require)
        name = (tuning_key(work.descriptor), prefer.require.canonical_json())
        known = seen.get(name)
        tuned = _again(work, known) if known else _tuned_or_told(work, prefer, here, setup, before)
        seen.setdefault(name, tuned)
        if tuned.row is not None and not tuned.reused:
            store.put([tuned.row])
        found.append(tuned)
        if report is not None:
            report(tuned)
    refresh()
    return tuple(found)


def _learn(works: Iterable[Work], require: Require | str | None, target: Target) -> None:
    """Lets candidates store the facts that their tuning configs need. If a candidate fails to do this, its configs do not
    apply."""
    for work in works:
        with suppress(OpfacadeError):
            for option in eligible(work.descriptor, _preference(work, require), target):
                if option.candidate.learn is not None:
                    option.candidate.learn(work.descriptor, target)
    refresh()


def _plans(works: Iterable[Work], require: Require | str | None, target: Target) -> Iterator[Plan[Any]]:
    """Plans of all candidates to measure, so that their kernels are built in parallel. A failed build is reported when the
    candidate is measured."""
    for work in works:
        prefer = _preference(work, require)
        with suppress(UnsupportedError):
            for option in eligible(work.descriptor, prefer, target):
                if option.sku is not None and option.candidate.compiles:
                    yield Plan.select(work.descriptor, _pinned(prefer, option.sku.id), target)


def _preference(work: Work, require: Require | str | None) -> Preference:
    wanted = work.preference.require if require is None else require
    return Preference.model_validate({"backend": work.preference.backend, "require": wanted})


def _again(work: Work, known: TuneResult) -> TuneResult:
    return TuneResult(work.descriptor, known.default, known.row, known.wrong, reused=True)


def _place(row: TuningRow) -> tuple[str, str, str, str]:
    return row.key, row.hardware, row.toolchain, row.require


def eligible(descriptor: Descriptor[Any], prefer: Preference, target: Target) -> tuple[Option, ...]:
    """Options to measure against each other, in order of preference: candidates of the default's backend, and their tuning
    configs.

    The reference does not compete with kernels: it runs if none fits.
    """
    options = considered(descriptor, prefer, target)
    default = choose(descriptor, target, tuple(o for o in options if not o.candidate.config))
    return tuple(o for o in options if not o.reasons and o.candidate.backend == default.candidate.backend)


def _tuned_or_told(work: Work, prefer: Preference, target: Target, setup: Setup, before: dict[Any, TuningRow]) -> TuneResult:
    """Reports a problem without a solution and continues with the others."""
    try:
        return _tuned(work, prefer, target, setup, before)
    except UnsupportedError as error:
        return TuneResult(work.descriptor, "", None, {"select": str(error)})


def _tuned(work: Work, prefer: Preference, target: Target, setup: Setup, before: dict[Any, TuningRow]) -> TuneResult:
    checked = work.descriptor.revalidated()
    options = eligible(checked, prefer, target)
    names = [o.sku.id for o in options if o.sku is not None]
    default = names[0]
    if len(names) == 1:
        return TuneResult(checked, default, None)
    lengths = lengths_of(work)
    args = inputs.make_args(
        checked, seed=1, device="cpu" if target.is_cpu else "cuda", lengths=inputs.DrawnLengths(q=lengths.q, kv=lengths.kv)
    )
    calls, wrong, worst = {}, {}, {}
    for name in names:
        try:
            calls[name], worst[name] = proven(Plan.select(checked, _pinned(prefer, name), target), args)
        except OpfacadeError as error:
            wrong[name] = str(error)
            telemetry.count("tune_candidate_wrong")
    stamp = (autotune_stamp.hardware(target), autotune_stamp.toolchain_of(options[0].candidate.backend))
    place = (tuning_key(checked), *stamp, prefer.require.canonical_json())
    incumbent = before[place].winner if place in before else default
    if not calls:
        return TuneResult(checked, default, None, wrong)
    timer = setup.timer or (host_timer if target.is_cpu else device_timer)
    samples = race(calls, timer, setup.effort, incumbent)
    measured = tuple(measure(name, samples[name], worst[name]) for name in names if name in samples)
    return TuneResult(checked, default, _row(place, measured, incumbent), wrong)


def _row(place: tuple[str, str, str, str], measured: tuple[Measured, ...], incumbent: str) -> TuningRow:
    key, hardware, toolchain, require = place
    decision = decide(measured, incumbent)
    return TuningRow(
        key=key,
        hardware=hardware,
        toolchain=toolchain,
        require=require,
        date=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        incumbent=decision.incumbent,
        winner=decision.winner,
        gain=decision.gain,
        noise=decision.noise,
        measured=measured,
    )


def _pinned(prefer: Preference, sku: str) -> Preference:
    return prefer.model_copy(update={"pin": sku}).revalidated()


def proven(plan: Plan[Any], args: Args) -> tuple[Callable[[], None], float]:
    """A call whose result is correct, and its largest error over its bound. Raises an error if the call fails or its result is
    wrong."""
    plan.compile()
    workspace = _workspace(plan, args)
    before = numerics.snapshot(plan.descriptor, args)
    _poison(plan, args)
    plan.run(args, workspace)
    report = numerics.check(plan.descriptor, args, plan.sku, rows=_ROWS_CHECKED, before=before)
    for name, was in before.items():  # restores the inputs, so that all candidates are checked on the same call
        getattr(args, name).copy_(was)
    if not report.worst <= 1:
        issue = Issue(
            "OPF-T002",
            plan.sku.id,
            "an error of at most its bound",
            f"{report.worst:.3g} times the bound at {report.where}",
            kind="InternalError",
        )
        raise from_issues("tune", "check", [issue])
    return lambda: plan.run(args, workspace), report.worst


def _poison(plan: Plan[Any], args: Args) -> None:
    """Fills the outputs with NaN, so that no candidate passes with the outputs of another."""
    for name, spec in operands_of(plan.descriptor).items():
        if spec.role == "out":
            fill(getattr(args, name), math.nan)


def _workspace(plan: Plan[Any], args: Args) -> Any:
    import torch

    if not plan.workspace_size:
        return None
    first = getattr(args, next(iter(operands_of(plan.descriptor))))
    free = torch.cuda.mem_get_info()[0] if first.is_cuda else plan.workspace_size
    if plan.workspace_size > free:
        message = f"tune: {plan.sku.id} expected {plan.workspace_size} bytes of workspace, got {free} that are free. [OPF-T003]"
        raise UnsupportedError(message, code="OPF-T003", op="tune", stage="check")
    return torch.empty(plan.workspace_size, dtype=torch.uint8, device=first.device)
