"""A plugin of pytest: which functions of opfacade/ the tests of each file start, and which sources the emulator builds there.

`python -m pytest -p tests.mutation.operators.recorder --touched FOLDER ...`: each process writes a file there, which
`python -m tests.mutation.operators.touched FOLDER` joins. Functions that run while modules are imported count for no test.
Python 3.12 says once where a function starts, at no cost; older ones are asked at each call.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PLACE = f"{ROOT}/opfacade/"
TOOL = 4  # a number that no debugger, profiler or coverage tool has


class Recorder:
    """The file whose test runs now is `test`."""

    def __init__(self, folder: Path):
        self._folder, self.test = folder, ""
        self.started: dict[str, set[tuple[str, str]]] = defaultdict(set)
        self.built: dict[str, set[str]] = defaultdict(set)
        self.seconds: dict[str, float] = defaultdict(float)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item):
        test, began = item.nodeid.partition("::")[0], time.monotonic()
        if test != self.test:
            self.test = test
            _ask_again()
        try:
            return (yield)
        finally:
            self.seconds[test] += time.monotonic() - began

    def pytest_sessionstart(self):
        _watch(self.start)
        from tests import emulator

        plain = emulator.library_of

        def library_of(spec):
            self.built[self.test] |= _sources(spec)
            return plain(spec)

        library_of.cache_clear = plain.cache_clear
        emulator.library_of = library_of

    def pytest_sessionfinish(self):
        found = {"started": self.started, "built": self.built}
        told = {name: {test: sorted(own) for test, own in tests.items() if test} for name, tests in found.items()}
        (self._folder / f"{os.getpid()}.json").write_text(json.dumps(told | {"seconds": self.seconds}))

    def start(self, code) -> None:
        if self.test and code.co_filename.startswith(PLACE):
            self.started[self.test].add((code.co_filename.removeprefix(f"{ROOT}/"), code.co_qualname))


def _sources(spec) -> set[str]:
    from opfacade.jit import codegen
    from tests.mutation.operators.on_gpu import with_parts

    return {path for path, _ in codegen.render(spec).headers} | with_parts(codegen.templates(spec))


def _watch(start) -> None:
    if sys.version_info < (3, 12):

        def called(frame, event, _):
            if event == "call":
                start(frame.f_code)

        sys.setprofile(called)
        threading.setprofile(called)
        return
    sys.monitoring.use_tool_id(TOOL, "touched")

    def begun(code, _):
        start(code)
        return sys.monitoring.DISABLE

    sys.monitoring.register_callback(TOOL, sys.monitoring.events.PY_START, begun)
    sys.monitoring.set_events(TOOL, sys.monitoring.events.PY_START)


def _ask_again() -> None:
    """Functions that another file started are asked about again."""
    if sys.version_info >= (3, 12):
        sys.monitoring.restart_events()


def pytest_addoption(parser):
    parser.addoption("--touched", type=Path, required=False, help="folder for what the tests of each file start")


def pytest_configure(config):
    folder = config.getoption("--touched")
    if folder and (hasattr(config, "workerinput") or not config.getoption("numprocesses", None)):
        folder.mkdir(parents=True, exist_ok=True)
        config.pluginmanager.register(Recorder(folder.resolve()), "touched")
