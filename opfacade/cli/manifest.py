"""`opfacade manifest`: a file with the SKUs that a fleet may run: freeze, diff, check."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING

import click

from opfacade.cli.input import of, works
from opfacade.core.backends import BACKENDS

if TYPE_CHECKING:
    from opfacade.select.manifest import SkuManifest

_BACKEND = click.option("--backend", type=click.Choice(BACKENDS), help="Refuse candidates of all others.")
_PATH = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.group()
def manifest() -> None:
    """Manage the SKUs that a fleet may run; OPFACADE_REQUIRE_SKU=FILE restricts a process to them."""


@manifest.command()
@click.argument("file", type=click.File("rb"))
@click.option("--target", help='An architecture such as "sm_90a"; the current device by default.')
@_BACKEND
@click.option("--note", default="", help="A word for people, kept in the manifest.")
@click.option("--out", type=click.Path(path_type=Path), help="Write the manifest to this file. [default: standard output]")
def freeze(file: IO[bytes], target: str | None, backend: str | None, note: str, out: Path | None) -> None:
    """Freeze the SKUs that the descriptors in FILE (JSON lines, an array, or a recording) select now.

    A reference SKU in a manifest allows every problem with its op and element types; --backend cuda refuses a descriptor that
    no kernel supports."""
    from opfacade import Preference, Target
    from opfacade.select.manifest import SkuManifest

    problems, machine = [work.descriptor for work in works(file)], Target.parse(target) if target else None
    found = SkuManifest.freeze(problems, Preference.model_validate({"backend": backend}), machine, note)
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
    found = _loaded(old).diff(_loaded(new))
    click.echo(str(found))
    ctx.exit(1 if found else 0)


@manifest.command()
@click.argument("locked", type=_PATH)
@click.argument("file", type=click.File("rb"))
@click.option("--target", help='An architecture such as "sm_90a"; the current device by default.')
@_BACKEND
@click.option(
    "--same-binary", is_flag=True, help="Status 1 also if a kernel is another binary, or is not known to be the same."
)
@click.pass_context
def check(
    ctx: click.Context, locked: Path, file: IO[bytes], target: str | None, backend: str | None, same_binary: bool
) -> None:
    """Compare the SKUs that the descriptors in FILE select with the manifest LOCKED; status 1 if it does not allow one of them.

    "same binary": code and compilers are those of the manifest. "other binary": the same guarantee and revision, but other code
    or compilers. "other revision": the output bits changed; not allowed."""
    from opfacade import Preference, Target
    from opfacade.select.manifest import SkuManifest

    allowed, prefer = _loaded(locked), Preference.model_validate({"backend": backend})
    problems, machine = [work.descriptor for work in works(file)], Target.parse(target) if target else None
    found = allowed.standings(SkuManifest.freeze(problems, prefer, machine))
    selected = (
        [] if all(standing.allowed for standing in found) else [SkuManifest.freeze(d, prefer, machine).skus for d in problems]
    )
    for standing in found:
        if standing.word != "same binary":
            click.echo(f"{standing}{_selecting(standing.sku, selected)}")
    missing, same = sum(not s.allowed for s in found), sum(s.word == "same binary" for s in found)
    click.echo(f"{len(allowed.skus)} SKUs allowed, {missing} selected that are not; {same} of {len(found)} are the same binary")
    if missing and machine is None:
        click.echo(
            f"selected for {Target.current().arch}, because --target was left out; the manifest is of {_archs(allowed.skus)}"
        )
    ctx.exit(1 if missing or (same_binary and same < len(found)) else 0)


def _loaded(path: Path) -> SkuManifest:
    from opfacade.select.manifest import SkuManifest

    with of(path):
        return SkuManifest.load(path)


def _selecting(sku: str, selected: Sequence[tuple[str, ...]]) -> str:
    """The positions in FILE of the problems that select a SKU."""
    places = [str(place) for place, skus in enumerate(selected, 1) if sku in skus]
    return f"\n  selected by problem {', '.join(places)}" if places else ""


def _archs(skus: Sequence[str]) -> str:
    return ", ".join(sorted({sku.split("/")[3] for sku in skus})) or "none"
