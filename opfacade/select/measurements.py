"""The measurements that selection uses: shipped with the package, or taken on this machine; read once per process."""

from __future__ import annotations

from functools import lru_cache
from importlib.resources import files
from typing import Any

from opfacade import env, telemetry
from opfacade.core.backends import ON_GPU
from opfacade.core.descriptor import Descriptor
from opfacade.core.preference import Preference, Require
from opfacade.core.target import Target
from opfacade.select import hardware_stamp as autotune_stamp
from opfacade.select.decision import TuningRow, tuning_key
from opfacade.select.measurement_store import MeasurementStore, parse
from opfacade.select.pins import Tuned


def store_here() -> MeasurementStore:
    """The measurements of this machine."""
    return MeasurementStore(env.cache_dir() / "tune.db")


def shipped() -> tuple[TuningRow, ...]:
    """The measurements that come with the package: the tables in opfacade/tuned."""
    rows: list[TuningRow] = []
    place = files("opfacade") / "tuned"
    for table in sorted(place.iterdir(), key=lambda entry: entry.name) if place.is_dir() else ():
        if table.name.endswith(".json"):
            try:
                rows += parse(table.read_bytes())
            except (OSError, ValueError):
                telemetry.count("tuned_table_broken")
    return tuple(rows)


@lru_cache(maxsize=1)
def table() -> dict[tuple[str, str], list[TuningRow]]:
    """Every row by key and requirement; this machine's measurements override those that were shipped."""
    found: dict[tuple[str, str], list[TuningRow]] = {}
    for row in (*shipped(), *store_here().rows()):
        found.setdefault((row.key, row.require), []).append(row)
    return found


def _backends(target: Target) -> tuple[str, ...]:
    """The backends whose candidates are measured on a target; on a GPU, a library is measured for ops without a kernel."""
    return ("reference",) if target.is_cpu else ON_GPU


def tuned_for(descriptor: Descriptor[Any], prefer: Preference, target: Target) -> Tuned:
    """The row to apply: for exactly these requirements, otherwise for no requirements; never from another machine or
    toolchain."""
    key, hardware = tuning_key(descriptor), autotune_stamp.hardware(target)
    outdated, here = False, {autotune_stamp.toolchain_of(backend) for backend in _backends(target)}
    for require in (prefer.require.canonical_json(), Require().canonical_json()):
        for row in reversed(table().get((key, require), [])):
            if not autotune_stamp.holds_for(row.hardware, hardware):
                continue
            if row.toolchain in here:
                telemetry.count("tuned_hit")
                return Tuned(row, f"{row.hardware}, {row.date[:10]}")
            outdated = True
    telemetry.count("tuned_row_outdated" if outdated else "tuned_miss")
    if outdated:
        telemetry.emit("tuned_row_outdated", op=descriptor.op, hardware=hardware)
        return Tuned(None, "what was measured here was another version of opfacade, kernels or compiler; the default is taken")
    return Tuned(None, f"this problem was not measured on {hardware}; the default is taken")
