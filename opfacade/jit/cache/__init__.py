"""The cache of binaries: an entry is looked up and checked, or built by one process and published.

`shared()` is the user's cache. If it cannot be written, locked in time or filled, this process builds in a private temporary
directory and warns once (CachePrivateWarning). Layout and checks: `store`.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

from opfacade import env
from opfacade.errors import CacheError, CacheIntegrityError, CacheLockTimeout, CacheSecurityError, CompileError, CompileTimeout
from opfacade.jit.cache import process_cache as private
from opfacade.jit.cache.files import make_private
from opfacade.jit.cache.store import SCHEMA, Store, examine
from opfacade.jit.runner import LOG

__all__ = [
    "SCHEMA", "Use", "entry", "find", "lock", "make_private", "meta", "obtain", "publish", "root", "shared",
    "staging", "state", "toolchain_memo", "valid",
]  # fmt: skip

Make = Callable[[Path], dict[str, Any]]
Use = Callable[[Path], None]
Fits = Callable[[dict[str, Any]], bool]

_UNWRITABLE = {errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.ENOENT}
_DISK_FULL = ("No space left on device", "Disk quota exceeded")
_NEARLY_FULL_BYTES = 64 << 10
_TRIES = 3
_DAY = 86400.0


def shared() -> Store:
    """The cache that processes share; a private one if there is no home directory."""
    try:
        place = env.cache_dir()
    except RuntimeError as error:
        return private.obtain(OSError(errno.ENOENT, str(error)))
    if place.parts[:1] == ("~",):  # older versions of platformdirs return a path that they could not expand
        return private.obtain(OSError(errno.ENOENT, "could not determine the home directory"))
    # A relative path must not depend on the working directory of a build.
    return Store(Path(os.path.abspath(place)))


def state(library: Path) -> str:
    """ "private" for a library that this process built for itself, else "shared"."""
    return "private" if any(library.is_relative_to(store.base) for store in private.stores()) else "shared"


def root() -> Path:
    return shared().root


def entry(key: str) -> Path:
    return shared().entry(key)


def toolchain_memo() -> Path:
    """The file for toolchain digests; creates its directory if possible. Raises CacheSecurityError if it is not safe."""
    shared().require_private()
    with suppress(CacheError):
        make_private(root())
    return root() / "toolchain.json"


def valid(key: str) -> Path | None:
    """The library of an intact entry in the shared or the private cache; None if there is none. Takes no lock."""
    found = shared().valid(key)
    return _used(found) or next((so for store in private.stores() if (so := store.valid(key))), None)


def find(portable: str, fits: Fits) -> Path | None:
    """Like `valid`, for a machine without a compiler, which cannot compute the key."""
    found = shared().find(portable, fits)
    return _used(found) or next((so for store in private.stores() if (so := store.find(portable, fits))), None)


def _used(library: Path | None) -> Path | None:
    """Record the day of a use for `gc`, if the cache is writable."""
    if library is not None:
        with suppress(OSError):
            note = library.parent / "meta.json"
            if time.time() - note.stat().st_mtime > _DAY:
                os.utime(note)
    return library


def meta(key: str) -> dict[str, Any]:
    """The meta.json of a published entry."""
    stores = [shared(), *private.stores()]
    found = next((store for store in stores if store.entry(key).exists()), stores[0])
    return examine(found.entry(key), key).meta


def staging() -> AbstractContextManager[Path]:
    return shared().staging()


def publish(key: str, built: Path, so: str, facts: dict[str, Any]) -> Path:
    return shared().publish(key, built, so, facts)


def lock(key: str, seconds: float) -> AbstractContextManager[None]:
    held: AbstractContextManager[None] = shared().lock(key, seconds)
    return held


def obtain(key: str, output: str, make: Make, use: Use | None = None) -> Path:
    """The library of `key`: the published one, or what `make(staging directory)` leaves in the file `output`. use: called with
    the library under the lock of the key, so that no clean-up removes it meanwhile.

    `make` runs at most once at a time on the machine; it runs again if the disk lost its result, or in private if the
    shared cache cannot be used. Raises what `make` raises, CacheSecurityError, CacheIntegrityError, CacheError.
    """
    for attempt in range(1, _TRIES + 1):
        try:
            return _obtain_in(shared(), key, output, make, use)
        except (CacheSecurityError, CacheIntegrityError, CompileTimeout):
            raise
        except OSError as error:
            if error.errno == errno.ENOENT and attempt < _TRIES:
                continue  # another process clears the cache
            if error.errno not in _UNWRITABLE and not isinstance(error, CacheLockTimeout):
                raise
            store = private.obtain(error)
            break
    return _obtain_privately(store, key, output, make, use)


def _obtain_in(store: Store, key: str, output: str, make: Make, use: Use | None) -> Path:
    with store.lock(key, env.jit_timeout()):
        library = store.valid(key) or _build_in(store, key, output, make)
        if use is not None:
            use(library)
        return library


def _obtain_privately(store: Store, key: str, output: str, make: Make, use: Use | None) -> Path:
    try:
        return _obtain_in(store, key, output, make, use)
    except (CacheError, CompileError):
        raise
    except OSError as error:
        raise CacheError.of(f"cannot build in {store.base}: {error.strerror}. Set TMPDIR. [OPF-J020]", error) from error


def _build_in(store: Store, key: str, output: str, make: Make) -> Path:
    """Build and publish. If the entry differs from what was written, it is built a second time, but not again."""
    failed = store.quarantine(key)
    store.sweep()
    while True:
        try:
            with store.staging() as directory:
                facts = _make_in(store, key, directory, make)
                return store.publish(key, directory, output, facts)
        except CacheIntegrityError:
            store.quarantine(key)
            if failed:
                raise
            failed = True


def _make_in(store: Store, key: str, directory: Path, make: Make) -> dict[str, Any]:
    try:
        return make(directory)
    except CompileError as error:
        # A compiler only reports that it failed; this code determines whether the cache is the cause.
        if not directory.exists():
            raise _caused(errno.ENOENT, directory) from error
        if any(text in error.log_tail for text in _DISK_FULL) or _full(directory.parent):
            raise _caused(errno.ENOSPC, directory) from error
        _keep_log(store, key, directory, error)
        raise


def _keep_log(store: Store, key: str, directory: Path, error: CompileError) -> None:
    """Keeps the log when the staging directory is removed; the error contains its path."""
    with suppress(OSError):
        if (directory / LOG).exists():
            kept = store.keep_failed(key, directory)
            error.args = tuple(str(arg).replace(str(directory), str(kept)) for arg in error.args)
            error.log_path, error.key = str(kept / LOG), key


def _full(directory: Path) -> bool:
    with suppress(OSError):
        disk = os.statvfs(directory)
        return disk.f_bavail * disk.f_frsize < _NEARLY_FULL_BYTES or bool(disk.f_files and disk.f_favail == 0)
    return False


def _caused(number: int, directory: Path) -> CacheError:
    why = OSError(number, os.strerror(number), str(directory))
    return CacheError.of(f"a build in {directory} failed: {why.strerror}. Set OPFACADE_CACHE_DIR. [OPF-J020]", why)
