"""Markers, a private kernel cache for the session, counters that start at zero, and a final summary of skipped tests with
reasons.
"""

import os

import pytest

from tests.support import cores, gpus_here, skipped
from tests.support.skipped import pytest_terminal_summary, pytest_testnodedown  # noqa: F401
from tests.support.transformers_here import missing

cores.share(os.environ, cores.here())
gpus_here.take_turns(os.environ)
# Shipped kernels have no slow code; a user's problem may have (tests/jit/sass/test_slow_code.py). CI, which has no GPU, checks
# this. With a GPU, any documented toolkit may build them.
os.environ["OPFACADE_JIT_STRICT"] = "0" if gpus_here.now() else "1"


def pytest_addoption(parser):
    parser.addoption("--heavy", action="store_true", help="also run the tests that take minutes")


def _no_gpu():
    return "" if gpus_here.here() else "need a GPU"


@pytest.hookimpl(trylast=True)  # tests that -k and -m select
def pytest_collection_modifyitems(config, items):
    reasons = {}
    if not config.getoption("--heavy"):
        heavy = [item for item in items if item.get_closest_marker("heavy")]
        reasons |= dict.fromkeys(heavy, "take minutes: run with --heavy")
    for marker, why_not in (("transformers", missing), ("gpu", _no_gpu)):
        marked = [item for item in items if item.get_closest_marker(marker)]
        reason = why_not() if marked else ""
        reasons |= dict.fromkeys(marked, reason) if reason else {}
    skipped.skip(config, items, reasons)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Also around a test's fixtures: fixtures of a module select plans."""
    if gpus_here.marked(item) or not gpus_here.here():
        return (yield)
    with gpus_here.hidden():
        return (yield)


@pytest.fixture(scope="session", autouse=True)
def _private_cache(tmp_path_factory):
    """A private cache for this run, which its workers share, unless the caller chose one."""
    if os.environ.get("OPFACADE_CACHE_DIR"):
        yield
        return
    base = tmp_path_factory.getbasetemp()
    place = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "opfacade-cache"
    place.mkdir(mode=0o700, exist_ok=True)
    os.environ["OPFACADE_CACHE_DIR"] = str(place)
    yield
    del os.environ["OPFACADE_CACHE_DIR"]


@pytest.fixture
def one_thread():
    """torch on one thread: with tiny tensors, threads that compete for a core cost more than the arithmetic."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def fresh_telemetry():
    """Counters start at zero, and no plan of an earlier test updates old counters."""
    from opfacade import plan, telemetry

    telemetry.reset()
    plan._selected.clear()
    yield telemetry
    telemetry.reset()
    plan._selected.clear()
