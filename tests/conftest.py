"""Markers, a private kernel cache for the session, counters that start at zero, and at the end what was skipped and why."""

import os

import pytest

from tests.support import cores
from tests.support.skipped import pytest_terminal_summary  # noqa: F401
from tests.support.transformers_here import missing

cores.share(os.environ, cores.here())


def pytest_addoption(parser):
    parser.addoption("--heavy", action="store_true", help="also run the tests that take minutes")


def _no_gpu():
    import torch

    return "" if torch.cuda.is_available() else "need a GPU"


def pytest_collection_modifyitems(config, items):
    for marker, why_not in (("gpu", _no_gpu), ("transformers", missing)):
        marked = [item for item in items if item.get_closest_marker(marker)]
        reason = why_not() if marked else ""
        for item in marked if reason else ():
            item.add_marker(pytest.mark.skip(reason=reason))
    for item in items:
        if item.get_closest_marker("heavy") and not config.getoption("--heavy"):
            item.add_marker(pytest.mark.skip(reason="take minutes: run with --heavy"))


@pytest.fixture(scope="session", autouse=True)
def _private_cache(tmp_path_factory):
    """A cache of this session's own, unless the caller chose one."""
    if os.environ.get("OPFACADE_CACHE_DIR"):
        yield
        return
    os.environ["OPFACADE_CACHE_DIR"] = str(tmp_path_factory.mktemp("opfacade-cache"))
    yield
    del os.environ["OPFACADE_CACHE_DIR"]


@pytest.fixture
def fresh_telemetry():
    """Counters at zero, and no plan from an earlier test that counts into forgotten ones."""
    from opfacade import plan, telemetry

    telemetry.reset()
    plan._selected.clear()
    yield telemetry
    telemetry.reset()
    plan._selected.clear()
