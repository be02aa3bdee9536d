"""A program that uses only positions has no input: the op accepts None instead, and its functional form takes the device of the
results.
"""

import pytest
import torch
from torch._subclasses import FakeTensorMode

from opfacade import Plan, Target, torch_ops
from opfacade.errors import ArgumentError
from opfacade.plans.elementwise import MapDescriptor
from opfacade.programs.fields import Input, Output
from opfacade.programs.words import coord, f32, value

assert "map" in torch_ops.defined()
OPS = torch.ops.opfacade
PLACES = torch.arange(5.0).expand(3, 5) + 10 * torch.arange(3.0)[:, None]
LEFT_OUT = {f"return_out_{i}": False for i in (1, 2, 3)}


@pytest.fixture(scope="module")
def plan():
    y = Output(name="y", dtype="f32", value=f32(coord(1)) + 10.0 * f32(coord(0)))
    return Plan.select(MapDescriptor(shape=(3, 5), outputs=(y,)), target=Target.cpu())


def made(handle, **more):
    return OPS.map_functional(handle, [3, 5], None, None, None, None, out_0_dtype=torch.float32, **LEFT_OUT, **more)[0]


def test_none_stands_where_the_first_input_does(plan):
    out = torch.full((3, 5), torch.nan)
    OPS.map(plan.handle, None, out)
    assert torch.equal(out, PLACES)


def test_the_functional_form_makes_its_result_on_the_device_that_is_given(plan):
    assert torch.equal(made(plan.handle, device="cpu"), PLACES)
    with FakeTensorMode():
        assert made(plan.handle, device="cuda").device.type == "cuda"
    with pytest.raises(ArgumentError, match=r"device expected a torch.device, because there is no input, got None"):
        made(plan.handle)


def test_it_is_compiled_whole(plan):
    doubled = torch.compile(lambda handle: 2 * made(handle, device="cpu"), fullgraph=True, backend="aot_eager")
    assert torch.equal(doubled(plan.handle), 2 * PLACES)


def test_an_input_still_says_the_device_and_a_missing_dtype_is_told(plan):
    with FakeTensorMode():
        x = torch.empty(3, 5, device="cuda")
        (y, *_) = OPS.map_functional(plan.handle, [3, 5], None, None, None, x, out_0_dtype=torch.float32, **LEFT_OUT)
        assert y.device.type == "cuda"
    with pytest.raises(ArgumentError, match=r"out_0_dtype expected a torch.dtype, got None"):
        OPS.map_functional(plan.handle, [3, 5], None, None, None, None, **LEFT_OUT)


def test_an_input_that_the_plan_has_is_not_left_out(plan):
    x = Input(name="x", dtype="f32")
    doubled = MapDescriptor(shape=(3,), inputs=(x,), outputs=(Output(name="y", dtype="f32", value=2 * value("x", "f32")),))
    with pytest.raises(ArgumentError, match="in_0"):
        OPS.map(Plan.select(doubled, target=Target.cpu()).handle, None, torch.empty(3))


def test_a_map_in_place_of_one_input_takes_no_second_one():
    fields = {"inputs": (Input(name="x", dtype="f32"),), "in_place": (("y", "x"),)}
    one_more = MapDescriptor(shape=(3,), outputs=(Output(name="y", dtype="f32", value=1 + value("x", "f32")),), **fields)
    more, x = Plan.select(one_more, target=Target.cpu()), torch.zeros(3)
    OPS.map_(more.handle, x, None)
    assert torch.equal(x, torch.ones(3))
