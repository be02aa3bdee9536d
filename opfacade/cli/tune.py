"""`opfacade tune` and `opfacade tuned`: measure candidates, and transfer measurements to other machines."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from opfacade.base import regular_files
from opfacade.base.progress import Pace
from opfacade.cli.input import works

if TYPE_CHECKING:
    from opfacade.tune.tune import TuneResult

_REQUIRE = click.Choice(["deterministic", "bit_stable_on_same_hardware", "batch_invariant"])


@click.command()
@click.argument("file", type=click.File("rb"))
@click.option("--require", type=_REQUIRE, help="The least that a candidate must guarantee. [default: what the recording says]")
@click.option("--rounds", type=click.IntRange(1), help="Samples of a candidate at most. [default: 60]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def tune(file: IO[bytes], require: str | None, rounds: int | None, as_json: bool) -> None:
    """Measure the candidates for each problem in FILE on this machine; Preference(autotune="use") then selects the fastest."""
    from opfacade.tune.measure import MeasureEffort
    from opfacade.tune.tune import Setup
    from opfacade.tune.tune import tune as measure

    effort = MeasureEffort() if rounds is None else MeasureEffort(least=min(MeasureEffort().least, rounds), most=rounds)
    problems = works(file)
    report = None if as_json else _saying(len(problems))
    click.echo(f"tune: {len(problems)} problems; kernels are built first, then timed alternately", err=True)
    found = measure(problems, require=require, setup=Setup(effort=effort), report=report)
    if as_json:
        click.echo(json.dumps([_facts(tuning) for tuning in found], indent=1))
        return
    measured = [t for t in found if t.row is not None and not t.reused]
    changed = sum(t.gain > 0 for t in measured)
    click.echo(f"{len(found)} problems: {len(measured)} measured, {changed} of them better than the default choice")
    if measured:
        click.echo(f"mean gain {sum(t.gain for t in measured) / len(measured):.1%}")


def _saying(total: int) -> Callable[[TuneResult], None]:
    pace = Pace(total)

    def report(tuning: TuneResult) -> None:
        _say(tuning)
        click.echo(f"    {pace.step()}", err=True)

    return report


def _say(tuning: TuneResult) -> None:
    op = tuning.descriptor.op
    for sku, why in tuning.wrong.items():
        click.echo(f"{op}: not measured: {sku}: {why}")
    if not tuning.default:
        return
    if tuning.row is None:
        click.echo(f"{op}: one candidate, {tuning.default}")
    elif not tuning.reused:
        click.echo(f"{op}: {tuning.row.winner} ({tuning.gain:+.1%} over the default)")
        for m in tuning.row.measured:
            click.echo(f"    {m.median_us:10.2f} us +-{m.noise:5.1%} {m.samples:4} samples  {m.sku}")


def _facts(tuning: TuneResult) -> dict[str, Any]:
    row = None if tuning.row is None else json.loads(tuning.row.model_dump_json())
    return {
        "descriptor": tuning.descriptor.model_dump(mode="json"),
        "default": tuning.default,
        "gain": tuning.gain,
        "reused": tuning.reused,
        "wrong": tuning.wrong,
        "row": row,
    }


@click.group()
def tuned() -> None:
    """Manage the measurements of this machine."""


@tuned.command()
def ls() -> None:
    """List every choice, and its speed-up over the default."""
    from opfacade.select.measurements import shipped, store_here

    rows = (*shipped(), *store_here().rows())
    for row in rows:
        click.echo(f"{row.date[:10]}  {row.gain:+6.1%} +-{row.noise:5.1%}  {row.hardware}  {row.winner}")
    click.echo(f"{len(rows)} choices in {store_here().path}")


@tuned.command("export")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--hardware", default="", help='Only rows measured on hardware whose name begins so: "sm_90a".')
def export_(file: Path, hardware: str) -> None:
    """Write the measurements of this machine to FILE, for `import` on another machine or for opfacade/tuned in the package."""
    from opfacade.select.measurement_store import export
    from opfacade.select.measurements import store_here

    rows = [row for row in store_here().rows() if row.hardware.startswith(hardware)]
    file.write_text(export(rows))
    click.echo(f"{len(rows)} choices in {file}")


@tuned.command("import")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.pass_context
def import_(ctx: click.Context, file: Path) -> None:
    """Import the measurements in FILE. They apply only to the hardware and versions with which they were made."""
    from opfacade.select.measurement_store import parse
    from opfacade.select.measurements import store_here
    from opfacade.tune.refresh import refresh

    rows = parse(regular_files.read(file))
    kept = store_here().put(rows)
    refresh()
    click.echo(f"{len(rows)} choices {'kept in' if kept else 'could not be kept in'} {store_here().path}")
    ctx.exit(0 if kept else 1)
