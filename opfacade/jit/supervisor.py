"""A small process between Python and a build, run as a script, which ensures that no compiler keeps running when Python dies
for any reason.

ninja gives every compiler its own process group, and compilers start more processes, so a signal to one group does not reach
all. This process adopts all orphaned descendants (PR_SET_CHILD_SUBREAPER), so its descendants are the complete build. It ends
them when Python is gone, on SIGTERM, and after the last command, and returns the status of the build.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
import time

# `typing` is not imported: it would double the time this process takes to start.

# The complete environment of a compiler. Variables like NVCC_APPEND_FLAGS or CPATH would change the code but not the key.
# TMPDIR is relative, because nvcc passes names of temporary files to a shell without quotes.
ENVIRONMENT = {"PATH": "/usr/bin:/bin", "HOME": ".", "TMPDIR": ".", "LANG": "C", "LC_ALL": "C"}

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_POLL_SECONDS = 0.2
_WATCHED = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def main(parent: int, max_file_bytes: int, argv: list[str]) -> int:
    """Run `argv` for the process `parent` until it ends or `parent` does."""
    os.umask(0o077)
    signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    build = os.fork()
    if build == 0:
        _become(argv, max_file_bytes)
    try:
        return _wait(build, parent)
    finally:
        _kill_all()


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _become(argv: list[str], max_file_bytes: int) -> None:
    """In the child: the build itself, with resource limits that no valid build reaches."""
    try:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        bound = max_file_bytes if hard == resource.RLIM_INFINITY else min(hard, max_file_bytes)
        resource.setrlimit(resource.RLIMIT_FSIZE, (bound, bound))
        for ignored in (signal.SIGXFSZ, signal.SIGPIPE):  # Python ignores both; a full file must end its writer
            signal.signal(ignored, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _WATCHED)
        os.execve(argv[0], argv, ENVIRONMENT)
    finally:
        os._exit(127)


def _wait(build: int, parent: int) -> int:
    # Polls the parent, because a death signal (PR_SET_PDEATHSIG) is sent when the *thread* ends.
    while os.getppid() == parent:
        caught = signal.sigtimedwait(_WATCHED, _POLL_SECONDS)
        if caught and caught.si_signo != signal.SIGCHLD:
            return 128 + caught.si_signo
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == build:
                return os.waitstatus_to_exitcode(status) & 0xFF
            if pid == 0:
                break
    return 1


def _kill_all() -> None:
    """Repeats until no process is left, because a process may start another between listing and signalling."""
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        family = _descendants(os.getpid())
        for pid in family:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        while True:
            try:
                if os.waitpid(-1, os.WNOHANG)[0] == 0:
                    break
            except ChildProcessError:
                return
        time.sleep(0.005)


def _descendants(root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            children.setdefault(_parent(name), []).append(int(name))
    found, todo = [], [root]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def _parent(pid: str) -> int:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[1])  # a program's name may contain spaces and brackets
    except (OSError, IndexError):
        return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]))
