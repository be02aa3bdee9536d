"""A program of torch.export runs the plans with which it was exported, in any process, or names the plans that it needs."""

import gc
import io
import json
import subprocess
import sys

import pytest
import torch

import opfacade.torch_ops  # noqa: F401
from opfacade import Plan, Preference, Target
from opfacade.errors import PlanStateError, UnsupportedError
from opfacade.plan import forget_selections
from opfacade.plans.norm import NormDescriptor
from opfacade.torch_ops import exported

CPU = Target.cpu()
X, WEIGHT = torch.arange(6, dtype=torch.float32).view(2, 3) + 1, torch.tensor([1.0, 2.0, 3.0])


def norm(eps):
    return NormDescriptor(kind="rms", total_num_rows=2, hidden=3, dtype="f32", eps=eps)


class Model(torch.nn.Module):
    def __init__(self, handle):
        super().__init__()
        self.handle = handle

    def forward(self, x, weight):
        absent = {"return_residual": False, "return_full_out": False, "return_scale": False}
        made = torch.ops.opfacade.norm_functional(self.handle, x, weight=weight, **absent)
        return next(result for result in made if result.numel())


def program(eps=1e-5, prefer=None):
    plan = Plan.select(norm(eps), prefer, CPU)
    return torch.export.export(Model(plan.handle), (X, WEIGHT)), plan


def by_hand(eps):
    x = X.double()
    return (x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * WEIGHT.double()).float()


ELSEWHERE = """
import sys
from tests.torch_ops.test_exported import *
other = [Plan.select(norm(eps), target=CPU) for eps in (1.0, 2.0)]  # those whose numbers a count would have given
bare = torch.export.load(sys.argv[1]).module()
try:
    bare(X, WEIGHT)
except PlanStateError as error:
    told = str(error)
torch.save((exported.load(sys.argv[1]).module()(X, WEIGHT), told, bare(X, WEIGHT)), sys.argv[1] + ".out")
"""


def elsewhere(path):
    """Runs the program of a file in another process, in which other plans of the op were selected before."""
    return subprocess.run([sys.executable, "-c", ELSEWHERE, path], capture_output=True, text=True, check=False)


def test_another_process_runs_the_plan_of_the_export(tmp_path):
    path = str(tmp_path / "norm.pt2")
    found, plan = program()
    exported.save(found, path)
    done = elsewhere(path)
    assert done.returncode == 0, done.stderr
    first, told, last = torch.load(path + ".out")
    # The file alone contains only the plan's number: it must not run another plan, and the error names the loaded plans.
    assert "[OPF-R020]" in told
    assert f"got {plan.handle}." in told
    assert told.count("norm/norm/reference/cpu/") == 2
    for made in (first, last):
        torch.testing.assert_close(made, by_hand(1e-5))


def test_a_plan_that_was_selected_before_is_the_one_of_a_program_without_its_plans(tmp_path):
    path = tmp_path / "norm.pt2"
    found, plan = program(1e-3)
    torch.export.save(found, path)
    del plan
    forget_selections()
    gc.collect()
    held = Plan.select(norm(1e-3), target=CPU)
    torch.testing.assert_close(torch.export.load(path).module()(X, WEIGHT), by_hand(1e-3))
    assert held


def test_a_loaded_program_holds_its_plans_and_keeps_their_preference():
    file = io.BytesIO()
    found, plan = program(1e-2, Preference(jit="never"))
    handle = plan.handle
    exported.save(found, file)
    del found, plan
    forget_selections()
    gc.collect()
    file.seek(0)
    module = exported.load(file).module()
    gc.collect()
    torch.testing.assert_close(module(X, WEIGHT), by_hand(1e-2))
    assert exported._loaded[handle].preference.jit == "never"


def test_a_kernel_that_is_not_here_is_an_error_with_its_name():
    rows = json.loads(exported.plans_of(program()[0]))
    rows["plans"][0]["sku"] = "norm/norm/cuda/sm_90a/of_another_release/r9"
    with pytest.raises(UnsupportedError, match=r"norm/norm/cuda/sm_90a/of_another_release/r9"):
        exported.select(json.dumps(rows))


def test_a_file_without_plans_and_one_of_a_later_form_are_refused(tmp_path):
    path = tmp_path / "norm.pt2"
    torch.export.save(program()[0], path)
    with pytest.raises(PlanStateError, match=r"exported\.save\. \[OPF-R022\]"):
        exported.load(str(path))
    with pytest.raises(PlanStateError, match="OPF-R022"):
        exported.select('{"version": 2, "plans": []}')


def test_a_handle_that_is_an_argument_is_no_constant():
    class Given(torch.nn.Module):
        def forward(self, x, weight, handle):
            return Model(handle).forward(x, weight)

    plan = Plan.select(norm(1e-5), target=CPU)
    found = torch.export.export(Given(), (X, WEIGHT, plan.handle))
    assert [row["handle"] for row in json.loads(exported.plans_of(found))["plans"]] == [plan.handle]
