"""torch.compile never traces into a plan: it breaks the graph there, or names the op to call instead."""

import subprocess
import sys

import pytest
import torch
from torch._dynamo.exc import Unsupported
from torch._dynamo.testing import CompileCounterWithBackend

from tests.support.problems import decode, on_reference


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def call(backend, fullgraph=False):
    """A compiled function that runs a plan between two products, and the same one without torch.compile."""
    descriptor, args = decode([6, 9])
    plan, counter = on_reference(descriptor), CompileCounterWithBackend(backend)

    def step(x):
        doubled = x * 2
        plan.run(args)
        return doubled + args.o.sum()

    return step, torch.compile(step, backend=counter, fullgraph=fullgraph), counter


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_a_run_breaks_the_graph_and_nothing_below_it_is_compiled(backend):
    step, compiled, counter = call(backend)
    x = torch.ones(3, dtype=torch.float16)
    assert torch.equal(compiled(x), step(x))
    targets = [str(node.target) for graph in counter.graphs for node in graph.graph.nodes if node.op.startswith("call")]
    assert len(counter.graphs) == 2
    assert sorted(targets) == ["<built-in function add>", "<built-in function mul>", "sum"]


def test_a_full_graph_names_the_op_to_call():
    _, compiled, _ = call("eager", fullgraph=True)
    with pytest.raises(Unsupported, match=r"torch\.ops\.opfacade\.<op>\(plan\.handle"):
        compiled(torch.ones(3))


def test_a_plan_that_is_itself_compiled_stays_as_it_is():
    descriptor, args = decode([6, 9])
    plan, counter = on_reference(descriptor), CompileCounterWithBackend("eager")
    run = torch.compile(plan.run, backend=counter)
    run(args)
    assert counter.frame_count == 0
    assert not args.o.isnan().any()


def test_torch_may_be_imported_after_the_plan():
    code = """
import sys, opfacade.plan
from opfacade.core import opaque
from opfacade import Target
assert "torch" not in sys.modules and len(opaque._codes) == 4
import torch
from opfacade.select.registry import examples
opfacade.plan.Plan.select(examples()[0], target=Target.cpu())
assert not opaque._codes
assert "torch._dynamo" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)
