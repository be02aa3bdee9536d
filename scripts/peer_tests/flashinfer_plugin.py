"""A pytest plugin: `flashinfer` is opfacade.compat.flashinfer, and each test is counted under one of the words of `judging`.

FlashInfer's tests compare a wrapper with the call for a single request. So that our results are not compared with our own, this
call is replaced by a dense oracle in float64, except in the files that test the call itself.
"""

from __future__ import annotations

import collections
import gc
import json
from pathlib import Path

import pytest
import torch
from flashinfer_stand_in import Missing, install
from flashinfer_torch import on_cpu, oracle_of_single_calls
from judging import WORDS, judged, removed
from places import answer, here

from opfacade import Preference
from opfacade.compat import preferring

install()

# These files test the call for a single request, with their own oracle.
OF_SINGLE_CALLS = {
    "test_alibi",
    "test_hopper",
    "test_logits_cap",
    "test_single_prefill",
    "test_fp8_prefill",
    "test_decode_prefill_lse",
}

_WRONG = ("fail", "setup")
_results: dict[str, dict[str, str]] = collections.defaultdict(dict)
_reasons: collections.Counter[str] = collections.Counter()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("opfacade")
    group.addoption("--opfacade-cpu", action="store_true", help="run on the CPU: devices are redirected, the reference answers")
    group.addoption("--opfacade-json", default="", help="a file for the table")
    group.addoption("--opfacade-most", type=int, default=0, help="at most so many cases of a test function, spread evenly")


def pytest_configure(config: pytest.Config) -> None:
    if not config.args or config.args == [str(config.invocation_params.dir)]:
        config.args[:] = here(Path())
    if config.getoption("--opfacade-cpu"):
        on_cpu()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for module in {item.getparent(pytest.Module) for item in items} - {None}:
        answer(module.obj)
    for item in items:
        if reason := removed(item.nodeid):
            _count(item, "removed", reason)
    items[:] = [item for item in items if not removed(item.nodeid)]
    most = config.getoption("--opfacade-most")
    if not most:
        return
    by_function: dict[object, list[pytest.Item]] = collections.defaultdict(list)
    for item in items:
        by_function[item.nodeid.partition("[")[0]].append(item)
    items[:] = [item for found in by_function.values() for item in found[:: max(1, -(-len(found) // most))]]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item):
    own = item.path.stem in OF_SINGLE_CALLS
    preference = None if item.config.getoption("--opfacade-cpu") else Preference(backend="cuda")
    with preferring(preference), oracle_of_single_calls(not own):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo):
    report = yield
    if report.skipped:
        _count(item, "skip")
    elif report.failed:
        _count(item, *judged(item.name, call.excinfo.value if call.excinfo else None, report.when))
    elif report.when == "call":
        _count(item, "pass")
    return report


def _count(item: pytest.Item, word: str, reason: str = "") -> None:
    _results[item.path.stem][item.nodeid] = word
    if reason:
        _reasons[reason] += 1


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """Frees cached memory after each test, because several processes share the GPU."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def pytest_terminal_summary(terminalreporter, config: pytest.Config) -> None:
    words = WORDS
    table = {name: collections.Counter(found.values()) for name, found in sorted(_results.items())}
    write = terminalreporter.write_line
    write("")
    write(f"{'file':34}" + "".join(f"{word:>8}" for word in words))
    for name, found in table.items():
        write(f"{name:34}" + "".join(f"{found[word]:8}" for word in words))
    write(f"{'all':34}" + "".join(f"{sum(found[word] for found in table.values()):8}" for word in words))
    for reason, count in _reasons.most_common(40):
        write(f"{count:6}  {reason}")
    for found in _results.values():
        for test, result in found.items():
            if result in _WRONG:
                write(f"{result:7} {test}")
    if config.getoption("--opfacade-json"):
        failed = [test for found in _results.values() for test, result in found.items() if result in _WRONG]
        record = {"files": table, "reasons": _reasons, "failed": failed}
        Path(config.getoption("--opfacade-json")).write_text(json.dumps(record, indent=1))


__all__ = ["Missing"]
