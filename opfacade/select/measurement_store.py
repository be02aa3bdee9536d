"""Measurements in SQLite: one row per tuning key, hardware, toolchain and requirement. No error reaches the caller.

WAL lets many processes read while one writes, and writers wait for each other. SQLite does not wait when a file is created,
changes its journal or is closed by its last user; a locked file is then retried. A file that is not a database is renamed; if
the location is not writable, nothing is stored. Telemetry counts both (`tuned_store_corrupt`, `tuned_store_failed`), and each
invalid row (`tuned_row_poisoned`): all values of a row are checked before use.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from opfacade import telemetry
from opfacade.base import regular_files, strict_json
from opfacade.core.model import not_strict
from opfacade.errors import DescriptorError
from opfacade.select.decision import TuningRow, decide

_SCHEMA = """CREATE TABLE IF NOT EXISTS tuned (
  key TEXT NOT NULL, hardware TEXT NOT NULL, toolchain TEXT NOT NULL, require TEXT NOT NULL,
  date TEXT NOT NULL, row TEXT NOT NULL,
  PRIMARY KEY (key, hardware, toolchain, require))"""
_VERSION = 1
_SHARED = ("nfs", "nfs4", "cifs", "smb3", "lustre", "gpfs", "beegfs", "ceph", "9p", "fuse.sshfs", "fuse.glusterfs")
_PATIENCE = 30.0
_MOST_BYTES = 1 << 30
_T = TypeVar("_T")


class MeasurementStore:
    """The measurements in one file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def put(self, rows: Iterable[TuningRow]) -> bool:
        """Store rows, each replacing the row with the same key; all or none. False if they could not be stored."""
        values = [(r.key, r.hardware, r.toolchain, r.require, r.date, r.model_dump_json()) for r in rows]
        for last in (False, True):
            try:
                self._require_sound_files()
                _patiently(lambda: self._write(values))
                return True
            except (sqlite3.Error, OSError) as error:
                if last or not self._put_aside(error):
                    _failed(self.path, error)
                    return False
        return False

    def rows(self) -> tuple[TuningRow, ...]:
        """Every valid row; none if the file is missing."""
        if not os.path.exists(self.path):
            return ()
        try:
            self._require_sound_files()
            found = _patiently(lambda: self._read("mode=ro"))
        except sqlite3.OperationalError as error:
            try:
                found = self._read("immutable=1")  # if not even the database's companion files can be created
            except sqlite3.Error:
                _failed(self.path, error)
                return ()
        except (sqlite3.Error, OSError) as error:
            if not self._put_aside(error):
                _failed(self.path, error)
            return ()
        return tuple(row for *names, text in found if (row := sound(text)) and _names(row) == names)

    def _require_sound_files(self) -> None:
        """Raise OSError, before SQLite opens it, for a file that is not regular (opening it might block) or is too large."""
        for name in ("", "-wal", "-shm", "-journal"):
            with contextlib.suppress(FileNotFoundError):
                regular_files.require_regular(f"{self.path}{name}", _MOST_BYTES)

    def _read(self, how: str) -> list[tuple[Any, ...]]:
        with contextlib.closing(
            sqlite3.connect(f"{self.path.absolute().as_uri()}?{how}", timeout=_PATIENCE, uri=True)
        ) as database:
            _require_known(database)
            return database.execute("SELECT key, hardware, toolchain, require, row FROM tuned ORDER BY rowid").fetchall()

    def _write(self, values: Sequence[tuple[str, ...]]) -> None:
        with self._open() as database:
            database.executemany("INSERT OR REPLACE INTO tuned VALUES (?, ?, ?, ?, ?, ?)", values)

    @contextlib.contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        database = sqlite3.connect(self.path, timeout=_PATIENCE)
        try:
            with database:
                _require_known(database)
                # The WAL index is in shared memory, which works only on one machine.
                database.execute(f"PRAGMA journal_mode={'DELETE' if on_network(self.path) else 'WAL'}")
                database.execute(_SCHEMA)
                database.execute(f"PRAGMA user_version={_VERSION}")
                yield database
        finally:
            database.close()

    def _put_aside(self, error: Exception) -> bool:
        """Whether the file is not a database, and was renamed."""
        if type(error) is not sqlite3.DatabaseError:  # subclasses: a valid file is locked, full, read-only
            return False
        telemetry.count("tuned_store_corrupt")
        telemetry.emit("tuned_store_corrupt", path=str(self.path), error=str(error))
        try:
            self.path.replace(self.path.with_name(self.path.name + ".corrupt"))
        except OSError:
            return False
        return True


def _patiently(use: Callable[[], _T]) -> _T:
    """Retry `use` while the file is locked, up to a timeout."""
    end = time.monotonic() + _PATIENCE
    while True:
        try:
            return use()
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > end:  # errors have a code only from Python 3.11 on
                raise
            time.sleep(0.01)


def _require_known(database: sqlite3.Connection) -> None:
    version = database.execute("PRAGMA user_version").fetchone()[0]
    if version > _VERSION:
        raise sqlite3.NotSupportedError(f"written by a later version of opfacade (schema {version})")


def on_network(path: Path, mounts: Path = Path("/proc/mounts")) -> bool:
    """Whether a path is on a file system that other machines share, as far as /proc/mounts tells."""
    try:
        lines = [line.split() for line in mounts.read_text().splitlines()]
    except OSError:
        return False
    place = path.absolute()
    above = [fields for fields in lines if len(fields) > 2 and place.is_relative_to(fields[1])]
    return bool(above) and max(above, key=lambda fields: len(fields[1]))[2] in _SHARED


def _failed(path: Path, error: Exception) -> None:
    telemetry.count("tuned_store_failed")
    telemetry.emit("tuned_store_failed", path=str(path), error=str(error))


def _names(row: TuningRow) -> list[str]:
    return [row.key, row.hardware, row.toolchain, row.require]


def sound(value: str | bytes | Any) -> TuningRow | None:
    """The row in a JSON text or value, if it is valid and its choice follows from its measurements."""
    try:
        row = TuningRow.model_validate_json(value if isinstance(value, (str, bytes)) else json.dumps(value))
        decision = decide(row.measured, row.incumbent)
        names = [m.sku for m in row.measured]
        if len(set(names)) == len(names) and (decision.winner, decision.incumbent) == (row.winner, row.incumbent):
            return row
        why = "its choice does not follow from its measurements"
    except (DescriptorError, ValueError) as error:
        why = str(error)
    telemetry.count("tuned_row_poisoned")
    telemetry.emit("tuned_row_poisoned", error=why[:200])
    return None


def export(rows: Iterable[TuningRow]) -> str:
    """Rows as a table to ship: JSON in a fixed order, so that equal tables have equal texts."""
    ordered = sorted(rows, key=lambda r: (r.hardware, r.toolchain, r.require, r.key))
    return json.dumps({"opfacade_tuned": 1, "rows": [json.loads(r.model_dump_json()) for r in ordered]}, indent=1) + "\n"


def parse(text: str | bytes) -> tuple[TuningRow, ...]:
    """The valid rows of a table. Raises DescriptorError if it is not a table."""
    try:
        table = strict_json.loads(text)
    except ValueError as error:
        raise not_strict("tuned", error) from error
    if not isinstance(table, dict) or table.get("opfacade_tuned") != 1 or not isinstance(table.get("rows"), list):
        expected = "a table of measurements of a version that is known"
        raise DescriptorError(f"tuned: text expected {expected}, got none. [OPF-T004]", code="OPF-T004", stage="tune")
    return tuple(row for value in table["rows"] if (row := sound(value)))
