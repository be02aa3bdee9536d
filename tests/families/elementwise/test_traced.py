"""@elementwise traces a function of expressions once and runs it on tensors."""

import numpy as np
import pytest
import torch

from opfacade.errors import ArgumentError, DescriptorError, DTypeError
from opfacade.plans._programs import traced as _traced
from opfacade.plans.elementwise import elementwise
from opfacade.programs.words import exp, f32, select


@elementwise
def silu_and_mul(x, y):
    return x / (1 + exp(-x)) * y


def test_a_traced_function_runs_on_tensors():
    x, y = torch.randn(2, 5, 7).bfloat16().unbind()
    got = silu_and_mul(x, y)
    want = torch.nn.functional.silu(x.double()) * y.double()
    assert got.dtype == torch.bfloat16
    assert torch.equal(got, want.bfloat16())


def test_numbers_become_scalars_and_a_function_may_have_several_results():
    axpy = elementwise(lambda a, x, y: (a * x + y, x > y))
    x, y = torch.randn(2, 6).unbind()
    first, second = axpy(2.0, x, y)
    assert torch.equal(first, 2 * x + y)
    assert torch.equal(second, x > y)
    assert torch.equal(axpy(3.0, x, y)[0], 3 * x + y)
    one, other = (axpy.descriptor((6,), {"x": "f32", "y": "f32"}, a=a) for a in (2.0, 3.0))
    assert one.key == other.key


def test_a_function_is_traced_once_per_combination_of_dtypes():
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


def test_wrong_shapes_and_dtypes_are_refused():
    with pytest.raises(ArgumentError, match="OPF-A045"):
        silu_and_mul(torch.ones(3), torch.ones(1))
    with pytest.raises(DescriptorError, match="add of"):
        elementwise(lambda x, y: x + y)(torch.ones(3), torch.ones(3, dtype=torch.int32))
    with pytest.raises(TypeError, match="truth value"):
        elementwise(lambda x: x if x > 0 else -x)(torch.ones(3))
    assert torch.equal(elementwise(lambda x: select(x > 0, x, -x))(torch.tensor([-1.0, 2.0])), torch.tensor([1.0, 2.0]))


@elementwise
def scaled(x, a=2.0):
    return x * a


@pytest.mark.parametrize("zeros", [(0.0, -0.0), (-0.0, 0.0)])
def test_positive_and_negative_zero_are_different_scalars(zeros):
    scaled = elementwise(lambda x, a: x * a)
    x = torch.ones(2)
    for zero in zeros:
        assert torch.equal(scaled(x, zero).signbit(), (x * zero).signbit())
    one, other = (scaled.descriptor((2,), {"x": "f32"}, a=zero) for zero in zeros)
    assert one != other
    assert one.digest() != other.digest()
    assert one.key == other.key


def test_arguments_can_be_passed_by_name_and_have_defaults():
    x = torch.arange(3.0)
    assert torch.equal(scaled(x), 2 * x)
    assert torch.equal(scaled(a=3.0, x=x), 3 * x)
    assert torch.equal(scaled(x, np.float32(0.5)), x / 2)
    assert torch.equal(scaled(x, np.int64(4)), 4 * x)
    assert scaled.descriptor((3,), {"x": "f32"}) == scaled.descriptor((3,), {"x": "f32"}, a=2)
    assert torch.equal(elementwise(lambda x, /: -x)(x), -x)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda x: silu_and_mul(x), r"silu_and_mul\(x, y\): missing a required argument: 'y'"),
        (lambda x: scaled(x, 1.0, 2.0), r"scaled\(x, a\): too many positional arguments"),
        (lambda x: scaled(x, b=1.0), "'b'"),
        (lambda x: scaled(x, "a"), "a is a tensor or a number, not 'a'"),
        (lambda x: scaled(x, None), "a is a tensor or a number, not None"),
        (lambda x: scaled(x, [1.0]), r"a is a tensor or a number, not \[1.0\]"),
        (lambda _: silu_and_mul.descriptor((3,), {"x": "f32"}), "missing arguments: y"),
        (lambda _: scaled.descriptor((3,), {"x": "f32"}, b=1.0), "unknown arguments: b"),
        (lambda _: scaled.descriptor((3,), {"x": "f32", "a": "f32"}, a=1.0), "a is a tensor or a number, not both"),
    ],
)
def test_a_call_with_wrong_parameters_raises_a_type_error_that_names_them(call, words):
    with pytest.raises(TypeError, match=words):
        call(torch.ones(3))


@pytest.mark.parametrize("kind", [torch.complex64, torch.float8_e4m3fnuz])
def test_an_unknown_dtype_is_refused(kind):
    with pytest.raises(DTypeError, match=r"x expected one of float16.*OPF-A010"):
        scaled(torch.ones(3).to(kind))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: scaled.descriptor((3,), {"x": "f99"}), "dtypes.x expected one of f16.*got f99"),
        (lambda: scaled(torch.ones(3), 10**400), "a number within the range of f32"),
        (lambda: scaled(torch.ones(3), float("nan")), r'constant\("nan", "f32"\)'),
        (lambda: elementwise(lambda x: 5.0)(torch.ones(3)), r'a tuple of expressions.*got 5.0.*constant\(5.0, "f32"\)'),
        (lambda: elementwise(lambda x: None)(torch.ones(3)), "got None"),
        (lambda: elementwise(lambda x: ())(torch.ones(3)), r"got \(\)"),
        (lambda: elementwise(lambda x: [x])(torch.ones(3)), "Return a tuple"),
        (lambda: elementwise(lambda x, y: x == y)(*torch.ones(2, 3)), r"got False.*eq\(x, y\)"),
    ],
)
def test_a_function_that_is_not_a_program_is_refused_with_a_remedy(make, words):
    with pytest.raises(DescriptorError, match=words):
        make()


@pytest.mark.parametrize("kind", [torch.float64, torch.int32, torch.uint8, torch.int64])
def test_a_number_takes_the_dtype_of_the_tensors_if_an_f32_would_be_invalid(kind):
    x = torch.arange(4).to(kind)
    assert torch.equal(scaled(x, 3), x * 3)
    assert torch.equal(scaled(x, 3.0), x * 3)
    assert scaled(x, 3).dtype == kind
    if not kind.is_floating_point:
        with pytest.raises(DescriptorError, match="a value of type"):
            scaled(x, 2.5)


def test_a_number_is_an_f32_if_the_program_accepts_one():
    made = elementwise(lambda x, a: f32(x) * a).descriptor((3,), {"x": "i32"}, a=2)
    assert [number.type for number in made.scalars] == ["f32"]
    with pytest.raises(DescriptorError, match="mul of"):
        elementwise(lambda x, y, a: (x * a, y * a))(torch.ones(3).double(), torch.ones(3).int(), 2)


def test_the_cache_of_descriptors_has_a_maximum_size(monkeypatch):
    monkeypatch.setattr(_traced, "REMEMBERED", 3)
    own = elementwise(lambda x, a: x + a)
    for number in range(20):
        assert torch.equal(own(torch.zeros(2), number), torch.full((2,), float(number)))
        assert len(own._calls) <= 3


def test_every_call_selects_the_plan_of_the_current_device(monkeypatch):
    asked = []
    select = scaled.plan.select
    monkeypatch.setattr(scaled.plan, "select", lambda descriptor: asked.append(descriptor) or select(descriptor))
    for _ in range(2):
        scaled(torch.ones(3), 7.0)
    assert len(asked) == 2
    assert asked[0] is asked[1]
