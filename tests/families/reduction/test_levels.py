"""Folds in two launches: groups, then rows of their results. Their bound, equal bits on every path, the workspace, and declined
problems.

In the emulator on a CPU; on a GPU the same problems and larger ones.
"""

import random
from dataclasses import replace

import numpy as np
import pytest
import torch

from opfacade import Plan, Preference, Target
from opfacade.backends.cuda.folds.level_program import levels_of
from opfacade.core.descriptor import operands_of
from opfacade.errors import DescriptorError, UnsupportedError
from opfacade.plans.reduction import FoldDescriptor, Stage
from opfacade.programs.expression import apply, coord, stage, value
from opfacade.programs.fields import Input
from opfacade.testing.families.elementwise import differs
from opfacade.testing.families.reduction import resized
from tests import emulator
from tests.families.elementwise.forms import LAYOUTS
from tests.families.reduction.forms import FORMS, W, X, rows
from tests.families.reduction.held import builds_without_spills, on_gpu, same_on_every_path
from tests.families.reduction.level_programs import (
    LEVELS,
    largest_of_rows_and_columns,
    largest_sum,
    mean_of_entropies,
    out,
)
from tests.families.reduction.test_fold_kernel import filled, held, moved

SM_90A = Target.parse("sm_90a")


@pytest.fixture(params=LEVELS)
def problem(request):
    return LEVELS[request.param]


def plan_of(problem, **more):
    return Plan.select(problem, Preference(backend="cuda", **more), SM_90A)


def test_each_program_selects_the_kernel_of_two_launches_with_its_guarantee(problem):
    plan = plan_of(problem)
    assert plan.sku.impl == "levels"
    assert plan.sku.precision_guarantee.deterministic
    assert plan.sku.precision_guarantee.batch_invariant == ("none" if 0 in problem.fold else "composition")


@emulator.needed
@pytest.mark.parametrize("layout", LAYOUTS)
def test_it_keeps_its_bound_on_every_layout(problem, layout):
    held(emulator.subject(problem), moved(problem, filled(problem, 3), layout))


@emulator.needed
def test_bits_do_not_depend_on_the_path_nor_on_other_rows(problem):
    subject, args = emulator.subject(problem), filled(problem, 4)
    same_on_every_path(subject, args, [moved(problem, args, layout) for layout in LAYOUTS])
    if 0 in problem.fold:
        return
    subject.run(args)
    alone = resized(problem, (1, *problem.shape[1:]))
    other = emulator.subject(alone)
    assert other.plan.sku.id == subject.plan.sku.id
    axes = {f"in_{i}": problem.axes_of(one) for i, one in enumerate(problem.inputs)}
    call = replace(
        args, **{name: getattr(args, name)[:1].clone() for name in operands_of(problem) if 0 in axes.get(name, (0,))}
    )
    other.run(call)
    for one, two in zip(alone.written(call), problem.written(args), strict=True):
        assert not bool(differs(one, two[:1]).any())


@emulator.needed
@pytest.mark.parametrize(("name", "axis", "want"), [("norm_of_rows", 1, np.max), ("norm_of_columns", 0, np.min)])
def test_matrix_norms_of_integers_equal_numpy(name, axis, want):
    """An independent oracle: sums of small integers are exact in f32."""
    problem = LEVELS[name]
    x = torch.randint(-99, 99, problem.shape, generator=torch.Generator().manual_seed(5)).float()
    args = replace(filled(problem, 1), in_0=x)
    emulator.subject(problem).run(args)
    assert args.out_0.item() == want(np.abs(x.numpy().astype(np.float64)).sum(axis))


@emulator.needed
def test_counts_and_indices_equal_numpy():
    problem = LEVELS["counted"]
    x = torch.randint(-9, 9, problem.shape, generator=torch.Generator().manual_seed(5)).int()
    args = replace(filled(problem, 1), in_0=x)
    emulator.subject(problem).run(args)
    sums = x.numpy().sum(1)
    assert [one.item() for one in problem.written(args)] == [(sums > 3).sum(), sums.argmax()]


def chained(rng):
    """A random program whose stages each reduce the results of the stage before, over any folded axes except the last, which
    forms the groups. It uses integers, so the result is exact."""
    shape = tuple(rng.randint(1, 4) for _ in range(rng.randint(3, 5)))
    fold = tuple(range(rng.randint(0, len(shape) - 3), len(shape)))
    stages = [Stage(reducer="sum", value=value("x", "i64"), axes=fold[-1:])]
    for _ in range(rng.randint(1, 4)):
        axes = tuple(sorted(rng.sample(fold[:-1], rng.randint(1, len(fold) - 1))))
        kind = rng.choice(("sum", "max", "argmin"))
        before = result(stages, len(stages) - 1) + apply("mul", coord(fold[0]), rng.choice((0, 1)))
        stages.append(Stage(reducer=kind, value=before, axes=axes))
    outputs = [out(result(stages, i), "i64", tuple(range(len(shape) - 1)), f"y{i}") for i in range(len(stages))[-4:]]
    return rows(shape, fold, stages, outputs, (Input(name="x", dtype="i64"),))


def result(stages, index):
    return stage(index, "i64", "index") if stages[index].reducer == "argmin" else stage(index, "i64")


def by_reference(program, **tensors):
    """The outputs of a program by name, computed by the reference."""
    problem = FoldDescriptor(**{name: getattr(program, name) for name in ("shape", "fold", "inputs", "stages", "outputs")})
    given = {f"in_{i}": tensors[one.name] for i, one in enumerate(problem.inputs)}
    args = replace(filled(problem, 1), **given)
    Plan.select(problem, Preference(backend="reference")).run(args)
    return {one.name: made for one, made in zip(problem.outputs, problem.written(args), strict=True)}


@pytest.mark.parametrize("seed", range(40))
def test_the_two_folds_in_sequence_equal_the_whole_program(seed):
    """The reference runs the programs that the two kernels would get."""
    problem = chained(random.Random(seed))
    x = torch.randint(-9, 9, problem.shape, generator=torch.Generator().manual_seed(seed))
    levels = levels_of(problem)
    assert levels is not None
    found = by_reference(levels.rows, x=x, **by_reference(levels.groups, x=x))
    want = by_reference(problem, x=x)
    assert found.keys() == want.keys()
    for name, one in want.items():
        assert torch.equal(found[name], one), name


def test_only_programs_with_parts_of_the_second_fold_have_revision_2():
    assert [plan_of(LEVELS[name]).sku.revision for name in ("parts", "norms", "elements")] == [2, 1, 1]


@emulator.needed
def test_rows_past_num_valid_are_not_written_and_a_wrong_count_writes_no_row():
    problem = LEVELS["entropies_kept"]
    subject = emulator.subject(problem)
    for number in (0, 2, -1, 9):
        args = filled(problem, 6, valid=1)
        args.num_valid.fill_(number)
        args.out_0.fill_(3.0)
        subject.run(args)
        valid = number if 0 <= number <= problem.shape[0] else 0
        assert bool((args.out_0[valid:] == 3).all())
        assert valid == 0 or not bool((args.out_0[:valid] == 3).any())


@emulator.needed
def test_the_result_does_not_depend_on_the_content_of_the_workspace(problem):
    subject, args = emulator.subject(problem), filled(problem, 7)
    calls = [replace(args, **{n: getattr(args, n).clone() for n in operands_of(problem) if n.startswith("out")}) for _ in "ab"]
    for call, byte in zip(calls, (0, 0xFF), strict=True):
        subject.run(call, torch.full((subject.plan.workspace_size,), byte, dtype=torch.uint8))
    for one, two in zip(*(problem.written(call) for call in calls), strict=True):
        assert not bool(differs(one, two).any())


def test_the_workspace_has_one_entry_per_result_of_each_group():
    def bytes_of(*sizes):
        return sum(-(-size // 256) * 256 for size in sizes)

    for name, want in (
        ("two_levels", bytes_of(12 * 4)), ("entropies", bytes_of(37 * 4)), ("many_rows", bytes_of(2100 * 4)),
        ("entropies_columns", bytes_of(6 * 3 * 8 * 4)), ("many_results", bytes_of(11 * 4, 11 * 8, 11 * 8)),
        ("elements", bytes_of(15 * 4)), ("no_rows", 256), ("counted", bytes_of(70 * 8, 70 * 4)),
    ):  # fmt: skip
        assert plan_of(LEVELS[name]).workspace_size == want, name


def test_a_group_stores_the_value_that_the_next_stage_reads():
    """The results of the group's stages stay in registers."""
    levels = levels_of(LEVELS["entropies"])
    (made,) = levels.groups.outputs
    assert (made.dtype, made.over) == ("f32", (0,))
    assert (levels.rows.shape, levels.rows.fold) == ((37,), (0,))
    assert [one.name for one in levels.rows.inputs] == ["w", made.name]
    assert levels_of(LEVELS["elements"]).rows.shape == (3, 5, 16)


@emulator.needed
def test_positions_in_the_second_fold_are_those_of_the_whole_program():
    """The second fold runs along axis 2, after groups along axis 1."""
    stages = (Stage(reducer="max", value=X, axes=(1,)),
              Stage(reducer="sum", value=stage(0, "f32"), axes=(2,)),
              Stage(reducer="sum", value=apply("f32", coord(2)) * apply("f32", coord(0)), axes=(2,)))  # fmt: skip
    problem = rows((3, 5, 8), (1, 2), stages, (out(stage(1, "f32") + stage(2, "f32"), over=(0,)),))
    x = torch.randint(-99, 99, problem.shape, generator=torch.Generator().manual_seed(5)).float()
    args = replace(filled(problem, 1), in_0=x)
    emulator.subject(problem).run(args)
    assert torch.equal(args.out_0, x.amax(1).sum(1) + 28 * torch.arange(3.0))


def test_the_bound_counts_the_roundings_of_both_folds():
    """The steps are those of the fold with more lanes, and the number of terms per thread is that of the other fold."""
    for shape, lanes, terms in (((5, 4000), 128, 4), ((4000, 5), 256, 8), ((300, 300), 32, 24)):
        plan = plan_of(mean_of_entropies(shape, 1))
        constants = dict(plan.sku.precision_guarantee.error_model.constants)
        assert (constants["lanes"], constants["tree"]) == (lanes, 17 + terms), plan.sku.id
    for shape, lanes in (((5, 600000), 512), ((2, 50000, 16), 256)):  # groups that are read twice
        sku = plan_of(mean_of_entropies(shape, 1)).sku
        assert ",group_stream=true" in sku.id
        assert dict(sku.precision_guarantee.error_model.constants)["lanes"] == lanes
    sku = plan_of(mean_of_entropies((600000, 5), 1)).sku
    assert ",row_stream=true" in sku.id
    assert dict(sku.precision_guarantee.error_model.constants)["lanes"] == 512


def test_groups_are_columns_if_the_last_axis_is_kept():
    assert ",group_groups=" in plan_of(LEVELS["entropies_columns"]).sku.id
    assert ",group_span=" in plan_of(LEVELS["entropies"]).sku.id


def test_the_number_of_rows_is_not_in_the_sku():
    small, large = (mean_of_entropies((n, 5, 33), 2, kept=(0,)) for n in (3, 700))
    assert plan_of(small).sku.id == plan_of(large).sku.id


def test_a_declined_program_gets_the_reason():
    only = {"forbid": ("rows", "columns", "split", "ragged", "general")}
    five = [Stage(reducer="max", value=X * float(i + 1), axes=(1,)) for i in range(5)]
    terms = [X * stage(i, "f32") for i in range(5)]
    crowded = rows((4, 8), (0, 1), (*five, Stage(reducer="sum", value=sum(terms[1:], terms[0]))), (out(stage(5, "f32")),))
    for made, word in (
        (FORMS["rms"], "stages of groups"),
        (FORMS["grouped"], "stages of groups"),
        (largest_of_rows_and_columns((2, 3, 4, 5)), "several kinds of groups"),
        (crowded, "up to 4 results"),
        (FoldDescriptor.model_validate(FORMS["two_levels"].model_dump() | {"in_place": {"y": "x"}}), "stages of groups"),
    ):
        with pytest.raises(UnsupportedError, match=word):
            plan_of(made, **only)


@pytest.mark.parametrize("axes", [(1, 0), (0, 0), (2,), (0, 3)])
def test_axes_of_a_stage_must_be_folded_and_ascending(axes):
    with pytest.raises(DescriptorError, match="some of the folded axes"):
        rows((2, 3, 4), (0, 1), (Stage(reducer="sum", value=X, axes=axes),), (out(X, over=None),))


def test_an_output_without_an_axis_along_which_its_value_varies_is_refused():
    """The value varies along a folded axis that the stage does not reduce."""
    stages = (Stage(reducer="sum", value=X, axes=(0,)),)
    with pytest.raises(DescriptorError, match="Reduce it in a stage"):
        rows((2, 3), (0, 1), stages, (out(stage(0, "f32")),))
    same = (Input(name="x", dtype="f32", over=(0,)),)
    assert rows((2, 3), (0, 1), stages, (out(stage(0, "f32")),), same)


def test_a_row_that_uses_a_single_group_result_is_left_to_the_general_kernel():
    """All groups of a row have the same result."""
    inputs = (Input(name="x", dtype="f32", over=(0, 2)),)
    problem = rows((2, 3, 4), (1, 2), (Stage(reducer="sum", value=X, axes=(2,)),), (out(stage(0, "f32"), over=(0,)),), inputs)
    with pytest.raises(UnsupportedError, match="a row that uses the result of a group"):
        plan_of(problem, forbid=("general",))


def test_a_second_fold_that_cannot_be_expressed_is_declined():
    """A group result is constant along an axis that an output lacks; as an input of the second fold, the result would vary
    there."""
    inputs = (Input(name="x", dtype="f32", over=(1, 2)), Input(name="w", dtype="f32", over=(0,)))
    stages = (Stage(reducer="sum", value=X, axes=(2,)), Stage(reducer="max", value=stage(0, "f32") + W, axes=(0,)))
    outputs = (out(stage(0, "f32"), over=(1,)), out(stage(1, "f32"), over=(1,), name="z"))
    problem = rows((3, 4, 5), (0, 2), stages, outputs, inputs)
    assert levels_of(problem) is None
    assert plan_of(problem).sku.impl == "general"


@pytest.mark.parametrize("name", ["entropies", "entropies_columns", "many_results", "elements"])
def test_each_program_compiles_without_spills(name):
    builds_without_spills(LEVELS[name])


@pytest.mark.gpu
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_keeps_the_error_bound_on_a_gpu(problem, layout):
    on_gpu(problem, moved(problem, filled(problem, 3), layout))


@pytest.mark.gpu
@pytest.mark.parametrize("make", [
    lambda: mean_of_entropies((4096, 32000), 1), lambda: mean_of_entropies((4, 21, 64, 96), 1),
    lambda: largest_sum((3, 2000, 3000), 2, (1,)), lambda: largest_sum((3, 2000, 3000), 1, (2,)),
], ids=["entropies", "images", "rows", "columns"])  # fmt: skip
def test_large_programs_repeat_bitwise_on_a_gpu(make):
    problem = make()
    args = filled(problem, 3)
    first, second = (problem.written(on_gpu(problem, args)) for _ in range(2))
    for one, two in zip(first, second, strict=True):
        assert not bool(differs(one, two).any())
