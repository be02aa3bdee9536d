"""`opfacade bench` and `opfacade report`: measurements of this machine as a table, JSON, a plot and a page."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from opfacade.base import regular_files, strict_json
from opfacade.base.progress import Pace
from opfacade.cli import input as cli_input
from opfacade.cli.input import content, name, works_in
from opfacade.core.backends import BACKENDS

if TYPE_CHECKING:
    from opfacade.tools.workload import Work

_FILE = click.Path(dir_okay=False, path_type=Path)
_THERE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command()
@click.argument("file", type=click.File("rb"))
@click.option(
    "--backend",
    "backends",
    type=click.Choice(BACKENDS),
    multiple=True,
    help="Of ours; may be repeated.",
)
@click.option("--variants", is_flag=True, help="Also every candidate and variant that may be chosen.")
@click.option("--peers", is_flag=True, help="Also FlashInfer and torch SDPA, where they are installed.")
@click.option("--rounds", type=click.IntRange(1), help="Samples of a contender at most. [default: 60]")
@click.option("--top", type=click.IntRange(1), help="Only so many problems, those that ran most often.")
@click.option("--out", type=_FILE, help="Write the record to this file, as JSON.")
@click.option("--picture", "image", type=_FILE, help="Write roofline and bars to this file (.svg, .png, .pdf).")
@click.pass_context
def bench(
    ctx: click.Context, /, file: IO[bytes], rounds: int | None, out: Path | None, image: Path | None, **given: object
) -> None:
    """Time the problems in FILE (descriptors or a recording) on this machine, round-robin, with a cold cache. Status 1 if an
    output was wrong.

    FILE may also be a record that --out wrote on another machine; it is shown, and nothing is measured."""
    from rich.console import Console

    from opfacade.bench import picture, table

    text = content(file)
    record = _written(text) or _measured(works_in(text, name(file)), rounds or 60, given)
    Console(width=160).print(table(record))
    if out is not None:
        out.write_text(json.dumps(record, indent=1) + "\n")
    if image is not None:
        picture(record, image)
    ctx.exit(0 if record["ok"] else 1)


def _written(text: bytes) -> dict[str, Any] | None:
    """The record in a file; None if it does not contain a record."""
    try:
        found = strict_json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) and {"rows", "ceilings", "ok"} <= found.keys() else None


def _measured(found: Sequence[Work], most: int, given: dict[str, Any]) -> dict[str, Any]:
    from opfacade.bench import Options, measure
    from opfacade.tune.measure import MeasureEffort

    works = tuple(sorted(found, key=lambda work: -work.runs))[: given["top"]]
    effort = MeasureEffort(least=min(MeasureEffort().least, most), most=most, hopeless=1e9, early=False)
    peers = None if given["peers"] else ()
    options = Options(backends=given["backends"], variants=given["variants"], peers=peers, effort=effort)
    click.echo(f"bench: {len(works)} problems; every contender is checked, then timed alternately", err=True)
    return measure(works, options, _saying(len(works)))


def _saying(total: int) -> Callable[[dict[str, Any]], None]:
    """Prints a line to stderr for each contender, and the progress when a new problem begins."""
    pace, seen = Pace(total), 0

    def say(row: dict[str, Any]) -> None:
        nonlocal seen
        passed, seen = row["problem"] - seen, row["problem"]
        told = f" ({pace.step(passed)})" if passed else ""
        result = f"{row['us']:.1f} us" if "us" in row else "not timed"
        click.echo(f"problem {row['problem'] + 1} of {total}: {row['op']} {row['impl']}: {result}{told}", err=True)

    return say


@click.command()
@click.option("--bench", "bench_files", type=_THERE, multiple=True, help="A record of `opfacade bench`; may be repeated.")
@click.option("--verify", "verify_files", type=_THERE, multiple=True, help="A record of `opfacade verify`; may be repeated.")
@click.option("--telemetry", "counts", type=_THERE, help="What OPFACADE_TELEMETRY_FILE collected.")
@click.option("--tuned/--no-tuned", default=True, help="With the measurements of this machine. [default: with]")
@click.option("--cache/--no-cache", default=True, help="With the kernel cache of this machine. [default: with]")
@click.option("--title", default="opfacade report", show_default=True)
@click.option("--out", type=_FILE, default="report.html", show_default=True, help="The page.")
def report(
    bench_files: tuple[Path, ...], verify_files: tuple[Path, ...], counts: Path | None, out: Path, title: str, **wanted: bool
) -> None:
    """Write a static HTML page from records of bench and verify, and from the measurements and kernels of this machine."""
    from opfacade.jit.cache import shared
    from opfacade.jit.cache.upkeep import entries
    from opfacade.report import ReportSources, html
    from opfacade.select.measurements import store_here

    sources = ReportSources(
        bench=[_record("bench", path) for path in bench_files],
        verify=[_record("verify", path) for path in verify_files],
        tuned=store_here().rows() if wanted["tuned"] else (),
        cache=entries(shared()) if wanted["cache"] else (),
        counts=cli_input.counts(counts)[0] if counts is not None else {},
    )
    if not (bench_files or verify_files or counts or sources.tuned or sources.cache):
        raise click.UsageError("nothing to report: pass --bench, --verify or --telemetry, or tune or compile something first.")
    text = html(sources, title)
    out.write_text(text)
    click.echo(f"{len(text) // 1024} KiB in {out}")


def _record(command: str, path: Path) -> Any:
    from opfacade.report.join import require

    try:
        found = strict_json.loads(regular_files.read(path))
    except ValueError as error:
        raise click.BadParameter(f"{path} is not JSON: {error}") from error
    with cli_input.of(path):
        require(command, found)
    return found
