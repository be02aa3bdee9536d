"""Maintenance of a cache: contents, integrity, and eviction. Builds and loads may run concurrently."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opfacade.errors import CacheError, CacheLockTimeout
from opfacade.jit.cache import files
from opfacade.jit.cache.stale_entries import discard
from opfacade.jit.cache.store import Store, examine
from opfacade.jit.rendered import FOLDER

_CLEAR_WAIT_SECONDS = 10.0


@dataclass(frozen=True)
class Entry:
    """One published binary: bytes of all its files, seconds since its last use, seconds of its build.

    sku: the id of the plan that it was built for; other plans may share it. "": built without a plan.
    """

    key: str
    name: str
    arch: str
    size: int
    age: float
    seconds: float
    resources: dict[str, dict[str, int]]
    sku: str = ""


def entries(store: Store) -> list[Entry]:
    """Every entry with a readable description, the most recently used first."""
    return sorted(_entries(store), key=lambda entry: entry.age)


def verify(store: Store) -> dict[str, str]:
    """Check every entry again and return `{key: error}` of the broken ones. The next load rebuilds them."""
    found = {key: examine(store.entry(key), key) for key in store.published()}
    return {key: finding.why for key, finding in found.items() if finding.library is None}


def collect(store: Store, max_bytes: int | None = None, max_age: float | None = None) -> list[Entry]:
    """Remove entries that were not used for `max_age` seconds, then the least recently used ones until `max_bytes` are left.

    Also remove staging directories of killed builds, and broken and failed entries of that age. Entries under construction
    stay.
    """
    kept, removed, total = entries(store), [], 0
    for entry in kept:
        total += entry.size
        too_old = max_age is not None and entry.age > max_age
        too_much = max_bytes is not None and total > max_bytes
        if (too_old or too_much) and _remove(store, entry.key, 0):
            removed.append(entry)
            total -= entry.size
    store.sweep()
    for place in (store.root / "quarantine", store.root / "failed", store.root / FOLDER):
        for path in _listed(place):
            with suppress(OSError):
                if max_age is not None and time.time() - path.lstat().st_mtime > max_age:
                    discard(path)
    return removed


def clear(store: Store) -> int:
    """Remove all entries and their remainders; locks and digests of compilers stay. Returns the number of entries."""
    keys = store.published()
    removed = sum(_remove(store, key, _CLEAR_WAIT_SECONDS) for key in keys)
    store.sweep()
    for place in (store.root / "quarantine", store.root / "failed", store.root / "by-source", store.root / FOLDER):
        discard(place)
    return removed


def _entries(store: Store) -> Iterator[Entry]:
    store.require_private()
    for key in store.published():
        directory = store.entry(key)
        try:
            meta, used = examine(directory, key).meta, (directory / "meta.json").lstat().st_mtime
            size = sum(path.lstat().st_size for path in directory.iterdir())
        except OSError:  # removed meanwhile
            continue
        facts = (_text(meta, "name"), _text(meta, "arch"), size, time.time() - used, _seconds(meta), _resources(meta))
        yield Entry(key, *facts, sku=str(meta.get("sku", "")))


def _text(meta: dict[str, Any], field: str) -> str:
    return str(meta.get(field, "?"))


def _seconds(meta: dict[str, Any]) -> float:
    value = meta.get("seconds", 0.0)
    return float(value) if isinstance(value, int | float) else 0.0


def _resources(meta: dict[str, Any]) -> dict[str, dict[str, int]]:
    """Counts by kernel; other values are dropped, because the file's content is not trusted."""
    found = meta.get("resources")
    kernels = found.items() if isinstance(found, dict) else ()
    return {name: {k: v for k, v in used.items() if type(v) is int} for name, used in kernels if isinstance(used, dict)}


def _remove(store: Store, key: str, patience: float) -> bool:
    """Remove an entry atomically, unless another process builds it."""
    trash = store.root / "tmp" / uuid.uuid4().hex
    try:
        with store.lock(key, patience):
            files.make_private(trash.parent)
            store.entry(key).rename(trash)
    except (CacheLockTimeout, FileNotFoundError):
        return False
    except OSError as error:
        raise CacheError.of(f"cannot remove {store.entry(key)}: {error.strerror}. [OPF-J020]", error) from error
    discard(trash)
    for hint in (store.root / "by-source").glob(f"*/{key}"):
        with suppress(OSError):
            os.unlink(hint)
            hint.parent.rmdir()
    return True


def _listed(place: Path) -> list[Path]:
    try:
        return list(place.iterdir())
    except OSError:
        return []
