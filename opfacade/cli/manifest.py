"""`opfacade manifest`: the SKUs that a fleet may run, as a file: freeze, diff, check."""

from __future__ import annotations

from pathlib import Path
from typing import IO

import click

from opfacade.cli.input import works

_PATH = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.group()
def manifest() -> None:
    """The SKUs that a fleet may run; OPFACADE_REQUIRE_SKU=FILE keeps a process to them."""


@manifest.command()
@click.argument("file", type=click.File("rb"))
@click.option("--target", help='An architecture such as "sm_90a"; the current device by default.')
@click.option("--note", default="", help="A word for people, kept in the manifest.")
@click.option("--out", type=click.Path(path_type=Path), help="Write the manifest to this file. [default: standard output]")
def freeze(file: IO[bytes], target: str | None, note: str, out: Path | None) -> None:
    """The SKUs that the descriptors in FILE (JSON lines, an array, or a recording) select now."""
    from opfacade import Target
    from opfacade.select.manifest import SkuManifest

    problems = [work.descriptor for work in works(file)]
    found = SkuManifest.freeze(problems, target=Target.parse(target) if target else None, note=note)
    if out is None:
        click.echo(found.model_dump_json(indent=1))
    else:
        found.save(out)
        click.echo(f"{len(found.skus)} SKUs in {out}")


@manifest.command()
@click.argument("old", type=_PATH)
@click.argument("new", type=_PATH)
@click.pass_context
def diff(ctx: click.Context, old: Path, new: Path) -> None:
    """Show the SKUs that the manifest NEW adds, removes and changes; status 1 if anything differs."""
    from opfacade.select.manifest import SkuManifest

    found = SkuManifest.load(old).diff(SkuManifest.load(new))
    click.echo(str(found))
    ctx.exit(1 if found else 0)


@manifest.command()
@click.argument("locked", type=_PATH)
@click.argument("file", type=click.File("rb"))
@click.option("--target", help='An architecture such as "sm_90a"; the current device by default.')
@click.option(
    "--same-binary", is_flag=True, help="Status 1 also if a kernel is another binary, or is not known to be the same."
)
@click.pass_context
def check(ctx: click.Context, locked: Path, file: IO[bytes], target: str | None, same_binary: bool) -> None:
    """How the SKUs that the descriptors in FILE select stand to the manifest LOCKED; status 1 if it does not allow one.

    "same binary": code and compilers are those of the manifest. "other binary": the same promise and revision, other code or
    compilers. "other revision": the output bits changed; not allowed.
    """
    from opfacade import Target
    from opfacade.select.manifest import SkuManifest

    allowed = SkuManifest.load(locked)
    now = SkuManifest.freeze([work.descriptor for work in works(file)], target=Target.parse(target) if target else None)
    found = allowed.standings(now)
    for standing in found:
        if standing.word != "same binary":
            click.echo(str(standing))
    missing, same = sum(not s.allowed for s in found), sum(s.word == "same binary" for s in found)
    click.echo(f"{len(allowed.skus)} SKUs allowed, {missing} selected that are not; {same} of {len(found)} are the same binary")
    ctx.exit(1 if missing or (same_binary and same < len(found)) else 0)
