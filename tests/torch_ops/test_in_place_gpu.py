"""Functions around ops that overwrite operands, compiled by inductor for a GPU, on CUDA kernels."""

import pytest
import torch

from opfacade import Preference, Target, explain
from tests.torch_ops.in_place import PATTERNS, outcome, overwriting, own_read, prepared

pytestmark = pytest.mark.gpu
CUDA = Preference(backend="cuda")
FORMS = overwriting()


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda pattern: pattern.__name__)
@pytest.mark.parametrize("at", range(len(FORMS)), ids=[f"{form.name}-{name}" for form, _, name in FORMS])
def test_inductor_does_what_the_function_does(at, pattern):
    form, descriptor, name = FORMS[at]
    if explain(descriptor, CUDA, Target.current()).chosen is None:
        pytest.skip("no CUDA kernel")
    _plan, call, values = prepared(form, descriptor, name, CUDA, "cuda")
    if pattern is own_read and call.read is None:
        pytest.skip("the op reads no operand of this shape")

    def function(given):
        return pattern(call, given)

    dynamic = (at + PATTERNS.index(pattern)) % 2 == 1
    wanted, shared = outcome(function, values())
    found, shared_found = outcome(torch.compile(function, fullgraph=True, dynamic=dynamic), values())
    assert len(found) == len(wanted)
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))
    assert shared_found == shared
