"""The map kernels: their error bound, equal bits on every path, memory that must stay unchanged, and compilation.

The tests use the emulator on a CPU; on a GPU, they use the same problems and larger ones.
"""

import math
from dataclasses import replace

import pytest
import torch

from opfacade import Plan, Preference, Target
from opfacade.core.descriptor import operands_of
from opfacade.core.dtypes import DTYPES
from opfacade.plans.elementwise import MapDescriptor
from opfacade.programs.expression import apply, constant, coord, value
from opfacade.programs.fields import Input, Output
from opfacade.programs.operations import FUNCTIONS, OPERATIONS
from opfacade.programs.types import NARROW, storable, widened
from opfacade.testing import inputs, numerics
from opfacade.testing.families.elementwise import differs
from tests import emulator
from tests.families.elementwise.forms import FORMS, LAYOUTS, X, Y, binary, cast, laid_out, random_of, unary

SM_90A = Target.parse("sm_90a")
CASTS = [(source, target) for source in DTYPES for target in DTYPES if storable(target)]


def filled(problem, seed, valid=None):
    """Arguments with values of many magnitudes; outputs are filled with NaN."""
    args = inputs.make_args(problem, seed, lengths=inputs.DrawnLengths(valid=valid))
    drawn = {name: random_of(spec.dtype, tuple(getattr(args, name).shape), seed + i)
             for i, (name, spec) in enumerate(operands_of(problem).items()) if spec.role in ("in", "inout")}  # fmt: skip
    return replace(args, **drawn)


def moved(problem, args, layout):
    names = [name for name, spec in operands_of(problem).items() if name != "num_valid"]
    return replace(args, **{name: laid_out(getattr(args, name), layout) for name in names})


def held(subject, args):
    before = numerics.snapshot(subject.descriptor, args)
    subject.run(args)
    found = numerics.check(subject.descriptor, args, subject.plan.sku, before=before)
    assert found.worst <= 1, found
    return subject.descriptor.written(args)


@pytest.fixture(params=FORMS)
def problem(request):
    return FORMS[request.param]


@emulator.needed
@pytest.mark.parametrize("layout", LAYOUTS)
def test_it_keeps_its_bound_on_every_layout(problem, layout):
    subject = emulator.subject(problem)
    held(subject, moved(problem, filled(problem, 3), layout))


@emulator.needed
def test_bits_do_not_depend_on_the_path(problem):
    """Strides, gaps and alignment select the path: flat, rows, tile or strided. The calls include some in which one operand has
    a different layout."""
    subject, args = emulator.subject(problem), filled(problem, 4)
    calls = [moved(problem, args, layout) for layout in LAYOUTS]
    for name, spec in operands_of(problem).items():
        if spec.role in ("in", "inout") and name != "num_valid":
            calls.append(replace(moved(problem, args, "compact"), **{name: laid_out(getattr(args, name), "transposed")}))
    fresh = [replace(call, **{n: laid_out(getattr(call, n).clone(), "compact") for n, s in operands_of(problem).items()
                              if s.role == "inout"}) if layout == 0 else call for layout, call in enumerate(calls)]  # fmt: skip
    for call in fresh:
        subject.run(call)
    for one, *others in zip(*(problem.written(call) for call in fresh), strict=True):
        for other in others:
            assert not bool(differs(one, other).any())


def long_program(dtype):
    """A program with more instructions than a vector of two elements may have."""
    found = value("y", dtype)
    for step in range(24):
        found = found + apply("atan", apply("pow", value("x", dtype), constant(float(step), dtype)))
    inputs = tuple(Input(name=name, dtype=dtype) for name in "xy")
    return MapDescriptor(shape=(5, 1, 7), inputs=inputs, outputs=(Output(name="z", dtype=dtype, value=found),))


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_a_long_program_processes_one_element_per_vector(dtype):
    spec = Plan.select(long_program(dtype), Preference(backend="cuda"), SM_90A).jit_spec
    assert dict(spec.params)["vector"] == 1


@emulator.needed
def test_a_long_f64_program_keeps_its_bound():
    problem = long_program("f64")
    subject, args = emulator.subject(problem), filled(problem, 5)
    for layout in LAYOUTS:
        held(subject, moved(problem, args, layout))


LARGE = {
    "turned": binary(X + Y, (70, 100), ("bf16", "bf16"), out="bf16"),
    "turned_wide": binary(X * Y, (3, 40, 50), ("f32", "f32")),
    "turned_mixed": binary(apply("f32", value("x", "i8")) + Y, (66, 65), ("i8", "f32"), out="f16"),
}


@emulator.needed
@pytest.mark.parametrize("name", LARGE)
def test_operands_with_different_contiguous_axes_give_the_same_bits(name):
    problem = LARGE[name]
    subject, args = emulator.subject(problem), filled(problem, 5)
    plain = replace(args, out_0=torch.empty_like(args.out_0))
    subject.run(plain)
    for turned in ("in_0", "in_1"):
        other = replace(args, **{turned: laid_out(getattr(args, turned), "transposed")}, out_0=torch.empty_like(args.out_0))
        held(subject, other)
        assert not bool(differs(plain.out_0, other.out_0).any())


@emulator.needed
@pytest.mark.parametrize("size", [1, 7, 8, 15, 16, 17, 255, 4096, 4097, 5000])
@pytest.mark.parametrize("dtype", ["bf16", "f32", "u8"])
def test_the_ends_of_vectors_are_right_and_nothing_after_them_is_written(size, dtype):
    x = value("x", widened(dtype))
    problem = unary(x + 1, (size,), dtype)
    subject, args = emulator.subject(problem), filled(problem, size)
    wide = torch.full((size + 40,), 77, dtype=args.in_0.dtype)
    for shift in (0, 8, 1):
        wide.fill_(77)
        call = replace(args, out_0=wide[shift : shift + size])
        held(subject, call)
        assert bool((wide[:shift] == 77).all())
        assert bool((wide[shift + size :] == 77).all())


@emulator.needed
def test_rows_past_num_valid_are_not_written_and_a_wrong_count_writes_no_row():
    problem = FORMS["num_valid"]
    subject = emulator.subject(problem)
    for layout in LAYOUTS:
        for count in (0, 5, 9, -1, 10, 2**31 - 1):
            args = moved(problem, filled(problem, 6, valid=9), layout)
            args.num_valid.fill_(count)
            args.out_0.copy_(torch.full(problem.shape, 3.0).to(args.out_0.dtype))
            subject.run(args)
            rows = count if 0 <= count <= 9 else 0
            assert bool((args.out_0[rows:].float() == 3).all())
            assert rows < 2 or bool((args.out_0[:rows].float() != 3).any())


@emulator.needed
@pytest.mark.parametrize("pair", CASTS[::23], ids="-".join)
def test_every_pair_of_input_and_output_dtypes_keeps_the_bound(pair):
    problem = cast(*pair)
    held(emulator.subject(problem), filled(problem, 8))


@emulator.needed
@pytest.mark.parametrize("source", ["f32", "bf16", "f8_e4m3", "f8_e8m0"])
def test_a_conversion_to_e8m0_rounds_up(source):
    problem = unary(X, (3, 37), source, "f8_e8m0")
    subject, args = emulator.subject(problem), filled(problem, 8)
    special = [
        0.0,
        -0.0,
        -3.0,
        2.0**-127,
        2.0**-127 * 1.25,
        2.0**-126,
        1.0,
        1.0000001,
        2.0**127,
        3e38,
        math.inf,
        -math.inf,
        math.nan,
    ]
    args.in_0.view(-1)[: len(special)] = torch.tensor(special).to(args.in_0.dtype)
    held(subject, args)
    if source == "f32":
        assert args.out_0.view(torch.uint8).view(-1)[: len(special)].tolist() == [
            0,
            0,
            0,
            0,
            1,
            1,
            127,
            128,
            254,
            254,
            254,
            0,
            255,
        ]


def on_types(op):
    """A map with four signatures of an operation: the first, the last and two others."""
    known = list(OPERATIONS[op].signatures.items())
    chosen = [known[at] for at in sorted({0, len(known) // 3, 2 * len(known) // 3, len(known) - 1})]
    given, made = [], []
    for i, (types, gives) in enumerate(chosen):
        own = [Input(name=f"{letter}{i}", dtype=kind) for letter, kind in zip("xy", types[-2:], strict=False)]
        places = [value(one.name, one.type) for one in own]
        first = [value("flag", "bool")] if op == "select" else []
        given, made = given + own, [*made, Output(name=f"z{i}", dtype=gives, value=apply(op, *first, *places))]
    if op == "select":
        given = [*given[:6], Input(name="flag", dtype="bool")]
        made = made[:3]
    return MapDescriptor(shape=(4, 31), inputs=tuple(given), outputs=tuple(made))


@emulator.needed
@pytest.mark.parametrize("op", [op for op in OPERATIONS if op != "bits"])
def test_every_operation_keeps_its_bound(op):
    """Exact programs have the bits of the reference."""
    problem = on_types(op)
    held(emulator.subject(problem), filled(problem, 9))


@emulator.needed
def test_random_bits_equal_those_of_the_reference():
    at = apply("u64", coord(0) * 5 + coord(1))
    drawn = apply("bits", apply("u64", value("seed", "i64")), constant(2**40, "u64"), at, constant(7, "u64"))
    made = Output(name="z", dtype="u32", value=drawn)
    problem = MapDescriptor(shape=(3, 5), inputs=(Input(name="seed", dtype="i64", over=()),), outputs=(made,))
    held(emulator.subject(problem), filled(problem, 9))


@emulator.needed
@pytest.mark.parametrize("op", ["exp", "exp2", "tanh", "rsqrt", "div", "sqrt"])
@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_an_approximate_function_keeps_its_bound(op, dtype):
    args = [apply("exp", X * 0.5)] * (2 if op == "div" else 1)
    problem = unary(apply(op, *args) if op != "exp" else apply("exp", X), (5, 40), dtype)
    subject = emulator.subject(problem)
    assert "math=approx" in subject.plan.sku.id
    held(subject, filled(problem, 10))


def test_the_sku_depends_on_the_program_and_on_no_size():
    plan = Plan.select(FORMS["silu"], Preference(backend="cuda"), SM_90A)
    assert plan.sku.id.startswith("elementwise/map/cuda/sm_90a/loops@1/in.x=bf16,out.z=bf16/strided/expr=v")
    assert ",math=approx/g" in plan.sku.id
    other = Plan.select(FORMS["silu"].model_copy(update={"shape": (3, 4, 5)}).revalidated(), Preference(backend="cuda"), SM_90A)
    assert other.sku.id == plan.sku.id
    assert other.jit_spec == plan.jit_spec
    kept = Plan.select(FORMS["silu_f32"], Preference(backend="cuda"), SM_90A).sku
    assert "math=device" in kept.id
    assert dict(kept.precision_guarantee.error_model.constants)["ulp.exp"] <= 2.0
    copied = Plan.select(unary(X, (4,)), Preference(backend="cuda"), SM_90A).sku.precision_guarantee
    assert copied.error_model.id == "exact"
    assert copied.batch_invariant == "composition"
    assert Plan.select(FORMS["rolled"], Preference(backend="cuda"), SM_90A).sku.precision_guarantee.batch_invariant == "none"


def test_plans_that_differ_only_in_scalars_share_a_kernel():
    problem = FORMS["many"]
    numbers = tuple(one.model_copy(update={"value": 3}).revalidated() if one.name == "k" else one for one in problem.scalars)
    other = problem.model_copy(update={"scalars": numbers}).revalidated()
    plans = [Plan.select(one, Preference(backend="cuda"), SM_90A) for one in (problem, other)]
    assert plans[0].sku.id == plans[1].sku.id
    assert plans[0].jit_spec == plans[1].jit_spec


@pytest.mark.parametrize("name", ["silu", "many", "gathered", "num_valid"])
def test_each_map_compiles_without_spills(name, monkeypatch, tmp_path):
    """compile() raises if ptxas reports spills."""
    plan = Plan.select(FORMS[name], Preference(backend="cuda"), SM_90A)
    plan.compile()
    assert plan.cache_state == "shared"


@pytest.mark.parametrize(("op", "dtype"), [("sin", "f32"), ("cos", "bf16"), ("tan", "f64"), ("asin", "f64"), ("lgamma", "f64")])
def test_long_functions_compile_with_local_memory_only_for_argument_reduction(op, dtype):
    """libdevice reduces large arguments of sin, cos and tan in an array, which is the only local memory that a map may use."""
    given = value("x", "f64" if dtype == "f64" else "f32")
    plan = Plan.select(unary(apply(op, given), (64,), dtype, dtype), Preference(backend="cuda"), SM_90A)
    plan.compile()
    assert plan.cache_state == "shared"


@pytest.mark.gpu
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_keeps_the_error_bound_on_a_gpu(problem, layout):
    args = moved(problem, filled(problem, 3), layout)
    on_gpu = {name: getattr(args, name).cuda() for name in operands_of(problem)}
    call = replace(args, **on_gpu)
    plan = Plan.select(problem, Preference(backend="cuda"))
    before = numerics.snapshot(problem, call)
    plan.run(call)
    assert numerics.check(problem, call, plan.sku, before=before).worst <= 1


@pytest.mark.gpu
@pytest.mark.parametrize("op", [op for op in FUNCTIONS if len(next(iter(OPERATIONS[op].signatures))) == 1])
@pytest.mark.parametrize("dtype", NARROW[:2])
def test_all_values_of_16_bit_types_keep_the_bound_on_a_gpu(op, dtype):
    """The input contains all 65,536 values of the dtype."""
    every = torch.arange(2**16, dtype=torch.int32).to(torch.uint16).view(torch.float16 if dtype == "f16" else torch.bfloat16)
    for out in (dtype, "f32"):
        problem = unary(apply(op, X), (2**16,), dtype, out)
        plan = Plan.select(problem, Preference(backend="cuda"))
        call = problem.args(
            x=every.cuda(), z=torch.empty(2**16, dtype=every.dtype if out == dtype else torch.float32, device="cuda")
        )
        plan.run(call)
        assert numerics.check(problem, call, plan.sku).worst <= 1
