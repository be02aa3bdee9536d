"""Verifies the guarantees of SKUs on this machine: bound, exact tests, repeatability, batch invariance.

The result is a record with tests, repetitions, machine, SKU and binary; its `sha256` covers all other fields.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from opfacade.base.progress import Pace
from opfacade.core.descriptor import Descriptor
from opfacade.core.model import Model
from opfacade.errors import DescriptorError, Issue, OpfacadeError, from_issues
from opfacade.select.registry import examples
from opfacade.testing import determinism, guarded, matrix, numerics, prebuilt, problems
from opfacade.testing.harness import harness_of
from opfacade.testing.subject import Subject, invariant
from opfacade.tools import kernel_digests
from opfacade.tools.exhaustive import proven
from opfacade.tools.machine import machine
from opfacade.tools.proofs import results

Say = Callable[[str], None]
_MOST_ON_CPU = 24  # with --quick on a CPU, the largest number of rows, pages or requests of a problem
_SECONDS_A_SKU = 10  # approximate time per SKU on two cores


@dataclass(frozen=True, slots=True)
class VerifyEffort:
    """problems: random problems per op; rows: checked rows; runs: repetitions of a call; campaign: sizes of the tests of batch
    invariance."""

    problems: int
    rows: int
    runs: int
    campaign: determinism.Campaign


_QUICK_SIZES = determinism.Campaign(needles=6, compositions=4, largest=12, longest=300, q_longest=12)
QUICK_CPU = VerifyEffort(problems=1, rows=4, runs=4, campaign=_QUICK_SIZES)
FULL_CPU = VerifyEffort(problems=6, rows=8, runs=20, campaign=determinism.QUICK)
QUICK_GPU = VerifyEffort(problems=8, rows=24, runs=100, campaign=determinism.QUICK)
FULL_GPU = VerifyEffort(problems=60, rows=24, runs=1000, campaign=determinism.Campaign(largest=64, longest=8192))


def effort(device: str, quick: bool) -> VerifyEffort:
    if device == "cuda":
        return QUICK_GPU if quick else FULL_GPU
    return QUICK_CPU if quick else FULL_CPU


def verify(
    sku: str | None = None,
    op: str | None = None,
    quick: bool = False,
    backend: str | None = None,
    say: Say = print,
    descriptors: Sequence[Descriptor[Any]] | None = None,
    commit: str | None = None,
    heavy: bool = False,
    jobs: int = 1,
) -> dict[str, Any]:
    """Tests every SKU of the matrix on this machine, or one SKU id, or one op. Field `ok`: whether all tests passed.

    descriptors: replace the matrix; each SKU that they select is tested on the first problem that selects it. quick: fewer
    problems and runs, and on a CPU sizes of at most 24 if these select the same SKU. say: receives lines with the progress and
    the estimated remaining time. commit: a revision of the sources, stored in the record. heavy: on a GPU, also test functions
    of f32 on all 2^32 inputs. jobs: the number of parallel processes, each on one GPU.
    """
    from opfacade.core.target import Target

    if jobs < 1:
        raise from_issues("verify", "verify", [Issue("OPF-V005", "jobs", "1 or more", str(jobs))])
    device = "cpu" if Target.current().is_cpu else "cuda"
    name = backend or ("reference" if device == "cpu" else "cuda")
    subjects = _subjects(name, device) if descriptors is None else _distinct(descriptors, name, device)
    if device == "cpu" and quick:
        subjects = map(_small, subjects)
    chosen = [subject for subject in subjects if op in (None, subject.descriptor.op)]
    chosen = [subject for subject in chosen if sku in (None, subject.plan.sku.id)]
    if not chosen:
        raise _unknown(sku, op) if sku or op or descriptors is None else _none_runs(descriptors, name)
    how, started = effort(device, quick), time.monotonic()
    ops = [] if sku or descriptors is not None else [o for o in problems.ops() if op in (None, o)]
    ops = [o for o in ops if not Subject(problems.random_descriptor(o, 0), name, device).declined]
    if name == "cuda":
        drawn = [problems.random_descriptor(o, seed) for o in ops for seed in range(how.problems)]
        prebuilt.build([*(subject.descriptor for subject in chosen), *drawn])
    steps = len(chosen) + len(ops)
    about = f", about {steps * _SECONDS_A_SKU} s on two cores" if quick and device == "cpu" else ""
    more = f" and random problems of {len(ops)} ops" if ops else ""
    say(f"{len(chosen)} SKUs{more} to prove{about}")
    tell = _paced(say, Pace(steps))
    of_skus = [partial(_proven, subject, how) for subject in chosen]
    of_ops = [partial(_random, o, name, device, how) for o in ops]
    found = [tell(row) for row in results([*of_skus, *of_ops], jobs, say)]
    rows, random = found[: len(chosen)], found[len(chosen) :]
    exhaustive = [row for o in ops if not quick or heavy for row in proven(o, name, device, heavy, say)]
    record = {
        "schema": 1,
        "machine": machine(device) | ({"commit": commit} if commit else {}),
        **({"kernels": kernel_digests.stamp()} if name == "cuda" else {}),
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "effort": {"quick": quick, "problems": how.problems, "runs": how.runs, "needles": how.campaign.needles, "jobs": jobs},
        "seconds": round(time.monotonic() - started, 1),
        "skus": rows,
        "random_problems": random,
        "exhaustive": exhaustive,
        "ok": all(row["ok"] for row in [*rows, *random, *exhaustive]),
    }
    return record | {"sha256": seal(record)}


def _paced(say: Say, pace: Pace) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Reports the progress after each row."""

    def tell(row: dict[str, Any]) -> dict[str, Any]:
        say(f"       {pace.step()}")
        return row

    return tell


def _small(subject: Subject) -> Subject:
    """The same SKU at sizes that a CPU tests in seconds. Returns the subject unchanged if small sizes are invalid or select
    another SKU."""
    try:
        small = subject.on(_capped(subject.descriptor))
        return small if not small.declined and small.plan.sku.id == subject.plan.sku.id else subject
    except OpfacadeError:
        return subject


def _capped(model: Model) -> Any:
    fields = dict(model.__dict__)
    for name, value in fields.items():
        if isinstance(value, Model):
            fields[name] = _capped(value)
        elif name in model.sizes and isinstance(value, int):
            fields[name] = min(value, _MOST_ON_CPU)
    try:
        return type(model)(**fields)
    except DescriptorError:  # other fields depend on this size, for example a width that is a multiple of a group
        return model


def _subjects(backend: str, device: str) -> Iterator[Subject]:
    """One subject for each SKU of the matrix and the EXAMPLES."""
    return _distinct((*matrix.matrix().values(), *examples()), backend, device)


def _distinct(descriptors: Iterable[Descriptor[Any]], backend: str, device: str) -> Iterator[Subject]:
    """One subject for each SKU that the descriptors select."""
    seen: set[str] = set()
    for descriptor in descriptors:
        subject = Subject(descriptor, backend, device)
        if not subject.declined and subject.plan.sku.id not in seen:
            seen.add(subject.plan.sku.id)
            yield subject


def _none_runs(descriptors: Sequence[Descriptor[Any]], backend: str) -> OpfacadeError:
    expected, got = f"at least one that {backend} runs here", f"{len(descriptors)} that it does not run"
    return from_issues("verify", "verify", [Issue("OPF-V004", "descriptors", expected, got, kind="UnsupportedError")])


def _unknown(sku: str | None, op: str | None) -> OpfacadeError:
    known = ", ".join(problems.ops())
    issue = Issue("OPF-V005", "sku" if sku else "op", f"a SKU of `opfacade verify` here, or an op of {known}", str(sku or op))
    return from_issues("verify", "verify", [issue])


def _proven(subject: Subject, how: VerifyEffort, say: Say) -> dict[str, Any]:
    """Runs all tests of one SKU."""
    sku = subject.plan.sku
    tried = {name: _told(check) for name, check in _claims(subject, how).items()}
    ok = all(not claim["wrong"] for claim in tried.values())
    say(f"{'ok' if ok else 'FAILED':7}{sku.id}")
    for name, claim in tried.items():
        for wrong in claim["wrong"]:
            say(f"       {name}: {wrong}")
    promise = sku.precision_guarantee.model_dump(mode="json", exclude={"evidence"})
    return {"sku": sku.id, "promise": promise, **_binary(subject), "tried": tried, "ok": ok}


def _told(check: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The result of a check. A check that raises has failed; the other SKUs are still tested."""
    try:
        return check()
    except OpfacadeError as error:
        return {"wrong": [f"{type(error).__name__}: {error}"]}


def _claims(subject: Subject, how: VerifyEffort) -> dict[str, Callable[[], dict[str, Any]]]:
    promise = subject.plan.precision_guarantee
    found: dict[str, Callable[[], dict[str, Any]]] = {"bound": lambda: _bound(subject, how)}
    if harness_of(subject.descriptor).checks:
        found["exact"] = lambda: _exact(subject)
    if promise.deterministic:
        found["run_to_run"] = lambda: _shown(determinism.run_to_run(subject, how.runs, seed=1))
    if invariant(subject):
        same = in_any_batch(subject)
        found["batch_invariance"] = lambda: _shown(determinism.batch_invariance(same, how.campaign, seed=1))
    return found


def in_any_batch(subject: Subject) -> Subject:
    """A subject with the same SKU whose descriptor allows any batch."""
    return subject.on(harness_of(subject.descriptor).in_any_batch(subject.descriptor))


def _bound(subject: Subject, how: VerifyEffort) -> dict[str, Any]:
    report, wrong = numerics.Report(0.0, 0.0, "", 0), list[str]()
    for seed in range(2):
        one, more = _held(subject, seed, how.rows)
        report, wrong = numerics.join(report, one), wrong + more
    return {**_worst(report), "wrong": wrong}


def _held(subject: Subject, seed: int, rows: int) -> tuple[numerics.Report, list[str]]:
    args = subject.args(seed, interleaved=seed % 2 == 1)
    before = numerics.snapshot(subject.descriptor, args)
    wrong = guarded.run(subject, args)
    report = numerics.check(subject.descriptor, args, subject.plan.sku, rows=rows, seed=seed, before=before)
    if not report.worst <= 1:
        wrong.append(f"seed {seed}: {report.worst:.3g} of the bound at {report.where}")
    return report, wrong


def _worst(report: numerics.Report) -> dict[str, Any]:
    return {"elements": report.elements, "worst_over_hard": report.worst, "worst_over_tight": report.worst_tight}


def _exact(subject: Subject) -> dict[str, Any]:
    checks = harness_of(subject.descriptor).checks
    wrong = [f"{check.__name__}: {text}" for check in checks for text in check(subject, 1)]
    return {"checks": [check.__name__ for check in checks], "wrong": wrong}


def _shown(shown: determinism.Shown) -> dict[str, Any]:
    facts = {"compared": shown.compared, "runs": shown.runs, "different": shown.different}
    return facts | {"wrong": [shown.first] if shown.different else []}


def _random(op: str, backend: str, device: str, how: VerifyEffort, say: Say) -> dict[str, Any]:
    """Tests the error bound on random problems of an op."""
    found = _told(lambda: _bound_of_random(op, backend, device, how))
    say(f"{'FAILED' if found['wrong'] else 'ok':7}{how.problems} random problems of {op}")
    return {"op": op, "problems": how.problems, **found, "ok": not found["wrong"]}


def _bound_of_random(op: str, backend: str, device: str, how: VerifyEffort) -> dict[str, Any]:
    report, wrong = numerics.Report(0.0, 0.0, "", 0), list[str]()
    for seed in range(how.problems):
        descriptor: Descriptor[Any] = problems.random_descriptor(op, seed, tokens=600 if device == "cpu" else 6000)
        one, more = _held(Subject(descriptor, backend, device), seed, how.rows)
        report, wrong = numerics.join(report, one), wrong + [f"seed {seed}: {text}" for text in more]
    return {**_worst(report), "wrong": wrong}


def _binary(subject: Subject) -> dict[str, Any]:
    """The kernel of a SKU: digest of its code, its cache key, and the digest of its SASS if there is a disassembler. If a plan
    has several kernels, only the digest of the code."""
    from opfacade import jit

    spec, specs = subject.plan.jit_spec, subject.plan.jit_specs
    if spec is None:
        return {"code": jit.code_digest_of(specs) if specs else None, "cache_key": None, "sass_sha256": None}
    # The key is read from the entry's directory, because without a compiler (kernels from a bundle) it cannot be computed.
    library = jit.build(spec, label=subject.plan.sku.id)
    return {"code": jit.code_digest(spec), "cache_key": library.parent.name, "sass_sha256": sass_digest(library)}


def sass_digest(library: Path) -> str | None:
    """SHA-256 of a kernel's instructions: equal for equal machine code, independent of file names."""
    from opfacade.jit import cache, toolchain
    from opfacade.jit import sass as inspect

    cubin = next(iter(sorted(library.parent.glob("*.cubin"))), None)
    if cubin is None:
        return None
    try:
        tools = toolchain.find(cache.toolchain_memo())
        text = inspect.disassembly(cubin, tools)
    except OpfacadeError:
        return None
    return hashlib.sha256(text.encode()).hexdigest() if text else None


def seal(record: dict[str, Any]) -> str:
    """SHA-256 over a record without its field `sha256`."""
    content = {name: value for name, value in record.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
