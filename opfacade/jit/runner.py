"""Runs the commands of a build: ninja in a private directory, under a supervisor that ends all processes when Python ends."""

from __future__ import annotations

import io
import os
import re
import select
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opfacade import env
from opfacade.errors import CompileTimeout, ToolchainError
from opfacade.jit import fault_points as faults
from opfacade.jit import supervisor
from opfacade.jit.toolchain import find_ninja

LOG = "build.log"
_GRACE_SECONDS = 10
_MAX_OUTPUT_BYTES = 4 << 20
_MAX_FILE_BYTES = 256 << 20
_UNSAFE = re.compile(r"""[\x00-\x1f$`"'\\;&|<>]""")


@dataclass(frozen=True)
class BuildStep:
    """One command of a build, with its outputs and inputs."""

    output: str
    inputs: tuple[str, ...]
    argv: tuple[str, ...]


def _write_ninja(path: Path, steps: tuple[BuildStep, ...]) -> None:
    from ninja import ninja_syntax

    text = io.StringIO()
    make_writer: Any = ninja_syntax.Writer  # its stub types a file as a str
    writer = make_writer(text, width=10**6)
    for number, step in enumerate(steps):
        writer.rule(f"step{number}", command=_bounded(command_line(step.argv), f"step{number}.log"))
        writer.build(step.output, f"step{number}", list(step.inputs))
    path.write_text(text.getvalue())


def command_line(argv: tuple[str, ...]) -> str:
    """argv as a quoted shell command for ninja. Raises for text that nvcc's internal, unquoted shell command would expand.

    ninja keeps all output of a command in memory, so the command writes to a file, and ninja gets only the beginning.
    """
    for token in argv:
        if _UNSAFE.search(token):
            raise ToolchainError(f"a compiler or header path that a shell would expand cannot be used: {token!r}. [OPF-J014]")
    return shlex.join(argv)


def _bounded(command: str, log: str) -> str:
    return f"{command} > {log} 2>&1; s=$$?; head -c {_MAX_OUTPUT_BYTES} {log}; exit $$s"


def run(staging: Path, steps: tuple[BuildStep, ...]) -> int:
    """Run the commands in `staging`, in parallel if possible. Returns the exit status; raises CompileTimeout if they take too
    long."""
    _write_ninja(staging / "build.ninja", steps)
    # -I and -S: no user site-packages, and a start in 10 ms.
    argv = [sys.executable, "-I", "-S", supervisor.__file__, str(os.getpid()), str(_MAX_FILE_BYTES)]
    argv += [str(find_ninja()), "-v"]
    if jobs := env.jit_jobs():
        argv += ["-j", str(jobs)]
    with (staging / LOG).open("wb") as log:
        process = None
        try:
            with _interrupts_held_back():
                # A separate session, so that only this process gets a Ctrl-C of the terminal, and ends the build.
                process = subprocess.Popen(
                    argv, cwd=staging, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
                )
            faults.at("compiler.started")
            return _wait(process, env.jit_timeout())
        except subprocess.TimeoutExpired as error:
            raise CompileTimeout(f"a build took more than {env.jit_timeout():g} s. Log: {log.name} [OPF-J031]") from error
        finally:
            if process is not None:
                _stop(process)


@contextmanager
def _interrupts_held_back() -> Iterator[None]:
    """Defer Ctrl-C to the end of the block, because inside Popen it would leave an untracked build."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _wait(process: subprocess.Popen[bytes], seconds: float) -> int:
    """Like `process.wait(seconds)`, which polls twenty times per second, but the operating system wakes this process
    immediately."""
    with suppress(AttributeError, OSError):  # no os.pidfd_open, or a sandbox that forbids it
        watched = os.pidfd_open(process.pid)
        try:
            poller = select.poll()
            poller.register(watched, select.POLLIN)
            poller.poll(min(seconds, 10**6) * 1000)
        finally:
            os.close(watched)
        seconds = 0.01
    return process.wait(seconds)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End a build that is still running; the supervisor ends all its descendants."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(_GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
