"""Fold kernels that split rows into parts: their bound, equal bits on every path, the workspace, and which problems are split.

In the emulator on a CPU; on a GPU the same problems and larger ones.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

from opfacade import Plan, Preference, Target
from opfacade.backends.cuda.folds import split_config
from opfacade.core.descriptor import operands_of
from opfacade.errors import UnsupportedError
from opfacade.plans.reduction import FoldDescriptor, FoldOutput, Stage
from opfacade.programs.expression import apply, coord, stage
from opfacade.programs.fields import Input
from opfacade.programs.stages import REDUCERS
from opfacade.testing.families.elementwise import differs
from opfacade.testing.families.reduction import resized
from tests import emulator
from tests.families.elementwise.forms import LAYOUTS
from tests.families.reduction.forms import FORMS, W, X, reducer, rows, softmax
from tests.families.reduction.held import builds_without_spills, on_gpu
from tests.families.reduction.test_fold_kernel import filled, held, moved

SM_90A = Target.parse("sm_90a")
LONG, DEEP = 70001, 2500  # a row and a column that are split into three parts


def auto(problem):
    return FoldDescriptor.model_validate(problem.model_dump() | {"split": "auto"})


def moments(shape, fold, **more):
    """Four reducers in one pass, with a factor per row or per column."""
    kept = tuple(axis for axis in range(len(shape)) if axis not in fold)
    values = (("sum", X * W), ("welford", X), ("argmin", X), ("any", X > 3))
    stages = tuple(Stage(reducer=name, value=value) for name, value in values)
    made = ((0, "f32", "value"), (1, "f32", "m2"), (2, "i64", "index"), (3, "bool", "value"))
    outputs = tuple(FoldOutput(name=f"y{i}", dtype=dtype, value=stage(i, dtype, part), over=kept) for i, dtype, part in made)
    inputs = (Input(name="x", dtype="bf16"), Input(name="w", dtype="f32", over=kept))
    return rows(shape, fold, stages, outputs, inputs, **more)


def below(shape):
    """A program that uses the positions of its elements."""
    term = apply("select", coord(1) * 2 < coord(0) + 90000, X, 0.0)
    made = (FoldOutput(name="y", dtype="f32", value=stage(0, "f32"), over=(0,)),)
    return rows(shape, (1,), (Stage(reducer="sum", value=term),), made)


SPLIT = {
    **{f"{name}": auto(reducer(name, "f32", (1, LONG), (1,))) for name in REDUCERS},
    "sum_bf16": auto(reducer("sum", "bf16", (2, 70008), (1,))),
    "sum_i8": auto(reducer("sum", "i8", (1, LONG), (1,))),
    "welford_f64": auto(reducer("welford", "f64", (1, LONG), (1,))),
    "all_axes": auto(reducer("sum", "f16", (3, 5, 7000), (0, 1, 2))),
    "outer_and_inner": auto(reducer("max", "f32", (5, 2, 14000), (0, 2))),
    "moments": auto(moments((2, 65540), (1,))),
    "placed": auto(below((2, LONG))),
    "valid": auto(moments((4, 65537), (1,), num_valid=True)),
    **{f"columns_{name}": auto(reducer(name, "f32", (DEEP, 5), (0,))) for name in REDUCERS},
    "columns_bf16": auto(reducer("sum", "bf16", (2, DEEP, 24), (1,))),
    "columns_moments": auto(moments((3, DEEP, 8), (1,), num_valid=True)),
    "columns_several": auto(reducer("expsum", "f16", (50, 2, 50, 9), (0, 2))),
}


@pytest.fixture(params=SPLIT)
def problem(request):
    return SPLIT[request.param]


def test_each_program_selects_a_split_kernel(problem):
    plan = Plan.select(problem, Preference(backend="cuda"), SM_90A)
    assert plan.sku.impl == ("split_columns" if len(problem.shape) - 1 not in problem.fold else "split")
    assert plan.sku.precision_guarantee.deterministic
    assert plan.sku.precision_guarantee.batch_invariant == "none"


@emulator.needed
@pytest.mark.parametrize("layout", LAYOUTS)
def test_it_keeps_its_bound_on_every_layout(problem, layout):
    held(emulator.subject(problem), moved(problem, filled(problem, 3), layout))


@emulator.needed
@pytest.mark.parametrize("name", ["sum", "welford", "expsum", "moments", "columns_expsum", "columns_moments"])
def test_bits_do_not_depend_on_the_path_nor_on_other_rows_of_the_same_chunk(name):
    problem = SPLIT[name]
    subject, args = emulator.subject(problem), filled(problem, 4, valid=problem.shape[0])
    calls = [moved(problem, args, layout) for layout in LAYOUTS]
    for call in calls:
        subject.run(call)
    for one, *others in zip(*(problem.written(call) for call in calls), strict=True):
        for other in others:
            assert not bool(differs(one, other).any())
    if name not in ("sum", "moments"):
        return
    alone = resized(problem, (1, problem.shape[1]))
    other = emulator.subject(alone)
    assert other.plan.sku.id == subject.plan.sku.id
    call = type(args)(**{n: getattr(args, n)[:1].clone() for n in operands_of(problem)})
    other.run(call)
    for one, two in zip(alone.written(call), problem.written(calls[0]), strict=True):
        assert not bool(differs(one, two[:1]).any())


@emulator.needed
@pytest.mark.parametrize("shape", [(1, LONG), (DEEP * 2, 3)])
def test_sums_and_indices_equal_numpy(shape):
    """An independent oracle: sums of small integers are exact in f32, and the first of equal numbers determines the index."""
    axis = 1 if shape[0] == 1 else 0
    x = torch.randint(-99, 99, shape, generator=torch.Generator().manual_seed(5)).float()
    for name, want in (("sum", np.sum), ("max", np.max), ("min", np.min)):
        problem = auto(reducer(name, "f32", shape, (axis,)))
        args = replace(filled(problem, 1), in_0=x)
        emulator.subject(problem).run(args)
        assert np.array_equal(args.out_0.numpy(), want(x.numpy().astype(np.float64), axis).astype(np.float32))
    problem = auto(reducer("argmax", "f32", shape, (axis,)))
    args = replace(filled(problem, 1), in_0=x)
    emulator.subject(problem).run(args)
    assert np.array_equal(args.out_1.numpy(), x.numpy().argmax(axis))


@emulator.needed
@pytest.mark.parametrize("length", [65537, 65536 + 2048, 98304, 98305])
def test_parts_of_each_length_keep_the_bound(length):
    for name in ("sum", "argmax"):
        problem = auto(reducer(name, "f32", (1, length), (1,)))
        held(emulator.subject(problem), filled(problem, length))


@emulator.needed
def test_a_gpu_with_fewer_sms_has_larger_chunks_and_keeps_the_bound():
    small = Target(arch="sm_90a", sm_count=1, max_shared_memory=232448)
    problem = auto(reducer("sum", "f32", (1, 200000), (1,)))
    subject = emulator.subject(problem, device_like=small)
    assert ",chunk=114688," in f",{subject.plan.sku.id.split('/strided/')[1]}"
    held(subject, filled(problem, 2))


@emulator.needed
def test_rows_past_num_valid_are_not_written_and_a_wrong_count_writes_no_row():
    for problem in (SPLIT["valid"], SPLIT["columns_moments"]):
        subject = emulator.subject(problem)
        for count in (0, 2, -1, 9):
            args = filled(problem, 6, valid=1)
            args.num_valid.fill_(count)
            args.out_0.fill_(3.0)
            subject.run(args)
            valid = count if 0 <= count <= problem.shape[0] else 0
            assert bool((args.out_0[valid:] == 3).all())
            assert valid == 0 or not bool((args.out_0[:valid] == 3).any())


def test_the_workspace_has_one_state_per_stage_part_and_row():
    for name, rows_, parts, words in (("sum", 1, 3, 1), ("argmax", 1, 3, 2), ("welford", 1, 3, 3), ("welford_f64", 1, 3, 6),
                                      ("moments", 2, 3, 1 + 3 + 2 + 1), ("columns_expsum", 5, 3, 2)):  # fmt: skip
        plan = Plan.select(SPLIT[name], Preference(backend="cuda"), SM_90A)
        assert plan.workspace_size == -(-rows_ * parts * words * 4 // 256) * 256
    plan = Plan.select(auto(reducer("argmax", "f32", (100, 2**22), (1,))), Preference(backend="cuda"), SM_90A)
    assert plan.workspace_size == -(-100 * 2 * 8 // 256) * 256


def test_the_number_of_parts_fills_the_gpu():
    for rows_, length in ((1, 2**26), (3, 2**24), (7, 10**7), (1, 2**31 - 1)):
        shape = split_config.in_rows(auto(reducer("sum", "f32", (rows_, length), (1,))), SM_90A)
        assert 0.75 * 264 < rows_ * shape.parts <= 264 + rows_
        assert (shape.parts - 1) * shape.chunk < length <= shape.parts * shape.chunk
    shape = split_config.in_columns(auto(reducer("sum", "f32", (2**22, 33), (0,))), SM_90A)  # two tiles of columns
    assert 0.75 * 264 < shape.parts <= 264


def test_a_row_with_nearly_2_31_elements_is_refused():
    """The counters of kernels exceed the row length by up to one step."""
    assert Plan.select(softmax((1, 2**31 - 2**15)), Preference(backend="cuda"), SM_90A).sku.impl == "rows"
    with pytest.raises(UnsupportedError, match="elements of a row"):
        Plan.select(softmax((1, 2**31 - 2**15 + 1)), Preference(backend="cuda"), SM_90A)


def test_a_program_that_is_not_split_gets_the_reason():
    def impl(problem):
        return Plan.select(problem, Preference(backend="cuda"), SM_90A).sku.impl

    assert impl(auto(reducer("sum", "f32", (300, 2**20), (1,)))) == "rows"  # the rows fill the GPU
    assert impl(auto(reducer("sum", "f32", (1, 4096), (1,)))) == "rows"
    assert impl(auto(softmax((1, 2**20)))) == "rows"
    assert impl(reducer("sum", "f32", (1, 2**20), (1,))) == "rows"
    invariant = Preference(backend="cuda", require="batch_invariant")
    assert Plan.select(auto(reducer("sum", "f32", (4, 2**20), (1,))), invariant, SM_90A).sku.impl == "rows"
    no_memory = Preference(backend="cuda", max_workspace_bytes=0)
    assert Plan.select(auto(reducer("sum", "f32", (1, 2**20), (1,))), no_memory, SM_90A).sku.impl == "rows"
    only = Preference(backend="cuda", forbid=("rows", "columns", "general"))
    for problem, word in (
        (reducer("sum", "f32", (1, 2**20), (1,)), "allowed: auto"),
        (auto(softmax((1, 2**20))), "elements are read once"),
        (auto(FORMS["layer"]), "stages that do not use each other"),
        (auto(FORMS["grouped"]), "all folded axes"),
        (auto(reducer("sum", "f32", (300, 2**20), (1,))), "few long rows"),
    ):
        with pytest.raises(UnsupportedError, match=word):
            Plan.select(problem, only, SM_90A)


def test_the_default_of_split_is_not_serialised():
    plain = reducer("sum", "f32", (1, 2**20), (1,))
    assert "split" not in plain.model_dump_json()
    assert auto(plain).digest() != plain.digest()
    assert auto(plain).key == plain.key


@pytest.mark.parametrize("name", ["sum", "sum_bf16", "moments", "welford_f64", "placed", "columns_bf16", "columns_moments"])
def test_each_program_compiles_without_spills(name):
    builds_without_spills(SPLIT[name])


@pytest.mark.gpu
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_keeps_the_error_bound_on_a_gpu(problem, layout):
    on_gpu(problem, moved(problem, filled(problem, 3), layout))


@pytest.mark.gpu
@pytest.mark.parametrize("make", [
    lambda: reducer("sum", "f32", (1, 2**24 + 5), (1,)), lambda: moments((3, 2**22), (1,)),
    lambda: reducer("welford", "bf16", (2**19 + 3, 40), (0,)), lambda: reducer("expsum", "f32", (2**19, 7), (0,)),
], ids=["sum", "moments", "welford", "expsum"])  # fmt: skip
def test_long_rows_repeat_bitwise_on_a_gpu(make):
    problem = auto(make())
    args = filled(problem, 3)
    first, second = (problem.written(on_gpu(problem, args)) for _ in range(2))
    for one, two in zip(first, second, strict=True):
        assert not bool(differs(one, two).any())
