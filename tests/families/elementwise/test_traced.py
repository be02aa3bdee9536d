"""@elementwise: a function of expressions is traced once and runs on tensors."""

import pytest
import torch

from opfacade.errors import ArgumentError, DescriptorError
from opfacade.plans.elementwise import elementwise
from opfacade.programs.words import exp, select


@elementwise
def silu_and_mul(x, y):
    return x / (1 + exp(-x)) * y


def test_a_function_becomes_an_operator():
    x, y = torch.randn(2, 5, 7).bfloat16().unbind()
    got = silu_and_mul(x, y)
    want = torch.nn.functional.silu(x.double()) * y.double()
    assert got.dtype == torch.bfloat16
    assert torch.equal(got, want.bfloat16())


def test_numbers_are_scalars_of_the_plan_and_results_may_be_several():
    axpy = elementwise(lambda a, x, y: (a * x + y, x > y))
    x, y = torch.randn(2, 6).unbind()
    first, second = axpy(2.0, x, y)
    assert torch.equal(first, 2 * x + y)
    assert torch.equal(second, x > y)
    assert torch.equal(axpy(3.0, x, y)[0], 3 * x + y)
    one, other = (axpy.descriptor((6,), {"x": "f32", "y": "f32"}, a=a) for a in (2.0, 3.0))
    assert one.key == other.key


def test_it_is_traced_once_for_its_types():
    calls = []

    @elementwise
    def doubled(x):
        calls.append(x)
        return x + x

    for size in (3, 4, 3):
        assert torch.equal(doubled(torch.ones(size)), torch.full((size,), 2.0))
    assert len(calls) == 1
    assert torch.equal(doubled(torch.ones(3, dtype=torch.int32)), torch.full((3,), 2, dtype=torch.int32))
    assert len(calls) == 2


def test_what_has_no_meaning_is_refused():
    with pytest.raises(ArgumentError, match="OPF-A045"):
        silu_and_mul(torch.ones(3), torch.ones(1))
    with pytest.raises(DescriptorError, match="add of"):
        elementwise(lambda x, y: x + y)(torch.ones(3), torch.ones(3, dtype=torch.int32))
    with pytest.raises(TypeError, match="truth value"):
        elementwise(lambda x: x if x > 0 else -x)(torch.ones(3))
    assert torch.equal(elementwise(lambda x: select(x > 0, x, -x))(torch.tensor([-1.0, 2.0])), torch.tensor([1.0, 2.0]))
