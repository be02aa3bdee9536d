"""The reference of maps against the oracle, element by element, and refusals, which name the path to the faulty node."""

import itertools
import json
import math
from dataclasses import replace

import mpmath
import pytest
import torch

from opfacade import Plan, load_descriptor
from opfacade.core.dtypes import torch_dtype
from opfacade.errors import ArgumentError, ArgumentTypeError, DescriptorError
from opfacade.plans.elementwise import EXAMPLES, MapArgs, MapDescriptor, MapPlan
from opfacade.programs import text
from opfacade.programs.expression import apply, constant, coord, read, scalar, stage
from opfacade.programs.fields import Input, Number, Output
from opfacade.testing import inputs, numerics
from tests.families.elementwise.forms import FORMS, X, Y, binary, laid_out, unary
from tests.support import naive_program
from tests.support.program_values import numbers_of


@pytest.fixture(params=FORMS)
def problem(request):
    return FORMS[request.param]


def element_of(descriptor, args, lets, place):
    """The leaf values of one element of the program, read from the tensors."""
    leaves, sizes = {("coord", axis): at for axis, at in enumerate(place)}, {}
    leaves |= {("extent", axis): size for axis, size in enumerate(descriptor.shape)}
    for i, given in enumerate(descriptor.inputs):
        tensor, kind = getattr(args, f"in_{i}"), given.type
        wide = tensor.float() if kind == "f32" else tensor
        if given.shape is not None:
            flat = numbers_of(wide.flatten(), kind)
            leaves["input", given.name], sizes[given.name] = nested(flat, given.shape), given.shape
        else:
            at = tuple(place[axis] for axis in (range(len(place)) if given.over is None else given.over))
            (leaves["input", given.name],) = numbers_of(wide[at][None], kind)
    for number in descriptor.scalars:
        leaves["scalar", number.name] = naive_program.FLOAT.get(number.type, lambda x: x)(number.value)
    return naive_program.Element(lets, leaves, sizes)


def nested(flat, shape):
    for size in reversed(shape[1:]):
        flat = [flat[i : i + size] for i in range(0, len(flat), size)]
    return flat


def test_every_element_equals_the_oracle(problem):
    args = inputs.make_args(problem, seed=5)
    given = replace(args, **numerics.snapshot(problem, args))
    MapPlan.select(problem).run(args)
    told = text.text_of(list(problem.values().values()))
    rows = math.inf if args.num_valid is None else int(args.num_valid[0])
    places = [place for place in itertools.product(*map(range, problem.shape)) if not place or place[0] < rows]
    for output, tree, got in zip(problem.outputs, told.values, problem.written(args), strict=True):
        for place in places[:: max(1, len(places) // 150)]:
            element = element_of(problem, given, told.lets, place)
            if output.value.exact:
                want = element.exact(tree)
                if output.dtype in ("f16", "bf16", "f8_e4m3", "f8_e5m2"):
                    want = naive_program.narrowed(float(want), output.dtype)
                (found,) = numbers_of((got.float() if output.value.type == "f32" else got)[place][None], output.value.type)
                assert naive_program.bit_pattern(found, output.value.type) == naive_program.bit_pattern(want, output.value.type)
            else:
                with mpmath.workdps(40):
                    want = float(element.real(tree))
                found = float(got[place])
                assert (
                    found == want or abs(found - want) <= 2.0**-8 * abs(want) + 1e-40 or math.isnan(found) == math.isnan(want)
                )


@pytest.mark.parametrize("layout", ["transposed", "stepped", "shifted"])
def test_the_result_does_not_depend_on_strides(problem, layout):
    args = inputs.make_args(problem, seed=6)
    other = replace(
        args,
        **{name: laid_out(getattr(args, name), layout) for name in problem.operands() if name != "num_valid"},
    )
    plan = MapPlan.select(problem)
    plan.run(args), plan.run(other)
    for one, two in zip(problem.written(args), problem.written(other), strict=True):
        assert torch.equal(torch.nan_to_num(one.double(), 7.0), torch.nan_to_num(two.double(), 7.0))


def test_the_reference_keeps_its_bound_and_rows_past_num_valid_stay_unchanged(problem):
    plan = MapPlan.select(problem)
    for seed in range(3):
        args = inputs.make_args(problem, seed=seed)
        before = numerics.snapshot(problem, args)
        plan.run(args)
        assert numerics.check(problem, args, plan.sku, before=before).worst <= 1


def test_a_serialised_descriptor_is_equal_and_its_key_depends_on_the_program(problem):
    again = MapDescriptor.model_validate_json(problem.model_dump_json())
    assert again == problem == load_descriptor(problem.canonical_json())
    assert again.outputs[0].value is problem.outputs[0].value
    assert again.digest() == problem.digest()
    assert MapDescriptor.model_validate(problem.model_dump()) == problem
    other = MapDescriptor.model_validate(problem.model_dump() | {"shape": tuple(n + 1 for n in problem.shape)})
    assert other.key == problem.key


def test_operands_by_list_and_by_name_give_the_same_call():
    problem = binary(X + Y, (2, 3))
    x, y, z = torch.randn(3, 2, 3).unbind()
    MapPlan.select(problem).run(problem.args(x=x, y=y, z=z))
    again = torch.empty(2, 3)
    MapPlan.select(problem).run(MapArgs(inputs=[x, y], outputs=[again]))
    assert torch.equal(z, x + y)
    assert torch.equal(again, z)


def test_an_unknown_operand_name_is_refused():
    problem = unary(X, (2,))
    x, z = torch.ones(2, 2).unbind()
    with pytest.raises(
        ArgumentTypeError, match=r"zz expected no argument with this name.*Did you mean z\? Names: x, z\..*A060"
    ):
        problem.args(x=x, z=z, zz=z)
    with pytest.raises(ArgumentTypeError, match=r"Names: x, z, num_valid\."):
        unary(X, (2,), num_valid=True).args(x=x, z=z, valid=x)


@pytest.mark.parametrize("zeros", [(0.0, -0.0), (-0.0, 0.0)])
def test_positive_and_negative_zero_are_different_scalars(zeros):
    made = [unary(X * scalar("c"), (2,), scalars=(Number(name="c", value=zero),)) for zero in zeros]
    assert made[0] != made[1]
    assert made[0].canonical_json() != made[1].canonical_json()
    for problem, zero in zip(made, zeros, strict=True):
        z = torch.empty(2)
        again = MapDescriptor.model_validate_json(problem.canonical_json())
        assert again == problem
        for one in (problem, again):
            Plan.select(one).run(one.args(x=torch.ones(2), z=z))
            assert z.signbit().tolist() == [math.copysign(1, zero) < 0] * 2
    assert Number(name="c", value=1).model_dump_json() == Number(name="c", value=1.0).model_dump_json()
    assert Number(name="c", value=1) == Number(name="c", value=1.0) != Number(name="c", value=1, type="i32")
    assert Number(name="c", value=0.0) != 0.0


@pytest.mark.parametrize("outside", ["clamp", "wrap", "reflect", -3.5])
@pytest.mark.parametrize("dtype", ["f32", "bf16", "i32", "bool", "u64"])
def test_a_read_of_an_empty_input_gives_the_fill_value_or_zero(outside, dtype):
    given = Input(name="x", dtype=dtype, shape=(0,))
    if outside == -3.5 and given.type != "f32":
        outside = constant(True if dtype == "bool" else 7, given.type)
    output = Output(name="z", dtype=dtype, value=read("x", given.type, (coord(0),), outside))
    problem = MapDescriptor(shape=(7,), inputs=(given,), outputs=(output,))
    z = torch.ones(7).to(torch_dtype(dtype))
    MapPlan.select(problem).run(problem.args(x=torch.empty(0).to(torch_dtype(dtype)), z=z))
    want = 0 if isinstance(outside, str) else outside if isinstance(outside, float) else outside.data
    assert z.tolist() == [want] * 7


def deep(node, depth):
    """An expression with `depth` nested negations."""
    for _ in range(depth):
        node = -node
    return node


def wide(node, count):
    """A sum with one constant and one addition for each number."""
    terms = [node + float(n + 1) for n in range(count)]
    while len(terms) > 1:
        terms = [a + b if b is not None else a for a, b in itertools.zip_longest(terms[::2], terms[1::2])]
    return terms[0]


def pair(first, second):
    outputs = tuple(Output(name=f"z{i}", dtype="f32", value=one) for i, one in enumerate((first, second)))
    return MapDescriptor(shape=(2,), inputs=(Input(name="x", dtype="f32"),), outputs=outputs)


ONE = {"kind": "input", "name": "x", "type": "f32"}


@pytest.mark.parametrize(
    ("make", "path", "word"),
    [
        (lambda: unary(X + Y, (2,)), "outputs.0.value.args.1.name", "an input of inputs"),
        (lambda: unary(X, (2,), "i32", "f32"), "outputs.0.value.type", "i32, the type of i32 in programs"),
        (lambda: unary(X, (2,), "f32", "i32"), "outputs.0.value", "a value of type i32"),
        (lambda: unary(apply("f64", X), (2,), "f32", "bf16"), "outputs.0.value", "type f32 for bf16"),
        (lambda: unary(X * apply("f32", coord(1)), (2,)), "outputs.0.value.args.1.args.0.axis", "one of the 1 axes"),
        (lambda: unary(X * scalar("c"), (2,)), "outputs.0.value.args.1", "a scalar c of type f32"),
        (lambda: unary(X * stage(0, "f32"), (2,)), "outputs.0.value.args.1", "a map has no reductions"),
        (lambda: unary(read("x", "f32", (coord(0),)), (2,)), "outputs.0.value", "a shape for"),
        (lambda: binary(X, (2,)), "inputs.1.name", "that an output uses"),
        (lambda: binary(X + Y, (2,), over=((1,), None)), "inputs.0.over", "some of the 1 axes of shape"),
        (lambda: binary(X + Y, (2, 2), over=((1, 0), None)), "inputs.0.over", "in increasing order"),
        (lambda: binary(X + Y, (2,), in_place=(("z", "q"),)), "in_place.0", "an output and the input"),
        (lambda: binary(X + Y, (2,), out="f16", in_place=(("z", "x"),)), "in_place.0", "with the dtype of z"),
        (lambda: binary(X + Y, (2,), over=((), None), in_place=(("z", "x"),)), "in_place.0", "all axes"),
        (lambda: unary(X, (), num_valid=True), "num_valid", "an axis of rows"),
        (lambda: unary(X, (1,) * 9), "shape", "at most 8 items"),
        (lambda: unary(X, (2, -1)), "shape.1", "greater than or equal to 0"),
        (lambda: unary(X, (2,), "f17"), "dtype", "'f16'"),
        (lambda: unary(X, (2,), scalars=(Number(name="x", value=1.0),)), "scalars.0.name", "a unique name"),
        (lambda: Number(name="c", value=2**31, type="i32"), "value", "an i32"),
        (lambda: Number(name="c", value=10**400), "value", "within the range of f32"),
        (lambda: Number(name="c", value=math.nan, type="f64"), "value", 'constant("nan", "f64")'),
        (lambda: Number(name="c", value=-math.inf), "value", 'constant("-inf", "f32")'),
        (lambda: pair(X, deep(X, 64)), "outputs.1.value", "a depth of at most 64 nodes, got '65'"),
        (lambda: pair(deep(X, 9), wide(X, 128)), "outputs.1.value", "at most 256 nodes"),
        (lambda: pair(wide(X, 128), X), "outputs.0.value", "at most 256 nodes"),
        (
            lambda: MapDescriptor(
                shape=(2,), inputs=(Input(name="x", dtype="f32", shape=(3, 3)),),
                outputs=(Output(name="z", dtype="f32", value=read("x", "f32", (coord(0),))),),
            ),
            "outputs.0.value.at", "2 positions",
        ),
        (
            lambda: MapDescriptor.model_validate_json(json.dumps({
                "shape": [2], "inputs": [{"name": "x", "dtype": "f32"}],
                "lets": [{"kind": "apply", "op": "not", "args": [ONE]}],
                "outputs": [{"name": "z", "dtype": "f32", "value": ONE}],
            })),
            "lets.0", "not of",
        ),
        (
            lambda: MapDescriptor.model_validate_json(json.dumps({
                "shape": [2], "inputs": [{"name": "x", "dtype": "f32"}],
                "outputs": [{"name": "z", "dtype": "f32", "value": {
                    "kind": "apply", "op": "neg", "args": [{"kind": "shared", "index": 0}]}}],
            })),
            "outputs.0.value.args.0.index", "one of the 0 earlier shared parts",
        ),
    ],
)  # fmt: skip
def test_an_invalid_program_is_refused_with_the_path_to_its_node(make, path, word):
    with pytest.raises(DescriptorError) as caught:
        make()
    assert caught.value.issues[0].argument == path
    assert word in str(caught.value)


def test_operands_of_a_wrong_shape_or_dtype_are_refused():
    problem = binary(X + Y, (2, 3))
    x, y = torch.randn(2, 2, 3).unbind()
    plan = MapPlan.select(problem)
    for args, code in [
        (problem.args(x=x, y=y[:1], z=torch.empty(2, 3)), "OPF-A0"),
        (problem.args(x=x, y=y, z=torch.empty(2, 3).expand(2, 3)[:, :1].expand(2, 3)), "OPF-A022"),
        (problem.args(x=x, y=y), "OPF-A0"),
        (problem.args(x=x, y=y, z=x), "OPF-A0"),
        (MapArgs(inputs=[x] * 9, outputs=[y]), "OPF-A008"),
    ]:
        with pytest.raises(ArgumentError) as caught:
            plan.run(args)
        assert code in str(caught.value)


def test_the_named_plan_selects_every_example():
    assert issubclass(MapPlan, Plan)
    for example in EXAMPLES:
        assert MapPlan.select(example).sku.op == "map"
