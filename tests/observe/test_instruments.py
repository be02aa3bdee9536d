"""The event at the load of the first plan, and the wrappers around a launcher (see also tests/jit/test_options.py)."""

import warnings
from types import SimpleNamespace

import pytest

from opfacade import errors
from opfacade.observe import instruments
from opfacade.select.registry import examples


class Sku:
    backend = "reference"


@pytest.fixture(autouse=True)
def _untold(monkeypatch):
    monkeypatch.setattr(instruments, "_told", False)


def test_a_misspelt_variable_is_told_once(monkeypatch):
    monkeypatch.setenv("OPFACADE_JIT_VERBOS", "1")
    with pytest.warns(errors.SettingWarning, match=r"reads no such variable. Did you mean OPFACADE_JIT_VERBOSE\?"):
        instruments.launcher(lambda: print, examples()[0], Sku())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        instruments.launcher(lambda: print, examples()[0], Sku())


def test_the_reference_has_no_sources_to_follow(monkeypatch):
    monkeypatch.setenv("OPFACADE_JIT_RELOAD", "1")
    assert instruments.launcher(lambda: print, examples()[0], Sku()) is print


@pytest.mark.parametrize(("builds", "hits"), [(0, 1), (1, 0)])
def test_a_load_that_needed_no_build_is_a_hit_of_the_cache(fresh_telemetry, builds, hits):
    sku, made = SimpleNamespace(id="a/b/cuda"), object()

    def make():
        for _ in range(builds):
            fresh_telemetry.count_build(sku.id, 0.5)
        return made

    assert instruments._counted(make, sku) is made
    assert fresh_telemetry.stats(sku.id).cache_hits.value() == hits
