import os
import subprocess
import sys

import pytest

from opfacade.core.target import Target
from tests.support import gpus_here


def test_a_test_without_the_marker_selects_for_the_cpu():
    import torch

    assert Target.current() == Target.cpu()
    assert not torch.cuda.is_available()
    assert torch.cuda.device_count() == 0


@pytest.mark.gpu
def test_a_test_with_the_marker_has_a_gpu():
    assert not Target.current().is_cpu


def test_hidden_gpus_are_also_hidden_from_processes_and_come_back(monkeypatch):
    import torch

    from opfacade.core import target

    monkeypatch.setenv(gpus_here.VARIABLE, "3")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    target._has_cuda.cache_clear()
    with gpus_here.hidden():
        seen = subprocess.check_output([sys.executable, "-c", "import os; print(repr(os.environ['CUDA_VISIBLE_DEVICES']))"])
        assert seen.strip() == b"''"
        assert Target.current() == Target.cpu()
    assert os.environ[gpus_here.VARIABLE] == "3"
    assert torch.cuda.is_available()
    assert target._has_cuda()
    monkeypatch.undo()
    target._has_cuda.cache_clear()


@pytest.mark.parametrize(("worker", "given", "seen"), [("gw0", "0,1", "0,1"), ("gw3", "0,1", "1,0"), ("gw5", "4", "4")])
def test_workers_begin_with_different_gpus_and_see_all(worker, given, seen):
    environ = {"PYTEST_XDIST_WORKER": worker, gpus_here.VARIABLE: given}
    gpus_here.take_turns(environ)
    assert environ[gpus_here.VARIABLE] == seen


def test_a_run_without_workers_keeps_the_order():
    environ = {gpus_here.VARIABLE: "2,1"}
    gpus_here.take_turns(environ)
    assert environ == {gpus_here.VARIABLE: "2,1"}
