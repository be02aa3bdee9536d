"""A pytest plugin that records which lines of opfacade/ each test runs, and which lines of C++ are in the kernels that it
emulates.

`python -m pytest -p tests.mutation.operators.recorder --touched=FOLDER ...`: each process writes a file there now and then,
which `python -m tests.mutation.operators.touched FOLDER FILE` joins. For each line it keeps the few fastest tests, one per test
function. Lines that run during imports count for no test. Python 3.12 reports each line once per test; older versions report
called functions, whose lines all count.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.mutation.operators import line_table
from tests.mutation.operators.touched import KEPT, Best, Line, Timed

ROOT = Path(__file__).resolve().parents[3]
PLACE = f"{ROOT}/opfacade/"
TOOL = 4  # a tool id that no debugger, profiler or coverage tool uses
WRITTEN_EVERY = 40.0  # seconds
BREADTH = 4000  # lines that count as one second: a test that runs few lines is specific to them


class Recorder:
    """lines: lines of the current test."""

    def __init__(self, folder: Path):
        self._place, self._due = folder / f"{os.getpid()}.json", time.monotonic() + WRITTEN_EVERY
        self.test, self.lines, self.best, self._passed = "", set[Line](), Best(KEPT), False

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item):
        self.test, self.lines, self._passed, began = item.nodeid, set(), False, time.monotonic()
        _ask_again()
        try:
            return (yield)
        finally:
            self.end(time.monotonic() - began)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item, call):
        report = yield
        if report.when == "call":
            self._passed = report.passed
        return report

    def end(self, seconds: float) -> None:
        """A skipped or failed test judges nothing."""
        test, lines, self.test = self.test, self.lines, ""
        if self._passed:
            cost = seconds + len(lines) / BREADTH
            for line in lines:
                self.best.add(line, Timed(cost, seconds, test))
        if time.monotonic() > self._due:
            self.write()
            self._due = time.monotonic() + WRITTEN_EVERY

    def pytest_sessionstart(self):
        _watch(self.start, self.called)
        line_table.keep(self.built)

    def pytest_sessionfinish(self):
        self.write()

    def write(self) -> None:
        half = self._place.with_suffix(".half")
        half.write_text(json.dumps(self.best.as_json()))
        half.replace(self._place)

    def start(self, code, number: int) -> None:
        if self.test and code.co_filename.startswith(PLACE):
            self.lines.add((code.co_filename[len(PLACE) - len("opfacade/") :], number))

    def called(self, code) -> None:
        if self.test and code.co_filename.startswith(PLACE):
            for _, _, number in code.co_lines():
                if number:
                    self.start(code, number)

    def built(self, lines: frozenset[Line]) -> None:
        if self.test:
            self.lines |= lines


def _watch(start, called) -> None:
    if sys.version_info < (3, 12):

        def profiled(frame, event, _):
            if event == "call":
                called(frame.f_code)

        sys.setprofile(profiled)
        threading.setprofile(profiled)
        return
    sys.monitoring.use_tool_id(TOOL, "touched")
    disable = sys.monitoring.DISABLE  # `sys` is None while the interpreter exits

    def begun(code, number):
        start(code, number)
        return disable

    sys.monitoring.register_callback(TOOL, sys.monitoring.events.LINE, begun)
    sys.monitoring.set_events(TOOL, sys.monitoring.events.LINE)


def _ask_again() -> None:
    """Lines that another test ran are reported again."""
    if sys.version_info >= (3, 12):
        sys.monitoring.restart_events()


def pytest_addoption(parser):
    parser.addoption("--touched", type=Path, required=False, help="folder for the lines that each test runs")


def pytest_configure(config):
    folder = config.getoption("--touched")
    if folder and (hasattr(config, "workerinput") or not config.getoption("numprocesses", None)):
        folder.mkdir(parents=True, exist_ok=True)
        config.pluginmanager.register(Recorder(folder.resolve()), "touched")
