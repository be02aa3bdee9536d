"""Commands for users who install opfacade and for authors of kernels: doctor, warmup, clangd, replay."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from opfacade.base import json_text
from opfacade.base.progress import Pace
from opfacade.cli.input import counts, models, of_model, works

if TYPE_CHECKING:
    from opfacade.tools.doctor import Diagnosis
    from opfacade.tools.warmup import WarmupStep
    from opfacade.tools.workload import Work

    Report = Callable[[WarmupStep], None]


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def doctor(ctx: click.Context, as_json: bool) -> None:
    """Show versions, compilers, devices and cache of this machine, and each incompatibility with its fix."""
    from opfacade.tools.doctor import diagnose

    found = diagnose()
    click.echo(json.dumps(found.as_dict(), indent=2) if as_json else _diagnosis(found))
    ctx.exit(0 if found.healthy else 1)


def _diagnosis(found: Diagnosis) -> str:
    lines = []
    for title, facts in (("versions", found.versions), ("compiler", found.compiler), ("cache", found.cache)):
        lines += [title, *(f"  {name}: {_plain(value)}" for name, value in facts.items())]
    lines += ["devices", *(f"  {d['name']}: {d['arch']}, {d['sm_count']} SMs" for d in found.devices or ())]
    lines += [] if found.devices else ["  none"]
    lines += ["", *(f"{p.severity}: {p.what}\n  fix: {p.cure}" for p in found.problems)]
    return "\n".join([*lines, *([] if found.problems else ["nothing wrong found"])])


def _plain(value: object) -> str:
    return ".".join(map(str, value)) if isinstance(value, tuple) else str(value)


@click.command()
@click.argument("file", type=click.File("rb"), required=False)
@click.option("--model", help="Instead of FILE: the usual problems of a model; --list names the models.")
@click.option("--list", "listed", is_flag=True, help="Print the problems as JSON lines, or the models, and build nothing.")
@click.option("--target", help='An architecture such as "sm_90a"; the current device by default.')
@click.option("--jobs", type=click.IntRange(1), help="Builds at a time. [default: CPUs]")
@click.pass_context
def warmup(ctx: click.Context, /, file: IO[bytes] | None, model: str | None, listed: bool, **options: Any) -> None:
    """Build the kernels for all descriptors in FILE (JSON lines, an array, or a recording; - is standard input), or for a
    model."""
    if file is not None and model is not None:
        raise click.UsageError("Give FILE or --model, not both.")
    if listed and file is None and model is None:
        click.echo("\n".join(models()))
        return
    if file is None and model is None:
        raise click.UsageError("Missing FILE or --model.")
    problems = of_model(model) if file is None else works(file)
    if listed:
        click.echo("\n".join(work.descriptor.model_dump_json() for work in problems))
        return
    ctx.exit(_built(problems, **options))


def _built(problems: Sequence[Work], target: str | None, jobs: int | None) -> int:
    """The status of a warm-up: 1 if a build failed."""
    from opfacade import Target
    from opfacade.tools.warmup import warm

    machine, started = Target.parse(target) if target else None, time.monotonic()
    plans = [work.plan(target=machine) for work in problems]
    kernels = len({spec for plan in plans for spec in plan.jit_specs})
    if not kernels and machine is None and Target.current().is_cpu:
        told = f"this machine has no GPU, and all {len(plans)} problems run on the reference: nothing was built"
        raise click.ClickException(f"{told}. Pass --target, such as sm_90a.")
    pace = Pace(kernels)
    click.echo(f"warmup: {len(plans)} problems, {kernels} kernels", err=True)

    def run(report: Report) -> tuple[WarmupStep, ...]:
        def paced(step: WarmupStep) -> None:
            report(step)
            if step.state != "build":
                click.echo(f"    {pace.step()}", err=True)

        return warm(plans, jobs, paced)

    steps = _with_progress(run) if sys.stdout.isatty() else run(_log)
    counts = ", ".join(f"{sum(s.state == state for s in steps)} {state}" for state in ("built", "cached", "failed"))
    click.echo(f"{counts} in {time.monotonic() - started:.1f} s")
    return 1 if any(step.error for step in steps) else 0


def _line(step: WarmupStep) -> str:
    if step.state == "build":
        return f"build   {step.sku} (about {step.expected_seconds:.0f} s)"
    spent = f" ({step.seconds:.1f} s)" if step.seconds else ""
    return f"{step.state:7} {step.sku}{spent}" + (f"\n{step.error}" if step.error else "")


def _log(step: WarmupStep) -> None:
    click.echo(_line(step))
    sys.stdout.flush()


def _with_progress(run: Callable[[Report], tuple[WarmupStep, ...]]) -> tuple[WarmupStep, ...]:
    """Shows a line with a clock for each running build; finished builds scroll up."""
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    with Progress(SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), transient=True) as progress:
        tasks: dict[str, Any] = {}

        def report(step: WarmupStep) -> None:
            if step.state == "build":
                tasks[step.sku] = progress.add_task(_line(step), total=None)
                return
            if step.sku in tasks:
                progress.remove_task(tasks.pop(step.sku))
            progress.console.print(_line(step), highlight=False, markup=False, soft_wrap=True)

        return run(report)


@click.command()
@click.argument("directory", required=False, type=click.Path(file_okay=False, exists=True, path_type=Path))
@click.option("--arch", default="sm_90a", show_default=True, help="The architecture that device code is read for.")
def clangd(directory: Path | None, arch: str) -> None:
    """Write .clangd files, so that editors find the includes of kernels/ and of generated sources."""
    from opfacade.jit.clangd import write

    for path in write(directory, arch):
        click.echo(str(path))


@click.command()
@click.argument("place", type=click.Path(exists=True, path_type=Path))
@click.option("--device", help="Where to run. [default: where it was dumped]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def replay(ctx: click.Context, place: Path, device: str | None, as_json: bool) -> None:
    """Repeat the calls in PLACE, a dump of OPFACADE_LOG=dump or a folder of dumps, and compare the outputs with the dumped
    outputs and the error bound."""
    from opfacade.tools.replay import replay as run_again

    calls = run_again(place, device)
    for call in calls:
        said = {True: "bitwise as dumped", False: "other bits than dumped", None: "no outputs dumped"}[call.same]
        line = f"{call.place.name}: {call.sku}: {call.worst:.3g} of the bound, {said}"
        click.echo(json_text.text(asdict(call), default=str) if as_json else line + ("" if call.sound else f" ({call.where})"))
    ctx.exit(0 if all(call.sound for call in calls) else 1)


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def telemetry(file: Path, as_json: bool) -> None:
    """Print the counters that OPFACADE_TELEMETRY_FILE collected in FILE, summed over all processes."""
    total, broken = counts(file)
    if as_json:
        click.echo(json.dumps(total | {"broken_lines": broken}, indent=2))
        return
    for sku, counted in sorted(total["skus"].items(), key=lambda item: -item[1].get("runs", 0)):
        click.echo(sku + "".join(f"\n    {name} {value}" for name, value in _counts(counted)))
    for title in ("refusals", "counts"):
        click.echo("".join(f"{name} {value}\n" for name, value in sorted(total[title].items())), nl=False)
    click.echo(f"{len(total['skus'])} SKUs, {broken} broken lines")


def _counts(counted: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in counted.items():
        if name != "latency" and value:
            yield name, f"{value:g}"
    timed = counted.get("latency")
    if timed and timed.get("samples"):
        yield "mean_us", f"{timed.get('sum_us', 0) / timed['samples']:.3f} ({timed['samples']} sampled)"


COMMANDS = (clangd, doctor, replay, telemetry, warmup)
