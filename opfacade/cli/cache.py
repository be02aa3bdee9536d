"""`opfacade cache`: lists, checks and cleans the kernel cache, and exports and imports bundles."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from opfacade.jit.cache.upkeep import Entry

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


def _amount(text: str, units: dict[str, int]) -> int:
    match = re.fullmatch(r"([0-9]{1,15})([A-Za-z]?)", text)
    if not match or match[2] not in units:
        raise click.BadParameter(f"{text!r} is not a number with one of the units {', '.join(filter(None, units))}")
    return int(match[1]) * units[match[2]]


def _size(text: str) -> int:
    return _amount(text, _UNITS)


def _time(text: str) -> int:
    return _amount(text, _SECONDS)


@click.group()
def cache() -> None:
    """Manage the compiled kernels of this machine."""


@cache.command()
@click.option("--resources", is_flag=True, help="Also registers, spilled bytes and shared memory of each kernel.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def ls(resources: bool, as_json: bool) -> None:
    """List all entries, the most recently used first."""
    from opfacade.jit.cache import shared
    from opfacade.jit.cache.upkeep import entries

    found = entries(shared())
    if as_json:
        click.echo(json.dumps([asdict(entry) for entry in found], indent=2))
        return
    for entry in found:
        _show(entry, resources)
    click.echo(f"{len(found)} entries, {_bytes(sum(entry.size for entry in found))} in {shared().base}")


def _show(entry: Entry, resources: bool) -> None:
    facts = f"{_bytes(entry.size):>9}  used {_age(entry.age):>4} ago  built in {entry.seconds:5.1f} s"
    click.echo(f"{entry.key[:12]}  {entry.arch:7} {entry.name:24} {facts}")
    if entry.sku:
        click.echo(f"    {entry.sku}")
    for symbol, used in entry.resources.items() if resources else ():
        spills = used.get("spill_stores", 0) + used.get("spill_loads", 0)
        shared = used.get("shared", used.get("shared_memory", 0))
        click.echo(f"    {used.get('registers', 0):3} registers  {spills} bytes spilled  {shared} bytes shared  {symbol}")


@cache.command()
@click.pass_context
def verify(ctx: click.Context) -> None:
    """Compare every entry with its digest; status 1 if an entry is damaged."""
    from opfacade.jit.cache import shared
    from opfacade.jit.cache.upkeep import verify as verify_all

    broken = verify_all(shared())
    for key, why in broken.items():
        click.echo(f"{key}: {why}")
    click.echo(f"{len(shared().published()) - len(broken)} sound, {len(broken)} broken")
    ctx.exit(1 if broken else 0)


@cache.command()
@click.option("--max-size", type=_size, help="Keep at most so many bytes: 500M, 2G.")
@click.option("--max-age", type=_time, help="Remove what was not used for so long: 12h, 30d.")
def gc(max_size: int | None, max_age: int | None) -> None:
    """Remove old entries, the least recently used first, and the remains of killed builds."""
    from opfacade.jit.cache import shared
    from opfacade.jit.cache.upkeep import collect

    removed = collect(shared(), max_size, max_age)
    click.echo(f"{len(removed)} entries removed, {_bytes(sum(entry.size for entry in removed))} freed")


@cache.command()
def clear() -> None:
    """Remove every entry."""
    from opfacade.jit.cache import shared
    from opfacade.jit.cache.upkeep import clear as clear_all

    click.echo(f"{clear_all(shared())} entries removed")


@cache.command("export")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--arch", help="Only entries for this architecture, such as sm_90a, and the host library.")
@click.option("--sign", type=click.Path(path_type=Path), help="An SSH key; its signature goes into FILE.sig (ssh-keygen -Y).")
def export_(file: Path, arch: str | None, sign: Path | None) -> None:
    """Write all valid entries to the bundle FILE, for a machine without a compiler or network."""
    from opfacade.jit.cache import shared
    from opfacade.jit.cache.bundle import architectures, export

    store = shared()
    if arch is not None and arch not in (known := architectures(store)):
        raise click.ClickException(f"{store.base} has no kernel for {arch}; it has some for: {', '.join(known) or 'none'}.")
    keys = export(store, file, arch, sign)
    if not keys:
        raise click.ClickException(f"{store.base} has no entry: nothing is in {file}.")
    click.echo(f"{len(keys)} entries, {_bytes(file.stat().st_size)} in {file}")


@cache.command("import")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--trust", type=click.Path(path_type=Path), help="A file of allowed signers, one of whom must have made FILE.sig."
)
def import_(file: Path, trust: Path | None) -> None:
    """Add the entries of the bundle FILE to the cache. Kernels are code: import only trusted or signed bundles."""
    from opfacade.jit.cache import shared
    from opfacade.jit.cache.bundle import import_ as import_bundle

    click.echo(f"{len(import_bundle(shared(), file, trust))} entries imported into {shared().base}")


def _bytes(size: int) -> str:
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size} {unit}"
        size = round(size / 1024)
    return f"{size} GiB"


def _age(seconds: float) -> str:
    for unit, least in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= least:
            return f"{seconds // least:.0f}{unit}"
    return f"{max(seconds, 0):.0f}s"
