"""The reference of softmax against its formula, edge cases and refusals."""

import math

import numpy as np
import pytest
import torch

from opfacade import Plan, load_descriptor
from opfacade.errors import DescriptorError
from opfacade.plans.softmax import EXAMPLES, SoftmaxArgs, SoftmaxDescriptor, SoftmaxPlan
from opfacade.testing import inputs, numerics

DTYPES = {"f32": torch.float32, "f64": torch.float64}
FORMS = {
    **{f"example-{i}": one for i, one in enumerate(EXAMPLES)},
    "f64": SoftmaxDescriptor(shape=(4, 33), dtype="f64", temperature=2.5),
    "first": SoftmaxDescriptor(shape=(20, 3), axis=0, dtype="f32"),
    "middle": SoftmaxDescriptor(shape=(2, 9, 2, 5), axis=-3, dtype="f16", log=True),
    "masked_log": SoftmaxDescriptor(shape=(6, 40), dtype="f32", log=True, mask=True),
    "one": SoftmaxDescriptor(shape=(3, 1), dtype="bf16"),
    "none": SoftmaxDescriptor(shape=(0, 7), dtype="f32"),
}


@pytest.fixture(params=FORMS)
def problem(request):
    return FORMS[request.param]


def formula(d, x, mask):
    """The softmax in long doubles."""
    y = x.double().numpy().astype(np.longdouble) / np.longdouble(
        d.temperature if d.dtype == "f64" else np.float32(d.temperature)
    )
    if mask is not None:
        y = np.where(mask.numpy(), y, -np.inf)
    with np.errstate(all="ignore"):
        y = y - y.max(d.axis, keepdims=True) if y.size else y
        total = np.exp(y).sum(d.axis, keepdims=True)
        found = y - np.log(total) if d.log else np.exp(y) / total
    return np.where(np.isnan(found), -np.inf if d.log else 0, found) if d.safe else found


def test_the_reference_equals_the_formula(problem):
    args = inputs.make_args(problem, seed=3)
    SoftmaxPlan.select(problem).run(args)
    rows = None if args.num_valid is None else int(args.num_valid[0])
    want, got = (
        formula(problem, args.x[:rows], None if args.mask is None else args.mask[:rows]),
        args.out[:rows].double().numpy(),
    )
    u = {"f16": 2.0**-10, "bf16": 2.0**-7, "f32": 2.0**-20, "f64": 1e-13}[problem.out_dtype or problem.dtype]
    with np.errstate(invalid="ignore"):
        near = np.abs(got - want) <= u * np.abs(want) + 1e-30  # x - max is rounded once
    fine = (got == want) | near | (np.isnan(got) & np.isnan(want))
    if problem.dtype == "f16" or problem.out_dtype == "f16":
        fine |= np.abs(got - want) <= 2.0**-24
    assert fine.all()


def test_it_keeps_its_bound(problem):
    plan = SoftmaxPlan.select(problem)
    for seed in range(3):
        args = inputs.make_args(problem, seed=seed)
        before = numerics.snapshot(problem, args)
        plan.run(args)
        assert numerics.check(problem, args, plan.sku, before=before).worst <= 1
        assert load_descriptor(problem.canonical_json()) == problem


def run(d, *row, mask=None):
    out = torch.full((1, len(row)), 7.0)
    args = {"mask": torch.tensor([mask])} if mask else {}
    SoftmaxPlan.select(d).run(SoftmaxArgs(x=torch.tensor([row]), out=out, **args))
    return out[0].tolist()


def test_edges():
    plain = SoftmaxDescriptor(shape=(1, 2), dtype="f32")
    inf = math.inf
    assert all(math.isnan(x) for x in run(plain, -inf, -inf))
    assert run(plain, -inf, 3.0) == [0.0, 1.0]
    assert math.isnan(run(plain, inf, 3.0)[0])
    assert run(plain, inf, 3.0)[1] == 0.0
    assert run(SoftmaxDescriptor(shape=(1, 2), dtype="f32", log=True), inf, 3.0)[1] == -inf
    assert all(math.isnan(x) for x in run(plain, math.nan, 3.0))
    assert run(SoftmaxDescriptor(shape=(1, 2), dtype="f32", safe=True), -inf, -inf) == [0.0, 0.0]
    assert run(SoftmaxDescriptor(shape=(1, 2), dtype="f32", safe=True, log=True), -inf, -inf) == [-inf, -inf]
    masked = SoftmaxDescriptor(shape=(1, 2), dtype="f32", mask=True)
    assert run(masked, math.nan, 3.0, mask=[False, True]) == [0.0, 1.0]
    assert run(plain, 1e30, -1e30) == [1.0, 0.0]


@pytest.mark.parametrize(
    ("fields", "path", "word"),
    [
        ({"axis": 2}, "axis", "one of the 2 axes"),
        ({"axis": -3}, "axis", "-2 .. 1"),
        ({"temperature": 0.0}, "temperature", "2^-126 or more"),
        ({"temperature": 1e-42}, "temperature", "2^-126 or more"),
        ({"temperature": 1e-46, "dtype": "bf16"}, "temperature", "2^-126 or more"),
        ({"temperature": -1.0, "dtype": "f64"}, "temperature", "for f64, above 0"),
        ({"out_dtype": "f64"}, "out_dtype", "f64 for f64"),
        ({"axis": 0, "num_valid": True}, "num_valid", "false along axis 0"),
        ({"shape": ()}, "shape", "at least 1 item"),
    ],
)
def test_contradictory_fields_are_refused(fields, path, word):
    with pytest.raises(DescriptorError) as caught:
        SoftmaxDescriptor(**({"shape": (3, 4), "dtype": "f32"} | fields))
    assert caught.value.issues[0].argument == path
    assert word in str(caught.value)


@pytest.mark.parametrize(("dtype", "least"), [("f32", 2.0**-126), ("f64", 1e-200)])
def test_the_smallest_temperature_gives_finite_results(dtype, least):
    d = SoftmaxDescriptor(shape=(1, 2), dtype=dtype, temperature=least)
    x, out = torch.tensor([[3 * least, 2 * least]], dtype=torch.float64).to(DTYPES[dtype]), torch.empty(1, 2).to(DTYPES[dtype])
    SoftmaxPlan.select(d).run(SoftmaxArgs(x=x, out=out))
    assert out[0].tolist() == pytest.approx([1 / (1 + math.exp(-1)), 1 / (1 + math.exp(1))])


def test_an_axis_without_elements_is_accepted():
    out = torch.empty(3, 0)
    SoftmaxPlan.select(SoftmaxDescriptor(shape=(3, 0), dtype="f32")).run(SoftmaxArgs(x=torch.empty(3, 0), out=out))


def test_softmax_plan_is_a_plan():
    assert issubclass(SoftmaxPlan, Plan)
