"""Where binaries live: complete or absent, checked before every load, built by one process at a time.

    <cache dir>/v1/obj/<key[:2]>/<key>/{kernel-<sha16>.so, meta.json, build.log, <name>.cu, <name>.cc, ...}
                  /locks/<key>.lock    never deleted: a lock that can vanish can be held twice
                  /tmp/<uuid>/         private staging, renamed into obj/ as the one step that publishes
                  /quarantine/         entries that failed their check
                  /failed/<key>/       the last failed build of a key
                  /toolchain.json      digests of compilers

No correctness rests on the lock; it saves compiling twice. Two builders that miss each other both rename, one wins.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
import stat
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from .. import env
from ..errors import CacheError, CacheIntegrityError, CacheLockTimeout

SCHEMA = 1
_POLL_SECONDS = 0.05


def root() -> Path:
    return env.cache_dir() / f"v{SCHEMA}"


def entry(key: str) -> Path:
    return root() / "obj" / key[:2] / key


def toolchain_memo() -> Path:
    """The file for toolchain digests; its directory is made if that is possible."""
    with suppress(OSError):
        make_private(root())
    return root() / "toolchain.json"


def valid(directory: Path) -> Path | None:
    """The shared object of a published entry if it is the one that was published, byte for byte; else None."""
    try:
        meta = json.loads((directory / "meta.json").read_text())
        so = directory / Path(meta["so"]).name
        data = _read_regular(so)
        intact = len(data) == meta["size"] and hashlib.sha256(data).hexdigest() == meta["sha256"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return so if intact else None


def meta(key: str) -> dict[str, Any]:
    """What is recorded of a published entry."""
    loaded: dict[str, Any] = json.loads((entry(key) / "meta.json").read_text())
    return loaded


def find_by_source(source_digest: str) -> Path | None:
    """A valid entry made of these sources by whatever compiler: what a machine without one can still load."""
    for path in sorted((root() / "obj").glob("*/*/meta.json")):
        with suppress(OSError, ValueError, AttributeError):
            if json.loads(path.read_text()).get("source_digest") == source_digest and (so := valid(path.parent)):
                return so
    return None


@contextmanager
def staging() -> Iterator[Path]:
    """A private directory to build in; what is still there at the end is removed."""
    directory = root() / "tmp" / uuid.uuid4().hex
    make_private(directory)
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def publish(key: str, built: Path, so: str, facts: dict[str, Any]) -> Path:
    """Move the staging directory `built` into place, atomically, and return the shared object that is now there."""
    data = _read_regular(built / so)
    digest = hashlib.sha256(data).hexdigest()
    name = f"kernel-{digest[:16]}.so"  # a path that was loaded once must never hold other code
    (built / so).rename(built / name)
    _fsync(built / name)
    record = {**facts, "schema": SCHEMA, "key": key, "so": name, "size": len(data), "sha256": digest}
    (built / "meta.json").write_text(json.dumps(record, indent=1, sort_keys=True))
    _fsync(built / "meta.json")
    final = entry(key)
    make_private(final.parent)
    _rename_or_yield(built, final)
    _fsync(final.parent)
    found = valid(final)
    if found is None:
        raise CacheIntegrityError(f"{final} does not hold what was just written there. Check the disk. [OPF-J021]")
    return found


def quarantine(key: str) -> None:
    """Set a published but invalid entry aside, so that it can be looked at and rebuilt."""
    place = root() / "quarantine"
    make_private(place)
    with suppress(FileNotFoundError):
        entry(key).rename(place / f"{key}.{uuid.uuid4().hex}")


def keep_failed(key: str, built: Path) -> Path:
    """Keep the staging directory of a failed build as the last failure of its key."""
    place = root() / "failed" / key
    make_private(place.parent)
    shutil.rmtree(place, ignore_errors=True)
    built.rename(place)
    return place


@contextmanager
def lock(key: str, seconds: float) -> Iterator[None]:
    """Hold the build lock of a key. CacheLockTimeout after `seconds`. The kernel drops it when the process dies."""
    path = root() / "locks" / f"{key}.lock"
    make_private(path.parent)
    deadline = time.monotonic() + seconds
    while True:
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise _failed(f"cannot lock {path}: {error.strerror}. Set OPFACADE_CACHE_DIR. [OPF-J020]", error) from error
        try:
            _flock(fd, path, deadline)
            if _same_file(fd, path):
                yield
                return
        finally:
            os.close(fd)


def make_private(directory: Path) -> None:
    """Create a directory and its missing parents, each 0700: makedirs(mode) would apply it to the last one only."""
    for part in (*reversed(directory.parents), directory):
        if not part.exists():
            try:
                part.mkdir(mode=0o700)
            except FileExistsError:
                continue
            except OSError as error:
                raise _failed(f"cannot create {part}: {error.strerror}. Set OPFACADE_CACHE_DIR. [OPF-J020]", error) from error


def _flock(fd: int, path: Path, deadline: float) -> None:
    while True:
        try:
            return fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EAGAIN, errno.EINTR):
                raise
        if time.monotonic() > deadline:
            raise CacheLockTimeout(f"another process holds {path} and did not finish its build in time. [OPF-J022]")
        time.sleep(_POLL_SECONDS)


def _same_file(fd: int, path: Path) -> bool:
    """Whether the locked file is still the one the path names; somebody may have cleared the cache meanwhile."""
    try:
        return os.fstat(fd).st_ino == os.stat(path, follow_symlinks=False).st_ino
    except FileNotFoundError:
        return False


def _rename_or_yield(built: Path, final: Path) -> None:
    try:
        built.rename(final)
    except OSError as error:
        # Somebody published the same key first. Theirs is as good as ours.
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise _failed(f"cannot publish {final}: {error.strerror}. [OPF-J020]", error) from error


def _failed(message: str, cause: OSError) -> CacheError:
    error = CacheError(message)
    # OSError prints these in place of its message as soon as there is an errno.
    error.errno, error.strerror, error.filename = cause.errno, message, cause.filename
    return error


def _read_regular(path: Path) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        return file.read()


def _fsync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
