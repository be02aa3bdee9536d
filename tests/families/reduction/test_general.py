"""Folds of any program by one CTA per row: this kernel accepts what the others decline; its bound, equal bits on every path and
in any batch, the workspace.

In the emulator on a CPU; on a GPU the same problems and larger ones.
"""

import random
from dataclasses import replace

import numpy as np
import pytest
import torch

from opfacade import Plan, Preference, Target
from opfacade.core.descriptor import operands_of
from opfacade.errors import UnsupportedError
from opfacade.plans.reduction import FoldOutput, Stage
from opfacade.programs.expression import apply, coord, scalar, stage, value
from opfacade.programs.fields import Input, Number
from opfacade.testing.families._random_folds import drawn
from opfacade.testing.families.elementwise import differs
from opfacade.testing.families.reduction import resized
from tests import emulator
from tests.families.elementwise.forms import LAYOUTS
from tests.families.reduction.forms import FORMS, R, W, X, rows
from tests.families.reduction.held import builds_without_spills, on_gpu, same_on_every_path
from tests.families.reduction.test_fold_kernel import filled, held, moved

OTHERS = ("rows", "columns", "split", "split_columns", "levels", "ragged", "ragged_columns")
TARGETS = tuple(map(Target.parse, ("sm_80", "sm_90a")))
F64 = value("x", "f64")


def out(node, dtype="f32", over=(), name="y"):
    return FoldOutput(name=name, dtype=dtype, value=node, over=over)


def row_after_groups(shape, **more):
    """The maximum of each group of a row, then a sum over the row that uses these maxima, in place."""
    stages = (
        Stage(reducer="max", value=abs(X), axes=(2,)),
        Stage(reducer="sum", value=X / (stage(0, "f32") + 1.0)),
        Stage(reducer="min", value=X + stage(1, "f32"), axes=(2,)),
    )
    outputs = (out(X * stage(1, "f32") + stage(2, "f32"), over=None), out(stage(2, "f32") - X, over=None, name="z"))
    return rows(shape, (1, 2), stages, outputs, in_place=(("y", "x"),), **more)


def part_of_the_folded_axes(shape):
    """Stages over one of the two folded axes or over both, and outputs over one, both or none of them."""
    stages = (
        Stage(reducer="expsum", value=X, axes=(1,)),
        Stage(reducer="argmax", value=X * W),
        Stage(reducer="sum", value=X, axes=(3,)),
    )
    outputs = (
        out(stage(0, "f32", "max") + apply("log", stage(0, "f32", "sum")) * X, "bf16", None),
        out(stage(1, "i64", "index"), "i64", (0, 2), "place"),
        out(stage(2, "f32"), "f32", (1, 2, 0), "sums"),
    )
    inputs = (Input(name="x", dtype="f16"), Input(name="w", dtype="f32", over=(1, 3)))
    return rows(shape, (1, 3), stages, outputs, inputs)


def last_axis_kept(shape):
    """Columns that are normalised over two kinds of groups."""
    stages = (
        Stage(reducer="welford", value=F64, axes=(0,)),
        Stage(reducer="sum", value=(F64 - stage(0, "f64", "mean")) * scalar("a", "f64"), axes=(1,)),
        Stage(reducer="prod", value=stage(1, "f64") + 1.0, axes=(0,)),
    )
    outputs = (out(stage(2, "f64"), "f64", (2,)), out(F64 * stage(0, "f64", "m2"), "f64", (2, 0, 1), "z"))
    return rows(
        shape, (0, 1), stages, outputs, (Input(name="x", dtype="f64"),), scalars=(Number(name="a", value=0.5, type="f64"),)
    )


def three_levels(shape, fold=(1, 2, 3)):
    """Three levels, each of which combines the results of the level below."""
    below = apply("lt", coord(3), coord(2))
    stages = (
        Stage(reducer="sum", value=apply("select", below, X, 0.0) + R, axes=(3,)),
        Stage(reducer="max", value=stage(0, "f32"), axes=(1,)),
        Stage(reducer="any", value=stage(1, "f32") > 1, axes=(2,)),
        Stage(reducer="argmin", value=stage(1, "f32"), axes=(2,)),
    )
    outputs = (
        out(apply("f32", stage(2, "bool")) + stage(1, "f32"), "f32", (0, 1, 2)),
        out(stage(3, "i64", "index"), "i64", (0,), "place"),
    )
    return rows(shape, fold, stages, outputs, (Input(name="x", dtype="f32"), Input(name="r", dtype="f16", over=(2,))))


def same_in_all_groups(shape):
    """A row in which all groups have the same result."""
    inputs = (Input(name="x", dtype="f32", over=(0, 2)),)
    return rows(shape, (1, 2), (Stage(reducer="sum", value=X, axes=(2,)),), (out(stage(0, "f32"), over=(0,)),), inputs)


def sums(shape):
    """Sums of groups, of which there may be none, and a sum over the row that uses them."""
    stages = (Stage(reducer="sum", value=X, axes=(2,)), Stage(reducer="sum", value=X * stage(0, "f32")))
    outputs = (out(stage(0, "f32"), over=(0, 1)), out(stage(1, "f32"), over=(0,), name="z"))
    return rows(shape, (1, 2), stages, outputs)


def counts(shape):
    """The number of groups whose sum of integers is odd, and the largest row of groups."""
    x = value("x", "i32")
    odd = apply("eq", apply("mod", stage(0, "i64"), 2), 1)
    stages = (
        Stage(reducer="sum", value=apply("i64", x), axes=(0,)),
        Stage(reducer="sum", value=apply("i64", odd), axes=(1,)),
        Stage(reducer="max", value=stage(1, "i64"), axes=(2,)),
    )
    outputs = (out(stage(1, "i64"), "i64", (3, 0, 1, 2)), out(stage(2, "i64"), "i64", (3,), "most"))
    return rows(shape, (0, 1, 2), stages, outputs, (Input(name="x", dtype="i32"),))


GENERAL = {
    "row_after_groups": row_after_groups((5, 9, 33)),
    "few_groups": row_after_groups((3, 2, 700)),
    "valid": row_after_groups((6, 9, 11), num_valid=True),
    "part": part_of_the_folded_axes((3, 5, 2, 40)),
    "last_kept": last_axis_kept((7, 30, 5)),
    "three_levels": three_levels((2, 3, 12, 35)),
    "same": same_in_all_groups((4, 3, 50)),
    "counts": counts((5, 3, 4, 6)),
    "no_rows": row_after_groups((0, 3, 4)),
    "no_elements": sums((3, 11, 0)),
    "no_groups": sums((3, 0, 5)),
}


@pytest.fixture(params=GENERAL)
def problem(request):
    return GENERAL[request.param]


def plan_of(problem, target=TARGETS[1], forbid=OTHERS):
    return Plan.select(problem, Preference(backend="cuda", forbid=forbid), target)


def emulated(problem):
    return emulator.subject(problem, forbid=OTHERS)


def randoms(count, seed=11):
    rng = random.Random(seed)
    return [drawn(rng) for _ in range(count)]


def test_the_random_programs_cover_each_feature():
    found = randoms(100)
    reach = {
        "reads": sum(any(one.name == "b" for one in problem.inputs) for problem in found),
        "stages": sum(len(problem.stages) > 1 for problem in found),
        "results": sum(len(problem.outputs) > 1 for problem in found),
        "in place": sum(bool(problem.in_place) for problem in found),
        "valid rows": sum(problem.num_valid for problem in found),
    }
    assert all(count > 0 for count in reach.values()), reach


@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_every_random_program_has_a_kernel_and_the_general_kernel_accepts_all(target):
    found = [plan_of(problem, target, ()).sku.impl for problem in randoms(300)]
    assert {"rows", "columns", "levels", "general"} == set(found)
    for problem in randoms(40, 12):
        assert plan_of(problem, target).sku.impl == "general"


@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_programs_that_only_the_general_kernel_accepts(target):
    for name in ("row_after_groups", "few_groups", "valid", "last_kept", "three_levels", "same", "counts"):
        assert plan_of(GENERAL[name], target, ()).sku.impl == "general", name


def test_each_program_has_the_guarantee_of_its_folded_axes(problem):
    sku = plan_of(problem).sku
    assert sku.impl == "general"
    assert sku.precision_guarantee.deterministic
    assert sku.precision_guarantee.batch_invariant == (
        "none" if 0 in problem.fold or problem is GENERAL["three_levels"] else "composition"
    )


@emulator.needed
@pytest.mark.parametrize("layout", LAYOUTS)
def test_it_keeps_its_bound_on_every_layout(problem, layout):
    held(emulated(problem), moved(problem, filled(problem, 3), layout))


def of_first_row(problem, args):
    """The same problem and call, restricted to the first index of axis 0."""
    axes = {f"in_{i}": problem.axes_of(one) for i, one in enumerate(problem.inputs)}
    axes |= {f"out_{i}": problem.axes_of(one) for i, one in enumerate(problem.outputs)}
    cut = {
        name: getattr(args, name).narrow(axes[name].index(0), 0, 1).clone()
        for name in operands_of(problem)
        if 0 in axes.get(name, ())
    }
    return resized(problem, (1, *problem.shape[1:])), replace(args, **cut)


@emulator.needed
def test_bits_do_not_depend_on_the_path_nor_on_other_rows(problem):
    subject, args = emulated(problem), filled(problem, 4, valid=1)
    same_on_every_path(subject, args, [moved(problem, args, layout) for layout in LAYOUTS])
    if 0 in (*problem.fold, problem.shape[0]):
        return
    alone, call = of_first_row(problem, args)
    subject.run(args)
    other = emulated(alone)
    assert other.plan.sku.id == subject.plan.sku.id
    other.run(call)
    for made, one, two in zip(problem.outputs, alone.written(call), problem.written(args), strict=True):
        assert not bool(differs(one, two.narrow(problem.axes_of(made).index(0), 0, 1)).any())


@emulator.needed
@pytest.mark.parametrize("seed", [1, 2, 5, pytest.param(8, marks=pytest.mark.heavy), pytest.param(13, marks=pytest.mark.heavy)])
def test_random_programs_keep_their_bound(seed):
    problem = drawn(random.Random(seed))
    held(emulated(problem), filled(problem, seed))


@emulator.needed
def test_counts_of_groups_equal_numpy():
    """The oracle is independent of the library."""
    problem = GENERAL["counts"]
    x = torch.randint(-9, 9, problem.shape, generator=torch.Generator().manual_seed(5)).int()
    args = replace(filled(problem, 1), in_0=x)
    emulated(problem).run(args)
    odd = (x.numpy().astype(np.int64).sum(0) % 2 == 1).sum(0)  # [2, 3]
    want = np.broadcast_to(odd.T[:, None, None, :], (6, 5, 3, 4))
    assert np.array_equal(args.out_0.numpy(), want)
    assert np.array_equal(args.out_1.numpy(), odd.max(0))


@emulator.needed
def test_rows_past_num_valid_are_not_written_and_a_wrong_count_writes_no_row():
    problem = GENERAL["valid"]
    subject = emulated(problem)
    for number in (0, 2, -1, 9):
        args = filled(problem, 6, valid=1)
        args.num_valid.fill_(number)
        args.out_1.fill_(torch.inf)
        subject.run(args)
        valid = number if 0 <= number <= problem.shape[0] else 0
        assert bool((args.out_1[valid:] == torch.inf).all())
        assert valid == 0 or not bool((args.out_1[:valid] == torch.inf).all())


@emulator.needed
def test_the_result_does_not_depend_on_the_content_of_the_workspace(problem):
    subject, args = emulated(problem), filled(problem, 7)
    calls = [replace(args, **{n: getattr(args, n).clone() for n in operands_of(problem)}) for _ in "ab"]
    for call, byte in zip(calls, (0, 0xFF), strict=True):
        subject.run(call, torch.full((subject.plan.workspace_size,), byte, dtype=torch.uint8))
    for one, two in zip(*(problem.written(call) for call in calls), strict=True):
        assert not bool(differs(one, two).any())


def test_the_workspace_has_one_entry_per_result_of_the_resident_rows():
    for name, words in (
        ("row_after_groups", 5 * (9 + 1 + 9)), ("few_groups", 3 * (2 + 1 + 2)), ("part", 6 * (2 * 40 + 2 + 5)),
        ("last_kept", 5 * (2 * 30 + 7 + 1)), ("three_levels", 2 * (3 * 12 + 12 + 1 + 2)), ("same", 4), ("no_rows", 1),
        ("no_elements", 3 * (11 + 1)), ("no_groups", 3 * (0 + 1)),
    ):  # fmt: skip
        assert plan_of(GENERAL[name]).workspace_size == -(-8 * words // 256) * 256, name
    many = plan_of(row_after_groups((10**6, 9, 33)))
    assert many.workspace_size == -(-8 * 4 * many.target.sm_count * 19 // 256) * 256
    long = plan_of(row_after_groups((1000, 2**20, 2)))
    assert long.workspace_size == 2**28 // (8 * (2**21 + 1)) * 8 * (2**21 + 1) // 256 * 256 + 256


def test_a_row_with_too_many_results_for_32_bit_offsets_is_declined():
    for shape in ((2, 2**16, 2**15), (2, 2**31 - 1, 0)):
        with pytest.raises(UnsupportedError, match="results of a row"):
            plan_of(sums(shape))


def test_faster_kernels_are_preferred_to_the_general_kernel():
    assert [plan_of(FORMS[name], forbid=()).sku.impl for name in ("rms", "softmax_columns", "two_levels")] == [
        "rows",
        "columns",
        "levels",
    ]


@pytest.mark.parametrize("name", ["row_after_groups", "last_kept", "counts"])
def test_each_program_compiles_without_spills(name):
    builds_without_spills(GENERAL[name])


@pytest.mark.gpu
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_keeps_the_error_bound_on_a_gpu(problem, layout):
    on_gpu(problem, moved(problem, filled(problem, 3), layout), OTHERS)


@pytest.mark.gpu
@pytest.mark.parametrize("make", [
    lambda: row_after_groups((4096, 8, 128)), lambda: three_levels((3, 40, 70, 90)), lambda: last_axis_kept((300, 40, 70)),
], ids=["groups", "levels", "columns"])  # fmt: skip
def test_large_programs_repeat_bitwise_on_a_gpu(make):
    problem = make()
    args = filled(problem, 3)
    first, second = (problem.written(on_gpu(problem, args, OTHERS)) for _ in range(2))
    for one, two in zip(first, second, strict=True):
        assert not bool(differs(one, two).any())
