"""A kernel whose operands are on several devices, in a family's own files: bound, launched on the call's device, emulated."""

import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
import tvm_ffi
from torch._subclasses import FakeTensorMode

from opfacade import Plan, Preference, Target, jit
from opfacade.backends.cuda import support
from opfacade.core.descriptor import operands_of
from opfacade.errors import DeviceMismatchError
from opfacade.testing import inputs
from tests import emulator
from tests.families.mount import mounted
from tests.families.test_two_level import wanted
from tests.support.assert_guarantee import hold

SM_90A, CUDA = Target.parse("sm_90a"), Preference(backend="cuda")


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """The sources of the package together with those of the family."""
    place = tmp_path_factory.mktemp("two_level") / "root"
    for folder in ("csrc", "kernels"):
        shutil.copytree(emulator.ROOT / folder, place / folder)
        shutil.copytree(Path(__file__).parent / "two_level" / folder, place / folder, dirs_exist_ok=True)
    return place


@pytest.fixture
def problem(root, monkeypatch):
    monkeypatch.setenv("OPFACADE_SOURCE_ROOT", str(root))
    jit.forget()
    build = partial(_build, emulator.build, root)
    with mounted("two_level") as family, patch.object(emulator, "build", build):
        yield family.RestoreDescriptor(rows=5, width=32)
    jit.forget()


def _build(plain, root, spec):
    return plain(spec, (emulator.ROOT / "tests/emulator", root))


def device_of(name, home):
    """Shard k is k devices after the call's device."""
    return home + int(name.partition("shard_")[2] or 0)


@emulator.needed
def test_it_keeps_its_guarantee(problem):
    hold(emulator.subject(problem), 0)


@emulator.needed
@pytest.mark.parametrize("home", [0, 3])
def test_it_reads_operands_on_several_devices(problem, home):
    """The binding takes each tensor as it is labelled, and the kernel reads the memory of all."""
    plan, args, held = Plan.select(problem, CUDA, SM_90A), inputs.make_args(problem, seed=3), []
    module = tvm_ffi.load_module(str(emulator.library_of(plan.jit_spec)))
    assert bool(args.out.isnan().all())
    module.run(*[emulator.cuda_view(getattr(args, name), held, device_of(name, home)) for name in operands_of(problem)])
    torch.testing.assert_close(args.out, wanted(args), rtol=1e-7, atol=0)


class Recording:
    """A compiled module that launches nothing."""

    def __init__(self):
        self.prepared, self.devices = [], []

    def prepare(self, device):
        self.prepared.append(device)

    def run(self, *given):
        self.devices.append([str(one.device) for one in given])


def test_a_plan_launches_on_the_device_of_the_call_with_operands_of_others(problem, monkeypatch):
    """No file of the core knows the family. The launcher prepares the kernel on the call's device alone."""
    module = Recording()
    monkeypatch.setattr(jit, "load", lambda spec, **_: module)
    monkeypatch.setattr(support.moment, "refuse_capture", lambda *_: None)  # no CUDA driver is installed
    plan, args = Plan.select(problem, CUDA, SM_90A), inputs.make_args(problem, seed=3)
    launch = support.launcher(plan.jit_spec, problem, plan.sku, True, False, ())
    with FakeTensorMode():
        call = replace(args, **{
            name: torch.empty([dim.size for dim in spec.shape], dtype=getattr(args, name).dtype,
                              device=f"cuda:{device_of(name, 3)}")
            for name, spec in operands_of(problem).items()
        })  # fmt: skip
        assert plan.can_implement(call)
        launch(call, None)
        misplaced = replace(call, shard_1=call.shard_0)
        assert [issue.code for issue in plan.can_implement(misplaced).issues] == ["TWO-L002"]
        with pytest.raises(DeviceMismatchError, match="TWO-L002"):
            plan.run(misplaced)
    assert module.prepared == [3]
    assert module.devices == [["cuda:3"] * 4 + ["cuda:4", "cuda:3"]]
