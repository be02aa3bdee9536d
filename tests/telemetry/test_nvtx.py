"""NVTX ranges: named by the SKU, closed even after errors, and disabled by default."""

from types import SimpleNamespace

import pytest
from torch.cuda import nvtx

from opfacade.errors import SettingWarning
from opfacade.telemetry import nvtx as telemetry_nvtx

SKU = SimpleNamespace(id="a/b/cuda", backend="cuda")


@pytest.fixture
def marks(monkeypatch):
    """The ranges that were pushed and popped."""
    told = []
    monkeypatch.setattr(nvtx, "range_push", told.append)
    monkeypatch.setattr(nvtx, "range_pop", lambda: told.append("pop"))
    monkeypatch.setenv("OPFACADE_NVTX", "1")
    return told


def test_nothing_stands_around_a_launcher_by_default():
    assert telemetry_nvtx.wrap(print, SKU) is print


def test_a_launch_lies_in_a_range_named_by_its_sku(marks):
    launch = telemetry_nvtx.wrap(lambda args, workspace: marks.append((args, workspace)), SKU)
    del marks[:]
    launch("args", "workspace")
    assert marks == ["a/b/cuda", ("args", "workspace"), "pop"]


def test_a_range_ends_when_its_launch_fails(marks):
    launch = telemetry_nvtx.wrap(lambda args, workspace: 1 / 0, SKU)
    del marks[:]
    with pytest.raises(ZeroDivisionError):
        launch(None, None)
    assert marks == ["a/b/cuda", "pop"]


def test_a_torch_without_nvtx_is_told_and_runs_all_the_same(monkeypatch):
    def absent(name):
        raise RuntimeError("NVTX functions not installed")

    monkeypatch.setattr(nvtx, "range_push", absent)
    monkeypatch.setenv("OPFACADE_NVTX", "1")
    with pytest.warns(SettingWarning, match="no effect: NVTX"):
        assert telemetry_nvtx.wrap(print, SKU) is print
