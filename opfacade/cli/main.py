"""The command line. Each command calls one library function and prints the result."""

from __future__ import annotations

import json
import textwrap
import warnings
from collections.abc import Iterator
from dataclasses import asdict
from itertools import groupby
from typing import IO, TYPE_CHECKING, Any

import click

from opfacade import __version__
from opfacade.cli import tools as cli_tools
from opfacade.cli.bench import bench, report
from opfacade.cli.cache import cache
from opfacade.cli.input import one
from opfacade.cli.manifest import manifest
from opfacade.cli.tune import tune, tuned
from opfacade.cli.verify import verify
from opfacade.core.backends import BACKENDS
from opfacade.errors import OpfacadeError

if TYPE_CHECKING:
    from rich.table import Table

    from opfacade.tools.catalogue import SkuRow, Variable

_GPU = "sm_90a"
_WIDE = 120  # columns that a table with refusals needs


def _warn(message: Warning | str, *_: object, **__: object) -> None:
    """A warning as one line, without its position in the sources."""
    click.echo(f"warning: {message}", err=True)


class _Commands(click.Group):
    """Errors of the library, and files that cannot be read or written, end a command with a message and status 2."""

    def invoke(self, ctx: click.Context) -> Any:
        with warnings.catch_warnings():
            # torch says so where numpy is not installed; nothing here needs it.
            warnings.filterwarnings("ignore", message="Failed to initialize NumPy", category=UserWarning)
            warnings.showwarning = _warn
            return self._ended(ctx)

    def _ended(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise
        except (OpfacadeError, OSError, RecursionError) as error:
            click.echo(str(error), err=True)
            ctx.exit(2)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="opfacade")
def main() -> None:
    """Typed plans for GPU operators: which kernel would run, and what it promises."""


main.add_command(bench)
main.add_command(report)
main.add_command(cache)
main.add_command(manifest)
main.add_command(tune)
main.add_command(tuned)
main.add_command(verify)
for command in cli_tools.COMMANDS:
    main.add_command(command)


@main.command("list")
@click.option("--target", default=_GPU, show_default=True, help='An architecture such as "sm_90a", or "cpu".')
@click.option("--markdown", "form", flag_value="markdown", help="Print a Markdown table.")
@click.option("--json", "form", flag_value="json", help="Print JSON.")
def list_(target: str, form: str | None) -> None:
    """List every op with its candidates, tried on the op's examples."""
    from opfacade.core.target import Target
    from opfacade.tools import catalogue

    rows = catalogue.candidates(Target.parse(target))
    if form == "markdown":
        click.echo(catalogue.markdown(rows))
    elif form == "json":
        click.echo(json.dumps([asdict(row) for row in rows], indent=2))
    else:
        _print_candidates(rows, target)


def _print_candidates(rows: tuple[SkuRow, ...], target: str) -> None:
    """A table with refusals if the terminal is wide, otherwise a few short lines for each candidate."""
    from rich.console import Console

    console = Console()
    if console.width < _WIDE:
        click.echo("\n".join(_narrow(rows, target, console.width)))
    else:
        console.print(_table(rows, target))


def _narrow(rows: tuple[SkuRow, ...], target: str, width: int) -> Iterator[str]:
    yield target
    for op, group in groupby(rows, key=lambda row: row.op):
        yield f"\n{op}"
        for row in group:
            words = ", ".join((*row.error_models, *row.promises)) or "-"
            yield f"  {row.backend}/{row.impl}: {row.accepted} of {row.examples} examples"
            for i, text in enumerate((words, *row.refusals)):
                mark = "    not: " if i else "    "
                yield from textwrap.wrap(text, width, initial_indent=mark, subsequent_indent="      ")


def _table(rows: tuple[SkuRow, ...], target: str) -> Table:
    from rich.table import Table

    refusals = ("refusals",) if any(row.refusals for row in rows) else ()
    table = Table(title=target)
    for name in ("op", "candidate", "examples", "error model", "promises", *refusals):
        table.add_column(name, overflow="fold")
    for row in rows:
        words = (row.error_models, row.promises, row.refusals)[: 2 + len(refusals)]
        table.add_row(row.op, f"{row.backend}/{row.impl}", f"{row.accepted} of {row.examples}", *map("\n".join, words))
    return table


@main.command()
@click.argument("file", type=click.File("rb"))
@click.option("--target", help="An architecture; the current device by default.")
@click.option("--than", type=click.File("rb"), help="Why FILE runs another kernel than the descriptor in this file.")
@click.option("--autotune", is_flag=True, help='As with Preference(autotune="use").')
@click.option("--backend", type=click.Choice(BACKENDS), help="As with Preference(backend=...).")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def explain(
    ctx: click.Context,
    file: IO[bytes],
    target: str | None,
    than: IO[bytes] | None,
    autotune: bool,
    backend: str | None,
    as_json: bool,
) -> None:
    """List every candidate for the descriptor in FILE (JSON; - is standard input), chosen or refused, with the reasons.

    Status 1 if none is chosen, for example with --backend cuda if no kernel supports the descriptor."""
    from opfacade import Preference, Target, explain_change
    from opfacade import explain as explain_descriptor

    descriptor, machine = one(file), Target.parse(target) if target else None
    prefer = Preference.model_validate({"autotune": "use" if autotune else "off", "backend": backend})
    if than is not None:
        click.echo(str(explain_change(one(than), descriptor, prefer, machine)))
        return
    explanation = explain_descriptor(descriptor, prefer, machine)
    click.echo(explanation.to_json() if as_json else explanation.report())
    ctx.exit(0 if explanation.chosen else 1)


@main.command("compile")
@click.argument("file", type=click.File("rb"))
@click.option("--target", help="An architecture; the current device by default.")
def compile_(file: IO[bytes], target: str | None) -> None:
    """Build the kernel for the descriptor in FILE (JSON; - is standard input) and publish it in the cache."""
    from opfacade import Plan, Target, telemetry

    plan: Plan[Any] = Plan.select(one(file), target=Target.parse(target) if target else None)
    plan.compile()
    counted = telemetry.snapshot()[plan.sku.id]
    built = f"built in {counted['build_seconds']:.2f} s" if counted["builds"] else "nothing to build"
    click.echo(f"{plan.sku.id}\n{built}")


@main.command("env")
def env_() -> None:
    """List every OPFACADE_* environment variable with its current value, the source of this value, and its purpose."""
    from opfacade.tools.catalogue import environment
    from opfacade.tools.doctor import unknown_names

    for variable in environment():
        click.echo(_variable_line(variable))
    for line in unknown_names():
        click.echo(f"warning: {line}", err=True)


def _variable_line(variable: Variable) -> str:
    return f"{variable.name}={variable.value}  ({variable.origin})\n    {variable.doc}"


@main.command()
@click.argument("op")
def schema(op: str) -> None:
    """Print the JSON schema of the descriptor of OP."""
    from opfacade.tools.catalogue import schema as schema_of

    click.echo(json.dumps(schema_of(op), indent=2))
