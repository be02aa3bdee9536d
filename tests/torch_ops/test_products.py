"""Products inside torch.compile: one graph for any number of rows, and for any plan of them."""

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

import opfacade.torch_ops
from opfacade import Plan
from opfacade.plans.matmul import MatmulDescriptor

assert opfacade.torch_ops


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()
    with torch.no_grad():
        yield
    torch._dynamo.reset()


def handle(rows, **more):
    return Plan.select(MatmulDescriptor(total_num_rows=rows, n=12, k=20, dtype="f32", **more)).handle


def into_given(x, weight, bias, plan):
    out = x.new_empty(x.shape[0], weight.shape[0])
    torch.ops.opfacade.matmul(plan, x * 2, weight, out, bias=bias)
    return out + 1


def functional(x, weight, bias, plan):
    return torch.ops.opfacade.matmul_functional(plan, [x.shape[0], weight.shape[0]], x * 2, weight, bias=bias) + 1


@pytest.mark.parametrize("layer", [into_given, functional])
def test_one_graph_multiplies_any_number_of_rows(layer):
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(layer, backend=counter, fullgraph=True, dynamic=True)
    weight, bias = torch.randn(12, 20), torch.randn(12)
    for rows in (3, 7, 33, 128):
        x = torch.randn(rows, 20)
        for activation in ("none", "relu"):
            found = compiled(x, weight, bias, handle(rows, bias=True, activation=activation))
            want = 2 * x.double() @ weight.double().T + bias.double()
            want = want.relu() if activation == "relu" else want
            torch.testing.assert_close(found.double(), want + 1, rtol=1e-5, atol=1e-4)
    assert counter.frame_count == 1


def test_a_plan_of_other_rows_is_refused_in_a_graph():
    compiled = torch.compile(into_given, backend="aot_eager", fullgraph=True, dynamic=True)
    x, weight, bias = torch.randn(5, 20), torch.randn(12, 20), torch.randn(12)
    compiled(x, weight, bias, handle(5, bias=True))
    with pytest.raises(ValueError, match="total_num_rows"):
        compiled(x[:4], weight, bias, handle(5, bias=True))
