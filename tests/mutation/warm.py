"""Runs pytest in forks of a process that has imported torch already: the import takes as long as most tests of a host fault.

`python -m tests.mutation.warm` reads one JSON object per line (root, env, argv, log, limit) and answers with the exit status,
or null if the tests did not end in time. Nothing of opfacade is imported before the fork.
"""

import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from importlib import import_module

MOST_MEMORY = 12 << 30  # bytes of address space


class Warm:
    """One such process."""

    def __init__(self):
        command = [sys.executable, "-m", "tests.mutation.warm"]
        env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", "CUDA_VISIBLE_DEVICES": ""}
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)

    def run(self, **request):
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


_own = threading.local()


def ended(words, root, env, limit):
    """Like `run.ended`, for a pytest command; each thread has its own process, which ends with this one."""
    if not hasattr(_own, "warm"):
        _own.warm = Warm()
    with tempfile.NamedTemporaryFile("r", errors="replace") as log:
        status = _own.warm.run(root=str(root), env=env, argv=words[words.index("pytest") + 1 :], log=log.name, limit=limit)
        return status, log.read()


def main():
    for name in ("numpy", "pydantic", "torch", "tvm_ffi", "hypothesis.core", "pytest"):
        import_module(name)

    assert "opfacade" not in sys.modules
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            _become(request)
        status = _status(child, request["limit"])
        with suppress(BrokenPipeError):  # the requesting process has ended
            print(json.dumps(status), flush=True)


def limit_memory():
    """A fault that takes all memory fails its test instead. A lower limit of the machine stays."""
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    most = MOST_MEMORY if hard == resource.RLIM_INFINITY else min(MOST_MEMORY, hard)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _become(request):
    try:
        limit_memory()
        os.setsid()
        log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for old, new in ((nothing, 0), (log, 1), (log, 2)):
            os.dup2(old, new)
        os.environ.clear()
        os.environ.update(request["env"])
        os.chdir(request["root"])
        sys.path[:] = [request["root"], *(path for path in sys.path if path not in ("", os.environ.get("PWD")))]
        for name in [name for name in sys.modules if name == "tests" or name.startswith("tests.")]:
            del sys.modules[name]
        import pytest

        status = int(pytest.main(request["argv"]))
        sys.stdout.flush()
        os._exit(status)
    finally:
        os._exit(99)


def _status(child, limit):
    end = time.monotonic() + limit
    while time.monotonic() < end:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


if __name__ == "__main__":
    main()
