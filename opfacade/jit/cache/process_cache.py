"""The private cache of this process: a temporary directory, created when first needed and removed when the process ends."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import threading
from pathlib import Path

from opfacade.base import notices
from opfacade.errors import CacheError, CachePrivateWarning
from opfacade.jit.cache.store import Store

_guard = threading.Lock()
_store: Store | None = None


def stores() -> tuple[Store, ...]:
    """The private cache, if this process needed one."""
    return (_store,) if _store else ()


def obtain(cause: OSError) -> Store:
    """The private cache, which is used because of `cause`; warns the first time."""
    global _store
    with _guard:
        if _store is None:
            _store = Store(_temporary())
            text = f"the cache cannot be used ({cause}); compiling into {_store.base}, for this process only. [OPF-J025]"
            notices.warn(text, CachePrivateWarning, stacklevel=2)
        return _store


def _temporary() -> Path:
    try:
        place = Path(tempfile.mkdtemp(prefix="opfacade-"))
    except OSError as error:
        raise CacheError.of(f"cannot create a directory for temporary files: {error}. Set TMPDIR. [OPF-J020]", error) from error
    atexit.register(_remove, place, os.getpid())
    return place


def _remove(place: Path, pid: int) -> None:
    if os.getpid() == pid:  # a forked child is not the owner
        shutil.rmtree(place, ignore_errors=True)


def _after_fork() -> None:
    """A forked child creates its own directory when needed, because the parent removes the parent's directory."""
    global _guard, _store
    _guard, _store = threading.Lock(), None


os.register_at_fork(after_in_child=_after_fork)
