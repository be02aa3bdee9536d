"""`opfacade verify`: tests the guarantees on this machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import IO, Any

import click

from opfacade.cli.input import works
from opfacade.core.backends import BACKENDS


@click.command()
@click.option("--sku", help="Only this SKU id.")
@click.option("--op", help="Only this op; `opfacade list` names them.")
@click.option("--backend", type=click.Choice(BACKENDS), help="[default: cuda where there is one]")
@click.option("--out", type=click.Path(path_type=Path), help="Write the evidence to this file, as JSON.")
@click.option(
    "--quick", is_flag=True, help="Fewer problems and runs, on the CPU also smaller sizes: about 10 s for each SKU of FILE."
)
@click.option("--commit", help="A revision of the sources, kept in the evidence.")
@click.option("--heavy", is_flag=True, help="On a GPU: functions of f32 over all 2^32 inputs too.")
@click.option("--jobs", type=click.IntRange(min=1), default=1, help="Processes, spread over the GPUs here.  [default: 1]")
@click.argument("file", type=click.File("rb"), required=False)
@click.pass_context
def verify(ctx: click.Context, /, file: IO[bytes] | None, out: Path | None, **given: Any) -> None:
    """Test the guarantee of every SKU on this machine: bound, exact tests, repeatability, batch invariance. Status 1 if one
    fails.

    FILE: test only the SKUs of the problems in a recording or a file of descriptors."""
    from opfacade.tools.verify import verify as prove

    problems = None if file is None else [work.descriptor for work in works(file)]
    record = prove(**given, say=click.echo, descriptors=problems)
    if out is not None:
        out.write_text(json.dumps(record, indent=1) + "\n")
    held = sum(row["ok"] for row in record["skus"])
    click.echo(f"{held} of {len(record['skus'])} SKUs held, {record['seconds']} s, sha256 {record['sha256'][:16]}")
    if not record["ok"]:
        ctx.exit(1)
