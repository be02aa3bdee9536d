"""Compiled functions around ops that overwrite operands: the values and the memory of eager mode."""

import pytest
import torch
from torch._inductor import compile_fx

from opfacade import Plan, Target, torch_ops
from opfacade.plans.norm import NormDescriptor
from tests.torch_ops.in_place import (
    PATTERNS,
    between,
    computed,
    interpreted,
    outcome,
    overwriting,
    own_read,
    passes,
    prepared,
    returned,
    stored,
    view,
)

FORMS = overwriting()


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def holds(form, descriptor, name, pattern, backend, dynamic):
    _plan, call, values = prepared(form, descriptor, name)
    if pattern is own_read and call.read is None:
        pytest.skip("the op reads no operand of this shape")

    def function(given):
        return pattern(call, given)

    compiled = torch.compile(function, backend=backend, fullgraph=True, dynamic=dynamic)
    wanted, shared = outcome(function, values())
    found, shared_found = outcome(compiled, values())
    assert len(found) == len(wanted)
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))
    assert shared_found == shared


def cases():
    """Inductor's passes over each form with one pattern, and over norm with all patterns; the rest of the
    matrix takes minutes.
    """
    for at, (form, descriptor, name) in enumerate(FORMS):
        for number, pattern in enumerate(PATTERNS):
            for backend in (passes, "aot_eager"):
                for dynamic in (False, True):
                    first = backend is passes and dynamic is (at % 2 == 1)
                    light = first and (form.name == "norm" or number == at % len(PATTERNS))
                    label = f"{form.name}-{name}-{pattern.__name__}-{getattr(backend, '__name__', backend)}-{dynamic}"
                    marks = () if light else pytest.mark.heavy
                    yield pytest.param(form, descriptor, name, pattern, backend, dynamic, marks=marks, id=label)


@pytest.mark.parametrize(("form", "descriptor", "name", "pattern", "backend", "dynamic"), list(cases()))
def test_a_compiled_function_does_what_the_function_does(form, descriptor, name, pattern, backend, dynamic):
    holds(form, descriptor, name, pattern, backend, dynamic)


@pytest.mark.heavy
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("pattern", [between, own_read, view, computed, stored], ids=lambda pattern: pattern.__name__)
@pytest.mark.parametrize("at", [i for i, (form, _, _) in enumerate(FORMS) if form.name in ("norm", "paged_kv_append")])
def test_the_code_of_inductor_does_what_the_function_does(at, pattern, dynamic):
    holds(*FORMS[at], pattern, "inductor", dynamic)


def test_every_op_that_overwrites_an_operand_is_here():
    ops = {name: getattr(torch.ops.opfacade, name).default for name in torch_ops.defined()}
    read_first = {"norm", "norm_", "map_", "fold_", "rotary_", "qkv_prepare", "qkv_prepare_", "paged_kv_append"}
    assert {form.name for form, _, _ in FORMS} >= read_first | {"gated_activation_", "merge_states_", "adjust_logits"}
    assert all(_overwritten(ops[form.name], name) for form, _, name in FORMS)


def _overwritten(op, name):
    return next(a for a in op._schema.arguments if a.name == name).alias_info.is_write


def test_what_a_function_returns_of_its_operands_is_not_copied():
    graphs = []

    def backend(graph, given):
        return compile_fx.compile_fx(
            graph, given, inner_compile=lambda made, *rest, **_: graphs.append(made) or interpreted(made, *rest)
        )

    form, descriptor, name = next(case for case in FORMS if case[0].name == "norm")
    _plan, call, values = prepared(form, descriptor, name)
    outcome(torch.compile(lambda given: returned(call, given), backend=backend, fullgraph=True), values())
    assert [node for graph in graphs for node in graph.graph.nodes if "clone" in str(node.target)] == []
    assert len(graphs) == 1


def residual_twice(handle, x, residual, out):
    """A residual stream through two norms, each of which writes into the other's input."""
    norm = torch.ops.opfacade.norm
    norm(handle, x=x, residual=residual, out=out)
    read = residual.clone()
    norm(handle, x=out, residual=residual, out=x)
    return out, read, residual * 1


@pytest.mark.parametrize("backend", [passes, pytest.param("inductor", marks=pytest.mark.heavy)])
def test_a_residual_that_is_read_between_two_norms_has_the_sum_of_the_first(backend):
    """The sums by hand: x, then x plus the normed row."""
    descriptor = NormDescriptor(kind="rms", total_num_rows=1, hidden=64, dtype="f32", residual=True, weight="none", eps=0)
    plan = Plan.select(descriptor, target=Target.cpu())
    x, residual, out = torch.full((1, 64), 3.0), torch.full((1, 64), 1.0), torch.zeros(1, 64)
    with torch.no_grad():
        found = torch.compile(residual_twice, backend=backend, fullgraph=True)(plan.handle, x, residual, out)
    assert [t[0, 0].item() for t in (*found, residual, x)] == [1.0, 4.0, 5.0, 5.0, 1.0]
    assert all(t.unique().numel() == 1 for t in (*found, residual, x))


def test_inductor_computes_what_reads_an_operand_before_it_is_overwritten():
    """x becomes twice the original residual, although its copy is the last operation of the function."""

    def function(handle, x, residual, out):
        twice = residual * 2
        torch.ops.opfacade.norm(handle, x=out * 1, residual=residual, out=out)
        x.copy_(twice)

    descriptor = NormDescriptor(kind="rms", total_num_rows=1, hidden=64, dtype="f32", residual=True, weight="none", eps=0)
    plan = Plan.select(descriptor, target=Target.cpu())
    x, residual, out = torch.zeros(1, 64), torch.full((1, 64), 3.0), torch.ones(1, 64)
    with torch.no_grad():
        torch.compile(function, backend="inductor", fullgraph=True)(plan.handle, x, residual, out)
    assert [t.unique().tolist() for t in (x, residual, out)] == [[6.0], [4.0], [1.0]]
