"""Kernels are loaded on the device of a call's tensors, whichever device is current; stubs stand in for two devices."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from opfacade import Plan, Target
from opfacade import plan as plans
from opfacade.backends.cuda import support
from opfacade.errors import DeviceError, PlanStateError
from tests.support.problems import decode, on_reference


@pytest.fixture
def devices(monkeypatch):
    """Stubs of two devices, of which the first is current, and the record of captures."""
    told = SimpleNamespace(current=[0], captured=set())

    class Device:
        def __init__(self, device):
            self.index = torch.device(device).index

        def __enter__(self):
            told.current.append(self.index)

        def __exit__(self, *error):
            told.current.pop()

    fakes = {
        "device": Device, "is_initialized": lambda: True, "is_available": lambda: True,
        "current_device": lambda: told.current[-1], "is_current_stream_capturing": lambda: told.current[-1] in told.captured,
    }  # fmt: skip
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    return told


def prepared(prepare):
    return support._Prepared(SimpleNamespace(prepare=prepare), on_reference(decode([9])[0]).sku)


def test_each_device_is_prepared_once(devices):
    loaded = []
    kernels = prepared(loaded.append)
    for device in (1, 1, None, 0, 1):
        kernels.on(device)
    assert loaded == [1, 0]


def test_a_second_device_is_not_loaded_while_its_stream_is_captured(devices):
    loaded = []
    kernels = prepared(loaded.append)
    kernels.on(0)
    devices.captured = {1}
    with pytest.raises(PlanStateError, match=r"not loaded on cuda:1.*OPF-R003"):
        kernels.on(1)
    devices.captured = {0}
    kernels.on(1)
    assert loaded == [0, 1]


def test_a_device_that_could_not_be_prepared_is_tried_again(devices):
    answers = iter([RuntimeError("CUDA_ERROR_OUT_OF_MEMORY"), None])
    loaded = []

    def prepare(device):
        answer = next(answers)
        if answer is not None:
            raise answer
        loaded.append(device)

    kernels = prepared(prepare)
    with pytest.raises(DeviceError, match="OUT_OF_MEMORY"):
        kernels.on(1)
    kernels.on(1)
    assert loaded == [1]


def test_a_plan_is_loaded_where_the_tensors_of_its_first_run_are(devices, monkeypatch):
    descriptor, args = decode([9])
    monkeypatch.setattr(plans, "_selected", {})
    plan, seen = Plan.select(descriptor, target=Target.cpu()), []

    def launcher(*_):
        seen.append(torch.cuda.current_device())
        return lambda args, workspace: None

    object.__setattr__(plan, "_candidate", replace(plan._candidate, launcher=launcher))
    monkeypatch.setattr(plans.capture, "device_of", lambda args: torch.device("cuda:1"))
    plan.run(args)
    assert seen == [1]
    assert torch.cuda.current_device() == 0
