"""The measurements that selection is handed: shipped with the package, or made on this machine; read once a process."""

from __future__ import annotations

from functools import lru_cache
from importlib.resources import files
from typing import Any

from opfacade import autotune_stamp, env, telemetry
from opfacade.autotune_store import Store, parse
from opfacade.descriptor import Descriptor
from opfacade.pins import Tuned
from opfacade.plan import forget_selections
from opfacade.preference import Preference, Require
from opfacade.target import Target
from opfacade.tuning import Row, tuning_key


def store_here() -> Store:
    """The measurements of this machine."""
    return Store(env.cache_dir() / "tune.db")


def shipped() -> tuple[Row, ...]:
    """The measurements that come with the package: the tables in opfacade/tuned."""
    rows: list[Row] = []
    place = files("opfacade") / "tuned"
    for table in sorted(place.iterdir(), key=lambda entry: entry.name) if place.is_dir() else ():
        if table.name.endswith(".json"):
            try:
                rows += parse(table.read_bytes())
            except (OSError, ValueError):
                telemetry.count("tuned_table_broken")
    return tuple(rows)


@lru_cache(maxsize=1)
def _table() -> dict[tuple[str, str], list[Row]]:
    """Every row by key and requirement; this machine's own measurements after, and so over, those that were shipped."""
    found: dict[tuple[str, str], list[Row]] = {}
    for row in (*shipped(), *store_here().rows()):
        found.setdefault((row.key, row.require), []).append(row)
    return found


def refresh() -> None:
    """Read the measurements again at the next selection that asks for them."""
    _table.cache_clear()
    forget_selections()


def tuned_for(descriptor: Descriptor[Any], prefer: Preference, target: Target) -> Tuned:
    """The row to apply: of what is required exactly, else of what requires nothing; never of another machine or toolchain."""
    key, hardware = tuning_key(descriptor), autotune_stamp.hardware(target)
    outdated = False
    for require in (prefer.require.canonical_json(), Require().canonical_json()):
        for row in reversed(_table().get((key, require), [])):
            if not autotune_stamp.holds_for(row.hardware, hardware):
                continue
            if row.toolchain == autotune_stamp.toolchain_of("reference" if target.is_cpu else "cuda"):
                telemetry.count("tuned_hit")
                return Tuned(row, f"{row.hardware}, {row.date[:10]}")
            outdated = True
    telemetry.count("tuned_row_outdated" if outdated else "tuned_miss")
    if outdated:
        telemetry.emit("tuned_row_outdated", op=descriptor.op, hardware=hardware)
        return Tuned(None, "what was measured here was another version of opfacade, kernels or compiler; the default is taken")
    return Tuned(None, f"this problem was not measured on {hardware}; the default is taken")
