"""One builder per key. Correctness does not depend on locks: without them, a kernel may only be built twice.

A lock file is never deleted, because two processes could then hold the lock; it names its holder.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import socket
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from opfacade.base import regular_files, strict_json
from opfacade.errors import CacheError, CacheLockTimeout, CacheSecurityError
from opfacade.jit import fault_points as faults
from opfacade.jit.cache.files import make_private

LOG_AFTER_SECONDS = 5.0
_POLL_SECONDS = 0.05
_BUSY = (errno.EWOULDBLOCK, errno.EAGAIN, errno.EINTR)
_NO_LOCKS_HERE = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
_log = logging.getLogger("opfacade.jit")
_held: set[int] = set()


@contextmanager
def hold(path: Path, seconds: float) -> Iterator[None]:
    """Hold the lock of a file. Raises CacheLockTimeout after `seconds`. The operating system releases it when the process
    dies."""
    make_private(path.parent)
    deadline = time.monotonic() + seconds
    while True:
        fd = _open(path)
        _held.add(fd)
        try:
            locked = _flock(fd, path, deadline)
            if not locked or _same_file(fd, path):
                _sign(fd)
                faults.at("lock.held")
                yield
                return
        finally:
            _release(fd)


def holder(path: Path) -> str:
    """The description that the holder wrote to the lock, such as `pid 12 on host, for 7 s`."""
    try:
        said: dict[str, Any] = strict_json.loads(regular_files.read(path, 4096))
        return f"pid {said['pid']} on {said['host']}, for {time.time() - said['since']:.0f} s"
    except (OSError, ValueError, KeyError, TypeError):
        return "an unknown process"


def _open(path: Path) -> int:
    faults.at("lock.open")
    try:
        # Without O_TRUNC and without following links, so that no other file is truncated.
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    except OSError as error:
        raise CacheError.of(f"cannot lock {path}: {error.strerror}. Set OPFACADE_CACHE_DIR. [OPF-J020]", error) from error
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise CacheSecurityError(f"{path} is not a regular file. Remove it: rm {path} [OPF-J023]")
    return fd


def _flock(fd: int, path: Path, deadline: float) -> bool:
    """True if locked; False if the file system has no locks."""
    told = time.monotonic() + LOG_AFTER_SECONDS
    while True:
        try:
            faults.at("lock.take")
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError as error:
            if error.errno in _NO_LOCKS_HERE:
                return False
            if error.errno not in _BUSY:
                raise CacheError.of(f"cannot lock {path}: {error.strerror}. [OPF-J020]", error) from error
        now = time.monotonic()
        if now > deadline:
            raise CacheLockTimeout(f"{path} is held by {holder(path)}, which did not finish in time. [OPF-J022]")
        if now > told:
            told = now + 10 * LOG_AFTER_SECONDS
            _log.warning("waiting for another build of this kernel: %s is held by %s", path, holder(path))
        time.sleep(_POLL_SECONDS)


def _sign(fd: int) -> None:
    """Write the holder to the lock; on a full disk, waiters only get a less detailed message."""
    said = json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "since": time.time()})
    with suppress(OSError):
        os.ftruncate(fd, 0)
        os.pwrite(fd, said.encode(), 0)


def _same_file(fd: int, path: Path) -> bool:
    """True if the path still names the locked file; another process may have cleared the cache."""
    try:
        return os.fstat(fd).st_ino == os.stat(path, follow_symlinks=False).st_ino
    except FileNotFoundError:
        return False


def _release(fd: int) -> None:
    if fd not in _held:  # a forked child has closed it
        return
    _held.discard(fd)
    with suppress(OSError):
        # A process forked meanwhile has a copy of fd, and closing ours alone would leave the lock with it.
        fcntl.flock(fd, fcntl.LOCK_UN)
    os.close(fd)


def _after_fork() -> None:
    """A child closes its parent's locks, because its copies of the descriptors would keep them locked after the parent dies."""
    while _held:
        with suppress(OSError):
            os.close(_held.pop())


os.register_at_fork(after_in_child=_after_fork)
