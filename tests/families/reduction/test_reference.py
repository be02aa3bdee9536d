"""The reference of folds against the oracle, element by element, and refusals, which name the path to the faulty node."""

import json
import math

import numpy as np
import pytest
import torch

from opfacade import Plan, Target, load_descriptor
from opfacade.errors import ArgumentError, ArgumentTypeError, DescriptorError
from opfacade.plans._folds.values import evaluation
from opfacade.plans.reduction import EXAMPLES, FoldArgs, FoldDescriptor, FoldOutput, FoldPlan, Stage
from opfacade.programs.expression import apply, coord, read, stage, value
from opfacade.programs.fields import Input, Number
from opfacade.testing import inputs, numerics
from tests.families.elementwise.forms import laid_out
from tests.families.reduction.forms import FORMS, X, masked, reducer, rms, rows, softmax
from tests.support import naive_fold, naive_program
from tests.support.program_values import numbers_of

NARROW = ("f16", "bf16", "f8_e4m3", "f8_e5m2")


@pytest.fixture(params=FORMS)
def problem(request):
    return FORMS[request.param]


def arrays(problem, args):
    found = {}
    for i, given in enumerate(problem.inputs):
        tensor = getattr(args, f"in_{i}")
        wide = tensor.float() if given.type == "f32" else tensor
        flat = numbers_of(wide.flatten(), given.type)
        found[given.name] = np.array(flat, dtype=object).reshape(tuple(tensor.shape))
    return found


def naively(problem, args):
    """The oracle's {output: {position: (value, exact)}} for a few rows."""
    told = json.loads(problem.model_dump_json())
    return naive_fold.results(told, arrays(problem, args), {number.name: number.value for number in problem.scalars})


@pytest.mark.parametrize("name", [name for name, one in FORMS.items() if name != "masked" and math.prod(one.shape) <= 1600])
def test_every_element_equals_the_oracle(name):
    problem = FORMS[name]
    args = inputs.make_args(problem, seed=5)
    given = numerics.snapshot(problem, args)
    expected = naively(problem, type(args)(**({n: getattr(args, n) for n in args.__slots__} | given)))
    FoldPlan.select(problem).run(args)
    valid = math.inf if args.num_valid is None else int(args.num_valid[0])
    for output, got in zip(problem.outputs, problem.written(args), strict=True):
        for place, (want, exact) in expected.get(output.name, {}).items():
            if place and place[0] >= valid:
                continue
            kind = output.value.type
            if exact:
                want = naive_program.narrowed(float(want), output.dtype) if output.dtype in NARROW else want
                (found,) = numbers_of((got.float() if kind == "f32" else got)[place][None], kind)
                assert naive_program.bit_pattern(found, kind) == naive_program.bit_pattern(want, kind), (output.name, place)
            else:
                close(output, float(want), float(got[place]))


def close(output, want, found):
    if output.dtype.startswith("f8"):
        want = naive_program.narrowed(want, output.dtype)
        assert abs(found - want) <= 2.0**-3 * abs(want) + 2.0**-9
        return
    u = {"f16": 2.0**-10, "bf16": 2.0**-7, "f32": 2.0**-22, "f64": 1e-13}.get(output.dtype, 0.0)
    assert found == want or (math.isnan(found) and math.isnan(want)) or abs(found - want) <= u * abs(want) + 1e-30


def test_the_reference_keeps_its_bound_and_rows_past_num_valid_stay_unchanged(problem):
    plan = FoldPlan.select(problem)
    for seed in range(3):
        args = inputs.make_args(problem, seed=seed)
        before = numerics.snapshot(problem, args)
        plan.run(args)
        assert numerics.check(problem, args, plan.sku, before=before).worst <= 1


def test_a_wrong_element_exceeds_the_bound(problem):
    plan, args = FoldPlan.select(problem), inputs.make_args(problem, seed=1)
    before = numerics.snapshot(problem, args)
    plan.run(args)
    for tensor in problem.written(args):
        if tensor.numel() == 0 or args.num_valid is not None:
            continue
        if tensor.dtype.itemsize == 1:
            tensor.view(torch.uint8)[(0,) * tensor.ndim] ^= 1 if tensor.dtype == torch.bool else 64
        elif tensor.dtype == torch.uint64:
            tensor.view(torch.int64)[(0,) * tensor.ndim] += 1
        else:
            tensor[(0,) * tensor.ndim] = tensor[(0,) * tensor.ndim] * 2 + 3
        assert numerics.check(problem, args, plan.sku, before=before).worst > 1
        return


@pytest.mark.parametrize("layout", ["transposed", "stepped", "shifted"])
def test_the_result_does_not_depend_on_strides(problem, layout):
    args = inputs.make_args(problem, seed=6)
    names = [name for name in problem.operands() if name != "num_valid"]
    other = FoldArgs(**{n: laid_out(getattr(args, n), layout) for n in names}, num_valid=args.num_valid)
    plan = FoldPlan.select(problem)
    plan.run(args), plan.run(other)
    for one, two in zip(problem.written(args), problem.written(other), strict=True):
        torch.testing.assert_close(one.double(), two.double(), rtol=1e-12, atol=0, equal_nan=True)


def test_a_serialised_descriptor_is_equal_and_its_key_depends_on_the_program(problem):
    again = FoldDescriptor.model_validate_json(problem.model_dump_json())
    assert again == problem == load_descriptor(problem.canonical_json())
    assert again.digest() == problem.digest()
    assert FoldDescriptor.model_validate(problem.model_dump()) == problem
    other = FoldDescriptor.model_validate(problem.model_dump() | {"shape": tuple(n + 1 for n in problem.shape)})
    assert other.key == problem.key


def test_programs_with_other_reducers_or_axes_have_other_keys():
    found = [reducer("sum"), reducer("prod"), reducer("sum", shape=(5, 37, 2), fold=(1, 2)), reducer("sum", fold=(0,))]
    assert len({one.key for one in found}) == len(found)


def test_stages_are_computed_in_their_own_types():
    """The stages are f32, so the result is close to the f64 result but not equal."""
    problem = softmax((3, 100))
    args = inputs.make_args(problem, seed=2)
    root = problem.resolved[1][0]
    single, double = (evaluation(problem, args, real)(root) for real in (None, torch.float64))
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), double, rtol=1e-5, atol=0)
    assert not torch.equal(single.double(), double)


@pytest.mark.parametrize(
    ("row", "most", "total"),
    [
        ([-math.inf] * 3, -math.inf, 3.0),
        ([math.inf, 1.0], math.inf, 1.0),
        ([], -math.inf, 0.0),
        ([2.0, 2.0, -math.inf], 2.0, 2.0),
    ],
)
def test_expsum_of_nan_infinities_and_empty_rows(row, most, total):
    problem = reducer("expsum", "f32", (1, len(row)))
    most_got, total_got = torch.full((1,), math.nan), torch.full((1,), math.nan)
    FoldPlan.select(problem).run(problem.args(x=torch.tensor([row]), max=most_got, sum=total_got))
    assert (most_got.item(), total_got.item()) == (most, total)


@pytest.mark.parametrize(
    ("name", "row", "want", "place"),
    [
        ("argmax", [1.0, math.nan, 5.0, math.nan], math.nan, 1),
        ("argmin", [3.0, -0.0, 0.0], -0.0, 1),
        ("argmax", [2.0, 2.0], 2.0, 0),
    ],
)
def test_argmax_and_argmin_with_ties_and_nan(name, row, want, place):
    problem = reducer(name, "f32", (1, len(row)))
    found, at = torch.zeros(1), torch.full((1,), -1)
    FoldPlan.select(problem).run(problem.args(x=torch.tensor([row]), value=found, index=at))
    assert at.item() == place
    assert str(found.item()) == str(want)


STAGES = (Stage(reducer="sum", value=X),)


def of_sum(outputs, fold=(1,), **more):
    return rows((2, 3), fold, STAGES, outputs, **more)


def made(root, dtype="f32", over=(0,)):
    return FoldOutput(name="y", dtype=dtype, value=root, over=over)


def inner(axes):
    return rows((2, 3, 4), (1, 2), (Stage(reducer="sum", value=X, axes=axes),), (KEPT,))


def of_one(made, shape=(2, 3)):
    return rows(shape, (1,), (made,), (KEPT,))


KEPT = made(stage(0, "f32"))


@pytest.mark.parametrize(
    ("make", "path", "word"),
    [
        (lambda: rows((2, 3), (2,), STAGES, (KEPT,)), "fold", "some of the 2 axes"),
        (lambda: rows((2, 3), (1, 0), STAGES, (KEPT,)), "fold", "in increasing order"),
        (lambda: rows((2, 3), (), STAGES, (KEPT,)), "fold", "at least 1 item"),
        (lambda: rows((2, 3), (1,), (), (made(X * stage(0, "f32"), over=None),)), "outputs.0.value.args.1", "no stage"),
        (lambda: inner((2, 1)), "stages.0.axes", "in increasing order"),
        (lambda: of_one(Stage(reducer="any", value=X)), "stages.0.value", "type bool for any"),
        (lambda: of_one(Stage(reducer="max", value=X), (2, 0)), "stages.0.axes", "at least one element"),
        (lambda: Stage(reducer="median", value=X), "reducer", "'sum'"),
        (lambda: of_one(Stage(reducer="sum", value=X * stage(0, "f32"))), "stages.0.value.args.1.index", "0 earlier stages"),
        (lambda: of_sum((made(X * stage(1, "f32"), over=None),)), "outputs.0.value.args.1.index", "1 earlier stages"),
        (lambda: of_sum((made(stage(0, "f64"), "f64"),)), "outputs.0.value", "value of type f32"),
        (lambda: of_sum((made(X * stage(0, "f32", "sum"), over=None),)), "outputs.0.value.args.1", "of stage 0, sum"),
        (lambda: of_sum((made(X * stage(0, "f32")),)), "outputs.0.value", "constant along the axes [1]"),
        (lambda: of_sum((made(apply("f32", coord(1)) * stage(0, "f32")),)), "outputs.0.value", "[1]"),
        (lambda: of_sum((made(stage(0, "f32"), over=(1,)),)), "outputs.0.over", "each axis"),
        (lambda: of_sum((made(stage(0, "f32"), over=(0, 0)),)), "outputs.0.over", "each axis"),
        (lambda: of_sum((made(stage(0, "f32"), over=(1,)),), fold=(0,), num_valid=True), "num_valid", "not folded"),
        (lambda: of_sum((KEPT,), scalars=(Number(name="c", value=1.0),)), "scalars.0.name", "that an output uses"),
        (lambda: rms((2, 3), residual=True, in_place=(("s", "w"),)), "in_place.0", "all axes"),
        (lambda: stage(0, "f32", "median"), "part", "one of value"),
        (lambda: inner((2,)), "outputs.0.value", "[1]"),
        (lambda: inner((1,)), "outputs.0.value", "[2]"),
    ],
)  # fmt: skip
def test_an_invalid_program_is_refused_with_the_path_to_its_node(make, path, word):
    with pytest.raises(DescriptorError) as caught:
        make()
    assert caught.value.issues[0].argument == path
    assert word in str(caught.value)


def test_a_read_at_the_index_of_an_inexact_stage_is_refused():
    at = stage(0, "i64", "index")
    found = apply("exp", value("x", "f32"))
    with pytest.raises(DescriptorError, match="without rounding errors"):
        rows((2, 3), (1,), (Stage(reducer="argmax", value=found),),
             (made(read("t", "f32", (at,))),),
             (Input(name="x", dtype="f32"), Input(name="t", dtype="f32", shape=(3,))))  # fmt: skip


def test_a_read_at_the_index_of_the_maximum():
    problem = rows((2, 3), (1,), (Stage(reducer="argmax", value=X),),
                   (FoldOutput(name="y", dtype="f32", value=read("t", "f32", (stage(0, "i64", "index"),)), over=(0,)),),
                   (Input(name="x", dtype="f32"), Input(name="t", dtype="f32", shape=(3,))))  # fmt: skip
    y = torch.zeros(2)
    x, t = torch.tensor([[1.0, 5.0, 2.0], [7.0, 1.0, 7.0]]), torch.tensor([10.0, 20.0, 30.0])
    FoldPlan.select(problem).run(problem.args(x=x, t=t, y=y))
    assert y.tolist() == [20.0, 10.0]


def test_a_fold_over_the_lower_triangle():
    problem = masked((4, 4))
    x, b, y = torch.ones(4, 4), torch.arange(1.0, 5.0), torch.empty(4, 4)
    FoldPlan.select(problem).run(problem.args(x=x, b=b, y=y))
    want = torch.ones(4, 4).tril() * b[:, None]
    assert torch.equal(y, (want.double() / (1 + want.double().sum(1, keepdim=True))).float())


def test_operands_of_a_wrong_shape_are_refused():
    problem = reducer("sum", "f32", (2, 3))
    with pytest.raises(ArgumentError, match="OPF-A0"):
        FoldPlan.select(problem).run(problem.args(x=torch.ones(2, 4), value=torch.ones(2)))


def test_an_unknown_operand_name_is_refused():
    problem = rms((2, 3))
    given = {one.name: torch.ones(1) for one in (*problem.inputs, *problem.outputs)}
    for surplus in ("yy", "indptr"):  # only ragged folds have an operand indptr
        with pytest.raises(ArgumentTypeError, match=f"{surplus} expected no argument with this name.*Names: .*OPF-A060"):
            problem.args(**given, **{surplus: torch.ones(1)})


def test_the_named_plan_selects_every_example():
    assert issubclass(FoldPlan, Plan)
    for example in EXAMPLES:
        assert FoldPlan.select(example).sku.op == "fold"


@pytest.mark.parametrize("reducer", ["sum", "prod"])
@pytest.mark.parametrize("kind", ["i8", "i32", "i64", "u64"])
def test_the_bound_of_integers_from_inexact_numbers_includes_the_wrap_around(reducer, kind):
    """The mean of a row has an error; if the error cannot change the integers, their sum and product are exact."""
    x, part = value("x", "f32"), apply(kind, stage(0, "f32", "mean"))
    stages = (Stage(reducer="welford", value=x), Stage(reducer=reducer, value=part))
    made = (FoldOutput(name="y", dtype=kind, value=stage(1, kind), over=(0,)),)
    problem = rows((3, 70), (1,), stages, made)
    args = inputs.make_args(problem, 1)
    middle = {"i8": 100, "i32": 2**23, "i64": 2**62, "u64": 2**63}[kind]
    args.in_0.copy_(torch.tensor([[middle + 0.5], [3.5], [0.0]]).expand(3, 70))
    plan = FoldPlan.select(problem, target=Target.cpu())
    plan.run(args)
    assert numerics.check(problem, args, plan.sku).worst <= 1
    wrong = args.out_0.view(torch.int64) if kind == "u64" else args.out_0
    wrong[1] ^= 1 << int(kind[1:]) - 2  # doubles represent only the upper bits of a wide integer
    assert numerics.check(problem, args, plan.sku).worst > 1
