"""Entries on disk: complete or absent, published by one rename, checked byte for byte before every load.

<base>/v1/obj/<key[:2]>/<key>/{kernel-<sha16>.so, meta.json, build.log, kernel.cubin, <name>.cu, <name>.cc, ...}
         /by-source/<portable>/<key>   which entries a machine without a compiler may load; a hint, never trusted
         /locks/<key>.lock
         /tmp/<uuid>/                  staging; its builder holds a flock on it, so a folder without a lock is stale
         /quarantine/ /failed/<key>/   entries that failed their check; the last failed build of a key
         /toolchain.json               digests of compilers
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opfacade.base import regular_files, strict_json
from opfacade.errors import CacheError, CacheIntegrityError
from opfacade.jit import fault_points as faults
from opfacade.jit.cache import files, locks
from opfacade.jit.cache import stale_entries as leftovers

SCHEMA = 1
MAX_META_BYTES = 4 << 20
KEY = re.compile(r"[0-9a-f]{64}")
_LIBRARY = re.compile(r"kernel-[0-9a-f]{16}\.so")


def read_meta(directory: Path) -> Any:
    """The meta.json of an entry, not yet trusted. Raises OSError or ValueError if unreadable."""
    return strict_json.loads(regular_files.read(directory / "meta.json", MAX_META_BYTES))


@dataclass(frozen=True)
class EntryFinding:
    """Result of an entry's check: its library if intact, otherwise the reason, and both digests."""

    library: Path | None
    meta: dict[str, Any]
    why: str = ""
    wanted: str = ""
    got: str = ""


def examine(directory: Path, key: str) -> EntryFinding:
    """Check that an entry is complete, private, for this key, and byte for byte as published."""
    try:
        if directory.is_symlink():
            raise OSError(errno.ELOOP, "is a symbolic link", str(directory))
        meta: dict[str, Any] = strict_json.loads(files.read_private(directory / "meta.json", MAX_META_BYTES))
        wanted, name = meta["sha256"], meta["so"]
        if (meta["schema"], meta["key"]) != (SCHEMA, key) or not _LIBRARY.fullmatch(name):
            return EntryFinding(None, {}, "meta.json is that of another entry")
        data = files.read_private(directory / name)
    except (OSError, ValueError, KeyError, TypeError) as error:
        return EntryFinding(None, {}, f"{type(error).__name__}: {error}")
    got = hashlib.sha256(data).hexdigest()
    intact = got == wanted and name == f"kernel-{got[:16]}.so"
    return EntryFinding(directory / name if intact else None, meta, "" if intact else "digests differ", wanted, got)


@dataclass(frozen=True)
class Store:
    """One cache directory."""

    base: Path

    @property
    def root(self) -> Path:
        return self.base / f"v{SCHEMA}"

    def entry(self, key: str) -> Path:
        return self.root / "obj" / key[:2] / key

    def published(self) -> list[str]:
        found = (path.name for path in (self.root / "obj").glob("*/*"))
        return sorted(key for key in found if KEY.fullmatch(key))

    def require_private(self, key: str = "") -> None:
        """Raises CacheSecurityError if other users could replace a directory on the path to the entries, or to one entry."""
        inside = [self.root, self.root / "obj"]
        files.require_private(self.base, *inside, *([self.entry(key).parent] if key else []))

    def valid(self, key: str) -> Path | None:
        """The library of a published entry if it is intact, otherwise None. Writes and locks nothing."""
        self.require_private(key)
        return examine(self.entry(key), key).library

    def find(self, portable: str, fits: Callable[[dict[str, Any]], bool]) -> Path | None:
        """The library of a valid entry with this portable digest, built by any compiler, whose record passes `fits`."""
        hinted = self.root / "by-source" / portable
        with suppress(OSError):
            if found := self._first(sorted(os.listdir(hinted)), portable, fits):
                return found
        return self._first(self.published(), portable, fits)  # a builder may have died before it wrote the hint

    def _first(self, keys: list[str], portable: str, fits: Callable[[dict[str, Any]], bool]) -> Path | None:
        for key in filter(KEY.fullmatch, keys):
            with suppress(OSError, ValueError, AttributeError):
                meta = read_meta(self.entry(key))
                if meta.get("portable") == portable and fits(meta) and (so := self.valid(key)):
                    return so
        return None

    def lock(self, key: str, seconds: float) -> Any:
        """A context that holds the build lock of a key, or raises CacheLockTimeout after `seconds`."""
        files.require_private(self.base, self.root, self.root / "locks")
        return locks.hold(self.root / "locks" / f"{key}.lock", seconds)

    @contextmanager
    def staging(self) -> Iterator[Path]:
        """A private directory to build in; it is removed at the end if it still exists."""
        files.require_private(self.base, self.root, self.root / "tmp")
        directory = self.root / "tmp" / uuid.uuid4().hex
        files.make_private(directory)
        fd = os.open(directory, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
        try:
            with suppress(OSError):
                fcntl.flock(fd, fcntl.LOCK_EX)  # waits, because a clean-up that tests the lock holds it briefly
            faults.at("staging.made")
            yield directory
        finally:
            os.close(fd)
            shutil.rmtree(directory, ignore_errors=True)

    def publish(self, key: str, built: Path, so: str, facts: dict[str, Any]) -> Path:
        """Publish the staging directory `built` atomically, and return the published library."""
        data = (built / so).read_bytes()
        digest = hashlib.sha256(data).hexdigest()
        name = f"kernel-{digest[:16]}.so"  # a path that was loaded must never contain other code
        (built / so).rename(built / name)
        faults.at("library.named")
        files.close_to_others(built)
        files.fsync(built / name)
        faults.at("library.synced")
        record = {**facts, "schema": SCHEMA, "key": key, "so": name, "size": len(data), "sha256": digest}
        files.write_private(built / "meta.json", json.dumps(record, indent=1, sort_keys=True).encode())
        faults.at("meta.written")
        return self.adopt(key, built, str(facts.get("portable", "")))

    def adopt(self, key: str, built: Path, portable: str) -> Path:
        """Publish a directory with a complete entry."""
        files.fsync(built / "meta.json")
        faults.at("meta.synced")
        files.fsync(built)
        faults.at("staging.synced")
        final = self.entry(key)
        files.make_private(final.parent)
        faults.at("shard.made")
        _rename_or_yield(built, final)
        faults.at("renamed")
        files.fsync(final.parent)
        faults.at("shard.synced")
        self._hint(portable, key)
        faults.at("indexed")
        found = examine(final, key)
        if found.library is None and not final.exists():
            raise CacheError.of(f"{final} was removed immediately. [OPF-J020]", OSError(errno.ENOENT, "removed", str(final)))
        if found.library is None:
            raise CacheIntegrityError(
                f"{final} does not contain what was just written: {found.why}, expected sha256 {found.wanted or 'unknown'}, "
                f"read {found.got or 'nothing'}. Check the disk. [OPF-J021]"
            )
        faults.at("verified")
        return found.library

    def _hint(self, portable: str, key: str) -> None:
        if KEY.fullmatch(portable):
            with suppress(OSError):
                files.make_private(self.root / "by-source" / portable)
                files.write_private(self.root / "by-source" / portable / key, b"")

    def quarantine(self, key: str) -> bool:
        """Move an invalid entry to the quarantine, so that it is rebuilt. Returns whether there was one."""
        if not os.path.lexists(self.entry(key)):
            return False
        leftovers.set_aside(self.entry(key), self.root / "quarantine")
        return True

    def keep_failed(self, key: str, built: Path) -> Path:
        """Keep the staging directory of a failed build as the last failure of its key."""
        place = self.root / "failed" / key
        files.make_private(place.parent)
        shutil.rmtree(place, ignore_errors=True)
        built.rename(place)
        return place

    def sweep(self) -> int:
        """Remove staging directories whose builder was killed. Returns their number."""
        return leftovers.sweep(self.root / "tmp")


def _rename_or_yield(built: Path, final: Path) -> None:
    try:
        built.rename(final)
    except OSError as error:
        # Another process published the same key first; its entry is equivalent.
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise CacheError.of(f"cannot publish {final}: {error.strerror}. [OPF-J020]", error) from error
